/* gemm_tune_file.h -- report the results of autotuning, write them to a file, and read them from a file. For an example
 * see gemm.h.
 *
 * The file is text: a header, a line for each product (gemm) and each step that was timed, and a checksum. The file is
 * valid only for the device and the version of cuBLASLt that its header names. (Lines that are wrapped here are one
 * line in the file.)
 *     te-gemm 2
 *     device <multiprocessors> <name>
 *     cublaslt <version>
 *     gemm <m> <n> <k> <a: n|t><b: n|t> <operands> <dtype of D> <epilogue> <beta: 0|1> <leading dimensions of A, B, D>
 *          <alignment> <candidates> <ns of the first> <ns of the fastest> <8 words of the algorithm>
 *     step <pattern> <forward|infer> <m> <n> <k> <dtype> <stored outputs> <strategy: 0|1|2|3> <ns of each strategy>
 *     end <lines before> <checksum>
 * operands: for a 16-bit or f32 product its dtype. For an FP8 product the dtypes of A, B and the bias, then .fast if
 * fast accumulation is on: e4m3*e5m2.bf16.fast; then the scalings if they are not tensorwise:
 * e4m3*e4m3.bf16.1x128*128x128. In a `step` line whose GEMM has FP8 operands, these follow the pattern's name:
 * linear_bias_gelu:e4m3*e4m3.bf16.fast. strategy: the number of the fastest strategy in te_gemm_strategy; the times of
 * the strategies are listed in the order of that enum.
 *
 * All lines of a file are checked before the context is changed, so a file with an error has no effect.
 */
#ifndef TE_GEMM_TUNE_FILE_H
#define TE_GEMM_TUNE_FILE_H

#include "../../core/impl/file.h" /* te__new_file, te__file_read */
#include "gemm_autotune.h"   /* te__gemm_next_tuned, te__gemm_choices */

/* ---- the report -------------------------------------------------------------------------------------------------- */

/* Copies the results of the first `capacity` products that were timed, in the order of their first use, to `list`,
 * which may be null. Returns how many products were timed, which may be more than `capacity`. */
TE_API int te_gemm_report(te_gemm_tuned *list, int capacity, te_context *ctx) {
    int n = 0, at = 0;
    if (!ctx || te__check_target(ctx, "te_gemm_report") != TE_OK) return 0;
    for (const te_gemm_tuned *t; (t = te__gemm_next_tuned(&at, ctx)) != 0; n++)
        if (list && n < capacity) list[n] = *t;
    return n;
}
TE_API int te__gemm_was_timed(const te_gemm_choice *c) { return c->ns[c->strategy] > 0; }
/* Copies the timing results of fused patterns, and of FP8 GEMMs that are not part of a pattern, to `list`, but at most
 * `capacity` results. `list` may be null. Returns how many results the context holds, which may be more than
 * `capacity`. */
TE_API int te_gemm_report_choices(te_gemm_choice *list, int capacity, te_context *ctx) {
    int n = 0, *count = 0;
    if (!ctx || te__check_target(ctx, "te_gemm_report_choices") != TE_OK) return 0;
    const te_gemm_choice *all = te__gemm_choices(&count, ctx);
    for (int i = 0; count && i < *count; i++)
        if (te__gemm_was_timed(&all[i]) && n++ < capacity && list) list[n - 1] = all[i];
    return n;
}
/* Print the results of tuning (of te_gemm_report and te_gemm_report_choices) as two tables, with times in microseconds.
 * The column `ratio` has the time of the fastest candidate, divided by the time of the first candidate (the candidate
 * that would run without tuning). */
