// checkpoint_test.cc -- a run that was stopped and resumed from a checkpoint continues with the same bits; a file that does not match
// the models is refused and changes nothing.
#include "hand_model.h"

#include <fstream>
#include <memory>
#include <sstream>

#include "te/io/checkpoint.h"

namespace {

struct file_name {
    std::string path;
    file_name() {
        const char *base = std::getenv("TEST_TMPDIR") ? std::getenv("TEST_TMPDIR") : std::getenv("TMPDIR");
        path = std::string(base ? base : "/tmp") + "/te_checkpoint_XXXXXX";
        const int fd = mkstemp(&path[0]);
        REQUIRE(fd >= 0);
        close(fd);
    }
    ~file_name() { (void)std::remove(path.c_str()); }
};

// A small network: two models of different dtypes, one of which has two instances, and a tied weight.
struct network {
    target t;
    hand_model embed, h0, h1;
    std::vector<te_named_model> names;
    std::vector<te_model *> models;
    std::unique_ptr<memory> optimizer_memory;
    te_adamw opt;
    explicit network(uint64_t seed, int64_t width = 40, te_rule rule = TE_RULE_adamw, te_dtype moments = TE_f32, int no_master = 0, bool freezes = false)
        : t(seed), embed(t, "embed", TE_f32, {{"tokens", "weight", 30, width}}), h0(t, "block", TE_bf16, layer(width)), h1(t, "block", TE_bf16, layer(width)) {
        REQUIRE(te_tie(&h1.param[3], &h0.param[0], t) == TE_OK);
        names = {{"embed", &embed.model}, {"h0", &h0.model}, {"h1", &h1.model}};
        models = {&embed.model, &h0.model, &h1.model};
        std::mt19937 random((unsigned)seed);
        for (hand_model *m : {&embed, &h0, &h1}) m->draw_data(random, 0.3f);
        if (freezes) REQUIRE((te_freeze(&embed.model, nullptr, nullptr, t) == TE_OK && te_freeze(&h1.model, "ln", "gamma", t) == TE_OK));
        te_adamw_config c = te_adamw_defaults(0);
        c.schedule = te_schedule_of(TE_SCHEDULE_cosine, 1e-2f, 4, 40, 0), c.max_norm = 1, c.weight_decay = 0.1f;
        c.rule = rule, c.moments = moments, c.no_master = no_master, c.momentum = 0.9f, c.nesterov = 1;
        optimizer_memory.reset(new memory(t, te_adamw_bytes_of(models.data(), 3, &c)));
        REQUIRE(te_adamw_init(&opt, optimizer_memory->p, optimizer_memory->bytes, models.data(), 3, &c, t) == TE_OK);
    }
    static std::vector<hand_param> layer(int64_t width) {
        return {{"fc1", "weight", 96, width}, {"fc1_b", "bias", 1, 96}, {"ln", "gamma", 1, width}, {"head", "weight", 96, width, 1}};
    }
    // Gradients that depend on the parameters, the random state and the step, as in training.
    void train(int from, int to) {
        for (int step = from; step < to; step++) {
            te_rng rng;
            REQUIRE(te_rng_get(&rng, t) == TE_OK);
            std::mt19937 random((unsigned)(rng.seed * 31 + rng.offset));
            for (hand_model *m : {&embed, &h0, &h1})
                for (size_t i = 0; i < m->param.size(); i++) {
                    if (m->param[i].tied) continue;
                    std::vector<float> g = hand_model::draw(random, m->elements(i), 0.2f), w = m->data(i);
                    for (size_t k = 0; k < g.size(); k++) g[k] += w[k];
                    m->set_grad(i, g);
                }
            rng.offset += 3;
            REQUIRE(te_rng_set(&rng, t) == TE_OK);
            REQUIRE(te_adamw_step(&opt, t) == TE_OK);
        }
    }
    te_checkpoint checkpoint(const std::vector<te_safetensors_pair> *metadata = nullptr) {
        te_checkpoint c = {};
        c.models = names.data(), c.count = (int)names.size(), c.optimizer = &opt, c.random = 1;
        c.force = 0;
        c.metadata = metadata ? metadata->data() : nullptr, c.metadata_count = metadata ? (int)metadata->size() : 0;
        return c;
    }
    // The whole state of a run: parameters, optimizer and random state.
    std::vector<uint8_t> bits() {
        std::vector<uint8_t> all;
        const auto add = [&](const void *p, size_t n) { all.insert(all.end(), (const uint8_t *)p, (const uint8_t *)p + n); };
        for (hand_model *m : {&embed, &h0, &h1}) {
            const std::vector<uint8_t> v = m->params->raw();
            add(v.data(), v.size());
        }
        te_adamw_iter w = te_adamw_tensors(&opt);
        while (te_adamw_next(&w))
            for (const void *p : {(void *)w.master, w.m, w.v}) {
                if (!p) continue;
                const std::vector<float> v = read_moment(t, p, (size_t)(w.param->rows * w.param->cols), p == w.master ? TE_f32 : opt.moments, p == w.v);
                add(v.data(), v.size() * sizeof v[0]);
            }
        te_adamw_state s;
        te_rng rng;
        REQUIRE(te_adamw_get(&s, &opt, t) == TE_OK);
        REQUIRE(te_rng_get(&rng, t) == TE_OK);
        add(&s.step, sizeof s.step), add(&s.skipped, sizeof s.skipped), add(&rng, sizeof rng);
        return all;
    }
};

te_status load(network &n, const te_checkpoint &c, const std::string &path, std::string *position = nullptr) {
    te_safetensors f;
    TE_TRY(te_safetensors_open(&f, path.c_str(), n.t));
    const char *p = te_safetensors_metadata(&f, "position");
    if (position) *position = p ? p : "";
    const te_status status = te_checkpoint_load(&c, &f, n.t);
    te_safetensors_close(&f);
    return status;
}

} // namespace

