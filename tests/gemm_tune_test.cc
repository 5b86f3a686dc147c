// gemm_tune_test.cc -- autotuned GEMMs: they are within tolerance of GEMMs without tuning and have the same bits in each run, and timing
// them writes to no tensor of the caller. A tuning file restores the choices. An invalid file is refused with the number of its line and
// leaves the context as it was. On the host nothing is timed, and the same calls must work.
#define TE_SMALL_M_16BIT 1 // also the small-m kernels (9 to 128 rows) for 16 bits, instead of cuBLASLt alone
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>

#include "harness.h"
#include "te/gemm/gemm.h"
#include "te/te.h"

namespace {

// ---- one GEMM -----------------------------------------------------------------------------------------------------

struct product {
    int64_t m, n, k;
    int trans_a, trans_b;
    te_dtype dtype, out;
    te_epilogue epilogue;
    int beta;
};
const product products[] = {
    {128, 192, 64, 0, 1, TE_bf16, TE_bf16, TE_EPILOGUE_NONE, 0},          // forward
    {128, 192, 64, 0, 1, TE_bf16, TE_bf16, TE_EPILOGUE_BIAS, 0},          // forward, with its bias
    {128, 192, 64, 0, 1, TE_bf16, TE_bf16, TE_EPILOGUE_GELU_BIAS, 0},     // inference
    {128, 192, 64, 0, 1, TE_bf16, TE_bf16, TE_EPILOGUE_GELU_AUX_BIAS, 0}, // training
    {128, 192, 64, 0, 1, TE_f16, TE_f16, TE_EPILOGUE_GELU_AUX_BIAS, 0},
    {128, 192, 64, 0, 1, TE_bf16, TE_bf16, TE_EPILOGUE_BIAS, 1},     // with bias and residual
    {128, 64, 192, 0, 0, TE_bf16, TE_bf16, TE_EPILOGUE_NONE, 0},     // dx
    {192, 64, 2048, 1, 0, TE_bf16, TE_f32, TE_EPILOGUE_NONE, 0},     // dweight: a long k, so that candidates split it
    {192, 64, 2048, 1, 0, TE_bf16, TE_f32, TE_EPILOGUE_NONE, 1},     // dweight, accumulated
    {128, 192, 64, 0, 1, TE_f32, TE_f32, TE_EPILOGUE_BIAS, 0},       // f32
    {131, 40, 72, 0, 1, TE_f16, TE_f16, TE_EPILOGUE_NONE, 0},        // odd sizes
    {1, 512, 1024, 0, 1, TE_bf16, TE_bf16, TE_EPILOGUE_NONE, 0},     // one row
};

// The operands of one GEMM, which have the same numbers for the same seed.
struct operands {
    te_context *ctx;
    product p;
    buffer a, b, c, d, bias, aux, scratch;
    reference::vec ra, rb, rc, rbias;
    operands(te_context *x, const product &q, unsigned seed = 5)
        : ctx(x), p(q), a(x, (size_t)(q.m * q.k) * te_dtype_bytes(q.dtype), 16), b(x, (size_t)(q.k * q.n) * te_dtype_bytes(q.dtype), 16),
          c(x, (size_t)(q.m * q.n) * te_dtype_bytes(q.out), 16), d(x, (size_t)(q.m * q.n) * te_dtype_bytes(q.out), 16),
          bias(x, (size_t)q.n * te_dtype_bytes(q.dtype), 16), aux(x, (size_t)(q.m * q.n) * te_dtype_bytes(q.dtype), 16), scratch(x, scratch_bytes(q)) {
        source random(seed);
        ra = random.draw((size_t)(q.m * q.k), q.dtype), rb = random.draw((size_t)(q.k * q.n), q.dtype, 0, 1 / std::sqrt((double)q.k));
        rc = random.draw((size_t)(q.m * q.n), q.out), rbias = random.draw((size_t)q.n, q.dtype);
        a.write(ra, q.dtype), b.write(rb, q.dtype), c.write(rc, q.out), bias.write(rbias, q.dtype);
    }
    static size_t scratch_bytes(const product &q) {
        te_gemm g = te_gemm_of(q.m, q.n, q.k);
        g.dtype = q.dtype, g.out = q.out;
        return te__gemm_scratch(&g) * sizeof(float);
    }
    te_gemm gemm() {
        te_gemm g = te_gemm_of(p.m, p.n, p.k);
        g.a = a.data(), g.b = b.data(), g.c = c.data(), g.d = d.data(), g.bias = bias.data(), g.aux = aux.data(), g.scratch = (float *)scratch.data();
        g.trans_a = p.trans_a, g.trans_b = p.trans_b, g.dtype = p.dtype, g.out = p.out, g.epilogue = p.epilogue, g.beta = p.beta ? 1.0f : 0.0f;
        return g;
    }
    bool supported() {
        const te_gemm g = gemm();
        return te__gemm_supports(&g, ctx) != 0;
    }
    // The expected values in double. *before: the pre-activation of a gelu.
    reference::vec should_be(reference::vec *before) const {
        reference::vec y((size_t)(p.m * p.n));
        for (int64_t i = 0; i < p.m; i++)
            for (int64_t j = 0; j < p.n; j++) {
                double sum = 0;
                for (int64_t l = 0; l < p.k; l++)
                    sum += ra[(size_t)(p.trans_a ? l * p.m + i : i * p.k + l)] * rb[(size_t)(p.trans_b ? j * p.k + l : l * p.n + j)];
                if (p.beta) sum += rc[(size_t)(i * p.n + j)];
                if (p.epilogue != TE_EPILOGUE_NONE) sum += rbias[(size_t)j];
                y[(size_t)(i * p.n + j)] = sum;
            }
        *before = y;
        if (p.epilogue >= TE_EPILOGUE_GELU_BIAS)
            for (double &x : y) x = 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
        return y;
    }
    void run() {
        const te_gemm g = gemm();
        const te_status status = te_gemm_run(&g, ctx);
        INFO(te_last_error(ctx));
        REQUIRE(status == TE_OK);
    }
    std::vector<uint8_t> bits() { // of the outputs; raw() also checks that nothing else was written
        run();
        std::vector<uint8_t> v = d.raw(), w = aux.raw();
        v.insert(v.end(), w.begin(), w.end());
        return v;
    }
};

std::string name_of(const product &p) {
    std::ostringstream s;
    s << p.m << " x " << p.n << " x " << p.k << " " << (p.trans_a ? "t" : "n") << (p.trans_b ? "t" : "n") << " " << te_dtype_name(p.dtype) << " -> "
      << te_dtype_name(p.out) << " " << te__epilogue_name(p.epilogue) << " beta " << p.beta;
    return s.str();
}

// Counts the allocations of a context. In these tests only autotuning allocates.
int allocations;
const te_target *real;
te_status counted_allocate(te_context *ctx, void **p, size_t bytes) { return allocations++, real->allocate(ctx, p, bytes); }
struct counted {
    te_context *ctx;
    te_target target;
    explicit counted(te_context *c) : ctx(c), target(*c->target) {
        real = c->target, allocations = 0;
        target.allocate = counted_allocate, ctx->target = &target;
    }
    counted(const counted &) = delete;
    ~counted() { ctx->target = real; }
};

// ---- files ----------------------------------------------------------------------------------------------------------

struct path {
    std::string name;
    path() {
        char text[] = "/tmp/te_gemm_tune_XXXXXX";
        const int fd = mkstemp(text);
        REQUIRE(fd >= 0);
        close(fd);
        name = text;
    }
    path(const path &) = delete;
    ~path() { std::remove(name.c_str()); }
    std::string read() const {
        std::ifstream f(name, std::ios::binary);
        std::ostringstream s;
        s << f.rdbuf();
        return s.str();
    }
    void write(const std::string &text) const { std::ofstream(name, std::ios::binary | std::ios::trunc) << text; }
};

std::string saved(te_context *ctx) {
    path p;
    const te_status status = te_gemm_save(p.name.c_str(), ctx);
    INFO(te_last_error(ctx));
    REQUIRE(status == TE_OK);
    return p.read();
}
te_status loaded(te_context *ctx, const std::string &text) {
    path p;
    p.write(text);
    return te_gemm_load(p.name.c_str(), ctx);
}
// lines_of: the lines of a file without the last one, `end`; ended: the text of such lines with the right last line.
std::vector<std::string> lines_of(const std::string &text) {
    std::vector<std::string> lines;
    std::istringstream s(text);
    for (std::string line; std::getline(s, line);) lines.push_back(line);
    lines.pop_back();
    return lines;
}
std::string ended(const std::vector<std::string> &lines) {
    std::string text;
    for (const std::string &line : lines) text += line + "\n";
    char end[64];
    snprintf(end, sizeof end, "end %d %016llx\n", (int)lines.size(), (unsigned long long)te__tune_checksum(te__tune_checksum_start, text.data(), text.size()));
    return text + end;
}
const char *const good_step = "step linear_bias_gelu infer 64 128 32 bf16 6 0 1500 0 2000 0";
// cuBLASLt has no such algorithm; on the host the algorithm is not checked.
const char *const good_gemm = "gemm 64 128 32 nt bf16 f32 none 1 32 32 128 16 20 9000 8000 0000000000000001 0000000000000002 0000000000000003 "
                              "0000000000000004 0000000000000005 0000000000000006 0000000000000007 00000000000000ff";

std::string changed(const std::string &line, size_t word, const std::string &to) {
    std::istringstream s(line);
    std::string result, w;
    for (size_t i = 0; s >> w; i++) result += (i ? " " : "") + (i == word ? to : w);
    return result;
}

struct tuned_context {
    context ctx_owner;
    te_context *ctx;
    explicit tuned_context(int tune = 1) : ctx(&ctx_owner.c) { ctx->gemm_tune = tune; }
    int products() const { return te_gemm_report(nullptr, 0, ctx); }
};

// Checks that the context still works.
void check_usable(te_context *ctx) {
    const product p = products[0];
    operands o(ctx, p);
    reference::vec before;
    const reference::vec y = o.should_be(&before);
    o.run();
    check_close("after a refused file", o.d.read(p.out), y, tolerance_of(p.dtype));
}
void refused(const std::string &text, te_status status, const std::vector<std::string> &says) {
    tuned_context t(0);
    const std::string empty = saved(t.ctx);
    CAPTURE(text);
    CHECK(loaded(t.ctx, text) == status);
    const std::string error = te_last_error(t.ctx);
    for (const std::string &s : says) {
        CAPTURE(error, s);
        CHECK(error.find(s) != std::string::npos);
    }
    CHECK(saved(t.ctx) == empty);
    CHECK(t.products() == 0);
    CHECK(te_gemm_report_choices(nullptr, 0, t.ctx) == 0);
}

} // namespace

