/* gemm_hopper.h -- a matrix product of our own for compute capability 9.0, whose epilogue costs next to nothing.
 *
 * A block owns a tile of 128 x 256 of D. One warp brings tiles of A and B by the copy engine (TMA) into a ring of four
 * stages; two warpgroups multiply them (wgmma), 64 x 256 floats each in registers. Two blocks of a cluster lie above
 * each other and share what they load of B. A block takes tile after tile: when one is done its floats are packed to 16
 * bits, and while the tensor cores work on the next they leave the registers, a quarter at a time, by way of shared
 * memory, where three more warps run the epilogue on them, eight elements at a time: any function of an element and its
 * place. It stores what is to be kept. What it reads, a saved input or a residual, is on its way before it asks.
 *
 * Tiles rarely come out even: 2048 pairs of them on 66 clusters are 31 rounds and two. Clusters that would have none in
 * the last round take a part of k of those that are left (Stream-K, Osama et al. 2023): they leave their sums in
 * memory, and who has the tile adds them, in a fixed order. At 8192 x 16384 x 4096 that is 0.99 of the time, not 0.97:
 * the chip's power limit takes the rest.
 *
 * D = alpha A op(B), rounded to 16 bits, then the epilogue: the numbers of the ops one by one. Sums over k run in an
 * order that only sizes and multiprocessors decide, so the same inputs give the same bits.
 *
 * Measured on an H200, which its power limits at about 690 TFLOP/s: with a bare store for an epilogue 0.98 to 1.03 of
 * the time of cuBLASLt's fastest candidate. With bias and gelu, 8192 x 16384 x 4096, 1.04 of that bare product, with
 * the pre-activation stored as well 1.06; cuBLASLt's own epilogues, which overlap with nothing, 1.07 to 1.11 and 1.12.
 * The gradient through gelu, with the bias's, at that shape 1671 us; 1795 where the epilogue loaded what it reads
 * itself. What did not pay: the epilogue in the warpgroups that multiply (1.05 to 1.10: whatever they do between two
 * steps the tensor cores wait for); a whole tile left in shared memory at once, beside a ring of three stages (2 us a
 * tile); for the gradient of a weight the same kernel with both operands across and sums in f32 (1.00 to 1.06,
 * accumulating 1.02 to 1.08).
 */
/* target: cuda */
#ifndef TE_GEMM_HOPPER_H
#define TE_GEMM_HOPPER_H

#include "../core/amax.h"      /* te_amax_raise */
#include "gemm_hopper_tiles.h" /* te_hopper, te__hopper_load */
#include "gemm_hopper_turn.h"  /* te__hopper_turn */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- the epilogue of a tile -------------------------------------------------------------------------------------- */

/* Of 16 rows of 128 bytes, at a multiple of 1024, the 16 bytes `piece` of row `row`: permuted as the copy engine has
 * them. */
TE_FN uint32_t te__hopper_piece(uint32_t box, int row, int piece) {
    return box + (uint32_t)(row * 128 + ((piece ^ (row & 7)) << 4));
}

