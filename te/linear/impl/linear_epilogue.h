/* linear_epilogue.h -- runs a step (several fused ops) that begins with a GEMM as one kernel: the ops after the GEMM
 * run in the GEMM's epilogue. Kernels for whole steps exist for elementwise and gated ops with constant widths, in 16
 * bits and, under an FP8 recipe, with operands in FP8. te/gemm/impl/gemm_dispatch.h decides which steps run as one
 * kernel. All other steps that begin with a GEMM run as a GEMM and a pointwise kernel, or as a GEMM with one of
 * cuBLASLt's epilogues (linear_strategy.h).
 *
 * Under an FP8 recipe the epilogue stores what the pointwise kernel would store: y, in 16 bits or in FP8 for the next
 * GEMM, and y's amax. The epilogue also stores the transpose of y in FP8, which the GEMM for a weight gradient reads
 * and which would otherwise take a separate kernel.
 *
 * The input of a gated op has rows of two halves. In backward the epilogue reads the saved halves and writes the
 * gradients of both; the GEMM's result, the gradient of the gated op's output, is never stored. In forward each tile of
 * the GEMM contains the same columns of both halves, so the epilogue has the gated op's whole input, and inference need
 * not store that input. Under a recipe this forward kernel is for inference only, because training would have to store
 * both halves as well. With up to eight rows a gated step runs as one kernel in 16 bits (gemm_skinny.h), and as a GEMM
 * and a pointwise kernel under a recipe.
 *
 * Lower bound of the time: the GEMM's 2 * m * n * k flops, because the epilogue's memory traffic overlaps with the work
 * of the tensor cores. Example: gelu of 8192 x 16384 with k = 4096 in FP8. The epilogue stores the pre-activation,
 * which backward reads (2 bytes an element), y (1) and the transpose of y (1), together 0.54 GB; the lower bound is
 * 0.81 ms. Three separate kernels (GEMM, pointwise kernel, transpose) take 0.21 ms more than the fused kernel.
 * Measurements: docs/notes/linear.md.
 */
#ifndef TE_LINEAR_EPILOGUE_H
#define TE_LINEAR_EPILOGUE_H

#include "../../gemm/impl/gemm_dispatch.h" /* te__sm90_gemm_params, te_skinny, te_epilogue_outputs */
#include "../../pointwise/impl/pointwise.h" /* te_pointwise, te_pointwise_result */
#include "../../pointwise/impl/pointwise_step.h" /* te__pointwise_forward */
#include "linear_fp8.h" /* te__fp8_rows */

/* ---- a GEMM without ops in its epilogue, by the library's own kernels (te/gemm/impl/gemm_dispatch.h) ------------- */

#define TE__IS_BACKWARD_forward 0
#define TE__IS_BACKWARD_backward 1

