/* gemm_ranks_cuda.h -- how a kernel tells another rank that something is there, and waits for it (gemm_ranks.h). */
/* target: cuda */
#ifndef TE_GEMM_RANKS_CUDA_H
#define TE_GEMM_RANKS_CUDA_H

#include "../core/words.h" /* te_words_clock, TE_FN */
#include "gemm_ranks.h"    /* te_rank_waits */

enum { TE_RANK_PATIENCE = 4096 /* looks at a word for one look at the clock */ };

TE_FN uint32_t te__rank_look(const uint32_t *word) {
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(word) : "memory");
    return v;
}
/* All that the warp, or the block behind a barrier, has written before is there for who sees this word. */
TE_FN void te__rank_tell(uint32_t *word, uint32_t v) {
    __threadfence_system();
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(v) : "memory");
}
/* Until the word is `v`. Of rank `of`: who has failed if it does not come in time. */
TE_FN void te__rank_wait(const uint32_t *word, uint32_t v, int of, const te_rank_waits *w) {
    uint64_t since = 0;
    for (uint32_t looks = 1; te__rank_look(word) != v; looks++) {
        if (looks % TE_RANK_PATIENCE) continue;
        const uint64_t now = te_words_clock();
        if (te_word_peek(w->failed[0])) return;
        if (!since) since = now;
        if (now - since < w->timeout) continue;
        te_word_send(w->failed[0], (uint32_t)of + 1), te_word_send(w->failed[1], (uint32_t)of + 1);
        return;
    }
}

#endif
