/* peer_row.h -- the kernel of a chain whose rows are sums over ranks that map each other's memory (peers.h). A lane
 * sends the others the units of 16 bytes that it has of a row, waits for theirs, and goes on with the sum in registers,
 * in f32, in the order of the ranks, rounded once. So the bits are those of a collective and the chain behind it. But
 * of more rows than multiprocessors that chain has the kernel for many rows, whose lanes add up a norm's row in another
 * order: one row in ten then has another rstd, in the last bit of f32, and few of those another number of 16 bits.
 *
 *   pitch 0     all ranks have the same rows: an all_reduce (all_reduce_row.h). One-shot, each sends its rows to all;
 *               two-shot, where all that would be too much for the link, to the rank that the row belongs to, the ranks
 *               in turn: it adds them up and sends the sum to the others, which go on with it as if it were theirs
 *   pitch > 0   rank r has the rows [r * pitch, (r + 1) * pitch) of what is summed: a reduce_scatter, and an all_gather
 *               of what the chain gives (scatter_row.h)
 *
 * A group of lanes sends a row ahead of the one that it works on, and receives what is gathered a row behind: so the
 * link is busy while it waits. Groups of as many rows ahead fill it: 132 blocks of 16 KB are 2 MB, and what is on the
 * way at 450 GB/s and 1.3 us is 0.6 MB. Lane i of a rank waits for lane i of its peers alone, which sends a row before
 * it waits for that row, so the order of blocks does not matter as long as lower ones begin first.
 *
 * A tensor of more rows than the memory takes goes in several kernels, [first, end) each.
 */
#ifndef TE_COMM_PEER_ROW_H
#define TE_COMM_PEER_ROW_H

#include "../pointwise/impl/pointwise_step.h" /* te_norm_forward */
#include "peer_units.h"        /* te_peer_chain */

/* The kernel of a row, how many rows a block takes at a time, and its blocks on a multiprocessor; launch null: there is
 * none. */
typedef struct te_peer_row {
    te_status (*launch)(te_context *ctx, te_grid grid, const te_peer_chain *p);
    te_status (*two_shot)(te_context *ctx, te_grid grid, const te_peer_chain *p); /* of rows without a pitch */
    int groups, resident;
} te_peer_row;

/* ---- in the kernel ----------------------------------------------------------------------------------------------- */

/* te_norm_row_load of the sum over the ranks: gamma and the residual are loaded before the first unit is waited for.
 * row_x: the row, gamma, the residual. */
