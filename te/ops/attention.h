/* attention.h -- (attention, name, heads, kv_heads, head_dim[, TE_CAUSAL or TE_FULL[, scale]])
 *
 * softmax(scale q k^T) v on packed rows [q of all heads, k of all kv_heads, v of all kv_heads]: in width
 * (heads + 2 kv_heads) head_dim, out width heads * head_dim. Grouped-query where kv_heads < heads: kv_heads must divide
 * heads. Causal unless said otherwise; scale is 1 / sqrt(head_dim) unless given. Sequences are te_batch's batch and seq.
 * Online softmax (Milakov & Gimelshein 2018; Dao 2023): memory grows with the rows, the score matrix never exists.
 */
#ifndef TE_OPS_ATTENTION_H
#define TE_OPS_ATTENTION_H

#include "../plan/run.h"                    /* te_run, te_step */
#include "../fuse/chain_run.h"              /* te_output, te_gradient */
#include "../attention/attention_kernels.h" /* TE_ATTENTION_FORWARD, TE_ATTENTION_BACKWARD */

enum { TE_FULL = 0, TE_CAUSAL = 1 };

#define TE_OP_attention (attention, 0, own)
#define TE_IN_attention(op) ((TE_ARG1(op, 0) + 2 * (TE_ARG2(op, 0))) * (TE_ARG3(op, 0)))
#define TE_OUT_attention(op, in) ((TE_ARG1(op, 0)) * (TE_ARG3(op, 0)))
#define TE_FLAGS_attention(op) (TE_SAVES_INPUT | TE_SAVES_OUTPUT)
#define TE_TRAITS_attention(model, op, in, out) TE_ARG1(op, 0), -1, {(float)(TE_ARG5(op, 0)), (float)(TE_ARG3(op, 1))}, TE_NO_PARAMS
#define TE_FIELDS_attention(op)
#define TE_DECLARE_attention(model, op)                                      \
    static_assert((TE_ARG1(op, 0)) % (TE_ARG2(op, 0)) == 0, "te: " TE_STRING(model) ": (attention, " TE_STRING(TE_NAME(op)) "): kv_heads does not divide heads");

#define TE_OWN_attention_forward(name, dtype, op, in, out)                                                         \
    TE_ATTENTION_FORWARD(name, dtype, TE_ARG1(op, 0), TE_ARG2(op, 0), TE_ARG3(op, 0), TE_ARG4(op, TE_CAUSAL))      \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__attention_forward(r, s, name##_launch); }
#define TE_OWN_attention_backward(name, dtype, op, in, out)                                                        \
    TE_ATTENTION_BACKWARD(name, dtype, TE_ARG1(op, 0), TE_ARG2(op, 0), TE_ARG3(op, 0), TE_ARG4(op, TE_CAUSAL))     \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__attention_backward(r, s, name##_launch, 0); }
/* With the gradient of the bias before it; name: that of the bias's chain. */
#define TE_OWN_ROW_attention_backward(name, dtype, op, in, out)                                                    \
    TE_ATTENTION_BACKWARD(name##_own, dtype, TE_ARG1(op, 0), TE_ARG2(op, 0), TE_ARG3(op, 0), TE_ARG4(op, TE_CAUSAL)) \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                     \
        return te__attention_bias_backward(r, s, name##_own_launch, name##_own_sum_rows, name##_launch, name##_shape(te_chain_half(r, s, 1))); \
    }

typedef te_status (*te_attention_launch_fn)(te_context *ctx, const te_attention_args *a);

TE_API te_attention_args te__attention_args(const te_run *r, const te_op *op) {
    te_attention_args a;
    memset(&a, 0, sizeof a);
    a.scale = op->value[0] != 0 ? op->value[0] : 1.0f / sqrtf(op->value[1]);
    if (r->batch) a.batch = r->batch->batch, a.seq = r->batch->seq;
    return a;
}
TE_API te_status te__attention_forward(te_run *r, const te_step *s, te_attention_launch_fn launch) {
    const int i = s->op[0];
    te_attention_args a = te__attention_args(r, &r->plan->op[i]);
    te_value y;
    TE_TRY(te_output(&y, r, s, i));
    a.out = y.p, a.lse = r->stats[i], a.qkv = r->now.p;
    if (r->dry && r->batch) TE_TRY(te__attention_check(r->ctx, &a, r->plan->op[i].stats, r->plan->name));
    if (!r->dry) TE_TRY(launch(r->ctx, &a));
    te_set_now(r, y);
    return TE_OK;
}
/* sum: see te_attention_args. */
TE_API te_status te__attention_backward(te_run *r, const te_step *s, te_attention_launch_fn launch, float *sum) {
    const int i = s->op[0];
    const te_op *op = &r->plan->op[i];
    te_attention_args a = te__attention_args(r, op);
    te_value dx, delta = te_value_of(0);
    TE_TRY(te_gradient(&dx, r, s, i));
    if (!dx.p && s->count > 1) TE_TRY(te_acquire(r, &dx, te_value_bytes(r, op->in))); /* the bias alone wants it */
    if (dx.p) {
        TE_TRY(te_acquire(r, &delta, (size_t)(r->padded * op->stats) * sizeof(float)));
        a.out = r->act[i], a.lse = r->stats[i], a.qkv = i ? r->act[i - 1] : r->x;
        a.dqkv = dx.p, a.dout = r->now.p, a.delta = (float *)delta.p, a.sum = sum;
        if (!r->dry) TE_TRY(launch(r->ctx, &a));
        te_drop(r, delta);
    }
    te_set_now(r, dx);
    return TE_OK;
}
/* And of the bias that its input comes from: the kernels leave partial sums where they can, in sequences that are no shorter than what one
 * of them sums; else the bias's own kernel does. Both take the same pieces of the workspace, for it is sized without the sequences. */
TE_API te_status te__attention_bias_backward(te_run *r, const te_step *s, te_attention_launch_fn attention, int sum_rows, te_chain_launch_fn launch, te_chain_shape k) {
    const int tiles = te_chain_tiles(k), most = te__most_blocks(r, k, tiles), sums = sum_rows && r->batch && r->batch->seq >= sum_rows;
    const int blocks = sums ? (int)(r->batch->batch * te_ceil_div(r->batch->seq, sum_rows)) : (int)te_min(te_ceil_div(r->rows, k.groups), most);
    float *sum = 0;
    te_chain c; /* at most two sums for as many rows */
    TE_TRY(te_sum_later(r, &sum, r->param[s->op[1]], r->plan->op[s->op[0]].in, blocks, (int)te_max(most, sum_rows ? 2 * r->rows / sum_rows + 1 : 0)));
    TE_TRY(te__attention_backward(r, s, attention, sums ? sum : 0));
    if (sums || r->dry) return TE_OK;
    memset(&c, 0, sizeof c);
    c.x = r->now.p, c.rows = r->rows, c.half = k.half, c.op[0].sum[0] = sum;
    return launch(r->ctx, te_grid_of((int64_t)blocks * tiles, 1), &c);
}

#endif
