/* adamw_kernels.h -- the kernels of te_adamw_step: one thread computes the step's scalars, then one launch updates all
 * tensors by AdamW or SGD, with moments in f32, bf16 or 8 bits.
 *
 * Each block updates one chunk of one tensor; te_chunk_tensor finds the tensor of a chunk. The table below has the
 * bytes that the update reads and writes for each element of a 16-bit model. These bytes divided by the bandwidth of a
 * copy are a lower bound of the time. The update is bound by memory, but with 8-bit moments by arithmetic. Without
 * master weights each number is 6 less; for an f32 model, which has no 16-bit weights, it is 2 less.
 *
 *     moments               f32   bf16   8 bits     read: grad, master, m, v      written: master, m, v, 16-bit weight
 *     AdamW                  30     22   18.125
 *     SGD with momentum      22     18   16.06
 *
 * docs/notes/optimizer.md has the measurements and the reasons for the 8-bit format.
 */
#ifndef TE_ADAMW_KERNELS_H
#define TE_ADAMW_KERNELS_H

#include "../../core/philox.h" /* te_philox */
#include "../../core/target.h" /* TE_KERNEL */
#include "../../plan/bind.h"   /* TE_PARAM_ALIGN */
#include "../adamw_config.h"   /* te_adamw_config, te_adamw_state */
#include "../loss_scale.h"     /* te_loss_scale_state, te__loss_scale_update */
#include "../param_groups.h"   /* te_chunk_tensor, TE_KERNEL */

/* One tensor that the kernels update. The array of these structs lies in target memory. */
typedef struct te__adamw_tensor {
    float *master; /* the master weights; if the dtype is f32, the parameter itself; null without master weights */
    void *m, *v;   /* the moments, in the format te_adamw_config.moments; v is null if the rule has no second moment */
    const float *grad;
    void *weight;
    int64_t elements;
    int64_t at;    /* the index, a multiple of 4, of the tensor's first element among the elements of all tensors, from
                    * which Philox's counter is computed */
    float decay;
    float lr;      /* factor of the tensor's learning rate: te_adamw_state.adamw_lr * lr (AdamW) or te_adamw_state.lr *
                    * lr */
    te_dtype dtype;
    te_rule rule;
} te__adamw_tensor;

/* Compile-time constants of a kernel. The dtype of the weights is no such constant, because it only determines how a
 * weight is stored. */
typedef struct te__adamw_variant { te_dtype moments; te_rule rule; } te__adamw_variant;

/* A block of 256 lanes (threads) updates a chunk of 2048 elements, i.e. each lane updates two vectors of 4 elements.
 * Four blocks are resident on a multiprocessor. With 16-bit or 8-bit moments, arithmetic takes as long as memory
 * accesses, and more warps hide the latency of both better (AdamW with bf16 moments: 853 us with two blocks, 717 us
 * with four). A CPU copies 32 elements at a time to local arrays, of which the compiler knows that they do not
 * alias. */
enum { TE__ADAMW_CHUNK = 2048, TE__ADAMW_THREADS = 256, TE__ADAMW_LANES = TE_CUDA ? 256 : 1,
      TE__ADAMW_WIDTH = TE_CUDA ? 4 : 32, TE__ADAMW_RESIDENT = 4 };

typedef struct __attribute__((aligned(16))) te__adamw_floats { float v[TE__ADAMW_WIDTH]; } te__adamw_floats;
typedef struct __attribute__((aligned(8))) te__adamw_halves { uint16_t v[TE__ADAMW_WIDTH]; } te__adamw_halves;

/* A lane's registers for TE__ADAMW_WIDTH consecutive elements: g: gradients, p: weights (parameters), m and v:
 * moments. */
typedef struct te__adamw_vec { te__adamw_floats g, p, m, v; } te__adamw_vec;

/* ---- stochastic rounding ----------------------------------------------------------------------------------------- */

/* The numbers of the Philox streams for rounding moments and weights. Ops use small stream numbers, counted from 0, so
 * all streams differ. */
enum { TE__ADAMW_MOMENTS = 0x6d6f6d31, TE__ADAMW_WEIGHTS };

/* Return x as bf16, rounded stochastically such that the expected value is x. 16 random bits are added to the low 16
 * bits of x, and then the low 16 bits are cut off. If the low 16 bits of x have the value c, the addition carries into
 * the high 16 bits with probability c / 2^16. An |x| above the largest finite bf16 number is rounded by
 * te_bf16_of_float instead. */
TE_BOTH uint16_t te__bf16_stochastic(float x, uint32_t random) {
    const uint32_t u = te_bits_of_float(x);
    if ((u & 0x7fffffffu) > 0x7f7f0000u) return te_bf16_of_float(x);
    return (uint16_t)((u + (random & 0xffffu)) >> 16);
}
/* Set w to random words for the four elements `element` to element + 3, one word for each element. All four words come
 * from one Philox counter. For moments, the rounding of m uses the low half of a word, and the rounding of v the high
 * half. */
TE_FN void te__adamw_random(uint32_t w[4], int64_t element, int stream, const te_adamw_state *s,
                            const te_adamw_config *c) {
    te_philox(w, c->seed, (uint64_t)element / 4, (uint32_t)stream, (uint64_t)s->step);
}

/* ---- loads and stores -------------------------------------------------------------------------------------------- */

