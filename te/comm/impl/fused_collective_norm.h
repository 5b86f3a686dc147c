/* fused_collective_norm.h -- fused collective patterns: a collective, a norm and the ops around it as one kernel, if
 * the ranks have symmetric memory (symmetric_memory.h):
 *
 *   all_reduce [bias] [dropout] add [fork or output] norm          All ranks have all rows. One-shot or two-shot, like
 *   all_reduce norm add                                            an all_reduce that is not fused.
 *   reduce_scatter [bias] [dropout] add [fork or output] norm all_gather     Sequence parallelism: rank r computes the
 *                                                                  norm of its `pitch` rows, from row r * pitch on.
 *
 * For each row a lane sends its packets to the other ranks, waits for the packets of the other ranks, adds all packets
 * in f32 in rank order, rounds once, and continues with the sum in registers. The results are bitwise identical to the
 * results of the collective and the pointwise kernel, with one exception: if there are more rows than multiprocessors,
 * the pointwise kernel adds up the elements of a row in another order (the last bit of rstd then differs in one row of
 * ten). The collective and the pointwise kernel run separately if the fused kernel does not support the case, or if a
 * GEMM overlaps the collective (linear_comm_overlap.h).
 *
 * To keep the link busy, a group of lanes sends its next row before it computes the current one. With all_gather, it
 * receives the other ranks' results for a row only after it has computed its own next row. Lane i of a rank waits only
 * for lane i of the other ranks, and each lane sends its packets of a row before it waits for the packets of other
 * ranks. So no deadlock is possible if blocks with lower indices start first.
 *
 * Lower bound of the traffic, for rows of h 16-bit elements and N ranks. all_reduce pattern: for each row a rank sends
 * 2 * h bytes to each other rank (one-shot) or 4 * h * (N - 1) / N bytes in all (two-shot), reads x and the residual
 * from memory, and writes their sum and y (2 * h bytes for each of the four). reduce_scatter pattern: if the rows of
 * all ranks have S bytes, a rank sends 2 * S * (N - 1) / N bytes. Times: docs/notes/comm.md.
 */
#ifndef TE_COMM_FUSED_COLLECTIVE_NORM_H
#define TE_COMM_FUSED_COLLECTIVE_NORM_H

#include "../../pointwise/impl/pointwise_step.h" /* te_pointwise, te_norm_forward */
#include "../../fuse/impl/matcher.h"      /* TE_FUSED */
#include "collective_step.h"      /* te__collective_apply, te__deferred_gemm_reduce_scatter, .._all_reduce */
#include "symmetric_memory.h"     /* te_peer_args, te__peer_wait_rank */

#define TE_FORWARD_all_reduce_add_norm TE_FUSED
#define TE_FORWARD_all_reduce_add_fork_norm TE_FUSED
#define TE_FORWARD_all_reduce_bias_add_norm TE_FUSED
#define TE_FORWARD_all_reduce_bias_add_fork_norm TE_FUSED
#define TE_FORWARD_all_reduce_bias_dropout_add_norm TE_FUSED
#define TE_FORWARD_all_reduce_bias_dropout_add_fork_norm TE_FUSED
#define TE_FORWARD_all_reduce_add_output_norm TE_FUSED
#define TE_FORWARD_all_reduce_bias_add_output_norm TE_FUSED
#define TE_FORWARD_all_reduce_bias_dropout_add_output_norm TE_FUSED
#define TE_FORWARD_all_reduce_norm_add TE_FUSED

#define TE_FORWARD_reduce_scatter_add_norm_all_gather TE_FUSED
#define TE_FORWARD_reduce_scatter_bias_add_norm_all_gather TE_FUSED
#define TE_FORWARD_reduce_scatter_bias_dropout_add_norm_all_gather TE_FUSED
#define TE_FORWARD_reduce_scatter_add_fork_norm_all_gather TE_FUSED
#define TE_FORWARD_reduce_scatter_bias_add_fork_norm_all_gather TE_FUSED
#define TE_FORWARD_reduce_scatter_dropout_add_fork_norm_all_gather TE_FUSED
#define TE_FORWARD_reduce_scatter_bias_dropout_add_fork_norm_all_gather TE_FUSED
#define TE_FORWARD_reduce_scatter_add_output_norm_all_gather TE_FUSED
#define TE_FORWARD_reduce_scatter_bias_add_output_norm_all_gather TE_FUSED
#define TE_FORWARD_reduce_scatter_bias_dropout_add_output_norm_all_gather TE_FUSED

/* ---- a kernel's arguments ---------------------------------------------------------------------------------------- */

typedef struct te_fused_collective_args {
    /* the arguments of the pattern's pointwise kernel. `c` must be the first member: te_fused_row_store gets a pointer
     * to c and casts that pointer to a pointer to this struct. c.x is null, because the input is peers.x */
    te_pointwise c;
    /* the arguments of the exchange between ranks. peers.bytes: the bytes of partial sums that one rank sends to
     * another in this launch; peers.y is null, because the kernel stores its results through c */
    te_peer_args peers;
    int64_t first, end;         /* this launch computes rows [first, end) */
    /* in reduce_scatter .. all_gather the number of rows that each rank has after the reduce_scatter; 0 in an
     * all_reduce */
    int64_t pitch;
    void *gathered;             /* [ranks * pitch, c.half]: receives the output of all_gather; null in an all_reduce */
    int is_sent;                /* 1 if the epilogue of the previous GEMM has already sent x to the other ranks */
    void *sum;                  /* [c.rows, c.half]: receives the sum over the ranks, which backward reads if the norm
                                 * directly follows the collective; null if the sum is not stored */
} te_fused_collective_args;
/* Which collective a fused kernel contains: a one-shot or two-shot all_reduce, or reduce_scatter .. all_gather. */
typedef enum te_fused_mode { TE_FUSED_one_shot, TE_FUSED_two_shot, TE_FUSED_gathers } te_fused_mode;
/* The argument `source` of te_fused_reduce_load, which is the load function (of type te_norm_load_fn) of a fused
 * kernel's norm. */
