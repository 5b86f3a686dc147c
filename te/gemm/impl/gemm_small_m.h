/* gemm_small_m.h -- a GEMM of 9 to 128 rows on compute capability 9.0, y[m, n] = x[m, k] W[n, k]^T: decoding a batch.
 *
 * wgmma multiplies 64 rows of its first operand by 8 to 256 columns of its second operand. Here W is the first operand
 * and x, padded to 16, 32, 64 or 128 rows, the second, so that little of the tensor cores' work is wasted on padding. A
 * block multiplies 128 rows of W, which yield 128 columns of y. The L2 delivers 5 to 6 TB/s, not much more than the 4.3
 * TB/s at which W is read from memory. Therefore x is loaded from the L2 only once per cluster: each of the cluster's
 * two blocks loads half of x and multicasts this half to both.
 *
 *   producer   one thread loads W and x by TMA into a ring of 192 KB. If the previous kernel belongs to the same
 *              forward or backward pass, the thread fills the ring with W while that kernel still runs, which is safe
 *              because no kernel of a pass writes weights
 *   consumers  two warpgroups multiply; each warp then runs the pattern's epilogue on its 16 columns of y
 *
 * A cluster computes one tile after another, each over all of k. If the last wave has fewer tiles than clusters, the k
 * of each tile of this wave is split over several clusters: these clusters store partial sums in the workspace, and the
 * cluster that finishes last adds up these sums in the order of k. So results are bitwise reproducible, and no block
 * waits for a block of another cluster.
 *
 * With e4m3 operands the same code runs and reads half as many bytes. The tensor cores hold the sums over all of k,
 * with 14 bits (fast accumulation); at the end the sums are multiplied by the tensorwise or rowwise scales.
 *
 * Lower bound of the time: W is read once, 2 * n * k bytes (FP8: n * k), at the memory bandwidth. Measurements:
 * docs/notes/gemm.md.
 */
/* target: cuda */
#ifndef TE_GEMM_SMALL_M_H
#define TE_GEMM_SMALL_M_H

#include "../../core/lanes.h"       /* te_amax_atomic_max */
#include "../../core/target.h"     /* te_kernel_wait */
#include "../../core/impl/ptx_cuda.h" /* te__wgmma_n, te__tma_load, te__barrier_wait */
#include "../gemm_types.h"         /* te_epilogue_fn, te_gemm_operands */
#include "gemm_autotune.h"         /* te__gemm_state */
#include "gemm_skinny.h"           /* TE_SKINNY_ROWS, te__skinny_k */

enum {
    TE_SMALL_M_ROWS = 128,    /* the largest number of rows of x */
    TE_SMALL_M_COLUMNS = 128, /* number of columns of y in a block's tile */
    TE_SMALL_M_CLUSTER = 2,
    TE_SMALL_M_K = 64, /* number of 16-bit elements of k in a stage: 128 bytes of each row of W and x */
    TE_SMALL_M_W_BYTES = TE_SMALL_M_COLUMNS * TE_SMALL_M_K * 2, /* bytes of W in a stage; x lies behind W */
    TE_SMALL_M_WARPS = 8,                                       /* number of consumer warps of a block; one more warp is
                                                                 * the producer */
    TE_SMALL_M_THREADS = 32 * (TE_SMALL_M_WARPS + 1),
    TE_SMALL_M_RING = 192 << 10,
    TE_SMALL_M_STAGES = 10, /* the largest number of stages of the ring */
    TE_SMALL_M_SHARED = TE_SMALL_M_RING + TE_SMALL_M_ROWS * TE_SMALL_M_COLUMNS * 2 + 1024,
    TE_SMALL_M_MAX_SPLITS = 8,     /* the largest number of parts into which a tile's k is split */
    TE_SMALL_M_MIN_SPLIT_STEPS = 4 /* the smallest number of steps in each part of k, if k is split; a step fills one
                                    * stage */
};

