/* checkpoint_ranks.h -- a checkpoint of several ranks: one file of whole tensors, which rank 0 of the world writes and
 * each rank reads. All ranks go through the tensors in the order of the file, a few megabytes at a time: each puts what
 * it saves of them where others have -0.0, which a sum leaves as it is, and an all_reduce gives rank 0 the whole.
 */
#ifndef TE_CHECKPOINT_RANKS_H
#define TE_CHECKPOINT_RANKS_H

#include "../comm/comm.h"     /* te_comm_synchronize */
#include "checkpoint_list.h"  /* te__checkpoint_list */

/* ---- all ranks or none ------------------------------------------------------------------------------------------- */

/* What a rank says: whether it can go on, and with which tensors. */
typedef struct te__ranks_word { uint32_t fails, tensors; } te__ranks_word;

TE_API uint32_t te__tensors_sum(const te__checkpoint_list *l) {
    uint32_t sum = (uint32_t)l->count * 2654435761u;
    for (int i = 0; i < l->count; i++) {
        const te_safetensor *t = &l->tensor[i];
        for (const char *s = t->name; *s; s++) sum = (sum ^ (uint32_t)(unsigned char)*s) * 16777619u;
        sum = (sum ^ (uint32_t)t->bytes ^ (uint32_t)t->dtype) * 16777619u;
    }
    return sum;
}
/* Wait for all ranks. `status`: of this one; l is null where it has no list. An error on one is an error on all. */
TE_API te_status te__ranks_agree(te_status status, const te__checkpoint_list *l, te_context *ctx) {
    enum { WORDS = sizeof(te__ranks_word) / sizeof(float) };
    const te_group *g = &ctx->comm->world;
    const size_t bytes = (size_t)g->size * sizeof(te__ranks_word);
    te__ranks_word *words = (te__ranks_word *)calloc(1, bytes), *there = 0;
    te_status failed = words ? te_allocate(ctx, (void **)&there, bytes) : TE_ERROR_MEMORY;
    if (failed == TE_OK && status != TE_ERROR_COMM) {
        words[g->rank].fails = status != TE_OK, words[g->rank].tensors = l ? te__tensors_sum(l) : 0;
        failed = te_copy(ctx, there + g->rank, words + g->rank, sizeof *words);
        if (failed == TE_OK) failed = te_group_all_gather(g, there, there + g->rank, WORDS, TE_f32, ctx);
        if (failed == TE_OK) failed = te_comm_synchronize(ctx);
        if (failed == TE_OK) failed = te_copy(ctx, words, there, bytes);
        if (failed == TE_OK) failed = te_comm_synchronize(ctx);
        for (int i = 0; failed == TE_OK && status == TE_OK && i < g->size; i++)
            if (words[i].fails)
                status = te_fail(ctx, TE_ERROR_IO, "checkpoint: rank %d of %d has failed; its error says why", i,
                                 g->size);
            else if (words[i].tensors != words[g->rank].tensors)
                status = te_fail(ctx, TE_ERROR_VALUE, "checkpoint: rank %d of %d has other tensors than rank %d", i,
                                 g->size, g->rank);
    }
    te_release(ctx, there);
    free(words);
    return status != TE_OK ? status : failed;
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

/* Where the ranks are in the file, and memory for a part of a tensor. */
typedef struct te__gather {
    const te__checkpoint_list *l;
    char *part, *nothing[2]; /* target memory: the part; -0.0 in 32 bits and in 16 */
    size_t size;             /* of an element of the tensors that are gathered now */
    int i;                   /* the tensor; l->count: behind the last one of this size */
    uint64_t at;             /* the byte of it that comes next */
} te__gather;

TE_API void te__gather_close(te__gather *g, te_context *ctx) { te_release(ctx, g->part); }
TE_API te_status te__gather_open(te__gather *g, const te__checkpoint_list *l, te_context *ctx) {
    const uint32_t fills[2] = {0x80000000u, 0x80008000u};
    memset(g, 0, sizeof *g);
    uint32_t *words = (uint32_t *)malloc(2 * (size_t)TE_SAFETENSORS_STAGING);
    TE_REQUIRE(words, ctx, TE_ERROR_MEMORY, "checkpoint: cannot allocate %d bytes", 2 * (int)TE_SAFETENSORS_STAGING);
    for (int i = 0; i < 2 * TE_SAFETENSORS_STAGING / 4; i++) words[i] = fills[i / (TE_SAFETENSORS_STAGING / 4)];
    te_status status = te_allocate(ctx, (void **)&g->part, 3 * (size_t)TE_SAFETENSORS_STAGING);
    if (status == TE_OK) {
        g->nothing[0] = g->part + TE_SAFETENSORS_STAGING, g->nothing[1] = g->nothing[0] + TE_SAFETENSORS_STAGING;
        status = te_copy(ctx, g->nothing[0], words, 2 * (size_t)TE_SAFETENSORS_STAGING);
        const te_status done = te_synchronize(ctx);
        if (status == TE_OK) status = done;
        if (status != TE_OK) te__gather_close(g, ctx);
    }
    free(words);
    g->l = l, g->size = 4, g->i = 0;
    return status;
}
/* Whether there is a next part; then that is tensor g->i from byte g->at on. Numbers, of no parameter, are rank 0's. */
TE_API int te__gather_next(te__gather *g) {
    for (;; g->i = 0, g->size /= 2)
        for (; g->i < g->l->count; g->i++, g->at = 0) {
            const te_safetensor *t = &g->l->tensor[g->i];
            if (g->size < 2) return 0;
            if (g->l->whole[g->i].runs.count && te_safetensors_dtype_bytes(t->dtype) == g->size && g->at < t->bytes)
                return 1;
        }
}
/* The next part, n bytes: in g->part on rank 0. */
TE_IF_USED TE_API te_status te__gather_part(te__gather *g, size_t n, te_context *ctx) {
    const te_safetensor *t = &g->l->tensor[g->i];
    const int64_t count = (int64_t)(n / g->size), at = (int64_t)(g->at / g->size);
    const te_dtype dtype = g->size == 4 ? TE_f32 : t->dtype == TE_SAFETENSORS_BF16 ? TE_bf16 : TE_f16;
    TE_TRY(te_copy(ctx, g->part, g->nothing[g->size == 2], n));
    TE_TRY(te__whole_copy(&g->l->whole[g->i], g->part, at, count, g->size, 0, ctx));
    TE_TRY(te_group_all_reduce(&ctx->comm->world, g->part, g->part, count, dtype, ctx));
    g->at += n;
    return te_comm_synchronize(ctx);
}
TE_API size_t te__gather_bytes(const te__gather *g) {
    const uint64_t left = g->l->tensor[g->i].bytes - g->at;
    return left < TE_SAFETENSORS_STAGING ? (size_t)left : (size_t)TE_SAFETENSORS_STAGING;
}
/* A te__safetensors_extra.source. */
TE_IF_USED TE_API te_status te__gather_source(void *from, void *to, const te_safetensor *t, uint64_t at, size_t n,
                                              te_context *ctx) {
    te__gather *g = (te__gather *)from;
    if (!g->l->whole[t - g->l->tensor].runs.count) return te_copy(ctx, to, (const char *)t->data + at, n);
    TE_REQUIRE(te__gather_next(g) && t == &g->l->tensor[g->i] && at == g->at && n == te__gather_bytes(g), ctx,
               TE_ERROR_STATE, "checkpoint: %.60s is not what the other ranks gather now", t->name);
    TE_TRY(te__gather_part(g, n, ctx));
    return te_copy(ctx, to, g->part, n);
}
/* All that is left: on the ranks that write nothing and, where writing has failed, on rank 0. */
TE_IF_USED TE_API te_status te__gather_rest(te__gather *g, te_context *ctx) {
    while (te__gather_next(g)) TE_TRY(te__gather_part(g, te__gather_bytes(g), ctx));
    return TE_OK;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* What this rank has of tensor i, from the file, converted if that has another format. host: two parts of it. */
TE_IF_USED TE_API te_status te__whole_read(const te__checkpoint_list *l, int i, const te_safetensors *f, char *host,
                                           char *part, te_context *ctx) {
    const te_safetensor *want = &l->tensor[i], *t = te_safetensors_find(f, want->name);
    const size_t is_bytes = te_safetensors_dtype_bytes(t->dtype), as_bytes = te_safetensors_dtype_bytes(want->dtype);
    const int64_t all = (int64_t)(t->bytes / is_bytes), most = TE_SAFETENSORS_STAGING / 4;
    te_dtype is = TE_f32, as = TE_f32;
    (void)te__safetensors_converts(&is, t->dtype), (void)te__safetensors_converts(&as, want->dtype);
    for (int64_t at = 0, n; at < all; at += n) {
        n = te_min(most, all - at);
        char *made = is == as ? host : host + TE_SAFETENSORS_STAGING;
        const uint64_t from = f->data_at + t->offset + (uint64_t)at * is_bytes;
        TE_TRY(te__safetensors_get(f, host, (size_t)n * is_bytes, from, ctx));
        if (is != as) (void)te__safetensors_convert(made, as, host, is, n);
        TE_TRY(te_copy(ctx, part, made, (size_t)n * as_bytes));
        TE_TRY(te__whole_copy(&l->whole[i], part, at, n, as_bytes, 1, ctx));
        TE_TRY(te_synchronize(ctx));
    }
    return TE_OK;
}
/* The tensors from `first` on, which te_safetensors_check has found in the file. */
TE_IF_USED TE_API te_status te__whole_load(const te__checkpoint_list *l, int first, const te_safetensors *f,
                                           te_context *ctx) {
    char *host = (char *)malloc(2 * (size_t)TE_SAFETENSORS_STAGING);
    void *part = 0;
    TE_REQUIRE(host, ctx, TE_ERROR_MEMORY, "checkpoint: cannot allocate %d bytes", 2 * (int)TE_SAFETENSORS_STAGING);
    te_status status = te_allocate(ctx, &part, TE_SAFETENSORS_STAGING);
    for (int i = first; i < l->count && status == TE_OK; i++)
        status = te__whole_read(l, i, f, host, (char *)part, ctx);
    te_release(ctx, part);
    free(host);
    return status;
}

#endif
