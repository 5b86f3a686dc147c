/* head_linear.h -- (head_linear, name, heads, in, out): a linear with a separate weight for each head of a row. x is
 * [rows, heads * (in + keep)], y is [rows, heads * (out + keep)]:
 *     y[row, head] = [x[row, head, the first `in` columns] weight[head]^T, the other `keep` columns of x[row, head]]
 *
 *   (keep, 0)         how many columns of each head, behind its first `in` columns, pass through unchanged
 *   (transposed, 0)   with 1, the weight of a head is [in, out], and y = x weight[head]; with 0 it is [out, in]
 *
 * The parameter `weight` is [heads * out, in] or, transposed, [heads * in, out]: the rows of head 0, then those of head
 * 1, and so on. All widths are multiples of eight.
 *
 * Do this: multi-head latent attention in its absorbed form (DeepSeek-V2, DeepSeek-AI 2024, arXiv 2405.04434). With k =
 * weight c, for the latent vector c of a token, q k^T is (q weight) c^T; so the keys need not be expanded:
 *     (head_linear, k_b, 16, 128, 512, (keep, 64), (transposed, 1)), .., (attention, a, 16, 1, 576, (value_dim, 512),
 *     (values_in_keys, 1)), (head_linear, v_b, 16, 512, 128)
 *
 * The GEMMs of all heads run as one grouped GEMM (te/gemm/impl/gemm_grouped.h) over rows that are ordered by head; a
 * kernel before the GEMM orders the rows by head, and a kernel after it restores their order. Forward saves x.
 */
#ifndef TE_OPS_HEAD_LINEAR_H
#define TE_OPS_HEAD_LINEAR_H

#include "expert_linear.h" /* TE__GROUPED, te__expert_run */

#define TE_OP_head_linear (head_linear, custom)
#define TE_SHAPES_head_linear(op) (3)
#define TE_SAME_keep_keep ,
#define TE_SAME_transposed_transposed ,
#define TE_TAKES_head_linear_keep TE_INTEGER
#define TE_TAKES_head_linear_transposed TE_INTEGER
#define TE__HEAD_KEEP(op) ((int)(TE_OPTION(op, keep, 0)))
#define TE__HEAD_TRANSPOSED(op) ((int)(TE_OPTION(op, transposed, 0)))
#define TE_IN_head_linear(op) ((int)(TE_ARG1(op, 0)) * ((int)(TE_ARG2(op, 0)) + TE__HEAD_KEEP(op)))
#define TE_OUT_head_linear(op, in) ((int)(TE_ARG1(op, 0)) * ((int)(TE_ARG3(op, 0)) + TE__HEAD_KEEP(op)))
#define TE_FLAGS_head_linear(op) (TE_SAVES_INPUT)
#define TE_LAYOUT_FITS_head_linear(op, in) ((int)(in) == (int)TE_LAYOUT_replicated)
#define TE_PARAMS_head_linear(op, in, out)                                                                \
    ((weight, (int64_t)(TE_ARG1(op, 0)) * (TE__HEAD_TRANSPOSED(op) ? TE_ARG2(op, 0) : TE_ARG3(op, 0)),    \
      TE__HEAD_TRANSPOSED(op) ? TE_ARG3(op, 0) : TE_ARG2(op, 0), normal))
#define TE__HEAD_WIDTH_FITS(width) ((width) > 0 && (width) % 8 == 0)
#define TE_CHECK_head_linear(model, op)                                                                              \
    (static_assert((TE_ARG1(op, 0)) > 0 && TE__HEAD_WIDTH_FITS(TE_ARG2(op, 0)) &&                                    \
                       TE__HEAD_WIDTH_FITS(TE_ARG3(op, 0)) && TE__HEAD_WIDTH_FITS(TE__HEAD_KEEP(op) + 8),            \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                        \
                       ": heads must be positive, in and out positive multiples of eight, and keep a multiple of "   \
                       "eight");                                                                                     \
     static_assert(TE__HEAD_TRANSPOSED(op) == 0 || TE__HEAD_TRANSPOSED(op) == 1,                                     \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": transposed must be 0 or 1");                        \
     static_assert((int)TE_ROWS_IN(model, op) == (int)TE_ROWS_tokens,                                                \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) " needs a row for each token");)
#define TE_OPTIONS_head_linear(op) \
    (te_head_linear_options, TE_ARG1(op, 0), TE_ARG2(op, 0), TE_ARG3(op, 0), TE__HEAD_KEEP(op), TE__HEAD_TRANSPOSED(op))
