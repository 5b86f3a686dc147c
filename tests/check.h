// check.h -- check(): compares a list with the reference, forward, inference and backward in its four modes. It also checks that
// each pass repeats bit for bit, in place too if the list may run so, and that nothing is written beside the outputs. harness.h
// includes it, and defines what it uses.
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include "bounds.h"

namespace {

// Each element must be within the bound of its own computation (bounds.h), and the RMS of all errors within half of the bounds' RMS.
inline void check_within(const std::string &name, const reference::vec &out, const reference::vec &ref,
                         const reference::vec &bound) {
    REQUIRE(out.size() == ref.size());
    REQUIRE(bound.size() == ref.size());
    const numbers::distance d = numbers::within(out, ref, bound);
    const double worst = d.worst, whole = d.whole;
    const size_t at = d.at;
    if (worst <= 1 && whole <= 0.5) {
        CHECK(worst <= 1);
        return;
    }
    INFO(name << ": worst at " << at << " of " << ref.size() << ": " << out[at] << ", should be " << ref[at] << " to "
              << bound[at] << "; the RMS of all errors is " << whole << " of that of the bounds, allowed is 0.5");
    CHECK(worst <= 1);
    CHECK(whole <= 0.5);
}

// One model in memory, all tensors that a pass reads and writes, and the expected results.
struct trial {
    const subject &s;
    const shape &at;
    const te_plan *plan;
    const te_dtype dtype, out_dtype;
    const bool from_tokens, to_loss;
    const size_t rows, max_rows, in, out, size, out_size; // max_rows: the larger number of rows, of x or of the memory
    source random;
    context ctx_owner;
    te_context *ctx;
    instance m;
    te_batch batch;
    reference::call call;
    std::vector<int32_t> tokens, labels;
    buffer tokens_there, labels_there, x, y, y2, dx, dx2, dy, workspace, saved_memory;
    edge_buffers e;
    reference::edges in_edges, out_grads;
    te_saved saved;
    reference::values ref; // after forward: computed from the values that the kernels stored
    reference::vec dy_ref; // empty: no dy is passed, and batch.loss_scale takes its place
    reference::vec logits_error; // bounds of the logits that backward recomputes; empty: the logits are saved
    std::vector<uint8_t> x_before, params_before, saved_before;
    std::vector<std::vector<uint8_t>> first; // the bits that the first forward wrote: y, then the edges
    std::vector<uint8_t> inferred, dx_first, grads_first; // the bits of y in inference, and of dx and the gradients

    trial(const subject &sub, const shape &what, unsigned seed)
        : s(sub), at(what), plan(sub.plan()), dtype(plan->dtype), out_dtype(plan->out_dtype),
          from_tokens(te__from_tokens(plan) != 0), to_loss(te__to_loss(plan) != 0),
          rows((size_t)at.batch * (size_t)at.seq), max_rows(std::max(rows, (size_t)at.batch * (size_t)at.memory)), in((size_t)plan->in), out((size_t)plan->out),
          size(te_dtype_bytes(dtype)), out_size(te_dtype_bytes(out_dtype)), random(seed), ctx(&ctx_owner.c), m(sub, ctx),
          tokens(rows), labels(rows), tokens_there(ctx, rows * 4), labels_there(ctx, rows * 4),
          x(ctx, from_tokens ? 0 : rows * in * size, 16), y(ctx, rows * out * out_size, 16),
          y2(ctx, rows * out * out_size, 16), dx(ctx, from_tokens ? 0 : rows * in * size, 16),
          dx2(ctx, from_tokens ? 0 : rows * in * size, 16), dy(ctx, rows * out * out_size, 16),
          workspace(ctx, sub.workspace_bytes(m.memory.data(), (int64_t)max_rows, ctx)),
          saved_memory(ctx, sub.saved_bytes((int64_t)max_rows)) { // exactly as many bytes as the library asks for
        ctx->workspace = workspace.data(), ctx->workspace_bytes = workspace.bytes;
        memset(&saved, 0, sizeof saved);
        saved.memory = saved_memory.data(), saved.bytes = saved_memory.bytes;
    }
    trial(const trial &) = delete;
    trial &operator=(const trial &) = delete;
    ~trial() { ctx->workspace = nullptr, ctx->workspace_bytes = 0; }

