/* gemm_grouped.h -- the products of a mixture of experts: one GEMM for each group of rows, all of them in one launch.
 *
 * Group e has the rows offset[e] to offset[e + 1] - 1 of x, and a weight of its own. Three kinds of products are needed:
 *     TE_GROUPED_FORWARD    y[rows, out] = x[rows, in] weight[e]^T, weight [groups, out, in]
 *     TE_GROUPED_DGRAD      dx[rows, in] = dy[rows, out] weight[e]
 *     TE_GROUPED_WGRAD      dweight[e] = dy^T x over the rows of the group, in f32
 * The offsets lie in target memory, and on CUDA the host does not read them: the grid has a block for each tile that
 * there can be, and a block finds its group by a binary search, as for sequences of different lengths (te_sequences).
 *
 * Do this:
 *     te_grouped g = te_grouped_of(TE_GROUPED_FORWARD, out, in, groups, rows);
 *     g.a = x, g.b = weight, g.d = y, g.offset = offset, g.max_rows = rows, g.dtype = g.out_dtype = TE_bf16;
 */
#ifndef TE_GEMM_GROUPED_H
#define TE_GEMM_GROUPED_H

#include "gemm_dispatch.h" /* te_gemm, te__gemm_scratch */
#if TE_CUDA
#include "../../core/impl/ptx_cuda.h" /* te__mma_sync, te__ldmatrix_x4 */
#endif

typedef enum te_grouped_kind { TE_GROUPED_FORWARD, TE_GROUPED_DGRAD, TE_GROUPED_WGRAD } te_grouped_kind;

typedef struct te_grouped {
    const void *a;         /* forward: x; dgrad and wgrad: dy */
    const void *b;         /* forward and dgrad: weight; wgrad: x */
    void *d;               /* y, dx or dweight */
    const int32_t *offset; /* [groups + 1], target memory */
    const int32_t *slot;   /* forward and wgrad on CUDA: row i is row slot[i] / top_k of x; null: it is row i */
    float *scratch;        /* on the host: te__grouped_scratch(g) floats */
    int64_t rows;          /* of all groups */
    te_grouped_kind kind;
    int out, in, groups, top_k;
    int max_rows;          /* the largest number of rows of a group */
    int accumulate;        /* wgrad: 1: dweight is added to; 0: it is overwritten */
    te_dtype dtype, out_dtype; /* out_dtype: of d: dtype or f32 */
} te_grouped;

TE_API te_grouped te_grouped_of(te_grouped_kind kind, int out, int in, int groups, int64_t rows) {
    te_grouped g;
    memset(&g, 0, sizeof g);
    g.kind = kind, g.out = out, g.in = in, g.groups = groups, g.rows = rows, g.top_k = 1;
    return g;
}
/* The GEMM of the `rows` rows from row `first` on, which are those of group e. */
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

/* A block of 256 threads computes a tile of D. For 16-bit operands, cp.async copies tiles that are 64 deep along the sum
 * into a ring of stages in shared memory, and mma.sync multiplies them, as in gemm_fallback.h. The rows of x are
 * gathered by the copies, so no permuted copy of x is needed. The tiles have 128 rows; if the groups have few rows on
 * average, as in decoding, 16 rows, and a block then reads the weight of its group once. */
enum {
    TE_GROUPED_THREADS = 256,
    TE_GROUPED_TILE_N = 128,
    TE_GROUPED_DEPTH = 64,
    TE_GROUPED_SHARED = 96 << 10, /* bytes of the ring: two blocks fit on a multiprocessor */
    TE_GROUPED_F32_TILE = 64,
    TE_GROUPED_F32_DEPTH = 16
};
/* The rows of a tile are first to end - 1, of group e. rows: 0 or less: the block has no tile. */
typedef struct te_grouped_tile { int e, first, end, col; } te_grouped_tile;

/* Finds the tile of rows number `tile`. The tiles of group e have the numbers from offset[e] / size + e on, so that some
 * numbers, at most one for each group, belong to no tile. Each lane of a warp tests the groups lane, lane + 32, ..; the
 * group is the last one whose first number is not above `tile`. */
