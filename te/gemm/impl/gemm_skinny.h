/* gemm_skinny.h -- a GEMM with at most eight rows, y[m, n] = x[m, k] W[n, k]^T, as in decoding token by token.
 *
 * A block computes 16 columns of y at a time from 16 rows of W; its eight warps split k. Each warp has its own ring of
 * stages in shared memory, which it fills by cp.async, so that no warp waits for another in the mainloop. A warp
 * multiplies by mma.sync, whose operand A is rows of W and whose operand B is rows of x. (Elements of k may be passed
 * to mma.sync in any order, as long as it is the same for W and x.) The sums of the warps are added in a fixed order,
 * rounded to 16 bits, and passed, eight elements at a time, to the epilogue of the fused pattern to which this GEMM
 * belongs; during that time the copies into the rings continue. If this kernel follows another kernel of the same
 * forward or backward pass, it fills its rings with W while that kernel still runs (PDL), which is safe because no
 * kernel of a pass writes weights. Otherwise this kernel fills the rings when the previous kernel has ended.
 *
 * e4m3 operands use the same code, because a lane loads and holds vectors of 16 bytes both in 16 bits and in FP8; e4m3
 * is converted to f16 in registers, just before it is multiplied. With tensorwise or rowwise scales the total of all
 * warps' sums is multiplied by the scales; with blockwise scales each sum over 128 elements of k is multiplied by the
 * scales of these elements before it is added to the previous sums.
 *
 * Lower bound of the time: W is read once, 2 * n * k bytes in 16 bits or n * k in FP8, at the memory bandwidth.
 * Measurements: docs/notes/gemm.md.
 */
/* target: cuda */
#ifndef TE_GEMM_SKINNY_H
#define TE_GEMM_SKINNY_H

#include "../../core/lanes.h"        /* te_amax_atomic_max */
#include "../../core/impl/graph_replay.h" /* te__launch_follows_kernel */
#include "../../core/impl/ptx_cuda.h"    /* te__mma_sync */
#include "../../core/target.h"      /* te_kernel_begin */
#include "../gemm_types.h"          /* te_epilogue_fn, te_gemm_operands, te_blockwise_1d_scale_at */

enum {
    TE_SKINNY_ROWS = 8,     /* the largest number of rows of x */
    TE_SKINNY_COLUMNS = 16, /* number of columns of y that a block computes at a time */
    TE_SKINNY_WARPS = 8,
    TE_SKINNY_THREADS = 32 * TE_SKINNY_WARPS,
    TE_SKINNY_BLOCKS_PER_SM = 2,
    TE_SKINNY_WARP_K = 128,                              /* elements of k in one step of a warp */
    TE_SKINNY_STEP = TE_SKINNY_WARP_K * TE_SKINNY_WARPS, /* number of elements of k that all warps of a block together
                                                          * process in one step */
    /* bytes of a stage, which holds the part of W that one warp processes in one step */
    TE_SKINNY_STAGE = TE_SKINNY_COLUMNS * TE_SKINNY_WARP_K * 2,
    TE_SKINNY_STAGES = 3,                                       /* number of stages in a warp's ring */
    TE_SKINNY_ROW = TE_SKINNY_WARP_K * 2,                       /* bytes of a row of W in a stage */
    TE_SKINNY_SHARED = TE_SKINNY_WARPS * TE_SKINNY_STAGES * TE_SKINNY_STAGE
};

/* The arguments of the skinny kernel. An "element" of k is 16 bits wide here: it holds one 16-bit number or two FP8
 * numbers. */
typedef struct te_skinny {
    const uint16_t *x, *w; /* x: [m, k]; w: [n, k] */
    const float *x_inverse, *w_inverse; /* for FP8: 1 / scale of x and of W; null if all scales are 1 */
    float *amax; /* the kernel sets *amax to the larger of its old value and the largest magnitude that the epilogue
                  * stores in FP8; null if no amax is wanted */
    float alpha;
    int m, n, k; /* k: in elements */
    int rowwise;       /* for TE_OPERANDS_FP8: 1 if the scales of x and W are rowwise, 0 if they are tensorwise */
    /* 1 if the previous kernel does not write W, so that this kernel may load W before the previous kernel has ended */
    int early_weights;
} te_skinny;