TEST_CASE("frozen parameters are saved without moments; a run that froze other parameters is refused by name") {
    file_name file;
    network run(7, 40, TE_RULE_adamw, TE_f32, 0, true), resumed(8, 40, TE_RULE_adamw, TE_f32, 0, true), all(8);
    run.train(0, 3);
    const te_checkpoint from = run.checkpoint(), to = resumed.checkpoint(), more = all.checkpoint();
    REQUIRE(te_checkpoint_save(file.path.c_str(), &from, run.t) == TE_OK);
    CHECK(load(all, more, file.path) == TE_ERROR_FORMAT);
    CHECK(std::string(te_last_error(all.t)).find("has no tensor adamw.m.embed.tokens.weight") != std::string::npos);
    REQUIRE(load(resumed, to, file.path) == TE_OK);
    CHECK(resumed.bits() == run.bits());
    run.train(3, 5), resumed.train(3, 5);
    CHECK(resumed.bits() == run.bits());
}

TEST_CASE("a run that is stopped and resumed has the bits of one that is not stopped") {
    file_name file;
    network straight(1);
    straight.train(0, 9);
    const std::vector<te_safetensors_pair> metadata = {{"position", "4096"}, {"text", "a \"b\"\n"}};
    {
        network first(1);
        first.train(0, 4);
        const te_checkpoint c = first.checkpoint(&metadata);
        const std::vector<uint8_t> before = first.bits();
        const te_status status = te_checkpoint_save(file.path.c_str(), &c, first.t);
        INFO(te_last_error(first.t));
        REQUIRE(status == TE_OK);
        CHECK(first.bits() == before);
        first.train(4, 9);
        CHECK(first.bits() == straight.bits());
    }
    network second(99); // other weights, other random state
    CHECK(second.bits() != straight.bits());
    std::string position;
    const te_status status = load(second, second.checkpoint(), file.path, &position);
    INFO(te_last_error(second.t));
    REQUIRE(status == TE_OK);
    CHECK(position == "4096");
    second.train(4, 9);
    CHECK(second.bits() == straight.bits());
    for (hand_model *m : {&second.embed, &second.h0, &second.h1}) m->check_gaps();
}

