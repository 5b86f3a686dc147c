// expect: te: m: the list ends inside a (recompute, ..)
// A recompute region that begins behind the last op.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc1, 8, 16), (recompute, r), (gelu, act), (end_recompute, r))
#else
TE_SEQUENTIAL(m, f32, (linear, fc1, 8, 16), (gelu, act), (recompute, r))
#endif
