// expect: te: m: (linear, fc) has more arguments than its kind takes
#include "te/fuse/sequential.h"
#include "te/ops/linear.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16, 1))
#endif
