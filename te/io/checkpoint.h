/* checkpoint.h -- saves a training state in one safetensors file, and loads it. The training state consists of the
 * models' parameters, the optimizer's state, the random state, and strings that the caller adds. The results of a run
 * that continues from the file are bitwise identical to those of a run that was never stopped (on the host with
 * -DTE_CBLAS, only if the number of threads is the same).
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
 *     te_status status = te_checkpoint_load(&all, &file, &ctx);     // makes all checks before it changes anything
 *     te_safetensors_close(&file);
 *
 * Several ranks (a context with a communicator) save one file together and load one file together. The file has whole
 * tensors, as if one rank had written it. So any number of ranks can load the file, whatever tensor or pipeline
 * parallelism or ZeRO they use. Rank 0 of the world writes the file, and all ranks read it. Each stage of a pipeline
 * lists all models; a model of another stage has no memory here (te_model_describe) or is a copy (te_model_mark_copy).
 * Several ranks can save the scales of FP8 recipes only if te_recipes_config.ranks is the number of ranks, because only
 * then all ranks have the same scales. A run may continue with other recipes (checkpoint_recipes.h). Weights that other
 * programs have written in F32, BF16 or F16 can be loaded into models of any dtype.
 */
#ifndef TE_CHECKPOINT_H
#define TE_CHECKPOINT_H

#include "../optim/adamw.h"          /* te_adamw */
#include "../optim/recipes.h"        /* te_recipes */
#include "impl/checkpoint_recipes.h" /* te__checkpoint_check_scales, te__checkpoint_apply_scales */
#include "impl/checkpoint_tensors.h" /* te__checkpoint_tensors, te__checkpoint_agree, te__gather_part */
#include "weights.h"                 /* te_named_model, te__plan_text, te__plan_difference */

/* The contents of a file: for each field of te_checkpoint, the tensors or the metadata that the file has for it:
 *
 *     models      "h0.fc1.weight", of the model's dtype, [rows, cols] or, with one row, [cols]. A tied parameter, which
 *                 shares the memory of another parameter (its owner), is not saved separately.
 *     optimizer   "adamw.master.h0.fc1.weight", F32, if there are master weights; "adamw.m.h0.fc1.weight" and
 *                 "adamw.v.h0.fc1.weight", of the moments' dtype. Moments in 8 bits are saved as BF16, which represents
 *                 all their values exactly. Loading converts master weights and moments from the file's format to the
 *                 optimizer's. "adamw.step", I64 [2]: the number of updates made and the number of steps skipped. For
 *                 parameters that SGD updates, the prefix is "sgd." instead of "adamw."; for parameters that Muon
 *                 updates, "muon.". The counts are then "sgd.step" and "muon.step". Frozen parameters have no optimizer
 *                 tensors. With dynamic loss scaling (te_adamw_use_loss_scaler), "loss_scale", F32 [1], and
 *                 "loss_scale.steps", I64 [1]: the number of steps since the scale last changed. If the file has no
 *                 loss scale, the optimizer's loss scaler keeps its present scale. If the optimizer has no loss scaler,
 *                 the file's loss scale is not used.
 *     random      "random", U64 [2]: seed and offset.
 *     recipes     "recipes.scales", U8: the memory of a te_scales. "recipes.begun", I64 [3]: whether a step was made (1
 *                 or 0), the number of GEMMs under an FP8 recipe, and the length of the amax histories.
 *     metadata    the caller's strings; keys that begin with "te." are reserved. "te.checksum" is the checksum of the
 *                 file. "te.list.h0" is the list of ops of the model h0 as a text (weights.h). Loading into a model
 *                 with another list is an error, even if the shapes agree, and the error text names the op that
 *                 differs; differences in collectives are ignored. A file of an older version has neither the checksum
 *                 nor the lists, and loads without these checks. */
typedef struct te_checkpoint {
    const te_named_model *models;
    int count;
    te_adamw *optimizer;                 /* null: the file has no optimizer state */
    int random;                          /* 1: the file includes the context's random state */
    const te_safetensors_pair *metadata; /* [metadata_count]: the caller's strings, which are saved; te_checkpoint_load
                                          * ignores this array */
    int metadata_count;
    /* 1: save tensors even if they have infinities or NaNs. Load a file even if its checksum is wrong, or if its lists
     * of ops differ from the models', or if its FP8 scales would be lost (models are under FP8 recipes, but `recipes`
     * is null) */
    int force;
    te_recipes *recipes; /* null: FP8 scales are neither saved nor loaded */
} te_checkpoint;

