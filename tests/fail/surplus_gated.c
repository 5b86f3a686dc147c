// expect: te: m: (swiglu, a) has more arguments than its kind takes
#include "te/fuse/sequential.h"
#include "te/ops/linear.h"
#include "te/ops/activation.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (swiglu, a))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (swiglu, a, 8))
#endif
