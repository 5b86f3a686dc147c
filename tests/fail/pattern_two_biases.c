// expect: a backward pattern has at most one bias, mul_param, dyt or xielu
// A backward kernel sums one parameter's gradient, so one bias is the limit; a forward pattern may have several.
#include "te/te.h"

#ifdef TE_FIXED
#define TE_FORWARD_bias_bias TE_FUSED
#else
#define TE_BACKWARD_bias_bias TE_FUSED
#endif
TE_SEQUENTIAL(m, f32, (bias, b, 8), (bias, c, 8))