/* ---- the tensors ------------------------------------------------------------------------------------------------- */

TE_API const te_named_model *te__checkpoint_model(const te_checkpoint *c, const te_model *m) {
    for (int i = 0; i < c->count; i++)
        if (c->models[i].model == m) return &c->models[i];
    return 0;
}
/* Add the optimizer's tensors of all parameters of a model to the list l. A parameter's tensors are added even if its
 * optimizer state is on other ranks, because of ZeRO-1 or because the model belongs to another stage of the
 * pipeline. */
TE_API void te__checkpoint_add_model_states(te__checkpoint_tensors *l, const te_named_model *m, const te_adamw *o,
                                            te_adamw_iter *states, int *more) {
    te_model *const models[1] = {m->model};
    for (te_param_iter p = te_params_of(models, 1); te_params_next(&p);)
        te__checkpoint_add_states(l, m, p.param, te__param_rule(o->rule, o->takes, m->model, p.param), states, more);
}
/* If m is a model of another pipeline stage, add the optimizer's tensors of its parameters to the list l; otherwise do
 * nothing. As a result, all ranks list the tensors in the same order, that of te_checkpoint.models. */
TE_API void te__checkpoint_add_elsewhere(te__checkpoint_tensors *l, const te_named_model *m, const te_adamw *o,
                                         te_adamw_iter *states, int *more) {
    if (m->model->is_elsewhere) te__checkpoint_add_model_states(l, m, o, states, more);
}
/* Add all tensors of a checkpoint to the list l. If the memory of the list is not allocated yet, only count the
 * tensors. The "numbers" (step counts, random state, loss scale: small arrays in host memory) come first. */
TE_API te_status te__checkpoint_collect(te__checkpoint_tensors *l, const te_checkpoint *c, te_context *ctx) {
    l->count = 0, l->used = 0, l->saves = l->models = 0;
    if (c->optimizer)
        te__checkpoint_add_numbers(l, te__checkpoint_prefix(c->optimizer->rule, TE__CHECKPOINT_step),
                                   TE_SAFETENSORS_I64, 2, l->step);
    if (l->has_loss_scale) {
        te__checkpoint_add_numbers(l, "loss_scale", TE_SAFETENSORS_F32, 1, &l->loss_scale);
        te__checkpoint_add_numbers(l, "loss_scale.steps", TE_SAFETENSORS_I64, 1, &l->loss_scale_steps);
    }
    if (c->random) te__checkpoint_add_numbers(l, "random", TE_SAFETENSORS_U64, 2, l->random);
    (void)te__checkpoint_add_scales(l, c->recipes);
    l->numbers = l->count;
    for (int i = 0; i < c->count; i++) {
        te__checkpoint_count_model(l, i, c->models[i].model);
        for (int k = 0; k < c->models[i].model->param_count; k++) {
            const te_param *p = &c->models[i].model->param[k];
            if (!p->tied) te__checkpoint_add_param(l, &c->models[i], p);
        }
    }
    const te_adamw *o = c->optimizer;
    if (!o) return TE_OK;
    te_adamw_iter states = te_adamw_tensors(o);
    const te_named_model *after = c->models;
    int more = te_adamw_next(&states);
    for (int i = 0; i < o->model_count; i++) {
        const te_named_model *m = te__checkpoint_model(c, o->models[i]);
        TE_REQUIRE(m, ctx, TE_ERROR_VALUE, "checkpoint: the optimizer has a model %d (%s) that is not in the list", i,
                   o->models[i]->plan->name);
        for (; after < m; after++) te__checkpoint_add_elsewhere(l, after, o, &states, &more);
        te__checkpoint_add_model_states(l, m, o, &states, &more);
    }
    for (; after < c->models + c->count; after++) te__checkpoint_add_elsewhere(l, after, o, &states, &more);
    return TE_OK;
}
TE_API te_status te__checkpoint_check_struct(const te_checkpoint *c, int is_sharded, te_context *ctx) {
    TE_REQUIRE(c && ctx && (c->models || !c->count), ctx, TE_ERROR_NULL,
               "checkpoint: the struct, its models or the context are null");
    TE_REQUIRE(!c->optimizer || c->optimizer->state, ctx, TE_ERROR_STATE,
               "checkpoint: the optimizer is not initialised");
    TE_REQUIRE(!c->recipes || c->recipes->scales.memory, ctx, TE_ERROR_STATE,
               "checkpoint: the recipes are not initialised");
    TE_REQUIRE(!c->recipes || !is_sharded || c->recipes->config.ranks > 1, ctx, TE_ERROR_VALUE,
               "checkpoint: with te_recipes_config.ranks 1 each rank has scales of its own; set it to the number of "
               "all ranks, whose scales are then the same, or save without recipes");
    TE_REQUIRE(!c->random || ctx->rng, ctx, TE_ERROR_STATE, "checkpoint: the context has no random state");
    TE_REQUIRE(c->count >= 0, ctx, TE_ERROR_SHAPE, "checkpoint: %d models", c->count);
    for (int i = 0; i < c->count; i++) {
        const te_model *m = c->models[i].model;
        TE_REQUIRE(c->models[i].name && m && m->plan, ctx, TE_ERROR_NULL,
                   "checkpoint: model %d has no name or is not bound to memory", i);
        TE_REQUIRE(!m->at || m->at == m, ctx, TE_ERROR_STATE,
                   "checkpoint: model %d (%s) was copied since it was bound; bind it where it lies", i, m->plan->name);
        TE_REQUIRE(!m->is_elsewhere || te_pipeline_group(ctx)->size > 1, ctx, TE_ERROR_STATE,
                   "checkpoint: model %d (%s) has no memory (te_model_describe), and here is no other stage of a "
                   "pipeline", i, m->plan->name);
    }
    return TE_OK;
}
/* Make the list of the checkpoint's tensors. file: the file that is loaded, or null if the checkpoint is saved. After
 * an error there is nothing to free. */
