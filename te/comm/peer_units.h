/* peer_units.h -- how the kernel of a row over ranks (peer_row.h) sends and receives what a lane has of a row: units of
 * 16 bytes, of eight elements or, in f32, of four. Where a unit lies in the memory of a rank follows from the row's
 * place among those that one rank sends another; behind all of these lies what is gathered, or two-shot the sums. */
#ifndef TE_COMM_PEER_UNITS_H
#define TE_COMM_PEER_UNITS_H

#include "../pointwise/impl/pointwise_step.h" /* te_pointwise */
#include "peers.h"             /* te_peer_args */

typedef struct te_peer_chain {
    te_pointwise c;          /* its x: null */
    te_peer_args peers;  /* bytes: of the rows [first, end) that one rank sends another; its y: null */
    int64_t first, end, pitch;
    void *gathered;      /* [ranks * pitch, half]; null: there is no pitch */
    int sent;            /* the kernel before has sent x (te/comm/send.h) */
} te_peer_chain;
/* What te_norm_load_fn gets. */
typedef struct te_peer_source {
    const te_peer_chain *p;
    uint32_t turn;
    int two_shot, gathers; /* constants: see te_peer_row_body */
} te_peer_source;
/* Row `row` of those that rank `of` adds up. */
TE_FN int64_t te__peer_row_of(const te_peer_source *from, int of, int64_t row) {
    return from->gathers ? of * from->p->pitch + row : row;
}
/* What te_store_fn gets in the place of its `most`. */
typedef struct te_peer_most { uint32_t most, turn; } te_peer_most;

/* Units of eight elements. */
TE_FN int te__peer_parts(te_dtype t) { return t == TE_f32 ? 2 : 1; }
/* Where a row is added up for this rank: by itself or, two-shot, by the rank that it belongs to; and the row's first
 * unit of all that one rank sends another. */
typedef struct te_peer_spot { int owner, unit; } te_peer_spot;
TE_FN te_peer_spot te__peer_spot_of(const te_peer_chain *p, const te_pointwise_shape k, int64_t row, const int two_shot) {
    const unsigned at = (unsigned)(row - p->first), ranks = (unsigned)p->peers.ranks;
    te_peer_spot s = {p->peers.rank, (int)at};
    if (two_shot) s.unit = (int)(at / ranks), s.owner = (int)(at % ranks);
    s.unit *= k.half / 8 * te__peer_parts(k.in);
    return s;
}
TE_FN int te__peer_unit(te_peer_spot s, const te_pointwise_shape k, int vector, int part) {
    return s.unit + vector * te__peer_parts(k.in) + part;
}
/* And of what is gathered, or of sums: behind what all ranks send to be added up. */
TE_FN int te__peer_behind(const te_peer_chain *p, te_peer_spot s, const te_pointwise_shape k, int vector, int part) {
    return p->peers.ranks * (int)(p->peers.bytes / TE_WORDS) + te__peer_unit(s, k, vector, part);
}
TE_FN void te__peer_words_of(te_words *w, const te_vec8 *v, int part) {
    TE_UNROLL for (int j = 0; j < 4; j++) w->w[j] = v->w[4 * part + j];
    te_words_mark(w);
}
/* This lane's vectors of row `row` of x. */
TE_FN void te__peer_row_read(te_vec8 *row_x, const te_peer_chain *p, const te_pointwise_shape k, int64_t row, te_lanes g) {
    TE_UNROLL for (int j = 0; j < k.chunks; j++) {
        const int vector = g.id + j * g.count;
        if (vector * 8 < k.half) te_vec8_load(&row_x[j], p->peers.x, row * k.half + vector * 8, 8, 1, k.in);
    }
}
/* And to rank `to`. */
TE_FN void te__peer_row_to(const te_peer_chain *p, const te_pointwise_shape k, uint32_t turn, int to, te_peer_spot s,
                           const te_vec8 *row_x, te_lanes g) {
    const te_peer_args *a = &p->peers;
    TE_UNROLL for (int j = 0; j < k.chunks; j++) {
        const int vector = g.id + j * g.count;
        if (vector * 8 >= k.half) continue;
        TE_UNROLL for (int part = 0; part < te__peer_parts(k.in); part++) {
            te_words w;
            te__peer_words_of(&w, &row_x[j], part);
            te_words_send(te__peer_slot(a->at[to], a, turn, a->rank, (int)(a->bytes / TE_WORDS),
                                        te__peer_unit(s, k, vector, part)), &w);
        }
    }
}
/* Send row `row` to who adds it up: with a pitch each other rank its own. The turn is on its way while x is loaded.
 * row_x: two rows. */