    te_tensor of(const buffer &b) const {
        return from_tokens ? te_none() : te_matrix(b.data(), dtype, (int64_t)rows, (int64_t)in);
    }
    te_tensor out_of(const buffer &b) const { return te_matrix(b.data(), out_dtype, (int64_t)rows, (int64_t)out); }
    te_tensor dy_or_none() const { return dy_ref.empty() ? te_none() : out_of(dy); }
    bool recomputes_logits() const { return to_loss && plan->op_count > 1 && te__recomputes_logits(plan, plan->op_count - 2); }
    bool is_gemm(size_t i) const { return plan->op[i].op_class == TE_CLASS_gemm; }
    // On CUDA it depends on the kernel whether the output of a GEMM is rounded before the next op of its pattern. The
    // reference does not round it, and the bound allows for the rounding.
    bool may_round(size_t i) const {
        return TE_CUDA && dtype != TE_f32 && (is_gemm(i) || rotated_in_pattern(plan, plan->forward, plan->forward_count, (int)i));
    }
    // Whether the pattern of op i begins with a GEMM and computes its next op from the unrounded output of op i, though
    // it stores it rounded: cuBLASLt's epilogue of bias and gelu does.
    bool continues_unrounded(size_t i) const {
        for (int k = 0; k < plan->forward_count; k++) {
            const te_step &step = plan->forward[k];
            for (int j = 0; j + 1 < step.count; j++)
                if (step.op[j] == (int)i) return may_round((size_t)step.op[0]);
        }
        return false;
    }
    void poison_outputs() {
        for (size_t i = 0; i < e.names.size(); i++)
            if (!e.is_input[i]) e.value[i]->poison();
    }

    // ---- the inputs beside the tensors: tokens, labels, edges
    void add_edge(const reference::op &o) {
        const size_t cols = o.kind == "input" ? (size_t)o.number(0, 0) : o.in;
        const size_t n = (o.kind == "input" ? call.input_rows(o) : rows) * cols;
        e.names.push_back(o.name), e.is_input.push_back(o.kind == "input");
        e.value.emplace_back(new buffer(ctx, n * size, 16));
        e.grad.emplace_back(new buffer(ctx, n * size, 16));
        te_edge edge;
        memset(&edge, 0, sizeof edge);
        edge.name = plan->op[&o - &m.ops.ops[0]].name;
        edge.value = te_matrix(e.value.back()->data(), dtype, (int64_t)(n / cols), (int64_t)cols);
        edge.grad = te_matrix(e.grad.back()->data(), dtype, (int64_t)(n / cols), (int64_t)cols);
        e.table.push_back(edge);
    }
    void make_batch() {
        memset(&batch, 0, sizeof batch);
        batch.batch = at.batch, batch.seq = at.seq, batch.position = at.position, batch.ignore_index = -7,
        batch.loss_scale = 1.0f / (float)rows, batch.memory_seq = call.memory_seq = at.memory;
        call.batch = at.batch, call.seq = at.seq, call.position = at.position, call.ignore_index = -7,
        call.loss_scale = (double)batch.loss_scale;
        for (const reference::op &o : m.ops.ops) {
            if (o.kind == "embedding") {
                for (int32_t &t : tokens) t = random.below((int)o.number(0, 1));
                tokens_there.write_ints(tokens);
                batch.tokens = (const int32_t *)tokens_there.data(), call.tokens = tokens.data();
            }
            if (o.kind == "cross_entropy") {
                for (int32_t &t : labels) t = random.below(5) ? random.below((int)o.in) : -7;
                labels[0] = random.below((int)o.in);
                labels_there.write_ints(labels);
                batch.labels = (const int32_t *)labels_there.data(), call.labels = labels.data();
            }
            if (o.kind == "input" || o.kind == "output") add_edge(o);
        }
        batch.edges = e.table.data(), batch.edge_count = (int)e.table.size();
        call.rng.seed = (uint64_t)random.random() << 32 | random.random(), call.rng.offset = random.random();
    }

