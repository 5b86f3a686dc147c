/* attention_cp_heads.h -- attention with (context, all_to_all). Before the attention an all-to-all exchange gives each
 * rank of the context group whole sequences for some of the heads; afterwards a second exchange returns each row of the
 * output to the rank that has the row (DeepSpeed-Ulysses, Jacobs et al. 2023).
 *
 *   forward   qkv of this rank's rows -> te_cp_heads -> exchange -> attention of whole sequences -> exchange ->
 *             te_cp_heads -> the output of this rank's rows
 *   backward  the same, but the first exchange sends qkv, the output and the gradient of the output, and the second
 *             returns the gradient of qkv
 *
 * A unit is one kv head of one sequence, together with the query heads that use this kv head. All ranks have the same
 * number of kv heads. The kernels are those of self-attention with one kv head; each unit is passed to them as a
 * sequence. Therefore the kernels do not depend on the number of ranks, and options that depend on positions (windows,
 * cu_seqlens) work as on one rank. Each rank keeps the lse of its units for backward.
 */
#ifndef TE_ATTENTION_CP_HEADS_H
#define TE_ATTENTION_CP_HEADS_H

#include "attention_cp.h" /* te__cp_call */

/* ---- rows of all heads, and units -------------------------------------------------------------------------------- */

/* The columns of one part (q, k, v or the output) that belong to a kv head: in a row of all heads, `width` columns that
 * begin at column first + head * width; in a row of a unit (one kv head), `width` columns that begin at column `at`. */
typedef struct te_cp_part {
    int first, width, at;
} te_cp_part;
/* The parts of a tensor. row_width: number of columns of a row with all heads; unit_width: number of columns of a row
 * of a unit. */
typedef struct te_cp_columns {
    te_cp_part part[3];
    int parts, row_width, unit_width;
} te_cp_columns;
typedef struct te_cp_heads_args {
    void *rows;   /* [batch, 2, chunk, row_width]: this rank's rows */
    void *others; /* [ranks, batch, heads, 2, chunk, unit_width]: others[r]: this rank's rows of the heads that rank r
                   * has, in the layout of units */
    void *units;  /* [batch, heads, 2 * ranks, chunk, unit_width]: this rank's units. The kernel accesses only those
                   * rows of the units that are this rank's rows */
    te_cp_columns columns;
    int batch, chunk, heads, rank, ranks; /* heads: number of kv heads of a rank */
    int to_units, aligned;                /* to_units: 1 to copy from rows to units, 0 to copy from units to rows */
    te_dtype dtype;
} te_cp_heads_args;
/* Copies between `rows` and the tensors with a layout by units, `others` and `units`. Memory traffic: reads and writes
 * each element once. */
TE_FN void te__cp_heads_block(const te_cp_heads_args *a, te_block b) {
    int group;
    const te_lanes g = te_lanes_here(TE_CP_THREADS, &group);
    const te_cp_columns *k = &a->columns;
    int vectors = 0; /* number of vectors of eight elements in a row of a unit */
    for (int p = 0; p < k->parts; p++) vectors += (k->part[p].width + 7) / 8;
    const int64_t of_row = (int64_t)a->ranks * a->heads * vectors, first = (int64_t)b.x * TE_CP_VECTORS;
    const int64_t all = of_row * a->batch * 2 * a->chunk;
    for (int64_t i = first + g.id; i < te_min(all, first + TE_CP_VECTORS); i += g.count) {
        const int row = (int)(i / of_row), head = (int)(i % of_row) / vectors;
        const int owner = head / a->heads, sequence = row / (2 * a->chunk), in = row % a->chunk;
        const int j = row / a->chunk % 2, chunk = j ? 2 * a->ranks - 1 - a->rank : a->rank;
        int p = 0, c = (int)(i % of_row) % vectors * 8;
        while (c >= k->part[p].width) c -= (k->part[p].width + 7) / 8 * 8, p++;
        const int n = k->part[p].width - c < 8 ? k->part[p].width - c : 8;
        const int64_t unit = (int64_t)sequence * a->heads + head % a->heads, of_rank = (int64_t)a->batch * a->heads;
        const int64_t at = owner == a->rank ? unit * 2 * a->ranks + chunk : (owner * of_rank + unit) * 2 + j;
        const int64_t in_row = (int64_t)row * k->row_width + k->part[p].first + (int64_t)head * k->part[p].width + c;
        const int64_t in_unit = (at * a->chunk + in) * k->unit_width + k->part[p].at + c;
        void *const units = owner == a->rank ? a->units : a->others;
        float v[8];
        te_load8(v, a->to_units ? a->rows : units, a->to_units ? in_row : in_unit, n, a->aligned, a->dtype);
        te_store8(a->to_units ? units : a->rows, a->to_units ? in_unit : in_row, v, n, a->aligned, a->dtype);
    }
}
TE_KERNEL(te_cp_heads, TE_CP_THREADS, te_cp_heads_args, te__cp_heads_block(te_args, te_at))