/* The kernel's arguments. An "element" of k is 16 bits wide here: it holds one 16-bit number or two FP8 numbers. */
typedef struct te_small_m {
    CUtensorMap w, x;
    const float *x_inverse, *w_inverse; /* for FP8: 1 / scale, or null if all scales are 1 */
    float *amax; /* the kernel sets *amax to the larger of its old value and the largest magnitude that the epilogue
                  * stores in FP8; null if no amax is wanted */
    float alpha;
    int m, n, k;       /* k: in elements */
    int padded_m;      /* number of rows of x in shared memory: m rounded up to 16, 32, 64 or 128; the rows beyond m are
                        * zeros */
    int stages;        /* how many stages of the ring this launch uses */
    int rowwise;       /* for FP8: 1 if the scales of x and W are rowwise, 0 if they are tensorwise */
    /* 1 if the previous kernel does not write W, so that this kernel may load W before the previous kernel has ended */
    int early_weights;
    int full_waves;    /* the number of tiles that each cluster computes over all of k, before the last wave of tiles */
    /* split_tiles: number of tiles in the last wave; splits: number of clusters over which the k of each of these tiles
     * is split */
    int split_tiles, splits;
    /* [split_tiles * splits, TE_SMALL_M_CLUSTER, padded_m / 8, 32 * TE_SMALL_M_WARPS, 4]: the partial sums over each
     * part of k */
    float *partial_sums;
    /* [split_tiles, TE_SMALL_M_CLUSTER, TE_SMALL_M_WARPS]: a counter for the 16 columns of a tile that one warp
     * computes. Its value is the number of parts of k whose partial sums are stored; 0 before and after the kernel */
    uint32_t *arrived;
} te_small_m;

typedef struct te_small_m_barriers { uint64_t full[TE_SMALL_M_STAGES], empty[TE_SMALL_M_STAGES]; } te_small_m_barriers;

TE_BOTH int te__small_m_stage_bytes(int padded_m) { return TE_SMALL_M_W_BYTES + padded_m * TE_SMALL_M_K * 2; }
TE_BOTH int te__small_m_stages(int padded_m) {
    return (int)te_min(TE_SMALL_M_RING / te__small_m_stage_bytes(padded_m), TE_SMALL_M_STAGES);
}
/* Return the bytes of a warp's box, the shared memory that holds the warp's 16 columns of y between mainloop and
 * epilogue. */
TE_BOTH int te__small_m_box_bytes(int padded_m) { return padded_m * 16 * 2; }

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- the scheduler ----------------------------------------------------------------------------------------------- */

/* A tile of this block, or a part of a tile: columns of y from col on, steps [first, last) of k. The k of a tile of the
 * last wave is split into `parts` parts, each computed by another cluster; the struct then describes part number `part`
 * of tile number `split_tile` of the last wave. For all other tiles part is 0 and parts is 1. */
typedef struct te_small_m_tile { int col, first, last, part, parts, split_tile; } te_small_m_tile;

/* Sets *t to this block's tile in the j-th piece of work of its cluster. Returns 0 if there is no such piece. */
TE_FN int te__small_m_tile_of(te_small_m_tile *t, const te_small_m *p, int j) {
    const int cluster = (int)blockIdx.x / TE_SMALL_M_CLUSTER, clusters = (int)gridDim.x / TE_SMALL_M_CLUSTER;
    const int rank = (int)blockIdx.x % TE_SMALL_M_CLUSTER, steps = (p->k + TE_SMALL_M_K - 1) / TE_SMALL_M_K;
    int tile = cluster + j * clusters;
    t->first = 0, t->last = steps, t->part = 0, t->parts = 1, t->split_tile = 0;
    if (j >= p->full_waves) {
        t->split_tile = cluster / p->splits, t->part = cluster % p->splits, t->parts = p->splits;
        if (j > p->full_waves || t->split_tile >= p->split_tiles) return 0;
        t->first = steps * t->part / p->splits, t->last = steps * (t->part + 1) / p->splits;
        tile = p->full_waves * clusters + t->split_tile;
    }
    t->col = (tile * TE_SMALL_M_CLUSTER + rank) * TE_SMALL_M_COLUMNS;
    return 1;
}
/* The producer's position: the next step is step k of the j-th tile, and is loaded into stage `stage` of the ring.
 * more: 0 after the last tile, else 1. */
