/* checkpoint.h -- a training state in one safetensors file: models by name, the optimizer, the random state, and
 * strings of the caller's. A run that is loaded from it goes on to the same bits as one that was never stopped.
 *
 * Do this:
 *     te_named_model models[] = {{"embed", &embed.model}, {"h0", &h0.model}};
 *     te_safetensors_pair metadata[] = {{"position", "81920"}};
 *     te_checkpoint all = {models, 2, &opt, 1, metadata, 1, 0, 0};
 *     TE_TRY(te_checkpoint_save("run.safetensors", &all, &ctx));
 *
 *     te_safetensors file;
 *     TE_TRY(te_safetensors_open(&file, "run.safetensors", &ctx));
 *     const char *position = te_safetensors_metadata(&file, "position");
 *     te_status status = te_checkpoint_load(&all, &file, &ctx);         // checks all of it, then changes something
 *     te_safetensors_close(&file);
 *
 * Tensors are called "h0.fc1.weight", of the model's dtype, [rows, cols] or, with one row, [cols]. The optimizer adds
 * "adamw.master.h0.fc1.weight" (where the optimizer has one), "adamw.m. ...", "adamw.v. ...", of the dtype of the
 * moments (loading converts from the other, as it does with weights), and "adamw.step", I64 [2]: updates made and left
 * out; their sum is the run's one count of steps. What SGD takes begins with "sgd." instead, what Muon takes with
 * "muon."; their counts are "sgd.step" and "muon.step".
 * "random" is U64 [2]: seed and offset.
 * A tied parameter is saved with its owner, a frozen one without what the optimizer would have. The state of recipes is
 * "recipes.scales", U8, and "recipes.begun", I64 [2]: whether a step lies behind them, and how many products there are.
 *
 * Weights of others load, too, in F32, BF16 or F16 whatever the model's dtype is (te_safetensors_load).
 *
 * The metadata say what the file belongs to. "te.checksum" is over all of the file: a bit that changed is found.
 * "te.list.h0" is the list of the model h0 (plan_text.h): loading into a model of another list is an error that says
 * which op differs, where shapes alone might agree. A file that older versions wrote has neither, and loads; then
 * te_safetensors_metadata(&file, TE_SAFETENSORS_SUM) is null. Keys of the caller's do not begin with "te.".
 */
#ifndef TE_CHECKPOINT_H
#define TE_CHECKPOINT_H

#include "../optim/adamw.h"   /* te_adamw */
#include "../optim/recipes.h" /* te_recipes */
#include "plan_text.h"      /* te__plan_text, te__plan_difference */
#include "safetensors.h"    /* te_safetensor */

typedef struct te_named_model {
    const char *name; /* "h0"; "" for no prefix */
    te_model *model;
} te_named_model;

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

/* The tensors of a checkpoint, their names, and what is not in target memory. */
typedef struct te__checkpoint_list {
    te_safetensor *tensor;
    char *names;
    int count, room;
    size_t used, name_room;
    te_adamw_state state;
    te_rng rng;
    int64_t step[2], recipes[2];
    uint64_t random[2];
} te__checkpoint_list;