// ---- autotuning --------------------------------------------------------------------------------------------------------

TEST_CASE("an autotuned GEMM is right, has the same bits each time, and timing writes to no tensor of the caller", "[gemm_tune]") {
    for (const product &p : products) {
        tuned_context plain(0), t;
        operands o(t.ctx, p), u(plain.ctx, p);
        INFO(name_of(p));
        if (!o.supported()) continue; // the host has no epilogues
        const std::vector<uint8_t> a = o.a.raw(), b = o.b.raw(), c = o.c.raw(), bias = o.bias.raw();
        reference::vec before;
        const reference::vec y = o.should_be(&before);
        const double tolerance = tolerance_of(p.dtype);

        int timing = 0;
        std::vector<uint8_t> first;
        {
            counted count(t.ctx);
            o.run();
            timing = allocations;
        }
        CHECK((timing > 0) == (TE_CUDA != 0));
        CHECK(o.a.raw() == a);
        CHECK(o.b.raw() == b);
        CHECK(o.c.raw() == c);
        CHECK(o.bias.raw() == bias);
        check_close("tuned", o.d.read(p.out), y, tolerance);
        if (p.epilogue == TE_EPILOGUE_GELU_AUX_BIAS) check_close("tuned aux", o.aux.read(p.dtype), before, tolerance);
        else CHECK(o.aux.poisoned());
        u.run();
        check_close("untuned", u.d.read(p.out), y, tolerance);
        check_close("tuned against untuned", o.d.read(p.out), u.d.read(p.out), tolerance);
        CHECK(plain.products() == 0);

        counted count(t.ctx);
        first = o.bits();
        for (int i = 0; i < 5; i++) {
            o.d.poison();
            CHECK(o.bits() == first);
        }
        CHECK(allocations == 0); // it was timed by the first call
    }
}

