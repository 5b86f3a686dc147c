/* rope_scaling.h -- frequencies of rope for sequences longer than a model was first trained on: the options
 * (scaling, linear), (scaling, llama3) and (scaling, yarn), with (factor, ..) and those below, by the names that they
 * have in a model's config.json.
 *
 * Pair p has frequency f = base^(-2p / rotary_dim). With L = original_length, the length of the first training,
 *     f' = f (s + (1 - s) / factor),  s = 1: as it was, s = 0: positions interpolated
 *     linear  s = 0 (Chen et al. 2023)
 *     llama3  s = (L f / (2 pi) - low_freq_factor) / (high_freq_factor - low_freq_factor), within 0 and 1 (Llama 3.1);
 *             (low_freq_factor, 1), (high_freq_factor, 4)
 *     yarn    s = 1 - (p - low) / (high - low), within 0 and 1 (Peng et al. 2023). The pair that turns `beta` times in
 *             L tokens is d(beta) = rotary_dim log(L / (2 pi beta)) / (2 log(base)); low = max(0, floor(d(beta_fast))),
 *             high = min(rotary_dim - 1, ceil(d(beta_slow))), or d itself with (truncate, 0); (beta_fast, 32),
 *             (beta_slow, 1). q and k are multiplied by (attention_factor, 0.1 log(factor) + 1) where they turn.
 */
#ifndef TE_OPS_ROPE_SCALING_H
#define TE_OPS_ROPE_SCALING_H

#include "../core/target.h" /* TE_FN */
#include "../plan/op_list.h"   /* TE_OPTION */
#include <math.h>

typedef enum te_rope_scaling {
    TE_ROPE_SCALING_none,
    TE_ROPE_SCALING_linear,
    TE_ROPE_SCALING_llama3,
    TE_ROPE_SCALING_yarn
} te_rope_scaling;

#define TE_TAKES_rope_scaling TE_TOKEN
#define TE_TAKES_rope_factor TE_NUMBER
#define TE_TAKES_rope_original_length TE_INTEGER
#define TE_TAKES_rope_low_freq_factor TE_NUMBER
#define TE_TAKES_rope_high_freq_factor TE_NUMBER
#define TE_TAKES_rope_beta_fast TE_NUMBER
#define TE_TAKES_rope_beta_slow TE_NUMBER
#define TE_TAKES_rope_truncate TE_INTEGER
#define TE_TAKES_rope_attention_factor TE_NUMBER
#define TE_SAME_scaling_scaling ,
#define TE_SAME_factor_factor ,
#define TE_SAME_original_length_original_length ,
#define TE_SAME_low_freq_factor_low_freq_factor ,
#define TE_SAME_high_freq_factor_high_freq_factor ,
#define TE_SAME_beta_fast_beta_fast ,
#define TE_SAME_beta_slow_beta_slow ,
#define TE_SAME_truncate_truncate ,
#define TE_SAME_attention_factor_attention_factor ,

#define TE__ROPE_SCALING(op) TE__ROPE_SCALING_OF(TE_OPTION(op, scaling, none))
#define TE__ROPE_SCALING_OF(token) TE_JOIN1(TE_ROPE_SCALING_, token)
#define TE__ROPE_IS(op, which) ((int)TE__ROPE_SCALING(op) == (int)TE_ROPE_SCALING_##which)
#define TE__ROPE_NUMBER(op, name, otherwise) ((float)(TE_OPTION(op, name, otherwise)))
/* The members of te_rope_options from `scaling` on. */
#define TE_ROPE_SCALING_OPTIONS(op) TE__ROPE_SCALING(op), TE_OPTION(op, original_length, 0),                         \
    TE_OPTION(op, truncate, 1), TE__ROPE_NUMBER(op, factor, 1), TE__ROPE_NUMBER(op, low_freq_factor, 1),             \
    TE__ROPE_NUMBER(op, high_freq_factor, 4), TE__ROPE_NUMBER(op, beta_fast, 32), TE__ROPE_NUMBER(op, beta_slow, 1), \
    TE__ROPE_NUMBER(op, attention_factor, 0)

#define TE__ROPE_SAYS(model, op) "te: " TE_STRING(model) ": " TE_CALLED(op) ": "
#define TE__ROPE_BETWEEN(op, name, otherwise, low) \
    (TE__ROPE_NUMBER(op, name, otherwise) >= (low) && TE__ROPE_NUMBER(op, name, otherwise) < 3e38f)
