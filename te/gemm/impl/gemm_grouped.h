/* gemm_grouped.h -- the products of a mixture of experts: one GEMM for each group of rows, all of them in one launch.
 *
 * Group e has the rows offset[e] to offset[e + 1] - 1 of x, and a weight of its own. Three kinds of products are needed:
 *     TE_GROUPED_FORWARD    y[rows, out] = x[rows, in] weight[e]^T, weight [groups, out, in]
 *     TE_GROUPED_DGRAD      dx[rows, in] = dy[rows, out] weight[e]
 *     TE_GROUPED_WGRAD      dweight[e] = dy^T x over the rows of the group, in f32
 * The offsets lie in target memory, and on CUDA the host does not read them: the grid has a block for each tile that
 * there can be, and a block finds its group by a binary search, as for sequences of different lengths (te_sequences).
 *
 * Do this:
 *     te_grouped g = te_grouped_of(TE_GROUPED_FORWARD, out, in, groups, rows);
 *     g.a = x, g.b = weight, g.d = y, g.offset = offset, g.max_rows = rows, g.dtype = g.out_dtype = TE_bf16;
 */
#ifndef TE_GEMM_GROUPED_H
#define TE_GEMM_GROUPED_H

#include "gemm_dispatch.h" /* te_gemm, te__gemm_scratch */

typedef enum te_grouped_kind { TE_GROUPED_FORWARD, TE_GROUPED_DGRAD, TE_GROUPED_WGRAD } te_grouped_kind;

typedef struct te_grouped {
    const void *a;         /* forward: x; dgrad and wgrad: dy */
    const void *b;         /* forward and dgrad: weight; wgrad: x */
    void *d;               /* y, dx or dweight */
    const int32_t *offset; /* [groups + 1], target memory */
    const int32_t *slot;   /* forward and wgrad on CUDA: row i is row slot[i] / top_k of x; null: it is row i */
    float *scratch;        /* on the host: te__grouped_scratch(g) floats */
    int64_t rows;          /* of all groups */
    te_grouped_kind kind;
    int out, in, groups, top_k;
    int max_rows;          /* the largest number of rows of a group */
    int accumulate;        /* wgrad: 1: dweight is added to; 0: it is overwritten */
    te_dtype dtype, out_dtype; /* out_dtype: of d: dtype or f32 */
} te_grouped;

TE_API te_grouped te_grouped_of(te_grouped_kind kind, int out, int in, int groups, int64_t rows) {
    te_grouped g;
    memset(&g, 0, sizeof g);
    g.kind = kind, g.out = out, g.in = in, g.groups = groups, g.rows = rows, g.top_k = 1;
    return g;
}
/* The GEMM of the `rows` rows from row `first` on, which are those of group e. */
TE_API te_gemm te__grouped_gemm(const te_grouped *g, int e, int64_t first, int64_t rows) {
    const int64_t weight = (int64_t)e * g->out * g->in, size = (int64_t)te_dtype_bytes(g->dtype);
    const int wgrad = g->kind == TE_GROUPED_WGRAD, dgrad = g->kind == TE_GROUPED_DGRAD;
    te_gemm p = te_gemm_of(wgrad ? g->out : rows, wgrad || dgrad ? g->in : g->out,
                           wgrad ? rows : dgrad ? g->out : g->in);
    p.dtype = g->dtype, p.out = g->out_dtype, p.trans_a = wgrad, p.trans_b = !wgrad && !dgrad, p.scratch = g->scratch;
    p.a = (const char *)g->a + first * (g->kind == TE_GROUPED_FORWARD ? g->in : g->out) * size;
    p.b = (const char *)g->b + (wgrad ? first * g->in : weight) * size;
    p.d = (char *)g->d + (wgrad ? weight : first * p.n) * (int64_t)te_dtype_bytes(g->out_dtype);
    p.c = p.d, p.beta = g->accumulate ? 1.0f : 0.0f;
    return p;
}
#if !TE_CUDA
/* The number of floats of g->scratch. */
TE_API size_t te__grouped_scratch(const te_grouped *g) {
    const te_gemm p = te__grouped_gemm(g, 0, 0, g->max_rows);
    return te__gemm_scratch(&p);
}
/* Runs the GEMMs of all groups, one after the other. product: the function that runs a GEMM in the list's dtype. */
TE_API te_status te__grouped_run(const te_grouped *g, te_status (*product)(const te_gemm *, te_context *),
                                 te_context *ctx) {
    for (int e = 0; e < g->groups; e++) {
        const int64_t first = g->offset[e], rows = g->offset[e + 1] - first;
        const te_gemm p = te__grouped_gemm(g, e, first, rows);
        if (rows || (g->kind == TE_GROUPED_WGRAD && !g->accumulate)) TE_TRY(product(&p, ctx));
    }
    return TE_OK;
}
#endif

#endif
