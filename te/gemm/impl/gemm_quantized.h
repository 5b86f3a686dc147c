/* gemm_quantized.h -- GEMMs with a quantized weight on a CPU: D = alpha A W^T + beta C. A [m, k] has the model's dtype.
 * W is a te_quantized_weight: one or more parts, which are consecutive rows in one of the block formats of
 * te/quant/block_formats.h. The kernels compute one part after the other, and store no dequantized weight in memory.
 *
 * For a part of W in a block format A is rounded to 8 bits (quantized_activations.h), so that dot products are sums of
 * integers. These sums are computed by the kernels of gemm_quantized_x86.h, gemm_quantized_avx512.h and
 * gemm_quantized_neon.h, and on other CPUs in plain C. On x86 te_context.isa chooses the kernels. Parts in f32, f16 and
 * bf16 are multiplied in float.
 */
#ifndef TE_GEMM_QUANTIZED_H
#define TE_GEMM_QUANTIZED_H

#include "../../quant/block_formats.h" /* te_quantized_weight, te_dequantize_row */
#include "../gemm_types.h"             /* te_gemm */
#include "gemm_quantized_avx512.h"     /* te__avx512_kernel, te__x86_tile */
#include "gemm_quantized_neon.h"       /* te__neon_kernel */
#if !TE_CUDA
#include "gemm_host.h" /* te__skinny_part, te__widened */
#endif

#if !TE_CUDA

/* ---- rows of a table --------------------------------------------------------------------------------------------- */

typedef struct te__lookup_args {
    void *y;
    te_dtype dtype;
    const int32_t *tokens;
    const te_quantized_weight *w;
    int64_t cols;
} te__lookup_args;
/* The kernel of te__quantized_lookup: each block converts one row of the table to dtype a->dtype. */
TE_API void te__lookup_body(const te__lookup_args *a, te_block b) {
    float v[TE_BLOCK_MAX_VALUES];
    int64_t row = a->tokens[b.x];
    const te_weight_part *part = te__part_of_row(a->w, &row);
    const uint8_t *x = (const uint8_t *)part->data + (size_t)row * te_block_row_bytes(part->format, a->cols);
    for (int64_t c = 0; c < a->cols; c += TE_BLOCK_MAX_VALUES) {
        const int64_t n = te_min(a->cols - c, TE_BLOCK_MAX_VALUES);
        te__dequantize_columns(v, x, a->cols, c, n, part->format);
        for (int64_t i = 0; i < n; i++) te_store(a->y, b.x * a->cols + c + i, v[i], a->dtype);
    }
}
TE_KERNEL(te__lookup, 1, te__lookup_args, te__lookup_body(te_args, te_at))
/* Embedding lookup in a quantized table: row i of y [rows, cols] becomes row tokens[i] of w, converted to `dtype`. Each
 * token must be the number of a row of w. */
TE_API te_status te__quantized_lookup(void *y, te_dtype dtype, const int32_t *tokens, int64_t rows,
                                      const te_quantized_weight *w, int64_t cols, te_context *ctx) {
    te__lookup_args a;
    a.y = y, a.dtype = dtype, a.tokens = tokens, a.w = w, a.cols = cols;
    return te__lookup_launch(ctx, te__grid_of(rows, 1), &a);
}

/* Returns the dtype of a part of a weight whose format is f32, f16 or bf16. */
TE_API te_dtype te__dtype_of_block(te_block_format f) {
    return f == TE_BLOCK_f32 ? TE_f32 : f == TE_BLOCK_f16 ? TE_f16 : TE_bf16;
}

/* ---- dot products of integers ------------------------------------------------------------------------------------ */

