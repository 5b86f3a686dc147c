/* score_bias.h -- the options of attention and cross_attention that add a learnt bias to each score, and the option
 * max_logit, which reports the largest logit of each head. The formulas are in te/attention/attention_options.h and
 * attention_kernels.h.
 *
 *     (attention, a, 12, 12, 64, (bias, heads), (bias_queries, 512))                 // a table for each head
 *     (attention, a, 12, 12, 64, (relative_bias, 32), (max_distance, 128))           // T5's
 *
 * (bias, heads), (bias_queries, Q), (bias_keys, K): the op has a parameter `bias`, [heads, Q, K], stored as a matrix of
 * heads * Q rows, for sequences of up to Q queries and K keys; a longer sequence is an error. If bias_keys is not
 * given, K is Q. With (bias, shared) the parameter is a single table, [Q, K], which all heads use. For a bias that is
 * not learnt, such as a mask of -inf, freeze the parameter (te/plan/freeze.h) and fill it before the first call. All
 * sequences of a batch have the same bias.
 *
 * (relative_bias, buckets), (max_distance, 128): the op has a parameter `relative_bias`, [buckets, heads]. In causal
 * attention all buckets are for keys before the query; otherwise half of the buckets are for keys after the query. With
 * (tied, 1) the op uses the parameter of another attention, as in T5, where all blocks use the parameter of the first
 * block: te_tie(&m.b1_attention.relative_bias, &m.b0_attention.relative_bias, ctx).
 *
 * (max_logit, 1): a forward that saves for backward writes the largest logit of each head to a tensor [1, heads] in
 * f32, if the caller has passed such a tensor in te_batch.edges under the op's name.
 *
 * On CUDA only the kernels for f32 and for sm_80 support these options, so these kernels run on sm_90 as well: with a
 * bias, neither forward nor backward uses wgmma; with max_logit, forward does not use wgmma.
 */
#ifndef TE_OPS_SCORE_BIAS_H
#define TE_OPS_SCORE_BIAS_H

#include "../attention/attention_kernels.h" /* TE_ATTENTION_DBIAS, TE_ATTENTION_RELATIVE_BIAS, TE_ATTENTION_MAX_LOGIT */
#include "../plan/impl/call_checks.h"                  /* te__check_tensor */
#include "../plan/impl/gradients.h"              /* te__accumulates */

/* Each macro TE__IF_.. expands to `yes` if the op has the option that the macro is named after, else to `no`. The
 * preprocessor must decide this, because such an option adds a parameter or kernels. */
#define TE__IF_BIAS_TABLE(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE__BIAS_TABLE_OF_, TE_OPTION(op, bias, none)), yes, no)
#define TE__BIAS_TABLE_OF_heads ,
#define TE__BIAS_TABLE_OF_shared ,
#define TE__IF_RELATIVE(op, yes, no) TE_IF_HAS(op, relative_bias, yes, no)
#define TE__IF_SCORE_BIAS(op, yes, no) TE__IF_BIAS_TABLE(op, yes, TE__IF_RELATIVE(op, yes, no))
#define TE__IF_MAX_LOGIT(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE__ENABLED_, TE_OPTION(op, max_logit, 0)), yes, no)
#define TE__IF_TIED(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE__ENABLED_, TE_OPTION(op, tied, 0)), yes, no)
#define TE__MAX_LOGIT(op) TE__IF_MAX_LOGIT(op, 1, 0)

/* TE__BIAS_VARIANT, below, collects the constants for which an op's kernels are compiled: the kind of bias, bias_dim0,
 * bias_dim1 and max_logit (te/attention/attention_options.h). For a table of biases, bias_dim0 is the number of queries
 * and bias_dim1 the number of keys. For a relative bias, bias_dim0 is the number of buckets and bias_dim1 is
 * max_distance. */
