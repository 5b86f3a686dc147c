// expect: te: m_n1_rmsnorm_layernorm: a pattern has at most one norm
#include "te/fuse/sequential.h"
#include "te/ops/norm.h"
#include "te/ops/elementwise.h"

#ifdef TE_FIXED
#define TE_FORWARD_norm_scale TE_FUSED
TE_SEQUENTIAL(m, f32, (rmsnorm, n1, 64), (scale, s, 2.0f), (layernorm, n2, 64))
#else
#define TE_FORWARD_norm_norm TE_FUSED
TE_SEQUENTIAL(m, f32, (rmsnorm, n1, 64), (layernorm, n2, 64))
#endif
