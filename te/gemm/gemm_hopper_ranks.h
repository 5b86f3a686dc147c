/* gemm_hopper_ranks.h -- the epilogue of gemm_hopper.h where rows of D belong to the ranks of a group (gemm_ranks.h,
 * scatter): those of others leave for their memory, to those of this rank the others' sums are added.
 *
 * A lane takes the same rows and columns of a tile on each rank, so a warp tells the same warp of the owner that its
 * part of a tile has come, and no warp waits for another one of its block. What comes from the first of the other ranks
 * is read ahead of its use (te_hopper.ahead); of more than two the rest is loaded where it is added.
 *
 * Bytes of a tile of 128 x 256 beside the product's own: of another rank's rows 64 KB over the link; of its own rows 64
 * KB of each other's sums read, 64 KB stored. At k of 4096 a tile takes 25 us or more, so the link has 2.6 GB/s of each
 * of 132 multiprocessors, 345 GB/s of 450; at half of that k it is what bounds the tiles of the others' rows.
 */
/* target: cuda */
#ifndef TE_GEMM_HOPPER_RANKS_H
#define TE_GEMM_HOPPER_RANKS_H

#include "gemm_hopper_tiles.h" /* te_hopper */

typedef struct te_scatter {
    te_hopper many;        /* its `ahead`: the sums of the first other rank, so that row r of D is row r of it */
    void *y;               /* [each, n]: the sums over the ranks */
    const char *slots;     /* [ranks, each, n], 16 bits: what the others have sent */
    char *to[TE_RANKS];    /* this rank's slot in the memory of each other */
    uint32_t *told[TE_RANKS]; /* [tiles, TE_RANK_WARPS], in the memory of each other: its words for this rank */
    const uint32_t *words; /* [ranks, TE_RANK_TILES]: this rank's own for the others */
    const uint32_t *turn;  /* what they become */
    int ranks;
} te_scatter;

/* Rows y from another rank's, or from this rank's own on. */
TE_FN int te__scatter_rank(const te_scatter *s, int y) {
    const te_hopper_ranks *r = &s->many.ranks;
    if ((unsigned)(y - r->rank * r->each) < (unsigned)r->each) return r->rank;
    return s->ranks == 2 ? 1 - r->rank : y / r->each;
}
#if TE_OVERLAPS && (defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__)
/* The word of this warp for a tile, among those of a rank. */
TE_FN int te__scatter_word(const te_scatter *s, int x, int y, int warp) {
    const int columns = (s->many.n + TE_TILE_N - 1) / TE_TILE_N;
    return (y % s->many.ranks.each / TE_TILE_M * columns + x / TE_TILE_N) * TE_RANK_WARPS + warp;
}
/* Whether the tile is of this rank's rows: then the others' sums have come. */
TE_FN int te__scatter_begin(const te_scatter *s, int x, int y, int warp) {
    const int lane = (int)threadIdx.x % 32, rank = s->many.ranks.rank;
    if (te__scatter_rank(s, y) != rank) return 0;
    if (lane < s->ranks && lane != rank)
        te__rank_wait(s->words + lane * TE_RANK_TILES + te__scatter_word(s, x, y, warp), *s->turn, lane,
                      &s->many.ranks.waits);
    __syncwarp();
    return 1;
}
/* 64 columns of what comes from the first other rank come to the L2, while those before are worked on. */
TE_FN void te__scatter_fetch(const te_scatter *s, int x, int y) {
#pragma unroll 1
    for (int i = (int)threadIdx.x - 32; i < TE_TILE_M * 4; i += 96) { /* 32 bytes each */
        const int row = y + i / 4, col = x + i % 4 * 16;
        if (row < s->many.m && col < s->many.n) te_prefetch(s->many.ahead, (int64_t)row * s->many.n + col, TE_bf16);
    }
}
/* A tile of another rank's rows has left. */
TE_FN void te__scatter_end(const te_scatter *s, int x, int y, int warp) {
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        te__rank_tell(s->told[te__scatter_rank(s, y)] + te__scatter_word(s, x, y, warp), *s->turn);
}
#else
TE_FN int te__scatter_begin(const te_scatter *s, int x, int y, int warp) {
    return (void)s, (void)x, (void)y, (void)warp, 1;
}
TE_FN void te__scatter_fetch(const te_scatter *s, int x, int y) { (void)s, (void)x, (void)y; }
TE_FN void te__scatter_end(const te_scatter *s, int x, int y, int warp) {
    (void)s, (void)x, (void)y, (void)warp;
}
#endif

/* Eight numbers of D, w, to where they belong. */
TE_FN void te__scatter_epilogue(const te_scatter *s, const uint32_t w[4], const uint32_t *ahead, int row, int col,
                                const te_dtype dtype) {
    const te_hopper_ranks *r = &s->many.ranks;
    const int to = te__scatter_rank(s, row);
    const int64_t at = ((int64_t)(row - to * r->each) * s->many.n + col) * 2;
    const int first = r->rank == 0;
    float sum[8];
    te_words v, all;
    if (to != r->rank) {
        *(uint4 *)(s->to[to] + at) = make_uint4(w[0], w[1], w[2], w[3]);
        return;
    }
#pragma unroll 1
    for (int q = 0; q < s->ranks; q++) {
        if (q == r->rank || q == first)
            TE_UNROLL for (int i = 0; i < 4; i++) v.w[i] = q == first ? ahead[i] : w[i];
        else te__load_own(v.w, s->slots + (int64_t)q * r->each * s->many.n * 2 + at);
        te_words_add(sum, &v, dtype, q > 0);
    }
    te_words_of(&all, sum, dtype);
    *(uint4 *)((char *)s->y + at) = make_uint4(all.w[0], all.w[1], all.w[2], all.w[3]);
}

#endif
