/* hopper_cuda.h -- what compute capability 9.0 (sm_90a) has and CUDA C++ does not say: barriers in shared memory, the
 * copy engine (TMA), clusters, matrix products by a warpgroup (wgmma). PTX ISA 8.0, the chapters of these names.
 */
#ifndef TE_HOPPER_CUDA_H
#define TE_HOPPER_CUDA_H

#include <cuda.h> /* CUtensorMap; no function of libcuda is linked */

#include "mma_cuda.h" /* te__shared_address */
#include "target.h"   /* te__cuda_status */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

TE_FN void te__barrier_init(uint32_t bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count));
}
TE_FN void te__barrier_expect(uint32_t bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
TE_FN void te__barrier_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* Arrive at the same barrier of block `cta` of the cluster. */
TE_FN void te__barrier_arrive_at(uint32_t bar, int cta) {
    asm volatile(
        "{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [at];\n}" ::"r"(
            bar),
        "r"(cta)
        : "memory");
}
TE_FN void te__barrier_wait(uint32_t bar, int phase) {
    asm volatile(
        "{\n.reg .pred done;\nwait:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra wait;\n}" ::
            "r"(bar),
        "r"(phase)
        : "memory");
}
/* The same where what was written to the shared memory of the other block goes with it. */
TE_FN void te__barrier_arrive_cluster(uint32_t bar, int cta) {
    asm volatile("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, %1;\n"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [at];\n}" ::"r"(bar),
                 "r"(cta)
                 : "memory");
}
TE_FN void te__barrier_wait_cluster(uint32_t bar, int phase) {
    asm volatile("{\n.reg .pred done;\nwait:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@!done bra wait;\n}" ::"r"(
                     bar),
                 "r"(phase)
                 : "memory");
}
/* Which block of its cluster this is. */
TE_FN int te__cluster_rank(void) {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
TE_FN void te__cluster_sync(void) {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
/* A box of the tensor to shared memory, of all blocks in `mask` if that is not 0. */
TE_FN void te__tma_load(uint32_t to, const CUtensorMap *from, int x, int y, uint32_t bar, int mask) {
    if (mask)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                     "l"(from), "r"(x), "r"(y), "r"(bar), "h"((uint16_t)mask)
                     : "memory");
    else
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
                "r"(to),
            "l"(from), "r"(x), "r"(y), "r"(bar)
            : "memory");
}
/* The copy engine reads what describes a tensor, so that the first copy does not wait for that. A kernel's arguments
 * may be read ahead of te_kernel_wait. */
TE_FN void te__tma_ready(const CUtensorMap *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map)); }
/* A box comes to the L2. */
TE_FN void te__tma_prefetch(const CUtensorMap *from, int x, int y) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(from), "r"(x), "r"(y));
}
/* Four 8 x 8 matrices of 16-bit numbers to shared memory; each lane gives the address of a row. */
TE_FN void te__store_matrix(uint32_t to, const uint32_t w[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3])
                 : "memory");
}

#define TE__D4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define TE__D16(i) TE__D4(i), TE__D4((i) + 4), TE__D4((i) + 8), TE__D4((i) + 12)
#define TE__D64(i) TE__D16(i), TE__D16((i) + 16), TE__D16((i) + 32), TE__D16((i) + 48)
#define TE__WGMMA(shape, turned)                                                                                   \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"                                                \
                 "wgmma.mma_async.sync.aligned.m64n256" shape " "                                                 \
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                        \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "               \
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "               \
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "               \
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "               \
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "               \
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "   \
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, " \
                 "%128, %129, add, 1, 1" turned ";\n}"                                                           \
                 : TE__D64(0), TE__D64(64)                                                                        \
                 : "l"(a), "l"(b), "r"(add))
