/* token_exchange.h -- sends rows of tokens to the ranks of their experts, and returns the experts' results
 * (all-to-all).
 *
 *   te__tokens_dispatch   sends each of this rank's rows once to every rank that holds one of the token's experts
 *   te__tokens_return     the opposite: each of these ranks sends a row of partial sums back to the rank of the token
 *   te_token_sum          adds the partial sums of a token, in f32 and in the order of the ranks
 *
 * Each of N ranks has tokens / N tokens, in the order of the ranks. Every rank knows the experts of all tokens, so no
 * counts are sent. A rank receives the row of a token as row `token` of [tokens, width]; rows that no expert of this
 * rank needs are not written. For each token a rank sends one row to each other rank that has an expert of the token,
 * instead of N - 1 rows in an all-gather.
 *
 *   host                MPI messages: the rows for a rank are packed, in the order of the tokens.
 *   CUDA, mapped memory (te_comm_config.overlap_bytes): a kernel stores the rows in the memory of the other ranks,
 *                       between two barriers. The first barrier, the handshake, says that the memory is free; the
 *                       second, te__token_arrival, says that all rows have arrived. The host reads no count.
 *   CUDA, otherwise     All-gather replaces the dispatch, and reduce-scatter the return. These collectives send a row
 *                       of each token to each rank. Messages of NCCL are not used, because the host would have to read
 *                       the number of rows.
 */
#ifndef TE_OPS_TOKEN_EXCHANGE_H
#define TE_OPS_TOKEN_EXCHANGE_H

#include "../../core/rank_group.h"             /* te_group, te_group_exchange */
#include "../../core/target.h"                 /* TE_KERNEL_IF_USED */
#include "../../core/tensor.h"                 /* te_load8, te_store8 */
#include "../../gemm/impl/gemm_comm_overlap.h" /* te__overlap_memory, te__handshake_run */
#include "../../plan/impl/storage.h"           /* te_run, te__convert_value */

typedef struct te_token_exchange {
    const te_group *group;
    const int32_t *expert; /* [tokens, top_k], target memory: the experts of the tokens of all ranks */
    int64_t tokens;        /* number of tokens of all ranks together */
    int top_k, experts;    /* experts: number of experts of each rank; rank 0 has the first experts */
    int width;             /* number of columns of a row, a multiple of eight */
    te_dtype dtype;
} te_token_exchange;

/* Returns whether a rank has one of a token's experts. expert: [top_k], the token's experts; experts: number of experts
 * of each rank. */
TE_BOTH int te__token_visits(const int32_t *expert, int top_k, int experts, int rank) {
    for (int j = 0; j < top_k; j++)
        if ((unsigned)(expert[j] - rank * experts) < (unsigned)experts) return 1;
    return 0;
}
TE_API int64_t te__token_row_bytes(const te_token_exchange *e) { return e->width * (int64_t)te_dtype_bytes(e->dtype); }

/* ---- the sum of a token's partial sums --------------------------------------------------------------------------- */

enum { TE_TOKEN_LANES = TE_CUDA ? 32 : 1, TE_TOKEN_WARPS = TE_CUDA ? 8 : 1 };
typedef struct te_token_sum_args {
    const void *part;      /* [parts, tokens, width]: the partial sums that each rank has returned */
    const int32_t *expert; /* [tokens, top_k]: the experts of this rank's tokens */
    const float *more;     /* [tokens, width], is added to the sum; or null */
    void *y;               /* [tokens, width] */
    int64_t tokens;        /* number of tokens of this rank */
    int parts, top_k, experts, width; /* parts is 1 if `part` is already the sum over the ranks */
    te_dtype in, out;
} te_token_sum_args;
/* A warp adds up the partial sums of one token. Memory traffic: reads a row for each rank with an expert of the token,
 * writes y. */
