// bits.cc -- prints hashes of all results of each list of the tests, one line for each list and shape. tools/bits.sh compiles this file
// against two commits and compares the output, so this file uses only those parts of te's interface that seldom change.
//
//     -DBITS_DTYPE=f32, bf16 or f16
//     -DBITS_LISTS= the sum of: 1 and 16 forward patterns of the fusion list, in two widths; 32 backward patterns; 2 lists by row;
//                  4 lists by sequence; 8 wide lists
#include <cstdio>
#include <cstring>
#include <vector>

#include "te/te.h"

namespace {

struct subject {
    const char *name;
    const te_plan *(*plan)();
};
std::vector<subject> subjects;
struct add_subject {
    add_subject(const char *name, const te_plan *(*plan)()) { subjects.push_back({name, plan}); }
};

} // namespace

// ---- the lists of tests/ops.h, tests/patterns_forward.h and tests/patterns_backward.h ------------------------------------------

#define BITS_MODEL(forward_patterns, backward_patterns, name, dtype, ...)          \
    TE_SEQUENTIAL_WITH(forward_patterns, backward_patterns, name, dtype, __VA_ARGS__) \
    static add_subject name##_is_subject(TE_STRING(PATTERN_SPACE) "/" #name, name##_plan);
#define MODEL(name, dtype, ...) BITS_MODEL(TE_FORWARD_, TE_BACKWARD_, name, dtype, __VA_ARGS__)
#define UNFUSED(name, dtype, ...) BITS_MODEL(TE_UNFUSED_, TE_UNFUSED_, name, dtype, __VA_ARGS__)
#define BITS_LIST(name, how, dtype, ...) how(name, dtype, __VA_ARGS__)

#define PATTERN_SPACE ops
#define OPS_DTYPE BITS_DTYPE
#include "bits_ops.h" // tests/ops.h without its includes and its test cases
#if BITS_LISTS & 2
OPS_BY_ROW(BITS_LIST)
#endif
#if BITS_LISTS & 4
OPS_BY_SEQUENCE(BITS_LIST)
#endif
#if BITS_LISTS & 8
OPS_WIDE(BITS_LIST)
#endif

#undef PATTERN_SPACE

#if BITS_LISTS & (1 | 16 | 32)
#define PATTERN_DTYPE BITS_DTYPE
#define PATTERN_CASE(name, pattern, step, ...) MODEL(name, PATTERN_DTYPE, __VA_ARGS__)
#endif
#if BITS_LISTS & 1
#define PATTERN_ALL 0
#define PATTERN_SPACE forward_64
#define PATTERN_IN 64
#define PATTERN_OUT 96
#include "patterns_forward.h"
#endif
#if BITS_LISTS & 16
#define PATTERN_ALL 0
#define PATTERN_SPACE forward_37
#define PATTERN_IN 37
#define PATTERN_OUT 53
#include "patterns_forward.h"
#endif
#if BITS_LISTS & 32
#define PATTERN_ALL 0
#define PATTERN_SPACE backward_64
#define PATTERN_IN 64
#define PATTERN_OUT 96
#include "patterns_backward.h"
#endif

// ---- one list, one shape -----------------------------------------------------------------------------------------------

namespace {

struct shape {
    int batch, seq, position, own; // own: the library's own GEMM kernels wherever they can run
};

// FNV-1a
const uint64_t hash_start = 14695981039346656037ull;
uint64_t hash(uint64_t h, const void *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) h = (h ^ ((const uint8_t *)p)[i]) * 1099511628211ull;
    return h;
}

struct walks {
    te_context ctx;
    const te_plan *plan;
    int64_t rows;
    std::vector<void *> memory;
    std::vector<te_edge> edges;