/* Load the elements i to i + TE__ADAMW_WIDTH - 1 of p as floats. dtype: f32 or bf16. */
TE_FN te__adamw_floats te__adamw_floats_of(const void *p, int64_t i, te_dtype dtype) {
    te__adamw_floats f;
    if (dtype == TE_f32) return *(const te__adamw_floats *)((const float *)p + i);
    const te__adamw_halves h = *(const te__adamw_halves *)((const uint16_t *)p + i);
    TE_UNROLL for (int k = 0; k < TE__ADAMW_WIDTH; k++) f.v[k] = te_float_of_bf16(h.v[k]);
    return f;
}
TE_FN void te__adamw_store_moments(const te__adamw_vec *r, const te__adamw_tensor *t, int64_t i,
                                   const te_adamw_state *s, const te_adamw_config *c, te__adamw_variant var) {
    const int has_v = var.rule == TE_RULE_adamw;
    te__adamw_halves m, v;
    if (var.moments == TE_f32) {
        *(te__adamw_floats *)((float *)t->m + i) = r->m;
        if (has_v) *(te__adamw_floats *)((float *)t->v + i) = r->v;
        return;
    }
    TE_UNROLL for (int k = 0; k < TE__ADAMW_WIDTH; k += 4) {
        uint32_t w[4];
        te__adamw_random(w, t->at + i + k, TE__ADAMW_MOMENTS, s, c);
        TE_UNROLL for (int j = 0; j < 4; j++) {
            m.v[k + j] = te__bf16_stochastic(r->m.v[k + j], w[j]);
            if (has_v) v.v[k + j] = te__bf16_stochastic(r->v.v[k + j], w[j] >> 16);
        }
    }
    *(te__adamw_halves *)((uint16_t *)t->m + i) = m;
    if (has_v) *(te__adamw_halves *)((uint16_t *)t->v + i) = v;
}

/* Store the updated parameters *p as master weights and, rounded, as weights. Returns the stored 16-bit weights, or
 * zeros if the weights are f32. */
TE_FN te__adamw_halves te__adamw_store_weights(const te__adamw_floats *p, const te__adamw_tensor *t, int64_t i,
                                               const te_adamw_state *s, const te_adamw_config *c) {
    te__adamw_halves h;
    if (t->master) *(te__adamw_floats *)(t->master + i) = *p;
    if (t->dtype == TE_f32) return memset(&h, 0, sizeof h), h;
    if (!t->master)
        TE_UNROLL for (int k = 0; k < TE__ADAMW_WIDTH; k += 4) {
            uint32_t w[4];
            te__adamw_random(w, t->at + i + k, TE__ADAMW_WEIGHTS, s, c);
            TE_UNROLL for (int j = 0; j < 4; j++) h.v[k + j] = te__bf16_stochastic(p->v[k + j], w[j]);
        }
    else if (t->dtype == TE_bf16)
        TE_UNROLL for (int k = 0; k < TE__ADAMW_WIDTH; k++) h.v[k] = te_bf16_of_float(p->v[k]);
    else
        TE_UNROLL for (int k = 0; k < TE__ADAMW_WIDTH; k++) h.v[k] = te_f16_of_float(p->v[k]);
    *(te__adamw_halves *)((uint16_t *)t->weight + i) = h;
    return h;
}
/* Return weight i of t as a float: the master weight if t has master weights, else the bf16 weight. */
TE_FN float te__adamw_load_weight(const te__adamw_tensor *t, int64_t i) {
    return t->master ? t->master[i] : te_float_of_bf16(((const uint16_t *)t->weight)[i]);
}
TE_FN void te__adamw_store_weight(float p, const te__adamw_tensor *t, int64_t i, const te_adamw_state *s,
                                  const te_adamw_config *c) {
    uint32_t w[4];
    uint16_t *weight = (uint16_t *)t->weight + i;
    if (t->master) t->master[i] = p;
    if (t->dtype == TE_f32) return;
    if (!t->master) te__adamw_random(w, t->at + i, TE__ADAMW_WEIGHTS, s, c), *weight = te__bf16_stochastic(p, w[i % 4]);
    else *weight = t->dtype == TE_bf16 ? te_bf16_of_float(p) : te_f16_of_float(p);
}

/* ---- update rules ------------------------------------------------------------------------------------------------ */

/* AdamW: m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2, p -= lr (m' / (sqrt(v') + eps) + decay p), where
 * m' and v' are the bias-corrected m and v. A separate loop computes the square roots: the compiler does not vectorise
 * a loop that calls sqrtf, because sqrtf may set errno. */
TE_FN void te__adamw_math(te__adamw_vec *r, const te_adamw_state *s, const te_adamw_config *c,
                          const te__adamw_tensor *t, int n) {
    float root[TE__ADAMW_WIDTH];
    const float lr = s->adamw_lr * t->lr, decay = t->decay;
    const float one1 = 1.0f - c->beta1, one2 = 1.0f - c->beta2;
    TE_UNROLL for (int k = 0; k < n; k++) {
        const float g = r->g.v[k] * s->scale;
        r->m.v[k] = c->beta1 * r->m.v[k] + one1 * g;
        r->v.v[k] = c->beta2 * r->v.v[k] + one2 * g * g;
        root[k] = r->v.v[k] * s->correct_v;
    }
    TE_UNROLL for (int k = 0; k < n; k++) root[k] = sqrtf(root[k]);
    TE_UNROLL for (int k = 0; k < n; k++) {
        const float update = r->m.v[k] * s->correct_m / (root[k] + c->eps);
        r->p.v[k] -= lr * (update + decay * r->p.v[k]);
    }
}
/* SGD: d = g + decay p,  m = momentum m + d,  p -= lr m, or with Nesterov's momentum p -= lr (d + momentum m). Source:
 * Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013. There the momentum
 * contains the learning rate as a factor; here m does not contain it. */
