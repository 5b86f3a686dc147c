/* attention_sm90_decode_result.h -- the results of splits in the decoding kernels (attention_sm90_decode.h): functions
 * that add up the results of a block's four warps, merge the results of the splits of a group, and store the output or
 * a partial result. The decoding kernel and the merge kernel both use these functions, in the same order and with
 * explicit rounding, so that a row has bitwise identical results whichever kernel merges its splits.
 *
 * The result of a split (or of several merged splits) is O^T of a tile of queries, not yet divided by the sums of the
 * softmax, and the maximum and the sum of the softmax of each row. A result is distributed over the lanes of one warp
 * or of all consumer warps like the accumulators of mma.sync (te__decode_result).
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM90_DECODE_RESULT_H
#define TE_ATTENTION_SM90_DECODE_RESULT_H

#include "attention_sm80_tiles.h"       /* te__attn_out_scale, te__attn_raise_amax, te__attn_sink */
#include "attention_sm90_decode_work.h" /* te__decode_group */

/* Sizes of the shared memory of te__decode_cluster. STATS: the bytes of the fragments of O^T, behind which the maxima
 * and sums are stored; BYTES: the bytes of the fragments, maxima and sums together. STATS is computed for MAX_SPLITS
 * splits and a cluster of 8 blocks. A smaller cluster needs no more, because it has at most as many splits as
 * blocks. */
template <int FRAGMENTS, int NT>
struct te__decode_cluster_size {
    static constexpr int MAX_BLOCKS = 8, MAX_SPLITS = TE_CACHE_SMALL_SPLITS;
    static constexpr int STATS = MAX_SPLITS * ((FRAGMENTS + MAX_BLOCKS - 1) / MAX_BLOCKS) * NT * 512;
    static constexpr int BYTES = STATS + MAX_SPLITS * NT * 64;
};
template <int FRAGMENTS, int NT> struct te__decode_cluster;

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* A row of a tile of queries, i.e. one query of one query head. query: the index of the query among the new rows of the
 * sequence; head: the query head. The constructor's argument r is the index of the row in the tile. */
template <int HEADS, int KV_HEADS>
struct te__decode_row {
    int query, head;
    __device__ __forceinline__ te__decode_row(const te__decode_group &w, int r) {
        constexpr int GROUP = HEADS / KV_HEADS;
        const int row = w.tile * TE__DECODE_TILE_ROWS(GROUP) + r;
        query = row / GROUP, head = w.kv_head * GROUP + row % GROUP;
    }
};
/* Turns the product q k^T of a row of a tile and key k into a score in base 2 (times log2(e)): applies softcap, ALiBi,
 * mask and scale. needs_mask: 0 if all rows of the tile see key k; stop: one more than the last key of the split. */
template <int HEADS, int KV_HEADS, class F>
TE_FN float te__decode_score(float v, const te_attention_args *a, const te__decode_group &w,
                             const te__decode_row<HEADS, KV_HEADS> &of, int k, int stop, int needs_mask) {
    v = te__attn_softcapped<F>(v, a->scale);
    if constexpr (F::ALIBI)
        v = te__attn_with_alibi<F>(
            v, te__attn_alibi_at<HEADS, F>(a->whole, of.head, a->scale, of.query + w.mask.shift - k), 0);
    if (needs_mask && (k >= stop || !te__attn_sees(w.mask, of.query, k))) v = -INFINITY;
    return v * (te__attn_score_unit<F>(a->scale) * TE__ATTN_LOG2E);
}
/* The part of a result that a lane has, for rows 8 * n + 2 * t and 8 * n + 2 * t + 1, where t = lane % 4. max: the
 * maximum of the scores, in base 2 (times log2(e)), over all keys of the warp; sum: the sum of the exponentials over
 * the keys of this lane; o[m][n][e]: the accumulator of O^T in row 8 * n + 2 * t + e % 2 and column
 * 16 * m + g + 8 * (e / 2), where g = lane / 4. */
template <int M, int NT>
struct te__decode_result {
    float max[NT][2], sum[NT][2], o[M][NT][4];
    __device__ __forceinline__ void clear(void) {
        TE_UNROLL for (int n = 0; n < NT; n++) TE_UNROLL for (int e = 0; e < 4; e++) {
            max[n][e % 2] = -INFINITY, sum[n][e % 2] = 0;
            TE_UNROLL for (int m = 0; m < M; m++) o[m][n][e] = 0;
        }
    }
};

