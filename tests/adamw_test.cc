// adamw_test.cc -- AdamW, SGD and Muon against double, over many steps and at odd sizes: moments in bf16 and in 8 bits, clipping, schedules,
// weight decay, skipped steps, and the same bits in a second run.
#include "draw.h"
#include "hand_model.h"

#include <algorithm>
#include <map>

#include "te/optim/adamw.h"
#include "te/optim/init.h"

namespace {

struct optimizer {
    te_context *ctx;
    std::vector<te_model *> models;
    memory m;
    te_adamw opt;
    optimizer(te_context *c, const std::vector<te_model *> &list, const te_adamw_config &config)
        : ctx(c), models(list), m(c, te_adamw_bytes_of(models.data(), (int)models.size(), &config)) {
        const te_status s = te_adamw_init(&opt, m.p, m.bytes, models.data(), (int)models.size(), &config, ctx);
        INFO(te_last_error(ctx));
        REQUIRE(s == TE_OK);
    }
    void step() {
        const te_status s = te_adamw_step(&opt, ctx);
        INFO(te_last_error(ctx));
        REQUIRE(s == TE_OK);
    }
    te_adamw_state state() {
        te_adamw_state s;
        REQUIRE(te_adamw_get(&s, &opt, ctx) == TE_OK);
        return s;
    }
};

double length(const std::vector<double> &v) {
    double sum = 0;
    for (double e : v) sum += e * e;
    return std::sqrt(sum);
}

// AdamW (algorithm 2 of the paper) or SGD, in double. m_off and v_off bound the errors of the moment vectors if these are
// stored in fewer bits. In bf16 each step rounds every element by at most 2^-7 of itself. In 8 bits it is 2^-3 of m and
// (1 + 2^-3)^2 - 1 of v; for subnormals it is 2^-9 times the scale.
struct reference_tensor {
    const hand_model *model;
    size_t index;
    std::vector<double> p, m, v;
    double m_off = 0, v_off = 0;
    double lr = 1, decay = NAN; // those of the parameter's group; NAN: the config's decay
};
struct reference {
    te_adamw_config c;
    std::vector<reference_tensor> tensors;
    int64_t step = 0;
    double norm = 0;
    reference(const te_adamw_config &config, const std::vector<const hand_model *> &models) : c(config) {
        for (const hand_model *m : models)
            for (size_t i = 0; i < m->param.size(); i++) {
                if (m->param[i].tied || m->param[i].frozen) continue;
                reference_tensor t;
                t.model = m, t.index = i;
                for (float e : m->data(i)) t.p.push_back((double)e);
                t.m.assign(t.p.size(), 0), t.v.assign(t.p.size(), 0);
                tensors.push_back(t);
            }
    }
    double lr() const {
        const te_schedule &s = c.schedule;
        if (step < s.warmup) return (double)s.peak * (double)(step + 1) / (double)s.warmup;
        const double t = std::min(1.0, (double)(step - s.warmup) / (double)(s.total - s.warmup));
        const double left = s.kind == TE_SCHEDULE_linear ? 1 - t
                            : s.kind == TE_SCHEDULE_cosine ? 0.5 + 0.5 * std::cos(3.14159265358979323846 * t)
                            : s.kind == TE_SCHEDULE_sqrt ? 1 - std::sqrt(t) : 1;
        return (double)s.peak * ((double)s.final_fraction + (1 - (double)s.final_fraction) * left);
    }
    void run() {
        std::vector<std::vector<float>> grads;
        norm = 0;
        for (const reference_tensor &t : tensors) {
            grads.push_back(read_floats(t.model->ctx, t.model->param[t.index].grad, t.p.size()));
            for (float g : grads.back()) norm += (double)g * g;
        }
        norm = std::sqrt(norm) * (double)c.grad_scale;
        const double scale = (double)c.grad_scale * (c.max_norm > 0 && norm > (double)c.max_norm ? (double)c.max_norm / norm : 1);
        const double all = lr(), b1 = (double)c.beta1, b2 = (double)c.beta2;
        step++;
        for (size_t k = 0; k < tensors.size(); k++) {
            reference_tensor &t = tensors[k];
            const double decay = t.decay == t.decay ? t.decay : t.model->param[t.index].rows > 1 || c.decay_all ? (double)c.weight_decay : 0, rate = all * t.lr;
            const double mu = (double)c.momentum;
            for (size_t i = 0; c.rule == TE_RULE_sgd && i < t.p.size(); i++) {
                const double d = (double)grads[k][i] * scale + decay * t.p[i];
                t.m[i] = mu * t.m[i] + d;
                t.p[i] -= rate * (c.nesterov ? d + mu * t.m[i] : t.m[i]);
            }
            for (size_t i = 0; c.rule == TE_RULE_adamw && i < t.p.size(); i++) {
                const double g = (double)grads[k][i] * scale;
                t.m[i] = b1 * t.m[i] + (1 - b1) * g, t.v[i] = b2 * t.v[i] + (1 - b2) * g * g;
                const double mh = t.m[i] / (1 - std::pow(b1, (double)step)), vh = t.v[i] / (1 - std::pow(b2, (double)step));
                t.p[i] -= rate * (mh / (std::sqrt(vh) + (double)c.eps) + decay * t.p[i]);
            }
            const double keeps = c.rule == TE_RULE_sgd ? mu : b1;
            const bool eight = c.moments == TE_e4m3;
            t.m_off = keeps * t.m_off + length(t.m) / (eight ? 8 : 128), t.v_off = b2 * t.v_off + length(t.v) * (eight ? 17. / 64 : 1. / 128);
            // the scale is below 2 amax / 448, and twice that if amax was rounded up; the unit of subnormals is 2^-9 times the scale
            const auto unit = [](const std::vector<double> &of, bool root) {
                double largest = 0;
                for (double x : of) largest = std::max(largest, root ? std::sqrt(x) : std::fabs(x));
                return largest / (112 * 512);
            };
            const double m_unit = unit(t.m, false), v_unit = unit(t.v, true), many = std::sqrt((double)t.p.size());
            if (eight) t.m_off += m_unit * many, t.v_off += 17 * v_unit * v_unit * many; // (8 + 1)^2 - 8^2 = 17
        }
    }
};

// Newton-Schulz of u[rows, cols] in double; each matrix that the library stores is rounded to the format of its GEMMs.
void round_all(std::vector<double> &v, te_dtype dtype) {
    for (double &e : v) e = dtype == TE_f32 ? e : (double)te_round_to((float)e, dtype);
}
std::vector<double> orthogonal(std::vector<double> x, size_t rows, size_t cols, te_dtype dtype) {
    const double norm = length(x) + 1e-7;
    if (rows > cols) { // as in the library, the transposed matrix, whose products are smaller
        std::vector<double> transposed(x.size()), back(x.size());
        for (size_t i = 0; i < x.size(); i++) transposed[i % cols * rows + i / cols] = x[i];
        transposed = orthogonal(transposed, cols, rows, dtype);
        for (size_t i = 0; i < x.size(); i++) back[i] = transposed[i % cols * rows + i / cols];
        return back;
    }
    for (double &e : x) e /= norm;
    round_all(x, dtype);
    for (int step = 0; step < 5; step++) {
        std::vector<double> a(rows * rows, 0), b(rows * rows, 0), next(rows * cols, 0);
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < rows; j++)
                for (size_t k = 0; k < cols; k++) a[i * rows + j] += x[i * cols + k] * x[j * cols + k];
        round_all(a, dtype);
        for (size_t i = 0; i < rows; i++)
            for (size_t k = 0; k < rows; k++)
                for (size_t j = 0; j < rows; j++) b[i * rows + j] += a[i * rows + k] * a[k * rows + j];
        for (size_t i = 0; i < a.size(); i++) b[i] = -4.7750 * a[i] + 2.0315 * b[i];
        round_all(b, dtype);
        for (size_t i = 0; i < rows; i++)
            for (size_t k = 0; k < rows; k++)
                for (size_t j = 0; j < cols; j++) next[i * cols + j] += b[i * rows + k] * x[k * cols + j];
        for (size_t i = 0; i < x.size(); i++) x[i] = 3.4445 * x[i] + next[i];
        round_all(x, dtype);
    }
    return x;
}

