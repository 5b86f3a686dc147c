/* plan_text.h -- the list of a plan as a text, for a checkpoint: what a model's numbers mean, and where two lists
 * differ.
 *
 * Do this:
 *     te__text t = {buffer, 0};                        // {0, 0} measures
 *     te__plan_text(&t, plan);                         // "bf16; fork x1 768>768 0 0 0; layernorm ln1 768>768 2 1e-05
 * 0; .."
 *     te__plan_difference(&d, was, buffer);            // "layernorm ln1 768>768 2 1e-06 0", "layernorm ln1 768>768 2
 * 1e-05 0"
 *
 * An op is its kind, name, widths, the floats that it saves a row (of attention: its heads), and its two numbers. So
 * what the shapes of the parameters do not show is in it: heads, an eps, a probability, a causal mask.
 */
#ifndef TE_PLAN_TEXT_H
#define TE_PLAN_TEXT_H

#include "../plan/model.h" /* te_plan, te_op */
#include "json.h"          /* te__text */

TE_API void te__plan_text_number(te__text *t, double v) {
    char digits[32];
    snprintf(digits, sizeof digits, "%.9g", v);
    te__text_char(t, ' ');
    for (const char *c = digits; *c; c++) te__text_char(t, *c == ',' ? '.' : *c); /* whatever the locale */
}
TE_API void te__plan_text_op(te__text *t, const te_op *op) {
    te__text_put(t, "; "), te__text_put(t, op->kind), te__text_char(t, ' '), te__text_put(t, op->name);
    te__plan_text_number(t, op->in), te__text_char(t, '>'), te__text_number(t, (uint64_t)(op->out > 0 ? op->out : 0));
    te__plan_text_number(t, op->stats), te__plan_text_number(t, (double)op->value[0]);
    te__plan_text_number(t, (double)op->value[1]);
}
TE_API void te__plan_text(te__text *t, const te_plan *plan) {
    te__text_put(t, te_dtype_name(plan->dtype));
    for (int i = 0; i < plan->op_count; i++) te__plan_text_op(t, &plan->op[i]);
}

/* Where two texts differ: the op of each, "" where one has come to its end. */
typedef struct te__plan_pair { char was[80], is[80]; } te__plan_pair;

TE_API size_t te__plan_op_length(const char *s) {
    const char *end = strchr(s, ';');
    return end ? (size_t)(end - s) : strlen(s);
}
/* 0: they are the same. */
TE_API int te__plan_difference(te__plan_pair *d, const char *was, const char *is) {
    size_t a = te__plan_op_length(was), b = te__plan_op_length(is);
    while (a == b && !memcmp(was, is, a)) {
        if (!was[a] && !is[b]) return 0;
        was += a + (was[a] ? 1 : 0), is += b + (is[b] ? 1 : 0);
        a = te__plan_op_length(was), b = te__plan_op_length(is);
    }
    while (a && *was == ' ') was++, a--;
    while (b && *is == ' ') is++, b--;
    snprintf(d->was, sizeof d->was, "%.*s", (int)te_min((int64_t)a, 79), was);
    snprintf(d->is, sizeof d->is, "%.*s", (int)te_min((int64_t)b, 79), is);
    return 1;
}

#endif
