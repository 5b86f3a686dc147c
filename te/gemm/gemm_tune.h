/* gemm_tune.h -- tuned matrix products: time the back end's candidates once for each product, keep the fastest, and
 * keep what was found in a file, so that a shipped binary starts tuned.
 *
 * Do this:
 *     if (te_gemm_load("gemm.txt", &ctx) != TE_OK) ctx.gemm_tune = 1;     // no file, or one of another GPU: time
 *     TE_TRY(te_context_reserve(&ctx, block_workspace_bytes(&m, rows, &ctx)));
 *     ... one forward and backward ...
 *     ctx.gemm_tune = 0;
 *     TE_TRY(te_gemm_save("gemm.txt", &ctx));
 *     te_gemm_print(stdout, &ctx);
 *
 * With ctx.gemm_tune on, the first call of each product (sizes, transposes, dtypes, epilogue, beta) times cuBLASLt's
 * candidates, and the first call of a step that begins with a product times the ways to split it: what the product's
 * epilogue takes along, what is left to the kernel behind it and, in FP8, to a cast and a transpose. That takes some
 * tenths of a second each: it allocates scratch memory, waits for the stream and frees it. A call that is being
 * captured never times, and takes what there is; so run one eager step before. Load or switch on before
 * te_context_reserve: a step whose split may change takes more workspace.
 *
 * Candidates sum in float and in a fixed order, so a product once tuned gives the same bits each time. Another run of
 * the tuning may choose another: for the same bits from run to run, load the same file.
 *
 * The file is text: a line for each product and for each step, of one device and one version of cuBLASLt, and a
 * checksum.
 *     te-gemm 2
 *     device <multiprocessors> <name>
 *     cublaslt <version>
 *     gemm <m> <n> <k> <a: n|t><b: n|t> <dtype> <out> <epilogue> <beta: 0|1> <leading dimensions of A, B, D>
 *          <alignment> <candidates> <ns of the first> <ns of the best> <8 words of the algorithm>
 *     step <row> <forward|infer> <m> <n> <k> <dtype> <kept> <split: 0|1|2|3> <ns bare> <ns with bias> <ns whole> <ns
 *     own>
 *     end <lines before> <checksum>
 * The dtype of a product in FP8 is written e4m3*e5m2.bf16.fast: A, B, bias, and fast accumulation; with scales that are
 * not of tensors e4m3*e4m3.bf16.1x128*128x128. A row that begins with such a product has it behind its name,
 * linear_bias_gelu:e4m3*e4m3.bf16.fast.
 *
 * Compiled with -DTE_NO_TUNE, or by te/infer.h, a program has no code that times: it loads a file, and ctx.gemm_tune is
 * an error.
 *
 * On the host there is nothing to tune: a file has its header alone, and is checked all the same.
 */
#ifndef TE_GEMM_TUNE_H
#define TE_GEMM_TUNE_H

#include "gemm_tune_read.h" /* te_gemm_load */

/* ---- the report -------------------------------------------------------------------------------------------------- */

/* The products that were timed, in the order of their first use; at most `room` of them. Returns how many there are. */
TE_API int te_gemm_report(te_gemm_tuned *list, int room, te_context *ctx) {
    int n = 0, at = 0;
    if (!ctx || te_check_target(ctx, "te_gemm_report") != TE_OK) return 0;
    for (const te_gemm_tuned *t; (t = te__gemm_next_tuned(&at, ctx)) != 0; n++)
        if (list && n < room) list[n] = *t;
    return n;
}
TE_API int te__gemm_was_timed(const te_gemm_choice *c) { return c->ns[c->split] > 0; }
/* The steps whose splits were timed. */
TE_API int te_gemm_report_choices(te_gemm_choice *list, int room, te_context *ctx) {
    int n = 0, *count = 0;
    if (!ctx || te_check_target(ctx, "te_gemm_report_choices") != TE_OK) return 0;
    const te_gemm_choice *all = te__gemm_choices(&count, ctx);
    for (int i = 0; count && i < *count; i++)
        if (te__gemm_was_timed(&all[i]) && n++ < room && list) list[n - 1] = all[i];
    return n;
}
/* Both as tables; times in microseconds, ratio = best / first. */
TE_API void te_gemm_print(FILE *f, te_context *ctx) {
    static const char *const splits[] = {"bare", "bias", "whole", "own"};
    int at = 0, *count = 0;
    if (!f || !ctx || te_check_target(ctx, "te_gemm_print") != TE_OK) return;
    fprintf(f, "%8s %8s %8s  ab  dtype out   %-13s beta  tried  first us   best us  ratio\n", "m", "n", "k",
            "epilogue");
    for (const te_gemm_tuned *t; (t = te__gemm_next_tuned(&at, ctx)) != 0;)
        fprintf(f, "%8lld %8lld %8lld  %c%c  %-5s %-5s %-13s %4d  %5d %9.2f %9.2f  %.3f\n", (long long)t->m,
                (long long)t->n, (long long)t->k, t->trans_a ? 't' : 'n', t->trans_b ? 't' : 'n',
                te__operands_text_of(t).text, te_dtype_name(t->out), te_epilogue_name(t->epilogue), t->beta,
                t->candidates,
                (double)t->first_ns / 1e3, (double)t->best_ns / 1e3, (double)t->best_ns / (double)t->first_ns);
    const te_gemm_choice *c = te__gemm_choices(&count, ctx);
    if (count && *count)
        fprintf(f, "%8s %8s %8s  dtype pass     bare us   bias us  whole us    own us  taken  row\n", "m", "n", "k");
    for (int i = 0; count && i < *count; i++) {
        if (!te__gemm_was_timed(&c[i])) continue;
        fprintf(f, "%8lld %8lld %8lld  %-5s %-7s %9.2f %9.2f %9.2f %9.2f  %-5s  %s\n", (long long)c[i].m,
                (long long)c[i].n, (long long)c[i].k, te_dtype_name(c[i].dtype), c[i].training ? "forward" : "infer",
                (double)c[i].ns[0] / 1e3, (double)c[i].ns[1] / 1e3, (double)c[i].ns[2] / 1e3, (double)c[i].ns[3] / 1e3,
                splits[c[i].split], c[i].row);
    }
}