TE_API void te_gemm_print(FILE *f, te_context *ctx) {
    static const char *const strategies[] = {"bare", "bias", "epilogue", "custom"};
    int at = 0, *count = 0;
    if (!f || !ctx || te__check_target(ctx, "te_gemm_print") != TE_OK) return;
    fprintf(f, "%8s %8s %8s  ab  dtype out   %-13s beta  tried  first us   best us  ratio\n", "m", "n", "k",
            "epilogue");
    for (const te_gemm_tuned *t; (t = te__gemm_next_tuned(&at, ctx)) != 0;)
        fprintf(f, "%8lld %8lld %8lld  %c%c  %-5s %-5s %-13s %4d  %5d %9.2f %9.2f  %.3f\n", (long long)t->m,
                (long long)t->n, (long long)t->k, t->trans_a ? 't' : 'n', t->trans_b ? 't' : 'n',
                te__operands_text_of(t).text, te_dtype_name(t->out), te__epilogue_name(t->epilogue), t->beta,
                t->candidates,
                (double)t->first_ns / 1e3, (double)t->best_ns / 1e3, (double)t->best_ns / (double)t->first_ns);
    const te_gemm_choice *c = te__gemm_choices(&count, ctx);
    if (count && *count)
        fprintf(f, "%8s %8s %8s  dtype pass     bare us   bias us  epilogue    custom  taken     pattern\n", "m", "n",
                "k");
    for (int i = 0; count && i < *count; i++) {
        if (!te__gemm_was_timed(&c[i])) continue;
        fprintf(f, "%8lld %8lld %8lld  %-5s %-7s %9.2f %9.2f %9.2f %9.2f  %-8s  %s\n", (long long)c[i].m,
                (long long)c[i].n, (long long)c[i].k, te_dtype_name(c[i].dtype), c[i].training ? "forward" : "infer",
                (double)c[i].ns[0] / 1e3, (double)c[i].ns[1] / 1e3, (double)c[i].ns[2] / 1e3, (double)c[i].ns[3] / 1e3,
                strategies[c[i].strategy], c[i].pattern);
    }
}

/* ---- the format -------------------------------------------------------------------------------------------------- */

enum {
    TE__TUNE_FORMAT = 2,
    /* the largest number of characters in a line that is read; lines that are written have at most some 350 */
    TE__TUNE_LINE = 640,
    TE__TUNE_FILE = 1 << 20, /* the largest number of bytes in a file */
    TE__TUNE_WORDS = 24      /* the largest number of words in a line */
};
/* the largest time that a file may state: 2^40 ns are some 18 minutes, and no candidate takes longer */
static const int64_t te__tune_max_ns TE_UNUSED = (int64_t)1 << 40;

/* Returns the checksum `sum`, extended by n more bytes (FNV-1a, by Fowler, Noll and Vo). The checksum detects
 * accidental changes of a file, but not deliberate ones. */
TE_API uint64_t te__tune_checksum(uint64_t sum, const char *p, size_t n) {
    for (size_t i = 0; i < n; i++) sum = (sum ^ (uint8_t)p[i]) * 1099511628211ull;
    return sum;
}
static const uint64_t te__tune_checksum_start TE_UNUSED = 14695981039346656037ull;

