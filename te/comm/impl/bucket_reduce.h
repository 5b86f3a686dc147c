/* bucket_reduce.h -- sums the gradients of a bucket (buckets.h) over the data group, in f32 or bf16. Either each rank
 * gets all sums (all-reduce) or only the sums of its own shard (reduce-scatter, for ZeRO-1). DMA engines, NCCL or MPI
 * transfer the data.
 *
 * DMA engines copy between GPUs without any multiprocessor, so a reduction during backward does not slow backward's
 * GEMMs down (NCCL's kernels occupy 16 to 24 multiprocessors; docs/notes/comm.md has the times). x[count] are the
 * gradients of the bucket. With N ranks, x consists of N shards, one for each rank:
 *   1. each rank copies each shard to the rank that owns the shard, into the owner's slot for copies from this sender;
 *   2. on the owner a kernel adds the owner's shard and slots, in f32 and in rank order (reads N shards, writes one);
 *   3. the owner copies the sum into a slot on each other rank, and that rank copies it from the slot into x. A
 *      reduce-scatter ends with step 2.
 * In an all-reduce each rank sends 2 * (N - 1) / N times the size of x; with four ranks each rank sends at 230 GB/s.
 * NCCL takes half as long, so NCCL reduces the buckets for which no GEMM of backward is left to overlap with.
 *
 * Synchronisation: after each copy the sender writes a flag on the receiver, whose stream waits for the flag and resets
 * the flag. x is reduced in pieces, so small that a shard of a piece fits into a slot. Senders need not check that a
 * slot is empty, because each rank runs these operations in order on one stream. In step 1, a rank sends shards of the
 * next piece only after it has received all sums of this piece, which owners send after they have read their slots. In
 * step 3, an owner sends the sum for the next piece only after all other ranks have sent their shards of the next
 * piece; each rank sends these only after it has copied this piece's sums out of its slots.
 *
 * If a rank has failed, a stream that waits for its flag waits forever, like NCCL's kernels. te_comm_synchronize then
 * returns an error after the timeout, and te_comm_destroy releases the stream.
 */
#ifndef TE_COMM_BUCKET_REDUCE_H
#define TE_COMM_BUCKET_REDUCE_H

#include "../../core/tensor_kernels.h" /* te_convert */
#include "../../plan/bind.h"    /* te_model, te__slice_elements */
#include "../comm.h"            /* te_group */

/* ---- by DMA engines ---------------------------------------------------------------------------------------------- */

#if TE_HAS_COMM_OVERLAP
#include "symmetric_memory_cuda.h" /* te__overlap_memory, te__overlap_memory_open */

enum {
    /* the kind of data that a copy contains: a shard, or the sum of a shard. The kind is also the index of the flag
     * that is written after the copy */
    TE_DMA_SHARD = 0, TE_DMA_SUM = 1,
    TE_DMA_ALIGN = 128,               /* shards begin at multiples of this number of elements */
    TE_DMA_THREADS = 512
};

typedef struct te_dma_add_args {
    /* [count]: on entry this rank's values of the shard that this rank sums, on return the sum over the ranks */
    void *x;
    const void *shard[TE_MAX_RANKS]; /* shard[r] is [count]: the values of this shard that rank r has sent */
    int64_t count;               /* a multiple of 8 */
    int rank, ranks;
} te_dma_add_args;

TE_FN void te__dma_add(const te_dma_add_args *a, te_block b, const te_dtype dtype) {
    const int64_t stride = 8 * (int64_t)b.nx * TE_DMA_THREADS;
    for (int64_t i = 8 * ((int64_t)b.x * TE_DMA_THREADS + threadIdx.x); i < a->count; i += stride) {
        float sum[8], next[8];
        te_load8(sum, a->rank ? a->shard[0] : a->x, i, 8, 1, dtype);
        for (int r = 1; r < a->ranks; r++) {
            te_load8(next, r == a->rank ? a->x : a->shard[r], i, 8, 1, dtype);
            TE_UNROLL for (int e = 0; e < 8; e++) sum[e] += next[e];
        }
        te_store8(a->x, i, sum, 8, 1, dtype);
    }
}
TE_KERNEL_IF_USED(te_dma_add_f32, TE_DMA_THREADS, 2, te_dma_add_args, te__dma_add(te_args, te_at, TE_f32))
TE_KERNEL_IF_USED(te_dma_add_bf16, TE_DMA_THREADS, 2, te_dma_add_args, te__dma_add(te_args, te_at, TE_bf16))

