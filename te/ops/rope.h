/* rope.h -- rotary position embedding (Su et al. 2021) of q and k. x and y are [rows, width]; a row is [q of all heads,
 * k of all kv_heads, v of all kv_heads], or only q if kv_heads is 0. v passes through unchanged.
 *
 *   (rope, name, heads, kv_heads, head_dim)
 * Options, with their defaults: (first, 0) and (rotary_dim, head_dim - first): in each head, rotary_dim dimensions from
 * `first` on are rotated, and the others pass through unchanged; (interleaved, 0); (base, 10000.0f); (value_dim,
 * head_dim), the size of a head of v; and (scaling, none) with its parameters, described below, for longer contexts,
 * for frequencies of the caller, and for several positions.
 *
 * Do this:
 *     (linear, qkv, 4096, 6144), (rope, rot, 32, 8, 128, (base, 500000.0f)), (attention, attn, 32, 8, 128)
 *
 * In a row at position t, the pair (a, b) with index p is rotated by the angle t * base^(-2p / rotary_dim), unless a
 * scaling changes the frequency:
 *     a' = a cos - b sin,  b' = a sin + b cos
 * Pairs are, counted from `first`, the dimensions p and p + rotary_dim / 2 (GPT-NeoX, Llama) or, interleaved, 2p and
 * 2p + 1 (GPT-J). The position of a row is the row's entry in te_batch.positions, if that array is given. Otherwise
 * the position is the sum of te_batch.position, the row's index within its sequence and, with a te_cache, the number
 * of the sequence's tokens that are already in the cache. The op saves nothing: backward rotates dy by the negative
 * angle. Memory traffic: reads x and writes y; the angles are computed by the kernel, not read.
 *
 * Fused kernels: head_norm_rope (head_norm.h), linear_rope and linear_bias_rope (te/linear/impl/linear_rope.h). The
 * tiles of the fused GEMM have 256 columns. If head_dim divides 256, a tile must consist of whole groups of head_dim
 * columns, in v as well, so value_dim must then be a multiple of head_dim. With the option `first`, rope is not fused.
 */
#ifndef TE_OPS_ROPE_H
#define TE_OPS_ROPE_H

#include "../cache/impl/cache_tables.h" /* te__cache_past */
#include "../core/lanes.h"  /* te_lanes_here */
#include "../core/target.h" /* TE_KERNEL */
#include "../plan/op_list.h"   /* TE_OPTION */
#include "../plan/impl/call_checks.h" /* te__find_edge, te__check_tensor */
#include "../plan/impl/storage.h"    /* te__output, te__gradient */
#include <math.h>

/* ---- the op ------------------------------------------------------------------------------------------------------ */

#define TE_OP_rope (rope, custom)
#define TE_FLAGS_rope(op) (TE_EPILOGUE_OF_ROPE | (TE__ROPE_IS(op, given) ? TE_TAKES_EDGE : 0))
#define TE_SHAPES_rope(op) (3)
#define TE_IN_rope(op) \
    (((int)(TE_ARG1(op, 0)) + (int)(TE_ARG2(op, 0))) * (int)(TE_ARG3(op, 0)) + \
        (int)(TE_ARG2(op, 0)) * (int)TE__ROPE_VALUE(op))
#define TE_TAKES_rope_value_dim TE_INTEGER
#define TE__ROPE_VALUE(op) (TE_OPTION(op, value_dim, TE_ARG3(op, 0)))
#define TE_TAKES_rope_first TE_INTEGER
#define TE_TAKES_rope_rotary_dim TE_INTEGER
#define TE_TAKES_rope_interleaved TE_INTEGER
#define TE_TAKES_rope_base TE_NUMBER
#define TE_OPTIONS_rope(op) TE__ROPE_IF_GIVEN(op, TE__ROPE_GIVEN_OPTIONS, TE__ROPE_OPTIONS)(op)
#define TE__ROPE_OPTIONS(op) (te_rope_options, TE__ROPE_VALUES(op))
#define TE__ROPE_GIVEN_OPTIONS(op) (te_rope_given_options, {TE__ROPE_VALUES(op)}, TE_OPTION(op, sections, 1))
#define TE__ROPE_VALUES(op) TE__ROTARY(op), TE__INTERLEAVED(op), (float)(TE_OPTION(op, base, 10000.0f)), \
    TE_ROPE_SCALING_OPTIONS(op)
