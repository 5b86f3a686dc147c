/* attention_form.h -- what the options of an attention say to its kernels. They are constants of a list: what a list
 * does not ask for leaves no instruction in its kernels.
 *
 * Do this, with TE_ATTENTION_FORWARD_OF and TE_ATTENTION_BACKWARD_OF of attention_kernels.h:
 *     (left, right, softcap, dropout, varlen, alibi, sinks, only, cross, bias, first, second, top, value,
 *      gives)
 * What is left out at the end is 0.
 *     left, right    query i sees keys i - left to i + right; TE_ATTENTION_ALL: no bound on this side
 *     softcap        scores are softcap tanh(score / softcap), in front of the mask; 0: as they are
 *     dropout        each probability is 0 with this probability, which attention_drop.h draws, else multiplied by
 *                    TE_DROPOUT_FACTOR. The log-sum-exp is of what was there before
 *     varlen         1: the kernels take te_attention_args.cu_seqlens
 *     alibi          1: scores have the biases of attention_alibi.h
 *     sinks          1: each head has a logit of its own under the softmax, te_attention_args.sinks
 *     only           on CUDA: TE_ATTENTION_HOPPER: where there are kernels for compute capability 9.0 no others are
 *                    made, and elsewhere a launch is refused; TE_ATTENTION_OTHERS: none of those are made; 0: all are
 *     cross          1: keys and values are te_attention_args.kv, as many as that says. Not with varlen. Of the kernels
 *                    for compute capability 9.0 there is the forward, where each query sees a key; `only` 1 makes the
 *                    others, too
 *     bias           TE_BIAS_heads, TE_BIAS_shared, TE_BIAS_relative: scores have the bias te_attention_args.bias, of
 *                    `first` queries and `second` keys, or buckets and max_distance. Not by the kernels for 9.0 either
 *     top            1: forward leaves the largest score of each row (attention_top.h). Its kernel for 9.0 has none
 *     value          the size of a head of v and of the output, where it is not head_dim, that of q and k; 0: it is.
 *                    Of the kernels for 9.0 there are those of 192 and 128
 *     gives          1: in bf16 and f16 forward takes te_attention_args.out_scale and amax, and backward amax; 0: those
 *                    are null
 *
 * A score s of a kernel with softcap is a tanh, in [-1, 1], and counts softcap; without it counts the scale. Of
 * t = tanh(x) the derivative is 1 - t^2, so that with P = exp(softcap t - lse) the gradient of the product q k^T is
 * scale P (1 - t^2) (dP - delta): backward has P (1 - t^2) where it has P without. With dropout O = (m P) V and
 * dP = m (dO V^T), where m is 0 or the factor; delta = rowsum(dO * O) as without. So dV takes m P, and dS takes P and
 * m: it has -P for what was dropped.
 */
#ifndef TE_ATTENTION_FORM_H
#define TE_ATTENTION_FORM_H

#include "attention_alibi.h" /* te__attn_alibi_slope */
#include "attention_bias.h"  /* TE_BIAS_heads */
#include "attention_drop.h"  /* TE_DROPOUT_LIMIT */
#include "attention_mask.h"  /* TE_ATTENTION_ALL */

enum { TE_ATTENTION_HOPPER = 1, TE_ATTENTION_OTHERS = 2 };

/* The form of an attention that has no options but whether it is causal. */
#define TE__ATTENTION_PLAIN(causal) (TE_ATTENTION_ALL, (causal) ? 0 : TE_ATTENTION_ALL)
#define TE__ATTENTION_STRIP(...) __VA_ARGS__
#define TE__ATTENTION_FORM(name, options) \
    TE__ATTENTION_FORM_(name, TE__ATTENTION_STRIP options, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ~)
#define TE__ATTENTION_FORM_(...) TE__ATTENTION_FORM__(__VA_ARGS__)

#if TE_CUDA
/* A type, for kernels are templates. */
#define TE__ATTENTION_FORM__(name, left, right, softcap, dropout, varlen, alibi, sinks, only, cross, bias, \
                               first, second, top, value, gives, ...)                               \
    struct name##_form {                                                                                    \
        static constexpr int LEFT = left, RIGHT = right;                                                    \
        static constexpr float SOFTCAP = (float)(softcap);                                                  \
        static constexpr uint32_t DROP = TE_DROPOUT_LIMIT((float)(dropout)); /* 0: none */                  \
        static constexpr float FACTOR = TE_DROPOUT_FACTOR((float)(dropout));                                \
        static constexpr bool APART = SOFTCAP > 0 || DROP; /* dS needs more of a probability than itself */ \
        static constexpr bool VARLEN = (varlen) != 0, ALIBI = (alibi) != 0, SINKS = (sinks) != 0;           \
        static constexpr bool CROSS = (cross) != 0, TOP = (top) != 0;                                       \
        static constexpr int BIAS = bias, BIAS_FIRST = first, BIAS_SECOND = second;                         \
        static constexpr int VALUE = value;                                                                 \
        static constexpr bool GIVES = (gives) != 0;                                                         \
        static constexpr int ONLY = only;                                                                   \
        TE__ATTENTION_FORM_ASSERT(LEFT, RIGHT, VARLEN && CROSS, VALUE)                                      \
    };
/* The size of a head of v. */
template <int D, class F> TE_BOTH constexpr int te__attn_value_dim(void) { return F::VALUE ? F::VALUE : D; }
#else
typedef struct te__attn_form {
    int left, right;
    float softcap;
    uint32_t drop; /* 0: none */
    float factor;
    int varlen, alibi, sinks, cross, bias, first, second, top, value, gives;
} te__attn_form;

#define TE__ATTENTION_FORM__(name, left_, right_, softcap_, dropout_, varlen_, alibi_, sinks_, only_, cross_, \
                               bias_, first_, second_, top_, value_, gives_, ...)                           \
    TE__ATTENTION_FORM_ASSERT(left_, right_, (varlen_) && (cross_), value_)                            \
    enum { name##_form_value = value_ };                                                               \
    TE_FN te__attn_form name##_form(void) {                                                            \
        te__attn_form f;                                                                               \
        f.left = left_, f.right = right_, f.softcap = (float)(softcap_);                               \
        f.drop = TE_DROPOUT_LIMIT((float)(dropout_)), f.factor = TE_DROPOUT_FACTOR((float)(dropout_)); \
        f.varlen = (varlen_) != 0, f.alibi = (alibi_) != 0, f.sinks = (sinks_) != 0, f.cross = (cross_) != 0; \
        f.bias = bias_, f.first = first_, f.second = second_, f.top = (top_) != 0, f.value = value_;   \
        f.gives = (gives_) != 0;                                                                       \
        return f;                                                                                      \
    }
/* The size of a head of v. */
TE_FN int te__attn_value_dim(int head_dim, te__attn_form f) { return f.value ? f.value : head_dim; }
#endif
#define TE__ATTENTION_FORM_ASSERT(left, right, varies, value)                                          \
    static_assert((value) >= 0 && (value) <= 256, "te: attention: value must be 1 to 256, or 0");      \
    static_assert(!(varies), "te: attention: keys and values of their own do not go with varlen");     \
    static_assert((left) >= TE_ATTENTION_ALL && (left) <= TE_ATTENTION_MAX_SEQ,                        \
                  "te: attention: left must be 0 to 2^20, or TE_ATTENTION_ALL");                       \
    static_assert((right) >= TE_ATTENTION_ALL && (right) <= TE_ATTENTION_MAX_SEQ,                      \
                  "te: attention: right must be 0 to 2^20, or TE_ATTENTION_ALL");

#endif
