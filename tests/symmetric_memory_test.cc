// symmetric_memory_test.cc -- collectives and fused collective patterns through symmetric memory, with host threads as ranks: each
// algorithm at odd sizes, with tensors that are not aligned to 16 bytes, and in random order.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

#include "te/comm/impl/symmetric_collectives.h"
#include "te/te.h"

#if !TE_CUDA
#undef TE__HAS_COMM
#define TE__HAS_COMM 1 // the ranks are threads, so neither NCCL nor MPI is needed
enum { WIDTH = 48 };
#define REDUCED (fork, x1), (scale, s, 0.5f), (all_reduce, r), (add, x1), (fork, x2), (rmsnorm, n, WIDTH), (add, x2)
TE_SEQUENTIAL(reduced_bf16, bf16, REDUCED)
TE_SEQUENTIAL(reduced_f32, f32, REDUCED)
// The residual is an extra output before the norm; the post-norm of Gemma 2, whose input forward saves.
#define OUTPUT (fork, x1), (scale, s, 0.5f), (all_reduce, r), (bias, b, WIDTH), (add, x1), (output, sum), (layernorm, n, WIDTH)
#define POST_NORM (fork, x1), (scale, s, 0.5f), (all_reduce, r), (rmsnorm, n, WIDTH), (add, x1)
TE_SEQUENTIAL(output_bf16, bf16, OUTPUT)
TE_SEQUENTIAL(output_f32, f32, OUTPUT)
TE_SEQUENTIAL(post_norm_bf16, bf16, POST_NORM)
TE_SEQUENTIAL(post_norm_f32, f32, POST_NORM)
static_assert((int)output_f32_forward_steps == 3 && (int)post_norm_f32_forward_steps == 3, "fork, scale, all_reduce .. norm");
enum { INNER = 32 }; // columns of a rank
#define BOUNDARY                                                                                                      \
    (fork, x1), (all_gather, g0), (linear, in, WIDTH, INNER, (shard, columns)),                                   \
    (linear, out, INNER, WIDTH, (shard, rows)), (reduce_scatter, s), (bias, b, WIDTH), (dropout, d, 0.1f),        \
    (add, x1), (fork, x2), (layernorm, n, WIDTH), (all_gather, g1), (linear, in1, WIDTH, INNER, (shard, columns)), \
    (linear, out1, INNER, WIDTH, (shard, rows)), (reduce_scatter, s1), (add, x2)
#define OUTPUT_BOUNDARY                                                                                               \
    (fork, x1), (all_gather, g0), (linear, in, WIDTH, INNER, (shard, columns)),                                   \
    (linear, out, INNER, WIDTH, (shard, rows)), (reduce_scatter, s), (bias, b, WIDTH), (dropout, d, 0.1f),        \
    (add, x1), (output, sum), (layernorm, n, WIDTH), (all_gather, g1), (linear, in1, WIDTH, INNER, (shard, columns)), \
    (linear, out1, INNER, WIDTH, (shard, rows)), (reduce_scatter, s1)
