/* attention_sm90_decode.h -- decoding: attention of a few new rows of each sequence over a cache, in bf16 and f16 on
 * compute capability 9.0. Keys are split among blocks: Dao et al. 2023 (Flash-Decoding).
 *
 * The query heads that share one head of keys form a tile of 16 rows, (query, head of the group). The keys of a tile
 * are divided into splits of TE_CACHE_SPLIT keys by their position alone, so that the result of a row is bitwise
 * identical in every batch. Blocks are persistent: block b processes the work items b, b + grid, .. of the list (split,
 * head of keys, tile). te_cache_begin has stored the length of that list in te_attention_cache.first_split, because the
 * host knows no sequence length.
 *
 * A second kernel merges the splits of sequences that have several. A block cannot merge them at low cost: while the
 * memory is saturated, each of its fences, atomics and loads waits behind the queued copies, 5 us on an H200.
 *
 *     producer   one warp copies the pages of K and V to a ring of stages, 64 keys or values at a time
 *     consumers  four warps. They copy the keys and values of the new rows to their stage and to the cache. Each warp
 *                computes S = Q K^T for 16 keys of a stage; the warps exchange the maxima and P through shared memory;
 *                each adds P V for a quarter of O's columns
 *
 * Floor: the keys and values, 2 kv_heads (head_dim + value_dim) bytes a token, at the rate of a read. The tensor cores
 * are busy for a fifth of that time.
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM90_DECODE_H
#define TE_ATTENTION_SM90_DECODE_H

#include "../../core/impl/ptx_cuda.h" /* barriers, te__mma_sync */
#include "attention_sm80_forward.h"   /* te__attn_quad_sum */
#include "attention_sm80_tiles.h"     /* te__attn_ldmatrix, te__attn_pack_all, options of scores */

enum {
    TE__DECODE_KEYS = 64,           /* of a stage */
    TE__DECODE_WARPS = 4,           /* consumers */
    TE__DECODE_MAX_SEQUENCES = 512, /* of a batch, whose lengths each block has in shared memory */
    TE__DECODE_MAX_STAGES = 8,
    TE__MERGE_WARPS = 8             /* of a block of the merge */
};

template <int D, int V> struct te__decode_traits {
    static constexpr int THREADS = (TE__DECODE_WARPS + 1) * 32, WIDEST = D > V ? D : V;
    static constexpr int BLOCKS = WIDEST <= 64 ? 4 : WIDEST <= 128 ? 3 : 2; /* on a multiprocessor */
    static constexpr int STAGE_BYTES = TE__DECODE_KEYS * WIDEST * 2;
    static constexpr int COLUMNS = V / TE__DECODE_WARPS; /* of O, of a warp */
    static constexpr int P_BYTES = (int)TE__DECODE_ROWS * (int)TE__DECODE_KEYS * 2;
    static constexpr int STATS_BYTES = 2 * (int)TE__DECODE_WARPS * (int)TE__DECODE_ROWS * 4; /* maxima and sums */
    static constexpr int LENGTHS_BYTES = 3 * (TE__DECODE_MAX_SEQUENCES + 1) * 4;
    static constexpr int BUDGET = 226 * 1024 / BLOCKS - 1024 - P_BYTES - STATS_BYTES - LENGTHS_BYTES;
    static constexpr int STAGES =
        BUDGET / STAGE_BYTES < TE__DECODE_MAX_STAGES ? BUDGET / STAGE_BYTES : TE__DECODE_MAX_STAGES;
    static constexpr int SHARED = STAGES * STAGE_BYTES + P_BYTES + STATS_BYTES + LENGTHS_BYTES;
    static_assert(STAGES >= 2, "te: attention: the stages of this head_dim exceed shared memory");
};

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

TE_FN void te__bulk_copy(uint32_t to, const void *from, int bytes, uint32_t bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}
TE_FN void te__decode_consumers_sync(void) { asm volatile("bar.sync 1, %0;" ::"n"(TE__DECODE_WARPS * 32) : "memory"); }

/* What a block knows of the batch, in shared memory. */
struct te__decode_lengths {
    const int *first_split, *past, *first_row;
    int longest; /* new rows of a sequence at most, also where cu_seqlens says more */
};

/* A tile of a sequence. */
struct te__decode_tile {
    int rows;            /* (query, head of the group) */
    int keys;            /* of the sequence, including those of the new rows */
    te__attn_mask mask;
    te__attn_range seen; /* by the tile's queries */
    int splits, first;   /* the number of splits that have such keys, and the first of these splits */
};
/* queries, past: the new rows of the sequence, and the tokens that the cache had of it before (-1: refused). */
template <int GROUP, class F> TE_FN te__decode_tile te__decode_tile_of(int tile, int queries, int past) {
    te__decode_tile w;
    const int row = tile * TE__DECODE_ROWS, left = queries * GROUP - row, query = row / GROUP;
    w.rows = left < TE__DECODE_ROWS ? left : (int)TE__DECODE_ROWS;
    w.keys = past < 0 ? 0 : past + queries;
    w.mask = te__attn_mask_between(queries, w.keys, F::LEFT, F::RIGHT);
    w.seen = te__attn_keys_of(w.mask, query, (row + w.rows - 1) / GROUP - query + 1);
    if (w.seen.end > w.keys) w.seen.end = w.keys;
    w.first = w.seen.first / TE_CACHE_SPLIT;
    w.splits = w.seen.end > w.seen.first ? (w.seen.end + TE_CACHE_SPLIT - 1) / TE_CACHE_SPLIT - w.first : 0;
    return w;
}

