/* gemm_hopper.h -- a matrix product of our own for compute capability 9.0, whose end costs next to nothing.
 *
 * A block owns a tile of 128 x 256 of D. One warp brings tiles of A and B by the copy engine (TMA) into a ring of four
 * stages; two warpgroups multiply them (wgmma), 64 x 256 floats each in registers. Two blocks of a cluster lie above
 * each other and share what they load of B. A block takes tile after tile: when one is done its floats are packed to 16
 * bits, and while the tensor cores work on the next they leave the registers, a quarter at a time, by way of shared memory,
 * where three more warps run the end on them, eight elements at a time: any function of an element and its place. The end
 * stores what is to be kept.
 *
 * D = alpha A op(B), rounded to 16 bits, then the end: the numbers of the ops one by one. Every sum over k runs in one order, so
 * the same inputs give the same bits.
 *
 * Measured on an H200, which its power limits at about 690 TFLOP/s: with a bare store for an end 0.98 to 1.03 of the time of
 * cuBLASLt's fastest candidate. With bias and gelu, 8192 x 16384 x 4096, 1.04 of that bare product, with the pre-activation stored
 * as well 1.06; cuBLASLt's own epilogues, which overlap with nothing, 1.07 to 1.11 and 1.12. What did not pay: the end in the
 * warpgroups that multiply (1.05 to 1.10: whatever they do between two steps the tensor cores wait for); a whole tile left in
 * shared memory at once, beside a ring of three stages (2 us a tile); for the gradient of a weight the same kernel with both
 * operands across and sums in f32 (1.00 to 1.06, accumulating 1.02 to 1.08).
 */
/* target: cuda */
#ifndef TE_GEMM_HOPPER_H
#define TE_GEMM_HOPPER_H

#include "gemm.h"
#include "hopper_cuda.h" /* te__wgmma, te__tma_load */

enum {
    TE_TILE_M = 128, TE_TILE_N = 256, TE_TILE_K = 64,
    TE_STAGES = 4,
    TE_CLUSTER = 2,     /* blocks that share their tiles of B */
    TE_HOPPER_BAND = 8, /* clusters above each other before the next column of tiles: what they read stays in the L2 */
    TE_HOPPER_A = TE_TILE_M * TE_TILE_K * 2, TE_HOPPER_STAGE = (TE_TILE_M + TE_TILE_N) * TE_TILE_K * 2,
    TE_HOPPER_BOX = 2048, /* bytes of a warp's 16 rows of 64 columns */
    TE_HOPPER_SHARED = TE_STAGES * TE_HOPPER_STAGE + 8 * 2 * TE_HOPPER_BOX + 1024,
    TE_HOPPER_THREADS = 384
};

typedef struct te_hopper {
    CUtensorMap a, b;
    float *sums; /* [3 * rows of tiles, n], sums over the rows of what the end says; null: none */
    float alpha;
    int m, n, k;
} te_hopper;

/* All constants. trans_b: B is stored [n, k]. */
typedef struct te_hopper_kind {
    te_dtype dtype;
    int trans_b;
} te_hopper_kind;

typedef struct te_hopper_barriers {
    uint64_t full[TE_STAGES], empty[TE_STAGES]; /* the ring */
    uint64_t done[2], taken[2];                 /* 64 columns of a tile that wait for their end */
} te_hopper_barriers;

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- the end of a tile -------------------------------------------------------------------------------------------------- */

/* Of 16 rows of 128 bytes, at a multiple of 1024, the 16 bytes `piece` of row `row`: permuted as the copy engine has them. */
TE_FN uint32_t te__hopper_piece(uint32_t box, int row, int piece) { return box + (uint32_t)(row * 128 + ((piece ^ (row & 7)) << 4)); }

/* A lane's d[4 j + 2 h + e] is row lane / 4 + 8 h, column 8 j + 2 (lane % 4) + e, of its warp's 16 x 256. */
TE_FN void te__hopper_pack(const te_hopper *p, uint32_t held[64], float d[128], const te_dtype dtype) {
    if (p->alpha != 1.0f) TE_UNROLL for (int i = 0; i < 128; i++) d[i] *= p->alpha;
    TE_UNROLL for (int i = 0; i < 64; i++) held[i] = te_pair_of_floats(d[2 * i], d[2 * i + 1], dtype);
}
/* A quarter of what a warp holds, 64 columns, goes to the warps that end it. boxes: of this warp, two. */
TE_FN void te__hopper_leave(const uint32_t held[64], const int quarter, uint32_t boxes, te_hopper_barriers *bars) {
    const int lane = (int)threadIdx.x % 32, box = quarter % 2;
    const uint32_t to = boxes + box * TE_HOPPER_BOX;
    te__barrier_wait(te__shared_address(&bars->taken[box]), (quarter / 2) ^ 1);
    TE_UNROLL for (int i = 0; i < 4; i++) te__store_matrix(te__hopper_piece(to, lane % 16, 2 * i + lane / 16), held + 16 * quarter + 4 * i);
    __syncwarp();
    if (lane == 0) te__barrier_arrive(te__shared_address(&bars->done[box]));
}

