/* slices.h -- optimizer states shared out over the data group (ZeRO-1; Rajbhandari et al., "ZeRO: memory optimizations
 * toward training trillion parameter models", SC 2020): which elements of the parameters a rank works on.
 *
 * A model's buffer, gaps included, is cut into one slice a rank, all of the same size, with no regard to where tensors
 * begin. The few elements behind the last slice (te_slice_elements) belong to all ranks, which do the same to them.
 *
 * Do this:
 *     te_piece_walk w = te_pieces_of(models, 2, te_slices_of(0, 4));   // rank 0 of 4
 *     while (te_pieces_next(&w)) use(w.param, w.from, w.elements);   // of one rank: each parameter, 0, all of it
 */
#ifndef TE_SLICES_H
#define TE_SLICES_H

#include "../core/group.h" /* te_group_all_gather */
#include "params.h"        /* te_param_walk */

typedef struct te_slices { int rank, ranks; } te_slices;

TE_API te_slices te_slices_of(int rank, int ranks) {
    te_slices s;
    s.rank = rank, s.ranks = ranks;
    return s;
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
} te_piece_walk;

TE_API te_piece_walk te_pieces_of(te_model *const *models, int count, te_slices slices) {
    te_piece_walk w;
    memset(&w, 0, sizeof w);
    w.params = te_params_of(models, count), w.slices = slices, w.next = 2;
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
TE_API int te__piece_here(te_piece_walk *w) {
    const int ranks = w->slices.ranks, which = w->next++;
    if (ranks == 1) {
        w->from = 0, w->elements = w->param->rows * w->param->cols, w->next = 2;
        return 1;
    }
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

/* There are as many slices as ranks in the data group, and each model lies in one buffer. */
TE_API te_status te__slices_check(te_model *const *models, int count, int ranks, const char *who, te_context *ctx) {
    TE_REQUIRE(ranks == 1 || ranks == te_data_group(ctx)->size, ctx, TE_ERROR_VALUE,
               "%s: shards is %d, and the data group is of %d; it is that or 1", who, ranks,
               te_data_group(ctx)->size);
    for (int i = 0; ranks > 1 && i < count; i++) {
        const te_model *m = models[i];
        TE_REQUIRE((m->params && m->grads) || !m->elements, ctx, TE_ERROR_STATE,
                   "%s: the states of model %d (%s) cannot be shared out: it does not say where its buffers lie", who,
                   i, m->plan->name);
        TE_REQUIRE(m->grad_elements == m->elements, ctx, TE_ERROR_STATE,
                   "%s: the states of model %d (%s) cannot be shared out: its gradients do not lie as its parameters "
                   "do (te_bind_trained_grads)", who, i, m->plan->name);
    }
    return TE_OK;
}
/* Enqueue: each rank has its own slice of the parameters from before, and all of them behind. */
TE_API te_status te__slices_gather(te_model *const *models, int count, te_slices s, te_context *ctx) {
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
