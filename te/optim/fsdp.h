/* fsdp.h -- weights and gradients sharded over the data group (fully sharded data parallel, FSDP; stages 2 and 3 of
 * ZeRO: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020). For each
 * model (called a list here, because a model is a list of ops), a rank stores 1 / ranks of the gradients (config.zero
 * 2), or 1 / ranks of the gradients and of the weights (config.zero 3).
 *
 * Whole gradients and, with config.zero 3, whole weights exist only in config.slots buffers, called slots; list i uses
 * slot i % config.slots. A pass (forward or backward) of list i first makes its stream wait until the slot contains the
 * weights of list i. The pass then starts to gather the weights of the lists that run next, on the streams of their
 * slots, so that the gathers overlap with the pass. When a backward has written its last gradient, the slot's gradients
 * are reduce-scattered on the slot's stream and added to this rank's shard. te_adamw with config.shards updates the
 * shards. A checkpoint has whole tensors.
 *
 * Do this:
 *     te_fsdp fsdp;
 *     te_model *blocks[] = {&h0.model, &h1.model, &h2.model};                    // after te_model_describe (bind.h)
 *     te_fsdp_config config = te_fsdp_defaults();
 *     const size_t bytes = te_fsdp_bytes(blocks, 3, &config, &ctx);
 *     TE_TRY(te_allocate(&ctx, &memory, bytes));
 *     TE_TRY(te_fsdp_init(&fsdp, memory, bytes, blocks, 3, &config, &ctx));      // binds them
 *     ... te_fsdp_gather, te_model_randomize and te_fsdp_keep for each block, or te_checkpoint_load ...
 *     ... te_adamw_init for these and all other models, with config.shards the size of the data group ...
 *     ... each step: forwards and backwards in list order, as always ...
 *     TE_TRY(te_fsdp_finish(&fsdp, &ctx));                                       // before te_adamw_step
 *     te_fsdp_destroy(&fsdp);                                                    // before te_comm_destroy
 */
#ifndef TE_FSDP_H
#define TE_FSDP_H

#include <stddef.h> /* offsetof */
#include <stdlib.h> /* calloc */

#include "../comm/comm.h"               /* te_group_compare */
#include "../comm/impl/bucket_reduce.h" /* te_bucket_reducer, te__bucket_reduce_scatter */
#include "../comm/reduce_gradients.h"   /* te__reduce_group */
#include "../core/target.h"             /* te_side_stream, TE_KERNEL_IF_USED */
#include "param_groups.h"               /* te__suballocate, te__memory_check */

/* Lists that share a tied parameter, for example an embedding and an output layer with the same weight, cannot be
 * sharded: bind such lists to separate memory, and reduce their gradients with te_adamw_reduce or te_buckets. All ranks
 * of the data group must run the same passes in the same order. If passes do not follow the order of the lists, gathers
 * do not overlap with passes. With several micro-batches (te_batch.accumulate), the gradients of each micro-batch are
 * reduced after its backward. With one micro-batch per optimizer step, f32 sums and two ranks, the results are bitwise
 * identical to the results with te_reduce_gradients. On the host, gathers and reductions do not overlap with passes. */

/* TE_FSDP_STAGING_BYTES: gradients that are sent in bf16 are converted and sent in pieces; this is the size of a piece
 * before its conversion, in f32. */
enum { TE_FSDP_MAX_SLOTS = 8, TE_FSDP_STAGING_BYTES = 32 << 20 };

typedef struct te_fsdp_config {
    int zero;       /* 2: gradients are sharded; 3: gradients and weights are sharded */
    int slots;      /* 2 to TE_FSDP_MAX_SLOTS. With n slots, n - 1 lists are gathered ahead of the running list */
    te_dtype dtype; /* the format in which gradients are sent between ranks, TE_f32 or TE_bf16 (te_buckets_config) */
} te_fsdp_config;

TE_API te_fsdp_config te_fsdp_defaults(void) {
    te_fsdp_config c;
    c.zero = 3, c.slots = 2, c.dtype = TE_f32;
    return c;
}

