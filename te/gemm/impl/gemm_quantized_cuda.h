/* gemm_quantized_cuda.h -- GEMMs on a GPU whose weight is quantized and repacked (te/quant/repacked_blocks.h): D[m, n]
 * = alpha A[m, k] W[n, k]^T + beta C. Activations are not rounded.
 *
 * For at most TE_QUANTIZED_MAX_M rows of A the skinny kernel below computes the product. Each warp computes with 16
 * rows of W (a row tile), in steps of 128 or 256 columns of W. Bulk copies fill the warp's own ring in shared memory,
 * one stage for each step. The warp converts the codes of W to bf16 or f16 in registers and multiplies them by A with
 * mma.sync; a row of A is a column of the product. The warp multiplies the sums of each group (32 columns) by the
 * group's scale, and adds up the results, in f32. The offset of a group is multiplied by the sum of the group's
 * activations, which mma.sync computes as a product with ones; in q4_k and q5_k mma.sync multiplies by the offsets
 * (mins) directly. If A is f32, each row of A is split into three rows in bf16 with the same sum.
 *
 * A block computes `across` row tiles at a time, each by `stride` warps that divide the steps. The blocks of a cluster
 * can divide the steps further. If a block computes more row tiles, A is read from the L2 less often, but more blocks
 * must divide k to occupy all multiprocessors (te__quantized_choose). Each warp writes its sums to the shared memory of
 * that block of the cluster which adds up the sums of this row tile, in the order of the warps. If this kernel follows
 * another kernel of the same pass, it loads W while that kernel still runs (PDL).
 *
 * With more rows of A, W is converted to A's dtype in the workspace, and te_gemm_run multiplies.
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
    TE_QUANTIZED_WARPS = 16,
    TE_QUANTIZED_THREADS = 32 * TE_QUANTIZED_WARPS,
    TE_QUANTIZED_TILE_COLUMNS = 8, /* columns of the product in a column tile, i.e. in one mma */
    TE_QUANTIZED_MAX_STAGES = 4,
    TE_QUANTIZED_X_PAD = 64,           /* bytes of padding behind a row of A in shared memory, against bank conflicts */
    TE_QUANTIZED_SLOTS = 21,           /* the largest number of fragments (sums of a warp) that a block holds */
    TE_QUANTIZED_MAX_SPLIT = 8,        /* the largest number of blocks in a cluster */
    TE_QUANTIZED_MAX_M = 64,           /* the skinny kernel runs for up to this many rows, in several launches */
    TE_QUANTIZED_DEQUANTIZED = 1 << 28 /* the largest W, in bytes, that is converted in the workspace; the skinny kernel
                                        * multiplies a larger W, such as that of a model's output head, for any number
                                        * of rows */
};

typedef struct te__quantized {
    const void *x;     /* [m, k] */
    const char *cells; /* of W, [rows, k] */
    void *y;           /* [m, ld]: D, from the column on that row 0 of `cells` produces */
    const void *c;     /* [m, ld]: C, laid out as y; read if beta is not 0 */
    const void *bias;  /* [rows], or null */
    float alpha, beta;
    int m, rows, k, ld;
    int tiles, steps;  /* number of tiles of W, each of 16 * across rows, and of steps in each tile */
    int split;         /* the number of blocks in a cluster, which divide the steps of a tile among them; if above 1,
                        * each cluster computes one tile */
    int split_inverse; /* to divide quickly: r / split is r * split_inverse >> 8 */
    int more_steps;    /* the first more_steps blocks of a cluster have steps_of_block + 1 steps */
    int steps_of_block;
    int row_bytes;      /* bytes of the cells of 16 rows of W */
    int row_scales;     /* bytes of the scales of 16 rows, which lie behind their cells (only in int8) */
    int across;         /* the number of row tiles that a block computes at a time, each by `stride` warps; warps from
                         * across * stride on are idle */
    int across_inverse; /* to divide quickly: warp / across is warp * across_inverse >> 8 */
    int stride;         /* the number of warps that compute the same row tile, each in different steps */
    int columns;        /* rows of A in shared memory (three for each row of an f32 A), rounded up to a power of two */
    int buffered;       /* the number of steps for which shared memory holds A at a time: all steps of a block or, if
                         * these do not fit, a multiple of `stride` */
    int stages;         /* of a ring, 2 to TE_QUANTIZED_MAX_STAGES */
    int early_weights;  /* 1 if the previous kernel does not write W; then W is loaded before that kernel has ended */
    int out_f32;        /* 1 if y and c are in f32, 0 if they have A's dtype */
} te__quantized;

/* Constants, and the layout of a block's shared memory, in this order: barriers, the scales of each warp, fragments
 * (sums) to be added, A, and the rings. N: the number of column tiles. */
template <te_block_format F, int N>
struct te__quantized_memory {
    enum {
        /* the smallest number of blocks per multiprocessor that the compiler must allow (a launch bound). With 2 the
         * compiler uses at most 64 registers; with one column tile the kernel is then as fast as without the bound, or
         * up to 4% faster. The k-quants need more registers */
        MIN_BLOCKS = N == 1 && !(int)te__cells_of<F>::IS_K ? 2 : 1,
        STEP_K = te__cells_of<F>::IS_8BIT ? 128 : TE_STEP_K, /* columns of a step */
        GROUPS = STEP_K / TE_CELL_GROUP,
        SPAN = F == TE_BLOCK_int8 ? (int)GROUPS : (int)te__cells_of<F>::SPAN, /* number of groups added unscaled */
        STEP = (int)te__cells_of<F>::CELL * ((int)STEP_K / (int)te__cells_of<F>::VALUES), /* bytes */
        X_STEP = (int)STEP_K * 2,                                                         /* bytes of a row of A */
        /* For a k-quant, each warp stores the converted scales of a step in shared memory. EXPANDED_GROUP: the bytes of
         * a group's converted scales, including 16 bytes of padding against bank conflicts */
        EXPANDED_GROUP = 8 * 16 + 16,
        EXPANDED = (int)te__cells_of<F>::IS_K ? (int)GROUPS * (int)EXPANDED_GROUP : 0,
        FRAGMENT = N * 32 * 16,                                                 /* bytes of the sums of a warp */
        X_BARRIER = (int)TE_QUANTIZED_WARPS * (int)TE_QUANTIZED_MAX_STAGES * 8, /* offset of A's barrier */
        SCALES = (int)X_BARRIER + 64,
        SUMS = (int)SCALES + (int)TE_QUANTIZED_WARPS * (int)EXPANDED,
        X = (int)SUMS + (int)TE_QUANTIZED_SLOTS * (int)FRAGMENT
    };
};

