/* attention_sm90_decode.h -- decoding: attention of a few new queries of each sequence to the keys in a cache, in bf16
 * and f16 on compute capability 9.0. Keys are split among blocks: Dao et al. 2023 (Flash-Decoding).
 *
 * A group is a tile of queries with the keys that it sees. attention_sm90_decode_work.h divides these keys into splits,
 * and the splits of all groups among the blocks; attention_sm90_decode_result.h merges and stores results. A block that
 * processes all splits of a group merges their results itself. If several blocks process the splits of a group, they
 * store partial results, which a second kernel merges. In a small batch these blocks form a cluster, and merge the
 * partial results without a second kernel. Results are merged in the same order and with the same arithmetic in all
 * three cases, so that the result of a row is bitwise identical in every batch. The warps of the first kernel:
 *
 *     producer   one warp, which copies the pages of K and V to a ring of stages, 64 keys or values at a time.
 *     consumers  four warps. Each computes S^T = K Q^T, P^T and O^T = V^T P^T for 16 keys of each stage, with its own
 *                maximum and sum of each row. After the last key of a split the warps add up their results, where each
 *                warp adds up a quarter of O's columns. The products are transposed so that the tile of queries, which
 *                has only 8 or 16 rows, is operand B of mma.sync: the fragments of B have 8 rows, those of A have 16.
 *
 * attention_sm90_decode_8bit.h has the parts that differ for a cache in 8 bits. attention_sm90_decode_latent.h has the
 * parts that differ if values are parts of keys (the option values_in_keys).
 *
 * Lower bound of the run time: one read of the keys and values, kv_heads * (head_dim + value_dim) elements of 2 bytes
 * for each token, at the bandwidth of the memory. To reach this bandwidth, the copies begin before the preceding kernel
 * ends (te_kernel_wait), and the L2 evicts copied pages first, so that they do not displace the partial results.
 * Measurements: docs/notes/attention_decode.md.
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM90_DECODE_H
#define TE_ATTENTION_SM90_DECODE_H

#include "../../core/impl/ptx_cuda.h" /* barriers, te__mma_sync */
#include "attention_sm80_tiles.h"     /* te__attn_ldmatrix, options of scores */
#include "attention_sm90_decode_8bit.h"   /* te__decode8_products, te__decode8_add_pv, te__transposed */
#include "attention_sm90_decode_latent.h" /* te__decode_latent, te__decode_latent_q */
#include "attention_sm90_decode_result.h" /* te__decode_result, te__decode_store */
#include "attention_sm90_decode_work.h"   /* te__decode_group, te__decode_batch */

enum {
    /* The number of places. A place is shared memory for one group (a tile of queries with its keys) and its queries.
     * The producer can be ahead of the consumers by as many groups as there are places. */
    TE__DECODE_PLACES = 4,
    TE__DECODE_MAX_STAGES = 12 /* the largest number of stages of the ring */
};

template <int HEADS, int KV_HEADS, int D, class F>
struct te__decode_traits {
    static constexpr bool IS_8BIT = TE__CACHE_HAS_SCALES(F::CACHE_FORMAT), IS_LATENT = F::VALUES_IN_KEYS;
    /* V: the head size of v; ROWS: the number of rows of a tile of queries; NT: the number of groups of 8 rows of a
     * tile */
    static constexpr int V = te__attn_value_dim<D, F>(), ROWS = TE__DECODE_TILE_ROWS(HEADS / KV_HEADS), NT = ROWS / 8;
    /* WARPS: the number of consumer warps; M: how many fragments of O^T, of 16 columns of O each, a warp stores */
    static constexpr int WARPS = te__decode_warps<F>(), M = V / 16 / WARPS;
    static constexpr int PLACES = IS_LATENT ? 2 : (int)TE__DECODE_PLACES;
    /* the number of keys of a stage */
    static constexpr int KEYS = IS_LATENT ? (int)TE__DECODE_LATENT_KEYS
                                          : IS_8BIT ? (int)TE__DECODE8_KEYS : (int)TE__DECODE_KEYS;
    /* the number of 16-key tiles of a stage that each warp multiplies */
    static constexpr int TILES = KEYS / TE__DECODE_WARPS / 16;
    /* the size in bytes of a row of d elements in the cache, with its scale if the format has 8 bits */
    static __host__ __device__ constexpr int row_bytes(int d) { return IS_8BIT ? d + (int)sizeof(float) : d * 2; }
    static constexpr int THREADS = (WARPS + 1) * 32, WIDEST = D > V ? D : V;
    static constexpr int BLOCKS = WIDEST <= 128 ? 2 : 1; /* how many blocks of this kernel run on a multiprocessor */
    static constexpr int STAGE_BYTES = KEYS * row_bytes(WIDEST);
    static constexpr int Q_BYTES = ROWS * D * 2;                             /* the queries of one group */
    /* the size in bytes of O^T of eight rows from each warp or, with values_in_keys, of the arrays that
     * te__decode_latent has in shared memory */
    static constexpr int O_BYTES = IS_LATENT ? te__decode_latent_bytes(ROWS) : WARPS * 8 * V * 4;
    /* the size in bytes of the maxima and sums, one of each for each warp and each row */
    static constexpr int STATS_BYTES = 2 * WARPS * ROWS * 4;
    /* the size in bytes of the merged result of those splits of a group that have been processed (te__decode_held) */
    static constexpr int MERGED_BYTES = (M * 4 + 4) * NT * WARPS * 32 * 4;
    /* The size in bytes of a block's shared memory before the stages, which come last. It is a multiple of 128, because
     * the stages are swizzled. */
    static constexpr int OTHER_BYTES =
        (PLACES * Q_BYTES + O_BYTES + STATS_BYTES + TE__DECODE_BATCH_BYTES + MERGED_BYTES + 127) / 128 * 128;
    /* Returns how many stages fit into shared memory if `blocks` blocks run on a multiprocessor, but at most `most`. */
    static constexpr int stages_of(int blocks, int most) {
        const int fit = (226 * 1024 / blocks - 1024 - OTHER_BYTES) / STAGE_BYTES;
        return fit < most ? fit : most;
    }
    static constexpr int shared_of(int stages) { return stages * STAGE_BYTES + OTHER_BYTES; }
    /* The memory of te__decode_cluster lies behind the stages. */
    typedef te__decode_cluster_size<V / 16, NT> cluster;
    template <class MEMORY>
    static __device__ __forceinline__ te__decode_cluster<V / 16, NT> cluster_of(const te_attention_args *a,
                                                                                const MEMORY &memory) {
        return te__decode_cluster<V / 16, NT>(memory.stages + (uint32_t)(memory.count * STAGE_BYTES),
                                              a->cache.decode_cluster);
    }
    /* The number of stages of the ring for large batches: just enough for the full memory bandwidth, because with more
     * copies in flight other loads would only wait longer. For latent vectors, as many stages as fit, but at most 6. */
    static constexpr int STAGES = stages_of(BLOCKS, IS_LATENT ? 6 : WIDEST <= 64 ? 4 : 3);
    /* The number of stages for a batch of few keys. Such a batch does not need the full bandwidth, but the copies of
     * all its keys should be in flight before the preceding kernel has written the queries. Therefore only one block,
     * with as many stages as fit, runs on a multiprocessor. */
    static constexpr int SMALL_BATCH_STAGES = stages_of(1, TE__DECODE_MAX_STAGES);
    /* The number of stages of a block of a cluster. */
    static constexpr int CLUSTER_STAGES = SMALL_BATCH_STAGES - (cluster::BYTES + STAGE_BYTES - 1) / STAGE_BYTES;
    static constexpr int SHARED = shared_of(SMALL_BATCH_STAGES); /* the largest size of shared memory of a launch */
    static_assert(STAGES >= 2 && SMALL_BATCH_STAGES >= STAGES && (IS_LATENT || CLUSTER_STAGES >= 2),
                  "te: attention: the stages of this head_dim exceed shared memory");
};

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* Copies rows of a page, or of q, to shared memory by TMA. No other block reads these rows of a page, so the L2 is told
 * to evict them first. bar: the mbarrier that counts the bytes that have arrived. */
