/* product.h -- a row that begins with a matrix product as one kernel: the chain of the ops behind it is the product's end. For
 * maps with constant widths, in 16 bits: gemm_few.h up to eight rows of a tensor, gemm_hopper.h beyond, on compute capability 9.0.
 * All others are a product and a kernel for the rest, or a product with an epilogue of cuBLASLt's; where it should pay that
 * product, too, is one of ours.
 */
#ifndef TE_FUSE_PRODUCT_H
#define TE_FUSE_PRODUCT_H

#include "chain_run.h"    /* te__chain_forward */
#include "../gemm/gemm.h" /* te_gemm */

#if TE_CUDA && !defined(TE_KEEP_CALLS) /* its sums stay in registers only where all is inlined */
#include "../gemm/gemm_few.h"
#include "../gemm/gemm_hopper.h"

typedef struct te_product_kernels { te_hopper_kernel many, few; } te_product_kernels; /* for many rows, and for few */

typedef struct te_product {
    union { te_hopper many; te_few few; };
    te_chain chain; /* x: where the product itself is stored, null: not */
} te_product;

TE_FN void te_product_end(const te_product *p, const uint32_t w[4], const uint32_t *ahead, int row, int col, float sum[8], te_stages_fn stages, const te_chain_shape k) {
    te_lane l;
    te_eight e;
    TE_UNROLL for (int i = 0; i < 4; i++) e.w[i] = w[i];
    l.at = te_at_of(k, row, col / 8, 1);
    if (ahead && k.reads >= 0) {
        l.at.ahead_of = &p->chain.op[k.reads];
        TE_UNROLL for (int i = 0; i < 4; i++) l.at.ahead.w[i] = ahead[i];
    }
    te_floats_of_eight(l.v, &e, k.dtype);
    if (p->chain.x) te_store8((void *)p->chain.x, te_index(l.at), l.v, 8, 1, k.dtype);
    TE_UNROLL for (int i = 0; i < 8; i++) l.sum[i] = sum[i];
    stages(&l, &p->chain, 0, TE_MAX_ROW);
    TE_UNROLL for (int i = 0; i < 8; i++) sum[i] = l.sum[i];
    if (p->chain.y) te_store_lane(&l, p->chain.y, k);
}
/* The kernels of a row whose chain is `name` (TE_CHAIN); in backward the weight lies as it does, in forward transposed. */
#define TE_PRODUCT(name, dtype)                                                                                                \
    enum { name##_is_product = TE_##dtype != TE_f32 && name##_norm < 0 && name##_in_halves == 1 && name##_out_halves == 1 && name##_half % 8 == 0, \
           name##_is_few = name##_is_product && !name##_is_backward };                                                         \
    TE_FN void name##_end(const void *p, const uint32_t w[4], const uint32_t *ahead, int row, int col, float sum[8]) { te_product_end((const te_product *)p, w, ahead, row, col, sum, name##_stages, name##_shape(0)); } \
    TE_HOPPER_KERNEL(name##_product, te_product, TE_##dtype, !name##_is_backward, name##_end, name##_is_product)              \
    TE_FEW_KERNEL(name##_few, te_product, TE_##dtype, name##_end, name##_is_few)                                               \
    TE_API te_product_kernels *name##_kernels(void) {                                                                          \
        static te_product_kernels kernels = {{name##_is_product ? (const void *)name##_product : 0, 0, 0}, {name##_is_few ? (const void *)name##_few : 0, 0, 0}}; \
        return &kernels;                                                                                                       \
    }

TE_API int te__product_is_few(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    return te__few_can(g) && te__hopper_ready(&kernels->few, TE_FEW_SHARED, ctx->device);
}
/* Whether one of the kernels takes the product here. */
TE_API int te_product_can(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    if (!ctx->gemm_own || !kernels) return 0;
    return te__product_is_few(kernels, g, ctx) || (te__hopper_can(g) && te__gemm_encode(ctx) && te__hopper_ready(&kernels->many, TE_HOPPER_SHARED, ctx->device));
}
TE_API int te_product_pays(const te_gemm *g, const te_context *ctx) { return ctx->gemm_own > 1 || te__few_pays(g) || te__hopper_pays(g, ctx); }

/* Launch it; `args` begin with `few` or `many`. */
TE_API te_status te__product_run(te_product_kernels *kernels, const void *args, size_t bytes, te_few *few, te_hopper *many, const te_gemm *g, te_context *ctx) {
    if (te__product_is_few(kernels, g, ctx)) return te__few_run(kernels->few.kernel, args, bytes, few, g, ctx);
    return te__hopper_run(kernels->many.kernel, args, bytes, many, g, te__gemm_encode(ctx), ctx);
}
/* Run the step so. r->now: where the product itself goes, if backward reads it. */
TE_API te_status te_product_step(te_run *r, const te_step *s, te_product_kernels *kernels, const te_gemm *g, const te_chain_shape k) {
    te_product p;
    int work = 0;
    const int blocks = 3 * (int)te_ceil_div(g->m, TE_TILE_M), most = (int)te_max(blocks, te__most_blocks(r, k, te_chain_tiles(k)));
    memset(&p, 0, sizeof p);
    p.chain.x = r->now.p, p.chain.rows = r->rows;
    const te_value x = te_hold(r, r->now);
    if (k.backward) TE_TRY(te__chain_backward(r, s, 1, blocks, most, &p.chain, &work));
    else TE_TRY(te__chain_forward(r, s, 1, 0, &p.chain, &work));
    if (k.sums >= 0) p.many.sums = p.chain.op[k.sums].sum[0];
    if (k.reads >= 0 && !te__product_is_few(kernels, g, r->ctx)) p.many.ahead = k.backward && p.chain.op[k.reads].saved ? p.chain.op[k.reads].saved : p.chain.op[k.reads].edge;
    if (!r->dry) TE_TRY(te__product_run(kernels, &p, sizeof p, &p.few, &p.many, g, r->ctx));
    te_drop(r, x);
    return TE_OK;
}

/* ---- a product by itself --------------------------------------------------------------------------------------------- */

typedef struct te_bare {
    union { te_hopper many; te_few few; };
    void *d;
    const void *c; /* added; null: nothing */
    int n;
} te_bare;

template <te_dtype T> TE_FN void te_bare_end(const void *arg, const uint32_t w[4], const uint32_t *ahead, int row, int col, float sum[8]) {
    const te_bare *p = (const te_bare *)arg;
    const int64_t at = (int64_t)row * p->n + col;
    float v[8], c[8];
    te_eight e;
    TE_UNROLL for (int i = 0; i < 4; i++) e.w[i] = w[i];
    te_floats_of_eight(v, &e, T);
    if (p->c) {
        TE_UNROLL for (int i = 0; ahead && i < 4; i++) e.w[i] = ahead[i];
        if (ahead) te_floats_of_eight(c, &e, T);
        else te_load8(c, p->c, at, 8, 1, T);
        TE_UNROLL for (int i = 0; i < 8; i++) v[i] += c[i];
    }
    te_store8(p->d, at, v, 8, 1, T);
    (void)sum;
}
template <te_dtype T, int FORWARD> TE_HOPPER_KERNEL(te_bare_many, te_bare, T, FORWARD, te_bare_end<T>, T != TE_f32)
template <te_dtype T> TE_FEW_KERNEL(te_bare_few, te_bare, T, te_bare_end<T>, T != TE_f32)
template <te_dtype T, int FORWARD> TE_API te_product_kernels *te_bare_kernels(void) {
    static te_product_kernels kernels = {{T != TE_f32 ? (const void *)te_bare_many<T, FORWARD> : 0, 0, 0}, {T != TE_f32 && FORWARD ? (const void *)te_bare_few<T> : 0, 0, 0}};
    return &kernels;
}
#define TE_BARE(dtype, pass) te_bare_kernels<TE_##dtype, !TE_PASS_backward_##pass>()

/* Whether such a product is run so. Of many rows with B across and an even last round, in turns with PyTorch's, 0.92 to 0.99 of its
 * time, and 0.99 to 1.02 of cuBLASLt's fastest candidate's (1.00 of both where it is not even: 8192 x 4096 x 4096); with B as it lies
 * the same as the first candidate, but 1.00 to 1.05 of the fastest. */
TE_API int te_bare_pays(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    if (!te_product_can(kernels, g, ctx)) return 0;
    return ctx->gemm_own > 1 || te__few_pays(g) || (te__hopper_pays(g, ctx) && ((!g->trans_b && te__hopper_is_even(g, ctx)) || !te__gemm_is_timed(g, ctx)));
}
/* D = alpha A op(B), rounded, (+ C where beta is 1). */
TE_API te_status te_bare_run(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    te_bare p;
    memset(&p, 0, sizeof p);
    p.d = g->d, p.c = g->beta != 0 ? g->c : 0, p.n = (int)g->n;
    if (!te__product_is_few(kernels, g, ctx)) p.many.ahead = p.c;
    return te__product_run(kernels, &p, sizeof p, &p.few, &p.many, g, ctx);
}

#else /* a product, and a kernel or a loop for the rest */
typedef struct te_product_kernels te_product_kernels;
#define TE_PRODUCT TE_NO_PRODUCT
#define TE_BARE(dtype, pass) 0
TE_API int te_product_can(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) { return (void)kernels, (void)g, (void)ctx, 0; }
TE_API int te_product_pays(const te_gemm *g, const te_context *ctx) { return (void)g, (void)ctx, 0; }
TE_API int te_bare_pays(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) { return (void)kernels, (void)g, (void)ctx, 0; }
TE_API te_status te_product_step(te_run *r, const te_step *s, te_product_kernels *kernels, const te_gemm *g, const te_chain_shape k) {
    return (void)r, (void)s, (void)kernels, (void)g, (void)k, TE_OK;
}
TE_API te_status te_bare_run(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) { return (void)kernels, (void)g, (void)ctx, TE_OK; }
#endif
#define TE_NO_PRODUCT(name, dtype) \
    TE_API te_product_kernels *name##_kernels(void) { return 0; }

#endif
