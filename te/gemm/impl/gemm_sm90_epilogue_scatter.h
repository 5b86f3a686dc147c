/* gemm_sm90_epilogue_scatter.h -- reduce_scatter in the epilogue of gemm_sm90.h (gemm_comm_overlap.h, "scatter"). Each
 * row of D is owned by one rank. For a row of another rank, the epilogue stores this rank's sums in the owner's memory;
 * to a row of this rank it adds the sums that the other ranks have stored in this rank's memory.
 *
 * On every rank the rows of a tile are divided among the three warps of the epilogue in the same way. So warp i of the
 * owner needs from each other rank only the sums of that rank's warp i. Each warp therefore sets a flag of its own in
 * the owner's memory, and no warp waits for another warp of its block. A block's last tile is divided among all warps
 * of the block: the three epilogue warps set its three flags after a barrier of the block, so that each of the flags
 * means that the whole tile was stored.
 *
 * An epilogue warp processes a tile in parts of four rows and 64 columns. The sums of three other ranks are loaded
 * while the previous part is processed; the sums of further ranks are loaded when they are added. When all sums were
 * loaded just before their use, the loads took longer than the GEMM of a tile (docs/notes/gemm_comm_overlap.md).
 *
 * Memory traffic of a tile of 128 x 256 in addition to that of the GEMM: if another rank owns it, 64 KB are sent over
 * the link; if this rank owns it, 64 KB are read for each other rank, and 64 KB are stored. At k of 4096 a tile takes
 * 25 us or more, so each of 132 multiprocessors sends at most 2.6 GB/s, together at most 345 GB/s of the link's 450. If
 * k is half as large, the link limits the speed at which tiles that other ranks own are computed.
 */
/* target: cuda */
#ifndef TE_GEMM_SM90_EPILOGUE_SCATTER_H
#define TE_GEMM_SM90_EPILOGUE_SCATTER_H

#include "gemm_sm90_scheduler.h" /* te__sm90_gemm_params */

typedef struct te__gemm_scatter_params {
    te__sm90_gemm_params gemm;            /* gemm.source is null */
    /* [rank_rows, n], the result: for the rows that this rank owns, the sums over all ranks */
    void *y;
    const char *slots;                    /* [ranks, rank_rows, n], 16-bit elements: the sums that the other ranks have
                                           * sent for this rank's rows */
    char *to[TE_MAX_RANKS];               /* to[q]: the address of this rank's slot in the memory of rank q, to which
                                           * this rank sends its sums */
    /* peer_flags[q]: an array [tiles, TE_SCATTER_FLAGS_PER_TILE] in the memory of rank q, with the flags that this rank
     * sets there */
    uint32_t *peer_flags[TE_MAX_RANKS];
    const uint32_t *flags;                /* [ranks, TE_SCATTER_MAX_FLAGS], in this rank's memory: the flags that the
                                           * other ranks set */
    const uint32_t *epoch;                /* points to the number of the current handshake; a flag is set by storing
                                           * this number in the flag */
    int ranks;
    /* 0 if this kernel adds up the sums of all ranks; 1 if a second kernel does so, for which this kernel also stores
     * this rank's sums for its own rows in a slot */
    int two_kernels;
} te__gemm_scatter_params;

/* The number of other ranks whose sums a lane loads while it still processes the previous part of the tile. The sums of
 * all further ranks are loaded only when they are added. */
enum { TE_GEMM_SCATTER_PREFETCHED = 3 };

