// expect: te: m_fc_linear_output_layernorm: an (output, ..) may not stand before an op that saves its input
#include "te/fuse/sequential.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/residual.h"
#include "te/ops/elementwise.h"

#define TE_FORWARD_linear_output_norm TE_FUSED

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 8), (scale, s, 2.0f), (output, o), (layernorm, n, 8))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 8), (output, o), (layernorm, n, 8))
#endif