/* ---- what a warp computes ---------------------------------------------------------------------------------------- */

/* What a warp computes: row tile number `row` (16 rows of W) of each of its block's tiles, in steps begin + first,
 * begin + first + stride, .., below `end`. */
typedef struct te__quantized_place {
    int tile, next_tile; /* the index of the block's first tile, and the distance from each tile to the next */
    int rank;            /* the block's number in its cluster */
    int row, first, stride, begin, end;
} te__quantized_place;
TE_FN te__quantized_place te__quantized_place_of(const te__quantized *p) {
    const int warp = (int)threadIdx.x / 32;
    te__quantized_place at;
    at.tile = (int)blockIdx.x, at.rank = 0, at.next_tile = (int)gridDim.x, at.begin = 0, at.end = p->steps;
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    if (p->split > 1) {
        asm("mov.u32 %0, %%clusterid.x;" : "=r"(at.tile));
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(at.rank));
        at.begin = at.rank * p->steps_of_block + (at.rank < p->more_steps ? at.rank : p->more_steps);
        at.end = at.begin + p->steps_of_block + (at.rank < p->more_steps);
    }
#endif
    at.first = warp * p->across_inverse >> 8, at.row = warp - at.first * p->across, at.stride = p->stride;
    if (at.first >= at.stride) at.first = p->steps; /* the warp is idle */
    return at;
}

/* ---- W into a warp's ring ---------------------------------------------------------------------------------------- */

/* Initialises the barrier at address `bar` in shared memory, which counts arrivals and the bytes of copies. */
TE_FN void te__quantized_barrier_init(uint32_t bar, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
/* Makes the barriers that this thread has initialised visible to asynchronous copies. */
TE_FN void te__quantized_barrier_fence(void) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
/* Wait until the phase of the barrier with this parity has ended. */
TE_FN void te__quantized_barrier_wait(uint32_t bar, int parity) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred done;\nwait:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra wait;\n}" ::
            "r"(bar),
        "r"(parity)
        : "memory");
#else
    asm volatile(
        "{\n.reg .pred done;\nwait:\nmbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n@!done bra wait;\n}" ::"r"(
            bar),
        "r"(parity)
        : "memory");
#endif
}
/* Returns the number of threads that arrive at a copy's barrier. From compute capability 9.0 on one lane starts a bulk
 * copy, which does not use the load and store unit. (With cp.async, other warps' loads from shared memory would wait in
 * this unit behind the copies whenever memory is the bottleneck.) On earlier GPUs all lanes of a warp copy by cp.async,
 * and arrive. */
TE_FN int te__quantized_arrivals(void) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    return 1;
#else
    return 32;
#endif
}
/* Starts a warp's copy of `bytes` bytes, a multiple of 16, to shared memory. The barrier `bar` counts the bytes that
 * have arrived. All lanes of the warp call this function. */
TE_FN void te__quantized_copy(uint32_t to, const char *from, int bytes, uint32_t bar) {
    const int lane = (int)threadIdx.x % 32;
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    if (lane == 0)
        asm volatile(
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%2], %3;\n"
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %3, [%2]; // a weight" ::"r"(
                to),
            "l"(from), "r"(bar), "r"(bytes)
            : "memory");
#else
    for (int at = lane * 16; at < bytes; at += 512)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16; // a weight" ::"r"(to + (uint32_t)at), "l"(from + at)
                     : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
#endif
}
/* A warp's ring of stages: stage i lies at memory + i * STEP, and its barrier at bar + 8 * i. stage: the stage that the
 * warp reads next; parity: the parity of that stage's barrier. */
