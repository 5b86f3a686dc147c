/* gemm_sm90_scheduler.h -- the persistent GEMM of gemm_sm90.h: tile shape, shared memory, kernel parameters, and the
 * tile scheduler, which determines the next tile of a cluster and its steps of k.
 *
 * The scheduler is static: every warp role of every block computes the same sequence from the sizes alone, so the roles
 * need not communicate, and results are bitwise reproducible. A cluster tile is the 256 x 256 elements of D that the
 * two blocks of a cluster compute together. Every TE_SM90_GEMM_GROUP_M rows of cluster tiles form a group. The tiles of
 * a group are computed column by column, each column from top to bottom, so that the operands in use stay in the L2.
 * The tiles of a last, partial wave are split along k (Stream-K), see te__sm90_gemm_params.
 */
/* target: cuda */
#ifndef TE_GEMM_SM90_SCHEDULER_H
#define TE_GEMM_SM90_SCHEDULER_H

#include "../../core/impl/ptx_cuda.h" /* te__wgmma_n256, te__tma_load */
#include "../gemm_types.h"          /* te_epilogue_fn */
#include "gemm_comm_overlap.h"      /* te__peer_timeout, TE_HAS_COMM_OVERLAP */

enum {
    /* rows and columns of the tile of D that a block computes, and the number of 16-bit units of k in a step (64 units
     * are 128 FP8 elements) */
    TE_TILE_M = 128, TE_TILE_N = 256, TE_TILE_K = 64,
    TE_STAGES = 4,                                    /* number of stages of the pipeline between producer and
                                                       * consumers */
    /* number of blocks in a cluster; the tiles of its two blocks lie one below the other, and need the same part of
     * B */
    TE_CLUSTER = 2,
    /* The tiles of D are computed in groups of this many rows of cluster tiles (of 256 x 256), and within a group
     * column by column, so that the operands in use stay in the L2. */
    TE_SM90_GEMM_GROUP_M = 8,
    TE_SM90_GEMM_A_BYTES = TE_TILE_M * TE_TILE_K * 2,
    TE_SM90_GEMM_STAGE_BYTES = (TE_TILE_M + TE_TILE_N) * TE_TILE_K * 2,
    /* bytes of a subtile, which holds 64 columns of D in 16 bits, for the 16 rows of one consumer warp */
    TE_SM90_GEMM_SUBTILE_BYTES = 2048,
    /* bytes of the two staging buffers together; each buffer holds a quarter of a tile, 128 x 64 elements of D */
    TE_SM90_GEMM_STAGING_BYTES = 8 * 2 * TE_SM90_GEMM_SUBTILE_BYTES,
    TE_SM90_GEMM_SMEM_BYTES = TE_STAGES * TE_SM90_GEMM_STAGE_BYTES + TE_SM90_GEMM_STAGING_BYTES + 1024,
    TE_SM90_GEMM_THREADS = 384,
    TE_SM90_GEMM_EPILOGUE_WARPS = 3,   /* number of warps that run the epilogue of a tile, unless the tile is the
                                        * block's last */
    /* number of warps that run the epilogue of a block's last tile: the three epilogue warps and the eight consumer
     * warps */
    TE_SM90_GEMM_LAST_TILE_WARPS = 11
};

/* ---- kernel parameters ------------------------------------------------------------------------------------------- */

/* Parameters of a GEMM that overlaps with a collective (gemm_comm_overlap.h). All are 0 if there is no overlap. */
typedef struct te__sm90_gemm_overlap {
    /* rank: the index of this rank; rank_rows: number of rows of A and D that each rank owns, a multiple of 256, the
     * rows of a cluster tile */
    int rank, rank_rows;
    /* first_tile_row: which row of cluster tiles (256 rows of D) is computed first; group_m: how many of these rows of
     * tiles form a group of the scheduler, or 0 for TE_SM90_GEMM_GROUP_M */
    int first_tile_row, group_m;
    /* 0 if all rows of one rank are computed before the rows of the next rank; else the number of ranks, and the order
     * alternates between the ranks after each row of cluster tiles */
    int interleave;
    /* 1 if this rank's rows of A lie in separate memory, and are loaded through te__sm90_gemm_params.own_map */
    int own_is_separate;
    int chunk_rows;              /* number of rows of A that arrive together from another rank, and share one flag */
    /* [ranks, TE_GATHER_MAX_CHUNKS]: flags that become 1 once a chunk of rows has arrived; null if the kernel need not
     * wait */
    const uint32_t *chunk_flags;
    te__peer_timeout timeout;
} te__sm90_gemm_overlap;