/* One item of work: a split of a tile. */
struct te__decode_item : te__decode_tile {
    int i, kv_head, tile;
    int first_row;          /* of the sequence, in the batch */
    int split, begin, stop; /* the item's keys, from a multiple of TE__DECODE_KEYS on; none: stop <= begin */
    int is_needed;          /* it has keys, or it writes the zeros of a tile without keys */
};
template <int HEADS, int KV_HEADS, class F>
TE_FN te__decode_item te__decode_item_of(const te__decode_lengths &n, int count, int tiles, int index) {
    constexpr int GROUP = HEADS / KV_HEADS;
    te__decode_item w;
    const int at = index / (KV_HEADS * tiles); /* the split, counted over all sequences */
    w.kv_head = index / tiles % KV_HEADS, w.tile = index % tiles;
    int low = 0, high = count;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (n.first_split[middle] <= at) low = middle;
        else high = middle;
    }
    w.i = low, w.split = at - n.first_split[low], w.first_row = n.first_row[low];
    const int rows = n.first_row[low + 1] - w.first_row;
    static_cast<te__decode_tile &>(w) =
        te__decode_tile_of<GROUP, F>(w.tile, rows < n.longest ? rows : n.longest, n.past[low]);
    const int from = w.seen.first / TE__DECODE_KEYS * TE__DECODE_KEYS, to = (w.split + 1) * TE_CACHE_SPLIT;
    w.begin = w.split * TE_CACHE_SPLIT > from ? w.split * TE_CACHE_SPLIT : from;
    w.stop = w.seen.end < to ? w.seen.end : to;
    const int has_keys = w.split >= w.first && w.split < w.first + w.splits;
    w.is_needed = w.rows > 0 && (w.splits ? has_keys : w.split == 0);
    if (!has_keys) w.stop = w.begin;
    return w;
}

/* ---- the producer ------------------------------------------------------------------------------------------------ */

struct te__decode_ring { int stage, phase; };
template <int STAGES> TE_FN void te__decode_advance(te__decode_ring &r) {
    if (++r.stage == STAGES) r.stage = 0, r.phase ^= 1;
}
/* Where the warp copies from. page: lane l holds the page of key origin + 16 l. head_rows: the element of a page where
 * the rows of the head begin; d: elements of a row. */
struct te__decode_source {
    int page, origin, d;
    int64_t head_rows;
};
/* Copy `rows` rows from `key` on to the stage at `to`; `full` is the stage's barrier. */
TE_FN void te__decode_copy(const te_attention_cache &c, const te__decode_source &s, int key, int rows, uint32_t to,
                           uint32_t full) {
    const int d = s.d, lane = (int)threadIdx.x % 32;
    const int chunk = c.page_rows < TE__DECODE_KEYS ? c.page_rows : (int)TE__DECODE_KEYS;
    const int from = key + lane * chunk, left = rows - lane * chunk;
    const int page = __shfl_sync(~0u, s.page, ((from - s.origin) / TE_CACHE_MIN_PAGE) & 31);
    if (lane == 0) te__barrier_arrive_expect_tx(full, rows * d * 2);
    __syncwarp();
    if (left <= 0) return;
    const int in_page = (int)((unsigned)from & ((1u << c.page_shift) - 1));
    const int64_t at = page * c.page_elements + s.head_rows + (int64_t)in_page * d;
    te__bulk_copy(to + (uint32_t)(lane * chunk * d * 2), (const uint16_t *)c.pages + at,
                  (left < chunk ? left : chunk) * d * 2, full);
}
template <int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__decode_produce(const te_attention_args *a, const te__decode_lengths &n, uint32_t stages, uint32_t full,
                              uint32_t empty, int items, int tiles) {
    constexpr int V = te__attn_value_dim<D, F>();
    typedef te__decode_traits<D, V> traits;
    const int lane = (int)threadIdx.x % 32;
    te__decode_ring ring = {0, 0};
    for (int index = (int)blockIdx.x; index < items; index += (int)gridDim.x) {
        const te__decode_item w = te__decode_item_of<HEADS, KV_HEADS, F>(n, a->batch, tiles, index);
        if (!w.is_needed || w.stop <= w.begin) continue;
        const int origin = w.split * TE_CACHE_SPLIT, key = origin + lane % 16 * TE_CACHE_MIN_PAGE;
        const int page = key < w.stop && key + TE_CACHE_MIN_PAGE > w.begin
                              ? te__cache_pages(&a->cache, w.i)[(unsigned)key >> a->cache.page_shift]
                              : 0;
        for (int k0 = w.begin; k0 < w.stop; k0 += TE__DECODE_KEYS) {
            const int left = (w.stop - k0 + TE_CACHE_MIN_PAGE - 1) / TE_CACHE_MIN_PAGE * TE_CACHE_MIN_PAGE;
            const int rows = left < TE__DECODE_KEYS ? left : (int)TE__DECODE_KEYS;
            TE_UNROLL for (int value = 0; value < 2; value++) {
                const te__decode_source from = {page, origin, value ? V : D,
                                                te__cache_head_rows(&a->cache, value, w.kv_head, KV_HEADS, D, V)};
                te__barrier_wait(empty + ring.stage * 8, ring.phase ^ 1);
                te__decode_copy(a->cache, from, k0, rows, stages + ring.stage * traits::STAGE_BYTES,
                                full + ring.stage * 8);
                te__decode_advance<traits::STAGES>(ring);
            }
        }
    }
}

