/* weights.h -- the weights of models from a safetensors file: read into the memory that the models are bound to, or
 * used where they lie in a file that is mapped or linked into the program.
 *
 * Do this:
 *     te_named_model weights[] = {{"embed", &embed.model}, {"h0", &h0.model}};
 *     TE_TRY(te_safetensors_map(&file, path, &ctx));            // or te_safetensors_open_memory, of bytes linked in
 *     te_status status = te_weights_use(weights, 2, &file, &ctx);       // no copy; the file stays open
 *
 *     TE_TRY(te_safetensors_open(&file, path, &ctx));
 *     status = te_weights_load(weights, 2, &file, &ctx);                // reads, and converts
 *     te_safetensors_close(&file);
 *
 * Tensors are called as in a checkpoint (checkpoint.h), which is such a file; what else is in it is left alone. Where
 * the file has the lists of its models, they are compared without dropout, last_token and cross_entropy, which compute
 * nothing that a weight was trained for: a model that was trained serves one for inference. Heads, an eps or an
 * activation that differ are errors; names and shapes alone would not show them. The checksum is
 * te_safetensors_verify's.
 */
#ifndef TE_WEIGHTS_H
#define TE_WEIGHTS_H

#include "../core/group.h"    /* te_tensor_group */
#include "../plan/bind.h"     /* te__check_writable */
#include "plan_text.h"        /* te__plan_text, te__plan_difference */
#include "safetensors_read.h" /* te_safetensors_load */

typedef struct te_named_model {
    const char *name; /* "h0"; "" for no prefix */
    te_model *model;
} te_named_model;

enum { TE_WEIGHTS_NAME = 200 }; /* bytes of a tensor's name at most, the closing NUL among them */

/* ---- lists ------------------------------------------------------------------------------------------------------- */

/* The metadata key of a model's list: "te.list.h0", or "te.list" for the model without a name. */
TE_API void te__list_key(te__text *t, const te_named_model *m) {
    te__text_put(t, "te.list"), te__text_put(t, *m->name ? "." : ""), te__text_put(t, m->name);
    te__text_char(t, 0);
}
/* The text of a list without its dtype and the ops that weights do not depend on, in the place of the whole. */
TE_API void te__list_of_weights(char *text) {
    static const char *const skipped[] = {" dropout ", " last_token ", " cross_entropy "};
    char *to = text;
    const char *from = strchr(text, ';');
    while (from) {
        const size_t n = te__plan_op_length(from + 1) + 1; /* "; gelu act 768>768" */
        int skip = 0;
        for (int k = 0; k < 3; k++) skip |= !strncmp(from + 1, skipped[k], strlen(skipped[k]));
        const char *next = from[n] ? from + n : 0;
        if (!skip) memmove(to, from, n), to += n;
        from = next;
    }
    *to = 0;
}
/* Compare the list in the file, if it has one, with the model's. */
TE_API te_status te__weights_list(const te_safetensors *f, const te_named_model *m, te_context *ctx) {
    te__text key = {0, 0}, is = {0, 0};
    te__plan_pair d;
    const int ranks = te_tensor_group(ctx)->size;
    te__list_key(&key, m), te__plan_text(&is, m->model->plan, ranks);
    char *memory = (char *)malloc(key.n + is.n + 1), *was = 0;
    TE_REQUIRE(memory, ctx, TE_ERROR_MEMORY, "weights: cannot allocate %zu bytes", key.n + is.n + 1);
    key.p = memory, is.p = memory + key.n, key.n = is.n = 0;
    te__list_key(&key, m), te__plan_text(&is, m->model->plan, ranks), te__text_char(&is, 0);
    const char *text = te_safetensors_metadata(f, key.p);
    te_status status = TE_OK;
    if (text && !(was = (char *)malloc(strlen(text) + 1)))
        status = te_fail(ctx, TE_ERROR_MEMORY, "weights: cannot allocate %zu bytes", strlen(text) + 1);
    if (was) {
        memcpy(was, text, strlen(text) + 1);
        te__list_of_weights(was), te__list_of_weights(is.p);
        if (te__plan_difference(&d, was, is.p))
            status = te_fail(ctx, TE_ERROR_VALUE, "%.100s: of model \"%.40s\" it has (%s), where this one has (%s)",
                             f->path, m->name, d.was, d.is);
    }
    free(was), free(memory);
    return status;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

typedef struct te__weights {
    te_safetensor *tensor;
    te_param **param;
    char (*name)[TE_WEIGHTS_NAME];
    int count;
} te__weights;

TE_API void te__weights_free(te__weights *w) { free(w->tensor), free(w->param), free(w->name); }
/* The tensor that a parameter is to be. */
TE_API te_status te__weights_add(te__weights *w, const te_named_model *m, te_param *p, te_context *ctx) {
    char *name = w->name[w->count];
    const int n = snprintf(name, TE_WEIGHTS_NAME, "%s%s%s.%s", m->name, *m->name ? "." : "", p->op, p->field);
    TE_REQUIRE(n < TE_WEIGHTS_NAME, ctx, TE_ERROR_OVERFLOW, "weights: the name %.60s.. is too long", name);
    w->param[w->count] = p;
    w->tensor[w->count++] = te_safetensor_matrix(name, p->dtype, p->rows, p->cols, p->data);
    return TE_OK;
}
TE_API te_status te__weights_walk(te__weights *w, const te_named_model *models, int count, const te_safetensors *f,
                                  te_context *ctx) {
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < models[i].model->param_count; k++) {
            te_param *p = &models[i].model->param[k];
            if (!p->tied) TE_TRY(te__weights_add(w, &models[i], p, ctx));
        }
        TE_TRY(te__weights_list(f, &models[i], ctx));
    }
    return TE_OK;
}
/* All tensors of the models, which are bound, and have the lists of the file. After an error there is nothing to
 * free. */
