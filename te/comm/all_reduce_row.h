/* all_reduce_row.h -- rows that begin with an all_reduce: `all_reduce_add_fork_norm` and what else a chain may be.
 *
 * Two ranks that map each other's memory, small tensors: one kernel. A lane sends its peer the units of 16 bytes that
 * it has of a row, waits for the same units of the peer (peers.h), and goes on with the sum in registers: the sum is
 * not stored, and no kernel of its own starts and ends. Bytes a row and rank, of `hidden` elements of 16 bits: 2 hidden
 * over the link, 2 of x, 2 of the residual, 2 of it stored, 2 of y; in two kernels 4 hidden more, and 2 us. The floor
 * is that of the all_reduce, 1.3 us and 2 hidden bytes a row over 450 GB/s: 4096 columns, 1 row 1.3 us, 64 rows 2.5,
 * 256 rows 6.0.
 *
 * Else the group's all_reduce, and the chain behind it. Both give the same bits: the sum is rounded to the list's
 * format in either.
 *
 * Do this:
 *     (linear, proj, H / N, H, (shard, rows)), (all_reduce, r), (add, x1), (fork, x2), (rmsnorm, n2, H)
 */
#ifndef TE_COMM_ALL_REDUCE_ROW_H
#define TE_COMM_ALL_REDUCE_ROW_H

#include "../fuse/chain_run.h" /* te__chain_forward, te_chain_step_forward */
#include "../fuse/plan.h"      /* TE_FUSED */
#include "peers.h"             /* te_peer_args */

/* The largest tensor, in bytes, that goes this way: its 256 rows of 4096 elements all wait at a time. */
#define TE_PEER_ROW_MOST ((int64_t)2 << 20)

#define TE_FORWARD_all_reduce_add_norm TE_FUSED
#define TE_FORWARD_all_reduce_add_fork_norm TE_FUSED

typedef struct te_peer_chain {
    te_chain c;         /* its x: null */
    te_peer_args peers; /* its y: null */
} te_peer_chain;
/* The kernel of a row, and how many rows of the tensor a block takes at a time; launch null: there is none. */
typedef struct te_peer_row {
    te_status (*launch)(te_context *ctx, te_grid grid, const te_peer_chain *p);
    int groups;
} te_peer_row;

/* ---- in the kernel ----------------------------------------------------------------------------------------------- */

typedef struct te_peer_source {
    const te_peer_args *a;
    uint32_t turn;
} te_peer_source;

/* te_norm_row_load of the sum over the ranks: all units are on their way, and gamma and the residual are loaded, before
 * the first unit is waited for. Rows are aligned, so that eight elements are `parts` units. row_x: the row, gamma, the
 * residual. */