    // ---- random numbers, redrawn while an input of a relu is too near to 0
    void draw() {
        int tries = 0;
        do {
            if (tries++ == 100)
                FAIL("each of a hundred draws has an input of a relu too near to 0, or two scores of a router too near to each other, in " << s.text << ": this case tests nothing");
            m.draw(random);
            for (size_t i = 0; i < e.names.size(); i++)
                (e.is_input[i] ? in_edges : out_grads)[e.names[i]] = random.draw(e.value[i]->bytes / size, dtype);
            ref = reference::forward(m.ops, m.param, random.draw(x.bytes / size, dtype), in_edges, call,
                                     stored_forward(plan, true));
        } while (near_relu_jump(m.ops, ref) || near_choice(m.ops, ref, m.param, dtype));
        x.write(ref.x, dtype);
        for (size_t i = 0; i < e.names.size(); i++)
            if (e.is_input[i])
                e.value[i]->write(in_edges[e.names[i]], dtype);
            else
                e.grad[i]->write(out_grads[e.names[i]], dtype);
        dy_ref = random.draw(rows * out, out_dtype);
        if (to_loss && !at.loss_from_dy)
            dy_ref.clear();
        else
            dy.write(dy_ref, out_dtype);
        x_before = x.raw(), params_before = m.params.raw();
    }

