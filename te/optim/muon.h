/* muon.h -- Muon: five Newton-Schulz iterations make the momentum of a matrix orthogonal before it updates the matrix.
 * Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024. The functions to call are in adamw.h.
 *
 * Do this:
 *     te_adamw_config config = te_muon_defaults(0.02f);      // then te_adamw_init, te_adamw_step and so on
 *     config.adamw_lr_factor = 3e-4f / 0.02f;                // other parameters: AdamW with a learning rate of 3e-4
 *     config.muon_takes = te_muon_matrices;                  // the default; null means the same
 *
 * The update of a matrix p with gradient g:
 *     m = momentum m + g,  u = g + momentum m (Nesterov) or m,  X = u / (|u| + 1e-7)
 *     five times:  A = X X^T,  B = b A + c A A,  X = a X + B X             (a, b, c) = (3.4445, -4.7750, 2.0315)
 *     p -= lr (size X + decay p),  size = sqrt(max(1, rows / cols)), or 0.2 sqrt(max(rows, cols)) if match_rms
 *
 * Let s be the smaller and l the larger side of X. A and B are s x s. So if X has more rows than columns, the formulas
 * are A = X^T X and X = a X + X B. The three matrix products of an iteration take 4 s^2 l + 2 s^3 flops, and most of
 * the update's time; they are in bf16, or in f32 if the model is f32. All other kernels together read and write 24
 * bytes for each element.
 */
#ifndef TE_MUON_H
#define TE_MUON_H

#include "../core/rank_group.h"       /* te_tensor_group */
#include "../gemm/gemm.h"        /* te_gemm_run */
#include "impl/adamw_kernels.h"  /* te__adamw_args, te__bf16_stochastic */

#define TE_MUON_A 3.4445f
#define TE_MUON_B (-4.7750f)
#define TE_MUON_C 2.0315f
#define TE_MUON_EPS 1e-7f
enum { TE_MUON_STEPS = 5 };

/* The default function that selects the matrices for Muon: it returns 1 for the weights of linear layers, except the
 * output layer, and 0 for embedding tables (of tokens or positions). The output layer is the last op with a matrix in a
 * list of ops that ends with the loss. */
TE_API int te_muon_matrices(const te_model *model, const te_param *p) {
    const te_plan *plan = model->plan;
    const te_op *op = te__op_of_param(model, p);
    if (p->rows < 2 || p->cols < 2) return 0;
    if (!op || op->op_class != TE_CLASS_gemm) return 0;
    if (!te__to_loss(plan)) return 1;
    for (op++; op < plan->op + plan->op_count; op++)
        for (int k = 0; k < op->params; k++)
            if (op->param[k].rows > 1) return 1;
    return 0;
}
/* Return the rule that updates parameter p. Muon updates only matrices, even if the caller's function `takes` selects
 * other parameters; AdamW updates the rest. */
TE_API te_rule te__param_rule(te_rule rule, te_muon_takes takes, const te_model *model, const te_param *p) {
    if (rule != TE_RULE_muon) return rule;
    return p->rows > 1 && p->cols > 1 && (takes ? takes : te_muon_matrices)(model, p) ? TE_RULE_muon : TE_RULE_adamw;
}

/* ---- memory and products of the iteration ------------------------------------------------------------------------ */

/* The memory of the Newton-Schulz iterations. The matrices are updated one after the other, so all matrices use the
 * same memory. */
typedef struct te__muon {
    void *x[2];     /* X, and the X of the next iteration, in the dtype of the GEMMs. Each buffer is as large as the
                     * largest matrix */
    void *a, *b;    /* A and B, [s, s] */
    float *scratch; /* on the host, the workspace of the GEMMs */
    float *partial; /* [chunks]: for each chunk, the sum of the squares of u (see the head of this file) */
    float *factor;  /* [count]: for each matrix, 1 / (|u| + 1e-7) */
} te__muon;
typedef struct te__muon_sizes { int64_t x, a, scratch; } te__muon_sizes; /* bytes of te__muon.x[0], a and scratch */

