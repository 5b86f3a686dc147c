/* copied_sums.h -- sums over the ranks of a group by their copy engines, for what is summed beside a backward
 * (buckets.h): no multiprocessor waits for another rank.
 *
 * NCCL's sums take 16 to 24 multiprocessors for as long as they run, some 100 us for 32 MB. A matrix product has a
 * block on each of 132, so those that find none wait until others are through, and a product that meets a sum takes up
 * to twice its time. A step of GPT-2's 124M on four H100s took 59.9 ms with these sums, 61.2 with NCCL's; in another
 * run 59.6 with these and 57.1 without any, of which 1 ms is what no backward is left for and 0.8 what the ranks wait
 * for each other. With fewer of NCCL's blocks, maxCTAs of 4, 8 and 16, it took 62.9, 62.7 and 62.3 where it took 61.3
 * to 61.9 with all. On two, beside the slower of both alone in the same minutes: 1.038 of its step, with slices and
 * shared-out states (train_gpt --zero1) 1.031; on four H200s 1.041 and 1.034 to 1.040, where half the bytes, sums in
 * bf16, take no less. On two neither these sums nor the last one nor the gathering of weights took anything measurable
 * away when left out; all of them together 3%. The power limit makes a GPU's steps vary by 1.1 to 1.5 ms (53.7 to
 * 59.6), and a step of ranks that meet in it takes what the slowest takes.
 *
 * Here a sum of N ranks' x[count] is
 *   1. each part of x, an Nth, copied to the rank that it belongs to, into its slot for this rank;
 *   2. added up there in f32, in the order of the ranks, by a kernel that waits for nobody: N + 1 times a part's bytes;
 *   3. the sum copied to all others, and from their room to x.
 * Bytes over a link: 2 (N - 1) / N of x. Copy engines bring 230 GB/s to a rank of four, so 32 MB take 0.25 ms; a
 * backward has 11 such sums in 35 ms. What no backward is left for goes by NCCL, which takes half of that. Where each
 * rank needs its slice of the sums alone (ZeRO-1), 3 has no bytes.
 *
 * Who may write where, and when. All of it is in the order of one stream. A word behind each copy says that it is
 * there; its owner's stream waits for it, sets it to 0 and goes on. Nobody asks whether a slot is empty: a rank sends
 * its next part when it has all words of the piece's sums, so their owners have added up what it sent then, and its
 * next sum when it has all parts of that piece, which their owners have sent behind their last copies out of the room.
 *
 * A stream that waits for a rank that has failed waits for ever, as NCCL's kernels do: te_comm_synchronize says so in
 * time, and te_comm_destroy lets go of it.
 */
#ifndef TE_COMM_COPIED_SUMS_H
#define TE_COMM_COPIED_SUMS_H

#include "comm.h" /* te_group */

#if TE_OVERLAPS
#include "rank_memory_cuda.h" /* te_rank_memory, te__rank_memory_open */

enum {
    TE_COPIED_PART = 0, TE_COPIED_SUM = 1, /* of the words for pieces: which kind has come */
    TE_COPIED_ALIGN = 128,                 /* elements: parts begin at multiples of so many */
    TE_COPIED_THREADS = 512
};

typedef struct te_copied_args {
    void *x;                    /* [count], a multiple of 8: this rank's part, and then the sum */
    const void *part[TE_RANKS]; /* of the others */
    int64_t count;
    int rank, ranks;
} te_copied_args;

TE_FN void te__copied_add(const te_copied_args *a, te_block b, const te_dtype dtype) {
    const int64_t stride = 8 * (int64_t)b.nx * TE_COPIED_THREADS;
    for (int64_t i = 8 * ((int64_t)b.x * TE_COPIED_THREADS + threadIdx.x); i < a->count; i += stride) {
        float sum[8], next[8];
        te_load8(sum, a->rank ? a->part[0] : a->x, i, 8, 1, dtype);
        for (int r = 1; r < a->ranks; r++) {
            te_load8(next, r == a->rank ? a->x : a->part[r], i, 8, 1, dtype);
            TE_UNROLL for (int e = 0; e < 8; e++) sum[e] += next[e];
        }
        te_store8(a->x, i, sum, 8, 1, dtype);
    }
}
TE_KERNEL_IF_USED(te_copied_add_f32, TE_COPIED_THREADS, 2, te_copied_args, te__copied_add(te_args, te_at, TE_f32))
TE_KERNEL_IF_USED(te_copied_add_bf16, TE_COPIED_THREADS, 2, te_copied_args, te__copied_add(te_args, te_at, TE_bf16))

