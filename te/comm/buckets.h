/* buckets.h -- gradients of ranks that train one model, summed while backward still runs: what te_reduce_gradients does
 * (reduce.h), in buckets. A bucket is gradients that lie one behind the other; the sum over the data group of its ranks
 * is enqueued when the last of them is final, on a second stream.
 *
 * Do this:
 *     te_model *models[] = {&embed.model, &block.model, &head.model};    // they and the list outlive the buckets
 *     te_buckets_config config = te_buckets_defaults();
 *     TE_TRY(te_buckets_init(&buckets, models, 3, &config, &ctx));       // behind bind, tie and freeze
 *     ... each step: the backwards of all micro-batches but the last ...
 *     TE_TRY(te_buckets_begin(&buckets, &ctx));
 *     ... the backwards of the last one, each list once, the same order on all ranks ...
 *     TE_TRY(te_buckets_finish(&buckets, &ctx));                         // what follows waits for the sums
 *     TE_TRY(te_adamw_step(&opt, &ctx));
 *     te_buckets_destroy(&buckets);                                      // before te_comm_destroy
 *
 * A tied parameter is final when all lists of `models` that share it have run; frozen ones are left out. Gradients of
 * which each rank of the tensor group has a part are first summed over that group, on the context's stream, where its
 * other collectives are. With config.shards, that of the optimizer, a bucket is a model, and ranks get their slices of
 * its sums alone, as by te_adamw_reduce. From begin to finish only the backwards read and write the gradients; an
 * optimizer's step, te_reduce_gradients and a second backward of a list are refused. A capture of a step (te_graph)
 * has begin and finish in it.
 *
 * Sums in f32 have the bits of te_reduce_gradients where these do not depend on what is summed in one call: of two
 * replicas always; of more NCCL and MPI choose the order of a sum by the size of the call and the place in it, and
 * copied_sums.h adds in the order of the ranks. They are the same in each run with the same buckets, of which the
 * lists, config.bytes and the number of ranks decide.
 *
 * On the host a sum is there when the call that starts it returns: all ranks share the same processors, and MPI works
 * only while it is called.
 */
#ifndef TE_COMM_BUCKETS_H
#define TE_COMM_BUCKETS_H

#include <stdlib.h> /* calloc */

#include "../core/side.h" /* te_side */
#include "grad_sums.h"    /* te__grad_sum */
#include "reduce.h"       /* te__grad_run, te__is_reduced */

typedef struct te_buckets_config {
    int64_t bytes; /* of a bucket, at most; a larger tensor is one by itself */
    int shards;    /* of the optimizer: te_data_group(ctx)->size or 1; with Muon 1 */
    te_dtype dtype; /* TE_f32; TE_bf16: gradients are rounded before they are summed, and so are their sums: half of the
                     * bytes on the way, and memory for as many, at most bytes / 2 */
    int copies; /* CUDA: sums that more of the backward comes behind go by copy engines (copied_sums.h), where the ranks
                 * of the data group map each other's memory, of which each takes up to 2 * bytes as long as the
                 * communicator is there. 0: by NCCL */
} te_buckets_config;

/* What a sum costs whatever its size, NCCL's 11 us or some 30 us of copies, is a fourteenth of one of 32 MiB. */
enum { TE_BUCKET_BYTES = 32 << 20 };

TE_API te_buckets_config te_buckets_defaults(void) {
    te_buckets_config c;
    c.bytes = TE_BUCKET_BYTES, c.shards = 1, c.dtype = TE_f32, c.copies = 1;
    return c;
}

/* A gradient, and how many parameters of the models share it: so many backwards write it. */
typedef struct te__bucket_grad { const te_param *param; int bucket, uses, left; } te__bucket_grad;
/* Gradients [first, first + count) of te_buckets.grad, the last of which lies first in memory. */
typedef struct te__bucket {
    int model; /* of its first gradient */
    int first, count, left, started;
    int is_last; /* once it is final backward has no more matrix products to hide its sum */
    float *from;
    int64_t elements;
} te__bucket;
typedef struct te__bucket_model { int first, ran; } te__bucket_model; /* first: of te_buckets.place */

