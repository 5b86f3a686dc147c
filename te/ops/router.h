/* router.h -- mixture of experts (Shazeer et al. 2017): each token is sent to the top_k experts that a router chooses.
 *
 *   (router, r, hidden, experts, (top_k, 2), ..)   y = each row of x, once for each expert of its token
 *   (combine, r)                                   y[token] = the sum of the token's rows times the router's weights
 *                                                  (combine.h)
 *
 * Do this: the experts of Mixtral (Jiang et al. 2024, arXiv 2401.04088)
 *     (fork, x), (rmsnorm, n, H), (router, r, H, E, (top_k, 2), (renormalise, 1)), (expert_linear, up, H, 2 * F, E),
 *     (swiglu, act), (expert_linear, down, F, H, E), (combine, r), (add, x)
 *
 * The router's logits are x weight^T, weight [experts, hidden], in f32. x has a row for each token. The output of the
 * router has routed rows: each token has top_k routed rows, and all routed rows are ordered by expert, then by token.
 * Elementwise ops, gated activations and norms treat routed rows like any other rows; expert_linear.h has the ops with
 * parameters for each expert. No row is dropped unless the option capacity is given. The number of rows of an expert is
 * known only on the device, so a captured graph can be replayed with any routing.
 *
 * If several experts have the same score, the one with the lowest number is chosen first. If a logit of a token is NaN,
 * all weights of the token are NaN; in the choice, the NaN counts as -infinity. The weights are summed in a fixed
 * order. The options are described below, and in docs/reference/ops.md.
 */
#ifndef TE_OPS_ROUTER_H
#define TE_OPS_ROUTER_H

#include "../core/tensor_kernels.h"     /* te_fill */
#include "../gemm/impl/gemm_dispatch.h" /* te__gemm_scratch */
#include "../plan/impl/gradients.h"     /* te__accumulates */
#include "impl/router_kernels.h"        /* te_routing, te_router_args, the kernels */
#include "impl/token_exchange.h"        /* te__tokens_dispatch */
#include "residual.h"                   /* TE_FORK_OF */

/* ---- (router, r, hidden, experts, ..) ---------------------------------------------------------------------------- */

/* Options:
 *     (top_k, 1)           how many experts each token is sent to, at most 32
 *     (score, softmax)     the score of an expert: softmax over all logits; sigmoid of its logit; or softmax_of_chosen:
 *                          softmax over the logits of the chosen experts (gpt-oss)
 *     (bias, 0)            with 1, a parameter, bias [1, experts], is added to the logits (gpt-oss)
 *     (renormalise, 0)     with 1, the scores of the chosen experts are divided by their sum (Mixtral, Qwen3-MoE)
 *     (factor, 1)          the weights are multiplied by this constant (2.5 in DeepSeek-V3)
 *     (weigh, output)      with `output`, the combine multiplies the output of each expert by the expert's weight. With
 *                          `input`, the input of the expert is multiplied, and the combine only adds up (Llama 4)
 *     (choice_bias, 0)     with 1, a parameter, choice_bias [1, experts], is added to the scores when experts are
 *                          chosen, but not to the weights (DeepSeek-V3, arXiv 2412.19437). Its gradient is 0
 *     (groups, 1), (groups_kept, groups)   the experts form `groups` groups. Experts are chosen only from the
 *                          groups_kept groups that have the largest sums of their two best scores
 *     (aux_loss, 0)        a number c adds the loss c * experts * sum_e(f_e * P_e) (Switch Transformer, Fedus et al.
 *                          2022). f_e is the fraction of all rows that expert e has, P_e its mean score over the
 *                          tokens. Needs (score, softmax)
 *     (z_loss, 0)          a number c adds c times the mean, over the tokens, of (log sum exp of the logits)^2 (ST-MoE)
 *     (capacity, 0)        with a number F above 0, an expert computes at most ceil(F * tokens * top_k / experts)
 *                          rows, those of its first tokens. Its other rows are dropped: they add 0 to the output, and
 *                          the weights of the token's other experts do not change. With (ranks, N), `tokens` is the
 *                          number of tokens of all ranks. With 0 no row is dropped
 *     (ranks, N)           each of the N ranks of the tensor group has experts / N experts, rank 0 the first ones. A
 *                          rank computes only its own experts' rows, so the combine's output is a partial sum
 *     (dispatch, all_gather)   an option for (ranks, N). With `all_gather`, x has the rows of all ranks, so the list
 *                          has an all_gather in front of the router and a reduce_scatter behind the combine. With
 *                          `all_to_all`, x and the combine's output have only this rank's rows (TE_ROWS_shard); router
 *                          and combine send a token's row to the ranks of its experts and back (impl/token_exchange.h)
 * Which rows are dropped depends on the order of the tokens (as in GShard, Lepikhin et al. 2020), not on the weights.
 * So whether a token keeps an expert depends only on earlier tokens, and an expert need not sort its rows: it computes
 * the first ones. The losses and te_router_counts count all choices, including those of dropped rows.
 *
 * The two losses are not part of the loss that forward returns; backward only adds their gradients. Each of the two is
 * treated as if it were added to the loss of every row, and the gradient of a row's loss is te_batch.loss_scale. */
