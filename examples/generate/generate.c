/* generate.c -- continues a text with a GPT that train_gpt has trained, taking the likeliest byte each time. It runs on
 * a CPU or, built by nvcc, on a GPU. The program is small: it contains only the inference pass, and on the host it reads
 * the weights from the mapped file without a copy.
 *
 *     cc   -O3 -march=native -static -I. examples/generate/generate.c -o generate -lm
 *     nvcc -O3 -gencode arch=compute_90a,code=sm_90a -I. -x cu examples/generate/generate.c -o generate -lcublasLt
 *     ./generate gpt_out/checkpoint.safetensors "#ifndef "
 *     ./generate gpt_out/checkpoint.safetensors --bytes 200 <text
 *
 * -DGPT_SIZE=small or gpt2 builds it for another --size of train_gpt. With the weights linked into the program:
 *
 *     cc -O3 -march=native -static -DGPT_LINKED -DWEIGHTS='"gpt_out/checkpoint.safetensors"' -I. \
 *         examples/generate/generate.c examples/generate/weights.S -o generate -lm
 *     ./generate "#ifndef "
 */
#include <stdio.h>
#include <stdlib.h>

#include "te/infer.h"

/* ---- the model: the lists of train_gpt, for inference only ------------------------------------------------------- */

#ifndef GPT_DTYPE
#if TE_CUDA
#define GPT_DTYPE bf16
#else
#define GPT_DTYPE f32
#endif
#endif
#ifndef GPT_SIZE
#define GPT_SIZE tiny
#endif
/* (layers, hidden, heads, longest sequence, vocabulary) */
#define GPT_SIZE_tiny (4, 128, 2, 256, 256)
#define GPT_SIZE_small (6, 384, 6, 512, 256)
#define GPT_SIZE_gpt2 (12, 768, 12, 1024, 50304)

/* [lists] */
#define GPT_BLOCK(H, HEADS)                                                                              \
    (fork, x1), (layernorm, ln1, H), (linear, qkv, H, 3 * (H)), (bias, qkv_b, 3 * (H)),                  \
    (attention, attn, HEADS, HEADS, (H) / (HEADS), (cache, 1)),                                                     \
    (linear, proj, H, H), (bias, proj_b, H), (add, x1),                                                  \
    (fork, x2), (layernorm, ln2, H), (linear, fc1, H, 4 * (H)), (bias, fc1_b, 4 * (H)), (gelu, act),     \
    (linear, fc2, 4 * (H), H), (bias, fc2_b, H), (add, x2)
#define GPT_DEFINE(L, H, HEADS, T, V)                                                                    \
    enum { LAYERS = L, HIDDEN = H, LONGEST = T, VOCABULARY = V };                                        \
    TE_INFERENCE(embed, GPT_DTYPE, (embedding, wte, V, H), (positions, wpe, T, H))                       \
    TE_INFERENCE(block, GPT_DTYPE, GPT_BLOCK(H, HEADS))                                                  \
    TE_INFERENCE(head, GPT_DTYPE, (last_token, last), (layernorm, lnf, H), (tied_linear, lm, H, V),    \
                 (sample, next, V))
/* [lists] */
#define GPT_MAKE(size) GPT_MAKE_(size)
#define GPT_MAKE_(size) GPT_DEFINE size
#define GPT_SIZE_OF(size) TE_JOIN1(GPT_SIZE_, size)
GPT_MAKE(GPT_SIZE_OF(GPT_SIZE))

enum { BYTES = 256, MODELS = LAYERS + 2, DTYPE = TE_JOIN1(TE_, GPT_DTYPE), MAX_TEXT = 1 << 20 };

#ifdef GPT_LINKED
TE_EXTERN_C const char gpt_weights[], gpt_weights_end[]; /* weights.S */
#endif

static embed first;
static block blocks[LAYERS];
static head last;
static te_context ctx;

