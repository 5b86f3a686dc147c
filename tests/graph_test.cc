// graph_test.cc -- replays of graphs of forward, backward and whole steps have the bits of the eager run, also with micro-batches
// in the order of a pipeline and with a shared pool. A replay with invalid inputs is refused before anything is copied or run.
#include <catch2/catch.hpp>

#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "draw.h"
#include "te/te.h"

enum { V = 96, H = 64, B = 2, T = 16, ROWS = B * T };
TE_SEQUENTIAL(stem, bf16, (embedding, wte, V, H), (positions, wpe, T, H), (dropout, drop, 0.1f))
TE_SEQUENTIAL(block, bf16, (fork, x1), (layernorm, ln1, H), (linear, qkv, H, 3 * H), (bias, qkv_b, 3 * H), (attention, attn, 1, 1, 64),
              (linear, proj, H, H), (bias, proj_b, H), (dropout, drop1, 0.1f), (add, x1), (fork, x2), (layernorm, ln2, H),
              (linear, fc1, H, 4 * H), (bias, fc1_b, 4 * H), (gelu, act), (linear, fc2, 4 * H, H), (bias, fc2_b, H), (dropout, drop2, 0.1f), (add, x2))
TE_SEQUENTIAL(head, bf16, (layernorm, lnf, H), (linear, lm, H, V), (cross_entropy, loss, V))

namespace {

typedef std::vector<uint8_t> bytes;
typedef std::vector<int32_t> ints;

const te_target *real;
int allocations, waits, copies;
te_status counted_allocate(te_context *ctx, void **p, size_t n) { return allocations++, real->allocate(ctx, p, n); }
te_status counted_synchronize(te_context *ctx) { return waits++, real->synchronize(ctx); }
te_status counted_copy(te_context *ctx, void *dst, const void *src, size_t n) { return copies++, real->copy(ctx, dst, src, n); }

// A context, and memory that is released with it. own_stream: on CUDA it has a stream that is not the default one.
struct machine {
    te_context ctx;
    std::vector<void *> held;
    explicit machine(uint64_t seed = 1, bool own_stream = false) {
        REQUIRE(te_context_create(&ctx, 0, seed) == TE_OK);
#if TE_CUDA
        cudaStream_t stream = nullptr;
        if (own_stream) REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
        ctx.stream = stream;
#else
        (void)own_stream;
#endif
    }
    machine(const machine &) = delete;
    machine &operator=(const machine &) = delete;
    ~machine() {
        for (void *p : held) te_release(&ctx, p);
#if TE_CUDA
        cudaStream_t stream = (cudaStream_t)ctx.stream;
        te_context_destroy(&ctx);
        if (stream) cudaStreamDestroy(stream);
#else
        te_context_destroy(&ctx);
#endif
    }
    void *memory(size_t n, int byte = 0xff) { // 0xff bytes are NaN in every format
        void *p = nullptr;
        REQUIRE(te_allocate(&ctx, &p, n) == TE_OK);
        held.push_back(p);
        REQUIRE(te_fill(&ctx, p, byte, n) == TE_OK);
        return p;
    }
    int32_t *upload(const ints &x) {
        int32_t *p = (int32_t *)memory(x.size() * sizeof x[0]);
        REQUIRE(te_copy(&ctx, p, x.data(), x.size() * sizeof x[0]) == TE_OK);
        REQUIRE(te_synchronize(&ctx) == TE_OK);
        return p;
    }
    bytes read(const void *p, size_t n) {
        bytes x(n);
        REQUIRE(te_copy(&ctx, x.data(), p, n) == TE_OK);
        REQUIRE(te_synchronize(&ctx) == TE_OK);
        return x;
    }
    bytes read(te_tensor t) { return read(t.data, te__tensor_bytes(t)); }
    uint64_t offset() {
        te_rng rng;
        REQUIRE(te_rng_get(&rng, &ctx) == TE_OK);
        return rng.offset;
    }
    // Checks that a call was refused with this status and a text that contains these words.
    void refused(te_status status, te_status expected, std::initializer_list<const char *> words) {
        const std::string text = te_last_error(&ctx);
        INFO(te_status_string(status) << ": " << text);
        CHECK(status == expected);
        for (const char *word : words) {
            INFO("should say " << word);
            CHECK(text.find(word) != std::string::npos);
        }
    }
};

ints numbers(unsigned seed) {
    std::mt19937 random(seed);
    ints x(ROWS);
    for (int32_t &i : x) i = (int32_t)(random() % V);
    return x;
}
bytes floats(unsigned seed) { // [ROWS, 1]
    std::mt19937 random(seed);
    std::vector<float> x(ROWS);
    for (float &f : x) f = std::normal_distribution<float>(0, 1.0f / ROWS)(random);
    bytes b(ROWS * sizeof(float));
    memcpy(b.data(), x.data(), b.size());
    return b;
}

// The memory of one micro-batch between its forward and its backward.
struct lane {
    te_saved saved[4];
    te_tensor h[3]; // [ROWS, H], the activations between the four models
    te_batch batch;
    static size_t size() {
        size_t n = 3 * ROWS * H * 2;
        for (size_t part : parts()) n += part;
        return n;
    }
    static std::vector<size_t> parts() {
        std::vector<size_t> n = {stem_saved_bytes(ROWS), block_saved_bytes(ROWS), block_saved_bytes(ROWS), head_saved_bytes(ROWS)};
        for (size_t &part : n) part = (size_t)te_round_up((int64_t)part, TE_ALIGN);
        return n;
    }
    void bind(void *memory) {
        memset(this, 0, sizeof *this);
        uintptr_t at = (uintptr_t)memory;
        for (int i = 0; i < 3; i++, at += ROWS * H * 2) h[i] = te_matrix((void *)at, TE_bf16, ROWS, H);
        for (int i = 0; i < 4; at += parts()[(size_t)i], i++) saved[i].memory = (void *)at, saved[i].bytes = parts()[(size_t)i];
        batch.batch = B, batch.seq = T, batch.ignore_index = -1, batch.loss_scale = 1.0f / ROWS;
    }
};

struct gpt : machine {
    stem s;
    block b[2];
    head h;
    te_model *models[4];
    te_adamw opt;
    char *params, *grads;
    size_t param_bytes, grad_bytes;
    te_tensor d[2]; // [ROWS, H], the gradients between the models
    lane single;