TE_FN void te_token_sum_body(const te_token_sum_args *a, te_block b) {
    int group;
    const te_lanes g = te_lanes_here(TE_TOKEN_LANES * TE_TOKEN_WARPS, &group);
    const int64_t token = (int64_t)b.x * TE_TOKEN_WARPS + g.id / TE_TOKEN_LANES;
    if (token >= a->tokens) return;
    for (int c = g.id % TE_TOKEN_LANES * 8; c < a->width; c += TE_TOKEN_LANES * 8) {
        const int64_t at = token * a->width + c;
        float v[8], sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (int p = 0; p < a->parts; p++) {
            if (a->parts > 1 && !te__token_visits(a->expert + token * a->top_k, a->top_k, a->experts, p)) continue;
            te_load8_coherent(v, a->part, p * a->tokens * a->width + at, 8, 1, a->in);
            TE_UNROLL for (int i = 0; i < 8; i++) sum[i] += v[i];
        }
        if (a->more) {
            te_load8(v, a->more, at, 8, 1, TE_f32);
            TE_UNROLL for (int i = 0; i < 8; i++) sum[i] += v[i];
        }
        te_store8(a->y, at, sum, 8, 1, a->out);
    }
}
TE_KERNEL_IF_USED(te_token_sum, TE_TOKEN_LANES * TE_TOKEN_WARPS, 1, te_token_sum_args,
                  te_token_sum_body(te_args, te_at))

/* ---- rows stored in the memory of other ranks -------------------------------------------------------------------- */

/* The arguments of te_token_send. The row of a token lies at from + (token - first) * row_bytes. With home 0, the rows
 * of this rank's tokens are sent to the ranks of their experts. With home 1, the rows that this rank has computed for
 * tokens of other ranks are sent back to these ranks. to[r]: the address, in the memory of rank r, of the row of token
 * 0 or, with home 1, of rank r's first token. */
typedef struct te_token_send_args {
    const char *from;
    const int32_t *expert; /* [tokens of all ranks, top_k] */
    char *to[TE_MAX_RANKS];
    int64_t first, count, row_bytes; /* the tokens first to first + count - 1 are sent; row_bytes: a multiple of 16 */
    int64_t rank_tokens;             /* tokens of each rank */
    int rank, ranks, top_k, experts, home;
} te_token_send_args;
TE_FN void te__token_copy(char *to, const char *from, int64_t bytes, int lane) {
#if TE_CUDA
    for (int64_t at = lane * 16; at < bytes; at += TE_TOKEN_LANES * 16)
        *(uint4 *)(to + at) = *(const uint4 *)(from + at);
#else
    (void)lane, memcpy(to, from, (size_t)bytes);
#endif
}
/* A warp sends one token. Memory traffic: reads each row once, and stores it once for each rank to which it is sent. */
TE_FN void te_token_send_body(const te_token_send_args *a, te_block b) {
    int group;
    const te_lanes g = te_lanes_here(TE_TOKEN_LANES * TE_TOKEN_WARPS, &group);
    const int lane = g.id % TE_TOKEN_LANES;
    const int64_t i = (int64_t)b.x * TE_TOKEN_WARPS + g.id / TE_TOKEN_LANES, token = a->first + i;
    if (i >= a->count) return;
    const char *row = a->from + i * a->row_bytes;
    const int32_t *expert = a->expert + token * a->top_k;
    if (a->home) {
        const int home = (int)(token / a->rank_tokens);
        char *to = a->to[home] + (token - home * a->rank_tokens) * a->row_bytes;
        if (te__token_visits(expert, a->top_k, a->experts, a->rank)) te__token_copy(to, row, a->row_bytes, lane);
        return;
    }
    for (int k = 0; k < a->ranks; k++) { /* each rank begins with a different destination, so that not all ranks store
                                          * to the same rank at once */
        const int to = (a->rank + k) % a->ranks;
        if (!k || te__token_visits(expert, a->top_k, a->experts, to))
            te__token_copy(a->to[to] + token * a->row_bytes, row, a->row_bytes, lane);
    }
}
TE_KERNEL_IF_USED(te_token_send, TE_TOKEN_LANES * TE_TOKEN_WARPS, 1, te_token_send_args,
                  te_token_send_body(te_args, te_at))
