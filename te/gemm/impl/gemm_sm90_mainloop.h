/* gemm_sm90_mainloop.h -- the mainloop of gemm_sm90.h: the producer thread, which fills the pipeline by TMA, and the
 * two consumer warpgroups, each of which accumulates 64 x 256 of a tile in registers and passes the result to the
 * epilogue.
 *
 * A finished tile is passed to the epilogue while the next tile is accumulated: the finished tile is rounded to 16
 * bits, held in registers and stored to the staging buffers in shared memory a quarter (64 columns) at a time, spread
 * over the next tile's steps. With config.holds_half only the tile's second half is held, and the first half is staged
 * before the next tile begins. Holding only half of a tile leaves the epilogue's warps 136 registers per thread instead
 * of 72, but the tensor cores are idle while the first half, 32 KB, is stored to shared memory. Storing this half takes
 * 256 cycles; the whole mainloop of a tile in FP8 takes some 35000 cycles if k is 4096 (docs/notes/gemm_sm90.md breaks
 * them down).
 *
 * Lower bound for a tile in FP8 at k of 4096: 32768 cycles of the tensor cores. In that time the operands also use the
 * whole bandwidth of shared memory, 128 bytes per cycle: TMA writes 1.5 MB and wgmma reads 2.5 MB.
 */
/* target: cuda */
#ifndef TE_GEMM_SM90_MAINLOOP_H
#define TE_GEMM_SM90_MAINLOOP_H

#include "gemm_sm90_scheduler.h" /* te__sm90_gemm_params, te__sm90_gemm_get_work */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- the producer ------------------------------------------------------------------------------------------------ */

TE_FN void te__sm90_gemm_prefetch_quarter(const te__sm90_gemm_params *p, const te__sm90_gemm_work *w, int quarter,
                                          const te__sm90_gemm_config k) {
    const int x = w->x + 64 * quarter;
    te__tma_prefetch_l2(&p->source_map, x, w->y);
    if (k.source_has_halves) te__tma_prefetch_l2(&p->source_map, x + p->n, w->y);
}
/* Prefetches the source, the tensor that the epilogue reads (params.source), to the L2, a quarter of a tile ahead of
 * its use. (When the source of a whole tile was prefetched at once, A and B evicted it from the L2 before it was used.)
 * The epilogue works on tile `before` while tile `w` is accumulated. So at the beginning of each of the first three
 * quarters of w's steps, the source's next 64 columns for `before` are prefetched, and at the beginning of the last
 * quarter the first 64 columns for `w`. */
TE_FN void te__sm90_gemm_prefetch_source(const te__sm90_gemm_params *p, const te__sm90_gemm_work *before,
                                         const te__sm90_gemm_work *w, int step, const te__sm90_gemm_config k) {
    if (!p->source) return;
    TE_UNROLL for (int q = 0; q < 4; q++) {
        const te__sm90_gemm_work *of = q < 3 ? before : w;
        const int due = step == w->first_step + (w->end_step - w->first_step) * q / 4 && of->split <= 0;
        if (due) te__sm90_gemm_prefetch_quarter(p, of, (q + 1) % 4, k);
    }
}
/* Returns the tensor map through which the rows of A from *y on are loaded, and sets *y to the index of the first of
 * these rows in that map. If another rank sends the rows (in chunks, each with a flag), first waits until their chunk
 * has arrived. *seen: the last chunk that is known to have arrived. The flag of this chunk is not read again, because
 * reading a flag takes so long that the consumers use up all filled stages meanwhile. */