/* ---- W into a warp's ring ---------------------------------------------------------------------------------------- */

/* A step of a block: col is the number of the first of the block's 16 columns of y, k the first element of k that the
 * step processes. All warps of the block process their parts of the same step. */
typedef struct te_skinny_position { int col, k; } te_skinny_position;
TE_FN void te__skinny_advance(te_skinny_position *at, const te_skinny *p) {
    at->k += TE_SKINNY_STEP;
    if (at->k < p->k) return;
    at->col += (int)gridDim.x * TE_SKINNY_COLUMNS, at->k = 0;
}
/* Which 16 columns of y a block computes together: if `pairs` is 0, 16 adjacent columns; otherwise two runs of 8
 * adjacent columns, so that an epilogue gets both elements of each pair that it combines. If head_dim is 0, column i of
 * the first half of y pairs with column i of the second half (a gated op). Else y consists of heads of head_dim
 * columns; in each head the first rotary / 2 columns pair with the next rotary / 2 (rope), and of the head's remaining
 * columns the first half pairs with the second half. */
typedef struct te_skinny_pairing { int pairs, head_dim, rotary; } te_skinny_pairing;
/* The 16 columns that a block computes together are two runs of eight adjacent columns. Returns the first column of the
 * first run (second 0) or of the second run (second 1). All columns of y are divided into such groups of 16; col: 16
 * times the index of the group. */
TE_FN int te__skinny_column(const te_skinny *p, int col, int second, const te_skinny_pairing k) {
    if (!k.pairs) return col + 8 * second;
    if (!k.head_dim) return col / 2 + second * (p->n / 2);
    const int in_head = col % k.head_dim, head = col - in_head, rest = in_head / 2 - k.rotary / 2;
    return rest < 0 ? head + in_head / 2 + second * (k.rotary / 2)
                    : head + k.rotary + rest + second * ((k.head_dim - k.rotary) / 2);
}
/* Returns the index in W of row `row` of the 16 rows that a block multiplies together. The index is also that of the
 * column of y that this row produces. */
TE_FN int te__skinny_column_of(const te_skinny *p, int col, int row, const te_skinny_pairing k) {
    return k.pairs ? te__skinny_column(p, col, row / 8, k) + row % 8 : col + row;
}
/* Returns the first element of k that this thread's warp processes in a step, counted from the step's first element. */
TE_FN int te__skinny_warp_k(void) { return (int)threadIdx.x / 32 * TE_SKINNY_WARP_K; }
/* The next step whose part of W a warp copies into its ring. One cp.async of the warp copies 256 bytes from each of two
 * neighbouring rows of W: lane i copies vector i % 16, of 16 bytes, of the first (i < 16) or the second row. */
typedef struct te_skinny_loads {
    te_skinny_position at;
    /* for k = 0: the addresses of the vectors that this lane copies from row 0 or 1 (w[0]) and from row 8 or 9 (w[1])
     * of the 16 rows of W */
    const uint16_t *w[2];
    uint32_t stage; /* the address in shared memory of the stage to be filled */
} te_skinny_loads;
/* Set loads->w for the columns of y in loads->at. */
TE_FN void te__skinny_set_rows(te_skinny_loads *loads, const te_skinny *p, const te_skinny_pairing pairing) {
    const int lane = (int)threadIdx.x % 32, row = lane / 16, col = loads->at.col < p->n ? loads->at.col : 0;
    const int64_t k = te__skinny_warp_k() + lane % 16 * 8;
    /* if only eight columns of y are left, rows 8 to 15 are copies of rows 0 to 7; their products are not stored */
    const int second = pairing.pairs || col + 8 < p->n ? row + 8 : row;
    loads->w[0] = p->w + (int64_t)te__skinny_column_of(p, col, row, pairing) * p->k + k;
    loads->w[1] = p->w + (int64_t)te__skinny_column_of(p, col, second, pairing) * p->k + k;
}
/* Starts the copy of half of the warp's part of W for the step loads->at into a stage: of the first eight rows (half 0)
 * or the last eight rows (half 1), with zeros beyond n and k. The stage holds 16 rows of 16 vectors. In odd rows
 * vectors 0 to 3 are swapped with vectors 4 to 7, and 8 to 11 with 12 to 15, so that the loads of te__skinny_multiply
 * from two neighbouring rows use different banks. */