/* Add a tensor "<kind><model>.<op>.<field>"; where there is no room yet, count only. */
TE_API void te__checkpoint_add(te__checkpoint_list *l, const char *kind, const te_named_model *model, const te_param *p,
                               te_dtype dtype, void *data) {
    const size_t left = l->names ? l->name_room - l->used : 0;
    char *name = l->names ? l->names + l->used : 0;
    const int n = snprintf(name, left, "%s%s%s%s.%s", kind, model->name, *model->name ? "." : "", p->op, p->field);
    if (l->tensor) l->tensor[l->count] = te_safetensor_matrix(name, dtype, p->rows, p->cols, data);
    l->used += (size_t)n + 1, l->count++;
}
TE_API void te__checkpoint_add_numbers(te__checkpoint_list *l, const char *name, te_safetensors_dtype dtype,
                                       int64_t count, void *data) {
    if (l->tensor) l->tensor[l->count] = te_safetensor_of(name, dtype, 1, &count, data);
    l->count++;
}
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
            if (!p->tied) te__checkpoint_add(l, "", &c->models[i], p, c->models[i].model->plan->dtype, p->data);
        }
    if (!c->optimizer) return TE_OK;
    te_adamw_walk w = te_adamw_tensors(c->optimizer);
    while (te_adamw_next(&w)) {
        const te_named_model *m = te__checkpoint_model(c, c->optimizer->models[w.model]);
        TE_REQUIRE(m, ctx, TE_ERROR_VALUE, "checkpoint: the optimizer has a model %d (%s) that is not in the list",
                   w.model,
                   c->optimizer->models[w.model]->plan->name);
        const te_adamw *o = c->optimizer;
        if (w.master && w.master != w.param->data)
            te__checkpoint_add(l, te__checkpoint_kind(w.rule, TE__CHECKPOINT_master), m, w.param, TE_f32, w.master);
        te__checkpoint_add(l, te__checkpoint_kind(w.rule, TE__CHECKPOINT_m), m, w.param, o->moments, w.m);
        if (w.v) te__checkpoint_add(l, te__checkpoint_kind(w.rule, TE__CHECKPOINT_v), m, w.param, o->moments, w.v);
    }
    return TE_OK;
}
TE_API void te__checkpoint_free(te__checkpoint_list *l) { free(l->tensor), free(l->names); }
/* The list. After an error there is nothing to free. */
TE_API te_status te__checkpoint_begin(te__checkpoint_list *l, const te_checkpoint *c, te_context *ctx) {
    memset(l, 0, sizeof *l);
    TE_REQUIRE(c && ctx && (c->models || !c->count), ctx, TE_ERROR_NULL,
               "checkpoint: the struct, its models or the context are null");
    TE_REQUIRE(!c->optimizer || c->optimizer->state, ctx, TE_ERROR_STATE,
               "checkpoint: the optimizer is not initialised");
    TE_REQUIRE(!c->recipes || c->recipes->scales.memory, ctx, TE_ERROR_STATE,
               "checkpoint: the recipes are not initialised");
    TE_REQUIRE(!c->random || ctx->rng, ctx, TE_ERROR_STATE, "checkpoint: the context has no random state");
    TE_REQUIRE(c->count >= 0, ctx, TE_ERROR_SHAPE, "checkpoint: %d models", c->count);
    for (int i = 0; i < c->count; i++) {
        const te_model *m = c->models[i].model;
        TE_REQUIRE(c->models[i].name && m && m->plan, ctx, TE_ERROR_NULL,
                   "checkpoint: model %d has no name or is not bound to memory", i);
        TE_REQUIRE(!m->at || m->at == m, ctx, TE_ERROR_STATE,
                   "checkpoint: model %d (%s) was copied since it was bound; bind it where it lies", i, m->plan->name);
    }
    TE_TRY(te__checkpoint_walk(l, c, ctx));
    l->room = l->count, l->name_room = l->used;
    l->tensor = (te_safetensor *)calloc((size_t)l->room + 1,
                                        sizeof *l->tensor), l->names = (char *)malloc(l->name_room + 1);
    if (l->tensor && l->names) return te__checkpoint_walk(l, c, ctx);
    te__checkpoint_free(l);
    return te_fail(ctx, TE_ERROR_MEMORY, "checkpoint: cannot allocate %zu bytes",
                   (size_t)l->room * sizeof *l->tensor + l->name_room);
}
TE_API te_status te__checkpoint_gather(te__checkpoint_list *l, const te_checkpoint *c, te_context *ctx) {
    if (c->optimizer) TE_TRY(te_adamw_get(&l->state, c->optimizer, ctx));
    if (c->random) TE_TRY(te_rng_get(&l->rng, ctx));
    l->step[0] = l->state.step, l->step[1] = l->state.skipped;
    l->random[0] = l->rng.seed, l->random[1] = l->rng.offset;
    if (c->recipes) l->recipes[0] = c->recipes->begun, l->recipes[1] = c->recipes->count;
    return TE_OK;
}