TEST_CASE("SGD, Muon and bf16 moments, stopped and resumed; a file of one optimizer is refused by another") {
    for (int i = 0; i < 3 * TE_RULE_COUNT; i++) {
        const te_rule rule = (te_rule)(i / 3);
        const te_dtype moments = i % 3 ? TE_bf16 : TE_f32, others = i % 3 ? TE_f32 : TE_bf16;
        const int alone = i % 3 == 2; // no f32 master weights
        file_name file;
        network straight(1, 40, rule, moments, alone), first(1, 40, rule, moments, alone), second(99, 40, rule, moments, alone);
        straight.train(0, 6), first.train(0, 3);
        const te_checkpoint c = first.checkpoint();
        REQUIRE(te_checkpoint_save(file.path.c_str(), &c, first.t) == TE_OK);
        REQUIRE(load(second, second.checkpoint(), file.path) == TE_OK);
        second.train(3, 6);
        CAPTURE(te_rule_name(rule), te_dtype_name(moments), alone);
        CHECK((second.bits() == straight.bits()));
        CHECK((first.bits() != straight.bits()));

        te_safetensors f;
        REQUIRE(te_safetensors_open(&f, file.path.c_str(), first.t) == TE_OK);
        const std::string prefix = te_rule_name(rule);
        std::vector<std::string> head;
        for (int k = 0; k < f.count; k++)
            if (std::string(f.tensor[k].name).find(".h0.fc1.weight") != std::string::npos)
                head.push_back(std::string(f.tensor[k].name) + " " + te__shape_text_of(&f.tensor[k]).text);
        te_safetensors_close(&f);
        const std::string shape = std::string(".h0.fc1.weight ") + (i % 3 ? "BF16" : "F32") + " [96, 40]";
        std::vector<std::string> want = {prefix + ".m" + shape};
        if (!alone) want.push_back(prefix + ".master.h0.fc1.weight F32 [96, 40]");
        if (rule == TE_RULE_adamw) want.push_back(prefix + ".v" + shape);
        CHECK(head == want);

        const te_rule next = (te_rule)((rule + 1) % TE_RULE_COUNT);
        network another(99, 40, next, moments, alone);
        const std::vector<uint8_t> before = another.bits();
        CHECK(load(another, another.checkpoint(), file.path) == TE_ERROR_FORMAT);
        INFO(te_last_error(another.t));
        CHECK(std::string(te_last_error(another.t)).find(std::string("has no tensor ") + te_rule_name(next) + ".step") != std::string::npos);
        CHECK((another.bits() == before));

        network other(99, 40, rule, others, alone); // moments of another dtype are converted
        REQUIRE(load(other, other.checkpoint(), file.path) == TE_OK);
        te_adamw_iter is = te_adamw_tensors(&other.opt), was = te_adamw_tensors(&first.opt);
        while (te_adamw_next(&was)) {
            REQUIRE(te_adamw_next(&is));
            const void *const pairs[2][2] = {{is.m, was.m}, {is.v, was.v}};
            for (int k = 0; k < (was.v ? 2 : 1); k++) {
                const size_t n = (size_t)(is.param->rows * is.param->cols);
                std::vector<float> want_floats = read_floats(first.t, pairs[k][1], n, moments);
                for (float &e : want_floats) e = te_round_to(e, others);
                CHECK(read_floats(other.t, pairs[k][0], n, others) == want_floats);
            }
        }
    }
}

