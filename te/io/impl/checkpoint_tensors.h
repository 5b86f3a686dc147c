/* checkpoint_tensors.h -- the tensors of a checkpoint: their names, the shards of each tensor that this rank has, and
 * functions that copy these shards to and from the file.
 *
 * A checkpoint has whole tensors, but a rank may have only parts of a tensor. With tensor parallelism, a rank has
 * contiguous runs of a parameter (te/plan/bind.h). ZeRO-1 cuts a model's elements into shards of equal size, one for
 * each rank; the remainder, the few elements that are left over, is replicated on all ranks (zero1.h). So a rank may
 * have the optimizer state for two ranges of a parameter's elements: one in the rank's shard, and one in the remainder.
 * With ZeRO-3, a rank stores the parameter itself, too, only for these two ranges (fsdp.h). The file stores an
 * optimizer's 8-bit moments as bf16.
 *
 * Saving from several ranks: all ranks go through the tensors in the order of the file, TE_SAFETENSORS_STAGING bytes at
 * a time. Each rank fills a buffer with -0.0 and copies its shards into the buffer. An all-reduce sums the buffers.
 * Because x + -0.0 is x for every x, rank 0 gets the complete bytes, and writes them. Loading: each rank reads the
 * whole file, and keeps the elements of its shards.
 */
#ifndef TE_CHECKPOINT_TENSORS_H
#define TE_CHECKPOINT_TENSORS_H

#include "../../comm/comm.h"                /* te_comm_synchronize */
#include "../../optim/adamw.h"              /* te_adamw_iter */
#include "../../optim/impl/adamw_kernels.h" /* te__moments_copy */
#include "../../plan/bind.h"               /* te_shard_layout */
#include "../safetensors.h"                 /* te_safetensor, TE_SAFETENSORS_STAGING */
#include "../weights.h"                     /* te_named_model */

/* ---- a sharded tensor -------------------------------------------------------------------------------------------- */

typedef enum te__shard_format { TE__AS_STORED, TE__M_8BIT, TE__V_8BIT } te__shard_format;

/* A shard of a tensor, i.e. a range of the tensor's elements that this rank has. */
typedef struct te__tensor_shard {
    void *data;              /* target memory */
    int64_t from, elements;  /* the index of the shard's first element, counted from this rank's first element of the
                              * parameter; and the number of the shard's elements */
    int saves;               /* 1: this rank saves the shard, except elements that are copies of another rank's elements
                              * (te_shard_layout.owned). If several ranks of a data group hold the shard, exactly one of
                              * these ranks saves it */
    te__shard_format format; /* how the shard is stored in memory; 8-bit moments are bf16 in the file, and are converted
                              * when saved or loaded */
} te__tensor_shard;

typedef struct te__sharded_tensor {
    int64_t rows, cols;        /* the shape of the whole tensor */
    /* which contiguous runs (ranges) of the whole tensor's elements this rank of the tensor group has */
    te_shard_layout runs;
    te__tensor_shard shard[2]; /* [shards]: the ranges of the elements in `runs` that this rank stores: all elements or,
                                * with ZeRO, at most two ranges (see the head of this file) */
    int shards;
} te__sharded_tensor;

TE_API te__sharded_tensor te__sharded_tensor_of(const te_param *p, const te_group *g) {
    /* 1: the parameter is a matrix, even if this rank has only one row of it */
    const int is_matrix = p->init == TE_INIT_normal || p->init == TE_INIT_tied;
    te__sharded_tensor w;
    memset(&w, 0, sizeof w);
    w.rows = p->rows, w.cols = p->cols, w.runs = te_shard_layout_of(p, g);
    const int64_t whole = te__shard_whole_elements(&w.runs);
    if (p->shard == TE_EXPERT_SHARD || (p->shard == TE_SHARD_columns && is_matrix)) w.rows = whole / p->cols;
    else w.cols = whole / p->rows;
    return w;
}

/* A part of a whole tensor, in target memory: the elements at, at + 1, ..., at + count - 1 of the tensor. */
typedef struct te__tensor_part {
    void *data;   /* the elements of the part */
    int64_t at, count;
    size_t size;  /* bytes of an element in the part */
} te__tensor_part;

/* Copy the elements that the shard *s and *part have in common: from the shard to the part or, if `loads` is set, from
 * the part to the shard. */
