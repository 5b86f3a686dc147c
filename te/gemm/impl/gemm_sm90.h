/* gemm_sm90.h -- the custom GEMM for Hopper (compute capability 9.0): D = alpha A op(B), rounded to 16 bits, then
 * passed with its coordinates to an epilogue (te_epilogue_fn), eight elements at a time. The epilogue stores the
 * outputs: for example D, the result of an activation, the output in FP8 and its transpose, or column sums. This file
 * has the kernel, the macros that define it for an epilogue, and the host code.
 *
 * The kernel is persistent and warp-specialised. A block has 384 threads and computes tiles of 128 x 256, one after the
 * other:
 *   producer    one thread of warp 0: copies A and B by TMA, 64 elements of k at a time, into a pipeline of four
 *               stages. The two blocks of a cluster compute two tiles, one below the other, which need the same tile of
 *               B; each block loads half of it and multicasts this half to both blocks.
 *   consumers   warps 4 to 11, two warpgroups: each accumulates 64 x 256 of the tile in registers (wgmma, f32).
 *   epilogue    warps 1 to 3: call the te_epilogue_fn for a tile, during the mainloop of the next tile.
 *
 * gemm_sm90_scheduler.h has the order of the tiles, gemm_sm90_mainloop.h the producer and the consumers, which also
 * store finished tiles to shared memory, and gemm_sm90_epilogue.h the warps of the epilogue.
 *
 * The tiles of a last, partial wave are split along k among all clusters (Stream-K, Osama et al. 2023): helper clusters
 * store partial sums in memory, and the cluster that owns the tile adds them in a fixed order. This order depends only
 * on the sizes and the number of multiprocessors, so results are bitwise reproducible.
 *
 * Flops: 2 * m * n * k. Lower bound of the time: these flops at the speed of the tensor cores at the power limit, some
 * 690 TFLOP/s in bf16 on an H200. With an epilogue that only stores D, the kernel takes 0.98 to 1.03 of the time of
 * cuBLASLt's fastest candidate; with an epilogue of bias and gelu, the kernel takes 4% longer than with an epilogue
 * that only stores D. Measurements, and variants that were slower: docs/notes/gemm_sm90.md.
 */
/* target: cuda */
#ifndef TE_GEMM_SM90_H
#define TE_GEMM_SM90_H

#include "gemm_autotune.h" /* te__gemm_state */
#include "gemm_comm_overlap.h"     /* te__gather_launch */
#include "gemm_sm90_epilogue.h"    /* te__sm90_gemm_epilogue */
#include "gemm_sm90_mainloop.h"    /* te__sm90_gemm_produce, te__sm90_gemm_consume */

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* Registers per thread: of the warpgroup that contains the producer and the epilogue warps, and of each of the two
 * consumer warpgroups (CONSUMER). The kernel is launched with 168 registers per thread, so the numbers of the three
 * warpgroups add up to 3 x 168. With 72 registers a thread of the epilogue computes gelu for its eight
 * elements one after the other, each a dependency chain of 110 cycles; with 136 registers (_HALF) the eight chains
 * overlap. A fused epilogue in FP8 needs this overlap: it runs during the mainloop of the next tile, which in FP8 takes
 * half the time that it takes in 16 bits. */
enum {
    TE_SM90_GEMM_REGISTERS = 72, TE_SM90_GEMM_CONSUMER_REGISTERS = 216,
    /* the same two numbers for a kernel whose consumers hold only half of a finished tile in registers
     * (config.holds_half) */
    TE_SM90_GEMM_REGISTERS_HALF = 136, TE_SM90_GEMM_CONSUMER_REGISTERS_HALF = 184
};

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* Reduce the number of registers of the calling warpgroup to the number for the epilogue. The warpgroup of producer and
 * epilogue calls this at the start; the consumer warpgroups call it before they join the epilogue of the last tile. */