/* Writes the first three lines of a file for this device and this version of cuBLASLt to `text`. */
TE_API te_status te__tune_header(char *text, size_t bytes, te_context *ctx) {
    char name[280];
    size_t version = 0;
    TE_TRY(te__gemm_identify(name, sizeof name, &version, ctx));
    for (char *p = name; *p; p++)
        if (*p < ' ' || *p > '~') *p = '?';
    snprintf(text, bytes, "te-gemm %d\ndevice %s\ncublaslt %zu\n", (int)TE__TUNE_FORMAT, name, version);
    return TE_OK;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

typedef struct te__tune_writer { te__new_file file; uint64_t checksum; int lines; } te__tune_writer;
TE_API te_status te__tune_write(te__tune_writer *w, const char *line, te_context *ctx) {
    w->checksum = te__tune_checksum(w->checksum, line, strlen(line));
    w->lines++;
    return te__new_file_write(&w->file, line, strlen(line), ctx);
}
TE_API te_status te__tune_write_product(te__tune_writer *w, const te_gemm_tuned *t, te_context *ctx) {
    char line[TE__TUNE_LINE];
    int n = snprintf(line, sizeof line, "gemm %lld %lld %lld %c%c %s %s %s %d %lld %lld %lld %d %d %lld %lld",
                     (long long)t->m, (long long)t->n, (long long)t->k, t->trans_a ? 't' : 'n', t->trans_b ? 't' : 'n',
                     te__operands_text_of(t).text, te_dtype_name(t->out), te__epilogue_name(t->epilogue), t->beta,
                     (long long)(t->trans_a ? t->m : t->k), (long long)(t->trans_b ? t->k : t->n), (long long)t->n,
                     (int)TE_ACCESS, t->candidates, (long long)t->first_ns, (long long)t->best_ns);
    for (int i = 0; i < 8; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, " %016llx", (unsigned long long)t->algo[i]);
    snprintf(line + n, sizeof line - (size_t)n, "\n");
    return te__tune_write(w, line, ctx);
}
TE_API te_status te__tune_write_choice(te__tune_writer *w, const te_gemm_choice *c, te_context *ctx) {
    char line[TE__TUNE_LINE];
    snprintf(line, sizeof line, "step %s %s %lld %lld %lld %s %u %d %lld %lld %lld %lld\n", c->pattern,
             c->training ? "forward" : "infer", (long long)c->m, (long long)c->n, (long long)c->k,
             te_dtype_name(c->dtype), c->stored_outputs, (int)c->strategy, (long long)c->ns[0], (long long)c->ns[1],
             (long long)c->ns[2], (long long)c->ns[3]);
    return te__tune_write(w, line, ctx);
}
TE_API te_status te__tune_write_all(te__tune_writer *w, te_context *ctx) {
    char line[TE__TUNE_LINE];
    int at = 0, *count = 0;
    TE_TRY(te__tune_header(line, sizeof line, ctx));
    TE_TRY(te__tune_write(w, line, ctx));
    w->lines = 3;
    for (const te_gemm_tuned *t; (t = te__gemm_next_tuned(&at, ctx)) != 0;) TE_TRY(te__tune_write_product(w, t, ctx));
    const te_gemm_choice *c = te__gemm_choices(&count, ctx);
    for (int i = 0; count && i < *count; i++)
        if (te__gemm_was_timed(&c[i])) TE_TRY(te__tune_write_choice(w, &c[i], ctx));
    snprintf(line, sizeof line, "end %d %016llx\n", w->lines, (unsigned long long)w->checksum);
    return te__new_file_write(&w->file, line, strlen(line), ctx);
}
/* Write the results of tuning to the file `path`. An existing file is replaced only after the new one was written
 * completely. Errors: TE_ERROR_IO. */
TE_API te_status te_gemm_save(const char *path, te_context *ctx) {
    te__tune_writer w;
    TE_TRY(te__check_target(ctx, "te_gemm_save"));
    TE_REQUIRE(path, ctx, TE_ERROR_NULL, "te_gemm_save: the path is null");
    TE_TRY(te__new_file_open(&w.file, path, ctx));
    w.checksum = te__tune_checksum_start, w.lines = 0;
    return te__new_file_close(&w.file, te__tune_write_all(&w, ctx), ctx);
}

/* ---- reading: words of a line ------------------------------------------------------------------------------------ */

/* The state while a tuning file is read. The file's results are collected in `product` and `choice`, and are stored in
 * the context only after the last line was checked. */
typedef struct te__tune_reader {
    const char *path;
    te_context *ctx;
    char *text; /* the whole file */
    size_t bytes, at;
    uint64_t checksum; /* the checksum of the lines read so far */
    int line;          /* the number of the current line, from 1 */
    char *word[TE__TUNE_WORDS];
    int words;
    int products, choices;
    int added; /* how many products are in the file but not yet in the context */
    te_gemm_tuned product[TE_GEMM_MAX_PLANS];
    te_gemm_choice choice[TE_GEMM_MAX_CHOICES];
} te__tune_reader;

#define TE__TUNE_REQUIRE(cond, r, status, text, ...) TE_REQUIRE(cond, (r)->ctx, status, "%.120s: line %d: " text, \
    (r)->path, (r)->line, __VA_ARGS__)

/* Read the next line, and split it into words at single blanks. A `device` line is not split. */
TE_API te_status te__tune_next(te__tune_reader *r) {
    r->line++, r->words = 0;
    const size_t from = r->at;
    char *line = r->text + from;
    size_t n = 0;
    for (; from + n < r->bytes && line[n] != '\n'; n++) {
        TE__TUNE_REQUIRE(line[n] >= ' ' && line[n] <= '~', r, TE_ERROR_FORMAT, "byte %zu is no text", from + n);
        TE__TUNE_REQUIRE(n < TE__TUNE_LINE, r, TE_ERROR_FORMAT, "is longer than %d characters", (int)TE__TUNE_LINE);
    }
    TE__TUNE_REQUIRE(from + n < r->bytes, r, TE_ERROR_FORMAT, "the file ends %s",
                     n ? "within the line" : "before the line that begins with end");
    r->at = from + n + 1;
    if (strncmp(line, "end ", 4)) r->checksum = te__tune_checksum(r->checksum, line, n + 1);
    line[n] = 0;
    r->word[0] = line;
    if (!strncmp(line, "device ", 7)) return r->words = 1, TE_OK; /* the device's name may contain blanks */
    for (char *p = line; p;) {
        TE__TUNE_REQUIRE(r->words < TE__TUNE_WORDS, r, TE_ERROR_FORMAT, "has more than %d words", (int)TE__TUNE_WORDS);
        r->word[r->words++] = p;
        p = strchr(p, ' ');
        if (p) *p++ = 0;
    }
    return TE_OK;
}
TE_API te_status te__tune_count(te__tune_reader *r, int words) {
    TE__TUNE_REQUIRE(r->words == words, r, TE_ERROR_FORMAT, "has %d words, a line that begins with %.16s has %d",
                     r->words, r->word[0], words);
    return TE_OK;
}
/* Parse word i of the line, which must be a decimal number from `min` to `max` without leading zeros. name: the word's
 * name in error texts. */