typedef struct te_head_linear_options { int heads, in, out, keep, transposed; } te_head_linear_options;

/* ---- the order of the rows --------------------------------------------------------------------------------------- */

/* Arguments of the kernels that convert between two layouts: `by rows`, [rows, heads * (width + keep)], and `by heads`,
 * [heads, rows, width]. */
typedef struct te_head_order_args {
    const void *from;
    const void *kept; /* for te_head_order_by_rows: [rows, heads * (kept_width + keep)]; the last `keep` columns of each
                       * head are copied to `to` */
    void *to;
    int32_t *offset;  /* output of te_head_order_by_heads, [heads + 1]: where the rows of each head begin; null if not
                       * wanted */
    int64_t rows;
    int heads, width, kept_width, keep;
} te_head_order_args;
typedef te_status (*te_head_order_fn)(te_context *ctx, te_grid grid, const te_head_order_args *a);
enum {
    TE_HEAD_ORDER_LANES = TE_CUDA ? 32 : 1,
    TE_HEAD_ORDER_GROUPS = TE_CUDA ? 8 : 1,
    TE_HEAD_ORDER_THREADS = TE_HEAD_ORDER_LANES * TE_HEAD_ORDER_GROUPS
};

TE_FN void te__head_copy(void *to, int64_t at, const void *from, int64_t first, int n, te_dtype dtype, te_lanes g) {
    for (int c = g.id * 8; c < n; c += g.count * 8) {
        float v[8];
        te_load8(v, from, first + c, 8, 1, dtype);
        te_store8(to, at + c, v, 8, 1, dtype);
    }
}
/* Copies the first `width` columns of each head from a->from, [rows, heads * (width + keep)], to a->to, [heads, rows,
 * width]. A warp copies one head of one row. Memory traffic: reads and writes the copied columns once. */
TE_FN void te_head_order_by_heads(const te_head_order_args *a, te_block b, te_dtype dtype) {
    int group;
    const te_lanes g = te_lanes_here(TE_HEAD_ORDER_LANES, &group);
    const int64_t at = (int64_t)b.x * TE_HEAD_ORDER_GROUPS + group;
    if (b.x == 0 && group == 0 && a->offset)
        for (int h = g.id; h <= a->heads; h += g.count) a->offset[h] = (int32_t)(h * a->rows);
    if (at >= a->rows * a->heads) return;
    const int64_t row = at / a->heads, head = at % a->heads;
    te__head_copy(a->to, (head * a->rows + row) * a->width, a->from, at * (a->width + a->keep), a->width, dtype, g);
}
/* Copies a->from, [heads, rows, width], to the first `width` columns of each head of a->to, [rows, heads * (width +
 * keep)]. The last `keep` columns of each head are copied from a->kept. */