TE_IF_USED TE_API te_status te__tensor_shard_copy(const te__sharded_tensor *w, const te__tensor_shard *s,
                                                  const te__tensor_part *part, int loads, te_context *ctx) {
    const int64_t shard_end = te_min(s->from + s->elements, loads ? INT64_MAX : w->runs.owned);
    const int64_t part_end = part->at + part->count;
    const int64_t first = te_max(te_shard_run_with(&w->runs, s->from), te__shard_run_with_whole(&w->runs, part->at));
    for (int64_t i = first; i < w->runs.count; i++) {
        const te_shard_run r = te_shard_run_at(&w->runs, i);
        const int64_t shift = r.whole - r.at; /* index of an element in the whole tensor, minus its index on this
                                               * rank */
        const int64_t from = te_max(te_max(s->from, r.at), part->at - shift);
        const int64_t to = te_min(te_min(shard_end, r.at + r.elements), part_end - shift);
        if (r.at >= shard_end || r.whole >= part_end) break;
        if (from >= to) continue;
        char *const mine = (char *)s->data + (size_t)(from - s->from) * part->size,
             *const whole = (char *)part->data + (size_t)(from + shift - part->at) * part->size;
        if (s->format != TE__AS_STORED)
            TE_TRY(te__moments_copy(s->data, s->elements, s->format == TE__V_8BIT, from - s->from, to - from, whole,
                                    loads, ctx));
        else TE_TRY(te_copy(ctx, loads ? mine : whole, loads ? whole : mine, (size_t)(to - from) * part->size));
    }
    return TE_OK;
}
/* If `loads` is set, copy the elements of *part to all shards of the tensor that this rank has. Otherwise copy to *part
 * those shards of which te__tensor_shard.saves is 1. */
TE_IF_USED TE_API te_status te__sharded_tensor_copy(const te__sharded_tensor *w, const te__tensor_part *part, int loads,
                                                    te_context *ctx) {
    for (int i = 0; i < w->shards; i++)
        if (loads || w->shard[i].saves) TE_TRY(te__tensor_shard_copy(w, &w->shard[i], part, loads, ctx));
    return TE_OK;
}

/* ---- the list of tensors ----------------------------------------------------------------------------------------- */

/* All tensors of a checkpoint. Some of these tensors are "numbers" (step counts, random state): small arrays in host
 * memory that belong to no parameter. With several ranks, a parameter's tensor is read and written through its shards;
 * te_safetensor.data is then a placeholder that is not null. */
typedef struct te__checkpoint_tensors {
    te_safetensor *tensor;       /* [count] */
    te__sharded_tensor *sharded; /* [count]; for numbers: zeros */
    char *names;                 /* the memory in which the names lie */
    const te_group *ranks;       /* the tensor group, over whose ranks parameters are sharded */
    int replica;                 /* this rank's index in the data group */
    int is_sharded;              /* 1: several ranks save or load one file */
    int has_8bit;                /* 1: the optimizer has moments in 8 bits, which the file stores as bf16 */
    int count;
    size_t used, name_bytes;     /* used: how many bytes of `names` are in use so far; name_bytes: how many bytes
                                  * `names` has */
    te_adamw_state state;
    te_rng rng;
    int64_t step[2], recipes[3], loss_scale_steps; /* the values of the numbers */
    uint64_t random[2];
    float loss_scale;
    /* 1: the file has the state of dynamic loss scaling (loss_scale and loss_scale_steps) */
    int has_loss_scale;
    /* With a pipeline, each model must be saved by exactly one stage. models: the sum of te__model_mark over all
     * models. saves: on one rank of each stage, the sum of te__model_mark over the models that this stage saves; 0 on
     * the stage's other ranks. te__checkpoint_agree checks that the sum of `saves` over all ranks equals `models` */
    uint32_t saves, models;
    int numbers;                 /* how many tensors at the beginning of the list are loaded first: step counts, random
                                  * state, and FP8 scales */
    const te_safetensors *file;  /* null: the checkpoint is saved */
    char *scales;                /* [scales_bytes], host memory for the file's tensor "recipes.scales" while a
                                  * checkpoint is loaded; null if the file has no such tensor */
    size_t scales_bytes;
} te__checkpoint_tensors;