TE_API te_status te__checkpoint_begin(te__checkpoint_tensors *l, const te_checkpoint *c, const te_safetensors *file,
                                      te_context *ctx) {
    memset(l, 0, sizeof *l);
    l->ranks = te_tensor_group(ctx), l->replica = te_data_group(ctx)->rank;
    l->is_sharded = te__checkpoint_is_sharded(ctx);
    TE_TRY(te__checkpoint_check_struct(c, l->is_sharded, ctx));
    l->has_8bit = c->optimizer && te__moments_8bit(c->optimizer->moments);
    if (c->optimizer)
        l->has_loss_scale = file ? te_safetensors_find(file, "loss_scale") != 0 : c->optimizer->scaler != 0;
    if (file) TE_TRY(te__checkpoint_open_scales(l, file, ctx));
    te_status status = te__checkpoint_collect(l, c, ctx);
    if (status != TE_OK) return te__checkpoint_free(l), status;
    const size_t capacity = (size_t)l->count + 1;
    l->name_bytes = l->used;
    l->tensor = (te_safetensor *)calloc(capacity, sizeof *l->tensor);
    l->sharded = (te__sharded_tensor *)calloc(capacity, sizeof *l->sharded);
    l->names = (char *)malloc(l->name_bytes + 1);
    if (l->tensor && l->sharded && l->names) return te__checkpoint_collect(l, c, ctx);
    te__checkpoint_free(l);
    return te_fail(ctx, TE_ERROR_MEMORY, "checkpoint: cannot allocate %zu bytes",
                   capacity * sizeof *l->tensor + l->name_bytes);
}
/* Return the optimizer's loss scaler. If the optimizer has no loss scaler, the member `state` of the result is null. */
TE_API te_loss_scaler te__checkpoint_loss_scaler(const te_checkpoint *c) {
    te_loss_scaler s;
    s.state = c->optimizer ? c->optimizer->scaler : 0;
    return s;
}
/* Fetch the values of the "numbers" (step counts, loss scale, random state) from target memory before they are saved,
 * and recompute the master weights if the program has written weights since the last step. Waits for the stream. */
TE_IF_USED TE_API te_status te__checkpoint_numbers(te__checkpoint_tensors *l, const te_checkpoint *c, te_context *ctx) {
    if (c->optimizer) TE_TRY(te_adamw_renew(c->optimizer, ctx));
    if (c->optimizer) TE_TRY(te_adamw_get(&l->state, c->optimizer, ctx));
    if (c->random) TE_TRY(te_rng_get(&l->rng, ctx));
    if (l->has_loss_scale) {
        const te_loss_scaler scaler = te__checkpoint_loss_scaler(c);
        te_loss_scale_state now;
        TE_TRY(te_loss_scaler_get(&now, &scaler, ctx));
        l->loss_scale = now.scale, l->loss_scale_steps = now.good;
    }
    l->step[0] = l->state.step, l->step[1] = l->state.skipped;
    l->random[0] = l->rng.seed, l->random[1] = l->rng.offset;
    if (!c->recipes) return TE_OK;
    l->recipes[0] = c->recipes->begun, l->recipes[1] = c->recipes->count, l->recipes[2] = c->recipes->scales.length;
    return TE_OK;
}

