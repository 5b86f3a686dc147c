// expect: te: m: (head_norm, n): head_dim is 512 at most
#include "te/fuse/sequential.h"
#include "te/ops/head_norm.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (head_norm, n, 2, 1, 512))
#else
TE_SEQUENTIAL(m, f32, (head_norm, n, 2, 1, 520))
#endif
