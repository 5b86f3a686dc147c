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
 * In FP8 a tile takes half the time, and the epilogue of a row of a list has more to do: FP8, its transpose, an amax.
 * With 72 registers its eight elements go through gelu one after the other, a chain of 110 cycles each; with 136 beside
 * each other. So a row in FP8 has those (gemm_hopper_multiply.h), and without branches between them sixteen go through
 * side by side (te__hopper_pairs). Two warpgroups that take turns, each with a tile of
 * its own and its epilogue, would need no third group, but they share no operand: a warpgroup's tile of 64 x 256 takes
 * 40 KB of operands for 512 cycles of tensor cores, which then read 40 KB: 160 bytes a cycle of shared memory, which
 * has 128. So does one of 128 x 128, and the tile of 128 x 256 takes 128.
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

#include "../core/amax.h"         /* te_amax_raise */
#include "../fp8/scales.h"        /* te_scale_keep */
#include "gemm_hopper_multiply.h" /* te__hopper_multiply */
#include "gemm_hopper_ranks.h"    /* te__scatter_begin */
#include "gemm_hopper_turn.h"     /* te__hopper_turn */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- the epilogue of a tile -------------------------------------------------------------------------------------- */

/* A part of a tile's 64 columns is four rows: the row of this lane. */
TE_FN int te__hopper_row(int part, int lane) { return part * 4 + lane / 8; }
/* What the epilogue reads comes to the L2 before (te__hopper_fetch), and to registers while the elements before are
 * worked on: if they waited for memory each time, three warps would fall behind the tensor cores. */
enum { TE_HOPPER_AHEAD = 8 }; /* words of 32 bits: eight elements, and eight of the second half */
TE_FN const uint16_t *te__hopper_place(const te_hopper *p, int row, int col, const te_hopper_kind k) {
    return (const uint16_t *)p->ahead + ((int64_t)row << k.twice) * p->n + col;
}
TE_FN void te__hopper_ahead(const te_hopper *p, uint32_t ahead[TE_HOPPER_AHEAD], int row, int col,
                            const te_hopper_kind k) {
    if (!p->ahead || row >= p->m || col >= p->n) return;
    const uint16_t *from = te__hopper_place(p, row, col, k);
    if (k.scatters) te__load_own(ahead, from); /* what has come while this kernel runs */
    else te__load_now(ahead, from);
    if (k.twice) te__load_now(ahead + 4, from + p->n);
}
/* Where the eight elements of this lane lie. boxes: of the first warp that left its rows here. */
TE_FN uint32_t te__hopper_part(uint32_t boxes, int row, int lane) {
    const uint32_t r = (uint32_t)row;
    return te__hopper_piece(boxes + r / 16 * 2 * TE_HOPPER_BOX, (int)(r % 16), lane % 8);
}
/* 64 columns of a tile that lies within D, by an epilogue without branches (te_usual). A warp is alone on its
 * scheduler, so nothing else runs while it waits for a result: a lane works on two rows side by side. next: what the
 * epilogue reads of the first two; reads: it reads at all. */
