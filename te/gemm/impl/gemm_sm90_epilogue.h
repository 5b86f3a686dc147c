/* gemm_sm90_epilogue.h -- the epilogue of gemm_sm90.h. The warps of the epilogue read finished tiles from shared memory
 * and call a te_epilogue_fn with eight elements of D at a time, or a te_epilogue_pair_fn with two vectors of eight
 * elements.
 *
 * Three warps run the epilogue of a tile during the mainloop of the next tile. The epilogue of a block's last tile is
 * run by all eleven warps: the consumer warps stage the whole tile in the shared memory of the pipeline's stages, which
 * is free by then, release registers (setmaxnreg) and join the epilogue.
 *
 * A tile is processed in quarters of 64 columns, and a quarter in parts of four rows; eight lanes work on each row. The
 * input of the epilogue (params.source, or the sums that other ranks have sent) is prefetched to the L2, and loaded
 * into registers one part ahead of its use. If the three warps waited for memory at each part instead, they would fall
 * behind the tensor cores.
 */
/* target: cuda */
#ifndef TE_GEMM_SM90_EPILOGUE_H
#define TE_GEMM_SM90_EPILOGUE_H

#include "../../core/lanes.h"              /* te_amax_atomic_max */
#include "../../fp8/scales.h"             /* te_scale_save */
#include "gemm_sm90_epilogue_scatter.h"   /* te__gemm_scatter_wait, _load, _signal */
#include "gemm_sm90_mainloop.h"           /* te__sm90_gemm_swizzle */
#include "gemm_sm90_scheduler.h"          /* te__sm90_gemm_params */

/* ---- the transpose of the FP8 output ------------------------------------------------------------------------------
 * The weight gradient's GEMM reads the transpose. The epilogue writes its FP8 output to the staging buffer (128 rows of
 * 64 columns) in place of the 16-bit elements from which this output was computed. From the buffer it is then stored to
 * memory by columns.
 *
 * The 64 FP8 bytes of a row are four chunks of 16 bytes. They occupy four of the eight chunks of the row's 128 bytes in
 * the buffer. These four are chosen to avoid bank conflicts, both between the rows that a warp writes at a time and
 * between the rows that ldmatrix reads for one 8 x 8 matrix. ldmatrix transposes 16-bit elements, here pairs of
 * adjacent bytes. The order in which the lanes pass row addresses to ldmatrix is chosen so that each lane gets sixteen
 * consecutive rows of two columns; then only the bytes within each 32-bit word must still be reordered.
 *
 * Memory traffic: one byte written for each element, in runs of 64 bytes. A separate transpose kernel
 * (te/fp8/impl/cast_transpose.h) would read one byte and write one byte for each element.
 */
#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* Returns the address of columns 16 * chunk to 16 * chunk + 15 of row `row` (0 to 127) in the staging buffer in shared
 * memory. The buffer consists of one subtile of 16 rows for each consumer warp; staging: the address of row 0. */
TE_FN uint32_t te__sm90_transpose_at(uint32_t staging, int row, int chunk) {
    const uint32_t r = (uint32_t)row, place = (r / 16 % 4 * 2 + r % 2) ^ (uint32_t)chunk * 2;
    return staging + r / 16 * 2 * TE_SM90_GEMM_SUBTILE_BYTES + r % 16 * 128 + place * 16;
}
/* Store the FP8 bytes of a lane's eight columns of `row` to the staging buffer. The whole warp must call this function,
 * which overwrites the 16-bit elements of the warp's rows; the warp must have loaded these elements before. */
TE_FN void te__sm90_transpose_stage(uint32_t staging, int row, int lane, const uint32_t fp8[2]) {
    const uint32_t to = te__sm90_transpose_at(staging, row, lane % 8 / 2) + (uint32_t)(lane % 2 * 8);
    __syncwarp();
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(fp8[0]), "r"(fp8[1]) : "memory");
}
/* Loads FP8 bytes from the staging buffer. Each lane gets two adjacent columns of eight rows: rows r to r + 7, where
 * r = first + 16 * (lane % 4). `low` gets column c = 16 * chunk + 2 * (lane / 4), and `high` column c + 1. */
