// varlen_test.cc -- lists on sequences of different lengths that are packed without padding (te_batch.cu_seqlens): each sequence is compared with
// the reference of it alone, and invalid batches are refused. Also positions of rows from the caller (te_batch.positions). The attention kernels for
// packed sequences are tested in attention_options_test.cc.
#include "harness.h"
#include "te/te.h"

// every op that depends on where a sequence begins, and a bias in front of attention, whose gradient attention's backward may compute
MODEL(whole, f32, (embedding, e, 61, 64), (positions, p, 90, 64), (linear, l, 64, 4 * 32), (rope, r, 2, 1, 32), (attention, a, 2, 1, 32, (varlen, 1), (sinks, 1)),
      (linear, l2, 64, 3 * 64), (bias, b, 3 * 64), (attention, c, 1, 1, 64, (varlen, 1), (causal, 0)), (rmsnorm, n, 64), (linear, head, 64, 61),
      (cross_entropy, loss, 61))
MODEL(ends, f32, (linear, l, 40, 4 * 32), (attention, a, 2, 1, 32, (window_left, 20), (varlen, 1)), (last_token, t), (linear, f, 64, 20))
MODEL(rotated, f32, (head_norm, n, 2, 1, 16), (rope, r, 2, 1, 16, (scaling, yarn), (factor, 4), (original_length, 64)), (rope, r2, 2, 1, 16, (interleaved, 1)))
MODEL(modulated, f32, (linear, l, 40, 40), (fork, x), (last_token, t), (linear, ada, 40, 120), (fork, mod), (load, x), (modulate, m, mod), (gate, g, mod, (first, 80)),
      (linear, f, 40, 20))
// an encoder, as for sentence embeddings; sequences of padding may stand between the others
MODEL(encoder, f32, (embedding, e, 61, 32), (positions, p, 90, 32), (layernorm, n, 32, (eps, 1e-12f)), TE_BERT_BLOCK(b, 32, 64, 2, 0, 1e-12f))
MODEL(equal, f32, (attention, a, 2, 1, 32)) // without (varlen, 1) it accepts no cu_seqlens

namespace {

// A list on packed sequences. compare() checks it against the reference of each sequence alone.
struct packed {
    const subject &s;
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    source random;
    instance m;
    const te_plan *plan;
    std::vector<int32_t> cu, tokens, labels;
    size_t rows, out_rows;
    buffer cu_there, tokens_there, labels_there, x, y, dx, dy, memory;
    reference::vec x_values, dy_values;
    te_batch batch;
    te_saved saved;

    packed(const subject &sub, const std::vector<int> &lengths, unsigned seed)
        : s(sub), random(seed), m(sub, ctx), plan(sub.plan()), cu(starts(lengths)), tokens((size_t)cu.back()), labels((size_t)cu.back()),
          rows((size_t)cu.back()), out_rows(te__out_rows(plan) == TE_ROWS_tokens ? rows : lengths.size()), cu_there(ctx, cu.size() * 4),
          tokens_there(ctx, rows * 4), labels_there(ctx, rows * 4), x(ctx, rows * (size_t)plan->in * 4, 16),
          y(ctx, out_rows * (size_t)plan->out * 4, 16), dx(ctx, x.bytes, 16), dy(ctx, y.bytes, 16), memory(ctx, s.saved_bytes((int64_t)rows)) {
        m.draw(random);
        for (int32_t &t : tokens) t = random.below(61);
        for (int32_t &l : labels) l = random.below(5) ? random.below(61) : -100;
        x_values = random.draw(te__from_tokens(plan) ? 0 : rows * (size_t)plan->in, TE_f32), dy_values = random.draw(out_rows * (size_t)plan->out, TE_f32);
        x.write(x_values, TE_f32), dy.write(dy_values, TE_f32), cu_there.write_ints(cu);
        tokens_there.write_ints(tokens), labels_there.write_ints(labels);
        memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved);
        batch.batch = 1, batch.seq = (int)rows, batch.position = 3, batch.tokens = (int32_t *)tokens_there.data(), batch.labels = (int32_t *)labels_there.data();
        batch.sequences = (int)lengths.size(), batch.cu_seqlens = (int32_t *)cu_there.data();
        for (const int n : lengths) batch.max_seqlen = std::max(batch.max_seqlen, n);
        saved.memory = memory.data(), saved.bytes = memory.bytes;
        REQUIRE(te_context_reserve(ctx, s.workspace_bytes(m.memory.data(), (int64_t)rows, ctx)) == TE_OK);
    }
    static std::vector<int32_t> starts(const std::vector<int> &lengths) {
        std::vector<int32_t> v(1, 0);
        for (const int n : lengths) v.push_back(v.back() + n);
        return v;
    }
    te_tensor of(const buffer &b) { return te__from_tokens(plan) ? te_none() : te_matrix(b.data(), TE_f32, (int64_t)rows, plan->in); }
    te_tensor out_of(const buffer &b) { return te_matrix(b.data(), TE_f32, (int64_t)out_rows, plan->out); }
    te_status forward() { return s.forward(out_of(y), &saved, of(x), m.memory.data(), &batch, ctx); }
    te_status infer() { return s.infer(out_of(y), of(x), m.memory.data(), &batch, ctx); }
    te_status backward() { return s.backward(of(dx), out_of(dy), &saved, m.memory.data(), &batch, ctx); }
    bool says(const char *text) {
        INFO(te_last_error(ctx));
        CHECK(std::string(te_last_error(ctx)).find(text) != std::string::npos);
        return std::string(te_last_error(ctx)).find(text) != std::string::npos;
    }

