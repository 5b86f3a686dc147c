/* head_norm.h -- RMSNorm of each head of q and of k, on packed rows [q of all heads, k of all kv_heads, v of all
 * kv_heads]; v passes through unchanged. x and y are [rows, (heads + 2 kv_heads) head_dim]; head_dim is at most 512;
 * above 496 it and the rope's rotary_dim must be multiples of 16. Dehghani et al. 2023 (QK norm); Qwen3, Gemma 3.
 *
 *   (head_norm, name, heads, kv_heads, head_dim)     option (eps, 1e-5f)
 *   (head_norm1p, ..)                                the same with 1 + weight (zero-centred, Gemma 3)
 *
 * Do this:
 *     (linear, qkv, H, 6144), (head_norm, qk, 32, 8, 128), (rope, rot, 32, 8, 128), (attention, attn, 32, 8, 128)
 *
 * All heads of q share q_weight[head_dim], all heads of k share k_weight[head_dim]. For a head x with the weight w, and
 * with D = head_dim:
 *     forward     y = x rstd w, rstd = (sum(x^2) / D + eps)^-1/2
 *     backward    dx = rstd (w dy - x rstd^2 / D sum(w dy x)),  dw = sum of dy x rstd over rows and heads
 * Forward saves x; backward recomputes rstd. Memory traffic: forward reads x and writes y; backward reads x and dy and
 * writes dx. A rope that follows is fused into the same kernel: head_norm_rope, in backward rope_head_norm. In a tensor
 * group each rank has some of the heads, but all of q_weight and k_weight. Each rank sums the gradients of these
 * weights over its own heads only; te/comm then adds up the sums of all ranks.
 *
 * A head is split into chunks of 2 x 8 columns. Two columns that a rope rotates as a pair are in the same chunk. On
 * CUDA a group of 1 to 32 lanes computes a head, and each lane takes one chunk. The groups of a block loop over the
 * heads of a few rows. In forward a group issues the loads of several heads before it waits for the first one.
 */
#ifndef TE_OPS_HEAD_NORM_H
#define TE_OPS_HEAD_NORM_H

#include "../plan/impl/gradients.h" /* te_defer_column_sum */
#include "rope.h"              /* te_rope_cos_sin, te_rotate8 */

/* ---- the op ------------------------------------------------------------------------------------------------------ */

#define TE_OP_head_norm (head_norm, custom)
#define TE_OP_head_norm1p (head_norm, custom)
#define TE_SHAPES_head_norm(op) (3)
#define TE_IN_head_norm(op) (((int)(TE_ARG1(op, 0)) + 2 * (int)(TE_ARG2(op, 0))) * (int)(TE_ARG3(op, 0)))
#define TE_FLAGS_head_norm(op) (TE_SAVES_INPUT | TE_PARAMS_REPLICATED)
#define TE_LAYOUT_FITS_head_norm(op, in) ((int)(in) == (int)TE_LAYOUT_replicated || (int)(in) == (int)TE_LAYOUT_columns)
#define TE_PARAMS_head_norm(op, in, out) TE_JOIN1(TE__PARAMS_OF_, TE_KIND(op))(TE_ARG3(op, 0))
#define TE__PARAMS_OF_head_norm(dim) ((q_weight, 1, dim, one), (k_weight, 1, dim, one))
#define TE__PARAMS_OF_head_norm1p(dim) ((q_weight, 1, dim, zero), (k_weight, 1, dim, zero))
#define TE__IS_1P(op) TE_IF_MARKED(TE_JOIN1(TE__1P_, TE_KIND(op)), 1, 0)
#define TE__1P_head_norm1p ,
#define TE_TAKES_head_norm_eps TE_NUMBER
#define TE__HEAD_EPS(op) (float)(TE_OPTION(op, eps, 1e-5f))
#define TE_OPTIONS_head_norm(op) (te_head_norm_options, TE__HEAD_EPS(op))
#define TE_CHECK_head_norm(model, op)                                                                             \
    (static_assert((TE_ARG1(op, 0)) > 0 && (TE_ARG2(op, 0)) > 0 && (TE_ARG3(op, 0)) > 0,                          \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": heads, kv_heads and head_dim must be positive"); \
     static_assert((TE_ARG3(op, 0)) <= (int)TE_HEAD_NORM_MAX_DIM,                                                 \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": head_dim is 512 at most");                       \
     TE_ASSERT_NUMBER(TE__HEAD_EPS(op) >= 0 && TE__HEAD_EPS(op) < 3e38f,                                          \
                      "te: " TE_STRING(model) ": " TE_CALLED(op) ": eps must be a finite number of at least 0");)

