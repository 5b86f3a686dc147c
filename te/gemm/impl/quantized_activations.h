/* quantized_activations.h -- rounds activations, the rows by which a quantized weight is multiplied, to integers q of 8
 * bits with a scale d per block. The products of gemm_quantized.h are then sums of integers, multiplied by the scales
 * of both operands.
 *
 * The blocks are those of ggml, so that results equal llama.cpp's up to the order of their sums:
 *     for weights in blocks of 32 values (ggml's q8_0 and q8_1): one scale for each 32 activations, d = amax / 127, and
 *         q = x / d rounded to nearest even. d and d * sum(q) are then rounded to f16, unless they are too small or too
 *         large for f16's normal numbers;
 *     for k-quants (ggml's q8_K): one scale for each 256 activations, which stays in float.
 * If a block of activations has an infinity or a NaN, its scale is NaN, and so are all results of the row.
 */
#ifndef TE_QUANTIZED_ACTIVATIONS_H
#define TE_QUANTIZED_ACTIVATIONS_H

#include "../../core/target.h"         /* TE_KERNEL */
#include "../../quant/block_formats.h" /* TE_BLOCK_MAX_VALUES */

#if !TE_CUDA

/* the number of values in a group; all block formats have one scale per group, except q6_k, which has two */
enum { TE__GROUP = 32 };

/* Activations x [m, k], rounded to 8 bits in blocks of 32 or of 256 (see the head of this file): x is about d * q. All
 * arrays lie in scratch memory, each at a multiple of 64 bytes. */
typedef struct te__activations {
    int64_t m, k;
    int block;         /* the number of activations that share a scale d: 32 or 256; k is a multiple of this number */
    int8_t *q;         /* [m, k] */
    /* [m, k / 32]: the scale d of each group of 32 activations; in blocks of 256, the d of the block in which the group
     * lies */
    float *scale;
    /* [m, k / 32]: d times the sum of the group's 32 q, which is multiplied by the offset of the weight's group */
    float *scaled_sum;
    /* [m, k / 32]: the negated sum of the group's 32 q, for weights whose codes have a zero point */
    int32_t *minus_sum;
    int16_t *sums;       /* [m, k / 16]: the sums of each 16 consecutive q, for q6_k */
    int16_t *group_sums; /* [m, k / 32]: the sum of the group's 32 q, in 16 bits */
} te__activations;

/* Returns the number of bytes that the arrays of activations [m, k] take. */
TE_API size_t te__activations_bytes(int64_t m, int64_t k) {
    const int64_t groups = te_ceil_div(k, TE__GROUP);
    return (size_t)(te_round_up(m * k, 64) + 4 * te_round_up(m * groups * 4, 64) + te_round_up(m * groups * 2, 64));
}
/* Returns activations [m, k] whose arrays lie in `memory`, one behind the other; `memory` is aligned to 64 bytes.
 * block: 32 or 256, the number of activations that share a scale. */
TE_API te__activations te__activations_at(char *memory, int64_t m, int64_t k, int block) {
    const int64_t array = te_round_up(m * te_ceil_div(k, TE__GROUP) * 4, 64);
    te__activations a;
    a.m = m, a.k = k, a.block = block;
    a.q = (int8_t *)memory, memory += te_round_up(m * k, 64);
    a.scale = (float *)(void *)memory, memory += array;
    a.scaled_sum = (float *)(void *)memory, memory += array;
    a.minus_sum = (int32_t *)(void *)memory, memory += array;
    a.sums = (int16_t *)(void *)memory, memory += array;
    a.group_sums = (int16_t *)(void *)memory;
    return a;
}

/* Returns the `count` rows of a from row `first` on, in the same memory. */
TE_API te__activations te__activations_rows(const te__activations *a, int64_t first, int64_t count) {
    te__activations rows = *a;
    const int64_t groups = a->k / TE__GROUP;
    rows.m = count, rows.q += first * a->k, rows.scale += first * groups, rows.scaled_sum += first * groups;
    rows.minus_sum += first * groups, rows.sums += first * 2 * groups, rows.group_sums += first * groups;
    return rows;
}

