/* attention_sm90_decode.h -- attention of a few new rows of each sequence over a cache, bf16 and f16 on compute
 * capability 9.0: decoding. Split keys: Dao et al. 2023 (Flash-Decoding).
 *
 * The query heads that share a head of keys are the rows of one tile: 16 rows, (query, head of the group). The keys of a
 * tile are divided into splits of TE_CACHE_SPLIT, by their position alone, so a row has the same bits whatever the batch
 * is. Blocks are persistent: block b takes the work items b, b + grid, .. of the list (split, head of keys, tile), whose
 * length te_cache_begin has left in te_attention_cache.first_split; the host knows no length. The block that finishes a
 * tile's last split merges its splits, in order.
 *
 *     producer   one warp copies the pages of K and V to a ring of stages, 64 keys of either at a time, as they lie
 *     consumers  four warps with 16 keys of a stage each: S = Q K^T, online softmax, O += P V; then their sum
 *
 * Floor: the keys and values, 2 kv_heads (head_dim + value_dim) bytes a token, at the rate of a read. With 16 rows to 64
 * keys the tensor cores are busy for a fifth of that time.
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
    TE__DECODE_MAX_STAGES = 8
};

template <int D, int V> struct te__decode_traits {
    static constexpr int THREADS = (TE__DECODE_WARPS + 1) * 32, BLOCKS = D <= 128 && V <= 128 ? 2 : 1;
    static constexpr int STAGE_BYTES = TE__DECODE_KEYS * (D > V ? D : V) * 2;
    static constexpr int OUT_ROW = V + 8; /* floats of a row of O in shared memory, without bank conflicts */
    static constexpr int OUT_BYTES = TE__DECODE_WARPS * TE__DECODE_ROWS * OUT_ROW * 4;
    static constexpr int STATS_BYTES = TE__DECODE_WARPS * TE__DECODE_ROWS * 2 * 4;
    static constexpr int LENGTHS_BYTES = 3 * (TE__DECODE_MAX_SEQUENCES + 1) * 4 + 4;
    static constexpr int BUDGET = (BLOCKS == 2 ? 112 : 225) * 1024 - OUT_BYTES - STATS_BYTES - LENGTHS_BYTES;
    static constexpr int STAGES =
        BUDGET / STAGE_BYTES < TE__DECODE_MAX_STAGES ? BUDGET / STAGE_BYTES : TE__DECODE_MAX_STAGES;
    static constexpr int SHARED = STAGES * STAGE_BYTES + OUT_BYTES + STATS_BYTES + LENGTHS_BYTES;
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
struct te__decode_lengths { const int *first_split, *past, *first_row; };

