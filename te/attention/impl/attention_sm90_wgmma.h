/* attention_sm90_wgmma.h -- the building blocks of the attention kernels for compute capability 9.0 (sm_90a): wgmma in
 * the sizes that attention needs, tiles loaded by TMA, pipelines, named barriers, and bulk copies to global memory.
 *
 * For example, these calls compute S = Q K^T of two tiles in shared memory, Q [64, D], the warpgroup's 64 queries, and
 * K [KEYS, D], a tile of keys. Afterwards s may be read:
 *     te__wgmma_fence_operand(s), te__wgmma_fence();
 *     te__attn_gemm_ss<T, KEYS, D>(s, te__attn_tile_descriptor(q, 64), te__attn_tile_descriptor(k, KEYS));
 *     te__wgmma_commit(), te__wgmma_wait_0(), te__wgmma_fence_operand(s);
 *
 * A tile [rows, D] in shared memory consists of ceil(D / 64) boxes, each of [rows, 64] elements of 16 bits. A row of a
 * box has 128 bytes, and TMA's 128-byte swizzle permutes its eight 16-byte chunks.
 *
 * Accumulator layout: lane l of warp w has elements of two rows, r = 16 * w + l / 4 and r + 8. In each group of eight
 * columns, 8 * j to 8 * j + 7, it has columns c = 8 * j + 2 * (l % 4) and c + 1 of both rows: its elements 4 * j and
 * 4 * j + 1 belong to row r, its elements 4 * j + 2 and 4 * j + 3 to row r + 8. An A operand in registers has the same
 * layout, packed to 16 bits in pairs: the wgmma that multiplies columns 16 * k to 16 * k + 15 of A takes the lane's
 * elements 8 * k to 8 * k + 7.
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM90_WGMMA_H
#define TE_ATTENTION_SM90_WGMMA_H

#include "../../core/impl/ptx_cuda.h" /* barriers, te__wgmma_fence, te__tensor_map */
#include "../../core/tensor.h"   /* te_sequence */
#include "../attention_options.h"      /* te_context */

extern __shared__ __align__(128) unsigned char te__attention_shared[];

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- MMA atoms and GEMMs --------------------------------------------------------------------------------------- */

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

/* Calls the macro X for each number N of columns of B that a kernel uses. The arguments of X: N; the asm names of a
 * thread's N / 2 accumulators, which are asm operands 0 to N / 2 - 1; the numbers N / 2 to N / 2 + 6 of the seven asm
 * operands after them; and the accumulators as asm operands. */
#define TE__WGMMA_ATOM_SIZES(X)                                                                                        \
    X(32, TE__L32, 16, 17, 18, 19, 20, 21, 22, TE__D16(0))                                                        \
    X(64, TE__L64, 32, 33, 34, 35, 36, 37, 38, TE__D32(0))                                                        \
    X(80, TE__L80, 40, 41, 42, 43, 44, 45, 46, TE__D32(0), TE__D4(32), TE__D4(36))                                \
    X(96, TE__L96, 48, 49, 50, 51, 52, 53, 54, TE__D32(0), TE__D16(32))                                           \
    X(128, TE__L128, 64, 65, 66, 67, 68, 69, 70, TE__D64(0))                                                      \
    X(192, TE__L192, 96, 97, 98, 99, 100, 101, 102, TE__D64(0), TE__D32(64))                                      \
    X(256, TE__L256, 128, 129, 130, 131, 132, 133, 134, TE__D64(0), TE__D64(64))

#define TE__WGMMA_SS(type, n, list, a_, b_, add_, mn_major_, ...)                                                   \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add_ ", 0;\n"                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" list                        \
                 "}, %" #a_ ", %" #b_ ", add, 1, 1, 0, %" #mn_major_ ";\n}"                                         \
                 : __VA_ARGS__ : "l"(a), "l"(b), "r"(add), "n"(MN_MAJOR))
#define TE__WGMMA_RS(type, n, list, a0, a1, a2, a3, b_, add_, mn_major_, ...)                                       \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add_ ", 0;\n"                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" list                        \
                 "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_ ", add, 1, 1, %" #mn_major_ ";\n}"            \
                 : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(MN_MAJOR))

