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
 * moments, or in BF16, which has all of their numbers, if they are in 8 bits (loading converts from any to any, as it
 * does with weights), and "adamw.step", I64 [2]: updates made and left
 * out; their sum is the run's one count of steps. What SGD takes begins with "sgd." instead, what Muon takes with
 * "muon."; their counts are "sgd.step" and "muon.step".
 * "random" is U64 [2]: seed and offset.
 * A tied parameter is saved with its owner, a frozen one without what the optimizer would have. The state of recipes is
 * "recipes.scales", U8, and "recipes.begun", I64 [2]: whether a step lies behind them, and how many products there are.
 *
 * Several ranks (a context with a communicator) save and load one file, of whole tensors: it is the file that one rank
 * would write with the same list for one, and any number of ranks loads it, whether they share out parameters, the
 * optimizer's states, both or nothing. Rank 0 of the world writes it; all of them read it. Recipes are left out then:
 * each rank has scales of its own, which a run finds again.
 *
 * Weights of others load, too, in F32, BF16 or F16 whatever the model's dtype is (te_safetensors_load).
 *
 * The metadata say what the file belongs to. "te.checksum" is over all of the file: a bit that changed is found.
 * "te.list.h0" is the list of the model h0 (plan_text.h): loading into a model of another list is an error that says
 * which op differs, where shapes alone might agree; collectives alone are no difference. A file that older versions
 * wrote has neither, and loads; then te_safetensors_metadata(&file, TE_SAFETENSORS_SUM) is null. Keys of the caller's
 * do not begin with "te.".
 */
#ifndef TE_CHECKPOINT_H
#define TE_CHECKPOINT_H

#include "checkpoint_blocks.h" /* te__blocks_source */
#include "checkpoint_list.h"   /* te_checkpoint, te__checkpoint_begin */
#include "checkpoint_ranks.h"  /* te__ranks_agree, te__gather_part */
#include "plan_text.h"         /* te__plan_text, te__plan_difference */

/* ---- what the file belongs to ------------------------------------------------------------------------------------ */

/* The caller's metadata and ours; keys and values of ours lie in one text. */
typedef struct te__checkpoint_notes {
    te_safetensors_pair *pair;
    char *text;
    int count;
} te__checkpoint_notes;

