/* gemm_sm90_blockwise.h -- FP8 GEMMs with blockwise scaling for Hopper (compute capability 9.0), with scales of 1 x 128
 * and 128 x 128 elements, as in the recipe fp8_block. A launch computes one GEMM, or the grouped GEMMs of experts
 * (gemm_grouped.h). The tensor cores add in less than f32's precision. So after every step, which is 128 elements of k,
 * the tensor cores' sums are scaled and added to sums in f32, as in DeepGEMM's kernels.
 *
 *   forward, data gradient   A has a scale for each row and each 128 elements of k, B one for each block of 128 x 128
 *   weight gradient (wgrad)  A and B both have a scale for each row and each 128 elements of k; D is f32
 *
 * Tile, cluster and pipeline are those of gemm_sm90.h; each stage also holds the scales for its 128 elements of k. Each
 * of two warpgroups accumulates the sums of 64 rows and 256 columns of D, in 128 registers per thread. For a wgrad each
 * warpgroup accumulates the sums of 256 rows and 64 columns, so that a thread needs the scales of only 16 columns, not
 * 64. In each step the tensor cores compute a warpgroup's sums over the 128 elements of k as four subtiles of 64 x 64,
 * each by a batch of four wgmma. The warpgroup multiplies the sums of each subtile by the scales of their rows and
 * columns, and adds the results to its sums in f32 (te__sm90_blockwise_steps).
 *
 * Flops: 2 * m * n * k. Lower bound for a step of a tile: 1024 cycles of the tensor cores. In a step a warp issues 128
 * fused multiply-adds and some 120 other instructions. Two warps share a scheduler, so their instructions fill 500 of
 * its 1024 issue slots. A step takes 1168 cycles at k of 16384 on an H200. Measurements: docs/notes/gemm_sm90.md.
 *
 * Do this:
 *     TE_TRY(te__gemm_blockwise_run(&g, ctx));         // as te_gemm_run, for operands with blockwise scales
 *
 * With ctx->gemm_tune on, the first run of a single GEMM times this kernel and cuBLASLt, and the faster one is chosen;
 * te_gemm_save saves this choice. Without a timing, a built-in rule (te__persistent_pays) decides.
 */
/* target: cuda */
#ifndef TE_GEMM_SM90_BLOCKWISE_H
#define TE_GEMM_SM90_BLOCKWISE_H

#include "../../core/impl/ptx_cuda.h" /* te__wgmma_n */
#include "../gemm.h"           /* te__fp8_tune */
#include "gemm_sm90_scheduler.h"   /* te__sm90_gemm_locate_tile */

/* A block multiplies 128 rows of the "M operand" by 256 rows of the "N operand"; both blocks of a cluster need the same
 * rows of the N operand. Normally the M operand is A and the N operand is B, and a tile has 128 rows and 256 columns of
 * D. For a wgrad the M operand is B and the N operand is A, and a tile has 256 rows and 128 columns of D, so that a
 * thread needs the scales of fewer columns (see the head of this file). */
enum {
    /* number of rows of the N operand (of which a tile has 256) in a subtile; one batch of wgmma multiplies a
     * subtile */
    TE_SM90_BLOCKWISE_SUBTILE = 64,
    /* number of subtiles of a tile; it must be even, because successive subtiles use the two accumulators in turn */
    TE_SM90_BLOCKWISE_SUBTILES = TE_TILE_N / TE_SM90_BLOCKWISE_SUBTILE,
    /* number of steps in an iteration of the mainloop; no wgmma is in flight at the end of an iteration
     * (te__sm90_blockwise_steps) */
    TE_SM90_BLOCKWISE_UNROLL = 4,
    /* The offset in bytes, within a stage, of the M operand's scales: 128 scales, one for each row of the M operand in
     * the tile. */
    TE_SM90_BLOCKWISE_M_SCALES = TE_SM90_GEMM_STAGE_BYTES,
    /* The offset in bytes, within a stage, of the N operand's scales: for a wgrad 256 scales, one for each row of the N
     * operand in the tile; otherwise two scales, one for each 128 of these rows. */
    TE_SM90_BLOCKWISE_N_SCALES = TE_SM90_BLOCKWISE_M_SCALES + TE_TILE_M * 4,
    TE_SM90_BLOCKWISE_STAGE_BYTES = TE_SM90_GEMM_STAGE_BYTES + 2048,
    TE_SM90_BLOCKWISE_SMEM_BYTES = TE_STAGES * TE_SM90_BLOCKWISE_STAGE_BYTES + 1024,
    /* Registers per thread of the producer's warpgroup and of the two consumer warpgroups (CONSUMER). */
    TE_SM90_BLOCKWISE_REGISTERS = 24, TE_SM90_BLOCKWISE_CONSUMER_REGISTERS = 240
};

typedef struct te__sm90_blockwise_params {
    /* Parameters of the GEMM, of which the kernel reads only these: a_map, the tensor map of the M operand (of which a
     * tile has 128 rows); b_map, the tensor map of the N operand (of which a tile has 256 rows); m and n, the numbers
     * of rows of the M and of the N operand; k, alpha and tiles. */
    te__sm90_gemm_params gemm;
    /* tensor maps of the scales of the M and of the N operand. A step is 128 elements of k. Scales of 1 x 128 elements
     * are stored as [steps, rows]. Scales of 128 x 128 elements are stored as [rows / 128, steps], and copied by TMA in
     * boxes of [2, 4] */
    CUtensorMap m_scales_map, n_scales_map;
    void *d;          /* the output D: [m, n]; for a wgrad [n, m], because gemm.m and gemm.n are swapped for a wgrad */
    te_dtype dtype;   /* the number format of D and of the bias; f32 for a wgrad (weight gradient) */
    const void *bias; /* [n], the bias; null if there is none, and always null for a wgrad (weight gradient) */
    te_grouped groups; /* only for grouped GEMMs, which it describes; gemm.n and gemm.k are then the sizes of the GEMM
                        * of one group */
} te__sm90_blockwise_params;

