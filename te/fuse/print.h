/* print.h -- prints a plan as a table: for each step its ops, its kernels, and the bytes per row that it reads and
 * writes.
 *
 * The table always agrees with the kernels that run: the function that runs a step also reports the step's kernel
 * (te_run.describe), and one rule determines both the format in the table and the format in which the executor stores
 * the result.
 *
 * Do this:
 *     te_plan_print(stdout, block_plan());     // or block_print_plan(stdout)
 */
#ifndef TE_PRINT_H
#define TE_PRINT_H

#include <stdio.h> /* FILE */

#include "../attention/attention_options.h" /* te_attention_options */
#include "../plan/impl/executor.h" /* te_plan, te_plan_saved_bytes */
#include "../pointwise/impl/pointwise_step.h" /* te__pointwise_exit_of */

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* Return the bytes of an op's input or output for each token. These are the bytes of one row or, behind a router, of
 * the top_k rows that the router makes of one token. `size` is the size of an element. */
TE_API long te__in_bytes(const te_op *op, long size) { return op->in * size * te__rows_per_token(op->in_rows); }
TE_API long te__out_bytes(const te_op *op, long size) { return op->out * size * te__rows_per_token(op->out_rows); }
/* Return the te_run of a dry run with one row and with recipes on; the functions below take this te_run as an argument.
 * `none` points to memory for TE_MAX_PARAMS parameters; the function sets it to zeros, and uses it as the parameters of
 * every op. */
TE_API te_run te__run_to_print(const te_plan *p, te_pass pass, te_param *none) {
    te_run r = te__run_to_size(p, pass, 1, TE_USE_on, 0);
    memset(none, 0, TE_MAX_PARAMS * sizeof *none);
    for (int i = 0; i < p->op_count; i++) r.param[i] = none;
    return r;
}
/* Return whether a backward step computes a gradient that is not in memory already. Otherwise the step's result is
 * equal to its input or, if the step has an add, to the gradient that the add stores for its fork, and the step stores
 * nothing in FP8. */
TE_API int te__step_changes_gradient(const te_plan *p, const te_step *s) {
    int changed = 0;
    for (int j = p->op[s->op[0]].op_class == TE_CLASS_gemm; j < s->count; j++) {
        const int flags = p->op[s->op[j]].flags;
        changed = flags & TE_IS_ADD ? 0 : changed || te__changes_gradient(flags);
    }
    return changed;
}
/* Return in how many layouts a step's pointwise kernel stores its result in FP8 with scales that the kernel itself
 * computes (one scale per row or per 1 x 128 tile). 0: in none; 1: row-major; 2: row-major and transposed. */
TE_API int te__step_fp8_layouts(te_run *r, const te_step *s) {
    const te_op *first = &r->plan->op[s->op[0]], *end = &r->plan->op[s->op[s->count - 1]];
    const int last = s->op[s->count - 1], back = r->pass == TE_BACKWARD;
    te_pointwise_shape k = te_no_shape();
    if (first->op_class == TE_CLASS_custom && (back || !(first->flags & TE_LEADS_POINTWISE))) return 0;
    if (end->op_class == TE_CLASS_gemm || end->op_class == TE_CLASS_custom) return 0;
    if (back ? !te__step_changes_gradient(r->plan, s) : (end->flags & TE_IS_FORK) != 0) return 0;
    r->describe = &k;
    (void)s->run(r, s);
    r->describe = 0;
    const te_pointwise_work w = te__pointwise_work_of(s, 0, k, 0);
    const te_pointwise_exit e =
        te__pointwise_exit_of(r, &w, last, back ? end->in_dtype : end->out_dtype, te__saves_output(r, last));
    if (e.form != TE_RESULT_with_scales) return 0;
    if (k.scaled == TE_SCALING_ROWWISE) return 1;
    if (back) return r->plan->op[e.consumer].flags & TE_IS_FROZEN ? 1 : 2;
    return r->pass == TE_FORWARD && te__policy(r, e.consumer)->input == TE_INPUT_saved_fp8 ? 2 : 1;
}
/* Return how many bytes of memory traffic per row a step saves by storing its result in FP8 instead of in the list's
 * dtype. The number is negative if the step stores the result in both formats, because forward also saves the result in
 * the list's dtype for backward. */
