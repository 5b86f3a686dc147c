/* pointwise_norm.h -- the bodies of pointwise kernels with a norm (layernorm, rmsnorm, l2norm), forward and backward. A
 * group of lanes holds a whole row in registers. Sums over the row are reductions over the group's lanes.
 */
#ifndef TE_POINTWISE_NORM_H
#define TE_POINTWISE_NORM_H

#include "pointwise_elementwise.h" /* te_store_saved */
#include "pointwise_quantize.h" /* te_pointwise_store_quantized */

/* Return whether column `col` lies beyond the end of the row. If the kernel may store FP8, and its lanes cover the row
 * exactly, the result is the constant 0, so that the compiler removes branches: kernels that store FP8 are limited by
 * their number of instructions. */
TE_FN int te_norm_is_past_end(const te_pointwise_shape k, int col) {
    return (k.fp8 || k.scaled != TE_SCALING_NONE) && k.half % (8 * k.lanes * k.chunks) == 0 ? 0 : col >= k.half;
}

/* Return whether the norm normalises columns col to col + 7. Columns that the norm does not normalise pass through
 * unchanged. */
TE_FN int te_norm_has_columns(const te_pointwise_shape k, int col) {
    return !k.norm_columns || (col >= k.norm_first && col < k.norm_first + k.norm_columns);
}
TE_FN int te_norm_count(const te_pointwise_shape k) { return k.norm_columns ? k.norm_columns : k.half; }
/* Load the norm's gamma (w = te_stage.w[0]) or beta (w = te_stage.w[1]) for the eight columns at `at`. */
TE_FN void te_load_norm_param(te_vec8 *to, const void *w, te_place at, const te_pointwise_shape k) {
    te_vec8 none;
    memset(&none, 0, sizeof none);
    if (te_norm_has_columns(k, at.col)) te_vec8_load(to, w, at.col - k.norm_first, at.n, at.aligned, k.weight);
    else *to = none;
}
TE_FN void te_load_gamma(te_vec8 *gamma, const te_stage *s, te_place at, const te_pointwise_shape k) {
    if (te_norm_has_gamma(k.norm_options.code)) te_load_norm_param(gamma, s->w[0], at, k);
}

/* Prefetch gamma and beta to the L2, before the kernel waits for the preceding kernel. Without the prefetch, gamma
 * would not be in the L2 during decoding, because all weights of the model are read between two uses of gamma; and a
 * load of gamma after the wait would queue behind the weights that the next GEMM loads in advance. */
TE_FN void te_norm_prefetch(const te_pointwise *c, const te_pointwise_shape k) {
#if defined __CUDA_ARCH__
    enum { APART = 32 }; /* in elements; these are 64 bytes in a 16-bit format */
    const int code = k.norm_options.code;
    if (k.norm < 0 || k.backward || blockIdx.x > 0) return;
    TE_UNROLL_1 for (int i = (int)threadIdx.x * APART; i < te_norm_count(k); i += (int)blockDim.x * APART) {
        if (te_norm_has_gamma(code)) te_prefetch(c->op[k.norm].w[0], i, k.weight);
        if (te_norm_has_beta(code)) te_prefetch(c->op[k.norm].w[1], i, k.weight);
    }
#else
    (void)c, (void)k;
#endif
}

/* The type of a function that loads a row to registers, row_x[k.chunks], and runs the ops before the norm on this row.
 * source: an extra argument of some load functions, or null. A load function with a source also sets row_x[k.chunks]
 * and following to gamma, and row_x[2 * k.chunks] and following to the second tensor that op number k.reads reads. */
typedef void (*te_norm_load_fn)(const te_pointwise *c, te_stages_fn stages, const te_pointwise_shape k, int64_t row,
                                te_lanes g, te_vec8 *row_x, const void *source);

/* Load a row, run the ops before the norm on the row, and set row_x to the input of the norm, rounded to the format in
 * which this input would be stored. A row in a 16-bit format takes half as many registers as in f32, so twice as many
 * rows can be loaded at once. Because of the rounding, the result does not depend on whether the norm's input is
 * stored. */
