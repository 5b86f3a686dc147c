/* peers.h -- memory of each rank that all ranks of a group map; how a kernel exchanges data through it.
 *
 * A collective pushes: a rank stores what a peer needs straight into that peer's memory, 16 bytes at a time, and the
 * peer polls its own memory until they are there (core/words.h). One way over the link is then all the latency there
 * is: no flag follows the data, no fence waits until the data has arrived, and no load goes there and back.
 *
 * There are two halves, which collectives use in turn. A rank stores into a peer's half for the second time when it
 * has, in the collective between, received data that the peer sent after it had emptied that half. So no barrier is
 * needed. Whose turn it is each block of threads counts on the device, so a captured graph may be replayed.
 *
 * Thread i of a rank waits for nothing but thread i of its peers, which sends before it waits, and all ranks launch as
 * many threads: so it does not matter how many blocks run at a time, as long as lower ones begin first.
 */
#ifndef TE_COMM_PEERS_H
#define TE_COMM_PEERS_H

#include "../core/group.h"  /* te_group */
#include "../core/target.h" /* TE_KERNEL */
#include "../core/words.h"  /* te_words */

#define TE_PEER_MOST ((int64_t)1 << 30) /* bytes: units of 16 bytes, and packets of as many ranks, are an int */
enum {
    TE_PEERS = 8,                            /* ranks of a group, at most */
    TE_PEER_THREADS = TE_CUDA ? 512 : 1,     /* of a block */
    TE_PEER_BLOCKS = 512,                    /* at most, of a kernel */
    TE_PEER_PATIENCE = TE_CUDA ? 1024 : 256, /* looks at the memory for one look at the clock */
};

typedef enum te_peer_kind { TE_PEER_all_reduce, TE_PEER_reduce_scatter, TE_PEER_all_gather } te_peer_kind;
typedef enum te_peer_form { TE_PEER_none, TE_PEER_one_shot, TE_PEER_two_shot } te_peer_form;

/* A rank's own, of its device. */
typedef struct te_peer_state {
    uint32_t turn[TE_PEER_BLOCKS]; /* collectives so far, as each block has counted them: all the same */
    uint32_t failed;               /* 0, or 1 + a rank that has not come */
} te_peer_state;

/* The memory that the ranks of a group map. */
typedef struct te_peers {
    char *at[TE_PEERS]; /* of each rank, as this one sees it */
    te_peer_state *state;
    uint32_t *failed;  /* the same as state->failed, in memory of the host that the device maps */
    int64_t half;      /* bytes of each half */
    int64_t largest;   /* bytes of the largest tensor that goes this way */
    int64_t one_shot;  /* bytes of the largest sum that all ranks make for themselves */
    int blocks;        /* of a kernel, at most: the same on all ranks */
    int64_t collectives; /* that went this way */
    int64_t rows, fp8, sent; /* kernels of rows among them (peer_row.h), those of these that gather FP8, and products
                              * that sent for one (send.h) */
} te_peers;

/* What a kernel gets. */
typedef struct te_peer_args {
    void *y;
    const void *x;
    int64_t bytes; /* of x, for all_reduce and all_gather; of y, for reduce_scatter */
    te_dtype dtype;
    int rank, ranks, whole; /* whole: x, y and `bytes` are multiples of 16 bytes */
    char *at[TE_PEERS], *own; /* the memory of each rank, and of this one */
    te_peer_state *state;
    uint32_t *failed;
    int64_t half;
    te_peer_kind kind;
    te_peer_form form;
    uint64_t timeout; /* nanoseconds */
} te_peer_args;

/* ---- in a kernel ------------------------------------------------------------------------------------------------- */

TE_FN int te__peer_thread(te_block b) {
    int group;
    return b.x * TE_PEER_THREADS + te_lanes_here(TE_PEER_THREADS, &group).id;
}
/* Of all threads of the grid. */
TE_FN int te__peer_stride(te_block b) { return b.nx * TE_PEER_THREADS; }