/* ---- the metadata ------------------------------------------------------------------------------------------------ */

/* The metadata of a file: first the caller's pairs, then for each model a pair whose value is the model's list of ops
 * as a text. The memory `text` holds the keys and values of the models' pairs. */
typedef struct te__checkpoint_metadata {
    te_safetensors_pair *pair;
    char *text;
    int count;
} te__checkpoint_metadata;

/* For each model, write its metadata key and its list of ops as a text to t. If t->p is null, only compute the size of
 * these strings. */
TE_API void te__checkpoint_metadata_fill(te__checkpoint_metadata *n, te__text *t, const te_checkpoint *c, int ranks) {
    n->count = c->metadata_count;
    for (int i = 0; i < c->count; i++, n->count++) {
        if (n->pair) n->pair[n->count].key = t->p + t->n;
        te__plan_key(t, &c->models[i]);
        if (n->pair) n->pair[n->count].value = t->p + t->n;
        te__plan_text(t, c->models[i].model->plan, ranks), te__text_char(t, 0);
    }
}
TE_API te_status te__checkpoint_metadata_of(te__checkpoint_metadata *n, const te_checkpoint *c, te_context *ctx) {
    te__text t;
    memset(n, 0, sizeof *n), t.p = 0, t.n = 0;
    TE_REQUIRE(c->metadata_count >= 0 && (c->metadata || !c->metadata_count), ctx, TE_ERROR_NULL,
               "checkpoint: the metadata are null, or their count is %d", c->metadata_count);
    TE_TRY(te__safetensors_keys(c->metadata, c->metadata_count, ctx));
    const int ranks = te__checkpoint_is_sharded(ctx) ? te_tensor_group(ctx)->size : 1;
    te__checkpoint_metadata_fill(n, &t, c, ranks);
    te_safetensors_pair *pair = (te_safetensors_pair *)calloc((size_t)n->count + 1, sizeof *pair);
    char *text = (char *)malloc(t.n + 1);
    if (!pair || !text) {
        free(pair), free(text);
        return te_fail(ctx, TE_ERROR_MEMORY, "checkpoint: cannot allocate %zu bytes", t.n + 1);
    }
    for (int i = 0; i < c->metadata_count; i++) pair[i] = c->metadata[i];
    n->pair = pair, n->text = t.p = text, t.n = 0;
    te__checkpoint_metadata_fill(n, &t, c, ranks);
    return TE_OK;
}
TE_API void te__checkpoint_metadata_free(te__checkpoint_metadata *n) { free(n->pair), free(n->text); }

/* Check that each model's list of ops is the list that the file stores for the model. A file of an older version stores
 * no lists of ops, and passes the check. */
