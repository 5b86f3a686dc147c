/* linear_autotune.h -- chooses a strategy for a forward step (several fused ops) that begins with a linear
 * (linear_strategy.h): by a built-in rule or, if autotuning is on in the context, the strategy that was measured to be
 * the fastest.
 */
#ifndef TE_LINEAR_AUTOTUNE_H
#define TE_LINEAR_AUTOTUNE_H

#include "../../core/tensor_kernels.h" /* te_fill_normal, which fills the operands of timed steps */
#include "../../plan/impl/executor_state.h" /* te__begin */
#include "linear_fp8.h" /* te__fp8_transpose */
#include "linear_strategy.h" /* te__linear_set_epilogue, te__linear_run_strategy */

/* A copy of a forward step, which is timed with each strategy (te_gemm_strategy). `run` reads and writes only scratch
 * memory, never the caller's tensors. */
typedef struct te__linear_trial {
    te_run run;
    const te_step *step;
    const te__linear_kernels *kernels;
    te_gemm gemm;
    int count;
    te_gemm_strategy strategy[TE_STRATEGY_COUNT];
    te_param param[TE_MAX_PATTERN][TE_MAX_PARAMS];
    te_param next; /* stands in for the weight parameter of the next GEMM, if that GEMM reads FP8 */
    te_scales scales;
} te__linear_trial;

/* If the step stores its result in FP8 for the next GEMM, returns the index of that GEMM's op, else -1. */
TE_API int te__linear_next_in_fp8(const te_run *r, const te_step *s) {
    const int next = te__last_step(r, s) ? -1 : te__consumer_of(r, s->op[s->count - 1]);
    return next >= 0 && te__policy(r, next)->stored_by_producer ? next : -1;
}

/* Runs the kernels that GEMM `next` needs, besides the strategy's kernels, before it can read the result in FP8. These
 * kernels are timed as part of the strategy: a cast, if the strategy has not stored the result in FP8; and a transpose,
 * if forward saves the operand for the weight's gradient and the strategy has not stored it transposed. */
TE_API te_status te__linear_trial_rest(te_run *r, int next) {
    void *saved = te__saved_input_of(r, next).x, *p = 0;
    const int cols = r->current.cols;
    if (!te_is_fp8(r->current.dtype)) {
        TE_TRY(te__scratch(r, &p, (size_t)(te__capacity_rows(r) * cols)));
        return r->plan->fp8->cast(r, r->current, &r->param[next]->fp8, 0, TE_e4m3, p, r->pass == TE_FORWARD ? saved : 0,
                                  0);
    }
    if (r->pass != TE_FORWARD || !saved || te__saved_is_transposed(r->saved_transposed, next)) return TE_OK;
    return te__fp8_transpose(r, &p, te__value_of(saved, TE_e4m3, r->current.rows, cols), 1);
}
TE_API te_status te__linear_trial_run(void *arg, int candidate, int repetition, te_context *ctx) {
    te__linear_trial *t = (te__linear_trial *)arg;
    te_run r = t->run;
    te_gemm g = t->gemm;
    (void)repetition;
    const int taken = te__linear_set_epilogue(&g, &r, t->step, t->strategy[candidate]);
    TE_REQUIRE(taken >= 0, ctx, TE_ERROR_STATE, "%s cannot be split so", t->step->pattern);
    TE_TRY(te__linear_run_strategy(&r, t->step, t->kernels, &g, t->strategy[candidate], taken));
    const int next = te__linear_next_in_fp8(&r, t->step);
    return next < 0 ? TE_OK : te__linear_trial_rest(&r, next);
}
/* Return an upper bound, in bytes, on the size of any value that op i reads or writes. */
TE_API size_t te__linear_widest(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    return (size_t)te__padded_rows(r, op->in_rows) * (size_t)te_max(op->in, op->out) * sizeof(float);
}
/* Divides the memory at `base` among the tensors of *t (a copy of a step, which is timed), and sets the pointers in *t
 * to these tensors. of: the run whose step is timed. Returns how many bytes of memory *t needs. */