TE_API void te__checkpoint_free(te__checkpoint_tensors *l) {
    free(l->tensor), free(l->sharded), free(l->names), free(l->scales);
}
/* Add a tensor named "<prefix><model>.<op>.<field>" to the list l, at first without shards. If the memory of the list
 * is not allocated yet, only count the tensor. */
TE_API void te__checkpoint_add(te__checkpoint_tensors *l, const char *prefix, const te_named_model *model,
                               const te_param *p, te_dtype dtype) {
    const size_t left = l->names ? l->name_bytes - l->used : 0;
    char *name = l->names ? l->names + l->used : 0;
    const int n = snprintf(name, left, "%s%s%s%s.%s", prefix, model->name, *model->name ? "." : "", p->op, p->field);
    if (l->tensor) {
        te__sharded_tensor *w = &l->sharded[l->count];
        *w = te__sharded_tensor_of(p, l->ranks);
        l->tensor[l->count] = te_safetensor_matrix(name, dtype, w->rows, w->cols, name);
    }
    l->used += (size_t)n + 1, l->count++;
}
/* Add a shard of tensor i. */
TE_API void te__checkpoint_add_shard(te__checkpoint_tensors *l, int i, te__tensor_shard shard) {
    if (!l->tensor) return;
    te__sharded_tensor *w = &l->sharded[i];
    if (!l->is_sharded) l->tensor[i].data = shard.data;
    w->shard[w->shards++] = shard;
}
TE_API void te__checkpoint_add_numbers(te__checkpoint_tensors *l, const char *name, te_safetensors_dtype dtype,
                                       int64_t count, void *data) {
    if (l->tensor) l->tensor[l->count] = te_safetensor_of(name, dtype, 1, &count, data);
    if (l->sharded) memset(&l->sharded[l->count], 0, sizeof *l->sharded);
    l->count++;
}
/* Return whether several ranks save or load one checkpoint together. */
TE_API int te__checkpoint_is_sharded(const te_context *ctx) { return ctx && ctx->comm && ctx->comm->world.size > 1; }
/* The kinds of an optimizer's tensors. te__checkpoint_prefix returns the text with which the tensor names of kind
 * `state` begin, such as "adamw.m.". rule: the rule that updates the parameter (adamw, sgd or muon). */
enum { TE__CHECKPOINT_step, TE__CHECKPOINT_master, TE__CHECKPOINT_m, TE__CHECKPOINT_v };
TE_API const char *te__checkpoint_prefix(te_rule rule, int state) {
#define TE__CHECKPOINT_PREFIXES(rule) {#rule ".step", #rule ".master.", #rule ".m.", #rule ".v."},
    static const char *const prefixes[][4] = {TE_RULES(TE__CHECKPOINT_PREFIXES)};
#undef TE__CHECKPOINT_PREFIXES
    return prefixes[rule][state];
}
/* Return a number for model i. The sum of these numbers over a set of models identifies the set. */
TE_API uint32_t te__model_mark(int i) { return ((uint32_t)i + 1) * 2654435761u; }
TE_API void te__checkpoint_count_model(te__checkpoint_tensors *l, int i, const te_model *m) {
    const int is_copy = m->param_count && m->param[0].is_copy;
    l->models += te__model_mark(i);
    if (!l->replica && !l->ranks->rank && !m->is_elsewhere && !is_copy) l->saves += te__model_mark(i);
}
/* Add the shards of a parameter that te_fsdp_init has sharded over the data group. This rank has up to two ranges of
 * the parameter's elements: one in the rank's shard of the model, and one in the replicated remainder (see the head of
 * this file). */
