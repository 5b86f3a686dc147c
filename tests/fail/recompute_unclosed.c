// expect: te: m: the list ends inside a (recompute, ..)
// A recompute region without an end_recompute.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc1, 8, 16), (recompute, r), (gelu, act), (linear, fc2, 16, 8), (end_recompute, r))
#else
TE_SEQUENTIAL(m, f32, (linear, fc1, 8, 16), (recompute, r), (gelu, act), (linear, fc2, 16, 8))
#endif
