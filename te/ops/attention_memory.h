/* attention_memory.h -- keys and values of a cross_attention, which a fork or an input keeps, and their gradient. */
#ifndef TE_OPS_ATTENTION_MEMORY_H
#define TE_OPS_ATTENTION_MEMORY_H

#include "../attention/attention_args.h" /* te_attention_args */
#include "load.h"                        /* te__load_add */
#include "score_bias.h"                  /* te_attention_options */

/* Of a cross_attention: keys and values, and how many there are. */
TE_API te_status te__attention_kv(te_attention_args *a, te_run *r, const te_op *op) {
    const te_attention_options *o = (const te_attention_options *)op->options;
    te_value kv;
    if (op->edge < 0) return TE_OK;
    TE_TRY(te_fork_value_of_width(&kv, r, op, o->kv_heads * (o->head_dim + o->value_dim)));
    TE_TRY(te_convert_value(&kv, r, r->plan->dtype));
    a->kv = kv.data, a->kv_seq = r->batch ? (int)(kv.rows / a->batch) : 0;
    return TE_OK;
}
/* Their gradient, `made` by the kernels in the list's own format, on its way to `to`, the caller's tensor or what the
 * fork gets. was: what readers of the same fork that stand behind this one in the list have left. */
typedef struct te__attention_dkv { te_value to, made, was; } te__attention_dkv;
TE_API te_status te__attention_dkv_begin(te__attention_dkv *g, te_run *r, const te_op *op) {
    const te_attention_options *o = (const te_attention_options *)op->options;
    g->to = g->made = g->was = te_no_value();
    if (op->edge < 0) return TE_OK;
    const te_op *fork = &r->plan->op[op->edge];
    const int first = te_is_last_use(r->plan, (int)(op - r->plan->op)), is_input = (fork->flags & TE_IS_INPUT) != 0;
    const te_value like = te_fork_value_like(r, op, o->kv_heads * (o->head_dim + o->value_dim));
    if (is_input) TE_TRY(te_edge_tensor(&g->to, r, fork, like, 1));
    else TE_TRY(te_acquire(r, &g->to, fork->out_rows, like.cols, like.dtype));
    if (!g->to.data) return TE_OK; /* nobody wants it */
    if (!first) g->was = is_input ? g->to : r->edge[op->edge];
    if (first) return te_begin_converted(&g->made, &g->to, r, r->plan->dtype);
    g->made = te_value_of(0, r->plan->dtype, like.rows, like.cols);
    return te_scratch(r, &g->made.data, (size_t)(te_capacity_rows(r) * like.cols) * te_dtype_bytes(g->made.dtype));
}
TE_API te_status te__attention_dkv_end(te__attention_dkv *g, te_run *r, const te_op *op, te__load_launch_fn add) {
    if (!g->to.data) return TE_OK;
    if (!g->was.data) TE_TRY(te_end_converted(&g->to, &g->made, r));
    else {
        TE_TRY(te_convert_value(&g->made, r, g->to.dtype));
        TE_TRY(te__load_add(r, g->to, g->was.data, g->made, add));
    }
    if (!(r->plan->op[op->edge].flags & TE_IS_INPUT)) te_set_edge(r, op->edge, g->to);
    return TE_OK;
}

#endif
