// null_test.cc -- arguments that are null, zeroed, negative or too large, and instances that were moved, are refused with an error text.
#include <functional>

#include "harness.h"
#include "te/te.h"

TE_SEQUENTIAL(net, f32, (linear, fc, 8, 8), (bias, b, 8), (dropout, d, 0.5f))
TE_SEQUENTIAL(embed, f32, (embedding, e, 11, 8))
TE_SEQUENTIAL(head, f32, (tied_linear, h, 8, 11))
TE_SEQUENTIAL_DIMS(wide, f32, (linear, fc, TE_DIM(0), TE_DIM(1)))

namespace {
struct scene {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    net m;
    buffer params, grads, x, y, memory;
    te_batch batch;
    te_saved saved;
    scene() : params(ctx, net_param_bytes()), grads(ctx, net_grad_bytes()), x(ctx, 4 * 8 * 4), y(ctx, 4 * 8 * 4), memory(ctx, net_saved_bytes(4)) {
        memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved);
        batch.batch = 1, batch.seq = 4, saved.memory = memory.data(), saved.bytes = memory.bytes;
        REQUIRE(net_bind(&m, params.data(), (float *)grads.data(), ctx) == TE_OK);
        REQUIRE(te_context_reserve(ctx, net_workspace_bytes(&m, 4, ctx)) == TE_OK);
        source random(1);
        x.write(random.draw(32, TE_f32), TE_f32), params.write(random.draw(params.bytes / 4, TE_f32), TE_f32);
    }
    te_tensor as(const buffer &b) const { return te_matrix(b.data(), TE_f32, 4, 8); }
    te_status forward(const net &n) { return net_forward(as(y), &saved, as(x), &n, &batch, ctx); }
    te_status backward(const net &n) { return net_backward(as(y), as(y), &saved, &n, &batch, ctx); }
    bool says(const char *text) const { return std::string(te_last_error(ctx)).find(text) != std::string::npos; }
};
} // namespace

TEST_CASE("calls with a null context, and with one that was not created", "[null]") {
    te_context zero;
    memset(&zero, 0, sizeof zero);
    scene s;
    te_rng rng = {1, 2};
    void *p = nullptr;
    char bytes[16] = {0};
    std::vector<te_param> param(2);
    te_adamw opt;
    te_model *models[] = {&s.m.model};
    const te_adamw_config config = te_adamw_defaults(1e-3f);
    te_grad_norm norm;
    te_safetensors file;
    te_graph graph;
    te_graph_spec spec;
    memset(&opt, 0, sizeof opt), memset(&norm, 0, sizeof norm), memset(&file, 0, sizeof file), memset(&graph, 0, sizeof graph), memset(&spec, 0, sizeof spec);
    const std::vector<std::pair<const char *, std::function<te_status(te_context *)>>> calls = {
        {"te_allocate", [&](te_context *c) { return te_allocate(c, &p, 16); }},
        {"te_copy", [&](te_context *c) { return te_copy(c, bytes, bytes, 16); }},
        {"te_fill", [&](te_context *c) { return te_fill(c, bytes, 0, 16); }},
        {"te_synchronize", [&](te_context *c) { return te_synchronize(c); }},
        {"te_context_reserve", [&](te_context *c) { return te_context_reserve(c, 16); }},
        {"te_rng_get", [&](te_context *c) { return te_rng_get(&rng, c); }},
        {"te_rng_set", [&](te_context *c) { return te_rng_set(&rng, c); }},
        {"te_fill_normal", [&](te_context *c) { return te_fill_normal(bytes, TE_f32, 4, 0, 1, 1, 0, c); }},
        {"te_fill_normal", [&](te_context *c) { return te_param_normal(&s.m.fc.weight, 1, 1, 0, c); }},
        {"te_fill_normal", [&](te_context *c) { return te_model_randomize(&s.m.model, 1, 1, 0, c); }},
        {"net", [&](te_context *c) { return net_forward(s.as(s.y), &s.saved, s.as(s.x), &s.m, &s.batch, c); }},
        {"net", [&](te_context *c) { return net_infer(s.as(s.y), s.as(s.x), &s.m, &s.batch, c); }},
        {"net", [&](te_context *c) { return net_backward(s.as(s.y), s.as(s.x), &s.saved, &s.m, &s.batch, c); }},
        {"adamw", [&](te_context *c) { return te_adamw_init(&opt, bytes, 16, models, 1, &config, c); }},
        {"gradient norm", [&](te_context *c) { return te_grad_norm_init(&norm, bytes, 16, models, 1, c); }},
        {"", [&](te_context *c) { return te_adamw_step(&opt, c); }},
        {"", [&](te_context *c) { return te_grad_norm_run(&norm, c); }},
        {"", [&](te_context *c) { return te_safetensors_read(&file, nullptr, bytes, c); }},
        {"graph", [&](te_context *c) { return te_graph_capture(&graph, &spec, nullptr, c); }},
        {"te_gemm_save", [&](te_context *c) { return te_gemm_save("/nowhere/file", c); }},
        {"te_gemm_load", [&](te_context *c) { return te_gemm_load("/nowhere/file", c); }},
    };
    for (const auto &call : calls) {
        CAPTURE(call.first);
        CHECK(call.second(nullptr) == TE_ERROR_NULL);
        zero.error[0] = 0;
        CHECK(call.second(&zero) == TE_ERROR_NULL);
        if (*call.first) CHECK(std::string(te_last_error(&zero)).find(std::string(call.first) + ": the context ") == 0);
    }
    te_release(&zero, bytes), te_release(nullptr, bytes), te_context_destroy(&zero), te_context_destroy(nullptr);
    CHECK(net_workspace_bytes(&s.m, 4, nullptr) == 0); // the size depends on the device, so a context is needed
    CHECK(net_workspace_bytes(&s.m, 4, &zero) == 0);
    CHECK(net_saved_bytes(4) > 0);
    CHECK(te_gemm_report(nullptr, 0, &zero) == 0);
    te_gemm_print(stdout, &zero);
    CHECK(te_checkpoint_probe("/nowhere/file", nullptr) == TE_ERROR_NULL);
    CHECK(s.y.poisoned());
}