/* Sets *a so that rank `rank` sends the rows of exchange e. at[r]: the address at which rank r receives rows. */
TE_API void te__token_send_args_of(te_token_send_args *a, const te_token_exchange *e, const void *from,
                                   char *const *at, int rank, int ranks, int home) {
    memset(a, 0, sizeof *a);
    a->from = (const char *)from, a->expert = e->expert, a->row_bytes = te__token_row_bytes(e), a->home = home;
    a->rank = rank, a->ranks = ranks, a->rank_tokens = e->tokens / ranks, a->top_k = e->top_k, a->experts = e->experts;
    a->first = home ? 0 : rank * a->rank_tokens, a->count = home ? e->tokens : a->rank_tokens;
    for (int r = 0; r < ranks; r++) a->to[r] = at[r] + (home ? rank * a->rank_tokens * a->row_bytes : 0);
}

#if TE_HAS_COMM_OVERLAP
/* Tells all other ranks that this rank has stored its rows, and waits until all other ranks have stored their rows. The
 * kernel te_token_send has already finished, because it precedes this kernel in the same stream. This kernel has a
 * single block, so that waiting occupies only one multiprocessor. */
TE_FN void te__token_arrival_body(const te__handshake_args *a) {
    const int id = (int)threadIdx.x;
    uint32_t *own = a->flags[a->rank];
    if (id >= a->ranks || id == a->rank) return;
    const uint32_t epoch = own[TE_FLAG_EPOCH];
    te__flag_signal(a->flags[id] + TE_FLAG_SENT + a->rank, epoch);
    te__flag_wait(own + TE_FLAG_SENT + id, epoch, id, &a->timeout);
}
TE_KERNEL_IF_USED(te__token_arrival, TE_HANDSHAKE_THREADS, 1, te__handshake_args, te__token_arrival_body(te_args))

/* Returns the mapped memory if the rows fit into it, else null; the caller then uses all-gather and reduce-scatter. */
TE_API te__overlap_memory *te__token_memory(const te_token_exchange *e) {
    te__overlap_memory *m = e->group->size > 1 ? e->group->memory : 0;
    return m && (size_t)(e->tokens * te__token_row_bytes(e)) <= m->capacity ? m : 0;
}
/* Stores this rank's rows in the mapped memory of the other ranks, and waits until the other ranks' rows are in this
 * rank's mapped memory. */
TE_IF_USED TE_API te_status te__tokens_send(const te_token_exchange *e, const te__overlap_memory *m, const void *from,
                                            int home, te_context *ctx) {
    te_token_send_args a;
    te__handshake_args arrival;
    char *at[TE_MAX_RANKS];
    memset(&arrival, 0, sizeof arrival);
    for (int r = 0; r < m->ranks; r++) at[r] = te__overlap_workspace(m, r), arrival.flags[r] = te__rank_flags(m, r);
    arrival.rank = m->rank, arrival.ranks = m->ranks, arrival.timeout = te__peer_timeout_of(m);
    te__token_send_args_of(&a, e, from, at, m->rank, m->ranks, home);
    TE_TRY(te__handshake_run(m, ctx));
    TE_TRY(te_token_send_launch(ctx, te__grid_of(te_ceil_div(a.count, TE_TOKEN_WARPS), 1), &a));
    return te__token_arrival_launch(ctx, te__grid_of(1, 1), &arrival);
}
#endif

/* ---- host: messages ---------------------------------------------------------------------------------------------- */

/* Packs the rows of those tokens of rank `home` that have an expert on rank `visited`: copies them from `rows`, which
 * begins with the row of home's first token, to `packed`. With `unpacks` the function copies from `packed` to `rows`;
 * with `packed` null the function copies nothing. Returns the number of bytes of these rows. */
