/* tensor_kernels.h -- kernels over a whole tensor: te_convert converts a tensor to another number format, and
 * te_fill_normal fills a tensor with normally distributed random numbers.
 *
 * Do this:
 *     TE_TRY(te_convert(y, TE_bf16, x, TE_f32, count, &ctx));     // rounds to nearest even
 *     TE_TRY(te_fill_normal(x, TE_bf16, rows * hidden, 0.0f, 1.0f, seed, 100, &ctx));
 *
 * te_convert converts the inputs and outputs of a list, and the inputs of ops that can read only one format. All other
 * tensors need no conversion, because the kernel that produces a tensor stores it in the format that its consumer
 * reads.
 */
#ifndef TE_TENSOR_KERNELS_H
#define TE_TENSOR_KERNELS_H

#include <float.h> /* FLT_MAX */

#include "target.h" /* TE_KERNEL */

/* ---- te_convert -------------------------------------------------------------------------------------------------- */

typedef struct te_convert_args {
    void *y;       /* [count] of `to` */
    const void *x; /* [count] of `from` */
    int64_t count;
    te_dtype to, from;
} te_convert_args;
enum { TE_CONVERT_THREADS = TE_CUDA ? 256 : 1, TE_CONVERT_BLOCK = 4096 /* elements */ };

/* Convert the elements of thread block b. `to` and `from` are the number formats, as compile-time constants. Memory
 * traffic of the kernel: x is read once and y is written once. */
TE_FN void te_convert_elements(const te_convert_args *a, te_block b, te_dtype to, te_dtype from) {
    int group;
    const te_lanes g = te_lanes_here(TE_CONVERT_THREADS, &group);
    const int64_t end = te_min(a->count, ((int64_t)b.x + 1) * TE_CONVERT_BLOCK);
    for (int64_t i = (int64_t)b.x * TE_CONVERT_BLOCK + 8 * g.id; i < end; i += 8 * g.count) {
        float v[8];
        const int n = (int)te_min(8, end - i);
        te_load8(v, a->x, i, n, n == 8, from);
        te_store8(a->y, i, v, n, n == 8, to);
    }
}
TE_FN void te_convert_body(const te_convert_args *a, te_block b) {
    if (a->from == TE_f32) {
        if (a->to == TE_bf16) te_convert_elements(a, b, TE_bf16, TE_f32);
        else te_convert_elements(a, b, TE_f16, TE_f32);
    } else if (a->from == TE_bf16) {
        if (a->to == TE_f32) te_convert_elements(a, b, TE_f32, TE_bf16);
        else te_convert_elements(a, b, TE_f16, TE_bf16);
    } else {
        if (a->to == TE_f32) te_convert_elements(a, b, TE_f32, TE_f16);
        else te_convert_elements(a, b, TE_bf16, TE_f16);
    }
}
TE_KERNEL_IF_USED(te_convert_kernel, TE_CONVERT_THREADS, 1, te_convert_args, te_convert_body(te_args, te_at))

TE_API te_status te__convert_check(const void *y, te_dtype to, const void *x, te_dtype from, int64_t count,
                                   te_context *ctx) {
    TE_TRY(te__check_target(ctx, "te_convert"));
    TE_REQUIRE((unsigned)to <= (unsigned)TE_f16 && (unsigned)from <= (unsigned)TE_f16, ctx, TE_ERROR_DTYPE,
               "te_convert: %s to %s; FP8 has a scale, which te_quantize takes", te_dtype_name(from),
               te_dtype_name(to));
    TE_REQUIRE(count >= 0 && count / TE_CONVERT_BLOCK < INT32_MAX, ctx, TE_ERROR_OVERFLOW, "te_convert: %lld elements",
               (long long)count);
    TE_REQUIRE((y && x) || !count, ctx, TE_ERROR_NULL, "te_convert: a pointer is null");
    TE_REQUIRE((uintptr_t)y % TE_ACCESS == 0 && (uintptr_t)x % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
               "te_convert: a tensor does not start at a multiple of %d bytes", (int)TE_ACCESS);
    const uintptr_t a = (uintptr_t)y, b = (uintptr_t)x;
    TE_REQUIRE(a + (size_t)count * te_dtype_bytes(to) <= b || b + (size_t)count * te_dtype_bytes(from) <= a, ctx,
               TE_ERROR_VALUE, "te_convert: y overlaps x");
    return TE_OK;
}
/* Convert x[count] of format `from` to y[count] of format `to`; both formats are f32, bf16 or f16. x and y must lie in
 * target memory, be aligned to TE_ACCESS bytes, and not overlap. Errors: TE_ERROR_DTYPE, TE_ERROR_OVERFLOW,
 * TE_ERROR_NULL, TE_ERROR_ALIGNMENT, TE_ERROR_VALUE. */
