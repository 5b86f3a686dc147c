// expect: te: m: (fork, x) stands in a (recompute, ..), (load, x) behind it
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (recompute, r), (fork, x), (gelu, a), (linear, fc, 8, 8), (end_recompute, r), (fork, y), (load, x), (gelu, b), (add, y))
#else
TE_SEQUENTIAL(m, f32, (recompute, r), (gelu, a), (fork, x), (linear, fc, 8, 8), (end_recompute, r), (fork, y), (load, x), (gelu, b), (add, y))
#endif
