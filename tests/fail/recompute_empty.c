// expect: te: m: (recompute, r) holds no op
// A recompute region without an op.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc1, 8, 16), (recompute, r), (gelu, act), (end_recompute, r))
#else
TE_SEQUENTIAL(m, f32, (linear, fc1, 8, 16), (recompute, r), (end_recompute, r), (gelu, act))
#endif
