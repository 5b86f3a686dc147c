/* gemm_hopper.h -- a matrix product of the library's own for Hopper (compute capability 9.0), whose epilogue costs
 * next to nothing: D = alpha A op(B), rounded to 16 bits, and then any function of eight elements of D and their place
 * (te_epilogue_fn), which stores what is wanted: the result of an activation, FP8, its transpose, sums over rows.
 *
 * The kernel is persistent, and its warps are specialised. A block of 384 threads computes one tile of 128 x 256 of D
 * after the other:
 *
 *   loader       one thread of warp 0: TMA copies A and B, 64 of k at a time, into a ring of four stages. The two
 *                blocks of a cluster lie above each other, need the same part of B, and load half of it each
 *                (multicast).
 *   multipliers  warps 4 to 11, two warpgroups: each accumulates 64 x 256 of the tile in registers (wgmma, f32).
 *   epilogue     warps 1 to 3: call the te_epilogue_fn. What it reads, a saved input or a residual, is prefetched.
 *
 * When a tile is done the multipliers round their sums to 16 bits and keep those in registers. While the tensor cores
 * work on the next tile they hand them over, a quarter (64 columns) at a time, through shared memory
 * (gemm_hopper_multiply.h). So the epilogue of one tile runs beside the product of the next. Behind a block's last
 * tile nothing is left to multiply, and the multipliers run the epilogue with the other three warps
 * (gemm_hopper_epilogue.h).
 *
 * The last round: tiles rarely divide evenly among the clusters; 2048 tiles of clusters on 66 are 31 rounds and two.
 * Clusters that have no tile in the last round compute parts of k of those that are left (Stream-K, Osama et al.
 * 2023): they leave partial sums in memory, and the tile's owner adds them, in a fixed order. At 8192 x 16384 x 4096
 * that takes 0.99 of the time, not the 0.97 that the rounds promise, because of the power limit. The order of the sums
 * over k depends on sizes and the number of multiprocessors alone, so the same inputs give the same bits.
 *
 * FP8: a tile takes half the time, and the epilogue of a list's row has more to do. With 72 registers its eight
 * elements go through gelu one after the other, each a dependent chain of 110 cycles; with 136 they overlap. So the
 * epilogue of a row in FP8 has 136 (te_hopper_kind.half), and where it has no branches a lane works on sixteen
 * elements at a time (te__hopper_pairs).
 *
 * Measured on an H200, which its power limits to about 690 TFLOP/s. With a bare store for an epilogue: 0.98 to 1.03 of
 * the time of cuBLASLt's fastest candidate. With bias and gelu, 8192 x 16384 x 4096: 1.04 of that bare product, with
 * the pre-activation stored as well 1.06; cuBLASLt's own epilogues, which overlap with nothing, take 1.07 to 1.11 and
 * 1.12. The gradient through gelu with that of the bias, same shape: 1671 us; 1795 without the prefetch of what it
 * reads. Short products, us with three warps behind the last tile and with all: linear_bias_add 1024 x 4096 x 4096 66
 * and 53, 2048 rows 111 and 99, 4096 rows 201 and 193; in FP8 linear_bias_gelu 1024 x 16384 x 4096 117 and 108.
 *
 * What limits a product of many rounds is energy. At 8192 x 6144 x 4096 the tensor cores are busy 96% of the time from
 * the first step to the last, at a clock of 1.32 GHz, and cuBLASLt is 5% faster. Of 648 us, the loads of A and B
 * account for 107 (A alone 50, B alone 70) and the epilogue for 26: the product took so much less without them. Idle
 * warps draw little: the multipliers' help with the last tile leaves 8192 x 16384 x 4096 as it is (1.001, in FP8
 * 1.002).
 *
 * What did not pay: the epilogue in the multipliers themselves (1.05 to 1.10: the tensor cores wait for whatever these
 * do between two steps). A whole tile handed over at once, beside a ring of three stages (2 us a tile). Two warpgroups
 * with a tile of their own each, which take turns and need no third group: they share no operand, so a tile of 64 x
 * 256 or 128 x 128 moves 160 bytes a cycle through shared memory, which has 128; that of 128 x 256 moves 128. The
 * gradient of a weight by this kernel, both operands stored across k, sums in f32 (1.00 to 1.06, accumulating 1.02 to
 * 1.08).
 */
