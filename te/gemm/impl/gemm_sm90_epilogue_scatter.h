/* gemm_sm90_epilogue_scatter.h -- reduce_scatter in the epilogue of gemm_sm90.h (gemm_comm_overlap.h, "scatter"): rows
 * of another rank are stored in that rank's memory, and the other ranks' sums are added to this rank's rows.
 *
 * A warp takes the same rows of a tile on every rank, so it signals the same warp of the owner, and no warp waits for
 * another one of its block. All warps of a block work on its last tile; there each of the three flags covers the whole
 * tile. The sums of the first three other ranks are loaded one part of a tile ahead of their use, so that the loads
 * overlap: loaded one after the other at their use they took longer than a tile. (docs/notes/gemm_comm_overlap.md)
 *
 * Bytes of a tile of 128 x 256 in addition to the product's: for another rank's rows 64 KB over the link; for its own
 * rows 64 KB of each other rank's sums read and 64 KB stored. At k of 4096 a tile takes 25 us or more, so each of 132
 * multiprocessors sends 2.6 GB/s, in all 345 of the link's 450 GB/s; at half of that k the link bounds the tiles of
 * other ranks' rows.
 */
/* target: cuda */
#ifndef TE_GEMM_SM90_EPILOGUE_SCATTER_H
#define TE_GEMM_SM90_EPILOGUE_SCATTER_H

#include "gemm_sm90_scheduler.h" /* te__sm90_gemm_params */

typedef struct te__gemm_scatter_params {
    te__sm90_gemm_params gemm;            /* gemm.source is null */
    void *y;                              /* [rank_rows, n]: the sum over the ranks */
    const char *slots;                    /* [ranks, rank_rows, n], 16 bits: the sums that the other ranks have sent */
    char *to[TE_MAX_RANKS];               /* this rank's slot in the memory of each other rank */
    uint32_t *peer_flags[TE_MAX_RANKS];   /* [tiles, TE_SCATTER_FLAGS_PER_TILE]: this rank's flags, in the memory of
                                             each other rank */
    const uint32_t *flags;                /* [ranks, TE_SCATTER_MAX_FLAGS]: the flags that the other ranks set here */
    const uint32_t *epoch;                /* the value that flags are set to */
    int ranks;
    int two_kernels; /* 1: this rank's rows are stored in a slot, too, and a second kernel adds up all slots */
} te__gemm_scatter_params;

enum { TE_GEMM_SCATTER_PREFETCHED = 3 }; /* how many of the other ranks' sums are loaded ahead */

/* The i-th of the other ranks. */
TE_FN int te__gemm_scatter_peer(const te__gemm_scatter_params *s, int i) { return i + (i >= s->gemm.overlap.rank); }
/* The address of the eight elements that rank q has sent for (row, col) of D; the row is one of this rank. */
TE_FN const char *te__gemm_scatter_received(const te__gemm_scatter_params *s, int q, int row, int col) {
    const te__sm90_gemm_overlap *o = &s->gemm.overlap;
    const uint32_t at = (uint32_t)((q - o->rank) * o->rank_rows + row) * (uint32_t)s->gemm.n;
    return s->slots + (uint64_t)(at + (uint32_t)col) * 2;
}
/* The rank that owns row y. */
TE_FN int te__gemm_scatter_owner(const te__gemm_scatter_params *s, int y) {
    const te__sm90_gemm_overlap *o = &s->gemm.overlap;
    if ((unsigned)(y - o->rank * o->rank_rows) < (unsigned)o->rank_rows) return o->rank;
    return s->ranks == 2 ? 1 - o->rank : y / o->rank_rows;
}
#if TE_HAS_COMM_OVERLAP && (defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__)
/* The index of this warp's flag for a tile, among those of a rank. */
TE_FN int te__gemm_scatter_flag(const te__gemm_scatter_params *s, int x, int y, int warp) {
    const int columns = (s->gemm.n + TE_TILE_N - 1) / TE_TILE_N;
    const int tile = y % s->gemm.overlap.rank_rows / TE_TILE_M * columns + x / TE_TILE_N;
    return tile * TE_SCATTER_FLAGS_PER_TILE + warp;
}
/* If this rank owns the tile and adds it up, waits until the other ranks' sums for it have arrived, and returns 1;
 * otherwise 0. Lane i waits for rank i; for a last tile (is_last) three lanes wait for the three flags of a rank. */
