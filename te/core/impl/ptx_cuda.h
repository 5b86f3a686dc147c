/* ptx_cuda.h -- functions for instructions that CUDA C++ does not offer. From sm_80 on: shared memory accesses by
 * address, and the warp's matrix product (mma; with FP8 from sm_89 on). On sm_90a: mbarriers, TMA, clusters, and the
 * warpgroup's matrix product (wgmma). The header also makes tensor maps, and finds out whether a device can run a
 * kernel that was compiled for sm_90a.
 *
 * The PTX ISA 8.0 describes the layouts in registers and in shared memory, in the chapter of each instruction.
 */
#ifndef TE_PTX_CUDA_H
#define TE_PTX_CUDA_H

#include <cuda.h> /* the type CUtensorMap; no function of libcuda is linked */

#include "../dtype.h"  /* te_dtype */
#include "../target.h" /* te__cuda_status */

/* ---- shared memory and mma, from sm_80 on ------------------------------------------------------------------------ */

TE_FN uint32_t te__shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* Load 16 bytes from the shared memory address `from`. The asm statements of te__lds128, te__lds_float and
 * te__sts_float are volatile and have a memory clobber, so that the compiler does not move the accesses ahead of the
 * wait for asynchronous copies. */
TE_FN void te__lds128(uint32_t w[4], uint32_t from) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(from)
                 : "memory");
}

TE_FN float te__lds_float(uint32_t from) {
    float f;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(f) : "r"(from) : "memory");
    return f;
}
TE_FN void te__sts_float(uint32_t to, float f) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(f) : "memory");
}

/* Load four 8 x 8 matrices of 16-bit elements, as fragments for mma.sync. Lane 8 * i + j passes the address of row j of
 * matrix i. If `transpose` is 1, each matrix is transposed. */
TE_FN void te__ldmatrix_x4(uint32_t w[4], uint32_t from, const int transpose) {
    if (transpose)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(from) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(from) : "memory");
}

/* A warp computes c += a b, where a is [16, 16] and b is [16, 8] of bf16 or f16. The PTX ISA says which lane holds
 * which elements, in "Matrix fragments for mma.m16n8k16". */
TE_FN void te__mma_sync(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const te_dtype dtype) {
    if (dtype == TE_bf16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- mbarriers, clusters, TMA: sm_90a ---------------------------------------------------------------------------- */

/* In this section, `bar` is the shared memory address of an mbarrier. A phase of an mbarrier completes when a given
 * number of threads have arrived and a given number of bytes have been copied. */

/* Initialise the barrier `bar` such that each of its phases completes after `count` arrivals. */
TE_FN void te__barrier_init(uint32_t bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count));
}
/* Arrive at the barrier `bar`, and let its current phase complete only after asynchronous copies have delivered `bytes`
 * more bytes. */
TE_FN void te__barrier_arrive_expect_tx(uint32_t bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
TE_FN void te__barrier_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* Arrive at a barrier of another thread block of the cluster. The barrier lies at address `bar` in the shared memory of
 * block number `cta`. */
TE_FN void te__barrier_arrive_remote(uint32_t bar, int cta) {
    asm volatile(
        "{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [at];\n}" ::"r"(
            bar),
        "r"(cta)
        : "memory");
}
/* Wait until the phase of barrier `bar` whose parity is `phase` (0 or 1) has completed. */
TE_FN void te__barrier_wait(uint32_t bar, int phase) {
    asm volatile(
        "{\n.reg .pred done;\nwait:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra wait;\n}" ::
            "r"(bar),
        "r"(phase)
        : "memory");
}
/* Arrive at a barrier of another block as te__barrier_arrive_remote does, but with release semantics at cluster scope.
 * Use this function if the barrier orders stores to the other block's shared memory. */
TE_FN void te__barrier_arrive_remote_release(uint32_t bar, int cta) {
    asm volatile("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, %1;\n"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [at];\n}" ::"r"(bar),
                 "r"(cta)
                 : "memory");
}
/* Wait for a barrier as te__barrier_wait does, but with acquire semantics at cluster scope. Use this function if the
 * barrier orders stores from another block of the cluster. */