typedef struct te__quantized_ring {
    uint32_t memory, bar;
    int stage, parity;
} te__quantized_ring;
TE_FN void te__quantized_next_stage(te__quantized_ring *r, int stages) {
    if (++r->stage == stages) r->stage = 0, r->parity ^= 1;
}
/* What a warp loads next. */
typedef struct te__quantized_loads {
    const char *from; /* the step's first byte */
    int left;         /* bytes from `from` to the end of the row tile; 0 or less if none are left */
    int tile, step;   /* the numbers of the block's tile and of the step in it */
} te__quantized_loads;
/* Go to the first step of a tile. */
template <te_block_format F, int N>
TE_FN void te__quantized_loads_of_tile(te__quantized_loads *l, const te__quantized *p, const te__quantized_place *at,
                                       int tile) {
    typedef te__quantized_memory<F, N> memory;
    const int row_tile = tile * p->across + at->row;
    l->step = at->begin + at->first, l->tile = tile;
    const int first = l->step * memory::STEP;
    l->left = tile < p->tiles && row_tile * TE_CELL_ROWS < p->rows ? p->row_bytes - first : 0;
    l->from = p->cells + (int64_t)row_tile * (p->row_bytes + p->row_scales) + first;
}
/* Starts the copy of the warp's next step, if it exists, into stage `stage`, and advances *l to the step after it. */
template <te_block_format F, int N>
TE_FN void te__quantized_load(te__quantized_loads *l, const te__quantized *p, const te__quantized_place *at,
                              const te__quantized_ring *ring, int stage) {
    enum { STEP = te__quantized_memory<F, N>::STEP };
    if (l->step >= at->end) te__quantized_loads_of_tile<F, N>(l, p, at, l->tile + at->next_tile);
    if (l->left > 0 && l->step < at->end)
        te__quantized_copy(ring->memory + (uint32_t)(stage * STEP), l->from, l->left < STEP ? l->left : STEP,
                           ring->bar + (uint32_t)(stage * 8));
    l->from += at->stride * STEP, l->left -= at->stride * STEP, l->step += at->stride;
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

/* Splits each of eight f32 values into three bf16 numbers whose sum is exactly the value. Returns number `part` (0 to
 * 2) of the three for each value. */
TE_FN uint4 te__bf16_part(const uint32_t x[8], const int part) {
    uint32_t w[4];
    TE_UNROLL for (int i = 0; i < 4; i++) {
        uint32_t half[2];
        TE_UNROLL for (int j = 0; j < 2; j++) {
            float rest = __uint_as_float(x[2 * i + j]);
            TE_UNROLL for (int n = 0; n < part; n++) rest -= __uint_as_float(__float_as_uint(rest) & 0xffff0000u);
            half[j] = __float_as_uint(rest) >> 16;
        }
        w[i] = half[0] | half[1] << 16;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}
/* Copies p->buffered steps of A, from column k on, to shared memory, with zeros in place of columns from `end` on. The
 * layout in shared memory is [row of A][k], with three rows in bf16 for each row of an A in f32. If A has 16 bits, the
 * barrier `bar` counts the bytes that have arrived; if A is f32, all of it has been stored when the function ends. */
template <te_dtype T>
TE_FN void te__quantized_load_x(char *buffer, const te__quantized *p, int k, int end, int step_k, uint32_t bar) {
    const int width = p->buffered * step_k, column = width * 2 + TE_QUANTIZED_X_PAD, lane = (int)threadIdx.x % 32;
    const int count = end - k < width ? end - k : width; /* values of a row */
    if (count < width)                                   /* the row ends with a part of a step */
        TE_UNROLL_1 for (int i = (int)threadIdx.x; i < p->columns * (step_k / 8); i += TE_QUANTIZED_THREADS) {
            const int at = (count - 1) / step_k * step_k + i % (step_k / 8) * 8;
            if (at >= count) *(uint4 *)(void *)(buffer + i / (step_k / 8) * column + at * 2) = make_uint4(0, 0, 0, 0);
        }
    if (T == TE_f32) {
        TE_UNROLL_1 for (int row = 0; row < p->m; row++)
            TE_UNROLL_4 for (int i = (int)threadIdx.x; i < count / 8; i += TE_QUANTIZED_THREADS) {
            const uint4 *const from =
                (const uint4 *)(const void *)((const float *)p->x + (int64_t)row * p->k + k + i * 8);
            const uint4 a = __ldg(from), b = __ldg(from + 1);
            const uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            TE_UNROLL for (int part = 0; part < 3; part++)
                *(uint4 *)(void *)(buffer + (3 * row + part) * column + i * 16) = te__bf16_part(w, part);
        }
    } else if (threadIdx.x < 32) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
        if (lane == 0)
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(p->m * count * 2)
                         : "memory");
        __syncwarp();
        if (lane < p->m)
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                    te__shared_address(buffer) + (uint32_t)(lane * column)),
                "l"((const uint16_t *)p->x + (int64_t)lane * p->k + k), "r"(count * 2), "r"(bar)
                : "memory");
#else
        for (int row = 0; row < p->m; row++)
            for (int i = lane; i < count / 8; i += 32)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(te__shared_address(buffer) +
                                                                               (uint32_t)(row * column + i * 16)),
                             "l"((const uint16_t *)p->x + (int64_t)row * p->k + k + i * 8)
                             : "memory");
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
#endif
    }
}

/* ---- the mainloop ------------------------------------------------------------------------------------------------ */

/* The scales of a group (32 columns) for rows r and r + 8 of W. scale: the scale of each row. more: the offset of each
 * row in q4_1 and q5_1, or the scale of the second half of the group in q6_k. min: in q4_k and q5_k, each row's min
 * times the codes' unit (te__cell_unit_log), stored twice in a word, which is an operand of mma. minus_zero:
 * te__minus_zero for each row. */
typedef struct te__quantized_scales {
    float2 scale, more;
    uint32_t min[2], minus_zero[2];
} te__quantized_scales;
/* Converts the scales of a step of q4_k or q5_k from `stage` to `to`. Returns minus dmin, the factor of the mins, for
 * rows r and r + 8. */