TE_FN const CUtensorMap *te__sm90_gemm_wait_for_rows(const te__sm90_gemm_params *p, int *y, int *seen) {
    const te__sm90_gemm_overlap *o = &p->overlap;
    if (!TE_HAS_COMM_OVERLAP || !o->chunk_flags || *y >= p->m) return &p->a_map;
    const int rank = *y / o->rank_rows, row = *y - rank * o->rank_rows;
    if (rank == o->rank) return o->own_is_separate ? (*y = row, &p->own_map) : &p->a_map;
    const int chunk = rank * TE_GATHER_MAX_CHUNKS + row / o->chunk_rows;
    const int same_rank = chunk / TE_GATHER_MAX_CHUNKS == *seen / TE_GATHER_MAX_CHUNKS;
    /* A rank's chunks arrive in order, so a chunk has arrived if it is not behind chunk *seen of the same rank. */
    if (chunk <= *seen && same_rank) return &p->a_map;
    *seen = chunk;
    te__flag_wait(o->chunk_flags + chunk, 1, rank, &o->timeout);
    /* this fence makes TMA (the async proxy) read the rows only after this thread has read the flag */
    asm volatile("fence.proxy.async.global;" ::: "memory");
    return &p->a_map;
}
/* Runs in one thread, which issues the TMA copies of A and B for all tiles of this block, stage by stage. Each block of
 * the cluster loads its own tile of A. Both blocks need the same tile of B: each loads half of it and multicasts this
 * half to both. */
TE_FN void te__sm90_gemm_produce(const te__sm90_gemm_params *p, uint32_t ring, te__sm90_gemm_barriers *bars,
                                 const te__sm90_gemm_config c) {
    const int rank = (int)blockIdx.x % TE_CLUSTER, fp8 = te_is_fp8(c.dtype_a);
    const uint32_t full = te__shared_address(bars->full), empty = te__shared_address(bars->empty);
    const float inverse_a = fp8 && p->inverse_a ? *p->inverse_a : 1.0f;
    const float inverse_b = fp8 && p->inverse_b ? *p->inverse_b : 1.0f;
    te__sm90_pipeline_state s = {0, 0};
    te__sm90_gemm_work w, before;
    int seen = -1;
    /* Before the first tile there is no tile for which the epilogue's source must be prefetched. The positive split
     * marks `before` as work without an epilogue, like the work of a Stream-K helper. */
    before.split = 1;
    for (int j = 0; te__sm90_gemm_get_work(&w, p, j); before = w, j++) {
        const int x = w.x;
        int y = w.y;
        const CUtensorMap *const a_map = te__sm90_gemm_wait_for_rows(p, &y, &seen);
        for (int k = w.first_step * TE_TILE_K; k < w.end_step * TE_TILE_K;
             k += TE_TILE_K, te__sm90_pipeline_advance(&s)) {
            const uint32_t bar = full + 8 * s.stage;
            const uint32_t a = ring + s.stage * TE_SM90_GEMM_STAGE_BYTES, b = a + TE_SM90_GEMM_A_BYTES;
            const int all_blocks = (1 << TE_CLUSTER) - 1;
            te__barrier_wait(empty + 8 * s.stage, s.phase ^ 1);
            if (!c.reduce_scatter) te__sm90_gemm_prefetch_source(p, &before, &w, k / TE_TILE_K, c);
            /* The product of alpha and the inverse scales is stored only when the third stage is filled. If it were
             * stored at the start, the first copies would wait until the scales are loaded from memory. */
            if (fp8 && j == 0 && s.stage == 2) bars->alpha = p->alpha * inverse_a * inverse_b;
            te__barrier_arrive_expect_tx(bar, TE_SM90_GEMM_STAGE_BYTES);
            te__tma_load(a, a_map, k, y, bar, 0);
            TE_UNROLL for (int q = 0; q < 4 / TE_CLUSTER; q++) {
                const int quarter = rank * (4 / TE_CLUSTER) + q;
                const int col = te__sm90_gemm_quarter_column(p, x, quarter, c);
                if (c.trans_b) te__tma_load(b + quarter * 8192, &p->b_map, k, col, bar, all_blocks);
                else te__tma_load(b + quarter * 8192, &p->b_map, x + 64 * quarter, k, bar, all_blocks);
            }
        }
    }
    if (c.reduce_scatter || !p->source || before.split > 0) return;
    TE_UNROLL for (int quarter = 1; quarter < 4; quarter++) te__sm90_gemm_prefetch_quarter(p, &before, quarter, c);
}

/* ---- a finished tile: rounding and staging ----------------------------------------------------------------------- */

