// misuse_calls.h -- entries of misuse.h for every public function that is no pass of a model: each argument null, zero, negative, huge,
// of a wrong dtype or shape, misaligned, overlapping, not bound, copied, of another context, or used too early.
#ifndef TESTS_MISUSE_CALLS_H
#define TESTS_MISUSE_CALLS_H

#include "misuse.h"

TE_SEQUENTIAL(small, f32, (linear, fc, 8, 8), (bias, b, 8))
TE_SEQUENTIAL(tied_small, f32, (tied_linear, fc, 8, 8), (tied_linear, other, 8, 8), (linear, plain, 8, 8), (linear, wide, 8, 16))
TE_SEQUENTIAL(fp8_list, (bf16, (recipe, fp8_delayed)), (linear, fc, 64, 64))
TE_SEQUENTIAL_DIMS(sized, f32, (layernorm, n, TE_DIM(0)), (linear, fc, TE_DIM(0), TE_DIM(1)))
TE_QUANTIZE(of_f32, f32)

namespace misuse {

inline te_status graph_copies(const te_graph *g, const void *arg, te_context *ctx) {
    (void)arg;
    return te_copy(ctx, te_graph_output_at(g, 0).data, te_graph_input_at(g, 0).data, 256);
}

// A valid object of each kind on which calls are made.
struct call_scene {
    te_context context;
    te_context *ctx = &context;
    arena memory;
    small m;
    tied_small user;
    fp8_list h;
    sized s;
    char *params, *grads, *user_params, *free_memory, *a, *b, *c;
    size_t free_bytes;
    te_adamw opt;
    te_grad_norm norm;
    te_recipes recipes;
    te_recipes_adamw update;
    te_scales scales;
    te_graph graph;
    te_graph_pool pool;
    te_model *models[2], *fp8_models[1];
    te_adamw_config config;
    te_recipes_config recipes_config;
    te_named in, out;
    te_graph_spec spec;
    te_gemm gemm;
    te_quantize quantize;
    te_saved saved;
    int64_t dims[2];

