/* fp8_weights.h -- saves and loads models for inference that hold the weights of their GEMMs only in FP8. FP8 weights
 * take half of the memory and of the file size of 16-bit weights.
 *
 * Do this, in the program that trained the models under an FP8 recipe, or that cast their weights (te/optim/recipes.h):
 *     const te_named_model trained[] = {{"h0", &block.model}};
 *     TE_TRY(te_fp8_weights_save("fp8.safetensors", trained, 1, &ctx));
 * and in the program that runs the models:
 *     TE_INFERENCE(small, (bf16, (recipe, fp8_row)), ...)
 *     TE_TRY(small_bind(&s, 0, &ctx));                             // binds no memory
 *     const te_named_model models[] = {{"h0", &s.model}};
 *     static te_fp8_weights weights;                               // must live as long as the models
 *     TE_TRY(te_allocate(&ctx, &memory, te_fp8_weights_bytes(models, 1)));
 *     TE_TRY(te_safetensors_open(&file, "fp8.safetensors", &ctx));
 *     te_status status = te_fp8_weights_load(&weights, memory, bytes, models, 1, &file, &ctx);
 *
 * For the weight of a GEMM the file has
 *     h0.fc1.weight            F8_E4M3 [out, in]
 *     h0.fc1.weight_scale_inv  F32, 1 / scale, by which a GEMM multiplies the weight's FP8 numbers: [1] (fp8_delayed,
 *                              fp8_current), [out, 1] (fp8_row), or [out / 128, in / 128] rounded up (fp8_block: as in
 *                              DeepSeek-V3's files)
 *     h0.fc1.input_scale       F32 [1], only under fp8_delayed after its first step: the GEMM's input is multiplied by
 *                              this factor before it is rounded. If this tensor is missing, the scale is computed from
 *                              the input's amax, as under fp8_current
 * All other parameters are stored as in a checkpoint. A GEMM weight in F32, BF16 or F16 is cast to FP8 when loaded.
 */
#ifndef TE_FP8_WEIGHTS_H
#define TE_FP8_WEIGHTS_H

#include "../optim/recipes.h"       /* te__fp8_weight_bytes_of, te__weight_cast_one */
#include "impl/safetensors_write.h" /* te__safetensors_write */
#include "weights.h"                /* te_named_model, TE_WEIGHTS_MAX_NAME, te__plan_text */

/* The scales of models that hold the weights of their GEMMs only in FP8. The struct must not be moved, because the
 * models point to it. */
typedef struct te_fp8_weights {
    te_scales scales; /* [2 * products], where `products` is the number of GEMMs under an FP8 recipe: the scales of all
                       * weights, then the scales of all GEMM inputs */
} te_fp8_weights;

/* ---- iterating over parameters ----------------------------------------------------------------------------------- */

/* An iterator over the parameters of several models, except tied ones. */
typedef struct te__fp8_param_iter {
    const te_named_model *models;
    /* in_op: how many parameters of the current op have been visited. next: the index, within the model, of the
     * parameter that is visited next */
    int count, model, op, in_op, next;
    te_param *param;
    /* the FP8 recipe of the GEMM whose weight the current parameter is; TE_RECIPE_none if the parameter is no such
     * weight */
    te_recipe recipe;
    int products;     /* how many weights of GEMMs under an FP8 recipe precede the current parameter */
} te__fp8_param_iter;

TE_API te__fp8_param_iter te__fp8_params(const te_named_model *models, int count) {
    te__fp8_param_iter it;
    memset(&it, 0, sizeof it);
    it.models = models, it.count = models ? count : 0, it.recipe = TE_RECIPE_none;
    return it;
}
/* Go to the next parameter that is not tied; return 0 if there is none. */
TE_API int te__fp8_next_param(te__fp8_param_iter *it) {
    it->products += it->recipe != TE_RECIPE_none;
    it->recipe = TE_RECIPE_none;
    for (; it->model < it->count; it->model++, it->op = it->in_op = it->next = 0) {
        const te_model *m = it->models[it->model].model;
        for (; m && m->plan && it->op < m->plan->op_count; it->op++, it->in_op = 0)
            while (it->in_op < m->plan->op[it->op].params) {
                it->param = &m->param[it->next++], it->in_op++;
                if (it->param->tied) continue;
                it->recipe = m->plan->op[it->op].recipe;
                return 1;
            }
    }
    return 0;
}
/* Return the bytes that the current parameter takes in target memory. The weight of a GEMM under an FP8 recipe takes
 * the bytes of its FP8 numbers and of its rowwise or blockwise scales. */
