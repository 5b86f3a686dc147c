// expect: te: m: (fork, x) stands in a (recompute, ..), (add, x) behind it
// The value of a fork inside a region is not saved, so it is gone when the add behind the region comes.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (recompute, r), (fork, x), (gelu, act), (linear, fc, 8, 8), (end_recompute, r), (add, x))
#else
TE_SEQUENTIAL(m, f32, (recompute, r), (gelu, act), (fork, x), (linear, fc, 8, 8), (end_recompute, r), (add, x))
#endif