/* Returns the parts of qkv (is_qkv 1) or of the output (is_qkv 0). */
TE_API te_cp_columns te__cp_columns_of(const te_attention_options *o, int is_qkv) {
    const int group = o->heads / o->kv_heads, d = o->head_dim, dv = o->value_dim;
    const te_cp_part q = {0, group * d, 0}, k = {o->heads * d, d, group * d}, out = {0, group * dv, 0};
    const te_cp_part v = {(o->heads + o->kv_heads) * d, dv, (group + 1) * d};
    te_cp_columns c;
    memset(&c, 0, sizeof c);
    c.parts = is_qkv ? 3 : 1, c.part[0] = is_qkv ? q : out, c.part[1] = k, c.part[2] = v;
    c.unit_width = is_qkv ? (group + 1) * d + dv : group * dv, c.row_width = o->kv_heads * c.unit_width;
    return c;
}

/* ---- the exchange ------------------------------------------------------------------------------------------------ */

/* One attention call: the te__cp_call, and members that only the form all_to_all needs. */
typedef struct te__cp_heads_call {
    te__cp_call c;
    const te_attention_options *options;
    int heads, group;              /* heads: number of kv heads of this rank; group: number of query heads for each kv
                                    * head */
    int has_varlen;                /* 1 if the kernels were compiled with the option varlen */
    char *others;                  /* memory for te_cp_heads_args.others, of one tensor at a time */
    char *qkv, *out, *dout, *dqkv; /* the units (te_cp_heads_args.units) of these four tensors; dout and dqkv: only in
                                    * backward */
} te__cp_heads_call;
/* Exchanges chunks of units (a unit is one kv head of one sequence) between the rank that has the rows and the rank
 * that has the head. With is_back 0, chunks are sent from h->others to the `units` of other ranks; with is_back 1, from
 * `units` to the h->others of other ranks. */
TE_API te_status te__cp_exchange_units(const te__cp_heads_call *h, char *units, int unit_width, int is_back) {
    const te__cp_call *c = &h->c;
    const int64_t bytes = (int64_t)c->chunk * unit_width * (int64_t)c->size;
    const int of_unit = 4 * (c->n - 1);
    te_transfer transfers[TE_EXCHANGE_MAX];
    int count = 0;
    for (int64_t u = 0; u < (int64_t)c->batch * h->heads; u++) {
        for (int p = 0; p < c->n; p++)
            for (int j = 0; p != c->rank && j < 2; j++) {
                te_transfer *const x = &transfers[count], *const y = x + 1;
                x->data = h->others + (((int64_t)p * c->batch * h->heads + u) * 2 + j) * bytes;
                y->data = units + (u * 2 * c->n + te__cp_chunk(c, p, j)) * bytes;
                x->is_received = is_back, y->is_received = !is_back;
                x->bytes = y->bytes = bytes, x->peer = y->peer = p, count += 2;
            }
        const int is_last = u + 1 == (int64_t)c->batch * h->heads;
        if (!is_last && count + of_unit <= TE_EXCHANGE_MAX) continue;
        TE_TRY(te_group_exchange(c->group, transfers, count, c->r->ctx));
        count = 0;
    }
    return TE_OK;
}
/* With to_units 1, sends this rank's rows of a tensor, as units, to the ranks that have the heads. With to_units 0,
 * collects this rank's rows from the ranks that have the heads. */
TE_API te_status te__cp_heads_exchange(const te__cp_heads_call *h, void *rows, char *units, int is_qkv, int to_units) {
    const te__cp_call *c = &h->c;
    te_cp_heads_args a;
    int64_t vectors = 0;
    memset(&a, 0, sizeof a);
    a.rows = rows, a.others = h->others, a.units = units, a.columns = te__cp_columns_of(h->options, is_qkv);
    a.batch = c->batch, a.chunk = c->chunk, a.heads = h->heads, a.rank = c->rank, a.ranks = c->n;
    a.to_units = to_units, a.dtype = c->dtype, a.aligned = (uintptr_t)rows % 16 == 0;
    for (int k = 0; k < a.columns.parts; k++)
        a.aligned &= a.columns.part[k].width % 8 == 0, vectors += (a.columns.part[k].width + 7) / 8;
    const int64_t all = vectors * c->n * h->heads * c->batch * 2 * c->chunk;
    if (!to_units) TE_TRY(te__cp_exchange_units(h, units, a.columns.unit_width, 1));
    TE_TRY(te_cp_heads_launch(c->r->ctx, te__grid_of(te_ceil_div(all, TE_CP_VECTORS), 1), &a));
    return to_units ? te__cp_exchange_units(h, units, a.columns.unit_width, 0) : TE_OK;
}