#define TE__BIAS_KIND(op) TE__IF_RELATIVE(op, TE_BIAS_relative, TE_JOIN1(TE_BIAS_, TE_OPTION(op, bias, none)))
#define TE__BIAS_QUERIES(op) (TE_OPTION(op, bias_queries, 0))
#define TE__BIAS_KEYS(op) (TE_OPTION(op, bias_keys, TE__BIAS_QUERIES(op)))
#define TE__BIAS_DIM0(op) TE__IF_RELATIVE(op, (TE_OPTION(op, relative_bias, 0)), TE__BIAS_QUERIES(op))
#define TE__BIAS_DIM1(op) TE__IF_RELATIVE(op, (TE_OPTION(op, max_distance, 128)), TE__BIAS_KEYS(op))
#define TE__BIAS_VARIANT(op) TE__BIAS_KIND(op), TE__BIAS_DIM0(op), TE__BIAS_DIM1(op), TE__MAX_LOGIT(op)

/* The list of an attention's parameters: sinks and the score bias, in this order. An op lists only the parameters that
 * it has. */
#define TE__ATTENTION_PARAMS(op, heads)                                                                        \
    TE__IF_SINKS(op, TE__IF_SCORE_BIAS(op, ((sinks, 1, heads, zero), TE__BIAS_PARAM(op, heads)),               \
                                       ((sinks, 1, heads, zero))),                                             \
                 TE__IF_SCORE_BIAS(op, (TE__BIAS_PARAM(op, heads)), ((end, ~))))
#define TE__BIAS_PARAM(op, heads)                                                                 \
    TE__IF_RELATIVE(op, (relative_bias, TE__BIAS_DIM0(op), heads, TE__IF_TIED(op, tied, normal)), \
                    (bias, TE__BIAS_TABLES(op, heads) * TE__BIAS_QUERIES(op), TE__BIAS_KEYS(op), zero))
#define TE__BIAS_TABLES(op, heads) ((int64_t)((int)(TE__BIAS_KIND(op)) == (int)TE_BIAS_heads ? (heads) : 1))

/* TE__BUCKETS_PER_SIDE: the number of buckets for the keys before the query; bidirectional attention has the same
 * number of buckets for the keys after the query. The macros whose names contain FITS say whether the op's sizes are
 * valid. */
#define TE__BIAS_BIDIRECTIONAL(op) (TE__WINDOW_RIGHT(op) != 0)
#define TE__BUCKETS_PER_SIDE(op) (TE__BIAS_DIM0(op) / (TE__BIAS_BIDIRECTIONAL(op) ? 2 : 1))
#define TE__RELATIVE_BIAS_FITS(op)                                  \
    (TE__BUCKETS_PER_SIDE(op) >= 2 && TE__BIAS_DIM0(op) <= 1024 &&  \
     (!TE__BIAS_BIDIRECTIONAL(op) || TE__BIAS_DIM0(op) % 2 == 0) && \
     TE__BIAS_DIM1(op) > TE__BUCKETS_PER_SIDE(op) / 2 && TE__BIAS_DIM1(op) <= TE_BIAS_MAX_DISTANCE)
#define TE__BIAS_TABLE_FITS(op, heads)                                                                \
    (TE__BIAS_DIM0(op) >= 1 && TE__BIAS_DIM1(op) >= 1 && TE__BIAS_DIM0(op) <= TE_ATTENTION_MAX_SEQ && \
     TE__BIAS_DIM1(op) <= TE_ATTENTION_MAX_SEQ &&                                                     \
     (heads) * (int64_t)(TE__BIAS_DIM0(op)) * (TE__BIAS_DIM1(op)) <= INT32_MAX)
