/* attention_hopper.h -- what attention kernels for compute capability 9.0 (sm_90a) share: matrix products by a
 * warpgroup in the sizes that attention needs, and tiles of the packed qkv brought by the copy engine (TMA).
 *
 * Do this, in each warpgroup, for its 64 rows of Q [64, D] and a tile of K [KEYS, D], both in shared memory:
 *     te__wgmma_touch(s), te__wgmma_fence();
 *     te__attn_product_ss<T, KEYS, D>(s, te__attn_tile_at(q, 64), te__attn_tile_at(k, KEYS)); // s = Q K^T, in flight
 *     te__wgmma_commit(), te__wgmma_wait_0(), te__wgmma_touch(s);                             // s may be read
 *
 * A tile of [rows, D] lies in shared memory as ceil(D / 64) boxes of [rows, 64], whose rows of 128 bytes have their
 * 16-byte pieces permuted (128-byte swizzle). An accumulator: lane l of warp w has of rows 16 w + l / 4 (elements 4 j,
 * 4 j + 1) and 8 further down (4 j + 2, 4 j + 3) the columns 8 j + 2 (l % 4) and the next. Elements 8 k to 8 k + 7,
 * packed to 16 bits in pairs, are A of a product over columns 16 k to 16 k + 15.
 */
/* target: cuda */
#ifndef TE_ATTENTION_HOPPER_H
#define TE_ATTENTION_HOPPER_H

#include "../core/impl/ptx_cuda.h" /* barriers, te__wgmma_fence, te__tensor_map_tiled */
#include "attention_options.h"      /* te_context */

extern __shared__ __align__(128) unsigned char te__attention_shared[];

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- matrix products ------------------------------------------------------------------------------------------- */

#define TE__L32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TE__L64                                                                                                   \
    TE__L32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TE__L80 TE__L64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TE__L96 TE__L80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TE__L128                                                                                                  \
    TE__L96 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TE__L192                                                                                                  \
    TE__L128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, "   \
             "%83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TE__L256                                                                                                  \
    TE__L192 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "     \
             "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TE__D32(i) TE__D16(i), TE__D16((i) + 16)

/* X(columns, names of the accumulators, the seven names behind them, the accumulators) */
#define TE__WGMMA_SIZES(X)                                                                                        \
    X(32, TE__L32, 16, 17, 18, 19, 20, 21, 22, TE__D16(0))                                                        \
    X(64, TE__L64, 32, 33, 34, 35, 36, 37, 38, TE__D32(0))                                                        \
    X(80, TE__L80, 40, 41, 42, 43, 44, 45, 46, TE__D32(0), TE__D4(32), TE__D4(36))                                \
    X(96, TE__L96, 48, 49, 50, 51, 52, 53, 54, TE__D32(0), TE__D16(32))                                           \
    X(128, TE__L128, 64, 65, 66, 67, 68, 69, 70, TE__D64(0))                                                      \
    X(192, TE__L192, 96, 97, 98, 99, 100, 101, 102, TE__D64(0), TE__D32(64))                                      \
    X(256, TE__L256, 128, 129, 130, 131, 132, 133, 134, TE__D64(0), TE__D64(64))

#define TE__WGMMA_SS(type, n, list, a_, b_, add_, across_, ...)                                                   \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add_ ", 0;\n"                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" list                        \
                 "}, %" #a_ ", %" #b_ ", add, 1, 1, 0, %" #across_ ";\n}"                                         \
                 : __VA_ARGS__ : "l"(a), "l"(b), "r"(add), "n"(ACROSS))
#define TE__WGMMA_RS(type, n, list, a0, a1, a2, a3, b_, add_, across_, ...)                                       \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add_ ", 0;\n"                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" list                        \
                 "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_ ", add, 1, 1, %" #across_ ";\n}"            \
                 : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(ACROSS))

/* D[64, N] (+)= A[64, 16] B[16, N] by a warpgroup. A: along k in shared memory (ss), or in registers (rs). B: in shared
 * memory, stored [N, 16]; across: [16, N]. add: 0: D begins. */