TEST_CASE("null pointers", "[null]") {
    scene s;
    te_rng rng;
    char bytes[16];
    CHECK(te_allocate(s.ctx, nullptr, 16) == TE_ERROR_NULL);
    CHECK(te_copy(s.ctx, nullptr, bytes, 16) == TE_ERROR_NULL);
    CHECK(te_copy(s.ctx, bytes, nullptr, 16) == TE_ERROR_NULL);
    CHECK(te_copy(s.ctx, nullptr, nullptr, 0) == TE_OK);
    CHECK(te_fill(s.ctx, nullptr, 0, 16) == TE_ERROR_NULL);
    CHECK(s.says("te_fill"));
    CHECK(te_rng_get(nullptr, s.ctx) == TE_ERROR_NULL);
    CHECK(te_rng_set(nullptr, s.ctx) == TE_ERROR_NULL);
    REQUIRE(te_rng_get(&rng, s.ctx) == TE_OK);
    CHECK(te_plan_forward(s.as(s.y), &s.saved, s.as(s.x), nullptr, &s.m.model, &s.batch, s.ctx) == TE_ERROR_NULL);
    CHECK(te_plan_backward(s.as(s.y), s.as(s.x), &s.saved, nullptr, &s.m.model, &s.batch, s.ctx) == TE_ERROR_NULL);
    CHECK(te_model_bind(&s.m.model, nullptr, nullptr, 0, bytes, nullptr, s.ctx) == TE_ERROR_NULL);
    CHECK(te_plan_saved_bytes(nullptr, 4) == 0);
    CHECK(te_plan_workspace_bytes(nullptr, &s.m.model, 4, s.ctx) == 0);
    CHECK(te_plan_param_bytes(nullptr) == 0);
    CHECK(te_plan_grad_bytes(nullptr) == 0);
    CHECK(net_workspace_bytes(nullptr, 4, s.ctx) == 0);
    te_plan_print(nullptr, net_plan()), te_plan_print(stdout, nullptr);
    const int64_t dims[2] = {8, 8};
    CHECK(wide_set_dims(nullptr, dims, 2, s.ctx) == TE_ERROR_NULL);
    CHECK(wide_param_bytes(nullptr) == 0);
    CHECK(wide_workspace_bytes(nullptr, 4, s.ctx) == 0);
    REQUIRE(s.forward(s.m) == TE_OK);
    s.saved.memory = nullptr;
    CHECK(s.backward(s.m) == TE_ERROR_STATE);
    CHECK(s.says("saved.memory"));
    buffer other(s.ctx, s.memory.bytes);
    s.saved.memory = other.data();
    CHECK(s.backward(s.m) == TE_ERROR_STATE);
    s.saved.memory = s.memory.data();
    CHECK(s.backward(s.m) == TE_OK);
}