TE_FN void te__sm90_gemm_epilogue_registers(const te__sm90_gemm_config k) {
    if (k.holds_half) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)TE_SM90_GEMM_REGISTERS_HALF));
    else asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)TE_SM90_GEMM_REGISTERS));
}
TE_FN void te__sm90_gemm_init_barriers(te__sm90_gemm_barriers *bars) {
    TE_UNROLL for (int s = 0; s < TE_STAGES; s++) {
        te__barrier_init(te__shared_address(&bars->full[s]), 1);
        te__barrier_init(te__shared_address(&bars->empty[s]), 8 * TE_CLUSTER);
    }
    TE_UNROLL for (int b = 0; b < 2; b++) {
        te__barrier_init(te__shared_address(&bars->staged_full[b]), 8);
        te__barrier_init(te__shared_address(&bars->staged_empty[b]), TE_SM90_GEMM_EPILOGUE_WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/* The body of a GEMM kernel with the compile-time config k. The kernel calls `pair_epilogue` if k.pairing.group is not
 * 0, else `epilogue`. */
TE_FN void te__sm90_gemm_body(const te__sm90_gemm_params *p, te__sm90_gemm_barriers *bars, te_epilogue_fn epilogue,
                              te_epilogue_pair_fn pair_epilogue, te_epilogue_outputs outputs, const void *arg,
                              const te__sm90_gemm_config k) {
    extern __shared__ char te_dynamic[];
    const uint32_t ring = (te__shared_address(te_dynamic) + 1023) & ~1023u;
    if (threadIdx.x == 0) te__sm90_gemm_init_barriers(bars);
    if (threadIdx.x == 32) te__tma_prefetch_descriptor(&p->a_map), te__tma_prefetch_descriptor(&p->b_map);
    te__cluster_sync();
    te_kernel_begin();
    if (threadIdx.x < 128) {
        te__sm90_gemm_epilogue_registers(k);
        if (threadIdx.x == 0) te__sm90_gemm_produce(p, ring, bars, k);
    } else if (k.holds_half) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)TE_SM90_GEMM_CONSUMER_REGISTERS_HALF));
        te__sm90_gemm_consume_half(p, ring, bars, k);
        te__sm90_gemm_epilogue_registers(k);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)TE_SM90_GEMM_CONSUMER_REGISTERS));
        te__sm90_gemm_consume(p, ring, bars, k);
        te__sm90_gemm_epilogue_registers(k);
    }
    if (threadIdx.x >= 32 && k.pairing.group) te__sm90_gemm_epilogue_pairs(p, ring, bars, pair_epilogue, arg, k);
    else if (threadIdx.x >= 32) te__sm90_gemm_epilogue(p, ring, bars, epilogue, outputs, arg, k);
    __syncwarp();
    te__cluster_sync(); /* a block may not exit while the other block of its cluster can still write to its shared
                         * memory */
}
#else
TE_FN void te__sm90_gemm_body(const te__sm90_gemm_params *p, te__sm90_gemm_barriers *bars, te_epilogue_fn epilogue,
                              te_epilogue_pair_fn pair_epilogue, te_epilogue_outputs outputs, const void *arg,
                              const te__sm90_gemm_config k) {
    (void)p, (void)bars, (void)epilogue, (void)pair_epilogue, (void)outputs, (void)arg, (void)k;
}
#endif

/* ---- macros that define a kernel --------------------------------------------------------------------------------- */

/* Returns the compile-time config of a GEMM kernel whose epilogue needs only eight elements of D at a time. */
TE_FN te__sm90_gemm_config te__sm90_gemm_config_of(te_dtype dtype, te_dtype dtype_a, te_dtype dtype_b, int trans_b) {
    te__sm90_gemm_config c = {};
    c.dtype = dtype, c.dtype_a = dtype_a, c.dtype_b = dtype_b, c.trans_b = trans_b;
    return c;
}
/* Returns config c for an epilogue that gets two vectors of eight columns per call, for example the two halves of a
 * rotated head. group, distance and swap_middle say which vectors are paired (te__sm90_gemm_pairing). B must then be
 * stored [n, k]. */