/* The three GEMMs of an iteration: `gram` computes A, `poly` computes B, and `next` computes the next X. */
typedef struct te__muon_products { te_gemm gram, poly, next; } te__muon_products;

TE_API te_dtype te__muon_dtype(te_dtype model) { return model == TE_f32 ? TE_f32 : TE_bf16; }

TE_API te__muon_products te__muon_products_of(int64_t rows, int64_t cols, te_dtype dtype) {
    const int wide = rows <= cols;
    const int64_t s = wide ? rows : cols, l = wide ? cols : rows;
    te__muon_products p;
    p.gram = te_gemm_of(s, s, l), p.gram.trans_a = !wide, p.gram.trans_b = wide;
    p.poly = te_gemm_of(s, s, s), p.poly.alpha = TE_MUON_C, p.poly.beta = TE_MUON_B;
    p.next = te_gemm_of(rows, cols, s), p.next.beta = TE_MUON_A;
    p.gram.dtype = p.poly.dtype = p.next.dtype = dtype;
    p.gram.out = p.poly.out = p.next.out = dtype;
    return p;
}
/* Enlarge *sizes, the sizes of the memory of the Newton-Schulz iterations, so that this memory suffices for matrix p,
 * too. */
TE_API void te__muon_sizes_add(te__muon_sizes *sizes, const te_param *p, te_dtype dtype) {
    const te__muon_products g = te__muon_products_of(p->rows, p->cols, dtype);
    const int64_t bytes = (int64_t)te_dtype_bytes(dtype);
    const te_gemm *const all[3] = {&g.gram, &g.poly, &g.next};
    sizes->x = te_max(sizes->x, p->rows * p->cols * bytes);
    sizes->a = te_max(sizes->a, g.gram.m * g.gram.m * bytes);
    for (int i = 0; i < 3; i++)
        sizes->scratch = te_max(sizes->scratch, (int64_t)(te__gemm_scratch(all[i]) * sizeof(float)));
}
/* Return an error if the matrix p is sharded over the tensor group, or if the GEMMs do not support its sizes. On CUDA,
 * this function also selects the GEMMs' algorithms, so that the first optimizer step need not select them. */