/* Parameters of a kernel that computes D = alpha A op(B). The kernel's argument is a larger struct that begins with
 * this struct. */
typedef struct te__sm90_gemm_params {
    /* tensor maps of A, of B, of `source`, and (own_map) of this rank's rows of A */
    CUtensorMap a_map, b_map, source_map, own_map;
    te__sm90_gemm_overlap overlap;
    /* [3 * rows of tiles, n]: partial sums of the columns of D, which a later kernel adds up. Each row has the sums of
     * one of the three epilogue warps over the rows that it processes in one row of tiles. Null if no column sums are
     * wanted */
    float *column_sums;
    float *amax;        /* the kernel sets *amax to the larger of its old value and the largest magnitude that the
                         * epilogue stores in FP8; null if no amax is wanted */
    float *inverse;     /* [2]: receives 1 / scale and the scale of the FP8 output (te_scale_save); null if these are
                         * not wanted */
    const float *scale;
    uint8_t *transposed; /* [n, transposed_rows]: receives the transpose of the epilogue's FP8 output; null if no
                          * transpose is wanted */
    /* length of a row of `transposed`: m rounded up to a multiple of 16; the elements from index m on are 0 */
    int transposed_rows;
    /* [m, n], 16 bits: the tensor that the epilogue reads, and that is prefetched; null if the epilogue reads none */
    const void *source;
    /* 1 if `source` is [m, 2 * n], and the epilogue reads, for column i of D, column i of each half of `source` */
    int source_has_halves;
    /* for FP8: the inverse scales of A and B, by which alpha is multiplied. Either pointer is null if that operand's
     * scale is 1 */
    const float *inverse_a, *inverse_b;
    float alpha;
    int m, n, k, tiles; /* k: counted in 16-bit units (two elements of FP8 are one unit); tiles: number of cluster
                         * tiles, each 256 x 256 */
    /* Stream-K. After `full_waves` waves, in each of which every cluster computes one tile, `tail_tiles` tiles remain.
     * The k of each of these tiles is cut into `splits` splits. For each of these tiles, helpers (the first `helpers`
     * clusters) compute `helper_splits` splits, one cluster per split. The cluster that owns the tile, which is not a
     * helper, computes the tile's other splits, adds the helpers' sums and runs the epilogue. If `helpers` is 0, tiles
     * are not split, and full_waves is unlimited. */
    int full_waves, tail_tiles, helpers, helper_splits, splits;
    float *partials; /* [tail tiles * helper_splits, TE_CLUSTER, TE_TILE_M * TE_TILE_N]: the partial sums that helpers
                      * store */
    /* [tail tiles, TE_CLUSTER, 8 consumer warps]: for the elements of the tile that each consumer warp holds, how many
     * helpers have stored their partial sums; 0 before and after the kernel */
    uint32_t *partials_ready;
} te__sm90_gemm_params;

/* Which vectors of eight columns are paired for an epilogue that needs two of them at once (te_epilogue_pair_fn).
 * Rotary positions pair dimension i of a head with dimension i + rotary_dim / 2; a gated activation pairs column i of
 * the first half of D with column i of the second half.
 *
 *   group, distance  the sixteen vectors of 128 columns form groups of `group` vectors (a divisor of 16; 0 if there
 *                    are no pairs). In a group, vector i of the first `distance` pairs with vector i + distance. The
 *                    group's other vectors, which are dimensions of a head that are not rotated, are paired in the same
 *                    way: the first half of them with the second half.
 *   swap_middle      the second and third 64 columns of a tile are swapped, so that columns with a distance of 128 form
 *                    pairs.
 *   halves           a tile is 128 columns of the first half of D and the same 128 columns of the second half. */