    ~walks() {
        for (void *p : memory) te_release(&ctx, p);
        te_context_destroy(&ctx);
    }
    void *zeros(size_t bytes) {
        void *p = nullptr;
        if (te_allocate(&ctx, &p, bytes + 256) == TE_OK) memory.push_back(p), (void)te_fill(&ctx, p, 0, bytes + 256);
        return p;
    }
    te_tensor matrix(te_dtype dtype, int64_t cols) {
        return te_matrix(zeros((size_t)(rows * cols) * te_dtype_bytes(dtype)), dtype, rows, cols);
    }
    te_status fill(const te_tensor &t, uint64_t stream) {
        return te_fill_normal(t.data, t.dtype, t.rows * t.cols, 0, 1, 3, stream, &ctx);
    }
    uint64_t on_device(const void *p, size_t bytes, uint64_t h = hash_start) {
        std::vector<uint8_t> v(bytes + 1);
        return te_copy(&ctx, v.data(), p, bytes) || te_synchronize(&ctx) ? 0 : hash(h, v.data(), bytes);
    }
    uint64_t of(const te_tensor &t, uint64_t h = hash_start) {
        return on_device(t.data, (size_t)(t.rows * t.cols) * te_dtype_bytes(t.dtype), h);
    }
    // The list's extra inputs and outputs; an input has the width of the value that it is added to.
    te_status make_edges() {
        for (int i = 0; i < plan->op_count; i++) {
            const te_op &op = plan->op[i];
            if (!(op.flags & (TE_IS_INPUT | TE_IS_OUTPUT))) continue;
            int width = op.out;
            for (int j = i; op.flags & TE_IS_INPUT && j < plan->op_count; j++)
                if (!strcmp(plan->op[j].kind, "add") && !strcmp(plan->op[j].name, op.name)) width = plan->op[j].out;
            te_edge e;
            memset(&e, 0, sizeof e);
            e.name = op.name, e.value = matrix(plan->dtype, width), e.grad = matrix(plan->dtype, width);
            TE_TRY(fill(op.flags & TE_IS_INPUT ? e.value : e.grad, 10 + (uint64_t)i));
            edges.push_back(e);
        }
        return TE_OK;
    }
    te_status ids(const int32_t **to, int step, int below) {
        std::vector<int32_t> v((size_t)rows);
        for (size_t i = 0; i < v.size(); i++) v[i] = (int32_t)((i * (size_t)step + 3) % (size_t)below);
        *to = (const int32_t *)zeros(v.size() * 4);
        TE_TRY(te_copy(&ctx, (void *)*to, v.data(), v.size() * 4));
        return te_synchronize(&ctx);
    }
    te_status run(const subject &s, const shape &at) {
        plan = s.plan(), rows = (int64_t)at.batch * at.seq;
        TE_TRY(te_context_create(&ctx, 0, 5));
        if (at.own) ctx.gemm_custom = 2, ctx.processors = 2;
        const te_op &first = plan->op[0], &last = plan->op[plan->op_count - 1];
        const bool loss = !strcmp(last.kind, "cross_entropy"), tokens = !strcmp(first.kind, "embedding");
        const te_dtype out = loss ? TE_f32 : plan->dtype;

        int params = 0;
        for (int i = 0; i < plan->op_count; i++) params += plan->op[i].params;
        std::vector<te_param> param((size_t)params + 1);
        te_model model;
        void *const grads = zeros(te_plan_grad_bytes(plan));
        TE_TRY(te_model_bind(&model, plan, param.data(), params, zeros(te_plan_param_bytes(plan)), (float *)grads, &ctx));
        for (int i = 0; i < params; i++)
            if (param[(size_t)i].tied) TE_TRY(te_tie(&param[(size_t)i], &param[0], &ctx));
        TE_TRY(te_model_randomize(&model, 0.2f, 7, 0, &ctx));

        const te_tensor x = matrix(plan->dtype, plan->in), dx = matrix(plan->dtype, plan->in);
        const te_tensor y = matrix(out, plan->out), dy = matrix(out, plan->out), inferred = matrix(out, plan->out);
        TE_TRY(fill(x, 1));
        TE_TRY(fill(dy, 2));
        te_batch batch;
        memset(&batch, 0, sizeof batch);
        batch.batch = at.batch, batch.seq = at.seq, batch.position = at.position, batch.ignore_index = -1;
        TE_TRY(ids(&batch.tokens, 7, tokens ? first.param[0].rows : 1));
        TE_TRY(ids(&batch.labels, 5, last.in));
        TE_TRY(make_edges());
        batch.edges = edges.data(), batch.edge_count = (int)edges.size();
        te_saved saved;
        memset(&saved, 0, sizeof saved);
        saved.bytes = te_plan_saved_bytes(plan, rows), saved.memory = zeros(saved.bytes);
        TE_TRY(te_context_reserve(&ctx, te_plan_workspace_bytes(plan, &model, rows, &ctx)));

        uint64_t all_edges = hash_start;
        TE_TRY(te_plan_forward(inferred, nullptr, x, plan, &model, &batch, &ctx));
        for (const te_edge &e : edges) all_edges = of(e.value, all_edges);
        TE_TRY(te_plan_forward(y, &saved, x, plan, &model, &batch, &ctx));
        for (const te_edge &e : edges) all_edges = of(e.value, all_edges);
        TE_TRY(te_plan_backward(tokens ? te_none() : dx, dy, &saved, plan, &model, &batch, &ctx));
        for (const te_edge &e : edges) all_edges = of(e.grad, all_edges);
        printf("%s %d x %d own %d\tinference %016llx forward %016llx dx %016llx gradients %016llx edges %016llx\n", s.name, at.batch,
               at.seq, at.own, (unsigned long long)of(inferred), (unsigned long long)of(y), (unsigned long long)of(dx),
               (unsigned long long)on_device(grads, te_plan_grad_bytes(plan)), (unsigned long long)all_edges);
        return TE_OK;
    }
};

} // namespace

int main() {
    const shape shapes[] = {{1, 1, 2, 0}, {2, 7, 2, 0}, {1, 33, 2, 0}, {1, 38, 0, TE_CUDA}, {3, 38, 0, TE_CUDA}};
    for (const subject &s : subjects)
        for (const shape &at : shapes) {
            walks w;
            memset(&w.ctx, 0, sizeof w.ctx);
            if (w.run(s, at) != TE_OK) printf("%s %d x %d own %d\trefused: %s\n", s.name, at.batch, at.seq, at.own, te_last_error(&w.ctx));
        }
    return subjects.empty();
}