/* A lane's d[4 j + 2 h + e] is row lane / 4 + 8 h, column 8 j + 2 (lane % 4) + e, of its warp's 16 x 256. */
TE_FN void te__hopper_pack(float alpha, uint32_t held[64], float d[128], const te_dtype dtype) {
    if (alpha != 1.0f) TE_UNROLL for (int i = 0; i < 128; i++) d[i] *= alpha;
    TE_UNROLL for (int i = 0; i < 64; i++) held[i] = te_pair_of_floats(d[2 * i], d[2 * i + 1], dtype);
}
/* A quarter of what a warp holds, 64 columns, goes to the warps of the epilogue. boxes: of this warp, two. */
TE_FN void te__hopper_leave(const uint32_t held[64], const int quarter, uint32_t boxes, te_hopper_barriers *bars) {
    const int lane = (int)threadIdx.x % 32, box = quarter % 2;
    const uint32_t to = boxes + box * TE_HOPPER_BOX;
    te__barrier_wait(te__shared_address(&bars->taken[box]), (quarter / 2) ^ 1);
    TE_UNROLL
    for (int i = 0; i < 4; i++)
        te__store_matrix(te__hopper_piece(to, lane % 16, 2 * i + lane / 16), held + 16 * quarter + 4 * i);
    __syncwarp();
    if (lane == 0) te__barrier_arrive(te__shared_address(&bars->done[box]));
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

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
    const int warpgroup =
        __shfl_sync(~0u, (int)threadIdx.x / 128 - 1, 0); /* so that the compiler sees that all lanes have the same */
    const uint32_t base = g->ring + g->at.stage * TE_HOPPER_STAGE;
    const uint64_t a = te__matrix_at(base + warpgroup * 8192, 0), b = te__matrix_at(base + TE_HOPPER_A, !k.trans_b);
    te__barrier_wait(g->full + 8 * g->at.stage, g->at.phase);
    te__wgmma_fence();
    TE_UNROLL
    for (int q = 0; q < TE_TILE_K / 16; q++)
        if (te_is_fp8(k.a)) te__wgmma_fp8(d, a + 2 * q, b + 2 * q, step || q, k.a, k.b);
        else te__wgmma(d, a + 2 * q, b + q * (k.trans_b ? 2 : 128), step || q, k.dtype, !k.trans_b);
    te__wgmma_commit();
    te__wgmma_wait_1();
    if (step) te__hopper_free(g);
    te__hopper_advance(&g->at);
}
/* A lane's sums of a part of k, and whoever has the tile adds them. */
TE_FN void te__hopper_give(const te_hopper *p, const float d[128], const te_hopper_work *w) {
    const int rank = (int)blockIdx.x % TE_CLUSTER, thread = (int)threadIdx.x - 128,
              slot = (w->left * p->each + w->part - 1) * TE_CLUSTER + rank;
    float4 *to = (float4 *)p->given + (int64_t)slot * (TE_TILE_M * TE_TILE_N / 4) + thread;
    TE_UNROLL
    for (int i = 0; i < 32; i++) to[i * 256] = make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
    __threadfence();
    __syncwarp();
    if (thread % 32 == 0)
        asm volatile(
            "red.release.gpu.global.add.u32 [%0], 1;" ::"l"(&p->ready[(w->left * TE_CLUSTER + rank) * 8 + thread / 32])
            : "memory");
}
TE_FN void te__hopper_collect(const te_hopper *p, float d[128], const te_hopper_work *w) {
    const int rank = (int)blockIdx.x % TE_CLUSTER, thread = (int)threadIdx.x - 128;
    uint32_t *ready = &p->ready[(w->left * TE_CLUSTER + rank) * 8 + thread / 32], come = 0;
    while (come < (uint32_t)p->each)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(come) : "l"(ready) : "memory");
    __syncwarp();
    if (thread % 32 == 0) *ready = 0; /* for the next product */
#pragma unroll 1
    for (int part = 0; part < p->each; part++) {
        const float4 *from = (const float4 *)p->given +
                             (int64_t)((w->left * p->each + part) * TE_CLUSTER + rank) * (TE_TILE_M * TE_TILE_N / 4) +
                             thread;
        TE_UNROLL for (int i = 0; i < 32; i++) {
            const float4 v = __ldcg(from + i * 256);
            d[4 * i] += v.x, d[4 * i + 1] += v.y, d[4 * i + 2] += v.z, d[4 * i + 3] += v.w;
        }
    }
}