TE_API void te__checkpoint_add_param_shards(te__checkpoint_tensors *l, te_model *m, const te_param *p) {
    const te_model_shards *s = m->shards;
    const int64_t behind = s->elements * s->ranks, at = p->grad - m->grads, end = at + p->rows * p->cols;
    const int64_t from[2] = {s->elements * s->rank, behind}, to[2] = {from[0] + s->elements, m->elements};
    for (int i = 0; i < 2; i++) {
        const int64_t first = te_max(from[i], at), last = te_min(to[i], end);
        te__tensor_shard shard;
        if (first >= last) continue;
        shard.from = first - at, shard.elements = last - first, shard.format = TE__AS_STORED;
        shard.data = te__param_at(m, p, shard.from);
        shard.saves = !p->is_copy && (!i || !l->replica);
        te__checkpoint_add_shard(l, l->count - 1, shard);
    }
}
TE_API void te__checkpoint_add_param(te__checkpoint_tensors *l, const te_named_model *m, const te_param *p) {
    te__tensor_shard shard;
    te__checkpoint_add(l, "", m, p, p->dtype);
    if (m->model->is_elsewhere) return;
    if (m->model->shards && m->model->shards->has_weights) {
        te__checkpoint_add_param_shards(l, m->model, p);
        return;
    }
    shard.data = p->data, shard.from = 0, shard.elements = p->rows * p->cols;
    shard.saves = !p->is_copy && !l->replica, shard.format = TE__AS_STORED;
    te__checkpoint_add_shard(l, l->count - 1, shard);
}
/* Add the optimizer's tensors of one parameter to the list l, up to three: master weights, m, v. `it` iterates over all
 * ranges of elements for which this rank has optimizer state. At the call, `it` is at the first range of this parameter
 * (if this rank has a range of it); the function moves `it` past the parameter's last range. *more: 0 if no range is
 * left. */
TE_API void te__checkpoint_add_states(te__checkpoint_tensors *l, const te_named_model *m, const te_param *p,
                                      te_rule rule, te_adamw_iter *it, int *more) {
    const te_adamw *o = it->opt;
    const int first = l->count, has_master = p->dtype != TE_f32 && !o->no_master;
    const int is_8bit = te__moments_8bit(o->moments);
    const te_dtype moments = is_8bit ? TE_bf16 : o->moments;
    if (has_master) te__checkpoint_add(l, te__checkpoint_prefix(rule, TE__CHECKPOINT_master), m, p, TE_f32);
    te__checkpoint_add(l, te__checkpoint_prefix(rule, TE__CHECKPOINT_m), m, p, moments);
    if (rule == TE_RULE_adamw) te__checkpoint_add(l, te__checkpoint_prefix(rule, TE__CHECKPOINT_v), m, p, moments);
    for (; *more && it->param == p; *more = te_adamw_next(it)) {
        const int is_zero1_shard = o->zero1.ranks > 1 && !it->zero1.is_replicated;
        te__tensor_shard shard;
        shard.from = it->from, shard.elements = it->elements;
        shard.saves = !p->is_copy && (is_zero1_shard || !l->replica);
        shard.data = it->master, shard.format = TE__AS_STORED;
        if (has_master) te__checkpoint_add_shard(l, first, shard);
        shard.data = it->m, shard.format = is_8bit ? TE__M_8BIT : TE__AS_STORED;
        te__checkpoint_add_shard(l, first + has_master, shard);
        shard.data = it->v, shard.format = is_8bit ? TE__V_8BIT : TE__AS_STORED;
        if (it->v) te__checkpoint_add_shard(l, first + has_master + 1, shard);
    }
}

/* ---- saving moments in 8 bits, one rank -------------------------------------------------------------------------- */

typedef struct te__moments_8bit_reader {
    const te__checkpoint_tensors *l;
    void *part; /* target memory for a part of a tensor after its conversion to bf16 */
} te__moments_8bit_reader;

/* A callback for te__safetensors_extra.source, which delivers the bytes of a tensor: converts 8-bit moments to bf16,
 * and copies all other tensors unchanged. */
TE_IF_USED TE_API te_status te__moments_8bit_source(void *from, void *to, const te_safetensor *t, uint64_t at, size_t n,
                                                    te_context *ctx) {
    const te__moments_8bit_reader *f = (const te__moments_8bit_reader *)from;
    const te__sharded_tensor *w = &f->l->sharded[t - f->l->tensor];
    te__tensor_part part;
    if (!w->shards || w->shard[0].format == TE__AS_STORED) return te_copy(ctx, to, (const char *)t->data + at, n);
    part.data = f->part, part.size = te_dtype_bytes(TE_bf16);
    part.at = (int64_t)at / (int64_t)part.size, part.count = (int64_t)n / (int64_t)part.size;
    TE_TRY(te__sharded_tensor_copy(w, &part, 0, ctx));
    return te_copy(ctx, to, f->part, n);
}
/* Allocate f->part, the memory for converting moments in 8 bits, which te__moments_8bit_close releases. */
TE_API te_status te__moments_8bit_open(te__moments_8bit_reader *f, const te__checkpoint_tensors *l, te_context *ctx) {
    f->l = l, f->part = 0;
    return te_allocate(ctx, &f->part, TE_SAFETENSORS_STAGING);
}
TE_API void te__moments_8bit_close(te__moments_8bit_reader *f, te_context *ctx) { te_release(ctx, f->part); }
/* Set 8-bit moments to zeros before they are loaded. A block of 8-bit moments, which has one scale, may be loaded in
 * several parts. Without the zeros, old elements of the block would influence its scale. */