#define TE_CHECK_ROPE_SCALING(model, op)                                                                         \
    static_assert(TE__ROPE_IS(op, none) || TE_HAS_OPTION(op, factor),                                            \
                  TE__ROPE_SAYS(model, op) "scaling needs (factor, ..)");                                        \
    static_assert(!TE__ROPE_IS(op, none) || !(TE_HAS_OPTION(op, factor) + TE_HAS_OPTION(op, original_length)),   \
                  TE__ROPE_SAYS(model, op) "factor and original_length need (scaling, linear), llama3 or yarn"); \
    static_assert(TE__ROPE_IS(op, llama3) ||                                                                     \
                      !(TE_HAS_OPTION(op, low_freq_factor) + TE_HAS_OPTION(op, high_freq_factor)),               \
                  TE__ROPE_SAYS(model, op) "low_freq_factor and high_freq_factor need (scaling, llama3)");       \
    static_assert(TE__ROPE_IS(op, yarn) || !(TE_HAS_OPTION(op, beta_fast) + TE_HAS_OPTION(op, beta_slow) +       \
                                             TE_HAS_OPTION(op, truncate) + TE_HAS_OPTION(op, attention_factor)), \
                  TE__ROPE_SAYS(model, op)                                                                       \
                  "beta_fast, beta_slow, truncate and attention_factor need (scaling, yarn)");                   \
    static_assert(TE__ROPE_IS(op, none) || TE__ROPE_IS(op, linear) || (TE_OPTION(op, original_length, 0)) > 0,   \
                  TE__ROPE_SAYS(model, op) "llama3 and yarn need a positive original_length");                   \
    static_assert((TE_OPTION(op, truncate, 1)) == 0 || (TE_OPTION(op, truncate, 1)) == 1,                        \
                  TE__ROPE_SAYS(model, op) "truncate must be 0 or 1");                                           \
    TE_ASSERT_NUMBER(TE__ROPE_BETWEEN(op, factor, 1, 1), TE__ROPE_SAYS(model, op) "factor must be at least 1");  \
    TE_ASSERT_NUMBER(TE__ROPE_BETWEEN(op, low_freq_factor, 1, 0) &&                                              \
                         TE__ROPE_NUMBER(op, high_freq_factor, 4) > TE__ROPE_NUMBER(op, low_freq_factor, 1) &&   \
                         TE__ROPE_BETWEEN(op, high_freq_factor, 4, 0),                                           \
                     TE__ROPE_SAYS(model, op)                                                                    \
                     "high_freq_factor must be above low_freq_factor, and that at least 0");                     \
    TE_ASSERT_NUMBER(TE__ROPE_NUMBER(op, beta_slow, 1) > 0 &&                                                    \
                         TE__ROPE_BETWEEN(op, beta_fast, 32, TE__ROPE_NUMBER(op, beta_slow, 1)),                 \
                     TE__ROPE_SAYS(model, op) "beta_fast must be at least beta_slow, and that above 0");         \
    TE_ASSERT_NUMBER(TE__ROPE_BETWEEN(op, attention_factor, 0, 0),                                               \
                     TE__ROPE_SAYS(model, op) "attention_factor must be a finite number of at least 0");         \
    TE_ASSERT_NUMBER(!TE__ROPE_IS(op, yarn) || (TE_OPTION(op, base, 10000.0f)) > 1,                              \
                     TE__ROPE_SAYS(model, op) "yarn needs a base above 1");

typedef struct te_rope_options {
    int rotary_dim, interleaved;
    float base;
    te_rope_scaling scaling;
    int original_length, truncate;
    float factor, low_freq_factor, high_freq_factor, beta_fast, beta_slow;
    float attention_factor; /* 0: 0.1 log(factor) + 1 */
} te_rope_options;

/* What a kernel needs of it: s = by_frequency f + by_pair p + offset, within 0 and 1. */
typedef struct te_rope_scale {
    double by_frequency, by_pair, offset, inverse_factor;
    float magnitude; /* of cosines and sines */
} te_rope_scale;

TE_FN double te_rope_scaled(const te_rope_scale *k, double frequency, int p) {
    const double s = fmin(fmax(k->by_frequency * frequency + k->by_pair * p + k->offset, 0.0), 1.0);
    return frequency * (s + (1.0 - s) * k->inverse_factor);
}

#define TE__TURN 6.283185307179586
/* d(beta): the pair that turns `beta` times in the original length. */
TE_API double te__yarn_pair(const te_rope_options *o, double beta) {
    return o->rotary_dim * log(o->original_length / (TE__TURN * beta)) / (2.0 * log((double)o->base));
}
TE_API te_rope_scale te_rope_scale_of(const te_rope_options *o) {
    te_rope_scale k = {0.0, 0.0, 0.0, 1.0 / (double)o->factor, 1.0f};
    if (o->scaling == TE_ROPE_SCALING_none) k.offset = 1.0;
    if (o->scaling == TE_ROPE_SCALING_llama3) {
        const double low = (double)o->low_freq_factor, width = (double)o->high_freq_factor - low;
        k.by_frequency = o->original_length / (TE__TURN * width), k.offset = -low / width;
    }
    if (o->scaling == TE_ROPE_SCALING_yarn) {
        const double fast = te__yarn_pair(o, (double)o->beta_fast), slow = te__yarn_pair(o, (double)o->beta_slow);
        const double low = fmax(o->truncate ? floor(fast) : fast, 0.0);
        const double high = fmin(o->truncate ? ceil(slow) : slow, o->rotary_dim - 1.0);
        const double width = high == low ? 0.001 : high - low; /* both ends in one pair: a step */
        k.by_pair = -1.0 / width, k.offset = 1.0 + low / width;
        k.magnitude = o->attention_factor > 0.0f ? o->attention_factor : 0.1f * logf(o->factor) + 1.0f;
    }
    return k;
}

#endif
