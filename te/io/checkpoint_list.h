/* checkpoint_list.h -- the tensors of a checkpoint: what they are called, and what of each this rank has. */
#ifndef TE_CHECKPOINT_LIST_H
#define TE_CHECKPOINT_LIST_H

#include "../optim/adamw.h"   /* te_adamw */
#include "../optim/recipes.h" /* te_recipes */
#include "safetensors.h"      /* te_safetensor */
#include "weights.h"          /* te_named_model, te__list_key */
#include "whole.h"            /* te__whole */

typedef struct te_checkpoint {
    const te_named_model *models;
    int count;
    te_adamw *optimizer; /* null: none in the file */
    int random;          /* 1: with the context's random state */
    const te_safetensors_pair *metadata; /* saved; te_checkpoint_load leaves them alone */
    int metadata_count;
    int force; /* 1: saves numbers that are not finite, and loads whatever the checksum and the lists say */
    te_recipes *recipes; /* null: none in the file */
} te_checkpoint;

/* The tensors of a checkpoint, their names, and what is not in target memory. Of several ranks each tensor is the whole
 * one, of which this rank has pieces, and `data` is none of its own. */
typedef struct te__checkpoint_list {
    te_safetensor *tensor;
    te__whole *whole; /* [count]; of numbers: of no parameter */
    char *names;
    const te_group *ranks; /* the tensor group, whose ranks share parameters out */
    int replica;           /* which of the data group this rank belongs to */
    int gathers;           /* one file for several ranks */
    int in_blocks;         /* moments in 8 bits, which the file has in bf16 */
    int count, room;
    size_t used, name_room;
    te_adamw_state state;
    te_rng rng;
    int64_t step[2], recipes[2];
    uint64_t random[2];
} te__checkpoint_list;

/* Add a tensor "<kind><model>.<op>.<field>", of which this rank has nothing yet; where there is no room, count only. */
TE_API void te__checkpoint_add(te__checkpoint_list *l, const char *kind, const te_named_model *model, const te_param *p,
                               te_dtype dtype) {
    const size_t left = l->names ? l->name_room - l->used : 0;
    char *name = l->names ? l->names + l->used : 0;
    const int n = snprintf(name, left, "%s%s%s%s.%s", kind, model->name, *model->name ? "." : "", p->op, p->field);
    if (l->tensor) {
        l->whole[l->count] = te__whole_of(p, l->ranks);
        l->tensor[l->count] = te_safetensor_matrix(name, dtype, l->whole[l->count].rows, l->whole[l->count].cols, name);
    }
    l->used += (size_t)n + 1, l->count++;
}
/* Tensor i: elements [from, from + elements) of this rank's parameter lie there. saves: it is this rank that brings
 * them into the file. in_blocks: as te__piece has it. */
