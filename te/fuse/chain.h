/* chain.h -- the one skeleton behind every fused kernel that is not a matrix product: [maps] [norm] [maps].
 *
 * A group of lanes takes a row (or, with no norm in it, a tile of a row), runs the ops of the chain on it in registers,
 * eight elements at a time, and stores what has to be kept. On a CPU the group is one lane. In backward a lane owns its
 * columns, sums them over the rows it sees (dbias, dgamma, dbeta) and leaves one partial sum a block: a second kernel
 * adds those up in a fixed order. No atomics, so the same inputs give the same bits.
 *
 * A map is a function of eight elements, `te_<family>_forward(v, stage, at, code)` and `te_<family>_backward(v, sum,
 * stage, at, code)`: CONTRIBUTING.md shows how to add one.
 */
#ifndef TE_FUSE_CHAIN_H
#define TE_FUSE_CHAIN_H

#include "../run.h" /* te_run, te_step, TE_KERNEL */

/* Where eight elements lie. */
typedef struct te_at {
    int64_t row;
    int col, n;        /* column of the first; how many exist (8 but at the end of an odd row) */
    int width, halves; /* a row has width * halves elements: two halves beside a gated op */
    int aligned;
    te_dtype dtype;
} te_at;
/* Index of the first element in a tensor that has the row's shape. */
TE_FN int64_t te_index(te_at at) { return at.row * ((int64_t)at.width * at.halves) + at.col; }

typedef struct te_sixteen { uint32_t w[4]; } __attribute__((aligned(16))) te_sixteen;

/* What one op of the chain works with. */
typedef struct te_stage {
    const void *w[TE_MAX_PARAMS]; /* its parameters; null: already applied by the matrix product before */
    const void *edge;             /* add: what is added; fork in backward: the gradient that comes in. null: nothing */
    const void *saved;            /* backward: its input in forward, [rows, in] */
    void *out;                    /* the value behind it is stored here, null: not */
    float *stats;                 /* [rows, stats] */
    float *sum[TE_MAX_PARAMS];    /* backward: partial sums for its parameters' gradients, [blocks, width] */
    float value[2];               /* te_op.value */
    const te_rng *rng;            /* the random state of this forward */
    uint32_t id;                  /* its place in the list: the random stream */
} te_stage;

typedef struct te_chain {
    const void *x; /* [rows, in] */
    void *y;       /* [rows, out]; null: not stored */
    int64_t rows;
    te_stage op[TE_MAX_ROW];
    int half; /* te_chain_shape.half, for kernels that do not have it as a constant */
} te_chain;

/* Eight elements in registers. `g`, `gsum`: the second half of a gated op's row. */
typedef struct te_lane {
    float v[8], g[8], sum[8], gsum[8];
    te_at at;
} te_lane;

/* The ops [from, to) of the chain on one te_lane; made by macro, one call an op. */
typedef void (*te_stages_fn)(te_lane *l, const te_chain *c, int from, int to);

/* All constants; where the list's widths are known only at run time, all but half and what te_shape_at changes. */
typedef struct te_chain_shape {
    te_dtype dtype;
    int half, in_halves, out_halves; /* a row of x is half * in_halves wide */
    int aligned;                     /* half is a multiple of eight */
    int norm, norm_code;             /* which op is the norm, -1: none */
    int sums;                        /* which op sums the gradient (bias), -1: none */
    int backward, draws;
    int lanes, chunks, groups; /* lanes a row, 8-vectors a lane, rows a block at a time */
    int resident;              /* blocks on a multiprocessor */
    int stash;                 /* bytes of shared memory for gamma, 0: none */
} te_chain_shape;

/* Rows that a lane of a map loads at once, and columns that the blocks beside each other share a row in. */
enum { TE_MAP_ROWS = TE_CUDA ? 4 : 1 };
TE_BOTH int te_map_batch(te_chain_shape k) {
    return k.in_halves + k.out_halves > 2 || (k.sums >= 0 && k.draws) ? (TE_MAP_ROWS + 1) / 2 : TE_MAP_ROWS;
}
TE_BOTH int te_chain_tiles(te_chain_shape k) { return k.norm >= 0 ? 1 : ((k.half + 7) / 8 + k.lanes * k.chunks - 1) / (k.lanes * k.chunks); }

