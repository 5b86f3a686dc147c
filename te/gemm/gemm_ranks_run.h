/* gemm_ranks_run.h -- the host's side of gemm_ranks.h: the handshake, and the copies that go beside a product. */
/* target: cuda */
#ifndef TE_GEMM_RANKS_RUN_H
#define TE_GEMM_RANKS_RUN_H

#include <cuda.h> /* CUdeviceptr; no function of libcuda is linked */

#include "gemm_ranks_cuda.h" /* te__rank_tell, te__rank_wait */
#include "gemm_types.h"      /* te_gemm, te_gemm_ranks */

/* cuStreamWriteValue32: what a stream has done before is there for who sees the word. And cuStreamWaitValue32. */
typedef CUresult (*te__write_word_fn)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

/* ---- words in the order of a stream ------------------------------------------------------------------------------ */

/* That of a piece which `from` sends to `to`, in the memory of `to`. */
TE_API uint32_t *te__rank_arrived(const te_rank_memory *m, int to, int from, int piece) {
    return te__rank_words(m, to) + TE_WORDS_ARRIVED + from * TE_RANK_PIECES + piece;
}
TE_API te_status te__rank_write(const te_rank_memory *m, uint32_t *word, uint32_t v, cudaStream_t stream,
                                te_context *ctx) {
    const CUresult e = ((te__write_word_fn)m->write)((CUstream)stream, (CUdeviceptr)(uintptr_t)word, v, 0);
    TE_REQUIRE(e == CUDA_SUCCESS, ctx, TE_ERROR_CUDA, "a word for another rank: cuStreamWriteValue32 failed (%d)",
               (int)e);
    return TE_OK;
}
/* What the stream does next waits until the word is `v`. */
TE_API te_status te__rank_await(const te_rank_memory *m, uint32_t *word, uint32_t v, cudaStream_t stream,
                                te_context *ctx) {
    const CUresult e = ((te__write_word_fn)m->wait)((CUstream)stream, (CUdeviceptr)(uintptr_t)word, v,
                                                    CU_STREAM_WAIT_VALUE_EQ);
    TE_REQUIRE(e == CUDA_SUCCESS, ctx, TE_ERROR_CUDA, "a word of another rank: cuStreamWaitValue32 failed (%d)",
               (int)e);
    return TE_OK;
}

#if TE_OVERLAPS

/* ---- the handshake ----------------------------------------------------------------------------------------------- */

typedef struct te_meet_args {
    uint32_t *words[TE_RANKS]; /* of each rank */
    int rank, ranks;
    te_rank_waits waits;
} te_meet_args;

enum { TE_MEET_THREADS = 128 };
/* One block: 3 us where all ranks come at the same time, of which a store to a peer takes 1 to 1.5. */
TE_FN void te__ranks_meet(const te_meet_args *a) {
    uint32_t *own = a->words[a->rank];
    const int id = (int)threadIdx.x;
    const uint32_t turn = own[TE_WORDS_TURN] + 1;
    for (int i = id; i < TE_RANKS * TE_RANK_PIECES; i += TE_MEET_THREADS) own[TE_WORDS_ARRIVED + i] = 0;
    __syncthreads();
    if (id == 0) own[TE_WORDS_TURN] = turn;
    if (id >= a->ranks || id == a->rank) return;
    te__rank_tell(a->words[id] + TE_WORDS_READY + a->rank, turn);
    te__rank_wait(own + TE_WORDS_READY + id, turn, id, &a->waits);
}
TE_KERNEL(te_ranks_meet, TE_MEET_THREADS, te_meet_args, te__ranks_meet(te_args))

TE_API te_rank_waits te__rank_waits_of(const te_rank_memory *m) {
    te_rank_waits w;
    memset(&w, 0, sizeof w);
    w.failed[0] = m->failed[0], w.failed[1] = m->failed[1], w.timeout = m->timeout;
    return w;
}
TE_API te_status te__ranks_meet_now(const te_rank_memory *m, te_context *ctx) {
    te_meet_args a;
    memset(&a, 0, sizeof a);
    for (int r = 0; r < m->ranks; r++) a.words[r] = te__rank_words(m, r);
    a.rank = m->rank, a.ranks = m->ranks, a.waits = te__rank_waits_of(m);
    return te_ranks_meet_launch(ctx, te_grid_of(1, 1), &a);
}

/* ---- copies beside a product ------------------------------------------------------------------------------------- */

/* Copies of `bytes` bytes, from `own` to to[rank]. Where nothing comes between them and the product they are enqueued
 * with it, at once, so that a captured side stream is joined where it was left; its arguments follow. */