TE_API void te__checkpoint_piece(te__checkpoint_list *l, int i, void *data, int64_t from, int64_t elements,
                                 int saves, int in_blocks) {
    if (!l->tensor) return;
    te__whole *w = &l->whole[i];
    if (!l->gathers) l->tensor[i].data = data;
    w->piece[w->pieces].data = data, w->piece[w->pieces].from = from;
    w->piece[w->pieces].elements = elements, w->piece[w->pieces].in_blocks = in_blocks;
    w->piece[w->pieces++].saves = saves;
}
TE_API void te__checkpoint_add_numbers(te__checkpoint_list *l, const char *name, te_safetensors_dtype dtype,
                                       int64_t count, void *data) {
    if (l->tensor) l->tensor[l->count] = te_safetensor_of(name, dtype, 1, &count, data);
    if (l->whole) memset(&l->whole[l->count], 0, sizeof *l->whole);
    l->count++;
}
/* Whether a checkpoint is one file for several ranks. */
TE_API int te__checkpoint_gathers(const te_context *ctx) { return ctx && ctx->comm && ctx->comm->world.size > 1; }
TE_API const te_named_model *te__checkpoint_model(const te_checkpoint *c, const te_model *m) {
    for (int i = 0; i < c->count; i++)
        if (c->models[i].model == m) return &c->models[i];
    return 0;
}
/* How the names of what this rule's tensors have begin. */
enum { TE__CHECKPOINT_step, TE__CHECKPOINT_master, TE__CHECKPOINT_m, TE__CHECKPOINT_v };
TE_API const char *te__checkpoint_kind(te_rule rule, int what) {
#define TE__CHECKPOINT_KINDS(rule) {#rule ".step", #rule ".master.", #rule ".m.", #rule ".v."},
    static const char *const kinds[][4] = {TE_RULES(TE__CHECKPOINT_KINDS)};
#undef TE__CHECKPOINT_KINDS
    return kinds[rule][what];
}
/* The tensors of one parameter that the optimizer has: up to three, of which `w` has the pieces. */
TE_API void te__checkpoint_states(te__checkpoint_list *l, const te_named_model *m, const te_param *p, te_rule rule,
                                  te_adamw_walk *w, int *more) {
    const te_adamw *o = w->opt;
    const int first = l->count, masters = p->dtype != TE_f32 && !o->no_master;
    const int blocks = te__in_blocks(o->moments);
    const te_dtype moments = blocks ? TE_bf16 : o->moments;
    if (masters) te__checkpoint_add(l, te__checkpoint_kind(rule, TE__CHECKPOINT_master), m, p, TE_f32);
    te__checkpoint_add(l, te__checkpoint_kind(rule, TE__CHECKPOINT_m), m, p, moments);
    if (rule == TE_RULE_adamw) te__checkpoint_add(l, te__checkpoint_kind(rule, TE__CHECKPOINT_v), m, p, moments);
    for (; *more && w->param == p; *more = te_adamw_next(w)) {
        const int is_slice = o->slices.ranks > 1 && !w->pieces.is_shared;
        const int saves = te__whole_saves(p, l->ranks) && (is_slice || !l->replica);
        if (masters) te__checkpoint_piece(l, first, w->master, w->from, w->elements, saves, 0);
        te__checkpoint_piece(l, first + masters, w->m, w->from, w->elements, saves, blocks);
        if (w->v) te__checkpoint_piece(l, first + masters + 1, w->v, w->from, w->elements, saves, 2 * blocks);
    }
}
TE_API te_status te__checkpoint_walk(te__checkpoint_list *l, const te_checkpoint *c, te_context *ctx) {
    l->count = 0, l->used = 0;
    if (c->optimizer)
        te__checkpoint_add_numbers(l, te__checkpoint_kind(c->optimizer->rule, TE__CHECKPOINT_step),
                                   TE_SAFETENSORS_I64, 2, l->step);
    if (c->random) te__checkpoint_add_numbers(l, "random", TE_SAFETENSORS_U64, 2, l->random);
    if (c->recipes) {
        te_scales *s = &c->recipes->scales;
        te__checkpoint_add_numbers(l, "recipes.begun", TE_SAFETENSORS_I64, 2, l->recipes);
        te__checkpoint_add_numbers(l, "recipes.scales", TE_SAFETENSORS_U8, (int64_t)s->bytes, s->memory);
    }
    for (int i = 0; i < c->count; i++)
        for (int k = 0; k < c->models[i].model->param_count; k++) {
            const te_param *p = &c->models[i].model->param[k];
            if (p->tied) continue;
            te__checkpoint_add(l, "", &c->models[i], p, p->dtype);
            te__checkpoint_piece(l, l->count - 1, p->data, 0, p->rows * p->cols,
                                 te__whole_saves(p, l->ranks) && !l->replica, 0);
        }
    const te_adamw *o = c->optimizer;
    if (!o) return TE_OK;
    te_param_walk p = te_params_of(o->models, o->model_count); /* all, where this rank may have no piece of some */
    te_adamw_walk w = te_adamw_tensors(o);
    for (int more = te_adamw_next(&w); te_params_next(&p);) {
        const te_named_model *m = te__checkpoint_model(c, o->models[p.model]);
        TE_REQUIRE(m, ctx, TE_ERROR_VALUE, "checkpoint: the optimizer has a model %d (%s) that is not in the list",
                   p.model, o->models[p.model]->plan->name);
        te__checkpoint_states(l, m, p.param, te__param_rule(o->rule, o->takes, m->model, p.param), &w, &more);
    }
    return TE_OK;
}
/* The numbers among them, which come first. */
TE_API int te__checkpoint_counts(const te_checkpoint *c) {
    return (c->optimizer != 0) + (c->random != 0) + (c->recipes != 0);
}
TE_API void te__checkpoint_free(te__checkpoint_list *l) { free(l->tensor), free(l->whole), free(l->names); }
/* The list. After an error there is nothing to free. */
TE_API te_status te__checkpoint_begin(te__checkpoint_list *l, const te_checkpoint *c, te_context *ctx) {
    memset(l, 0, sizeof *l);
    l->ranks = te_tensor_group(ctx), l->replica = te_data_group(ctx)->rank, l->gathers = te__checkpoint_gathers(ctx);
    TE_REQUIRE(c && ctx && (c->models || !c->count), ctx, TE_ERROR_NULL,
               "checkpoint: the struct, its models or the context are null");
    TE_REQUIRE(!c->optimizer || c->optimizer->state, ctx, TE_ERROR_STATE,
               "checkpoint: the optimizer is not initialised");
    TE_REQUIRE(!c->recipes || c->recipes->scales.memory, ctx, TE_ERROR_STATE,
               "checkpoint: the recipes are not initialised");
    TE_REQUIRE(!c->recipes || !l->gathers, ctx, TE_ERROR_VALUE,
               "checkpoint: each rank has scales of its own for its recipes; several ranks save without them");
    TE_REQUIRE(!c->random || ctx->rng, ctx, TE_ERROR_STATE, "checkpoint: the context has no random state");
    TE_REQUIRE(c->count >= 0, ctx, TE_ERROR_SHAPE, "checkpoint: %d models", c->count);
    for (int i = 0; i < c->count; i++) {
        const te_model *m = c->models[i].model;
        TE_REQUIRE(c->models[i].name && m && m->plan, ctx, TE_ERROR_NULL,
                   "checkpoint: model %d has no name or is not bound to memory", i);
        TE_REQUIRE(!m->at || m->at == m, ctx, TE_ERROR_STATE,
                   "checkpoint: model %d (%s) was copied since it was bound; bind it where it lies", i, m->plan->name);
    }
    l->in_blocks = c->optimizer && te__in_blocks(c->optimizer->moments);
    TE_TRY(te__checkpoint_walk(l, c, ctx));
    l->room = l->count, l->name_room = l->used;
    l->tensor = (te_safetensor *)calloc((size_t)l->room + 1, sizeof *l->tensor);
    l->whole = (te__whole *)calloc((size_t)l->room + 1, sizeof *l->whole);
    l->names = (char *)malloc(l->name_room + 1);
    if (l->tensor && l->whole && l->names) return te__checkpoint_walk(l, c, ctx);
    te__checkpoint_free(l);
    return te_fail(ctx, TE_ERROR_MEMORY, "checkpoint: cannot allocate %zu bytes",
                   (size_t)l->room * sizeof *l->tensor + l->name_room);
}
/* What is not in target memory. */
TE_API te_status te__checkpoint_numbers(te__checkpoint_list *l, const te_checkpoint *c, te_context *ctx) {
    if (c->optimizer) TE_TRY(te_adamw_get(&l->state, c->optimizer, ctx));
    if (c->random) TE_TRY(te_rng_get(&l->rng, ctx));
    l->step[0] = l->state.step, l->step[1] = l->state.skipped;
    l->random[0] = l->rng.seed, l->random[1] = l->rng.offset;
    if (c->recipes) l->recipes[0] = c->recipes->begun, l->recipes[1] = c->recipes->count;
    return TE_OK;
}

#endif
