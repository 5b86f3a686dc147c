/* gemm_fp8.h -- a product in FP8 by itself, by whoever is fastest: a kernel of our own (gemm_hopper.h) or cuBLASLt.
 *
 * Do this:
 *     te_gemm g = te_gemm_of(rows, out, in);                  // y[rows, out] = x[rows, in] w[out, in]^T
 *     g.a = x, g.b = w, g.trans_b = 1, g.d = y, g.dtype = g.out = TE_bf16, g.fast = 1;
 *     g.a_fp8.scaling = g.b_fp8.scaling = TE_SCALING_TENSOR, g.a_fp8.dtype = g.b_fp8.dtype = TE_e4m3;
 *     g.a_fp8.inverse = te_scales_inverse(&scales, i), g.b_fp8.inverse = te_scales_inverse(&scales, j);
 *     TE_TRY(te_gemm_fp8_run(&g, ctx));
 *
 * With ctx->gemm_tune on both are timed at a product's first run, and the choice goes into the tuning file; else a rule
 * decides. For a weight's gradient g.out is f32 and beta 1: cuBLASLt's, as all without fast accumulation.
 *
 * Flops: 2 m n k; the floor is that over the tensor cores' rate, 1.3e15 to 1.45e15 a second where an H200 is at its
 * power limit. In turns on one H200 with torch._scaled_mm, eight products of some 8192 x 12288 x 4096, torch's time
 * over: ours 0.98 to 1.05, geometric mean 1.014; cuBLASLt's fastest candidate 1.00 to 1.16, 1.075. Ours keeps the
 * tensor cores at work for 0.90 of the cycles at k of 4096, 0.93 at 16384; that candidate for 0.98. What did not pay:
 * one warpgroup a step of k behind the other (1.00); bands of 4 or 16 clusters (1.00 to 1.02 of the time).
 */
#ifndef TE_GEMM_FP8_H
#define TE_GEMM_FP8_H

#include "../core/fill.h"  /* te_fill_normal */
#include "gemm_choose.h"   /* te_product_kernels, te__gemm_run_own */

#if TE_CUDA && !defined(TE_KEEP_CALLS)

typedef struct te_fp8_bare {
    te_hopper many;
    void *d;
    const void *bias, *c; /* added before and after D is rounded; null: nothing */
    int n;
} te_fp8_bare;

template <te_dtype T>
TE_FN void te_fp8_bare_epilogue(const void *arg, const uint32_t w[4], const uint32_t *ahead, int row, int col,
                                te_epilogue_lane *lane) {
    const te_fp8_bare *p = (const te_fp8_bare *)arg;
    const int64_t at = (int64_t)row * p->n + col;
    float v[8], more[8];
    te_vec8 e;
    TE_UNROLL for (int i = 0; i < 4; i++) e.w[i] = w[i];
    te_vec8_floats(v, &e, T);
    if (p->bias) {
        te_load8(more, p->bias, col, 8, 1, T);
        TE_UNROLL for (int i = 0; i < 8; i++) v[i] += more[i];
    }
    if (p->c) {
        TE_UNROLL for (int i = 0; i < 4; i++) e.w[i] = ahead[i];
        te_vec8_floats(more, &e, T);
        TE_UNROLL for (int i = 0; i < 8; i++) v[i] += more[i];
    }
    te_store8(p->d, at, v, 8, 1, T);
    (void)lane;
}
template <te_dtype T, te_dtype A, te_dtype B>
TE_HOPPER_KERNEL_OF(te_fp8_bare_many, te_fp8_bare, T, A, B, 1, te_fp8_bare_epilogue<T>, 1)
template <te_dtype T, te_dtype A, te_dtype B> TE_API te_product_kernels *te__fp8_kernels(void) {
    static te_product_kernels kernels = {{0, 0, 0}, {0, 0, 0}, {(const void *)te_fp8_bare_many<T, A, B>, 0, 0}, 0};
    return &kernels;
}
template <te_dtype T> TE_API te_product_kernels *te__fp8_kernels_to(const te_gemm *g) {
    if (g->a_fp8.dtype == TE_e5m2) return te__fp8_kernels<T, TE_e5m2, TE_e4m3>();
    return g->b_fp8.dtype == TE_e5m2 ? te__fp8_kernels<T, TE_e4m3, TE_e5m2>() : te__fp8_kernels<T, TE_e4m3, TE_e4m3>();
}
/* Templates, so that who does not call them has no kernels of them. */
TE_IF_USED TE_API te_product_kernels *te_gemm_fp8_kernels(const te_gemm *g) {
    return g->dtype == TE_bf16 ? te__fp8_kernels_to<TE_bf16>(g) : te__fp8_kernels_to<TE_f16>(g);
}