TE_FN void te__bulk_copy_once(uint32_t to, const void *from, int bytes, uint32_t bar) {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(bar), "l"(policy)
        : "memory");
}
/* te__decode_release signals at the mbarrier `empty` that a warp has finished reading a stage, or a group and its
 * queries. One lane arrives for the warp. The racecheck of compute-sanitizer does not see that __syncwarp orders the
 * other lanes' reads before this arrival, so with TE_RACECHECK all lanes arrive. */
#if defined TE_RACECHECK
enum { TE__DECODE_ARRIVALS = 32 }; /* how many threads of a warp arrive */
TE_FN void te__decode_release(uint32_t empty) { te__barrier_arrive(empty); }
#else
enum { TE__DECODE_ARRIVALS = 1 };
TE_FN void te__decode_release(uint32_t empty) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) te__barrier_arrive(empty);
}
#endif

/* ---- the producer ------------------------------------------------------------------------------------------------ */

struct te__decode_ring {
    int stage, phase;
};
TE_FN void te__decode_advance(te__decode_ring &r, int stages) {
    if (++r.stage == stages) r.stage = 0, r.phase ^= 1;
}
/* A run is at most TE__DECODE_RUN consecutive keys of one split. A warp loads the page numbers of a run with one
 * instruction: each lane loads the page number of 16 keys. */
struct te__decode_run {
    /* begin: the first key of the run, a multiple of TE__DECODE_KEYS; end: one more than its last key */
    int begin, end;
    int page;       /* in lane l: the number of the page that holds key begin + 16 * l (TE_CACHE_MIN_PAGE is 16) */
};
enum { TE__DECODE_RUN = 32 * TE_CACHE_MIN_PAGE };
/* Returns the run (at most TE__DECODE_RUN consecutive keys of a split) that begins at key `begin`, in a split whose
 * keys end before `end`. pages: the page numbers of the sequence. */
TE_FN te__decode_run te__decode_run_at(const te_attention_cache &c, const int32_t *pages, int begin, int end) {
    te__decode_run run;
    const int key = begin + (int)threadIdx.x % 32 * TE_CACHE_MIN_PAGE;
    run.begin = begin, run.end = end < begin + TE__DECODE_RUN ? end : begin + TE__DECODE_RUN, run.page = 0;
    if (key < end) run.page = __ldcg(pages + ((unsigned)key >> c.page_shift));
    return run;
}
/* Copies the keys or values of `rows` tokens, from token `key` on, from the pages to the stage at address `to`. full:
 * the mbarrier of the stage; head_rows: the offset in bytes of the head's rows in a page; size: the bytes of a row with
 * its scale. In a cache of 8 bits, `key` and `rows` are multiples of 16, so that whole tiles of 16 rows are copied. */
template <int ELEMENT_BYTES>
TE_FN void te__decode_copy(const te_attention_cache &c, const te__decode_run &run, int64_t head_rows, int size, int key,
                           int rows, uint32_t to, uint32_t full) {
    const int lane = (int)threadIdx.x % 32;
    const int chunk = c.page_rows < TE__DECODE_KEYS ? c.page_rows : (int)TE__DECODE_KEYS;
    const int from = key + lane * chunk, left = rows - lane * chunk;
    const int page = __shfl_sync(~0u, run.page, ((from - run.begin) / TE_CACHE_MIN_PAGE) & 31);
    if (lane == 0) te__barrier_arrive_expect_tx(full, rows * size);
    __syncwarp();
    if (left <= 0) return;
    const int in_page = (int)((unsigned)from & ((1u << c.page_shift) - 1));
    const int64_t at = page * c.page_elements * ELEMENT_BYTES + head_rows + (int64_t)in_page * size;
    te__bulk_copy_once(to + (uint32_t)(lane * chunk * size), (const char *)c.pages + at,
                       (left < chunk ? left : chunk) * size, full);
}
/* The contents of a block's shared memory. A place is the memory for one group (a tile of queries with the keys that it
 * sees) that the producer has passed to the consumers, and for the group's queries. */
