/* attention_cp.h -- attention over sequences that are split over the ranks of a context group (te/context_parallel.h),
 * in the forms gather and ring. The form all_to_all is in attention_cp_heads.h.
 *
 * With n ranks a sequence is split into 2 * n chunks of the same length. Rank r has chunks r and 2 * n - 1 - r
 * (te_cp_position), so that under a causal mask all ranks have the same work. The sequences of a batch are processed
 * one after the other. The kernels are those of cross-attention. In one launch the queries are rows of one of this
 * rank's chunks, and the keys are consecutive rows. The causal mask of these kernels puts the last query at the
 * position of the last key, which is right if the last keys belong to the queries' own chunk. Keys of earlier chunks
 * need no causal mask.
 *
 *   gather   Forward and backward gather the keys and values of the chunks that the mask lets a rank see. Backward
 *            sends the partial gradients of other ranks' chunks back to these ranks.
 *   ring     Keys and values arrive on a second stream while the rank computes with those received in the previous
 *            step. Partial outputs are merged by their log-sum-exp (te_cp_merge). Without a window, blocks of keys and
 *            values travel from rank r to r + 1, and in backward their gradients travel along, in f32. With a window,
 *            step d uses the keys d chunks before the queries. The rank that has these keys sends only the rows inside
 *            the window, and receives the gradients of these rows.
 *
 * All sums have a fixed order, so that results are the same in every run: gather adds partial gradients in the order of
 * the ranks, and ring in the order of its steps.
 */
#ifndef TE_ATTENTION_CP_H
#define TE_ATTENTION_CP_H

#include "../../core/rank_group.h" /* te_group_exchange */
#include "../attention.h"   /* te_cp_kernels, te_attention_args */

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

enum { TE_CP_THREADS = TE_CUDA ? 256 : 1, TE_CP_VECTORS = 1024 }; /* TE_CP_VECTORS: number of vectors of eight elements
                                                                   * that one block computes */

/* Computes y = x[0] + x[1] + .. or, with `accumulate`, y = y + x[0] + .., added in f32 in this order. With a single x,
 * the kernel copies x to y. x and y may have different row strides, so the kernel can copy some columns of a wider
 * matrix. */
typedef struct te_cp_sum_args {
    void *y;
    const void *x[TE_CP_MAX_RANKS];
    int64_t y_width, x_width; /* the row strides, in elements */
    int rows, cols, count, accumulate, aligned;
    te_dtype y_dtype, x_dtype;
} te_cp_sum_args;
/* Memory traffic: each x is read once, y is written once and, with `accumulate`, read once. */
TE_FN void te__cp_sum_block(const te_cp_sum_args *a, te_block b) {
    int group;
    const te_lanes g = te_lanes_here(TE_CP_THREADS, &group);
    const int vectors = (a->cols + 7) / 8;
    const int64_t first = (int64_t)b.x * TE_CP_VECTORS, all = (int64_t)a->rows * vectors;
    for (int64_t i = first + g.id; i < te_min(all, first + TE_CP_VECTORS); i += g.count) {
        const int64_t row = i / vectors;
        const int c = (int)(i % vectors) * 8, n = a->cols - c < 8 ? a->cols - c : 8;
        float v[8], sum[8] = {0};
        if (a->accumulate) te_load8_coherent(sum, a->y, row * a->y_width + c, n, a->aligned, a->y_dtype);
        for (int k = 0; k < a->count; k++) {
            te_load8(v, a->x[k], row * a->x_width + c, n, a->aligned, a->x_dtype);
            TE_UNROLL for (int j = 0; j < 8; j++) sum[j] += v[j];
        }
        te_store8(a->y, row * a->y_width + c, sum, n, a->aligned, a->y_dtype);
    }
}
TE_KERNEL(te_cp_sum, TE_CP_THREADS, te_cp_sum_args, te__cp_sum_block(te_args, te_at))

/* Merges the attention output of one block of keys (part) into the merged output of all earlier blocks (O):
 *     lse' = log(exp(lse) + exp(part_lse)), O' = exp(lse - lse') * O + exp(part_lse - lse') * part */
typedef struct te_cp_merge_args {
    float *sum;            /* [rows, heads * dim]: on entry O, the merged output of the earlier blocks; on return O' */
    const float *lse;      /* [heads, rows]: the log-sum-exp over the earlier blocks */
    const void *part;      /* [part_rows, heads * dim]: the output of this block for rows part_first to part_first +
                            * part_rows - 1. The queries of all other rows see no key of this block */
    const float *part_lse; /* [heads, part_rows] */
    void *out;             /* [rows, heads * dim]: receives a copy of O' after the last block; null for the other
                            * blocks */
    float *new_lse;        /* [heads, rows], distinct from lse */
    int rows, heads, dim, is_first; /* is_first: 1 if there are no earlier blocks */
    int part_first, part_rows;
    te_dtype dtype; /* of part and out */
} te_cp_merge_args;
TE_FN void te__cp_merge_block(const te_cp_merge_args *a, te_block b) {
    int group;
    const te_lanes g = te_lanes_here(TE_CP_THREADS, &group);
    const int vectors = (a->dim + 7) / 8, aligned = a->dim % 8 == 0;
    const int64_t first = (int64_t)b.x * TE_CP_VECTORS, all = (int64_t)a->rows * a->heads * vectors;
    for (int64_t i = first + g.id; i < te_min(all, first + TE_CP_VECTORS); i += g.count) {
        const int head = (int)(i / vectors % a->heads), row = (int)(i / vectors / a->heads);
        const int c = (int)(i % vectors) * 8, n = a->dim - c < 8 ? a->dim - c : 8;
        const int64_t at = ((int64_t)row * a->heads + head) * a->dim + c, of_row = (int64_t)head * a->rows + row;
        const int in = row - a->part_first, is_seen = in >= 0 && in < a->part_rows;
        const float part_lse = is_seen ? a->part_lse[(int64_t)head * a->part_rows + in] : -INFINITY;
        const float lse = a->is_first ? part_lse : a->lse[of_row];
        if (!is_seen && c == 0) a->new_lse[of_row] = lse;
        if (!is_seen && !a->out) continue;
        const float high = fmaxf(lse, part_lse), low = fminf(lse, part_lse);
        const float all_lse = a->is_first ? part_lse : high + log1pf(expf(low - high));
        const float old_factor = a->is_first ? 0.0f : expf(lse - all_lse);
        const float factor = a->is_first ? 1.0f : expf(part_lse - all_lse);
        float v[8] = {0}, sum[8] = {0};
        if (!a->is_first) te_load8_coherent(sum, a->sum, at, n, aligned, TE_f32);
        if (is_seen) te_load8(v, a->part, at - (int64_t)a->part_first * a->heads * a->dim, n, aligned, a->dtype);
        TE_UNROLL for (int j = 0; j < 8; j++) sum[j] = sum[j] * old_factor + v[j] * factor;
        te_store8(a->sum, at, sum, n, aligned, TE_f32);
        if (a->out) te_store8(a->out, at, sum, n, aligned, a->dtype);
        if (c == 0) a->new_lse[of_row] = all_lse;
    }
}
TE_KERNEL(te_cp_merge, TE_CP_THREADS, te_cp_merge_args, te__cp_merge_block(te_args, te_at))