TE_FN void te__barrier_wait_acquire_cluster(uint32_t bar, int phase) {
    asm volatile("{\n.reg .pred done;\nwait:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@!done bra wait;\n}" ::"r"(
                     bar),
                 "r"(phase)
                 : "memory");
}
/* Return the index of this thread block in its cluster. */
TE_FN int te__cluster_rank(void) {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
TE_FN void te__cluster_sync(void) {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
/* TMA: copy the box at (x, y) of a tensor to the shared memory address `to`; the barrier `bar` counts the bytes that
 * have arrived. If `mask` is 0, the box is copied to this block only. Otherwise `mask` has one bit for each block of
 * the cluster, and the box is multicast to the blocks whose bits are set. */
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
/* TMA: prefetch the tensor map itself, so that the first copy need not wait for the map. A kernel may do this before
 * te_kernel_wait, because the map is part of the kernel's arguments. */
TE_FN void te__tma_prefetch_descriptor(const CUtensorMap *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map)); }
/* TMA: prefetch the box at (x, y) of a tensor into the L2. */
TE_FN void te__tma_prefetch_l2(const CUtensorMap *from, int x, int y) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(from), "r"(x), "r"(y));
}
/* A warp stores four 8 x 8 matrices of 16-bit numbers to shared memory; each of its 32 lanes passes the address of one
 * row. */
TE_FN void te__stmatrix_x4(uint32_t to, const uint32_t w[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3])
                 : "memory");
}

/* A warp transposes two 8 x 8 matrices of 16-bit numbers and stores them to shared memory; lanes 0 to 15 pass the
 * addresses of the 16 rows to be stored. */
TE_FN void te__stmatrix_x2_trans(uint32_t to, uint32_t first, uint32_t second) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(first), "r"(second)
                 : "memory");
}

/* ---- wgmma: sm_90a ----------------------------------------------------------------------------------------------- */

/* Return the wgmma descriptor of an operand in shared memory. The operand consists of rows of 128 bytes, and the
 * 128-byte swizzle permutes the 16-byte chunks within each group of 8 rows. If mn_major is 0 (K-major), a row holds the
 * elements of one index of m or n for 64 consecutive values of k (16-bit elements); the rows of the next 8 indices of m
 * or n begin 1024 bytes later. If mn_major is 1 (MN-major), a row holds the elements of one value of k for 64
 * consecutive indices of m or n; the rows of the next 8 values of k begin 1024 bytes later, and the rows of the next 64
 * indices of m or n begin 8192 bytes later. */
TE_FN uint64_t te__wgmma_descriptor(uint32_t address, const int mn_major) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(mn_major ? 8192 >> 4 : 1) << 16 |
           (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
/* Return the K-major wgmma descriptor whose low 32-bit word is `low`. The low word contains the address in units of 16
 * bytes, so a kernel adds n / 16 to the low word to step to an address n bytes higher. */
TE_FN uint64_t te__wgmma_descriptor_of_low(uint32_t low) { return te__wgmma_descriptor(0, 0) >> 32 << 32 | low; }

/* TE__Dn(i) lists the asm operands for the accumulators d[i] to d[i + n - 1] of a thread. TE__REGISTERS_n is the text
 * by which an instruction names the first n operands. */
#define TE__D4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define TE__D8(i) TE__D4(i), TE__D4((i) + 4)
#define TE__D16(i) TE__D8(i), TE__D8((i) + 8)
#define TE__D32(i) TE__D16(i), TE__D16((i) + 16)
#define TE__D64(i) TE__D32(i), TE__D32((i) + 32)
#define TE__D128(i) TE__D64(i), TE__D64((i) + 64)
#define TE__REGISTERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TE__REGISTERS_16 TE__REGISTERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TE__REGISTERS_32 \
    TE__REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TE__REGISTERS_64 \
    TE__REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
                     "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TE__REGISTERS_128 \
    TE__REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
                     "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
                     "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
                     "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
/* A wgmma with m = 64 and n columns, in which each thread has `count` accumulators. at_a, at_b and at_add are the
 * indices, as text, of the asm operands a, b and add, which follow the accumulators. `type` is the part of the
 * instruction's name that states k and the formats. `transpose` is the text of the two immediate operands that say
 * whether A and B are MN-major. */
#define TE__WGMMA_N(n, count, at_a, at_b, at_add, type, transpose)                                                     \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" at_add ", 0;\nwgmma.mma_async.sync.aligned.m64n" n type " {" \
                 TE__REGISTERS_##count "}, %" at_a ", %" at_b ", add, 1, 1" transpose ";\n}"                           \
                 : TE__D##count(0)                                                                                     \
                 : "l"(a), "l"(b), "r"(add))