TE_API te_status te__tune_number(int64_t *v, te__tune_reader *r, int i, const char *name, int64_t min, int64_t max) {
    const char *p = r->word[i];
    int64_t n = 0;
    int good = *p && (*p != '0' || !p[1]);
    for (; good && *p; p++)
        good = *p >= '0' && *p <= '9' && n <= (INT64_MAX - 9) / 10, n = good ? 10 * n + (*p - '0') : 0;
    TE__TUNE_REQUIRE(good && n >= min && n <= max, r, TE_ERROR_FORMAT,
                     "%s is %.32s, it must be a number from %lld to %lld", name, r->word[i], (long long)min,
                     (long long)max);
    *v = n;
    return TE_OK;
}
/* Parse word i of the line, which must consist of 16 hexadecimal digits. name: the word's name in error texts. */
TE_API te_status te__tune_hex(uint64_t *v, te__tune_reader *r, int i, const char *name) {
    const char *p = r->word[i];
    int n = 0;
    for (*v = 0; n < 17 && ((*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'f')); p++, n++)
        *v = *v << 4 | (uint64_t)(*p <= '9' ? *p - '0' : *p - 'a' + 10);
    TE__TUNE_REQUIRE(n == 16 && !*p, r, TE_ERROR_FORMAT, "%s is %.32s, it must be 16 hexadecimal digits", name,
                     r->word[i]);
    return TE_OK;
}
TE_API te_status te__tune_dtype(te_dtype *t, te__tune_reader *r, int i) {
    static const te_dtype all[] = {TE_f32, TE_bf16, TE_f16};
    for (int k = 0; k < 3; k++)
        if (!strcmp(r->word[i], te_dtype_name(all[k]))) return *t = all[k], TE_OK;
    TE__TUNE_REQUIRE(0, r, TE_ERROR_FORMAT, "the dtype is %.32s, it must be f32, bf16 or f16", r->word[i]);
    return TE_OK;
}
/* Parse word i as the operands of a product: compare it with the text (te__operands_text_of) of every combination of
 * FP8 operands, and then with the 16-bit and f32 dtypes. */
TE_API te_status te__tune_operands(te_gemm_tuned *t, te__tune_reader *r, int i) {
    static const te_dtype dtypes[] = {TE_f32, TE_bf16, TE_f16},
                          pairs[][2] = {{TE_e4m3, TE_e4m3}, {TE_e4m3, TE_e5m2}, {TE_e5m2, TE_e4m3}};
    static const te_scaling scalings[][2] = {{TE_SCALING_TENSORWISE, TE_SCALING_TENSORWISE},
                                             {TE_SCALING_ROWWISE, TE_SCALING_ROWWISE},
                                             {TE_SCALING_BLOCKWISE_1D, TE_SCALING_BLOCKWISE_2D},
                                             {TE_SCALING_BLOCKWISE_1D, TE_SCALING_BLOCKWISE_1D}};
    /* k enumerates the combinations of bias dtype, pair of FP8 dtypes, fast accumulation and scalings */
    for (int k = 0; k < 3 * 3 * 2 * 4; k++) {
        t->dtype = dtypes[k % 3], t->a = pairs[k / 3 % 3][0], t->b = pairs[k / 3 % 3][1], t->fast = k / 9 % 2;
        t->a_scaling = scalings[k / 18][0], t->b_scaling = scalings[k / 18][1];
        if (!strcmp(r->word[i], te__operands_text_of(t).text)) return TE_OK;
    }
    t->fast = 0, t->a_scaling = t->b_scaling = TE_SCALING_NONE;
    TE_TRY(te__tune_dtype(&t->dtype, r, i));
    t->a = t->b = t->dtype;
    return TE_OK;
}
TE_API te_status te__tune_sizes(int64_t *m, int64_t *n, int64_t *k, te__tune_reader *r, int i) {
    TE_TRY(te__tune_number(m, r, i, "m", 1, INT32_MAX));
    TE_TRY(te__tune_number(n, r, i + 1, "n", 1, INT32_MAX));
    return te__tune_number(k, r, i + 2, "k", 1, INT32_MAX);
}