/* Return the address of a 16-byte vector, number `vector` in row `row` of a subtile in shared memory. A subtile has 16
 * rows of 128 bytes, begins at a multiple of 1024 bytes, and has TMA's 128-byte swizzle, which avoids bank
 * conflicts. */
TE_FN uint32_t te__sm90_gemm_swizzle(uint32_t subtile, int row, int vector) {
    return subtile + (uint32_t)(row * 128 + ((vector ^ (row & 7)) << 4));
}
TE_FN void te__sm90_gemm_scale(float d[128], float alpha) {
    if (alpha != 1.0f) TE_UNROLL for (int i = 0; i < 128; i++) d[i] *= alpha;
}
/* Rounds a quarter of a warp's accumulators to 16 bits, and packs two elements into each 32-bit word. In wgmma's layout
 * a lane's d[4 * j + 2 * h + e] is the element in row lane / 4 + 8 * h and column 8 * j + 2 * (lane % 4) + e of the
 * warp's 16 x 256 elements. */
TE_FN void te__sm90_gemm_pack_quarter(uint32_t packed[16], const float d[128], const int quarter,
                                      const te_dtype dtype) {
    TE_UNROLL
    for (int i = 0; i < 16; i++)
        packed[i] = te_pair_of_floats(d[32 * quarter + 2 * i], d[32 * quarter + 2 * i + 1], dtype);
}
TE_FN void te__sm90_gemm_store_subtile(uint32_t subtile, const uint32_t packed[16], int lane) {
    TE_UNROLL
    for (int i = 0; i < 4; i++)
        te__stmatrix_x4(te__sm90_gemm_swizzle(subtile, lane % 16, 2 * i + lane / 16), packed + 4 * i);
}
/* Passes a quarter of a tile to the epilogue: waits until the epilogue has emptied a staging buffer, then stores this
 * warp's 16 rows of 64 columns (a subtile) in the buffer. Even quarters use the first staging buffer, odd quarters the
 * second. staging: the address of this warp's subtile in the first buffer. */
TE_FN void te__sm90_gemm_stage_quarter(const uint32_t packed[16], const int quarter, uint32_t staging,
                                       te__sm90_gemm_barriers *bars) {
    const int lane = (int)threadIdx.x % 32, buffer = quarter % 2;
    const uint32_t to = staging + buffer * TE_SM90_GEMM_SUBTILE_BYTES;
    te__barrier_wait(te__shared_address(&bars->staged_empty[buffer]), (quarter / 2) ^ 1);
    te__sm90_gemm_store_subtile(to, packed, lane);
    __syncwarp();
    if (lane == 0) te__barrier_arrive(te__shared_address(&bars->staged_full[buffer]));
}
/* Pass a quarter of the block's last tile to the epilogue, through shared memory. All four quarters fit into the memory
 * of the pipeline's stages, so no warp waits for the epilogue to empty a buffer. But before the first store both
 * consumer warpgroups must have read the operands of their last step from these stages
 * (te__sm90_gemm_sync_consumers). */
TE_FN void te__sm90_gemm_stage_last_quarter(const uint32_t packed[16], const int quarter, uint32_t ring) {
    const uint32_t warp = threadIdx.x / 32 - 4;
    te__sm90_gemm_store_subtile(te__sm90_gemm_last_staging(ring, quarter) + warp * 2 * TE_SM90_GEMM_SUBTILE_BYTES,
                                packed, (int)threadIdx.x % 32);
}
TE_FN void te__sm90_gemm_sync_consumers(void) { asm volatile("bar.sync 3, 256;" ::: "memory"); }
/* Store quarter number `quarter` of a tile to its staging buffer. An epilogue that needs pairs of columns (k.pairing)
 * needs two quarters at once. For such an epilogue, a call for an even quarter stores that quarter and the next
 * quarter, which fill both buffers, and a call for an odd quarter does nothing. */
TE_FN void te__sm90_gemm_stage_quarter_or_pair(const uint32_t packed[4][16], const int quarter, uint32_t staging,
                                               te__sm90_gemm_barriers *bars, const te__sm90_gemm_config k) {
    const int pairs = k.pairing.group;
    if (!pairs || quarter % 2 == 0) te__sm90_gemm_stage_quarter(packed[quarter], quarter, staging, bars);
    if (pairs && quarter % 2 == 0) te__sm90_gemm_stage_quarter(packed[quarter + 1], quarter + 1, staging, bars);
}

