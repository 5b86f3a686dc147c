/* buckets.h -- reduces the gradients of data-parallel ranks in buckets, while backward still runs. A bucket is a range
 * of gradients in memory. A gradient is final when the last backward that adds to it has run; when all gradients of a
 * bucket are final, the bucket's reduction over the data group is enqueued on a second stream. te_reduce_gradients
 * (reduce_gradients.h) reduces without buckets, after backward.
 *
 * Do this:
 *     te_model *models[] = {&embed.model, &block.model, &head.model};    // models and array must outlive the buckets
 *     te_buckets_config config = te_buckets_defaults();
 *     TE_TRY(te_buckets_init(&buckets, models, 3, &config, &ctx));       // after bind, tie and freeze
 *     ... each step: the backwards of all micro-batches but the last ...
 *     TE_TRY(te_buckets_begin(&buckets, &ctx));
 *     ... the backwards of the last micro-batch, each model once, in the same order on all ranks ...
 *     TE_TRY(te_buckets_finish(&buckets, &ctx));                         // work enqueued later waits for the sums
 *     TE_TRY(te_adamw_step(&opt, &ctx));
 *     te_buckets_destroy(&buckets);                                      // before te_comm_destroy
 *
 * Between te_buckets_begin and te_buckets_finish only the backwards of the last micro-batch may access the gradients:
 * an optimizer step, te_reduce_gradients and a second backward of a model return an error. A captured step (te_graph)
 * must contain both calls. Frozen parameters are left out. A gradient that is a partial sum on each tensor rank is
 * first summed over the tensor group, on the context's stream.
 *
 * With two replicas, f32 sums are bitwise identical to those of te_reduce_gradients. With more replicas they may differ
 * in the last bits: NCCL and MPI choose the order of the additions by the size of the reduction; DMA engines add in the
 * order of the ranks. Runs with the same models, config.bytes and ranks are bitwise identical. On the host nothing
 * overlaps: backward waits for each reduction. */
#ifndef TE_COMM_BUCKETS_H
#define TE_COMM_BUCKETS_H

#include <stdlib.h> /* calloc */

#include "../core/target.h"       /* te_side_stream */
#include "comm.h"               /* te_group_compare */
#include "impl/bucket_reduce.h" /* te_bucket_reducer, te__bucket_all_reduce */
#include "reduce_gradients.h"   /* te__grad_range, te__is_reduced */

typedef struct te_buckets_config {
    /* the largest size of a bucket, counting 4 bytes for each gradient element; a single gradient that is larger
     * becomes a bucket by itself */
    int64_t bytes;
    /* 1 or the size of the data group (te_data_group(ctx)->size); must be equal to te_adamw_config.shards. With 1 each
     * rank gets the sums of all gradients, which Muon requires. With the group's size each rank gets only the sums of
     * its own shard, as with te_adamw_reduce, and all gradients of a model form one bucket */
    int shards;
    /* the format in which gradients are sent between ranks, TE_f32 or TE_bf16. With TE_bf16 the gradients and their
     * sums are rounded to bf16, half as many bytes cross the link, and each device needs up to te_buckets_config.bytes
     * / 2 more bytes of memory */
    te_dtype dtype;
    /* used on CUDA only. With 0, NCCL reduces all buckets. With 1, DMA engines reduce the buckets that become final
     * while GEMMs of backward are still to run, because DMA engines occupy no multiprocessors. NCCL, which is faster
     * but slows GEMMs down, reduces the other buckets. DMA engines require symmetric memory in the data group
     * (te_comm_config.peer_bytes), and take up to 2 * te_buckets_config.bytes bytes of memory on each device until
     * te_comm_destroy */
    int dma;
} te_buckets_config;

/* The default size of a bucket, in bytes. With NCCL the fixed cost of a reduction, 11 us, is a fourteenth of the whole
 * time that a reduction of 32 MiB takes; with DMA engines the fixed cost is some 30 us. With larger buckets the first
 * reduction would begin later, because more gradients must be final before it. */
enum { TE_BUCKET_BYTES = 32 << 20 };

