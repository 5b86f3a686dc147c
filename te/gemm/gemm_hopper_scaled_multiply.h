/* gemm_hopper_scaled_multiply.h -- the two warpgroups of gemm_hopper_scaled.h that multiply, scale and add: what they
 * work with, how a tile's sums come about and leave.
 */
/* target: cuda */
#ifndef TE_GEMM_HOPPER_SCALED_MULTIPLY_H
#define TE_GEMM_HOPPER_SCALED_MULTIPLY_H

#include "../core/wgmma_cuda.h" /* te__wgmma_columns */
#include "gemm_hopper_tiles.h"  /* te__hopper_tile */

/* The operand that a block has 128 rows of is called narrow, the one of 256 rows, which the cluster shares, wide: A and
 * B, of a weight's gradient B and A. */
enum {
    TE_FINE_PIECE = 64,                            /* rows of the wide operand that a chain multiplies */
    TE_FINE_PIECES = TE_TILE_N / TE_FINE_PIECE,    /* even: they alternate between two accumulators */
    TE_FINE_STEPS = 4,                             /* of 128 of k, from one end of all chains to the next */
    TE_FINE_NARROW = TE_HOPPER_STAGE,              /* in a stage: the scales of the narrow operand's rows */
    TE_FINE_WIDE = TE_FINE_NARROW + TE_TILE_M * 4, /* of the wide one's rows, or of two blocks, four steps of k each */
    TE_FINE_STAGE = TE_HOPPER_STAGE + 2048,
    TE_FINE_SHARED = TE_STAGES * TE_FINE_STAGE + 1024
};

typedef struct te_fine {
    te_hopper many; /* a, b: narrow and wide, boxes of 128 rows; m, n: their rows; alpha, k, tiles */
    CUtensorMap narrow, wide; /* scales: [steps, rows], of blocks [blocks of rows, steps] in boxes of 2 x 4 */
    void *d;        /* [m, n], of a weight's gradient [n, m] */
    te_dtype dtype; /* of D; of a weight's gradient that is f32 */
    const void *bias; /* [n] of dtype; null: none. A weight's gradient has none */
} te_fine;

typedef struct te_fine_barriers { uint64_t full[TE_STAGES], empty[TE_STAGES]; } te_fine_barriers;

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* What a warpgroup works with. narrow, wide: the low words of where its operands lie in the first stage. */
typedef struct te_fine_group {
    uint32_t ring, full, narrow, wide;
    uint32_t empty; /* of block `lane` of the cluster */
    uint32_t scale; /* in a stage: the first scale of the narrow operand that this lane needs */
    uint32_t row;   /* of a weight's gradient: the scale of this lane's first row of D */
    te_hopper_ring at;
    int x, y, have; /* the tile whose sums there are, if there are */
    uint32_t bias[4]; /* of its columns, two a word: words 4 t + lane % 4 of t = lane / 4, 8 more, 16 and 24 more */
} te_fine_group;
/* The sums of a lane, in pieces; two accumulators. by: what these are multiplied by, of two blocks, of two rows; of a
 * weight's gradient `column` and `row` instead. */
typedef struct te_fine_sums {
    float sum[TE_FINE_PIECES][TE_FINE_PIECE / 2], piece[2][TE_FINE_PIECE / 2];
    float by[2][2], column[TE_FINE_PIECE / 4], row[2];
} te_fine_sums;

