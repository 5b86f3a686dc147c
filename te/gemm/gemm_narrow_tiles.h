/* gemm_narrow_tiles.h -- the tiles of gemm_narrow.h: their sizes, which one a cluster works on, how they are brought. */
/* target: cuda */
#ifndef TE_GEMM_NARROW_TILES_H
#define TE_GEMM_NARROW_TILES_H

#include "../core/target.h"     /* te_kernel_wait */
#include "../core/wgmma_cuda.h" /* te__tma_load, te__barrier_wait */

enum {
    TE_NARROW_ROWS = 128,    /* of x, at most */
    TE_NARROW_COLUMNS = 128, /* of y, of a block's tile */
    TE_NARROW_CLUSTER = 2,
    TE_NARROW_K = 64, /* of a step: 128 bytes of a row */
    TE_NARROW_W = TE_NARROW_COLUMNS * TE_NARROW_K * 2,
    TE_NARROW_WARPS = 8,    /* that multiply; one more brings what they need */
    TE_NARROW_THREADS = 32 * (TE_NARROW_WARPS + 1),
    TE_NARROW_RING = 192 << 10,
    TE_NARROW_STAGES = 9,   /* at most */
    TE_NARROW_SHARED = TE_NARROW_RING + TE_NARROW_ROWS * TE_NARROW_COLUMNS * 2 + 1024
};

typedef struct te_narrow {
    CUtensorMap w, x;
    const float *x_inverse, *w_inverse; /* FP8: 1 / scale; null: 1 */
    float *amax; /* raised to the largest magnitude that the epilogue has stored in FP8; null: not wanted */
    float alpha;
    int m, n, k; /* k: of elements of 16 bits, of pairs of FP8 */
    int width;   /* 32, 64 or 128: m, filled up with zeros */
    int stages;  /* of the ring */
    int hint;
    int by_row;  /* FP8: scales are of rows of x and of W, else of both as a whole */
    int ahead;   /* the kernel before this one does not write W */
    /* After `rounds` each cluster has had as many tiles; then `sharing` clusters have equal shares of k of all tiles
     * `left`, one tile after the other. */
    int rounds, left, sharing;
    float *given;    /* [sharing * 2, TE_NARROW_CLUSTER, width / 8, 32 * TE_NARROW_WARPS, 4]: their sums */
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

/* A tile of this block, or a part of it: columns from col, the steps [first, last) of k. It is part `part` of `parts`,
 * in the order of k; tile: its number among those left; cluster: that has part 0. */
typedef struct te_narrow_work { int col, first, last, part, parts, tile, cluster; } te_narrow_work;

/* The j-th work of this cluster; 0: there is none. */
TE_FN int te__narrow_work(te_narrow_work *w, const te_narrow *p, int j) {
    const uint32_t cluster = blockIdx.x / TE_NARROW_CLUSTER, clusters = gridDim.x / TE_NARROW_CLUSTER;
    const uint32_t rank = blockIdx.x % TE_NARROW_CLUSTER, steps = (uint32_t)(p->k + TE_NARROW_K - 1) / TE_NARROW_K;
    uint32_t tile = cluster + (uint32_t)j * clusters;
    w->first = 0, w->last = (int)steps, w->part = 0, w->parts = 1;
    if (j >= p->rounds) { /* these clusters have the steps of all tiles left in a row, each as many as the others */
        const uint32_t all = (uint32_t)p->left * steps, sharing = (uint32_t)p->sharing;
        if (cluster >= sharing) return 0;
        const uint32_t from = all * cluster / sharing, to = all * (cluster + 1) / sharing;
        const uint32_t left = from / steps + (uint32_t)(j - p->rounds), begin = left * steps;
        if (begin >= to) return 0;
        w->first = from > begin ? (int)(from - begin) : 0, w->last = (int)(to - begin < steps ? to - begin : steps);
        w->tile = (int)left, w->cluster = (int)(((begin + 1) * sharing - 1) / all); /* the one that has this step */
        w->part = (int)cluster - w->cluster, w->parts = (int)(((begin + steps) * sharing - 1) / all) + 1 - w->cluster;
        tile = (uint32_t)p->rounds * clusters + left;
    }
    w->col = (int)(tile * TE_NARROW_CLUSTER + rank) * TE_NARROW_COLUMNS;
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
TE_FN void te__narrow_next(te_narrow_at *at, const te_narrow *p) {
    if (++at->stage == p->stages) at->stage = 0, at->phase ^= 1;
    if (++at->k < at->w.last) return;
    at->more = te__narrow_work(&at->w, p, ++at->j), at->k = at->w.first;
}

/* ---- the ring fills ---------------------------------------------------------------------------------------------- */

TE_FN void te__narrow_bring_w(const te_narrow *p, uint32_t ring, te_narrow_barriers *bars, const te_narrow_at *at) {
    const uint32_t full = te__shared_address(&bars->full[at->stage]);
    te__barrier_wait(te__shared_address(&bars->empty[at->stage]), at->phase ^ 1);
    te__barrier_expect(full, te__narrow_stage(p->width));
    const uint32_t to = ring + (uint32_t)(at->stage * te__narrow_stage(p->width));
    if (p->hint) te__tma_stream(to, &p->w, at->k * TE_NARROW_K, at->w.col, full);
    else te__tma_load(to, &p->w, at->k * TE_NARROW_K, at->w.col, full, 0);
}
/* This block's half of the rows of x, for both. */
TE_FN void te__narrow_bring_x(const te_narrow *p, uint32_t ring, te_narrow_barriers *bars, const te_narrow_at *at) {
    const int half = p->width / TE_NARROW_CLUSTER, row = (int)blockIdx.x % TE_NARROW_CLUSTER * half;
    const uint32_t stage = ring + (uint32_t)(at->stage * te__narrow_stage(p->width));
    te__tma_load(stage + (uint32_t)(TE_NARROW_W + row * TE_NARROW_K * 2), &p->x, at->k * TE_NARROW_K, row,
                 te__shared_address(&bars->full[at->stage]), (1 << TE_NARROW_CLUSTER) - 1);
}
/* One thread. Before the kernel ahead is done W comes, for all of the ring; then x for that, then both together. */
TE_FN void te__narrow_load(const te_narrow *p, uint32_t ring, te_narrow_barriers *bars) {
    te_narrow_at of_w = te__narrow_first(p), of_x = of_w;
    int waited = 0, behind = 0; /* steps that have their W and not their x */
#pragma unroll 1
    for (;;) {
        if (waited && behind) {
            te__narrow_bring_x(p, ring, bars, &of_x);
            te__narrow_next(&of_x, p), behind--;
        } else if (of_w.more && (waited || behind < p->stages)) {
            if (waited || p->ahead) te__narrow_bring_w(p, ring, bars, &of_w);
            else te__tma_prefetch(&p->w, of_w.k * TE_NARROW_K, of_w.w.col);
            te__narrow_next(&of_w, p), behind++;
        } else if (!waited) {
            te_kernel_wait();
            waited = 1;
            if (!p->ahead) of_w = of_x, behind = 0;
        } else break;
    }
}
#endif

#endif
