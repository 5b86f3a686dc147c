/* gemm_hopper_scaled.h -- an FP8 product of our own for compute capability 9.0 with scales of 1 x 128 for A and of
 * 128 x 128 for B: y = x w^T of fp8_block, and its data gradient. gemm_hopper_scaled_run.h says when it runs.
 *
 * The tile, the cluster and the ring are those of gemm_hopper.h: 128 x 256 of D a block, two blocks above each other
 * that share B, four stages of 128 of k, and with each the scales of 128 rows and of two blocks of B. A warpgroup has
 * 64 x 256 sums in 128 registers. For each 128 of k the tensor cores give it four pieces of 64 x 64, a chain of four
 * wgmma each, which it multiplies by their scales and adds to the sums.
 *
 * A chain ends some hundred cycles after its last wgmma began, and what is done with it takes as long again. So a
 * warpgroup has two pieces, 32 registers each: while it adds one the next chain is already under way, and the tensor
 * cores always have work of both warpgroups. ptxas takes that for safe only where no chain is open at the end of a
 * loop, so four steps of 128 are one piece of code, at whose end the other warpgroup alone keeps the tensor cores busy.
 * A tile leaves its registers while the first two chains of the next are under way.
 *
 * Reckoning, for 128 of k: tensor cores 1024 cycles. A warp multiplies and adds 128 times and has some 120 other
 * instructions; two warps share a scheduler: 500 of 1024 issue slots. Without loads, on an H200, such a step takes 1089
 * cycles; with them 1168 at k of 16384, 1246 at 4096. The L2 gives 32 KB in that time, 27 bytes a cycle for each
 * multiprocessor, about what gemm_hopper.h gets at most.
 *
 * What did not pay, in cycles for as much work as these 1246: a tile of 128 x 192 in halves of 64 x 96 (1220, but 1.00
 * to 1.08 of the time: more power); one accumulator of 64 x 192, 64 x 128 by two or three warpgroups that take turns
 * (1320, 1250, 1210); clusters of four that share A as well (1360: 30 of them fit, 120 of 132 multiprocessors). For a
 * weight's gradient, 1 x 128 by 1 x 128, each column has a scale for each 128 of k. Two operations an element instead
 * of one take 1290 cycles for 1024 of the tensor cores without any load; with scales from shared memory and loads 1750
 * and more, the time of cuBLASLt (0.99 to 1.1).
 */
/* target: cuda */
#ifndef TE_GEMM_HOPPER_SCALED_H
#define TE_GEMM_HOPPER_SCALED_H

#include "../core/wgmma_cuda.h" /* te__wgmma_columns */
#include "gemm_hopper_tiles.h"  /* te__hopper_tile */

enum {
    TE_FINE_PIECE = 64,                          /* columns of a chain */
    TE_FINE_PIECES = TE_TILE_N / TE_FINE_PIECE,  /* even: they alternate between two accumulators */
    TE_FINE_STEPS = 4,                           /* of 128 of k, from one end of all chains to the next */
    TE_FINE_ROWS = TE_HOPPER_STAGE,              /* in a stage: the scales of TE_TILE_M rows */
    TE_FINE_BLOCKS = TE_FINE_ROWS + TE_TILE_M * 4, /* of two blocks of B, four steps of k each */
    TE_FINE_BYTES = TE_FINE_BLOCKS + 2 * 16,
    TE_FINE_STAGE = TE_HOPPER_STAGE + 1024,
    TE_FINE_SHARED = TE_STAGES * TE_FINE_STAGE + 1024
};

typedef struct te_fine {
    te_hopper many; /* a, b: boxes of 128 rows; alpha, m, n, k, tiles */
    CUtensorMap rows, blocks; /* scales: [steps, m] in boxes of TE_TILE_M, [blocks of n, steps] in boxes of 2 x 4 */
    void *d;
    te_dtype dtype; /* of D */
} te_fine;

typedef struct te_fine_barriers { uint64_t full[TE_STAGES], empty[TE_STAGES]; } te_fine_barriers;

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- what is loaded ---------------------------------------------------------------------------------------------- */

