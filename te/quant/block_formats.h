/* block_formats.h -- weights of 4 to 8 bits in blocks: the formats of GGUF files, byte for byte, and those of GPTQ, AWQ
 * and MXFP4 checkpoints; conversions from and to float, and te_quantized_weight, a weight whose rows are in these
 * formats.
 *
 * Do this:
 *     te_dequantize_row(y, blocks, 768, TE_BLOCK_q4_k);            // the 768 values of a row
 *     const te_weight_part part = {mapped, TE_BLOCK_q8_0, 3072};   // 3072 rows, where they lie in a mapped file
 *     const te_quantized_weight weight = {&part, 1};
 *     TE_TRY(te_use_quantized(&m.fc1.weight, &weight, &ctx));      // te/plan/bind.h; both structs stay where they are
 *
 * A row consists of blocks of 32 or 256 values. q8_0, q4_0 and q5_0: value = d * q, with an integer q of 8, 4 or 5
 * bits, and d in f16. q4_1 and q5_1: value = d * q + m. The k-quants have blocks of 256 values in groups, and each
 * group has a scale of its own. q4_k and q5_k: value = d * scale * q - dmin * min, with scale and min of 6 bits for 32
 * values; q6_k: value = d * scale * q, with a scale of 8 bits for 16 values. The names of the int4 formats contain the
 * number of values of a block: int4 has value = d * (q - 8), int4z has value = d * (q - z) with an integer z, the zero
 * point, of each block. int4 in blocks of 32 is q4_0. int8 has one scale for each row. All values are exact in f32, or
 * are rounded once.
 *
 * Source: ggml-common.h and ggml-quants.c of llama.cpp, and the Python package gguf, whose values tests/quant_gguf.sh
 * compares bit by bit; mxfp4: OCP Microscaling Formats (MX) v1.0. te/io/quantized_file.h reads GPTQ and AWQ.
 */
#ifndef TE_BLOCK_FORMATS_H
#define TE_BLOCK_FORMATS_H

#include <math.h> /* fabsf, nearbyintf */

#include "../core/dtype.h" /* TE_BLOCK_FORMATS, te_block_format, te_float_of_f16 */

enum {
    TE_BLOCK_MAX_VALUES = 256, /* the largest number of values of a block */
    TE_BLOCK_MAX_GROUPS = 16,  /* the largest number of groups of a block (te__block_group) */
    TE_BLOCK_ROW_SCALE = 4     /* bytes of the scale behind each row of int8 */
};

/* Returns the name of a format, such as "q4_k", or "unknown" if f is not a format. */
TE_API const char *te_block_name(te_block_format f) {
#define TE_BLOCK_NAME(token, values, bytes) #token,
    static const char *const names[] = {TE_BLOCK_FORMATS(TE_BLOCK_NAME)};
#undef TE_BLOCK_NAME
    return (unsigned)f < (unsigned)TE_BLOCK_COUNT ? names[f] : "unknown";
}
/* te_block_values returns the number of values of a block, te_block_bytes its size in bytes. Both return 0 if f is not
 * a format. */