TE_CALLBACK void te_norm_row_load(const te_pointwise *c, te_stages_fn stages, const te_pointwise_shape k, int64_t row,
                                  te_lanes g, te_vec8 *row_x, const void *source) {
    (void)source;
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const te_place at = te_place_of(k, row, g.id + i * g.count, 1);
        te_lane l;
        if (te_norm_is_past_end(k, at.col)) continue;
        if (k.norm_reads_x) {
            te_vec8_load(&row_x[i], c->x, te_index(at), at.n, at.aligned, k.norm_in);
        } else {
            te_load_lane(&l, c->x, k, row, g.id + i * g.count);
            stages(&l, c, 0, k.norm);
            te_vec8_of(&row_x[i], l.v, k.norm_in);
        }
    }
}
typedef struct __attribute__((aligned(8), may_alias)) te_row_stats { float mean, rstd; } te_row_stats;
/* Compute y = (x - mean) * rstd * gamma + beta for the eight elements from column `col` on. */
TE_FN void te_norm_of8(float y[8], const float x[8], te_row_stats row, int col, const te_vec8 *gamma,
                       const te_vec8 *beta, const te_pointwise_shape k) {
    const int has_beta = te_norm_has_beta(k.norm_options.code);
    float w[8], b[8];
    te_gamma8(w, gamma, k.weight, k.norm_options.code);
    if (has_beta) te_vec8_floats(b, beta, k.weight);
    TE_UNROLL for (int j = 0; j < 8; j++) {
        y[j] = (x[j] - row.mean) * row.rstd * w[j] + (has_beta ? b[j] : 0.0f);
        if (!te_norm_has_columns(k, col)) y[j] = x[j];
    }
}
/* A row while it is normalised. */
typedef struct te_norm_row {
    int64_t row;
    te_vec8 *x;          /* the input of the norm for one row, in registers (te_norm_row_load) */
    uint32_t *amax_bits; /* the bits of the largest |y| that this lane has stored so far */
    const void *source;  /* an extra argument of the load function, or null (see te_norm_load_fn) */
    float mean, rstd;    /* the mean and 1 / standard deviation of this row; te_norm_forward sets them */
} te_norm_row;
TE_FN te_norm_row te_norm_row_of(int64_t row, te_vec8 *x, uint32_t *amax_bits, const void *source) {
    te_norm_row n;
    n.row = row, n.x = x, n.amax_bits = amax_bits, n.source = source, n.mean = 0.0f, n.rstd = 0.0f;
    return n;
}

/* Normalise row n, run the ops after the norm, and store the result. scaled, a compile-time constant: 1 if the result
 * is stored in FP8 with scales that te__norm_store computes. */
TE_FN void te__norm_store(const te_pointwise *c, te_stages_fn stages, te_store_fn store, const te_pointwise_shape k,
                          te_lanes *g, const te_norm_row *n, const int scaled) {
    const te_stage *s = &c->op[k.norm];
    const int has_beta = te_norm_has_beta(k.norm_options.code);
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        float v[8], w[8], b[8];
        te_lane l;
        te_vec8 gamma;
        l.at = te_place_of(k, n->row, g->id + i * g->count, 1);
        if (te_norm_is_past_end(k, l.at.col)) continue;
        if (!n->source) te_load_gamma(&gamma, s, l.at, k);
        te_gamma8(w, n->source ? &n->x[k.chunks + i] : &gamma, k.weight, k.norm_options.code);
        if (has_beta && te_norm_has_columns(k, l.at.col))
            te_load8(b, s->w[1], l.at.col - k.norm_first, l.at.n, l.at.aligned, k.weight);
        te_vec8_opaque(&n->x[i], k.norm_in);
        te_vec8_floats(v, &n->x[i], k.norm_in);
        TE_UNROLL
        for (int j = 0; j < 8; j++)
            l.v[j] = !te_norm_has_columns(k, l.at.col)
                         ? v[j]
                         : (v[j] - n->mean) * n->rstd * w[j] + (has_beta ? b[j] : 0.0f);
        te_store_saved(&l, s, k.norm_out);
        if (n->source && k.reads > k.norm) l.at.ahead_of = &c->op[k.reads], l.at.ahead = n->x[2 * k.chunks + i];
        stages(&l, c, k.norm + 1, TE_MAX_PATTERN);
        if (scaled) te_vec8_of_pairs(&n->x[i], l.v, k.out);
        else store(c, &l, k, n->amax_bits);
    }
    const te_quantized_rows result = {n->row, 0, 0, n->x, k.chunks};
    if (scaled) te_pointwise_store_quantized(c, k, result, 1, g);
}
/* The type of a function that normalises row n, runs the ops after the norm, and stores the result. te_norm_store
 * passes each vector of eight elements to `store`. te_norm_store_quantized stores FP8 with computed scales if
 * c->scaled.y is not null. */
