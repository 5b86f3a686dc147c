/* base.h -- the basis of every header: the target (CUDA or host), how functions are declared, limits, and the status
 * that every call returns.
 *
 * Do this:
 *     TE_TRY(te_context_create(&ctx, 0, seed));
 *     if (block_forward(y, &saved, x, &m, &batch, &ctx) != TE_OK) puts(te_last_error(&ctx));
 *
 * nvcc compiles the CUDA target (TE_CUDA 1), any other compiler the host target (TE_CUDA 0). The body of a kernel is an
 * ordinary function, which is inlined with constant arguments. Macros are used only to declare names, and to define the
 * __global__ functions that call the bodies.
 *
 * The library never exits, throws or prints. A call that fails has enqueued and written nothing, with two exceptions:
 * errors that the vendor's runtime reports (TE_ERROR_CUDA, TE_ERROR_BLAS, TE_ERROR_COMM) may come after a part of the
 * work was enqueued; and on the host the first launch of a kernel may find no memory for the kernel's tiles
 * (TE_ERROR_MEMORY).
 */
#ifndef TE_BASE_H
#define TE_BASE_H

/* Refuse compilers, systems and architectures that the library does not support. A compiler continues after an #error,
 * and would print many further errors. Therefore each #error is followed by an #include of a file that does not exist,
 * which stops the compiler. */
#if !defined __cplusplus && (!defined __STDC_VERSION__ || __STDC_VERSION__ < 201112L)
#error "te: needs C11 or newer, or C++17: compile with -std=c11"
#include <te_stops_here.h> /* this file does not exist */
#elif !defined __unix__ && !defined __APPLE__ && !defined __wasi__
#error "te: needs a system with POSIX (Linux, BSD, macOS, WSL); it reads files by open and mmap"
#include <te_stops_here.h> /* which does not exist */
#elif defined __SIZEOF_POINTER__ && __SIZEOF_POINTER__ < 8
#error "te: compile for a target with 64-bit addresses (not with -m32 or -mx32)"
#include <te_stops_here.h> /* which does not exist */
#elif defined __BYTE_ORDER__ && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "te: needs a little-endian target, because its files and packed weights are little-endian"
#include <te_stops_here.h> /* which does not exist */
#elif defined __CUDA_ARCH__ && __CUDA_ARCH__ < 800
#error "te: needs sm_80 or newer: compile with nvcc -gencode arch=compute_80,code=sm_80 (H100: 90a)"
#include <te_stops_here.h> /* which does not exist */
#endif

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

/* Refuse -ffast-math and similar options. With these options, gcc and clang assume that no value is a NaN, and change
 * the order of additions in sums. The library would then treat a NaN like a number, and 2^x (te_exp2) would be
 * wrong. */
#if !TE_CUDA && (defined __FAST_MATH__ || defined __ASSOCIATIVE_MATH__ || __FINITE_MATH_ONLY__ + 0)
#error "te: compile without -Ofast, -ffast-math, -funsafe-math-optimizations, -fassociative-math, -ffinite-math-only"
#endif
/* Write this macro at the beginning of a function's body to keep clang from changing the order of the additions in the
 * function, even with -fassociative-math. The #error above does not detect this option in clang, because clang defines
 * no macro for the option. */
#if defined __clang__ && !TE_CUDA
#define TE__SUMS_AS_WRITTEN _Pragma("clang fp reassociate(off)")
#else
#define TE__SUMS_AS_WRITTEN
#endif

#define TE_UNUSED __attribute__((unused))
/* Declare a function that must not be called: a call of the function does not compile, and the compiler prints
 * `text`. */
#define TE_UNAVAILABLE(text) __attribute__((unavailable(text)))

#if TE_CUDA
/* TE_FN declares a device function that is always inlined. TE_CALLBACK declares such a function that is also passed to
 * kernels as a constant function pointer, and that is inlined where the kernel calls it. */
#define TE_FN static __device__ __forceinline__
#define TE_CALLBACK TE_FN
/* TE_BOTH declares a function that both kernels and host code call, such as scalar arithmetic or the order of tiles. */
#define TE_BOTH static __host__ __device__ __forceinline__
#define TE_SHARED __shared__ /* declares a variable in shared memory, within the body of a TE_KERNEL */
#else
/* On the host, functions declared with TE_FN or TE_CALLBACK are also inlined into kernels; TE_CALLBACK is for functions
 * that are passed as a constant function pointer. At -O1 and -Og, gcc refuses always_inline for a function whose
 * address is taken. With gcc, TE_CALLBACK therefore has no always_inline; instead, kernels have the attribute
 * `flatten`, with which gcc inlines every call in them. At -O2 the code is the same either way. TE_KEEP_CALLS disables
 * forced inlining, for smaller code, faster compilation and debugging; the tests are built with it. */
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
#define TE_UNROLL_1 _Pragma("unroll 1") /* forbids unrolling of the following loop; used where small code matters more
                                         * than the speed of the loop */
