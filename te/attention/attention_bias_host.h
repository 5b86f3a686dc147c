/* attention_bias_host.h -- the gradient of attention's bias (attention_bias.h) in plain C. A block owns a tile of 64
 * queries by 64 keys, or of a relative bias a row of such tiles, and adds up dS sequence after sequence.
 *
 * Floor: as in attention_bias_cuda.h, over the processor's rate of multiply-adds.
 */
#ifndef TE_ATTENTION_BIAS_HOST_H
#define TE_ATTENTION_BIAS_HOST_H

#include "attention_host.h" /* te__attn_head_of, tiles */

/* sum[query][key] += P (dP - delta) of a tile of one head of one sequence; 0: it has no pair that is seen. */
TE_FN int te__attn_dbias_add(float *sum, const te_attention_args *a, int batch, int head, int q0, int k0, float *s,
                             te_dtype t, int heads, int kv_heads, int d, te__attn_form f) {
    const te__attn_head h = te__attn_head_of(a, batch, head, heads, kv_heads, d, f);
    const te__attn_mask m = te__attn_mask_at(&h, f);
    const int queries = te__attn_least(TE__ATTN_TILE, h.seq - q0), keys = te__attn_least(TE__ATTN_TILE, h.keys - k0);
    if (queries <= 0 || keys <= 0 || !te__attn_meets(te__attn_keys_of(m, q0, queries), k0, keys)) return 0;
    const int dv = te__attn_value_dim(d, f), ld = TE__ATTN_PADDED(d), ldv = TE__ATTN_PADDED(dv);
    const int n = TE__ATTN_PADDED(keys), tile = TE__ATTN_TILE * ld, value_tile = TE__ATTN_TILE * ldv;
    float *q = s, *dout = q + tile, *kt = dout + value_tile, *vt = kt + tile, *p = vt + value_tile;
    float *dp = p + TE__ATTN_TILE * TE__ATTN_TILE;
    const float slope = te__attn_alibi(head, heads, f);
    te__attn_tile_read(q, ld, a->qkv, h.q + q0 * h.width, h.width, queries, d, t);
    te__attn_tile_read(dout, ldv, a->dout, h.out + q0 * h.out_width, h.out_width, queries, dv, t);
    te__attn_tile_read_transposed(kt, h.kv, h.k + k0 * h.kv_width, h.kv_width, keys, d, te__attn_factor(a->scale, f),
                                  t);
    te__attn_tile_read_transposed(vt, h.kv, h.v + k0 * h.kv_width, h.kv_width, keys, dv, 1, t);
    te__attn_product(p, TE__ATTN_TILE, q, ld, 1, kt, TE__ATTN_TILE, queries, n, d, 0, TE__ATTN_ALL);
    te__attn_product(dp, TE__ATTN_TILE, dout, ldv, 1, vt, TE__ATTN_TILE, queries, n, dv, 0, TE__ATTN_ALL);
    te__attn_cap(p, queries, n, f);
    te__attn_hide_by_query(p, m, q0, k0, queries);
    te__attn_drop(dp, 0, a, h.drawn, q0, k0, f.factor, f);
    for (int i = 0; i < queries; i++) {
        const float lse = a->lse[h.row + q0 + i] * TE__ATTN_LOG2E, delta = a->delta[h.row + q0 + i];
        for (int j = 0; j < n; j += TE__ATTN_LANES) {
            te__attn_vector e, x, all;
            te__attn_get(&e, p + i * TE__ATTN_TILE + j), te__attn_get(&x, dp + i * TE__ATTN_TILE + j);
            te__attn_add_bias(&e, slope, k0 + j - q0 - i - m.shift, f);
            te__attn_add_table(&e, a, head, q0 + i, k0 + j, 1, m, t, f);
            e -= lse, te__attn_exp2(&e), te__attn_get(&all, sum + i * TE__ATTN_TILE + j);
            all += e * (x - delta), te__attn_put(sum + i * TE__ATTN_TILE + j, &all);
        }
    }
    return 1;
}