TE_API int te_block_values(te_block_format f) {
#define TE_BLOCK_VALUES(token, values, bytes) values,
    static const short count[] = {TE_BLOCK_FORMATS(TE_BLOCK_VALUES)};
#undef TE_BLOCK_VALUES
    return (unsigned)f < (unsigned)TE_BLOCK_COUNT ? count[f] : 0;
}
TE_API int te_block_bytes(te_block_format f) {
#define TE_BLOCK_BYTES(token, values, bytes) bytes,
    static const short count[] = {TE_BLOCK_FORMATS(TE_BLOCK_BYTES)};
#undef TE_BLOCK_BYTES
    return (unsigned)f < (unsigned)TE_BLOCK_COUNT ? count[f] : 0;
}
/* Returns the size in bytes of the blocks that contain the first `cols` values of a row. */
TE_API size_t te__blocks_bytes(te_block_format f, int64_t cols) {
    const int values = te_block_values(f);
    return values && cols > 0 ? (size_t)(cols / values) * (size_t)te_block_bytes(f) : 0;
}
/* Returns the size in bytes of a row of `cols` values; cols must be a multiple of te_block_values. */
TE_API size_t te_block_row_bytes(te_block_format f, int64_t cols) {
    return te__blocks_bytes(f, cols) + (f == TE_BLOCK_int8 && cols > 0 ? TE_BLOCK_ROW_SCALE : 0);
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* Consecutive rows of a weight that are all in the same format and lie in host memory, such as a tensor of a GGUF file.
 * `data` need not be aligned. */
typedef struct te_weight_part {
    const void *data;
    te_block_format format;
    int64_t rows;
} te_weight_part;
/* A weight [rows, cols]: the rows of part[0], then those of part[1] and so on. For example, the tensors q, k and v of a
 * file are the three parts of a packed qkv weight, and the three may have different formats. */
typedef struct te_quantized_weight {
    const te_weight_part *part;
    int parts;
} te_quantized_weight;

/* ---- the codes of a block ---------------------------------------------------------------------------------------- */

/* An unpacked block: value i = scale[i / group] * q[i] + offset[i / group], where group is te__block_group. In formats
 * without offsets each offset is -0.0, because x + -0.0 is x for every x, also for x = -0.0. */
typedef struct te__block_codes {
    int8_t q[TE_BLOCK_MAX_VALUES];
    float scale[TE_BLOCK_MAX_GROUPS], offset[TE_BLOCK_MAX_GROUPS];
} te__block_codes;

TE_API uint16_t te__read_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
TE_API float te__read_f16(const uint8_t *p) { return te_float_of_f16(te__read_u16(p)); }
TE_API uint32_t te__read_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
TE_API float te__read_f32(const uint8_t *p) { return te_float_of_bits(te__read_u32(p)); }
/* Returns the scale of a row in int8. The scale is stored behind the row's `cols` codes. Returns 1 for all other
 * formats. */
TE_API float te__row_scale(const void *row, int64_t cols, te_block_format f) {
    return f == TE_BLOCK_int8 ? te__read_f32((const uint8_t *)row + cols) : 1.0f;
}
/* te__block_has_zero_point returns whether the format is int4z, whose blocks have zero points. te__block_is_int4
 * returns whether the format is int4z, or int4 in blocks of 64 or 128. */
TE_BOTH int te__block_has_zero_point(te_block_format f) {
    return f == TE_BLOCK_int4z_32 || f == TE_BLOCK_int4z_64 || f == TE_BLOCK_int4z_128;
}
TE_BOTH int te__block_is_int4(te_block_format f) {
    return f == TE_BLOCK_int4_64 || f == TE_BLOCK_int4_128 || te__block_has_zero_point(f);
}
/* Returns half of the E8M0 scale e: half of 2^(e - 127), or NaN for e = 255. The result is multiplied by the integers
 * of te__e2m1_twice, which are twice the values. */
TE_API float te__half_of_e8m0(uint8_t e) {
    return te_float_of_bits(e == 255 ? 0x7fc00000u : e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}
/* Returns an array with twice the value of each of the 16 E2M1 numbers. */
TE_API const int8_t *te__e2m1_twice(void) {
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return twice;
}
/* Returns the number of values of a group. The values of a group have a common scale. A block of 64 or 128 values is
 * divided into groups of 32 with equal scales. */
TE_API int te__block_group(te_block_format f) { return f == TE_BLOCK_q6_k ? 16 : te_block_values(f) > 1 ? 32 : 1; }
/* Return whether the format has offsets besides scales. */
TE_API int te__block_has_offset(te_block_format f) {
    return f == TE_BLOCK_q4_1 || f == TE_BLOCK_q5_1 || f == TE_BLOCK_q4_k || f == TE_BLOCK_q5_k;
}
/* Whether the format is f32, f16 or bf16. */
TE_API int te__block_is_float(te_block_format f) {
    return f == TE_BLOCK_f32 || f == TE_BLOCK_f16 || f == TE_BLOCK_bf16;
}

/* Unpack the 32 codes of q4_0, q4_1, q5_0 or q5_1. low: the low 4 bits; high: the highest bits, null if codes have 4
 * bits. zero: the number that is subtracted from each stored code to get q. */
TE_API void te__codes_32(int8_t *q, const uint8_t *low, const uint8_t *high, int zero) {
    const uint32_t bits = high ? te__read_u32(high) : 0;
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)(((low[i] & 15) | (int)((bits >> i & 1u) << 4)) - zero);
        q[i + 16] = (int8_t)((low[i] >> 4 | (int)((bits >> (i + 16) & 1u) << 4)) - zero);
    }
}
/* Unpack the eight scales and eight mins of q4_k and q5_k, 6 bits each, from 12 bytes. Bytes 0 to 3 have scales 0 to 3
 * in their low 6 bits, and bytes 4 to 7 have mins 0 to 3. Byte 8 + i has the low 4 bits of scale 4 + i and of min
 * 4 + i. The 2 high bits of byte i are the 2 high bits of scale 4 + i, and the 2 high bits of byte 4 + i are those of
 * min 4 + i. */