TE_IF_USED TE_API te_status te_convert(void *y, te_dtype to, const void *x, te_dtype from, int64_t count,
                                       te_context *ctx) {
    te_convert_args a;
    TE_TRY(te__convert_check(y, to, x, from, count, ctx));
    if (to == from) return te_copy(ctx, y, x, (size_t)count * te_dtype_bytes(to));
    memset(&a, 0, sizeof a);
    a.y = y, a.x = x, a.count = count, a.to = to, a.from = from;
    return count ? te_convert_kernel_launch(ctx, te__grid_of(te_ceil_div(count, TE_CONVERT_BLOCK), 1), &a) : TE_OK;
}

/* Convert a value of a list as te_convert does. MIXED is 0 if all values of the list have the same number format, else
 * 1. If MIXED is 0, the function only copies, so the program does not contain the conversion kernel. */
#if TE_CUDA
template <int MIXED>
TE_API te_status te__convert_in_list(void *y, te_dtype to, const void *x, te_dtype from, int64_t count,
                                     te_context *ctx) {
    if constexpr (MIXED) return te_convert(y, to, x, from, count, ctx);
    else {
        TE_TRY(te__convert_check(y, to, x, from, count, ctx));
        TE_REQUIRE(to == from, ctx, TE_ERROR_DTYPE, "te_convert: %s to %s in a list that has one format alone",
                   te_dtype_name(from), te_dtype_name(to));
        return te_copy(ctx, y, x, (size_t)count * te_dtype_bytes(to));
    }
}
#define TE_CONVERT_IN_LIST(mixed) te__convert_in_list<(mixed)>
#else
#define TE_CONVERT_IN_LIST(mixed) te_convert
#endif

/* ---- te_fill_normal ---------------------------------------------------------------------------------------------- */

typedef struct te_normal_args {
    void *w;
    int64_t count;
    int64_t first, cols, pitch; /* w is a part of a larger tensor: row r of w has `cols` elements, and begins at element
                                 * first + r * pitch of the larger tensor */
    te_dtype dtype;
    float mean, std;
    uint64_t seed;
    uint32_t stream;
} te_normal_args;
enum { TE_NORMAL_BLOCK = 1024, TE_NORMAL_LANES = TE_CUDA ? 256 : 1 };

/* Return the index, in the larger tensor, of element i of w. The element's random number depends only on this index, so
 * shards of a tensor get the same numbers as the whole tensor. */
TE_FN int64_t te_normal_index(const te_normal_args *a, int64_t i) {
    return a->first + (a->pitch == a->cols ? i : i / a->cols * a->pitch + i % a->cols);
}
/* Compute four normally distributed numbers at a time from four random words (Box and Muller 1958). Memory traffic of
 * the kernel: the tensor is written once. */
TE_FN void te_normal_body(const te_normal_args *a, te_block b) {
    int group;
    const te_lanes g = te_lanes_here(TE_NORMAL_LANES, &group);
    for (int64_t i = (int64_t)b.x * TE_NORMAL_BLOCK + 4 * g.id;
         i < te_min(a->count, ((int64_t)b.x + 1) * TE_NORMAL_BLOCK); i += 4 * g.count) {
        uint32_t u[4] = {0, 0, 0, 0};
        int64_t block = -1; /* u holds the random words of elements 4 * block to 4 * block + 3 of the larger tensor; -1:
                             * u is not set yet */
        TE_UNROLL_1 for (int k = 0; k < 4; k++) { /* not unrolled, because sine, cosine and the stores of all formats
                                                   * take a lot of code */
            const int64_t e = te_normal_index(a, i + k);
            const int j = (int)(e % 4);
            if (e / 4 != block) te_philox(u, a->seed, (uint64_t)e / 4, a->stream, 0);
            block = e / 4;
            const float radius = sqrtf(-2.0f * logf(te_uniform(j & 2 ? u[2] : u[0]))),
                        angle = 6.2831853f * te_uniform(j & 2 ? u[3] : u[1]);
            if (i + k < a->count)
                te_store(a->w, i + k, a->mean + a->std * radius * (j & 1 ? sinf(angle) : cosf(angle)), a->dtype);
        }
    }
}
TE_KERNEL_IF_USED(te_normal, TE_NORMAL_LANES, 1, te_normal_args, te_normal_body(te_args, te_at))

