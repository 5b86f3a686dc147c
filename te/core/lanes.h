/* lanes.h -- the group of lanes (threads) that works on one row: a part of a warp, a warp, or a block; on the host a
 * single lane. The header also has the group's reductions: sums, maxima, scans, and the amax of a tensor.
 *
 * Do this:
 *     for (int c = lanes.id; c < n; c += lanes.count) sum += x[c];
 *     te_lanes_sum(&sum, 1, &lanes);                   // every lane has the total, summed in a fixed order
 *
 * On CUDA a group has 1, 2, 4, 8, 16 or 32 lanes, or is a whole block, whose thread count is a multiple of 32 up to
 * 1024. On the host a group has 1 lane. All lanes of the group must call a reduction.
 */
#ifndef TE_LANES_H
#define TE_LANES_H

#include "base.h"  /* TE_FN, TE_UNROLL */
#include "dtype.h" /* te_vec8, te_bits_of_float */

/* A group of `count` lanes, in which this thread is lane number `id`. Reductions alternate between two buffers in
 * shared memory, so that one barrier per reduction is enough; `buffer` is the buffer that the next reduction uses. */
typedef struct te_lanes { int id, count, buffer; } te_lanes;

/* The index of a thread block in the grid (x, y), and the size of the grid in blocks (nx, ny). */
typedef struct te_block { int x, y, nx, ny; } te_block;

#if TE_CUDA
TE_FN te_block te_block_here(void) {
    te_block b;
    b.x = (int)blockIdx.x, b.y = (int)blockIdx.y, b.nx = (int)gridDim.x, b.ny = (int)gridDim.y;
    return b;
}
/* Return the group of `count` consecutive threads that this thread belongs to. *group becomes the index of this group
 * in the thread block. */
TE_FN te_lanes te_lanes_here(int count, int *group) {
    te_lanes g;
    const unsigned n = (unsigned)count;
    *group = (int)(threadIdx.x / n), g.id = (int)(threadIdx.x % n), g.count = count, g.buffer = 0;
    return g;
}
/* Return p, a pointer to target memory, but hide from the compiler's optimizer how p was computed. The compiler then
 * holds p in registers. Otherwise the compiler might compute p from the kernel's arguments once more for each use. */
TE_FN const void *te_opaque_pointer(const void *p) {
    size_t at = __cvta_generic_to_global(p);
    asm volatile("" : "+l"(at));
    return __cvta_global_to_generic(at);
}
/* In every lane of the group, replace each x[i], for i < n, by the sum of x[i] over all lanes of the group; n is at
 * most 4. */
TE_FN void te_lanes_sum(float *x, int n, te_lanes *g) {
    TE_UNROLL for (int i = 0; i < n; i++)
        TE_UNROLL for (int o = 16; o > 0; o >>= 1) if (o < g->count) x[i] += __shfl_xor_sync(~0u, x[i], o);
    if (g->count > 32) {
        __shared__ float te_shared[2][4][32];
        const int lane = (int)threadIdx.x % 32, warps = g->count / 32, is_power_of_two = (warps & (warps - 1)) == 0;
        if (lane == 0) TE_UNROLL for (int i = 0; i < n; i++) te_shared[g->buffer][i][threadIdx.x / 32] = x[i];
        __syncthreads();
        TE_UNROLL for (int i = 0; i < n; i++) {
            const int has_sum = is_power_of_two || lane < warps, warp = is_power_of_two ? lane % warps : lane;
            x[i] = has_sum ? te_shared[g->buffer][i][warp] : 0.0f;
            TE_UNROLL for (int o = 16; o > 0; o >>= 1)
                if (!is_power_of_two || o < warps) x[i] += __shfl_xor_sync(~0u, x[i], o);
        }
        g->buffer ^= 1;
    }
}
/* In every lane of the group, replace *x by the maximum of *x over all lanes of the group; NaNs are ignored. */
TE_FN void te_lanes_max(float *x, te_lanes *g) {
    TE_UNROLL for (int o = 16; o > 0; o >>= 1) if (o < g->count) *x = fmaxf(*x, __shfl_xor_sync(~0u, *x, o));
    if (g->count > 32) {
        __shared__ float te_shared[2][32];
        const int warp = (int)threadIdx.x / 32, warps = g->count / 32;
        if (threadIdx.x % 32 == 0) te_shared[g->buffer][warp] = *x;
        __syncthreads();
        TE_UNROLL_8 for (int w = 0; w < warps; w++) *x = fmaxf(*x, te_shared[g->buffer][w]);
        g->buffer ^= 1;
    }
}
/* Return the maximum of x over the half of the warp (16 neighbouring lanes) to which this lane belongs. The whole warp
 * must call this function. */