/* ---- the kernel ---------------------------------------------------------------------------------------------------------- */

/* Where tile `i` of this cluster's lies: rows from y, columns from x. Tiles go down a band of rows, then to the next column. */
TE_FN void te__hopper_tile(int *x, int *y, const te_hopper *p, int i, int rank) {
    const int rows = (p->m + TE_CLUSTER * TE_TILE_M - 1) / (TE_CLUSTER * TE_TILE_M), columns = (p->n + TE_TILE_N - 1) / TE_TILE_N;
    const int band = i / (TE_HOPPER_BAND * columns), first = band * TE_HOPPER_BAND, high = rows - first < TE_HOPPER_BAND ? rows - first : TE_HOPPER_BAND;
    const int at = i - first * columns;
    *y = ((first + at % high) * TE_CLUSTER + rank) * TE_TILE_M, *x = at / high * TE_TILE_N;
}

typedef struct te_hopper_ring { int stage, phase; } te_hopper_ring;
TE_FN void te__hopper_advance(te_hopper_ring *r) {
    if (++r->stage == TE_STAGES) r->stage = 0, r->phase ^= 1;
}

/* One thread brings all tiles, in the order in which they are used. */
TE_FN void te__hopper_load(const te_hopper *p, uint32_t ring, uint32_t full, uint32_t empty, int tiles, int rank, const te_hopper_kind kind) {
    te_hopper_ring r = {0, 0};
    for (int i = (int)blockIdx.x / TE_CLUSTER; i < tiles; i += (int)gridDim.x / TE_CLUSTER) {
        int x, y;
        te__hopper_tile(&x, &y, p, i, rank);
        for (int k = 0; k < p->k; k += TE_TILE_K, te__hopper_advance(&r)) {
            const uint32_t bar = full + 8 * r.stage, a = ring + r.stage * TE_HOPPER_STAGE, b = a + TE_HOPPER_A;
            const int mask = (1 << TE_CLUSTER) - 1;
            te__barrier_wait(empty + 8 * r.stage, r.phase ^ 1);
            te__barrier_expect(bar, TE_HOPPER_STAGE);
            te__tma_load(a, &p->a, k, y, bar, 0);
            /* of B this block brings its share, for the whole cluster */
            TE_UNROLL for (int q = 0; q < 4 / TE_CLUSTER; q++) {
                const int piece = rank * (4 / TE_CLUSTER) + q;
                if (kind.trans_b) te__tma_load(b + piece * 8192, &p->b, k, x + 64 * piece, bar, mask);
                else te__tma_load(b + piece * 8192, &p->b, x + 64 * piece, k, bar, mask);
            }
        }
    }
}

/* What a warpgroup works with. */
typedef struct te_hopper_group {
    uint32_t ring, full, empty;
    te_hopper_ring at;
} te_hopper_group;

