// expect: te: m: (mul, second) takes no option causal
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 8), (mul, second, x))
#else
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 8), (mul, second, x, (causal, 0)))
#endif
