/* gemm_quantized_cuda.h -- GEMMs on a GPU whose weight is in few bits and repacked (te/quant/repacked_blocks.h):
 * D[m, n] = alpha A[m, k] W[n, k]^T + beta C. Activations are not rounded.
 *
 * Up to TE_QUANTIZED_MAX_M rows: the skinny kernel below, 16 rows of A at a time. A block multiplies 128 rows of W, 16
 * for each warp. A warp has a ring of stages in shared memory, which it fills by cyclic copies of 16 bytes (cp.async),
 * each stage with a step of 256 columns; it converts codes to bf16 or f16 in registers, multiplies them by A with
 * mma.sync, and adds the sums of each group, times the group's scale, in f32. The offset of a group is multiplied by
 * the sum of the group's activations. A in f32 is the exact sum of three bf16, which take three columns of the product.
 *
 * The steps of a tile of 128 rows are divided among the blocks of a cluster, as many as run at the same time for all
 * tiles. The blocks add their sums through distributed shared memory, in the order of k. A kernel that follows another
 * kernel of the pass fills its rings while that one still runs (PDL).
 *
 * More rows: W is converted to the format of A in the workspace, and multiplied by te_gemm_run.
 *
 * Lower bound of the time: the bytes of W are read once. Measurements: docs/notes/gemm_quantized.md.
 */
/* target: cuda */
#ifndef TE_GEMM_QUANTIZED_CUDA_H
#define TE_GEMM_QUANTIZED_CUDA_H

#include "../../core/impl/graph_replay.h" /* te__launch_follows_kernel */
#include "gemm_dispatch.h"                /* te_gemm_run, te__gemm_state_of */
#include "gemm_quantized_cells.h"         /* te__cell_codes */

enum {
    TE_QUANTIZED_WARPS = 8,
    TE_QUANTIZED_THREADS = 32 * TE_QUANTIZED_WARPS,
    TE_QUANTIZED_TILE = (int)TE_QUANTIZED_WARPS * (int)TE_CELL_ROWS, /* rows of W that a block multiplies at a time */
    TE_QUANTIZED_BLOCKS_PER_SM = 2,
    TE_QUANTIZED_RINGS = 68 << 10, /* the most bytes of the rings of a block */
    TE_QUANTIZED_PAIRS = 32,       /* groups times column tiles of A that are in shared memory at a time; a column tile
                                    * has 8 columns */
    TE_QUANTIZED_VECTORS = (int)TE_QUANTIZED_PAIRS / (int)TE_QUANTIZED_WARPS, /* of A for each thread */
    TE_QUANTIZED_MAX_SPLIT = 8,                                     /* the most blocks of a cluster */
    TE_QUANTIZED_COLUMNS = 16, /* columns of the product for one launch: rows of A, or three times as many in f32 */
    TE_QUANTIZED_MAX_M = 64,   /* rows up to which the skinny kernel is launched for each 16 rows */
    TE_QUANTIZED_DEQUANTIZED = 1 << 28 /* the most bytes of a weight that is converted in the workspace; wider ones,
                                        * such as heads, are multiplied by the skinny kernel for any number of rows */
};

typedef struct te__quantized {
    const void *x;     /* [m, k] */
    const char *cells; /* of W, [rows, k] */
    void *y;           /* [m, ld], from the column of the first row of W on */
    const void *c;     /* as y; read if beta is not 0 */
    const void *bias;  /* [rows], or null */
    float alpha, beta;
    int m, rows, k, ld;
    int steps, split;  /* steps of a tile, and blocks of a cluster, among which they are divided */
    int early_weights; /* 1: the previous kernel does not write W, which is loaded before it ends */
    int out_f32;       /* 1: y and c are in f32, else in the format of A */
} te__quantized;