TE_API te_status te__muon_check(const te_param *p, te_dtype dtype, te_context *ctx) {
    TE_REQUIRE(p->shard == TE_SHARD_none || te_tensor_group(ctx)->size == 1, ctx, TE_ERROR_VALUE,
               "adamw: muon needs all of %s.%s, of which the ranks of the tensor group have a part each; leave it to "
               "AdamW by muon_takes", p->op, p->field);
    TE_REQUIRE(p->rows <= INT32_MAX && p->cols <= INT32_MAX, ctx, TE_ERROR_OVERFLOW,
               "adamw: muon of %s.%s, %lld x %lld", p->op, p->field, (long long)p->rows, (long long)p->cols);
    const te__muon_products g = te__muon_products_of(p->rows, p->cols, dtype);
    TE_REQUIRE(te__gemm_supports(&g.gram, ctx) && te__gemm_supports(&g.poly, ctx) && te__gemm_supports(&g.next, ctx),
               ctx, TE_ERROR_BLAS, "adamw: muon of %s.%s, %lld x %lld: there is no product of these sizes", p->op,
               p->field, (long long)p->rows, (long long)p->cols);
    return TE_OK;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

typedef struct te__muon_args {
    te__adamw_args step;
    te__muon memory;
    const void *x;  /* for te_muon_apply: the orthogonal matrix X */
    int tensor;     /* for te_muon_normalize and te_muon_apply: index of the matrix among the optimizer's tensors */
    te_dtype dtype; /* of X */
    float size;     /* for te_muon_apply: the factor `size` of X in the formula at the head of this file */
} te__muon_args;

TE_FN float te__muon_update(float g, float m, const te_adamw_config *c) {
    return c->nesterov ? g + c->momentum * m : m;
}
/* Update the momentum m of all matrices in one launch, and sum the squares of u (the update before the Newton-Schulz
 * iterations) over each chunk. Reads 8 bytes for each element and writes 4. If a matrix's sum of squares does not fit
 * f32, its factor 1 / |u| becomes 0, and so does the input of its iterations, X = u / |u|. */
TE_FN void te__muon_momentum_body(const te__muon_args *a, te_block b) {
    int group;
    te_lanes lanes = te_lanes_here(TE__ADAMW_LANES, &group);
    const te_adamw_state state = *a->step.state;
    const te_adamw_config *c = &a->step.config;
    const int n = te_chunk_tensor(a->step.first, a->step.count, b.x);
    const te__adamw_tensor t = a->step.tensor[n];
    if (!state.apply || t.rule != TE_RULE_muon) return;
    const int64_t from = (int64_t)(b.x - a->step.first[n]) * TE__ADAMW_CHUNK;
    const int64_t to = te_min(t.elements, from + TE__ADAMW_CHUNK);
    float sum = 0.0f;
    for (int64_t i = from + lanes.id; i < to; i += lanes.count) {
        const float g = t.grad[i] * state.scale;
        float m = c->momentum * te_load(t.m, i, c->moments) + g;
        if (c->moments == TE_f32) {
            ((float *)t.m)[i] = m;
        } else {
            uint32_t w[4];
            te__adamw_random(w, t.at + i, TE__ADAMW_MOMENTS, &state, c);
            const uint16_t stored = te__bf16_stochastic(m, w[i % 4]);
            ((uint16_t *)t.m)[i] = stored, m = te_float_of_bf16(stored);
        }
        const float u = te__muon_update(g, m, c);
        sum += u * u;
    }
    te_lanes_sum(&sum, 1, &lanes);
    if (lanes.id == 0) a->memory.partial[b.x] = sum;
}
TE_KERNEL_IF_USED(te_muon_momentum, TE__ADAMW_THREADS, 1, te__muon_args, te__muon_momentum_body(te_args, te_at))

/* Compute 1 / (|u| + 1e-7) for each matrix, where u is the matrix's update before the Newton-Schulz iterations. One
 * block adds the chunk sums of one matrix, in a fixed order. */
TE_FN void te__muon_norm_body(const te__muon_args *a, te_block b) {
    int group;
    te_lanes lanes = te_lanes_here(TE__ADAMW_LANES, &group);
    if (!a->step.state->apply || a->step.tensor[b.x].rule != TE_RULE_muon) return;
    double lane_sum = 0.0;
    for (int32_t i = a->step.first[b.x] + lanes.id; i < a->step.first[b.x + 1]; i += lanes.count)
        lane_sum += (double)a->memory.partial[i];
    float sum = (float)lane_sum;
    te_lanes_sum(&sum, 1, &lanes);
    if (lanes.id == 0) a->memory.factor[b.x] = 1.0f / (sqrtf(sum) + TE_MUON_EPS);
}
TE_KERNEL_IF_USED(te_muon_norm, TE__ADAMW_THREADS, 1, te__muon_args, te__muon_norm_body(te_args, te_at))

/* Compute X = u / |u| for one matrix, where u is the matrix's update before the Newton-Schulz iterations. For each
 * element, reads 4 bytes of m (and 4 bytes of the gradient with Nesterov's momentum), and writes 2 bytes. */
TE_FN void te__muon_normalize_body(const te__muon_args *a, te_block b) {
    int group;
    const te_lanes lanes = te_lanes_here(TE__ADAMW_LANES, &group);
    const te_adamw_state state = *a->step.state;
    const te__adamw_tensor t = a->step.tensor[a->tensor];
    if (!state.apply) return;
    const int64_t from = (int64_t)b.x * TE__ADAMW_CHUNK, to = te_min(t.elements, from + TE__ADAMW_CHUNK);
    const float factor = a->memory.factor[a->tensor];
    for (int64_t i = from + lanes.id; i < to; i += lanes.count) {
        const float m = te_load(t.m, i, a->step.config.moments), g = t.grad[i] * state.scale;
        te_store(a->memory.x[0], i, te__muon_update(g, m, &a->step.config) * factor, a->dtype);
    }
}
TE_KERNEL_IF_USED(te_muon_normalize, TE__ADAMW_THREADS, 1, te__muon_args, te__muon_normalize_body(te_args, te_at))

/* Update one matrix: p -= lr (size X + decay p). Reads 6 bytes for each element and writes 6. */
TE_FN void te__muon_apply_body(const te__muon_args *a, te_block b) {
    int group;
    const te_lanes lanes = te_lanes_here(TE__ADAMW_LANES, &group);
    const te_adamw_state state = *a->step.state;
    const te__adamw_tensor t = a->step.tensor[a->tensor];
    if (!state.apply) return;
    const int64_t from = (int64_t)b.x * TE__ADAMW_CHUNK, to = te_min(t.elements, from + TE__ADAMW_CHUNK);
    const float lr = state.lr * t.lr;
    for (int64_t i = from + lanes.id; i < to; i += lanes.count) {
        const float p = te__adamw_load_weight(&t, i);
        const float next = p - lr * (a->size * te_load(a->x, i, a->dtype) + t.decay * p);
        te__adamw_store_weight(next, &t, i, &state, &a->step.config);
    }
}
TE_KERNEL_IF_USED(te_muon_apply, TE__ADAMW_THREADS, 1, te__muon_args, te__muon_apply_body(te_args, te_at))

/* ---- the update of a matrix -------------------------------------------------------------------------------------- */

/* Enqueue the Newton-Schulz iterations for one matrix. They replace each singular value of X, which is at most 1, by a
 * value between 0.7 and 1.2. Singular values below 0.001 do not reach 0.7, because they grow only by a factor of 3.4 in
 * each iteration. X is in u->x[0] before the iterations, and in u->x[TE_MUON_STEPS % 2] after them. */
TE_IF_USED TE_API te_status te__muon_orthogonal(const te__muon *u, int64_t rows, int64_t cols, te_dtype dtype,
                                                te_context *ctx) {
    te__muon_products p = te__muon_products_of(rows, cols, dtype);
    p.gram.scratch = p.poly.scratch = p.next.scratch = u->scratch;
    for (int k = 0; k < TE_MUON_STEPS; k++) {
        const void *x = u->x[k % 2];
        p.gram.a = p.gram.b = x, p.gram.d = u->a;
        p.poly.a = p.poly.b = p.poly.c = u->a, p.poly.d = u->b;
        p.next.a = rows <= cols ? u->b : x, p.next.b = rows <= cols ? x : u->b, p.next.c = x;
        p.next.d = u->x[(k + 1) % 2];
        TE_TRY(te_gemm_run(&p.gram, ctx));
        TE_TRY(te_gemm_run(&p.poly, ctx));
        TE_TRY(te_gemm_run(&p.next, ctx));
    }
    return TE_OK;
}
/* Enqueue the update of matrix p, which is tensor number a->tensor. Its momentum, and the norm of its update before the
 * Newton-Schulz iterations, must have been computed by kernels enqueued before. */
TE_IF_USED TE_API te_status te__muon_matrix(te__muon_args *a, const te_param *p, te_dtype model, te_context *ctx) {
    const double rows = (double)p->rows, cols = (double)p->cols;
    const te_grid grid = te__grid_of(te_ceil_div(p->rows * p->cols, TE__ADAMW_CHUNK), 1);
    a->dtype = te__muon_dtype(model), a->x = a->memory.x[TE_MUON_STEPS % 2];
    a->size = (float)(a->step.config.match_rms ? 0.2 * sqrt(rows > cols ? rows : cols)
                                               : sqrt(rows > cols ? rows / cols : 1.0));
    TE_TRY(te_muon_normalize_launch(ctx, grid, a));
    TE_TRY(te__muon_orthogonal(&a->memory, p->rows, p->cols, a->dtype, ctx));
    return te_muon_apply_launch(ctx, grid, a);
}

#endif
