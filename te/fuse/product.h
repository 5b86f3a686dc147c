/* product.h -- a row that begins with a matrix product as one kernel: the chain of the ops behind it is the product's end
 * (gemm_hopper.h). For rows of maps with constant widths, in 16 bits, on compute capability 9.0; all others are a product and a
 * kernel for the rest, or a product with an epilogue of cuBLASLt's.
 */
#ifndef TE_FUSE_PRODUCT_H
#define TE_FUSE_PRODUCT_H

#include "chain_run.h" /* te__chain_forward */
#include "../gemm.h"   /* te_gemm */

#if TE_CUDA && !defined(TE_KEEP_CALLS) /* its sums stay in registers only where all is inlined */
#include "../gemm_hopper.h"

typedef struct te_product {
    te_hopper gemm;
    te_chain chain; /* x: where the product itself is stored, null: not */
} te_product;

TE_FN void te_product_end(const te_product *p, const uint32_t w[4], int row, int col, float sum[8], te_stages_fn stages, const te_chain_shape k) {
    te_lane l;
    te_eight e;
    TE_UNROLL for (int i = 0; i < 4; i++) e.w[i] = w[i];
    l.at = te_at_of(k, row, col / 8, 1);
    te_floats_of_eight(l.v, &e, k.dtype);
    if (p->chain.x) te_store8((void *)p->chain.x, te_index(l.at), l.v, 8, 1, k.dtype);
    TE_UNROLL for (int i = 0; i < 8; i++) l.sum[i] = sum[i];
    stages(&l, &p->chain, 0, TE_MAX_ROW);
    TE_UNROLL for (int i = 0; i < 8; i++) sum[i] = l.sum[i];
    if (p->chain.y) te_store_lane(&l, p->chain.y, k);
}
/* The kernel of a row whose chain is `name` (TE_CHAIN); in backward the weight lies as it does, in forward transposed. */
#define TE_PRODUCT(name, dtype)                                                                                                \
    enum { name##_is_product = TE_##dtype != TE_f32 && name##_norm < 0 && name##_in_halves == 1 && name##_out_halves == 1 && name##_half % 8 == 0 }; \
    TE_FN void name##_end(const void *p, const uint32_t w[4], int row, int col, float sum[8]) { te_product_end((const te_product *)p, w, row, col, sum, name##_stages, name##_shape(0)); } \
    TE_HOPPER_KERNEL(name##_product, te_product, TE_##dtype, !name##_is_backward, name##_end, name##_is_product)                              \
    TE_API te_hopper_kernel *name##_kernel(void) {                                                                             \
        static te_hopper_kernel kernel = {name##_is_product ? (const void *)name##_product : 0, 0, 0};                         \
        return &kernel;                                                                                                        \
    }

/* Whether the step can be one kernel here. */
TE_API int te_product_can(te_hopper_kernel *kernel, const te_gemm *g, te_context *ctx) {
    return ctx->gemm_own && te__hopper_can(g) && te__gemm_encode(ctx) && te__hopper_ready(kernel, ctx->device);
}
TE_API int te_product_pays(const te_gemm *g, const te_context *ctx) { return ctx->gemm_own > 1 || te__hopper_pays(g, ctx); }

/* Run it. r->now: where the product itself goes, if backward reads it. */
TE_API te_status te_product_step(te_run *r, const te_step *s, te_hopper_kernel *kernel, const te_gemm *g, const te_chain_shape k) {
    te_product p;
    te__sums sums;
    int work = 0;
    const int blocks = 3 * (int)te_ceil_div(g->m, TE_TILE_M);
    memset(&p, 0, sizeof p);
    sums.count = 0, sums.most = (int)te_max(blocks, te__most_blocks(r, k, te_chain_tiles(k)));
    p.chain.x = r->now.p, p.chain.rows = r->rows;
    const te_value x = te_hold(r, r->now);
    if (k.backward) TE_TRY(te__chain_backward(r, s, 1, blocks, &p.chain, &sums, &work));
    else TE_TRY(te__chain_forward(r, s, 1, 0, &p.chain, &work));
    if (k.sums >= 0) p.gemm.sums = p.chain.op[k.sums].sum[0];
    if (!r->dry) TE_TRY(te__hopper_run(kernel->kernel, &p, &p.gemm, g, te__gemm_encode(r->ctx), r->ctx));
    TE_TRY(te__add_up(&sums, r));
    te_drop(r, x);
    return TE_OK;
}

#else /* a product, and a kernel or a loop for the rest */
typedef struct te_hopper_kernel te_hopper_kernel;
#define TE_PRODUCT TE_NO_PRODUCT
TE_API int te_product_can(te_hopper_kernel *kernel, const te_gemm *g, te_context *ctx) { return (void)kernel, (void)g, (void)ctx, 0; }
TE_API int te_product_pays(const te_gemm *g, const te_context *ctx) { return (void)g, (void)ctx, 0; }
TE_API te_status te_product_step(te_run *r, const te_step *s, te_hopper_kernel *kernel, const te_gemm *g, const te_chain_shape k) {
    return (void)r, (void)s, (void)kernel, (void)g, (void)k, TE_OK;
}
#endif
#define TE_NO_PRODUCT(name, dtype) \
    TE_API te_hopper_kernel *name##_kernel(void) { return 0; }

#endif