TE_API te_status te__weights_begin(te__weights *w, const te_named_model *models, int count, const te_safetensors *f,
                                   te_context *ctx) {
    size_t room = 1;
    memset(w, 0, sizeof *w);
    TE_REQUIRE(ctx && (models || !count) && f && f->path, ctx, TE_ERROR_NULL,
               "weights: the models or the context are null, or the file is not open");
    TE_REQUIRE(count >= 0, ctx, TE_ERROR_SHAPE, "weights: %d models", count);
    for (int i = 0; i < count; i++) {
        const te_model *m = models[i].model;
        TE_REQUIRE(models[i].name && m && m->plan, ctx, TE_ERROR_NULL, "weights: model %d has no name or is not bound",
                   i);
        TE_TRY(te__check_bound(m->plan, m, ctx));
        room += (size_t)m->param_count;
    }
    w->tensor = (te_safetensor *)calloc(room, sizeof *w->tensor);
    w->param = (te_param **)calloc(room, sizeof *w->param);
    w->name = (char (*)[TE_WEIGHTS_NAME])calloc(room, sizeof *w->name);
    te_status status = w->tensor && w->param && w->name
                           ? te__weights_walk(w, models, count, f, ctx)
                           : te_fail(ctx, TE_ERROR_MEMORY, "weights: cannot allocate for %zu tensors", room);
    if (status != TE_OK) te__weights_free(w);
    return status;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Read the models' weights, converted if need be (te_safetensors_load). Another list, a missing or mis-shaped tensor:
 * an error that says which, and nothing has changed. Waits for the stream. */
TE_API te_status te_weights_load(const te_named_model *models, int count, const te_safetensors *f, te_context *ctx) {
    te__weights w;
    TE_TRY(te__weights_begin(&w, models, count, f, ctx));
    te_status status = TE_OK;
    for (int i = 0; i < count && status == TE_OK; i++)
        status = te__check_writable(models[i].model, "te_weights_load", ctx);
    for (int i = 0; i < w.count && status == TE_OK; i++)
        if (!w.param[i]->data)
            status = te_fail(ctx, TE_ERROR_STATE, "te_weights_load: %s has no memory; bind its model to some",
                             w.name[i]);
    if (status == TE_OK) status = te_safetensors_load(f, w.tensor, w.count, 0, ctx);
    te__weights_free(&w);
    return status;
}

/* Where a tensor of the file can be a parameter as it lies. */
TE_API te_status te__weights_fit(const te_safetensors *f, const te_safetensor *want, const te_param *p,
                                 const char **at, te_context *ctx) {
    const te_safetensor *t = te_safetensors_find(f, want->name);
    TE_REQUIRE(t, ctx, TE_ERROR_FORMAT, "%.120s: has no tensor %.60s, which should be %s", f->path, want->name,
               te__shape_text_of(want).text);
    TE_REQUIRE(te__safetensors_same_shape(t, want), ctx, TE_ERROR_SHAPE, "%.120s: tensor %.60s is %s, it should be %s",
               f->path, want->name, te__shape_text_of(t).text, te__shape_text_of(want).text);
    TE_REQUIRE(t->dtype == want->dtype, ctx, TE_ERROR_DTYPE,
               "%.120s: tensor %.60s is %s, it should be %s; te_weights_load converts", f->path, want->name,
               te__shape_text_of(t).text, te__shape_text_of(want).text);
    *at = f->memory + f->data_at + t->offset;
    TE_REQUIRE((uintptr_t)*at % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
               "%.120s: tensor %.60s lies at a place that is no multiple of %d bytes; te_weights_load reads it",
               f->path, want->name, (int)TE_ACCESS);
    TE_REQUIRE(!p->data || p->constant, ctx, TE_ERROR_STATE,
               "te_weights_use: %.60s has memory of its own; bind its model to none, or te_weights_load", want->name);
    return TE_OK;
}
/* Let parameters lie where the file has them, in host memory: the file is mapped or was opened in memory, and stays
 * open as long as the models are used. They are of lists for inference alone (TE_INFERENCE), bound to no memory: params
 * is null; te_tie comes behind it. Nothing writes to such parameters: what would is refused. Refused as well are
 * tensors of another dtype than their list's, or that lie at no multiple of 16 bytes (the library writes files whose
 * data begin at one), and any target but the host; te_weights_load takes those. */
TE_API te_status te_weights_use(const te_named_model *models, int count, const te_safetensors *f, te_context *ctx) {
    te__weights w;
    const char *at = 0;
    int on_device = TE_CUDA; /* no constant: of one, nvcc warns of what lies behind */
    TE_TRY(te_check_target(ctx, "te_weights_use"));
    TE_REQUIRE(!on_device, ctx, TE_ERROR_DEVICE,
               "te_weights_use: the weights lie in host memory, and the target is %s; te_weights_load copies them",
               ctx->target->name);
    TE_TRY(te__weights_begin(&w, models, count, f, ctx));
    te_status status = TE_OK;
    if (!f->memory)
        status = te_fail(ctx, TE_ERROR_STATE, "%.120s: is not in memory; te_safetensors_map or _open_memory", f->path);
    for (int i = 0; i < w.count && status == TE_OK; i++)
        status = te__weights_fit(f, &w.tensor[i], w.param[i], &at, ctx);
    for (int i = 0; i < w.count && status == TE_OK; i++) {
        status = te__weights_fit(f, &w.tensor[i], w.param[i], &at, ctx);
        w.param[i]->data = (void *)(uintptr_t)at, w.param[i]->constant = 1;
    }
    te__weights_free(&w);
    return status;
}

#endif