/* ---- a call ------------------------------------------------------------------------------------------------------ */

/* The sizes of one attention call, and the workspace for one sequence. In the shapes below, L is the number of rows of
 * a sequence on this rank, c = L / 2 the rows of a chunk, n the number of ranks, and Q, KV and O are the numbers of
 * columns of q, of k and v together, and of the output. */
typedef struct te__cp_call {
    te_run *r;
    const te_attention_args *a; /* the arguments for the whole batch */
    const te_cp_kernels *k;
    const te_group *group;
    int n, rank, batch, chunk; /* n: ranks; chunk: rows of a chunk */
    int heads, value_dim, left, is_causal;
    int q_cols, kv_cols, o_cols;
    te_dtype dtype;
    size_t size; /* bytes of an element */
    int is_backward;
    char *q;                 /* [L, Q] */
    char *kv;                /* gather: [n * L, KV], keys and values in the order of their positions; later the partial
                              * gradients that this rank receives. ring: blocks [L, KV] (te__cp_block) */
    char *dkv;               /* backward: the gradient of keys and values. gather: [n * L, KV], the part that this
                              * rank's second chunk of queries contributes; ring: [L, KV], the part of one launch */
    char *dkv_first;         /* gather, backward: [n * L, KV], the part that this rank's first chunk of queries
                              * contributes */
    char *dq;                /* backward: [L, Q] */
    float *dq_sum, *dkv_sum; /* ring, backward: dq_sum is the sum of dq, [L, Q]; dkv_sum consists of blocks of [L, KV]
                              * (te__cp_block_sum) */
    char *part;              /* ring, forward: the output of one launch, [c, O] */
    float *sum, *lse;        /* ring, forward: sum is te_cp_merge_args.sum, [L, O]; lse is [2, 3, heads, c]: for each
                              * chunk of queries, the lse of the last launch and two buffers for the merged lse, which
                              * successive merges use alternately. ring with a window, backward: lse is [2, heads, c],
                              * lse and delta of a launch */
    void *scratch;           /* scratch memory of the kernels of backward */
} te__cp_call;

TE_API te__cp_call te__cp_call_of(te_run *r, const te_op *op, const te_attention_args *a, const te_cp_kernels *k) {
    const te_attention_options *o = (const te_attention_options *)op->options;
    te__cp_call c;
    memset(&c, 0, sizeof c);
    c.r = r, c.a = a, c.k = k, c.group = te_cp_group(r->ctx), c.n = c.group->size, c.rank = c.group->rank;
    if (r->batch) c.batch = r->batch->batch, c.chunk = r->batch->seq / 2;
    c.heads = o->heads, c.value_dim = o->value_dim;
    c.left = o->window_left, c.is_causal = o->causal;
    c.q_cols = o->heads * o->head_dim, c.kv_cols = o->kv_heads * (o->head_dim + o->value_dim);
    c.o_cols = o->heads * o->value_dim, c.dtype = r->plan->dtype, c.size = te_dtype_bytes(c.dtype);
    c.is_backward = r->pass == TE_BACKWARD && a->dqkv;
    return c;
}
/* Reserves workspace for a matrix [rows, cols] of elements of `size` bytes, and sets *p to the matrix's address. */
TE_API te_status te__cp_take(te__cp_call *c, char **p, int64_t rows, int64_t cols, size_t size) {
    void *memory = 0;
    TE_TRY(te__scratch(c->r, &memory, (size_t)(rows * cols) * size));
    *p = (char *)memory;
    return TE_OK;
}
/* Returns the index, within the sequence, of chunk j (0 or 1) of a rank. */
TE_API int te__cp_chunk(const te__cp_call *c, int rank, int j) { return j ? 2 * c->n - 1 - rank : rank; }
/* Returns the rank that has a chunk. */
TE_API int te__cp_owner(const te__cp_call *c, int chunk) { return chunk < c->n ? chunk : 2 * c->n - 1 - chunk; }
/* Returns the first row of this rank's chunk j of sequence i, as an index into this rank's rows of the whole batch. */
TE_API int64_t te__cp_row(const te__cp_call *c, int i, int j) { return ((int64_t)2 * i + j) * c->chunk; }