typedef struct te_head_norm_options { float eps; } te_head_norm_options;

/* ---- sizes and arguments of the kernels -------------------------------------------------------------------------- */

enum {
    TE_HEAD_NORM_MAX_DIM = 512, /* the largest head_dim: 32 chunks of 16 columns, one for each lane of a warp */
    TE_HEAD_MAX_CHUNKS = 32,    /* the number of lanes in a warp */
    TE_HEAD_THREADS = TE_CUDA ? 256 : 1,
    TE_HEAD_ROWS = TE_CUDA ? 2 : 1,              /* number of rows of the tensor that a block computes in forward */
    TE_HEAD_ROWS_BACKWARD = TE_CUDA ? 4 : 1,     /* the largest number of rows that a block of backward computes at a
                                                  * time */
    TE_HEAD_PREFETCH = TE_CUDA ? 4 : 1,          /* number of heads whose loads a lane has in flight in forward */
    TE_HEAD_PREFETCH_BACKWARD = TE_CUDA ? 2 : 1, /* number of heads whose loads a lane has in flight in backward */
    TE_HEAD_LANE_CHUNKS = TE_CUDA ? 1 : TE_HEAD_MAX_CHUNKS /* the largest number of chunks (te_head_chunk) that one
                                                            * lane holds */
};

/* The compile-time constants of a kernel. */
typedef struct te_head_shape {
    int heads, kv_heads, dim;
    /* pairs: for each c < pairs, one lane holds both columns c and c + pairs. A rope that is not interleaved rotates
     * these two columns together; `pairs` is then rotary / 2. Without a rope, `pairs` is dim / 2. With an interleaved
     * rope, which rotates adjacent columns together, `pairs` is 0 */
    int pairs;
    /* options of the rope that the same kernel applies: its rotary_dim, and 1 or 0 for whether the rope is interleaved
     * and scaled. rotary is 0 if the kernel applies no rope */
    int rotary, interleaved, scaled;
    int zero_centred;                /* 1 if the memory holds w - 1 instead of the weight w (head_norm1p) */
    float eps;
    /* number formats. x: the format of this pass's input (in backward dy); y: the format of this pass's output (in
     * backward dx); w: the format of the weights; saved: the format of the x that forward saved */
    te_dtype x, y, w, saved;
} te_head_shape;

typedef struct te_head_args {
    te_rope_args at;   /* the arguments of rope's kernel. at.x and at.y: in forward x and y, in backward dy and dx,
                        * [rows, (heads + 2 kv_heads) dim] */
    const void *w[2];  /* q_weight and k_weight: [dim] */
    const void *saved; /* backward: the x that forward saved */
    /* for backward: partial sums of the gradients of q_weight (sum[0]) and k_weight (sum[1]), each [blocks, dim], one
     * row for each block */
    float *sum[2];
} te_head_args;

/* ---- which columns of a head a lane takes ------------------------------------------------------------------------ */

/* A chunk consists of the columns a[0] to a[0] + n[0] - 1 and a[1] to a[1] + n[1] - 1 of a head. n[0] and n[1] are 8,
 * or less where fewer columns are left. In the first te_head_pair_chunks chunks of a head, a[1] = a[0] + pairs: such a
 * chunk holds eight columns and, if there is a rope, the eight columns that the rope rotates together with them. Each
 * other chunk holds 16 adjacent columns. */
typedef struct te_head_chunk { int a[2], n[2]; } te_head_chunk;

