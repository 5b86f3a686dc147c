/* convert.h -- a tensor in another number format.
 *
 * Do this:
 *     TE_TRY(te_convert(y, TE_bf16, x, TE_f32, count, &ctx));     // rounds to nearest even
 *
 * For the ends of a list and for ops that read one format alone; wherever it can, the kernel that makes a value stores
 * it in the format that the next one reads.
 */
#ifndef TE_CONVERT_H
#define TE_CONVERT_H

#include "target.h" /* TE_KERNEL */

typedef struct te_convert_args {
    void *y;       /* [count] of `to` */
    const void *x; /* [count] of `from` */
    int64_t count;
    te_dtype to, from;
} te_convert_args;
enum { TE_CONVERT_THREADS = TE_CUDA ? 256 : 1, TE_CONVERT_BLOCK = 4096 /* elements */ };

/* `to` and `from` are constants. Bytes: the tensor read and written once. */
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
    TE_TRY(te_check_target(ctx, "te_convert"));
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
/* y and x are aligned to TE_ACCESS bytes and do not overlap. */
TE_IF_USED TE_API te_status te_convert(void *y, te_dtype to, const void *x, te_dtype from, int64_t count,
                                       te_context *ctx) {
    te_convert_args a;
    TE_TRY(te__convert_check(y, to, x, from, count, ctx));
    if (to == from) return te_copy(ctx, y, x, (size_t)count * te_dtype_bytes(to));
    memset(&a, 0, sizeof a);
    a.y = y, a.x = x, a.count = count, a.to = to, a.from = from;
    return count ? te_convert_kernel_launch(ctx, te_grid_of(te_ceil_div(count, TE_CONVERT_BLOCK), 1), &a) : TE_OK;
}

/* te_convert for the values of a list. MIXED 0: they all have one format, so that it copies, and the program does not
 * have the kernel. */
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

#endif