/* Launches te_cp_sum. */
TE_API te_status te__cp_sum_run(const te__cp_call *c, te_cp_sum_args *s) {
    const int64_t vectors = (int64_t)s->rows * ((s->cols + 7) / 8);
    s->aligned = s->cols % 8 == 0 && s->x_width % 8 == 0 && s->y_width % 8 == 0 && (uintptr_t)s->y % 16 == 0;
    for (int k = 0; k < s->count; k++) s->aligned &= (uintptr_t)s->x[k] % 16 == 0;
    return te_cp_sum_launch(c->r->ctx, te__grid_of(te_ceil_div(vectors, TE_CP_VECTORS), 1), s);
}
TE_API te_cp_sum_args te__cp_sum_of(void *y, int64_t y_width, te_dtype y_dtype, const void *x, int64_t x_width,
                                    te_dtype x_dtype, int rows, int cols) {
    te_cp_sum_args s;
    memset(&s, 0, sizeof s);
    s.y = y, s.y_width = y_width, s.y_dtype = y_dtype, s.x[0] = x, s.x_width = x_width, s.x_dtype = x_dtype;
    s.rows = rows, s.cols = cols, s.count = 1;
    return s;
}
/* Copies from the packed qkv to `to` the columns of q (is_kv 0) or the columns of k and v (is_kv 1), for chunk j of
 * sequence i. */
TE_API te_status te__cp_split(const te__cp_call *c, char *to, int i, int j, int is_kv) {
    const int width = c->q_cols + c->kv_cols, cols = is_kv ? c->kv_cols : c->q_cols;
    const char *from =
        (const char *)c->a->qkv + (size_t)(te__cp_row(c, i, j) * width + (is_kv ? c->q_cols : 0)) * c->size;
    te_cp_sum_args s = te__cp_sum_of(to, cols, c->dtype, from, width, c->dtype, c->chunk, cols);
    return te__cp_sum_run(c, &s);
}
/* Returns the address, in dqkv, of the gradient of q (is_kv 0) or of k and v (is_kv 1), for chunk j of sequence i. */
TE_API char *te__cp_gradient(const te__cp_call *c, int i, int j, int is_kv) {
    const int width = c->q_cols + c->kv_cols;
    return (char *)c->a->dqkv + (size_t)(te__cp_row(c, i, j) * width + (is_kv ? c->q_cols : 0)) * c->size;
}
/* Returns the arguments of a launch whose queries are chunk j of sequence i. kv: `keys` consecutive rows of keys and
 * values. The caller replaces out, lse and dkv if its form (gather or ring) stores these tensors elsewhere. */
TE_API te_attention_args te__cp_launch_args(const te__cp_call *c, int i, int j, const char *kv, int keys) {
    te_attention_args a = *c->a;
    const int64_t row = te__cp_row(c, i, j), out = row * c->o_cols * (int64_t)c->size, stats = row * c->heads;
    a.qkv = c->q + (size_t)((int64_t)j * c->chunk * c->q_cols) * c->size;
    a.kv = kv, a.batch = 1, a.seq = c->chunk, a.kv_seq = keys, a.amax = 0;
    a.out = (char *)c->a->out + out, a.scratch = c->scratch;
    a.lse = c->a->lse ? c->a->lse + stats : 0; /* null in inference, which stores no lse */
    if (!c->is_backward) return a;
    a.dout = (const char *)c->a->dout + out, a.delta = c->a->delta + stats;
    a.dqkv = c->dq + (size_t)((int64_t)j * c->chunk * c->q_cols) * c->size;
    return a;
}

/* ---- gather ------------------------------------------------------------------------------------------------------ */

/* The chunks of keys that the queries of one chunk see: the chunks first to end - 1. */
typedef struct te__cp_range {
    int first, end;
} te__cp_range;
TE_API te__cp_range te__cp_keys_of(const te__cp_call *c, int chunk) {
    te__cp_range s;
    const int64_t first = (int64_t)chunk * c->chunk - c->left; /* the first key that the first query sees */
    s.first = c->left < 0 || first < 0 ? 0 : (int)(first / c->chunk);
    s.end = c->is_causal ? chunk + 1 : 2 * c->n;
    return s;
}
TE_API int te__cp_sees(const te__cp_call *c, int queries, int keys) {
    const te__cp_range s = te__cp_keys_of(c, queries);
    return keys >= s.first && keys < s.end;
}
/* Returns whether any query of a rank sees the keys of chunk `keys`. */
TE_API int te__cp_needs(const te__cp_call *c, int rank, int keys) {
    return te__cp_sees(c, te__cp_chunk(c, rank, 0), keys) || te__cp_sees(c, te__cp_chunk(c, rank, 1), keys);
}
/* Returns the address of a chunk in c->kv, which holds the chunks of the whole sequence in order. */
TE_API char *te__cp_place(const te__cp_call *c, int chunk) {
    return c->kv + (size_t)((int64_t)chunk * c->chunk * c->kv_cols) * c->size;
}
/* Returns the address at which this rank receives, from `rank`, a partial gradient of this rank's own chunk j. The
 * address lies in c->kv, because the keys and values there are no longer needed. */
TE_API char *te__cp_slot(const te__cp_call *c, int rank, int j) { return te__cp_place(c, 2 * rank + j); }
/* Returns the address of the partial gradient that this rank has computed for the keys and values of a chunk. */
TE_API char *te__cp_partial(const te__cp_call *c, int chunk) {
    const int is_second = te__cp_sees(c, te__cp_chunk(c, c->rank, 1), chunk);
    const te__cp_range s = te__cp_keys_of(c, te__cp_chunk(c, c->rank, is_second));
    const int64_t at = (int64_t)(chunk - s.first) * c->chunk * c->kv_cols;
    return (is_second ? c->dkv : c->dkv_first) + (size_t)at * c->size;
}
/* With is_back 0, each rank sends its chunks of keys and values to all ranks whose queries see these keys. With is_back
 * 1, those ranks send the partial gradients of a chunk back to the rank that has the chunk. */
