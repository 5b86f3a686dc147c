// hot_path_test.cc -- after the first step, a training step allocates nothing and never waits for the device. Two runs with the same
// seed have the same bits. On CUDA a whole step can be captured in a graph, and every replay draws new dropout masks.
#include <catch2/catch.hpp>

#include <vector>

#include "draw.h"
#include "te/te.h"

enum { V = 96, H = 64, B = 2, T = 16, ROWS = B * T };
TE_SEQUENTIAL(hot, bf16, (embedding, wte, V, H), (positions, wpe, T, H), (fork, x1), (layernorm, ln1, H), (linear, qkv, H, 3 * H),
              (bias, qkv_b, 3 * H), (rope, rot, 1, 1, 64), (attention, attn, 1, 1, 64), (linear, proj, H, H), (bias, proj_b, H),
              (dropout, drop1, 0.1f), (add, x1), (fork, x2), (rmsnorm, ln2, H), (linear, fc1, H, 4 * H), (bias, fc1_b, 4 * H), (swiglu, act),
              (linear, fc2, 2 * H, H), (bias, fc2_b, H), (dropout, drop2, 0.1f), (add, x2), (layernorm, lnf, H), (tied_linear, lm, H, V),
              (cross_entropy, loss, V))

namespace {

int allocations, waits;
const te_target *real;
te_status counted_allocate(te_context *ctx, void **p, size_t bytes) { return allocations++, real->allocate(ctx, p, bytes); }
te_status counted_synchronize(te_context *ctx) { return waits++, real->synchronize(ctx); }

struct trainer {
    te_context ctx;
    hot m;
    te_model *models[1];
    hot_saved saved;
    te_adamw opt;
    te_batch batch;
    float *loss;
    std::vector<void *> held;

    void *memory(size_t bytes) {
        void *p = nullptr;
        REQUIRE(te_allocate(&ctx, &p, bytes) == TE_OK);
        held.push_back(p);
        return p;
    }
    explicit trainer(uint64_t seed) {
        REQUIRE(te_context_create(&ctx, 0, seed) == TE_OK);
#if TE_CUDA
        cudaStream_t stream;
        REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
        ctx.stream = stream;
#endif
        void *params = memory(hot_param_bytes());
        float *grads = (float *)memory(hot_grad_bytes());
        REQUIRE(te_fill(&ctx, grads, 0, hot_grad_bytes()) == TE_OK);
        REQUIRE(te_fill(&ctx, params, 0, hot_param_bytes()) == TE_OK);
        REQUIRE(hot_bind(&m, params, grads, &ctx) == TE_OK);
        REQUIRE(te_model_randomize(&m.model, 0.05f, seed, 0, &ctx) == TE_OK);
        REQUIRE(te_tie(&m.lm.weight, &m.wte.weight, &ctx) == TE_OK);
        memset(&saved, 0, sizeof saved);
        saved.bytes = hot_saved_bytes(ROWS), saved.memory = memory(saved.bytes);
        REQUIRE(te_context_reserve(&ctx, hot_workspace_bytes(&m, ROWS, &ctx)) == TE_OK);
        models[0] = &m.model;
        te_adamw_config config = te_adamw_defaults(1e-2f);
        config.max_norm = 1.0f;
        const size_t bytes = te_adamw_bytes(models, 1);
        REQUIRE(te_adamw_init(&opt, memory(bytes), bytes, models, 1, &config, &ctx) == TE_OK);
        int32_t tokens[ROWS], labels[ROWS];
        for (int i = 0; i < ROWS; i++) tokens[i] = (i * i * 5 + 3) % V, labels[i] = (i * 11 + 7) % V;
        int32_t *t = (int32_t *)memory(sizeof tokens), *l = (int32_t *)memory(sizeof labels);
        REQUIRE(te_copy(&ctx, t, tokens, sizeof tokens) == TE_OK);
        REQUIRE(te_copy(&ctx, l, labels, sizeof labels) == TE_OK);
        memset(&batch, 0, sizeof batch);
        batch.batch = B, batch.seq = T, batch.tokens = t, batch.labels = l, batch.ignore_index = -1, batch.loss_scale = 1.0f / ROWS;
        loss = (float *)memory(ROWS * sizeof(float));
        REQUIRE(te_synchronize(&ctx) == TE_OK);
    }
    trainer(const trainer &) = delete;
    ~trainer() {
        for (void *p : held) te_release(&ctx, p);
#if TE_CUDA
        cudaStream_t stream = (cudaStream_t)ctx.stream;
        te_context_destroy(&ctx);
        cudaStreamDestroy(stream);
#else
        te_context_destroy(&ctx);
#endif
    }
    te_status step() {
        TE_TRY(hot_forward(te_matrix(loss, TE_f32, ROWS, 1), &saved, te_none(), &m, &batch, &ctx));
        TE_TRY(hot_backward(te_none(), te_none(), &saved, &m, &batch, &ctx));
        return te_adamw_step(&opt, &ctx);
    }
    std::vector<float> losses() {
        std::vector<float> l(ROWS);
        REQUIRE(te_copy(&ctx, l.data(), loss, ROWS * sizeof(float)) == TE_OK);
        REQUIRE(te_synchronize(&ctx) == TE_OK);
        return l;
    }
    std::vector<char> weights() {
        std::vector<char> w(hot_param_bytes());
        REQUIRE(te_copy(&ctx, w.data(), m.model.param[0].data, w.size()) == TE_OK);
        REQUIRE(te_synchronize(&ctx) == TE_OK);
        return w;
    }
};
float mean(const std::vector<float> &v) {
    float sum = 0;
    for (float x : v) sum += x;
    return sum / (float)v.size();
}

} // namespace

