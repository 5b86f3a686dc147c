// expect: a backward pattern has at most one bias, mul_param, dyt or xielu
#include "te/te.h"

#ifdef TE_FIXED
#define B_bias_act TE_FUSED
TE_SEQUENTIAL_WITH(TE_FORWARD_, B_, m, f32, (linear, fc, 8, 16), (dyt, n, 16), (bias, b, 16))
#else
#define B_bias_dyt TE_FUSED
TE_SEQUENTIAL_WITH(TE_FORWARD_, B_, m, f32, (linear, fc, 8, 16), (dyt, n, 16), (bias, b, 16))
#endif