TE_FN void te__hopper_pairs(const te_hopper *p, uint32_t boxes, int y, int col, te_epilogue_fn epilogue,
                            const void *arg, te_epilogue_lane *own, uint32_t next[2][TE_HOPPER_AHEAD], int turns,
                            const te_usual usual, const te_hopper_kind k) {
    const int warp = (int)threadIdx.x / 32 - 1, lane = (int)threadIdx.x % 32;
    own->usual = usual;
#pragma unroll 1
    for (int pair = warp; pair < 16; pair += 3) {
        uint32_t w[2][4], ahead[2][TE_HOPPER_AHEAD], fp8[2][2];
        TE_UNROLL for (int i = 0; i < 2; i++) {
            const int row = te__hopper_row(2 * pair + i, lane);
            te__load_piece(w[i], te__hopper_part(boxes, row, lane));
            TE_UNROLL for (int e = 0; e < TE_HOPPER_AHEAD; e++) ahead[i][e] = next[i][e];
        }
        const int then = pair + 3 < 16 ? pair + 3 : pair; /* the last one loads again what it has */
        TE_UNROLL for (int i = 0; k.reads && i < 2; i++)
            te__load_now(next[i], te__hopper_place(p, y + te__hopper_row(2 * then + i, lane), col, k));
        TE_UNROLL for (int i = 0; i < 2; i++) {
            epilogue(arg, w[i], ahead[i], y + te__hopper_row(2 * pair + i, lane), col, own);
            fp8[i][0] = own->fp8[0], fp8[i][1] = own->fp8[1];
        }
        TE_UNROLL for (int i = 0; turns && i < 2; i++)
            te__hopper_turn_leave(boxes, te__hopper_row(2 * pair + i, lane), lane, fp8[i]);
    }
    own->usual = TE_USUAL_not;
}
/* Behind a warp's last tile. */
TE_FN void te__hopper_epilogue_end(const te_hopper *p, const te_epilogue_lane *own) {
    if (p->amax) {
        int group;
        te_amax_raise(p->amax, own->most, te_lanes_here(32, &group));
    }
    if (p->inverse && blockIdx.x == 0 && threadIdx.x == 32) te_scale_keep(p->inverse, *p->scale);
}
/* Three warps: the epilogue, eight elements a lane at a time. */
TE_FN void te__hopper_epilogue(const te_hopper *p, uint32_t ring, te_hopper_barriers *bars, te_epilogue_fn epilogue,
                               te_usual usual, const void *arg, const te_hopper_kind k) {
    const int warp = (int)threadIdx.x / 32 - 1, lane = (int)threadIdx.x % 32, turns = k.turns && p->turned;
    te_hopper_work w;
    te_epilogue_lane own;
    own.most = 0, own.usual = TE_USUAL_not;
    for (int j = 0; te__hopper_work(&w, p, j); j++) {
        const int x = w.x, y = w.y;
        const int whole = k.turns && usual != TE_USUAL_not && y + TE_TILE_M <= p->m && x + TE_TILE_N <= p->n;
        if (w.part > 0) continue;
        const int reads = !k.scatters || te__scatter_begin((const te_scatter *)arg, x, y, warp);
        if (k.scatters && reads) te__scatter_fetch((const te_scatter *)arg, x, y);
#pragma unroll 1
        for (int quarter = 0; quarter < 4; quarter++) {
            const int box = quarter % 2, col = x + quarter * 64 + lane % 8 * 8;
            const uint32_t boxes = ring + TE_STAGES * TE_HOPPER_STAGE + box * TE_HOPPER_BOX;
            uint32_t next[2][TE_HOPPER_AHEAD] = {{0}, {0}};
            TE_UNROLL for (int i = 0; i < 2; i++)
                if (reads && (i == 0 || whole))
                    te__hopper_ahead(p, next[i], y + te__hopper_row(whole ? 2 * warp + i : warp, lane), col, k);
            te__barrier_wait(te__shared_address(&bars->done[box]), quarter / 2);
            if (k.scatters && reads && quarter < 3)
                te__scatter_fetch((const te_scatter *)arg, x + 64 * (quarter + 1), y);
            TE_UNROLL for (int e = 0; e < 8; e++) own.sum[e] = 0;
            if (whole && usual == TE_USUAL_all)
                te__hopper_pairs(p, boxes, y, col, epilogue, arg, &own, next, turns, TE_USUAL_all, k);
            if (whole && usual == TE_USUAL_result)
                te__hopper_pairs(p, boxes, y, col, epilogue, arg, &own, next, turns, TE_USUAL_result, k);
#pragma unroll 1
            for (int part = whole ? 32 : warp; part < 32; part += 3) {
                const int row = te__hopper_row(part, lane);
                uint32_t w[4], ahead[TE_HOPPER_AHEAD];
                TE_UNROLL for (int e = 0; e < TE_HOPPER_AHEAD; e++) ahead[e] = next[0][e];
                if (part + 3 < 32 && reads) te__hopper_ahead(p, next[0], y + te__hopper_row(part + 3, lane), col, k);
                te__load_piece(w, te__hopper_part(boxes, row, lane));
                own.fp8[0] = own.fp8[1] = 0;
                if (y + row < p->m && col < p->n) epilogue(arg, w, ahead, y + row, col, &own);
                if (turns) te__hopper_turn_leave(boxes, row, lane, own.fp8);
            }
            if (turns) te__hopper_turn(p, boxes, y, x + quarter * 64, warp, lane, box);
            __syncwarp();
            if (lane == 0) te__barrier_arrive(te__shared_address(&bars->taken[box]));
            if (!p->sums) continue;
            TE_UNROLL
            for (int e = 0; e < 8; e++)
                own.sum[e] += __shfl_xor_sync(~0u, own.sum[e], 8), own.sum[e] += __shfl_xor_sync(~0u, own.sum[e], 16);
            if (lane < 8 && y < p->m && col < p->n)
                te_store8(p->sums, ((int64_t)y / TE_TILE_M * 3 + warp) * p->n + col, own.sum, 8, 1, TE_f32);
        }
        if (k.scatters && !reads) te__scatter_end((const te_scatter *)arg, x, y, warp);
    }
    te__hopper_epilogue_end(p, &own);
}