/* D[64, 256] (+)= A[64, 16] B[16, 256], by a warpgroup; a and b say where A and B lie. across: B is stored [k, n]. */
TE_FN void te__wgmma(float d[128], uint64_t a, uint64_t b, int add, const te_dtype dtype, const int across) {
    if (dtype == TE_bf16 && !across) TE__WGMMA("k16.f32.bf16.bf16", ", 0, 0");
    else if (dtype == TE_bf16) TE__WGMMA("k16.f32.bf16.bf16", ", 0, 1");
    else if (!across) TE__WGMMA("k16.f32.f16.f16", ", 0, 0");
    else TE__WGMMA("k16.f32.f16.f16", ", 0, 1");
}
/* D[64, 256] (+)= A[64, 32] B[256, 32]^T of FP8. */
TE_FN void te__wgmma_fp8(float d[128], uint64_t a, uint64_t b, int add, const te_dtype dtype_a,
                         const te_dtype dtype_b) {
    if (dtype_a == TE_e4m3 && dtype_b == TE_e4m3) TE__WGMMA("k32.f32.e4m3.e4m3", "");
    else if (dtype_a == TE_e4m3) TE__WGMMA("k32.f32.e4m3.e5m2", "");
    else TE__WGMMA("k32.f32.e5m2.e4m3", "");
}
TE_FN void te__wgmma_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TE_FN void te__wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* All groups are done but the last one, or all. */
TE_FN void te__wgmma_wait_1(void) { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
TE_FN void te__wgmma_wait_0(void) { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

/* Rows of 128 bytes in shared memory, their 16-byte pieces permuted (128-byte swizzle). Along k: eight rows of m or n
 * take 1024 bytes. Across: 64 of m or n by eight of k take 1024 bytes, the next 64 are 8192 bytes on. */
TE_FN uint64_t te__matrix_at(uint32_t address, const int across) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(across ? 8192 >> 4 : 1) << 16 |
           (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
/* The same by its low word, to which the distance of another matrix in 16 bytes may have been added. */
TE_FN uint64_t te__matrix_low(uint32_t low) { return te__matrix_at(0, 0) >> 32 << 32 | low; }
#endif

/* ---- tensor maps ------------------------------------------------------------------------------------------------- */

typedef CUresult (*te__encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                  const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                  CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* cuTensorMapEncodeTiled of the driver; null on a device that has no use for it. */
TE_API te__encode_fn te__hopper_encode(int device) {
    void *f = 0;
    int major = 0, minor = 0;
    cudaDriverEntryPointQueryResult found;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess || major != 9 ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess || minor != 0 ||
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found) !=
            cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return (te__encode_fn)f;
}

/* The same, asked once a context. */
TE_API te__encode_fn te__encode_of(te_context *ctx) {
    if (!ctx->encode_known) ctx->encode = (void (*)(void))te__hopper_encode(ctx->device), ctx->encode_known = 1;
    return (te__encode_fn)ctx->encode;
}

/* How the copy engine sees a tensor of `rank` sizes, 16 bits each, the innermost first, in boxes that are 64 wide and
 * lie in the 128-byte swizzle. pitch: bytes from one index to the next, of all sizes but the innermost. */
TE_API te_status te__hopper_tensor(CUtensorMap *map, te__encode_fn encode, const void *data, int rank,
                                   const cuuint64_t *size, const cuuint64_t *pitch, const cuuint32_t *box,
                                   te_dtype dtype, te_context *ctx) {
    const cuuint32_t step[5] = {1, 1, 1, 1, 1};
    const CUresult e =
        encode(map, dtype == TE_bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
               (cuuint32_t)rank, (void *)(uintptr_t)data, size, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    TE_REQUIRE(e == CUDA_SUCCESS, ctx, TE_ERROR_CUDA, "cuTensorMapEncodeTiled: error %d", (int)e);
    return TE_OK;
}
/* The same where rows, the last of these sizes, are cut by each load: it gets row r of the `count` rows from `first` on
 * by the three last indices te__cut_at(r, count), first + count and TE__CUT, and zeros from row `count` on. The row is
 * the sum of two indices, of which one ends with the rows that are wanted; the third brings the address, which is
 * counted modulo 2^64, back to where it belongs: TE__CUT * (2^34 - pitch) + (first + count) * pitch +
 * (TE__CUT - count + r) * pitch = 2^64 + (first + r) * pitch. */
enum { TE__CUT = 1 << 30, TE__CUT_MOST = 0x7fff0000 };
TE_BOTH int te__cut_at(int row, int count) { return TE__CUT - count + row; }
TE_API te_status te__hopper_cut(CUtensorMap *map, te__encode_fn encode, const void *data, int rank,
                                const cuuint64_t *size, const cuuint64_t *pitch, const cuuint32_t *box, te_dtype dtype,
                                te_context *ctx) {
    cuuint64_t sizes[5], pitches[4];
    cuuint32_t boxes[5];
    const cuuint64_t row = pitch[rank - 2];
    for (int i = 0; i < rank; i++) sizes[i] = size[i], boxes[i] = box[i];
    for (int i = 0; i < rank - 1; i++) pitches[i] = pitch[i];
    sizes[rank - 1] = TE__CUT, sizes[rank] = sizes[rank + 1] = TE__CUT_MOST, boxes[rank] = boxes[rank + 1] = 1;
    pitches[rank - 1] = row, pitches[rank] = ((cuuint64_t)1 << 34) - row;
    return te__hopper_tensor(map, encode, data, rank + 2, sizes, pitches, boxes, dtype, ctx);
}
/* The same for a row-major [rows, cols], in boxes of [box_rows, 64]. */
TE_API te_status te__hopper_map(CUtensorMap *map, te__encode_fn encode, const void *data, int64_t rows, int64_t cols,
                                int box_rows, te_dtype dtype, te_context *ctx) {
    const cuuint64_t size[2] = {(cuuint64_t)cols, (cuuint64_t)rows}, pitch[1] = {(cuuint64_t)cols * 2};
    const cuuint32_t box[2] = {64, (cuuint32_t)box_rows};
    return te__hopper_tensor(map, encode, data, 2, size, pitch, box, dtype, ctx);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* A kernel, and on which devices (bit d: device d) it was found to run, or not to: the file was compiled for sm_90,
 * say. */
typedef struct te_hopper_kernel {
    const void *kernel; /* null: there is none */
    uint64_t runs, fails;
} te_hopper_kernel;

enum { TE_HOPPER_MOST_SPILLED = 240 }; /* bytes a thread; the sums of any of these kernels take 256 or more */

/* Where code for sm_90a is compiled as it is meant to run, there need be no other kernel beside such a one; code for
 * another architecture has no such, and one without inlining, for a debugger or by TE_KEEP_CALLS, does not run it. */
#if defined TE_KEEP_CALLS || defined __CUDACC_DEBUG__ || (defined __CUDA_ARCH__ && !defined __CUDA_ARCH_FEAT_SM90_ALL)
#define TE_HOPPER_ALONE 0
#else
#define TE_HOPPER_ALONE 1
#endif
/* Whether the device runs code for sm_90a: compiled for another architecture the kernel is empty, and has no barriers
 * in shared memory. */
TE_API int te__hopper_compiled(const te_hopper_kernel *k, struct cudaFuncAttributes *is) {
    const int compiled = k->kernel && cudaFuncGetAttributes(is, k->kernel) == cudaSuccess && is->sharedSizeBytes;
    if (!compiled) (void)cudaGetLastError();
    return compiled;
}
/* shared: bytes of dynamic shared memory that it is to have. */
TE_API int te__hopper_ready(te_hopper_kernel *k, int shared, int device) {
    const uint64_t bit = 1ull << (device & 63);
    struct cudaFuncAttributes is;
    if (!k->kernel || __atomic_load_n(&k->fails, __ATOMIC_ACQUIRE) & bit) return 0;
    if (__atomic_load_n(&k->runs, __ATOMIC_ACQUIRE) & bit) return 1;
    /* compiled without inlining (-G, -Ofc) its sums are not in registers, where wgmma leaves them after the call, but
     * in local memory, which is more than what a kernel spills of its addresses and constants */
    const int runs =
        te__hopper_compiled(k, &is) && is.localSizeBytes <= TE_HOPPER_MOST_SPILLED &&
        cudaFuncSetAttribute(k->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared) == cudaSuccess;
    if (!runs) (void)cudaGetLastError();
    (void)__atomic_fetch_or(runs ? &k->runs : &k->fails, bit, __ATOMIC_RELEASE);
    return runs;
}

#endif
