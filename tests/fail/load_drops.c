// expect: te: m: (load, x) drops the value that (gelu, a) produces: a (fork, ..) goes between them
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (fork, x), (gelu, a), (fork, g), (load, x), (linear, fc, 8, 8), (add, g))
#else
TE_SEQUENTIAL(m, f32, (fork, x), (gelu, a), (load, x), (linear, fc, 8, 8))
#endif