typedef struct te_fused_collective_source {
    const te_fused_collective_args *p;
    uint32_t epoch;
    /* two_shot: whether the kernel's mode is TE_FUSED_two_shot; gathers: whether its mode is TE_FUSED_gathers */
    int two_shot, gathers;
} te_fused_collective_source;
/* The state of the store function te_fused_row_store. A store function (te_store_fn) gets only a pointer to the bits of
 * the amax, but te_fused_row_store also needs the epoch. te_fused_row_store casts its pointer to a pointer to this
 * struct, so `amax` must be the first member. */
typedef struct te_fused_collective_state { uint32_t amax, epoch; } te_fused_collective_state;

/* ---- device: slots of a row's packets ---------------------------------------------------------------------------- */

/* A lane works on vectors of eight elements. A vector is sent as one packet of 16 bytes or, in f32, as two packets.
 * A rank's buffer has two halves, which successive epochs (collectives) use in turn. Each half holds first the packets
 * that are to be summed, sorted by sender, and then the packets of results: the sums in a two-shot all_reduce, the
 * gathered rows in reduce_scatter .. all_gather. */

/* Returns the number of packets in which a vector of eight elements is sent. */
TE_FN int te__fused_packets_per_vector(te_dtype t) { return t == TE_f32 ? 2 : 1; }

/* Returns the index, within the tensor x, of row number `row` among the rows that rank `rank` sums. In an all_reduce
 * every rank computes all rows, so the result is `row`. */
TE_FN int64_t te__fused_source_row(const te_fused_collective_source *from, int rank, int64_t row) {
    return from->gathers ? rank * from->p->pitch + row : row;
}
/* Which rank sums a row, and where the row's packets lie. owner: the rank that sums the row. With two-shot, rank i %
 * ranks sums row i of the launch. Otherwise each rank sums all rows that it computes, so the owner is this rank.
 * packet: the index of the row's first packet among the packets that one rank sends to another. */
typedef struct te_fused_row_place { int owner, packet; } te_fused_row_place;
TE_FN te_fused_row_place te__fused_row_place_of(const te_fused_collective_args *p, const te_pointwise_shape k,
                                                int64_t row, const int two_shot) {
    const unsigned at = (unsigned)(row - p->first), ranks = (unsigned)p->peers.ranks;
    te_fused_row_place s = {p->peers.rank, (int)at};
    if (two_shot) s.packet = (int)(at / ranks), s.owner = (int)(at % ranks);
    s.packet *= k.half / 8 * te__fused_packets_per_vector(k.in);
    return s;
}
TE_FN int te__fused_packet(te_fused_row_place s, const te_pointwise_shape k, int vector, int part) {
    return s.packet + vector * te__fused_packets_per_vector(k.in) + part;
}
TE_FN int te__fused_result_packet(const te_fused_collective_args *p, te_fused_row_place s, const te_pointwise_shape k,
                                  int vector, int part) {
    return p->peers.ranks * (int)(p->peers.bytes / TE_PACKET_BYTES) + te__fused_packet(s, k, vector, part);
}
TE_FN void te__fused_make_packet(te_packet *w, const te_vec8 *v, int part) {
    TE_UNROLL for (int j = 0; j < 4; j++) w->w[j] = v->w[4 * part + j];
    te_packet_escape(w);
}
/* Returns the address, within `buffer`, of the slot into which rank `from` sends vector `vector` (eight elements in
 * FP8) of rank `from`'s row `row`. */
TE_FN char *te__fused_fp8_slot(char *buffer, const te_fused_collective_args *p, const te_pointwise_shape k,
                               uint32_t epoch, int from, int64_t row, int vector) {
    const int packets = (int)(p->peers.bytes / TE_PACKET_BYTES);
    return te__peer_slot(buffer, &p->peers, epoch, from, packets, p->peers.ranks * packets) +
           8 * ((row - p->first) * (k.half / 8) + vector);
}

/* ---- device: send a row to be summed ----------------------------------------------------------------------------- */