/* The accumulator is not read before this, nor written after it. */
TE_FN void te__fine_keep(float d[TE_FINE_PIECE / 2]) {
    TE_UNROLL for (int i = 0; i < TE_FINE_PIECE / 2; i++) asm volatile("" : "+f"(d[i])::"memory");
}
/* The chain of a piece begins. */
TE_FN void te__fine_begin(float d[TE_FINE_PIECE / 2], const te_fine_group *g, const int piece, const int columns) {
    const uint32_t stage = g->at.stage * (TE_FINE_STAGE >> 4);
    const uint32_t narrow = g->narrow + stage, wide = g->wide + stage + piece * (TE_FINE_PIECE * 128 >> 4);
    const uint32_t a = columns ? wide : narrow, b = columns ? narrow : wide;
    te__fine_keep(d);
    te__wgmma_fence();
    TE_UNROLL
    for (int q = 0; q < 4; q++)
        te__wgmma_columns(d, te__matrix_low(a + 2 * q), te__matrix_low(b + 2 * q), q, TE_e4m3, TE_FINE_PIECE);
    te__wgmma_commit();
}
TE_FN void te__fine_scales(te_fine_sums *s, const te_fine_group *g, int step) {
    const uint32_t at = g->ring + g->at.stage * TE_FINE_STAGE;
    float block[2], row[2];
    TE_UNROLL for (int i = 0; i < 2; i++) block[i] = te__load_float(at + TE_FINE_WIDE + 16 * i + 4 * (step % 4));
    TE_UNROLL for (int h = 0; h < 2; h++) row[h] = te__load_float(at + g->scale + 32 * h);
    TE_UNROLL for (int i = 0; i < 2; i++)
        TE_UNROLL for (int h = 0; h < 2; h++) s->by[i][h] = row[h] * block[i];
}
TE_FN void te__fine_columns(te_fine_sums *s, const te_fine_group *g) {
    const uint32_t at = g->ring + g->at.stage * TE_FINE_STAGE + g->scale;
    TE_UNROLL for (int j = 0; j < TE_FINE_PIECE / 8; j++)
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(s->column[2 * j]), "=f"(s->column[2 * j + 1]) : "r"(at + 32 * j) : "memory");
}
TE_FN void te__fine_rows(te_fine_sums *s, const te_fine_group *g, int stage, const int piece) {
    const uint32_t at = g->ring + stage * TE_FINE_STAGE + g->row + piece * TE_FINE_PIECE * 4;
    TE_UNROLL for (int h = 0; h < 2; h++) s->row[h] = te__load_float(at + 32 * h);
}
/* A lane's d[4 j + 2 h + e] is row lane / 4 + 8 h, column 8 j + 2 (lane % 4) + e, of its warp's 16 x 64. */
TE_FN void te__fine_add(te_fine_sums *s, const int piece, const int columns) {
    float *d = s->piece[piece % 2];
    te__fine_keep(d);
    TE_UNROLL
    for (int i = 0; i < TE_FINE_PIECE / 2; i++) {
        const int h = i / 2 % 2;
        if (columns) s->sum[piece][i] = fmaf(d[i] * s->column[i / 4 * 2 + i % 2], s->row[h], s->sum[piece][i]);
        else s->sum[piece][i] = fmaf(d[i], s->by[piece * TE_FINE_PIECE / 128][h], s->sum[piece][i]);
    }
}
/* A stage is no longer read. */
TE_FN void te__fine_free(const te_fine_group *g, int stage) {
    __syncwarp();
    if ((int)threadIdx.x % 32 < TE_CLUSTER)
        asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(g->empty + 8 * stage) : "memory");
}

/* ---- a tile leaves ----------------------------------------------------------------------------------------------- */

/* The tile's bias, which is on its way while the tile comes about. */
TE_FN void te__fine_load_bias(te_fine_group *g, const te_fine *p) {
    const int lane = (int)threadIdx.x % 32;
    TE_UNROLL for (int j = 0; j < 4; j++) {
        const int col = g->x + 2 * (32 * j + lane);
        g->bias[j] = p->bias && col < p->many.n ? __ldg((const uint32_t *)p->bias + col / 2) : 0;
    }
}
/* Two columns of it: those that this lane has of the eight from 8 t on. */
TE_FN float2 te__fine_bias(const te_fine_group *g, const int t, te_dtype dtype) {
    const uint32_t w = __shfl_sync(~0u, g->bias[t / 8], t % 8 * 4 + (int)threadIdx.x % 4);
    return te_floats_of_pair(w, dtype);
}

/* Lanes beside each other exchange pairs, so that each has four columns: 32 bytes of a row from four lanes. */
TE_FN void te__fine_store(const te_fine *p, const te_fine_sums *s, const te_fine_group *g) {
    const int lane = (int)threadIdx.x % 32, odd = lane % 2, warp = (int)threadIdx.x / 32 - 4;
    const float alpha = p->many.alpha;
    TE_UNROLL
    for (int i = 0; i < TE_TILE_N / 16; i++) {
        const float2 a = te__fine_bias(g, 2 * i, p->dtype), b = te__fine_bias(g, 2 * i + 1, p->dtype);
        TE_UNROLL
        for (int h = 0; h < 2; h++) {
            const int row = g->y + warp * 16 + lane / 4 + 8 * h, col = g->x + 16 * i + 8 * odd + lane % 4 / 2 * 4;
            const float *v = &s->sum[i / 4][i % 4 * 8 + 2 * h];
            const uint32_t low = te_pair_of_floats(fmaf(alpha, v[0], a.x), fmaf(alpha, v[1], a.y), p->dtype);
            const uint32_t high = te_pair_of_floats(fmaf(alpha, v[4], b.x), fmaf(alpha, v[5], b.y), p->dtype);
            const uint32_t other = __shfl_xor_sync(~0u, odd ? low : high, 1);
            if (row < p->many.m && col < p->many.n)
                *(uint2 *)((uint16_t *)p->d + (int64_t)row * p->many.n + col) =
                    odd ? make_uint2(other, high) : make_uint2(low, other);
            if (i % 2) asm volatile("" ::: "memory"); /* or the compiler holds more of them than there are registers */
        }
    }
}
/* A weight's gradient, in f32: four lanes have 32 bytes of a row. */
TE_FN void te__fine_store_floats(const te_fine *p, const te_fine_sums *s, int x, int y) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4, warpgroup = (int)threadIdx.x / 128 - 1;
    const float alpha = p->many.alpha;
    TE_UNROLL
    for (int i = 0; i < TE_FINE_PIECES * TE_FINE_PIECE / 4; i++) {
        const int piece = i / 16, h = i / 8 % 2, j = i % 8;
        const int row = x + piece * TE_FINE_PIECE + warp * 16 + lane / 4 + 8 * h;
        const int col = y + warpgroup * 64 + 8 * j + lane % 4 * 2;
        const float *v = &s->sum[piece][4 * j + 2 * h];
        if (row < p->many.n && col < p->many.m)
            *(float2 *)((float *)p->d + (int64_t)row * p->many.m + col) = make_float2(alpha * v[0], alpha * v[1]);
        if (j % 2) asm volatile("" ::: "memory"); /* as above */
    }
}
TE_FN void te__fine_leave(const te_fine *p, const te_fine_sums *s, const te_fine_group *g, const int columns) {
    if (columns) te__fine_store_floats(p, s, g->x, g->y);
    else te__fine_store(p, s, g);
}
/* The sums of a tile begin; those of the one before leave. */
TE_FN void te__fine_next(const te_fine *p, te_fine_sums *s, te_fine_group *g, int tile, const int columns) {
    te_hopper_work w;
    te__hopper_tile(&w, &p->many, tile);
    if (g->have) te__fine_leave(p, s, g, columns);
    g->x = w.x, g->y = w.y, g->have = 1;
    if (!columns) te__fine_load_bias(g, p);
    TE_UNROLL
    for (int i = 0; i < TE_FINE_PIECES; i++)
        TE_UNROLL for (int e = 0; e < TE_FINE_PIECE / 2; e++) s->sum[i][e] = 0;
}