TE_FN te__sm90_gemm_config te__sm90_gemm_with_pairs(te__sm90_gemm_config c, int group, int distance, int swap_middle) {
    c.pairing.group = group, c.pairing.distance = distance, c.pairing.swap_middle = swap_middle;
    return c;
}
/* Returns config c for a fused pattern. source_has_halves: 1 if params.source is [m, 2 * n]. pairs_halves: 1 if the
 * epilogue combines column i of the first half of D with column i of the second half, as gated activations do.
 * column_sums: 1 if the kernel can store column sums of D. */
TE_FN te__sm90_gemm_config te__sm90_gemm_fused(te__sm90_gemm_config c, int source_has_halves, int pairs_halves,
                                               int column_sums) {
    if (pairs_halves) c = te__sm90_gemm_with_pairs(c, 16, 8, 0), c.pairing.halves = 1;
    c.source_has_halves = source_has_halves, c.column_sums = column_sums;
    return c;
}
/* Returns config c for a fused pattern in FP8. Such a kernel can also store the transpose of its FP8 output. Unless the
 * epilogue combines two halves of D, the consumers hold only half of a finished tile, so that the epilogue has more
 * registers (TE_SM90_GEMM_REGISTERS_HALF). */
TE_FN te__sm90_gemm_config te__sm90_gemm_fused_fp8(te__sm90_gemm_config c, int pairs_halves, int reads_source,
                                                   int column_sums) {
    c = te__sm90_gemm_fused(c, 0, pairs_halves, column_sums);
    c.transposes = 1, c.holds_half = !pairs_halves, c.reads_source = reads_source;
    return c;
}
/* Return config c for a kernel that sends each row of D to the rank that owns the row (reduce_scatter). */
TE_FN te__sm90_gemm_config te__sm90_gemm_scattering(te__sm90_gemm_config c) {
    c.reduce_scatter = 1;
    return c;
}

/* Defines a kernel `name`. Its argument is a struct of type `type`, which begins with a te__sm90_gemm_params; the
 * epilogue gets the struct's address as its `arg`. exists: a compile-time condition. If it is 0, the kernel has no
 * code, because the library never launches it (for example for f32, which the GEMM does not support). */
#define TE__SM90_GEMM_SHELL(name, type, config, epilogue, pair_epilogue, outputs, exists)                             \
    TE_UNUSED static __global__ void __launch_bounds__(TE_SM90_GEMM_THREADS, 1) name(const __grid_constant__ type p) { \
        __shared__ te__sm90_gemm_barriers bars;                                                                       \
        if (exists)                                                                                                   \
            te__sm90_gemm_body((const te__sm90_gemm_params *)&p, &bars, epilogue, pair_epilogue, outputs, &p, config); \
    }
/* Defines a GEMM kernel for 16-bit operands. trans_b: 1 if B is stored [n, k], 0 if [k, n]; epilogue: a
 * te_epilogue_fn. */
#define TE_SM90_GEMM_KERNEL(name, type, dtype, trans_b, epilogue, exists) \
    TE_SM90_GEMM_KERNEL_FP8(name, type, dtype, dtype, dtype, trans_b, epilogue, exists)
/* Defines a GEMM kernel for FP8 operands: dtype_a and dtype_b, the formats of A and B, are TE_e4m3 or TE_e5m2, and
 * trans_b must be 1 (B is stored [n, k]). TE_SM90_GEMM_KERNEL passes `dtype`, a 16-bit format, as dtype_a and dtype_b;
 * only then may trans_b be 0. */
#define TE_SM90_GEMM_KERNEL_FP8(name, type, dtype, dtype_a, dtype_b, trans_b, epilogue, exists)                        \
    TE__SM90_GEMM_SHELL(name, type, te__sm90_gemm_config_of(dtype, dtype_a, dtype_b, trans_b), epilogue, 0,            \
                        TE_OUTPUTS_ANY, exists)
