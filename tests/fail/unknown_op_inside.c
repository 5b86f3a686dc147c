// expect: te: m: unknown op (gulu, act)
#include "te/fuse/sequential.h"
#include "te/ops/linear.h"
#include "te/ops/activation.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc1, 8, 16), (gelu, act), (linear, fc2, 16, 8))
#else
TE_SEQUENTIAL(m, f32, (linear, fc1, 8, 16), (gulu, act), (linear, fc2, 16, 8))
#endif