/* Returns the sum of v over the lanes with the same lane % 4. These lanes hold the same rows and different keys. */
TE_FN float te__decode_sum_of_keys(float v) {
    TE_UNROLL for (int o = 4; o < 32; o *= 2) v += __shfl_xor_sync(~0u, v, o);
    return v;
}

/* ---- the sum of four warps, and of splits ------------------------------------------------------------------------ */

/* Merges two results a and b of the same row. max: the larger of their maxima; first, second: the factors by which the
 * sums and O of a and of b are multiplied. */
struct te__decode_factors {
    float max, first, second;
    __device__ __forceinline__ te__decode_factors(float a, float b) : max(fmaxf(a, b)) {
        const float offset = max == -INFINITY ? 0.0f : max;
        first = te_exp2(a - offset), second = te_exp2(b - offset);
    }
    /* Merges two numbers (sums, or elements of O), with explicit rounding, so that both decoding kernels get bitwise
     * identical results. */
    __device__ __forceinline__ float merge(float a, float b) const { return __fmaf_rn(a, first, __fmul_rn(b, second)); }
};
/* The shared memory through which the consumer warps exchange their results. */
struct te__decode_exchange {
    float *max, *sum; /* the maximum and the sum of each row: from each warp, [warps, rows] or, for latent vectors, over
                       * all warps, [rows] */
    float4 *o;        /* O^T of eight rows, from each warp, [warps, V / 16, lanes]; for latent vectors the arrays of
                       * te__decode_latent */
};
/* Adds up the results of the four warps for one split. Returns the maximum and the sum of each row, and M fragments of
 * O^T (16 columns each), beginning with fragment number M * warp: each warp has a quarter of the columns. */
template <int M, int NT>
TE_FN te__decode_result<M, NT> te__decode_add_warps(const te__decode_exchange &x,
                                                    te__decode_result<M * TE__DECODE_WARPS, NT> &r) {
    constexpr int WARPS = TE__DECODE_WARPS, ROWS = NT * 8, FRAGMENTS = M * WARPS;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, t = lane % 4;
    te__decode_result<M, NT> all;
    all.clear();
    TE_UNROLL for (int n = 0; n < NT; n++) TE_UNROLL for (int row = 0; row < 2; row++) {
        const float sum = te__decode_sum_of_keys(r.sum[n][row]);
        const int at = warp * ROWS + n * 8 + 2 * t + row;
        if (lane < 4) x.max[at] = r.max[n][row], x.sum[at] = sum;
    }
    te__decode_consumers_sync();
    TE_UNROLL for (int n = 0; n < NT; n++) {
        float factor[2];
        TE_UNROLL for (int row = 0; row < 2; row++) {
            const int at = n * 8 + 2 * t + row;
            float max = -INFINITY;
            TE_UNROLL for (int k = 0; k < WARPS; k++) max = fmaxf(max, x.max[k * ROWS + at]);
            const float offset = max == -INFINITY ? 0.0f : max;
            TE_UNROLL for (int k = 0; k < WARPS; k++)
                all.sum[n][row] =
                    __fmaf_rn(x.sum[k * ROWS + at], te_exp2(x.max[k * ROWS + at] - offset), all.sum[n][row]);
            all.max[n][row] = max, factor[row] = te_exp2(r.max[n][row] - offset);
        }
        TE_UNROLL for (int m = 0; m < FRAGMENTS; m++)
            x.o[(warp * FRAGMENTS + m) * 32 + lane] = make_float4(r.o[m][n][0] * factor[0], r.o[m][n][1] * factor[1],
                                                                  r.o[m][n][2] * factor[0], r.o[m][n][3] * factor[1]);
        te__decode_consumers_sync();
        TE_UNROLL for (int m = 0; m < M; m++) TE_UNROLL for (int k = 0; k < WARPS; k++) {
            const float4 o = x.o[(k * FRAGMENTS + warp * M + m) * 32 + lane];
            all.o[m][n][0] += o.x, all.o[m][n][1] += o.y, all.o[m][n][2] += o.z, all.o[m][n][3] += o.w;
        }
        te__decode_consumers_sync();
    }
    return all;
}
/* Merges the result of the next split into `group`, the merged result of the previous splits of the same tile of
 * queries. A result without any visible key has the maximum -inf, and the merged result is then equal to the other
 * result. */
