/* linear_strategy.h -- the strategies for a forward step (several fused ops) that begins with a linear. One strategy
 * runs the whole step as one kernel of this library (linear_epilogue.h). The other strategies run a GEMM in a back end
 * (such as cuBLASLt). The epilogue of this GEMM does none, some or all of the ops that follow the linear (a bias, a
 * gelu, a scale, a residual); if ops remain, one pointwise kernel does them after the GEMM.
 */
#ifndef TE_LINEAR_STRATEGY_H
#define TE_LINEAR_STRATEGY_H

#include "../../ops/elementwise.h" /* te_scale_options */
#include "linear_epilogue.h" /* te__product_step_forward, te__unfused_gemm_run */

/* The kernels of a step that begins with a linear. launch, shape: the pointwise kernel that runs after the GEMM, and
 * its compile-time properties; fused: GEMM kernels with the step's other ops in the epilogue; unfused: GEMM kernels
 * without other ops. A pointer is null if the step has no such kernel. */
typedef struct te__linear_kernels {
    te_pointwise_launch_fn launch;
    te_pointwise_shape shape;
    te_product_kernels *fused, *unfused;
} te__linear_kernels;

/* Returns whether one kernel for the whole step can store the step's result in the format that the consumer reads. Such
 * a kernel can store FP8 only if the model names a recipe. Under a recipe, a step with a gated op runs as one kernel
 * only in inference (linear_epilogue.h). */
TE_API int te__linear_can_store(const te_run *r, const te_step *s, const te__linear_kernels *kernels) {
    const int last = s->op[s->count - 1], next = r->pass == TE_BACKWARD ? last - 1 : last + 1;
    if (r->pass == TE_FORWARD && kernels->shape.in_halves == 2 && te__policy(r, s->op[0])->fp8) return 0;
    return kernels->shape.fp8 || te__last_step(r, s) || next < 0 || !te__policy(r, next)->stored_by_producer;
}

/* Says which size of a GEMM is the number of rows of the call's input: m in the GEMMs for y and dx, k in the GEMM for
 * the weight's gradient. */
typedef enum te_rows_of_product { TE_ROWS_OF_m, TE_ROWS_OF_k } te_rows_of_product;

/* Runs the GEMM g: by one of the library's kernels `unfused` (may be null), if one of these is chosen for g, else by
 * the back end (such as cuBLASLt). On the host the GEMM gets scratch memory from the workspace. rows: whether g->m or
 * g->k is the call's number of rows. */
TE_API te_status te__linear_gemm(te_run *r, te_gemm *g, te_rows_of_product rows, te_product_kernels *unfused) {
    /* g with the largest number of rows of any call, so that the size of the scratch memory does not depend on the
     * call */
    te_gemm capacity = *g;
    *(rows == TE_ROWS_OF_k ? &capacity.k : &capacity.m) = te__capacity_rows(r);
    const te_quantized_ops *quantized = r->plan->quantized;
    size_t bytes = g->b_quantized ? 0 : te__gemm_scratch(&capacity) * sizeof(float);
    void *scratch = 0;
    /* A weight that is not quantized now may be quantized later, so the workspace is made large enough for both
     * cases. */
    if (quantized && quantized->scratch)
        bytes = (size_t)te_max((int64_t)bytes, (int64_t)quantized->scratch(&capacity));
    if (bytes) TE_TRY(te__scratch(r, &scratch, bytes));
    if (r->dry) TE_TRY(te__gemm_check(g, r->plan->name, r->ctx));
    if (r->dry) TE_TRY(te__gemm_check_fp8(g, r->plan->name, r->ctx));
    if (te_gemm_is_custom(unfused, g, r->ctx)) return r->dry ? TE_OK : te__unfused_gemm_run(unfused, g, r->ctx);
    g->scratch = (float *)scratch;
    if (r->dry) return TE_OK;
    if (g->b_quantized) return quantized->product(g, r->ctx);
    if (g->a_fp8.scaling == TE_SCALING_BLOCKWISE_1D) return r->plan->fp8->gemm_blockwise(g, r->ctx);
    return te__gemm_is_fp8(g) ? r->plan->fp8->product(g, r->ctx) : r->plan->product(g, r->ctx);
}