TE_FN void te_peer_row_load(const te_pointwise *c, te_stages_fn stages, const te_pointwise_shape k, int64_t row, te_lanes g,
                            te_vec8 *row_x, const void *source) {
    const te_peer_source *from = (const te_peer_source *)source;
    const te_peer_chain *p = from->p;
    const int parts = te__peer_parts(k.in), reads = k.reads < k.norm ? k.reads : -1;
    const te_stage *reader = reads < 0 ? 0 : &c->op[reads];
    const te_peer_spot s = te__peer_spot_of(p, k, row, from->two_shot);
    if (s.owner == p->peers.rank) te__peer_row_read(row_x, p, k, te__peer_row_of(from, p->peers.rank, row), g);
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const int vector = g.id + i * g.count;
        if (vector * 8 >= k.half) continue;
        const te_place at = te_place_of(k, row, vector, 1);
        te_load_gamma(&row_x[k.chunks + i], &c->op[k.norm], at, k.weight, k.norm_options.code);
        if (reader && reader->edge) te_vec8_load(&row_x[2 * k.chunks + i], reader->edge, te_index(at), 8, 1, k.weight);
    }
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const int vector = g.id + i * g.count;
        te_lane l;
        l.at = te_place_of(k, row, vector, 1);
        if (vector * 8 >= k.half) continue;
        TE_UNROLL for (int part = 0; part < parts; part++) {
            te_words own, sum;
            float v[8];
            te__peer_words_of(&own, &row_x[i], part);
            te__peer_unit_sum(&sum, &own, from, k, s, vector, part);
            te_words_add(v, &sum, k.in, 0);
            TE_UNROLL for (int j = 0; j < 8 / parts; j++) l.v[4 * part + j] = v[j];
        }
        if (reader) l.at.ahead_of = reader, l.at.ahead = row_x[2 * k.chunks + i];
        stages(&l, c, 0, k.norm);
        te_vec8_of(&row_x[i], l.v, k.norm_in);
    }
}
/* Constants: gathers: there is a pitch, and `store` is te_peer_row_store; two_shot: so. */
TE_FN void te_peer_row_body(const te_peer_chain *p, te_block b, te_stages_fn stages, te_store_fn store,
                            te_norm_store_fn give, const te_pointwise_shape k, te_vec8 *rows, const int gathers,
                            const int two_shot) {
    int group, one;
    te_lanes g = te_lanes_here(k.lanes, &group);
    te_peer_source source = {p, te__peer_turn(&p->peers, b), two_shot, gathers};
    const int64_t step = (int64_t)b.nx * k.groups, first = p->first + (int64_t)b.x * k.groups + group;
    int64_t row = first;
    if (p->c.take.taken && b.x == 0 && group == 0 && g.id == 0) te_rng_take_body(&p->c.take);
    if (!p->sent && first < p->end) te__peer_row_send(&source, k, first, g, rows);
    const uint32_t turn = source.turn;
    te_peer_most most = {0, turn};
    for (; row < p->end; row += step) {
        if (!p->sent && row + step < p->end) te__peer_row_send(&source, k, row + step, g, rows);
        te_norm_forward(&p->c, stages, store, k, row, &g, rows, &most.most, te_peer_row_load, give, &source);
        if (gathers && row > first) te__peer_row_receive(p, k, turn, row - step, g);
    }
    if (gathers && row > first) te__peer_row_receive(p, k, turn, row - step, g);
    te_pointwise_store_amax(&p->c, k, b, te_lanes_here(k.lanes * k.groups, &one), most.most);
    te__peer_done(&p->peers, b, turn, k.lanes * k.groups);
}

/* ---- on the host ------------------------------------------------------------------------------------------------- */

/* Rows that a kernel takes at a time of a rank's `rows`; 0: it takes none. bytes: of a row. With a pitch all of them,
 * of all ranks. Else as many as there is memory for, if a sum of so many is one-shot, as all are of two ranks; or,
 * two-shot, as many that each rank has the same number of them. */
TE_API int64_t te__peer_rows_at_once(const te_group *g, int64_t rows, int64_t bytes, int64_t pitch) {
    const te_peers *p = g->peers;
    if (!p || g->size < 2 || rows <= 0) return 0;
    if (pitch) return rows * bytes * g->size <= p->largest ? rows : 0;
    const int64_t most = te_min(rows, p->largest / bytes);
    return most * bytes <= p->one_shot ? most : te_min(rows, p->largest / bytes / g->size * g->size);
}
/* Launch the kernel on all rows of p->c, `at_once` at a time. x: what is summed, of `bytes` a row. */
TE_API te_status te__peer_rows_launch(te_peer_chain *p, te_run *r, te_value x, te_peer_row row, int64_t at_once) {
    const te_group *g = r->tensor;
    const int64_t bytes = x.cols * (int64_t)te_dtype_bytes(x.dtype), rows = p->c.rows;
    TE_TRY(te_peers_check(g, r->ctx));
    for (p->first = 0; p->first < rows; p->first = p->end) {
        p->end = te_min(rows, p->first + at_once);
        const int64_t blocks = te_min(TE_PEER_BLOCKS, (int64_t)g->peers->blocks * row.resident);
        const int two_shot = !p->pitch && at_once * bytes > g->peers->one_shot;
        p->peers = te__peer_args_of_rows(g, p->end - p->first, bytes, two_shot, x.dtype);
        p->c.x = 0, p->peers.x = x.data, p->peers.whole = 1;
        g->peers->collectives++, g->peers->rows++, g->peers->fp8 += p->gathered && p->c.fp8.y;
        const te_grid grid = te_grid_of(te_min(blocks, te_ceil_div(p->end - p->first, row.groups)), 1);
        TE_TRY(two_shot ? row.two_shot(r->ctx, grid, p) : row.launch(r->ctx, grid, p));
        p->c.take.taken = 0;
    }
    return TE_OK;
}

