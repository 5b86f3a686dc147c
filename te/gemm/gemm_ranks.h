/* gemm_ranks.h -- matrix products that overlap a collective of the tensor group: memory that all ranks map, and how one
 * rank knows what another has written there.
 *
 * A product may begin before the rows of A that other ranks have are there (all_gather), and send rows of D to the rank
 * that they belong to as its tiles are done (reduce_scatter). On Hopper, by the kernel of gemm_hopper.h; N ranks, m
 * rows in all, so `each` = m / N rows a rank:
 *
 *   gather    A rank's copy engine writes its rows of A, piece by piece, into the memory of all others, the one that
 *             needs them first before the rest, and a word behind each piece: no multiprocessor takes part. The kernel
 *             takes the tiles of its own rows first, then those of rank + 1, rank + 2, ..; the thread that loads a tile
 *             waits for the word of its piece. Bytes over a link: each k (N - 1) elements; the floor is the product's,
 *             or their time at 450 GB/s if that is longer.
 *   scatter   The epilogue stores the rows of another rank, rounded to 16 bits, in a slot of that rank's memory, one
 *             slot for each sender, and a word behind each tile. Tiles of rank + 1 come first, then rank + 2, .., its
 *             own last: by then the others' sums for its rows have come. The epilogue adds them in f32 in the order of
 *             the ranks, rounds once and stores the result, so there is no pass over the slots. Bytes over a link:
 *             each n (N - 1) elements, and as many that this rank reads again.
 *   apart     The same where k is short (te_rank_memory.apart). The epilogue takes 30 us to add up a tile of this
 *             rank's rows, whatever k is; so here it stores those in a slot as well, and a kernel behind the product,
 *             which waits for the others', adds up all slots (te/comm/scatter.h). The product waits for nobody, and
 *             takes the tiles of all ranks' rows in turns: the link has work from its first round to its last. More
 *             bytes: each n written and read. Two H100s, 8192 x 4096 x 2048, with the kernel behind: in FP8 185 us for
 *             224 (one rank's tiles after the other's 203), in bf16 226 for 233.
 *
 * Measured in turns with the product alone, rows x out x in of a rank: 8192 x 14336 x 8192 gather 0.98 to 1.02 of its
 * time on two H200s and on four, scatter 0.99 to 1.02; 8192 x 4096 x 4096 1.05 to 1.08 and 1.04 to 1.06. NCCL and then
 * the product, or the other way round, 1.11 to 1.24 and 1.5 to 1.6 (docs/ranks.md).
 *
 * What bounds short products. Copy engines bring 230 GB/s to a rank of four; one copy alone 363, but the next one of a
 * stream begins 10 us later, and ranks that get out of step send to the same one. Stores of all multiprocessors reach
 * 345 GB/s, so a scattered tile of 64 KB takes 25 us where all send at a time, and one of this rank's rows 30 us to add
 * up. 8192 x 4096 x 1024 in FP8, four H100s, added up in the epilogue: six rounds of tiles at 27 us and two of 30, 224
 * us, where the product alone takes 57. What did not pay there:
 *   - tiles for the other ranks in turns, so that each gets from three at a time: 220 us;
 *   - this rank's tiles between those for others, so that some multiprocessors add up while others send: 231 us with
 *     each cluster's share the same, 256 where every second one had them all;
 *   - the copy engine of the multiprocessor (TMA) in place of stores: loads of A and B wait behind it for the link; at
 *     8192 x 14336 x 8192 1.28 of the product's time, where stores take 1.05;
 *   - waiting for `ready` where a tile is stored, not before the product: what a rank waits then it waits elsewhere;
 *   - stores no faster than the link takes them, on two H100s: 1.06 and 1.07 where it was 1.03 without.
 *   - the epilogue of this rank's rows with 136 registers, two rows at a time, and without prefetch: 5 us less, but 5
 *     to 10 more where k is 3072 or 4096, for the multipliers then hand half of a tile over at once; with 72 registers
 *     and no selects or copies of what is loaded ahead 15 more. It waits for its loads: three warps have some 9 KB on
 *     their way, 1.1 TB/s of all multiprocessors, and shared memory has no room for more;
 *   - rows that are gathered in pieces by two streams (halves of a rank's rows, or every second rank's): the same or 3%
 *     of a layer more; three streams, one for each rank: 10%, because the rows that are needed first come last.
 * Copies by blocks of a kernel: eight blocks bring 302 GB/s, but the product leaves no multiprocessor.
 *
 * Who may write where, and when. Each such product begins with a handshake (gemm_ranks_run.h): a kernel of one block on
 * the stream tells all others that this rank is ready, and waits until they are. Kernels of a stream run one after the
 * other, so a rank that is ready has done all that the stream had before: no kernel of it reads or writes the memory
 * that is written next. So there is one copy of everything and no second half. In the other direction, a rank's stream
 * goes on when its product is done: then all rows of A have come, or all sums for its rows, and so nobody writes into
 * its memory any more. What it has sent is not its business: a slot is read by its owner, before that one is ready
 * again.
 *
 * Words. `ready` and the words behind tiles get the number of this handshake, the same on all ranks, which each rank
 * counts on its device: a captured graph may be replayed. The words behind pieces get 1, which a stream can write, and
 * are set to 0 by their owner's next handshake, before it says that it is ready. No rank goes through a second
 * handshake before the others have gone through the first, for its product needs what they send: so a word is waited
 * for until it is equal.
 *
 * Nobody waits in a circle: copies wait for a handshake alone. A tile of a rank's own rows waits for tiles that lie N -
 * 1 to 1 times `each` rows earlier in the order of another rank, so in an earlier band (te__hopper_tile), which a
 * cluster is through with before it comes to this one. That holds while all blocks of a kernel that scatters get a
 * multiprocessor in the end: no kernel that waits for another rank may take multiprocessors beside it (NCCL's on a
 * second stream), so in backwards that te_buckets watches all sums are apart: such a product ends whatever else has its
 * multiprocessors, and the sums wait for products alone.
 */