/* Stays where it was initialised: the models point to it. */
typedef struct te_buckets {
    te_watch watch; /* the first member */
    te_buckets_config config;
    te_model *const *models;
    int model_count, count, grad_count;
    te__bucket *bucket;        /* [count], in the order of a backward; all tables in one piece of host memory */
    te__bucket_grad *grad;     /* [grad_count], of all models, from the last parameter of the last one on */
    te__bucket_model *of;      /* [model_count] */
    int *place;                /* by model and parameter: which of `grad` it is, -1: none */
    uint64_t where;            /* what the tables were made for */
    te_group tensor;           /* the context's at te_buckets_init */
    te_grad_sums sums;         /* over its data group */
    te_side side;
} te_buckets;

/* ---- tables ------------------------------------------------------------------------------------------------------ */

/* A number that changes when a model is bound again, when others are frozen or when others are tied. */
TE_API uint64_t te__buckets_where(const te_buckets *b) {
    uint64_t sum = 1;
    for (int i = 0; i < b->model_count; i++)
        for (int k = 0; k < b->models[i]->param_count; k++) {
            const te_param *p = &b->models[i]->param[k];
            sum = (sum * 31 + (uint64_t)(uintptr_t)p->grad) * 31 + (uint64_t)(uintptr_t)p->with + (p->frozen ? 1u : 0u);
        }
    return sum;
}
/* The gradient that p writes; null: none of theirs. */
TE_API te__bucket_grad *te__bucket_grad_of(const te_buckets *b, const te_param *p) {
    const te_param *owner = p->tied ? p->with : p;
    if (!te_is_trained(p)) return 0;
    for (int i = 0; i < b->model_count; i++) {
        const int at = b->models[i]->param == owner - owner->index ? b->place[b->of[i].first + owner->index] : -1;
        if (at >= 0) return &b->grad[at];
    }
    return 0;
}
/* Put p's gradient into the last bucket, or into a new one. */
TE_API void te__bucket_add(te_buckets *b, int model, const te_param *p) {
    const int64_t elements = te_round_up(p->rows * p->cols, TE_PARAM_ALIGN);
    te__bucket *k = b->count ? &b->bucket[b->count - 1] : 0;
    const int fits = k && (k->elements + elements) * (int64_t)sizeof(float) <= b->config.bytes;
    if (!k || !(b->config.shards > 1 ? k->model == model : fits && p->grad + elements == k->from)) {
        k = &b->bucket[b->count++];
        k->model = model, k->first = b->grad_count;
    }
    te__bucket_grad *g = &b->grad[b->grad_count];
    g->param = p, g->bucket = b->count - 1;
    b->place[b->of[model].first + p->index] = b->grad_count++;
    k->count++, k->from = p->grad, k->elements += elements;
}
TE_API te_status te__buckets_make(te_buckets *b, te_context *ctx) {
    size_t n = 0;
    for (int i = 0; i < b->model_count; i++) n += (size_t)b->models[i]->param_count;
    const size_t models = (size_t)b->model_count,
                 bytes = n * (sizeof *b->bucket + sizeof *b->grad + sizeof *b->place) + models * sizeof *b->of;
    char *memory = (char *)calloc(1, bytes + 1);
    TE_REQUIRE(memory, ctx, TE_ERROR_MEMORY, "te_buckets_init: cannot allocate %zu bytes", bytes);
    b->bucket = (te__bucket *)(void *)memory, memory += n * sizeof *b->bucket;
    b->grad = (te__bucket_grad *)(void *)memory, memory += n * sizeof *b->grad;
    b->of = (te__bucket_model *)(void *)memory, b->place = (int *)(void *)(memory + models * sizeof *b->of);
    for (int i = 0, at = 0; i < b->model_count; at += b->models[i++]->param_count) b->of[i].first = at;
    for (size_t i = 0; i < n; i++) b->place[i] = -1;
    for (int i = b->model_count - 1; i >= 0; i--)
        for (int k = b->models[i]->param_count - 1; k >= 0; k--)
            if (te__is_reduced(&b->models[i]->param[k])) te__bucket_add(b, i, &b->models[i]->param[k]);
    for (int i = 0, products = 0; i < b->model_count; i++) {
        const te_model *m = b->models[i];
        const te_param *p = m->param;
        for (int k = 0; k < m->plan->op_count; k++) {
            const te_op *op = &m->plan->op[k];
            for (const te_param *end = p + op->params; p < end; p++) {
                te__bucket_grad *g = te__bucket_grad_of(b, p);
                if (g) g->uses++;
                if (g && !products) b->bucket[g->bucket].is_last = 1;
            }
            products += op->op_class == TE_CLASS_gemm;
        }
    }
    b->where = te__buckets_where(b);
    return TE_OK;
}