TE_API te_buckets_config te_buckets_defaults(void) {
    te_buckets_config c;
    c.bytes = TE_BUCKET_BYTES, c.shards = 1, c.dtype = TE_f32, c.dma = 1;
    return c;
}

/* The gradient of one parameter, or of several tied parameters. bucket: the index of the gradient's bucket. uses: the
 * number of parameters that share the gradient; the backward of each of these parameters adds to the gradient. pending:
 * the number of these backwards that have not run yet since te_buckets_begin. */
typedef struct te__bucket_grad { const te_param *param; int bucket, uses, pending; } te__bucket_grad;
/* A bucket: the gradients te_buckets.grad[first] to grad[first + count - 1]. In memory these gradients lie in the
 * reverse order. from: the address of the first element in memory; elements: the number of elements, with the padding
 * between gradients. */
typedef struct te__bucket {
    /* the index, in te_buckets.models, of the model that owns the gradient with index `first` */
    int model;
    /* pending: the number of the bucket's gradients that are not final yet; started: 1 if the bucket's reduction has
     * begun */
    int first, count, pending, started;
    /* 1 if one of the bucket's gradients becomes final only after backward's last GEMM, so that no GEMM can hide the
     * bucket's reduction */
    int is_exposed;
    float *from;
    int64_t elements;
} te__bucket;
/* The state of one model. first: the index, in te_buckets.grad_index, of the model's first parameter. ran: whether a
 * backward of the model has run since te_buckets_begin. */
typedef struct te__bucket_model { int first, ran; } te__bucket_model;

/* The buckets of some models. The struct must stay at its address, because the models hold pointers to the struct. */
typedef struct te_buckets {
    /* the callbacks that backward calls. `watch` must be the first member, because the callbacks cast their te_watch *
     * to a te_buckets * */
    te_watch watch;
    te_buckets_config config;
    te_model *const *models;
    int model_count, count, grad_count;
    /* [count]: the buckets, in the order in which backward completes them. The tables grad, of_model and grad_index
     * follow in the same allocation */
    te__bucket *bucket;
    /* [grad_count]: the gradients of all models, in order from the last parameter of the last model to the first
     * parameter of the first model */
    te__bucket_grad *grad;
    te__bucket_model *of_model; /* [model_count] */
    /* [number of parameters of all models]: the index in `grad` of each parameter's gradient; -1 if the gradient is in
     * no bucket */
    int *grad_index;
    uint64_t fingerprint;       /* the result of te__buckets_fingerprint when te_buckets_init made these tables */
    te_group tensor;            /* a copy of the context's tensor group, made by te_buckets_init */
    te_bucket_reducer reducer;  /* reduces over the data group */
    te_side_stream side;        /* the second stream, on which the reductions run */
} te_buckets;

/* ---- tables ------------------------------------------------------------------------------------------------------ */

/* Returns a hash of the gradients' addresses and of which parameters are tied or frozen. The hash changes when a model
 * is bound to other memory, or when other parameters become frozen or tied. */
TE_API uint64_t te__buckets_fingerprint(const te_buckets *b) {
    uint64_t sum = 1;
    for (int i = 0; i < b->model_count; i++)
        for (int k = 0; k < b->models[i]->param_count; k++) {
            const te_param *p = &b->models[i]->param[k];
            sum = (sum * 31 + (uint64_t)(uintptr_t)p->grad) * 31 + (uint64_t)(uintptr_t)p->with + (p->frozen ? 1u : 0u);
        }
    return sum;
}
/* Returns the entry in te_buckets.grad for the gradient that p's backward writes. If p is tied to another parameter,
 * this is the gradient of that other parameter. Null if the gradient is in no bucket. */
TE_API te__bucket_grad *te__bucket_grad_of(const te_buckets *b, const te_param *p) {
    const te_param *owner = p->tied ? p->with : p;
    if (!te_is_trained(p)) return 0;
    for (int i = 0; i < b->model_count; i++) {
        const int is_in_model = b->models[i]->param == owner - owner->index;
        const int at = is_in_model ? b->grad_index[b->of_model[i].first + owner->index] : -1;
        if (at >= 0) return &b->grad[at];
    }
    return 0;
}
/* Adds p's gradient to the last bucket, or begins a new bucket with it. With config.shards > 1, each model has one
 * bucket. With config.shards 1, a new bucket begins if the last bucket would exceed config.bytes, or if the gradient is
 * not adjacent to the last bucket in memory. */