/* What a launch computes. The kinds differ in the scales of B, in the output, or in how a block finds its tiles. */
typedef enum te__sm90_blockwise_kind {
    TE_BLOCKWISE_ONE,    /* one GEMM that is not a wgrad */
    TE_BLOCKWISE_WGRAD,  /* one GEMM that is a wgrad */
    TE_BLOCKWISE_GROUPED /* the grouped GEMMs of forward or of dgrad */
} te__sm90_blockwise_kind;

typedef struct te__sm90_blockwise_barriers {
    uint64_t full[TE_STAGES], empty[TE_STAGES];
} te__sm90_blockwise_barriers;

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- the tiles --------------------------------------------------------------------------------------------------- */

/* A tile of D that a block computes. number: the index of the cluster tile, which both blocks of a cluster share; x, y:
 * the first column and the first row of the block's tile. The other members are only for grouped GEMMs. end: one past
 * the last row of the tile's group or of the cluster tile, whichever is less. scale_row: the index of the scale of row
 * y (te__grouped_scale_at). b_row, b_step: the first row and the first step (128 elements of k) of the weight of the
 * tile's group within B. In forward the weights of the groups lie one below the other in B. In dgrad the transposed
 * weights lie side by side. */
typedef struct te__sm90_blockwise_tile { int number, x, y, end, scale_row, b_row, b_step; } te__sm90_blockwise_tile;

/* Sets the members of *t to the tile with the index t->number. Returns 0 if no group has such a tile
 * (te__grouped_find). */
TE_FN int te__sm90_blockwise_locate(te__sm90_blockwise_tile *t, const te__sm90_blockwise_params *p, const int kind) {
    if (kind != TE_BLOCKWISE_GROUPED) {
        te__sm90_gemm_work w;
        te__sm90_gemm_locate_tile(&w, &p->gemm, t->number);
        t->x = w.x, t->y = w.y, t->end = t->scale_row = t->b_row = t->b_step = 0;
        return 1;
    }
    const te_grouped *g = &p->groups;
    const int columns = (p->gemm.n + TE_TILE_N - 1) / TE_TILE_N, is_forward = g->kind == TE_GROUPED_FORWARD;
    const te_grouped_tile at = te__grouped_find(g, t->number / columns, TE_CLUSTER * TE_TILE_M);
    t->x = t->number % columns * TE_TILE_N, t->y = at.first + (int)blockIdx.x % TE_CLUSTER * TE_TILE_M;
    t->end = at.end, t->scale_row = (int)te__grouped_scale_at(g->offset, at.e, t->y);
    t->b_row = is_forward ? at.e * g->out : 0, t->b_step = is_forward ? 0 : at.e * (g->out / TE_FP8_BLOCK);
    return at.first < at.end;
}
/* Returns the number of steps of a tile. A tile of grouped GEMMs has at least TE_SM90_BLOCKWISE_UNROLL steps, as many
 * as an iteration of the mainloop; in steps past the end of k the operands are zeros. */
TE_FN int te__sm90_blockwise_step_count(const te__sm90_blockwise_params *p, const int kind) {
    const int steps = (p->gemm.k + TE_TILE_K - 1) / TE_TILE_K;
    return kind == TE_BLOCKWISE_GROUPED && steps < TE_SM90_BLOCKWISE_UNROLL ? (int)TE_SM90_BLOCKWISE_UNROLL : steps;
}
/* Sets *t to the next tile of this cluster that exists (te__sm90_blockwise_locate), beginning with the index t->number.
 * Returns 0 if there is none. */
TE_FN int te__sm90_blockwise_seek(te__sm90_blockwise_tile *t, const te__sm90_blockwise_params *p, const int kind) {
    while (t->number < p->gemm.tiles && !te__sm90_blockwise_locate(t, p, kind))
        t->number += (int)gridDim.x / TE_CLUSTER;
    return t->number < p->gemm.tiles;
}

/* ---- a subtile: wgmma, scales, promotion ------------------------------------------------------------------------- */

/* The state of a consumer warpgroup: the values that it computes once, and the tile that it works on. */
typedef struct te__sm90_blockwise_consumer {
    uint32_t ring, full;
    uint32_t m_operand, n_operand; /* the low words of the wgmma descriptors of both operands in the first stage of the
                                    * pipeline */
    uint32_t empty;                /* shared memory address of the barriers `empty` in that block of the cluster whose
                                    * number is lane % 2 */
    uint32_t m_scale;              /* offset in bytes, within a stage, of the first scale of the M operand that this
                                    * lane needs */
    uint32_t n_scale;              /* for a wgrad (weight gradient): offset in bytes, within a stage, of the scale of
                                    * this lane's first row of D */
    te__sm90_pipeline_state at;
    /* has_tile: 1 if the lane's sums belong to the tile of D whose first element is at (x, y), 0 if no tile was begun
     * yet. end: used for grouped GEMMs only; the index of the last row of D that is stored, plus 1 */
    int x, y, end, has_tile;
    /* the bias of the tile's 256 columns, spread over the warp's lanes: each lane holds four words of two columns, and
     * bias[j] has column 2 * (32 * j + lane) and the next column */
    uint32_t bias[4];
} te__sm90_blockwise_consumer;

/* A lane's sums in f32 for each subtile, the two accumulators of wgmma, and the scales of the current step. */
typedef struct te__sm90_blockwise_accumulator {
    float sum[TE_SM90_BLOCKWISE_SUBTILES][TE_SM90_BLOCKWISE_SUBTILE / 2];
    float partial[2][TE_SM90_BLOCKWISE_SUBTILE / 2];
    /* scale[i][h] is B's scale for the i-th 128 columns of the tile (i is 0 or 1), times A's scale for the h-th of this
     * lane's two rows */
    float scale[2][2];
    /* used instead of `scale` for a wgrad (weight gradient): the scales of this lane's 16 columns, and of its two rows
     * in the current subtile */
    float column_scale[TE_SM90_BLOCKWISE_SUBTILE / 4], row_scale[2];
} te__sm90_blockwise_accumulator;

/* An optimization barrier: the compiler moves no read of the accumulator before this point, and no write to it behind
 * this point. So compiled code does not access the accumulator while wgmma writes it. */