template <te_block_format F, te_dtype M>
TE_FN float2 te__quantized_expand_k(char *to, const char *stage) {
    const int lane = (int)threadIdx.x % 32, row = lane / 4;
    const char *at = stage + te__cells_of<F>::SCALES;
    const uint2 w = *(const uint2 *)(const void *)(at + row * 8);
    const uint32_t low = *(const uint32_t *)(const void *)(at + 64 + lane * 4);
    const uint32_t high = __byte_perm(*(const uint16_t *)(const void *)(at + 64 + 128 + lane * 2), 0, 0x4140);
    const float2 first = te_floats_of_pair(w.x, TE_f16), second = te_floats_of_pair(w.y, TE_f16);
    /* the scales and mins of groups 2 * (lane % 4) and 2 * (lane % 4) + 1 */
    const uint32_t scale[2] = {te__and_or(high, 0x00300030u, low >> 8 & 0x000f000fu),
                               te__and_or(high >> 2, 0x00300030u, low >> 12 & 0x000f000fu)};
    const uint32_t min[2] = {
        te__pair_of_codes<M>(te__and_or(high << 4, 0x00300030u, low & 0x000f000fu), 0, 0x80008000u),
        te__pair_of_codes<M>(te__and_or(high << 2, 0x00300030u, low >> 4 & 0x000f000fu), 0, 0x80008000u)};
    TE_UNROLL for (int i = 0; i < 2; i++) {
        const uint32_t select = i ? 0x7432 : 0x7410, twice = i ? 0x3232 : 0x1010;
        /* d * scale = d * (2^23 + scale) - d * 2^23 */
        const float a =
            fmaf(__uint_as_float(__byte_perm(scale[0], 0x4b000000u, select)), first.x, first.x * -8388608.0f);
        const float b =
            fmaf(__uint_as_float(__byte_perm(scale[1], 0x4b000000u, select)), second.x, second.x * -8388608.0f);
        *(uint4 *)(void *)(to + (lane % 4 * 2 + i) * te__quantized_memory<F, 1>::EXPANDED_GROUP + row * 16) =
            make_uint4(__float_as_uint(a), __float_as_uint(b), __byte_perm(min[0], 0, twice),
                       __byte_perm(min[1], 0, twice));
    }
    return make_float2(-first.y, -second.y);
}
/* Convert the scales of a step of q6_k. */
TE_FN void te__quantized_expand_q6_k(char *to, const char *stage) {
    const int row = (int)threadIdx.x % 16, half = (int)threadIdx.x % 32 / 16;
    float scale[4][2], offset[4];
    uint32_t zero_point[4];
    te__cell_scales<TE_BLOCK_q6_k>(scale, offset, zero_point, stage, TE_STEP_GROUPS, row, half, 0);
    TE_UNROLL for (int i = 0; i < 4; i++) {
        float *at = (float *)(void *)(to + (half * 4 + i) * te__quantized_memory<TE_BLOCK_q6_k, 1>::EXPANDED_GROUP +
                                      row % 8 * 16) +
                    row / 8;
        at[0] = scale[i][0], at[2] = scale[i][1];
    }
}
/* Loads the scales of a group for rows r and r + 8, r = lane / 4. expanded: the converted scales of a k-quant. */
template <te_block_format F, te_dtype M>
TE_FN te__quantized_scales te__quantized_load_scales(const char *stage, const char *expanded, const int group) {
    typedef te__cells_of<F> cells;
    const int row = (int)threadIdx.x % 32 / 4;
    const char *at = stage + group / cells::GROUPS * cells::CELL + cells::SCALES;
    te__quantized_scales s;
    s.more = make_float2(0, 0), s.min[0] = s.min[1] = 0, s.minus_zero[0] = s.minus_zero[1] = te__minus_zero<F, M>();
    if (cells::IS_K) {
        const uint4 v =
            *(const uint4 *)(const void *)(expanded + group * te__quantized_memory<F, 1>::EXPANDED_GROUP + row * 16);
        s.scale = make_float2(__uint_as_float(v.x), __uint_as_float(v.y)), s.min[0] = v.z, s.min[1] = v.w;
        s.more = make_float2(__uint_as_float(v.z), __uint_as_float(v.w));
    } else if (cells::OFFSET || cells::ZERO_POINTS) {
        const uint2 w = *(const uint2 *)(const void *)(at + row * 8);
        const float2 first = te_floats_of_pair(w.x, TE_f16), second = te_floats_of_pair(w.y, TE_f16);
        s.scale = make_float2(first.x, second.x), s.more = make_float2(first.y, second.y);
        if (cells::ZERO_POINTS)
            s.minus_zero[0] = te__minus_zero_point<M>(w.x), s.minus_zero[1] = te__minus_zero_point<M>(w.y);
    } else if (F == TE_BLOCK_mxfp4) {
        const uint32_t w = *(const uint16_t *)(const void *)(at + row * 2);
        s.scale = make_float2(te__float_of_e8m0(w & 0xffu), te__float_of_e8m0(w >> 8));
    } else if (F == TE_BLOCK_int8)
        s.scale = make_float2(1.0f, 1.0f);
    else
        s.scale = te_floats_of_pair(*(const uint32_t *)(const void *)(at + row * 4), TE_f16);
    return s;
}
/* Adds the sums to c, each multiplied by its row's factor, and sets the sums to 0. */
TE_FN void te__quantized_add(float c[4], float sum[4], float2 factor) {
    TE_UNROLL for (int i = 0; i < 4; i++) c[i] += sum[i] * (i < 2 ? factor.x : factor.y), sum[i] = 0;
}
/* Returns this lane's eight activations of a group (32 columns). */
template <te_block_format F>
TE_FN uint4 te__quantized_operand(const char *x) {
    if (!te__cells_of<F>::HALVES) return *(const uint4 *)(const void *)x;
    const uint2 a = *(const uint2 *)(const void *)x, b = *(const uint2 *)(const void *)(x + 32);
    return make_uint4(a.x, a.y, b.x, b.y);
}
/* Adds the products of one step, times the unit of the codes (te__cell_unit_log), to c. c[tile]: the sums for rows lane
 * / 4 and lane / 4 + 8 of W and columns 2 * (lane % 4) and 2 * (lane % 4) + 1 of a column tile. x: this lane's first
 * vector of A for the step; x_tile: the distance in bytes from one column tile to the next. */
