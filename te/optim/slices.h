/* slices.h -- optimizer states shared out over the data group (ZeRO-1; Rajbhandari et al., "ZeRO: memory optimizations
 * toward training trillion parameter models", SC 2020): which elements of the parameters a rank works on.
 *
 * A model's buffer, gaps included, is cut into one slice a rank, all of the same size, with no regard to where tensors
 * begin. The few elements behind the last slice (te_slice_elements) belong to all ranks, which do the same to them.
 *
 * Where some matrices have to stay whole (`whole`: Muon's) each of those belongs to one rank, in list order and so that
 * no rank has more than one matrix's work above the mean. Other tensors are cut each by itself, and those of less than
 * TE_SLICE_LEAST elements belong to all ranks: a collective would take longer than their update.
 *
 * Do this:
 *     te_piece_walk w = te_pieces_of(models, 2, te_slices_of(0, 4));   // rank 0 of 4
 *     while (te_pieces_next(&w)) use(w.param, w.from, w.elements);   // of one rank: each parameter, 0, all of it
 */
#ifndef TE_SLICES_H
#define TE_SLICES_H

#include "../core/group.h" /* te_group_all_gather */
#include "params.h"        /* te_param_walk */

enum { TE_SLICE_LEAST = 1 << 16 };

typedef struct te_slices {
    int rank, ranks;
    int (*whole)(const te_model *model, const te_param *p); /* null: models are cut, and none of it stays whole */
} te_slices;

TE_API te_slices te_slices_of(int rank, int ranks) {
    te_slices s;
    s.rank = rank, s.ranks = ranks, s.whole = 0;
    return s;
}

/* ---- matrices that stay whole ------------------------------------------------------------------------------------ */

TE_API int te__slices_keep(te_slices s, const te_model *m, const te_param *p) {
    return s.ranks > 1 && s.whole && p->rows > 1 && p->cols > 1 && s.whole(m, p);
}
/* What Muon does with it is bound by products: of s x l by l x s, s x s by s x s and s x s by s x l (muon.h). */
TE_API double te__slices_work(const te_param *p) {
    const double rows = (double)p->rows, cols = (double)p->cols, s = te_min(rows, cols), l = te_max(rows, cols);
    return 4 * s * s * l + 2 * s * s * s;
}
/* Of one in the memory that they are gathered through. */
TE_API size_t te__slices_bytes(const te_param *p) {
    return (size_t)te_round_up(p->rows * p->cols * (int64_t)te_dtype_bytes(p->dtype), TE_ALIGN);
}
/* A walk over them, and whose they are. */
typedef struct te_whole_walk {
    te_param_walk params;
    te_slices slices;
    double all, before; /* work of all of them, and of those in front of the next one */
    int owner, number;  /* the matrix of the last te_whole_next is the owner's number so and so */
} te_whole_walk;

TE_API te_whole_walk te_whole_of(te_model *const *models, int count, te_slices slices) {
    te_whole_walk w;
    te_param_walk p = te_params_of(models, count);
    memset(&w, 0, sizeof w);
    while (slices.whole && te_params_next(&p))
        if (te__slices_keep(slices, models[p.model], p.param)) w.all += te__slices_work(p.param);
    w.params = te_params_of(models, count), w.slices = slices, w.owner = -1;
    return w;
}
/* The rank in whose share of all the work the middle of this matrix's lies. */
TE_API void te__whole_take(te_whole_walk *w, const te_param *p) {
    const double work = te__slices_work(p), middle = w->before + work / 2;
    const int owner = (int)te_min(w->slices.ranks - 1, middle / w->all * w->slices.ranks);
    w->number = owner == w->owner ? w->number + 1 : 0;
    w->owner = owner, w->before += work;
}
/* Go to the next; 0 if there is none. */
TE_API int te_whole_next(te_whole_walk *w) {
    while (te_params_next(&w->params)) {
        const te_param *p = w->params.param;
        if (!te__slices_keep(w->slices, w->params.models[w->params.model], p)) continue;
        return te__whole_take(w, p), 1;
    }
    return 0;
}

/* ---- a walk over what a rank has of each parameter --------------------------------------------------------------- */

