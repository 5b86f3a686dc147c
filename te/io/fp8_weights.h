/* fp8_weights.h -- models for inference whose products have their weights in FP8 alone: half of the memory that they
 * take in 16 bits, and a file of half the size.
 *
 * Do this, where lists under a recipe were trained, or had their weights cast (te/optim/recipes.h):
 *     const te_named_model trained[] = {{"h0", &block.model}};
 *     TE_TRY(te_fp8_weights_save("fp8.safetensors", trained, 1, &ctx));
 * and where they are used:
 *     TE_INFERENCE(small, (bf16, (recipe, fp8_row)), ...)
 *     TE_TRY(small_bind(&s, 0, &ctx));                             // to no memory
 *     const te_named_model models[] = {{"h0", &s.model}};
 *     static te_fp8_weights weights;                               // the models point to it
 *     TE_TRY(te_allocate(&ctx, &memory, te_fp8_weights_bytes(models, 1)));
 *     TE_TRY(te_safetensors_open(&file, "fp8.safetensors", &ctx));
 *     te_status status = te_fp8_weights_load(&weights, memory, bytes, models, 1, &file, &ctx);
 *
 * A file has of a product's weight
 *     h0.fc1.weight            F8_E4M3 [out, in]
 *     h0.fc1.weight_scale_inv  F32, what its numbers are to be multiplied by: [1] (fp8_delayed, fp8_current), [out, 1]
 *                              (fp8_row), or [out / 128, in / 128], up (fp8_block: as in DeepSeek-V3's files)
 *     h0.fc1.input_scale       F32 [1], fp8_delayed behind its first step: what the input is multiplied by before it
 *                              is rounded; without it the input's own magnitude decides, as under fp8_current
 * and all other parameters as a checkpoint has them. A weight in F32, BF16 or F16 is cast: any checkpoint will do.
 */
#ifndef TE_FP8_WEIGHTS_H
#define TE_FP8_WEIGHTS_H

#include "fp8_weights_list.h"  /* te__fp8_walk, te__fp8_tensors */
#include "safetensors_write.h" /* te__safetensors_write */

/* Must stay where it is: the models point to it. */
typedef struct te_fp8_weights {
    te_scales scales; /* [2 products]: of the weights, of the inputs */
} te_fp8_weights;

/* ---- saving ------------------------------------------------------------------------------------------------------ */

