// prefill.cu -- attention of many new tokens of each sequence over a key-value cache (te/cache/cache.h), beside attention of as many queries to as many
// keys without a cache.
//
//     nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -I. -x cu bench/prefill.cu -o prefill -lcublasLt
//     ./prefill [file.tsv [commit [part of a name]]]
//
// The time over the cache is that of the whole step, which also stores the keys and values of the new tokens. Flops: 2 heads (head_dim + value_dim)
// for each pair of a new token and a key that it sees. The attention beside it has the same mask: its last query is at the position of the last key.
#include "bench.h"
#include "te/infer.h"

#define PREFILL(name, heads, kv_heads, dim)                                                     \
    TE_INFERENCE(name, bf16, (attention, a, heads, kv_heads, dim, (cache, 1)))                 \
    TE_ATTENTION_FORWARD_OF(name##_uncached, bf16, heads, kv_heads, dim, (-1, 0, 0, 0, 0, 0, 0, 0, 1))
PREFILL(group4_128, 32, 8, 128)
PREFILL(group1_128, 16, 16, 128)
PREFILL(group4_64, 32, 8, 64)
PREFILL(group4_256, 16, 4, 256)

// `count` sequences with `past` cached and `fresh` new tokens each; if mixed, past and fresh vary by sequence.
struct lengths {
    const char *text;
    int count, past, fresh;
    bool mixed;
    int past_of(int i) const { return mixed ? past * (i * 5 % count) / count : past; }
    int fresh_of(int i) const { return mixed ? std::max(1, fresh * (1 + i * 3 % count) / count) : fresh; }
    std::vector<int32_t> starts(bool of_past) const {
        std::vector<int32_t> first(1, 0);
        for (int i = 0; i < count; i++) first.push_back(first.back() + (of_past ? past_of(i) : fresh_of(i)));
        return first;
    }
};
static int32_t *on_device(const std::vector<int32_t> &v) {
    int32_t *there = (int32_t *)bench_allocate(v.size() * 4);
    bench_check(te_copy(&bench_ctx, there, v.data(), v.size() * 4), "lengths");
    bench_check(te_synchronize(&bench_ctx), "lengths");
    return there;
}
static void *normal(int64_t elements, uint64_t seed) {
    void *p = bench_allocate((size_t)elements * 2);
    bench_check(te_fill_normal(p, TE_bf16, elements, 0, 1, 2, seed, &bench_ctx), "data");
    return p;
}
template <class M>
static void prefill(const te_plan *plan, te_status (*bind)(M *, void *, te_context *), te_attention_launch_fn uncached, const lengths &l, int page_rows) {
    if (bench_only && !strstr(plan->name, bench_only)) return;
    static M m;
    static te_cache cache;
    const te_attention_options *o = (const te_attention_options *)plan->op[0].options;
    bench_check(bind(&m, nullptr, &bench_ctx), "bind");
    te_model *models[] = {&m.model};
    te_cache_config config = te_cache_defaults();
    config.sequences = l.count, config.capacity = l.past + l.fresh, config.page_rows = page_rows;
    const size_t bytes = te_cache_bytes(models, 1, &config);
    bench_check(te_cache_init(&cache, bench_allocate(bytes), bytes, models, 1, &config, &bench_ctx), "cache");
    bench_check(te_fill_normal(cache.layer[0].pages, TE_bf16, cache.t.page_bytes * cache.t.pages / 2, 0, 1, 2, 0, &bench_ctx), "cache");
    const std::vector<int32_t> past = l.starts(true), fresh = l.starts(false);
    te_batch b;
    memset(&b, 0, sizeof b), b.cache = &cache, b.batch = 1, b.sequences = l.count;
    if (past.back()) {
        b.seq = past.back(), b.max_seqlen = l.past, b.cu_seqlens = on_device(past);
        bench_check(te_cache_begin(&cache, &b, &bench_ctx), "begin");
    }
    b.seq = fresh.back(), b.max_seqlen = l.fresh, b.cu_seqlens = on_device(fresh);
    bench_check(te_cache_begin(&cache, &b, &bench_ctx), "begin");
    bench_check(te_cache_check(&cache, &bench_ctx), "cache");
    const int rows = fresh.back();
    bench_check(te_context_reserve(&bench_ctx, te_plan_workspace_bytes(plan, &m.model, rows, &bench_ctx)), "workspace");
    void *x = normal((int64_t)rows * plan->in, 1), *y = bench_allocate((size_t)rows * (size_t)plan->out * 2);
    double pairs = 0;
    for (int i = 0; i < l.count; i++) pairs += l.fresh_of(i) * (l.past_of(i) + (l.fresh_of(i) + 1) / 2.0);
    const double flops = 2.0 * o->heads * (o->head_dim + o->value_dim) * pairs;
    te_attention_args a;
    memset(&a, 0, sizeof a);
    std::vector<std::function<void(int)>> others;
    if (!l.mixed) {
        const int64_t keys = (int64_t)l.count * (l.past + l.fresh);
        a.out = y, a.qkv = normal((int64_t)rows * o->heads * o->head_dim, 2), a.kv = normal(keys * o->kv_heads * 2 * o->head_dim, 3);
        a.batch = l.count, a.seq = l.fresh, a.kv_seq = l.past + l.fresh, a.scale = 1 / sqrtf((float)o->head_dim);
        others.push_back([&](int) { bench_check(uncached(&bench_ctx, &a), "uncached"); });
    }
    const auto run = [&](int) {
        bench_check(te_plan_infer(te_matrix(y, TE_bf16, rows, plan->out), te_matrix(x, TE_bf16, rows, plan->in), plan, &m.model, &b, &bench_ctx), "prefill");
    };
    const bench_result r = bench_time(run, 0, flops, flops < 1e11 ? 8 : 2, others);
    bench_print(plan->name, "prefill", l.text, page_rows ? std::to_string(page_rows) + " a page" : "contiguous", r, others.empty() ? "" : "no cache");
    bench_release();
}
#define RUN(name, ...) prefill<name>(name##_plan(), name##_bind, name##_uncached_launch, __VA_ARGS__)

int main(int argc, char **argv) {
    bench_open(argc, argv);
    const lengths whole = {"8k", 1, 0, 8192, false}, chunk = {"2k behind 6k", 1, 6144, 2048, false}, odd = {"2k behind 6100", 1, 6100, 2048, false};
    const lengths small = {"512 behind 7.5k", 1, 7680, 512, false}, four = {"4 x 512 behind 3.5k", 4, 3584, 512, false};
    const lengths far = {"1k behind 31k", 1, 31744, 1024, false}, many = {"32 x 64 behind 2k", 32, 1984, 64, false}, short_ = {"2k", 1, 0, 2048, false};
    const lengths mixed = {"8 of up to 2k behind up to 8k", 8, 8192, 2048, true};
    for (const lengths &l : {whole, short_, chunk, odd, small, four, far, many, mixed}) RUN(group4_128, l, 0);
    for (const int page_rows : {16, 64, 256})
        for (const lengths &l : {chunk, mixed}) RUN(group4_128, l, page_rows);
    for (const lengths &l : {whole, chunk, four, mixed}) RUN(group1_128, l, 0), RUN(group4_64, l, 0), RUN(group4_256, l, 0);
    return bench_close();
}