TEST_CASE("a call that accumulates in place adds once, also if it times candidates", "[gemm_tune]") {
    tuned_context t;
    const product p = products[8];
    operands o(t.ctx, p);
    reference::vec before;
    const reference::vec once = o.should_be(&before);
    te_gemm g = o.gemm();
    g.c = g.d = o.c.data(); // dweight += dy^T x
    for (int i = 0; i < 3; i++) REQUIRE(te_gemm_run(&g, t.ctx) == TE_OK);
    reference::vec y(once.size());
    for (size_t i = 0; i < y.size(); i++) y[i] = o.rc[i] + 3 * (once[i] - o.rc[i]);
    check_close("three times", o.c.read(TE_f32), y, 1e-5);
    CHECK(o.d.poisoned());
}

TEST_CASE("the report has an entry for each GEMM that was timed", "[gemm_tune]") {
    tuned_context t;
    std::vector<product> run;
    for (const product &p : products) {
        operands o(t.ctx, p);
        if (!o.supported()) continue;
        o.run();
        run.push_back(p);
    }
    te_gemm_tuned list[16];
    const int n = te_gemm_report(list, 16, t.ctx);
    REQUIRE(n == (TE_CUDA ? (int)run.size() : 0));
    for (int i = 0; i < n; i++) {
        CHECK(list[i].m == run[(size_t)i].m);
        CHECK(list[i].n == run[(size_t)i].n);
        CHECK(list[i].k == run[(size_t)i].k);
        CHECK(list[i].epilogue == run[(size_t)i].epilogue);
        CHECK(list[i].beta == run[(size_t)i].beta);
        CHECK(list[i].candidates >= 1);
        CHECK(list[i].best_ns > 0);
        CHECK(list[i].best_ns <= list[i].first_ns);
    }
    if (n > 1) CHECK(te_gemm_report(list, 1, t.ctx) == n); // writes no more than the given number of entries
    FILE *f = std::tmpfile();
    REQUIRE(f);
    te_gemm_print(f, t.ctx);
    CHECK(std::ftell(f) > 0);
    std::fclose(f);
    if (TE_CUDA) te_gemm_print(stdout, t.ctx);
}

#if TE_CUDA
TEST_CASE("a call during a stream capture times nothing; the next eager call does", "[gemm_tune]") {
    tuned_context t;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
    t.ctx->stream = stream;
    {
        operands o(t.ctx, products[1]);
        reference::vec before;
        const reference::vec y = o.should_be(&before);
        t.ctx->gemm_tune = 0;
        o.run(); // loads the kernel
        t.ctx->gemm_tune = 1;
        o.d.poison();
        REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
        {
            counted count(t.ctx);
            // in this mode allocations and synchronisations fail
            REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
            o.run();
            REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
            CHECK(allocations == 0);
        }
        CHECK(t.products() == 0);
        REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
        REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess);
        check_close("replayed", o.d.read(TE_bf16), y, tolerance_of(TE_bf16));
        o.d.poison();
        o.run();
        CHECK(t.products() == 1);
        check_close("tuned", o.d.read(TE_bf16), y, tolerance_of(TE_bf16));
        REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess); // the captured graph still runs
        check_close("replayed after tuning", o.d.read(TE_bf16), y, tolerance_of(TE_bf16));
        REQUIRE(cudaGraphExecDestroy(exec) == cudaSuccess);
        REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
    }
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    t.ctx->stream = nullptr;
    REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}
#endif

// ---- the tuning file ----------------------------------------------------------------------------------------------------

