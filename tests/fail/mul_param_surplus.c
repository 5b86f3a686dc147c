// expect: te: m: (mul_param, s) has more arguments than its kind takes
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (mul_param, s, 16))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (mul_param, s, 16, 16))
#endif
