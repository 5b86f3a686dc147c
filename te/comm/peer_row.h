/* peer_row.h -- the kernel of a chain whose rows are sums over ranks that map each other's memory (peers.h). A lane
 * sends the others the units of 16 bytes that it has of a row, waits for theirs, and goes on with the sum in registers,
 * in f32, in the order of the ranks, rounded once. So the bits are those of a collective and the chain behind it. But
 * of more rows than multiprocessors that chain has the kernel for many rows, whose lanes add up a norm's row in another
 * order: one row in ten then has another rstd, in the last bit of f32, and few of those another number of 16 bits.
 *
 *   pitch 0     all ranks have the same rows: an all_reduce, one-shot (all_reduce_row.h)
 *   pitch > 0   rank r has the rows [r * pitch, (r + 1) * pitch) of what is summed: a reduce_scatter, and where
 *               `gathered` is not null an all_gather of what the chain gives (scatter_row.h)
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

#include "../fuse/chain_run.h" /* te_chain, te_norm_forward */
#include "peers.h"             /* te_peer_args */

typedef struct te_peer_chain {
    te_chain c;          /* its x: null */
    te_peer_args peers;  /* bytes: of the rows [first, end); its y: null */
    int64_t first, end, pitch;
    void *gathered;      /* [ranks * pitch, half]; null: not wanted */
    int sent;            /* the kernel before has sent x (te/comm/send.h) */
} te_peer_chain;
/* The kernel of a row, how many rows a block takes at a time, and its blocks on a multiprocessor; launch null: there is
 * none. */
typedef struct te_peer_row {
    te_status (*launch)(te_context *ctx, te_grid grid, const te_peer_chain *p);
    int groups, resident;
} te_peer_row;

/* ---- in the kernel ----------------------------------------------------------------------------------------------- */

/* What te_norm_load_fn gets. */
typedef struct te_peer_source {
    const te_peer_chain *p;
    uint32_t turn;
} te_peer_source;
/* What te_store_fn gets in the place of its `most`. */
typedef struct te_peer_most { uint32_t most, turn; } te_peer_most;

/* Units of 16 bytes of eight elements. */
TE_FN int te__peer_parts(te_dtype t) { return t == TE_f32 ? 2 : 1; }
/* Of all units that a rank sends to another one, which unit `part` of this vector is. */
TE_FN int te__peer_unit(const te_peer_chain *p, const te_chain_shape k, int64_t row, int vector, int part) {
    return ((int)(row - p->first) * (k.half / 8) + vector) * te__peer_parts(k.in) + part;
}
/* And of what is gathered: behind what all ranks send to be added up. */
TE_FN int te__peer_gathered(const te_peer_chain *p, const te_chain_shape k, int64_t row, int vector, int part) {
    return p->peers.ranks * (int)(p->peers.bytes / TE_WORDS) + te__peer_unit(p, k, row, vector, part);
}
TE_FN void te__peer_words_of(te_words *w, const te_vec8 *v, int part) {
    TE_UNROLL for (int j = 0; j < 4; j++) w->w[j] = v->w[4 * part + j];
    te_words_mark(w);
}
/* Send each other rank its row of x; the one behind this rank first, so that not all send to the same. The turn is on
 * its way while x is loaded. */
TE_FN void te__peer_row_send(const te_peer_chain *p, const te_chain_shape k, uint32_t *turn, int64_t row, te_lanes g,
                             te_vec8 *row_x) {
    const te_peer_args *a = &p->peers;
    const int units = (int)(a->bytes / TE_WORDS);
    TE_UNROLL_1 for (int i = 1; i < a->ranks; i++) {
        const int to = a->rank + i < a->ranks ? a->rank + i : a->rank + i - a->ranks;
        TE_UNROLL for (int j = 0; j < k.chunks; j++) {
            const int vector = g.id + j * g.count;
            if (vector * 8 < k.half)
                te_vec8_load(&row_x[j], a->x, (to * p->pitch + row) * k.half + vector * 8, 8, 1, k.in);
        }
        te__peer_turn_now(turn);
        TE_UNROLL for (int j = 0; j < k.chunks; j++) {
            const int vector = g.id + j * g.count;
            if (vector * 8 >= k.half) continue;
            TE_UNROLL for (int part = 0; part < te__peer_parts(k.in); part++) {
                te_words w;
                te__peer_words_of(&w, &row_x[j], part);
                te_words_send(te__peer_slot(a->at[to], a, *turn, a->rank, units,
                                            te__peer_unit(p, k, row, vector, part)), &w);
            }
        }
    }
}
/* te_norm_row_load of the sum over the ranks: gamma and the residual are loaded before the first unit is waited for.
 * row_x: the row, gamma, the residual. */