TEST_CASE("a training step allocates nothing and waits for nothing") {
    trainer t(7);
    REQUIRE(t.step() == TE_OK);
    te_target counted = *t.ctx.target;
    real = t.ctx.target;
    counted.allocate = counted_allocate, counted.synchronize = counted_synchronize;
    t.ctx.target = &counted;
    allocations = waits = 0;
    const size_t tiles = t.ctx.kernel_memory_bytes; // of kernels on the host, since the first step
    for (int i = 0; i < 5; i++) REQUIRE(t.step() == TE_OK);
    t.ctx.target = real;
    CHECK((TE_CUDA || tiles > 0));
    CHECK(t.ctx.kernel_memory_bytes == tiles);
    CHECK(allocations == 0);
    CHECK(waits == 0);
}

TEST_CASE("runs with the same seed have the same bits, with another seed they do not, and the loss falls") {
    trainer a(11), b(11), c(12);
    b.ctx.pdl = 0; // nor does programmatic dependent launch change a bit
    REQUIRE(a.step() == TE_OK);
    const float first = mean(a.losses());
    const int steps = brief() ? 6 : 60;
    for (int i = 1; i < steps; i++) REQUIRE(a.step() == TE_OK);
    for (int i = 0; i < steps; i++) REQUIRE(b.step() == TE_OK);
    for (int i = 0; i < steps; i++) REQUIRE(c.step() == TE_OK);
    CHECK(a.weights() == b.weights());
    CHECK(a.weights() != c.weights());
    CHECK(mean(a.losses()) < (brief() ? 1.0f : 0.5f) * first);
}

TEST_CASE("dropout differs from step to step") {
    trainer t(5);
    REQUIRE(hot_forward(te_matrix(t.loss, TE_f32, ROWS, 1), &t.saved, te_none(), &t.m, &t.batch, &t.ctx) == TE_OK);
    const std::vector<float> one = t.losses();
    REQUIRE(hot_forward(te_matrix(t.loss, TE_f32, ROWS, 1), &t.saved, te_none(), &t.m, &t.batch, &t.ctx) == TE_OK);
    CHECK(one != t.losses());
}

