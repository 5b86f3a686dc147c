/* adamw_layout.h -- what an optimizer has, and where in its memory that lies. */
#ifndef TE_ADAMW_LAYOUT_H
#define TE_ADAMW_LAYOUT_H

#include "adamw_kernels.h" /* te__adamw_tensor, TE__ADAMW_CHUNK; te_adamw_config */
#include "grad_norm.h"     /* te_grad_norm */
#include "moment_blocks.h" /* te__moments_bytes, te_moment_scales */
#include "muon.h"          /* te__muon_sizes, te__param_rule */
#include "slices.h"        /* te_piece_walk */

typedef struct te_adamw {
    te_adamw_config config; /* weight_decay, decay_all, rule, moments, no_master, muon_takes, shards stay as they are;
                             * groups are gone, the tensors have what they say */
    te_model *const *models;
    int model_count, count, chunks;
    te_slices slices;               /* which of them this rank has */
    te_adamw_state *state;          /* target memory, as everything below */
    te_grad_norm norm;
    const te__adamw_tensor *tensor; /* [count] */
    const int32_t *first;           /* [count + 1], the first chunk of each tensor */
    void *m, *v;                    /* tensors one after the other, each at a multiple of TE_PARAM_ALIGN elements */
    float *master;
    int64_t m_elements, v_elements; /* gaps included; only what AdamW takes has a v */
    te_rule rule;                   /* as at te_adamw_init, like the next three */
    te_dtype moments;               /* of m and v */
    int no_master;
    te_muon_takes takes;
    te__muon muon;
    char *room;                     /* of shared-out states: te__slices_room */
    uint64_t where;                 /* te__params_where: what the table was made for */
} te_adamw;

/* ---- what lies where -------------------------------------------------------------------------------------------- */

/* A walk over the optimizer's tensors, for a checkpoint or a look at them:
 *     te_adamw_walk w = te_adamw_tensors(&opt);
 *     while (te_adamw_next(&w)) use(w.param, w.model, w.master, w.m, w.v);
 */
typedef struct te_adamw_walk {
    te_piece_walk pieces;
    const te_adamw *opt;
    int64_t at, v_at, master_at;
    int model;              /* index into the models */
    const te_param *param;
    int64_t from, elements; /* of the parameter's: 0 and rows * cols, but of shared-out states those of this rank */
    float *master;          /* [elements], target memory; in param->data if that is f32; null: no_master */
    void *m, *v;            /* [elements] of opt->moments, of e4m3 with te_moment_scales(m, elements) behind them, and
                             * the root of v; v is null where the rule has none */
    te_rule rule;           /* of this tensor */
} te_adamw_walk;

TE_API te_adamw_walk te_adamw_tensors(const te_adamw *opt) {
    te_adamw_walk w;
    memset(&w, 0, sizeof w);
    w.pieces = te_pieces_of(opt ? opt->models : 0, opt ? opt->model_count : 0,
                            opt ? opt->slices : te_slices_of(0, 1)), w.opt = opt;
    return w;
}
TE_API int te_adamw_next(te_adamw_walk *w) {
    if (!te_pieces_next(&w->pieces)) return 0;
    w->param = w->pieces.param, w->model = w->pieces.model, w->from = w->pieces.from, w->elements = w->pieces.elements;
    const int64_t slot = te_round_up(w->elements, TE_PARAM_ALIGN);
    w->rule = te__param_rule(w->opt->rule, w->opt->takes, w->opt->models[w->model], w->param);
    w->m = (char *)w->opt->m + te__moments_bytes(w->at, w->opt->moments), w->at += slot;
    w->v = w->rule == TE_RULE_adamw ? (char *)w->opt->v + te__moments_bytes(w->v_at, w->opt->moments) : 0;
    if (w->v) w->v_at += slot;
    w->master = (float *)w->param->data + w->from;
    if (w->param->dtype == TE_f32) return 1;
    w->master = w->opt->no_master ? 0 : w->opt->master + w->master_at, w->master_at += slot;
    return 1;
}

/* ---- its memory -------------------------------------------------------------------------------------------------- */

