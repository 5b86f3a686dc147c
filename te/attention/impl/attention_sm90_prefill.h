/* attention_sm90_prefill.h -- attention of many new rows of each sequence to the keys and values in a cache, in bf16
 * and f16 on compute capability 9.0: a prompt, or a part of a prompt that follows the parts already in the cache.
 *
 * The consumers are those of attention_sm90_forward.h; this file has the producer and the launch. Before the kernel,
 * the keys and values of the new rows have been stored in the cache (TE_ATTENTION_CACHE_STORE), so that all keys of a
 * sequence are loaded from the cache. The producer is one warp. A tile of keys is loaded by one box or, if pages are
 * smaller than the tile, by one box for each page; the lanes look up the page numbers and issue the boxes side by side.
 * The number of keys of a sequence is read on the device, as are the page numbers.
 *
 * The cache holds rows with the swizzle that wgmma expects (te_attention_cache), so TMA copies them without a swizzle
 * of its own. Boxes behind the last key are loaded from behind the end of a page, where TMA fills in zeros. The values
 * in the rest of the last page are zeros, too: the store has written them there (te_attention_cache.zero_rows), because
 * P of a masked key, which is 0, times an infinity or a NaN would be NaN.
 *
 * Lower bound of the work: 2 * heads * (head_dim + value_dim) flops for each pair of a new row and a key that it sees.
 * Measurements: docs/notes/attention_decode.md.
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM90_PREFILL_H
#define TE_ATTENTION_SM90_PREFILL_H

#include "attention_sm90_forward.h" /* the consumers, the scheduler of tiles, the arguments */

/* The constants of the prefill kernel: those of te__attn_fwd_traits, except that boxes may be wider. If WHOLE_ROWS is
 * 1, a box has all columns of its rows, so that there are as few boxes as possible: TMA needs some 80 clocks for each
 * box, however small it is. Then a tile of K or V in shared memory is [groups of eight rows, D / 64, 8, 64]. If the
 * head size is no multiple of 64, a box has 64 columns, as in attention_sm90_forward.h. */
template <int D, int V> struct te__attn_prefill_traits : te__attn_fwd_traits<D, V> {
    typedef te__attn_fwd_traits<D, V> base;
    static constexpr int WHOLE_ROWS = D % 64 == 0 && V % 64 == 0;
    static constexpr int KV_BOX = WHOLE_ROWS ? 1024 : base::KV_BOX;
    static constexpr int K_ROWS8 = WHOLE_ROWS ? D / 64 * 1024 : base::K_ROWS8;
    static constexpr int V_ROWS8 = WHOLE_ROWS ? V / 64 * 1024 : base::V_ROWS8;
};

typedef struct te__attn_prefill_params {
    /* The tensor maps of the cache: common.kv for its keys, and v for its values. With WHOLE_ROWS, their dimensions are
     * [pages, kv_heads * page_rows / 8, D / 64, 8, 64], else [pages, page_rows, kv_heads, D], where D is the head size
     * of keys or values. */
    te__attn_fwd_value_params maps;
    te_attention_cache cache;
    /* the number of rows of a box: the rows of a page or, if pages are larger than tiles, the rows of a tile */
    int box_rows;
} te__attn_prefill_params;

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* A tile of keys is divided into boxes of box_rows rows. Returns, in lane l, the index of the page that holds box l of
 * tile `tile`; -1 if the box lies behind the last key of the sequence, or behind the tile. pages: the indices of the
 * pages of the sequence; keys: the number of keys of the sequence. */
template <int KEYS>
TE_FN int te__attn_pages_of_tile(const te__attn_prefill_params *p, const int32_t *pages, int tile, int keys) {
    const int at = (int)threadIdx.x % 32 * p->box_rows, key = tile * KEYS + at;
    return at < KEYS && key < keys ? pages[(unsigned)key >> p->cache.page_shift] : -1;
}
/* Waits until the current stage is empty, issues the loads of the tile [KEYS, D] of keys or values of one head, and
 * advances to the next stage. All lanes of the producer warp call this. pages: the result of te__attn_pages_of_tile for
 * tile `tile`. */