/* Loads this lane's vectors, of eight elements each, of row `row` of x. */
TE_FN void te__fused_row_load(te_vec8 *row_x, const te_fused_collective_args *p, const te_pointwise_shape k,
                              int64_t row, te_lanes g) {
    TE_UNROLL for (int j = 0; j < k.chunks; j++) {
        const int vector = g.id + j * g.count;
        if (vector * 8 < k.half) te_vec8_load(&row_x[j], p->peers.x, row * k.half + vector * 8, 8, 1, k.in);
    }
}
/* Sends this lane's vectors of a row, which row_x holds, to rank `to`. */
TE_FN void te__fused_row_send_to(const te_fused_collective_args *p, const te_pointwise_shape k, uint32_t epoch, int to,
                                 te_fused_row_place s, const te_vec8 *row_x, te_lanes g) {
    const te_peer_args *a = &p->peers;
    TE_UNROLL for (int j = 0; j < k.chunks; j++) {
        const int vector = g.id + j * g.count;
        if (vector * 8 >= k.half) continue;
        TE_UNROLL for (int part = 0; part < te__fused_packets_per_vector(k.in); part++) {
            te_packet w;
            te__fused_make_packet(&w, &row_x[j], part);
            te_packet_send(te__peer_slot(a->buffer[to], a, epoch, a->rank, (int)(a->bytes / TE_PACKET_BYTES),
                                        te__fused_packet(s, k, vector, part)), &w);
        }
    }
}
/* Sends a row of x to other ranks. In an all_reduce, row `row` is sent to the rank or ranks that sum it. In
 * reduce_scatter .. all_gather, each other rank gets a different row, namely the row with index `row` among the rows
 * that the receiving rank sums. row_x: registers for two rows, because the row for the next rank is loaded while this
 * row is sent. The epoch is first used after the loads of x have been issued, so that the load of the epoch and the
 * loads of x overlap. */
TE_FN void te__fused_row_send(te_fused_collective_source *from, const te_pointwise_shape k, int64_t row, te_lanes g,
                              te_vec8 *row_x) {
    const te_fused_collective_args *p = from->p;
    const te_peer_args *a = &p->peers;
    const te_fused_row_place s = te__fused_row_place_of(p, k, row, from->two_shot);
    if (from->two_shot && s.owner == a->rank) return;
    te__fused_row_load(row_x, p, k, te__fused_source_row(from, te__peer_next(a, 1), row), g);
    te__peer_epoch_use(&from->epoch);
    if (from->two_shot) te__fused_row_send_to(p, k, from->epoch, s.owner, s, row_x, g);
    TE_UNROLL_1 for (int i = 1; !from->two_shot && i < a->ranks; i++) {
        const int more = from->gathers && i + 1 < a->ranks;
        if (more)
            te__fused_row_load(row_x + k.chunks, p, k, te__fused_source_row(from, te__peer_next(a, i + 1), row), g);
        te__fused_row_send_to(p, k, from->epoch, te__peer_next(a, i), s, row_x, g);
        TE_UNROLL for (int j = 0; j < k.chunks; j++) if (more) row_x[j] = row_x[k.chunks + j];
    }
}

/* ---- device: sum a row and load what the norm needs -------------------------------------------------------------- */

/* Sets *sum to the sum of one packet over the ranks. local: this rank's packet. With two-shot, only the owner of the
 * row computes the sum; the owner then sends the sum to the other ranks, which receive the sum here. Otherwise every
 * rank that needs the sum computes it. After a timeout the lane does not return but continues with a wrong sum, because
 * the other lanes of the row wait for this lane in the norm's reductions. */
TE_FN void te__fused_packet_sum(te_packet *sum, const te_packet *local, const te_fused_collective_source *from,
                                const te_pointwise_shape k, te_fused_row_place s, int vector, int part) {
    const te_fused_collective_args *p = from->p;
    const te_peer_args *a = &p->peers;
    const int two_shot = from->two_shot, packets = (int)(a->bytes / TE_PACKET_BYTES);
    const int is_owner = !two_shot || s.owner == a->rank;
    const int result = te__fused_result_packet(p, s, k, vector, part);
    if (is_owner)
        te__peer_sum_serial(sum, local, a, from->epoch, packets, te__fused_packet(s, k, vector, part), k.in);
    else (void)te__peer_wait_rank(sum, a, from->epoch, packets, result, s.owner);
    if (!two_shot || !is_owner) return;
    te_packet_escape(sum);
    TE_UNROLL_1 for (int i = 1; i < a->ranks; i++)
        te_packet_send(te__peer_slot(a->buffer[te__peer_next(a, i)], a, from->epoch, a->rank, packets, result), sum);
}
/* The load function (of type te_norm_load_fn) of a fused collective kernel. The function sums a row over the ranks,
 * runs the ops before the norm on the sum, and sets row_x to the norm's input. Gamma and the residual are loaded before
 * the wait for the first packet, so that these loads overlap the wait. The add that reads the residual may come before
 * or after the norm. row_x: registers for the row, for gamma, and for the residual, k.chunks vectors each. */
TE_FN void te_fused_reduce_load(const te_pointwise *c, te_stages_fn stages, const te_pointwise_shape k, int64_t row,
                                te_lanes g, te_vec8 *row_x, const void *source) {
    const te_fused_collective_source *from = (const te_fused_collective_source *)source;
    const te_fused_collective_args *p = from->p;
    const int parts = te__fused_packets_per_vector(k.in);
    const te_stage *add = k.reads < 0 ? 0 : &c->op[k.reads]; /* the op that reads the residual */
    const te_fused_row_place s = te__fused_row_place_of(p, k, row, from->two_shot);
    if (s.owner == p->peers.rank) te__fused_row_load(row_x, p, k, te__fused_source_row(from, p->peers.rank, row), g);
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const int vector = g.id + i * g.count;
        if (vector * 8 >= k.half) continue;
        const te_place at = te_place_of(k, row, vector, 1);
        te_load_gamma(&row_x[k.chunks + i], &c->op[k.norm], at, k);
        if (add && add->edge) te_vec8_load(&row_x[2 * k.chunks + i], add->edge, te_index(at), 8, 1, k.weight);
    }
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const int vector = g.id + i * g.count;
        te_lane l;
        l.at = te_place_of(k, row, vector, 1);
        if (vector * 8 >= k.half) continue;
        TE_UNROLL for (int part = 0; part < parts; part++) {
            te_packet local, sum;
            float v[8];
            te__fused_make_packet(&local, &row_x[i], part);
            te__fused_packet_sum(&sum, &local, from, k, s, vector, part);
            te_packet_add(v, &sum, k.in, 0);
            TE_UNROLL for (int j = 0; j < 8 / parts; j++) l.v[4 * part + j] = v[j];
        }
        if (p->sum) te_store8(p->sum, te_index(l.at), l.v, 8, 1, k.in);
        if (add) l.at.ahead_of = add, l.at.ahead = row_x[2 * k.chunks + i];
        stages(&l, c, 0, k.norm);
        te_vec8_of(&row_x[i], l.v, k.norm_in);
    }
}

