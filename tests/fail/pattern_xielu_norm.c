// expect: a backward pattern with a dyt or xielu has no norm and no gated op
#include "te/te.h"

#ifdef TE_FIXED
#define B_norm_act TE_FUSED
TE_SEQUENTIAL_WITH(TE_FORWARD_, B_, m, f32, (linear, fc, 8, 16), (xielu, n), (rmsnorm, r, 16))
#else
#define B_norm_xielu TE_FUSED
TE_SEQUENTIAL_WITH(TE_FORWARD_, B_, m, f32, (linear, fc, 8, 16), (xielu, n), (rmsnorm, r, 16))
#endif