TE_FN void te__skinny_copy_half(const te_skinny_loads *loads, const te_skinny *p, int half) {
    const int lane = (int)threadIdx.x % 32, vector = lane % 16, row = lane / 16;
    const int beyond = loads->at.col >= p->n || te__skinny_warp_k() + vector * 8 + loads->at.k >= p->k;
    const uint32_t to = loads->stage + (uint32_t)((8 * half + row) * TE_SKINNY_ROW + ((vector ^ row << 2) << 4));
    const uint16_t *from = loads->w[half] + loads->at.k;
    TE_UNROLL for (int j = 0; j < 4; j++, from += 2 * (int64_t)p->k)
        asm volatile("{\n.reg .pred beyond;\nsetp.ne.s32 beyond, %2, 0;\n"
                     "cp.async.cg.shared.global [%0], [%1], 16, beyond; // a weight\n}" ::"r"(
                         to + (uint32_t)(2 * j * TE_SKINNY_ROW)),
                     "l"(from), "r"(beyond)
                     : "memory");
}
TE_FN void te__skinny_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Wait until all copies of this lane have arrived. */
TE_FN void te__skinny_await_all(void) { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
/* Advance *loads to the next stage and the next step. */
TE_FN void te__skinny_next_stage(te_skinny_loads *loads, const te_skinny *p, uint32_t ring,
                                 const te_skinny_pairing pairing) {
    loads->stage += TE_SKINNY_STAGE;
    if (loads->stage == ring + TE_SKINNY_STAGES * TE_SKINNY_STAGE) loads->stage = ring;
    const int col = loads->at.col;
    te__skinny_advance(&loads->at, p);
    if (loads->at.col != col) te__skinny_set_rows(loads, p, pairing);
}
/* Start the copy of the warp's part of W for the step loads->at into a stage, and advance *loads. */
TE_FN void te__skinny_load_stage(te_skinny_loads *loads, const te_skinny *p, uint32_t ring,
                                 const te_skinny_pairing pairing) {
    te__skinny_copy_half(loads, p, 0), te__skinny_copy_half(loads, p, 1);
    te__skinny_commit();
    te__skinny_next_stage(loads, p, ring, pairing);
}
/* Fills the whole ring. paced: 1 if the previous kernel still runs. If all copies were started at once, the previous
 * kernel's loads and last stores, and then this kernel's loads of x, would wait behind these copies for microseconds.
 * Therefore a warp starts the copy of half a stage only when its previous copy has arrived: then 32 KB are in flight on
 * each multiprocessor, which is enough for the bandwidth. */
TE_FN void te__skinny_fill_ring(te_skinny_loads *loads, const te_skinny *p, uint32_t ring,
                                const te_skinny_pairing pairing, const int paced) {
    TE_UNROLL_1 for (int i = 0; i < TE_SKINNY_STAGES; i++) {
        te__skinny_copy_half(loads, p, 0);
        if (paced) te__skinny_commit(), te__skinny_await_all();
        te__skinny_copy_half(loads, p, 1);
        te__skinny_commit();
        if (paced && i < TE_SKINNY_STAGES - 1) te__skinny_await_all();
        te__skinny_next_stage(loads, p, ring, pairing);
    }
}

/* ---- the mainloop ------------------------------------------------------------------------------------------------ */

/* Load eight elements of x from `from`, or zeros if the row of x ends before `from`. left: the number of elements from
 * `from` to the end of the row. The assembly uses a predicate because for an `if` the compiler would generate a branch,
 * and would compute the address of each load behind its branch. */
TE_FN void te__skinny_load_x(uint32_t x[4], const uint16_t *from, int left) {
    asm volatile("{\n.reg .pred inside;\nsetp.gt.s32 inside, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\n"
                 "mov.b32 %2, 0;\nmov.b32 %3, 0;\n@inside ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                 : "=&r"(x[0]), "=&r"(x[1]), "=&r"(x[2]), "=&r"(x[3])
                 : "l"(from), "r"(left));
}
/* A lane's part of x for one step: eight of each 32 elements of k. */
typedef struct te_skinny_x { uint32_t vector[TE_SKINNY_WARP_K / 32][4]; } te_skinny_x;
/* The blockwise scales that a lane needs in one step: TE_SKINNY_STEP_SCALES of W, and as many for each of the two rows
 * of x whose sums the lane holds. */
enum { TE_SKINNY_STEP_SCALES = TE_SKINNY_WARP_K / (TE_FP8_BLOCK / 2) };
typedef struct te_skinny_step_scales {
    float x[TE_SKINNY_STEP_SCALES][2], w[TE_SKINNY_STEP_SCALES];
} te_skinny_step_scales;
TE_FN void te__skinny_load_step_scales(te_skinny_step_scales *s, const te_skinny *p, const te_skinny_position *at) {
    const int row = (int)threadIdx.x % 4 * 2;
    const int64_t cols = 2 * (int64_t)p->k;
    TE_UNROLL for (int i = 0; i < TE_SKINNY_STEP_SCALES; i++) {
        const int64_t tile = (at->k + te__skinny_warp_k()) / (TE_FP8_BLOCK / 2) + i;
        const int exists = tile < te_fp8_blocks(cols);
        TE_UNROLL for (int j = 0; j < 2; j++)
            s->x[i][j] =
                exists && row + j < p->m ? p->x_inverse[te_blockwise_1d_scale_at(p->m, cols, row + j, tile)] : 0.0f;
        s->w[i] = exists ? p->w_inverse[te_blockwise_2d_scale_at(cols, at->col / TE_FP8_BLOCK, tile)] : 0.0f;
    }
}
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 890
/* Convert the four e4m3 numbers in w to f16, which represents them exactly. */
TE_FN void te__f16_of_four_e4m3(uint32_t *low, uint32_t *high, uint32_t w) {
    asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.rn.f16x2.e4m3x2 %0, a;\ncvt.rn.f16x2.e4m3x2 %1, b;\n}"
        : "=r"(*low), "=r"(*high)
        : "r"(w));
}
#endif
/* Multiplies 16 rows of W by eight rows of x over 32 elements of k, and adds the products to c. u, v: the lane's
 * vectors in rows lane / 4 and lane / 4 + 8 of W; x: the lane's vector in row lane / 4 of x. e4m3 is converted to f16
 * because compute capability 9.0 has no mma.sync instruction for e4m3: the compiler would emulate such an instruction
 * by the same conversion and additional instructions. */
