/* gemm_hopper_tiles.h -- the tiles of gemm_hopper.h: their sizes, the kernel's arguments, which tile a cluster works on
 * and in which order, and the loader. */
/* target: cuda */
#ifndef TE_GEMM_HOPPER_TILES_H
#define TE_GEMM_HOPPER_TILES_H

#include "../core/hopper_cuda.h" /* te__wgmma, te__tma_load */
#include "gemm_ranks_cuda.h"     /* te__rank_wait */
#include "gemm_types.h"          /* te_epilogue_fn */

enum {
    TE_TILE_M = 128, TE_TILE_N = 256, TE_TILE_K = 64,
    TE_STAGES = 4,
    TE_CLUSTER = 2,     /* blocks that share their tiles of B */
    TE_HOPPER_BAND = 8, /* clusters above each other before the next column of tiles: what they read stays in the L2 */
    TE_HOPPER_A = TE_TILE_M * TE_TILE_K * 2, TE_HOPPER_STAGE = (TE_TILE_M + TE_TILE_N) * TE_TILE_K * 2,
    TE_HOPPER_BOX = 2048, /* bytes of a warp's 16 rows of 64 columns */
    TE_HOPPER_BOXES = 8 * 2 * TE_HOPPER_BOX, /* bytes of 128 rows of 128 columns */
    TE_HOPPER_SHARED = TE_STAGES * TE_HOPPER_STAGE + TE_HOPPER_BOXES + 1024,
    TE_HOPPER_THREADS = 384,
    TE_HOPPER_FEW = 3, TE_HOPPER_ALL = 11 /* warps of the epilogue: of a tile, and of the last one */
};

/* Of a product that overlaps a collective (gemm_ranks.h); all 0: of no other. */
typedef struct te_hopper_ranks {
    int rank, each;          /* rows of A and D of each rank, whole tiles of a cluster */
    int first, band;         /* the row of tiles that is taken first; rows of a band, 0: TE_HOPPER_BAND */
    int turns;               /* the rows of so many ranks are taken in turns; 0: those of one, then of the next */
    int owns;                /* this rank's rows of A lie in te_hopper.own */
    int piece;               /* rows of A that have a word */
    const uint32_t *arrived; /* [ranks, TE_RANK_PIECES]: 1 when they are there; null: all are */
    te_rank_waits waits;
} te_hopper_ranks;

typedef struct te_hopper {
    CUtensorMap a, b, c, own; /* c: of `ahead`, if there is one */
    te_hopper_ranks ranks;
    float *sums; /* [3 * rows of tiles, n], sums over the rows of what the epilogue says; null: none */
    float *amax; /* raised to the largest magnitude that the epilogue has stored in FP8; null: not wanted */
    float *inverse; /* [2] gets 1 / scale and the scale of what is stored in FP8 (te_scale_keep); null: not wanted */
    const float *scale;
    uint8_t *turned; /* [n, turned_rows], the transpose of what the epilogue makes in FP8; null: not wanted */
    int turned_rows; /* m up to a multiple of 16: zeros */
    const void *ahead; /* [m, n], 16 bits: what the epilogue will read is loaded ahead of it; null: nothing */
    int ahead_twice;   /* it is [m, 2 n], of a kernel whose kind says so, too */
    const float *inverse_a, *inverse_b; /* FP8: what alpha is multiplied by; null: 1 */
    float alpha;
    int m, n, k, tiles; /* k: in 16 bits, two numbers of FP8; tiles: of clusters */
    /* After `rounds` each cluster has had as many tiles; then the first `helpers` clusters take `each` parts of `parts`
     * of k of each of the `left` tiles. No helpers: rounds without end. */
    int rounds, left, helpers, each, parts;
    float *given;   /* [tiles left * each, TE_CLUSTER, TE_TILE_M * TE_TILE_N]: their sums */
    uint32_t *ready; /* [tiles left, TE_CLUSTER, 8]: parts that have come, by warp; 0 before and after */
} te_hopper;