/* The layout of shared memory. */
template <te_block_format F>
struct te__quantized_memory {
    enum {
        RING_STAGES = (int)TE_QUANTIZED_RINGS / ((int)TE_QUANTIZED_WARPS * (int)te__cells_of<F>::STEP),
        STAGES = RING_STAGES > 4 ? 4 : RING_STAGES,
        RING = (int)STAGES * (int)te__cells_of<F>::STEP, /* of a warp */
        X = (int)TE_QUANTIZED_WARPS * (int)RING, /* two buffers with activations, in the order of mma's operands */
        X_BYTES = (int)TE_QUANTIZED_PAIRS * 32 * 16,
        SUMS = (int)X + 2 * (int)X_BYTES, /* two buffers with sums of activations, float[PAIRS][8] */
        SUMS_BYTES = (int)TE_QUANTIZED_PAIRS * 8 * 4,
        SCALES = (int)SUMS + 2 * (int)SUMS_BYTES, /* of each warp; later the sums of the block */
        SCALES_BYTES = (int)TE_STEP_GROUPS * 8 * 4 * 4,
        BYTES = (int)SCALES + (int)TE_QUANTIZED_WARPS * (int)SCALES_BYTES
    };
    static_assert((int)STAGES >= 2, "a ring has at least two stages");
};

/* ---- W into a warp's ring ---------------------------------------------------------------------------------------- */

/* What a warp loads next of its 16 rows. */
typedef struct te__quantized_loads {
    const char *from; /* this lane's first vector of the step */
    int left;         /* bytes from there to the end of the rows; not above 0 if there are none */
} te__quantized_loads;
template <te_block_format F>
TE_FN te__quantized_loads te__quantized_loads_at(const te__quantized *p, int row_tile, int step) {
    typedef te__cells_of<F> cells;
    const int row_bytes = p->k / cells::VALUES * cells::CELL, at = step * cells::STEP + (int)threadIdx.x % 32 * 16;
    te__quantized_loads l;
    l.left = row_tile * TE_CELL_ROWS < p->rows ? row_bytes - at : 0;
    l.from = p->cells + (l.left ? (int64_t)row_tile * row_bytes + at : 0);
    return l;
}
/* Start the copy of a step into a stage, with zeros behind the end of the rows, and go to the next step. */
template <te_block_format F>
TE_FN void te__quantized_load(te__quantized_loads *l, const char *stage) {
    enum { STEP = te__cells_of<F>::STEP };
    const int lane = (int)threadIdx.x % 32;
    const uint32_t to = te__shared_address(stage) + (uint32_t)(lane * 16);
    TE_UNROLL for (int byte = 0; byte < STEP; byte += 512)
        if (byte + 512 <= STEP || lane < STEP % 512 / 16)
            asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2; // a weight" ::"r"(to + byte),
                         "l"(l->from + byte), "r"(byte < l->left ? 16 : 0)
                         : "memory");
    l->from += STEP, l->left -= STEP;
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

/* What a thread holds of the next activations: vectors of eight values of a row in format M. */
typedef struct te__quantized_x {
    uint4 v[TE_QUANTIZED_VECTORS];
} te__quantized_x;

