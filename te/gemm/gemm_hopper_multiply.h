/* gemm_hopper_multiply.h -- the two warpgroups of gemm_hopper.h that multiply, 64 x 256 sums each in registers, and how
 * they hand a tile over to the warps of the epilogue.
 *
 * Beside the sums of a tile a warpgroup has registers for all of the tile before, packed to 16 bits. With registers for
 * half of it (te_hopper_kind.half) the epilogue's warps have 136, not 72: the first half of the columns is then handed
 * over before the next tile begins. Its boxes are free by then if the epilogue keeps up, and what the tensor cores wait
 * for is the time to store 32 KB to shared memory: 256 of some 35000 cycles of a tile at k of 4096 in FP8.
 *
 * A budget for one such tile, linear_bias_gelu in training, from its machine code:
 *
 *   tensor cores   32768 cycles, 26 us at the clock that the power limit leaves.
 *   epilogue       a warp has 22 times two rows, eight elements a lane of each: 250 instructions a time, 32 of them of
 *                  the special function unit, which has four lanes a scheduler (256 cycles); linear_gelu_bias in
 *                  backward has 355. A sampling profiler finds these warps issuing 0.3 of the time and held back by the
 *                  dispatcher as often, presumably because the tensor cores use the same register ports. Two rows take
 *                  900 cycles; one row at a time, with branches between its parts, took 1250 for half as much and fell
 *                  behind. More warps would have too few registers: of 512 threads each has 128, and wgmma takes 154.
 *   shared memory  128 bytes a cycle, shared with L1: operands arriving (1.5 MB) and read by wgmma (2.5 MB) take all of
 *                  it. The epilogue adds 64 KB of sums each way, 32 KB each way for the transpose, and stores of 64, 32
 *                  and 32 KB: 2500 cycles, 8%; in inference 1300, 4%.
 *   L2             1 MB of operands a tile and multiprocessor, 5 TB/s in all, near its most; stores add 13%.
 */
/* target: cuda */
#ifndef TE_GEMM_HOPPER_MULTIPLY_H
#define TE_GEMM_HOPPER_MULTIPLY_H

#include "gemm_hopper_tiles.h" /* te_hopper, te__hopper_work */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- handing a tile over ----------------------------------------------------------------------------------------- */

/* The address of piece `piece` (16 bytes) of row `row` in a box of 16 rows of 128 bytes, at a multiple of 1024: with
 * the 128-byte swizzle of TMA, which avoids bank conflicts. */
TE_FN uint32_t te__hopper_piece(uint32_t box, int row, int piece) {
    return box + (uint32_t)(row * 128 + ((piece ^ (row & 7)) << 4));
}

TE_FN void te__hopper_scale(float d[128], float alpha) {
    if (alpha != 1.0f) TE_UNROLL for (int i = 0; i < 128; i++) d[i] *= alpha;
}
/* A quarter of a warp's sums, rounded to 16 bits, two a word. In wgmma's layout a lane's d[4 j + 2 h + e] is row lane
 * / 4 + 8 h, column 8 j + 2 (lane % 4) + e, of its warp's 16 x 256. */
TE_FN void te__hopper_pack(uint32_t held[16], const float d[128], const int quarter, const te_dtype dtype) {
    TE_UNROLL
    for (int i = 0; i < 16; i++)
        held[i] = te_pair_of_floats(d[32 * quarter + 2 * i], d[32 * quarter + 2 * i + 1], dtype);
}
/* Hand a quarter over, 64 columns of this warp's 16 rows, once the epilogue has taken what was in its box before.
 * boxes: the two of this warp, used in turns. */
TE_FN void te__hopper_leave(const uint32_t held[16], const int quarter, uint32_t boxes, te_hopper_barriers *bars) {
    const int lane = (int)threadIdx.x % 32, box = quarter % 2;
    const uint32_t to = boxes + box * TE_HOPPER_BOX;
    te__barrier_wait(te__shared_address(&bars->taken[box]), (quarter / 2) ^ 1);
    TE_UNROLL
    for (int i = 0; i < 4; i++)
        te__store_matrix(te__hopper_piece(to, lane % 16, 2 * i + lane / 16), held + 4 * i);
    __syncwarp();
    if (lane == 0) te__barrier_arrive(te__shared_address(&bars->done[box]));
}
/* Hand over a quarter of the block's last tile, to where the ring was: all four have room there, so nobody waits for a
 * box. The ring is free once both warpgroups have read its last stage (te__hopper_ring_is_read). */