double distance(const std::vector<float> &a, const std::vector<double> &b) {
    REQUIRE(a.size() == b.size());
    double off = 0, size = 1e-30;
    for (size_t i = 0; i < a.size(); i++) off += ((double)a[i] - b[i]) * ((double)a[i] - b[i]), size += b[i] * b[i];
    return std::sqrt(off / size);
}

te_adamw_config busy_config() {
    te_adamw_config c = te_adamw_defaults(0);
    c.schedule = te_schedule_of(TE_SCHEDULE_cosine, 3e-2f, 3, 12, 0.1f);
    c.beta2 = 0.95f, c.weight_decay = 0.1f, c.max_norm = 2.0f;
    return c;
}

} // namespace

TEST_CASE("schedules") {
    const float peak = 2.0f;
    CHECK(te_lr(std::vector<te_schedule>{te_schedule_constant(peak)}.data(), 123456) == peak);
    for (int kind = 0; kind < TE_SCHEDULE_COUNT; kind++) {
        te_adamw_config c = te_adamw_defaults(0);
        c.schedule = te_schedule_of((te_schedule_kind)kind, peak, 10, 110, 0.25f);
        CAPTURE(te_schedule_name(c.schedule.kind));
        CHECK(te__schedule_problem(&c.schedule) == nullptr);
        reference r(c, {});
        for (r.step = 0; r.step < 130; r.step++) CHECK(te_lr(&c.schedule, r.step) == Approx(r.lr()).epsilon(1e-5));
        CHECK(te_lr(&c.schedule, 0) == Approx(0.2f));
        CHECK(te_lr(&c.schedule, 9) == peak);
        CHECK(te_lr(&c.schedule, 10) == peak);
        CHECK(te_lr(&c.schedule, INT64_MAX) == Approx(kind == TE_SCHEDULE_constant ? peak : peak / 4));
    }
    te_schedule s = te_schedule_of(TE_SCHEDULE_linear, 1, 5, 5, 0);
    CHECK(te__schedule_problem(&s) != nullptr);
    s.total = 6;
    CHECK(te__schedule_problem(&s) == nullptr);
    s.peak = NAN;
    CHECK(te__schedule_problem(&s) != nullptr);
    s.peak = 1, s.warmup = -1;
    CHECK(te__schedule_problem(&s) != nullptr);
    s.warmup = 0, s.kind = (te_schedule_kind)7; // there are only four kinds
    CHECK(te__schedule_problem(&s) != nullptr);
}

TEST_CASE("many steps match the reference, with all dtypes in one launch") {
    target t;
    std::mt19937 random(3);
    for (int kind = 0; kind < 9; kind++) { // AdamW with and without clipping; SGD without momentum, with it, Nesterov's; moments in bf16, in 8 bits
        const int clip = kind != 1, sgd = kind >= 2 && kind != 5 && kind != 7;
        hand_model a(t, "a", TE_bf16, odd_params()), b(t, "b", TE_f32, odd_params()), c(t, "c", TE_f16, odd_params());
        REQUIRE(te_tie(&a.param[11], &a.param[6], t) == TE_OK); // a tied weight counts once in the norm, and is updated once
        const std::vector<const hand_model *> hands = {&a, &b, &c};
        for (hand_model *m : {&a, &b, &c}) m->draw_data(random, 0.5f);
        te_adamw_config config = busy_config();
        if (!clip) config.max_norm = 0, config.decay_all = 1, config.schedule.kind = TE_SCHEDULE_linear;
        if (sgd) config.rule = TE_RULE_sgd, config.momentum = kind == 2 ? 0.0f : 0.9f, config.nesterov = kind >= 4;
        if (kind >= 5) config.moments = kind >= 7 ? TE_e4m3 : TE_bf16;
        optimizer o(t, {&a.model, &b.model, &c.model}, config);
        reference r(config, hands);
        for (int step = 0; step < (brief() ? 5 : 15); step++) {
            // gradients so small that they are not clipped
            for (hand_model *m : {&a, &b, &c}) m->draw_grad(random, step % 5 == 4 ? 1e-3f : 1.0f);
            o.step(), r.run();
            const te_adamw_state s = o.state();
            CHECK(s.step == step + 1);
            CHECK(s.lr == Approx([&] { reference q(config, {}); q.step = step; return q.lr(); }()).epsilon(1e-5));
            if (clip) CHECK(s.norm == Approx(r.norm).epsilon(1e-5));
        }
        te_adamw_iter w = te_adamw_tensors(&o.opt);
        for (const reference_tensor &k : r.tensors) {
            REQUIRE(te_adamw_next(&w));
            CAPTURE(kind, k.model->name, w.param->op);
            CHECK(w.param == &k.model->param[k.index]);
            const std::vector<float> master = read_floats(t, w.master, k.p.size());
            const bool exact = config.moments == TE_f32;
            if (exact) CHECK(distance(master, k.p) < 1e-5);
            CHECK(distance(read_moment(t, w.m, k.p.size(), config.moments, 0), k.m) < (exact ? 1e-5 : k.m_off / length(k.m)));
            CHECK((w.v == nullptr) == (config.rule == TE_RULE_sgd));
            if (w.v) CHECK(distance(read_moment(t, w.v, k.p.size(), config.moments, 1), k.v) < (exact ? 1e-5 : k.v_off / length(k.v)));
            const std::vector<float> weight = k.model->data(k.index);
            for (size_t i = 0; i < weight.size(); i++)
                if (weight[i] != te_round_to(master[i], k.model->plan.dtype)) FAIL("weight " << i << " is not the rounded master");
        }
        CHECK(!te_adamw_next(&w));
        for (hand_model *m : {&a, &b, &c}) m->check_gaps();
    }
}

TEST_CASE("each size alone, with the same bits in a second run") {
    target t;
    for (int64_t n : {1, 2, 3, 4, 5, 31, 32, 33, 1023, 1024, 1025, 2044, 2047, 2048, 2049, 4096, 6151}) {
        std::vector<uint8_t> first;
        for (int repeat = 0; repeat < 2; repeat++) {
            std::mt19937 random(5);
            hand_model m(t, "m", TE_bf16, {{"x", "weight", n, 1}, {"y", "bias", 1, n}});
            m.draw_data(random, 1);
            optimizer o(t, {&m.model}, busy_config());
            reference r(busy_config(), {&m});
            for (int step = 0; step < 3; step++) m.draw_grad(random, 1), o.step(), r.run();
            CAPTURE(n);
            CHECK(distance(read_floats(t, o.opt.master, (size_t)n), r.tensors[0].p) < 1e-5);
            m.check_gaps();
            std::vector<uint8_t> now = m.params->raw();
            const std::vector<float> p = read_floats(t, o.opt.master, (size_t)n);
            now.insert(now.end(), (const uint8_t *)p.data(), (const uint8_t *)(p.data() + n));
            if (repeat) CHECK(now == first);
            first = now;
        }
    }
}