TE_API void te__bucket_add(te_buckets *b, int model, const te_param *p) {
    const int64_t elements = te_round_up(p->rows * p->cols, TE_PARAM_ALIGN);
    te__bucket *k = b->count ? &b->bucket[b->count - 1] : 0;
    const int fits = k && (k->elements + elements) * (int64_t)sizeof(float) <= b->config.bytes;
    const int is_adjacent = k && p->grad + elements == k->from;
    const int joins = k && (b->config.shards > 1 ? k->model == model : fits && is_adjacent);
    if (!joins) {
        k = &b->bucket[b->count++];
        k->model = model, k->first = b->grad_count;
    }
    te__bucket_grad *g = &b->grad[b->grad_count];
    g->param = p, g->bucket = b->count - 1;
    b->grad_index[b->of_model[model].first + p->index] = b->grad_count++;
    k->count++, k->from = p->grad, k->elements += elements;
}
/* Counts the uses of each gradient, and marks the exposed buckets, whose reduction cannot run at the same time as a
 * GEMM of backward. Backward runs from the last op of the last model to the first op of the first model, so backward's
 * last GEMM belongs to the first op that has a GEMM. If a bucket contains a parameter of that op or of an op before it,
 * the bucket becomes final only after this GEMM. */
TE_API void te__buckets_count_uses(te_buckets *b) {
    /* the number of GEMMs in the ops before op k of model i, in the order of forward */
    int gemms = 0;
    for (int i = 0; i < b->model_count; i++) {
        const te_model *m = b->models[i];
        const te_param *p = m->param;
        for (int k = 0; k < m->plan->op_count; k++) {
            const te_op *op = &m->plan->op[k];
            for (const te_param *end = p + op->params; p < end; p++) {
                te__bucket_grad *g = te__bucket_grad_of(b, p);
                if (g) g->uses++;
                if (g && !gemms) b->bucket[g->bucket].is_exposed = 1;
            }
            gemms += op->op_class == TE_CLASS_gemm;
        }
    }
}
TE_API te_status te__buckets_build(te_buckets *b, te_context *ctx) {
    size_t n = 0;
    for (int i = 0; i < b->model_count; i++) n += (size_t)b->models[i]->param_count;
    const size_t models = (size_t)b->model_count,
                 bytes = n * (sizeof *b->bucket + sizeof *b->grad + sizeof *b->grad_index) +
                         models * sizeof *b->of_model;
    char *memory = (char *)calloc(1, bytes + 1);
    TE_REQUIRE(memory, ctx, TE_ERROR_MEMORY, "te_buckets_init: cannot allocate %zu bytes", bytes);
    b->bucket = (te__bucket *)(void *)memory, memory += n * sizeof *b->bucket;
    b->grad = (te__bucket_grad *)(void *)memory, memory += n * sizeof *b->grad;
    b->of_model = (te__bucket_model *)(void *)memory;
    b->grad_index = (int *)(void *)(memory + models * sizeof *b->of_model);
    for (int i = 0, at = 0; i < b->model_count; at += b->models[i++]->param_count) b->of_model[i].first = at;
    for (size_t i = 0; i < n; i++) b->grad_index[i] = -1;
    for (int i = b->model_count - 1; i >= 0; i--)
        for (int k = b->models[i]->param_count - 1; k >= 0; k--)
            if (te__is_reduced(&b->models[i]->param[k])) te__bucket_add(b, i, &b->models[i]->param[k]);
    te__buckets_count_uses(b);
    b->fingerprint = te__buckets_fingerprint(b);
    return TE_OK;
}

/* ---- called by backward (te_watch) ------------------------------------------------------------------------------- */

