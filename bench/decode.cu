// decode.cu -- attention of one new token of each sequence over a key-value cache (te/cache/cache.h), beside a plain kernel that reads as many bytes.
//
//     nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -I. -x cu bench/decode.cu -o decode -lcublasLt
//     ./decode [file.tsv [commit [part of a name]]]
//
// Bytes: keys and values of all tokens, in 8 bits with their scales. The time is that of the whole step, which also stores the new token's keys and values.
#include "bench.h"
#include "te/infer.h"

#define DECODE(name, heads, kv_heads, dim) DECODE_IN(name, heads, kv_heads, dim, 1)
#define DECODE_IN(name, heads, kv_heads, dim, format) TE_INFERENCE(name, bf16, (attention, a, heads, kv_heads, dim, (cache, format)))
DECODE(group1_128, 8, 8, 128)
DECODE(group2_128, 16, 8, 128)
DECODE(group4_128, 32, 8, 128)
DECODE(group5_128, 40, 8, 128)
DECODE(group7_128, 28, 4, 128)
DECODE(group8_128, 64, 8, 128)
DECODE(group4_64, 32, 8, 64)
DECODE(group8_64, 64, 8, 64)
DECODE(group4_256, 16, 4, 256)
#define DECODE_8BIT(format)                          \
    DECODE_IN(group1_128_##format, 8, 8, 128, format) \
    DECODE_IN(group4_128_##format, 32, 8, 128, format) \
    DECODE_IN(group8_128_##format, 64, 8, 128, format) \
    DECODE_IN(group16_128_##format, 64, 4, 128, format) \
    DECODE_IN(group4_64_##format, 32, 8, 64, format) \
    DECODE_IN(group4_256_##format, 16, 4, 256, format)
DECODE_8BIT(int8)
DECODE_8BIT(e4m3)

// Multi-head latent attention in its absorbed form: a key has 576 numbers, of which the first 512 are the value.
#define DECODE_LATENT(heads) TE_INFERENCE(latent##heads, bf16, (attention, a, heads, 1, 576, (value_dim, 512), (values_in_keys, 1), (scale, 0.0722f), (cache, 1)))
DECODE_LATENT(16)
DECODE_LATENT(64)
DECODE_LATENT(128)

struct lengths { const char *text; int count, shortest, longest; };

// Random numbers of 8 bits, with scales of about 1 / 50, to `bytes` bytes of tiles of 16 rows of `dim` numbers and their scales.
__global__ void fill_8bit(uint32_t *to, int64_t words, int dim) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= words) return;
    uint32_t x = (uint32_t)i * 2654435761u;
    x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
    const float scale = 0.01f + (float)(x >> 8) * 0x1p-24f * 0.02f;
    to[i] = i % ((dim + 4) * 4) < dim * 4 ? x : __float_as_uint(scale);
}

// lengths of shortest to longest tokens, in an order that is not sorted
static std::vector<int32_t> starts_of(const lengths &l, int less) {
    std::vector<int32_t> first(1, 0);
    for (int i = 0; i < l.count; i++) first.push_back(first.back() + l.shortest + (l.longest - l.shortest) * (i * 7 % l.count) / std::max(1, l.count - 1) - less);
    return first;
}
template <class M> static void decode(const te_plan *plan, te_status (*bind)(M *, void *, te_context *), const lengths &l, int page_rows) {
    if (bench_only && !strstr(plan->name, bench_only)) return;
    static M m;
    const te_attention_options *o = (const te_attention_options *)plan->op[0].options;
    bench_check(bind(&m, nullptr, &bench_ctx), "bind");
    te_model *models[] = {&m.model};
    te_cache_config config = te_cache_defaults();
    config.sequences = l.count, config.capacity = l.longest, config.page_rows = page_rows;
    static te_cache cache;
    const size_t bytes = te_cache_bytes(models, 1, &config);
    bench_check(te_cache_init(&cache, bench_allocate(bytes), bytes, models, 1, &config, &bench_ctx), "cache");
    const te_cache_layer *layer = &cache.layer[0];
    const int64_t page_bytes = cache.t.page_bytes * cache.t.pages;
    if (layer->format == TE_CACHE_FORMAT_list) bench_check(te_fill_normal(layer->pages, TE_bf16, page_bytes / 2, 0, 1, 2, 0, &bench_ctx), "cache");
    else fill_8bit<<<(unsigned)((page_bytes / 4 + 255) / 256), 256, 0, (cudaStream_t)bench_ctx.stream>>>((uint32_t *)layer->pages, page_bytes / 4, o->head_dim);
    te_batch b;
    memset(&b, 0, sizeof b), b.cache = &cache;
    const std::vector<int32_t> first = starts_of(l, 1); // all tokens but the last
    int32_t *there = (int32_t *)bench_allocate(first.size() * 4);
    bench_check(te_copy(&bench_ctx, there, first.data(), first.size() * 4), "lengths");
    b.batch = 1, b.seq = first.back(), b.sequences = l.count, b.max_seqlen = l.longest, b.cu_seqlens = there;
    bench_check(te_cache_begin(&cache, &b, &bench_ctx), "begin");
    b.batch = l.count, b.seq = 1, b.sequences = b.max_seqlen = 0, b.cu_seqlens = nullptr;
    bench_check(te_cache_begin(&cache, &b, &bench_ctx), "begin");
    bench_check(te_cache_check(&cache, &bench_ctx), "cache");
    bench_check(te_context_reserve(&bench_ctx, te_plan_workspace_bytes(plan, &m.model, l.count, &bench_ctx)), "workspace");
    void *x = bench_allocate((size_t)l.count * (size_t)plan->in * 2), *y = bench_allocate((size_t)l.count * (size_t)plan->out * 2);
    bench_check(te_fill_normal(x, TE_bf16, (int64_t)l.count * plan->in, 0, 1, 2, 1, &bench_ctx), "x");
    const double tokens = first.back() + l.count, row = (double)te__cache_token_bytes(&plan->op[0], TE_bf16);
    uint4 *read = (uint4 *)bench_allocate((size_t)(tokens * row)); // the plain kernel's
    bench_check(te_fill(&bench_ctx, read, 1, (size_t)(tokens * row)), "read");
    const auto run = [&](int) {
        bench_check(te_plan_infer(te_matrix(y, TE_bf16, l.count, plan->out), te_matrix(x, TE_bf16, l.count, plan->in), plan, &m.model, &b, &bench_ctx), "decode");
    };
    bench_result r = bench_time(run, tokens * row, 1e-9, tokens * row < 64e6 ? 20 : 4, bench_streams<1, 0>(read, read, (size_t)(tokens * row) / 16));
    r.flops = 0;
    bench_print(plan->name, "decode", l.text, page_rows ? std::to_string(page_rows) + " a page" : "contiguous", r, "a read");
    bench_release();
}
#define RUN(name, ...) decode<name>(name##_plan(), name##_bind, __VA_ARGS__)

int main(int argc, char **argv) {
    bench_open(argc, argv);
    const lengths one_1k = {"1 x 1k", 1, 1024, 1024}, one_32k = {"1 x 32k", 1, 32768, 32768}, one_128k = {"1 x 128k", 1, 131072, 131072};
    const lengths eight = {"8 x 8k", 8, 8192, 8192}, many = {"64 x 1k", 64, 1024, 1024}, most = {"256 x 1k", 256, 1024, 1024};
    const lengths mixed = {"64 x 128 to 2k", 64, 128, 1920};
    const lengths sixteen = {"16 x 8k", 16, 8192, 8192}, twice = {"128 x 1k", 128, 1024, 1024};
    for (const lengths &l : {one_1k, one_32k, one_128k, eight, sixteen, many, most, mixed}) RUN(group4_128, l, 0);
    for (const lengths &l : {one_32k, eight, many, mixed}) RUN(group4_128, l, 16);
    for (const lengths &l : {eight, sixteen, many, mixed}) {
        RUN(group1_128, l, 0), RUN(group2_128, l, 0), RUN(group5_128, l, 0), RUN(group7_128, l, 0), RUN(group8_128, l, 0);
        RUN(group4_64, l, 0), RUN(group8_64, l, 0), RUN(group4_256, l, 0);
    }
    const lengths one_4k = {"1 x 4k", 1, 4096, 4096}, many_4k = {"64 x 4k", 64, 4096, 4096}, mixed_4k = {"64 x 512 to 8k", 64, 512, 7680};
    for (const lengths &l : {one_1k, one_4k, one_32k, one_128k, eight, many, most, many_4k, mixed_4k}) RUN(latent16, l, 0);
    RUN(latent16, many_4k, 16), RUN(latent16, many_4k, 64), RUN(latent16, mixed_4k, 64);
    for (const lengths &l : {one_32k, eight, many_4k}) RUN(latent64, l, 0), RUN(latent128, l, 0);
#define RUN_8BIT(format)                                                                                                                     \
    for (const lengths &l : {one_1k, one_32k, one_128k, eight, sixteen, many, twice, most, mixed}) RUN(group4_128_##format, l, 0);             \
    for (const lengths &l : {eight, mixed}) RUN(group4_128_##format, l, 16);                                                                 \
    RUN(group1_128_##format, eight, 0), RUN(group8_128_##format, eight, 0), RUN(group16_128_##format, eight, 0);                               \
    RUN(group4_64_##format, eight, 0), RUN(group4_256_##format, eight, 0);
    RUN_8BIT(int8)
    RUN_8BIT(e4m3)
    return bench_close();
}