TEST_CASE("a tuning file restores the choices: the same bits, without timing", "[gemm_tune]") {
    tuned_context t;
    std::vector<std::vector<uint8_t>> bits;
    for (const product &p : products) {
        operands o(t.ctx, p);
        bits.push_back(o.supported() ? o.bits() : std::vector<uint8_t>());
    }
    const std::string text = saved(t.ctx);
    for (int tune = 0; tune < 2; tune++) {
        tuned_context u(tune);
        const te_status status = loaded(u.ctx, text);
        INFO(te_last_error(u.ctx));
        REQUIRE(status == TE_OK);
        CHECK(u.products() == t.products());
        CHECK(saved(u.ctx) == text);
        for (size_t i = 0; i < bits.size(); i++) {
            operands o(u.ctx, products[i]);
            INFO(name_of(products[i]));
            if (!o.supported()) continue;
            counted count(u.ctx);
            CHECK(o.bits() == bits[i]);
            CHECK(allocations == 0);
        }
        REQUIRE(loaded(u.ctx, text) == TE_OK); // also if these GEMMs have choices already
        CHECK(saved(u.ctx) == text);
        operands o(u.ctx, products[0]);
        CHECK(o.bits() == bits[0]);
    }
}

TEST_CASE("a file that cannot be read or written", "[gemm_tune]") {
    tuned_context t(0);
    CHECK(te_gemm_load(nullptr, t.ctx) == TE_ERROR_NULL);
    CHECK(te_gemm_save(nullptr, t.ctx) == TE_ERROR_NULL);
    CHECK(te_gemm_load("x", nullptr) == TE_ERROR_NULL);
    CHECK(te_gemm_save("x", nullptr) == TE_ERROR_NULL);
    CHECK(te_gemm_load("/nowhere/gemm.txt", t.ctx) == TE_ERROR_IO);
    CHECK(std::string(te_last_error(t.ctx)).find("/nowhere/gemm.txt") != std::string::npos);
    CHECK(te_gemm_save("/nowhere/gemm.txt", t.ctx) == TE_ERROR_IO);
    CHECK(te_gemm_load("/tmp", t.ctx) == TE_ERROR_IO);
    refused(std::string((1 << 20) + 1, 'x'), TE_ERROR_FORMAT, {"at most"});
    check_usable(t.ctx);
}

TEST_CASE("a file of another kind, device or version", "[gemm_tune]") {
    tuned_context t(0);
    std::vector<std::string> lines = lines_of(saved(t.ctx));
    REQUIRE(lines.size() == 3);
    refused("", TE_ERROR_FORMAT, {"line 1", "ends before"});
    refused("\n", TE_ERROR_FORMAT, {"line 1", "no file of te_gemm_save"});
    refused("{\"a\": 1}\n", TE_ERROR_FORMAT, {"line 1", "no file of te_gemm_save"});
    refused(std::string("te-gemm 2\0\n", 11), TE_ERROR_FORMAT, {"line 1", "byte 9 is no text"});
    const std::function<void(size_t, const std::string &, te_status, const std::vector<std::string> &)> with =
        [&](size_t i, const std::string &line, te_status status, const std::vector<std::string> &says) {
            std::vector<std::string> l = lines;
            l[i] = line;
            refused(ended(l), status, says);
        };
    with(0, "te-gemm 3", TE_ERROR_FORMAT, {"line 1", "format 3", "reads 2"});
    with(0, "te-gemm", TE_ERROR_FORMAT, {"line 1"});
    with(1, "device 4 Abacus", TE_ERROR_DEVICE, {"line 2", "another device", "4 Abacus"});
    with(1, "device", TE_ERROR_FORMAT, {"line 2", "must begin with device"});
    with(2, "cublaslt 12", TE_ERROR_DEVICE, {"line 3", "cuBLASLt 12", "this is"});
    with(2, "cublaslt x", TE_ERROR_FORMAT, {"line 3", "the version is x"});
    with(2, "cublas 12", TE_ERROR_FORMAT, {"line 3", "must be cublaslt"});
    check_usable(t.ctx);
}

#if !TE_CUDA // the host has no algorithms, and accepts any
TEST_CASE("a context runs GEMMs of any number of sizes, and remembers those that were timed", "[gemm_tune]") {
    tuned_context t;
    const product first = {128, 16, 16, 0, 1, TE_bf16, TE_bf16, TE_EPILOGUE_NONE, 0};
    operands o(t.ctx, first);
    const std::vector<uint8_t> bits = o.bits();
    const auto right = [&](int64_t m) {
        product p = first;
        p.m = m;
        operands of(t.ctx, p, (unsigned)m);
        reference::vec before;
        const reference::vec should = of.should_be(&before);
        of.run();
        const reference::vec gave = of.d.read(p.out);
        for (size_t i = 0; i < gave.size(); i++)
            if (!(std::fabs(gave[i] - should[i]) <= std::ldexp(1, -7) * (1 + std::fabs(should[i])))) FAIL("m " << m << ", element " << i);
    };
    t.ctx->gemm_tune = 0;
    for (int64_t m = 1; m <= TE_GEMM_MAX_PLANS + 40; m++) right(m);
    CHECK(o.bits() == bits);
    CHECK(te_gemm_report(nullptr, 0, t.ctx) == (TE_CUDA ? 1 : 0));
    if (brief()) return;
    t.ctx->gemm_tune = 1; // the memory for choices is full, and further GEMMs still run
    for (int64_t m = 1; m <= TE_GEMM_MAX_PLANS + 40; m++) right(m);
    CHECK(te_gemm_report(nullptr, 0, t.ctx) == (TE_CUDA ? (int)TE_GEMM_MAX_PLANS : 0));
    CHECK(o.bits() == bits);
}