/* ---- reading: lines ---------------------------------------------------------------------------------------------- */

TE_API te_status te__tune_parse_product(te__tune_reader *r) {
    TE_TRY(te__tune_count(r, TE__TUNE_WORDS));
    TE__TUNE_REQUIRE(r->products < TE_GEMM_MAX_PLANS, r, TE_ERROR_FORMAT, "there are more than %d products",
                     (int)TE_GEMM_MAX_PLANS);
    te_gemm_tuned *t = &r->product[r->products];
    int64_t v, epilogue = 0;
    const char *ab = r->word[4];
    memset(t, 0, sizeof *t);
    TE_TRY(te__tune_sizes(&t->m, &t->n, &t->k, r, 1));
    TE__TUNE_REQUIRE((ab[0] == 'n' || ab[0] == 't') && (ab[1] == 'n' || ab[1] == 't') && !ab[2], r, TE_ERROR_FORMAT,
                     "the transposes are %.32s, they must be nn, nt, tn or tt", ab);
    t->trans_a = ab[0] == 't', t->trans_b = ab[1] == 't';
    TE_TRY(te__tune_operands(t, r, 5));
    TE_TRY(te__tune_dtype(&t->out, r, 6));
    TE__TUNE_REQUIRE(t->out == t->dtype || t->out == TE_f32, r, TE_ERROR_FORMAT, "a product of %s in %s",
                     te_dtype_name(t->dtype), te_dtype_name(t->out));
    while (epilogue < TE_EPILOGUE_COUNT && strcmp(r->word[7], te__epilogue_name((te_epilogue)epilogue))) epilogue++;
    TE__TUNE_REQUIRE(epilogue < TE_EPILOGUE_COUNT, r, TE_ERROR_FORMAT, "there is no epilogue %.32s", r->word[7]);
    t->epilogue = (te_epilogue)epilogue;
    TE_TRY(te__tune_number(&v, r, 8, "beta", 0, 1));
    t->beta = (int)v;
    const int64_t lda = t->trans_a ? t->m : t->k, ldb = t->trans_b ? t->k : t->n;
    TE_TRY(te__tune_number(&v, r, 9, "the leading dimension of A", lda, lda));
    TE_TRY(te__tune_number(&v, r, 10, "the leading dimension of B", ldb, ldb));
    TE_TRY(te__tune_number(&v, r, 11, "the leading dimension of D", t->n, t->n));
    TE_TRY(te__tune_number(&v, r, 12, "the alignment", TE_ACCESS, TE_ACCESS));
    TE_TRY(te__tune_number(&v, r, 13, "the count of candidates", 1, 1 << 20));
    t->candidates = (int)v;
    TE_TRY(te__tune_number(&t->first_ns, r, 14, "the time of the first", 1, te__tune_max_ns));
    TE_TRY(te__tune_number(&t->best_ns, r, 15, "the time of the best", 1, te__tune_max_ns));
    for (int i = 0; i < 8; i++) TE_TRY(te__tune_hex(&t->algo[i], r, 16 + i, "a word of the algorithm"));
    return TE_OK;
}
/* Read a `gemm` line. The function returns an error if an earlier line of the file has the same product, if cuBLASLt
 * does not propose the line's algorithm for this product, or if the context has no space for so many products. */