TE_API te_status te__moments_8bit_clear(const te_adamw *o, te_context *ctx) {
    if (!o || !te__moments_8bit(o->moments)) return TE_OK;
    TE_TRY(te_fill(ctx, o->m, 0, te__moments_bytes(o->m_elements, o->moments)));
    return te_fill(ctx, o->v, 0, te__moments_bytes(o->v_elements, o->moments));
}

/* ---- several ranks: agreeing ------------------------------------------------------------------------------------- */

/* The message that each rank sends to all others: whether it has failed, a hash of its list of tensors, and which
 * models it saves (te__checkpoint_tensors.saves). */
typedef struct te__rank_vote { uint32_t fails, tensors, saves; } te__rank_vote;

TE_API uint32_t te__tensors_hash(const te__checkpoint_tensors *l) {
    uint32_t hash = (uint32_t)l->count * 2654435761u;
    for (int i = 0; i < l->count; i++) {
        const te_safetensor *t = &l->tensor[i];
        for (const char *s = t->name; *s; s++) hash = (hash ^ (uint32_t)(unsigned char)*s) * 16777619u;
        hash = (hash ^ (uint32_t)t->bytes ^ (uint32_t)t->dtype) * 16777619u;
    }
    return hash;
}
/* Wait for all ranks, and return an error on all ranks if any rank has failed or if the ranks' tensors differ. status:
 * an earlier error of this rank, or TE_OK. l: the list of tensors, or null if this rank has none. */
TE_API te_status te__checkpoint_agree(te_status status, const te__checkpoint_tensors *l, te_context *ctx) {
    /* FLOATS: the size of a vote in f32 elements. The all-gather treats the vote's integers as f32, which is correct
     * because it copies bits unchanged. */
    enum { FLOATS = sizeof(te__rank_vote) / sizeof(float) };
    const te_group *g = &ctx->comm->world;
    const size_t bytes = (size_t)g->size * sizeof(te__rank_vote);
    te__rank_vote *votes = (te__rank_vote *)calloc(1, bytes), *target = 0;
    te_status failed = votes ? te_allocate(ctx, (void **)&target, bytes) : TE_ERROR_MEMORY;
    if (failed == TE_OK && status != TE_ERROR_COMM) {
        votes[g->rank].fails = status != TE_OK, votes[g->rank].tensors = l ? te__tensors_hash(l) : 0;
        votes[g->rank].saves = l ? l->saves : 0;
        failed = te_copy(ctx, target + g->rank, votes + g->rank, sizeof *votes);
        if (failed == TE_OK) failed = te_group_all_gather(g, target, target + g->rank, FLOATS, TE_f32, ctx);
        if (failed == TE_OK) failed = te_comm_synchronize(ctx);
        if (failed == TE_OK) failed = te_copy(ctx, votes, target, bytes);
        if (failed == TE_OK) failed = te_comm_synchronize(ctx);
        uint32_t saves = 0;
        for (int i = 0; i < g->size; i++) saves += votes[i].saves;
        for (int i = 0; failed == TE_OK && status == TE_OK && i < g->size; i++)
            if (votes[i].fails)
                status = te_fail(ctx, TE_ERROR_IO, "checkpoint: rank %d of %d has failed; its error says why", i,
                                 g->size);
            else if (votes[i].tensors != votes[g->rank].tensors)
                status = te_fail(ctx, TE_ERROR_VALUE, "checkpoint: rank %d of %d has other tensors than rank %d", i,
                                 g->size, g->rank);
        if (failed == TE_OK && status == TE_OK && l && saves != l->models)
            status = te_fail(ctx, TE_ERROR_STATE,
                             "checkpoint: each model has memory on exactly one stage of the pipeline; on the others it "
                             "is a copy (te_model_mark_copy) or elsewhere (te_model_describe)");
    }
    te_release(ctx, target);
    free(votes);
    return status != TE_OK ? status : failed;
}

