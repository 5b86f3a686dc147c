/* send.h -- a linear's product whose epilogue sends it to the other ranks, for the row behind it that adds up what all
 * have (all_reduce_row.h).
 *
 * The slots are those that the row's kernel would send to (peer_row.h), in the same turn: when this rank's collective
 * before has ended, the half that is written next is empty. The product waits for nobody. It stores its own part as
 * well, which the row reads. So of m rows nothing is copied and no kernel reads them to send them; the link's 1.3 us
 * and 2 m n bytes over 450 GB/s are gone while the product reads its weight: 2 n k bytes at 4.2 TB/s, n 8192 and k 4096
 * 16 us. Bytes beside the product's: 2 m n over the link.
 *
 * Where the product is a kernel of ours (te/gemm/gemm_choose.h); else the product, and the row sends. Of many rows that
 * is as fast: with 64 MiB for a sum, two H100s, bf16, n 8192 and k 4096, 1024 rows 156 us for 150, 2048 rows 292 for
 * 296, where cuBLASLt's product takes 91 and 187, one that sends 113 and 210, and a row whose sums have come 37 and 76.
 */
#ifndef TE_COMM_SEND_H
#define TE_COMM_SEND_H

#include "../linear/impl/linear_comm_overlap.h" /* te__linear_gemm */
#include "peers.h"                /* te_peer_args */

#if TE_OVERLAPS
typedef struct te_send {
    union { te_hopper many; te_few few; te_narrow narrow; }; /* there is no narrow kernel */
    void *d;
    int n;
    te_peer_args peers;
} te_send;

template <te_dtype T>
TE_FN void te_send_epilogue(const void *arg, const uint32_t w[4], const uint32_t *ahead, int row, int col,
                            te_epilogue_lane *own) {
    const te_send *p = (const te_send *)arg;
    const te_peer_args *a = &p->peers;
    const uint32_t turn = __ldg(a->state->turn);
    const int64_t at = ((int64_t)row * p->n + col) * 2;
    const int two_shot = a->form == TE_PEER_two_shot, owner = row % a->ranks; /* as peer_row.h shares rows out */
    const int unit = (int)((two_shot ? ((int64_t)(row / a->ranks) * p->n + col) * 2 : at) / TE_WORDS);
    te_words v;
    TE_UNROLL for (int i = 0; i < 4; i++) v.w[i] = w[i];
    te_words_mark(&v);
    for (int i = 1; i < a->ranks; i++) {
        const int to = te__peer_next(a, i);
        if (two_shot && to != owner) continue;
        te_words_send(te__peer_slot(a->at[to], a, turn, a->rank, (int)(a->bytes / TE_WORDS), unit), &v);
    }
    te_words_store(p->d, at, &v, TE_WORDS, 1);
    (void)ahead, (void)own;
}
template <te_dtype T> TE_HOPPER_KERNEL(te_send_many, te_send, T, 1, te_send_epilogue<T>, 1)
template <te_dtype T> TE_FEW_KERNEL(te_send_few, te_send, TE_FEW_SIXTEEN, T, te_send_epilogue<T>, 1)
TE_KERNEL_IF(T != TE_f32, (te_dtype T), te_send_many, (T), te_send)
TE_KERNEL_IF(T != TE_f32, (te_dtype T), te_send_few, (T), te_send)
template <te_dtype T> TE_API te_product_kernels *te_send_kernels(void) {
    static te_product_kernels kernels = {{(const void *)te_send_many_if<T>(), 0, 0},
                                         {(const void *)te_send_few_if<T>(), 0, 0},
                                         {0, 0, 0},
                                         {0, 0, 0},
                                         TE_FEW_SIXTEEN};
    return &kernels;
}
#define TE_SEND_KERNELS(dtype) te_send_kernels<TE_##dtype>()

TE_API te_status te__send_run(te_product_kernels *kernels, const te_gemm *g, const te_group *group, te_dtype dtype,
                              te_context *ctx) {
    te_send a;
    memset(&a, 0, sizeof a);
    TE_TRY(te_peers_check(group, ctx));
    a.d = g->d, a.n = (int)g->n;
    a.peers = te__peer_args_of_rows(group, g->m, g->n * 2, g->m * g->n * 2 > group->peers->one_shot, dtype);
    group->peers->sent++;
    return te__gemm_run_own(kernels, &a, sizeof a, &a.few, &a.narrow, &a.many, g, ctx);
}
#else
#define TE_SEND_KERNELS(dtype) 0
TE_API te_status te__send_run(te_product_kernels *kernels, const te_gemm *g, const te_group *group, te_dtype dtype,
                              te_context *ctx) {
    return (void)kernels, (void)g, (void)group, (void)dtype, (void)ctx, TE_OK;
}
#endif

/* The product that the step before has left to `now`. *sent: it sends, which it does if `may`. */
TE_API te_status te__late_sent(int *sent, te_run *r, te_product_kernels *kernels, int may) {
    const te_gemm g = r->deferred.product;
    te_gemm plain = g;
    *sent = 0;
    if (r->current.state != TE_VALUE_deferred_product) return TE_OK;
    te_finish_deferred(r);
    *sent = may && (uintptr_t)g.d % TE_WORDS == 0 && te_gemm_is_bare(kernels, &g, r->ctx);
    if (!*sent) return te__linear_gemm(r, &plain, TE_ROWS_OF_m, r->deferred.kernels);
    return r->dry ? TE_OK : te__send_run(kernels, &g, r->tensor, r->plan->dtype, r->ctx);
}

#endif
