/* head_norm_kernels.h -- the kernels of head_norm, with a rope behind it and without (head_norm.h). */
#ifndef TE_OPS_HEAD_NORM_KERNELS_H
#define TE_OPS_HEAD_NORM_KERNELS_H

#include "rope.h" /* te_rope_turns, te_turn8 */

/* AHEAD: heads that a lane has loads of in flight. A lane takes 16 columns of a head, so on CUDA a warp takes all of
 * the largest. */
enum {
    TE_HEAD_NORM_MOST = 480,
    TE_HEAD_THREADS = TE_CUDA ? 256 : 1,
    TE_HEAD_ROWS = TE_CUDA ? 2 : 1,
    TE_HEAD_AHEAD = TE_CUDA ? 4 : 1,
    TE_HEAD_ROWS_BACKWARD = TE_CUDA ? 4 : 1, /* of a block at a time, at most */
    TE_HEAD_AHEAD_BACKWARD = TE_CUDA ? 2 : 1,
    TE_HEAD_CHUNKS = TE_CUDA ? 1 : 32
};

/* All that a kernel knows when it is compiled. pairs: of columns that lie apart and that one lane takes together. */
typedef struct te_head_shape {
    int heads, kv_heads, dim, pairs;
    int rotary, interleaved, scaled; /* 0: no rope in this row */
    int zero_centred;
    float eps;
    te_dtype x, y, w, saved; /* formats; saved: of forward's x */
} te_head_shape;

typedef struct te_head_args {
    te_rope_args at;   /* x and y, in backward dy and dx: [rows, (heads + 2 kv_heads) dim] */
    const void *w[2];  /* of q, of k: [dim] */
    const void *saved; /* backward: forward's x */
    float *sum[2];     /* backward: [blocks, dim] of each weight */
} te_head_args;

/* ---- which columns a lane takes ---------------------------------------------------------------------------------- */

/* Two times eight columns of a head: from a[0] and a[1] on, n[..] of them exist. The first `low` places take columns
 * with those that turn with them, the others what is left. */
typedef struct te_head_place { int a[2], n[2]; } te_head_place;

TE_FN int te_head_low(te_head_shape k) { return (k.pairs + 7) / 8; }
TE_FN int te_head_places(te_head_shape k) { return te_head_low(k) + (k.dim - 2 * k.pairs + 15) / 16; }
TE_FN int te_head_lanes(te_head_shape k) {
    const int places = te_head_places(k);
    return !TE_CUDA ? 1 : places > 16 ? 32 : places > 8 ? 16 : places > 4 ? 8 : places > 2 ? 4 : places > 1 ? 2 : 1;
}
/* Whether all eights are whole and lie at multiples of 16 bytes. */
TE_FN int te_head_aligned(te_head_shape k) {
    return k.pairs % 8 == 0 && (k.dim - 2 * k.pairs) % 16 == 0;
}
TE_FN te_head_place te_head_at(te_head_shape k, int i) {
    const int low = te_head_low(k), rest = 2 * k.pairs + 16 * (i - low);
    te_head_place p;
    p.a[0] = i < low ? 8 * i : rest, p.a[1] = i < low ? k.pairs + 8 * i : rest + 8;
    TE_UNROLL for (int j = 0; j < 2; j++)
        p.n[j] = te_head_aligned(k) ? 8 : (int)te_max(0, te_min(8, i < low ? k.pairs - 8 * i : k.dim - p.a[j]));
    return p;
}

/* What a lane has of a head: as it lies in memory, and as floats. */
typedef struct te_head_vecs { te_vec8 v[TE_HEAD_CHUNKS][2]; } te_head_vecs;
typedef struct te_head_floats { float v[TE_HEAD_CHUNKS][2][8]; } te_head_floats;

#define TE__HEAD_EACH(k, g, c, i) \
    TE_UNROLL for (int c = 0, i = (g).id; c < TE_HEAD_CHUNKS && i < te_head_places(k); c++, i += (g).count)

