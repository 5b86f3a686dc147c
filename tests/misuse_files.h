// misuse_files.h -- entries of misuse.h for safetensors, checkpoints and tuning files, and for a batch's tokens, positions and labels.
// Paths that are folders, links or devices are in misuse_files_test.cc.
#ifndef TESTS_MISUSE_FILES_H
#define TESTS_MISUSE_FILES_H

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "misuse_calls.h"

TE_SEQUENTIAL(words, f32, (embedding, e, 11, 8), (positions, p, 16, 8), (linear, h, 8, 11), (cross_entropy, ce, 11))

namespace misuse {

// A checkpoint of `small`, open, and tensors that could be loaded from it.
struct file_scene : call_scene {
    std::string folder, path;
    te_safetensors file;
    te_named_model named;
    te_checkpoint all;
    te_safetensor want[2];
    file_scene() {
        const char *base = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
        folder = std::string(base) + "/te_misuse_XXXXXX";
        if (!mkdtemp(&folder[0])) throw std::runtime_error("no folder");
        path = folder + "/file";
        memset(&all, 0, sizeof all), memset(&file, 0, sizeof file);
        named.name = "m", named.model = &m.model;
        all.models = &named, all.count = 1, all.optimizer = &opt, all.random = 1;
        NEED(te_checkpoint_save(path.c_str(), &all, ctx), ctx);
        NEED(te_safetensors_open(&file, path.c_str(), ctx), ctx);
        want[0] = te_safetensor_matrix("m.fc.weight", TE_f32, 8, 8, a), want[1] = te_safetensor_matrix("m.b.bias", TE_f32, 1, 8, b);
    }
    ~file_scene() {
        te_safetensors_close(&file);
        (void)unlink(path.c_str()), (void)rmdir(folder.c_str());
    }
    bytes state() {
        bytes all_ = call_scene::state();
        std::ostringstream text;
        text << std::ifstream(path, std::ios::binary).rdbuf();
        append(all_, text.str().data(), text.str().size());
        return all_;
    }
    bool works() {
        te_safetensors opened;
        memset(&opened, 0, sizeof opened);
        if (te_safetensors_open(&opened, path.c_str(), ctx) != TE_OK) return false;
        const te_status status = te_checkpoint_load(&valid_checkpoint(), &opened, ctx);
        te_safetensors_close(&opened);
        return status == TE_OK;
    }
    const te_checkpoint &valid_checkpoint() {
        named.name = "m", named.model = &m.model;
        memset(&all, 0, sizeof all);
        all.models = &named, all.count = 1, all.optimizer = &opt, all.random = 1;
        return all;
    }
};
typedef file_scene fs;

inline void file_calls(table &t) {
    const auto write = [](fs &s, const te_safetensor *e, int n, const te_safetensors_pair *p, int pairs) { return te_safetensors_write(s.path.c_str(), e, n, p, pairs, s.ctx); };
    for (int sealed = 0; sealed < 2; sealed++) {
        const std::string who = sealed ? "te_safetensors_write_sealed: " : "te_safetensors_write: ";
        const auto call = sealed ? te_safetensors_write_sealed : te_safetensors_write;
        refuse<fs>(t, who + "no path", TE_ERROR_NULL, "path", [=](fs &s) { return call(nullptr, s.want, 2, nullptr, 0, s.ctx); });
        refuse<fs>(t, who + "no context", TE_ERROR_NULL, "", [=](fs &s) { return call(s.path.c_str(), s.want, 2, nullptr, 0, nullptr); });
        refuse<fs>(t, who + "an empty path", TE_ERROR_IO, "", [=](fs &s) { return call("", s.want, 2, nullptr, 0, s.ctx); });
        refuse<fs>(t, who + "no such folder", TE_ERROR_IO, "cannot", [=](fs &s) { return call((s.folder + "/nowhere/file").c_str(), s.want, 2, nullptr, 0, s.ctx); });
        refuse<fs>(t, who + "a folder", TE_ERROR_IO, "regular file", [=](fs &s) { return call(s.folder.c_str(), s.want, 2, nullptr, 0, s.ctx); });
        refuse<fs>(t, who + "no tensors, but a count", TE_ERROR_NULL, "null", [=](fs &s) { return call(s.path.c_str(), nullptr, 2, nullptr, 0, s.ctx); });
        refuse<fs>(t, who + "-1 tensors", TE_ERROR_SHAPE, "-1", [=](fs &s) { return call(s.path.c_str(), s.want, -1, nullptr, 0, s.ctx); });
        refuse<fs>(t, who + "no metadata, but a count", TE_ERROR_NULL, "null", [=](fs &s) { return call(s.path.c_str(), s.want, 2, nullptr, 1, s.ctx); });
        refuse<fs>(t, who + "-1 metadata", TE_ERROR_SHAPE, "-1", [=](fs &s) { return call(s.path.c_str(), s.want, 2, nullptr, -1, s.ctx); });
    }
    struct value { const char *name; te_status status; std::function<void(te_safetensor &)> set; };
    const std::vector<value> entries = {
        {"no name", TE_ERROR_NULL, [](te_safetensor &e) { e.name = nullptr; }}, {"no data", TE_ERROR_NULL, [](te_safetensor &e) { e.data = nullptr; }}, {"the name of the other", TE_ERROR_VALUE, [](te_safetensor &e) { e.name = "m.b.bias"; }},
        {"the name __metadata__", TE_ERROR_VALUE, [](te_safetensor &e) { e.name = "__metadata__"; }}, {"a name that is no UTF-8", TE_ERROR_VALUE, [](te_safetensor &e) { e.name = "\xff"; }}, {"dtype 7", TE_ERROR_DTYPE, [](te_safetensor &e) { e.dtype = TE_SAFETENSORS_DTYPE_COUNT; }},
        {"rank -1", TE_ERROR_SHAPE, [](te_safetensor &e) { e.rank = -1; }}, {"rank 99", TE_ERROR_SHAPE, [](te_safetensor &e) { e.rank = 99; }},
        {"a size of -1", TE_ERROR_SHAPE, [](te_safetensor &e) { e.shape[0] = -1; }}, {"a size of 2^62", TE_ERROR_SHAPE, [](te_safetensor &e) { e.shape[0] = INT64_C(1) << 62; }}, {"a byte more than its shape", TE_ERROR_SHAPE, [](te_safetensor &e) { e.bytes++; }}};
    for (const value &v : entries) {
        refuse<fs>(t, std::string("te_safetensors_write: ") + v.name, v.status, "", [=](fs &s) { return v.set(s.want[0]), write(s, s.want, 2, nullptr, 0); });
        const bool unknown = strstr(v.name, "name") && !strstr(v.name, "no name") && !strstr(v.name, "other");
        const te_status load = unknown ? TE_ERROR_FORMAT : TE_ERROR_VALUE;
        if (!strstr(v.name, "other")) refuse<fs>(t, std::string("te_safetensors_load: ") + v.name, load, "", [=](fs &s) { return v.set(s.want[0]), te_safetensors_load(&s.file, s.want, 2, 0, s.ctx); });
    }
    static const te_safetensors_pair pairs[] = {{nullptr, "x"}, {"x", nullptr}, {"\xff", "x"}, {"x", "\xff"}, {"te.x", "x"}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) refuse<fs>(t, "te_safetensors_write: metadata " + std::to_string(i), TE_ERROR_VALUE, "metadata", [=](fs &s) { return write(s, s.want, 2, &pairs[i], 1); });
    static const te_safetensors_pair twice[] = {{"x", "1"}, {"x", "2"}};
    refuse<fs>(t, "te_safetensors_write: a key twice", TE_ERROR_VALUE, "two metadata keys", [=](fs &s) { return write(s, s.want, 2, twice, 2); });

    static te_safetensors f;
    refuse<fs>(t, "te_safetensors_open: no struct", TE_ERROR_NULL, "struct", [](fs &s) { return te_safetensors_open(nullptr, s.path.c_str(), s.ctx); });
    refuse<fs>(t, "te_safetensors_open: no path", TE_ERROR_NULL, "path", [](fs &s) { return te_safetensors_open(&f, nullptr, s.ctx); });
    refuse<fs>(t, "te_safetensors_open: no file", TE_ERROR_IO, "cannot", [](fs &s) { return te_safetensors_open(&f, (s.folder + "/nowhere").c_str(), s.ctx); });
    refuse<fs>(t, "te_safetensors_open: a folder", TE_ERROR_IO, "regular file", [](fs &s) { return te_safetensors_open(&f, s.folder.c_str(), s.ctx); });
    refuse<fs>(t, "te_safetensors_open_memory: no memory", TE_ERROR_NULL, "memory", [](fs &s) { return te_safetensors_open_memory(&f, nullptr, 100, s.ctx); });
    refuse<fs>(t, "te_safetensors_open_memory: no struct", TE_ERROR_NULL, "struct", [](fs &s) { return te_safetensors_open_memory(nullptr, "x", 1, s.ctx); });
    for (size_t n : {0, 7, 8, 9}) refuse<fs>(t, "te_safetensors_open_memory: " + std::to_string(n) + " bytes", TE_ERROR_FORMAT, "", [=](fs &s) { return te_safetensors_open_memory(&f, "\2\0\0\0\0\0\0\0{}", n, s.ctx); });
    refuse<fs>(t, "te_safetensors_verify: null", TE_ERROR_NULL, "not open", [](fs &s) { return te_safetensors_verify(nullptr, s.ctx); });
    refuse<fs>(t, "te_safetensors_verify: not open", TE_ERROR_NULL, "not open", [](fs &s) { return memset(&f, 0, sizeof f), te_safetensors_verify(&f, s.ctx); });
    refuse<fs>(t, "te_safetensors_load: null", TE_ERROR_NULL, "not open", [](fs &s) { return te_safetensors_load(nullptr, s.want, 2, 0, s.ctx); });
    refuse<fs>(t, "te_safetensors_load: closed", TE_ERROR_NULL, "not open", [](fs &s) { return te_safetensors_close(&s.file), te_safetensors_load(&s.file, s.want, 2, 0, s.ctx); });
    refuse<fs>(t, "te_safetensors_load: no list", TE_ERROR_NULL, "list", [](fs &s) { return te_safetensors_load(&s.file, nullptr, 2, 0, s.ctx); });
    refuse<fs>(t, "te_safetensors_load: -1 tensors", TE_ERROR_SHAPE, "-1", [](fs &s) { return te_safetensors_load(&s.file, s.want, -1, 0, s.ctx); });
    refuse<fs>(t, "te_safetensors_load: others than these", TE_ERROR_FORMAT, "nothing here is called", [](fs &s) { return te_safetensors_load(&s.file, s.want, 2, 1, s.ctx); });
    refuse<fs>(t, "te_safetensors_load: one twice", TE_ERROR_VALUE, "twice", [](fs &s) { return s.want[1] = s.want[0], te_safetensors_load(&s.file, s.want, 2, 0, s.ctx); });
    refuse<fs>(t, "te_safetensors_load: transposed", TE_ERROR_SHAPE, "it should be", [](fs &s) { return s.want[1] = te_safetensor_matrix("m.b.bias", TE_f32, 8, 1, s.b), te_safetensors_load(&s.file, s.want, 2, 0, s.ctx); });
    refuse<fs>(t, "te_safetensors_load: no context", TE_ERROR_NULL, "", [](fs &s) { return te_safetensors_load(&s.file, s.want, 2, 0, nullptr); });
    refuse<fs>(t, "te_safetensors_read: null", TE_ERROR_NULL, "null", [](fs &s) { return te_safetensors_read(nullptr, s.want, s.a, s.ctx); });
    refuse<fs>(t, "te_safetensors_read: no tensor", TE_ERROR_NULL, "null", [](fs &s) { return te_safetensors_read(&s.file, nullptr, s.a, s.ctx); });
    refuse<fs>(t, "te_safetensors_read: nowhere", TE_ERROR_NULL, "null", [](fs &s) { return te_safetensors_read(&s.file, te_safetensors_find(&s.file, "m.b.bias"), nullptr, s.ctx); });
    refuse<fs>(t, "te_safetensors_read: a tensor of one's own", TE_ERROR_VALUE, "te_safetensors_find", [](fs &s) { return te_safetensors_read(&s.file, &s.want[0], s.a, s.ctx); });
    fine<fs>(t, "te_safetensors_find and _metadata: null, unknown; close twice, null", [](fs &s) {
        const bool none = !te_safetensors_find(nullptr, "x") && !te_safetensors_find(&s.file, nullptr) && !te_safetensors_find(&s.file, "x") && !te_safetensors_metadata(nullptr, "x") && !te_safetensors_metadata(&s.file, nullptr);
        return te_safetensors_close(&s.file), te_safetensors_close(&s.file), te_safetensors_close(nullptr), none;
    });
    fine<fs>(t, "te_safetensor_of: no shape, a rank that is none: an entry that is refused", [](fs &s) {
        const int64_t shape[1] = {4};
        const te_safetensor bad[] = {te_safetensor_of("x", TE_SAFETENSORS_F32, 2, nullptr, s.a), te_safetensor_of("x", TE_SAFETENSORS_DTYPE_COUNT, 1, shape, s.a), te_safetensor_of(nullptr, TE_SAFETENSORS_F32, -1, shape, s.a), te_safetensor_matrix("x", (te_dtype)7, 2, 2, s.a)};
        for (const te_safetensor &e : bad)
            if (te_safetensors_write(s.path.c_str(), &e, 1, nullptr, 0, s.ctx) == TE_OK) return false;
        return true;
    });

    struct state { const char *name; te_status status; std::function<void(fs &)> set; };
    static te_adamw opt;
    static te_recipes recipes;
    const std::vector<state> states = {
        {"no models, but a count", TE_ERROR_NULL, [](fs &s) { s.all.models = nullptr; }}, {"-1 models", TE_ERROR_SHAPE, [](fs &s) { s.all.count = -1; }}, {"a model without a name", TE_ERROR_NULL, [](fs &s) { s.named.name = nullptr; }}, {"a model that is null", TE_ERROR_NULL, [](fs &s) { s.named.model = nullptr; }},
        {"a model that is not bound", TE_ERROR_NULL, [](fs &s) { s.named.model = &s.s.model; }}, {"an optimizer that is not initialised", TE_ERROR_STATE, [](fs &s) { memset(&opt, 0, sizeof opt), s.all.optimizer = &opt; }},
        {"recipes that are not initialised", TE_ERROR_STATE, [](fs &s) { memset(&recipes, 0, sizeof recipes), s.all.recipes = &recipes; }}, {"an optimizer of other models", TE_ERROR_VALUE, [](fs &s) { s.named.model = &s.h.model; }},
        {"a model that was copied", TE_ERROR_STATE, [](fs &s) { static small copy; copy = s.m, s.named.model = &copy.model, s.all.optimizer = nullptr; }}};
    for (const state &v : states) {
        refuse<fs>(t, std::string("te_checkpoint_save: ") + v.name, v.status, "checkpoint", [=](fs &s) { return v.set(s), te_checkpoint_save(s.path.c_str(), &s.all, s.ctx); });
        refuse<fs>(t, std::string("te_checkpoint_load: ") + v.name, v.status, "checkpoint", [=](fs &s) { return v.set(s), te_checkpoint_load(&s.all, &s.file, s.ctx); });
    }
    refuse<fs>(t, "te_checkpoint_save: null", TE_ERROR_NULL, "checkpoint", [](fs &s) { return te_checkpoint_save(s.path.c_str(), nullptr, s.ctx); });
    refuse<fs>(t, "te_checkpoint_save: no path", TE_ERROR_NULL, "path", [](fs &s) { return te_checkpoint_save(nullptr, &s.all, s.ctx); });
    refuse<fs>(t, "te_checkpoint_save: no context", TE_ERROR_NULL, "", [](fs &s) { return te_checkpoint_save(s.path.c_str(), &s.all, nullptr); });
    refuse<fs>(t, "te_checkpoint_save: no metadata, but a count", TE_ERROR_NULL, "metadata", [](fs &s) { return s.all.metadata_count = 1, te_checkpoint_save(s.path.c_str(), &s.all, s.ctx); });
    refuse<fs>(t, "te_checkpoint_save: a NaN", TE_ERROR_VALUE, "not finite", [](fs &s) {
        const float was = 0.25f, nan = NAN;
        s.memory.write(s.opt.v, &nan, 4);
        const te_status status = te_checkpoint_save(s.path.c_str(), &s.all, s.ctx);
        return (void)was, NEED(te_fill(s.ctx, s.opt.v, 0, 4), s.ctx), status;
    });
    refuse<fs>(t, "te_checkpoint_load: null", TE_ERROR_NULL, "checkpoint", [](fs &s) { return te_checkpoint_load(nullptr, &s.file, s.ctx); });
    refuse<fs>(t, "te_checkpoint_load: no file", TE_ERROR_NULL, "not open", [](fs &s) { return te_checkpoint_load(&s.all, nullptr, s.ctx); });
    refuse<fs>(t, "te_checkpoint_load: closed", TE_ERROR_NULL, "not open", [](fs &s) { return te_safetensors_close(&s.file), te_checkpoint_load(&s.all, &s.file, s.ctx); });
    refuse<fs>(t, "te_checkpoint_load: no context", TE_ERROR_NULL, "", [](fs &s) { return te_checkpoint_load(&s.all, &s.file, nullptr); });
    refuse<fs>(t, "te_checkpoint_load: without the optimizer", TE_ERROR_FORMAT, "adamw", [](fs &s) { return s.all.optimizer = nullptr, te_checkpoint_load(&s.all, &s.file, s.ctx); });
    refuse<fs>(t, "te_checkpoint_load: without the random state", TE_ERROR_FORMAT, "random", [](fs &s) { return s.all.random = 0, te_checkpoint_load(&s.all, &s.file, s.ctx); });
    refuse<fs>(t, "te_checkpoint_load: another name", TE_ERROR_FORMAT, "n.fc.weight", [](fs &s) { return s.named.name = "n", te_checkpoint_load(&s.all, &s.file, s.ctx); });
    refuse<fs>(t, "te_checkpoint_probe: no path", TE_ERROR_NULL, "path", [](fs &s) { return te_checkpoint_probe(nullptr, s.ctx); });
    refuse<fs>(t, "te_checkpoint_probe: no such folder", TE_ERROR_IO, "cannot", [](fs &s) { return te_checkpoint_probe((s.folder + "/nowhere/file").c_str(), s.ctx); });
    refuse<fs>(t, "te_gemm_save: no path", TE_ERROR_NULL, "path", [](fs &s) { return te_gemm_save(nullptr, s.ctx); });
    refuse<fs>(t, "te_gemm_load: no path", TE_ERROR_NULL, "path", [](fs &s) { return te_gemm_load(nullptr, s.ctx); });
    refuse<fs>(t, "te_gemm_load: no file", TE_ERROR_IO, "cannot", [](fs &s) { return te_gemm_load((s.folder + "/nowhere").c_str(), s.ctx); });
    refuse<fs>(t, "te_gemm_load: another kind of file", TE_ERROR_FORMAT, "", [](fs &s) { return te_gemm_load(s.path.c_str(), s.ctx); });
    fine<fs>(t, "te_gemm_report: nowhere, no context; te_gemm_print: nowhere", [](fs &s) {
        const int none = te_gemm_report(nullptr, 4, s.ctx) | te_gemm_report(nullptr, -1, nullptr) | te_gemm_report_choices(nullptr, 4, s.ctx);
        return te_gemm_print(nullptr, s.ctx), te_gemm_print(stderr, nullptr), none == 0;
    });
}

// ---- tokens, positions, labels ---------------------------------------------------------------------------------------

struct word_scene : call_scene {
    enum { ROWS = 8 };
    words w;
    char *word_params, *word_grads;
    int32_t *tokens, *labels;
    te_batch batch;
    te_tensor y, dy;
    word_scene() {
        memset(&w, 0, sizeof w), memset(&batch, 0, sizeof batch);
        word_params = memory.take(words_param_bytes()), word_grads = memory.take(words_grad_bytes());
        tokens = (int32_t *)(void *)memory.take(ROWS * 4), labels = (int32_t *)(void *)memory.take(ROWS * 4);
        NEED(words_bind(&w, word_params, (float *)(void *)word_grads, ctx), ctx);
        NEED(te_model_randomize(&w.model, 0.1f, 1, 0, ctx), ctx);
        const int32_t ids[ROWS] = {0, 1, 2, 3, 10, 9, 8, 7};
        memory.write(tokens, ids, sizeof ids), memory.write(labels, ids, sizeof ids);
        saved.bytes = words_saved_bytes(ROWS), saved.memory = memory.take(saved.bytes);
        const size_t n = words_workspace_bytes(&w, ROWS, ctx);
        ctx->workspace = memory.take(n), ctx->workspace_bytes = n;
        y = te_matrix(a, TE_f32, ROWS, 1), dy = te_none();
        restore();
        NEED(words_forward(y, &saved, te_none(), &w, &batch, ctx), ctx);
    }
    ~word_scene() { ctx->workspace = nullptr, ctx->workspace_bytes = 0; }
    void restore() {
        memset(&batch, 0, sizeof batch);
        batch.batch = 2, batch.seq = 4, batch.tokens = tokens, batch.labels = labels, batch.loss_scale = 1;
    }
    te_status pass(int p) {
        if (p == 0) return words_forward(y, &saved, te_none(), &w, &batch, ctx);
        return p == 1 ? words_infer(y, te_none(), &w, &batch, ctx) : words_backward(te_none(), dy, &saved, &w, &batch, ctx);
    }
    bool works() {
        dy = te_none();
        return pass(0) == TE_OK && pass(1) == TE_OK && pass(2) == TE_OK && te_synchronize(ctx) == TE_OK;
    }
};
typedef word_scene ws;

inline void word_calls(table &t) {
    const auto each = [&](const std::string &name, te_status status, const std::string &word, std::function<void(ws &)> set) {
        for (int p = 0; p < 3; p++) refuse<ws>(t, std::string(p == 0 ? "forward: " : p == 1 ? "infer: " : "backward: ") + name, status, word, [=](ws &s) { return set(s), s.pass(p); });
    };
    each("no tokens", TE_ERROR_NULL, "no tokens", [](ws &s) { s.batch.tokens = nullptr; });
    each("no labels", TE_ERROR_NULL, "no labels", [](ws &s) { s.batch.labels = nullptr; });
    for (int by : {1, 2, 3}) {
        each("tokens " + std::to_string(by) + " off", TE_ERROR_ALIGNMENT, "tokens", [=](ws &s) { s.batch.tokens = (const int32_t *)(const void *)((const char *)s.tokens + by); });
        each("labels " + std::to_string(by) + " off", TE_ERROR_ALIGNMENT, "labels", [=](ws &s) { s.batch.labels = (const int32_t *)(const void *)((const char *)s.labels + by); });
    }
    if (!TE_CUDA) // on CUDA a token outside the vocabulary gives NaN, because reading it would need a synchronisation
        for (int32_t bad : {-1, 11, INT32_MAX, INT32_MIN}) {
            for (int which = 0; which < 2; which++)
                for (int p = 0; p < 3; p++)
                    refuse<ws>(t, std::string(p == 0 ? "forward: " : p == 1 ? "infer: " : "backward: ") + (which ? "label " : "token ") + std::to_string(bad), TE_ERROR_VALUE, "outside the vocabulary", [=](ws &s) {
                        int32_t *at = (which ? s.labels : s.tokens) + 5, was = *at;
                        *at = bad;
                        const te_status status = s.pass(p);
                        return *at = was, status;
                    });
        }
    for (int p = 0; p < 2; p++) refuse<ws>(t, std::string(p ? "infer" : "forward") + ": a position behind the table", TE_ERROR_SHAPE, "positions p holds 16", [=](ws &s) { return s.batch.position = 13, s.pass(p); });
    refuse<ws>(t, "backward: no dy and no loss_scale", TE_ERROR_VALUE, "loss_scale", [](ws &s) { return s.batch.loss_scale = 0, s.pass(2); });
    for (float scale : {NAN, INFINITY}) refuse<ws>(t, "backward: loss_scale " + std::to_string(scale), TE_ERROR_VALUE, "loss_scale", [=](ws &s) { return s.batch.loss_scale = scale, s.pass(2); });
    refuse<ws>(t, "backward: dy of all logits", TE_ERROR_SHAPE, "columns", [](ws &s) { return s.dy = te_matrix(s.b, TE_f32, 8, 11), s.pass(2); });
    fine<ws>(t, "a label that is ignored has no loss", [](ws &s) {
        const int32_t ignored = -100, was = 7;
        float loss[8];
        s.memory.write(s.labels + 7, &ignored, 4);
        NEED(s.pass(1), s.ctx);
        NEED(te_copy(s.ctx, loss, s.a, sizeof loss), s.ctx);
        NEED(te_synchronize(s.ctx), s.ctx);
        s.memory.write(s.labels + 7, &was, 4);
        return loss[7] == 0 && loss[6] > 0;
    });
}

} // namespace misuse

#endif
