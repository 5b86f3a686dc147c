/* weights.h -- takes the weights of models from a safetensors file. The weights are either read into the memory that
 * the models are bound to, or, if the file is mapped into memory or linked into the program, used in place.
 *
 * Do this:
 *     te_named_model weights[] = {{"embed", &embed.model}, {"h0", &h0.model}};
 *     TE_TRY(te_safetensors_map(&file, path, &ctx));            // te_safetensors_open_memory if the file is linked in
 *     te_status status = te_weights_use(weights, 2, &file, &ctx);       // no copy; the file stays open
 *
 *     TE_TRY(te_safetensors_open(&file, path, &ctx));
 *     status = te_weights_load(weights, 2, &file, &ctx);                // reads, and converts
 *     te_safetensors_close(&file);
 *
 * Tensors must have the same names as in a checkpoint (checkpoint.h). A checkpoint itself can be such a file; its other
 * tensors are ignored. If the file stores a model's list of ops as a text, the list of the model that takes the weights
 * must agree with it; a different number of heads, eps or activation is an error, even if names and shapes agree. The
 * lists may differ in dropout, last_token, cross_entropy and sample, because weights do not depend on these ops. So the
 * weights of a trained model can be used for inference. te_weights_use and te_weights_load do not verify the file's
 * checksum; te_safetensors_verify does.
 */
#ifndef TE_WEIGHTS_H
#define TE_WEIGHTS_H

#include "../core/rank_group.h" /* te_tensor_group */
#include "../plan/bind.h"  /* te__check_writable */
#include "../plan/model.h" /* te_plan, te_op */
#include "json.h"          /* te__text */
#include "safetensors.h"   /* te_safetensors_load */

typedef struct te_named_model {
    const char *name; /* the prefix of the names of the model's tensors, such as "h0"; "" for no prefix */
    te_model *model;
} te_named_model;

enum { TE_WEIGHTS_MAX_NAME = 200 }; /* max bytes of a tensor's name, including the closing NUL */

/* ---- the list of a model as a text ------------------------------------------------------------------------------- */

/* Return the last GEMM among the ops 0 to i of the list. If the output of op i has as many columns as the output of
 * this GEMM, both outputs are sharded over ranks in the same way. */
TE_API const te_op *te__product_of(const te_plan *plan, int i) {
    while (i && plan->op[i].op_class != TE_CLASS_gemm) i--;
    return &plan->op[i];
}
/* Return how many columns the output of op i has on all ranks together. columns: the number of columns on this rank.
 * ranks: the number of ranks. Columns of which several ranks hold copies (te_op.copies) count once. */
TE_API int64_t te__whole_columns(const te_plan *plan, int i, int columns, int ranks) {
    const te_op *product = te__product_of(plan, i);
    if (plan->op[i].layout != TE_LAYOUT_columns || ranks == 1) return columns;
    if (product->copies == 1 || product->out != columns) return (int64_t)columns * ranks;
    const int64_t others = product->parts - 1, part = columns / (product->first_part + others);
    return part * (product->first_part * ranks + others * (ranks / product->copies));
}
/* The metadata of a file contain each model's list of ops as a text. The text includes settings that cannot be seen in
 * the shapes: numbers of heads, an eps, a probability, a causal mask.
 *
 *     te__text t = {buffer, 0};                // {0, 0}: only counts bytes
 *     te__plan_text(&t, plan, 1);              // "bf16; fork x1 768>768; layernorm ln1 768>768 00000000 3727c5ac; .."
 *     te__plan_difference(&d, was, buffer);    // "layernorm ln1 768>768 00000000 358637bd", ".. 00000000 3727c5ac"
 *
 * The text of an op consists of its kind, its name, the name of the fork op whose value it reads (unless both have the
 * same name), its input and output width, and its options as 32-bit words in hexadecimal (little-endian). If a tensor
 * group of several ranks runs the list, the text still has the widths and head counts of all ranks together, as if one
 * rank ran it. Collectives only distribute values over ranks, so texts that differ only in collectives are treated as
 * equal. */