    // ---- forward
    void run_forward() {
        set_rng(ctx, call.rng.seed, call.rng.offset);
        const te_status status = s.forward(out_of(y), &saved, of(x), m.memory.data(), &batch, ctx);
        INFO(te_last_error(ctx));
        REQUIRE(status == TE_OK);
        const te_rng after = get_rng(ctx);
        CHECK(after.seed == call.rng.seed);
        CHECK(after.offset == call.rng.offset + (te__draws(plan) ? 1 : 0));
        saved_before = saved_memory.raw(), first.assign(1, y.raw());
        for (auto &b : e.value) first.push_back(b->raw());
    }
    // Each step is compared with the reference of its own input: the reference replaces each value that the kernels stored
    // in `memory`, in the layout of the plan `all`, by the stored one and continues from there.
    void compare_forward(const te_plan &all, const buffer &memory) {
        te_run layout;
        te__begin(&layout, &all, TE_FORWARD, (int64_t)rows, call.batch, ctx);
        layout.x.data = x.data(), layout.y.data = y.data();
        if (te__has_memory(&all)) layout.memory = (int64_t)at.batch * at.memory;
        (void)te__lay_out(&layout, (char *)memory.data());
        const reference::rounding round = stored_forward(plan, true);
        bounds::forward bound(m.ops, m.param, ref.x, call, dtype);
        bound.inputs = in_edges;
        reference::edges outs;
        ref = reference::forward(m.ops, m.param, ref.x, in_edges, call, round, &outs, [&](size_t i, reference::vec &v) {
            const char *p = (const char *)layout.act[i], *base = (const char *)memory.data();
            const bool last = i + 1 == m.ops.ops.size();
            bound.step(i, v, round.at[i], may_round(i));
            if (last && recomputes_logits()) logits_error = bound.error[i - 1];
            if (!last && (p < base || p >= base + memory.bytes)) return;
            reference::vec got =
                last ? y.read(out_dtype)
                     : memory.read(dtype, (size_t)(p - base) / size, v.size());
            const std::vector<char> dropped = reference::dropped_rows(m.ops, i, ref, m.param);
            for (size_t k = 0; k < v.size() && !dropped.empty(); k++)
                if (dropped[k / m.ops.ops[i].out]) got[k] = v[k];
            check_within(std::string("output of ") + plan->op[i].name, got, v, bound.error.back());
            v = got, bound.stored(v, continues_unrounded(i));
        });
        compare_outputs("", outs, bound);
    }
    void compare_outputs(const std::string &pass, const reference::edges &outs, const bounds::forward &bound) {
        for (size_t i = 0; i < e.names.size(); i++)
            for (size_t k = 0; !e.is_input[i] && k < m.ops.ops.size(); k++)
                if (m.ops.ops[k].kind == "output" && m.ops.ops[k].name == e.names[i]) {
                    reference::vec allowed = bound.unstored[k];
                    for (size_t j = 0; j < allowed.size(); j++)
                        allowed[j] += bounds::ulp(std::fabs(outs.at(e.names[i])[j]), dtype);
                    check_within(pass + "output " + e.names[i], e.value[i]->read(dtype), outs.at(e.names[i]), allowed);
                }
    }
    void forward() {
        run_forward();
        if (!plan->region_count) return compare_forward(*plan, saved_memory);
        te_plan all = *plan; // the same steps without recompute regions, so that every value is saved and can be compared
        all.region_count = 0;
        buffer memory(ctx, te_plan_saved_bytes(&all, (int64_t)max_rows));
        te_saved everything = saved;
        everything.memory = memory.data(), everything.bytes = memory.bytes;
        set_rng(ctx, call.rng.seed, call.rng.offset);
        const te_plan *bound = m.model()->plan;
        m.model()->plan = &all;
        REQUIRE(te_plan_forward(out_of(y2), &everything, of(x), &all, m.model(), &batch, ctx) == TE_OK);
        m.model()->plan = bound;
        CHECK(y2.raw() == y.raw());
        compare_forward(all, memory);
    }
    void repeat_forward() {
        poison_outputs();
        y.poison(), workspace.poison(), saved_memory.poison();
        set_rng(ctx, call.rng.seed, call.rng.offset);
        REQUIRE(s.forward(out_of(y), &saved, of(x), m.memory.data(), &batch, ctx) == TE_OK);
        CHECK(y.raw() == first[0]);
        for (size_t i = 0; i < e.value.size(); i++) CHECK(e.value[i]->raw() == first[i + 1]);
        CHECK(saved_memory.raw() == saved_before);
    }

    // ---- inference, twice
    void inference() {
        reference::call infer = call;
        infer.training = false;
        const reference::rounding round = stored_forward(plan, false);
        bounds::forward bound(m.ops, m.param, ref.x, infer, dtype);
        bound.inputs = in_edges;
        reference::edges outs;
        const reference::values v =
            reference::forward(m.ops, m.param, ref.x, in_edges, infer, round, &outs,
                               [&](size_t i, reference::vec &o) { bound.step(i, o, round.at[i], may_round(i)); });
        const te_rng before = get_rng(ctx);
        std::vector<uint8_t> &once = inferred;
        for (int pass = 0; pass < 2; pass++) {
            workspace.poison(), y2.poison(), poison_outputs();
            REQUIRE(s.infer(out_of(y2), of(x), m.memory.data(), &batch, ctx) == TE_OK);
            if (pass) {
                CHECK(y2.raw() == once);
                continue;
            }
            once = y2.raw();
            check_within("y of inference", y2.read(out_dtype), v.out.back(), bound.error.back());
            compare_outputs("inference: ", outs, bound);
        }
        CHECK(get_rng(ctx).offset == before.offset);
    }

