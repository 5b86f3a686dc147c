/* attention_sm90_decode_8bit.h -- the parts of decoding (attention_sm90_decode.h) that differ for a cache of 8 bits.
 *
 * A stage has TE__DECODE8_KEYS keys or values, in tiles of 16 rows: numbers of 8 bits, then a scale for each row
 * (te_attention_cache). Each of the four warps multiplies two tiles, whose numbers it converts in registers, exactly,
 * to 16 bits. ldmatrix loads four 8-bit numbers into a register of a lane, and the conversion makes two pairs of them:
 * bytes 0 and 2, and bytes 1 and 3. This permutes the 16 columns of each 16-byte chunk:
 *
 *     S^T = K Q^T    The queries are read with their columns in the same permuted order (te__decode8_q).
 *     O^T = V^T P^T  The columns of V become the rows of O^T, so each half of a fragment's rows has every other column
 *                    of O: lane 4 * g + t has columns 2 * g and 2 * g + 1 of a fragment (te__decode_store).
 *
 * The scale of a key is multiplied into its scores, and the scale of a value into P. The product of P and scale is
 * rounded to bf16, also in lists of f16: bf16 has the range of f32, so that no scale is too large or too small. New
 * rows are rounded to 8 bits before they are used, as attention_options.h defines.
 *
 * Lower bound of the run time: one read of the keys and values, kv_heads * (head_dim + value_dim + 8) bytes for each
 * token; the 8 bytes are the scales of a key and of a value.
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM90_DECODE_8BIT_H
#define TE_ATTENTION_SM90_DECODE_8BIT_H

#include "../../core/lanes.h"             /* te_amax_bits8 */
#include "attention_sm80_tiles.h"         /* te__attn_ldmatrix, te__mma_sync */
#include "attention_sm90_decode_result.h" /* te__decode_result */
#include "attention_sm90_decode_work.h"   /* te__decode_group, te__decode_consumers_sync */

enum {
    TE__DECODE8_KEYS = 128, /* the number of keys of a stage */
    /* the number of tiles of a stage that each warp multiplies */
    TE__DECODE8_TILES = TE__DECODE8_KEYS / TE__DECODE_WARPS / TE_CACHE_TILE
};

/* Returns the size in bytes of a tile, i.e. of 16 rows of d numbers and their scales. */
TE_BOTH constexpr int te__decode8_tile_bytes(int d) { return TE_CACHE_TILE * (d + (int)sizeof(float)); }

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- conversion -------------------------------------------------------------------------------------------------- */

/* Returns the factor by which a converted number must be multiplied to yield the 8-bit number. The kernels multiply the
 * scales by this factor instead. The factor is 64 for int8 in bf16, where the conversion yields n / 64 with a single
 * multiply-add; otherwise it is 1. */
template <int FORMAT, te_dtype T> TE_BOTH constexpr float te__decode8_unit(void) {
    return FORMAT == TE_CACHE_FORMAT_int8 && T == TE_bf16 ? 64.0f : 1.0f;
}
/* Converts two integers n to n / te__decode8_unit, in T. Each half of x has one of the integers in its low byte. The
 * highest bit of n is inverted first, so that the eight bits are the unsigned number u = n + 128. */
template <te_dtype T> TE_FN uint32_t te__decode8_of_int8(uint32_t x) {
    uint32_t r;
    /* as f16, the bits 0x6400 | u are the number 1024 + u = 1024 + 128 + n; subtracting 1024 + 128 leaves n */
    if constexpr (T == TE_f16) {
        asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"((x & 0x00ff00ffu) ^ 0x64806480u), "r"(0x64806480u));
    /* a bf16 with the bits u is the subnormal number u * 2^-133; u * 2^-133 * 2^127 - 2 = (u - 128) / 64 = n / 64 */
    } else {
        const uint32_t u = (x & 0x00ff00ffu) ^ 0x00800080u;
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(u), "r"(0x7f007f00u), "r"(0xc000c000u));
    }
    return r;
}
/* Converts two e4m3 numbers to T. In each half of x, the sign, the exponent and the fraction of one number are already
 * at the bits where T has them. But the exponent bias is 7 in e4m3, 127 in bf16 and 15 in f16, so the numbers are
 * multiplied by 2^120 or 2^8. This converts subnormal numbers exactly, too; a NaN becomes the number 480. */
template <te_dtype T> TE_FN uint32_t te__decode8_rebias(uint32_t x) {
    uint32_t r;
    if (T == TE_bf16) asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(0x7b807b80u));
    else asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(0x5c005c00u));
    return r;
}
/* Converts the four 8-bit numbers in x to T, divided by te__decode8_unit: `even` gets bytes 0 and 2, `odd` gets bytes 1
 * and 3. */