TE_FN void te_peer_row_load(const te_chain *c, te_stages_fn stages, const te_chain_shape k, int64_t row, te_lanes g,
                            te_vec8 *row_x, const void *source) {
    const te_peer_source *from = (const te_peer_source *)source;
    const te_peer_chain *p = from->p;
    const te_peer_args *a = &p->peers;
    const int parts = te__peer_parts(k.in), units = (int)(a->bytes / TE_WORDS);
    const int reads = k.reads < k.norm ? k.reads : -1;
    const te_stage *reader = reads < 0 ? 0 : &c->op[reads];
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const int vector = g.id + i * g.count;
        if (vector * 8 >= k.half) continue;
        te_vec8_load(&row_x[i], a->x, (a->rank * p->pitch + row) * k.half + vector * 8, 8, 1, k.in);
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
            if (!te__peer_sum_of_each(&sum, &own, a, from->turn, units, te__peer_unit(p, k, row, vector, part), k.in))
                sum = own; /* goes on, for the lanes of a row meet in its sums */
            te_words_add(v, &sum, k.in, 0);
            TE_UNROLL for (int j = 0; j < 8 / parts; j++) l.v[4 * part + j] = v[j];
        }
        if (reader) l.at.ahead_of = reader, l.at.ahead = row_x[2 * k.chunks + i];
        stages(&l, c, 0, k.norm);
        te_vec8_of(&row_x[i], l.v, k.norm_in);
    }
}
/* Where rank `from` stores eight bytes of what is gathered in FP8 into the memory `at`. */
TE_FN char *te__peer_fp8_slot(char *at, const te_peer_chain *p, const te_chain_shape k, uint32_t turn, int from,
                              int64_t row, int vector) {
    const int units = (int)(p->peers.bytes / TE_WORDS);
    return te__peer_slot(at, &p->peers, turn, from, units, p->peers.ranks * units) +
           8 * ((row - p->first) * (k.half / 8) + vector);
}
/* In FP8, by a scale that all ranks have: the bits of a cast of what is rounded to the list's format. */
TE_FN void te__peer_row_store_fp8(const te_peer_chain *p, const te_vec8 *y, int64_t row, int vector,
                                  const te_chain_shape k, te_peer_most *most) {
    const te_peer_args *a = &p->peers;
    const float scale = *p->c.fp8.scale;
    te_vec8 e;
    te_words w;
    float v[8];
    te_vec8_floats(v, y, k.out);
    most->most = te_amax_bits8(most->most, v);
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] *= scale;
    te_vec8_of_fp8(&e, v, TE_e4m3);
    w.w[0] = e.w[0], w.w[1] = e.w[1], w.w[2] = w.w[3] = 0;
    te_words_mark_fp8(&w);
    TE_UNROLL_1 for (int i = 1; i < a->ranks; i++) {
        const int to = a->rank + i < a->ranks ? a->rank + i : a->rank + i - a->ranks;
        te_words_send8(te__peer_fp8_slot(a->at[to], p, k, most->turn, a->rank, row, vector), &w);
    }
    te_words_store8(p->gathered, (a->rank * p->pitch + row) * k.half + vector * 8, &w, 8, 1);
}
/* A te_store_fn: to this rank's rows of what is gathered, and to all others. */
TE_FN void te_peer_row_store(const te_chain *c, const te_lane *l, const te_chain_shape k, uint32_t *state) {
    const te_peer_chain *p = (const te_peer_chain *)(const void *)c; /* whose first member c is */
    const te_peer_args *a = &p->peers;
    te_peer_most *most = (te_peer_most *)(void *)state;
    const int units = (int)(a->bytes / TE_WORDS), vector = l->at.col / 8, parts = te__peer_parts(k.out);
    const int64_t own = (a->rank * p->pitch + l->at.row) * k.half + l->at.col;
    te_vec8 v;
    if (c->y) te_store_lane(l, c->y, k);
    te_vec8_of_pairs(&v, l->v, k.out);
    if (k.fp8 && c->fp8.y) {
        te__peer_row_store_fp8(p, &v, l->at.row, vector, k, most);
        return;
    }
    TE_UNROLL for (int part = 0; part < parts; part++) {
        te_words w;
        te__peer_words_of(&w, &v, part);
        TE_UNROLL_1 for (int i = 1; i < a->ranks; i++) {
            const int to = a->rank + i < a->ranks ? a->rank + i : a->rank + i - a->ranks;
            te_words_send(te__peer_slot(a->at[to], a, most->turn, a->rank, units,
                                        te__peer_gathered(p, k, l->at.row, vector, part)), &w);
        }
        te_words_store(p->gathered, own * (16 * parts / 8) + part * TE_WORDS, &w, TE_WORDS, 1);
    }
}
/* The same row of what each other rank gives. */
TE_FN void te__peer_row_receive(const te_peer_chain *p, const te_chain_shape k, uint32_t turn, int64_t row,
                                te_lanes g) {
    const te_peer_args *a = &p->peers;
    const int units = (int)(a->bytes / TE_WORDS), fp8 = k.fp8 && p->c.fp8.y;
    const int parts = fp8 ? 1 : te__peer_parts(k.out);
    TE_UNROLL_1 for (int i = 1; i < a->ranks; i++) {
        const int of = a->rank + i < a->ranks ? a->rank + i : a->rank + i - a->ranks;
        TE_UNROLL for (int j = 0; j < k.chunks * te__peer_parts(k.out); j++) {
            const int vector = g.id + j / parts * g.count, part = j % parts;
            const int64_t at = (of * p->pitch + row) * k.half + vector * 8;
            te_words w;
            if (vector * 8 >= k.half || j >= k.chunks * parts) continue;
            if (fp8) {
                if (!te__peer_wait8(&w, a, te__peer_fp8_slot(a->own, p, k, turn, of, row, vector), of)) return;
                te_words_store8(p->gathered, at, &w, 8, 1);
                continue;
            }
            if (!te__peer_wait_of(&w, a, turn, units, te__peer_gathered(p, k, row, vector, part), of)) return;
            te_words_store(p->gathered, at * (16 * parts / 8) + part * TE_WORDS, &w, TE_WORDS, 1);
        }
    }
}
/* gathers: a constant, whether p->gathered is wanted; `store` is then te_peer_row_store. */
TE_FN void te_peer_row_body(const te_peer_chain *p, te_block b, te_stages_fn stages, te_store_fn store,
                            te_norm_give_fn give, const te_chain_shape k, te_vec8 *rows, const int gathers) {
    int group, one;
    te_lanes g = te_lanes_here(k.lanes, &group);
    uint32_t turn = te__peer_turn(&p->peers, b);
    const int64_t step = (int64_t)b.nx * k.groups, first = p->first + (int64_t)b.x * k.groups + group;
    int64_t row = first;
    if (p->c.take.taken && b.x == 0 && group == 0 && g.id == 0) te_rng_take_body(&p->c.take);
    if (!p->sent && first < p->end) te__peer_row_send(p, k, &turn, first, g, rows);
    const te_peer_source source = {p, turn};
    te_peer_most most = {0, turn};
    for (; row < p->end; row += step) {
        if (!p->sent && row + step < p->end) te__peer_row_send(p, k, &turn, row + step, g, rows);
        te_norm_forward(&p->c, stages, store, k, row, &g, rows, &most.most, te_peer_row_load, give, &source);
        if (gathers && row > first) te__peer_row_receive(p, k, turn, row - step, g);
    }
    if (gathers && row > first) te__peer_row_receive(p, k, turn, row - step, g);
    te_chain_leave_amax(&p->c, k, b, te_lanes_here(k.lanes * k.groups, &one), most.most);
    te__peer_done(&p->peers, b, turn, k.lanes * k.groups);
}

