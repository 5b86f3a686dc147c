/* gemm_narrow.h -- a matrix product of 9 to 128 rows on compute capability 9.0, y[m, n] = x[m, k] W[n, k]^T: what
 * decoding of a batch does. Its time is that of reading W once.
 *
 * The tensor cores (wgmma) take 64 rows of one operand and 8 to 256 columns of the other. Here W has the place of the
 * first and x that of the second, with 16, 32, 64 or 128 columns for its rows, so that most of them are in use. A block
 * has 128 rows of W, the columns of a tile of y; the two blocks of a cluster have 256, and each brings half of x for
 * both, because the L2 gives 5 to 6 TB/s, not much more than the 4.3 TB/s of memory. One thread brings W and x by the
 * copy engine (TMA) into a ring of 192 KB, two warpgroups multiply. In a pass the ring is filled with W while the
 * kernel ahead still runs, for a pass does not write its weights.
 *
 * A cluster takes tile after tile of all k. Where tiles are left for fewer clusters than there are, k of each of them
 * is shared out to several. They leave their sums in the workspace, and the last one adds all of them up in the order
 * of k, so the same inputs give the same bits, and no block waits for another. Each warp does that for its 16 columns
 * of y, and takes them through the epilogue of the row (linear_epilogue.h), eight elements at a time.
 *
 * In FP8, e4m3, the kernel is the same, with half as many bytes; scales of rows or of a tensor come in at the end. Sums
 * stay in the tensor cores, which keep 14 bits of them.
 *
 * Bytes: W once, 2 n k (FP8: n k); the floor is that over the rate of memory, 23.4 us at 4.3 TB/s for n 12288, k 4096.
 * x comes from the L2 once for 256 columns.
 *
 * Measured on an H200 in turns with cuBLASLt's fastest candidate, us at 16, 64 and 128 rows, and its: n 12288, k 4096
 * 33.5, 34.1, 35.5 and 28.8, 27.1, 28.9; n = k = 4096 13.6, 16.0, 19.1 and 12.8, 12.1, 13.3; n 16384, k 4096 36.2,
 * 37.3, 38.7 and 34.4, 35.7, 37.8; n 4096, k 16384 38.6, 41.8, 46.5 and 36.5, 38.2, 41.8. In FP8 with scales of rows,
 * 64 rows, the same shapes: 20.6, 12.4, 21.4, 25.7 and 19.7, 13.1, 24.0, 41.1. With four times the k, the bytes that
 * are added come at 3.7 to 4.0 TB/s. What is left does not depend on k: 5 us at 16 rows of n 4096 and 10 at 128, to
 * fill the ring and to share k out; and at n 12288 more than a quarter of the multiprocessors has no tile. In a list of
 * products of fp8_row with n = k = 4096, us a product with its cast at 16, 64 and 128 rows: 10.0, 12.7, 15.8; with a
 * fence of every lane on both sides of a hand-over, and scales loaded behind the sums, 11.0, 13.8, 17.0.
 *
 * What makes no difference: rings of 128 to 206 KB are within 2% of each other; clusters of one block, and the kernel
 * without x or without multiplication, within 3 to 6%. What did not pay: two blocks of 80 KB on a multiprocessor, so
 * that the next product begins sooner (1.1 to 1.6 of the time: the ring of each is too short); weights of the next
 * products brought to the L2 by attention and norms (each 12 MB cost 4 us: what prefetch instructions have brought is
 * read at 3.2 TB/s, what loads have at 6.3).
 *
 * A GPT block of 4096 columns in inference without cuBLASLt, us at 16, 64 and 128 rows: 127, 141, 163; with it 127,
 * 132, 144; with gemm_plain.h in its place 149, 167, 210. Under fp8_row 110 at 64 rows, by cuBLASLt 133.
 */
/* target: cuda */
#ifndef TE_GEMM_NARROW_H
#define TE_GEMM_NARROW_H

