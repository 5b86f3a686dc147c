/* gemm_few.h -- a matrix product of at most eight rows, y[m, n] = x[m, k] W[n, k]^T: what decoding does, token by
 * token. Its time is that of reading W once.
 *
 * A block takes 16 columns of y at a time, so 16 rows of W; its eight warps share out k. Each warp has a ring in shared
 * memory that it fills (cp.async) and empties by itself, and takes what is in it to the tensor cores (mma.sync; the
 * rows of W as A, those of x as B; which k is which does not matter as long as both agree). The warps' sums are added
 * in a fixed order, rounded to 16 bits, and go through the epilogue of the row (linear_epilogue.h), eight elements at a time,
 * while the rings fill again. In a pass the rings fill while the kernel ahead still runs, for a pass does not write its
 * weights; else what they begin with is brought into the L2 meanwhile.
 *
 * Measured on an H200 beside a kernel that only reads W and cuBLASLt's fastest candidate, one row: n 16384, k 4096 33.3
 * us, 30.0, 34.1; n 4096, k 16384 32.8, 30.0, 36.1; n = k = 4096 9.7, 9.6, 12.7. What did not pay: loads straight into
 * registers (a lane's 16 bytes beside each other's, 64 bytes of a row at a time); the copy engine, which starts a copy
 * of 2 KB only every 80 ns. Filling the rings ahead: a GPT block of 4096 columns 116 us -> 112 at one row, 121 -> 116
 * at eight.
 *
 * In FP8, e4m3, the kernel is the same: its lanes bring, keep and multiply 16 bytes, whatever they are. Scales of rows
 * or of a tensor come in where the warps' sums are added; with scales of tiles and blocks the sums of each 128 of k are
 * scaled and added to those before. Half as many bytes: a GPT block of
 * 4096 columns in inference at one row, scales of tensors 0.61 of the time in bf16, of rows 0.68.
 *
 * From nine rows on gemm_narrow.h or cuBLASLt has the products.
 */
/* target: cuda */
#ifndef TE_GEMM_FEW_H
#define TE_GEMM_FEW_H

#include "../core/amax.h"        /* te_amax_raise */
#include "../core/launch_cuda.h" /* te_enqueue_follows */
#include "../core/mma_cuda.h"    /* te__mma */
#include "../core/target.h"      /* te_kernel_begin */
#include "gemm_types.h"          /* te_epilogue_fn, te_few_form, te_tile_scale_at */

enum {
    TE_FEW_ROWS = 8,
    TE_FEW_COLUMNS = 16,
    TE_FEW_WARPS = 8,
    TE_FEW_THREADS = 32 * TE_FEW_WARPS,
    TE_FEW_RESIDENT = 2, /* blocks on a multiprocessor */
    TE_FEW_PART = 128,
    TE_FEW_STEP = TE_FEW_PART * TE_FEW_WARPS, /* elements of k that a warp, a block takes at a time */
    TE_FEW_STAGE = TE_FEW_COLUMNS * TE_FEW_PART * 2,
    TE_FEW_STAGES = 3, /* bytes; of a warp's ring */
    TE_FEW_SHARED = TE_FEW_WARPS * TE_FEW_STAGES * TE_FEW_STAGE
};

typedef struct te_few {
    const uint16_t *x, *w; /* [m, k], [n, k] */
    const float *x_inverse, *w_inverse; /* FP8: 1 / scale; null: 1 */
    float *amax; /* raised to the largest magnitude that the epilogue has stored in FP8; null: not wanted */
    float alpha;
    int m, n, k; /* k: of elements of 16 bits, of pairs of FP8 */
    int by_row;  /* TE_FEW_SCALED: scales are of rows of x and of W, else of both as a whole */
    int ahead;   /* the kernel before this one does not write W */
} te_few;

/* ---- W into a warp's ring ---------------------------------------------------------------------------------------- */