TE_API int64_t te__tokens_pack(const te_token_exchange *e, int home, int visited, char *rows, char *packed,
                               int unpacks) {
    const int64_t n = e->tokens / e->group->size, bytes = te__token_row_bytes(e);
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!te__token_visits(e->expert + (home * n + i) * e->top_k, e->top_k, e->experts, visited)) continue;
        if (packed && unpacks) memcpy(rows + i * bytes, packed + at, (size_t)bytes);
        else if (packed) memcpy(packed + at, rows + i * bytes, (size_t)bytes);
        at += bytes;
    }
    return at;
}
TE_API void te__transfer_add(te_transfer *t, int *count, char *data, int64_t bytes, int peer, int is_received) {
    t += *count, *count += bytes > 0;
    if (bytes > 0) t->data = data, t->bytes = bytes, t->peer = peer, t->is_received = is_received;
}
/* Sends rows to the other ranks, and receives rows from them. With home 0 the rows go to the ranks of the experts:
 * `from` is [tokens of this rank, width], `to` is [tokens, width]. With home 1 the rows go back to the ranks of the
 * tokens: `from` is [tokens, width], `to` is [ranks, tokens of this rank, width]. packed: memory for 2 * tokens
 * rows. */
TE_API te_status te__tokens_exchange(const te_token_exchange *e, void *to, const void *from, int home, void *packed,
                                     te_context *ctx) {
    const int rank = e->group->rank, ranks = e->group->size;
    const int64_t rank_bytes = e->tokens / ranks * te__token_row_bytes(e);
    for (int first = 1, end; first < ranks; first = end) { /* a limited number of transfers in each exchange */
        te_transfer transfer[TE_EXCHANGE_MAX];
        char *at = (char *)packed;
        int count = 0;
        end = (int)te_min(ranks, first + TE_EXCHANGE_MAX / 2);
        for (int d = first; d < end; d++) {
            const int p = (rank + d) % ranks, q = (rank + ranks - d) % ranks;
            char *rows = (char *)(uintptr_t)from + (home ? p * rank_bytes : 0);
            int64_t bytes = te__tokens_pack(e, home ? p : rank, home ? rank : p, rows, at, 0);
            te__transfer_add(transfer, &count, at, bytes, p, 0), at += bytes;
            bytes = te__tokens_pack(e, home ? rank : q, home ? q : rank, 0, 0, 0);
            te__transfer_add(transfer, &count, at, bytes, q, 1), at += bytes;
        }
        TE_TRY(te_group_exchange(e->group, transfer, count, ctx));
        for (int i = 0; i < count; i++) {
            const int q = transfer[i].peer;
            if (!transfer[i].is_received) continue;
            (void)te__tokens_pack(e, home ? rank : q, home ? q : rank, (char *)to + q * rank_bytes,
                                  (char *)transfer[i].data, 1);
        }
    }
    const char *own = (const char *)from + (home ? rank * rank_bytes : 0);
    return te_copy(ctx, (char *)to + rank * rank_bytes, own, (size_t)rank_bytes);
}

/* ---- both ways --------------------------------------------------------------------------------------------------- */

/* Returns the bytes of scratch memory that te__tokens_dispatch or te__tokens_return needs for `tokens` tokens. */
TE_API size_t te__token_scratch_bytes(int64_t tokens, int width, te_dtype dtype) {
    return TE_CUDA ? 0 : 3 * (size_t)(tokens * width) * te_dtype_bytes(dtype);
}
/* Sends this rank's rows to the ranks of their experts. own: the rows of this rank's tokens. all: [tokens, width],
 * receives the rows of those tokens of other ranks that have an expert on this rank, and a copy of all rows of this
 * rank. */