typedef struct te__sm90_gemm_pairing { int group, distance, swap_middle, halves; } te__sm90_gemm_pairing;

/* The compile-time constants of a kernel. */
typedef struct te__sm90_gemm_config {
    /* the number formats of D (dtype, 16 bits), A and B: dtype_a and dtype_b are both `dtype`, or both FP8 */
    te_dtype dtype, dtype_a, dtype_b;
    int trans_b;           /* 1 if B is stored [n, k], 0 if [k, n] */
    int transposes;        /* 1 if the kernel can store the transpose of its FP8 output in params.transposed */
    /* 1 if the consumers hold only half of a finished tile in registers, which leaves more registers to the epilogue */
    int holds_half;
    /* 1 if the epilogue reads params.source in every tile; 0 if it reads params.source only in tiles whose epilogue has
     * branches (te__sm90_epilogue_tile.is_branch_free) */
    int reads_source;
    int source_has_halves; /* 1 if params.source is [m, 2 * n], and the epilogue needs the same columns of both halves
                            * of its rows */
    /* which two vectors of a row of D are passed together to a te_epilogue_pair_fn; pairing.group is 0 if the epilogue
     * needs no pairs. If the epilogue needs pairs, B must be stored [n, k]. */
    te__sm90_gemm_pairing pairing;
    int reduce_scatter;    /* 1 if each row of D is sent to the rank that owns the row (gemm_sm90_epilogue_scatter.h) */
    int column_sums;       /* 1 if the kernel can store column sums in params.column_sums */
} te__sm90_gemm_config;

typedef struct te__sm90_gemm_barriers {
    /* the barriers of each stage; full: the producer has filled the stage with A and B; empty: the consumers of both
     * blocks of the cluster have read the stage */
    uint64_t full[TE_STAGES], empty[TE_STAGES];
    /* barriers of each staging buffer. staged_full: the consumers have stored a quarter of a finished tile in the
     * buffer; staged_empty: the epilogue has read that quarter */
    uint64_t staged_full[2], staged_empty[2];
    /* for FP8: alpha times both inverse scales. The producer stores this product here before it signals the third
     * stage, so a consumer may read it once it has waited for that stage. */
    float alpha;
} te__sm90_gemm_barriers;

/* ---- the tiles of grouped GEMMs -------------------------------------------------------------------------------- */

/* A tile of D: rows `first` to end - 1, which belong to group e, and the columns from `col` on. If first >= end, the
 * block has no tile. For wgrad, rows `first` to end - 1 are the rows of dy and x that the GEMM sums over. */
typedef struct te_grouped_tile { int e, first, end, col; } te_grouped_tile;

/* Returns all rows of group e. */
TE_FN te_grouped_tile te__grouped_group(const te_grouped *g, int e) {
    te_grouped_tile t;
    t.e = e, t.first = g->offset[e], t.end = te__grouped_end(g, e), t.col = 0;
    return t;
}
/* Returns the rows of tile number `tile`. All groups are cut into tiles of `size` rows, and the tiles of group e are
 * numbered from first(e) = (offset[e] - offset[0]) / size + e on. At most one number per group is left without a tile;
 * for such a number the returned tile has no rows. The tile belongs to the last group e with first(e) <= tile. To count
 * the groups with first(e) <= tile, each lane of a warp tests the groups lane, lane + 32, .. */
TE_FN te_grouped_tile te__grouped_find(const te_grouped *g, int tile, int size) {
    te_grouped_tile t;
    const int base = g->offset[0];
    int before = 0;
    for (int e = (int)threadIdx.x % 32; e < g->groups; e += 32) before += (g->offset[e] - base) / size + e <= tile;
    t.e = (int)__reduce_add_sync(~0u, (unsigned)before) - 1, t.col = 0;
    t.first = g->offset[t.e], t.end = te__grouped_end(g, t.e);
    t.first += (tile - ((t.first - base) / size + t.e)) * size;
    t.end = (int)te_min(t.end, t.first + size);
    return t;
}

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- the tile scheduler ------------------------------------------------------------------------------------------ */

