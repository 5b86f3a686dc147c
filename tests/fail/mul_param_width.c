// expect: te: m: (mul_param, s) does not take the width that (linear, fc) produces
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (mul_param, s, 16))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (mul_param, s, 8))
#endif