/* ---- device: all-gather the normed rows -------------------------------------------------------------------------- */

/* Casts eight elements of y to FP8, sends them to all other ranks, and stores them to this rank's rows of `gathered`.
 * The scale, *p->c.fp8.scale, is the same on all ranks. The result is bitwise identical to that of
 * te_pointwise_store_fp8. */
TE_FN void te__fused_row_store_fp8(const te_fused_collective_args *p, const float y[8], int64_t row, int vector,
                                   const te_pointwise_shape k, te_fused_collective_state *state) {
    const te_peer_args *a = &p->peers;
    const float scale = *p->c.fp8.scale;
    te_vec8 e;
    te_packet w;
    float v[8];
    state->amax = te_amax_bits8(state->amax, y);
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] = te_fp8_scaled(y[i], scale);
    te_vec8_of_fp8(&e, v, TE_e4m3);
    w.w[0] = e.w[0], w.w[1] = e.w[1], w.w[2] = w.w[3] = 0;
    te_packet_escape_fp8(&w);
    TE_UNROLL_1 for (int i = 1; i < a->ranks; i++) {
        const int to = te__peer_next(a, i);
        te_packet_send8(te__fused_fp8_slot(a->buffer[to], p, k, state->epoch, a->rank, row, vector), &w);
    }
    te_packet_store8(p->gathered, (a->rank * p->pitch + row) * k.half + vector * 8, &w, 8, 1);
}
/* The store function (of type te_store_fn) of a fused kernel with an all_gather: store a vector of the norm's output to
 * this rank's rows of `gathered`, and send it to all other ranks. */
TE_FN void te_fused_row_store(const te_pointwise *c, const te_lane *l, const te_pointwise_shape k,
                              uint32_t *state_bits) {
    const te_fused_collective_args *p = (const te_fused_collective_args *)(const void *)c; /* c is its first member */
    const te_peer_args *a = &p->peers;
    te_fused_collective_state *state = (te_fused_collective_state *)(void *)state_bits;
    const int packets = (int)(a->bytes / TE_PACKET_BYTES), vector = l->at.col / 8;
    const int parts = te__fused_packets_per_vector(k.out);
    const int64_t local = (a->rank * p->pitch + l->at.row) * k.half + l->at.col;
    const te_fused_row_place s = te__fused_row_place_of(p, k, l->at.row, 0);
    te_vec8 v;
    if (c->y) te_store_lane(l, c->y, k);
    if (k.fp8 && c->fp8.y) {
        te__fused_row_store_fp8(p, l->v, l->at.row, vector, k, state);
        return;
    }
    te_vec8_of_pairs(&v, l->v, k.out);
    TE_UNROLL for (int part = 0; part < parts; part++) {
        te_packet w;
        te__fused_make_packet(&w, &v, part);
        TE_UNROLL_1 for (int i = 1; i < a->ranks; i++) {
            const int to = te__peer_next(a, i);
            te_packet_send(te__peer_slot(a->buffer[to], a, state->epoch, a->rank, packets,
                                        te__fused_result_packet(p, s, k, vector, part)), &w);
        }
        te_packet_store(p->gathered, local * (16 * parts / 8) + part * TE_PACKET_BYTES, &w, TE_PACKET_BYTES, 1);
    }
}
/* Receives row `row` of each other rank's output, and stores these rows to `gathered`. Returns early after a
 * timeout. */
TE_FN void te__fused_row_receive(const te_fused_collective_args *p, const te_pointwise_shape k, uint32_t epoch,
                                 int64_t row, te_lanes g) {
    const te_peer_args *a = &p->peers;
    const int packets = (int)(a->bytes / TE_PACKET_BYTES), fp8 = k.fp8 && p->c.fp8.y;
    const te_fused_row_place s = te__fused_row_place_of(p, k, row, 0);
    const int parts = fp8 ? 1 : te__fused_packets_per_vector(k.out);
    TE_UNROLL_1 for (int i = 1; i < a->ranks; i++) {
        const int from = te__peer_next(a, i);
        TE_UNROLL for (int j = 0; j < k.chunks * te__fused_packets_per_vector(k.out); j++) {
            const int vector = g.id + j / parts * g.count, part = j % parts;
            const int64_t at = (from * p->pitch + row) * k.half + vector * 8;
            te_packet w;
            if (vector * 8 >= k.half || j >= k.chunks * parts) continue;
            if (fp8) {
                char *const slot = te__fused_fp8_slot(a->local, p, k, epoch, from, row, vector);
                if (!te__peer_wait8(&w, a, slot, from)) return;
                te_packet_store8(p->gathered, at, &w, 8, 1);
                continue;
            }
            const int result = te__fused_result_packet(p, s, k, vector, part);
            if (!te__peer_wait_rank(&w, a, epoch, packets, result, from)) return;
            te_packet_store(p->gathered, at * (16 * parts / 8) + part * TE_PACKET_BYTES, &w, TE_PACKET_BYTES, 1);
        }
    }
}

