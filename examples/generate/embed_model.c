/* embed_model.c -- sentence embeddings with a BERT from Hugging Face, such as all-MiniLM-L6-v2: for each text the mean
 * of the vectors of its tokens (or that of [CLS]), of length 1. It runs on a CPU or, built by nvcc, on a GPU. Sizes are
 * constants of the program: configure.py writes them out of the model's config.json.
 *
 *     examples/generate/configure.py all-MiniLM-L6-v2 >model.h
 *     gcc -O3 -march=native -fopenmp -DTE_CBLAS -DMODEL_CONFIG='"model.h"' -I. examples/generate/embed_model.c \
 *         examples/generate/tokenizer*.c -o embed -lopenblas -lpcre2-8 -lutf8proc -lm
 *     nvcc -O3 -gencode arch=compute_90a,code=sm_90a -DMODEL_CONFIG='"model.h"' -I. -x cu \
 *         examples/generate/embed_model.c examples/generate/tokenizer*.c -o embed -lcublasLt -lpcre2-8 -lutf8proc
 *     ./embed all-MiniLM-L6-v2 "How old are you?"             # a line of numbers
 *     ./embed all-MiniLM-L6-v2 <lines.txt >vectors.txt
 *     ./embed all-MiniLM-L6-v2 --query "How old are you?" <lines.txt     # lines, the most similar ones first
 *
 * A pass takes as many texts as fit into its rows, packed one behind the other (te_batch.cu_seqlens), without padding.
 */
#define PROGRAM "embed"

#include <math.h> /* sqrt */

#include "bert.h"      /* load_model, parts */
#include "program.h"   /* die, check, text */
#include "tokenizer.h" /* tokenizer_encode */

#ifndef PASS_ROWS /* tokens in one pass, which bounds the memory of activations */
#define PASS_ROWS (TE_CUDA ? 16384 : 512)
#endif
enum { ROWS = PASS_ROWS > MODEL_LONGEST ? PASS_ROWS : MODEL_LONGEST, DEFAULT_TOP = 10 };

typedef struct settings {
    const char *folder, *text, *query;
    int ids, top; /* ids: print numbers of tokens instead of embeddings */
} settings;

/* Lines, their embeddings and, with --query, their similarity. */
typedef struct line { char *text; size_t bytes; float similarity, vector[MODEL_HIDDEN]; } line;

/* The texts of a pass. Text i has the rows cu_seqlens[i] to cu_seqlens[i + 1], and its vector goes to line[i]. */
typedef struct pass {
    int32_t token[ROWS], cu_seqlens[ROWS + 1];
    line *line[ROWS];
    int count, longest;
} pass;

static settings options;
static tokenizer *words;
static pass now;
static int32_t *token_there, *cu_seqlens_there; /* in target memory, as are x */
static void *x[2];                              /* [ROWS, MODEL_HIDDEN]: what one list passes to the next */
static int64_t tokens_done;

static void make_arrays(void) {
    size_t workspace = 0;
    for (int i = 0; i < PARTS; i++) {
        const size_t needs = te_plan_workspace_bytes(parts[i].plan, &parts[i].model, ROWS, &ctx);
        if (needs > workspace) workspace = needs;
    }
    check(te_context_reserve(&ctx, workspace), "workspace");
    token_there = (int32_t *)target_memory(sizeof now.token);
    cu_seqlens_there = (int32_t *)target_memory(sizeof now.cu_seqlens);
    for (int i = 0; i < 2; i++) x[i] = target_memory((size_t)ROWS * MODEL_HIDDEN * sizeof(float));
}

/* ---- one pass ---------------------------------------------------------------------------------------------------- */

