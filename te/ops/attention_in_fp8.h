/* attention_in_fp8.h -- the option (fp8, 1) of attention, which te/ops/attention.h describes: what it does not go with,
 * its kernels, and the scratch memory that they get.
 */
#ifndef TE_OPS_ATTENTION_IN_FP8_H
#define TE_OPS_ATTENTION_IN_FP8_H

#include "../attention/attention_kernels.h" /* TE_ATTENTION_FORWARD_FP8 */
#include "../plan/impl/executor_state.h"              /* te_scratch */
#include "score_bias.h"                     /* TE__SINKS_1 */

/* `yes` if the op says (fp8, 1): the preprocessor has to know it, for it brings other kernels. */
#define TE__IF_FP8(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE__SINKS_, TE_OPTION(op, fp8, 0)), yes, no)
#define TE__FP8(op) TE__IF_FP8(op, 1, 0)
#define TE__CHECK_FP8(model, op, head_dim)                                                                           \
     static_assert((TE_OPTION(op, fp8, 0)) == TE__FP8(op),                                                           \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": fp8 must be 0 or 1");                               \
     static_assert(!TE__FP8(op) || (head_dim) == 64 || (head_dim) == 128 || (head_dim) == 256,                       \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": with fp8 head_dim must be 64, 128 or 256");         \
     TE__FP8_WITHOUT(model, op, softcap) TE__FP8_WITHOUT(model, op, dropout) TE__FP8_WITHOUT(model, op, varlen)      \
     TE__FP8_WITHOUT(model, op, alibi) TE__FP8_WITHOUT(model, op, sinks) TE__FP8_WITHOUT(model, op, bias)            \
     TE__FP8_WITHOUT(model, op, relative_bias) TE__FP8_WITHOUT(model, op, max_logit)                                 \
     TE__FP8_WITHOUT(model, op, value_dim)
#define TE__FP8_WITHOUT(model, op, option)                                                                           \
     static_assert(!TE__FP8(op) || !TE_HAS_OPTION(op, option),                                                       \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": fp8 does not go with " #option);
#define TE__ATTENTION_FP8(direction, name, model, dtype, op)                                                       \
    TE_ATTENTION_##direction##_FP8(name, dtype, (int)(TE_ARG1(op, 0)), (int)(TE_ARG2(op, 0)),                      \
                                   (int)(TE_ARG3(op, 0)), TE__ATTENTION_FORM_OF(op, 0, 0,                          \
                                       TE__ATTENTION_GIVES_##direction(model)))                                    \
    static const te_attention_in_fp8 name##_fp8 = {name##_ready, name##_scratch_bytes};

typedef size_t (*te_attention_scratch_fn)(te_context *ctx, int64_t rows);

/* Of (fp8, 1): whether the context's device has the kernel, and the scratch memory that it needs. */
typedef struct te_attention_in_fp8 {
    te_status (*ready)(te_context *ctx);
    te_attention_scratch_fn scratch_bytes;
} te_attention_in_fp8;
TE_API te_status te__attention_fp8_begin(te_attention_args *a, te_run *r, const te_attention_in_fp8 *fp8, int heads) {
    TE_TRY(te_scratch(r, &a->scratch, fp8->scratch_bytes(r->ctx, te_capacity_rows(r))));
    if (!r->dry || !r->batch) return TE_OK;
    TE_TRY(fp8->ready(r->ctx));
    return te__attention_check_fp8(r->ctx, a, heads, r->plan->name);
}

#endif