TE_IF_USED TE_API te_status te__bucket_reduce_copies(const te_buckets *b, const te__bucket *k, te_context *ctx) {
    for (int i = k->first; i < k->first + k->count; i++) TE_TRY(te__reduce_copies(b->grad[i].param, ctx));
    return TE_OK;
}
/* Enqueues the reduction of a bucket, all of whose gradients are final, which means that no later backward adds to the
 * gradients. */
TE_IF_USED TE_API te_status te__bucket_reduce(te_buckets *b, te__bucket *k, te_context *ctx) {
    te__grad_range range = {0, 0};
    k->started = 1;
    for (int i = k->first + k->count - 1; i >= k->first && b->tensor.size > 1; i--) {
        const te_param *p = b->grad[i].param;
        if (p->sums) TE_TRY(te__grad_range_extend(&range, p, &b->tensor, ctx));
    }
    TE_TRY(te__grad_range_reduce(&range, &b->tensor, ctx));
    if (b->reducer.data.size == 1) return te__bucket_reduce_copies(b, k, ctx);
    TE_TRY(te_side_stream_enter(&b->side, ctx));
    const int shards = b->config.shards, hidden = !k->is_exposed;
    te_status status = shards > 1 ? te__bucket_reduce_scatter(&b->reducer, b->models[k->model], shards, hidden, ctx)
                                  : te__bucket_all_reduce(&b->reducer, k->from, k->elements, hidden, ctx);
    if (status == TE_OK) status = te__bucket_reduce_copies(b, k, ctx);
    te_side_stream_leave(&b->side, ctx);
    return status;
}
/* The callback te_watch.is_final, which a backward calls when it has written p's gradient. If all backwards that write
 * this gradient have now run, the gradient is final. If all gradients of the bucket are final now, the function
 * enqueues the bucket's reduction. */
TE_IF_USED TE_API te_status te__buckets_grad_ready(te_watch *w, const te_param *p, te_context *ctx) {
    te_buckets *b = (te_buckets *)(void *)w;
    te__bucket_grad *g = te__bucket_grad_of(b, p);
    for (int i = 0; i < b->model_count; i++)
        if (b->models[i]->param == p - p->index) b->of_model[i].ran = 1;
    if (!g || --g->pending || --b->bucket[g->bucket].pending) return TE_OK;
    return te__bucket_reduce(b, &b->bucket[g->bucket], ctx);
}
/* The callback te_watch.allows: returns an error if a backward of m must not run, because a backward of m has already
 * run since te_buckets_begin. */