// Stochastic rounding: each stored value is a neighbour of the exact one, and the upper one with a probability of the distance to the lower one.
struct rounding {
    double share = 0, up = 0;
    std::vector<double> shares;
    std::vector<int> was_up;
    rounding(const std::vector<float> &exact, const std::vector<float> &stored) {
        for (size_t i = 0; i < exact.size(); i++) {
            const uint32_t bits = te_bits_of_float(exact[i]);
            const float low = te_float_of_bits(bits & 0xffff0000u), high = te_float_of_bits((bits & 0xffff0000u) + 0x10000u);
            if (stored[i] != low && stored[i] != high) FAIL("element " << i << ": " << exact[i] << " was stored as " << stored[i]);
            was_up.push_back(stored[i] == high), up += stored[i] == high, share += (bits & 0xffffu) / 65536.0, shares.push_back((bits & 0xffffu) / 65536.0);
        }
    }
};

TEST_CASE("moments in bf16 are rounded stochastically, without bias, m and v independently") {
    target t;
    std::mt19937 random(8);
    for (int64_t n : {1, 3, 31, 33, 1023, 2047, 2049, 100003}) {
        hand_model m(t, "m", TE_bf16, {{"x", "weight", n, 1}, {"y", "bias", 1, n}});
        m.draw_data(random, 1), m.draw_grad(random, 1);
        te_adamw_config c = te_adamw_defaults(1e-2f);
        optimizer exact(t, {&m.model}, c);
        const std::vector<float> p = m.data(0);
        exact.step();
        const std::vector<float> weights = m.data(0), master = read_floats(t, exact.opt.master, (size_t)n);
        const std::vector<float> em = read_floats(t, exact.opt.m, (size_t)n), ev = read_floats(t, exact.opt.v, (size_t)n);
        std::vector<std::vector<float>> ms;
        for (uint64_t seed : {1, 1, 2}) {
            m.set_data(0, p);
            c.moments = TE_bf16, c.seed = seed;
            optimizer o(t, {&m.model}, c);
            o.step();
            CHECK(m.data(0) == weights); // the first update uses the moments before they are rounded
            CHECK(read_floats(t, o.opt.master, (size_t)n) == master);
            const std::vector<float> sm = read_floats(t, o.opt.m, (size_t)n, TE_bf16), sv = read_floats(t, o.opt.v, (size_t)n, TE_bf16);
            const rounding rm(em, sm), rv(ev, sv);
            ms.push_back(sm);
            if (n < 100000) continue;
            const double five = 5 * 0.5 * std::sqrt((double)n); // five standard deviations of the sum of n random bits, each of 1/2 at most
            CHECK(std::fabs(rm.up - rm.share) < five);
            CHECK(std::fabs(rv.up - rv.share) < five);
            double both = 0;
            for (size_t i = 0; i < sm.size(); i++) both += (rm.was_up[i] && rv.was_up[i]) - rm.shares[i] * rv.shares[i];
            CHECK(std::fabs(both) < five);
            o.step(), o.step(), o.step(); // three more steps with the same gradient: the mean of m must be that without roundings
            double left = 0;
            const std::vector<float> g = read_floats(t, m.param[0].grad, (size_t)n), last = read_floats(t, o.opt.m, (size_t)n, TE_bf16);
            for (size_t i = 0; i < g.size(); i++) left += ((double)last[i] - (1 - std::pow(0.9, 4)) * (double)g[i]) / (double)g[i];
            CHECK(std::fabs(left) < five * 4 / 128); // four roundings, each of at most 2^-7 of the element
        }
        CHECK(ms[0] == ms[1]);
        if (n > 1000) CHECK(ms[0] != ms[2]);
    }
}

TEST_CASE("moments in 8 bits are rounded to neighbours, without bias, and no v becomes 0") {
    target t;
    std::mt19937 random(9);
    for (te_rule rule : {TE_RULE_adamw, TE_RULE_sgd})
        for (int64_t n : {1, 3, 127, 129, 2047, 2049, 50003}) {
            CAPTURE(te_rule_name(rule), n);
            hand_model m(t, "m", TE_bf16, {{"x", "weight", n, 1}, {"y", "bias", 1, n}});
            m.draw_data(random, 1);
            std::vector<float> g = hand_model::draw(random, (size_t)n, 1);
            for (size_t i = 0; i < g.size(); i += 5) g[i] *= std::ldexp(1.f, -(int)(random() % 30)); // of very different sizes
            for (size_t i = 7; i < g.size(); i += 11) g[i] = 0;
            m.set_grad(0, g), m.set_grad(1, g);
            te_adamw_config c = rule == TE_RULE_sgd ? te_sgd_defaults(1e-3f, 0.9f) : te_adamw_defaults(1e-2f);
            const std::vector<float> p = m.data(0), q = m.data(1);
            optimizer exact(t, {&m.model}, c);
            exact.step();
            const std::vector<float> weights = m.data(0), master = read_floats(t, exact.opt.master, (size_t)n);
            std::vector<std::vector<float>> ms;
            for (uint64_t seed : {1, 1, 2}) {
                m.set_data(0, p), m.set_data(1, q);
                c.moments = TE_e4m3, c.seed = seed;
                optimizer o(t, {&m.model}, c);
                o.step();
                CHECK(m.data(0) == weights); // the first update uses the moments before they are rounded
                CHECK(read_floats(t, o.opt.master, (size_t)n) == master);
                m.check_gaps();
                for (int root = 0; root < (rule == TE_RULE_adamw ? 2 : 1); root++) {
                    const void *const is = root ? o.opt.v : o.opt.m, *const was = root ? exact.opt.v : exact.opt.m;
                    const std::vector<float> stored = read_moment(t, is, (size_t)n, TE_e4m3, root), want = read_floats(t, was, (size_t)n);
                    const std::vector<float> scale = read_floats(t, te_moment_scales((void *)(uintptr_t)is, n), (size_t)(n + 127) / 128);
                    double up = 0, share = 0;
                    for (size_t i = 0; i < want.size(); i++) {
                        const double s = (double)scale[i / 128], x = root ? std::sqrt((double)want[i]) / s : std::fabs((double)want[i]) / s;
                        if ((te_bits_of_float(scale[i / 128]) & 0x7fffffu) || !(x <= 448.001)) FAIL("element " << i << ": a scale of " << s);
                        const double unit = std::ldexp(1.0, std::max(x > 0 ? std::ilogb(x) : -6, -6) - 3), low = std::floor(x / unit) * unit, high = low + unit;
                        const double got = root ? std::sqrt((double)stored[i]) / s : std::fabs((double)stored[i]) / s;
                        if (std::fabs(got - low) > 1e-6 * x && std::fabs(got - high) > 1e-6 * high) FAIL("element " << i << " of " << (root ? "v" : "m") << ": " << want[i] << " was stored as " << stored[i]);
                        if (want[i] != 0 && stored[i] != 0 && (want[i] < 0) != (stored[i] < 0)) FAIL("element " << i << " has another sign");
                        if (root && (stored[i] > 0) != (want[i] > 0)) FAIL("v " << i << ": " << want[i] << " was stored as " << stored[i]);
                        if (root && low == 0) continue; // never rounded down to 0
                        up += got > low + unit / 2, share += root ? (x * x - low * low) / (high * high - low * low) : (x - low) / unit;
                    }
                    // five standard deviations of the sum of n random bits
                    if (n > 40000) CHECK(std::fabs(up - share) < 5 * 0.5 * std::sqrt((double)n));
                }
                ms.push_back(read_moment(t, o.opt.m, (size_t)n, TE_e4m3, 0));
            }
            CHECK(ms[0] == ms[1]);
            if (n > 1000) CHECK(ms[0] != ms[2]);
        }
}

