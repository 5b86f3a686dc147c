/* gemm_narrow.h -- a matrix product of 9 to 128 rows on compute capability 9.0, y[m, n] = x[m, k] W[n, k]^T: what
 * decoding of a batch does. Its time is that of reading W once.
 *
 * The tensor cores (wgmma) take 64 rows of one operand and 8 to 256 columns of the other. Here W has the place of the
 * first and x that of the second, with 16, 32, 64 or 128 columns for its rows, so that few of them leave nothing empty.
 * A block has 128 rows of W, the columns of a tile of y; the two blocks of a cluster have 256, and each brings half of
 * x for both, because the L2 gives 5 to 6 TB/s, not much more than the 4.3 TB/s of memory. One thread brings W and x by
 * the copy engine (TMA) into a ring of 192 KB, two warpgroups multiply. In a pass the ring is filled with W while the
 * kernel ahead still runs, for a pass does not write its weights.
 *
 * A cluster takes tile after tile of all k. Where tiles are left for fewer clusters than there are, k of each of them
 * is shared out to several: they leave their sums in the workspace, and who comes last adds them up, in the order of k
 * whoever that is: the same inputs give the same bits, and nobody waits. This is by warps, each of which has 16 columns
 * of y: it takes them through the epilogue of the row (product.h) by itself, eight elements at a time.
 *
 * In FP8, e4m3, the kernel is the same, with half as many bytes; scales of rows or of a tensor come in at the end. Sums
 * stay in the tensor cores, which keep 14 bits of them.
 *
 * Bytes: W once, 2 n k (FP8: n k); x from the L2 as many times as there are pairs of tiles.
 */
/* target: cuda */
#ifndef TE_GEMM_NARROW_H
#define TE_GEMM_NARROW_H

#include "../core/amax.h"       /* te_amax_raise */
#include "../core/wgmma_cuda.h" /* te__wgmma_columns */
#include "gemm_types.h"         /* te_epilogue_fn, te_few_form */

enum {
    TE_NARROW_ROWS = 128,    /* of x, at most */
    TE_NARROW_COLUMNS = 128, /* of y, of a block's tile */
    TE_NARROW_CLUSTER = 2,
    TE_NARROW_K = 64, /* of a step: 128 bytes of a row */
    TE_NARROW_W = TE_NARROW_COLUMNS * TE_NARROW_K * 2,
    TE_NARROW_WARPS = 8,    /* that multiply; one more brings what they need */
    TE_NARROW_THREADS = 32 * (TE_NARROW_WARPS + 1),
    TE_NARROW_RING = 192 << 10,
    TE_NARROW_STAGES = 10,  /* at most */
    TE_NARROW_SHARED = TE_NARROW_RING + TE_NARROW_ROWS * TE_NARROW_COLUMNS * 2 + 1024
};

typedef struct te_narrow {
    CUtensorMap w, x;
    const float *x_inverse, *w_inverse; /* FP8: 1 / scale; null: 1 */
    float *amax; /* raised to the largest magnitude that the epilogue has stored in FP8; null: not wanted */
    float alpha;
    int m, n, k; /* k: of elements of 16 bits, of pairs of FP8 */
    int width;   /* 16, 32, 64 or 128: m, filled up with zeros */
    int stages;  /* of the ring */
    int by_row;  /* FP8: scales are of rows of x and of W, else of both as a whole */
    int ahead;   /* the kernel before this one does not write W */
    /* After `rounds` each cluster has had as many tiles; of the `left` tiles then `parts` clusters each take a part of
     * k. */
    int rounds, left, parts;
    float *given;    /* [tiles left * parts, TE_NARROW_CLUSTER, width / 8, 32 * TE_NARROW_WARPS, 4]: their sums */
    uint32_t *ready; /* [tiles left, TE_NARROW_CLUSTER, TE_NARROW_WARPS]: parts that have come; 0 before and after */
} te_narrow;

