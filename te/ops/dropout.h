/* dropout.h -- (dropout, name, p): each element is 0 with probability p, else x / (1 - p). Srivastava et al. 2014.
 *
 * The mask is Philox of (seed, draw, op, element), so backward computes it again and nothing is stored; the same bits
 * on every target, and on any number of ranks (te/comm): elements count in the tensor of all. Inference leaves the op
 * out of the plan.
 */
#ifndef TE_OPS_DROPOUT_H
#define TE_OPS_DROPOUT_H

#include "map.h" /* te_stage, te_place */

#define TE_OP_dropout (dropout, map)
#define TE_SHAPES_dropout(op) (1)
#define TE_PRODUCES_dropout(op) (TE_PRODUCES_same)
#define TE_FLAGS_dropout(op) (TE_DRAWS)
#define TE_LAYOUT_FITS_dropout(op, in) ((int)(in) != (int)TE_LAYOUT_partial_sum && (int)(in) != (int)TE_LAYOUT_columns)
#define TE_OPTIONS_dropout(op) (te_dropout_options, TE_DROPOUT_LIMIT((float)(TE_ARG1(op, 0.5f))), \
    TE_DROPOUT_FACTOR((float)(TE_ARG1(op, 0.5f))))
#define TE_CHECK_dropout(model, op)                                                                           \
    (TE_ASSERT_NUMBER((TE_ARG1(op, 0.5f)) >= 0 && (TE_ARG1(op, 0.5f)) < 1, "te: " TE_STRING(model) ": "       \
        TE_CALLED(op) ": the probability must be at least 0 and less than 1");)

/* Element e is dropped if its 16 bits of the random words, half e % 2 of word e % 8 / 2 of counter e / 8, are below
 * `limit`, 65536 p: one Philox for eight elements, of which the arithmetic would otherwise cost more than the memory.
 * So p is rounded to a multiple of 1 / 65536, and the factor is that of the probability that is left (philox.h). */
typedef struct te_dropout_options { uint32_t limit; float factor; } te_dropout_options;

TE_BOTH int te_dropped(const uint32_t word[4], int e, uint32_t limit) {
    const int w = e / 2 % 4;
    const uint32_t u = w == 0 ? word[0] : w == 1 ? word[1] : w == 2 ? word[2] : word[3];
    return (e % 2 ? u : u << 16) < limit << 16; /* the half in question is on top; what lies below it decides nothing */
}
/* In wide rows one load that need not wait for stores: 8192 x 16384, add_dropout_bias 141 us so, 145 with a plain load;
 * 8192 x 768, layernorm_fork_add_dropout_bias, which has no register to spare, 32.4 us so, 31.9 with a plain one.
 * volatile: made again for each eight elements; kept for all rows, state and keys would push a backward's sums out of
 * the registers. */
TE_FN te_rng te_rng_of(const te_rng *rng, const int width) {
#if TE_CUDA
    te_rng now;
    if (width <= 1024) return *rng;
    asm volatile("ld.global.nc.v2.u64 {%0, %1}, [%2];" : "=l"(now.seed), "=l"(now.offset) : "l"(rng));
    return now;
#else
    (void)width;
    return *rng;
#endif
}
/* v of elements e .. e + 7 of the tensor. */
TE_FN void te_dropout8(float v[8], const te_stage *s, te_place at, const te_dropout_options *o) {
    const int64_t e = te_index(at) + s->first;
    const te_rng rng = te_rng_of(s->rng, at.width);
    uint32_t word[4];
    te_philox(word, rng.seed, (uint64_t)e / 8, s->id, rng.offset);
    TE_UNROLL for (int i = 0; i < 8; i++) {
        const int of = at.aligned ? i : (int)((e + i) % 8);
        if (!at.aligned && i > 0 && of == 0) te_philox(word, rng.seed, (uint64_t)(e + i) / 8, s->id, rng.offset);
        v[i] = te_dropped(word, of, o->limit) ? 0.0f : v[i] * o->factor;
    }
}
TE_CALLBACK void te_dropout_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    te_dropout8(v, s, at, (const te_dropout_options *)options);
}
TE_CALLBACK void te_dropout_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    (void)sum;
    te_dropout_forward(v, s, at, options); /* y = mask x / (1 - p) */
}

#endif