template <te_block_format F, te_dtype M, int N>
TE_FN void te__quantized_multiply(float c[N][4], const char *stage, const char *x, int x_tile, char *expanded) {
    typedef te__cells_of<F> cells;
    typedef te__quantized_memory<F, N> memory;
    constexpr int MINS = cells::OFFSET && cells::IS_K; /* q4_k and q5_k */
    constexpr int TWO_CHAINS = memory::SPAN > 1 && N == 1;
    const int lane = (int)threadIdx.x % 32;
    const uint32_t one = te__cell_power(M, te__cell_unit_log(M)), ones[4] = {one, one, one, one};
    float2 dmin = make_float2(0, 0);
    float offset[N][4]; /* the sums of mins and activations */
    TE_UNROLL for (int tile = 0; tile < N; tile++) TE_UNROLL for (int i = 0; i < 4; i++) offset[tile][i] = 0;
    if (MINS)
        dmin = te__quantized_expand_k<F, M>(expanded, stage);
    else if (cells::IS_K)
        te__quantized_expand_q6_k(expanded, stage);
    if (cells::IS_K) __syncwarp();
    te__quantized_scales s;
    uint4 low;
    float part[N][2][4]; /* sums over the first halves of groups, and over the second halves */
    TE_UNROLL for (int group = 0; group < memory::GROUPS; group++) {
        uint32_t q[2][4];
        if (group % memory::SPAN == 0) {
            s = te__quantized_load_scales<F, M>(stage, expanded, group);
            TE_UNROLL for (int i = 0; i < 8 * N; i++) part[i / 8][i / 4 % 2][i % 4] = 0;
        }
        if (!cells::PAIRS)
            low = te__cell_low_bits<F>(stage, group, lane);
        else if (group % 2)
            low.x = low.z, low.y = low.w;
        else
            low = te__cell_low_bits_of_pair<F>(stage, group, lane);
        te__cell_codes<F, M>(q, low, s.minus_zero, stage, group, lane);
        const uint32_t first[4] = {q[0][0], q[1][0], q[0][1], q[1][1]},
                       second[4] = {q[0][2], q[1][2], q[0][3], q[1][3]},
                       min[4] = {s.min[0], s.min[1], s.min[0], s.min[1]};
        TE_UNROLL for (int tile = 0; tile < N; tile++) {
            const uint4 b = te__quantized_operand<F>(x + group * 64 + tile * x_tile);
            /* if TWO_CHAINS, the two mma add to separate sums, so that neither waits for the other */
            float *const of_second = part[tile][cells::HALVES || TWO_CHAINS];
            te__mma_sync(part[tile][0], first, b.x, b.y, M);
            te__mma_sync(of_second, second, b.z, b.w, M);
            if (cells::OFFSET) {
                te__mma_sync(offset[tile], MINS ? min : ones, b.x, b.y, M);
                te__mma_sync(offset[tile], MINS ? min : ones, b.z, b.w, M);
                if (!MINS) te__quantized_add(c[tile], offset[tile], s.more);
            }
            if (group % memory::SPAN < memory::SPAN - 1) continue;
            if (TWO_CHAINS) TE_UNROLL for (int i = 0; i < 4; i++) part[tile][0][i] += part[tile][1][i];
            te__quantized_add(c[tile], part[tile][0], s.scale);
            if (cells::HALVES) te__quantized_add(c[tile], part[tile][1], s.more);
        }
    }
    TE_UNROLL for (int tile = 0; tile < N; tile++)
        if (MINS) te__quantized_add(c[tile], offset[tile], dmin);
}

/* ---- the end of a tile ------------------------------------------------------------------------------------------- */

/* Returns element i of x, which is in f32 if `wide` is 1, else in format T. Used instead of te_load, which would add
 * the code for all formats: a kernel with less code starts sooner. */
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
/* A barrier between the blocks of a cluster: a block calls te__quantized_arrive, or te__quantized_arrive_relaxed if it
 * has stored nothing that the other blocks read, and then te__quantized_wait. Clusters exist from compute capability
 * 9.0 on; in code for earlier GPUs a cluster has one block, and these functions do nothing. */
TE_FN void te__quantized_arrive_relaxed(int split) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    if (split > 1) asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
    (void)split;
}
TE_FN void te__quantized_arrive(int split) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    if (split > 1) asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
    (void)split;
}
TE_FN void te__quantized_wait(int split) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    if (split > 1) asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
    (void)split;
}
/* Store four floats at `to` in the shared memory of block `rank` of the cluster. */
TE_FN void te__quantized_send(char *to, int rank, const float v[4]) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, %1;\n"
                 "st.shared::cluster.v4.f32 [at], {%2, %3, %4, %5};\n}" ::"r"(te__shared_address(to)),
                 "r"(rank), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
#else
    *(float4 *)(void *)to = make_float4(v[0], v[1], v[2], v[3]), (void)rank;
#endif
}
/* Stores the columns of D that rows first to first + 15 of W produce: multiplies the sums by alpha, and adds the bias
 * and beta C. sums: float[columns][16]. */
template <te_dtype T>
TE_FN void te__quantized_store(const te__quantized *p, int first, const float *sums) {
    const float alpha = p->alpha * (float)(1 << -te__cell_unit_log(T == TE_f16 ? TE_f16 : TE_bf16));
    TE_UNROLL_1 for (int e = (int)threadIdx.x % 32; e < p->m * TE_CELL_ROWS; e += 32) {
        const int i = e / TE_CELL_ROWS, at = first + e % TE_CELL_ROWS;
        const float *from = sums + (T == TE_f32 ? 3 * i : i) * TE_CELL_ROWS + e % TE_CELL_ROWS;
        float v = T == TE_f32 ? from[0] + (from[TE_CELL_ROWS] + from[2 * TE_CELL_ROWS]) : from[0];
        if (at >= p->rows) continue;
        const int64_t to = (int64_t)i * p->ld + at;
        if (p->row_scales)
            v *= *(const float *)(const void *)(p->cells +
                                                (int64_t)(first / TE_CELL_ROWS + 1) * (p->row_bytes + p->row_scales) -
                                                p->row_scales + e % TE_CELL_ROWS * TE_BLOCK_ROW_SCALE);
        v = alpha * v + (p->bias ? te__quantized_get<T>(p->bias, at, 0) : 0.0f);
        if (p->beta != 0) v += p->beta * te__quantized_get<T>(p->c, to, p->out_f32);
        te__quantized_put<T>(p->y, to, v, p->out_f32);
    }
}
/* Adds up the sums c of all warps of the cluster, and stores the results. Warp r / split of block r % split adds up the
 * sums of row tile r (16 rows of W). shared: float4, [row tile / split][sending block and warp][column tile][lane]. */
