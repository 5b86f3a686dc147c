/* checkpoint_blocks.h -- moments in 8 bits (moment_blocks.h) in a checkpoint, which has them in bf16: the same numbers,
 * a few megabytes of them at a time. Of one rank; checkpoint_ranks.h gathers those of several.
 */
#ifndef TE_CHECKPOINT_BLOCKS_H
#define TE_CHECKPOINT_BLOCKS_H

#include "checkpoint_list.h" /* te__checkpoint_list, te__whole_copy */
#include "safetensors.h"     /* TE_SAFETENSORS_STAGING */

typedef struct te__blocks_file {
    const te__checkpoint_list *l;
    void *part; /* target memory: a part of a tensor in bf16 */
} te__blocks_file;

/* A te__safetensors_extra.source. */
TE_IF_USED TE_API te_status te__blocks_source(void *from, void *to, const te_safetensor *t, uint64_t at, size_t n,
                                              te_context *ctx) {
    const te__blocks_file *f = (const te__blocks_file *)from;
    const te__whole *w = &f->l->whole[t - f->l->tensor];
    const int64_t size = (int64_t)te_dtype_bytes(TE_bf16);
    if (!w->pieces || !w->piece[0].in_blocks) return te_copy(ctx, to, (const char *)t->data + at, n);
    TE_TRY(te__whole_copy(w, f->part, (int64_t)at / size, (int64_t)n / size, (size_t)size, 0, ctx));
    return te_copy(ctx, to, f->part, n);
}
/* Memory for it; te__blocks_close gives it back. */
TE_API te_status te__blocks_open(te__blocks_file *f, const te__checkpoint_list *l, te_context *ctx) {
    f->l = l, f->part = 0;
    return te_allocate(ctx, &f->part, TE_SAFETENSORS_STAGING);
}
TE_API void te__blocks_close(te__blocks_file *f, te_context *ctx) { te_release(ctx, f->part); }
/* Before the file's moments come in: blocks are written in parts, to zeros. */
TE_API te_status te__blocks_clear(const te_adamw *o, te_context *ctx) {
    if (!o || !te__in_blocks(o->moments)) return TE_OK;
    TE_TRY(te_fill(ctx, o->m, 0, te__moments_bytes(o->m_elements, o->moments)));
    return te_fill(ctx, o->v, 0, te__moments_bytes(o->v_elements, o->moments));
}

#endif