/* The product as the kernel sees it: a bias is its epilogue's. */
TE_API te_gemm te__fp8_bare_of(const te_gemm *g) {
    te_gemm bare = *g;
    if (g->epilogue == TE_EPILOGUE_BIAS) bare.epilogue = TE_EPILOGUE_NONE;
    return bare;
}
TE_IF_USED TE_API te_status te__fp8_run_own(const te_gemm *g, te_context *ctx) {
    const te_gemm bare = te__fp8_bare_of(g);
    te_fp8_bare p;
    memset(&p, 0, sizeof p);
    p.d = g->d, p.n = (int)g->n, p.c = p.many.ahead = g->beta != 0 ? g->c : 0;
    p.bias = g->epilogue == TE_EPILOGUE_BIAS ? g->bias : 0;
    return te__hopper_run(te_gemm_fp8_kernels(g)->fp8.kernel, &p, sizeof p, &p.many, &bare, ctx);
}

/* ---- who runs it ------------------------------------------------------------------------------------------------- */

/* Whether a kernel of our own could. */
TE_IF_USED TE_API int te__fp8_can(const te_gemm *g, te_context *ctx) {
    const te_gemm bare = te__fp8_bare_of(g);
    return te_gemm_is_fp8(g) && te__hopper_can(&bare) && (g->beta == 0 || g->beta == 1) &&
           te_gemm_can_row(te_gemm_fp8_kernels(g), &bare, ctx);
}
/* Where nothing was timed: beside cuBLASLt's first candidate ours takes 0.95 to 0.98 of the time at 8192 x 12288 x
 * 4096, 8192 x 16384 x 4096, 4096 x 11008 x 4096, 16384 x 8192 x 4096, and 1.00 to 1.02 where there are fewer than
 * eight rounds of tiles: n of 4096, k of 4096 to 16384. */
TE_API int te__fp8_pays(const te_gemm *g, te_context *ctx) {
    if (!TE_HAS_CUBLASLT) return 1;
    return g->k >= TE_HOPPER_LEAST_K && !te__gemm_is_timed(g, ctx) &&
           te__hopper_tiles(g) >= (int64_t)TE_FP8_LEAST_ROUNDS * (ctx->processors / TE_CLUSTER);
}
/* What a tuning file calls the choice between both: split bare is cuBLASLt, own is ours. */
TE_API te_gemm_choice te__fp8_choice_of(const te_gemm *g) {
    const te_gemm_tuned t = te__gemm_tuned_of(g);
    const te__operands_text text = te__operands_text_of(&t);
    te_gemm_choice c;
    memset(&c, 0, sizeof c);
    memcpy(c.row, text.text, strlen(text.text));
    c.m = g->m, c.n = g->n, c.k = g->k, c.dtype = g->dtype, c.split = TE_SPLIT_BARE;
    c.kept = (unsigned)(g->beta != 0) | (unsigned)(g->epilogue == TE_EPILOGUE_BIAS) << 1;
    return c;
}
/* Whether a kernel of our own, which could, is to take the product; -1: nobody has said or timed it. */
TE_API int te__fp8_chosen(const te_gemm *g, te_context *ctx) {
    if (ctx->gemm_own > 1) return 1;
    const te_gemm_choice c = te__fp8_choice_of(g), *found = te__gemm_find_choice(&c, ctx);
    return found ? found->split == TE_SPLIT_OWN : -1;
}
/* Whether a kernel of our own takes the product here. */
TE_IF_USED TE_API int te_gemm_fp8_is_own(const te_gemm *g, te_context *ctx) {
    const int can = te__fp8_can(g, ctx), chosen = can ? te__fp8_chosen(g, ctx) : 0;
    return chosen < 0 ? te__fp8_pays(g, ctx) : chosen;
}