TE_API te_status te__buckets_allow_backward(const te_watch *w, const te_model *m, te_context *ctx) {
    const te_buckets *b = (const te_buckets *)(const void *)w;
    for (int i = 0; i < b->model_count; i++)
        TE_REQUIRE(b->models[i] != m || !b->of_model[i].ran, ctx, TE_ERROR_STATE,
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
    te_side_stream_close(&b->side);
    te__bucket_reducer_close(&b->reducer);
    free(b->bucket);
    memset(b, 0, sizeof *b);
}
/* Compares the settings that must be the same on all ranks of the data group, because the ranks' reductions must
 * match. */
TE_IF_USED TE_API te_status te__buckets_compare(const te_buckets *b, te_context *ctx) {
    te_setting same[6];
    double elements = 0;
    for (int i = 0; i < b->count; i++) elements += (double)b->bucket[i].elements;
    same[0] = te_setting_of("te_buckets_init: shards", b->config.shards);
    same[1] = te_setting_of("te_buckets_init: dtype", b->config.dtype);
    same[2] = te_setting_of("te_buckets_init: bytes", (double)b->config.bytes);
    same[3] = te_setting_of("te_buckets_init: the number of buckets", b->count);
    same[4] = te_setting_of("te_buckets_init: the number of gradients", b->grad_count);
    same[5] = te_setting_of("te_buckets_init: the number of elements", elements);
    return te_group_compare(&b->reducer.data, same, 6, ctx);
}
/* Prepares the buckets for the models as they are bound, tied and frozen now. All ranks must pass the same models, in
 * the order in which forward runs them, and the same config. The call waits for the other ranks, because it compares
 * models and config over the ranks. With one rank nothing is summed, but all calls make the same checks. */
TE_IF_USED TE_API te_status te_buckets_init(te_buckets *b, te_model *const *models, int count,
                                            const te_buckets_config *config, te_context *ctx) {
    TE_TRY(te__check_target(ctx, "te_buckets_init"));
    TE_REQUIRE(b && config, ctx, TE_ERROR_NULL, "te_buckets_init: the struct or the config is null");
    TE_TRY(te__buckets_check_models(models, count, config, ctx));
    memset(b, 0, sizeof *b);
    b->config = *config, b->models = models, b->model_count = count;
    b->watch.slices = config->shards, b->watch.finish = "te_buckets_finish";
    b->watch.allows = te__buckets_allow_backward, b->watch.is_final = te__buckets_grad_ready;
    b->tensor = *te_tensor_group(ctx);
    te_status status = te__bucket_reducer_open(&b->reducer, config->bytes, config->dtype, config->dma, ctx);
    if (status == TE_OK) status = te__buckets_build(b, ctx);
    if (status == TE_OK) status = te__buckets_compare(b, ctx);
    if (status == TE_OK && b->reducer.data.size > 1) status = te_side_stream_open(&b->side, ctx);
    if (status != TE_OK) return te_buckets_destroy(b), status;
    for (int i = 0; i < count; i++) models[i]->watch = &b->watch;
    return TE_OK;
}
TE_API te_status te__buckets_check(const te_buckets *b, const char *who, te_context *ctx) {
    TE_TRY(te__check_target(ctx, who));
    TE_REQUIRE(b && b->bucket, ctx, TE_ERROR_NULL, "%s: not initialised", who);
    for (int i = 0; i < b->model_count; i++)
        TE_REQUIRE(b->models[i]->watch == &b->watch, ctx, TE_ERROR_STATE,
                   "%s: model %d (%s) was bound again since te_buckets_init", who, i, b->models[i]->plan->name);
    TE_REQUIRE(b->fingerprint == te__buckets_fingerprint(b), ctx, TE_ERROR_STATE,
               "%s: a model has other gradients, or others are frozen or tied, since te_buckets_init", who);
    return TE_OK;
}
/* Call this before the backwards of the step's last micro-batch. Each model may run one backward between this call and
 * te_buckets_finish, and the gradients are reduced while these backwards run. */
TE_API te_status te_buckets_begin(te_buckets *b, te_context *ctx) {
    TE_TRY(te__buckets_check(b, "te_buckets_begin", ctx));
    TE_REQUIRE(!b->watch.armed, ctx, TE_ERROR_STATE, "te_buckets_begin: begun already; te_buckets_finish comes first");
    for (int i = 0; i < b->model_count; i++) b->of_model[i].ran = 0;
    for (int i = 0; i < b->grad_count; i++) b->grad[i].pending = b->grad[i].uses;
    for (int i = 0; i < b->count; i++) b->bucket[i].pending = b->bucket[i].count, b->bucket[i].started = 0;
    b->watch.armed = 1;
    return TE_OK;
}
/* Makes the context's stream wait for all reductions, so that work enqueued after this call reads the sums over all
 * ranks. Returns an error if a backward that adds to one of the gradients has not run. */
TE_API te_status te_buckets_finish(te_buckets *b, te_context *ctx) {
    TE_TRY(te__buckets_check(b, "te_buckets_finish", ctx));
    TE_REQUIRE(b->watch.armed, ctx, TE_ERROR_STATE, "te_buckets_finish: te_buckets_begin comes first");
    for (int i = 0; i < b->grad_count; i++) {
        const te__bucket_grad *g = &b->grad[i];
        TE_REQUIRE(!g->pending, ctx, TE_ERROR_STATE,
                   "te_buckets_finish: %s.%s is not final: of %d backwards that write its gradient %d have run since "
                   "te_buckets_begin", g->param->op, g->param->field, g->uses, g->uses - g->pending);
    }
    b->watch.armed = 0;
    return te_side_stream_join(&b->side, ctx);
}

#endif