TE_FN void te__sm90_transpose_load(uint32_t low[2], uint32_t high[2], uint32_t staging, int first, int chunk,
                                   int lane) {
    /* the row whose address this lane passes to the instruction ldmatrix */
    const int row = first + lane % 8 / 2 * 16 + lane / 8 * 2 + lane % 2;
    uint32_t w[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(te__sm90_transpose_at(staging, row, chunk))
                 : "memory");
    TE_UNROLL for (int i = 0; i < 2; i++) {
        low[i] = __byte_perm(w[2 * i], w[2 * i + 1], 0x6420);
        high[i] = __byte_perm(w[2 * i], w[2 * i + 1], 0x7531);
    }
}
/* Stores the transpose of a quarter (64 columns from `col` on, 128 rows from `row` on) to memory, after all warps of
 * the epilogue have staged their rows in `buffer`. Only warps 1 and 2 of the three epilogue warps store. Warp 0, which
 * processes a fifth more rows than warp 1 or 2, goes on to the next quarter, in the other buffer. (When warp 0 stored,
 * too, warps 1 and 2 spent a tenth of their time waiting for warp 0.) For a block's last tile all eleven warps
 * store. */
TE_FN void te__sm90_transpose_store(const te__sm90_gemm_params *p, uint32_t staging, int row, int col, int warp,
                                    int lane, int buffer, int is_last) {
    const int warps = is_last ? TE_SM90_GEMM_LAST_TILE_WARPS : TE_SM90_GEMM_EPILOGUE_WARPS;
    if (warp == 0 && !is_last) {
        __syncwarp();
        asm volatile("bar.arrive %0, %1;" ::"r"(1 + buffer), "r"(32 * warps) : "memory");
        return;
    }
    asm volatile("bar.sync %0, %1;" ::"r"(1 + buffer), "r"(32 * warps) : "memory");
    /* The quarter of the tile (128 rows x 64 columns) has eight units of 64 rows x 16 columns, which the warps take in
     * turn. */
#pragma unroll 1
    for (int unit = is_last ? warp : warp - 1; unit < 8; unit += is_last ? warps : warps - 1) {
        const int first = unit / 4 * 64, chunk = unit % 4, x = col + chunk * 16 + lane / 4 * 2;
        const int y = row + first + lane % 4 * 16;
        uint32_t low[4], high[4];
        /* Lanes whose elements lie outside D store nothing, and get here before the other lanes. All lanes must wait
         * here, because ldmatrix needs all lanes. */
        __syncwarp();
        te__sm90_transpose_load(low, high, staging, first, chunk, lane);
        te__sm90_transpose_load(low + 2, high + 2, staging, first + 8, chunk, lane);
        if (y < p->transposed_rows && x < p->n) { /* x is even and n is even, so column x + 1 also lies in D */
            uint8_t *to = p->transposed + (int64_t)x * p->transposed_rows + y;
            *(uint4 *)to = make_uint4(low[0], low[1], low[2], low[3]);
            *(uint4 *)(to + p->transposed_rows) = make_uint4(high[0], high[1], high[2], high[3]);
        }
    }
}
#endif

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

enum {
    /* number of parts of a quarter of a tile: a quarter has 128 rows, and a part has four rows */
    TE_SM90_EPILOGUE_PARTS = 32,
    /* The number of 32-bit words of the epilogue's input for eight elements of D. The input has at most three vectors
     * of eight 16-bit elements: one from each half of the source, or one from each of three other ranks. */
    TE_SM90_GEMM_SOURCE_WORDS = 12
};

/* A warp's share of a quarter of a tile. A quarter has 32 parts of four rows each, and the warp works on parts number
 * first, first + stride, first + 2 * stride, .. */