/* A piece of a cluster's work: steps [first_step, end_step) of k of one tile. x is the tile's first column, y the first
 * of this block's rows. If split is -1, the tile is not split, and the steps are all of k. If split is 0, this cluster
 * owns tile number `tail_tile` of the last, partial wave, and adds the helpers' sums to its own sums. If split > 0,
 * another cluster owns the tile, and this cluster computes split number `split` of k as a helper. */
typedef struct te__sm90_gemm_work { int x, y, first_step, end_step, split, tail_tile; } te__sm90_gemm_work;

/* Returns which row of cluster tiles is the i-th to be computed in a GEMM that overlaps with a collective. Without
 * `interleave` the order begins with first_tile_row, and goes on with row 0 after the last row. With `interleave` the
 * order takes one row of each rank by turns, beginning with the rank after this rank. */
TE_FN int te__sm90_gemm_tile_row(const te__sm90_gemm_params *p, int i, int rows) {
    const te__sm90_gemm_overlap *o = &p->overlap;
    if (o->interleave) return (i + o->rank + 1) % o->interleave * (rows / o->interleave) + i / o->interleave;
    return i + o->first_tile_row < rows ? i + o->first_tile_row : i + o->first_tile_row - rows;
}
/* Sets w->x and w->y, the first column of cluster tile `i` and the first row of this block's half of it. */
TE_FN void te__sm90_gemm_locate_tile(te__sm90_gemm_work *w, const te__sm90_gemm_params *p, int i) {
    const int rows = (p->m + TE_CLUSTER * TE_TILE_M - 1) / (TE_CLUSTER * TE_TILE_M),
              columns = (p->n + TE_TILE_N - 1) / TE_TILE_N;
    const int group_m = TE_HAS_COMM_OVERLAP && p->overlap.group_m ? p->overlap.group_m : TE_SM90_GEMM_GROUP_M;
    const int group = i / (group_m * columns), first = group * group_m;
    const int high = rows - first < group_m ? rows - first : group_m; /* the last group may have fewer rows */
    const int at = i - first * columns;
    int row = first + at % high;
    if (TE_HAS_COMM_OVERLAP) row = te__sm90_gemm_tile_row(p, row, rows);
    w->y = (row * TE_CLUSTER + (int)blockIdx.x % TE_CLUSTER) * TE_TILE_M, w->x = at / high * TE_TILE_N;
}
/* Sets *w to this cluster's j-th piece of work; returns 0 if there is none. Clusters that help have lower numbers than
 * clusters that own a split tile. The GPU starts clusters in the order of their numbers, so an owner never waits for a
 * helper that has not started. */
TE_FN int te__sm90_gemm_get_work(te__sm90_gemm_work *w, const te__sm90_gemm_params *p, int j) {
    const int cluster = (int)blockIdx.x / TE_CLUSTER, clusters = (int)gridDim.x / TE_CLUSTER,
              steps = (p->k + TE_TILE_K - 1) / TE_TILE_K;
    int tile = cluster + j * clusters;
    w->first_step = 0, w->end_step = steps, w->split = -1, w->tail_tile = 0;
    if (j >= p->full_waves) {
        const int helps = cluster < p->helpers, owner_splits = p->splits - p->helper_splits;
        w->tail_tile = helps ? cluster / p->helper_splits + (j - p->full_waves) * p->helpers : cluster - p->helpers;
        if (w->tail_tile >= p->tail_tiles || (!helps && j > p->full_waves)) return 0;
        w->split = helps ? 1 + cluster % p->helper_splits : 0;
        if (helps) w->first_step = steps * (owner_splits + w->split - 1) / p->splits;
        w->end_step = steps * (owner_splits + w->split) / p->splits;
        tile = p->full_waves * clusters + w->tail_tile;
    }
    if (tile >= p->tiles) return 0;
    te__sm90_gemm_locate_tile(w, p, tile);
    return 1;
}
/* If this cluster's last piece of work completes a tile, returns the index of that piece; all warps then run the
 * epilogue of this tile. If the last piece is a partial sum for another cluster, returns -1. */
