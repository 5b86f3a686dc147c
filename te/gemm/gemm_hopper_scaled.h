/* gemm_hopper_scaled.h -- FP8 products of our own for compute capability 9.0 whose scales are of 1 x 128 and 128 x 128:
 * those of fp8_block. gemm_hopper_scaled_run.h says when they run.
 *
 * Two kinds. y = x w^T and its data gradient: A has a scale for each row and each 128 of k, B for each 128 x 128. A
 * weight's gradient: so has B, which is a scale for each column of D and each 128 of k.
 *
 * The tile, the cluster and the ring are those of gemm_hopper.h: 128 x 256 of D a block, two blocks of a cluster that
 * share the operand of 256 rows, four stages of 128 of k, and with each the scales. A warpgroup has 64 x 256 sums in
 * 128 registers, of a weight's gradient 256 x 64: then a thread needs the scales of 16 columns, not of 64. For each 128
 * of k the tensor cores give it four pieces of 64 x 64, a chain of four wgmma each, which it multiplies by their scales
 * and adds to the sums.
 *
 * A chain ends some hundred cycles after its last wgmma began, and what is done with it takes as long again. So a
 * warpgroup has two pieces, 32 registers each: while it adds one the next chain is already under way, and the tensor
 * cores always have work of both warpgroups. ptxas takes that for safe only where no chain is open at the end of a
 * loop, so four steps of 128 are one piece of code, at whose end the other warpgroup alone keeps the tensor cores busy.
 * A tile leaves its registers while the first two chains of the next are under way; that of a weight's gradient before
 * them, for want of registers.
 *
 * Reckoning, for 128 of k: tensor cores 1024 cycles. A warp multiplies and adds 128 times and has some 120 other
 * instructions; two warps share a scheduler: 500 of 1024 issue slots. Without loads, on an H200, such a step takes 1089
 * cycles; with them 1168 at k of 16384, 1246 at 4096. The L2 gives 32 KB in that time, 27 bytes a cycle for each
 * multiprocessor, about what gemm_hopper.h gets at most. With two operations an element, those of a weight's gradient,
 * a step takes 1290 cycles without any load.
 *
 * On an H200 at its power limit, in turns with cuBLASLt's fastest candidate, of its time: 0.95 to 0.98 (8192 x 12288 x
 * 4096: 746 and 761 us, 8192 x 4096 x 16384: 944 and 979); of a weight's gradient 0.92 to 1.00, by the chip and the
 * shape. A bias costs nothing: a lane has eight of a tile's columns' in registers while the tile comes about. The
 * product with scales of tensors (gemm_fp8.h) takes 0.86 to 0.93 of the first.
 *
 * What did not pay, in cycles for as much work as these 1246: a tile of 128 x 192 in halves of 64 x 96 (1220, but 1.00
 * to 1.08 of the time: more power); A from registers, which loads its rows once a step and not for each piece (shared
 * memory busy 0.59 of the time and not 0.92, but 1.02 to 1.04 of the time: no chain may be open while they are loaded);
 * one accumulator of 64 x 192, 64 x 128 by two or three warpgroups that take turns (1320, 1250, 1210); clusters of four
 * that share A as well (1360: 30 of them fit, 120 of 132 multiprocessors). For a weight's gradient all shapes in which
 * a thread needs the scales of more columns: 0.99 to 1.1 of cuBLASLt's time. A warp's load of 8 bytes a lane from
 * shared memory costs the tensor cores some two cycles.
 */
/* target: cuda */
#ifndef TE_GEMM_HOPPER_SCALED_H
#define TE_GEMM_HOPPER_SCALED_H

#include "gemm_hopper_scaled_multiply.h" /* te__fine_multiply */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* One lane of a warp, by which the compiler sees that operands of the copy engine are the same in all of them. */
TE_FN int te__fine_elected(void) {
    int is;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(is));
    return is;
}
TE_FN void te__fine_load(const te_fine *p, uint32_t ring, uint32_t full, const int columns) {
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
            te__barrier_expect(bar, TE_FINE_WIDE + (columns ? TE_TILE_N * 4 : 2 * 16));
            te__tma_load(a, &h->a, step * TE_TILE_K, w.y, bar, 0);
            te__tma_load(a + TE_HOPPER_A + share * 128, &h->b, step * TE_TILE_K, w.x + (int)share, bar,
                         (1 << TE_CLUSTER) - 1);
            te__tma_load(a + TE_FINE_NARROW, &p->narrow, w.y, step, bar, 0);
            if (columns) te__tma_load(a + TE_FINE_WIDE, &p->wide, w.x, step, bar, 0);
            else te__tma_load(a + TE_FINE_WIDE, &p->wide, step & ~3, w.x / 128, bar, 0); /* starts at 16 bytes */
        }
    }
}
TE_FN void te__fine_body(const te_fine *p, te_fine_barriers *bars, const int columns) {
    extern __shared__ char te_dynamic[];
    const uint32_t ring = (te__shared_address(te_dynamic) + 1023) & ~1023u, full = te__shared_address(bars->full);
    if (threadIdx.x == 0) {
        TE_UNROLL for (int i = 0; i < TE_STAGES; i++)
            te__barrier_init(full + 8 * i, 1), te__barrier_init(full + 8 * (TE_STAGES + i), 8 * TE_CLUSTER);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x == 32) te__tma_ready(&p->many.a), te__tma_ready(&p->many.b);
    te__cluster_sync();
    te_kernel_begin();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x < 32 && te__fine_elected()) te__fine_load(p, ring, full, columns);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        te__fine_multiply(p, ring, full, columns);
    }
    __syncwarp();
    te__cluster_sync(); /* nobody leaves while the other may still write into this block's shared memory */
}
#else
TE_FN void te__fine_body(const te_fine *p, te_fine_barriers *bars, const int columns) {
    (void)p, (void)bars, (void)columns;
}
#endif

/* Templates, so that who does not call for them has none. columns: a weight's gradient. */
template <int columns>
__global__ void __launch_bounds__(TE_HOPPER_THREADS, 1) te_fine_many(const __grid_constant__ te_fine p) {
    __shared__ te_fine_barriers bars;
    te__fine_body(&p, &bars, columns);
}

#endif