/* target: cuda */
#ifndef TE_GEMM_HOPPER_H
#define TE_GEMM_HOPPER_H

#include "gemm_hopper_epilogue.h" /* te__hopper_epilogue */
#include "gemm_hopper_multiply.h" /* te__hopper_multiply */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* What the epilogue has. The multipliers give the rest of theirs back before they join it. */
TE_FN void te__hopper_few_registers(const te_hopper_kind k) {
    if (k.half) asm volatile("setmaxnreg.dec.sync.aligned.u32 136;");
    else asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
}
/* With one epilogue, that by couples where the kind has them. */
TE_FN void te_hopper_body(const te_hopper *p, te_hopper_barriers *bars, te_epilogue_fn epilogue, te_couple_fn couple,
                          te_usual usual, const void *arg, const te_hopper_kind k) {
    extern __shared__ char te_dynamic[];
    const uint32_t ring = (te__shared_address(te_dynamic) + 1023) & ~1023u;
    if (threadIdx.x == 0) {
        TE_UNROLL for (int s = 0; s < TE_STAGES; s++)
            te__barrier_init(te__shared_address(&bars->full[s]), 1),
                te__barrier_init(te__shared_address(&bars->empty[s]), 8 * TE_CLUSTER);
        TE_UNROLL
        for (int b = 0; b < 2; b++)
            te__barrier_init(te__shared_address(&bars->done[b]), 8),
                te__barrier_init(te__shared_address(&bars->taken[b]), TE_HOPPER_FEW);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x == 32) te__tma_ready(&p->a), te__tma_ready(&p->b);
    te__cluster_sync();
    te_kernel_begin();
    if (threadIdx.x < 128) {
        te__hopper_few_registers(k);
        if (threadIdx.x == 0) te__hopper_load(p, ring, bars, k);
    } else if (k.half) { /* registers in all just what the block was launched with, 168 each */
        asm volatile("setmaxnreg.inc.sync.aligned.u32 184;");
        te__hopper_multiply_half(p, ring, bars, k);
        te__hopper_few_registers(k);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
        te__hopper_multiply(p, ring, bars, k);
        te__hopper_few_registers(k);
    }
    if (threadIdx.x >= 32 && k.couples.group) te__hopper_epilogue_couples(p, ring, bars, couple, arg, k);
    else if (threadIdx.x >= 32) te__hopper_epilogue(p, ring, bars, epilogue, usual, arg, k);
    __syncwarp();
    te__cluster_sync(); /* nobody leaves while the other may still write into this block's shared memory */
}
#else
TE_FN void te_hopper_body(const te_hopper *p, te_hopper_barriers *bars, te_epilogue_fn epilogue, te_couple_fn couple,
                          te_usual usual, const void *arg, const te_hopper_kind k) {
    (void)p, (void)bars, (void)epilogue, (void)couple, (void)usual, (void)arg, (void)k;
}
#endif

/* `type` begins with a te_hopper; epilogue: a te_epilogue_fn that is called with the `type`. exists: 0 leaves the
 * kernel empty. */
#define TE_HOPPER_KERNEL(name, type, dtype, trans_b, epilogue, exists)                                              \
    TE_HOPPER_KERNEL_OF(name, type, dtype, dtype, dtype, trans_b, epilogue, exists)
/* The same with formats for A and B, each e4m3 or e5m2; trans_b is then 1. */
#define TE_HOPPER_KERNEL_OF(name, type, dtype, dtype_a, dtype_b, trans_b, epilogue, exists)                         \
    TE_UNUSED static __global__ void __launch_bounds__(TE_HOPPER_THREADS, 1) name(const __grid_constant__ type p) { \
        __shared__ te_hopper_barriers bars;                                                                         \
        const te_hopper_kind kind = {dtype, dtype_a, dtype_b, trans_b, 0, 0, 0, 0, {0, 0, 0, 0}, 0, 0};             \
        if (exists) te_hopper_body((const te_hopper *)&p, &bars, epilogue, 0, TE_USUAL_not, &p, kind);              \
    }