TE_FN te_grouped_tile te__grouped_find(const te_grouped *g, int tile, int size) {
    te_grouped_tile t;
    int before = 0;
    for (int e = (int)threadIdx.x % 32; e < g->groups; e += 32) before += g->offset[e] / size + e <= tile;
    t.e = (int)__reduce_add_sync(~0u, (unsigned)before) - 1, t.col = 0;
    t.first = g->offset[t.e], t.end = g->offset[t.e + 1];
    t.first += (tile - (t.first / size + t.e)) * size;
    t.end = (int)te_min(t.end, t.first + size);
    return t;
}
/* The row of x that is row `row` of the group's operand. */
TE_FN int64_t te__grouped_row(const te_grouped *g, int row) { return g->slot ? g->slot[row] / g->top_k : row; }

/* ---- CUDA: 16 bits ----------------------------------------------------------------------------------------------- */

/* The address of 16-byte vector number `vector` in row `row` of a tile in shared memory, of `vectors` vectors a row. The
 * tile is swizzled, so that the same vector of eight successive rows lies in different banks. */
TE_FN uint32_t te__grouped_address(uint32_t tile, int row, int vector, int vectors) {
    return tile + (uint32_t)((row * vectors + (vector ^ (row & 7))) << 4);
}
TE_FN void te__grouped_copy(uint32_t to, const void *from, int exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
/* Load a fragment of 16 lines and 16 elements along the sum: four 8 x 8 matrices, in the order that mma.sync needs
 * (gemm_fallback.h). If `transposed`, the rows of the tile in shared memory are elements along the sum. */
template <int VECTORS>
TE_FN void te__grouped_fragment(uint32_t w[4], uint32_t tile, int line, int k, const int is_b, const int transposed) {
    const int lane = (int)threadIdx.x % 32, matrix = lane / 8, lower = is_b ? matrix / 2 : matrix % 2,
              deeper = is_b ? matrix % 2 : matrix / 2;
    const int row = transposed ? k + 8 * deeper + lane % 8 : line + 8 * lower + lane % 8;
    const int vector = transposed ? line / 8 + lower : k / 8 + deeper;
    te__ldmatrix_x4(w, te__grouped_address(tile, row, vector, VECTORS), transposed);
}
/* The functions of the kernel for products of kind KIND in dtype T, with tiles of M rows. */
template <te_dtype T, int KIND, int M> struct te_grouped_16bit {
    enum {
        WGRAD = KIND == TE_GROUPED_WGRAD,
        B_TRANSPOSED = KIND != TE_GROUPED_FORWARD, /* a row of B's tile is one element along the sum */
        N = TE_GROUPED_TILE_N, K = TE_GROUPED_DEPTH,
        WARPS_M = M == 16 ? 1 : 2, WARPS_N = 8 / WARPS_M, WARP_M = M / WARPS_M, WARP_N = N / WARPS_N,
        BLOCKS_M = WARP_M / 16, BLOCKS_N = WARP_N / 8,
        A_VECTORS = (WGRAD ? M : K) / 8, A_ROWS = WGRAD ? K : M, B_VECTORS = (B_TRANSPOSED ? N : K) / 8,
        B_ROWS = B_TRANSPOSED ? K : N,
        A_COPIES = (A_ROWS * A_VECTORS + TE_GROUPED_THREADS - 1) / TE_GROUPED_THREADS, /* of a thread, for each stage */
        B_COPIES = B_ROWS * B_VECTORS / TE_GROUPED_THREADS,
        A_BYTES = M * K * 2, STAGE = A_BYTES + N * K * 2, STAGES = TE_GROUPED_SHARED / STAGE < 6 ? TE_GROUPED_SHARED / STAGE : 6
    };
    /* The state of the copies. at: of forward and dgrad, the rows of A that this thread copies; row: of wgrad, the rows
     * of x that this thread copies next */
    struct state {
        const uint16_t *a, *b;
        int64_t at[A_COPIES];
        int row[B_COPIES];
    };
    TE_FN int lines(const te_grouped *g) { return WGRAD ? g->out : 0; }
    TE_FN int columns(const te_grouped *g) { return KIND == TE_GROUPED_FORWARD ? g->out : g->in; }
    TE_FN int depth(const te_grouped *g) { return KIND == TE_GROUPED_FORWARD ? g->in : g->out; }

    TE_FN void find_rows(state *s, const te_grouped *g, const te_grouped_tile *t, int step) {
        TE_UNROLL for (int i = 0; i < B_COPIES; i++) {
            const int row = t->first + step * K + (i * TE_GROUPED_THREADS + (int)threadIdx.x) / B_VECTORS;
            s->row[i] = row < t->end ? (int)te__grouped_row(g, row) : 0;
        }
    }
    TE_FN void begin(state *s, const te_grouped *g, const te_grouped_tile *t) {
        s->a = (const uint16_t *)g->a, s->b = (const uint16_t *)g->b;
        if (WGRAD) find_rows(s, g, t, 0);
        if (!WGRAD) s->b += (int64_t)t->e * g->out * g->in;
        TE_UNROLL for (int i = 0; !WGRAD && i < A_COPIES; i++) {
            const int row = t->first + (i * TE_GROUPED_THREADS + (int)threadIdx.x) / A_VECTORS;
            s->at[i] = row < t->end ? te__grouped_row(g, row) * depth(g) : -1;
        }
    }
    /* Starts the copies of step `step`, and commits them as a group of cp.async, which is empty behind the last step. */
    TE_FN void load(state *s, const te_grouped *g, const te_grouped_tile *t, int line, uint32_t ring, int step, int steps) {
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
                const int y = WGRAD ? s->row[i] : (B_TRANSPOSED ? k : t->col) + row;
                const int exists = WGRAD ? t->first + k + row < t->end && x < g->in
                                   : B_TRANSPOSED ? y < g->out && x < g->in : y < g->out && x < g->in;
                te__grouped_copy(te__grouped_address(stage + A_BYTES, row, vector, B_VECTORS),
                                 s->b + (exists ? (int64_t)y * g->in + x : 0), exists);
            }
            if (WGRAD) find_rows(s, g, t, step + 1);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    TE_FN void multiply(float c[BLOCKS_M][BLOCKS_N][4], uint32_t stage, int row, int column) {
        TE_UNROLL for (int k = 0; k < K; k += 16) {
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
    TE_FN void body(const te_grouped *g, uint32_t ring) {
        const int tiles_n = (columns(g) + N - 1) / N, at = (int)blockIdx.x;
        te_grouped_tile t;
        int line = 0;
        if (WGRAD) t.e = (int)blockIdx.y, t.first = g->offset[t.e], t.end = g->offset[t.e + 1], line = at / tiles_n * M;
        else t = te__grouped_find(g, at / tiles_n, M), line = t.first;
        t.col = at % tiles_n * N;
        if (!WGRAD && t.first >= t.end) return;
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        const int row = warp / WARPS_N * WARP_M, column = warp % WARPS_N * WARP_N;
        const int steps = ((WGRAD ? t.end - t.first : depth(g)) + K - 1) / K;
        float c[BLOCKS_M][BLOCKS_N][4];
        state s;
        TE_UNROLL for (int i = 0; i < BLOCKS_M; i++)
            TE_UNROLL for (int j = 0; j < BLOCKS_N; j++) c[i][j][0] = c[i][j][1] = c[i][j][2] = c[i][j][3] = 0;
        begin(&s, g, &t);
        TE_UNROLL_1 for (int i = 0; i < STAGES - 1; i++) load(&s, g, &t, line, ring, i, steps);
        TE_UNROLL_1 for (int i = 0; i < steps; i++) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            __syncthreads(); /* step i has arrived, and all warps have read step i - 1, whose stage is filled next */
            load(&s, g, &t, line, ring, i + STAGES - 1, steps);
            multiply(c, ring + (uint32_t)(i % STAGES * STAGE), row, column);
        }
        TE_UNROLL for (int i = 0; i < BLOCKS_M; i++)
            TE_UNROLL for (int j = 0; j < BLOCKS_N; j++)
                TE_UNROLL for (int h = 0; h < 2; h++)
                    store(g, &t, line + row + 16 * i + 8 * h + lane / 4, t.col + column + 8 * j + lane % 4 * 2,
                          c[i][j][2 * h], c[i][j][2 * h + 1]);
    }
};
template <te_dtype T, int KIND, int M>
static __global__ void __launch_bounds__(TE_GROUPED_THREADS, 2)
te_grouped_product(const __grid_constant__ te_grouped g) {
    extern __shared__ uint4 te_grouped_ring[];
    te_kernel_begin();
    te_grouped_16bit<T, KIND, M>::body(&g, te__shared_address(te_grouped_ring));
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
    if (WGRAD) t.e = (int)blockIdx.y, t.first = g.offset[t.e], t.end = g.offset[t.e + 1], line = at / tiles_n * TILE;
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
            const int has_a = k0 + ka < depth && row < (WGRAD ? g.out : t.end), has_b = k0 + kb < depth && col < columns;
            a[ka][la] = !has_a ? 0.0f : WGRAD ? from_a[(int64_t)(t.first + k0 + ka) * g.out + row]
                                              : from_a[te__grouped_row(&g, row) * depth + k0 + ka];
            b[kb][lb] = !has_b                          ? 0.0f
                        : WGRAD                         ? from_b[te__grouped_row(&g, t.first + k0 + kb) * g.in + col]
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

/* ---- CUDA: the launch -------------------------------------------------------------------------------------------- */

/* Raises a kernel's limit of dynamic shared memory, once on each device. */
template <te_dtype T, int KIND, int M> TE_API te_status te__grouped_allow_shared(te_context *ctx) {
    static uint64_t allowed; /* one bit for each device */
    const uint64_t bit = 1ull << (ctx->device & 63);
    if (__atomic_load_n(&allowed, __ATOMIC_ACQUIRE) & bit) return TE_OK;
    TE_TRY(te__cuda_status(ctx, cudaFuncSetAttribute((const void *)te_grouped_product<T, KIND, M>,
                                                     cudaFuncAttributeMaxDynamicSharedMemorySize, TE_GROUPED_SHARED),
                           "shared memory of a grouped product"));
    (void)__atomic_fetch_or(&allowed, bit, __ATOMIC_RELEASE);
    return TE_OK;
}
template <te_dtype T, int KIND, int M> TE_API te_status te__grouped_launch(const te_grouped *g, te_context *ctx) {
    const int size = T == TE_f32 ? (int)TE_GROUPED_F32_TILE : M, n = T == TE_f32 ? size : (int)TE_GROUPED_TILE_N;
    const int64_t tiles_n = te_ceil_div(KIND == TE_GROUPED_FORWARD ? g->out : g->in, n);
    const int64_t tiles_m = KIND == TE_GROUPED_WGRAD ? te_ceil_div(g->out, size) : g->rows / size + g->groups;
    const te_grid grid = te__grid_of(tiles_m * tiles_n, KIND == TE_GROUPED_WGRAD ? g->groups : 1);
    const void *kernel;
    TE_REQUIRE(tiles_m * tiles_n <= INT32_MAX, ctx, TE_ERROR_OVERFLOW, "a product of %lld rows and %d groups",
               (long long)g->rows, g->groups);
    if constexpr (T == TE_f32) kernel = (const void *)te_grouped_f32<KIND>;
    else {
        TE_TRY((te__grouped_allow_shared<T, KIND, M>(ctx)));
        kernel = (const void *)te_grouped_product<T, KIND, M>;
    }
    const te_launch launch = te__launch_of(kernel, "grouped product", grid, TE_GROUPED_THREADS,
                                           T == TE_f32 ? 0 : (int)TE_GROUPED_SHARED, 1);
    return te__cuda_launch(ctx, launch, g, sizeof *g);
}
/* Runs the GEMMs of all groups, in dtype T. Tiles of 16 rows are for groups that have fewer than 32 rows on average. */
template <te_dtype T, te_grouped_kind KIND>
TE_API te_status te__grouped_run(const te_grouped *g, te_context *ctx) {
    if constexpr (KIND != TE_GROUPED_WGRAD && T != TE_f32)
        if (g->rows < 32 * (int64_t)g->groups) return te__grouped_launch<T, KIND, 16>(g, ctx);
    return te__grouped_launch<T, KIND, 128>(g, ctx);
}
#else
/* The number of floats of g->scratch. */
TE_API size_t te__grouped_scratch(const te_grouped *g) {
    const te_gemm p = te__grouped_gemm(g, 0, 0, g->max_rows);
    return te__gemm_scratch(&p);
}
/* Runs the GEMMs of all groups, one after the other. product: the function that runs a GEMM in the list's dtype. */
TE_API te_status te__grouped_run(const te_grouped *g, te_status (*product)(const te_gemm *, te_context *),
                                 te_context *ctx) {
    for (int e = 0; e < g->groups; e++) {
        const int64_t first = g->offset[e], rows = g->offset[e + 1] - first;
        const te_gemm p = te__grouped_gemm(g, e, first, rows);
        if (rows || (g->kind == TE_GROUPED_WGRAD && !g->accumulate)) TE_TRY(product(&p, ctx));
    }
    return TE_OK;
}
#endif

#endif
