/* repacked_blocks.h -- quantized weights for a GPU: the contents of the blocks of block_formats.h, in an order that
 * suits the tensor cores and in the same number of bytes.
 *
 * Do this, where `file` is a te_quantized_weight whose parts lie in host memory, for example in a mapped file:
 *     TE_TRY(te_allocate(&ctx, &memory, te_repacked_bytes(&file, cols)));
 *     te_weight_part part[PARTS];                                        // stays where it is
 *     const te_quantized_weight weight = {part, PARTS};                  // stays, too
 *     TE_TRY(te_repack_weight(part, memory, &file, cols, &ctx));
 *     TE_TRY(te_use_quantized(&m.fc1.weight, &weight, &ctx));            // te/plan/bind.h
 *
 * Most blocks are aligned to one or two bytes only. Therefore 16 blocks, from 16 rows and the same columns, are
 * repacked into a cell of the same number of bytes. A cell has three parts, from which each thread of a warp loads its
 * operands of mma.m16n8k16 as aligned words or vectors:
 *     low     four bits of each code: 256 bytes for each group of 32 columns. In q8_0 and int8, eight bits: 512 bytes.
 *             In int4 with blocks of 64 or 128, two groups are stored together, and each lane has 16 bytes of them.
 *     high    the other bits of each code: for each group 64 bytes (5-bit codes) or 128 bytes (6-bit codes)
 *     scales  all other bytes of the blocks; in formats of 32 to 128 values, in the order of rows 0, 8, 1, 9, 2, ..
 * The cells of a weight part are in row-major order. The rows of a part are padded with zeros to a multiple of 16. In
 * int8, the scales of 16 rows, in f32, are stored behind the cells of these rows.
 *
 * Each lane of a warp loads 16 codes of a group, eight from each of rows r and r + 8, where r = lane / 4. With
 * t = lane % 4, these are columns 8 * t to 8 * t + 7 or, in q6_k, 4 * t to 4 * t + 3 and 16 + 4 * t to 16 + 4 * t + 3.
 * Codes i and i + 1 of the eight, for even i, are stored 16 bits apart, so that one mask extracts both.
 */
#ifndef TE_REPACKED_BLOCKS_H
#define TE_REPACKED_BLOCKS_H

#include <stdlib.h> /* malloc */

#include "../core/target.h" /* te_copy */
#include "block_formats.h"  /* te_weight_part */

enum {
    TE_CELL_ROWS = 16,
    TE_CELL_GROUP = 32,           /* columns of a group */
    TE_REPACKED_HEADER = 128,     /* bytes in front of a part's cells */
    TE_REPACKED_ALIGN = 256,      /* each part begins at a multiple of this many bytes in the memory of a weight */
    TE_REPACKED_STAGING = 4 << 20 /* bytes that te_repack_weight repacks in host memory before it copies them */
};

/* The header of each repacked part in target memory. te_use_quantized reads it to check that the memory was repacked
 * from a part with this format and these sizes. */
typedef struct te__repacked_header {
    char mark[16];
    int32_t format, reserved;
    int64_t rows, cols;
} te__repacked_header;

/* Return whether a format can be repacked; f32, f16 and bf16 cannot. */
TE_API int te__can_repack(te_block_format f) { return te_block_values(f) > 1; }
TE_BOTH int te__cell_is_8bit(te_block_format f) { return f == TE_BLOCK_q8_0 || f == TE_BLOCK_int8; }
/* Returns the number that is added to the codes q of the block at b (te__block_codes), so that a cell stores no
 * negative codes. */
TE_API int te__cell_zero(const uint8_t *b, te_block_format f) {
    if (te__block_has_zero_point(f)) return b[2];
    return te__cell_is_8bit(f)                          ? 128
           : f == TE_BLOCK_q5_0                         ? 16
           : f == TE_BLOCK_q6_k                         ? 32
           : f == TE_BLOCK_q4_0 || te__block_is_int4(f) ? 8
                                                        : 0;
}
/* te__cell_low_bytes returns how many bytes of a cell hold the low bits of the codes of a group (16 rows by 32
 * columns). te__cell_high_bytes returns how many bytes hold the high bits of these codes. */