TEST_CASE("moments in 8 bits: extreme values stay finite, and v decays in small steps") {
    target t;
    hand_model m(t, "m", TE_f32, {{"x", "weight", 5, 128}});
    te_adamw_config c = te_adamw_defaults(1e-3f);
    c.moments = TE_e4m3;
    for (float size : {1e-38f, 1e-20f, 1e18f, 3e38f}) { // in a block of equal values, and in a block with 1
        m.set_data(0, std::vector<float>(640, 1));
        std::vector<float> g(640, 0);
        g[3] = size, g[130] = -size, g[131] = 1;
        m.set_grad(0, g);
        optimizer o(t, {&m.model}, c);
        for (int step = 0; step < 3; step++) o.step();
        const std::vector<float> stored_m = read_moment(t, o.opt.m, 640, TE_e4m3, 0), stored_v = read_moment(t, o.opt.v, 640, TE_e4m3, 1), p = m.data(0);
        for (size_t i = 0; i < 640; i++) {
            CAPTURE(size, i);
            REQUIRE((std::isfinite(stored_m[i]) && std::isfinite(stored_v[i]) && std::isfinite(p[i])));
            REQUIRE((g[i] == 0 || stored_v[i] > 0 || size * size * 1e-3f == 0));
            REQUIRE((g[i] != 0 || (stored_m[i] == 0 && stored_v[i] == 0)));
        }
    }
    // A thousand steps without a gradient reduce v to 0.37 of it. With rounding to nearest, v would not change.
    m.set_data(0, std::vector<float>(640, 1)), m.set_grad(0, std::vector<float>(640, 1));
    optimizer o(t, {&m.model}, c);
    o.step();
    m.set_grad(0, std::vector<float>(640, 0));
    for (int step = 0; step < 1000; step++) o.step();
    double sum = 0, squares = 0;
    for (float v : read_moment(t, o.opt.v, 640, TE_e4m3, 1)) sum += (double)v / 640, squares += (double)v * v / 640;
    CHECK(std::fabs(sum - 1e-3 * std::pow(0.999, 1000)) < 5 * std::sqrt((squares - sum * sum) / 640));
}

TEST_CASE("weights without an f32 master copy are rounded without bias, so that small updates are not lost") {
    target t;
    std::mt19937 random(11);
    for (te_rule rule : {TE_RULE_adamw, TE_RULE_sgd, TE_RULE_muon})
        for (int64_t n : {5, 33, 2047, 2049, 80000}) {
            CAPTURE(te_rule_name(rule), n);
            hand_model m(t, "m", TE_bf16, {{"x", "weight", n, 2}, {"y", "bias", 1, n}});
            m.draw_data(random, 1), m.draw_grad(random, 1);
            const std::vector<float> p = m.data(0), bias = m.data(1), g = read_floats(t, m.param[0].grad, p.size());
            const size_t count = p.size();
            te_adamw_config c = rule == TE_RULE_muon ? te_muon_defaults(1e-2f) : rule == TE_RULE_sgd ? te_sgd_defaults(1e-3f, 0.9f) : te_adamw_defaults(1e-3f);
            optimizer exact(t, {&m.model}, c);
            exact.step();
            const std::vector<float> master = read_floats(t, exact.opt.master, count);
            std::vector<std::vector<uint8_t>> first;
            c.no_master = 1;
            for (uint64_t seed : {1, 1, 2}) {
                m.set_data(0, p), m.set_data(1, bias), m.set_grad(0, g), c.seed = seed;
                optimizer o(t, {&m.model}, c);
                te_adamw_iter w = te_adamw_tensors(&o.opt);
                while (te_adamw_next(&w)) CHECK(w.master == nullptr);
                o.step();
                const rounding r(master, m.data(0));
                CHECK(std::fabs(r.up - r.share) < 5 * 0.5 * std::sqrt((double)count)); // five standard deviations of the sum of random bits
                first.push_back(m.params->raw());
                if (n < 80000 || rule != TE_RULE_sgd) continue;
                // Fifty updates of 2^-13 of a weight: with rounding to nearest it would not change.
                m.set_data(0, std::vector<float>(count, 1)), m.set_grad(0, std::vector<float>(count, 1.0f / (1 << 13)));
                te_adamw_config small = te_sgd_defaults(1, 0);
                small.no_master = 1, small.seed = seed;
                optimizer s(t, {&m.model}, small);
                for (int step = 0; step < 50; step++) s.step();
                double sum = 0;
                for (float e : m.data(0)) sum += (double)e;
                // Each update changes a weight by one unit of 2^-8 with a probability of 2^-5, else not.
                CHECK(std::fabs(sum - (double)count * (1 - 50.0 / (1 << 13))) < 5 * std::sqrt((double)count * 50 / 32) / 256);
            }
            CHECK((first[0] == first[1]));
            if (n > 1000) CHECK((first[0] != first[2]));
            m.check_gaps();
        }
}