/* The reduction of one piece of x, the gradients of a bucket. A bucket is cut into pieces that are so small that each
 * of a piece's shards fits into a slot. Each rank has two slots for each other rank, one for that rank's shards and one
 * for that rank's sums. */
typedef struct te__dma_reduce {
    const te__overlap_memory *m;
    cudaStream_t stream;
    char *x;
    te_dtype dtype;
    int scatter_only;     /* 1 if the operation is a reduce-scatter, which does not send the sums (step 3 at the head of
                           * this file) */
    /* count: the number of elements in the piece; shard: the number of elements in each shard of the piece (the last
     * shards may have fewer) */
    int64_t count, shard;
    int64_t stride;       /* the distance in x, in elements, between the beginnings of two neighbouring shards */
    int64_t slot;         /* the number of elements that fit into a slot */
} te__dma_reduce;

TE_API int64_t te__dma_shard_count(const te__dma_reduce *c, int r) {
    return te_max(te_min(c->shard, c->count - r * c->shard), 0);
}
TE_API size_t te__dma_shard_bytes(const te__dma_reduce *c, int r) {
    return (size_t)te__dma_shard_count(c, r) * te_dtype_bytes(c->dtype);
}
TE_API char *te__dma_shard(const te__dma_reduce *c, int r) {
    return c->x + (size_t)(r * c->stride) * te_dtype_bytes(c->dtype);
}
/* Returns the address of the slot on rank `to` for the copies from rank `from`. kind: TE_DMA_SHARD or TE_DMA_SUM. */
TE_API char *te__dma_slot(const te__dma_reduce *c, int to, int from, int kind) {
    const int64_t slot = from - (from > to) + kind * (c->m->ranks - 1);
    return te__overlap_workspace(c->m, to) + (size_t)(slot * c->slot) * te_dtype_bytes(c->dtype);
}
TE_API te_status te__dma_copy(const te__dma_reduce *c, void *to, const void *from, size_t bytes, te_context *ctx) {
    return te__cuda_status(ctx, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, c->stream),
                           "sums over ranks");
}
/* TE_DMA_SHARD: copies to each other rank that rank's shard of x. TE_DMA_SUM: copies this rank's sum to all other
 * ranks. After each copy the stream writes a flag in the receiver's memory. A rank first sends to the rank before it
 * (rank - 1), then to rank - 2 and so on, so that each rank receives from only one rank at a time. */
TE_API te_status te__dma_send(const te__dma_reduce *c, int kind, te_context *ctx) {
    const te__overlap_memory *m = c->m;
    for (int k = 1; k < m->ranks; k++) {
        const int to = (m->rank + m->ranks - k) % m->ranks, shard = kind == TE_DMA_SHARD ? to : m->rank;
        if (te__dma_shard_bytes(c, shard) && (kind == TE_DMA_SHARD || !c->scatter_only))
            TE_TRY(te__dma_copy(c, te__dma_slot(c, to, m->rank, kind), te__dma_shard(c, shard),
                                te__dma_shard_bytes(c, shard), ctx));
        TE_TRY(te__stream_write_flag(m, te__gather_flag(m, to, m->rank, kind), 1, c->stream, ctx));
    }
    return TE_OK;
}
/* Makes the stream wait for the flags that the other ranks write in this rank's memory after their copies, and reset
 * these flags. */
