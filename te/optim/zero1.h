/* zero1.h -- ZeRO-1: moments and master weights sharded over the data group (Rajbhandari et al., "ZeRO: memory
 * optimizations toward training trillion parameter models", SC 2020). This file determines which elements of the
 * parameters each rank updates, and gathers the parameters after the update.
 *
 * Normally a model's parameter buffer, gaps included, is cut into one shard of te__slice_elements elements for each
 * rank, regardless of where tensors begin. The remainder, the few elements that are left over behind the last shard, is
 * replicated: every rank updates all of it.
 *
 * Muon needs whole matrices. If the callback te_zero1.whole is set, each matrix for which it returns 1 belongs to one
 * rank. The matrices are assigned to ranks such that no rank's work exceeds the mean by more than the work of one
 * matrix. Every other tensor is cut into one shard for each rank if it has at least TE_ZERO1_MIN_ELEMENTS elements. A
 * smaller tensor is replicated, because a collective would take longer than updating the tensor on every rank.
 *
 * Do this:
 *     te_zero1_iter it = te_zero1_iter_of(models, 2, te_zero1_of(0, 4));   // rank 0 of 4
 *     while (te_zero1_next(&it)) use(it.param, it.from, it.elements);      // a range of the parameter's elements
 */
#ifndef TE_ZERO1_H
#define TE_ZERO1_H

#include "../core/rank_group.h" /* te_group_all_gather */
#include "param_groups.h"  /* te_param_iter */

enum { TE_ZERO1_MIN_ELEMENTS = 1 << 16 };

typedef struct te_zero1 {
    int rank, ranks;
    int (*whole)(const te_model *model, const te_param *p); /* returns 1 for matrices that must not be divided. Null:
                                                             * the parameter buffer of each model is divided, not each
                                                             * tensor */
} te_zero1;

TE_API te_zero1 te_zero1_of(int rank, int ranks) {
    te_zero1 z;
    z.rank = rank, z.ranks = ranks, z.whole = 0;
    return z;
}

/* ---- matrices that belong to one rank ---------------------------------------------------------------------------- */

TE_API int te__zero1_keeps_whole(te_zero1 z, const te_model *m, const te_param *p) {
    return z.ranks > 1 && z.whole && p->rows > 1 && p->cols > 1 && z.whole(m, p);
}
/* Return the flops of one iteration of Muon's update (muon.h), which determine how long the update takes. Let s be the
 * smaller and l the larger side of the matrix. An iteration has three matrix products: s x l by l x s, s x s by s x s,
 * and s x s by s x l. */
TE_API double te__zero1_matrix_flops(const te_param *p) {
    const double rows = (double)p->rows, cols = (double)p->cols, s = fmin(rows, cols), l = fmax(rows, cols);
    return 4 * s * s * l + 2 * s * s * s;
}
/* Return the bytes that a matrix takes in the buffer of te__zero1_gather. */
TE_API size_t te__zero1_matrix_bytes(const te_param *p) {
    return (size_t)te_round_up(p->rows * p->cols * (int64_t)te_dtype_bytes(p->dtype), TE_ALIGN);
}
/* An iterator over the matrices that must not be divided. It assigns each matrix to a rank. */
typedef struct te__zero1_matrix_iter {
    te_param_iter params;
    te_zero1 zero1;
    double total, before; /* total: the flops of all these matrices; before: the flops of the matrices visited so far,
                           * including the current one */
    int owner, number;    /* owner: the rank to which the current matrix belongs; number: the index of the matrix among
                           * this rank's matrices */
} te__zero1_matrix_iter;

TE_API te__zero1_matrix_iter te__zero1_matrices_of(te_model *const *models, int count, te_zero1 zero1) {
    te__zero1_matrix_iter it;
    te_param_iter p = te_params_of(models, count);
    memset(&it, 0, sizeof it);
    while (zero1.whole && te_params_next(&p))
        if (te__zero1_keeps_whole(zero1, models[p.model], p.param)) it.total += te__zero1_matrix_flops(p.param);
    it.params = te_params_of(models, count), it.zero1 = zero1, it.owner = -1;
    return it;
}
/* Determine the owner of the next matrix, p. Imagine the flops of all matrices on a line, in the order of the list of
 * ops, and the line cut into equal parts, one for each rank. The owner of p is the rank whose part contains the middle
 * of p's flops. */