/* Returns the i-th (from 0) of the other ranks, in ascending order. */
TE_FN int te__gemm_scatter_peer(const te__gemm_scatter_params *s, int i) { return i + (i >= s->gemm.overlap.rank); }
/* Returns the address of columns col to col + 7 of row `row` of D, as rank q has sent them. This rank owns the row. */
TE_FN const char *te__gemm_scatter_received(const te__gemm_scatter_params *s, int q, int row, int col) {
    const te__sm90_gemm_overlap *o = &s->gemm.overlap;
    const uint32_t at = (uint32_t)((q - o->rank) * o->rank_rows + row) * (uint32_t)s->gemm.n;
    return s->slots + (uint64_t)(at + (uint32_t)col) * 2;
}
/* Returns the rank that owns row y of D. */
TE_FN int te__gemm_scatter_owner(const te__gemm_scatter_params *s, int y) {
    const te__sm90_gemm_overlap *o = &s->gemm.overlap;
    if ((unsigned)(y - o->rank * o->rank_rows) < (unsigned)o->rank_rows) return o->rank;
    return s->ranks == 2 ? 1 - o->rank : y / o->rank_rows;
}
#if TE_HAS_COMM_OVERLAP && (defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__)
/* Return the index, among the flags that a rank sets, of the flag of warp number `warp` for the tile at (x, y). */
TE_FN int te__gemm_scatter_flag(const te__gemm_scatter_params *s, int x, int y, int warp) {
    const int columns = (s->gemm.n + TE_TILE_N - 1) / TE_TILE_N;
    const int tile = y % s->gemm.overlap.rank_rows / TE_TILE_M * columns + x / TE_TILE_N;
    return tile * TE_SCATTER_FLAGS_PER_TILE + warp;
}
/* If this rank owns the tile and this kernel adds up the ranks' sums, waits until the other ranks' sums for the tile
 * have arrived, and returns 1; otherwise returns 0. Lane i waits for rank i. For a block's last tile (is_last) a warp
 * needs rows from all three warps of each other rank, so three lanes wait for each rank, one for each warp's flag. */
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
/* Prefetch 64 columns of the other ranks' sums to the L2, while the epilogue works on the previous 64 columns. */
TE_FN void te__gemm_scatter_prefetch(const te__gemm_scatter_params *s, int x, int y, int is_last) {
    const int threads = 32 * (is_last ? TE_SM90_GEMM_LAST_TILE_WARPS : TE_SM90_GEMM_EPILOGUE_WARPS);
#pragma unroll 1
    for (int i = (int)threadIdx.x - 32; i < TE_TILE_M * 4; i += threads) {
        const int row = y + i / 4, col = x + i % 4 * 16; /* each prefetch covers 32 bytes, which are 16 elements, so
                                                          * four prefetches cover the 64 columns */
        for (int k = 0; k < s->ranks - 1 && row < s->gemm.m && col < s->gemm.n; k++)
            te_prefetch(te__gemm_scatter_received(s, te__gemm_scatter_peer(s, k), row, col), 0, TE_bf16);
    }
}
/* Signal to the rank that owns the tile's rows that this warp has stored its part of the tile in that rank's memory.
 * All warps of the block store a block's last tile, so for that tile they must pass a barrier before this call: each
 * flag of a last tile means that the whole tile was stored. */
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

/* Load the eight elements at (row, col) that each of the first TE_GEMM_SCATTER_PREFETCHED other ranks has sent. */
TE_FN void te__gemm_scatter_load(const te__gemm_scatter_params *s, uint32_t sent[4 * TE_GEMM_SCATTER_PREFETCHED],
                                 int row, int col) {
    TE_UNROLL for (int k = 0; k < TE_GEMM_SCATTER_PREFETCHED; k++)
        if (k < s->ranks - 1 && row < s->gemm.m && col < s->gemm.n)
            te__load16_coherent(sent + 4 * k, te__gemm_scatter_received(s, te__gemm_scatter_peer(s, k), row, col));
}
/* Adds up the eight elements at (row, col) over the ranks, in the order of the ranks. w: the elements of this rank;
 * sent: the elements of the first other ranks, which te__gemm_scatter_load has loaded. The elements of the remaining
 * ranks are loaded here. */
TE_FN void te__gemm_scatter_sum(float sum[8], const te__gemm_scatter_params *s, const uint32_t w[4],
                                const uint32_t *sent, int row, int col, const te_dtype dtype) {
    const int rank = s->gemm.overlap.rank, begin = TE_GEMM_SCATTER_PREFETCHED + (rank <= TE_GEMM_SCATTER_PREFETCHED);
    te_packet one;
    TE_UNROLL for (int q = 0; q <= TE_GEMM_SCATTER_PREFETCHED; q++) {
        if (q >= begin || q >= s->ranks) continue;
        TE_UNROLL for (int i = 0; i < 4; i++) {
            /* Rank q is number q among the other ranks if q < rank, and number q - 1 if q > rank, counted from 0. */
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
/* The epilogue for the eight elements w of D at (row, col). If another rank owns the row, or if a second kernel adds up
 * the ranks' sums (two_kernels), stores w in this rank's slot in the owner's memory. Otherwise adds up w and the
 * elements that the other ranks have sent, and stores the sums in y. */
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