TE_FN void te__hopper_leave_last(const uint32_t held[16], const int quarter, uint32_t ring) {
    const int lane = (int)threadIdx.x % 32;
    const uint32_t to = te__hopper_last(ring, quarter) + (threadIdx.x / 32 - 4) * 2 * TE_HOPPER_BOX;
    TE_UNROLL
    for (int i = 0; i < 4; i++)
        te__store_matrix(te__hopper_piece(to, lane % 16, 2 * i + lane / 16), held + 4 * i);
}
TE_FN void te__hopper_ring_is_read(void) { asm volatile("bar.sync 3, 256;" ::: "memory"); }

/* ---- the tiles --------------------------------------------------------------------------------------------------- */

/* What a warpgroup works with: the low words of what says where its operands lie in the first stage, and the barriers.
 * Adding to them is all that a step does, some 80 instructions of which eight warps run each 64 times a tile. */
typedef struct te_hopper_group {
    uint32_t a, b, bars;
    te_hopper_ring at;
} te_hopper_group;

TE_FN te_hopper_group te__hopper_group_of(uint32_t ring, const te_hopper_barriers *bars, const te_hopper_kind k) {
    const int warpgroup =
        __shfl_sync(~0u, (int)threadIdx.x / 128 - 1, 0); /* so that the compiler sees that all lanes have the same */
    te_hopper_group g = {(uint32_t)te__matrix_at(ring + warpgroup * 8192, 0),
                         (uint32_t)te__matrix_at(ring + TE_HOPPER_A, !k.trans_b), te__shared_address(bars), {0, 0}};
    return g;
}
/* Tell the loaders of both blocks, whose multicast fills it, that the stage before the current one has been read. */
TE_FN void te__hopper_free(const te_hopper_group *g) {
    const int before = g->at.stage ? g->at.stage - 1 : TE_STAGES - 1, lane = (int)threadIdx.x % 32;
    const uint32_t empty = g->bars + (uint32_t)offsetof(te_hopper_barriers, empty);
    if (lane < TE_CLUSTER) te__barrier_arrive_at(empty + 8 * before, lane);
}
/* One step of 64 in k: start its wgmmas, then wait for those of the step before. So one group is always in flight. */
TE_FN void te__hopper_step(float d[128], te_hopper_group *g, int step, const te_hopper_kind k) {
    const uint32_t stage = (uint32_t)g->at.stage, a = g->a + stage * (TE_HOPPER_STAGE >> 4),
                   b = g->b + stage * (TE_HOPPER_STAGE >> 4);
    te__barrier_wait(g->bars + (uint32_t)offsetof(te_hopper_barriers, full) + 8 * stage, g->at.phase);
    te__wgmma_fence();
    TE_UNROLL
    for (int q = 0; q < TE_TILE_K / 16; q++) {
        const uint64_t from = te__matrix_low(a + 2 * q), by = te__matrix_low(b + q * (k.trans_b ? 2 : 128));
        if (te_is_fp8(k.a)) te__wgmma_fp8(d, from, by, step || q, k.a, k.b);
        else te__wgmma(d, from, by, step || q, k.dtype, !k.trans_b);
    }
    te__wgmma_commit();
    te__wgmma_wait_1();
    if (step) te__hopper_free(g);
    te__hopper_advance(&g->at);
}
/* Stream-K: leave this warp's partial sums of a part of k for the owner of the tile, and count them as ready; and the
 * owner's side, which adds them in the order of the parts. */
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

/* Hand the next quarter over. An epilogue by couples needs two at once, which then lie in both boxes. */
TE_FN void te__hopper_leave_quarter(const uint32_t held[4][16], const int quarter, uint32_t boxes,
                                    te_hopper_barriers *bars, const te_hopper_kind k) {
    if (!k.couples.group || quarter % 2 == 0) te__hopper_leave(held[quarter], quarter, boxes, bars);
    if (k.couples.group && quarter % 2 == 0) te__hopper_leave(held[quarter + 1], quarter + 1, boxes, bars);
}
/* All tiles of a warpgroup. The tile before is handed over while this one is multiplied, a quarter at the beginning of
 * each quarter of the steps. */