/* A warpgroup's tiles. */
TE_FN void te__hopper_multiply(const te_hopper *p, uint32_t ring, te_hopper_barriers *bars, const te_hopper_kind k) {
    const int warp = (int)threadIdx.x / 32 - 4;
    const uint32_t boxes = ring + TE_STAGES * TE_HOPPER_STAGE + warp * 2 * TE_HOPPER_BOX;
    te_hopper_group g = {ring, te__shared_address(bars->full), te__shared_address(bars->empty), {0, 0}};
    te_hopper_work w;
    uint32_t held[64]; /* of the tile before, if there is one */
    float d[128];
    int have = 0;
    for (int j = 0; te__hopper_work(&w, p, j); j++) {
        const int steps = w.last - w.first;
        TE_UNROLL for (int quarter = 0; quarter < 4; quarter++) {
            const int first = steps * quarter / 4, last = steps * (quarter + 1) / 4;
            te__hopper_step(d, &g, quarter, k);
            if (have) te__hopper_leave(held, quarter, boxes, bars);
#pragma unroll 1
            for (int s = first + 1; s < last; s++) te__hopper_step(d, &g, s, k);
        }
        te__wgmma_wait_0();
        te__hopper_free(&g);
        asm volatile("" : "+r"(j)); /* found again rather than kept: there are no registers for it */
        (void)te__hopper_work(&w, p, j);
        have = w.part <= 0;
        if (!have) {
            te__hopper_give(p, d, &w);
            TE_UNROLL for (int i = 0; i < 64; i++) held[i] = 0; /* nothing: so that the compiler need not keep it */
            continue;
        }
        if (w.part == 0) te__hopper_collect(p, d, &w);
        te__hopper_pack(te_is_fp8(k.a) ? bars->alpha : p->alpha, held, d, k.dtype);
    }
    TE_UNROLL for (int quarter = 0; have && quarter < 4; quarter++) te__hopper_leave(held, quarter, boxes, bars);
}

/* A part of a tile's 64 columns is four rows: the row of this lane. */
TE_FN int te__hopper_row(int part, int lane) { return part * 4 + lane / 8; }
/* What the epilogue reads comes to the L2 while the 64 columns before are worked on, and to registers while the eight
 * elements before are: if they waited for memory each time, three warps would fall behind the tensor cores. */
TE_FN void te__hopper_fetch(const te_hopper *p, int x, int y) {
#pragma unroll 1
    for (int i = (int)threadIdx.x - 32; p->ahead && i < TE_TILE_M * 4; i += 96) { /* 32 bytes each */
        const int row = y + i / 4, col = x + i % 4 * 16;
        if (row < p->m && col < p->n) te_prefetch(p->ahead, (int64_t)row * p->n + col, TE_bf16);
    }
}
TE_FN void te__hopper_ahead(const te_hopper *p, uint32_t ahead[4], int row, int col) {
    if (p->ahead && row < p->m && col < p->n)
        te__load_now(ahead, (const uint16_t *)p->ahead + (int64_t)row * p->n + col);
}
/* Three warps: the epilogue, eight elements a lane at a time. */
TE_FN void te__hopper_epilogue(const te_hopper *p, uint32_t ring, te_hopper_barriers *bars, te_epilogue_fn epilogue,
                               const void *arg, const te_hopper_kind k) {
    const int warp = (int)threadIdx.x / 32 - 1, lane = (int)threadIdx.x % 32, turns = k.turns && p->turned;
    te_hopper_work w;
    te_epilogue_lane own;
    own.most = 0;
    for (int j = 0; te__hopper_work(&w, p, j); j++) {
        const int x = w.x, y = w.y;
        if (w.part > 0) continue;
        te__hopper_fetch(p, x, y);
#pragma unroll 1
        for (int quarter = 0; quarter < 4; quarter++) {
            const int box = quarter % 2, col = x + quarter * 64 + lane % 8 * 8;
            const uint32_t boxes = ring + TE_STAGES * TE_HOPPER_STAGE + box * TE_HOPPER_BOX;
            uint32_t next[4] = {0, 0, 0, 0};
            te__hopper_ahead(p, next, y + te__hopper_row(warp, lane), col);
            te__barrier_wait(te__shared_address(&bars->done[box]), quarter / 2);
            if (quarter < 3) te__hopper_fetch(p, x + 64 * (quarter + 1), y);
            TE_UNROLL for (int e = 0; e < 8; e++) own.sum[e] = 0;
#pragma unroll 1
            for (int part = warp; part < 32; part += 3) {
                const int row = te__hopper_row(part, lane);
                const uint32_t ahead[4] = {next[0], next[1], next[2], next[3]};
                uint32_t w[4];
                if (part + 3 < 32) te__hopper_ahead(p, next, y + te__hopper_row(part + 3, lane), col);
                te__load_piece(w, te__hopper_piece(boxes + part / 4 * 2 * TE_HOPPER_BOX, row % 16, lane % 8));
                own.fp8[0] = own.fp8[1] = 0;
                if (y + row < p->m && col < p->n) epilogue(arg, w, ahead, y + row, col, &own);
                if (turns) te__hopper_turn_leave(boxes, row, lane, own.fp8);
            }
            if (turns) te__hopper_turn(p, boxes, y, x + quarter * 64, warp, lane);
            __syncwarp();
            if (lane == 0) te__barrier_arrive(te__shared_address(&bars->taken[box]));
            if (!p->sums) continue;
            TE_UNROLL
            for (int e = 0; e < 8; e++)
                own.sum[e] += __shfl_xor_sync(~0u, own.sum[e], 8), own.sum[e] += __shfl_xor_sync(~0u, own.sum[e], 16);
            if (lane < 8 && y < p->m && col < p->n)
                te_store8(p->sums, ((int64_t)y / TE_TILE_M * 3 + warp) * p->n + col, own.sum, 8, 1, TE_f32);
        }
    }
    if (p->amax) {
        int group;
        te_amax_raise(p->amax, own.most, te_lanes_here(32, &group));
    }
}