typedef struct te__sm90_epilogue_slice { int first, stride; } te__sm90_epilogue_slice;
/* Return which parts of a quarter of a tile a warp works on. In a block's last tile the 32 parts of a quarter do not
 * divide evenly among eleven warps, so some warps have one part more than the others. The choice of these warps changes
 * from quarter to quarter. */
TE_FN te__sm90_epilogue_slice te__sm90_epilogue_slice_of(int warp, int quarter, int is_last) {
    te__sm90_epilogue_slice s = {warp, TE_SM90_GEMM_EPILOGUE_WARPS};
    if (is_last)
        s.first = (warp + 5 * quarter) % TE_SM90_GEMM_LAST_TILE_WARPS, s.stride = TE_SM90_GEMM_LAST_TILE_WARPS;
    return s;
}

/* The tile that the epilogue works on, as seen by one lane. */
typedef struct te__sm90_epilogue_tile {
    const te__sm90_gemm_params *p;
    const void *arg; /* the argument with which the te_epilogue_fn is called: the kernel's parameters, which begin with
                      * *p */
    te__sm90_gemm_barriers *bars;
    uint32_t ring;
    int x, y;           /* x: the first column of the tile in D; y: the first row of the tile in D */
    int warp, lane;
    int is_last;        /* 1 if this is the block's last tile, in whose epilogue the eight consumer warps help */
    /* 1 if the te_epilogue_fn needs no branches: it need not test which outputs to store, because the outputs are known
     * at compile time (te_epilogue_outputs), nor where D ends, because the whole tile lies within D */
    int is_branch_free;
    int transposes;     /* 1 if the epilogue also stores the transpose of its FP8 output */
    int adds_ranks;     /* for reduce_scatter: 1 if this rank owns the tile's rows, so that the epilogue adds the sums
                         * of the other ranks */
} te__sm90_epilogue_tile;

/* A quarter of a tile (128 rows of 64 columns), as seen by one lane. */
typedef struct te__sm90_epilogue_quarter {
    int index, col;   /* index: which quarter of the tile, 0 to 3; col: the first of this lane's eight columns of D */
    uint32_t staging; /* address in shared memory of row 0 of the quarter, in the first consumer warp's subtile */
    te__sm90_epilogue_slice slice;
} te__sm90_epilogue_quarter;

/* Returns the row, 0 to 127 within the tile, that this lane works on in part number `part` (four rows) of a quarter. */
TE_FN int te__sm90_epilogue_row(int part, int lane) { return part * 4 + lane / 8; }
/* Return the address in shared memory of the eight elements of row `row` that this lane works on. */
TE_FN uint32_t te__sm90_epilogue_staged(uint32_t staging, int row, int lane) {
    const uint32_t r = (uint32_t)row;
    return te__sm90_gemm_swizzle(staging + r / 16 * 2 * TE_SM90_GEMM_SUBTILE_BYTES, (int)(r % 16), lane % 8);
}
/* A barrier of the eleven warps that work on a block's last tile. (The racecheck tool of CUDA 13.0 does not support
 * barriers of only some of a block's warps. It therefore reports races that do not exist, between accesses that are
 * ordered by this barrier or by the barriers of te__sm90_transpose_store.) */
TE_FN void te__sm90_epilogue_sync_last_tile(void) {
    asm volatile("bar.sync 4, %0;" ::"n"(32 * TE_SM90_GEMM_LAST_TILE_WARPS) : "memory");
}

/* ---- the source -------------------------------------------------------------------------------------------------- */

