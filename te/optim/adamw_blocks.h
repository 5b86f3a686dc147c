/* adamw_blocks.h -- the update with moments in 8 bits (moment_blocks.h): adamw_kernels.h's arithmetic on blocks of 128
 * elements, which a warp or a CPU takes at once, because it needs the largest of all before it can store one.
 *
 * Reads grad, master, m, v (10.06 bytes an element) and writes master, m, v (6.06) and a 16-bit weight (2): the floor
 * of AdamW is 18.125 bytes * elements / copy rate, 30 with moments in f32 and 22 in bf16. SGD, which has one moment:
 * 16.06. Without master weights it is 6 less. Moments take 2.06 bytes an element of memory; in f32 8, in bf16 4.
 */
#ifndef TE_ADAMW_BLOCKS_H
#define TE_ADAMW_BLOCKS_H

#include "adamw_kernels.h" /* te__adamw_part, te__optim_math, te__adamw_store_weights */
#include "moment_blocks.h" /* te__moment_scale, te__e4m3_by_chance */

/* A lane holds parts of TE__ADAMW_WIDTH consecutive elements, one of them on CUDA. */
enum { TE__BLOCK_PARTS = (int)TE_MOMENT_BLOCK / ((int)TE__ADAMW_WIDTH * (int)TE__MOMENT_LANES) };
typedef struct te__adamw_block { te__adamw_part part[TE__BLOCK_PARTS]; } te__adamw_block;

/* The element where a lane's part k begins, in a block that begins at i. */
TE_FN int64_t te__block_part(int64_t i, int k, int lane) {
    return i + (int64_t)TE__ADAMW_WIDTH * (k * TE__MOMENT_LANES + lane);
}
/* Codes behind the tensor's end are there, and are 0. */
TE_FN void te__block_moments(te__adamw_floats *f, const void *codes, int64_t i, float scale, const int root) {
    const uint32_t *const word = (const uint32_t *)(const void *)((const uint8_t *)codes + i);
    TE_UNROLL for (int k = 0; k < TE__ADAMW_WIDTH; k += 4) {
        float x[4];
        te__floats_of_fp8(x, word[k / 4], 1);
        TE_UNROLL for (int j = 0; j < 4; j++) x[j] *= scale, f->v[k + j] = root ? x[j] * x[j] : x[j];
    }
}
TE_FN void te__block_load(te__adamw_block *r, const te__adamw_tensor *t, int64_t i, int lane, te_rule rule) {
    const float m = te_moment_scales(t->m, t->elements)[i / TE_MOMENT_BLOCK];
    const float v = rule == TE_RULE_adamw ? te_moment_scales(t->v, t->elements)[i / TE_MOMENT_BLOCK] : 0.0f;
    TE_UNROLL for (int k = 0; k < TE__BLOCK_PARTS; k++) {
        te__adamw_part *const p = &r->part[k];
        const int64_t at = te__block_part(i, k, lane);
        te__block_moments(&p->m, t->m, at, m, 0);
        if (rule == TE_RULE_adamw) te__block_moments(&p->v, t->v, at, v, 1);
        if (at + TE__ADAMW_WIDTH <= t->elements) {
            p->g = te__adamw_floats_of(t->grad, at, TE_f32);
            p->p = t->master ? te__adamw_floats_of(t->master, at, TE_f32) : te__adamw_floats_of(t->weight, at, TE_bf16);
        } else {
            TE_UNROLL for (int j = 0; j < TE__ADAMW_WIDTH; j++) {
                const int is_there = at + j < t->elements;
                p->g.v[j] = is_there ? t->grad[at + j] : 0.0f;
                p->p.v[j] = is_there ? te__adamw_weight(t, at + j) : 0.0f;
            }
        }
    }
}
/* The block's largest |m| and v; NaN, which is in the weight as well, counts as 0. All lanes arrive, and each has read
 * the old scales. */
