/* peers_cuda.h -- memory that all ranks of a group map (peers.h), on CUDA: each rank allocates its own and maps that of
 * the others by CUDA's handles between processes, which NCCL gathers. All ranks of a group get it, or none: ranks of
 * other hosts, of one process, or that see one device each have NCCL alone.
 */
/* target: cuda */
#ifndef TE_PEERS_CUDA_H
#define TE_PEERS_CUDA_H

#include "peer_collectives.h" /* te_peers, te_peers_size */

#ifdef TE_COMM
#include <nccl.h>
#include <stdio.h>  /* fopen */
#include <unistd.h> /* getpid */

/* What a rank says of itself. */
typedef struct te_peer_card {
    int32_t is_ready; /* it has memory and a handle; later: it has mapped that of all others */
    int32_t process, processors;
    uint64_t host;  /* a hash of what is drawn when its system starts */
    int64_t largest;
    cudaIpcMemHandle_t memory;
} te_peer_card;

TE_API uint64_t te__host_hash(void) {
    char text[64] = "";
    uint64_t hash = 1469598103934665603u; /* FNV-1a */
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "rb");
    const size_t n = f ? fread(text, 1, sizeof text, f) : 0;
    if (f) (void)fclose(f);
    for (size_t i = 0; i < n; i++) hash = (hash ^ (uint8_t)text[i]) * 1099511628211u;
    return n ? hash : 0; /* 0: unknown */
}
/* card[size], of which each rank has filled in its own. `room` is device memory. Waits. */
TE_API int te__peer_cards(const te_group *g, te_peer_card *card, te_peer_card *room, cudaStream_t stream) {
    const size_t one = sizeof *card, all = one * (size_t)g->size;
    return cudaMemcpyAsync(room + g->rank, card + g->rank, one, cudaMemcpyHostToDevice, stream) == cudaSuccess &&
           ncclAllGather(room + g->rank, room, one, ncclInt8, (ncclComm_t)g->handle, stream) == ncclSuccess &&
           cudaMemcpyAsync(card, room, all, cudaMemcpyDeviceToHost, stream) == cudaSuccess &&
           cudaStreamSynchronize(stream) == cudaSuccess;
}
/* This rank's memory, idle, and its handle. */
TE_API int te__peer_memory(te_peers *p, te_peer_card *own, int rank) {
    const size_t bytes = te_peers_bytes(p);
    return cudaMalloc((void **)&p->at[rank], bytes) == cudaSuccess &&
           cudaMemset(p->at[rank], 0xff, bytes) == cudaSuccess &&
           cudaMalloc((void **)&p->state, sizeof *p->state) == cudaSuccess &&
           cudaMemset(p->state, 0, sizeof *p->state) == cudaSuccess &&
           cudaHostAlloc((void **)&p->failed, sizeof *p->failed, cudaHostAllocMapped | cudaHostAllocPortable) ==
               cudaSuccess &&
           (*p->failed = 0, cudaIpcGetMemHandle(&own->memory, p->at[rank]) == cudaSuccess) &&
           cudaDeviceSynchronize() == cudaSuccess;
}
/* Whether memory of this rank can be mapped. */
TE_API int te__peer_is_near(const te_peer_card *own, const te_peer_card *other) {
    return other->is_ready && own->host && other->host == own->host && other->process != own->process &&
           other->largest == own->largest;
}
/* Let go of the others' memory, which an owner frees when all have. */
TE_API void te__peers_unmap(te_peers *p, int rank) {
    for (int r = 0; r < TE_PEERS; r++)
        if (r != rank && p->at[r]) (void)cudaIpcCloseMemHandle(p->at[r]), p->at[r] = 0;
}
TE_API void te__peers_free(te_peers *p, int rank) {
    te__peers_unmap(p, rank);
    (void)cudaFree(p->at[rank]), (void)cudaFree(p->state), (void)cudaFreeHost(p->failed);
    (void)cudaGetLastError();
    free(p);
}
TE_API int te__peers_map(te_peers *p, te_peer_card *card, te_peer_card *room, const te_group *g, te_context *ctx) {
    const cudaStream_t stream = (cudaStream_t)ctx->stream;
    te_peer_card *own = &card[g->rank];
    int ok = te__peer_memory(p, own, g->rank);
    own->is_ready = ok, own->process = (int32_t)getpid(), own->host = te__host_hash(), own->largest = p->largest;
    own->processors = ctx->processors;
    if (!te__peer_cards(g, card, room, stream)) return 0;
    for (int r = 0; r < g->size; r++) ok &= r == g->rank || te__peer_is_near(own, &card[r]);
    for (int r = 0; ok && r < g->size; r++)
        ok = r == g->rank || cudaIpcOpenMemHandle((void **)&p->at[r], card[r].memory,
                                                  cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
    own->is_ready = ok;
    if (!te__peer_cards(g, card, room, stream)) return 0;
    p->blocks = TE_PEER_BLOCKS;
    for (int r = 0; r < g->size; r++)
        ok &= card[r].is_ready, p->blocks = (int)te_min(p->blocks, te_peer_blocks(card[r].processors));
    return ok;
}
/* Of all ranks of the group, at the same time. Where the memory cannot be mapped, g->peers stays null. */
TE_API te_status te__peers_open(te_group *g, int64_t largest, te_context *ctx) {
    te_peer_card card[TE_PEERS], *room = 0;
    if (largest <= 0 || g->size < 2 || g->size > TE_PEERS) return TE_OK;
    te_peers *p = (te_peers *)calloc(1, sizeof *p);
    TE_REQUIRE(p, ctx, TE_ERROR_MEMORY, "te_comm_create: no memory");
    memset(card, 0, sizeof card);
    te_peers_size(p, largest, g->size);
    const te_status status = te_allocate(ctx, (void **)&room, sizeof card);
    const int ok = status == TE_OK && te__peers_map(p, card, room, g, ctx);
    te_release(ctx, room);
    if (ok) g->peers = p;
    else te__peers_free(p, g->rank);
    (void)cudaGetLastError();
    return status;
}
#endif

#endif
