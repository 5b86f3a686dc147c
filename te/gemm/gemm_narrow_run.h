/* gemm_narrow_run.h -- the host's side of gemm_narrow.h: which products its kernel takes, how their tiles are shared
 * out, the launch. */
/* target: cuda */
#ifndef TE_GEMM_NARROW_RUN_H
#define TE_GEMM_NARROW_RUN_H

#include "gemm_back_end_cuda.h" /* te__gemm_state */
#include "gemm_few.h"           /* TE_FEW_ROWS, te__few_k */
#include "gemm_narrow.h"        /* te_narrow */

enum {
    TE_NARROW_MOST_PARTS = 8,  /* of a tile's k */
    TE_NARROW_LEAST_STEPS = 4  /* of k in a part */
};

/* Whether there can be a kernel for the product: 16 bits, or e4m3 with scales of tensors or of rows. */
TE_API int te__narrow_can(const te_gemm *g) {
    const int64_t most = 1 << 30;
    const int fits = te_gemm_is_fp8(g) ? te__gemm_a(g) == TE_e4m3 && te__gemm_b(g) == TE_e4m3 && g->fast &&
                                             g->a_fp8.scaling != TE_SCALING_TILES && g->k % 16 == 0
                                       : g->k % 8 == 0;
    return fits && g->dtype != TE_f32 && g->out == g->dtype && !g->trans_a && g->trans_b && g->m > TE_FEW_ROWS &&
           g->m <= TE_NARROW_ROWS && g->n % 8 == 0 && g->n < most && g->k > 0 && g->k < most &&
           g->epilogue == TE_EPILOGUE_NONE;
}
TE_API int te__narrow_width(int64_t m) { return m <= 16 ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : 128; }

/* Tiles in rounds, and k of those that are left in parts. Returns how many clusters there are. */
TE_API int te__narrow_share_out(te_narrow *p, int processors, te__gemm_state *s) {
    const int clusters = (int)te_max(1, processors / TE_NARROW_CLUSTER), steps = (p->k + TE_NARROW_K - 1) / TE_NARROW_K;
    const int tiles = (int)te_ceil_div(p->n, TE_NARROW_CLUSTER * TE_NARROW_COLUMNS);
    const int64_t part = (int64_t)TE_NARROW_CLUSTER * TE_NARROW_COLUMNS * p->width * 4; /* bytes of its sums */
    const int counts = TE_GEMM_LEFT * 16 / (TE_NARROW_CLUSTER * TE_NARROW_WARPS);       /* tiles that have some */
    p->rounds = tiles / clusters, p->left = tiles % clusters, p->parts = 1;
    if (p->left && p->left <= counts) {
        const int64_t most = te_min(steps / TE_NARROW_LEAST_STEPS, TE_NARROW_MOST_PARTS);
        p->parts = (int)te_max(1, te_min(clusters / p->left, most));
        if (p->left * p->parts * part > TE_GEMM_WORKSPACE) p->parts = 1;
    }
    p->given = (float *)s->workspace, p->ready = (uint32_t *)(void *)((char *)s->workspace + TE_GEMM_WORKSPACE);
    return p->rounds ? clusters : p->left * p->parts;
}
/* Fill in p for the product, and launch `kernel` on the `bytes` of `args`, of which p is the first member. */
TE_API te_status te__narrow_run(const void *kernel, const void *args, size_t bytes, te_narrow *p, const te_gemm *g,
                                te_context *ctx) {
    const te__encode_fn encode = te__encode_of(ctx);
    p->alpha = g->alpha, p->m = (int)g->m, p->n = (int)g->n, p->k = (int)te__few_k(g);
    p->width = te__narrow_width(g->m), p->stages = te__narrow_stages(p->width);
    p->x_inverse = g->a_fp8.inverse, p->w_inverse = g->b_fp8.inverse;
    p->by_row = g->a_fp8.scaling == TE_SCALING_ROW;
    p->ahead = te_enqueue_follows(ctx);
    const int clusters = te__narrow_share_out(p, ctx->processors, te__gemm_state_of(ctx));
    TE_TRY(te__hopper_map(&p->w, encode, g->b, g->n, p->k, TE_NARROW_COLUMNS, g->dtype, ctx));
    TE_TRY(te__hopper_map(&p->x, encode, g->a, g->m, p->k, p->width / TE_NARROW_CLUSTER, g->dtype, ctx));
    const int shared = p->stages * te__narrow_stage(p->width) + TE_NARROW_WARPS * te__narrow_box(p->width) + 1024;
    return te__cuda_launch(ctx, kernel, te_grid_of(clusters * TE_NARROW_CLUSTER, 1), TE_NARROW_THREADS, shared,
                           TE_NARROW_CLUSTER, args, bytes, "matrix product of a batch's rows");
}

#endif