TE_FN void te__sgd_math(te__adamw_vec *r, const te_adamw_state *s, const te_adamw_config *c,
                        const te__adamw_tensor *t, int n) {
    const float lr = s->lr * t->lr, decay = t->decay;
    TE_UNROLL for (int k = 0; k < n; k++) {
        const float d = r->g.v[k] * s->scale + decay * r->p.v[k];
        r->m.v[k] = c->momentum * r->m.v[k] + d;
        r->p.v[k] -= lr * (c->nesterov ? d + c->momentum * r->m.v[k] : r->m.v[k]);
    }
}
TE_FN void te__optim_math(te__adamw_vec *r, const te_adamw_state *s, const te_adamw_config *c,
                          const te__adamw_tensor *t, int n, te_rule rule) {
    if (rule == TE_RULE_sgd) te__sgd_math(r, s, c, t, n);
    else te__adamw_math(r, s, c, t, n);
}

/* ---- the update, moments in f32 or bf16 -------------------------------------------------------------------------- */

TE_FN void te__adamw_load(te__adamw_vec *r, const te__adamw_tensor *t, int64_t i, te__adamw_variant var) {
    r->g = te__adamw_floats_of(t->grad, i, TE_f32);
    r->p = t->master ? te__adamw_floats_of(t->master, i, TE_f32) : te__adamw_floats_of(t->weight, i, TE_bf16);
    r->m = te__adamw_floats_of(t->m, i, var.moments);
    if (var.rule == TE_RULE_adamw) r->v = te__adamw_floats_of(t->v, i, var.moments);
}
TE_FN void te__adamw_store(const te__adamw_vec *r, const te__adamw_tensor *t, int64_t i, const te_adamw_state *s,
                           const te_adamw_config *c, te__adamw_variant var) {
    te__adamw_store_moments(r, t, i, s, c, var);
    (void)te__adamw_store_weights(&r->p, t, i, s, c);
}
/* Update the last elements of a tensor, i to `to` - 1, which are fewer than TE__ADAMW_WIDTH. */
TE_FN void te__adamw_tail(const te__adamw_tensor *t, int64_t i, int64_t to, const te_adamw_state *s,
                          const te_adamw_config *c, te__adamw_variant var) {
    const int has_v = var.rule == TE_RULE_adamw;
    for (; i < to; i++) {
        te__adamw_vec r;
        uint32_t w[4] = {0, 0, 0, 0};
        r.g.v[0] = t->grad[i], r.p.v[0] = te__adamw_load_weight(t, i), r.m.v[0] = te_load(t->m, i, var.moments);
        r.v.v[0] = has_v ? te_load(t->v, i, var.moments) : 0.0f;
        te__optim_math(&r, s, c, t, 1, var.rule);
        if (var.moments == TE_f32) {
            ((float *)t->m)[i] = r.m.v[0];
            if (has_v) ((float *)t->v)[i] = r.v.v[0];
        } else {
            te__adamw_random(w, t->at + i, TE__ADAMW_MOMENTS, s, c);
            ((uint16_t *)t->m)[i] = te__bf16_stochastic(r.m.v[0], w[i % 4]);
            if (has_v) ((uint16_t *)t->v)[i] = te__bf16_stochastic(r.v.v[0], w[i % 4] >> 16);
        }
        te__adamw_store_weight(r.p.v[0], t, i, s, c);
    }
}
/* Update the chunk of tensor t that begins at element `from`. In a full chunk, each lane loads two vectors before it
 * updates the first one, so that more loads are in flight. */
TE_FN void te__adamw_chunk(const te__adamw_tensor *t, int64_t from, const te_adamw_state *s, const te_adamw_config *c,
                           te__adamw_variant var) {
    int group;
    const te_lanes lanes = te_lanes_here(TE__ADAMW_LANES, &group);
    const int64_t to = te_min(t->elements, from + TE__ADAMW_CHUNK), step = (int64_t)TE__ADAMW_WIDTH * lanes.count;
    if (to - from == TE__ADAMW_CHUNK) {
        TE_UNROLL for (int i = TE__ADAMW_WIDTH * lanes.id; i < TE__ADAMW_CHUNK; i += 2 * (int)step) {
            te__adamw_vec a, b;
            te__adamw_load(&a, t, from + i, var), te__adamw_load(&b, t, from + i + step, var);
            te__optim_math(&a, s, c, t, TE__ADAMW_WIDTH, var.rule);
            te__optim_math(&b, s, c, t, TE__ADAMW_WIDTH, var.rule);
            te__adamw_store(&a, t, from + i, s, c, var), te__adamw_store(&b, t, from + i + step, s, c, var);
        }
        return;
    }
    for (int64_t i = from + TE__ADAMW_WIDTH * lanes.id; i < to; i += step) {
        te__adamw_vec r;
        if (i + TE__ADAMW_WIDTH > to) {
            te__adamw_tail(t, i, to, s, c, var);
            continue;
        }
        te__adamw_load(&r, t, i, var);
        te__optim_math(&r, s, c, t, TE__ADAMW_WIDTH, var.rule);
        te__adamw_store(&r, t, i, s, c, var);
    }
}