/* ---- Stream-K ---------------------------------------------------------------------------------------------------- */

/* Stream-K, called by a helper: stores in memory this warp's sums over the split of k that its cluster computes, and
 * increments the counter on which the cluster that owns the tile waits. */
TE_FN void te__sm90_gemm_store_partials(const te__sm90_gemm_params *p, const float d[128],
                                        const te__sm90_gemm_work *w) {
    const int rank = (int)blockIdx.x % TE_CLUSTER, thread = (int)threadIdx.x - 128,
              slot = (w->tail_tile * p->helper_splits + w->split - 1) * TE_CLUSTER + rank;
    float4 *to = (float4 *)p->partials + (int64_t)slot * (TE_TILE_M * TE_TILE_N / 4) + thread;
    TE_UNROLL
    for (int i = 0; i < 32; i++) to[i * 256] = make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
    __threadfence();
    __syncwarp();
    if (thread % 32 == 0)
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(
                         &p->partials_ready[(w->tail_tile * TE_CLUSTER + rank) * 8 + thread / 32])
                     : "memory");
}
/* Stream-K, called by the cluster that owns a tile: waits until the warp with the same number in each helper has stored
 * its sums, and adds these sums in the order of the splits. */
TE_FN void te__sm90_gemm_add_partials(const te__sm90_gemm_params *p, float d[128], const te__sm90_gemm_work *w) {
    const int rank = (int)blockIdx.x % TE_CLUSTER, thread = (int)threadIdx.x - 128;
    uint32_t *ready = &p->partials_ready[(w->tail_tile * TE_CLUSTER + rank) * 8 + thread / 32], arrived = 0;
    while (arrived < (uint32_t)p->helper_splits)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(ready) : "memory");
    __syncwarp();
    if (thread % 32 == 0) *ready = 0; /* reset the counter, which must be 0 for the next product */
#pragma unroll 1
    for (int split = 0; split < p->helper_splits; split++) {
        const int slot = (w->tail_tile * p->helper_splits + split) * TE_CLUSTER + rank;
        const float4 *from = (const float4 *)p->partials + (int64_t)slot * (TE_TILE_M * TE_TILE_N / 4) + thread;
        TE_UNROLL for (int i = 0; i < 32; i++) {
            const float4 v = __ldcg(from + i * 256);
            d[4 * i] += v.x, d[4 * i + 1] += v.y, d[4 * i + 2] += v.z, d[4 * i + 3] += v.w;
        }
    }
}

/* ---- the consumers ----------------------------------------------------------------------------------------------- */

/* Values that a consumer warpgroup computes only once. a, b: the low words of the wgmma descriptors of A and B in the
 * pipeline's first stage; bars: the address of the barriers. A step only adds offsets to these values, which saves
 * instructions. That matters: a step has some 80 instructions, and a tile with k of 4096 in 16 bits has 64 steps. */
typedef struct te__sm90_gemm_consumer {
    uint32_t a, b, bars;
    te__sm90_pipeline_state at;
} te__sm90_gemm_consumer;

TE_FN te__sm90_gemm_consumer te__sm90_gemm_consumer_of(uint32_t ring, const te__sm90_gemm_barriers *bars,
                                                       const te__sm90_gemm_config k) {
    /* The number of this consumer warpgroup, 0 or 1. The shuffle tells the compiler that the number is the same in all
     * lanes. */
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128 - 1, 0);
    te__sm90_gemm_consumer g = {(uint32_t)te__wgmma_descriptor(ring + warpgroup * 8192, 0),
                                (uint32_t)te__wgmma_descriptor(ring + TE_SM90_GEMM_A_BYTES, !k.trans_b),
                                te__shared_address(bars), {0, 0}};
    return g;
}
/* Signals to the producers of both blocks of the cluster that this warp has read the stage before the current one. Both
 * producers wait for this signal before they fill that stage again, because each producer multicasts B into that stage
 * of both blocks. */
