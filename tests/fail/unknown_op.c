// expect: te: m: unknown op (lineer, fc)
// lines: 40
#include "te/fuse/sequential.h"
#include "te/ops/linear.h"
#include "te/ops/activation.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (gelu, act))
#else
TE_SEQUENTIAL(m, f32, (lineer, fc, 8, 16), (gelu, act))
#endif
