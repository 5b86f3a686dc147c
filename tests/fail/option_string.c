// expect: te: m: (rmsnorm, n): the option eps takes a number
// Text where a number is needed.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (rmsnorm, n, 16, (eps, 1e-6f)))
#else
TE_SEQUENTIAL(m, f32, (rmsnorm, n, 16, (eps, "small")))
#endif
