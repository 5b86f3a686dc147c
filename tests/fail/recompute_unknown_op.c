// expect: te: m: unknown op (gulu, act)
// An unknown op is named inside a recompute region, too.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (recompute, r), (gelu, act), (linear, fc, 8, 16), (end_recompute, r))
#else
TE_SEQUENTIAL(m, f32, (recompute, r), (gulu, act), (linear, fc, 8, 16), (end_recompute, r))
#endif
