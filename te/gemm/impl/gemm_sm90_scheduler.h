/* gemm_sm90_scheduler.h -- the persistent GEMM of gemm_sm90.h: tile shape, shared memory, kernel parameters, and the
 * tile scheduler, which determines the next tile of a cluster and its steps of k.
 *
 * The scheduler is static: every warp role of every block computes the same sequence from the sizes alone, so the roles
 * need not communicate, and the same inputs produce the same bits. Tiles are ordered down a group of
 * TE_SM90_GEMM_GROUP_M rows of tiles, then column by column, so that the operands in use stay in the L2. The tiles of a
 * last, partial wave are split along k (Stream-K), see te__sm90_gemm_params.
 */
/* target: cuda */
#ifndef TE_GEMM_SM90_SCHEDULER_H
#define TE_GEMM_SM90_SCHEDULER_H

#include "../../core/impl/ptx_cuda.h" /* te__wgmma_n256, te__tma_load */
#include "../gemm_types.h"          /* te_epilogue_fn */
#include "gemm_comm_overlap.h"      /* te__peer_timeout, TE_HAS_COMM_OVERLAP */

enum {
    TE_TILE_M = 128, TE_TILE_N = 256, TE_TILE_K = 64, /* of a block; k in 16-bit units, so 128 elements of FP8 */
    TE_STAGES = 4,                                    /* of the pipeline between producer and consumers */
    TE_CLUSTER = 2,              /* two blocks, one below the other, which use the same tiles of B */
    TE_SM90_GEMM_GROUP_M = 8,    /* rows of cluster tiles in a group: they are computed before the next column of
                                    tiles */
    TE_SM90_GEMM_A_BYTES = TE_TILE_M * TE_TILE_K * 2,
    TE_SM90_GEMM_STAGE_BYTES = (TE_TILE_M + TE_TILE_N) * TE_TILE_K * 2,
    TE_SM90_GEMM_SUBTILE_BYTES = 2048,                             /* 16 rows (a warp's) of 64 columns of D */
    TE_SM90_GEMM_STAGING_BYTES = 8 * 2 * TE_SM90_GEMM_SUBTILE_BYTES, /* 128 rows of 128 columns: two quarters */
    TE_SM90_GEMM_SMEM_BYTES = TE_STAGES * TE_SM90_GEMM_STAGE_BYTES + TE_SM90_GEMM_STAGING_BYTES + 1024,
    TE_SM90_GEMM_THREADS = 384,
    TE_SM90_GEMM_EPILOGUE_WARPS = 3,   /* these run the epilogue of a tile, */
    TE_SM90_GEMM_LAST_TILE_WARPS = 11  /* and these that of a block's last tile, together with the consumers */
};

/* ---- kernel parameters ------------------------------------------------------------------------------------------- */

/* For a product that overlaps a collective (gemm_comm_overlap.h). All 0: no overlap. */
typedef struct te__sm90_gemm_overlap {
    int rank, rank_rows;         /* rank_rows: rows of A and D of each rank, a multiple of a cluster tile's */
    int first_tile_row, group_m; /* the row of tiles that comes first; rows of a group, 0: TE_SM90_GEMM_GROUP_M */
    int interleave;              /* number of ranks whose rows of tiles alternate; 0: rank after rank */
    int own_is_separate;         /* this rank's rows of A are loaded by te__sm90_gemm_params.own_map */
    int chunk_rows;              /* gathered rows of A that share an arrival flag */
    const uint32_t *chunk_flags; /* [ranks, TE_GATHER_MAX_CHUNKS]: 1 once the rows have arrived; null: all have */
    te__peer_timeout timeout;
} te__sm90_gemm_overlap;

