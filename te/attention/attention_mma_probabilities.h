/* attention_mma_probabilities.h -- the probabilities of attention_mma_backward.h's kernel by keys, where the gradient
 * takes something else than them: with softcap or dropout.
 */
/* target: cuda */
#ifndef TE_ATTENTION_MMA_PROBABILITIES_H
#define TE_ATTENTION_MMA_PROBABILITIES_H

#include "attention_mma.h"   /* te__attn_drawn */
#include "attention_table.h" /* te__attn_added, te__attn_biased */

/* Scores by keys become probabilities, and `other` what their gradient takes in the place of them. column: lse of this
 * lane's first columns; key, query: of its first score. */
template <te_dtype T, int HEADS, class F, int M, int N>
TE_FN void te__attn_probabilities(uint32_t (&other)[M][N / 2][4], float (&s)[M][N][4], const float2 *column, float c,
                                  float unit, const te_attention_args *a, int64_t head, int key, int query,
                                  te__attn_bias bias, te__attn_table table) {
    te_rng rng = {0, 0};
    uint32_t word[2][4];
    if (F::DROP) rng = *a->rng;
    TE_UNROLL for (int n = 0; n < N; n++) {
        const float2 x = column[n * 4];
        if (F::DROP && n % 2 == 0)
            TE_UNROLL for (int i = 0; i < 2; i++)
                te__attn_draw(word[i], rng, a->id, te__attn_drawn<HEADS>(a, (int)head, query + n * 8), query + i, key);
        TE_UNROLL for (int m = 0; m < M; m++)
            TE_UNROLL for (int h = 0; h < 2; h++) {
                float *v = &s[m][n][2 * h], slope[2];
                TE_UNROLL for (int e = 0; e < 2; e++) {
                    slope[e] = te__attn_slope<F>(v[e]);
                    v[e] = te__attn_biased<F>(v[e], bias, n * 8 + e - m * 16 - h * 8);
                    v[e] = te__attn_added<T, F>(v[e], table, n * 8 + e, m * 16 + h * 8);
                    v[e] = te_exp2((F::SOFTCAP > 0 ? v[e] - (e ? x.y : x.x) / unit : v[e]) * c);
                }
                if (F::DROP)
                    TE_UNROLL for (int e = 0; e < 2; e++) {
                        const uint32_t *u = word[e], one = M == 1 && key / 16 % 2 ? u[2 + h] : u[2 * m + h];
                        if (te__attn_drops(one, n % 2, F::DROP)) slope[e] = -slope[e] * v[e], v[e] = 0;
                        else slope[e] *= v[e];
                    }
                else slope[0] *= v[0], slope[1] *= v[1];
                other[m][n / 2][n % 2 * 2 + h] = te_pair_of_floats(slope[0], slope[1], T);
            }
    }
}

#endif