/* Some epilogues need sixteen elements of a row at once: a couple of vectors of eight (te_couple_fn). Rotary positions
 * need dimension i of a head with i + rotary_dim / 2, a gated activation column i of both halves of D.
 *
 *   group, apart  128 columns are sixteen vectors, in groups of `group`, a divisor of 16. In a group vector i of the
 *                 first `apart` has i + apart for its mate. The rest of the group, 2 (group / 2 - apart) vectors, where
 *                 a head's dimensions do not turn, are coupled in the same way, half of them with the other half.
 *   crossed       the second and the third 64 columns of a tile change places, so that columns 128 apart are coupled.
 *   halves        a tile is 128 columns of the first half of D and the same columns of the second half. */
typedef struct te_hopper_couples { int group, apart, crossed, halves; } te_hopper_couples; /* group 0: no couples */

/* All constants. trans_b: B is stored [n, k]. */
typedef struct te_hopper_kind {
    te_dtype dtype, a, b; /* of D; of A and B: dtype, or both FP8 */
    int trans_b;
    int turns; /* `turned` may be wanted */
    int half;  /* registers: more for the epilogue, less for the tile before (gemm_hopper_multiply.h) */
    int reads; /* a usual epilogue reads `ahead` */
    int twice; /* `ahead` is [m, 2 n], and the epilogue wants the same columns of both halves */
    te_hopper_couples couples; /* where B is stored [n, k] */
    int scatters; /* rows of D go to other ranks (gemm_hopper_ranks.h) */
    int sums;     /* `sums` may be wanted */
} te_hopper_kind;

typedef struct te_hopper_barriers {
    uint64_t full[TE_STAGES], empty[TE_STAGES]; /* the ring */
    uint64_t done[2], taken[2];                 /* 64 columns of a tile that wait for their epilogue */
    float alpha;                                /* FP8: with both scales; there before the third stage is full */
} te_hopper_barriers;

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* What a cluster works on: the tile whose rows begin at y and columns at x (of this block), steps [first, last) of k.
 * part: -1: all of k; 0: the first part of k of its own tile, to which it adds those of others; else that part of k for
 * tile `left` of the last round, which another cluster owns. */
typedef struct te_hopper_work { int x, y, first, last, part, left; } te_hopper_work;

/* The row of tiles that is taken as the i-th of all. */
TE_FN int te__hopper_row_of(const te_hopper *p, int i, int rows) {
    const te_hopper_ranks *r = &p->ranks;
    if (r->turns) return (i + r->rank + 1) % r->turns * (rows / r->turns) + i / r->turns;
    return i + r->first < rows ? i + r->first : i + r->first - rows;
}
/* Where tile `i` lies: rows from y, columns from x. Tiles go down a band of rows, then to the next column. */
TE_FN void te__hopper_tile(te_hopper_work *w, const te_hopper *p, int i) {
    const int rows = (p->m + TE_CLUSTER * TE_TILE_M - 1) / (TE_CLUSTER * TE_TILE_M),
              columns = (p->n + TE_TILE_N - 1) / TE_TILE_N;
    const int most = TE_OVERLAPS && p->ranks.band ? p->ranks.band : TE_HOPPER_BAND;
    const int band = i / (most * columns), first = band * most, high = rows - first < most ? rows - first : most;
    const int at = i - first * columns;
    int row = first + at % high;
    if (TE_OVERLAPS) row = te__hopper_row_of(p, row, rows);
    w->y = (row * TE_CLUSTER + (int)blockIdx.x % TE_CLUSTER) * TE_TILE_M, w->x = at / high * TE_TILE_N;
}
/* The j-th work of this cluster; 0: there is none. Who has a tile waits for clusters of lower numbers alone. */
TE_FN int te__hopper_work(te_hopper_work *w, const te_hopper *p, int j) {
    const int cluster = (int)blockIdx.x / TE_CLUSTER, clusters = (int)gridDim.x / TE_CLUSTER,
              steps = (p->k + TE_TILE_K - 1) / TE_TILE_K;
    int tile = cluster + j * clusters;
    w->first = 0, w->last = steps, w->part = -1, w->left = 0;
    if (j >= p->rounds) {
        const int helps = cluster < p->helpers, own = p->parts - p->each;
        w->left = helps ? cluster / p->each + (j - p->rounds) * p->helpers : cluster - p->helpers;
        if (w->left >= p->left || (!helps && j > p->rounds)) return 0;
        w->part = helps ? 1 + cluster % p->each : 0;
        if (helps) w->first = steps * (own + w->part - 1) / p->parts;
        w->last = steps * (own + w->part) / p->parts;
        tile = p->rounds * clusters + w->left;
    }
    if (tile >= p->tiles) return 0;
    te__hopper_tile(w, p, tile);
    return 1;
}