TE_FN void te__skinny_mma(float c[4], const uint32_t u[4], const uint32_t v[4], const uint32_t x[4],
                          const te_dtype format) {
    if (format != TE_e4m3) {
        const uint32_t first[4] = {u[0], v[0], u[1], v[1]}, second[4] = {u[2], v[2], u[3], v[3]};
        te__mma_sync(c, first, x[0], x[1], format);
        te__mma_sync(c, second, x[2], x[3], format);
        return;
    }
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 890
    TE_UNROLL for (int i = 0; i < 4; i++) {
        uint32_t a[4], b[2];
        te__f16_of_four_e4m3(&a[0], &a[2], u[i]);
        te__f16_of_four_e4m3(&a[1], &a[3], v[i]);
        te__f16_of_four_e4m3(&b[0], &b[1], x[i]);
        te__mma_sync(c, a, b[0], b[1], TE_f16);
    }
#endif
}
/* Adds the products of one step to the lane's four sums c. The four sums are the dot products of rows lane / 4 and lane
 * / 4 + 8 of W with rows 2 * (lane % 4) and 2 * (lane % 4) + 1 of x. x: the lane's part of x for this step; each vector
 * is replaced by the vector of the next step as soon as it has been multiplied. next: the address of the first vector
 * of the next step; left: the number of elements from `next` to the end of the row. */