struct te_fsdp;
/* One of the lists. */
typedef struct te__fsdp_list {
    te_watch watch; /* the first member, because callbacks cast te_watch * to te__fsdp_list * */
    te_model_shards shards;
    struct te_fsdp *of;
    te_model *model;
    int index, slot;
    int pending;      /* how many gradients the current backward has not written yet */
    int accumulates;  /* 1: the current backward's gradients are added to the gradient shard; 0: they overwrite the
                       * shard */
    int is_ahead;     /* 1: the weights were gathered ahead of a pass, and no pass has used them yet */
    uint64_t written; /* at the last gather of the weights: the sum of the parameters' write counts */
} te__fsdp_list;

/* Lists whose weights or gradients are sharded. The struct must not be moved, because the models point to it. */
typedef struct te_fsdp {
    te_fsdp_config config;
    te__fsdp_list *list; /* [count] */
    int count;
    te_group data;       /* a copy of the data group with `peers` null, so that collectives use NCCL. NCCL's kernels
                          * leave most multiprocessors to the pass that runs at the same time */
    te_side_stream side[TE_FSDP_MAX_SLOTS]; /* [slots]: the streams on which slots are gathered and reduced */
    te_bucket_reducer reducer[TE_FSDP_MAX_SLOTS]; /* [slots] */
} te_fsdp;

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Return how many elements of a list each rank stores: one shard, and the remainder, i.e. the few elements that are
 * left over after the list is cut into one shard for each rank. Every rank stores the whole remainder. */
TE_API int64_t te__fsdp_shard_elements(const te_plan *plan, int ranks) {
    const int64_t all = te_plan_param_elements(plan), shard = te__slice_elements(all, ranks);
    return shard + (all - shard * ranks);
}
/* Offsets in the caller's memory, in bytes: of each slot's weights and gradients, and of the shards of one list. */
typedef struct te__fsdp_layout {
    size_t slot_params[TE_FSDP_MAX_SLOTS], slot_grads[TE_FSDP_MAX_SLOTS];
    size_t params, grads; /* offsets of one list's shards, from te__fsdp_layout_next */
    size_t bytes;
} te__fsdp_layout;