/* ---- what a backward calls --------------------------------------------------------------------------------------- */

/* The sums of a bucket, all of whose gradients are final. */
TE_IF_USED TE_API te_status te__bucket_start(te_buckets *b, te__bucket *k, te_context *ctx) {
    te__grad_run run = {0, 0};
    k->started = 1;
    for (int i = k->first + k->count - 1; i >= k->first && b->tensor.size > 1; i--) {
        const te_param *p = b->grad[i].param;
        if (p->sums) TE_TRY(te__run_add(&run, p, &b->tensor, ctx));
    }
    TE_TRY(te__run_close(&run, &b->tensor, ctx));
    if (b->sums.data.size == 1) return TE_OK;
    TE_TRY(te_side_enter(&b->side, ctx));
    const te_status status =
        b->config.shards > 1 ? te__grad_slices(&b->sums, b->models[k->model], b->config.shards, !k->is_last, ctx)
                             : te__grad_sum(&b->sums, k->from, k->elements, !k->is_last, ctx);
    te_side_leave(&b->side, ctx);
    return status;
}
TE_IF_USED TE_API te_status te__buckets_final(te_watch *w, const te_param *p, te_context *ctx) {
    te_buckets *b = (te_buckets *)(void *)w;
    te__bucket_grad *g = te__bucket_grad_of(b, p);
    for (int i = 0; i < b->model_count; i++)
        if (b->models[i]->param == p - p->index) b->of[i].ran = 1;
    if (!g || --g->left || --b->bucket[g->bucket].left) return TE_OK;
    return te__bucket_start(b, &b->bucket[g->bucket], ctx);
}
TE_API te_status te__buckets_allow(const te_watch *w, const te_model *m, te_context *ctx) {
    const te_buckets *b = (const te_buckets *)(const void *)w;
    for (int i = 0; i < b->model_count; i++)
        TE_REQUIRE(b->models[i] != m || !b->of[i].ran, ctx, TE_ERROR_STATE,
                   "%s: a backward of it has run since te_buckets_begin, and another would write gradients that are "
                   "summed already; te_buckets_begin comes before the last micro-batch's", m->plan->name);
    return TE_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

TE_API te_status te__buckets_check_models(te_model *const *models, int count, const te_buckets_config *c,
                                          te_context *ctx) {
    const int data = te_data_group(ctx)->size;
    TE_REQUIRE(models || !count, ctx, TE_ERROR_NULL, "te_buckets_init: the list of models is null");
    TE_REQUIRE(count >= 0 && c->bytes > 0, ctx, TE_ERROR_VALUE, "te_buckets_init: %d models, buckets of %lld bytes",
               count, (long long)c->bytes);
    TE_REQUIRE(c->dtype == TE_f32 || c->dtype == TE_bf16, ctx, TE_ERROR_DTYPE,
               "te_buckets_init: gradients are summed in f32 or bf16, not in %s", te_dtype_name(c->dtype));
    TE_REQUIRE(c->shards == 1 || c->shards == data, ctx, TE_ERROR_VALUE,
               "te_buckets_init: shards is %d, and the data group is of %d; it is that or 1", c->shards, data);
    for (int i = 0; i < count; i++) {
        const te_model *m = models[i];
        TE_REQUIRE(m && m->plan && (m->grads || !m->elements), ctx, TE_ERROR_STATE,
                   "te_buckets_init: model %d is null, not bound, or bound without gradients", i);
        TE_REQUIRE(!m->watch, ctx, TE_ERROR_STATE, "te_buckets_init: model %d (%s) belongs to buckets already", i,
                   m->plan->name);
        TE_REQUIRE(c->shards == 1 || m->grad_elements == m->elements, ctx, TE_ERROR_STATE,
                   "te_buckets_init: the gradients of model %d (%s) do not lie as its parameters do "
                   "(te_bind_trained_grads), so %d shards cannot cut them", i, m->plan->name, c->shards);
        for (int k = 0; k < i; k++)
            TE_REQUIRE(models[k] != m, ctx, TE_ERROR_VALUE, "te_buckets_init: model %d (%s) is model %d again", i,
                       m->plan->name, k);
    }
    return TE_OK;
}
TE_API void te_buckets_destroy(te_buckets *b) {
    if (!b) return;
    for (int i = 0; b->bucket && i < b->model_count; i++)
        if (b->models[i]->watch == &b->watch) b->models[i]->watch = 0;
    te_side_close(&b->side);
    te__grad_sums_close(&b->sums);
    free(b->bucket);
    memset(b, 0, sizeof *b);
}
/* The models as they are bound, tied and frozen now. All ranks give the same ones in the order of their forwards. With
 * one rank nothing is summed, and the calls are checked alike. */
TE_IF_USED TE_API te_status te_buckets_init(te_buckets *b, te_model *const *models, int count,
                                            const te_buckets_config *config, te_context *ctx) {
    TE_TRY(te_check_target(ctx, "te_buckets_init"));
    TE_REQUIRE(b && config, ctx, TE_ERROR_NULL, "te_buckets_init: the struct or the config is null");
    TE_TRY(te__buckets_check_models(models, count, config, ctx));
    memset(b, 0, sizeof *b);
    b->config = *config, b->models = models, b->model_count = count;
    b->watch.slices = config->shards;
    b->watch.allows = te__buckets_allow, b->watch.is_final = te__buckets_final;
    b->tensor = *te_tensor_group(ctx);
    te_status status = te__grad_sums_open(&b->sums, config->bytes, config->dtype, config->copies, ctx);
    if (status == TE_OK) status = te__buckets_make(b, ctx);
    if (status == TE_OK && b->sums.data.size > 1) status = te_side_open(&b->side, ctx);
    if (status != TE_OK) return te_buckets_destroy(b), status;
    for (int i = 0; i < count; i++) models[i]->watch = &b->watch;
    return TE_OK;
}
TE_API te_status te__buckets_check(const te_buckets *b, const char *who, te_context *ctx) {
    TE_TRY(te_check_target(ctx, who));
    TE_REQUIRE(b && b->bucket, ctx, TE_ERROR_NULL, "%s: not initialised", who);
    for (int i = 0; i < b->model_count; i++)
        TE_REQUIRE(b->models[i]->watch == &b->watch, ctx, TE_ERROR_STATE,
                   "%s: model %d (%s) was bound again since te_buckets_init", who, i, b->models[i]->plan->name);
    TE_REQUIRE(b->where == te__buckets_where(b), ctx, TE_ERROR_STATE,
               "%s: a model has other gradients, or others are frozen or tied, since te_buckets_init", who);
    return TE_OK;
}
/* From here on each list runs one more backward of this step, and its gradients are summed. */
TE_API te_status te_buckets_begin(te_buckets *b, te_context *ctx) {
    TE_TRY(te__buckets_check(b, "te_buckets_begin", ctx));
    TE_REQUIRE(!b->watch.armed, ctx, TE_ERROR_STATE, "te_buckets_begin: begun already; te_buckets_finish comes first");
    for (int i = 0; i < b->model_count; i++) b->of[i].ran = 0;
    for (int i = 0; i < b->grad_count; i++) b->grad[i].left = b->grad[i].uses;
    for (int i = 0; i < b->count; i++) b->bucket[i].left = b->bucket[i].count, b->bucket[i].started = 0;
    b->watch.armed = 1;
    return TE_OK;
}
/* What is enqueued behind this reads the sums of all ranks. */
TE_API te_status te_buckets_finish(te_buckets *b, te_context *ctx) {
    TE_TRY(te__buckets_check(b, "te_buckets_finish", ctx));
    TE_REQUIRE(b->watch.armed, ctx, TE_ERROR_STATE, "te_buckets_finish: te_buckets_begin comes first");
    for (int i = 0; i < b->grad_count; i++) {
        const te__bucket_grad *g = &b->grad[i];
        TE_REQUIRE(!g->left, ctx, TE_ERROR_STATE,
                   "te_buckets_finish: %s.%s is not final: of %d backwards that write its gradient %d have run since "
                   "te_buckets_begin", g->param->op, g->param->field, g->uses, g->uses - g->left);
    }
    b->watch.armed = 0;
    return te_side_join(&b->side, ctx);
}

#endif