template <int FORMAT, te_dtype T> TE_FN void te__decode8_convert(uint32_t &even, uint32_t &odd, uint32_t x) {
    if constexpr (FORMAT == TE_CACHE_FORMAT_int8) {
        even = te__decode8_of_int8<T>(x), odd = te__decode8_of_int8<T>(x >> 8);
    } else if constexpr (T == TE_bf16) {
        even = te__decode8_rebias<T>((x << 8 & 0x80008000u) | (x << 4 & 0x07f007f0u));
        odd = te__decode8_rebias<T>((x & 0x80008000u) | (x >> 4 & 0x07f007f0u));
    } else {
        even = te__decode8_rebias<T>((x << 8 & 0x80008000u) | (x << 7 & 0x3f803f80u));
        odd = te__decode8_rebias<T>((x & 0x80008000u) | (x >> 1 & 0x3f803f80u));
    }
}

/* ---- the products ------------------------------------------------------------------------------------------------ */

/* The addresses from which a lane reads the rows of a tile by ldmatrix: four matrices of 8 rows by 16 bytes, namely
 * rows 0 to 7 and 8 to 15 of two adjacent 16-byte chunks. PERIOD: the swizzle permutes the chunks within each group of
 * PERIOD chunks (te__cache_swizzle). */
template <int D> struct te__decode8_lane {
    static constexpr int PERIOD = D % 128 ? 4 : 8;
    uint32_t first; /* this lane's address for chunks 0 and 1, as an offset in bytes from the start of a tile */
    __device__ __forceinline__ te__decode8_lane(void) {
        const int lane = (int)threadIdx.x % 32, row = lane % 16;
        first = (uint32_t)(row * D + (lane / 16 ^ te__cache_swizzle(row, D, TE_bf16, TE_CACHE_FORMAT_int8)) * 16);
    }
    /* Returns this lane's address for one ldmatrix that reads chunks `chunk` (an even number) and chunk + 1, as an
     * offset in bytes from the start of a tile. */
    __device__ __forceinline__ uint32_t at(int chunk) const {
        return (first ^ (uint32_t)(chunk % PERIOD * 16)) + (uint32_t)(chunk / PERIOD * PERIOD * 16);
    }
};
/* The queries of a tile as B fragments of Q^T, for each of NT groups of 8 rows. Fragment k has dimensions 16 * k to
 * 16 * k + 15, in the same order as the keys in te__decode8_products: with t = lane % 4, the first register of a lane
 * has dimensions 4 * t and 4 * t + 2, and the second register has 4 * t + 1 and 4 * t + 3. */
template <int D, int NT> struct te__decode8_q {
    static constexpr bool IN_REGISTERS = D / 16 * NT <= 16;
    uint32_t at;
    int rows;
    uint32_t held[IN_REGISTERS ? D / 16 : 1][NT][2];
    __device__ __forceinline__ void read(uint32_t (&b)[2], int k, int n) const {
        const int lane = (int)threadIdx.x % 32, row = n * 8 + lane / 4;
        uint32_t low, high;
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                     : "=r"(low), "=r"(high)
                     : "r"(at + (uint32_t)((row * D + k * 16 + lane % 4 * 4) * 2)));
        b[0] = row < rows ? __byte_perm(low, high, 0x5410) : 0, b[1] = row < rows ? __byte_perm(low, high, 0x7632) : 0;
    }
    /* Called by all consumers when the queries are in shared memory, at address `from`. of_tile: the number of rows of
     * the tile. */
    __device__ __forceinline__ void load(uint32_t from, int of_tile) {
        at = from, rows = of_tile;
        if constexpr (IN_REGISTERS)
            TE_UNROLL for (int k = 0; k < D / 16; k++) TE_UNROLL for (int n = 0; n < NT; n++) read(held[k][n], k, n);
    }
    __device__ __forceinline__ void get(uint32_t (&b)[2], int k, int n) const {
        if constexpr (IN_REGISTERS) b[0] = held[k][n][0], b[1] = held[k][n][1];
        else read(b, k, n);
    }
};
/* Returns the scale of row `row` of the tile at address `tile`. */
template <int D> TE_FN float te__decode8_scale(uint32_t tile, int row) {
    float scale;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(scale) : "r"(tile + (uint32_t)(TE_CACHE_TILE * D + row * 4)));
    return scale;
}
/* Computes S^T of this warp's keys in a stage of K, before scale and mask. With g = lane / 4 and t = lane % 4,
 * s[b][n][e] is the product of key g + 8 * (e / 2) of tile b and row 8 * n + 2 * t + e % 2 of the queries. tile: the
 * address of the warp's first tile. */