/* A part [rows, cols] of a larger tensor. Row r of the part begins at element first + r * pitch of the larger
 * tensor. */
typedef struct te__normal_part { int64_t rows, cols, first, pitch; } te__normal_part;
TE_API te__normal_part te__normal_part_of(int64_t rows, int64_t cols, int64_t first, int64_t pitch) {
    te__normal_part part;
    part.rows = rows, part.cols = cols, part.first = first, part.pitch = pitch;
    return part;
}
/* Fill w, a part of a larger tensor, with the same numbers that te_fill_normal would store in this part if it filled
 * the larger tensor. Therefore the shards of a tensor together have the same values as the unsharded tensor. */
TE_IF_USED TE_API te_status te__fill_normal_part(void *w, te_dtype dtype, te__normal_part part, float mean, float std,
                                                 uint64_t seed, uint32_t stream, te_context *ctx) {
    te_normal_args a;
    const int64_t count = part.rows * part.cols;
    TE_REQUIRE(w && ctx, ctx, TE_ERROR_NULL, "te_fill_normal: a pointer is null");
    TE_TRY(te__check_target(ctx, "te_fill_normal"));
    TE_REQUIRE(count >= 0 && count / TE_NORMAL_BLOCK < INT32_MAX, ctx, TE_ERROR_OVERFLOW,
               "te_fill_normal: %lld elements", (long long)count);
    TE_REQUIRE((unsigned)dtype < (unsigned)TE_DTYPE_COUNT, ctx, TE_ERROR_DTYPE, "te_fill_normal: dtype %d", (int)dtype);
    TE_REQUIRE((uintptr_t)w % te_dtype_bytes(dtype) == 0, ctx, TE_ERROR_ALIGNMENT,
               "te_fill_normal: %p is no multiple of an element's %d bytes", w, (int)te_dtype_bytes(dtype));
    TE_REQUIRE(fabsf(mean) <= FLT_MAX && fabsf(std) <= FLT_MAX, ctx, TE_ERROR_VALUE,
               "te_fill_normal: mean %g, std %g", (double)mean, (double)std);
    TE_REQUIRE(part.cols >= 0 && part.pitch >= part.cols && part.first >= 0, ctx, TE_ERROR_SHAPE,
               "te_fill_normal: %lld columns, of rows of %lld from element %lld on", (long long)part.cols,
               (long long)part.pitch, (long long)part.first);
    memset(&a, 0, sizeof a);
    a.w = w, a.count = count, a.dtype = dtype, a.mean = mean, a.std = std, a.seed = seed, a.stream = stream;
    a.first = part.first, a.cols = part.cols, a.pitch = part.pitch;
    return count ? te_normal_launch(ctx, te__grid_of(te_ceil_div(count, TE_NORMAL_BLOCK), 1), &a) : TE_OK;
}
/* Fill w[count], in target memory, with normally distributed numbers. If `std` is 0, all numbers are equal to `mean`.
 * Calls with the same seed and stream produce the same numbers. Errors: TE_ERROR_NULL, TE_ERROR_OVERFLOW,
 * TE_ERROR_DTYPE, TE_ERROR_ALIGNMENT, TE_ERROR_VALUE. */
TE_IF_USED TE_API te_status te_fill_normal(void *w, te_dtype dtype, int64_t count, float mean, float std, uint64_t seed,
                                           uint32_t stream, te_context *ctx) {
    const te__normal_part whole = te__normal_part_of(1, count, 0, te_max(count, 0));
    return te__fill_normal_part(w, dtype, whole, mean, std, seed, stream, ctx);
}

#endif
