/* expert_linear.h -- ops with parameters for each expert, on the rows that a router has ordered by expert (router.h).
 *
 *   (expert_linear, name, in, out, experts)   y[row] = x[row] weight[expert of the row]^T; weight [experts, out, in]
 *   (expert_bias, name, width, experts)       y[row] = x[row] + bias[expert of the row]; bias [experts, width]
 *
 * Do this:
 *     (router, r, H, E, (top_k, 2)), (expert_linear, up, H, 2 * F, E), (expert_bias, up_b, 2 * F, E), (swiglu, act),
 *     (expert_linear, down, F, H, E), (combine, r)
 *
 * With (ranks, N) at the router, `experts` is the number of this rank's experts. All widths are multiples of eight. The
 * weight's rows are those of expert 0, then those of expert 1, and so on: the parameter is [experts * out, in]. Forward
 * saves x, except if x is the output of the router, which backward gathers again from the router's input. Backward
 * computes dx = dy weight, and for each expert dweight = dy^T x over its rows, summed in f32 in a fixed order. The
 * gradients of an expert without rows are 0. Under the recipe fp8_block, y and dx are computed in FP8, and dweight in
 * the list's dtype (docs/fp8.md). Under the other recipes, or with the option (recipe, none), all GEMMs run in the
 * list's dtype. In a list for inference on the CPU the weight may be quantized to few bits like the weight of a linear,
 * by (weights, ..) or te_use_quantized. On CUDA this is not possible, because GEMMs with such weights need their number
 * of rows on the host. The GEMMs are in te/gemm/impl/gemm_grouped.h.
 */
#ifndef TE_OPS_EXPERT_LINEAR_H
#define TE_OPS_EXPERT_LINEAR_H

#include "../gemm/impl/gemm_grouped.h" /* te_grouped */
#include "combine.h"                   /* te_routed_args */
#include "router.h"                    /* te_routing */

#define TE__EXPERTS_FIT(model, op, experts)                   \
    ((int)TE_ROWS_IN(model, op) >= (int)TE_ROWS_routed &&     \
     ((int)TE_ROWS_IN(model, op) >> 8 & 2047) == (int)(experts) * TE__RANKS_OF(TE_ROWS_IN(model, op)))
#define TE__RANKS_OF(rows) (TE_ROUTED_RANKS(rows) > 0 ? TE_ROUTED_RANKS(rows) : 1)
#define TE__EXPERTS_LAYOUT_FITS(in) \
    ((int)(in) == (int)TE_LAYOUT_replicated || (int)(in) == (int)TE_LAYOUT_partial_grad || \
     (int)(in) == (int)TE_LAYOUT_some_rows)
#define TE__CHECK_EXPERTS(model, op, experts)                                                                        \
    static_assert((int)TE_ROWS_IN(model, op) >= (int)TE_ROWS_routed,                                                 \
                  TE__ROUTER_TEXT(model, op) " needs the rows of a (router, ..)");                                   \
    static_assert((int)TE_ROWS_IN(model, op) < (int)TE_ROWS_routed || TE__EXPERTS_FIT(model, op, experts),           \
                  TE__ROUTER_TEXT(model, op) " has another number of experts than its router, or than a rank of it");

/* ---- (expert_linear, name, in, out, experts) --------------------------------------------------------------------- */