TE_FN void te__sm90_blockwise_pin(float d[TE_SM90_BLOCKWISE_SUBTILE / 2]) {
    TE_UNROLL for (int i = 0; i < TE_SM90_BLOCKWISE_SUBTILE / 2; i++) asm volatile("" : "+f"(d[i])::"memory");
}
/* Starts the batch of wgmma that multiplies a subtile: 64 x 64 elements of D, over 128 elements of k. */
TE_FN void te__sm90_blockwise_start_wgmma(float d[TE_SM90_BLOCKWISE_SUBTILE / 2], const te__sm90_blockwise_consumer *g,
                                          const int subtile, const int wgrad) {
    const uint32_t stage = g->at.stage * (TE_SM90_BLOCKWISE_STAGE_BYTES >> 4);
    const uint32_t m_operand = g->m_operand + stage,
                   n_operand = g->n_operand + stage + subtile * (TE_SM90_BLOCKWISE_SUBTILE * 128 >> 4);
    const uint32_t a = wgrad ? n_operand : m_operand, b = wgrad ? m_operand : n_operand;
    te__sm90_blockwise_pin(d);
    te__wgmma_fence();
    TE_UNROLL
    for (int q = 0; q < 4; q++)
        te__wgmma_n(d, te__wgmma_descriptor_of_low(a + 2 * q), te__wgmma_descriptor_of_low(b + 2 * q), q, TE_e4m3,
                          TE_SM90_BLOCKWISE_SUBTILE);
    te__wgmma_commit();
}
/* For a GEMM that is not a wgrad (weight gradient): loads the scales of a step, and multiplies each scale of this
 * lane's two rows by each scale of the tile's two blocks of 128 columns. */
TE_FN void te__sm90_blockwise_load_block_scales(te__sm90_blockwise_accumulator *s,
                                                const te__sm90_blockwise_consumer *g, int step) {
    const uint32_t stage = g->ring + g->at.stage * TE_SM90_BLOCKWISE_STAGE_BYTES;
    float block[2], row[2];
    TE_UNROLL for (int i = 0; i < 2; i++)
        block[i] = te__lds_float(stage + TE_SM90_BLOCKWISE_N_SCALES + 16 * i + 4 * (step % 4));
    TE_UNROLL for (int h = 0; h < 2; h++) row[h] = te__lds_float(stage + g->m_scale + 32 * h);
    TE_UNROLL for (int i = 0; i < 2; i++)
        TE_UNROLL for (int h = 0; h < 2; h++) s->scale[i][h] = row[h] * block[i];
}
/* For a wgrad (weight gradient): loads the scales of this lane's 16 columns for a step. */
TE_FN void te__sm90_blockwise_load_column_scales(te__sm90_blockwise_accumulator *s,
                                                 const te__sm90_blockwise_consumer *g) {
    const uint32_t at = g->ring + g->at.stage * TE_SM90_BLOCKWISE_STAGE_BYTES + g->m_scale;
    TE_UNROLL for (int j = 0; j < TE_SM90_BLOCKWISE_SUBTILE / 8; j++)
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(s->column_scale[2 * j]), "=f"(s->column_scale[2 * j + 1]) : "r"(at + 32 * j) : "memory");
}
TE_FN void te__sm90_blockwise_load_scales(te__sm90_blockwise_accumulator *s, const te__sm90_blockwise_consumer *g,
                                          int step, const int wgrad) {
    if (wgrad) te__sm90_blockwise_load_column_scales(s, g);
    else te__sm90_blockwise_load_block_scales(s, g, step);
}
/* For a wgrad (weight gradient): loads the scales of this lane's two rows of a subtile. */
TE_FN void te__sm90_blockwise_load_row_scales(te__sm90_blockwise_accumulator *s, const te__sm90_blockwise_consumer *g,
                                              int stage, const int subtile) {
    const uint32_t at =
        g->ring + stage * TE_SM90_BLOCKWISE_STAGE_BYTES + g->n_scale + subtile * TE_SM90_BLOCKWISE_SUBTILE * 4;
    TE_UNROLL for (int h = 0; h < 2; h++) s->row_scale[h] = te__lds_float(at + 32 * h);
}
/* Promotes a subtile: multiplies the tensor cores' sums over 128 elements of k by their scales, and adds them to the
 * sums in f32. A lane's d[4 j + 2 h + e] is the element in row lane / 4 + 8 h and column 8 j + 2 (lane % 4) + e of the
 * 16 x 64 elements of its warp. */
TE_FN void te__sm90_blockwise_promote(te__sm90_blockwise_accumulator *s, const int subtile, const int wgrad) {
    float *d = s->partial[subtile % 2], *sum = s->sum[subtile];
    te__sm90_blockwise_pin(d);
    TE_UNROLL
    for (int i = 0; i < TE_SM90_BLOCKWISE_SUBTILE / 2; i++) {
        const int h = i / 2 % 2, block = subtile * TE_SM90_BLOCKWISE_SUBTILE / 128;
        if (wgrad) sum[i] = fmaf(d[i] * s->column_scale[i / 4 * 2 + i % 2], s->row_scale[h], sum[i]);
        else sum[i] = fmaf(d[i], s->scale[block][h], sum[i]);
    }
}
/* Signals to the producers of both blocks of the cluster that this warp has read the stage, which may then be filled
 * again. */
TE_FN void te__sm90_blockwise_release_stage(const te__sm90_blockwise_consumer *g, int stage) {
    __syncwarp();
    if ((int)threadIdx.x % 32 < TE_CLUSTER)
        asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(g->empty + 8 * stage) : "memory");
}

/* ---- the epilogue: store a tile from registers ------------------------------------------------------------------- */

