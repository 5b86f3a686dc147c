// expect: te: m: (mul, x) has no (fork, x)
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 8), (mul, x))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 8), (mul, x))
#endif
