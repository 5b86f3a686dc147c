/* mma_cuda.h -- the tensor cores' product of a warp, and addresses in shared memory. sm_80 and up, in FP8 sm_89; PTX
 * ISA, mma.sync. */
#ifndef TE_MMA_CUDA_H
#define TE_MMA_CUDA_H

#include "dtype.h" /* te_dtype */

TE_FN uint32_t te__shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* 16 bytes of shared memory, behind what was copied there before. */
TE_FN void te__load_piece(uint32_t w[4], uint32_t from) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(from)
                 : "memory");
}

TE_FN float te__load_float(uint32_t from) {
    float f;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(f) : "r"(from) : "memory");
    return f;
}
TE_FN void te__store_float(uint32_t to, float f) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(f) : "memory");
}

/* c += a b for a 16 x 16 and b 16 x 8 of bf16 or f16, 16 x 32 and 32 x 8 of e4m3; "Matrix fragments for mma.m16n8k16",
 * "for mma.m16n8k32" say which lane has what: the same bytes. */
TE_FN void te__mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const te_dtype dtype) {
    if (dtype == TE_bf16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 890
    else if (dtype == TE_e4m3)
        asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