/* Loads the bias of the tile's columns, at the start of the tile, so that the load overlaps with the mainloop. */
TE_FN void te__sm90_blockwise_load_bias(te__sm90_blockwise_consumer *g, const te__sm90_blockwise_params *p) {
    const int lane = (int)threadIdx.x % 32;
    TE_UNROLL for (int j = 0; j < 4; j++) {
        const int col = g->x + 2 * (32 * j + lane);
        g->bias[j] = p->bias && col < p->gemm.n ? __ldg((const uint32_t *)p->bias + col / 2) : 0;
    }
}
/* Returns the bias of this lane's two columns among the eight columns 8 * t to 8 * t + 7 of the tile. */
TE_FN float2 te__sm90_blockwise_bias_pair(const te__sm90_blockwise_consumer *g, const int t, te_dtype dtype,
                                          const int kind) {
    if (kind == TE_BLOCKWISE_GROUPED) return make_float2(0, 0);
    const uint32_t w = __shfl_sync(~0u, g->bias[t / 8], t % 8 * 4 + (int)threadIdx.x % 4);
    return te_floats_of_pair(w, dtype);
}
/* Stores a tile with 16-bit elements. Two neighbouring lanes first exchange pairs of columns, so that each has four
 * adjacent columns; then four lanes store 32 adjacent bytes of a row. */
TE_FN void te__sm90_blockwise_store_sixteen(const te__sm90_blockwise_params *p, const te__sm90_blockwise_accumulator *s,
                                            const te__sm90_blockwise_consumer *g, const int kind) {
    const int lane = (int)threadIdx.x % 32, odd = lane % 2, warp = (int)threadIdx.x / 32 - 4;
    const float alpha = p->gemm.alpha;
    TE_UNROLL
    for (int i = 0; i < TE_TILE_N / 16; i++) {
        const float2 a = te__sm90_blockwise_bias_pair(g, 2 * i, p->dtype, kind),
                     b = te__sm90_blockwise_bias_pair(g, 2 * i + 1, p->dtype, kind);
        TE_UNROLL
        for (int h = 0; h < 2; h++) {
            const int row = g->y + warp * 16 + lane / 4 + 8 * h, col = g->x + 16 * i + 8 * odd + lane % 4 / 2 * 4;
            const float *v = &s->sum[i / 4][i % 4 * 8 + 2 * h];
            const uint32_t low = te_pair_of_floats(fmaf(alpha, v[0], a.x), fmaf(alpha, v[1], a.y), p->dtype);
            const uint32_t high = te_pair_of_floats(fmaf(alpha, v[4], b.x), fmaf(alpha, v[5], b.y), p->dtype);
            const uint32_t other = __shfl_xor_sync(~0u, odd ? low : high, 1);
            if (row < (kind == TE_BLOCKWISE_GROUPED ? g->end : p->gemm.m) && col < p->gemm.n)
                *(uint2 *)((uint16_t *)p->d + (int64_t)row * p->gemm.n + col) =
                    odd ? make_uint2(other, high) : make_uint2(low, other);
            /* without this statement the compiler delays the stores, and holds more values than there are registers */
            if (i % 2) asm volatile("" ::: "memory");
        }
    }
}
/* Stores a tile of a wgrad (weight gradient), in f32. Four lanes store 32 adjacent bytes of a row. */
TE_FN void te__sm90_blockwise_store_wgrad(const te__sm90_blockwise_params *p, const te__sm90_blockwise_accumulator *s,
                                          int x, int y) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4, warpgroup = (int)threadIdx.x / 128 - 1;
    const float alpha = p->gemm.alpha;
    TE_UNROLL
    for (int i = 0; i < TE_SM90_BLOCKWISE_SUBTILES * TE_SM90_BLOCKWISE_SUBTILE / 4; i++) {
        const int subtile = i / 16, h = i / 8 % 2, j = i % 8;
        const int row = x + subtile * TE_SM90_BLOCKWISE_SUBTILE + warp * 16 + lane / 4 + 8 * h;
        const int col = y + warpgroup * 64 + 8 * j + lane % 4 * 2;
        const float *v = &s->sum[subtile][4 * j + 2 * h];
        if (row < p->gemm.n && col < p->gemm.m)
            *(float2 *)((float *)p->d + (int64_t)row * p->gemm.m + col) = make_float2(alpha * v[0], alpha * v[1]);
        /* without this statement the compiler delays the stores, and holds more values than there are registers */
        if (j % 2) asm volatile("" ::: "memory");
    }
}
TE_FN void te__sm90_blockwise_store_tile(const te__sm90_blockwise_params *p, const te__sm90_blockwise_accumulator *s,
                                         const te__sm90_blockwise_consumer *g, const int kind) {
    if (kind == TE_BLOCKWISE_WGRAD) te__sm90_blockwise_store_wgrad(p, s, g->x, g->y);
    else te__sm90_blockwise_store_sixteen(p, s, g, kind);
}
/* Stores the sums of the previous tile, if there is one, to D. Then begins the tile t: loads its bias and sets the sums
 * to 0. For grouped GEMMs the caller has set all members of t. Otherwise the caller has set only t.number, and this
 * function sets the other members while the tensor cores are busy. */
TE_FN void te__sm90_blockwise_next_tile(const te__sm90_blockwise_params *p, te__sm90_blockwise_accumulator *s,
                                        te__sm90_blockwise_consumer *g, te__sm90_blockwise_tile t, const int kind) {
    if (kind != TE_BLOCKWISE_GROUPED) (void)te__sm90_blockwise_locate(&t, p, kind);
    if (g->has_tile) te__sm90_blockwise_store_tile(p, s, g, kind);
    g->x = t.x, g->y = t.y, g->end = t.end, g->has_tile = 1;
    if (kind == TE_BLOCKWISE_ONE) te__sm90_blockwise_load_bias(g, p);
    TE_UNROLL
    for (int i = 0; i < TE_SM90_BLOCKWISE_SUBTILES; i++)
        TE_UNROLL for (int e = 0; e < TE_SM90_BLOCKWISE_SUBTILE / 2; e++) s->sum[i][e] = 0;
}

/* ---- the mainloop ------------------------------------------------------------------------------------------------ */

/* Runs `count` steps (each 128 elements of k) from `step` on, in a software pipeline: while the tensor cores compute a
 * subtile, the warpgroup promotes the previous subtile, i.e. scales the subtile's sums and adds them to s->sum. The
 * result of a batch of wgmma is available some hundred cycles after its last wgmma began, and promotion takes another
 * hundred cycles. Two accumulators per warpgroup hide both times: wgmma fill one accumulator while the other
 * accumulator is promoted.
 *
 * ptxas keeps this pipeline only if no wgmma is in flight at the end of a loop body. Therefore a loop body has several
 * steps (TE_SM90_BLOCKWISE_UNROLL); at the end of a body this warpgroup's pipeline drains, and the tensor cores compute
 * for the other warpgroup only. next: null, except for the first steps of a tile, where it is this tile. In the first
 * steps the sums of the previous tile are stored from registers while the tensor cores compute the first two subtiles.
 * (A wgrad has too few registers for this, so next is null, and the previous tile is stored before the first step of
 * the next tile.) */