#define TE__CHECK_SCORE_BIAS(model, op, heads)                                                                     \
     static_assert(TE_HAS_OPTION(op, bias) == TE__IF_BIAS_TABLE(op, 1, 0),                                         \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": bias takes heads or shared");                     \
     static_assert(TE_HAS_OPTION(op, relative_bias) == TE__IF_RELATIVE(op, 1, 0),                                  \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": relative_bias is a number without parentheses");  \
     static_assert(TE_HAS_OPTION(op, relative_bias) + TE_HAS_OPTION(op, bias) <= 1,                                \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": bias and relative_bias do not go together");      \
     static_assert(TE__IF_RELATIVE(op, TE__RELATIVE_BIAS_FITS(op), 1),                                             \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": relative_bias needs 2 to 1024 buckets (if not "   \
                   "causal, an even number from 4 on) and a max_distance above a half of one side, up to 65536");  \
     static_assert(TE__IF_BIAS_TABLE(op, TE__BIAS_TABLE_FITS(op, heads), 1),                                       \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": bias needs bias_queries (and bias_keys) of 1 or " \
                   "more, and less than 2^31 numbers");                                                            \
     static_assert(TE__IF_BIAS_TABLE(op, 1, !TE_HAS_OPTION(op, bias_queries) && !TE_HAS_OPTION(op, bias_keys)),    \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": bias_queries and bias_keys are of (bias, heads) " \
                   "and (bias, shared)");                                                                          \
     static_assert(TE__IF_RELATIVE(op, 1, !TE_HAS_OPTION(op, max_distance) && !TE_HAS_OPTION(op, tied)),           \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": max_distance and tied are of relative_bias");     \
     static_assert((TE_OPTION(op, tied, 0)) == TE__IF_TIED(op, 1, 0),                                              \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": tied must be 0 or 1");                            \
     static_assert((TE_OPTION(op, max_logit, 0)) == TE__MAX_LOGIT(op),                                             \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": max_logit must be 0 or 1");

typedef te_status (*te_attention_launch_fn)(te_context *ctx, const te_attention_args *a);
/* The kernels that an op needs for its score bias and for the option max_logit. A member is null if the op lacks the
 * member's option, or if this pass does not need the kernel. */
typedef struct te_score_bias_kernels {
    te_relative_bias_fn relative;
    te_attention_launch_fn dbias;
    /* returns the number of partial sums of a relative bias's gradient, for sequences of length seq */
    int64_t (*parts)(int64_t seq);
    te_max_logit_fn max_logit;
} te_score_bias_kernels;

/* TE__SCORE_BIAS_FORWARD and _BACKWARD declare the kernels that a pass needs for the bias (forward: name##_relative and
 * name##_max_logit; backward: name##_relative and name##_dbias), and name##_bias, the struct with these kernels. */