/* Defines a kernel for a fused pattern in FP8, which can store the transpose of its output (params.transposed).
 * pairs_halves: 1 if the kernel is to call pair_epilogue, with the same columns of the first and of the second half of
 * D; 0 if it is to call epilogue. outputs: an expression of type te_epilogue_outputs, which may use the kernel's
 * argument p. reads_source: 1 if the epilogue reads params.source in every tile, 0 if only in tiles whose epilogue has
 * branches (te__sm90_epilogue_tile.is_branch_free). column_sums: 1 if the kernel can store params.column_sums. */
#define TE_SM90_GEMM_KERNEL_FUSED_FP8(name, type, dtype, dtype_a, epilogue, pair_epilogue, pairs_halves, outputs,      \
                                      reads_source, column_sums, exists)                                               \
    TE__SM90_GEMM_SHELL(name, type,                                                                                    \
                        te__sm90_gemm_fused_fp8(te__sm90_gemm_config_of(dtype, dtype_a, TE_e4m3, 1), pairs_halves,     \
                                                reads_source, column_sums),                                            \
                        epilogue, pair_epilogue, outputs, exists)
/* Defines a kernel for a fused pattern in 16 bits. pairs_halves: 1 if the kernel is to call pair_epilogue, with the
 * same columns of the first and of the second half of D (B must then be stored [n, k]); 0 if it is to call epilogue.
 * source_has_halves: 1 if params.source is [m, 2 * n]. */
#define TE_SM90_GEMM_KERNEL_FUSED(name, type, dtype, trans_b, epilogue, pair_epilogue, pairs_halves,                   \
                                  source_has_halves, column_sums, exists)                                              \
    TE__SM90_GEMM_SHELL(name, type,                                                                                    \
                        te__sm90_gemm_fused(te__sm90_gemm_config_of(dtype, dtype, dtype, trans_b), source_has_halves,  \
                                            pairs_halves, column_sums),                                                \
                        epilogue, pair_epilogue, TE_OUTPUTS_ANY, exists)
/* Defines a kernel that overlaps with a reduce_scatter; its argument is a te__gemm_scatter_params. trans_b: 1 if B is
 * stored [n, k], which FP8 requires. */
#define TE_SM90_GEMM_KERNEL_SCATTER(name, dtype, dtype_a, dtype_b, trans_b, epilogue, exists)                          \
    TE__SM90_GEMM_SHELL(name, te__gemm_scatter_params,                                                                 \
                        te__sm90_gemm_scattering(te__sm90_gemm_config_of(dtype, dtype_a, dtype_b, trans_b)), epilogue, \
                        0, TE_OUTPUTS_ANY, exists)
/* Defines a kernel for a linear whose epilogue gets two vectors of eight columns per call: pair_epilogue, a
 * te_epilogue_pair_fn. B is stored [n, k]. te__sm90_gemm_pairing explains group, distance and swap_middle. */
#define TE_SM90_GEMM_KERNEL_PAIRS(name, type, dtype, group, distance, swap_middle, pair_epilogue, exists)              \
    TE__SM90_GEMM_SHELL(name, type,                                                                                    \
                        te__sm90_gemm_with_pairs(te__sm90_gemm_config_of(dtype, dtype, dtype, 1), group, distance,     \
                                                 swap_middle),                                                         \
                        0, pair_epilogue, TE_OUTPUTS_ANY, exists)

/* ---- host: supported products ------------------------------------------------------------------------------------ */

/* Return the k of the GEMM in 16-bit units, in which TMA and the pipeline count; two FP8 elements are one unit. */
TE_API int64_t te__sm90_gemm_k(const te_gemm *g) { return te__gemm_is_fp8(g) ? g->k / 2 : g->k; }
/* Returns the number of bytes in a row of A. */
TE_API int64_t te__sm90_gemm_row_bytes(const te_gemm *g) { return 2 * te__sm90_gemm_k(g); }