/* ---- the kernels of a chain -------------------------------------------------------------------------------------- */

/* Blocks on a multiprocessor, so that a thread has 64 registers. */
#define TE_PEER_RESIDENT(threads) ((threads) > 512 ? 1 : 1024 / (threads))

/* name##_peer_row(): that of a chain with a norm whose width is a constant, made from the kernel for few rows, which
 * latency dominates as well. */
#define TE__PEER_ROW_IN(widths, name, gathers, ...)                                                          \
    TE_IF_MARKED(TE_EACH_OP(TE__NORM_MARK, ~, __VA_ARGS__), TE_JOIN1(TE__PEER_ROW_, widths), TE__NO_PEER_ROW)  \
    (name, gathers)
#define TE__PEER_ROW_dims TE__NO_PEER_ROW
#define TE__PEER_ROW_dims_fp8 TE__NO_PEER_ROW
#define TE__NO_PEER_ROW(name, gathers)          \
    TE_API te_peer_row name##_peer_row(void) { \
        const te_peer_row none = {0, 0, 1, 1};  \
        return none;                            \
    }
#if TE_CUDA
#define TE__PEER_ROW_fixed(name, gathers) TE__PEER_ROW_OF(name, name##_low_latency, gathers)
#define TE__PEER_ROW_fixed_training(name, gathers) TE__PEER_ROW_OF(name, name##_row_quick, gathers)
#else
#define TE__PEER_ROW_fixed(name, gathers) TE__PEER_ROW_OF(name, name, gathers)
#define TE__PEER_ROW_fixed_training(name, gathers) TE__PEER_ROW_OF(name, name##_row, gathers)
#endif
#define TE__PEER_ROW_fixed_fp8 TE__PEER_ROW_fixed
#define TE__PEER_ROW_OF(name, of, gathers) TE__PEER_ROW_##gathers(name, of)
#define TE__PEER_ROW_0(name, of)                                                                  \
    TE__PEER_KERNEL_OF(name##_peers, name, of, 0, 0)                                              \
    TE__PEER_KERNEL_OF(name##_peers_two_shot, name, of, 0, 1)                                     \
    TE__PEER_ROW_IS(name, of, name##_peers_two_shot_launch)
#define TE__PEER_ROW_1(name, of) TE__PEER_KERNEL_OF(name##_peers, name, of, 1, 0) TE__PEER_ROW_IS(name, of, 0)
#define TE__PEER_KERNEL_OF(kernel, name, of, gathers, two_shot)                                                \
    TE_FN void kernel##_body(const te_peer_chain *p, te_block b, of##_registers *r, of##_shared *s) {          \
        (void)s;                                                                                               \
        te_peer_row_body(p, b, name##_stages, TE__PEER_STORE_##gathers(name), TE_NORM_STORE_OF(name),           \
                         of##_shape(p->c.half), r->rows, gathers, two_shot);                                   \
    }                                                                                                          \
    TE_KERNEL_WITH(kernel, of##_threads, TE_PEER_RESIDENT(of##_threads), te_peer_chain, of##_registers,        \
        of##_shared, kernel##_body)
#define TE__PEER_ROW_IS(name, of, two_shot_launch)                                                             \
    TE_API te_peer_row name##_peer_row(void) {                                                                 \
        const te_peer_row row = {name##_peers_launch, two_shot_launch, of##_groups,                            \
                                 TE_PEER_RESIDENT(of##_threads)};                                              \
        return row;                                                                                            \
    }
#define TE__PEER_STORE_0(name) name##_fp8_wanted != 0 ? te_pointwise_store_fp8 : te_pointwise_store
#define TE__PEER_STORE_1(name) te_peer_row_store

#endif