/* ---- the file: out ----------------------------------------------------------------------------------------------- */

typedef struct te__tune_writer { te__new_file file; uint64_t sum; int lines; } te__tune_writer;
TE_API te_status te__tune_write(te__tune_writer *w, const char *line, te_context *ctx) {
    w->sum = te__tune_sum(w->sum, line, strlen(line));
    w->lines++;
    return te__new_file_write(&w->file, line, strlen(line), ctx);
}
TE_API te_status te__tune_write_all(te__tune_writer *w, te_context *ctx) {
    char line[TE__TUNE_LINE];
    int at = 0, *count = 0;
    TE_TRY(te__tune_header(line, sizeof line, ctx));
    TE_TRY(te__tune_write(w, line, ctx));
    w->lines = 3;
    for (const te_gemm_tuned *t; (t = te__gemm_next_tuned(&at, ctx)) != 0;) {
        int n =
            snprintf(line, sizeof line, "gemm %lld %lld %lld %c%c %s %s %s %d %lld %lld %lld %d %d %lld %lld",
                     (long long)t->m, (long long)t->n, (long long)t->k, t->trans_a ? 't' : 'n', t->trans_b ? 't' : 'n',
                     te__operands_text_of(t).text, te_dtype_name(t->out), te_epilogue_name(t->epilogue), t->beta,
                     (long long)(t->trans_a ? t->m : t->k), (long long)(t->trans_b ? t->k : t->n), (long long)t->n,
                     (int)TE_ACCESS, t->candidates, (long long)t->first_ns, (long long)t->best_ns);
        for (int i = 0; i < 8; i++)
            n += snprintf(line + n, sizeof line - (size_t)n, " %016llx", (unsigned long long)t->algo[i]);
        snprintf(line + n, sizeof line - (size_t)n, "\n");
        TE_TRY(te__tune_write(w, line, ctx));
    }
    const te_gemm_choice *c = te__gemm_choices(&count, ctx);
    for (int i = 0; count && i < *count; i++) {
        if (!te__gemm_was_timed(&c[i])) continue;
        snprintf(line, sizeof line, "step %s %s %lld %lld %lld %s %u %d %lld %lld %lld %lld\n", c[i].row,
                 c[i].training ? "forward" : "infer", (long long)c[i].m, (long long)c[i].n, (long long)c[i].k,
                 te_dtype_name(c[i].dtype), c[i].kept, (int)c[i].split, (long long)c[i].ns[0], (long long)c[i].ns[1],
                 (long long)c[i].ns[2], (long long)c[i].ns[3]);
        TE_TRY(te__tune_write(w, line, ctx));
    }
    snprintf(line, sizeof line, "end %d %016llx\n", w->lines, (unsigned long long)w->sum);
    return te__new_file_write(&w->file, line, strlen(line), ctx);
}
/* Write what was found to `path`, which it replaces once it is complete. */
TE_API te_status te_gemm_save(const char *path, te_context *ctx) {
    te__tune_writer w;
    TE_TRY(te_check_target(ctx, "te_gemm_save"));
    TE_REQUIRE(path, ctx, TE_ERROR_NULL, "te_gemm_save: the path is null");
    TE_TRY(te__new_file_open(&w.file, path, ctx));
    w.sum = te__tune_sum_start, w.lines = 0;
    return te__new_file_close(&w.file, te__tune_write_all(&w, ctx), ctx);
}

#endif
