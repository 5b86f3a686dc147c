/* score_bias.h -- the options of attention and cross_attention that add a learnt number to each score, and the one that
 * gives the largest logit; what they are is in te/attention/attention_bias.h and attention_top.h.
 *
 * (bias, heads), (bias_queries, Q), (bias_keys, Q): a parameter `bias`, [heads, Q, K] as a matrix of heads * Q rows,
 * for sequences of up to Q queries and K keys; longer ones are refused. (bias, shared): [Q, K], the same for all heads.
 *
 * A bias that is given and not learnt, a mask of -inf among them, is such a parameter frozen (te/plan/freeze.h), whose
 * numbers the caller writes before any call. There is none for each sequence of a batch.
 *
 * (relative_bias, buckets), (max_distance, 128): a parameter `relative_bias`, [buckets, heads]: T5's. Of a causal
 * attention all buckets are for keys in front of the query, else half of them are for those behind it. (tied, 1): the
 * table is that of another attention, te_tie(&m.b1_attention.relative_bias, &m.b0_attention.relative_bias, ctx), as
 * T5's blocks all have the first one's.
 *
 * (max_logit, 1): where a forward that saves is given an edge with the op's name, [1, heads] f32, it writes the largest
 * logit of each head there (attention_top.h).
 *
 * On CUDA the kernels of f32 and of mma.sync do all this, on Hopper, too: with a bias forward and backward leave those
 * of wgmma, with max_logit forward does.
 */
#ifndef TE_OPS_SCORE_BIAS_H
#define TE_OPS_SCORE_BIAS_H

#include "../attention/attention_kernels.h" /* TE_ATTENTION_DBIAS, TE_ATTENTION_BIAS_LINE, TE_ATTENTION_TOP */
#include "../plan/impl/call_checks.h"                  /* te__check_tensor */
#include "../plan/impl/gradients.h"              /* te_accumulates */

/* `yes` if the op says the option: the preprocessor has to know it, for it brings a parameter, or kernels. */
#define TE__IF_TABLE(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE__TABLE_OF_, TE_OPTION(op, bias, none)), yes, no)
#define TE__TABLE_OF_heads ,
#define TE__TABLE_OF_shared ,
#define TE__IF_RELATIVE(op, yes, no) TE_IF_HAS(op, relative_bias, yes, no)
#define TE__IF_SCORE_BIAS(op, yes, no) TE__IF_TABLE(op, yes, TE__IF_RELATIVE(op, yes, no))
#define TE__IF_MAX_LOGIT(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE__SINKS_, TE_OPTION(op, max_logit, 0)), yes, no)
#define TE__IF_TIED(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE__SINKS_, TE_OPTION(op, tied, 0)), yes, no)
#define TE__MAX_LOGIT(op) TE__IF_MAX_LOGIT(op, 1, 0)

/* What attention_form.h calls bias, first and second. */
#define TE__BIAS_KIND(op) TE__IF_RELATIVE(op, TE_BIAS_relative, TE_JOIN1(TE_BIAS_, TE_OPTION(op, bias, none)))
#define TE__BIAS_QUERIES(op) (TE_OPTION(op, bias_queries, 0))
#define TE__BIAS_KEYS(op) (TE_OPTION(op, bias_keys, TE__BIAS_QUERIES(op)))
#define TE__BIAS_FIRST(op) TE__IF_RELATIVE(op, (TE_OPTION(op, relative_bias, 0)), TE__BIAS_QUERIES(op))
#define TE__BIAS_SECOND(op) TE__IF_RELATIVE(op, (TE_OPTION(op, max_distance, 128)), TE__BIAS_KEYS(op))
#define TE__BIAS_FORM(op) TE__BIAS_KIND(op), TE__BIAS_FIRST(op), TE__BIAS_SECOND(op), TE__MAX_LOGIT(op)

/* The parameters of an attention: sinks, then the bias. */
#define TE__ATTENTION_PARAMS(op, heads)                                                                        \
    TE__IF_SINKS(op, TE__IF_SCORE_BIAS(op, ((sinks, 1, heads, zero), TE__BIAS_PARAM(op, heads)),               \
                                       ((sinks, 1, heads, zero))),                                             \
                 TE__IF_SCORE_BIAS(op, (TE__BIAS_PARAM(op, heads)), ((end, ~))))
#define TE__BIAS_PARAM(op, heads)                                                                              \
    TE__IF_RELATIVE(op, (relative_bias, TE__BIAS_FIRST(op), heads, TE__IF_TIED(op, tied, normal)),             \
                    (bias, TE__BIAS_TABLES(op, heads) * TE__BIAS_QUERIES(op), TE__BIAS_KEYS(op), zero))