/* Where a warp is: columns from col, elements of k from k, a stage of its ring. */
typedef struct te_few_at { int col, k, stage; } te_few_at;
TE_FN void te__few_advance(te_few_at *at, const te_few *p) {
    if (++at->stage == TE_FEW_STAGES) at->stage = 0;
    at->k += TE_FEW_STEP;
    if (at->k < p->k) return;
    at->col += (int)gridDim.x * TE_FEW_COLUMNS, at->k = (int)threadIdx.x / 32 * TE_FEW_PART;
}
/* Of row `row` of a stage the 16 bytes `piece`: rows beside each other lie in different banks. */
TE_FN uint32_t te__few_piece(uint32_t stage, int row, int piece) {
    return stage + (uint32_t)(row * (TE_FEW_PART * 2) + ((piece ^ (row & 1) << 2) << 4));
}
/* A lane brings 16 bytes at a time; zeros from beyond the end. */
TE_FN void te__few_bring(const te_few *p, uint32_t ring, const te_few_at *at, int prefetch) {
    enum { PIECES = TE_FEW_PART / 8, ROWS = 32 / PIECES };
    const int lane = (int)threadIdx.x % 32, piece = lane % PIECES, k = at->k + piece * 8;
    TE_UNROLL for (int i = 0; i < (int)TE_FEW_COLUMNS / ROWS; i++) {
        const int row = ROWS * i + lane / PIECES, ok = at->col + row < p->n && k < p->k;
        const uint16_t *from = p->w + (int64_t)(ok ? at->col + row : 0) * p->k + (ok ? k : 0);
        if (prefetch) te_prefetch(from, 0, TE_bf16);
        else
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2; // a weight" ::"r"(
                             te__few_piece(ring + (uint32_t)(at->stage * TE_FEW_STAGE), row, piece)),
                         "l"(from), "r"(ok ? 16 : 0)
                         : "memory");
    }
}

/* ---- the product ------------------------------------------------------------------------------------------------- */

