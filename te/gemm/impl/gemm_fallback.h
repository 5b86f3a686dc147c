/* gemm_fallback.h -- GEMM kernels for every shape on compute capability 8.0 and up, without cuBLASLt. In a build with
 * TE_NO_CUBLASLT these kernels run the products that no custom kernel (gemm_skinny.h, gemm_small_m.h, gemm_sm90.h)
 * supports.
 *
 * For 16-bit operands a block of eight warps computes a 128 x 128 tile of D, or a 64 x 128 tile if D has at most 64
 * rows. cp.async copies tiles of A and B, each 64 deep along k, into a ring of stages in shared memory. The ring has 96
 * KB, so that two blocks fit on a multiprocessor of Hopper. ldmatrix loads fragments for mma.sync from the ring, and
 * transposes them if the operand's rows run along m or n, not along k. If the length of an operand's rows is not a
 * multiple of eight, the rows are not aligned to 16 bytes, and are loaded one element at a time, without cp.async. For
 * f32 operands a block computes a 128 x 128 tile with ordinary float multiplications and additions; each of the block's
 * threads computes 8 x 8 elements of the tile.
 *
 * If D has so few tiles that the device could run more blocks at once, several blocks compute one tile, each for a part
 * of k (a split): each block stores its partial sums in the workspace, and a second kernel adds the partial sums in the
 * order of k. The number of splits depends only on the sizes and on the number of multiprocessors, so results on one
 * device are bitwise reproducible.
 *
 * Flops: 2 * m * n * k. Memory traffic at up to 64 rows: B is read once; if k is split, the partial sums of each split
 * are written and read, 8 * m * n bytes for each split. Measurements: docs/notes/gemm.md.
 */
/* target: cuda */
#ifndef TE_GEMM_FALLBACK_H
#define TE_GEMM_FALLBACK_H

#include <stdlib.h> /* calloc */

#include "../../core/impl/graph_replay.h" /* te__cuda_launch */
#include "../../core/impl/ptx_cuda.h"    /* te__mma_sync, te__ldmatrix_x4 */
#include "../../core/target.h"      /* te_kernel_begin, TE_KERNEL */
#include "../gemm_types.h"          /* te_gemm, te__gemm_allocate */

enum {
    TE_HAS_CUBLASLT = 0,
    TE_FALLBACK_TILE_M = 128,
    /* a tile has this many rows instead of TE_FALLBACK_TILE_M if D has at most this many rows */
    TE_FALLBACK_SMALL_TILE_M = 64,
    TE_FALLBACK_TILE_N = 128,
    TE_FALLBACK_TILE_K = 64,
    TE_FALLBACK_THREADS = 256, /* a block has 2 x 4 warps; each computes half of the tile's rows and 32 of the tile's
                                * columns */
    TE_FALLBACK_SHARED = 96 << 10,
    /* Blocks with successive indices compute this many tiles of one column of tiles, then as many of the next column.
     * So blocks that run at the same time read the same rows of A and columns of B, and find them in the L2. */
    TE_FALLBACK_BAND = 8,
    TE_FALLBACK_F32_TILE_K = 16,
    /* for f32 operands: the distance, in floats, between the starts of two lines of 128 floats in shared memory. With
     * 132 the stores of neighbouring threads hit different banks */
    TE_FALLBACK_F32_PITCH = 132,
    TE_FALLBACK_BLOCKS_PER_SM = 2,
    /* the smallest number of steps, of TE_FALLBACK_TILE_K elements of k each, in a split; with fewer steps,
     * storing and adding the partial sums would take longer than the multiplications */
    TE_FALLBACK_MIN_SPLIT_STEPS = 4,
    TE_FALLBACK_MAX_SPLITS = 16
};

typedef struct te_fallback {
    const void *a, *b, *c, *bias; /* bias: null if there is no bias */
    void *d;
    float *partial_sums; /* [splits, m, n]; null if k is not split */
    float alpha, beta;
    int m, n, k, trans_a, trans_b;
    int tiles_m, tiles_n;
    int k_per_split, splits; /* splits: the number of parts (splits) into which k is divided, 1 if k is not divided;
                              * k_per_split: elements of k in each split, a multiple of TE_FALLBACK_TILE_K */
    te_dtype dtype, out;
} te_fallback;