TE_API size_t te__fp8_param_bytes(const te__fp8_param_iter *it) {
    const te_param *p = it->param;
    const te__fp8_weight_bytes size = te__fp8_weight_bytes_of(p, it->recipe);
    if (it->recipe != TE_RECIPE_none) return size.data + size.scales;
    return (size_t)te_round_up(p->rows * p->cols * (int64_t)te_dtype_bytes(p->dtype), TE_ALIGN);
}
/* The shape of a weight's scales in a file: [count] or, if rank is 2, [size[0], size[1]]. */
typedef struct te__fp8_scale_shape { int rank; int64_t size[2], count; } te__fp8_scale_shape;
TE_API te__fp8_scale_shape te__fp8_scale_shape_of(const te_param *p, te_recipe recipe) {
    te__fp8_scale_shape s;
    s.rank = TE_IS_TENSORWISE(recipe) ? 1 : 2, s.size[0] = s.size[1] = 1;
    if (TE_IS_ROWWISE(recipe)) s.size[0] = p->rows;
    if (TE_IS_BLOCKWISE(recipe)) s.size[0] = te_fp8_blocks(p->rows), s.size[1] = te_fp8_blocks(p->cols);
    s.count = s.size[0] * s.size[1];
    return s;
}
TE_API te_status te__fp8_check_models(const te_named_model *models, int count, const char *who, te_context *ctx) {
    TE_TRY(te__check_target(ctx, who));
    TE_REQUIRE(models || !count, ctx, TE_ERROR_NULL, "%s: the models are null", who);
    TE_REQUIRE(count >= 0, ctx, TE_ERROR_SHAPE, "%s: %d models", who, count);
    for (int i = 0; i < count; i++) {
        const te_model *m = models[i].model;
        TE_REQUIRE(models[i].name && m && m->plan, ctx, TE_ERROR_NULL, "%s: model %d has no name or is not bound", who,
                   i);
        TE_TRY(te__check_bound(m->plan, m, ctx));
    }
    TE_REQUIRE(te_tensor_group(ctx)->size == 1, ctx, TE_ERROR_VALUE,
               "%s: the ranks of the tensor group have parts of weights", who);
    return TE_OK;
}

/* ---- the tensors of a file --------------------------------------------------------------------------------------- */

/* The tensors that a parameter may have in the file, up to three: the parameter itself, its scales, and the scale of
 * the GEMM's input. */
enum { TE__FP8_WEIGHT, TE__FP8_SCALES, TE__FP8_INPUT_SCALE, TE__FP8_TENSORS };

typedef struct te__fp8_tensors {
    te_safetensor *tensor;
    char (*name)[TE_WEIGHTS_MAX_NAME];
    int count;
    float *numbers; /* host memory for the scales of all tensors */
    int64_t used;   /* how many entries of `numbers` are in use so far */
} te__fp8_tensors;

