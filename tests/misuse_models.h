// misuse_models.h -- entries of misuse.h for a model's forward, inference and backward: every argument, wrong in every way.
#ifndef TESTS_MISUSE_MODELS_H
#define TESTS_MISUSE_MODELS_H

#include "misuse.h"

TE_SEQUENTIAL(misused, bf16, (input, side, 64), (layernorm, ln, 64), (linear, fc, 64, 64), (bias, fc_b, 64), (dropout, drop, 0.1f), (add, side), (output, mid),
              (linear, out, 64, 40))
TE_SEQUENTIAL(another, bf16, (linear, fc, 64, 40))

namespace misuse {

// A valid call of each pass, of which an entry changes one argument.
struct model_scene {
    enum { BATCH = 2, SEQ = 4, ROWS = BATCH * SEQ, TENSOR_BYTES = ROWS * 80 * 4 };
    te_context context;
    te_context *ctx = &context;
    arena memory;
    misused m;
    char *params, *grads;
    struct arguments {
        te_tensor x, y, dx, dy;
        te_edge edge[2];
        te_batch batch;
        te_saved saved;
        void *workspace;
        size_t workspace_bytes;
        const misused *m;
        te_saved *saved_at;
        const te_batch *batch_at;
        te_context *ctx;
    } now, valid;