enum {
    /* the largest number of rows of A for which the skinny kernels are faster than te__x86_tile */
    TE__QUANTIZED_SKINNY = 24,
    TE__QUANTIZED_M = 512, /* the largest number of rows of A that one block of the kernel te__by_integers multiplies */
    TE__QUANTIZED_ROWS = 32, /* rows of the weight per block if A has more than TE__QUANTIZED_SKINNY rows */
    /* rows of the weight that are multiplied by all rows of A before the next rows are read */
    TE__QUANTIZED_GROUP = 16,
    /* bytes of the weight per block, approximately, if A has at most TE__QUANTIZED_SKINNY rows */
    TE__QUANTIZED_BYTES = 64 * 1024,
    /* If A has at most TE__QUANTIZED_SKINNY rows, even a small weight is divided into about this many blocks, so that
     * several threads have work. */
    TE__QUANTIZED_MIN_BLOCKS = 8
};

typedef struct te__by_integers_args {
    const te_gemm *g;
    te__activations a;
    const te_weight_part *part;
    int64_t first; /* the index in D of the column that the first row of this part of the weight produces */
    int64_t rows;  /* how many rows of this part of the weight each block multiplies; a multiple of 16 */
    te_isa isa;    /* the instructions of the kernels */
} te__by_integers_args;

/* Stores v, the dot product of row i of A and row j of the part, in D. If the part's format is int8, v is first
 * multiplied by the scale of row j. */
TE_FN void te__quantized_store(const te__by_integers_args *args, int64_t i, int64_t j, float v) {
    const te_gemm *g = args->g;
    const te_weight_part *part = args->part;
    const int64_t at = i * g->n + args->first + j;
    if (part->format == TE_BLOCK_int8)
        v *= te__row_scale((const char *)part->data + (size_t)j * te_block_row_bytes(part->format, g->k), g->k,
                           part->format);
    te_store(g->d, at, g->alpha * v + (g->beta != 0 ? g->beta * te_load(g->c, at, g->out) : 0.0f), g->out);
}

/* Returns the dot product of n integers of 8 bits; n is 16 or 32, a compile-time constant. */
TE_FN int te__plain_dot(const int8_t *q, const int8_t *y, int n) {
    int dot = 0;
    for (int i = 0; i < n; i++) dot += q[i] * y[i];
    return dot;
}
/* Plain C: sets sum[i] to the dot product of row i of the activations and the row of the weight that is stored at w.
 * Each block of the weight's row is unpacked once, for all rows of the activations. */
TE_API void te__plain_row(float *sum, const te__activations *a, const uint8_t *w, te_block_format f) {
    const int values = te_block_values(f), group = te__block_group(f), bytes = te_block_bytes(f);
    te__block_codes c;
    memset(sum, 0, (size_t)a->m * sizeof *sum);
    for (int64_t k = 0; k < a->k; k += values, w += bytes) {
        te__block_unpack(&c, w, f);
        for (int64_t i = 0; i < a->m; i++) {
            const int64_t at = i * a->k + k;
            for (int g = 0; g < values; g += group) {
                const int8_t *q = c.q + g, *y = a->q + at + g;
                const int64_t of_a = (at + g) / TE__GROUP;
                const int dot = group == 16 ? te__plain_dot(q, y, 16) : te__plain_dot(q, y, TE__GROUP);
                sum[i] += c.scale[g / group] * a->scale[of_a] * (float)dot;
                if (group > 16) sum[i] += c.offset[g / group] * a->scaled_sum[of_a];
            }
        }
    }
}
TE_API void te__plain_part(const te__by_integers_args *args, const te__activations *a, int64_t m0, int64_t from,
                           int64_t to) {
    const te_weight_part *part = args->part;
    const size_t stride = te_block_row_bytes(part->format, a->k);
    float sum[TE__QUANTIZED_M];
    for (int64_t j = from; j < to; j++) {
        te__plain_row(sum, a, (const uint8_t *)part->data + (size_t)j * stride, part->format);
        for (int i = 0; i < (int)a->m; i++) te__quantized_store(args, m0 + i, j, sum[i]);
    }
}
/* Returns the skinny kernel for format f and 1, 2 or 4 rows of A with the instructions `isa`; null if this kernel does
 * not exist, so that plain C is used. */