TE_FN void te_peer_row_load(const te_chain *c, te_stages_fn stages, const te_chain_shape k, int64_t row, te_lanes g,
                            te_vec8 *row_x, const void *source) {
    const te_peer_source *from = (const te_peer_source *)source;
    const te_peer_args *a = from->a;
    const int parts = k.in == TE_f32 ? 2 : 1, units = (int)(a->bytes / TE_WORDS), peer = 1 - a->rank;
    const int first = (int)row * (k.half / 8) * parts;
    const int reads = k.reads < k.norm ? k.reads : -1;
    const te_stage *reader = reads < 0 ? 0 : &c->op[reads];
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const int vector = g.id + i * g.count;
        if (vector * 8 >= k.half) continue;
        te_vec8_load(&row_x[i], a->x, row * k.half + vector * 8, 8, 1, k.in);
        TE_UNROLL for (int p = 0; p < parts; p++) {
            te_words own;
            TE_UNROLL for (int j = 0; j < 4; j++) own.w[j] = row_x[i].w[4 * p + j];
            te_words_mark(&own);
            te_words_send(te__peer_slot(a->at[peer], a, from->turn, a->rank, units, first + vector * parts + p), &own);
            TE_UNROLL for (int j = 0; j < 4; j++) row_x[i].w[4 * p + j] = own.w[j];
        }
        const te_place at = te_place_of(k, row, vector, 1);
        te_load_gamma(&row_x[k.chunks + i], &c->op[k.norm], at, k.weight, k.norm_options.code);
        if (reader && reader->edge) te_vec8_load(&row_x[2 * k.chunks + i], reader->edge, te_index(at), 8, 1, k.weight);
    }
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const int vector = g.id + i * g.count;
        te_lane l;
        l.at = te_place_of(k, row, vector, 1);
        if (vector * 8 >= k.half) continue;
        TE_UNROLL for (int p = 0; p < parts; p++) {
            te_words own, sum;
            float v[8];
            TE_UNROLL for (int j = 0; j < 4; j++) own.w[j] = row_x[i].w[4 * p + j];
            if (!te__peer_sum(&sum, &own, a, from->turn, units, first + vector * parts + p, 2))
                sum = own; /* goes on, for the lanes of a row meet in its sums */
            te_words_add(v, &sum, k.in, 0);
            TE_UNROLL for (int j = 0; j < 8 / parts; j++) l.v[4 * p + j] = v[j];
        }
        if (reader) l.at.ahead_of = reader, l.at.ahead = row_x[2 * k.chunks + i];
        stages(&l, c, 0, k.norm);
        te_vec8_of(&row_x[i], l.v, k.norm_in);
    }
}
TE_FN void te_peer_row_body(const te_peer_chain *p, te_block b, te_stages_fn stages, te_store_fn store,
                            const te_chain_shape k, te_vec8 *rows) {
    int group, one;
    uint32_t most = 0;
    te_lanes g = te_lanes_here(k.lanes, &group);
    const te_peer_source source = {&p->peers, te__peer_turn(&p->peers, b)};
    if (p->c.take.taken && b.x == 0 && group == 0 && g.id == 0) te_rng_take_body(&p->c.take);
    for (int64_t row = (int64_t)b.x * k.groups + group; row < p->c.rows; row += (int64_t)b.nx * k.groups)
        te_norm_forward(&p->c, stages, store, k, row, &g, rows, &most, te_peer_row_load, &source);
    te_chain_leave_amax(&p->c, k, b, te_lanes_here(k.lanes * k.groups, &one), most);
    te__peer_done(&p->peers, b, source.turn, k.lanes * k.groups);
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

/* Whether the kernel takes it: the group maps memory, each block counts its turn, and nobody needs the sum itself. */
TE_API int te__all_reduce_in_row(const te_run *r, const te_step *s, te_value x, te_peer_row row, te_chain_shape k) {
    const te_peers *p = r->tensor->peers;
    const int64_t bytes = x.rows * x.cols * (int64_t)te_dtype_bytes(x.dtype);
    if (!p || !row.launch || r->tensor->size != 2 || x.dtype != k.in || te_in_memory(r, s->op[0])) return 0;
    if (k.norm <= 0 || !k.aligned || k.in_halves != 1 || (uintptr_t)x.p % TE_WORDS) return 0;
    return x.rows > 0 && x.rows <= TE_PEER_BLOCKS * row.groups && bytes <= te_min(TE_PEER_ROW_MOST, p->one_shot);
}
TE_API te_status te__all_reduce_chain(te_run *r, const te_step *s, te_value x, te_value sum, te_peer_row row,
                                      te_chain_shape k) {
    te_peer_chain p;
    int work = 0;
    k.turns = 0; /* this is one kernel */
    memset(&p, 0, sizeof p);
    p.c.half = k.half;
    TE_TRY(te__chain_forward(r, s, 1, 0, sum, k, &p.c, &work));
    if (work) p.c.take = r->take, r->take.taken = 0;
    if (!work || r->dry) return TE_OK;
    TE_TRY(te_peers_check(r->tensor, r->ctx));
    p.peers = te__peer_args_of(r->tensor, TE_PEER_all_reduce, TE_PEER_one_shot,
                               x.rows * x.cols * (int64_t)te_dtype_bytes(x.dtype), x.dtype);
    p.c.x = 0, p.peers.x = x.p, p.peers.whole = 1;
    r->tensor->peers->collectives++;
    return row.launch(r->ctx, te_grid_of(te_ceil_div(x.rows, row.groups), 1), &p);
}
TE_API te_status te__all_reduce_row(te_run *r, const te_step *s, te_chain_launch_fn launch, te_peer_row row,
                                    te_chain_shape k) {
    const int i = s->op[0];
    const te_op *op = &r->plan->op[i];
    const te_value x = r->now;
    te_value sum = te_output_of(r, i);
    TE_REQUIRE(!r->batch || r->ctx->comm, r->ctx, TE_ERROR_STATE,
               "%s: (%s, %s) needs the ranks of a group; te_comm_create makes them", r->plan->name, op->kind, op->name);
    if (r->pass != TE_FORWARD || !te_in_memory(r, i) || !sum.p)
        TE_TRY(te_acquire(r, &sum, op->out_rows, op->out, op->out_dtype)); /* sizes do not depend on which it is */
    if (te__all_reduce_in_row(r, s, x, row, k)) return te__all_reduce_chain(r, s, x, sum, row, k);
    if (!r->dry) TE_TRY(te_group_all_reduce(r->tensor, sum.p, x.p, x.rows * x.cols, x.dtype, r->ctx));
    return te_chain_step_forward(r, s, 1, 0, sum, launch, k);
}
#define TE_OWN_ROW_all_reduce_forward(name, model, dtype, op)                              \
    TE__NEEDS_COMM(model, op)                                                              \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                             \
        const te_chain_shape k = name##_shape(te_chain_half(r, s, 1));                     \
        return te__all_reduce_row(r, s, name##_launch, name##_peer_row(), k);              \
    }

/* Blocks on a multiprocessor, so that a thread has 64 registers: 264 blocks of 512 threads, more than the 256 rows of
 * 4096 elements that are the most, wait at a time. */
#define TE_PEER_RESIDENT(threads) ((threads) > 512 ? 1 : 1024 / (threads))

/* The kernel of a chain with a norm whose width is a constant: that for few rows, which latency dominates as well. */
#define TE_HAS_SOURCE_all_reduce ,
#define TE_SOURCE_all_reduce_dims(name, ...) TE__NO_PEER_ROW(name)
#define TE_SOURCE_all_reduce_fixed(name, ...) \
    TE_IF_MARKED(TE_ROW(TE__NORM_MARK, ~, __VA_ARGS__), TE__PEER_ROW, TE__NO_PEER_ROW)(name)
#define TE_SOURCE_all_reduce_dims_fp8 TE_SOURCE_all_reduce_dims
#define TE_SOURCE_all_reduce_fixed_fp8 TE_SOURCE_all_reduce_fixed
#define TE_SOURCE_all_reduce_fixed_tiled(name, ...) \
    TE_IF_MARKED(TE_ROW(TE__NORM_MARK, ~, __VA_ARGS__), TE__PEER_ROW_TILED, TE__NO_PEER_ROW)(name)
#define TE__NO_PEER_ROW(name)                   \
    TE_API te_peer_row name##_peer_row(void) { \
        const te_peer_row none = {0, 1};        \
        return none;                            \
    }
