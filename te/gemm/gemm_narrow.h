/* gemm_narrow.h -- a matrix product of 9 to 128 rows on compute capability 9.0, y[m, n] = x[m, k] W[n, k]^T: what
 * decoding of a batch does. Its time is that of reading W once.
 *
 * The tensor cores (wgmma) take 64 rows of one operand and 8 to 256 columns of the other. Here W has the place of the
 * first and x that of the second, with 32, 64 or 128 columns for its rows.
 * A block has 128 rows of W, the columns of a tile of y; the two blocks of a cluster have 256, and each brings half of
 * x for both, because the L2 gives 5 to 6 TB/s, not much more than the 4.3 TB/s of memory. One thread brings W and x by
 * the copy engine (TMA) into a ring of 192 KB, two warpgroups multiply. In a pass the ring is filled with W while the
 * kernel ahead still runs, for a pass does not write its weights.
 *
 * A cluster takes tile after tile of all k. Where tiles are left for fewer clusters than there are, k of each of them
 * is shared out to several: they leave their sums in the workspace, and who comes last adds them up, in the order of k
 * whoever that is: the same inputs give the same bits, and nobody waits. This is by warps, each of which has 16 columns
 * of y: it takes them through the epilogue of the row (product.h) by itself, eight elements at a time.
 *
 * In FP8, e4m3, the kernel is the same, with half as many bytes; scales of rows or of a tensor come in at the end. Sums
 * stay in the tensor cores, which keep 14 bits of them.
 *
 * Bytes: W once, 2 n k (FP8: n k); x from the L2 as many times as there are pairs of tiles.
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
/* Of a warp's rows of 16 columns, 32 bytes each, the eight columns `piece`: those of eight rows lie on different
 * banks. */
TE_FN uint32_t te__narrow_piece(uint32_t box, int row, int piece) {
    return box + (uint32_t)(row * 32 + ((piece ^ (row / 4 & 1)) << 4));
}
/* FP8: the scales of the two columns of a lane; else nothing. */
typedef struct te_narrow_scales { float w[2]; } te_narrow_scales;
TE_FN te_narrow_scales te__narrow_scales_of(const te_narrow *p, int col, const te_few_form form) {
    te_narrow_scales s = {{p->alpha, p->alpha}};
    TE_UNROLL for (int h = 0; form != TE_FEW_SIXTEEN && h < 2; h++) {
        const int at = col + (int)threadIdx.x % 32 / 4 + 8 * h;
        if (p->w_inverse && at < p->n) s.w[h] *= __ldg(p->w_inverse + (p->by_row ? at : 0));
    }
    return s;
}
/* A lane's sums v of eight rows from 8 j on go to the box, scaled, in 16 bits and by rows. */
TE_FN void te__narrow_leave(const te_narrow *p, const float v[4], uint32_t box, int j, te_narrow_scales s,
                            const te_few_form form, const te_dtype dtype) {
    const int lane = (int)threadIdx.x % 32, row = 8 * j + 2 * (lane % 4);
    float x[2] = {1.0f, 1.0f};
    TE_UNROLL for (int e = 0; form != TE_FEW_SIXTEEN && e < 2; e++)
        if (p->x_inverse && row + e < p->m) x[e] = p->x_inverse[p->by_row ? row + e : 0];
    te__store_turned(te__narrow_piece(box, 8 * j + lane % 8, lane / 8 % 2),
                     te_pair_of_floats(x[0] * s.w[0] * v[0], x[1] * s.w[0] * v[1], dtype),
                     te_pair_of_floats(x[0] * s.w[1] * v[2], x[1] * s.w[1] * v[3], dtype));
}

/* ---- parts of k -------------------------------------------------------------------------------------------------- */

/* Where the sums of part i of a tile lie: of its cluster's two places that for its last tile, or its first. */
TE_FN float4 *te__narrow_place(const te_narrow *p, const te_narrow_work *w, int i) {
    const int place = (w->cluster + i) * 2 + (i == 0), rank = (int)blockIdx.x % TE_NARROW_CLUSTER;
    return (float4 *)p->given + ((place * TE_NARROW_CLUSTER + rank) * (p->width / 8)) * (32 * TE_NARROW_WARPS) +
           threadIdx.x;
}
/* Whether this warp, which has left its sums, is the last of the tile's to do so. */
TE_FN int te__narrow_last(const te_narrow *p, const te_narrow_work *w) {
    const int rank = (int)blockIdx.x % TE_NARROW_CLUSTER, warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    uint32_t *ready = p->ready + (w->tile * TE_NARROW_CLUSTER + rank) * TE_NARROW_WARPS + warp, come = 0;
    const uint32_t others = (uint32_t)w->parts - 1;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(come) : "l"(ready) : "memory");
    come = __shfl_sync(~0u, come, 0);
    if (come != others) { /* else nobody will look at this warp's sums */
        __threadfence();
        __syncwarp();
        if (lane == 0)
            asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(come) : "l"(ready) : "memory");
        come = __shfl_sync(~0u, come, 0);
    }
    if (come != others) return 0;
    if (lane == 0) *ready = 0; /* for the next product */
    __threadfence();
    return 1;
}
/* The sums of all parts, in the order of k, go to the box. Four parts of four groups of eight rows are loaded side by
 * side. */