/* If cuBLASLt runs the GEMM g and adds a matrix C, sets g->d to memory other than C's: to `elsewhere` or, if that is
 * null, to new scratch memory, from which te__end_converted later copies the result. cuBLASLt rounds differently if C
 * and D are the same matrix, but a call must have bitwise identical results whether or not the caller passes the same
 * memory for x and y. made: the value that is stored at g->d; unfused: as in te__linear_gemm. Call this before
 * te__linear_gemm, when g->c and g->d are set. */
TE_API te_status te__linear_avoid_place(te_gemm *g, te_value *made, void *elsewhere, te_run *r,
                                        te_product_kernels *unfused) {
    if (!te__gemm_depends_on_place(g) || te_gemm_is_custom(unfused, g, r->ctx)) return TE_OK;
    const size_t bytes = (size_t)(te__capacity_rows(r) * made->cols) * te_dtype_bytes(made->dtype);
    if (!elsewhere) TE_TRY(te__scratch(r, &elsewhere, bytes));
    g->d = made->data = elsewhere;
    return TE_OK;
}

/* ---- the strategies ---------------------------------------------------------------------------------------------- */

TE_API int te__linear_has(const te_run *r, const te_step *s, int j, int flag) {
    return j < s->count && (r->plan->op[s->op[j]].flags & flag);
}
/* Returns whether all values that the step's ops write, and all residuals (outputs of forks) that these ops add, are in
 * the model's number format. */
TE_API int te__linear_is_uniform(const te_run *r, const te_step *s) {
    int same = 1;
    for (int j = 0; j < s->count; j++) {
        const te_op *op = &r->plan->op[s->op[j]];
        same =
            same && op->out_dtype == r->plan->dtype && (!(op->flags & TE_IS_ADD) || op->edge_dtype == r->plan->dtype);
    }
    return same;
}

/* Returns whether a back end (such as cuBLASLt) can run the GEMM g with the epilogue that g names. */
TE_API int te__linear_supports(const te_gemm *g, const te_run *r) {
    if (g->epilogue == TE_EPILOGUE_BIAS && g->a_fp8.scaling == TE_SCALING_BLOCKWISE_1D)
        return r->plan->fp8->blockwise_takes_bias(g, r->ctx);
    return te__gemm_supports(g, r->ctx);
}
/* Sets up g's epilogue as `strategy` requires. Returns how many of the step's ops after the linear this epilogue does,
 * or -1 if the back end has no such epilogue for this step. */
TE_API int te__linear_set_epilogue(te_gemm *g, te_run *r, const te_step *s, te_gemm_strategy strategy) {
    const int rest = s->count - 1;
    int j = 1;
    g->alpha = 1.0f, g->beta = 0, g->epilogue = TE_EPILOGUE_NONE, g->bias = 0, g->aux = 0;
    if (strategy == TE_STRATEGY_BARE || strategy == TE_STRATEGY_CUSTOM) return 0;
    if (rest && !te__linear_is_uniform(r, s)) return -1;
    if (strategy == TE_STRATEGY_BIAS) {
        /* Adding only the bias in the epilogue pays only if forward saves the output of the bias for backward: the GEMM
         * then stores this output, and the pointwise kernel, which does the other ops, need not store it. */
        const int saved = rest >= 2 && r->pass == TE_FORWARD && te__policy(r, s->op[1])->output_saved;
        if (!saved || !te__linear_has(r, s, 1, TE_EPILOGUE_OF_BIAS)) return -1;
        g->epilogue = TE_EPILOGUE_BIAS, g->bias = r->param[s->op[1]]->data;
        return te__linear_supports(g, r) ? 1 : -1;
    }
    if (te__linear_has(r, s, j, TE_EPILOGUE_OF_SCALE))
        g->alpha = ((const te_scale_options *)r->plan->op[s->op[j++]].options)->factor;
    if (te__linear_has(r, s, j, TE_EPILOGUE_OF_BIAS)) {
        g->epilogue = TE_EPILOGUE_BIAS, g->bias = r->param[s->op[j]]->data;
        /* If backward recomputes the result of gelu, it uses the library's gelu, which is not bitwise identical to
         * cuBLASLt's gelu. In that case forward must use the library's gelu, too. */
        const int recomputed = r->pass == TE_FORWARD && j < rest &&
                          te__policy(r, te__consumer_of(r, s->op[j + 1]))->input == TE_INPUT_recomputed;
        if (te__linear_has(r, s, j + 1, TE_EPILOGUE_OF_GELU) && j + 1 == rest && !recomputed) {
            g->epilogue = r->pass == TE_FORWARD ? TE_EPILOGUE_GELU_AUX_BIAS : TE_EPILOGUE_GELU_BIAS;
            if (r->pass == TE_FORWARD) g->aux = r->act[s->op[j]];
            j++;
        }
        j++;
    }
    if (te__linear_has(r, s, j, TE_IS_ADD) && j == rest) g->beta = 1.0f, j++;
    return j > rest && te__linear_supports(g, r) ? rest : -1;
}
/* Runs the step as one GEMM, whose epilogue does all other ops of the step. scratch: memory for a value of the same
 * shape and dtype as the step's result. */