/* ---- the scheduler: a block's tile ------------------------------------------------------------------------------- */

/* What a block computes: the tile of D whose first row and column are row and col, summed over k from k_begin to
 * k_end - 1. */
typedef struct te_fallback_tile { int row, col, k_begin, k_end; } te_fallback_tile;
TE_FN te_fallback_tile te__fallback_tile(const te_fallback *p, int tile_m) {
    te_fallback_tile t;
    const int i = (int)blockIdx.x, band = i / (TE_FALLBACK_BAND * p->tiles_n), top = band * TE_FALLBACK_BAND;
    const int high = te_min(TE_FALLBACK_BAND, p->tiles_m - top), at = i - top * p->tiles_n;
    t.row = (top + at % high) * tile_m, t.col = at / high * TE_FALLBACK_TILE_N;
    t.k_begin = (int)blockIdx.y * p->k_per_split, t.k_end = te_min(p->k - t.k_begin, p->k_per_split) + t.k_begin;
    return t;
}

/* ---- the epilogue ------------------------------------------------------------------------------------------------ */

/* Returns alpha * sum + beta * C[at] + bias[col], the element of D with index `at`, in column `col`. */
TE_FN float te__fallback_epilogue(const te_fallback *p, int64_t at, int col, float sum) {
    float v = p->alpha * sum;
    if (p->beta != 0) v += p->beta * te__load_wide(p->c, at, p->out);
    return p->bias ? v + te__load_wide(p->bias, col, p->dtype) : v;
}
/* Store a thread's sums for columns `col` (first) and col + 1 (second) of row `row`. If k is split, the sums are stored
 * as partial sums; else the epilogue is applied, and the results are stored in D. Sums for elements outside D are not
 * stored. */
TE_FN void te__fallback_store(const te_fallback *p, int row, int col, float first, float second) {
    if (row >= p->m || col >= p->n) return;
    const int64_t at = (int64_t)row * p->n + col, all = (int64_t)p->m * p->n;
    const int pair = p->n % 2 == 0, two = col + 1 < p->n;
    if (p->partial_sums) {
        float *sums = p->partial_sums + (int64_t)blockIdx.y * all + at;
        if (pair) *(float2 *)sums = make_float2(first, second);
        else {
            sums[0] = first;
            if (two) sums[1] = second;
        }
        return;
    }
    const float u = te__fallback_epilogue(p, at, col, first);
    const float v = two ? te__fallback_epilogue(p, at + 1, col + 1, second) : 0.0f;
    if (pair && p->out == TE_f32) *(float2 *)((float *)p->d + at) = make_float2(u, v);
    else if (pair) *(uint32_t *)((uint16_t *)p->d + at) = te_pair_of_floats(u, v, p->out);
    else {
        te__store_wide(p->d, at, u, p->out);
        if (two) te__store_wide(p->d, at + 1, v, p->out);
    }
}
/* The kernel that runs second if k is split: each thread adds the partial sums of one element of D in the order of k,
 * and stores the element. */
TE_FN void te__fallback_reduce_body(const te_fallback *p, te_block b) {
    const int64_t at = (int64_t)b.x * TE_FALLBACK_THREADS + (int)threadIdx.x, all = (int64_t)p->m * p->n;
    float sum = 0;
    if (at >= all) return;
    for (int i = 0; i < p->splits; i++) sum += p->partial_sums[i * all + at];
    te__store_wide(p->d, at, te__fallback_epilogue(p, at, (int)(at % p->n), sum), p->out);
}
TE_KERNEL_IF_USED(te__fallback_reduce, TE_FALLBACK_THREADS, 1, te_fallback, te__fallback_reduce_body(te_args, te_at))

/* ---- 16 bits ----------------------------------------------------------------------------------------------------- */

/* Return the address of a 16-byte vector, number `vector` in row `row` of a tile in shared memory. vectors: the number
 * of vectors in a row. The tile is swizzled, so that the vectors with the same number in eight successive rows lie in
 * different banks. */