/* The stage before the one at hand is no longer read. */
TE_FN void te__hopper_free(const te_hopper_group *g) {
    const int before = g->at.stage ? g->at.stage - 1 : TE_STAGES - 1, lane = (int)threadIdx.x % 32;
    if (lane < TE_CLUSTER) te__barrier_arrive_at(g->empty + 8 * before, lane);
}
/* One step in k of a warpgroup's tile. The step before it is then done. */
TE_FN void te__hopper_step(float d[128], te_hopper_group *g, int step, const te_hopper_kind k) {
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128 - 1, 0); /* so that the compiler sees that all lanes have the same */
    const uint32_t base = g->ring + g->at.stage * TE_HOPPER_STAGE;
    const uint64_t a = te__matrix_at(base + warpgroup * 8192, 0), b = te__matrix_at(base + TE_HOPPER_A, !k.trans_b);
    te__barrier_wait(g->full + 8 * g->at.stage, g->at.phase);
    te__wgmma_fence();
    TE_UNROLL for (int q = 0; q < TE_TILE_K / 16; q++) te__wgmma(d, a + 2 * q, b + q * (k.trans_b ? 2 : 128), step || q, k.dtype, !k.trans_b);
    te__wgmma_commit();
    te__wgmma_wait_1();
    if (step) te__hopper_free(g);
    te__hopper_advance(&g->at);
}
/* A warpgroup's tiles. */
TE_FN void te__hopper_multiply(const te_hopper *p, uint32_t ring, te_hopper_barriers *bars, int tiles, const te_hopper_kind k) {
    const int steps = (p->k + TE_TILE_K - 1) / TE_TILE_K, warp = (int)threadIdx.x / 32 - 4;
    const uint32_t boxes = ring + TE_STAGES * TE_HOPPER_STAGE + warp * 2 * TE_HOPPER_BOX;
    te_hopper_group g = {ring, te__shared_address(bars->full), te__shared_address(bars->empty), {0, 0}};
    uint32_t held[64]; /* of the tile before, if there is one */
    float d[128];
    int have = 0;
    for (int i = (int)blockIdx.x / TE_CLUSTER; i < tiles; i += (int)gridDim.x / TE_CLUSTER) {
        TE_UNROLL for (int quarter = 0; quarter < 4; quarter++) {
            const int first = steps * quarter / 4, last = steps * (quarter + 1) / 4;
            te__hopper_step(d, &g, quarter, k);
            if (have) te__hopper_leave(held, quarter, boxes, bars);
#pragma unroll 1
            for (int s = first + 1; s < last; s++) te__hopper_step(d, &g, s, k);
        }
        te__wgmma_wait_0();
        te__hopper_free(&g);
        te__hopper_pack(p, held, d, k.dtype);
        have = 1;
    }
    TE_UNROLL for (int quarter = 0; have && quarter < 4; quarter++) te__hopper_leave(held, quarter, boxes, bars);
}

/* Three warps: the end, eight elements a lane at a time. */
TE_FN void te__hopper_end(const te_hopper *p, uint32_t ring, te_hopper_barriers *bars, int tiles, int rank, te_gemm_end_fn end, const void *arg) {
    const int warp = (int)threadIdx.x / 32 - 1, lane = (int)threadIdx.x % 32;
    for (int i = (int)blockIdx.x / TE_CLUSTER; i < tiles; i += (int)gridDim.x / TE_CLUSTER) {
        int x, y;
        te__hopper_tile(&x, &y, p, i, rank);
#pragma unroll 1
        for (int quarter = 0; quarter < 4; quarter++) {
            const int box = quarter % 2, col = x + quarter * 64 + lane % 8 * 8;
            const uint32_t boxes = ring + TE_STAGES * TE_HOPPER_STAGE + box * TE_HOPPER_BOX;
            te__barrier_wait(te__shared_address(&bars->done[box]), quarter / 2);
            float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll 2
            for (int part = warp; part < 32; part += 3) { /* four rows */
                const int row = part % 4 * 4 + lane / 8;
                uint32_t w[4];
                te__load_piece(w, te__hopper_piece(boxes + part / 4 * 2 * TE_HOPPER_BOX, row, lane % 8));
                if (y + part / 4 * 16 + row < p->m && col < p->n) end(arg, w, y + part / 4 * 16 + row, col, sum);
            }
            __syncwarp();
            if (lane == 0) te__barrier_arrive(te__shared_address(&bars->taken[box]));
            if (!p->sums) continue;
            TE_UNROLL for (int e = 0; e < 8; e++) sum[e] += __shfl_xor_sync(~0u, sum[e], 8), sum[e] += __shfl_xor_sync(~0u, sum[e], 16);
            if (lane < 8 && y < p->m && col < p->n) te_store8(p->sums, ((int64_t)y / TE_TILE_M * 3 + warp) * p->n + col, sum, 8, 1, TE_f32);
        }
    }
}