    explicit gpt(uint64_t seed, bool own_stream = false) : machine(seed, own_stream) {
        param_bytes = stem_param_bytes() + 2 * block_param_bytes() + head_param_bytes();
        grad_bytes = stem_grad_bytes() + 2 * block_grad_bytes() + head_grad_bytes();
        params = (char *)memory(param_bytes, 0), grads = (char *)memory(grad_bytes, 0);
        char *p = params, *g = grads;
        REQUIRE(stem_bind(&s, p, (float *)g, &ctx) == TE_OK);
        p += stem_param_bytes(), g += stem_grad_bytes();
        for (block &x : b) {
            REQUIRE(block_bind(&x, p, (float *)g, &ctx) == TE_OK);
            p += block_param_bytes(), g += block_grad_bytes();
        }
        REQUIRE(head_bind(&h, p, (float *)g, &ctx) == TE_OK);
        models[0] = &s.model, models[1] = &b[0].model, models[2] = &b[1].model, models[3] = &h.model;
        for (int i = 0; i < 4; i++) REQUIRE(te_model_randomize(models[i], 0.1f, seed + (uint64_t)i, 0, &ctx) == TE_OK);
        REQUIRE(te_context_reserve(&ctx, stem_workspace_bytes(&s, ROWS, &ctx)) == TE_OK);
        REQUIRE(te_context_reserve(&ctx, block_workspace_bytes(&b[0], ROWS, &ctx)) == TE_OK);
        REQUIRE(te_context_reserve(&ctx, head_workspace_bytes(&h, ROWS, &ctx)) == TE_OK);
        te_adamw_config config = te_adamw_defaults(1e-2f);
        config.max_norm = 1.0f;
        const size_t n = te_adamw_bytes(models, 4);
        REQUIRE(te_adamw_init(&opt, memory(n), n, models, 4, &config, &ctx) == TE_OK);
        for (te_tensor &t : d) t = te_matrix(memory(ROWS * H * 2), TE_bf16, ROWS, H);
        single.bind(memory(lane::size()));
        REQUIRE(te_synchronize(&ctx) == TE_OK);
    }
    te_status forward(te_tensor loss, lane *l, const void *tokens, const void *labels) {
        l->batch.tokens = (const int32_t *)tokens, l->batch.labels = (const int32_t *)labels;
        TE_TRY(stem_forward(l->h[0], &l->saved[0], te_none(), &s, &l->batch, &ctx));
        TE_TRY(block_forward(l->h[1], &l->saved[1], l->h[0], &b[0], &l->batch, &ctx));
        TE_TRY(block_forward(l->h[2], &l->saved[2], l->h[1], &b[1], &l->batch, &ctx));
        return head_forward(loss, &l->saved[3], l->h[2], &h, &l->batch, &ctx);
    }
    // dh: [ROWS, H], the gradient of the input of the first block
    te_status backward(te_tensor dh, te_tensor dloss, lane *l, int accumulate) {
        l->batch.accumulate = accumulate;
        TE_TRY(head_backward(d[0], dloss, &l->saved[3], &h, &l->batch, &ctx));
        TE_TRY(block_backward(d[1], d[0], &l->saved[2], &b[1], &l->batch, &ctx));
        TE_TRY(block_backward(dh, d[1], &l->saved[1], &b[0], &l->batch, &ctx));
        return stem_backward(te_none(), dh, &l->saved[0], &s, &l->batch, &ctx);
    }
    te_status step(te_tensor loss, te_tensor dh, const void *tokens, const void *labels) {
        TE_TRY(forward(loss, &single, tokens, labels));
        TE_TRY(backward(dh, te_none(), &single, 0));
        return te_adamw_step(&opt, &ctx);
    }
    te_tensor new_loss() { return te_matrix(memory(ROWS * sizeof(float)), TE_f32, ROWS, 1); }
    te_tensor new_dh() { return te_matrix(memory(ROWS * H * 2), TE_bf16, ROWS, H); }
    te_graph_pool *pool(te_graph_pool *p, size_t n) {
        REQUIRE(te_graph_pool_init(p, memory(n), n, &ctx) == TE_OK);
        return p;
    }
    bytes weights() { return read(params, param_bytes); }
    bytes gradients() { return read(grads, grad_bytes); }
    // Runs both passes once, which loads the kernels and initialises cuBLASLt. Then it restores the random state; later passes overwrite the gradients.
    void warm_up() {
        te_rng rng;
        REQUIRE(te_rng_get(&rng, &ctx) == TE_OK);
        const int32_t *x = upload(numbers(0));
        REQUIRE(forward(new_loss(), &single, x, x) == TE_OK);
        for (int i = 0; i < 2; i++) REQUIRE(backward(new_dh(), te_none(), &single, i) == TE_OK);
        const te_tensor dloss = new_loss();
        REQUIRE(te_fill(&ctx, dloss.data, 0, te__tensor_bytes(dloss)) == TE_OK);
        for (int i = 0; i < 2; i++) REQUIRE(backward(new_dh(), dloss, &single, i) == TE_OK);
        REQUIRE(te_rng_set(&rng, &ctx) == TE_OK);
    }
};

// ---- functions to capture, and their argument, which is copied at the capture ----------------------------------------

struct work { gpt *t; lane *l; int accumulate; };

te_status forward_of(const te_graph *g, const void *arg, te_context *) {
    const work *w = (const work *)arg;
    return w->t->forward(te_graph_output(g, "loss"), w->l, te_graph_input(g, "tokens").data, te_graph_input(g, "labels").data);
}
te_status backward_of(const te_graph *g, const void *arg, te_context *) {
    const work *w = (const work *)arg;
    return w->t->backward(te_graph_output_at(g, 0), te_graph_input_at(g, 0), w->l, w->accumulate);
}
te_status step_of(const te_graph *g, const void *arg, te_context *) {
    gpt *t = (gpt *)(uintptr_t)arg;
    return t->step(te_graph_output(g, "loss"), te_graph_output(g, "dh"), te_graph_input(g, "tokens").data, te_graph_input(g, "labels").data);
}

const te_named tokens_and_labels[] = {te_named_ints("tokens", nullptr, ROWS), te_named_ints("labels", nullptr, ROWS)};
const te_named just_loss[] = {te_named_tensor("loss", te_matrix(nullptr, TE_f32, ROWS, 1))};
const te_named just_dloss[] = {te_named_tensor("dloss", te_matrix(nullptr, TE_f32, ROWS, 1))};
const te_named just_dh[] = {te_named_tensor("dh", te_matrix(nullptr, TE_bf16, ROWS, H))};
const te_named loss_and_dh[] = {just_loss[0], just_dh[0]};

te_status capture_forward(te_graph *g, gpt *t, lane *l, te_graph_pool *p, const char *name = "forward") {
    const work w = {t, l, 0};
    const te_graph_spec spec = te_graph_spec_of(name, forward_of, &w, sizeof w, tokens_and_labels, 2, just_loss, 1);
    return te_graph_capture(g, &spec, p, &t->ctx);
}
te_status capture_backward(te_graph *g, gpt *t, lane *l, int accumulate, te_graph_pool *p, const char *name = "backward") {
    const work w = {t, l, accumulate};
    const te_graph_spec spec = te_graph_spec_of(name, backward_of, &w, sizeof w, just_dloss, 1, just_dh, 1);
    return te_graph_capture(g, &spec, p, &t->ctx);
}
te_status capture_step(te_graph *g, gpt *t, te_graph_pool *p) {
    const te_graph_spec spec = te_graph_spec_of("step", step_of, t, 0, tokens_and_labels, 2, loss_and_dh, 2);
    return te_graph_capture(g, &spec, p, &t->ctx);
}
te_status replay(te_graph *g, te_context *ctx, std::initializer_list<te_named> in) { return te_graph_replay(g, in.begin(), (int)in.size(), ctx); }
te_named dloss_at(const char *name, void *p) { return te_named_tensor(name, te_matrix(p, TE_f32, ROWS, 1)); }

#define OK(m, call)                          \
    do {                                     \
        const te_status ok_ = (call);        \
        INFO(te_last_error(&(m).ctx));       \
        REQUIRE(ok_ == TE_OK);               \
    } while (0)

} // namespace