TE_FN void te__block_most(float most[2], const te__adamw_block *r, te_lanes *lanes, te_rule rule) {
    most[0] = most[1] = 0.0f;
    TE_UNROLL for (int k = 0; k < TE__BLOCK_PARTS; k++)
        TE_UNROLL for (int j = 0; j < TE__ADAMW_WIDTH; j++) {
            const float m = fabsf(r->part[k].m.v[j]);
            most[0] = m > most[0] ? m : most[0];
            if (rule == TE_RULE_adamw) most[1] = r->part[k].v.v[j] > most[1] ? r->part[k].v.v[j] : most[1];
        }
    te_lanes_max(&most[0], lanes);
    if (rule == TE_RULE_adamw) te_lanes_max(&most[1], lanes);
}
/* The random numbers are those that moments in bf16 take. The roots stand alone, so that errno keeps no other line from
 * vectors. one_m, one_v: 1 / scale. */
TE_FN void te__block_store_part(const te__adamw_part *p, const te__adamw_tensor *t, int64_t at, float one_m,
                                float one_v, const te_adamw_state *s, const te_adamw_config *c, te_rule rule) {
    uint32_t *const m = (uint32_t *)(void *)((uint8_t *)t->m + at);
    uint32_t *const v = rule == TE_RULE_adamw ? (uint32_t *)(void *)((uint8_t *)t->v + at) : 0;
    float root[TE__ADAMW_WIDTH];
    TE_UNROLL for (int k = 0; k < TE__ADAMW_WIDTH; k++) root[k] = v ? sqrtf(p->v.v[k]) : 0.0f;
    TE_UNROLL for (int k = 0; k < TE__ADAMW_WIDTH; k += 4) {
        uint32_t w[4], ms = 0, vs = 0;
        te__adamw_random(w, t->at + at + k, TE__ADAMW_MOMENTS, s, c);
        TE_UNROLL for (int j = 0; j < 4; j++) {
            const uint32_t sign = te_bits_of_float(p->m.v[k + j]) >> 24 & 0x80u;
            ms |= (sign | te__e4m3_by_chance(fabsf(p->m.v[k + j]) * one_m, w[j] & 0xffffu, 0)) << 8 * j;
            if (v) vs |= te__e4m3_by_chance(root[k + j] * one_v, w[j] >> 16, 1) << 8 * j;
        }
        m[k / 4] = ms;
        if (v) v[k / 4] = vs;
    }
}
TE_FN void te__block_store(const te__adamw_block *r, const te__adamw_tensor *t, int64_t i, te_lanes *lanes,
                           const te_adamw_state *s, const te_adamw_config *c, te_rule rule) {
    float most[2];
    te__block_most(most, r, lanes, rule);
    const float m = te__moment_scale(most[0], 0), v = te__moment_scale(sqrtf(most[1]), 1);
    TE_UNROLL for (int k = 0; k < TE__BLOCK_PARTS; k++) {
        const te__adamw_part *const p = &r->part[k];
        const int64_t at = te__block_part(i, k, lanes->id);
        te__block_store_part(p, t, at, te__moment_inverse(m), te__moment_inverse(v), s, c, rule);
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
TE_FN void te__block_update(te__adamw_block *r, const te__adamw_tensor *t, int64_t i, te_lanes *lanes,
                            const te_adamw_state *s, const te_adamw_config *c, te_rule rule) {
    TE_UNROLL
    for (int k = 0; k < TE__BLOCK_PARTS; k++) te__optim_math(&r->part[k], s, c, t, TE__ADAMW_WIDTH, rule);
    te__block_store(r, t, i, lanes, s, c, rule);
}
/* All lanes of a group take part in each of its blocks. */
TE_FN void te__blocks_body(const te__adamw_args *a, te_block b, te_rule rule) {
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
        te__adamw_block r;
        te__block_load(&r, &t, i, lanes.id, rule);
        te__block_update(&r, &t, i, &lanes, &state, &a->config, rule);
    }
}
TE_KERNEL_IF_USED(te_adamw_update_e4m3, TE__ADAMW_THREADS, TE__ADAMW_RESIDENT, te__adamw_args,
                   te__blocks_body(te_args, te_at, TE_RULE_adamw))
TE_KERNEL_IF_USED(te_sgd_update_e4m3, TE__ADAMW_THREADS, TE__ADAMW_RESIDENT, te__adamw_args,
                   te__blocks_body(te_args, te_at, TE_RULE_sgd))

#endif
