/* moment_blocks.h -- moments of an optimizer in 8 bits: e4m3 with a scale for each block of 128 elements.
 * Dettmers et al., "8-bit optimizers via block-wise quantization", ICLR 2022, have blocks and a code of their own; here
 * it is a floating-point format, so that what is stored can be rounded by chance and compared in any other format:
 *
 *     m = s_m e4m3,    v = (s_v e4m3)^2        s: the smallest power of two with max |m|, max sqrt(v) <= 448 s
 *
 * - s is a power of two: while the largest number of a block moves within a factor of two, numbers that nothing was
 *   added to keep their bits. With s = max / 448 every number would be rounded anew in every step, and the second
 *   moment, which keeps beta2 = 0.999 of itself, would gather the noise of a thousand roundings.
 * - v is stored by its root, so that v reaches as far as m does. |m| <= c sqrt(v), c^2 = (1 - beta1)^2 / ((1 - beta2)
 *   (1 - beta1^2 / beta2)): 7.3 for 0.9 and 0.999. Numbers down to 2^-17.8 of the block's largest are not 0 in either;
 *   e4m3 of v itself would end at 2^-8.9 of the largest root, where m goes on and m / sqrt(v) is an update without
 *   bound. For what is smaller still a v above 0 is rounded up to the least code, never to 0: the update is smaller
 *   than it should be, and never larger. A gradient above 1e18, where nothing clips it (TE_ADAMW_LARGEST), makes that
 *   of all its block: the block stands still, as the element alone does in f32.
 * - m and v are rounded up or down by chance, so that the mean of each is what was to be stored (of v, not of its
 *   root). Rounded to nearest a change of less than 1/32, which is every one of v, would never be made.
 *
 * train_gpt on the CPU (--size tiny, 400 steps, one run each): validation loss 2.3305, with moments in f32 2.3253.
 *
 * Every number of these is one of bf16, too: m has 4 significant bits and v 8. That is how they lie in a checkpoint,
 * which a run with moments of any format loads.
 *
 * Of a tensor there are its elements' codes, as many as blocks have room for, then a float for each block:
 *     te__moments_bytes(elements, TE_e4m3) = 132 / 128 of the elements, rounded up to whole blocks
 */
#ifndef TE_MOMENT_BLOCKS_H
#define TE_MOMENT_BLOCKS_H

#include "../core/target.h" /* TE_KERNEL */
#include "../plan/bind.h"   /* TE_PARAM_ALIGN */

/* A block is what a warp holds at four elements a lane. Slices of shared-out states (slices.h) begin at multiples of
 * it. */
enum { TE_MOMENT_BLOCK = TE_PARAM_ALIGN, TE__MOMENT_LANES = TE_CUDA ? 32 : 1,
       TE__MOMENT_EACH = TE_MOMENT_BLOCK / TE__MOMENT_LANES /* elements of a lane */ };