typedef void (*te_norm_store_fn)(const te_pointwise *c, te_stages_fn stages, te_store_fn store,
                                 const te_pointwise_shape k, te_lanes *g, const te_norm_row *n);
TE_CALLBACK void te_norm_store(const te_pointwise *c, te_stages_fn stages, te_store_fn store,
                               const te_pointwise_shape k, te_lanes *g, const te_norm_row *n) {
    te__norm_store(c, stages, store, k, g, n, 0);
}
TE_CALLBACK void te_norm_store_quantized(const te_pointwise *c, te_stages_fn stages, te_store_fn store,
                                         const te_pointwise_shape k, te_lanes *g, const te_norm_row *n) {
    if (te_pointwise_is_quantized(c, k)) te__norm_store(c, stages, store, k, g, n, 1);
    else te__norm_store(c, stages, store, k, g, n, 0);
}
#define TE_NORM_STORE_OF(name) ((int)name##_scaled != (int)TE_SCALING_NONE ? te_norm_store_quantized : te_norm_store)

TE_FN void te_norm_forward(const te_pointwise *c, te_stages_fn stages, te_store_fn store, const te_pointwise_shape k,
                           te_lanes *g, te_norm_row n, te_norm_load_fn load, te_norm_store_fn norm_store) {
    const te_stage *s = &c->op[k.norm];
    const int code = k.norm_options.code & 3;
    const float count = (float)te_norm_count(k);
    te_row_sum lane_sum = 0, lane_squares = 0;
    float sum, squares, v[8];
    load(c, stages, k, n.row, *g, n.x, n.source);
    if (code == TE_NORM_layernorm) {
        TE_UNROLL for (int i = 0; i < k.chunks; i++) {
            const int left = k.half - (g->id + i * g->count) * 8;
            if (te_norm_is_past_end(k, k.half - left) || !te_norm_has_columns(k, k.half - left)) continue;
            te_vec8_floats(v, &n.x[i], k.norm_in);
            TE_UNROLL for (int j = 0; j < 8; j++) if (k.aligned || j < left) lane_sum += v[j];
        }
    }
    sum = (float)lane_sum;
    if (code == TE_NORM_layernorm) te_lanes_sum(&sum, 1, g);
    n.mean = sum / count;
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const int left = k.half - (g->id + i * g->count) * 8;
        if (te_norm_is_past_end(k, k.half - left) || !te_norm_has_columns(k, k.half - left)) continue;
        te_vec8_opaque(&n.x[i], k.norm_in);
        te_vec8_floats(v, &n.x[i], k.norm_in);
        TE_UNROLL
        for (int j = 0; j < 8; j++)
            if (k.aligned || j < left) lane_squares += (v[j] - n.mean) * (v[j] - n.mean);
    }
    squares = (float)lane_squares;
    te_lanes_sum(&squares, 1, g);
    n.rstd = te_norm_rstd(squares, count, k.norm_options);
    if (s->stats && g->id == 0) {
        if (code == TE_NORM_layernorm) s->stats[2 * n.row] = n.mean, s->stats[2 * n.row + 1] = n.rstd;
        else s->stats[n.row] = n.rstd;
    }
    norm_store(c, stages, store, k, g, &n);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The registers of a lane in the backward of a norm, which is the first op of the kernel. A group of lanes works on one
 * row after another, and each lane has some columns of the row, in the format of the tensors in memory. The lane also
 * sums the gradients of its columns over the rows. */