TE_FN void te__sm90_gemm_release_stage(const te__sm90_gemm_consumer *g) {
    const int before = g->at.stage ? g->at.stage - 1 : TE_STAGES - 1, lane = (int)threadIdx.x % 32;
    const uint32_t empty = g->bars + (uint32_t)offsetof(te__sm90_gemm_barriers, empty);
    if (lane < TE_CLUSTER) te__barrier_arrive_remote(empty + 8 * before, lane);
}
/* Runs one step (64 elements of k): starts the step's group of wgmma, then waits for the group of the previous step, so
 * that one group is always in flight. */
TE_FN void te__sm90_gemm_mma_step(float d[128], te__sm90_gemm_consumer *g, int step, const te__sm90_gemm_config k) {
    const uint32_t stage = (uint32_t)g->at.stage, a = g->a + stage * (TE_SM90_GEMM_STAGE_BYTES >> 4),
                   b = g->b + stage * (TE_SM90_GEMM_STAGE_BYTES >> 4);
    te__barrier_wait(g->bars + (uint32_t)offsetof(te__sm90_gemm_barriers, full) + 8 * stage, g->at.phase);
    te__wgmma_fence();
    TE_UNROLL
    for (int q = 0; q < TE_TILE_K / 16; q++) {
        const uint64_t a_desc = te__wgmma_descriptor_of_low(a + 2 * q),
                       b_desc = te__wgmma_descriptor_of_low(b + q * (k.trans_b ? 2 : 128));
        if (te_is_fp8(k.dtype_a)) te__wgmma_n256_fp8(d, a_desc, b_desc, step || q, k.dtype_a, k.dtype_b);
        else te__wgmma_n256(d, a_desc, b_desc, step || q, k.dtype, !k.trans_b);
    }
    te__wgmma_commit();
    te__wgmma_wait_1();
    if (step) te__sm90_gemm_release_stage(g);
    te__sm90_pipeline_advance(&g->at);
}

/* Compute a consumer warpgroup's half of every tile of the block. While a tile is accumulated, the previous tile is
 * stored to the staging buffers: 64 of its columns when the first step of the current tile begins, 64 more after a
 * quarter of the steps, and so on. */
TE_FN void te__sm90_gemm_consume(const te__sm90_gemm_params *p, uint32_t ring, te__sm90_gemm_barriers *bars,
                                 const te__sm90_gemm_config k) {
    const int warp = (int)threadIdx.x / 32 - 4;
    const uint32_t staging = te__sm90_gemm_staging(ring, 2 * warp);
    te__sm90_gemm_consumer g = te__sm90_gemm_consumer_of(ring, bars, k);
    te__sm90_gemm_work w;
    uint32_t packed[4][16]; /* the elements of the previous tile, if there is one, rounded to 16 bits, two in each
                             * word */
    float d[128];
    int has_packed = 0;
    for (int j = 0; te__sm90_gemm_get_work(&w, p, j); j++) {
        const int steps = w.end_step - w.first_step;
        /* the quarter of the previous tile (0 to 3) that is staged next, or 4 if no quarter is left */
        int next = has_packed ? 0 : 4;
#pragma unroll 1
        for (int s = 0; s < steps; s++) { /* not unrolled: eight copies of the step took half of the compile time */
            te__sm90_gemm_mma_step(d, &g, s, k);
            if (s < steps * next / 4) continue;
            TE_UNROLL for (int quarter = 0; quarter < 4; quarter++)
                if (quarter == next) te__sm90_gemm_stage_quarter_or_pair(packed, quarter, staging, bars, k);
            next++;
        }
        te__wgmma_wait_0();
        te__sm90_gemm_release_stage(&g);
        /* To the compiler this empty asm changes j. So the compiler computes w again here, instead of holding w in
         * registers during the steps, when no registers are free. */
        asm volatile("" : "+r"(j));
        (void)te__sm90_gemm_get_work(&w, p, j);
        has_packed = w.split <= 0;
        if (!has_packed) {
            te__sm90_gemm_store_partials(p, d, &w);
            /* These stores tell the compiler that the old values of `packed` are not needed, so that it frees the
             * registers. */
            TE_UNROLL for (int i = 0; i < 64; i++) packed[i / 16][i % 16] = 0;
            continue;
        }
        if (w.split == 0) te__sm90_gemm_add_partials(p, d, &w);
        te__sm90_gemm_scale(d, te_is_fp8(k.dtype_a) ? bars->alpha : p->alpha);
        TE_UNROLL for (int i = 0; i < 4; i++) te__sm90_gemm_pack_quarter(packed[i], d, i, k.dtype);
    }
    te__sm90_gemm_sync_consumers();
    TE_UNROLL for (int i = 0; has_packed && i < 4; i++) te__sm90_gemm_stage_last_quarter(packed[i], i, ring);
}
/* Compute a consumer warpgroup's half of every tile of the block, if config.holds_half is set, i.e. if only half of the
 * previous tile is held in registers while the next tile is accumulated. The first half of a tile is staged as soon as
 * the tile is finished. The third quarter (64 columns) is staged after 3/8 of the next tile's steps, because by then
 * the epilogue has normally processed the first quarter and emptied its buffer; if not, the warpgroup waits. The fourth
 * quarter is staged after 5/8, when the second quarter has normally been processed. */