TE_SEQUENTIAL(output_boundary_bf16, (bf16, (rows, shard)), OUTPUT_BOUNDARY)
TE_SEQUENTIAL(output_boundary_f32, (f32, (rows, shard)), OUTPUT_BOUNDARY)
TE_SEQUENTIAL(boundary_bf16, (bf16, (rows, shard)), BOUNDARY)
TE_SEQUENTIAL(boundary_f32, (f32, (rows, shard)), BOUNDARY)
TE_SEQUENTIAL(boundary_fp8, (bf16, (rows, shard), (recipe, fp8_delayed)), BOUNDARY)
#undef TE_FORWARD_reduce_scatter_bias_dropout_add_fork_norm_all_gather
#undef TE_FORWARD_reduce_scatter_bias_add_fork_norm_all_gather
#undef TE_FORWARD_all_reduce_add_fork_norm
TE_SEQUENTIAL(boundary_fp8_unfused, (bf16, (rows, shard), (recipe, fp8_delayed)), BOUNDARY)
TE_SEQUENTIAL(boundary_unfused, (bf16, (rows, shard)), BOUNDARY)
TE_SEQUENTIAL(reduced_unfused, bf16, REDUCED)
static_assert((int)boundary_f32_forward_steps == 9 && (int)boundary_f32_infer_steps == 9, "reduce_scatter .. norm all_gather is one step");
namespace {
const te_dtype dtypes[] = {TE_f32, TE_bf16, TE_f16};

struct host_rank {
    te_context ctx;
    te_comm comm;
    te_group group;
    te_peer_memory peers;
    te_peer_state state;
    uint32_t failed;
    std::vector<uint64_t> memory;
};
struct ranks_of {
    std::vector<host_rank> rank;
    explicit ranks_of(int n, int64_t largest, double timeout = 60) : rank((size_t)n) {
        for (int r = 0; r < n; r++) {
            host_rank &h = rank[(size_t)r];
            REQUIRE(te_context_create(&h.ctx, 0, 1) == TE_OK);
            memset(&h.comm, 0, sizeof h.comm), memset(&h.peers, 0, sizeof h.peers), memset(&h.state, 0, sizeof h.state);
            h.failed = 0, h.comm.timeout = timeout, h.comm.ctx = &h.ctx, h.peers.max_blocks = 3;
            h.group = te_group{"test", r, n, 1, nullptr, nullptr, &h.peers, nullptr, nullptr, nullptr, &h.comm};
            te__peer_memory_size(&h.peers, largest, TE_ALL_REDUCE_auto, n);
            h.memory.assign(te__peer_memory_bytes(&h.peers) / 8, ~UINT64_C(0));
            h.peers.state = &h.state, h.peers.failed = &h.failed;
        }
        for (host_rank &h : rank)
            for (int r = 0; r < n; r++) h.peers.buffer[r] = (char *)rank[(size_t)r].memory.data();
    }
    ~ranks_of() {
        for (host_rank &h : rank) te_context_destroy(&h.ctx);
    }
    void one_shot(int64_t bytes) {
        for (host_rank &h : rank) h.peers.one_shot_bytes = bytes;
    }
    template <class F> void each(F f) {
        std::vector<std::thread> threads;
        for (size_t r = 0; r < rank.size(); r++) threads.emplace_back([this, r, f] { f(rank[r], (int)r); });
        for (std::thread &t : threads) t.join();
    }
};

// Element i of a rank's x. Elements have both signs and several magnitudes.
float number_of(uint64_t epoch, int rank, int64_t i, te_dtype dtype) {
    uint32_t u[4];
    te_philox(u, 7 + epoch, (uint64_t)i, (uint32_t)rank, 0);
    return te_round_to((te_uniform(u[0]) - 0.5f) * (u[1] % 8 ? 1.0f : 100.0f), dtype);
}
struct result {
    int64_t compared = 0, wrong = 0;
};
// Runs and checks a collective of `count` elements of each rank, `shift` elements behind an aligned address. Returns whether symmetric memory was used.
bool collective(host_rank &h, te_peer_kind kind, int64_t count, te_dtype dtype, uint64_t epoch, int shift, result *got) {
    const size_t size = te_dtype_bytes(dtype);
    const int n = h.group.size;
    const int parts_in = kind == TE_PEER_reduce_scatter ? n : 1, parts_out = kind == TE_PEER_all_gather ? n : 1;
    std::vector<uint64_t> in((size_t)(count * parts_in + shift) * size / 8 + 4),
        out((size_t)(count * parts_out + shift) * size / 8 + 4);
    char *x = (char *)in.data() + (size_t)shift * size, *y = (char *)out.data() + (size_t)shift * size;
    if (kind == TE_PEER_all_reduce && epoch % 2) y = x;
    for (int64_t i = 0; i < count * parts_in; i++) te_store(x, i, number_of(epoch, h.group.rank, i, dtype), dtype);
    int taken = 0;
    if (te__peer_collective(&taken, &h.group, kind, y, x, count, dtype, &h.ctx) != TE_OK || !taken) return false;
    for (int64_t i = 0; i < count * parts_out; i++, got->compared++) {
        float want = 0;
        if (kind == TE_PEER_all_gather) want = number_of(epoch, (int)(i / count), i % count, dtype);
        else
            for (int r = 0; r < n; r++) { // the sum is in the order of the ranks, and is rounded once
                const int64_t at = kind == TE_PEER_reduce_scatter ? h.group.rank * count + i : i;
                const float one = number_of(epoch, r, at, dtype);
                want = r ? want + one : one;
            }
        got->wrong += te_round_to(want, dtype) != te_load(y, i, dtype);
    }
    const char *end = (const char *)(y == x ? in.data() + in.size() : out.data() + out.size());
    for (const char *p = y + (size_t)(count * parts_out) * size; p < end; p++) got->wrong += *p != 0; // nothing may be written behind y
    return true;
}
result run(ranks_of &ranks, int epochs, int64_t max_count, bool random_delays) {
    std::vector<result> got(ranks.rank.size());
    std::vector<int> through(ranks.rank.size());
    ranks.each([&](host_rank &h, int r) {
        for (int t = 0; t < epochs; t++) {
            uint32_t u[4];
            te_philox(u, 3, (uint64_t)t, 0, 0);
            const int64_t count = 1 + u[1] % max_count;
            if (random_delays && (t * 7 + r * 3) % 11 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
            through[(size_t)r] += collective(h, (te_peer_kind)(u[0] % 3), count, dtypes[u[2] % 3], (uint64_t)t,
                                             (int)(u[3] % 3), &got[(size_t)r]);
        }
    });
    result all;
    for (size_t r = 0; r < got.size(); r++) {
        CHECK(through[r] == epochs);
        all.compared += got[r].compared, all.wrong += got[r].wrong;
    }
    for (host_rank &h : ranks.rank) // all slots must be empty at the end
        for (uint64_t word : h.memory) all.wrong += word != ~UINT64_C(0);
    return all;
}
} // namespace

TEST_CASE("collectives through symmetric memory, one-shot and two-shot") {
    const int n = GENERATE(2, 3, 4, 5, 8), one_shot = GENERATE(0, 1 << 20);
    ranks_of ranks(n, 8 * 4 * 300);
    ranks.one_shot(one_shot);
    const result got = run(ranks, 150, 300, true);
    INFO(n << " ranks, one-shot up to " << one_shot << " bytes");
    CHECK(got.compared > 10000);
    CHECK(got.wrong == 0);
}

TEST_CASE("data with the bit pattern of an empty slot arrives") {
    ranks_of ranks(3, 4096, 10);
    std::vector<int> right(3);
    ranks.each([&](host_rank &h, int r) {
        std::vector<uint32_t> x(40, 0xffffffffu), y(120);
        int taken = 0, ok = 1;
        if (te__peer_collective(&taken, &h.group, TE_PEER_all_gather, y.data(), x.data(), 40, TE_f32, &h.ctx)) return;
        for (uint32_t w : y) ok &= w == 0xffffffffu; // an all_gather copies all bits
        y.assign(120, 0);
        if (te__peer_collective(&taken, &h.group, TE_PEER_all_reduce, y.data(), x.data(), 40, TE_f32, &h.ctx)) return;
        for (int i = 0; i < 40; i++) ok &= std::isnan(te_float_of_bits(y[(size_t)i]));
        right[(size_t)r] = ok && te__peers_check(&h.group, &h.ctx) == TE_OK;
    });
    CHECK(right == std::vector<int>{1, 1, 1});
}

TEST_CASE("which algorithm a collective uses") {
    te_peer_memory p;
    te_group g;
    memset(&p, 0, sizeof p), memset(&g, 0, sizeof g);
    g.peers = &p, g.size = 4;
    CHECK(te__peer_algorithm_of(nullptr, TE_PEER_all_reduce, 1) == TE_PEER_none);
    te__peer_memory_size(&p, 16 << 20, TE_ALL_REDUCE_auto, 2);
    CHECK(te__peer_algorithm_of(&p, TE_PEER_all_reduce, 16 << 20) == TE_PEER_one_shot);
    CHECK(te__peer_algorithm_of(&p, TE_PEER_all_reduce, (16 << 20) + 1) == TE_PEER_none);
    CHECK(te__peer_algorithm_of(&p, TE_PEER_all_gather, (16 << 20) + 1) == TE_PEER_none);
    te__peer_memory_size(&p, 16 << 20, TE_ALL_REDUCE_auto, 4);
    CHECK(te__peer_algorithm_of(&p, TE_PEER_all_reduce, TE_PEER_ONE_SHOT_BYTES / 3) == TE_PEER_one_shot);
    CHECK(te__peer_algorithm_of(&p, TE_PEER_all_reduce, TE_PEER_ONE_SHOT_BYTES / 3 + 1) == TE_PEER_two_shot);
    CHECK(te__peer_algorithm_of(&p, TE_PEER_reduce_scatter, 16 << 20) == TE_PEER_one_shot);
    CHECK(te__fused_rows_per_launch(&g, 1000, 64 << 10, 0) == 256); // two-shot: a multiple of the ranks
    // chosen by name: a tensor that is too large takes the next algorithm
    te__peer_memory_size(&p, 16 << 20, TE_ALL_REDUCE_one_shot, 4);
    CHECK(te__peer_algorithm_of(&p, TE_PEER_all_reduce, (16 << 20) / 3) == TE_PEER_one_shot);
    CHECK(te__peer_algorithm_of(&p, TE_PEER_all_reduce, 16 << 20) == TE_PEER_two_shot);
    CHECK((16 << 20) / 3 * 4 <= p.half_bytes); // one-shot needs room for the tensors of all ranks
    te__peer_memory_size(&p, 16 << 20, TE_ALL_REDUCE_two_shot, 2);
    CHECK(te__peer_algorithm_of(&p, TE_PEER_all_reduce, 16) == TE_PEER_two_shot);
    CHECK(te__peer_algorithm_of(&p, TE_PEER_all_reduce, (16 << 20) + 1) == TE_PEER_none);
    te__peer_memory_size(&p, 16 << 20, TE_ALL_REDUCE_transport, 4);
    CHECK(te__peer_algorithm_of(&p, TE_PEER_all_reduce, 16) == TE_PEER_none);
    CHECK(te__peer_algorithm_of(&p, TE_PEER_all_gather, 16 << 20) == TE_PEER_one_shot);
    CHECK(te__fused_rows_per_launch(&g, 1000, 64 << 10, 0) == 0);
}

TEST_CASE("if a rank times out, this and later calls of the other ranks return an error") {
    ranks_of ranks(3, 4096, 0.05);
    ranks.one_shot(GENERATE(0, 4096));
    std::vector<te_status> first(3, TE_OK), then(3, TE_OK);
    ranks.each([&](host_rank &h, int r) {
        float v[64] = {};
        int taken = 0;
        if (r == 1) return;
        (void)te__peer_collective(&taken, &h.group, TE_PEER_all_reduce, v, v, 64, TE_f32, &h.ctx);
        first[(size_t)r] = te__peers_check(&h.group, &h.ctx);
        then[(size_t)r] = te__peer_collective(&taken, &h.group, TE_PEER_all_reduce, v, v, 64, TE_f32, &h.ctx);
    });
    for (int r : {0, 2}) {
        INFO(te_last_error(&ranks.rank[(size_t)r].ctx));
        CHECK(first[(size_t)r] == TE_ERROR_COMM);
        CHECK(then[(size_t)r] == TE_ERROR_COMM);
        CHECK(strstr(te_last_error(&ranks.rank[(size_t)r].ctx), "rank 1 has not come within 0.05 seconds"));
        CHECK(ranks.rank[(size_t)r].comm.failed);
    }
}

namespace {
// The transport of ranks that are threads: unfused collectives use the symmetric memory, too.
std::atomic<int> calls;
te_status through_memory(te_peer_kind kind, const te_group *g, void *y, const void *x, int64_t count, te_dtype dtype,
                   te_context *ctx) {
    int taken = 0;
    te_group mapped = *g;
    mapped.peers = (te_peer_memory *)g->handle, calls++;
    const te_status s = te__peer_collective(&taken, &mapped, kind, y, x, count, dtype, ctx);
    return taken ? s : TE_ERROR_STATE;
}
te_status gather_through_memory(const te_group *g, void *y, const void *x, int64_t count, te_dtype t, te_context *ctx) {
    return through_memory(TE_PEER_all_gather, g, y, x, count, t, ctx);
}
te_status scatter_through_memory(const te_group *g, void *y, const void *x, int64_t count, te_dtype t, te_context *ctx) {
    return through_memory(TE_PEER_reduce_scatter, g, y, x, count, t, ctx);
}
te_status reduce_through_memory(const te_group *g, void *y, const void *x, int64_t count, te_dtype t, te_context *ctx) {
    const int64_t size = (int64_t)te_dtype_bytes(t), max_count = ((const te_peer_memory *)g->handle)->max_bytes / size;
    if (count <= max_count) return through_memory(TE_PEER_all_reduce, g, y, x, count, t, ctx);
    TE_TRY(through_memory(TE_PEER_all_reduce, g, y, x, max_count, t, ctx)); // the largest part that the memory holds
    return reduce_through_memory(g, (char *)y + max_count * size, (const char *)x + max_count * size, count - max_count, t, ctx);
}
const te_transport by_threads = {"threads", gather_through_memory, scatter_through_memory, reduce_through_memory, nullptr, nullptr};

// Runs forward, backward and inference of a list on `rows` random rows of a rank. Returns the bytes of y, the saved tensors, dx, the gradients, the
// extra output `sum` if the list has it, and y and `sum` of inference. Saved FP8 tensors are left out, because a cast stores them transposed and a fused pattern does not.
std::vector<char> pass(host_rank &h, const te_plan *plan, int rows, int batch_rows) {
    te_model m;
    te_param param[8];
    te_saved saved;
    te_batch batch;
    void *at[7] = {}; // parameters, x, y, saved, dx, gradients, sum
    memset(&m, 0, sizeof m), memset(&saved, 0, sizeof saved), memset(&batch, 0, sizeof batch);
    memset(param, 0, sizeof param);
    int params = 0;
    for (int i = 0; i < plan->op_count; i++) params += plan->op[i].params;
    saved.bytes = te_plan_saved_bytes_of_rank(plan, batch_rows, &h.ctx);
    const size_t bytes = (size_t)(rows * WIDTH) * te_dtype_bytes(plan->dtype);
    const size_t sizes[7] = {te_plan_param_bytes(plan), bytes, bytes, saved.bytes, bytes, te_plan_grad_bytes(plan), bytes};
    for (int i = 0; i < 7; i++)
        if (te_allocate(&h.ctx, &at[i], sizes[i]) != TE_OK || te_fill(&h.ctx, at[i], 0, sizes[i]) != TE_OK) return {};
    if (te_model_bind(&m, plan, param, params, at[0], (float *)at[5], &h.ctx) != TE_OK) return {};
    if (te_context_reserve(&h.ctx, te_plan_workspace_bytes(plan, &m, batch_rows, &h.ctx)) != TE_OK) return {};
    const int64_t elements = (int64_t)(sizes[0] / te_dtype_bytes(plan->dtype));
    for (int64_t i = 0; i < elements; i++)
        te_store(at[0], i, (params == 1 ? 0.5f : 0.0f) + number_of(1, 9 + h.group.rank, i, TE_f32) / 8, plan->dtype);
    for (int64_t i = 0; i < rows * WIDTH; i++)
        te_store(at[1], i, number_of(5, h.group.rank, i, plan->dtype), plan->dtype);
    saved.memory = at[3], batch.batch = 1, batch.seq = batch_rows;
    const te_edge sum = {"sum", te_matrix(at[6], plan->dtype, rows, WIDTH), te_matrix(at[1], plan->dtype, rows, WIDTH)};
    batch.edges = &sum, batch.edge_count = 1;
    te_model *models[1] = {&m};
    te_recipes recipes;
    te_recipes_config config = te_recipes_defaults();
    void *scales = nullptr;
    config.ranks = h.group.size;
    const size_t scale_bytes = plan->fp8 ? te_recipes_bytes(models, 1, &config) : 0;
    if (plan->fp8) { // a first step computes the scales
        if (te_allocate(&h.ctx, &scales, scale_bytes) != TE_OK || te_fill(&h.ctx, scales, 0, scale_bytes) != TE_OK) return {};
        if (te_recipes_init(&recipes, scales, scale_bytes, models, 1, &config, &h.ctx) != TE_OK) return {};
        const te_tensor x = te_matrix(at[1], plan->dtype, rows, WIDTH), y = te_matrix(at[2], plan->dtype, rows, WIDTH);
        if (te_plan_forward(y, &saved, x, plan, &m, &batch, &h.ctx) != TE_OK) return {};
        if (te_plan_backward(te_matrix(at[4], plan->dtype, rows, WIDTH), x, &saved, plan, &m, &batch, &h.ctx) != TE_OK) return {};
        if (te_recipes_step(&recipes, &h.ctx) != TE_OK) return {};
    }
    std::vector<char> all;
    const auto of = [&](int i) { return te_matrix(at[i], plan->dtype, rows, WIDTH); };
    const te_rng rng = {7, 0};
    if (te_rng_set(&rng, &h.ctx) != TE_OK) return {};
    for (te_saved *into : {&saved, (te_saved *)nullptr}) {
        if (te_plan_forward(of(2), into, of(1), plan, &m, &batch, &h.ctx) != TE_OK) return {};
        if (into && te_plan_backward(of(4), of(1), into, plan, &m, &batch, &h.ctx) != TE_OK) return {};
        for (int i = 2; i < (into ? 7 : 3); i++)
            if (i != 3 || !plan->fp8) all.insert(all.end(), (char *)at[i], (char *)at[i] + sizes[i]);
        if (!into) all.insert(all.end(), (char *)at[6], (char *)at[6] + sizes[6]);
        if (te_fill(&h.ctx, at[6], 0, sizes[6]) != TE_OK) return {};
    }
    if (plan->fp8 && te_recipes_step(&recipes, &h.ctx) != TE_OK) return {}; // the scales come from the amax over all ranks
    if (plan->fp8) all.insert(all.end(), (char *)scales, (char *)recipes.gathered); // the memory behind it differs between ranks
    te_release(&h.ctx, scales);
    for (void *p : at) te_release(&h.ctx, p);
    return all;
}
void open_ranks(ranks_of &ranks) {
    for (host_rank &h : ranks.rank) {
        h.group.transport = &by_threads, h.group.handle = &h.peers, h.comm.tensor = h.comm.world = h.group;
        h.comm.data = te_group{"data", 0, 1, 1, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, &h.comm};
        h.ctx.comm = &h.comm;
    }
}
void close_ranks(ranks_of &ranks) {
    for (host_rank &h : ranks.rank) h.ctx.comm = nullptr;
}
bool is_idle(const ranks_of &ranks) {
    for (const host_rank &h : ranks.rank)
        for (uint64_t word : h.memory)
            if (word != ~UINT64_C(0)) return false;
    return true;
}
} // namespace

TEST_CASE("all_reduce .. norm as one kernel has the bits of the unfused steps") {
    const int n = GENERATE(2, 3, 4), rows = GENERATE(1, 7, 130), two_shot = GENERATE(0, 1), pieces = n == 2 || two_shot ? GENERATE(0, 1) : 0;
    const te_plan *const plans[] = {reduced_f32_plan(), reduced_bf16_plan(), output_f32_plan(), output_bf16_plan(), post_norm_f32_plan(), post_norm_bf16_plan()};
    const te_plan *plan = plans[GENERATE(0, 1, 2, 3, 4, 5)];
    const int row_bytes = WIDTH * (int)te_dtype_bytes(plan->dtype), at_once = !pieces ? rows : two_shot ? 2 * n : 3;
    ranks_of ranks(n, pieces ? at_once * row_bytes : 1 << 16);
    std::vector<std::vector<char>> got[2] = {std::vector<std::vector<char>>((size_t)n), std::vector<std::vector<char>>((size_t)n)};
    open_ranks(ranks);
    ranks.one_shot(two_shot ? 0 : pieces ? at_once * row_bytes : 1 << 16); // pieces: the memory holds only a part of the tensor
    for (int unfused = 0; unfused < 2; unfused++) {
        ranks_of large(n, 1 << 16);
        ranks_of &of = unfused ? large : ranks;
        if (unfused) open_ranks(of);
        of.each([&, unfused](host_rank &h, int r) {
            if (unfused) h.comm.tensor.peers = nullptr; // no fused pattern; the transport still uses the memory
            got[unfused][(size_t)r] = pass(h, plan, rows, rows);
        });
        CHECK(calls.exchange(0) == (unfused ? 2 * n : 0)); // one in forward and one in inference of each rank
        CHECK(is_idle(of));
        if (unfused) close_ranks(of);
    }
    for (size_t r = 0; r < (size_t)n; r++) {
        INFO(plan->name << ", " << n << " ranks, " << rows << " rows: " << te_last_error(&ranks.rank[r].ctx));
        CHECK(got[0][r].size() > (size_t)(2 * rows * WIDTH) * te_dtype_bytes(plan->dtype));
        CHECK(got[0][r] == got[1][r]);
        CHECK(ranks.rank[r].peers.collectives == 2 * te_ceil_div(rows, at_once));
    }
    CHECK(got[0][0] != got[0][1]); // ranks have different residuals
    close_ranks(ranks);
}

TEST_CASE("reduce_scatter .. norm all_gather as one kernel has the bits of the unfused steps") {
    const int n = GENERATE(2, 3, 4), rows = GENERATE(1, 7, 65); // rows of a rank
    const te_plan *const plans[] = {boundary_f32_plan(), boundary_bf16_plan(), output_boundary_f32_plan(), output_boundary_bf16_plan()};
    const te_plan *plan = plans[GENERATE(0, 1, 2, 3)];
    std::vector<std::vector<char>> got[2] = {std::vector<std::vector<char>>((size_t)n), std::vector<std::vector<char>>((size_t)n)};
    const int64_t bytes = (int64_t)n * rows * WIDTH * (int64_t)te_dtype_bytes(plan->dtype);
    std::vector<int64_t> through[2] = {std::vector<int64_t>((size_t)n), std::vector<int64_t>((size_t)n)};
    for (int unfused = 0; unfused < 2; unfused++) {
        ranks_of ranks(n, unfused ? 2 * bytes : bytes);
        open_ranks(ranks);
        ranks.each([&](host_rank &h, int r) {
            if (unfused) h.comm.tensor.peers = nullptr; // no fused pattern; the transport still uses the memory
            got[unfused][(size_t)r] = pass(h, plan, rows, n * rows);
            through[unfused][(size_t)r] = h.peers.collectives;
        });
        const int each = calls.exchange(0) / n;
        // four in each of forward, inference and backward; the fused pattern replaces two in forward and two in inference
        CHECK(each == (unfused ? 12 : 8));
        CHECK(is_idle(ranks));
        close_ranks(ranks);
    }
    for (size_t r = 0; r < (size_t)n; r++) {
        INFO(n << " ranks, " << rows << " rows");
        CHECK(!got[0][r].empty());
        CHECK(got[0][r] == got[1][r]);
        CHECK(through[0][r] == 10);
        CHECK(through[1][r] == 12);
    }
    CHECK(got[0][0] != got[0][1]);
}

TEST_CASE("reduce_scatter .. norm all_gather in FP8, with one scale for all ranks, has the bits of an all_gather and a cast") {
    const int n = GENERATE(2, 3, 4), rows = GENERATE(3, 16, 65); // rows of a rank
    std::vector<std::vector<char>> got[2] = {std::vector<std::vector<char>>((size_t)n), std::vector<std::vector<char>>((size_t)n)};
    for (int unfused = 0; unfused < 2; unfused++) {
        ranks_of ranks(n, (int64_t)n * rows * WIDTH * 2);
        open_ranks(ranks);
        ranks.each([&](host_rank &h, int r) {
            got[unfused][(size_t)r] = pass(h, unfused ? boundary_fp8_unfused_plan() : boundary_fp8_plan(), rows, n * rows);
        });
        calls = 0;
        CHECK(is_idle(ranks));
        for (host_rank &h : ranks.rank) {
            CHECK(h.peers.fused == (unfused ? 0 : 3));
            CHECK(h.peers.fused_fp8 == (unfused ? 0 : 2)); // in all steps but the first
        }
        close_ranks(ranks);
    }
    for (size_t r = 0; r < (size_t)n; r++) {
        INFO(n << " ranks, " << rows << " rows");
        CHECK(!got[0][r].empty());
        const bool same = got[0][r] == got[1][r];
        CHECK(same);
    }
}

TEST_CASE("fused patterns and collectives of random sizes, with random delays of the ranks") {
    const int n = GENERATE(2, 3), max_count = 40;
    ranks_of ranks(n, (int64_t)n * max_count * WIDTH * 2); // a larger all_reduce needs several launches
    open_ranks(ranks);
    ranks.one_shot(n == 2 ? ranks.rank[0].peers.max_bytes : 2000);
    std::vector<int64_t> wrong((size_t)n), fused_of((size_t)n);
    ranks.each([&](host_rank &h, int r) {
        h.group.handle = h.comm.tensor.handle = &h.peers;
        for (int t = 0; t < 300; t++) {
            uint32_t u[4], delay[4];
            te_philox(u, 11, (uint64_t)t, 0, 0), te_philox(delay, 12, (uint64_t)t, (uint32_t)r, 0);
            if (delay[0] % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(delay[1] % 200));
            const int rows = 1 + (int)(u[1] % (uint32_t)(u[0] % 3 == 1 ? 4 * max_count : max_count));
            if (u[0] % 3 == 2) {
                result got;
                (void)collective(h, (te_peer_kind)(u[2] % 3), 1 + u[3] % 500, TE_bf16, (uint64_t)t, 0, &got);
                wrong[(size_t)r] += got.wrong;
                continue;
            }
            const bool boundary = u[0] % 3 == 0;
            const std::vector<char> a = pass(h, boundary ? boundary_bf16_plan() : reduced_bf16_plan(), rows, boundary ? n * rows : rows),
                                    b = pass(h, boundary ? boundary_unfused_plan() : reduced_unfused_plan(), rows, boundary ? n * rows : rows);
            wrong[(size_t)r] += a.empty() || a != b;
        }
        fused_of[(size_t)r] = h.peers.fused;
    });
    calls = 0;
    for (size_t r = 0; r < (size_t)n; r++) {
        INFO(n << " ranks: " << te_last_error(&ranks.rank[r].ctx));
        CHECK(wrong[r] == 0);
        CHECK(fused_of[r] > 100);
    }
    CHECK(is_idle(ranks));
    close_ranks(ranks);
}
#endif
