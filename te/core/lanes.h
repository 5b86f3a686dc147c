/* lanes.h -- the group that works on one row: a warp, a block, or a CPU, which is a lane group of one.
 *
 * Do this:
 *     for (int c = lanes.id; c < n; c += lanes.count) sum += x[c];
 *     te_lanes_sum(&sum, 1, &lanes);                   // every lane has the total, summed in a fixed order
 *
 * A group has 1 lane on the host; on CUDA a divisor of 32 up to 32, or a whole block of a multiple of 32 (up to 1024).
 * All lanes of a group must arrive.
 */
#ifndef TE_LANES_H
#define TE_LANES_H

#include "base.h" /* TE_FN, TE_UNROLL */

/* turn: which of two buffers the next sum or maximum goes through, so that one barrier each is enough. */
typedef struct te_lanes { int id, count, turn; } te_lanes;

/* Which block of the grid this is. */
typedef struct te_block { int x, y, nx, ny; } te_block;

#if TE_CUDA
TE_FN te_block te_block_here(void) {
    te_block b;
    b.x = (int)blockIdx.x, b.y = (int)blockIdx.y, b.nx = (int)gridDim.x, b.ny = (int)gridDim.y;
    return b;
}
/* The group of `count` consecutive threads that this thread belongs to, and which of the block's groups it is. */
TE_FN te_lanes te_lanes_here(int count, int *group) {
    te_lanes g;
    const unsigned n = (unsigned)count;
    *group = (int)(threadIdx.x / n), g.id = (int)(threadIdx.x % n), g.count = count, g.turn = 0;
    return g;
}
/* p, which points to target memory, kept in registers: what is reckoned from it is not reckoned from the beginning. */
TE_FN const void *te_hold(const void *p) {
    size_t at = __cvta_generic_to_global(p);
    asm volatile("" : "+l"(at));
    return __cvta_global_to_generic(at);
}
/* n <= 4 */
TE_FN void te_lanes_sum(float *x, int n, te_lanes *g) {
    TE_UNROLL for (int i = 0; i < n; i++)
        TE_UNROLL for (int o = 16; o > 0; o >>= 1) if (o < g->count) x[i] += __shfl_xor_sync(~0u, x[i], o);
    if (g->count > 32) {
        __shared__ float te_shared[2][4][32];
        const int lane = (int)threadIdx.x % 32, warps = g->count / 32,
                  even = (warps & (warps - 1)) == 0; /* a power of two */
        if (lane == 0) TE_UNROLL for (int i = 0; i < n; i++) te_shared[g->turn][i][threadIdx.x / 32] = x[i];
        __syncthreads();
        TE_UNROLL for (int i = 0; i < n; i++) {
            x[i] = even || lane < warps ? te_shared[g->turn][i][even ? lane % warps : lane] : 0.0f;
            TE_UNROLL for (int o = 16; o > 0; o >>= 1) if (!even || o < warps) x[i] += __shfl_xor_sync(~0u, x[i], o);
        }
        g->turn ^= 1;
    }
}
TE_FN void te_lanes_max(float *x, te_lanes *g) {
    TE_UNROLL for (int o = 16; o > 0; o >>= 1) if (o < g->count) *x = fmaxf(*x, __shfl_xor_sync(~0u, *x, o));
    if (g->count > 32) {
        __shared__ float te_shared[2][32];
        const int warp = (int)threadIdx.x / 32, warps = g->count / 32;
        if (threadIdx.x % 32 == 0) te_shared[g->turn][warp] = *x;
        __syncthreads();
        TE_UNROLL_8 for (int w = 0; w < warps; w++) *x = fmaxf(*x, te_shared[g->turn][w]);
        g->turn ^= 1;
    }
}
/* The largest of 16 lanes that lie beside each other; all of the warp arrive. */
TE_FN uint32_t te_tile_lanes_max(uint32_t x) {
    TE_UNROLL for (int o = 8; o > 0; o >>= 1) {
        const uint32_t other = __shfl_xor_sync(~0u, x, o);
        x = other > x ? other : x;
    }
    return x;
}
/* What lane i of them has. */
TE_FN float te_tile_lane(float x, int i) { return __shfl_sync(~0u, x, i, 16); }
/* Sum x[n] over the block's groups, lane by lane; the first group has the total. Groups of a warp or less, blocks of up
 * to 512 threads. Eight values at a time: group k adds up value k, so that all groups work. */
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
            te_shared[k][g.id] = sum; /* nobody else reads column g.id of value k */
        }
        __syncthreads();
        TE_UNROLL for (int k = 0; k < 8; k++) if (i + k < n) x[i + k] = te_shared[k][g.id];
    }
}
TE_FN void te_block_sync(void) { __syncthreads(); }
#else
TE_FN void te_block_sync(void) {}
TE_FN void te_groups_sum(float *x, int n, te_lanes g, int groups) { (void)x, (void)n, (void)g, (void)groups; }
TE_FN te_lanes te_lanes_here(int count, int *group) {
    te_lanes g;
    *group = 0, g.id = 0, g.count = count, g.turn = 0;
    return g;
}
TE_FN const void *te_hold(const void *p) { return p; }
TE_FN void te_lanes_sum(float *x, int n, te_lanes *g) { (void)x, (void)n, (void)g; }
TE_FN void te_lanes_max(float *x, te_lanes *g) { (void)x, (void)g; }
TE_FN uint32_t te_tile_lanes_max(uint32_t x) { return x; }
TE_FN float te_tile_lane(float x, int i) { return (void)i, x; }
#endif

#endif