TE_API void te__scales_k(uint8_t scale[8], uint8_t min[8], const uint8_t packed[12]) {
    for (int i = 0; i < 4; i++) {
        scale[i] = packed[i] & 63, min[i] = packed[i + 4] & 63;
        scale[i + 4] = (uint8_t)((packed[i + 8] & 15) | packed[i] >> 6 << 4);
        min[i + 4] = (uint8_t)(packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4);
    }
}
/* Unpack the block b of q4_k or q5_k. low: the low 4 bits of its codes; high: null for q4_k; for q5_k, bit g of high[i]
 * is the highest bit of code i of group g. */
TE_API void te__codes_k(te__block_codes *c, const uint8_t *b, const uint8_t *high, const uint8_t *low) {
    uint8_t scale[8], min[8];
    const float d = te__read_f16(b), dmin = te__read_f16(b + 2);
    te__scales_k(scale, min, b + 4);
    for (int g = 0; g < 8; g++) {
        c->scale[g] = d * (float)scale[g], c->offset[g] = -(dmin * (float)min[g]);
        for (int i = 0; i < 32; i++) {
            const int nibble = low[g / 2 * 32 + i] >> g % 2 * 4 & 15;
            c->q[g * 32 + i] = (int8_t)(nibble | (high ? (high[i] >> g & 1) << 4 : 0));
        }
    }
}
TE_API void te__codes_q6_k(te__block_codes *c, const uint8_t *b) {
    const uint8_t *low = b, *high = b + 128, *scale = b + 192;
    const float d = te__read_f16(b + 208);
    for (int g = 0; g < 16; g++) {
        /* each half of the block has 4 rows of 32 values */
        const int half = g / 8, row = g % 8 / 2, first = g % 2 * 16;
        c->scale[g] = d * (float)(int8_t)scale[g], c->offset[g] = -0.0f;
        for (int i = 0; i < 16; i++) {
            const int nibble = low[half * 64 + row % 2 * 32 + first + i] >> row / 2 * 4 & 15;
            c->q[g * 16 + i] = (int8_t)((nibble | (high[half * 32 + first + i] >> row * 2 & 3) << 4) - 32);
        }
    }
}
TE_API void te__codes_int4(te__block_codes *c, const uint8_t *b, te_block_format f) {
    const int affine = te__block_has_zero_point(f), zero = affine ? b[2] : 8;
    for (int g = 0; g < te_block_values(f) / 32; g++) {
        c->scale[g] = te__read_f16(b), c->offset[g] = -0.0f;
        te__codes_32(c->q + 32 * g, b + (affine ? 4 : 2) + 16 * g, 0, zero);
    }
}
TE_API void te__codes_mxfp4(te__block_codes *c, const uint8_t *b) {
    c->scale[0] = te__half_of_e8m0(b[0]), c->offset[0] = -0.0f;
    te__codes_32(c->q, b + 1, 0, 0);
    for (int i = 0; i < 32; i++) c->q[i] = te__e2m1_twice()[c->q[i]];
}
/* Unpack the block at b. f: any format with blocks of 32 values or more. In int8, whose scale is stored once for each
 * row, the scale of the unpacked block is 1. */