TE_API void te__fp8_tensors_free(te__fp8_tensors *l) { free(l->tensor), free(l->name), free(l->numbers); }
/* Allocate a list with space for all tensors of these models. After an error there is nothing to free. */
TE_API te_status te__fp8_tensors_allocate(te__fp8_tensors *l, const te_named_model *models, int count,
                                          te_context *ctx) {
    size_t tensors = 1, numbers = 1;
    te__fp8_param_iter it = te__fp8_params(models, count);
    memset(l, 0, sizeof *l);
    while (te__fp8_next_param(&it)) {
        tensors += TE__FP8_TENSORS;
        if (it.recipe != TE_RECIPE_none) numbers += (size_t)te__fp8_scale_shape_of(it.param, it.recipe).count + 1;
    }
    l->tensor = (te_safetensor *)calloc(tensors, sizeof *l->tensor);
    l->name = (char (*)[TE_WEIGHTS_MAX_NAME])calloc(tensors, sizeof *l->name);
    l->numbers = (float *)calloc(numbers, sizeof *l->numbers);
    if (l->tensor && l->name && l->numbers) return TE_OK;
    te__fp8_tensors_free(l);
    return te_fail(ctx, TE_ERROR_MEMORY, "FP8 weights: cannot allocate for %zu tensors", tensors);
}
/* Write the name of the next tensor of list l: the name of the iterator's current parameter, such as "h0.fc1.weight",
 * followed by `suffix`. */