TE_API long te__step_fp8_saves(te_run *r, const te_step *s) {
    const int last = s->op[s->count - 1], layouts = te__step_fp8_layouts(r, s);
    const te_op *end = &r->plan->op[last];
    const long width = r->pass == TE_BACKWARD ? end->in : end->out;
    if (!layouts) return 0;
    const int rowwise = te__policy(r, te__consumer_of(r, last))->scaling == TE_SCALING_ROWWISE;
    const long scales = (rowwise ? 1 : width / TE_FP8_BLOCK) * (long)sizeof(float);
    const long in_list_format = te__saves_output(r, last) ? 0 : width * (long)te_dtype_bytes(r->plan->dtype);
    return in_list_format - layouts * (width + scales);
}
/* Return whether a step reads and writes nothing, because its ops neither change nor move the value (in backward, the
 * gradient). */
TE_API int te__step_moves_nothing(const te_plan *p, const te_step *s, te_pass pass) {
    for (int j = 0; j < s->count; j++) {
        const int i = s->op[j], before_load = i + 1 < p->op_count && (p->op[i + 1].flags & TE_IS_LOAD);
        if (!(p->op[i].flags & TE_IS_FORK)) return 0;
        if (pass == TE_BACKWARD && !(before_load && s->count == 1)) return 0;
    }
    return 1;
}
/* Return whether a backward step leaves the gradient unchanged: its ops only sum the gradient over rows (a bias), or
 * add it to the gradient of a fork (an add). */
TE_API int te__step_leaves_gradient(const te_plan *p, const te_step *s) {
    for (int j = 0; j < s->count; j++)
        if (te__changes_gradient(p->op[s->op[j]].flags)) return 0;
    return 1;
}
/* Return whether an op of the step has the flag TE_SUMS, so that the step's backward sums a gradient over rows. */
TE_API int te__step_sums(const te_plan *p, const te_step *s) {
    int sums = 0;
    for (int j = 0; j < s->count; j++) sums |= p->op[s->op[j]].flags & TE_SUMS;
    return sums;
}
/* Return the bytes per row that op number j of a forward or inference step reads and writes in addition to the step's
 * input and output. These are the op's statistics; the value of the fork that the op uses; and, if forward saves the
 * op's output and the op is not the last one of the step, this output. */
TE_API long te__op_bytes_forward(const te_run *r, const te_step *s, int j) {
    const te_plan *p = r->plan;
    const int i = s->op[j];
    const te_op *op = &p->op[i];
    const long size = (long)te_dtype_bytes(p->dtype);
    long n = r->pass == TE_INFER ? 0 : te__rows_per_token(op->out_rows) * op->stats * (long)sizeof(float);
    if (op->flags & (TE_IS_ADD | TE_IS_MUL)) { /* The op reads the fork's value in addition to the step's input. If the
                                                * op in front of the step is the fork, the value is the step's input
                                                * itself, and is not counted twice. */
        const int from_input = (p->op[op->edge].flags & TE_IS_INPUT) != 0;
        if (op->edge + 1 != s->op[0] || from_input) n += te__in_bytes(op, size);
    }
    if (op->flags & TE_IS_OUTPUT) n += te__out_bytes(op, size); /* what it stores for the caller */
    else if (j + 1 < s->count && te__saves_output(r, i) && !(op->flags & TE_IS_FORK)) n += te__out_bytes(op, size);
    return n;
}
/* Return the bytes per row that op number j of a backward step reads and writes in addition to the step's input and
 * output. These are the op's statistics, the input that forward saved for the op, and the values and gradients of
 * forks. leaves_gradient is the result of te__step_leaves_gradient for this step. */