#define TE_OP_router (router, custom)
#define TE_SHAPES_router(op) (2)
#define TE_IN_router(op) (TE_ARG1(op, 0))
#define TE_EXPERTS_router(op) ((int)(TE_ARG2(op, 0)))
#define TE_RANKS_router(op) TE_RANKS_OPTION(op)
#define TE_ROWS_router(op, in)                                                                      \
    (TE_ROUTED_ROWS(TE_ARG2(op, 0), TE__TOP_K(op)) | TE_ROUTED_ROWS_OF_RANKS(TE_RANKS_OPTION(op)) | \
     (TE__EXCHANGES(op) ? (int)TE_ROWS_exchanged : 0))
/* With (ranks, N) each rank computes only its own experts' part of dx and of the weight's gradient, so the layout says
 * that gradients are partial sums. */
#define TE_LAYOUT_router(op, in) \
    (TE__EXCHANGES(op)             ? (int)TE_LAYOUT_some_rows    \
     : TE_HAS_OPTION(op, ranks)    ? (int)TE_LAYOUT_partial_grad \
     : TE_HAS_OPTION(op, capacity) ? (int)TE_LAYOUT_some_rows    \
                                   : (int)(in))
#define TE_LAYOUT_FITS_router(op, in)                                                            \
    ((int)(in) == (TE_HAS_OPTION(op, ranks) && !TE__EXCHANGES(op) ? (int)TE_LAYOUT_partial_grad \
                                                                  : (int)TE_LAYOUT_replicated))
/* A router that exchanges rows does not save its input. Instead it saves all rows that it has received, which include
 * this rank's rows (te__saved_input_bytes). */
#define TE_FLAGS_router(op) (TE__EXCHANGES(op) ? 0 : (int)TE_SAVES_INPUT)
#define TE_STATS_router(op)                                                                                        \
    TE__ROUTING_FLOATS((int)(TE_ARG2(op, 0)), (int)(TE_ARG2(op, 0)) / (TE__EXCHANGES(op) ? TE_RANKS_OPTION(op) : 1), \
                       (int)TE__TOP_K(op))
#define TE_PARAMS_router(op, in, out)                                                               \
    TE_IF_HAS(op, bias, TE_IF_HAS(op, choice_bias, TE__ROUTER_PARAMS_BOTH, TE__ROUTER_PARAMS_BIAS), \
              TE_IF_HAS(op, choice_bias, TE__ROUTER_PARAMS_CHOICE, TE__ROUTER_PARAMS))(op)
#define TE__ROUTER_WEIGHT(op) (weight, TE_ARG2(op, 0), TE_ARG1(op, 0), normal)
#define TE__ROUTER_PARAMS(op) (TE__ROUTER_WEIGHT(op))
#define TE__ROUTER_PARAMS_BIAS(op) (TE__ROUTER_WEIGHT(op), (bias, 1, TE_ARG2(op, 0), zero))
#define TE__ROUTER_PARAMS_CHOICE(op) (TE__ROUTER_WEIGHT(op), (choice_bias, 1, TE_ARG2(op, 0), zero))
#define TE__ROUTER_PARAMS_BOTH(op) \
    (TE__ROUTER_WEIGHT(op), (bias, 1, TE_ARG2(op, 0), zero), (choice_bias, 1, TE_ARG2(op, 0), zero))