template <te_dtype T, int N>
TE_FN void te__quantized_reduce(const te__quantized *p, const te__quantized_place *at, int tile, const float c[N][4],
                                char *shared) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, slots = p->split * at->stride;
    const int mine = warp * p->split + at->rank; /* the row tile that this warp adds up */
    char *const to =
        shared + (((at->row * p->split_inverse >> 8) * slots + at->rank * at->stride + at->first) * N * 32 + lane) * 16;
    te__quantized_wait(p->split);          /* the other blocks have started */
    if (tile != at->tile) __syncthreads(); /* the fragments of the previous tile have been read */
    if (at->first < at->stride) TE_UNROLL for (int i = 0; i < N; i++)
        te__quantized_send(to + i * 512, at->row - (at->row * p->split_inverse >> 8) * p->split, c[i]);
    if (p->split == 1) __syncthreads();
    te__quantized_arrive(p->split);
    te__quantized_wait(p->split);
    if (mine >= p->across) return;
    char *const from = shared + warp * slots * (N * 512);
    float sum[N][4];
    TE_UNROLL for (int i = 0; i < N; i++) TE_UNROLL for (int j = 0; j < 4; j++) sum[i][j] = 0;
    TE_UNROLL_4 for (int slot = 0; slot < slots; slot++) TE_UNROLL for (int i = 0; i < N; i++) {
        const float4 v = *(const float4 *)(const void *)(from + (slot * N + i) * 512 + lane * 16);
        sum[i][0] += v.x, sum[i][1] += v.y, sum[i][2] += v.z, sum[i][3] += v.w;
    }
    __syncwarp(); /* all lanes have read the sums that the following stores overwrite */
    float *const sums = (float *)(void *)from;
    TE_UNROLL for (int i = 0; i < 4 * N; i++) {
        const int column = i / 4 * 8 + lane % 4 * 2 + i % 2, row = lane / 4 + i % 4 / 2 * 8;
        sums[column * TE_CELL_ROWS + row] = sum[i / 4][i % 4];
    }
    __syncwarp();
    te__quantized_store<T>(p, (tile * p->across + mine) * TE_CELL_ROWS, sums);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* Makes this thread's stores to shared memory precede later asynchronous copies to the same memory. */
TE_FN void te__quantized_fence_async(void) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/* Fills a stage with zeros behind its first `bytes` bytes: the last step of a row of W may be shorter than a stage. */
template <int STEP>
TE_FN void te__quantized_clear(char *stage, int bytes) {
    for (int at = bytes + (int)threadIdx.x % 32 * 16; at < STEP; at += 512)
        *(uint4 *)(void *)(stage + at) = make_uint4(0, 0, 0, 0);
    te__quantized_fence_async();
    __syncwarp();
}
/* The skinny kernel. F: the format of W; T: the dtype of A; N: the number of column tiles, 1, 2 or 4. */
template <te_block_format F, te_dtype T, int N>
TE_UNUSED static __global__ void __launch_bounds__(TE_QUANTIZED_THREADS, (te__quantized_memory<F, N>::MIN_BLOCKS))
    te__quantized_kernel(const __grid_constant__ te__quantized p) {
    extern __shared__ uint4 te_quantized_memory[];
    typedef te__quantized_memory<F, N> memory;
    typedef te__cells_of<F> cells;
    constexpr te_dtype M = T == TE_f16 ? TE_f16 : TE_bf16;
    char *const shared = (char *)te_quantized_memory;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const te__quantized_place at = te__quantized_place_of(&p);
    const int end_k = at.end * memory::STEP_K < p.k ? at.end * memory::STEP_K : p.k;
    const int x_column = p.buffered * memory::X_STEP + TE_QUANTIZED_X_PAD; /* bytes of a row of A */
    char *const x = shared + memory::X;
    const char *const x_lane = x + (lane / 4 & (p.columns - 1)) * x_column + lane % 4 * (cells::T_COLUMNS * 2);
    char *const stages = x + p.columns * x_column + warp * p.stages * memory::STEP;
    char *const expanded = shared + memory::SCALES + warp * memory::EXPANDED;
    const int whole = at.end - at.begin <= p.buffered; /* shared memory has A of all steps */
    const uint32_t x_bar = te__shared_address(shared) + memory::X_BARRIER;
    te__quantized_ring ring = {te__shared_address(stages),
                               te__shared_address(shared) + (uint32_t)(warp * TE_QUANTIZED_MAX_STAGES * 8), 0, 0};
    te__quantized_loads loads;
    int x_parity = 0;
    te__quantized_arrive_relaxed(p.split);
    if (lane == 0) {
        TE_UNROLL for (int i = 0; i < TE_QUANTIZED_MAX_STAGES; i++)
            te__quantized_barrier_init(ring.bar + (uint32_t)(i * 8), te__quantized_arrivals());
        if (warp == 0) te__quantized_barrier_init(x_bar, te__quantized_arrivals());
        te__quantized_barrier_fence();
    }
    __syncwarp();
    te__quantized_loads_of_tile<F, N>(&loads, &p, &at, at.tile);
    if (!p.early_weights) te_kernel_wait();
    /* load the first stage, then A, which would otherwise wait behind all stages, then the other stages */
    te__quantized_load<F, N>(&loads, &p, &at, &ring, 0);
    te_kernel_begin();
    te__quantized_load_x<T>(x, &p, at.begin * memory::STEP_K, end_k, memory::STEP_K, x_bar);
    TE_UNROLL_1 for (int i = 1; i < p.stages; i++) te__quantized_load<F, N>(&loads, &p, &at, &ring, i);
    __syncthreads();
    if (T != TE_f32) te__quantized_barrier_wait(x_bar, 0);
    TE_UNROLL_1 for (int tile = at.tile; tile < p.tiles; tile += at.next_tile) {
        const int exists = (tile * p.across + at.row) * TE_CELL_ROWS < p.rows;
        float c[N][4];
        TE_UNROLL for (int i = 0; i < N; i++) TE_UNROLL for (int j = 0; j < 4; j++) c[i][j] = 0;
        TE_UNROLL_1 for (int first = at.begin; first < at.end; first += p.buffered) {
            const int end = first + p.buffered < at.end ? first + p.buffered : at.end;
            if (!whole && (first > at.begin || tile > at.tile)) {
                x_parity ^= 1;
                te__quantized_fence_async();
                __syncthreads(); /* all warps have read A of the previous steps */
                te__quantized_load_x<T>(x, &p, first * memory::STEP_K, end_k, memory::STEP_K, x_bar);
                __syncthreads();
                if (T != TE_f32) te__quantized_barrier_wait(x_bar, x_parity);
            }
            if (!exists) continue;
            const char *of_x = x_lane + at.first * memory::X_STEP;
            TE_UNROLL_1 for (int step = first + at.first; step < end; step += at.stride) {
                char *const of_stage = stages + ring.stage * memory::STEP;
                te__quantized_barrier_wait(ring.bar + (uint32_t)(ring.stage * 8), ring.parity);
                if (!cells::IS_K && p.row_bytes - step * memory::STEP < memory::STEP)
                    te__quantized_clear<memory::STEP>(of_stage, p.row_bytes - step * memory::STEP);
                te__quantized_multiply<F, M, N>(c, of_stage, of_x, 8 * x_column, expanded);
                __syncwarp(); /* all lanes have read the stage and the scales */
                te__quantized_load<F, N>(&loads, &p, &at, &ring, ring.stage);
                te__quantized_next_stage(&ring, p.stages);
                of_x += at.stride * memory::X_STEP;
            }
        }
        te__quantized_reduce<T, N>(&p, &at, tile, c, shared + memory::SUMS);
    }
}