TE_FN int te_head_pair_chunks(te_head_shape k) { return (k.pairs + 7) / 8; }
TE_FN int te_head_chunks(te_head_shape k) { return te_head_pair_chunks(k) + (k.dim - 2 * k.pairs + 15) / 16; }
/* Returns the number of lanes in a group that works on a head: the number of chunks of the head, rounded up to a power
 * of two; on the host 1. */
TE_FN int te_head_lanes(te_head_shape k) {
    const int chunks = te_head_chunks(k);
    return !TE_CUDA ? 1 : chunks > 16 ? 32 : chunks > 8 ? 16 : chunks > 4 ? 8 : chunks > 2 ? 4 : chunks > 1 ? 2 : 1;
}
/* Returns whether every vector of eight columns is complete and begins at a multiple of 16 bytes. */
TE_FN int te_head_aligned(te_head_shape k) {
    return k.pairs % 8 == 0 && (k.dim - 2 * k.pairs) % 16 == 0;
}
TE_FN te_head_chunk te_head_chunk_at(te_head_shape k, int i) {
    const int paired = te_head_pair_chunks(k), rest = 2 * k.pairs + 16 * (i - paired);
    te_head_chunk p;
    p.a[0] = i < paired ? 8 * i : rest, p.a[1] = i < paired ? k.pairs + 8 * i : rest + 8;
    TE_UNROLL for (int j = 0; j < 2; j++)
        p.n[j] = te_head_aligned(k) ? 8 : (int)te_max(0, te_min(8, i < paired ? k.pairs - 8 * i : k.dim - p.a[j]));
    return p;
}

/* The chunks (te_head_chunk) of a head that one lane holds: te_head_vecs in the format of the tensor in memory,
 * te_head_floats as floats. */
typedef struct te_head_vecs { te_vec8 v[TE_HEAD_LANE_CHUNKS][2]; } te_head_vecs;
typedef struct te_head_floats { float v[TE_HEAD_LANE_CHUNKS][2][8]; } te_head_floats;

/* Loop over the chunks of a head that this lane of the group g holds. c counts these chunks, 0, 1, ..; i is the index
 * of the chunk within the head. */
#define TE__HEAD_EACH(k, g, c, i) \
    TE_UNROLL for (int c = 0, i = (g).id; c < TE_HEAD_LANE_CHUNKS && i < te_head_chunks(k); c++, i += (g).count)

TE_FN void te_head_load(te_head_vecs *x, const void *p, int64_t at, te_lanes g, te_head_shape k, te_dtype t) {
    TE__HEAD_EACH(k, g, c, i) {
        const te_head_chunk l = te_head_chunk_at(k, i);
        TE_UNROLL for (int j = 0; j < 2; j++)
            te_vec8_load(&x->v[c][j], p, at + l.a[j], l.n[j], te_head_aligned(k), t);
    }
}
TE_FN void te_head_unpack(te_head_floats *x, const te_head_vecs *from, te_lanes g, te_head_shape k, te_dtype t) {
    TE__HEAD_EACH(k, g, c, i) TE_UNROLL for (int j = 0; j < 2; j++) te_vec8_floats(x->v[c][j], &from->v[c][j], t);
}
TE_FN void te_head_store(void *p, int64_t at, const te_head_floats *x, te_lanes g, te_head_shape k, te_dtype t) {
    TE__HEAD_EACH(k, g, c, i) {
        const te_head_chunk l = te_head_chunk_at(k, i);
        TE_UNROLL for (int j = 0; j < 2; j++)
            te_store8(p, at + l.a[j], x->v[c][j], l.n[j], te_head_aligned(k), t);
    }
}
/* Loads the weights of the columns that this lane holds, and adds 1 to each if the memory holds weight - 1
 * (zero-centred). */
TE_FN void te_head_weight(te_head_floats *w, const void *p, te_lanes g, te_head_shape k) {
    TE__HEAD_EACH(k, g, c, i) {
        const te_head_chunk l = te_head_chunk_at(k, i);
        TE_UNROLL for (int j = 0; j < 2; j++) {
            te_load8(w->v[c][j], p, l.a[j], l.n[j], te_head_aligned(k), k.w);
            if (k.zero_centred) TE_UNROLL for (int e = 0; e < 8; e++) w->v[c][j][e] += 1.0f;
        }
    }
}