#if TE_CUDA && !defined(TE_KEEP_CALLS)
typedef struct te_unfused_gemm {
    union { te__sm90_gemm_params persistent; te_skinny skinny; te_small_m small_m; };
    void *d;
    const void *c; /* [m, n], a matrix that is added to the GEMM's result, or null */
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
/* The persistent FP8 kernel is only for GEMMs that overlap a collective. Other FP8 GEMMs without ops in the epilogue
 * run in cuBLASLt, unless they are so small that the skinny or small-m kernel runs them. */
template <te_dtype T, te_dtype A>
TE_SM90_GEMM_KERNEL_FP8(te_unfused_gemm_fp8, te_unfused_gemm, T, A, TE_e4m3, 1, te_unfused_gemm_epilogue<T>, 1)
template <te_dtype T, te_gemm_operands FORM, int EXISTS>
TE_SKINNY_KERNEL(te_unfused_gemm_skinny, te_unfused_gemm, FORM, T, te_unfused_gemm_epilogue<T>, nullptr, 0, EXISTS)
template <te_dtype T, te_gemm_operands FORM, int EXISTS>
TE_SMALL_M_KERNEL(te_unfused_gemm_small_m, te_unfused_gemm, FORM, T, te_unfused_gemm_epilogue<T>, EXISTS)
TE_KERNEL_IF(T != TE_f32, (te_dtype T, int FORWARD), te_unfused_gemm_persistent, (T, FORWARD), te_unfused_gemm)
TE_KERNEL_IF(TE_HAS_COMM_OVERLAP && T != TE_f32 && A != T, (te_dtype T, te_dtype A), te_unfused_gemm_fp8, (T, A),
             te_unfused_gemm)
TE_KERNEL_IF(EXISTS, (te_dtype T, te_gemm_operands FORM, int EXISTS), te_unfused_gemm_skinny, (T, FORM, EXISTS),
             te_unfused_gemm)
TE_KERNEL_IF(EXISTS, (te_dtype T, te_gemm_operands FORM, int EXISTS), te_unfused_gemm_small_m, (T, FORM, EXISTS),
             te_unfused_gemm)
/* The library's kernels for a GEMM without other ops. Template arguments: FORWARD: 1 for forward, which also has skinny
 * kernels; 0 for backward. SIXTEEN: 1 if kernels for 16-bit operands of type T are included. FORM: the operands of the
 * skinny FP8 kernel, or TE_OPERANDS_16BIT if there is no such kernel. A: the FP8 format of x (forward) or dy (backward)
 * in the persistent FP8 kernel; if A is T, there is no such kernel. */
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
        {(const void *)te_unfused_gemm_small_m_if<T, FORM, scaled>(), 0, 0}, 0};
    return &kernels;
}
#define TE_UNFUSED_GEMM(dtype, pass) \
    te__unfused_gemm_kernels<TE_##dtype, !TE__IS_BACKWARD_##pass, 1, TE_OPERANDS_16BIT>()
/* Returns the kernels for the GEMM of step `name` without the step's other ops: 16-bit kernels or, if the linear has a
 * recipe, FP8 kernels. */
#define TE_UNFUSED_GEMM_OF(name, dtype, pass)                                              \
    te__unfused_gemm_kernels<TE_##dtype, !TE__IS_BACKWARD_##pass, !name##_in_fp8,          \
                             (te_gemm_operands)name##_skinny_form,                         \
                             name##_by_tensor ? (te_dtype)name##_fp8_a : TE_##dtype>()

/* Computes D = alpha A op(B), rounded to D's format. If beta is 1, adds C to D and rounds the sum once more. */
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

/* ---- variants of the epilogue for known arguments ----------------------------------------------------------------
 *
 * The model's list of ops determines at compile time which ops of a step save an output and in which form the step
 * stores its result. But a call may need fewer outputs (inference saves nothing) or other outputs (in the first
 * optimizer step under fp8_delayed no scale is known yet). Therefore an FP8 kernel contains up to three variants of its
 * epilogue and tests once which of them fits its arguments. The first variant stores all outputs of training, the
 * second stores the result alone; neither contains branches on the arguments. The third variant tests each pointer and
 * handles all other calls. Branches cost more in FP8, because an FP8 tile takes half the time of a 16-bit tile: in
 * training, linear_bias_gelu of 8192 x 16384 x 4096 took 945 us with branches and 858 us without; the GEMM alone takes
 * 830 us (one H200). */

#if TE_CUDA && !defined(TE_KEEP_CALLS)

typedef struct te_product {
    union { te__sm90_gemm_params persistent; te_skinny skinny; te_small_m small_m; };
    /* the arguments of the ops in the epilogue. pointwise.x: memory for the GEMM's result, or null if that result is
     * not stored */
    te_pointwise pointwise;
} te_product;

/* Compile-time facts of a step in FP8. result: the form in which the step stores its result. saved, params: bit masks
 * of the ops after the GEMM, bit i for op i: `saved` marks the ops whose input is saved in training (the input of op 0
 * is the GEMM's result), `params` marks the ops with a parameter. */
typedef struct te_product_facts { te_pointwise_result result; int saved, params; } te_product_facts;

/* Returns which variant of the epilogue fits the arguments: TE_OUTPUTS_ALL if all outputs of training are to be
 * stored, TE_OUTPUTS_RESULT if only the result is, TE_OUTPUTS_ANY for all other arguments. */
