// expect: te: m: (recompute, s) stands inside another one; recompute regions do not nest
// A recompute region inside another.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (recompute, r), (linear, fc1, 8, 16), (end_recompute, r), (recompute, s), (gelu, act), (end_recompute, s))
#else
TE_SEQUENTIAL(m, f32, (recompute, r), (linear, fc1, 8, 16), (recompute, s), (gelu, act), (end_recompute, s), (end_recompute, r))
#endif