struct te__decode_memory {
    /* stages: the address of the ring's first stage; full, empty: the addresses of two arrays with one mbarrier for
     * each stage; the mbarriers of `full` signal that a stage is filled, and the mbarriers of `empty` signal that a
     * stage has been read */
    uint32_t stages, full, empty;
    /* q: the address of the queries of place 0; q_full, q_empty: the addresses of the mbarriers that signal that a
     * place is filled, or that the consumers have finished its group */
    uint32_t q, q_full, q_empty;
    te__decode_group *groups;     /* [PLACES]: the group (a tile of queries with its keys) of each place */
    int count;                    /* the number of stages of the ring */
};
/* Copies the queries of a tile to shared memory, by TMA. One copy has several heads of a query, because these are
 * contiguous. One thread calls this. full: the mbarrier that counts the bytes. */
template <int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__decode_copy_q(uint32_t to, uint32_t full, const te_attention_args *a, const te__decode_group &g) {
    constexpr int64_t QKV = te__attn_widths<HEADS, KV_HEADS, D, F>::QKV;
    constexpr int GROUP = HEADS / KV_HEADS;
    const int first = g.tile * TE__DECODE_TILE_ROWS(GROUP);
    for (int r = 0, count; r < g.rows; r += count) {
        const int query = (first + r) / GROUP, head = (first + r) % GROUP;
        count = GROUP - head < g.rows - r ? GROUP - head : g.rows - r;
        te__bulk_copy_once(to + (uint32_t)(r * D * 2),
                           (const uint16_t *)a->qkv + (g.first_row + query) * QKV + (g.kv_head * GROUP + head) * D,
                           count * D * 2, full);
    }
}
/* The producer warp: it copies the keys and values of the block's items to the ring, one item after the other. An item
 * is a split of the keys of one group (a tile of queries with the keys that it sees). */
template <int HEADS, int KV_HEADS, int D, class F>
struct te__decode_producer {
    typedef te__decode_traits<HEADS, KV_HEADS, D, F> traits;
    enum { GROUP = HEADS / KV_HEADS, V = traits::V, PLACES = traits::PLACES };
    const te_attention_args *a;
    const te__decode_batch &n;
    const te__decode_memory &m;
    /* the current group (a tile of queries with its keys), which the producer has passed to the consumers */
    te__decode_group g;
    /* at: the index of the current split among the splits of g; end: the end of this block's range of the work list,
     * i.e. one more than the index of the block's last split */
    int at, end;
    int number;         /* how many groups this block has processed before g */
    te__decode_ring ring;

    /* Passes group g (a tile of queries with the keys that it sees) and its queries to the consumers, in the next place
     * (te__decode_memory). For the block's first group, a consumer copies the queries instead: the queries may be
     * copied only after te_kernel_wait, and the producer should not wait for the preceding kernel before it copies the
     * first keys and values. */
    __device__ __forceinline__ void hand_over(void) {
        const int lane = (int)threadIdx.x % 32, place = number % PLACES;
        const uint32_t full = m.q_full + place * 8;
        g.from = at, g.to = g.item + g.count < end ? g.count : end - g.item;
        g.is_last = g.item + g.count >= end;
        g.pages = a->cache.table + (int64_t)n.slot[g.i] * a->cache.table_width;
        if (lane == 0) {
            const bool is_whole = (g.from == 0 && g.to == g.count) || a->cache.decode_cluster;
            g.slot = is_whole ? 0 : te__decode_slot_of(n, g, (int)blockIdx.x, (int)gridDim.x);
            te__barrier_wait(m.q_empty + place * 8, (number / PLACES & 1) ^ 1);
            m.groups[place] = g;
            te__barrier_arrive_expect_tx(full, g.rows * D * 2);
            if (number > 0) {
                te_kernel_wait();
                te__decode_copy_q<HEADS, KV_HEADS, D, F>(m.q + place * traits::Q_BYTES, full, a, g);
            }
        }
        __syncwarp();
    }
    /* Advances to the next split that has keys, or stays at the current one if it has keys. Returns false if no further
     * split of the block has keys. */
    __device__ __forceinline__ bool find(void) {
        for (;; at++) {
            if (at == g.to) {
                if (g.is_last) return false;
                te__decode_next<KV_HEADS, GROUP, F>(g, n);
                at = 0, number++;
                hand_over();
            }
            if (g.end(at) > g.begin(at)) return true;
        }
    }
    __device__ __forceinline__ void copy(const te__decode_run &run, int kv_head) {
        constexpr int BYTES = traits::IS_8BIT ? 1 : 2; /* the size of an element */
        for (int k0 = run.begin; k0 < run.end; k0 += traits::KEYS) {
            const int left = (run.end - k0 + TE_CACHE_MIN_PAGE - 1) & -TE_CACHE_MIN_PAGE;
            const int rows = left < traits::KEYS ? left : (int)traits::KEYS;
            TE_UNROLL for (int value = 0; value < (traits::IS_LATENT ? 1 : 2); value++) {
                const int64_t head_rows =
                    te__cache_head_rows(&a->cache, value, kv_head, KV_HEADS, D, V, F::CACHE_FORMAT) * BYTES;
                te__barrier_wait(m.empty + ring.stage * 8, ring.phase ^ 1);
                te__decode_copy<BYTES>(a->cache, run, head_rows, traits::row_bytes(value ? (int)V : D), k0, rows,
                                m.stages + ring.stage * traits::STAGE_BYTES, m.full + ring.stage * 8);
                te__decode_advance(ring, m.count);
            }
        }
    }
    /* The body of the producer warp: copies the keys and values of the block's splits. While one run (at most
     * TE__DECODE_RUN consecutive keys of a split) is copied, the page numbers of the next run are loaded. */
    __device__ __forceinline__ void run(void) {
        hand_over();
        if (!find()) return;
        te__decode_run next = te__decode_run_at(a->cache, g.pages, g.begin(at), g.end(at));
        for (bool has_next = true; has_next;) {
            const te__decode_run now = next;
            const int kv_head = g.kv_head;
            if (now.end < g.end(at))
                next = te__decode_run_at(a->cache, g.pages, now.end, g.end(at));
            else if (at++, has_next = find())
                next = te__decode_run_at(a->cache, g.pages, g.begin(at), g.end(at));
            copy(now, kv_head);
        }
    }
};

/* ---- the consumers: a split -------------------------------------------------------------------------------------- */