typedef struct te_small_m_position {
    te_small_m_tile tile;
    int j, k, stage, phase, more;
} te_small_m_position;
TE_FN te_small_m_position te__small_m_first(const te_small_m *p) {
    te_small_m_position at;
    at.j = at.stage = at.phase = 0;
    at.more = te__small_m_tile_of(&at.tile, p, 0), at.k = at.tile.first;
    return at;
}
TE_FN void te__small_m_next(te_small_m_position *at, const te_small_m *p, int stages) {
    if (++at->stage == stages) at->stage = 0, at->phase ^= 1;
    if (++at->k < at->tile.last) return;
    at->more = te__small_m_tile_of(&at->tile, p, ++at->j), at->k = at->tile.first;
}

/* ---- the producer ------------------------------------------------------------------------------------------------ */

TE_FN void te__small_m_load_w(const te_small_m *p, uint32_t ring, te_small_m_barriers *bars,
                              const te_small_m_position *at) {
    const uint32_t full = te__shared_address(&bars->full[at->stage]);
    te__barrier_wait(te__shared_address(&bars->empty[at->stage]), at->phase ^ 1);
    te__barrier_arrive_expect_tx(full, te__small_m_stage_bytes(p->padded_m));
    te__tma_load(ring + (uint32_t)(at->stage * te__small_m_stage_bytes(p->padded_m)), &p->w, at->k * TE_SMALL_M_K,
                 at->tile.col, full, 0);
}
/* Loads half of the rows of x for one stage, by a TMA multicast to both blocks of the cluster. The other block loads
 * the other half. */
TE_FN void te__small_m_load_x(const te_small_m *p, uint32_t ring, te_small_m_barriers *bars,
                              const te_small_m_position *at) {
    const int half = p->padded_m / TE_SMALL_M_CLUSTER, row = (int)blockIdx.x % TE_SMALL_M_CLUSTER * half;
    const uint32_t stage = ring + (uint32_t)(at->stage * te__small_m_stage_bytes(p->padded_m));
    te__tma_load(stage + (uint32_t)(TE_SMALL_M_W_BYTES + row * TE_SMALL_M_K * 2), &p->x, at->k * TE_SMALL_M_K, row,
                 te__shared_address(&bars->full[at->stage]), (1 << TE_SMALL_M_CLUSTER) - 1);
}
/* Runs in one thread, which loads all tiles of this block. This thread first fills the ring with W, then waits until
 * the previous kernel, which writes x, has ended, and then loads x. If the previous kernel may write W, the thread only
 * prefetches W to the L2 before that wait. */
TE_FN void te__small_m_produce(const te_small_m *p, uint32_t ring, te_small_m_barriers *bars) {
    const int stages = p->stages;
    te_small_m_position w = te__small_m_first(p), x = w;
    if (!p->early_weights) {
        for (int i = 0; i < stages && w.more; i++, te__small_m_next(&w, p, stages))
            te__tma_prefetch_l2(&p->w, w.k * TE_SMALL_M_K, w.tile.col);
        te_kernel_wait();
        w = x;
    }
    for (int i = 0; i < stages && w.more; i++, te__small_m_next(&w, p, stages)) te__small_m_load_w(p, ring, bars, &w);
    te_kernel_wait();
    for (int i = 0; i < stages && x.more; i++, te__small_m_next(&x, p, stages)) te__small_m_load_x(p, ring, bars, &x);
    for (; w.more; te__small_m_next(&w, p, stages))
        te__small_m_load_w(p, ring, bars, &w), te__small_m_load_x(p, ring, bars, &w);
}

/* ---- the mainloop ------------------------------------------------------------------------------------------------ */

/* Signals that this consumer warp has read the stage. The producers of both blocks wait for this signal, because each
 * producer multicasts x to both blocks. */
TE_FN void te__small_m_release(const te_small_m_barriers *bars, int stage) {
    const int lane = (int)threadIdx.x % 32;
    if (lane < TE_SMALL_M_CLUSTER) te__barrier_arrive_remote(te__shared_address(&bars->empty[stage]), lane);
}
/* The shared memory that a consumer warp uses: the ring and its barriers, and the box in which the warp passes its
 * columns of y to the epilogue. */
typedef struct te_small_m_smem {
    uint32_t ring, box;
    te_small_m_barriers *bars;
} te_small_m_smem;
/* Computes a warpgroup's 64 columns of y over the tile's steps of k. In wgmma's layout a lane's d[4 * j + 2 * h + e] is
 * the element of y in row 8 * j + 2 * (lane % 4) + e and in column lane / 4 + 8 * h of the 16 columns of the lane's
 * warp. stage, phase: the position in the ring, which continues from tile to tile. */
