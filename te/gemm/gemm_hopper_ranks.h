/* gemm_hopper_ranks.h -- the epilogue of gemm_hopper.h where rows of D belong to the ranks of a group (gemm_ranks.h,
 * scatter): those of others leave for their memory, to those of this rank the others' sums are added.
 *
 * A warp takes the same rows of a tile on each rank, so it tells the same warp of the owner that its part of a tile has
 * come, and no warp waits for another one of its block. Where all warps work on a block's last tile (`last`) the three
 * words are for all of it. What has come from the first three of the other ranks is loaded a part of a tile ahead of
 * its use, so that they come together: one after the other, where they are added, they took more time than a tile
 * (8192 x 4096 x 4096 on four H200s 1.35 of the product alone, now 1.06). Of more than four ranks the rest is loaded
 * so. Two parts ahead gained nothing.
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
    te_hopper many;        /* its `ahead`: null */
    void *y;               /* [each, n]: the sums over the ranks */
    const char *slots;     /* [ranks, each, n], 16 bits: what the others have sent */
    char *to[TE_RANKS];    /* this rank's slot in the memory of each other */
    uint32_t *told[TE_RANKS]; /* [tiles, TE_RANK_WARPS], in the memory of each other: its words for this rank */
    const uint32_t *words; /* [ranks, TE_RANK_TILES]: this rank's own for the others */
    const uint32_t *turn;  /* what they become */
    int ranks;
    int apart;             /* this rank's rows go to a slot as well, and a kernel behind adds up all slots */
} te_scatter;

enum { TE_SCATTER_AHEAD = 3 }; /* other ranks whose sums are loaded ahead: the first ones */

/* The i-th of the other ranks. */
TE_FN int te__scatter_other(const te_scatter *s, int i) { return i + (i >= s->many.ranks.rank); }
/* What rank q has sent for an element of this rank's rows. */
TE_FN const char *te__scatter_sent(const te_scatter *s, int q, int row, int col) {
    const uint32_t at = (uint32_t)((q - s->many.ranks.rank) * s->many.ranks.each + row) * (uint32_t)s->many.n;
    return s->slots + (uint64_t)(at + (uint32_t)col) * 2;
}
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
TE_FN int te__scatter_begin(const te_scatter *s, int x, int y, int warp, int last) {
    const int lane = (int)threadIdx.x % 32, rank = s->many.ranks.rank;
    const int of = last ? lane / TE_HOPPER_FEW : lane, word = last ? lane % TE_HOPPER_FEW : warp;
    if (s->apart || te__scatter_rank(s, y) != rank) return 0;
    if (of < s->ranks && of != rank)
        te__rank_wait(s->words + of * TE_RANK_TILES + te__scatter_word(s, x, y, word), *s->turn, of,
                      &s->many.ranks.waits);
    __syncwarp();
    return 1;
}
/* 64 columns of what the others have sent come to the L2, while those before are worked on. */
TE_FN void te__scatter_fetch(const te_scatter *s, int x, int y, int last) {
#pragma unroll 1
    for (int i = (int)threadIdx.x - 32; i < TE_TILE_M * 4; i += 32 * (last ? TE_HOPPER_ALL : TE_HOPPER_FEW)) {
        const int row = y + i / 4, col = x + i % 4 * 16; /* 32 bytes each */
        for (int k = 0; k < s->ranks - 1 && row < s->many.m && col < s->many.n; k++)
            te_prefetch(te__scatter_sent(s, te__scatter_other(s, k), row, col), 0, TE_bf16);
    }
}
/* A tile of another rank's rows has left. Of a last one all warps are behind a barrier. */
TE_FN void te__scatter_end(const te_scatter *s, int x, int y, int warp) {
    __syncwarp();
    if (threadIdx.x % 32 == 0 && warp < TE_HOPPER_FEW && !s->apart)
        te__rank_tell(s->told[te__scatter_rank(s, y)] + te__scatter_word(s, x, y, warp), *s->turn);
}
#else
TE_FN int te__scatter_begin(const te_scatter *s, int x, int y, int warp, int last) {
    return (void)s, (void)x, (void)y, (void)warp, (void)last, 1;
}
TE_FN void te__scatter_fetch(const te_scatter *s, int x, int y, int last) { (void)s, (void)x, (void)y, (void)last; }
TE_FN void te__scatter_end(const te_scatter *s, int x, int y, int warp) {
    (void)s, (void)x, (void)y, (void)warp;
}
#endif

/* Eight numbers of each of the first of the other ranks. */
TE_FN void te__scatter_ahead(const te_scatter *s, uint32_t ahead[4 * TE_SCATTER_AHEAD], int row, int col) {
    TE_UNROLL for (int k = 0; k < TE_SCATTER_AHEAD; k++)
        if (k < s->ranks - 1 && row < s->many.m && col < s->many.n)
            te__load_own(ahead + 4 * k, te__scatter_sent(s, te__scatter_other(s, k), row, col));
}
/* The sum over the ranks, in their order, of eight numbers: w of this rank, the others' as they have come. */
TE_FN void te__scatter_sum(float sum[8], const te_scatter *s, const uint32_t w[4], const uint32_t *ahead, int row,
                           int col, const te_dtype dtype) {
    const int rank = s->many.ranks.rank, begin = TE_SCATTER_AHEAD + (rank <= TE_SCATTER_AHEAD);
    te_words one;
    TE_UNROLL for (int q = 0; q <= TE_SCATTER_AHEAD; q++) {
        if (q >= begin || q >= s->ranks) continue;
        TE_UNROLL for (int i = 0; i < 4; i++) {
            const uint32_t before = ahead[4 * te_min(q, TE_SCATTER_AHEAD - 1) + i]; /* as the q-th other rank */
            const uint32_t behind = ahead[4 * te_max(q - 1, 0) + i];
            one.w[i] = q == rank ? w[i] : q < rank ? before : behind;
        }
        te_words_add(sum, &one, dtype, q > 0);
    }
    TE_UNROLL_1 for (int q = begin; q < s->ranks; q++) {
        TE_UNROLL for (int i = 0; i < 4; i++) one.w[i] = w[i];
        if (q != rank) te__load_own(one.w, te__scatter_sent(s, q, row, col));
        te_words_add(sum, &one, dtype, 1);
    }
}
/* Eight numbers of D, w, to where they belong. */
TE_FN void te__scatter_epilogue(const te_scatter *s, const uint32_t w[4], const uint32_t *ahead, int row, int col,
                                const te_dtype dtype) {
    const te_hopper_ranks *r = &s->many.ranks;
    const int to = te__scatter_rank(s, row);
    const int64_t at = ((int64_t)(row - to * r->each) * s->many.n + col) * 2;
    float sum[8];
    te_words all;
    if (to != r->rank || s->apart) {
        *(uint4 *)(s->to[to] + at) = make_uint4(w[0], w[1], w[2], w[3]);
        return;
    }
    te__scatter_sum(sum, s, w, ahead, row, col, dtype);
    te_words_of(&all, sum, dtype);
    *(uint4 *)((char *)s->y + at) = make_uint4(all.w[0], all.w[1], all.w[2], all.w[3]);
}

#endif