template <int FORMAT, te_dtype T, int D, int NT>
TE_FN void te__decode8_products(float (&s)[TE__DECODE8_TILES][NT][4], const te__decode8_q<D, NT> &q, uint32_t tile) {
    const te__decode8_lane<D> lane;
    const int g = (int)threadIdx.x % 32 / 4;
    float sum[TE__DECODE8_TILES][NT][4] = {};
    TE_UNROLL for (int k = 0; k < D / 16; k += 2) TE_UNROLL for (int b = 0; b < TE__DECODE8_TILES; b++) {
        uint32_t x[4];
        te__attn_ldmatrix(x, tile + (uint32_t)(b * te__decode8_tile_bytes(D)) + lane.at(k));
        TE_UNROLL for (int j = 0; j < 2; j++) {
            uint32_t keys[4], of_q[2];
            te__decode8_convert<FORMAT, T>(keys[0], keys[2], x[2 * j]);
            te__decode8_convert<FORMAT, T>(keys[1], keys[3], x[2 * j + 1]);
            TE_UNROLL for (int n = 0; n < NT; n++) {
                q.get(of_q, k + j, n);
                te__mma_sync(sum[b][n], keys, of_q[0], of_q[1], T);
            }
        }
    }
    TE_UNROLL for (int b = 0; b < TE__DECODE8_TILES; b++) {
        const uint32_t at = tile + (uint32_t)(b * te__decode8_tile_bytes(D));
        constexpr float UNIT = te__decode8_unit<FORMAT, T>();
        const float scale[2] = {te__decode8_scale<D>(at, g) * UNIT, te__decode8_scale<D>(at, g + 8) * UNIT};
        TE_UNROLL for (int n = 0; n < NT; n++) TE_UNROLL for (int e = 0; e < 4; e++)
            s[b][n][e] = sum[b][n][e] * scale[e / 2];
    }
}
/* Transposes an 8 x 8 matrix of 16-bit elements that is distributed over a warp: lane 4 * g + t holds elements 2 * t
 * and 2 * t + 1 of row g. */
TE_FN uint32_t te__transposed(uint32_t pair) {
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
    return r;
}
/* Computes O^T += V^T P^T for the rows of V (values) of this warp in a stage. p: P^T, laid out as S^T in
 * te__decode8_products. tile: the address of the warp's first tile. left: only the first `left` of these rows belong to
 * the split. The other rows are multiplied by 0 instead of their scales, which may be NaN; their 8-bit numbers are
 * finite in any case. */
template <int FORMAT, int V, int NT>
TE_FN void te__decode8_add_pv(float (&o)[V / 16][NT][4], const float (&p)[TE__DECODE8_TILES][NT][4], uint32_t tile,
                              int left) {
    const te__decode8_lane<V> lane;
    const int g = (int)threadIdx.x % 32 / 4;
    uint32_t scaled[TE__DECODE8_TILES][NT][2];
    TE_UNROLL for (int b = 0; b < TE__DECODE8_TILES; b++) TE_UNROLL for (int half = 0; half < 2; half++) {
        const int row = g + half * 8;
        const float stored = te__decode8_scale<V>(tile + (uint32_t)(b * te__decode8_tile_bytes(V)), row);
        const float scale = b * TE_CACHE_TILE + row < left ? stored * te__decode8_unit<FORMAT, TE_bf16>() : 0.0f;
        TE_UNROLL for (int n = 0; n < NT; n++)
            scaled[b][n][half] = te__transposed(
                te_pair_of_floats(p[b][n][2 * half] * scale, p[b][n][2 * half + 1] * scale, TE_bf16));
    }
    TE_UNROLL for (int m = 0; m < V / 16; m += 2) TE_UNROLL for (int b = 0; b < TE__DECODE8_TILES; b++) {
        uint32_t x[4];
        te__attn_ldmatrix_transposed(x, tile + (uint32_t)(b * te__decode8_tile_bytes(V)) + lane.at(m));
        TE_UNROLL for (int j = 0; j < 2; j++) {
            uint32_t values[4];
            te__decode8_convert<FORMAT, TE_bf16>(values[0], values[1], x[2 * j]);
            te__decode8_convert<FORMAT, TE_bf16>(values[2], values[3], x[2 * j + 1]);
            TE_UNROLL for (int n = 0; n < NT; n++)
                te__mma_sync(o[m + j][n], values, scaled[b][n][0], scaled[b][n][1], TE_bf16);
        }
    }
}

