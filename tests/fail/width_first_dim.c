// expect: te: m: the first width must be positive; TE_DIM takes TE_SEQUENTIAL_DIMS
#include "te/fuse/sequential.h"
#include "te/ops/linear.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 8))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, TE_DIM(0), 8))
#endif