    static te_context *made(te_context *c) {
        if (te_context_create(c, 0, 5) != TE_OK) throw std::runtime_error(c->error);
        return c;
    }
    model_scene() : memory(made(&context), 1 << 20) {
        params = memory.take(misused_param_bytes()), grads = memory.take(misused_grad_bytes());
        memset(&m, 0, sizeof m), memset(&now, 0, sizeof now);
        NEED(misused_bind(&m, params, (float *)(void *)grads, ctx), ctx);
        NEED(te_model_randomize(&m.model, 0.1f, 1, 0, ctx), ctx);
        now.x = filled(64), now.y = tensor(40), now.dx = tensor(64), now.dy = filled(40);
        now.edge[0].name = "side", now.edge[0].value = filled(64), now.edge[0].grad = tensor(64);
        now.edge[1].name = "mid", now.edge[1].value = tensor(64), now.edge[1].grad = filled(64);
        now.batch.batch = BATCH, now.batch.seq = SEQ, now.batch.edge_count = 2, now.batch.edges = now.edge;
        now.saved.bytes = misused_saved_bytes(ROWS), now.saved.memory = memory.take(now.saved.bytes);
        now.workspace_bytes = misused_workspace_bytes(&m, ROWS, ctx), now.workspace = memory.take(now.workspace_bytes);
        now.m = &m, now.saved_at = &now.saved, now.batch_at = &now.batch, now.ctx = ctx;
        NEED(forward(), ctx);
        valid = now;
    }
    ~model_scene() {
        ctx->workspace = nullptr, ctx->workspace_bytes = 0;
        te_release(ctx, memory.base), memory.base = nullptr;
        te_context_destroy(ctx);
    }
    te_tensor tensor(int cols) { return te_matrix(memory.take(TENSOR_BYTES), TE_bf16, ROWS, cols); }
    te_tensor filled(int cols) {
        const te_tensor t = tensor(cols);
        NEED(te_fill_normal(t.data, TE_bf16, ROWS * cols, 0, 1, 7, (uint32_t)memory.used, ctx), ctx);
        return t;
    }
    void restore() { now = valid; }
    bytes state() {
        bytes all = memory.content();
        append(all, &now.saved.plan, sizeof now.saved - offsetof(te_saved, plan));
        append_instance(all, m), append_rng(all, ctx);
        return all;
    }
    te_status set(te_status status) { return status; }
    void place() { ctx->workspace = now.workspace, ctx->workspace_bytes = now.workspace_bytes; }
    te_status forward() { return place(), misused_forward(now.y, now.saved_at, now.x, now.m, now.batch_at, now.ctx); }
    te_status infer() { return place(), misused_infer(now.y, now.x, now.m, now.batch_at, now.ctx); }
    te_status backward() { return place(), misused_backward(now.dx, now.dy, now.saved_at, now.m, now.batch_at, now.ctx); }
    te_status pass(int which) { return which == 0 ? forward() : which == 1 ? infer() : backward(); }
    bool works() { return forward() == TE_OK && infer() == TE_OK && backward() == TE_OK && te_synchronize(ctx) == TE_OK; }
};

typedef std::function<void(model_scene::arguments &)> change_function;
typedef std::function<te_tensor &(model_scene::arguments &)> pick;
static const char *const pass_names[] = {"forward", "infer", "backward"};

// passes: a bit for each of forward, inference and backward.
inline void refuse_changed(table &t, int passes, const std::string &name, te_status status, const std::string &word, const change_function &change) {
    for (int p = 0; p < 3; p++)
        if (passes >> p & 1)
            refuse<model_scene>(t, std::string(pass_names[p]) + ": " + name, status, word, [=](model_scene &s) {
                change(s.now);
                const te_status got = s.pass(p);
                return got;
            });
}

// Every detectable mistake in a tensor argument.
inline void wrong_tensor(table &t, int passes, const std::string &name, bool may_be_null, const pick &of) {
    const auto each = [&](const std::string &how, te_status status, const std::string &word, const std::function<void(te_tensor &)> &change) {
        refuse_changed(t, passes, name + " " + how, status, word, [=](model_scene::arguments &g) { change(of(g)); });
    };
    if (!may_be_null) each("is null", TE_ERROR_NULL, name + " is null", [](te_tensor &v) { v.data = nullptr; });
    for (int dtype : {(int)TE_f32, (int)TE_f16, (int)TE_e4m3, (int)TE_e5m2, (int)TE_DTYPE_COUNT, 7})
        each("has dtype " + std::to_string(dtype), TE_ERROR_DTYPE, name + " is " + te_dtype_name((te_dtype)dtype), [=](te_tensor &v) { v.dtype = (te_dtype)dtype; });
    for (int64_t rows : {INT64_C(0), INT64_C(-1), INT64_C(7), INT64_C(9), INT64_C(1) << 32 | 8, INT64_MAX, INT64_MIN})
        each(std::to_string(rows) + " rows", TE_ERROR_SHAPE, name + " has " + std::to_string(rows) + " rows", [=](te_tensor &v) { v.rows = rows; });
    for (int64_t by : {INT64_C(-1), INT64_C(1), INT64_C(1) << 32, -(INT64_C(1) << 32)})
        each("columns and " + std::to_string(by), TE_ERROR_SHAPE, name + " has ", [=](te_tensor &v) { v.cols += by; });
    each("0 columns", TE_ERROR_SHAPE, name + " has 0 columns", [](te_tensor &v) { v.cols = 0; });
    each("transposed", TE_ERROR_SHAPE, name + " has ", [](te_tensor &v) { std::swap(v.rows, v.cols); });
    for (int by : {1, 2, 4, 8})
        each("lies " + std::to_string(by) + " bytes off", TE_ERROR_ALIGNMENT, name + " lies at", [=](te_tensor &v) { v.data = (char *)v.data + by; });
}

// Every pair of tensors of which a pass writes at least one, in the same memory.
inline void wrong_places(table &t) {
    struct place {
        const char *name;
        int passes, written; // bits of the passes that use it, and of those that write it
        std::function<char *(model_scene &)> at;
        std::function<void(model_scene &, char *)> move; // null: it cannot be moved
    };
    const auto tensor = [](const pick &of) { return [=](model_scene &s) { return (char *)of(s.now).data; }; };
    const auto mover = [](const pick &of) { return [=](model_scene &s, char *p) { of(s.now).data = p; }; };
    const auto one = [&](const char *name, int passes, int written, const pick &of) { return place{name, passes, written, tensor(of), mover(of)}; };
    const std::vector<place> all = {
        one("x", 3, 0, [](model_scene::arguments &g) -> te_tensor & { return g.x; }), one("y", 3, 3, [](model_scene::arguments &g) -> te_tensor & { return g.y; }),
        one("dx", 4, 4, [](model_scene::arguments &g) -> te_tensor & { return g.dx; }), one("dy", 4, 0, [](model_scene::arguments &g) -> te_tensor & { return g.dy; }),
        one("side", 3, 0, [](model_scene::arguments &g) -> te_tensor & { return g.edge[0].value; }), one("mid", 3, 3, [](model_scene::arguments &g) -> te_tensor & { return g.edge[1].value; }),
        one("side's gradient", 4, 4, [](model_scene::arguments &g) -> te_tensor & { return g.edge[0].grad; }), one("mid's gradient", 4, 0, [](model_scene::arguments &g) -> te_tensor & { return g.edge[1].grad; }),
        {"the parameters", 7, 0, [](model_scene &s) { return s.params; }, nullptr},
        {"the gradients", 4, 4, [](model_scene &s) { return s.grads; }, nullptr},
        {"saved.memory", 5, 1, [](model_scene &s) { return (char *)s.now.saved.memory; }, nullptr},
        {"the workspace", 7, 7, [](model_scene &s) { return (char *)s.now.workspace; }, [](model_scene &s, char *p) { s.now.workspace = p; }},
    };
    for (const place &a : all)
        for (const place &b : all)
            for (int p = 0; p < 3; p++) {
                if (&a == &b || !a.move || !(a.passes & b.passes & 1 << p) || !((a.written | b.written) & 1 << p) || (b.move && &b < &a)) continue;
                refuse<model_scene>(t, std::string(pass_names[p]) + ": " + a.name + " where " + b.name + " is", TE_ERROR_VALUE, "overlaps", [=](model_scene &s) {
                    a.move(s, b.at(s));
                    return s.pass(p);
                });
            }
}

inline void wrong_batches(table &t) {
    const auto batch = [&](const std::string &name, te_status status, const std::string &word, const change_function &change) { refuse_changed(t, 7, name, status, word, change); };
    batch("no batch", TE_ERROR_NULL, "batch is null", [](model_scene::arguments &g) { g.batch_at = nullptr; });
    for (int n : {0, -1, INT32_MIN}) {
        batch("batch " + std::to_string(n), TE_ERROR_SHAPE, "must be positive", [=](model_scene::arguments &g) { g.batch.batch = n; });
        batch("seq " + std::to_string(n), TE_ERROR_SHAPE, "must be positive", [=](model_scene::arguments &g) { g.batch.seq = n; });
    }
    batch("batch INT32_MAX", TE_ERROR_OVERFLOW, "too large", [](model_scene::arguments &g) { g.batch.batch = INT32_MAX; });
    batch("batch and seq 65536", TE_ERROR_OVERFLOW, "too large", [](model_scene::arguments &g) { g.batch.batch = g.batch.seq = 65536; });
    batch("position -1", TE_ERROR_VALUE, "position -1", [](model_scene::arguments &g) { g.batch.position = -1; });
    batch("position INT32_MAX", TE_ERROR_VALUE, "position", [](model_scene::arguments &g) { g.batch.position = INT32_MAX; });
    batch("no edges, but a count", TE_ERROR_NULL, "edges is null", [](model_scene::arguments &g) { g.batch.edges = nullptr; });
    batch("-1 edges", TE_ERROR_NULL, "edge", [](model_scene::arguments &g) { g.batch.edge_count = -1; });
    batch("no edge at all", TE_ERROR_NULL, "no edge named", [](model_scene::arguments &g) { g.batch.edge_count = 0, g.batch.edges = nullptr; });
    batch("one edge missing", TE_ERROR_NULL, "no edge named mid", [](model_scene::arguments &g) { g.batch.edge_count = 1; });
    batch("an edge without a name", TE_ERROR_NULL, "no edge named side", [](model_scene::arguments &g) { g.edge[0].name = nullptr; });
    batch("an edge of another name", TE_ERROR_NULL, "no edge named mid", [](model_scene::arguments &g) { g.edge[1].name = "MID"; });
    batch("two edges of one name", TE_ERROR_VALUE, "twice", [](model_scene::arguments &g) {
        static te_edge three[3];
        three[0] = g.edge[0], three[1] = g.edge[1], three[2] = g.edge[1];
        g.batch.edges = three, g.batch.edge_count = 3;
    });
    // Valid: an edge that belongs to another list with the same batch may be anywhere, here in the memory of x, dx and the workspace.
    for (int p = 0; p < 3; p++)
        fine<model_scene>(t, std::string(pass_names[p]) + ": an edge of another list", [=](model_scene &s) {
            te_edge three[3] = {{"elsewhere", s.now.x, s.now.dx}, s.now.edge[0], s.now.edge[1]};
            s.now.batch.edges = three, s.now.batch.edge_count = 3;
            return s.pass(p) == TE_OK;
        });
}

inline void wrong_instances(table &t) {
    refuse_changed(t, 7, "no instance", TE_ERROR_NULL, "instance", [](model_scene::arguments &g) { g.m = nullptr; });
    const auto instance = [&](const std::string &name, te_status status, const std::string &word, void (*change)(misused &, const misused &)) {
        refuse_changed(t, 7, name, status, word, [=](model_scene::arguments &g) {
            static misused m;
            memset(&m, 0, sizeof m);
            change(m, *g.m);
            g.m = &m;
        });
    };
    instance("an instance that was never bound", TE_ERROR_STATE, "has not been bound", [](misused &, const misused &) {});
    instance("an instance that was copied", TE_ERROR_STATE, "copied", [](misused &m, const misused &of) { m = of; });
    instance("an instance full of 0xff", TE_ERROR_STATE, "has not been bound", [](misused &m, const misused &) { memset(&m, 0xff, sizeof m); });
    instance("an instance of another list", TE_ERROR_STATE, "has not been bound", [](misused &m, const misused &of) { m = of, m.model.plan = another_plan(); });
    refuse<model_scene>(t, "backward: bound without gradients", TE_ERROR_STATE, "without gradients", [](model_scene &s) {
        NEED(misused_bind(&s.m, s.params, nullptr, s.ctx), s.ctx);
        s.now.dx = te_none(), s.now.edge[0].grad = te_none();
        const te_status status = s.backward();
        NEED(misused_bind(&s.m, s.params, (float *)(void *)s.grads, s.ctx), s.ctx);
        return status;
    });
    refuse<model_scene>(t, "backward: a parameter that has no memory for its gradient any more", TE_ERROR_STATE, "fc.weight is no longer frozen", [](model_scene &s) {
        NEED(te_freeze(&s.m.model, "fc", nullptr, s.ctx), s.ctx);
        NEED(te_bind_trained_grads(&s.m.model, (float *)(void *)s.grads, s.ctx), s.ctx);
        NEED(te_unfreeze(&s.m.model, "fc", nullptr, s.ctx), s.ctx);
        const te_status status = s.backward();
        NEED(misused_bind(&s.m, s.params, (float *)(void *)s.grads, s.ctx), s.ctx);
        return status;
    });
    fine<model_scene>(t, "backward: bound without gradients, for dx alone", [](model_scene &s) {
        NEED(misused_bind(&s.m, s.params, nullptr, s.ctx), s.ctx);
        const te_status status = s.backward();
        NEED(misused_bind(&s.m, s.params, (float *)(void *)s.grads, s.ctx), s.ctx);
        return status == TE_OK;
    });
}

inline void wrong_saved(table &t) {
    refuse_changed(t, 1, "no saved", TE_ERROR_NULL, "misused_infer needs none", [](model_scene::arguments &g) { g.saved_at = nullptr; });
    refuse_changed(t, 4, "no saved", TE_ERROR_NULL, "saved is null", [](model_scene::arguments &g) { g.saved_at = nullptr; });
    refuse_changed(t, 1, "saved without memory", TE_ERROR_NULL, "saved.memory is null", [](model_scene::arguments &g) { g.saved.memory = nullptr; });
    refuse_changed(t, 4, "saved without memory", TE_ERROR_STATE, "saved.memory", [](model_scene::arguments &g) { g.saved.memory = nullptr; });
    for (int by : {1, 16, 128}) {
        refuse_changed(t, 1, "saved.memory " + std::to_string(by) + " off", TE_ERROR_ALIGNMENT, "saved.memory must be aligned", [=](model_scene::arguments &g) { g.saved.memory = (char *)g.saved.memory + by; });
        refuse_changed(t, 4, "saved.memory " + std::to_string(by) + " off", TE_ERROR_STATE, "saved.memory", [=](model_scene::arguments &g) { g.saved.memory = (char *)g.saved.memory + by; });
    }
    refuse_changed(t, 1, "saved of 0 bytes", TE_ERROR_MEMORY, "saved.memory", [](model_scene::arguments &g) { g.saved.bytes = 0; });
    refuse_changed(t, 1, "saved a byte short", TE_ERROR_MEMORY, "saved.memory", [](model_scene::arguments &g) { g.saved.bytes--; });
    refuse_changed(t, 4, "saved of no forward", TE_ERROR_STATE, "no forward", [](model_scene::arguments &g) { g.saved.plan = nullptr; });
    refuse_changed(t, 4, "saved of another list", TE_ERROR_STATE, "no forward", [](model_scene::arguments &g) { g.saved.plan = another_plan(); });
    refuse_changed(t, 4, "another batch than the forward's", TE_ERROR_SHAPE, "the forward had batch 2", [](model_scene::arguments &g) { g.batch.batch = 4, g.batch.seq = 2; });
    refuse_changed(t, 4, "another position than the forward's", TE_ERROR_SHAPE, "position 0", [](model_scene::arguments &g) { g.batch.position = 1; });
    refuse_changed(t, 7, "no workspace", TE_ERROR_MEMORY, "te_context_reserve", [](model_scene::arguments &g) { g.workspace = nullptr, g.workspace_bytes = 0; });
    refuse_changed(t, 7, "a workspace of 255 bytes", TE_ERROR_MEMORY, "te_context_reserve", [](model_scene::arguments &g) { g.workspace_bytes = 255; });
    refuse_changed(t, 7, "no workspace, but its size", TE_ERROR_NULL, "workspace", [](model_scene::arguments &g) { g.workspace = nullptr; });
    for (int by : {1, 16, 128}) refuse_changed(t, 7, "a workspace " + std::to_string(by) + " off", TE_ERROR_ALIGNMENT, "the workspace must be aligned", [=](model_scene::arguments &g) { g.workspace = (char *)g.workspace + by; });
}

static te_context elsewhere;
// The error text is in the context of the call, if it had one.
inline void wrong_contexts(table &t) {
    const auto says = [](te_status status, const char *word) {
        if (!strstr(elsewhere.error, word)) throw std::runtime_error(std::string("the text does not say '") + word + "': " + elsewhere.error);
        return status;
    };
    for (int p = 0; p < 3; p++) {
        const std::string pass = std::string(pass_names[p]) + ": ";
        refuse<model_scene>(t, pass + "no context", TE_ERROR_NULL, "", [=](model_scene &s) { return s.now.ctx = nullptr, s.pass(p); });
        refuse<model_scene>(t, pass + "a context of zeros", TE_ERROR_NULL, "", [=](model_scene &s) { return memset(&elsewhere, 0, sizeof elsewhere), s.now.ctx = &elsewhere, says(s.pass(p), "has not been created"); });
        refuse<model_scene>(t, pass + "a context that was destroyed", TE_ERROR_NULL, "", [=](model_scene &s) {
            NEED(te_context_create(&elsewhere, 0, 1), &elsewhere);
            te_context_destroy(&elsewhere);
            return s.now.ctx = &elsewhere, says(s.pass(p), "has not been created");
        });
        refuse<model_scene>(t, pass + "a context of the other target", TE_ERROR_DEVICE, "", [=](model_scene &s) {
            static te_target target;
            target = *s.ctx->target, target.name = TE_CUDA ? "host" : "cuda", elsewhere = *s.ctx, elsewhere.target = &target, elsewhere.at = &elsewhere;
            return s.now.ctx = &elsewhere, says(s.pass(p), "the context is of the");
        });
        refuse<model_scene>(t, pass + "a context that was copied", TE_ERROR_STATE, "", [=](model_scene &s) { return elsewhere = *s.ctx, s.now.ctx = &elsewhere, says(s.pass(p), "copy"); });
    }
}

inline void models(table &t) {
    wrong_tensor(t, 3, "x", false, [](model_scene::arguments &g) -> te_tensor & { return g.x; });
    wrong_tensor(t, 3, "y", false, [](model_scene::arguments &g) -> te_tensor & { return g.y; });
    wrong_tensor(t, 3, "side", false, [](model_scene::arguments &g) -> te_tensor & { return g.edge[0].value; });
    wrong_tensor(t, 3, "mid", false, [](model_scene::arguments &g) -> te_tensor & { return g.edge[1].value; });
    wrong_tensor(t, 4, "dx", true, [](model_scene::arguments &g) -> te_tensor & { return g.dx; });
    wrong_tensor(t, 4, "dy", false, [](model_scene::arguments &g) -> te_tensor & { return g.dy; });
    wrong_tensor(t, 4, "side", true, [](model_scene::arguments &g) -> te_tensor & { return g.edge[0].grad; });
    wrong_tensor(t, 4, "mid", true, [](model_scene::arguments &g) -> te_tensor & { return g.edge[1].grad; });
    wrong_places(t), wrong_batches(t), wrong_instances(t), wrong_saved(t), wrong_contexts(t);
    fine<model_scene>(t, "backward: dx and the edges' gradients are not wanted", [](model_scene &s) {
        s.now.dx = te_none(), s.now.edge[0].grad = te_none(), s.now.edge[1].grad = te_none();
        return s.backward() == TE_OK;
    });
}

} // namespace misuse

#endif