/* Returns whether the sizes are within the limits of TMA and the pipeline: rows of A, B and D are multiples of 16
 * bytes, indices fit into 32 bits, and k fills the pipeline at least once. */
TE_API int te__sm90_gemm_shape_fits(const te_gemm *g) {
    const int64_t limit = 1 << 30, k = te__sm90_gemm_k(g);
    return k > 3 * TE_TILE_K && k % 8 == 0 && g->n % 8 == 0 && g->m < limit && g->n < limit && k < limit;
}
/* Returns whether g meets the additional conditions for FP8 GEMMs: one scale per tensor (or none), fast accumulation,
 * and both operands stored with k contiguous. */
TE_API int te__sm90_gemm_fp8_fits(const te_gemm *g) {
    return g->fast && g->trans_b && g->k % 16 == 0 && !te__gemm_has_scale_arrays(g);
}
/* Returns whether the kernel supports this product: its dtypes, sizes, transposes and epilogue. */
TE_API int te__sm90_gemm_supports(const te_gemm *g) {
    const int sixteen_bits = g->dtype != TE_f32 && g->out == g->dtype;
    return sixteen_bits && !g->trans_a && te__sm90_gemm_shape_fits(g) && g->epilogue == TE_EPILOGUE_NONE &&
           (!te__gemm_is_fp8(g) || te__sm90_gemm_fp8_fits(g));
}
TE_API int64_t te__sm90_gemm_cluster_tiles(const te_gemm *g) {
    return te_ceil_div(g->m, TE_CLUSTER * TE_TILE_M) * te_ceil_div(g->n, TE_TILE_N);
}

/* ---- Stream-K ---------------------------------------------------------------------------------------------------- */

enum {
    /* The largest number of splits into which the k of a tile is cut (Stream-K). The number is limited because the
     * cluster that owns the tile spends some 4 us to receive and add the sums of each further split. */
    TE_SM90_GEMM_MAX_SPLITS = 6,
    TE_SM90_GEMM_MAX_HELPERS = 3, /* the largest number of clusters that help with a tile */
    TE_SM90_GEMM_MIN_STEPS = 8,   /* the smallest number of steps in a split; a step is 64 elements of k */
    /* The smallest number of steps in a split if there are fewer helpers than split tiles, so that one helper computes
     * splits of several tiles, one after the other. An example is 8192 x 6144 x 4096, where 24 helpers compute splits
     * of 21 steps for 42 tiles: the GEMM takes 645 us, and 650 us without splitting. */
    TE_SM90_GEMM_MIN_STEPS_OF_SEVERAL = 16
};

/* Plans how the tiles of the last, partial wave are split along k. The clusters that have no tile in this wave are the
 * helpers: up to three helpers per tile or, if there are fewer helpers than tiles, one helper for several tiles. Tiles
 * are not split if
 * - a split would have fewer steps than TE_SM90_GEMM_MIN_STEPS (if a helper has several tiles: _MIN_STEPS_OF_SEVERAL),
 *   because passing its sums to the cluster that owns the tile would take longer than computing them,
 * - a tile would have more splits than TE_SM90_GEMM_MAX_SPLITS, or
 * - the partial sums do not fit into the workspace. */
TE_API void te__sm90_gemm_plan_stream_k(te__sm90_gemm_params *p, int64_t tiles, int clusters, te__gemm_state *s) {
    const int tail = (int)(tiles % clusters), idle = clusters - tail, steps = (p->k + TE_TILE_K - 1) / TE_TILE_K;
    const int helper_splits = tail ? (int)te_max(1, te_min(TE_SM90_GEMM_MAX_HELPERS, idle / tail)) : 1;
    const int splits = helper_splits + (tail ? (int)te_ceil_div(tail, idle) : 1);
    const size_t bytes = (size_t)(tail * helper_splits) * TE_CLUSTER * TE_TILE_M * TE_TILE_N * sizeof(float);
    const int fits = tail <= TE_GEMM_MAX_SPLIT_TILES && bytes <= TE_GEMM_WORKSPACE && splits <= TE_SM90_GEMM_MAX_SPLITS;
    const int min_steps = tail > idle ? TE_SM90_GEMM_MIN_STEPS_OF_SEVERAL : TE_SM90_GEMM_MIN_STEPS;
    p->tail_tiles = tail, p->helper_splits = helper_splits, p->splits = splits;
    p->full_waves = (int)(tiles / clusters), p->helpers = idle;
    p->partials = (float *)s->workspace;
    p->partials_ready = (uint32_t *)(void *)((char *)s->workspace + TE_GEMM_WORKSPACE);
    if (!tail || !fits || steps < min_steps * splits) p->helpers = 0, p->full_waves = INT32_MAX; /* split no tile */
}
/* Returns whether all clusters have work in the last wave of tiles, either because the wave is full or because its
 * tiles are split along k. */