#define TE_SAME_top_k_top_k ,
#define TE_SAME_score_score ,
#define TE_SAME_renormalise_renormalise ,
#define TE_SAME_weigh_weigh ,
#define TE_SAME_factor_factor ,
#define TE_SAME_choice_bias_choice_bias ,
#define TE_SAME_groups_groups ,
#define TE_SAME_groups_kept_groups_kept ,
#define TE_SAME_aux_loss_aux_loss ,
#define TE_SAME_capacity_capacity ,
#define TE_SAME_dispatch_dispatch ,
#define TE_TAKES_router_top_k TE_INTEGER
#define TE_TAKES_router_score TE_TOKEN
#define TE_TAKES_router_bias TE_INTEGER
#define TE_TAKES_router_weigh TE_TOKEN
#define TE_TAKES_router_renormalise TE_INTEGER
#define TE_TAKES_router_factor TE_NUMBER
#define TE_TAKES_router_choice_bias TE_INTEGER
#define TE_TAKES_router_groups TE_INTEGER
#define TE_TAKES_router_groups_kept TE_INTEGER
#define TE_TAKES_router_capacity TE_NUMBER
#define TE_TAKES_router_ranks TE_INTEGER
#define TE_TAKES_router_dispatch TE_TOKEN
#define TE_TAKES_router_aux_loss TE_NUMBER
#define TE_TAKES_router_z_loss TE_NUMBER
#define TE__TOP_K(op) (TE_OPTION(op, top_k, 1))
#define TE__ROUTER_GROUPS(op) (TE_OPTION(op, groups, 1))
#define TE__ROUTER_KEPT(op) (TE_OPTION(op, groups_kept, TE__ROUTER_GROUPS(op)))
/* 1 if the op has (dispatch, all_to_all), which sends the rows of tokens to the ranks of their experts; else 0. */
#define TE__EXCHANGES(op) TE_IF_MARKED(TE_JOIN1(TE__EXCHANGES_MARK_, TE_OPTION(op, dispatch, all_gather)), 1, 0)
#define TE__EXCHANGES_MARK_all_to_all ,
#define TE__KNOWS_DISPATCH(op) TE_IF_MARKED(TE_JOIN1(TE__DISPATCH_MARK_, TE_OPTION(op, dispatch, all_gather)), 1, 0)
#define TE__DISPATCH_MARK_all_gather ,
#define TE__DISPATCH_MARK_all_to_all ,
/* 1 if the option `score` of the op has a valid value, else 0. */
#define TE__KNOWS_SCORE(op) TE_IF_MARKED(TE_JOIN1(TE__SCORE_MARK_, TE_OPTION(op, score, softmax)), 1, 0)
#define TE__SCORE_MARK_softmax ,
#define TE__SCORE_MARK_sigmoid ,
#define TE__SCORE_MARK_softmax_of_chosen ,
/* The value of the option `weigh` as a number: input is 1, output is 0, any other word is -1. */
#define TE__WEIGHS_INPUT(op) \
    TE_IF_MARKED(TE_JOIN1(TE__WEIGH_INPUT_, TE_OPTION(op, weigh, output)), 1, TE__WEIGHS_OUTPUT(op))
#define TE__WEIGHS_OUTPUT(op) TE_IF_MARKED(TE_JOIN1(TE__WEIGH_OUTPUT_, TE_OPTION(op, weigh, output)), 0, -1)
#define TE__WEIGH_INPUT_input ,
#define TE__WEIGH_OUTPUT_output ,
#define TE__ROUTER_SCORE(op) TE__ROUTER_SCORE_(TE_OPTION(op, score, softmax))
#define TE__ROUTER_SCORE_(token) TE_JOIN1(TE_SCORE_, token)
/* The name of the enumerator that is the index of router r. If a combine names a router that the op list does not have,
 * the compiler reports this name as an undeclared identifier, so the name is worded as an error message. */
