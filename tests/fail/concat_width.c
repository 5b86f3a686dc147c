// expect: te: m: (concat, c) has another width than its fork
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 64), (concat, c, x, 8))
#else
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 64), (concat, c, x, 16))
#endif