TEST_CASE("8-bit moments are saved in bf16, and loaded with the same bits") {
    for (te_rule rule : {TE_RULE_adamw, TE_RULE_sgd}) {
        CAPTURE(te_rule_name(rule));
        file_name file, resaved;
        const bool freezes = rule == TE_RULE_adamw;
        network straight(1, 40, rule, TE_e4m3, 0, freezes), first(1, 40, rule, TE_e4m3, 0, freezes), second(99, 40, rule, TE_e4m3, 0, freezes);
        straight.train(0, 6), first.train(0, 3), second.train(0, 1);
        const te_checkpoint c = first.checkpoint(), d = second.checkpoint();
        REQUIRE(te_checkpoint_save(file.path.c_str(), &c, first.t) == TE_OK);
        REQUIRE(load(second, second.checkpoint(), file.path) == TE_OK);
        CHECK((second.bits() == first.bits()));
        REQUIRE(te_checkpoint_save(resaved.path.c_str(), &d, second.t) == TE_OK);
        const auto all_of = [](const std::string &path) { std::ifstream f(path, std::ios::binary); return std::string(std::istreambuf_iterator<char>(f), {}); };
        CHECK((all_of(file.path) == all_of(resaved.path)));
        second.train(3, 6);
        CHECK((second.bits() == straight.bits()));
        CHECK((first.bits() != straight.bits()));
        // Other formats represent all numbers of the 8-bit format exactly; it gets the nearest of theirs.
        for (te_dtype moments : {TE_f32, TE_bf16}) {
            network other(99, 40, rule, moments, 0, freezes), back(98, 40, rule, TE_e4m3, 0, freezes);
            REQUIRE(load(other, other.checkpoint(), file.path) == TE_OK);
            CHECK((other.bits() == first.bits()));
            other.train(3, 4);
            const te_checkpoint o = other.checkpoint();
            REQUIRE(te_checkpoint_save(resaved.path.c_str(), &o, other.t) == TE_OK);
            REQUIRE(load(back, back.checkpoint(), resaved.path) == TE_OK);
            te_adamw_iter is = te_adamw_tensors(&back.opt), was = te_adamw_tensors(&other.opt);
            while (te_adamw_next(&was)) {
                REQUIRE(te_adamw_next(&is));
                const size_t n = (size_t)(is.param->rows * is.param->cols);
                for (int root = 0; root < (was.v ? 2 : 1); root++) {
                    const std::vector<float> want = read_moment(other.t, root ? was.v : was.m, n, moments, root), got = read_moment(back.t, root ? is.v : is.m, n, TE_e4m3, root);
                    for (size_t from = 0; from < n; from += 128) {
                        const size_t to = std::min(n, from + 128);
                        float largest = 0;
                        for (size_t i = from; i < to; i++) largest = std::max(largest, root ? std::sqrt(want[i]) : std::fabs(want[i]));
                        // half a unit of e4m3 (for subnormals half of 2^-9 times the scale), and one of bf16
                        for (size_t i = from; i < to; i++) {
                            const float a = root ? std::sqrt(want[i]) : want[i], b = root ? std::sqrt(got[i]) : got[i];
                            if (!(std::fabs(a - b) <= std::fabs(a) * (1 / 16.f + 1 / 256.f) + largest / 224 / 512)) FAIL("element " << i << ": " << a << " became " << b);
                            if (root && want[i] > 0 && !(got[i] > 0)) FAIL("element " << i << " of v became 0");
                        }
                    }
                }
            }
        }
    }
}