TE_FN const uint16_t *te__sm90_epilogue_source_at(const te__sm90_gemm_params *p, int row, int col,
                                                  const te__sm90_gemm_config k) {
    return (const uint16_t *)p->source + ((int64_t)row << k.source_has_halves) * p->n + col;
}
TE_FN void te__sm90_epilogue_load_source(const te__sm90_gemm_params *p, uint32_t source[TE_SM90_GEMM_SOURCE_WORDS],
                                         int row, int col, const te__sm90_gemm_config k) {
    if (!p->source || row >= p->m || col >= p->n) return;
    const uint16_t *from = te__sm90_epilogue_source_at(p, row, col, k);
    te__load16_readonly(source, from);
    if (k.source_has_halves) te__load16_readonly(source + 4, from + p->n);
}
/* Load the epilogue's input for eight elements of D, in the tile's row `row` and in the columns of D from `col` on:
 * elements of the source or, for a reduce_scatter, the sums that other ranks have sent. */
TE_FN void te__sm90_epilogue_load(const te__sm90_epilogue_tile *t, uint32_t source[TE_SM90_GEMM_SOURCE_WORDS], int row,
                                  int col, const te__sm90_gemm_config k) {
    if (!k.reduce_scatter) te__sm90_epilogue_load_source(t->p, source, t->y + row, col, k);
    else if (t->adds_ranks)
        te__gemm_scatter_load((const te__gemm_scatter_params *)t->arg, source, t->y + row, col);
}

/* ---- column sums, amax ------------------------------------------------------------------------------------------- */

/* Store the sum of each column over those rows of a quarter that this warp has processed. params.column_sums has three
 * rows per tile, one for each warp of the epilogue. On a block's last tile eleven warps work, so their sums go to
 * shared memory, and te__sm90_epilogue_add_last_sums reduces them to three per column. */
TE_FN void te__sm90_epilogue_store_sums(const te__sm90_epilogue_tile *t, const te__sm90_epilogue_quarter *q,
                                        float sum[8]) {
    const te__sm90_gemm_params *p = t->p;
    TE_UNROLL
    for (int e = 0; e < 8; e++)
        sum[e] += __shfl_xor_sync(~0u, sum[e], 8), sum[e] += __shfl_xor_sync(~0u, sum[e], 16);
    if (t->lane >= 8) return;
    if (t->is_last) {
        const uint32_t to = te__sm90_gemm_last_sum(t->ring, q->index, t->warp, t->lane * 8);
        TE_UNROLL for (int e = 0; e < 8; e++) te__sts_float(to + 4 * e, sum[e]);
    } else if (t->y < p->m && q->col < p->n) {
        const int64_t row = (int64_t)t->y / TE_TILE_M * TE_SM90_GEMM_EPILOGUE_WARPS + t->warp;
        te_store8(p->column_sums, row * p->n + q->col, sum, 8, 1, TE_f32);
    }
}
/* Reduce the column sums of a block's last tile to three rows of params.column_sums. All eleven warps (three of the
 * epilogue and eight consumers) have computed one partial sum per column; warp w, for w = 0 to 2, adds up the partial
 * sums of warps w, w + 3, w + 6, .., in this order. */
TE_FN void te__sm90_epilogue_add_last_sums(const te__sm90_epilogue_tile *t) {
    const te__sm90_gemm_params *p = t->p;
    te__sm90_epilogue_sync_last_tile();
    for (int i = t->lane; t->warp < TE_SM90_GEMM_EPILOGUE_WARPS && i < TE_TILE_N; i += 32) {
        const int64_t row = (int64_t)t->y / TE_TILE_M * TE_SM90_GEMM_EPILOGUE_WARPS + t->warp;
        float sum = 0;
        for (int of = t->warp; of < TE_SM90_GEMM_LAST_TILE_WARPS; of += TE_SM90_GEMM_EPILOGUE_WARPS)
            sum += te__lds_float(te__sm90_gemm_last_sum(t->ring, i / 64, of, i % 64));
        if (t->y < p->m && t->x + i < p->n) p->column_sums[row * p->n + t->x + i] = sum;
    }
}
/* Called once by each warp, after its last tile: raises *p->amax to the largest magnitude that the warp has stored in
 * FP8, if this magnitude is larger than *p->amax. One thread of the grid also stores the FP8 output's scale and 1 /
 * scale. */