typedef struct te_narrow_barriers { uint64_t full[TE_NARROW_STAGES], empty[TE_NARROW_STAGES]; } te_narrow_barriers;

TE_BOTH int te__narrow_stage(int width) { return TE_NARROW_W + width * TE_NARROW_K * 2; }
TE_BOTH int te__narrow_stages(int width) {
    return (int)te_min(TE_NARROW_RING / te__narrow_stage(width), TE_NARROW_STAGES);
}
/* A warp's 16 columns of y on their way to the epilogue. */
TE_BOTH int te__narrow_box(int width) { return width * 16 * 2; }

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- what is to be done ------------------------------------------------------------------------------------------ */

/* A tile of this block: columns from col, the steps [first, last) of k; part: of p->parts, of the tile `left` of those
 * left; 0 of 1 of the others. */
typedef struct te_narrow_work { int col, first, last, part, parts, left; } te_narrow_work;

/* The j-th work of this cluster; 0: there is none. */
TE_FN int te__narrow_work(te_narrow_work *w, const te_narrow *p, int j) {
    const int cluster = (int)blockIdx.x / TE_NARROW_CLUSTER, clusters = (int)gridDim.x / TE_NARROW_CLUSTER;
    const int rank = (int)blockIdx.x % TE_NARROW_CLUSTER, steps = (p->k + TE_NARROW_K - 1) / TE_NARROW_K;
    int tile = cluster + j * clusters;
    w->first = 0, w->last = steps, w->part = 0, w->parts = 1, w->left = 0;
    if (j >= p->rounds) {
        w->left = cluster / p->parts, w->part = cluster % p->parts, w->parts = p->parts;
        if (j > p->rounds || w->left >= p->left) return 0;
        w->first = steps * w->part / p->parts, w->last = steps * (w->part + 1) / p->parts;
        tile = p->rounds * clusters + w->left;
    }
    w->col = (tile * TE_NARROW_CLUSTER + rank) * TE_NARROW_COLUMNS;
    return 1;
}
/* A step of the ring: of the j-th work that of k; more: there is one. */
typedef struct te_narrow_at {
    te_narrow_work w;
    int j, k, stage, phase, more;
} te_narrow_at;
TE_FN te_narrow_at te__narrow_first(const te_narrow *p) {
    te_narrow_at at;
    at.j = at.stage = at.phase = 0;
    at.more = te__narrow_work(&at.w, p, 0), at.k = at.w.first;
    return at;
}
TE_FN void te__narrow_next(te_narrow_at *at, const te_narrow *p, int stages) {
    if (++at->stage == stages) at->stage = 0, at->phase ^= 1;
    if (++at->k < at->w.last) return;
    at->more = te__narrow_work(&at->w, p, ++at->j), at->k = at->w.first;
}

/* ---- the ring fills ---------------------------------------------------------------------------------------------- */