TEST_CASE("the contents of a checkpoint file") {
    file_name file;
    network n(1);
    n.train(0, 2);
    const te_checkpoint c = n.checkpoint();
    REQUIRE(te_checkpoint_save(file.path.c_str(), &c, n.t) == TE_OK);
    te_safetensors f;
    REQUIRE(te_safetensors_open(&f, file.path.c_str(), n.t) == TE_OK);
    std::vector<std::string> all;
    for (int i = 0; i < f.count; i++) all.push_back(std::string(f.tensor[i].name) + " " + te__shape_text_of(&f.tensor[i]).text);
    CHECK(all == std::vector<std::string>{
                     "adamw.m.embed.tokens.weight F32 [30, 40]", "adamw.m.h0.fc1.weight F32 [96, 40]", "adamw.m.h0.fc1_b.bias F32 [96]",
                     "adamw.m.h0.ln.gamma F32 [40]", "adamw.m.h1.fc1.weight F32 [96, 40]", "adamw.m.h1.fc1_b.bias F32 [96]", "adamw.m.h1.ln.gamma F32 [40]",
                     "adamw.master.h0.fc1.weight F32 [96, 40]", "adamw.master.h0.fc1_b.bias F32 [96]", "adamw.master.h0.ln.gamma F32 [40]",
                     "adamw.master.h1.fc1.weight F32 [96, 40]", "adamw.master.h1.fc1_b.bias F32 [96]", "adamw.master.h1.ln.gamma F32 [40]",
                     "adamw.step I64 [2]", "adamw.v.embed.tokens.weight F32 [30, 40]", "adamw.v.h0.fc1.weight F32 [96, 40]", "adamw.v.h0.fc1_b.bias F32 [96]",
                     "adamw.v.h0.ln.gamma F32 [40]", "adamw.v.h1.fc1.weight F32 [96, 40]", "adamw.v.h1.fc1_b.bias F32 [96]", "adamw.v.h1.ln.gamma F32 [40]",
                     "embed.tokens.weight F32 [30, 40]", "h0.fc1.weight BF16 [96, 40]", "h0.fc1_b.bias BF16 [96]", "h0.ln.gamma BF16 [40]",
                     "h1.fc1.weight BF16 [96, 40]", "h1.fc1_b.bias BF16 [96]", "h1.ln.gamma BF16 [40]", "random U64 [2]"});
    int64_t step[2];
    REQUIRE(te_safetensors_read(&f, te_safetensors_find(&f, "adamw.step"), step, n.t) == TE_OK);
    CHECK(step[0] == 2);
    CHECK(step[1] == 0);
    te_safetensors_close(&f);
}

TEST_CASE("a file with only the weights, without a prefix") {
    file_name file;
    network a(1), b(2);
    const te_named_model one = {"", &a.h0.model}, other = {"", &b.h0.model};
    te_checkpoint c = {};
    memset(&c, 0, sizeof c);
    c.models = &one, c.count = 1;
    REQUIRE(te_checkpoint_save(file.path.c_str(), &c, a.t) == TE_OK);
    c.models = &other;
    REQUIRE(load(b, c, file.path) == TE_OK);
    CHECK(b.h0.data(0) == a.h0.data(0));
    CHECK(b.h0.data(2) == a.h0.data(2));
    CHECK(b.h1.data(0) != a.h0.data(0));
    REQUIRE(te_adamw_reset(&b.opt, b.t) == TE_OK); // which copies the weights to the master weights
    CHECK(read_floats(b.t, b.opt.master, 96 * 40) == a.h0.data(0));
}