TE_API te__columns_kernel *te__columns_kernel_of(te_block_format f, int count, te_isa isa) {
#if TE__DISPATCH
    return isa == TE_ISA_AVX512 ? te__avx512_kernel(f, count) : isa == TE_ISA_AVX2 ? te__avx2_kernel(f, count) : 0;
#else
    (void)isa;
#if defined TE__QUANTIZED_AVX512
    return te__avx512_kernel(f, count);
#elif TE__QUANTIZED_X86
    return te__avx2_kernel(f, count);
#elif TE__QUANTIZED_NEON
    return te__neon_kernel(f, count);
#else
    return (void)f, (void)count, (te__columns_kernel *)0;
#endif
#endif
}
/* Multiplies rows of the weight by A with the skinny kernels. Each row of the weight is multiplied by up to four rows
 * of A at a time, and TE__QUANTIZED_GROUP rows of the weight are multiplied by all rows of A before the next rows of
 * the weight are read. The order of a sum does not depend on the number of rows of A. */
TE_API void te__columns_part(const te__by_integers_args *args, const te__activations *a, int64_t m0, int64_t from,
                             int64_t to) {
    const te_weight_part *part = args->part;
    const size_t stride = te_block_row_bytes(part->format, a->k);
    for (int64_t j0 = from; j0 < to; j0 += TE__QUANTIZED_GROUP)
        for (int64_t i = 0; i < a->m; i += TE__SKINNY_COLUMNS) {
            const int count = (int)te_min(TE__SKINNY_COLUMNS, a->m - i);
            const int64_t last = a->m - 1, row[4] = {i, te_min(i + 1, last), te_min(i + 2, last), te_min(i + 3, last)};
            te__columns_kernel *const kernel = te__columns_kernel_of(part->format, count, args->isa);
            for (int64_t j = j0; j < te_min(to, j0 + TE__QUANTIZED_GROUP); j++) {
                float v[TE__SKINNY_COLUMNS];
                kernel(v, (const uint8_t *)part->data + (size_t)j * stride, a, row);
                for (int c = 0; c < count; c++) te__quantized_store(args, m0 + row[c], j, v[c]);
            }
        }
}
#ifdef TE__QUANTIZED_TILE
TE_API void te__x86_panels(const te__by_integers_args *args, const te__activations *a, int64_t m0, int64_t from,
                           int64_t to) {
    te__x86_panel p;
    for (int64_t j = from; j < to; j += TE__PANEL_ROWS) {
        te__x86_tile(&p, a, args->part, j);
        for (int i = 0; i < (int)a->m; i++)
            for (int r = 0; r < TE__PANEL_ROWS && j + r < to; r++)
                te__quantized_store(args, m0 + i, j + r, p.sum[i][r]);
    }
}
#endif
TE_API void te__by_integers_body(const te__by_integers_args *args, te_block b) {
    const int64_t from = b.x * args->rows, to = te_min(args->part->rows, from + args->rows);
    const int64_t m0 = (int64_t)b.y * TE__QUANTIZED_M;
    const te__activations a = te__activations_rows(&args->a, m0, te_min(TE__QUANTIZED_M, args->a.m - m0));
#ifdef TE__QUANTIZED_TILE
    if (args->a.m > TE__QUANTIZED_SKINNY && (args->isa == TE_ISA_AVX512 || !TE__DISPATCH)) {
        te__x86_panels(args, &a, m0, from, to);
        return;
    }
#endif
    if (te__columns_kernel_of(args->part->format, 1, args->isa))
        te__columns_part(args, &a, m0, from, to);
    else
        te__plain_part(args, &a, m0, from, to);
}
TE_KERNEL(te__by_integers, 1, te__by_integers_args, te__by_integers_body(te_args, te_at))

/* ---- the product ------------------------------------------------------------------------------------------------- */