TE_FN int te__gemm_scatter_wait(const te__gemm_scatter_params *s, int x, int y, int warp, int is_last) {
    const int lane = (int)threadIdx.x % 32, rank = s->gemm.overlap.rank;
    const int of = is_last ? lane / TE_SM90_GEMM_EPILOGUE_WARPS : lane;
    const int of_warp = is_last ? lane % TE_SM90_GEMM_EPILOGUE_WARPS : warp;
    if (s->two_kernels || te__gemm_scatter_owner(s, y) != rank) return 0;
    if (of < s->ranks && of != rank)
        te__flag_wait(s->flags + of * TE_SCATTER_MAX_FLAGS + te__gemm_scatter_flag(s, x, y, of_warp), *s->epoch, of,
                      &s->gemm.overlap.timeout);
    __syncwarp();
    return 1;
}
/* Prefetch 64 columns of the other ranks' sums to the L2, while the epilogue works on the previous 64. */
TE_FN void te__gemm_scatter_prefetch(const te__gemm_scatter_params *s, int x, int y, int is_last) {
    const int threads = 32 * (is_last ? TE_SM90_GEMM_LAST_TILE_WARPS : TE_SM90_GEMM_EPILOGUE_WARPS);
#pragma unroll 1
    for (int i = (int)threadIdx.x - 32; i < TE_TILE_M * 4; i += threads) {
        const int row = y + i / 4, col = x + i % 4 * 16; /* 32 bytes each */
        for (int k = 0; k < s->ranks - 1 && row < s->gemm.m && col < s->gemm.n; k++)
            te_prefetch(te__gemm_scatter_received(s, te__gemm_scatter_peer(s, k), row, col), 0, TE_bf16);
    }
}
/* Signal the owner that this warp has stored its part of the tile. For a last tile all warps have passed a barrier
 * before. */
TE_FN void te__gemm_scatter_signal(const te__gemm_scatter_params *s, int x, int y, int warp) {
    __syncwarp();
    if (threadIdx.x % 32 == 0 && warp < TE_SM90_GEMM_EPILOGUE_WARPS && !s->two_kernels)
        te__flag_signal(s->peer_flags[te__gemm_scatter_owner(s, y)] + te__gemm_scatter_flag(s, x, y, warp), *s->epoch);
}
#else
TE_FN int te__gemm_scatter_wait(const te__gemm_scatter_params *s, int x, int y, int warp, int is_last) {
    return (void)s, (void)x, (void)y, (void)warp, (void)is_last, 1;
}
TE_FN void te__gemm_scatter_prefetch(const te__gemm_scatter_params *s, int x, int y, int is_last) {
    (void)s, (void)x, (void)y, (void)is_last;
}
TE_FN void te__gemm_scatter_signal(const te__gemm_scatter_params *s, int x, int y, int warp) {
    (void)s, (void)x, (void)y, (void)warp;
}
#endif

/* Load eight elements of the sums of each of the first TE_GEMM_SCATTER_PREFETCHED other ranks. */
TE_FN void te__gemm_scatter_load(const te__gemm_scatter_params *s, uint32_t sent[4 * TE_GEMM_SCATTER_PREFETCHED],
                                 int row, int col) {
    TE_UNROLL for (int k = 0; k < TE_GEMM_SCATTER_PREFETCHED; k++)
        if (k < s->ranks - 1 && row < s->gemm.m && col < s->gemm.n)
            te__load16_coherent(sent + 4 * k, te__gemm_scatter_received(s, te__gemm_scatter_peer(s, k), row, col));
}
/* The sum of eight elements over the ranks, in their order. w: those of this rank; sent: those of the other ranks that
 * were loaded ahead. */
TE_FN void te__gemm_scatter_sum(float sum[8], const te__gemm_scatter_params *s, const uint32_t w[4],
                                const uint32_t *sent, int row, int col, const te_dtype dtype) {
    const int rank = s->gemm.overlap.rank, begin = TE_GEMM_SCATTER_PREFETCHED + (rank <= TE_GEMM_SCATTER_PREFETCHED);
    te_packet one;
    TE_UNROLL for (int q = 0; q <= TE_GEMM_SCATTER_PREFETCHED; q++) {
        if (q >= begin || q >= s->ranks) continue;
        TE_UNROLL for (int i = 0; i < 4; i++) {
            /* rank q is the q-th other rank if it is below this one, else the (q - 1)-th */
            const uint32_t below = sent[4 * te_min(q, TE_GEMM_SCATTER_PREFETCHED - 1) + i];
            const uint32_t above = sent[4 * te_max(q - 1, 0) + i];
            one.w[i] = q == rank ? w[i] : q < rank ? below : above;
        }
        te_packet_add(sum, &one, dtype, q > 0);
    }
    TE_UNROLL_1 for (int q = begin; q < s->ranks; q++) {
        TE_UNROLL for (int i = 0; i < 4; i++) one.w[i] = w[i];
        if (q != rank) te__load16_coherent(one.w, te__gemm_scatter_received(s, q, row, col));
        te_packet_add(sum, &one, dtype, 1);
    }
}
/* The epilogue for eight elements w of D: stores them in the owner's slot, or adds them up and stores the sum in y. */
TE_FN void te__gemm_scatter_epilogue(const te__gemm_scatter_params *s, const uint32_t w[4], const uint32_t *sent,
                                     int row, int col, const te_dtype dtype) {
    const te__sm90_gemm_overlap *o = &s->gemm.overlap;
    const int owner = te__gemm_scatter_owner(s, row);
    const int64_t at = ((int64_t)(row - owner * o->rank_rows) * s->gemm.n + col) * 2;
    float sum[8];
    te_packet all;
    if (owner != o->rank || s->two_kernels) {
        *(uint4 *)(s->to[owner] + at) = make_uint4(w[0], w[1], w[2], w[3]);
        return;
    }
    te__gemm_scatter_sum(sum, s, w, sent, row, col, dtype);
    te_packet_of_floats(&all, sum, dtype);
    *(uint4 *)((char *)s->y + at) = make_uint4(all.w[0], all.w[1], all.w[2], all.w[3]);
}

#endif