template <int N> struct te__wgmma_of;
#define TE__WGMMA_OF(n, list, r0, r1, r2, r3, r4, r5, r6, ...)                                                    \
    template <> struct te__wgmma_of<n> {                                                                          \
        template <te_dtype T, int ACROSS> TE_FN void ss(float (&d)[n / 2], uint64_t a, uint64_t b, int add) {     \
            if constexpr (T == TE_bf16) TE__WGMMA_SS("bf16", n, list, r0, r1, r2, r3, __VA_ARGS__);               \
            else TE__WGMMA_SS("f16", n, list, r0, r1, r2, r3, __VA_ARGS__);                                       \
        }                                                                                                         \
        template <te_dtype T, int ACROSS> TE_FN void rs(float (&d)[n / 2], const uint32_t *a, uint64_t b, int add) { \
            if constexpr (T == TE_bf16) TE__WGMMA_RS("bf16", n, list, r0, r1, r2, r3, r4, r5, r6, __VA_ARGS__);   \
            else TE__WGMMA_RS("f16", n, list, r0, r1, r2, r3, r4, r5, r6, __VA_ARGS__);                           \
        }                                                                                                         \
    };
TE__WGMMA_SIZES(TE__WGMMA_OF)

/* Products run behind the program's back. The compiler must not move what writes their registers past the fence ahead
 * of them, nor what reads these to before the wait: an empty asm that says it changes them, on the near side of either,
 * keeps both in their place. */
template <int N> TE_FN void te__wgmma_touch(float (&x)[N]) {
    TE_UNROLL for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i]));
}
template <int N> TE_FN void te__wgmma_touch(uint32_t (&x)[N]) {
    TE_UNROLL for (int i = 0; i < N; i++) asm volatile("" : "+r"(x[i]));
}

/* What wgmma is told of a tile at `address` with `rows` rows in each box. It serves both ways of reading: along the 64
 * columns of a box eight rows are 1024 bytes from the next eight; across, the next 64 columns are a box further on. */
TE_FN uint64_t te__attn_tile_at(uint32_t address, int rows) {
    const uint64_t next_box = (uint64_t)(rows * 128 >> 4), next_rows = 1024 >> 4;
    return (uint64_t)((address & 0x3ffff) >> 4) | next_box << 16 | next_rows << 32 | 1ull << 62;
}
/* The address of the 16-byte piece `piece` of a row in a box. */
TE_FN uint32_t te__attn_piece_at(uint32_t box, int row, int piece) {
    return box + (uint32_t)(row * 128 + ((piece ^ (row & 7)) << 4));
}
/* s[64, N] = A B^T for A [64, D] and B [N, D], tiles. */
template <te_dtype T, int N, int D> TE_FN void te__attn_product_ss(float (&s)[N / 2], uint64_t a, uint64_t b) {
    TE_UNROLL for (int k = 0; k < D / 16; k++) {
        const int box = k / 4, in = k % 4 * 2; /* in units of 16 bytes: 16 columns of a box take 2, a box 8 a row */
        te__wgmma_of<N>::template ss<T, 0>(s, a + box * (64 * 8) + in, b + box * (N * 8) + in, k != 0);
    }
}
/* o[64, D] (+)= P V for P [64, KEYS], packed, and V [KEYS, D], a tile. */
template <te_dtype T, int KEYS, int D>
TE_FN void te__attn_product_rs(float (&o)[D / 2], const uint32_t (&p)[KEYS / 4], uint64_t v, int add) {
    TE_UNROLL for (int k = 0; k < KEYS / 16; k++)
        te__wgmma_of<D>::template rs<T, 1>(o, p + 4 * k, v + k * 128, add || k);
}

/* ---- between warpgroups ---------------------------------------------------------------------------------------- */

