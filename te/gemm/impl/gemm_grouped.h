/* gemm_grouped.h -- the grouped GEMMs of a mixture of experts: one GEMM for each group of rows, all in one launch.
 *
 * Group e has a weight of its own and the rows offset[e] to offset[e + 1] - 1 of x, of which only the first max_rows
 * are computed. There are three kinds of GEMMs:
 *     TE_GROUPED_FORWARD    y[rows, out] = x[rows, in] weight[e]^T, weight [groups, out, in]
 *     TE_GROUPED_DGRAD      dx[rows, in] = dy[rows, out] weight[e]
 *     TE_GROUPED_WGRAD      dweight[e] = dy^T x over the rows of the group, in f32
 * If in_fp8 is 1, the operands of forward and dgrad are in FP8. They have one scale for each 1 x 128 elements of x or
 * dy and one for each 128 x 128 elements of the weight. The operands of wgrad are always in g.dtype. `out` is then a
 * multiple of 128, so that each block of 128 x 128 weights belongs to one group, and `in` is a multiple of 16. On CUDA
 * the kernel in gemm_sm90_blockwise.h computes these GEMMs.
 *
 * The offsets lie in the memory of the target (the GPU or the host). On CUDA the host does not read them: it launches a
 * block for each tile that can exist, and each block finds its group from the offsets (te__grouped_find).
 *
 * Do this:
 *     te_grouped g = te__grouped_of(TE_GROUPED_FORWARD, out, in, groups, rows);
 *     g.a = x, g.b = weight, g.d = y, g.offset = offset, g.max_rows = rows, g.dtype = g.out_dtype = TE_bf16;
 */
#ifndef TE_GEMM_GROUPED_H
#define TE_GEMM_GROUPED_H

#include "../../quant/block_formats.h" /* te_quantized_weight */
#include "gemm_dispatch.h"             /* te_gemm, te__gemm_scratch */
#if TE_CUDA
#include "../../core/impl/ptx_cuda.h" /* te__mma_sync, te__ldmatrix_x4 */
#include "gemm_sm90_mainloop.h"       /* te__sm90_gemm_store_subtile */
#ifndef TE_KEEP_CALLS
#include "gemm_sm90_blockwise.h" /* te__sm90_blockwise_grouped_run */
#endif
#endif

/* Returns the GEMM of group e, whose rows are rows first to first + rows - 1 of x. */
TE_API te_gemm te__grouped_gemm(const te_grouped *g, int e, int64_t first, int64_t rows) {
    const int64_t weight = (int64_t)e * g->out * g->in, size = (int64_t)te_dtype_bytes(g->dtype);
    const int wgrad = g->kind == TE_GROUPED_WGRAD, dgrad = g->kind == TE_GROUPED_DGRAD;
    te_gemm p = te_gemm_of(wgrad ? g->out : rows, wgrad || dgrad ? g->in : g->out,
                           wgrad ? rows : dgrad ? g->out : g->in);
    p.dtype = g->dtype, p.out = g->out_dtype, p.trans_a = wgrad, p.trans_b = !wgrad && !dgrad, p.scratch = g->scratch;
    p.a = (const char *)g->a + first * (g->kind == TE_GROUPED_FORWARD ? g->in : g->out) * size;
    p.b = (const char *)g->b + (wgrad ? first * g->in : weight) * size;
    p.d = (char *)g->d + (wgrad ? weight : first * p.n) * (int64_t)te_dtype_bytes(g->out_dtype);
    p.c = p.d, p.beta = g->accumulate ? 1.0f : 0.0f;
    return p;
}
#if TE_CUDA

/* ---- CUDA: the tile of a block ----------------------------------------------------------------------------------- */

/* A block of 256 threads computes a tile of D. For 16-bit operands, cp.async copies slices of A and B, each with 64
 * elements along the inner dimension, into a ring of stages in shared memory, and mma.sync multiplies them, as in
 * gemm_fallback.h. These copies gather the rows of x, so no permuted copy of x is needed. A tile has 128 rows, or 16
 * rows if the groups have few rows on average, as in decoding; the weight of a group with at most 16 rows is then read
 * once. */
enum {
    TE_GROUPED_THREADS = 256,
    TE_GROUPED_DEPTH = 64,
    TE_GROUPED_SHARED = 96 << 10, /* bytes of the ring, so that two blocks fit on a multiprocessor */
    TE_GROUPED_F32_TILE = 64,
    TE_GROUPED_F32_DEPTH = 16
};
/* Returns which row of x is row `row` of the groups' input (see te_grouped.slot). */
TE_FN int64_t te__grouped_row(const te_grouped *g, int row) { return g->slot ? g->slot[row] / g->top_k : row; }

/* ---- CUDA: 16 bits ----------------------------------------------------------------------------------------------- */

/* Returns the address of 16-byte vector number `vector` in row `row` of a tile in shared memory, which has `vectors`
 * vectors per row. The tile is swizzled, so that the vectors with the same number in eight successive rows lie in
 * different banks. */