#ifndef TE_GEMM_RANKS_H
#define TE_GEMM_RANKS_H

#include "../core/group.h" /* te_group, TE_OVERLAPS */

enum {
    TE_RANKS = 8,             /* of a group, at most */
    TE_RANK_BLOCKS = 16,      /* of memory, at most */
    TE_RANK_PIECES = 16,      /* that a rank sends to each other */
    TE_RANK_PIECE = 16 << 20, /* bytes of a piece, at least: see te__gather_copies */
    TE_RANK_TILES = 1 << 15,  /* words for the tiles that a rank sends, one for each warp of the epilogue */
    TE_RANK_WARPS = 4,        /* of them; three are in use */
    TE_RANK_APART = 4096,     /* te_rank_memory.apart */
    /* Words at the begin of the first block: */
    TE_WORDS_READY = 0,       /* [rank] */
    TE_WORDS_ARRIVED = 64,    /* [rank][piece] */
    TE_WORDS_TURN = 256,      /* this rank's own: handshakes so far */
    TE_WORDS_PROBE = 320,     /* [rank]: whether a stream of that rank can write here */
    TE_WORDS_SENT = 384,      /* [rank]: all that it scatters here has come */
    TE_WORDS_TILES = 1024,    /* [rank][TE_RANK_TILES] */
    TE_WORDS_IN_ALL = TE_WORDS_TILES + TE_RANKS * TE_RANK_TILES
};

/* Memory of each rank, as this one sees it. */
typedef struct te_rank_block {
    char *at[TE_RANKS];
    size_t bytes;
} te_rank_block;

/* Of a group. Block 0: words, and room for one gathered tensor or the slots of one that is scattered; the others are
 * the caller's (te_comm_allocate). */
typedef struct te_rank_memory {
    te_rank_block block[TE_RANK_BLOCKS];
    int blocks, rank, ranks;
    size_t room;            /* bytes behind the words */
    uint32_t *failed[2];    /* of te_peers: the device's word, and the host's */
    uint64_t timeout;       /* nanoseconds */
    void *side, *event[2];  /* cudaStream_t, on which copies go, and cudaEvent_t */
    void (*write)(void), (*wait)(void); /* cuStreamWriteValue32, cuStreamWaitValue32 */
    int64_t apart;          /* bytes of k up to which what is scattered is added up apart */
    int serial;             /* for tests: product and collective one after the other, the tiles in the same order */
    int64_t gathered, scattered; /* products that were enqueued so */
    int64_t beside; /* of the gathered ones those with something beside their rows (te_gemm_ranks.beside) */
} te_rank_memory;

/* What a product has to do with other ranks. */
typedef struct te_gemm_ranks {
    const te_group *group;
    te_rank_memory *memory;
    const void *own;    /* gather: this rank's rows of A; null: D is scattered */
    char *to[TE_RANKS]; /* gather: where these belong in A, as that lies in the memory of each rank */
    int keep;           /* this rank's A gets them, too */
    int turns;          /* scatter: tiles of the ranks' rows in turns; 0: one rank's after the other's, its own last */
    te_status (*beside)(void *of); /* gather: enqueues what comes before the product while rows are on their way */
    void *beside_of;
} te_gemm_ranks;

TE_API uint32_t *te__rank_words(const te_rank_memory *m, int rank) {
    return (uint32_t *)(void *)m->block[0].at[rank];
}
TE_API char *te__rank_room(const te_rank_memory *m, int rank) {
    return m->block[0].at[rank] + TE_WORDS_IN_ALL * sizeof(uint32_t);
}
/* Rows of a piece: all of a tile, and the pieces no more than there are words. */
TE_API int te__rank_piece(int64_t each, int64_t pitch, int tile) {
    const int64_t rows = te_max(te_ceil_div(TE_RANK_PIECE, pitch), te_ceil_div(each, TE_RANK_PIECES));
    return (int)te_min(each, te_round_up(rows, tile));
}
/* The block that `bytes` from p on lie in; -1: none. */
TE_API int te__rank_block_of(const te_rank_memory *m, const void *p, size_t bytes) {
    for (int i = 1; m && p && i < m->blocks; i++) {
        const char *own = m->block[i].at[m->rank];
        if (own && (const char *)p >= own && (const char *)p + bytes <= own + m->block[i].bytes) return i;
    }
    return -1;
}

/* Who waits, and for how long. */
typedef struct te_rank_waits {
    uint32_t *failed[2];
    uint64_t timeout;
} te_rank_waits;

#endif