TEST_CASE("replays of a forward and a backward have the bits of the eager run, with new dropout masks each time") {
    for (const bool own_stream : {false, true}) {
        gpt eager(3, own_stream), t(3, own_stream);
        eager.warm_up(), t.warm_up();
        te_graph_pool pool;
        te_graph f, b;
        OK(t, capture_forward(&f, &t, &t.single, t.pool(&pool, 1 << 20)));
        OK(t, capture_backward(&b, &t, &t.single, 0, &pool));
        CHECK(t.offset() == 0); // a capture runs nothing
        const te_tensor loss = eager.new_loss(), dh = eager.new_dh(), graph_loss = te_graph_output(&f, "loss"), graph_dh = te_graph_output_at(&b, 0);
        CHECK(graph_loss.data == te_graph_output_at(&f, 0).data);
        CHECK(graph_dh.data == te_graph_output(&b, "dh").data);
        CHECK(te_graph_output(&f, "dh").data == nullptr);
        CHECK(te_graph_output_at(&f, 1).data == nullptr);
        CHECK(te_graph_input_at(&f, -1).data == nullptr);

        bytes last;
        for (unsigned i = 0; i < (brief() ? 3 : 6); i++) {
            const unsigned same = i < 2 ? 0 : i; // the first two have the same inputs
            const ints x = numbers(10 + same), y = numbers(20 + same);
            bytes dy = floats(30 + same);
            const int32_t *tx = t.upload(x), *ty = t.upload(y);
            OK(eager, eager.forward(loss, &eager.single, eager.upload(x), eager.upload(y)));
            void *edy = eager.memory(dy.size()), *tdy = t.memory(dy.size());
            OK(eager, te_copy(&eager.ctx, edy, dy.data(), dy.size()));
            OK(t, te_copy(&t.ctx, tdy, dy.data(), dy.size()));
            OK(eager, eager.backward(dh, te_matrix(edy, TE_f32, ROWS, 1), &eager.single, 0));

            const te_named a = te_named_ints("tokens", tx, ROWS), c = te_named_ints("labels", ty, ROWS);
            // inputs by name
            if (i % 3 == 0) OK(t, replay(&f, &t.ctx, {c, a}));
            else if (i % 3 == 1) OK(t, replay(&f, &t.ctx, {te_named_ints(nullptr, tx, ROWS), te_named_ints(nullptr, ty, ROWS)})); // inputs by position
            else { // by name, with the data already in the graph's input; by position, from host memory
                OK(t, te_copy(&t.ctx, te_graph_input(&f, "tokens").data, tx, ROWS * 4));
                OK(t, replay(&f, &t.ctx, {te_named_tensor("tokens", te_graph_input(&f, "tokens")), te_named_ints(nullptr, y.data(), ROWS)}));
            }
            OK(t, replay(&b, &t.ctx, {dloss_at(i % 2 ? nullptr : "dloss", tdy)}));

            CAPTURE(own_stream, i);
            const bytes now = t.read(graph_loss);
            CHECK(now == eager.read(loss));
            CHECK(t.read(graph_dh) == eager.read(dh));
            CHECK(t.gradients() == eager.gradients());
            CHECK(t.offset() == eager.offset());
            if (i == 1) CHECK(now != last); // the same inputs with another dropout mask
            last = now;
        }
        // the same random state gives the same bits
        te_rng rng = {3, 2};
        const int32_t *x = t.upload(numbers(1));
        bytes two[2];
        for (bytes &once : two) {
            OK(t, te_rng_set(&rng, &t.ctx));
            OK(t, replay(&f, &t.ctx, {te_named_ints("tokens", x, ROWS), te_named_ints("labels", x, ROWS)}));
            once = t.read(graph_loss);
        }
        CHECK(two[0] == two[1]);
        te_graph_destroy(&f), te_graph_destroy(&b);
        CHECK(pool.used == 0);
    }
}

TEST_CASE("replays of a whole training step have the bits of the eager run, without allocations and waits") {
    gpt eager(7), t(7, true);
    const te_tensor loss = eager.new_loss(), dh = eager.new_dh();
    const ints first = numbers(99);
    OK(eager, eager.step(loss, dh, eager.upload(first), eager.upload(first)));
    OK(t, t.step(t.new_loss(), t.new_dh(), t.upload(first), t.upload(first)));
    te_graph_pool pool;
    te_graph g;
    OK(t, capture_step(&g, &t, t.pool(&pool, 1 << 20)));
    const unsigned steps = brief() ? 2 : 8;
    for (unsigned i = 0; i < steps; i++) {
        const ints x = numbers(i), y = numbers(50 + i);
        OK(eager, eager.step(loss, dh, eager.upload(x), eager.upload(y)));
        const int32_t *tx = t.upload(x), *ty = t.upload(y);
        te_target counted = *t.ctx.target;
        real = t.ctx.target;
        counted.allocate = counted_allocate, counted.synchronize = counted_synchronize;
        t.ctx.target = &counted;
        allocations = waits = 0;
        const te_named a = te_named_ints("tokens", tx, ROWS), c = te_named_ints("labels", ty, ROWS);
        const te_status status = i % 2 ? replay(&g, &t.ctx, {a, c}) : replay(&g, &t.ctx, {c, a});
        t.ctx.target = real;
        OK(t, status);
        CHECK(allocations == 0);
        CHECK(waits == 0);
        CAPTURE(i);
        CHECK(t.read(te_graph_output(&g, "loss")) == eager.read(loss));
        CHECK(t.read(te_graph_output(&g, "dh")) == eager.read(dh));
        CHECK(t.weights() == eager.weights());
    }
    te_adamw_state a, b;
    OK(eager, te_adamw_get(&a, &eager.opt, &eager.ctx));
    OK(t, te_adamw_get(&b, &t.opt, &t.ctx));
    CHECK(b.step == (int64_t)steps + 1);
    CHECK(a.norm == b.norm);
    te_graph_destroy(&g);
    // an eager step still works with the same context
    const ints x = numbers(77);
    OK(eager, eager.step(loss, dh, eager.upload(x), eager.upload(x)));
    OK(t, t.step(t.new_loss(), t.new_dh(), t.upload(x), t.upload(x)));
    CHECK(t.weights() == eager.weights());
}

// ---- micro-batches ---------------------------------------------------------------------------------------------------

namespace {

struct event { bool backward; int micro; };
typedef std::vector<event> schedule;
enum { MICROS = 4 };

// The graphs of all passes of a schedule, captured in its order. share: retire the graphs of a micro-batch and release its memory after its backward.
struct pipeline {
    te_graph_pool pool;
    te_graph f[MICROS], b[MICROS];
    lane l[MICROS];
    pipeline() { memset((void *)this, 0, sizeof *this); }
    void destroy() {
        for (int i = 0; i < MICROS; i++) te_graph_destroy(&f[i]), te_graph_destroy(&b[i]);
    }
    te_status capture(gpt &t, const schedule &order, void *memory, size_t n, bool share) {
        bool accumulate = false;
        TE_TRY(te_graph_pool_init(&pool, memory, n, &t.ctx));
        for (const event &e : order) {
            const std::string name = std::to_string(e.micro), what = "saved of micro-batch " + name;
            const int i = e.micro;
            if (!e.backward) {
                void *p = nullptr;
                TE_TRY(te_graph_pool_acquire(&pool, &p, lane::size(), what.c_str(), &t.ctx));
                l[i].bind(p);
                TE_TRY(capture_forward(&f[i], &t, &l[i], &pool, ("forward" + name).c_str()));
                continue;
            }
            TE_TRY(capture_backward(&b[i], &t, &l[i], accumulate, &pool, ("backward" + name).c_str()));
            accumulate = true;
            if (!share) continue;
            te_graph_retire(&f[i]), te_graph_retire(&b[i]);
            TE_TRY(te_graph_pool_release(&pool, l[i].h[0].data, &t.ctx));
        }
        return TE_OK;
    }
};

schedule random_schedule(unsigned seed) {
    std::mt19937 random(seed);
    schedule order;
    int state[MICROS] = {0};
    while (order.size() < 2 * MICROS) {
        const int i = (int)(random() % MICROS);
        if (state[i] == 2) continue;
        order.push_back({state[i]++ == 1, i});
    }
    return order;
}

} // namespace

