/* linear_gemm.h -- a matrix product without an epilogue of the list's, by the library's own GEMM kernels
 * (te/gemm/impl/gemm_dispatch.h).
 */
#ifndef TE_LINEAR_GEMM_H
#define TE_LINEAR_GEMM_H

#include "../../gemm/impl/gemm_dispatch.h" /* te_product_kernels, te__gemm_run_custom */

#define TE__IS_BACKWARD_forward 0
#define TE__IS_BACKWARD_backward 1

#if TE_CUDA && !defined(TE_KEEP_CALLS)
typedef struct te_unfused_gemm {
    union { te__sm90_gemm_params persistent; te_skinny skinny; te_small_m small_m; };
    void *d;
    const void *c; /* added to the product; null: nothing is */
    int n;
} te_unfused_gemm;

template <te_dtype T>
TE_FN void te_unfused_gemm_epilogue(const void *arg, const uint32_t w[4], const uint32_t *ahead, int row, int col,
                            te_epilogue_state *state) {
    const te_unfused_gemm *p = (const te_unfused_gemm *)arg;
    const int64_t at = (int64_t)row * p->n + col;
    float v[8], c[8];
    te_vec8 e;
    TE_UNROLL for (int i = 0; i < 4; i++) e.w[i] = w[i];
    te_vec8_floats(v, &e, T);
    if (p->c) {
        TE_UNROLL for (int i = 0; ahead && i < 4; i++) e.w[i] = ahead[i];
        if (ahead) te_vec8_floats(c, &e, T);
        else te_load8(c, p->c, at, 8, 1, T);
        TE_UNROLL for (int i = 0; i < 8; i++) v[i] += c[i];
    }
    te_store8(p->d, at, v, 8, 1, T);
    (void)state;
}
template <te_dtype T, int FORWARD>
TE_SM90_GEMM_KERNEL(te_unfused_gemm_persistent, te_unfused_gemm, T, FORWARD, te_unfused_gemm_epilogue<T>, T != TE_f32)
/* The FP8 kernel exists to overlap collectives; without one such a product is cuBLASLt's. */
template <te_dtype T, te_dtype A>
TE_SM90_GEMM_KERNEL_FP8(te_unfused_gemm_fp8, te_unfused_gemm, T, A, TE_e4m3, 1, te_unfused_gemm_epilogue<T>, 1)
template <te_dtype T, te_gemm_operands FORM, int EXISTS>
TE_SKINNY_KERNEL(te_unfused_gemm_skinny, te_unfused_gemm, FORM, T, te_unfused_gemm_epilogue<T>, EXISTS)
template <te_dtype T, te_gemm_operands FORM, int EXISTS>
TE_SMALL_M_KERNEL(te_unfused_gemm_small_m, te_unfused_gemm, FORM, T, te_unfused_gemm_epilogue<T>, EXISTS)
TE_KERNEL_IF(T != TE_f32, (te_dtype T, int FORWARD), te_unfused_gemm_persistent, (T, FORWARD), te_unfused_gemm)
TE_KERNEL_IF(TE_HAS_COMM_OVERLAP && T != TE_f32 && A != T, (te_dtype T, te_dtype A), te_unfused_gemm_fp8, (T, A),
             te_unfused_gemm)
TE_KERNEL_IF(EXISTS, (te_dtype T, te_gemm_operands FORM, int EXISTS), te_unfused_gemm_skinny, (T, FORM, EXISTS),
             te_unfused_gemm)
TE_KERNEL_IF(EXISTS, (te_dtype T, te_gemm_operands FORM, int EXISTS), te_unfused_gemm_small_m, (T, FORM, EXISTS),
             te_unfused_gemm)
/* SIXTEEN: whether there are kernels with operands of T. FORM: what the skinny FP8 kernel reads; TE_OPERANDS_16BIT:
 * there is none. A: the format of x or dy in the persistent FP8 kernel; T: there is none. */
template <te_dtype T, int FORWARD, int SIXTEEN, te_gemm_operands FORM, te_dtype A = T>
TE_API te_product_kernels *te__unfused_gemm_kernels(void) {
    constexpr int half = T != TE_f32, skinny = half && SIXTEEN && FORWARD, fp8 = half && FORM != TE_OPERANDS_16BIT;
    constexpr te_dtype persistent = SIXTEEN ? T : TE_f32;
    constexpr int small_m = skinny && TE_SMALL_M_16BIT, scaled = half && FORM == TE_OPERANDS_FP8;
    static te_product_kernels kernels = {
        {(const void *)te_unfused_gemm_persistent_if<persistent, FORWARD>(), 0, 0},
        {(const void *)te_unfused_gemm_skinny_if<T, TE_OPERANDS_16BIT, skinny>(), 0, 0},
        {(const void *)te_unfused_gemm_fp8_if<T, A>(), 0, 0},
        {(const void *)te_unfused_gemm_skinny_if<T, FORM, fp8>(), 0, 0},
        FORM,
        {(const void *)te_unfused_gemm_small_m_if<T, TE_OPERANDS_16BIT, small_m>(), 0, 0},
        {(const void *)te_unfused_gemm_small_m_if<T, FORM, scaled>(), 0, 0}};
    return &kernels;
}
#define TE_UNFUSED_GEMM(dtype, pass) \
    te__unfused_gemm_kernels<TE_##dtype, !TE__IS_BACKWARD_##pass, 1, TE_OPERANDS_16BIT>()
/* The kernels of the product of step `name` alone: in 16 bits, unless a recipe has it in FP8. */
#define TE_UNFUSED_GEMM_OF(name, dtype, pass)                                              \
    te__unfused_gemm_kernels<TE_##dtype, !TE__IS_BACKWARD_##pass, !name##_in_fp8,          \
                             (te_gemm_operands)name##_skinny_form,                         \
                             name##_by_tensor ? (te_dtype)name##_fp8_a : TE_##dtype>()

/* D = alpha A op(B), rounded, then + C where beta is 1. */
TE_API te_status te__unfused_gemm_run(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    te_unfused_gemm p;
    memset(&p, 0, sizeof p);
    p.d = g->d, p.c = g->beta != 0 ? g->c : 0, p.n = (int)g->n;
    if (!te__gemm_is_skinny_or_small_m(kernels, g, ctx)) p.persistent.source = p.c;
    return te__gemm_run_custom(kernels, &p, sizeof p, &p.skinny, &p.small_m, &p.persistent, g, ctx);
}

#else
#define TE_UNFUSED_GEMM(dtype, pass) 0
#define TE_UNFUSED_GEMM_OF(name, dtype, pass) 0
TE_API te_status te__unfused_gemm_run(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    return (void)kernels, (void)g, (void)ctx, TE_OK;
}
#endif

#endif