TE_FN uint32_t te__fallback_address(uint32_t tile, int row, int vector, int vectors) {
    return tile + (uint32_t)((row * vectors + (vector ^ (row & 7))) << 4);
}
/* Copy the first `count` of eight elements to shared memory, and zeros in place of the remaining elements. Used instead
 * of cp.async if the operand's rows are not aligned to 16 bytes. */
TE_FN void te__fallback_copy_unaligned(uint32_t to, const uint16_t *from, int count) {
    uint32_t w[4];
    TE_UNROLL for (int i = 0; i < 4; i++) {
        const uint32_t low = 2 * i < count ? from[2 * i] : 0u, high = 2 * i + 1 < count ? from[2 * i + 1] : 0u;
        w[i] = low | high << 16;
    }
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}
/* Copy a tile of an operand to shared memory. A "line" is a row of A or a column of B, all elements of which lie along
 * k; the operand has `lines` lines of `depth` elements. The tile has WIDTH lines from number `line` on, and
 * TE_FALLBACK_TILE_K elements of each from index `k` on. The tile keeps the operand's layout: if MN_MAJOR is 0
 * (K-major), the elements of a line are adjacent; if MN_MAJOR is 1, the elements of all lines at one index of k are
 * adjacent. */
template <int WIDTH, int MN_MAJOR>
TE_FN void te__fallback_copy_tile(uint32_t tile, const uint16_t *from, int lines, int depth, int line, int k) {
    enum {
        VECTORS = (MN_MAJOR ? WIDTH : TE_FALLBACK_TILE_K) / 8,
        ROWS = MN_MAJOR ? TE_FALLBACK_TILE_K : WIDTH
    };
    const int rows = MN_MAJOR ? depth : lines, columns = MN_MAJOR ? lines : depth;
    TE_UNROLL for (int i = 0; i < ROWS * VECTORS / TE_FALLBACK_THREADS; i++) {
        const int index = i * TE_FALLBACK_THREADS + (int)threadIdx.x, row = index / VECTORS, vector = index % VECTORS;
        const int y = (MN_MAJOR ? k : line) + row, x = (MN_MAJOR ? line : k) + vector * 8;
        const int count = y < rows ? te_min(8, columns - x) : 0;
        const uint16_t *at = from + (count > 0 ? (int64_t)y * columns + x : 0);
        const uint32_t to = te__fallback_address(tile, row, vector, VECTORS);
        if (columns % 8 == 0)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(at), "r"(count > 0 ? 16 : 0)
                         : "memory");
        else te__fallback_copy_unaligned(to, at, count);
    }
}
/* Load a fragment of 16 lines and 16 elements of k, as four 8 x 8 matrices in the order that mma.sync needs. L0 are the
 * first eight lines, L1 the second eight lines; K0 are the first eight elements of k, K1 the second eight elements. The
 * order of the matrices of A (is_b 0) is (L0, K0), (L1, K0), (L0, K1), (L1, K1). The order of the matrices of B (is_b
 * 1) is (L0, K0), (L0, K1), the operand B of one mma.sync, then (L1, K0), (L1, K1), the operand B of the next
 * mma.sync. */
template <int WIDTH, int MN_MAJOR>
TE_FN void te__fallback_fragment(uint32_t w[4], uint32_t tile, int line, int k, const int is_b) {
    enum { VECTORS = (MN_MAJOR ? WIDTH : TE_FALLBACK_TILE_K) / 8 };
    const int lane = (int)threadIdx.x % 32, matrix = lane / 8, lower = is_b ? matrix / 2 : matrix % 2,
              deeper = is_b ? matrix % 2 : matrix / 2;
    const int row = MN_MAJOR ? k + 8 * deeper + lane % 8 : line + 8 * lower + lane % 8;
    const int vector = MN_MAJOR ? line / 8 + lower : k / 8 + deeper;
    te__ldmatrix_x4(w, te__fallback_address(tile, row, vector, VECTORS), MN_MAJOR);
}

/* The functions of the kernel for 16-bit operands of dtype T. TA: 1 if A is transposed; TB: 1 if B is transposed; M:
 * the number of rows of a tile. */