typedef struct te_norm_registers {
    te_vec8 *dy, *x;           /* dy and x of the current row, `chunks` vectors of each */
    te_vec8 *next_dy, *next_x; /* dy and x of the next row, which is being loaded while the current row is computed */
    te_vec8 *gamma;            /* gamma of the lane's columns, if gamma is held in registers */
    uint32_t *amax_bits;       /* the bits of the largest |y| that this lane has stored so far */
    float *sums;               /* the lane's sums over rows, [TE_SUM_SLOTS][chunks][8] */
    /* gamma in shared memory, if k.smem_gamma is not 0. gamma is held there if the sums need the registers */
    te_smem16 *smem_gamma;
} te_norm_registers;

TE_FN void te_norm_cache_gamma(const te_vec8 *gamma, const te_norm_registers *m, const te_pointwise_shape k, te_lanes g,
                              int i) {
#if TE_CUDA
    uint4 *slot = (uint4 *)m->smem_gamma + (k.weight == TE_f32 ? 2 : 1) * (g.id + i * g.count);
    if (k.smem_gamma) slot[0] = make_uint4(gamma->w[0], gamma->w[1], gamma->w[2], gamma->w[3]);
    if (k.smem_gamma && k.weight == TE_f32) slot[1] = make_uint4(gamma->w[4], gamma->w[5], gamma->w[6], gamma->w[7]);
    if (k.smem_gamma) return;
#endif
    (void)k, (void)g;
    m->gamma[i] = *gamma;
}
TE_FN void te_norm_cached_gamma(te_vec8 *gamma, const te_norm_registers *m, const te_pointwise_shape k, te_lanes g,
                                int i) {
#if TE_CUDA
    const uint4 *slot = (const uint4 *)m->smem_gamma + (k.weight == TE_f32 ? 2 : 1) * (g.id + i * g.count);
    if (k.smem_gamma) te__load16_shared(gamma->w, slot);
    if (k.smem_gamma && k.weight == TE_f32) te__load16_shared(gamma->w + 4, slot + 1);
    if (k.smem_gamma) return;
#endif
    (void)k, (void)g;
    *gamma = m->gamma[i];
}

/* Load dy, x and the statistics of a row while the previous row is computed. The loads go directly to registers: with
 * cp.async and a ring of three rows in shared memory, the kernel took 92 us instead of 72 us at 8192 x 4096. */
TE_FN te_row_stats te_norm_load(const te_pointwise *c, const te_pointwise_shape k, int64_t row, te_lanes g,
                                 te_vec8 *dy, te_vec8 *x) {
    const te_stage *s = &c->op[0];
    const int has_mean = te_norm_has_mean(k.norm_options.code);
    te_row_stats n;
    n.mean = has_mean ? s->stats[2 * row] : 0.0f;
    n.rstd = has_mean ? s->stats[2 * row + 1] : s->stats[row];
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const te_place at = te_place_of(k, row, g.id + i * g.count, 1);
        if (at.col >= k.half) continue;
        te_vec8_load(&dy[i], c->x, te_index(at), at.n, at.aligned, k.in);
        te_vec8_load(&x[i], s->saved, te_index(at), at.n, at.aligned, k.norm_in);
        /* op[0] is the backward of the norm. If op[1] reads a second gradient (a fork adds the gradients of its two
         * uses), prefetch this second gradient while the previous row is computed. */
        if (c->op[1].edge) te_prefetch(c->op[1].edge, te_index(at), k.norm_in);
    }
    return n;
}

/* Compute the backward of a norm for one row. With xhat = (x - mean) * rstd and d = dy * gamma, dx is
 *     layernorm    rstd * (d - mean(d) - xhat * mean(d * xhat))
 *     rmsnorm      rstd * (d - xhat * mean(d * xhat))
 *     l2norm       rstd * (d - xhat * sum(d * xhat))
 * dgamma is the sum of dy * xhat over rows, and dbeta the sum of dy over rows; the summands of this row are added to
 * m->sums. */
