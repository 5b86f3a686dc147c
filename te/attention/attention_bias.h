/* attention_bias.h -- additive biases: a number for each pair of a query and a key that joins its score in front of the
 * mask, learnt, with a gradient. Two kinds:
 *
 *     a table          [heads, queries, keys] (TE_BIAS_heads) or [queries, keys] for all heads (TE_BIAS_shared)
 *     relative         [buckets, heads] (TE_BIAS_relative): key - query decides the bucket, T5 (Raffel et al. 2020)
 *
 *     forward:  S = softcap(scale Q K^T) + B, P = exp(S - lse)
 *     backward: dS = P (dP - delta) as without, dB = the sum of dS over the sequences (and heads) that have the number
 *
 * Queries and keys are counted from the first one of their sequence, in packed sequences, too: a shorter sequence has
 * the upper left corner of a table. In relative ones a query stands at its place among the keys (attention_mask.h). A
 * table may have -inf: such a pair is as good as masked, and a query with no other gives 0.
 *
 * The bias is added behind softcap, as ALiBi is and as FlashAttention 2 and vLLM add theirs; then its gradient does not
 * pass through the tanh. (Pax caps the sum of both.)
 *
 * The gradient has kernels of its own, attention_bias_host.h and attention_bias_cuda.h: a block owns a tile of the
 * table and goes through the sequences in order, so that nothing of [sequences, heads, queries, keys] is ever stored
 * and the sum has one order.
 */
#ifndef TE_ATTENTION_BIAS_H
#define TE_ATTENTION_BIAS_H

#include "../core/base.h" /* TE_BOTH */

enum { TE_BIAS_none, TE_BIAS_heads, TE_BIAS_shared, TE_BIAS_relative, TE_BIAS_MAX_DISTANCE = 1 << 16 };

/* The bucket of a key so many tokens behind its query (in front of it: negative). both: half of the buckets are for
 * keys behind the query, else those count as distance 0. Half of a side's buckets are for one distance each, the others
 * grow by a constant ratio up to `most`, and the last one has all beyond. In double, so that both targets and all
 * kernels agree. */
TE_BOTH int te__attn_bucket(int distance, int buckets, int most, int both) {
    const int side = both ? buckets / 2 : buckets, exact = side / 2, first = both && distance > 0 ? side : 0;
    const int n = distance < 0 ? -distance : both ? distance : 0;
    if (n < exact) return first + n;
    const double share = log((double)n / exact) / log((double)most / exact);
    const int bucket = exact + (int)(share * (side - exact) + 1e-9);
    return first + (bucket < side - 1 ? bucket : side - 1);
}

#endif