/* ---- the shape of the launch ----------------------------------------------------------------------------------- */

/* Macros of constants: sequential.h makes enumerators of them. `norm`: which op is the norm, -1 none; w: the row's width;
 * `sums`: which op sums a bias's gradient, -1 none. */
#define TE_VECTORS(w) (((w) + 7) / 8)
#if TE_CUDA
/* Forward: a warp takes a narrow row, 64 to 512 threads a wide one. Backward: one vector a lane up to 4096 columns, for the
 * sums over rows take most of the registers; two where a bias is summed as well. */
#define TE_NORM_LANES_forward(w, sums) ((w) <= 1024 ? 32 : (w) <= 2048 ? 64 : (w) <= 4096 ? 128 : (w) <= 12288 ? 256 : (w) <= 32768 ? 512 : 1024)
#define TE_NORM_LANES_backward(w, sums) \
    ((w) <= 1024 ? 32 : (w) <= 2048 ? 256 : (w) <= 4096 ? ((sums) < 0 ? 512 : 256) : (w) <= 12288 ? 512 : 1024)
#define TE_MAP_LANES(w) (TE_VECTORS(w) >= 32 ? 32 : TE_VECTORS(w) >= 16 ? 16 : TE_VECTORS(w) >= 8 ? 8 : 4)
#define TE_CHAIN_LANES(norm, w, sums, pass) ((norm) < 0 ? TE_MAP_LANES(w) : TE_NORM_LANES_##pass(w, sums))
#define TE_CHAIN_GROUPS(norm, lanes) ((norm) < 0 ? 256 / (lanes) : (lanes) > 32 ? 1 : 4)
#define TE_CHAIN_CHUNKS(norm, w, lanes) ((norm) < 0 ? 1 : (TE_VECTORS(w) + (lanes) - 1) / (lanes))
/* Blocks on a multiprocessor that a kernel is made for, which bounds its registers: as many threads as keep the memory
 * busy, fewer where a lane holds more of the row. Where gradients are summed te__most_blocks allows no more. */