/* ---- rope in the same kernel ------------------------------------------------------------------------------------- */

/* Returns the number of pairs in a row's table of cosines and sines: half of rotary_dim, rounded up to a multiple of
 * eight, because te_rotate8 reads eight pairs at a time. */
TE_FN int te_head_table_pairs(te_head_shape k) { return (k.rotary / 2 + 7) / 8 * 8; }
#define TE__COS_SIN_FLOATS(rotary) (2 * (((rotary) / 2 + 7) / 8 * 8) + 1) /* number of floats in the table of cosines
                                                                           * and sines of one row, and 1 more, so that
                                                                           * no array has length 0 */

/* Rotates the head x. cos_sin: the table of the head's row, with the cosines of all pairs and then their sines. */
TE_FN void te_head_rotate(te_head_floats *x, const float *cos_sin, te_lanes g, te_head_shape k) {
    const int pairs = te_head_table_pairs(k);
    TE__HEAD_EACH(k, g, c, i) {
        const te_head_chunk l = te_head_chunk_at(k, i);
        if (!k.interleaved && i < te_head_pair_chunks(k))
            te_rotate8(x->v[c][0], x->v[c][1], cos_sin + l.a[0], cos_sin + pairs + l.a[0]);
        TE_UNROLL for (int j = 0; k.interleaved && j < 2; j++) TE_UNROLL for (int e = 0; e < 8; e += 2) {
            const int p = (l.a[j] + e) / 2;
            const float even = x->v[c][j][e], odd = x->v[c][j][e + 1];
            if (2 * p >= k.rotary) continue;
            x->v[c][j][e] = even * cos_sin[p] - odd * cos_sin[pairs + p];
            x->v[c][j][e + 1] = odd * cos_sin[p] + even * cos_sin[pairs + p];
        }
    }
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* One unit of a block's work: one head of one row. row: the row's index, counted from the block's first row, `first`;
 * head: the head's index among the heads of q, k and v; at: the offset, in elements, of the head within the tensor. */
typedef struct te_head_unit { int row, head; int64_t at; } te_head_unit;
TE_FN te_head_unit te_head_unit_at(int u, int64_t first, te_head_shape k) {
    const int all = k.heads + 2 * k.kv_heads;
    te_head_unit h;
    h.row = u / all, h.head = u % all, h.at = ((first + h.row) * all + h.head) * k.dim;
    return h;
}
TE_FN int te_head_units(int rows, te_head_shape k) { return rows * (k.heads + 2 * k.kv_heads); }

/* The body of the forward kernel: a block computes TE_HEAD_ROWS rows. cos_sin: shared memory for the tables of cosines
 * and sines of these rows, [TE_HEAD_ROWS, TE__COS_SIN_FLOATS]. */
TE_FN void te_head_norm_rows(const te_head_args *a, te_block b, float *cos_sin, const te_head_shape k) {
    int group, thread;
    te_lanes g = te_lanes_here(te_head_lanes(k), &group);
    const te_lanes all = te_lanes_here(TE_HEAD_THREADS, &thread);
    const int groups = TE_HEAD_THREADS / te_head_lanes(k), pairs = te_head_table_pairs(k);
    const int64_t first = (int64_t)b.x * TE_HEAD_ROWS;
    const int rows = (int)te_min(TE_HEAD_ROWS, a->at.rows - first), units = te_head_units(rows, k);
    const int rounds = (int)te_ceil_div(te_head_units(TE_HEAD_ROWS, k), groups);
    const int depth = rounds < TE_HEAD_PREFETCH ? rounds : TE_HEAD_PREFETCH;
    te_head_vecs next[TE_HEAD_PREFETCH];
    for (int from = 0; from < units; from += groups * depth) {
        TE_UNROLL for (int j = 0; j < depth; j++) {
            const int u = from + j * groups + group;
            if (u < units) te_head_load(&next[j], a->at.x, te_head_unit_at(u, first, k).at, g, k, k.x);
            else memset(&next[j], 0, sizeof next[j]);
        }
        /* the table of cosines and sines is computed while the first loads are in flight */
        if (k.rotary && from == 0) {
            te_rope_cos_sin(cos_sin, &a->at, first, rows, all, te_rope_table_of(pairs, k.rotary, k.scaled, 1));
            te_block_sync();
        }
        TE_UNROLL for (int j = 0; j < depth; j++) {
            /* If every group of the block has finished its heads (units), all lanes skip the reductions below together.
             * If only some groups have finished, the lanes of these groups still take part, because a reduction needs
             * the whole warp. */
            if (from + j * groups >= units) continue;
            const int u = from + j * groups + group;
            const te_head_unit h = te_head_unit_at(u, first, k);
            te_head_floats x, w;
            float squares = 0;
            te_head_unpack(&x, &next[j], g, k, k.x);
            TE__HEAD_EACH(k, g, c, i) TE_UNROLL for (int e = 0; e < 16; e++)
                squares += x.v[c][e / 8][e % 8] * x.v[c][e / 8][e % 8];
            te_lanes_sum(&squares, 1, &g);
            if (u >= units) continue;
            if (h.head < k.heads + k.kv_heads) { /* a head of q or k */
                const float rstd = 1.0f / sqrtf(squares / (float)k.dim + k.eps);
                te_head_weight(&w, a->w[h.head >= k.heads], g, k);
                TE__HEAD_EACH(k, g, c, i) TE_UNROLL for (int e = 0; e < 16; e++)
                    x.v[c][e / 8][e % 8] *= rstd * w.v[c][e / 8][e % 8];
                if (k.rotary) te_head_rotate(&x, cos_sin + 2 * h.row * pairs, g, k);
            }
            te_head_store(a->at.y, h.at, &x, g, k, k.y);
        }
    }
}

/* Computes the backward of one head: d is dy on entry and dx on return; dw receives the head's contribution to the
 * gradient of w. */
TE_FN void te_head_backward(te_head_floats *d, te_head_floats *dw, const te_head_floats *x, const te_head_floats *w,
                            te_lanes *g, te_head_shape k) {
    float s[2] = {0, 0}; /* s[0]: sum of x^2; s[1]: sum of w dy x */
    TE__HEAD_EACH(k, *g, c, i) TE_UNROLL for (int e = 0; e < 16; e++) {
        const float v = x->v[c][e / 8][e % 8];
        s[0] += v * v, s[1] += w->v[c][e / 8][e % 8] * d->v[c][e / 8][e % 8] * v;
    }
    te_lanes_sum(s, 2, g);
    const float rstd = 1.0f / sqrtf(s[0] / (float)k.dim + k.eps), along = s[1] * rstd * rstd / (float)k.dim;
    TE__HEAD_EACH(k, *g, c, i) TE_UNROLL for (int e = 0; e < 16; e++) {
        const float v = x->v[c][e / 8][e % 8], dy = d->v[c][e / 8][e % 8];
        dw->v[c][e / 8][e % 8] = dy * v * rstd;                                /* y = x rstd w, so dw = dy x rstd */
        d->v[c][e / 8][e % 8] = rstd * (w->v[c][e / 8][e % 8] * dy - v * along);
    }
}
/* Each group of lanes has its own sum for the gradient of one weight. Add up the sums of all groups of this block in a
 * fixed order, and store the total as the block's partial sum. */
TE_FN void te_head_weight_grad(float *to, te_head_floats *sum, te_lanes g, te_head_shape k) {
    int group;
    (void)te_lanes_here(g.count, &group);
    TE_UNROLL for (int c = 0; c < TE_HEAD_LANE_CHUNKS; c++)
        te_groups_sum(sum->v[c][0], 16, g, TE_HEAD_THREADS / g.count);
    TE__HEAD_EACH(k, g, c, i) {
        const te_head_chunk l = te_head_chunk_at(k, i);
        TE_UNROLL for (int e = 0; e < 16; e++)
            if (group == 0 && e % 8 < l.n[e / 8]) to[l.a[e / 8] + e % 8] = sum->v[c][e / 8][e % 8];
    }
}

/* The body of the backward kernel. A block loops over its rows, up to TE_HEAD_ROWS_BACKWARD at a time, and sums the
 * gradients of q_weight and k_weight over all its rows. */
TE_FN void te_head_norm_gradient(const te_head_args *a, te_block b, float *cos_sin, const te_head_shape k) {
    int group, thread;
    te_lanes g = te_lanes_here(te_head_lanes(k), &group);
    const te_lanes all = te_lanes_here(TE_HEAD_THREADS, &thread);
    const int groups = TE_HEAD_THREADS / te_head_lanes(k), pairs = te_head_table_pairs(k);
    /* if dy or the saved x is in f32, which takes twice the registers of a 16-bit format, only one head is
     * prefetched */
    const int is_f32 = k.x == TE_f32 || k.saved == TE_f32;
    const int depth = is_f32 ? 1 : TE_HEAD_PREFETCH_BACKWARD;
    const int64_t rounds = te_ceil_div(a->at.rows, b.nx * TE_HEAD_ROWS_BACKWARD);
    /* number of rows that a block computes in one round of the loop below */
    const int each = (int)te_ceil_div(a->at.rows, b.nx * rounds);
    te_head_floats sum[2];
    memset(sum, 0, sizeof sum);
    for (int64_t first = (int64_t)b.x * each; first < a->at.rows; first += (int64_t)b.nx * each) {
        const int rows = (int)te_min(each, a->at.rows - first), units = te_head_units(rows, k);
        te_head_vecs dy[TE_HEAD_PREFETCH_BACKWARD], saved[TE_HEAD_PREFETCH_BACKWARD];
        for (int from = 0; from < units; from += groups * depth) {
            TE_UNROLL for (int j = 0; j < depth; j++) {
                const int u = from + j * groups + group;
                const te_head_unit h = te_head_unit_at(u, first, k);
                const int is_v = h.head >= k.heads + k.kv_heads; /* v passes through unchanged, so its x is not
                                                                  * needed */
                memset(&dy[j], 0, sizeof dy[j]), memset(&saved[j], 0, sizeof saved[j]);
                if (u < units) te_head_load(&dy[j], a->at.x, h.at, g, k, k.x);
                if (u < units && !is_v) te_head_load(&saved[j], a->saved, h.at, g, k, k.saved);
            }
            if (k.rotary && from == 0) {
                te_block_sync(); /* after this barrier no thread reads the previous rows' table any more, so the table
                                  * may be overwritten */
                te_rope_cos_sin(cos_sin, &a->at, first, rows, all, te_rope_table_of(pairs, k.rotary, k.scaled, -1));
                te_block_sync();
            }
            TE_UNROLL for (int j = 0; j < depth; j++) {
                if (from + j * groups >= units) continue; /* if every group of the block has finished its heads, all
                                                           * lanes skip the reductions below */
                const int u = from + j * groups + group;
                const te_head_unit h = te_head_unit_at(u, first, k);
                const int is_k = h.head >= k.heads, is_v = h.head >= k.heads + k.kv_heads;
                te_head_floats d, x, w, dw;
                te_head_unpack(&d, &dy[j], g, k, k.x), te_head_unpack(&x, &saved[j], g, k, k.saved);
                if (k.rotary && u < units) te_head_rotate(&d, cos_sin + 2 * h.row * pairs, g, k);
                te_head_weight(&w, a->w[is_k], g, k);
                te_head_backward(&d, &dw, &x, &w, &g, k);
                if (u >= units) continue;
                if (is_v) te_head_unpack(&d, &dy[j], g, k, k.x);
                if (a->at.y) te_head_store(a->at.y, h.at, &d, g, k, k.y);
                TE__HEAD_EACH(k, g, c, i) TE_UNROLL for (int e = 0; e < 16 && !is_v; e++)
                    TE_UNROLL for (int w2 = 0; w2 < 2; w2++)
                        if (w2 == is_k) sum[w2].v[c][e / 8][e % 8] += dw.v[c][e / 8][e % 8];
            }
        }
    }
    TE_UNROLL for (int j = 0; j < 2; j++) te_head_weight_grad(a->sum[j] + (int64_t)b.x * k.dim, &sum[j], g, k);
}

/* ---- the kernels of a list: alone, and with a rope --------------------------------------------------------------- */

#define TE_CUSTOM_head_norm_forward(name, model, dtype, op) TE__HEAD_FORWARD(name, model, dtype, op, op, 0, 0, 0)
#define TE_CUSTOM_head_norm_backward(name, model, dtype, op) TE__HEAD_BACKWARD(name, model, dtype, op, op, 0, 0, 0)
#define TE_PAIR_head_norm_rope ,
#define TE_PAIR_rope_head_norm ,
#define TE_CUSTOM_PAIR_head_norm_rope_forward(name, model, dtype, op, rope)                    \
    TE__SAME_HEADS(name, op, rope)                                                          \
    TE__HEAD_FORWARD(name, model, dtype, op, rope, TE__ROTARY(rope), TE__INTERLEAVED(rope), \
        TE__ROPE_FREQUENCIES(rope))
#define TE_CUSTOM_PAIR_rope_head_norm_backward(name, model, dtype, rope, op)                    \
    TE__SAME_HEADS(name, op, rope)                                                           \
    TE__HEAD_BACKWARD(name, model, dtype, op, rope, TE__ROTARY(rope), TE__INTERLEAVED(rope), \
        TE__ROPE_FREQUENCIES(rope))
#define TE__SAME_HEADS(name, op, rope)                                                                \
    static_assert((TE_ARG1(op, 0)) == (TE_ARG1(rope, 0)) && (TE_ARG2(op, 0)) == (TE_ARG2(rope, 0)) && \
                      (TE_ARG3(op, 0)) == (TE_ARG3(rope, 0)),                                         \
                  "te: " #name ": " TE_CALLED(op) " and " TE_CALLED(rope) " must have the same heads");      \
    static_assert(TE__ROPE_FIRST(rope) == 0,                                                          \
                  "te: " #name ": " TE_CALLED(rope) ": first must be 0 behind a head_norm");

/* Defines the forward kernel of a norm, or of a norm and the rope after it. last: the rope, or the norm if there is no
 * rope. */
#define TE__HEAD_FORWARD(name, model, dtype, op, last, rotary, interleaved, scaled)                                  \
    TE__HEAD_SHAPE(name, model, dtype, op, rotary, interleaved, scaled, TE_DTYPE_IN(model, op),                      \
                   TE_DTYPE_OUT(model, last))                                                                        \
    TE_KERNEL(name, TE_HEAD_THREADS, te_head_args,                                                                   \
              TE_SHARED float te_cos_sin[TE_HEAD_ROWS * TE__COS_SIN_FLOATS(rotary)];                                 \
              te_head_norm_rows(te_args, te_at, te_cos_sin, name##_of()))                                            \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__head_norm_forward_run(r, s, name##_launch); }
#define TE__HEAD_BACKWARD(name, model, dtype, op, last, rotary, interleaved, scaled)                                 \
    TE__HEAD_SHAPE(name, model, dtype, op, rotary, interleaved, scaled, TE_DTYPE_OUT(model, last),                   \
                   TE_DTYPE_IN(model, op))                                                                           \
    TE_KERNEL_RESIDENT(name, TE_HEAD_THREADS, 2, te_head_args,                                                       \
                       TE_SHARED float te_cos_sin[TE_HEAD_ROWS_BACKWARD * TE__COS_SIN_FLOATS(rotary)];               \
                       te_head_norm_gradient(te_args, te_at, te_cos_sin, name##_of()))                               \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__head_norm_backward_run(r, s, name##_launch); }
/* TE__HEAD_PAIRS: te_head_shape.pairs as a constant; TE__HEAD_CHUNKS: te_head_chunks as a constant */
#define TE__HEAD_PAIRS(op, rotary, interleaved) \
    (!(rotary) ? (TE_ARG3(op, 0)) / 2 : (interleaved) ? 0 : (rotary) / 2)
#define TE__HEAD_CHUNKS(dim, pairs) (((pairs) + 7) / 8 + ((dim) - 2 * (pairs) + 15) / 16)
#define TE__HEAD_SHAPE(name, model, dtype, op, rope_dim, is_interleaved, is_scaled, from, to)                        \
    static_assert(TE__HEAD_CHUNKS(TE_ARG3(op, 0), TE__HEAD_PAIRS(op, rope_dim, is_interleaved)) <=                   \
                      (int)TE_HEAD_MAX_CHUNKS,                                                                       \
                  "te: " #name ": " TE_CALLED(op)                                                                    \
                  ": above 496 columns, head_dim and rotary_dim must be multiples of 16");                           \
    TE_BOTH te_head_shape name##_of(void) {                                                                          \
        te_head_shape k;                                                                                             \
        k.heads = TE_ARG1(op, 0), k.kv_heads = TE_ARG2(op, 0), k.dim = TE_ARG3(op, 0);                               \
        k.rotary = rope_dim, k.interleaved = is_interleaved, k.scaled = is_scaled;                                   \
        k.pairs = TE__HEAD_PAIRS(op, rope_dim, is_interleaved);                                                      \
        k.zero_centred = TE__IS_1P(op), k.eps = TE__HEAD_EPS(op);                                                    \
        k.x = (te_dtype)(from), k.y = (te_dtype)(to), k.w = TE_##dtype, k.saved = (te_dtype)TE_DTYPE_IN(model, op);  \
        return k;                                                                                                    \
    }

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Sets the arguments of a kernel that computes a norm, op i, alone or together with a rope. Of the ops in s->op, the
 * norm is the first in forward and the last in backward. */
TE_API te_status te__head_args(te_head_args *a, te_run *r, const te_step *s, int i, te_value y) {
    memset(a, 0, sizeof *a);
    for (int j = 0; j < 2; j++) a->w[j] = r->param[i][j].data;
    if (s->count > 1) TE_TRY(te__rope_args(&a->at, r, r->pass == TE_BACKWARD ? s->op[0] : s->op[1], y));
    a->at.y = y.data, a->at.x = r->current.data, a->at.rows = y.rows;
    return TE_OK;
}
TE_API te_status te__head_norm_forward_run(te_run *r, const te_step *s,
                                           te_status (*launch)(te_context *, te_grid, const te_head_args *)) {
    te_head_args a;
    te_value y;
    TE_TRY(te__output(&y, r, s, s->op[s->count - 1]));
    TE_TRY(te__head_args(&a, r, s, s->op[0], y));
    if (!r->dry) TE_TRY(launch(r->ctx, te__grid_of(te_ceil_div(a.at.rows, TE_HEAD_ROWS), 1), &a));
    te__set_current(r, y);
    return TE_OK;
}
TE_API te_status te__head_norm_backward_run(te_run *r, const te_step *s,
                                            te_status (*launch)(te_context *, te_grid, const te_head_args *)) {
    const int i = s->op[s->count - 1];
    /* the largest number of blocks of the backward kernel; each block stores one partial sum of the gradient of each
     * weight */
    const int max_blocks = TE_CUDA ? 2 * (int)te_max(1, r->ctx->processors) : 16;
    te_head_args a;
    te_value dx;
    TE_TRY(te__gradient(&dx, r, s, i));
    TE_TRY(te__head_args(&a, r, s, i, dx));
    a.at.rows = r->current.rows, a.saved = te__input_of(r, i).data;
    const int blocks = (int)te_min(a.at.rows, max_blocks);
    for (int j = 0; j < 2; j++)
        TE_TRY(te_defer_column_sum(r, &a.sum[j], &r->param[i][j], (int)r->param[i][j].cols, blocks, max_blocks));
    if (!r->dry) TE_TRY(launch(r->ctx, te__grid_of(blocks, 1), &a));
    te__set_current(r, dx);
    return TE_OK;
}

#endif
