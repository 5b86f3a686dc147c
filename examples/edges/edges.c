/* edges.c -- a list with an extra input and an extra output, and inference in place.
 *
 *     cc -O2 -I. examples/edges/edges.c -o edges -lm && ./edges
 */
#include "te/te.h"

#include <stdio.h>
#include <stdlib.h> /* malloc */

/* [edges] */
TE_SEQUENTIAL(mix, f32, (input, image, 64), (rmsnorm, norm, 64), (linear, fc, 64, 64), (add, image), (output, hidden), (gelu, act))

/* y = gelu(hidden), hidden = image + fc(norm(x)); all are [rows, 64] */
static te_status mixed(te_tensor y, te_tensor hidden, te_tensor x, te_tensor image, const mix *m, te_context *ctx) {
    const te_edge edges[2] = {{"image", image, te_none()}, {"hidden", hidden, te_none()}}; /* name, value, gradient */
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = (int)x.rows, batch.edges = edges, batch.edge_count = 2;
    return mix_infer(y, x, m, &batch, ctx);
}
/* [edges] */

static mix m;

static te_status run(int *same, te_context *ctx) {
    enum { ROWS = 8, COUNT = ROWS * 64 };
    void *params, *memory;
    te_tensor t[4];
    static float y[COUNT], x[COUNT];
    TE_TRY(te_allocate(ctx, &params, mix_param_bytes()));
    TE_TRY(mix_bind(&m, params, 0, ctx));
    TE_TRY(te_model_randomize(&m.model, 0.1f, 1, 0, ctx));
    TE_TRY(te_context_reserve(ctx, mix_workspace_bytes(&m, ROWS, ctx)));
    TE_TRY(te_allocate(ctx, &memory, sizeof y * 4));
    for (int i = 0; i < 4; i++) t[i] = te_matrix((float *)memory + i * COUNT, TE_f32, ROWS, 64);
    TE_TRY(te_fill_normal(memory, TE_f32, 4 * COUNT, 0.0f, 1.0f, 1, 100, ctx));
    TE_TRY(mixed(t[0], t[1], t[2], t[3], &m, ctx));
    /* [in_place] */
    TE_TRY(mixed(t[2], t[1], t[2], t[3], &m, ctx)); /* in place: y is the same tensor as x */
    /* [in_place] */
    TE_TRY(te_copy(ctx, y, t[0].data, sizeof y));
    TE_TRY(te_copy(ctx, x, t[2].data, sizeof x));
    TE_TRY(te_synchronize(ctx));
    *same = !memcmp(x, y, sizeof x);
    return TE_OK;
}

int main(void) {
    te_context ctx;
    int same = 0;
    te_status status = te_context_create(&ctx, 0, 1);
    if (status == TE_OK) status = run(&same, &ctx);
    if (status != TE_OK) printf("%s: %s\n", te_status_string(status), te_last_error(&ctx));
    else printf("in place: %s\n", same ? "the same bits" : "other bits");
    te_context_destroy(&ctx);
    return status != TE_OK || !same;
}