TEST_CASE("FP8 GEMMs with different operand formats are different entries of a tuning file", "[gemm_tune]") {
    tuned_context t(0);
    std::vector<std::string> l = lines_of(saved(t.ctx));
    for (const char *what : {"bf16", "e4m3*e4m3.bf16", "e4m3*e4m3.bf16.fast", "e4m3*e5m2.f16", "e5m2*e4m3.f32.fast"}) {
        const std::string out = std::string(what).find("f16") == std::string::npos || std::string(what).find("bf16") != std::string::npos ? "f32" : "f16";
        l.push_back(changed(changed(good_gemm, 5, what), 6, out.c_str()));
    }
    CHECK(loaded(t.ctx, ended(l)) == TE_OK);
    l.push_back(changed(good_gemm, 5, "e4m3*e4m3.bf16.fast"));
    refused(ended(l), TE_ERROR_FORMAT, {"line 9", "was there before, as product 3"});
}
#endif
TEST_CASE("an invalid line is refused with its number and the reason", "[gemm_tune]") {
    tuned_context t(0);
    const std::vector<std::string> header = lines_of(saved(t.ctx));
    const auto with = [&](const std::string &line) {
        std::vector<std::string> l = header;
        l.push_back(good_step), l.push_back(line);
        return ended(l);
    };
    struct bad { size_t word; const char *to, *says; };
    const bad gemms[] = {
        {5, "e5m2*e5m2.bf16", "the dtype is e5m2*e5m2.bf16"},
        {5, "e4m3*e5m2", "the dtype is e4m3*e5m2"},
        {5, "e4m3*e5m2.bf16.slow", "the dtype is e4m3*e5m2.bf16.slow"},
        {1, "0", "m is 0"},
        {1, "-64", "m is -64"},
        {1, "064", "m is 064"},
        {1, "99999999999999999999999", "m is 999"},
        {2, "12x8", "n is 12x8"},
        {3, "4294967296", "k is 4294967296"},
        {4, "nx", "the transposes are nx"},
        {4, "ntt", "the transposes are ntt"},
        {5, "f64", "the dtype is f64"},
        {6, "f16", "a product of bf16 in f16"},
        {7, "swish", "there is no epilogue swish"},
        {8, "2", "beta is 2"},
        {9, "33", "the leading dimension of A is 33"},
        {10, "128", "the leading dimension of B is 128"},
        {11, "64", "the leading dimension of D is 64"},
        {12, "256", "the alignment is 256"},
        {13, "0", "the count of candidates is 0"},
        {14, "0", "the time of the first is 0"},
        {15, "1e9", "the time of the best is 1e9"},
        {16, "1", "a word of the algorithm is 1"},
        {23, "00000000000000FF", "a word of the algorithm"},
        {0, "gemv", "begins with gemv"},
    };
    for (const bad &b : gemms) refused(with(changed(good_gemm, b.word, b.to)), TE_ERROR_FORMAT, {"line 5", b.says});
    const bad steps[] = {
        {1, "this_name_has_far_too_many_characters_for_a_row_of_a_fusion_list_which_has_eight_ops_at_the_very_most", "1 to 95 characters"},
        {2, "backward", "the pass is backward"},
        {4, "0", "n is 0"},
        {6, "e4m3", "the dtype is e4m3"},
        {7, "256", "the mask"},
        {8, "4", "the strategy is 4"},
        {8, "1", "strategy 1 is taken and has no time"},
        {9, "x", "the time of a strategy is x"},
    };
    for (const bad &b : steps) refused(with(changed(good_step, b.word, b.to)), TE_ERROR_FORMAT, {"line 5", b.says});
    refused(with(std::string(good_gemm) + " 1"), TE_ERROR_FORMAT, {"line 5", "more than 24 words"});
    refused(with("gemm 1 2 3"), TE_ERROR_FORMAT, {"line 5", "has 4 words"});
    refused(with(std::string(good_step) + " "), TE_ERROR_FORMAT, {"line 5", "has 14 words"});
    refused(with(""), TE_ERROR_FORMAT, {"line 5", "must begin with gemm, step or end"});
    refused(with("device 1 host"), TE_ERROR_FORMAT, {"line 5", "must begin with gemm, step or end"});
    refused(with(std::string(1000, 'g')), TE_ERROR_FORMAT, {"line 5", "longer than"});
    refused(with(good_step), TE_ERROR_FORMAT, {"line 5", "was there before"});
    if (TE_CUDA) refused(with(good_gemm), TE_ERROR_FORMAT, {"line 5", "cuBLASLt refuses the algorithm for 64 x 128 x 32"});
    else {
        CHECK(loaded(t.ctx, with(good_gemm)) == TE_OK); // on the host a GEMM line is checked and not used
        std::vector<std::string> twice = header;
        twice.push_back(good_gemm), twice.push_back(good_gemm);
        refused(ended(twice), TE_ERROR_FORMAT, {"line 5", "was there before"});
    }
    std::vector<std::string> many = header;
    for (int i = 0; i <= TE_GEMM_MAX_CHOICES; i++) many.push_back(changed(good_step, 3, std::to_string(i + 1)));
    refused(ended(many), TE_ERROR_FORMAT, {"more than 128 steps"});

    const std::string good = with(changed(good_step, 3, "65"));
    CHECK(loaded(t.ctx, good) == TE_OK);
    refused(good + "x", TE_ERROR_FORMAT, {"line 6", "1 bytes follow the end"});
    refused(good + good, TE_ERROR_FORMAT, {"line 6", "follow the end"});
    std::string other = good;
    other[other.size() - 2] = other[other.size() - 2] == '0' ? '1' : '0';
    refused(other, TE_ERROR_FORMAT, {"line 6", "the checksum is", "was changed"});
    other = good;
    other.replace(other.find("end 5"), 5, "end 4");
    refused(other, TE_ERROR_FORMAT, {"line 6", "the count of lines is 4"});
    check_usable(t.ctx);
}