/* The room of each rank: slots for the parts that others send, and for their sums. */
typedef struct te__copied {
    const te_rank_memory *m;
    cudaStream_t stream;
    char *x;
    te_dtype dtype;
    int keeps;           /* each rank its own sum; 0: all get all sums */
    int64_t count, part; /* of all parts, and of the part of a rank but the last ones */
    int64_t stride;      /* from one rank's part to the next one's */
    int64_t slot;        /* elements */
} te__copied;

TE_API int64_t te__copied_count(const te__copied *c, int r) {
    return te_max(te_min(c->part, c->count - r * c->part), 0);
}
TE_API size_t te__copied_bytes(const te__copied *c, int r) {
    return (size_t)te__copied_count(c, r) * te_dtype_bytes(c->dtype);
}
/* Rank r's part. */
TE_API char *te__copied_part(const te__copied *c, int r) {
    return c->x + (size_t)(r * c->stride) * te_dtype_bytes(c->dtype);
}
/* Where `to` has room for what `from` sends. */
TE_API char *te__copied_slot(const te__copied *c, int to, int from, int kind) {
    const int64_t slot = from - (from > to) + kind * (c->m->ranks - 1);
    return te__rank_room(c->m, to) + (size_t)(slot * c->slot) * te_dtype_bytes(c->dtype);
}
TE_API te_status te__copied_copy(const te__copied *c, void *to, const void *from, size_t bytes, te_context *ctx) {
    return te__cuda_status(ctx, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, c->stream),
                           "sums over ranks");
}
/* To all others, the one before this rank first, so that each gets from one at a time: of a sum this rank's or, where
 * each keeps its own, the word alone; of parts theirs. */
TE_API te_status te__copied_send(const te__copied *c, int kind, te_context *ctx) {
    const te_rank_memory *m = c->m;
    for (int k = 1; k < m->ranks; k++) {
        const int to = (m->rank + m->ranks - k) % m->ranks, of = kind == TE_COPIED_PART ? to : m->rank;
        if (te__copied_bytes(c, of) && (kind == TE_COPIED_PART || !c->keeps))
            TE_TRY(te__copied_copy(c, te__copied_slot(c, to, m->rank, kind), te__copied_part(c, of),
                                   te__copied_bytes(c, of), ctx));
        TE_TRY(te__rank_write(m, te__rank_arrived(m, to, m->rank, kind), 1, c->stream, ctx));
    }
    return TE_OK;
}
/* Until what all others send is there. */
TE_API te_status te__copied_wait(const te__copied *c, int kind, te_context *ctx) {
    const te_rank_memory *m = c->m;
    for (int k = 1; k < m->ranks; k++) {
        uint32_t *const word = te__rank_arrived(m, m->rank, (m->rank + k) % m->ranks, kind);
        TE_TRY(te__rank_await(m, word, 1, c->stream, ctx));
        TE_TRY(te__rank_write(m, word, 0, c->stream, ctx));
    }
    return TE_OK;
}
TE_IF_USED TE_API te_status te__copied_piece(const te__copied *c, te_context *ctx) {
    const te_rank_memory *m = c->m;
    te_copied_args a;
    TE_TRY(te__copied_send(c, TE_COPIED_PART, ctx));
    TE_TRY(te__copied_wait(c, TE_COPIED_PART, ctx));
    memset(&a, 0, sizeof a);
    a.x = te__copied_part(c, m->rank), a.count = te__copied_count(c, m->rank);
    a.rank = m->rank, a.ranks = m->ranks;
    for (int r = 0; r < m->ranks; r++)
        if (r != m->rank) a.part[r] = te__copied_slot(c, m->rank, r, TE_COPIED_PART);
    const te_grid grid = te_grid_of(te_min(2 * ctx->processors, te_ceil_div(a.count, 8 * TE_COPIED_THREADS)), 1);
    if (a.count)
        TE_TRY(c->dtype == TE_f32 ? te_copied_add_f32_launch(ctx, grid, &a) : te_copied_add_bf16_launch(ctx, grid, &a));
    TE_TRY(te__copied_send(c, TE_COPIED_SUM, ctx));
    TE_TRY(te__copied_wait(c, TE_COPIED_SUM, ctx));
    for (int r = 0; r < m->ranks && !c->keeps; r++)
        if (r != m->rank && te__copied_bytes(c, r))
            TE_TRY(te__copied_copy(c, te__copied_part(c, r), te__copied_slot(c, m->rank, r, TE_COPIED_SUM),
                                   te__copied_bytes(c, r), ctx));
    return TE_OK;
}
TE_API te__copied te__copied_of(const te_group *g, te_dtype dtype, const te_context *ctx) {
    te__copied c;
    memset(&c, 0, sizeof c);
    c.m = g->memory, c.stream = (cudaStream_t)ctx->stream, c.dtype = dtype;
    c.slot = (int64_t)(c.m->room / te_dtype_bytes(dtype)) / (2 * (g->size - 1)) / TE_COPIED_ALIGN * TE_COPIED_ALIGN;
    return c;
}
/* x[count], f32 or bf16, a multiple of TE_COPIED_ALIGN, becomes the sum over the ranks of g, which has memory. Enqueued
 * on ctx->stream, the same one each time. */