TEST_CASE("micro-batches in the order of a pipeline: graphs with one pool have the bits of the eager run") {
    const schedule orders[] = {{{false, 0}, {false, 1}, {true, 0}, {false, 2}, {true, 1}, {true, 2}}, // F0 F1 B0 F2 B1 B2
                               {{false, 0}, {false, 1}, {true, 1}, {true, 0}},
                               random_schedule(1),
                               random_schedule(2)};
    for (const schedule &order : orders) {
        if (brief() && &order != &orders[1]) continue;
        std::string text;
        for (const event &e : order) text += (e.backward ? " B" : " F") + std::to_string(e.micro);
        CAPTURE(text);
        gpt eager(5), t(5);
        eager.warm_up(), t.warm_up();

        // measures the pool with and without sharing; then captures with 256 bytes too few, and with exactly enough
        std::vector<pipeline> hold(1); // on the heap, because it is large
        pipeline &p = hold[0];
        OK(t, p.capture(t, order, nullptr, 0, false));
        const size_t alone = p.pool.high;
        p.destroy();
        OK(t, p.capture(t, order, nullptr, 0, true));
        const size_t shared = p.pool.high;
        t.refused(te_graph_replay(&p.f[0], nullptr, 0, &t.ctx), TE_ERROR_STATE, {"forward0", "measures"});
        p.destroy();
        if (order.size() > 4) CHECK(shared < alone);
        void *memory = t.memory(shared);
        t.refused(p.capture(t, order, memory, shared - TE_ALIGN, true), TE_ERROR_MEMORY, {"needs", "available"});
        p.destroy();
        OK(t, p.capture(t, order, memory, shared, true));
        CHECK(p.pool.high == shared);
        CHECK(p.pool.used == 0);

        lane lanes[MICROS];
        te_tensor loss[MICROS];
        for (int i = 0; i < MICROS; i++) lanes[i].bind(eager.memory(lane::size())), loss[i] = eager.new_loss();
        const te_tensor dh = eager.new_dh();
        for (unsigned round = 0; round < (brief() ? 1 : 3); round++) {
            bool accumulate = false;
            for (const event &e : order) {
                const unsigned seed = 100 * round + (unsigned)e.micro;
                CAPTURE(round, e.backward, e.micro);
                if (!e.backward) {
                    const ints x = numbers(seed), y = numbers(seed + 50);
                    OK(eager, eager.forward(loss[e.micro], &lanes[e.micro], eager.upload(x), eager.upload(y)));
                    OK(t, replay(&p.f[e.micro], &t.ctx, {te_named_ints("labels", t.upload(y), ROWS), te_named_ints("tokens", t.upload(x), ROWS)}));
                    CHECK(t.read(te_graph_output(&p.f[e.micro], "loss")) == eager.read(loss[e.micro]));
                    continue;
                }
                bytes dy = floats(seed);
                void *edy = eager.memory(dy.size()), *tdy = t.memory(dy.size());
                OK(eager, te_copy(&eager.ctx, edy, dy.data(), dy.size()));
                OK(t, te_copy(&t.ctx, tdy, dy.data(), dy.size()));
                OK(eager, eager.backward(dh, te_matrix(edy, TE_f32, ROWS, 1), &lanes[e.micro], accumulate));
                OK(t, replay(&p.b[e.micro], &t.ctx, {dloss_at("dloss", tdy)}));
                CHECK(t.read(te_graph_output(&p.b[e.micro], "dh")) == eager.read(dh));
                accumulate = true;
            }
            CHECK(t.gradients() == eager.gradients());
            OK(eager, te_adamw_step(&eager.opt, &eager.ctx));
            OK(t, te_adamw_step(&t.opt, &t.ctx));
            CHECK(t.weights() == eager.weights());
            CHECK(t.offset() == eager.offset());
        }
        p.destroy();
    }
}

// ---- the pool, and tensors of the caller -----------------------------------------------------------------------------

namespace {

te_status infer_of(const te_graph *g, const void *arg, te_context *ctx) {
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = B, batch.seq = T;
    return block_infer(te_graph_output(g, "y"), te_graph_input(g, "x"), (const block *)arg, &batch, ctx);
}
// y = 0 for any inputs
te_status zero_of(const te_graph *g, const void *, te_context *ctx) {
    const te_tensor y = te_graph_output(g, "y");
    return te_fill(ctx, y.data, 0, te__tensor_bytes(y));
}
const te_named two_in[] = {te_named_tensor("a", te_matrix(nullptr, TE_f32, 4, 8)), te_named_tensor("b", te_matrix(nullptr, TE_bf16, 2, 8))};
const te_named y_out[] = {te_named_tensor("y", te_matrix(nullptr, TE_f32, 4, 8))};

te_status capture_zero(te_graph *g, te_graph_pool *p, te_context *ctx) {
    const te_graph_spec spec = te_graph_spec_of("zero", zero_of, nullptr, 0, two_in, 2, y_out, 1);
    return te_graph_capture(g, &spec, p, ctx);
}

} // namespace

TEST_CASE("the output of one graph is the input of the next, and is not copied") {
    gpt t(9);
    t.warm_up();
    te_graph_pool pool;
    t.pool(&pool, 1 << 20);
    const te_tensor x = te_matrix(t.memory(ROWS * H * 2), TE_bf16, ROWS, H), y0 = t.new_dh(), y1 = t.new_dh();
    OK(t, te_fill_normal(x.data, TE_bf16, ROWS * H, 0.0f, 1.0f, 1, 0, &t.ctx));
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = B, batch.seq = T;
    OK(t, block_infer(y0, x, &t.b[0], &batch, &t.ctx));
    OK(t, block_infer(y1, y0, &t.b[1], &batch, &t.ctx));
    const bytes want = t.read(y1);

    te_graph g0, g1;
    const te_named in0 = te_named_tensor("x", te_matrix(nullptr, TE_bf16, ROWS, H)), out0 = te_named_tensor("y", in0.tensor);
    te_graph_spec spec = te_graph_spec_of("block0", infer_of, &t.b[0], 0, &in0, 1, &out0, 1);
    OK(t, te_graph_capture(&g0, &spec, &pool, &t.ctx));
    const te_tensor graph_y1 = t.new_dh();
    const te_named in1 = te_named_tensor("x", te_graph_output(&g0, "y")), out1 = te_named_tensor("y", graph_y1);
    spec = te_graph_spec_of("block1", infer_of, &t.b[1], 0, &in1, 1, &out1, 1);
    OK(t, te_graph_capture(&g1, &spec, nullptr, &t.ctx));
    CHECK(te_graph_input_at(&g1, 0).data == te_graph_output_at(&g0, 0).data);
    CHECK(te_graph_output(&g1, "y").data == graph_y1.data);
    OK(t, replay(&g0, &t.ctx, {te_named_tensor("x", x)}));
    OK(t, replay(&g1, &t.ctx, {in1}));
    CHECK(t.read(graph_y1) == want);
    te_graph_destroy(&g1), te_graph_destroy(&g0);

    te_graph g;
    OK(t, capture_zero(&g, &pool, &t.ctx));
    te_target counted = *t.ctx.target;
    real = t.ctx.target, counted.copy = counted_copy, copies = 0;
    const te_named a = te_named_tensor("a", te_graph_input(&g, "a")), b = te_named_tensor("b", te_graph_input(&g, "b"));
    const te_named other = te_named_tensor("b", te_matrix(x.data, TE_bf16, 2, 8));
    t.ctx.target = &counted;
    const te_status none = replay(&g, &t.ctx, {a, b});
    CHECK(copies == 0);
    const te_status one = replay(&g, &t.ctx, {other, a});
    CHECK(copies == 1);
    t.ctx.target = real;
    CHECK(none == TE_OK);
    CHECK(one == TE_OK);
    CHECK(t.read(te_graph_output(&g, "y")) == bytes(4 * 8 * 4, 0));
    CHECK(t.read(te_graph_input(&g, "b")) == t.read(other.tensor));
    te_graph_destroy(&g);
}

