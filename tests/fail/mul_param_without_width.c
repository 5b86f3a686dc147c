// expect: te: m: (mul_param, s) says how many numbers it learns: the width, or 1
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (mul_param, s, 1))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (mul_param, s))
#endif