TE_API int te__sm90_gemm_last_wave_is_even(const te_gemm *g, te_context *ctx) {
    te__sm90_gemm_params p;
    p.k = (int)te__sm90_gemm_k(g);
    te__sm90_gemm_plan_stream_k(&p, te__sm90_gemm_cluster_tiles(g), ctx->processors / TE_CLUSTER,
                                te__gemm_state_of(ctx));
    return !p.tail_tiles || p.helpers > 0;
}

/* ---- overlap with a collective ----------------------------------------------------------------------------------- */

/* Returns whether the product can overlap with a collective of this group. The overlap requires that the number of rows
 * of each rank is a multiple of 256, the rows of a cluster tile (the tiles of the two blocks of a cluster). */
TE_API int te__sm90_gemm_can_overlap(const te_gemm *g, const te_group *group) {
    const te__overlap_memory *m = group->memory;
    return TE_HAS_COMM_OVERLAP && m && te__sm90_gemm_supports(g) && g->m > 0 &&
           g->m % (group->size * TE_CLUSTER * TE_TILE_M) == 0;
}
/* Fills in p->overlap: the order of the tiles, with this rank's own rows first for a gather and last for a scatter. For
 * a gather, also fills in the number of rows in a chunk, the address of the flags that say which chunks of A have
 * arrived and, if this rank's rows do not lie in the gathered A, the tensor map through which they are loaded
 * (own_map). */
TE_API te_status te__sm90_gemm_plan_overlap(te__sm90_gemm_params *p, const te_gemm *g, te__tensor_map_encode_fn encode,
                                            te_context *ctx) {
    const te__gemm_overlap *ranks = g->ranks;
    const te__overlap_memory *m = ranks->memory;
    const int rank = ranks->group->rank, size = ranks->group->size, rank_rows = (int)(g->m / size);
    const int rank_tile_rows = rank_rows / (TE_CLUSTER * TE_TILE_M), gathers = ranks->own != 0;
    te__sm90_gemm_overlap *o = &p->overlap;
    o->rank = rank, o->rank_rows = rank_rows, o->group_m = (int)te_min(TE_SM90_GEMM_GROUP_M, rank_tile_rows);
    o->first_tile_row = (gathers ? rank : (rank + 1) % size) * rank_tile_rows;
    o->interleave = ranks->interleave ? size : 0;
#if TE_HAS_COMM_OVERLAP
    o->timeout = te__peer_timeout_of(m);
#endif
    if (!gathers || m->serial) return TE_OK;
    o->chunk_rows = te__gather_chunk_rows(rank_rows, te__sm90_gemm_row_bytes(g), TE_CLUSTER * TE_TILE_M);
    o->own_is_separate = ranks->to[rank] != ranks->own;
    o->chunk_flags = te__rank_flags(m, rank) + TE_FLAG_CHUNK;
    if (!o->own_is_separate) return TE_OK;
    return te__tensor_map_matrix(&p->own_map, encode, ranks->own, rank_rows, te__sm90_gemm_k(g), TE_TILE_M, g->dtype,
                                 ctx);
}
/* Gathers the rows of A. The GEMM begins only after all rows have arrived. Used in tests, which run collective and GEMM
 * one after the other (te__overlap_memory.serial). */