TE_API size_t te__linear_lay_out(te__linear_trial *t, const te_run *of, char *base) {
    te_run *r = &t->run;
    const te_step *s = t->step;
    size_t at = TE_ALIGN, widest = 0;
    r->rng = (te_rng *)(void *)base;
    t->scales.scale = (float *)(void *)(base + TE_ALIGN / 2), t->scales.amax = t->scales.scale + 1;
    for (int j = 0; j < s->count; j++) {
        const int i = s->op[j];
        const te_op *op = &r->plan->op[i];
        const size_t bytes = te__linear_widest(r, i);
        const int64_t padded = te__padded_rows(r, op->out_rows);
        widest = bytes > widest ? bytes : widest;
        r->act[i] = base + at, at += bytes;
        r->stats[i] = (float *)(void *)(base + at),
        at += (size_t)te_round_up(padded * op->stats * (int64_t)sizeof(float), TE_ALIGN);
        if (op->flags & (TE_IS_ADD | TE_IS_MUL)) {
            r->act[op->edge] = base + at;
            r->edge[op->edge] = te__value_of(base + at, op->edge_dtype, te__rows_in(r, op->in_rows), op->out),
            at += bytes;
        }
        r->param[i] = t->param[j];
        for (int k = 0; k < op->params; k++) {
            te_param *p = &t->param[j][k];
            *p = of->param[i][k], p->data = base + at;
            at += (size_t)te_round_up(p->rows * p->cols * (int64_t)te_dtype_bytes(p->dtype), TE_ALIGN);
        }
    }
    /* r->x and r->y, the model's input and output, lie in this memory, too, because a trial must not write the caller's
     * memory */
    r->x.data = base + at, at += widest;
    r->y.data = base + at, at += widest;
    const te_op *first = &r->plan->op[s->op[0]];
    r->current = te__value_of(base + at, r->plan->dtype, te__rows_in(r, first->in_rows), first->in), at += widest;
    /* if the next GEMM reads FP8: memory for the operand that this step saves for it, and for the inverse scale of the
     * operand */
    const int next = te__linear_next_in_fp8(of, s);
    if (next >= 0 && r->pass == TE_FORWARD) r->saved_input[next] = base + at, at += TE_ALIGN + widest;
    /* the workspace: blocks of `widest` bytes, up to four for a strategy, two for the cast and the transpose after it
     * (te__linear_trial_rest), and one for each op that is a fork (a value with several uses) */
    r->pool.base = base + at;
    return at + (size_t)(s->count + 6) * widest;
}
/* Sets up FP8 in *t, a copy of a step of r: the copy's GEMM reads FP8 operands if the step's GEMM does, and the copy's
 * last kernel stores FP8 if the step's last kernel does. */
TE_API void te__linear_trial_fp8(te__linear_trial *t, const te_run *r) {
    const int next = te__linear_next_in_fp8(r, t->step);
    t->gemm.a_fp8.inverse = t->gemm.b_fp8.inverse = 0;
    te__set_recipe_use(&t->run, next >= 0 ? TE_USE_stored : te__gemm_is_fp8(&t->gemm) ? TE_USE_on : TE_USE_off);
    if (next >= 0) t->next.fp8.scales = &t->scales, t->run.param[next] = &t->next;
}
TE_IF_USED TE_API te_status te__linear_fill_fp8(const te_gemm *g, te_context *ctx) {
    if (!te__gemm_is_fp8(g)) return TE_OK;
    TE_TRY(te_fill_normal((void *)(uintptr_t)g->a, g->a_fp8.dtype, g->m * g->k, 0.0f, 0.25f, 1, 1, ctx));
    return te_fill_normal((void *)(uintptr_t)g->b, g->b_fp8.dtype, g->n * g->k, 0.0f, 0.25f, 1, 2, ctx);
}
/* Chooses the fastest strategy, with one exception: from TE__MANY_ROWS rows on, one kernel for the whole step is
 * chosen even if it took up to TE__ONE_KERNEL_MARGIN percent longer. The reason: autotuning times each strategy alone,
 * on a cool GPU. In training the GPU runs at its power limit and lowers its clock. A separate pass over memory then
 * takes its full time, whereas the epilogue of the one kernel hides this memory traffic. Example: linear_bias_gelu in
 * FP8, 8192 x 16384 with k = 4096, on H200s. Timed alone, one kernel takes 859 to 876 us, and a GEMM and a pointwise
 * kernel together take 854 to 875 us. In a training step the one kernel takes 873 us, and the two kernels together 986
 * us. */
