// expect: te: m is a list for inference alone
#include "te/infer.h"

#ifdef TE_FIXED
#include "te/fuse/sequential.h"
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 8), (gelu, a))
#else
TE_INFERENCE(m, f32, (linear, fc, 8, 8), (gelu, a))
#endif
te_status train(const m *fc, te_saved *saved, te_tensor x, const te_batch *batch, te_context *ctx);
te_status train(const m *fc, te_saved *saved, te_tensor x, const te_batch *batch, te_context *ctx) {
    return m_forward(x, saved, x, fc, batch, ctx);
}