TEST_CASE("Muon matches the reference: matrices of all shapes by Muon, other parameters by AdamW") {
    target t;
    std::mt19937 random(9);
    const std::vector<hand_param> list = {{"wide", "weight", 3, 5},    {"b", "bias", 1, 7},      {"tall", "weight", 129, 33}, {"row", "weight", 1, 64},
                                          {"square", "weight", 64, 64}, {"table", "weight", 20, 8}, {"column", "weight", 40, 1}, {"large", "weight", 37, 200},
                                          {"head", "weight", 24, 9},   {"last", "bias", 1, 24},  {"loss", "bias", 1, 1}};
    for (int kind = 0; kind < 4; kind++) {
        const te_dtype dtype = kind == 0 || kind == 3 ? TE_f32 : kind == 1 ? TE_bf16 : TE_f16;
        hand_model m(t, "m", dtype, list);
        m.op[5].op_class = TE_CLASS_custom, m.op.back().flags = TE_TO_LOSS; // so that the head is the last matrix in front of the loss
        m.draw_data(random, 0.3f);
        te_adamw_config c = te_muon_defaults(0.02f);
        c.schedule = te_schedule_of(TE_SCHEDULE_linear, 0.02f, 2, 10, 0), c.max_norm = 3, c.weight_decay = 0.1f, c.adamw_lr_factor = 0.5f;
        c.nesterov = kind != 3, c.match_rms = kind == 3, c.beta2 = 0.95f;
        te_adamw_config adamw = c;
        adamw.rule = TE_RULE_adamw, adamw.schedule.peak = 0.01f;
        reference r(adamw, {&m});
        std::vector<std::vector<double>> momentum, p;
        for (size_t i = 0; i < list.size(); i++) {
            p.push_back(r.tensors[i].p);
            momentum.push_back(std::vector<double>(p[i].size(), 0));
        }
        optimizer o(t, {&m.model}, c);
        for (int step = 0; step < 4; step++) {
            m.draw_grad(random, 1);
            o.step(), r.run();
            const te_adamw_state s = o.state();
            CHECK(s.adamw_lr == Approx(s.lr / 2));
            te_adamw_iter w = te_adamw_tensors(&o.opt);
            for (size_t i = 0; i < list.size(); i++) {
                REQUIRE(te_adamw_next(&w));
                CAPTURE(kind, step, w.param->op);
                const size_t rows = (size_t)list[i].rows, cols = (size_t)list[i].cols;
                const bool matrix = rows > 1 && cols > 1 && i != 5 && i != 8;
                CHECK(w.rule == (matrix ? TE_RULE_muon : TE_RULE_adamw));
                CHECK((w.v == nullptr) == matrix);
                const std::vector<float> master = read_floats(t, w.master, rows * cols), weight = m.data(i);
                for (size_t k = 0; k < weight.size(); k++)
                    if (weight[k] != te_round_to(master[k], dtype)) FAIL("weight " << k << " is not the rounded master");
                if (!matrix) {
                    CHECK(distance(master, r.tensors[i].p) < 1e-5);
                    continue;
                }
                const std::vector<float> g = read_floats(t, m.param[i].grad, rows * cols);
                const double scale = std::min(1.0, 3.0 / r.norm), mu = (double)c.momentum, rate = (double)s.lr;
                std::vector<double> u(rows * cols);
                for (size_t k = 0; k < u.size(); k++) {
                    momentum[i][k] = mu * momentum[i][k] + (double)g[k] * scale;
                    u[k] = c.nesterov ? (double)g[k] * scale + mu * momentum[i][k] : momentum[i][k];
                }
                CHECK(distance(read_floats(t, w.m, u.size()), momentum[i]) < 1e-5);
                const std::vector<double> x = orthogonal(u, rows, cols, dtype == TE_f32 ? TE_f32 : TE_bf16);
                const double size = c.match_rms ? 0.2 * std::sqrt((double)std::max(rows, cols)) : std::sqrt(std::max(1.0, (double)rows / (double)cols));
                std::vector<float> moved(u.size());
                for (size_t k = 0; k < u.size(); k++) // the result of the GEMMs, apart from the rounding of p
                    moved[k] = (float)((p[i][k] * (1 - rate * 0.1) - (double)master[k]) / (rate * size)), p[i][k] = (double)master[k];
                // The f32 sums of X, A and B have errors of about 2^-22 each, which the polynomial, whose slope is at most
                // 3.4445, propagates to the next steps. In bf16 such an error makes a share of 2^-22 / 2^-8 of the elements
                // round to the other side, by 2^-8: an RMS of 2^-15.
                const double unit = dtype == TE_f32 ? 1.0 / (1 << 22) : 1.0 / (1 << 15), slope = 3.4445;
                double off = 0;
                for (int k = 0; k < 5; k++) off = slope * off + 3 * unit;
                const double p_off = 3.0 / (1 << 24) * length(p[i]) / (rate * size * length(x));
                CHECK(distance(moved, x) < off + p_off);
            }
        }
        m.check_gaps();
    }
}

int none_of_them(const te_model *, const te_param *) { return 0; }
TEST_CASE("muon_takes selects Muon's parameters, and a step with a NaN is skipped") {
    target t;
    std::mt19937 random(10);
    hand_model a(t, "a", TE_bf16, {{"fc", "weight", 20, 30}, {"fc", "bias", 1, 30}});
    te_adamw_config c = te_muon_defaults(0.02f);
    std::vector<float> p = hand_model::draw(random, 600, 1), g = hand_model::draw(random, 600, 1);
    std::vector<uint8_t> by[2];
    for (int muon = 0; muon < 2; muon++) { // without a matrix Muon is AdamW
        a.set_data(0, p), a.set_grad(0, g), a.set_data(1, std::vector<float>(30, 1)), a.set_grad(1, std::vector<float>(30, 1));
        c.rule = muon ? TE_RULE_muon : TE_RULE_adamw, c.muon_takes = none_of_them;
        optimizer o(t, {&a.model}, c);
        o.step(), o.step();
        by[muon] = a.params->raw();
    }
    CHECK((by[0] == by[1]));
    c.muon_takes = nullptr, c.skip_nonfinite = 1;
    for (te_dtype moments : {TE_f32, TE_bf16}) {
        std::vector<uint8_t> first;
        c.moments = moments;
        for (int time = 0; time < 2; time++) { // both with the same bits
            a.set_data(0, p), a.set_data(1, std::vector<float>(30, 1)), a.set_grad(0, g);
            optimizer o(t, {&a.model}, c);
            std::vector<float> bad = g;
            bad[7] = NAN, a.set_grad(0, bad);
            const std::vector<uint8_t> before = a.params->raw();
            o.step();
            CHECK((a.params->raw() == before));
            a.set_grad(0, g);
            o.step();
            CHECK((a.params->raw() != before));
            CHECK(o.state().step == 1);
            CHECK(o.state().skipped == 1);
            if (time) CHECK((a.params->raw() == first));
            first = a.params->raw();
        }
    }
    // without a gradient no weight changes
    c.weight_decay = 0;
    a.set_data(0, p), a.set_grad(0, std::vector<float>(600, 0));
    optimizer o(t, {&a.model}, c);
    const std::vector<float> before = a.data(0);
    o.step();
    CHECK(a.data(0) == before);
    // Muon refuses a parameter of which a rank has only a part
    te_comm comm = {};
    comm.tensor.size = 2;
    t->comm = &comm, a.param[0].shard = TE_SHARD_columns;
    te_model *models[] = {&a.model};
    memory optimizer_memory(t, te_adamw_bytes_of(models, 1, &c));
    te_adamw shared;
    CHECK(te_adamw_init(&shared, optimizer_memory.p, optimizer_memory.bytes, models, 1, &c, t) == TE_ERROR_VALUE);
    CHECK(std::string(te_last_error(t)).find("muon needs all of fc.weight") != std::string::npos);
    c.muon_takes = none_of_them;
    CHECK(te_adamw_init(&shared, optimizer_memory.p, te_adamw_bytes_of(models, 1, &c), models, 1, &c, t) == TE_OK);
    t->comm = nullptr;
}

namespace {
int first_is_s(const te_model *, const te_param *p) { return p->op[0] == 's'; } // parameters whose op's name begins with s
std::vector<te_param_group> some_groups() {
    std::vector<te_param_group> g = {te_param_group_of("odd", nullptr, nullptr), te_param_group_of(nullptr, nullptr, "bias"), te_param_group_of(nullptr, nullptr, nullptr), te_param_group_of("large", "linear", "weight"),
                                     te_param_group_of("odd", nullptr, "weight")};
    g[0].lr = 0.25f, g[0].weight_decay = 0;
    g[1].weight_decay = 0.3f, g[1].lr = 2;
    g[2].takes = first_is_s, g[2].lr = 0;
    g[3].lr = 0.5f;
    g[4].lr = 100; // only for parameters that the first group has already
    return g;
}
} // namespace