static void die(const char *what, const char *why) {
    fprintf(stderr, "generate: %s%s%s\n", what, *why ? ": " : "", why);
    exit(1);
}
static void check(te_status status, const char *what) {
    if (status != TE_OK) die(what, te_last_error(&ctx));
}
static void *target_memory(size_t bytes) {
    void *p = NULL;
    check(te_allocate(&ctx, &p, bytes), "memory");
    return p;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* Bind all models: to memory that is allocated here, or to none (te_weights_use then points them into the file). */
static void bind(int own) {
    check(embed_bind(&first, own ? target_memory(embed_param_bytes()) : NULL, &ctx), "bind");
    for (int i = 0; i < LAYERS; i++)
        check(block_bind(&blocks[i], own ? target_memory(block_param_bytes()) : NULL, &ctx), "bind");
    check(head_bind(&last, own ? target_memory(head_param_bytes()) : NULL, &ctx), "bind");
}
/* Use the file's weights where they lie, or copy them if the target, the dtype or the alignment does not allow that. */
static void take_weights(te_safetensors *file) {
    static char name[LAYERS][8];
    te_named_model models[MODELS];
    const char *size = te_safetensors_metadata(file, "size");
    if (size && strcmp(size, TE_STRING(GPT_SIZE)))
        die("compiled for the size " TE_STRING(GPT_SIZE) " (-DGPT_SIZE=..), the file has the size", size);
    models[0].name = "embed", models[0].model = &first.model;
    for (int i = 0; i < LAYERS; i++) {
        snprintf(name[i], sizeof name[i], "h%d", i);
        models[1 + i].name = name[i], models[1 + i].model = &blocks[i].model;
    }
    models[MODELS - 1].name = "head", models[MODELS - 1].model = &last.model;
    check(te_safetensors_verify(file, &ctx), "weights");
    bind(0);
    te_status status = te_weights_use(models, MODELS, file, &ctx);
    if (status == TE_ERROR_DEVICE || status == TE_ERROR_DTYPE || status == TE_ERROR_ALIGNMENT) {
        bind(1);
        status = te_weights_load(models, MODELS, file, &ctx);
    }
    check(status, "weights");
    check(te_tie(&last.lm.weight, &first.wte.weight, &ctx), "tie");
}
static void open_weights(te_safetensors *file, const char *path) {
#ifdef GPT_LINKED
    (void)path;
    check(te_safetensors_open_memory(file, gpt_weights, (size_t)(gpt_weights_end - gpt_weights), &ctx), "weights");
#else
    check(te_safetensors_map(file, path, &ctx), "weights");
#endif
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* [generate] */
static te_cache cache; /* keys and values of the bytes so far */

/* Appends `count` tokens to the cache, and chooses the next byte, the likeliest, into *next. tokens and next lie in the
 * target's memory and may be the same. x: two buffers of [count, hidden]; log_prob: one float. */
static void step(const int32_t *tokens, int count, int32_t *next, void *const x[2], const uint32_t *bytes_alone, void *log_prob) {
    te_sampling greedy; /* without a temperature */
    te_batch b;
    memset(&greedy, 0, sizeof greedy), memset(&b, 0, sizeof b);
    greedy.token = next, greedy.allowed = bytes_alone;
    b.batch = 1, b.seq = count, b.tokens = tokens, b.cache = &cache, b.sampling = &greedy;
    te_tensor now = te_matrix(x[0], (te_dtype)DTYPE, count, HIDDEN), to = te_matrix(x[1], (te_dtype)DTYPE, count, HIDDEN);
    check(te_cache_begin(&cache, &b, &ctx), "cache");
    check(embed_infer(now, te_none(), &first, &b, &ctx), "embedding");
    for (int i = 0; i < LAYERS; i++) {
        check(block_infer(to, now, &blocks[i], &b, &ctx), "block");
        const te_tensor was = now;
        now = to, to = was;
    }
    check(head_infer(te_matrix(log_prob, TE_f32, 1, 1), now, &last, &b, &ctx), "next byte");
}
/* [generate] */
/* A cache for one sequence of `seq` bytes. */
static void make_cache(int seq) {
    te_model *models[LAYERS];
    te_cache_config config = te_cache_defaults();
    for (int i = 0; i < LAYERS; i++) models[i] = &blocks[i].model;
    config.capacity = seq;
    const size_t bytes = te_cache_bytes(models, LAYERS, &config);
    check(te_cache_init(&cache, target_memory(bytes), bytes, models, LAYERS, &config, &ctx), "cache");
}

/* Print the prompt and its continuation. seq: how many bytes the model sees at once. When the cache is full, it is
 * filled again with the later half of its bytes, as train_gpt does. */
static void generate(const char *prompt, size_t length, int seq, long bytes) {
    static int32_t window[LONGEST];
    uint32_t bytes_alone[(VOCABULARY + 31) / 32] = {0}; /* the vocabulary may be larger */
    const size_t width = (size_t)seq * HIDDEN * te_dtype_bytes((te_dtype)DTYPE);
    const size_t kept = (size_t)te_min((int64_t)length, seq / 2);
    void *const x[2] = {target_memory(width), target_memory(width)}, *log_prob = target_memory(sizeof(float));
    int32_t *tokens = (int32_t *)target_memory(sizeof window);
    uint32_t *allowed = (uint32_t *)target_memory(sizeof bytes_alone);
    int n = 0, held = 0; /* of window[n] the cache holds so many */
    check(te_context_reserve(&ctx, embed_workspace_bytes(&first, seq, &ctx)), "workspace"); /* it only ever grows */
    check(te_context_reserve(&ctx, block_workspace_bytes(&blocks[0], seq, &ctx)), "workspace");
    check(te_context_reserve(&ctx, head_workspace_bytes(&last, seq, &ctx)), "workspace");
    make_cache(seq);
    memset(bytes_alone, 0xff, BYTES / 8);
    check(te_copy(&ctx, allowed, bytes_alone, sizeof bytes_alone), "bytes");
    for (size_t i = length - kept; i < length; i++) window[n++] = (unsigned char)prompt[i];
    if (!n) window[n++] = '\n';
    fwrite(prompt, 1, length, stdout);
    for (long i = 0; i < bytes; i++) {
        int32_t next;
        if (n - held > 1 || !held) check(te_copy(&ctx, tokens, window + held, (size_t)(n - held) * sizeof *window), "tokens");
        step(tokens, n - held, tokens, x, allowed, log_prob); /* from now on the next byte is the only token */
        check(te_copy(&ctx, &next, tokens, sizeof next), "next byte");
        check(te_synchronize(&ctx), "next byte");
        if (next < 0) die("the logits are not finite", "");
        putchar(next);
        fflush(stdout);
        held = n;
        if (n == seq) {
            n = seq / 2, held = 0;
            memmove(window, window + seq - n, (size_t)n * sizeof *window);
            check(te_cache_truncate(&cache, 0, 0, &ctx), "cache");
        }
        window[n++] = next;
    }
    check(te_cache_check(&cache, &ctx), "cache");
    putchar('\n');
}

static const char usage[] =
#ifdef GPT_LINKED
    "usage: generate [--bytes N] [--seq N] [PROMPT]\n"
#else
    "usage: generate FILE [--bytes N] [--seq N] [PROMPT]      FILE: a checkpoint of train_gpt\n"
#endif
    "  PROMPT      what the text begins with; without it the standard input\n"
    "  --bytes N   how many bytes follow, 200\n"
    "  --seq N     bytes that the model sees at once; as it was trained\n";

static long number(const char *text, long min, long max, const char *name) {
    char *end;
    const long n = text ? strtol(text, &end, 10) : 0;
    if (!text || *end || end == text || n < min || n > max) die("not a number, or out of range, after", name);
    return n;
}
int main(int argc, char **argv) {
    static char text[MAX_TEXT];
    const char *path = NULL, *prompt = NULL;
    long bytes = 200, seq = 0;
    te_safetensors file;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help")) return fputs(usage, stdout) < 0;
        if (!strcmp(argv[i], "--bytes")) bytes = number(argv[++i], 0, INT32_MAX, "--bytes");
        else if (!strcmp(argv[i], "--seq")) seq = number(argv[++i], 2, LONGEST, "--seq");
#ifndef GPT_LINKED
        else if (!path) path = argv[i];
#endif
        else if (!prompt) prompt = argv[i];
        else die("too many arguments (see --help)", argv[i]);
    }
#ifndef GPT_LINKED
    if (!path) die("no file of weights (see --help)", "");
#endif
    check(te_context_create(&ctx, 0, 1), "context");
    open_weights(&file, path);
    take_weights(&file);
    const char *trained = te_safetensors_metadata(&file, "seq");
    if (!seq) seq = trained ? number(trained, 2, LONGEST, "seq in the file") : LONGEST;
    size_t length = prompt ? strlen(prompt) : fread(text, 1, sizeof text, stdin);
    generate(prompt ? prompt : text, length, (int)seq, bytes);
    te_safetensors_close(&file);
    te_context_destroy(&ctx);
    return 0;
}