/* ---- several ranks: saving --------------------------------------------------------------------------------------- */

/* The state of gathering the tensors: the position in the file, which is the same on all ranks, and memory for a part
 * of a tensor. */
typedef struct te__gather {
    const te__checkpoint_tensors *l;
    /* In target memory. part: the current part of a tensor. zeros[0]: a buffer filled with -0.0 in f32; zeros[1]: the
     * same for 16-bit formats */
    char *part, *zeros[2];
    /* bytes of an element of the current tensor. In the file, tensors with 4-byte elements come before tensors with
     * 2-byte elements */
    size_t size;
    /* the index of the current tensor; l->count if no tensor with elements of `size` bytes is left */
    int i;
    uint64_t at;           /* the offset of the next byte in the data of the current tensor */
} te__gather;

TE_API void te__gather_close(te__gather *g, te_context *ctx) { te_release(ctx, g->part); }
TE_API te_status te__gather_open(te__gather *g, const te__checkpoint_tensors *l, te_context *ctx) {
    const uint32_t fills[2] = {0x80000000u, 0x80008000u};
    memset(g, 0, sizeof *g);
    uint32_t *host = (uint32_t *)malloc(2 * (size_t)TE_SAFETENSORS_STAGING);
    TE_REQUIRE(host, ctx, TE_ERROR_MEMORY, "checkpoint: cannot allocate %d bytes", 2 * (int)TE_SAFETENSORS_STAGING);
    for (int i = 0; i < 2 * TE_SAFETENSORS_STAGING / 4; i++) host[i] = fills[i / (TE_SAFETENSORS_STAGING / 4)];
    te_status status = te_allocate(ctx, (void **)&g->part, 3 * (size_t)TE_SAFETENSORS_STAGING);
    if (status == TE_OK) {
        g->zeros[0] = g->part + TE_SAFETENSORS_STAGING, g->zeros[1] = g->zeros[0] + TE_SAFETENSORS_STAGING;
        status = te_copy(ctx, g->zeros[0], host, 2 * (size_t)TE_SAFETENSORS_STAGING);
        const te_status done = te_synchronize(ctx);
        if (status == TE_OK) status = done;
        if (status != TE_OK) te__gather_close(g, ctx);
    }
    free(host);
    g->l = l, g->size = 4, g->i = 0;
    return status;
}
/* Go to the next part to gather, which begins at byte g->at of tensor g->i; return 0 if no part is left. Numbers (step
 * counts, random state) are skipped, because rank 0 has them without gathering. */
TE_API int te__gather_next(te__gather *g) {
    for (;; g->i = 0, g->size /= 2)
        for (; g->i < g->l->count; g->i++, g->at = 0) {
            const te_safetensor *t = &g->l->tensor[g->i];
            if (g->size < 2) return 0;
            if (g->l->sharded[g->i].runs.count && te_safetensors_dtype_bytes(t->dtype) == g->size && g->at < t->bytes)
                return 1;
        }
}
/* Gather the current part of a tensor, n bytes, from all ranks into g->part on rank 0. */
TE_IF_USED TE_API te_status te__gather_part(te__gather *g, size_t n, te_context *ctx) {
    const te_safetensor *t = &g->l->tensor[g->i];
    const te_dtype dtype = g->size == 4 ? TE_f32 : t->dtype == TE_SAFETENSORS_BF16 ? TE_bf16 : TE_f16;
    te__tensor_part part;
    part.data = g->part, part.size = g->size;
    part.at = (int64_t)(g->at / g->size), part.count = (int64_t)(n / g->size);
    TE_TRY(te_copy(ctx, g->part, g->zeros[g->size == 2], n));
    TE_TRY(te__sharded_tensor_copy(&g->l->sharded[g->i], &part, 0, ctx));
    TE_TRY(te_group_all_reduce(&ctx->comm->world, g->part, g->part, part.count, dtype, ctx));
    g->at += n;
    return te_comm_synchronize(ctx);
}
/* The size of the current part in bytes. */
TE_API size_t te__gather_bytes(const te__gather *g) {
    const uint64_t left = g->l->tensor[g->i].bytes - g->at;
    return left < TE_SAFETENSORS_STAGING ? (size_t)left : (size_t)TE_SAFETENSORS_STAGING;
}
/* A callback for te__safetensors_extra.source on rank 0, which delivers the bytes of a tensor: gathers the requested
 * part of the tensor, and copies this part to host memory. */
