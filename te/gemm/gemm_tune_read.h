/* gemm_tune_read.h -- te_gemm_load: a file of te_gemm_save, checked line by line before anything of it is used. */
#ifndef TE_GEMM_TUNE_READ_H
#define TE_GEMM_TUNE_READ_H

#include "gemm_tune_file.h" /* the format */

/* One file while it is read. Nothing reaches the context before its last line was found to be right. */
typedef struct te__tune_reader {
    const char *path;
    te_context *ctx;
    char *text; /* the whole file */
    size_t bytes, at;
    uint64_t sum; /* of the lines before */
    int line;     /* the number of this one, from 1 */
    char *word[TE__TUNE_WORDS];
    int words;
    int products, choices, added;
    te_gemm_tuned product[TE_GEMM_PLANS];
    te_gemm_choice choice[TE_GEMM_CHOICES];
} te__tune_reader;

#define TE__TUNE_REQUIRE(cond, r, status, text, ...) TE_REQUIRE(cond, (r)->ctx, status, "%.120s: line %d: " text, \
    (r)->path, (r)->line, __VA_ARGS__)

/* The next line, cut into words at single blanks. */
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
    if (strncmp(line, "end ", 4)) r->sum = te__tune_sum(r->sum, line, n + 1);
    line[n] = 0;
    r->word[0] = line;
    if (!strncmp(line, "device ", 7)) return r->words = 1, TE_OK; /* a name with blanks */
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
/* Word i as a decimal number from `least` to `most`. */
TE_API te_status te__tune_number(int64_t *v, te__tune_reader *r, int i, const char *what, int64_t least, int64_t most) {
    const char *p = r->word[i];
    int64_t n = 0;
    int good = *p && (*p != '0' || !p[1]);
    for (; good && *p; p++)
        good = *p >= '0' && *p <= '9' && n <= (INT64_MAX - 9) / 10, n = good ? 10 * n + (*p - '0') : 0;
    TE__TUNE_REQUIRE(good && n >= least && n <= most, r, TE_ERROR_FORMAT,
                     "%s is %.32s, it must be a number from %lld to %lld", what, r->word[i], (long long)least,
                     (long long)most);
    *v = n;
    return TE_OK;
}
TE_API te_status te__tune_hex(uint64_t *v, te__tune_reader *r, int i, const char *what) {
    const char *p = r->word[i];
    int n = 0;
    for (*v = 0; n < 17 && ((*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'f')); p++, n++)
        *v = *v << 4 | (uint64_t)(*p <= '9' ? *p - '0' : *p - 'a' + 10);
    TE__TUNE_REQUIRE(n == 16 && !*p, r, TE_ERROR_FORMAT, "%s is %.32s, it must be 16 hexadecimal digits", what,
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
/* The operands of a product. */
TE_API te_status te__tune_operands(te_gemm_tuned *t, te__tune_reader *r, int i) {
    static const te_dtype dtypes[] = {TE_f32, TE_bf16, TE_f16},
                          pairs[][2] = {{TE_e4m3, TE_e4m3}, {TE_e4m3, TE_e5m2}, {TE_e5m2, TE_e4m3}};
    static const te_scaling scalings[][2] = {{TE_SCALING_TENSOR, TE_SCALING_TENSOR},
                                             {TE_SCALING_ROW, TE_SCALING_ROW},
                                             {TE_SCALING_TILES, TE_SCALING_BLOCKS},
                                             {TE_SCALING_TILES, TE_SCALING_TILES}};
    for (int k = 0; k < 72; k++) { /* dtype of the bias, pair, fast, scales */
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
static const int64_t te__tune_ns TE_UNUSED = (int64_t)1 << 40; /* a quarter of an hour: nothing takes longer */

TE_API te_status te__tune_product(te__tune_reader *r) {
    TE_TRY(te__tune_count(r, TE__TUNE_WORDS));
    TE__TUNE_REQUIRE(r->products < TE_GEMM_PLANS, r, TE_ERROR_FORMAT, "there are more than %d products",
                     (int)TE_GEMM_PLANS);
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
    while (epilogue < TE_EPILOGUE_COUNT && strcmp(r->word[7], te_epilogue_name((te_epilogue)epilogue))) epilogue++;
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
    TE_TRY(te__tune_number(&t->first_ns, r, 14, "the time of the first", 1, te__tune_ns));
    TE_TRY(te__tune_number(&t->best_ns, r, 15, "the time of the best", 1, te__tune_ns));
    for (int i = 0; i < 8; i++) TE_TRY(te__tune_hex(&t->algo[i], r, 16 + i, "a word of the algorithm"));
    return TE_OK;
}

TE_API te_status te__tune_step(te__tune_reader *r) {
    TE_TRY(te__tune_count(r, 13));
    TE__TUNE_REQUIRE(r->choices < TE_GEMM_CHOICES, r, TE_ERROR_FORMAT, "there are more than %d steps",
                     (int)TE_GEMM_CHOICES);
    te_gemm_choice *c = &r->choice[r->choices];
    int64_t v = 0;
    memset(c, 0, sizeof *c);
    TE__TUNE_REQUIRE(*r->word[1] && strlen(r->word[1]) < sizeof c->row, r, TE_ERROR_FORMAT,
                     "the row's name must have 1 to %zu characters", sizeof c->row - 1);
    memcpy(c->row, r->word[1], strlen(r->word[1]));
    c->training = !strcmp(r->word[2], "forward");
    TE__TUNE_REQUIRE(c->training || !strcmp(r->word[2], "infer"), r, TE_ERROR_FORMAT,
                     "the pass is %.32s, it must be forward or infer", r->word[2]);
    TE_TRY(te__tune_sizes(&c->m, &c->n, &c->k, r, 3));
    TE_TRY(te__tune_dtype(&c->dtype, r, 6));
    TE_TRY(te__tune_number(&v, r, 7, "the mask of what is kept", 0, (1 << TE_MAX_PATTERN) - 1));
    c->kept = (unsigned)v;
    TE_TRY(te__tune_number(&v, r, 8, "the split", 0, TE_SPLIT_COUNT - 1));
    c->split = (te_split)v;
    for (int i = 0; i < TE_SPLIT_COUNT; i++)
        TE_TRY(te__tune_number(&c->ns[i], r, 9 + i, "the time of a split", 0, te__tune_ns));
    TE__TUNE_REQUIRE(c->ns[c->split], r, TE_ERROR_FORMAT, "split %d is taken and has no time", (int)c->split);
    for (int i = 0; i < r->choices; i++) TE__TUNE_REQUIRE(!te__gemm_same_choice(&r->choice[i], c), r, TE_ERROR_FORMAT,
                        "the step was there before, as step %d of the file", i + 1);
    r->choices++;
    return TE_OK;
}

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
/* The last line; nothing may follow. */
TE_API te_status te__tune_read_end(te__tune_reader *r) {
    int64_t lines;
    uint64_t sum;
    TE_TRY(te__tune_count(r, 3));
    TE_TRY(te__tune_number(&lines, r, 1, "the count of lines", r->line - 1, r->line - 1));
    TE_TRY(te__tune_hex(&sum, r, 2, "the checksum"));
    TE__TUNE_REQUIRE(sum == r->sum, r, TE_ERROR_FORMAT,
                     "the checksum is %s, that of the lines before is %016llx: the file was changed", r->word[2],
                     (unsigned long long)r->sum);
    TE__TUNE_REQUIRE(r->at == r->bytes, r, TE_ERROR_FORMAT, "%zu bytes follow the end", r->bytes - r->at);
    return TE_OK;
}
TE_API te_status te__tune_read_all(te__tune_reader *r) {
    TE_TRY(te__tune_read_header(r));
    for (;;) {
        TE_TRY(te__tune_next(r));
        if (!strcmp(r->word[0], "end")) break;
        if (!strcmp(r->word[0], "step")) {
            TE_TRY(te__tune_step(r));
            continue;
        }
        TE__TUNE_REQUIRE(!strcmp(r->word[0], "gemm"), r, TE_ERROR_FORMAT,
                         "must begin with gemm, step or end, it begins with %.16s", r->word[0]);
        TE_TRY(te__tune_product(r));
        const te_gemm_tuned *t = &r->product[r->products];
        int added = 0;
        for (int i = 0; i < r->products; i++) {
            const te_gemm_tuned *u = &r->product[i];
            TE__TUNE_REQUIRE(!te__gemm_same_product(u, t), r, TE_ERROR_FORMAT,
                             "the product was there before, as product %d of the file", i + 1);
        }
        TE__TUNE_REQUIRE(te__gemm_accepts(t, &added, r->ctx), r, TE_ERROR_FORMAT,
                         "cuBLASLt refuses the algorithm for %lld x %lld x %lld", (long long)t->m, (long long)t->n,
                         (long long)t->k);
        r->added += added, r->products++;
        TE__TUNE_REQUIRE(r->added <= te__gemm_room(r->ctx), r, TE_ERROR_MEMORY,
                         "the context has no room for more than %d products", (int)TE_GEMM_PLANS);
    }
    return te__tune_read_end(r);
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
/* Take what a file says, over what was found so far. Nothing is timed. A file that is refused has changed nothing, and
 * the caller may go on without. TE_ERROR_IO: it cannot be read; TE_ERROR_FORMAT: it is not what it should be;
 * TE_ERROR_DEVICE: it was made on another device or with another cuBLASLt. The text names the line. */
TE_API te_status te_gemm_load(const char *path, te_context *ctx) {
    TE_TRY(te_check_target(ctx, "te_gemm_load"));
    TE_REQUIRE(path, ctx, TE_ERROR_NULL, "te_gemm_load: the path is null");
    te__tune_reader *r = (te__tune_reader *)calloc(1, sizeof *r);
    TE_REQUIRE(r, ctx, TE_ERROR_MEMORY, "cannot allocate %zu bytes", sizeof *r);
    r->path = path, r->ctx = ctx, r->sum = te__tune_sum_start;
    int fd = -1;
    uint64_t bytes = 0;
    te_status status = te__file_open(&fd, &bytes, path, ctx);
    if (status == TE_OK) {
        status = te__tune_read(r, fd, bytes);
        (void)close(fd);
    }
    for (int i = 0; status == TE_OK && i < r->products; i++) te__gemm_keep(&r->product[i], ctx);
    for (int i = 0; status == TE_OK && i < r->choices; i++) te__gemm_keep_choice(&r->choice[i], ctx);
    free(r->text);
    free(r);
    return status;
}

#undef TE__TUNE_REQUIRE
#endif