/* The queries of a tile as B fragments of Q^T, for each of NT groups of 8 rows. Fragment k has columns 16 * k to
 * 16 * k + 15. Rows past the end of the tile are zeros. If there are not enough registers for the fragments, they are
 * read from shared memory at each use. */
template <int D, int NT>
struct te__decode_q {
    static constexpr bool IN_REGISTERS = D / 16 * NT <= 16;
    uint32_t at;
    int rows;
    uint32_t held[IN_REGISTERS ? D / 32 : 1][NT][4];
    /* Reads the two fragments 2 * k and 2 * k + 1 of rows 8 * n to 8 * n + 7. */
    __device__ __forceinline__ void read(uint32_t (&b)[4], int k, int n) const {
        const int lane = (int)threadIdx.x % 32;
        te__attn_ldmatrix(b, at + (uint32_t)((n * 8 + lane % 8) * D * 2 + (k * 4 + lane / 8) * 16));
        if (n * 8 + lane / 4 >= rows) b[0] = b[1] = b[2] = b[3] = 0;
    }
    /* Called by all consumers when the queries are in shared memory, at address `from`. of_tile: the number of rows of
     * the tile. */
    __device__ __forceinline__ void load(uint32_t from, int of_tile) {
        at = from, rows = of_tile;
        if constexpr (IN_REGISTERS)
            TE_UNROLL for (int k = 0; k < D / 32; k++) TE_UNROLL for (int n = 0; n < NT; n++) read(held[k][n], k, n);
    }
    __device__ __forceinline__ void get(uint32_t (&b)[4], int k, int n) const {
        if constexpr (IN_REGISTERS) TE_UNROLL for (int e = 0; e < 4; e++) b[e] = held[k][n][e];
        else read(b, k, n);
    }
};
/* Computes S^T of this warp's 16 keys in a stage of K, before scale and mask. With g = lane / 4 and t = lane % 4,
 * s[0][n][e] is the product of row 8 * n + 2 * t + e % 2 of the queries and key g + 8 * (e / 2) of the warp. */
template <te_dtype T, int D, int NT>
TE_FN void te__decode_products(float (&s)[1][NT][4], const te__decode_q<D, NT> &q, uint32_t stage) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const uint32_t from = te__decode_row_at<D>(stage, warp * 16 + lane % 16, lane / 16);
    /* Two partial sums of each score: this halves the length of the chain of dependent products. */
    float odd[1][NT][4] = {}, even[1][NT][4] = {};
    TE_UNROLL for (int k = 0; k < D / 32; k++) {
        uint32_t first[4], second[4];
        te__attn_ldmatrix(first, te__decode_chunk(from, k * 4));
        te__attn_ldmatrix(second, te__decode_chunk(from, k * 4 + 2));
        TE_UNROLL for (int n = 0; n < NT; n++) {
            uint32_t b[4];
            q.get(b, k, n);
            te__mma_sync(even[0][n], first, b[0], b[1], T);
            te__mma_sync(odd[0][n], second, b[2], b[3], T);
        }
    }
    TE_UNROLL for (int n = 0; n < NT; n++) TE_UNROLL for (int e = 0; e < 4; e++)
        s[0][n][e] = even[0][n][e] + odd[0][n][e];
}
/* Turns the products q k^T into scores (te__decode_score). With g = lane / 4, s[b][n][e] belongs to the key number key
 * + 16 b + g + 8 (e / 2). stop: one more than the split's last key. */
template <int HEADS, int KV_HEADS, class F, int TILES, int NT>
TE_FN void te__decode_scores(float (&s)[TILES][NT][4], const te_attention_args *a, const te__decode_group &w, int stop,
                             int key) {
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int needs_mask = te__attn_needs_mask(w.seen, key, TILES * 16) || (TILES > 1 && key + TILES * 16 > stop);
    TE_UNROLL for (int b = 0; b < TILES; b++) TE_UNROLL for (int n = 0; n < NT; n++)
        TE_UNROLL for (int row = 0; row < 2; row++) {
        const te__decode_row<HEADS, KV_HEADS> of(w, n * 8 + 2 * t + row);
        TE_UNROLL for (int half = 0; half < 2; half++) {
            float &v = s[b][n][2 * half + row];
            v = te__decode_score<HEADS, KV_HEADS, F>(v, a, w, of, key + b * 16 + g + half * 8, stop, needs_mask);
        }
    }
}
/* Returns the maximum of v over the lanes with the same lane % 4. These lanes hold the same rows and different keys. */
TE_FN float te__decode_max_of_keys(float v) {
    TE_UNROLL for (int o = 4; o < 32; o *= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}
/* One step of the online softmax, over this warp's 16 * TILES keys of a stage: s becomes P^T; r.max, r.sum and r.o are
 * updated. */
template <int TILES, int M, int NT>
TE_FN void te__decode_softmax(float (&s)[TILES][NT][4], te__decode_result<M, NT> &r) {
    float rescale[NT][2];
    int changed = 0;
    TE_UNROLL for (int n = 0; n < NT; n++) {
        TE_UNROLL for (int row = 0; row < 2; row++) {
            float largest = fmaxf(s[0][n][row], s[0][n][2 + row]), sum = 0;
            TE_UNROLL for (int b = 1; b < TILES; b++)
                largest = fmaxf(largest, fmaxf(s[b][n][row], s[b][n][2 + row]));
            const float v = fmaxf(te__decode_max_of_keys(largest), r.max[n][row]);
            const float offset = v == -INFINITY ? 0.0f : v;
            rescale[n][row] = te_exp2(r.max[n][row] - offset), r.max[n][row] = v;
            TE_UNROLL for (int b = 0; b < TILES; b++) {
                s[b][n][row] = te_exp2(s[b][n][row] - offset), s[b][n][2 + row] = te_exp2(s[b][n][2 + row] - offset);
                const float of_tile = s[b][n][row] + s[b][n][2 + row];
                sum = b ? sum + of_tile : of_tile;
            }
            r.sum[n][row] = r.sum[n][row] * rescale[n][row] + sum;
            changed |= rescale[n][row] != 1.0f;
        }
    }
    if (__any_sync(~0u, changed))
        TE_UNROLL for (int m = 0; m < M; m++)
            TE_UNROLL for (int n = 0; n < NT; n++)
                TE_UNROLL for (int e = 0; e < 4; e++) r.o[m][n][e] *= rescale[n][e % 2];
}
/* P^T, rounded to T, as B fragments of the product V^T P^T. */
template <te_dtype T, int NT> struct te__decode_p {
    uint32_t of[NT][2];
    __device__ __forceinline__ te__decode_p(const float (&s)[1][NT][4]) {
        TE_UNROLL for (int n = 0; n < NT; n++) TE_UNROLL for (int half = 0; half < 2; half++)
            of[n][half] = te__transposed(te_pair_of_floats(s[0][n][2 * half], s[0][n][2 * half + 1], T));
    }
};
/* Computes O^T += V^T P^T for the 16 rows of V (values) of this warp in a stage. left: only the first `left` of these
 * rows belong to the split; the other rows are treated as zeros, because the stage may hold NaN of earlier data. */
template <te_dtype T, int V, int NT>
TE_FN void te__decode_add_pv(float (&o)[V / 16][NT][4], const te__decode_p<T, NT> &p, uint32_t stage, int left) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, t = lane % 4;
    const uint32_t from = te__decode_row_at<V>(stage, warp * 16 + lane / 16 * 8 + lane % 8, lane / 8 % 2);
    const uint32_t low = left >= 2 * t + 2 ? ~0u : left == 2 * t + 1 ? 0xffffu : 0u;
    const uint32_t high = left >= 2 * t + 10 ? ~0u : left == 2 * t + 9 ? 0xffffu : 0u;
    TE_UNROLL for (int m = 0; m < V / 16; m++) {
        uint32_t a[4];
        te__attn_ldmatrix_transposed(a, te__decode_chunk(from, m * 2));
        a[0] &= low, a[1] &= low, a[2] &= high, a[3] &= high;
        TE_UNROLL for (int n = 0; n < NT; n++) te__mma_sync(o[m][n], a, p.of[n][0], p.of[n][1], T);
    }
}
/* The type that holds the queries of a tile as B fragments: for latent vectors, for a cache of 8 bits, or for a cache
 * of 16 bits. */