/* The layout of te_gemm.scratch, in bytes: activations rounded in blocks of 32 lie at offset 0, activations rounded in
 * blocks of 256 at blocks_256, and A as floats at `floats`; `bytes` is the size of all three. */
typedef struct te__quantized_scratch_layout { size_t blocks_256, floats, bytes; } te__quantized_scratch_layout;
TE_API te__quantized_scratch_layout te__quantized_lay_out(const te_gemm *g) {
    te__quantized_scratch_layout l;
    const size_t floats = (size_t)te_round_up(g->m * g->k * (int64_t)sizeof(float), 64);
    l.blocks_256 = g->k % TE__GROUP ? 0 : te__activations_bytes(g->m, g->k);
    l.floats = l.blocks_256 + (g->k % TE_BLOCK_MAX_VALUES ? 0 : te__activations_bytes(g->m, g->k));
    l.bytes = l.floats + (g->dtype == TE_f32 ? 0 : floats);
    return l;
}
/* Returns the number of bytes of te_gemm.scratch that te__quantized_run needs, whatever formats the weight has. */
TE_API size_t te__quantized_scratch(const te_gemm *g) { return te__quantized_lay_out(g).bytes; }

TE_API te_status te__quantized_by_integers(const te_gemm *g, const te__activations *a, const te_weight_part *part,
                                           int64_t first, te_context *ctx) {
    te__by_integers_args args;
    const int64_t of_bytes = TE__QUANTIZED_BYTES / (int64_t)te_max(1, (int64_t)te_block_row_bytes(part->format, g->k));
    const int64_t of_blocks = te_ceil_div(part->rows, TE__QUANTIZED_MIN_BLOCKS);
    args.g = g, args.a = *a, args.part = part, args.first = first, args.rows = TE__QUANTIZED_ROWS;
    args.isa = (te_isa)ctx->isa;
    if (g->m <= TE__QUANTIZED_SKINNY) args.rows = te_round_up(te_max(1, te_min(of_bytes, of_blocks)), 16);
    return te__by_integers_launch(
        ctx, te__grid_of(te_ceil_div(part->rows, args.rows), te_ceil_div(g->m, TE__QUANTIZED_M)), &args);
}
/* Computes D = alpha A W^T + beta C for a GEMM whose weight W is g->b_quantized, one part of the weight (consecutive
 * rows with the same format) after the other. */
TE_API te_status te__quantized_run(const te_gemm *g, te_context *ctx) {
    const te_quantized_weight *w = g->b_quantized;
    const te__quantized_scratch_layout l = te__quantized_lay_out(g);
    char *scratch = (char *)g->scratch; /* may be null if all parts are floats */
    te__activations by_32, by_256;
    const float *a = g->dtype == TE_f32 ? (const float *)g->a : 0; /* null if A has not been widened yet */
    int64_t first = 0;
    by_32.m = by_256.m = 0; /* A has not been rounded yet */
    for (int i = 0; i < w->parts; first += w->part[i++].rows) {
        const te_weight_part *part = &w->part[i];
        if (te__block_is_float(part->format)) {
            float *floats = (float *)(void *)(scratch ? scratch + l.floats : 0);
            if (!a) a = te__widened(ctx, &floats, g->a, g->m * g->k, g->dtype);
            TE_TRY(te__skinny_part(g, a, part->data, te__dtype_of_block(part->format), part->rows, first, ctx));
            continue;
        }
        const int block = te_block_values(part->format) == TE_BLOCK_MAX_VALUES ? TE_BLOCK_MAX_VALUES : (int)TE__GROUP;
        te__activations *rounded = block == TE__GROUP ? &by_32 : &by_256;
        if (!rounded->m) {
            *rounded = te__activations_at(scratch + (block == TE__GROUP ? 0 : l.blocks_256), g->m, g->k, block);
            TE_TRY(te__activations_of(rounded, g->a, g->dtype, ctx));
        }
        TE_TRY(te__quantized_by_integers(g, rounded, part, first, ctx));
    }
    return TE_OK;
}

#endif
#endif