/* ---- new rows ---------------------------------------------------------------------------------------------------- */

/* The key or the value of a new row, rounded to 8 bits. A lane holds elements 8 * lane to 8 * lane + 7 of the row, if
 * these elements exist. */
struct te__decode8_new {
    uint32_t numbers[2];
    float scale;
};
/* Loads the key (value 0) or the value (value 1) of new row `row` and rounds it to 8 bits. Called by a whole warp. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
TE_FN te__decode8_new te__decode8_round(const te_attention_args *a, const te__decode_group &w, int value, int row) {
    const int lane = (int)threadIdx.x % 32, d = value ? te__attn_value_dim<D, F>() : D;
    te_vec8 x = {{0, 0, 0, 0, 0, 0, 0, 0}};
    float v[8];
    te__decode8_new r;
    if (lane < d / 8) {
        const uint4 e = *te__decode_new<HEADS, KV_HEADS, D, F>(a, w, value, row, lane);
        x.w[0] = e.x, x.w[1] = e.y, x.w[2] = e.z, x.w[3] = e.w;
    }
    te_vec8_floats(v, &x, T);
    const te__cache_scales s = te__cache_scales_of(__reduce_max_sync(~0u, te_amax_bits8(0, v)), F::CACHE_FORMAT);
    te__cache_quantize8(r.numbers, v, s.inverse, F::CACHE_FORMAT);
    r.scale = s.scale;
    return r;
}
/* Returns the offset in bytes, in a row of d 8-bit numbers, of the eight elements of this lane (te__decode8_new), with
 * the swizzle applied. key: the index of the row's key, on which the swizzle depends. */
TE_FN int te__decode8_in_row(int key, int d) {
    const int lane = (int)threadIdx.x % 32;
    return (lane / 2 ^ te__cache_swizzle(key, d, TE_bf16, TE_CACHE_FORMAT_int8)) * 16 + lane % 2 * 8;
}
/* Rounds the keys (value 0) or values (value 1) of new rows (tokens of this call) to 8 bits, if the new rows lie in the
 * range of keys of a stage. Stores the rounded rows in the stage, because the producer could not copy them from the
 * cache, and also in the cache. A new row has one query for each query head that shares the KV head; these queries may
 * lie in several tiles, and the tile with the first of these heads stores the row in the cache. key: the first key of
 * the stage; stop: one more than the split's last key. Called by all consumers. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__decode8_store_new(const te_attention_args *a, const te__decode_group &w, int stop, int value,
                                 uint32_t stage, int key) {
    constexpr int V = te__attn_value_dim<D, F>(), GROUP = HEADS / KV_HEADS, ROWS = TE__DECODE_TILE_ROWS(GROUP);
    const int past = w.keys - w.mask.queries, d = value ? V : D;
    const int first = past > key ? past : key, end = stop < key + TE__DECODE8_KEYS ? stop : key + TE__DECODE8_KEYS;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int k = first + warp; k < end; k += TE__DECODE_WARPS) {
        const int in_tile = k % TE_CACHE_TILE, at = te__decode8_in_row(k, d), of_tile = (k - past) * GROUP / ROWS;
        const uint32_t tile = stage + (uint32_t)((k - key) / TE_CACHE_TILE * te__decode8_tile_bytes(d));
        const uint32_t numbers = tile + (uint32_t)(in_tile * d + at);
        const uint32_t scale = tile + (uint32_t)(TE_CACHE_TILE * d + in_tile * 4);
        const te__decode8_new n = te__decode8_round<T, HEADS, KV_HEADS, D, F>(a, w, value, k - past);
        if (lane < d / 8)
            asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(numbers), "r"(n.numbers[0]), "r"(n.numbers[1])
                         : "memory");
        if (lane == 0) asm volatile("st.shared.f32 [%0], %1;" ::"r"(scale), "f"(n.scale) : "memory");
        if (of_tile != w.tile) continue;
        const int64_t rows = te__cache_head_rows(&a->cache, value, w.kv_head, KV_HEADS, D, V, F::CACHE_FORMAT);
        const int64_t to = te__cache_row(&a->cache, te__cache_pages(&a->cache, w.i), rows, k, d, F::CACHE_FORMAT);
        if (lane < d / 8)
            *(uint2 *)((uint8_t *)a->cache.pages + to + at) = make_uint2(n.numbers[0], n.numbers[1]);
        if (lane == 0) *te__cache_scale(&a->cache, to, k, d) = n.scale;
    }
    /* order these stores before the producer's next copy to the stage: the copy (TMA) uses the async proxy */
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    te__decode_consumers_sync();
}
#endif

#endif