#define TE__INTERLEAVED(op) TE_OPTION(op, interleaved, 0)
#define TE__ROPE_FIRST(op) ((int)(TE_OPTION(op, first, 0)))
#define TE__ROTARY(op) (TE_OPTION(op, rotary_dim, (TE_ARG3(op, 0)) - TE__ROPE_FIRST(op)))
#define TE_CHECK_rope(model, op)                                                                                       \
    (static_assert((TE_ARG1(op, 0)) > 0 && (TE_ARG2(op, 0)) >= 0 && (TE_ARG3(op, 0)) > 0,                              \
                  "te: " TE_STRING(model) ": " TE_CALLED(op)                                                           \
                      ": heads and head_dim must be positive, kv_heads at least 0");                                   \
     static_assert(TE__INTERLEAVED(op) == 0 || TE__INTERLEAVED(op) == 1,                                               \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) ": interleaved must be 0 or 1");                          \
     static_assert(TE__ROPE_FIRST(op) >= 0 && TE__ROPE_FIRST(op) <= (TE_ARG3(op, 0)),                                  \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) ": first must be 0 to head_dim");                         \
     static_assert(TE__ROTARY(op) >= 0 && TE__ROTARY(op) % 2 == 0 &&                                                   \
                       TE__ROTARY(op) <= (TE_ARG3(op, 0)) - TE__ROPE_FIRST(op),                                        \
                  "te: " TE_STRING(model) ": " TE_CALLED(op)                                                           \
                      ": rotary_dim must be even and no larger than head_dim, without the dimensions before first");   \
     static_assert(TE__ROPE_VALUE(op) >= 1 && (TE__ROPE_FIRST(op) || 256 % (TE_ARG3(op, 1)) ||                         \
                                               TE__ROPE_VALUE(op) % (TE_ARG3(op, 1)) == 0),                            \
                  "te: " TE_STRING(model) ": " TE_CALLED(op)                                                           \
                      ": value_dim must be positive and, where head_dim divides 256, a multiple of it");               \
     static_assert((int)TE_ROWS_OUT(model, op) == (int)TE_ROWS_tokens,                                                 \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) " needs a row for each token");                           \
     TE_ASSERT_NUMBER((TE_OPTION(op, base, 10000.0f)) > 0 && (TE_OPTION(op, base, 10000.0f)) < 3e38f,                  \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) ": base must be a finite positive number");               \
     TE_CHECK_ROPE_SCALING(model, op))

#define TE_CUSTOM_rope_forward(name, model, dtype, op) \
    TE__ROPE(name, model, op, 1, TE_DTYPE_IN(model, op), TE_DTYPE_OUT(model, op))
#define TE_CUSTOM_rope_backward(name, model, dtype, op) \
    TE__ROPE(name, model, op, -1, TE_DTYPE_OUT(model, op), TE_DTYPE_IN(model, op))
