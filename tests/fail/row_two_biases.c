// expect: a backward pattern has at most one bias, mul_param or dyt
// The gradient of a second bias would have nowhere to be summed; in forward a row may have as many as it likes.
#include "te/te.h"

#ifdef TE_FIXED
#define TE_FORWARD_bias_bias TE_FUSED
#else
#define TE_BACKWARD_bias_bias TE_FUSED
#endif
TE_SEQUENTIAL(m, f32, (bias, b, 8), (bias, c, 8))