/* Eight values of f32 as the exact sum of three bf16: the part number `part` of them. */
TE_FN uint4 te__bf16_part(const float *x, int part) {
    uint32_t w[4];
    TE_UNROLL for (int i = 0; i < 4; i++) {
        uint32_t half[2];
        TE_UNROLL for (int j = 0; j < 2; j++) {
            float rest = x[2 * i + j];
            for (int n = 0; n < part; n++) rest -= __uint_as_float(__float_as_uint(rest) & 0xffff0000u);
            half[j] = __float_as_uint(rest) >> 16;
        }
        w[i] = half[0] | half[1] << 16;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}
/* Load the activations from column k on, up to column `end`. Warp w has pairs w, w + 8, .. of (group, column tile); in
 * a pair lane 4 c + t has column c of the tile, eight values from 8 t on. */
template <te_dtype T, int N>
TE_FN void te__quantized_load_x(te__quantized_x *x, const te__quantized *p, int k, int end) {
    const int lane = (int)threadIdx.x % 32;
    TE_UNROLL for (int i = 0; i < TE_QUANTIZED_VECTORS; i++) {
        const int pair = (int)threadIdx.x / 32 + i * TE_QUANTIZED_WARPS, col = pair % N * 8 + lane / 4;
        const int at = k + pair / N * TE_CELL_GROUP + lane % 4 * 8, row = T == TE_f32 ? col / 3 : col;
        x->v[i] = make_uint4(0, 0, 0, 0);
        if (row >= p->m || at >= end) continue;
        const int64_t first = (int64_t)row * p->k + at;
        if (T == TE_f32) {
            float f[8];
            te_load8(f, p->x, first, 8, 1, TE_f32);
            x->v[i] = te__bf16_part(f, col % 3);
        } else
            x->v[i] = __ldg((const uint4 *)(const void *)((const uint16_t *)p->x + first));
    }
}
/* Store them in shared memory, and the sums of each group if the format has offsets. */
template <te_block_format F, te_dtype M>
TE_FN void te__quantized_store_x(char *buffer, float *sums, const te__quantized_x *x) {
    const int lane = (int)threadIdx.x % 32, t = lane % 4;
    uint2 *to = (uint2 *)(void *)buffer;
    TE_UNROLL for (int i = 0; i < TE_QUANTIZED_VECTORS; i++) {
        const int pair = (int)threadIdx.x / 32 + i * TE_QUANTIZED_WARPS;
        const uint4 v = x->v[i];
        /* columns 4 c to 4 c + 3 of a group are half c / 4 of the vector of lane c % 4 */
        to[(pair * 32 + lane / 4 * 4 + 2 * t % 4) * 2 + t / 2] = make_uint2(v.x, v.y);
        to[(pair * 32 + lane / 4 * 4 + 2 * t % 4 + 1) * 2 + t / 2] = make_uint2(v.z, v.w);
        if (!te__cells_of<F>::OFFSET) continue;
        const float2 a = te_floats_of_pair(v.x, M), b = te_floats_of_pair(v.y, M), c = te_floats_of_pair(v.z, M),
                     d = te_floats_of_pair(v.w, M);
        float sum = ((a.x + a.y) + (b.x + b.y)) + ((c.x + c.y) + (d.x + d.y));
        sum += __shfl_xor_sync(~0u, sum, 1), sum += __shfl_xor_sync(~0u, sum, 2);
        if (t == 0) sums[pair * 8 + lane / 4] = sum;
    }
}

/* ---- the mainloop ------------------------------------------------------------------------------------------------ */

/* Whether the scales of a step are first converted to f32 in shared memory: those of k-quants, of which each takes
 * several instructions. */
template <te_block_format F>
struct te__quantized_expands {
    enum { VALUE = te__cells_of<F>::GROUPS > 1 };
};
/* Convert the scales of a step: float[group][row % 8][4], with the scales of rows r and r + 8, then their offsets or
 * the scales of the second half of the group. */
template <te_block_format F>
TE_FN void te__quantized_expand(float *to, const char *stage) {
    const int row = (int)threadIdx.x % 16, half = (int)threadIdx.x % 32 / 16;
    float scale[4][2], offset[4];
    te__cell_scales<F>(scale, offset, stage, TE_STEP_GROUPS, row, half);
    TE_UNROLL for (int i = 0; i < 4; i++) {
        float *at = to + ((half * 4 + i) * 8 + row % 8) * 4 + row / 8;
        at[0] = scale[i][0], at[2] = te__cells_of<F>::HALVES ? scale[i][1] : offset[i];
    }
}
/* scale: of rows lane / 4 and lane / 4 + 8; more: their offsets, or the scales of the second half of the group. */
template <te_block_format F>
TE_FN void te__quantized_scales(float2 *scale, float2 *more, const char *stage, const float *expanded,
                                const int group) {
    typedef te__cells_of<F> cells;
    const int row = (int)threadIdx.x % 32 / 4;
    const char *at = stage + group * cells::CELL + cells::SCALES;
    *more = make_float2(0, 0);
    if (te__quantized_expands<F>::VALUE) {
        const float4 v = *(const float4 *)(const void *)(expanded + (group * 8 + row) * 4);
        *scale = make_float2(v.x, v.y), *more = make_float2(v.z, v.w);
    } else if (cells::OFFSET) {
        const uint2 w = *(const uint2 *)(const void *)(at + row * 8);
        const float2 first = te_floats_of_pair(w.x, TE_f16), second = te_floats_of_pair(w.y, TE_f16);
        *scale = make_float2(first.x, second.x), *more = make_float2(first.y, second.y);
    } else
        *scale = te_floats_of_pair(*(const uint32_t *)(const void *)(at + row * 4), TE_f16);
}
/* c += one step. c[tile]: the sums of rows lane / 4 and lane / 4 + 8 of W, each with columns 2 (lane % 4) and
 * 2 (lane % 4) + 1 of the column tile. */
template <te_block_format F, te_dtype M, int N>
TE_FN void te__quantized_multiply(float c[N][4], const char *stage, const char *x, const float *sums,
                                  const float *expanded) {
    typedef te__cells_of<F> cells;
    const int lane = (int)threadIdx.x % 32;
    TE_UNROLL for (int group = 0; group < TE_STEP_GROUPS; group++) {
        float2 scale, more;
        uint32_t q[2][4];
        te__quantized_scales<F>(&scale, &more, stage, expanded, group);
        te__cell_codes<F, M>(q, stage, group, lane);
        const uint32_t first[4] = {q[0][0], q[1][0], q[0][1], q[1][1]},
                       second[4] = {q[0][2], q[1][2], q[0][3], q[1][3]};
        TE_UNROLL for (int tile = 0; tile < N; tile++) {
            const int pair = group * N + tile;
            const uint4 b = *(const uint4 *)(const void *)(x + (pair * 32 + lane) * 16);
            float part[4] = {0, 0, 0, 0};
            te__mma_sync(part, first, b.x, b.y, M);
            if (cells::HALVES) {
                TE_UNROLL for (int i = 0; i < 4; i++) c[tile][i] += part[i] * (i < 2 ? scale.x : scale.y), part[i] = 0;
                te__mma_sync(part, second, b.z, b.w, M);
                TE_UNROLL for (int i = 0; i < 4; i++) c[tile][i] += part[i] * (i < 2 ? more.x : more.y);
                continue;
            }
            te__mma_sync(part, second, b.z, b.w, M);
            TE_UNROLL for (int i = 0; i < 4; i++) c[tile][i] += part[i] * (i < 2 ? scale.x : scale.y);
            if (!cells::OFFSET) continue;
            const float2 sum = *(const float2 *)(const void *)(sums + pair * 8 + lane % 4 * 2);
            TE_UNROLL for (int i = 0; i < 4; i++) c[tile][i] += (i % 2 ? sum.y : sum.x) * (i < 2 ? more.x : more.y);
        }
    }
}

/* ---- the end of a tile ------------------------------------------------------------------------------------------- */

/* Element i of x, in f32 if `wide`, else in format T. te_load would bring the code of all formats: small code is loaded
 * sooner. */
template <te_dtype T>
TE_FN float te__quantized_get(const void *x, int64_t i, int wide) {
    if (T == TE_f32 || wide) return ((const float *)x)[i];
    return te_floats_of_pair(((const uint16_t *)x)[i], T).x;
}
template <te_dtype T>
TE_FN void te__quantized_put(void *y, int64_t i, float v, int wide) {
    if (T == TE_f32 || wide)
        ((float *)y)[i] = v;
    else
        ((uint16_t *)y)[i] = (uint16_t)te_pair_of_floats(v, 0, T);
}
/* Clusters exist from compute capability 9.0 on; in code for others a cluster has one block. te__quantized_peer: the
 * float at `from` in the shared memory of block `rank` of the cluster. */
TE_FN void te__quantized_sync(int split) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    if (split > 1)
        asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
    else
#endif
        __syncthreads();
    (void)split;
}
TE_FN float te__quantized_peer(const float *from, int rank) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    float f;
    asm volatile("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %1, %2;\nld.shared::cluster.f32 %0, [at];\n}"
                 : "=f"(f)
                 : "r"(te__shared_address(from)), "r"(rank)
                 : "memory");
    return f;