TE_FN uint32_t te_lanes16_max(uint32_t x) {
    TE_UNROLL for (int o = 8; o > 0; o >>= 1) {
        const uint32_t other = __shfl_xor_sync(~0u, x, o);
        x = other > x ? other : x;
    }
    return x;
}
/* Return the larger one of two numbers: the x of this lane, which is lane l of the warp, and the x of lane l ^ offset.
 * `offset` is 1, 2, 4, 8 or 16. NaNs are ignored. The whole warp must call this function. On the host the function
 * returns x. */
TE_FN float te_lanes_pair_max(float x, int offset) { return fmaxf(x, __shfl_xor_sync(~0u, x, offset)); }
/* Return the x of lane number i in the half of the warp (16 neighbouring lanes) to which this lane belongs. The whole
 * warp must call this function. */
TE_FN float te_lanes16_broadcast(float x, int i) { return __shfl_sync(~0u, x, i, 16); }
/* Sum each x[k], for k < n, over the `groups` groups of the block: afterwards x[k] in lane i of each group is the sum
 * of the x[k] that lane i of every group had. A group may have at most 32 lanes, the block at most 512 threads. The n
 * values are processed eight at a time. Of these eight, group j sums the values number j, j + groups, ..., so that all
 * groups have work. */
TE_FN void te_groups_sum(float *x, int n, te_lanes g, int groups) {
    if (groups == 1) return;
    __shared__ float te_shared[8][512];
    const int group = (int)threadIdx.x / g.count;
    TE_UNROLL for (int i = 0; i < n; i += 8) {
        __syncthreads();
        TE_UNROLL for (int k = 0; k < 8; k++) if (i + k < n) te_shared[k][threadIdx.x] = x[i + k];
        __syncthreads();
        for (int k = group; k < 8 && i + k < n; k += groups) {
            float sum = 0;
            for (int j = 0; j < groups; j++) sum += te_shared[k][j * g.count + g.id];
            te_shared[k][g.id] = sum; /* no other lane reads the elements of te_shared that this lane adds up, so the
                                       * sum may overwrite the first of them (j = 0) */
        }
        __syncthreads();
        TE_UNROLL for (int k = 0; k < 8; k++) if (i + k < n) x[i + k] = te_shared[k][g.id];
    }
}
TE_FN void te_block_sync(void) { __syncthreads(); }
TE_FN void te_warp_sync(void) { __syncwarp(); }
/* Return, in every lane, the sum, the maximum or the bitwise OR of x over the warp. */
TE_FN uint32_t te_warp_sum_u32(uint32_t x) { return __reduce_add_sync(~0u, x); }
TE_FN uint32_t te_warp_or_u32(uint32_t x) { return __reduce_or_sync(~0u, x); }
TE_FN uint32_t te_warp_max_u32(uint32_t x) { return __reduce_max_sync(~0u, x); }
/* Return, in every lane, the number of lanes of the warp in which x is not 0. */
TE_FN int te_warp_count(int x) { return __popc(__ballot_sync(~0u, x)); }
/* Set bits of *word, which lies in shared memory; other lanes of the block may set bits of *word at the same time. Two
 * 32-bit operations are used, because in shared memory a 32-bit atomic OR is one instruction, while a 64-bit atomic OR
 * is a loop of compare and swap. */
TE_FN void te_shared_or_u64(uint64_t *word, uint64_t bits) {
    unsigned *const half = (unsigned *)word;
    if ((unsigned)bits) (void)atomicOr(half, (unsigned)bits);
    if (bits >> 32) (void)atomicOr(half + 1, (unsigned)(bits >> 32));
}
TE_FN int te_popcount_u64(uint64_t x) { return __popcll((unsigned long long)x); }
/* Return, in every lane, the sum of x over the warp. */
TE_FN uint64_t te_warp_sum_u64(uint64_t x) {
    enum { BITS = 27 }; /* the sum of 32 numbers of 27 bits is below 2^32 */
    const uint32_t mask = (1u << BITS) - 1u;
    const uint64_t low = te_warp_sum_u32((uint32_t)x & mask), middle = te_warp_sum_u32((uint32_t)(x >> BITS) & mask);
    return low + (middle << BITS) + ((uint64_t)te_warp_sum_u32((uint32_t)(x >> 2 * BITS)) << 2 * BITS);
}
TE_FN uint64_t te__warp_scan_u64(uint64_t x, int lane) { /* the sum of x over the lanes 0 to `lane` of the warp */
    TE_UNROLL for (int o = 1; o < 32; o <<= 1) {
        const uint64_t other = __shfl_up_sync(~0u, (unsigned long long)x, o);
        if (lane >= o) x += other;
    }
    return x;
}
/* Return the sum of x over all lanes of the block that have a lower index than this lane; *total becomes the sum over
 * all lanes. The group must be a whole block. */