#if TE_CUDA
#define TE__PEER_ROW(name) TE__PEER_ROW_OF(name, name##_quick)
#define TE__PEER_ROW_TILED(name) TE__PEER_ROW_OF(name, name##_row_quick)
#else
#define TE__PEER_ROW(name) TE__PEER_ROW_OF(name, name)
#define TE__PEER_ROW_TILED(name) TE__PEER_ROW_OF(name, name##_row)
#endif
#define TE__PEER_ROW_OF(name, of)                                                                              \
    TE_FN void name##_peers_body(const te_peer_chain *p, te_block b, of##_registers *r, of##_shared *s) {      \
        (void)s;                                                                                               \
        te_peer_row_body(p, b, name##_stages, name##_fp8_wanted ? te_chain_store_fp8 : te_chain_store,         \
                         of##_shape(p->c.half), r->rows);                                                      \
    }                                                                                                          \
    TE_KERNEL_WITH(name##_peers, of##_threads, TE_PEER_RESIDENT(of##_threads), te_peer_chain, of##_registers,  \
        of##_shared, name##_peers_body)                                                                        \
    TE_API te_peer_row name##_peer_row(void) {                                                                 \
        const te_peer_row row = {name##_peers_launch, of##_groups};                                            \
        return row;                                                                                            \
    }

#endif