/* ---- device: the kernel ------------------------------------------------------------------------------------------ */

/* The body of a fused collective kernel. stages, norm_store: the functions of the pattern's pointwise kernel. store:
 * te_fused_row_store in mode TE_FUSED_gathers; in the other modes the store function of the pointwise kernel. rows:
 * registers for at least [3][k.chunks] vectors of eight elements: a row of x, gamma, and a row of the residual
 * (te_fused_reduce_load). */
TE_FN void te_fused_collective_body(const te_fused_collective_args *p, te_block b, te_stages_fn stages,
                                    te_store_fn store, te_norm_store_fn norm_store, const te_pointwise_shape k,
                                    te_vec8 *rows, const te_fused_mode mode) {
    const int two_shot = mode == TE_FUSED_two_shot, gathers = mode == TE_FUSED_gathers;
    int group, whole_block;
    te_lanes g = te_lanes_here(k.lanes, &group);
    te_fused_collective_source source = {p, te__peer_epoch(&p->peers, b), two_shot, gathers};
    const int64_t step = (int64_t)b.nx * k.groups, first = p->first + (int64_t)b.x * k.groups + group;
    int64_t row = first;
    if (p->c.take.taken && b.x == 0 && group == 0 && g.id == 0) te_rng_take_body(&p->c.take);
    if (!p->is_sent && first < p->end) te__fused_row_send(&source, k, first, g, rows);
    const uint32_t epoch = source.epoch;
    te_fused_collective_state state = {0, epoch};
    for (; row < p->end; row += step) {
        if (!p->is_sent && row + step < p->end) te__fused_row_send(&source, k, row + step, g, rows);
        te_norm_forward(&p->c, stages, store, k, &g, te_norm_row_of(row, rows, &state.amax, &source),
                        te_fused_reduce_load, norm_store);
        if (gathers && row > first) te__fused_row_receive(p, k, epoch, row - step, g);
    }
    if (gathers && row > first) te__fused_row_receive(p, k, epoch, row - step, g);
    te_pointwise_store_amax(&p->c, k, b, te_lanes_here(k.lanes * k.groups, &whole_block), state.amax);
    te__peer_epoch_advance(&p->peers, b, epoch, k.lanes * k.groups);
}

/* The fused kernels of a pattern. */
typedef struct te_fused_collective {
    te_status (*launch)(te_context *ctx, te_grid grid, const te_fused_collective_args *p);   /* null: no fused kernel */
    /* null if the pattern has no two-shot kernel */
    te_status (*two_shot)(te_context *ctx, te_grid grid, const te_fused_collective_args *p);
    int groups, blocks_per_sm; /* groups: the number of rows that a block computes at a time; blocks_per_sm: the number
                                * of blocks per multiprocessor */
} te_fused_collective;

/* The number of blocks, of `threads` threads each, that are resident on a multiprocessor. All these blocks together
 * have at most 1024 threads, so that the compiler may use 64 registers in each thread. */
#define TE_FUSED_BLOCKS_PER_SM(threads) ((threads) > 512 ? 1 : 1024 / (threads))

/* Defines name##_fused_collective(), which returns the fused kernels of the pattern whose pointwise kernel is `name`.
 * Fused kernels exist only if the pattern has a norm and the widths are compile-time constants. The fused kernels are
 * variants of the pattern's low-latency pointwise kernel (TE_LOW_LATENCY_LANES), because with few rows latency
 * dominates. gathers: 0 for all_reduce, 1 for reduce_scatter .. all_gather. widths: how the widths are known, as
 * constants or at run time (te/fuse/impl/kernels.h). */
#define TE__FUSED_COLLECTIVE(widths, name, gathers, ...)                                                        \
    TE_IF_MARKED(TE_EACH_OP(TE__NORM_MARK, ~, __VA_ARGS__), TE_JOIN1(TE__FUSED_COLLECTIVE_, widths),                \
                 TE__NO_FUSED_COLLECTIVE)                                                                       \
    (name, gathers)
#define TE__FUSED_COLLECTIVE_dims TE__NO_FUSED_COLLECTIVE
#define TE__FUSED_COLLECTIVE_dims_fp8 TE__NO_FUSED_COLLECTIVE
#define TE__NO_FUSED_COLLECTIVE(name, gathers)                  \
    TE_API te_fused_collective name##_fused_collective(void) { \
        const te_fused_collective none = {0, 0, 1, 1};          \
        return none;                                            \
    }
