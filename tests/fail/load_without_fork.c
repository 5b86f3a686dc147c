// expect: te: m: (load, x) has no (fork, x)
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (fork, x), (gelu, a), (fork, y), (load, x), (linear, fc, 8, 8), (add, y))
#else
TE_SEQUENTIAL(m, f32, (gelu, a), (fork, y), (load, x), (linear, fc, 8, 8), (add, y))
#endif