TE_BOTH int te__cell_low_bytes(te_block_format f) { return te__cell_is_8bit(f) ? 512 : 256; }
TE_BOTH int te__cell_high_bytes(te_block_format f) {
    return f == TE_BLOCK_q6_k ? 128 : f == TE_BLOCK_q5_0 || f == TE_BLOCK_q5_1 || f == TE_BLOCK_q5_k ? 64 : 0;
}

/* ---- repacking --------------------------------------------------------------------------------------------------- */

/* te__cell_pairs_groups returns whether the low bits of two groups are stored together; te__cell_low_at returns where
 * the low bits of group `group` begin in a cell, in bytes; te__cell_low_lane returns the distance from the bytes of one
 * lane to the bytes of the next lane. */
TE_BOTH int te__cell_pairs_groups(te_block_format f) { return te__block_is_int4(f) && f != TE_BLOCK_int4z_32; }
TE_BOTH int te__cell_low_at(te_block_format f, int group) {
    return te__cell_pairs_groups(f) ? group / 2 * 512 + group % 2 * 8 : group * te__cell_low_bytes(f);
}
TE_BOTH int te__cell_low_lane(te_block_format f) { return te__cell_is_8bit(f) || te__cell_pairs_groups(f) ? 16 : 8; }

/* Store an E2M1 number in the 16 bits at `half`, which hold four such numbers. number: its index among the four; twice:
 * two times its value. Number 0 has its sign in bit 15, which is the sign bit of a bf16, and its other three bits in
 * bits 8 to 6, which are the two lowest exponent bits and the highest mantissa bit of a bf16. If all other bits are
 * masked out, the 16 bits are thus a bf16 of 2^-126 times the value. Numbers 1 to 3 are stored such that te__cell_mxfp4
 * needs as few shifts as possible to move their bits to these positions. */
TE_API void te__cell_store_mxfp4(uint8_t *half, int number, int twice) {
    static const uint8_t sign[4] = {15, 12, 14, 13}, rest[4] = {6, 3, 0, 9};
    const int magnitude = twice < 0 ? -twice : twice;
    const int code = magnitude <= 4 ? magnitude : magnitude == 6 ? 5 : magnitude == 8 ? 6 : 7;
    const int bits = (twice < 0) << sign[number] | code << rest[number];
    half[0] |= (uint8_t)(bits & 255), half[1] |= (uint8_t)(bits >> 8);
}
/* Store the code of row `row` and column `col` of a group. low, high: the addresses of the group's two parts. Each byte
 * of `low` has four bits of two codes, one from each of the lane's two rows; the code of the first row is in the low
 * half of the byte. If codes have five or six bits, `low` has the lowest four bits of a code of the first row, but the
 * highest four bits of a code of the second row; `high` has the remaining bits. With this choice the bits of a code are
 * adjacent when te__cell_codes merges `low` and `high`. */