/* ---- attention of units ------------------------------------------------------------------------------------------ */

/* Runs the attention kernels on all units. One launch computes all units, except with sinks, ALiBi or cu_seqlens: then
 * each unit has its own launch. */
TE_API te_status te__cp_heads_attend(const te__cp_heads_call *h) {
    const te__cp_call *c = &h->c;
    const te_attention_options *o = h->options;
    const int units = c->batch * h->heads, is_each = o->sinks || o->alibi || h->has_varlen;
    const int64_t seq = (int64_t)2 * c->chunk * c->n;
    const te_cp_columns qkv = te__cp_columns_of(o, 1), out = te__cp_columns_of(o, 0);
    for (int u = 0; u < units; u += is_each ? 1 : units) {
        const int head = (c->rank * h->heads + u % h->heads) * h->group; /* the first query head of the unit */
        const int64_t stats = u * h->group * seq;
        const size_t qkv_at = (size_t)(u * seq * qkv.unit_width) * c->size;
        const size_t out_at = (size_t)(u * seq * out.unit_width) * c->size;
        te_attention_args a = *c->a;
        if (!a.cu_seqlens) a.batch = is_each ? 1 : units, a.seq = (int)seq;
        a.qkv = h->qkv + qkv_at, a.out = h->out + out_at, a.lse = c->a->lse ? c->a->lse + stats : 0;
        a.sinks = o->sinks ? (const char *)c->a->sinks + (size_t)head * c->size : 0;
        a.whole.first += head, a.whole.more += o->heads - h->group, a.scratch = c->scratch;
        if (c->is_backward) a.dqkv = h->dqkv + qkv_at, a.dout = h->dout + out_at, a.delta = c->a->delta + stats;
        TE_TRY(c->k->first(c->r->ctx, &a));
    }
    return TE_OK;
}
TE_API te_status te__cp_all_to_all_run(te_run *r, const te_op *op, const te_attention_args *a, const te_cp_kernels *k) {
    te__cp_heads_call h;
    memset(&h, 0, sizeof h);
    h.c = te__cp_call_of(r, op, a, k), h.options = (const te_attention_options *)op->options;
    h.heads = h.options->kv_heads / h.c.n, h.group = h.options->heads / h.options->kv_heads;
    h.has_varlen = (op->flags & TE_VARLEN) != 0;
    te__cp_call *const c = &h.c;
    const int64_t rows = te__capacity_rows(r);
    const int is_backward = r->pass == TE_BACKWARD && k->scratch_bytes, qkv_cols = c->q_cols + c->kv_cols;
    /* With n ranks, a unit has n times as many rows as this rank has of a sequence, and this rank has kv_heads / n
     * units of each sequence. So this rank's units have rows * kv_heads rows in all */
    const size_t scratch = is_backward && r->ctx ? k->scratch_bytes(r->ctx, rows * h.options->kv_heads) : 0;
    TE_TRY(te__cp_take(c, &h.others, rows, te_max(qkv_cols, c->o_cols), c->size));
    TE_TRY(te__cp_take(c, &h.qkv, rows, qkv_cols, c->size));
    TE_TRY(te__cp_take(c, &h.out, rows, c->o_cols, c->size));
    if (is_backward) {
        TE_TRY(te__cp_take(c, &h.dout, rows, c->o_cols, c->size));
        TE_TRY(te__cp_take(c, &h.dqkv, rows, qkv_cols, c->size));
    }
    if (scratch) TE_TRY(te__scratch(r, &c->scratch, scratch));
    if (r->dry) return TE_OK;
    TE_TRY(te__cp_heads_exchange(&h, (void *)(uintptr_t)a->qkv, h.qkv, 1, 1));
    if (!is_backward) {
        TE_TRY(te__cp_heads_attend(&h));
        return te__cp_heads_exchange(&h, a->out, h.out, 0, 0);
    }
    TE_TRY(te__cp_heads_exchange(&h, a->out, h.out, 0, 1));
    TE_TRY(te__cp_heads_exchange(&h, (void *)(uintptr_t)a->dout, h.dout, 0, 1));
    TE_TRY(te__cp_heads_attend(&h));
    return te__cp_heads_exchange(&h, a->dqkv, h.dqkv, 1, 0);
}

#endif