TE_FN te_epilogue_outputs te_product_usual(const te_product *p, const te_pointwise_shape k,
                                           const te_product_facts facts) {
    const te_pointwise_fp8 *fp8 = &p->pointwise.fp8;
    int stores = p->pointwise.x != 0, usual = k.reads < 0 || p->persistent.source;
    usual = usual && (facts.result == TE_RESULT_fp8) == (fp8->y != 0);
    if (facts.result != TE_RESULT_amax) usual = usual && (facts.result == TE_RESULT_y) == (p->pointwise.y != 0);
    if (facts.result != TE_RESULT_fp8) usual = usual && (facts.result == TE_RESULT_amax) == (fp8->amax != 0);
    TE_UNROLL for (int i = 0; i < TE_MAX_PATTERN; i++) {
        if (p->pointwise.op[i].out) stores |= 2 << i;
        if (facts.params >> i & 1) usual = usual && p->pointwise.op[i].w[0];
    }
    if (usual && stores == facts.saved) return TE_OUTPUTS_ALL;
    return facts.saved && usual && !stores ? TE_OUTPUTS_RESULT : TE_OUTPUTS_ANY;
}
/* Used by the variants TE_OUTPUTS_ALL and TE_OUTPUTS_RESULT: copies the pointwise arguments to *c, and tells the
 * compiler which pointers are null and which are not, so that it removes the code that tests the pointers. */
TE_FN void te__product_specialise(te_pointwise *c, const te_product *p, const te_product_facts facts) {
    c->fp8 = p->pointwise.fp8, c->rows = p->pointwise.rows;
    c->x = facts.saved & 1 ? p->pointwise.x : 0;
    if (facts.saved & 1) __builtin_assume(c->x != 0);
    c->y = facts.result == TE_RESULT_fp8 ? 0 : p->pointwise.y;
    if (facts.result == TE_RESULT_y)
        /* with TE_RESULT_amax nothing is assumed about y, because y is null if the kernel computes only the amax */
        __builtin_assume(c->y != 0);
    if (facts.result == TE_RESULT_amax) __builtin_assume(c->fp8.amax != 0);
    else if (facts.result == TE_RESULT_y) c->fp8.amax = 0;
    TE_UNROLL for (int i = 0; i < TE_MAX_PATTERN; i++) {
        c->op[i] = p->pointwise.op[i];
        if (facts.saved & 2 << i) __builtin_assume(c->op[i].out != 0);
        else c->op[i].out = 0;
        if (facts.params >> i & 1) __builtin_assume(c->op[i].w[0] != 0);
    }
}

