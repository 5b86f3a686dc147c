// expect: te: m: (fork, x) must not end (recompute, r); it goes behind the mark
// The value of the fork is needed behind the region, so it must be saved.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc1, 8, 8), (recompute, r), (gelu, act), (end_recompute, r), (fork, x), (linear, fc2, 8, 8), (add, x))
#else
TE_SEQUENTIAL(m, f32, (linear, fc1, 8, 8), (recompute, r), (gelu, act), (fork, x), (end_recompute, r), (linear, fc2, 8, 8), (add, x))
#endif