TE_FN void te__sm90_blockwise_steps(const te__sm90_blockwise_params *p, te__sm90_blockwise_accumulator *s,
                                    te__sm90_blockwise_consumer *g, const te__sm90_blockwise_tile *next, int step,
                                    const int count, const int kind) {
    const int subtiles = count * TE_SM90_BLOCKWISE_SUBTILES, last = TE_SM90_BLOCKWISE_SUBTILES - 1;
    const int wgrad = kind == TE_BLOCKWISE_WGRAD;
    te__barrier_wait(g->full + 8 * g->at.stage, g->at.phase);
    te__sm90_blockwise_start_wgmma(s->partial[0], g, 0, wgrad);
    TE_UNROLL
    for (int i = 1; i < subtiles; i++) {
        const int subtile = i % TE_SM90_BLOCKWISE_SUBTILES, begins_step = subtile == 0, stage = g->at.stage;
        const int before = begins_step ? last : subtile - 1; /* the subtile whose sums are scaled and added to s->sum in
                                                              * this iteration */
        if (begins_step) {
            te__sm90_pipeline_advance(&g->at);
            te__barrier_wait(g->full + 8 * g->at.stage, g->at.phase);
        }
        te__sm90_blockwise_start_wgmma(s->partial[i % 2], g, subtile, wgrad);
        if (i == 1 && next) te__sm90_blockwise_next_tile(p, s, g, *next, kind);
        if (i == 1) te__sm90_blockwise_load_scales(s, g, step, wgrad);
        if (wgrad) te__sm90_blockwise_load_row_scales(s, g, stage, before);
        te__wgmma_wait_1();
        if (begins_step) te__sm90_blockwise_release_stage(g, stage);
        te__sm90_blockwise_promote(s, before, wgrad);
        if (begins_step) te__sm90_blockwise_load_scales(s, g, step + i / TE_SM90_BLOCKWISE_SUBTILES, wgrad);
    }
    const int stage = g->at.stage;
    te__sm90_pipeline_advance(&g->at);
    if (wgrad) te__sm90_blockwise_load_row_scales(s, g, stage, last);
    te__wgmma_wait_0();
    te__sm90_blockwise_release_stage(g, stage);
    te__sm90_blockwise_promote(s, last, wgrad);
}
TE_FN te__sm90_blockwise_consumer te__sm90_blockwise_consumer_of(uint32_t ring, uint32_t full, const int wgrad) {
    /* The number of this consumer warpgroup, 0 or 1. The shuffle tells the compiler that all lanes have the same
     * number. */
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128 - 1, 0);
    const int warp = (int)threadIdx.x / 32 - 4, lane = (int)threadIdx.x % 32;
    te__sm90_blockwise_consumer g;
    g.ring = __shfl_sync(~0u, ring, 0), g.full = __shfl_sync(~0u, full, 0);
    g.m_operand = (uint32_t)te__wgmma_descriptor(g.ring + warpgroup * 8192, 0);
    g.n_operand = (uint32_t)te__wgmma_descriptor(g.ring + TE_SM90_GEMM_A_BYTES, 0);
    g.m_scale = TE_SM90_BLOCKWISE_M_SCALES + 4 * (wgrad ? warpgroup * 64 + lane % 4 * 2 : warp * 16 + lane / 4);
    g.n_scale = TE_SM90_BLOCKWISE_N_SCALES + 4 * (warp % 4 * 16 + lane / 4);
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(g.empty) : "r"(full + 8 * TE_STAGES), "r"(lane % TE_CLUSTER));
    /* This empty asm statement makes the compiler hold these values in registers instead of recomputing them. */
    asm volatile("" : "+r"(g.empty), "+r"(g.m_scale), "+r"(g.n_scale));
    g.at.stage = g.at.phase = g.has_tile = g.x = g.y = g.end = 0;
    return g;
}
/* What a consumer warpgroup runs: it computes its half of every tile of the block. */
TE_FN void te__sm90_blockwise_consume(const te__sm90_blockwise_params *p, uint32_t ring, uint32_t full,
                                      const int kind) {
    const int steps = te__sm90_blockwise_step_count(p, kind), wgrad = kind == TE_BLOCKWISE_WGRAD;
    te__sm90_blockwise_consumer g = te__sm90_blockwise_consumer_of(ring, full, wgrad);
    te__sm90_blockwise_accumulator s;
    te__sm90_blockwise_tile t;
    t.number = (int)blockIdx.x / TE_CLUSTER;
#pragma unroll 1
    for (; t.number < p->gemm.tiles; t.number += (int)gridDim.x / TE_CLUSTER) {
        if (kind == TE_BLOCKWISE_GROUPED && !te__sm90_blockwise_seek(&t, p, kind)) break;
        const int b_step = kind == TE_BLOCKWISE_GROUPED ? t.b_step : 0;
        /* Without these zeros the compiler carries the values of the accumulators from tile to tile, by moves between
         * wgmma. */
        TE_UNROLL for (int i = 0; kind == TE_BLOCKWISE_GROUPED && i < TE_SM90_BLOCKWISE_SUBTILE / 2; i++)
            s.partial[0][i] = s.partial[1][i] = 0;
        int step = wgrad ? 0 : TE_SM90_BLOCKWISE_UNROLL;
        if (wgrad) te__sm90_blockwise_next_tile(p, &s, &g, t, kind);
        else te__sm90_blockwise_steps(p, &s, &g, &t, b_step, TE_SM90_BLOCKWISE_UNROLL, kind);
#pragma unroll 1
        for (; step + TE_SM90_BLOCKWISE_UNROLL <= steps; step += TE_SM90_BLOCKWISE_UNROLL)
            te__sm90_blockwise_steps(p, &s, &g, 0, b_step + step, TE_SM90_BLOCKWISE_UNROLL, kind);
#pragma unroll 1
        for (; step < steps; step++) te__sm90_blockwise_steps(p, &s, &g, 0, b_step + step, 1, kind);
    }
    if (g.has_tile) te__sm90_blockwise_store_tile(p, &s, &g, kind);
}

