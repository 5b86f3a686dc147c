/* dropout.h -- (dropout, name, p): each element is 0 with probability p, else x / (1 - p). Srivastava et al. 2014.
 *
 * The mask is Philox of (seed, draw, op, element), so backward computes it again and nothing is stored; the same bits on
 * every target. Inference leaves the op out of the plan.
 */
#ifndef TE_OPS_DROPOUT_H
#define TE_OPS_DROPOUT_H

#include "../fuse/chain.h" /* te_stage, te_at */

#define TE_OP_dropout (dropout, 0, map)
#define TE_IN_dropout(op) 0
#define TE_OUT_dropout(op, in) in
#define TE_FLAGS_dropout(op) TE_DRAWS
#define TE_TRAITS_dropout(model, op, in, out) 0, -1, {(float)(TE_ARG1(op, 0.5f)), 1.0f / (1.0f - (float)(TE_ARG1(op, 0.5f)))}, TE_NO_PARAMS
#define TE_FIELDS_dropout(op)
#define TE_DECLARE_dropout(model, op)

/* v of elements e .. e + 7 of the tensor: four words a counter. */
TE_FN void te_dropout8(float v[8], const te_rng *rng, const te_stage *s, int64_t e, int aligned) {
    const uint32_t limit = (uint32_t)(s->value[0] * 4294967040.0f); /* the largest float below 2^32 */
    uint32_t word[4] = {0, 0, 0, 0};
    TE_UNROLL for (int i = 0; i < 8; i++) {
        if (aligned ? i % 4 == 0 : i == 0 || (e + i) % 4 == 0) te_philox(word, rng->seed, (uint64_t)(e + i) / 4, s->id, rng->offset);
        const uint32_t u = aligned ? word[i % 4] : (e + i) % 4 == 0 ? word[0] : (e + i) % 4 == 1 ? word[1] : (e + i) % 4 == 2 ? word[2] : word[3];
        v[i] = u < limit ? 0.0f : v[i] * s->value[1];
    }
}
TE_FN void te_dropout_forward(float v[8], const te_stage *s, te_at at, int code) {
    (void)code;
    te_dropout8(v, s->rng, s, te_index(at), at.aligned);
}
TE_FN void te_dropout_backward(float v[8], float sum[8], const te_stage *s, te_at at, int code) {
    (void)sum;
    te_dropout_forward(v, s, at, code); /* y = mask x / (1 - p) */
}

#endif
