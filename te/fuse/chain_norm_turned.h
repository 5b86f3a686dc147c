/* chain_norm_turned.h -- a norm in front of a product in FP8 whose list keeps inputs, (inputs, kept): y in FP8 as it
 * lies, for the product, and transposed, for the weight's gradient, in one pass. Hopper; the scale is known before.
 *
 * A block has a tile of 32 rows and 256 columns (1024 where a row has more than 4096, 512 of two tensors), a cluster
 * all tiles of these rows. Clusters are persistent. TMA brings what the chain reads, x and the tensor that it adds,
 * into a ring of three tiles. One tile ahead of the one that it stores, a block runs the ops in front of the norm, and
 * sends each row's mean and sum of squares to all blocks of the cluster (st.async to their shared memory). These are
 * combined without cancellation (Chan, Golub and LeVeque 1979): squares = sum of m2_i + n_i (mean_i - mean)^2. So the
 * statistics may differ from those of the kernel for rows in their last bits; y, its transpose, amax and what backward
 * reads follow from the same ones.
 *
 * Bytes an element of a bf16 list: 2 + 1 + 1, with an add and a fork 2 + 2 + 2 + 1 + 1; the floor is a copy of as many.
 * The kernel for rows and one that transposes take 2 more. One H100, over the rate of a copy of as many bytes,
 * layernorm and rmsnorm: 32768 x 4096 0.83 and 0.82 (in two kernels 0.74 and 0.77), with an add and a fork 0.90 and
 * 0.90; 8192 x 4096 0.82 and 0.82, with both 0.88 and 0.85; 32768 x 8192 0.85 and 0.80, with both 0.88 and 0.91.
 */
#ifndef TE_FUSE_CHAIN_NORM_TURNED_H
#define TE_FUSE_CHAIN_NORM_TURNED_H

#include "chain_norm.h" /* te_norm_of8 */

#if TE_CUDA
#include "../core/bits.h"        /* te_turn_bytes */
#include "../core/hopper_cuda.h" /* te__barrier_wait_cluster */

enum {
    TE_TURNED_ROWS = 32,  /* of a tile: 32 bytes of a column of the transpose, a sector */
    TE_TURNED_PART = 256, /* columns of a warp, which has four rows of them */
    TE_TURNED_GROUPS = TE_TURNED_ROWS / 4,
    TE_TURNED_STAGES = 3,
    /* Tiles whose sums a block has room for: one that sends those of tile i has got those of i - 2 from all others,
     * which may still read those of i - 3. */
    TE_TURNED_SUMS = 4,
    TE_TURNED_MOST_CLUSTER = 16,
    TE_TURNED_ROOM = 227 << 10,  /* shared memory of a block, at most */
    TE_TURNED_OWN = 1 << 10      /* that the system takes of each block's, and the barriers */
};
/* Of a row of 256 columns: its mean and the sum of squared distances from it. */
typedef struct __attribute__((aligned(8))) te_turned_sum { float mean, squares; } te_turned_sum;
typedef struct te_turned_barriers { uint64_t full[TE_TURNED_STAGES], got[TE_TURNED_SUMS]; } te_turned_barriers;

/* All constants: columns of a block, blocks of a cluster, tensors that TMA brings, tiles of the ring; bytes of that and
 * of the sums behind it; threads, and blocks on a multiprocessor. exists: whether there is such a kernel. */
typedef struct te_turned_kind {
    int cols, cluster, reads, stages, ring, shared, threads, resident, exists;
} te_turned_kind;