    // Compares y, dx and the gradients with the reference of each sequence of `cu`.
    void compare() {
        const reference::rounding exact;
        const auto part = [](const reference::vec &v, size_t from, size_t n, size_t width) {
            return v.empty() ? v : reference::vec(v.begin() + (long)(from * width), v.begin() + (long)((from + n) * width));
        };
        const auto add = [](reference::vec &to, const reference::vec &v) {
            if (to.empty()) to.assign(v.size(), 0);
            for (size_t i = 0; i < v.size(); i++) to[i] += v[i];
        };
        const bool last = te__out_rows(plan) != TE_ROWS_tokens;
        reference::vec want_y, want_dx;
        std::vector<reference::vec> want(m.param.size());
        for (size_t i = 0; i + 1 < cu.size(); i++) {
            const size_t first = (size_t)cu[i], n = (size_t)cu[i + 1] - first;
            // an empty sequence has a row of zeros, and the linear maps it to zeros
            if (!n && last) want_y.resize(want_y.size() + (size_t)plan->out, 0);
            if (!n) continue;
            reference::call call;
            call.batch = 1, call.seq = (int)n, call.position = batch.position, call.ignore_index = -100;
            call.tokens = tokens.data() + first, call.labels = labels.data() + first;
            const reference::values v =
                reference::forward(m.ops, m.param, part(x_values, first, n, (size_t)plan->in), reference::edges(), call, exact);
            const reference::vec of_y = part(dy_values, last ? i : first, last ? 1 : n, (size_t)plan->out);
            const reference::gradients g = reference::backward(m.ops, m.param, v, of_y, reference::edges(), call, exact, exact);
            want_y.insert(want_y.end(), v.out.back().begin(), v.out.back().end()), want_dx.insert(want_dx.end(), g.dx.begin(), g.dx.end());
            for (size_t k = 0; k < want.size(); k++) add(want[k], g.params[k]);
        }
        check_close("y", y.read(TE_f32), want_y, 1e-5);
        if (!x_values.empty()) check_close("dx", dx.read(TE_f32), want_dx, 1e-5);
        for (size_t k = 0; k < want.size(); k++)
            check_close(m.model()->param[k].op, m.grads.read(TE_f32, m.grad_at((int)k), m.elements((int)k)), want[k], 1e-5);
    }
};

} // namespace

TEST_CASE("packed sequences match the reference of each of them alone", "[varlen]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    for (const subject *s : {&whole_subject, &ends_subject, &modulated_subject, &encoder_subject})
        for (const std::vector<int> &lengths : std::vector<std::vector<int>>{{1}, {5, 0, 1, 70, 0, 64, 33}, {0, 87, 2, 2, 2}}) {
            CAPTURE(s->text, lengths.size());
            packed p(*s, lengths, seed);
            REQUIRE(p.infer() == TE_OK);
            const std::vector<uint8_t> inferred = p.y.raw();
            p.y.poison();
            const te_status status = p.forward();
            INFO(te_last_error(p.ctx));
            REQUIRE(status == TE_OK);
            CHECK(p.y.raw() == inferred);
            REQUIRE(p.backward() == TE_OK);
            p.compare();
            // packed sequences of equal length have the bits of a batch without cu_seqlens
            packed q(*s, {30, 30, 30}, seed);
            REQUIRE(q.forward() == TE_OK);
            REQUIRE(q.backward() == TE_OK);
            const std::vector<uint8_t> y = q.y.raw();
            q.compare();
            q.batch.batch = 3, q.batch.seq = 30, q.batch.sequences = q.batch.max_seqlen = 0, q.batch.cu_seqlens = nullptr;
            REQUIRE(q.forward() == TE_OK);
            REQUIRE(q.backward() == TE_OK);
            CHECK(q.y.raw() == y);
            q.compare();
        }
}