#define TE_NORM_THREADS(chunks) ((chunks) <= 2 ? 1536 : (chunks) <= 4 ? 1024 : (chunks) <= 8 ? 640 : 256)
#define TE_RESIDENT_forward(threads, chunks) (TE_NORM_THREADS(chunks) > (threads) ? TE_NORM_THREADS(chunks) / (threads) : 1)
#define TE_NORM_SUMMING_THREADS(chunks) ((chunks) <= 1 ? 1024 : (chunks) <= 2 ? 512 : (chunks) <= 3 ? 384 : 256)
#define TE_RESIDENT_backward(threads, chunks) (TE_NORM_SUMMING_THREADS(chunks) > (threads) ? TE_NORM_SUMMING_THREADS(chunks) / (threads) : 1)
#define TE_CHAIN_RESIDENT(norm, threads, chunks, sums, gated, draws, pass) \
    ((norm) >= 0 ? TE_RESIDENT_##pass(threads, chunks) : (sums) < 0 ? 4 : (gated) ? 3 : (draws) ? 5 : 4)
#define TE_CHAIN_STASH(norm, lanes, chunks, size, backward) \
    ((norm) >= 0 && (backward) && (lanes) > 32 && (lanes) * (chunks) * 8 * (size) <= 32768 ? (lanes) * (chunks) * 8 * (size) : 0)
#else
#define TE_CHAIN_STASH(norm, lanes, chunks, size, backward) 0
#define TE_CHAIN_LANES(norm, w, sums, pass) 1
#define TE_CHAIN_GROUPS(norm, lanes) 1
#define TE_CHAIN_CHUNKS(norm, w, lanes) TE_VECTORS(w)
#define TE_CHAIN_RESIDENT(norm, threads, chunks, sums, gated, draws, pass) 1
#endif

/* The kernels of a chain whose width is known only at run time: X(.., suffix, columns, aligned). A norm's row has that many
 * columns at most; a map takes any. One narrow and one wide kernel serve rows that are no multiple of eight. */
#if TE_CUDA
#define TE_MAP_KERNELS(X, ...) X(__VA_ARGS__, aligned, 1024, 1) X(__VA_ARGS__, any, 1024, 0)
#define TE_NORM_KERNELS(X, ...)                                                                                 \
    X(__VA_ARGS__, aligned_1k, 1024, 1) X(__VA_ARGS__, aligned_4k, 4096, 1) X(__VA_ARGS__, aligned_12k, 12288, 1) \
    X(__VA_ARGS__, aligned_64k, 65536, 1) X(__VA_ARGS__, any_1k, 1024, 0) X(__VA_ARGS__, any_64k, 65536, 0)
#else
#define TE_MAP_KERNELS(X, ...) X(__VA_ARGS__, any, 1024, half % 8 == 0)
#define TE_NORM_KERNELS(X, ...) X(__VA_ARGS__, any_4k, 4096, half % 8 == 0) X(__VA_ARGS__, any_64k, 65536, half % 8 == 0)
#endif
/* What of a shape follows its width at run time: on CUDA a map's lanes, on the host the one lane's vectors. */
TE_BOTH te_chain_shape te_shape_at(te_chain_shape k) {
#if TE_CUDA
    if (k.norm < 0) k.lanes = TE_MAP_LANES(k.half), k.groups = TE_CHAIN_GROUPS(-1, k.lanes);
#else
    k.chunks = (int)te_min(k.chunks, TE_VECTORS(k.half));
#endif
    return k;
}

/* ---- maps ------------------------------------------------------------------------------------------------------ */

typedef void (*te_map_forward_fn)(float v[8], const te_stage *s, te_at at, int code);
typedef void (*te_map_backward_fn)(float v[8], float sum[8], const te_stage *s, te_at at, int code);
typedef void (*te_gated_forward_fn)(float v[8], const float g[8], const te_stage *s, te_at at, int code);
typedef void (*te_gated_backward_fn)(float v[8], float g[8], const te_stage *s, te_at at, int code);

TE_FN te_at te_second_half(te_at at) {
    at.col += at.width;
    return at;
}
/* Store, and go on with what was stored: backward will read it so. */
TE_FN void te_keep8(float v[8], void *out, te_at at) {
    te_store8(out, te_index(at), v, at.n, at.aligned, at.dtype);
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] = te_round_to(v[i], at.dtype);
}
TE_FN void te_keep(te_lane *l, const te_stage *s) {
    if (!s->out) return;
    te_keep8(l->v, s->out, l->at);
    if (l->at.halves == 2) te_keep8(l->g, s->out, te_second_half(l->at));
}
TE_FN void te_map_forward(te_lane *l, const te_stage *s, te_map_forward_fn f, int code) {
    f(l->v, s, l->at, code);
    if (l->at.halves == 2) f(l->g, s, te_second_half(l->at), code);
    te_keep(l, s);
}
TE_FN void te_map_backward(te_lane *l, const te_stage *s, te_map_backward_fn f, int code) {
    f(l->v, l->sum, s, l->at, code);
    if (l->at.halves == 2) f(l->g, l->gsum, s, te_second_half(l->at), code);
    te_keep(l, s);
}
TE_FN void te_gated_forward(te_lane *l, const te_stage *s, te_gated_forward_fn f, int code) {
    f(l->v, l->g, s, l->at, code);
    l->at.halves = 1;
    te_keep(l, s);
}
TE_FN void te_gated_backward(te_lane *l, const te_stage *s, te_gated_backward_fn f, int code) {
    l->at.halves = 2;
    f(l->v, l->g, s, l->at, code);
    te_keep(l, s);
}