TE_API te_status te__cp_gather_exchange(const te__cp_call *c, int is_back) {
    te_transfer transfers[TE_EXCHANGE_MAX];
    int count = 0;
    for (int chunk = 0; chunk < 2 * c->n; chunk++) {
        const int owner = te__cp_owner(c, chunk);
        for (int p = 0; p < c->n; p++) {
            if (p == owner || !te__cp_needs(c, p, chunk) || (p != c->rank && owner != c->rank)) continue;
            te_transfer *t = &transfers[count++];
            t->bytes = (int64_t)c->chunk * c->kv_cols * (int64_t)c->size, t->peer = p == c->rank ? owner : p;
            t->is_received = (p == c->rank) != is_back;
            t->data = !is_back         ? te__cp_place(c, chunk)
                      : t->is_received ? te__cp_slot(c, p, chunk >= c->n)
                                       : te__cp_partial(c, chunk);
        }
    }
    return te_group_exchange(c->group, transfers, count, c->r->ctx);
}
TE_API te_status te__cp_gather_launch(const te__cp_call *c, int i, int j) {
    const te__cp_range s = te__cp_keys_of(c, te__cp_chunk(c, c->rank, j));
    te_attention_args a = te__cp_launch_args(c, i, j, te__cp_place(c, s.first), (s.end - s.first) * c->chunk);
    a.dkv = !c->is_backward ? 0 : j ? c->dkv : c->dkv_first;
    return c->k->first(c->r->ctx, &a);
}
/* For the chunks of keys that both of this rank's chunks of queries see, adds the gradient from the first chunk of
 * queries to the gradient from the second chunk, so that this rank has one partial gradient for each chunk of keys. */
TE_API te_status te__cp_gather_add(const te__cp_call *c) {
    const te__cp_range first = te__cp_keys_of(c, te__cp_chunk(c, c->rank, 0));
    const te__cp_range second = te__cp_keys_of(c, te__cp_chunk(c, c->rank, 1));
    const int from = te_max(first.first, second.first), chunks = te_min(first.end, second.end) - from;
    if (chunks <= 0) return TE_OK;
    const int64_t of_chunk = (int64_t)c->chunk * c->kv_cols * (int64_t)c->size;
    te_cp_sum_args s = te__cp_sum_of(c->dkv + (from - second.first) * of_chunk, c->kv_cols, c->dtype,
                                     c->dkv_first + (from - first.first) * of_chunk, c->kv_cols, c->dtype,
                                     chunks * c->chunk, c->kv_cols);
    s.accumulate = 1;
    return te__cp_sum_run(c, &s);
}
/* Adds up the partial gradients of all ranks, and stores the gradients of this rank's rows of sequence i in dqkv. */
TE_API te_status te__cp_gather_finish(const te__cp_call *c, int i) {
    const int width = c->q_cols + c->kv_cols;
    for (int j = 0; j < 2; j++) {
        const int chunk = te__cp_chunk(c, c->rank, j);
        te_cp_sum_args s =
            te__cp_sum_of(te__cp_gradient(c, i, j, 1), width, c->dtype, 0, c->kv_cols, c->dtype, c->chunk, c->kv_cols);
        s.count = 0;
        for (int p = 0; p < c->n; p++)
            if (te__cp_needs(c, p, chunk))
                s.x[s.count++] = p == c->rank ? te__cp_partial(c, chunk) : te__cp_slot(c, p, j);
        TE_TRY(te__cp_sum_run(c, &s));
        const char *dq = c->dq + (size_t)((int64_t)j * c->chunk * c->q_cols) * c->size;
        s = te__cp_sum_of(te__cp_gradient(c, i, j, 0), width, c->dtype, dq, c->q_cols, c->dtype, c->chunk, c->q_cols);
        TE_TRY(te__cp_sum_run(c, &s));
    }
    return TE_OK;
}
TE_API te_status te__cp_gather_run(te_run *r, const te_op *op, const te_attention_args *a, const te_cp_kernels *k) {
    te__cp_call c = te__cp_call_of(r, op, a, k);
    const int64_t rows = te__capacity_rows(r), all = rows * c.n;
    const int is_backward = r->pass == TE_BACKWARD && k->scratch_bytes;
    const size_t scratch = is_backward && r->ctx ? k->scratch_bytes(r->ctx, all) : 0;
    TE_TRY(te__cp_take(&c, &c.q, rows, c.q_cols, c.size));
    TE_TRY(te__cp_take(&c, &c.kv, all, c.kv_cols, c.size));
    if (is_backward) {
        TE_TRY(te__cp_take(&c, &c.dkv, all, c.kv_cols, c.size));
        TE_TRY(te__cp_take(&c, &c.dkv_first, all, c.kv_cols, c.size));
        TE_TRY(te__cp_take(&c, &c.dq, rows, c.q_cols, c.size));
    }
    if (scratch) TE_TRY(te__scratch(r, &c.scratch, scratch));
    for (int i = 0; !r->dry && i < c.batch; i++) {
        for (int j = 0; j < 2; j++) {
            TE_TRY(te__cp_split(&c, c.q + (size_t)((int64_t)j * c.chunk * c.q_cols) * c.size, i, j, 0));
            TE_TRY(te__cp_split(&c, te__cp_place(&c, te__cp_chunk(&c, c.rank, j)), i, j, 1));
        }
        TE_TRY(te__cp_gather_exchange(&c, 0));
        for (int j = 0; j < 2; j++) TE_TRY(te__cp_gather_launch(&c, i, j));
        if (!is_backward) continue;
        TE_TRY(te__cp_gather_add(&c));
        TE_TRY(te__cp_gather_exchange(&c, 1));
        TE_TRY(te__cp_gather_finish(&c, i));
    }
    return TE_OK;
}