TE_API void te__plan_text_op(te__text *t, const te_plan *plan, const te_op *op, int ranks) {
    char text[48];
    const int i = (int)(op - plan->op), sharded = op->layout == TE_LAYOUT_columns;
    /* the first two options of an attention op are the numbers of q heads and of kv heads */
    const int head_options = sharded && ranks > 1 && !strcmp(op->kind, "attention") ? 2 : 0;
    const int reads_fork = op->edge >= 0;
    /* a frozen_linear computes the same as a linear */
    const char *kind = op->flags & TE_IS_FROZEN ? "linear" : op->kind;
    te__text_put(t, "; "), te__text_put(t, kind), te__text_char(t, ' '), te__text_put(t, op->name);
    if (reads_fork && strcmp(op->name, plan->op[op->edge].name))
        te__text_put(t, " of "), te__text_put(t, plan->op[op->edge].name);
    snprintf(text, sizeof text, " %lld>%lld", (long long)(i ? te__whole_columns(plan, i - 1, op->in, ranks) : op->in),
             (long long)te__whole_columns(plan, i, op->out, ranks));
    te__text_put(t, text);
    for (int at = 0; at + 4 <= op->options_bytes; at += 4) {
        uint32_t word;
        memcpy(&word, (const char *)op->options + at, 4);
        if (at / 4 < head_options) word *= (uint32_t)(ranks / (at ? te__product_of(plan, i)->copies : 1));
        snprintf(text, sizeof text, " %08x", (unsigned)word), te__text_put(t, text);
    }
}
TE_API void te__plan_text(te__text *t, const te_plan *plan, int ranks) {
    te__text_put(t, te_dtype_name(plan->dtype));
    if (plan->fp8 && plan->fp8->weights != plan->dtype)
        te__text_put(t, ", weights "), te__text_put(t, te_dtype_name(plan->fp8->weights));
    for (int i = 0; i < plan->op_count; i++) te__plan_text_op(t, plan, &plan->op[i], ranks);
}
/* Write to t the metadata key of a model's list of ops: "te.list.h0", or "te.list" for a model whose name is empty. */
TE_API void te__plan_key(te__text *t, const te_named_model *m) {
    te__text_put(t, "te.list"), te__text_put(t, *m->name ? "." : ""), te__text_put(t, m->name);
    te__text_char(t, 0);
}

/* The first op in which the texts of two lists differ. `was` is the op in the first text, `is` the op in the second
 * text. If one text ends earlier, its op is "". */
typedef struct te__plan_mismatch { char was[80], is[80]; } te__plan_mismatch;

TE_API size_t te__plan_op_length(const char *s) {
    const char *end = strchr(s, ';');
    return end ? (size_t)(end - s) : strlen(s);
}
/* Return the text s from its first op that is not a collective. */
TE_API const char *te__plan_op_next(const char *s) {
    static const char *const kinds[] = {" all_gather ", " reduce_scatter ", " all_reduce ", " copy_to_group "};
    for (int i = 0; i < 4; i++) {
        if (strncmp(s, kinds[i], strlen(kinds[i]))) continue;
        s += te__plan_op_length(s), s += *s ? 1 : 0;
        i = -1; /* start with the first kind again, because another collective may follow */
    }
    return s;
}
/* Return whether the texts `was` and `is` of two lists differ in more than collectives. *d: output, the first such
 * difference. */