/* ---- the producer ------------------------------------------------------------------------------------------------ */

/* Returns 1 in one lane of the warp, else 0. Because elect.sync chooses the lane, the compiler can see that the
 * operands of TMA are uniform across the warp. */
TE_FN int te__sm90_elect_one(void) {
    int is;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(is));
    return is;
}
/* Fills a stage with step `step` of a tile: this block's part of both operands and their scales. */
TE_FN void te__sm90_blockwise_load_stage(const te__sm90_blockwise_params *p, const te__sm90_blockwise_tile *t, int step,
                                         uint32_t stage, uint32_t bar, const int kind) {
    const te__sm90_gemm_params *h = &p->gemm;
    const int wgrad = kind == TE_BLOCKWISE_WGRAD, grouped = kind == TE_BLOCKWISE_GROUPED;
    /* the half of the N operand that this block loads */
    const int half = (int)blockIdx.x % TE_CLUSTER * (TE_TILE_N / TE_CLUSTER);
    const int b_row = t->x + (grouped ? t->b_row : 0), b_step = step + (grouped ? t->b_step : 0);
    /* In dgrad, the columns of B past the end of k belong to the next group. They are replaced by column 2^30, because
     * TMA writes zeros for columns outside the tensor. */
    const int b_col = grouped && step * TE_TILE_K >= h->k ? 1 << 30 : b_step * TE_TILE_K;
    te__barrier_arrive_expect_tx(bar, TE_SM90_BLOCKWISE_N_SCALES + (wgrad ? TE_TILE_N * 4 : 2 * 16));
    te__tma_load(stage, &h->a_map, step * TE_TILE_K, t->y, bar, 0);
    te__tma_load(stage + TE_SM90_GEMM_A_BYTES + (uint32_t)half * 128, &h->b_map, b_col, b_row + half, bar,
                 (1 << TE_CLUSTER) - 1);
    te__tma_load(stage + TE_SM90_BLOCKWISE_M_SCALES, &p->m_scales_map, grouped ? t->scale_row : t->y, step, bar, 0);
    if (wgrad) te__tma_load(stage + TE_SM90_BLOCKWISE_N_SCALES, &p->n_scales_map, t->x, step, bar, 0);
    /* A TMA box must begin at a multiple of 16 bytes. So every step loads the scales of four steps, the first of which
     * is b_step & ~3, and uses one of them. */
    else te__tma_load(stage + TE_SM90_BLOCKWISE_N_SCALES, &p->n_scales_map, b_step & ~3, b_row / 128, bar, 0);
}
/* What the producer runs: it fills the stages with both operands and their scales by TMA, for all tiles of the block.
 * For one GEMM a single thread calls this. For grouped GEMMs all lanes of a warp call it, because they find a tile
 * together (te__grouped_find), and only the lane whose argument `loads` is 1 fills the stages. */
TE_FN void te__sm90_blockwise_produce(const te__sm90_blockwise_params *p, uint32_t ring, uint32_t full, int loads,
                                      const int kind) {
    const int steps = te__sm90_blockwise_step_count(p, kind);
    te__sm90_pipeline_state s = {0, 0};
    te__sm90_blockwise_tile t;
    /* This empty asm statement makes the compiler hold both addresses in registers instead of recomputing them at every
     * step; the thread has only 24 registers. */
    asm volatile("" : "+r"(ring), "+r"(full));
    t.number = (int)blockIdx.x / TE_CLUSTER;
#pragma unroll 1
    for (; te__sm90_blockwise_seek(&t, p, kind); t.number += (int)gridDim.x / TE_CLUSTER) {
        if (kind == TE_BLOCKWISE_GROUPED && !loads) continue;
#pragma unroll 1
        for (int step = 0; step < steps; step++, te__sm90_pipeline_advance(&s)) {
            const uint32_t bar = full + 8 * s.stage;
            te__barrier_wait(bar + 8 * TE_STAGES, s.phase ^ 1);
            te__sm90_blockwise_load_stage(p, &t, step, ring + s.stage * TE_SM90_BLOCKWISE_STAGE_BYTES, bar, kind);
        }
    }
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

TE_FN void te__sm90_blockwise_body(const te__sm90_blockwise_params *p, te__sm90_blockwise_barriers *bars,
                                   const int kind) {
    extern __shared__ char te_dynamic[];
    const uint32_t ring = (te__shared_address(te_dynamic) + 1023) & ~1023u, full = te__shared_address(bars->full);
    if (threadIdx.x == 0) {
        TE_UNROLL for (int i = 0; i < TE_STAGES; i++)
            te__barrier_init(full + 8 * i, 1), te__barrier_init(full + 8 * (TE_STAGES + i), 8 * TE_CLUSTER);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x == 32) te__tma_prefetch_descriptor(&p->gemm.a_map), te__tma_prefetch_descriptor(&p->gemm.b_map);
    te__cluster_sync();
    te_kernel_begin();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)TE_SM90_BLOCKWISE_REGISTERS));
        if (threadIdx.x < 32) {
            const int loads = te__sm90_elect_one();
            if (loads || kind == TE_BLOCKWISE_GROUPED) te__sm90_blockwise_produce(p, ring, full, loads, kind);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)TE_SM90_BLOCKWISE_CONSUMER_REGISTERS));
        te__sm90_blockwise_consume(p, ring, full, kind);
    }
    __syncwarp();
    te__cluster_sync(); /* a block may not exit while the other block of its cluster can still write to its shared
                         * memory */
}
#else
TE_FN void te__sm90_blockwise_body(const te__sm90_blockwise_params *p, te__sm90_blockwise_barriers *bars,
                                   const int kind) {
    (void)p, (void)bars, (void)kind;
}
#endif

/* The kernel is a template, so that a program which does not launch the kernel does not contain its code. */
template <int kind>
__global__ void __launch_bounds__(TE_SM90_GEMM_THREADS, 1)
te__sm90_blockwise_gemm(const __grid_constant__ te__sm90_blockwise_params p) {
    __shared__ te__sm90_blockwise_barriers bars;
    te__sm90_blockwise_body(&p, &bars, kind);
}