TE_API te_status te__sm90_gemm_gather_first(const te_gemm *g, te_context *ctx) {
    const te__gemm_overlap *ranks = g->ranks;
    return te_group_all_gather(ranks->group, (void *)(uintptr_t)g->a, ranks->own,
                               g->m / ranks->group->size * te__sm90_gemm_k(g), g->dtype, ctx);
}

/* ---- the launch -------------------------------------------------------------------------------------------------- */

TE_API te_status te__sm90_gemm_launch(const void *kernel, te_grid grid, const void *args, size_t bytes,
                                      const te__sm90_gemm_params *p, const te_gemm *g, te_context *ctx) {
#if TE_HAS_COMM_OVERLAP
    if (p->overlap.chunk_flags) {
        const int64_t row_bytes = te__sm90_gemm_row_bytes(g);
        te_launch l;
        memset(&l, 0, sizeof l);
        l.kernel = kernel, l.name = "matrix product", l.grid = grid, l.threads = TE_SM90_GEMM_THREADS,
        l.shared = TE_SM90_GEMM_SMEM_BYTES, l.cluster = TE_CLUSTER, l.pdl = te__cuda_uses_pdl(ctx),
        l.bytes = (int)bytes;
        return te__gather_launch(&l, args, g->ranks, p->overlap.rank_rows * row_bytes,
                                 p->overlap.chunk_rows * row_bytes, ctx);
    }
#endif
    (void)p;
    if (g->ranks && g->ranks->own) TE_TRY(te__sm90_gemm_gather_first(g, ctx));
    const te_launch launch = te__launch_of(kernel, "matrix product", grid, TE_SM90_GEMM_THREADS,
                                           TE_SM90_GEMM_SMEM_BYTES, TE_CLUSTER);
    return te__cuda_launch(ctx, launch, args, bytes);
}
/* Runs GEMM g: fills in *p and launches `kernel`. args: the struct that is the kernel's argument, of `bytes` bytes; *p
 * is its first member. Before the call, the caller sets the members of this struct and of *p that the kernel's epilogue
 * reads. */
TE_API te_status te__sm90_gemm_run(const void *kernel, const void *args, size_t bytes, te__sm90_gemm_params *p,
                                   const te_gemm *g, te_context *ctx) {
    const te__tensor_map_encode_fn encode = te__tensor_map_encoder(ctx);
    const int64_t tiles = te__sm90_gemm_cluster_tiles(g), k = te__sm90_gemm_k(g);
    const int clusters = ctx->processors / TE_CLUSTER;
    p->alpha = g->alpha, p->m = (int)g->m, p->n = (int)g->n, p->k = (int)k, p->tiles = (int)tiles;
    p->inverse_a = g->a_fp8.inverse, p->inverse_b = g->b_fp8.inverse;
    te__sm90_gemm_plan_stream_k(p, tiles, clusters, te__gemm_state_of(ctx));
    TE_TRY(te__tensor_map_matrix(&p->a_map, encode, g->a, g->m, k, TE_TILE_M, g->dtype, ctx));
    TE_TRY(te__tensor_map_matrix(&p->b_map, encode, g->b, g->trans_b ? g->n : k, g->trans_b ? k : g->n, 64, g->dtype,
                                 ctx));
    const int64_t source_cols = g->n << p->source_has_halves;
    if (p->source)
        TE_TRY(te__tensor_map_matrix(&p->source_map, encode, p->source, g->m, source_cols, TE_TILE_M, g->dtype, ctx));
    const te_grid grid = te__grid_of((p->helpers ? clusters : te_min(clusters, tiles)) * TE_CLUSTER, 1);
    if (g->ranks) TE_TRY(te__sm90_gemm_plan_overlap(p, g, encode, ctx));
    return te__sm90_gemm_launch(kernel, grid, args, bytes, p, g, ctx);
}

#endif
