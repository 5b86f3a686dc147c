/* attention_gives_cuda.h -- how the kernels of attention on CUDA store what the option `gives` of their form asks for:
 * the output in e4m3, and the largest magnitude of what is stored. Without the option out_scale and amax are null
 * constants here and leave no instruction: a branch where O or a gradient is stored, and all registers are in use, made
 * whole kernels 1 to 4% slower.
 */
#ifndef TE_ATTENTION_GIVES_CUDA_H
#define TE_ATTENTION_GIVES_CUDA_H

#include "../core/amax.h"   /* te_amax_raise */
#include "attention_args.h" /* te_attention_args */

/* out_scale and amax of te_attention_args, or of arguments that have copies of them; and amax for the gradients of keys
 * and values, which in cross-attention are not in dqkv. */
template <class F, class P> TE_FN const float *te__attn_out_scale(const P *p) {
    return F::GIVES ? p->out_scale : nullptr;
}
template <class F, class P> TE_FN float *te__attn_amax_of(const P *p) { return F::GIVES ? p->amax : nullptr; }
template <class F, class P> TE_FN float *te__attn_amax_of_keys(const P *p) {
    return F::CROSS ? nullptr : te__attn_amax_of<F>(p);
}

/* Where element i of out lies, and eight numbers of T as they lie there: those of te_attention_args.out_scale. */
TE_FN void *te__attn_out_at(void *out, int64_t i, const float *scale) {
    return scale ? (void *)((uint8_t *)out + i) : (void *)((uint16_t *)out + i);
}
template <te_dtype T> TE_FN uint2 te__attn_in_e4m3(uint4 eight, const float *scale) {
    const te_vec8 e = {{eight.x, eight.y, eight.z, eight.w}};
    float v[8];
    te_vec8_floats(v, &e, T);
    TE_UNROLL for (int k = 0; k < 8; k++) v[k] *= *scale;
    return make_uint2(te__fp8_word(v, 1), te__fp8_word(v + 4, 1));
}
/* The largest magnitudes so far, two in a word, of numbers as they are stored; te_attention_args.amax, by a warp. */
TE_FN void te__attn_larger(uint32_t *most, uint4 eight) {
    const uint32_t w[4] = {eight.x, eight.y, eight.z, eight.w};
    TE_UNROLL for (int i = 0; i < 4; i++) *most = te__larger_halves(*most, w[i] & 0x7fff7fffu);
}
template <te_dtype T> TE_FN void te__attn_amax(float *amax, uint32_t most) {
    int group;
    if (amax) te_amax_raise(amax, te_amax_halves(most, T), te_lanes_here(32, &group));
}

#endif
