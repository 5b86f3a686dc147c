// expect: te: m: (fork, x) stands in a (recompute, ..), (concat, c) behind it; begin the region with the fork, or take both in
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (recompute, r), (fork, x), (linear, fc, 8, 64), (gelu, g), (end_recompute, r), (concat, c, x, 8))
#else
TE_SEQUENTIAL(m, f32, (linear, in, 8, 8), (recompute, r), (gelu, g), (fork, x), (linear, fc, 8, 64), (end_recompute, r), (concat, c, x, 8))
#endif