TE_API void te__block_unpack(te__block_codes *c, const uint8_t *b, te_block_format f) {
    if (te__block_is_int4(f))
        te__codes_int4(c, b, f);
    else if (f == TE_BLOCK_mxfp4)
        te__codes_mxfp4(c, b);
    else if (f == TE_BLOCK_int8)
        c->scale[0] = 1.0f, c->offset[0] = -0.0f, memcpy(c->q, b, 32);
    else if (f == TE_BLOCK_q6_k)
        te__codes_q6_k(c, b);
    else if (f == TE_BLOCK_q5_k) te__codes_k(c, b, b + 16, b + 48);
    else if (f == TE_BLOCK_q4_k) te__codes_k(c, b, 0, b + 16);
    else {
        c->scale[0] = te__read_f16(b), c->offset[0] = te__block_has_offset(f) ? te__read_f16(b + 2) : -0.0f;
        switch ((int)f) {
        case TE_BLOCK_q8_0: memcpy(c->q, b + 2, 32); break;
        case TE_BLOCK_q4_0: te__codes_32(c->q, b + 2, 0, 8); break;
        case TE_BLOCK_q4_1: te__codes_32(c->q, b + 4, 0, 0); break;
        case TE_BLOCK_q5_0: te__codes_32(c->q, b + 6, b + 2, 16); break;
        default: te__codes_32(c->q, b + 8, b + 4, 0); break;
        }
    }
}

/* ---- to float ---------------------------------------------------------------------------------------------------- */

/* Convert values k to k + n - 1 of a row of `cols` values, which begins at `row`, to y[n]. k and n must be multiples of
 * te_block_values(f). */
TE_API void te__dequantize_columns(float *y, const void *row, int64_t cols, int64_t k, int64_t n, te_block_format f) {
    const uint8_t *b = (const uint8_t *)row + te__blocks_bytes(f, k);
    const int values = te_block_values(f), group = te__block_group(f), bytes = te_block_bytes(f);
    const float of_row = te__row_scale(row, cols, f);
    te__block_codes c;
    if (f == TE_BLOCK_f32)
        memcpy(y, b, (size_t)te_max(n, 0) * sizeof *y);
    else if (f == TE_BLOCK_f16)
        for (int64_t i = 0; i < n; i++) y[i] = te__read_f16(b + 2 * i);
    else if (f == TE_BLOCK_bf16)
        for (int64_t i = 0; i < n; i++) y[i] = te_float_of_bf16(te__read_u16(b + 2 * i));
    if (values < 32) return;
    for (int64_t i = 0; i < n; i += values, b += bytes) {
        te__block_unpack(&c, b, f);
        for (int v = 0; v < values; v++) y[i + v] = of_row * c.scale[v / group] * (float)c.q[v] + c.offset[v / group];
    }
}
/* Convert the row of n values at x to y[n]. x need not be aligned; n must be a multiple of te_block_values(f). x may
 * also be any n / te_block_values(f) consecutive blocks, except in int8, whose scale is stored behind the whole row. */
TE_API void te_dequantize_row(float *y, const void *x, int64_t n, te_block_format f) {
    if (n > 0) te__dequantize_columns(y, x, n, 0, n, f);
}
/* Return the part of w that contains the weight's row *row, and set *row to the index of this row in the part. Returns
 * null if w has fewer rows. */
TE_API const te_weight_part *te__part_of_row(const te_quantized_weight *w, int64_t *row) {
    for (int i = 0; i < w->parts; i++) {
        if (*row < w->part[i].rows) return &w->part[i];
        *row -= w->part[i].rows;
    }
    return 0;
}

/* ---- from float -------------------------------------------------------------------------------------------------- */

TE_API void te__write_f16(uint8_t *p, float v) {
    const uint16_t h = te_f16_of_float(v);
    p[0] = (uint8_t)(h & 255), p[1] = (uint8_t)(h >> 8);
}
/* Return the value of the largest magnitude, with its sign; if several values have this magnitude, the first. */
TE_API float te__largest_of(const float *x, int n) {
    float largest = 0.0f;
    for (int i = 0; i < n; i++) largest = fabsf(x[i]) > fabsf(largest) ? x[i] : largest;
    return largest;
}
/* Return the code of v: v plus an integer offset, rounded to nearest and clamped to [0, max]. The caller passes
 * bias = offset + 0.5, and v + bias is truncated, as in the formats' reference (ggml). */