TE_FN void te_hopper_body(const te_hopper *p, te_hopper_barriers *bars, te_gemm_end_fn end, const void *arg, const te_hopper_kind k) {
    extern __shared__ char te_dynamic[];
    const uint32_t ring = (te__shared_address(te_dynamic) + 1023) & ~1023u;
    const int rank = (int)blockIdx.x % TE_CLUSTER;
    const int tiles = ((p->m + TE_CLUSTER * TE_TILE_M - 1) / (TE_CLUSTER * TE_TILE_M)) * ((p->n + TE_TILE_N - 1) / TE_TILE_N);
    if (threadIdx.x == 0) {
        TE_UNROLL for (int s = 0; s < TE_STAGES; s++)
            te__barrier_init(te__shared_address(&bars->full[s]), 1), te__barrier_init(te__shared_address(&bars->empty[s]), 8 * TE_CLUSTER);
        TE_UNROLL for (int b = 0; b < 2; b++) te__barrier_init(te__shared_address(&bars->done[b]), 8), te__barrier_init(te__shared_address(&bars->taken[b]), 3);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    te__cluster_sync();
    te_kernel_begin();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
        if (threadIdx.x == 0) te__hopper_load(p, ring, te__shared_address(bars->full), te__shared_address(bars->empty), tiles, rank, k);
        else if (threadIdx.x >= 32) te__hopper_end(p, ring, bars, tiles, rank, end, arg);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 216;"); /* with 72 just what the block was launched with, 168 each */
        te__hopper_multiply(p, ring, bars, tiles, k);
    }
    __syncwarp();
    te__cluster_sync(); /* nobody leaves while the other may still write into this block's shared memory */
}
#else
TE_FN void te_hopper_body(const te_hopper *p, te_hopper_barriers *bars, te_gemm_end_fn end, const void *arg, const te_hopper_kind k) {
    (void)p, (void)bars, (void)end, (void)arg, (void)k;
}
#endif

/* `type` begins with a te_hopper; end: a te_gemm_end_fn that is called with the `type`. exists: 0 leaves the kernel empty. */
#define TE_HOPPER_KERNEL(name, type, dtype, trans_b, end, exists)                                                     \
    TE_UNUSED static __global__ void __launch_bounds__(TE_HOPPER_THREADS, 1) name(const __grid_constant__ type p) {    \
        __shared__ te_hopper_barriers bars;                                                                           \
        const te_hopper_kind kind = {dtype, trans_b};                                                                 \
        if (exists) te_hopper_body((const te_hopper *)&p, &bars, end, &p, kind);                                      \
    }

/* ---- the host's side ------------------------------------------------------------------------------------------------------ */

/* te__hopper_encode, asked once a context. */
TE_API te__encode_fn te__gemm_encode(te_context *ctx) {
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    if (!s->encode_known) s->encode = (void (*)(void))te__hopper_encode(ctx->device), s->encode_known = 1;
    return (te__encode_fn)s->encode;
}

/* Whether the kernel takes such a product: 16 bits, rows of A, B and D that are multiples of 16 bytes, k of more than three steps. */
TE_API int te__hopper_can(const te_gemm *g) {
    const int64_t most = 1 << 30;
    return g->dtype != TE_f32 && g->out == g->dtype && !g->trans_a && g->k > 3 * TE_TILE_K && g->k % 8 == 0 && g->n % 8 == 0 && g->m < most && g->n < most &&
           g->k < most && g->epilogue == TE_EPILOGUE_NONE;
}
/* Whether it should be the fastest: tiles for four rounds of all multiprocessors, and a k that is worth the start. */
TE_API int te__hopper_pays(const te_gemm *g, const te_context *ctx) {
    return g->k >= 1024 && te_ceil_div(g->m, TE_TILE_M) * te_ceil_div(g->n, TE_TILE_N) >= 4 * ctx->processors;
}

/* Fill in p for the product, and launch `kernel` on `args`, of which p is the first member. */
TE_API te_status te__hopper_run(const void *kernel, void *args, te_hopper *p, const te_gemm *g, te__encode_fn encode, te_context *ctx) {
    const int64_t tiles = te_ceil_div(g->m, TE_CLUSTER * TE_TILE_M) * te_ceil_div(g->n, TE_TILE_N);
    p->alpha = g->alpha, p->m = (int)g->m, p->n = (int)g->n, p->k = (int)g->k;
    TE_TRY(te__hopper_map(&p->a, encode, g->a, g->m, g->k, TE_TILE_M, g->dtype, ctx));
    TE_TRY(te__hopper_map(&p->b, encode, g->b, g->trans_b ? g->n : g->k, g->trans_b ? g->k : g->n, 64, g->dtype, ctx));
    const te_grid grid = te_grid_of(te_min(ctx->processors / TE_CLUSTER, tiles) * TE_CLUSTER, 1);
    return te__cuda_launch(ctx, kernel, grid, TE_HOPPER_THREADS, TE_HOPPER_SHARED, TE_CLUSTER, args, "matrix product");
}

#endif