TEST_CASE("two graphs share a pool when the first is retired, and both can still be replayed") {
    gpt eager(13), t(13);
    eager.warm_up(), t.warm_up();
    te_graph_pool apart, shared;
    te_graph f[2];
    t.pool(&apart, 1 << 20), t.pool(&shared, 1 << 20);
    OK(t, capture_forward(&f[0], &t, &t.single, &apart));
    const size_t one = apart.high;
    CHECK(one == 3 * TE_ALIGN); // tokens, labels and loss have 128 bytes each
    OK(t, capture_forward(&f[1], &t, &t.single, &apart));
    CHECK(apart.high == 2 * one);
    te_graph_destroy(&f[0]), te_graph_destroy(&f[1]);
    CHECK(apart.used == 0);

    OK(t, capture_forward(&f[0], &t, &t.single, &shared));
    te_graph_retire(&f[0]);
    OK(t, capture_forward(&f[1], &t, &t.single, &shared));
    CHECK(shared.high == one);
    CHECK(te_graph_output(&f[0], "loss").data == te_graph_output(&f[1], "loss").data);
    const te_tensor loss = eager.new_loss();
    for (unsigned i = 0; i < 4; i++) {
        const ints x = numbers(i), y = numbers(9 + i);
        OK(eager, eager.forward(loss, &eager.single, eager.upload(x), eager.upload(y)));
        OK(t, replay(&f[i % 2], &t.ctx, {te_named_ints("labels", t.upload(y), ROWS), te_named_ints("tokens", t.upload(x), ROWS)}));
        CHECK(t.read(te_graph_output(&f[i % 2], "loss")) == eager.read(loss));
    }
    te_graph_destroy(&f[0]); // the first graph was retired, so its memory belongs to the second now
    CHECK(shared.used == one);
    te_graph_retire(&f[1]), te_graph_retire(&f[1]);
    CHECK(shared.used == 0);
    te_graph_destroy(&f[1]);
}

TEST_CASE("a pool returns the first gap that is large enough; its error says how much is missing") {
    machine m;
    te_graph_pool pool;
    te_status status = te_graph_pool_init(nullptr, nullptr, 0, &m.ctx);
    m.refused(status, TE_ERROR_NULL, {"pool"});
    char *base = (char *)m.memory(10 * TE_ALIGN);
    m.refused(te_graph_pool_init(&pool, base + 16, 100, &m.ctx), TE_ERROR_ALIGNMENT, {"pool", "256"});
    OK(m, te_graph_pool_init(&pool, base, 10 * TE_ALIGN, &m.ctx));
    void *a, *b, *c, *d;
    OK(m, te_graph_pool_acquire(&pool, &a, 3 * TE_ALIGN, "a", &m.ctx));
    OK(m, te_graph_pool_acquire(&pool, &b, TE_ALIGN + 1, "b", &m.ctx));
    OK(m, te_graph_pool_acquire(&pool, &c, 1, "c", &m.ctx));
    CHECK(a == base);
    CHECK(b == base + 3 * TE_ALIGN);
    CHECK(c == base + 5 * TE_ALIGN);
    OK(m, te_graph_pool_release(&pool, a, &m.ctx));
    m.refused(te_graph_pool_release(&pool, a, &m.ctx), TE_ERROR_VALUE, {"no piece"});
    m.refused(te_graph_pool_acquire(&pool, &d, 5 * TE_ALIGN, "saved of micro-batch 3", &m.ctx), TE_ERROR_MEMORY,
              {"saved of micro-batch 3", "1280", "2560", "1792", "1024"}); // bytes needed; of the pool; free; the largest gap
    m.refused(te_graph_pool_acquire(&pool, &d, SIZE_MAX, "d", &m.ctx), TE_ERROR_MEMORY, {"needs"});
    m.refused(te_graph_pool_acquire(&pool, &d, 0, "d", &m.ctx), TE_ERROR_SHAPE, {"0 bytes are wanted for d"});
    m.refused(te_graph_pool_acquire(nullptr, &d, 1, "d", &m.ctx), TE_ERROR_NULL, {"pool"});
    OK(m, te_graph_pool_acquire(&pool, &d, 4 * TE_ALIGN, "d", &m.ctx));
    CHECK(d == base + 6 * TE_ALIGN);
    OK(m, te_graph_pool_acquire(&pool, &a, 3 * TE_ALIGN, "a", &m.ctx));
    CHECK(a == base);
    CHECK(pool.used == pool.bytes);
    OK(m, te_graph_pool_init(&pool, nullptr, 0, &m.ctx)); // a pool without memory, which measures
    for (int i = 0; i < TE_GRAPH_BLOCKS; i++) OK(m, te_graph_pool_acquire(&pool, &a, 1, "a", &m.ctx));
    m.refused(te_graph_pool_acquire(&pool, &a, 1, "a", &m.ctx), TE_ERROR_MEMORY, {"1025", "1024"});
}

// ---- misuse ----------------------------------------------------------------------------------------------------------