template <int M, int NT>
TE_FN void te__decode_merge(te__decode_result<M, NT> &group, const te__decode_result<M, NT> &split) {
    TE_UNROLL for (int n = 0; n < NT; n++) TE_UNROLL for (int row = 0; row < 2; row++) {
        const te__decode_factors f(group.max[n][row], split.max[n][row]);
        group.max[n][row] = f.max, group.sum[n][row] = f.merge(group.sum[n][row], split.sum[n][row]);
        TE_UNROLL for (int m = 0; m < M; m++)
            TE_UNROLL for (int e = row; e < 4; e += 2) group.o[m][n][e] = f.merge(group.o[m][n][e], split.o[m][n][e]);
    }
}
/* Shared memory, [numbers, threads], that holds each thread's part of the merged result of those splits of a tile that
 * have been processed so far. The threads do not have enough registers for this part. */
template <int M, int NT, int WARPS>
struct te__decode_held {
    enum { THREADS = WARPS * 32 };
    float *at;
    template <class G>
    __device__ __forceinline__ void each(G f, te__decode_result<M, NT> &r) const {
        float *p = at + threadIdx.x;
        TE_UNROLL for (int n = 0; n < NT; n++) TE_UNROLL for (int e = 0; e < 4; e++) {
            if (e < 2) f(r.max[n][e], p[0]), f(r.sum[n][e], p[THREADS]), p += 2 * THREADS;
            TE_UNROLL for (int m = 0; m < M; m++, p += THREADS) f(r.o[m][n][e], *p);
        }
    }
    __device__ __forceinline__ void put(te__decode_result<M, NT> &r) const {
        each([](float &x, float &place) { place = x; }, r);
    }
    __device__ __forceinline__ void get(te__decode_result<M, NT> &r) const {
        each([](float &x, float &place) { x = place; }, r);
    }
};

/* ---- the output, and partial results ----------------------------------------------------------------------------- */

/* Returns the factor by which a row of O is multiplied at the end. max, sum: the maximum and the sum of the softmax
 * over all keys; sink: the logit of the row's attention sink, in base 2, or -inf. */
TE_FN float te__decode_scale(float max, float sum, float sink) {
    if (max == -INFINITY) return 0.0f; /* the row sees no key */
    const float all = sum + te_exp2(sink - max);
    return all > 0 ? 1.0f / all : 0.0f;
}
/* Multiplies a pair of numbers of dtype T by scale, and converts it to a pair of e4m3 numbers. */
template <te_dtype T> TE_FN uint16_t te__decode_to_e4m3(uint32_t pair, float scale) {
    const te_vec8 e = {{pair, 0, 0, 0}};
    float v[8];
    te_vec8_floats(v, &e, T);
    TE_UNROLL for (int k = 0; k < 2; k++) v[k] *= scale;
    return (uint16_t)te__fp8_word(v, 1);
}
/* Two adjacent elements of a row of O, rounded to T. r: the row in the tile; column: the column of the first element
 * within its fragment of 16 columns. */
struct te__decode_pair {
    uint32_t pair;
    int r, column;
};
/* Returns a pair of adjacent elements of O that this lane stores. o: the lane's accumulators of a fragment of O^T (16
 * columns of O; rows 8 * n to 8 * n + 7), which make two pairs; i: the index of the pair, 0 or 1. scale: the factors of
 * the lane's two rows. With a cache of 16 bits, o has one column of each of two rows, so the lanes of neighbouring
 * columns exchange elements: if g = lane / 4 is even, the lane gets two columns of its first row; if g is odd, it gets
 * two columns of its second row. With a cache of 8 bits each lane already has two adjacent columns of both rows
 * (attention_sm90_decode_8bit.h). */