TE_FN void te__small_m_multiply(float *d, const te_small_m_smem *s, const te_small_m_tile *t, int stages, int *stage,
                                int *phase, const te_dtype format, const int padded_m) {
    /* The number of this warpgroup. The shuffle tells the compiler that the number is the same in all lanes. */
    const int group = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
    int before = 0;
#pragma unroll 1
    for (int k = t->first; k < t->last; k++) {
        const uint32_t at = s->ring + (uint32_t)(*stage * te__small_m_stage_bytes(padded_m));
        const uint64_t a = te__wgmma_descriptor(at + group * (TE_SMALL_M_W_BYTES / 2), 0),
                       b = te__wgmma_descriptor(at + TE_SMALL_M_W_BYTES, 0);
        te__barrier_wait(te__shared_address(&s->bars->full[*stage]), *phase);
        te__wgmma_fence();
        TE_UNROLL for (int q = 0; q < TE_SMALL_M_K / 16; q++)
            te__wgmma_n(d, a + 2 * q, b + 2 * q, k > t->first || q, format, padded_m);
        te__wgmma_commit();
        te__wgmma_wait_1();
        if (k > t->first) te__small_m_release(s->bars, before);
        before = *stage;
        if (++*stage == stages) *stage = 0, *phase ^= 1;
    }
    te__wgmma_wait_0();
    te__small_m_release(s->bars, before);
}
/* Sets d to the sums over all parts of k, for `groups` groups of eight rows of y. part: the distance in memory, in
 * float4s, from one part to the next. */
TE_FN void te__small_m_add_parts(float *d, const float4 *from, int parts, int64_t part, const int groups) {
    TE_UNROLL for (int j = 0; j < 4 * groups; j++) d[j] = 0;
#pragma unroll 2
    for (int i = 0; i < parts; i++, from += part)
        TE_UNROLL for (int j = 0; j < groups; j++) {
            const float4 v = __ldcg(from + j * 32 * TE_SMALL_M_WARPS);
            d[4 * j] += v.x, d[4 * j + 1] += v.y, d[4 * j + 2] += v.z, d[4 * j + 3] += v.w;
        }
}
/* For a tile whose k is split: stores a warp's partial sums and counts them. If the sums of all other parts had been
 * stored before, sets d to the sums over all parts and returns 1; otherwise returns 0. */
TE_FN int te__small_m_reduce_split(const te_small_m *p, float *d, const te_small_m_tile *t, const int padded_m) {
    enum { THREADS = 32 * TE_SMALL_M_WARPS };
    const int rank = (int)blockIdx.x % TE_SMALL_M_CLUSTER, thread = (int)threadIdx.x;
    const int64_t part = (int64_t)TE_SMALL_M_CLUSTER * (padded_m / 8) * THREADS;
    float4 *const all =
        (float4 *)p->partial_sums + t->split_tile * p->splits * part + rank * (padded_m / 8) * THREADS + thread;
    uint32_t *arrived =
        p->arrived + (t->split_tile * TE_SMALL_M_CLUSTER + rank) * TE_SMALL_M_WARPS + thread / 32, before = 0;
    TE_UNROLL for (int j = 0; j < padded_m / 8; j++)
        __stcg(all + t->part * part + j * THREADS, make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]));
    /* One lane increments the counter, by an atomic with acquire and release order. Because of the two __syncwarp, the
     * atomic's release covers the stores of all lanes, and its acquire covers the loads of all lanes. */
    __syncwarp();
    if (thread % 32 == 0)
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrived) : "memory");
    if (__shfl_sync(~0u, before, 0) != (uint32_t)t->parts - 1) return 0;
    if (thread % 32 == 0) *arrived = 0; /* reset the counter, which must be 0 for the next kernel */
    __syncwarp();
    te__small_m_add_parts(d, all, t->parts, part, padded_m == 128 ? 8 : padded_m / 8);
    if (padded_m == 128) te__small_m_add_parts(d + 32, all + 8 * THREADS, t->parts, part, 8);
    return 1;
}

/* ---- the epilogue ------------------------------------------------------------------------------------------------ */

/* FP8 only. w: the inverse scales of W for this lane's two columns of y; x: the inverse scale of x if the scaling is
 * tensorwise, else 1. All are loaded before the mainloop. */