template <int D, int KEYS, int KV_HEADS, int WHOLE_ROWS, int STAGES>
TE_FN void te__attn_produce_boxes(te__attn_tile_producer<STAGES> &s, const te__attn_prefill_params *p,
                                  const CUtensorMap *from, int tile, int pages, int kv_head) {
    /* COLUMNS: the number of boxes into which the columns of a row are divided */
    constexpr int COLUMNS = WHOLE_ROWS ? 1 : (D + 63) / 64, COLUMN_BYTES = (D + 63) / 64 / COLUMNS * KEYS * 128;
    const int lane = (int)threadIdx.x % 32, at = lane / COLUMNS * p->box_rows, column = lane % COLUMNS;
    const uint32_t bar = s.full + 8 * s.state.stage, to = s.tiles + (uint32_t)(s.state.stage * COLUMNS * COLUMN_BYTES);
    te__barrier_wait(s.empty + 8 * s.state.stage, s.state.phase ^ 1);
    if (lane == 0) te__barrier_arrive_expect_tx(bar, COLUMNS * COLUMN_BYTES);
    const int page = __shfl_sync(~0u, pages, lane / COLUMNS);
    const int in_page = (int)((unsigned)(tile * KEYS + at) & ((1u << p->cache.page_shift) - 1));
    if (at < KEYS && WHOLE_ROWS) {
        const int groups = p->cache.page_rows / 8; /* of eight rows, of a head */
        te__attn_tma_load_groups(to + (uint32_t)(at * (D / 64 * 128)), from,
                                 page < 0 ? KV_HEADS * groups : kv_head * groups + in_page / 8, page < 0 ? 0 : page,
                                 bar);
    } else if (at < KEYS) {
        te__attn_tma_load_head(to + (uint32_t)(column * COLUMN_BYTES + at * 128), from, 64 * column, kv_head,
                               page < 0 ? p->cache.page_rows : in_page, page < 0 ? 0 : page, bar);
    }
    te__attn_pipeline_advance(s.state);
}

/* The body of the producer warp: loads all tiles in the order in which the consumers use them. tiles: the shared-memory
 * addresses of the first stage of Q, of K and of V. */
template <class C, int HEADS, int KV_HEADS, class F>
TE_FN void te__attn_prefill_producer(const te__attn_prefill_params *all, te__attn_fwd_barriers *bars,
                                     const uint32_t tiles[3]) {
    static_assert(C::KEYS / TE_CACHE_MIN_PAGE * C::BOXES <= 32, "te: attention: a lane loads one box at most");
    const te__attn_fwd_params *const p = &all->maps.common;
    const CUtensorMap *const k_map = &p->kv, *const v_map = &all->maps.v;
    const int lane = (int)threadIdx.x % 32;
    te__attn_tile_producer<C::K_STAGES> k = {te__shared_address(bars->k_full), te__shared_address(bars->k_empty),
                                             tiles[1], {0, 0}};
    te__attn_tile_producer<C::V_STAGES> v = {te__shared_address(bars->v_full), te__shared_address(bars->v_empty),
                                             tiles[2], {0, 0}};
    te__attn_pipeline_state<C::Q_STAGES> q = {0, 0};
    te_sequence_cursor walk = te_sequence_cursor_begin(&p->sequences, C::ROWS);
    const auto next_tile = [&](int tile) {
        return __shfl_sync(~0u, lane == 0 ? te__attn_fwd_next_ticket(p, tile) : 0, 0);
    };
#pragma unroll 1
    for (int tile = (int)blockIdx.x;;) {
        const te__attn_work_tile w = te__attn_fwd_work_tile<C::ROWS, HEADS, F>(p, tile, &walk);
        const bool is_short = w.head >= 0 && walk.at.count <= all->cache.short_rows;
        if (w.head == TE__ATTN_WORK_INVALID || is_short) {
            tile = next_tile(tile);
            continue;
        }
        const uint32_t bar = te__shared_address(&bars->q_full[q.stage]), to = tiles[0] + q.stage * C::Q_BYTES;
        const int past = w.head >= 0 ? all->cache.past[walk.index] : 0, keys = past < 0 ? 0 : past + walk.at.count;
        const int32_t *const pages = te__cache_pages(&all->cache, walk.index);
        const te__attn_mask mask = te__attn_fwd_mask<F>(p, walk.at.count, keys);
        const te__attn_range t = te__attn_fwd_key_tiles<C>(mask, w.query, C::ROWS);
        const int head = w.head % HEADS, kv_head = head / (HEADS / KV_HEADS);
        /* now, next: the page indices of the tile of keys to load next, and of the tile after that tile. Page indices
         * are looked up one tile ahead of their use. */
        int now = 0, next = 0;
        /* The first tile of K is loaded before Q, because the consumers may still be using the stage of Q. */
        if (w.head >= 0) {
            now = te__attn_pages_of_tile<C::KEYS>(all, pages, t.end - 1, keys);
            if (t.end - 2 >= t.first) next = te__attn_pages_of_tile<C::KEYS>(all, pages, t.end - 2, keys);
            te__attn_produce_boxes<C::D, C::KEYS, KV_HEADS, C::WHOLE_ROWS>(k, all, k_map, t.end - 1, now, kv_head);
        }
        te__barrier_wait(te__shared_address(&bars->q_empty[q.stage]), q.phase ^ 1);
        if (lane == 0) {
            bars->work[q.stage] = w, bars->rows[q.stage] = walk.at, bars->keys[q.stage] = keys;
            if (w.head < 0) te__barrier_arrive(bar);
            else te__barrier_arrive_expect_tx(bar, C::Q_BYTES);
        }
        __syncwarp();
        if (w.head < 0) return;
        if (lane < C::GROUPS * C::BOXES) {
            const int group = lane / C::BOXES, box = lane % C::BOXES;
            te__attn_tma_load_head(to + (uint32_t)(group * C::Q_GROUP_BYTES + box * 8192), &p->q, 64 * box, head,
                                   walk.at.first + w.query + 64 * group, 0, bar);
        }
        te__attn_pipeline_advance(q);
#pragma unroll 1
        /* V of a tile of keys is loaded one iteration after K of the tile, because the consumers use V one step later
         * than K. */
        for (int j = t.end - 2; j >= t.first; j--) {
            const int ahead = j > t.first ? te__attn_pages_of_tile<C::KEYS>(all, pages, j - 1, keys) : 0;
            te__attn_produce_boxes<C::D, C::KEYS, KV_HEADS, C::WHOLE_ROWS>(k, all, k_map, j, next, kv_head);
            te__attn_produce_boxes<C::V, C::KEYS, KV_HEADS, C::WHOLE_ROWS>(v, all, v_map, j + 1, now, kv_head);
            now = next, next = ahead;
        }
        te__attn_produce_boxes<C::V, C::KEYS, KV_HEADS, C::WHOLE_ROWS>(v, all, v_map, t.first, now, kv_head);
        tile = next_tile(tile);
    }
}

