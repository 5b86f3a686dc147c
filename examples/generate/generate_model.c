/* generate_model.c -- continues texts, or answers in a chat, with a model from Hugging Face or in a GGUF file: Llama 3,
 * Mistral, Qwen 2.5 and 3, Gemma 2 and 3, GPT-2 and, from Hugging Face, Mixtral, Qwen3-MoE, DeepSeek-V2 and V3, Phi-3, OLMo 2, SmolLM3 and
 * Pythia. It runs on a CPU or, built by nvcc, on a GPU. Sizes are constants of the program, which is compiled for one model: configure.py
 * writes them out of the model's config.json, or of the file.
 *
 *     examples/generate/configure.py Llama-3.2-1B-Instruct >model.h
 *     gcc -O3 -march=native -fopenmp -DTE_CBLAS -DMODEL_CONFIG='"model.h"' -I. examples/generate/generate_model.c \
 *         examples/generate/tokenizer*.c examples/generate/chat.c -o generate -lopenblas -lpcre2-8 -lutf8proc -lm
 *     nvcc -O3 -gencode arch=compute_90a,code=sm_90a -DMODEL_CONFIG='"model.h"' -I. -x cu \
 *         examples/generate/generate_model.c examples/generate/tokenizer*.c examples/generate/chat.c -o generate \
 *         -lcublasLt -lpcre2-8 -lutf8proc
 *     ./generate Llama-3.2-1B-Instruct "The capital of France is"
 *     ./generate Llama-3.2-1B-Instruct --chat
 *
 * A pass runs the lists of families.h over new tokens of some sequences: all tokens of new prompts (prefill), or one
 * token of each sequence (decode). The key-value cache has a slot for each sequence at work. A decode pass uploads
 * nothing while its sequences stay the same, so on a GPU it is one captured graph.
 */
#define PROGRAM "generate"

#include "chat.h"       /* chat_text */
#include "linked.h"     /* LINKED_FOLDER */
#include "load_model.h" /* load_model, parts */
#include "program.h"    /* die, check, text */
#include "tokenizer.h"  /* tokenizer_encode */

enum {
    MAX_SLOTS = 64, /* sequences in one pass */
    DEFAULT_CAPACITY = 8192
};
#ifndef PREFILL_ROWS /* rows of a pass; longer prompts take several passes. It bounds the memory of activations */
#define PREFILL_ROWS (TE_CUDA ? 2048 : 256)
#endif
enum { ROWS = PREFILL_ROWS > MAX_SLOTS ? PREFILL_ROWS : MAX_SLOTS };

typedef struct settings {
    const char *folder, *prompt, *batch, *system, *format;
    int chat, ids;               /* ids: print numbers of tokens instead of text */
    int tokens, capacity, slots; /* capacity: tokens of a sequence at most, its prompt included */
    int top_k;
    float temperature, top_p, min_p;
    uint64_t seed;
} settings;

static settings options;
static tokenizer *words;
static chat_format format;

/* ---- sequences --------------------------------------------------------------------------------------------------- */

/* A prompt and its continuation. Of ids[count] the first `prompt` are given, and the cache has the first `held`. */
typedef struct sequence {
    int32_t *ids;
    int prompt, count, held, limit; /* limit: of count */
    int slot, done;                 /* slot: of the cache; -1: none */
    uint64_t seed;
    tokenizer_stream decoder;
    text out;
    int prints;                     /* whether `out` is printed as it grows */
} sequence;

/* The tokens that end a text: those of config.json or generation_config.json or, if these name none, of the tokenizer;
 * with --chat also the one that ends a message. */
enum { MAX_ENDS = 64 };
static int32_t ends[MAX_ENDS];
static int end_count;