TEST_CASE("groups of parameters: learning rate and decay by op, kind, field and function") {
    target t;
    std::mt19937 random(17);
    const std::vector<te_param_group> groups = some_groups();
    for (te_rule rule : {TE_RULE_adamw, TE_RULE_sgd, TE_RULE_muon})
        for (te_dtype dtype : {TE_f32, TE_bf16}) {
            CAPTURE(te_rule_name(rule), te_dtype_name(dtype));
            te_adamw_config c = busy_config();
            c.rule = rule, c.momentum = rule == TE_RULE_adamw ? 0.0f : 0.9f, c.groups = groups.data(), c.group_count = (int)groups.size();
            hand_model m(t, "m", dtype, odd_params()), same(t, "same", dtype, odd_params());
            m.draw_data(random, 0.5f);
            for (size_t i = 0; i < m.param.size(); i++)
                if (!m.param[i].tied) same.set_data(i, m.data(i));
            optimizer o(t, {&m.model}, c);
            CHECK((o.opt.config.groups == nullptr && o.opt.config.group_count == 0)); // the groups need not live longer than te_adamw_init
            reference r(c, {&m});
            for (reference_tensor &k : r.tensors) {
                const te_param &p = m.param[k.index];
                const std::string op = p.op;
                if (op == "odd") k.lr = 0.25, k.decay = 0;
                else if (std::string(p.field) == "bias") k.lr = 2, k.decay = (double)0.3f;
                else if (op == "square") k.lr = 0;
                else if (op == "large") k.lr = 0.5;
            }
            for (int step = 0; step < 4; step++) {
                m.draw_grad(random, 1);
                o.step();
                if (rule != TE_RULE_muon) r.run();
            }
            m.check_gaps();
            te_adamw_iter w = te_adamw_tensors(&o.opt);
            for (const reference_tensor &k : r.tensors) {
                REQUIRE(te_adamw_next(&w));
                CAPTURE(w.param->op);
                if (rule != TE_RULE_muon) CHECK(distance(read_floats(t, w.master, k.p.size()), k.p) < 1e-5);
                if (k.lr == 0) CHECK(m.data(k.index) == same.data(k.index));
            }
        }
    // Muon: a group has the bits of a run in which all parameters have the group's numbers.
    for (float lr : {1.0f, 0.5f, 4.0f}) {
        te_adamw_config c = te_muon_defaults(0.01f);
        te_param_group g = te_param_group_of(nullptr, "linear", nullptr);
        g.lr = lr, g.weight_decay = 0.25f;
        std::vector<std::vector<uint8_t>> by;
        for (int grouped = 0; grouped < 2; grouped++) {
            std::mt19937 same_numbers(3);
            hand_model m(t, "m", TE_bf16, {{"a", "weight", 33, 20}, {"b", "bias", 1, 20}, {"c", "weight", 8, 8}});
            m.draw_data(same_numbers, 1);
            te_adamw_config grouped_config = grouped ? c : te_muon_defaults(0.01f * lr);
            if (grouped) grouped_config.groups = &g, grouped_config.group_count = 1;
            else grouped_config.weight_decay = 0.25f, grouped_config.decay_all = 1;
            optimizer o(t, {&m.model}, grouped_config);
            for (int step = 0; step < 3; step++) m.draw_grad(same_numbers, 1), o.step();
            by.push_back(m.params->raw());
        }
        CHECK(by[0] == by[1]);
    }
}

TEST_CASE("frozen parameters have no moments, do not count in the norm and are not updated") {
    target t;
    std::mt19937 random(19);
    for (te_rule rule : {TE_RULE_adamw, TE_RULE_sgd, TE_RULE_muon}) {
        te_adamw_config c = busy_config();
        c.rule = rule, c.momentum = rule == TE_RULE_adamw ? 0.0f : 0.9f;
        hand_model m(t, "m", TE_f32, odd_params());
        m.draw_data(random, 1), m.draw_grad(random, 1);
        te_model *models[] = {&m.model};
        const size_t whole = te_adamw_bytes_of(models, 1, &c);
        REQUIRE(te_freeze(&m.model, "large", "weight", t) == TE_OK);
        REQUIRE(te_freeze(&m.model, nullptr, "bias", t) == TE_OK);
        REQUIRE(te_freeze(&m.model, "norm", nullptr, t) == TE_OK);
        std::vector<std::vector<float>> before;
        for (size_t i = 0; i < m.param.size(); i++) {
            before.push_back(m.param[i].tied ? std::vector<float>() : m.data(i));
            if (m.param[i].frozen) m.set_grad(i, std::vector<float>(m.elements(i), NAN)); // must not be read
        }
        const size_t rest = te_adamw_bytes_of(models, 1, &c);
        CHECK(rest < whole - (131 * 257 + 7 + 2049 + 8191 + 8192) * 4); // saves at least one moment for each
        optimizer o(t, {&m.model}, c);
        reference r(c, {&m});
        o.step();
        if (rule != TE_RULE_muon) r.run();
        if (rule != TE_RULE_muon) CHECK(o.state().norm == Approx(r.norm).epsilon(1e-5));
        CHECK(std::isfinite(o.state().norm));
        for (size_t i = 0; i < m.param.size(); i++) {
            CAPTURE(m.param[i].op);
            if (!m.param[i].tied) CHECK((m.data(i) == before[i]) == (m.param[i].frozen == 1));
        }
        m.check_gaps();
        REQUIRE(te_unfreeze(&m.model, "large", nullptr, t) == TE_OK);
        CHECK(te_adamw_step(&o.opt, t) == TE_ERROR_STATE);
        CHECK(std::string(te_last_error(t)).find("other parameters were frozen, since te_adamw_init") != std::string::npos);
    }
}

TEST_CASE("the slices of all ranks cover each element once") {
    target t;
    hand_model a(t, "a", TE_f32, odd_params()), b(t, "b", TE_bf16, {{"fc", "weight", 1, 1}}), c(t, "c", TE_bf16, odd_params());
    te_model *models[] = {&a.model, &b.model, &c.model};
    for (int ranks = 1; ranks <= 9; ranks++) {
        std::map<const te_param *, std::vector<int>> seen;
        te_adamw_config config = te_adamw_defaults(1e-3f);
        config.shards = ranks;
        int64_t largest = 0, all = a.model.elements + b.model.elements + c.model.elements;
        for (int rank = 0; rank < ranks; rank++) {
            int64_t rank_elements = 0;
            te_zero1_iter w = te_zero1_iter_of(models, 3, te_zero1_of(rank, ranks));
            while (te_zero1_next(&w)) {
                std::vector<int> &times = seen[w.param];
                times.resize((size_t)(w.param->rows * w.param->cols));
                REQUIRE(w.elements > 0);
                REQUIRE((w.from >= 0 && w.from % TE_PARAM_ALIGN == 0 && w.from + w.elements <= (int64_t)times.size()));
                for (int64_t i = w.from; i < w.from + w.elements; i++)
                    if (!w.is_replicated || !rank) times[(size_t)i]++;
                rank_elements += te_round_up(w.elements, TE_PARAM_ALIGN);
            }
            largest = std::max(largest, rank_elements);
        }
        CHECK(largest <= all / ranks + (ranks > 1 ? 3 * ranks * TE_PARAM_ALIGN : 0));
        size_t parameters = 0;
        te_param_iter p = te_params_of(models, 3);
        for (; te_params_next(&p); parameters++) {
            REQUIRE(seen.count(p.param) == 1);
            CHECK(std::count(seen[p.param].begin(), seen[p.param].end(), 1) == p.param->rows * p.param->cols);
        }
        CHECK(seen.size() == parameters);
        // 12 bytes for each bf16 element, 8 for f32, and tables: at most two pieces of a parameter, and a partial sum for each chunk
        const size_t whole = te_adamw_bytes(models, 3), bytes = te_adamw_bytes_of(models, 3, &config);
        CHECK(bytes <= whole / (size_t)ranks + 3 * (size_t)ranks * TE_PARAM_ALIGN * 12 + parameters * 256 + 8192);
    }
}