TEST_CASE("a replay with invalid inputs is refused before anything is copied or run") {
    machine m, another;
    te_graph_pool pool;
    OK(m, te_graph_pool_init(&pool, m.memory(4096), 4096, &m.ctx));
    te_graph g;
    memset(&g, 0, sizeof g);
    m.refused(te_graph_replay(&g, nullptr, 0, &m.ctx), TE_ERROR_STATE, {"captured"});
    m.refused(te_graph_replay(nullptr, nullptr, 0, &m.ctx), TE_ERROR_STATE, {"captured"});
    CHECK(te_graph_replay(&g, nullptr, 0, nullptr) == TE_ERROR_NULL);
    OK(m, capture_zero(&g, &pool, &m.ctx));
    char *source = (char *)m.memory(1024, 1);
    const te_named a = te_named_tensor("a", te_matrix(source, TE_f32, 4, 8)), b = te_named_tensor("b", te_matrix(source + 512, TE_bf16, 2, 8));
    const auto as = [](te_named n, const char *name) { return n.name = name, n; };
    const auto with = [](te_named n, void *data, te_dtype dtype, int64_t rows, int64_t cols) { return n.tensor = te_matrix(data, dtype, rows, cols), n; };

    m.refused(replay(&g, &m.ctx, {a}), TE_ERROR_NULL, {"zero", "input b", "missing"});
    m.refused(replay(&g, &m.ctx, {b}), TE_ERROR_NULL, {"zero", "input a", "missing"});
    m.refused(replay(&g, &m.ctx, {}), TE_ERROR_NULL, {"input a", "missing"});
    m.refused(replay(&g, &m.ctx, {a, b, as(b, "mask")}), TE_ERROR_VALUE, {"zero", "no input is named mask"});
    m.refused(replay(&g, &m.ctx, {a, b, as(b, "y")}), TE_ERROR_VALUE, {"no input is named y"}); // an output
    m.refused(replay(&g, &m.ctx, {a, b, as(b, nullptr)}), TE_ERROR_VALUE, {"place 2", "2 inputs"});
    m.refused(replay(&g, &m.ctx, {a, b, b}), TE_ERROR_VALUE, {"input b", "twice"});
    m.refused(replay(&g, &m.ctx, {as(a, nullptr), b, a}), TE_ERROR_VALUE, {"input a", "twice"}); // once by position and once by name
    m.refused(replay(&g, &m.ctx, {b, with(a, source, TE_f32, 8, 4)}), TE_ERROR_SHAPE, {"input a", "[8, 4]", "[4, 8]"});
    m.refused(replay(&g, &m.ctx, {a, with(b, source, TE_bf16, 2, 9)}), TE_ERROR_SHAPE, {"input b", "[2, 9]", "[2, 8]"});
    m.refused(replay(&g, &m.ctx, {a, with(b, source, TE_f16, 2, 8)}), TE_ERROR_DTYPE, {"input b", "f16", "bf16"});
    m.refused(replay(&g, &m.ctx, {a, with(b, nullptr, TE_bf16, 2, 8)}), TE_ERROR_NULL, {"input b", "null"});
    m.refused(te_graph_replay(&g, nullptr, 2, &m.ctx), TE_ERROR_NULL, {"zero", "2 inputs"});
    m.refused(te_graph_replay(&g, &a, -1, &m.ctx), TE_ERROR_NULL, {"-1"});
    // sources that the replay itself overwrites: an input shifted by a row, and another input's memory
    const te_tensor sa = te_graph_input(&g, "a"), sb = te_graph_input(&g, "b");
    m.refused(replay(&g, &m.ctx, {with(a, (char *)sa.data + 32, TE_f32, 4, 8), b}), TE_ERROR_VALUE, {"input a", "copies"});
    m.refused(replay(&g, &m.ctx, {a, with(b, sa.data, TE_bf16, 2, 8)}), TE_ERROR_VALUE, {"input b", "input a", "copies"});
    another.refused(replay(&g, &another.ctx, {a, b}), TE_ERROR_STATE, {"zero", "another context"});
    CHECK(m.read(te_graph_output(&g, "y")) == bytes(128, 0xff));
    CHECK(m.read(sa) == bytes(128, 0xff));
    CHECK(m.read(sb) == bytes(32, 0xff));

    OK(m, replay(&g, &m.ctx, {b, a}));
    CHECK(m.read(te_graph_output(&g, "y")) == bytes(128, 0));
    CHECK(m.read(sa) == bytes(128, 1));
    CHECK(m.read(sb) == bytes(32, 1));
    // a is in its place and is not written, so b may be copied from it
    OK(m, replay(&g, &m.ctx, {te_named_tensor("a", sa), with(b, sa.data, TE_bf16, 2, 8)}));

    OK(m, te_context_reserve(&m.ctx, 1 << 16)); // replaces the workspace, whose address the graph contains
    m.refused(replay(&g, &m.ctx, {b, a}), TE_ERROR_STATE, {"zero", "workspace"});
    te_graph_destroy(&g);
    m.refused(replay(&g, &m.ctx, {b, a}), TE_ERROR_STATE, {"captured"});
    te_graph_destroy(&g);
    te_graph_destroy(nullptr);
}

TEST_CASE("a capture with an invalid spec is refused and takes nothing from the pool") {
    machine m;
    te_graph_pool pool;
    OK(m, te_graph_pool_init(&pool, m.memory(4096), 1024, &m.ctx)); // four pieces of 256 bytes
    te_graph g;
    const auto capture = [&](std::vector<te_named> in, std::vector<te_named> out, te_graph_pool *p) {
        memset(&g, 0xff, sizeof g);
        const te_graph_spec spec = te_graph_spec_of("wrong", zero_of, nullptr, 0, in.data(), (int)in.size(), out.data(), (int)out.size());
        const te_status status = te_graph_capture(&g, &spec, p, &m.ctx);
        CHECK(pool.used == 0);
        CHECK(pool.count == 0);
        CHECK(g.tensor == nullptr);
        return status;
    };
    const te_named a = two_in[0], b = two_in[1], y = y_out[0];
    const auto with = [](te_named n, void *data, int dtype, int64_t rows, int64_t cols) { return n.tensor = te_matrix(data, (te_dtype)dtype, rows, cols), n; };
    m.refused(capture({a, b, a}, {y}, &pool), TE_ERROR_VALUE, {"wrong", "two inputs are named a"});
    m.refused(capture({a, b}, {y, y}, &pool), TE_ERROR_VALUE, {"wrong", "two outputs are named y"});
    m.refused(capture({a, with(b, nullptr, TE_bf16, 0, 8)}, {y}, &pool), TE_ERROR_SHAPE, {"input b", "[0, 8]"});
    m.refused(capture({a}, {with(y, nullptr, TE_f32, INT64_MAX / 2, 8)}, &pool), TE_ERROR_SHAPE, {"output y"});
    m.refused(capture({with(a, nullptr, TE_DTYPE_COUNT, 4, 8)}, {y}, &pool), TE_ERROR_DTYPE, {"input a", "dtype"});
    m.refused(capture({with(a, (void *)8, TE_f32, 4, 8)}, {y}, &pool), TE_ERROR_ALIGNMENT, {"input a", "16"});
    m.refused(capture({a, b}, {y}, nullptr), TE_ERROR_NULL, {"input a", "pool"});
    // bytes needed; free
    m.refused(capture({a, b}, {with(y, nullptr, TE_f32, 16, 16)}, &pool), TE_ERROR_MEMORY, {"output y of graph wrong", "1024", "512"});
    m.refused(capture({a, b, with(te_named_ints(nullptr, nullptr, 1), nullptr, TE_f32, 16, 16)}, {y}, &pool), TE_ERROR_MEMORY, {"input #2"});

    te_graph_spec spec = te_graph_spec_of("wrong", nullptr, nullptr, 0, two_in, 2, y_out, 1);
    m.refused(te_graph_capture(&g, &spec, &pool, &m.ctx), TE_ERROR_NULL, {"function"});
    m.refused(te_graph_capture(nullptr, &spec, &pool, &m.ctx), TE_ERROR_NULL, {"null"});
    m.refused(te_graph_capture(&g, nullptr, &pool, &m.ctx), TE_ERROR_NULL, {"null"});
    CHECK(te_graph_capture(&g, &spec, &pool, nullptr) == TE_ERROR_NULL);
    spec = te_graph_spec_of("wrong", zero_of, nullptr, 8, two_in, 2, y_out, 1);
    m.refused(te_graph_capture(&g, &spec, &pool, &m.ctx), TE_ERROR_NULL, {"wrong", "argument"});
    spec = te_graph_spec_of("wrong", zero_of, nullptr, 0, nullptr, 2, y_out, 1);
    m.refused(te_graph_capture(&g, &spec, &pool, &m.ctx), TE_ERROR_NULL, {"wrong", "inputs"});
    spec = te_graph_spec_of("wrong", zero_of, nullptr, 0, two_in, -1, y_out, 1);
    m.refused(te_graph_capture(&g, &spec, &pool, &m.ctx), TE_ERROR_SHAPE, {"wrong", "-1"});
    spec = te_graph_spec_of(nullptr, zero_of, nullptr, 0, two_in, 2, y_out, 1); // the name is optional
    OK(m, te_graph_capture(&g, &spec, &pool, &m.ctx));
    te_graph_destroy(&g);
}