TE_FN void te_hopper_body(const te_hopper *p, te_hopper_barriers *bars, te_epilogue_fn epilogue, const void *arg,
                          const te_hopper_kind k) {
    extern __shared__ char te_dynamic[];
    const uint32_t ring = (te__shared_address(te_dynamic) + 1023) & ~1023u;
    if (threadIdx.x == 0) {
        TE_UNROLL for (int s = 0; s < TE_STAGES; s++)
            te__barrier_init(te__shared_address(&bars->full[s]), 1),
                te__barrier_init(te__shared_address(&bars->empty[s]), 8 * TE_CLUSTER);
        TE_UNROLL
        for (int b = 0; b < 2; b++)
            te__barrier_init(te__shared_address(&bars->done[b]), 8),
                te__barrier_init(te__shared_address(&bars->taken[b]), 3);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    te__cluster_sync();
    te_kernel_begin();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
        if (threadIdx.x == 0)
            te__hopper_load(p, ring, bars, k);
        else if (threadIdx.x >= 32) te__hopper_epilogue(p, ring, bars, epilogue, arg, k);
    } else {
        asm volatile(
            "setmaxnreg.inc.sync.aligned.u32 216;"); /* with 72 just what the block was launched with, 168 each */
        te__hopper_multiply(p, ring, bars, k);
    }
    __syncwarp();
    te__cluster_sync(); /* nobody leaves while the other may still write into this block's shared memory */
}
#else
TE_FN void te_hopper_body(const te_hopper *p, te_hopper_barriers *bars, te_epilogue_fn epilogue, const void *arg,
                          const te_hopper_kind k) {
    (void)p, (void)bars, (void)epilogue, (void)arg, (void)k;
}
#endif

/* `type` begins with a te_hopper; epilogue: a te_epilogue_fn that is called with the `type`. exists: 0 leaves the
 * kernel empty. */
#define TE_HOPPER_KERNEL(name, type, dtype, trans_b, epilogue, exists)                                              \
    TE_HOPPER_KERNEL_OF(name, type, dtype, dtype, dtype, trans_b, 0, epilogue, exists)
/* The same with formats for A and B, each e4m3 or e5m2; trans_b is then 1. turns: te_hopper.turned may be wanted. */
#define TE_HOPPER_KERNEL_OF(name, type, dtype, dtype_a, dtype_b, trans_b, turns, epilogue, exists)                  \
    TE_UNUSED static __global__ void __launch_bounds__(TE_HOPPER_THREADS, 1) name(const __grid_constant__ type p) { \
        __shared__ te_hopper_barriers bars;                                                                         \
        const te_hopper_kind kind = {dtype, dtype_a, dtype_b, trans_b, turns};                                      \
        if (exists) te_hopper_body((const te_hopper *)&p, &bars, epilogue, &p, kind);                               \
    }

#endif
