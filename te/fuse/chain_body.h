/* chain_body.h -- what the kernel of a chain does: a row through its norm, or tiles of rows through its maps, and the partial sums.
 */
#ifndef TE_FUSE_CHAIN_BODY_H
#define TE_FUSE_CHAIN_BODY_H

#include "chain.h" /* te_chain, te_chain_shape, te_stages_fn */

/* ---- norms ----------------------------------------------------------------------------------------------------- */

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

/* dy, x and the statistics of a row, loaded while the row before is worked on. To registers: through a ring in shared memory, three rows
 * ahead (cp.async), 8192 x 4096 took 92 us, not 72. */
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
    const int beside = TE_CUDA && k.norm < 0 && !summing; /* this block's rows lie beside each other, and it takes no more */
    const int64_t first = (int64_t)block * k.groups * (beside ? te_map_batch(k) : 1) + group, step = beside ? k.groups : (int64_t)(b.nx / tiles) * k.groups;
    if (!k.backward && c->take.taken && b.x == 0 && group == 0 && g.id == 0) te_rng_take_body(&c->take);
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
            const int batch = te_map_batch(k);
            int64_t row = first;
            if (vector * 8 >= k.half) continue;
            if (!beside) {
                for (; row + (batch - 1) * step < c->rows; row += batch * step) te_map_rows(c, stages, k, row, step, te_map_batch(k), vector, sums + 8 * i);
                for (; row < c->rows; row += step) te_map_rows(c, stages, k, row, step, 1, vector, sums + 8 * i);
            } else if (row + (batch - 1) * step < c->rows) te_map_rows(c, stages, k, row, step, te_map_batch(k), vector, sums + 8 * i);
            else for (int r = 0; r < batch && row < c->rows; r++, row += step) te_map_rows(c, stages, k, row, step, 1, vector, sums + 8 * i);
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