/* The vector of a text from those of its tokens, [rows, MODEL_HIDDEN]. */
static void pool(float *to, const float *of_tokens, int rows) {
    double square = 0;
    for (int k = 0; k < MODEL_HIDDEN; k++) {
        double sum = of_tokens[k];
        for (int i = 1; i < rows && MODEL_POOLING_MEAN; i++) sum += of_tokens[(size_t)i * MODEL_HIDDEN + k];
        to[k] = (float)(MODEL_POOLING_MEAN ? sum / rows : sum);
        square += (double)to[k] * to[k];
    }
    const double length = MODEL_NORMALIZE ? fmax(sqrt(square), 1e-12) : 1;
    for (int k = 0; k < MODEL_HIDDEN; k++) to[k] = (float)(to[k] / length);
}
/* Compute the vectors of the texts in `now`, and begin with none again. */
static void run_pass(void) {
    static float of_tokens[ROWS * MODEL_HIDDEN];
    const int rows = now.cu_seqlens[now.count];
    te_tensor in = te_none(), out = te_none();
    te_batch batch;
    if (!now.count) return;
    memset(&batch, 0, sizeof batch);
    check(te_copy(&ctx, token_there, now.token, (size_t)rows * sizeof *now.token), "tokens");
    check(te_copy(&ctx, cu_seqlens_there, now.cu_seqlens, (size_t)(now.count + 1) * sizeof *now.cu_seqlens), "tokens");
    batch.batch = 1, batch.seq = rows, batch.tokens = token_there;
    batch.sequences = now.count, batch.max_seqlen = now.longest, batch.cu_seqlens = cu_seqlens_there;
    for (int i = 0; i < PARTS; i++, in = out) {
        out = te_matrix(x[i % 2], TE_f32, rows, MODEL_HIDDEN);
        check(te_plan_infer(out, in, parts[i].plan, &parts[i].model, &batch, &ctx), "pass");
    }
    check(te_copy(&ctx, of_tokens, out.data, (size_t)rows * MODEL_HIDDEN * sizeof(float)), "pass");
    check(te_synchronize(&ctx), "pass");
    for (int i = 0; i < now.count; i++) {
        const int first = now.cu_seqlens[i];
        pool(now.line[i]->vector, of_tokens + (size_t)first * MODEL_HIDDEN, now.cu_seqlens[i + 1] - first);
    }
    tokens_done += rows, now.count = now.longest = 0;
}
/* The ids of a text, at most MODEL_LONGEST: of a longer text those at its end are left out, but for the last one, which
 * is [SEP]. Returns their number. */
static int encode(int32_t ids[MODEL_LONGEST], const char *p, size_t n) {
    int count = tokenizer_encode(words, p, n, 1, ids, MODEL_LONGEST);
    if (count > MODEL_LONGEST) {
        int32_t *all = (int32_t *)memory(NULL, (size_t)count * sizeof *all);
        (void)tokenizer_encode(words, p, n, 1, all, count);
        ids[MODEL_LONGEST - 1] = all[count - 1], count = MODEL_LONGEST;
        free(all);
    }
    if (count <= 0) die("a text cannot be encoded", "no memory, or no token");
    for (int i = 0; i < count; i++)
        if (ids[i] >= MODEL_VOCABULARY) die("the tokenizer has tokens that the model does not have", "");
    return count;
}
/* Take a text into the next pass; the pass before runs if the text does not fit. */
static void add(line *l) {
    int32_t ids[MODEL_LONGEST];
    const int count = encode(ids, l->text, l->bytes);
    if (now.cu_seqlens[now.count] + count > ROWS) run_pass();
    const int first = now.cu_seqlens[now.count];
    memcpy(now.token + first, ids, (size_t)count * sizeof *ids);
    now.line[now.count++] = l, now.cu_seqlens[now.count] = first + count;
    now.longest = (int)te_max(now.longest, count);
}

/* ---- what is printed --------------------------------------------------------------------------------------------- */

static void print_vector(const line *l) {
    for (int k = 0; k < MODEL_HIDDEN; k++) printf(k ? " %.9g" : "%.9g", (double)l->vector[k]);
    putchar('\n');
}
static void print_ids(const char *p, size_t n) {
    int32_t ids[MODEL_LONGEST];
    const int count = encode(ids, p, n);
    for (int i = 0; i < count; i++) printf(i ? " %d" : "%d", (int)ids[i]);
    putchar('\n');
}
static int by_similarity(const void *a, const void *b) {
    const float u = (*(line *const *)a)->similarity, v = (*(line *const *)b)->similarity;
    return u < v ? 1 : u > v ? -1 : 0;
}
/* Print the lines that are most similar to the query, by the cosine. */
static void print_similar(line **lines, int count, const line *query) {
    for (int i = 0; i < count; i++) {
        double dot = 0, a = 0, b = 0;
        for (int k = 0; k < MODEL_HIDDEN; k++) {
            const double u = query->vector[k], v = lines[i]->vector[k];
            dot += u * v, a += u * u, b += v * v;
        }
        lines[i]->similarity = (float)(dot / fmax(sqrt(a * b), 1e-12));
    }
    qsort(lines, (size_t)count, sizeof *lines, by_similarity);
    for (int i = 0; i < count && i < options.top; i++)
        printf("%.4f  %s\n", (double)lines[i]->similarity, lines[i]->text);
}