    // ---- backward: overwrite the gradients; repeat that; accumulate; without dx
    enum way { overwrite, repeat, add, without_dx };
    struct expected {
        reference::gradients g;
        std::vector<reference::vec> param; // bounds of g.params; dx and inputs are the bounds of g.dx and g.inputs
        reference::vec dx;
        std::map<std::string, reference::vec> inputs;
    };
    expected gradients() {
        const reference::rounding round = stored_backward(plan), held = at_adds(plan);
        bounds::backward bound(m.ops, m.param, ref, call, dtype);
        bound.logits = logits_error;
        expected want;
        want.g = reference::backward(m.ops, m.param, ref, dy_ref, out_grads, call, round, held,
                                     [&](size_t i, const reference::vec &d, const reference::vec &to) {
                                         bound.step(i, d, to, round.at[i], dtype != TE_f32 && (is_gemm(i) || te__is_combined(plan, (int)i)), true);
                                     });
        m.merge(want.g);
        reference::gradients errors;
        errors.params = bound.param;
        m.merge(errors);
        want.param = errors.params, want.dx = bound.d, want.inputs = bound.inputs;
        return want;
    }
    // The gradients before the pass: of the size of the expected gradient if the pass accumulates, else 0.
    std::vector<reference::vec> numbers_before(way w, const expected &want) {
        std::vector<reference::vec> before((size_t)m.ops.params);
        for (int i = 0; i < m.ops.params; i++) {
            if (m.owner[(size_t)i] != i) continue;
            before[(size_t)i].assign(m.elements(i), 0);
            if (w != add) continue;
            before[(size_t)i] = random.draw(m.elements(i), TE_f32, 0, std::max(rms(want.g.params[(size_t)i]), 1e-30));
            m.grads.write(before[(size_t)i], TE_f32, m.grad_at(i));
        }
        return before;
    }
    void compare_gradients(way w, const expected &want, const std::vector<reference::vec> &before) {
        for (int i = 0; i < m.ops.params; i++) {
            if (m.owner[(size_t)i] != i) continue;
            reference::vec g = want.g.params[(size_t)i], bound = want.param[(size_t)i];
            for (size_t k = 0; k < g.size(); k++)
                g[k] += before[(size_t)i][k], bound[k] += bounds::sums * std::fabs(before[(size_t)i][k]);
            check_within(std::string(w == add ? "added to the gradient of " : "gradient of ") + m.model()->param[i].op +
                             "." + m.model()->param[i].field,
                         m.grads.read(TE_f32, m.grad_at(i), m.elements(i)), g, bound);
        }
        if (w != overwrite) return;
        if (!from_tokens) check_within("dx", dx.read(dtype), want.g.dx, want.dx);
        for (size_t i = 0; i < e.names.size(); i++)
            if (e.is_input[i])
                check_within("gradient of input " + e.names[i], e.grad[i]->read(dtype), want.g.inputs.at(e.names[i]),
                             want.inputs.at(e.names[i]));
    }
    // The gaps between the gradients must still hold their poison.
    void check_gaps(const std::vector<uint8_t> &now) {
        std::vector<uint8_t> gaps = now;
        for (int i = 0; i < m.ops.params; i++)
            if (m.owner[(size_t)i] == i) memset(&gaps[m.grad_at(i) * 4], 0xff, m.elements(i) * 4);
        CHECK(numbers::others(gaps.data(), gaps.size(), 0xff) == 0);
    }
    void backward() {
        const expected want = gradients();
        for (way w : {overwrite, repeat, add, without_dx}) {
            batch.accumulate = w == add;
            m.grads.poison(), dx.poison(), dx2.poison(), workspace.poison();
            for (size_t i = 0; i < e.names.size(); i++)
                if (e.is_input[i]) e.grad[i]->poison();
            const std::vector<reference::vec> before = numbers_before(w, want);
            const te_tensor to = w == overwrite ? of(dx) : w == without_dx ? te_none() : of(dx2);
            const te_status status = s.backward(to, dy_or_none(), &saved, m.memory.data(), &batch, ctx);
            INFO("backward, accumulate " << (w == add) << ": " << te_last_error(ctx));
            REQUIRE(status == TE_OK);
            const std::vector<uint8_t> now = m.grads.raw();
            check_gaps(now);
            if (w == overwrite || w == add) compare_gradients(w, want, before);
            if (w == overwrite)
                grads_first = now, dx_first = dx.raw();
            else if (w != add)
                CHECK(now == grads_first);
            if (w == repeat || w == add) CHECK(dx2.raw() == dx_first);
        }
    }