TE_API void te__cell_store(uint8_t *low, uint8_t *high, int row, int col, int code, te_block_format f) {
    const int halves = f == TE_BLOCK_q6_k, upper = row / 8;
    const int lane = row % 8 * 4 + (halves ? col / 4 % 4 : col / 8), i = halves ? col % 4 + col / 16 * 4 : col % 8;
    const int more = f == TE_BLOCK_q6_k ? 2 : te__cell_high_bytes(f) ? 1 : 0; /* bits of a code besides four */
    const int four = upper ? code >> more : code & 15, rest = upper ? code & ((1 << more) - 1) : code >> 4;
    low += lane * te__cell_low_lane(f);
    if (te__cell_is_8bit(f)) {
        low[i / 2 * 4 + i % 2 * 2 + upper] = (uint8_t)code;
        return;
    }
    if (f == TE_BLOCK_mxfp4) {
        te__cell_store_mxfp4(low + i / 4 * 4 + i % 2 * 2, i / 2 % 2 * 2 + upper, code);
        return;
    }
    low[i / 4 * 4 + i % 2 * 2 + i / 2 % 2] |= (uint8_t)(four << upper * 4);
    if (more == 2) high[lane * 4 + i % 2 * 2 + i / 4] |= (uint8_t)(rest << (i / 2 % 2 * 4 + 2 - 2 * upper));
    if (more == 1) high[lane * 2 + i % 2] |= (uint8_t)(rest << (i / 2 * 2 + 1 - upper));
}
/* Store the scales of row `row` of a cell in q4_k or q5_k; b: the block of this row. A cell first has, for each pair of
 * rows r and r + 8, 8 bytes with d and dmin of both rows. Then each lane has 4 bytes with the low 4 bits of scales and
 * mins: for each of groups 2 * t and 2 * t + 1, where t = lane % 4, one byte with the mins and one byte with the scales
 * of the lane's two rows. At the end, each lane has 2 bytes with the high 2 bits, one byte for each of its two
 * groups. */
TE_API void te__cell_store_scales_k(uint8_t *scales, int row, const uint8_t *b) {
    uint8_t scale[8], min[8];
    const int upper = row / 8;
    te__scales_k(scale, min, b + 4);
    memcpy(scales + row % 8 * 8 + upper * 4, b, 4);
    for (int g = 0; g < 8; g++) {
        const int lane = row % 8 * 4 + g / 2;
        uint8_t *low = scales + 64 + lane * 4 + g % 2 * 2, *high = scales + 64 + 128 + lane * 2 + g % 2;
        low[0] |= (uint8_t)((min[g] & 15) << upper * 4), low[1] |= (uint8_t)((scale[g] & 15) << upper * 4);
        *high |= (uint8_t)(min[g] >> 4 << upper * 2 | scale[g] >> 4 << (4 + upper * 2));
    }
}
/* Copy the scales of block b, i.e. all its bytes that are not codes, to the place of row `row` among the scales of a
 * cell. */
TE_API void te__cell_store_scales(uint8_t *scales, int row, const uint8_t *b, te_block_format f) {
    const int paired = row % 8 * 2 + row / 8;
    switch ((int)f) {
    case TE_BLOCK_q8_0:
    case TE_BLOCK_q4_0:
    case TE_BLOCK_q5_0:
    case TE_BLOCK_int4_64:
    case TE_BLOCK_int4_128: memcpy(scales + paired * 2, b, 2); break;
    case TE_BLOCK_q4_1:
    case TE_BLOCK_q5_1:
    case TE_BLOCK_int4z_32:
    case TE_BLOCK_int4z_64:
    case TE_BLOCK_int4z_128: memcpy(scales + paired * 4, b, 4); break;
    case TE_BLOCK_mxfp4: scales[paired] = b[0]; break;
    case TE_BLOCK_int8: break; /* they lie behind the cells of the rows */
    case TE_BLOCK_q6_k:
        memcpy(scales + row * 16, b + 192, 16), memcpy(scales + TE_CELL_ROWS * 16 + row * 2, b + 208, 2);
        break;
    default: te__cell_store_scales_k(scales, row, b); break;
    }
}
/* Repack one block from each of at most 16 rows into a cell. b: the block of the first row; stride: the number of bytes
 * from one row to the next; rows: the number of rows. */