/* ---- what the file belongs to ------------------------------------------------------------------------------------ */

#define TE__CHECKPOINT_LIST "te.list"

/* The caller's metadata and ours; keys and values of ours lie in one text. */
typedef struct te__checkpoint_notes {
    te_safetensors_pair *pair;
    char *text;
    int count;
} te__checkpoint_notes;

/* "te.list.h0", or "te.list" for the model without a name. */
TE_API void te__checkpoint_list_key(te__text *t, const te_named_model *m) {
    te__text_put(t, TE__CHECKPOINT_LIST), te__text_put(t, *m->name ? "." : ""), te__text_put(t, m->name);
    te__text_char(t, 0);
}
TE_API void te__checkpoint_notes_walk(te__checkpoint_notes *n, te__text *t, const te_checkpoint *c) {
    n->count = c->metadata_count;
    for (int i = 0; i < c->count; i++, n->count++) {
        if (n->pair) n->pair[n->count].key = t->p + t->n;
        te__checkpoint_list_key(t, &c->models[i]);
        if (n->pair) n->pair[n->count].value = t->p + t->n;
        te__plan_text(t, c->models[i].model->plan), te__text_char(t, 0);
    }
}
TE_API te_status te__checkpoint_notes_of(te__checkpoint_notes *n, const te_checkpoint *c, te_context *ctx) {
    te__text t;
    memset(n, 0, sizeof *n), t.p = 0, t.n = 0;
    TE_REQUIRE(c->metadata_count >= 0 && (c->metadata || !c->metadata_count), ctx, TE_ERROR_NULL,
               "checkpoint: the metadata are null, or their count is %d", c->metadata_count);
    TE_TRY(te__safetensors_keys(c->metadata, c->metadata_count, ctx));
    te__checkpoint_notes_walk(n, &t, c);
    te_safetensors_pair *pair = (te_safetensors_pair *)calloc((size_t)n->count + 1, sizeof *pair);
    char *text = (char *)malloc(t.n + 1);
    if (!pair || !text) {
        free(pair), free(text);
        return te_fail(ctx, TE_ERROR_MEMORY, "checkpoint: cannot allocate %zu bytes", t.n + 1);
    }
    for (int i = 0; i < c->metadata_count; i++) pair[i] = c->metadata[i];
    n->pair = pair, n->text = t.p = text, t.n = 0;
    te__checkpoint_notes_walk(n, &t, c);
    return TE_OK;
}
TE_API void te__checkpoint_notes_free(te__checkpoint_notes *n) { free(n->pair), free(n->text); }