TE_API int te__code_of(float v, float bias, int max) {
    const float t = v + bias;
    return t >= (float)max ? max : t > 0.0f ? (int)t : 0;
}
TE_API void te__pack_32(uint8_t *low, uint8_t *high, const uint8_t *q) {
    uint32_t bits = 0;
    for (int i = 0; i < 16; i++) low[i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
    for (int i = 0; i < 32; i++) bits |= (uint32_t)(q[i] >> 4 & 1) << i;
    for (int i = 0; high && i < 4; i++) high[i] = (uint8_t)(bits >> 8 * i & 255);
}
/* Quantize a block of `values` values to q4_0, q5_0 or int4. The scale d is chosen such that the value of the largest
 * magnitude gets the lowest code. */
TE_API void te__quantize_symmetric(uint8_t *y, const float *x, int bits, int values) {
    uint8_t q[TE_BLOCK_MAX_VALUES];
    const int half = 1 << (bits - 1);
    const float d = te__largest_of(x, values) / (float)-half, inverse = d != 0.0f ? 1.0f / d : 0.0f;
    for (int i = 0; i < values; i++) {
        const float scaled = x[i] * inverse;
        q[i] = (uint8_t)te__code_of(scaled, (float)half + 0.5f, 2 * half - 1);
    }
    te__write_f16(y, d);
    for (int i = 0; i < values; i += 32) te__pack_32(y + (bits == 5 ? 6 : 2) + i / 2, bits == 5 ? y + 2 : 0, q + i);
}
/* Quantize a block to int4z. The scale d is chosen such that the codes span all values and 0; the zero point z is the
 * code of 0, so that zeros stay exact. */
TE_API void te__quantize_int4z(uint8_t *y, const float *x, int values) {
    uint8_t q[TE_BLOCK_MAX_VALUES];
    float low = 0.0f, high = 0.0f;
    for (int i = 0; i < values; i++) low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
    te__write_f16(y, (high - low) / 15.0f);
    const float d = te__read_f16(y), inverse = d > 0.0f ? 1.0f / d : 0.0f;
    const int zero = te__code_of(-low * inverse, 0.5f, 15);
    for (int i = 0; i < values; i++) q[i] = (uint8_t)te__code_of(x[i] * inverse, (float)zero + 0.5f, 15);
    y[2] = (uint8_t)zero, y[3] = 0;
    for (int i = 0; i < values; i += 32) te__pack_32(y + 4 + i / 2, 0, q + i);
}
/* Quantize a block to mxfp4. The scale is the power of two for which the largest magnitude is 4 to 8 times the scale,
 * as the MX specification says. Each value is divided by the scale and rounded to the nearest E2M1 number, to the one
 * with the even code in a tie; magnitudes above 6, the largest E2M1 number, become 6. */
TE_API void te__quantize_mxfp4(uint8_t *y, const float *x) {
    static const float between[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f}; /* of codes i and i + 1 */
    uint8_t q[32];
    int exponent;
    const float amax = fabsf(te__largest_of(x, 32));
    (void)frexpf(amax, &exponent); /* 2^(exponent - 1) <= amax < 2^exponent */
    const int e = amax > 0.0f ? (int)te_max(0, te_min(254, exponent - 3 + 127)) : 0;
    for (int i = 0; i < 32; i++) {
        const float v = fabsf(ldexpf(x[i], 127 - e));
        int code = 0;
        while (code < 7 && (v > between[code] || (v == between[code] && code % 2 == 1))) code++;
        q[i] = (uint8_t)(code | (x[i] < 0.0f && code ? 8 : 0));
    }
    y[0] = (uint8_t)e;
    te__pack_32(y + 1, 0, q);
}
/* Quantize a row of n values to int8: the largest magnitude becomes 127. */
TE_API void te__quantize_int8(uint8_t *y, const float *x, int64_t n) {
    float amax = 0.0f;
    for (int64_t i = 0; i < n; i++) amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    const float d = amax / 127.0f, inverse = amax > 0.0f && 127.0f / amax < INFINITY ? 127.0f / amax : 0.0f;
    const uint32_t bits = te_bits_of_float(inverse > 0.0f ? d : 0.0f);
    for (int64_t i = 0; i < n; i++) y[i] = (uint8_t)(int8_t)nearbyintf(x[i] * inverse);
    for (int i = 0; i < 4; i++) y[n + i] = (uint8_t)(bits >> 8 * i & 255);
}
/* Quantize a block to q4_1 or q5_1: the smallest value gets code 0, and the largest value gets the highest code. */
TE_API void te__quantize_affine(uint8_t *y, const float *x, int bits) {
    uint8_t q[32];
    const int max = (1 << bits) - 1;
    float low = x[0], high = x[0];
    for (int i = 1; i < 32; i++) low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
    const float d = (high - low) / (float)max, inverse = d != 0.0f ? 1.0f / d : 0.0f;
    for (int i = 0; i < 32; i++) {
        const float scaled = (x[i] - low) * inverse;
        q[i] = (uint8_t)te__code_of(scaled, 0.5f, max);
    }
    te__write_f16(y, d), te__write_f16(y + 2, low);
    te__pack_32(y + (bits == 5 ? 8 : 4), bits == 5 ? y + 4 : 0, q);
}
TE_API void te__quantize_q8_0(uint8_t *y, const float *x) {
    const float d = fabsf(te__largest_of(x, 32)) / 127.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
    te__write_f16(y, d);
    for (int i = 0; i < 32; i++) y[2 + i] = (uint8_t)(int8_t)roundf(x[i] * inverse);
}
/* Compute the scale and the min of a group of a k-quant, in which x is approximated by scale * q - min, with q from 0
 * to max and min >= 0. The function tries nine scales, from 0.9 to 1.1 times (largest - smallest) / max, and takes the
 * one with the least squared error. */
TE_API void te__group_search(float *scale, float *min, const float *x, int max) {
    float low = 0.0f, high = x[0], best = INFINITY;
    for (int i = 0; i < 32; i++) low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
    *min = -low, *scale = 0.0f;
    for (int step = -4; step <= 4 && high > low; step++) {
        const float s = (high - low) / (float)max * (1.0f + 0.025f * (float)step);
        float error = 0.0f;
        for (int i = 0; i < 32; i++) {
            const float e = s * (float)te__code_of((x[i] - low) / s, 0.5f, max) + low - x[i];
            error += e * e;
        }
        if (error < best) best = error, *scale = s;
    }
}
/* Quantize a block to q4_k or q5_k: first find the scale and min of each group, then round both to 6 bits, and then
 * compute the codes for the rounded scale and min. */
TE_API void te__quantize_k(uint8_t *y, const float *x, int bits) {
    const int max = (1 << bits) - 1;
    float scale[8], min[8], max_scale = 0.0f, max_min = 0.0f;
    uint8_t s[8], m[8], *high = y + 16, *low = bits == 5 ? y + 48 : y + 16;
    for (int g = 0; g < 8; g++) {
        te__group_search(&scale[g], &min[g], x + 32 * g, max);
        max_scale = scale[g] > max_scale ? scale[g] : max_scale, max_min = min[g] > max_min ? min[g] : max_min;
    }
    te__write_f16(y, max_scale / 63.0f), te__write_f16(y + 2, max_min / 63.0f);
    const float d = te__read_f16(y), dmin = te__read_f16(y + 2);
    for (int g = 0; g < 8; g++) {
        s[g] = (uint8_t)te__code_of(d > 0.0f ? scale[g] / d : 0.0f, 0.5f, 63);
        m[g] = (uint8_t)te__code_of(dmin > 0.0f ? min[g] / dmin : 0.0f, 0.5f, 63);
    }
    for (int i = 0; i < 4; i++) {
        y[4 + i] = (uint8_t)(s[i] | s[i + 4] >> 4 << 6), y[8 + i] = (uint8_t)(m[i] | m[i + 4] >> 4 << 6);
        y[12 + i] = (uint8_t)((s[i + 4] & 15) | (m[i + 4] & 15) << 4);
    }
    memset(y + 16, 0, (size_t)(bits == 5 ? 160 : 128));
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 32; i++) {
            const float ds = d * (float)s[g], v = x[32 * g + i] + dmin * (float)m[g];
            const int q = te__code_of(ds > 0.0f ? v / ds : 0.0f, 0.5f, max);
            low[g / 2 * 32 + i] |= (uint8_t)((q & 15) << g % 2 * 4);
            if (bits == 5) high[i] |= (uint8_t)(q >> 4 << g);
        }
}
TE_API void te__quantize_q6_k(uint8_t *y, const float *x) {
    float scale[16], largest;
    for (int g = 0; g < 16; g++) scale[g] = te__largest_of(x + 16 * g, 16) / -32.0f;
    largest = te__largest_of(scale, 16);
    te__write_f16(y + 208, largest / -128.0f);
    const float d = te__read_f16(y + 208);
    memset(y, 0, 192);
    for (int g = 0; g < 16; g++) {
        const int half = g / 8, row = g % 8 / 2, first = g % 2 * 16;
        const int s = te__code_of(d != 0.0f ? scale[g] / d : 0.0f, 128.5f, 255) - 128;
        const float ds = d * (float)s;
        y[192 + g] = (uint8_t)(int8_t)s;
        for (int i = 0; i < 16; i++) {
            const int q = te__code_of(ds != 0.0f ? x[16 * g + i] / ds : 0.0f, 32.5f, 63);
            y[half * 64 + row % 2 * 32 + first + i] |= (uint8_t)((q & 15) << row / 2 * 4);
            y[128 + half * 32 + first + i] |= (uint8_t)(q >> 4 << row * 2);
        }
    }
}
/* Quantize n finite values, a multiple of te_block_values, to blocks at y. The formats of 32 values are rounded to
 * nearest exactly as the Python package gguf and ggml's reference do. The k-quants, which that package does not write,
 * are rounded to nearest with each group's scale found by a search (te__group_search) or, in q6_k, from the group's
 * largest value; llama.cpp's own search finds somewhat better scales. int4 is rounded as q4_0. Because d is in f16,
 * values of very large magnitude cannot be represented: in q8_0, 65504 * 127 or more. */