/* The number of this cluster's last work, if that completes a tile: all warps run its epilogue. -1: the last work is
 * partial sums for another cluster. */
TE_FN int te__hopper_final(const te_hopper *p) {
    const int cluster = (int)blockIdx.x / TE_CLUSTER, clusters = (int)gridDim.x / TE_CLUSTER;
    if (!p->helpers) return (p->tiles - cluster + clusters - 1) / clusters - 1;
    if (cluster < p->helpers) return cluster / p->each < p->left ? -1 : p->rounds - 1;
    return cluster - p->helpers < p->left ? p->rounds : p->rounds - 1;
}
/* Where 64 columns of a tile lie: of any but the last, and of the last, in the ring's place. */
TE_FN uint32_t te__hopper_boxes(uint32_t ring, int box) {
    return ring + (uint32_t)(TE_STAGES * TE_HOPPER_STAGE + box * TE_HOPPER_BOX);
}
TE_FN uint32_t te__hopper_last(uint32_t ring, int quarter) {
    return ring + (uint32_t)(quarter / 2 * TE_HOPPER_BOXES + quarter % 2 * TE_HOPPER_BOX);
}
/* Behind it the sums of its columns, by warp. */
TE_FN uint32_t te__hopper_last_sum(uint32_t ring, int quarter, int warp, int col) {
    return ring + (uint32_t)(2 * TE_HOPPER_BOXES + ((quarter * TE_HOPPER_ALL + warp) * 64 + col) * 4);
}

/* Which 64 columns of a tile the epilogue gets as its quarter `i`. */
TE_FN int te__hopper_quarter(int i, const te_hopper_kind k) {
    return k.couples.crossed && (i == 1 || i == 2) ? 3 - i : i;
}

/* Where piece `i` of a tile at x begins: 64 columns of D, which are 64 rows of B where that is stored [n, k]. */
TE_FN int te__hopper_columns(const te_hopper *p, int x, int i, const te_hopper_kind k) {
    if (k.couples.halves) return x / 2 + 64 * (i / 2) + i % 2 * (p->n / 2);
    return x + 64 * te__hopper_quarter(i, k);
}

typedef struct te_hopper_ring { int stage, phase; } te_hopper_ring;
TE_FN void te__hopper_advance(te_hopper_ring *r) {
    if (++r->stage == TE_STAGES) r->stage = 0, r->phase ^= 1;
}

TE_FN void te__hopper_fetch_quarter(const te_hopper *p, const te_hopper_work *w, int quarter, const te_hopper_kind k) {
    const int x = w->x + 64 * quarter;
    te__tma_prefetch(&p->c, x, w->y);
    if (k.twice) te__tma_prefetch(&p->c, x + p->n, w->y);
}
/* Prefetch what the epilogue will read to the L2, a quarter of a tile ahead: where all of a tile was prefetched at
 * once, operands evicted it again. While `w` is multiplied the epilogue works on the tile before. So as each quarter
 * of the steps begins, the next 64 columns of that tile are prefetched, with the last quarter the first 64 of w. */
