/* chain_norm_backward.h -- the body of a backward chain that begins with a norm: a group of lanes takes row after row,
 * and a lane sums its columns over them.
 */
#ifndef TE_FUSE_CHAIN_NORM_BACKWARD_H
#define TE_FUSE_CHAIN_NORM_BACKWARD_H

#include "chain_map.h" /* te_lane, TE_SUM_GAMMA */

/* A lane's part of the rows that it works on, in registers as it is stored; a struct with room for a chain's chunks has
 * it. */
typedef struct te_norm_registers {
    te_vec8 *dy, *x;           /* [chunks] of the row at hand */
    te_vec8 *next_dy, *next_x; /* of the one that is being loaded */
    te_vec8 *gamma;            /* where there is no shared memory for it */
    uint32_t *most;            /* see te_chain_store */
    te_smem16 *stash;          /* gamma in shared memory, where k.stash says so: the sums need the registers */
} te_norm_registers;

TE_FN void te_norm_keep_gamma(const te_vec8 *gamma, const te_norm_registers *m, const te_chain_shape k, te_lanes g,
                              int i) {
#if TE_CUDA
    uint4 *slot = (uint4 *)m->stash + (k.weight == TE_f32 ? 2 : 1) * (g.id + i * g.count);
    if (k.stash) slot[0] = make_uint4(gamma->w[0], gamma->w[1], gamma->w[2], gamma->w[3]);
    if (k.stash && k.weight == TE_f32) slot[1] = make_uint4(gamma->w[4], gamma->w[5], gamma->w[6], gamma->w[7]);
    if (k.stash) return;
#endif
    (void)k, (void)g;
    m->gamma[i] = *gamma;
}
TE_FN void te_norm_kept_gamma(te_vec8 *gamma, const te_norm_registers *m, const te_chain_shape k, te_lanes g, int i) {
#if TE_CUDA
    const uint4 *slot = (const uint4 *)m->stash + (k.weight == TE_f32 ? 2 : 1) * (g.id + i * g.count);
    if (k.stash) te__load_shared_now(gamma->w, slot);
    if (k.stash && k.weight == TE_f32) te__load_shared_now(gamma->w + 4, slot + 1);
    if (k.stash) return;
#endif
    (void)k, (void)g;
    *gamma = m->gamma[i];
}

typedef struct te_norm_stats { float mean, rstd; } te_norm_stats;

/* dy, x and the statistics of a row, loaded while the row before is worked on. To registers: through a ring in shared
 * memory, three rows ahead (cp.async), 8192 x 4096 took 92 us, not 72. */
TE_FN te_norm_stats te_norm_load(const te_chain *c, const te_chain_shape k, int64_t row, te_lanes g, te_vec8 *dy,
                                 te_vec8 *x) {
    const te_stage *s = &c->op[0];
    const int has_mean = k.norm_options.code % 4 == TE_NORM_layernorm;
    te_norm_stats n;
    n.mean = has_mean ? s->stats[2 * row] : 0.0f;
    n.rstd = has_mean ? s->stats[2 * row + 1] : s->stats[row];
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const te_place at = te_place_of(k, row, g.id + i * g.count, 1);
        if (at.col >= k.half) continue;
        te_vec8_load(&dy[i], c->x, te_index(at), at.n, at.aligned, k.in);
        te_vec8_load(&x[i], s->saved, te_index(at), at.n, at.aligned, k.norm_in);
        if (c->op[1].edge) te_prefetch(c->op[1].edge, te_index(at), k.norm_in); /* of the fork behind the norm */
    }
    return n;
}

/* With xhat = (x - mean) rstd and d = dy gamma:  dx = rstd (d - mean(d) - xhat mean(d xhat)); rmsnorm has no mean(d),
 * l2norm has sums for means. dgamma = sum over rows of dy xhat, dbeta = sum of dy. sums: see chain_map.h. */