/* ---- the consumers ----------------------------------------------------------------------------------------------- */

/* Row r of a tile: its query, counted in its sequence, and its head. */
template <int HEADS, int KV_HEADS> struct te__decode_row {
    int query, head;
    __device__ __forceinline__ te__decode_row(const te__decode_item &w, int r) {
        constexpr int GROUP = HEADS / KV_HEADS;
        const int row = w.tile * TE__DECODE_ROWS + r;
        query = row / GROUP, head = w.kv_head * GROUP + row % GROUP;
    }
};
/* The A fragments of the tile's queries; rows beyond the tile are zeros. */
template <int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__decode_load_q(uint32_t (&q)[D / 16][4], const te_attention_args *a, const te__decode_item &w) {
    constexpr int64_t QKV = te__attn_widths<HEADS, KV_HEADS, D, F>::QKV;
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    TE_UNROLL for (int half = 0; half < 2; half++) {
        const int r = g + half * 8, ok = r < w.rows;
        const te__decode_row<HEADS, KV_HEADS> row(w, ok ? r : 0);
        const uint16_t *from = (const uint16_t *)a->qkv + (w.first_row + row.query) * QKV + row.head * D + 2 * t;
        TE_UNROLL for (int k = 0; k < D / 16; k++) {
            q[k][half] = ok ? *(const uint32_t *)(from + k * 16) : 0u;
            q[k][half + 2] = ok ? *(const uint32_t *)(from + k * 16 + 8) : 0u;
        }
    }
}
/* Scores of keys that a row does not see become -inf. key: of s[0][0][0]. */
template <int HEADS, int KV_HEADS>
TE_FN void te__decode_mask(float (&s)[1][2][4], const te__decode_item &w, int key) {
    const int g = (int)threadIdx.x % 32 / 4;
    TE_UNROLL for (int half = 0; half < 2; half++) {
        const te__decode_row<HEADS, KV_HEADS> row(w, g + half * 8);
        TE_UNROLL for (int n = 0; n < 2; n++)
            TE_UNROLL for (int e = 0; e < 2; e++) {
                const int k = key + n * 8 + e;
                if (k >= w.stop || !te__attn_sees(w.mask, row.query, k)) s[0][n][2 * half + e] = -INFINITY;
            }
    }
}
/* Of the rows g and g + 8 of this lane: the maximum over all keys, the sum over the keys of this lane (at the end: over
 * all keys), and O in this warp's columns, N times eight of them. */
template <int N> struct te__decode_result { float max[2], sum[2], o[N][4]; };
/* Where the consumers exchange what each has of a stage. */
struct te__decode_exchange {
    float *max; /* [warps, rows]: the largest score of a warp's keys of the stage */
    float *sum; /* [warps, rows]: at the end, the sums. Its own array: a warp may begin the next item, and write its
                 * maxima, while another one still reads the sums */
    uint32_t p; /* [rows, keys] of the dtype; the 16-byte chunks of row r in the order chunk ^ (r % 8) */
};
/* S of this warp's 16 keys, in units of log 2, from a stage of K; masked. key: the first of them. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__decode_scores(float (&s)[1][2][4], const uint32_t (&q)[D / 16][4], const te_attention_args *a,
                             const te__decode_item &w, uint32_t stage, int key) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    /* the row that this lane passes to ldmatrix; the chunks of row r are stored in the order chunk ^ (r % 8) */
    const int row = warp * 16 + lane / 16 * 8 + lane % 8, chunk = lane / 8 % 2, swizzle = lane % 8;
    const uint32_t from = stage + (uint32_t)(row * D * 2);
    TE_UNROLL for (int k = 0; k < D / 16; k++) {
        uint32_t b[4];
        te__attn_ldmatrix(b, from + (uint32_t)(((k * 2 + chunk) ^ swizzle) * 16));
        te__mma_sync(s[0][0], q[k], b[0], b[1], T);
        te__mma_sync(s[0][1], q[k], b[2], b[3], T);
    }
    te__attn_apply_softcap<F, 1, 2>(s, a->scale);
    if constexpr (F::ALIBI)
        TE_UNROLL for (int e = 0; e < 4; e++) {
            const te__decode_row<HEADS, KV_HEADS> of(w, g + e / 2 * 8);
            TE_UNROLL for (int n = 0; n < 2; n++) {
                const int distance = of.query + w.mask.shift - (key + n * 8 + 2 * t + e % 2);
                s[0][n][e] = te__attn_with_alibi<F>(s[0][n][e],
                                                    te__attn_alibi_at<HEADS, F>(of.head, a->scale, distance), 0);
            }
        }
    if (te__attn_needs_mask(w.seen, key, 16)) te__decode_mask<HEADS, KV_HEADS>(s, w, key + 2 * t);
    const float c = te__attn_score_unit<F>(a->scale) * TE__ATTN_LOG2E;
    TE_UNROLL for (int n = 0; n < 2; n++) TE_UNROLL for (int e = 0; e < 4; e++) s[0][n][e] *= c;
}
/* Exchange the maxima of a stage: max becomes that of all keys so far, and rescale the factor of what was summed
 * before. */