/* ---- the tiles --------------------------------------------------------------------------------------------------- */

/* `count` steps from `step` on. first: of a tile. */
TE_FN void te__fine_steps(const te_fine *p, te_fine_sums *s, te_fine_group *g, int tile, int step, const int count,
                          const int first, const int columns) {
    TE_UNROLL
    for (int i = 0; i <= count * TE_FINE_PIECES; i++) { /* piece i begins, the one before it is added */
        const int piece = i % TE_FINE_PIECES, stage = g->at.stage, more = i < count * TE_FINE_PIECES;
        const int before = (piece + TE_FINE_PIECES - 1) % TE_FINE_PIECES;
        if (piece == 0 && i) te__hopper_advance(&g->at);
        if (piece == 0 && more) te__barrier_wait(g->full + 8 * g->at.stage, g->at.phase);
        if (more) te__fine_begin(s->piece[i % 2], g, piece, columns);
        if (i == 1 && first) te__fine_next(p, s, g, tile, columns);
        if (i == 1 && columns) te__fine_columns(s, g);
        if (i == 1 && !columns) te__fine_scales(s, g, step);
        if (i && columns) te__fine_rows(s, g, stage, before);
        if (i && more) te__wgmma_wait_1();
        if (!more) te__wgmma_wait_0();
        if (piece == 0 && i) te__fine_free(g, stage);
        if (i) te__fine_add(s, before, columns);
        if (piece == 0 && i && more && columns) te__fine_columns(s, g);
        if (piece == 0 && i && more && !columns) te__fine_scales(s, g, step + i / TE_FINE_PIECES);
    }
}
/* A warpgroup's tiles. */
TE_FN void te__fine_multiply(const te_fine *p, uint32_t ring, uint32_t full, const int columns) {
    const int steps = (p->many.k + TE_TILE_K - 1) / TE_TILE_K, lane = (int)threadIdx.x % 32;
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128 - 1, 0), warp = (int)threadIdx.x / 32 - 4;
    te_fine_group g;
    te_fine_sums s;
    g.ring = __shfl_sync(~0u, ring, 0), g.full = __shfl_sync(~0u, full, 0);
    g.narrow = (uint32_t)te__matrix_at(g.ring + warpgroup * 8192, 0);
    g.wide = (uint32_t)te__matrix_at(g.ring + TE_HOPPER_A, 0);
    g.scale = TE_FINE_NARROW + 4 * (columns ? warpgroup * 64 + lane % 4 * 2 : warp * 16 + lane / 4);
    g.row = TE_FINE_WIDE + 4 * (warp % 4 * 16 + lane / 4);
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(g.empty) : "r"(full + 8 * TE_STAGES), "r"(lane % TE_CLUSTER));
    asm volatile("" : "+r"(g.empty), "+r"(g.scale), "+r"(g.row)); /* kept rather than found again */
    g.at.stage = g.at.phase = g.have = g.x = g.y = 0;
#pragma unroll 1
    for (int tile = (int)blockIdx.x / TE_CLUSTER; tile < p->many.tiles; tile += (int)gridDim.x / TE_CLUSTER) {
        int step = columns ? 0 : TE_FINE_STEPS;
        if (columns) te__fine_next(p, &s, &g, tile, columns);
        else te__fine_steps(p, &s, &g, tile, 0, TE_FINE_STEPS, 1, columns);
#pragma unroll 1
        for (; step + TE_FINE_STEPS <= steps; step += TE_FINE_STEPS)
            te__fine_steps(p, &s, &g, tile, step, TE_FINE_STEPS, 0, columns);
#pragma unroll 1
        for (; step < steps; step++) te__fine_steps(p, &s, &g, tile, step, 1, 0, columns);
    }
    if (g.have) te__fine_leave(p, &s, &g, columns);
}
#endif

#endif