TE_FN te_at te_at_of(const te_chain_shape k, int64_t row, int vector, int halves) {
    te_at at;
    at.row = row, at.col = vector * 8, at.width = k.half, at.halves = halves, at.dtype = k.dtype;
    at.aligned = k.aligned, at.n = at.aligned ? 8 : (int)te_min(8, k.half - at.col);
    return at;
}
TE_FN void te_load_lane(te_lane *l, const void *x, const te_chain_shape k, int64_t row, int vector) {
    l->at = te_at_of(k, row, vector, k.in_halves);
    te_load8(l->v, x, te_index(l->at), l->at.n, l->at.aligned, k.dtype);
    if (k.in_halves == 2) te_load8(l->g, x, te_index(te_second_half(l->at)), l->at.n, l->at.aligned, k.dtype);
}
TE_FN void te_store_lane(const te_lane *l, void *y, const te_chain_shape k) {
    te_store8(y, te_index(l->at), l->v, l->at.n, l->at.aligned, k.dtype);
    if (k.out_halves == 2) te_store8(y, te_index(te_second_half(l->at)), l->g, l->at.n, l->at.aligned, k.dtype);
}

/* ---- norms ----------------------------------------------------------------------------------------------------- */

/* y = (x - mean) rstd gamma + beta       layernorm: Ba et al. 2016
 * y = x rstd gamma, rstd = (mean(x^2) + eps)^-1/2        rmsnorm: Zhang & Sennrich 2019
 * y = x rnorm, rnorm = (sum(x^2) + eps)^-1/2             l2norm
 * zero-centred: 1 + gamma takes the place of gamma. */
enum { TE_NORM_layernorm = 0, TE_NORM_rmsnorm = 1, TE_NORM_l2norm = 2, TE_NORM_zero_centred = 4 };

/* gamma for eight columns, from what te_load_eight left in `gamma`. */
TE_FN void te_gamma8(float w[8], const te_eight *gamma, te_dtype dtype, int code) {
    if ((code & 3) == TE_NORM_l2norm) {
        TE_UNROLL for (int i = 0; i < 8; i++) w[i] = 1.0f;
        return;
    }
    te_floats_of_eight(w, gamma, dtype);
    if (code & TE_NORM_zero_centred) TE_UNROLL for (int i = 0; i < 8; i++) w[i] += 1.0f;
}
TE_FN void te_load_gamma(te_eight *gamma, const te_stage *s, te_at at, int code) {
    if ((code & 3) != TE_NORM_l2norm) te_load_eight(gamma, s->w[0], at.col, at.n, at.aligned, at.dtype);
}
/* Where a lane keeps its vector i of gamma in backward: in shared memory, if there is room (k.stash), for the sums need the
 * registers; else in `kept`. */
TE_FN void te_keep_gamma(const te_eight *gamma, te_eight *kept, void *stash, const te_chain_shape k, te_lanes g, int i) {
#if TE_CUDA
    uint4 *slot = (uint4 *)stash + (k.dtype == TE_f32 ? 2 : 1) * (g.id + i * g.count);
    if (k.stash) slot[0] = make_uint4(gamma->w[0], gamma->w[1], gamma->w[2], gamma->w[3]);
    if (k.stash && k.dtype == TE_f32) slot[1] = make_uint4(gamma->w[4], gamma->w[5], gamma->w[6], gamma->w[7]);
    if (k.stash) return;
#endif
    (void)stash, (void)k, (void)g;
    kept[i] = *gamma;
}
TE_FN void te_kept_gamma(te_eight *gamma, const te_eight *kept, const void *stash, const te_chain_shape k, te_lanes g, int i) {
#if TE_CUDA
    const uint4 *slot = (const uint4 *)stash + (k.dtype == TE_f32 ? 2 : 1) * (g.id + i * g.count);
    if (k.stash) te__load_shared_now(gamma->w, slot);
    if (k.stash && k.dtype == TE_f32) te__load_shared_now(gamma->w + 4, slot + 1);
    if (k.stash) return;
#endif
    (void)stash, (void)k, (void)g;
    *gamma = kept[i];
}

/* row_x: the row in registers, as it is stored (16 bits an element where the dtype has 16: with half the registers twice
 * the rows are in flight). So the norm sees the same numbers whether its input is stored or not. */