TE_IF_USED TE_API te_status te__copied_sum(const te_group *g, void *x, int64_t count, te_dtype dtype, te_context *ctx) {
    te__copied c = te__copied_of(g, dtype, ctx);
    TE_TRY(te_peers_check(&g->comm->data, ctx));
    for (int64_t at = 0; at < count; at += g->size * c.slot) {
        c.x = (char *)x + (size_t)at * te_dtype_bytes(dtype), c.count = te_min(count - at, g->size * c.slot);
        c.part = c.stride = te_round_up(te_ceil_div(c.count, g->size), TE_COPIED_ALIGN);
        TE_TRY(te__copied_piece(&c, ctx));
    }
    return TE_OK;
}
/* Of x[ranks][count] this rank's row becomes the sum over the ranks; the rest stays. */
TE_IF_USED TE_API te_status te__copied_slices(const te_group *g, void *x, int64_t count, te_dtype dtype,
                                              te_context *ctx) {
    te__copied c = te__copied_of(g, dtype, ctx);
    TE_TRY(te_peers_check(&g->comm->data, ctx));
    c.keeps = 1, c.stride = count;
    for (int64_t at = 0; at < count; at += c.slot) {
        c.x = (char *)x + (size_t)at * te_dtype_bytes(dtype), c.part = te_min(c.slot, count - at);
        c.count = g->size * c.part;
        TE_TRY(te__copied_piece(&c, ctx));
    }
    return TE_OK;
}
/* Let g's ranks have room for sums of `bytes`, if they map each other's memory; it stays as long as the communicator.
 * All of them call it. */
TE_API te_status te__copied_open(te_group *g, int64_t bytes, te_context *ctx) {
    const int64_t slot = te_round_up(te_ceil_div(bytes, g->size), TE_COPIED_ALIGN * (int64_t)sizeof(float));
    return g->memory || !g->peers ? TE_OK : te__rank_memory_open(g, 2 * (g->size - 1) * slot, ctx);
}
#else
TE_API te_status te__copied_sum(const te_group *g, void *x, int64_t count, te_dtype dtype, te_context *ctx) {
    return te_group_all_reduce(g, x, x, count, dtype, ctx);
}
TE_API te_status te__copied_slices(const te_group *g, void *x, int64_t count, te_dtype dtype, te_context *ctx) {
    char *own = (char *)x + (size_t)(g->rank * count) * te_dtype_bytes(dtype);
    return te_group_reduce_scatter(g, own, x, count, dtype, ctx);
}
TE_API te_status te__copied_open(te_group *g, int64_t bytes, te_context *ctx) {
    return (void)g, (void)bytes, (void)ctx, TE_OK;
}
#endif

#endif