#include "../core/amax.h"       /* te_amax_raise */
#include "../core/wgmma_cuda.h" /* te__wgmma_columns */
#include "gemm_narrow_tiles.h"  /* te_narrow, te__narrow_load */
#include "gemm_types.h"         /* te_epilogue_fn, te_few_form */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- the product ------------------------------------------------------------------------------------------------- */

/* The stage is no longer read: both blocks wait for that, for each brings x into both. */
TE_FN void te__narrow_free(const te_narrow_barriers *bars, int stage) {
    const int lane = (int)threadIdx.x % 32;
    if (lane < TE_NARROW_CLUSTER) te__barrier_arrive_at(te__shared_address(&bars->empty[stage]), lane);
}
/* A warpgroup's 64 columns of y: a lane's d[4 j + 2 h + e] is column lane / 4 + 8 h of its warp's 16, row 8 j + 2 (lane
 * % 4) + e. */
TE_FN void te__narrow_multiply(float *d, uint32_t ring, te_narrow_barriers *bars, const te_narrow_work *w, int stages,
                               int *stage, int *phase, const te_dtype operands, const int width) {
    const int group = __shfl_sync(~0u, (int)threadIdx.x / 128, 0); /* the compiler sees that all lanes have the same */
    int before = 0;
#pragma unroll 1
    for (int s = w->first; s < w->last; s++) {
        const uint32_t at = ring + (uint32_t)(*stage * te__narrow_stage(width));
        const uint64_t a = te__matrix_at(at + group * (TE_NARROW_W / 2), 0), b = te__matrix_at(at + TE_NARROW_W, 0);
        te__barrier_wait(te__shared_address(&bars->full[*stage]), *phase);
        te__wgmma_fence();
        TE_UNROLL for (int q = 0; q < TE_NARROW_K / 16; q++)
            te__wgmma_columns(d, a + 2 * q, b + 2 * q, s > w->first || q, operands, width);
        te__wgmma_commit();
        te__wgmma_wait_1();
        if (s > w->first) te__narrow_free(bars, before);
        before = *stage;
        if (++*stage == stages) *stage = 0, *phase ^= 1;
    }
    te__wgmma_wait_0();
    te__narrow_free(bars, before);
}
/* Sums of all parts, eight rows of a lane's 16 columns at a time. */
TE_FN void te__narrow_add(float *d, const float4 *from, int parts, int64_t part, const int groups) {
    TE_UNROLL for (int j = 0; j < 4 * groups; j++) d[j] = 0;
#pragma unroll 2
    for (int i = 0; i < parts; i++, from += part)
        TE_UNROLL for (int j = 0; j < groups; j++) {
            const float4 v = __ldcg(from + j * 32 * TE_NARROW_WARPS);
            d[4 * j] += v.x, d[4 * j + 1] += v.y, d[4 * j + 2] += v.z, d[4 * j + 3] += v.w;
        }
}
/* Leave a warp's sums of its part of k. Returns whether it was the last; then d are the sums of all parts. */
TE_FN int te__narrow_share(const te_narrow *p, float *d, const te_narrow_work *w, const int width) {
    enum { EACH = 32 * TE_NARROW_WARPS };
    const int rank = (int)blockIdx.x % TE_NARROW_CLUSTER, thread = (int)threadIdx.x;
    const int64_t part = (int64_t)TE_NARROW_CLUSTER * (width / 8) * EACH;
    float4 *const all = (float4 *)p->given + w->left * p->parts * part + rank * (width / 8) * EACH + thread;
    uint32_t *ready = p->ready + (w->left * TE_NARROW_CLUSTER + rank) * TE_NARROW_WARPS + thread / 32, come = 0;
    TE_UNROLL for (int j = 0; j < width / 8; j++)
        __stcg(all + w->part * part + j * EACH, make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]));
    __syncwarp(); /* one lane releases what all have stored, and acquires for all */
    if (thread % 32 == 0)
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(come) : "l"(ready) : "memory");
    if (__shfl_sync(~0u, come, 0) != (uint32_t)w->parts - 1) return 0;
    if (thread % 32 == 0) *ready = 0; /* for the next product */
    __syncwarp();
    te__narrow_add(d, all, w->parts, part, width == 128 ? 8 : width / 8);
    if (width == 128) te__narrow_add(d + 32, all + 8 * EACH, w->parts, part, 8);
    return 1;
}