TE_FN void te_norm_forward(const te_chain *c, te_stages_fn stages, const te_chain_shape k, int64_t row, te_lanes *g, te_eight *row_x) {
    const te_stage *s = &c->op[k.norm];
    const int code = k.norm_code & 3;
    const float n = (float)k.half;
    float sum = 0, squares = 0, v[8];
    te_lane l;
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const te_at at = te_at_of(k, row, g->id + i * g->count, 1);
        if (at.col >= k.half) continue;
        if (k.norm == 0) {
            te_load_eight(&row_x[i], c->x, te_index(at), at.n, at.aligned, k.dtype);
        } else {
            te_load_lane(&l, c->x, k, row, g->id + i * g->count);
            stages(&l, c, 0, k.norm);
            te_eight_of_floats(&row_x[i], l.v, k.dtype);
        }
    }
    if (code == TE_NORM_layernorm) {
        TE_UNROLL for (int i = 0; i < k.chunks; i++) {
            const int left = k.half - (g->id + i * g->count) * 8;
            if (left <= 0) continue;
            te_floats_of_eight(v, &row_x[i], k.dtype);
            TE_UNROLL for (int j = 0; j < 8; j++) if (k.aligned || j < left) sum += v[j];
        }
        te_lanes_sum(&sum, 1, g);
    }
    const float mean = sum / n;
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const int left = k.half - (g->id + i * g->count) * 8;
        if (left <= 0) continue;
        te_forget_floats(&row_x[i], k.dtype);
        te_floats_of_eight(v, &row_x[i], k.dtype);
        TE_UNROLL for (int j = 0; j < 8; j++) if (k.aligned || j < left) squares += (v[j] - mean) * (v[j] - mean);
    }
    te_lanes_sum(&squares, 1, g);
    const float rstd = 1.0f / sqrtf((code == TE_NORM_l2norm ? squares : squares / n) + s->value[0]);
    if (s->stats && g->id == 0) {
        if (code == TE_NORM_layernorm) s->stats[2 * row] = mean, s->stats[2 * row + 1] = rstd;
        else s->stats[row] = rstd;
    }
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        float w[8], b[8];
        te_eight gamma;
        l.at = te_at_of(k, row, g->id + i * g->count, 1);
        if (l.at.col >= k.half) continue;
        te_load_gamma(&gamma, s, l.at, k.norm_code);
        te_gamma8(w, &gamma, k.dtype, k.norm_code);
        if (code == TE_NORM_layernorm) te_load8(b, s->w[1], l.at.col, l.at.n, l.at.aligned, k.dtype);
        te_forget_floats(&row_x[i], k.dtype);
        te_floats_of_eight(v, &row_x[i], k.dtype);
        TE_UNROLL for (int j = 0; j < 8; j++) l.v[j] = (v[j] - mean) * rstd * w[j] + (code == TE_NORM_layernorm ? b[j] : 0.0f);
        te_keep(&l, s);
        stages(&l, c, k.norm + 1, TE_MAX_ROW);
        if (c->y) te_store_lane(&l, c->y, k);
    }
}

/* dy, x and the statistics of a row, loaded while the row before is worked on. */
typedef struct te_norm_row { float mean, rstd; } te_norm_row;
TE_FN te_norm_row te_norm_load(const te_chain *c, const te_chain_shape k, int64_t row, te_lanes g, te_eight *dy, te_eight *x) {
    const te_stage *s = &c->op[0];
    te_norm_row n;
    n.mean = k.norm_code % 4 == TE_NORM_layernorm ? s->stats[2 * row] : 0.0f;
    n.rstd = k.norm_code % 4 == TE_NORM_layernorm ? s->stats[2 * row + 1] : s->stats[row];
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const te_at at = te_at_of(k, row, g.id + i * g.count, 1);
        if (at.col >= k.half) continue;
        te_load_eight(&dy[i], c->x, te_index(at), at.n, at.aligned, k.dtype);
        te_load_eight(&x[i], s->saved, te_index(at), at.n, at.aligned, k.dtype);
        if (c->op[1].edge) te_prefetch(c->op[1].edge, te_index(at), k.dtype); /* of the fork behind the norm */
    }
    return n;
}