/* ---- the host's side --------------------------------------------------------------------------------------------- */

/* A kernel and what the host knows about it. set: bit d is 1 if the kernel's limit of shared memory has been raised on
 * device d. clusters[i]: how many clusters of i blocks can run at the same time on a device (the one whose bit was set
 * last). */
typedef struct te__quantized_kernel_entry {
    const void *kernel;
    int step_k, step_bytes, cell, values, row_scales; /* constants of the format */
    int fixed;                                        /* bytes of shared memory besides A and the rings */
    uint64_t set;
    int clusters[TE_QUANTIZED_MAX_SPLIT + 1];
} te__quantized_kernel_entry;

template <te_block_format F, te_dtype T, int N>
TE_API te__quantized_kernel_entry *te__quantized_entry(void) {
    typedef te__quantized_memory<F, N> memory;
    static te__quantized_kernel_entry entry = {(const void *)te__quantized_kernel<F, T, N>,
                                               memory::STEP_K,
                                               memory::STEP,
                                               te__cells_of<F>::CELL,
                                               te__cells_of<F>::VALUES,
                                               te__cells_of<F>::ROW_SCALES,
                                               memory::X,
                                               0,
                                               {0}};
    return &entry;
}
/* Returns the kernel for format f of W and this number of columns of the product. */
template <te_dtype T>
TE_API te__quantized_kernel_entry *te__quantized_kernel_of(te_block_format f, int64_t columns) {
    switch ((int)f) {
#define TE_QUANTIZED_ENTRY(token)                                            \
    case TE_BLOCK_##token:                                                   \
        return columns > 16  ? te__quantized_entry<TE_BLOCK_##token, T, 4>() \
               : columns > 8 ? te__quantized_entry<TE_BLOCK_##token, T, 2>() \
                             : te__quantized_entry<TE_BLOCK_##token, T, 1>();
        TE_CELL_FORMATS(TE_QUANTIZED_ENTRY)
#undef TE_QUANTIZED_ENTRY
    default: return 0;
    }
}
/* Returns how many clusters of `split` blocks can run at the same time, or 0 if the kernel's code is for GPUs without
 * clusters. */
TE_API int te__quantized_clusters(const te__quantized_kernel_entry *e, int split, const te_context *ctx) {
    struct cudaFuncAttributes is;
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    int clusters = 0;
    if (split == 1) return ctx->processors;
    attribute.id = cudaLaunchAttributeClusterDimension, attribute.val.clusterDim.x = (unsigned)split;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.gridDim = dim3((unsigned)split), config.blockDim = dim3(TE_QUANTIZED_THREADS);
    config.dynamicSmemBytes = (size_t)ctx->shared_bytes, config.attrs = &attribute, config.numAttrs = 1;
    const int ok = ctx->capability >= 900 && cudaFuncGetAttributes(&is, e->kernel) == cudaSuccess &&
                   is.ptxVersion >= 90 && cudaOccupancyMaxActiveClusters(&clusters, e->kernel, &config) == cudaSuccess;
    if (!ok) (void)cudaGetLastError();
    return ok ? clusters : 0;
}
TE_API te_status te__quantized_prepare(te__quantized_kernel_entry *e, te_context *ctx) {
    const uint64_t bit = 1ull << (ctx->device & 63);
    if (__atomic_load_n(&e->set, __ATOMIC_ACQUIRE) & bit) return TE_OK;
    TE_TRY(te__cuda_status(
        ctx, cudaFuncSetAttribute(e->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)ctx->shared_bytes),
        "shared memory of the product of a quantized weight"));
    for (int i = 1; i <= TE_QUANTIZED_MAX_SPLIT; i++) e->clusters[i] = te__quantized_clusters(e, i, ctx);
    (void)__atomic_fetch_or(&e->set, bit, __ATOMIC_RELEASE);
    return TE_OK;
}
/* Chooses how warps, blocks and clusters divide the work, and sets the members of *p that depend on this choice. The
 * choice minimises the time that a model predicts, in clock cycles; the model's constants were measured on an H200. In
 * the model, memory and the warps work at the same time, and A is read from the L2. Returns the bytes of shared memory
 * of a block. */