TE_FN uint32_t te__grouped_address(uint32_t tile, int row, int vector, int vectors) {
    return tile + (uint32_t)((row * vectors + (vector ^ (row & 7))) << 4);
}
TE_FN void te__grouped_copy(uint32_t to, const void *from, int exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
/* Load a fragment of 16 lines (rows of A or columns of B) and 16 elements along the inner dimension, as four 8 x 8
 * matrices in the order that mma.sync needs (gemm_fallback.h). transposed: 1 if a row of the tile in shared memory
 * holds the elements of all lines at one index of the inner dimension, 0 if it holds elements of one line. */
template <int VECTORS>
TE_FN void te__grouped_fragment(uint32_t w[4], uint32_t tile, int line, int k, const int is_b, const int transposed) {
    const int lane = (int)threadIdx.x % 32, matrix = lane / 8, lower = is_b ? matrix / 2 : matrix % 2,
              deeper = is_b ? matrix % 2 : matrix / 2;
    const int row = transposed ? k + 8 * deeper + lane % 8 : line + 8 * lower + lane % 8;
    const int vector = transposed ? line / 8 + lower : k / 8 + deeper;
    te__ldmatrix_x4(w, te__grouped_address(tile, row, vector, VECTORS), transposed);
}
/* The functions of the kernel for GEMMs of kind KIND in dtype T, with tiles of M x N. */
template <te_dtype T, int KIND, int M, int N> struct te_grouped_16bit {
    enum {
        WGRAD = KIND == TE_GROUPED_WGRAD,
        B_TRANSPOSED = KIND != TE_GROUPED_FORWARD, /* 1 if a row of B's tile holds the elements of all columns at one
                                                    * index of the inner dimension */
        K = TE_GROUPED_DEPTH,
        /* in a tile of 16 x 64, half of the warps multiply the first half of each stage's inner dimension, and the
         * other half of the warps multiply the second half */
        WARPS_M = M == 16 ? 1 : 2, WARPS_K = M == 16 && N == 64 ? 2 : 1, WARPS_N = 8 / WARPS_M / WARPS_K,
        WARP_M = M / WARPS_M, WARP_N = N / WARPS_N, WARP_K = K / WARPS_K,
        BLOCKS_M = WARP_M / 16, BLOCKS_N = WARP_N / 8,
        A_VECTORS = (WGRAD ? M : K) / 8, A_ROWS = WGRAD ? K : M, B_VECTORS = (B_TRANSPOSED ? N : K) / 8,
        B_ROWS = B_TRANSPOSED ? K : N,
        A_COPIES = (A_ROWS * A_VECTORS + TE_GROUPED_THREADS - 1) / TE_GROUPED_THREADS, /* of a thread, per stage */
        B_COPIES = B_ROWS * B_VECTORS / TE_GROUPED_THREADS,
        A_BYTES = M * K * 2, STAGE = A_BYTES + N * K * 2, STAGES = TE_GROUPED_SHARED / STAGE
    };
    /* at: the offsets in A, in elements, of the rows that this thread copies, or -1 for rows that do not exist; not
     * used if A is transposed (wgrad) */
    struct state {
        const uint16_t *a, *b;
        int64_t at[A_COPIES];
    };
    TE_FN int lines(const te_grouped *g) { return WGRAD ? g->out : 0; }
    TE_FN int columns(const te_grouped *g) { return KIND == TE_GROUPED_FORWARD ? g->out : g->in; }
    TE_FN int depth(const te_grouped *g) { return KIND == TE_GROUPED_FORWARD ? g->in : g->out; }

    TE_FN void begin(state *s, const te_grouped *g, const te_grouped_tile *t) {
        s->a = (const uint16_t *)g->a, s->b = (const uint16_t *)g->b;
        if (!WGRAD) s->b += (int64_t)t->e * g->out * g->in;
        TE_UNROLL for (int i = 0; !WGRAD && i < A_COPIES; i++) {
            const int row = t->first + (i * TE_GROUPED_THREADS + (int)threadIdx.x) / A_VECTORS;
            s->at[i] = row < t->end ? te__grouped_row(g, row) * depth(g) : -1;
        }
    }
    /* Starts the copies of step `step`, and commits them as a group of cp.async. If `step` is behind the last step, the
     * group is empty. */
    TE_FN void load(state *s, const te_grouped *g, const te_grouped_tile *t, int line, uint32_t ring, int step,
                    int steps) {
        const uint32_t stage = ring + (uint32_t)(step % STAGES * STAGE);
        if (step < steps) {
            const int k = step * K;
            TE_UNROLL for (int i = 0; i < A_COPIES; i++) {
                const int index = i * TE_GROUPED_THREADS + (int)threadIdx.x, row = index / A_VECTORS;
                const int vector = index % A_VECTORS;
                if (A_ROWS * A_VECTORS % TE_GROUPED_THREADS && row >= A_ROWS) continue;
                const int x = (WGRAD ? line : k) + vector * 8, source = t->first + k + row;
                const int exists = WGRAD ? source < t->end && x < g->out : s->at[i] >= 0 && x < depth(g);
                const int64_t at = WGRAD ? (int64_t)source * g->out + x : s->at[i] + x;
                te__grouped_copy(te__grouped_address(stage, row, vector, A_VECTORS), s->a + (exists ? at : 0), exists);
            }
            TE_UNROLL for (int i = 0; i < B_COPIES; i++) {
                const int index = i * TE_GROUPED_THREADS + (int)threadIdx.x, row = index / B_VECTORS;
                const int vector = index % B_VECTORS;
                const int x = (B_TRANSPOSED ? t->col : k) + vector * 8;
                const int y = WGRAD ? t->first + k + row : (B_TRANSPOSED ? k : t->col) + row;
                const int exists = y < (WGRAD ? t->end : g->out) && x < g->in;
                te__grouped_copy(te__grouped_address(stage + A_BYTES, row, vector, B_VECTORS),
                                 s->b + (exists ? (int64_t)y * g->in + x : 0), exists);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    TE_FN void multiply(float c[BLOCKS_M][BLOCKS_N][4], uint32_t stage, int row, int column, int first) {
        TE_UNROLL for (int k = first; k < first + WARP_K; k += 16) {
            uint32_t a[BLOCKS_M][4], b[BLOCKS_N / 2][4];
            TE_UNROLL for (int i = 0; i < BLOCKS_M; i++)
                te__grouped_fragment<A_VECTORS>(a[i], stage, row + 16 * i, k, 0, WGRAD);
            TE_UNROLL for (int j = 0; j < BLOCKS_N / 2; j++)
                te__grouped_fragment<B_VECTORS>(b[j], stage + A_BYTES, column + 16 * j, k, 1, B_TRANSPOSED);
            TE_UNROLL for (int i = 0; i < BLOCKS_M; i++)
                TE_UNROLL for (int j = 0; j < BLOCKS_N; j++)
                    te__mma_sync(c[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], T);
        }
    }
    /* Stores the sums for columns col and col + 1 of row `row`. */
    TE_FN void store(const te_grouped *g, const te_grouped_tile *t, int row, int col, float u, float v) {
        if (col >= columns(g) || row >= (WGRAD ? g->out : t->end)) return;
        const int64_t at = (WGRAD ? (int64_t)t->e * g->out * g->in : 0) + (int64_t)row * columns(g) + col;
        if (!WGRAD) {
            *(uint32_t *)((uint16_t *)g->d + at) = te_pair_of_floats(u, v, T);
            return;
        }
        float2 *to = (float2 *)((float *)g->d + at);
        const float2 old = g->accumulate ? *to : make_float2(0, 0);
        *to = make_float2(old.x + u, old.y + v);
    }
    /* Adds the sums of the second half of the warps to the sums of the first half; returns whether this warp has the
     * totals. */
    TE_FN int add_halves(float *c, int half) {
        enum { SUMS = WARPS_K > 1 ? BLOCKS_M * BLOCKS_N * 4 : 1, THREADS = TE_GROUPED_THREADS / 2 };
        __shared__ float sums[SUMS][THREADS];
        const int thread = (int)threadIdx.x % THREADS;
        TE_UNROLL for (int i = 0; half && i < SUMS; i++) sums[i][thread] = c[i];
        __syncthreads();
        TE_UNROLL for (int i = 0; !half && i < SUMS; i++) c[i] += sums[i][thread];
        return !half;
    }
    TE_FN void body(const te_grouped *g, uint32_t ring) {
        const int tiles_n = (columns(g) + N - 1) / N, at = (int)blockIdx.x;
        te_grouped_tile t;
        int line = 0;
        if (WGRAD) t = te__grouped_group(g, (int)blockIdx.y), line = at / tiles_n * M;
        else t = te__grouped_find(g, at / tiles_n, M), line = t.first;
        t.col = at % tiles_n * N;
        if (!WGRAD && t.first >= t.end) return;
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        const int row = warp / WARPS_N % WARPS_M * WARP_M, column = warp % WARPS_N * WARP_N;
        const int half = warp / (WARPS_M * WARPS_N); /* the half of each stage that this warp multiplies, if WARPS_K is
                                                      * 2; else 0 */
        const int steps = ((WGRAD ? t.end - t.first : depth(g)) + K - 1) / K;
        float c[BLOCKS_M][BLOCKS_N][4];
        state s;
        TE_UNROLL for (int i = 0; i < BLOCKS_M; i++)
            TE_UNROLL for (int j = 0; j < BLOCKS_N; j++) c[i][j][0] = c[i][j][1] = c[i][j][2] = c[i][j][3] = 0;
        begin(&s, g, &t);
        TE_UNROLL_1 for (int i = 0; i < STAGES - 1; i++) load(&s, g, &t, line, ring, i, steps);
        TE_UNROLL_1 for (int i = 0; i < steps; i++) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            __syncthreads(); /* after this barrier, step i has arrived, and all warps have read step i - 1, whose stage
                              * is filled next */
            load(&s, g, &t, line, ring, i + STAGES - 1, steps);
            multiply(c, ring + (uint32_t)(i % STAGES * STAGE), row, column, half * WARP_K);
        }
        if (WARPS_K > 1 && !add_halves(&c[0][0][0], half)) return;
        TE_UNROLL for (int i = 0; i < BLOCKS_M; i++)
            TE_UNROLL for (int j = 0; j < BLOCKS_N; j++)
                TE_UNROLL for (int h = 0; h < 2; h++)
                    store(g, &t, line + row + 16 * i + 8 * h + lane / 4, t.col + column + 8 * j + lane % 4 * 2,
                          c[i][j][2 * h], c[i][j][2 * h + 1]);
    }
};
template <te_dtype T, int KIND, int M, int N>
static __global__ void __launch_bounds__(TE_GROUPED_THREADS, 2)
te_grouped_product(const __grid_constant__ te_grouped g) {
    extern __shared__ uint4 te_grouped_ring[];
    te_kernel_begin();
    te_grouped_16bit<T, KIND, M, N>::body(&g, te__shared_address(te_grouped_ring));
}

/* ---- CUDA: f32 --------------------------------------------------------------------------------------------------- */

/* A block computes a tile of 64 x 64 with float multiplications; each thread computes 4 x 4 elements. */
template <int KIND>
static __global__ void __launch_bounds__(TE_GROUPED_THREADS, 2) te_grouped_f32(const __grid_constant__ te_grouped g) {
    enum { TILE = TE_GROUPED_F32_TILE, K = TE_GROUPED_F32_DEPTH, WGRAD = KIND == TE_GROUPED_WGRAD };
    __shared__ float a[K][TILE + 4], b[K][TILE + 4];
    te_kernel_begin();
    const int columns = KIND == TE_GROUPED_FORWARD ? g.out : g.in, tiles_n = (columns + TILE - 1) / TILE;
    const int ty = (int)threadIdx.x / 16 * 4, tx = (int)threadIdx.x % 16 * 4, at = (int)blockIdx.x;
    te_grouped_tile t;
    int line;
    if (WGRAD) t = te__grouped_group(&g, (int)blockIdx.y), line = at / tiles_n * TILE;
    else t = te__grouped_find(&g, at / tiles_n, TILE), line = t.first;
    t.col = at % tiles_n * TILE;
    if (!WGRAD && t.first >= t.end) return;
    const int depth = WGRAD ? t.end - t.first : KIND == TE_GROUPED_FORWARD ? g.in : g.out;
    const int64_t weight = (int64_t)t.e * g.out * g.in;
    const float *from_a = (const float *)g.a, *from_b = (const float *)g.b;
    float c[4][4] = {{0}};
    for (int k0 = 0; k0 < depth; k0 += K) {
        TE_UNROLL for (int i = 0; i < TILE * K / TE_GROUPED_THREADS; i++) {
            const int index = i * TE_GROUPED_THREADS + (int)threadIdx.x;
            const int la = WGRAD ? index % TILE : index / K, ka = WGRAD ? index / TILE : index % K;
            const int lb = KIND == TE_GROUPED_FORWARD ? index / K : index % TILE;
            const int kb = KIND == TE_GROUPED_FORWARD ? index % K : index / TILE;
            const int row = line + la, col = t.col + lb;
            const int has_a = k0 + ka < depth && row < (WGRAD ? g.out : t.end);
            const int has_b = k0 + kb < depth && col < columns;
            a[ka][la] = !has_a ? 0.0f : WGRAD ? from_a[(int64_t)(t.first + k0 + ka) * g.out + row]
                                              : from_a[te__grouped_row(&g, row) * depth + k0 + ka];
            b[kb][lb] = !has_b                          ? 0.0f
                        : WGRAD                         ? from_b[(int64_t)(t.first + k0 + kb) * g.in + col]
                        : KIND == TE_GROUPED_FORWARD    ? from_b[weight + (int64_t)col * g.in + k0 + kb]
                                                        : from_b[weight + (int64_t)(k0 + kb) * g.in + col];
        }
        __syncthreads();
        TE_UNROLL for (int k = 0; k < K; k++) {
            TE_UNROLL for (int i = 0; i < 4; i++)
                TE_UNROLL for (int j = 0; j < 4; j++) c[i][j] += a[k][ty + i] * b[k][tx + j];
        }
        __syncthreads();
    }
    TE_UNROLL for (int i = 0; i < 4; i++)
        TE_UNROLL for (int j = 0; j < 4; j++) {
            const int row = line + ty + i, col = t.col + tx + j;
            if (col >= columns || row >= (WGRAD ? g.out : t.end)) continue;
            float *to = (float *)g.d + (WGRAD ? weight : 0) + (int64_t)row * columns + col;
            *to = c[i][j] + (WGRAD && g.accumulate ? *to : 0.0f);
        }
}

#ifndef TE_KEEP_CALLS /* TE_KEEP_CALLS prevents inlining, so accumulators would not stay in registers */
/* ---- Hopper: 16 bits, by wgmma ----------------------------------------------------------------------------------- */

/* A persistent kernel with tiles of 128 x 256, like gemm_sm90.h: two consumer warpgroups accumulate 64 x 256 each, and
 * a producer warpgroup fills a pipeline of four stages, each with 64 elements along the inner dimension. TMA makes all
 * copies except those of gathered rows of x, which cp.async makes. The inner dimension must be a multiple of 64, except
 * in wgrad. In wgrad the inner dimension is the number of rows of a group, and the copies write zeros in place of the
 * rows behind the group's end. The lower bound of the time is that of a dense GEMM (gemm_sm90.h). */
enum {
    TE_GROUPED_SM90_M = 128,
    TE_GROUPED_SM90_N = 256,
    TE_GROUPED_STAGES = 4,
    TE_GROUPED_A_BYTES = TE_GROUPED_SM90_M * TE_GROUPED_DEPTH * 2,
    TE_GROUPED_STAGE_BYTES = TE_GROUPED_A_BYTES + TE_GROUPED_SM90_N * TE_GROUPED_DEPTH * 2,
    TE_GROUPED_SM90_SHARED = TE_GROUPED_STAGES * TE_GROUPED_STAGE_BYTES + 8 * 2048 + 1024,
    TE_GROUPED_SM90_THREADS = 384,
    /* The producer passes a stage to the consumers after it has started the copies of this many later stages. By then
     * the stage's own copies have usually arrived, so that the producer does not wait for them. */
    TE_GROUPED_LAG = 2
};
typedef struct te_grouped_sm90 {
    CUtensorMap a_map; /* maps x in forward (unused if rows of x are gathered), and dy in dgrad and wgrad. In wgrad,
                        * rows of a box that lie behind the last row of the group are filled with zeros
                        * (te__tensor_map_ragged) */
    CUtensorMap b_map; /* maps the weights of all groups, [groups * out, in], in forward and dgrad. In wgrad maps x
                        * [rows, in], and rows are filled with zeros as for a_map */
    te_grouped g;
} te_grouped_sm90;
typedef struct te_grouped_barriers { uint64_t full[TE_GROUPED_STAGES], empty[TE_GROUPED_STAGES]; } te_grouped_barriers;
/* Returns an upper bound of the number of tiles. Tiles are indexed from 0 to this bound - 1; some indices have no tile
 * (te__grouped_find). */
TE_BOTH int64_t te__grouped_sm90_tiles(const te_grouped *g) {
    const int columns = g->kind == TE_GROUPED_FORWARD ? g->out : g->in;
    const int64_t tiles_n = te_ceil_div(columns, TE_GROUPED_SM90_N);
    return tiles_n * (g->kind == TE_GROUPED_WGRAD ? g->groups * te_ceil_div(g->out, TE_GROUPED_SM90_M)
                                                  : g->rows / TE_GROUPED_SM90_M + g->groups);
}
#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* The functions of the kernel for GEMMs of kind KIND in dtype T. */
template <te_dtype T, int KIND> struct te_grouped_wgmma {
    enum {
        WGRAD = KIND == TE_GROUPED_WGRAD, M = TE_GROUPED_SM90_M, N = TE_GROUPED_SM90_N, K = TE_GROUPED_DEPTH,
        B_MN_MAJOR = KIND != TE_GROUPED_FORWARD,
        A_COPIES = M * K / 8 / 128 /* number of vectors of a stage that one producer thread copies */
    };
    /* A tile of D. line: the index of the tile's first row, in y (forward), in dx (dgrad) or in the group's dweight
     * (wgrad); steps: the number of steps along the inner dimension, each of K elements. */
    struct work { te_grouped_tile t; int line, steps; };

    TE_FN int find(work *w, const te_grouped *g, int tile) {
        const int columns = KIND == TE_GROUPED_FORWARD ? g->out : g->in, tiles_n = (columns + N - 1) / N;
        const int tiles_m = (g->out + M - 1) / M, at = tile / tiles_n;
        if (WGRAD) {
            w->t = te__grouped_group(g, at / tiles_m);
            w->line = at % tiles_m * M, w->steps = (w->t.end - w->t.first + K - 1) / K;
        } else {
            w->t = te__grouped_find(g, at, M), w->line = w->t.first;
            w->steps = (KIND == TE_GROUPED_FORWARD ? g->in : g->out) / K;
        }
        w->t.col = tile % tiles_n * N;
        return WGRAD ? w->steps || !g->accumulate : w->t.first < w->t.end;
    }

    /* Searches the tile indices *tile, *tile + gridDim.x, .. for the first index that has a tile; sets *tile to this
     * index and *w to the tile. Returns 0 if none of these indices has a tile. */
    TE_FN int seek(work *w, int *tile, const te_grouped *g) {
        const int tiles = (int)te__grouped_sm90_tiles(g);
        while (*tile < tiles && !find(w, g, *tile)) *tile += (int)gridDim.x;
        return *tile < tiles;
    }

    /* ---- the producer warpgroup */

    /* Returns the address of 16-byte vector `vector` in row `row` of a tile with rows of 128 bytes, in TMA's swizzled
     * layout. */
    TE_FN uint32_t swizzle(uint32_t tile, int row, int vector) {
        return tile + (uint32_t)(row * 128 + ((vector ^ (row & 7)) << 4));
    }
    /* Copies A's part of a stage, 128 gathered rows of x, in the 64 columns from column k on. at: the offset in x, in
     * elements, of each row that this thread copies, or -1 for a row that does not exist. */
    TE_FN void copy_a(const te_grouped *g, uint32_t to, const int64_t at[A_COPIES], int k) {
        TE_UNROLL for (int i = 0; i < A_COPIES; i++) {
            const int row = i * 16 + (int)threadIdx.x / 8, vector = (int)threadIdx.x % 8;
            const int64_t from = at[i] < 0 ? 0 : at[i] + k + vector * 8;
            te__grouped_copy(swizzle(to, row, vector), (const uint16_t *)g->a + from, at[i] >= 0);
        }
    }
    /* For wgrad: loads a box of 64 rows and 64 columns of dy or x. Only the first `count` rows belong to the group; TMA
     * fills the other rows with zeros. */
    TE_FN void load_box(uint32_t to, const CUtensorMap *map, int col, int first, int count, uint32_t bar) {
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                     "l"(map), "r"(col), "r"(te__ragged_row(0, count)), "r"(first + count), "r"((int)TE__RAGGED_ROWS),
                     "r"(bar)
                     : "memory");
    }
    TE_FN void load_rows(const te_grouped_sm90 *p, const work *w, uint32_t to, int step, uint32_t bar) {
        const int first = w->t.first + step * K, count = w->t.end - first;
        te__barrier_arrive_expect_tx(bar, TE_GROUPED_STAGE_BYTES);
        TE_UNROLL for (int q = 0; q < 2; q++)
            load_box(to + q * 8192, &p->a_map, w->line + 64 * q, first, count, bar);
        TE_UNROLL for (int q = 0; q < 4; q++)
            load_box(to + TE_GROUPED_A_BYTES + q * 8192, &p->b_map, w->t.col + 64 * q, first, count, bar);
    }
    /* Starts the TMA copies for a stage: of B and, unless its rows are gathered, of A. Rows of A behind the end of the
     * group are copied, too; the rows of D that are computed from them are not stored. */
    TE_FN void load_stage(const te_grouped_sm90 *p, const work *w, uint32_t to, int k, uint32_t bar) {
        const int first = w->t.e * p->g.out;
        const uint32_t b = to + TE_GROUPED_A_BYTES;
        te__barrier_arrive_expect_tx(bar, p->g.slot ? N * K * 2 : (int)TE_GROUPED_STAGE_BYTES);
        if (!p->g.slot) te__tma_load(to, &p->a_map, k, w->t.first, bar, 0);
        if (!B_MN_MAJOR) te__tma_load(b, &p->b_map, k, first + w->t.col, bar, 0);
        else TE_UNROLL for (int q = 0; q < 4; q++)
            te__tma_load(b + q * 8192, &p->b_map, w->t.col + 64 * q, first + k, bar, 0);
    }
    /* Passes stage number count - 1 - LAG to the consumers; the stages of all tiles are numbered consecutively. The
     * fence makes the copies by cp.async visible to wgmma, which reads shared memory by the async proxy. */
    template <int LAG> TE_FN void pass(te_grouped_barriers *bars, int count) {
        asm volatile("cp.async.wait_group %0;\nfence.proxy.async.shared::cta;" ::"n"(LAG) : "memory");
        te__barrier_arrive(te__shared_address(&bars->full[(count - 1 - LAG) % TE_GROUPED_STAGES]));
    }
    /* The producer if TMA makes all copies. One warp runs this function, and one of its threads starts the copies. */
    TE_FN void produce(const te_grouped_sm90 *p, uint32_t ring, te_grouped_barriers *bars) {
        const te_grouped *g = &p->g;
        int count = 0, tile = (int)blockIdx.x;
        work w;
        for (; seek(&w, &tile, g); tile += (int)gridDim.x)
            TE_UNROLL_1 for (int s = 0; s < w.steps; s++, count++) {
                const int stage = count % TE_GROUPED_STAGES;
                const uint32_t to = ring + (uint32_t)(stage * TE_GROUPED_STAGE_BYTES);
                const uint32_t full = te__shared_address(&bars->full[stage]);
                te__barrier_wait(te__shared_address(&bars->empty[stage]), count / TE_GROUPED_STAGES % 2 ^ 1);
                if (threadIdx.x) continue;
                if (WGRAD) load_rows(p, &w, to, s, full);
                else load_stage(p, &w, to, s * K, full);
            }
    }
    /* The producer if rows of x are gathered. All threads of the producer warpgroup run this function, and copy the
     * rows of A by cp.async. */
    TE_FN void produce_gathered(const te_grouped_sm90 *p, uint32_t ring, te_grouped_barriers *bars) {
        const te_grouped *g = &p->g;
        int count = 0, tile = (int)blockIdx.x; /* count: number of stages filled so far */
        work w;
        for (; seek(&w, &tile, g); tile += (int)gridDim.x) {
            int64_t at[A_COPIES];
            TE_UNROLL for (int i = 0; i < A_COPIES; i++) {
                const int row = w.t.first + i * 16 + (int)threadIdx.x / 8;
                at[i] = row < w.t.end ? te__grouped_row(g, row) * g->in : -1;
            }
            TE_UNROLL_1 for (int s = 0; s < w.steps; s++) {
                const int stage = count % TE_GROUPED_STAGES;
                const uint32_t to = ring + (uint32_t)(stage * TE_GROUPED_STAGE_BYTES);
                te__barrier_wait(te__shared_address(&bars->empty[stage]), count / TE_GROUPED_STAGES % 2 ^ 1);
                if (threadIdx.x == 0) load_stage(p, &w, to, s * K, te__shared_address(&bars->full[stage]));
                copy_a(g, to, at, s * K);
                asm volatile("cp.async.commit_group;" ::: "memory");
                if (++count > TE_GROUPED_LAG) pass<TE_GROUPED_LAG>(bars, count);
            }
        }
        if (count > 1) pass<1>(bars, count);
        if (count > 0) pass<0>(bars, count);
    }

    /* ---- the consumer warpgroups */

    TE_FN void multiply(float d[128], uint32_t a, uint32_t b, int step) {
        te__wgmma_fence();
        TE_UNROLL for (int q = 0; q < K / 16; q++) {
            const uint64_t a_desc = te__wgmma_descriptor_of_low(a + q * (WGRAD ? 128 : 2));
            const uint64_t b_desc = te__wgmma_descriptor_of_low(b + q * (B_MN_MAJOR ? 128 : 2));
            if (WGRAD) te__wgmma_n256_mn_major(d, a_desc, b_desc, step || q, T);
            else te__wgmma_n256(d, a_desc, b_desc, step || q, T, B_MN_MAJOR);
        }
        te__wgmma_commit();
    }
    /* Stores this warp's 16 rows of a tile, in 16 bits. A quarter of the columns at a time passes through the warp's
     * subtile in shared memory, so that eight lanes store 128 bytes of a row. */
    TE_FN void store(const te_grouped *g, const work *w, const float d[128], uint32_t subtile) {
        const int columns = KIND == TE_GROUPED_FORWARD ? g->out : g->in, lane = (int)threadIdx.x % 32;
        const int first = w->line + ((int)threadIdx.x / 32 - 4) * 16;
        TE_UNROLL for (int quarter = 0; quarter < 4; quarter++) {
            uint32_t packed[16], v[4];
            te__sm90_gemm_pack_quarter(packed, d, quarter, T);
            te__sm90_gemm_store_subtile(subtile, packed, lane);
            __syncwarp();
            TE_UNROLL for (int i = 0; i < 4; i++) {
                const int row = first + 4 * i + lane / 8, col = w->t.col + 64 * quarter + lane % 8 * 8;
                te__lds128(v, te__sm90_gemm_swizzle(subtile, 4 * i + lane / 8, lane % 8));
                if (row < w->t.end && col < columns)
                    *(uint4 *)((uint16_t *)g->d + (int64_t)row * columns + col) = make_uint4(v[0], v[1], v[2], v[3]);
            }
            __syncwarp();
        }
    }
    /* For wgrad: stores this warp's 16 rows of a tile in dweight, in f32, or adds them to dweight. Four lanes store 32
     * bytes of a row. */
    TE_FN void store_f32(const te_grouped *g, const work *w, const float d[128]) {
        const int lane = (int)threadIdx.x % 32, first = w->line + ((int)threadIdx.x / 32 - 4) * 16 + lane / 4;
        float *to = (float *)g->d + (int64_t)w->t.e * g->out * g->in;
        TE_UNROLL for (int h = 0; h < 2; h++) {
            if (first + 8 * h >= g->out) continue;
            TE_UNROLL for (int j = 0; j < 32; j++) {
                const int col = w->t.col + 8 * j + lane % 4 * 2;
                float2 *at = (float2 *)(to + (int64_t)(first + 8 * h) * g->in + col);
                if (col >= g->in) continue;
                const float2 old = g->accumulate ? *at : make_float2(0, 0);
                *at = make_float2(old.x + d[4 * j + 2 * h], old.y + d[4 * j + 2 * h + 1]);
            }
        }
    }
    TE_FN void consume(const te_grouped_sm90 *p, uint32_t ring, te_grouped_barriers *bars) {
        const te_grouped *g = &p->g;
        const int warp = (int)threadIdx.x / 32 - 4, lane = (int)threadIdx.x % 32;
        const int warpgroup = __shfl_sync(~0u, warp / 4, 0);
        const uint32_t a = (uint32_t)te__wgmma_descriptor(ring + warpgroup * 8192, WGRAD);
        const uint32_t b = (uint32_t)te__wgmma_descriptor(ring + TE_GROUPED_A_BYTES, B_MN_MAJOR);
        const uint32_t empty = te__shared_address(bars->empty), full = te__shared_address(bars->full);
        const uint32_t subtile = ring + (uint32_t)(TE_GROUPED_STAGES * TE_GROUPED_STAGE_BYTES + warp * 2048);
        int stage = 0, phase = 0, tile = (int)blockIdx.x;
        float d[128];
        work w, next;
        for (int more = seek(&w, &tile, g); more; w = next) {
            TE_UNROLL for (int i = 0; WGRAD && i < 128; i++) d[i] = 0; /* a group may have no rows */
            TE_UNROLL_1 for (int s = 0; s < w.steps; s++) {
                const uint32_t offset = (uint32_t)stage * (TE_GROUPED_STAGE_BYTES >> 4);
                te__barrier_wait(full + 8 * stage, phase);
                multiply(d, a + offset, b + offset, s);
                te__wgmma_wait_1();
                if (s && lane == 0) te__barrier_arrive(empty + 8 * (stage ? stage - 1 : TE_GROUPED_STAGES - 1));
                if (++stage == TE_GROUPED_STAGES) stage = 0, phase ^= 1;
            }
            tile += (int)gridDim.x, more = seek(&next, &tile, g); /* while the tensor cores are busy */
            te__wgmma_wait_0();
            if (w.steps && lane == 0) te__barrier_arrive(empty + 8 * (stage ? stage - 1 : TE_GROUPED_STAGES - 1));
            if (WGRAD) store_f32(g, &w, d);
            else store(g, &w, d, subtile);
        }
    }
    TE_FN void body(const te_grouped_sm90 *p, te_grouped_barriers *bars) {
        extern __shared__ char te_grouped_stages[];
        const uint32_t ring = (te__shared_address(te_grouped_stages) + 1023) & ~1023u;
        if (threadIdx.x == 0) {
            TE_UNROLL for (int s = 0; s < TE_GROUPED_STAGES; s++) {
                te__barrier_init(te__shared_address(&bars->full[s]), p->g.slot ? 129 : 1);
                te__barrier_init(te__shared_address(&bars->empty[s]), 8);
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncthreads();
        te_kernel_begin();
        if (threadIdx.x < 128) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
            if (KIND == TE_GROUPED_FORWARD && p->g.slot) produce_gathered(p, ring, bars);
            else if (threadIdx.x < 32) produce(p, ring, bars);
        } else {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
            consume(p, ring, bars);
        }
    }
};
#endif
template <te_dtype T, int KIND>
static __global__ void __launch_bounds__(TE_GROUPED_SM90_THREADS, 1)
te_grouped_sm90_product(const __grid_constant__ te_grouped_sm90 p) {
#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__
    __shared__ te_grouped_barriers bars;
    te_grouped_wgmma<T, KIND>::body(&p, &bars);
#endif
}
/* Creates the tensor map of a matrix with `width` columns, for boxes of 64 x 64 elements in which TMA fills the rows
 * behind the last row of a group with zeros. */
TE_API te_status te__grouped_rows_map(CUtensorMap *map, te__tensor_map_encode_fn encode, const void *data, int width,
                                      te_dtype dtype, te_context *ctx) {
    const te__tensor_shape shape = {2, {(cuuint64_t)width, 0}, {(cuuint64_t)width * 2}, {64, 64}};
    return te__tensor_map_ragged(map, encode, data, &shape, dtype, ctx);
}
/* Launches the wgmma kernel above if it can run on this device and supports these GEMMs. Sets *is_done to 1 if the
 * kernel was launched, else to 0. */
template <te_dtype T, te_grouped_kind KIND>
TE_API te_status te__grouped_sm90_launch(int *is_done, const te_grouped *g, te_context *ctx) {
    static te_sm90_kernel kernel = {(const void *)te_grouped_sm90_product<T, KIND>, 0, 0};
    const int depth = KIND == TE_GROUPED_FORWARD ? g->in : g->out, is_forward = KIND == TE_GROUPED_FORWARD;
    const int64_t tiles = te__grouped_sm90_tiles(g);
    te_grouped_sm90 p;
    *is_done = 0;
    if (ctx->capability != 900 || (KIND != TE_GROUPED_WGRAD && depth % TE_GROUPED_DEPTH)) return TE_OK;
    const te__tensor_map_encode_fn encode = te__tensor_map_encoder(ctx);
    if (!encode || !te__sm90_kernel_ready(&kernel, TE_GROUPED_SM90_SHARED, ctx->device)) return TE_OK;
    memset(&p, 0, sizeof p);
    p.g = *g;
    if (KIND == TE_GROUPED_WGRAD) {
        TE_TRY(te__grouped_rows_map(&p.a_map, encode, g->a, g->out, T, ctx));
        TE_TRY(te__grouped_rows_map(&p.b_map, encode, g->b, g->in, T, ctx));
    } else {
        if (!g->slot) TE_TRY(te__tensor_map_matrix(&p.a_map, encode, g->a, g->rows, depth, TE_GROUPED_SM90_M, T, ctx));
        TE_TRY(te__tensor_map_matrix(&p.b_map, encode, g->b, (int64_t)g->groups * g->out, g->in,
                                     is_forward ? (int)TE_GROUPED_SM90_N : 64, T, ctx));
    }
    TE_REQUIRE(tiles <= INT32_MAX / 2, ctx, TE_ERROR_OVERFLOW, "a product of %lld rows and %d groups",
               (long long)g->rows, g->groups);
    *is_done = 1;
    const te_grid grid = te__grid_of(te_min(tiles, ctx->processors), 1);
    const te_launch launch = te__launch_of(kernel.kernel, "grouped product", grid, TE_GROUPED_SM90_THREADS,
                                           TE_GROUPED_SM90_SHARED, 1);
    return te__cuda_launch(ctx, launch, &p, sizeof p);
}

#endif

/* ---- CUDA: the launch -------------------------------------------------------------------------------------------- */

/* Raises a kernel's limit of dynamic shared memory, once on each device. */
template <te_dtype T, int KIND, int M, int N> TE_API te_status te__grouped_allow_shared(te_context *ctx) {
    static uint64_t allowed; /* one bit for each device */
    const uint64_t bit = 1ull << (ctx->device & 63);
    if (__atomic_load_n(&allowed, __ATOMIC_ACQUIRE) & bit) return TE_OK;
    TE_TRY(te__cuda_status(ctx, cudaFuncSetAttribute((const void *)te_grouped_product<T, KIND, M, N>,
                                                     cudaFuncAttributeMaxDynamicSharedMemorySize, TE_GROUPED_SHARED),
                           "shared memory of a grouped product"));
    (void)__atomic_fetch_or(&allowed, bit, __ATOMIC_RELEASE);
    return TE_OK;
}
template <te_dtype T, int KIND, int M, int N>
TE_API te_status te__grouped_launch(const te_grouped *g, te_context *ctx) {
    const int size = T == TE_f32 ? (int)TE_GROUPED_F32_TILE : M, n = T == TE_f32 ? size : N;
    const int64_t tiles_n = te_ceil_div(KIND == TE_GROUPED_FORWARD ? g->out : g->in, n);
    const int64_t tiles_m = KIND == TE_GROUPED_WGRAD ? te_ceil_div(g->out, size) : g->rows / size + g->groups;
    const te_grid grid = te__grid_of(tiles_m * tiles_n, KIND == TE_GROUPED_WGRAD ? g->groups : 1);
    const void *kernel;
    TE_REQUIRE(tiles_m * tiles_n <= INT32_MAX, ctx, TE_ERROR_OVERFLOW, "a product of %lld rows and %d groups",
               (long long)g->rows, g->groups);
    if constexpr (T == TE_f32) kernel = (const void *)te_grouped_f32<KIND>;
    else {
        TE_TRY((te__grouped_allow_shared<T, KIND, M, N>(ctx)));
        kernel = (const void *)te_grouped_product<T, KIND, M, N>;
    }
    const te_launch launch = te__launch_of(kernel, "grouped product", grid, TE_GROUPED_THREADS,
                                           T == TE_f32 ? 0 : (int)TE_GROUPED_SHARED, 1);
    return te__cuda_launch(ctx, launch, g, sizeof *g);
}
/* Runs the GEMMs of all groups, in dtype T. Tiles of 16 rows are used if the groups have fewer than 32 rows on average.
 * These tiles have 64 columns if tiles of 128 columns would be too few to keep the device busy. */
template <te_dtype T, te_grouped_kind KIND>
TE_API te_status te__grouped_run(const te_grouped *g, te_context *ctx) {
    if constexpr (KIND != TE_GROUPED_WGRAD && T != TE_f32) {
        const int columns = KIND == TE_GROUPED_FORWARD ? g->out : g->in;
        const int64_t tiles = te_min(g->rows, g->groups) * te_ceil_div(columns, 128);
        if (g->rows < 32 * (int64_t)g->groups * g->ranks)
            return tiles < 4 * ctx->processors ? te__grouped_launch<T, KIND, 16, 64>(g, ctx)
                                               : te__grouped_launch<T, KIND, 16, 128>(g, ctx);
    }
#ifndef TE_KEEP_CALLS
    if constexpr (T != TE_f32) {
        int is_done;
        TE_TRY((te__grouped_sm90_launch<T, KIND>(&is_done, g, ctx)));
        if (is_done) return TE_OK;
    }
#endif
    return te__grouped_launch<T, KIND, 128, 128>(g, ctx);
}
/* Runs the GEMMs of all groups, like te__grouped_run, for operands in FP8 and a D in bf16 or f16. */
TE_IF_USED TE_API te_status te__grouped_fp8_run(const te_grouped *g, te_context *ctx) {
#ifdef TE_KEEP_CALLS
    const int has_kernel = 0;
#else
    const int has_kernel = 1;
    if (has_kernel) return te__sm90_blockwise_grouped_run<>(g, ctx);
#endif
    TE_REQUIRE(has_kernel, ctx, TE_ERROR_STATE, "a build with TE_KEEP_CALLS has no grouped products in FP8 (%d groups)",
               g->groups);
    return TE_OK;
}
#else
enum { TE_GROUPED_MAX_PARTS = 16 }; /* the largest number of parts of one group's quantized weight */
/* Returns the number of floats of g->scratch that te__grouped_fp8_operands needs. */
TE_API size_t te__grouped_fp8_scratch(const te_grouped *g) {
    const int64_t depth = g->kind == TE_GROUPED_FORWARD ? g->in : g->out;
    const int64_t of_a = te_round_up(te_scaling_count(TE_SCALING_BLOCKWISE_1D, g->max_rows, depth), 4);
    const int64_t of_b = te_scaling_count(TE_SCALING_BLOCKWISE_2D, g->in, g->out) + (int64_t)g->in * g->out / 4;
    return (size_t)(of_a + (g->kind == TE_GROUPED_DGRAD ? of_b : 0));
}
/* Returns the number of floats that g->scratch needs, unless the weight is quantized. */
TE_API size_t te__grouped_scratch(const te_grouped *g) {
    if (g->in_fp8) return te__grouped_fp8_scratch(g);
    const te_gemm p = te__grouped_gemm(g, 0, 0, g->max_rows);
    return te__gemm_scratch(&p);
}
/* Sets the operands of *p, the GEMM of group e in FP8, whose rows are `first` to first + rows - 1. The GEMM expects the
 * scales of these rows as a separate matrix and, in dgrad, also the transposed weight of the group. These matrices are
 * copied to g->scratch. */
TE_API void te__grouped_fp8_operands(te_gemm *p, const te_grouped *g, int e, int64_t first, int64_t rows) {
    const int64_t pitch = te__grouped_scale_pitch(g->rows, g->groups), weights = (int64_t)g->groups * g->out;
    const int64_t block = (int64_t)e * g->out / TE_FP8_BLOCK;
    const float *from = g->a_inverse + te__grouped_scale_at(g->offset, e, first);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < te_fp8_blocks(p->k); k++)
            g->scratch[te_blockwise_1d_scale_at(rows, p->k, i, k)] = from[k * pitch + i];
    p->a = (const char *)g->a + first * p->k, p->trans_b = 1, p->scratch = 0;
    p->a_fp8.scaling = TE_SCALING_BLOCKWISE_1D, p->a_fp8.dtype = TE_e4m3, p->a_fp8.inverse = g->scratch;
    p->b_fp8.scaling = TE_SCALING_BLOCKWISE_2D, p->b_fp8.dtype = TE_e4m3;
    if (g->kind == TE_GROUPED_FORWARD) {
        p->b = (const char *)g->b + (int64_t)e * g->out * g->in;
        p->b_fp8.inverse = g->b_inverse + te_blockwise_2d_scale_at(g->in, block, 0);
        return;
    }
    float *scales = g->scratch + te_round_up(te_scaling_count(TE_SCALING_BLOCKWISE_1D, g->max_rows, g->out), 4);
    const size_t scale_bytes = (size_t)te_fp8_blocks(g->out) * sizeof(float);
    char *b = (char *)(scales + te_scaling_count(TE_SCALING_BLOCKWISE_2D, g->in, g->out));
    for (int64_t i = 0; i < te_fp8_blocks(g->in); i++)
        memcpy(scales + te_blockwise_2d_scale_at(g->out, i, 0),
               g->b_inverse + te_blockwise_2d_scale_at(weights, i, block), scale_bytes);
    for (int64_t i = 0; i < g->in; i++)
        memcpy(b + i * g->out, (const char *)g->b + i * weights + (int64_t)e * g->out, (size_t)g->out);
    p->b = b, p->b_fp8.inverse = scales;
}
/* Sets *of_group to the weight of group e, which consists of some rows of g->quantized. part: memory for the parts of
 * *of_group. */
TE_API te_status te__grouped_weight(te_quantized_weight *of_group, te_weight_part part[TE_GROUPED_MAX_PARTS],
                                    const te_grouped *g, int e, te_context *ctx) {
    int64_t at = -(int64_t)e * g->out; /* the first row of the part, counted from the first row of the group */
    of_group->part = part, of_group->parts = 0;
    for (int i = 0; i < g->quantized->parts && at < g->out; at += g->quantized->part[i++].rows) {
        const te_weight_part *all = &g->quantized->part[i];
        const int64_t first = te_max(0, -at), rows = te_min(all->rows, g->out - at) - first;
        if (rows <= 0) continue;
        TE_REQUIRE(of_group->parts < TE_GROUPED_MAX_PARTS, ctx, TE_ERROR_SHAPE,
                   "the weight of expert %d, %d rows in few bits, has more than %d parts", e, g->out,
                   (int)TE_GROUPED_MAX_PARTS);
        te_weight_part *to = &part[of_group->parts++];
        to->data = (const char *)all->data + (size_t)first * te_block_row_bytes(all->format, g->in);
        to->format = all->format, to->rows = rows;
    }
    return TE_OK;
}
/* Runs the GEMMs of all groups, one after the other. product: the function that runs one GEMM. It depends on the
 * operands, which are in the list's dtype, in FP8 with blockwise scales, or in the list's dtype with a quantized
 * weight. */
TE_API te_status te__grouped_run(const te_grouped *g, te_status (*product)(const te_gemm *, te_context *),
                                 te_context *ctx) {
    for (int e = 0; e < g->groups; e++) {
        const int64_t first = g->offset[e], rows = te__grouped_end(g, e) - first;
        te_gemm p = te__grouped_gemm(g, e, first, rows);
        te_weight_part part[TE_GROUPED_MAX_PARTS];
        te_quantized_weight weight;
        if (g->quantized) TE_TRY(te__grouped_weight(&weight, part, g, e, ctx));
        if (g->quantized) p.b_quantized = &weight;
        if (g->in_fp8 && rows) te__grouped_fp8_operands(&p, g, e, first, rows);
        if (rows || (g->kind == TE_GROUPED_WGRAD && !g->accumulate)) TE_TRY(product(&p, ctx));
    }
    return TE_OK;
}
#endif

#endif