/* With xhat = (x - mean) rstd and d = dy gamma:  dx = rstd (d - mean(d) - xhat mean(d xhat)); rmsnorm has no mean(d),
 * l2norm has sums for means. dgamma = sum over rows of dy xhat, dbeta = sum of dy.
 * dy, x: the row in registers, as it is stored; sums: see te_chain_body. */
TE_FN void te_norm_backward(const te_chain *c, te_stages_fn stages, const te_chain_shape k, int64_t row, te_lanes *g, te_norm_row n, te_eight *dy,
                            te_eight *x, const te_eight *gamma, const void *stash, float *sums) {
    const te_stage *s = &c->op[0];
    const int code = k.norm_code & 3, size = 8 * k.chunks;
    const float count = code == TE_NORM_l2norm ? 1.0f : (float)k.half;
    float total[2] = {0, 0}, w[8], v[8], xhat[8];
    te_lane l;
    te_eight here;
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const te_at at = te_at_of(k, row, g->id + i * g->count, 1);
        if (at.col >= k.half) continue;
        te_floats_of_eight(v, &dy[i], k.dtype);
        te_floats_of_eight(xhat, &x[i], k.dtype);
        te_kept_gamma(&here, gamma, stash, k, *g, i);
        te_gamma8(w, &here, k.dtype, k.norm_code);
        TE_UNROLL for (int j = 0; j < 8; j++) {
            const int e = 8 * i + j;
            xhat[j] = j < at.n ? (xhat[j] - n.mean) * n.rstd : 0.0f;
            total[0] += v[j] * w[j] * xhat[j], total[1] += v[j] * w[j];
            if (code != TE_NORM_l2norm) sums[2 * size + e] += v[j] * xhat[j];
            if (code == TE_NORM_layernorm) sums[3 * size + e] += v[j];
        }
    }
    te_lanes_sum(total, code == TE_NORM_layernorm ? 2 : 1, g);
    const float a = n.rstd * n.rstd * (total[0] / count), shift = n.mean * a - (code == TE_NORM_layernorm ? n.rstd * (total[1] / count) : 0.0f);
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        l.at = te_at_of(k, row, g->id + i * g->count, 1);
        if (l.at.col >= k.half) continue;
        te_forget_floats(&dy[i], k.dtype), te_forget_floats(&x[i], k.dtype);
        te_floats_of_eight(v, &dy[i], k.dtype);
        te_floats_of_eight(xhat, &x[i], k.dtype); /* x itself */
        te_kept_gamma(&here, gamma, stash, k, *g, i);
        te_gamma8(w, &here, k.dtype, k.norm_code);
        TE_UNROLL for (int j = 0; j < 8; j++) {
            l.v[j] = n.rstd * (v[j] * w[j]) + (shift - a * xhat[j]);
            l.sum[j] = sums[8 * i + j];
        }
        te_keep(&l, s);
        stages(&l, c, 1, TE_MAX_ROW);
        TE_UNROLL for (int j = 0; j < 8; j++) sums[8 * i + j] = l.sum[j];
        if (c->y) te_store_lane(&l, c->y, k);
    }
}

/* `count` rows from `row` on, `step` apart, eight columns of each: all are loaded before the first is worked on. */
TE_FN void te_map_rows(const te_chain *c, te_stages_fn stages, const te_chain_shape k, int64_t row, int64_t step, const int count, int vector, float *sums) {
    te_lane l[TE_MAP_ROWS];
    TE_UNROLL for (int r = 0; r < count; r++) te_load_lane(&l[r], c->x, k, row + r * step, vector);
    TE_UNROLL for (int r = 0; r < count; r++) {
        if (k.sums >= 0) TE_UNROLL for (int j = 0; j < 8; j++) l[r].sum[j] = sums[j], l[r].gsum[j] = sums[8 * k.chunks + j];
        stages(&l[r], c, 0, TE_MAX_ROW);
        if (k.sums >= 0) TE_UNROLL for (int j = 0; j < 8; j++) sums[j] = l[r].sum[j], sums[8 * k.chunks + j] = l[r].gsum[j];
        if (c->y) te_store_lane(&l[r], c->y, k);
    }
}