TEST_CASE("weight decay applies to matrices only") {
    target t;
    for (int all = 0; all < 2; all++) {
        hand_model m(t, "m", TE_f32, {{"fc", "weight", 2, 300}, {"fc", "bias", 1, 300}});
        m.set_data(0, std::vector<float>(600, 2)), m.set_data(1, std::vector<float>(300, 2));
        m.set_grad(0, std::vector<float>(600, 0)), m.set_grad(1, std::vector<float>(300, 0));
        te_adamw_config c = te_adamw_defaults(0.5f);
        c.weight_decay = 0.25f, c.decay_all = all;
        optimizer o(t, {&m.model}, c);
        o.step();
        CHECK(m.data(0) == std::vector<float>(600, 1.75f));
        CHECK(m.data(1) == std::vector<float>(300, all ? 1.75f : 2.0f));
    }
}

TEST_CASE("clipping and grad_scale") {
    target t;
    hand_model m(t, "m", TE_f32, {{"fc", "weight", 2, 2}});
    m.set_data(0, {0, 0, 0, 0}), m.set_grad(0, {3, 0, 0, 4});
    te_adamw_config c = te_adamw_defaults(1e-3f);
    const auto first_m = [&](te_adamw_config config) {
        optimizer o(t, {&m.model}, config);
        o.step();
        const std::vector<float> v = read_floats(t, o.opt.m, 4);
        return std::vector<float>{v[0], v[3], o.state().norm};
    };
    c.beta1 = 0.5f;
    CHECK(first_m(c) == std::vector<float>{1.5f, 2, 0}); // without clipping no norm is computed
    c.max_norm = INFINITY;
    CHECK(first_m(c) == std::vector<float>{1.5f, 2, 5});
    c.max_norm = 10;
    CHECK(first_m(c) == std::vector<float>{1.5f, 2, 5});
    c.max_norm = 2.5f;
    CHECK(first_m(c) == std::vector<float>{0.75f, 1, 5});
    c.grad_scale = 0.25f; // for a loss scale of 4; the norm is that of the unscaled gradients
    CHECK(first_m(c) == std::vector<float>{0.375f, 0.5f, 1.25f});
    c.max_norm = 0.625f;
    CHECK(first_m(c) == std::vector<float>{0.1875f, 0.25f, 1.25f});
}

TEST_CASE("a step with infinite gradients can be skipped") {
    target t;
    std::mt19937 random(6);
    hand_model m(t, "m", TE_f16, {{"fc", "weight", 20, 30}});
    m.draw_data(random, 1), m.draw_grad(random, 1);
    te_adamw_config c = busy_config();
    c.skip_nonfinite = 1, c.max_norm = 0;
    optimizer o(t, {&m.model}, c);
    o.step();
    const std::vector<uint8_t> before = m.params->raw();
    const std::vector<float> moments = read_floats(t, o.opt.m, 600);
    for (float bad : {INFINITY, -INFINITY, NAN}) {
        std::vector<float> g(600, 1.0f);
        g[599] = bad, m.set_grad(0, g);
        o.step();
    }
    CHECK(m.params->raw() == before);
    CHECK(read_floats(t, o.opt.m, 600) == moments);
    CHECK(o.state().step == 1);
    CHECK(o.state().skipped == 3);
    m.draw_grad(random, 1);
    o.step();
    CHECK(o.state().step == 2);
    CHECK(m.params->raw() != before);
}

TEST_CASE("the largest gradients give finite updates") {
    target t;
    std::mt19937 random(7);
    for (float size : {1e20f, 1e30f, 3e38f})
        for (float max_norm : {0.0f, 1.0f, INFINITY, 1e30f}) {
            hand_model m(t, "m", TE_bf16, {{"fc", "weight", 20, 30}});
            m.draw_data(random, 1);
            const std::vector<float> before = m.data(0);
            te_adamw_config c = te_adamw_defaults(0.25f);
            c.skip_nonfinite = 1, c.max_norm = max_norm, c.weight_decay = 0;
            optimizer o(t, {&m.model}, c);
            m.set_grad(0, std::vector<float>(600, size));
            o.step();
            const te_adamw_state s = o.state();
            CAPTURE(size, max_norm);
            CHECK(s.step == 1);
            CHECK(s.skipped == 0);
            // with equal gradients of any size, the first step changes every weight by lr
            const std::vector<float> after = read_floats(t, o.opt.master, 600);
            for (size_t i = 0; i < after.size(); i++)
                if (!(std::fabs(before[i] - after[i] - 0.25f) < 1e-4f)) FAIL("weight " << i << " moved by " << before[i] - after[i]);
            for (int step = 0; step < 3; step++) m.draw_grad(random, 1), o.step(); // and later steps change each weight, too
            for (float v : read_floats(t, o.opt.v, 600)) REQUIRE(std::isfinite(v));
            for (size_t i = 0; i < 600; i++) REQUIRE(std::isfinite(m.data(0)[i]));
        }
}

TEST_CASE("te_adamw_reset, _get and _set; the size of the optimizer's memory") {
    target t;
    std::mt19937 random(6);
    hand_model m(t, "m", TE_bf16, {{"fc", "weight", 200, 300}}), f(t, "f", TE_f32, {{"fc", "weight", 200, 300}});
    m.draw_data(random, 1), m.draw_grad(random, 1), f.draw_data(random, 1), f.draw_grad(random, 1);
    te_model *models[] = {&m.model, &f.model};
    CHECK(te_adamw_bytes(models, 1) < 60000 * 12 + 8192);
    CHECK(te_adamw_bytes(models + 1, 1) < 60000 * 8 + 8192); // f32 weights have no master copy
    te_adamw_config c = te_adamw_defaults(0);
    CHECK(te_adamw_bytes_of(models, 1, &c) == te_adamw_bytes(models, 1));
    c.moments = TE_bf16;
    CHECK(te_adamw_bytes_of(models, 1, &c) < 60000 * 8 + 8192);
    c.moments = TE_e4m3;
    CHECK(te_adamw_bytes_of(models, 1, &c) < 60000 * (4 + 2 * 132 / 128.) + 8192);
    c.moments = TE_bf16, c.rule = TE_RULE_sgd;
    CHECK(te_adamw_bytes_of(models, 1, &c) < 60000 * 6 + 8192);
    c.no_master = 1;
    CHECK(te_adamw_bytes_of(models, 1, &c) < 60000 * 2 + 8192);
    optimizer o(t, {&m.model, &f.model}, busy_config());
    CHECK(read_floats(t, o.opt.master, 60000) == m.data(0));
    o.step(), o.step();
    te_adamw_state s = o.state();
    s.step = 7;
    REQUIRE(te_adamw_set(&s, &o.opt, t) == TE_OK);
    o.step();
    CHECK(o.state().step == 8);
    s.step = -1;
    CHECK(te_adamw_set(&s, &o.opt, t) == TE_ERROR_VALUE);
    for (int64_t far : {TE_ADAMW_MAX_STEPS + 1, INT64_MAX - 1, INT64_MAX, INT64_MIN}) {
        s.step = far, s.skipped = 0;
        CHECK(te_adamw_set(&s, &o.opt, t) == TE_ERROR_VALUE);
        s.step = 0, s.skipped = far;
        CHECK(te_adamw_set(&s, &o.opt, t) == TE_ERROR_VALUE);
    }
    CHECK(o.state().step == 8);
    s.step = TE_ADAMW_MAX_STEPS, s.skipped = 0;
    REQUIRE(te_adamw_set(&s, &o.opt, t) == TE_OK);
    o.step();
    CHECK(o.state().step == TE_ADAMW_MAX_STEPS + 1);
    m.draw_data(random, 2);
    REQUIRE(te_adamw_reset(&o.opt, t) == TE_OK);
    CHECK(o.state().step == 0);
    CHECK(read_floats(t, o.opt.master, 60000) == m.data(0));
    CHECK(read_floats(t, o.opt.m, 120064) == std::vector<float>(120064, 0));
    CHECK(read_floats(t, o.opt.v, 60000) == std::vector<float>(60000, 0));
}

