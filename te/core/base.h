/* base.h -- the target and the few words that every header uses.
 *
 * nvcc compiles the CUDA target (TE_CUDA 1), any other compiler the host target (TE_CUDA 0).
 * Bodies are functions with constant arguments, forced inline; macros make names and shells.
 */
#ifndef TE_BASE_H
#define TE_BASE_H

#include <assert.h> /* static_assert, in C11 as in C++ */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define TE_CUDA 1
#include <cuda_runtime.h>
#else
#define TE_CUDA 0
#endif

#define TE_UNUSED __attribute__((unused))
/* A function that is declared for this message alone: a call of it does not compile. */
#define TE_UNAVAILABLE(text) __attribute__((unavailable(text)))

#if TE_CUDA
/* Runs inside kernels; TE_CALLBACK: and is handed on by a constant pointer. */
#define TE_FN static __device__ __forceinline__
#define TE_CALLBACK TE_FN
/* Runs inside kernels and on the host (leaf arithmetic, schedules). */
#define TE_BOTH static __host__ __device__ __forceinline__
#define TE_SHARED __shared__ /* in a kernel's call: memory that the block shares */
#else
/* TE_FN becomes part of the kernel that calls it, and so does TE_CALLBACK, which kernels hand on by a constant pointer.
 * gcc refuses to always inline such a one at -O1 and -Og; there a kernel is told to inline all that it calls,
 * which at -O2 is as good. With TE_KEEP_CALLS calls keep the code small, the compiler quick and a debugger at ease;
 * tests are built so. */
#if !defined __OPTIMIZE__ || defined TE_KEEP_CALLS
#define TE_FN static inline __attribute__((unused))
#define TE_CALLBACK TE_FN
#define TE__HOST_KERNEL TE_FN
#else
#define TE_FN static inline __attribute__((always_inline, unused))
#ifdef __clang__
#define TE_CALLBACK TE_FN
#define TE__HOST_KERNEL static inline __attribute__((unused))
#else
#define TE_CALLBACK static inline __attribute__((unused))
#define TE__HOST_KERNEL static inline __attribute__((flatten, unused))
#endif
#endif
#define TE_BOTH TE_FN
#define TE_SHARED
#endif
#ifdef __CUDA_ARCH__
#define TE_UNROLL _Pragma("unroll")
#define TE_UNROLL_1 _Pragma("unroll 1") /* for a loop that the compiler would unroll, and whose code is to stay small */
#define TE_UNROLL_4 _Pragma("unroll 4")
#define TE_UNROLL_8 _Pragma("unroll 8")
#else
#define TE_UNROLL
#define TE_UNROLL_1
#define TE_UNROLL_4
#define TE_UNROLL_8
#endif
/* Runs on the host only. */
#define TE_API static inline TE_UNUSED

/* What a model's functions are: TE_SEQUENTIAL makes them private to the file, TE_DEFINE gives them C linkage. */
#ifdef __cplusplus
#define TE_EXTERN_C extern "C"
#else
#define TE_EXTERN_C extern
#endif

enum {
    TE_MAX_OPS = 96,  /* ops in a list */
    TE_MAX_PATTERN = 8,   /* ops in a row of the fusion list */
    TE_ALIGN = 256,   /* bytes; parameters and buffers made by the library start at multiples of it */
    TE_ACCESS = 16,   /* bytes; the alignment asked of every pointer that a caller hands over */
    TE_ROW_PAD = 128, /* saved buffers are sized for rows rounded up to this, so that each stays aligned */
    TE_VECTOR = 8     /* elements that a lane handles at a time: 16 bytes of bf16 */
};

/* What a lane adds up its part of a row in: on a CPU that is the whole row. */
#if TE_CUDA
typedef float te_row_sum;
#else
typedef double te_row_sum;
#endif

TE_BOTH int64_t te_min(int64_t a, int64_t b) { return a < b ? a : b; }
TE_BOTH int64_t te_max(int64_t a, int64_t b) { return a > b ? a : b; }
TE_BOTH int64_t te_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
TE_BOTH int64_t te_round_up(int64_t a, int64_t b) { return te_ceil_div(a, b) * b; }

#endif