TE_API te_status te__dma_wait(const te__dma_reduce *c, int kind, te_context *ctx) {
    const te__overlap_memory *m = c->m;
    for (int k = 1; k < m->ranks; k++) {
        uint32_t *const flag = te__gather_flag(m, m->rank, (m->rank + k) % m->ranks, kind);
        TE_TRY(te__stream_wait_flag(m, flag, 1, c->stream, ctx));
        TE_TRY(te__stream_write_flag(m, flag, 0, c->stream, ctx));
    }
    return TE_OK;
}
TE_IF_USED TE_API te_status te__dma_reduce_piece(const te__dma_reduce *c, te_context *ctx) {
    const te__overlap_memory *m = c->m;
    te_dma_add_args a;
    TE_TRY(te__dma_send(c, TE_DMA_SHARD, ctx));
    TE_TRY(te__dma_wait(c, TE_DMA_SHARD, ctx));
    memset(&a, 0, sizeof a);
    a.x = te__dma_shard(c, m->rank), a.count = te__dma_shard_count(c, m->rank);
    a.rank = m->rank, a.ranks = m->ranks;
    for (int r = 0; r < m->ranks; r++)
        if (r != m->rank) a.shard[r] = te__dma_slot(c, m->rank, r, TE_DMA_SHARD);
    const te_grid grid = te__grid_of(te_min(2 * ctx->processors, te_ceil_div(a.count, 8 * TE_DMA_THREADS)), 1);
    if (a.count)
        TE_TRY(c->dtype == TE_f32 ? te_dma_add_f32_launch(ctx, grid, &a) : te_dma_add_bf16_launch(ctx, grid, &a));
    TE_TRY(te__dma_send(c, TE_DMA_SUM, ctx));
    TE_TRY(te__dma_wait(c, TE_DMA_SUM, ctx));
    for (int r = 0; r < m->ranks && !c->scatter_only; r++)
        if (r != m->rank && te__dma_shard_bytes(c, r))
            TE_TRY(te__dma_copy(c, te__dma_shard(c, r), te__dma_slot(c, m->rank, r, TE_DMA_SUM),
                                te__dma_shard_bytes(c, r), ctx));
    return TE_OK;
}
TE_API te__dma_reduce te__dma_reduce_of(const te_group *g, te_dtype dtype, const te_context *ctx) {
    te__dma_reduce c;
    memset(&c, 0, sizeof c);
    c.m = g->memory, c.stream = (cudaStream_t)ctx->stream, c.dtype = dtype;
    c.slot = (int64_t)(c.m->capacity / te_dtype_bytes(dtype)) / (2 * (g->size - 1)) / TE_DMA_ALIGN * TE_DMA_ALIGN;
    return c;
}
/* Replaces x[count], f32 or bf16, by its sum over the ranks of g. g->memory must exist. count: a multiple of
 * TE_DMA_ALIGN. The work is enqueued on ctx->stream. All calls must use the same stream: only the order on this stream
 * guarantees that a slot (memory for one sender's data) is empty before it is written (see the head of this file). */
TE_IF_USED TE_API te_status te__dma_all_reduce(const te_group *g, void *x, int64_t count, te_dtype dtype,
                                               te_context *ctx) {
    te__dma_reduce c = te__dma_reduce_of(g, dtype, ctx);
    TE_TRY(te__peers_check(&g->comm->data, ctx));
    for (int64_t at = 0; at < count; at += g->size * c.slot) {
        c.x = (char *)x + (size_t)at * te_dtype_bytes(dtype), c.count = te_min(count - at, g->size * c.slot);
        c.shard = c.stride = te_round_up(te_ceil_div(c.count, g->size), TE_DMA_ALIGN);
        TE_TRY(te__dma_reduce_piece(&c, ctx));
    }
    return TE_OK;
}
/* Replaces row r of x, [ranks, count], by the sum of row r over all ranks, where r is this rank's number in g. All
 * other rows of x stay as they are. */