TEST_CASE("invalid values of te_adamw_set are refused") {
    target t;
    hand_model m(t, "m", TE_f32, {{"fc", "weight", 20, 30}});
    te_model unbound;
    memset(&unbound, 0, sizeof unbound);
    CHECK(te_param_normal(nullptr, 1, 1, 0, t) == TE_ERROR_NULL);
    CHECK(te_model_randomize(nullptr, 1, 1, 0, t) == TE_ERROR_STATE);
    CHECK(te_model_randomize(&unbound, 1, 1, 0, t) == TE_ERROR_STATE);
    for (float bad : {INFINITY, NAN}) {
        CHECK(te_param_normal(&m.param[0], bad, 1, 0, t) == TE_ERROR_VALUE);
        CHECK(te_model_randomize(&m.model, bad, 1, 0, t) == TE_ERROR_VALUE);
    }
    for (uint8_t b : m.params->raw()) REQUIRE(b == 0xff);
    CHECK(te_model_randomize(&m.model, 1, 1, 0, t) == TE_OK);
}

TEST_CASE("invalid arguments are refused") {
    target t;
    hand_model m(t, "m", TE_bf16, {{"fc", "weight", 20, 30}}), frozen(t, "frozen", TE_bf16, {{"fc", "weight", 20, 30}}, false);
    te_model *models[] = {&m.model, &m.model, &frozen.model};
    const size_t bytes = te_adamw_bytes(models, 1);
    memory optimizer_memory(t, bytes);
    te_adamw opt;
    const te_adamw_config good = te_adamw_defaults(1e-3f);
    const auto init = [&](te_adamw_config c) { return te_adamw_init(&opt, optimizer_memory.p, bytes, models, 1, &c, t); };
    te_adamw_config c = good;
    CHECK(te_adamw_init(nullptr, optimizer_memory.p, bytes, models, 1, &good, t) == TE_ERROR_NULL);
    CHECK(te_adamw_init(&opt, nullptr, bytes, models, 1, &good, t) == TE_ERROR_NULL);
    CHECK(te_adamw_init(&opt, optimizer_memory.p, bytes, nullptr, 1, &good, t) == TE_ERROR_NULL);
    CHECK(te_adamw_init(&opt, optimizer_memory.p, bytes, models, 1, nullptr, t) == TE_ERROR_NULL);
    CHECK(te_adamw_init(&opt, optimizer_memory.p, bytes, models, 1, &good, nullptr) == TE_ERROR_NULL);
    CHECK(te_adamw_init(&opt, optimizer_memory.p, bytes - 1, models, 1, &good, t) == TE_ERROR_MEMORY);
    CHECK(te_adamw_init(&opt, (char *)optimizer_memory.p + 128, bytes, models, 1, &good, t) == TE_ERROR_ALIGNMENT);
    CHECK(te_adamw_init(&opt, optimizer_memory.p, bytes, models, 2, &good, t) == TE_ERROR_VALUE);
    CHECK(te_adamw_init(&opt, optimizer_memory.p, bytes, models + 2, 1, &good, t) == TE_ERROR_NULL);
    CHECK(std::string(te_last_error(t)).find("frozen") != std::string::npos);
    hand_model half(t, "half", TE_f16, {{"fc", "weight", 20, 30}});
    te_model *mixed[] = {&m.model, &half.model};
    c.no_master = 1;
    memory more(t, te_adamw_bytes(mixed, 2));
    CHECK(te_adamw_init(&opt, more.p, more.bytes, mixed, 2, &c, t) == TE_ERROR_DTYPE);
    CHECK(std::string(te_last_error(t)).find("model 1 (half) is f16") != std::string::npos);
    c = good, c.beta1 = 1;
    CHECK(init(c) == TE_ERROR_VALUE);
    c = good, c.beta2 = NAN;
    CHECK(init(c) == TE_ERROR_VALUE);
    c = good, c.eps = 0;
    CHECK(init(c) == TE_ERROR_VALUE);
    c = good, c.weight_decay = -1;
    CHECK(init(c) == TE_ERROR_VALUE);
    c = good, c.max_norm = NAN;
    CHECK(init(c) == TE_ERROR_VALUE);
    c = good, c.grad_scale = 0;
    CHECK(init(c) == TE_ERROR_VALUE);
    for (float bad : {INFINITY, -INFINITY, NAN}) {
        c = good, c.eps = bad;
        CHECK(init(c) == TE_ERROR_VALUE);
        CHECK(std::string(te_last_error(t)).find("eps") != std::string::npos);
        c = good, c.weight_decay = bad;
        CHECK(init(c) == TE_ERROR_VALUE);
        CHECK(std::string(te_last_error(t)).find("weight_decay") != std::string::npos);
        c = good, c.grad_scale = bad;
        CHECK(init(c) == TE_ERROR_VALUE);
        CHECK(std::string(te_last_error(t)).find("grad_scale") != std::string::npos);
        c = good, c.schedule.peak = bad;
        CHECK(init(c) == TE_ERROR_VALUE);
        c = good, c.beta1 = bad;
        CHECK(init(c) == TE_ERROR_VALUE);
    }
    c = good, c.schedule.total = INT64_MIN;
    CHECK(init(c) == TE_ERROR_VALUE);
    c = good, c.schedule.kind = TE_SCHEDULE_cosine;
    CHECK(init(c) == TE_ERROR_VALUE);
    CHECK(std::string(te_last_error(t)).find("cosine") != std::string::npos);
    for (uint8_t b : optimizer_memory.raw()) REQUIRE(b == 0xff); // nothing was written
    CHECK(te_adamw_step(nullptr, t) == TE_ERROR_NULL);
    memset(&opt, 0, sizeof opt);
    CHECK(te_adamw_step(&opt, t) == TE_ERROR_NULL);
}

#if TE_CUDA
TEST_CASE("the replay of a captured step has the bits of an eager step") {
    te_adamw_config config = busy_config();
    std::vector<uint8_t> first;
    for (int captured = 0; captured < 2; captured++) {
        target t;
        cudaStream_t stream;
        REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
        t->stream = stream;
        std::mt19937 random(5);
        hand_model m(t, "m", TE_bf16, odd_params());
        m.draw_data(random, 1), m.draw_grad(random, 1);
        optimizer o(t, {&m.model}, config);
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        if (captured) {
            REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
            o.step();
            REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
            REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
        }
        for (int step = 0; step < 8; step++) {
            m.draw_grad(random, 1);
            if (captured) REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess);
            else o.step();
        }
        CHECK(o.state().step == 8);
        const std::vector<uint8_t> now = m.params->raw();
        if (captured) {
            CHECK(now == first);
            (void)cudaGraphExecDestroy(exec), (void)cudaGraphDestroy(graph);
        }
        first = now;
        t->stream = nullptr;
        (void)cudaStreamDestroy(stream);
    }
}
#endif
