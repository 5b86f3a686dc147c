// expect: te: m: (swiglu, act) has no width
#include "te/fuse/sequential.h"
#include "te/ops/linear.h"
#include "te/ops/activation.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (swiglu, act))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 15), (swiglu, act))
#endif