template <te_dtype T, class F>
TE_FN te__decode_pair te__decode_pair_of(const float (&o)[4], const float (&scale)[2], int n, int i) {
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, odd = g % 2;
    te__decode_pair p;
    if constexpr (TE__CACHE_HAS_SCALES(F::CACHE_FORMAT)) {
        p.pair = te_pair_of_floats(o[i] * scale[i], o[2 + i] * scale[i], T);
        p.r = n * 8 + 2 * t + i, p.column = 2 * g;
        return p;
    }
    const float first = o[2 * i] * scale[0], second = o[2 * i + 1] * scale[1];
    const float other = __shfl_xor_sync(~0u, odd ? first : second, 4);
    p.pair = odd ? te_pair_of_floats(other, second, T) : te_pair_of_floats(first, other, T);
    p.r = n * 8 + 2 * t + odd, p.column = i * 8 + g - odd;
    return p;
}
/* Stores the output of a group, i.e. of a tile of queries. `result` has M fragments of O^T (16 columns of O each),
 * beginning with fragment number `fragment` of the head's V / 16. With the option fp8_output (te_attention_args), each
 * number is rounded to T before it is multiplied by the output scale and converted to e4m3. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, int M, int NT>
TE_FN void te__decode_store(const te_attention_args *a, const te__decode_group &w,
                            const te__decode_result<M, NT> &result, int fragment) {
    constexpr int V = te__attn_value_dim<D, F>();
    const int t = (int)threadIdx.x % 4;
    const float unit = te__attn_score_unit<F>(a->scale) * TE__ATTN_LOG2E;
    const float *const out_scale = te__attn_out_scale<F>(a);
    /* the largest magnitudes that this lane has stored, as the bits of two numbers of 16 bits (te__attn_raise_amax) */
    uint32_t largest = 0;
    TE_UNROLL for (int n = 0; n < NT; n++) {
        float scale[2];
        TE_UNROLL for (int row = 0; row < 2; row++) {
            const te__decode_row<HEADS, KV_HEADS> of(w, n * 8 + 2 * t + row);
            const int exists = n * 8 + 2 * t + row < w.rows;
            const float sink = F::SINKS && exists ? te__attn_sink<T, F>(a, of.head) * unit : -INFINITY;
            scale[row] = te__decode_scale(result.max[n][row], result.sum[n][row], sink);
        }
        TE_UNROLL for (int m = 0; m < M; m++) TE_UNROLL for (int i = 0; i < 2; i++) {
            const te__decode_pair p = te__decode_pair_of<T, F>(result.o[m][n], scale, n, i);
            const te__decode_row<HEADS, KV_HEADS> of(w, p.r);
            const int64_t to = (int64_t)(w.first_row + of.query) * (HEADS * V) + of.head * V;
            const int64_t at = to + (fragment + m) * 16 + p.column;
            if (p.r >= w.rows) continue;
            if (F::FP8_OUTPUT) largest = te__max_u16x2(largest, p.pair & 0x7fff7fffu);
            if (!out_scale) *(uint32_t *)((uint16_t *)a->out + at) = p.pair;
            else *(uint16_t *)((uint8_t *)a->out + at) = te__decode_to_e4m3<T>(p.pair, *out_scale);
        }
    }
    te__attn_raise_amax<T>(te__attn_amax_output<F>(a), largest);
}
/* Stores the partial result of a split in global memory: fragments of O^T, [NT, V / 16, lanes], then the maximum and
 * the sum of each row. */