/* One wgmma instruction, which a warpgroup executes: D[64, N] = A[64, 16] B[16, N], or D += A B if add is not 0. A is
 * in shared memory, K-major (ss), or in registers (rs). B is in shared memory: K-major, i.e. stored as [N, 16], or, if
 * MN_MAJOR is 1, stored as [16, N]. An operand in shared memory is passed as a matrix descriptor. */
template <int N> struct te__wgmma_atom;
#define TE__WGMMA_ATOM(n, list, r0, r1, r2, r3, r4, r5, r6, ...)                                                    \
    template <> struct te__wgmma_atom<n> {                                                                          \
        template <te_dtype T, int MN_MAJOR> TE_FN void ss(float (&d)[n / 2], uint64_t a, uint64_t b, int add) {     \
            if constexpr (T == TE_bf16) TE__WGMMA_SS("bf16", n, list, r0, r1, r2, r3, __VA_ARGS__);               \
            else TE__WGMMA_SS("f16", n, list, r0, r1, r2, r3, __VA_ARGS__);                                       \
        }                                                                                                         \
        template <te_dtype T, int MN_MAJOR> TE_FN void rs(float (&d)[n / 2], const uint32_t *a, uint64_t b, int add) { \
            if constexpr (T == TE_bf16) TE__WGMMA_RS("bf16", n, list, r0, r1, r2, r3, r4, r5, r6, __VA_ARGS__);   \
            else TE__WGMMA_RS("f16", n, list, r0, r1, r2, r3, r4, r5, r6, __VA_ARGS__);                           \
        }                                                                                                         \
    };
TE__WGMMA_ATOM_SIZES(TE__WGMMA_ATOM)

/* wgmma is asynchronous: it reads and writes registers after the instruction was issued, and the compiler does not know
 * this. This empty asm claims to change the registers. Called before the fence that precedes the wgmma, the function
 * keeps the compiler from moving the initialisation of the registers below that fence; called after the wait for the
 * wgmma, it keeps the compiler from moving the first use of the registers above that wait (CUTLASS's
 * warpgroup_fence_operand). */
template <int N> TE_FN void te__wgmma_fence_operand(float (&x)[N]) {
    TE_UNROLL for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i]));
}
template <int N> TE_FN void te__wgmma_fence_operand(uint32_t (&x)[N]) {
    TE_UNROLL for (int i = 0; i < N; i++) asm volatile("" : "+r"(x[i]));
}

/* Return the wgmma matrix descriptor of a tile at `address`. box_bytes: the distance between boxes; rows8_bytes: the
 * distance between groups of eight rows. The descriptor is valid for K-major and MN-major reads: K-major reads use the
 * distance between groups of eight rows, MN-major reads also use the distance between boxes. */
TE_FN uint64_t te__attn_tile_descriptor(uint32_t address, int box_bytes, int rows8_bytes) {
    const uint64_t next_box = (uint64_t)(box_bytes >> 4), next_rows = (uint64_t)(rows8_bytes >> 4);
    return (uint64_t)((address & 0x3ffff) >> 4) | next_box << 16 | next_rows << 32 | 1ull << 62;
}
/* Returns the descriptor of a tile whose boxes have `rows` rows each and are contiguous in shared memory. */
TE_FN uint64_t te__attn_tile_descriptor(uint32_t address, int rows) {
    return te__attn_tile_descriptor(address, rows * 128, 1024);
}
/* Return the shared-memory address of the 16-byte chunk number `chunk` of row `row` of the box at address `box`, with
 * the swizzle applied. */
TE_FN uint32_t te__attn_chunk_address(uint32_t box, int row, int chunk) {
    return box + (uint32_t)(row * 128 + ((chunk ^ (row & 7)) << 4));
}
/* Issues the product s[64, N] = A B^T of the tiles A [64, D] and B [N, D]. a, b: the descriptors of the tiles. B_BOX:
 * the distance in bytes between boxes of B. */
template <te_dtype T, int N, int D, int B_BOX = N * 128>
TE_FN void te__attn_gemm_ss(float (&s)[N / 2], uint64_t a, uint64_t b) {
    TE_UNROLL for (int k = 0; k < D / 16; k++) {
        /* The address field of a descriptor counts units of 16 bytes: 16 columns of a row have 2 units, and a row of a
         * box (64 columns) has 8 units. */
        const int box = k / 4, column = k % 4 * 2;
        te__wgmma_atom<N>::template ss<T, 0>(s, a + box * (64 * 8) + column, b + box * (B_BOX / 16) + column, k != 0);
    }
}
/* Issues the product o[64, D] = P V, or o += P V if add is not 0, of P [64, KEYS], packed to 16 bits in registers, and
 * the tile V [KEYS, D]. v: the descriptor of the tile. V_ROWS8: the distance in bytes between groups of eight rows of
 * V. */