/* What this rank of the data group has of the states: matrices are Muon's whole, or nobody's. */
TE_API te_slices te__adamw_slices(const te_adamw_config *c, int rank) {
    te_slices s = te_slices_of(rank, c->shards);
    if (c->rule == TE_RULE_muon && c->shards > 1) s.whole = c->muon_takes ? c->muon_takes : te_muon_matrices;
    return s;
}
typedef struct te__adamw_layout {
    size_t norm, table, m, v, master, x[2], a, b, scratch, partial, factor, room, bytes;
    int count;
    int64_t chunks, m_elements, v_elements;
} te__adamw_layout;

TE_API te__adamw_layout te__adamw_layout_of(te_model *const *models, int count, const te_adamw_config *c, int rank) {
    te__adamw_layout l;
    const te_slices slices = te__adamw_slices(c, rank);
    te_piece_walk w = te_pieces_of(models, count, slices);
    te__muon_sizes muon;
    int64_t masters = 0;
    memset(&l, 0, sizeof l), memset(&muon, 0, sizeof muon);
    for (; te_pieces_next(&w); l.count++) {
        const int64_t n = w.elements, slot = te_round_up(n, TE_PARAM_ALIGN);
        const te_rule rule = te__param_rule(c->rule, c->muon_takes, models[w.model], w.param);
        l.chunks += te_ceil_div(n, TE__ADAMW_CHUNK), l.m_elements += slot;
        if (rule == TE_RULE_adamw) l.v_elements += slot;
        if (rule == TE_RULE_muon) te__muon_add(&muon, w.param, te__muon_dtype(models[w.model]->plan->dtype));
        if (w.param->dtype != TE_f32 && !c->no_master) masters += slot;
    }
    (void)te__part(&l.bytes, sizeof(te_adamw_state));
    l.norm = te__part(&l.bytes, te__grad_norm_bytes(models, count, slices));
    l.table = te__part(&l.bytes, (size_t)l.count * sizeof(te__adamw_tensor) + ((size_t)l.count + 1) * sizeof(int32_t));
    l.m = te__part(&l.bytes, te__moments_bytes(l.m_elements, c->moments));
    l.v = te__part(&l.bytes, te__moments_bytes(l.v_elements, c->moments));
    l.master = te__part(&l.bytes, (size_t)masters * sizeof(float));
    for (int i = 0; i < 2; i++) l.x[i] = te__part(&l.bytes, (size_t)muon.x);
    l.a = te__part(&l.bytes, (size_t)muon.a), l.b = te__part(&l.bytes, (size_t)muon.a);
    l.scratch = te__part(&l.bytes, (size_t)muon.scratch);
    if (c->rule != TE_RULE_muon) return l;
    l.partial = te__part(&l.bytes, (size_t)l.chunks * sizeof(float));
    l.factor = te__part(&l.bytes, (size_t)l.count * sizeof(float));
    l.room = te__part(&l.bytes, te__slices_room(models, count, slices));
    return l;
}
/* Bytes of target memory that te_adamw_init wants: for AdamW 12 an element, 8 for an f32 model, four less with moments
 * in bf16, 5.94 less in e4m3, four less without master weights, and some for the tables; Muon takes no second moment,
 * but two copies of the largest matrix. Of shared-out states all but the tables is divided by config->shards, and up to
 * 128 elements a shard and model are added; Muon's need the largest matrix once more for each shard. A config that is
 * refused, or none: as te_adamw_bytes. */
TE_API size_t te_adamw_bytes_of(te_model *const *models, int count, const te_adamw_config *config) {
    const te_adamw_config plain = te_adamw_defaults(0.0f);
    const int known = config && (unsigned)config->rule < (unsigned)TE_RULE_COUNT &&
                      te__moments_known(config->moments) && te__adamw_shards(config->shards);
    size_t bytes = 0; /* the same on all ranks */
    for (int rank = 0; rank < (known ? config->shards : 1); rank++) {
        const te__adamw_layout l = te__adamw_layout_of(models, count, known ? config : &plain, rank);
        bytes = l.bytes > bytes ? l.bytes : bytes;
    }
    return bytes;
}
/* The same for AdamW with moments in f32. */
TE_API size_t te_adamw_bytes(te_model *const *models, int count) { return te_adamw_bytes_of(models, count, 0); }

#endif