/* One lane of a warp, by which the compiler sees that operands of the copy engine are the same in all of them. */
TE_FN int te__fine_elected(void) {
    int is;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(is));
    return is;
}
TE_FN void te__fine_load(const te_fine *p, uint32_t ring, uint32_t full) {
    const te_hopper *h = &p->many;
    const int rank = (int)blockIdx.x % TE_CLUSTER, steps = (h->k + TE_TILE_K - 1) / TE_TILE_K;
    te_hopper_ring r = {0, 0};
    te_hopper_work w;
    asm volatile("" : "+r"(ring), "+r"(full)); /* kept rather than found again: this warp has 24 registers */
#pragma unroll 1
    for (int tile = (int)blockIdx.x / TE_CLUSTER; tile < h->tiles; tile += (int)gridDim.x / TE_CLUSTER) {
        te__hopper_tile(&w, h, tile);
#pragma unroll 1
        for (int step = 0; step < steps; step++, te__hopper_advance(&r)) {
            const uint32_t bar = full + 8 * r.stage, a = ring + r.stage * TE_FINE_STAGE;
            const uint32_t share = rank * (TE_TILE_N / TE_CLUSTER);
            te__barrier_wait(bar + 8 * TE_STAGES, r.phase ^ 1);
            te__barrier_expect(bar, TE_FINE_BYTES);
            te__tma_load(a, &h->a, step * TE_TILE_K, w.y, bar, 0);
            te__tma_load(a + TE_HOPPER_A + share * 128, &h->b, step * TE_TILE_K, w.x + (int)share, bar,
                         (1 << TE_CLUSTER) - 1);
            te__tma_load(a + TE_FINE_ROWS, &p->rows, w.y, step, bar, 0);
            te__tma_load(a + TE_FINE_BLOCKS, &p->blocks, step & ~3, w.x / 128, bar, 0); /* starts at 16 bytes */
        }
    }
}

/* ---- what is multiplied ------------------------------------------------------------------------------------------ */

/* What a warpgroup works with. a, b: the low words of where its operands lie in the first stage. */
typedef struct te_fine_group {
    uint32_t ring, full, a, b;
    uint32_t empty; /* of block `lane` of the cluster */
    uint32_t rows;  /* in a stage: the scale of this lane's first row */
    te_hopper_ring at;
    int x, y, have; /* the tile whose sums there are, if there are */
} te_fine_group;
/* The sums of a lane, in pieces, two accumulators, and what these are multiplied by: of two blocks, of two rows. */
typedef struct te_fine_sums {
    float sum[TE_FINE_PIECES][TE_FINE_PIECE / 2], piece[2][TE_FINE_PIECE / 2], by[2][2];
} te_fine_sums;

