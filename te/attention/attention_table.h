/* attention_table.h -- the bias of attention_bias.h in the CUDA kernels: what joins a score. Its bytes, 2 or 4 a pair
 * of a table, come from the L2 after the first sequence; those of a relative one from the L1.
 */
/* target: cuda */
#ifndef TE_ATTENTION_TABLE_H
#define TE_ATTENTION_TABLE_H

#include "attention_mma.h" /* te__attn_unit */

/* The bias of attention_bias.h: from the pair (query, key) of this head on. query: of a relative one its place among
 * the keys. inverse: 1 / the unit of scores. */
struct te__attn_table { const void *at; int query, key; float inverse; };
template <te_dtype T, class F>
TE_FN te__attn_table te__attn_table_at(const te_attention_args *a, int head, int query, int key, int shift) {
    te__attn_table b = {nullptr, query, key, 0};
    if constexpr (F::BIAS != TE_BIAS_none) b.inverse = 1.0f / te__attn_unit<F>(a->scale);
    if constexpr (F::BIAS == TE_BIAS_relative) {
        b.at = a->line + head * (2 * F::BIAS_SECOND + 1) + F::BIAS_SECOND, b.query += shift;
    } else if constexpr (F::BIAS != TE_BIAS_none) {
        const int64_t first = F::BIAS == TE_BIAS_heads ? (int64_t)head * F::BIAS_FIRST * F::BIAS_SECOND : 0;
        b.at = (const unsigned char *)a->bias + first * (int64_t)te_dtype_bytes(T);
    }
    return b;
}
/* A score with its bias, so many queries and keys further on. Outside the table are pairs past the sequence alone. */
template <te_dtype T, class F> TE_FN float te__attn_added(float s, te__attn_table b, int queries, int keys) {
    const int query = b.query + queries, key = b.key + keys;
    if constexpr (F::BIAS == TE_BIAS_none) return s;
    else if constexpr (F::BIAS == TE_BIAS_relative) {
        const int distance = max(-F::BIAS_SECOND, min(key - query, F::BIAS_SECOND));
        return fmaf(((const float *)b.at)[distance], b.inverse, s);
    } else {
        if (query >= F::BIAS_FIRST || key >= F::BIAS_SECOND) return s;
        return fmaf(te_load(b.at, (int64_t)query * F::BIAS_SECOND + key, T), b.inverse, s);
    }
}
/* The same for all of s[M][N][4], queries by keys. Two keys a load, where a row of the table has an even number. */
template <te_dtype T, class F, int M, int N> TE_FN void te__attn_add_table(float (&s)[M][N][4], te__attn_table b) {
    constexpr bool TABLE = F::BIAS == TE_BIAS_heads || F::BIAS == TE_BIAS_shared;
    if constexpr (TABLE && T != TE_f32 && F::BIAS_SECOND % 2 == 0)
        TE_UNROLL for (int m = 0; m < M; m++)
            TE_UNROLL for (int n = 0; n < N; n++)
                TE_UNROLL for (int h = 0; h < 2; h++) {
                    const int query = b.query + m * 16 + h * 8, key = b.key + n * 8; /* even */
                    if (query >= F::BIAS_FIRST || key >= F::BIAS_SECOND) continue;
                    const int64_t at = (int64_t)query * F::BIAS_SECOND + key;
                    const float2 x = te_floats_of_pair(*(const uint32_t *)((const uint16_t *)b.at + at), T);
                    s[m][n][2 * h] = fmaf(x.x, b.inverse, s[m][n][2 * h]);
                    s[m][n][2 * h + 1] = fmaf(x.y, b.inverse, s[m][n][2 * h + 1]);
                }
    else if constexpr (F::BIAS != TE_BIAS_none)
        TE_UNROLL for (int m = 0; m < M; m++)
            TE_UNROLL for (int n = 0; n < N; n++)
                TE_UNROLL for (int e = 0; e < 4; e++)
                    s[m][n][e] = te__attn_added<T, F>(s[m][n][e], b, m * 16 + e / 2 * 8, n * 8 + e % 2);
}

#endif