template <te_dtype T, class C, int HEADS, int KV_HEADS, class F>
TE_FN void te__attn_prefill_kernel(const te__attn_prefill_params *p, te__attn_fwd_barriers *bars) {
    const uint32_t q_tiles = (te__shared_address(te__attention_shared) + 1023) & ~1023u;
    const uint32_t k_tiles = q_tiles + C::Q_STAGES * C::Q_BYTES, v_tiles = k_tiles + C::K_STAGES * C::K_BYTES;
    const uint32_t tiles[3] = {q_tiles, k_tiles, v_tiles};
    if (threadIdx.x == 0) te__attn_fwd_barriers_init<C>(bars);
    if (threadIdx.x == 32) te__tma_prefetch_descriptor(&p->maps.common.q), te__tma_prefetch_descriptor(&p->maps.v);
    if (threadIdx.x == 64) te__tma_prefetch_descriptor(&p->maps.common.kv);
    __syncthreads();
    te_kernel_begin();
    if (threadIdx.x < 128) {
        te__warpgroup_reg_dealloc<C::PRODUCER_REGISTERS>();
        if (threadIdx.x < 32) te__attn_prefill_producer<C, HEADS, KV_HEADS, F>(p, bars, tiles);
    } else {
        te__warpgroup_reg_alloc<C::CONSUMER_REGISTERS>();
        te__attn_fwd_consumer<T, C, HEADS, F>(&p->maps.common, bars, tiles);
    }
}
#else
template <te_dtype T, class C, int HEADS, int KV_HEADS, class F>
TE_FN void te__attn_prefill_kernel(const te__attn_prefill_params *, te__attn_fwd_barriers *) {}
#endif

/* ---- host ------------------------------------------------------------------------------------------------------ */

/* Makes the tensor map of the keys (value 0) or the values (value 1) of a cache (te__attn_prefill_params.maps), with
 * boxes of box_rows rows. D, V: the head sizes of keys and values. */