/* Compute the offsets of the slots. A slot is as large as the largest list that uses it. */
TE_API te__fsdp_layout te__fsdp_layout_of(te_model *const *models, int count, const te_fsdp_config *c) {
    te__fsdp_layout l;
    memset(&l, 0, sizeof l);
    for (int s = 0; s < c->slots; s++) {
        size_t params = 0, grads = 0;
        for (int i = s; i < count; i += c->slots) {
            const size_t p = c->zero == 3 ? te_plan_param_bytes(models[i]->plan) : 0;
            const size_t g = te_plan_grad_bytes(models[i]->plan);
            params = p > params ? p : params, grads = g > grads ? g : grads;
        }
        l.slot_params[s] = te__suballocate(&l.bytes, params), l.slot_grads[s] = te__suballocate(&l.bytes, grads);
    }
    return l;
}
/* Lay out the shards of the next list. */
TE_API void te__fsdp_layout_next(te__fsdp_layout *l, const te_plan *plan, const te_fsdp_config *c, int ranks) {
    const size_t shard = (size_t)te__fsdp_shard_elements(plan, ranks);
    l->params = te__suballocate(&l->bytes, c->zero == 3 ? shard * te_dtype_bytes(plan->dtype)
                                                        : te_plan_param_bytes(plan));
    l->grads = te__suballocate(&l->bytes, shard * sizeof(float));
}
/* Check the config, and that all models are described (te_model_describe) and can be sharded. */
TE_API te_status te__fsdp_check(te_model *const *models, int count, const te_fsdp_config *c, te_context *ctx) {
    TE_TRY(te__check_target(ctx, "te_fsdp_init"));
    TE_REQUIRE(c && (models || !count), ctx, TE_ERROR_NULL, "te_fsdp_init: the config or the list of models is null");
    TE_REQUIRE(count >= 0 && (c->zero == 2 || c->zero == 3), ctx, TE_ERROR_VALUE,
               "te_fsdp_init: %d models, zero %d, which is 2 or 3", count, c->zero);
    TE_REQUIRE(c->slots >= 2 && c->slots <= TE_FSDP_MAX_SLOTS, ctx, TE_ERROR_VALUE,
               "te_fsdp_init: %d slots, which are 2 to %d", c->slots, (int)TE_FSDP_MAX_SLOTS);
    TE_REQUIRE(c->dtype == TE_f32 || c->dtype == TE_bf16, ctx, TE_ERROR_DTYPE,
               "te_fsdp_init: gradients are summed in f32 or bf16, not in %s", te_dtype_name(c->dtype));
    for (int i = 0; i < count; i++) {
        const te_model *m = models[i];
        TE_REQUIRE(m && m->plan && m->is_elsewhere, ctx, TE_ERROR_STATE,
                   "te_fsdp_init: model %d is null, or not described: te_model_describe comes first, not a bind", i);
        const char *name = m->plan->name;
        TE_TRY(te__check_trains(m->plan, ctx));
        TE_REQUIRE(te_plan_param_bytes(m->plan) ==
                       (size_t)te_plan_param_elements(m->plan) * te_dtype_bytes(m->plan->dtype), ctx, TE_ERROR_DTYPE,
                   "te_fsdp_init: model %d (%s) has weights in another format, (weights, f32)", i, name);
        for (int k = 0; k < m->param_count; k++) {
            TE_REQUIRE(!m->param[k].tied, ctx, TE_ERROR_STATE,
                       "te_fsdp_init: model %d (%s): %s.%s is tied to another parameter; leave the list out", i, name,
                       m->param[k].op, m->param[k].field);
            /* if ranks hold copies of a parameter, their gradients must be summed, which te_fsdp does not do */
            TE_REQUIRE(m->param[k].copies == 1, ctx, TE_ERROR_STATE,
                       "te_fsdp_init: model %d (%s): %d ranks hold the same k and v of %s.%s, option (copies, ..); "
                       "leave the list out", i, name, m->param[k].copies, m->param[k].op, m->param[k].field);
        }
        for (int k = 0; k < i; k++)
            TE_REQUIRE(models[k] != m, ctx, TE_ERROR_VALUE, "te_fsdp_init: model %d (%s) is model %d again", i, name,
                       k);
    }
    return TE_OK;
}
/* Return the bytes of target memory that te_fsdp_init needs for these models. te_model_describe must have described
 * them. Each of the config.slots slots has space for the gradients (f32) of its largest list and, with config.zero 3,
 * also for its weights. In addition, a rank stores 1 / ranks of all gradients, and all weights (config.zero 2) or 1 /
 * ranks of all weights (config.zero 3). The result is 0 if te_fsdp_init would return an error about the config or the
 * models. */
