// expect: te: m: (dyt, n) does not take the width that (linear, fc) produces
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (dyt, n, 16))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (dyt, n, 8))
#endif