TE_IF_USED TE_API te_status te__dma_reduce_scatter(const te_group *g, void *x, int64_t count, te_dtype dtype,
                                                   te_context *ctx) {
    te__dma_reduce c = te__dma_reduce_of(g, dtype, ctx);
    TE_TRY(te__peers_check(&g->comm->data, ctx));
    c.scatter_only = 1, c.stride = count;
    for (int64_t at = 0; at < count; at += c.slot) {
        c.x = (char *)x + (size_t)at * te_dtype_bytes(dtype), c.shard = te_min(c.slot, count - at);
        c.count = g->size * c.shard;
        TE_TRY(te__dma_reduce_piece(&c, ctx));
    }
    return TE_OK;
}
/* Allocates the slots, if the ranks of g have symmetric memory. All ranks must call this function. The slots stay
 * allocated until te_comm_destroy. bytes: the size of the largest piece of gradients that is reduced at once. */
TE_API te_status te__dma_open(te_group *g, int64_t bytes, te_context *ctx) {
    const int64_t slot_bytes = te_round_up(te_ceil_div(bytes, g->size), TE_DMA_ALIGN * (int64_t)sizeof(float));
    return g->memory || !g->peers ? TE_OK : te__overlap_memory_open(g, 2 * (g->size - 1) * slot_bytes, ctx);
}
#else
TE_API te_status te__dma_all_reduce(const te_group *g, void *x, int64_t count, te_dtype dtype, te_context *ctx) {
    return te_group_all_reduce(g, x, x, count, dtype, ctx);
}
TE_API te_status te__dma_reduce_scatter(const te_group *g, void *x, int64_t count, te_dtype dtype, te_context *ctx) {
    char *local = (char *)x + (size_t)(g->rank * count) * te_dtype_bytes(dtype);
    return te_group_reduce_scatter(g, local, x, count, dtype, ctx);
}
TE_API te_status te__dma_open(te_group *g, int64_t bytes, te_context *ctx) {
    return (void)g, (void)bytes, (void)ctx, TE_OK;
}
#endif

/* ---- by DMA engines, NCCL or MPI, depending on te_buckets_config ------------------------------------------------- */

typedef struct te_bucket_reducer {
    te_context *ctx;
    /* a copy of the data group whose `peers` is null, so that its collectives use NCCL: kernels of symmetric memory
     * would occupy all multiprocessors during backward */
    te_group data;
    te_dtype dtype;
    /* [elements]: a buffer for gradients that are converted to bf16 before they are sent; null if gradients are sent in
     * f32, and are summed in place */
    void *staging;
    int64_t elements;
} te_bucket_reducer;

TE_API void te__bucket_reducer_close(te_bucket_reducer *s) {
    if (s->staging) te_release(s->ctx, s->staging);
    s->staging = 0;
}
/* Prepares the reduction of buckets. bytes: the size of a bucket, counting 4 bytes for each element
 * (te_buckets_config.bytes). dtype: the format in which gradients and their sums are sent. dma: 1 to use DMA engines if
 * the ranks have symmetric memory, 0 to use only NCCL or MPI. */
TE_IF_USED TE_API te_status te__bucket_reducer_open(te_bucket_reducer *s, int64_t bytes, te_dtype dtype, int dma,
                                                    te_context *ctx) {
    s->ctx = ctx, s->staging = 0;
    const int64_t elements = te_ceil_div(bytes, (int64_t)sizeof(float)), size = (int64_t)te_dtype_bytes(dtype);
    if (ctx->comm && dma) TE_TRY(te__dma_open(&ctx->comm->data, elements * size, ctx));
    s->data = *te_data_group(ctx), s->data.peers = 0, s->dtype = dtype;
    if (!dma) s->data.memory = 0;
    if (dtype == TE_f32 || s->data.size == 1) return TE_OK;
    s->elements = te_round_up(elements, s->data.size * (int64_t)TE_PARAM_ALIGN);
    return te_allocate(ctx, &s->staging, (size_t)(s->elements * size));
}
/* Replaces x[count] of format `dtype` by its sum over the group. hidden is 1 if GEMMs of backward run at the same time
 * as the reduction; then DMA engines reduce x, if te__dma_open has allocated slots for the group. Otherwise NCCL or MPI
 * reduces x. */
