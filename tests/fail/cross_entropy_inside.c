// expect: te: m: (cross_entropy, ce) must end the list
#include "te/fuse/sequential.h"
#include "te/ops/elementwise.h"
#include "te/ops/cross_entropy.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (scale, s, 2.0f), (cross_entropy, ce, 8))
#else
TE_SEQUENTIAL(m, f32, (cross_entropy, ce, 8), (scale, s, 2.0f))
#endif