TE_FN void te__narrow_add(const te_narrow *p, const te_narrow_work *w, uint32_t box, te_narrow_scales s,
                          const te_few_form form, const te_dtype dtype) {
#pragma unroll 1
    for (int first = 0; first < p->width / 8; first += 4) {
        float sum[4][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll 1
        for (int from = 0; from < w->parts; from += 4) {
            float4 v[4][4];
            TE_UNROLL for (int i = 0; i < 4; i++) {
                const float4 *at = te__narrow_place(p, w, from + i) + first * (32 * TE_NARROW_WARPS);
                TE_UNROLL for (int j = 0; j < 4; j++) {
                    v[i][j] = make_float4(0, 0, 0, 0);
                    if (from + i < w->parts) v[i][j] = __ldcg(at + j * (32 * TE_NARROW_WARPS));
                }
            }
            TE_UNROLL for (int i = 0; i < 4; i++)
                TE_UNROLL for (int j = 0; j < 4; j++)
                    sum[j][0] += v[i][j].x, sum[j][1] += v[i][j].y, sum[j][2] += v[i][j].z, sum[j][3] += v[i][j].w;
        }
        TE_UNROLL for (int j = 0; j < 4; j++) te__narrow_leave(p, sum[j], box, first + j, s, form, dtype);
    }
}

/* ---- a tile ------------------------------------------------------------------------------------------------------ */

/* The product; its sums go to the box, or to memory where they are of a part of k. */
TE_FN void te__narrow_product(const te_narrow *p, uint32_t ring, uint32_t box, te_narrow_barriers *bars,
                              const te_narrow_work *w, int *stage, int *phase, te_narrow_scales s,
                              const te_few_form form, const te_dtype dtype, const int width) {
    float d[64];
    te__narrow_multiply(d, ring, bars, w, p->stages, stage, phase, form == TE_FEW_SIXTEEN ? dtype : TE_e4m3, width);
    if (w->parts > 1) {
        float4 *to = te__narrow_place(p, w, w->part);
        TE_UNROLL for (int j = 0; j < width / 8; j++)
            __stcg(to + j * (32 * TE_NARROW_WARPS),
                   make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]));
    } else TE_UNROLL for (int j = 0; j < width / 8; j++) te__narrow_leave(p, d + 4 * j, box, j, s, form, dtype);
}
/* All works of a warp. */
TE_FN void te__narrow_works(const te_narrow *p, uint32_t ring, te_narrow_barriers *bars, te_epilogue_fn epilogue,
                            const void *arg, const te_few_form form, const te_dtype dtype) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const uint32_t box = ring + (uint32_t)(p->stages * te__narrow_stage(p->width) + warp * te__narrow_box(p->width));
    te_epilogue_lane own = {{0, 0, 0, 0, 0, 0, 0, 0}, 0, {0, 0}, TE_USUAL_not};
    int stage = 0, phase = 0;
    te_narrow_work w;
    for (int j = 0; te__narrow_work(&w, p, j); j++) {
        const te_narrow_scales s = te__narrow_scales_of(p, w.col + warp * 16, form);
        const int col = w.col + warp * 16 + lane % 2 * 8;
        __syncwarp(); /* the box is empty */
        if (p->width == 32) te__narrow_product(p, ring, box, bars, &w, &stage, &phase, s, form, dtype, 32);
        else if (p->width == 64) te__narrow_product(p, ring, box, bars, &w, &stage, &phase, s, form, dtype, 64);
        else te__narrow_product(p, ring, box, bars, &w, &stage, &phase, s, form, dtype, 128);
        if (w.parts > 1) {
            if (!te__narrow_last(p, &w)) continue;
            te__narrow_add(p, &w, box, s, form, dtype);
        }
        __syncwarp();
#pragma unroll 1
        for (int row = lane / 2; col < p->n && row < p->m; row += 16) {
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