/* ---- ring -------------------------------------------------------------------------------------------------------- */

/* One launch of the ring. The queries are rows row to row + rows - 1 of this rank's chunk j. */
typedef struct te__cp_piece {
    int j, row, rows, keys;
    const char *kv; /* [keys, KV] */
    float *dkv;     /* backward: the sum to which the gradients of these keys and values are added */
    te_attention_launch_fn launch;
} te__cp_piece;
/* the launches of one step of the ring: at most three for each of the two chunks of queries */
typedef struct te__cp_pieces {
    te__cp_piece piece[6];
    int count;
} te__cp_pieces;
TE_API int64_t te__cp_block_elements(const te__cp_call *c) { return (int64_t)2 * c->chunk * c->kv_cols; }
/* Returns the address of block k of c->kv, [2, c, KV]. Block t % 2 holds the keys and values of step t; with a window,
 * block t % 2 holds only keys and values received from other ranks, and block 2 holds this rank's own keys and
 * values. */
TE_API char *te__cp_block(const te__cp_call *c, int k) {
    return c->kv + (size_t)(k * te__cp_block_elements(c)) * c->size;
}
/* Returns the address of block k of c->dkv_sum. Block t % 2 holds the gradients of the keys and values of step t; with
 * a window, block t % 2 holds only the gradients that will be sent to other ranks, block 2 receives gradients from
 * other ranks, and block 3 holds the sums for this rank's own keys and values. */
TE_API float *te__cp_block_sum(const te__cp_call *c, int k) { return c->dkv_sum + k * te__cp_block_elements(c); }
enum { TE__CP_OWN = 2, TE__CP_ARRIVED = 2, TE__CP_HOME = 3 }; /* blocks */

/* Where a chunk of keys and the chunk's gradient lie. Each block consists of two chunks; place: 0 for the first, 1 for
 * the second. block: number of the block of c->kv that holds the keys. sum: number of the block of c->dkv_sum that
 * holds the gradient. */
typedef struct te__cp_keys {
    int block, sum, place;
} te__cp_keys;
/* Adds a launch to p: the queries are all rows of chunk j; the keys are rows key to key + keys - 1 of chunk k, and
 * every query sees all these keys. */
TE_API te__cp_piece *te__cp_add_piece(te__cp_pieces *p, const te__cp_call *c, int j, te__cp_keys k, int key, int keys) {
    te__cp_piece *piece = &p->piece[p->count++];
    const int64_t at = ((int64_t)k.place * c->chunk + key) * c->kv_cols;
    piece->j = j, piece->row = 0, piece->rows = c->chunk, piece->keys = keys, piece->launch = c->k->rest;
    piece->kv = te__cp_block(c, k.block) + (size_t)at * c->size;
    piece->dkv = c->is_backward ? te__cp_block_sum(c, k.sum) + at : 0;
    return piece;
}
/* Adds to p the launches of step t of a ring without a window. In step t this rank has the keys and values of rank
 * (rank - t) mod n. */
TE_API void te__cp_ring_pieces(te__cp_pieces *p, const te__cp_call *c, int t) {
    const int from = (c->rank - t + c->n) % c->n, is_earlier = from < c->rank;
    const te__cp_keys keys = {t % 2, t % 2, 0};
    for (int j = 0; j < 2; j++) {
        /* Under a causal mask, this rank's first chunk of queries sees the first chunk of keys of lower ranks and none
         * of higher ranks. This rank's second chunk of queries sees the first chunk of keys of lower ranks and both
         * chunks of higher ranks. */
        if (c->is_causal && t && !is_earlier && j == 0) continue;
        const int chunks = !c->is_causal ? 2 : t == 0 ? j + 1 : is_earlier ? 1 : 2;
        te__cp_piece *piece = te__cp_add_piece(p, c, j, keys, 0, chunks * c->chunk);
        if (t == 0) piece->launch = c->k->first;
    }
}

/* ---- ring with a window ------------------------------------------------------------------------------------------ */

/* Returns the largest distance, in chunks, between a chunk of queries and a chunk with keys inside the window of these
 * queries. This is also the number of the last step of a ring with a window. */
TE_API int te__cp_last_distance(const te__cp_call *c) {
    return (int)te_min(te_ceil_div(c->left, te_max(1, c->chunk)), 2 * c->n - 1);
}
/* For a chunk of keys that lies d chunks before a chunk of queries, returns the first row of keys that any of these
 * queries sees. */
TE_API int te__cp_first_key(const te__cp_call *c, int d) { return (int)te_max(0, (int64_t)d * c->chunk - c->left); }
/* Adds to p the launches of step d, in which the keys are d chunks before the queries. Query i of the chunk sees the
 * keys from row i + d * c->chunk - c->left on. The pairs (query, visible key) form a triangle (kernel edge), or the
 * whole square (kernel rest), or a triangle and two rectangles (three launches). */
TE_API void te__cp_window_pieces(te__cp_pieces *p, const te__cp_call *c, int d) {
    const int first = te__cp_first_key(c, d);               /* the first row that query 0 sees */
    const int64_t beyond = c->left - (int64_t)d * c->chunk; /* the last query that sees all keys; below 0 if no query
                                                             * does */
    const int all = beyond >= c->chunk - 1 ? c->chunk : (int)te_max(0, beyond); /* queries of the first rectangle */
    for (int j = 0; j < 2; j++) {
        const int chunk = te__cp_chunk(c, c->rank, j) - d, owner = te__cp_owner(c, te_max(0, chunk));
        const te__cp_keys own = {TE__CP_OWN, TE__CP_HOME, chunk >= c->n}, other = {d % 2, d % 2, j};
        const te__cp_keys keys = owner == c->rank ? own : other;
        if (chunk < 0) continue;
        if (d == 0) {
            te__cp_add_piece(p, c, j, keys, 0, c->chunk)->launch = c->k->first;
            continue;
        }
        if (all) te__cp_add_piece(p, c, j, keys, 0, c->chunk)->rows = all;
        if (all == c->chunk) continue;
        const int rows = c->chunk - first - all; /* number of queries in the triangle */
        te__cp_piece *edge = te__cp_add_piece(p, c, j, keys, first, rows);
        edge->row = all, edge->rows = rows, edge->launch = c->k->edge;
        if (!all) continue;
        te__cp_piece *behind = te__cp_add_piece(p, c, j, keys, rows, c->chunk - rows);
        behind->row = all, behind->rows = rows;
    }
}
/* Adds to `transfers` the messages of step d of a ring with a window. With is_sum 0, each chunk of keys and values is
 * sent to the rank that has the queries d chunks later. With is_sum 1, the gradients of the keys and values are sent
 * back. Returns the new number of transfers. */