#define TE_OP_expert_linear (expert_linear, custom)
#define TE_SHAPES_expert_linear(op) (3)
#define TE_IN_expert_linear(op) (TE_ARG1(op, 0))
#define TE_OUT_expert_linear(op, in) (TE_ARG2(op, 0))
#define TE_STATES_OUT_expert_linear ,
#define TE_EXPERTS_expert_linear(op) ((int)(TE_ARG3(op, 0)))
#define TE_FLAGS_expert_linear(op) (TE_SAVES_INPUT)
#define TE_LAYOUT_FITS_expert_linear(op, in) TE__EXPERTS_LAYOUT_FITS(in)
#define TE_TAKES_expert_linear_recipe TE_TOKEN
#define TE_TAKES_expert_linear_weights TE_TOKEN
#define TE_RECIPE_expert_linear(model, op)                                                                           \
    ((int)TE_RECIPE_OPTION(op, TE_IS_BLOCKWISE(model##_recipe) ? (int)TE_RECIPE_fp8_block : (int)TE_RECIPE_none))
#define TE__EXPERTS_IN_FP8(model, op) (TE_RECIPE_expert_linear(model, op) != (int)TE_RECIPE_none)
#define TE_BLOCK_WEIGHTS_expert_linear(model, op) \
    (TE_CUDA ? (int)TE_BLOCK_none : (int)TE_WEIGHTS_OPTION(op, (int)model##_weight_format))
#define TE_PARAMS_expert_linear(op, in, out) ((weight, (int64_t)(TE_ARG3(op, 0)) * (out), in, normal))
#define TE_CHECK_expert_linear(model, op)                                                                            \
    (TE__CHECK_EXPERTS(model, op, TE_ARG3(op, 0)) TE_CHECK_WEIGHTS(model, op)                                        \
     static_assert(!TE__EXPERTS_IN_FP8(model, op) || (TE_IS_BLOCKWISE(TE_RECIPE_expert_linear(model, op)) &&         \
                                                      TE_IS_BLOCKWISE(model##_recipe)),                              \
                   TE__ROUTER_TEXT(model, op) ": the recipe of experts is fp8_block, in a list that names it," \
                                              " or none");                                                           \
     static_assert(!TE__EXPERTS_IN_FP8(model, op) ||                                                                 \
                       ((TE_ARG1(op, 0)) % 16 == 0 && (TE_ARG2(op, 0)) % TE_FP8_BLOCK == 0),                         \
                   TE__ROUTER_TEXT(model, op) ": experts in FP8 need an input of a multiple of 16 columns and an "   \
                   "output of a multiple of 128; (recipe, none) opts out");                                          \
     static_assert(!TE__EXPERTS_IN_FP8(model, op) || TE_ROUTED_RANKS(TE_ROWS_IN(model, op)) == 0,                    \
                   TE__ROUTER_TEXT(model, op) ": experts of several ranks do not run in FP8: (recipe, none)");       \
     static_assert(!TE__EXPERTS_IN_FP8(model, op) || !TE_CUDA || (int)model##_dtype != (int)TE_f32,                  \
                   TE__ROUTER_TEXT(model, op) ": on CUDA, experts of a list in f32 do not run in FP8:"               \
                                              " (recipe, none)");                                                    \
     static_assert(!TE_CUDA || !TE_HAS_OPTION(op, weights) ||                                                        \
                       (int)TE_WEIGHTS_OPTION(op, TE_BLOCK_none) == (int)TE_BLOCK_none,                              \
                   TE__ROUTER_TEXT(model, op) ": the weights of experts may be in few bits on the CPU only");        \
     static_assert((TE_ARG1(op, 0)) > 0 && (TE_ARG1(op, 0)) % 8 == 0 && (TE_ARG2(op, 0)) > 0 &&                      \
                       (TE_ARG2(op, 0)) % 8 == 0,                                                                    \
                   TE__ROUTER_TEXT(model, op) ": its widths must be positive multiples of eight");)

/* The type of a function that runs grouped GEMMs, one GEMM for each expert. On CUDA there is a separate function for
 * each dtype and kind (forward, dgrad, wgrad). If the template argument FP8 of te__grouped_step is 1, the function can
 * also run the GEMMs in FP8; otherwise the kernel for FP8 is not compiled. */
typedef te_status (*te__grouped_fn)(const te_grouped *g, te_run *r);
#if TE_CUDA
template <te_dtype T, te_grouped_kind KIND, int FP8> TE_API te_status te__grouped_step(const te_grouped *g, te_run *r) {
    if constexpr (FP8 && KIND != TE_GROUPED_WGRAD)
        if (g->in_fp8) return te__grouped_fp8_run<>(g, r->ctx);
    return te__grouped_run<T, KIND>(g, r->ctx);
}
#define TE__GROUPED(dtype, kind, fp8) te__grouped_step<TE_##dtype, TE_GROUPED_##kind, fp8>
#else
TE_API te_status te__grouped_step(const te_grouped *g, te_run *r) {
    return te__grouped_run(g, g->quantized ? r->plan->quantized->product
                              : g->in_fp8  ? r->plan->fp8->gemm_blockwise
                                           : r->plan->product, r->ctx);
}
#define TE__GROUPED(dtype, kind, fp8) te__grouped_step
#endif

/* Casts x (a->x) to e4m3 and stores the a->rows routed rows (a->y), with one scale for each 1 x 128 elements. The
 * inverses of the scales are stored in a->inverse, at the index te__grouped_scale_at. If a->gathers is 1, x has one row
 * for each token, which is cast once and stored as each of the token's top_k routed rows. Otherwise x has the routed
 * rows. A warp casts a row of x, and half a warp 128 columns at a time. Memory traffic: reads x, writes y. */
TE_FN void te__routed_quantize_rows(const te_routed_args *a, te_block b, const te_dtype dtype) {
    enum { LANES = TE_CUDA ? 16 : 1, VECTORS = TE_FP8_BLOCK / 8 / LANES };
    int group;
    const te_lanes g = te_lanes_here(TE_ROUTER_LANES, &group);
    const int64_t from = (int64_t)b.x * TE_ROUTER_WARPS + group, pitch = te__grouped_scale_pitch(a->rows, a->at.count);
    const int copies = a->gathers ? a->top_k : 1;
    if (from >= (a->gathers ? a->tokens : a->rows) || (!a->gathers && !te__is_computed_row(&a->at, from))) return;
    for (int first = 0; first < a->width; first += g.count / LANES * TE_FP8_BLOCK) {
        const int block = first + g.id / LANES * TE_FP8_BLOCK, col = block + g.id % LANES * 8;
        float v[VECTORS][8];
        uint32_t amax = 0;
        TE_UNROLL for (int k = 0; k < VECTORS; k++) {
            TE_UNROLL for (int i = 0; i < 8; i++) v[k][i] = 0;
            if (col + 8 * k < a->width) te_load8(v[k], a->x, from * a->width + col + 8 * k, 8, 1, dtype);
            amax = te_amax_bits8(amax, v[k]);
        }
        const float scale = te_scale_of_amax_bits(te_lanes16_max(amax), TE_E4M3_MAX, &a->rule);
        TE_UNROLL for (int k = 0; k < VECTORS; k++)
            TE_UNROLL for (int i = 0; i < 8; i++) v[k][i] = te_fp8_scaled(v[k][i], scale);
        for (int j = 0; j < copies; j++) {
            const int64_t slot = a->gathers ? from * a->top_k + j : a->at.slot[from];
            const int64_t row = a->gathers ? a->at.row[slot] : from;
            const int expert = a->at.expert[slot] - a->at.first;
            if (!te__is_computed(&a->at, slot)) continue;
            TE_UNROLL for (int k = 0; k < VECTORS; k++)
                if (col + 8 * k < a->width)
                    te_store8_fp8(a->y, row * a->width + col + 8 * k, v[k], 8, 1, TE_e4m3);
            if (g.id % LANES == 0 && block < a->width)
                a->inverse[block / TE_FP8_BLOCK * pitch +
                           te__grouped_scale_at(a->at.offset + a->at.first, expert, row)] = 1.0f / scale;
        }
    }
}
TE_FN void te_routed_quantize(const te_routed_args *a, te_block b) {
    if (a->dtype == TE_bf16) te__routed_quantize_rows(a, b, TE_bf16);
    else if (a->dtype == TE_f16) te__routed_quantize_rows(a, b, TE_f16);
    else te__routed_quantize_rows(a, b, TE_f32);
}
TE_KERNEL_IF_USED(te__routed_quantize, TE_ROUTER_THREADS, 1, te_routed_args, te_routed_quantize(te_args, te_at))
#if TE_CUDA
template <int FP8> TE_API te_routed_launch_fn te__routed_quantize_if(void) {
    if constexpr (FP8 != 0) return te__routed_quantize_launch<>;
    return 0;
}
#define TE__ROUTED_QUANTIZE(fp8) te__routed_quantize_if<fp8>()
#else
#define TE__ROUTED_QUANTIZE(fp8) te__routed_quantize_launch
#endif

typedef struct te_expert_runner { te__grouped_fn run; te_routed_launch_fn quantize; } te_expert_runner;
/* The kernels that compute y = x weight^T or dx = dy weight of an op. quantize: the function that launches
 * te_routed_quantize, or null if the GEMMs do not run in FP8. */
#define TE__EXPERT_RUNNER(model, dtype, kind, op)                                                                    \
    {TE__GROUPED(dtype, kind, TE__EXPERTS_IN_FP8(model, op)), TE__ROUTED_QUANTIZE(TE__EXPERTS_IN_FP8(model, op))}
#define TE_CUSTOM_expert_linear_forward(name, model, dtype, op)                                                      \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                       \
        const te_expert_runner kernels = TE__EXPERT_RUNNER(model, dtype, FORWARD, op);                               \
        return te__expert_linear_forward(r, s, &kernels);                                                            \
    }
#define TE_CUSTOM_expert_linear_backward(name, model, dtype, op)                                                     \
    TE_KERNEL(name##_gather, TE_ROUTER_THREADS, te_routed_args, te_routed_gather(te_args, te_at, TE_##dtype))        \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                       \
        const te_expert_kernels kernels = {TE__EXPERT_RUNNER(model, dtype, DGRAD, op),                               \
                                           TE__GROUPED(dtype, WGRAD, 0), name##_gather_launch};                      \
        return te__expert_linear_backward(r, s, &kernels);                                                           \
    }

/* The fused pattern of a router followed by an expert_linear. The GEMM of the expert_linear gathers the rows of x
 * itself; in FP8 the kernel that casts x gathers them. On the host and with (weigh, input) neither is possible, and the
 * router's kernel copies the rows to scratch memory. */
#define TE_PAIR_router_expert_linear ,
#define TE_CUSTOM_PAIR_router_expert_linear_forward(name, model, dtype, a, b)                                        \
    TE__ROUTER_CHOOSE(name##_choose, a, dtype, TE__EXCHANGES(a))                                                     \
    TE__ROUTER_KERNEL(name##_place, a, te_router_gather, (int)TE_WIDTH_IN(model, a),                                 \
                      TE__TOKEN_FORMATS(model, dtype, a), !TE_CUDA || TE__WEIGHS_INPUT(a))                           \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                       \
        const te_router_kernels kernels = {name##_choose_launch, name##_place_launch, 0, 0};                         \
        const te_expert_runner product = TE__EXPERT_RUNNER(model, dtype, FORWARD, b);                                \
        return te__router_expert_linear(r, s, &kernels, &product);                                                   \
    }

/* The kernels of an expert_linear's backward. gather: launches te_routed_gather. */
typedef struct te_expert_kernels {
    te_expert_runner dgrad;
    te__grouped_fn wgrad;
    te_routed_launch_fn gather;
} te_expert_kernels;

/* Describes the GEMMs of op i, one for each expert. router: the index of the router op that has ordered the rows. */
TE_API te_grouped te__expert_product(const te_run *r, te_grouped_kind kind, int i, int router) {
    const te_op *op = &r->plan->op[i];
    const te_router_options o = te__router_options_of(r->plan, router);
    const te_routing t = te__routing_of(r, router);
    te_grouped g = te__grouped_of(kind, op->out, op->in, t.count, r->tokens * o.top_k);
    g.offset = t.offset + t.first, g.ranks = o.experts / t.count, g.max_rows = t.capacity;
    g.dtype = r->plan->dtype, g.out_dtype = kind == TE_GROUPED_WGRAD ? TE_f32 : g.dtype;
    return g;
}
/* Returns 1 if expert_linear i computes y and dx in FP8 in this call, else 0. */
TE_API int te__experts_are_in_fp8(const te_run *r, int i) { return te__recipe_is_on(r->plan, i, r->use, r->param); }

/* Runs the GEMMs that g describes, with scratch memory from the workspace. If launches is 0, the function only reserves
 * that memory. */
TE_API te_status te__expert_run(te_run *r, te_grouped *g, te__grouped_fn run, int launches) {
#if !TE_CUDA
    te_grouped capacity = *g;
    void *scratch = 0;
    capacity.max_rows = (int)te__capacity_rows(r);
    const te_quantized_ops *quantized = g->kind == TE_GROUPED_FORWARD ? r->plan->quantized : 0;
    const te_gemm largest = te__grouped_gemm(&capacity, 0, 0, capacity.max_rows);
    size_t bytes = te__grouped_scratch(&capacity) * sizeof(float);
    /* A weight that is not quantized now may be quantized later, so the workspace is large enough for both kinds of
     * weight. */
    if (quantized) bytes = (size_t)te_max((int64_t)bytes, (int64_t)quantized->scratch(&largest));
    if (bytes) TE_TRY(te__scratch(r, &scratch, bytes));
    g->scratch = (float *)scratch;
#endif
    return r->dry || !launches ? TE_OK : run(g, r);
}
/* Sets the operands of g, which describes the GEMMs y = x weight^T or dx = dy weight of op i. x: the input x or dy, in
 * the list's dtype. If the GEMMs run in FP8, x is cast to scratch memory. gathers: 1 if x has one row for each token, 0
 * if x has the routed rows. If launches is 0, the function only reserves the memory. */
TE_API te_status te__expert_operands(te_grouped *g, te_run *r, int i, te_value x, int gathers, int launches,
                                     te_routed_launch_fn quantize) {
    const te_op *op = &r->plan->op[i];
    const te_param *p = r->param[i];
    const int is_forward = g->kind == TE_GROUPED_FORWARD;
    g->a = x.data, g->b = p->data, g->in_fp8 = te__experts_are_in_fp8(r, i);
    if (is_forward) g->quantized = p->quantized;
    if (!g->in_fp8) return TE_OK;
    te_routed_args a;
    te_value y;
    void *inverse = 0;
    const int64_t pitch = te__grouped_scale_pitch(te__capacity_of(r, op->in_rows), g->groups);
    TE_TRY(te__check_local_scales(r, i));
    TE_TRY(te__acquire(r, &y, op->in_rows, x.cols, TE_e4m3));
    TE_TRY(te__scratch(r, &inverse, (size_t)(te_fp8_blocks(x.cols) * pitch) * sizeof(float)));
    memset(&a, 0, sizeof a);
    a.at = te__routing_of(r, te__router_of(r->plan, i)), a.x = x.data, a.y = y.data, a.inverse = (float *)inverse;
    a.tokens = r->tokens, a.rows = g->rows, a.width = x.cols, a.top_k = te__rows_per_token(op->in_rows);
    a.gathers = gathers, a.dtype = x.dtype, a.rule = p->fp8.own;
    g->a = a.y, g->a_inverse = a.inverse, g->slot = 0, g->quantized = 0;
    g->b = is_forward ? p->fp8.data : p->fp8.transposed;
    g->b_inverse = is_forward ? p->fp8.inverse : p->fp8.transposed_inverse;
    const te_grid grid = te__grid_of(te_ceil_div(gathers ? a.tokens : a.rows, TE_ROUTER_WARPS), 1);
    return r->dry || !launches ? TE_OK : quantize(r->ctx, grid, &a);
}
/* Computes y = x weight^T of op i by the GEMMs that g describes. The formats of x and y may differ from the list's
 * dtype. If g->slot is not null, x has one row for each token; otherwise x has the routed rows. */
TE_API te_status te__expert_forward(te_run *r, te_grouped *g, int i, te_value x, te_value y,
                                    const te_expert_runner *kernels) {
    te_value made;
    TE_TRY(te__convert_value(&x, r, g->dtype));
    TE_TRY(te__begin_converted(&made, &y, r, g->dtype));
    g->d = made.data;
    TE_TRY(te__expert_operands(g, r, i, x, g->slot != 0, 1, kernels->quantize));
    TE_TRY(te__expert_run(r, g, kernels->run, 1));
    TE_TRY(te__end_converted(&y, &made, r));
    return te__set_current(r, y), TE_OK;
}
TE_API te_status te__expert_linear_forward(te_run *r, const te_step *s, const te_expert_runner *kernels) {
    const int i = s->op[0];
    te_grouped g = te__expert_product(r, TE_GROUPED_FORWARD, i, te__router_of(r->plan, i));
    te_value y;
    TE_TRY(te__output(&y, r, s, i));
    return te__expert_forward(r, &g, i, r->current, y, kernels);
}

TE_IF_USED TE_API te_status te__router_expert_linear(te_run *r, const te_step *s, const te_router_kernels *kernels,
                                                     const te_expert_runner *product) {
    const int router = s->op[0], i = s->op[1];
    te_value x, rows = te__no_value(), y;
    TE_TRY(te__output(&y, r, s, i));
    const int copies = !TE_CUDA || te__router_options_of(r->plan, router).weighs_input;
    if (copies) TE_TRY(te__acquire(r, &rows, r->plan->op[i].in_rows, r->plan->op[i].in, r->plan->op[i].in_dtype));
    TE_TRY(te__router_forward(&x, r, router, &rows, kernels));
    te_grouped g = te__expert_product(r, TE_GROUPED_FORWARD, i, router);
    if (!copies) g.slot = te__routing_of(r, router).slot, g.top_k = te__rows_per_token(r->plan->op[i].in_rows);
    else x = rows;
    return te__expert_forward(r, &g, i, x, y, product);
}

/* Copies each token's row of x to the token's routed rows of y, multiplied by their router weights if a->weighs. Memory
 * traffic: reads x, writes y. A warp copies one token to all its routed rows. If each warp copied one routed row
 * instead, every row of x would be read top_k times from DRAM, because the L2 evicts a row between two such reads. */
TE_FN void te_routed_gather(const te_routed_args *a, te_block b, te_dtype dtype) {
    int group;
    const te_lanes g = te_lanes_here(TE_ROUTER_LANES, &group);
    const int64_t token = (int64_t)b.x * TE_ROUTER_WARPS + group;
    if (token >= a->tokens) return;
    for (int c = g.id * 8; c < a->width; c += g.count * 8) {
        float v[8];
        te_load8(v, a->x, token * a->width + c, 8, 1, dtype);
        for (int j = 0; j < a->top_k; j++) {
            const int64_t at = token * a->top_k + j;
            const float w = a->weighs ? te__input_weight(&a->at, at) : 1.0f;
            float weighed[8];
            if (!te__is_computed(&a->at, at)) continue;
            TE_UNROLL for (int i = 0; i < 8; i++) weighed[i] = w * v[i];
            te_store8(a->y, (int64_t)a->at.row[at] * a->width + c, a->weighs ? weighed : v, 8, 1, dtype);
        }
    }
}
/* Sets *x to the input of expert_linear i, in the op list's dtype. If the input is the router's output, forward has not
 * saved it. The function then gathers the rows from the router's input and stores them at `place` or, if `place` is
 * null, in scratch memory. */
TE_API te_status te__expert_input(te_value *x, te_run *r, int i, void *place, te_routed_launch_fn gather) {
    const te_op *op = &r->plan->op[i];
    te_routed_args a;
    *x = te__input_of(r, i);
    if (!te__is_regathered(r->plan, i - 1)) return te__convert_value(x, r, r->plan->dtype);
    te_value from = te__tokens_of(r, i - 1);
    TE_TRY(te__convert_value(&from, r, r->plan->dtype));
    if (place) *x = te__value_of(place, r->plan->dtype, te__rows_in(r, op->in_rows), op->in);
    else TE_TRY(te__acquire(r, x, op->in_rows, op->in, r->plan->dtype));
    memset(&a, 0, sizeof a);
    a.at = te__routing_of(r, i - 1), a.x = from.data, a.y = x->data, a.weighs = a.at.weighs_input;
    a.tokens = r->tokens, a.width = op->in, a.top_k = te__rows_per_token(op->in_rows);
    return r->dry ? TE_OK : gather(r->ctx, te__grid_of(te_ceil_div(a.tokens, TE_ROUTER_WARPS), 1), &a);
}
TE_API te_status te__expert_linear_backward(te_run *r, const te_step *s, const te_expert_kernels *kernels) {
    const int i = s->op[0], router = te__router_of(r->plan, i), needs_dx = te__needs_input_grad(r, i);
    te_grouped w = te__expert_product(r, TE_GROUPED_WGRAD, i, router);
    te_grouped g = te__expert_product(r, TE_GROUPED_DGRAD, i, router);
    te_value dy = r->current, x, dx = te__no_value(), made = te__no_value();
    TE_TRY(te__convert_value(&dy, r, w.dtype));
    if (needs_dx) TE_TRY(te__gradient(&dx, r, s, i));
    if (needs_dx) TE_TRY(te__begin_converted(&made, &dx, r, g.dtype));
    /* until dx is computed, the memory of dx holds the gathered x */
    TE_TRY(te__expert_input(&x, r, i, made.data, kernels->gather));
    w.a = dy.data, w.b = x.data, w.d = r->param[i]->grad, w.accumulate = te__accumulates(r, r->param[i]);
    TE_TRY(te__expert_run(r, &w, kernels->wgrad, te_is_trained(r->param[i])));
    if (needs_dx) {
        g.d = made.data;
        TE_TRY(te__expert_operands(&g, r, i, dy, 0, dx.data != 0, kernels->dgrad.quantize));
        TE_TRY(te__expert_run(r, &g, kernels->dgrad.run, dx.data != 0));
        if (dx.data) TE_TRY(te__end_converted(&dx, &made, r));
    }
    return te__set_current(r, dx), TE_OK;
}

/* ---- combine expert_linear, in backward -------------------------------------------------------------------------- */

/* If a combine directly follows the expert_linear, forward does not save the output y of the expert_linear (Guo et al.
 * 2025, SonicMoE). A row of y = x weight^T is multiplied by its router weight w and added to the token's output. With
 * dy the gradient of the token's output and g = dy weight, backward computes dw = dy y = g x, dx = w g, and dweight =
 * dy^T (w x). */
#define TE_PAIR_combine_expert_linear ,
#define TE_CUSTOM_PAIR_combine_expert_linear_backward(name, model, dtype, a, b)                                      \
    TE_KERNEL(name##_gather, TE_ROUTER_THREADS, te_routed_args, te_routed_gather(te_args, te_at, TE_##dtype))        \
    TE_KERNEL(name##_weigh, TE_ROUTER_THREADS, te_routed_args, te_routed_weigh(te_args, te_at, TE_##dtype))          \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                       \
        const te_expert_kernels kernels = {TE__EXPERT_RUNNER(model, dtype, DGRAD, b), TE__GROUPED(dtype, WGRAD, 0),  \
                                           name##_gather_launch};                                                    \
        return te__combine_expert_linear(r, s, &kernels, name##_weigh_launch);                                       \
    }

/* For each routed row x with router weight w and g = dy weight: computes dw = g x, replaces g, which is in a->dx, by w
 * g, and stores w x in a->y. If a->dx is null, only w x is computed. A warp computes one row. Memory traffic: reads and
 * writes two tensors of the size of x. */
TE_FN void te_routed_weigh(const te_routed_args *a, te_block b, te_dtype dtype) {
    int group;
    te_lanes g = te_lanes_here(TE_ROUTER_LANES, &group);
    const int64_t row = (int64_t)b.x * TE_ROUTER_WARPS + group;
    float sum = 0;
    if (row >= a->rows) return;
    const int slot = a->at.slot[row], is_computed = te__is_computed_row(&a->at, row);
    if (!is_computed && a->dx && g.id == 0) a->dweight[slot] = 0;
    if (!is_computed) return;
    const float w = te__output_weight(&a->at, slot);
    for (int c = g.id * 8; c < a->width; c += g.count * 8) {
        const int64_t at = row * a->width + c;
        float x[8], v[8];
        te_load8(x, a->x, at, 8, 1, dtype);
        if (a->dx) {
            te_load8_coherent(v, a->dx, at, 8, 1, dtype);
            TE_UNROLL for (int i = 0; i < 8; i++) sum += v[i] * x[i], v[i] *= w;
            te_store8(a->dx, at, v, 8, 1, dtype);
        }
        TE_UNROLL for (int i = 0; i < 8; i++) x[i] *= w;
        te_store8(a->y, at, x, 8, 1, dtype);
    }
    if (!a->dx) return;
    te_lanes_sum(&sum, 1, &g);
    if (g.id == 0) a->dweight[slot] = sum;
}
TE_IF_USED TE_API te_status te__combine_expert_linear(te_run *r, const te_step *s, const te_expert_kernels *kernels,
                                           te_routed_launch_fn weigh) {
    const int i = s->op[1], router = r->plan->op[s->op[0]].edge, needs_dx = te__needs_input_grad(r, i);
    const te_op *op = &r->plan->op[i];
    const te_dtype dtype = r->plan->dtype;
    te_grouped w = te__expert_product(r, TE_GROUPED_WGRAD, i, router);
    te_grouped g = te__expert_product(r, TE_GROUPED_DGRAD, i, router);
    te_value dy = r->current, rows, x = te__input_of(r, i), weighed, dweight, dx = te__no_value(), made = dx;
    te_routed_args a;
    TE_REQUIRE(te__router_of(r->plan, i) == router, r->ctx, TE_ERROR_STATE,
               "%s: (combine, %s) stands on the rows of another router", r->plan->name, r->plan->op[s->op[0]].name);
    memset(&a, 0, sizeof a);
    if (te__is_exchange(r->plan, router)) TE_TRY(te__dispatch(&dy, r, router));
    TE_TRY(te__convert_value(&dy, r, dtype));
    TE_TRY(te__acquire(r, &rows, op->out_rows, op->out, dtype));
    a.at = te__routing_of(r, router), a.tokens = r->tokens, a.rows = rows.rows;
    a.top_k = te__rows_per_token(op->in_rows);
    a.x = dy.data, a.y = rows.data, a.width = op->out;
    if (!r->dry) TE_TRY(kernels->gather(r->ctx, te__grid_of(te_ceil_div(a.tokens, TE_ROUTER_WARPS), 1), &a));
    if (te__is_regathered(r->plan, i - 1)) TE_TRY(te__expert_input(&x, r, i, 0, kernels->gather));
    else TE_TRY(te__convert_value(&x, r, dtype));
    TE_TRY(te__acquire(r, &weighed, op->in_rows, op->in, dtype));
    if (needs_dx) {
        TE_TRY(te__gradient(&dx, r, s, i));
        TE_TRY(te__begin_converted(&made, &dx, r, dtype));
        g.d = made.data;
        const int in_fp8 = te__experts_are_in_fp8(r, i);
        TE_TRY(te__expert_operands(&g, r, i, in_fp8 ? dy : rows, in_fp8, 1, kernels->dgrad.quantize));
        TE_TRY(te__expert_run(r, &g, kernels->dgrad.run, 1));
        dweight = te__value_of(0, TE_f32, r->tokens, a.top_k);
        TE_TRY(te__acquire_bytes(r, &dweight, (size_t)(te__capacity_rows(r) * a.top_k) * sizeof(float)));
        te__set_edge(r, router, dweight);
        a.dx = made.data, a.dweight = (float *)dweight.data;
    }
    a.x = x.data, a.y = weighed.data, a.width = op->in;
    if (!r->dry) TE_TRY(weigh(r->ctx, te__grid_of(te_ceil_div(a.rows, TE_ROUTER_WARPS), 1), &a));
    w.a = rows.data, w.b = weighed.data, w.d = r->param[i]->grad, w.accumulate = te__accumulates(r, r->param[i]);
    TE_TRY(te__expert_run(r, &w, kernels->wgrad, te_is_trained(r->param[i])));
    if (needs_dx) TE_TRY(te__end_converted(&dx, &made, r));
    return te__set_current(r, dx), TE_OK;
}

/* ---- (expert_bias, name, width, experts) ------------------------------------------------------------------------- */

#define TE_OP_expert_bias (expert_bias, custom)
#define TE_SHAPES_expert_bias(op) (2)
#define TE_IN_expert_bias(op) (TE_ARG1(op, 0))
#define TE_EXPERTS_expert_bias(op) ((int)(TE_ARG2(op, 0)))
#define TE_LAYOUT_FITS_expert_bias(op, in) TE__EXPERTS_LAYOUT_FITS(in)
#define TE_PARAMS_expert_bias(op, in, out) ((bias, TE_ARG2(op, 0), TE_ARG1(op, 0), zero))
#define TE_CHECK_expert_bias(model, op)                                                                              \
    (TE__CHECK_EXPERTS(model, op, TE_ARG2(op, 0))                                                                    \
     static_assert((TE_ARG1(op, 0)) > 0 && (TE_ARG1(op, 0)) % 8 == 0,                                                \
                   TE__ROUTER_TEXT(model, op) ": its width must be a positive multiple of eight");)
#define TE_CUSTOM_expert_bias_forward(name, model, dtype, op)                                                        \
    TE_KERNEL(name, TE_ROUTER_THREADS, te_routed_args,                                                              \
              te_expert_bias_rows(te_args, te_at, (int)TE_WIDTH_IN(model, op), TE__ROUTER_FORMATS(model, dtype, op))) \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__expert_bias_forward(r, s, name##_launch); }
#define TE_CUSTOM_expert_bias_backward(name, model, dtype, op)                                                       \
    TE_KERNEL(name, TE_ROUTER_THREADS, te_routed_args,                                                              \
              te_expert_bias_sum(te_args, te_at, (int)TE_WIDTH_IN(model, op), (te_dtype)TE_DTYPE_OUT(model, op)))    \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__expert_bias_backward(r, s, name##_launch); }

/* Computes y = x + bias; a warp computes one row. Memory traffic: reads x, writes y. */
TE_FN void te_expert_bias_rows(const te_routed_args *a, te_block b, const int width, const te_formats f) {
    int group;
    const te_lanes g = te_lanes_here(TE_ROUTER_LANES, &group);
    const int64_t row = (int64_t)b.x * TE_ROUTER_WARPS + group;
    if (row >= a->rows || !te__is_computed_row(&a->at, row)) return;
    const int64_t expert = a->at.expert[a->at.slot[row]] - a->at.first;
    for (int c = g.id * 8; c < width; c += g.count * 8) {
        float v[8], w[8];
        te_load8(v, a->x, row * width + c, 8, 1, f.in);
        te_load8(w, a->bias, expert * width + c, 8, 1, f.weight);
        TE_UNROLL for (int i = 0; i < 8; i++) v[i] += w[i];
        te_store8(a->y, row * width + c, v, 8, 1, f.out);
    }
}
/* Computes dbias of expert b.y, in 8 * TE_ROUTER_LANES columns: the sum of dy over the expert's rows. Memory traffic:
 * reads dy. */
TE_FN void te_expert_bias_sum(const te_routed_args *a, te_block b, const int width, te_dtype dtype) {
    int group;
    const te_lanes g = te_lanes_here(TE_ROUTER_LANES, &group);
    const int c = (b.x * TE_ROUTER_LANES + g.id) * 8;
    const int32_t *offset = a->at.offset + a->at.first;
    const int64_t end = te_min(offset[b.y + 1], offset[b.y] + a->at.capacity);
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0}, v[8];
    float *to = a->dweight + (int64_t)b.y * width + c;
    for (int64_t row = offset[b.y] + group; c < width && row < end; row += TE_ROUTER_WARPS) {
        te_load8(v, a->dy, row * width + c, 8, 1, dtype);
        TE_UNROLL for (int i = 0; i < 8; i++) sum[i] += v[i];
    }
    te_groups_sum(sum, 8, g, TE_ROUTER_WARPS);
    if (group || c >= width) return;
    TE_UNROLL for (int i = 0; i < 8; i++) to[i] = sum[i] + (a->accumulate ? to[i] : 0.0f);
}
TE_API te_status te__expert_bias_forward(te_run *r, const te_step *s, te_routed_launch_fn launch) {
    const int i = s->op[0];
    te_routed_args a;
    te_value y;
    memset(&a, 0, sizeof a);
    TE_TRY(te__output(&y, r, s, i));
    a.at = te__routing_of(r, te__router_of(r->plan, i)), a.x = r->current.data, a.y = y.data, a.rows = y.rows;
    a.bias = r->param[i]->data;
    if (!r->dry) TE_TRY(launch(r->ctx, te__grid_of(te_ceil_div(a.rows, TE_ROUTER_WARPS), 1), &a));
    return te__set_current(r, y), TE_OK;
}
TE_API te_status te__expert_bias_backward(te_run *r, const te_step *s, te_routed_launch_fn launch) {
    const int i = s->op[0], trains = te_is_trained(r->param[i]);
    const te_op *op = &r->plan->op[i];
    const te_grid grid = te__grid_of(te_ceil_div(op->out, 8 * TE_ROUTER_LANES), op->experts);
    te_routed_args a;
    te_value dx = r->current;
    memset(&a, 0, sizeof a);
    a.at = te__routing_of(r, te__router_of(r->plan, i)), a.dy = r->current.data, a.dweight = r->param[i]->grad;
    a.accumulate = te__accumulates(r, r->param[i]);
    if (!r->dry && trains) TE_TRY(launch(r->ctx, grid, &a));
    TE_TRY(te__convert_value(&dx, r, op->in_dtype)); /* y = x + bias, so dx = dy */
    return te__set_current(r, dx), TE_OK;
}

#endif