template <int FRAGMENTS, int M, int NT>
TE_FN void te__decode_store_partial(float *to, const te__decode_result<M, NT> &result, int rows) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, t = lane % 4;
    TE_UNROLL for (int n = 0; n < NT; n++) {
        if (n * 8 + 2 * t >= rows) continue;
        TE_UNROLL for (int m = 0; m < M; m++)
            *(float4 *)(to + ((n * FRAGMENTS + warp * M + m) * 32 + lane) * 4) =
                make_float4(result.o[m][n][0], result.o[m][n][1], result.o[m][n][2], result.o[m][n][3]);
        if (warp == 0 && lane < 4)
            *(float4 *)(to + NT * FRAGMENTS * 128 + (n * 4 + t) * 4) =
                make_float4(result.max[n][0], result.max[n][1], result.sum[n][0], result.sum[n][1]);
    }
}
/* The barrier of a cluster. Threads that have ended count as arrived. */
TE_FN void te__decode_cluster_arrive(void) { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
TE_FN void te__decode_cluster_wait(void) { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
/* The exchange of partial results in a cluster of `blocks` blocks (2, 4 or 8), which processes one group. Fragment f of
 * O^T is merged by block f % blocks. Each block therefore has shared memory, at address `at`, for the fragments
 * f = rank, rank + blocks, .. of all splits, [splits, ceil(FRAGMENTS / blocks), NT, lanes], followed by memory for the
 * maximum and the sum of each row, [splits, NT, 4]. The elements of both arrays are float4. */
template <int FRAGMENTS, int NT>
struct te__decode_cluster : te__decode_cluster_size<FRAGMENTS, NT> {
    static constexpr int STATS = te__decode_cluster_size<FRAGMENTS, NT>::STATS;
    uint32_t at;
    int blocks;
    __device__ __forceinline__ te__decode_cluster(uint32_t at, int blocks) : at(at), blocks(blocks) {}
    __device__ __forceinline__ int of_block(void) const { return (FRAGMENTS + blocks - 1) / blocks; }
    static __device__ __forceinline__ void store(uint32_t to, int block, float4 v) {
        asm volatile("{\n.reg .b32 to;\nmapa.shared::cluster.u32 to, %0, %1;\n"
                     "st.shared::cluster.v4.f32 [to], {%2, %3, %4, %5};\n}" ::"r"(to),
                     "r"(block), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                     : "memory");
    }
    static __device__ __forceinline__ float4 load(uint32_t from) {
        float4 v;
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                     : "r"(from)
                     : "memory");
        return v;
    }
    /* Sends the result of a split to the blocks that merge it. Called by all consumers. */
    template <int M>
    __device__ __forceinline__ void send(const te__decode_result<M, NT> &r, int split) const {
        const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, t = lane % 4;
        TE_UNROLL for (int n = 0; n < NT; n++) {
            TE_UNROLL for (int m = 0; m < M; m++) {
                const int f = warp * M + m, place = split * of_block() + f / blocks;
                store(at + (uint32_t)(((place * NT + n) * 32 + lane) * 16), f % blocks,
                      make_float4(r.o[m][n][0], r.o[m][n][1], r.o[m][n][2], r.o[m][n][3]));
            }
            if (warp == 0 && lane / 4 < blocks)
                store(at + (uint32_t)(STATS + ((split * NT + n) * 4 + t) * 16), lane / 4,
                      make_float4(r.max[n][0], r.max[n][1], r.sum[n][0], r.sum[n][1]));
        }
    }
    /* Loads fragment f of the result of a split. This block merges fragment f of all splits. */
    __device__ __forceinline__ void receive(te__decode_result<1, NT> &r, int split, int f) const {
        const int lane = (int)threadIdx.x % 32, t = lane % 4, place = split * of_block() + f / blocks;
        TE_UNROLL for (int n = 0; n < NT; n++) {
            const float4 o = load(at + (uint32_t)(((place * NT + n) * 32 + lane) * 16));
            const float4 s = load(at + (uint32_t)(STATS + ((split * NT + n) * 4 + t) * 16));
            r.o[0][n][0] = o.x, r.o[0][n][1] = o.y, r.o[0][n][2] = o.z, r.o[0][n][3] = o.w;
            r.max[n][0] = s.x, r.max[n][1] = s.y, r.sum[n][0] = s.z, r.sum[n][1] = s.w;
        }
    }
};
/* Loads the maximum and the sum of each row, and fragment number `fragment` of O^T, from a partial result that
 * te__decode_store_partial has stored. */
template <int FRAGMENTS, int NT>
TE_FN void te__decode_load_partial(te__decode_result<1, NT> &result, const float *from, int fragment) {
    const int lane = (int)threadIdx.x % 32, t = lane % 4;
    TE_UNROLL for (int n = 0; n < NT; n++) {
        const float4 o = *(const float4 *)(from + ((n * FRAGMENTS + fragment) * 32 + lane) * 4);
        result.o[0][n][0] = o.x, result.o[0][n][1] = o.y, result.o[0][n][2] = o.z, result.o[0][n][3] = o.w;
        const float4 s = *(const float4 *)(from + NT * FRAGMENTS * 128 + (n * 4 + t) * 4);
        result.max[n][0] = s.x, result.max[n][1] = s.y, result.sum[n][0] = s.z, result.sum[n][1] = s.w;
    }
}
#endif

#endif