/* A row of a list in FP8, whose epilogue may want te_hopper.turned, and has the work of both other kinds in half the
 * time; or where `halves` is 1 one by the couples that the two halves of D make. usual: a te_usual, of p; reads: such
 * an epilogue reads te_hopper.ahead; sums: te_hopper.sums may be wanted. */
#define TE_HOPPER_KERNEL_ROW_FP8(name, type, dtype, dtype_a, epilogue, couple, halves, usual, reads, sums, exists)  \
    TE_UNUSED static __global__ void __launch_bounds__(TE_HOPPER_THREADS, 1) name(const __grid_constant__ type p) { \
        __shared__ te_hopper_barriers bars;                                                                         \
        const te_hopper_kind kind = {dtype, dtype_a, TE_e4m3, 1, !(halves), 1, reads, 0,                            \
                                     {(halves) ? 16 : 0, (halves) ? 8 : 0, 0, halves}, 0, sums};                    \
        if (exists) te_hopper_body((const te_hopper *)&p, &bars, epilogue, couple, usual, &p, kind);                \
    }
/* A row of a list in 16 bits: with epilogue, or where `halves` is 1 by the couples that the two halves of D make (B is
 * then stored [n, k]); twice: te_hopper.ahead is [m, 2 n]; sums: te_hopper.sums may be wanted. */
#define TE_HOPPER_KERNEL_ROW(name, type, dtype, trans_b, epilogue, couple, halves, twice, sums, exists)             \
    TE_UNUSED static __global__ void __launch_bounds__(TE_HOPPER_THREADS, 1) name(const __grid_constant__ type p) { \
        __shared__ te_hopper_barriers bars;                                                                         \
        const te_hopper_kind kind = {dtype, dtype, dtype, trans_b, 0, 0, 0, twice,                                  \
                                     {(halves) ? 16 : 0, (halves) ? 8 : 0, 0, halves}, 0, sums};                    \
        if (exists) te_hopper_body((const te_hopper *)&p, &bars, epilogue, couple, TE_USUAL_not, &p, kind);         \
    }
/* The product whose rows go to their ranks, of a te_scatter; trans_b: B is stored [n, k], as it is in FP8. */
#define TE_HOPPER_KERNEL_SCATTER(name, dtype, dtype_a, dtype_b, trans_b, epilogue, exists)                        \
    TE_UNUSED static __global__ void __launch_bounds__(TE_HOPPER_THREADS, 1)                                      \
    name(const __grid_constant__ te_scatter p) {                                                                  \
        __shared__ te_hopper_barriers bars;                                                                       \
        const te_hopper_kind kind = {dtype, dtype_a, dtype_b, trans_b, 0, 0, 0, 0, {0, 0, 0}, 1, 0};              \
        if (exists) te_hopper_body((const te_hopper *)&p, &bars, epilogue, 0, TE_USUAL_not, &p, kind);            \
    }
/* The product of a linear, B stored [n, k], with an epilogue by couples: a te_couple_fn. group, apart, crossed: see
 * te_hopper_couples. */
#define TE_HOPPER_KERNEL_COUPLES(name, type, dtype, group, apart, crossed, couple, exists)                          \
    TE_UNUSED static __global__ void __launch_bounds__(TE_HOPPER_THREADS, 1) name(const __grid_constant__ type p) { \
        __shared__ te_hopper_barriers bars;                                                                         \
        const te_hopper_kind kind = {dtype, dtype, dtype, 1, 0, 0, 0, 0, {group, apart, crossed}, 0, 0};            \
        if (exists) te_hopper_body((const te_hopper *)&p, &bars, 0, couple, TE_USUAL_not, &p, kind);                \
    }

#endif