TE_FN void te__decode_exchange_max(const te__decode_exchange &x, const float (&s)[1][2][4], float (&max)[2],
                                   float (&rescale)[2]) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    TE_UNROLL for (int half = 0; half < 2; half++) {
        float v = fmaxf(s[0][0][2 * half], s[0][0][2 * half + 1]);
        v = fmaxf(v, fmaxf(s[0][1][2 * half], s[0][1][2 * half + 1]));
        v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
        v = fmaxf(v, __shfl_xor_sync(~0u, v, 2));
        if (t == 0) x.max[warp * TE__DECODE_ROWS + g + half * 8] = v;
    }
    te__decode_consumers_sync();
    TE_UNROLL for (int half = 0; half < 2; half++) {
        float v = max[half];
        TE_UNROLL for (int k = 0; k < TE__DECODE_WARPS; k++) v = fmaxf(v, x.max[k * TE__DECODE_ROWS + g + half * 8]);
        rescale[half] = te_exp2(max[half] - (v == -INFINITY ? 0.0f : v)), max[half] = v;
    }
}
/* P of this warp's keys to shared memory, for all warps; sum: of this lane's part. */
template <te_dtype T>
TE_FN void te__decode_exchange_p(const te__decode_exchange &x, float (&s)[1][2][4], const float (&max)[2],
                                 const float (&rescale)[2], float (&sum)[2]) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    TE_UNROLL for (int half = 0; half < 2; half++) {
        const float offset = max[half] == -INFINITY ? 0.0f : max[half];
        float add = 0;
        TE_UNROLL for (int n = 0; n < 2; n++)
            TE_UNROLL for (int e = 2 * half; e < 2 * half + 2; e++) {
                s[0][n][e] = te_exp2(s[0][n][e] - offset), add += s[0][n][e];
            }
        sum[half] = sum[half] * rescale[half] + add;
    }
    uint32_t p[1][1][4]; /* rows g and g + 8 of keys 2 t, then of keys 2 t + 8 */
    te__attn_pack_all<T, 1, 2>(p, s);
    TE_UNROLL for (int k = 0; k < 4; k++) {
        const int row = g + k % 2 * 8, chunk = warp * 2 + k / 2;
        const uint32_t to = x.p + (uint32_t)(row * TE__DECODE_KEYS * 2 + (chunk ^ (row % 8)) * 16 + t * 4);
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(p[0][0][k]) : "memory");
    }
    te__decode_consumers_sync();
}
/* o += P V for this warp's columns, from a stage of V. key: the stage's first; stop: behind it the stage holds what was
 * there before, which may be no number. */
template <te_dtype T, int V>
TE_FN void te__decode_add_pv(float (&o)[te__decode_traits<V, V>::COLUMNS / 8][4], uint32_t p, uint32_t stage, int key,
                             int stop) {
    constexpr int COLUMNS = te__decode_traits<V, V>::COLUMNS;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, t = lane % 4;
    const int row = lane / 8 % 2 * 8 + lane % 8, chunk = lane / 16, swizzle = lane % 8;
    TE_UNROLL for (int k = 0; k < TE__DECODE_KEYS / 16; k++) {
        const int left = stop - key - k * 16;
        if (left <= 0) break;
        uint32_t a[4];
        te__attn_ldmatrix(a, p + (uint32_t)(row * TE__DECODE_KEYS * 2 + ((k * 2 + chunk) ^ swizzle) * 16));
        const uint32_t low = left >= 2 * t + 2 ? ~0u : left == 2 * t + 1 ? 0xffffu : 0u;
        const uint32_t high = left >= 2 * t + 10 ? ~0u : left == 2 * t + 9 ? 0xffffu : 0u;
        TE_UNROLL for (int n = 0; n < COLUMNS / 8; n += 2) {
            uint32_t b[4];
            const int column = warp * (COLUMNS / 8) + n + chunk;
            te__attn_ldmatrix_transposed(b, stage + (uint32_t)((k * 16 + row) * V * 2 + (column ^ swizzle) * 16));
            te__mma_sync(o[n], a, b[0] & low, b[1] & high, T);
            te__mma_sync(o[n + 1], a, b[2] & low, b[3] & high, T);
        }
    }
}
/* The keys (value 0) or values (1) of the batch's new rows are not in the cache yet. Copies those of a stage from qkv
 * to the stage, in the order in which the cache stores chunks. The tile that has the row's first query also
 * copies them to the cache. key: the first key of the stage. All consumers call this function. */
