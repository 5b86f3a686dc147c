// expect: te: m: (fork, x) stands in a (recompute, ..), (add, x) behind it
// The add stands in a recompute region, too, but in the next one.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (recompute, r), (gelu, act), (end_recompute, r), (fork, x), (recompute, s), (linear, fc, 8, 8), (add, x), (end_recompute, s))
#else
TE_SEQUENTIAL(m, f32, (recompute, r), (gelu, act), (fork, x), (bias, b, 8), (end_recompute, r), (recompute, s), (linear, fc, 8, 8), (add, x), (end_recompute, s))
#endif