template <int D, int NT, class F>
using te__decode_q_of = typename te__choose_type<
    F::VALUES_IN_KEYS, te__decode_latent_q<D, NT>,
    typename te__choose_type<TE__CACHE_HAS_SCALES(F::CACHE_FORMAT), te__decode8_q<D, NT>,
                             te__decode_q<D, NT>>::type>::type;

/* Computes the result r of this warp for one split, whose keys are `begin` to `stop` (exclusive). The warp processes
 * OF_WARP keys of each stage, 16 or, over a cache of 8 bits, 32. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, int M, int NT>
TE_FN void te__decode_multiply(const te_attention_args *a, const te__decode_group &w, int begin, int stop,
                               const te__decode_q_of<D, NT, F> &q, te__decode_ring &ring,
                               const te__decode_memory &memory, te__decode_result<M, NT> &r) {
    typedef te__decode_traits<HEADS, KV_HEADS, D, F> traits;
    constexpr int V = traits::V, KEYS = traits::KEYS, OF_WARP = KEYS / TE__DECODE_WARPS;
    const uint32_t stages = memory.stages, full = memory.full, empty = memory.empty;
    const int warp = (int)threadIdx.x / 32;
    const auto release = [&] {
        te__decode_release(empty + ring.stage * 8);
        te__decode_advance(ring, memory.count);
    };
    const int past = w.keys - w.mask.queries;
    for (int k0 = begin; k0 < stop; k0 += KEYS) {
        const int key = k0 + warp * OF_WARP, end = stop < k0 + KEYS ? stop : k0 + KEYS;
        const bool has_keys = key < stop;
        float s[traits::TILES][NT][4];
        uint32_t stage = stages + ring.stage * traits::STAGE_BYTES;
        te__barrier_wait(full + ring.stage * 8, ring.phase);
        if constexpr (traits::IS_8BIT) {
            if (end > past) te__decode8_store_new<T, HEADS, KV_HEADS, D, F>(a, w, stop, 0, stage, k0);
            const uint32_t tile = stage + (uint32_t)(warp * OF_WARP * traits::row_bytes(D));
            if (has_keys) te__decode8_products<F::CACHE_FORMAT, T, D, NT>(s, q, tile);
        } else {
            if (end > past) te__decode_stage_new<HEADS, KV_HEADS, D, F>(a, w, end, 0, stage, k0);
            if (has_keys) te__decode_products<T, D, NT>(s, q, stage);
        }
        if (has_keys) te__decode_scores<HEADS, KV_HEADS, F, traits::TILES, NT>(s, a, w, stop, key);
        release();
        if (has_keys) te__decode_softmax<traits::TILES, M, NT>(s, r);
        stage = stages + ring.stage * traits::STAGE_BYTES;
        if constexpr (traits::IS_8BIT) {
            te__barrier_wait(full + ring.stage * 8, ring.phase);
            if (end > past) te__decode8_store_new<T, HEADS, KV_HEADS, D, F>(a, w, stop, 1, stage, k0);
            const uint32_t tile = stage + (uint32_t)(warp * OF_WARP * traits::row_bytes(V));
            if (has_keys) te__decode8_add_pv<F::CACHE_FORMAT, V, NT>(r.o, s, tile, stop - key);
        } else {
            const te__decode_p<T, NT> p(s);
            te__barrier_wait(full + ring.stage * 8, ring.phase);
            if (end > past) te__decode_stage_new<HEADS, KV_HEADS, D, F>(a, w, end, 1, stage, k0);
            if (has_keys) te__decode_add_pv<T, V, NT>(r.o, p, stage, stop - key);
        }
        release();
    }
}

/* Computes the result of split number `at` of group w, over all keys of the split. On return `split` holds the columns
 * of O that belong to this warp. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, int M, int NT>
TE_FN void te__decode_split(te__decode_result<M, NT> &split, const te_attention_args *a, const te__decode_group &w,
                            int at, const te__decode_q_of<D, NT, F> &q, te__decode_ring &ring,
                            const te__decode_memory &memory, const te__decode_exchange &x) {
    typedef te__decode_traits<HEADS, KV_HEADS, D, F> traits;
    const int begin = w.begin(at), stop = w.end(at);
    if constexpr (traits::IS_LATENT) {
        te__decode_latent<T, HEADS, KV_HEADS, D, F, M, NT> of_split(a, w, q, x);
        for (int k0 = begin; k0 < stop; k0 += 2 * traits::KEYS) {
            uint32_t stage[2], empty[2];
            const int count = k0 + traits::KEYS < stop ? 2 : 1; /* the stages of this step */
            for (int j = 0; j < count; j++) {
                te__barrier_wait(memory.full + ring.stage * 8, ring.phase);
                stage[j] = memory.stages + ring.stage * traits::STAGE_BYTES, empty[j] = memory.empty + ring.stage * 8;
                te__decode_advance(ring, memory.count);
            }
            if (count == 1) stage[1] = stage[0];
            of_split.multiply(stage, count, k0, stop);
            for (int j = 0; j < count; j++) te__decode_release(empty[j]);
        }
        of_split.finish(split);
    } else {
        te__decode_result<traits::V / 16, NT> of_warp;
        of_warp.clear();
        te__decode_multiply<T, HEADS, KV_HEADS, D, F, traits::V / 16, NT>(a, w, begin, stop, q, ring, memory, of_warp);
        split = te__decode_add_warps<M, NT>(x, of_warp);
    }
}