typedef struct te__adamw_args {
    const te__adamw_tensor *tensor; /* [count] */
    const int32_t *first;           /* [count + 1], the index of the first chunk of each tensor */
    int count;
    te_adamw_state *state;
    const double *norm;             /* the gradient norm, a result of te_grad_norm_run; null if max_norm and
                                     * skip_nonfinite are 0, because the norm is then not needed */
    te_loss_scale_state *scaler;    /* the state of dynamic loss scaling; null without loss scaling */
    te_adamw_config config;
} te__adamw_args;

TE_FN void te__adamw_body(const te__adamw_args *a, te_block b, te_dtype moments, te_rule rule) {
    const te_adamw_state state = *a->state;
    if (!state.apply) return;
    const int n = te_chunk_tensor(a->first, a->count, b.x);
    const te__adamw_tensor t = a->tensor[n];
    if (t.rule != rule) return; /* t is a matrix that Muon updates */
    const int64_t from = (int64_t)(b.x - a->first[n]) * TE__ADAMW_CHUNK;
    te__adamw_variant var;
    var.moments = moments, var.rule = rule;
    te__adamw_chunk(&t, from, &state, &a->config, var);
}
TE_KERNEL_IF_USED(te_adamw_update, TE__ADAMW_THREADS, TE__ADAMW_RESIDENT, te__adamw_args,
                  te__adamw_body(te_args, te_at, TE_f32, TE_RULE_adamw))
TE_KERNEL_IF_USED(te_adamw_update_bf16, TE__ADAMW_THREADS, TE__ADAMW_RESIDENT, te__adamw_args,
                  te__adamw_body(te_args, te_at, TE_bf16, TE_RULE_adamw))
TE_KERNEL_IF_USED(te_sgd_update, TE__ADAMW_THREADS, TE__ADAMW_RESIDENT, te__adamw_args,
                  te__adamw_body(te_args, te_at, TE_f32, TE_RULE_sgd))
TE_KERNEL_IF_USED(te_sgd_update_bf16, TE__ADAMW_THREADS, TE__ADAMW_RESIDENT, te__adamw_args,
                  te__adamw_body(te_args, te_at, TE_bf16, TE_RULE_sgd))

/* ---- before the update ------------------------------------------------------------------------------------------- */

/* Decide whether this optimizer step is skipped, count the step, and compute its scalars, such as the learning rate.
 * One thread runs this function. */
TE_FN void te__adamw_begin_body(const te__adamw_args *a) {
    te_adamw_state s = *a->state;
    const float grad_scale = a->scaler ? a->config.grad_scale * a->scaler->inverse : a->config.grad_scale;
    const double norm = a->norm ? *a->norm * fabs((double)grad_scale) : 0.0; /* finite if all gradients are finite */
    const float limit = a->config.max_norm > 0.0f ? fminf(a->config.max_norm, TE_ADAMW_NORM_LIMIT)
                                                  : TE_ADAMW_NORM_LIMIT;
    s.norm = (float)norm;
    s.apply = !(a->config.skip_nonfinite || a->scaler) || norm <= 1e300;
    if (a->scaler) te__loss_scale_update(a->scaler, s.apply);
    if (s.apply) {
        s.lr = s.adamw_lr = te_lr(&a->config.schedule, s.step);
        if (a->config.rule == TE_RULE_muon) s.adamw_lr *= a->config.adamw_lr_factor;
        s.step++;
        s.correct_m = (float)(1.0 / (1.0 - pow((double)a->config.beta1, (double)s.step)));
        s.correct_v = (float)(1.0 / (1.0 - pow((double)a->config.beta2, (double)s.step)));
        s.scale = grad_scale;
        if (norm > (double)limit) s.scale *= (float)((double)limit / norm);
    } else {
        s.skipped++;
    }
    *a->state = s;
}
TE_KERNEL_IF_USED(te__adamw_begin, 1, 1, te__adamw_args, te__adamw_begin_body(te_args))

/* Copy the weights of tensors that are not f32 to their master weights. If `all` is 1, copy all weights (at
 * initialisation). If `all` is 0, copy only weights that differ from their rounded master weight. */
TE_FN void te__adamw_init_master_body(const te__adamw_args *a, te_block b, int all) {
    int group;
    const te_lanes lanes = te_lanes_here(TE__ADAMW_LANES, &group);
    const int n = te_chunk_tensor(a->first, a->count, b.x);
    const te__adamw_tensor t = a->tensor[n];
    const int64_t from = (int64_t)(b.x - a->first[n]) * TE__ADAMW_CHUNK;
    const int64_t to = te_min(t.elements, from + TE__ADAMW_CHUNK);
    if (t.dtype == TE_f32 || !t.master) return;
    for (int64_t i = from + lanes.id; i < to; i += lanes.count) {
        const uint16_t rounded = t.dtype == TE_bf16 ? te_bf16_of_float(t.master[i]) : te_f16_of_float(t.master[i]);
        if (all || rounded != ((const uint16_t *)t.weight)[i]) t.master[i] = te_load(t.weight, i, t.dtype);
    }
}
TE_KERNEL_IF_USED(te__adamw_init_master, TE__ADAMW_THREADS, 1, te__adamw_args,
                  te__adamw_init_master_body(te_args, te_at, 1))