/* ---- host -------------------------------------------------------------------------------------------------------- */

enum { TE_SM90_BLOCKWISE_MIN_K = (int)TE_SM90_BLOCKWISE_UNROLL * TE_FP8_BLOCK };

/* Returns whether the GEMM is a weight gradient: only then B, like A, has one scale per 1 x 128 elements. */
TE_API int te__sm90_blockwise_is_wgrad(const te_gemm *g) { return g->b_fp8.scaling == TE_SCALING_BLOCKWISE_1D; }
TE_API int te__sm90_blockwise_shape_fits(const te_gemm *g) {
    const int64_t limit = 1 << 30;
    return g->k >= TE_SM90_BLOCKWISE_MIN_K && g->k % 16 == 0 && g->n % 16 == 0 &&
           g->m == te_blockwise_1d_aligned_rows(g->m) && g->m > 0 && g->n > 0 && g->m < limit && g->n < limit &&
           g->k < limit;
}
TE_API int te__sm90_blockwise_formats_fit(const te_gemm *g) {
    const int to_sixteen_bits = g->out == g->dtype && g->dtype != TE_f32;
    return g->a_fp8.scaling == TE_SCALING_BLOCKWISE_1D && g->a_fp8.dtype == TE_e4m3 && g->b_fp8.dtype == TE_e4m3 &&
           (te__sm90_blockwise_is_wgrad(g) ? g->out == TE_f32
                                           : g->b_fp8.scaling == TE_SCALING_BLOCKWISE_2D && to_sixteen_bits);
}
/* Returns whether the kernel supports this GEMM. The only epilogue that the kernel supports is a bias, because the
 * kernel has no registers left for another op. */
TE_API int te__sm90_blockwise_supports(const te_gemm *g) {
    const int epilogue_fits = g->epilogue == TE_EPILOGUE_NONE ||
                              (g->epilogue == TE_EPILOGUE_BIAS && !te__sm90_blockwise_is_wgrad(g));
    return te__sm90_blockwise_formats_fit(g) && te__sm90_blockwise_shape_fits(g) && g->beta == 0 && !g->trans_a &&
           g->trans_b && epilogue_fits;
}
/* Makes the tensor map of an array of scales, [rows, cols], which TMA copies in boxes of box_rows x box_cols. */
TE_API te_status te__sm90_blockwise_scale_map(CUtensorMap *map, te__tensor_map_encode_fn encode, const float *scales,
                                              int64_t rows, int64_t cols, int box_rows, int box_cols, te_context *ctx) {
    const cuuint64_t size[2] = {(cuuint64_t)cols, (cuuint64_t)rows}, pitch[1] = {(cuuint64_t)cols * 4};
    const cuuint32_t box[2] = {(cuuint32_t)box_cols, (cuuint32_t)box_rows}, step[2] = {1, 1};
    const CUresult e = encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, (void *)(uintptr_t)scales, size, pitch, box,
                              step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    TE_REQUIRE(e == CUDA_SUCCESS, ctx, TE_ERROR_CUDA, "cuTensorMapEncodeTiled: error %d", (int)e);
    return TE_OK;
}
TE_IF_USED TE_API te_sm90_kernel *te__sm90_blockwise_kernel(const te_gemm *g) {
    static te_sm90_kernel kernels[2] = {{(const void *)te__sm90_blockwise_gemm<TE_BLOCKWISE_ONE>, 0, 0},
                                          {(const void *)te__sm90_blockwise_gemm<TE_BLOCKWISE_WGRAD>, 0, 0}};
    return &kernels[te__sm90_blockwise_is_wgrad(g)];
}
/* Makes the tensor maps of an operand with `rows` rows and of its scales. tile_rows: the number of rows of the operand
 * that a tile needs. */
TE_API te_status te__sm90_blockwise_operand_maps(CUtensorMap *map, CUtensorMap *scales, const void *data,
                                                 const te_gemm_fp8 *fp8, int64_t rows, int tile_rows,
                                                 const te_gemm *g, te_context *ctx) {
    const te__tensor_map_encode_fn encode = te__tensor_map_encoder(ctx);
    TE_TRY(te__tensor_map_matrix(map, encode, data, rows, g->k / 2, TE_TILE_M, g->dtype, ctx));
    if (fp8->scaling == TE_SCALING_BLOCKWISE_1D)
        return te__sm90_blockwise_scale_map(scales, encode, fp8->inverse, te_fp8_blocks(g->k), rows, 1, tile_rows, ctx);
    return te__sm90_blockwise_scale_map(scales, encode, fp8->inverse, te_fp8_blocks(rows),
                                        te_blockwise_2d_scale_pitch(g->k), 2, 4, ctx);
}
TE_IF_USED TE_API te_status te__sm90_blockwise_launch(const te_gemm *g, te_context *ctx) {
    const int wgrad = te__sm90_blockwise_is_wgrad(g);
    const int64_t tiles = te__sm90_gemm_cluster_tiles(g);
    te__sm90_blockwise_params p;
    memset(&p, 0, sizeof p);
    te__sm90_gemm_params *h = &p.gemm;
    h->m = (int)(wgrad ? g->n : g->m), h->n = (int)(wgrad ? g->m : g->n), h->k = (int)(g->k / 2);
    h->alpha = g->alpha, h->tiles = (int)tiles, p.d = g->d, p.dtype = g->out;
    p.bias = g->epilogue == TE_EPILOGUE_BIAS ? g->bias : 0;
    TE_TRY(te__sm90_blockwise_operand_maps(wgrad ? &h->b_map : &h->a_map, wgrad ? &p.n_scales_map : &p.m_scales_map,
                                           g->a, &g->a_fp8, g->m, wgrad ? TE_TILE_N : TE_TILE_M, g, ctx));
    TE_TRY(te__sm90_blockwise_operand_maps(wgrad ? &h->a_map : &h->b_map, wgrad ? &p.m_scales_map : &p.n_scales_map,
                                           g->b, &g->b_fp8, g->n, TE_TILE_M, g, ctx));
    const te_grid grid = te__grid_of(te_min(ctx->processors / TE_CLUSTER, tiles) * TE_CLUSTER, 1);
    const te_launch launch = te__launch_of(te__sm90_blockwise_kernel(g)->kernel, "matrix product", grid,
                                           TE_SM90_GEMM_THREADS, TE_SM90_BLOCKWISE_SMEM_BYTES, TE_CLUSTER);
    return te__cuda_launch(ctx, launch, &p, sizeof p);
}