TEST_CASE("a file that is truncated or damaged anywhere is refused", "[gemm_tune]") {
    tuned_context t;
    for (int i = 0; i < 2; i++) {
        operands o(t.ctx, products[i ? 7 : 0]);
        o.run();
    }
    std::vector<std::string> lines = lines_of(saved(t.ctx));
    lines.push_back(good_step);
    if (!TE_CUDA) lines.push_back(good_gemm);
    const std::string text = ended(lines);
    tuned_context u(0);
    path p;
    size_t taken = 0;
    for (size_t i = 0; i < text.size(); i++) {
        p.write(text.substr(0, i));
        taken += te_gemm_load(p.name.c_str(), u.ctx) != TE_ERROR_FORMAT;
        if (std::string(te_last_error(u.ctx)).find(": line ") == std::string::npos) taken++;
        std::string damaged = text;
        damaged[i] = (char)(damaged[i] ^ 1 << i % 8);
        p.write(damaged);
        taken += te_gemm_load(p.name.c_str(), u.ctx) == TE_OK;
    }
    CHECK(taken == 0);
    CHECK(u.products() == 0);
    CHECK(te_gemm_report_choices(nullptr, 0, u.ctx) == 0);
    CHECK(loaded(u.ctx, text) == TE_OK);
    check_usable(u.ctx);
}

// ---- whole models -------------------------------------------------------------------------------------------------------

enum { IN = 264, HIDDEN = 328, ROWS = 96 }; // large enough for the kernels of te/linear/impl/linear_epilogue.h
TE_SEQUENTIAL(mlp, bf16, (fork, x1), (layernorm, ln, IN), (linear, fc1, IN, HIDDEN), (bias, fc1_b, HIDDEN), (gelu, act), (linear, fc2, HIDDEN, IN),
              (bias, fc2_b, IN), (add, x1), (fork, x2), (linear, up, IN, HIDDEN), (bias, up_b, HIDDEN), (silu, act2), (linear, down, HIDDEN,
                                  IN), (bias, down_b, IN),
              (dropout, drop, 0.1f), (add, x2))

TE_SEQUENTIAL(wide, bf16, (fork, x1), (linear, up, 1024, 2048), (bias, up_b, 2048), (silu, act), (linear, down, 2048, 1024), (bias, down_b, 1024), (add, x1))

namespace {

struct trained {
    tuned_context tuned;
    te_context *ctx;
    mlp m;
    std::unique_ptr<buffer> params, grads, memory, x, y, dx, dy;
    mlp_saved tensors;
    te_batch batch;
    explicit trained(int tune, const std::string &file = "") : tuned(tune), ctx(tuned.ctx) {
        if (!file.empty()) {
            const te_status status = loaded(ctx, file);
            INFO(te_last_error(ctx));
            REQUIRE(status == TE_OK);
        }
        params.reset(new buffer(ctx, mlp_param_bytes())), grads.reset(new buffer(ctx, mlp_grad_bytes())), memory.reset(new buffer(ctx, mlp_saved_bytes(ROWS)));
        for (std::unique_ptr<buffer> *b : {&x, &y, &dx, &dy}) b->reset(new buffer(ctx, ROWS * IN * 2));
        REQUIRE(mlp_bind(&m, params->data(), (float *)grads->data(), ctx) == TE_OK);
        REQUIRE(te_model_randomize(&m.model, 0.1f, 3, 0, ctx) == TE_OK);
        REQUIRE(te_fill_normal(x->data(), TE_bf16, ROWS * IN, 0, 1, 3, 90, ctx) == TE_OK);
        REQUIRE(te_fill_normal(dy->data(), TE_bf16, ROWS * IN, 0, 1, 3, 91, ctx) == TE_OK);
        memset(&tensors, 0, sizeof tensors), memset(&batch, 0, sizeof batch);
        tensors.memory = memory->data(), tensors.bytes = memory->bytes, batch.batch = 2, batch.seq = ROWS / 2;
        REQUIRE(te_context_reserve(ctx, mlp_workspace_bytes(&m, ROWS, ctx)) == TE_OK);
    }
    static te_tensor of(const std::unique_ptr<buffer> &b) { return te_matrix(b->data(), TE_bf16, ROWS, IN); }
    void step(int accumulate) {
        set_rng(ctx, 1, 1);
        batch.accumulate = accumulate;
        te_status status = mlp_forward(of(y), &tensors, of(x), &m, &batch, ctx);
        if (status == TE_OK) status = mlp_backward(of(dx), of(dy), &tensors, &m, &batch, ctx);
        INFO(te_last_error(ctx));
        REQUIRE(status == TE_OK);
    }
    std::vector<uint8_t> bits() {
        std::vector<uint8_t> all;
        for (const buffer *b : {y.get(), dx.get(), grads.get(), memory.get()}) {
            const std::vector<uint8_t> v = b->raw();
            all.insert(all.end(), v.begin(), v.end());
        }
        return all;
    }
    reference::vec inferred() {
        y->poison();
        const te_status status = mlp_infer(of(y), of(x), &m, &batch, ctx);
        INFO(te_last_error(ctx));
        REQUIRE(status == TE_OK);
        return y->read(TE_bf16);
    }
};

} // namespace