/* Multiplies eight elements of y by `scale` and stores them in FP8. Also updates the thread's amax. */
TE_FN void te__product_store_fp8(const te_product *p, const te_lane *l, float scale, const te_pointwise_shape k,
                                 te_epilogue_state *state) {
    float v[8];
    te_vec8 e;
    state->amax_bits = te_amax_bits8(state->amax_bits, l->v);
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] = te_fp8_scaled(l->v[i], scale);
    te_vec8_of_fp8(&e, v, (te_dtype)k.fp8);
    state->fp8[0] = e.w[0], state->fp8[1] = e.w[1];
    *(uint2 *)((uint8_t *)p->pointwise.fp8.y + te_index(l->at)) = make_uint2(e.w[0], e.w[1]);
}
/* Store the result of the step in each form that the arguments ask for. fp8: 1 if one of these forms is FP8, else 0. */
TE_FN void te__product_store(const te_product *p, const te_pointwise *c, te_lane *l, int fp8, float scale,
                             const te_pointwise_shape k, te_epilogue_state *state) {
    /* compute the amax of the rounded result; y is null if the kernel computes only the amax and stores no result */
    if (k.fp8 && !fp8 && c->fp8.amax) {
        if (c->y) te_store8_rounded(c->y, te_index(l->at), l->v, 8, 1, k.out);
        else te__pointwise_round(l->v, k.out);
        state->amax_bits = te_amax_bits8(state->amax_bits, l->v);
    } else if (c->y) te_store_lane(l, c->y, k);
    if (fp8) te__product_store_fp8(p, l, scale, k, state);
}
/* The compile-time constants of the kernel of a step with a GEMM. */
typedef struct te_product_constants {
    te_pointwise_shape shape;
    te_product_facts facts;
} te_product_constants;
TE_FN void te_product_epilogue(const te_product *p, const uint32_t w[4], const uint32_t *ahead, int row, int col,
                               te_epilogue_state *state, te_stages_fn stages, const te_product_constants constants) {
    const te_pointwise_shape k = constants.shape;
    te_product_facts facts = constants.facts;
    te_lane l;
    te_vec8 e;
    te_pointwise known;
    const int usual = state->outputs != TE_OUTPUTS_ANY;
    const te_pointwise *c = usual ? &known : &p->pointwise;
    const int fp8 = k.fp8 && (usual ? facts.result == TE_RESULT_fp8 : p->pointwise.fp8.y != 0);
    if (state->outputs == TE_OUTPUTS_RESULT) facts.saved = 0;
    if (usual) te__product_specialise(&known, p, facts);
    /* load the FP8 scale now, so that it has arrived when the result is stored */
    const float scale = fp8 ? __ldg(p->pointwise.fp8.scale) : 1.0f;
    TE_UNROLL for (int i = 0; i < 4; i++) e.w[i] = w[i];
    l.at = te_place_of(k, row, col / 8, 1);
    if (ahead && k.reads >= 0) {
        l.at.ahead_of = &c->op[k.reads];
        TE_UNROLL for (int i = 0; i < 4; i++) l.at.ahead.w[i] = ahead[i];
        TE_UNROLL for (int i = 0; k.out_halves > 1 && i < 4; i++) l.at.ahead_second.w[i] = ahead[4 + i];
    }
    te_vec8_floats(l.v, &e, k.in);
    if (c->x) te_store8((void *)c->x, te_index(l.at), l.v, 8, 1, k.in);
    TE_UNROLL for (int i = 0; i < 8; i++) l.sum[i] = state->sum[i];
    stages(&l, c, 0, TE_MAX_PATTERN);
    TE_UNROLL for (int i = 0; i < 8; i++) state->sum[i] = l.sum[i];
    te__product_store(p, c, &l, fp8, scale, k, state);
    if (!fp8) return;
    if (!usual && row == 0 && col == 0 && c->fp8.inverse) te_scale_save(c->fp8.inverse, scale);
}
/* The epilogue of a forward step with a gated op: takes sixteen elements of one row of the gated op's input, eight
 * from each half of the row, and stores eight results. */
TE_FN void te_product_pair_epilogue(const te_product *p, const uint32_t w[4], const uint32_t other[4], int row, int col,
                             te_epilogue_state *state, te_stages_fn stages, const te_pointwise_shape k) {
    const te_pointwise *c = &p->pointwise;
    const int fp8 = k.fp8 && c->fp8.y;
    const float scale = fp8 ? __ldg(c->fp8.scale) : 1.0f;
    te_lane l;
    te_vec8 a, b;
    TE_UNROLL for (int i = 0; i < 4; i++) a.w[i] = w[i], b.w[i] = other[i];
    l.at = te_place_of(k, row, col / 8, 2);
    te_vec8_floats(l.v, &a, k.in);
    te_vec8_floats(l.g, &b, k.in);
    if (c->x) te_store8((void *)c->x, te_index(l.at), l.v, 8, 1, k.in);
    if (c->x) te_store8((void *)c->x, te_index(te_second_half(l.at)), l.g, 8, 1, k.in);
    stages(&l, c, 0, TE_MAX_PATTERN);
    te__product_store(p, c, &l, fp8, scale, k, state);
}
/* Defines the fused kernels of a step whose pointwise kernel is `name` (TE_POINTWISE). The GEMM computes x weight^T in
 * forward and dy weight in backward. */