TE_API te_status te__linear_in_epilogue(te_run *r, const te_step *s, const te__linear_kernels *kernels, te_gemm *g,
                                        void *scratch) {
    const int last = s->op[s->count - 1];
    const te_op *op = &r->plan->op[last];
    te_value y, c, converted;
    TE_TRY(te__output(&y, r, s, last));
    TE_TRY(te__begin_converted(&converted, &y, r, g->out));
    g->d = converted.data;
    if (g->beta != 0) {
        TE_TRY(te__fork_value(&c, r, op));
        g->c = c.data;
        te__release_fork(r, last);
        TE_TRY(te__linear_avoid_place(g, &converted, scratch, r, kernels->unfused));
    }
    TE_TRY(te__linear_gemm(r, g, TE_ROWS_OF_m, kernels->unfused));
    TE_TRY(te__end_converted(&y, &converted, r));
    te__set_current(r, y);
    return TE_OK;
}
/* Runs the step as a GEMM, whose epilogue does the first `taken` ops after the linear, and a pointwise kernel, which
 * does all other ops. product: memory for the GEMM's result. */
TE_API te_status te__linear_then_pointwise(te_run *r, const te_step *s, const te__linear_kernels *kernels, te_gemm *g,
                                           int taken, te_value product) {
    g->d = product.data;
    TE_TRY(te__linear_gemm(r, g, TE_ROWS_OF_m, kernels->unfused));
    return te__pointwise_step_forward(r, s, 1, taken, product, kernels->launch, kernels->shape);
}
/* Runs the forward step by the chosen strategy. taken: the number of ops after the linear that the GEMM's epilogue
 * does. */
TE_API te_status te__linear_run_strategy(te_run *r, const te_step *s, const te__linear_kernels *kernels, te_gemm *g,
                                  te_gemm_strategy strategy, int taken) {
    const te_op *linear = &r->plan->op[s->op[0]];
    const int part = strategy != TE_STRATEGY_CUSTOM && taken < s->count - 1;
    te_value product = te__output_of(r, s->op[taken]), middle;
    /* Acquire memory for the GEMM's result under every strategy, even if the strategy does not store that result. The
     * strategy depends on the number of rows and on timings, and the size of the workspace must not. */
    if (s->count > 1 && (r->pass != TE_FORWARD || !te__policy(r, s->op[0])->output_saved))
        TE_TRY(te__acquire(r, &middle, linear->out_rows, linear->out, linear->out_dtype));
    else middle = te__no_value();
    if (r->pass != TE_FORWARD || !te__policy(r, s->op[taken])->output_saved || !product.data)
        product.data = middle.data, product.block = middle.block;
    if (strategy == TE_STRATEGY_CUSTOM)
        return te__product_step_forward(r, s, kernels->fused, g, kernels->shape, product,
                                       r->pass == TE_FORWARD && te__policy(r, s->op[0])->output_saved);
    return part ? te__linear_then_pointwise(r, s, kernels, g, taken, product)
                : te__linear_in_epilogue(r, s, kernels, g, middle.data);
}

#endif