/* Of row lane / 4 of x: part i of a step begins 32 * i elements on, a lane takes eight. */
TE_FN void te__few_x(uint32_t x[TE_FEW_PART / 32][4], const te_few *p, int k) {
    const int row = (int)threadIdx.x % 32 / 4;
    k += (int)threadIdx.x % 4 * 8;
    TE_UNROLL for (int i = 0; i < TE_FEW_PART / 32; i++) {
        x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0;
        if (row < p->m && k + 32 * i < p->k) te__load_now(x[i], p->x + (int64_t)row * p->k + k + 32 * i);
    }
}
/* Scales of the tiles of a step: x's of the two rows whose sums this lane has, and W's. */
enum { TE_FEW_TILES = TE_FEW_PART / (TE_FP8_BLOCK / 2) };
typedef struct te_few_tiles { float x[TE_FEW_TILES][2], w[TE_FEW_TILES]; } te_few_tiles;
TE_FN void te__few_tiles_of(te_few_tiles *s, const te_few *p, const te_few_at *at) {
    const int row = (int)threadIdx.x % 4 * 2;
    const int64_t cols = 2 * (int64_t)p->k;
    TE_UNROLL for (int i = 0; i < TE_FEW_TILES; i++) {
        const int64_t tile = at->k / (TE_FP8_BLOCK / 2) + i;
        const int exists = tile < te_fp8_blocks(cols);
        TE_UNROLL for (int j = 0; j < 2; j++)
            s->x[i][j] =
                exists && row + j < p->m ? p->x_inverse[te_tile_scale_at(p->m, cols, row + j, tile)] : 0.0f;
        s->w[i] = exists ? p->w_inverse[te_block_scale_at(cols, at->col / TE_FP8_BLOCK, tile)] : 0.0f;
    }
}
/* Of rows lane / 4 and lane / 4 + 8 of W. */
TE_FN void te__few_multiply(float c[4], uint32_t stage, uint32_t x[TE_FEW_PART / 32][4], const te_few_tiles *scale,
                            const te_few_form form, const te_dtype dtype) {
    enum { EACH = TE_FEW_PART / 32 / TE_FEW_TILES }; /* parts of a tile */
    const te_dtype operands = form == TE_FEW_SIXTEEN ? dtype : TE_e4m3;
    const int row = (int)threadIdx.x % 32 / 4, piece = (int)threadIdx.x % 4;
    float part[4] = {0, 0, 0, 0};
    TE_UNROLL for (int i = 0; i < TE_FEW_PART / 32; i++) {
        uint32_t u[4], v[4];
        te__load_piece(u, te__few_piece(stage, row, piece + 4 * i)),
            te__load_piece(v, te__few_piece(stage, row + 8, piece + 4 * i));
        const uint32_t first[4] = {u[0], v[0], u[1], v[1]}, second[4] = {u[2], v[2], u[3], v[3]};
        float *const sums = form == TE_FEW_TILED ? part : c;
        te__mma(sums, first, x[i][0], x[i][1], operands);
        te__mma(sums, second, x[i][2], x[i][3], operands);
        if (form != TE_FEW_TILED || i % EACH != EACH - 1) continue;
        TE_UNROLL
        for (int j = 0; j < 4; j++) c[j] += part[j] * (scale->x[i / EACH][j % 2] * scale->w[i / EACH]), part[j] = 0;
    }
}
/* What the sum is multiplied by that this thread adds up for the 16 columns from col; loaded long before. */
typedef struct te_few_scales { float x, w; } te_few_scales;
TE_FN te_few_scales te__few_scales_of(const te_few *p, int col, const te_few_form form) {
    const int row = (int)threadIdx.x / TE_FEW_COLUMNS, at = col + (int)threadIdx.x % TE_FEW_COLUMNS;
    te_few_scales s = {1.0f, 1.0f};
    if (form != TE_FEW_SCALED || row >= p->m || at >= p->n) return s;
    if (p->x_inverse) s.x = p->x_inverse[p->by_row ? row : 0];
    if (p->w_inverse) s.w = p->w_inverse[p->by_row ? at : 0];
    return s;
}
/* The block's partial sums become 16 columns of y. */
TE_FN void te__few_epilogue(const te_few *p, int col, const float c[4], te_few_scales scales, te_epilogue_fn epilogue,
                            const void *arg, const te_dtype dtype) {
    __shared__ float sums[TE_FEW_WARPS][TE_FEW_ROWS]
                         [TE_FEW_COLUMNS + 1]; /* + 1: a warp's stores fall on different banks */
    __shared__ uint4 y[TE_FEW_ROWS][TE_FEW_COLUMNS / 8];
    const int thread = (int)threadIdx.x, lane = thread % 32, row = thread / 2, at = col + thread % 2 * 8;
    TE_UNROLL for (int i = 0; i < 4; i++) sums[thread / 32][2 * (lane % 4) + i % 2][lane / 4 + 8 * (i / 2)] = c[i];
    __syncthreads();
    if (thread < TE_FEW_ROWS * TE_FEW_COLUMNS) {
        float sum = 0;
        TE_UNROLL
        for (int i = 0; i < TE_FEW_WARPS; i++) sum += sums[i][thread / TE_FEW_COLUMNS][thread % TE_FEW_COLUMNS];
        te_store(y, thread, p->alpha * (scales.x * scales.w) * sum, dtype);
    }
    __syncthreads();
    te_epilogue_lane own = {{0, 0, 0, 0, 0, 0, 0, 0}, 0, {0, 0}, TE_USUAL_not};
    if (row < p->m && at < p->n) {
        uint32_t w[4];
        memcpy(w, &y[row][thread % 2], sizeof w);
        epilogue(arg, w, 0, row, at, &own);
    }
    if (p->amax && thread < 32) { /* of which 16 have had eight elements each, at most */
        int group;
        te_amax_raise(p->amax, own.most, te_lanes_here(32, &group));
    }
}

