// expect: te: m: (fork, x) stands in a (recompute, ..), (mul, second) behind it
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (recompute, r), (fork, x), (gelu, a), (linear, fc, 8, 8), (mul, x), (end_recompute, r), (mul, second, x))
#else
TE_SEQUENTIAL(m, f32, (recompute, r), (gelu, a), (fork, x), (linear, fc, 8, 8), (mul, x), (end_recompute, r), (mul, second, x))
#endif