/* D = alpha A op(B). A kernel's own parameter struct begins with this one. */
typedef struct te__sm90_gemm_params {
    CUtensorMap a_map, b_map, source_map, own_map; /* source_map: of `source`; own_map: of this rank's rows of A */
    te__sm90_gemm_overlap overlap;
    float *column_sums; /* [3 * rows of tiles, n]: partial sums over rows of te_epilogue_state.sum; null: none */
    float *amax;        /* becomes the maximum of itself and the magnitudes that the epilogue stores in FP8; null: not
                           wanted */
    float *inverse;     /* [2]: 1 / scale and the scale of the FP8 output (te_scale_save); null: not wanted */
    const float *scale;
    uint8_t *transposed; /* [n, transposed_rows]: transpose of the epilogue's FP8 output; null: not wanted */
    int transposed_rows; /* m rounded up to a multiple of 16; the rest is 0 */
    const void *source;  /* [m, n], 16 bits: the tensor that the epilogue reads, prefetched for it; null: none */
    int source_has_halves;              /* `source` is [m, 2 n]: the epilogue reads column i of both halves */
    const float *inverse_a, *inverse_b; /* FP8: inverse scales of A and B, which multiply alpha; null: 1 */
    float alpha;
    int m, n, k, tiles; /* k in 16-bit units (two elements of FP8); tiles of clusters, 256 x 256 */
    /* Stream-K. After `full_waves` waves, in which every cluster computes one tile each, `tail_tiles` tiles remain. k
     * of each of these is cut into `splits` splits. The first `helpers` clusters compute `helper_splits` of them, for
     * tiles that other clusters own. The owner computes the other splits, adds the helpers' sums and runs the epilogue.
     * helpers 0: tiles are not split, and full_waves is unlimited.
     */
    int full_waves, tail_tiles, helpers, helper_splits, splits;
    float *partials; /* [tail tiles * helper_splits, TE_CLUSTER, TE_TILE_M * TE_TILE_N]: the helpers' sums */
    uint32_t *partials_ready; /* [tail tiles, TE_CLUSTER, 8 warps]: splits that have arrived; 0 before and after */
} te__sm90_gemm_params;

/* How an epilogue that needs two vectors of eight columns at once (te_epilogue_pair_fn) gets its pairs: rotary
 * positions pair dimension i of a head with i + rotary_dim / 2, a gated activation column i of both halves of D.
 *
 *   group, distance  128 columns are sixteen vectors, in groups of `group`, a divisor of 16; 0: no pairs. In a group,
 *                    vector i of the first `distance` pairs with vector i + distance. The other vectors of the group,
 *                    dimensions of a head that are not rotated, are paired in the same way: their first half with their
 *                    second half.
 *   swap_middle      the second and third 64 columns of a tile are swapped, so that columns with a distance of 128 form
 *                    pairs.
 *   halves           a tile is 128 columns of the first half of D and the same 128 columns of the second half. */
typedef struct te__sm90_gemm_pairing { int group, distance, swap_middle, halves; } te__sm90_gemm_pairing;

/* The compile-time constants of a kernel. */
typedef struct te__sm90_gemm_config {
    te_dtype dtype, dtype_a, dtype_b; /* of D (16 bits); of A and B: dtype, or both FP8 */
    int trans_b;           /* B is stored [n, k], else [k, n] */
    int transposes;        /* params.transposed may be wanted */
    int holds_half;        /* the consumers hold half of a finished tile, not all: more registers for the epilogue */
    int reads_source;      /* the branch-free epilogue (te_epilogue_outputs) reads params.source */
    int source_has_halves; /* params.source is [m, 2 n], and the epilogue needs the same columns of both halves */
    te__sm90_gemm_pairing pairing; /* B is then stored [n, k] */
    int reduce_scatter;    /* rows of D go to the ranks that own them (gemm_sm90_epilogue_scatter.h) */
    int column_sums;       /* params.column_sums may be wanted */
} te__sm90_gemm_config;

typedef struct te__sm90_gemm_barriers {
    uint64_t full[TE_STAGES], empty[TE_STAGES]; /* stages of A and B: producer to consumers, and back */
    uint64_t staged_full[2], staged_empty[2];   /* quarters of a finished tile: consumers to epilogue, and back */
    float alpha; /* FP8: alpha times both inverse scales. The producer writes it before the third stage is full. */
} te__sm90_gemm_barriers;

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- the tile scheduler ------------------------------------------------------------------------------------------ */

/* A cluster's work: steps [first_step, end_step) of k of a tile whose rows begin at y (those of this block) and columns
 * at x. split -1: all of k. 0: the owner's part of a tail tile, to which it adds the helpers' parts. Above 0: the part
 * of `tail_tile`, which another cluster owns, that this cluster computes as a helper. */