TE_FN void te__sm90_gemm_consume_half(const te__sm90_gemm_params *p, uint32_t ring, te__sm90_gemm_barriers *bars,
                                      const te__sm90_gemm_config k) {
    const int warp = (int)threadIdx.x / 32 - 4;
    const uint32_t staging = te__sm90_gemm_staging(ring, 2 * warp);
    te__sm90_gemm_consumer g = te__sm90_gemm_consumer_of(ring, bars, k);
    te__sm90_gemm_work w;
    uint32_t packed[2][16]; /* this thread's elements of the third and fourth quarter (64 columns each) of the previous
                             * tile, if there is one, rounded to 16 bits, two in each word */
    float d[128];
    int has_packed = 0, more = te__sm90_gemm_get_work(&w, p, 0);
    for (int j = 1; more; j++) {
        const int steps = w.end_step - w.first_step;
        const te__sm90_gemm_work now = w;
#pragma unroll 1
        for (int s = 0; s < steps; s++) { /* not unrolled: six copies of the step took a third of the compile time */
            te__sm90_gemm_mma_step(d, &g, s, k);
            if (has_packed && s == steps * 3 / 8) te__sm90_gemm_stage_quarter(packed[0], 2, staging, bars);
            if (has_packed && s == steps * 5 / 8) te__sm90_gemm_stage_quarter(packed[1], 3, staging, bars);
        }
        more = te__sm90_gemm_get_work(&w, p, j); /* the scheduler computes the next tile here, while the tensor cores
                                                  * are busy */
        te__wgmma_wait_0();
        te__sm90_gemm_release_stage(&g);
        has_packed = now.split <= 0;
        if (!has_packed) {
            te__sm90_gemm_store_partials(p, d, &now);
            /* these stores tell the compiler that the old values of `packed` are not needed, so that it frees the
             * registers */
            TE_UNROLL for (int i = 0; i < 32; i++) packed[i / 16][i % 16] = 0;
            continue;
        }
        if (now.split == 0) te__sm90_gemm_add_partials(p, d, &now);
        te__sm90_gemm_scale(d, te_is_fp8(k.dtype_a) ? bars->alpha : p->alpha);
        if (!more) te__sm90_gemm_sync_consumers();
        TE_UNROLL for (int quarter = 0; quarter < 2; quarter++) {
            uint32_t first_half[16];
            te__sm90_gemm_pack_quarter(first_half, d, quarter, k.dtype);
            if (more) te__sm90_gemm_stage_quarter(first_half, quarter, staging, bars);
            else te__sm90_gemm_stage_last_quarter(first_half, quarter, ring);
        }
        TE_UNROLL for (int i = 0; i < 2; i++) te__sm90_gemm_pack_quarter(packed[i], d, 2 + i, k.dtype);
    }
    TE_UNROLL for (int i = 0; has_packed && i < 2; i++) te__sm90_gemm_stage_last_quarter(packed[i], 2 + i, ring);
}
#endif

#endif
