// expect: te: m_n_head_norm_rope: (head_norm, n) and (rope, r) must have the same heads
#include "te/fuse/sequential.h"
#include "te/ops/head_norm.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (head_norm, n, 4, 2, 16), (rope, r, 4, 2, 16))
#else
TE_SEQUENTIAL(m, f32, (head_norm, n, 4, 2, 16), (rope, r, 2, 3, 16))
#endif