enum { TE__MANY_ROWS = 1024, TE__ONE_KERNEL_MARGIN = 5 /* percent */ };
TE_API int te__linear_fastest(const te__linear_trial *t, const int64_t *ns, int winner) {
    for (int i = 0; winner >= 0 && t->gemm.m >= TE__MANY_ROWS && i < t->count; i++)
        if (t->strategy[i] == TE_STRATEGY_CUSTOM && ns[i] &&
            ns[i] <= ns[winner] + ns[winner] * TE__ONE_KERNEL_MARGIN / 100)
            return i;
    return winner;
}
/* Times the strategies of the step that *t copies, and stores the fastest strategy in *c and in the context's choices.
 * If memory for the tensors of the copy cannot be allocated, the function times nothing and stores the first
 * strategy. */
TE_IF_USED TE_API te_status te__linear_time(te_gemm_choice *c, te__linear_trial *t, const te_run *r) {
    te_context *ctx = r->ctx;
    char error[sizeof ctx->error];
    int64_t ns[TE_STRATEGY_COUNT] = {0};
    int winner = -1;
    size_t bytes = 0;
    void *memory = 0;
    memcpy(error, ctx->error, sizeof error);
    te__begin(&t->run, r->plan, r->pass, r->tokens, r->sequences, ctx);
    t->run.memory = r->memory;
    t->run.dry = 0;
    /* the trial *t has a copy of the step's parameters, but not the model's FP8 scales, so give it scales of its own */
    te__linear_trial_fp8(t, r);
    bytes = te__linear_lay_out(t, r, (char *)(uintptr_t)TE_ALIGN);
    te_status status = te_allocate(ctx, &memory, bytes);
    /* Fill the operands with normally distributed random numbers that are as small as weights are, so that sums over k
     * stay small. */
    const te_dtype dtype = r->plan->dtype;
    if (status == TE_OK)
        status = te_fill_normal(memory, dtype, (int64_t)(bytes / te_dtype_bytes(dtype)), 0.0f, 0.05f, 1, 0, ctx);
    if (status == TE_OK) {
        (void)te__linear_lay_out(t, r, (char *)memory);
        t->gemm.a = t->run.current.data, t->gemm.b = t->run.param[t->step->op[0]]->data;
        status = te__linear_fill_fp8(&t->gemm, ctx);
        if (status == TE_OK)
            status = te__autotune(ns, &winner, t->count, 1, TE__AUTOTUNE_ROUNDS, te__linear_trial_run, t, ctx);
        winner = te__linear_fastest(t, ns, winner);
    }
    te_release(ctx, memory);
    if (status != TE_OK && status != TE_ERROR_MEMORY) return status;
    memcpy(ctx->error, error, sizeof error);
    c->strategy = t->strategy[winner < 0 ? 0 : winner];
    for (int i = 0; winner >= 0 && i < t->count; i++) c->ns[t->strategy[i]] = ns[i];
    te__gemm_store_choice(c, ctx);
    return TE_OK;
}

/* Builds the key of this step in a tuning file: the name of the step's pattern (in FP8 with a description of the
 * operands), the sizes and format of the GEMM, and which outputs are stored. Returns 0 if the name is too long. */
TE_API int te__linear_choice_of(te_gemm_choice *c, const te_run *r, const te_step *s, const te_gemm *g) {
    const te_gemm_tuned t = te__gemm_tuned_of(g);
    const int fp8 = te__gemm_is_fp8(g);
    memset(c, 0, sizeof *c);
    const int n = snprintf(c->pattern, sizeof c->pattern, "%s%s%s", s->pattern, fp8 ? ":" : "",
                           fp8 ? te__operands_text_of(&t).text : "");
    if (n >= (int)sizeof c->pattern) return 0;
    c->m = g->m, c->n = g->n, c->k = g->k, c->dtype = g->dtype, c->training = r->pass == TE_FORWARD;
    for (int j = 1; j < s->count; j++) c->stored_outputs |= (unsigned)(te__policy(r, s->op[j])->output_saved != 0) << j;
    /* bit 0 is 1 if the step stores its result in FP8; bit j is 1 if op j of the step stores its output. Op 0, the
     * linear, has no bit */
    c->stored_outputs |= te__linear_next_in_fp8(r, s) >= 0;
    return 1;
}
/* Times all strategies that can run this step, if there are two or more, and stores the fastest strategy
 * (te__linear_time). otherwise: the default strategy, which is the first candidate; can_fuse: 1 if one kernel for the
 * whole step is a candidate. */