/* Grid: (tiles of keys * heads that have tables, tiles of queries). */
TE_FN void te__attention_dbias_table_host(const te_attention_args *a, te_block at, float *s, te_dtype t, int heads,
                                          int kv_heads, int d, te__attn_form f) {
    const int tiles = (int)te_ceil_div(f.second, TE__ATTN_TILE), own = at.x / tiles;
    const int k0 = at.x % tiles * TE__ATTN_TILE, q0 = at.y * TE__ATTN_TILE;
    float *sum = s, *to = a->dbias + (int64_t)own * f.first * f.second;
    s += TE__ATTN_TILE * TE__ATTN_TILE, memset(sum, 0, sizeof(float) * TE__ATTN_TILE * TE__ATTN_TILE);
    for (int head = own; head < (f.bias == TE_BIAS_heads ? own + 1 : heads); head++)
        for (int batch = 0; batch < a->batch; batch++)
            te__attn_dbias_add(sum, a, batch, head, q0, k0, s, t, heads, kv_heads, d, f);
    for (int i = 0; i < TE__ATTN_TILE && q0 + i < f.first; i++)
        for (int j = 0; j < TE__ATTN_TILE && k0 + j < f.second; j++) {
            float *p = to + (int64_t)(q0 + i) * f.second + k0 + j;
            *p = (a->accumulate ? *p : 0.0f) + sum[i * TE__ATTN_TILE + j];
        }
}
/* Grid: (heads, tiles of queries). */
TE_FN void te__attention_dbias_buckets_host(const te_attention_args *a, te_block at, float *s, te_dtype t, int heads,
                                            int kv_heads, int d, te__attn_form f) {
    const int q0 = at.y * TE__ATTN_TILE, keys = f.cross ? a->kv_seq : a->seq, shift = f.cross ? keys - a->seq : 0;
    float *sum = s, *to = a->dbias + (int64_t)at.y * f.first * heads + at.x;
    s += TE__ATTN_TILE * TE__ATTN_TILE;
    for (int i = 0; i < f.first; i++) to[i * heads] = 0;
    for (int k0 = 0; k0 < keys; k0 += TE__ATTN_TILE) {
        int seen = 0;
        memset(sum, 0, sizeof(float) * TE__ATTN_TILE * TE__ATTN_TILE);
        for (int batch = 0; batch < a->batch; batch++)
            seen |= te__attn_dbias_add(sum, a, batch, at.x, q0, k0, s, t, heads, kv_heads, d, f);
        for (int far = 1 - TE__ATTN_TILE; seen && far < TE__ATTN_TILE; far++) { /* a diagonal: keys so far behind */
            const int last = te__attn_least(TE__ATTN_TILE, TE__ATTN_TILE - far);
            float line = 0;
            for (int i = far < 0 ? -far : 0; i < last; i++) line += sum[i * TE__ATTN_TILE + i + far];
            to[te__attn_bucket(k0 - q0 - shift + far, f.first, f.second, f.right != 0) * heads] += line;
        }
    }
}
TE_FN void te__attention_dbias_host(const te_attention_args *a, te_block at, float *s, te_dtype t, int heads,
                                    int kv_heads, int d, te__attn_form f) {
    if (f.bias == TE_BIAS_relative) te__attention_dbias_buckets_host(a, at, s, t, heads, kv_heads, d, f);
    else te__attention_dbias_table_host(a, at, s, t, heads, kv_heads, d, f);
}

#define TE_ATTENTION_DBIAS(name, dtype, heads, kv_heads, head_dim, options)                                       \
    TE__ATTENTION_FORM(name, options)                                                                             \
    TE__ATTENTION_SHELL(name##_tile, dbias, dtype, heads, kv_heads, head_dim, name##_form)                        \
    TE_API int64_t name##_parts(int64_t seq) { return te_ceil_div(seq, TE__ATTN_TILE); }                          \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                                 \
        const te__attn_form f = name##_form();                                                                    \
        const int relative = f.bias == TE_BIAS_relative, tables = f.bias == TE_BIAS_shared ? 1 : (heads);         \
        const int64_t tiles = relative ? 1 : te_ceil_div(f.second, TE__ATTN_TILE);                                \
        return name##_tile_launch(ctx, te_grid_of(tables * tiles, name##_parts(relative ? a->seq : f.first)), a); \
    }

#endif