TE_FN void te__hopper_multiply(const te_hopper *p, uint32_t ring, te_hopper_barriers *bars, const te_hopper_kind k) {
    const int warp = (int)threadIdx.x / 32 - 4;
    const uint32_t boxes = te__hopper_boxes(ring, 2 * warp);
    te_hopper_group g = te__hopper_group_of(ring, bars, k);
    te_hopper_work w;
    uint32_t held[4][16]; /* of the tile before, if there is one */
    float d[128];
    int have = 0;
    for (int j = 0; te__hopper_work(&w, p, j); j++) {
        const int steps = w.last - w.first;
        int next = have ? 0 : 4; /* the quarter of the tile before that leaves next */
#pragma unroll 1
        for (int s = 0; s < steps; s++) { /* one copy of the step: eight took half of the time to compile */
            te__hopper_step(d, &g, s, k);
            if (s < steps * next / 4) continue;
            TE_UNROLL for (int quarter = 0; quarter < 4; quarter++)
                if (quarter == next) te__hopper_leave_quarter(held, quarter, boxes, bars, k);
            next++;
        }
        te__wgmma_wait_0();
        te__hopper_free(&g);
        asm volatile("" : "+r"(j)); /* found again rather than kept: there are no registers for it */
        (void)te__hopper_work(&w, p, j);
        have = w.part <= 0;
        if (!have) {
            te__hopper_give(p, d, &w);
            TE_UNROLL for (int i = 0; i < 64; i++) held[i / 16][i % 16] = 0; /* nothing: so that the compiler need not
                                                                                keep it */
            continue;
        }
        if (w.part == 0) te__hopper_collect(p, d, &w);
        te__hopper_scale(d, te_is_fp8(k.a) ? bars->alpha : p->alpha);
        TE_UNROLL for (int i = 0; i < 4; i++) te__hopper_pack(held[i], d, i, k.dtype);
    }
    te__hopper_ring_is_read();
    TE_UNROLL for (int i = 0; have && i < 4; i++) te__hopper_leave_last(held[i], i, ring);
}
/* The same with registers for half of the tile before (te_hopper_kind.half): its first half is handed over between two
 * tiles, its second half after 3/8 and 5/8 of the steps, when the epilogue should have taken one and two quarters. */
TE_FN void te__hopper_multiply_half(const te_hopper *p, uint32_t ring, te_hopper_barriers *bars,
                                    const te_hopper_kind k) {
    const int warp = (int)threadIdx.x / 32 - 4;
    const uint32_t boxes = te__hopper_boxes(ring, 2 * warp);
    te_hopper_group g = te__hopper_group_of(ring, bars, k);
    te_hopper_work w;
    uint32_t held[2][16]; /* the third and fourth quarter of the tile before, if there is one */
    float d[128];
    int have = 0, more = te__hopper_work(&w, p, 0);
    for (int j = 1; more; j++) {
        const int steps = w.last - w.first;
        const te_hopper_work now = w;
#pragma unroll 1
        for (int s = 0; s < steps; s++) { /* one copy of the step: six took a third of the time to compile */
            te__hopper_step(d, &g, s, k);
            if (have && s == steps * 3 / 8) te__hopper_leave(held[0], 2, boxes, bars);
            if (have && s == steps * 5 / 8) te__hopper_leave(held[1], 3, boxes, bars);
        }
        more = te__hopper_work(&w, p, j); /* here, while the tensor cores work */
        te__wgmma_wait_0();
        te__hopper_free(&g);
        have = now.part <= 0;
        if (!have) {
            te__hopper_give(p, d, &now);
            TE_UNROLL for (int i = 0; i < 32; i++) held[i / 16][i % 16] = 0;
            continue;
        }
        if (now.part == 0) te__hopper_collect(p, d, &now);
        te__hopper_scale(d, te_is_fp8(k.a) ? bars->alpha : p->alpha);
        if (!more) te__hopper_ring_is_read();
        TE_UNROLL for (int quarter = 0; quarter < 2; quarter++) {
            uint32_t first[16];
            te__hopper_pack(first, d, quarter, k.dtype);
            if (more) te__hopper_leave(first, quarter, boxes, bars);
            else te__hopper_leave_last(first, quarter, ring);
        }
        TE_UNROLL for (int i = 0; i < 2; i++) te__hopper_pack(held[i], d, 2 + i, k.dtype);
    }
    TE_UNROLL for (int i = 0; have && i < 2; i++) te__hopper_leave_last(held[i], 2 + i, ring);
}
#endif

#endif
