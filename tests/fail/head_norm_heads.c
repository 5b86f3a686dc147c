// expect: te: m: (head_norm, n): heads, kv_heads and head_dim must be positive
#include "te/fuse/sequential.h"
#include "te/ops/elementwise.h"
#include "te/ops/head_norm.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (bias, b, 128), (head_norm, n, 4, 2, 16))
#else
TE_SEQUENTIAL(m, f32, (bias, b, 128), (head_norm, n, 8, 0, 16))
#endif