/* The same by couples: each lane has one of a row's eight in 128 columns. */
TE_FN void te__hopper_epilogue_couples(const te_hopper *p, uint32_t ring, te_hopper_barriers *bars,
                                       te_couple_fn epilogue, const void *arg, const te_hopper_kind k) {
    const int warp = (int)threadIdx.x / 32 - 1, lane = (int)threadIdx.x % 32;
    const int couples = k.couples.group / 2, i = lane % 8 % couples, near = i < k.couples.apart;
    const int first = lane % 8 / couples * k.couples.group + i + (near ? 0 : k.couples.apart);
    const int second = first + (near ? k.couples.apart : couples - k.couples.apart);
    const uint32_t boxes = ring + TE_STAGES * TE_HOPPER_STAGE;
    const int end = k.couples.halves ? p->n / 2 : p->n;
    te_hopper_work w;
    te_epilogue_lane own;
    own.most = 0;
    for (int j = 0; te__hopper_work(&w, p, j); j++) {
        const int x = w.x, y = w.y;
        if (w.part > 0) continue;
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            const int col = te__hopper_columns(p, x, 2 * half + first / 8, k) + first % 8 * 8;
            const int other = te__hopper_columns(p, x, 2 * half + second / 8, k) + second % 8 * 8;
            TE_UNROLL for (int b = 0; b < 2; b++) te__barrier_wait(te__shared_address(&bars->done[b]), half);
#pragma unroll 1
            for (int part = warp; part < 32; part += 3) {
                const int row = te__hopper_row(part, lane);
                const uint32_t rows = boxes + part / 4 * 2 * TE_HOPPER_BOX;
                uint32_t a[4], b[4];
                te__load_piece(a, te__hopper_piece(rows + first / 8 * TE_HOPPER_BOX, row % 16, first % 8));
                te__load_piece(b, te__hopper_piece(rows + second / 8 * TE_HOPPER_BOX, row % 16, second % 8));
                if (y + row < p->m && col < end) epilogue(arg, a, b, y + row, col, other, &own);
            }
            __syncwarp();
            TE_UNROLL for (int b = 0; b < 2; b++)
                if (lane == 0) te__barrier_arrive(te__shared_address(&bars->taken[b]));
        }
    }
    if (k.a != k.dtype) te__hopper_epilogue_end(p, &own); /* of operands in 16 bits nobody wants an amax */
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
                te__barrier_init(te__shared_address(&bars->taken[b]), 3);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x == 32) te__tma_ready(&p->a), te__tma_ready(&p->b);
    te__cluster_sync();
    te_kernel_begin();
    if (threadIdx.x < 128) {
        if (k.half) asm volatile("setmaxnreg.dec.sync.aligned.u32 136;");
        else asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
        if (threadIdx.x == 0)
            te__hopper_load(p, ring, bars, k);
        else if (threadIdx.x >= 32 && k.couples.group) te__hopper_epilogue_couples(p, ring, bars, couple, arg, k);
        else if (threadIdx.x >= 32) te__hopper_epilogue(p, ring, bars, epilogue, usual, arg, k);
    } else if (k.half) { /* registers in all just what the block was launched with, 168 each */
        asm volatile("setmaxnreg.inc.sync.aligned.u32 184;");
        te__hopper_multiply_half(p, ring, bars, k);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
        te__hopper_multiply(p, ring, bars, k);
    }
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
        const te_hopper_kind kind = {dtype, dtype_a, dtype_b, trans_b, 0, 0, 0, 0, {0, 0, 0, 0}, 0};                \
        if (exists) te_hopper_body((const te_hopper *)&p, &bars, epilogue, 0, TE_USUAL_not, &p, kind);              \
    }
