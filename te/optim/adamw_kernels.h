/* adamw_kernels.h -- what te_adamw_step enqueues: one thread that begins the step, and one launch for all tensors. */
#ifndef TE_ADAMW_KERNELS_H
#define TE_ADAMW_KERNELS_H

#include "../core/philox.h" /* te_philox */
#include "adamw_config.h"   /* te_adamw_config, te_adamw_state */
#include "params.h"         /* te_chunk_tensor, TE_KERNEL */

/* One tensor, as the kernel reads it. */
typedef struct te__adamw_tensor {
    float *master; /* weight itself if the dtype is f32; null: there is none */
    void *m, *v;  /* of the config's moments; only AdamW has a v */
    const float *grad;
    void *weight;
    int64_t elements;
    int64_t at;   /* its first element among all, a multiple of four: where its random numbers begin */
    float decay;
    float lr;     /* a factor of the step's learning rate */
    te_dtype dtype;
    te_rule rule;
} te__adamw_tensor;

/* What is constant in a kernel's code. The dtype of the weights is not: it decides nothing but how they are stored. */
typedef struct te__adamw_form { te_dtype moments; te_rule rule; } te__adamw_form;

/* A chunk is what 256 lanes take at once: twice four 16-byte loads a lane. Four blocks share a multiprocessor: with
 * moments in 16 or 8 bits arithmetic takes as long as memory, and more warps hide what each waits for (bf16, 124M
 * parameters on an H200: 853 us with two, 717 with four). A CPU takes 32 elements at a time, in arrays of its own that
 * the compiler knows to be apart. */
enum { TE__ADAMW_CHUNK = 2048, TE__ADAMW_THREADS = 256, TE__ADAMW_LANES = TE_CUDA ? 256 : 1,
      TE__ADAMW_WIDTH = TE_CUDA ? 4 : 32, TE__ADAMW_RESIDENT = 4 };

typedef struct __attribute__((aligned(16))) te__adamw_floats { float v[TE__ADAMW_WIDTH]; } te__adamw_floats;
typedef struct __attribute__((aligned(8))) te__adamw_halves { uint16_t v[TE__ADAMW_WIDTH]; } te__adamw_halves;

/* What a lane holds of consecutive elements. */
typedef struct te__adamw_part { te__adamw_floats g, p, m, v; } te__adamw_part;

/* ---- numbers in bf16 --------------------------------------------------------------------------------------------- */

/* Of random numbers: far above those of ops, which count from 0. */
enum { TE__ADAMW_MOMENTS = 0x6d6f6d31, TE__ADAMW_WEIGHTS };

/* x as bf16. 16 random bits are added to the 16 that are cut off, and carry with the probability that these are of a
 * unit: the mean is x. Above the largest of bf16 as te_bf16_of_float has it. */
TE_BOTH uint16_t te__bf16_by_chance(float x, uint32_t random) {
    const uint32_t u = te_bits_of_float(x);
    if ((u & 0x7fffffffu) > 0x7f7f0000u) return te_bf16_of_float(x);
    return (uint16_t)((u + (random & 0xffffu)) >> 16);
}
/* Four elements take the four words of one index; m has the low half of a word, v the high one. */
TE_FN void te__adamw_random(uint32_t w[4], int64_t element, int stream, const te_adamw_state *s,
                            const te_adamw_config *c) {
    te_philox(w, c->seed, (uint64_t)element / 4, (uint32_t)stream, (uint64_t)s->step);
}
TE_FN te__adamw_floats te__adamw_floats_of(const void *p, int64_t i, te_dtype moments) {
    te__adamw_floats f;
    if (moments == TE_f32) return *(const te__adamw_floats *)((const float *)p + i);
    const te__adamw_halves h = *(const te__adamw_halves *)((const uint16_t *)p + i);
    TE_UNROLL for (int k = 0; k < TE__ADAMW_WIDTH; k++) f.v[k] = te_float_of_bf16(h.v[k]);
    return f;
}
TE_FN void te__adamw_store_moments(const te__adamw_part *r, const te__adamw_tensor *t, int64_t i,
                                   const te_adamw_state *s, const te_adamw_config *c, te__adamw_form f) {
    const int both = f.rule == TE_RULE_adamw;
    te__adamw_halves m, v;
    if (f.moments == TE_f32) {
        *(te__adamw_floats *)((float *)t->m + i) = r->m;
        if (both) *(te__adamw_floats *)((float *)t->v + i) = r->v;
        return;
    }
    TE_UNROLL for (int k = 0; k < TE__ADAMW_WIDTH; k += 4) {
        uint32_t w[4];
        te__adamw_random(w, t->at + i + k, TE__ADAMW_MOMENTS, s, c);
        TE_UNROLL for (int j = 0; j < 4; j++) {
            m.v[k + j] = te__bf16_by_chance(r->m.v[k + j], w[j]);
            if (both) v.v[k + j] = te__bf16_by_chance(r->v.v[k + j], w[j] >> 16);
        }
    }
    *(te__adamw_halves *)((uint16_t *)t->m + i) = m;
    if (both) *(te__adamw_halves *)((uint16_t *)t->v + i) = v;
}