TE_FN int te__sm90_gemm_last_tile(const te__sm90_gemm_params *p) {
    const int cluster = (int)blockIdx.x / TE_CLUSTER, clusters = (int)gridDim.x / TE_CLUSTER;
    if (!p->helpers) return (p->tiles - cluster + clusters - 1) / clusters - 1;
    if (cluster < p->helpers) return cluster / p->helper_splits < p->tail_tiles ? -1 : p->full_waves - 1;
    return cluster - p->helpers < p->tail_tiles ? p->full_waves : p->full_waves - 1;
}

/* ---- shared memory ----------------------------------------------------------------------------------------------- */

/* Returns the address of subtile number `subtile` (0 to 15) of the two staging buffers, through which the consumers
 * pass a finished tile to the epilogue. Each buffer holds 64 columns of the tile: subtile 2 * w + b has the 16 rows of
 * consumer warp w in buffer b. ring: the address of the stages of A and B, behind which the buffers lie. */
TE_FN uint32_t te__sm90_gemm_staging(uint32_t ring, int subtile) {
    return ring + (uint32_t)(TE_STAGES * TE_SM90_GEMM_STAGE_BYTES + subtile * TE_SM90_GEMM_SUBTILE_BYTES);
}
/* Return the shared memory address at which a quarter of a block's last tile is passed to the epilogue. The whole last
 * tile fits in the memory of the stages of A and B, which is free by then. */
TE_FN uint32_t te__sm90_gemm_last_staging(uint32_t ring, int quarter) {
    return ring + (uint32_t)(quarter / 2 * TE_SM90_GEMM_STAGING_BYTES + quarter % 2 * TE_SM90_GEMM_SUBTILE_BYTES);
}
/* For a block's last tile: the address at which warp `warp` stores the sum of column `col` of quarter `quarter` over
 * the rows that the warp has processed. In shared memory these sums lie behind the staged tile. */
TE_FN uint32_t te__sm90_gemm_last_sum(uint32_t ring, int quarter, int warp, int col) {
    return ring + (uint32_t)(2 * TE_SM90_GEMM_STAGING_BYTES +
                             ((quarter * TE_SM90_GEMM_LAST_TILE_WARPS + warp) * 64 + col) * 4);
}

/* Returns the index of the quarter of a tile (64 columns) that is passed to the epilogue as number i, i = 0 to 3. The
 * result is quarter i, except that pairing.swap_middle swaps quarters 1 and 2, so that columns 128 apart are staged
 * together. */
TE_FN int te__sm90_gemm_swap_quarter(int i, const te__sm90_gemm_config k) {
    return k.pairing.swap_middle && (i == 1 || i == 2) ? 3 - i : i;
}
/* Return the column of D at which quarter number `i` of a tile begins; x: the tile's first column. If B is stored
 * [n, k], the result is also the first row of B that this quarter needs. */
TE_FN int te__sm90_gemm_quarter_column(const te__sm90_gemm_params *p, int x, int i, const te__sm90_gemm_config k) {
    if (k.pairing.halves) return x / 2 + 64 * (i / 2) + i % 2 * (p->n / 2);
    return x + 64 * te__sm90_gemm_swap_quarter(i, k);
}

/* A position in the pipeline of stages: the next stage, and the parity of the current phase of that stage's
 * barriers. */
typedef struct te__sm90_pipeline_state { int stage, phase; } te__sm90_pipeline_state;
TE_FN void te__sm90_pipeline_advance(te__sm90_pipeline_state *s) {
    if (++s->stage == TE_STAGES) s->stage = 0, s->phase ^= 1;
}
#endif

#endif