TE_API void te__checkpoint_notes_walk(te__checkpoint_notes *n, te__text *t, const te_checkpoint *c, int ranks) {
    n->count = c->metadata_count;
    for (int i = 0; i < c->count; i++, n->count++) {
        if (n->pair) n->pair[n->count].key = t->p + t->n;
        te__list_key(t, &c->models[i]);
        if (n->pair) n->pair[n->count].value = t->p + t->n;
        te__plan_text(t, c->models[i].model->plan, ranks), te__text_char(t, 0);
    }
}
TE_API te_status te__checkpoint_notes_of(te__checkpoint_notes *n, const te_checkpoint *c, te_context *ctx) {
    te__text t;
    memset(n, 0, sizeof *n), t.p = 0, t.n = 0;
    TE_REQUIRE(c->metadata_count >= 0 && (c->metadata || !c->metadata_count), ctx, TE_ERROR_NULL,
               "checkpoint: the metadata are null, or their count is %d", c->metadata_count);
    TE_TRY(te__safetensors_keys(c->metadata, c->metadata_count, ctx));
    const int ranks = te__checkpoint_gathers(ctx) ? te_tensor_group(ctx)->size : 1;
    te__checkpoint_notes_walk(n, &t, c, ranks);
    te_safetensors_pair *pair = (te_safetensors_pair *)calloc((size_t)n->count + 1, sizeof *pair);
    char *text = (char *)malloc(t.n + 1);
    if (!pair || !text) {
        free(pair), free(text);
        return te_fail(ctx, TE_ERROR_MEMORY, "checkpoint: cannot allocate %zu bytes", t.n + 1);
    }
    for (int i = 0; i < c->metadata_count; i++) pair[i] = c->metadata[i];
    n->pair = pair, n->text = t.p = text, t.n = 0;
    te__checkpoint_notes_walk(n, &t, c, ranks);
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

/* Of several ranks: all gather, rank 0 of the world writes. `status`: of this rank so far; l is null where it has no
 * list. */
TE_IF_USED TE_API te_status te__checkpoint_write_whole(const char *path, const te__checkpoint_list *l,
                                                       const te__checkpoint_notes *n, te__safetensors_extra extra,
                                                       te_status status, te_context *ctx) {
    const int writes = !ctx->comm->world.rank;
    te__gather g;
    if (status == TE_OK && writes) status = te_checkpoint_probe(path, ctx);
    if (status == TE_OK) status = te__gather_open(&g, l, ctx);
    const int is_open = status == TE_OK;
    status = te__ranks_agree(status, l, ctx);
    if (status == TE_OK) {
        extra.source = te__gather_source, extra.from = &g;
        if (writes) status = te__safetensors_write(path, l->tensor, l->count, n->pair, n->count, extra, ctx);
        const te_status rest = te__gather_rest(&g, ctx);
        status = te__ranks_agree(status == TE_OK ? rest : status, l, ctx);
    }
    if (is_open) te__gather_close(&g, ctx);
    return status;
}
/* Of one rank. */
TE_IF_USED TE_API te_status te__checkpoint_write(const char *path, const te__checkpoint_list *l,
                                                 const te__checkpoint_notes *n, te__safetensors_extra extra,
                                                 te_context *ctx) {
    te__blocks_file f;
    if (!l->in_blocks) return te__safetensors_write(path, l->tensor, l->count, n->pair, n->count, extra, ctx);
    TE_TRY(te__blocks_open(&f, l, ctx));
    extra.source = te__blocks_source, extra.from = &f;
    const te_status status = te__safetensors_write(path, l->tensor, l->count, n->pair, n->count, extra, ctx);
    te__blocks_close(&f, ctx);
    return status;
}
/* Save to a file, which stays as it was until the new one is complete on the disk (te/core/file.h). Waits for the
 * stream; of several ranks all call it, and wait for each other. Errors: TE_ERROR_IO; a number that is not finite
 * (TE_ERROR_VALUE, unless `force`): the last good file stays; two tensors of one name; an optimizer with a model that
 * is not in the list. */
TE_IF_USED TE_API te_status te_checkpoint_save(const char *path, const te_checkpoint *c, te_context *ctx) {
    te__checkpoint_list l;
    te__checkpoint_notes n;
    memset(&n, 0, sizeof n);
    te_status status = te__checkpoint_begin(&l, c, ctx);
    const int has_list = status == TE_OK;
    const te__safetensors_extra extra = te__safetensors_extra_of(1, c && !c->force);
    if (status == TE_OK) status = te__checkpoint_notes_of(&n, c, ctx);
    if (status == TE_OK) status = te__checkpoint_numbers(&l, c, ctx);
    if (te__checkpoint_gathers(ctx))
        status = te__checkpoint_write_whole(path, has_list ? &l : 0, &n, extra, status, ctx);
    else if (status == TE_OK)
        status = te__checkpoint_write(path, &l, &n, extra, ctx);
    if (n.pair) te__checkpoint_notes_free(&n);
    if (has_list) te__checkpoint_free(&l);
    return status;
}

/* What can be seen before something is changed; the file's numbers come into the list. */
TE_API te_status te__checkpoint_check(te__checkpoint_list *l, const te_checkpoint *c, const te_safetensors *f,
                                      te_context *ctx) {
    te_safetensors file = *f;
    for (int i = 0; i < c->count; i++) TE_TRY(te__check_writable(c->models[i].model, "checkpoint", ctx));
    if (!c->force && !f->verified) TE_TRY(te_safetensors_verify(&file, ctx));
    TE_TRY(te_safetensors_check(f, l->tensor, l->count, 1, ctx));
    if (!c->force) TE_TRY(te__checkpoint_lists(c, f, ctx));
    TE_TRY(te_safetensors_load(f, l->tensor, te__checkpoint_counts(c), 0, ctx));
    TE_REQUIRE(te__adamw_counts(l->step[0], l->step[1]), ctx, TE_ERROR_FORMAT, "%.120s: %s is %lld, %lld",
               f->path, te__checkpoint_kind(c->optimizer->rule, TE__CHECKPOINT_step),
               (long long)l->step[0], (long long)l->step[1]);
    TE_REQUIRE(!c->recipes || ((l->recipes[0] | 1) == 1 && l->recipes[1] == c->recipes->count), ctx, TE_ERROR_FORMAT,
               "%.120s: recipes.begun is %lld of %lld products, here are %d", f->path, (long long)l->recipes[0],
               (long long)l->recipes[1], c->recipes ? c->recipes->count : 0);
    for (int i = te__checkpoint_counts(c); (l->gathers || l->in_blocks) && i < l->count; i++)
        TE_TRY(te__safetensors_read_as(f, te_safetensors_find(f, l->tensor[i].name), &l->tensor[i], 1, ctx));
    return TE_OK;
}
TE_IF_USED TE_API te_status te__checkpoint_apply(te__checkpoint_list *l, const te_checkpoint *c,
                                                 const te_safetensors *f, te_context *ctx) {
    const int first = te__checkpoint_counts(c);
    TE_TRY(te__blocks_clear(c->optimizer, ctx));
    if (l->gathers || l->in_blocks) TE_TRY(te__whole_load(l, first, f, ctx));
    else TE_TRY(te_safetensors_load(f, l->tensor + first, l->count - first, 0, ctx));
    l->state.step = l->step[0], l->state.skipped = l->step[1];
    l->rng.seed = l->random[0], l->rng.offset = l->random[1];
    if (c->optimizer) TE_TRY(te_adamw_set(&l->state, c->optimizer, ctx));
    if (c->recipes) TE_TRY(te_recipes_loaded(c->recipes, (int)l->recipes[0], ctx));
    return c->random ? te_rng_set(&l->rng, ctx) : TE_OK;
}
/* Load from an open file, which must have exactly these models' tensors (and the optimizer's, and the random state, if
 * asked for). A wrong checksum, another list, missing, unknown and mis-shaped tensors: an error that says which and
 * what was expected, and nothing changed. A disk that fails while it is read (TE_ERROR_IO) may leave a part. Reads the
 * file twice, for its checksum first, unless te_safetensors_verify has found that right. Waits for the stream; of
 * several ranks all call it, each with the file open, and wait for each other. */
TE_IF_USED TE_API te_status te_checkpoint_load(const te_checkpoint *c, const te_safetensors *f, te_context *ctx) {
    te__checkpoint_list l;
    const int gathers = te__checkpoint_gathers(ctx);
    te_status status = f && f->path ? te__checkpoint_begin(&l, c, ctx)
                                    : te_fail(ctx, TE_ERROR_NULL, "checkpoint: the file is null or not open");
    const int has_list = status == TE_OK;
    if (has_list) status = te__checkpoint_check(&l, c, f, ctx);
    if (gathers) status = te__ranks_agree(status, has_list ? &l : 0, ctx);
    if (status == TE_OK) {
        status = te__checkpoint_apply(&l, c, f, ctx);
        if (gathers) status = te__ranks_agree(status, &l, ctx);
    }
    if (has_list) te__checkpoint_free(&l);
    return status;
}

#endif