TE_FN void te__skinny_multiply(float c[4], uint32_t stage, te_skinny_x *x, const uint16_t *next, int left,
                               const te_skinny_step_scales *scale, const te_gemm_operands operands,
                               const te_dtype dtype) {
    /* number of successive iterations of the loop over i that use the same scales; each iteration multiplies 32
     * elements of k */
    enum { PER_SCALE = TE_SKINNY_WARP_K / 32 / TE_SKINNY_STEP_SCALES };
    const te_dtype format = operands == TE_OPERANDS_16BIT ? dtype : TE_e4m3;
    const int blockwise = operands == TE_OPERANDS_FP8_BLOCKWISE;
    float part[4] = {0, 0, 0, 0};
    /* the lane multiplies vectors lane % 4 + 4 * i of its rows; in odd rows te__skinny_load_stage has swapped the
     * vectors of i and i + 1, for each even i */
    const int row = (int)threadIdx.x % 32 / 4, swap = row % 2 * 64;
    const uint32_t even = stage + (uint32_t)(row * TE_SKINNY_ROW + (int)threadIdx.x % 4 * 16 + swap),
                   odd = even - 2 * (uint32_t)swap;
    TE_UNROLL for (int i = 0; i < TE_SKINNY_WARP_K / 32; i++) {
        const uint32_t from = (i % 2 ? odd : even) + (uint32_t)(64 * i);
        uint32_t u[4], v[4];
        te__lds128(u, from), te__lds128(v, from + 8 * TE_SKINNY_ROW);
        te__skinny_mma(blockwise ? part : c, u, v, x->vector[i], format);
        te__skinny_load_x(x->vector[i], next + 32 * i, left - 32 * i);
        if (!blockwise || i % PER_SCALE != PER_SCALE - 1) continue;
        TE_UNROLL
        for (int j = 0; j < 4; j++)
            c[j] += part[j] * (scale->x[i / PER_SCALE][j % 2] * scale->w[i / PER_SCALE]), part[j] = 0;
    }
}

/* ---- the epilogue ------------------------------------------------------------------------------------------------ */

/* The tensorwise or rowwise scales for one element of y: the element for which this thread adds up the warps' partial
 * sums in the epilogue. The element lies in one of the 16 columns from `col` on, and its scales are loaded before the
 * mainloop computes these columns. */
typedef struct te_skinny_scales { float x, w; } te_skinny_scales;
TE_FN te_skinny_scales te__skinny_load_scales(const te_skinny *p, int col, const te_gemm_operands operands,
                                              const te_skinny_pairing pairing) {
    const int row = (int)threadIdx.x / TE_SKINNY_COLUMNS, column = (int)threadIdx.x % TE_SKINNY_COLUMNS;
    te_skinny_scales s = {1.0f, 1.0f};
    if (operands != TE_OPERANDS_FP8 || row >= p->m || col + column >= p->n) return s;
    const int at = te__skinny_column_of(p, col, column, pairing);
    if (p->x_inverse) s.x = p->x_inverse[p->rowwise ? row : 0];
    if (p->w_inverse) s.w = p->w_inverse[p->rowwise ? at : 0];
    return s;
}
/* The functions that store the results of a pattern: `each` takes eight columns of y; if columns are paired, `pair`
 * takes two vectors of eight columns instead. prepare: called by all threads before the mainloop, unless it is null.
 * arg: the argument that these functions get. */