/* Each model has the list that the file says; a file that says nothing was written by an older version. */
TE_API te_status te__checkpoint_lists(const te_checkpoint *c, const te_safetensors *f, te_context *ctx) {
    te__checkpoint_notes n;
    te__plan_pair d;
    te_status status = te__checkpoint_notes_of(&n, c, ctx);
    for (int i = c->metadata_count; status == TE_OK && i < n.count; i++) {
        const char *was = te_safetensors_metadata(f, n.pair[i].key);
        if (was && te__plan_difference(&d, was, n.pair[i].value))
            status = te_fail(ctx, TE_ERROR_VALUE, "%.100s: of model \"%.40s\" it has (%s), where this one has (%s)",
                             f->path,
                             c->models[i - c->metadata_count].name, d.was, d.is);
    }
    if (n.pair) te__checkpoint_notes_free(&n);
    return status;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Whether a checkpoint could be saved there: a folder that can be written to, and no device or folder in the way.
 * Leaves nothing behind. For before a training that takes days. */
TE_API te_status te_checkpoint_probe(const char *path, te_context *ctx) {
    te__new_file f;
    TE_REQUIRE(path && ctx, ctx, TE_ERROR_NULL, "checkpoint: the path or the context is null");
    TE_TRY(te__new_file_open(&f, path, ctx));
    te__new_file_drop(&f);
    return TE_OK;
}

/* Save to a file, which stays as it was until the new one is complete on the disk (te/core/file.h). Waits for the
 * stream. Errors: TE_ERROR_IO; a number that is not finite (TE_ERROR_VALUE, unless `force`): the last good file stays;
 * two tensors of one name; an optimizer with a model that is not in the list. */
TE_API te_status te_checkpoint_save(const char *path, const te_checkpoint *c, te_context *ctx) {
    te__checkpoint_list l;
    te__checkpoint_notes n;
    te__safetensors_extra extra;
    TE_TRY(te__checkpoint_begin(&l, c, ctx));
    extra.sealed = 1, extra.finite = !c->force;
    te_status status = te__checkpoint_notes_of(&n, c, ctx);
    if (status == TE_OK) {
        status = te__checkpoint_gather(&l, c, ctx);
        if (status == TE_OK) status = te__safetensors_write(path, l.tensor, l.count, n.pair, n.count, extra, ctx);
        te__checkpoint_notes_free(&n);
    }
    te__checkpoint_free(&l);
    return status;
}

TE_API te_status te__checkpoint_apply(te__checkpoint_list *l, const te_checkpoint *c, const te_safetensors *f,
                                      te_context *ctx) {
    const int numbers = (c->optimizer != 0) + (c->random != 0) + (c->recipes != 0); /* they come first in the list */
    te_safetensors file = *f;
    if (!c->force && !f->verified) TE_TRY(te_safetensors_verify(&file, ctx));
    TE_TRY(te_safetensors_check(f, l->tensor, l->count, 1, ctx));
    if (!c->force) TE_TRY(te__checkpoint_lists(c, f, ctx));
    TE_TRY(te_safetensors_load(f, l->tensor, numbers, 0, ctx));
    TE_REQUIRE(te__adamw_counts(l->step[0], l->step[1]), ctx, TE_ERROR_FORMAT, "%.120s: %s is %lld, %lld",
               f->path, te__checkpoint_kind(c->optimizer->rule, TE__CHECKPOINT_step),
               (long long)l->step[0], (long long)l->step[1]);
    TE_REQUIRE(!c->recipes || ((l->recipes[0] | 1) == 1 && l->recipes[1] == c->recipes->count), ctx, TE_ERROR_FORMAT,
               "%.120s: recipes.begun is %lld of %lld products, here are %d", f->path, (long long)l->recipes[0],
               (long long)l->recipes[1], c->recipes ? c->recipes->count : 0);
    TE_TRY(te_safetensors_load(f, l->tensor + numbers, l->count - numbers, 0, ctx));
    l->state.step = l->step[0], l->state.skipped = l->step[1];
    l->rng.seed = l->random[0], l->rng.offset = l->random[1];
    if (c->optimizer) TE_TRY(te_adamw_set(&l->state, c->optimizer, ctx));
    if (c->recipes) TE_TRY(te_recipes_loaded(c->recipes, (int)l->recipes[0], ctx));
    return c->random ? te_rng_set(&l->rng, ctx) : TE_OK;
}
/* Load from an open file, which must have exactly these models' tensors (and the optimizer's, and the random state, if
 * asked for). A wrong checksum, another list, missing, unknown and mis-shaped tensors: an error that says which and
 * what was expected, and nothing changed. A disk that fails while it is read (TE_ERROR_IO) may leave a part. Reads the
 * file twice, for its checksum first, unless te_safetensors_verify has found that right. Waits for the stream. */
TE_API te_status te_checkpoint_load(const te_checkpoint *c, const te_safetensors *f, te_context *ctx) {
    te__checkpoint_list l;
    TE_REQUIRE(f && f->path, ctx, TE_ERROR_NULL, "checkpoint: the file is null or not open");
    TE_TRY(te__checkpoint_begin(&l, c, ctx));
    const te_status status = te__checkpoint_apply(&l, c, f, ctx);
    te__checkpoint_free(&l);
    return status;
}

#endif
