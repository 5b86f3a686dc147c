/* gemm_hopper_multiply.h -- the two warpgroups of gemm_hopper.h that multiply: 64 x 256 sums each in registers, and how
 * these get to the warps of the epilogue.
 *
 * Beside the sums a warpgroup has room for all of the tile before, packed to 16 bits; or for half of it, which leaves
 * the warps of the epilogue 136 registers instead of 72 (te_hopper_kind.half). The first half of its columns then
 * leaves before it goes on with the next tile. Its boxes are free by then if the epilogue keeps up. What the tensor
 * cores wait for is 32 KB to shared memory, 256 of some 35000 cycles of a tile at k of 4096 in FP8.
 *
 * The reckoning of such a tile, with linear_bias_gelu in training for a row, from its machine code. Tensor cores: 32768
 * cycles, 26 us at the rate that the power limit leaves. A warp of the epilogue has 22 times two rows, eight elements a
 * lane of each, and runs 250 instructions for them, 32 of them of the unit that has 4 lanes (256 cycles); 355 in
 * linear_gelu_bias, backward. A sampling profiler says what they wait for: they issue 0.3 of the time and are held back
 * by the dispatcher as long, presumably because the tensor cores use the same ports of the registers. With one
 * row at a time, and branches between its parts, a warp took 1250 cycles for eight elements a lane and fell behind; two
 * rows take 900. More warps have no registers: a kernel of 512 threads has 128 each, and wgmma's sums take 154.
 * What is scarce is the path between shared memory, L1 and the rest: 128 bytes a cycle, and operands that come (1.5 MB)
 * and that are read (2.5 MB) take all of them. The epilogue adds 64 KB of sums there and 64 back, 32 and 32 for the
 * transpose, and stores of 64 + 32 + 32: 2500 cycles, 8%; in inference 1300, 4%. And the L2 gives each multiprocessor
 * 1 MB of operands a tile, 5 TB/s in all, near the most that it has; stores add 13%.
 */
/* target: cuda */
#ifndef TE_GEMM_HOPPER_MULTIPLY_H
#define TE_GEMM_HOPPER_MULTIPLY_H

#include "gemm_hopper_tiles.h" /* te_hopper, te__hopper_work */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- from one group of warps to the other ------------------------------------------------------------------------ */

/* Of 16 rows of 128 bytes, at a multiple of 1024, the 16 bytes `piece` of row `row`: permuted as the copy engine has
 * them. */
TE_FN uint32_t te__hopper_piece(uint32_t box, int row, int piece) {
    return box + (uint32_t)(row * 128 + ((piece ^ (row & 7)) << 4));
}

TE_FN void te__hopper_scale(float d[128], float alpha) {
    if (alpha != 1.0f) TE_UNROLL for (int i = 0; i < 128; i++) d[i] *= alpha;
}
/* A quarter of a warp's sums as 16 bits. A lane's d[4 j + 2 h + e] is row lane / 4 + 8 h, column 8 j + 2 (lane % 4) +
 * e, of its warp's 16 x 256. */
TE_FN void te__hopper_pack(uint32_t held[16], const float d[128], const int quarter, const te_dtype dtype) {
    TE_UNROLL
    for (int i = 0; i < 16; i++)
        held[i] = te_pair_of_floats(d[32 * quarter + 2 * i], d[32 * quarter + 2 * i + 1], dtype);
}
/* A quarter of what a warp holds, 64 columns, goes to the warps of the epilogue. boxes: of this warp, two. */
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
/* Of a block's last tile all four quarters, to where the ring was. That is free once both warpgroups have read all that
 * came. */
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
 * Adding to them is all that a step does, some 60 instructions of which eight warps run each 64 times a tile. */
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
/* The stage before the one at hand is no longer read. */
TE_FN void te__hopper_free(const te_hopper_group *g) {
    const int before = g->at.stage ? g->at.stage - 1 : TE_STAGES - 1, lane = (int)threadIdx.x % 32;
    const uint32_t empty = g->bars + (uint32_t)offsetof(te_hopper_barriers, empty);
    if (lane < TE_CLUSTER) te__barrier_arrive_at(empty + 8 * before, lane);
}
/* One step in k of a warpgroup's tile. The step before it is then done. */
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

/* The same, or of couples, which are in both boxes, two quarters at a time. */
TE_FN void te__hopper_leave_quarter(const uint32_t held[4][16], const int quarter, uint32_t boxes,
                                    te_hopper_barriers *bars, const te_hopper_kind k) {
    if (!k.couples.group || quarter % 2 == 0) te__hopper_leave(held[quarter], quarter, boxes, bars);
    if (k.couples.group && quarter % 2 == 0) te__hopper_leave(held[quarter + 1], quarter + 1, boxes, bars);
}
/* A warpgroup's tiles. */
TE_FN void te__hopper_multiply(const te_hopper *p, uint32_t ring, te_hopper_barriers *bars, const te_hopper_kind k) {
    const int warp = (int)threadIdx.x / 32 - 4;
    const uint32_t boxes = ring + TE_STAGES * TE_HOPPER_STAGE + warp * 2 * TE_HOPPER_BOX;
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
    if (k.scatters) {
        TE_UNROLL for (int i = 0; have && i < 4; i++) te__hopper_leave(held[i], i, boxes, bars);
        return;
    }
    te__hopper_ring_is_read();
    TE_UNROLL for (int i = 0; have && i < 4; i++) te__hopper_leave_last(held[i], i, ring);
}
/* The same with half of that. The second half of the tile before leaves when the epilogue should have taken one and two
 * quarters: after 3/8 and 5/8 of the steps. */
TE_FN void te__hopper_multiply_half(const te_hopper *p, uint32_t ring, te_hopper_barriers *bars,
                                    const te_hopper_kind k) {
    const int warp = (int)threadIdx.x / 32 - 4;
    const uint32_t boxes = ring + TE_STAGES * TE_HOPPER_STAGE + warp * 2 * TE_HOPPER_BOX;
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
