// expect: te: m: the first width must be positive, or one TE_DIM times a constant
#include "te/fuse/sequential.h"
#include "te/ops/linear.h"

#ifdef TE_FIXED
TE_SEQUENTIAL_DIMS(m, f32, (linear, fc, TE_DIM(2), 8))
#else
TE_SEQUENTIAL_DIMS(m, f32, (linear, fc, TE_DIM(0) + TE_DIM(1), 8))
#endif