TEST_CASE("an autotuned model is right in all passes; a file restores the strategies of its patterns", "[gemm_tune]") {
    trained plain(0), tuned(1);
    const std::vector<uint8_t> weights = tuned.params->raw(), x = tuned.x->raw();
    plain.step(0), tuned.step(0);
    CHECK(tuned.params->raw() == weights);
    CHECK(tuned.x->raw() == x);
    const double tolerance = 3 * tolerance_of(TE_bf16); // both have the roundings of several layers
    check_close("y", tuned.y->read(TE_bf16), plain.y->read(TE_bf16), tolerance);
    check_close("dx", tuned.dx->read(TE_bf16), plain.dx->read(TE_bf16), tolerance);
    const te_param *p = tuned.m.model.param, *q = plain.m.model.param;
    for (int i = 0; i < tuned.m.model.param_count; i++) {
        const size_t n = (size_t)(p[i].rows * p[i].cols);
        INFO(p[i].op << "." << p[i].field);
        check_close("gradient", tuned.grads->read(TE_f32, (size_t)(p[i].grad - (float *)tuned.grads->data()), n),
                    plain.grads->read(TE_f32, (size_t)(q[i].grad - (float *)plain.grads->data()), n), tolerance);
    }
    const std::vector<uint8_t> first = tuned.bits();
    {
        counted count(tuned.ctx);
        tuned.step(0);
        CHECK(allocations == 0); // everything was timed by the first step
    }
    CHECK(tuned.bits() == first);
    tuned.step(1); // times the accumulating GEMMs, which must add once
    for (int i = 0; i < tuned.m.model.param_count; i++) {
        const size_t n = (size_t)(p[i].rows * p[i].cols);
        reference::vec twice = plain.grads->read(TE_f32, (size_t)(q[i].grad - (float *)plain.grads->data()), n);
        for (double &e : twice) e *= 2;
        INFO(p[i].op << "." << p[i].field);
        check_close("accumulated", tuned.grads->read(TE_f32, (size_t)(p[i].grad - (float *)tuned.grads->data()), n), twice, tolerance);
    }
    check_close("inference", tuned.inferred(), plain.inferred(), tolerance);

    const std::string text = saved(tuned.ctx);
    const int choices = te_gemm_report_choices(nullptr, 0, tuned.ctx);
    CHECK((choices > 0) == (TE_CUDA != 0));
#if TE_CUDA
    std::vector<te_gemm_choice> list((size_t)choices);
    CHECK(te_gemm_report_choices(list.data(), choices, tuned.ctx) == choices);
    int custom = 0;
    for (const te_gemm_choice &c : list) custom += c.ns[TE_STRATEGY_CUSTOM] > 0;
    CHECK((custom > 0) == (te__tensor_map_encoder(tuned.ctx) != nullptr)); // the kernels of linear_epilogue.h were timed, too
#endif
    for (int tune = 0; tune < 2; tune++) {
        trained reloaded(tune, text);
        counted count(reloaded.ctx);
        reloaded.step(0);
        CHECK(reloaded.bits() == first);
        (void)reloaded.inferred();
        CHECK(allocations == 0);
        CHECK(saved(reloaded.ctx) == text);
    }
    if (TE_CUDA) te_gemm_print(stdout, tuned.ctx);
}

TEST_CASE("each strategy that a tuning file may select is right", "[gemm_tune]") {
    trained plain(0);
    plain.step(0);
    const std::vector<std::string> header = lines_of(saved(plain.ctx));
    const reference::vec y = plain.y->read(TE_bf16), dx = plain.dx->read(TE_bf16), inferred = plain.inferred();
    for (int split = 0; split < TE_STRATEGY_COUNT; split++) {
        std::vector<std::string> lines = header;
        const te_plan *plan = mlp_plan();
        const te_run sizes = te__run_to_size(plan, TE_FORWARD, 1, TE_USE_off, nullptr);
        for (int training = 0; training < 2; training++)
            for (int i = 0; i < (training ? plan->forward_count : plan->infer_count); i++) {
                const te_step &s = training ? plan->forward[i] : plan->infer[i];
                const te_op &op = plan->op[s.op[0]];
                unsigned saved_ops = 0;
                if (op.op_class != TE_CLASS_gemm || s.count < 2) continue;
                for (int j = 1; j < s.count; j++) saved_ops |= te__policy(&sizes, s.op[j])->output_saved ? 1u << j : 0u;
                std::ostringstream line;
                line << "step " << s.pattern << (training ? " forward " : " infer ") << (int)ROWS << " " << op.out << " " << op.in << " bf16 " << saved_ops << " " << split << " 1 1 1 1";
                bool there = false;
                for (const std::string &l : lines) there = there || l == line.str();
                if (!there) lines.push_back(line.str());
            }
        trained t(0, ended(lines));
        CAPTURE(split);
        t.step(0);
        check_close("y", t.y->read(TE_bf16), y, 3 * tolerance_of(TE_bf16));
        check_close("dx", t.dx->read(TE_bf16), dx, 3 * tolerance_of(TE_bf16));
        check_close("inference", t.inferred(), inferred, 3 * tolerance_of(TE_bf16));
    }
}

TEST_CASE("a workspace for many rows is enough for fewer, whichever kernels they use", "[gemm_tune]") {
    std::vector<int64_t> rows = {1, 7, 128, 1000, 4224};
    for (int64_t tile = 60; tile < 72; tile++) // around the size at which patterns of `wide` become one kernel on 132 multiprocessors
        for (int64_t more : {0, 1, 127}) rows.push_back(tile * 128 + more);
    rows.push_back(20000), rows.push_back(100000);
    for (int custom = 0; custom < 3; custom++) {
        context c;
        wide m;
        c.c.gemm_custom = custom;
        buffer params(&c.c, wide_param_bytes()), grads(&c.c, wide_grad_bytes());
        REQUIRE(wide_bind(&m, params.data(), (float *)grads.data(), &c.c) == TE_OK);
        size_t before = 0;
        for (int64_t r : rows) {
            const size_t bytes = wide_workspace_bytes(&m, r, &c.c);
            CAPTURE(custom, r);
            CHECK(bytes >= before);
            before = bytes;
        }
    }
}