TE_API long te__op_bytes_backward(const te_run *r, const te_step *s, int j, int leaves_gradient) {
    const te_plan *p = r->plan;
    const int i = s->op[j];
    const te_op *op = &p->op[i];
    const long size = (long)te_dtype_bytes(p->dtype);
    long n = te__rows_per_token(op->out_rows) * op->stats * (long)sizeof(float);
    const int reads = (op->flags & TE_SAVES_INPUT) || te__recomputes_logits(p, i);
    if (reads && !(i && te__recomputes_logits(p, i - 1))) n += te__in_bytes(op, size);
    /* The backward of a fork reads the gradient of the fork's value, summed over its uses. The backward of an (input,
     * ..) does not read this gradient, because the ops that use the input have already stored the gradient for the
     * caller. */
    if ((op->flags & TE_IS_FORK) && !(op->flags & TE_IS_INPUT))
        n += te__out_bytes(op, size);
    /* 1: an op later in the list has already stored its contribution to the fork's gradient, so this step reads the
     * stored sum, adds its own contribution, and writes the sum */
    const int joins = op->edge >= 0 && !te__is_last_use(p, i);
    if ((op->flags & TE_IS_ADD) && joins) n += (leaves_gradient && s->count == 1 ? 3 : 2) * te__out_bytes(op, size);
    else if ((op->flags & TE_IS_ADD) && j && j + 1 < s->count) n += te__out_bytes(op, size);
    /* a mul reads the fork's value, and writes the fork's gradient; if `joins` is 1, the mul also reads this
     * gradient */
    if (op->flags & TE_IS_MUL) n += (joins ? 3 : 2) * te__out_bytes(op, size);
    return n;
}
/* Return a lower bound of the bytes per row that a step reads and writes: its input and output, the values that forward
 * saves and backward reads, and the values and gradients of forks. Weights are not counted, because their size does not
 * depend on the number of rows. */