TEST_CASE("invalid batches of packed sequences are refused", "[varlen]") {
    packed p(whole_subject, {5, 0, 7}, 1);
    const te_batch good = p.batch;
    const auto refuse = [&](te_status status, const char *text) {
        CHECK(p.forward() == status);
        CHECK(p.says(text));
        CHECK(p.infer() == status);
        p.batch = good;
        CHECK(p.y.poisoned());
    };
    p.batch.cu_seqlens = nullptr, refuse(TE_ERROR_NULL, "batch.cu_seqlens is null");
    p.batch.cu_seqlens = (const int32_t *)(const void *)((const char *)good.cu_seqlens + 2), refuse(TE_ERROR_ALIGNMENT, "batch.cu_seqlens");
    p.batch.sequences = 0, refuse(TE_ERROR_SHAPE, "batch.sequences is 0");
    p.batch.sequences = -1, refuse(TE_ERROR_SHAPE, "batch.sequences is -1");
    p.batch.sequences = 13, refuse(TE_ERROR_SHAPE, "batch.sequences is 13; with cu_seqlens it is 1 to the number of rows, 12");
    for (const int n : {0, -1, INT32_MIN}) p.batch.max_seqlen = n, refuse(TE_ERROR_SHAPE, "batch.max_seqlen is");
    p.batch.max_seqlen = INT32_MAX, refuse(TE_ERROR_VALUE, "position 3 must not be negative or overflow");
    p.batch.position = 84, refuse(TE_ERROR_SHAPE, "positions p holds 90, the batch goes to 91");
    p.batch.tokens = (const int32_t *)p.memory.data();
    CHECK(p.forward() == TE_ERROR_VALUE); // tokens overlap saved.memory
    CHECK(p.says(TE_CUDA ? "overlaps" : "token"));
    p.batch = good;
    if (!TE_CUDA) { // invalid values of cu_seqlens, which the host checks
        const auto with = [&](const std::vector<int32_t> &cu, const char *text) {
            p.cu_there.write_ints(cu);
            refuse(TE_ERROR_VALUE, text);
        };
        with({1, 5, 5, 12}, "batch.cu_seqlens[0] is 1 behind 0");
        with({0, 6, 5, 12}, "batch.cu_seqlens[2] is 5 behind 6");
        with({0, 5, 4, 12}, "batch.cu_seqlens[2] is 4 behind 5");
        with({0, 5, 5, 11}, "batch.cu_seqlens ends at 11, the batch has 12 rows");
        with({0, 5, 6, 13}, "batch.cu_seqlens ends at 13, the batch has 12 rows");
        with({0, 4, 4, 12}, "by batch.max_seqlen, 7, at most");
        with({0, INT32_MIN, 5, 12}, "batch.cu_seqlens[1] is -2147483648 behind 0");
        p.cu_there.write_ints(p.cu);
    }
    // backward must get the batch of its forward
    REQUIRE(p.forward() == TE_OK);
    const auto refuse_backward = [&](te_status status, const char *text) {
        CHECK(p.backward() == status);
        CHECK(p.says(text));
        p.batch = good;
    };
    buffer elsewhere(p.ctx, p.cu_there.bytes);
    elsewhere.write_ints(p.cu);
    p.batch.cu_seqlens = (const int32_t *)elsewhere.data(), refuse_backward(TE_ERROR_VALUE, "the forward had its cu_seqlens at");
    p.batch.max_seqlen++, refuse_backward(TE_ERROR_SHAPE, "the forward had 3 sequences of at most 7 rows in cu_seqlens, this batch has 3 of 8");
    p.batch.sequences = p.batch.max_seqlen = 0, p.batch.cu_seqlens = nullptr, refuse_backward(TE_ERROR_SHAPE, "this batch has 0 of 0");
    REQUIRE(p.backward() == TE_OK);
    p.compare();
}

TEST_CASE("attention accepts packed sequences only with (varlen, 1)", "[varlen]") {
    packed p(equal_subject, {5, 0, 7}, 1);
    CHECK(p.forward() == TE_ERROR_VALUE);
    CHECK(p.says("equal: cu_seqlens is given, and the attention was declared without (varlen, 1)"));
    CHECK(p.infer() == TE_ERROR_VALUE);
    CHECK(p.y.poisoned());
    p.batch.sequences = p.batch.max_seqlen = 0, p.batch.cu_seqlens = nullptr;
    CHECK(p.forward() == TE_OK);
}

