/* rank_memory_cuda.h -- memory that all ranks of the tensor group map, for products that overlap collectives
 * (te/gemm/gemm_ranks.h): the words and the room of a group, and what te_comm_allocate gives. By CUDA's handles between
 * processes, as peers_cuda.h maps what small collectives go through; a group without that has none of this.
 */
/* target: cuda */
#ifndef TE_RANK_MEMORY_CUDA_H
#define TE_RANK_MEMORY_CUDA_H

#include "peers_cuda.h"           /* te__peer_cards, te_peer_card */
#include "../gemm/gemm_ranks_run.h" /* te_rank_memory, te__write_word_fn */

#ifdef TE_COMM
#include <cuda.h>
#include <nccl.h>

static_assert((int)TE_RANKS == (int)TE_PEERS, "as many ranks as te_peers has");

TE_API void te__rank_block_unmap(te_rank_block *b, int rank) {
    for (int r = 0; r < TE_RANKS; r++)
        if (r != rank && b->at[r]) (void)cudaIpcCloseMemHandle(b->at[r]), b->at[r] = 0;
}
/* Whether all ranks say so. Waits for them. room: device memory. */
TE_API int te__ranks_agree(int ok, const te_group *g, te_peer_card *room, te_context *ctx) {
    te_peer_card card[TE_PEERS];
    memset(card, 0, sizeof card);
    card[g->rank].is_ready = ok;
    if (!te__peer_cards(g, card, room, (cudaStream_t)ctx->stream)) return 0;
    for (int r = 0; r < g->size; r++) ok &= card[r].is_ready;
    return ok;
}
/* All ranks map `bytes` of each other, of which the first `zero` are 0, or none does. Waits. */
TE_API int te__rank_block_map(te_rank_block *b, size_t bytes, size_t zero, const te_group *g, te_peer_card *room,
                              te_context *ctx) {
    const cudaStream_t stream = (cudaStream_t)ctx->stream;
    te_peer_card card[TE_PEERS], *own = &card[g->rank];
    memset(card, 0, sizeof card), memset(b, 0, sizeof *b);
    b->bytes = bytes;
    int ok = cudaMalloc((void **)&b->at[g->rank], bytes) == cudaSuccess &&
             cudaMemset(b->at[g->rank], 0, zero) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess &&
             cudaIpcGetMemHandle(&own->memory, b->at[g->rank]) == cudaSuccess;
    own->is_ready = ok, own->process = (int32_t)getpid(), own->host = te__host_hash(), own->largest = (int64_t)bytes;
    if (!te__peer_cards(g, card, room, stream)) return 0;
    for (int r = 0; r < g->size; r++) ok &= r == g->rank || te__peer_is_near(own, &card[r]);
    for (int r = 0; ok && r < g->size; r++)
        ok = r == g->rank || cudaIpcOpenMemHandle((void **)&b->at[r], card[r].memory,
                                                  cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
    ok = te__ranks_agree(ok, g, room, ctx);
    if (!ok) te__rank_block_unmap(b, g->rank);
    return ok;
}
/* A function of the driver; null: it has none of this name. */
TE_API void *te__rank_driver(const char *name) {
    void *f = 0;
    cudaDriverEntryPointQueryResult found;
    return cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &found) == cudaSuccess ? f : 0;
}
/* The second stream, its events, and the driver's functions that write a word in the order of a stream and wait for it.
 */