TE_API te_status te__tune_read_product(te__tune_reader *r) {
    TE_TRY(te__tune_parse_product(r));
    const te_gemm_tuned *t = &r->product[r->products];
    int added = 0;
    for (int i = 0; i < r->products; i++)
        TE__TUNE_REQUIRE(!te__gemm_same_product(&r->product[i], t), r, TE_ERROR_FORMAT,
                         "the product was there before, as product %d of the file", i + 1);
    TE__TUNE_REQUIRE(te__gemm_accepts(t, &added, r->ctx), r, TE_ERROR_FORMAT,
                     "cuBLASLt refuses the algorithm for %lld x %lld x %lld", (long long)t->m, (long long)t->n,
                     (long long)t->k);
    r->added += added, r->products++;
    TE__TUNE_REQUIRE(r->added <= te__gemm_free_plans(r->ctx), r, TE_ERROR_MEMORY,
                     "the context has no space for more than %d products", (int)TE_GEMM_MAX_PLANS);
    return TE_OK;
}
TE_API te_status te__tune_read_choice(te__tune_reader *r) {
    TE_TRY(te__tune_count(r, 13));
    TE__TUNE_REQUIRE(r->choices < TE_GEMM_MAX_CHOICES, r, TE_ERROR_FORMAT, "there are more than %d steps",
                     (int)TE_GEMM_MAX_CHOICES);
    te_gemm_choice *c = &r->choice[r->choices];
    int64_t v = 0;
    memset(c, 0, sizeof *c);
    TE__TUNE_REQUIRE(*r->word[1] && strlen(r->word[1]) < sizeof c->pattern, r, TE_ERROR_FORMAT,
                     "the pattern's name must have 1 to %zu characters", sizeof c->pattern - 1);
    memcpy(c->pattern, r->word[1], strlen(r->word[1]));
    c->training = !strcmp(r->word[2], "forward");
    TE__TUNE_REQUIRE(c->training || !strcmp(r->word[2], "infer"), r, TE_ERROR_FORMAT,
                     "the pass is %.32s, it must be forward or infer", r->word[2]);
    TE_TRY(te__tune_sizes(&c->m, &c->n, &c->k, r, 3));
    TE_TRY(te__tune_dtype(&c->dtype, r, 6));
    TE_TRY(te__tune_number(&v, r, 7, "the mask of stored outputs", 0, (1 << TE_MAX_PATTERN) - 1));
    c->stored_outputs = (unsigned)v;
    TE_TRY(te__tune_number(&v, r, 8, "the strategy", 0, TE_STRATEGY_COUNT - 1));
    c->strategy = (te_gemm_strategy)v;
    for (int i = 0; i < TE_STRATEGY_COUNT; i++)
        TE_TRY(te__tune_number(&c->ns[i], r, 9 + i, "the time of a strategy", 0, te__tune_max_ns));
    TE__TUNE_REQUIRE(c->ns[c->strategy], r, TE_ERROR_FORMAT, "strategy %d is taken and has no time", (int)c->strategy);
    for (int i = 0; i < r->choices; i++)
        TE__TUNE_REQUIRE(!te__gemm_same_choice(&r->choice[i], c), r, TE_ERROR_FORMAT,
                         "the step was there before, as step %d of the file", i + 1);
    r->choices++;
    return TE_OK;
}