TE_FN void te__hopper_fetch(const te_hopper *p, const te_hopper_work *before, const te_hopper_work *w, int step,
                            const te_hopper_kind k) {
    if (!p->ahead) return;
    TE_UNROLL for (int q = 0; q < 4; q++) {
        const te_hopper_work *of = q < 3 ? before : w;
        const int due = step == w->first + (w->last - w->first) * q / 4 && of->part <= 0;
        if (due) te__hopper_fetch_quarter(p, of, (q + 1) % 4, k);
    }
}
/* The tensor map of the rows of A from *y on; *y becomes their first row in it. Rows of other ranks are waited for.
 * *seen: the piece of which rank has been seen last, so that its word is read once: reading one takes longer than the
 * ring has stages for. */
TE_FN const CUtensorMap *te__hopper_rows(const te_hopper *p, int *y, int *seen) {
    const te_hopper_ranks *r = &p->ranks;
    if (!TE_OVERLAPS || !r->arrived || *y >= p->m) return &p->a;
    const int of = *y / r->each, at = *y - of * r->each;
    if (of == r->rank) return r->owns ? (*y = at, &p->own) : &p->a;
    const int piece = of * TE_RANK_PIECES + at / r->piece;
    if (piece <= *seen && piece / TE_RANK_PIECES == *seen / TE_RANK_PIECES) return &p->a; /* they come in this order */
    *seen = piece;
    te__rank_wait(r->arrived + piece, 1, of, &r->waits);
    asm volatile("fence.proxy.async.global;" ::: "memory"); /* seen by this thread, read by the copy engine */
    return &p->a;
}
/* The loader: one thread copies the stages of all tiles, in the order in which they are used. Behind the last it
 * prefetches the rest of what that tile's epilogue reads. */
TE_FN void te__hopper_load(const te_hopper *p, uint32_t ring, te_hopper_barriers *bars, const te_hopper_kind kind) {
    const int rank = (int)blockIdx.x % TE_CLUSTER, fp8 = te_is_fp8(kind.a);
    const uint32_t full = te__shared_address(bars->full), empty = te__shared_address(bars->empty);
    const float inverse_a = fp8 && p->inverse_a ? *p->inverse_a : 1.0f;
    const float inverse_b = fp8 && p->inverse_b ? *p->inverse_b : 1.0f;
    te_hopper_ring r = {0, 0};
    te_hopper_work w, before;
    int seen = -1;
    before.part = 1;
    for (int j = 0; te__hopper_work(&w, p, j); before = w, j++) {
        const int x = w.x;
        int y = w.y;
        const CUtensorMap *const rows = te__hopper_rows(p, &y, &seen);
        for (int k = w.first * TE_TILE_K; k < w.last * TE_TILE_K; k += TE_TILE_K, te__hopper_advance(&r)) {
            const uint32_t bar = full + 8 * r.stage, a = ring + r.stage * TE_HOPPER_STAGE, b = a + TE_HOPPER_A;
            const int mask = (1 << TE_CLUSTER) - 1;
            te__barrier_wait(empty + 8 * r.stage, r.phase ^ 1);
            if (!kind.scatters) te__hopper_fetch(p, &before, &w, k / TE_TILE_K, kind);
            if (fp8 && j == 0 && r.stage == 2) bars->alpha = p->alpha * inverse_a * inverse_b; /* two are coming */
            te__barrier_expect(bar, TE_HOPPER_STAGE);
            te__tma_load(a, rows, k, y, bar, 0);
            /* of B this block brings its share, for the whole cluster */
            TE_UNROLL for (int q = 0; q < 4 / TE_CLUSTER; q++) {
                const int piece = rank * (4 / TE_CLUSTER) + q;
                const int from = te__hopper_columns(p, x, piece, kind);
                if (kind.trans_b) te__tma_load(b + piece * 8192, &p->b, k, from, bar, mask);
                else te__tma_load(b + piece * 8192, &p->b, x + 64 * piece, k, bar, mask);
            }
        }
    }
    if (kind.scatters || !p->ahead || before.part > 0) return;
    TE_UNROLL for (int quarter = 1; quarter < 4; quarter++) te__hopper_fetch_quarter(p, &before, quarter, kind);
}
#endif

#endif