TE_FN void te_norm_backward(const te_pointwise *c, te_stages_fn stages, te_store_fn store, const te_pointwise_shape k,
                            int64_t row, te_lanes *g, te_row_stats n, const te_norm_registers *m) {
    const int norm_code = k.norm_options.code, code = norm_code & 3, size = 8 * k.chunks;
    const float count = code == TE_NORM_l2norm ? 1.0f : (float)te_norm_count(k);
    te_vec8 *dy = m->dy, *x = m->x;
    float *sums = m->sums;
    te_row_sum lane_total[2] = {0, 0};
    float total[2], w[8], v[8], xhat[8];
    te_lane l;
    te_vec8 gamma;
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const te_place at = te_place_of(k, row, g->id + i * g->count, 1);
        if (at.col >= k.half || !te_norm_has_columns(k, at.col)) continue;
        te_vec8_floats(v, &dy[i], k.in);
        te_vec8_floats(xhat, &x[i], k.norm_in);
        te_norm_cached_gamma(&gamma, m, k, *g, i);
        te_gamma8(w, &gamma, k.weight, norm_code);
        TE_UNROLL for (int j = 0; j < 8; j++) {
            const int e = 8 * i + j;
            xhat[j] = j < at.n ? (xhat[j] - n.mean) * n.rstd : 0.0f;
            lane_total[0] += v[j] * w[j] * xhat[j], lane_total[1] += v[j] * w[j];
            if (te_norm_has_gamma(norm_code)) sums[TE_SUM_GAMMA * size + e] += v[j] * xhat[j];
            if (te_norm_has_beta(norm_code)) sums[TE_SUM_BETA * size + e] += v[j];
        }
    }
    total[0] = (float)lane_total[0], total[1] = (float)lane_total[1];
    te_lanes_sum(total, code == TE_NORM_layernorm ? 2 : 1, g);
    const float a = n.rstd * n.rstd * (total[0] / count);
    const float shift = n.mean * a - (code == TE_NORM_layernorm ? n.rstd * (total[1] / count) : 0.0f);
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        l.at = te_place_of(k, row, g->id + i * g->count, 1);
        if (l.at.col >= k.half) continue;
        te_vec8_opaque(&dy[i], k.in), te_vec8_opaque(&x[i], k.norm_in);
        te_vec8_floats(v, &dy[i], k.in);
        /* the variable xhat holds x, not (x - mean) * rstd, because `shift` and `a` contain the normalisation */
        te_vec8_floats(xhat, &x[i], k.norm_in);
        te_norm_cached_gamma(&gamma, m, k, *g, i);
        te_gamma8(w, &gamma, k.weight, norm_code);
        TE_UNROLL for (int j = 0; j < 8; j++) {
            l.v[j] = n.rstd * (v[j] * w[j]) + (shift - a * xhat[j]);
            if (!te_norm_has_columns(k, l.at.col)) l.v[j] = v[j];
            l.sum[j] = sums[8 * i + j];
        }
        stages(&l, c, 1, TE_MAX_PATTERN);
        TE_UNROLL for (int j = 0; j < 8; j++) sums[8 * i + j] = l.sum[j];
        store(c, &l, k, m->amax_bits);
    }
}

/* Run backward on the rows first, first + step, first + 2 * step, and so on. Each row is loaded while the previous row
 * is computed. */
TE_FN void te_norm_backward_rows(const te_pointwise *c, te_stages_fn stages, te_store_fn store,
                                 const te_pointwise_shape k, te_lanes *g, int64_t first, int64_t step,
                                 const te_norm_registers *m) {
    te_row_stats n = {0, 0};
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const te_place at = te_place_of(k, 0, g->id + i * g->count, 1);
        te_vec8 gamma;
        if (at.col >= k.half || !te_norm_has_gamma(k.norm_options.code)) continue;
        te_load_gamma(&gamma, &c->op[0], at, k);
        te_norm_cache_gamma(&gamma, m, k, *g, i);
    }
    if (first < c->rows) n = te_norm_load(c, k, first, *g, m->next_dy, m->next_x);
    for (int64_t row = first; row < c->rows; row += step) {
        const te_row_stats current = n;
        TE_UNROLL for (int i = 0; i < k.chunks; i++) m->dy[i] = m->next_dy[i], m->x[i] = m->next_x[i];
        if (row + step < c->rows) n = te_norm_load(c, k, row + step, *g, m->next_dy, m->next_x);
        te_norm_backward(c, stages, store, k, row, g, current, m);
    }
}

#endif
