// expect: te: m: (mul, x) has the name of an op before it
// The second mul needs a name of its own.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 8), (mul, x), (mul, second, x))
#else
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 8), (mul, x), (mul, x))
#endif