/* A row of a list in FP8, whose epilogue may want te_hopper.turned, and has the work of both other kinds in half the
 * time; or where `halves` is 1 one by the couples that the two halves of D make. usual: a te_usual, of p; reads: such
 * an epilogue reads te_hopper.ahead. */
#define TE_HOPPER_KERNEL_ROW_FP8(name, type, dtype, dtype_a, epilogue, couple, halves, usual, reads, exists)        \
    TE_UNUSED static __global__ void __launch_bounds__(TE_HOPPER_THREADS, 1) name(const __grid_constant__ type p) { \
        __shared__ te_hopper_barriers bars;                                                                         \
        const te_hopper_kind kind = {dtype, dtype_a, TE_e4m3, 1, !(halves), 1, reads, 0,                            \
                                     {(halves) ? 16 : 0, (halves) ? 8 : 0, 0, halves}, 0};                          \
        if (exists) te_hopper_body((const te_hopper *)&p, &bars, epilogue, couple, usual, &p, kind);                \
    }
/* A row of a list in 16 bits: with epilogue, or where `halves` is 1 by the couples that the two halves of D make (B is
 * then stored [n, k]); twice: te_hopper.ahead is [m, 2 n]. */
#define TE_HOPPER_KERNEL_ROW(name, type, dtype, trans_b, epilogue, couple, halves, twice, exists)                   \
    TE_UNUSED static __global__ void __launch_bounds__(TE_HOPPER_THREADS, 1) name(const __grid_constant__ type p) { \
        __shared__ te_hopper_barriers bars;                                                                         \
        const te_hopper_kind kind = {dtype, dtype, dtype, trans_b, 0, 0, 0, twice,                                  \
                                     {(halves) ? 16 : 0, (halves) ? 8 : 0, 0, halves}, 0};                          \
        if (exists) te_hopper_body((const te_hopper *)&p, &bars, epilogue, couple, TE_USUAL_not, &p, kind);         \
    }
/* The product whose rows go to their ranks, of a te_scatter; trans_b: B is stored [n, k], as it is in FP8. */
#define TE_HOPPER_KERNEL_SCATTER(name, dtype, dtype_a, dtype_b, trans_b, epilogue, exists)                        \
    TE_UNUSED static __global__ void __launch_bounds__(TE_HOPPER_THREADS, 1)                                      \
    name(const __grid_constant__ te_scatter p) {                                                                  \
        __shared__ te_hopper_barriers bars;                                                                       \
        const te_hopper_kind kind = {dtype, dtype_a, dtype_b, trans_b, 0, 0, 0, 0, {0, 0, 0}, 1};                 \
        if (exists) te_hopper_body((const te_hopper *)&p, &bars, epilogue, 0, TE_USUAL_not, &p, kind);            \
    }
/* The product of a linear, B stored [n, k], with an epilogue by couples: a te_couple_fn. group, apart, crossed: see
 * te_hopper_couples. */
#define TE_HOPPER_KERNEL_COUPLES(name, type, dtype, group, apart, crossed, couple, exists)                          \
    TE_UNUSED static __global__ void __launch_bounds__(TE_HOPPER_THREADS, 1) name(const __grid_constant__ type p) { \
        __shared__ te_hopper_barriers bars;                                                                         \
        const te_hopper_kind kind = {dtype, dtype, dtype, 1, 0, 0, 0, 0, {group, apart, crossed}, 0};               \
        if (exists) te_hopper_body((const te_hopper *)&p, &bars, 0, couple, TE_USUAL_not, &p, kind);                \
    }

#endif