/* Which collective this is. */
TE_FN uint32_t te__peer_turn(const te_peer_args *a, te_block b) { return te_word_peek(&a->state->turn[b.x]); }
/* The turn is needed from here on: what was loaded before does not wait for it. */
TE_FN void te__peer_turn_now(uint32_t *turn) {
#if TE_CUDA
    asm volatile("" : "+r"(*turn));
#else
    (void)turn;
#endif
}
/* Count it, for the blocks that a larger grid has, too. threads: of the block. */
TE_FN void te__peer_done(const te_peer_args *a, te_block b, uint32_t turn, const int threads) {
    int group;
    const int id = te_lanes_here(threads, &group).id;
    te_block_sync(); /* all threads of the block have read it */
    TE_UNROLL_1 for (int k = b.x + id * b.nx; k < TE_PEER_BLOCKS; k += threads * b.nx) a->state->turn[k] = turn + 1;
}
/* Where words lie that rank `from` has sent to the rank whose memory is `at`: the i-th of the `each` that a rank
 * sends. */
TE_FN char *te__peer_slot(char *at, const te_peer_args *a, uint32_t turn, int from, int each, int i) {
    return at + (turn & 1) * a->half + (int64_t)(from * each + i) * TE_WORDS;
}
TE_FN int te__peer_gives_up(const te_peer_args *a, uint64_t *since, uint32_t missing) {
    const uint64_t now = te_words_clock();
    uint32_t rank = 0;
    if (te_word_peek(&a->state->failed)) return 1;
    if (!*since) *since = now;
    if (now - *since < a->timeout) return 0;
    while (!(missing >> rank & 1)) rank++;
    te_word_send(&a->state->failed, rank + 1), te_word_send(a->failed, rank + 1);
    return 1;
}
/* Wait for the i-th words of each rank whose bit is set in `missing`, and empty their slots. 0: one has not come in
 * time. `packets`: of the four words the second and the fourth are 0, and say that the one before has come. */
TE_FN int te__peer_wait(te_words v[TE_PEERS], const te_peer_args *a, uint32_t turn, int each, int i,
                        uint32_t missing, const int ranks, const int packets) {
    const uint32_t wanted = missing;
    uint64_t since = 0;
    for (uint32_t looks = 1; missing; looks++) {
        TE_UNROLL for (int r = 0; r < ranks; r++)
            if (missing >> r & 1) te_words_peek(&v[r], te__peer_slot(a->own, a, turn, r, each, i));
        TE_UNROLL for (int r = 0; r < ranks; r++) {
            if (!(missing >> r & 1)) continue;
            const int came = packets ? (v[r].w[1] != TE_WORD_IDLE) & (v[r].w[3] != TE_WORD_IDLE) : te_words_came(&v[r]);
            if (came) missing &= ~(1u << r);
        }
        if (missing && looks % TE_PEER_PATIENCE == 0 && te__peer_gives_up(a, &since, missing)) return 0;
    }
    TE_UNROLL for (int r = 0; r < ranks; r++)
        if (wanted >> r & 1) te_words_idle(te__peer_slot(a->own, a, turn, r, each, i));
    return 1;
}
/* The i-th rank behind this one: all send in this order, so that not all send to the same at a time. */
TE_FN int te__peer_next(const te_peer_args *a, int i) {
    return a->rank + i < a->ranks ? a->rank + i : a->rank + i - a->ranks;
}
/* Whether there is a rank r, of `most`: a->ranks, or TE_PEERS where that is no constant. */
TE_FN int te__peer_is(const te_peer_args *a, int r, const int most) { return most < TE_PEERS || r < a->ranks; }
/* All ranks but this one, a bit for each. */
TE_FN uint32_t te__peer_others(const te_peer_args *a) { return ((1u << a->ranks) - 1) & ~(1u << a->rank); }

/* The sum of the i-th words of all ranks, added up in f32 in the order of the ranks, so that it is the same bits
 * wherever it is made; `own` are those of this rank. Who sends it marks it first (te_words_mark). */
TE_FN int te__peer_sum(te_words *sum, const te_words *own, const te_peer_args *a, uint32_t turn, int each, int i,
                       const int ranks) {
    te_words v[TE_PEERS];
    float s[8];
    if (!te__peer_wait(v, a, turn, each, i, te__peer_others(a), ranks, 0)) return 0;
    TE_UNROLL for (int r = 0; r < ranks; r++) {
        te_words one;
        TE_UNROLL for (int k = 0; k < 4; k++) one.w[k] = r == a->rank ? own->w[k] : v[r].w[k];
        if (te__peer_is(a, r, ranks)) te_words_add(s, &one, a->dtype, r > 0);
    }
    te_words_of(sum, s, a->dtype);
    return 1;
}