TE_API size_t te_fsdp_bytes(te_model *const *models, int count, const te_fsdp_config *config, te_context *ctx) {
    if (te__fsdp_check(models, count, config, ctx) != TE_OK) return 0;
    te__fsdp_layout l = te__fsdp_layout_of(models, count, config);
    for (int i = 0; i < count; i++) te__fsdp_layout_next(&l, models[i]->plan, config, te_data_group(ctx)->size);
    return l.bytes ? l.bytes : (size_t)TE_ALIGN;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

TE_API uint64_t te__fsdp_writes(const te_model *m) {
    uint64_t sum = 0;
    for (int i = 0; i < m->param_count; i++) sum += m->param[i].written;
    return sum;
}
/* Record that the slot of list l no longer contains any list's weights. */
TE_API void te__fsdp_take_slot(const te__fsdp_list *l) {
    for (int i = l->slot; i < l->of->count; i += l->of->config.slots)
        l->of->list[i].shards.is_gathered = l->of->list[i].is_ahead = 0;
}
/* Copy the weights in the remainder (te__fsdp_shard_elements) from this rank's memory to the slot of list l if to_slot
 * is 1, else from the slot to this rank's memory. */
TE_API te_status te__fsdp_copy_remainder(const te__fsdp_list *l, int to_slot, te_context *ctx) {
    const te_model_shards *s = &l->shards;
    const size_t size = te_dtype_bytes(l->model->plan->dtype);
    const int64_t behind = s->elements * s->ranks;
    char *const slot = (char *)(uintptr_t)l->model->params + (size_t)behind * size;
    char *const mine = (char *)s->params + (size_t)s->elements * size;
    const size_t bytes = (size_t)(l->model->elements - behind) * size;
    return te_copy(ctx, to_slot ? slot : mine, to_slot ? mine : slot, bytes);
}
TE_API te_status te__fsdp_gather_now(const te__fsdp_list *l, te_context *ctx) {
    const te_model_shards *s = &l->shards;
    if (s->elements)
        TE_TRY(te_group_all_gather(&l->of->data, (void *)(uintptr_t)l->model->params, s->params, s->elements,
                                   l->model->plan->dtype, ctx));
    return te__fsdp_copy_remainder(l, 1, ctx);
}
/* Enqueue the gather of the weights of list l on the stream of its slot. The gather waits for all work that was
 * enqueued before, because passes in that work may use the slot's previous weights. */
TE_API te_status te__fsdp_gather(te__fsdp_list *l, te_context *ctx) {
    te_side_stream *side = &l->of->side[l->slot];
    te__fsdp_take_slot(l);
    TE_TRY(te_side_stream_enter(side, ctx));
    const te_status status = te__fsdp_gather_now(l, ctx);
    te_side_stream_leave(side, ctx);
    l->shards.is_gathered = status == TE_OK, l->written = te__fsdp_writes(l->model);
    return status;
}
/* Return whether the slot contains the current weights of list l. For a forward, the weights also must have been
 * gathered ahead by the previous pass: only then is the gather part of the same captured graph as the forward. */
TE_API int te__fsdp_has_weights(const te__fsdp_list *l, int is_backward) {
    return l->shards.is_gathered && l->written == te__fsdp_writes(l->model) && (is_backward || l->is_ahead);
}
/* The callback te_model_shards.begin, which a forward or backward calls at its beginning: makes the stream wait for the
 * list's weights, and starts to gather the weights of the lists that run next. */
TE_API te_status te__fsdp_begin(te_model_shards *s, int is_backward, int accumulates, te_context *ctx) {
    te__fsdp_list *l = (te__fsdp_list *)(void *)((char *)s - offsetof(te__fsdp_list, shards));
    te_fsdp *f = l->of;
    if (s->has_weights && !te__fsdp_has_weights(l, is_backward)) TE_TRY(te__fsdp_gather(l, ctx));
    TE_TRY(te_side_stream_join(&f->side[l->slot], ctx)); /* also waits for the slot's last reduction */
    l->is_ahead = 0;
    for (int k = 1; s->has_weights && k < f->config.slots; k++) {
        const int next = is_backward ? l->index - k : l->index + k;
        if (next < 0 || next >= f->count || te__fsdp_has_weights(&f->list[next], is_backward)) continue;
        TE_TRY(te__fsdp_gather(&f->list[next], ctx));
        f->list[next].is_ahead = 1;
    }
    if (!is_backward) return TE_OK;
    l->accumulates = accumulates, l->pending = 0, l->watch.armed = 1;
    for (int i = 0; i < l->model->param_count; i++) l->pending += te_is_trained(&l->model->param[i]);
    return TE_OK;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

typedef struct te_fsdp_add_args {
    float *y;       /* [count]: y = x or, with accumulates, y = y + x */
    const float *x; /* [count] */
    int64_t count;  /* a multiple of 8 */
    int accumulates;
} te_fsdp_add_args;
enum { TE_FSDP_THREADS = TE_CUDA ? 256 : 1, TE_FSDP_BLOCK = 4096 /* elements */ };

/* Memory traffic: x is read once, y is written once and, if a->accumulates is set, read once. */
TE_FN void te__fsdp_add(const te_fsdp_add_args *a, te_block b) {
    int group;
    const te_lanes g = te_lanes_here(TE_FSDP_THREADS, &group);
    const int64_t end = te_min(a->count, ((int64_t)b.x + 1) * TE_FSDP_BLOCK);
    for (int64_t i = (int64_t)b.x * TE_FSDP_BLOCK + 8 * g.id; i < end; i += 8 * g.count) {
        float sum[8], x[8];
        te_load8(x, a->x, i, 8, 1, TE_f32);
        if (a->accumulates) te_load8(sum, a->y, i, 8, 1, TE_f32);
        TE_UNROLL for (int e = 0; e < 8; e++) sum[e] = (a->accumulates ? sum[e] : 0.0f) + x[e];
        te_store8(a->y, i, sum, 8, 1, TE_f32);
    }
}
TE_KERNEL_IF_USED(te_fsdp_add, TE_FSDP_THREADS, 1, te_fsdp_add_args, te__fsdp_add(te_args, te_at))

TE_IF_USED TE_API te_status te__fsdp_add_to(float *y, const float *x, int64_t count, int accumulates,
                                            te_context *ctx) {
    te_fsdp_add_args a;
    memset(&a, 0, sizeof a);
    a.y = y, a.x = x, a.count = count, a.accumulates = accumulates;
    return count ? te_fsdp_add_launch(ctx, te__grid_of(te_ceil_div(count, TE_FSDP_BLOCK), 1), &a) : TE_OK;
}
/* Sum the gradients in the slot of list l over the ranks, and add this rank's shard of the sums to its stored
 * gradients. */
TE_IF_USED TE_API te_status te__fsdp_reduce_now(const te__fsdp_list *l, te_context *ctx) {
    const te_model_shards *s = &l->shards;
    const float *slot = l->model->grads;
    const int64_t behind = s->elements * s->ranks;
    if (s->ranks > 1) TE_TRY(te__bucket_reduce_scatter(&l->of->reducer[l->slot], l->model, s->ranks, 0, ctx));
    TE_TRY(te__fsdp_add_to(s->grads, slot + s->rank * s->elements, s->elements, l->accumulates, ctx));
    return te__fsdp_add_to(s->grads + s->elements, slot + behind, l->model->elements - behind, l->accumulates, ctx);
}
/* The callback te_watch.is_final, which backward calls once for each gradient, when the gradient is complete. After the
 * last gradient of a list, this function enqueues the reduction on the slot's stream. */
TE_IF_USED TE_API te_status te__fsdp_grad_ready(te_watch *w, const te_param *p, te_context *ctx) {
    te__fsdp_list *l = (te__fsdp_list *)(void *)w;
    te_side_stream *side = &l->of->side[l->slot];
    (void)p;
    if (--l->pending) return TE_OK;
    TE_TRY(te__reduce_group(te_tensor_group(ctx), l->model, 1, ctx));
    TE_TRY(te_side_stream_enter(side, ctx));
    const te_status status = te__fsdp_reduce_now(l, ctx);
    te_side_stream_leave(side, ctx);
    return status;
}
/* The callback te_watch.allows, which returns whether a backward may run now. Here a backward may always run. */
TE_API te_status te__fsdp_allow_backward(const te_watch *w, const te_model *m, te_context *ctx) {
    return (void)w, (void)m, (void)ctx, TE_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

TE_API void te_fsdp_destroy(te_fsdp *f) {
    if (!f || !f->list) return;
    for (int i = 0; i < f->count; i++) {
        te_model *m = f->list[i].model;
        if (m && m->shards == &f->list[i].shards) m->shards = 0, m->watch = 0, m->plan = 0; /* its memory is a slot */
    }
    for (int s = 0; s < f->config.slots; s++) {
        te_side_stream_close(&f->side[s]);
        te__bucket_reducer_close(&f->reducer[s]);
    }
    free(f->list);
    memset(f, 0, sizeof *f);
}
/* Bind list number i, the model m, to its slot and its shards. base: the address of the caller's memory. l: the layout
 * of this memory, where l->params and l->grads are the shards of list i. */
TE_IF_USED TE_API te_status te__fsdp_bind(te_fsdp *f, te_model *m, int i, char *base, const te__fsdp_layout *l,
                                          te_context *ctx) {
    te__fsdp_list *list = &f->list[i];
    const int slot = i % f->config.slots, has_weights = f->config.zero == 3;
    char *const params = base + (has_weights ? l->slot_params[slot] : l->params);
    TE_TRY(te__model_bind(m, m->plan, m->param, m->param_count, params, (float *)(void *)(base + l->slot_grads[slot]),
                          0, ctx));
    list->of = f, list->model = m, list->index = i, list->slot = slot;
    list->watch.slices = f->data.size, list->watch.finish = "te_fsdp_finish";
    list->watch.allows = te__fsdp_allow_backward, list->watch.is_final = te__fsdp_grad_ready;
    te_model_shards *s = &list->shards;
    s->has_weights = has_weights, s->rank = f->data.rank, s->ranks = f->data.size;
    s->elements = te__slice_elements(m->elements, s->ranks);
    s->params = base + l->params, s->grads = (float *)(void *)(base + l->grads), s->begin = te__fsdp_begin;
    m->watch = &list->watch, m->shards = s;
    for (int k = 0; k < m->param_count; k++) m->param[k].is_sharded = 1;
    return TE_OK;
}
/* Return an error if a setting that must be the same on all ranks of the data group is not. */
TE_API te_status te__fsdp_compare(const te_fsdp *f, te_context *ctx) {
    te_setting same[5];
    double elements = 0;
    for (int i = 0; i < f->count; i++) elements += (double)f->list[i].model->elements;
    same[0] = te_setting_of("te_fsdp_init: zero", f->config.zero);
    same[1] = te_setting_of("te_fsdp_init: slots", f->config.slots);
    same[2] = te_setting_of("te_fsdp_init: dtype", f->config.dtype);
    same[3] = te_setting_of("te_fsdp_init: the number of models", f->count);
    same[4] = te_setting_of("te_fsdp_init: the number of elements", elements);
    return te_group_compare(&f->data, same, 5, ctx);
}
TE_IF_USED TE_API te_status te__fsdp_open(te_fsdp *f, char *base, te_model *const *models, int count,
                                          te_context *ctx) {
    te__fsdp_layout l = te__fsdp_layout_of(models, count, &f->config);
    for (int s = 0; s < f->config.slots; s++) {
        TE_TRY(te_side_stream_open(&f->side[s], ctx));
        TE_TRY(te__bucket_reducer_open(&f->reducer[s], TE_FSDP_STAGING_BYTES, f->config.dtype, 0, ctx));
    }
    for (int i = 0; i < count; i++) {
        te__fsdp_layout_next(&l, models[i]->plan, &f->config, f->data.size);
        TE_TRY(te__fsdp_bind(f, models[i], i, base, &l, ctx));
        f->count = i + 1;
    }
    return te__fsdp_compare(f, ctx);
}
/* Bind the models, which te_model_describe has described, to `memory`. The models should be in the order in which
 * forward runs them. memory: target memory of te_fsdp_bytes bytes, aligned to TE_ALIGN. All weights are 0 after this
 * call, so the program must initialise them or load a checkpoint. All ranks of the data group must call this function
 * with the same models and config, and the ranks wait for each other. A data group of one rank is allowed. Errors: null
 * pointers; memory too small or misaligned; a model that is bound already or listed twice, or that has tied parameters,
 * or weights in another dtype than its list (option (weights, f32)); a setting that differs between ranks. */
TE_IF_USED TE_API te_status te_fsdp_init(te_fsdp *f, void *memory, size_t bytes, te_model *const *models, int count,
                                         const te_fsdp_config *config, te_context *ctx) {
    TE_TRY(te__fsdp_check(models, count, config, ctx));
    TE_REQUIRE(f, ctx, TE_ERROR_NULL, "te_fsdp_init: the struct is null");
    const size_t needed = te_fsdp_bytes(models, count, config, ctx);
    TE_TRY(te__memory_check(memory, bytes, needed, models, count, "te_fsdp_init", ctx));
    TE_TRY(te_fill(ctx, memory, 0, needed));
    memset(f, 0, sizeof *f);
    f->config = *config, f->data = *te_data_group(ctx), f->data.peers = 0;
    f->list = (te__fsdp_list *)calloc((size_t)count + 1, sizeof *f->list);
    TE_REQUIRE(f->list, ctx, TE_ERROR_MEMORY, "te_fsdp_init: out of memory for %d models", count);
    const te_status status = te__fsdp_open(f, (char *)memory, models, count, ctx);
    if (status != TE_OK) te_fsdp_destroy(f);
    return status;
}
/* Return the te__fsdp_list of model m; null if te_fsdp_init did not bind m, or if m has been bound to other memory
 * since. */
TE_API te__fsdp_list *te__fsdp_list_of(const te_fsdp *f, const te_model *m) {
    for (int i = 0; f && f->list && m && i < f->count; i++)
        if (f->list[i].model == m && m->shards == &f->list[i].shards) return &f->list[i];
    return 0;
}
/* Gather the weights of m into the memory of its parameters (te_param.data). The weights stay there until another list
 * that uses the same slot runs a pass or is gathered. All ranks of the data group must call this function. With
 * config.zero 2 the parameters always contain the weights, and the function does nothing. */
TE_API te_status te_fsdp_gather(te_fsdp *f, const te_model *m, te_context *ctx) {
    te__fsdp_list *l = te__fsdp_list_of(f, m);
    TE_TRY(te__check_target(ctx, "te_fsdp_gather"));
    TE_REQUIRE(l, ctx, TE_ERROR_STATE, "te_fsdp_gather: the model is not one of te_fsdp_init, or was bound again");
    if (!l->shards.has_weights) return TE_OK;
    TE_TRY(te__fsdp_gather(l, ctx));
    return te_side_stream_join(&f->side[l->slot], ctx);
}
/* Copy the weights from the parameters of m (te_param.data) to this rank's shard, after the program has written them
 * there with te_model_randomize, te_weights_load or other code. All ranks must have written the same values. Errors:
 * another list has been gathered into the slot since te_fsdp_gather. */
TE_API te_status te_fsdp_keep(te_fsdp *f, const te_model *m, te_context *ctx) {
    te__fsdp_list *l = te__fsdp_list_of(f, m);
    TE_TRY(te__check_target(ctx, "te_fsdp_keep"));
    TE_REQUIRE(l, ctx, TE_ERROR_STATE, "te_fsdp_keep: the model is not one of te_fsdp_init, or was bound again");
    TE_TRY(te__check_writable(m, "te_fsdp_keep", ctx));
    const te_model_shards *s = &l->shards;
    const size_t bytes = (size_t)s->elements * te_dtype_bytes(m->plan->dtype);
    if (!s->has_weights) return TE_OK;
    TE_TRY(te_copy(ctx, s->params, (const char *)m->params + (size_t)s->rank * bytes, bytes));
    return te__fsdp_copy_remainder(l, 0, ctx);
}
/* Make the context's stream wait until the gradients of all previous backwards are reduced. Call this function after
 * the last backward of an optimizer step, before the gradient norm and te_adamw_step. Errors: a backward has not
 * written all gradients of its list. */
TE_API te_status te_fsdp_finish(te_fsdp *f, te_context *ctx) {
    TE_TRY(te__check_target(ctx, "te_fsdp_finish"));
    TE_REQUIRE(f && f->list, ctx, TE_ERROR_NULL, "te_fsdp_finish: not initialised");
    for (int i = 0; i < f->count; i++)
        TE_REQUIRE(!f->list[i].watch.armed || !f->list[i].pending, ctx, TE_ERROR_STATE,
                   "te_fsdp_finish: a backward of model %d (%s) has not written all gradients", i,
                   f->list[i].model->plan->name);
    for (int s = 0; s < f->config.slots; s++) TE_TRY(te_side_stream_join(&f->side[s], ctx));
    for (int i = 0; i < f->count; i++) f->list[i].watch.armed = 0;
    return TE_OK;
}

#endif