TE_FN uint64_t te_lanes_scan_u64(uint64_t *total, uint64_t x, const te_lanes *g) {
    __shared__ uint64_t te_shared[32];
    const int lane = g->id % 32, warp = g->id / 32;
    const uint64_t sum = te__warp_scan_u64(x, lane);
    if (lane == 31) te_shared[warp] = sum;
    __syncthreads();
    const unsigned long long all = te__warp_scan_u64(lane < g->count / 32 ? te_shared[lane] : 0, lane);
    const uint64_t before = __shfl_sync(~0u, all, warp ? warp - 1 : 0);
    *total = __shfl_sync(~0u, all, 31);
    __syncthreads(); /* wait until all threads have read te_shared, because the next call overwrites it */
    return (warp ? before : 0) + sum - x;
}
/* Return the maximum of x over all lanes of the block. */
TE_FN uint64_t te_lanes_max_u64(uint64_t x, const te_lanes *g) {
    __shared__ uint64_t te_shared[32];
    TE_UNROLL for (int o = 16; o > 0; o >>= 1) {
        const uint64_t other = __shfl_xor_sync(~0u, (unsigned long long)x, o);
        x = other > x ? other : x;
    }
    if (g->id % 32 == 0) te_shared[g->id / 32] = x;
    __syncthreads();
    TE_UNROLL_8 for (int w = 0; w < g->count / 32; w++) x = te_shared[w] > x ? te_shared[w] : x;
    __syncthreads();
    return x;
}
#else
TE_FN uint64_t te_warp_sum_u64(uint64_t x) { return x; }
TE_FN void te_shared_or_u64(uint64_t *word, uint64_t bits) { *word |= bits; }
TE_FN int te_popcount_u64(uint64_t x) { return __builtin_popcountll(x); }
TE_FN uint64_t te_lanes_scan_u64(uint64_t *total, uint64_t x, const te_lanes *g) {
    (void)g, *total = x;
    return 0;
}
TE_FN uint64_t te_lanes_max_u64(uint64_t x, const te_lanes *g) { return (void)g, x; }
TE_FN void te_block_sync(void) {}
TE_FN void te_warp_sync(void) {}
TE_FN uint32_t te_warp_sum_u32(uint32_t x) { return x; }
TE_FN uint32_t te_warp_max_u32(uint32_t x) { return x; }
TE_FN int te_warp_count(int x) { return x != 0; }
TE_FN uint32_t te_warp_or_u32(uint32_t x) { return x; }
TE_FN void te_groups_sum(float *x, int n, te_lanes g, int groups) { (void)x, (void)n, (void)g, (void)groups; }
TE_FN te_lanes te_lanes_here(int count, int *group) {
    te_lanes g;
    *group = 0, g.id = 0, g.count = count, g.buffer = 0;
    return g;
}
TE_FN const void *te_opaque_pointer(const void *p) { return p; }
TE_FN void te_lanes_sum(float *x, int n, te_lanes *g) { (void)x, (void)n, (void)g; }
TE_FN void te_lanes_max(float *x, te_lanes *g) { (void)x, (void)g; }
TE_FN uint32_t te_lanes16_max(uint32_t x) { return x; }
TE_FN float te_lanes16_broadcast(float x, int i) { return (void)i, x; }
TE_FN float te_lanes_pair_max(float x, int offset) { return (void)offset, x; }
#endif

/* ---- amax: the largest |x| of a tensor --------------------------------------------------------------------------- */

/* The functions below compare magnitudes |x| as integers, by the bits of the floats: the bits of a larger magnitude are
 * a larger integer, and the bits of a NaN are larger than those of any number. Therefore the maximum is infinite if an
 * element is infinite, and NaN if an element is NaN. A maximum does not depend on the order of comparison, so the
 * results are bitwise identical on CUDA and on the host. */

/* Return the bits of |x|. */
TE_FN uint32_t te_amax_bits(float x) { return te_bits_of_float(x) & 0x7fffffffu; }
/* Return the maximum of m and of the bits of |v[0]| to |v[7]|, compared as integers. */
TE_FN uint32_t te_amax_bits8(uint32_t m, const float v[8]) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 800
    float f = te_float_of_bits(m); /* fabsf below costs no instruction, because max.f32 can take the absolute value of
                                    * its operand */
    TE_UNROLL for (int k = 0; k < 8; k++) asm("max.NaN.f32 %0, %0, %1;" : "+f"(f) : "f"(fabsf(v[k])));
    return te_bits_of_float(f);
#else
    TE_UNROLL for (int k = 0; k < 8; k++) m = te_amax_bits(v[k]) > m ? te_amax_bits(v[k]) : m;
    return m;
#endif
}
/* Return the maxima of the two 16-bit halves of a and b, compared as unsigned integers: the low half of the result is
 * the larger one of the two low halves, and the high half is the larger one of the two high halves. */