template <te_dtype T, int KEYS, int D, int V_ROWS8 = 1024>
TE_FN void te__attn_gemm_rs(float (&o)[D / 2], const uint32_t (&p)[KEYS / 4], uint64_t v, int add) {
    TE_UNROLL for (int k = 0; k < KEYS / 16; k++)
        te__wgmma_atom<D>::template rs<T, 1>(o, p + 4 * k, v + k * (2 * V_ROWS8 / 16), add || k);
}

/* ---- warp specialisation and pipelines ------------------------------------------------------------------------- */

/* setmaxnreg changes the number of registers of each thread of a warpgroup to N. The producer warpgroup releases
 * registers (dealloc), which the consumer warpgroups then allocate (alloc). All warps of a warpgroup must execute the
 * instruction. */
template <int N>
TE_FN void te__warpgroup_reg_alloc(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
TE_FN void te__warpgroup_reg_dealloc(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
/* Named barriers are barriers for some of a block's threads, numbered 1 to 15. te__named_barrier_sync arrives at the
 * barrier and waits; te__named_barrier_arrive only arrives. threads: how many threads arrive in all, with either
 * function. */
TE_FN void te__named_barrier_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
TE_FN void te__named_barrier_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* A position in a pipeline of STAGES stages: the current stage, and the phase (parity 0 or 1) of its mbarriers. Each
 * stage has two mbarriers, `full` and `empty`. */
template <int STAGES> struct te__attn_pipeline_state { int stage, phase; };
template <int STAGES> TE_FN void te__attn_pipeline_advance(te__attn_pipeline_state<STAGES> &state) {
    if (++state.stage == STAGES) state.stage = 0, state.phase ^= 1;
}

/* Loads a box [rows, 64] of a head to shared memory by TMA. x: the box's first column, counted within the head; y: the
 * box's first row, counted within sequence number `batch`. Rows past the end of the sequence and columns past head_dim
 * are filled with zeros. bar: the mbarrier that counts the bytes that have arrived. */
TE_FN void te__attn_tma_load_head(uint32_t to, const CUtensorMap *from, int x, int head, int y, int batch,
                                  uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(from), "r"(x), "r"(head), "r"(y), "r"(batch), "r"(bar)
                 : "memory");
}
/* Loads complete rows of a matrix to shared memory by TMA, with a tensor map that divides the matrix into blocks of
 * 8 x 64. The layout in shared memory is [groups of eight rows, D / 64, 8, 64]. group: the first group of eight rows;
 * z: the index of the matrix. bar: the mbarrier that counts the bytes that have arrived. */
TE_FN void te__attn_tma_load_groups(uint32_t to, const CUtensorMap *from, int group, int z, uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %2, %2, %3, %4}], [%5];" ::"r"(to),
                 "l"(from), "r"(0), "r"(group), "r"(z), "r"(bar)
                 : "memory");
}
/* Loads a box [rows, 64] of a head of one of several packed sequences (varlen) to shared memory by TMA. x: the box's
 * first column, counted within the head; y: the box's first row, counted within the sequence; rows: the range of rows
 * of the sequence. Rows past the end of the sequence are filled with zeros. bar: the mbarrier that counts the bytes
 * that have arrived. */
TE_FN void te__attn_tma_load_head(uint32_t to, const CUtensorMap *from, int x, int head, int y, const te_sequence &rows,
                         uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
                 "l"(from), "r"(x), "r"(head), "r"(te__ragged_row(y, rows.count)), "r"(rows.first + rows.count),
                 "r"((int)TE__RAGGED_ROWS), "r"(bar)
                 : "memory");
}
/* The view that a producer has of a pipeline of tiles. full, empty, tiles: the shared-memory addresses of the first
 * stage's two mbarriers and tile; the mbarriers and tiles of the other stages follow them. state: the stage to which
 * the next tile is loaded. */
