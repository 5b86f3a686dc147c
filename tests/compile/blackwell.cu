// blackwell.cu -- a GPT block, a linear under every recipe, and a GEMM of MXFP8 or NVFP4, compiled for compute capability 10.0 and 12.0 by tests/architectures.sh.
// No kernel of it has ever run there.
#include "te/te.h"
#include "te/microscaling.h"

#define BLOCK                                                                                                           \
    (fork, x1), (layernorm, ln1, 256), (linear, qkv, 256, 768), (bias, qkv_b, 768), (attention, attn, 4, 4, 64),        \
        (linear, proj, 256, 256), (bias, proj_b, 256), (add, x1), (fork, x2), (layernorm, ln2, 256),                    \
        (linear, fc1, 256, 1024), (bias, b1, 1024), (gelu, act), (linear, fc2, 1024, 256), (bias, b2, 256), (add, x2)
TE_SEQUENTIAL(block, (bf16, (width, 256)), BLOCK)

#define LINEAR(RECIPE) TE_SEQUENTIAL(RECIPE##_list, (bf16, (recipe, RECIPE)), (layernorm, ln, 256), (linear, fc, 256, 256), (bias, b, 256))
LINEAR(fp8_delayed)
LINEAR(fp8_current)
LINEAR(fp8_block)
LINEAR(fp8_row)
LINEAR(mxfp8)
LINEAR(nvfp4)

TE_GEMM_MICROSCALED(product)

int main() {
    te_context ctx;
    const te_gemm_microscaled g = te_gemm_microscaled_of(TE_NVFP4, 0, 8, 32);
    const te_plan *const plans[] = {block_plan(), fp8_delayed_list_plan(), fp8_current_list_plan(), fp8_block_list_plan(), fp8_row_list_plan(), mxfp8_list_plan(), nvfp4_list_plan()};
    for (const te_plan *plan : plans) printf("%s\n", plan->name);
    return te_context_create(&ctx, 0, 1) != TE_OK || product_run(&g, &ctx) != TE_OK;
}