TEST_CASE("a file that does not match the models changes nothing") {
    file_name file;
    network saved(1);
    saved.train(0, 2);
    const auto save = [&](const te_checkpoint &c) { REQUIRE(te_checkpoint_save(file.path.c_str(), &c, saved.t) == TE_OK); };
    const auto refused = [&](network &n, const te_checkpoint &c, te_status want, const char *says) {
        const std::vector<uint8_t> before = n.bits();
        CHECK(load(n, c, file.path) == want);
        INFO(te_last_error(n.t));
        CHECK(std::string(te_last_error(n.t)).find(says) != std::string::npos);
        CHECK(n.bits() == before);
    };
    network n(2), wider(2, 41);
    save(saved.checkpoint());
    refused(wider, wider.checkpoint(), TE_ERROR_SHAPE, "tensor embed.tokens.weight is F32 [30, 40], it should be F32 [30, 41]");
    te_checkpoint c = n.checkpoint();
    c.optimizer = nullptr;
    refused(n, c, TE_ERROR_FORMAT, "has a tensor adamw.m.embed.tokens.weight, F32 [30, 40], that nothing here is called");
    c = n.checkpoint(), c.random = 0;
    refused(n, c, TE_ERROR_FORMAT, "has a tensor random");
    n.names[2].name = "h2";
    refused(n, n.checkpoint(), TE_ERROR_FORMAT, "has no tensor h2.fc1.weight, which should be BF16 [96, 40]");
    n.names[2].name = "h1";
    n.h1.plan.dtype = TE_f16;
    refused(n, n.checkpoint(), TE_ERROR_VALUE, "of model \"h1\" it has (bf16), where this one has (f16)");
    n.h1.plan.dtype = TE_bf16;

    c = saved.checkpoint(), c.optimizer = nullptr, save(c);
    refused(n, n.checkpoint(), TE_ERROR_FORMAT, "has no tensor adamw.step");

    // an impossible step count is found before anything is written
    te_adamw_state s;
    REQUIRE(te_adamw_get(&s, &saved.opt, saved.t) == TE_OK);
    s.step = -5;
    REQUIRE(te_copy(saved.t, saved.opt.state, &s, sizeof s) == TE_OK);
    save(saved.checkpoint());
    refused(n, n.checkpoint(), TE_ERROR_FORMAT, "adamw.step is -5");
    for (int64_t far : {TE_ADAMW_MAX_STEPS + 1, INT64_MAX}) { // the next step would overflow the count
        s.step = far;
        REQUIRE(te_copy(saved.t, saved.opt.state, &s, sizeof s) == TE_OK);
        save(saved.checkpoint());
        refused(n, n.checkpoint(), TE_ERROR_FORMAT, "adamw.step is ");
    }

    // a truncated file, and one that is no checkpoint
    REQUIRE(truncate(file.path.c_str(), 20000) == 0);
    refused(n, n.checkpoint(), TE_ERROR_FORMAT, "the file has");
    REQUIRE(truncate(file.path.c_str(), 0) == 0);
    refused(n, n.checkpoint(), TE_ERROR_FORMAT, "no safetensors file");
}

// Reads a whole file; writes a file of these bytes.
std::string content(const std::string &path) {
    std::ostringstream s;
    s << std::ifstream(path, std::ios::binary).rdbuf();
    return s.str();
}
void put(const std::string &path, const std::string &text) { std::ofstream(path, std::ios::binary | std::ios::trunc) << text; }

TEST_CASE("a changed bit in the data or the header is found") {
    file_name file;
    network saved(1, 8), n(2, 8);
    saved.train(0, 2);
    const std::vector<te_safetensors_pair> metadata = {{"position", "4096"}, {"lr", "0.002"}};
    const te_checkpoint c = saved.checkpoint(&metadata);
    REQUIRE(te_checkpoint_save(file.path.c_str(), &c, saved.t) == TE_OK);
    const std::string whole = content(file.path);
    uint64_t header = 0;
    for (int i = 7; i >= 0; i--) header = header << 8 | (unsigned char)whole[(size_t)i];
    const std::vector<uint8_t> before = n.bits();
    const te_checkpoint into = n.checkpoint();
    std::mt19937 random(11);
    size_t passed = 0, tried = 0;
    for (size_t byte = 0; byte < whole.size(); byte += byte < header + 8 ? 1 + random() % 3 : 1 + random() % 400) {
        std::string s = whole;
        s[byte] = (char)(s[byte] ^ (1 << random() % 8));
        te_safetensors f;
        te_status status = te_safetensors_open_memory(&f, s.data(), s.size(), n.t);
        if (status == TE_OK) {
            status = te_checkpoint_load(&into, &f, n.t);
            te_safetensors_close(&f);
        }
        passed += status != TE_ERROR_FORMAT, tried++;
    }
    CHECK(tried > 1000);
    CHECK(passed == 0);
    CHECK(n.bits() == before);
    REQUIRE(load(n, into, file.path) == TE_OK);
    CHECK(n.bits() == saved.bits());
}

TEST_CASE("with force, a file with a wrong checksum is loaded") {
    file_name file;
    network saved(1), n(2);
    const te_checkpoint c = saved.checkpoint();
    REQUIRE(te_checkpoint_save(file.path.c_str(), &c, saved.t) == TE_OK);
    std::string s = content(file.path);
    s.back() = (char)(s.back() ^ 1);
    put(file.path, s);
    te_checkpoint into = n.checkpoint();
    CHECK(load(n, into, file.path) == TE_ERROR_FORMAT);
    CHECK(std::string(te_last_error(n.t)).find("it was changed after it was saved") != std::string::npos);
    into.force = 1;
    CHECK(load(n, into, file.path) == TE_OK);
}