TE_API int te__cp_window_transfers(te_transfer *transfers, int count, const te__cp_call *c, int d, int is_sum) {
    const int first = te__cp_first_key(c, d);
    const int64_t row = c->kv_cols * (int64_t)(is_sum ? sizeof(float) : c->size);
    for (int queries = d; queries < 2 * c->n; queries++) {
        const int keys = queries - d, reader = te__cp_owner(c, queries), owner = te__cp_owner(c, keys);
        if (reader == owner || (reader != c->rank && owner != c->rank)) continue;
        const int is_owner = owner == c->rank, place = is_owner ? keys >= c->n : queries >= c->n;
        const int kv_block = is_owner ? TE__CP_OWN : d % 2, sum_block = is_owner ? TE__CP_ARRIVED : d % 2;
        char *block = is_sum ? (char *)(void *)te__cp_block_sum(c, sum_block) : te__cp_block(c, kv_block);
        te_transfer *x = &transfers[count++];
        x->data = block + ((int64_t)place * c->chunk + first) * row, x->bytes = (c->chunk - first) * row;
        x->peer = is_owner ? reader : owner, x->is_received = is_owner == is_sum;
    }
    return count;
}
/* Other ranks have computed, in step d, gradients of this rank's own keys and values, and this rank has received these
 * gradients. Adds these gradients to this rank's sums. */
TE_API te_status te__cp_window_add(const te__cp_call *c, int d) {
    const int first = te__cp_first_key(c, d);
    for (int j = 0; j < 2; j++) {
        const int chunk = te__cp_chunk(c, c->rank, j);
        if (d < 1 || chunk + d >= 2 * c->n || te__cp_owner(c, chunk + d) == c->rank) continue;
        const int64_t at = ((int64_t)j * c->chunk + first) * c->kv_cols;
        te_cp_sum_args s =
            te__cp_sum_of(te__cp_block_sum(c, TE__CP_HOME) + at, c->kv_cols, TE_f32,
                          te__cp_block_sum(c, TE__CP_ARRIVED) + at, c->kv_cols, TE_f32, c->chunk - first, c->kv_cols);
        s.accumulate = 1;
        TE_TRY(te__cp_sum_run(c, &s));
    }
    return TE_OK;
}

/* ---- the steps of the ring --------------------------------------------------------------------------------------- */

TE_API int te__cp_steps(const te__cp_call *c) { return c->left < 0 ? c->n : te__cp_last_distance(c) + 1; }
TE_API te__cp_pieces te__cp_pieces_of(const te__cp_call *c, int t) {
    te__cp_pieces p;
    p.count = 0;
    if (c->left < 0) te__cp_ring_pieces(&p, c, t);
    else te__cp_window_pieces(&p, c, t);
    return p;
}
/* Adds to `transfers` the messages of step t of a ring without a window, in which each rank sends to the next rank and
 * receives from the previous rank. With has_kv, a rank sends the keys and values of step t and receives the keys and
 * values of step t + 1. With has_sums, a rank sends the gradients of step t - 1 and receives the gradients of step t.
 * After the last step the gradients are complete, and each rank sends c->dkv, in the op list's dtype, to block 0 of
 * c->kv of the rank that has the keys. */
TE_API int te__cp_ring_transfers(te_transfer *transfers, const te__cp_call *c, int t, int has_kv, int has_sums) {
    const int to = (c->rank + 1) % c->n, from = (c->rank + c->n - 1) % c->n;
    int count = 0;
    for (int k = 0; k < 4; k++) {
        te_transfer *x = &transfers[count];
        const int is_sum = k / 2, is_received = k % 2;
        if (!(is_sum ? has_sums : has_kv)) continue;
        x->bytes = te__cp_block_elements(c) * (int64_t)(is_sum && t < c->n ? sizeof(float) : c->size);
        x->peer = is_received ? from : to, x->is_received = is_received;
        x->data = t == c->n ? (is_received ? te__cp_block(c, 0) : c->dkv)
                  : is_sum  ? (void *)te__cp_block_sum(c, (t + 1 + is_received) % 2)
                            : (void *)te__cp_block(c, (t + is_received) % 2);
        count++;
    }
    return count;
}
/* During step t, sends and receives on the second stream the keys and values for step t + 1 (has_kv) and the gradients
 * of step t - 1 (has_sums). */