TE_API int te__rank_side(te_rank_memory *m) {
    int least = 0, greatest = 0;
    const int ok = cudaDeviceGetStreamPriorityRange(&least, &greatest) == cudaSuccess &&
                   cudaStreamCreateWithPriority((cudaStream_t *)&m->side, cudaStreamNonBlocking, greatest) ==
                       cudaSuccess &&
                   cudaEventCreateWithFlags((cudaEvent_t *)&m->event[0], cudaEventDisableTiming) == cudaSuccess &&
                   cudaEventCreateWithFlags((cudaEvent_t *)&m->event[1], cudaEventDisableTiming) == cudaSuccess;
    m->write = (void (*)(void))te__rank_driver("cuStreamWriteValue32");
    m->wait = (void (*)(void))te__rank_driver("cuStreamWaitValue32");
    return ok && m->write && m->wait;
}
/* Whether the one writes a word of each other rank, and the other sees this rank's own. Of all ranks. */
TE_API int te__rank_writes(const te_rank_memory *m, const te_group *g, te_peer_card *room, te_context *ctx) {
    const cudaStream_t side = (cudaStream_t)m->side;
    uint32_t came[TE_RANKS];
    int ok = 1;
    for (int r = 0; r < m->ranks; r++)
        ok &= te__rank_write(m, te__rank_words(m, r) + TE_WORDS_PROBE + m->rank, 1, side, ctx) == TE_OK;
    ok = ok && te__rank_await(m, te__rank_words(m, m->rank) + TE_WORDS_PROBE + m->rank, 1, side, ctx) == TE_OK;
    ok &= cudaStreamSynchronize(side) == cudaSuccess;
    if (!te__ranks_agree(ok, g, room, ctx)) return 0;
    ok = cudaMemcpy(came, te__rank_words(m, m->rank) + TE_WORDS_PROBE, sizeof came, cudaMemcpyDeviceToHost) ==
         cudaSuccess;
    for (int r = 0; r < m->ranks; r++) ok &= came[r] == 1;
    return te__ranks_agree(ok, g, room, ctx);
}
TE_API void te__rank_memory_free(te_rank_memory *m) {
    for (int i = 0; i < m->blocks; i++) (void)cudaFree(m->block[i].at[m->rank]);
    for (int i = 0; i < 2; i++)
        if (m->event[i]) (void)cudaEventDestroy((cudaEvent_t)m->event[i]);
    if (m->side) (void)cudaStreamDestroy((cudaStream_t)m->side);
    (void)cudaGetLastError();
    free(m);
}
/* Of all ranks of the group, at the same time. Where it cannot be mapped, g->memory stays null. */
TE_API te_status te__rank_memory_open(te_group *g, int64_t bytes, te_context *ctx) {
    const size_t words = TE_WORDS_IN_ALL * sizeof(uint32_t);
    te_peer_card *room = 0;
    if (bytes <= 0 || !g->peers) return TE_OK;
    te_rank_memory *m = (te_rank_memory *)calloc(1, sizeof *m);
    TE_REQUIRE(m, ctx, TE_ERROR_MEMORY, "te_comm_create: no memory");
    m->rank = g->rank, m->ranks = g->size, m->room = (size_t)te_round_up(bytes, TE_ALIGN), m->blocks = 1;
    m->failed[0] = &g->peers->state->failed, m->failed[1] = g->peers->failed;
    m->timeout = (uint64_t)(0.9e9 * g->comm->timeout), m->apart = TE_RANK_APART;
    const int has_side = te__rank_side(m);
    const te_status status = te_allocate(ctx, (void **)&room, TE_PEERS * sizeof *room);
    int ok = status == TE_OK &&
             te__rank_block_map(&m->block[0], words + (has_side ? m->room : 0), words, g, room, ctx);
    ok = ok && te__rank_writes(m, g, room, ctx);
    te_release(ctx, room);
    if (ok) g->memory = m;
    else te__rank_block_unmap(&m->block[0], g->rank), te__rank_memory_free(m);
    (void)cudaGetLastError();
    return status;
}
TE_API void te__rank_memory_unmap(te_rank_memory *m) {
    for (int i = 0; i < m->blocks; i++) te__rank_block_unmap(&m->block[i], m->rank);
}

/* ---- memory of the caller's -------------------------------------------------------------------------------------- */

/* All ranks of the tensor group call it with as many bytes. Memory that they cannot map is memory all the same. */
TE_API te_status te__comm_allocate(te_comm *comm, void **p, size_t bytes, te_context *ctx) {
    te_rank_memory *m = comm->tensor.memory;
    te_peer_card *room = 0;
    te_rank_block *b = 0;
    for (int i = 1; m && i < TE_RANK_BLOCKS && !b; i++)
        if (!m->block[i].at[m->rank]) b = &m->block[i], m->blocks = (int)te_max(m->blocks, i + 1);
    if (!b) return te_allocate(ctx, p, bytes);
    TE_TRY(te_allocate(ctx, (void **)&room, TE_PEERS * sizeof *room));
    const int ok = te__rank_block_map(b, bytes ? bytes : 1, 0, &comm->tensor, room, ctx);
    te_release(ctx, room);
    *p = b->at[m->rank];
    if (ok) return TE_OK;
    memset(b, 0, sizeof *b);
    (void)cudaGetLastError();
    return *p ? TE_OK : te_allocate(ctx, p, bytes);
}
/* When all that was enqueued is done. An owner frees when no other has it mapped. */
TE_API te_status te__comm_release(te_comm *comm, void *p, te_context *ctx) {
    te_rank_memory *m = comm->tensor.memory;
    const int i = te__rank_block_of(m, p, 1);
    te_peer_card *room = 0;
    if (i > 0) {
        TE_TRY(te_allocate(ctx, (void **)&room, TE_PEERS * sizeof *room));
        te__rank_block_unmap(&m->block[i], m->rank);
        const int ok = te__ranks_agree(1, &comm->tensor, room, ctx);
        te_release(ctx, room);
        memset(&m->block[i], 0, sizeof m->block[i]);
        if (!ok) return te_fail(ctx, TE_ERROR_COMM, "te_comm_release: the other ranks have not come");
    }
    te_release(ctx, p);
    return TE_OK;
}
#endif

#endif