typedef struct te__sm90_gemm_work { int x, y, first_step, end_step, split, tail_tile; } te__sm90_gemm_work;

/* The row of cluster tiles that comes i-th in a product that overlaps a collective: counted from first_tile_row on, or
 * with the rows of the ranks alternating, beginning with the next rank. */
TE_FN int te__sm90_gemm_tile_row(const te__sm90_gemm_params *p, int i, int rows) {
    const te__sm90_gemm_overlap *o = &p->overlap;
    if (o->interleave) return (i + o->rank + 1) % o->interleave * (rows / o->interleave) + i / o->interleave;
    return i + o->first_tile_row < rows ? i + o->first_tile_row : i + o->first_tile_row - rows;
}
/* Sets w->x and w->y, the first column and row of tile `i`. */
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
/* Sets *w to this cluster's j-th piece of work; returns 0 if there is none. Owners wait only for helpers, which are
 * clusters with lower numbers. */
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
/* The index of this cluster's last piece of work if that completes a tile, whose epilogue all warps run; -1: its last
 * piece is a partial sum for another cluster. */
TE_FN int te__sm90_gemm_last_tile(const te__sm90_gemm_params *p) {
    const int cluster = (int)blockIdx.x / TE_CLUSTER, clusters = (int)gridDim.x / TE_CLUSTER;
    if (!p->helpers) return (p->tiles - cluster + clusters - 1) / clusters - 1;
    if (cluster < p->helpers) return cluster / p->helper_splits < p->tail_tiles ? -1 : p->full_waves - 1;
    return cluster - p->helpers < p->tail_tiles ? p->full_waves : p->full_waves - 1;
}

/* ---- shared memory ----------------------------------------------------------------------------------------------- */

/* `ring` is the address of the stages of A and B. Behind them lie two staging buffers, through which the consumers pass
 * a finished tile to the epilogue, a quarter (64 columns) in each. Returns the address of a subtile of these
 * buffers. */
TE_FN uint32_t te__sm90_gemm_staging(uint32_t ring, int subtile) {
    return ring + (uint32_t)(TE_STAGES * TE_SM90_GEMM_STAGE_BYTES + subtile * TE_SM90_GEMM_SUBTILE_BYTES);
}
/* A block's last tile is staged as a whole, in the memory of the stages of A and B. The address of a quarter of it, */
TE_FN uint32_t te__sm90_gemm_last_staging(uint32_t ring, int quarter) {
    return ring + (uint32_t)(quarter / 2 * TE_SM90_GEMM_STAGING_BYTES + quarter % 2 * TE_SM90_GEMM_SUBTILE_BYTES);
}
/* and, behind that tile, the address of a warp's sum over rows for one column. */
TE_FN uint32_t te__sm90_gemm_last_sum(uint32_t ring, int quarter, int warp, int col) {
    return ring + (uint32_t)(2 * TE_SM90_GEMM_STAGING_BYTES +
                             ((quarter * TE_SM90_GEMM_LAST_TILE_WARPS + warp) * 64 + col) * 4);
}

/* The index of the 64 columns of a tile that are its quarter `i`, */
TE_FN int te__sm90_gemm_swap_quarter(int i, const te__sm90_gemm_config k) {
    return k.pairing.swap_middle && (i == 1 || i == 2) ? 3 - i : i;
}
/* and the column of D at which they begin, in a tile at x. If B is stored [n, k], it is also the row of B. */
TE_FN int te__sm90_gemm_quarter_column(const te__sm90_gemm_params *p, int x, int i, const te__sm90_gemm_config k) {
    if (k.pairing.halves) return x / 2 + 64 * (i / 2) + i % 2 * (p->n / 2);
    return x + 64 * te__sm90_gemm_swap_quarter(i, k);
}

/* The stage that comes next, and the parity of its barriers. */
typedef struct te__sm90_pipeline_state { int stage, phase; } te__sm90_pipeline_state;
TE_FN void te__sm90_pipeline_advance(te__sm90_pipeline_state *s) {
    if (++s->stage == TE_STAGES) s->stage = 0, s->phase ^= 1;
}
#endif

#endif