typedef struct te_small_m_scales { float w[2], x; } te_small_m_scales;
TE_FN te_small_m_scales te__small_m_load_scales(const te_small_m *p, int col, const te_gemm_operands operands) {
    const int lane = (int)threadIdx.x % 32;
    te_small_m_scales s = {{1.0f, 1.0f}, 1.0f};
    if (operands == TE_OPERANDS_16BIT) return s;
    TE_UNROLL for (int h = 0; h < 2; h++) {
        const int at = col + lane / 4 + 8 * h;
        if (p->w_inverse && at < p->n) s.w[h] = p->w_inverse[p->rowwise ? at : 0];
    }
    if (p->x_inverse && !p->rowwise) s.x = *p->x_inverse;
    return s;
}
TE_FN void te__small_m_scale(const te_small_m *p, float *d, te_small_m_scales s, const int padded_m) {
    const int lane = (int)threadIdx.x % 32;
    TE_UNROLL for (int j = 0; j < padded_m / 8; j++) {
        TE_UNROLL for (int e = 0; e < 2; e++) {
            const int row = 8 * j + 2 * (lane % 4) + e;
            const float of_x = p->rowwise && p->x_inverse && row < p->m ? p->x_inverse[row] : s.x;
            d[4 * j + e] *= of_x * s.w[0], d[4 * j + 2 + e] *= of_x * s.w[1];
        }
    }
}
/* Return the address of a vector of eight columns, number `vector` in row `row` of a warp's box, whose rows have 16
 * columns. The address is swizzled, so that the vectors with the same number in eight successive rows lie in different
 * banks. */
TE_FN uint32_t te__small_m_address(uint32_t box, int row, int vector) {
    return box + (uint32_t)(row * 32 + ((vector ^ (row / 4 & 1)) << 4));
}
/* Rounds a warp's 16 columns of y to 16 bits, and transposes them through the warp's box, so that a lane can read eight
 * elements of a row. */
TE_FN void te__small_m_to_shared(const te_small_m *p, const float *d, uint32_t box, const te_dtype dtype,
                                 const int padded_m) {
    const int lane = (int)threadIdx.x % 32;
    __syncwarp();
    TE_UNROLL for (int j = 0; j < padded_m / 8; j++)
        te__stmatrix_x2_trans(te__small_m_address(box, 8 * j + lane % 8, lane / 8 % 2),
                         te_pair_of_floats(p->alpha * d[4 * j], p->alpha * d[4 * j + 1], dtype),
                         te_pair_of_floats(p->alpha * d[4 * j + 2], p->alpha * d[4 * j + 3], dtype));
    __syncwarp();
}

/* ---- the consumers ----------------------------------------------------------------------------------------------- */

/* Computes a tile up to its epilogue, and leaves the warp's 16 columns in the warp's box. Returns whether this warp
 * runs the epilogue on these columns. If k is split, warps of several clusters compute partial sums for these columns,
 * and only the warp that stores its partial sums last runs the epilogue. */