TE_API void te__zero1_assign_owner(te__zero1_matrix_iter *it, const te_param *p) {
    const double work = te__zero1_matrix_flops(p), middle = it->before + work / 2;
    const int owner = (int)te_min(it->zero1.ranks - 1, (int64_t)(middle / it->total * it->zero1.ranks));
    it->number = owner == it->owner ? it->number + 1 : 0;
    it->owner = owner, it->before += work;
}
/* Go to the next matrix that must not be divided. Returns 0 if no such matrix is left. */
TE_API int te__zero1_next_matrix(te__zero1_matrix_iter *it) {
    while (te_params_next(&it->params)) {
        const te_param *p = it->params.param;
        if (!te__zero1_keeps_whole(it->zero1, it->params.models[it->params.model], p)) continue;
        return te__zero1_assign_owner(it, p), 1;
    }
    return 0;
}

/* ---- iterating over the shard of a rank -------------------------------------------------------------------------- */

/* A rank updates up to two ranges of a parameter's elements: one in the rank's shard, and one in the remainder, which
 * is replicated on all ranks (see the head of this file). */
enum { TE__ZERO1_SHARD, TE__ZERO1_REMAINDER, TE__ZERO1_DONE };

typedef struct te_zero1_iter {
    te_param_iter params;
    te_zero1 zero1;
    te_param *param;                /* the current parameter */
    int model;                      /* the index of the parameter's model */
    int64_t from, elements;         /* the current range of the parameter's elements, by its first element and its
                                     * length; this rank updates this range */
    int64_t before;                 /* the number of elements of all parameters before the current parameter, gaps
                                     * included */
    int is_replicated;              /* 1: every rank updates this range */
    int next;                       /* the current parameter's next range: TE__ZERO1_SHARD, _REMAINDER or _DONE */
    te__zero1_matrix_iter matrices; /* assigns each matrix that must not be divided to a rank */
} te_zero1_iter;

TE_API te_zero1_iter te_zero1_iter_of(te_model *const *models, int count, te_zero1 zero1) {
    te_zero1_iter it;
    memset(&it, 0, sizeof it);
    it.params = te_params_of(models, count), it.zero1 = zero1, it.next = TE__ZERO1_DONE;
    it.matrices = te__zero1_matrices_of(models, count, zero1);
    return it;
}
/* Set the iterator's range (it->from, it->elements) to the elements of the current parameter that lie among the
 * elements `from` to `to` - 1 of the model's parameter buffer. Returns whether the range has any element. */
TE_API int te__zero1_intersect(te_zero1_iter *it, int64_t from, int64_t to) {
    const te_model *m = it->params.models[it->model];
    const int64_t bytes = (const char *)it->param->data - (const char *)m->params;
    const int64_t at = bytes / (int64_t)te_dtype_bytes(m->plan->dtype);
    const int64_t first = te_max(from, at), last = te_min(to, at + it->param->rows * it->param->cols);
    it->from = first - at, it->elements = last - first;
    return first < last;
}
/* Set the iterator's range to the whole parameter, as the only range of the parameter. */
TE_API int te__zero1_all_of_param(te_zero1_iter *it, int is_replicated) {
    it->from = 0, it->elements = it->param->rows * it->param->cols;
    it->next = TE__ZERO1_DONE, it->is_replicated = is_replicated;
    return 1;
}
/* If te_zero1.whole is set, each tensor is sharded separately. Return how many elements each shard of parameter p then
 * has; 0 if p is replicated. */
TE_API int64_t te__zero1_tensor_shard(te_zero1 z, const te_param *p) {
    const int64_t n = p->rows * p->cols;
    return n < TE_ZERO1_MIN_ELEMENTS ? 0 : te__slice_elements(n, z.ranks);
}
/* If te_zero1.whole is set, each tensor is sharded separately. For this case, set the iterator's range of the current
 * parameter. range: TE__ZERO1_SHARD or TE__ZERO1_REMAINDER. Returns whether this rank has this range of the
 * parameter. */