/* ---- the epilogue ------------------------------------------------------------------------------------------------ */

/* FP8: scales of this lane's columns of y, and of x as a whole. They are loaded ahead of the product. */
typedef struct te_narrow_scales { float w[2], x; } te_narrow_scales;
TE_FN te_narrow_scales te__narrow_scales_of(const te_narrow *p, int col, const te_few_form form) {
    const int lane = (int)threadIdx.x % 32;
    te_narrow_scales s = {{1.0f, 1.0f}, 1.0f};
    if (form == TE_FEW_SIXTEEN) return s;
    TE_UNROLL for (int h = 0; h < 2; h++) {
        const int at = col + lane / 4 + 8 * h;
        if (p->w_inverse && at < p->n) s.w[h] = p->w_inverse[p->by_row ? at : 0];
    }
    if (p->x_inverse && !p->by_row) s.x = *p->x_inverse;
    return s;
}
/* Times the scales of the row of x and of the row of W. */
TE_FN void te__narrow_scale(const te_narrow *p, float *d, te_narrow_scales s, const int width) {
    const int lane = (int)threadIdx.x % 32;
    TE_UNROLL for (int j = 0; j < width / 8; j++) {
        TE_UNROLL for (int e = 0; e < 2; e++) {
            const int row = 8 * j + 2 * (lane % 4) + e;
            const float of_x = p->by_row && p->x_inverse && row < p->m ? p->x_inverse[row] : s.x;
            d[4 * j + e] *= of_x * s.w[0], d[4 * j + 2 + e] *= of_x * s.w[1];
        }
    }
}
/* Of a warp's rows of 16 columns the eight `piece`: those of eight rows lie on different banks. */
TE_FN uint32_t te__narrow_piece(uint32_t box, int row, int piece) {
    return box + (uint32_t)(row * 32 + ((piece ^ (row / 4 & 1)) << 4));
}
/* A warp's 16 columns to its box. */
TE_FN void te__narrow_leave(const te_narrow *p, const float *d, uint32_t box, const te_dtype dtype, const int width) {
    const int lane = (int)threadIdx.x % 32;
    __syncwarp();
    TE_UNROLL for (int j = 0; j < width / 8; j++)
        te__store_turned(te__narrow_piece(box, 8 * j + lane % 8, lane / 8 % 2),
                         te_pair_of_floats(p->alpha * d[4 * j], p->alpha * d[4 * j + 1], dtype),
                         te_pair_of_floats(p->alpha * d[4 * j + 2], p->alpha * d[4 * j + 3], dtype));
    __syncwarp();
}
/* All of a work but its epilogue. Returns whether that is this warp's to do. */
TE_FN int te__narrow_product(const te_narrow *p, uint32_t ring, uint32_t box, te_narrow_barriers *bars,
                             const te_narrow_work *w, int *stage, int *phase, const te_few_form form,
                             const te_dtype dtype, const int width) {
    const te_narrow_scales scales = te__narrow_scales_of(p, w->col + (int)threadIdx.x / 32 * 16, form);
    float d[64];
    te__narrow_multiply(d, ring, bars, w, p->stages, stage, phase, form == TE_FEW_SIXTEEN ? dtype : TE_e4m3, width);
    if (w->parts > 1 && !te__narrow_share(p, d, w, width)) return 0;
    if (form != TE_FEW_SIXTEEN) te__narrow_scale(p, d, scales, width);
    te__narrow_leave(p, d, box, dtype, width);
    return 1;
}
/* All works of a warp. */
TE_FN void te__narrow_works(const te_narrow *p, uint32_t ring, te_narrow_barriers *bars, te_epilogue_fn epilogue,
                            const void *arg, const te_few_form form, const te_dtype dtype) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const uint32_t box = ring + (uint32_t)(p->stages * te__narrow_stage(p->width) + warp * te__narrow_box(p->width));
    te_epilogue_lane own = {{0, 0, 0, 0, 0, 0, 0, 0}, 0, {0, 0}, TE_USUAL_not};
    int stage = 0, phase = 0, mine;
    te_narrow_work w;
    for (int j = 0; te__narrow_work(&w, p, j); j++) {
        const int col = w.col + warp * 16 + lane % 2 * 8;
        if (p->width == 16) mine = te__narrow_product(p, ring, box, bars, &w, &stage, &phase, form, dtype, 16);
        else if (p->width == 32) mine = te__narrow_product(p, ring, box, bars, &w, &stage, &phase, form, dtype, 32);
        else if (p->width == 64) mine = te__narrow_product(p, ring, box, bars, &w, &stage, &phase, form, dtype, 64);
        else mine = te__narrow_product(p, ring, box, bars, &w, &stage, &phase, form, dtype, 128);
#pragma unroll 1
        for (int row = lane / 2; mine && col < p->n && row < p->m; row += 16) {
            uint32_t y[4];
            te__load_piece(y, te__narrow_piece(box, row, lane % 2));
            epilogue(arg, y, 0, row, col, &own);
        }
    }
    if (p->amax) {
        int group;
        te_amax_raise(p->amax, own.most, te_lanes_here(32, &group));
    }
}