/* Returns what it stores in 16 bits, of an f32 model zeros. */
TE_FN te__adamw_halves te__adamw_store_weights(const te__adamw_floats *p, const te__adamw_tensor *t, int64_t i,
                                               const te_adamw_state *s, const te_adamw_config *c) {
    te__adamw_halves h;
    if (t->master) *(te__adamw_floats *)(t->master + i) = *p;
    if (t->dtype == TE_f32) return memset(&h, 0, sizeof h), h;
    if (!t->master)
        TE_UNROLL for (int k = 0; k < TE__ADAMW_WIDTH; k += 4) {
            uint32_t w[4];
            te__adamw_random(w, t->at + i + k, TE__ADAMW_WEIGHTS, s, c);
            TE_UNROLL for (int j = 0; j < 4; j++) h.v[k + j] = te__bf16_by_chance(p->v[k + j], w[j]);
        }
    else if (t->dtype == TE_bf16)
        TE_UNROLL for (int k = 0; k < TE__ADAMW_WIDTH; k++) h.v[k] = te_bf16_of_float(p->v[k]);
    else
        TE_UNROLL for (int k = 0; k < TE__ADAMW_WIDTH; k++) h.v[k] = te_f16_of_float(p->v[k]);
    *(te__adamw_halves *)((uint16_t *)t->weight + i) = h;
    return h;
}
/* The same for one element. */
TE_FN float te__adamw_weight(const te__adamw_tensor *t, int64_t i) {
    return t->master ? t->master[i] : te_float_of_bf16(((const uint16_t *)t->weight)[i]);
}
TE_FN void te__adamw_store_weight(float p, const te__adamw_tensor *t, int64_t i, const te_adamw_state *s,
                                  const te_adamw_config *c) {
    uint32_t w[4];
    uint16_t *weight = (uint16_t *)t->weight + i;
    if (t->master) t->master[i] = p;
    if (t->dtype == TE_f32) return;
    if (!t->master) te__adamw_random(w, t->at + i, TE__ADAMW_WEIGHTS, s, c), *weight = te__bf16_by_chance(p, w[i % 4]);
    else *weight = t->dtype == TE_bf16 ? te_bf16_of_float(p) : te_f16_of_float(p);
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,  p -= lr (m' / (sqrt(v') + eps) + decay p),
 * with m' and v' corrected for having begun at 0. The root stands alone, so that errno keeps no other line from
 * vectors. */