TE_FN void te_head_order_by_rows(const te_head_order_args *a, te_block b, te_dtype dtype) {
    int group;
    const te_lanes g = te_lanes_here(TE_HEAD_ORDER_LANES, &group);
    const int64_t at = (int64_t)b.x * TE_HEAD_ORDER_GROUPS + group, to = at * (a->width + a->keep);
    if (at >= a->rows * a->heads) return;
    const int64_t row = at / a->heads, head = at % a->heads;
    te__head_copy(a->to, to, a->from, (head * a->rows + row) * a->width, a->width, dtype, g);
    te__head_copy(a->to, to + a->width, a->kept, at * (a->kept_width + a->keep) + a->kept_width, a->keep, dtype, g);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* The kernels of head_linear's forward or backward. product: the grouped GEMM that computes y or, in backward, dx. */
typedef struct te_head_linear_kernels {
    te_head_order_fn by_heads, by_rows;
    te__grouped_fn product, wgrad;
} te_head_linear_kernels;
/* The te_grouped_kind of the GEMM that computes y (backward 0) or dx (backward 1). DGRAD multiplies by the weight as it
 * is stored, FORWARD by the transpose of the weight. */
#define TE__HEAD_KIND(transposed, backward) \
    ((te_grouped_kind)((transposed) != (backward) ? TE_GROUPED_DGRAD : TE_GROUPED_FORWARD))
#if TE_CUDA
#define TE__HEAD_PRODUCT(dtype, op, backward) \
    te__grouped_step<TE_##dtype, TE__HEAD_KIND(TE__HEAD_TRANSPOSED(op), backward), 0>
#else
#define TE__HEAD_PRODUCT(dtype, op, backward) te__grouped_step
#endif
#define TE__HEAD_LINEAR_KERNELS(name, dtype)                                                                         \
    TE_KERNEL(name##_by_heads, TE_HEAD_ORDER_THREADS, te_head_order_args,                                            \
              te_head_order_by_heads(te_args, te_at, TE_##dtype))                                                    \
    TE_KERNEL(name##_by_rows, TE_HEAD_ORDER_THREADS, te_head_order_args,                                             \
              te_head_order_by_rows(te_args, te_at, TE_##dtype))
#define TE_CUSTOM_head_linear_forward(name, model, dtype, op)                                                        \
    TE__HEAD_LINEAR_KERNELS(name, dtype)                                                                             \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                       \
        const te_head_linear_kernels kernels = {name##_by_heads_launch, name##_by_rows_launch,                       \
                                                TE__HEAD_PRODUCT(dtype, op, 0), 0};                                  \
        return te__head_linear_forward(r, s, &kernels);                                                              \
    }
#define TE_CUSTOM_head_linear_backward(name, model, dtype, op)                                                       \
    TE__HEAD_LINEAR_KERNELS(name, dtype)                                                                             \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                       \
        const te_head_linear_kernels kernels = {name##_by_heads_launch, name##_by_rows_launch,                       \
                                                TE__HEAD_PRODUCT(dtype, op, 1), TE__GROUPED(dtype, WGRAD, 0)};       \
        return te__head_linear_backward(r, s, &kernels);                                                             \
    }

/* Describes a grouped GEMM over all heads. `out` and `in` of the te_grouped are the sizes of the weight as it is
 * stored; the kind says whether the GEMM transposes the weight. offset: [heads + 1], where the rows of each head
 * begin. */
TE_API te_grouped te__head_product(const te_run *r, te_grouped_kind kind, te_head_linear_options o, int64_t rows,
                                   const int32_t *offset) {
    te_grouped g = te__grouped_of(kind, o.transposed ? o.in : o.out, o.transposed ? o.out : o.in, o.heads,
                                  rows * o.heads);
    g.offset = offset, g.max_rows = (int)rows;
    g.dtype = r->plan->dtype, g.out_dtype = kind == TE_GROUPED_WGRAD ? TE_f32 : g.dtype;
    return g;
}
/* Reserves workspace for a tensor [heads, rows, width]. */
TE_API te_status te__head_memory(te_run *r, void **memory, te_head_linear_options o, int width) {
    return te__scratch(r, memory,
                       (size_t)(te__capacity_rows(r) * o.heads * width) * te_dtype_bytes(r->plan->dtype));
}
TE_API te_status te__head_order(te_run *r, te_head_order_fn launch, te_head_order_args *a, te_head_linear_options o) {
    a->heads = o.heads, a->keep = o.keep;
    return r->dry ? TE_OK : launch(r->ctx, te__grid_of(te_ceil_div(a->rows * o.heads, TE_HEAD_ORDER_GROUPS), 1), a);
}
/* Copies the first `width` columns of each head of x to workspace, in the layout [heads, rows, width], and sets *to to
 * the address of the copy. */
TE_API te_status te__head_by_heads(void **to, te_run *r, te_head_order_fn launch, te_value x, int width,
                                   int32_t *offset, te_head_linear_options o) {
    te_head_order_args a;
    memset(&a, 0, sizeof a);
    TE_TRY(te__head_memory(r, to, o, width));
    a.from = x.data, a.to = *to, a.offset = offset, a.rows = x.rows, a.width = width;
    return te__head_order(r, launch, &a, o);
}
/* Writes y. from: the result of the GEMM, [heads, rows, width]. kept: [rows, heads * (kept_width + keep)]. For each row
 * and head, y receives the `width` columns of `from`, then the last `keep` columns of `kept`. */
TE_API te_status te__head_by_rows(te_value y, te_run *r, te_head_order_fn launch, const void *from, int width,
                                  te_value kept, int kept_width, te_head_linear_options o) {
    te_head_order_args a;
    memset(&a, 0, sizeof a);
    a.from = from, a.to = y.data, a.kept = kept.data, a.rows = y.rows, a.width = width, a.kept_width = kept_width;
    return te__head_order(r, launch, &a, o);
}
TE_API te_status te__head_offsets(te_run *r, int i, int32_t **offset, te_head_linear_options o) {
    void *memory = 0;
    TE_REQUIRE(r->current.rows * o.heads <= INT32_MAX, r->ctx, TE_ERROR_OVERFLOW, "%s: %s: %lld rows of %d heads",
               r->plan->name, r->plan->op[i].name, (long long)r->current.rows, o.heads);
    TE_TRY(te__scratch(r, &memory, (size_t)(o.heads + 1) * sizeof(int32_t)));
    return *offset = (int32_t *)memory, TE_OK;
}
TE_API te_status te__head_linear_forward(te_run *r, const te_step *s, const te_head_linear_kernels *kernels) {
    const int i = s->op[0];
    const te_head_linear_options o = *(const te_head_linear_options *)r->plan->op[i].options;
    te_value x = r->current, y, made;
    void *by_heads = 0, *product = 0;
    int32_t *offset = 0;
    TE_TRY(te__output(&y, r, s, i));
    TE_TRY(te__convert_value(&x, r, r->plan->dtype));
    TE_TRY(te__begin_converted(&made, &y, r, r->plan->dtype));
    TE_TRY(te__head_offsets(r, i, &offset, o));
    TE_TRY(te__head_by_heads(&by_heads, r, kernels->by_heads, x, o.in, offset, o));
    TE_TRY(te__head_memory(r, &product, o, o.out));
    te_grouped g = te__head_product(r, TE__HEAD_KIND(o.transposed, 0), o, x.rows, offset);
    g.a = by_heads, g.b = r->param[i]->data, g.d = product;
    TE_TRY(te__expert_run(r, &g, kernels->product, 1));
    TE_TRY(te__head_by_rows(made, r, kernels->by_rows, product, o.out, x, o.in, o));
    TE_TRY(te__end_converted(&y, &made, r));
    return te__set_current(r, y), TE_OK;
}
/* For y = x weight^T, backward is dx = dy weight and dweight = dy^T x. With (transposed, 1), forward is y = x weight,
 * and backward is dx = dy weight^T and dweight = x^T dy. */
TE_API te_status te__head_linear_backward(te_run *r, const te_step *s, const te_head_linear_kernels *kernels) {
    const int i = s->op[0], needs_dx = te__needs_input_grad(r, i);
    const te_head_linear_options o = *(const te_head_linear_options *)r->plan->op[i].options;
    te_value dy = r->current, x = te__input_of(r, i), dx = te__no_value(), made;
    void *x_by_heads = 0, *dy_by_heads = 0, *product;
    int32_t *offset = 0;
    TE_TRY(te__convert_value(&dy, r, r->plan->dtype));
    TE_TRY(te__convert_value(&x, r, r->plan->dtype));
    TE_TRY(te__head_offsets(r, i, &offset, o));
    TE_TRY(te__head_by_heads(&x_by_heads, r, kernels->by_heads, x, o.in, 0, o));
    TE_TRY(te__head_by_heads(&dy_by_heads, r, kernels->by_heads, dy, o.out, offset, o));
    te_grouped w = te__head_product(r, TE_GROUPED_WGRAD, o, dy.rows, offset);
    w.a = o.transposed ? x_by_heads : dy_by_heads, w.b = o.transposed ? dy_by_heads : x_by_heads;
    w.d = r->param[i]->grad, w.accumulate = te__accumulates(r, r->param[i]);
    TE_TRY(te__expert_run(r, &w, kernels->wgrad, te_is_trained(r->param[i])));
    if (!needs_dx) return te__set_current(r, dx), TE_OK;
    TE_TRY(te__gradient(&dx, r, s, i));
    TE_TRY(te__begin_converted(&made, &dx, r, r->plan->dtype));
    product = x_by_heads; /* x is no longer needed */
    te_grouped g = te__head_product(r, TE__HEAD_KIND(o.transposed, 1), o, dy.rows, offset);
    g.a = dy_by_heads, g.b = r->param[i]->data, g.d = product;
    TE_TRY(te__expert_run(r, &g, kernels->product, dx.data != 0));
    if (!dx.data) return te__set_current(r, dx), TE_OK;
    TE_TRY(te__head_by_rows(made, r, kernels->by_rows, product, o.in, dy, o.out, o));
    TE_TRY(te__end_converted(&dx, &made, r));
    return te__set_current(r, dx), TE_OK;
}

#endif
