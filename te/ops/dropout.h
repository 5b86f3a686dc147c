/* dropout.h -- (dropout, name, p): an element of y is 0 with probability p (0.5 if not given), else x / (1 - p). x and
 * y are [rows, width]. Srivastava et al. 2014.
 *
 * Do this:
 *     (linear, proj, H, H), (bias, proj_b, H), (dropout, drop1, 0.1f), (add, x1)
 *
 * Nothing is saved: Philox generates the mask from (seed, draw, op, element), so backward can recompute the mask. The
 * mask is the same on every target and for any number of ranks (te/comm), because `element` is the element's index in
 * the whole tensor, over all ranks. `draw` is an offset in device memory that each forward advances, so each replay of
 * a captured graph draws a fresh mask. Inference plans leave the op out.
 *
 * Measurements: docs/notes/ops.md.
 */
#ifndef TE_OPS_DROPOUT_H
#define TE_OPS_DROPOUT_H

#include "elementwise.h" /* te_stage, te_place */

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

/* One Philox call yields 128 bits, 16 bits for each of eight elements. With a call for every four elements, the
 * arithmetic would take more time than the memory traffic. Element e uses the call with counter e / 8. Of the four
 * 32-bit words that this call yields, the element uses word e % 8 / 2: the lower 16 bits if e is even, else the upper
 * 16 bits. The element is dropped if these 16 bits are below limit = 65536 * p. So p is rounded to a multiple of 1 /
 * 65536; factor = 1 / (1 - p) is computed from the rounded p (philox.h). */
typedef struct te_dropout_options { uint32_t limit; float factor; } te_dropout_options;

/* the largest row width at which kernels load the random state only once; in wider rows te_load_rng loads the state
 * again for every eight elements */
enum { TE_DROPOUT_KEEPS_RNG_WIDTH = 1024 };

TE_BOTH int te_dropped(const uint32_t word[4], int e, uint32_t limit) {
    const int w = e / 2 % 4;
    const uint32_t u = w == 0 ? word[0] : w == 1 ? word[1] : w == 2 ? word[2] : word[3];
    /* only the upper 16 bits decide the comparison, because the lower 16 bits of limit << 16 are 0 */
    return (e % 2 ? u : u << 16) < limit << 16;
}
/* Loads the random state. For wide rows the load is an ld.global.nc, which need not wait for the kernel's earlier
 * stores. The asm statement is volatile, so that the compiler repeats the load for every eight elements. Otherwise the
 * compiler would hold the state and its round keys in registers for the whole kernel, and would have to spill the
 * column sums that backward accumulates. For narrow rows a plain load reads the state once. */
TE_FN te_rng te_load_rng(const te_rng *rng, const int width) {
#if TE_CUDA
    te_rng now;
    if (width <= TE_DROPOUT_KEEPS_RNG_WIDTH) return *rng;
    asm volatile("ld.global.nc.v2.u64 {%0, %1}, [%2];" : "=l"(now.seed), "=l"(now.offset) : "l"(rng));
    return now;
#else
    (void)width;
    return *rng;
#endif
}
/* Applies dropout to eight elements: sets each to 0 or multiplies it by the factor. If the row does not begin at a
 * multiple of eight elements, the eight elements belong to two Philox calls with successive counters. */
TE_FN void te_dropout8(float v[8], const te_stage *s, te_place at, const te_dropout_options *o) {
    const int64_t e = te_index(at) + s->first;
    const te_rng rng = te_load_rng(s->rng, at.width);
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
    te_dropout_forward(v, s, at, options); /* forward is y = mask * x / (1 - p), so backward computes dx from dy by the
                                            * same function */
}

#endif
