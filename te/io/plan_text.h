/* plan_text.h -- the list of a plan as a text, for a checkpoint: what a model's numbers mean, and where two lists
 * differ.
 *
 * Do this:
 *     te__text t = {buffer, 0};                        // {0, 0} measures
 *     te__plan_text(&t, plan, 1);              // "bf16; fork x1 768>768; layernorm ln1 768>768 00000000 3727c5ac; .."
 *     te__plan_difference(&d, was, buffer);    // "layernorm ln1 768>768 00000000 358637bd", ".. 00000000 3727c5ac"
 *
 * An op is its kind, name, the fork that it reads if that has another name, widths, and the words of its options as
 * they lie in memory (little-endian machines all). So what the shapes of the parameters do not show is in it: heads, an
 * eps, a probability, a causal mask. Of a list for `ranks` of a tensor group, where each has its own columns, the text
 * is that of all columns and all heads: that of the same list for one rank. A list for one rank need not have the
 * collectives of one for several: they say where values are, not what they mean, so two texts do not differ in them.
 */
#ifndef TE_PLAN_TEXT_H
#define TE_PLAN_TEXT_H

#include "../plan/model.h" /* te_plan, te_op */
#include "json.h"          /* te__text */

TE_API void te__plan_text_op(te__text *t, const te_plan *plan, const te_op *op, int ranks) {
    char words[48];
    const int takes = op != plan->op && op[-1].layout == TE_LAYOUT_columns ? ranks : 1;
    const int gives = op->layout == TE_LAYOUT_columns ? ranks : 1;
    const int heads = gives > 1 && !strcmp(op->kind, "attention") ? 2 : 0; /* its first options */
    const int reads = (op->flags & (TE_IS_ADD | TE_IS_MUL | TE_IS_LOAD | TE_IS_CROSS)) != 0;
    const char *kind = op->flags & TE_IS_FROZEN ? "linear" : op->kind; /* a frozen_linear's numbers mean the same */
    te__text_put(t, "; "), te__text_put(t, kind), te__text_char(t, ' '), te__text_put(t, op->name);
    if (reads && strcmp(op->name, plan->op[op->edge].name))
        te__text_put(t, " of "), te__text_put(t, plan->op[op->edge].name);
    snprintf(words, sizeof words, " %lld>%lld", (long long)op->in * takes, (long long)op->out * gives);
    te__text_put(t, words);
    for (int at = 0; at + 4 <= op->options_bytes; at += 4) {
        uint32_t word;
        memcpy(&word, (const char *)op->options + at, 4);
        if (at / 4 < heads) word *= (uint32_t)ranks;
        snprintf(words, sizeof words, " %08x", (unsigned)word), te__text_put(t, words);
    }
}
TE_API void te__plan_text(te__text *t, const te_plan *plan, int ranks) {
    te__text_put(t, te_dtype_name(plan->dtype));
    if (plan->fp8 && plan->fp8->weights != plan->dtype)
        te__text_put(t, ", weights "), te__text_put(t, te_dtype_name(plan->fp8->weights));
    for (int i = 0; i < plan->op_count; i++) te__plan_text_op(t, plan, &plan->op[i], ranks);
}

/* Where two texts differ: the op of each, "" where one has come to its end. */
typedef struct te__plan_pair { char was[80], is[80]; } te__plan_pair;

TE_API size_t te__plan_op_length(const char *s) {
    const char *end = strchr(s, ';');
    return end ? (size_t)(end - s) : strlen(s);
}
/* The text from its next op on that is no collective. */
TE_API const char *te__plan_op_next(const char *s) {
    static const char *const kinds[] = {" all_gather ", " reduce_scatter ", " all_reduce ", " copy_to_group "};
    for (int i = 0; i < 4; i++) {
        if (strncmp(s, kinds[i], strlen(kinds[i]))) continue;
        s += te__plan_op_length(s), s += *s ? 1 : 0;
        i = -1; /* another may follow */
    }
    return s;
}
/* 0: they are the same, but for collectives. */
TE_API int te__plan_difference(te__plan_pair *d, const char *was, const char *is) {
    size_t a = te__plan_op_length(was), b = te__plan_op_length(is);
    while (a == b && !memcmp(was, is, a)) {
        if (!was[a] && !is[b]) return 0;
        was = te__plan_op_next(was + a + (was[a] ? 1 : 0)), is = te__plan_op_next(is + b + (is[b] ? 1 : 0));
        a = te__plan_op_length(was), b = te__plan_op_length(is);
    }
    while (a && *was == ' ') was++, a--;
    while (b && *is == ' ') is++, b--;
    snprintf(d->was, sizeof d->was, "%.*s", (int)te_min((int64_t)a, 79), was);
    snprintf(d->is, sizeof d->is, "%.*s", (int)te_min((int64_t)b, 79), is);
    return 1;
}

#endif