TE_FN void te_few_body(const te_few *p, te_epilogue_fn epilogue, const void *arg, const te_few_form form,
                       const te_dtype dtype) {
    extern __shared__ uint4 te_few_rings[];
    const int warp = (int)threadIdx.x / 32;
    const uint32_t ring = te__shared_address(te_few_rings) + (uint32_t)(warp * TE_FEW_STAGES * TE_FEW_STAGE);
    te_few_at at = {(int)blockIdx.x * TE_FEW_COLUMNS, warp * TE_FEW_PART, 0}, ahead = at;
    float c[4] = {0, 0, 0, 0};
    uint32_t x[TE_FEW_PART / 32][4], next[TE_FEW_PART / 32][4];
    te_few_tiles of_x, of_next;
    if (!p->ahead) {
        te__few_bring(p, ring, &at, 1);
        te_kernel_wait();
    }
    TE_UNROLL for (int i = 0; i < TE_FEW_STAGES - 1; i++) {
        if (ahead.col < p->n) te__few_bring(p, ring, &ahead, 0);
        te__few_advance(&ahead, p);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    te_kernel_begin();
    te__few_x(next, p, at.k);
    if (form == TE_FEW_TILED) te__few_tiles_of(&of_next, p, &at);
    te_few_scales scales = te__few_scales_of(p, at.col, form);
    while (at.col < p->n) {
        const te_few_at here = at;
        asm volatile("cp.async.wait_group %0;" ::"n"(TE_FEW_STAGES - 2) : "memory");
        __syncwarp(); /* the stage is there, and all lanes have done with the one before it */
        if (ahead.col < p->n) te__few_bring(p, ring, &ahead, 0);
        te__few_advance(&ahead, p);
        asm volatile("cp.async.commit_group;" ::: "memory");
        memcpy(x, next, sizeof x);
        if (form == TE_FEW_TILED) of_x = of_next;
        te__few_advance(&at, p);
        if (at.col < p->n) te__few_x(next, p, at.k);
        if (form == TE_FEW_TILED && at.col < p->n) te__few_tiles_of(&of_next, p, &at);
        te__few_multiply(c, ring + (uint32_t)(here.stage * TE_FEW_STAGE), x, &of_x, form, dtype);
        if (at.col == here.col) continue;
        te__few_epilogue(p, here.col, c, scales, epilogue, arg, dtype);
        if (at.col < p->n) scales = te__few_scales_of(p, at.col, form);
        c[0] = c[1] = c[2] = c[3] = 0;
    }
}

/* `type` begins with a te_few; form: what it reads, beside dtype; epilogue: a te_epilogue_fn that is called with the
 * `type`. exists: 0 leaves the kernel empty. */
#define TE_FEW_KERNEL(name, type, form, dtype, epilogue, exists)                        \
    TE_UNUSED static __global__ void __launch_bounds__(TE_FEW_THREADS, TE_FEW_RESIDENT) \
        name(const __grid_constant__ type p) {                                          \
        if (exists) te_few_body((const te_few *)&p, epilogue, &p, form, dtype);         \
    }

/* What a kernel for the product would read. */
TE_API te_few_form te__few_form_of(const te_gemm *g) {
    return !te_gemm_is_fp8(g)                         ? TE_FEW_SIXTEEN
           : g->a_fp8.scaling == TE_SCALING_TILES ? TE_FEW_TILED : TE_FEW_SCALED;
}
/* Whether there can be one. */
TE_API int te__few_can(const te_gemm *g) {
    const int64_t most = 1 << 30;
    const int fits = te_gemm_is_fp8(g) ? te__gemm_a(g) == TE_e4m3 && te__gemm_b(g) == TE_e4m3 &&
                                             g->b_fp8.scaling != TE_SCALING_TILES && g->k % 16 == 0
                                       : g->k % 8 == 0;
    return fits && g->dtype != TE_f32 && g->out == g->dtype && !g->trans_a && g->trans_b && g->m <= TE_FEW_ROWS &&
           g->n % 8 == 0 && g->n < most && g->k < most && g->epilogue == TE_EPILOGUE_NONE;
}
/* Its k in elements of 16 bits. */
TE_API int64_t te__few_k(const te_gemm *g) { return te_gemm_is_fp8(g) ? g->k / 2 : g->k; }
/* Fill in p for the product, and launch `kernel` on the `bytes` of `args`, of which p is the first member. */
TE_API te_status te__few_run(const void *kernel, const void *args, size_t bytes, te_few *p, const te_gemm *g,
                             te_context *ctx) {
    p->x = (const uint16_t *)g->a, p->w = (const uint16_t *)g->b, p->alpha = g->alpha, p->m = (int)g->m,
    p->n = (int)g->n, p->k = (int)te__few_k(g);
    p->x_inverse = g->a_fp8.inverse, p->w_inverse = g->b_fp8.inverse;
    p->by_row = g->a_fp8.scaling == TE_SCALING_ROW;
    p->ahead = te_enqueue_follows(ctx);
    const te_grid grid = te_grid_of(te_min(ctx->processors * TE_FEW_RESIDENT, te_ceil_div(g->n, TE_FEW_COLUMNS)), 1);
    return te__cuda_launch(ctx, kernel, grid, TE_FEW_THREADS, TE_FEW_SHARED, 1, args, bytes,
                           "matrix product of few rows");
}

#endif
