// expect: te: m: (dyt, n) takes no option eps
// Nothing is divided by.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (dyt, n, 16))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (dyt, n, 16, (eps, 1e-5f)))
#endif