TE_FN uint64_t te__fine_matrix(uint32_t low) { return te__matrix_at(0, 0) >> 32 << 32 | low; }
TE_FN float te__fine_scale(uint32_t at) {
    float f;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(f) : "r"(at) : "memory");
    return f;
}
/* The accumulator is not read before this, nor written after it. */
TE_FN void te__fine_keep(float d[TE_FINE_PIECE / 2]) {
    TE_UNROLL for (int i = 0; i < TE_FINE_PIECE / 2; i++) asm volatile("" : "+f"(d[i])::"memory");
}
/* The chain of a piece begins. */
TE_FN void te__fine_begin(float d[TE_FINE_PIECE / 2], const te_fine_group *g, const int piece) {
    const uint32_t stage = g->at.stage * (TE_FINE_STAGE >> 4);
    const uint32_t a = g->a + stage, b = g->b + stage + piece * (TE_FINE_PIECE * 128 >> 4);
    te__fine_keep(d);
    te__wgmma_fence();
    TE_UNROLL
    for (int q = 0; q < 4; q++)
        te__wgmma_columns(d, te__fine_matrix(a + 2 * q), te__fine_matrix(b + 2 * q), q, TE_e4m3, TE_FINE_PIECE);
    te__wgmma_commit();
}
TE_FN void te__fine_scales(te_fine_sums *s, const te_fine_group *g, int step) {
    const uint32_t at = g->ring + g->at.stage * TE_FINE_STAGE;
    float block[2], row[2];
    TE_UNROLL for (int i = 0; i < 2; i++) block[i] = te__fine_scale(at + TE_FINE_BLOCKS + 16 * i + 4 * (step % 4));
    TE_UNROLL for (int h = 0; h < 2; h++) row[h] = te__fine_scale(at + g->rows + 32 * h);
    TE_UNROLL for (int i = 0; i < 2; i++)
        TE_UNROLL for (int h = 0; h < 2; h++) s->by[i][h] = row[h] * block[i];
}
/* A lane's d[4 j + 2 h + e] is row lane / 4 + 8 h, column 8 j + 2 (lane % 4) + e, of its warp's 16 x 64. */
TE_FN void te__fine_add(te_fine_sums *s, const int piece) {
    float *d = s->piece[piece % 2];
    te__fine_keep(d);
    TE_UNROLL
    for (int i = 0; i < TE_FINE_PIECE / 2; i++)
        s->sum[piece][i] = fmaf(d[i], s->by[piece * TE_FINE_PIECE / 128][i / 2 % 2], s->sum[piece][i]);
}
/* A stage is no longer read. */
TE_FN void te__fine_free(const te_fine_group *g, int stage) {
    __syncwarp();
    if ((int)threadIdx.x % 32 < TE_CLUSTER)
        asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(g->empty + 8 * stage) : "memory");
}

/* ---- a tile leaves ----------------------------------------------------------------------------------------------- */

/* Lanes beside each other exchange pairs, so that each has four columns: 32 bytes of a row from four lanes. */
TE_FN void te__fine_store(const te_fine *p, const te_fine_sums *s, int x, int y) {
    const int lane = (int)threadIdx.x % 32, odd = lane % 2, warp = (int)threadIdx.x / 32 - 4;
    const float alpha = p->many.alpha;
    TE_UNROLL
    for (int i = 0; i < TE_TILE_N / 16; i++) {
        TE_UNROLL
        for (int h = 0; h < 2; h++) {
            const int row = y + warp * 16 + lane / 4 + 8 * h, col = x + 16 * i + 8 * odd + lane % 4 / 2 * 4;
            const float *v = &s->sum[i / 4][i % 4 * 8 + 2 * h];
            const uint32_t low = te_pair_of_floats(alpha * v[0], alpha * v[1], p->dtype);
            const uint32_t high = te_pair_of_floats(alpha * v[4], alpha * v[5], p->dtype);
            const uint32_t other = __shfl_xor_sync(~0u, odd ? low : high, 1);
            if (row < p->many.m && col < p->many.n)
                *(uint2 *)((uint16_t *)p->d + (int64_t)row * p->many.n + col) =
                    odd ? make_uint2(other, high) : make_uint2(low, other);
            if (i % 2) asm volatile("" ::: "memory"); /* or the compiler holds more of them than there are registers */
        }
    }
}
/* The sums of a tile begin; those of the one before leave. */
TE_FN void te__fine_next(const te_fine *p, te_fine_sums *s, te_fine_group *g, int tile) {
    te_hopper_work w;
    te__hopper_tile(&w, &p->many, tile);
    if (g->have) te__fine_store(p, s, g->x, g->y);
    g->x = w.x, g->y = w.y, g->have = 1;
    TE_UNROLL
    for (int i = 0; i < TE_FINE_PIECES; i++)
        TE_UNROLL for (int e = 0; e < TE_FINE_PIECE / 2; e++) s->sum[i][e] = 0;
}

/* ---- the tiles --------------------------------------------------------------------------------------------------- */