/* One item of work. */
struct te__decode_item {
    int i, kv_head, tile;
    int first_row, rows;    /* of the batch: the sequence's first row; rows of the tile, (query, head) */
    int keys;               /* of the sequence, new ones included */
    te__attn_mask mask;
    te__attn_range seen;    /* by the tile's queries */
    int split, begin, stop; /* its keys, from a multiple of TE__DECODE_KEYS on; none: stop <= begin */
    int splits, first;      /* of the tile: how many have keys, and the first of them */
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
    const int queries = n.first_row[low + 1] - w.first_row, past = n.past[low];
    const int row = w.tile * TE__DECODE_ROWS, left = queries * GROUP - row;
    w.rows = left < TE__DECODE_ROWS ? left : (int)TE__DECODE_ROWS;
    w.keys = past < 0 ? 0 : past + queries;
    w.mask = te__attn_mask_between(queries, w.keys, F::LEFT, F::RIGHT);
    const int query = row / GROUP;
    w.seen = te__attn_keys_of(w.mask, query, (row + w.rows - 1) / GROUP - query + 1);
    if (w.seen.end > w.keys) w.seen.end = w.keys;
    w.first = w.seen.first / TE_CACHE_SPLIT;
    w.splits = w.seen.end > w.seen.first ? (w.seen.end + TE_CACHE_SPLIT - 1) / TE_CACHE_SPLIT - w.first : 0;
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
/* `rows` rows of one head from `key` on, of d elements, to a stage. pages: of lane l, the page of key origin + 16 l. */
TE_FN void te__decode_copy(const te_attention_cache &c, uint32_t to, uint32_t full, int pages, int origin, int key,
                           int rows, int64_t head_rows, int d) {
    const int lane = (int)threadIdx.x % 32, chunk = c.page_rows < TE__DECODE_KEYS ? c.page_rows : (int)TE__DECODE_KEYS;
    const int from = key + lane * chunk, left = rows - lane * chunk;
    const int page = __shfl_sync(~0u, pages, ((from - origin) / TE_CACHE_MIN_PAGE) & 31);
    if (lane == 0) te__barrier_arrive_expect_tx(full, rows * d * 2);
    __syncwarp();
    if (left <= 0) return;
    const int in_page = (int)((unsigned)from & ((1u << c.page_shift) - 1));
    const int64_t at = page * c.page_elements + head_rows + (int64_t)in_page * d;
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
        const int pages = key < w.stop && key + TE_CACHE_MIN_PAGE > w.begin
                              ? te__cache_pages(&a->cache, w.i)[(unsigned)key >> a->cache.page_shift]
                              : 0;
        for (int k0 = w.begin; k0 < w.stop; k0 += TE__DECODE_KEYS) {
            const int left = (w.stop - k0 + TE_CACHE_MIN_PAGE - 1) / TE_CACHE_MIN_PAGE * TE_CACHE_MIN_PAGE;
            const int rows = left < TE__DECODE_KEYS ? left : (int)TE__DECODE_KEYS;
            TE_UNROLL for (int value = 0; value < 2; value++) {
                const int d = value ? V : D;
                te__barrier_wait(empty + ring.stage * 8, ring.phase ^ 1);
                te__decode_copy(a->cache, stages + ring.stage * traits::STAGE_BYTES, full + ring.stage * 8, pages,
                                origin, k0, rows, te__cache_head_rows(&a->cache, value, w.kv_head, KV_HEADS, D, V), d);
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
/* One step of the online softmax over this warp's 16 keys, in units of log 2; returns the factors of what was summed
 * before. */
TE_FN void te__decode_softmax(float (&s)[1][2][4], float (&max)[2], float (&sum)[2], float (&rescale)[2], float c) {
    TE_UNROLL for (int half = 0; half < 2; half++) {
        float v = fmaxf(fmaxf(s[0][0][2 * half], s[0][0][2 * half + 1]), fmaxf(s[0][1][2 * half], s[0][1][2 * half + 1]));
        v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
        v = fmaxf(fmaxf(v, __shfl_xor_sync(~0u, v, 2)) * c, max[half]);
        const float offset = v == -INFINITY ? 0.0f : v;
        rescale[half] = te_exp2(max[half] - offset), max[half] = v;
        float add = 0;
        TE_UNROLL for (int n = 0; n < 2; n++)
            TE_UNROLL for (int e = 2 * half; e < 2 * half + 2; e++) {
                s[0][n][e] = te_exp2(s[0][n][e] * c - offset), add += s[0][n][e];
            }
        sum[half] = sum[half] * rescale[half] + add;
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
/* This warp's part of an item: max, sum and o over its keys. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__decode_multiply(const te_attention_args *a, const te__decode_item &w, te__decode_ring &ring,
                               uint32_t stages, uint32_t full, uint32_t empty, float (&max)[2], float (&sum)[2],
                               float (&o)[te__attn_value_dim<D, F>() / 8][4]) {
    constexpr int V = te__attn_value_dim<D, F>();
    typedef te__decode_traits<D, V> traits;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const float c = te__attn_score_unit<F>(a->scale) * TE__ATTN_LOG2E;
    uint32_t q[D / 16][4];
    te__decode_load_q<HEADS, KV_HEADS, D, F>(q, a, w);
    /* the rows that this lane passes to ldmatrix; the chunks of row r are stored in the order chunk ^ (r % 8) */
    const int k_row = warp * 16 + lane / 16 * 8 + lane % 8, k_chunk = lane / 8 % 2;
    const int v_row = warp * 16 + lane / 8 % 2 * 8 + lane % 8, v_chunk = lane / 16, swizzle = lane % 8;
    for (int k0 = w.begin; k0 < w.stop; k0 += TE__DECODE_KEYS) {
        const int key = k0 + warp * 16, is_in = key < w.stop;
        float s[1][2][4] = {};
        te__barrier_wait(full + ring.stage * 8, ring.phase);
        if (is_in) {
            const uint32_t from = stages + ring.stage * traits::STAGE_BYTES + (uint32_t)(k_row * D * 2);
            TE_UNROLL for (int k = 0; k < D / 16; k++) {
                uint32_t b[4];
                te__attn_ldmatrix(b, from + (uint32_t)(((k * 2 + k_chunk) ^ swizzle) * 16));
                te__mma_sync(s[0][0], q[k], b[0], b[1], T);
                te__mma_sync(s[0][1], q[k], b[2], b[3], T);
            }
        }
        __syncwarp();
        if (lane == 0) te__barrier_arrive(empty + ring.stage * 8);
        te__decode_advance<traits::STAGES>(ring);
        uint32_t p[1][1][4];
        if (is_in) {
            te__attn_apply_softcap<F, 1, 2>(s, a->scale);
            if constexpr (F::ALIBI)
                TE_UNROLL for (int e = 0; e < 4; e++) {
                    const te__decode_row<HEADS, KV_HEADS> row(w, g + e / 2 * 8);
                    TE_UNROLL for (int n = 0; n < 2; n++) {
                        const int distance = row.query + w.mask.shift - (key + n * 8 + 2 * t + e % 2);
                        s[0][n][e] = te__attn_with_alibi<F>(
                            s[0][n][e], te__attn_alibi_at<HEADS, F>(row.head, a->scale, distance), 0);
                    }
                }
            if (te__attn_needs_mask(w.seen, key, 16)) te__decode_mask<HEADS, KV_HEADS>(s, w, key + 2 * t);
            float rescale[2];
            te__decode_softmax(s, max, sum, rescale, c);
            if (__any_sync(~0u, rescale[0] != 1.0f || rescale[1] != 1.0f))
                TE_UNROLL for (int n = 0; n < V / 8; n++)
                    TE_UNROLL for (int e = 0; e < 4; e++) o[n][e] *= rescale[e / 2];
            te__attn_pack_all<T, 1, 2>(p, s);
        }
        te__barrier_wait(full + ring.stage * 8, ring.phase);
        if (is_in) {
            const uint32_t from = stages + ring.stage * traits::STAGE_BYTES + (uint32_t)(v_row * V * 2);
            /* behind the last key lies what was there before, which may be no number */
            const int left = w.stop - key - 2 * t;
            const uint32_t low = left >= 2 ? ~0u : left == 1 ? 0xffffu : 0u;
            const uint32_t high = left >= 10 ? ~0u : left == 9 ? 0xffffu : 0u;
            TE_UNROLL for (int n = 0; n < V / 8; n += 2) {
                uint32_t b[4];
                te__attn_ldmatrix_transposed(b, from + (uint32_t)(((n + v_chunk) ^ swizzle) * 16));
                te__mma_sync(o[n], p[0][0], b[0] & low, b[1] & high, T);
                te__mma_sync(o[n + 1], p[0][0], b[2] & low, b[3] & high, T);
            }
        }
        __syncwarp();
        if (lane == 0) te__barrier_arrive(empty + ring.stage * 8);
        te__decode_advance<traits::STAGES>(ring);
    }
    TE_UNROLL for (int half = 0; half < 2; half++) sum[half] = te__attn_quad_sum(sum[half]);
}

/* ---- the sum over warps, and over splits ------------------------------------------------------------------------- */

/* Four columns of a row that are being summed: sum of exp2(max_j - max) o_j. */
struct te__decode_sum {
    float max, sum;
    float4 o;
    __device__ __forceinline__ te__decode_sum() : max(-INFINITY), sum(0), o(make_float4(0, 0, 0, 0)) {}
    __device__ __forceinline__ void add(float m, float l, float4 v) {
        const float now = fmaxf(max, m), offset = now == -INFINITY ? 0.0f : now;
        const float before = te_exp2(max - offset), of = te_exp2(m - offset);
        max = now, sum = sum * before + l * of;
        o.x = o.x * before + v.x * of, o.y = o.y * before + v.y * of;
        o.z = o.z * before + v.z * of, o.w = o.w * before + v.w * of;
    }
};
/* Store four columns of O. sink: the logit of the row's sink, or -inf. */
template <te_dtype T> TE_FN void te__decode_store(void *out, int64_t at, te__decode_sum s, float sink) {
    const float sum = s.sum + te_exp2(sink - (s.max == -INFINITY ? 0.0f : s.max));
    const float inverse = s.max == -INFINITY || !(sum > 0) ? 0.0f : 1.0f / sum;
    const float v[8] = {s.o.x * inverse, s.o.y * inverse, s.o.z * inverse, s.o.w * inverse, 0, 0, 0, 0};
    te_vec8 e;
    te_vec8_of(&e, v, T);
    *(uint2 *)((uint16_t *)out + at) = make_uint2(e.w[0], e.w[1]);
}
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__decode_finish(const te_attention_args *a, const te__decode_item &w, int index, int tiles,
                             const float *out, const float *stats, int *is_last) {
    constexpr int V = te__attn_value_dim<D, F>(), OUT_ROW = te__decode_traits<D, V>::OUT_ROW;
    constexpr int64_t OUT = HEADS * V;
    const int thread = (int)threadIdx.x, partial_rows = te__decode_partial_rows(a->seq, HEADS / KV_HEADS);
    const int64_t partial = te__decode_partial_floats(partial_rows, V);
    float *mine = a->cache.partials + index * partial;
    const auto store = [&](int r, int column, const te__decode_sum &s) {
        const te__decode_row<HEADS, KV_HEADS> row(w, r);
        const float unit = te__attn_score_unit<F>(a->scale) * TE__ATTN_LOG2E;
        const float sink = F::SINKS ? te__attn_sink<T, F>(a, row.head) * unit : -INFINITY;
        te__decode_store<T>(a->out, (w.first_row + row.query) * OUT + row.head * V + column, s, sink);
    };
    for (int j = thread; j < w.rows * (V / 4); j += TE__DECODE_WARPS * 32) {
        const int r = j / (V / 4), column = j % (V / 4) * 4;
        te__decode_sum s;
        TE_UNROLL for (int k = 0; k < TE__DECODE_WARPS; k++) {
            const float *of = stats + (k * TE__DECODE_ROWS + r) * 2;
            s.add(of[0], of[1], *(const float4 *)(out + (k * TE__DECODE_ROWS + r) * OUT_ROW + column));
        }
        if (w.splits <= 1) store(r, column, s);
        else {
            *(float4 *)(mine + r * V + column) = s.o;
            if (column == 0) mine[partial_rows * V + 2 * r] = s.max, mine[partial_rows * V + 2 * r + 1] = s.sum;
        }
    }
    if (w.splits <= 1) return te__decode_consumers_sync();
    int *arrivals = a->cache.arrivals + (w.i * KV_HEADS + w.kv_head) * tiles + w.tile;
    __threadfence();
    te__decode_consumers_sync();
    if (thread == 0) *is_last = atomicAdd(arrivals, 1) == w.splits - 1;
    te__decode_consumers_sync();
    if (*is_last) {
        __threadfence();
        const int step = KV_HEADS * tiles;
        const float *first = a->cache.partials + (index - (int64_t)(w.split - w.first) * step) * partial;
        for (int j = thread; j < w.rows * (V / 4); j += TE__DECODE_WARPS * 32) {
            const int r = j / (V / 4), column = j % (V / 4) * 4;
            te__decode_sum s;
            TE_UNROLL_4 for (int k = 0; k < w.splits; k++) {
                const float *of = first + k * step * partial;
                const float2 stat = __ldcg((const float2 *)(of + partial_rows * V + 2 * r));
                s.add(stat.x, stat.y, __ldcg((const float4 *)(of + r * V + column)));
            }
            store(r, column, s);
        }
        if (thread == 0) *arrivals = 0;
    }
    te__decode_consumers_sync();
}

/* Grid: persistent. Shared memory: the stages, O and (max, sum) of the consumers, the batch's lengths. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__attention_decode(const te_attention_args *a) {
    constexpr int V = te__attn_value_dim<D, F>();
    typedef te__decode_traits<D, V> traits;
    __shared__ __align__(8) uint64_t bars[2 * TE__DECODE_MAX_STAGES];
    __shared__ int is_last;
    unsigned char *const memory = te__attention_shared;
    const uint32_t stages = te__shared_address(memory), full = te__shared_address(bars),
                   empty = full + 8 * TE__DECODE_MAX_STAGES;
    float *out = (float *)(memory + traits::STAGES * traits::STAGE_BYTES), *stats = out + traits::OUT_BYTES / 4;
    int *lengths = (int *)(stats + traits::STATS_BYTES / 4);
    const te__decode_lengths n = {lengths, lengths + TE__DECODE_MAX_SEQUENCES + 1,
                                  lengths + 2 * (TE__DECODE_MAX_SEQUENCES + 1)};
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
    const int lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
    te__decode_ring ring = {0, 0};
    for (int index = (int)blockIdx.x; index < items; index += (int)gridDim.x) {
        const te__decode_item w = te__decode_item_of<HEADS, KV_HEADS, F>(n, a->batch, tiles, index);
        if (!w.is_needed) continue;
        float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, o[V / 8][4] = {};
        te__decode_multiply<T, HEADS, KV_HEADS, D, F>(a, w, ring, stages, full, empty, max, sum, o);
        TE_UNROLL for (int half = 0; half < 2; half++) {
            const int r = g + half * 8;
            if (r >= w.rows) continue;
            float *to = out + (warp * TE__DECODE_ROWS + r) * traits::OUT_ROW + 2 * t;
            TE_UNROLL for (int k = 0; k < V / 8; k++)
                *(float2 *)(to + k * 8) = make_float2(o[k][2 * half], o[k][2 * half + 1]);
            if (t == 0) *(float2 *)(stats + (warp * TE__DECODE_ROWS + r) * 2) = make_float2(max[half], sum[half]);
        }
        te__decode_consumers_sync();
        te__decode_finish<T, HEADS, KV_HEADS, D, F>(a, w, index, tiles, out, stats, &is_last);
    }
}
#endif

/* ---- the kernel as a type, for attention_cuda.h ------------------------------------------------------------------ */

/* Whether there is such a kernel: rows are multiples of 128 bytes, because only these are stored in an order that has no
 * bank conflicts. */
template <te_dtype T, int D, class F> TE_BOTH constexpr bool te__decode_exists(void) {
    constexpr int V = te__attn_value_dim<D, F>();
    return F::CACHED && T != TE_f32 && !F::BIAS && !F::MAX_LOGIT && !F::FP8_OUTPUT && D % 64 == 0 && V % 64 == 0;
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
    /* Whether the call has few enough rows, and the cache memory for the partial results. */
    static int can(const te_attention_args *a) {
        constexpr int GROUP = HEADS / KV_HEADS;
        return te__decode_tiles(a->seq, GROUP) <= TE__DECODE_MAX_TILES && a->batch <= TE__DECODE_MAX_SEQUENCES &&
               a->seq <= a->cache.decode_rows;
    }
    static te_status launch(te_context *ctx, const void *kernel, te__tensor_map_encode_fn, const te_attention_args *a,
                            const char *name) {
        const te_launch launch = te__launch_of(kernel, name, te__grid_of(ctx->processors * traits::BLOCKS, 1),
                                               traits::THREADS, traits::SHARED, 1);
        return te__cuda_launch(ctx, launch, a, sizeof *a);
    }
};
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
struct te__attn_sm90_decode<T, HEADS, KV_HEADS, D, F, false> {
    typedef te_attention_args args;
    static constexpr int EXISTS = 0, THREADS = 32, BLOCKS = 1, SHARED = 0;
    static __device__ __forceinline__ void body(const args *) {}
    static int can(const te_attention_args *) { return 0; }
    static te_status launch(te_context *, const void *, te__tensor_map_encode_fn, const te_attention_args *,
                            const char *) {
        return TE_OK;
    }
};

#endif