#define TE__SCORE_BIAS_FORWARD(name, dtype, op, heads)                                                      \
    TE__IF_RELATIVE(op, TE_ATTENTION_RELATIVE_BIAS, TE_NOTHING)(name##_relative, dtype)                     \
    TE__IF_MAX_LOGIT(op, TE_ATTENTION_MAX_LOGIT, TE_NOTHING)(name##_max_logit, heads)                       \
    static const te_score_bias_kernels name##_bias = {TE__IF_RELATIVE(op, name##_relative_launch, 0), 0, 0, \
                                              TE__IF_MAX_LOGIT(op, name##_max_logit_launch, 0)};
#define TE__SCORE_BIAS_BACKWARD(name, dtype, op, heads, kv_heads, head_dim, variant)                               \
    TE__IF_RELATIVE(op, TE_ATTENTION_RELATIVE_BIAS, TE_NOTHING)(name##_relative, dtype)                            \
    TE__IF_SCORE_BIAS(op, TE_ATTENTION_DBIAS, TE_NOTHING)(name##_dbias, dtype, heads, kv_heads, head_dim, variant) \
    static const te_score_bias_kernels name##_bias = {TE__IF_RELATIVE(op, name##_relative_launch, 0),              \
                                              TE__IF_SCORE_BIAS(op, name##_dbias_launch, 0),                       \
                                              TE__IF_SCORE_BIAS(op, name##_dbias_parts, 0), 0};

/* Returns the parameter that holds the bias of the op; null if the op has no bias, or in a dry run that only measures
 * sizes. */
TE_API te_param *te__score_bias_param(const te_run *r, const te_op *op) {
    const te_attention_options *o = (const te_attention_options *)op->options;
    te_param *first = r->param[op - r->plan->op];
    return o->bias && first ? first + (o->sinks ? 1 : 0) : 0;
}
/* Called before a forward or backward: sets a->bias, and expands a relative bias to one value for each head and
 * distance, in a->bias_by_distance. */
TE_API te_status te__score_bias_prepare(te_attention_args *a, te_run *r, const te_op *op,
                                        const te_score_bias_kernels *k, const char *name) {
    const te_attention_options *o = (const te_attention_options *)op->options;
    const te_param *p = te__score_bias_param(r, op);
    if (!o->bias) return TE_OK;
    a->bias = p ? p->data : 0;
    if (k->relative) {
        void *by_distance = 0;
        TE_TRY(te__scratch(r, &by_distance, (size_t)o->heads * (size_t)(2 * o->bias_dim1 + 1) * sizeof(float)));
        a->bias_by_distance = (float *)by_distance;
    }
    if (r->dry) {
        const int cross = op->edge >= 0;
        if (!r->batch) return TE_OK;
        return te__attention_check_bias(r->ctx, a, cross, o->bias, o->bias_dim0, o->bias_dim1, name);
    }
    if (!k->relative) return TE_OK;
    return te__attention_relative_bias(r->ctx, k->relative, a, o->heads, o->bias_dim0, o->bias_dim1,
                                       o->window_right != 0);
}
/* Computes the gradient of the bias. Called after the attention's backward, which has written a->delta. The gradient of
 * a table of biases is stored directly in the parameter's gradient. The gradient of a relative bias is computed as
 * partial sums, which this function adds up right away. These sums are not deferred to the launch that adds up the
 * partial sums of other ops, because several attentions may be tied to one parameter, and in one launch they would add
 * to the parameter's gradient concurrently. */
TE_IF_USED TE_API te_status te__score_bias_backward(te_attention_args *a, te_run *r, const te_op *op,
                                               const te_score_bias_kernels *k) {
    const te_attention_options *o = (const te_attention_options *)op->options;
    const te_param *p = te__score_bias_param(r, op);
    const int width = o->bias_dim0 * o->heads, wanted = !r->dry && p && te_is_trained(p);
    if (!o->bias) return TE_OK;
    if (o->bias != TE_BIAS_relative) {
        a->dbias = p ? p->grad : 0, a->accumulate = p && te__accumulates(r, p);
        return wanted ? k->dbias(r->ctx, a) : TE_OK;
    }
    void *parts = 0;
    TE_TRY(te__scratch(r, &parts, (size_t)k->parts(te__capacity_rows(r)) * (size_t)width * sizeof(float)));
    if (!wanted) return TE_OK;
    te_sum_args sums;
    memset(&sums, 0, sizeof sums);
    a->dbias = (float *)parts;
    TE_TRY(k->dbias(r->ctx, a));
    te_sum_job *j = &sums.job[0];
    j->partial = a->dbias, j->total = p->grad, j->width = width, j->count = (int)k->parts(a->seq);
    j->accumulate = te__accumulates(r, p);
    return te_sum_rows_launch(r->ctx, te__grid_of(te_ceil_div(width, TE_SUM_LANES), 1), &sums);
}

/* For (max_logit, 1), in a forward that saves for backward: sets *max_logit to the caller's tensor, or to null if the
 * caller has passed none. */
TE_API te_status te__max_logit_begin(te_attention_args *a, float **max_logit, te_run *r, const te_op *op) {
    const te_attention_options *o = (const te_attention_options *)op->options;
    void *rows = 0;
    *max_logit = 0;
    if (!o->max_logit || r->pass != TE_FORWARD) return TE_OK;
    TE_TRY(te__scratch(r, &rows, (size_t)(te__capacity_rows(r) * o->heads) * sizeof(float)));
    const te_edge *e = r->saved ? te__edge_named(r, op->name) : 0;
    if (!e) return TE_OK;
    TE_TRY(te__check_tensor(r->plan->name, e->name, e->value, te__value_of(0, TE_f32, 1, o->heads), r->ctx));
    a->row_max_logit = (float *)rows, *max_logit = (float *)e->value.data;
    return TE_OK;
}

#endif