#if TE_CUDA
TEST_CASE("the replays of a captured step have the bits of eager steps, with new dropout masks") {
    trainer eager(21), replayed(21);
    for (int i = 0; i < 6; i++) REQUIRE(eager.step() == TE_OK);

    REQUIRE(replayed.step() == TE_OK);
    cudaStream_t stream = (cudaStream_t)replayed.ctx.stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    // in this mode allocations and synchronisations fail
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    REQUIRE(replayed.step() == TE_OK);
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    for (int i = 1; i < 6; i++) REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess);
    CHECK(eager.losses() == replayed.losses());
    CHECK(eager.weights() == replayed.weights());
    REQUIRE(cudaGraphExecDestroy(exec) == cudaSuccess);
    REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
}

// Six steps without a GEMM, so that launches for two calls differ only in addresses.
enum { WIDTH = 72 };
TE_SEQUENTIAL(maps, f32, (rmsnorm, n1, WIDTH), (gelu, a1), (rmsnorm, n2, WIDTH), (silu, a2), (rmsnorm, n3, WIDTH), (relu, a3))
static_assert((int)maps_infer_steps == 6, "no pattern fuses them");

TEST_CASE("a pass that is launched as one graph has the bits of one that is launched kernel by kernel") {
    trainer graphs(31), kernels(31);
    kernels.ctx.replay = 0;
    for (int i = 0; i < 4; i++) {
        REQUIRE(graphs.step() == TE_OK);
        REQUIRE(kernels.step() == TE_OK);
    }
    CHECK(graphs.losses() == kernels.losses());
    CHECK(graphs.weights() == kernels.weights());
    const te_launches *g = (const te_launches *)graphs.ctx.launches, *k = (const te_launches *)kernels.ctx.launches;
    CHECK(g->made == 2); // the first step makes the graphs of forward and of backward
    CHECK(g->replayed == 8);
    CHECK(g->updated == 0);
    CHECK(k->made + k->updated + k->replayed == 0);
}