/* ---- the body --------------------------------------------------------------------------------------------------- */

/* sums: 32 * chunks floats: [gradient, its second half, dgamma, dbeta][chunks][8]; rows: 5 * chunks, the row at hand, the
 * one that is being loaded, and gamma. */
TE_FN void te_chain_body(const te_chain *c, te_block b, te_stages_fn stages, const te_chain_shape k, float *sums, te_eight *rows, void *stash) {
    int group;
    te_lanes g = te_lanes_here(k.lanes, &group);
    const int size = 8 * k.chunks, summing = k.sums >= 0 || (k.backward && k.norm >= 0);
    const int tiles = te_chain_tiles(k), tile = b.x % tiles * k.chunks * k.lanes, block = b.x / tiles; /* neighbours share a row */
    const int64_t first = (int64_t)block * k.groups + group, step = (int64_t)(b.nx / tiles) * k.groups;
    if (summing) TE_UNROLL for (int i = 0; i < 4 * size; i++) sums[i] = 0;
    if (k.norm >= 0 && k.backward) {
        te_norm_row n = {0, 0};
        te_eight *dy = rows, *x = rows + k.chunks, *dy_now = rows + 2 * k.chunks, *x_now = rows + 3 * k.chunks, *gamma = rows + 4 * k.chunks;
        TE_UNROLL for (int i = 0; i < k.chunks; i++) {
            const te_at at = te_at_of(k, 0, g.id + i * g.count, 1);
            te_eight here;
            if (at.col >= k.half || k.norm_code % 4 == TE_NORM_l2norm) continue;
            te_load_gamma(&here, &c->op[0], at, k.norm_code);
            te_keep_gamma(&here, gamma, stash, k, g, i);
        }
        if (first < c->rows) n = te_norm_load(c, k, first, g, dy, x);
        for (int64_t row = first; row < c->rows; row += step) {
            const te_norm_row now = n;
            TE_UNROLL for (int i = 0; i < k.chunks; i++) dy_now[i] = dy[i], x_now[i] = x[i];
            if (row + step < c->rows) n = te_norm_load(c, k, row + step, g, dy, x);
            te_norm_backward(c, stages, k, row, &g, now, dy_now, x_now, gamma, stash, sums);
        }
    } else if (k.norm >= 0) {
        for (int64_t row = first; row < c->rows; row += step) te_norm_forward(c, stages, k, row, &g, rows);
    } else {
        TE_UNROLL for (int i = 0; i < k.chunks; i++) {
            const int vector = tile + g.id + i * g.count;
            int64_t row = first;
            if (vector * 8 >= k.half) continue;
            for (; row + (te_map_batch(k) - 1) * step < c->rows; row += te_map_batch(k) * step)
                te_map_rows(c, stages, k, row, step, te_map_batch(k), vector, sums + 8 * i);
            for (; row < c->rows; row += step) te_map_rows(c, stages, k, row, step, 1, vector, sums + 8 * i);
        }
    }
    if (!summing) return;
    TE_UNROLL for (int slot = 0; slot < 4; slot++) {
        const int of_norm = slot >= 2, halves = of_norm ? 1 : k.out_halves;
        if (of_norm ? !(k.norm >= 0 && k.norm_code % 4 <= (slot == 2 ? TE_NORM_rmsnorm : TE_NORM_layernorm)) : k.sums < 0 || slot >= halves) continue;
        float *out = c->op[of_norm ? 0 : k.sums].sum[of_norm ? slot - 2 : 0];
        te_groups_sum(sums + slot * size, size, g, k.groups);
        if (group == 0 && out) TE_UNROLL for (int i = 0; i < k.chunks; i++) {
            const te_at at = te_at_of(k, block, tile + g.id + i * g.count, halves);
            if (at.col < k.half)
                te_store8(out, te_index(at) + (slot == 1 ? k.half : 0), sums + slot * size + 8 * i, at.n, at.aligned, TE_f32);
        }
    }
}

#endif