TE_API int te__plan_difference(te__plan_mismatch *d, const char *was, const char *is) {
    size_t a = te__plan_op_length(was), b = te__plan_op_length(is);
    while (a == b && !memcmp(was, is, a)) {
        if (!was[a] && !is[b]) return 0;
        was = te__plan_op_next(was + a + (was[a] ? 1 : 0)), is = te__plan_op_next(is + b + (is[b] ? 1 : 0));
        a = te__plan_op_length(was), b = te__plan_op_length(is);
    }
    while (a && *was == ' ') was++, a--;
    while (b && *is == ' ') is++, b--;
    snprintf(d->was, sizeof d->was, "%.*s", (int)te_min((int64_t)a, 79), was);
    snprintf(d->is, sizeof d->is, "%.*s", (int)te_min((int64_t)b, 79), is);
    return 1;
}
/* Remove from the text of a list, in place, the dtype and the ops on which weights do not depend, such as dropout. */
TE_API void te__plan_text_strip(char *text) {
    static const char *const skipped[] = {" dropout ", " last_token ", " cross_entropy ", " sample "};
    char *to = text;
    const char *from = strchr(text, ';');
    while (from) {
        const size_t n = te__plan_op_length(from + 1) + 1; /* the length of an op's text such as "; gelu act 768>768" */
        int skip = 0;
        for (int k = 0; k < 4; k++) skip |= !strncmp(from + 1, skipped[k], strlen(skipped[k]));
        const char *next = from[n] ? from + n : 0;
        if (!skip) memmove(to, from, n), to += n;
        from = next;
    }
    *to = 0;
}
/* If the file stores a list of ops for the model *m, check that this list agrees with the model's list. */
TE_API te_status te__weights_check_plan(const te_safetensors *f, const te_named_model *m, te_context *ctx) {
    te__text key = {0, 0}, is = {0, 0};
    te__plan_mismatch d;
    const int ranks = te_tensor_group(ctx)->size;
    te__plan_key(&key, m), te__plan_text(&is, m->model->plan, ranks);
    char *memory = (char *)malloc(key.n + is.n + 1), *was = 0;
    TE_REQUIRE(memory, ctx, TE_ERROR_MEMORY, "weights: cannot allocate %zu bytes", key.n + is.n + 1);
    key.p = memory, is.p = memory + key.n, key.n = is.n = 0;
    te__plan_key(&key, m), te__plan_text(&is, m->model->plan, ranks), te__text_char(&is, 0);
    const char *text = te_safetensors_metadata(f, key.p);
    te_status status = TE_OK;
    if (text && !(was = (char *)malloc(strlen(text) + 1)))
        status = te_fail(ctx, TE_ERROR_MEMORY, "weights: cannot allocate %zu bytes", strlen(text) + 1);
    if (was) {
        memcpy(was, text, strlen(text) + 1);
        te__plan_text_strip(was), te__plan_text_strip(is.p);
        if (te__plan_difference(&d, was, is.p))
            status = te_fail(ctx, TE_ERROR_VALUE, "%.100s: of model \"%.40s\" it has (%s), where this one has (%s)",
                             f->path, m->name, d.was, d.is);
    }
    free(was), free(memory);
    return status;
}

/* ---- the tensors of the models ----------------------------------------------------------------------------------- */

typedef struct te__weights {
    te_safetensor *tensor;             /* [count]: the tensors that the file should have */
    te_param **param;                  /* [count] */
    char (*name)[TE_WEIGHTS_MAX_NAME]; /* [count] */
    int count;
} te__weights;

TE_API void te__weights_free(te__weights *w) { free(w->tensor), free(w->param), free(w->name); }
TE_API te_status te__weights_add(te__weights *w, const te_named_model *m, te_param *p, te_context *ctx) {
    char *name = w->name[w->count];
    const int n = snprintf(name, TE_WEIGHTS_MAX_NAME, "%s%s%s.%s", m->name, *m->name ? "." : "", p->op, p->field);
    TE_REQUIRE(n < TE_WEIGHTS_MAX_NAME, ctx, TE_ERROR_OVERFLOW, "weights: the name %.60s.. is too long", name);
    w->param[w->count] = p;
    w->tensor[w->count] = te_safetensor_matrix(name, p->dtype, p->rows, p->cols, p->data);
    w->tensor[w->count++].written = &p->written;
    return TE_OK;
}
TE_API te_status te__weights_collect(te__weights *w, const te_named_model *models, int count, const te_safetensors *f,
                                     te_context *ctx) {
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < models[i].model->param_count; k++) {
            te_param *p = &models[i].model->param[k];
            if (!p->tied) TE_TRY(te__weights_add(w, &models[i], p, ctx));
        }
        TE_TRY(te__weights_check_plan(f, &models[i], ctx));
    }
    return TE_OK;
}
/* Collect all tensors of the models in *w. Check that the models are bound, and that their lists of ops agree with the
 * lists in the file. After an error there is nothing to free. */