#if TE_CUDA
TEST_CASE("a captured graph runs with the lengths that cu_seqlens has at the replay", "[varlen]") {
    packed p(whole_subject, {5, 0, 1, 70, 0, 64, 33}, fresh_seed());
    REQUIRE(p.forward() == TE_OK); // a first run outside the capture queries the device and loads the kernels
    REQUIRE(p.backward() == TE_OK);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    p.ctx->stream = stream;
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK(p.forward() == TE_OK);
    CHECK(p.backward() == TE_OK);
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    for (const std::vector<int> &lengths : std::vector<std::vector<int>>{{33, 64, 0, 70, 1, 0, 5}, {25, 25, 25, 25, 25, 24, 24}, {70, 70, 33, 0, 0, 0, 0}}) {
        p.cu = packed::starts(lengths);
        p.cu_there.write_ints(p.cu), p.y.poison(), p.memory.poison(), p.m.grads.poison();
        REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
        REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess);
        REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
        p.compare();
    }
    REQUIRE(cudaGraphExecDestroy(exec) == cudaSuccess);
    REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
    p.ctx->stream = nullptr;
    REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}
#endif

TEST_CASE("rope rotates a row by the position that the caller passes", "[varlen]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    packed p(rotated_subject, {30, 30, 30}, seed);
    p.batch.batch = 3, p.batch.seq = 30, p.batch.sequences = p.batch.max_seqlen = 0, p.batch.cu_seqlens = nullptr;
    const auto run = [&] {
        REQUIRE(p.forward() == TE_OK);
        const std::vector<uint8_t> y = p.y.raw();
        p.y.poison();
        REQUIRE(p.infer() == TE_OK);
        CHECK(p.y.raw() == y);
        REQUIRE(p.backward() == TE_OK);
        const std::vector<uint8_t> dx = p.dx.raw(), grads = p.m.grads.raw();
        p.y.poison(), p.dx.poison(), p.m.grads.poison();
        return std::vector<std::vector<uint8_t>>{y, dx, grads};
    };
    const auto rows_of = [&](const std::vector<uint8_t> &v, size_t row, size_t n) {
        const size_t bytes = (size_t)p.plan->in * 4;
        return std::vector<uint8_t>(v.begin() + (long)(row * bytes), v.begin() + (long)((row + n) * bytes));
    };
    const auto counted = run(); // with batch.position 3
    std::vector<int32_t> positions(p.rows);
    for (size_t r = 0; r < p.rows; r++) positions[r] = 3 + (int32_t)r % 30;
    buffer there(p.ctx, p.rows * 4);
    there.write_ints(positions);
    p.batch.positions = (const int32_t *)there.data(), p.batch.position = 0;
    CHECK(run() == counted);
    // random positions: each row must have the bits of a batch whose batch.position gives it that position
    for (int32_t &t : positions) t = p.random.below(100000);
    there.write_ints(positions);
    const auto mixed = run();
    p.batch.positions = nullptr;
    for (size_t r = 0; r < p.rows; r++) {
        p.batch.position = positions[r] - (int32_t)r % 30;
        if (p.batch.position < 0) continue;
        REQUIRE(p.forward() == TE_OK);
        REQUIRE(p.backward() == TE_OK);
        CHECK(rows_of(p.y.raw(), r, 1) == rows_of(mixed[0], r, 1));
        CHECK(rows_of(p.dx.raw(), r, 1) == rows_of(mixed[1], r, 1));
    }
    p.y.poison();
    p.batch.position = 1, p.batch.positions = (const int32_t *)there.data();
    CHECK(p.forward() == TE_ERROR_VALUE);
    CHECK(p.says("has positions and begins at position 1"));
    p.batch.position = 0, p.batch.positions = (const int32_t *)((const char *)there.data() + 2);
    CHECK(p.forward() == TE_ERROR_ALIGNMENT);
    CHECK(p.says("batch.positions"));
    p.batch.positions = (const int32_t *)p.y.data();
    CHECK(p.infer() == TE_ERROR_VALUE); // positions overlap y
    CHECK(p.says("batch.positions"));
    CHECK(p.y.poisoned());
    packed learnt(whole_subject, {5, 7}, seed);
    learnt.batch.position = 0, learnt.batch.positions = (const int32_t *)there.data();
    CHECK(learnt.forward() == TE_ERROR_VALUE);
    CHECK(learnt.says("batch.positions is for rope"));
}