#if TE_CUDA
#define TE__FUSED_COLLECTIVE_fixed(name, gathers) TE__FUSED_COLLECTIVE_OF(name, name##_low_latency, gathers)
#define TE__FUSED_COLLECTIVE_fixed_training(name, gathers) \
    TE__FUSED_COLLECTIVE_OF(name, name##_row_low_latency, gathers)
#else
#define TE__FUSED_COLLECTIVE_fixed(name, gathers) TE__FUSED_COLLECTIVE_OF(name, name, gathers)
#define TE__FUSED_COLLECTIVE_fixed_training(name, gathers) TE__FUSED_COLLECTIVE_OF(name, name##_row, gathers)
#endif
#define TE__FUSED_COLLECTIVE_fixed_fp8 TE__FUSED_COLLECTIVE_fixed
#define TE__FUSED_COLLECTIVE_OF(name, of, gathers) TE__FUSED_COLLECTIVE_##gathers(name, of)
#define TE__FUSED_COLLECTIVE_0(name, of)                                     \
    TE__FUSED_COLLECTIVE_KERNEL(name##_peers, name, of, one_shot)            \
    TE__FUSED_COLLECTIVE_KERNEL(name##_peers_two_shot, name, of, two_shot)   \
    TE__FUSED_COLLECTIVE_TABLE(name, of, name##_peers_two_shot_launch)
#define TE__FUSED_COLLECTIVE_1(name, of)                      \
    TE__FUSED_COLLECTIVE_KERNEL(name##_peers, name, of, gathers) \
    TE__FUSED_COLLECTIVE_TABLE(name, of, 0)
#define TE__FUSED_COLLECTIVE_KERNEL(kernel, name, of, mode)                                                     \
    TE_FN void kernel##_body(const te_fused_collective_args *p, te_block b, of##_registers *r, of##_shared *s) { \
        (void)s;                                                                                                \
        te_fused_collective_body(p, b, name##_stages, TE__FUSED_COLLECTIVE_STORE_##mode(name),                  \
                                 TE_NORM_STORE_OF(name), of##_shape(p->c.half), r->rows,                         \
                                 TE_FUSED_##mode);                                                              \
    }                                                                                                           \
    TE_KERNEL_WITH(kernel, of##_threads, TE_FUSED_BLOCKS_PER_SM(of##_threads), te_fused_collective_args,        \
        of##_registers, of##_shared, kernel##_body)
#define TE__FUSED_COLLECTIVE_TABLE(name, of, two_shot_launch)                                     \
    TE_API te_fused_collective name##_fused_collective(void) {                                    \
        const te_fused_collective kernels = {name##_peers_launch, two_shot_launch, of##_groups,   \
                                             TE_FUSED_BLOCKS_PER_SM(of##_threads)};               \
        return kernels;                                                                           \
    }
#define TE__FUSED_COLLECTIVE_STORE_one_shot(name) name##_fp8_wanted != 0 ? te_pointwise_store_fp8 : te_pointwise_store
#define TE__FUSED_COLLECTIVE_STORE_two_shot TE__FUSED_COLLECTIVE_STORE_one_shot
#define TE__FUSED_COLLECTIVE_STORE_gathers(name) te_fused_row_store

/* ---- host: launch ------------------------------------------------------------------------------------------------ */

/* Returns how many of this rank's `rows` rows, of row_bytes bytes each, one launch computes, or 0 if the fused kernel
 * cannot be used. For reduce_scatter .. all_gather (pitch > 0) the result is all rows, or 0 if the rows of all ranks do
 * not fit into the symmetric memory. For all_reduce (pitch 0) the result is min(rows, C), where C is the number of rows
 * that fit into the symmetric memory. If two-shot is used, C is rounded down to a multiple of the number of ranks. */
TE_API int64_t te__fused_rows_per_launch(const te_group *g, int64_t rows, int64_t row_bytes, int64_t pitch) {
    const te_peer_memory *p = g->peers;
    if (!p || g->size < 2 || rows <= 0) return 0;
    if (pitch) return rows * row_bytes * g->size <= p->max_bytes ? rows : 0;
    const int64_t fit = te_min(rows, p->reduce_bytes / row_bytes);
    return fit * row_bytes <= p->one_shot_bytes ? fit : te_min(rows, p->reduce_bytes / row_bytes / g->size * g->size);
}
/* Launches the kernel as often as needed for all rows of p->c, with `at_once` rows in each launch. x: the tensor that
 * is summed. */
TE_API te_status te__fused_collective_launch(te_fused_collective_args *p, te_run *r, te_value x,
                                             te_fused_collective kernels, int64_t at_once) {
    const te_group *g = r->tensor;
    const int64_t row_bytes = x.cols * (int64_t)te_dtype_bytes(x.dtype), rows = p->c.rows;
    TE_TRY(te__peers_check(g, r->ctx));
    for (p->first = 0; p->first < rows; p->first = p->end) {
        p->end = te_min(rows, p->first + at_once);
        const int64_t blocks = te_min(TE_PEER_MAX_BLOCKS, (int64_t)g->peers->max_blocks * kernels.blocks_per_sm);
        const int two_shot = !p->pitch && at_once * row_bytes > g->peers->one_shot_bytes;
        p->peers = te__peer_args_of_rows(g, p->end - p->first, row_bytes, two_shot, x.dtype);
        p->c.x = 0, p->peers.x = x.data, p->peers.aligned = 1;
        g->peers->collectives++, g->peers->fused++, g->peers->fused_fp8 += p->gathered && p->c.fp8.y;
        const te_grid grid = te__grid_of(te_min(blocks, te_ceil_div(p->end - p->first, kernels.groups)), 1);
        TE_TRY(two_shot ? kernels.two_shot(r->ctx, grid, p) : kernels.launch(r->ctx, grid, p));
        p->c.take.taken = 0;
    }
    return TE_OK;
}
/* Returns whether the kernel supports the shapes: there must be a norm, a row must consist of whole vectors, and there
 * must be no gated activation. */
TE_API int te__fused_collective_fits(te_fused_collective kernels, te_pointwise_shape k) {
    return kernels.launch && k.norm >= 0 && k.aligned && k.in_halves == 1;
}

/* Returns where the fused kernel stores the sum for backward: sum.data if forward saves the output of the pattern's
 * collective, else null. */
TE_API void *te__fused_saved_sum(const te_run *r, const te_step *s, te_value sum) {
    return r->pass == TE_FORWARD && te__policy(r, s->op[0])->output_saved ? sum.data : 0;
}

/* ---- host: all_reduce ([bias] [dropout] add [fork or output] norm, or norm add) ---------------------------------- */

/* Returns the number of rows that one launch of the fused all_reduce kernel computes. The result is 0 if the fused
 * kernel cannot be used, because the kernel does not support the shapes or formats, x is not aligned to 16 bytes, or
 * there is no symmetric memory. */
TE_API int64_t te__fused_all_reduce_rows(const te_run *r, te_value x, te_fused_collective kernels,
                                         te_pointwise_shape k) {
    if (!te__fused_collective_fits(kernels, k) || x.dtype != k.in) return 0;
    if ((uintptr_t)x.data % TE_PACKET_BYTES) return 0;
    return te__fused_rows_per_launch(r->tensor, x.rows, x.cols * (int64_t)te_dtype_bytes(x.dtype), 0);
}
TE_API te_status te__fused_all_reduce_launch(te_run *r, const te_step *s, te_value x, te_value sum,
                                             te_fused_collective kernels, te_pointwise_shape k, int64_t at_once,
                                             int is_sent) {
    te_fused_collective_args p;
    te_pointwise_work w;
    k.transposes = 0; /* the fused kernel stores no transpose of y, unlike the pointwise kernel */
    memset(&p, 0, sizeof p);
    p.c.half = k.half, p.is_sent = is_sent, p.sum = te__fused_saved_sum(r, s, sum);
    w = te__pointwise_work_of(s, 1, k, &p.c);
    TE_TRY(te__pointwise_forward(r, &w, sum));
    if (w.launches) p.c.take = r->take, r->take.taken = 0;
    return w.launches && !r->dry ? te__fused_collective_launch(&p, r, x, kernels, at_once) : TE_OK;
}
/* Runs the pattern as one fused kernel if possible, else as the all_reduce and then the pointwise kernel `launch`. If
 * the previous linear has deferred its GEMM, this function runs the GEMM first. gemm: null, or kernels whose epilogue
 * also sends the GEMM's partial sums to the other ranks (collective_step.h). If one of these kernels supports the GEMM,
 * the function uses that kernel. */
TE_API te_status te__fused_all_reduce_norm(te_run *r, const te_step *s, te_pointwise_launch_fn launch,
                                           te_fused_collective kernels, te_pointwise_shape k,
                                           te_product_kernels *gemm) {
    const int i = s->op[0];
    int is_sent = 0;
    const te_op *op = &r->plan->op[i];
    const te_value x = r->current;
    te_value sum = te__output_of(r, i);
    if (r->recompute || r->describe) return te__pointwise_step_forward(r, s, 1, 0, te__no_value(), launch, k);
    TE_TRY(te__collective_check(r, i));
    /* Memory for `sum` is acquired even if the fused kernel will not use it, because the size of the workspace must not
     * depend on which kernel runs. */
    if (r->pass != TE_FORWARD || !te__policy(r, i)->output_saved || !sum.data)
        TE_TRY(te__acquire(r, &sum, op->out_rows, op->out, op->out_dtype));
    const int64_t at_once = te__fused_all_reduce_rows(r, x, kernels, k);
    if (r->current.state == TE_VALUE_deferred_product)
        TE_TRY(te__deferred_gemm_all_reduce(&is_sent, r, gemm, at_once == x.rows));
    if (at_once) return te__fused_all_reduce_launch(r, s, x, sum, kernels, k, at_once, is_sent);
    if (!r->dry) TE_TRY(te_group_all_reduce(r->tensor, sum.data, x.data, x.rows * x.cols, x.dtype, r->ctx));
    return te__pointwise_step_forward(r, s, 1, 0, sum, launch, k);
}
#define TE_CUSTOM_PATTERN_all_reduce_forward(name, model, dtype, op)                              \
    TE__NEEDS_COMM(model, op)                                                                     \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                    \
        const te_pointwise_shape k = name##_shape(te__pointwise_half(r, s, 1));                   \
        return te__fused_all_reduce_norm(r, s, name##_launch, name##_fused_collective(), k,       \
                                         TE_GEMM_ALL_REDUCE_KERNELS(dtype));                      \
    }

#define TE_HAS_SOURCE_all_reduce ,
#define TE_SOURCE_all_reduce(widths, name, ...) TE__FUSED_COLLECTIVE(widths, name, 0, __VA_ARGS__)

/* ---- host: reduce_scatter [bias] [dropout] add [fork or output] norm all_gather ---------------------------------- */

/* Returns the number of this rank's rows if one launch of the fused reduce_scatter kernel can compute all of them. The
 * result is 0 if the fused kernel cannot be used, because the kernel does not support the shapes or formats, a tensor
 * is not aligned to 16 bytes, or there is no symmetric memory. */
TE_API int64_t te__fused_reduce_scatter_rows(const te_run *r, te_value x, te_value y,
                                             te_fused_collective kernels, te_pointwise_shape k) {
    if (!te__fused_collective_fits(kernels, k) || k.out_halves != 1) return 0;
    if (x.dtype != k.in || y.dtype != k.in || k.out != k.in) return 0;
    if (((uintptr_t)x.data | (uintptr_t)y.data) % TE_PACKET_BYTES) return 0;
    const int64_t local = x.rows / r->tensor->size;
    return te__fused_rows_per_launch(r->tensor, local, x.cols * (int64_t)te_dtype_bytes(x.dtype), local);
}
/* Runs the pattern as one fused kernel. middle: the step, without its all_gather. sum: memory for this rank's rows of
 * the sum. y: the gathered output; if the output is stored in FP8, only the memory of y is used. next: the index of the
 * linear that reads the output in FP8, or -1 if the output is not stored in FP8. */
TE_API te_status te__fused_reduce_scatter_launch(te_run *r, const te_step *middle, te_value x, te_value sum, te_value y,
                                                 int next, te_fused_collective kernels, te_pointwise_shape k) {
    const int last = middle->op[middle->count - 1], block = y.block;
    const int is_saved = r->pass == TE_FORWARD && te__policy(r, last)->output_saved;
    te_fused_collective_args p;
    te_pointwise_work w;
    k.transposes = 0; /* the fused kernel stores no transpose of y, unlike the pointwise kernel */
    memset(&p, 0, sizeof p);
    p.c.half = k.half, p.sum = te__fused_saved_sum(r, middle, sum);
    w = te__pointwise_work_of(middle, 1, k, &p.c);
    TE_TRY(te__pointwise_forward(r, &w, sum));
    if (!is_saved) p.c.y = 0;
    p.c.take = r->take, r->take.taken = 0;
    /* store the output in FP8, in the memory of the linear's saved input if forward saves that input, else in the
     * memory of y */
    if (next >= 0) {
        void *const saved = te__saved_input_of(r, next).x;
        TE_TRY(te__pointwise_store_fp8_operand(&y, r, &p.c, next, TE_ROWS_tokens, saved ? saved : y.data));
        y.block = saved ? -1 : block;
    }
    p.pitch = p.c.rows, p.gathered = y.data;
    te__set_current(r, y);
    return r->dry ? TE_OK : te__fused_collective_launch(&p, r, x, kernels, p.c.rows);
}
/* Runs the pattern as one fused kernel if possible, else as the reduce_scatter, the pointwise kernel `launch` and the
 * all_gather. If the previous linear has deferred its GEMM, this function runs the GEMM first. gemm: kernels that
 * overlap a GEMM with the reduce_scatter, or null; if one of these kernels supports the GEMM, that kernel is used
 * instead of the fused kernel. */
TE_API te_status te__fused_reduce_scatter_norm(te_run *r, const te_step *s, te_pointwise_launch_fn launch,
                                               te_fused_collective kernels, te_pointwise_shape k,
                                               te_gemm_reduce_scatter_kernels *gemm) {
    const int i = s->op[0], last = s->op[s->count - 1];
    const te_op *op = &r->plan->op[i];
    te_step middle = *s;
    te_value sum = te__output_of(r, i), y;
    int is_summed = 0;
    middle.count--;
    TE_TRY(te__collective_check(r, i));
    /* Memory for `sum` is acquired even if the fused kernel will not use it, because the size of the workspace must not
     * depend on which kernel runs. */
    if (r->pass != TE_FORWARD || !te__policy(r, i)->output_saved || !sum.data)
        TE_TRY(te__acquire(r, &sum, op->out_rows, op->out, op->out_dtype));
    if (r->current.state == TE_VALUE_deferred_product)
        TE_TRY(te__deferred_gemm_reduce_scatter(&is_summed, r, sum, gemm));
    const te_value x = r->current;
    TE_TRY(te__output(&y, r, s, last));
    if (!is_summed && te__fused_reduce_scatter_rows(r, x, y, kernels, k)) {
        const int fp8_linear = k.fp8 ? te__gather_consumer(r, s) : -1;
        return te__fused_reduce_scatter_launch(r, &middle, x, sum, y, fp8_linear, kernels, k);
    }
    if (!is_summed && !r->dry)
        TE_TRY(te_group_reduce_scatter(r->tensor, sum.data, x.data, sum.rows * sum.cols, sum.dtype, r->ctx));
    TE_TRY(te__pointwise_step_forward(r, &middle, 1, 0, sum, launch, k));
    return te__collective_apply(r, s, y, te_group_all_gather);
}
#define TE_CUSTOM_AROUND_reduce_scatter_all_gather_forward(name, model, dtype, op, last)              \
    TE__NEEDS_COMM(model, op)                                                                         \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                        \
        const te_pointwise_shape k = name##_shape(te__pointwise_half(r, s, 1));                       \
        return te__fused_reduce_scatter_norm(r, s, name##_launch, name##_fused_collective(), k,       \
                                             TE_GEMM_REDUCE_SCATTER_KERNELS(model, dtype, 1));        \
    }

#define TE_AROUND_reduce_scatter_all_gather ,
#define TE_SOURCE_reduce_scatter(widths, name, ...) TE__FUSED_COLLECTIVE(widths, name, 1, __VA_ARGS__)

#endif