#define TE__ROUTER_INDEX(model, r) TE_JOIN4(te_error_combine_, r, of, model, has_no_router_before_it)
#define TE__ROUTER_TEXT(model, op) "te: " TE_STRING(model) ": " TE_CALLED(op)
#define TE_CHECK_router(model, op)                                                                                   \
    (enum {                                                                                                          \
        TE__ROUTER_INDEX(model, TE_NAME(op)) = TE_ID(model, op),                                                     \
        TE_JOIN4(, model, router, TE_NAME(op), routed) = TE_ROWS_OUT(model, op)                                      \
    };                                                                                                               \
     static_assert(TE__KNOWS_SCORE(op), TE__ROUTER_TEXT(model, op)                                                   \
                   ": score is softmax, sigmoid or softmax_of_chosen");                                              \
     static_assert(TE__EXCHANGES(op) || (int)TE_ROWS_IN(model, op) == (int)TE_ROWS_tokens,                           \
                   TE__ROUTER_TEXT(model, op) " needs a row for each token");                                        \
     static_assert(TE__KNOWS_DISPATCH(op), TE__ROUTER_TEXT(model, op) ": dispatch is all_gather or all_to_all");     \
     static_assert(!TE__EXCHANGES(op) || ((int)TE_ROWS_IN(model, op) == (int)TE_ROWS_shard &&                        \
                                          TE_HAS_OPTION(op, ranks) && (TE_ARG1(op, 0)) % 8 == 0),                    \
                   TE__ROUTER_TEXT(model, op) ": (dispatch, all_to_all) needs (ranks, N), the rows of a rank, as of" \
                   " a list with (rows, shard), and a width that is a multiple of eight");                           \
     static_assert(!TE__EXCHANGES(op) || TE__WEIGHS_INPUT(op) != 1,                                                  \
                   TE__ROUTER_TEXT(model, op) ": (weigh, input) needs (dispatch, all_gather)");                      \
     static_assert((TE_ARG2(op, 0)) >= 1 && (int)(TE_ARG2(op, 0)) <= (int)TE_ROUTER_MAX_EXPERTS,                     \
                   TE__ROUTER_TEXT(model, op) ": there are 1 to 1024 experts: (router, name, hidden, experts)");     \
     static_assert(TE__TOP_K(op) >= 1 && (int)TE__TOP_K(op) <= (int)(TE_ARG2(op, 0)) &&                              \
                       (int)TE__TOP_K(op) <= (int)TE_ROUTER_MAX_TOP_K,                                               \
                   TE__ROUTER_TEXT(model, op) ": top_k is 1 to 32, and at most the number of experts");              \
     static_assert(TE__ROUTER_GROUPS(op) >= 1 && (int)TE__ROUTER_GROUPS(op) <= (int)TE_ROUTER_MAX_GROUPS &&          \
                       (TE_ARG2(op, 0)) % (TE__ROUTER_GROUPS(op) > 0 ? TE__ROUTER_GROUPS(op) : 1) == 0,              \
                   TE__ROUTER_TEXT(model, op) ": groups is 1 to 32, and divides the number of experts");             \
     static_assert(TE__ROUTER_KEPT(op) >= 1 && TE__ROUTER_KEPT(op) <= TE__ROUTER_GROUPS(op) &&                       \
                       (TE_ARG2(op, 0)) / (TE__ROUTER_GROUPS(op) > 0 ? TE__ROUTER_GROUPS(op) : 1) *                  \
                               TE__ROUTER_KEPT(op) >= TE__TOP_K(op),                                                 \
                   TE__ROUTER_TEXT(model, op) ": groups_kept is 1 to groups, with top_k experts or more in them");   \
     static_assert(!TE_HAS_OPTION(op, ranks) ||                                                                      \
                       (TE_RANKS_OPTION(op) > 0 && TE_RANKS_OPTION(op) < 256 &&                                      \
                        (TE_ARG2(op, 0)) % (TE_RANKS_OPTION(op) > 0 ? TE_RANKS_OPTION(op) : 1) == 0),                \
                   TE__ROUTER_TEXT(model, op) ": ranks is 1 to 255, and divides the number of experts");             \
     static_assert((TE_OPTION(op, choice_bias, 1)) == 1,                                                             \
                   TE__ROUTER_TEXT(model, op) ": choice_bias is 1, or not named");                                   \
     static_assert((TE_OPTION(op, bias, 1)) == 1, TE__ROUTER_TEXT(model, op) ": bias is 1, or not named");           \
     static_assert(TE__WEIGHS_INPUT(op) >= 0, TE__ROUTER_TEXT(model, op) ": weigh is input or output");              \
     static_assert(!TE_HAS_OPTION(op, aux_loss) || (int)TE__ROUTER_SCORE(op) == (int)TE_SCORE_softmax,               \
                   TE__ROUTER_TEXT(model, op) ": aux_loss goes with (score, softmax)");)