TE_API te_status te__checkpoint_check_plans(const te_checkpoint *c, const te_safetensors *f, te_context *ctx) {
    te__checkpoint_metadata n;
    te__plan_mismatch d;
    te_status status = te__checkpoint_metadata_of(&n, c, ctx);
    for (int i = c->metadata_count; status == TE_OK && i < n.count; i++) {
        const char *was = te_safetensors_metadata(f, n.pair[i].key), *model = c->models[i - c->metadata_count].name;
        if (was && te__plan_difference(&d, was, n.pair[i].value))
            status = te_fail(ctx, TE_ERROR_VALUE, "%.100s: of model \"%.40s\" it has (%s), where this one has (%s)",
                             f->path, model, d.was, d.is);
    }
    if (n.pair) te__checkpoint_metadata_free(&n);
    return status;
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

/* Check that a checkpoint can be saved at `path`: the folder that will contain the file is writable, and no device or
 * folder is at `path`. No file is left at `path`. Call this function before a training run that takes days. */
TE_API te_status te_checkpoint_probe(const char *path, te_context *ctx) {
    te__new_file f;
    TE_REQUIRE(path && ctx, ctx, TE_ERROR_NULL, "checkpoint: the path or the context is null");
    TE_TRY(te__new_file_open(&f, path, ctx));
    te__new_file_discard(&f);
    return TE_OK;
}

/* Write the file if there are several ranks: all ranks take part in gathering the tensors, and rank 0 of the world
 * writes them. status: an earlier error of this rank, or TE_OK. l: the list of tensors, or null if this rank failed
 * before it had a list. */
TE_IF_USED TE_API te_status te__checkpoint_write_gathered(const char *path, const te__checkpoint_tensors *l,
                                                          const te__checkpoint_metadata *n, te__safetensors_extra extra,
                                                          te_status status, te_context *ctx) {
    const int writes = !ctx->comm->world.rank;
    te__gather g;
    if (status == TE_OK && writes) status = te_checkpoint_probe(path, ctx);
    if (status == TE_OK) status = te__gather_open(&g, l, ctx);
    const int is_open = status == TE_OK;
    status = te__checkpoint_agree(status, l, ctx);
    if (status == TE_OK) {
        extra.source = te__gather_source, extra.from = &g;
        if (writes) status = te__safetensors_write(path, l->tensor, l->count, n->pair, n->count, extra, ctx);
        const te_status rest = te__gather_rest(&g, ctx);
        status = te__checkpoint_agree(status == TE_OK ? rest : status, l, ctx);
    }
    if (is_open) te__gather_close(&g, ctx);
    return status;
}
/* Write the checkpoint's file when there is only one rank. */
TE_IF_USED TE_API te_status te__checkpoint_write(const char *path, const te__checkpoint_tensors *l,
                                                 const te__checkpoint_metadata *n, te__safetensors_extra extra,
                                                 te_context *ctx) {
    te__moments_8bit_reader f;
    if (!l->has_8bit) return te__safetensors_write(path, l->tensor, l->count, n->pair, n->count, extra, ctx);
    TE_TRY(te__moments_8bit_open(&f, l, ctx));
    extra.source = te__moments_8bit_source, extra.from = &f;
    const te_status status = te__safetensors_write(path, l->tensor, l->count, n->pair, n->count, extra, ctx);
    te__moments_8bit_close(&f, ctx);
    return status;
}
/* Save the checkpoint *c to a file. An old file at the path stays unchanged until the new file is complete on the disk
 * (te/core/impl/file.h). Waits for the stream. If there are several ranks, all of them must call this function, and
 * they wait for each other. Errors: TE_ERROR_IO; TE_ERROR_VALUE if a tensor has a number that is not finite and `force`
 * is not set (so a bad file does not replace the last good file); two tensors of the same name; an optimizer with a
 * model that is not among `models`. */
TE_IF_USED TE_API te_status te_checkpoint_save(const char *path, const te_checkpoint *c, te_context *ctx) {
    te__checkpoint_tensors l;
    te__checkpoint_metadata n;
    memset(&n, 0, sizeof n);
    te_status status = te__checkpoint_begin(&l, c, 0, ctx);
    const int has_list = status == TE_OK;
    const te__safetensors_extra extra = te__safetensors_extra_of(1, c && !c->force);
    if (status == TE_OK) status = te__checkpoint_metadata_of(&n, c, ctx);
    if (status == TE_OK) status = te__checkpoint_numbers(&l, c, ctx);
    if (te__checkpoint_is_sharded(ctx))
        status = te__checkpoint_write_gathered(path, has_list ? &l : 0, &n, extra, status, ctx);
    else if (status == TE_OK)
        status = te__checkpoint_write(path, &l, &n, extra, ctx);
    if (n.pair) te__checkpoint_metadata_free(&n);
    if (has_list) te__checkpoint_free(&l);
    return status;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* Make all checks of the file that are possible before a model or the optimizer is changed. Also read the file's
 * "numbers" (step counts, loss scale, random state) and FP8 scales into host memory of *l. */
TE_API te_status te__checkpoint_check(te__checkpoint_tensors *l, const te_checkpoint *c, const te_safetensors *f,
                                      te_context *ctx) {
    te_safetensors file = *f;
    for (int i = 0; i < c->count; i++) TE_TRY(te__check_not_mapped(c->models[i].model, "checkpoint", ctx));
    if (!c->force && !f->verified) TE_TRY(te_safetensors_verify(&file, ctx));
    TE_TRY(te_safetensors_check(f, l->tensor, l->count, 1, ctx));
    if (!c->force) TE_TRY(te__checkpoint_check_plans(c, f, ctx));
    TE_TRY(te_safetensors_load(f, l->tensor, l->numbers, 0, ctx));
    TE_REQUIRE(te__adamw_counts_valid(l->step[0], l->step[1]), ctx, TE_ERROR_FORMAT, "%.120s: %s is %lld, %lld",
               f->path, te__checkpoint_prefix(c->optimizer->rule, TE__CHECKPOINT_step),
               (long long)l->step[0], (long long)l->step[1]);
    TE_REQUIRE(!l->has_loss_scale || te__loss_scale_valid(l->loss_scale, l->loss_scale_steps), ctx, TE_ERROR_FORMAT,
               "%.120s: loss_scale is %g, %lld steps after it changed", f->path, (double)l->loss_scale,
               (long long)l->loss_scale_steps);
    TE_TRY(te__checkpoint_check_scales(l, c->recipes, c->models, c->count, c->force, ctx));
    for (int i = l->numbers; (l->is_sharded || l->has_8bit) && i < l->count; i++)
        TE_TRY(te__safetensors_read_as(f, te_safetensors_find(f, l->tensor[i].name), &l->tensor[i], 1, ctx));
    return TE_OK;
}
TE_IF_USED TE_API te_status te__checkpoint_apply(te__checkpoint_tensors *l, const te_checkpoint *c,
                                                 const te_safetensors *f, te_context *ctx) {
    const int first = l->numbers;
    for (int i = 0; i < c->count; i++) TE_TRY(te_model_changed(c->models[i].model, ctx));
    TE_TRY(te__moments_8bit_clear(c->optimizer, ctx));
    if (l->is_sharded || l->has_8bit) TE_TRY(te__sharded_tensors_load(l, first, f, ctx));
    else TE_TRY(te_safetensors_load(f, l->tensor + first, l->count - first, 0, ctx));
    l->state.step = l->step[0], l->state.skipped = l->step[1];
    l->rng.seed = l->random[0], l->rng.offset = l->random[1];
    if (c->optimizer) TE_TRY(te_adamw_set(&l->state, c->optimizer, ctx));
    if (c->optimizer) te__adamw_agrees(c->optimizer, ctx);
    const te_loss_scaler scaler = te__checkpoint_loss_scaler(c);
    if (l->has_loss_scale && scaler.state)
        TE_TRY(te_loss_scaler_set(&scaler, l->loss_scale, (int)l->loss_scale_steps, ctx));
    if (c->recipes) TE_TRY(te__checkpoint_apply_scales(l, c->recipes, ctx));
    return c->random ? te_rng_set(&l->rng, ctx) : TE_OK;
}
/* Load the checkpoint *c from an open file. The file must have exactly the tensors that *c asks for: those of
 * c->models, of c->optimizer if it is not null, and of the random state if c->random is set. Two kinds of tensors are
 * optional: the loss scale, which is loaded into the optimizer's loss scaler, and the FP8 scales, which are loaded into
 * c->recipes if the file has scales for as many GEMMs as c->recipes; otherwise the scales of c->recipes are
 * initialised. Errors: a wrong checksum; a list of ops that differs; tensors that are missing, unknown or of another
 * shape; a step count or scale that is impossible; FP8 scales that would be lost (te_checkpoint.force). The error text
 * names the tensor or list and says what was expected. After an error nothing has been changed, except after
 * TE_ERROR_IO: if the disk fails during the load, some tensors may have been loaded. The file is read once to verify
 * its checksum (unless te_safetensors_verify has done this before), and a second time to load. Waits for the stream. If
 * there are several ranks, all of them must call this function, each with the file open, and they wait for each
 * other. */
TE_IF_USED TE_API te_status te_checkpoint_load(const te_checkpoint *c, const te_safetensors *f, te_context *ctx) {
    te__checkpoint_tensors l;
    const int is_sharded = te__checkpoint_is_sharded(ctx);
    te_status status = f && f->path ? te__checkpoint_begin(&l, c, f, ctx)
                                    : te_fail(ctx, TE_ERROR_NULL, "checkpoint: the file is null or not open");
    const int has_list = status == TE_OK;
    if (has_list) status = te__checkpoint_check(&l, c, f, ctx);
    if (is_sharded) status = te__checkpoint_agree(status, has_list ? &l : 0, ctx);
    if (status == TE_OK) {
        status = te__checkpoint_apply(&l, c, f, ctx);
        if (is_sharded) status = te__checkpoint_agree(status, &l, ctx);
    }
    if (has_list) te__checkpoint_free(&l);
    return status;
}

#endif