TEST_CASE("a model of another list is refused, though its shapes match") {
    file_name file;
    network saved(1);
    const te_checkpoint c = saved.checkpoint();
    REQUIRE(te_checkpoint_save(file.path.c_str(), &c, saved.t) == TE_OK);
    const auto refused = [&](network &n, const char *says) {
        const std::vector<uint8_t> before = n.bits();
        te_checkpoint into = n.checkpoint();
        CHECK(load(n, into, file.path) == TE_ERROR_VALUE);
        INFO(te_last_error(n.t));
        CHECK(std::string(te_last_error(n.t)).find(says) != std::string::npos);
        CHECK(n.bits() == before);
        into.force = 1;
        CHECK(load(n, into, file.path) == TE_OK);
    };
    network heads(2), eps(2), kind(2), longer(2);
    const int four = 4;
    const float small = 1e-6f;
    heads.h1.op[1].options = &four, heads.h1.op[1].options_bytes = sizeof four;
    refused(heads, "of model \"h1\" it has (linear fc1_b 0>0), where this one has (linear fc1_b 0>0 00000004)");
    eps.h0.op[2].options = &small, eps.h0.op[2].options_bytes = sizeof small;
    refused(eps, "where this one has (linear ln 0>0 358637bd)");
    kind.embed.op[0].kind = "positions";
    refused(kind, "it has (linear tokens 0>0), where this one has (positions tokens 0>0)");
    te_op more[5];
    for (int i = 0; i < 4; i++) more[i] = longer.h0.op[(size_t)i];
    memset(&more[4], 0, sizeof more[4]);
    more[4].kind = "gelu", more[4].name = "act", more[4].edge = -1;
    longer.h0.plan.op = more, longer.h0.plan.op_count = 5;
    refused(longer, "it has (), where this one has (gelu act 0>0)");
}

TEST_CASE("a file of an older version, without a checksum and the texts of the lists, loads") {
    file_name file;
    network saved(1), n(2);
    saved.train(0, 2);
    const te_checkpoint c = saved.checkpoint();
    REQUIRE(te_checkpoint_save(file.path.c_str(), &c, saved.t) == TE_OK);
    te_safetensors f;
    REQUIRE(te_safetensors_open(&f, file.path.c_str(), saved.t) == TE_OK);
    CHECK(te_safetensors_metadata(&f, TE_SAFETENSORS_SUM) != nullptr);
    std::vector<te_safetensor> list(f.tensor, f.tensor + f.count);
    std::vector<std::vector<char>> data;
    for (te_safetensor &t : list) {
        data.emplace_back((size_t)t.bytes + 1);
        REQUIRE(te_safetensors_read(&f, &t, data.back().data(), saved.t) == TE_OK);
        t.data = data.back().data();
    }
    REQUIRE(te_safetensors_write(file.path.c_str(), list.data(), (int)list.size(), nullptr, 0, saved.t) == TE_OK);
    te_safetensors_close(&f);
    CHECK(load(n, n.checkpoint(), file.path) == TE_OK);
    CHECK(n.bits() == saved.bits());
    REQUIRE(te_safetensors_open(&f, file.path.c_str(), saved.t) == TE_OK); // a program can tell such a file from others
    CHECK(te_safetensors_metadata(&f, TE_SAFETENSORS_SUM) == nullptr);
    te_safetensors_close(&f);
}