/* The body of the consumer warps: processes the groups (tiles of queries with their keys) that the producer passes.
 * merged: MERGED_BYTES of shared memory, for the merged result of those splits of a group that have been processed. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__decode_consume(const te_attention_args *a, const te__decode_memory &memory, const te__decode_exchange &x,
                              float *merged) {
    typedef te__decode_traits<HEADS, KV_HEADS, D, F> traits;
    constexpr int V = traits::V, M = traits::M, NT = traits::NT, PLACES = traits::PLACES;
    constexpr int FLOATS = TE__DECODE_PARTIAL_FLOATS(traits::ROWS, V);
    const te__decode_held<M, NT, traits::WARPS> held = {merged};
    te__decode_ring ring = {0, 0};
    int is_last = 0;
    for (int number = 0; !is_last; number++) {
        const int place = number % PLACES;
        const te__decode_group &g = memory.groups[place];
        te__barrier_wait(memory.q_full + place * 8, number / PLACES & 1);
        te__decode_q_of<D, NT, F> q;
        q.load(memory.q + place * traits::Q_BYTES, g.rows);
        const int page = g.to == g.count ? te__decode_prefetch_new<HEADS, KV_HEADS, D, F>(a, g) : 0;
        is_last = g.is_last;
        /* Let the next kernel start only now: its loads of weights must not delay this kernel's load of queries. */
        if (a->cache.decode_cluster && number == 0) te_kernel_trigger();
        for (int at = g.from; at < g.to; at++) {
            te__decode_result<M, NT> split;
            te__decode_split<T, HEADS, KV_HEADS, D, F>(split, a, g, at, q, ring, memory, x);
            if (a->cache.decode_cluster) {
                if (at == g.from) te__decode_cluster_wait(); /* all blocks have started */
                traits::cluster_of(a, memory).send(split, at);
                continue;
            }
            if (g.from > 0 || g.to < g.count) {
                te__decode_store_partial<V / 16>(te__decode_partials<F>(a, g.slot, FLOATS) + at * FLOATS, split,
                                                 g.rows);
                continue;
            }
            if (at > 0) {
                te__decode_result<M, NT> all;
                held.get(all);
                te__decode_merge(all, split);
                split = all;
            }
            if (at + 1 < g.count)
                held.put(split);
            else
                te__decode_store<T, HEADS, KV_HEADS, D, F, M, NT>(a, g, split, (int)threadIdx.x / 32 * M);
        }
        if (a->cache.decode_cluster) te__decode_cluster_arrive();
        if constexpr (!TE__CACHE_HAS_SCALES(F::CACHE_FORMAT))
            if (g.to == g.count) te__decode_append<HEADS, KV_HEADS, D, F>(a, g, page);
        te__decode_release(memory.q_empty + place * 8);
    }
}