template <int STAGES> struct te__attn_tile_producer {
    uint32_t full, empty, tiles;
    te__attn_pipeline_state<STAGES> state;
};
/* Waits until the current stage is empty, issues the load of a head's tile [ROWS, D] that begins at row y, and advances
 * to the next stage. One thread calls this. batch: the number of the sequence (if S is int), or the rows of a packed
 * sequence (if S is te_sequence). */
template <int D, int ROWS, int STAGES, class S>
TE_FN void te__attn_produce_tile(te__attn_tile_producer<STAGES> &p, const CUtensorMap *from, int head, int y,
                                const S &batch) {
    constexpr int BOXES = (D + 63) / 64, BOX = ROWS * 128; /* bytes */
    const uint32_t bar = p.full + 8 * p.state.stage, to = p.tiles + p.state.stage * (BOXES * BOX);
    te__barrier_wait(p.empty + 8 * p.state.stage, p.state.phase ^ 1);
    te__barrier_arrive_expect_tx(bar, BOXES * BOX);
    TE_UNROLL for (int b = 0; b < BOXES; b++) te__attn_tma_load_head(to + b * BOX, from, 64 * b, head, y, batch, bar);
    te__attn_pipeline_advance(p.state);
}

/* ---- shared memory, bulk copies, flags in global memory -------------------------------------------------------- */

/* Waits until all committed groups of wgmma are complete, except the K groups that were committed last. */
template <int K> TE_FN void te__attn_wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(K) : "memory");
}
/* Called after the wait for the wgmma whose result is d: keeps the compiler from moving uses of d, or any loads and
 * stores, to before this point. */
template <int N> TE_FN void te__wgmma_fence_result(float (&d)[N]) {
    TE_UNROLL for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* Loads a box of a tensor [batch, seq, width] to shared memory by TMA: 64 columns, beginning with column x, of tokens
 * of sequence z, beginning with token y. The tensor map says how many rows a box has. Rows past the end of the sequence
 * are filled with zeros. bar: the mbarrier that counts the bytes that have arrived. */
TE_FN void te__attn_tma_load_box(uint32_t to, const CUtensorMap *from, int x, int y, int z, uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(from), "r"(x), "r"(y), "r"(z), "r"(bar)
                 : "memory");
}
/* Loads a box of 64 columns, from column x on, to shared memory by TMA from a tensor [rows, width] of packed sequences
 * (varlen). rows: the range of rows of the sequence; y: the first token to load, counted within the sequence. Rows past
 * the end of the sequence are filled with zeros. bar: the mbarrier that counts the bytes that have arrived. */
TE_FN void te__attn_tma_load_box(uint32_t to, const CUtensorMap *from, int x, int y, const te_sequence &rows,
                             uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(from), "r"(x), "r"(te__ragged_row(y, rows.count)), "r"(rows.first + rows.count),
                 "r"((int)TE__RAGGED_ROWS), "r"(bar)
                 : "memory");
}
/* Stores (by stmatrix) four 8 x 8 matrices of 16-bit elements to shared memory, transposed. to: in lane l, the
 * shared-memory address to which row l % 8 of the transposed matrix l / 8 is stored. */
TE_FN void te__attn_stmatrix_transposed(uint32_t to, const uint32_t (&w)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]),
                 "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}
TE_FN float2 te__attn_shared_load2(uint32_t from) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
    return v;
}
TE_FN void te__attn_shared_store4(uint32_t to, const float *v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
}
TE_FN void te__attn_shared_store2(uint32_t to, const float *v) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(v[0]), "f"(v[1]) : "memory");
}
/* Makes this thread's earlier stores to shared memory visible to the async proxy, i.e. to wgmma and TMA operations that
 * other threads issue after they have synchronised with this thread. */