    // y in the place of x, and dx in that of dy: the same bits as apart, or refused by name.
    void in_place() {
        if (from_tokens || to_loss || in != out || dtype != out_dtype || plan->in_dtype != dtype) return;
        buffer place(ctx, x.bytes, 16);
        place.write(ref.x, dtype), workspace.poison(), poison_outputs();
        te_status status = s.infer(out_of(place), of(place), m.memory.data(), &batch, ctx);
        if (may_run_in_place("infer", status)) CHECK(place.raw() == inferred);
        place.write(dy_ref, dtype), workspace.poison(), m.grads.poison();
        batch.accumulate = 0;
        status = s.backward(of(place), out_of(place), &saved, m.memory.data(), &batch, ctx);
        if (!may_run_in_place("backward", status)) return;
        CHECK(place.raw() == dx_first);
        CHECK(m.grads.raw() == grads_first);
    }
    bool may_run_in_place(const char *pass, te_status status) {
        INFO(pass << " in place: " << te_last_error(ctx));
        const bool refused = status == TE_ERROR_VALUE && std::string(te_last_error(ctx)).find("this list cannot run in place") != std::string::npos;
        CHECK((status == TE_OK || refused));
        return status == TE_OK;
    }

    // x, y, dx and dy whose rows have a stride: the same bits as dense ones; what lies between the rows is NaN, is not read and
    // stays as it is. Runs for a third of the seeds.
    struct strided {
        size_t row, step, rows; // bytes
        buffer memory;
        te_tensor view;
        strided(te_context *c, te_tensor like, int gap)
            : row((size_t)like.cols * te_dtype_bytes(like.dtype)), step((size_t)(like.cols + gap) * te_dtype_bytes(like.dtype)), rows((size_t)like.rows),
              memory(c, (rows - 1) * step + row, 16), view(te_strided(memory.data(), like.dtype, like.rows, like.cols, like.cols + gap)) {}
        void put(te_context *c, const void *from) {
            for (size_t r = 0; r < rows; r++) REQUIRE(te_copy(c, (char *)memory.data() + r * step, (const char *)from + r * row, row) == TE_OK);
            REQUIRE(te_synchronize(c) == TE_OK);
        }
        std::vector<uint8_t> dense() const { // fails if a byte between the rows was written
            const std::vector<uint8_t> all = memory.raw();
            std::vector<uint8_t> out;
            size_t written = 0;
            for (size_t r = 0; r < rows; r++) {
                out.insert(out.end(), all.begin() + (long)(r * step), all.begin() + (long)(r * step + row));
                if (r + 1 < rows) written += numbers::others(&all[r * step + row], step - row, 0xff);
            }
            CHECK(written == 0);
            return out;
        }
    };
    void strides() {
        if (random.below(3)) return;
        const auto gap = [&] { return 1 + random.below(24); };
        const te_tensor none = te_none(), like_x = from_tokens ? te_matrix(nullptr, dtype, 1, 1) : of(x);
        strided xs(ctx, like_x, gap()), dxs(ctx, like_x, gap()), ys(ctx, out_of(y), gap()), dys(ctx, out_of(dy), gap());
        if (!from_tokens) xs.put(ctx, x_before.data());
        if (!dy_ref.empty()) dys.put(ctx, dy.raw().data());
        const te_tensor from = from_tokens ? none : xs.view, to = from_tokens ? none : dxs.view, by = dy_ref.empty() ? none : dys.view;
        buffer large(ctx, workspace.bytes + te_plan_strided_bytes(plan, (int64_t)max_rows, ctx)), kept(ctx, saved_memory.bytes);
        te_saved other = saved;
        other.memory = kept.data(), other.plan = nullptr, batch.accumulate = 0;
        ctx->workspace = large.data(), ctx->workspace_bytes = large.bytes;
        poison_outputs();
        const te_status infers = s.infer(ys.view, from, m.memory.data(), &batch, ctx);
        INFO("rows with a stride: " << te_last_error(ctx));
        REQUIRE(infers == TE_OK);
        CHECK(ys.dense() == inferred);
        ys.memory.poison(), large.poison(), poison_outputs();
        set_rng(ctx, call.rng.seed, call.rng.offset);
        REQUIRE(s.forward(ys.view, &other, from, m.memory.data(), &batch, ctx) == TE_OK);
        CHECK(ys.dense() == first[0]);
        CHECK(kept.raw() == saved_before);
        large.poison(), m.grads.poison();
        for (size_t i = 0; i < e.names.size(); i++)
            if (e.is_input[i]) e.grad[i]->poison();
        REQUIRE(s.backward(to, by, &other, m.memory.data(), &batch, ctx) == TE_OK);
        CHECK(m.grads.raw() == grads_first);
        if (!from_tokens) CHECK(dxs.dense() == dx_first);
        if (!from_tokens) CHECK(xs.dense() == x_before);
        CHECK(ys.dense() == first[0]);
        ctx->workspace = workspace.data(), ctx->workspace_bytes = workspace.bytes;
    }