/* Returns v rounded to f16 if it is in the range of f16's normal numbers, else v itself. */
TE_FN float te__rounded_scale(float v) {
    const float magnitude = fabsf(v);
    return magnitude >= 6.103515625e-05f && magnitude <= 65504.0f ? te_float_of_f16(te_f16_of_float(v)) : v;
}
/* Returns the largest magnitude of n numbers; infinity or NaN if one of them is not finite. Compares the bits of the
 * floats as integers, because compilers vectorise a maximum of integers, but not a maximum of floats. */
TE_FN float te__activations_amax(const float *x, int n) {
    uint32_t max = 0;
    for (int i = 0; i < n; i++) {
        const uint32_t u = te_bits_of_float(x[i]) & 0x7fffffffu;
        max = u > max ? u : max;
    }
    return te_float_of_bits(max);
}
/* Sets q[i] to x[i] * inverse, rounded to nearest even. Adding 1.5 * 2^23 makes the float's last bit worth 1, so the
 * addition rounds, and the low bits of the sum are the integer. Requires |x[i] * inverse| <= 127.5. */
TE_FN void te__activations_round(int8_t *q, const float *x, int n, float inverse) {
    for (int i = 0; i < n; i++) {
        const float scaled = x[i] * inverse, rounded = scaled + 12582912.0f;
        q[i] = (int8_t)(int32_t)(te_bits_of_float(rounded) - 0x4b400000u);
    }
}
/* Computes the sums of q over group number `at` (32 activations) and over the two halves of the group, and stores them
 * in the members of *a for such sums. Returns the sum of the 32 q. */
TE_FN int te__activations_sums(te__activations *a, int64_t at) {
    int sum[2] = {0, 0};
    for (int i = 0; i < TE__GROUP; i++) sum[i / 16] += a->q[at * TE__GROUP + i];
    a->sums[2 * at] = (int16_t)sum[0], a->sums[2 * at + 1] = (int16_t)sum[1];
    a->minus_sum[at] = -(sum[0] + sum[1]), a->group_sums[at] = (int16_t)(sum[0] + sum[1]);
    return sum[0] + sum[1];
}
/* Rounds a->block activations x to 8 bits with one scale, and stores them in *a from group number `at` on. */
TE_FN void te__activations_block(te__activations *a, const float *x, int64_t at) {
    const int block = a->block;
    const float amax = te__activations_amax(x, block);
    const int finite = amax < INFINITY;
    float d = finite ? amax / 127.0f : NAN, inverse = finite && amax > 0.0f ? 127.0f / amax : 0.0f;
    /* If 127 / amax overflows (amax below 2^-121), round all to 0. */
    if (!(inverse < INFINITY)) inverse = 0.0f, d = finite ? 0.0f : d;
    /* in q8_K the activation with the largest magnitude becomes -127, so the scale may be negative */
    if (block > TE__GROUP && inverse > 0.0f) {
        if (te__largest_of(x, block) > 0.0f) inverse = -inverse;
        d = 1.0f / inverse;
    }
    if (finite) te__activations_round(a->q + at * TE__GROUP, x, block, inverse);
    else memset(a->q + at * TE__GROUP, 0, (size_t)block);
    for (int g = 0; g < block / TE__GROUP; g++) {
        const float sum = (float)te__activations_sums(a, at + g);
        a->scale[at + g] = block > TE__GROUP ? d : te__rounded_scale(d);
        a->scaled_sum[at + g] = block > TE__GROUP ? d * sum : te__rounded_scale(d * sum);
    }
}

typedef struct te__activations_args {
    te__activations a;
    const void *x; /* [m, k] */
    te_dtype dtype;
} te__activations_args;
/* The kernel of te__activations_of: each block rounds one row of x. */
TE_FN void te__activations_body(const te__activations_args *args, te_block b) {
    te__activations a = args->a;
    float v[TE_BLOCK_MAX_VALUES];
    for (int64_t c = 0; c < a.k; c += a.block) {
        const int64_t first = b.x * a.k + c;
        const float *x = (const float *)args->x + first;
        if (args->dtype != TE_f32) {
            for (int i = 0; i < a.block; i++) v[i] = te_load(args->x, first + i, args->dtype);
            x = v;
        }
        te__activations_block(&a, x, first / TE__GROUP);
    }
}
TE_KERNEL_ISA(te__activations_quantize, te__activations_args, 0, te__activations_body(te_args, te_at))