#define TE__WGMMA_N256(type, transpose) TE__WGMMA_N("256", 128, "128", "129", "130", type, transpose)
#define TE__WGMMA_OF_N(columns, type, transpose)                                         \
    if (columns == 16) TE__WGMMA_N("16", 8, "8", "9", "10", type, transpose);            \
    else if (columns == 32) TE__WGMMA_N("32", 16, "16", "17", "18", type, transpose);    \
    else if (columns == 64) TE__WGMMA_N("64", 32, "32", "33", "34", type, transpose);    \
    else TE__WGMMA_N("128", 64, "64", "65", "66", type, transpose)

/* A warpgroup computes D[64, 256] (+)= A[64, 16] B[16, 256] of bf16 or f16. a and b are the wgmma descriptors of A and
 * B. If `add` is 1, the product is added to D; if `add` is 0, the product overwrites D. A is stored K-major. If
 * mn_major is 1, B is stored as [k, n]; if it is 0, B is stored as [n, k], i.e. K-major. */
TE_FN void te__wgmma_n256(float d[128], uint64_t a, uint64_t b, int add, const te_dtype dtype, const int mn_major) {
    if (dtype == TE_bf16 && !mn_major) TE__WGMMA_N256("k16.f32.bf16.bf16", ", 0, 0");
    else if (dtype == TE_bf16) TE__WGMMA_N256("k16.f32.bf16.bf16", ", 0, 1");
    else if (!mn_major) TE__WGMMA_N256("k16.f32.f16.f16", ", 0, 0");
    else TE__WGMMA_N256("k16.f32.f16.f16", ", 0, 1");
}
/* Compute the product of te__wgmma_n256 for an A that is stored as [k, m] and a B that is stored as [k, n]: both are
 * MN-major. */
TE_FN void te__wgmma_n256_mn_major(float d[128], uint64_t a, uint64_t b, int add, const te_dtype dtype) {
    if (dtype == TE_bf16) TE__WGMMA_N256("k16.f32.bf16.bf16", ", 1, 1");
    else TE__WGMMA_N256("k16.f32.f16.f16", ", 1, 1");
}
/* A warpgroup computes D[64, 256] (+)= A[64, 32] B[256, 32]^T in FP8. a and b are the wgmma descriptors of A and B,
 * which may be e4m3 or e5m2, but not both e5m2. If `add` is 1, the product is added to D; if `add` is 0, the product
 * overwrites D. */
TE_FN void te__wgmma_n256_fp8(float d[128], uint64_t a, uint64_t b, int add, const te_dtype dtype_a,
                              const te_dtype dtype_b) {
    if (dtype_a == TE_e4m3 && dtype_b == TE_e4m3) TE__WGMMA_N256("k32.f32.e4m3.e4m3", "");
    else if (dtype_a == TE_e4m3) TE__WGMMA_N256("k32.f32.e4m3.e5m2", "");
    else TE__WGMMA_N256("k32.f32.e5m2.e4m3", "");
}
/* A warpgroup computes D[64, columns] (+)= A[64, 16] B[columns, 16]^T of bf16 or f16, or D[64, columns] (+)= A[64, 32]
 * B[columns, 32]^T of e4m3. Both operands are K-major. `columns` is a compile-time constant: 16, 32, 64 or 128. */