#define TE_OPTIONS_router(op)                                                                                        \
    (te_router_options, TE_ARG2(op, 0), TE__TOP_K(op), (int)TE__ROUTER_SCORE(op), TE_OPTION(op, renormalise, 0),     \
     TE_HAS_OPTION(op, bias), TE_HAS_OPTION(op, choice_bias), TE__ROUTER_GROUPS(op), TE__ROUTER_KEPT(op),            \
     TE__WEIGHS_INPUT(op), (float)(TE_OPTION(op, factor, 1)), (float)(TE_OPTION(op, aux_loss, 0)),                   \
     (float)(TE_OPTION(op, z_loss, 0)), (double)(TE_OPTION(op, capacity, 0)))
/* ---- the steps of a router --------------------------------------------------------------------------------------- */

typedef te_status (*te_router_launch_fn)(te_context *, te_grid, const te_router_args *);
/* The kernels of a router's forward or backward. first and second: te_router_choose and te_router_gather in forward,
 * te_router_gradient and te_router_sum in backward. bias: te_router_bias_sum, or null. weigh: te_router_weigh_gradient,
 * or null. */
typedef struct te_router_kernels { te_router_launch_fn first, second, bias, weigh; } te_router_kernels;

#define TE__ROUTER_KERNEL(name, op, body, ...) \
    TE__ROUTER_KERNEL_OF(name, op, TE_ROUTER_THREADS, body, __VA_ARGS__)