TE_API te_status te__fp8_name(char **name, te__fp8_tensors *l, const te__fp8_param_iter *it, const char *suffix,
                              te_context *ctx) {
    const char *model = it->models[it->model].name;
    *name = l->name[l->count];
    const int n = snprintf(*name, TE_WEIGHTS_MAX_NAME, "%s%s%s.%s%s", model, *model ? "." : "", it->param->op,
                           it->param->field, suffix);
    TE_REQUIRE(n < TE_WEIGHTS_MAX_NAME, ctx, TE_ERROR_OVERFLOW, "FP8 weights: the name %.60s.. is too long", *name);
    return TE_OK;
}
/* Write the name of the next tensor of list l, for the scale of a GEMM's input: "h0.fc1.input_scale". */
TE_API te_status te__fp8_input_name(char **name, te__fp8_tensors *l, const te__fp8_param_iter *it, te_context *ctx) {
    const char *model = it->models[it->model].name;
    *name = l->name[l->count];
    const int n = snprintf(*name, TE_WEIGHTS_MAX_NAME, "%s%s%s.input_scale", model, *model ? "." : "", it->param->op);
    TE_REQUIRE(n < TE_WEIGHTS_MAX_NAME, ctx, TE_ERROR_OVERFLOW, "FP8 weights: the name %.60s.. is too long", *name);
    return TE_OK;
}
/* Add to the list a tensor in F32 whose data are the next `count` unused entries of l->numbers. */
TE_API void te__fp8_add_numbers(te__fp8_tensors *l, const char *name, int rank, const int64_t *size, int64_t count) {
    l->tensor[l->count++] = te_safetensor_of(name, TE_SAFETENSORS_F32, rank, size, l->numbers + l->used);
    l->used += count;
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

/* Copy blockwise scales from `file` to `memory` if `loads` is 1, else from `memory` to `file`. Both arrays hold one
 * scale for each block of 128 x 128 weights. A row of `file` has one entry per block; a row of `memory`, which is in
 * target memory, is padded to te_blockwise_2d_scale_pitch entries. */
TE_API te_status te__fp8_blocks_copy(float *file, float *memory, const te_param *p, int loads, te_context *ctx) {
    const int64_t rows = te_fp8_blocks(p->rows), cols = te_fp8_blocks(p->cols),
                  pitch = te_blockwise_2d_scale_pitch(p->cols);
    for (int64_t r = 0; r < rows; r++)
        TE_TRY(te_copy(ctx, loads ? memory + r * pitch : file + r * cols, loads ? file + r * cols : memory + r * pitch,
                       (size_t)cols * sizeof(float)));
    return TE_OK;
}
TE_API te_status te__fp8_save_param(te__fp8_tensors *l, const te__fp8_param_iter *it, te_context *ctx) {
    const te_param *p = it->param;
    const te_fp8_product *f = &p->fp8;
    const te__fp8_scale_shape shape = te__fp8_scale_shape_of(p, it->recipe);
    char *name;
    TE_TRY(te__fp8_name(&name, l, it, "", ctx));
    const int in_fp8 = it->recipe != TE_RECIPE_none;
    TE_REQUIRE(in_fp8 ? f->data : p->data, ctx, TE_ERROR_STATE, "te_fp8_weights_save: %.60s %s", name,
               !in_fp8                         ? "has no memory"
               : TE_IS_MICROSCALED(it->recipe) ? "is of mxfp8 or nvfp4, which keep no FP8 weights"
                                               : "is not in FP8; te_recipes_init casts it");
    l->tensor[l->count++] = te_safetensor_matrix(name, in_fp8 ? TE_e4m3 : p->dtype, p->rows, p->cols,
                                                 in_fp8 ? f->data : p->data);
    if (!in_fp8) return TE_OK;
    float *numbers = l->numbers + l->used;
    TE_TRY(te__fp8_name(&name, l, it, "_scale_inv", ctx));
    te__fp8_add_numbers(l, name, shape.rank, shape.size, shape.count);
    if (TE_IS_BLOCKWISE(it->recipe)) TE_TRY(te__fp8_blocks_copy(numbers, f->inverse, p, 0, ctx));
    else
        TE_TRY(te_copy(ctx, numbers,
                       TE_IS_ROWWISE(it->recipe) ? f->inverse : te_scales_inverse(f->scales, f->weight),
                       (size_t)shape.count * sizeof(float)));
    if (it->recipe != TE_RECIPE_fp8_delayed || f->current) return TE_OK;
    const int64_t one = 1;
    TE_TRY(te__fp8_input_name(&name, l, it, ctx));
    TE_TRY(te_copy(ctx, l->numbers + l->used, f->scales->scale + f->x, sizeof(float)));
    te__fp8_add_numbers(l, name, 1, &one, 1);
    return TE_OK;
}
/* Write the models' lists of ops as texts to t, in the form that a checkpoint has. If `pair` is null, only compute the
 * size of the texts. */
TE_API void te__fp8_metadata(te_safetensors_pair *pair, te__text *t, const te_named_model *models, int count) {
    for (int i = 0; i < count; i++) {
        if (pair) pair[i].key = t->p + t->n;
        te__plan_key(t, &models[i]);
        if (pair) pair[i].value = t->p + t->n;
        te__plan_text(t, models[i].model->plan, 1), te__text_char(t, 0);
    }
}
TE_API te_status te__fp8_write(const char *path, const te__fp8_tensors *l, const te_named_model *models, int count,
                               te_context *ctx) {
    te__text t = {0, 0};
    te__fp8_metadata(0, &t, models, count);
    te_safetensors_pair *pair = (te_safetensors_pair *)calloc((size_t)count + 1, sizeof *pair);
    char *text = (char *)malloc(t.n + 1);
    t.p = text, t.n = 0;
    te_status status = pair && text ? TE_OK : te_fail(ctx, TE_ERROR_MEMORY, "FP8 weights: cannot allocate");
    if (status == TE_OK) {
        te__fp8_metadata(pair, &t, models, count);
        status = te__safetensors_write(path, l->tensor, l->count, pair, count, te__safetensors_extra_of(1, 0), ctx);
    }
    free(pair), free(text);
    return status;
}
/* Write the models' parameters and a checksum to a file. The weights of GEMMs under an FP8 recipe are written in FP8,
 * with their scales. te_recipes_init or te_fp8_weights_load must have cast or loaded these weights before. Waits for
 * the stream. Errors: a weight that is not in FP8; a tensor group of several ranks; the errors of
 * te_safetensors_write. */
TE_API te_status te_fp8_weights_save(const char *path, const te_named_model *models, int count, te_context *ctx) {
    te__fp8_tensors l;
    TE_TRY(te__fp8_check_models(models, count, "te_fp8_weights_save", ctx));
    TE_TRY(te__fp8_tensors_allocate(&l, models, count, ctx));
    te__fp8_param_iter it = te__fp8_params(models, count);
    te_status status = TE_OK;
    for (int i = 0; i < count && status == TE_OK; i++) status = te__renew_weights(models[i].model, ctx);
    while (status == TE_OK && te__fp8_next_param(&it)) status = te__fp8_save_param(&l, &it, ctx);
    if (status == TE_OK) status = te_synchronize(ctx);
    if (status == TE_OK) status = te__fp8_write(path, &l, models, count, ctx);
    te__fp8_tensors_free(&l);
    return status;
}

/* ---- loading: the expected tensors ------------------------------------------------------------------------------- */

/* Return the bytes of the scales that all GEMMs under an FP8 recipe need for their weights and inputs. *products:
 * output, the number of these GEMMs. */
TE_API size_t te__fp8_scales_bytes(const te_named_model *models, int count, int *products) {
    te__fp8_param_iter it = te__fp8_params(models, count);
    while (te__fp8_next_param(&it)) {}
    *products = it.products;
    return (size_t)te_round_up((int64_t)te_scales_bytes(2 * it.products, 1), TE_ALIGN);
}
/* Return the bytes of target memory that te_fp8_weights_load needs: one byte for each weight element of a GEMM under an
 * FP8 recipe, the scales, and all other parameters in the dtypes of their lists of ops. */
TE_API size_t te_fp8_weights_bytes(const te_named_model *models, int count) {
    int products;
    size_t bytes = te__fp8_scales_bytes(models, count, &products);
    te__fp8_param_iter it = te__fp8_params(models, count);
    while (te__fp8_next_param(&it)) bytes += te__fp8_param_bytes(&it);
    return bytes;
}

/* Return whether the file has a tensor called `name` in F32, BF16 or F16. Such a tensor must be cast to FP8. */
TE_API int te__fp8_is_cast(const te_safetensors *f, const char *name) {
    const te_safetensor *t = te_safetensors_find(f, name);
    te_dtype dtype;
    return t && te__safetensors_converts(&dtype, t->dtype);
}
/* Add to list l the tensors that the file should have for the current parameter of `it`. at: the address to which the
 * parameter will be loaded. */
TE_API te_status te__fp8_expect_param(te__fp8_tensors *l, const te__fp8_param_iter *it, const te_safetensors *f,
                                      char *at, te_context *ctx) {
    const te_param *p = it->param;
    const te__fp8_scale_shape shape = te__fp8_scale_shape_of(p, it->recipe);
    const int64_t one = 1;
    char *name;
    TE_TRY(te__fp8_name(&name, l, it, "", ctx));
    TE_REQUIRE(!TE_IS_MICROSCALED(it->recipe), ctx, TE_ERROR_STATE,
               "te_fp8_weights_load: %.60s is of mxfp8 or nvfp4, which keep no FP8 weights", name);
    TE_REQUIRE(!p->data && !p->fp8.data, ctx, TE_ERROR_STATE,
               "te_fp8_weights_load: %.60s has memory already; bind its model to none", name);
    if (it->recipe == TE_RECIPE_none || te__fp8_is_cast(f, name)) {
        l->tensor[l->count++] = te_safetensor_matrix(name, p->dtype, p->rows, p->cols, at);
        return TE_OK;
    }
    l->tensor[l->count++] = te_safetensor_matrix(name, TE_e4m3, p->rows, p->cols, at);
    TE_TRY(te__fp8_name(&name, l, it, "_scale_inv", ctx));
    te__fp8_add_numbers(l, name, shape.rank, shape.size, shape.count);
    TE_TRY(te__fp8_input_name(&name, l, it, ctx));
    if (it->recipe == TE_RECIPE_fp8_delayed && te_safetensors_find(f, name)) te__fp8_add_numbers(l, name, 1, &one, 1);
    return TE_OK;
}
/* Return whether the current parameter of `it` is a weight that must be cast to FP8. first: the index of the
 * parameter's first tensor in the list l. */
TE_API int te__fp8_must_cast(const te__fp8_tensors *l, int first, const te__fp8_param_iter *it) {
    return it->recipe != TE_RECIPE_none && l->tensor[first].dtype != TE_SAFETENSORS_F8_E4M3;
}
/* Return how many tensors of the list l belong to the current parameter of `it`. first: the index of the parameter's
 * first tensor in the list. */
TE_API int te__fp8_tensors_of(const te__fp8_tensors *l, int first, const te__fp8_param_iter *it) {
    static const char suffix[] = ".input_scale";
    if (it->recipe == TE_RECIPE_none || te__fp8_must_cast(l, first, it)) return 1;
    const int next = first + TE__FP8_INPUT_SCALE;
    const size_t n = next < l->count ? strlen(l->tensor[next].name) : 0, end = strlen(suffix);
    return n > end && !strcmp(l->tensor[next].name + n - end, suffix) ? 3 : 2;
}
/* Add to the list l all tensors that the file should have, and check that the file has them. No tensor is read yet.
 * *staging: output, the size in bytes of the largest weight that must be cast to FP8. */
TE_API te_status te__fp8_prepare(te__fp8_tensors *l, size_t *staging, char *memory, const te_named_model *models,
                                 int count, const te_safetensors *f, te_context *ctx) {
    te__fp8_param_iter it = te__fp8_params(models, count);
    for (*staging = 0; te__fp8_next_param(&it); memory += te__fp8_param_bytes(&it)) {
        const int first = l->count;
        TE_TRY(te__fp8_expect_param(l, &it, f, memory, ctx));
        if (te__fp8_must_cast(l, first, &it) && (size_t)l->tensor[first].bytes > *staging)
            *staging = (size_t)l->tensor[first].bytes;
    }
    for (int i = 0; i < count; i++) {
        const te_model *m = models[i].model;
        TE_REQUIRE(!m->plan->training, ctx, TE_ERROR_STATE,
                   "te_fp8_weights_load: %s trains; weights in FP8 alone are for TE_INFERENCE", m->plan->name);
        TE_TRY(te__weights_check_plan(f, &models[i], ctx));
    }
    return te_safetensors_check(f, l->tensor, l->count, 0, ctx);
}

/* ---- loading: reading -------------------------------------------------------------------------------------------- */

/* Return the te_fp8_product (the FP8 weight and its scales) of the current parameter of `it`. The FP8 numbers lie at
 * address `at`. */
TE_API te_fp8_product te__fp8_product_at(const te_fp8_weights *s, const te__fp8_param_iter *it, char *at) {
    te_fp8_product f;
    memset(&f, 0, sizeof f);
    f.on = 1, f.current = 1, f.scales = &s->scales, f.weight = it->products, f.x = s->scales.count / 2 + it->products;
    f.data = at, f.own = te__scale_rule_current();
    if (!TE_IS_TENSORWISE(it->recipe))
        f.inverse = (float *)(void *)(at + te__fp8_weight_bytes_of(it->param, it->recipe).data);
    return f;
}
/* Read a weight that the file has in F32, BF16 or F16 into `staging`, in the dtype of the list of ops, and cast the
 * weight to FP8. staging: [rows, cols]. */
TE_IF_USED TE_API te_status te__fp8_read_cast(const te_fp8_weights *s, const te__fp8_param_iter *it,
                                              const te_fp8_product *to, const te_safetensor *want, void *staging,
                                              const te_safetensors *f, te_context *ctx) {
    const te_model *m = it->models[it->model].model;
    te_safetensor read = *want;
    te_param p = *it->param;
    read.data = p.data = staging, p.fp8 = *to;
    TE_TRY(te_safetensors_load(f, &read, 1, 0, ctx));
    if (!TE_IS_TENSORWISE(it->recipe)) return te__weight_cast_one(m->plan->fp8, &p, it->recipe, ctx);
    te_quantize q = te__quantize_of(p.rows, p.cols);
    q.x = staging, q.amax = s->scales.amax + to->weight;
    TE_TRY(m->plan->fp8->quantize(&q, ctx));
    TE_TRY(te_scales_update(&s->scales, to->weight, 1, &to->own, ctx));
    q.amax = 0, q.scale = s->scales.scale + to->weight, q.y = to->data;
    return m->plan->fp8->quantize(&q, ctx);
}
/* Copy the weight's scales, t[TE__FP8_SCALES], and the scale of the GEMM's input, t[TE__FP8_INPUT_SCALE], to target
 * memory. The scale of the input exists only if the file has 3 tensors for the parameter; `tensors` is their number. */
TE_API te_status te__fp8_put_scales(const te_fp8_product *to, const te_safetensor *t, int tensors,
                                    const te__fp8_param_iter *it, te_context *ctx) {
    const te_safetensor *scales = &t[TE__FP8_SCALES], *input = &t[TE__FP8_INPUT_SCALE];
    float *const inverse = TE_IS_ROWWISE(it->recipe) ? to->inverse
                                                    : (float *)(uintptr_t)te_scales_inverse(to->scales, to->weight);
    float *const input_inverse = (float *)(uintptr_t)te_scales_inverse(to->scales, to->x);
    for (uint64_t i = 0; i < scales->bytes / sizeof(float); i++) {
        const float one = ((const float *)scales->data)[i];
        TE_REQUIRE(one >= TE__SCALE_MIN && one <= TE__SCALE_MAX, ctx, TE_ERROR_VALUE,
                   "te_fp8_weights_load: %.60s has %g", scales->name, (double)one);
    }
    if (TE_IS_BLOCKWISE(it->recipe)) return te__fp8_blocks_copy((float *)scales->data, to->inverse, it->param, 1, ctx);
    TE_TRY(te_copy(ctx, inverse, scales->data, (size_t)scales->bytes));
    if (tensors <= TE__FP8_INPUT_SCALE) return TE_OK;
    const float scale = *(const float *)input->data, one_over = 1.0f / scale;
    TE_REQUIRE(scale >= TE__SCALE_MIN && scale <= TE__SCALE_MAX, ctx, TE_ERROR_VALUE,
               "te_fp8_weights_load: %.60s is %g", input->name, (double)scale);
    TE_TRY(te_copy(ctx, to->scales->scale + to->x, &scale, sizeof scale));
    TE_TRY(te_copy(ctx, input_inverse, &one_over, sizeof one_over));
    return te_synchronize(ctx);
}
/* Read all tensors of the file that te__fp8_prepare has listed. */
TE_IF_USED TE_API te_status te__fp8_read(const te_fp8_weights *s, char *memory, const te_named_model *models, int count,
                                         const te__fp8_tensors *l, void *staging, const te_safetensors *f,
                                         te_context *ctx) {
    te__fp8_param_iter it = te__fp8_params(models, count);
    for (int i = 0; te__fp8_next_param(&it); i += te__fp8_tensors_of(l, i, &it), memory += te__fp8_param_bytes(&it)) {
        const te_fp8_product to = te__fp8_product_at(s, &it, memory);
        const int tensors = te__fp8_tensors_of(l, i, &it);
        if (te__fp8_must_cast(l, i, &it))
            TE_TRY(te__fp8_read_cast(s, &it, &to, &l->tensor[i], staging, f, ctx));
        else TE_TRY(te_safetensors_load(f, &l->tensor[i], tensors, 0, ctx));
        if (tensors > 1) TE_TRY(te__fp8_put_scales(&to, &l->tensor[i], tensors, &it, ctx));
    }
    return te_synchronize(ctx);
}
/* Set the models' parameters to point to the memory into which te__fp8_read has read their values. */
TE_API void te__fp8_bind(const te_fp8_weights *s, char *memory, const te_named_model *models, int count,
                         const te__fp8_tensors *l) {
    te__fp8_param_iter it = te__fp8_params(models, count);
    for (int i = 0; te__fp8_next_param(&it); i += te__fp8_tensors_of(l, i, &it), memory += te__fp8_param_bytes(&it)) {
        if (it.recipe == TE_RECIPE_none) {
            it.param->data = memory;
            continue;
        }
        it.param->fp8 = te__fp8_product_at(s, &it, memory);
        it.param->fp8.current = te__fp8_tensors_of(l, i, &it) <= TE__FP8_INPUT_SCALE;
    }
}
/* Return an error if the weight of a GEMM under an FP8 recipe is tied to another parameter, because that other
 * parameter would not be in FP8. */
TE_API te_status te__fp8_check_ties(const te_named_model *models, int count, te_context *ctx) {
    for (int i = 0; i < count; i++)
        for (int k = 0, next = 0; k < models[i].model->plan->op_count; next += models[i].model->plan->op[k++].params) {
            const te_op *op = &models[i].model->plan->op[k];
            TE_REQUIRE(op->recipe == TE_RECIPE_none || !models[i].model->param[next].tied, ctx, TE_ERROR_VALUE,
                       "te_fp8_weights_load: %s: (%s, %s) is tied to a parameter that is not in FP8; give it "
                       "(recipe, none)", models[i].model->plan->name, op->kind, op->name);
        }
    return TE_OK;
}
/* Read the parameters of models into `memory`, and enable the models' FP8 recipes. The weights of GEMMs under an FP8
 * recipe are held only in FP8. The models must have lists of ops for inference (TE_INFERENCE) and be bound to no
 * memory. memory: te_fp8_weights_bytes of target memory, aligned to TE_ALIGN. Call te_tie afterwards if parameters are
 * tied. Waits for the stream. Errors: null pointers; a list of ops for training; a tied weight of a GEMM under an FP8
 * recipe; memory that is too small or misaligned; a list of ops that differs from the list in the file; a tensor that
 * is missing or has another shape or dtype; a scale that is not valid. After an error the models are unchanged. */
TE_IF_USED TE_API te_status te_fp8_weights_load(te_fp8_weights *s, void *memory, size_t bytes,
                                                const te_named_model *models, int count, const te_safetensors *f,
                                                te_context *ctx) {
    te__fp8_tensors l;
    int products;
    size_t staging_bytes = 0;
    void *staging = 0;
    TE_TRY(te__fp8_check_models(models, count, "te_fp8_weights_load", ctx));
    TE_REQUIRE(s && memory && f && f->path, ctx, TE_ERROR_NULL,
               "te_fp8_weights_load: the struct or the memory is null, or the file is not open");
    const size_t scales_bytes = te__fp8_scales_bytes(models, count, &products);
    const size_t needed = te_fp8_weights_bytes(models, count);
    TE_REQUIRE((uintptr_t)memory % TE_ALIGN == 0, ctx, TE_ERROR_ALIGNMENT,
               "te_fp8_weights_load: memory must be aligned to %d bytes", (int)TE_ALIGN);
    TE_REQUIRE(bytes >= needed, ctx, TE_ERROR_MEMORY, "te_fp8_weights_load: memory has %zu bytes, %zu are needed",
               bytes, needed);
    TE_TRY(te__fp8_check_ties(models, count, ctx));
    TE_TRY(te__fp8_tensors_allocate(&l, models, count, ctx));
    te_dtype *formats = (te_dtype *)calloc((size_t)products * 2 + 1, sizeof *formats);
    te_status status = formats ? TE_OK : te_fail(ctx, TE_ERROR_MEMORY, "te_fp8_weights_load: cannot allocate");
    for (int i = 0; formats && i < 2 * products; i++) formats[i] = TE_e4m3;
    char *at = (char *)memory + scales_bytes;
    if (status == TE_OK) status = te__fp8_prepare(&l, &staging_bytes, at, models, count, f, ctx);
    if (status == TE_OK) status = te_scales_init(&s->scales, memory, scales_bytes, formats, 2 * products, 1, ctx);
    if (status == TE_OK && staging_bytes) status = te_allocate(ctx, &staging, staging_bytes);
    if (status == TE_OK) status = te__fp8_read(s, at, models, count, &l, staging, f, ctx);
    if (status == TE_OK) te__fp8_bind(s, at, models, count, &l);
    if (staging) te_release(ctx, staging);
    free(formats);
    te__fp8_tensors_free(&l);
    return status;
}

#endif
