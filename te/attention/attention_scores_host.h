/* attention_scores_host.h -- what the mask and the options make of a tile of scores in attention_host.h: s[key][query]
 * or s[query][key], rows of TE__ATTN_TILE, in powers of 2.
 */
#ifndef TE_ATTENTION_SCORES_HOST_H
#define TE_ATTENTION_SCORES_HOST_H

#include "attention_form.h"         /* te__attn_form */
#include "attention_product_host.h" /* te__attn_vector */

/* In a row of a tile's scores, what does not go with the row becomes -inf. at: the token of column 0. */
TE_FN void te__attn_row_hide(float *row, te__attn_span seen, int at) {
    for (int c = 0; c < te__attn_least(TE__ATTN_TILE, seen.first - at); c++) row[c] = -INFINITY;
    for (int c = seen.end > at ? seen.end - at : 0; c < TE__ATTN_TILE; c++) row[c] = -INFINITY;
}
/* What is not seen in a tile of scores, s[key][query] or s[query][key]. */
TE_FN void te__attn_hide_by_key(float *s, te__attn_mask m, int q0, int k0, int keys) {
    for (int k = 0; k < keys; k++) te__attn_row_hide(s + k * TE__ATTN_TILE, te__attn_queries_of(m, k0 + k, 1), q0);
}
TE_FN void te__attn_hide_by_query(float *s, te__attn_mask m, int q0, int k0, int queries) {
    for (int q = 0; q < queries; q++) te__attn_row_hide(s + q * TE__ATTN_TILE, te__attn_keys_of(m, q0 + q, 1), k0);
}
/* Whether nothing is seen on one side of a tile's diagonal, so that products may leave that side out: key k0 + i by no
 * query before q0 + i. It is enough to look at the last key: as keys move on by one, their first query does not move on
 * by more than one. */
TE_FN int te__attn_is_triangle(te__attn_mask m, int q0, int k0, int keys) {
    return te__attn_queries_of(m, k0 + keys - 1, 1).first >= q0 + keys - 1;
}

/* What q (or k) is multiplied by, so that products are scores in powers of 2, with softcap what te__attn_tanh takes. */
TE_FN float te__attn_factor(float scale, te__attn_form f) {
    return scale * TE__ATTN_LOG2E * (f.softcap > 0 ? 2 / f.softcap : 1);
}
/* softcap tanh(score / softcap) of a tile of scores, in powers of 2. */
TE_FN void te__attn_cap(float *s, int rows, int n, te__attn_form f) {
    for (int i = 0; f.softcap > 0 && i < rows; i++)
        for (int j = i * TE__ATTN_TILE; j < i * TE__ATTN_TILE + n; j += TE__ATTN_LANES) {
            te__attn_vector e;
            te__attn_get(&e, s + j), te__attn_tanh(&e), e *= f.softcap * TE__ATTN_LOG2E, te__attn_put(s + j, &e);
        }
}
/* x times the derivative of that at the score e, 0 where it is hidden. */
TE_FN void te__attn_uncap(te__attn_vector *x, const te__attn_vector *e, te__attn_form f) {
    if (f.softcap > 0) {
        const te__attn_vector t = *e * (1 / (f.softcap * TE__ATTN_LOG2E)), slope = 1 - t * t;
        te__attn_vector least = *x - *x;
        te__attn_raise(&least, &slope), *x *= least;
    }
}

/* ALiBi: what is taken off scores for each token between query and key, in powers of 2; 0: nothing. */
TE_FN float te__attn_alibi(int head, int heads, te__attn_form f) {
    return f.alibi ? te__attn_alibi_slope(head % heads, heads) * TE__ATTN_LOG2E : 0;
}
/* That, off the scores of pairs that are so many tokens apart, one more each. */
TE_FN void te__attn_add_bias(te__attn_vector *x, float slope, int distance, te__attn_form f) {
    if (!f.alibi) return;
    float bias[TE__ATTN_LANES];
    for (int i = 0; i < TE__ATTN_LANES; i++) bias[i] = slope * fabsf((float)(distance + i));
    te__attn_vector b;
    te__attn_get(&b, bias), *x -= b;
}

/* The bias of attention_bias.h on scores, in powers of 2: of one query and keys from `key` on (by_key), or of one key
 * and queries from `query` on. Outside a table are pairs past the sequence alone. */
TE_FN void te__attn_add_table(te__attn_vector *x, const te_attention_args *a, int head, int query, int key, int by_key,
                              te__attn_mask m, te_dtype t, te__attn_form f) {
    float bias[TE__ATTN_LANES];
    if (f.bias == TE_BIAS_none) return;
    for (int i = 0; i < TE__ATTN_LANES; i++) {
        const int q = by_key ? query : query + i, k = by_key ? key + i : key, far = k - q - m.shift;
        if (f.bias == TE_BIAS_relative) {
            const int at = far < -f.second ? -f.second : te__attn_least(far, f.second);
            bias[i] = a->line[head * (2 * f.second + 1) + f.second + at];
        } else {
            const int64_t row = (int64_t)(f.bias == TE_BIAS_heads ? head : 0) * f.first + q;
            bias[i] = q < f.first && k < f.second ? te_load(a->bias, row * f.second + k, t) : 0;
        }
        bias[i] *= TE__ATTN_LOG2E;
    }
    te__attn_vector b;
    te__attn_get(&b, bias), *x += b;
}

/* What dropout drops of a tile of numbers s[key][query], or s[query][key], becomes 0, the rest is multiplied. head: of
 * all sequences and ranks. q0, k0: multiples of 64. */
TE_FN void te__attn_drop(float *s, int by_key, const te_attention_args *a, int head, int q0, int k0, float factor,
                         te__attn_form f) {
    for (int i = 0; f.drop && a->rng && i < 512; i++) { /* counters */
        const int q = i / 128 * 16 + i / 8 % 8, k = i / 64 % 2 * 32 + i % 8;
        uint32_t word[4];
        te__attn_draw(word, *a->rng, a->id, te__attn_draw_row(head, q0 + q, a->seq), q0 + q, k0 + k);
        for (int e = 0; e < 8; e++) {
            const int query = q + e / 4 * 8, key = k + e % 4 * 8;
            float *one = s + (by_key ? key * TE__ATTN_TILE + query : query * TE__ATTN_TILE + key);
            *one = te__attn_drops(word[e % 4], e / 4, f.drop) ? 0 : *one * factor;
        }
    }
}

#endif