TE_API void te_quantize_row(void *y, const float *x, int64_t n, te_block_format f) {
    uint8_t *b = (uint8_t *)y;
    const int values = te_block_values(f), bytes = te_block_bytes(f);
    if (f == TE_BLOCK_int8) te__quantize_int8(b, x, n);
    for (int64_t i = 0; bytes && f != TE_BLOCK_int8 && i < n; i += values, b += bytes) {
        if (te__block_is_int4(f)) {
            if (te__block_has_zero_point(f))
                te__quantize_int4z(b, x + i, values);
            else
                te__quantize_symmetric(b, x + i, 4, values);
            continue;
        }
        switch ((int)f) {
        case TE_BLOCK_f32: memcpy(b, x + i, sizeof *x); break;
        case TE_BLOCK_f16: te__write_f16(b, x[i]); break;
        case TE_BLOCK_bf16: {
            const uint16_t h = te_bf16_of_float(x[i]);
            b[0] = (uint8_t)(h & 255), b[1] = (uint8_t)(h >> 8);
            break;
        }
        case TE_BLOCK_q8_0: te__quantize_q8_0(b, x + i); break;
        case TE_BLOCK_q4_0: te__quantize_symmetric(b, x + i, 4, 32); break;
        case TE_BLOCK_q5_0: te__quantize_symmetric(b, x + i, 5, 32); break;
        case TE_BLOCK_q4_1: te__quantize_affine(b, x + i, 4); break;
        case TE_BLOCK_q5_1: te__quantize_affine(b, x + i, 5); break;
        case TE_BLOCK_q4_k: te__quantize_k(b, x + i, 4); break;
        case TE_BLOCK_q5_k: te__quantize_k(b, x + i, 5); break;
        case TE_BLOCK_mxfp4: te__quantize_mxfp4(b, x + i); break;
        default: te__quantize_q6_k(b, x + i); break;
        }
    }
}

#endif