/* Scales of blocks have rows of another length in memory (fp8_scaling.h) than in a file. */
TE_API te_status te__fp8_blocks_copy(float *file, float *memory, const te_param *p, int loads, te_context *ctx) {
    const int64_t rows = te_fp8_blocks(p->rows), cols = te_fp8_blocks(p->cols), pitch = te_block_scales(p->cols);
    for (int64_t r = 0; r < rows; r++)
        TE_TRY(te_copy(ctx, loads ? memory + r * pitch : file + r * cols, loads ? file + r * cols : memory + r * pitch,
                       (size_t)cols * sizeof(float)));
    return TE_OK;
}
TE_API te_status te__fp8_save_param(te__fp8_tensors *l, const te__fp8_walk *w, te_context *ctx) {
    const te_param *p = w->param;
    const te_fp8_product *f = &p->fp8;
    const te__fp8_shape shape = te__fp8_shape_of(p, w->recipe);
    char *name;
    TE_TRY(te__fp8_name(&name, l, w, "", ctx));
    const int in_fp8 = w->recipe != TE_RECIPE_none;
    TE_REQUIRE(in_fp8 ? f->data : p->data, ctx, TE_ERROR_STATE, "te_fp8_weights_save: %.60s %s", name,
               in_fp8 ? "is not in FP8; te_recipes_init casts it" : "has no memory");
    l->tensor[l->count++] = te_safetensor_matrix(name, in_fp8 ? TE_e4m3 : p->dtype, p->rows, p->cols,
                                                 in_fp8 ? f->data : p->data);
    if (!in_fp8) return TE_OK;
    float *numbers = l->numbers + l->used;
    TE_TRY(te__fp8_name(&name, l, w, "_scale_inv", ctx));
    l->tensor[l->count++] = te_safetensor_of(name, TE_SAFETENSORS_F32, shape.rank, shape.size, numbers);
    l->used += shape.count;
    if (TE_IS_BLOCKWISE(w->recipe)) TE_TRY(te__fp8_blocks_copy(numbers, f->inverse, p, 0, ctx));
    else
        TE_TRY(te_copy(ctx, numbers,
                       TE_IS_ROWWISE(w->recipe) ? f->inverse : te_scales_inverse(f->scales, f->weight),
                       (size_t)shape.count * sizeof(float)));
    if (w->recipe != TE_RECIPE_fp8_delayed || f->current) return TE_OK;
    const int64_t one = 1;
    TE_TRY(te__fp8_input_name(&name, l, w, ctx));
    TE_TRY(te_copy(ctx, l->numbers + l->used, f->scales->scale + f->x, sizeof(float)));
    l->tensor[l->count++] = te_safetensor_of(name, TE_SAFETENSORS_F32, 1, &one, l->numbers + l->used++);
    return TE_OK;
}
/* The lists of the models, as a checkpoint has them. pair null: only the size of the text. */
TE_API void te__fp8_lists(te_safetensors_pair *pair, te__text *t, const te_named_model *models, int count) {
    for (int i = 0; i < count; i++) {
        if (pair) pair[i].key = t->p + t->n;
        te__list_key(t, &models[i]);
        if (pair) pair[i].value = t->p + t->n;
        te__plan_text(t, models[i].model->plan, 1), te__text_char(t, 0);
    }
}
TE_API te_status te__fp8_write(const char *path, const te__fp8_tensors *l, const te_named_model *models, int count,
                               te_context *ctx) {
    te__text t = {0, 0};
    te__fp8_lists(0, &t, models, count);
    te_safetensors_pair *pair = (te_safetensors_pair *)calloc((size_t)count + 1, sizeof *pair);
    char *text = (char *)malloc(t.n + 1);
    t.p = text, t.n = 0;
    te_status status = pair && text ? TE_OK : te_fail(ctx, TE_ERROR_MEMORY, "FP8 weights: cannot allocate");
    if (status == TE_OK) {
        te__fp8_lists(pair, &t, models, count);
        status = te__safetensors_write(path, l->tensor, l->count, pair, count, te__safetensors_extra_of(1, 0), ctx);
    }
    free(pair), free(text);
    return status;
}
/* Write the models' weights, those of products under a recipe in FP8, with their scales, and a checksum. The models are
 * under te_recipes, or loaded by te_fp8_weights_load. Waits for the stream. Errors: a weight that is not in FP8; a
 * tensor group of several ranks; those of te_safetensors_write. */