template <int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__decode_store_new(const te_attention_args *a, const te__decode_item &w, int value, uint32_t stage,
                                int key) {
    constexpr int V = te__attn_value_dim<D, F>(), GROUP = HEADS / KV_HEADS;
    const int past = w.keys - w.mask.queries, d = value ? V : D, chunks = d / 8;
    const int first = past > key ? past : key, end = w.stop < key + TE__DECODE_KEYS ? w.stop : key + TE__DECODE_KEYS;
    const int64_t column = te__attn_kv_column<HEADS, KV_HEADS, D, F>(value, w.kv_head);
    const int64_t rows = te__cache_head_rows(&a->cache, value, w.kv_head, KV_HEADS, D, V);
    for (int j = (int)threadIdx.x; j < (end - first) * chunks; j += TE__DECODE_WARPS * 32) {
        const int k = first + j / chunks, chunk = j % chunks, row = k - past, to = (chunk ^ (k % 8)) * 8;
        const int64_t from = (w.first_row + row) * te__attn_widths<HEADS, KV_HEADS, D, F>::QKV + column + chunk * 8;
        const uint4 v = *(const uint4 *)((const uint16_t *)a->qkv + from);
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(stage + (uint32_t)(((k - key) * d + to) * 2)),
                     "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                     : "memory");
        if (row * GROUP / TE__DECODE_ROWS == w.tile)
            *(uint4 *)((uint16_t *)a->cache.pages +
                       te__cache_row(&a->cache, te__cache_pages(&a->cache, w.i), rows, k, d) + to) = v;
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* the producer's next copy comes after these stores */
    te__decode_consumers_sync();
}
/* All keys of an item: max, the sum of this lane's part, and o. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, int N>
TE_FN void te__decode_multiply(const te_attention_args *a, const te__decode_item &w, te__decode_ring &ring,
                               uint32_t stages, uint32_t full, uint32_t empty, const te__decode_exchange &x,
                               te__decode_result<N> &r) {
    constexpr int V = te__attn_value_dim<D, F>();
    typedef te__decode_traits<D, V> traits;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    uint32_t q[D / 16][4];
    te__decode_load_q<HEADS, KV_HEADS, D, F>(q, a, w);
    const auto release = [&] {
        __syncwarp();
        if (lane == 0) te__barrier_arrive(empty + ring.stage * 8);
        te__decode_advance<traits::STAGES>(ring);
    };
    const int past = w.keys - w.mask.queries;
    for (int k0 = w.begin; k0 < w.stop; k0 += TE__DECODE_KEYS) {
        const int key = k0 + warp * 16, end = w.stop < k0 + TE__DECODE_KEYS ? w.stop : k0 + TE__DECODE_KEYS;
        float s[1][2][4] = {}, rescale[2];
        te__barrier_wait(full + ring.stage * 8, ring.phase);
        if (end > past)
            te__decode_store_new<HEADS, KV_HEADS, D, F>(a, w, 0, stages + ring.stage * traits::STAGE_BYTES, k0);
        if (key < w.stop)
            te__decode_scores<T, HEADS, KV_HEADS, D, F>(s, q, a, w, stages + ring.stage * traits::STAGE_BYTES, key);
        else
            TE_UNROLL for (int n = 0; n < 2; n++) TE_UNROLL for (int e = 0; e < 4; e++) s[0][n][e] = -INFINITY;
        release();
        te__decode_exchange_max(x, s, r.max, rescale);
        te__decode_exchange_p<T>(x, s, r.max, rescale, r.sum);
        if (__any_sync(~0u, rescale[0] != 1.0f || rescale[1] != 1.0f))
            TE_UNROLL for (int n = 0; n < N; n++) TE_UNROLL for (int e = 0; e < 4; e++) r.o[n][e] *= rescale[e / 2];
        te__barrier_wait(full + ring.stage * 8, ring.phase);
        if (end > past)
            te__decode_store_new<HEADS, KV_HEADS, D, F>(a, w, 1, stages + ring.stage * traits::STAGE_BYTES, k0);
        te__decode_add_pv<T, V>(r.o, x.p, stages + ring.stage * traits::STAGE_BYTES, k0, w.stop);
        release();
    }
}
/* The sums over the warps' keys, in every lane. */
TE_FN void te__decode_exchange_sum(const te__decode_exchange &x, float (&sum)[2]) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    te__decode_consumers_sync(); /* all warps have read the sums of the last item, which may have had no keys */
    TE_UNROLL for (int half = 0; half < 2; half++) {
        sum[half] = te__attn_quad_sum(sum[half]);
        if (t == 0) x.sum[warp * TE__DECODE_ROWS + g + half * 8] = sum[half];
    }
    te__decode_consumers_sync();
    TE_UNROLL for (int half = 0; half < 2; half++) {
        sum[half] = 0;
        TE_UNROLL for (int k = 0; k < TE__DECODE_WARPS; k++) sum[half] += x.sum[k * TE__DECODE_ROWS + g + half * 8];
    }
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* The factor of O in the output. max, sum: over all keys; sink: the logit of the row's sink in units of log 2, or
 * -inf. */
TE_FN float te__decode_scale(float max, float sum, float sink) {
    if (max == -INFINITY) return 0.0f; /* the row sees no key */
    const float all = sum + te_exp2(sink - max);
    return all > 0 ? 1.0f / all : 0.0f;
}
/* Store two columns of a row of the tile. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__decode_store(const te_attention_args *a, const te__decode_item &w, int r, int column, float2 o,
                            float max, float sum) {
    constexpr int V = te__attn_value_dim<D, F>();
    const te__decode_row<HEADS, KV_HEADS> row(w, r);
    const float unit = te__attn_score_unit<F>(a->scale) * TE__ATTN_LOG2E;
    const float sink = F::SINKS ? te__attn_sink<T, F>(a, row.head) * unit : -INFINITY;
    const float scale = te__decode_scale(max, sum, sink);
    const float v[8] = {o.x * scale, o.y * scale, 0, 0, 0, 0, 0, 0};
    te_vec8 e;
    te_vec8_of(&e, v, T);
    const int64_t at = (int64_t)(w.first_row + row.query) * (HEADS * V) + row.head * V + column;
    *(uint32_t *)((uint16_t *)a->out + at) = e.w[0];
}

/* Store an item's result: the output if its tile has one split, else a partial result: `rows` rows of V floats, then
 * (max, sum) of each row. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, int N>
TE_FN void te__decode_finish(const te_attention_args *a, const te__decode_item &w, int index,
                             const te__decode_result<N> &result) {
    constexpr int V = te__attn_value_dim<D, F>();
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int rows = te__decode_partial_rows(a->seq, HEADS / KV_HEADS);
    float *const partial = a->cache.partials + index * te__decode_partial_floats(rows, V);
    TE_UNROLL for (int half = 0; half < 2; half++) {
        const int r = g + half * 8;
        if (r >= w.rows) continue;
        TE_UNROLL for (int n = 0; n < N; n++) {
            const int column = (warp * N + n) * 8 + 2 * t;
            const float2 o = make_float2(result.o[n][2 * half], result.o[n][2 * half + 1]);
            if (w.splits > 1) *(float2 *)(partial + r * V + column) = o;
            else te__decode_store<T, HEADS, KV_HEADS, D, F>(a, w, r, column, o, result.max[half], result.sum[half]);
        }
        if (w.splits > 1 && warp == 0 && t == 0)
            *(float2 *)(partial + rows * V + 2 * r) = make_float2(result.max[half], result.sum[half]);
    }
}

/* Grid: persistent. Shared memory: the stages, P, the maxima of the consumers, the batch's lengths. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__attention_decode(const te_attention_args *a) {
    constexpr int V = te__attn_value_dim<D, F>();
    typedef te__decode_traits<D, V> traits;
    constexpr int N = traits::COLUMNS / 8;
    __shared__ __align__(8) uint64_t bars[2 * TE__DECODE_MAX_STAGES];
    unsigned char *const memory = te__attention_shared;
    const uint32_t stages = te__shared_address(memory), full = te__shared_address(bars),
                   empty = full + 8 * TE__DECODE_MAX_STAGES;
    float *const stats = (float *)(memory + traits::STAGES * traits::STAGE_BYTES + traits::P_BYTES);
    const te__decode_exchange x = {stats, stats + (int)TE__DECODE_WARPS * (int)TE__DECODE_ROWS,
                                   stages + traits::STAGES * traits::STAGE_BYTES};
    int *lengths = (int *)stats + traits::STATS_BYTES / 4;
    const te__decode_lengths n = {lengths, lengths + TE__DECODE_MAX_SEQUENCES + 1,
                                  lengths + 2 * (TE__DECODE_MAX_SEQUENCES + 1), a->seq};
    const int thread = (int)threadIdx.x;
    if (thread == 0) {
        for (int s = 0; s < traits::STAGES; s++) {
            te__barrier_init(full + s * 8, 1), te__barrier_init(empty + s * 8, TE__DECODE_WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    te_kernel_begin();
    const te_sequences rows = te__attn_sequences(a);
    for (int i = thread; i <= a->batch; i += traits::THREADS) {
        lengths[i] = a->cache.first_split[i];
        if (i < a->batch) lengths[TE__DECODE_MAX_SEQUENCES + 1 + i] = a->cache.past[i];
        lengths[2 * (TE__DECODE_MAX_SEQUENCES + 1) + i] = te_sequence_first(&rows, i);
    }
    __syncthreads();
    const int tiles = te__decode_tiles(a->seq, HEADS / KV_HEADS), items = n.first_split[a->batch] * KV_HEADS * tiles;
    if (thread >= TE__DECODE_WARPS * 32)
        return te__decode_produce<HEADS, KV_HEADS, D, F>(a, n, stages, full, empty, items, tiles);
    te__decode_ring ring = {0, 0};
    for (int index = (int)blockIdx.x; index < items; index += (int)gridDim.x) {
        const te__decode_item w = te__decode_item_of<HEADS, KV_HEADS, F>(n, a->batch, tiles, index);
        if (!w.is_needed) continue;
        te__decode_result<N> r = {{-INFINITY, -INFINITY}, {0, 0}, {}};
        te__decode_multiply<T, HEADS, KV_HEADS, D, F, N>(a, w, ring, stages, full, empty, x, r);
        te__decode_exchange_sum(x, r.sum);
        te__decode_finish<T, HEADS, KV_HEADS, D, F, N>(a, w, index, r);
    }
}

/* ---- the second kernel: the merge of splits ---------------------------------------------------------------------- */

/* Columns of one row that are being merged: of splits in order, or of groups of splits in order. */
template <int N> struct te__decode_merged {
    float max, sum, o[N];
    __device__ __forceinline__ te__decode_merged() : max(-INFINITY), sum(0), o{} {}
    __device__ __forceinline__ void add(float other_max, float other_sum, const float *other) {
        const float now = fmaxf(max, other_max), offset = now == -INFINITY ? 0.0f : now;
        const float before = te_exp2(max - offset), factor = te_exp2(other_max - offset);
        max = now, sum = sum * before + other_sum * factor;
        TE_UNROLL for (int i = 0; i < N; i++) o[i] = o[i] * before + other[i] * factor;
    }
};
/* Grid: blocks of TE__MERGE_WARPS warps. One warp or the whole block merges a row of a head (warps: how many of them).
 * The splits are summed in groups of TE__DECODE_GROUP, and the groups in order, so the result does not depend on
 * `warps`. Memory traffic: the partial results are read once. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__attention_decode_merge(const te_attention_args *a, int warps) {
    constexpr int V = te__attn_value_dim<D, F>(), N = V / 32, GROUP = HEADS / KV_HEADS;
    __shared__ float shared[TE__MERGE_WARPS][V + 2];
    te_kernel_begin();
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, in_row = warp % warps;
    const te_sequences s = te__attn_sequences(a);
    const int at = (int)blockIdx.x * (TE__MERGE_WARPS / warps) + warp / warps, head = at % HEADS;
    const int row = at / HEADS < s.rows ? at / HEADS : s.rows - 1; /* all warps reach the barriers */
    const int i = te_sequence_of(&s, row, 0);
    const te_sequence rows_of = te_sequence_rows(&s, i);
    const int in_tiles = (row - rows_of.first) * GROUP + head % GROUP;
    const int tile = in_tiles / TE__DECODE_ROWS, r = in_tiles % TE__DECODE_ROWS;
    const te__decode_tile w = te__decode_tile_of<GROUP, F>(tile, rows_of.count, a->cache.past[i]);
    const int splits = row - rows_of.first < rows_of.count ? w.splits : 0;
    const int tiles = te__decode_tiles(a->seq, GROUP), rows = te__decode_partial_rows(a->seq, GROUP);
    const int64_t floats = te__decode_partial_floats(rows, V), step = (int64_t)KV_HEADS * tiles * floats;
    const float *of = a->cache.partials + (int64_t)(a->cache.first_split[i] + w.first) * step +
                      (int64_t)(head / GROUP * tiles + tile) * floats;
    te__decode_merged<N> all;
    const int groups = splits > 1 ? (splits + TE__DECODE_GROUP - 1) / TE__DECODE_GROUP : 0;
    /* with several warps a row all warps of the block have the same row, and so the same number of groups */
    for (int base = 0; base < groups; base += warps) {
        te__decode_merged<N> group;
        const int g = base + in_row, count = splits - g * TE__DECODE_GROUP;
        for (int k = 0; g < groups && k < TE__DECODE_GROUP && k < count; k += 8) {
            float2 stat[8];
            float o[8][N];
            TE_UNROLL for (int j = 0; j < 8; j++) {
                const float *p = of + (int64_t)(g * TE__DECODE_GROUP + (k + j < count ? k + j : k)) * step;
                stat[j] = *(const float2 *)(p + rows * V + 2 * r);
                TE_UNROLL for (int c = 0; c < N; c += 2) {
                    const float2 v = *(const float2 *)(p + r * V + lane * N + c);
                    o[j][c] = v.x, o[j][c + 1] = v.y;
                }
            }
            TE_UNROLL for (int j = 0; j < 8; j++) if (k + j < count) group.add(stat[j].x, stat[j].y, o[j]);
        }
        if (warps == 1) {
            if (g < groups) all.add(group.max, group.sum, group.o);
            continue;
        }
        TE_UNROLL for (int c = 0; c < N; c++) shared[warp][lane * N + c] = group.o[c];
        if (lane == 0) shared[warp][V] = group.max, shared[warp][V + 1] = group.sum;
        __syncthreads();
        for (int j = 0; in_row == 0 && j < warps && base + j < groups; j++)
            all.add(shared[warp + j][V], shared[warp + j][V + 1], &shared[warp + j][lane * N]);
        __syncthreads();
    }
    if (in_row || splits <= 1 || at / HEADS >= s.rows) return;
    const float unit = te__attn_score_unit<F>(a->scale) * TE__ATTN_LOG2E;
    const float sink = F::SINKS ? te__attn_sink<T, F>(a, head) * unit : -INFINITY;
    const float scale = te__decode_scale(all.max, all.sum, sink);
    TE_UNROLL for (int c = 0; c < N; c += 2) {
        const float v[8] = {all.o[c] * scale, all.o[c + 1] * scale, 0, 0, 0, 0, 0, 0};
        te_vec8 e;
        te_vec8_of(&e, v, T);
        *(uint32_t *)((uint16_t *)a->out + (int64_t)row * (HEADS * V) + head * V + lane * N + c) = e.w[0];
    }
}
#endif

