/* attention_fp8_host.h -- attention forward of attention_fp8.h in plain C, tile by tile as attention_host.h has it. */
#ifndef TE_ATTENTION_FP8_HOST_H
#define TE_ATTENTION_FP8_HOST_H

#include "attention_fp8.h"  /* te_attention_fp8 */
#include "attention_host.h" /* te__attn_product, te__attn_row_write */

/* to[rows][ld] = rows of d numbers, `width` apart; zeros up to ld and to a multiple of 4 rows. */
TE_FN void te__attn_fp8_tile_read(float *to, int ld, const uint8_t *from, int64_t width, int rows, int d) {
    memset(to, 0, (size_t)(((rows + 3) & ~3) * ld) * sizeof(float));
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < d; c++) to[r * ld + c] = te_float_of_e4m3(from[r * width + c]);
}
/* top = what is kept of each query: no less than it was, and than its scores. */
TE_FN void te__attn_fp8_tops(float *top, const float *s, int keys, int queries) {
    for (int q = 0; q < queries; q++) {
        float most = top[q];
        for (int i = 0; i < keys; i++) most = fmaxf(most, s[i * TE__ATTN_TILE + q]);
        top[q] = ceilf(most);
    }
}

/* Grid: (batch * heads, query tiles). */
TE_FN void te__attention_fp8_host(const te_attention_args *a, te_block at, float *s, te_dtype t, int heads,
                                  int kv_heads, int d, te__attn_form f) {
    const te_attention_fp8 of = te__attn_fp8_of(a, heads, kv_heads, d);
    const int batch = at.x / heads, head = at.x % heads, kv = head / (heads / kv_heads);
    const te__attn_mask m = te__attn_mask_of(a->seq, f.left, f.right);
    const int q0 = (te__attn_grows(m) ? at.ny - 1 - at.y : at.y) * TE__ATTN_TILE;
    const int queries = te__attn_least(TE__ATTN_TILE, a->seq - q0);
    const te__attn_span seen = te__attn_keys_of(m, q0, queries);
    const int ld = TE__ATTN_PADDED(d), n = TE__ATTN_PADDED(queries), tile = TE__ATTN_TILE * ld;
    const int64_t first = (int64_t)batch * a->seq;
    const uint8_t *from_q = of.q + ((first + q0) * heads + head) * d, *from_k = of.k + (first * kv_heads + kv) * d;
    const uint8_t *from_v = of.v + ((int64_t)batch * kv_heads + kv) * d * of.keys;
    const float unit = te__attn_fp8_unit(of.amax[head], of.amax[heads + kv], a->scale);
    float *k = s, *v = k + tile, *o = v + tile, *qt = o + tile, *p = qt + tile;
    float *top = p + TE__ATTN_TILE * TE__ATTN_TILE, *sum = top + TE__ATTN_TILE, *old = sum + TE__ATTN_TILE;
    memset(o, 0, (size_t)tile * sizeof(float)), memset(qt, 0, (size_t)tile * sizeof(float));
    for (int q = 0; q < TE__ATTN_TILE; q++) top[q] = -3.402823466e38f, sum[q] = 0;
    for (int q = 0; q < queries; q++)
        for (int c = 0; c < d; c++)
            qt[c * TE__ATTN_TILE + q] = te_float_of_e4m3(from_q[(int64_t)q * heads * d + c]) * unit;
    for (int k0 = seen.first / TE__ATTN_TILE * TE__ATTN_TILE; k0 < seen.end; k0 += TE__ATTN_TILE) {
        const int keys = te__attn_least(TE__ATTN_TILE, seen.end - k0);
        te__attn_fp8_tile_read(k, ld, from_k + (int64_t)k0 * kv_heads * d, kv_heads * d, keys, d);
        memset(v, 0, (size_t)tile * sizeof(float));
        for (int c = 0; c < d; c++)
            for (int i = 0; i < keys; i++)
                v[i * ld + c] = te_float_of_e4m3(from_v[c * of.keys + te__attn_fp8_column(k0 + i)]);
        te__attn_product(p, TE__ATTN_TILE, k, ld, 1, qt, TE__ATTN_TILE, keys, n, d, 0, TE__ATTN_ALL);
        if (te__attn_cuts(seen, k0, keys)) te__attn_hide_by_key(p, m, q0, k0, keys);
        memcpy(old, top, TE__ATTN_TILE * sizeof(float));
        te__attn_fp8_tops(top, p, keys, n);
        for (int q = 0; q < n; q += TE__ATTN_LANES) {
            te__attn_vector was, now, add, e;
            te__attn_get(&was, old + q), te__attn_get(&now, top + q), te__attn_get(&add, sum + q);
            was -= now, te__attn_exp2(&was), add *= was, te__attn_put(old + q, &was);
            for (int i = 0; i < keys; i++) {
                te__attn_get(&e, p + i * TE__ATTN_TILE + q), e -= now, e += (float)TE__ATTN_FP8_RAISE;
                te__attn_exp2(&e), add += e, te__attn_put(p + i * TE__ATTN_TILE + q, &e);
            }
            te__attn_put(sum + q, &add);
        }
        for (int i = 0; i < keys * TE__ATTN_TILE; i++) p[i] = te_float_of_e4m3(te_e4m3_of_float(p[i]));
        for (int q = 0; q < queries; q++)
            for (int c = 0; old[q] != 1 && c < ld; c++) o[q * ld + c] *= old[q];
        te__attn_product(o, ld, p, 1, TE__ATTN_TILE, v, ld, queries, ld, keys, 1, TE__ATTN_ALL);
    }
    const float value = te__attn_fp8_inverse(of.amax[heads + kv_heads + kv], TE_E4M3_MOST);
    for (int q = 0; q < queries; q++) {
        te__attn_out_write(a, ((first + q0 + q) * heads + head) * d, o + q * ld, d, value / sum[q], t);
        if (a->lse)
            a->lse[(int64_t)at.x * a->seq + q0 + q] =
                (top[q] - (float)TE__ATTN_FP8_RAISE) * TE__ATTN_LN2 + logf(sum[q]);
    }
}

#define TE_ATTENTION_FORWARD_FP8(name, dtype, heads, kv_heads, head_dim, options)                                   \
    TE__ATTENTION_ASSERT(heads, kv_heads, head_dim)                                                                 \
    TE__ATTENTION_FP8_ASSERT(dtype, head_dim)                                                                       \
    TE__ATTENTION_FORM(name, options)                                                                               \
    TE__ATTENTION_FP8_PASSES(name, dtype, heads, kv_heads, head_dim)                                                \
    TE_KERNEL(name##_tile, 1, te_attention_args,                                                                    \
              float te_scratch_[TE__ATTENTION_FLOATS(head_dim, head_dim)] __attribute__((aligned(64)));             \
              te__attention_fp8_host(te_args, te_at, te_scratch_, TE_##dtype, heads, kv_heads, head_dim,            \
                                     name##_form()))                                                                \
    TE_API te_status name##_ready(te_context *ctx) { return (void)ctx, TE_OK; }                                     \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                                   \
        TE_TRY(te__attention_check_fp8(ctx, a, heads, #name));                                                      \
        TE_TRY(te__attention_check_gives(ctx, a, name##_form().gives, #name));                                      \
        TE_TRY(name##_cast(ctx, a));                                                                                \
        return name##_tile_launch(ctx, te_grid_of((int64_t)a->batch * (heads), te_ceil_div(a->seq, TE__ATTN_TILE)), \
            a);                                                                                                     \
    }

#endif