TE_IF_USED TE_API te_status te__gather_source(void *from, void *to, const te_safetensor *t, uint64_t at, size_t n,
                                              te_context *ctx) {
    te__gather *g = (te__gather *)from;
    if (!g->l->sharded[t - g->l->tensor].runs.count) return te_copy(ctx, to, (const char *)t->data + at, n);
    TE_REQUIRE(te__gather_next(g) && t == &g->l->tensor[g->i] && at == g->at && n == te__gather_bytes(g), ctx,
               TE_ERROR_STATE, "checkpoint: %.60s is not what the other ranks gather now", t->name);
    TE_TRY(te__gather_part(g, n, ctx));
    return te_copy(ctx, to, g->part, n);
}
/* Gather all parts of the tensors that this rank has not gathered yet. A rank that does not write the file takes part
 * in gathering all parts here. On rank 0, parts are left only if writing has failed; rank 0 then gathers the rest,
 * because the other ranks would otherwise wait forever. */
TE_IF_USED TE_API te_status te__gather_rest(te__gather *g, te_context *ctx) {
    while (te__gather_next(g)) TE_TRY(te__gather_part(g, te__gather_bytes(g), ctx));
    return TE_OK;
}

/* ---- loading shards ---------------------------------------------------------------------------------------------- */

/* Load this rank's shards of tensor i from the file, and convert the numbers if the file has another dtype. host:
 * workspace for the numbers before and after conversion, 2 * TE_SAFETENSORS_STAGING bytes of host memory. buffer:
 * workspace, TE_SAFETENSORS_STAGING bytes of target memory. */
TE_IF_USED TE_API te_status te__sharded_tensor_read(const te__checkpoint_tensors *l, int i, const te_safetensors *f,
                                                    char *host, char *buffer, te_context *ctx) {
    const te_safetensor *want = &l->tensor[i], *t = te_safetensors_find(f, want->name);
    const size_t is_bytes = te_safetensors_dtype_bytes(t->dtype), as_bytes = te_safetensors_dtype_bytes(want->dtype);
    const int64_t count = (int64_t)(t->bytes / is_bytes), limit = TE_SAFETENSORS_STAGING / 4;
    te_dtype is = TE_f32, as = TE_f32;
    te__tensor_part part;
    (void)te__safetensors_converts(&is, t->dtype), (void)te__safetensors_converts(&as, want->dtype);
    part.data = buffer, part.size = as_bytes;
    for (part.at = 0; part.at < count; part.at += part.count) {
        part.count = te_min(limit, count - part.at);
        char *converted = is == as ? host : host + TE_SAFETENSORS_STAGING;
        const uint64_t from = f->data_at + t->offset + (uint64_t)part.at * is_bytes;
        TE_TRY(te__safetensors_get(f, host, (size_t)part.count * is_bytes, from, ctx));
        if (is != as) (void)te__safetensors_convert(converted, as, host, is, part.count);
        TE_TRY(te_copy(ctx, buffer, converted, (size_t)part.count * as_bytes));
        TE_TRY(te__sharded_tensor_copy(&l->sharded[i], &part, 1, ctx));
        TE_TRY(te_synchronize(ctx));
    }
    return TE_OK;
}
/* Load this rank's shards of all tensors from index `first` on. te_safetensors_check must have found these tensors in
 * the file. */
TE_IF_USED TE_API te_status te__sharded_tensors_load(const te__checkpoint_tensors *l, int first,
                                                     const te_safetensors *f, te_context *ctx) {
    char *host = (char *)malloc(2 * (size_t)TE_SAFETENSORS_STAGING);
    void *buffer = 0;
    TE_REQUIRE(host, ctx, TE_ERROR_MEMORY, "checkpoint: cannot allocate %d bytes", 2 * (int)TE_SAFETENSORS_STAGING);
    te_status status = te_allocate(ctx, &buffer, TE_SAFETENSORS_STAGING);
    for (int i = first; i < l->count && status == TE_OK; i++)
        if (l->sharded[i].shards) status = te__sharded_tensor_read(l, i, f, host, (char *)buffer, ctx);
    te_release(ctx, buffer);
    free(host);
    return status;
}

#endif