/* The i-th words of rank r alone; see te__peer_wait. */
TE_FN int te__peer_wait_of(te_words *v, const te_peer_args *a, uint32_t turn, int each, int i, int r) {
    char *const slot = te__peer_slot(a->own, a, turn, r, each, i);
    uint64_t since = 0;
    for (uint32_t looks = 1;; looks++) {
        te_words_peek(v, slot);
        if (te_words_came(v)) break;
        if (looks % TE_PEER_PATIENCE == 0 && te__peer_gives_up(a, &since, 1u << r)) return 0;
    }
    te_words_idle(slot);
    return 1;
}
/* Eight bytes at `slot`, that rank r sends; see te__peer_wait. */
TE_FN int te__peer_wait8(te_words *v, const te_peer_args *a, char *slot, int r) {
    const te_words idle = {{TE_WORD_IDLE, TE_WORD_IDLE, TE_WORD_IDLE, TE_WORD_IDLE}};
    uint64_t since = 0;
    for (uint32_t looks = 1;; looks++) {
        te_words_peek8(v, slot);
        if (te_words_came(v)) break;
        if (looks % TE_PEER_PATIENCE == 0 && te__peer_gives_up(a, &since, 1u << r)) return 0;
    }
    te_words_send8(slot, &idle);
    return 1;
}
/* te__peer_sum, of one rank after the other: registers for one, whatever their number. Of a rank that has not come in
 * time NaNs are added. dtype: a->dtype, a constant. */
TE_FN void te__peer_sum_of_each(te_words *sum, const te_words *own, const te_peer_args *a, uint32_t turn, int each,
                                int i, const te_dtype dtype) {
    float s[8];
    TE_UNROLL for (int k = 0; k < 8; k++) s[k] = -0.0f; /* -0 + x is x, whatever that is */
    TE_UNROLL_1 for (int r = 0; r < a->ranks; r++) {
        te_words v = *own;
        if (r != a->rank) (void)te__peer_wait_of(&v, a, turn, each, i, r);
        te_words_add(s, &v, dtype, 1);
    }
    te_words_of(sum, s, dtype);
}

/* ---- on the host ------------------------------------------------------------------------------------------------- */

/* A rank has not come in an earlier collective. */
TE_API te_status te_peers_check(const te_group *g, te_context *ctx) {
    const uint32_t failed = g->peers ? te_word_read(g->peers->failed) : 0;
    if (!failed) return TE_OK;
    g->comm->failed = 1;
    return te_fail(ctx, TE_ERROR_COMM,
                   "a collective of the %s group, rank %d of %d: rank %d has not come within %g seconds", g->name,
                   g->rank, g->size, (int)failed - 1, g->comm->timeout);
}
/* What a kernel of this group gets, but for y and x. bytes: see te_peer_args. */
TE_API te_peer_args te__peer_args_of(const te_group *g, te_peer_kind kind, te_peer_form form, int64_t bytes,
                                     te_dtype dtype) {
    const te_peers *p = g->peers;
    te_peer_args a;
    memset(&a, 0, sizeof a); /* arguments are compared byte by byte */
    a.kind = kind, a.form = form, a.bytes = bytes, a.dtype = dtype, a.rank = g->rank, a.ranks = g->size;
    memcpy(a.at, p->at, sizeof a.at), a.own = p->at[g->rank];
    a.state = p->state, a.failed = p->failed, a.half = p->half;
    a.timeout = (uint64_t)(0.9e9 * g->comm->timeout); /* so that a kernel, which knows the rank, is ahead of the host */
    return a;
}
/* The same for the kernel of `rows` rows of `bytes` each (peer_row.h), and for a product that sends to it: two-shot, a
 * rank sends another that one's share of them. */
TE_API te_peer_args te__peer_args_of_rows(const te_group *g, int64_t rows, int64_t bytes, int two_shot,
                                          te_dtype dtype) {
    const int64_t sends = two_shot ? te_ceil_div(rows, g->size) : rows;
    return te__peer_args_of(g, TE_PEER_all_reduce, two_shot ? TE_PEER_two_shot : TE_PEER_one_shot, sends * bytes,
                            dtype);
}

#endif