/* A GPC has 16 multiprocessors, some have 18: clusters of blocks that fill one each are to leave few of them idle. */
TE_BOTH_CONST te_turned_kind te__turned_kind(int half, int reads) {
    const int cols = half <= 4096 ? TE_TURNED_PART : reads > 1 ? 512 : 1024;
    te_turned_kind t = {cols, half / cols, reads, TE_TURNED_STAGES, 0, 0, 0, 0, 0};
    const int tile = reads * TE_TURNED_ROWS * t.cols * 2;
    const int sums = TE_TURNED_SUMS * TE_TURNED_ROWS * (half / TE_TURNED_PART) * (int)sizeof(te_turned_sum);
    if (t.stages * tile + sums + TE_TURNED_OWN > TE_TURNED_ROOM) t.stages--;
    t.ring = t.stages * tile, t.shared = t.ring + sums;
    t.threads = TE_TURNED_GROUPS * (t.cols / TE_TURNED_PART) * 32;
    t.resident = t.cols > TE_TURNED_PART ? 1 : reads > 1 ? 2 : 3;
    t.exists = half % cols == 0 && t.cluster <= TE_TURNED_MOST_CLUSTER && t.shared + TE_TURNED_OWN <= TE_TURNED_ROOM &&
               (t.resident > 1 || 16 / t.cluster * t.cluster >= 12);
    return t;
}

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* What a block works with. */
typedef struct te_turned_block {
    char *ring;
    te_turned_sum *sum; /* [TE_TURNED_SUMS][TE_TURNED_GROUPS][parts of a row][4] */
    te_turned_barriers *bars;
    int64_t rows, first;  /* of the tensor; the first of tile 0 of this cluster */
    int rank, step;       /* rows from one of its tiles to the next */
    int group, part, col; /* a warp's four rows and its part of the block's columns; a lane's first column */
} te_turned_block;