    call_scene() : memory((NEED(te_context_create(&context, 0, 5), &context), &context), 1 << 19) {
        memset(&m, 0, sizeof m), memset(&user, 0, sizeof user), memset(&h, 0, sizeof h), memset(&s, 0, sizeof s);
        memset(&saved, 0, sizeof saved);
        params = memory.take(small_param_bytes()), grads = memory.take(small_grad_bytes()), user_params = memory.take(tied_small_param_bytes());
        char *const fp8_params = memory.take(fp8_list_param_bytes()), *const fp8_grads = memory.take(fp8_list_grad_bytes());
        free_bytes = 1 << 16, free_memory = memory.take(free_bytes);
        a = memory.take(4096), b = memory.take(4096), c = memory.take(4096);
        NEED(small_bind(&m, params, (float *)(void *)grads, ctx), ctx);
        NEED(tied_small_bind(&user, user_params, nullptr, ctx), ctx);
        NEED(fp8_list_bind(&h, fp8_params, (float *)(void *)fp8_grads, ctx), ctx);
        NEED(te_model_randomize(&m.model, 0.1f, 1, 0, ctx), ctx);
        NEED(te_model_randomize(&h.model, 0.1f, 1, 0, ctx), ctx);
        NEED(te_fill(ctx, grads, 0, small_grad_bytes()), ctx);
        for (char *p : {a, b, c}) NEED(te_fill_normal(p, TE_f32, 1024, 0, 1, 1, 9, ctx), ctx);
        models[0] = &m.model, models[1] = &h.model, fp8_models[0] = &h.model;
        config = te_adamw_defaults(1e-3f), recipes_config = te_recipes_defaults(), recipes_config.history = 4;
        size_t n = te_adamw_bytes(models, 1);
        NEED(te_adamw_init(&opt, memory.take(n), n, models, 1, &config, ctx), ctx);
        n = te_grad_norm_bytes(models, 1);
        NEED(te_grad_norm_init(&norm, memory.take(n), n, models, 1, ctx), ctx);
        n = te_recipes_bytes(fp8_models, 1, &recipes_config);
        NEED(te_recipes_init(&recipes, memory.take(n), n, fp8_models, 1, &recipes_config, ctx), ctx);
        n = te_recipes_adamw_bytes(&recipes, &opt);
        NEED(te_recipes_adamw_init(&update, memory.take(n), n, &recipes, &opt, ctx), ctx);
        const te_dtype formats[2] = {TE_e4m3, TE_e5m2};
        n = te_scales_bytes(2, 4);
        NEED(te_scales_init(&scales, memory.take(n), n, formats, 2, 4, ctx), ctx);
        NEED(te_graph_pool_init(&pool, memory.take(8192), 8192, ctx), ctx);
        in = te_named_tensor("in", te_matrix(a, TE_f32, 8, 8)), out = te_named_tensor("out", te_matrix(nullptr, TE_f32, 8, 8));
        spec = te_graph_spec_of("copying", graph_copies, nullptr, 0, &in, 1, &out, 1);
        NEED(te_graph_capture(&graph, &spec, &pool, ctx), ctx);
        gemm = te_gemm_of(8, 16, 8);
        gemm.a = a, gemm.b = b, gemm.d = c, gemm.trans_b = 1, gemm.dtype = gemm.out = TE_f32;
        quantize = te__quantize_of(8, 16);
        quantize.x = a, quantize.y = b, quantize.yt = c;
        dims[0] = 8, dims[1] = 16;
        NEED(te_synchronize(ctx), ctx);
    }
    ~call_scene() {
        te_graph_destroy(&graph);
        te_release(ctx, memory.base), memory.base = nullptr;
        te_context_destroy(ctx);
    }
    void restore() {}
    bytes state() {
        bytes all = memory.content();
        append_instance(all, m), append_instance(all, user), append_instance(all, h), append_instance(all, s);
        append(all, &opt, sizeof opt), append(all, &norm, sizeof norm), append(all, &recipes, sizeof recipes), append(all, &update, sizeof update), append(all, &scales, sizeof scales);
        append(all, &pool, offsetof(te_graph_pool, block)), append(all, &ctx->workspace, sizeof ctx->workspace);
        append_rng(all, ctx);
        return all;
    }
    bool works() {
        te_batch batch;
        memset(&batch, 0, sizeof batch);
        batch.batch = 1, batch.seq = 8;
        NEED(te_context_reserve(ctx, small_workspace_bytes(&m, 8, ctx)), ctx);
        return small_infer(te_matrix(b, TE_f32, 8, 8), te_matrix(a, TE_f32, 8, 8), &m, &batch, ctx) == TE_OK && te_synchronize(ctx) == TE_OK;
    }
};
typedef call_scene cs;

// Each function that takes a context: with null, with one that was never created, with a destroyed one, and with a copy.
inline void contexts(table &t, const char *name, std::function<te_status(cs &, te_context *)> call) {
    static te_context other;
    const auto says = [](te_status status) {
        if (!*other.error) throw std::runtime_error("there is no text");
        return status;
    };
    const std::string who = std::string(name) + ": ";
    refuse<cs>(t, who + "no context", TE_ERROR_NULL, "", [=](cs &s) { return call(s, nullptr); });
    refuse<cs>(t, who + "a context of zeros", TE_ERROR_NULL, "", [=](cs &s) { return memset(&other, 0, sizeof other), says(call(s, &other)); });
    refuse<cs>(t, who + "a copy of the context", TE_ERROR_STATE, "", [=](cs &s) { return other = *s.ctx, says(call(s, &other)); });
}
inline void other_targets(table &t, const char *name, std::function<te_status(cs &, te_context *)> call) {
    contexts(t, name, call);
    refuse<cs>(t, std::string(name) + ": a context of the other target", TE_ERROR_DEVICE, "", [=](cs &s) {
        static te_context other;
        static te_target target;
        target = *s.ctx->target, target.name = TE_CUDA ? "host" : "cuda", other = *s.ctx, other.target = &target, other.at = &other;
        return call(s, &other);
    });
}

inline void context_calls(table &t) {
    static te_rng rng;
    static void *p;
    static char byte[16];
    contexts(t, "te_allocate", [](cs &, te_context *c) { return te_allocate(c, &p, 16); });
    contexts(t, "te_copy", [](cs &s, te_context *c) { return te_copy(c, s.a, s.b, 16); });
    contexts(t, "te_fill", [](cs &s, te_context *c) { return te_fill(c, s.a, 0, 16); });
    contexts(t, "te_synchronize", [](cs &, te_context *c) { return te_synchronize(c); });
    contexts(t, "te_context_reserve", [](cs &, te_context *c) { return te_context_reserve(c, 1 << 20); });
    contexts(t, "te_rng_get", [](cs &, te_context *c) { return te_rng_get(&rng, c); });
    contexts(t, "te_rng_set", [](cs &, te_context *c) { return rng.offset = 77, te_rng_set(&rng, c); });
    refuse<cs>(t, "te_context_create: nowhere", TE_ERROR_NULL, "", [](cs &) { return te_context_create(nullptr, 0, 1); });
    for (int device : {-1, 4096, INT32_MAX, INT32_MIN})
        refuse<cs>(t, "te_context_create: device " + std::to_string(device), TE_ERROR_DEVICE, "", [=](cs &) {
            static te_context made;
            const te_status status = te_context_create(&made, device, 1);
            if (!*made.error || made.target) throw std::runtime_error("no text, or a target");
            return te_context_destroy(&made), status;
        });
    refuse<cs>(t, "te_allocate: no place for the address", TE_ERROR_NULL, "te_allocate", [](cs &s) { return te_allocate(s.ctx, nullptr, 16); });
    for (size_t n : {SIZE_MAX, SIZE_MAX - 255, SIZE_MAX / 2, (size_t)1 << 60}) {
        const te_status status = TE_CUDA || n < SIZE_MAX - 256 ? TE_ERROR_MEMORY : TE_ERROR_OVERFLOW;
        refuse<cs>(t, "te_allocate: " + std::to_string(n) + " bytes", status, "allocate", [=](cs &s) { return te_allocate(s.ctx, &p, n); });
        refuse<cs>(t, "te_context_reserve: " + std::to_string(n) + " bytes", status, "allocate", [=](cs &s) { return te_context_reserve(s.ctx, n); });
    }
    refuse<cs>(t, "te_copy: to null", TE_ERROR_NULL, "te_copy", [](cs &s) { return te_copy(s.ctx, nullptr, s.a, 16); });
    refuse<cs>(t, "te_copy: from null", TE_ERROR_NULL, "te_copy", [](cs &s) { return te_copy(s.ctx, s.a, nullptr, 16); });
    refuse<cs>(t, "te_fill: null", TE_ERROR_NULL, "te_fill", [](cs &s) { return te_fill(s.ctx, nullptr, 0, 16); });
    refuse<cs>(t, "te_rng_get: null", TE_ERROR_NULL, "te_copy", [](cs &s) { return te_rng_get(nullptr, s.ctx); });
    refuse<cs>(t, "te_rng_set: null", TE_ERROR_NULL, "te_copy", [](cs &s) { return te_rng_set(nullptr, s.ctx); });
    fine<cs>(t, "te_copy: no bytes of nothing", [](cs &s) { return te_copy(s.ctx, nullptr, nullptr, 0) == TE_OK; });
    fine<cs>(t, "te_release: nothing, no context", [](cs &s) { return te_release(s.ctx, nullptr), te_release(nullptr, byte), true; });
    fine<cs>(t, "te_context_destroy: nothing, zeros, a copy, twice", [](cs &s) {
        te_context zero, copy = *s.ctx, two;
        memset(&zero, 0, sizeof zero);
        NEED(te_context_create(&two, 0, 1), &two);
        te_context_destroy(nullptr), te_context_destroy(&zero), te_context_destroy(&copy), te_context_destroy(&two), te_context_destroy(&two);
        return true;
    });
    fine<cs>(t, "te_last_error: no context", [](cs &) { return std::string(te_last_error(nullptr)) == "the context is null"; });
    fine<cs>(t, "names of what is none", [](cs &) {
        for (int n : {-1, 99, INT32_MAX})
            if (!te_status_string((te_status)n) || !te_dtype_name((te_dtype)n) || !te_schedule_name((te_schedule_kind)n) || !te__epilogue_name((te_epilogue)n) ||
                !te_safetensors_dtype_name((te_safetensors_dtype)n) || te_safetensors_dtype_bytes((te_safetensors_dtype)n))
                return false;
        return true;
    });
}

inline void number_calls(table &t) {
    other_targets(t, "te_fill_normal", [](cs &s, te_context *c) { return te_fill_normal(s.a, TE_f32, 8, 0, 1, 1, 0, c); });
    other_targets(t, "te_param_normal", [](cs &s, te_context *c) { return te_param_normal(&s.m.fc.weight, 1, 1, 0, c); });
    other_targets(t, "te_model_randomize", [](cs &s, te_context *c) { return te_model_randomize(&s.m.model, 1, 1, 0, c); });
    other_targets(t, "te_convert", [](cs &s, te_context *c) { return te_convert(s.a, TE_bf16, s.b, TE_f32, 8, c); });
    other_targets(t, "te_convert to the same", [](cs &s, te_context *c) { return te_convert(s.a, TE_f32, s.b, TE_f32, 8, c); });
    refuse<cs>(t, "te_fill_normal: null", TE_ERROR_NULL, "te_fill_normal", [](cs &s) { return te_fill_normal(nullptr, TE_f32, 8, 0, 1, 1, 0, s.ctx); });
    for (int64_t n : {INT64_C(-1), INT64_MIN, INT64_MAX, INT64_C(1) << 60}) {
        refuse<cs>(t, "te_fill_normal: count " + std::to_string(n), TE_ERROR_OVERFLOW, "elements", [=](cs &s) { return te_fill_normal(s.a, TE_f32, n, 0, 1, 1, 0, s.ctx); });
        refuse<cs>(t, "te_convert: count " + std::to_string(n), TE_ERROR_OVERFLOW, "elements", [=](cs &s) { return te_convert(s.a, TE_bf16, s.b, TE_f32, n, s.ctx); });
        refuse<cs>(t, "te_convert to the same: count " + std::to_string(n), TE_ERROR_OVERFLOW, "elements", [=](cs &s) { return te_convert(s.a, TE_f32, s.b, TE_f32, n, s.ctx); });
    }
    for (int dtype : {(int)TE_DTYPE_COUNT, 6, 7}) { // (the enum's type has no larger values)
        refuse<cs>(t, "te_fill_normal: dtype " + std::to_string(dtype), TE_ERROR_DTYPE, "dtype", [=](cs &s) { return te_fill_normal(s.a, (te_dtype)dtype, 8, 0, 1, 1, 0, s.ctx); });
        refuse<cs>(t, "te_convert: to dtype " + std::to_string(dtype), TE_ERROR_DTYPE, "unknown", [=](cs &s) { return te_convert(s.a, (te_dtype)dtype, s.b, TE_f32, 8, s.ctx); });
        refuse<cs>(t, "te_convert: from dtype " + std::to_string(dtype), TE_ERROR_DTYPE, "unknown", [=](cs &s) { return te_convert(s.a, TE_f32, s.b, (te_dtype)dtype, 8, s.ctx); });
    }
    for (int dtype : {(int)TE_e4m3, (int)TE_e5m2}) {
        refuse<cs>(t, std::string("te_convert: to ") + te_dtype_name((te_dtype)dtype), TE_ERROR_DTYPE, "te_quantize", [=](cs &s) { return te_convert(s.a, (te_dtype)dtype, s.b, TE_f32, 8, s.ctx); });
        refuse<cs>(t, std::string("te_convert: from ") + te_dtype_name((te_dtype)dtype), TE_ERROR_DTYPE, "te_quantize", [=](cs &s) { return te_convert(s.a, TE_f32, s.b, (te_dtype)dtype, 8, s.ctx); });
    }
    refuse<cs>(t, "te_convert: to null", TE_ERROR_NULL, "te_convert", [](cs &s) { return te_convert(nullptr, TE_bf16, s.b, TE_f32, 8, s.ctx); });
    refuse<cs>(t, "te_convert: from null", TE_ERROR_NULL, "te_convert", [](cs &s) { return te_convert(s.a, TE_bf16, nullptr, TE_f32, 8, s.ctx); });
    for (int by : {1, 2, 4, 8}) {
        refuse<cs>(t, "te_convert: to " + std::to_string(by) + " off", TE_ERROR_ALIGNMENT, "te_convert", [=](cs &s) { return te_convert(s.a + by, TE_bf16, s.b, TE_f32, 8, s.ctx); });
        refuse<cs>(t, "te_convert: from " + std::to_string(by) + " off", TE_ERROR_ALIGNMENT, "te_convert", [=](cs &s) { return te_convert(s.a, TE_bf16, s.b + by, TE_f32, 8, s.ctx); });
    }
    refuse<cs>(t, "te_convert: in place", TE_ERROR_VALUE, "overlaps", [](cs &s) { return te_convert(s.a, TE_bf16, s.a, TE_f32, 8, s.ctx); });
    refuse<cs>(t, "te_fill_normal: a byte off", TE_ERROR_ALIGNMENT, "te_fill_normal", [](cs &s) { return te_fill_normal(s.a + 1, TE_f32, 8, 0, 1, 1, 0, s.ctx); });
    for (float std : {NAN, INFINITY, -INFINITY}) {
        refuse<cs>(t, "te_param_normal: std " + std::to_string(std), TE_ERROR_VALUE, "std", [=](cs &s) { return te_param_normal(&s.m.fc.weight, std, 1, 0, s.ctx); });
        refuse<cs>(t, "te_model_randomize: std " + std::to_string(std), TE_ERROR_VALUE, "std", [=](cs &s) { return te_model_randomize(&s.m.model, std, 1, 0, s.ctx); });
        refuse<cs>(t, "te_fill_normal: std " + std::to_string(std), TE_ERROR_VALUE, "std", [=](cs &s) { return te_fill_normal(s.a, TE_f32, 8, 0, std, 1, 0, s.ctx); });
        refuse<cs>(t, "te_fill_normal: mean " + std::to_string(std), TE_ERROR_VALUE, "mean", [=](cs &s) { return te_fill_normal(s.a, TE_f32, 8, std, 1, 1, 0, s.ctx); });
    }
    const auto ints = [](char *p) { return (const int32_t *)(void *)p; };
    const auto floats = [](char *p) { return (float *)(void *)p; };
    other_targets(t, "te_count_labels", [=](cs &s, te_context *c) { return te_count_labels(floats(s.b), ints(s.a), 8, 0, 0, c); });
    other_targets(t, "te_mean_loss", [=](cs &s, te_context *c) { return te_mean_loss(floats(s.b), floats(s.a), 8, floats(s.c), 0, c); });
    refuse<cs>(t, "te_count_labels: into nothing", TE_ERROR_NULL, "the result is null", [=](cs &s) { return te_count_labels(nullptr, ints(s.a), 8, 0, 0, s.ctx); });
    refuse<cs>(t, "te_count_labels: no labels", TE_ERROR_NULL, "the input is null", [=](cs &s) { return te_count_labels(floats(s.b), nullptr, 8, 0, 0, s.ctx); });
    refuse<cs>(t, "te_count_labels: -1 rows", TE_ERROR_SHAPE, "-1 rows", [=](cs &s) { return te_count_labels(floats(s.b), ints(s.a), -1, 0, 0, s.ctx); });
    refuse<cs>(t, "te_count_labels: labels 2 off", TE_ERROR_ALIGNMENT, "multiple of 4", [=](cs &s) { return te_count_labels(floats(s.b), ints(s.a + 2), 8, 0, 0, s.ctx); });
    refuse<cs>(t, "te_mean_loss: no count", TE_ERROR_NULL, "the input is null", [=](cs &s) { return te_mean_loss(floats(s.b), floats(s.a), 8, nullptr, 0, s.ctx); });
    refuse<cs>(t, "te_mean_loss: into nothing", TE_ERROR_NULL, "the result is null", [=](cs &s) { return te_mean_loss(nullptr, floats(s.a), 8, floats(s.c), 0, s.ctx); });
    refuse<cs>(t, "te_param_normal: null", TE_ERROR_NULL, "te_param_normal", [](cs &s) { return te_param_normal(nullptr, 1, 1, 0, s.ctx); });
    refuse<cs>(t, "te_param_normal: of an instance that is not bound", TE_ERROR_NULL, "not bound", [](cs &s) { return te_param_normal(&s.s.fc.weight, 1, 1, 0, s.ctx); });
    refuse<cs>(t, "te_model_randomize: null", TE_ERROR_STATE, "bound", [](cs &s) { return te_model_randomize(nullptr, 1, 1, 0, s.ctx); });
    refuse<cs>(t, "te_model_randomize: not bound", TE_ERROR_STATE, "bound", [](cs &s) { return te_model_randomize(&s.s.model, 1, 1, 0, s.ctx); });
    refuse<cs>(t, "te_model_randomize: a copy", TE_ERROR_STATE, "copied", [](cs &s) {
        static small copy;
        return copy = s.m, te_model_randomize(&copy.model, 1, 1, 0, s.ctx);
    });
}

inline void bind_calls(table &t) {
    contexts(t, "small_bind", [](cs &s, te_context *c) { return small_bind(&s.m, s.user_params, nullptr, c); });
    contexts(t, "te_tie", [](cs &s, te_context *c) { return te_tie(&s.user.fc.weight, &s.m.fc.weight, c); });
    contexts(t, "sized_set_dims", [](cs &s, te_context *c) { return sized_set_dims(&s.s, s.dims, 2, c); });
    refuse<cs>(t, "bind: no instance", TE_ERROR_NULL, "instance", [](cs &s) { return small_bind(nullptr, s.params, nullptr, s.ctx); });
    refuse<cs>(t, "bind: no memory", TE_ERROR_NULL, "params is null", [](cs &s) { return small_bind(&s.m, nullptr, nullptr, s.ctx); });
    for (int by : {1, 16, 128}) {
        refuse<cs>(t, "bind: params " + std::to_string(by) + " off", TE_ERROR_ALIGNMENT, "aligned", [=](cs &s) { return small_bind(&s.m, s.params + by, nullptr, s.ctx); });
        refuse<cs>(t, "bind: grads " + std::to_string(by) + " off", TE_ERROR_ALIGNMENT, "aligned", [=](cs &s) { return small_bind(&s.m, s.params, (float *)(void *)(s.grads + by), s.ctx); });
    }
    for (int by : {-256, 0, 256}) refuse<cs>(t, "bind: grads " + std::to_string(by) + " from params", TE_ERROR_VALUE, "params overlaps grads", [=](cs &s) { return small_bind(&s.m, s.free_memory + 1024, (float *)(void *)(s.free_memory + 1024 + by), s.ctx); });
    refuse<cs>(t, "bind: dims are not set", TE_ERROR_STATE, "sized_set_dims first", [](cs &s) { return sized_bind(&s.s, s.free_memory, nullptr, s.ctx); });
    refuse<cs>(t, "te_model_bind: no plan", TE_ERROR_NULL, "plan", [](cs &s) { return te_model_bind(&s.m.model, nullptr, &s.m.fc.weight, 2, s.params, nullptr, s.ctx); });
    for (int n : {-1, 0, 1, 3, INT32_MAX}) refuse<cs>(t, "te_model_bind: " + std::to_string(n) + " parameters", TE_ERROR_SHAPE, "the list has 2", [=](cs &s) { return te_model_bind(&s.m.model, small_plan(), &s.m.fc.weight, n, s.params, nullptr, s.ctx); });

    refuse<cs>(t, "te_tie: no user", TE_ERROR_NULL, "te_tie", [](cs &s) { return te_tie(nullptr, &s.m.fc.weight, s.ctx); });
    refuse<cs>(t, "te_tie: no owner", TE_ERROR_NULL, "te_tie", [](cs &s) { return te_tie(&s.user.fc.weight, nullptr, s.ctx); });
    refuse<cs>(t, "te_tie: an owner that is not bound", TE_ERROR_NULL, "the owner, to which fc.weight would be tied, is not bound", [](cs &s) { return te_tie(&s.user.fc.weight, &s.s.fc.weight, s.ctx); });
    refuse<cs>(t, "te_tie: a user that is not bound", TE_ERROR_NULL, "the user is not bound", [](cs &s) { return te_tie(&s.s.fc.weight, &s.m.fc.weight, s.ctx); });
    refuse<cs>(t, "te_tie: a linear", TE_ERROR_VALUE, "tied_linear", [](cs &s) { return te_tie(&s.user.plain.weight, &s.m.fc.weight, s.ctx); });
    refuse<cs>(t, "te_tie: to a tied one", TE_ERROR_VALUE, "is tied itself", [](cs &s) { return te_tie(&s.user.fc.weight, (NEED(te_tie(&s.user.other.weight, &s.m.fc.weight, s.ctx), s.ctx), &s.user.other.weight), s.ctx) == TE_ERROR_VALUE ? (NEED(tied_small_bind(&s.user, s.user_params, nullptr, s.ctx), s.ctx), TE_ERROR_VALUE) : TE_OK; });
    refuse<cs>(t, "te_tie: to itself", TE_ERROR_VALUE, "fc.weight is tied to itself", [](cs &s) { return te_tie(&s.user.fc.weight, &s.user.fc.weight, s.ctx); });
    refuse<cs>(t, "te_tie: another shape", TE_ERROR_SHAPE, "x 8", [](cs &s) { return te_tie(&s.user.fc.weight, &s.user.wide.weight, s.ctx); });
    refuse<cs>(t, "te_tie: a bias", TE_ERROR_SHAPE, "te_tie", [](cs &s) { return te_tie(&s.user.fc.weight, &s.m.b.bias, s.ctx); });
    refuse<cs>(t, "a pass with what was never tied", TE_ERROR_STATE, "te_tie it", [](cs &s) {
        te_batch batch;
        memset(&batch, 0, sizeof batch), batch.batch = 1, batch.seq = 8;
        return tied_small_infer(te_matrix(s.b, TE_f32, 8, 16), te_matrix(s.a, TE_f32, 8, 8), &s.user, &batch, s.ctx);
    });

    contexts(t, "te_freeze", [](cs &s, te_context *c) { return te_freeze(&s.m.model, nullptr, nullptr, c); });
    contexts(t, "te_unfreeze", [](cs &s, te_context *c) { return te_unfreeze(&s.m.model, nullptr, nullptr, c); });
    contexts(t, "te_bind_trained_grads", [](cs &s, te_context *c) { return te_bind_trained_grads(&s.m.model, (float *)(void *)s.free_memory, c); });
    for (auto call : {&te_freeze, &te_unfreeze}) {
        const std::string who = call == &te_freeze ? "te_freeze: " : "te_unfreeze: ";
        refuse<cs>(t, who + "no instance", TE_ERROR_NULL, "null or not bound", [=](cs &s) { return call(nullptr, nullptr, nullptr, s.ctx); });
        refuse<cs>(t, who + "an instance that is not bound", TE_ERROR_NULL, "null or not bound", [=](cs &s) { return call(&s.s.model, nullptr, nullptr, s.ctx); });
        refuse<cs>(t, who + "an op that the list has not", TE_ERROR_VALUE, "small has no parameter fd.*", [=](cs &s) { return call(&s.m.model, "fd", nullptr, s.ctx); });
        refuse<cs>(t, who + "a field that the op has not", TE_ERROR_VALUE, "small has no parameter fc.bias", [=](cs &s) { return call(&s.m.model, "fc", "bias", s.ctx); });
        refuse<cs>(t, who + "what is tied", TE_ERROR_VALUE, "other.weight is tied", [=](cs &s) { return call(&s.user.model, "other", "weight", s.ctx); });
        refuse<cs>(t, who + "an instance that was copied", TE_ERROR_STATE, "copied", [=](cs &s) {
            static small copy;
            return copy = s.m, call(&copy.model, nullptr, nullptr, s.ctx);
        });
    }
    refuse<cs>(t, "te_bind_trained_grads: no instance", TE_ERROR_NULL, "null or not bound", [](cs &s) { return te_bind_trained_grads(nullptr, (float *)(void *)s.free_memory, s.ctx); });
    refuse<cs>(t, "te_bind_trained_grads: no memory", TE_ERROR_NULL, "grads is null", [](cs &s) { return te_bind_trained_grads(&s.m.model, nullptr, s.ctx); });
    refuse<cs>(t, "te_bind_trained_grads: 16 bytes off", TE_ERROR_ALIGNMENT, "aligned", [](cs &s) { return te_bind_trained_grads(&s.m.model, (float *)(void *)(s.free_memory + 16), s.ctx); });
    refuse<cs>(t, "te_bind_trained_grads: where the parameters are", TE_ERROR_VALUE, "params overlaps grads", [](cs &s) { return te_bind_trained_grads(&s.m.model, (float *)(void *)s.params, s.ctx); });
    fine<cs>(t, "te_trained_grad_bytes: of nothing", [](cs &s) { return te_trained_grad_bytes(nullptr) + te_trained_grad_bytes(&s.s.model) == 0; });

    refuse<cs>(t, "set_dims: no instance", TE_ERROR_NULL, "instance", [](cs &s) { return sized_set_dims(nullptr, s.dims, 2, s.ctx); });
    refuse<cs>(t, "set_dims: no dims", TE_ERROR_NULL, "dims", [](cs &s) { return sized_set_dims(&s.s, nullptr, 2, s.ctx); });
    for (int n : {-1, 0, 1, 3}) refuse<cs>(t, "set_dims: " + std::to_string(n) + " dims", TE_ERROR_SHAPE, "the list takes 2", [=](cs &s) { return sized_set_dims(&s.s, s.dims, n, s.ctx); });
    for (int k : {0, 1})
        for (int64_t n : {INT64_C(0), INT64_C(-1), INT64_MIN}) refuse<cs>(t, "set_dims: dim " + std::to_string(k) + " is " + std::to_string(n), TE_ERROR_VALUE, "must be positive", [=](cs &s) {
                const int64_t dims[2] = {k ? 8 : n, k ? n : 8};
                return sized_set_dims(&s.s, dims, 2, s.ctx);
            });
    for (int64_t n : {INT64_MAX, INT64_C(1) << 40, INT64_C(8388609), INT64_C(65537)}) refuse<cs>(t, "set_dims: a norm of " + std::to_string(n), TE_ERROR_OVERFLOW, "at most", [=](cs &s) {
            const int64_t dims[2] = {n, 8};
            return sized_set_dims(&s.s, dims, 2, s.ctx);
        });
    fine<cs>(t, "sizes of nothing, and of what cannot be, are 0", [](cs &s) {
        size_t n = te_plan_param_bytes(nullptr) + te_plan_grad_bytes(nullptr) + te_plan_saved_bytes(nullptr, 8) + te_plan_saved_bytes_without_recipe(nullptr, 8);
        n += te_plan_workspace_bytes(nullptr, &s.m.model, 8, s.ctx) + small_workspace_bytes(nullptr, 8, s.ctx) + small_workspace_bytes(&s.m, 8, nullptr);
        n += sized_param_bytes(nullptr) + sized_param_bytes(&s.s) + sized_saved_bytes(&s.s, 8) + sized_workspace_bytes(&s.s, 8, s.ctx);
        for (int64_t rows : {INT64_C(-1), INT64_MIN, INT64_MAX, INT64_C(1) << 31}) n += small_saved_bytes(rows) + small_workspace_bytes(&s.m, rows, s.ctx);
        n += te_adamw_bytes(nullptr, 1) == te_adamw_bytes(nullptr, 0) ? 0 : 1;
        n += te_grad_norm_bytes(nullptr, 1) == te_grad_norm_bytes(nullptr, 0) ? 0 : 1;
        return n == 0;
    });
    fine<cs>(t, "printing no plan, or nowhere", [](cs &) { return te_plan_print(nullptr, small_plan()), te_plan_print(stderr, nullptr), small_print_plan(nullptr), true; });
    fine<cs>(t, "te_recipes_bytes: no models, no config, a model that is not bound", [](cs &s) {
        te_model *unbound[2] = {&s.s.model, nullptr};
        return te_recipes_bytes(nullptr, 1, &s.recipes_config) == te_recipes_bytes(nullptr, 0, &s.recipes_config) && te_recipes_bytes(s.fp8_models, 1, nullptr) == 0 &&
               te_recipes_bytes(unbound, 2, &s.recipes_config) == te_recipes_bytes(nullptr, 0, &s.recipes_config) && te_recipes_bytes(s.fp8_models, -1, &s.recipes_config) == te_recipes_bytes(nullptr, 0, &s.recipes_config);
    });
}

} // namespace misuse

#endif