/* `count` steps from `step` on. first: of a tile. */
TE_FN void te__fine_steps(const te_fine *p, te_fine_sums *s, te_fine_group *g, int tile, int step, const int count,
                          const int first) {
    TE_UNROLL
    for (int i = 0; i <= count * TE_FINE_PIECES; i++) { /* piece i begins, the one before it is added */
        const int piece = i % TE_FINE_PIECES, stage = g->at.stage, more = i < count * TE_FINE_PIECES;
        if (piece == 0 && i) te__hopper_advance(&g->at);
        if (piece == 0 && more) te__barrier_wait(g->full + 8 * g->at.stage, g->at.phase);
        if (more) te__fine_begin(s->piece[i % 2], g, piece);
        if (i == 1 && first) te__fine_next(p, s, g, tile);
        if (i == 1) te__fine_scales(s, g, step);
        if (i && more) te__wgmma_wait_1();
        if (!more) te__wgmma_wait_0();
        if (piece == 0 && i) te__fine_free(g, stage);
        if (i) te__fine_add(s, (piece + TE_FINE_PIECES - 1) % TE_FINE_PIECES);
        if (piece == 0 && i && more) te__fine_scales(s, g, step + i / TE_FINE_PIECES);
    }
}
/* A warpgroup's tiles. */
TE_FN void te__fine_multiply(const te_fine *p, uint32_t ring, uint32_t full) {
    const int steps = (p->many.k + TE_TILE_K - 1) / TE_TILE_K, lane = (int)threadIdx.x % 32;
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128 - 1, 0), warp = (int)threadIdx.x / 32 - 4;
    te_fine_group g;
    te_fine_sums s;
    g.ring = __shfl_sync(~0u, ring, 0), g.full = __shfl_sync(~0u, full, 0);
    g.a = (uint32_t)te__matrix_at(g.ring + warpgroup * 8192, 0), g.b = (uint32_t)te__matrix_at(g.ring + TE_HOPPER_A, 0);
    g.rows = TE_FINE_ROWS + 4 * (warp * 16 + lane / 4);
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(g.empty) : "r"(full + 8 * TE_STAGES), "r"(lane % TE_CLUSTER));
    asm volatile("" : "+r"(g.empty), "+r"(g.rows)); /* kept rather than found again */
    g.at.stage = g.at.phase = g.have = g.x = g.y = 0;
#pragma unroll 1
    for (int tile = (int)blockIdx.x / TE_CLUSTER; tile < p->many.tiles; tile += (int)gridDim.x / TE_CLUSTER) {
        int step = TE_FINE_STEPS;
        te__fine_steps(p, &s, &g, tile, 0, TE_FINE_STEPS, 1);
#pragma unroll 1
        for (; step + TE_FINE_STEPS <= steps; step += TE_FINE_STEPS)
            te__fine_steps(p, &s, &g, tile, step, TE_FINE_STEPS, 0);
#pragma unroll 1
        for (; step < steps; step++) te__fine_steps(p, &s, &g, tile, step, 1, 0);
    }
    if (g.have) te__fine_store(p, &s, g.x, g.y);
}
TE_FN void te__fine_body(const te_fine *p, te_fine_barriers *bars) {
    extern __shared__ char te_dynamic[];
    const uint32_t ring = (te__shared_address(te_dynamic) + 1023) & ~1023u, full = te__shared_address(bars->full);
    if (threadIdx.x == 0) {
        TE_UNROLL for (int i = 0; i < TE_STAGES; i++)
            te__barrier_init(full + 8 * i, 1), te__barrier_init(full + 8 * (TE_STAGES + i), 8 * TE_CLUSTER);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    te__cluster_sync();
    te_kernel_begin();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x < 32 && te__fine_elected()) te__fine_load(p, ring, full);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        te__fine_multiply(p, ring, full);
    }
    __syncwarp();
    te__cluster_sync(); /* nobody leaves while the other may still write into this block's shared memory */
}
#else
TE_FN void te__fine_body(const te_fine *p, te_fine_barriers *bars) { (void)p, (void)bars; }
#endif

/* A template, so that who does not call for it has none. */
TE_IF_USED __global__ void __launch_bounds__(TE_HOPPER_THREADS, 1) te_fine_many(const __grid_constant__ te_fine p) {
    __shared__ te_fine_barriers bars;
    te__fine_body(&p, &bars);
}

#endif
