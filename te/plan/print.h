/* print.h -- a plan as a table: step, its ops, kernels, and the bytes a row moves. */
#ifndef TE_PRINT_H
#define TE_PRINT_H

#include <stdio.h> /* FILE */
#include "impl/executor.h" /* te_plan, te_plan_saved_bytes */

TE_API int te__step_sums(const te_plan *p, const te_step *s) {
    int sums = 0;
    for (int j = 0; j < s->count; j++) sums |= p->op[s->op[j]].flags & TE_SUMS;
    return sums;
}
/* Whether a chain of backward changes the gradient that it hands on, and has a kernel for tiles (pointwise_quantize_transpose.h). */
TE_API int te__turns_gradient(const te_plan *p, const te_step *s) {
    const int skip = p->op[s->op[0]].op_class == TE_CLASS_gemm;
    int changed = 0;
    if (p->op[s->op[0]].op_class == TE_CLASS_custom) return 0;
    for (int j = skip; j < s->count; j++) {
        const te_op *op = &p->op[s->op[j]];
        const int halves_straddle = op->op_class == TE_CLASS_gated && op->out % TE_FP8_BLOCK;
        if (op->op_class == TE_CLASS_norm || (op->flags & TE_SUMS_THREE) || halves_straddle) return 0;
        changed = op->flags & TE_IS_ADD ? 0 : changed || !(op->flags & TE_GRAD_UNCHANGED);
    }
    return changed && p->fp8->fixed;
}
/* In how many forms a step's chain stores its result in FP8 with scales of its own: as it lies, and transposed. */
TE_API int te__step_forms(const te_run *r, const te_step *s) {
    const te_plan *p = r->plan;
    const int last = s->op[s->count - 1], back = r->pass == TE_BACKWARD, next = back ? last - 1 : last + 1;
    const te_op *end = &p->op[last];
    if (next < 0 || !te_is_in_fp8(r, next) || TE_IS_TENSORWISE(p->op[next].recipe)) return 0;
    if (end->op_class == TE_CLASS_gemm || end->op_class == TE_CLASS_custom) return 0;
    if ((!back && (end->flags & TE_IS_FORK)) || (back ? end->in_dtype : end->out_dtype) != p->dtype) return 0;
    if (!te_is_tiled(r, next)) return p->fp8->fixed || end->op_class == TE_CLASS_norm;
    if (back) return !te__turns_gradient(p, s) ? 0 : p->op[next].flags & TE_IS_FROZEN ? 1 : 2;
    if (r->pass == TE_INFER || !te__keeps_fp8(r, next)) return !(r->pass == TE_FORWARD && te_in_memory(r, last));
    return p->fp8->fixed && !te_in_memory(r, last) ? 2 : 0;
}
/* And what of a row that saves against the list's format. */
TE_API long te__step_saves(const te_run *r, const te_step *s) {
    const te_op *end = &r->plan->op[s->op[s->count - 1]];
    const int forms = te__step_forms(r, s);
    const long width = r->pass == TE_BACKWARD ? end->in : end->out, size = (long)te_dtype_bytes(r->plan->dtype);
    if (!forms) return 0;
    if (TE_IS_ROWWISE(r->plan->op[s->op[s->count - 1] + 1].recipe))
        return (r->pass == TE_FORWARD ? 0 : width * size) - width - (long)sizeof(float);
    return width * size - forms * (width + width * (long)sizeof(float) / TE_FP8_BLOCK);
}
/* Bytes a row that a step has to move at least: its input, its output, what it keeps for backward or reads of it, and
 * the residual edges. Weights are left out: they do not grow with the rows. */