typedef struct te_piece_walk {
    te_param_walk params;
    te_slices slices;
    te_param *param;        /* of the last te_pieces_next, as all below */
    int model;              /* index into the models */
    int64_t from, elements; /* of the parameter's elements */
    int64_t before;         /* elements of all parameters in front of it, gaps included */
    int is_shared;          /* all ranks have this piece: it is behind the last slice */
    int next;               /* of this parameter: 0: its slice, 1: what is behind the last slice, 2: there is no more */
    te_whole_walk whole;    /* whose the matrices are that stay whole */
} te_piece_walk;

TE_API te_piece_walk te_pieces_of(te_model *const *models, int count, te_slices slices) {
    te_piece_walk w;
    memset(&w, 0, sizeof w);
    w.params = te_params_of(models, count), w.slices = slices, w.next = 2, w.whole = te_whole_of(models, count, slices);
    return w;
}
/* What the parameter has of elements [from, to) of its model's buffer. */
TE_API int te__piece_within(te_piece_walk *w, int64_t from, int64_t to) {
    const te_model *m = w->params.models[w->model];
    const int64_t bytes = (const char *)w->param->data - (const char *)m->params;
    const int64_t at = bytes / (int64_t)te_dtype_bytes(m->plan->dtype);
    const int64_t first = te_max(from, at), last = te_min(to, at + w->param->rows * w->param->cols);
    w->from = first - at, w->elements = last - first;
    return first < last;
}
/* All of the parameter, there is no other piece of it. */
TE_API int te__piece_all(te_piece_walk *w, int is_shared) {
    w->from = 0, w->elements = w->param->rows * w->param->cols, w->next = 2, w->is_shared = is_shared;
    return 1;
}
/* Elements of a slice of a tensor that is cut by itself; 0: all ranks have it. */
TE_API int64_t te__slice_of_tensor(te_slices s, const te_param *p) {
    const int64_t n = p->rows * p->cols;
    return n < TE_SLICE_LEAST ? 0 : te_slice_elements(n, s.ranks);
}
/* Where some matrices stay whole. */
TE_API int te__piece_of_tensor(te_piece_walk *w, int which) {
    const te_slices s = w->slices;
    const int64_t n = w->param->rows * w->param->cols, slice = te__slice_of_tensor(s, w->param);
    if (te__slices_keep(s, w->params.models[w->model], w->param)) {
        te__whole_take(&w->whole, w->param);
        return te__piece_all(w, 0) && w->whole.owner == s.rank;
    }
    if (!slice) return te__piece_all(w, 1);
    w->is_shared = which, w->from = which ? slice * s.ranks : slice * s.rank, w->elements = which ? n - w->from : slice;
    return w->elements > 0;
}
TE_API int te__piece_here(te_piece_walk *w) {
    const int ranks = w->slices.ranks, which = w->next++;
    if (ranks == 1) return te__piece_all(w, 0);
    if (w->slices.whole) return te__piece_of_tensor(w, which);
    const int64_t all = w->params.models[w->model]->elements, slice = te_slice_elements(all, ranks);
    w->is_shared = which;
    if (which) return te__piece_within(w, slice * ranks, all);
    return te__piece_within(w, slice * w->slices.rank, slice * (w->slices.rank + 1));
}
/* Go to the next piece; 0 if there is none. */
TE_API int te_pieces_next(te_piece_walk *w) {
    for (;;) {
        while (w->next < 2)
            if (te__piece_here(w)) return 1;
        if (w->param) w->before += te_round_up(w->param->rows * w->param->cols, TE_PARAM_ALIGN);
        if (!te_params_next(&w->params)) return w->param = 0, 0;
        w->param = w->params.param, w->model = w->params.model, w->next = 0;
    }
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* There are as many slices as ranks in the data group and, where models are cut, each lies in one buffer. */
TE_API te_status te__slices_check(te_model *const *models, int count, te_slices slices, const char *who,
                                  te_context *ctx) {
    const int ranks = slices.ranks;
    TE_REQUIRE(ranks == 1 || ranks == te_data_group(ctx)->size, ctx, TE_ERROR_VALUE,
               "%s: shards is %d, and the data group is of %d; it is that or 1", who, ranks,
               te_data_group(ctx)->size);
    for (int i = 0; ranks > 1 && !slices.whole && i < count; i++) {
        const te_model *m = models[i];
        TE_REQUIRE((m->params && m->grads) || !m->elements, ctx, TE_ERROR_STATE,
                   "%s: the states of model %d (%s) cannot be shared out: it does not say where its buffers lie", who,
                   i, m->plan->name);
        TE_REQUIRE(m->param_bytes == (size_t)m->elements * te_dtype_bytes(m->plan->dtype), ctx,
                   TE_ERROR_DTYPE, "%s: the states of model %d (%s) cannot be shared out: some of its weights are in "
                   "another format, (weights, f32)", who, i, m->plan->name);
        TE_REQUIRE(m->grad_elements == m->elements, ctx, TE_ERROR_STATE,
                   "%s: the states of model %d (%s) cannot be shared out: its gradients do not lie as its parameters "
                   "do (te_bind_trained_grads)", who, i, m->plan->name);
    }
    return TE_OK;
}
/* Bytes of memory that te__slices_gather needs: the largest matrix that stays whole, of each rank. */
TE_API size_t te__slices_room(te_model *const *models, int count, te_slices s) {
    size_t most = 0;
    te_whole_walk w = te_whole_of(models, count, s);
    while (te_whole_next(&w)) most = te_max(most, te__slices_bytes(w.params.param));
    return most * (size_t)s.ranks;
}
/* The matrices that are each their owner's number so and so go by one collective, through `room`. Returns in *any
 * whether there are some. */
TE_API te_status te__slices_gather_round(te_model *const *models, int count, te_slices s, int number, char *room,
                                         int *any, te_context *ctx) {
    size_t most = 0;
    const te_param *own = 0;
    te_whole_walk w = te_whole_of(models, count, s);
    while (te_whole_next(&w)) {
        if (w.number != number) continue;
        most = te_max(most, te__slices_bytes(w.params.param));
        if (w.owner == s.rank) own = w.params.param;
    }
    *any = most > 0;
    if (!most) return TE_OK;
    char *const here = room + (size_t)s.rank * most;
    if (own) TE_TRY(te_copy(ctx, here, own->data, (size_t)(own->rows * own->cols) * te_dtype_bytes(own->dtype)));
    TE_TRY(te_group_all_gather(te_data_group(ctx), room, here, (int64_t)(most / 2), TE_bf16, ctx)); /* as they are */
    w = te_whole_of(models, count, s);
    while (te_whole_next(&w)) {
        const te_param *p = w.params.param;
        if (w.number == number && w.owner != s.rank)
            TE_TRY(te_copy(ctx, p->data, room + (size_t)w.owner * most,
                           (size_t)(p->rows * p->cols) * te_dtype_bytes(p->dtype)));
    }
    return TE_OK;
}
/* Where some matrices stay whole: these, and the slices of the other tensors. */
TE_API te_status te__slices_gather_whole(te_model *const *models, int count, te_slices s, char *room, te_context *ctx) {
    te_param_walk w = te_params_of(models, count);
    while (te_params_next(&w)) {
        const te_param *p = w.param;
        const int64_t slice = te__slices_keep(s, models[w.model], p) ? 0 : te__slice_of_tensor(s, p);
        char *const all = (char *)p->data, *const own = all + (size_t)(s.rank * slice) * te_dtype_bytes(p->dtype);
        if (slice) TE_TRY(te_group_all_gather(te_data_group(ctx), all, own, slice, p->dtype, ctx));
    }
    for (int number = 0, any = 1; any; number++)
        TE_TRY(te__slices_gather_round(models, count, s, number, room, &any, ctx));
    return TE_OK;
}
/* Enqueue: each rank has its own slice of the parameters from before, and all of them behind. room: te__slices_room. */
TE_API te_status te__slices_gather(te_model *const *models, int count, te_slices s, char *room, te_context *ctx) {
    if (s.whole) return te__slices_gather_whole(models, count, s, room, ctx);
    for (int i = 0; i < count; i++) {
        const te_model *m = models[i];
        const int64_t slice = te_slice_elements(m->elements, s.ranks);
        char *const all = (char *)(uintptr_t)m->params,
             *const own = all + (size_t)(s.rank * slice) * te_dtype_bytes(m->plan->dtype);
        if (slice) TE_TRY(te_group_all_gather(te_data_group(ctx), all, own, slice, m->plan->dtype, ctx));
    }
    return TE_OK;
}

#endif
