/* wgmma_cuda.h -- matrix products by a warpgroup of compute capability 9.0 (sm_90a) with few columns: wgmma of m64 and
 * n16 to n128. That of n256, and what says where operands lie, is in hopper_cuda.h. PTX ISA 8.0, "wgmma.mma_async". */
#ifndef TE_WGMMA_CUDA_H
#define TE_WGMMA_CUDA_H

#include "hopper_cuda.h" /* te__matrix_at, TE__D16 */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

#define TE__D8(i) TE__D4(i), TE__D4((i) + 4)
#define TE__D32(i) TE__D16(i), TE__D16((i) + 16)
#define TE__REGISTERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TE__REGISTERS_16 TE__REGISTERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TE__REGISTERS_32                                                                                           \
    TE__REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TE__REGISTERS_64                                                                                           \
    TE__REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
                     "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
/* at_a, at_b, at_add: the numbers of these operands, behind `count` sums. */
#define TE__WGMMA_FEW(n, count, at_a, at_b, at_add, type, turned)                                                      \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" at_add ", 0;\nwgmma.mma_async.sync.aligned.m64n" n type " {" \
                 TE__REGISTERS_##count "}, %" at_a ", %" at_b ", add, 1, 1" turned ";\n}"                             \
                 : TE__D##count(0)                                                                                    \
                 : "l"(a), "l"(b), "r"(add))
#define TE__WGMMA_COLUMNS(columns, type, turned)                                           \
    if (columns == 16) TE__WGMMA_FEW("16", 8, "8", "9", "10", type, turned);               \
    else if (columns == 32) TE__WGMMA_FEW("32", 16, "16", "17", "18", type, turned);       \
    else if (columns == 64) TE__WGMMA_FEW("64", 32, "32", "33", "34", type, turned);       \
    else TE__WGMMA_FEW("128", 64, "64", "65", "66", type, turned)
/* D[64, columns] (+)= A[64, 16] B[columns, 16]^T of bf16 or f16, A[64, 32] B[columns, 32]^T of e4m3, by a warpgroup; a
 * and b say where A and B lie, both along k. columns: 16, 32, 64 or 128, a constant. */
TE_FN void te__wgmma_columns(float *d, uint64_t a, uint64_t b, int add, const te_dtype dtype, const int columns) {
    if (dtype == TE_bf16) {
        TE__WGMMA_COLUMNS(columns, "k16.f32.bf16.bf16", ", 0, 0");
    } else if (dtype == TE_f16) {
        TE__WGMMA_COLUMNS(columns, "k16.f32.f16.f16", ", 0, 0");
    } else {
        TE__WGMMA_COLUMNS(columns, "k32.f32.e4m3.e4m3", "");
    }
}
/* Two 8 x 8 matrices of 16-bit numbers to shared memory, each transposed; the first 16 lanes give the addresses of the
 * rows that they have there. */
TE_FN void te__store_turned(uint32_t to, uint32_t first, uint32_t second) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(first), "r"(second)
                 : "memory");
}
#endif

#endif