#else
    return (void)rank, *from;
#endif
}
/* Add the sums c of all warps of the cluster, and store them. shared: memory for float[columns][TILE]. Each block
 * stores a part of the elements of the tile. */
template <te_dtype T, int N>
TE_FN void te__quantized_store(const te__quantized *p, int tile, int rank, const float c[N][4], float *shared) {
    const int lane = (int)threadIdx.x % 32, first = (int)threadIdx.x / 32 * TE_CELL_ROWS + lane / 4;
    __syncthreads(); /* all warps have read their scales, which lie in `shared` */
    TE_UNROLL for (int i = 0; i < N; i++)
        TE_UNROLL for (int j = 0; j < 4; j++)
        shared[(i * 8 + lane % 4 * 2 + j % 2) * TE_QUANTIZED_TILE + first + j / 2 * 8] = c[i][j];
    te__quantized_sync(p->split);
    const int elements = p->m * TE_QUANTIZED_TILE, end = elements * (rank + 1) / p->split;
    TE_UNROLL_1 for (int e = elements * rank / p->split + (int)threadIdx.x; e < end; e += TE_QUANTIZED_THREADS) {
        const int i = e / TE_QUANTIZED_TILE, row = e % TE_QUANTIZED_TILE, at = tile * TE_QUANTIZED_TILE + row;
        const float *from = shared + (T == TE_f32 ? 3 * i : i) * TE_QUANTIZED_TILE + row;
        float v = 0;
        TE_UNROLL for (int other = 0; other < TE_QUANTIZED_MAX_SPLIT; other++) {
            if (other >= p->split) continue;
            float sum = te__quantized_peer(from, other);
            if (T == TE_f32)
                sum += te__quantized_peer(from + TE_QUANTIZED_TILE, other) +
                       te__quantized_peer(from + 2 * TE_QUANTIZED_TILE, other);
            v += sum;
        }
        if (at >= p->rows) continue;
        const int64_t to = (int64_t)i * p->ld + at;
        v = p->alpha * v + (p->bias ? te__quantized_get<T>(p->bias, at, 0) : 0.0f);
        if (p->beta != 0) v += p->beta * te__quantized_get<T>(p->c, to, p->out_f32);
        te__quantized_put<T>(p->y, to, v, p->out_f32);
    }
    if (p->split > 1) te__quantized_sync(p->split); /* the other blocks have read this block's sums */
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* F: the format of W; T: of A; N: column tiles, 1 or 2. */
template <te_block_format F, te_dtype T, int N>
TE_UNUSED static __global__ void __launch_bounds__(TE_QUANTIZED_THREADS, TE_QUANTIZED_BLOCKS_PER_SM)
    te__quantized_kernel(const __grid_constant__ te__quantized p) {
    extern __shared__ uint4 te_quantized_memory[];
    typedef te__quantized_memory<F> memory;
    constexpr te_dtype M = T == TE_f16 ? TE_f16 : TE_bf16;
    /* steps of which activations are in a buffer */
    constexpr int BUFFERED = (int)TE_QUANTIZED_PAIRS / (int)TE_STEP_GROUPS / N;
    char *const shared = (char *)te_quantized_memory;
    const int warp = (int)threadIdx.x / 32;
    const int tile = (int)blockIdx.x / p.split, rank = (int)blockIdx.x % p.split;
    const int begin = p.steps * rank / p.split, end = p.steps * (rank + 1) / p.split;
    const int end_k = end * TE_STEP_K < p.k ? end * TE_STEP_K : p.k;
    char *const ring = shared + warp * memory::RING;
    float *const expanded = (float *)(void *)(shared + memory::SCALES + warp * memory::SCALES_BYTES);
    te__quantized_loads loads = te__quantized_loads_at<F>(&p, tile * TE_QUANTIZED_WARPS + warp, begin);
    te__quantized_x x;
    float c[N][4];
    int loaded = begin, stage = 0, buffer = 0;
    if (!p.early_weights) te_kernel_wait();
    TE_UNROLL_1 for (int i = 0; i < memory::STAGES; i++) {
        if (loaded++ < end) te__quantized_load<F>(&loads, ring + i * te__cells_of<F>::STEP);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    te_kernel_begin();
    te__quantized_load_x<T, N>(&x, &p, begin * TE_STEP_K, end_k);
    TE_UNROLL for (int i = 0; i < N; i++)
        TE_UNROLL for (int j = 0; j < 4; j++) c[i][j] = 0;
    TE_UNROLL_1 for (int first = begin; first < end; first += BUFFERED, buffer ^= 1) {
        const int count = end - first < BUFFERED ? end - first : BUFFERED;
        char *const of_x = shared + memory::X + buffer * memory::X_BYTES;
        float *const sums = (float *)(void *)(shared + memory::SUMS + buffer * memory::SUMS_BYTES);
        te__quantized_store_x<F, M>(of_x, sums, &x);
        __syncthreads();
        if (first + BUFFERED < end) te__quantized_load_x<T, N>(&x, &p, (first + BUFFERED) * TE_STEP_K, end_k);
        TE_UNROLL_1 for (int i = 0; i < count; i++) {
            char *const of_stage = ring + stage * te__cells_of<F>::STEP;
            asm volatile("cp.async.wait_group %0;" ::"n"(memory::STAGES - 1) : "memory");
            __syncwarp(); /* the copies of all lanes have arrived */
            if (te__quantized_expands<F>::VALUE) {
                te__quantized_expand<F>(expanded, of_stage);
                __syncwarp();
            }
            te__quantized_multiply<F, M, N>(c, of_stage, of_x + i * (TE_STEP_GROUPS * N * 512),
                                            sums + i * (TE_STEP_GROUPS * N * 8), expanded);
            __syncwarp(); /* all lanes have read the stage and the scales */
            if (loaded++ < end) te__quantized_load<F>(&loads, of_stage);
            asm volatile("cp.async.commit_group;" ::: "memory");
            stage = stage + 1 == memory::STAGES ? 0 : stage + 1;
        }
    }
    te__quantized_store<T, N>(&p, tile, rank, c, (float *)(void *)(shared + memory::SCALES));
}

/* ---- the host's side --------------------------------------------------------------------------------------------- */

/* A kernel, the devices on which its limit of shared memory has been set, and the number of clusters of 1 to MAX_SPLIT
 * blocks that run at the same time on the last of these devices. */
typedef struct te__quantized_kernel_entry {
    const void *kernel;
    int shared;
    uint64_t set;
    int clusters[TE_QUANTIZED_MAX_SPLIT + 1];
} te__quantized_kernel_entry;

template <te_dtype T, int N>
TE_API te__quantized_kernel_entry *te__quantized_kernel_of(te_block_format f) {
    switch ((int)f) {
#define TE_QUANTIZED_ENTRY(token)                                                                              \
    case TE_BLOCK_##token: {                                                                                   \
        static te__quantized_kernel_entry entry = {(const void *)te__quantized_kernel<TE_BLOCK_##token, T, N>, \
                                                   te__quantized_memory<TE_BLOCK_##token>::BYTES,              \
                                                   0,                                                          \
                                                   {0}};                                                       \
        return &entry;                                                                                         \
    }
        TE_CELL_FORMATS(TE_QUANTIZED_ENTRY)
#undef TE_QUANTIZED_ENTRY
    default: return 0;
    }
}
/* The number of clusters of `split` blocks that run at the same time; 0 if the kernel's code has no clusters. */
TE_API int te__quantized_clusters(const te__quantized_kernel_entry *e, int split, const te_context *ctx) {
    struct cudaFuncAttributes is;
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    int clusters = 0;
    if (split == 1) return ctx->processors * TE_QUANTIZED_BLOCKS_PER_SM;
    attribute.id = cudaLaunchAttributeClusterDimension, attribute.val.clusterDim.x = (unsigned)split;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.gridDim = dim3((unsigned)split), config.blockDim = dim3(TE_QUANTIZED_THREADS);
    config.dynamicSmemBytes = (size_t)e->shared, config.attrs = &attribute, config.numAttrs = 1;
    const int ok = ctx->capability >= 900 && cudaFuncGetAttributes(&is, e->kernel) == cudaSuccess &&
                   is.ptxVersion >= 90 && cudaOccupancyMaxActiveClusters(&clusters, e->kernel, &config) == cudaSuccess;
    if (!ok) (void)cudaGetLastError();
    return ok ? clusters : 0;
}
TE_API te_status te__quantized_prepare(te__quantized_kernel_entry *e, te_context *ctx) {
    const uint64_t bit = 1ull << (ctx->device & 63);
    if (__atomic_load_n(&e->set, __ATOMIC_ACQUIRE) & bit) return TE_OK;
    TE_TRY(te__cuda_status(ctx, cudaFuncSetAttribute(e->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, e->shared),
                           "shared memory of the product of a quantized weight"));
    for (int i = 1; i <= TE_QUANTIZED_MAX_SPLIT; i++) e->clusters[i] = te__quantized_clusters(e, i, ctx);
    (void)__atomic_fetch_or(&e->set, bit, __ATOMIC_RELEASE);
    return TE_OK;
}
/* The most blocks of a cluster for which all tiles run at the same time. */
TE_API int te__quantized_split(const te__quantized_kernel_entry *e, int tiles, int steps) {
    int split = (int)te_min(TE_QUANTIZED_MAX_SPLIT, steps);
    while (split > 1 && tiles > e->clusters[split]) split--;
    return split;
}
/* The most rows of A for one launch. */
TE_API int te__quantized_rows(te_dtype dtype) {
    return dtype == TE_f32 ? TE_QUANTIZED_COLUMNS / 3 : TE_QUANTIZED_COLUMNS;
}
/* Multiply `rows` rows of A, from row m0 on, by a part of W, whose first row is row `first` of W. */
template <te_dtype T>
TE_API te_status te__quantized_part(const te_gemm *g, int64_t m0, int64_t rows, const te_weight_part *part,
                                    int64_t first, te_context *ctx) {
    te__quantized p;
    const int tiles = (int)te_ceil_div(part->rows, TE_QUANTIZED_TILE), steps = (int)te_ceil_div(g->k, TE_STEP_K);
    const int64_t at = m0 * g->n + first, columns = T == TE_f32 ? 3 * rows : rows;
    const size_t in = te_dtype_bytes(T), out = te_dtype_bytes(g->out);
    memset(&p, 0, sizeof p);
    p.x = (const char *)g->a + (size_t)(m0 * g->k) * in, p.cells = te__cells_at(part);
    p.y = (char *)g->d + (size_t)at * out, p.c = g->beta != 0 ? (const char *)g->c + (size_t)at * out : 0;
    p.bias = g->epilogue == TE_EPILOGUE_BIAS ? (const char *)g->bias + (size_t)first * in : 0;
    p.out_f32 = g->out == TE_f32, p.alpha = g->alpha, p.beta = g->beta;
    p.m = (int)rows, p.rows = (int)part->rows, p.k = (int)g->k, p.ld = (int)g->n, p.steps = steps;
    p.early_weights = te__launch_follows_kernel(ctx);
    te__quantized_kernel_entry *e =
        columns > 8 ? te__quantized_kernel_of<T, 2>(part->format) : te__quantized_kernel_of<T, 1>(part->format);
    TE_TRY(te__quantized_prepare(e, ctx));
    p.split = te__quantized_split(e, tiles, steps);
    return te__cuda_launch(ctx,
                           te__launch_of(e->kernel, "product of a quantized weight",
                                         te__grid_of((int64_t)tiles * p.split, 1), TE_QUANTIZED_THREADS, e->shared,
                                         p.split),
                           &p, sizeof p);
}
/* Whether the product is computed from W converted in the workspace. */
TE_API int te__quantized_converts(const te_gemm *g) {
    return g->m > TE_QUANTIZED_MAX_M && g->n * g->k * (int64_t)te_dtype_bytes(g->dtype) <= TE_QUANTIZED_DEQUANTIZED;
}
/* Bytes of te_gemm.scratch that te__quantized_run needs. */
TE_API size_t te__quantized_scratch(const te_gemm *g) {
    return te__quantized_converts(g) ? (size_t)(g->n * g->k) * te_dtype_bytes(g->dtype) : 0;
}
/* D = alpha A W^T + beta C, and the bias if g names one, for a GEMM with b_quantized. T: g's dtype. */
template <te_dtype T>
TE_API te_status te__quantized_run(const te_gemm *g, te_context *ctx) {
    const te_quantized_weight *w = g->b_quantized;
    if (te__quantized_converts(g)) {
        te_gemm converted = *g;
        converted.b = g->scratch, converted.b_quantized = 0, converted.scratch = 0;
        TE_TRY(te__dequantize_weight(g->scratch, T, w, g->k, ctx));
        return te_gemm_run(&converted, ctx);
    }
    for (int64_t m0 = 0; m0 < g->m; m0 += te__quantized_rows(T)) {
        const int64_t rows = te_min(te__quantized_rows(T), g->m - m0);
        for (int64_t i = 0, first = 0; i < w->parts; first += w->part[i++].rows)
            TE_TRY(te__quantized_part<T>(g, m0, rows, &w->part[i], first, ctx));
    }
    return TE_OK;
}

#endif
