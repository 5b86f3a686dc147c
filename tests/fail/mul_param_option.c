// expect: te: m: (mul_param, s) takes no option eps
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (mul_param, s, 16))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (mul_param, s, 16, (eps, 1e-5f)))
#endif