typedef struct te_skinny_epilogue {
    te_epilogue_fn each;
    te_epilogue_pair_fn pair;
    void (*prepare)(const void *arg);
    const void *arg;
    te_skinny_pairing pairing;
} te_skinny_epilogue;
/* Add up the partial sums of the eight warps for 16 columns of y, and call the pattern's epilogue with the results. */
TE_FN void te__skinny_epilogue(const te_skinny *p, int col, const float c[4], te_skinny_scales scales,
                               const te_skinny_epilogue epilogue, const te_dtype dtype) {
    __shared__ float sums[TE_SKINNY_WARPS][TE_SKINNY_ROWS]
                         [TE_SKINNY_COLUMNS + 1]; /* the row has one float more than columns, so that a warp's stores
                                                   * hit different banks */
    __shared__ uint4 y[TE_SKINNY_ROWS][TE_SKINNY_COLUMNS / 8];
    const int thread = (int)threadIdx.x, lane = thread % 32, row = thread / 2, at = col + thread % 2 * 8;
    TE_UNROLL for (int i = 0; i < 4; i++) sums[thread / 32][2 * (lane % 4) + i % 2][lane / 4 + 8 * (i / 2)] = c[i];
    __syncthreads();
    if (thread < TE_SKINNY_ROWS * TE_SKINNY_COLUMNS) {
        float sum = 0;
        TE_UNROLL
        for (int i = 0; i < TE_SKINNY_WARPS; i++)
            sum += sums[i][thread / TE_SKINNY_COLUMNS][thread % TE_SKINNY_COLUMNS];
        te_store(y, thread, p->alpha * (scales.x * scales.w) * sum, dtype);
    }
    __syncthreads();
    te_epilogue_state state = {{0, 0, 0, 0, 0, 0, 0, 0}, 0, {0, 0}, TE_OUTPUTS_ANY};
    uint32_t w[4], other[4];
    if (epilogue.pairing.pairs) {
        if (thread < p->m) {
            memcpy(w, &y[thread][0], sizeof w), memcpy(other, &y[thread][1], sizeof other);
            epilogue.pair(epilogue.arg, w, other, thread, te__skinny_column(p, col, 0, epilogue.pairing),
                          te__skinny_column(p, col, 1, epilogue.pairing), &state);
        }
    } else if (row < p->m && at < p->n) {
        memcpy(w, &y[row][thread % 2], sizeof w);
        epilogue.each(epilogue.arg, w, 0, row, at, &state);
    }
    if (p->amax && thread < 32) { /* only the first warp has an amax, because at most the first 16 threads have called
                                   * the epilogue */
        int group;
        te_amax_atomic_max(p->amax, state.amax_bits, te_lanes_here(32, &group));
    }
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

TE_FN void te_skinny_body(const te_skinny *p, const te_skinny_epilogue epilogue, const te_gemm_operands operands,
                          const te_dtype dtype) {
    extern __shared__ uint4 te_skinny_rings[];
    const int row = (int)threadIdx.x % 32 / 4, lane_k = te__skinny_warp_k() + (int)threadIdx.x % 4 * 8;
    const int blockwise = operands == TE_OPERANDS_FP8_BLOCKWISE;
    const uint32_t ring = te__shared_address(te_skinny_rings) +
                          threadIdx.x / 32 * (uint32_t)(TE_SKINNY_STAGES * TE_SKINNY_STAGE);
    /* a lane whose row of x does not exist loads row 0 instead; the products are not stored */
    const uint16_t *x_row = p->x + (int64_t)(row < p->m ? row : 0) * p->k + lane_k;
    te_skinny_position at = {(int)blockIdx.x * TE_SKINNY_COLUMNS, 0};
    te_skinny_loads loads = {at, {nullptr, nullptr}, ring};
    uint32_t stage = ring;
    float c[4] = {0, 0, 0, 0};
    te_skinny_x x;
    te_skinny_step_scales step_scales, next_step_scales;
    te__skinny_set_rows(&loads, p, epilogue.pairing);
    if (p->early_weights) te__skinny_fill_ring(&loads, p, ring, epilogue.pairing, 1);
    else te_kernel_wait();
    if (epilogue.prepare) epilogue.prepare(epilogue.arg);
    te_kernel_begin();
    TE_UNROLL for (int i = 0; i < TE_SKINNY_WARP_K / 32; i++)
        te__skinny_load_x(x.vector[i], x_row + 32 * i, p->k - lane_k - 32 * i);
    if (!p->early_weights) te__skinny_fill_ring(&loads, p, ring, epilogue.pairing, 0);
    if (blockwise) te__skinny_load_step_scales(&next_step_scales, p, &at);
    te_skinny_scales scales = te__skinny_load_scales(p, at.col, operands, epilogue.pairing);
    while (at.col < p->n) {
        const int col = at.col;
        asm volatile("cp.async.wait_group %0;" ::"n"(TE_SKINNY_STAGES - 1) : "memory");
        __syncwarp(); /* the copies of all lanes have arrived */
        if (blockwise) step_scales = next_step_scales;
        te__skinny_advance(&at, p);
        if (blockwise && at.col < p->n) te__skinny_load_step_scales(&next_step_scales, p, &at);
        te__skinny_multiply(c, stage, &x, x_row + at.k, p->k - lane_k - at.k, &step_scales, operands, dtype);
        stage += TE_SKINNY_STAGE;
        if (stage == ring + TE_SKINNY_STAGES * TE_SKINNY_STAGE) stage = ring;
        __syncwarp(); /* all lanes have read the stage, which is filled next */
        te__skinny_load_stage(&loads, p, ring, epilogue.pairing);
        if (at.col == col) continue; /* more steps of k follow for the same columns of y, so no epilogue yet */
        te__skinny_epilogue(p, col, c, scales, epilogue, dtype);
        if (at.col < p->n) scales = te__skinny_load_scales(p, at.col, operands, epilogue.pairing);
        c[0] = c[1] = c[2] = c[3] = 0;
    }
}

/* Defines a kernel. type: the struct of its arguments, which begins with a te_skinny; operands: a te_gemm_operands;
 * dtype: the dtype of y and of 16-bit operands; epilogue: a te_epilogue_fn, which gets the address of the arguments;
 * pair: a te_epilogue_pair_fn, which is called instead if gated is 1. exists: if 0, the kernel is empty. */
#define TE_SKINNY_KERNEL(name, type, operands, dtype, epilogue, pair, gated, exists)               \
    TE_UNUSED static __global__ void __launch_bounds__(TE_SKINNY_THREADS, TE_SKINNY_BLOCKS_PER_SM) \
        name(const __grid_constant__ type p) {                                                     \
        const te_skinny_epilogue te_epilogue_ = {epilogue, pair, nullptr, &p, {gated, 0, 0}};      \
        if (exists) te_skinny_body((const te_skinny *)&p, te_epilogue_, operands, dtype);          \
    }

/* ---- the host's side --------------------------------------------------------------------------------------------- */

/* Return the value of the argument `operands` of TE_SKINNY_KERNEL for the kernel that can run this GEMM. */
TE_API te_gemm_operands te__skinny_operands_of(const te_gemm *g) {
    return !te__gemm_is_fp8(g)                         ? TE_OPERANDS_16BIT
           : g->a_fp8.scaling == TE_SCALING_BLOCKWISE_1D ? TE_OPERANDS_FP8_BLOCKWISE : TE_OPERANDS_FP8;
}
/* Return whether the skinny kernel supports this GEMM: its sizes, formats and scalings. */
TE_API int te__skinny_can(const te_gemm *g) {
    const int64_t limit = 1 << 30;
    const int aligned = te__gemm_is_fp8(g) ? te__gemm_a_dtype(g) == TE_e4m3 && te__gemm_b_dtype(g) == TE_e4m3 &&
                                                g->b_fp8.scaling != TE_SCALING_BLOCKWISE_1D && g->k % 16 == 0
                                          : g->k % 8 == 0;
    return aligned && g->dtype != TE_f32 && g->out == g->dtype && !g->trans_a && g->trans_b && g->m <= TE_SKINNY_ROWS &&
           g->n % 8 == 0 && g->n < limit && g->k < limit && g->epilogue == TE_EPILOGUE_NONE;
}
/* Return the k of the GEMM, counted in 16-bit elements as in te_skinny: two FP8 numbers count as one element. */
TE_API int64_t te__skinny_k(const te_gemm *g) { return te__gemm_is_fp8(g) ? g->k / 2 : g->k; }
/* Fill in *p for this GEMM, and launch `kernel`. args: the struct that is the kernel's argument, of `bytes` bytes; *p
 * is its first member. */
TE_API te_status te__skinny_run(const void *kernel, const void *args, size_t bytes, te_skinny *p, const te_gemm *g,
                                te_context *ctx) {
    p->x = (const uint16_t *)g->a, p->w = (const uint16_t *)g->b, p->alpha = g->alpha, p->m = (int)g->m,
    p->n = (int)g->n, p->k = (int)te__skinny_k(g);
    p->x_inverse = g->a_fp8.inverse, p->w_inverse = g->b_fp8.inverse;
    p->rowwise = g->a_fp8.scaling == TE_SCALING_ROWWISE;
    p->early_weights = te__launch_follows_kernel(ctx) && !g->b_is_new;
    const int blocks =
        (int)te_min(ctx->processors * TE_SKINNY_BLOCKS_PER_SM, te_ceil_div(g->n, TE_SKINNY_COLUMNS));
    const te_launch launch = te__launch_of(kernel, "skinny matrix product", te__grid_of(blocks, 1), TE_SKINNY_THREADS,
                                           TE_SKINNY_SHARED, 1);
    return te__cuda_launch(ctx, launch, args, bytes);
}

#endif