TE_IF_USED TE_API te_status te__linear_autotune(te_gemm_choice *c, te_gemm_strategy otherwise, int can_fuse,
                                                const te_gemm *unfused, te_run *r, const te_step *s,
                                                const te__linear_kernels *kernels) {
    te__linear_trial t;
    memset(&t, 0, sizeof t);
    t.step = s, t.kernels = kernels, t.gemm = *unfused;
    t.strategy[t.count++] = otherwise;
    for (int i = TE_STRATEGY_COUNT - 1; i >= 0; i--) {
        te_gemm tried = *unfused;
        const int can = i != TE_STRATEGY_CUSTOM || can_fuse;
        if (i != (int)otherwise && can && te__linear_set_epilogue(&tried, r, s, (te_gemm_strategy)i) >= 0)
            t.strategy[t.count++] = (te_gemm_strategy)i;
    }
    return t.count < 2 ? TE_OK : te__linear_time(c, &t, r);
}
/* Chooses the strategy of the step and sets up the GEMM for it. *strategy: the chosen strategy; *taken: the number of
 * ops after the linear that the GEMM's epilogue does. The default is the first of the following strategies that is
 * possible: one kernel for the whole step, if a rule expects it to be faster (te/gemm/impl/gemm_dispatch.h); a GEMM
 * whose epilogue does all ops; a GEMM whose epilogue does only the bias, if backward needs the bias's output; a GEMM
 * without an epilogue. With autotuning, the measured choice replaces the default. */
TE_IF_USED TE_API te_status te__linear_choose(te_gemm *g, te_gemm_strategy *strategy, int *taken, te_run *r,
                                              const te_step *s, const te__linear_kernels *kernels) {
    const te_gemm unfused = *g;
    const int can_fuse =
        s->count > 1 && te__linear_can_store(r, s, kernels) && te__gemm_can_fuse(kernels->fused, g, r->ctx);
    int way = can_fuse && te__gemm_is_fused(kernels->fused, g, r->ctx) ? TE_STRATEGY_CUSTOM : TE_STRATEGY_EPILOGUE;
    te_gemm_choice c;
    while ((*taken = te__linear_set_epilogue(g, r, s, (te_gemm_strategy)way)) < 0) way--;
    *strategy = (te_gemm_strategy)way;
    if (g->b_quantized) return TE_OK; /* a quantized weight has only one GEMM kernel */
    /* an FP8 GEMM with an array of scales (one for each row or tile) keeps the default strategy: no strategy is
     * timed */
    if (te__gemm_has_scale_arrays(&unfused)) return TE_OK;
    if (te__pointwise_amax_only(r, s, 1, kernels->shape))
        /* Keep the default strategy: the kernel of this run computes only the amax and stores no result, but strategies
         * were timed with the result stored. */
        return TE_OK;
    if (s->count < 2 || !te__gemm_uses_choices(r->ctx) || !te__linear_choice_of(&c, r, s, &unfused)) return TE_OK;
    const te_gemm_choice *found = te__gemm_find_choice(&c, r->ctx);
#if TE_HAS_AUTOTUNE
    /* the strategies are timed during the dry run (which checks the call but launches none of its kernels), so that the
     * dry run and the run that follows it use the same strategy */
    if (!found && r->dry && te__gemm_may_time(r->ctx)) {
        TE_TRY(te__linear_autotune(&c, *strategy, can_fuse, &unfused, r, s, kernels));
        found = te__gemm_find_choice(&c, r->ctx);
    }
#endif
    if (!found || found->strategy == *strategy || (found->strategy == TE_STRATEGY_CUSTOM && !can_fuse)) return TE_OK;
    te_gemm tried = unfused;
    const int takes = te__linear_set_epilogue(&tried, r, s, found->strategy);
    if (takes >= 0) *g = tried, *taken = takes, *strategy = found->strategy;
    return TE_OK;
}

#endif