static void find_ends(void) {
    static const int32_t of_model[] = {MODEL_EOS}; /* -1: none */
    for (size_t i = 0; i < sizeof of_model / sizeof of_model[0] && end_count < MAX_ENDS - 1; i++)
        if (of_model[i] >= 0) ends[end_count++] = of_model[i];
    if (!end_count) end_count = (int)te_min(tokenizer_eos(words, ends, MAX_ENDS - 1), MAX_ENDS - 1);
    if (format != CHAT_none) ends[end_count++] = tokenizer_token_id(words, chat_end_token(format));
}
static int is_end(int32_t id) {
    for (int i = 0; i < end_count; i++)
        if (id == ends[i]) return 1;
    return 0;
}
static void encode(sequence *s, const char *p, size_t n, int add_special) {
    char says[128];
    const int count = tokenizer_encode(words, p, n, add_special, NULL, 0);
    if (count < 0) die("the prompt cannot be encoded", "a character without a token, or no memory");
    snprintf(says, sizeof says, "%d tokens, the capacity is %d (--capacity; %d at most)", count, options.capacity,
             MODEL_POSITIONS);
    if (count >= options.capacity) die("the prompt is too long", says);
    if (!count) die("the prompt is empty", "the model has no token that begins a text");
    s->ids = (int32_t *)memory(s->ids, (size_t)options.capacity * sizeof *s->ids);
    (void)tokenizer_encode(words, p, n, add_special, s->ids, count);
    for (int i = 0; i < count; i++)
        if (s->ids[i] >= MODEL_VOCABULARY) die("the tokenizer has tokens that the model does not have", "");
    s->prompt = s->count = count;
    s->limit = (int)te_min((int64_t)count + options.tokens, options.capacity);
}
static void encode_chat(sequence *s, const chat_message *messages, int count) {
    const size_t n = chat_text(format, messages, count, 1, NULL, 0);
    char *p = (char *)memory(NULL, n + 1);
    (void)chat_text(format, messages, count, 1, p, n + 1);
    encode(s, p, n, 0);
    free(p);
}
/* The tokens of a prompt or, with --chat, of a conversation's first message. */
static void encode_prompt(sequence *s, const char *p, size_t n) {
    chat_message messages[2];
    int count = 0;
    if (!options.chat) {
        encode(s, p, n, 1);
        return;
    }
    if (options.system) messages[count].role = "system", messages[count++].content = options.system;
    messages[count].role = "user", messages[count++].content = p;
    encode_chat(s, messages, count);
}
static void begin_sequence(sequence *s, uint64_t number, int prints) {
    memset(s, 0, sizeof *s);
    s->slot = -1, s->seed = options.seed + number, s->prints = prints;
}
static void put(sequence *s, const char *p, size_t n) {
    append(&s->out, p, n);
    if (s->prints) fwrite(p, 1, n, stdout), fflush(stdout);
}
static char *piece_memory(void) {
    static char *piece;
    return piece ? piece : (piece = (char *)memory(NULL, tokenizer_decode_capacity(words) + 16));
}
/* Append a token that the model has chosen. */
static void add_token(sequence *s, int32_t id) {
    char *piece = piece_memory();
    if (s->count == s->prompt) tokenizer_decode_begin(&s->decoder, words, 1);
    s->ids[s->count++] = id;
    s->done = is_end(id) || s->count >= s->limit;
    if (options.ids) put(s, piece, (size_t)sprintf(piece, s->count > s->prompt + 1 ? " %d" : "%d", (int)id));
    else if (!is_end(id)) put(s, piece, tokenizer_decode_next(&s->decoder, id, piece));
    if (s->done && !options.ids) put(s, piece, tokenizer_decode_end(&s->decoder, piece));
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

/* Arrays in target memory. Behind `token` each has an entry for each sequence of a pass. */
typedef struct arrays {
    int32_t *token; /* [ROWS]: the tokens of a pass, and then those that it has chosen */
    int32_t *slot, *cu_seqlens, *top_k;
    uint64_t *seed, *counter;
    float *temperature, *top_p, *min_p, *log_prob;
    void *x[2]; /* [ROWS, MODEL_HIDDEN]: what one list passes to the next */
    float *logits; /* [slots, MODEL_VOCABULARY] */
} arrays;

/* A decode pass over a number of sequences, with its graph. */
typedef struct decoding { te_batch batch; te_sampling sampling; te_graph graph; int passes, captured; } decoding;

typedef struct speed { int64_t tokens; double seconds; } speed;

static te_cache cache;
static arrays at;
static decoding decodings[MAX_SLOTS + 1];
static sequence *decoded[MAX_SLOTS]; /* the sequences that the arrays are of, if the last pass was a decode pass */
static int decoded_count;
static int slot_used[MAX_SLOTS];
static speed prefill_speed, decode_speed;

static void upload(void *to, const void *values, size_t bytes) {
    check(te_copy(&ctx, to, values, bytes), "upload");
}
static void make_arrays(int capacity) {
    te_model *models[MODEL_LAYERS];
    te_cache_config config = te_cache_defaults();
    int32_t top_k[MAX_SLOTS];
    float temperature[MAX_SLOTS], top_p[MAX_SLOTS], min_p[MAX_SLOTS];
    size_t workspace = 0;
    for (int i = 0; i < MODEL_LAYERS; i++) models[i] = &parts[1 + i].model;
    config.sequences = options.slots, config.capacity = capacity;
    const size_t bytes = te_cache_bytes(models, MODEL_LAYERS, &config);
    check(te_cache_init(&cache, target_memory(bytes), bytes, models, MODEL_LAYERS, &config, &ctx), "cache");
    for (int i = 0; i < PARTS; i++) {
        const int rows = i < HEAD ? (int)ROWS : options.slots;
        const size_t needs = te_plan_workspace_bytes(parts[i].plan, &parts[i].model, rows, &ctx);
        if (needs > workspace) workspace = needs;
    }
    check(te_context_reserve(&ctx, workspace), "workspace");
    at.token = (int32_t *)target_memory(ROWS * sizeof(int32_t));
    at.slot = (int32_t *)target_memory(MAX_SLOTS * sizeof(int32_t));
    at.cu_seqlens = (int32_t *)target_memory((MAX_SLOTS + 1) * sizeof(int32_t));
    at.top_k = (int32_t *)target_memory(sizeof top_k);
    at.seed = (uint64_t *)target_memory(MAX_SLOTS * sizeof(uint64_t));
    at.counter = (uint64_t *)target_memory(MAX_SLOTS * sizeof(uint64_t));
    at.temperature = (float *)target_memory(sizeof temperature), at.top_p = (float *)target_memory(sizeof top_p);
    at.min_p = (float *)target_memory(sizeof min_p), at.log_prob = (float *)target_memory(MAX_SLOTS * sizeof(float));
    for (int i = 0; i < 2; i++) at.x[i] = target_memory((size_t)ROWS * MODEL_HIDDEN * sizeof(float));
    at.logits = (float *)target_memory((size_t)options.slots * MODEL_VOCABULARY * sizeof(float));
    for (int i = 0; i < MAX_SLOTS; i++) {
        temperature[i] = options.temperature, top_p[i] = options.top_p, min_p[i] = options.min_p;
        top_k[i] = options.top_k;
    }
    upload(at.temperature, temperature, sizeof temperature), upload(at.top_p, top_p, sizeof top_p);
    upload(at.min_p, min_p, sizeof min_p), upload(at.top_k, top_k, sizeof top_k);
    check(te_synchronize(&ctx), "upload");
}
/* A batch of at.token with a sampling; filters that are off are null. */
static void make_batch(te_batch *b, te_sampling *s) {
    memset(b, 0, sizeof *b), memset(s, 0, sizeof *s);
    s->token = at.token, s->seed = at.seed, s->counter = at.counter;
    if (options.temperature > 0) s->temperature = at.temperature;
    if (options.top_k > 0) s->top_k = at.top_k;
    if (options.top_p < 1) s->top_p = at.top_p;
    if (options.min_p > 0) s->min_p = at.min_p;
    b->tokens = at.token, b->cache = &cache, b->slots = at.slot, b->sampling = s;
}
/* [pass] */
/* Run the model over the new tokens of a batch, and choose the next token of each of its `count` sequences. */
static te_status run_pass(const te_batch *b, int count) {
    const te_tensor logits = te_matrix(at.logits, TE_f32, count, MODEL_VOCABULARY);
    const te_tensor log_prob = te_matrix(at.log_prob, TE_f32, count, 1);
    te_batch choice; /* of the lists whose rows are sequences */
    te_tensor x = te_none(), y;
    memset(&choice, 0, sizeof choice);
    choice.batch = count, choice.seq = 1, choice.sampling = b->sampling;
    TE_TRY(te_cache_begin(&cache, b, &ctx));
    for (int i = 0; i < LAST; i++, x = y) {
        y = te_matrix(at.x[i % 2], TE_f32, b->batch * b->seq, MODEL_HIDDEN);
        TE_TRY(te_plan_infer(y, x, parts[i].plan, &parts[i].model, b, &ctx));
    }
    y = te_matrix(at.x[LAST % 2], (te_dtype)DTYPE, count, MODEL_HIDDEN);
    TE_TRY(te_plan_infer(y, x, parts[LAST].plan, &parts[LAST].model, b, &ctx));
    TE_TRY(te_plan_infer(logits, y, parts[HEAD].plan, &parts[HEAD].model, &choice, &ctx));
    return te_plan_infer(log_prob, logits, parts[CHOICE].plan, &parts[CHOICE].model, &choice, &ctx);
}
static te_status run_decoding(const te_graph *g, const void *arg, te_context *c) {
    const te_batch *b = (const te_batch *)arg;
    (void)g, (void)c;
    return run_pass(b, b->batch);
}
/* The first pass over so many sequences loads kernels, the second one is captured, and the others replay the graph. On
 * the host a replay calls run_decoding. */
static void run_decode_pass(int count) {
    decoding *d = &decodings[count];
    if (d->passes++ == 0) {
        make_batch(&d->batch, &d->sampling);
        d->batch.batch = count, d->batch.seq = 1;
        check(run_pass(&d->batch, count), "decode");
        return;
    }
    if (!d->captured) {
        const te_graph_spec spec = te_graph_spec_of("decode", run_decoding, &d->batch, 0, NULL, 0, NULL, 0);
        check(te_graph_capture(&d->graph, &spec, NULL, &ctx), "graph");
        d->captured = 1;
    }
    check(te_graph_replay(&d->graph, NULL, 0, &ctx), "decode");
}
/* [pass] */

/* Upload which slots the sequences have, and the state of their random numbers. */
static void upload_sequences(sequence *const *s, int count) {
    int32_t slot[MAX_SLOTS];
    uint64_t seed[MAX_SLOTS], counter[MAX_SLOTS];
    for (int i = 0; i < count; i++)
        slot[i] = s[i]->slot, seed[i] = s[i]->seed, counter[i] = (uint64_t)(s[i]->count - s[i]->prompt);
    upload(at.slot, slot, (size_t)count * sizeof *slot), upload(at.seed, seed, (size_t)count * sizeof *seed);
    upload(at.counter, counter, (size_t)count * sizeof *counter);
    check(te_synchronize(&ctx), "upload");
}
/* Take the tokens that a pass has chosen for those sequences whose tokens are all in the cache now. */
static void take_tokens(sequence *const *s, int count) {
    int32_t next[MAX_SLOTS];
    check(te_copy(&ctx, next, at.token, (size_t)count * sizeof *next), "next token");
    check(te_synchronize(&ctx), "next token");
    for (int i = 0; i < count; i++) {
        if (s[i]->held < s[i]->count) continue;
        if (next[i] < 0) check(te_cache_check(&cache, &ctx), "cache"), die("the logits are not finite", "");
        add_token(s[i], next[i]);
        if (s[i]->done) slot_used[s[i]->slot] = 0, s[i]->slot = -1;
    }
}
static int is_new(const sequence *s) { return s->count == s->prompt; }

/* A pass over tokens of the prompts that are not in the cache yet, as many as fit. Returns 0 if there are none. */
static int prefill(sequence *const *active, int count) {
    static int32_t token[ROWS];
    sequence *s[MAX_SLOTS];
    int32_t cu_seqlens[MAX_SLOTS + 1] = {0};
    te_batch batch;
    te_sampling sampling;
    int n = 0, rows = 0, longest = 0;
    for (int i = 0; i < count && rows < PREFILL_ROWS; i++) {
        if (!is_new(active[i])) continue;
        const int take = (int)te_min(active[i]->count - active[i]->held, PREFILL_ROWS - rows);
        memcpy(token + rows, active[i]->ids + active[i]->held, (size_t)take * sizeof *token);
        rows += take, longest = (int)te_max(longest, take);
        s[n++] = active[i], cu_seqlens[n] = rows;
    }
    if (!n) return 0;
    const double start = seconds();
    upload_sequences(s, n);
    upload(at.token, token, (size_t)rows * sizeof *token);
    upload(at.cu_seqlens, cu_seqlens, (size_t)(n + 1) * sizeof *cu_seqlens);
    make_batch(&batch, &sampling);
    batch.batch = 1, batch.seq = rows;
    batch.sequences = n, batch.max_seqlen = longest, batch.cu_seqlens = at.cu_seqlens;
    check(run_pass(&batch, n), "prefill");
    for (int i = 0; i < n; i++) s[i]->held += cu_seqlens[i + 1] - cu_seqlens[i];
    take_tokens(s, n);
    prefill_speed.tokens += rows, prefill_speed.seconds += seconds() - start;
    decoded_count = 0;
    return 1;
}
/* A pass over one token of each sequence. */
static void decode(sequence *const *active, int count) {
    const double start = seconds();
    int32_t token[MAX_SLOTS];
    if (count != decoded_count || memcmp(active, decoded, (size_t)count * sizeof *active)) {
        for (int i = 0; i < count; i++) token[i] = active[i]->ids[active[i]->held], decoded[i] = active[i];
        upload_sequences(active, count);
        upload(at.token, token, (size_t)count * sizeof *token);
        decoded_count = count;
    }
    run_decode_pass(count);
    for (int i = 0; i < count; i++) active[i]->held++;
    take_tokens(active, count);
    decode_speed.tokens += count, decode_speed.seconds += seconds() - start;
}
/* Continue all sequences. A sequence that is done leaves its slot to the next one that waits. */
static void run_sequences(sequence *all, int count) {
    for (;;) {
        sequence *active[MAX_SLOTS];
        int n = 0;
        for (int i = 0, slot = 0; i < count; i++) {
            if (all[i].done) continue;
            while (all[i].slot < 0 && slot < options.slots && slot_used[slot]) slot++;
            if (all[i].slot < 0 && slot < options.slots) {
                check(te_cache_truncate(&cache, slot, all[i].held, &ctx), "cache");
                all[i].slot = slot, slot_used[slot] = 1;
            }
            if (all[i].slot >= 0) active[n++] = &all[i];
        }
        if (!n) break;
        if (!prefill(active, n)) decode(active, n);
    }
    check(te_cache_check(&cache, &ctx), "cache");
}

/* ---- what is generated ------------------------------------------------------------------------------------------- */

static void report(const char *what, const speed *s) {
    fprintf(stderr, "%s %lld tokens", what, (long long)s->tokens);
    if (s->seconds > 0 && s->tokens) fprintf(stderr, ", %.1f tokens/s", (double)s->tokens / s->seconds);
}
static void report_speeds(void) {
    report("prefill", &prefill_speed), report("; decode", &decode_speed), fputs("\n", stderr);
}
/* The continuation of one prompt, printed token by token. */
static void continue_prompt(const char *p, size_t n) {
    sequence s;
    begin_sequence(&s, 0, 1);
    encode_prompt(&s, p, n);
    make_arrays(s.limit);
    run_sequences(&s, 1);
    putchar('\n');
    free(s.ids), free(s.out.p);
}
/* The continuations of a file's lines, a line each; in them a newline is \n and a backslash is doubled. */
static void continue_lines(void) {
    FILE *f = fopen(options.batch, "rb");
    sequence *all = NULL;
    text line = {NULL, 0, 0};
    int count = 0, longest = 1;
    if (!f) die("cannot open", options.batch);
    while (read_line(&line, f)) {
        all = (sequence *)memory(all, (size_t)(count + 1) * sizeof *all);
        begin_sequence(&all[count], (uint64_t)count, 0);
        encode_prompt(&all[count], line.p, line.n);
        longest = (int)te_max(longest, all[count++].limit);
    }
    fclose(f), free(line.p);
    if (!count) die("there are no prompts in", options.batch);
    options.slots = (int)te_min(options.slots, count);
    make_arrays(longest);
    run_sequences(all, count);
    for (int i = 0; i < count; i++) {
        for (size_t k = 0; k < all[i].out.n; k++)
            if (all[i].out.p[k] == '\n') fputs("\\n", stdout);
            else if (all[i].out.p[k] == '\\') fputs("\\\\", stdout);
            else putchar(all[i].out.p[k]);
        putchar('\n');
        free(all[i].ids), free(all[i].out.p);
    }
    free(all);
}
/* A conversation: each line of the standard input is a message. The tokens that the conversation has in common with the
 * last turn stay in the cache. */
static void converse(void) {
    chat_message *messages = NULL;
    int32_t *before = NULL;
    int count = 0, known = 0;
    text line = {NULL, 0, 0};
    sequence s;
    make_arrays(options.capacity);
    if (options.system) {
        messages = (chat_message *)memory(NULL, sizeof *messages);
        messages[0].role = "system", messages[0].content = options.system, count = 1;
    }
    for (int turn = 0; fputs("> ", stderr), read_line(&line, stdin); turn++) {
        messages = (chat_message *)memory(messages, (size_t)(count + 2) * sizeof *messages);
        char *copy = (char *)memory(NULL, line.n + 1);
        messages[count].role = "user", messages[count++].content = (char *)memcpy(copy, line.p, line.n + 1);
        begin_sequence(&s, (uint64_t)turn, 1);
        encode_chat(&s, messages, count);
        while (s.held < known && s.held < s.count - 1 && s.ids[s.held] == before[s.held]) s.held++;
        run_sequences(&s, 1);
        append(&s.out, "", 0);
        putchar('\n'), fflush(stdout);
        messages[count].role = "assistant", messages[count++].content = s.out.p;
        free(before), before = s.ids, known = s.held;
    }
    fputs("\n", stderr);
    for (int i = options.system ? 1 : 0; i < count; i++) free((void *)(uintptr_t)messages[i].content);
    free(messages), free(before), free(line.p);
}

/* ---- command line ------------------------------------------------------------------------------------------------ */

#if MODEL_GGUF
#define MODEL_PATH "FILE.gguf"
#define MODEL_PATH_MEANS "FILE.gguf: a model in a GGUF file"
#else
#define MODEL_PATH "FOLDER"
#define MODEL_PATH_MEANS "FOLDER: a model of Hugging Face"
#endif
static const char usage[] =
    "usage: generate " MODEL_PATH " [OPTION]... [PROMPT]      " MODEL_PATH_MEANS ", of family " MODEL_TYPE "\n"
    "  PROMPT            the text to continue; without it the standard input\n"
    "  --chat            PROMPT is a message, which the model answers; without it each line of the standard input is\n"
    "  --system TEXT     the system message of --chat\n"
    "  --format NAME     of --chat, if the tokenizer does not tell: llama3, qwen2, qwen3, smollm, phi3, gemma, mistral\n"
    "  --batch FILE      a prompt (or a message) in each line, all at once; prints a line for each\n"
    "  --slots N         with --batch: prompts at work at a time, 8\n"
    "  --tokens N        tokens to generate at most, 256\n"
    "  --capacity N      tokens of a sequence at most, its prompt included\n"
    "  --temperature T   0: always the likeliest token, which is the default\n"
    "  --top-k N         sample from the N likeliest tokens; 0: from all\n"
    "  --top-p P         sample from the likeliest tokens that have probability P together\n"
    "  --min-p P         sample from tokens with at least P of the likeliest one's probability\n"
    "  --seed N          of the random numbers, 0\n"
    "  --ids             print tokens as numbers\n";

/* Read option argv[i], whose value is argv[i + 1]. Returns the number of arguments that it has, 0 if it is none. */
static int read_option(char *const *argv) {
    const char *name = argv[0], *value = argv[1];
    if (!strcmp(name, "--chat")) return options.chat = 1;
    if (!strcmp(name, "--ids")) return options.ids = 1;
    if (!strcmp(name, "--tokens")) options.tokens = (int)number(value, 1, INT32_MAX, name);
    else if (!strcmp(name, "--capacity")) options.capacity = (int)number(value, 2, MODEL_POSITIONS, name);
    else if (!strcmp(name, "--slots")) options.slots = (int)number(value, 1, MAX_SLOTS, name);
    else if (!strcmp(name, "--seed")) options.seed = (uint64_t)number(value, 0, INT64_MAX, name);
    else if (!strcmp(name, "--top-k")) options.top_k = (int)number(value, 0, MODEL_VOCABULARY, name);
    else if (!strcmp(name, "--temperature")) options.temperature = (float)real(value, 0, 100, name);
    else if (!strcmp(name, "--top-p")) options.top_p = (float)real(value, 0, 1, name);
    else if (!strcmp(name, "--min-p")) options.min_p = (float)real(value, 0, 1, name);
    else {
        const char **word = !strcmp(name, "--batch")    ? &options.batch
                            : !strcmp(name, "--system") ? &options.system
                            : !strcmp(name, "--format") ? &options.format : NULL;
        if (!word) return 0;
        if (!value) die("a value is missing after", name);
        *word = value;
    }
    return 2;
}
static void read_arguments(char *const *argv) {
#ifdef MODEL_LINKED
    options.folder = LINKED_FOLDER;
#endif
    options.tokens = 256, options.slots = 8, options.top_p = 1;
    options.capacity = (int)te_min(MODEL_POSITIONS, DEFAULT_CAPACITY);
    for (int i = 1, n; argv[i]; i += n) {
        if (!strcmp(argv[i], "--help")) exit(fputs(usage, stdout) < 0);
        n = read_option(argv + i);
        if (!n && !strncmp(argv[i], "--", 2)) die("no such option (see --help)", argv[i]);
        if (n) continue;
        n = 1;
        if (!options.folder) options.folder = argv[i];
        else if (!options.prompt) options.prompt = argv[i];
        else die("too many arguments (see --help)", argv[i]);
    }
    if (!options.folder) die("no model (see --help)", "");
    if (options.batch && options.prompt) die("a prompt besides --batch", options.prompt);
    if (options.system && !options.chat) die("--system without --chat", "");
    if (options.format && !options.chat) die("--format without --chat", "");
    if (!options.batch) options.slots = 1;
}
static void open_tokenizer(void) {
    char path[MAX_PATH], error[256];
    snprintf(path, sizeof path, MODEL_GGUF ? "%s" : "%s/tokenizer.json", options.folder);
    words = tokenizer_open(path, error);
    if (!words) die("tokenizer", error);
    if (options.chat) format = options.format ? chat_format_named(options.format) : chat_format_of(words);
    if (options.chat && format == CHAT_none)
        die(options.format ? "no such chat format" : "the tokenizer has no special tokens of a known chat format",
            options.format ? options.format : "");
    find_ends();
}

int main(int argc, char **argv) {
    text prompt = {NULL, 0, 0};
    (void)argc;
    sleep_while_waiting(argv);
    read_arguments(argv);
    check(te_context_create(&ctx, 0, 1), "context");
    open_tokenizer();
    const double start = seconds();
    check(load_model(options.folder, &ctx), "model");
    fprintf(stderr, MODEL_TYPE ", %d layers, loaded in %.1f s\n", MODEL_LAYERS, seconds() - start);
#ifdef MODEL_WEIGHTS
    print_casts(stderr);
#endif
    if (options.batch) continue_lines();
    else if (options.chat && !options.prompt) converse();
    else {
        if (options.prompt) append(&prompt, options.prompt, strlen(options.prompt));
        else read_all(&prompt, stdin, "the standard input");
        continue_prompt(prompt.p, prompt.n);
    }
    report_speeds();
    for (int i = 0; i <= MAX_SLOTS; i++)
        if (decodings[i].captured) te_graph_destroy(&decodings[i].graph);
    unload_model(&ctx);
    tokenizer_close(words);
    te_context_destroy(&ctx);
    return 0;
}