TE_API int te__zero1_part_of_tensor(te_zero1_iter *it, int range) {
    const te_zero1 z = it->zero1;
    const int64_t n = it->param->rows * it->param->cols, shard = te__zero1_tensor_shard(z, it->param);
    if (te__zero1_keeps_whole(z, it->params.models[it->params.model], it->param)) {
        te__zero1_assign_owner(&it->matrices, it->param);
        return te__zero1_all_of_param(it, 0) && it->matrices.owner == z.rank;
    }
    if (!shard) return te__zero1_all_of_param(it, 1);
    it->is_replicated = range == TE__ZERO1_REMAINDER;
    it->from = it->is_replicated ? shard * z.ranks : shard * z.rank;
    it->elements = it->is_replicated ? n - it->from : shard;
    return it->elements > 0;
}
TE_API int te__zero1_part_of_param(te_zero1_iter *it) {
    const int ranks = it->zero1.ranks, range = it->next++;
    if (ranks == 1) return te__zero1_all_of_param(it, 0);
    if (it->zero1.whole) return te__zero1_part_of_tensor(it, range);
    const int64_t all = it->params.models[it->model]->elements, shard = te__slice_elements(all, ranks);
    it->is_replicated = range == TE__ZERO1_REMAINDER;
    if (it->is_replicated) return te__zero1_intersect(it, shard * ranks, all);
    return te__zero1_intersect(it, shard * it->zero1.rank, shard * (it->zero1.rank + 1));
}
/* Go to the next range of elements that this rank updates. Returns 0 if no range is left. */
TE_API int te_zero1_next(te_zero1_iter *it) {
    for (;;) {
        while (it->next != TE__ZERO1_DONE)
            if (te__zero1_part_of_param(it)) return 1;
        if (it->param) it->before += te_round_up(it->param->rows * it->param->cols, TE_PARAM_ALIGN);
        if (!te_params_next(&it->params)) return it->param = 0, 0;
        it->param = it->params.param, it->model = it->params.model, it->next = TE__ZERO1_SHARD;
    }
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* If te_fsdp_init has sharded a model's gradients, check that `zero1` divides the model's parameters into the same
 * shards. */
TE_API te_status te__zero1_check_shards(te_model *const *models, int count, te_zero1 zero1, const char *who,
                                        te_context *ctx) {
    for (int i = 0; i < count; i++) {
        const te_model_shards *s = models[i]->shards;
        TE_REQUIRE(!s || s->ranks == zero1.ranks, ctx, TE_ERROR_STATE,
                   "%s: the gradients of model %d (%s) are in %d shards (te_fsdp_init), and shards is %d here", who, i,
                   models[i]->plan->name, s->ranks, zero1.ranks);
        TE_REQUIRE(!s || s->ranks == 1 || !zero1.whole, ctx, TE_ERROR_STATE,
                   "%s: the gradients of model %d (%s) are sharded (te_fsdp_init), and muon needs whole matrices", who,
                   i, models[i]->plan->name);
    }
    return TE_OK;
}
/* Check that there are as many shards as ranks in the data group. If the parameter buffers of whole models are divided
 * (te_zero1.whole is null), also check that each model has all parameters in one buffer and in one dtype, and all
 * gradients in another buffer in the same order. */
TE_API te_status te__zero1_check(te_model *const *models, int count, te_zero1 zero1, const char *who, te_context *ctx) {
    const int ranks = zero1.ranks;
    TE_REQUIRE(ranks == 1 || ranks == te_data_group(ctx)->size, ctx, TE_ERROR_VALUE,
               "%s: shards is %d, and the data group is of %d; it is that or 1", who, ranks,
               te_data_group(ctx)->size);
    TE_TRY(te__zero1_check_shards(models, count, zero1, who, ctx));
    for (int i = 0; ranks > 1 && !zero1.whole && i < count; i++) {
        const te_model *m = models[i];
        TE_REQUIRE((m->params && m->grads) || !m->elements, ctx, TE_ERROR_STATE,
                   "%s: the states of model %d (%s) cannot be sharded: it does not say where its buffers lie", who, i,
                   m->plan->name);
        TE_REQUIRE(m->param_bytes == (size_t)m->elements * te_dtype_bytes(m->plan->dtype), ctx, TE_ERROR_DTYPE,
                   "%s: the states of model %d (%s) cannot be sharded: some of its weights are in another format, "
                   "(weights, f32)", who, i, m->plan->name);
        TE_REQUIRE(m->grad_elements == m->elements, ctx, TE_ERROR_STATE,
                   "%s: the states of model %d (%s) cannot be sharded: its gradients do not lie as its parameters do "
                   "(te_bind_trained_grads)", who, i, m->plan->name);
    }
    return TE_OK;
}

/* ---- gathering the parameters after the update ------------------------------------------------------------------- */

/* Return the bytes of the buffer that te__zero1_gather needs: the number of ranks times the size of the largest
 * undivided matrix. */
TE_API size_t te__zero1_gather_bytes(te_model *const *models, int count, te_zero1 zero1) {
    size_t largest = 0;
    te__zero1_matrix_iter it = te__zero1_matrices_of(models, count, zero1);
    while (te__zero1_next_matrix(&it)) {
        const size_t bytes = te__zero1_matrix_bytes(it.params.param);
        largest = bytes > largest ? bytes : largest;
    }
    return largest * (size_t)zero1.ranks;
}
/* Gather one matrix of each rank with one collective, through `buffer`: the matrix with the index `number` among the
 * rank's undivided matrices. *any: output, whether any rank has a matrix with this index. */
TE_API te_status te__zero1_gather_round(te_model *const *models, int count, te_zero1 zero1, int number, char *buffer,
                                        int *any, te_context *ctx) {
    size_t largest = 0;
    const te_param *mine = 0;
    te__zero1_matrix_iter it = te__zero1_matrices_of(models, count, zero1);
    while (te__zero1_next_matrix(&it)) {
        if (it.number != number) continue;
        const size_t bytes = te__zero1_matrix_bytes(it.params.param);
        largest = bytes > largest ? bytes : largest;
        if (it.owner == zero1.rank) mine = it.params.param;
    }
    *any = largest > 0;
    if (!largest) return TE_OK;
    char *const slot = buffer + (size_t)zero1.rank * largest;
    if (mine) TE_TRY(te_copy(ctx, slot, mine->data, (size_t)(mine->rows * mine->cols) * te_dtype_bytes(mine->dtype)));
    /* An all-gather preserves all bit patterns, so any data can be sent as if it were bf16. */
    TE_TRY(te_group_all_gather(te_data_group(ctx), buffer, slot, (int64_t)(largest / 2), TE_bf16, ctx));
    it = te__zero1_matrices_of(models, count, zero1);
    while (te__zero1_next_matrix(&it)) {
        const te_param *p = it.params.param;
        if (it.number == number && it.owner != zero1.rank)
            TE_TRY(te_copy(ctx, p->data, buffer + (size_t)it.owner * largest,
                           (size_t)(p->rows * p->cols) * te_dtype_bytes(p->dtype)));
    }
    return TE_OK;
}
/* Gather the parameters if te_zero1.whole is set: first the shards of the divided tensors, then the undivided
 * matrices. */
TE_API te_status te__zero1_gather_by_tensor(te_model *const *models, int count, te_zero1 zero1, char *buffer,
                                            te_context *ctx) {
    te_param_iter it = te_params_of(models, count);
    while (te_params_next(&it)) {
        const te_param *p = it.param;
        const int64_t shard = te__zero1_keeps_whole(zero1, models[it.model], p) ? 0 : te__zero1_tensor_shard(zero1, p);
        char *const all = (char *)p->data, *const mine = all + (size_t)(zero1.rank * shard) * te_dtype_bytes(p->dtype);
        if (shard) TE_TRY(te_group_all_gather(te_data_group(ctx), all, mine, shard, p->dtype, ctx));
    }
    for (int number = 0, any = 1; any; number++)
        TE_TRY(te__zero1_gather_round(models, count, zero1, number, buffer, &any, ctx));
    return TE_OK;
}
/* Enqueue the gathering of the updated parameters. Each rank sends the elements that it has updated, so that at the end
 * all ranks have all new parameters. buffer: target memory of te__zero1_gather_bytes bytes. */
TE_API te_status te__zero1_gather(te_model *const *models, int count, te_zero1 zero1, char *buffer, te_context *ctx) {
    if (zero1.whole) return te__zero1_gather_by_tensor(models, count, zero1, buffer, ctx);
    for (int i = 0; i < count; i++) {
        const te_model *m = models[i];
        const int is_sharded = m->shards && m->shards->has_weights; /* the next pass gathers the weights */
        const int64_t shard = is_sharded ? 0 : te__slice_elements(m->elements, zero1.ranks);
        char *const all = (char *)(uintptr_t)m->params,
             *const mine = all + (size_t)(zero1.rank * shard) * te_dtype_bytes(m->plan->dtype);
        if (shard) TE_TRY(te_group_all_gather(te_data_group(ctx), all, mine, shard, m->plan->dtype, ctx));
    }
    return TE_OK;
}

#endif