#define TE_PRODUCT(name, dtype)           \
    TE__PRODUCT_EPILOGUE(name, dtype)     \
    TE__PRODUCT_KERNELS(name, dtype, name##_is_product, name##_is_product, 0, 0, 0)
/* Defines the fused kernels of a step in a model that names a recipe. If the linear's recipe has one scale per tensor
 * (name##_by_tensor), the persistent kernel takes FP8 operands: x and the weight in forward, dy and the weight's
 * transpose in backward (linear_fp8.h). The skinny kernel takes FP8 operands in forward under any recipe
 * (name##_skinny_form). If the GEMM is in FP8 (name##_in_fp8), the step has no 16-bit kernels, because such kernels
 * would run only while the recipe is switched off and would double the compile time. While the recipe is switched off,
 * the step runs as a cuBLASLt GEMM and a pointwise kernel. A step with a gated op has only the persistent kernel. */
#define TE_PRODUCT_FP8(name, dtype)                                                                                    \
    TE__PRODUCT_EPILOGUE(name, dtype)                                                                                  \
    enum {                                                                                                             \
        name##_is_light = name##_is_product && !name##_is_gated,                                                       \
        name##_is_persistent_fp8 = name##_is_product && name##_by_tensor,                                              \
        name##_is_skinny_fp8 = name##_is_light && name##_skinny_form,                                                  \
        name##_is_small_m_fp8 = name##_is_light && (int)name##_skinny_form == TE_OPERANDS_FP8                          \
    };                                                                                                                 \
    template <int EXISTS>                                                                                              \
    TE_SM90_GEMM_KERNEL_FUSED_FP8(name##_product_fp8, te_product, TE_##dtype, (te_dtype)name##_fp8_wanted,             \
                             name##_epilogue, name##_pair, name##_is_gated,                                            \
                             te_product_usual(&p, name##_shape(0), name##_facts()), name##_reads >= 0,                 \
                             name##_sums >= 0, EXISTS)                                                                 \
    template <int EXISTS>                                                                                              \
    TE_SKINNY_KERNEL(name##_skinny_product_fp8, te_product, (te_gemm_operands)name##_skinny_form, TE_##dtype,          \
                     name##_epilogue, name##_pair, 0, EXISTS)                                                          \
    template <int EXISTS>                                                                                              \
    TE_SMALL_M_KERNEL(name##_small_m_product_fp8, te_product, TE_OPERANDS_FP8, TE_##dtype, name##_epilogue, EXISTS)    \
    TE_KERNEL_IF(EXISTS, (int EXISTS), name##_product_fp8, (EXISTS), te_product)                                       \
    TE_KERNEL_IF(EXISTS, (int EXISTS), name##_skinny_product_fp8, (EXISTS), te_product)                                \
    TE_KERNEL_IF(EXISTS, (int EXISTS), name##_small_m_product_fp8, (EXISTS), te_product)                               \
    TE__PRODUCT_KERNELS(name, dtype, name##_is_light && !name##_in_fp8, name##_is_light && !name##_in_fp8,             \
                        (const void *)name##_product_fp8_if<name##_is_persistent_fp8>(),                               \
                        (const void *)name##_skinny_product_fp8_if<name##_is_skinny_fp8>(),                            \
                        (const void *)name##_small_m_product_fp8_if<name##_is_small_m_fp8>())
#define TE__PRODUCT_EPILOGUE(name, dtype)                                                                             \
    enum {                                                                                                            \
        name##_is_twice = name##_is_backward && name##_out_halves == 2,                                               \
        name##_is_gated = !name##_is_backward && name##_in_halves == 2,                                               \
        name##_is_plain = name##_norm < 0 && name##_half % 8 == 0                                                     \
            && (!name##_is_twice || (name##_reads == 0 && name##_sums < 0 && !name##_fp8_wanted))                     \
            && (!name##_is_gated || (name##_reads < 0 && name##_out_halves == 1))                                     \
            && (name##_is_twice || name##_is_gated || name##_in_halves + name##_out_halves == 2),                     \
        name##_is_product = (int)TE_##dtype != (int)TE_f32 && (int)name##_in_dtype == (int)TE_##dtype                 \
            && name##_sum_params < 2                                                                                 \
            && name##_is_plain                                                                                        \
    };                                                                                                                \
    TE_UNUSED TE_BOTH te_product_facts name##_facts(void) {                                                           \
        const te_product_facts facts = {name##_result(), name##_is_backward ? 0 : name##_saved_inputs & 0xffff,       \
                                     name##_params};                                                                  \
        return facts;                                                                                                 \
    }                                                                                                                 \
    TE_UNUSED TE_FN void name##_epilogue(const void *p, const uint32_t w[4], const uint32_t *ahead, int row, int col, \
        te_epilogue_state *state) {                                                                                   \
        const te_product_constants constants = {name##_shape(0), name##_facts()};                                      \
        te_product_epilogue((const te_product *)p, w, ahead, row, col, state, name##_stages, constants);               \
    }                                                                                                                 \
    TE_UNUSED TE_FN void name##_pair(const void *p, const uint32_t w[4], const uint32_t other[4], int row, int col,   \
                             int, te_epilogue_state *state) {                                                         \
        te_product_pair_epilogue((const te_product *)p, w, other, row, col, state, name##_stages, name##_shape(0));   \
    }
/* Defines the 16-bit kernels of a step, and name##_kernels(), which returns all kernels of the step. persistent,
 * skinny: 1 if the step has such a 16-bit kernel, else 0. fp8, skinny_fp8, small_m_fp8: the persistent, skinny and
 * small-m FP8 kernels, or null. */
#define TE__PRODUCT_KERNELS(name, dtype, persistent, skinny, fp8, skinny_fp8, small_m_fp8)                             \
    enum {                                                                                                             \
        name##_is_persistent = (persistent) != 0,                                                                      \
        name##_is_skinny = (skinny) && !name##_is_backward,                                                            \
        name##_is_small_m = name##_is_skinny && !name##_is_gated && TE_SMALL_M_16BIT                                   \
    };                                                                                                                 \
    template <int EXISTS>                                                                                              \
    TE_SM90_GEMM_KERNEL_FUSED(name##_product, te_product, TE_##dtype, !name##_is_backward, name##_epilogue,            \
                              name##_pair, name##_is_gated, name##_is_twice, name##_sums >= 0, EXISTS)                 \
    template <int EXISTS>                                                                                              \
    TE_SKINNY_KERNEL(name##_skinny, te_product, TE_OPERANDS_16BIT, TE_##dtype, name##_epilogue, name##_pair,           \
                     name##_is_gated, EXISTS)                                                                          \
    template <int EXISTS>                                                                                              \
    TE_SMALL_M_KERNEL(name##_small_m, te_product, TE_OPERANDS_16BIT, TE_##dtype, name##_epilogue, EXISTS)              \
    TE_KERNEL_IF(EXISTS, (int EXISTS), name##_product, (EXISTS), te_product)                                           \
    TE_KERNEL_IF(EXISTS, (int EXISTS), name##_skinny, (EXISTS), te_product)                                            \
    TE_KERNEL_IF(EXISTS, (int EXISTS), name##_small_m, (EXISTS), te_product)                                           \
    TE_API te_product_kernels *name##_kernels(void) {                                                                  \
        static te_product_kernels kernels = {{(const void *)name##_product_if<name##_is_persistent>(), 0, 0},          \
                                             {(const void *)name##_skinny_if<name##_is_skinny>(), 0, 0},               \
                                             {fp8, 0, 0},                                                              \
                                             {skinny_fp8, 0, 0},                                                       \
                                             (te_gemm_operands)name##_skinny_form,                                     \
                                             {(const void *)name##_small_m_if<name##_is_small_m>(), 0, 0},             \
                                             {small_m_fp8, 0, 0},                                                      \
                                             (int)name##_draws};                                                       \
        return &kernels;                                                                                               \
    }

/* Returns whether the kernel must store the value whose memory is at `p`. The kernel must do so if the value is the
 * result of the step, if an op of the step reads the value, or if another step also reads the value (the value is then
 * the output of a fork). Call this function when the kernel's arguments have been filled in. */
TE_API int te__product_is_read(const te_run *r, const te_step *s, const te_pointwise *c, const void *p) {
    int read = r->current.data == p;
    for (int j = 1; j < s->count; j++) {
        const te_op *op = &r->plan->op[s->op[j]];
        if (op->flags & (TE_IS_FORK | TE_IS_ADD | TE_IS_MUL))
            read |= c->op[j - 1].edge == p || r->edge[op->flags & TE_IS_FORK ? s->op[j] : op->edge].data == p;
    }
    return read;
}
/* Makes the kernel also store the transpose of its FP8 result: the next GEMM reads the result, and the GEMM for the
 * weight gradient of the next linear reads the transpose. Forward saves only the transpose for backward; the
 * untransposed result is stored in the workspace. */
TE_API te_status te__product_transpose(te_run *r, const te_step *s, te_product *p) {
    const int next = te__consumer_of(r, s->op[s->count - 1]);
    te_value v;
    if (r->pass == TE_INFER || te__gathered_consumer(r, next) >= 0) return TE_OK;
    p->persistent.transposed_rows = (int)te__fp8_rows(r->current.rows);
    TE_TRY(te__acquire(r, &v, TE_ROWS_tokens, r->current.cols, r->current.dtype));
    v.rows = r->current.rows;
    if (r->pass == TE_BACKWARD) {
        te_value current = r->current;
        te__attach_transposed(&current, v);
        te__set_current(r, current);
        p->persistent.transposed = (uint8_t *)v.data;
    } else if (te__saved_input_of(r, next).x) {
        p->persistent.transposed = (uint8_t *)te__saved_input_of(r, next).x;
        v.scaling = r->current.scaling, p->pointwise.fp8.y = v.data;
        te__set_saved_transposed(r, next, 1);
        te__set_current(r, v);
    }
    return TE_OK;
}
/* Launches the step's kernel; the caller has filled in the pointwise arguments of p. product: memory for the GEMM's
 * result. That result is stored only if another op reads it (te__product_is_read), or if `keep` is 1, which means that
 * backward reads it. */
TE_API te_status te__product_run(te_run *r, const te_step *s, te_product_kernels *kernels, const te_gemm *g,
                                 const te_pointwise_shape k, te_product *p, te_value product, int keep) {
    const int skinny = te__gemm_is_skinny(kernels, g, r->ctx),
              light = te__gemm_is_skinny_or_small_m(kernels, g, r->ctx);
    if (!keep && !te__product_is_read(r, s, &p->pointwise, product.data)) p->pointwise.x = 0;
    if (k.sums >= 0) p->persistent.column_sums = p->pointwise.op[k.sums].sum[0];
    *(skinny ? &p->skinny.amax : light ? &p->small_m.amax : &p->persistent.amax) = p->pointwise.fp8.amax;
    if (!light)
        p->persistent.scale = p->pointwise.fp8.scale,
        p->persistent.inverse = p->pointwise.fp8.y ? p->pointwise.fp8.inverse : 0;
    if (p->pointwise.fp8.y && te__gemm_is_fp8(g) && !light) TE_TRY(te__product_transpose(r, s, p));
    if (k.reads >= 0 && !light) {
        const te_stage *reads = &p->pointwise.op[k.reads];
        p->persistent.source = k.backward && reads->saved ? reads->saved : reads->edge;
        p->persistent.source_has_halves = k.backward && k.out_halves > 1;
    }
    return r->dry ? TE_OK
                  : te__gemm_run_custom(kernels, p, sizeof *p, &p->skinny, &p->small_m, &p->persistent, g, r->ctx);
}
/* Returns the te_pointwise_shape (compile-time properties) of a step's ops for the epilogue of a GEMM. k: the
 * te_pointwise_shape of the same ops in a pointwise kernel. An epilogue computes no scales for an FP8 result
 * (k.scaled), because it sees only some columns of each row and so cannot find the amax of a row or tile. Nor does an
 * epilogue store the transpose that some pointwise kernels store (k.transposes), because for that transpose a block
 * must process a tile of rows and columns. */
TE_API te_pointwise_shape te__product_shape(te_pointwise_shape k) {
    k.scaled = TE_SCALING_NONE, k.transposes = 0;
    return k;
}
/* Runs the forward of a step as one kernel. Forward and backward are separate functions, so that an inference-only
 * program compiles no backward code. */
TE_API te_status te__product_step_forward(te_run *r, const te_step *s, te_product_kernels *kernels, const te_gemm *g,
                                         const te_pointwise_shape k, te_value product, int keep) {
    te_product p;
    te_pointwise_work w = te__pointwise_work_of(s, 1, te__product_shape(k), &p.pointwise);
    memset(&p, 0, sizeof p);
    TE_TRY(te__pointwise_forward(r, &w, product));
    if (te__pointwise_amax_only(r, s, 1, k)) te__pointwise_set_amax_only(r, &p.pointwise);
    return te__product_run(r, s, kernels, g, k, &p, product, keep);
}
TE_API te_status te__product_step_backward(te_run *r, const te_step *s, te_product_kernels *kernels, const te_gemm *g,
                                          const te_pointwise_shape k, te_value product) {
    te_product p;
    te_pointwise_work w = te__pointwise_work_of(s, 1, te__product_shape(k), &p.pointwise);
    const int blocks = TE_SM90_GEMM_EPILOGUE_WARPS * (int)te_ceil_div(g->m, TE_TILE_M);
    const int capacity = TE_SM90_GEMM_EPILOGUE_WARPS * (int)te_ceil_div(te__capacity_rows(r), TE_TILE_M);
    const int max_blocks = (int)te_max(capacity, te__max_blocks(r, k, te_pointwise_tiles(k)));
    memset(&p, 0, sizeof p);
    const te_sum_blocks sums = {blocks, max_blocks};
    TE_TRY(te__pointwise_backward(r, &w, product, sums));
    return te__product_run(r, s, kernels, g, k, &p, product, 0);
}

#else /* Without the library's GEMM kernels there are no fused kernels: each step is a GEMM, followed by a pointwise
       * kernel or, on the host, by a loop. */
#define TE_PRODUCT TE_NO_PRODUCT
#define TE_PRODUCT_FP8 TE_NO_PRODUCT
TE_API te_status te__product_step_forward(te_run *r, const te_step *s, te_product_kernels *kernels, const te_gemm *g,
                                         const te_pointwise_shape k, te_value product, int keep) {
    return (void)r, (void)s, (void)kernels, (void)g, (void)k, (void)product, (void)keep, TE_OK;
}
TE_API te_status te__product_step_backward(te_run *r, const te_step *s, te_product_kernels *kernels, const te_gemm *g,
                                          const te_pointwise_shape k, te_value product) {
    return (void)r, (void)s, (void)kernels, (void)g, (void)k, (void)product, TE_OK;
}
#endif
/* Constants that follow from the recipe of the step's linear and from the pass (forward or backward). These
 * constants determine which kernels exist for the step. */
#define TE__RECIPE_FACTS(name, model, pass)                                                                     \
    name##_in_fp8 = name##_recipe != (int)TE_RECIPE_none && !TE_IS_MICROSCALED(name##_recipe) &&                  \
                    !(TE__IS_BACKWARD_##pass && TE_IS_ROWWISE(name##_recipe)),                                  \
    name##_by_tensor = TE_IS_TENSORWISE(name##_recipe),                                                          \
    name##_fp8_a = TE__IS_BACKWARD_##pass ? (int)model##_gradients : (int)TE_e4m3,                              \
    name##_skinny_form = TE__IS_BACKWARD_##pass || !name##_in_fp8                                                  \
                          ? TE_OPERANDS_16BIT                                                            \
                          : TE_IS_BLOCKWISE(name##_recipe) ? TE_OPERANDS_FP8_BLOCKWISE : TE_OPERANDS_FP8
#define TE_NO_PRODUCT(name, dtype) \
    TE_API te_product_kernels *name##_kernels(void) { return 0; }

/* The macros that define the kernels of a step, one for each kind of model. The suffix names the kind. fixed: the
 * model's widths are constants; dims: the widths are known only at run time; _fp8: the model names a recipe;
 * fixed_training: the model names a recipe, and its pointwise kernels include tile kernels
 * (pointwise_quantize_transpose.h). */
#define TE__PRODUCT_fixed TE_PRODUCT
#define TE__PRODUCT_fixed_fp8 TE_PRODUCT_FP8
#define TE__PRODUCT_dims TE_NO_PRODUCT
#define TE__PRODUCT_dims_fp8 TE_NO_PRODUCT
#define TE__PRODUCT_fixed_training TE_PRODUCT_FP8

#endif