/* The kernel for weights that other code than the optimizer has written: copies each weight to its master weight,
 * unless the master weight rounds to the weight. */
TE_KERNEL_IF_USED(te__adamw_renew_master, TE__ADAMW_THREADS, 1, te__adamw_args,
                  te__adamw_init_master_body(te_args, te_at, 0))

/* ---- moments in 8 bits: the format ------------------------------------------------------------------------------- */

/* Moments in e4m3, with a scale for each block of 128 elements. Block scales for moments are from Dettmers et al.,
 * "8-bit optimizers via block-wise quantization", ICLR 2022; the format of the elements is not:
 *
 *     m = s_m q_m,    v = (s_v q_v)^2        q_m, q_v: the stored e4m3 numbers (codes) of an element; s_m, s_v: the
 *                                            scales of its block, the smallest powers of two with
 *                                            max |m| <= 448 s_m and max sqrt(v) <= 448 s_v
 *
 * - A scale is a power of two, so that most changes of the block's amax do not change the scale. As long as the scale
 *   stays the same, moments that do not change keep their codes.
 * - v is stored as its square root, which has the same range as m. If v is above 0 but its code would be 0, the
 *   smallest code above 0 is stored. So the update m / sqrt(v) may be too small, but it is never infinite.
 * - m and v are rounded stochastically, such that the expected values of the stored m and the stored v are m and v.
 *   (The expected value of the stored square root of v is therefore not the square root of v.)
 *
 * bf16 represents every stored m (4 significant bits) and every stored v (8 significant bits) exactly, so a checkpoint
 * stores both as bf16.
 *
 * In memory, a tensor's m or v consists of one code for each element, padded to whole blocks, followed by one float for
 * each block, its scale: together 132 / 128 bytes for each element. A warp processes a block, with four elements in
 * each lane. Shards of ZeRO-1 begin at multiples of TE_MOMENT_BLOCK elements. */

enum { TE_MOMENT_BLOCK = TE_PARAM_ALIGN, TE__MOMENT_LANES = TE_CUDA ? 32 : 1,
       TE__MOMENT_PER_LANE = TE_MOMENT_BLOCK / TE__MOMENT_LANES /* elements of a block that a lane holds */ };

TE_BOTH int te__moments_8bit(te_dtype moments) { return moments == TE_e4m3; }
/* Return the bytes that the m or the v of a tensor takes. elements: the tensor's number of elements. For several
 * tensors, round each tensor's number of elements up to a multiple of TE_MOMENT_BLOCK, and pass the sum. */
TE_API size_t te__moments_bytes(int64_t elements, te_dtype moments) {
    const int64_t blocks = te_ceil_div(elements, TE_MOMENT_BLOCK);
    if (!te__moments_8bit(moments)) return (size_t)elements * te_dtype_bytes(moments);
    return (size_t)(blocks * (TE_MOMENT_BLOCK + (int64_t)sizeof(float)));
}
/* Return the address of the block scales of a tensor's m or v, which follow the codes in memory. elements: the tensor's
 * number of elements. */
TE_BOTH float *te_moment_scales(void *moment, int64_t elements) {
    return (float *)(void *)((char *)moment + (elements + TE_MOMENT_BLOCK - 1) / TE_MOMENT_BLOCK * TE_MOMENT_BLOCK);
}

/* Return the smallest power of two s with amax <= 448 s, but within limits: 2^-117 to 2^119 for m (root 0), and 2^-54
 * to 2^55 for the square root of v (root 1). The limits make sure that every stored moment (s times an e4m3 number or,
 * for v, the square of this product) is finite, and is either 0 or at least 2^-126. */
TE_BOTH float te__moment_scale(float amax, const int root) {
    const uint32_t least = root ? 127u - 54u : 127u - 117u, last = root ? 127u + 55u : 127u + 119u;
    /* Let amax = f * 2^k with 1 <= f < 2. Because 448 = 1.75 * 2^8, the scale is 2^(k - 8) if f <= 1.75, else
     * 2^(k - 7). The mantissa bits of 1.75 are 0x600000. Therefore adding 0x1fffff to the bits of amax increases the
     * exponent by one if f > 1.75, and leaves it unchanged if f <= 1.75. */
    uint32_t e = (te_bits_of_float(amax) + 0x1fffffu) >> 23;
    e = e < least + 8u ? least : e - 8u;
    return te_float_of_bits((e < last ? e : last) << 23);
}
/* Return 1 / scale, which is exact because the scale is a power of two. */
TE_BOTH float te__moment_inverse(float scale) { return te_float_of_bits((254u << 23) - te_bits_of_float(scale)); }

/* Return x >= 0 as an e4m3 code, rounded stochastically with 16 random bits. Let `low` be the largest e4m3 number <= x,
 * and measure x and low in units in the last place of low, so that low + 1 is the next e4m3 number. If root is 0, x is
 * rounded up with the probability x - low, so that the expected value is x. If root is 1, x is rounded up with the
 * probability (x^2 - low^2) / ((low + 1)^2 - low^2), so that the expected value of the square is x^2. Numbers above
 * 448, and NaN, become 448. */
