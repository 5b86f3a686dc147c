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
 * Most blocks are aligned to one or two bytes only. Therefore 16 blocks, those of 16 rows in the same columns, are
 * repacked into a cell of as many bytes, in which codes and scales are separate, and each thread of a warp loads its
 * operands of mma.m16n8k16 as one aligned word or vector:
 *     low     for each group of 32 columns 256 bytes: four bits of all codes (q8_0, int8: 512 bytes, the whole codes).
 *             Of int4 in blocks of 64 and 128, each lane has 16 bytes with the codes of two groups
 *     high    for each group 64 bytes (5-bit codes) or 128 bytes (6-bit codes): the codes' other bits
 *     scales  for each row the block's bytes other than codes. Formats of 32 to 128 values: rows 0, 8, 1, 9, 2, 10, ..
 * The cells of a part are in row-major order. Rows are padded with zeros to a multiple of 16. Behind the cells of 16
 * rows of int8 lie the 16 scales of these rows, in f32.
 *
 * Of a group (32 columns), each lane of a warp loads 16 codes: with r = lane / 4 and t = lane % 4, those of the rows r
 * and r + 8 in the columns 8 t .. 8 t + 7; in q6_k in 4 t .. 4 t + 3 and 16 + 4 t .. 16 + 4 t + 3. i is the index of a
 * code among the eight that the lane loads of a row. Codes i and i + 1, with an even i, lie 16 bits apart: one mask
 * extracts both.
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

/* The beginning of each repacked part in target memory, by which te_use_quantized checks that this memory has been
 * repacked from a part with this format and these sizes. */
typedef struct te__repacked_header {
    char mark[16];
    int32_t format, reserved;
    int64_t rows, cols;
} te__repacked_header;

/* Return whether a format can be repacked; f32, f16 and bf16 cannot. */
TE_API int te__can_repack(te_block_format f) { return te_block_values(f) > 1; }
TE_BOTH int te__cell_is_8bit(te_block_format f) { return f == TE_BLOCK_q8_0 || f == TE_BLOCK_int8; }
/* The number that is added to the codes q of the block at b (te__block_codes), so that a cell stores no negative code.
 */
TE_API int te__cell_zero(const uint8_t *b, te_block_format f) {
    if (te__block_has_zero_point(f)) return b[2];
    return te__cell_is_8bit(f)                          ? 128
           : f == TE_BLOCK_q5_0                         ? 16
           : f == TE_BLOCK_q6_k                         ? 32
           : f == TE_BLOCK_q4_0 || te__block_is_int4(f) ? 8
                                                        : 0;
}
/* The number of bytes in which a cell stores the low bits of the codes of a group, 16 rows by 32 columns, and
 * (te__cell_high_bytes) the codes' high bits. */
TE_BOTH int te__cell_low_bytes(te_block_format f) { return te__cell_is_8bit(f) ? 512 : 256; }
TE_BOTH int te__cell_high_bytes(te_block_format f) {
    return f == TE_BLOCK_q6_k ? 128 : f == TE_BLOCK_q5_0 || f == TE_BLOCK_q5_1 || f == TE_BLOCK_q5_k ? 64 : 0;
}

/* ---- repacking --------------------------------------------------------------------------------------------------- */

/* Where the low bits of group `group` of a cell begin, and the number of bytes from one lane's to the next lane's. */
TE_BOTH int te__cell_pairs_groups(te_block_format f) { return te__block_is_int4(f) && f != TE_BLOCK_int4z_32; }
TE_BOTH int te__cell_low_at(te_block_format f, int group) {
    return te__cell_pairs_groups(f) ? group / 2 * 512 + group % 2 * 8 : group * te__cell_low_bytes(f);
}
TE_BOTH int te__cell_low_lane(te_block_format f) { return te__cell_is_8bit(f) || te__cell_pairs_groups(f) ? 16 : 8; }

/* Store the E2M1 number with twice the value `twice` in 16 bits, which hold four: number 0 has its sign in bit 15,
 * where bf16 has it, and the three other bits in 8 to 6, the lowest bits of bf16's exponent and the highest of its
 * mantissa. So the number is 2^-126 times its value in bf16. The others have theirs where they take the fewest shifts
 * to get there (te__cell_mxfp4). */
TE_API void te__cell_store_mxfp4(uint8_t *half, int number, int twice) {
    static const uint8_t sign[4] = {15, 12, 14, 13}, rest[4] = {6, 3, 0, 9};
    const int magnitude = twice < 0 ? -twice : twice;
    const int code = magnitude <= 4 ? magnitude : magnitude == 6 ? 5 : magnitude == 8 ? 6 : 7;
    const int bits = (twice < 0) << sign[number] | code << rest[number];
    half[0] |= (uint8_t)(bits & 255), half[1] |= (uint8_t)(bits >> 8);
}
/* Store a code of row `row` in column `col` of a group. low, high: where the group's bits lie. Codes of four bits and
 * the low or high four bits of longer ones: a byte has those of both rows of a lane, the first row's in its low half.
 * The other bits of a code of five or six bits are its highest ones in the first row, its lowest ones in the second
 * row, so that a code's bits are adjacent when they are merged (te__cell_codes). */
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
/* The scales of q4_k and q5_k in a cell: for rows r and r + 8 of the cell 8 bytes with d and dmin of both; then for
 * each lane, which has the scales and mins of both rows for groups 2 t and 2 t + 1, 4 bytes with their low 4 bits: of
 * group 2 t a byte with the mins and a byte with the scales of both rows, then of group 2 t + 1; and 2 bytes with their
 * high 2 bits, one for each group. */
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
/* Copy the scales of block b (all its bytes that are no codes) to those of row `row` of a cell. */
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
/* Repack one block of each of `rows` rows, at most 16, into a cell. b: the block of the first row; stride: the number
 * of bytes from one row to the next. */
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
/* The number of bytes of the cells of a matrix [rows, cols]. */
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
/* The number of bytes of target memory that te_repack_weight needs for the weight w, whose rows have `cols` columns. */
TE_API size_t te_repacked_bytes(const te_quantized_weight *w, int64_t cols) {
    size_t bytes = 0;
    for (int i = 0; i < w->parts; i++) bytes += te__repacked_part_bytes(&w->part[i], cols);
    return bytes;
}
/* Repack `part` into target memory. staging: host memory of TE_REPACKED_STAGING bytes or, if that is more, of the bytes
 * of the cells of 16 rows. */
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
 * blocks of block_formats.h directly.
 * Errors, before anything is written: TE_ERROR_NULL; TE_ERROR_DEVICE: the context's target is the host; TE_ERROR_VALUE:
 * a part is in f32, f16 or bf16, or in an unknown format; TE_ERROR_SHAPE: a part has no rows, or cols is no multiple of
 * a format's block; TE_ERROR_ALIGNMENT; TE_ERROR_MEMORY. */
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