TE_FN void te_narrow_body(const te_narrow *p, te_narrow_barriers *bars, te_epilogue_fn epilogue, const void *arg,
                          const te_few_form form, const te_dtype dtype) {
    extern __shared__ char te_dynamic[];
    const uint32_t ring = (te__shared_address(te_dynamic) + 1023) & ~1023u;
    if (threadIdx.x == 0) {
        TE_UNROLL for (int s = 0; s < TE_NARROW_STAGES; s++)
            te__barrier_init(te__shared_address(&bars->full[s]), 1),
                te__barrier_init(te__shared_address(&bars->empty[s]), TE_NARROW_WARPS * TE_NARROW_CLUSTER);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x == 32) te__tma_ready(&p->x);
    te__cluster_sync();
    if (threadIdx.x == 32 * TE_NARROW_WARPS) te__narrow_load(p, ring, bars);
    te_kernel_begin();
    if (threadIdx.x < 32 * TE_NARROW_WARPS) te__narrow_works(p, ring, bars, epilogue, arg, form, dtype);
    __syncwarp();
    te__cluster_sync(); /* nobody leaves while the other may still write into this block's shared memory */
}
#else
TE_FN void te_narrow_body(const te_narrow *p, te_narrow_barriers *bars, te_epilogue_fn epilogue, const void *arg,
                          const te_few_form form, const te_dtype dtype) {
    (void)p, (void)bars, (void)epilogue, (void)arg, (void)form, (void)dtype;
}
#endif

/* `type` begins with a te_narrow; form: SIXTEEN or SCALED; epilogue: a te_epilogue_fn that is called with the `type`.
 * exists: 0 leaves the kernel empty. */
#define TE_NARROW_KERNEL(name, type, form, dtype, epilogue, exists)                                                  \
    TE_UNUSED static __global__ void __launch_bounds__(TE_NARROW_THREADS, 1) name(const __grid_constant__ type p) {  \
        __shared__ te_narrow_barriers bars;                                                                          \
        if (exists) te_narrow_body((const te_narrow *)&p, &bars, epilogue, &p, form, dtype);                         \
    }

#endif