TE_FN void te__sm90_epilogue_store_amax(const te__sm90_gemm_params *p, const te_epilogue_state *state) {
    if (p->amax) {
        int group;
        te_amax_atomic_max(p->amax, state->amax_bits, te_lanes_here(32, &group));
    }
    if (p->inverse && blockIdx.x == 0 && threadIdx.x == 32) te_scale_save(p->inverse, *p->scale);
}

/* ---- a quarter of a tile ----------------------------------------------------------------------------------------- */

/* Runs the epilogue on a warp's share of a quarter of the tile. The quarter has TE_SM90_EPILOGUE_PARTS parts of four
 * rows, and q->slice says which parts are this warp's. next: the source, or the other ranks' sums, for the first of
 * these parts; already loaded by the caller. */
TE_FN void te__sm90_epilogue_rows(const te__sm90_epilogue_tile *t, const te__sm90_epilogue_quarter *q,
                                  te_epilogue_fn epilogue, te_epilogue_state *state,
                                  uint32_t next[TE_SM90_GEMM_SOURCE_WORDS], const te__sm90_gemm_config k) {
#pragma unroll 1
    for (int part = q->slice.first; part < TE_SM90_EPILOGUE_PARTS; part += q->slice.stride) {
        const int row = te__sm90_epilogue_row(part, t->lane), then = part + q->slice.stride;
        uint32_t w[4], source[TE_SM90_GEMM_SOURCE_WORDS];
        TE_UNROLL for (int e = 0; e < TE_SM90_GEMM_SOURCE_WORDS; e++) source[e] = next[e];
        if (then < TE_SM90_EPILOGUE_PARTS)
            te__sm90_epilogue_load(t, next, te__sm90_epilogue_row(then, t->lane), q->col, k);
        te__lds128(w, te__sm90_epilogue_staged(q->staging, row, t->lane));
        state->fp8[0] = state->fp8[1] = 0;
        if (t->y + row < t->p->m && q->col < t->p->n) epilogue(t->arg, w, source, t->y + row, q->col, state);
        if (t->transposes) te__sm90_transpose_stage(q->staging, row, t->lane, state->fp8);
    }
}
/* Runs the epilogue on the parts of q->slice, two parts (of four rows each) at a time, in a tile in which the epilogue
 * has no branches. So the compiler interleaves the instructions of both parts, which hides their latencies. (Each
 * scheduler has only one warp of the epilogue, so no second warp could hide them.) next: the source for the first two
 * parts, already loaded by the caller. */