TE_FN int te__small_m_compute(const te_small_m *p, const te_small_m_smem *s, const te_small_m_tile *t, int *stage,
                              int *phase, const te_gemm_operands operands, const te_dtype dtype, const int padded_m) {
    const te_small_m_scales scales = te__small_m_load_scales(p, t->col + (int)threadIdx.x / 32 * 16, operands);
    const te_dtype format = operands == TE_OPERANDS_16BIT ? dtype : TE_e4m3;
    float d[64];
    te__small_m_multiply(d, s, t, p->stages, stage, phase, format, padded_m);
    if (t->parts > 1 && !te__small_m_reduce_split(p, d, t, padded_m)) return 0;
    if (operands != TE_OPERANDS_16BIT) te__small_m_scale(p, d, scales, padded_m);
    te__small_m_to_shared(p, d, s->box, dtype, padded_m);
    return 1;
}
/* Computes a consumer warp's columns of all tiles of the block, and runs the epilogue on them. */
TE_FN void te__small_m_consume(const te_small_m *p, uint32_t ring, te_small_m_barriers *bars, te_epilogue_fn epilogue,
                               const void *arg, const te_gemm_operands operands, const te_dtype dtype) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const uint32_t boxes = ring + (uint32_t)(p->stages * te__small_m_stage_bytes(p->padded_m));
    const te_small_m_smem s = {ring, boxes + (uint32_t)(warp * te__small_m_box_bytes(p->padded_m)), bars};
    te_epilogue_state state = {{0, 0, 0, 0, 0, 0, 0, 0}, 0, {0, 0}, TE_OUTPUTS_ANY};
    int stage = 0, phase = 0, mine;
    te_small_m_tile t;
    for (int j = 0; te__small_m_tile_of(&t, p, j); j++) {
        const int col = t.col + warp * 16 + lane % 2 * 8;
        if (p->padded_m == 16) mine = te__small_m_compute(p, &s, &t, &stage, &phase, operands, dtype, 16);
        else if (p->padded_m == 32) mine = te__small_m_compute(p, &s, &t, &stage, &phase, operands, dtype, 32);
        else if (p->padded_m == 64) mine = te__small_m_compute(p, &s, &t, &stage, &phase, operands, dtype, 64);
        else mine = te__small_m_compute(p, &s, &t, &stage, &phase, operands, dtype, 128);
#pragma unroll 1
        for (int row = lane / 2; mine && col < p->n && row < p->m; row += 16) {
            uint32_t y[4];
            te__lds128(y, te__small_m_address(s.box, row, lane % 2));
            epilogue(arg, y, 0, row, col, &state);
        }
    }
    if (p->amax) {
        int group;
        te_amax_atomic_max(p->amax, state.amax_bits, te_lanes_here(32, &group));
    }
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

TE_FN void te_small_m_body(const te_small_m *p, te_small_m_barriers *bars, te_epilogue_fn epilogue, const void *arg,
                           const te_gemm_operands operands, const te_dtype dtype) {
    extern __shared__ char te_dynamic[];
    const uint32_t ring = (te__shared_address(te_dynamic) + 1023) & ~1023u;
    if (threadIdx.x == 0) {
        TE_UNROLL for (int s = 0; s < TE_SMALL_M_STAGES; s++)
            te__barrier_init(te__shared_address(&bars->full[s]), 1),
                te__barrier_init(te__shared_address(&bars->empty[s]), TE_SMALL_M_WARPS * TE_SMALL_M_CLUSTER);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x == 32) te__tma_prefetch_descriptor(&p->x);
    te__cluster_sync();
    if (threadIdx.x == 32 * TE_SMALL_M_WARPS) te__small_m_produce(p, ring, bars);
    te_kernel_begin();
    if (threadIdx.x < 32 * TE_SMALL_M_WARPS) te__small_m_consume(p, ring, bars, epilogue, arg, operands, dtype);
    __syncwarp();
    te__cluster_sync(); /* a block may not exit while the other block of its cluster can still write to its shared
                         * memory */
}
#else
TE_FN void te_small_m_body(const te_small_m *p, te_small_m_barriers *bars, te_epilogue_fn epilogue, const void *arg,
                           const te_gemm_operands operands, const te_dtype dtype) {
    (void)p, (void)bars, (void)epilogue, (void)arg, (void)operands, (void)dtype;
}
#endif

/* Defines a kernel. type: the struct of its arguments, which begins with a te_small_m; operands: TE_OPERANDS_16BIT or
 * TE_OPERANDS_FP8; dtype: the dtype of y, and of 16-bit operands; epilogue: a te_epilogue_fn, which gets the struct's
 * address as its `arg`; exists: 0 if the kernel is to be empty. */
#define TE_SMALL_M_KERNEL(name, type, operands, dtype, epilogue, exists)                                              \
    TE_UNUSED static __global__ void __launch_bounds__(TE_SMALL_M_THREADS, 1) name(const __grid_constant__ type p) {  \
        __shared__ te_small_m_barriers bars;                                                                          \
        if (exists) te_small_m_body((const te_small_m *)&p, &bars, epilogue, &p, operands, dtype);                    \
    }

/* ---- host -------------------------------------------------------------------------------------------------------- */