TE_IF_USED TE_API te_status te__tokens_dispatch(const te_token_exchange *e, void *all, const void *own, void *scratch,
                                                te_context *ctx) {
#if TE_HAS_COMM_OVERLAP
    const te__overlap_memory *m = te__token_memory(e);
    if (m) {
        TE_TRY(te__tokens_send(e, m, own, 0, ctx));
        return te_copy(ctx, all, te__overlap_workspace(m, m->rank), (size_t)(e->tokens * te__token_row_bytes(e)));
    }
#endif
    if (!TE_CUDA && e->group->size > 1) return te__tokens_exchange(e, all, own, 0, scratch, ctx);
    return te_group_all_gather(e->group, all, own, e->tokens / e->group->size * e->width, e->dtype, ctx);
}
/* Returns this rank's partial sums to the tokens' ranks, and sets a->part and a->parts for the kernel te_token_sum.
 * all: [tokens, width], this rank's partial sums, which are 0 for tokens without an expert on this rank; the function
 * may overwrite `all`. */
TE_IF_USED TE_API te_status te__tokens_return(te_token_sum_args *a, const te_token_exchange *e, void *all,
                                              void *scratch, te_context *ctx) {
    const int64_t rank_tokens = e->tokens / e->group->size, rank_bytes = rank_tokens * te__token_row_bytes(e);
    char *const own = (char *)all + e->group->rank * rank_bytes;
#if TE_HAS_COMM_OVERLAP
    const te__overlap_memory *m = te__token_memory(e);
    if (m) {
        a->part = te__overlap_workspace(m, m->rank), a->parts = m->ranks;
        return te__tokens_send(e, m, all, 1, ctx);
    }
#endif
    if (!TE_CUDA && e->group->size > 1) {
        a->part = scratch, a->parts = e->group->size;
        return te__tokens_exchange(e, scratch, all, 1, (char *)scratch + e->group->size * rank_bytes, ctx);
    }
    a->part = own, a->parts = 1;
    return te_group_reduce_scatter(e->group, own, all, rank_tokens * e->width, e->dtype, ctx);
}

/* ---- values of a step -------------------------------------------------------------------------------------------- */

/* Sends the rows of *v, one for each token of this rank, to the ranks of the experts, and sets *v to the rows that this
 * rank has received. *v then has a row for each token of all ranks; only rows of tokens with an expert on this rank are
 * defined. to: memory for these rows, or null to use the workspace. */
TE_IF_USED TE_API te_status te__dispatch_rows(te_value *v, te_run *r, const te_token_exchange *e, void *to) {
    te_value all = te__value_of(to, e->dtype, e->tokens, e->width);
    void *scratch = 0;
    TE_TRY(te__convert_value(v, r, e->dtype));
    if (!to) TE_TRY(te__acquire(r, &all, TE_ROWS_tokens, e->width, e->dtype));
    const size_t bytes = te__token_scratch_bytes(te__capacity_rows(r), e->width, e->dtype);
    if (bytes) TE_TRY(te__scratch(r, &scratch, bytes));
    const void *const own = v->data;
    *v = all;
    return r->dry ? TE_OK : te__tokens_dispatch(e, all.data, own, scratch, r->ctx);
}
/* Computes y for each token of this rank: the sum of the token's rows of `all` over the ranks of its experts, plus
 * `more`, [tokens of this rank, width], unless `more` is null. all: see te__tokens_return. */
TE_IF_USED TE_API te_status te__return_rows(te_value y, te_run *r, const te_token_exchange *e, te_value all,
                                            const float *more) {
    te_token_sum_args a;
    void *scratch = 0;
    memset(&a, 0, sizeof a);
    a.expert = e->expert + te__first_row(r, TE_ROWS_shard) * e->top_k, a.more = more, a.y = y.data, a.tokens = y.rows;
    a.top_k = e->top_k, a.experts = e->experts, a.width = e->width, a.in = e->dtype, a.out = y.dtype;
    const size_t bytes = te__token_scratch_bytes(te__capacity_rows(r), e->width, e->dtype);
    if (bytes) TE_TRY(te__scratch(r, &scratch, bytes));
    if (r->dry) return TE_OK;
    TE_TRY(te__tokens_return(&a, e, all.data, scratch, r->ctx));
    return te_token_sum_launch(r->ctx, te__grid_of(te_ceil_div(a.tokens, TE_TOKEN_WARPS), 1), &a);
}

#endif
