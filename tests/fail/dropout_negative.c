// expect: te: m: (dropout, d): the probability must be at least 0 and less than 1
#include "te/fuse/sequential.h"
#include "te/ops/elementwise.h"
#include "te/ops/dropout.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (bias, b, 8), (dropout, d, 0.5f))
#else
TE_SEQUENTIAL(m, f32, (bias, b, 8), (dropout, d, -0.5f))
#endif
