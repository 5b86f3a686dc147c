// expect: te: m: (dyt, n) takes no option eps
// dyt divides by nothing, so it has no eps.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (dyt, n, 16))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (dyt, n, 16, (eps, 1e-5f)))
#endif