/* ---- on the host ------------------------------------------------------------------------------------------------- */

/* Rows that a kernel takes at a time of a rank's `rows`; 0: it takes none. bytes: of a row, which goes to all others
 * or, if pitch > 0, another one to each. Of two ranks one-shot sends no more than two-shot: any number of rows. */
TE_API int64_t te__peer_rows_at_once(const te_group *g, int64_t rows, int64_t bytes, int64_t pitch) {
    const te_peers *p = g->peers;
    const int64_t each = pitch ? bytes * g->size : bytes, most = !p ? 0 : pitch ? p->largest : p->one_shot;
    if (!p || g->size < 2 || rows <= 0) return 0;
    if (rows * each <= most) return rows;
    return !pitch && g->size == 2 && most == p->largest ? most / each : 0;
}
/* Launch the kernel on all rows of p->c, `at_once` at a time. x: what is summed, of `bytes` a row. */
TE_API te_status te__peer_rows_launch(te_peer_chain *p, te_run *r, te_value x, te_peer_row row, int64_t at_once) {
    const te_group *g = r->tensor;
    const int64_t bytes = x.cols * (int64_t)te_dtype_bytes(x.dtype), rows = p->c.rows;
    TE_TRY(te_peers_check(g, r->ctx));
    for (p->first = 0; p->first < rows; p->first = p->end) {
        p->end = te_min(rows, p->first + at_once);
        const int64_t blocks = te_min(TE_PEER_BLOCKS, (int64_t)g->peers->blocks * row.resident);
        p->peers = te__peer_args_of(g, TE_PEER_all_reduce, TE_PEER_one_shot, (p->end - p->first) * bytes, x.dtype);
        p->c.x = 0, p->peers.x = x.p, p->peers.whole = 1;
        g->peers->collectives++, g->peers->rows++, g->peers->fp8 += p->gathered && p->c.fp8.y;
        TE_TRY(row.launch(r->ctx, te_grid_of(te_min(blocks, te_ceil_div(p->end - p->first, row.groups)), 1), p));
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
    TE_IF_MARKED(TE_ROW(TE__NORM_MARK, ~, __VA_ARGS__), TE_JOIN1(TE__PEER_ROW_, widths), TE__NO_PEER_ROW)  \
    (name, gathers)
#define TE__PEER_ROW_dims TE__NO_PEER_ROW
#define TE__PEER_ROW_dims_fp8 TE__NO_PEER_ROW
#define TE__NO_PEER_ROW(name, gathers)          \
    TE_API te_peer_row name##_peer_row(void) { \
        const te_peer_row none = {0, 1, 1};     \
        return none;                            \
    }
#if TE_CUDA
#define TE__PEER_ROW_fixed(name, gathers) TE__PEER_ROW_OF(name, name##_quick, gathers)
#define TE__PEER_ROW_fixed_tiled(name, gathers) TE__PEER_ROW_OF(name, name##_row_quick, gathers)
#else
#define TE__PEER_ROW_fixed(name, gathers) TE__PEER_ROW_OF(name, name, gathers)
#define TE__PEER_ROW_fixed_tiled(name, gathers) TE__PEER_ROW_OF(name, name##_row, gathers)
#endif
#define TE__PEER_ROW_fixed_fp8 TE__PEER_ROW_fixed
#define TE__PEER_ROW_OF(name, of, gathers)                                                                     \
    TE_FN void name##_peers_body(const te_peer_chain *p, te_block b, of##_registers *r, of##_shared *s) {      \
        (void)s;                                                                                               \
        te_peer_row_body(p, b, name##_stages, TE__PEER_STORE_##gathers(name), TE_NORM_GIVE_OF(name),           \
                         of##_shape(p->c.half), r->rows, gathers);                                             \
    }                                                                                                          \
    TE_KERNEL_WITH(name##_peers, of##_threads, TE_PEER_RESIDENT(of##_threads), te_peer_chain, of##_registers,  \
        of##_shared, name##_peers_body)                                                                        \
    TE_API te_peer_row name##_peer_row(void) {                                                                 \
        const te_peer_row row = {name##_peers_launch, of##_groups, TE_PEER_RESIDENT(of##_threads)};            \
        return row;                                                                                            \
    }
#define TE__PEER_STORE_0(name) name##_fp8_wanted != 0 ? te_chain_store_fp8 : te_chain_store
#define TE__PEER_STORE_1(name) te_peer_row_store

#endif