TE_FN void te_norm_backward(const te_chain *c, te_stages_fn stages, te_store_fn store, const te_chain_shape k,
                            int64_t row, te_lanes *g, te_norm_stats n, const te_norm_registers *m, float *sums) {
    const int norm_code = k.norm_options.code, code = norm_code & 3, size = 8 * k.chunks;
    const float count = code == TE_NORM_l2norm ? 1.0f : (float)k.half;
    te_vec8 *dy = m->dy, *x = m->x;
    te_row_sum lane_total[2] = {0, 0};
    float total[2], w[8], v[8], xhat[8];
    te_lane l;
    te_vec8 gamma;
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const te_place at = te_place_of(k, row, g->id + i * g->count, 1);
        if (at.col >= k.half) continue;
        te_vec8_floats(v, &dy[i], k.in);
        te_vec8_floats(xhat, &x[i], k.norm_in);
        te_norm_kept_gamma(&gamma, m, k, *g, i);
        te_gamma8(w, &gamma, k.weight, norm_code);
        TE_UNROLL for (int j = 0; j < 8; j++) {
            const int e = 8 * i + j;
            xhat[j] = j < at.n ? (xhat[j] - n.mean) * n.rstd : 0.0f;
            lane_total[0] += v[j] * w[j] * xhat[j], lane_total[1] += v[j] * w[j];
            if (code != TE_NORM_l2norm) sums[TE_SUM_GAMMA * size + e] += v[j] * xhat[j];
            if (code == TE_NORM_layernorm) sums[TE_SUM_BETA * size + e] += v[j];
        }
    }
    total[0] = (float)lane_total[0], total[1] = (float)lane_total[1];
    te_lanes_sum(total, code == TE_NORM_layernorm ? 2 : 1, g);
    const float a = n.rstd * n.rstd * (total[0] / count);
    const float shift = n.mean * a - (code == TE_NORM_layernorm ? n.rstd * (total[1] / count) : 0.0f);
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        l.at = te_place_of(k, row, g->id + i * g->count, 1);
        if (l.at.col >= k.half) continue;
        te_vec8_forget(&dy[i], k.in), te_vec8_forget(&x[i], k.norm_in);
        te_vec8_floats(v, &dy[i], k.in);
        te_vec8_floats(xhat, &x[i], k.norm_in); /* x itself */
        te_norm_kept_gamma(&gamma, m, k, *g, i);
        te_gamma8(w, &gamma, k.weight, norm_code);
        TE_UNROLL for (int j = 0; j < 8; j++) {
            l.v[j] = n.rstd * (v[j] * w[j]) + (shift - a * xhat[j]);
            l.sum[j] = sums[8 * i + j];
        }
        stages(&l, c, 1, TE_MAX_ROW);
        TE_UNROLL for (int j = 0; j < 8; j++) sums[8 * i + j] = l.sum[j];
        store(c, &l, k, m->most);
    }
}

/* Rows from `first` on, `step` apart. */
TE_FN void te_norm_backward_rows(const te_chain *c, te_stages_fn stages, te_store_fn store, const te_chain_shape k,
                                 te_lanes *g, int64_t first, int64_t step, const te_norm_registers *m, float *sums) {
    te_norm_stats n = {0, 0};
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const te_place at = te_place_of(k, 0, g->id + i * g->count, 1);
        te_vec8 gamma;
        if (at.col >= k.half || k.norm_options.code % 4 == TE_NORM_l2norm) continue;
        te_load_gamma(&gamma, &c->op[0], at, k.weight, k.norm_options.code);
        te_norm_keep_gamma(&gamma, m, k, *g, i);
    }
    if (first < c->rows) n = te_norm_load(c, k, first, *g, m->next_dy, m->next_x);
    for (int64_t row = first; row < c->rows; row += step) {
        const te_norm_stats now = n;
        TE_UNROLL for (int i = 0; i < k.chunks; i++) m->dy[i] = m->next_dy[i], m->x[i] = m->next_x[i];
        if (row + step < c->rows) n = te_norm_load(c, k, row + step, *g, m->next_dy, m->next_x);
        te_norm_backward(c, stages, store, k, row, g, now, m, sums);
    }
}

#endif