/* ---- grouped GEMMs ----------------------------------------------------------------------------------------------- */

/* Runs grouped GEMMs in FP8, of forward or of dgrad (te_grouped.in_fp8). Returns an error if the device does not have
 * compute capability 9.0, or if the driver has no function that encodes tensor maps. */
TE_IF_USED TE_API te_status te__sm90_blockwise_grouped_run(const te_grouped *g, te_context *ctx) {
    static te_sm90_kernel kernel = {(const void *)te__sm90_blockwise_gemm<TE_BLOCKWISE_GROUPED>, 0, 0};
    const int is_forward = g->kind == TE_GROUPED_FORWARD, depth = is_forward ? g->in : g->out;
    const int columns = is_forward ? g->out : g->in, size = TE_CLUSTER * TE_TILE_M;
    const int64_t weights = (int64_t)g->groups * g->out, pitch = te__grouped_scale_pitch(g->rows, g->groups);
    const int64_t tiles = te_ceil_div(columns, TE_TILE_N) * (g->rows / size + g->groups);
    const int64_t b_rows = is_forward ? weights : columns, b_cols = is_forward ? depth : weights;
    const te__tensor_map_encode_fn encode = te__tensor_map_encoder(ctx);
    te__sm90_blockwise_params p;
    TE_REQUIRE(encode && te__sm90_kernel_ready(&kernel, TE_SM90_BLOCKWISE_SMEM_BYTES, ctx->device), ctx,
               TE_ERROR_DEVICE, "grouped products in FP8 need compute capability 9.0, and code that is compiled for "
               "it: device %d has %d.%d", ctx->device, ctx->capability / 100, ctx->capability / 10 % 10);
    TE_REQUIRE(tiles <= INT32_MAX / 2 && pitch <= INT32_MAX && b_rows <= INT32_MAX && b_cols <= INT32_MAX, ctx,
               TE_ERROR_OVERFLOW, "a product of %lld rows and %d groups", (long long)g->rows, g->groups);
    memset(&p, 0, sizeof p);
    te__sm90_gemm_params *h = &p.gemm;
    h->n = columns, h->k = depth / 2, h->alpha = 1.0f, h->tiles = (int)tiles;
    p.d = g->d, p.dtype = g->dtype, p.groups = *g;
    TE_TRY(te__tensor_map_matrix(&h->a_map, encode, g->a, g->rows, depth / 2, TE_TILE_M, g->dtype, ctx));
    TE_TRY(te__tensor_map_matrix(&h->b_map, encode, g->b, b_rows, b_cols / 2, TE_TILE_M, g->dtype, ctx));
    TE_TRY(te__sm90_blockwise_scale_map(&p.m_scales_map, encode, g->a_inverse, te_fp8_blocks(depth), pitch, 1,
                                        TE_TILE_M, ctx));
    TE_TRY(te__sm90_blockwise_scale_map(&p.n_scales_map, encode, g->b_inverse, te_fp8_blocks(b_rows),
                                        te_blockwise_2d_scale_pitch(b_cols), 2, 4, ctx));
    const te_grid grid = te__grid_of(te_min(ctx->processors / TE_CLUSTER, tiles) * TE_CLUSTER, 1);
    const te_launch launch = te__launch_of(kernel.kernel, "grouped product in FP8", grid, TE_SM90_GEMM_THREADS,
                                           TE_SM90_BLOCKWISE_SMEM_BYTES, TE_CLUSTER);
    return te__cuda_launch(ctx, launch, &p, sizeof p);
}

/* ---- the choice between this kernel and cuBLASLt ----------------------------------------------------------------- */

TE_IF_USED TE_API int te__sm90_blockwise_available(const te_gemm *g, te_context *ctx) {
    return ctx->gemm_custom && te__sm90_blockwise_supports(g) && te__tensor_map_encoder(ctx) &&
           te__sm90_kernel_ready(te__sm90_blockwise_kernel(g), TE_SM90_BLOCKWISE_SMEM_BYTES, ctx->device);
}
TE_IF_USED TE_API int te__sm90_blockwise_chosen(const te_gemm *g, te_context *ctx) {
    const int chosen = te__fp8_choice(g, ctx);
    return chosen < 0 ? te__persistent_pays(g, ctx) : chosen;
}
/* Returns whether te__gemm_blockwise_run can add the bias to the result of the GEMM. It can if it would run the same
 * GEMM without a bias by this file's kernel, not by cuBLASLt. If gemm_tune is on and this kernel and cuBLASLt were not
 * timed for this GEMM yet, this function times both. */
TE_IF_USED TE_API int te__gemm_blockwise_takes_bias(const te_gemm *g, te_context *ctx) {
    te_gemm bare = *g;
    bare.m = te_blockwise_1d_aligned_rows(g->m), bare.epilogue = TE_EPILOGUE_NONE;
    return g->beta == 0 && te__sm90_blockwise_available(&bare, ctx) &&
           te__fp8_tune(&bare, te__sm90_blockwise_launch<>, ctx) == TE_OK && te__sm90_blockwise_chosen(&bare, ctx);
}
TE_IF_USED TE_API te_status te__gemm_blockwise_run(const te_gemm *g, te_context *ctx) {
    if (!te__sm90_blockwise_available(g, ctx)) return te_gemm_run(g, ctx);
    if (g->epilogue == TE_EPILOGUE_BIAS) return te__sm90_blockwise_launch(g, ctx);
    TE_TRY(te__fp8_tune(g, te__sm90_blockwise_launch<>, ctx));
    return te__sm90_blockwise_chosen(g, ctx) ? te__sm90_blockwise_launch(g, ctx) : te_gemm_run(g, ctx);
}

#endif