TE_API void te__repack_cell(uint8_t *cell, const uint8_t *b, size_t stride, int rows, te_block_format f) {
    const int groups = te_block_values(f) / TE_CELL_GROUP, low = te__cell_low_bytes(f), high = te__cell_high_bytes(f);
    te__block_codes c;
    memset(cell, 0, (size_t)(TE_CELL_ROWS * te_block_bytes(f)));
    for (int row = 0; row < rows; row++, b += stride) {
        const int zero = te__cell_zero(b, f);
        te__block_unpack(&c, b, f);
        for (int g = 0; g < groups; g++)
            for (int i = 0; i < TE_CELL_GROUP; i++)
                te__cell_store(cell + te__cell_low_at(f, g), cell + groups * low + g * high, row, i,
                               c.q[g * TE_CELL_GROUP + i] + zero, f);
        te__cell_store_scales(cell + groups * (low + high), row, b, f);
    }
}
/* Returns the size in bytes of the cells of a matrix [rows, cols]. */
TE_API size_t te__cells_bytes(int64_t rows, int64_t cols, te_block_format f) {
    return (size_t)te_round_up(rows, TE_CELL_ROWS) * te_block_row_bytes(f, cols);
}
/* Repack the matrix [rows, cols] at `from` into cells at `to`. */
TE_API void te__repack_rows(uint8_t *to, const uint8_t *from, int64_t rows, int64_t cols, te_block_format f) {
    const size_t stride = te_block_row_bytes(f, cols), block = (size_t)te_block_bytes(f);
    for (int64_t row = 0; row < rows; row += TE_CELL_ROWS) {
        const uint8_t *first = from + (size_t)row * stride;
        const int count = (int)te_min(TE_CELL_ROWS, rows - row);
        for (size_t at = 0; at < te__blocks_bytes(f, cols); at += block, to += TE_CELL_ROWS * block)
            te__repack_cell(to, first + at, stride, count, f);
        if (f != TE_BLOCK_int8) continue;
        memset(to, 0, (size_t)TE_CELL_ROWS * TE_BLOCK_ROW_SCALE);
        for (int r = 0; r < count; r++)
            memcpy(to + r * TE_BLOCK_ROW_SCALE, first + (size_t)r * stride + cols, TE_BLOCK_ROW_SCALE);
        to += (size_t)TE_CELL_ROWS * TE_BLOCK_ROW_SCALE;
    }
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

TE_API te__repacked_header te__repacked_header_of(const te_weight_part *part, int64_t cols) {
    te__repacked_header h;
    memset(&h, 0, sizeof h);
    memcpy(h.mark, "te repacked 3", 13);
    h.format = (int32_t)part->format, h.rows = part->rows, h.cols = cols;
    return h;
}
TE_API size_t te__repacked_part_bytes(const te_weight_part *part, int64_t cols) {
    const size_t bytes = TE_REPACKED_HEADER + te__cells_bytes(part->rows, cols, part->format);
    return (size_t)te_round_up((int64_t)bytes, TE_REPACKED_ALIGN);
}
/* Return how many bytes of target memory te_repack_weight needs for the weight w, whose rows have `cols` columns. */
TE_API size_t te_repacked_bytes(const te_quantized_weight *w, int64_t cols) {
    size_t bytes = 0;
    for (int i = 0; i < w->parts; i++) bytes += te__repacked_part_bytes(&w->part[i], cols);
    return bytes;
}
/* Repack `part` into target memory. staging: host memory, at least TE_REPACKED_STAGING bytes and at least as many as
 * the cells of 16 rows take. */
TE_API te_status te__repack_part(char *memory, uint8_t *staging, const te_weight_part *part, int64_t cols,
                                 te_context *ctx) {
    const te__repacked_header header = te__repacked_header_of(part, cols);
    const size_t row_bytes = te_block_row_bytes(part->format, cols);
    const int64_t rows = te_max(1, TE_REPACKED_STAGING / (int64_t)(row_bytes * TE_CELL_ROWS)) * TE_CELL_ROWS;
    TE_TRY(te_copy(ctx, memory, &header, sizeof header));
    memory += TE_REPACKED_HEADER;
    for (int64_t r = 0; r < part->rows; r += rows) {
        const int64_t count = te_min(rows, part->rows - r);
        te__repack_rows(staging, (const uint8_t *)part->data + (size_t)r * row_bytes, count, cols, part->format);
        TE_TRY(te_copy(ctx, memory + (size_t)r * row_bytes, staging, te__cells_bytes(count, cols, part->format)));
        TE_TRY(te_synchronize(ctx)); /* the copy reads `staging`, which the next iteration overwrites */
    }
    return TE_OK;
}
/* Repack a weight [rows, cols], whose parts lie in host memory, into `memory`, target memory of te_repacked_bytes bytes
 * that is aligned to 16 bytes. part[w->parts]: output, the parts of the repacked weight, which lie in `memory`. Takes
 * some seconds for each 10^9 elements, and waits for the stream. Only for CUDA contexts; the host's GEMM reads the
 * blocks of block_formats.h directly. Errors, which are returned before anything is written: TE_ERROR_NULL;
 * TE_ERROR_DEVICE, if the context's target is the host; TE_ERROR_VALUE, if a part is in f32, f16, bf16 or an unknown
 * format; TE_ERROR_SHAPE, if a part has no rows, or cols is not a multiple of the block size of a part's format;
 * TE_ERROR_ALIGNMENT; TE_ERROR_MEMORY. */
TE_API te_status te_repack_weight(te_weight_part *part, void *memory, const te_quantized_weight *w, int64_t cols,
                                  te_context *ctx) {
    int on_device = TE_CUDA; /* a variable, because with a constant nvcc would warn of unreachable code */
    size_t widest = TE_REPACKED_STAGING;
    TE_TRY(te__check_context(ctx, "te_repack_weight"));
    TE_REQUIRE(part && memory && w && w->part && w->parts > 0, ctx, TE_ERROR_NULL,
               "te_repack_weight: the parts, the memory or the weight is null, or the weight has no parts");
    TE_REQUIRE(on_device, ctx, TE_ERROR_DEVICE,
               "te_repack_weight: the host reads the blocks of a file as they are; give them to te_use_quantized");
    TE_REQUIRE((uintptr_t)memory % 16 == 0, ctx, TE_ERROR_ALIGNMENT,
               "te_repack_weight: the memory, %p, is not aligned to 16 bytes", memory);
    for (int i = 0; i < w->parts; i++) {
        const te_weight_part *p = &w->part[i];
        TE_REQUIRE(p->data, ctx, TE_ERROR_NULL, "te_repack_weight: part %d has no data", i);
        TE_REQUIRE(te__can_repack(p->format), ctx, TE_ERROR_VALUE,
                   "te_repack_weight: part %d has format %d (%s), which is no format of blocks", i, (int)p->format,
                   te_block_name(p->format));
        TE_REQUIRE(
            p->rows > 0 && cols > 0 && cols % te_block_values(p->format) == 0, ctx, TE_ERROR_SHAPE,
            "te_repack_weight: part %d is %lld x %lld; columns must be a multiple of %d, the values of a block of "
            "%s",
            i, (long long)p->rows, (long long)cols, te_block_values(p->format), te_block_name(p->format));
        widest = (size_t)te_max((int64_t)widest, (int64_t)te__cells_bytes(TE_CELL_ROWS, cols, p->format));
    }
    uint8_t *staging = (uint8_t *)malloc(widest);
    TE_REQUIRE(staging, ctx, TE_ERROR_MEMORY, "te_repack_weight: cannot allocate %zu bytes", widest);
    te_status status = TE_OK;
    char *to = (char *)memory;
    for (int i = 0; i < w->parts && status == TE_OK; i++) {
        const te_weight_part from = w->part[i];
        status = te__repack_part(to, staging, &from, cols, ctx);
        part[i] = from, part[i].data = to;
        to += te__repacked_part_bytes(&from, cols);
    }
    free(staging);
    return status;
}

#endif