/* Read the first three lines of the file, and check that the format, the device and the version of cuBLASLt match. */
TE_API te_status te__tune_read_header(te__tune_reader *r) {
    char here[512];
    TE_TRY(te__tune_next(r));
    TE__TUNE_REQUIRE(r->words == 2 && !strcmp(r->word[0], "te-gemm"), r, TE_ERROR_FORMAT,
                     "is no file of te_gemm_save, which begins with te-gemm %d", (int)TE__TUNE_FORMAT);
    TE__TUNE_REQUIRE(r->word[1][0] == '0' + TE__TUNE_FORMAT && !r->word[1][1], r, TE_ERROR_FORMAT,
                     "format %.16s; this library reads %d", r->word[1], (int)TE__TUNE_FORMAT);
    TE_TRY(te__tune_header(here, sizeof here, r->ctx));
    char *device = strchr(here, '\n') + 1, *version = strchr(device, '\n');
    *version++ = 0, version[strlen(version) - 1] = 0;

    const char *line = r->text + r->at;
    TE_TRY(te__tune_next(r));
    TE__TUNE_REQUIRE(!strncmp(line, "device ", 7), r, TE_ERROR_FORMAT, "must begin with device, it begins with %.16s",
                     line);
    TE__TUNE_REQUIRE(!strcmp(line, device), r, TE_ERROR_DEVICE, "tuned on another device, %.80s; this one is %.80s",
                     line + 7, device + 7);
    TE_TRY(te__tune_next(r));
    int64_t v;
    TE__TUNE_REQUIRE(r->words == 2 && !strcmp(r->word[0], "cublaslt"), r, TE_ERROR_FORMAT,
                     "must be cublaslt and its version, it begins with %.16s", r->word[0]);
    TE_TRY(te__tune_number(&v, r, 1, "the version", 0, INT32_MAX));
    TE__TUNE_REQUIRE(!strcmp(r->word[1], version + strlen("cublaslt ")), r, TE_ERROR_DEVICE,
                     "tuned with cuBLASLt %.16s, this is %.16s; its algorithms are for one version", r->word[1],
                     version + strlen("cublaslt "));
    return TE_OK;
}
/* Check the line `end`, which must be the last line of the file. */
TE_API te_status te__tune_read_end(te__tune_reader *r) {
    int64_t lines;
    uint64_t checksum;
    TE_TRY(te__tune_count(r, 3));
    TE_TRY(te__tune_number(&lines, r, 1, "the count of lines", r->line - 1, r->line - 1));
    TE_TRY(te__tune_hex(&checksum, r, 2, "the checksum"));
    TE__TUNE_REQUIRE(checksum == r->checksum, r, TE_ERROR_FORMAT,
                     "the checksum is %s, that of the lines before is %016llx: the file was changed", r->word[2],
                     (unsigned long long)r->checksum);
    TE__TUNE_REQUIRE(r->at == r->bytes, r, TE_ERROR_FORMAT, "%zu bytes follow the end", r->bytes - r->at);
    return TE_OK;
}
TE_API te_status te__tune_read_all(te__tune_reader *r) {
    TE_TRY(te__tune_read_header(r));
    for (;;) {
        TE_TRY(te__tune_next(r));
        if (!strcmp(r->word[0], "end")) return te__tune_read_end(r);
        const int is_step = !strcmp(r->word[0], "step");
        TE__TUNE_REQUIRE(is_step || !strcmp(r->word[0], "gemm"), r, TE_ERROR_FORMAT,
                         "must begin with gemm, step or end, it begins with %.16s", r->word[0]);
        TE_TRY(is_step ? te__tune_read_choice(r) : te__tune_read_product(r));
    }
}
TE_API te_status te__tune_read(te__tune_reader *r, int fd, uint64_t bytes) {
    TE_REQUIRE(bytes <= TE__TUNE_FILE, r->ctx, TE_ERROR_FORMAT, "%.120s: has %llu bytes, a tuning file has at most %d",
               r->path, (unsigned long long)bytes, (int)TE__TUNE_FILE);
    r->bytes = (size_t)bytes;
    r->text = (char *)malloc(r->bytes + 1);
    TE_REQUIRE(r->text, r->ctx, TE_ERROR_MEMORY, "cannot allocate %zu bytes", r->bytes + 1);
    r->text[r->bytes] = 0;
    TE_TRY(te__file_read(fd, r->text, r->bytes, 0, r->path, r->ctx));
    return te__tune_read_all(r);
}
/* Read the results of tuning from the file `path`, and store them in the context, where they replace earlier results
 * for the same products and steps. Nothing is timed. After an error the context is unchanged, and the caller may
 * continue without the file. Errors: TE_ERROR_IO: the file cannot be read; TE_ERROR_FORMAT: it is not a valid tuning
 * file; TE_ERROR_DEVICE: it was written on another device or with another version of cuBLASLt. The error text names the
 * line of the file. */
TE_API te_status te_gemm_load(const char *path, te_context *ctx) {
    TE_TRY(te__check_target(ctx, "te_gemm_load"));
    TE_REQUIRE(path, ctx, TE_ERROR_NULL, "te_gemm_load: the path is null");
    te__tune_reader *r = (te__tune_reader *)calloc(1, sizeof *r);
    TE_REQUIRE(r, ctx, TE_ERROR_MEMORY, "cannot allocate %zu bytes", sizeof *r);
    r->path = path, r->ctx = ctx, r->checksum = te__tune_checksum_start;
    int fd = -1;
    uint64_t bytes = 0;
    te_status status = te__file_open(&fd, &bytes, path, ctx);
    if (status == TE_OK) {
        status = te__tune_read(r, fd, bytes);
        (void)close(fd);
    }
    for (int i = 0; status == TE_OK && i < r->products; i++) te__gemm_store_tuned(&r->product[i], ctx);
    for (int i = 0; status == TE_OK && i < r->choices; i++) te__gemm_store_choice(&r->choice[i], ctx);
    free(r->text);
    free(r);
    return status;
}

#undef TE__TUNE_REQUIRE
#endif