TE_API te_status te__cp_ring_pass(const te__cp_call *c, int t, int has_kv, int has_sums) {
    te_side_stream *side = (te_side_stream *)c->group->comm->cp_side;
    te_transfer transfers[8];
    int count = 0;
    if (c->left < 0) count = te__cp_ring_transfers(transfers, c, t, has_kv, has_sums);
    else {
        if (has_kv) count = te__cp_window_transfers(transfers, count, c, t + 1, 0);
        if (has_sums && t > 1) count = te__cp_window_transfers(transfers, count, c, t - 1, 1);
    }
    if (!count) return TE_OK;
    TE_TRY(te_side_stream_enter(side, c->r->ctx));
    const te_status status = te_group_exchange(c->group, transfers, count, c->r->ctx);
    te_side_stream_leave(side, c->r->ctx);
    return status;
}
TE_API te_status te__cp_ring_join(const te__cp_call *c) {
    return te_side_stream_join((te_side_stream *)c->group->comm->cp_side, c->r->ctx);
}
/* The arguments of a launch. */
TE_API te_attention_args te__cp_piece_args(const te__cp_call *c, int i, const te__cp_piece *p) {
    te_attention_args a = te__cp_launch_args(c, i, p->j, p->kv, p->keys);
    a.seq = p->rows;
    a.qkv = (const char *)a.qkv + (size_t)((int64_t)p->row * c->q_cols) * c->size;
    a.out = (char *)a.out + (size_t)((int64_t)p->row * c->o_cols) * c->size;
    if (c->is_backward) a.dout = (const char *)a.dout + (size_t)((int64_t)p->row * c->o_cols) * c->size;
    return a;
}
/* Runs one launch of forward, and merges the launch's output into the merged output of the earlier launches with the
 * same chunk of queries. merged: the number of these earlier launches. */
TE_API te_status te__cp_ring_forward(const te__cp_call *c, int i, const te__cp_piece *p, int merged, int is_last) {
    te_cp_merge_args m;
    const int64_t stats = (int64_t)c->heads * c->chunk,
                  vectors = (int64_t)c->chunk * c->heads * ((c->value_dim + 7) / 8);
    const te_attention_args whole = te__cp_launch_args(c, i, p->j, p->kv, p->keys);
    te_attention_args a = te__cp_piece_args(c, i, p);
    float *const lse = c->lse + (int64_t)p->j * 3 * stats; /* the lse of this launch, followed by two buffers for the
                                                            * merged lse, which successive merges use alternately */
    memset(&m, 0, sizeof m);
    m.out = is_last ? whole.out : 0, m.new_lse = is_last && whole.lse ? whole.lse : lse + (1 + merged % 2) * stats;
    m.lse = lse + (1 + (merged + 1) % 2) * stats, m.is_first = merged == 0;
    a.out = c->part, a.lse = lse;
    TE_TRY(p->launch(c->r->ctx, &a));
    m.sum = c->sum + (int64_t)p->j * c->chunk * c->o_cols, m.part = c->part, m.part_lse = lse;
    m.part_first = p->row, m.part_rows = p->rows;
    m.rows = c->chunk, m.heads = c->heads, m.dim = c->value_dim, m.dtype = c->dtype;
    return te_cp_merge_launch(c->r->ctx, te__grid_of(te_ceil_div(vectors, TE_CP_VECTORS), 1), &m);
}
/* Runs one launch of backward, which stores the gradient of its keys and values in c->dkv. Adds the launch's dq to the
 * sum of dq for the same queries. */
TE_API te_status te__cp_ring_backward(const te__cp_call *c, int i, const te__cp_piece *p, int is_first) {
    te_attention_args a = te__cp_piece_args(c, i, p);
    a.dqkv = c->dq, a.dkv = c->dkv;
    if (p->rows < c->chunk) { /* the launch needs lse and delta of its rows as [heads, rows], so copy them */
        te_cp_sum_args s = te__cp_sum_of(c->lse, p->rows, TE_f32, a.lse + p->row, c->chunk, TE_f32, c->heads, p->rows);
        TE_TRY(te__cp_sum_run(c, &s));
        a.lse = c->lse, a.delta = c->lse + (int64_t)c->heads * c->chunk;
    }
    TE_TRY(p->launch(c->r->ctx, &a));
    te_cp_sum_args s = te__cp_sum_of(c->dq_sum + ((int64_t)p->j * c->chunk + p->row) * c->q_cols, c->q_cols, TE_f32,
                                     c->dq, c->q_cols, c->dtype, p->rows, c->q_cols);
    s.accumulate = !is_first;
    return te__cp_sum_run(c, &s);
}
/* Adds c->dkv, the gradient from one launch, to the sum of the gradients of the same keys and values. */
TE_API te_status te__cp_ring_add(const te__cp_call *c, const te__cp_piece *p) {
    te_cp_sum_args s = te__cp_sum_of(p->dkv, c->kv_cols, TE_f32, c->dkv, c->kv_cols, c->dtype, p->keys, c->kv_cols);
    s.accumulate = 1;
    return te__cp_sum_run(c, &s);
}
/* Sets block number k of the sums of gradients to zeros. */
TE_API te_status te__cp_clear_sums(const te__cp_call *c, int k) {
    return te_fill(c->r->ctx, te__cp_block_sum(c, k), 0, (size_t)te__cp_block_elements(c) * sizeof(float));
}
/* Waits for the gradients that are received during step t. With a window, adds these gradients to the sums for this
 * rank's own keys and values. */
