// expect: te: m: (gelu) has no name; an op is (kind, name, shapes..., options...)
#include "te/fuse/sequential.h"
#include "te/ops/activation.h"
#include "te/ops/linear.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 8), (gelu, a))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 8), (gelu))
#endif