TE_FN int64_t te__turned_row(const te_turned_block *b, int i) { return b->first + (int64_t)i * b->step; }
/* Tensor `of` of tile i, and where this lane's eight elements of row r of its four lie. */
TE_FN char *te__turned_tile(const te_turned_block *b, const te_turned_kind t, int i, int of) {
    return b->ring + (i % t.stages * t.reads + of) * (TE_TURNED_ROWS * t.cols * 2);
}
TE_FN uint4 *te__turned_at(const te_turned_block *b, const te_turned_kind t, int i, int of, int r) {
    const int column = b->part * TE_TURNED_PART + (int)threadIdx.x % 32 * 8;
    return (uint4 *)(void *)(te__turned_tile(b, t, i, of) + ((b->group * 4 + r) * t.cols + column) * 2);
}
TE_FN te_vec8 te__turned_get(const uint4 *from) {
    const uint4 v = *from;
    const te_vec8 e = {{v.x, v.y, v.z, v.w, 0, 0, 0, 0}};
    return e;
}
TE_FN void te__turned_floats(float v[8], const uint4 *from, te_dtype dtype) {
    const te_vec8 e = te__turned_get(from);
    te_vec8_floats(v, &e, dtype);
}
/* The sums of tile i that this warp's four rows have: [parts of a row][4]. */
TE_FN te_turned_sum *te__turned_sums_of(const te_turned_block *b, int i, const int parts) {
    return b->sum + (i % TE_TURNED_SUMS * TE_TURNED_GROUPS + b->group) * parts * 4;
}
/* Warp 0: the rows of tile i, those that exist. */
TE_FN void te__turned_load(const te_turned_block *b, const te_chain *c, const te_chain_shape k, const te_turned_kind t,
                           int i) {
    const int lane = (int)threadIdx.x % 32, bytes = t.cols * 2;
    const int64_t row = te__turned_row(b, i) + lane;
    const uint32_t bar = te__shared_address(&b->bars->full[i % t.stages]);
    const int exist = (int)te_min(TE_TURNED_ROWS, b->rows - te__turned_row(b, i));
    if (lane == 0) te__barrier_expect(bar, exist * bytes * t.reads);
    __syncwarp();
    TE_UNROLL for (int of = 0; of < t.reads; of++) {
        const char *from = (const char *)(of ? c->op[k.reads].edge : c->x);
        const uint32_t to = te__shared_address(te__turned_tile(b, t, i, of)) + (uint32_t)(lane * bytes);
        if (lane < exist) te__bulk_load(to, from + (row * k.half + b->rank * t.cols) * 2, bytes, bar);
    }
}
/* The sum over the warp of v[0..3], one of the four a lane: that of row lane / 16 * 2 + lane / 8 % 2. */
TE_FN float te__turned_sum4(float v[4]) {
    const int lane = (int)threadIdx.x % 32;
    TE_UNROLL for (int r = 0; r < 2; r++) {
        const float mine = lane & 16 ? v[r + 2] : v[r], other = lane & 16 ? v[r] : v[r + 2];
        v[r] = mine + __shfl_xor_sync(~0u, other, 16);
    }
    const float mine = lane & 8 ? v[1] : v[0], other = lane & 8 ? v[0] : v[1];
    float sum = mine + __shfl_xor_sync(~0u, other, 8);
    TE_UNROLL for (int o = 4; o > 0; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    return sum;
}
/* The ops in front of the norm on row r of a lane's four of tile i; their result takes the place of x. */
TE_FN void te__turned_before(const te_turned_block *b, const te_chain *c, te_stages_fn stages, const te_chain_shape k,
                             const te_turned_kind t, int i, int r) {
    uint4 *const at = te__turned_at(b, t, i, 0, r);
    te_vec8 x = te__turned_get(at);
    const int64_t row = te__turned_row(b, i) + b->group * 4 + r;
    te_lane l;
    if (k.norm_reads_x || row >= b->rows) return;
    l.at = te_place_of(k, row, b->col / 8, 1);
    te_vec8_floats(l.v, &x, k.in);
    if (t.reads > 1) l.at.ahead_of = &c->op[k.reads], l.at.ahead = te__turned_get(te__turned_at(b, t, i, 1, r));
    stages(&l, c, 0, k.norm);
    te_vec8_of(&x, l.v, k.norm_in);
    *at = make_uint4(x.w[0], x.w[1], x.w[2], x.w[3]);
}
/* They, and what the norm needs of tile i, to all blocks of the cluster. Rows that do not exist send anything. */
TE_FN void te__turned_sums(const te_turned_block *b, const te_chain *c, te_stages_fn stages, const te_chain_shape k,
                           const te_turned_kind t, int i) {
    const int lane = (int)threadIdx.x % 32, centred = (k.norm_options.code & 3) == TE_NORM_layernorm;
    const int parts = k.half / TE_TURNED_PART;
    const uint32_t got = te__shared_address(&b->bars->got[i % TE_TURNED_SUMS]);
    float v[8], sum[4];
    te_turned_sum mine = {0, 0};
    if (threadIdx.x == 0) te__barrier_expect(got, TE_TURNED_ROWS * parts * (int)sizeof mine);
    te__barrier_wait(te__shared_address(&b->bars->full[i % t.stages]), i / t.stages & 1);
    TE_UNROLL for (int r = 0; r < 4; r++) {
        te__turned_before(b, c, stages, k, t, i, r);
        te__turned_floats(v, te__turned_at(b, t, i, 0, r), k.norm_in);
        sum[r] = 0;
        TE_UNROLL for (int j = 0; j < 8; j++) sum[r] += centred ? v[j] : v[j] * v[j];
    }
    mine.squares = te__turned_sum4(sum);
    if (centred) {
        mine.mean = mine.squares / TE_TURNED_PART;
        TE_UNROLL for (int r = 0; r < 4; r++) {
            const float mean = __shfl_sync(~0u, mine.mean, r / 2 * 16 + r % 2 * 8);
            te__turned_floats(v, te__turned_at(b, t, i, 0, r), k.norm_in);
            sum[r] = 0;
            TE_UNROLL for (int j = 0; j < 8; j++) sum[r] += (v[j] - mean) * (v[j] - mean);
        }
        mine.squares = te__turned_sum4(sum);
    }
    const int part = b->rank * (t.cols / TE_TURNED_PART) + b->part, row = lane / 16 * 2 + lane / 8 % 2;
    const uint32_t to = te__shared_address(te__turned_sums_of(b, i, parts) + part * 4 + row);
    const uint64_t both = (uint64_t)__float_as_uint(mine.squares) << 32 | __float_as_uint(mine.mean);
    TE_UNROLL for (int rank = 0; rank < t.cluster; rank += 8)
        if (rank + lane % 8 < t.cluster) te__cluster_send8(to, both, got, rank + lane % 8);
}
/* Mean, and rstd in the place of squares, of row lane % 4 of this warp's four rows of tile i. */
TE_FN te_turned_sum te__turned_stats(const te_turned_block *b, const te_chain_shape k, int i) {
    const int lane = (int)threadIdx.x % 32, parts = k.half / TE_TURNED_PART;
    const te_turned_sum *const of = te__turned_sums_of(b, i, parts) + lane; /* part lane / 4, row lane % 4 */
    te_turned_sum all = {0, 0};
    te__barrier_wait_cluster(te__shared_address(&b->bars->got[i % TE_TURNED_SUMS]), i / TE_TURNED_SUMS & 1);
    if ((k.norm_options.code & 3) == TE_NORM_layernorm) {
        TE_UNROLL for (int p = 0; p < parts; p += 8) if (p + lane / 4 < parts) all.mean += of[p * 4].mean;
        TE_UNROLL for (int o = 4; o < 32; o <<= 1) all.mean += __shfl_xor_sync(~0u, all.mean, o);
        all.mean /= (float)parts;
    }
    TE_UNROLL for (int p = 0; p < parts; p += 8) {
        if (p + lane / 4 >= parts) continue;
        const te_turned_sum one = of[p * 4];
        all.squares += one.squares + TE_TURNED_PART * ((one.mean - all.mean) * (one.mean - all.mean));
    }
    TE_UNROLL for (int o = 4; o < 32; o <<= 1) all.squares += __shfl_xor_sync(~0u, all.squares, o);
    all.squares = te_norm_rstd(all.squares, (float)k.half, k.norm_options);
    return all;
}
/* Four rows of tile i, normed: stored in FP8 as they lie, and into word. Rows that do not exist: zeros. gamma and beta
 * are loaded for each tile: kept from one to the next, a layernorm's were spilled (32768 x 8192 617 us, now 422). */
TE_FN void te__turned_rows(uint32_t word[2][4], const te_turned_block *b, const te_chain *c, te_stages_fn stages,
                           const te_chain_shape k, const te_turned_kind t, int i, float scale, uint32_t *most) {
    const te_stage *s = &c->op[k.norm];
    const int lane = (int)threadIdx.x % 32, centred = (k.norm_options.code & 3) == TE_NORM_layernorm;
    const te_turned_sum own = te__turned_stats(b, k, i);
    const int64_t first = te__turned_row(b, i) + b->group * 4;
    const int exist = (int)te_min(4, b->rows - first);
    const te_place columns = te_place_of(k, 0, b->col / 8, 1);
    te_vec8 gamma, beta;
    memset(&gamma, 0, sizeof gamma), memset(&beta, 0, sizeof beta);
    te_load_gamma(&gamma, s, columns, k.weight, k.norm_options.code);
    if (centred) te_vec8_load(&beta, s->w[1], columns.col, 8, 1, k.weight);
    if (s->stats && b->rank == 0 && b->part == 0 && lane < 4 && lane < exist) {
        if (centred) s->stats[2 * (first + lane)] = own.mean;
        s->stats[centred ? 2 * (first + lane) + 1 : first + lane] = own.squares;
    }
    TE_UNROLL for (int r = 0; r < 4; r++) {
        const float mean = centred ? __shfl_sync(~0u, own.mean, r) : 0.0f, rstd = __shfl_sync(~0u, own.squares, r);
        float v[8];
        te_vec8 e;
        te_lane l;
        word[0][r] = word[1][r] = 0;
        if (r >= exist) continue;
        l.at = te_place_of(k, first + r, b->col / 8, 1);
        te__turned_floats(v, te__turned_at(b, t, i, 0, r), k.norm_in);
        te_norm_of8(l.v, v, mean, rstd, &gamma, &beta, k);
        te_keep(&l, s, k.norm_out);
        stages(&l, c, k.norm + 1, TE_MAX_ROW);
        *most = te_amax_bits8(*most, l.v);
        TE_UNROLL for (int j = 0; j < 8; j++) l.v[j] *= scale;
        te_vec8_of_fp8(&e, l.v, (te_dtype)k.fp8);
        word[0][r] = e.w[0], word[1][r] = e.w[1];
        *(uint2 *)((char *)c->fp8.y + te_index(l.at)) = make_uint2(e.w[0], e.w[1]);
    }
}
/* The tile's transpose, by way of its place in the ring: a word is four rows of a column. */
TE_FN void te__turned_store(const uint32_t word[2][4], const te_turned_block *b, const te_chain *c,
                            const te_turned_kind t, int i) {
    enum { PIECES = TE_TURNED_ROWS / 16 };
    uint32_t *const tile = (uint32_t *)(void *)te__turned_tile(b, t, i, 0);
    uint32_t column[8];
    te_turn_bytes(column, word[0]), te_turn_bytes(column + 4, word[1]);
    __syncthreads(); /* all of the tile has been read */
    uint4 *const to = (uint4 *)(tile + b->group * t.cols + b->col % t.cols);
    to[0] = make_uint4(column[0], column[1], column[2], column[3]);
    to[1] = make_uint4(column[4], column[5], column[6], column[7]);
    __syncthreads();
    TE_UNROLL for (int n = 0; n < t.cols * PIECES / t.threads; n++) {
        const int e = n * t.threads + (int)threadIdx.x, col = e / PIECES, piece = e % PIECES;
        const uint32_t *const from = tile + piece * 4 * t.cols + col;
        const int64_t row = te__turned_row(b, i) + piece * 16;
        if (row >= c->scaled.yt_cols) continue;
        *(uint4 *)((char *)c->scaled.yt + (int64_t)(b->rank * t.cols + col) * c->scaled.yt_cols + row) =
            make_uint4(from[0], from[t.cols], from[2 * t.cols], from[3 * t.cols]);
    }
    __syncthreads();
}
TE_FN void te__turned_begin(te_turned_barriers *bars) {
    if (threadIdx.x == 0) {
        TE_UNROLL for (int i = 0; i < TE_TURNED_STAGES; i++) te__barrier_init(te__shared_address(&bars->full[i]), 1);
        TE_UNROLL for (int i = 0; i < TE_TURNED_SUMS; i++) te__barrier_init(te__shared_address(&bars->got[i]), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    te__cluster_sync();
    te_kernel_begin();
}
TE_FN void te_chain_norm_turned_body(const te_chain *c, te_stages_fn stages, const te_chain_shape k,
                                     const te_turned_kind t, char *ring, te_turned_barriers *bars) {
    const int warp = (int)threadIdx.x / 32, parts = t.cols / TE_TURNED_PART;
    const int cluster = (int)blockIdx.x / t.cluster, clusters = (int)gridDim.x / t.cluster;
    const int64_t tiles = te_ceil_div(c->rows, TE_TURNED_ROWS);
    const int n = cluster < tiles ? (int)((tiles - cluster + clusters - 1) / clusters) : 0;
    te_turned_block b = {ring, (te_turned_sum *)(void *)(ring + t.ring), bars, c->rows,
                         (int64_t)cluster * TE_TURNED_ROWS, te__cluster_rank(), clusters * TE_TURNED_ROWS,
                         warp / parts, warp % parts, 0};
    uint32_t most = 0;
    int one;
    te__turned_begin(bars);
    b.col = b.rank * t.cols + b.part * TE_TURNED_PART + (int)threadIdx.x % 32 * 8;
    const float scale = te_load_scale(c->fp8.scale);
    if (c->take.taken && blockIdx.x == 0 && threadIdx.x == 0) te_rng_take_body(&c->take);
    for (int i = 0; warp == 0 && i < t.stages && i < n; i++) te__turned_load(&b, c, k, t, i);
    if (n) te__turned_sums(&b, c, stages, k, t, 0);
    for (int i = 0; i < n; i++) {
        uint32_t word[2][4];
        if (i + 1 < n) te__turned_sums(&b, c, stages, k, t, i + 1);
        te__turned_rows(word, &b, c, stages, k, t, i, scale, &most);
        te__turned_store(word, &b, c, t, i);
        if (warp || i + t.stages >= n) continue;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* threads wrote here, now the copy engine does */
        te__turned_load(&b, c, k, t, i + t.stages);
    }
    if (c->fp8.amax) te_amax_raise(c->fp8.amax, most, te_lanes_here(32, &one));
    if (c->fp8.inverse && blockIdx.x == 0 && threadIdx.x == 0) te_scale_keep(c->fp8.inverse, scale);
    te__cluster_sync(); /* nobody leaves while others may send to it */
}
#else
TE_FN void te_chain_norm_turned_body(const te_chain *c, te_stages_fn stages, const te_chain_shape k,
                                     const te_turned_kind t, char *ring, te_turned_barriers *bars) {
    (void)c, (void)stages, (void)k, (void)t, (void)ring, (void)bars;
}
#endif
#endif

#endif
