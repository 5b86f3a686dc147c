// expect: te: m_n_rmsnorm_swiglu: a pattern has at most one gated op, and none beside a norm
#include "te/fuse/sequential.h"
#include "te/ops/activation.h"
#include "te/ops/norm.h"

#ifdef TE_FIXED
#define TE_FORWARD_norm_act TE_FUSED
TE_SEQUENTIAL(m, f32, (rmsnorm, n, 64), (silu, act))
#else
#define TE_FORWARD_norm_gated TE_FUSED
TE_SEQUENTIAL(m, f32, (rmsnorm, n, 64), (swiglu, act))
#endif