#if TE_CUDA && !defined(TE_KEEP_CALLS)
namespace {
// Checks a GEMM by a custom kernel against doubles, with and without C; the guards around D must not change.
template <te_dtype T, int FORWARD> void check_bare(int64_t m, int64_t n, int64_t k, int processors = 2) {
    te_product_kernels *kernels = te__unfused_gemm_kernels<T, FORWARD, 1, TE_OPERANDS_16BIT>();
    for (int added = 0; added < 2; added++) {
        context ctx_owner;
        const product p = {m, n, k, 0, FORWARD, T, T, TE_EPILOGUE_NONE, added};
        const unsigned seed = fresh_seed();
        operands o(&ctx_owner.c, p, seed);
        te_gemm g = o.gemm();
        reference::vec before;
        INFO(name_of(p) << ", TE_SEED=" << seed);
        ctx_owner.c.gemm_custom = 2, ctx_owner.c.processors = processors;
        if (!te__gemm_can_fuse(kernels, &g, &ctx_owner.c)) {
            // the only reasons not to have a kernel
            CHECK((n % 8 || k % 8 || (m > TE_SKINNY_ROWS && k <= 3 * TE_TILE_K) || ctx_owner.c.capability != 900));
            continue;
        }
        const te_status status = te__unfused_gemm_run(kernels, &g, &ctx_owner.c);
        INFO(te_last_error(&ctx_owner.c));
        REQUIRE(status == TE_OK);
        check_close("bare", o.d.read(T), o.should_be(&before), tolerance_of(T));
        const std::vector<uint8_t> bits = o.d.raw();
        o.d.poison();
        REQUIRE(te__unfused_gemm_run(kernels, &g, &ctx_owner.c) == TE_OK);
        CHECK(o.d.raw() == bits);
    }
}
} // namespace
TEST_CASE("GEMMs by custom kernels, skinny, small-m and persistent", "[gemm_tune]") {
    for (int64_t m : {1, 2, 5, 7, 8})
        for (int64_t n : {8, 40, 264})
            for (int64_t k : {8, 72, 264, 1000, 1024, 2056}) check_bare<TE_bf16, 1>(m, n, k), check_bare<TE_f16, 1>(m, n, k);
    for (int64_t m : {3, 9, 131, 300})
        for (int64_t n : {8, 264, 520})
            for (int64_t k : {200, 264, 1000})
                check_bare<TE_bf16, 1>(m, n, k), check_bare<TE_bf16, 0>(m, n, k), check_bare<TE_f16, 1>(m, n, k), check_bare<TE_f16, 0>(m, n, k);
    check_bare<TE_bf16, 1>(8, 8192, 4096); // more columns than all blocks compute at once
}
TEST_CASE("small-m GEMMs by a custom kernel", "[gemm_tune]") {
    const int64_t widths[][2] = {{8, 8}, {8, 1000}, {264, 72}, {520, 200}, {776, 1032}};
    for (int64_t m : {9, 16, 17, 63, 64, 65, 127, 128})
        for (const auto &w : widths) { // one cluster for all tiles, and one for each tile
            if (brief() && w[1] > 200) continue;
            check_bare<TE_bf16, 1>(m, w[0], w[1]), check_bare<TE_f16, 1>(m, w[0], w[1], 8);
        }
    // processors, columns, k: the k of every tile is split among clusters, or only that of the tiles of the last round
    const int64_t uneven[][3] = {{12, 520, 1032}, {26, 264, 2056}, {132, 520, 2056}, {4, 776, 1032}, {6, 1032, 1288}};
    for (const auto &u : uneven)
        for (int64_t m : {13, 31, 64, 100})
            if (!brief() || m == 31) check_bare<TE_bf16, 1>(m, u[1], u[2], (int)u[0]);
    context ctx_owner;
    const product p = {64, 520, 1032, 0, 1, TE_bf16, TE_bf16, TE_EPILOGUE_NONE, 0};
    operands o(&ctx_owner.c, p);
    te_gemm g = o.gemm();
    ctx_owner.c.gemm_custom = 2;
    if (ctx_owner.c.capability != 900) return;
    te_product_kernels *kernels = te__unfused_gemm_kernels<TE_bf16, 1, 1, TE_OPERANDS_16BIT>();
    CHECK(te__gemm_is_small_m(kernels, &g, &ctx_owner.c));
    g.m = TE_SKINNY_ROWS;
    CHECK(!te__gemm_is_small_m(kernels, &g, &ctx_owner.c));
    g.m = TE_SMALL_M_ROWS + 1;
    CHECK(!te__gemm_is_small_m(kernels, &g, &ctx_owner.c));
    g.m = 64, g.trans_b = 0;
    CHECK(!te__gemm_is_small_m(kernels, &g, &ctx_owner.c));
}
TEST_CASE("clusters without a tile take a part of the k of the last tiles", "[gemm_tune]") {
// processors, columns, k: one to three parts for a tile, without and with full rounds before; one cluster for several tiles
    const int64_t uneven[][3] = {{12, 520, 1032}, {18, 520, 1600}, {26, 520, 2056}, {132, 520, 2056}, {8, 1288, 1032}, {10, 1288, 2056}, {10, 520, 6200}};
    for (const auto &u : uneven) {
        const int processors = (int)u[0];
        check_bare<TE_bf16, 1>(200, u[1], u[2], processors), check_bare<TE_bf16, 0>(300, u[1], u[2], processors), check_bare<TE_f16, 1>(131, u[1], u[2], processors);
    }
}
#endif