#define TE__ROPE_QK_WIDTH(op) (((int)(TE_ARG1(op, 0)) + (int)(TE_ARG2(op, 0))) * (int)(TE_ARG3(op, 0)))
#define TE__ROPE(name, model, op, sign, from, to)                                                                \
    TE_BOTH te_rope_shape name##_rope_shape(void) {                                                              \
        te_rope_shape k;                                                                                         \
        k.width = TE_WIDTH_IN(model, op), k.qk_width = TE__ROPE_QK_WIDTH(op), k.head_dim = TE_ARG3(op, 0);       \
        k.first = TE__ROPE_FIRST(op), k.rotary_dim = TE__ROTARY(op), k.interleaved = TE__INTERLEAVED(op);        \
        k.scaled = TE__ROPE_FREQUENCIES(op);                                                                     \
        k.direction = sign, k.x = (te_dtype)(from), k.y = (te_dtype)(to);                                        \
        return k;                                                                                                \
    }                                                                                                            \
    TE_KERNEL(name, TE_ROPE_THREADS, te_rope_args, TE_SHARED float te_cos_sin[TE_ROPE_ROWS * (int)TE__ROTARY(op)]; \
              te_rope_rows(te_args, te_at, te_cos_sin, name##_rope_shape()))                                     \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__rope_run(r, s, name##_launch); }

/* ---- the caller's frequencies ------------------------------------------------------------------------------------ */

/* With (scaling, given) a call passes the frequencies: an entry of te_batch.edges with the op's name holds a tensor
 * [sections, rotary_dim / 2] in f32. With the option (sections, n), where n is above 1, te_batch.positions is [n,
 * rows], and the angle of pair p in a row is the sum over all sections s of positions[s, row] * frequencies[s, p].
 * Multi-section rope (Qwen2-VL) has three positions, of time, height and width, and a vision encoder has two; each pair
 * has a frequency in one section only, and the frequency 0 in all other sections. The cosines and sines are multiplied
 * by the option (attention_factor, 1). The value of te_edge.grad is ignored. te_rope_frequencies and the functions
 * after it compute the frequencies of common models. */
#define TE_TAKES_rope_sections TE_INTEGER
#define TE_SAME_sections_sections ,
#define TE__ROPE_GIVEN_given ,
#define TE__ROPE_IF_GIVEN(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE__ROPE_GIVEN_, TE_OPTION(op, scaling, none)), yes, no)
/* Where the kernels get the frequencies from: the formula without a scaling (plain), the formula with a scaling
 * (scaled), or the caller's tensor (given). */
enum { TE_ROPE_plain, TE_ROPE_scaled, TE_ROPE_given };
#define TE__ROPE_FREQUENCIES(op) \
    (TE__ROPE_IS(op, none) ? (int)TE_ROPE_plain : TE__ROPE_IS(op, given) ? (int)TE_ROPE_given : (int)TE_ROPE_scaled)

/* The functions below compute frequencies in host memory, as transformers' modeling_rope_utils.py does; copy them to
 * target memory for te_batch.edges. frequencies: [rotary_dim / 2]; base: rope_theta of config.json.
 *     te_rope_frequencies           base^(-2p / rotary_dim)
 *     te_rope_frequencies_dynamic   dynamic NTK: the same with a larger base, for sequences of `length` tokens in a
 *                                   model of max_length tokens; factor: the factor of rope_scaling
 *     te_rope_frequencies_longrope  base^(-2p / rotary_dim) / factors[p]; factors: short_factor or, for sequences of
 *                                   more than original_max_position_embeddings tokens, long_factor (Ding et al. 2024)
 *     te_rope_frequencies_sections  frequencies[s, p] is all[p] if pair p belongs to section s, else 0, for `count`
 *                                   sections and `pairs` pairs. sections[s]: number of pairs of section s
 *                                   (mrope_section). interleaved 0: a section has consecutive pairs (Qwen2-VL); 1: pair
 *                                   p belongs to section s = p % count if p / count < sections[s], else to section 0
 *                                   (Qwen3-VL)
 * te_rope_longrope_factor is the attention_factor of longrope; factor = max_position_embeddings / original_length. */
TE_API te_status te__check_frequencies(const float *frequencies, int rotary_dim, float base, te_context *ctx) {
    TE_REQUIRE(frequencies, ctx, TE_ERROR_NULL, "the memory for rope's frequencies is null");
    TE_REQUIRE(rotary_dim > 0 && rotary_dim % 2 == 0, ctx, TE_ERROR_SHAPE,
               "rope's frequencies: rotary_dim is %d, and must be even and positive", rotary_dim);
    TE_REQUIRE(base > 0 && base < 3e38f, ctx, TE_ERROR_VALUE,
               "rope's frequencies: base is %g, and must be finite and positive", (double)base);
    return TE_OK;
}
TE_API void te__rope_frequencies(float *frequencies, int rotary_dim, double base) {
    for (int p = 0; p < rotary_dim / 2; p++) frequencies[p] = (float)pow(base, -2.0 * p / rotary_dim);
}
TE_IF_USED TE_API te_status te_rope_frequencies(float *frequencies, int rotary_dim, float base, te_context *ctx) {
    TE_TRY(te__check_frequencies(frequencies, rotary_dim, base, ctx));
    te__rope_frequencies(frequencies, rotary_dim, (double)base);
    return TE_OK;
}
TE_IF_USED TE_API te_status te_rope_frequencies_dynamic(float *frequencies, int rotary_dim, float base, float factor,
                                                        int max_length, int length, te_context *ctx) {
    TE_TRY(te__check_frequencies(frequencies, rotary_dim, base, ctx));
    TE_REQUIRE(factor >= 1 && factor < 3e38f && rotary_dim > 2 && max_length > 0 && length >= 0, ctx, TE_ERROR_VALUE,
               "rope's dynamic frequencies: factor %g, at least 1, rotary_dim %d, above 2, max_length %d, length %d, "
               "of which none is negative",
               (double)factor, rotary_dim, max_length, length);
    const double longer = (double)te_max(length, max_length) / max_length;
    const double grown = pow((double)factor * longer - ((double)factor - 1.0), rotary_dim / (rotary_dim - 2.0));
    te__rope_frequencies(frequencies, rotary_dim, (double)base * grown);
    return TE_OK;
}
TE_IF_USED TE_API te_status te_rope_frequencies_longrope(float *frequencies, int rotary_dim, float base,
                                                         const float *factors, te_context *ctx) {
    TE_TRY(te__check_frequencies(frequencies, rotary_dim, base, ctx));
    TE_REQUIRE(factors, ctx, TE_ERROR_NULL, "rope's longrope frequencies: the factors are null");
    for (int p = 0; p < rotary_dim / 2; p++) {
        TE_REQUIRE(factors[p] > 0 && factors[p] < 3e38f, ctx, TE_ERROR_VALUE,
                   "rope's longrope frequencies: factor %d is %g, and must be finite and positive", p,
                   (double)factors[p]);
        frequencies[p] = (float)(pow((double)base, -2.0 * p / rotary_dim) / (double)factors[p]);
    }
    return TE_OK;
}
TE_IF_USED TE_API float te_rope_longrope_factor(float factor, int original_length) {
    return factor <= 1.0f ? 1.0f : (float)sqrt(1.0 + log((double)factor) / log((double)original_length));
}
TE_IF_USED TE_API te_status te_rope_frequencies_sections(float *frequencies, const float *all, int pairs,
                                                         const int *sections, int count, int interleaved,
                                                         te_context *ctx) {
    int total = 0;
    TE_REQUIRE(frequencies && all && sections, ctx, TE_ERROR_NULL,
               "rope's frequencies of sections: a pointer is null");
    TE_REQUIRE(count >= 1 && pairs >= 1, ctx, TE_ERROR_VALUE, "rope's frequencies of sections: %d sections, %d pairs",
               count, pairs);
    for (int s = 0; s < count; s++) {
        TE_REQUIRE(sections[s] >= 0 && sections[s] <= pairs - total, ctx, TE_ERROR_VALUE,
                   "rope's frequencies of sections: section %d has %d pairs, of %d left", s, sections[s],
                   pairs - total);
        total += sections[s];
    }
    TE_REQUIRE(total == pairs, ctx, TE_ERROR_VALUE, "rope's frequencies of sections: %d pairs in all, of %d", total,
               pairs);
    for (int p = 0, first = 0, s = 0; p < pairs; p++) {
        while (p >= first + sections[s]) first += sections[s++];
        const int of = !interleaved ? s : p / count < sections[p % count] ? p % count : 0;
        for (int k = 0; k < count; k++) frequencies[k * pairs + p] = k == of ? all[p] : 0.0f;
    }
    return TE_OK;
}

/* ---- scaled frequencies, for sequences longer than those of the original training -------------------------------- */

/* Options (scaling, linear), (scaling, llama3) or (scaling, yarn), with (factor, ..) and the options below, which have
 * the same names in a model's config.json. With f = base^(-2p / rotary_dim) and L = original_length, the context length
 * of the original training, the frequency of pair p becomes
 *     f' = f * (s + (1 - s) / factor); s = 1 leaves f unchanged, s = 0 interpolates positions:
 *     linear  s = 0 (Chen et al. 2023)
 *     llama3  s = (L * f / (2 * pi) - low_freq_factor) / (high_freq_factor - low_freq_factor), clamped to [0, 1]
 *             (Llama 3.1); defaults (low_freq_factor, 1), (high_freq_factor, 4)
 *     yarn    s = 1 - (p - low) / (high - low), clamped to [0, 1] (Peng et al. 2023), with
 *             low = max(0, floor(d(beta_fast))), high = min(rotary_dim - 1, ceil(d(beta_slow))), where
 *             d(beta) = rotary_dim * log(L / (2 * pi * beta)) / (2 * log(base)) is the index of the pair that makes
 *             `beta` full turns in L tokens. (truncate, 0) omits floor and ceil; defaults (beta_fast, 32), (beta_slow,
 *             1). The rotated q and k are multiplied by the option (attention_factor, 0.1 * log(factor) + 1). */
typedef enum te_rope_scaling {
    TE_ROPE_SCALING_none,
    TE_ROPE_SCALING_linear,
    TE_ROPE_SCALING_llama3,
    TE_ROPE_SCALING_yarn,
    TE_ROPE_SCALING_given
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

/* TE__ROPE_SCALES_BY_<scaling> is defined for each member of te_rope_scaling. For any other value of the option the
 * macros below assume `none`, and TE_CHECK_ROPE_SCALING reports the value as a compile-time error. */
#define TE__ROPE_SCALES_BY_none ,
#define TE__ROPE_SCALES_BY_linear ,
#define TE__ROPE_SCALES_BY_llama3 ,
#define TE__ROPE_SCALES_BY_yarn ,
#define TE__ROPE_SCALES_BY_given ,
#define TE__ROPE_IF_KNOWN(op, yes, no) \
    TE_IF_MARKED(TE_JOIN1(TE__ROPE_SCALES_BY_, TE_OPTION(op, scaling, none)), yes, no)
#define TE__ROPE_SCALING(op) \
    TE__ROPE_IF_KNOWN(op, TE__ROPE_SCALING_OF(TE_OPTION(op, scaling, none)), TE_ROPE_SCALING_none)
#define TE__ROPE_SCALING_OF(token) TE_JOIN1(TE_ROPE_SCALING_, token)
#define TE__ROPE_IS(op, which) ((int)TE__ROPE_SCALING(op) == (int)TE_ROPE_SCALING_##which)
#define TE__ROPE_NUMBER(op, name, otherwise) ((float)(TE_OPTION(op, name, otherwise)))
/* The initialisers of te_rope_options for `scaling` and all members after it, in the order of the members. */
#define TE_ROPE_SCALING_OPTIONS(op) TE__ROPE_SCALING(op), TE_OPTION(op, original_length, 0),                         \
    TE_OPTION(op, truncate, 1), TE__ROPE_NUMBER(op, factor, 1), TE__ROPE_NUMBER(op, low_freq_factor, 1),             \
    TE__ROPE_NUMBER(op, high_freq_factor, 4), TE__ROPE_NUMBER(op, beta_fast, 32), TE__ROPE_NUMBER(op, beta_slow, 1), \
    TE__ROPE_NUMBER(op, attention_factor, 0)

#define TE__ROPE_SAYS(model, op) "te: " TE_STRING(model) ": " TE_CALLED(op) ": "
#define TE__ROPE_BETWEEN(op, name, otherwise, low) \
    (TE__ROPE_NUMBER(op, name, otherwise) >= (low) && TE__ROPE_NUMBER(op, name, otherwise) < 3e38f)
#define TE_CHECK_ROPE_SCALING(model, op)                                                                         \
    static_assert(TE__ROPE_IF_KNOWN(op, 1, 0),                                                                   \
                  TE__ROPE_SAYS(model, op) "there is no (scaling, " TE_STRING(TE_OPTION(op, scaling, none))      \
                  "); there are none, linear, llama3, yarn and given");                                          \
    static_assert(TE__ROPE_IS(op, none) || TE__ROPE_IS(op, given) || TE_HAS_OPTION(op, factor),                  \
                  TE__ROPE_SAYS(model, op) "scaling needs (factor, ..)");                                        \
    static_assert(!(TE__ROPE_IS(op, none) || TE__ROPE_IS(op, given)) ||                                          \
                      !(TE_HAS_OPTION(op, factor) + TE_HAS_OPTION(op, original_length)),                         \
                  TE__ROPE_SAYS(model, op) "factor and original_length need (scaling, linear), llama3 or yarn"); \
    static_assert(TE__ROPE_IS(op, llama3) ||                                                                     \
                      !(TE_HAS_OPTION(op, low_freq_factor) + TE_HAS_OPTION(op, high_freq_factor)),               \
                  TE__ROPE_SAYS(model, op) "low_freq_factor and high_freq_factor need (scaling, llama3)");       \
    static_assert(TE__ROPE_IS(op, yarn) || !(TE_HAS_OPTION(op, beta_fast) + TE_HAS_OPTION(op, beta_slow) +       \
                                             TE_HAS_OPTION(op, truncate)),                                       \
                  TE__ROPE_SAYS(model, op) "beta_fast, beta_slow and truncate need (scaling, yarn)");            \
    static_assert(TE__ROPE_IS(op, yarn) || TE__ROPE_IS(op, given) || !TE_HAS_OPTION(op, attention_factor),       \
                  TE__ROPE_SAYS(model, op) "attention_factor needs (scaling, yarn) or given");                   \
    static_assert(TE__ROPE_IS(op, given) || !TE_HAS_OPTION(op, sections),                                        \
                  TE__ROPE_SAYS(model, op) "sections needs (scaling, given)");                                   \
    static_assert((TE_OPTION(op, sections, 1)) >= 1 && (TE_OPTION(op, sections, 1)) <= 8,                        \
                  TE__ROPE_SAYS(model, op) "sections must be 1 to 8");                                           \
    static_assert(!TE__ROPE_IS(op, given) || TE__ROTARY(op) > 0,                                                 \
                  TE__ROPE_SAYS(model, op) "(scaling, given) needs a positive rotary_dim");                      \
    static_assert(TE__ROPE_IS(op, none) || TE__ROPE_IS(op, linear) || TE__ROPE_IS(op, given) ||                  \
                      (TE_OPTION(op, original_length, 0)) > 0,                                                   \
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
    float attention_factor; /* the factor by which the rotated q and k are multiplied (yarn, given); 0 stands for the
                             * default, which is 0.1 * log(factor) + 1 for yarn and 1 for given */
} te_rope_options;
typedef struct te_rope_given_options { te_rope_options rope; int sections; } te_rope_given_options;

/* A scaling of the frequencies, in the form that the kernels use: the frequency f of pair p becomes f * (s + (1 - s) *
 * inverse_factor), where s = by_frequency * f + by_pair * p + offset, clamped to [0, 1]. */
typedef struct te_rope_scale {
    double by_frequency, by_pair, offset, inverse_factor;
    float magnitude; /* factor of all cosines and sines */
} te_rope_scale;

/* The scaled frequency f' of pair p. */
TE_FN double te_rope_scaled(const te_rope_scale *k, double frequency, int p) {
    const double s = fmin(fmax(k->by_frequency * frequency + k->by_pair * p + k->offset, 0.0), 1.0);
    return frequency * (s + (1.0 - s) * k->inverse_factor);
}

#define TE__TWO_PI 6.283185307179586
/* Returns d(beta), the index (a real number) of the pair that makes `beta` full turns in original_length tokens. */
TE_API double te__yarn_pair(const te_rope_options *o, double beta) {
    return o->rotary_dim * log(o->original_length / (TE__TWO_PI * beta)) / (2.0 * log((double)o->base));
}
TE_API te_rope_scale te__rope_scale_of(const te_rope_options *o) {
    te_rope_scale k = {0.0, 0.0, 0.0, 1.0 / (double)o->factor, 1.0f};
    if (o->scaling == TE_ROPE_SCALING_none || o->scaling == TE_ROPE_SCALING_given) k.offset = 1.0;
    if (o->scaling == TE_ROPE_SCALING_given && o->attention_factor > 0.0f) k.magnitude = o->attention_factor;
    if (o->scaling == TE_ROPE_SCALING_llama3) {
        const double low = (double)o->low_freq_factor, width = (double)o->high_freq_factor - low;
        k.by_frequency = o->original_length / (TE__TWO_PI * width), k.offset = -low / width;
    }
    if (o->scaling == TE_ROPE_SCALING_yarn) {
        const double fast = te__yarn_pair(o, (double)o->beta_fast), slow = te__yarn_pair(o, (double)o->beta_slow);
        const double low = fmax(o->truncate ? floor(fast) : fast, 0.0);
        const double high = fmin(o->truncate ? ceil(slow) : slow, o->rotary_dim - 1.0);
        /* s falls from 1 to 0 over `width` pairs from pair `low` on; if high == low, s falls within 0.001 pairs */
        const double width = high == low ? 0.001 : high - low;
        k.by_pair = -1.0 / width, k.offset = 1.0 + low / width;
        k.magnitude = o->attention_factor > 0.0f ? o->attention_factor : 0.1f * logf(o->factor) + 1.0f;
    }
    return k;
}

/* ---- kernel ------------------------------------------------------------------------------------------------------ */

typedef struct te_rope_args {
    void *y;       /* [rows, width] */
    const void *x; /* [rows, width] */
    int64_t rows;
    te_sequences of;
    int position;             /* the position of the first row of each sequence, te_batch.position */
    te_cp_shard context;      /* the chunks of each sequence that this rank has */
    double log2_base;
    te_rope_scale scale;
    const int32_t *positions; /* [rows]: the position of each row; if null, a row's position is its index within its
                               * sequence plus `position` and, with a cache, past[sequence] */
    /* [sequences]: the number of tokens of each sequence that were in the cache before this batch; null if there is no
     * cache */
    const int32_t *past;
    const float *frequencies; /* with (scaling, given) the caller's frequencies, [sections, rotary_dim / 2] */
    int sections;             /* number of positions of each row; if above 1, `positions` is [sections, rows] */
} te_rope_args;
enum { TE_ROPE_THREADS = TE_CUDA ? 256 : 1, TE_ROPE_ROWS = TE_CUDA ? 2 : 1 };

/* Constants of a rope kernel. */
typedef struct te_rope_shape {
    int width, qk_width; /* width: number of columns of a row; qk_width: number of columns of q and k, with which a row
                          * begins */
    int head_dim, first, rotary_dim, interleaved;
    int scaled;          /* where the frequencies come from: TE_ROPE_plain, TE_ROPE_scaled, TE_ROPE_given */
    int direction;       /* 1 in forward; -1 in backward, which rotates by the negative angle */
    te_dtype x, y;
} te_rope_shape;

/* Constants of a table of cosines and sines. pairs: the number of cosines (and of sines) that the table has for each
 * row; this number may exceed rotary_dim / 2, because a row of the table may have padding. */
typedef struct te_rope_table { int pairs, rotary_dim, scaled, direction; } te_rope_table;
TE_BOTH te_rope_table te_rope_table_of(int pairs, int rotary_dim, int scaled, int direction) {
    te_rope_table t;
    t.pairs = pairs, t.rotary_dim = rotary_dim, t.scaled = scaled, t.direction = direction;
    return t;
}

/* Rotate the eight pairs (x[i], mate[i]): x becomes x * cos - mate * sin, and mate becomes mate * cos + x * sin. */
TE_FN void te_rotate8(float x[8], float mate[8], const float *cosine, const float *sine) {
    TE_UNROLL for (int i = 0; i < 8; i++) {
        const float a = x[i], b = mate[i];
        x[i] = a * cosine[i] - b * sine[i], mate[i] = b * cosine[i] + a * sine[i];
    }
}

/* Rotate the four interleaved pairs (v[0], v[1]), (v[2], v[3]), (v[4], v[5]) and (v[6], v[7]). */
TE_FN void te_rotate_interleaved8(float v[8], const float cosine[4], const float sine[4]) {
    TE_UNROLL for (int i = 0; i < 8; i += 2) {
        const float even = v[i], odd = v[i + 1], co = cosine[i / 2], si = sine[i / 2];
        v[i] = even * co - odd * si, v[i + 1] = odd * co + even * si;
    }
}

/* Returns the angle of pair p in a row at `position`, computed from the caller's frequencies. */
TE_FN double te_rope_given_angle(const te_rope_args *a, int row, int position, int p, int pairs) {
    double angle = 0.0;
    if (p >= pairs) return angle; /* padding of the table */
    for (int s = 0; s < a->sections; s++)
        angle += (double)(s ? a->positions[s * a->rows + row] : position) * (double)a->frequencies[s * pairs + p];
    return angle;
}
/* Fills cos_sin[rows][2][pairs]: for each of the rows first to first + rows - 1, the cosines of all pairs, then the
 * sines of all pairs. For the inverse rotation the sines are negated. */
TE_FN void te_rope_cos_sin(float *cos_sin, const te_rope_args *a, int64_t first, int rows, te_lanes g,
                           const te_rope_table t) {
    const float magnitude = t.scaled ? a->scale.magnitude : 1.0f;
    for (int e = g.id; e < rows * t.pairs; e += g.count) {
        /* The angle is computed in double: in float, the angle of a large position would lose its fractional digits. */
        const int r = e / t.pairs, p = e % t.pairs, row = (int)(first + r);
        const int position = a->positions ? a->positions[row]
                                          : a->position + te_sequence_past(&a->of, row, a->past) +
                                                te_cp_sequence_position(&a->of, a->context, row);
        const double frequency = t.scaled == TE_ROPE_given ? 0.0 : exp2(-2.0 * p / t.rotary_dim * a->log2_base);
        const double angle = t.scaled == TE_ROPE_given ? te_rope_given_angle(a, row, position, p, t.rotary_dim / 2)
                             : position * (t.scaled ? te_rope_scaled(&a->scale, frequency, p) : frequency);
        const float rest = (float)(angle - TE__TWO_PI * floor(angle / TE__TWO_PI));
        cos_sin[2 * r * t.pairs + p] = magnitude * cosf(rest);
        cos_sin[(2 * r + 1) * t.pairs + p] = magnitude * (float)t.direction * sinf(rest);
    }
}

/* Returns whether all columns can be loaded and rotated in vectors of eight. */
TE_FN int te_rope_is_aligned(const te_rope_shape k) {
    return k.width % 8 == 0 && k.head_dim % 8 == 0 && k.first % 8 == 0 &&
           k.rotary_dim % (k.interleaved ? 8 : 16) == 0;
}
/* Rotate rows first to first + rows - 1, one element at a time. This works for any width. */
TE_FN void te__rope_elements(const te_rope_args *a, int64_t first, int rows, const float *cos_sin, te_lanes g,
                             const te_rope_shape k) {
    const int pairs = k.rotary_dim / 2;
    for (int r = 0; r < rows; r++)
        for (int c = g.id; c < k.width; c += g.count) {
            const int64_t at = (first + r) * k.width + c;
            /* d: the column's index within the head, counted from the first rotated column; low: 1 if the column is the
             * first of its pair */
            const int d = c % k.head_dim - k.first, low = k.interleaved ? d % 2 == 0 : d < pairs;
            const int p = k.interleaved ? d / 2 : low ? d : d - pairs;
            float v = te_load(a->x, at, k.x);
            if (c < k.qk_width && d >= 0 && d < k.rotary_dim) {
                const float mate = te_load(a->x, at + (low ? 1 : -1) * (k.interleaved ? 1 : pairs), k.x);
                const float cosine = cos_sin[r * k.rotary_dim + p], sine = cos_sin[r * k.rotary_dim + pairs + p];
                v = low ? v * cosine - mate * sine : v * cosine + mate * sine;
            }
            te_store(a->y, at, v, k.y);
        }
}
/* Rotates rows first to first + rows - 1, eight columns at a time. A lane works on units. A unit has eight columns. If
 * these columns are rotated and pairs are not interleaved, the unit also has the eight columns that form pairs with
 * them, `distance` columns to the right. So a head of q or k has (head_dim - distance) / 8 units. All rows of a unit
 * are loaded before the first row is rotated, so that the loads are in flight together. */
TE_FN void te__rope_vectors(const te_rope_args *a, int64_t first, int rows, const float *cos_sin, te_lanes g,
                            const te_rope_shape k) {
    /* distance from a column to the other column of its pair; 0 if one vector of eight columns holds both */
    const int pairs = k.rotary_dim / 2, distance = k.interleaved ? 0 : pairs;
    const int head_units = (k.head_dim - distance) / 8, heads = k.qk_width / k.head_dim;
    for (int u = g.id; u < heads * head_units + (k.width - k.qk_width) / 8; u += g.count) {
        const int head = u / head_units, in_head = u % head_units * 8 - k.first;
        const int rotates = head < heads && in_head >= 0 && in_head < (k.interleaved ? k.rotary_dim : pairs);
        const int passes_behind_pairs = head < heads && in_head >= 0 && !rotates && !k.interleaved;
        const int d = passes_behind_pairs ? in_head + pairs : in_head; /* counted from the first rotated column */
        const int c = head < heads ? head * k.head_dim + k.first + d : k.qk_width + (u - heads * head_units) * 8;
        te_vec8 x[TE_ROPE_ROWS], mate[TE_ROPE_ROWS];
        TE_UNROLL for (int r = 0; r < TE_ROPE_ROWS; r++) {
            if (r >= rows) continue;
            te_vec8_load(&x[r], a->x, (first + r) * k.width + c, 8, 1, k.x);
            mate[r] = x[r];
            if (rotates && distance) te_vec8_load(&mate[r], a->x, (first + r) * k.width + c + distance, 8, 1, k.x);
        }
        TE_UNROLL for (int r = 0; r < TE_ROPE_ROWS; r++) {
            if (r >= rows) continue;
            const float *cosine = cos_sin + r * k.rotary_dim, *sine = cosine + pairs;
            float v[8], w[8];
            te_vec8_floats(v, &x[r], k.x);
            if (rotates && distance) {
                te_vec8_floats(w, &mate[r], k.x);
                te_rotate8(v, w, cosine + d, sine + d);
                te_store8(a->y, (first + r) * k.width + c + distance, w, 8, 1, k.y);
            } else if (rotates) te_rotate_interleaved8(v, cosine + d / 2, sine + d / 2);
            te_store8(a->y, (first + r) * k.width + c, v, 8, 1, k.y);
        }
    }
}
/* The body of rope's kernel: a block rotates TE_ROPE_ROWS rows. cos_sin: shared memory for the cosines and sines of
 * these rows, [TE_ROPE_ROWS, rotary_dim]. */
TE_FN void te_rope_rows(const te_rope_args *a, te_block b, float *cos_sin, const te_rope_shape k) {
    int group;
    const te_lanes g = te_lanes_here(TE_ROPE_THREADS, &group);
    const int64_t first = (int64_t)b.x * TE_ROPE_ROWS;
    const int rows = (int)te_min(TE_ROPE_ROWS, a->rows - first);
    te_rope_cos_sin(cos_sin, a, first, rows, g,
                    te_rope_table_of(k.rotary_dim / 2, k.rotary_dim, k.scaled, k.direction));
    te_block_sync();
    if (te_rope_is_aligned(k)) te__rope_vectors(a, first, rows, cos_sin, g, k);
    else te__rope_elements(a, first, rows, cos_sin, g, k);
}

/* ---- step -------------------------------------------------------------------------------------------------------- */

/* For (scaling, given): sets a->frequencies to the tensor that the caller has passed for op i. */
TE_API te_status te__rope_given(te_rope_args *a, const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    const te_rope_given_options *o = (const te_rope_given_options *)op->options;
    const te_edge *e;
    if (!(op->flags & TE_TAKES_EDGE)) return TE_OK;
    a->sections = o->sections;
    TE_TRY(te__find_edge(&e, r, op));
    if (!e) return TE_OK; /* only sizes are measured */
    TE_TRY(te__check_tensor(r->plan->name, e->name, e->value,
                            te__value_of(0, TE_f32, o->sections, o->rope.rotary_dim / 2), r->ctx));
    TE_REQUIRE(o->sections == 1 || a->positions, r->ctx, TE_ERROR_NULL,
               "%s: (rope, %s) has %d sections and needs batch.positions, [%d, rows]", r->plan->name, op->name,
               o->sections, o->sections);
    a->frequencies = (const float *)e->value.data;
    return TE_OK;
}
/* Sets *a to the arguments of op i, a rope, which reads the current value of the pass (te_run.current) and writes y. */
TE_API te_status te__rope_args(te_rope_args *a, const te_run *r, int i, te_value y) {
    memset(a, 0, sizeof *a);
    a->y = y.data, a->x = r->current.data, a->rows = y.rows, a->of = te__sequences_of(r);
    a->position = r->batch ? r->batch->position : 0, a->positions = r->batch ? r->batch->positions : 0;
    a->past = te__cache_past(r->batch), a->context = te__cp_shard_of(r);
    const te_rope_options *o = (const te_rope_options *)r->plan->op[i].options;
    a->log2_base = log2((double)o->base), a->scale = te__rope_scale_of(o);
    return te__rope_given(a, r, i);
}
typedef te_status (*te_rope_launch_fn)(te_context *ctx, te_grid grid, const te_rope_args *a);
/* Applies op i, a rope, to the current value of the pass (te_run.current), and makes the result y the current value. If
 * y has no memory, no kernel runs. */
TE_API te_status te__rope_apply(te_run *r, int i, te_value y, te_rope_launch_fn launch) {
    te_rope_args a;
    TE_TRY(te__rope_args(&a, r, i, y));
    if (y.data && !r->dry) TE_TRY(launch(r->ctx, te__grid_of(te_ceil_div(a.rows, TE_ROPE_ROWS), 1), &a));
    te__set_current(r, y);
    return TE_OK;
}
TE_API te_status te__rope_run(te_run *r, const te_step *s, te_rope_launch_fn launch) {
    const int i = s->op[0];
    te_value y;
    TE_TRY(r->pass == TE_BACKWARD ? te__gradient(&y, r, s, i) : te__output(&y, r, s, i));
    return te__rope_apply(r, i, y, launch);
}

#endif