/* Rounds x, [m, k] of `dtype`, to 8 bits with scales, and stores the result in the arrays of a. */
TE_API te_status te__activations_of(const te__activations *a, const void *x, te_dtype dtype, te_context *ctx) {
    te__activations_args args;
    args.a = *a, args.x = x, args.dtype = dtype;
    return te__activations_quantize_launch(ctx, te__grid_of(a->m, 1), &args);
}

/* ---- the weight's groups ----------------------------------------------------------------------------------------- */

/* Returns the offset of the codes in a block, in bytes. The codes lie behind the block's scales and, in q5_0 and q5_1,
 * behind the codes' highest bits. */
TE_FN int te__group_codes_at(te_block_format f) {
    return f == TE_BLOCK_int8                                  ? 0
           : f == TE_BLOCK_mxfp4                               ? 1
           : f == TE_BLOCK_q4_1 || te__block_has_zero_point(f) ? 4
           : f == TE_BLOCK_q5_0                                ? 6
           : f == TE_BLOCK_q5_1                                ? 8
                                                               : 2;
}
/* Return the number of values of a block (te__group_values) and its number of bytes (te__group_bytes), as
 * te_block_values and te_block_bytes do, but as compile-time constants. */
TE_FN int te__group_values(te_block_format f) {
    return f == TE_BLOCK_int4_64 || f == TE_BLOCK_int4z_64     ? 64
           : f == TE_BLOCK_int4_128 || f == TE_BLOCK_int4z_128 ? 128
                                                               : 32;
}
TE_FN int te__group_bytes(te_block_format f) {
    const int codes = f == TE_BLOCK_q8_0 || f == TE_BLOCK_int8 ? 32 : te__group_values(f) / 2;
    return te__group_codes_at(f) + codes;
}
/* One group of 32 values: the block in which it lies, and where its codes begin. */
typedef struct te__weight_group {
    const uint8_t *block, *codes;
} te__weight_group;
/* Returns group number i of the blocks at w, in a format whose blocks have 32, 64 or 128 values. */
TE_FN te__weight_group te__group_at(const uint8_t *w, int64_t i, te_block_format f) {
    const int groups = te__group_values(f) / TE__GROUP;
    te__weight_group g;
    g.block = w + i / groups * te__group_bytes(f), g.codes = g.block + te__group_codes_at(f) + i % groups * 16;
    return g;
}

/* ---- kernels of products ----------------------------------------------------------------------------------------- */

/* Calls X(token) for each format whose rows are multiplied by rounded activations. */
#define TE__INTEGER_FORMATS(X)                                                                             \
    X(q8_0) X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(q4_k) X(q5_k) X(q6_k) X(mxfp4) X(int4_64) X(int4_128)        \
    X(int4z_32) X(int4z_64) X(int4z_128) X(int8)

enum { TE__SKINNY_COLUMNS = 4 }; /* the largest number of rows of A by which a row of the weight is multiplied at a
                                  * time */
/* A skinny kernel for one format of the weight and 1, 2 or 4 rows of the activations. It sets out[i] to the dot product
 * of the weight's row at w and row row[i] of the activations. The order of the sum, and so its bits, does not depend on
 * the number of rows. */
typedef void te__columns_kernel(float *out, const uint8_t *w, const te__activations *a, const int64_t *row);

/* Define the kernels te__<isa>_<format>_1, _2 and _4 from te__<isa>_columns, whose format and number of rows are then
 * compile-time constants. */
#define TE__COLUMNS_KERNEL(isa, attribute, f, count)                                                        \
    attribute TE_API void te__##isa##_##f##_##count(float *out, const uint8_t *w, const te__activations *a, \
                                                    const int64_t *row) {                                   \
        te__##isa##_columns(out, w, a, row, count, TE_BLOCK_##f);                                           \
    }
#define TE__COLUMNS_KERNELS(isa, attribute, f) \
    TE__COLUMNS_KERNEL(isa, attribute, f, 1)   \
    TE__COLUMNS_KERNEL(isa, attribute, f, 2)   \
    TE__COLUMNS_KERNEL(isa, attribute, f, 4)
/* A case of a switch over the format: returns the kernel for this format and `count` rows. The function around the
 * switch has a parameter `count`. */
#define TE__COLUMNS_CASE(isa, f) \
    case TE_BLOCK_##f:           \
        return count == 1 ? te__##isa##_##f##_1 : count == 2 ? te__##isa##_##f##_2 : te__##isa##_##f##_4;

#endif
#endif
