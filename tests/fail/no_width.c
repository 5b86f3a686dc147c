// expect: te: m: (gelu, act) has no width
#include "te/fuse/sequential.h"
#include "te/ops/activation.h"
#include "te/ops/elementwise.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (gelu, act), (bias, b, 8))
#else
TE_SEQUENTIAL(m, f32, (gelu, act))
#endif