TE_FN void te__sm90_epilogue_two_rows(const te__sm90_epilogue_tile *t, const te__sm90_epilogue_quarter *q,
                                      te_epilogue_fn epilogue, te_epilogue_state *state,
                                      uint32_t next[2][TE_SM90_GEMM_SOURCE_WORDS], const te_epilogue_outputs outputs,
                                      const te__sm90_gemm_config k) {
    enum { PAIRS = TE_SM90_EPILOGUE_PARTS / 2 };
    state->outputs = outputs;
#pragma unroll 1
    for (int pair = q->slice.first; pair < PAIRS; pair += q->slice.stride) {
        uint32_t w[2][4], source[2][TE_SM90_GEMM_SOURCE_WORDS], fp8[2][2];
        int row[2];
        TE_UNROLL for (int i = 0; i < 2; i++) {
            row[i] = te__sm90_epilogue_row(2 * pair + i, t->lane);
            te__lds128(w[i], te__sm90_epilogue_staged(q->staging, row[i], t->lane));
            TE_UNROLL for (int e = 0; e < TE_SM90_GEMM_SOURCE_WORDS; e++) source[i][e] = next[i][e];
        }
        const int behind = pair + q->slice.stride;
        /* After the last two parts of the quarter the source of these parts is loaded again, and not used, so that the
         * loop has no branch here. */
        const int then = behind < PAIRS ? behind : pair;
        TE_UNROLL for (int i = 0; k.reads_source && i < 2; i++)
            te__load16_readonly(next[i], te__sm90_epilogue_source_at(
                                      t->p, t->y + te__sm90_epilogue_row(2 * then + i, t->lane), q->col, k));
        TE_UNROLL for (int i = 0; i < 2; i++) {
            epilogue(t->arg, w[i], source[i], t->y + row[i], q->col, state);
            fp8[i][0] = state->fp8[0], fp8[i][1] = state->fp8[1];
        }
        TE_UNROLL for (int i = 0; t->transposes && i < 2; i++)
            te__sm90_transpose_stage(q->staging, row[i], t->lane, fp8[i]);
    }
    state->outputs = TE_OUTPUTS_ANY;
}
TE_FN te__sm90_epilogue_quarter te__sm90_epilogue_quarter_of(const te__sm90_epilogue_tile *t, int index) {
    te__sm90_epilogue_quarter q;
    q.index = index, q.col = t->x + index * 64 + t->lane % 8 * 8;
    q.staging = t->is_last ? te__sm90_gemm_last_staging(t->ring, index) : te__sm90_gemm_staging(t->ring, index % 2);
    q.slice = te__sm90_epilogue_slice_of(t->warp, index, t->is_last);
    return q;
}
/* Process quarter number `index` of the tile: wait until its elements are in the staging buffer, run the epilogue,
 * store the transpose, release the staging buffer, and store the column sums. */
TE_FN void te__sm90_epilogue_run_quarter(const te__sm90_epilogue_tile *t, int index, te_epilogue_fn epilogue,
                                         te_epilogue_state *state, te_epilogue_outputs outputs,
                                         const te__sm90_gemm_config k) {
    const te__sm90_epilogue_quarter q = te__sm90_epilogue_quarter_of(t, index);
    const int buffer = index % 2;
    uint32_t next[2][TE_SM90_GEMM_SOURCE_WORDS] = {{0}, {0}};
    TE_UNROLL for (int i = 0; i < 2; i++) {
        const int part = t->is_branch_free ? 2 * q.slice.first + i : q.slice.first;
        if (i == 0 || t->is_branch_free)
            te__sm90_epilogue_load(t, next[i], te__sm90_epilogue_row(part, t->lane), q.col, k);
    }
    if (!t->is_last) te__barrier_wait(te__shared_address(&t->bars->staged_full[buffer]), index / 2);
    if (k.reduce_scatter && t->adds_ranks && index < 3)
        te__gemm_scatter_prefetch((const te__gemm_scatter_params *)t->arg, t->x + 64 * (index + 1), t->y, t->is_last);

    TE_UNROLL for (int e = 0; e < 8; e++) state->sum[e] = 0;
    if (t->is_branch_free && outputs == TE_OUTPUTS_ALL)
        te__sm90_epilogue_two_rows(t, &q, epilogue, state, next, TE_OUTPUTS_ALL, k);
    if (t->is_branch_free && outputs == TE_OUTPUTS_RESULT)
        te__sm90_epilogue_two_rows(t, &q, epilogue, state, next, TE_OUTPUTS_RESULT, k);
    if (!t->is_branch_free) te__sm90_epilogue_rows(t, &q, epilogue, state, next[0], k);

    if (t->transposes)
        te__sm90_transpose_store(t->p, q.staging, t->y, t->x + index * 64, t->warp, t->lane, buffer, t->is_last);
    __syncwarp();
    if (t->lane == 0 && !t->is_last) te__barrier_arrive(te__shared_address(&t->bars->staged_empty[buffer]));
    if (k.column_sums && t->p->column_sums) te__sm90_epilogue_store_sums(t, &q, state->sum);
}

/* ---- the warps of the epilogue ----------------------------------------------------------------------------------- */