TE_FN void te__wgmma_n(float *d, uint64_t a, uint64_t b, int add, const te_dtype dtype, const int columns) {
    if (dtype == TE_bf16) {
        TE__WGMMA_OF_N(columns, "k16.f32.bf16.bf16", ", 0, 0");
    } else if (dtype == TE_f16) {
        TE__WGMMA_OF_N(columns, "k16.f32.f16.f16", ", 0, 0");
    } else {
        TE__WGMMA_OF_N(columns, "k32.f32.e4m3.e4m3", "");
    }
}
TE_FN void te__wgmma_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TE_FN void te__wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Wait until all committed groups of wgmma instructions have completed, except the group that was committed last. */
TE_FN void te__wgmma_wait_1(void) { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
/* Wait until no group of wgmma instructions is pending. */
TE_FN void te__wgmma_wait_0(void) { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

#endif

/* ---- tensor maps ------------------------------------------------------------------------------------------------- */

/* The type of the driver's function cuTensorMapEncodeTiled, which makes tensor maps for TMA. */
typedef CUresult (*te__tensor_map_encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                             const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                                             CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                             CUtensorMapFloatOOBfill);

/* Return the driver's function cuTensorMapEncodeTiled, looked up at run time. Returns null if the driver does not have
 * this function, or if the device is not of compute capability 9.0. */
TE_API te__tensor_map_encode_fn te__find_tensor_map_encoder(int device) {
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
    return (te__tensor_map_encode_fn)f;
}

/* Return the driver's function as te__find_tensor_map_encoder does, but look the function up only once for each
 * context. */
TE_API te__tensor_map_encode_fn te__tensor_map_encoder(te_context *ctx) {
    if (!ctx->tensor_map_encode_known) {
        ctx->tensor_map_encode = (void (*)(void))te__find_tensor_map_encoder(ctx->device);
        ctx->tensor_map_encode_known = 1;
    }
    return (te__tensor_map_encode_fn)ctx->tensor_map_encode;
}

/* The shape of a tensor for a tensor map. The tensor has `rank` dimensions, the innermost first. size: the extent of
 * the tensor in each dimension, in elements; box: the extent of a box, the part that one TMA load copies, in each
 * dimension; pitch[i]: the bytes between consecutive indices of dimension i + 1 (the innermost dimension is
 * contiguous). */
typedef struct te__tensor_shape {
    int rank;
    cuuint64_t size[5], pitch[4];
    cuuint32_t box[5];
} te__tensor_shape;

/* Make the tensor map of a tensor of 16-bit elements. A TMA load with this map copies a box, which is 64 elements (128
 * bytes) wide, to shared memory with the given swizzle. */
TE_API te_status te__tensor_map_swizzled(CUtensorMap *map, te__tensor_map_encode_fn encode, const void *data,
                                         const te__tensor_shape *shape, te_dtype dtype, CUtensorMapSwizzle swizzle,
                                         te_context *ctx) {
    const cuuint32_t step[5] = {1, 1, 1, 1, 1};
    const CUresult e =
        encode(map, dtype == TE_bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
               (cuuint32_t)shape->rank, (void *)(uintptr_t)data, shape->size, shape->pitch, shape->box, step,
               CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    TE_REQUIRE(e == CUDA_SUCCESS, ctx, TE_ERROR_CUDA, "cuTensorMapEncodeTiled: error %d", (int)e);
    return TE_OK;
}
/* Make a tensor map as te__tensor_map_swizzled does, with the 128-byte swizzle. */
TE_API te_status te__tensor_map(CUtensorMap *map, te__tensor_map_encode_fn encode, const void *data,
                                const te__tensor_shape *shape, te_dtype dtype, te_context *ctx) {
    return te__tensor_map_swizzled(map, encode, data, shape, dtype, CU_TENSOR_MAP_SWIZZLE_128B, ctx);
}
/* Make a "ragged" tensor map: each load chooses a range of rows, the `count` rows from row `first` on, and gets zeros
 * for rows beyond this range. The rows are the last dimension of `shape`.
 *
 * Let R = TE__RAGGED_ROWS, and let `pitch` be the bytes from row to row. The map's row dimension has the extent R. Two
 * more dimensions follow the row dimension; their pitches are `pitch` and 2^34 - pitch. For row r of the range, a load
 * passes three indices: R - count + r (the result of te__ragged_row), first + count, and R. If r >= count, the first
 * index is out of bounds, so TMA fills in zeros. Otherwise the three terms add up to the address of row first + r,
 * because R * 2^34 = 2^64 and addresses wrap around at 2^64: (R - count + r) * pitch + (first + count) * pitch + R *
 * (2^34 - pitch) = (first + r) * pitch + 2^64. */
enum { TE__RAGGED_ROWS = 1 << 30, TE__RAGGED_EXTENT = 0x7fff0000 };
TE_BOTH int te__ragged_row(int row, int count) { return TE__RAGGED_ROWS - count + row; }
TE_API te_status te__tensor_map_ragged(CUtensorMap *map, te__tensor_map_encode_fn encode, const void *data,
                                       const te__tensor_shape *shape, te_dtype dtype, te_context *ctx) {
    te__tensor_shape ragged = *shape;
    const int rank = shape->rank;
    const cuuint64_t row = shape->pitch[rank - 2];
    ragged.rank = rank + 2;
    ragged.size[rank - 1] = TE__RAGGED_ROWS, ragged.size[rank] = ragged.size[rank + 1] = TE__RAGGED_EXTENT;
    ragged.box[rank] = ragged.box[rank + 1] = 1;
    ragged.pitch[rank - 1] = row, ragged.pitch[rank] = ((cuuint64_t)1 << 34) - row;
    return te__tensor_map(map, encode, data, &ragged, dtype, ctx);
}
/* Make the tensor map of a row-major matrix [rows, cols] of 16-bit elements, for boxes of [box_rows, 64]. */
TE_API te_status te__tensor_map_matrix(CUtensorMap *map, te__tensor_map_encode_fn encode, const void *data,
                                       int64_t rows, int64_t cols, int box_rows, te_dtype dtype, te_context *ctx) {
    const te__tensor_shape shape = {
        2, {(cuuint64_t)cols, (cuuint64_t)rows}, {(cuuint64_t)cols * 2}, {64, (cuuint32_t)box_rows}};
    return te__tensor_map(map, encode, data, &shape, dtype, ctx);
}

/* ---- kernels compiled for sm_90a --------------------------------------------------------------------------------- */

/* A kernel that needs sm_90a, and what is known about the devices on which it runs. Bit d of `runs` is 1 if the kernel
 * runs on device d; bit d of `fails` is 1 if the kernel does not run on device d, because its code was compiled for
 * another architecture or without inlining. */
typedef struct te_sm90_kernel {
    const void *kernel; /* the kernel, or null if there is none */
    uint64_t runs, fails;
} te_sm90_kernel;

enum { TE_SM90_MAX_SPILL_BYTES = 240 }; /* the limit on a kernel's local memory per thread, in bytes. Below the limit,
                                         * only spilled registers are assumed to lie in local memory; accumulators there
                                         * would take 256 bytes or more */

/* 1 if this compilation is for sm_90a and with inlining, so that sm_90a kernels run and need no fallback kernel. These
 * kernels do not run if the compilation is for another architecture or without inlining (a debug build,
 * TE_KEEP_CALLS). */
#if defined TE_KEEP_CALLS || defined __CUDACC_DEBUG__ || (defined __CUDA_ARCH__ && !defined __CUDA_ARCH_FEAT_SM90_ALL)
#define TE_SM90_ONLY 0
#else
#define TE_SM90_ONLY 1
#endif
/* Return whether the device runs code of this kernel that was compiled for sm_90a. Such code has static shared memory,
 * for its barriers; code for another architecture is empty and has no static shared memory. The function stores the
 * kernel's attributes in *is. */
TE_API int te__sm90_kernel_compiled(const te_sm90_kernel *k, struct cudaFuncAttributes *is) {
    const int compiled = k->kernel && cudaFuncGetAttributes(is, k->kernel) == cudaSuccess && is->sharedSizeBytes;
    if (!compiled) (void)cudaGetLastError();
    return compiled;
}
/* Return whether the kernel *k can run on the device. The first call for a device also raises the kernel's limit of
 * dynamic shared memory to `shared` bytes. */
TE_API int te__sm90_kernel_ready(te_sm90_kernel *k, int shared, int device) {
    const uint64_t bit = 1ull << (device & 63);
    struct cudaFuncAttributes is;
    if (!k->kernel || __atomic_load_n(&k->fails, __ATOMIC_ACQUIRE) & bit) return 0;
    if (__atomic_load_n(&k->runs, __ATOMIC_ACQUIRE) & bit) return 1;
    /* In a kernel that was compiled without inlining (-G, -Ofc), the accumulators lie in local memory, and wgmma does
     * not work. Such a kernel is recognised by the size of its local memory. */
    const int runs =
        te__sm90_kernel_compiled(k, &is) && is.localSizeBytes <= TE_SM90_MAX_SPILL_BYTES &&
        cudaFuncSetAttribute(k->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared) == cudaSuccess;
    if (!runs) (void)cudaGetLastError();
    (void)__atomic_fetch_or(runs ? &k->runs : &k->fails, bit, __ATOMIC_RELEASE);
    return runs;
}

#endif