TE_API te_status te__weights_begin(te__weights *w, const te_named_model *models, int count, const te_safetensors *f,
                                   te_context *ctx) {
    size_t capacity = 1;
    memset(w, 0, sizeof *w);
    TE_REQUIRE(ctx && (models || !count) && f && f->path, ctx, TE_ERROR_NULL,
               "weights: the models or the context are null, or the file is not open");
    TE_REQUIRE(count >= 0, ctx, TE_ERROR_SHAPE, "weights: %d models", count);
    for (int i = 0; i < count; i++) {
        const te_model *m = models[i].model;
        TE_REQUIRE(models[i].name && m && m->plan, ctx, TE_ERROR_NULL, "weights: model %d has no name or is not bound",
                   i);
        TE_TRY(te__check_bound(m->plan, m, ctx));
        capacity += (size_t)m->param_count;
    }
    w->tensor = (te_safetensor *)calloc(capacity, sizeof *w->tensor);
    w->param = (te_param **)calloc(capacity, sizeof *w->param);
    w->name = (char (*)[TE_WEIGHTS_MAX_NAME])calloc(capacity, sizeof *w->name);
    te_status status = w->tensor && w->param && w->name
                           ? te__weights_collect(w, models, count, f, ctx)
                           : te_fail(ctx, TE_ERROR_MEMORY, "weights: cannot allocate for %zu tensors", capacity);
    if (status != TE_OK) te__weights_free(w);
    return status;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Read the models' weights, and convert them if the file has another dtype (te_safetensors_load). Waits for the stream.
 * Errors: a model whose list of ops differs from the list in the file; a tensor that is missing or has another shape.
 * The error text names the model or the tensor. After such an error no weight has been changed. */
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

/* Check that parameter p can use the file's tensor in place. *at: output, the address of the tensor's data. */
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
               "te_weights_use: %.60s is bound to memory; bind its model to none, or call te_weights_load", want->name);
    return TE_OK;
}
/* Use the file's tensors in place as parameters. The file must be mapped or opened in host memory, and must stay open
 * as long as the models are used. The models must have lists of ops for inference (TE_INFERENCE) and be bound to no
 * memory (params null). Call te_tie afterwards if parameters are tied. The parameters are then read-only: functions
 * that would write to them return an error. Errors: a tensor whose dtype differs from the dtype of the list of ops; a
 * tensor whose address is not a multiple of 16 bytes (files that this library writes have no such tensors); any target
 * except the host. In all these cases te_weights_load can be used instead. */
TE_API te_status te_weights_use(const te_named_model *models, int count, const te_safetensors *f, te_context *ctx) {
    te__weights w;
    const char *at = 0;
    int on_device = TE_CUDA; /* a variable, because with a constant nvcc would warn of unreachable code */
    TE_TRY(te__check_target(ctx, "te_weights_use"));
    TE_REQUIRE(!on_device, ctx, TE_ERROR_DEVICE,
               "te_weights_use: the weights lie in host memory, and the target is %s; te_weights_load copies them",
               ctx->target->name);
    TE_TRY(te__weights_begin(&w, models, count, f, ctx));
    te_status status = TE_OK;
    if (!f->memory)
        status = te_fail(ctx, TE_ERROR_STATE, "%.120s: is not in memory; te_safetensors_map or _open_memory", f->path);
    for (int i = 0; i < w.count && status == TE_OK; i++) /* this loop checks all parameters, and only the next loop
                                                          * changes parameters */
        status = te__weights_fit(f, &w.tensor[i], w.param[i], &at, ctx);
    for (int i = 0; i < w.count && status == TE_OK; i++) {
        status = te__weights_fit(f, &w.tensor[i], w.param[i], &at, ctx);
        w.param[i]->data = (void *)(uintptr_t)at, w.param[i]->constant = 1;
        te__param_written(w.param[i], ctx);
    }
    te__weights_free(&w);
    return status;
}

#endif
