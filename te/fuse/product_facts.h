/* product_facts.h -- what is known of the arguments of a row that is one product in FP8 (product.h), so that its
 * epilogue has no branches on them. Which of its ops keep something, and in which form its result goes on, follows from
 * the list; but a call may want less, as inference does, or other things, as the first step under fp8_delayed does,
 * which knows no scale. So the kernel looks once, and has the epilogue in up to three forms: all that training stores,
 * the result alone, and anything else.
 *
 * It matters in FP8, where a tile takes half the time: with branches, linear_bias_gelu of 8192 x 16384 from k of 4096
 * took 945 us in training, without them 858, where the bare product takes 830 (one H200).
 */
/* target: cuda */
#ifndef TE_FUSE_PRODUCT_FACTS_H
#define TE_FUSE_PRODUCT_FACTS_H

#include "../gemm/gemm_choose.h" /* te_hopper, te_few, te_usual */
#include "chain.h"               /* te_chain, te_chain_leaves */

typedef struct te_product {
    union { te_hopper many; te_few few; te_narrow narrow; };
    te_chain chain; /* x: where the product itself is stored, null: not */
} te_product;

/* What is known of a product in FP8 by its row: what it leaves, bits by place in the row of ops whose input is kept in
 * training, and of ops with a parameter. */
typedef struct te_product_facts { te_chain_leaves leaves; int kept, params; } te_product_facts;

/* Whether the product's arguments are those of training or, with nothing kept, of inference. */
TE_FN te_usual te_product_usual(const te_product *p, const te_chain_shape k, const te_product_facts is) {
    const te_chain_fp8 *fp8 = &p->chain.fp8;
    int stores = p->chain.x != 0, usual = k.reads < 0 || p->many.ahead;
    usual = usual && (is.leaves == TE_LEAVES_fp8) == (fp8->y != 0);
    if (is.leaves != TE_LEAVES_amax) usual = usual && (is.leaves == TE_LEAVES_y) == (p->chain.y != 0);
    if (is.leaves != TE_LEAVES_fp8) usual = usual && (is.leaves == TE_LEAVES_amax) == (fp8->amax != 0);
    TE_UNROLL for (int i = 0; i < TE_MAX_ROW; i++) {
        if (p->chain.op[i].out) stores |= 2 << i;
        if (is.params >> i & 1) usual = usual && p->chain.op[i].w[0];
    }
    if (usual && stores == is.kept) return TE_USUAL_all;
    return is.kept && usual && !stores ? TE_USUAL_result : TE_USUAL_not;
}
/* Its chain then, with what is null and what is not as constants. */
TE_FN void te__product_know(te_chain *c, const te_product *p, const te_product_facts is) {
    c->fp8 = p->chain.fp8, c->rows = p->chain.rows;
    c->x = is.kept & 1 ? p->chain.x : 0;
    if (is.kept & 1) __builtin_assume(c->x != 0);
    c->y = is.leaves == TE_LEAVES_fp8 ? 0 : p->chain.y;
    if (is.leaves == TE_LEAVES_y) __builtin_assume(c->y != 0); /* with its amax it may be for later (te__chain_stays) */
    if (is.leaves == TE_LEAVES_amax) __builtin_assume(c->fp8.amax != 0);
    else if (is.leaves == TE_LEAVES_y) c->fp8.amax = 0;
    TE_UNROLL for (int i = 0; i < TE_MAX_ROW; i++) {
        c->op[i] = p->chain.op[i];
        if (is.kept & 2 << i) __builtin_assume(c->op[i].out != 0);
        else c->op[i].out = 0;
        if (is.params >> i & 1) __builtin_assume(c->op[i].w[0] != 0);
    }
}

#endif