/* Processes a tile, quarter by quarter. If another rank owns the tile's rows (reduce_scatter), the function finally
 * signals to that rank that the tile is complete in that rank's memory. If this rank owns the rows, the caller has
 * already waited for the other ranks' sums. */
TE_FN void te__sm90_epilogue_run_tile(const te__sm90_epilogue_tile *t, te_epilogue_fn epilogue,
                                      te_epilogue_state *state, te_epilogue_outputs outputs,
                                      const te__sm90_gemm_config k) {
    /* `scatter` is valid only if k.reduce_scatter is 1, and is used only then. */
    const te__gemm_scatter_params *scatter = (const te__gemm_scatter_params *)t->arg;
    if (k.reduce_scatter && t->adds_ranks) te__gemm_scatter_prefetch(scatter, t->x, t->y, t->is_last);
    if (t->is_last) te__sm90_epilogue_sync_last_tile();
#pragma unroll 1
    for (int quarter = 0; quarter < 4; quarter++)
        te__sm90_epilogue_run_quarter(t, quarter, epilogue, state, outputs, k);
    if (k.reduce_scatter && !t->adds_ranks) {
        if (t->is_last) te__sm90_epilogue_sync_last_tile();
        te__gemm_scatter_signal(scatter, t->x, t->y, t->warp);
    }
    if (t->is_last && k.column_sums && t->p->column_sums) te__sm90_epilogue_add_last_sums(t);
}
/* Runs the epilogue on all tiles that a warp works on; a lane processes eight elements at a time. The consumer warps
 * work only on the block's last tile. outputs: the outputs to store in tiles whose epilogue has no branches
 * (te__sm90_epilogue_tile.is_branch_free). If `outputs` is TE_OUTPUTS_ANY, the outputs are not known at compile time,
 * and the epilogue of every tile has branches. */
TE_FN void te__sm90_gemm_epilogue(const te__sm90_gemm_params *p, uint32_t ring, te__sm90_gemm_barriers *bars,
                                  te_epilogue_fn epilogue, te_epilogue_outputs outputs, const void *arg,
                                  const te__sm90_gemm_config k) {
    const int last_tile = te__sm90_gemm_last_tile(p), has_branch_free = k.transposes && outputs != TE_OUTPUTS_ANY;
    te__sm90_epilogue_tile t;
    te__sm90_gemm_work w;
    te_epilogue_state state;
    t.p = p, t.arg = arg, t.bars = bars, t.ring = ring;
    t.warp = (int)threadIdx.x / 32 - 1, t.lane = (int)threadIdx.x % 32;
    t.transposes = k.transposes && p->transposed;
    state.amax_bits = 0, state.outputs = TE_OUTPUTS_ANY;
    const int first_work = t.warp < TE_SM90_GEMM_EPILOGUE_WARPS ? 0 : last_tile;
    for (int j = first_work; j >= 0 && te__sm90_gemm_get_work(&w, p, j); j++) {
        /* the mainloop has only stored partial sums (Stream-K) of a tile that another cluster owns: there is no
         * epilogue */
        if (w.split > 0) continue;
        t.x = w.x, t.y = w.y, t.is_last = j == last_tile;
        t.is_branch_free = has_branch_free && t.y + TE_TILE_M <= p->m && t.x + TE_TILE_N <= p->n;
        t.adds_ranks = k.reduce_scatter &&
                       te__gemm_scatter_wait((const te__gemm_scatter_params *)arg, t.x, t.y, t.warp, t.is_last);
        te__sm90_epilogue_run_tile(&t, epilogue, &state, outputs, k);
    }
    te__sm90_epilogue_store_amax(p, &state);
}

/* ---- epilogues by pairs ------------------------------------------------------------------------------------------ */

/* The indices of the two vectors that a lane combines. A row of 128 columns has sixteen vectors of eight elements;
 * k.pairing (te__sm90_gemm_pairing) divides them into eight pairs, one for each of the eight lanes that work on the
 * row. */