TE_IF_USED TE_API te_status te__bucket_all_reduce_as(const te_bucket_reducer *s, void *x, int64_t count,
                                                     te_dtype dtype, int hidden, te_context *ctx) {
    if (s->data.memory && hidden) return te__dma_all_reduce(&s->data, x, count, dtype, ctx);
    return te_group_all_reduce(&s->data, x, x, count, dtype, ctx);
}
/* Replaces x[count], in f32, by its sum over the group. The values and the sums are sent in the format s->dtype.
 * hidden: as in te__bucket_all_reduce_as. */
TE_IF_USED TE_API te_status te__bucket_all_reduce(const te_bucket_reducer *s, float *x, int64_t count, int hidden,
                                                  te_context *ctx) {
    if (s->dtype == TE_f32) return te__bucket_all_reduce_as(s, x, count, TE_f32, hidden, ctx);
    for (int64_t at = 0; at < count; at += s->elements) {
        const int64_t n = te_min(s->elements, count - at);
        TE_TRY(te_convert(s->staging, s->dtype, x + at, TE_f32, n, ctx));
        TE_TRY(te__bucket_all_reduce_as(s, s->staging, n, s->dtype, hidden, ctx));
        TE_TRY(te_convert(x + at, TE_f32, s->staging, s->dtype, n, ctx));
    }
    return TE_OK;
}
/* Replaces row r of x, [ranks, count] in the format `dtype`, by the sum of row r over all ranks, where r is this rank's
 * number in the group. hidden: as in te__bucket_all_reduce_as. */
TE_IF_USED TE_API te_status te__bucket_reduce_scatter_as(const te_bucket_reducer *s, void *x, int64_t count,
                                                         te_dtype dtype, int hidden, te_context *ctx) {
    char *const local = (char *)x + (size_t)(s->data.rank * count) * te_dtype_bytes(dtype);
    if (s->data.memory && hidden) return te__dma_reduce_scatter(&s->data, x, count, dtype, ctx);
    return te_group_reduce_scatter(&s->data, local, x, count, dtype, ctx);
}
/* Reduces a model's gradients such that this rank gets only the sums of its own shard (te__slice_elements). The size of
 * a shard is rounded down, so a few elements lie behind the last shard; all ranks get the sums of these elements. Each
 * rank sends half as many bytes as in an all-reduce. A shard is a range of the gradient buffer, so if the range
 * includes gradients of frozen parameters, these gradients are sent as well. */
TE_IF_USED TE_API te_status te__bucket_reduce_scatter(const te_bucket_reducer *s, const te_model *m, int shards,
                                                      int hidden, te_context *ctx) {
    float *const grads = (float *)(uintptr_t)m->grads;
    const int64_t shard = te__slice_elements(m->elements, shards), rest = shard * shards;
    if (s->dtype == TE_f32) TE_TRY(te__bucket_reduce_scatter_as(s, grads, shard, TE_f32, hidden, ctx));
    for (int64_t at = 0; s->dtype != TE_f32 && at < shard; at += s->elements / shards) {
        const int64_t n = te_min(s->elements / shards, shard - at);
        const size_t bytes = (size_t)n * te_dtype_bytes(s->dtype);
        char *const local = (char *)s->staging + (size_t)s->data.rank * bytes;
        for (int r = 0; r < shards; r++)
            TE_TRY(te_convert((char *)s->staging + (size_t)r * bytes, s->dtype, grads + r * shard + at, TE_f32, n,
                              ctx));
        TE_TRY(te__bucket_reduce_scatter_as(s, s->staging, n, s->dtype, hidden, ctx));
        TE_TRY(te_convert(grads + s->data.rank * shard + at, TE_f32, local, s->dtype, n, ctx));
    }
    return te__bucket_all_reduce(s, grads + rest, m->elements - rest, hidden, ctx);
}

#endif
