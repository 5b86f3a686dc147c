/* gemm_narrow_tiles.h -- the tiles of gemm_narrow.h: their sizes, which one a cluster works on, how they are
 * brought. */
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
#endif

#endif