namespace {

// Functions with calls that cannot be captured. Each ends with a valid forward, so the capture must notice the call before it.
struct mistake { gpt *t; void *held; te_graph *other; te_graph_pool *pool; bool goes_on; };

te_status after(te_status status, const te_graph *g, const mistake *w) {
    if (status != TE_OK && !w->goes_on) return status;
    return w->t->forward(te_graph_output(g, "loss"), &w->t->single, te_graph_input(g, "tokens").data, te_graph_input(g, "labels").data);
}
te_status allocates(const te_graph *g, const void *arg, te_context *ctx) {
    void *p = nullptr;
    return after(te_allocate(ctx, &p, 64), g, (const mistake *)arg);
}
te_status releases(const te_graph *g, const void *arg, te_context *ctx) { return te_release(ctx, ((const mistake *)arg)->held), after(TE_OK, g, (const mistake *)arg); }
te_status waits_for(const te_graph *g, const void *arg, te_context *ctx) { return after(te_synchronize(ctx), g, (const mistake *)arg); }
te_status asks_rng(const te_graph *g, const void *arg, te_context *ctx) {
    te_rng rng;
    return after(te_rng_get(&rng, ctx), g, (const mistake *)arg);
}
te_status wrong_shape(const te_graph *g, const void *arg, te_context *ctx) {
    const mistake *w = (const mistake *)arg;
    return stem_forward(te_matrix(w->held, TE_bf16, ROWS, H + 1), &w->t->single.saved[0], te_none(), &w->t->s, &w->t->single.batch, ctx) == TE_OK
               ? after(TE_OK, g, w) : TE_ERROR_SHAPE;
}
te_status replays(const te_graph *g, const void *arg, te_context *ctx) {
    const mistake *w = (const mistake *)arg;
    return after(te_graph_replay(w->other, two_in, 2, ctx), g, w);
}
te_status captures(const te_graph *g, const void *arg, te_context *ctx) {
    const mistake *w = (const mistake *)arg;
    te_graph inner;
    return after(capture_zero(&inner, w->pool, ctx), g, w);
}

} // namespace

TEST_CASE("a function that cannot be captured gives a clear error and leaves the context usable") {
    gpt eager(17), t(17, true);
    eager.warm_up(), t.warm_up();
    te_graph_pool pool;
    t.pool(&pool, 1 << 20);
    te_graph other;
    OK(t, capture_zero(&other, &pool, &t.ctx));
    const size_t used = pool.used;
    void *const stream = t.ctx.stream;
    const te_target *const target = t.ctx.target;
    mistake w = {&t, t.memory(1 << 16), &other, &pool, false};
    const ints x = numbers(4);
    const int32_t *tx = t.upload(x), *ex = eager.upload(x);
    const te_tensor loss = eager.new_loss(), t_loss = t.new_loss();

    // On CUDA the capture fails. The host has no capture: there the first replay fails.
    const auto try_it = [&](te_graph_fn fn, te_status expected, std::initializer_list<const char *> words) {
        te_graph g;
        const te_graph_spec spec = te_graph_spec_of("bad", fn, &w, sizeof w, tokens_and_labels, 2, just_loss, 1);
        te_status status = te_graph_capture(&g, &spec, &pool, &t.ctx);
#if TE_CUDA
        t.refused(status, expected, words);
        CHECK(g.tensor == nullptr);
        cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusActive;
        CHECK(cudaStreamIsCapturing((cudaStream_t)stream, &capturing) == cudaSuccess);
        CHECK(capturing == cudaStreamCaptureStatusNone);
        CHECK(cudaGetLastError() == cudaSuccess);
#else
        OK(t, status);
        status = replay(&g, &t.ctx, {te_named_ints("labels", tx, ROWS), te_named_ints("tokens", tx, ROWS)});
        t.refused(status, expected, words);
        te_graph_destroy(&g);
#endif
        CHECK(pool.used == used);
        CHECK(t.ctx.stream == stream);
        CHECK(t.ctx.target == target);
        // the next calls work, with the same results as in the eager run
        const te_rng rng = {17, 5};
        OK(t, te_rng_set(&rng, &t.ctx));
        OK(eager, te_rng_set(&rng, &eager.ctx));
        OK(t, t.forward(t_loss, &t.single, tx, tx));
        OK(eager, eager.forward(loss, &eager.single, ex, ex));
        CHECK(t.read(t_loss) == eager.read(loss));
    };
    SECTION("allocates") { try_it(allocates, TE_ERROR_STATE, {"bad", "allocates"}); }
    SECTION("releases") { try_it(releases, TE_ERROR_STATE, {"bad", "releases"}); }
    SECTION("waits") { try_it(waits_for, TE_ERROR_STATE, {"bad", "waits"}); }
    SECTION("waits within a call") { try_it(asks_rng, TE_ERROR_STATE, {"bad", TE_CUDA ? "pageable" : "waits"}); }
    SECTION("is refused by the library") { try_it(wrong_shape, TE_ERROR_SHAPE, {"stem", "65"}); }
    SECTION("replays a graph") { try_it(replays, TE_ERROR_STATE, {"zero", "within the function"}); }
    SECTION("captures a graph") { try_it(captures, TE_ERROR_STATE, {"zero", "within the function"}); }
    SECTION("goes on after a refusal") {
        w.goes_on = true;
        try_it(allocates, TE_ERROR_STATE, {"bad", "allocates"});
        try_it(waits_for, TE_ERROR_STATE, {"bad", "waits"});
    }
#if TE_CUDA
    SECTION("waits behind the context's back") {
        const te_graph_fn fn = [](const te_graph *g, const void *arg, te_context *ctx) {
            (void)cudaStreamSynchronize((cudaStream_t)ctx->stream); // fails, and invalidates the capture
            const te_status status = after(TE_OK, g, (const mistake *)arg);
            return status == TE_OK ? TE_OK : te_fail(ctx, TE_ERROR_CUDA, "cannot be captured");
        };
        try_it(fn, TE_ERROR_CUDA, {"cannot be captured"});
    }
    SECTION("copies pageable memory") {
        const te_graph_fn fn = [](const te_graph *g, const void *arg, te_context *ctx) {
            const float local[4] = {1, 2, 3, 4};
            TE_TRY(te_copy(ctx, te_graph_output(g, "loss").data, local, sizeof local));
            return after(TE_OK, g, (const mistake *)arg);
        };
        try_it(fn, TE_ERROR_STATE, {"bad", "pageable"});
    }
    SECTION("puts work on the default stream") {
        const te_graph_fn fn = [](const te_graph *g, const void *arg, te_context *ctx) {
            (void)cudaMemsetAsync(te_graph_output(g, "loss").data, 0, 4, nullptr);
            const te_status status = after(TE_OK, g, (const mistake *)arg);
            return status == TE_OK ? TE_OK : te_fail(ctx, TE_ERROR_CUDA, "cannot be captured");
        };
        try_it(fn, TE_ERROR_CUDA, {"cannot be captured"});
    }
#endif
    te_graph_destroy(&other);
}

