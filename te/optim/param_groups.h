/* param_groups.h -- parameters with a learning rate or a weight decay of their own.
 *
 * Do this:
 *     te_param_group groups[3];
 *     groups[0] = te_param_group_of(0, "embedding", 0), groups[0].lr = 0.1f;     // op, kind of op, field; 0: any
 *     groups[1] = te_param_group_of("proj", 0, "weight"), groups[1].weight_decay = 0.0f;
 *     groups[2] = te_param_group_of(0, 0, "bias"), groups[2].lr = 2.0f;
 *     config.groups = groups, config.group_count = 3;                            // of a te_adamw_config, for any rule
 *
 * A parameter belongs to the first group that takes it; one that no group takes is treated as the config says. A group
 * that takes none of the models' parameters is an error: its name is misspelt.
 */
#ifndef TE_PARAM_GROUPS_H
#define TE_PARAM_GROUPS_H

#include "params.h" /* te_param_walk, te_model, te_param */

#define TE_DECAY_OF_CONFIG (-1.0f) /* te_param_group.weight_decay: as the config has it for all others */

/* The caller's own choice. */
typedef int (*te_group_takes)(const te_model *model, const te_param *p);

/* Takes the parameters for which all that it names agrees. */
typedef struct te_param_group {
    const char *op, *kind, *field; /* "proj", "linear", "weight"; null: any */
    te_group_takes takes;          /* null: any */
    float lr;                      /* a factor of the schedule's learning rate */
    float weight_decay;            /* of whatever shape they have; or TE_DECAY_OF_CONFIG */
} te_param_group;

TE_API te_param_group te_param_group_of(const char *op, const char *kind, const char *field) {
    te_param_group g;
    g.op = op, g.kind = kind, g.field = field, g.takes = 0, g.lr = 1.0f, g.weight_decay = TE_DECAY_OF_CONFIG;
    return g;
}

/* The op that has this parameter; null: none, in a table made by hand. */
TE_API const te_op *te__op_of_param(const te_model *m, const te_param *p) {
    for (int i = 0; i < m->plan->op_count; i++)
        if (!strcmp(m->plan->op[i].name, p->op)) return &m->plan->op[i];
    return 0;
}
TE_API int te__group_has(const te_param_group *g, const te_model *m, const te_param *p) {
    const te_op *op = te__op_of_param(m, p);
    if (!te__is_named(p, g->op, g->field)) return 0;
    if (g->kind && (!op || strcmp(op->kind, g->kind))) return 0;
    return !g->takes || g->takes(m, p);
}
/* The group that p belongs to; null: none. */
TE_API const te_param_group *te__group_of(const te_param_group *groups, int count, const te_model *m,
                                          const te_param *p) {
    for (int i = 0; i < count; i++)
        if (te__group_has(&groups[i], m, p)) return &groups[i];
    return 0;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* Whether the group names one of the models' parameters, be it frozen or tied. */
TE_API int te__group_is_used(const te_param_group *g, te_model *const *models, int count) {
    for (int i = 0; i < count; i++)
        for (int k = 0; k < models[i]->param_count; k++)
            if (te__group_has(g, models[i], &models[i]->param[k])) return 1;
    return 0;
}
TE_API te_status te__groups_check(const te_param_group *groups, int n, te_model *const *models, int count,
                                  te_context *ctx) {
    TE_REQUIRE(n >= 0, ctx, TE_ERROR_SHAPE, "adamw: %d groups of parameters", n);
    TE_REQUIRE(groups || !n, ctx, TE_ERROR_NULL, "adamw: the groups of parameters are null");
    for (int i = 0; i < n; i++) {
        const te_param_group *g = &groups[i];
        TE_REQUIRE(g->lr >= 0.0f && g->lr <= 3.402823466e38f, ctx, TE_ERROR_VALUE,
                   "adamw: group %d: lr %g, a factor, must be finite and >= 0", i, (double)g->lr);
        TE_REQUIRE(g->weight_decay == TE_DECAY_OF_CONFIG ||
                       (g->weight_decay >= 0.0f && g->weight_decay <= 3.402823466e38f), ctx, TE_ERROR_VALUE,
                   "adamw: group %d: weight_decay %g must be finite and >= 0, or TE_DECAY_OF_CONFIG", i,
                   (double)g->weight_decay);
        TE_REQUIRE(te__group_is_used(g, models, count), ctx, TE_ERROR_VALUE,
                   "adamw: group %d (op %.60s, kind %.60s, field %.60s) takes none of the models' parameters", i,
                   g->op ? g->op : "*", g->kind ? g->kind : "*", g->field ? g->field : "*");
    }
    return TE_OK;
}

#endif
