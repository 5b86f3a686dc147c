/* part.h -- the instance of a list, with its parameters: what the programs of this folder load weights into. */
#ifndef PART_H
#define PART_H

#include <stdio.h> /* snprintf */

#include "te/infer.h"     /* te_plan, te_model */
#include "te/io/packed.h" /* te_packed */

#define END {0, 0, 0, 0, 0} /* the last entry of a table of te_packed or te_packed_heads */

enum {
    MAX_PARAMS = 16, /* of a list */
    MAX_NAME = 256,
    MAX_PATH = 4096
};

/* The instance of a list: its model, and its parameters. */
typedef struct part {
    const te_plan *plan;
    te_model model;
    te_param param[MAX_PARAMS];
} part;

/* own: with memory for the parameters, else they are bound to none. */
static te_status bind_part(part *p, int own, te_context *ctx) {
    void *memory = 0;
    int count = 0;
    for (int i = 0; i < p->plan->op_count; i++) count += p->plan->op[i].params;
    TE_REQUIRE(count <= MAX_PARAMS, ctx, TE_ERROR_STATE, "%s: more than %d parameters", p->plan->name, (int)MAX_PARAMS);
    if (own) TE_TRY(te_allocate(ctx, &memory, te_plan_param_bytes(p->plan)));
    return te_model_bind(&p->model, p->plan, p->param, count, memory, 0, ctx);
}

#endif