/* Defines the kernel that chooses the experts. exchanges: 1 if the kernel processes only the tokens of one rank. */
#define TE__ROUTER_CHOOSE(name, op, dtype, exchanges) \
    TE__ROUTER_KERNEL_OF(name, op, TE__CHOOSE_THREADS(TE_ARG2(op, 0)), te_router_choose, TE_##dtype, exchanges)
#define TE__ROUTER_KERNEL_OF(name, op, threads, body, ...)                                                           \
    TE_FN void name##_body(const te_router_args *a, te_block b) {                                                    \
        const te_router_options o = TE_OPTIONS_VALUES(op);                                                           \
        body(a, b, o, __VA_ARGS__);                                                                                  \
    }                                                                                                                \
    TE_KERNEL(name, threads, te_router_args, name##_body(te_args, te_at))
#define TE__ROUTER_FORMATS(model, dtype, op) \
    te_formats_of((int)TE_DTYPE_IN(model, op), (int)TE_DTYPE_OUT(model, op), (int)TE_##dtype, (int)TE_##dtype)
/* The formats for those kernels of a router that read or write rows of tokens. Rows that are sent between ranks are in
 * the op list's dtype. */
#define TE__TOKEN_FORMATS(model, dtype, op)                                                                          \
    te_formats_of(TE__EXCHANGES(op) ? (int)TE_##dtype : (int)TE_DTYPE_IN(model, op), (int)TE_DTYPE_OUT(model, op),   \
                  (int)TE_##dtype, (int)TE_##dtype)
#define TE_CUSTOM_router_forward(name, model, dtype, op)                                                             \
    TE__ROUTER_CHOOSE(name##_choose, op, dtype, TE__EXCHANGES(op))                                                   \
    TE__ROUTER_KERNEL(name, op, te_router_gather, (int)TE_WIDTH_IN(model, op),                                       \
                      TE__TOKEN_FORMATS(model, dtype, op), 1)                                                        \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                       \
        const te_router_kernels kernels = {name##_choose_launch, name##_launch, 0, 0};                               \
        return te__router_step(r, s, &kernels);                                                                      \
    }
#define TE_CUSTOM_router_backward(name, model, dtype, op)                                                            \
    TE__ROUTER_KERNEL(name, op, te_router_gradient, TE_##dtype)                                                      \
    TE__ROUTER_KERNEL(name##_sum, op, te_router_sum, (int)TE_WIDTH_IN(model, op),                                    \
                      TE__TOKEN_FORMATS(model, dtype, op))                                                           \
    TE_IF_HAS(op, bias, TE__ROUTER_BIAS_KERNEL, TE__ROUTER_NO_KERNEL)(name, model, op, dtype)                        \
    TE_IF_HAS(op, weigh, TE__ROUTER_WEIGH_KERNEL, TE__ROUTER_NO_KERNEL)(name, model, op, dtype)                      \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                       \
        const te_router_kernels kernels = {name##_launch, name##_sum_launch,                                         \
                                           TE_IF_HAS(op, bias, name##_bias_launch, 0),                               \
                                           TE_IF_HAS(op, weigh, name##_weigh_launch, 0)};                            \
        return te__router_backward(r, s, &kernels);                                                                  \
    }

#define TE__ROUTER_NO_KERNEL(name, model, op, dtype)
#define TE__ROUTER_BIAS_KERNEL(name, model, op, dtype)        \
    TE_KERNEL(name##_bias, TE_ROUTER_THREADS, te_router_args, \
              te_router_bias_sum(te_args, te_at, (int)(TE_ARG2(op, 0)), TE_##dtype))
#define TE__ROUTER_WEIGH_KERNEL(name, model, op, dtype)                                               \
    TE__ROUTER_KERNEL(name##_weigh, op, te_router_weigh_gradient, (int)TE_WIDTH_IN(model, op), \
                      TE__TOKEN_FORMATS(model, dtype, op))

/* ---- the exchange of rows between ranks -------------------------------------------------------------------------- */

TE_API te_token_exchange te__exchange_of(const te_run *r, int router) {
    const te_routing t = te__routing_of(r, router);
    te_token_exchange e;
    e.group = r->tensor, e.expert = t.expert, e.tokens = r->tokens, e.experts = t.count;
    e.top_k = te__router_options_of(r->plan, router).top_k, e.width = r->plan->op[router].in, e.dtype = r->plan->dtype;
    return e;
}
/* Returns the saved input of a router, with a row for each token of all ranks. If the router exchanges rows, forward
 * has saved the rows that this rank received. */
TE_API te_value te__tokens_of(const te_run *r, int router) {
    if (!te__is_exchange(r->plan, router)) return te__input_of(r, router);
    return te__value_of(r->saved_input[router], r->plan->dtype, r->tokens, r->plan->op[router].in);
}
/* Sends rows to the ranks of the experts of `router` (te__dispatch_rows). In forward the rows that this rank receives
 * are saved for backward. */
TE_IF_USED TE_API te_status te__dispatch(te_value *v, te_run *r, int router) {
    const te_token_exchange e = te__exchange_of(r, router);
    return te__dispatch_rows(v, r, &e, r->pass == TE_FORWARD ? r->saved_input[router] : 0);
}
TE_IF_USED TE_API te_status te__return(te_value y, te_run *r, int router, te_value all, const float *more) {
    const te_token_exchange e = te__exchange_of(r, router);
    return te__return_rows(y, r, &e, all, more);
}
/* Restricts *a to the tokens of this rank. */
TE_API void te__restrict_to_rank(te_router_args *a, const te_run *r) {
    const int64_t first = te__first_row(r, TE_ROWS_shard) * a->top_k;
    a->tokens = te__rows_in(r, TE_ROWS_shard);
    a->at.expert += first, a->at.weight += first, a->at.first = 0, a->at.is_part = 0;
    if (a->dweight) a->dweight += first;
}
/* Gathers the chosen experts and their weights, so that each rank has the choices for the tokens of all ranks. */
TE_API te_status te__gather_choice(const te_router_args *a, te_run *r) {
    const int64_t n = te__rows_in(r, TE_ROWS_shard) * a->top_k, first = te__first_row(r, TE_ROWS_shard) * a->top_k;
    float *expert = (float *)(void *)a->at.expert; /* an all_gather keeps all bits */
    TE_TRY(te_group_all_gather(r->tensor, expert, expert + first, n, TE_f32, r->ctx));
    return te_group_all_gather(r->tensor, a->at.weight, a->at.weight + first, n, TE_f32, r->ctx);
}

/* ---- the steps --------------------------------------------------------------------------------------------------- */

/* Runs one of the router's GEMMs. On the host the GEMM gets scratch memory from the workspace, enough for the largest
 * number of rows. rows_are_k: 1 if the number of rows is the size k of the GEMM, 0 if it is m. */
TE_API te_status te__router_gemm(te_run *r, te_gemm *g, int rows_are_k) {
    te_gemm capacity = *g;
    void *scratch = 0;
    *(rows_are_k ? &capacity.k : &capacity.m) = te__capacity_rows(r);
    const size_t bytes = te__gemm_scratch(&capacity) * sizeof(float);
    if (bytes) TE_TRY(te__scratch(r, &scratch, bytes));
    g->scratch = (float *)scratch;
    return r->dry ? TE_OK : r->plan->product(g, r->ctx);
}
/* Sets *a to the arguments for router i, and reserves scratch memory for the choice. */
TE_API te_status te__router_args_of(te_router_args *a, te_run *r, int i) {
    const te_router_options o = te__router_options_of(r->plan, i);
    const int64_t capacity = te__capacity_rows(r), chunks = te_ceil_div(capacity, TE_ROUTER_CHUNK);
    const size_t ints = (size_t)(capacity * o.top_k + (chunks + 1) * o.experts);
    void *memory = 0;
    TE_REQUIRE(!r->batch || r->tokens * o.top_k <= INT32_MAX / 2, r->ctx, TE_ERROR_OVERFLOW,
               "%s: %lld tokens with %d experts each are too many rows for (router, %s)", r->plan->name,
               (long long)r->tokens, o.top_k, r->plan->op[i].name);
    TE_REQUIRE(o.capacity >= 0, r->ctx, TE_ERROR_VALUE, "%s: (router, %s): the capacity is %g, but must be 0 or more",
               r->plan->name, r->plan->op[i].name, o.capacity);
    memset(a, 0, sizeof *a);
    TE_TRY(te__scratch(r, &memory, ints * sizeof(int32_t)));
    a->rank = (int32_t *)memory, a->before = a->rank + capacity * o.top_k, a->count = a->before + chunks * o.experts;
    a->at = te__routing_of(r, i), a->tokens = a->all_tokens = r->tokens, a->experts = o.experts, a->top_k = o.top_k;
    a->bias = o.bias ? r->param[i][1].data : 0;
    a->choice_bias = o.choice_bias ? r->param[i][1 + o.bias].data : 0;
    return TE_OK;
}
/* Runs the forward of router i. y: receives the routed rows; if y->data is null, the routed rows are not stored, and a
 * later kernel gathers them from the rows of the tokens. Sets *x to the rows of the tokens. */
TE_IF_USED TE_API te_status te__router_forward(te_value *x, te_run *r, int i, const te_value *y,
                                               const te_router_kernels *kernels) {
    const te_router_options o = te__router_options_of(r->plan, i);
    const te_op *op = &r->plan->op[i];
    const int exchanges = te__is_exchange(r->plan, i);
    te_value rows = r->current, routing;
    te_router_args a;
    if (r->pass == TE_INFER) {
        TE_TRY(te__acquire(r, &routing, op->out_rows, op->stats, TE_f32));
        te__set_edge(r, i, routing);
    }
    TE_TRY(te__router_args_of(&a, r, i));
    *x = rows;
    TE_TRY(te__convert_value(&rows, r, r->plan->dtype));
    te_gemm g = te_gemm_of(rows.rows, o.experts, op->in);
    g.dtype = r->plan->dtype, g.out = TE_f32, g.trans_b = 1;
    g.a = rows.data, g.b = r->param[i][0].data, g.d = a.at.logits;
    TE_TRY(te__router_gemm(r, &g, 0));
    te_router_args own = a;
    if (exchanges) te__restrict_to_rank(&own, r);
    if (!r->dry) TE_TRY(kernels->first(r->ctx, te__grid_of(te_ceil_div(own.tokens, TE_ROUTER_CHUNK), 1), &own));
    if (exchanges) {
        if (!r->dry) TE_TRY(te__gather_choice(&a, r));
        TE_TRY(te__dispatch(&rows, r, i));
        *x = rows;
    }
    a.x = x->data, a.y = y->data;
    if (r->dry) return TE_OK;
    const int64_t chunks = te_ceil_div(a.tokens, TE_ROUTER_CHUNK);
    if (exchanges) TE_TRY(te_router_count_chosen_launch(r->ctx, te__grid_of(chunks, 1), &a));
    if (chunks > 1) TE_TRY(te_router_scan_launch(r->ctx, te__grid_of(te_ceil_div(o.experts, TE_ROUTER_LANES), 1), &a));
    if (chunks == 1 && !y->data) return TE_OK;
    return kernels->second(r->ctx, te__grid_of(chunks, y->data ? TE_ROUTER_SPLIT : 1), &a);
}
TE_IF_USED TE_API te_status te__router_step(te_run *r, const te_step *s, const te_router_kernels *kernels) {
    te_value x, y;
    TE_TRY(te__output(&y, r, s, s->op[0]));
    TE_TRY(te__router_forward(&x, r, s->op[0], &y, kernels));
    return te__set_current(r, y), TE_OK;
}
TE_IF_USED TE_API te_status te__router_backward(te_run *r, const te_step *s, const te_router_kernels *kernels) {
    const int i = s->op[0], needs_dx = te__needs_input_grad(r, i), exchanges = te__is_exchange(r->plan, i);
    const te_router_options o = te__router_options_of(r->plan, i);
    const te_op *op = &r->plan->op[i];
    const te_grid grid = te__grid_of(te_ceil_div(r->tokens, TE_ROUTER_WARPS), 1);
    te_param *p = r->param[i];
    te_value dlogits, x = te__tokens_of(r, i), dx = te__no_value(), more, part;
    te_router_args a;
    TE_TRY(te__router_args_of(&a, r, i));
    TE_TRY(te__acquire(r, &dlogits, op->in_rows, o.experts, r->plan->dtype));
    a.dweight = (float *)r->edge[i].data, a.x = r->current.data, a.input = x.data;
    a.loss_scale = r->batch ? r->batch->loss_scale : 0;
    te_router_args own = a;
    if (exchanges) te__restrict_to_rank(&own, r);
    own.y = dlogits.data;
    if (o.weighs_input && !r->dry) TE_TRY(kernels->weigh(r->ctx, grid, &a));
    if (exchanges && !r->dry) /* each rank has only the gradients of its own experts' weights, and 0 for all others */
        TE_TRY(te_group_reduce_scatter(r->tensor, own.dweight, a.dweight, own.tokens * o.top_k, TE_f32, r->ctx));
    if (!r->dry) TE_TRY(kernels->first(r->ctx, te__grid_of(te_ceil_div(own.tokens, TE_ROUTER_WARPS), 1), &own));
    if (kernels->bias) {
        const int blocks = (int)te_ceil_div(own.tokens, TE_ROUTER_SUM_TOKENS);
        TE_TRY(te_defer_column_sum(r, &own.dbias, &p[1], o.experts, blocks,
                                   (int)te_ceil_div(te__capacity_rows(r), TE_ROUTER_SUM_TOKENS)));
        if (!r->dry && te_is_trained(&p[1])) TE_TRY(kernels->bias(r->ctx, te__grid_of(blocks, 1), &own));
    }
    TE_TRY(te__convert_value(&x, r, r->plan->dtype));
    if (exchanges && !r->dry) /* select this rank's own rows among the received rows */
        x.data = (char *)x.data +
                 te__first_row(r, TE_ROWS_shard) * op->in * (int64_t)te_dtype_bytes(r->plan->dtype);
    te_gemm w = te_gemm_of(o.experts, op->in, own.tokens), g = te_gemm_of(own.tokens, op->in, o.experts);
    w.dtype = g.dtype = r->plan->dtype, w.out = g.out = TE_f32; /* logits = x weight^T */
    w.a = dlogits.data, w.trans_a = 1, w.b = x.data, w.c = w.d = p->grad, w.beta = te__accumulates(r, p) ? 1.0f : 0.0f;
    g.a = dlogits.data, g.b = p->data;
    const int trains = te_is_trained(p);
    if (!trains) w.d = 0;
    if (trains) TE_TRY(te__router_gemm(r, &w, 1));
    else { /* the weight is frozen: this dry call only reserves the same workspace as for a trained weight */
        const int dry = r->dry;
        r->dry = 1;
        const te_status status = te__router_gemm(r, &w, 1);
        r->dry = dry;
        TE_TRY(status);
    }
    const te_param *choice_bias = &p[1 + o.bias];
    if (o.choice_bias && !r->dry && te_is_trained(choice_bias) && !te__accumulates(r, choice_bias))
        TE_TRY(te_fill(r->ctx, choice_bias->grad, 0, (size_t)o.experts * sizeof(float)));
    if (needs_dx) {
        TE_TRY(te__gradient(&dx, r, s, i));
        TE_TRY(te__acquire(r, &more, op->in_rows, op->in, TE_f32));
        g.d = more.data;
        TE_TRY(te__router_gemm(r, &g, 0));
        if (exchanges) TE_TRY(te__acquire(r, &part, TE_ROWS_tokens, op->in, r->plan->dtype));
        else part = dx, a.more = (const float *)more.data;
        a.x = r->current.data, a.y = part.data;
        if (!r->dry && dx.data) TE_TRY(kernels->second(r->ctx, grid, &a));
        if (exchanges && (r->dry || dx.data)) TE_TRY(te__return(dx, r, i, part, (const float *)more.data));
    }
    te__set_edge(r, i, te__no_value());
    te__set_current(r, dx);
    return TE_OK;
}

#endif