template <te_dtype T, int KV_HEADS, int D, int V>
TE_API te_status te__attn_prefill_tensor_map(CUtensorMap *map, te__tensor_map_encode_fn encode,
                                             const te_attention_cache *c, int value, int box_rows, te_context *ctx) {
    const int d = value ? V : D;
    const cuuint64_t row = (cuuint64_t)d * 2;
    const uint16_t *const first = (const uint16_t *)c->pages +
                                  te__cache_head_rows(c, value, 0, KV_HEADS, D, V, TE_CACHE_FORMAT_list);
    const cuuint64_t rows = (cuuint64_t)c->page_rows, pages = (cuuint64_t)c->page_count;
    const cuuint64_t page = (cuuint64_t)c->page_elements * 2;
    if (te__attn_prefill_traits<D, V>::WHOLE_ROWS) {
        const te__tensor_shape blocks = {5,
                                         {64, 8, (cuuint64_t)(d / 64), KV_HEADS * rows / 8, pages},
                                         {row, 128, 8 * row, page},
                                         {64, 8, (cuuint32_t)(d / 64), (cuuint32_t)(box_rows / 8), 1}};
        return te__tensor_map_swizzled(map, encode, first, &blocks, T, CU_TENSOR_MAP_SWIZZLE_NONE, ctx);
    }
    const te__tensor_shape shape = {4,
                                    {(cuuint64_t)d, (cuuint64_t)KV_HEADS, rows, pages},
                                    {row * rows, row, page},
                                    {64, 1, (cuuint32_t)box_rows, 1}};
    /* TMA swizzles rows that are not swizzled in the cache, i.e. those that are not a multiple of 128 bytes long */
    const CUtensorMapSwizzle swizzle = d % 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE;
    return te__tensor_map_swizzled(map, encode, first, &shape, T, swizzle, ctx);
}
/* The prefill kernel as a type (attention_cuda.h, "kernels as types"). EXISTS is 0 if there is no kernel for these
 * template arguments. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F,
          bool = T != TE_f32 && te__attn_sm90_supports(D, te__attn_value_dim<D, F>()) &&
                  !TE__CACHE_HAS_SCALES(F::CACHE_FORMAT)>
struct te__attn_sm90_prefill : te__attn_prefill_traits<D, te__attn_value_dim<D, F>()> {
    typedef te__attn_prefill_traits<D, te__attn_value_dim<D, F>()> traits;
    typedef te__attn_prefill_params args;
    static constexpr int EXISTS = 1, BLOCKS = 1;
    static __device__ __forceinline__ void body(const args *p) {
        __shared__ te__attn_fwd_barriers bars;
        te__attn_prefill_kernel<T, traits, HEADS, KV_HEADS, F>(p, &bars);
    }
    static te_status launch(te_context *ctx, const void *kernel, te__tensor_map_encode_fn encode,
                            const te_attention_args *a, const char *name) {
        constexpr int V = traits::V;
        te__attn_prefill_params all;
        te__attn_fwd_params &p = all.maps.common;
        te__attn_heads_tensor q;
        memset(&all, 0, sizeof all);
        all.cache = a->cache;
        all.box_rows = (int)te_min(a->cache.page_shift < 31 ? a->cache.page_rows : traits::KEYS, traits::KEYS);
        p.sequences = te__attn_sequences(a), p.slots = te_sequence_tiles(&p.sequences, traits::ROWS);
        p.whole = a->whole, p.sinks = a->sinks;
        q.data = a->qkv, q.width = te__attn_widths<HEADS, KV_HEADS, D, F>::QKV, q.dim = D, q.heads = HEADS;
        q.seq = p.sequences.rows, q.batch = 1, q.box_rows = 64;
        TE_TRY(te__attn_heads_tensor_map(&p.q, encode, &q, T, ctx));
        TE_TRY((te__attn_prefill_tensor_map<T, KV_HEADS, D, V>(&p.kv, encode, &a->cache, 0, all.box_rows, ctx)));
        TE_TRY((te__attn_prefill_tensor_map<T, KV_HEADS, D, V>(&all.maps.v, encode, &a->cache, 1, all.box_rows, ctx)));
        te__attn_fwd_schedule<traits, HEADS, KV_HEADS, F>(&p, a, ctx->tickets, (int64_t)a->cache.capacity * (D + V) * 2,
                                                          KV_HEADS);
        const te_grid grid = te__grid_of(te_min(ctx->processors, p.tiles), 1);
        const te_launch launch = te__launch_of(kernel, name, grid, traits::THREADS, traits::SHARED, 1);
        return te__cuda_launch(ctx, launch, &all, sizeof all);
    }
};
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
struct te__attn_sm90_prefill<T, HEADS, KV_HEADS, D, F, false> {
    typedef te__attn_prefill_params args;
    static constexpr int EXISTS = 0, THREADS = 32, BLOCKS = 1, SHARED = 0, KEYS = 0;
    static __device__ __forceinline__ void body(const args *) {}
    static te_status launch(te_context *, const void *, te__tensor_map_encode_fn, const te_attention_args *,
                            const char *) {
        return TE_OK;
    }
};

#endif