TE_API te_status te__cp_ring_arrive(const te__cp_call *c, int t) {
    TE_TRY(te__cp_ring_join(c));
    return c->left < 0 ? TE_OK : te__cp_window_add(c, t - 1);
}
/* Runs all steps of backward for sequence i. */
TE_API te_status te__cp_ring_backward_steps(const te__cp_call *c, int i) {
    const int width = c->q_cols + c->kv_cols, steps = te__cp_steps(c);
    TE_TRY(te__cp_clear_sums(c, c->left < 0 ? 0 : TE__CP_HOME));
    for (int t = 0; t < steps; t++) {
        const te__cp_pieces p = te__cp_pieces_of(c, t);
        TE_TRY(te__cp_ring_pass(c, t, t + 1 < steps, t > 0));
        if (c->left >= 0) TE_TRY(te__cp_clear_sums(c, t % 2));
        for (int k = 0; k < p.count; k++) {
            TE_TRY(te__cp_ring_backward(c, i, &p.piece[k], t == 0));
            if (k == 0) TE_TRY(te__cp_ring_arrive(c, t)); /* without a window, the next line adds to the sums that this
                                                           * call receives */
            TE_TRY(te__cp_ring_add(c, &p.piece[k]));
        }
        if (!p.count) TE_TRY(te__cp_ring_arrive(c, t));
    }
    const int has_window = c->left >= 0;
    te_cp_sum_args s = te__cp_sum_of(c->dkv, c->kv_cols, c->dtype, te__cp_block_sum(c, (steps + 1) % 2), c->kv_cols,
                                     TE_f32, 2 * c->chunk, c->kv_cols);
    if (!has_window) TE_TRY(te__cp_sum_run(c, &s)); /* rounds the complete sums of dkv once, before they are sent */
    TE_TRY(te__cp_ring_pass(c, steps, 0, 1));       /* sends dkv to the ranks that have the keys, while dq is rounded */
    for (int j = 0; j < 2; j++) {
        const float *dq = c->dq_sum + (int64_t)j * c->chunk * c->q_cols;
        s = te__cp_sum_of(te__cp_gradient(c, i, j, 0), width, c->dtype, dq, c->q_cols, TE_f32, c->chunk, c->q_cols);
        TE_TRY(te__cp_sum_run(c, &s));
    }
    TE_TRY(te__cp_ring_arrive(c, steps));
    const void *dkv = has_window ? (const void *)te__cp_block_sum(c, TE__CP_HOME) : (const void *)te__cp_block(c, 0);
    const te_dtype dtype = has_window ? TE_f32 : c->dtype;
    for (int j = 0; j < 2; j++) {
        const char *of_chunk = (const char *)dkv + (size_t)((int64_t)j * c->chunk * c->kv_cols) * te_dtype_bytes(dtype);
        s = te__cp_sum_of(te__cp_gradient(c, i, j, 1), width, c->dtype, of_chunk, c->kv_cols, dtype, c->chunk,
                          c->kv_cols);
        TE_TRY(te__cp_sum_run(c, &s));
    }
    return TE_OK;
}
TE_API te_status te__cp_ring_forward_steps(const te__cp_call *c, int i) {
    int merged[2] = {0, 0}, launches[2] = {0, 0};
    for (int t = 0; t < te__cp_steps(c); t++) {
        const te__cp_pieces p = te__cp_pieces_of(c, t);
        for (int k = 0; k < p.count; k++) launches[p.piece[k].j]++;
    }
    for (int t = 0; t < te__cp_steps(c); t++) {
        const te__cp_pieces p = te__cp_pieces_of(c, t);
        TE_TRY(te__cp_ring_pass(c, t, t + 1 < te__cp_steps(c), 0));
        for (int k = 0; k < p.count; k++) {
            const int j = p.piece[k].j, before = merged[j]++;
            TE_TRY(te__cp_ring_forward(c, i, &p.piece[k], before, before + 1 == launches[j]));
        }
        TE_TRY(te__cp_ring_join(c));
    }
    return TE_OK;
}
TE_API te_status te__cp_ring_run(te_run *r, const te_op *op, const te_attention_args *a, const te_cp_kernels *k) {
    te__cp_call c = te__cp_call_of(r, op, a, k);
    const int64_t rows = te__capacity_rows(r);
    const int is_backward = r->pass == TE_BACKWARD && k->scratch_bytes, has_window = c.left >= 0;
    const int own = has_window ? TE__CP_OWN : 0; /* the block of this rank's keys and values */
    const size_t scratch = is_backward && r->ctx ? k->scratch_bytes(r->ctx, rows) : 0;
    char *sum, *lse = 0, *dkv_sum;
    TE_TRY(te__cp_take(&c, &c.q, rows, c.q_cols, c.size));
    TE_TRY(te__cp_take(&c, &c.kv, (has_window ? 3 : 2) * rows, c.kv_cols, c.size));
    if (is_backward) {
        TE_TRY(te__cp_take(&c, &c.dkv, rows, c.kv_cols, c.size));
        TE_TRY(te__cp_take(&c, &c.dq, rows, c.q_cols, c.size));
        TE_TRY(te__cp_take(&c, &sum, rows, c.q_cols, sizeof(float)));
        TE_TRY(te__cp_take(&c, &dkv_sum, (has_window ? 4 : 2) * rows, c.kv_cols, sizeof(float)));
        if (has_window) TE_TRY(te__cp_take(&c, &lse, rows, c.heads, sizeof(float)));
        c.dq_sum = (float *)(void *)sum, c.dkv_sum = (float *)(void *)dkv_sum, c.lse = (float *)(void *)lse;
    } else {
        TE_TRY(te__cp_take(&c, &c.part, rows, c.o_cols, c.size));
        TE_TRY(te__cp_take(&c, &sum, rows, c.o_cols, sizeof(float)));
        TE_TRY(te__cp_take(&c, &lse, 3 * rows, c.heads, sizeof(float)));
        c.sum = (float *)(void *)sum, c.lse = (float *)(void *)lse;
    }
    if (scratch) TE_TRY(te__scratch(r, &c.scratch, scratch));
    for (int i = 0; !r->dry && i < c.batch; i++) {
        for (int j = 0; j < 2; j++) {
            const size_t of_chunk = (size_t)((int64_t)j * c.chunk * c.kv_cols) * c.size;
            TE_TRY(te__cp_split(&c, c.q + (size_t)((int64_t)j * c.chunk * c.q_cols) * c.size, i, j, 0));
            TE_TRY(te__cp_split(&c, te__cp_block(&c, own) + of_chunk, i, j, 1));
        }
        TE_TRY(is_backward ? te__cp_ring_backward_steps(&c, i) : te__cp_ring_forward_steps(&c, i));
    }
    return TE_OK;
}

#endif
