// expect: te: m_n_head_norm_rope: (head_norm, n): above 496 columns, head_dim and rotary_dim must be multiples of 16
#include "te/fuse/sequential.h"
#include "te/ops/head_norm.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (head_norm, n, 2, 1, 512), (rope, r, 2, 1, 512, (rotary_dim, 496)))
#else
TE_SEQUENTIAL(m, f32, (head_norm, n, 2, 1, 512), (rope, r, 2, 1, 512, (rotary_dim, 506)))
#endif