TE_FN uint32_t te__e4m3_stochastic(float x, uint32_t random, const int root) {
    const uint32_t bits = te_bits_of_float(x < TE_E4M3_MAX ? x : TE_E4M3_MAX);
    uint32_t first;
    const uint32_t units = te__fp8_units(&first, bits, 3, 7), low = units >> 20, part = units & 0xfffffu;
    const uint32_t squares = (uint32_t)((uint64_t)(part << 8) * ((low << 21) + part) >> 32); /* fixed point, 16 bits */
    const uint32_t up = root ? squares > (2u * low + 1u) * random : part > random << 4;
    const uint32_t code = first + low + up;
    return root && bits && code == 0u ? 1u : code;
}
/* Return x >= 0 as an e4m3 code, rounded to nearest. If root is 1, an x above 0 never becomes 0, but at least the
 * smallest e4m3 number above 0. */
TE_FN uint32_t te__e4m3_nearest(float x, const int root) {
    const uint32_t code = te_e4m3_of_float(x < TE_E4M3_MAX ? x : TE_E4M3_MAX);
    return root && x > 0.0f && code == 0u ? 1u : code;
}

/* ---- moments in 8 bits: the update ------------------------------------------------------------------------------- */

/* A warp (on a CPU, one thread) holds a whole block of 128 moments in registers, because no moment can be stored before
 * the block's new amax is known. Each lane holds TE__ADAMW8_VECS vectors (on CUDA one vector) of TE__ADAMW_WIDTH
 * consecutive elements. */
enum { TE__ADAMW8_VECS = (int)TE_MOMENT_BLOCK / ((int)TE__ADAMW_WIDTH * (int)TE__MOMENT_LANES) };
typedef struct te__adamw8_block { te__adamw_vec vec[TE__ADAMW8_VECS]; } te__adamw8_block;

/* Return the index, in the tensor, of the first element of vector number k of this lane. i: the index of the block's
 * first element. */
TE_FN int64_t te__adamw8_offset(int64_t i, int k, int lane) {
    return i + (int64_t)TE__ADAMW_WIDTH * (k * TE__MOMENT_LANES + lane);
}
/* Load the moments of one vector as floats. A vector may extend past the tensor's end: the memory of the codes is
 * padded to whole blocks, with codes that are 0. */
TE_FN void te__adamw8_load_moments(te__adamw_floats *f, const void *codes, int64_t i, float scale, const int root) {
    const uint32_t *const word = (const uint32_t *)(const void *)((const uint8_t *)codes + i);
    TE_UNROLL for (int k = 0; k < TE__ADAMW_WIDTH; k += 4) {
        float x[4];
        te__floats_of_fp8(x, word[k / 4], 1);
        TE_UNROLL for (int j = 0; j < 4; j++) x[j] *= scale, f->v[k + j] = root ? x[j] * x[j] : x[j];
    }
}
TE_FN void te__adamw8_load(te__adamw8_block *r, const te__adamw_tensor *t, int64_t i, int lane, te_rule rule) {
    const float m = te_moment_scales(t->m, t->elements)[i / TE_MOMENT_BLOCK];
    const float v = rule == TE_RULE_adamw ? te_moment_scales(t->v, t->elements)[i / TE_MOMENT_BLOCK] : 0.0f;
    TE_UNROLL for (int k = 0; k < TE__ADAMW8_VECS; k++) {
        te__adamw_vec *const p = &r->vec[k];
        const int64_t at = te__adamw8_offset(i, k, lane);
        te__adamw8_load_moments(&p->m, t->m, at, m, 0);
        if (rule == TE_RULE_adamw) te__adamw8_load_moments(&p->v, t->v, at, v, 1);
        if (at + TE__ADAMW_WIDTH <= t->elements) {
            p->g = te__adamw_floats_of(t->grad, at, TE_f32);
            p->p = t->master ? te__adamw_floats_of(t->master, at, TE_f32) : te__adamw_floats_of(t->weight, at, TE_bf16);
        } else {
            TE_UNROLL for (int j = 0; j < TE__ADAMW_WIDTH; j++) {
                const int exists = at + j < t->elements;
                p->g.v[j] = exists ? t->grad[at + j] : 0.0f;
                p->p.v[j] = exists ? te__adamw_load_weight(t, at + j) : 0.0f;
            }
        }
    }
}
/* Compute amax[0], the largest |m|, and amax[1], the largest v, of a block of 128 elements. A NaN counts as 0 (the
 * weight of its element is NaN, too). The reduction over the lanes is also a barrier: behind it every lane has read the
 * block's old scales, which may then be overwritten. */
TE_FN void te__adamw8_amax(float amax[2], const te__adamw8_block *r, te_lanes *lanes, te_rule rule) {
    amax[0] = amax[1] = 0.0f;
    TE_UNROLL for (int k = 0; k < TE__ADAMW8_VECS; k++)
        TE_UNROLL for (int j = 0; j < TE__ADAMW_WIDTH; j++) {
            const float m = fabsf(r->vec[k].m.v[j]);
            amax[0] = m > amax[0] ? m : amax[0];
            if (rule == TE_RULE_adamw) amax[1] = r->vec[k].v.v[j] > amax[1] ? r->vec[k].v.v[j] : amax[1];
        }
    te_lanes_max(&amax[0], lanes);
    if (rule == TE_RULE_adamw) te_lanes_max(&amax[1], lanes);
}
/* Round and store the moments of one vector, with the same random numbers as for moments in bf16. A separate loop
 * computes the square roots, because the compiler does not vectorise a loop that calls sqrtf. inverse_m, inverse_v: 1 /
 * s_m and 1 / s_v, where s_m and s_v are the block's scales. */
