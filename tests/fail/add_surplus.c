// expect: te: m: (add, second) has more arguments than its kind takes
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 8), (add, second, x))
#else
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 8), (add, second, x, 8))
#endif