#define TE__BIAS_TABLES(op, heads) ((int64_t)((int)(TE__BIAS_KIND(op)) == (int)TE_BIAS_heads ? (heads) : 1))

/* A side's buckets, and whether they are enough. */
#define TE__BIAS_BOTH(op) (TE__WINDOW_RIGHT(op) != 0)
#define TE__BIAS_SIDE(op) (TE__BIAS_FIRST(op) / (TE__BIAS_BOTH(op) ? 2 : 1))
#define TE__BIAS_FITS(op)                                                                                      \
    (TE__BIAS_SIDE(op) >= 2 && TE__BIAS_FIRST(op) <= 1024 && (!TE__BIAS_BOTH(op) || TE__BIAS_FIRST(op) % 2 == 0) && \
     TE__BIAS_SECOND(op) > TE__BIAS_SIDE(op) / 2 && TE__BIAS_SECOND(op) <= TE_BIAS_MAX_DISTANCE)
#define TE__TABLE_FITS(op, heads)                                                                              \
    (TE__BIAS_FIRST(op) >= 1 && TE__BIAS_SECOND(op) >= 1 && TE__BIAS_FIRST(op) <= TE_ATTENTION_MAX_SEQ &&      \
     TE__BIAS_SECOND(op) <= TE_ATTENTION_MAX_SEQ &&                                                            \
     (heads) * (int64_t)(TE__BIAS_FIRST(op)) * (TE__BIAS_SECOND(op)) <= INT32_MAX)
#define TE__CHECK_SCORE_BIAS(model, op, heads)                                                                       \
     static_assert(TE_HAS_OPTION(op, bias) == TE__IF_TABLE(op, 1, 0),                                                \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": bias takes heads or shared");                       \
     static_assert(TE_HAS_OPTION(op, relative_bias) == TE__IF_RELATIVE(op, 1, 0),                                    \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": relative_bias is a number without parentheses");    \
     static_assert(TE_HAS_OPTION(op, relative_bias) + TE_HAS_OPTION(op, bias) <= 1,                                  \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": bias and relative_bias do not go together");        \
     static_assert(TE__IF_RELATIVE(op, TE__BIAS_FITS(op), 1),                                                        \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": relative_bias needs 2 to 1024 buckets (if not "    \
                   "causal, an even number from 4 on) and a max_distance above a half of one side, up to 65536");    \
     static_assert(TE__IF_TABLE(op, TE__TABLE_FITS(op, heads), 1),                                                   \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": bias needs bias_queries (and bias_keys) of 1 or "   \
                   "more, and less than 2^31 numbers");                                                              \
     static_assert(TE__IF_TABLE(op, 1, !TE_HAS_OPTION(op, bias_queries) && !TE_HAS_OPTION(op, bias_keys)),           \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": bias_queries and bias_keys are of (bias, heads) "   \
                   "and (bias, shared)");                                                                            \
     static_assert(TE__IF_RELATIVE(op, 1, !TE_HAS_OPTION(op, max_distance) && !TE_HAS_OPTION(op, tied)),             \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": max_distance and tied are of relative_bias");       \
     static_assert((TE_OPTION(op, tied, 0)) == TE__IF_TIED(op, 1, 0),                                                \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": tied must be 0 or 1");                              \
     static_assert((TE_OPTION(op, max_logit, 0)) == TE__MAX_LOGIT(op),                                               \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": max_logit must be 0 or 1");

typedef te_status (*te_attention_launch_fn)(te_context *ctx, const te_attention_args *a);
/* The kernels of an op's bias and of its largest logit; null: it has none, or not in this pass. */
typedef struct te_score_bias {
    te_attention_line_fn line;
    te_attention_launch_fn dbias;
    int64_t (*parts)(int64_t seq);
    te_attention_top_fn top;
} te_score_bias;