typedef struct te__sm90_epilogue_pair { int first, second; } te__sm90_epilogue_pair;
TE_FN te__sm90_epilogue_pair te__sm90_epilogue_pair_of(int lane, const te__sm90_gemm_pairing by) {
    const int pairs = by.group / 2, i = lane % 8 % pairs, rotated = i < by.distance;
    te__sm90_epilogue_pair v;
    v.first = lane % 8 / pairs * by.group + i + (rotated ? 0 : by.distance);
    v.second = v.first + (rotated ? by.distance : pairs - by.distance);
    return v;
}
/* Runs a te_epilogue_pair_fn on all tiles that a warp works on. A tile is processed in halves of 128 columns, each of
 * which fills both staging buffers. */
TE_FN void te__sm90_gemm_epilogue_pairs(const te__sm90_gemm_params *p, uint32_t ring, te__sm90_gemm_barriers *bars,
                                        te_epilogue_pair_fn epilogue, const void *arg, const te__sm90_gemm_config k) {
    const int warp = (int)threadIdx.x / 32 - 1, lane = (int)threadIdx.x % 32, last_tile = te__sm90_gemm_last_tile(p);
    const te__sm90_epilogue_pair v = te__sm90_epilogue_pair_of(lane, k.pairing);
    const int columns = k.pairing.halves ? p->n / 2 : p->n;
    te__sm90_gemm_work w;
    te_epilogue_state state;
    state.amax_bits = 0;
    const int first_work = warp < TE_SM90_GEMM_EPILOGUE_WARPS ? 0 : last_tile;
    for (int j = first_work; j >= 0 && te__sm90_gemm_get_work(&w, p, j); j++) {
        const int x = w.x, y = w.y, is_last = j == last_tile;
        if (w.split > 0) continue;
        if (is_last) te__sm90_epilogue_sync_last_tile();
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            const te__sm90_epilogue_slice slice = te__sm90_epilogue_slice_of(warp, half, is_last);
            const uint32_t staging =
                is_last ? te__sm90_gemm_last_staging(ring, 2 * half) : te__sm90_gemm_staging(ring, 0);
            const int col = te__sm90_gemm_quarter_column(p, x, 2 * half + v.first / 8, k) + v.first % 8 * 8;
            const int other_col = te__sm90_gemm_quarter_column(p, x, 2 * half + v.second / 8, k) + v.second % 8 * 8;
            TE_UNROLL for (int b = 0; b < 2; b++)
                if (!is_last) te__barrier_wait(te__shared_address(&bars->staged_full[b]), half);
#pragma unroll 1
            for (int part = slice.first; part < TE_SM90_EPILOGUE_PARTS; part += slice.stride) {
                const int row = te__sm90_epilogue_row(part, lane);
                const uint32_t rows = staging + part / 4 * 2 * TE_SM90_GEMM_SUBTILE_BYTES;
                const uint32_t first = rows + v.first / 8 * TE_SM90_GEMM_SUBTILE_BYTES,
                               second = rows + v.second / 8 * TE_SM90_GEMM_SUBTILE_BYTES;
                uint32_t a[4], b[4];
                te__lds128(a, te__sm90_gemm_swizzle(first, row % 16, v.first % 8));
                te__lds128(b, te__sm90_gemm_swizzle(second, row % 16, v.second % 8));
                if (y + row < p->m && col < columns) epilogue(arg, a, b, y + row, col, other_col, &state);
            }
            __syncwarp();
            TE_UNROLL for (int b = 0; b < 2; b++)
                if (lane == 0 && !is_last) te__barrier_arrive(te__shared_address(&bars->staged_empty[b]));
        }
    }
    if (k.dtype_a != k.dtype) te__sm90_epilogue_store_amax(p, &state); /* only FP8 GEMMs compute an amax */
}
#endif

#endif