TE_FN void te__attn_fence_async_proxy(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/* Copies `bytes` bytes of f32 from shared to global memory by a TMA bulk copy. Each call is a bulk group, for which
 * te__attn_bulk_wait can wait. */
TE_FN void te__attn_bulk_store(float *to, uint32_t from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
/* Adds `bytes` bytes of f32 from shared memory to the numbers in global memory by a TMA bulk reduction. Each call is a
 * bulk group, for which te__attn_bulk_wait can wait. */
TE_FN void te__attn_bulk_add(float *to, uint32_t from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
/* Copies `bytes` bytes from address `from` of this block's shared memory to the same address in the shared memory of
 * block `cta` of the cluster. The mbarrier at address `bar` of that other block counts the bytes that arrive. */
TE_FN void te__attn_bulk_copy_to_peer(uint32_t from, int bytes, uint32_t bar, int cta) {
    asm volatile("{\n.reg .b32 to, at;\n"
                 "mapa.shared::cluster.u32 to, %0, %3;\nmapa.shared::cluster.u32 at, %2, %3;\n"
                 "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%0], %1, [at];\n}"
                 ::"r"(from), "r"(bytes), "r"(bar), "r"(cta)
                 : "memory");
}
/* Waits until all bulk groups of this thread have read their shared memory, which may then be overwritten. */
TE_FN void te__attn_bulk_wait_read(void) { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
/* Waits until all bulk groups of this thread are complete, i.e. have written global memory. */
TE_FN void te__attn_bulk_wait(void) { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
TE_FN uint32_t te__attn_load_acquire(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
/* Increments *p. A thread that reads the new value by te__attn_load_acquire also sees all earlier writes of this
 * thread, including its completed bulk copies. */
TE_FN void te__attn_add_release(uint32_t *p) {
    asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
}
/* A barrier for the four warps of a consumer warpgroup. group: the number of the warpgroup, 0 or 1. */
TE_FN void te__attn_warpgroup_sync(int group) {
    if (group) asm volatile("bar.sync 2, 128;" ::: "memory");
    else asm volatile("bar.sync 1, 128;" ::: "memory");
}

#endif

/* ---- host ------------------------------------------------------------------------------------------------------ */

/* Returns whether there are kernels for these head sizes. head_dim: the head size of q and k; value_dim: the head size
 * of v. */
TE_BOTH constexpr bool te__attn_sm90_supports(int head_dim, int value_dim) {
    return head_dim == value_dim ? head_dim == 64 || head_dim == 96 || head_dim == 128 || head_dim == 192 ||
                                       head_dim == 256
                                 : head_dim == 192 && value_dim == 128;
}
/* A tensor [batch, seq, heads, dim] of 16-bit elements, from which TMA loads boxes of box_rows rows and 64 columns of
 * one head. If batch is 0, the tensor is [seq, heads, dim], and its rows are those of packed sequences. width: the
 * distance from one row to the next, in elements. */
typedef struct te__attn_heads_tensor {
    const void *data;
    int64_t width;
    int dim, heads, seq, batch, box_rows;
} te__attn_heads_tensor;

/* Makes the tensor map with which TMA loads boxes of the tensor x. */
TE_API te_status te__attn_heads_tensor_map(CUtensorMap *map, te__tensor_map_encode_fn encode,
                                           const te__attn_heads_tensor *x, te_dtype dtype, te_context *ctx) {
    const cuuint64_t head = (cuuint64_t)x->dim * 2, row = (cuuint64_t)x->width * 2;
    const te__tensor_shape shape = {
        x->batch ? 4 : 3,
        {(cuuint64_t)x->dim, (cuuint64_t)x->heads, (cuuint64_t)x->seq, (cuuint64_t)x->batch},
        {head, row, row * (cuuint64_t)x->seq},
        {64, 1, (cuuint32_t)x->box_rows, 1}};
    if (!x->batch) return te__tensor_map_ragged(map, encode, x->data, &shape, dtype, ctx);
    return te__tensor_map(map, encode, x->data, &shape, dtype, ctx);
}

/* Makes the tensor map of a tensor [batch, seq, width] of 16-bit elements, with boxes of 64 tokens by 64 columns; a box
 * never extends into the next sequence. If batch is 0, the tensor is [seq, width], and its rows are those of packed
 * sequences. */
TE_API te_status te__attn_rows_tensor_map(CUtensorMap *map, te__tensor_map_encode_fn encode, const void *data,
                                          int batch, int seq, int width, te_dtype dtype, te_context *ctx) {
    const te__tensor_shape shape = {batch ? 3 : 2,
                                    {(cuuint64_t)width, (cuuint64_t)seq, (cuuint64_t)batch},
                                    {(cuuint64_t)width * 2, (cuuint64_t)width * 2 * (cuuint64_t)seq},
                                    {64, 64, 1}};
    if (!batch) return te__tensor_map_ragged(map, encode, data, &shape, dtype, ctx);
    return te__tensor_map(map, encode, data, &shape, dtype, ctx);
}

#endif