TE_FN void te__adamw8_store_moments(const te__adamw_vec *p, const te__adamw_tensor *t, int64_t at, float inverse_m,
                                    float inverse_v, const te_adamw_state *s, const te_adamw_config *c, te_rule rule) {
    uint32_t *const m = (uint32_t *)(void *)((uint8_t *)t->m + at);
    uint32_t *const v = rule == TE_RULE_adamw ? (uint32_t *)(void *)((uint8_t *)t->v + at) : 0;
    float root[TE__ADAMW_WIDTH];
    TE_UNROLL for (int k = 0; k < TE__ADAMW_WIDTH; k++) root[k] = v ? sqrtf(p->v.v[k]) : 0.0f;
    TE_UNROLL for (int k = 0; k < TE__ADAMW_WIDTH; k += 4) {
        uint32_t w[4], ms = 0, vs = 0;
        te__adamw_random(w, t->at + at + k, TE__ADAMW_MOMENTS, s, c);
        TE_UNROLL for (int j = 0; j < 4; j++) {
            const uint32_t sign = te_bits_of_float(p->m.v[k + j]) >> 24 & 0x80u;
            ms |= (sign | te__e4m3_stochastic(fabsf(p->m.v[k + j]) * inverse_m, w[j] & 0xffffu, 0)) << 8 * j;
            if (v) vs |= te__e4m3_stochastic(root[k + j] * inverse_v, w[j] >> 16, 1) << 8 * j;
        }
        m[k / 4] = ms;
        if (v) v[k / 4] = vs;
    }
}
TE_FN void te__adamw8_store(const te__adamw8_block *r, const te__adamw_tensor *t, int64_t i, te_lanes *lanes,
                            const te_adamw_state *s, const te_adamw_config *c, te_rule rule) {
    float amax[2];
    te__adamw8_amax(amax, r, lanes, rule);
    const float m = te__moment_scale(amax[0], 0), v = te__moment_scale(sqrtf(amax[1]), 1);
    TE_UNROLL for (int k = 0; k < TE__ADAMW8_VECS; k++) {
        const te__adamw_vec *const p = &r->vec[k];
        const int64_t at = te__adamw8_offset(i, k, lanes->id);
        te__adamw8_store_moments(p, t, at, te__moment_inverse(m), te__moment_inverse(v), s, c, rule);
        if (at + TE__ADAMW_WIDTH <= t->elements) {
            (void)te__adamw_store_weights(&p->p, t, at, s, c);
        } else {
            TE_UNROLL for (int j = 0; j < TE__ADAMW_WIDTH; j++)
                if (at + j < t->elements) te__adamw_store_weight(p->p.v[j], t, at + j, s, c);
        }
    }
    if (lanes->id == 0) {
        te_moment_scales(t->m, t->elements)[i / TE_MOMENT_BLOCK] = m;
        if (rule == TE_RULE_adamw) te_moment_scales(t->v, t->elements)[i / TE_MOMENT_BLOCK] = v;
    }
}
TE_FN void te__adamw8_update(te__adamw8_block *r, const te__adamw_tensor *t, int64_t i, te_lanes *lanes,
                             const te_adamw_state *s, const te_adamw_config *c, te_rule rule) {
    TE_UNROLL
    for (int k = 0; k < TE__ADAMW8_VECS; k++) te__optim_math(&r->vec[k], s, c, t, TE__ADAMW_WIDTH, rule);
    te__adamw8_store(r, t, i, lanes, s, c, rule);
}
/* Update one chunk. Each warp of the thread block updates every n-th block of 128 elements in the chunk, where n is the
 * number of warps. */
TE_FN void te__adamw8_body(const te__adamw_args *a, te_block b, te_rule rule) {
    int group;
    te_lanes lanes = te_lanes_here(TE__MOMENT_LANES, &group);
    const int groups = (int)TE__ADAMW_LANES / (int)TE__MOMENT_LANES;
    const te_adamw_state state = *a->state;
    if (!state.apply) return;
    const int n = te_chunk_tensor(a->first, a->count, b.x);
    const te__adamw_tensor t = a->tensor[n];
    const int64_t from = (int64_t)(b.x - a->first[n]) * TE__ADAMW_CHUNK;
    const int64_t to = te_min(t.elements, from + TE__ADAMW_CHUNK), step = (int64_t)groups * TE_MOMENT_BLOCK;
    for (int64_t i = from + (int64_t)group * TE_MOMENT_BLOCK; i < to; i += step) {
        te__adamw8_block r;
        te__adamw8_load(&r, &t, i, lanes.id, rule);
        te__adamw8_update(&r, &t, i, &lanes, &state, &a->config, rule);
    }
}
TE_KERNEL_IF_USED(te_adamw_update_8bit, TE__ADAMW_THREADS, TE__ADAMW_RESIDENT, te__adamw_args,
                  te__adamw8_body(te_args, te_at, TE_RULE_adamw))