/* Returns whether this kernel supports the GEMM: 16 bits, or e4m3 with tensorwise or rowwise scales. */
TE_API int te__small_m_can(const te_gemm *g) {
    const int64_t limit = 1 << 30;
    const int aligned = te__gemm_is_fp8(g) ? te__gemm_a_dtype(g) == TE_e4m3 && te__gemm_b_dtype(g) == TE_e4m3 &&
                                                g->fast && g->a_fp8.scaling != TE_SCALING_BLOCKWISE_1D && g->k % 16 == 0
                                          : g->k % 8 == 0;
    return aligned && g->dtype != TE_f32 && g->out == g->dtype && !g->trans_a && g->trans_b && g->m > TE_SKINNY_ROWS &&
           g->m <= TE_SMALL_M_ROWS && g->n % 8 == 0 && g->n < limit && g->k > 0 && g->k < limit &&
           g->epilogue == TE_EPILOGUE_NONE;
}
TE_API int te__small_m_padded(int64_t m) { return m <= 16 ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : 128; }

/* Computes the number of full waves, and the number of clusters over which the k of each tile of the last wave is
 * split. Returns the number of clusters to launch. */
TE_API int te__small_m_plan_waves(te_small_m *p, int processors, te__gemm_state *s) {
    const int clusters = (int)te_max(1, processors / TE_SMALL_M_CLUSTER);
    const int steps = (p->k + TE_SMALL_M_K - 1) / TE_SMALL_M_K;
    const int tiles = (int)te_ceil_div(p->n, TE_SMALL_M_CLUSTER * TE_SMALL_M_COLUMNS);
    const int64_t part_bytes = (int64_t)TE_SMALL_M_CLUSTER * TE_SMALL_M_COLUMNS * p->padded_m * 4;
    const int counted_tiles =
        TE_GEMM_MAX_SPLIT_TILES * TE_GEMM_TILE_COUNTERS / (TE_SMALL_M_CLUSTER * TE_SMALL_M_WARPS);
    p->full_waves = tiles / clusters, p->split_tiles = tiles % clusters, p->splits = 1;
    if (p->split_tiles && p->split_tiles <= counted_tiles) {
        const int64_t max_splits = te_min(steps / TE_SMALL_M_MIN_SPLIT_STEPS, TE_SMALL_M_MAX_SPLITS);
        p->splits = (int)te_max(1, te_min(clusters / p->split_tiles, max_splits));
        if (p->split_tiles * p->splits * part_bytes > TE_GEMM_WORKSPACE) p->splits = 1;
    }
    p->partial_sums = (float *)s->workspace;
    p->arrived = (uint32_t *)(void *)((char *)s->workspace + TE_GEMM_WORKSPACE);
    return p->full_waves ? clusters : p->split_tiles * p->splits;
}
/* Fills in *p for this GEMM, and launches `kernel`. args: the struct that is the kernel's argument, of `bytes` bytes;
 * *p is its first member. */
TE_API te_status te__small_m_run(const void *kernel, const void *args, size_t bytes, te_small_m *p, const te_gemm *g,
                                 te_context *ctx) {
    const te__tensor_map_encode_fn encode = te__tensor_map_encoder(ctx);
    p->alpha = g->alpha, p->m = (int)g->m, p->n = (int)g->n, p->k = (int)te__skinny_k(g);
    p->padded_m = te__small_m_padded(g->m), p->stages = te__small_m_stages(p->padded_m);
    p->x_inverse = g->a_fp8.inverse, p->w_inverse = g->b_fp8.inverse;
    p->rowwise = g->a_fp8.scaling == TE_SCALING_ROWWISE;
    p->early_weights = te__launch_follows_kernel(ctx);
    const int clusters = te__small_m_plan_waves(p, ctx->processors, te__gemm_state_of(ctx));
    TE_TRY(te__tensor_map_matrix(&p->w, encode, g->b, g->n, p->k, TE_SMALL_M_COLUMNS, g->dtype, ctx));
    TE_TRY(te__tensor_map_matrix(&p->x, encode, g->a, g->m, p->k, p->padded_m / TE_SMALL_M_CLUSTER, g->dtype, ctx));
    const int shared = p->stages * te__small_m_stage_bytes(p->padded_m) +
                       TE_SMALL_M_WARPS * te__small_m_box_bytes(p->padded_m) + 1024;
    const te_launch launch = te__launch_of(kernel, "small-m matrix product",
                                           te__grid_of(clusters * TE_SMALL_M_CLUSTER, 1), TE_SMALL_M_THREADS, shared,
                                           TE_SMALL_M_CLUSTER);
    return te__cuda_launch(ctx, launch, args, bytes);
}

#endif