TE_FN void te__adamw_math(te__adamw_part *r, const te_adamw_state *s, const te_adamw_config *c,
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
/* SGD: d = g + decay p,  m = momentum m + d,  p -= lr m, or with Nesterov's step p -= lr (d + momentum m). Sutskever et
 * al., "On the importance of initialization and momentum in deep learning", ICML 2013, with m in units of gradients. */
TE_FN void te__sgd_math(te__adamw_part *r, const te_adamw_state *s, const te_adamw_config *c,
                        const te__adamw_tensor *t, int n) {
    const float lr = s->lr * t->lr, decay = t->decay;
    TE_UNROLL for (int k = 0; k < n; k++) {
        const float d = r->g.v[k] * s->scale + decay * r->p.v[k];
        r->m.v[k] = c->momentum * r->m.v[k] + d;
        r->p.v[k] -= lr * (c->nesterov ? d + c->momentum * r->m.v[k] : r->m.v[k]);
    }
}
TE_FN void te__optim_math(te__adamw_part *r, const te_adamw_state *s, const te_adamw_config *c,
                          const te__adamw_tensor *t, int n, te_rule rule) {
    if (rule == TE_RULE_sgd) te__sgd_math(r, s, c, t, n);
    else te__adamw_math(r, s, c, t, n);
}
TE_FN void te__adamw_load(te__adamw_part *r, const te__adamw_tensor *t, int64_t i, te__adamw_form f) {
    r->g = te__adamw_floats_of(t->grad, i, TE_f32);
    r->p = t->master ? te__adamw_floats_of(t->master, i, TE_f32) : te__adamw_floats_of(t->weight, i, TE_bf16);
    r->m = te__adamw_floats_of(t->m, i, f.moments);
    if (f.rule == TE_RULE_adamw) r->v = te__adamw_floats_of(t->v, i, f.moments);
}
TE_FN void te__adamw_store(const te__adamw_part *r, const te__adamw_tensor *t, int64_t i, const te_adamw_state *s,
                           const te_adamw_config *c, te__adamw_form f) {
    te__adamw_store_moments(r, t, i, s, c, f);
    (void)te__adamw_store_weights(&r->p, t, i, s, c);
}
/* The elements from i to `to`, fewer than a lane's width. */
TE_FN void te__adamw_rest(const te__adamw_tensor *t, int64_t i, int64_t to, const te_adamw_state *s,
                          const te_adamw_config *c, te__adamw_form f) {
    const int both = f.rule == TE_RULE_adamw;
    for (; i < to; i++) {
        te__adamw_part r;
        uint32_t w[4] = {0, 0, 0, 0};
        r.g.v[0] = t->grad[i], r.p.v[0] = te__adamw_weight(t, i), r.m.v[0] = te_load(t->m, i, f.moments);
        r.v.v[0] = both ? te_load(t->v, i, f.moments) : 0.0f;
        te__optim_math(&r, s, c, t, 1, f.rule);
        if (f.moments == TE_f32) {
            ((float *)t->m)[i] = r.m.v[0];
            if (both) ((float *)t->v)[i] = r.v.v[0];
        } else {
            te__adamw_random(w, t->at + i, TE__ADAMW_MOMENTS, s, c);
            ((uint16_t *)t->m)[i] = te__bf16_by_chance(r.m.v[0], w[i % 4]);
            if (both) ((uint16_t *)t->v)[i] = te__bf16_by_chance(r.v.v[0], w[i % 4] >> 16);
        }
        te__adamw_store_weight(r.p.v[0], t, i, s, c);
    }
}
TE_FN void te__adamw_chunk(const te__adamw_tensor *t, int64_t from, const te_adamw_state *s, const te_adamw_config *c,
                           te__adamw_form f) {
    int group;
    const te_lanes lanes = te_lanes_here(TE__ADAMW_LANES, &group);
    const int64_t to = te_min(t->elements, from + TE__ADAMW_CHUNK), step = (int64_t)TE__ADAMW_WIDTH * lanes.count;
    if (to - from == TE__ADAMW_CHUNK) {
        TE_UNROLL for (int i = TE__ADAMW_WIDTH * lanes.id; i < TE__ADAMW_CHUNK; i += 2 * (int)step) {
            te__adamw_part a, b;
            te__adamw_load(&a, t, from + i, f), te__adamw_load(&b, t, from + i + step, f);
            te__optim_math(&a, s, c, t, TE__ADAMW_WIDTH, f.rule);
            te__optim_math(&b, s, c, t, TE__ADAMW_WIDTH, f.rule);
            te__adamw_store(&a, t, from + i, s, c, f), te__adamw_store(&b, t, from + i + step, s, c, f);
        }
        return;
    }
    for (int64_t i = from + TE__ADAMW_WIDTH * lanes.id; i < to; i += step) {
        te__adamw_part r;
        if (i + TE__ADAMW_WIDTH > to) {
            te__adamw_rest(t, i, to, s, c, f);
            continue;
        }
        te__adamw_load(&r, t, i, f);
        te__optim_math(&r, s, c, t, TE__ADAMW_WIDTH, f.rule);
        te__adamw_store(&r, t, i, s, c, f);
    }
}

/* The update. Reads grad, master, m, v (16 bytes an element) and writes master, m, v (12) and a 16-bit weight (2):
 * the floor is 30 bytes * elements / copy rate, 28 bytes for an f32 model. Moments in bf16 make it 22 and 20; so does
 * SGD, which has one, and 18 and 16 if that is in bf16. Without master weights it is 6 less. */
typedef struct te__adamw_args {
    const te__adamw_tensor *tensor;
    const int32_t *first;
    int count;
    te_adamw_state *state;
    const double *norm; /* of te_grad_norm; null: none */
    te_adamw_config config;
} te__adamw_args;

TE_FN void te__adamw_body(const te__adamw_args *a, te_block b, te_dtype moments, te_rule rule) {
    const te_adamw_state state = *a->state;
    if (!state.apply) return;
    const int n = te_chunk_tensor(a->first, a->count, b.x);
    const te__adamw_tensor t = a->tensor[n];
    if (t.rule != rule) return; /* Muon's */
    const int64_t from = (int64_t)(b.x - a->first[n]) * TE__ADAMW_CHUNK;
    te__adamw_form f;
    f.moments = moments, f.rule = rule;
    te__adamw_chunk(&t, from, &state, &a->config, f);
}
TE_KERNEL_IF_USED(te_adamw_update, TE__ADAMW_THREADS, TE__ADAMW_RESIDENT, te__adamw_args,
                  te__adamw_body(te_args, te_at, TE_f32, TE_RULE_adamw))
TE_KERNEL_IF_USED(te_adamw_update_bf16, TE__ADAMW_THREADS, TE__ADAMW_RESIDENT, te__adamw_args,
                  te__adamw_body(te_args, te_at, TE_bf16, TE_RULE_adamw))
TE_KERNEL_IF_USED(te_sgd_update, TE__ADAMW_THREADS, TE__ADAMW_RESIDENT, te__adamw_args,
                  te__adamw_body(te_args, te_at, TE_f32, TE_RULE_sgd))
TE_KERNEL_IF_USED(te_sgd_update_bf16, TE__ADAMW_THREADS, TE__ADAMW_RESIDENT, te__adamw_args,
                  te__adamw_body(te_args, te_at, TE_bf16, TE_RULE_sgd))

/* One thread before the update: count the step and work out its numbers. */
TE_FN void te__adamw_begin_body(const te__adamw_args *a) {
    te_adamw_state s = *a->state;
    const double norm = a->norm ? *a->norm * fabs((double)a->config.grad_scale) : 0.0; /* fits f64 if all are finite */
    const float most = a->config.max_norm > 0.0f ? fminf(a->config.max_norm, TE_ADAMW_LARGEST) : TE_ADAMW_LARGEST;
    s.norm = (float)norm;
    s.apply = !a->config.skip_nonfinite || norm <= 1e300;
    if (s.apply) {
        s.lr = s.adamw_lr = te_lr(&a->config.schedule, s.step);
        if (a->config.rule == TE_RULE_muon) s.adamw_lr *= a->config.rest;
        s.step++;
        s.correct_m = (float)(1.0 / (1.0 - pow((double)a->config.beta1, (double)s.step)));
        s.correct_v = (float)(1.0 / (1.0 - pow((double)a->config.beta2, (double)s.step)));
        s.scale = a->config.grad_scale;
        if (norm > (double)most) s.scale *= (float)((double)most / norm);
    } else {
        s.skipped++;
    }
    *a->state = s;
}
TE_KERNEL_IF_USED(te__adamw_begin, 1, 1, te__adamw_args, te__adamw_begin_body(te_args))

/* master = weight, for the models that are not f32. */
TE_FN void te__adamw_start_body(const te__adamw_args *a, te_block b) {
    int group;
    const te_lanes lanes = te_lanes_here(TE__ADAMW_LANES, &group);
    const int n = te_chunk_tensor(a->first, a->count, b.x);
    const te__adamw_tensor t = a->tensor[n];
    const int64_t from = (int64_t)(b.x - a->first[n]) * TE__ADAMW_CHUNK;
    const int64_t to = te_min(t.elements, from + TE__ADAMW_CHUNK);
    if (t.dtype == TE_f32 || !t.master) return;
    for (int64_t i = from + lanes.id; i < to; i += lanes.count) t.master[i] = te_load(t.weight, i, t.dtype);
}
TE_KERNEL_IF_USED(te__adamw_start, TE__ADAMW_THREADS, 1, te__adamw_args, te__adamw_start_body(te_args, te_at))

#endif