TEST_CASE("a checkpoint with infinities or NaNs does not replace a good file") {
    file_name file;
    for (float bad : {INFINITY, -INFINITY, NAN})
        for (int which = 0; which < 4; which++) {
            network n(1);
            n.train(0, 1);
            te_checkpoint c = n.checkpoint();
            REQUIRE(te_checkpoint_save(file.path.c_str(), &c, n.t) == TE_OK);
            const std::string good = content(file.path);
            // the last element of an f32 parameter
            if (which == 0) write_floats(n.t, (float *)n.embed.param[0].data + 1199, {bad});
            else if (which == 1) write_floats(n.t, (uint16_t *)n.h1.param[1].data + 95, {bad}, TE_bf16);       // of a bf16 parameter
            else write_floats(n.t, (float *)(which == 2 ? n.opt.m : n.opt.v) + 3, {bad});                      // a moment
            CAPTURE(bad, which);
            CHECK(te_checkpoint_save(file.path.c_str(), &c, n.t) == TE_ERROR_VALUE);
            INFO(te_last_error(n.t));
            const char *says = which == 0 ? "embed.tokens.weight: element 1199 is not finite" : which == 1 ? "h1.fc1_b.bias: element 95 is not finite"
                               : which == 2 ? "adamw.m.embed.tokens.weight: element 3 is not finite" : "adamw.v.embed.tokens.weight: element 3";
            CHECK(std::string(te_last_error(n.t)).find(says) != std::string::npos);
            CHECK(content(file.path) == good);
            c.force = 1;
            CHECK(te_checkpoint_save(file.path.c_str(), &c, n.t) == TE_OK);
        }
}

TEST_CASE("a program can ask before training whether a checkpoint could be saved") {
    file_name file;
    target t;
    put(file.path, "old");
    CHECK(te_checkpoint_probe(file.path.c_str(), t) == TE_OK);
    CHECK(content(file.path) == "old");
    CHECK(te_checkpoint_probe((file.path + ".new").c_str(), t) == TE_OK);
    CHECK(access((file.path + ".new").c_str(), F_OK) != 0);
    CHECK(te_checkpoint_probe("/no/such/folder/x", t) == TE_ERROR_IO);
    CHECK(te_checkpoint_probe("/dev/null", t) == TE_ERROR_IO);
    CHECK(te_checkpoint_probe("/tmp", t) == TE_ERROR_IO);
    CHECK(te_checkpoint_probe(nullptr, t) == TE_ERROR_NULL);
}

TEST_CASE("invalid checkpoints are not saved") {
    file_name file;
    network n(1);
    te_checkpoint c = n.checkpoint();
    REQUIRE(te_checkpoint_save(file.path.c_str(), &c, n.t) == TE_OK);
    n.train(0, 1);
    const auto refused = [&](te_status want, const char *says) {
        CHECK(te_checkpoint_save(file.path.c_str(), &c, n.t) == want);
        CHECK(std::string(te_last_error(n.t)).find(says) != std::string::npos);
        network whole(3);
        CHECK(load(whole, whole.checkpoint(), file.path) == TE_OK); // the old file is still good
    };
    c.count = 2;
    refused(TE_ERROR_VALUE, "model 2 (block) that is not in the list");
    c = n.checkpoint(), n.names[2].name = "h0";
    refused(TE_ERROR_VALUE, "two tensors are called");
    n.names[2].name = nullptr;
    refused(TE_ERROR_NULL, "model 2 has no name");
    n.names[2].name = "h1";
    const std::vector<te_safetensors_pair> twice = {{"k", "1"}, {"k", "2"}}, ours = {{"te.list.h0", "x"}};
    c = n.checkpoint(&ours);
    refused(TE_ERROR_VALUE, "what begins with te. is the library's");
    c = n.checkpoint(&twice);
    refused(TE_ERROR_VALUE, "two metadata keys are called \"k\"");
    CHECK(te_checkpoint_save("/no/such/folder/x", &(c = n.checkpoint()), n.t) == TE_ERROR_IO);
    CHECK(te_checkpoint_save(file.path.c_str(), nullptr, n.t) == TE_ERROR_NULL);
    CHECK(te_checkpoint_save(nullptr, &c, n.t) == TE_ERROR_NULL);
    CHECK(te_checkpoint_load(&c, nullptr, n.t) == TE_ERROR_NULL);
    te_safetensors closed;
    memset(&closed, 0, sizeof closed);
    CHECK(te_checkpoint_load(&c, &closed, n.t) == TE_ERROR_NULL);
}