TEST_CASE("the argument is copied at the capture, or passed by pointer if arg_bytes is 0") {
    machine m;
    te_graph_pool pool;
    OK(m, te_graph_pool_init(&pool, m.memory(4096), 4096, &m.ctx));
    const te_graph_fn fn = [](const te_graph *g, const void *arg, te_context *ctx) {
        const te_tensor y = te_graph_output_at(g, 0);
        return te_fill(ctx, y.data, *(const int *)arg, te__tensor_bytes(y));
    };
    int byte = 3;
    te_graph copied, as_is;
    te_graph_spec spec = te_graph_spec_of("copied", fn, &byte, sizeof byte, nullptr, 0, y_out, 1);
    OK(m, te_graph_capture(&copied, &spec, &pool, &m.ctx));
    spec.name = "as it is", spec.arg_bytes = 0;
    OK(m, te_graph_capture(&as_is, &spec, &pool, &m.ctx));
    OK(m, te_graph_replay(&as_is, nullptr, 0, &m.ctx));
    CHECK(m.read(te_graph_output(&as_is, "y")) == bytes(128, 3));
    byte = 4;
    OK(m, te_graph_replay(&copied, nullptr, 0, &m.ctx));
    CHECK(m.read(te_graph_output(&copied, "y")) == bytes(128, 3));
    te_graph_destroy(&copied), te_graph_destroy(&as_is);
    CHECK(pool.used == 0);
}

#if TE_CUDA
namespace {

int small_fills(cudaGraph_t graph) {
    size_t count = 0;
    REQUIRE(cudaGraphGetNodes(graph, nullptr, &count) == cudaSuccess);
    std::vector<cudaGraphNode_t> nodes(count);
    REQUIRE((!count || cudaGraphGetNodes(graph, nodes.data(), &count) == cudaSuccess));
    int found = 0;
    for (cudaGraphNode_t node : nodes) {
        cudaGraphNodeType type;
        cudaMemsetParams p;
        REQUIRE(cudaGraphNodeGetType(node, &type) == cudaSuccess);
        if (type != cudaGraphNodeTypeMemset) continue;
        REQUIRE(cudaGraphMemsetNodeGetParams(node, &p) == cudaSuccess);
        found += p.height == 1 && p.width * p.elementSize <= TE_SMALL_FILL_MAX_BYTES;
    }
    return found;
}
void run(cudaGraph_t graph, machine &m) {
    cudaGraphExec_t exec;
    REQUIRE(cudaGraphInstantiateWithFlags(&exec, graph, 0) == cudaSuccess);
    REQUIRE(cudaGraphLaunch(exec, (cudaStream_t)m.ctx.stream) == cudaSuccess);
    OK(m, te_synchronize(&m.ctx));
    cudaGraphExecDestroy(exec);
}

} // namespace

TEST_CASE("small memsets of a graph are replaced by kernels that write the same bytes in the same order") {
    machine m(1, true);
    const size_t pool_memory = 1 << 16;
    char *const a = (char *)m.memory(pool_memory);
    te__small_fills_by_kernels(&m.ctx);
    const void *kernel = ((const te_launches *)m.ctx.launches)->small_fill_kernel;
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    std::mt19937 random(seed);
    cudaGraph_t graph;
    REQUIRE(cudaGraphCreate(&graph, 0) == cudaSuccess);
    // Memsets that overlap. Each depends on the last one and on some of those before; some are large, some have two dimensions.
    struct fill { cudaGraphNode_t node; int small, before, behind; };
    std::vector<fill> fills;
    int small = 0, stay = 0;
    for (int i = 0; i < 60; i++) {
        cudaMemsetParams p = {};
        p.elementSize = 1u << random() % 3, p.value = (unsigned)random() >> (32 - 8 * p.elementSize), p.pitch = 4 * 4096;
        p.width = i % 7 == 3 ? 4000 : 1 + random() % (TE_SMALL_FILL_MAX_BYTES / p.elementSize), p.height = i % 11 == 5 ? 3 : 1;
        p.dst = a + random() % 1000 * 4;
        std::vector<cudaGraphNode_t> before;
        for (size_t k = 1, largest = 1 + random() % 6; k <= largest && k <= fills.size(); k++) {
            before.push_back(fills[fills.size() - k].node);
            fills[fills.size() - k].behind++;
        }
        fill made = {nullptr, p.height == 1 && p.width * p.elementSize <= TE_SMALL_FILL_MAX_BYTES, (int)before.size(), 0};
        REQUIRE(cudaGraphAddMemsetNode(&made.node, graph, before.data(), before.size(), &p) == cudaSuccess);
        fills.push_back(made);
    }
    for (const fill &f : fills) small += f.small, stay += f.small && (f.before > TE_SMALL_FILL_MAX_EDGES || f.behind > TE_SMALL_FILL_MAX_EDGES);
    CHECK(small_fills(graph) == small);
    run(graph, m);
    const bytes expected = m.read(a, pool_memory);
    OK(m, te_fill(&m.ctx, a, 0xff, pool_memory));
    te_small_fills_to_kernels(nullptr, graph);
    CHECK(small_fills(graph) == small);
    te_small_fills_to_kernels(kernel, graph);
    CHECK(small_fills(graph) == stay);
    CHECK(stay < small);
    run(graph, m);
    CHECK(m.read(a, pool_memory) == expected);
    cudaGraphDestroy(graph);
}

TEST_CASE("the graph of a model's pass has no small memsets") {
    machine m(1, true);
    te_context *const ctx = &m.ctx;
    block one;
    block_saved saved;
    const int rows = 128;
    void *params = m.memory(block_param_bytes()), *grads = m.memory(block_grad_bytes());
    saved.bytes = block_saved_bytes(rows), saved.memory = m.memory(saved.bytes);
    OK(m, block_bind(&one, params, (float *)grads, ctx));
    OK(m, te_model_randomize(&one.model, 0.02f, 1, 0, ctx));
    OK(m, te_context_reserve(ctx, block_workspace_bytes(&one, rows, ctx)));
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 8, batch.seq = 16;
    const te_tensor x = te_matrix(m.memory(rows * H * 2, 0x3c), TE_bf16, rows, H), y = te_matrix(m.memory(rows * H * 2), TE_bf16, rows, H);
    const te_tensor dx = te_matrix(m.memory(rows * H * 2), TE_bf16, rows, H), dy = te_matrix(m.memory(rows * H * 2, 0x3c), TE_bf16, rows, H);
    for (int i = 0; i < 2; i++) {
        OK(m, block_forward(y, &saved, x, &one, &batch, ctx));
        OK(m, block_backward(dx, dy, &saved, &one, &batch, ctx));
    }
    OK(m, te_synchronize(ctx));
    const te_launches *s = (const te_launches *)ctx->launches;
    CHECK(s->replays == 2);
    CHECK(s->small_fill_kernel);
    for (int i = 0; i < s->replays; i++) CHECK(small_fills(s->replay[i]->graph) == 0);
}
#endif
