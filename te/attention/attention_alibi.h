/* attention_alibi.h -- ALiBi, linear biases in the place of positions (Press, Smith & Lewis 2022, arXiv 2108.12409):
 * slope |i - j| is taken off the score of query i and key j, behind softcap and in front of the mask. The slope is the
 * head's and is not learnt: of n heads, a power of two, head h = 0, 1, .. has 2^(-8 (h + 1) / n). Of other numbers of
 * heads the first n, the next lower power of two, have those, and the others every other one of the 2 n that 2 n heads
 * would have: the first, the third, ..
 *
 * It is part of the exponent alone: backward has the same bias where it makes P again, and no other gradient.
 */
#ifndef TE_ATTENTION_ALIBI_H
#define TE_ATTENTION_ALIBI_H

#include "../core/base.h" /* TE_BOTH */

TE_BOTH float te__attn_alibi_slope(int head, int heads) {
    int n = 1;
    while (2 * n <= heads) n *= 2;
    return exp2f(head < n ? -8.0f * (float)(head + 1) / (float)n : -4.0f * (float)(2 * (head - n) + 1) / (float)n);
}

#endif