/* A product to time, by cuBLASLt and by a kernel of our own. */
typedef te_status (*te__fp8_own_fn)(const te_gemm *g, te_context *ctx);
typedef struct te__fp8_trial { te_gemm gemm; te__fp8_own_fn own; } te__fp8_trial;
TE_IF_USED TE_API te_status te__fp8_trial_run(void *arg, int racer, int lap, te_context *ctx) {
    const te__fp8_trial *t = (const te__fp8_trial *)arg;
    (void)lap;
    return racer ? t->own(&t->gemm, ctx) : te_gemm_run(&t->gemm, ctx);
}
/* Its memory from `base` on. Returns the bytes it takes. */
TE_API size_t te__fp8_trial_lay_out(te_gemm *g, char *base) {
    const int fine = te_gemm_is_fine_grained(g);
    const int64_t scales_a = fine ? te_scaling_count(g->a_fp8.scaling, g->m, g->k) : 0;
    const int64_t scales_b = fine ? te_scaling_count(g->b_fp8.scaling, g->n, g->k) : 0;
    const int64_t at_b = te_round_up(g->m * g->k, TE_ALIGN), at_d = at_b + te_round_up(g->n * g->k, TE_ALIGN);
    const int64_t at_bias = at_d + te_round_up(g->m * g->n * (int64_t)te_dtype_bytes(g->out), TE_ALIGN);
    const int64_t at_a_scales = at_bias + te_round_up(g->n * (int64_t)te_dtype_bytes(g->dtype), TE_ALIGN);
    const int64_t at_b_scales = at_a_scales + te_round_up(scales_a * 4, TE_ALIGN);
    g->a = base, g->b = base + at_b, g->c = g->d = base + at_d, g->bias = base + at_bias;
    g->a_fp8.inverse = fine ? (const float *)(void *)(base + at_a_scales) : 0;
    g->b_fp8.inverse = fine ? (const float *)(void *)(base + at_b_scales) : 0;
    return (size_t)(at_b_scales + scales_b * 4);
}
TE_IF_USED TE_API te_status te__fp8_trial_fill(const te_gemm *g, size_t bytes, te_context *ctx) {
    const char *scales = (const char *)g->a_fp8.inverse, *end = (const char *)g->a + bytes;
    TE_TRY(te_fill_normal((void *)(uintptr_t)g->a, g->a_fp8.dtype, g->m * g->k, 0.0f, 1.0f, 1, 0, ctx));
    TE_TRY(te_fill_normal((void *)(uintptr_t)g->b, g->b_fp8.dtype, g->n * g->k, 0.0f, 1.0f, 1, 1, ctx));
    TE_TRY(te_fill_normal(g->d, g->out, g->m * g->n, 0.0f, 1.0f, 1, 2, ctx));
    TE_TRY(te_fill_normal((void *)(uintptr_t)g->bias, g->dtype, g->n, 0.0f, 1.0f, 1, 3, ctx));
    if (!scales) return TE_OK;
    return te_fill_normal((void *)(uintptr_t)scales, TE_f32, (end - scales) / 4, 1.0f, 0.1f, 1, 4, ctx);
}
/* Time both on memory of their own, cuBLASLt with its fastest candidate, and remember the faster. */
TE_IF_USED TE_API te_status te__fp8_time(te_gemm_choice *c, const te_gemm *of, te__fp8_own_fn own, te_context *ctx) {
    te__fp8_trial t = {*of, own};
    const size_t bytes = te__fp8_trial_lay_out(&t.gemm, (char *)(uintptr_t)TE_ALIGN);
    int64_t ns[2] = {0, 0};
    int winner = -1;
    void *memory = 0;
    char error[sizeof ctx->error];
    memcpy(error, ctx->error, sizeof error);
    te_status status = te_allocate(ctx, &memory, bytes);
    (void)te__fp8_trial_lay_out(&t.gemm, (char *)memory);
    if (status == TE_OK) status = te__fp8_trial_fill(&t.gemm, bytes, ctx);
    if (status == TE_OK) status = te_gemm_run(&t.gemm, ctx); /* is tuned here */
    if (status == TE_OK) status = te__race(ns, &winner, 2, 1, TE__ROUNDS, te__fp8_trial_run<>, &t, ctx);
    te_release(ctx, memory);
    if (status != TE_OK && status != TE_ERROR_MEMORY) return status;
    memcpy(ctx->error, error, sizeof error);
    c->split = winner == 1 ? TE_SPLIT_OWN : TE_SPLIT_BARE;
    c->ns[TE_SPLIT_BARE] = ns[0], c->ns[TE_SPLIT_OWN] = ns[1];
    te__gemm_keep_choice(c, ctx);
    return TE_OK;
}
/* Time them unless that has been done, where the context tunes. */
TE_IF_USED TE_API te_status te__fp8_tune(const te_gemm *g, te__fp8_own_fn own, te_context *ctx) {
#if TE_TUNES
    if (ctx->gemm_own != 1 || !te__gemm_may_time(ctx)) return TE_OK;
    te_gemm_choice c = te__fp8_choice_of(g);
    if (te__gemm_find_choice(&c, ctx)) return TE_OK;
    const int open = te_enqueue_is_open(ctx);
    TE_TRY(te_enqueue_close(ctx, TE_OK));
    TE_TRY(te__fp8_time(&c, g, own, ctx));
    if (open) te_enqueue_open(ctx);
    return TE_OK;
#else
    return (void)g, (void)own, (void)ctx, TE_OK;
#endif
}
TE_IF_USED TE_API te_status te_gemm_fp8_run(const te_gemm *g, te_context *ctx) {
    TE_TRY(te__gemm_check_run(g, "te_gemm_fp8_run", ctx));
    TE_TRY(te_gemm_check_fp8(g, "te_gemm_fp8_run", ctx));
    if (te__fp8_can(g, ctx)) TE_TRY(te__fp8_tune(g, te__fp8_run_own<>, ctx));
    return te_gemm_fp8_is_own(g, ctx) ? te__fp8_run_own(g, ctx) : te_gemm_run(g, ctx);
}

#else /* none of our own */
TE_API int te_gemm_fp8_is_own(const te_gemm *g, te_context *ctx) { return (void)g, (void)ctx, 0; }
TE_IF_USED TE_API te_status te_gemm_fp8_run(const te_gemm *g, te_context *ctx) { return te_gemm_run(g, ctx); }
#endif

#endif