/* Merges the splits of group g in the cluster. Called by all consumers, after the block has sent its results. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, class C>
TE_FN void te__decode_cluster_merge(const te_attention_args *a, const te__decode_group &g, const C &cluster) {
    typedef te__decode_traits<HEADS, KV_HEADS, D, F> traits;
    constexpr int V = traits::V, NT = traits::NT;
    te__decode_cluster_wait();
    for (int f = te__cluster_rank() + (int)threadIdx.x / 32 * cluster.blocks; f < V / 16;
         f += traits::WARPS * cluster.blocks) {
        te__decode_result<1, NT> group, split;
        cluster.receive(group, 0, f);
        for (int k = 1; k < g.count; k++) {
            cluster.receive(split, k, f);
            te__decode_merge(group, split);
        }
        te__decode_store<T, HEADS, KV_HEADS, D, F, 1, NT>(a, g, group, f);
    }
}

/* The first of the two kernels of decoding. It processes all splits of the keys. Grid: as many blocks as can be
 * resident, at most TE__DECODE_MAX_BLOCKS; for a small batch, one cluster for each group. The blocks of a cluster
 * exchange their partial results through shared memory, so that the second kernel is not needed. The producer copies
 * keys and values without waiting for the preceding kernel, because te_cache_begin has made the contents of the cache
 * visible. The keys and values of new rows (tokens of this call) are not in the cache yet. At their places in the cache
 * the producer copies whatever is there, and the consumers overwrite this data in shared memory. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__attention_decode(const te_attention_args *a) {
    typedef te__decode_traits<HEADS, KV_HEADS, D, F> traits;
    constexpr int GROUP = HEADS / KV_HEADS, PLACES = traits::PLACES, WARPS = traits::WARPS;
    constexpr int ARRIVALS = WARPS * TE__DECODE_ARRIVALS;
    __shared__ __align__(8) uint64_t bars[2 * TE__DECODE_MAX_STAGES + 2 * PLACES];
    __shared__ te__decode_group groups[PLACES];
    unsigned char *const q = te__attention_shared, *const o = q + PLACES * traits::Q_BYTES,
                         *const merged = o + traits::O_BYTES, *const stats = merged + traits::MERGED_BYTES,
                         *const batch = stats + traits::STATS_BYTES,
                         *const stages = te__attention_shared + traits::OTHER_BYTES;
    const int count = a->cache.decode_stages;
    const uint32_t full = te__shared_address(bars), empty = full + 8 * count, q_full = empty + 8 * count;
    const te__decode_memory memory = {te__shared_address(stages), full,   empty, te__shared_address(q), q_full,
                                      q_full + 8 * PLACES,        groups, count};
    const te__decode_exchange x = {(float *)stats, (float *)stats + traits::STATS_BYTES / 8, (float4 *)o};
    if (threadIdx.x == 0) {
        for (int s = 0; s < count; s++)
            te__barrier_init(full + s * 8, 1), te__barrier_init(empty + s * 8, ARRIVALS);
        for (int p = 0; p < PLACES; p++)
            te__barrier_init(memory.q_full + p * 8, 1), te__barrier_init(memory.q_empty + p * 8, ARRIVALS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    const te__decode_batch n = te__decode_batch_of<KV_HEADS, GROUP, F>(a, (int *)batch);
    const int in_group = a->cache.decode_cluster; /* the number of blocks of a group */
    int begin, end, item;
    if (in_group) {
        const int group = (int)blockIdx.x / in_group, i = group / n.heads;
        const int splits = n.first_split[i + 1] - n.first_split[i];
        if (!splits) return te_kernel_begin();
        const int rank = te__cluster_rank();
        item = n.first_split[i] * n.heads + (group - i * n.heads) * splits;
        begin = item + splits * rank / in_group, end = item + splits * (rank + 1) / in_group;
        te__decode_cluster_arrive();
    } else {
        begin = n.begin((int)blockIdx.x, (int)gridDim.x), end = n.begin((int)blockIdx.x + 1, (int)gridDim.x);
        item = begin;
        if (begin >= end) return te_kernel_begin();
    }
    const te__decode_group first = te__decode_group_of<GROUP, F>(n, item);
    if (begin == end) { /* This block has no split, because its cluster has more blocks than splits. */
        te_kernel_begin();
        te__decode_cluster_wait();
        if (threadIdx.x >= WARPS * 32) return;
        te__decode_cluster_arrive();
        return te__decode_cluster_merge<T, HEADS, KV_HEADS, D, F>(a, first, traits::cluster_of(a, memory));
    }
    if (threadIdx.x >= WARPS * 32) {
        te__decode_producer<HEADS, KV_HEADS, D, F> producer = {a,   n, memory, first, begin - first.item,
                                                               end, 0, {0, 0}};
        producer.run();
        if (a->cache.decode_cluster) te__decode_cluster_wait();
        return;
    }
    te_kernel_wait();
    if (!in_group) te_kernel_trigger(); /* in a cluster, te__decode_consume does this */
    if (threadIdx.x == 0) te__decode_copy_q<HEADS, KV_HEADS, D, F>(memory.q, memory.q_full, a, first);
    te__decode_consume<T, HEADS, KV_HEADS, D, F>(a, memory, x, (float *)merged);
    if (!a->cache.decode_cluster) return;
    te__decode_cluster_merge<T, HEADS, KV_HEADS, D, F>(a, groups[0], traits::cluster_of(a, memory));
}

/* ---- the second kernel: the merge of groups that lie across a boundary ------------------------------------------- */

/* Merges partial results. Grid: (blocks of the first kernel - 1, V / 16 / TE__DECODE_WARPS), where each warp merges one
 * fragment of O^T. A group (tile of queries) needs this kernel if several blocks of the first kernel have processed its
 * splits. Block b of this kernel merges the group that block b of the first kernel has begun, i.e. the group of whose
 * splits it has processed the first, but not the last; there is at most one such group. The partial results are read
 * once. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__attention_decode_merge(const te_attention_args *a) {
    constexpr int V = te__attn_value_dim<D, F>(), GROUP = HEADS / KV_HEADS, ROWS = TE__DECODE_TILE_ROWS(GROUP),
                  NT = ROWS / 8;
    constexpr int AHEAD = 8 / NT; /* how many splits' partial results are loaded at the same time */
    constexpr int FLOATS = TE__DECODE_PARTIAL_FLOATS(ROWS, V);
    __shared__ int lengths[TE__DECODE_BATCH_BYTES / 4];
    te_kernel_trigger(); /* lets a following decoding kernel begin its copies early */
    const te__decode_batch n = te__decode_batch_of<KV_HEADS, GROUP, F>(a, lengths);
    const int fragment = (int)blockIdx.y * TE__DECODE_WARPS + (int)threadIdx.x / 32;
    const int blocks = (int)gridDim.x + 1, item = n.begin((int)blockIdx.x + 1, blocks);
    te__decode_group g = {};
    if (item < n.items) g = te__decode_group_of<GROUP, F>(n, item);
    const bool is_mine = item < n.items && g.item < item && g.item >= n.begin((int)blockIdx.x, blocks);
    /* The next kernel assumes that the preceding kernel has ended once all blocks of this kernel have ended. So at
     * least one block must wait for the preceding kernel even if no block has work; all other blocks return. */
    if (!is_mine && blockIdx.x + blockIdx.y > 0) return;
    te_kernel_wait();
    if (!is_mine) return;
    const float *const partials = te__decode_partials<F>(a, te__decode_slot_of(n, g, (int)blockIdx.x, blocks), FLOATS);
    te__decode_result<1, NT> group, split[AHEAD];
    for (int k0 = 0; k0 < g.count; k0 += AHEAD) {
        TE_UNROLL for (int j = 0; j < AHEAD; j++)
            te__decode_load_partial<V / 16, NT>(split[j], partials + (k0 + j < g.count ? k0 + j : k0) * FLOATS,
                                                fragment);
        TE_UNROLL for (int j = 0; j < AHEAD; j++)
            if (k0 + j == 0)
                group = split[0];
            else if (k0 + j < g.count)
                te__decode_merge(group, split[j]);
    }
    te__decode_store<T, HEADS, KV_HEADS, D, F, 1, NT>(a, g, group, fragment);
}
#endif

/* ---- the kernels as types, for attention_cuda.h ------------------------------------------------------------------ */