TEST_CASE("impossible numbers of rows and parameters", "[null]") {
    scene s;
    for (const int64_t rows : {INT64_C(-1), INT64_MIN, INT64_C(1) << 60, INT64_MAX, INT64_C(1) << 31}) {
        CAPTURE(rows);
        CHECK(net_saved_bytes(rows) == 0);
        CHECK(net_workspace_bytes(&s.m, rows, s.ctx) == 0);
        CHECK(s.says(std::to_string(rows).c_str()));
    }
    CHECK(net_saved_bytes(INT32_MAX / 2) > 0);
    te_model m;
    std::vector<te_param> param(8);
    for (const int count : {0, 1, 3, -1, 8}) { // the list has two parameters
        CHECK(te_model_bind(&m, net_plan(), param.data(), count, s.params.data(), nullptr, s.ctx) == TE_ERROR_SHAPE);
        CHECK(s.says("the list has 2"));
    }
    CHECK(te_model_bind(&m, net_plan(), nullptr, 2, s.params.data(), nullptr, s.ctx) == TE_ERROR_SHAPE);
    REQUIRE(te_model_bind(&m, net_plan(), param.data(), 2, s.params.data(), nullptr, s.ctx) == TE_OK);
    const te_model copy = m; // a model from te_model_bind may be copied, because its parameters lie outside of it
    CHECK(te_plan_forward(s.as(s.y), &s.saved, s.as(s.x), net_plan(), &copy, &s.batch, s.ctx) == TE_OK);
}

TEST_CASE("an instance that was copied, or that was bound anew while others refer to it", "[null]") {
    scene s;
    net copy = s.m;
    CHECK(s.forward(copy) == TE_ERROR_STATE);
    CHECK(s.says("net: the instance was copied since it was bound"));
    CHECK(net_workspace_bytes(&copy, 4, s.ctx) == 0);
    CHECK(te_model_randomize(&copy.model, 1, 1, 0, s.ctx) == TE_ERROR_STATE);
    te_adamw opt;
    te_model *wrong[] = {&copy.model}, *models[] = {&s.m.model};
    const te_adamw_config config = te_adamw_defaults(1e-3f);
    buffer optimizer(s.ctx, te_adamw_bytes(models, 1));
    CHECK(te_adamw_init(&opt, optimizer.data(), optimizer.bytes, wrong, 1, &config, s.ctx) == TE_ERROR_STATE);
    REQUIRE(te_adamw_init(&opt, optimizer.data(), optimizer.bytes, models, 1, &config, s.ctx) == TE_OK);
    REQUIRE(s.forward(s.m) == TE_OK);
    REQUIRE(s.backward(s.m) == TE_OK);
    REQUIRE(te_adamw_step(&opt, s.ctx) == TE_OK);
    REQUIRE(net_bind(&copy, s.params.data(), (float *)s.grads.data(), s.ctx) == TE_OK); // binds the copy
    CHECK(s.forward(copy) == TE_OK);
    // binding to the same memory keeps the optimizer valid
    REQUIRE(net_bind(&s.m, s.params.data(), (float *)s.grads.data(), s.ctx) == TE_OK);
    CHECK(te_adamw_step(&opt, s.ctx) == TE_OK);
    buffer params(s.ctx, s.params.bytes);
    REQUIRE(net_bind(&s.m, params.data(), (float *)s.grads.data(), s.ctx) == TE_OK);
    CHECK(te_adamw_step(&opt, s.ctx) == TE_ERROR_STATE);
    CHECK(s.says("bound again"));

    embed e;
    head h;
    buffer table(s.ctx, embed_param_bytes()), other(s.ctx, embed_param_bytes()), grad(s.ctx, embed_grad_bytes()), logits(s.ctx, 4 * 11 * 4);
    const te_tensor to = te_matrix(logits.data(), TE_f32, 4, 11);
    REQUIRE(embed_bind(&e, table.data(), (float *)grad.data(), s.ctx) == TE_OK);
    REQUIRE(head_bind(&h, table.data(), (float *)grad.data(), s.ctx) == TE_OK);
    REQUIRE(te_tie(&h.h.weight, &e.e.weight, s.ctx) == TE_OK);
    CHECK(head_infer(to, s.as(s.x), &h, &s.batch, s.ctx) == TE_OK);
    // to other memory; to the same, which also ends the tie, because it resets the order of gradients
    for (const buffer *b : {&other, &table}) {
        REQUIRE(embed_bind(&e, b->data(), (float *)grad.data(), s.ctx) == TE_OK);
        CHECK(head_infer(to, s.as(s.x), &h, &s.batch, s.ctx) == TE_ERROR_STATE);
        CHECK(s.says("the owner of h.weight was bound again"));
        REQUIRE(te_tie(&h.h.weight, &e.e.weight, s.ctx) == TE_OK);
        CHECK(head_infer(to, s.as(s.x), &h, &s.batch, s.ctx) == TE_OK);
    }
}