TE_API long te_step_row_bytes(const te_plan *p, const te_step *s, te_pass pass) {
    const te_run r = te_run_to_size(p, pass, 1, TE_USE_on, 0);
    const long size = (long)te_dtype_bytes(p->dtype);
    const te_op *first = &p->op[s->op[0]], *last = &p->op[s->op[s->count - 1]];
    long n = (pass == TE_BACKWARD ? first->out + last->in : first->in + last->out) * size;
    if (first->flags & TE_FROM_TOKENS)
        n = first->out * (pass == TE_BACKWARD ? size + 8 : 2 * size); /* weight read; gradient read and written */
    if (first->flags & TE_IS_LOAD) return pass != TE_BACKWARD || te_is_last_use(p, s->op[0]) ? 0 : 3 * first->out * size;
    int hands_on = 1; /* a fork by itself moves nothing; in backward one before a load does */
    for (int j = 0; j < s->count; j++) {
        const int i = s->op[j], loads = i + 1 < p->op_count && (p->op[i + 1].flags & TE_IS_LOAD);
        hands_on = hands_on && (p->op[i].flags & TE_IS_FORK) && (pass != TE_BACKWARD || (loads && s->count == 1));
    }
    if (hands_on) return 0;
    int passes_on = pass == TE_BACKWARD; /* the gradient stays where it is: an add, a bias */
    for (int j = 0; j < s->count; j++) passes_on = passes_on && (p->op[s->op[j]].flags & TE_GRAD_UNCHANGED);
    if (passes_on) n = te__step_sums(p, s) ? first->out * size : 0;
    for (int j = 0; j < s->count; j++) {
        const int i = s->op[j];
        const te_op *op = &p->op[i];
        if (pass != TE_INFER) n += op->stats * (long)sizeof(float);
        if (pass == TE_BACKWARD) {
            const int reads = (op->flags & TE_SAVES_INPUT) || te_recomputes_logits(p, i);
            if (reads && !(i && te_recomputes_logits(p, i - 1))) n += op->in * size;
            if ((op->flags & TE_IS_FORK) && !(op->flags & TE_IS_INPUT))
                n += op->out * size; /* an input's gradient went to its caller */
            const int joins = op->edge >= 0 && !te_is_last_use(p, i); /* the gradient so far is read, the sum written */
            if ((op->flags & TE_IS_ADD) && joins) n += (passes_on && s->count == 1 ? 3 : 2) * op->out * size;
            else if ((op->flags & TE_IS_ADD) && j && j + 1 < s->count) n += op->out * size;
            if (op->flags & TE_IS_MUL) n += (joins ? 3 : 2) * op->out * size; /* what was kept, and its gradient */
        } else {
            /* an add or mul reads what was kept, unless the step begins with that */
            if ((op->flags & (TE_IS_ADD | TE_IS_MUL)) &&
                (op->edge + 1 != s->op[0] || (p->op[op->edge].flags & TE_IS_INPUT)))
                n += op->in * size;
            if (pass == TE_FORWARD && j + 1 < s->count && te_in_memory(&r, i) && !(op->flags & TE_IS_FORK))
                n += op->out * size;
        }
    }
    return n - te__step_saves(&r, s);
}
/* What the products of a step read, where that is more than "fp8" says. */
TE_API const char *te__step_operands(const te_op *first, te_pass pass) {
    if ((first->flags & TE_ATTENDS_IN_FP8) && pass != TE_BACKWARD) return ", e4m3 by heads";
    if (TE_IS_ROWWISE(first->recipe) && pass != TE_BACKWARD) return ", e4m3 by rows";
    if (!TE_IS_BLOCKWISE(first->recipe)) return "";
    if (pass != TE_BACKWARD) return ", e4m3 by 1x128 and 128x128";
    return first->flags & TE_IS_FROZEN ? ", e4m3 by 1x128 and 128x128"
                                       : ", e4m3 by 1x128 and 128x128, dweight by 1x128 and 1x128";
}
/* What it stores, where that is not of the list's format. */
TE_API const char *te__step_result(const te_run *r, const te_step *s) {
    const int next = s->op[s->count - 1] + 1;
    switch (te__step_forms(r, s)) {
    case 0: return "";
    case 1: return r->pass != TE_BACKWARD && TE_IS_ROWWISE(r->plan->op[next].recipe) ? "; gives e4m3 by rows"
                                                                                    : "; gives e4m3 by 1x128";
    default: return "; gives e4m3 by 1x128 and 128x1";
    }
}
/* Whether a row over ranks has a kernel that goes through the memory which ranks map (te/comm/peer_row.h). */
TE_API int te__has_peer_kernel(const te_plan *p, const te_step *s) {
    const te_op *first = &p->op[s->op[0]];
    int norm = 0;
    if (s->count < 3 || first->op_class != TE_CLASS_custom || !(first->flags & TE_TAKES_PRODUCT)) return 0;
    for (int j = 2; j < s->count; j++) norm |= p->op[s->op[j]].op_class == TE_CLASS_norm;
    return norm && !p->takes_dims && first->out % 8 == 0;
}
/* What a step launches. A product in front of a row over ranks sends to the others where it is a kernel of ours. */
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
/* One line; returns the bytes. */
TE_API long te__print_step(FILE *f, const te_plan *p, const char *number, const te_step *s, te_pass pass) {
    const te_run r = te_run_to_size(p, pass, 1, TE_USE_on, 0);
    const long bytes = te_step_row_bytes(p, s, pass);
    const te_op *a = &p->op[s->op[0]], *b = &p->op[s->op[s->count - 1]];
    const int in_fp8 = (a->recipe != TE_RECIPE_none && !(pass == TE_BACKWARD && TE_IS_ROWWISE(a->recipe))) ||
                       ((a->flags & TE_ATTENDS_IN_FP8) && pass != TE_BACKWARD);
    fprintf(f, "%4s  %-42s %6d -> %-6d %-5s %8ld  ", number, s->row, pass == TE_BACKWARD ? a->out : a->in,
            pass == TE_BACKWARD ? b->in : b->out, in_fp8 ? "fp8" : te_dtype_name(p->dtype), bytes);
    te__print_kernels(f, p, s, pass);
    fprintf(f, "%s%s\n", te__step_operands(a, pass), te__step_result(&r, s));
    return bytes;
}
/* The forward steps that backward runs again before step s: of the spans that s is the first to reach. */
TE_API long te__print_recompute(FILE *f, const te_plan *p, const te_step *s) {
    long total = 0;
    const te_run r = te_run_to_size(p, TE_BACKWARD, 1, TE_USE_on, 0);
    for (int k = 0; k < p->span_count; k++) {
        int from, to, reached = 0;
        for (int j = 0; j < s->count; j++) reached |= s->op[j] == p->span[k].last;
        te__recompute_steps(&r, k, &from, &to);
        for (int i = from; reached && i < to; i++) total += te__print_step(f, p, "+", &p->forward[i], TE_FORWARD);
    }
    return total;
}
TE_API void te__print_pass(FILE *f, const te_plan *p, const char *title, const te_step *s, int count, te_pass pass) {
    long total = 0;
    fprintf(f, "%s, %d steps", title, count);
    if (pass == TE_BACKWARD && p->span_count) fprintf(f, "; +: a step of forward that runs again");
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
    te_plan all = *p; /* the same, with nothing run again */
    all.span_count = 0;
    fprintf(f, ", %zu bytes a row saved for backward", te__saved_row_bytes(p));
    if (p->span_count) fprintf(f, " (%zu without recompute)", te__saved_row_bytes(&all));
    if (p->fp8)
        fprintf(f, " (%zu without the recipe)",
                (te_plan_saved_bytes_without_recipe(p, TE_ROW_PAD) - TE_ALIGN) / TE_ROW_PAD);
}
/* The first line without its end; 0: widths are not known yet, and there is no more to say. */
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
/* The inference alone. */
TE_API void te_plan_print_inference(FILE *f, const te_plan *p) {
    if (!te__print_head(f, p)) return;
    te__print_columns(f);
    te__print_pass(f, p, "inference", p->infer, p->infer_count, TE_INFER);
}
/* All passes that the list has. */
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