TE_FN void te_head_load(te_head_vecs *x, const void *p, int64_t at, te_lanes g, te_head_shape k, te_dtype t) {
    TE__HEAD_EACH(k, g, c, i) {
        const te_head_place l = te_head_at(k, i);
        TE_UNROLL for (int j = 0; j < 2; j++)
            te_vec8_load(&x->v[c][j], p, at + l.a[j], l.n[j], te_head_aligned(k), t);
    }
}
TE_FN void te_head_unpack(te_head_floats *x, const te_head_vecs *from, te_lanes g, te_head_shape k, te_dtype t) {
    TE__HEAD_EACH(k, g, c, i) TE_UNROLL for (int j = 0; j < 2; j++) te_vec8_floats(x->v[c][j], &from->v[c][j], t);
}
TE_FN void te_head_store(void *p, int64_t at, const te_head_floats *x, te_lanes g, te_head_shape k, te_dtype t) {
    TE__HEAD_EACH(k, g, c, i) {
        const te_head_place l = te_head_at(k, i);
        TE_UNROLL for (int j = 0; j < 2; j++)
            te_store8(p, at + l.a[j], x->v[c][j], l.n[j], te_head_aligned(k), t);
    }
}
TE_FN void te_head_weight(te_head_floats *w, const void *p, te_lanes g, te_head_shape k) {
    TE__HEAD_EACH(k, g, c, i) {
        const te_head_place l = te_head_at(k, i);
        TE_UNROLL for (int j = 0; j < 2; j++) {
            te_load8(w->v[c][j], p, l.a[j], l.n[j], te_head_aligned(k), k.w);
            if (k.zero_centred) TE_UNROLL for (int e = 0; e < 8; e++) w->v[c][j][e] += 1.0f;
        }
    }
}
/* turns: of the row. */
TE_FN void te_head_turn(te_head_floats *x, const float *turns, te_lanes g, te_head_shape k) {
    const int pairs = (k.rotary / 2 + 7) / 8 * 8;
    TE__HEAD_EACH(k, g, c, i) {
        const te_head_place l = te_head_at(k, i);
        if (!k.interleaved && i < te_head_low(k))
            te_turn8(x->v[c][0], x->v[c][1], turns + l.a[0], turns + pairs + l.a[0]);
        TE_UNROLL for (int j = 0; k.interleaved && j < 2; j++) TE_UNROLL for (int e = 0; e < 8; e += 2) {
            const int p = (l.a[j] + e) / 2;
            const float even = x->v[c][j][e], odd = x->v[c][j][e + 1];
            if (2 * p >= k.rotary) continue;
            x->v[c][j][e] = even * turns[p] - odd * turns[pairs + p];
            x->v[c][j][e + 1] = odd * turns[p] + even * turns[pairs + p];
        }
    }
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Heads of some rows, one a group of lanes at a time: which row and head number u is. */
typedef struct te_head_unit { int row, head; int64_t at; } te_head_unit;
TE_FN te_head_unit te_head_of(int u, int64_t first, te_head_shape k) {
    const int all = k.heads + 2 * k.kv_heads;
    te_head_unit h;
    h.row = u / all, h.head = u % all, h.at = ((first + h.row) * all + h.head) * k.dim;
    return h;
}
TE_FN int te_head_units(int rows, te_head_shape k) { return rows * (k.heads + 2 * k.kv_heads); }

TE_FN void te_head_rows(const te_head_args *a, te_block b, float *turns, const te_head_shape k) {
    int group, thread;
    te_lanes g = te_lanes_here(te_head_lanes(k), &group);
    const te_lanes all = te_lanes_here(TE_HEAD_THREADS, &thread);
    const int groups = TE_HEAD_THREADS / te_head_lanes(k), pairs = (k.rotary / 2 + 7) / 8 * 8;
    const int64_t first = (int64_t)b.x * TE_HEAD_ROWS;
    const int rows = (int)te_min(TE_HEAD_ROWS, a->at.rows - first), units = te_head_units(rows, k);
    const int rounds = (int)te_ceil_div(te_head_units(TE_HEAD_ROWS, k), groups);
    const int ahead = rounds < TE_HEAD_AHEAD ? rounds : TE_HEAD_AHEAD;
    te_head_vecs next[TE_HEAD_AHEAD];
    for (int from = 0; from < units; from += groups * ahead) {
        TE_UNROLL for (int j = 0; j < ahead; j++) {
            const int u = from + j * groups + group;
            if (u < units) te_head_load(&next[j], a->at.x, te_head_of(u, first, k).at, g, k, k.x);
            else memset(&next[j], 0, sizeof next[j]);
        }
        if (k.rotary && from == 0) { /* while the first heads are on their way */
            te_rope_turns(turns, &a->at, first, rows, all, pairs, k.rotary, k.scaled, 1);
            te_block_sync();
        }
        TE_UNROLL for (int j = 0; j < ahead; j++) {
            if (from + j * groups >= units) continue; /* of no group of the block */
            const int u = from + j * groups + group;
            const te_head_unit h = te_head_of(u, first, k);
            te_head_floats x, w;
            float squares = 0;
            te_head_unpack(&x, &next[j], g, k, k.x);
            TE__HEAD_EACH(k, g, c, i) TE_UNROLL for (int e = 0; e < 16; e++)
                squares += x.v[c][e / 8][e % 8] * x.v[c][e / 8][e % 8];
            te_lanes_sum(&squares, 1, &g);
            if (u >= units) continue;
            if (h.head < k.heads + k.kv_heads) {
                const float rstd = 1.0f / sqrtf(squares / (float)k.dim + k.eps);
                te_head_weight(&w, a->w[h.head >= k.heads], g, k);
                TE__HEAD_EACH(k, g, c, i) TE_UNROLL for (int e = 0; e < 16; e++)
                    x.v[c][e / 8][e % 8] *= rstd * w.v[c][e / 8][e % 8];
                if (k.rotary) te_head_turn(&x, turns + 2 * h.row * pairs, g, k);
            }
            te_head_store(a->at.y, h.at, &x, g, k, k.y);
        }
    }
}

/* One head: dx into `d`, which comes as dy; what it adds to the gradient of its weight into `own`. */
TE_FN void te_head_backward(te_head_floats *d, te_head_floats *own, const te_head_floats *x, const te_head_floats *w,
                            te_lanes *g, te_head_shape k) {
    float s[2] = {0, 0}; /* of x^2, of w dy x */
    TE__HEAD_EACH(k, *g, c, i) TE_UNROLL for (int e = 0; e < 16; e++) {
        const float v = x->v[c][e / 8][e % 8];
        s[0] += v * v, s[1] += w->v[c][e / 8][e % 8] * d->v[c][e / 8][e % 8] * v;
    }
    te_lanes_sum(s, 2, g);
    const float rstd = 1.0f / sqrtf(s[0] / (float)k.dim + k.eps), along = s[1] * rstd * rstd / (float)k.dim;
    TE__HEAD_EACH(k, *g, c, i) TE_UNROLL for (int e = 0; e < 16; e++) {
        const float v = x->v[c][e / 8][e % 8], dy = d->v[c][e / 8][e % 8];
        own->v[c][e / 8][e % 8] = dy * v * rstd;
        d->v[c][e / 8][e % 8] = rstd * (w->v[c][e / 8][e % 8] * dy - v * along);
    }
}
/* The sums of a block, of all its groups, for one weight. */
TE_FN void te_head_sums(float *to, te_head_floats *sum, te_lanes g, te_head_shape k) {
    int group;
    (void)te_lanes_here(g.count, &group);
    TE_UNROLL for (int c = 0; c < TE_HEAD_CHUNKS; c++) te_groups_sum(sum->v[c][0], 16, g, TE_HEAD_THREADS / g.count);
    TE__HEAD_EACH(k, g, c, i) {
        const te_head_place l = te_head_at(k, i);
        TE_UNROLL for (int e = 0; e < 16; e++)
            if (group == 0 && e % 8 < l.n[e / 8]) to[l.a[e / 8] + e % 8] = sum->v[c][e / 8][e % 8];
    }
}

TE_FN void te_head_gradient(const te_head_args *a, te_block b, float *turns, const te_head_shape k) {
    int group, thread;
    te_lanes g = te_lanes_here(te_head_lanes(k), &group);
    const te_lanes all = te_lanes_here(TE_HEAD_THREADS, &thread);
    const int groups = TE_HEAD_THREADS / te_head_lanes(k), pairs = (k.rotary / 2 + 7) / 8 * 8;
    const int ahead = k.x == TE_f32 || k.saved == TE_f32 ? 1 : TE_HEAD_AHEAD_BACKWARD; /* registers */
    const int64_t rounds = te_ceil_div(a->at.rows, b.nx * TE_HEAD_ROWS_BACKWARD);
    const int each = (int)te_ceil_div(a->at.rows, b.nx * rounds); /* rows of a block in a round */
    te_head_floats sum[2];
    memset(sum, 0, sizeof sum);
    for (int64_t first = (int64_t)b.x * each; first < a->at.rows; first += (int64_t)b.nx * each) {
        const int rows = (int)te_min(each, a->at.rows - first), units = te_head_units(rows, k);
        te_head_vecs dy[TE_HEAD_AHEAD_BACKWARD], saved[TE_HEAD_AHEAD_BACKWARD];
        for (int from = 0; from < units; from += groups * ahead) {
            TE_UNROLL for (int j = 0; j < ahead; j++) {
                const int u = from + j * groups + group;
                const te_head_unit h = te_head_of(u, first, k);
                const int is_v = h.head >= k.heads + k.kv_heads; /* which passes through */
                memset(&dy[j], 0, sizeof dy[j]), memset(&saved[j], 0, sizeof saved[j]);
                if (u < units) te_head_load(&dy[j], a->at.x, h.at, g, k, k.x);
                if (u < units && !is_v) te_head_load(&saved[j], a->saved, h.at, g, k, k.saved);
            }
            if (k.rotary && from == 0) {
                te_block_sync(); /* the rows before are done with theirs */
                te_rope_turns(turns, &a->at, first, rows, all, pairs, k.rotary, k.scaled, -1);
                te_block_sync();
            }
            TE_UNROLL for (int j = 0; j < ahead; j++) {
                if (from + j * groups >= units) continue; /* of no group of the block */
                const int u = from + j * groups + group;
                const te_head_unit h = te_head_of(u, first, k);
                const int is_k = h.head >= k.heads, is_v = h.head >= k.heads + k.kv_heads;
                te_head_floats d, x, w, own;
                te_head_unpack(&d, &dy[j], g, k, k.x), te_head_unpack(&x, &saved[j], g, k, k.saved);
                if (k.rotary && u < units) te_head_turn(&d, turns + 2 * h.row * pairs, g, k);
                te_head_weight(&w, a->w[is_k], g, k);
                te_head_backward(&d, &own, &x, &w, &g, k);
                if (u >= units) continue;
                if (is_v) te_head_unpack(&d, &dy[j], g, k, k.x);
                if (a->at.y) te_head_store(a->at.y, h.at, &d, g, k, k.y);
                TE__HEAD_EACH(k, g, c, i) TE_UNROLL for (int e = 0; e < 16 && !is_v; e++)
                    TE_UNROLL for (int w2 = 0; w2 < 2; w2++)
                        if (w2 == is_k) sum[w2].v[c][e / 8][e % 8] += own.v[c][e / 8][e % 8];
            }
        }
    }
    TE_UNROLL for (int j = 0; j < 2; j++) te_head_sums(a->sum[j] + (int64_t)b.x * k.dim, &sum[j], g, k);
}

#endif