TE_API int te__quantized_choose(te__quantized *p, const te__quantized_kernel_entry *e, const te_context *ctx) {
    enum {
        MEMORY_RATE = 17,    /* bytes per cycle that each multiprocessor reads from memory if all of them read */
        L2_RATE = 24,        /* bytes per cycle that each multiprocessor reads from the L2 */
        MAX_RATE = 20,       /* bytes per cycle that a multiprocessor reads from memory if the others do not read */
        GROUP_LATENCY = 110, /* cycles that a warp takes for a group (32 columns of W) with one column tile */
        TILE_LATENCY = 30,   /* cycles that each further column tile adds to a group */
        STEP_LATENCY = 300,  /* cycles that each step adds */
        GROUP_ISSUE = 30,    /* instructions of a warp for a group */
        TILE_ISSUE = 9,      /* instructions that each column tile adds to a group */
        CLUSTER = 1500,      /* cycles that the reduction by a cluster takes */
        TILE = 600,          /* cycles that the reduction by a block takes */
        ROUND = 2500         /* cycles for each load of a part of A, if shared memory cannot hold all of A */
    };
    const int row_tiles = (int)te_ceil_div(p->rows, TE_CELL_ROWS);
    const int column = 2 * e->step_k * p->columns, pad = TE_QUANTIZED_X_PAD * p->columns;
    const int free = (int)ctx->shared_bytes - e->fixed - pad; /* for A and the rings */
    const int groups = e->step_k / TE_CELL_GROUP,
              column_tiles = (int)te_ceil_div(p->columns, TE_QUANTIZED_TILE_COLUMNS);
    const int issue =
        groups * (GROUP_ISSUE + TILE_ISSUE * column_tiles) / 4; /* a multiprocessor issues four at a time */
    const int latency = groups * (GROUP_LATENCY + TILE_LATENCY * (column_tiles - 1)) + STEP_LATENCY;
    int64_t least = -1;
    for (int across = 1; across <= TE_QUANTIZED_WARPS; across++) {
        const int stride = TE_QUANTIZED_WARPS / across, tiles = (int)te_ceil_div(row_tiles, across);
        const int ring = across * stride * e->step_bytes; /* bytes of a stage of all warps */
        for (int split = 1; split <= te_min(TE_QUANTIZED_MAX_SPLIT, across); split++) {
            const int steps = (int)te_ceil_div(p->steps, split);
            if (te_ceil_div(across, split) * split * stride > TE_QUANTIZED_SLOTS) continue;
            if (split > 1 && (split > p->steps || tiles > e->clusters[split])) continue;
            const int most = (free - 2 * ring) / column, buffered = steps <= most ? steps : most / stride * stride;
            if (buffered < 1) continue;
            const int64_t waves = split > 1 ? 1 : te_ceil_div(tiles, e->clusters[1]);
            const int64_t rounds = steps <= buffered ? 0 : waves * te_ceil_div(steps, buffered);
            const int64_t of_x = (int64_t)steps * column * (rounds ? waves : 1) / L2_RATE;
            const int64_t of_step = te_max(latency, issue * stride * across * 5 / 4);
            const int64_t of_warps = waves * (te_ceil_div(steps, stride) * of_step + TILE) + rounds * ROUND;
            const int64_t all = (int64_t)row_tiles * p->steps * e->step_bytes / ctx->processors / MEMORY_RATE;
            const int64_t busiest = waves * across * steps * e->step_bytes / MAX_RATE;
            const int64_t cost =
                te_max(te_max(all, busiest), of_warps) + of_warps / 4 + of_x / 2 + (split > 1 ? CLUSTER : 0);
            if (least >= 0 && cost >= least) continue;
            least = cost, p->across = across, p->split = split, p->tiles = tiles, p->buffered = buffered;
        }
    }
    p->split_inverse = 256 / p->split + 1, p->across_inverse = 256 / p->across + 1;
    p->stride = TE_QUANTIZED_WARPS / p->across;
    p->steps_of_block = p->steps / p->split, p->more_steps = p->steps % p->split;
    const int ring = p->across * p->stride * e->step_bytes;
    p->stages = (int)te_min(TE_QUANTIZED_MAX_STAGES, (free - p->buffered * column) / ring);
    return e->fixed + pad + p->buffered * column + p->stages * ring;
}
/* The largest number of rows of A in one launch. */
TE_API int te__quantized_rows(te_dtype dtype) { return dtype == TE_f32 ? 10 : 32; }
/* Multiplies rows m0 to m0 + rows - 1 of A by one part of W. first: the index in W of the part's first row. */
template <te_dtype T>
TE_API te_status te__quantized_part(const te_gemm *g, int64_t m0, int64_t rows, const te_weight_part *part,
                                    int64_t first, te_context *ctx) {
    te__quantized p;
    const int64_t at = m0 * g->n + first, columns = T == TE_f32 ? 3 * rows : rows;
    const size_t in = te_dtype_bytes(T), out = te_dtype_bytes(g->out);
    te__quantized_kernel_entry *e = te__quantized_kernel_of<T>(part->format, columns);
    TE_TRY(te__quantized_prepare(e, ctx));
    memset(&p, 0, sizeof p);
    p.x = (const char *)g->a + (size_t)(m0 * g->k) * in, p.cells = te__cells_at(part);
    p.y = (char *)g->d + (size_t)at * out, p.c = g->beta != 0 ? (const char *)g->c + (size_t)at * out : 0;
    p.bias = g->epilogue == TE_EPILOGUE_BIAS ? (const char *)g->bias + (size_t)first * in : 0;
    p.out_f32 = g->out == TE_f32, p.alpha = g->alpha, p.beta = g->beta;
    p.m = (int)rows, p.rows = (int)part->rows, p.k = (int)g->k, p.ld = (int)g->n;
    p.row_bytes = p.k / e->values * e->cell, p.row_scales = e->row_scales, p.steps = (int)te_ceil_div(g->k, e->step_k),
    p.early_weights = te__launch_follows_kernel(ctx);
    for (p.columns = 1; p.columns < columns;) p.columns *= 2;
    const int shared = te__quantized_choose(&p, e, ctx);
    const int blocks = p.split > 1 ? p.tiles * p.split : (int)te_min(p.tiles, e->clusters[1]);
    return te__cuda_launch(ctx,
                           te__launch_of(e->kernel, "product of a quantized weight", te__grid_of(blocks, 1),
                                         TE_QUANTIZED_THREADS, shared, p.split),
                           &p, sizeof p);
}
/* Returns whether W is converted in the workspace and multiplied by te_gemm_run. */
TE_API int te__quantized_converts(const te_gemm *g) {
    return g->m > TE_QUANTIZED_MAX_M && g->n * g->k * (int64_t)te_dtype_bytes(g->dtype) <= TE_QUANTIZED_DEQUANTIZED;
}
/* Returns the number of bytes of te_gemm.scratch that te__quantized_run needs. */
TE_API size_t te__quantized_scratch(const te_gemm *g) {
    return te__quantized_converts(g) ? (size_t)(g->n * g->k) * te_dtype_bytes(g->dtype) : 0;
}
/* Computes D = alpha A W^T + beta C, plus g's bias if it has one, for a GEMM with b_quantized. T: g's dtype. */
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