TE_FN void te__narrow_bring_w(const te_narrow *p, uint32_t ring, te_narrow_barriers *bars, const te_narrow_at *at) {
    const uint32_t full = te__shared_address(&bars->full[at->stage]);
    te__barrier_wait(te__shared_address(&bars->empty[at->stage]), at->phase ^ 1);
    te__barrier_expect(full, te__narrow_stage(p->width));
    te__tma_load(ring + (uint32_t)(at->stage * te__narrow_stage(p->width)), &p->w, at->k * TE_NARROW_K, at->w.col, full,
                 0);
}
/* This block's half of the rows of x, for both. */
TE_FN void te__narrow_bring_x(const te_narrow *p, uint32_t ring, te_narrow_barriers *bars, const te_narrow_at *at) {
    const int half = p->width / TE_NARROW_CLUSTER, row = (int)blockIdx.x % TE_NARROW_CLUSTER * half;
    const uint32_t stage = ring + (uint32_t)(at->stage * te__narrow_stage(p->width));
    te__tma_load(stage + (uint32_t)(TE_NARROW_W + row * TE_NARROW_K * 2), &p->x, at->k * TE_NARROW_K, row,
                 te__shared_address(&bars->full[at->stage]), (1 << TE_NARROW_CLUSTER) - 1);
}
/* One thread. */
TE_FN void te__narrow_load(const te_narrow *p, uint32_t ring, te_narrow_barriers *bars) {
    const int stages = p->stages;
    te_narrow_at of_w = te__narrow_first(p), of_x = of_w;
    if (!p->ahead) {
        for (int i = 0; i < stages && of_w.more; i++, te__narrow_next(&of_w, p, stages))
            te__tma_prefetch(&p->w, of_w.k * TE_NARROW_K, of_w.w.col);
        te_kernel_wait();
        of_w = of_x;
    }
    for (int i = 0; i < stages && of_w.more; i++, te__narrow_next(&of_w, p, stages))
        te__narrow_bring_w(p, ring, bars, &of_w);
    te_kernel_wait();
    for (int i = 0; i < stages && of_x.more; i++, te__narrow_next(&of_x, p, stages))
        te__narrow_bring_x(p, ring, bars, &of_x);
    for (; of_w.more; te__narrow_next(&of_w, p, stages))
        te__narrow_bring_w(p, ring, bars, &of_w), te__narrow_bring_x(p, ring, bars, &of_w);
}

/* ---- the product ------------------------------------------------------------------------------------------------- */

/* The stage is no longer read: both blocks wait for that, for each brings x into both. */
TE_FN void te__narrow_free(const te_narrow_barriers *bars, int stage) {
    const int lane = (int)threadIdx.x % 32;
    if (lane < TE_NARROW_CLUSTER) te__barrier_arrive_at(te__shared_address(&bars->empty[stage]), lane);
}
/* A warpgroup's 64 columns of y: a lane's d[4 j + 2 h + e] is column lane / 4 + 8 h of its warp's 16, row 8 j + 2 (lane
 * % 4) + e. */
TE_FN void te__narrow_multiply(float *d, uint32_t ring, te_narrow_barriers *bars, const te_narrow_work *w, int stages,
                               int *stage, int *phase, const te_dtype operands, const int width) {
    const int group = __shfl_sync(~0u, (int)threadIdx.x / 128, 0); /* the compiler sees that all lanes have the same */
    int before = 0;
#pragma unroll 1
    for (int s = w->first; s < w->last; s++) {
        const uint32_t at = ring + (uint32_t)(*stage * te__narrow_stage(width));
        const uint64_t a = te__matrix_at(at + group * (TE_NARROW_W / 2), 0), b = te__matrix_at(at + TE_NARROW_W, 0);
        te__barrier_wait(te__shared_address(&bars->full[*stage]), *phase);
        te__wgmma_fence();
        TE_UNROLL for (int q = 0; q < TE_NARROW_K / 16; q++)
            te__wgmma_columns(d, a + 2 * q, b + 2 * q, s > w->first || q, operands, width);
        te__wgmma_commit();
        te__wgmma_wait_1();
        if (s > w->first) te__narrow_free(bars, before);
        before = *stage;
        if (++*stage == stages) *stage = 0, *phase ^= 1;
    }
    te__wgmma_wait_0();
    te__narrow_free(bars, before);
}
/* Sums of all parts, eight rows of a lane's 16 columns at a time. */
TE_FN void te__narrow_add(float *d, const float4 *from, int parts, int64_t part, const int groups) {
    TE_UNROLL for (int j = 0; j < 4 * groups; j++) d[j] = 0;
#pragma unroll 2
    for (int i = 0; i < parts; i++, from += part)
        TE_UNROLL for (int j = 0; j < groups; j++) {
            const float4 v = __ldcg(from + j * 32 * TE_NARROW_WARPS);
            d[4 * j] += v.x, d[4 * j + 1] += v.y, d[4 * j + 2] += v.z, d[4 * j + 3] += v.w;
        }
}
/* Leave a warp's sums of its part of k. Returns whether it was the last; then d are the sums of all parts. */
TE_FN int te__narrow_share(const te_narrow *p, float *d, const te_narrow_work *w, const int width) {
    enum { EACH = 32 * TE_NARROW_WARPS };
    const int rank = (int)blockIdx.x % TE_NARROW_CLUSTER, thread = (int)threadIdx.x;
    const int64_t part = (int64_t)TE_NARROW_CLUSTER * (width / 8) * EACH;
    float4 *const all = (float4 *)p->given + w->left * p->parts * part + rank * (width / 8) * EACH + thread;
    uint32_t *ready = p->ready + (w->left * TE_NARROW_CLUSTER + rank) * TE_NARROW_WARPS + thread / 32, come = 0;
    TE_UNROLL for (int j = 0; j < width / 8; j++)
        __stcg(all + w->part * part + j * EACH, make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]));
    __threadfence();
    __syncwarp();
    if (thread % 32 == 0)
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(come) : "l"(ready) : "memory");
    if (__shfl_sync(~0u, come, 0) != (uint32_t)w->parts - 1) return 0;
    if (thread % 32 == 0) *ready = 0; /* for the next product */
    __threadfence();
    te__narrow_add(d, all, w->parts, part, width == 128 ? 8 : width / 8);
    if (width == 128) te__narrow_add(d + 32, all + 8 * EACH, w->parts, part, 8);
    return 1;
}