    // batch.loss_in_backward: forward leaves the loss to backward, which must write the same loss. Then a forward without it again.
    void loss_in_backward() {
        const bool row = plan->forward[plan->forward_count - 1].count > 1;
        if (!recomputes_logits() || !row) return;
        const expected want = gradients();
        batch.loss_in_backward = 1, batch.accumulate = 0;
        y.poison(), saved_memory.poison(), workspace.poison(), m.grads.poison(), dx.poison();
        const std::vector<uint8_t> none = y.raw();
        set_rng(ctx, call.rng.seed, call.rng.offset);
        REQUIRE(s.forward(out_of(y), &saved, of(x), m.memory.data(), &batch, ctx) == TE_OK);
        CHECK(saved.loss_in_backward == (out_dtype == TE_f32));
        if (saved.loss_in_backward) CHECK(y.raw() == none);
        workspace.poison();
        const std::vector<reference::vec> before = numbers_before(overwrite, want);
        const te_status status = s.backward(of(dx), dy_or_none(), &saved, m.memory.data(), &batch, ctx);
        INFO("backward with the loss: " << te_last_error(ctx));
        REQUIRE(status == TE_OK);
        CHECK(y.raw() == first[0]);
        compare_gradients(overwrite, want, before);
        check_gaps(m.grads.raw());
        batch.loss_in_backward = 0;
        repeat_forward();
    }

    void nothing_else_touched() {
        CHECK(x.raw() == x_before);
        CHECK(m.params.raw() == params_before);
        CHECK(y.raw() == first[0]);
        CHECK(saved_memory.raw() == saved_before);
        if (!dy_ref.empty()) CHECK(dy.read(out_dtype) == dy_ref);
        (void)workspace.raw();
    }
};

inline void check(const subject &s, const shape &at, unsigned seed = fresh_seed()) {
    const te_plan *plan = s.plan();
    const std::string text = s.text;
    CAPTURE(plan->name, text, te_dtype_name(plan->dtype), at.batch, at.seq, at.memory, at.position, seed);
    trial t(s, at, seed);
    t.make_batch();
    t.draw();
    t.forward();
    t.repeat_forward();
    t.inference();
    t.backward();
    t.in_place();
    t.strides();
    t.loss_in_backward();
    t.nothing_else_touched();
}

} // namespace

#endif