TE_API long te_step_row_bytes(const te_plan *p, const te_step *s, te_pass pass) {
    te_param none[TE_MAX_PARAMS];
    te_run r = te__run_to_print(p, pass, none);
    const long size = (long)te_dtype_bytes(p->dtype);
    const te_op *first = &p->op[s->op[0]], *last = &p->op[s->op[s->count - 1]];
    const int back = pass == TE_BACKWARD, leaves_gradient = back && te__step_leaves_gradient(p, s);
    if (first->flags & TE_IS_LOAD) return !back || te__is_last_use(p, s->op[0]) ? 0 : 3 * first->out * size;
    if (te__step_moves_nothing(p, s, pass)) return 0;
    long n = (back ? te__out_bytes(first, size) + te__in_bytes(last, size)
                   : te__in_bytes(first, size) + te__out_bytes(last, size));
    /* For each element of a row, an embedding in backward reads dy (`size` bytes), and reads and writes the f32
     * gradient of the table (8 bytes). */
    if (first->flags & TE_FROM_TOKENS) n = first->out * (back ? size + 8 : 2 * size);
    if (leaves_gradient) n = te__step_sums(p, s) ? te__out_bytes(first, size) : 0;
    for (int j = 0; j < s->count; j++)
        n += back ? te__op_bytes_backward(&r, s, j, leaves_gradient) : te__op_bytes_forward(&r, s, j);
    return n - te__step_fp8_saves(&r, s);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* Return the text that is printed behind the kernels of a step, and that says how the step's FP8 operands are scaled.
 * For one scale per tensor the text is empty, because the column "dtype" already says "fp8". */
TE_API const char *te__step_operands(const te_op *first, te_pass pass) {
    if ((first->flags & TE_ATTENDS_IN_FP8) && pass != TE_BACKWARD) return ", e4m3 by heads";
    if (first->recipe == TE_RECIPE_mxfp8) return ", emulates mxfp8";
    if (first->recipe == TE_RECIPE_nvfp4) return ", emulates nvfp4";
    if (TE_IS_ROWWISE(first->recipe) && pass != TE_BACKWARD) return ", e4m3 by rows";
    if (!TE_IS_BLOCKWISE(first->recipe)) return "";
    if (pass != TE_BACKWARD) return ", e4m3 by 1x128 and 128x128";
    return first->flags & TE_IS_FROZEN || first->experts ? ", e4m3 by 1x128 and 128x128"
                                       : ", e4m3 by 1x128 and 128x128, dweight by 1x128 and 1x128";
}
/* Return the text that says how a step's FP8 result is scaled. The text is empty if the step computes no scales of its
 * result. */
TE_API const char *te__step_result(te_run *r, const te_step *s) {
    const int next = s->op[s->count - 1] + 1;
    switch (te__step_fp8_layouts(r, s)) {
    case 0: return "";
    case 1: return r->pass != TE_BACKWARD && TE_IS_ROWWISE(r->plan->op[next].recipe) ? "; stores e4m3 by rows"
                                                                                    : "; stores e4m3 by 1x128";
    default: return "; stores e4m3 by 1x128 and 128x1";
    }
}
/* Return whether step s is a fused pattern of a collective and a norm. The kernel of such a step reads and writes the
 * memory of the other ranks directly (te/comm/impl/fused_collective_norm.h). */
TE_API int te__has_peer_kernel(const te_plan *p, const te_step *s) {
    const te_op *first = &p->op[s->op[0]];
    int norm = 0;
    if (s->count < 3 || first->op_class != TE_CLASS_custom || !(first->flags & TE_TAKES_PRODUCT)) return 0;
    for (int j = 1; j < s->count; j++) norm |= p->op[s->op[j]].op_class == TE_CLASS_norm;
    return norm && !p->takes_dims && first->out % 8 == 0;
}
/* Print the names of the kernels of step s. If s is a GEMM and the next step has a kernel that accesses the other
 * ranks' memory (te__has_peer_kernel), the GEMM can send its result to these ranks. The GEMM sends its result only if a
 * kernel of the library computes the GEMM, not cuBLASLt. */
TE_API void te__print_kernels(FILE *f, const te_plan *p, const te_step *s, te_pass pass) {
    const te_op *first = &p->op[s->op[0]], *last = &p->op[s->op[s->count - 1]];
    if (te__has_peer_kernel(p, s))
        fprintf(f, "%s_peers; without mapped memory %s, %s%s%s", s->kernels, first->kind, s->kernels,
                last->op_class == TE_CLASS_custom ? ", " : "", last->op_class == TE_CLASS_custom ? last->kind : "");
    else fprintf(f, "%s", s->kernels);
    if (pass != TE_BACKWARD && s->count == 1 && first->op_class == TE_CLASS_gemm && te__has_peer_kernel(p, s + 1) &&
        p->op[s[1].op[0]].in_rows == p->op[s[1].op[0]].out_rows)
        fprintf(f, "; sends to the next step if it is a kernel of ours");
}
/* Print the line of an exchange between the ranks of a context group. `width` is the width of the rows that are sent,
 * and `bytes` is the number of bytes that are sent for each row. */
TE_API void te__print_exchange(FILE *f, const te_plan *p, const char *what, int width, size_t bytes, const char *how) {
    fprintf(f, "   c  %-42s %6d -> %-6d %-5s %8zu  %s\n", what, width, width, te_dtype_name(p->dtype), bytes, how);
}
/* Print what the attention of step s exchanges with the other ranks of a context group if batch.context is 1. With
 * is_after 0, print the exchanges before and during the step's kernels; with is_after 1, those after the kernels. */
TE_API void te__print_context(FILE *f, const te_plan *p, const te_step *s, te_pass pass, int is_after) {
    const size_t size = te_dtype_bytes(p->dtype);
    const int back = pass == TE_BACKWARD;
    for (int j = 0; j < s->count; j++) {
        const te_op *op = &p->op[s->op[j]];
        if (op->context == TE_CP_none) continue;
        const te_attention_options *o = (const te_attention_options *)op->options;
        const int kv = o->kv_heads * (o->head_dim + o->value_dim), is_ring = op->context == TE_CP_ring;
        const size_t kv_bytes = (size_t)kv * size, qkv_bytes = (size_t)op->in * size, y_bytes = (size_t)op->out * size;
        if (op->context == TE_CP_all_to_all && !is_after)
            te__print_exchange(f, p, back ? "exchange q, k, v, y, dy" : "exchange q, k, v",
                               back ? op->in + 2 * op->out : op->in, back ? qkv_bytes + 2 * y_bytes : qkv_bytes,
                               "all_to_all: rows of all heads become heads of all rows");
        else if (op->context == TE_CP_all_to_all)
            te__print_exchange(f, p, back ? "exchange dq, dk, dv" : "exchange y", back ? op->in : op->out,
                               back ? qkv_bytes : y_bytes, "all_to_all: heads of all rows become rows of all heads");
        else if (!is_after)
            te__print_exchange(f, p, "exchange k, v", kv, kv_bytes,
                               !is_ring             ? "gather: to the ranks that see them"
                               : o->window_left < 0 ? "ring: from rank to rank, while attention runs"
                                                    : "ring: within the window, while attention runs");
        else if (back)
            te__print_exchange(f, p, "exchange dk, dv", kv, is_ring ? (size_t)kv * sizeof(float) : kv_bytes,
                               is_ring ? "ring: in f32, while attention runs" : "gather: to the ranks of the rows");
    }
}
/* Return whether the plan has an attention with the option `context`, which adds lines to the table. */
TE_API int te__has_context(const te_plan *p) {
    for (int i = 0; i < p->op_count; i++)
        if (p->op[i].context != TE_CP_none) return 1;
    return 0;
}
/* Print the line of one step; `number` is the text of the first column. Returns the bytes per row that the step reads
 * and writes. */
TE_API long te__print_step(FILE *f, const te_plan *p, const char *number, const te_step *s, te_pass pass) {
    te_param none[TE_MAX_PARAMS];
    te_run r = te__run_to_print(p, pass, none);
    const long bytes = te_step_row_bytes(p, s, pass);
    const te_op *a = &p->op[s->op[0]], *b = &p->op[s->op[s->count - 1]];
    /* gemm: the op with the GEMM, which is the first op of the step, or the last if that is an expert_linear in FP8. */
    const te_op *gemm = b->experts && b->recipe != TE_RECIPE_none ? b : a;
    const int in_fp8 = (gemm->recipe != TE_RECIPE_none && !TE_IS_MICROSCALED(gemm->recipe) &&
                        !(pass == TE_BACKWARD && TE_IS_ROWWISE(gemm->recipe))) ||
                       ((a->flags & TE_ATTENDS_IN_FP8) && pass != TE_BACKWARD);
    te__print_context(f, p, s, pass, 0);
    fprintf(f, "%4s  %-42s %6d -> %-6d %-5s %8ld  ", number, s->pattern, pass == TE_BACKWARD ? a->out : a->in,
            pass == TE_BACKWARD ? b->in : b->out, in_fp8 ? "fp8" : te_dtype_name(p->dtype), bytes);
    te__print_kernels(f, p, s, pass);
    fprintf(f, "%s%s\n", te__step_operands(gemm, pass), te__step_result(&r, s));
    te__print_context(f, p, s, pass, 1);
    return bytes;
}
/* Print the forward steps that backward runs a second time before step s. These are the steps of each recompute region
 * that has its last op in step s. Returns the bytes per row that these forward steps read and write. */
TE_API long te__print_recompute(FILE *f, const te_plan *p, const te_step *s) {
    long total = 0;
    const te_run r = te__run_to_size(p, TE_BACKWARD, 1, TE_USE_on, 0);
    for (int k = 0; k < p->region_count; k++) {
        int from, to, opens = 0;
        for (int j = 0; j < s->count; j++) opens |= s->op[j] == p->region[k].last;
        te__recompute_steps(&r, k, &from, &to);
        for (int i = from; opens && i < to; i++) total += te__print_step(f, p, "+", &p->forward[i], TE_FORWARD);
    }
    return total;
}
TE_API void te__print_pass(FILE *f, const te_plan *p, const char *title, const te_step *s, int count, te_pass pass) {
    long total = 0;
    fprintf(f, "%s, %d steps", title, count);
    if (pass == TE_BACKWARD && p->region_count) fprintf(f, "; +: a forward step that is recomputed");
    if (te__has_context(p)) fprintf(f, "; c: with batch.context, between the ranks");
    fprintf(f, "\n");
    for (int i = 0; i < count; i++) {
        char number[12];
        snprintf(number, sizeof number, "%d", i + 1);
        if (pass == TE_BACKWARD) total += te__print_recompute(f, p, &s[i]);
        total += te__print_step(f, p, number, &s[i], pass);
    }
    fprintf(f, "      %-42s %6s    %-6s %-5s %8ld\n", "", "", "", "", total);
}
TE_API size_t te__saved_row_bytes(const te_plan *p) {
    return (te_plan_saved_bytes(p, TE_ROW_PAD) - TE_ALIGN) / TE_ROW_PAD;
}
TE_API void te__print_saved(FILE *f, const te_plan *p) {
    te_plan all = *p; /* a copy of *p without recompute regions */
    all.region_count = 0;
    fprintf(f, ", %zu bytes a row saved for backward", te__saved_row_bytes(p));
    if (p->region_count) fprintf(f, " (%zu without recompute)", te__saved_row_bytes(&all));
    if (p->fp8)
        fprintf(f, " (%zu without the recipe)",
                (te_plan_saved_bytes_without_recipe(p, TE_ROW_PAD) - TE_ALIGN) / TE_ROW_PAD);
}
/* Print the beginning of the table's first line. Returns 0 if nothing else can be printed, because f or p is null or
 * the widths are not known yet. */
TE_API int te__print_head(FILE *f, const te_plan *p) {
    if (!f || !p) return 0;
    fprintf(f, "%s: %d ops, %s, ", p->name, p->op_count, te_dtype_name(p->dtype));
    if (p->fp8 && p->fp8->weights != p->dtype) fprintf(f, "weights of products %s, ", te_dtype_name(p->fp8->weights));
    if (p->takes_dims) fprintf(f, "of widths that %s_set_dims sets\n", p->name);
    else fprintf(f, "%lld parameters", (long long)te_plan_param_elements(p));
    return !p->takes_dims;
}
TE_API void te__print_columns(FILE *f) {
    fprintf(f, "\n      %-42s %6s    %-6s %-5s %8s  %s\n", "ops", "in", "out", "dtype", "bytes/row", "kernels");
}
/* Print only the inference pass. */
TE_API void te_plan_print_inference(FILE *f, const te_plan *p) {
    if (!te__print_head(f, p)) return;
    te__print_columns(f);
    te__print_pass(f, p, "inference", p->infer, p->infer_count, TE_INFER);
}
/* Print all passes of a plan. If f or p is null, print nothing. */
TE_API void te_plan_print(FILE *f, const te_plan *p) {
    if (p && !p->training) te_plan_print_inference(f, p);
    if (!p || !p->training || !te__print_head(f, p)) return;
    te__print_saved(f, p);
    te__print_columns(f);
    te__print_pass(f, p, "forward", p->forward, p->forward_count, TE_FORWARD);
    te__print_pass(f, p, "inference", p->infer, p->infer_count, TE_INFER);
    te__print_pass(f, p, "backward", p->backward, p->backward_count, TE_BACKWARD);
}

#endif