/* ---- the epilogue ------------------------------------------------------------------------------------------------ */

/* FP8: times the scales of the row of x and of the row of W. */
TE_FN void te__narrow_scale(const te_narrow *p, float *d, int col, const int width) {
    const int lane = (int)threadIdx.x % 32;
    float of_w[2] = {1.0f, 1.0f};
    TE_UNROLL for (int h = 0; h < 2; h++) {
        const int at = col + lane / 4 + 8 * h;
        if (p->w_inverse && at < p->n) of_w[h] = __ldg(p->w_inverse + (p->by_row ? at : 0));
    }
    TE_UNROLL for (int j = 0; j < width / 8; j++) {
        TE_UNROLL for (int e = 0; e < 2; e++) {
            const int row = 8 * j + 2 * (lane % 4) + e;
            const float of_x = p->x_inverse && row < p->m ? p->x_inverse[p->by_row ? row : 0] : 1.0f;
            d[4 * j + e] *= of_x * of_w[0], d[4 * j + 2 + e] *= of_x * of_w[1];
        }
    }
}
/* Of a warp's rows of 16 columns the eight `piece`: those of eight rows lie on different banks. */
TE_FN uint32_t te__narrow_piece(uint32_t box, int row, int piece) {
    return box + (uint32_t)(row * 32 + ((piece ^ (row / 4 & 1)) << 4));
}
/* A warp's 16 columns to its box. */
TE_FN void te__narrow_leave(const te_narrow *p, const float *d, uint32_t box, const te_dtype dtype, const int width) {
    const int lane = (int)threadIdx.x % 32;
    __syncwarp();
    TE_UNROLL for (int j = 0; j < width / 8; j++)
        te__store_turned(te__narrow_piece(box, 8 * j + lane % 8, lane / 8 % 2),
                         te_pair_of_floats(p->alpha * d[4 * j], p->alpha * d[4 * j + 1], dtype),
                         te_pair_of_floats(p->alpha * d[4 * j + 2], p->alpha * d[4 * j + 3], dtype));
    __syncwarp();
}
/* All of a work but its epilogue. Returns whether that is this warp's to do. */
TE_FN int te__narrow_product(const te_narrow *p, uint32_t ring, uint32_t box, te_narrow_barriers *bars,
                             const te_narrow_work *w, int *stage, int *phase, const te_few_form form,
                             const te_dtype dtype, const int width) {
    float d[64];
    te__narrow_multiply(d, ring, bars, w, p->stages, stage, phase, form == TE_FEW_SIXTEEN ? dtype : TE_e4m3, width);
    if (w->parts > 1 && !te__narrow_share(p, d, w, width)) return 0;
    if (form != TE_FEW_SIXTEEN) te__narrow_scale(p, d, w->col + (int)threadIdx.x / 32 * 16, width);
    te__narrow_leave(p, d, box, dtype, width);
    return 1;
}
/* All works of a warp. */
TE_FN void te__narrow_works(const te_narrow *p, uint32_t ring, te_narrow_barriers *bars, te_epilogue_fn epilogue,
                            const void *arg, const te_few_form form, const te_dtype dtype) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const uint32_t box = ring + (uint32_t)(p->stages * te__narrow_stage(p->width) + warp * te__narrow_box(p->width));
    te_epilogue_lane own = {{0, 0, 0, 0, 0, 0, 0, 0}, 0, {0, 0}, TE_USUAL_not};
    int stage = 0, phase = 0, mine;
    te_narrow_work w;
    for (int j = 0; te__narrow_work(&w, p, j); j++) {
        const int col = w.col + warp * 16 + lane % 2 * 8;
        if (p->width == 16) mine = te__narrow_product(p, ring, box, bars, &w, &stage, &phase, form, dtype, 16);
        else if (p->width == 32) mine = te__narrow_product(p, ring, box, bars, &w, &stage, &phase, form, dtype, 32);
        else if (p->width == 64) mine = te__narrow_product(p, ring, box, bars, &w, &stage, &phase, form, dtype, 64);
        else mine = te__narrow_product(p, ring, box, bars, &w, &stage, &phase, form, dtype, 128);
#pragma unroll 1
        for (int row = lane / 2; mine && col < p->n && row < p->m; row += 16) {
            uint32_t y[4];
            te__load_piece(y, te__narrow_piece(box, row, lane % 2));
            epilogue(arg, y, 0, row, col, &own);
        }
    }
    if (p->amax) {
        int group;
        te_amax_raise(p->amax, own.most, te_lanes_here(32, &group));
    }
}