TE_KERNEL_IF_USED(te_sgd_update_8bit, TE__ADAMW_THREADS, TE__ADAMW_RESIDENT, te__adamw_args,
                  te__adamw8_body(te_args, te_at, TE_RULE_sgd))

/* ---- moments in 8 bits: to and from bf16, for checkpoints -------------------------------------------------------- */

/* The arguments of the kernels that convert 8-bit moments to or from bf16: `count` elements of a tensor's m or v, from
 * element number `from` on. */
typedef struct te__moments_args {
    uint8_t *code;  /* [blocks * TE_MOMENT_BLOCK] */
    float *scale;   /* [blocks] */
    uint16_t *bf16; /* [count] */
    int64_t from, count;
    int root;       /* 1: the moment is v, which is stored as its square root */
} te__moments_args;

/* Load this lane's moments of block number `block` as floats into v. Returns the index, in the tensor, of v[0]. */
TE_FN int64_t te__moments_dequantize_lane(float v[TE__MOMENT_PER_LANE], const te__moments_args *a, int64_t block,
                                          int lane) {
    const int64_t at = block * TE_MOMENT_BLOCK + (int64_t)lane * TE__MOMENT_PER_LANE;
    TE_UNROLL for (int k = 0; k < TE__MOMENT_PER_LANE; k++) {
        const float x = te_float_of_e4m3(a->code[at + k]) * a->scale[block];
        v[k] = a->root ? x * x : x;
    }
    return at;
}
TE_FN void te__moments_to_bf16_body(const te__moments_args *a, te_block b) {
    int group;
    const te_lanes lanes = te_lanes_here(TE__MOMENT_LANES, &group);
    float v[TE__MOMENT_PER_LANE];
    const int64_t at = te__moments_dequantize_lane(v, a, a->from / TE_MOMENT_BLOCK + b.x, lanes.id);
    TE_UNROLL for (int k = 0; k < TE__MOMENT_PER_LANE; k++)
        if (at + k >= a->from && at + k < a->from + a->count) a->bf16[at + k - a->from] = te_bf16_of_float(v[k]);
}
/* Convert a->count elements, from element number a->from on, from bf16 to 8 bits. The first and the last block may
 * have other elements, too; these are quantized again, with the block's new scale. If a block is set to 0 and then
 * loaded in several parts, quantizing again changes no value, because no scale on the way is larger than the scale with
 * which the block was saved. */
TE_FN void te__moments_from_bf16_body(const te__moments_args *a, te_block b) {
    int group;
    te_lanes lanes = te_lanes_here(TE__MOMENT_LANES, &group);
    const int64_t block = a->from / TE_MOMENT_BLOCK + b.x;
    float v[TE__MOMENT_PER_LANE], amax = 0.0f;
    const int64_t at = te__moments_dequantize_lane(v, a, block, lanes.id);
    TE_UNROLL for (int k = 0; k < TE__MOMENT_PER_LANE; k++) {
        if (at + k >= a->from && at + k < a->from + a->count) v[k] = te_float_of_bf16(a->bf16[at + k - a->from]);
        amax = fabsf(v[k]) > amax ? fabsf(v[k]) : amax;
    }
    te_lanes_max(&amax, &lanes); /* also a barrier: all lanes have now read the old scale */
    const float scale = te__moment_scale(a->root ? sqrtf(amax) : amax, a->root), inverse = te__moment_inverse(scale);
    TE_UNROLL for (int k = 0; k < TE__MOMENT_PER_LANE; k++) {
        const float x = a->root ? sqrtf(v[k]) : fabsf(v[k]);
        const uint32_t sign = !a->root && v[k] < 0.0f ? 0x80u : 0u;
        a->code[at + k] = (uint8_t)(sign | te__e4m3_nearest(x * inverse, a->root));
    }
    if (lanes.id == 0) a->scale[block] = scale;
}
TE_KERNEL_IF_USED(te_moments_to_bf16, TE__MOMENT_LANES, 1, te__moments_args, te__moments_to_bf16_body(te_args, te_at))
TE_KERNEL_IF_USED(te_moments_from_bf16, TE__MOMENT_LANES, 1, te__moments_args,
                  te__moments_from_bf16_body(te_args, te_at))

/* Convert `count` elements of m (root 0) or v (root 1), from element number `from` on, from 8 bits to bf16 or, if
 * `loads` is 1, from bf16 to 8 bits. elements: the number of elements of the tensor. bf16: [count], target memory.
 * Reads and writes 3 bytes in all for each converted element. */
TE_IF_USED TE_API te_status te__moments_copy(void *moment, int64_t elements, int root, int64_t from, int64_t count,
                                             void *bf16, int loads, te_context *ctx) {
    te__moments_args a;
    memset(&a, 0, sizeof a);
    a.code = (uint8_t *)moment, a.scale = te_moment_scales(moment, elements), a.bf16 = (uint16_t *)bf16;
    a.from = from, a.count = count, a.root = root;
    const int64_t blocks = count ? (from + count - 1) / TE_MOMENT_BLOCK - from / TE_MOMENT_BLOCK + 1 : 0;
    if (!blocks) return TE_OK;
    return loads ? te_moments_from_bf16_launch(ctx, te__grid_of(blocks, 1), &a)
                 : te_moments_to_bf16_launch(ctx, te__grid_of(blocks, 1), &a);
}

#endif