TE_BOTH int te__in_blocks(te_dtype moments) { return moments == TE_e4m3; }
/* Bytes that a tensor's m or v takes; a sum over tensors, where each is a multiple of TE_MOMENT_BLOCK elements. */
TE_API size_t te__moments_bytes(int64_t elements, te_dtype moments) {
    const int64_t blocks = te_ceil_div(elements, TE_MOMENT_BLOCK);
    if (!te__in_blocks(moments)) return (size_t)elements * te_dtype_bytes(moments);
    return (size_t)(blocks * (TE_MOMENT_BLOCK + (int64_t)sizeof(float)));
}
/* The scales [blocks] of a tensor's m or v. */
TE_BOTH float *te_moment_scales(void *moment, int64_t elements) {
    return (float *)(void *)((char *)moment + (elements + TE_MOMENT_BLOCK - 1) / TE_MOMENT_BLOCK * TE_MOMENT_BLOCK);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* The smallest power of two s with most <= 448 s. What is stored is 0 or at least 2^-126, and finite: s is in 2^-117 to
 * 2^119 for m, and in 2^-54 to 2^55 for the root of v. */
TE_BOTH float te__moment_scale(float most, const int root) {
    const uint32_t least = root ? 127u - 54u : 127u - 117u, last = root ? 127u + 55u : 127u + 119u;
    uint32_t e = (te_bits_of_float(most) + 0x1fffffu) >> 23; /* 448 = 1.75 * 2^8: above it the exponent is one more */
    e = e < least + 8u ? least : e - 8u;
    return te_float_of_bits((e < last ? e : last) << 23);
}
/* 1 / s, exact. */
TE_BOTH float te__moment_inverse(float scale) { return te_float_of_bits((254u << 23) - te_bits_of_float(scale)); }

/* x >= 0 as e4m3, rounded up if `random`, 16 bits, is below 65536 times the distance from the lower neighbour in units
 * of the last place; of a root in those of the squares, (units^2 - low^2) of (low + 1)^2 - low^2. Above 448, and NaN:
 * 448. */
TE_FN uint32_t te__e4m3_by_chance(float x, uint32_t random, const int root) {
    const uint32_t bits = te_bits_of_float(x < TE_E4M3_MOST ? x : TE_E4M3_MOST);
    uint32_t first;
    const uint32_t units = te__fp8_units(&first, bits, 3, 7), low = units >> 20, part = units & 0xfffffu;
    const uint32_t squares = (uint32_t)((uint64_t)(part << 8) * ((low << 21) + part) >> 32); /* 16 bits behind */
    const uint32_t up = root ? squares > (2u * low + 1u) * random : part > random << 4;
    const uint32_t code = first + low + up;
    return root && bits && code == 0u ? 1u : code;
}
/* To nearest. */
TE_FN uint32_t te__e4m3_of_moment(float x, const int root) {
    const uint32_t code = te_e4m3_of_float(x < TE_E4M3_MOST ? x : TE_E4M3_MOST);
    return root && x > 0.0f && code == 0u ? 1u : code;
}

/* ---- to and from bf16 -------------------------------------------------------------------------------------------- */

/* Elements [from, from + count) of a tensor's m or v, and their numbers in bf16. */
typedef struct te__moments_args {
    uint8_t *code;  /* [blocks * TE_MOMENT_BLOCK] */
    float *scale;   /* [blocks] */
    uint16_t *bf16; /* [count] */
    int64_t from, count;
    int root;       /* 1: of v */
} te__moments_args;

/* The block's elements that are this lane's: the first one, and what they are. */
TE_FN int64_t te__moments_lane(float v[TE__MOMENT_EACH], const te__moments_args *a, int64_t block, int lane) {
    const int64_t at = block * TE_MOMENT_BLOCK + (int64_t)lane * TE__MOMENT_EACH;
    TE_UNROLL for (int k = 0; k < TE__MOMENT_EACH; k++) {
        const float x = te_float_of_e4m3(a->code[at + k]) * a->scale[block];
        v[k] = a->root ? x * x : x;
    }
    return at;
}
TE_FN void te__moments_read_body(const te__moments_args *a, te_block b) {
    int group;
    const te_lanes lanes = te_lanes_here(TE__MOMENT_LANES, &group);
    float v[TE__MOMENT_EACH];
    const int64_t at = te__moments_lane(v, a, a->from / TE_MOMENT_BLOCK + b.x, lanes.id);
    TE_UNROLL for (int k = 0; k < TE__MOMENT_EACH; k++)
        if (at + k >= a->from && at + k < a->from + a->count) a->bf16[at + k - a->from] = te_bf16_of_float(v[k]);
}
/* Other elements of the first and the last block stay as they are, as far as the scale lets them: written in parts to
 * zeros, a block of numbers that came from one comes to just these. */
TE_FN void te__moments_write_body(const te__moments_args *a, te_block b) {
    int group;
    te_lanes lanes = te_lanes_here(TE__MOMENT_LANES, &group);
    const int64_t block = a->from / TE_MOMENT_BLOCK + b.x;
    float v[TE__MOMENT_EACH], most = 0.0f;
    const int64_t at = te__moments_lane(v, a, block, lanes.id);
    TE_UNROLL for (int k = 0; k < TE__MOMENT_EACH; k++) {
        if (at + k >= a->from && at + k < a->from + a->count) v[k] = te_float_of_bf16(a->bf16[at + k - a->from]);
        most = fabsf(v[k]) > most ? fabsf(v[k]) : most;
    }
    te_lanes_max(&most, &lanes); /* all lanes have read the scale */
    const float scale = te__moment_scale(a->root ? sqrtf(most) : most, a->root), inverse = te__moment_inverse(scale);
    TE_UNROLL for (int k = 0; k < TE__MOMENT_EACH; k++) {
        const float x = a->root ? sqrtf(v[k]) : fabsf(v[k]);
        const uint32_t sign = !a->root && v[k] < 0.0f ? 0x80u : 0u;
        a->code[at + k] = (uint8_t)(sign | te__e4m3_of_moment(x * inverse, a->root));
    }
    if (lanes.id == 0) a->scale[block] = scale;
}
TE_KERNEL_IF_USED(te_moments_read, TE__MOMENT_LANES, 1, te__moments_args, te__moments_read_body(te_args, te_at))
TE_KERNEL_IF_USED(te_moments_write, TE__MOMENT_LANES, 1, te__moments_args, te__moments_write_body(te_args, te_at))

/* Elements [from, from + count) of a tensor's m or v (root: v) of so many elements go to `bf16`, target memory, or
 * come from there, if `loads`. 3 bytes an element. */
TE_IF_USED TE_API te_status te__moments_copy(void *moment, int64_t elements, int root, int64_t from, int64_t count,
                                             void *bf16, int loads, te_context *ctx) {
    te__moments_args a;
    memset(&a, 0, sizeof a);
    a.code = (uint8_t *)moment, a.scale = te_moment_scales(moment, elements), a.bf16 = (uint16_t *)bf16;
    a.from = from, a.count = count, a.root = root;
    const int64_t blocks = count ? (from + count - 1) / TE_MOMENT_BLOCK - from / TE_MOMENT_BLOCK + 1 : 0;
    if (!blocks) return TE_OK;
    return loads ? te_moments_write_launch(ctx, te_grid_of(blocks, 1), &a)
                 : te_moments_read_launch(ctx, te_grid_of(blocks, 1), &a);
}

#endif