TE_FN void te_narrow_body(const te_narrow *p, te_narrow_barriers *bars, te_epilogue_fn epilogue, const void *arg,
                          const te_few_form form, const te_dtype dtype) {
    extern __shared__ char te_dynamic[];
    const uint32_t ring = (te__shared_address(te_dynamic) + 1023) & ~1023u;
    if (threadIdx.x == 0) {
        TE_UNROLL for (int s = 0; s < TE_NARROW_STAGES; s++)
            te__barrier_init(te__shared_address(&bars->full[s]), 1),
                te__barrier_init(te__shared_address(&bars->empty[s]), TE_NARROW_WARPS * TE_NARROW_CLUSTER);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    te__cluster_sync();
    if (threadIdx.x == 32 * TE_NARROW_WARPS) te__narrow_load(p, ring, bars);
    te_kernel_begin();
    if (threadIdx.x < 32 * TE_NARROW_WARPS) te__narrow_works(p, ring, bars, epilogue, arg, form, dtype);
    __syncwarp();
    te__cluster_sync(); /* nobody leaves while the other may still write into this block's shared memory */
}
#else
TE_FN void te_narrow_body(const te_narrow *p, te_narrow_barriers *bars, te_epilogue_fn epilogue, const void *arg,
                          const te_few_form form, const te_dtype dtype) {
    (void)p, (void)bars, (void)epilogue, (void)arg, (void)form, (void)dtype;
}
#endif

/* `type` begins with a te_narrow; form: SIXTEEN or SCALED; epilogue: a te_epilogue_fn that is called with the `type`.
 * exists: 0 leaves the kernel empty. */
#define TE_NARROW_KERNEL(name, type, form, dtype, epilogue, exists)                                                  \
    TE_UNUSED static __global__ void __launch_bounds__(TE_NARROW_THREADS, 1) name(const __grid_constant__ type p) {  \
        __shared__ te_narrow_barriers bars;                                                                          \
        if (exists) te_narrow_body((const te_narrow *)&p, &bars, epilogue, &p, form, dtype);                         \
    }

#endif