TE_API te_status te_fp8_weights_save(const char *path, const te_named_model *models, int count, te_context *ctx) {
    te__fp8_tensors l;
    TE_TRY(te__fp8_models(models, count, "te_fp8_weights_save", ctx));
    TE_TRY(te__fp8_tensors_for(&l, models, count, ctx));
    te__fp8_walk w = te__fp8_params_of(models, count);
    te_status status = TE_OK;
    while (status == TE_OK && te__fp8_next(&w)) status = te__fp8_save_param(&l, &w, ctx);
    if (status == TE_OK) status = te_synchronize(ctx);
    if (status == TE_OK) status = te__fp8_write(path, &l, models, count, ctx);
    te__fp8_tensors_free(&l);
    return status;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

TE_API size_t te__fp8_scales_bytes(const te_named_model *models, int count, int *products) {
    te__fp8_walk w = te__fp8_params_of(models, count);
    while (te__fp8_next(&w)) {}
    *products = w.products;
    return (size_t)te_round_up((int64_t)te_scales_bytes(2 * w.products, 1), TE_ALIGN);
}
/* Bytes of target memory that te_fp8_weights_load wants: one for each element of a product's weight under a recipe, all
 * scales, and the other parameters in their lists' dtypes. */
TE_API size_t te_fp8_weights_bytes(const te_named_model *models, int count) {
    int products;
    size_t bytes = te__fp8_scales_bytes(models, count, &products);
    te__fp8_walk w = te__fp8_params_of(models, count);
    while (te__fp8_next(&w)) bytes += te__fp8_param_bytes(&w);
    return bytes;
}

/* What a product's weight becomes, `at` in the memory. */
TE_API te_fp8_product te__fp8_product_at(const te_fp8_weights *s, const te__fp8_walk *w, char *at) {
    te_fp8_product f;
    memset(&f, 0, sizeof f);
    f.on = 1, f.current = 1, f.scales = &s->scales, f.weight = w->products, f.x = s->scales.count / 2 + w->products;
    f.data = at, f.own = te_scale_rule_current();
    if (!TE_IS_TENSORWISE(w->recipe))
        f.inverse = (float *)(void *)(at + te__recipe_weight_of(w->param, w->recipe).data);
    return f;
}
/* The file has it in 16 or 32 bits. */
TE_API int te__fp8_is_cast(const te_safetensors *f, const char *name) {
    const te_safetensor *t = te_safetensors_find(f, name);
    te_dtype dtype;
    return t && te__safetensors_converts(&dtype, t->dtype);
}
/* What the file should have of a parameter. A weight to be cast goes to `staging`, by itself. */
TE_API te_status te__fp8_want_param(te__fp8_tensors *l, const te__fp8_walk *w, const te_safetensors *f, char *at,
                                    te_context *ctx) {
    const te_param *p = w->param;
    const te__fp8_shape shape = te__fp8_shape_of(p, w->recipe);
    const int64_t one = 1;
    char *name;
    TE_TRY(te__fp8_name(&name, l, w, "", ctx));
    TE_REQUIRE(!p->data && !p->fp8.data, ctx, TE_ERROR_STATE,
               "te_fp8_weights_load: %.60s has memory already; bind its model to none", name);
    if (w->recipe == TE_RECIPE_none || te__fp8_is_cast(f, name)) {
        l->tensor[l->count++] = te_safetensor_matrix(name, p->dtype, p->rows, p->cols, at);
        return TE_OK;
    }
    l->tensor[l->count++] = te_safetensor_matrix(name, TE_e4m3, p->rows, p->cols, at);
    TE_TRY(te__fp8_name(&name, l, w, "_scale_inv", ctx));
    l->tensor[l->count++] = te_safetensor_of(name, TE_SAFETENSORS_F32, shape.rank, shape.size, l->numbers + l->used);
    l->used += shape.count;
    TE_TRY(te__fp8_input_name(&name, l, w, ctx));
    if (w->recipe != TE_RECIPE_fp8_delayed || !te_safetensors_find(f, name)) return TE_OK;
    l->tensor[l->count++] = te_safetensor_of(name, TE_SAFETENSORS_F32, 1, &one, l->numbers + l->used++);
    return TE_OK;
}
/* A weight that the file has in other formats: read into `staging`, [rows, cols] of the list's dtype, and cast. */
TE_IF_USED TE_API te_status te__fp8_read_cast(const te_fp8_weights *s, const te__fp8_walk *w, const te_fp8_product *to,
                                              const te_safetensor *want, void *staging, const te_safetensors *f,
                                              te_context *ctx) {
    const te_model *m = w->models[w->model].model;
    te_safetensor read = *want;
    te_param p = *w->param;
    read.data = p.data = staging, p.fp8 = *to;
    TE_TRY(te_safetensors_load(f, &read, 1, 0, ctx));
    if (!TE_IS_TENSORWISE(w->recipe)) return te__weight_cast_fine(m->plan->fp8, &p, w->recipe, ctx);
    te_quantize q = te_quantize_of(p.rows, p.cols);
    q.x = staging, q.amax = s->scales.amax + to->weight;
    TE_TRY(m->plan->fp8->quantize(&q, ctx));
    TE_TRY(te_scales_update(&s->scales, to->weight, 1, &to->own, ctx));
    q.amax = 0, q.scale = s->scales.scale + to->weight, q.y = to->data;
    return m->plan->fp8->quantize(&q, ctx);
}
/* How many tensors of the list, from `first` on, are the parameter's: itself, its scales, the input's. */
TE_API int te__fp8_tensors_of(const te__fp8_tensors *l, int first, const te__fp8_walk *w) {
    if (w->recipe == TE_RECIPE_none || l->tensor[first].dtype != TE_SAFETENSORS_F8_E4M3) return 1;
    const int next = first + 2;
    const size_t n = next < l->count ? strlen(l->tensor[next].name) : 0, end = strlen(".input_scale");
    return n > end && !strcmp(l->tensor[next].name + n - end, ".input_scale") ? 3 : 2;
}
/* Scales that were read go to their places. */
TE_API te_status te__fp8_put_scales(const te_fp8_product *to, const te_safetensor *t, int tensors,
                                    const te__fp8_walk *w, te_context *ctx) {
    float *const inverse = TE_IS_ROWWISE(w->recipe) ? to->inverse
                                                   : (float *)(uintptr_t)te_scales_inverse(to->scales, to->weight);
    float *const of_input = (float *)(uintptr_t)te_scales_inverse(to->scales, to->x);
    if (TE_IS_BLOCKWISE(w->recipe)) return te__fp8_blocks_copy((float *)t[1].data, to->inverse, w->param, 1, ctx);
    TE_TRY(te_copy(ctx, inverse, t[1].data, (size_t)t[1].bytes));
    if (tensors < 3) return TE_OK;
    const float scale = *(const float *)t[2].data, one_over = 1.0f / scale;
    TE_REQUIRE(scale >= TE__SCALE_SMALL && scale <= TE__SCALE_LARGE, ctx, TE_ERROR_VALUE,
               "te_fp8_weights_load: %.60s is %g", t[2].name, (double)scale);
    TE_TRY(te_copy(ctx, to->scales->scale + to->x, &scale, sizeof scale));
    TE_TRY(te_copy(ctx, of_input, &one_over, sizeof one_over));
    return te_synchronize(ctx);
}
TE_IF_USED TE_API te_status te__fp8_read(const te_fp8_weights *s, char *memory, const te_named_model *models, int count,
                                         const te__fp8_tensors *l, void *staging, const te_safetensors *f,
                                         te_context *ctx) {
    te__fp8_walk w = te__fp8_params_of(models, count);
    for (int i = 0; te__fp8_next(&w); i += te__fp8_tensors_of(l, i, &w), memory += te__fp8_param_bytes(&w)) {
        const te_fp8_product to = te__fp8_product_at(s, &w, memory);
        const int tensors = te__fp8_tensors_of(l, i, &w);
        if (w.recipe != TE_RECIPE_none && tensors == 1)
            TE_TRY(te__fp8_read_cast(s, &w, &to, &l->tensor[i], staging, f, ctx));
        else TE_TRY(te_safetensors_load(f, &l->tensor[i], tensors, 0, ctx));
        if (tensors > 1) TE_TRY(te__fp8_put_scales(&to, &l->tensor[i], tensors, &w, ctx));
    }
    return te_synchronize(ctx);
}
/* The models have what was read. */
TE_API void te__fp8_bind(const te_fp8_weights *s, char *memory, const te_named_model *models, int count,
                         const te__fp8_tensors *l) {
    te__fp8_walk w = te__fp8_params_of(models, count);
    for (int i = 0; te__fp8_next(&w); i += te__fp8_tensors_of(l, i, &w), memory += te__fp8_param_bytes(&w)) {
        if (w.recipe == TE_RECIPE_none) {
            w.param->data = memory;
            continue;
        }
        w.param->fp8 = te__fp8_product_at(s, &w, memory);
        w.param->fp8.current = te__fp8_tensors_of(l, i, &w) < 3;
    }
}
/* All that is wanted of the file, which is checked before any of it is read. staging: bytes of the largest weight that
 * is to be cast. */
TE_API te_status te__fp8_prepare(te__fp8_tensors *l, size_t *staging, char *memory, const te_named_model *models,
                                 int count, const te_safetensors *f, te_context *ctx) {
    te__fp8_walk w = te__fp8_params_of(models, count);
    for (*staging = 0; te__fp8_next(&w); memory += te__fp8_param_bytes(&w)) {
        const int first = l->count;
        TE_TRY(te__fp8_want_param(l, &w, f, memory, ctx));
        if (w.recipe != TE_RECIPE_none && l->tensor[first].dtype != TE_SAFETENSORS_F8_E4M3)
            *staging = te_max(*staging, (size_t)l->tensor[first].bytes);
    }
    for (int i = 0; i < count; i++) {
        const te_model *m = models[i].model;
        TE_REQUIRE(!m->plan->training, ctx, TE_ERROR_STATE,
                   "te_fp8_weights_load: %s trains; weights in FP8 alone are for TE_INFERENCE", m->plan->name);
        TE_TRY(te__weights_list(f, &models[i], ctx));
    }
    return te_safetensors_check(f, l->tensor, l->count, 0, ctx);
}
/* Read the weights of lists for inference (TE_INFERENCE), bound to no memory, into `memory` (target memory,
 * te_fp8_weights_bytes, aligned to TE_ALIGN), those of products under a recipe in FP8 alone, and switch the recipes on;
 * te_tie comes behind it. Waits for the stream. Errors: null pointers, a list that trains, a product under a recipe
 * that is tied (its owner is not in FP8), memory too small or misaligned, another list than the file's, a tensor that
 * is missing, of another shape or dtype, or has a scale that is none; then the models are as they were. */
TE_IF_USED TE_API te_status te_fp8_weights_load(te_fp8_weights *s, void *memory, size_t bytes,
                                                const te_named_model *models, int count, const te_safetensors *f,
                                                te_context *ctx) {
    te__fp8_tensors l;
    int products;
    size_t room = 0;
    void *staging = 0;
    TE_TRY(te__fp8_models(models, count, "te_fp8_weights_load", ctx));
    TE_REQUIRE(s && memory && f && f->path, ctx, TE_ERROR_NULL,
               "te_fp8_weights_load: the struct or the memory is null, or the file is not open");
    const size_t of_scales = te__fp8_scales_bytes(models, count, &products);
    const size_t needed = te_fp8_weights_bytes(models, count);
    TE_REQUIRE((uintptr_t)memory % TE_ALIGN == 0, ctx, TE_ERROR_ALIGNMENT,
               "te_fp8_weights_load: memory must be aligned to %d bytes", (int)TE_ALIGN);
    TE_REQUIRE(bytes >= needed, ctx, TE_ERROR_MEMORY, "te_fp8_weights_load: memory has %zu bytes, %zu are needed",
               bytes, needed);
    for (int i = 0; i < count; i++)
        for (int k = 0, next = 0; k < models[i].model->plan->op_count; next += models[i].model->plan->op[k++].params) {
            const te_op *op = &models[i].model->plan->op[k];
            TE_REQUIRE(op->recipe == TE_RECIPE_none || !models[i].model->param[next].tied, ctx, TE_ERROR_VALUE,
                       "te_fp8_weights_load: %s: (%s, %s) is tied to a parameter that is not in FP8; give it "
                       "(recipe, none)", models[i].model->plan->name, op->kind, op->name);
        }
    TE_TRY(te__fp8_tensors_for(&l, models, count, ctx));
    te_dtype *formats = (te_dtype *)calloc((size_t)products * 2 + 1, sizeof *formats);
    te_status status = formats ? TE_OK : te_fail(ctx, TE_ERROR_MEMORY, "te_fp8_weights_load: cannot allocate");
    for (int i = 0; formats && i < 2 * products; i++) formats[i] = TE_e4m3;
    char *at = (char *)memory + of_scales;
    if (status == TE_OK) status = te__fp8_prepare(&l, &room, at, models, count, f, ctx);
    if (status == TE_OK) status = te_scales_init(&s->scales, memory, of_scales, formats, 2 * products, 1, ctx);
    if (status == TE_OK && room) status = te_allocate(ctx, &staging, room);
    if (status == TE_OK) status = te__fp8_read(s, at, models, count, &l, staging, f, ctx);
    if (status == TE_OK) te__fp8_bind(s, at, models, count, &l);
    if (staging) te_release(ctx, staging);
    free(formats);
    te__fp8_tensors_free(&l);
    return status;
}

#endif
