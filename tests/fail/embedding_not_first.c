// expect: te: m: (embedding, e) must begin the list
#include "te/fuse/sequential.h"
#include "te/ops/linear.h"
#include "te/ops/embedding.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (embedding, e, 11, 1), (linear, fc, 1, 1))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 1, 1), (embedding, e, 11, 1))
#endif