TE_FN uint32_t te__max_u16x2(uint32_t a, uint32_t b) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    asm("max.u16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
    return a;
#else
    const uint32_t low = (a & 0xffffu) > (b & 0xffffu) ? a & 0xffffu : b & 0xffffu;
    return low | (a >> 16 > b >> 16 ? a & 0xffff0000u : b & 0xffff0000u);
#endif
}
/* Replace each element of *max by the maximum of this element and the magnitude of the same element of *e. After calls
 * for several vectors *e, *max is the elementwise maximum of the magnitudes of all these vectors. *max and *e have the
 * storage format t (f32, bf16 or f16). *max must be all zeros before the first call. */
TE_FN void te_vec8_max_magnitudes(te_vec8 *max, const te_vec8 *e, te_dtype t) {
    TE_UNROLL for (int k = 0; k < (t == TE_f32 ? 8 : 4); k++) {
        const uint32_t w = e->w[k] & (t == TE_f32 ? 0x7fffffffu : 0x7fff7fffu);
        max->w[k] = t != TE_f32 ? te__max_u16x2(max->w[k], w) : w > max->w[k] ? w : max->w[k];
    }
}
/* Convert a magnitude m from the 16-bit format t to float, and return the float's bits. */
TE_FN uint32_t te_amax_bits_of_16(uint32_t m, te_dtype t) {
    return t == TE_bf16 ? m << 16 : te_bits_of_float(te_float_of_f16((uint16_t)m));
}
/* m holds two magnitudes of the 16-bit format t, one in each half. Return the larger one, as the bits of a float. */
TE_FN uint32_t te_amax_bits_of_16x2(uint32_t m, te_dtype t) {
    return te_amax_bits_of_16(m >> 16 > (m & 0xffffu) ? m >> 16 : m & 0xffffu, t);
}
/* *e has eight 16-bit elements, two in each 32-bit word. Return two magnitudes: the low half of the result is the
 * largest magnitude of the four elements in low halves of words; the high half is the largest magnitude of the four
 * elements in high halves of words. */
TE_FN uint32_t te__amax_16x2(const te_vec8 *e) {
    uint32_t m = e->w[0] & 0x7fff7fffu;
    TE_UNROLL for (int k = 1; k < 4; k++) m = te__max_u16x2(m, e->w[k] & 0x7fff7fffu);
    return m;
}
/* Return two magnitudes: the low half of the result is the largest magnitude of the eight 16-bit elements of *low; the
 * high half is the largest magnitude of the eight 16-bit elements of *high. */
TE_FN uint32_t te_amax_16x2_of_two_vec8(const te_vec8 *low, const te_vec8 *high) {
    const uint32_t a = te__amax_16x2(low), b = te__amax_16x2(high);
    return te__max_u16x2((a & 0xffffu) | b << 16, a >> 16 | (b & 0xffff0000u));
}
/* Return the largest magnitude of the eight elements of *e, which have format t, as the bits of a float. */
TE_FN uint32_t te_amax_vec8(const te_vec8 *e, te_dtype t) {
    float v[8];
    if (TE_CUDA && t != TE_f32) return te_amax_bits_of_16x2(te__amax_16x2(e), t);
    te_vec8_floats(v, e, t);
    return te_amax_bits8(0, v);
}

/* Let M be the maximum of `bits` (the bits of a magnitude) over all lanes of the group. If M is larger than *amax, set
 * *amax to M, atomically; *amax must be at least 0. The function first reads *amax, and skips the atomic operation if
 * the operation would change nothing: in a large tensor, few blocks have a larger magnitude than all blocks before
 * them. */
#if TE_CUDA
TE_FN void te_amax_atomic_max(float *amax, uint32_t bits, te_lanes g) {
    bits = __reduce_max_sync(~0u, bits);
    if (g.count > 32) {
        __shared__ uint32_t te_shared[32];
        const int lane = (int)threadIdx.x % 32;
        __syncthreads(); /* wait until all warps have read the values that an earlier call stored in te_shared */
        if (lane == 0) te_shared[threadIdx.x / 32] = bits;
        __syncthreads();
        bits = __reduce_max_sync(~0u, lane < g.count / 32 ? te_shared[lane] : 0u);
    }
    if (bits > 0x7f800000u) bits = 0x7fffffffu; /* store the same bits for every NaN */
    if (g.id == 0 && bits > *(const volatile uint32_t *)amax) (void)atomicMax((uint32_t *)amax, bits);
}
#else
TE_FN void te_amax_atomic_max(float *amax, uint32_t bits, te_lanes g) {
    uint32_t *to = (uint32_t *)(void *)amax, now = __atomic_load_n(to, __ATOMIC_RELAXED);
    (void)g;
    if (bits > 0x7f800000u) bits = 0x7fffffffu;
    while (bits > now && !__atomic_compare_exchange_n(to, &now, bits, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}
#endif

#endif