/* name##_line, name##_top and name##_bias of a forward; name##_line, name##_dbias and name##_bias of a backward. */
#define TE__SCORE_BIAS_FORWARD(name, dtype, op, heads)                                                         \
    TE__IF_RELATIVE(op, TE_ATTENTION_BIAS_LINE, TE_NOTHING)(name##_line, dtype)                                \
    TE__IF_MAX_LOGIT(op, TE_ATTENTION_TOP, TE_NOTHING)(name##_top, heads)                                      \
    static const te_score_bias name##_bias = {TE__IF_RELATIVE(op, name##_line_launch, 0), 0, 0,                \
                                              TE__IF_MAX_LOGIT(op, name##_top_launch, 0)};
#define TE__SCORE_BIAS_BACKWARD(name, dtype, op, heads, kv_heads, head_dim, form)                              \
    TE__IF_RELATIVE(op, TE_ATTENTION_BIAS_LINE, TE_NOTHING)(name##_line, dtype)                                \
    TE__IF_SCORE_BIAS(op, TE_ATTENTION_DBIAS, TE_NOTHING)(name##_dbias, dtype, heads, kv_heads, head_dim, form) \
    static const te_score_bias name##_bias = {TE__IF_RELATIVE(op, name##_line_launch, 0),                      \
                                              TE__IF_SCORE_BIAS(op, name##_dbias_launch, 0),                   \
                                              TE__IF_SCORE_BIAS(op, name##_dbias_parts, 0), 0};

typedef struct te_attention_options {
    int heads, kv_heads, head_dim, causal;
    float scale; /* 0: 1 / sqrt(head_dim) */
    int window_left, window_right; /* -1: no bound; causal: right is 0 */
    float softcap;                 /* 0: none */
    int alibi;                     /* 1: with biases */
    int sinks, bias, bias_first, bias_second, max_logit; /* attention_form.h */
    int value_dim;                                       /* the size of a head of v */
} te_attention_options;

/* The op's bias, null if it has none or sizes alone are asked for. */
TE_API te_param *te__score_bias_param(const te_run *r, const te_op *op) {
    const te_attention_options *o = (const te_attention_options *)op->options;
    te_param *first = r->param[op - r->plan->op];
    return o->bias && first ? first + (o->sinks ? 1 : 0) : 0;
}
/* In front of a forward or backward: a.bias, and a relative one by distance. */
TE_API te_status te__score_bias_begin(te_attention_args *a, te_run *r, const te_op *op, const te_score_bias *k,
                                      const char *name) {
    const te_attention_options *o = (const te_attention_options *)op->options;
    const te_param *p = te__score_bias_param(r, op);
    if (!o->bias) return TE_OK;
    a->bias = p ? p->data : 0;
    if (k->line) {
        void *line = 0;
        TE_TRY(te_scratch(r, &line, (size_t)o->heads * (size_t)(2 * o->bias_second + 1) * sizeof(float)));
        a->line = (float *)line;
    }
    if (r->dry) {
        const int cross = op->edge >= 0;
        if (!r->batch) return TE_OK;
        return te__attention_check_bias(r->ctx, a, cross, o->bias, o->bias_first, o->bias_second, name);
    }
    if (!k->line) return TE_OK;
    return te__attention_bias_line(r->ctx, k->line, a, o->heads, o->bias_first, o->bias_second, o->window_right != 0);
}
/* Behind a backward that has left delta: the bias's gradient. A table's is written where it is wanted; a relative one's
 * parts are added up at once, for blocks that share a table must not do so side by side. */
TE_IF_USED TE_API te_status te__score_bias_end(te_attention_args *a, te_run *r, const te_op *op,
                                               const te_score_bias *k) {
    const te_attention_options *o = (const te_attention_options *)op->options;
    const te_param *p = te__score_bias_param(r, op);
    const int width = o->bias_first * o->heads, wanted = !r->dry && p && te_is_trained(p);
    if (!o->bias) return TE_OK;
    if (o->bias != TE_BIAS_relative) {
        a->dbias = p ? p->grad : 0, a->accumulate = p && te_accumulates(r, p);
        return wanted ? k->dbias(r->ctx, a) : TE_OK;
    }
    void *parts = 0;
    TE_TRY(te_scratch(r, &parts, (size_t)k->parts(te_capacity_rows(r)) * (size_t)width * sizeof(float)));
    if (!wanted) return TE_OK;
    te_sum_args sums;
    memset(&sums, 0, sizeof sums);
    a->dbias = (float *)parts;
    TE_TRY(k->dbias(r->ctx, a));
    te_sum_job *j = &sums.job[0];
    j->partial = a->dbias, j->total = p->grad, j->width = width, j->count = (int)k->parts(a->seq);
    j->accumulate = te_accumulates(r, p);
    return te_sum_rows_launch(r->ctx, te_grid_of(te_ceil_div(width, TE_SUM_LANES), 1), &sums);
}

/* (max_logit, 1): where the caller wants it, in a forward that saves; *top null: nobody does. */
TE_API te_status te__max_logit_begin(te_attention_args *a, float **top, te_run *r, const te_op *op) {
    const te_attention_options *o = (const te_attention_options *)op->options;
    void *rows = 0;
    *top = 0;
    if (!o->max_logit || r->pass != TE_FORWARD) return TE_OK;
    TE_TRY(te_scratch(r, &rows, (size_t)(te_capacity_rows(r) * o->heads) * sizeof(float)));
    const te_edge *e = r->saved ? te__edge_named(r, op->name) : 0;
    if (!e) return TE_OK;
    TE_TRY(te__check_tensor(r->plan->name, e->name, e->value, te_value_of(0, TE_f32, 1, o->heads), r->ctx));
    a->row_top = (float *)rows, *top = (float *)e->value.data;
    return TE_OK;
}

#endif