#define TE_UNROLL_4 _Pragma("unroll 4")
#define TE_UNROLL_8 _Pragma("unroll 8")
#else
#define TE_UNROLL
#define TE_UNROLL_1
#define TE_UNROLL_4
#define TE_UNROLL_8
#endif
/* TE_API declares a function of the library that runs on the host. */
#define TE_API static inline TE_UNUSED

/* The linkage of the functions that TE_DEFINE defines for a model. Other files may call these functions; the functions
 * that TE_SEQUENTIAL defines are static. */
#ifdef __cplusplus
#define TE_EXTERN_C extern "C"
#else
#define TE_EXTERN_C extern
#endif

enum {
    TE_MAX_OPS = 96,  /* the largest number of ops in a list */
    TE_MAX_PATTERN = 8,   /* the largest number of ops that are fused into one pattern */
    TE_ALIGN = 256,   /* the alignment, in bytes, of parameters and of buffers that the library allocates */
    TE_ACCESS = 16,   /* the alignment, in bytes, that every tensor pointer of a caller must have */
    TE_ROW_PAD = 128, /* buffers for values that are saved for backward are sized for the number of rows rounded up to a
                       * multiple of TE_ROW_PAD, so that each buffer is aligned */
    TE_VECTOR = 8     /* the number of elements that a lane (a thread that works on a row) processes at a time: 16 bytes
                       * in bf16 */
};

/* The type in which a lane (a thread that works on a row) accumulates its part of the sum over the row. On the host
 * this type is double, because a single lane sums the whole row. */
#if TE_CUDA
typedef float te_row_sum;
#else
typedef double te_row_sum;
#endif

/* The smaller and the larger of two integers. The macros have the names of the functions: `| 0` leaves an integer as it
 * is, and makes a float a compile error, which would otherwise lose its fraction without a warning. */
TE_BOTH int64_t te__min(int64_t a, int64_t b) { return a < b ? a : b; }
TE_BOTH int64_t te__max(int64_t a, int64_t b) { return a > b ? a : b; }
#define te_min(a, b) te__min((a) | 0, (b) | 0)
#define te_max(a, b) te__max((a) | 0, (b) | 0)
TE_BOTH int64_t te_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
TE_BOTH int64_t te_round_up(int64_t a, int64_t b) { return te_ceil_div(a, b) * b; }

/* ---- status ------------------------------------------------------------------------------------------------------ */

/* The list of all statuses: X(name, text) for each status. The list is expanded once to define the enumerators and once
 * to define the texts. */
#define TE_STATUSES(X)                                                                         \
    X(OK, "success")                                                                           \
    X(ERROR_NULL, "a required pointer is null")                                                \
    X(ERROR_SHAPE, "a tensor or a count has the wrong shape")                                  \
    X(ERROR_DTYPE, "a tensor has the wrong dtype")                                             \
    X(ERROR_ALIGNMENT, "a pointer is not aligned as it must be")                                \
    X(ERROR_OVERFLOW, "a size does not fit")                                                   \
    X(ERROR_MEMORY, "a buffer is too small, or memory could not be had")                       \
    X(ERROR_VALUE, "an argument has a value that is not allowed")                              \
    X(ERROR_STATE, "a call came out of order")                                                 \
    X(ERROR_DEVICE, "the device cannot run this")                                              \
    X(ERROR_CUDA, "the CUDA run time reported an error")                                       \
    X(ERROR_BLAS, "the matrix library reported an error")                                      \
    X(ERROR_IO, "a file could not be read or written")                                         \
    X(ERROR_FORMAT, "a file is not what it should be")                                         \
    X(ERROR_COMM, "another rank failed, or the communication library reported an error")

#define TE_STATUS_ENUM(name, text) TE_##name,
typedef enum te_status { TE_STATUSES(TE_STATUS_ENUM) TE_STATUS_COUNT } te_status;
#undef TE_STATUS_ENUM

/* Return the text of a status. The result is never null, even for a number that is no status. */
TE_API const char *te_status_string(te_status status) {
#define TE_STATUS_TEXT(name, text) text,
    static const char *const texts[] = {TE_STATUSES(TE_STATUS_TEXT)};
#undef TE_STATUS_TEXT
    return (unsigned)status < (unsigned)TE_STATUS_COUNT ? texts[status] : "unknown status";
}

/* If `call` fails, return from the calling function with the status of `call`. */
#define TE_TRY(call)                                    \
    do {                                                \
        const te_status te_try_ = (call);               \
        if (te_try_ != TE_OK) return te_try_;           \
    } while (0)

/* If `cond` is false, set the context's error text and return `status` from the calling function. The variadic
 * arguments are a printf format and its arguments; the text says what is wrong, and which values the caller has
 * passed. */
#define TE_REQUIRE(cond, ctx, status, ...)                               \
    do {                                                                 \
        if (!(cond)) return te_fail((ctx), (status), __VA_ARGS__);       \
    } while (0)

#endif
