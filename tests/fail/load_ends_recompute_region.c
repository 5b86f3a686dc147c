// expect: te: m: (load, x) must not end (recompute, r); it goes behind the mark
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (recompute, r), (fork, x), (gelu, a), (fork, y), (load, x), (linear, fc, 8, 8), (add, y), (end_recompute, r), (gelu, b))
#else
TE_SEQUENTIAL(m, f32, (recompute, r), (fork, x), (gelu, a), (fork, y), (load, x), (end_recompute, r), (linear, fc, 8, 8), (add, y))
#endif