/* ---- command line ------------------------------------------------------------------------------------------------ */

static const char usage[] =
    "usage: embed FOLDER [OPTION]... [TEXT]     FOLDER: a BERT of Hugging Face\n"
    "  TEXT            prints its embedding, a line of numbers; without it one for each line of the standard input\n"
    "  --query TEXT    prints the lines of the standard input that are most similar to TEXT, with the cosine\n"
    "  --top N         with --query: how many lines, 10\n"
    "  --ids           prints tokens as numbers, and no embeddings\n";

static void read_arguments(char *const *argv) {
    options.top = DEFAULT_TOP;
    for (int i = 1; argv[i]; i++) {
        const char *name = argv[i], *value = argv[i + 1];
        if (!strcmp(name, "--help")) exit(fputs(usage, stdout) < 0);
        if (!strcmp(name, "--ids")) options.ids = 1;
        else if (!strcmp(name, "--top")) options.top = (int)number(value, 1, INT32_MAX, name), i++;
        else if (!strcmp(name, "--query")) {
            if (!(options.query = value)) die("a value is missing after", name);
            i++;
        } else if (!strncmp(name, "--", 2)) die("no such option (see --help)", name);
        else if (!options.folder) options.folder = name;
        else if (!options.text) options.text = name;
        else die("too many arguments (see --help)", name);
    }
    if (!options.folder) die("no model (see --help)", "");
    if (options.query && options.text) die("a text besides --query", options.text);
}
static line *new_line(const char *p, size_t n) {
    line *l = (line *)memory(NULL, sizeof *l);
    l->text = (char *)memory(NULL, n + 1);
    memcpy(l->text, p, n), l->text[n] = 0, l->bytes = n;
    return l;
}
static void run(void) {
    line **lines = NULL, *query = options.query ? new_line(options.query, strlen(options.query)) : NULL;
    text t = {NULL, 0, 0};
    int count = 0;
    const double start = seconds();
    if (query && !options.ids) add(query);
    for (int more = 1; more;) {
        if (options.text) append(&t, options.text, strlen(options.text)), more = 0;
        else if (!read_line(&t, stdin)) break;
        if (options.ids) {
            print_ids(t.p, t.n);
            continue;
        }
        if (!(count & (count - 1))) lines = (line **)memory(lines, 2 * ((size_t)count + 1) * sizeof *lines);
        lines[count] = new_line(t.p, t.n);
        add(lines[count++]);
    }
    run_pass();
    const double took = seconds() - start;
    if (query && !options.ids) print_similar(lines, count, query);
    else for (int i = 0; i < count; i++) print_vector(lines[i]);
    if (count) fprintf(stderr, "%d texts, %lld tokens, %.1f texts/s\n", count, (long long)tokens_done, count / took);
    if (query) free(query->text), free(query);
    for (int i = 0; i < count; i++) free(lines[i]->text), free(lines[i]);
    free(lines), free(t.p);
}

int main(int argc, char **argv) {
    char path[MAX_PATH], error[256];
    (void)argc;
    sleep_while_waiting(argv);
    read_arguments(argv);
    check(te_context_create(&ctx, 0, 1), "context");
    snprintf(path, sizeof path, "%s/tokenizer.json", options.folder);
    words = tokenizer_open(path, error);
    if (!words) die("tokenizer", error);
    check(load_model(options.folder, &ctx), "model");
    make_arrays();
    run();
    te_release(&ctx, token_there), te_release(&ctx, cu_seqlens_there), te_release(&ctx, x[0]), te_release(&ctx, x[1]);
    unload_model(&ctx);
    tokenizer_close(words);
    te_context_destroy(&ctx);
    return 0;
}
