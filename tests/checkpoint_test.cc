// Checkpoints: a run that was stopped and resumed goes on to the same bits; a file that does not fit changes nothing.
#include "hand_model.h"

#include <memory>

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

// A little network: two models of different dtypes, one of them twice, and a tied weight.
struct network {
    target t;
    hand_model embed, h0, h1;
    std::vector<te_named_model> names;
    std::vector<te_model *> models;
    std::unique_ptr<memory> room;
    te_adamw opt;
    explicit network(uint64_t seed, int64_t width = 40)
        : t(seed), embed(t, "embed", TE_f32, {{"tokens", "weight", 30, width}}), h0(t, "block", TE_bf16, layer(width)), h1(t, "block", TE_bf16, layer(width)) {
        REQUIRE(te_tie(&h1.param[3], &h0.param[0], t) == TE_OK);
        names = {{"embed", &embed.model}, {"h0", &h0.model}, {"h1", &h1.model}};
        models = {&embed.model, &h0.model, &h1.model};
        std::mt19937 random((unsigned)seed);
        for (hand_model *m : {&embed, &h0, &h1}) m->draw_data(random, 0.3f);
        te_adamw_config c = te_adamw_defaults(0);
        c.schedule = te_schedule_of(TE_SCHEDULE_cosine, 1e-2f, 4, 40, 0), c.max_norm = 1, c.weight_decay = 0.1f;
        room.reset(new memory(t, te_adamw_bytes(models.data(), 3)));
        REQUIRE(te_adamw_init(&opt, room->p, room->bytes, models.data(), 3, &c, t) == TE_OK);
    }
    static std::vector<hand_param> layer(int64_t width) {
        return {{"fc1", "weight", 96, width}, {"fc1_b", "bias", 1, 96}, {"ln", "gamma", 1, width}, {"head", "weight", 96, width, 1}};
    }
    // Gradients from the data, the random state and the step, as a training would make them.
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
        te_checkpoint c;
        c.models = names.data(), c.count = (int)names.size(), c.optimizer = &opt, c.random = 1;
        c.metadata = metadata ? metadata->data() : nullptr, c.metadata_count = metadata ? (int)metadata->size() : 0;
        return c;
    }
    // All that a run is made of.
    std::vector<uint8_t> bits() {
        std::vector<uint8_t> all;
        const auto add = [&](const void *p, size_t n) { all.insert(all.end(), (const uint8_t *)p, (const uint8_t *)p + n); };
        for (hand_model *m : {&embed, &h0, &h1}) {
            const std::vector<uint8_t> v = m->params->raw();
            add(v.data(), v.size());
        }
        te_adamw_walk w = te_adamw_tensors(&opt);
        while (te_adamw_next(&w))
            for (const float *p : {w.master, w.m, w.v}) {
                const std::vector<float> v = read_floats(t, p, (size_t)(w.param->rows * w.param->cols));
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

TEST_CASE("stopped and resumed is the same as never stopped") {
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

TEST_CASE("what is in the file") {
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

TEST_CASE("weights alone, without a prefix") {
    file_name file;
    network a(1), b(2);
    const te_named_model one = {"", &a.h0.model}, other = {"", &b.h0.model};
    te_checkpoint c;
    memset(&c, 0, sizeof c);
    c.models = &one, c.count = 1;
    REQUIRE(te_checkpoint_save(file.path.c_str(), &c, a.t) == TE_OK);
    c.models = &other;
    REQUIRE(load(b, c, file.path) == TE_OK);
    CHECK(b.h0.data(0) == a.h0.data(0));
    CHECK(b.h0.data(2) == a.h0.data(2));
    CHECK(b.h1.data(0) != a.h0.data(0));
    REQUIRE(te_adamw_reset(&b.opt, b.t) == TE_OK); // the masters follow
    CHECK(read_floats(b.t, b.opt.master, 96 * 40) == a.h0.data(0));
}

TEST_CASE("a file that does not fit changes nothing") {
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
    refused(n, n.checkpoint(), TE_ERROR_DTYPE, "tensor h1.fc1.weight is BF16 [96, 40], it should be F16 [96, 40]");
    n.h1.plan.dtype = TE_bf16;

    c = saved.checkpoint(), c.optimizer = nullptr, save(c);
    refused(n, n.checkpoint(), TE_ERROR_FORMAT, "has no tensor adamw.step");

    // a step that cannot be: found before anything else is written
    te_adamw_state s;
    REQUIRE(te_adamw_get(&s, &saved.opt, saved.t) == TE_OK);
    s.step = -5;
    REQUIRE(te_copy(saved.t, saved.opt.state, &s, sizeof s) == TE_OK);
    save(saved.checkpoint());
    refused(n, n.checkpoint(), TE_ERROR_FORMAT, "adamw.step is -5");

    // truncated, or of some other kind
    REQUIRE(truncate(file.path.c_str(), 20000) == 0);
    refused(n, n.checkpoint(), TE_ERROR_FORMAT, "the file has");
    REQUIRE(truncate(file.path.c_str(), 0) == 0);
    refused(n, n.checkpoint(), TE_ERROR_FORMAT, "no safetensors file");
}

TEST_CASE("what cannot be saved") {
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
    const std::vector<te_safetensors_pair> twice = {{"k", "1"}, {"k", "2"}};
    c = n.checkpoint(&twice);
    refused(TE_ERROR_VALUE, "two metadata keys are called \"k\"");
    CHECK(te_checkpoint_save("/no/such/folder/x", &(c = n.checkpoint()), n.t) == TE_ERROR_IO);
    CHECK(te_checkpoint_save(file.path.c_str(), nullptr, n.t) == TE_ERROR_NULL);
}