typedef struct te__gather_call {
    te_rank_memory *memory;
    const char *own;
    char *to[TE_RANKS];
    int64_t bytes, piece; /* of a rank's rows, of a piece of them */
    int keep;
    int copies, product;  /* whether this is the call for them */
    te_launch launch;     /* the product */
} te__gather_call;
enum { TE_GATHER_MOST = 4096 /* bytes of a call */ };

/* Pieces in order, to the rank first that takes them first: that before this one. So each rank sends to one and gets
 * from one at a time. On four H200s a copy of 4 MB takes 18 us, 7 of them before its first byte, and the next one
 * begins 10 us later: small pieces bring 150 GB/s. Three streams of them bring no more, and later what is needed first.
 */
TE_API te_status te__gather_copies(const te__gather_call *c, cudaStream_t side, te_context *ctx) {
    const te_rank_memory *m = c->memory;
    for (int k = 1; k < m->ranks; k++) {
        const int to = (m->rank + m->ranks - k) % m->ranks;
        uint32_t *word = te__rank_arrived(m, to, m->rank, 0);
        for (int64_t at = 0; at < c->bytes; at += c->piece, word++) {
            const size_t bytes = (size_t)te_min(c->piece, c->bytes - at);
            TE_TRY(te__cuda_status(ctx, cudaMemcpyAsync(c->to[to] + at, c->own + at, bytes, cudaMemcpyDeviceToDevice,
                                                        side), "rows to another rank"));
            TE_TRY(te__rank_write(m, word, 1, side, ctx));
        }
    }
    if (!c->keep) return TE_OK;
    return te__cuda_status(ctx, cudaMemcpyAsync(c->to[m->rank], c->own, (size_t)c->bytes, cudaMemcpyDeviceToDevice,
                                                side), "rows of this rank");
}
TE_API te_status te__gather_run(const void *args, te_context *ctx) {
    const te__gather_call *c = (const te__gather_call *)args;
    const te_rank_memory *m = c->memory;
    const cudaStream_t main = (cudaStream_t)ctx->stream, side = (cudaStream_t)m->side;
    if (c->copies) {
        TE_TRY(te__cuda_status(ctx, cudaEventRecord((cudaEvent_t)m->event[0], main), "second stream"));
        TE_TRY(te__cuda_status(ctx, cudaStreamWaitEvent(side, (cudaEvent_t)m->event[0], 0), "second stream"));
        TE_TRY(te__gather_copies(c, side, ctx));
        TE_TRY(te__cuda_status(ctx, cudaEventRecord((cudaEvent_t)m->event[1], side), "second stream"));
    }
    if (!c->product) return TE_OK;
    TE_TRY(te__launch_one(&c->launch, (const char *)args + sizeof *c, ctx));
    return te__cuda_status(ctx, cudaStreamWaitEvent(main, (cudaEvent_t)m->event[1], 0), "second stream");
}
/* Launch the product g as `l` says, with copies of the rows of A, of `pitch` bytes, beside it and what comes before. */
TE_API te_status te__gather_launch(const te_launch *l, const void *args, const te_gemm *g, int64_t pitch, int piece,
                                   te_context *ctx) {
    const te_gemm_ranks *ranks = g->ranks;
    alignas(16) char call[TE_GATHER_MOST];
    te__gather_call *c = (te__gather_call *)(void *)call;
    const size_t bytes = sizeof *c + (size_t)l->bytes;
    TE_REQUIRE(bytes <= sizeof call, ctx, TE_ERROR_OVERFLOW, "a product of %d bytes of arguments", l->bytes);
    memset(c, 0, sizeof *c); /* arguments are compared byte by byte */
    c->memory = ranks->memory, c->own = (const char *)ranks->own, c->launch = *l;
    c->bytes = g->m / ranks->memory->ranks * pitch, c->piece = piece * pitch;
    c->keep = ranks->keep && ranks->to[ranks->memory->rank] != c->own;
    memcpy(c->to, ranks->to, sizeof c->to);
    memcpy(call + sizeof *c, args, (size_t)l->bytes);
    TE_TRY(te__ranks_meet_now(ranks->memory, ctx));
    ranks->memory->gathered++;
    c->copies = 1, c->product = !ranks->beside;
    if (ranks->beside) {
        ranks->memory->beside++;
        TE_TRY(te__cuda_call(ctx, te__gather_run, call, sizeof *c));
        TE_TRY(ranks->beside(ranks->beside_of));
        c->copies = 0, c->product = 1;
    }
    return te__cuda_call(ctx, te__gather_run, call, bytes);
}
#endif

#endif