template <te_dtype T, int TA, int TB, int M> struct te_fallback_mainloop {
    enum {
        BLOCKS_M = M / 32, BLOCKS_N = 4, /* a warp computes M / 2 rows x 32 columns, which are BLOCKS_M x BLOCKS_N
                                          * blocks of 16 x 8 elements */
        A_BYTES = M * TE_FALLBACK_TILE_K * 2, STAGE = A_BYTES + TE_FALLBACK_TILE_N * TE_FALLBACK_TILE_K * 2,
        STAGES = TE_FALLBACK_SHARED / STAGE
    };
    /* Start the copies of step `step`, which has TE_FALLBACK_TILE_K elements of k, and commit them as a group of
     * cp.async. A call with a step behind the last step copies nothing, but commits an empty group. The mainloop relies
     * on one group per step: to wait for a step, the mainloop waits until at most a fixed number of later groups is in
     * flight (cp.async.wait_group). */
    TE_FN void load(const te_fallback *p, const te_fallback_tile *t, uint32_t ring, int step) {
        const int k = t->k_begin + step * TE_FALLBACK_TILE_K;
        const uint32_t stage = ring + (uint32_t)(step % STAGES * STAGE);
        if (k < t->k_end) {
            te__fallback_copy_tile<M, TA>(stage, (const uint16_t *)p->a, p->m, p->k, t->row, k);
            te__fallback_copy_tile<TE_FALLBACK_TILE_N, !TB>(stage + A_BYTES, (const uint16_t *)p->b, p->n, p->k, t->col,
                                                            k);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    TE_FN void multiply(float c[BLOCKS_M][BLOCKS_N][4], uint32_t stage, int row, int column) {
        TE_UNROLL for (int k = 0; k < TE_FALLBACK_TILE_K; k += 16) {
            uint32_t a[BLOCKS_M][4], b[BLOCKS_N / 2][4];
            TE_UNROLL for (int i = 0; i < BLOCKS_M; i++)
                te__fallback_fragment<M, TA>(a[i], stage, row + 16 * i, k, 0);
            TE_UNROLL for (int j = 0; j < BLOCKS_N / 2; j++)
                te__fallback_fragment<TE_FALLBACK_TILE_N, !TB>(b[j], stage + A_BYTES, column + 16 * j, k, 1);
            TE_UNROLL for (int i = 0; i < BLOCKS_M; i++)
                TE_UNROLL for (int j = 0; j < BLOCKS_N; j++)
                    te__mma_sync(c[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], T);
        }
    }
    TE_FN void body(const te_fallback *p, uint32_t ring) {
        const te_fallback_tile t = te__fallback_tile(p, M);
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        const int row = warp / 4 * (M / 2), column = warp % 4 * 32;
        const int steps = (t.k_end - t.k_begin + 63) / TE_FALLBACK_TILE_K;
        float c[BLOCKS_M][BLOCKS_N][4];
        TE_UNROLL for (int i = 0; i < BLOCKS_M; i++)
            TE_UNROLL for (int j = 0; j < BLOCKS_N; j++) c[i][j][0] = c[i][j][1] = c[i][j][2] = c[i][j][3] = 0;
        TE_UNROLL for (int s = 0; s < STAGES - 1; s++) load(p, &t, ring, s);
#pragma unroll 1
        for (int s = 0; s < steps; s++) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            __syncthreads(); /* after this barrier, step s has arrived, and all warps have read step s - 1, whose stage
                              * is filled next */
            load(p, &t, ring, s + STAGES - 1);
            multiply(c, ring + (uint32_t)(s % STAGES * STAGE), row, column);
        }
        TE_UNROLL for (int i = 0; i < BLOCKS_M; i++)
            TE_UNROLL for (int j = 0; j < BLOCKS_N; j++)
                TE_UNROLL for (int h = 0; h < 2; h++)
                    te__fallback_store(p, t.row + row + 16 * i + 8 * h + lane / 4,
                                       t.col + column + 8 * j + lane % 4 * 2, c[i][j][2 * h], c[i][j][2 * h + 1]);
    }
};
template <te_dtype T, int TA, int TB, int M>
static __global__ void __launch_bounds__(TE_FALLBACK_THREADS, TE_FALLBACK_BLOCKS_PER_SM)
te_fallback_16bit(const __grid_constant__ te_fallback p) {
    extern __shared__ uint4 te_fallback_ring[];
    te_kernel_begin();
    te_fallback_mainloop<T, TA, TB, M>::body(&p, te__shared_address(te_fallback_ring));
}

/* ---- f32 --------------------------------------------------------------------------------------------------------- */

typedef struct te_fallback_f32_tiles {
    float a[TE_FALLBACK_F32_TILE_K][TE_FALLBACK_F32_PITCH], b[TE_FALLBACK_F32_TILE_K][TE_FALLBACK_F32_PITCH];
} te_fallback_f32_tiles;

/* Sets *line and *k to the position, in a tile, of the i-th element that this thread loads: the index of its line (a
 * row of A or a column of B), and its index along k. Neighbouring threads load neighbouring addresses. */
TE_FN void te__fallback_f32_place(int *line, int *k, int i, int mn_major) {
    const int index = i * TE_FALLBACK_THREADS + (int)threadIdx.x;
    *line = mn_major ? index % 128 : index / TE_FALLBACK_F32_TILE_K;
    *k = mn_major ? index / 128 : index % TE_FALLBACK_F32_TILE_K;
}
/* Load this thread's eight elements of a tile of an operand. The tile begins at line `line` (a row of A or a column of
 * B) and at index k of that line. Elements in lines from `lines` on, or with an index along k from k_end on, are set to
 * 0. */
TE_FN void te__fallback_f32_load(float v[8], const float *from, int lines, int depth, int line, int k, int k_end,
                                 int mn_major) {
    TE_UNROLL for (int i = 0; i < 8; i++) {
        int l, j;
        te__fallback_f32_place(&l, &j, i, mn_major);
        l += line, j += k;
        v[i] = l < lines && j < k_end ? from[mn_major ? (int64_t)j * lines + l : (int64_t)l * depth + j] : 0.0f;
    }
}
TE_FN void te__fallback_f32_to_shared(float tile[TE_FALLBACK_F32_TILE_K][TE_FALLBACK_F32_PITCH], const float v[8],
                                      int mn_major) {
    TE_UNROLL for (int i = 0; i < 8; i++) {
        int l, j;
        te__fallback_f32_place(&l, &j, i, mn_major);
        tile[j][l] = v[i];
    }
}
/* Loads the elements of eight lines (rows of A or columns of B) of a tile at one index of k: lines 4 * i to 4 * i + 3,
 * and lines 64 + 4 * i to 64 + 4 * i + 3. line: the address of line 0's element at this index. */
TE_FN void te__fallback_f32_fragment(float v[8], const float *line, int i) {
    const float4 u = *(const float4 *)(line + 4 * i), w = *(const float4 *)(line + 64 + 4 * i);
    v[0] = u.x, v[1] = u.y, v[2] = u.z, v[3] = u.w, v[4] = w.x, v[5] = w.y, v[6] = w.z, v[7] = w.w;
}
TE_IF_USED static __global__ void __launch_bounds__(TE_FALLBACK_THREADS, TE_FALLBACK_BLOCKS_PER_SM)
te_fallback_f32(const __grid_constant__ te_fallback p) {
    __shared__ __align__(16) te_fallback_f32_tiles s;
    te_kernel_begin();
    const te_fallback_tile t = te__fallback_tile(&p, TE_FALLBACK_TILE_M);
    const int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    float c[8][8], a[8], b[8];
    TE_UNROLL for (int i = 0; i < 8; i++) TE_UNROLL for (int j = 0; j < 8; j++) c[i][j] = 0;
#pragma unroll 1
    for (int k = t.k_begin; k < t.k_end; k += TE_FALLBACK_F32_TILE_K) {
        te__fallback_f32_load(a, (const float *)p.a, p.m, p.k, t.row, k, t.k_end, p.trans_a);
        te__fallback_f32_load(b, (const float *)p.b, p.n, p.k, t.col, k, t.k_end, !p.trans_b);
        __syncthreads(); /* after this barrier, all threads have read the tiles of the previous step, so the next two
                          * calls may overwrite the tiles */
        te__fallback_f32_to_shared(s.a, a, p.trans_a), te__fallback_f32_to_shared(s.b, b, !p.trans_b);
        __syncthreads();
        TE_UNROLL for (int j = 0; j < TE_FALLBACK_F32_TILE_K; j++) {
            te__fallback_f32_fragment(a, s.a[j], ty), te__fallback_f32_fragment(b, s.b[j], tx);
            TE_UNROLL for (int i = 0; i < 8; i++) TE_UNROLL for (int l = 0; l < 8; l++) c[i][l] += a[i] * b[l];
        }
    }
    TE_UNROLL for (int i = 0; i < 8; i++)
        TE_UNROLL for (int j = 0; j < 8; j += 2)
            te__fallback_store(&p, t.row + 4 * ty + i % 4 + i / 4 * 64, t.col + 4 * tx + j % 4 + j / 4 * 64, c[i][j],
                               c[i][j + 1]);
}

/* ---- the state of a context's GEMMs ------------------------------------------------------------------------------ */

/* The state to which te_context.gemm points: the workspace, and the strategies that autotuning chose for the steps of
 * models (fused ops). For a single GEMM nothing is chosen, because without cuBLASLt the fallback kernel is the only
 * candidate. */
typedef struct te__gemm_state {
    void *workspace;
    int choices;
    te_gemm_choice choice[TE_GEMM_MAX_CHOICES];
} te__gemm_state;

TE_API void te__gemm_close(te_context *ctx) {
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    if (s) te_release(ctx, s->workspace);
    free(s);
    ctx->gemm = 0;
}
/* Creates the state of the GEMMs on first use. The first use comes before any kernel is launched, namely when the size
 * of a plan's workspace is computed. */
TE_API te_status te__gemm_open(te_context *ctx) {
    if (ctx->gemm) return TE_OK;
    te__gemm_state *s = (te__gemm_state *)calloc(1, sizeof *s);
    TE_REQUIRE(s, ctx, TE_ERROR_MEMORY, "cannot allocate %zu bytes", sizeof *s);
    ctx->gemm = s, ctx->gemm_close = te__gemm_close;
    const te_status status = te__gemm_allocate(&s->workspace, ctx);
    if (status != TE_OK) te__gemm_close(ctx);
    return status;
}
/* Returns the state of the context's GEMMs, or null if it cannot be created. */
TE_API te__gemm_state *te__gemm_state_of(te_context *ctx) {
    return te__gemm_open(ctx) == TE_OK ? (te__gemm_state *)ctx->gemm : 0;
}
TE_API int te__gemm_is_timed(const te_gemm *g, te_context *ctx) { return (void)g, (void)ctx, 0; }
/* Returns whether te_gemm_run supports this GEMM. The only epilogue that the kernels of this file support is a bias; a
 * gelu is computed by a separate pointwise kernel. */
TE_API int te__gemm_supports(const te_gemm *g, te_context *ctx) {
    return (void)ctx, !te__gemm_is_fp8(g) && g->epilogue <= TE_EPILOGUE_BIAS;
}
/* Returns whether te_gemm_run may round differently if C and D are the same matrix than if they are two matrices.
 * Always 0 here, because the kernels of this file round the same way in both cases; cuBLASLt may not. */
TE_API int te__gemm_depends_on_place(const te_gemm *g) { return (void)g, 0; }
/* Return the number of floats of scratch memory that te_gemm_run needs: 0 here; only te_gemm_run of gemm_host.h needs
 * some. */
TE_API size_t te__gemm_scratch(const te_gemm *g) { return (void)g, (size_t)0; }

/* ---- for the tuning file ----------------------------------------------------------------------------------------- */

/* Without cuBLASLt no single GEMM is timed. The functions in this section make gemm_tune_file.h write no `gemm` line,
 * and refuse a file that has one. */

TE_API size_t te__gemm_library_version(void) { return 0; }
TE_API const te_gemm_tuned *te__gemm_next_tuned(int *at, te_context *ctx) {
    return (void)at, (void)ctx, (const te_gemm_tuned *)0;
}
TE_API int te__gemm_accepts(const te_gemm_tuned *t, int *added, te_context *ctx) {
    return (void)t, (void)ctx, *added = 1, 0;
}
TE_API void te__gemm_store_tuned(const te_gemm_tuned *t, te_context *ctx) { (void)t, (void)ctx; }
TE_API int te__gemm_free_plans(te_context *ctx) { return (void)ctx, (int)TE_GEMM_MAX_PLANS; }

/* ---- the launch -------------------------------------------------------------------------------------------------- */

/* Returns the kernel for products of dtype T with p->trans_a and p->trans_b, or null if the program does not contain
 * it. Without TRAINS, i.e. for inference only, a program contains just the 16-bit kernels of A B^T, because a linear
 * multiplies its input by the transpose of its weight. small_m: 1 to return the kernel with tiles of
 * TE_FALLBACK_SMALL_TILE_M rows, which exists only for an A that is not transposed. *number is set to a number below 16
 * that identifies the kernel (te__fallback_allow_shared). */
template <te_dtype T, int TRAINS>
TE_API const void *te__fallback_kernel(const te_fallback *p, int small_m, int *number) {
    enum { M = TE_FALLBACK_TILE_M, SMALL_M = TE_FALLBACK_SMALL_TILE_M };
    *number = (T == TE_f16) << 3 | small_m << 2 | p->trans_a << 1 | p->trans_b;
    if constexpr (T == TE_f32) return (const void *)te_fallback_f32<>;
    else {
        if constexpr (TRAINS) {
            if (p->trans_a)
                return p->trans_b ? (const void *)te_fallback_16bit<T, 1, 1, M>
                                  : (const void *)te_fallback_16bit<T, 1, 0, M>;
            if (!p->trans_b)
                return small_m ? (const void *)te_fallback_16bit<T, 0, 0, SMALL_M>
                               : (const void *)te_fallback_16bit<T, 0, 0, M>;
        }
        if (p->trans_a || !p->trans_b) return 0;
        return small_m ? (const void *)te_fallback_16bit<T, 0, 1, SMALL_M>
                       : (const void *)te_fallback_16bit<T, 0, 1, M>;
    }
}
/* Divides k into splits: as many as fill the device, but at most TE_FALLBACK_MAX_SPLITS. The number is also limited so
 * that the splits' partial sums fit into the workspace, and so that each split except perhaps the last has at least
 * TE_FALLBACK_MIN_SPLIT_STEPS steps. */
TE_API void te__fallback_split_k(te_fallback *p, te__gemm_state *s, te_context *ctx) {
    const int64_t steps = te_max(1, te_ceil_div(p->k, TE_FALLBACK_TILE_K)), tiles = (int64_t)p->tiles_m * p->tiles_n;
    const int64_t fit = (int64_t)TE_GEMM_WORKSPACE / ((int64_t)p->m * p->n * 4);
    int64_t splits =
        te_min(TE_FALLBACK_BLOCKS_PER_SM * ctx->processors / tiles, steps / TE_FALLBACK_MIN_SPLIT_STEPS);
    splits = te_max(1, te_min(te_min(splits, fit), TE_FALLBACK_MAX_SPLITS));
    const int64_t steps_each = te_ceil_div(steps, splits);
    p->k_per_split = (int)te_min(steps_each * TE_FALLBACK_TILE_K, te_max(p->k, 1));
    p->splits = (int)te_ceil_div(steps, steps_each);
    p->partial_sums = p->splits > 1 ? (float *)s->workspace : 0;
}
/* Raise the kernel's limit of dynamic shared memory to TE_FALLBACK_SHARED, once on each device. number: the number by
 * which te__fallback_kernel identifies the kernel. */
TE_API te_status te__fallback_allow_shared(const void *kernel, int number, te_context *ctx) {
    static uint64_t allowed[16]; /* bit d of allowed[number]: 1 if this kernel's limit was raised on device d */
    const uint64_t bit = 1ull << (ctx->device & 63);
    if (__atomic_load_n(&allowed[number], __ATOMIC_ACQUIRE) & bit) return TE_OK;
    TE_TRY(te__cuda_status(ctx, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                     TE_FALLBACK_SHARED), "shared memory of a matrix product"));
    (void)__atomic_fetch_or(&allowed[number], bit, __ATOMIC_RELEASE);
    return TE_OK;
}
/* Runs a GEMM whose operands have dtype T: D = alpha op(A) op(B) + beta C. */
template <te_dtype T, int TRAINS> TE_API te_status te__fallback_run(const te_gemm *g, te_context *ctx) {
    TE_TRY(te__gemm_check_run(g, "te_gemm_run", ctx));
    TE_REQUIRE(!te__gemm_is_fp8(g), ctx, TE_ERROR_BLAS,
               "te_gemm_run: an FP8 product %lld x %lld x %lld in a build without cuBLASLt (TE_NO_CUBLASLT)",
               (long long)g->m, (long long)g->n, (long long)g->k);
    TE_REQUIRE(te__gemm_supports(g, ctx), ctx, TE_ERROR_VALUE,
               "te_gemm_run: epilogue %s in a build without cuBLASLt (TE_NO_CUBLASLT)", te__epilogue_name(g->epilogue));
    TE_TRY(te__gemm_open(ctx));
    if (!g->m || !g->n) return TE_OK;
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    const int small_m = T != TE_f32 && !g->trans_a && g->m <= TE_FALLBACK_SMALL_TILE_M;
    te_fallback p;
    memset(&p, 0, sizeof p);
    p.a = g->a, p.b = g->b, p.c = g->c, p.d = g->d, p.bias = g->epilogue == TE_EPILOGUE_BIAS ? g->bias : 0;
    p.alpha = g->alpha, p.beta = g->beta, p.m = (int)g->m, p.n = (int)g->n, p.k = (int)g->k;
    p.trans_a = g->trans_a != 0, p.trans_b = g->trans_b != 0, p.dtype = T, p.out = g->out;
    p.tiles_m = (int)te_ceil_div(g->m, small_m ? TE_FALLBACK_SMALL_TILE_M : TE_FALLBACK_TILE_M);
    p.tiles_n = (int)te_ceil_div(g->n, TE_FALLBACK_TILE_N);
    te__fallback_split_k(&p, s, ctx);
    int number;
    const void *kernel = te__fallback_kernel<T, TRAINS>(&p, small_m, &number);
    const int shared = T == TE_f32 ? 0 : TE_FALLBACK_SHARED;
    TE_REQUIRE(kernel && g->dtype == T, ctx, TE_ERROR_BLAS,
               "te_gemm_run: a product in %s of A%s B%s in a list of %s for inference alone", te_dtype_name(g->dtype),
               p.trans_a ? "^T" : "", p.trans_b ? "^T" : "", te_dtype_name(T));
    if (shared) TE_TRY(te__fallback_allow_shared(kernel, number, ctx));
    const int64_t tiles = (int64_t)p.tiles_m * p.tiles_n;
    TE_REQUIRE(tiles <= INT32_MAX, ctx, TE_ERROR_OVERFLOW, "te_gemm_run: a product %lld x %lld x %lld", (long long)g->m,
               (long long)g->n, (long long)g->k);
    const te_launch launch = te__launch_of(kernel, "matrix product", te__grid_of(tiles, p.splits), TE_FALLBACK_THREADS,
                                           shared, 1);
    TE_TRY(te__cuda_launch(ctx, launch, &p, sizeof p));
    if (p.splits == 1) return TE_OK;
    return te__fallback_reduce_launch(ctx, te__grid_of(te_ceil_div(g->m * g->n, TE_FALLBACK_THREADS), 1), &p);
}
/* The function that a model, a list of ops of dtype T, calls to run its GEMMs. trains: 1 if this function must also
 * support the GEMMs of backward. */
#define TE_GEMM_RUN_OF(T, trains) te__fallback_run<T, trains>
/* Runs a GEMM of any dtype. A program that calls this function contains the kernels of all dtypes. */
TE_IF_USED TE_API te_status te_gemm_run(const te_gemm *g, te_context *ctx) {
    if (g && g->dtype == TE_f16) return te__fallback_run<TE_f16, 1>(g, ctx);
    if (g && g->dtype == TE_bf16) return te__fallback_run<TE_bf16, 1>(g, ctx);
    return te__fallback_run<TE_f32, 1>(g, ctx);
}

#endif