TE_FN void te__peer_row_send(te_peer_source *from, const te_pointwise_shape k, int64_t row, te_lanes g, te_vec8 *row_x) {
    const te_peer_chain *p = from->p;
    const te_peer_args *a = &p->peers;
    const te_peer_spot s = te__peer_spot_of(p, k, row, from->two_shot);
    if (from->two_shot && s.owner == a->rank) return;
    te__peer_row_read(row_x, p, k, te__peer_row_of(from, te__peer_next(a, 1), row), g);
    te__peer_turn_now(&from->turn);
    if (from->two_shot) te__peer_row_to(p, k, from->turn, s.owner, s, row_x, g);
    TE_UNROLL_1 for (int i = 1; !from->two_shot && i < a->ranks; i++) {
        const int more = from->gathers && i + 1 < a->ranks;
        if (more) te__peer_row_read(row_x + k.chunks, p, k, te__peer_row_of(from, te__peer_next(a, i + 1), row), g);
        te__peer_row_to(p, k, from->turn, te__peer_next(a, i), s, row_x, g);
        TE_UNROLL for (int j = 0; j < k.chunks; j++) if (more) row_x[j] = row_x[k.chunks + j];
    }
}
/* A unit of the sum over the ranks. It is added up here, and two-shot sent to the others, or comes from its owner. */
TE_FN void te__peer_unit_sum(te_words *sum, const te_words *own, const te_peer_source *from, const te_pointwise_shape k,
                             te_peer_spot s, int vector, int part) {
    const te_peer_chain *p = from->p;
    const te_peer_args *a = &p->peers;
    const int units = (int)(a->bytes / TE_WORDS), mine = !from->two_shot || s.owner == a->rank;
    const int behind = te__peer_behind(p, s, k, vector, part);
    /* goes on where a rank has not come, for the lanes of a row meet in its sums */
    if (mine) te__peer_sum_of_each(sum, own, a, from->turn, units, te__peer_unit(s, k, vector, part), k.in);
    else (void)te__peer_wait_of(sum, a, from->turn, units, behind, s.owner);
    if (!from->two_shot || !mine) return;
    te_words_mark(sum);
    TE_UNROLL_1 for (int i = 1; i < a->ranks; i++)
        te_words_send(te__peer_slot(a->at[te__peer_next(a, i)], a, from->turn, a->rank, units, behind), sum);
}
/* Where rank `from` stores eight bytes of what is gathered in FP8 into the memory `at`. */
TE_FN char *te__peer_fp8_slot(char *at, const te_peer_chain *p, const te_pointwise_shape k, uint32_t turn, int from,
                              int64_t row, int vector) {
    const int units = (int)(p->peers.bytes / TE_WORDS);
    return te__peer_slot(at, &p->peers, turn, from, units, p->peers.ranks * units) +
           8 * ((row - p->first) * (k.half / 8) + vector);
}
/* In FP8, by a scale that all ranks have: with the bits of te_pointwise_store_fp8. */
TE_FN void te__peer_row_store_fp8(const te_peer_chain *p, const float y[8], int64_t row, int vector,
                                  const te_pointwise_shape k, te_peer_most *most) {
    const te_peer_args *a = &p->peers;
    const float scale = *p->c.fp8.scale;
    te_vec8 e;
    te_words w;
    float v[8];
    most->most = te_amax_bits8(most->most, y);
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] = y[i] * scale;
    te_vec8_of_fp8(&e, v, TE_e4m3);
    w.w[0] = e.w[0], w.w[1] = e.w[1], w.w[2] = w.w[3] = 0;
    te_words_mark_fp8(&w);
    TE_UNROLL_1 for (int i = 1; i < a->ranks; i++) {
        const int to = te__peer_next(a, i);
        te_words_send8(te__peer_fp8_slot(a->at[to], p, k, most->turn, a->rank, row, vector), &w);
    }
    te_words_store8(p->gathered, (a->rank * p->pitch + row) * k.half + vector * 8, &w, 8, 1);
}
/* A te_store_fn: to this rank's rows of what is gathered, and to all others. */
TE_FN void te_peer_row_store(const te_pointwise *c, const te_lane *l, const te_pointwise_shape k, uint32_t *state) {
    const te_peer_chain *p = (const te_peer_chain *)(const void *)c; /* whose first member c is */
    const te_peer_args *a = &p->peers;
    te_peer_most *most = (te_peer_most *)(void *)state;
    const int units = (int)(a->bytes / TE_WORDS), vector = l->at.col / 8, parts = te__peer_parts(k.out);
    const int64_t own = (a->rank * p->pitch + l->at.row) * k.half + l->at.col;
    const te_peer_spot s = te__peer_spot_of(p, k, l->at.row, 0);
    te_vec8 v;
    if (c->y) te_store_lane(l, c->y, k);
    if (k.fp8 && c->fp8.y) {
        te__peer_row_store_fp8(p, l->v, l->at.row, vector, k, most);
        return;
    }
    te_vec8_of_pairs(&v, l->v, k.out);
    TE_UNROLL for (int part = 0; part < parts; part++) {
        te_words w;
        te__peer_words_of(&w, &v, part);
        TE_UNROLL_1 for (int i = 1; i < a->ranks; i++) {
            const int to = te__peer_next(a, i);
            te_words_send(te__peer_slot(a->at[to], a, most->turn, a->rank, units,
                                        te__peer_behind(p, s, k, vector, part)), &w);
        }
        te_words_store(p->gathered, own * (16 * parts / 8) + part * TE_WORDS, &w, TE_WORDS, 1);
    }
}
/* The same row of what each other rank gives. */
TE_FN void te__peer_row_receive(const te_peer_chain *p, const te_pointwise_shape k, uint32_t turn, int64_t row,
                                te_lanes g) {
    const te_peer_args *a = &p->peers;
    const int units = (int)(a->bytes / TE_WORDS), fp8 = k.fp8 && p->c.fp8.y;
    const te_peer_spot s = te__peer_spot_of(p, k, row, 0);
    const int parts = fp8 ? 1 : te__peer_parts(k.out);
    TE_UNROLL_1 for (int i = 1; i < a->ranks; i++) {
        const int of = te__peer_next(a, i);
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
            if (!te__peer_wait_of(&w, a, turn, units, te__peer_behind(p, s, k, vector, part), of)) return;
            te_words_store(p->gathered, at * (16 * parts / 8) + part * TE_WORDS, &w, TE_WORDS, 1);
        }
    }
}
#endif
