/* quantized_activations.h -- activations, the rows that are multiplied by a weight in few bits, rounded to 8 bits. The
 * products of gemm_quantized.h are then sums of integers, multiplied by the scales of both operands.
 *
 * There are two ways, as in ggml, so that results equal llama.cpp's up to the order of their sums:
 *     for weights in blocks of 32 values (ggml's q8_0 and q8_1): a scale for each 32 activations, d = amax / 127, and
 *         q = x / d rounded to nearest even. d and d sum(q) are then rounded to f16 where f16 has 11 bits for them;
 *     for k-quants (ggml's q8_K): a scale for each 256 activations, and no rounding of scales.
 * If a block of activations has an infinity or a NaN, its scale is NaN, and so are all results of the row.
 */
#ifndef TE_QUANTIZED_ACTIVATIONS_H
#define TE_QUANTIZED_ACTIVATIONS_H

#include "../../core/target.h"         /* TE_KERNEL */
#include "../../quant/block_formats.h" /* TE_BLOCK_MAX_VALUES */

#if !TE_CUDA

enum { TE__GROUP = 32 }; /* the number of values for which all formats but q6_k have at least one scale */

/* Activations [m, k] in one of the two ways. All arrays lie in scratch memory, each at a multiple of 64 bytes. */
typedef struct te__activations {
    int64_t m, k;
    int block;         /* 32 or 256: the number of activations with a common scale; k is a multiple of it */
    int8_t *q;         /* [m, k] */
    float *scale;      /* [m, k / 32]: d of each group of 32; with blocks of 256, d of the group's block */
    float *scaled_sum; /* [m, k / 32]: d times the sum of the group's q */
    int32_t *minus_sum; /* [m, k / 32]: minus the sum of the group's q */
    int16_t *sums;       /* [m, k / 16]: sums of 16 of q */
    int16_t *group_sums; /* [m, k / 32]: sums of the groups */
} te__activations;

/* The bytes that activations [m, k] need. */
TE_API size_t te__activations_bytes(int64_t m, int64_t k) {
    const int64_t groups = te_ceil_div(k, TE__GROUP);
    return (size_t)(te_round_up(m * k, 64) + 4 * te_round_up(m * groups * 4, 64) + te_round_up(m * groups * 2, 64));
}
/* Place the arrays at `memory`, which is aligned to 64 bytes. */
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

/* `count` rows of a, from row `first` on. */
TE_API te__activations te__activations_rows(const te__activations *a, int64_t first, int64_t count) {
    te__activations rows = *a;
    const int64_t groups = a->k / TE__GROUP;
    rows.m = count, rows.q += first * a->k, rows.scale += first * groups, rows.scaled_sum += first * groups;
    rows.minus_sum += first * groups, rows.sums += first * 2 * groups, rows.group_sums += first * groups;
    return rows;
}

/* v rounded to f16, if its magnitude is one of f16's normal numbers. */
TE_API float te__rounded_scale(float v) {
    const float magnitude = fabsf(v);
    return magnitude >= 6.103515625e-05f && magnitude <= 65504.0f ? te_float_of_f16(te_f16_of_float(v)) : v;
}
/* The largest magnitude of n numbers. If one of them is not finite, the result is not finite. Compares bits, because
 * compilers vectorise a maximum of integers. */
TE_API float te__activations_amax(const float *x, int n) {
    uint32_t max = 0;
    for (int i = 0; i < n; i++) {
        const uint32_t u = te_bits_of_float(x[i]) & 0x7fffffffu;
        max = u > max ? u : max;
    }
    return te_float_of_bits(max);
}
/* q[i] = x[i] inverse, rounded to nearest even: adding 1.5 2^23 rounds to an integer, which is then in the low bits.
 * All products are at most 127.5 in magnitude. */
TE_API void te__activations_round(int8_t *q, const float *x, int n, float inverse) {
    for (int i = 0; i < n; i++) {
        const float scaled = x[i] * inverse, rounded = scaled + 12582912.0f;
        q[i] = (int8_t)(int32_t)(te_bits_of_float(rounded) - 0x4b400000u);
    }
}
/* Set the sums of the group of 32 number `at`. Returns the sum. */
TE_API int te__activations_sums(te__activations *a, int64_t at) {
    int sum[2] = {0, 0};
    for (int i = 0; i < TE__GROUP; i++) sum[i / 16] += a->q[at * TE__GROUP + i];
    a->sums[2 * at] = (int16_t)sum[0], a->sums[2 * at + 1] = (int16_t)sum[1];
    a->minus_sum[at] = -(sum[0] + sum[1]), a->group_sums[at] = (int16_t)(sum[0] + sum[1]);
    return sum[0] + sum[1];
}
/* Round the block of a->block activations x that begins with group number `at`. */
TE_API void te__activations_block(te__activations *a, const float *x, int64_t at) {
    const int block = a->block;
    const float amax = te__activations_amax(x, block);
    const int finite = amax < INFINITY;
    float d = finite ? amax / 127.0f : NAN, inverse = finite && amax > 0.0f ? 127.0f / amax : 0.0f;
    if (!(inverse < INFINITY)) inverse = 0.0f, d = finite ? 0.0f : d; /* the largest magnitude is below 2^-121 */
    if (block > TE__GROUP && inverse > 0.0f) { /* in q8_K the value of the largest magnitude becomes -127 */
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
/* Each block rounds one row. */
TE_API void te__activations_body(const te__activations_args *args, te_block b) {
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
TE_KERNEL(te__activations_quantize, 1, te__activations_args, te__activations_body(te_args, te_at))

/* Round x [m, k] to a. */
TE_API te_status te__activations_of(const te__activations *a, const void *x, te_dtype dtype, te_context *ctx) {
    te__activations_args args;
    args.a = *a, args.x = x, args.dtype = dtype;
    return te__activations_quantize_launch(ctx, te__grid_of(a->m, 1), &args);
}

#endif
#endif