/* Returns whether there are kernels for decoding with these template arguments. The row length must be a multiple of 64
 * elements: only such rows are swizzled in the cache, which avoids bank conflicts. Rows may have up to 256 elements,
 * because longer rows do not fit into the registers and the shared memory of these kernels. Only latent vectors in 16
 * bits may be longer (te__decode_latent_fits). */
template <te_dtype T, int D, class F>
TE_BOTH constexpr bool te__decode_exists(void) {
    constexpr int V = te__attn_value_dim<D, F>();
    const bool fits = F::VALUES_IN_KEYS ? te__decode_latent_fits(D, V) && !TE__CACHE_HAS_SCALES(F::CACHE_FORMAT)
                                        : D % 64 == 0 && V % 64 == 0 && D <= 256 && V <= 256;
    return T != TE_f32 && !F::BIAS && !F::MAX_LOGIT && fits;
}
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, bool = te__decode_exists<T, D, F>()>
struct te__attn_sm90_decode : te__decode_traits<HEADS, KV_HEADS, D, F> {
    typedef te__decode_traits<HEADS, KV_HEADS, D, F> traits;
    typedef te_attention_args args;
    /* BLOCKS: the compiler limits the registers such that this many blocks fit on a multiprocessor (launch bounds).
     * Only traits::BLOCKS blocks of this kernel run there; up to head size 128, BLOCKS is one more, so that blocks of
     * the merge kernel and of the next kernel fit beside them. But tiles of 16 rows over a cache of 8 bits need more
     * registers, so there BLOCKS is traits::BLOCKS. */
    static constexpr int NEEDS_REGISTERS = traits::IS_8BIT && traits::ROWS > 8;
    static constexpr int EXISTS = 1, BLOCKS = traits::BLOCKS + (traits::WIDEST <= 128 && !NEEDS_REGISTERS);
    static __device__ __forceinline__ void body(const args *a) {
#if defined __CUDA_ARCH_FEAT_SM90_ALL
        te__attention_decode<T, HEADS, KV_HEADS, D, F>(a);
#endif
    }
    struct merge { /* the second kernel */
        typedef te_attention_args args;
        static constexpr int THREADS = TE__DECODE_WARPS * 32, BLOCKS = 1;
        static __device__ __forceinline__ void body(const args *a) {
#if defined __CUDA_ARCH_FEAT_SM90_ALL
            te__attention_decode_merge<T, HEADS, KV_HEADS, D, F>(a);
#endif
        }
    };
    /* Returns the largest number of new rows of a sequence that these kernels can process in this call: there may not
     * be too many tiles, and the cache must have memory for their partial results. Returns 0 if there are too many
     * sequences. */
    static int rows(const te_attention_args *a) {
        constexpr int GROUP = HEADS / KV_HEADS;
        const int fit = te__decode_max_tiles(F::VALUES_IN_KEYS) * traits::ROWS / GROUP;
        return a->batch > TE__DECODE_MAX_SEQUENCES ? 0 : fit < a->cache.decode_rows ? fit : a->cache.decode_rows;
    }
    /* Returns how many blocks form the cluster that processes a group of `splits` splits. Returns 0 if no cluster may
     * process the group: if it has too many splits, if the cache has 8 bits, or for latent vectors, where the cluster's
     * memory would leave too few stages. */
    static int blocks_of_group(int splits) {
        int blocks = 1;
        while (blocks < splits && blocks < traits::cluster::MAX_BLOCKS) blocks *= 2;
        return splits <= traits::cluster::MAX_SPLITS && !traits::IS_8BIT && !traits::IS_LATENT ? blocks : 0;
    }
    static te_status launch(te_context *ctx, const void *kernel, const void *merge_kernel, const te_attention_args *a,
                            const char *name) {
        const int64_t groups = (int64_t)a->batch * KV_HEADS * te__decode_tiles(a->seq, HEADS / KV_HEADS);
        const int splits = te__cache_max_splits(a->cache.capacity, F::VALUES_IN_KEYS);
        const int in_group = blocks_of_group(splits);
        const int is_small_batch = groups * splits <= ctx->processors;
        /* A cluster needs as many free multiprocessors of one GPC as it has blocks. For all clusters to run at the same
         * time, they may together have at most three quarters of the multiprocessors. */
        if (in_group > 1 && groups * in_group * 4 <= (int64_t)ctx->processors * 3) {
            te_attention_args args = *a;
            args.cache.decode_stages = traits::CLUSTER_STAGES, args.cache.decode_cluster = in_group;
            const te_launch launch = te__launch_of(kernel, name, te__grid_of(groups * in_group, 1), traits::THREADS,
                                                   traits::SHARED, in_group);
            return te__cuda_launch(ctx, launch, &args, sizeof args);
        }
        const int all = ctx->processors * (is_small_batch ? 1 : traits::BLOCKS),
                  blocks = all < TE__DECODE_MAX_BLOCKS ? all : (int)TE__DECODE_MAX_BLOCKS;
        te_attention_args args = *a;
        args.cache.decode_stages = is_small_batch ? traits::SMALL_BATCH_STAGES : traits::STAGES;
        args.cache.decode_cluster = 0;
        const te_launch launch = te__launch_of(kernel, name, te__grid_of(blocks, 1), traits::THREADS,
                                               traits::shared_of(args.cache.decode_stages), 1);
        TE_TRY(te__cuda_launch(ctx, launch, &args, sizeof args));
        if (splits == 1) return TE_OK;
        return te__cuda_launch_plain(ctx, merge_kernel, name,
                                     te__grid_of(blocks - 1, te__attn_value_dim<D, F>() / 16 / TE__DECODE_WARPS),
                                     merge::THREADS, a, sizeof *a);
    }
};
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
struct te__attn_sm90_decode<T, HEADS, KV_HEADS, D, F, false> {
    typedef te_attention_args args;
    static constexpr int EXISTS = 0, THREADS = 32, BLOCKS = 1, SHARED = 0;
    static __device__ __forceinline__ void body(const args *) {}
    typedef te__attn_sm90_decode merge;
    static int rows(const te_attention_args *) { return 0; }
    static te_status launch(te_context *, const void *, const void *, const te_attention_args *, const char *) {
        return TE_OK;
    }
};

#endif