/* Registers of a thread, for all warps of a warpgroup: those that load hand over to those that multiply. */
template <int N> TE_FN void te__registers_more(void) { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> TE_FN void te__registers_less(void) { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
/* Named barriers, 1 to 15, of `threads`: those that wait and those that only say that they have come. */
TE_FN void te__named_wait(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
TE_FN void te__named_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* A place in a ring of stages, each of which has a barrier for full and one for empty. */
template <int STAGES> struct te__attn_ring { int stage, phase; };
template <int STAGES> TE_FN void te__attn_advance(te__attn_ring<STAGES> &r) {
    if (++r.stage == STAGES) r.stage = 0, r.phase ^= 1;
}

/* A box of [rows, 64] of a head to shared memory, from dimension x and row y of a sequence on. Rows past the end of the
 * sequence, and dimensions past the head's, become zeros. */
TE_FN void te__attn_load(uint32_t to, const CUtensorMap *from, int x, int head, int y, int batch, uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(from), "r"(x), "r"(head), "r"(y), "r"(batch), "r"(bar)
                 : "memory");
}
/* The same of packed rows, from row y of these on. */
TE_FN void te__attn_load(uint32_t to, const CUtensorMap *from, int x, int head, int y, const te_sequence &rows,
                         uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
                 "l"(from), "r"(x), "r"(head), "r"(te__ragged_row(y, rows.count)), "r"(rows.first + rows.count),
                 "r"((int)TE__RAGGED_ROWS), "r"(bar)
                 : "memory");
}
/* A ring of tiles of [rows, D]: its barriers, where it begins, and where who loads it stands. One thread calls this. */
template <int STAGES> struct te__attn_loader {
    uint32_t full, empty, tiles;
    te__attn_ring<STAGES> at;
};
template <int D, int ROWS, int STAGES, class S> /* S: int, which sequence; or te_sequence, its rows */
TE_FN void te__attn_bring(te__attn_loader<STAGES> &l, const CUtensorMap *from, int head, int y, const S &batch) {
    constexpr int BOXES = (D + 63) / 64, BOX = ROWS * 128;
    const uint32_t bar = l.full + 8 * l.at.stage, to = l.tiles + l.at.stage * (BOXES * BOX);
    te__barrier_wait(l.empty + 8 * l.at.stage, l.at.phase ^ 1);
    te__barrier_arrive_expect_tx(bar, BOXES * BOX);
    TE_UNROLL for (int b = 0; b < BOXES; b++) te__attn_load(to + b * BOX, from, 64 * b, head, y, batch, bar);
    te__attn_advance(l.at);
}

#endif

/* ---- the host's side ------------------------------------------------------------------------------------------- */

/* The head sizes of q and k, and of v, that there are kernels for, forward and backward. */
TE_BOTH constexpr bool te__attn_hopper_has(int head_dim, int value_dim) {
    return head_dim == value_dim ? head_dim == 64 || head_dim == 96 || head_dim == 128 || head_dim == 192 ||
                                       head_dim == 256
                                 : head_dim == 192 && value_dim == 128;
}
/* How the copy engine sees [batch, seq, heads, dim], 16 bits each, in boxes of [box_rows, 64] of a head; batch 0:
 * [rows, heads, dim], rows of packed sequences. width: numbers from row to row. */
TE_API te_status te__attn_heads_map(CUtensorMap *map, te__tensor_map_encode_fn encode, const void *data, int dim, int heads,
                                    int64_t width, int seq, int batch, int box_rows, te_dtype dtype,
                                    te_context *ctx) {
    const cuuint64_t head = (cuuint64_t)dim * 2, row = (cuuint64_t)width * 2;
    const cuuint64_t pitch[3] = {head, row, row * (cuuint64_t)seq};
    const cuuint64_t size[4] = {(cuuint64_t)dim, (cuuint64_t)heads, (cuuint64_t)seq, (cuuint64_t)batch};
    const cuuint32_t box[4] = {64, 1, (cuuint32_t)box_rows, 1};
    if (!batch) return te__tensor_map_ragged(map, encode, data, 3, size, pitch, box, dtype, ctx);
    return te__tensor_map_tiled(map, encode, data, 4, size, pitch, box, dtype, ctx);
}

#endif