TEST_CASE("the graph of a pass is updated to the addresses and rows of another call") {
    trainer t(32);
    te_context *ctx = &t.ctx;
    const te_launches *s = (const te_launches *)ctx->launches;
    const int max_rows = 40;
    const size_t bytes = max_rows * WIDTH * sizeof(float);
    maps m;
    REQUIRE(maps_bind(&m, t.memory(maps_param_bytes()), nullptr, ctx) == TE_OK);
    REQUIRE(te_model_randomize(&m.model, 0.5f, 1, 0, ctx) == TE_OK);
    REQUIRE(te_context_reserve(ctx, maps_workspace_bytes(&m, max_rows, ctx)) == TE_OK);
    std::vector<void *> x, y;
    for (int i = 0; i < 4; i++) {
        x.push_back(t.memory(bytes)), y.push_back(t.memory(bytes));
        REQUIRE(te_fill_normal(x[i], TE_f32, max_rows * WIDTH, 0, 1, 5, (uint32_t)i, ctx) == TE_OK);
    }
    const auto run = [&](int i, int rows, int replay) {
        te_batch batch;
        memset(&batch, 0, sizeof batch);
        batch.batch = 1, batch.seq = rows, ctx->replay = replay;
        std::vector<float> out((size_t)max_rows * WIDTH);
        REQUIRE(te_fill(ctx, y[i], 0xff, bytes) == TE_OK);
        REQUIRE(maps_infer(te_matrix(y[i], TE_f32, rows, WIDTH), te_matrix(x[i], TE_f32, rows, WIDTH), &m, &batch, ctx) == TE_OK);
        REQUIRE(te_copy(ctx, out.data(), y[i], bytes) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        std::vector<uint32_t> bits(out.size());
        memcpy(bits.data(), out.data(), bytes);
        return bits;
    };
    const auto wanted = [&](int i, int rows) { return run(i, rows, 0); };
    for (int i = 0; i < 4; i++) CHECK(run(i, max_rows, 2) == wanted(i, max_rows)); // makes two graphs, then updates the older one, twice
    CHECK(s->made == 2);
    CHECK(s->updated == 2);
    for (int rows : {(int)max_rows, 1, 7}) CHECK(run(3, rows, 2) == wanted(3, rows));
    CHECK(s->made == 2);
    CHECK(s->updated == 4); // the first of these calls still had its graph
    const int64_t replayed = s->replayed;
    CHECK(run(0, 3, 1) == wanted(0, 3));
    CHECK(s->replayed == replayed + 1);
}

// A skinny GEMM loads its weights while the kernel before it still runs (PDL), and that one may have started while the kernel that wrote the
// weights was still running. Behind the second norm, which is a small kernel in the middle of a pass, the GEMM may start even earlier.
enum { HIDDEN = 520, WIDE = 2048, SKINNY_ROWS = 5 };
TE_SEQUENTIAL(skinny, bf16, (layernorm, ln, HIDDEN), (linear, fc1, HIDDEN, WIDE), (bias, fc1_b, WIDE), (gelu, act), (linear, fc2, WIDE, HIDDEN))
TE_INFERENCE(norms, bf16, (rmsnorm, n1, HIDDEN), (linear, l1, HIDDEN, WIDE), (rmsnorm, n2, WIDE), (linear, l2, WIDE, HIDDEN))
static void reads_new_weights(const te_plan *plan) {
    trainer t(33);
    te_context *ctx = &t.ctx;
    te_model m;
    te_param param[8];
    int count = 0;
    for (int i = 0; i < plan->op_count; i++) count += plan->op[i].params;
    REQUIRE(count <= 8);
    const size_t params = te_plan_param_bytes(plan), bytes = SKINNY_ROWS * HIDDEN * 2;
    void *memory = t.memory(params), *x = t.memory(bytes), *y = t.memory(bytes), *z = t.memory(bytes);
    REQUIRE(te_model_bind(&m, plan, param, count, memory, nullptr, ctx) == TE_OK);
    REQUIRE(te_context_reserve(ctx, te_plan_workspace_bytes(plan, &m, SKINNY_ROWS, ctx)) == TE_OK);
    REQUIRE(te_fill_normal(x, TE_bf16, SKINNY_ROWS * HIDDEN, 0, 1, 5, 0, ctx) == TE_OK);
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = SKINNY_ROWS;
    const auto run = [&](uint64_t seed, int pdl) {
        std::vector<uint16_t> out(SKINNY_ROWS * HIDDEN);
        ctx->pdl = pdl, ctx->replay = pdl > 0;
        REQUIRE(te_fill(ctx, y, 0xff, bytes) == TE_OK);
        REQUIRE(te_fill_normal(memory, TE_bf16, (int64_t)(params / 2), 0, 0.1f, seed, 0, ctx) == TE_OK);
        const auto pass = [&](void *to, void *from) {
            return te_plan_infer(te_matrix(to, TE_bf16, SKINNY_ROWS, HIDDEN), te_matrix(from, TE_bf16, SKINNY_ROWS, HIDDEN), plan, &m, &batch, ctx);
        };
        REQUIRE(pass(y, x) == TE_OK);
        REQUIRE(pass(z, y) == TE_OK); // with pdl 2 its GEMMs may load weights while the first pass still runs
        REQUIRE(te_copy(ctx, out.data(), z, bytes) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        return out;
    };
    for (uint64_t seed = 1; seed < 30; seed++)
        for (int pdl = 1; pdl <= 2; pdl++) CHECK(run(seed, pdl) == run(seed, 0));
    CHECK(run(1, 1) != run(2, 1));
}
TEST_CASE("a pass reads the weights that were written right before it") {
    reads_new_weights(skinny_plan());
    reads_new_weights(norms_plan());
}
#endif