/* ---- the kernels as types, for attention_cuda.h ------------------------------------------------------------------ */

/* Whether there are such kernels: rows are multiples of 128 bytes, because only these are stored in an order that has
 * no bank conflicts. */
template <te_dtype T, int D, class F> TE_BOTH constexpr bool te__decode_exists(void) {
    constexpr int V = te__attn_value_dim<D, F>();
    return T != TE_f32 && !F::BIAS && !F::MAX_LOGIT && !F::FP8_OUTPUT && D % 64 == 0 && V % 64 == 0;
}
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, bool = te__decode_exists<T, D, F>()>
struct te__attn_sm90_decode : te__decode_traits<D, te__attn_value_dim<D, F>()> {
    typedef te__decode_traits<D, te__attn_value_dim<D, F>()> traits;
    typedef te_attention_args args;
    static constexpr int EXISTS = 1;
    static __device__ __forceinline__ void body(const args *a) {
#if defined __CUDA_ARCH_FEAT_SM90_ALL
        te__attention_decode<T, HEADS, KV_HEADS, D, F>(a);
#endif
    }
    /* The second kernel. With few rows the whole block merges one. */
    struct merge {
        typedef te_attention_args args;
        static constexpr int THREADS = TE__MERGE_WARPS * 32, BLOCKS = 2, MANY_ROWS = 2048;
        static __device__ __forceinline__ void body(const args *a) {
#if defined __CUDA_ARCH_FEAT_SM90_ALL
            const int rows = te__attn_sequences(a).rows * HEADS;
            te__attention_decode_merge<T, HEADS, KV_HEADS, D, F>(a, rows < MANY_ROWS ? (int)TE__MERGE_WARPS : 1);
#endif
        }
    };
    /* Whether the call has few enough rows, and the cache memory for the partial results. */
    static int can(const te_attention_args *a) {
        constexpr int GROUP = HEADS / KV_HEADS;
        return te__decode_tiles(a->seq, GROUP) <= TE__DECODE_MAX_TILES && a->batch <= TE__DECODE_MAX_SEQUENCES &&
               a->seq <= a->cache.decode_rows;
    }
    static te_status launch(te_context *ctx, const void *kernel, const void *merge_kernel, const te_attention_args *a,
                            const char *name) {
        const te_launch launch = te__launch_of(kernel, name, te__grid_of(ctx->processors * traits::BLOCKS, 1),
                                               traits::THREADS, traits::SHARED, 1);
        TE_TRY(te__cuda_launch(ctx, launch, a, sizeof *a));
        if (a->cache.capacity <= TE_CACHE_SPLIT) return TE_OK;
        const int64_t rows = (int64_t)te__attn_sequences(a).rows * HEADS;
        const int64_t blocks = rows < merge::MANY_ROWS ? rows : te_ceil_div(rows, TE__MERGE_WARPS);
        return te__cuda_launch_plain(ctx, merge_kernel, name, te__grid_of(blocks, 1), merge::THREADS, a, sizeof *a);
    }
};
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
struct te__attn_sm90_decode<T, HEADS, KV_HEADS, D, F, false> {
    typedef te_attention_args args;
    static constexpr int EXISTS = 0, THREADS = 32, BLOCKS = 1, SHARED = 0;
    static __device__ __forceinline__ void body(const args *) {}
    typedef te__attn_sm90_decode merge;
    static int can(const te_attention_args *) { return 0; }
    static te_status launch(te_context *, const void *, const void *, const te_attention_args *, const char *) {
        return TE_OK;
    }
};

#endif
