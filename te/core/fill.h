/* fill.h -- memory filled with normal numbers: starting values of parameters, operands of a benchmark.
 *
 * Do this:
 *     TE_TRY(te_fill_normal(x, TE_bf16, rows * hidden, 0.0f, 1.0f, seed, 100, &ctx));
 */
#ifndef TE_FILL_H
#define TE_FILL_H

#include "target.h" /* TE_KERNEL */

typedef struct te_normal_args {
    void *w;
    int64_t count;
    int64_t first, cols, pitch; /* row r of `cols` elements begins at element first + r * pitch of the whole */
    te_dtype dtype;
    float mean, std;
    uint64_t seed;
    uint32_t stream;
} te_normal_args;
enum { TE_NORMAL_BLOCK = 1024, TE_NORMAL_LANES = TE_CUDA ? 256 : 1 };

TE_FN int64_t te_normal_index(const te_normal_args *a, int64_t i) {
    return a->first + (a->pitch == a->cols ? i : i / a->cols * a->pitch + i % a->cols);
}
/* Box & Muller 1958: four words make four numbers. */
TE_FN void te_normal_body(const te_normal_args *a, te_block b) {
    int group;
    const te_lanes g = te_lanes_here(TE_NORMAL_LANES, &group);
    for (int64_t i = (int64_t)b.x * TE_NORMAL_BLOCK + 4 * g.id;
         i < te_min(a->count, ((int64_t)b.x + 1) * TE_NORMAL_BLOCK); i += 4 * g.count) {
        uint32_t u[4] = {0, 0, 0, 0};
        int64_t drawn = -1;
        TE_UNROLL_1 for (int k = 0; k < 4; k++) { /* sine, cosine and six formats are long code */
            const int64_t e = te_normal_index(a, i + k);
            const int j = (int)(e % 4);
            if (e / 4 != drawn) te_philox(u, a->seed, (uint64_t)e / 4, a->stream, 0);
            drawn = e / 4;
            const float radius = sqrtf(-2.0f * logf(te_uniform(j & 2 ? u[2] : u[0]))),
                        angle = 6.2831853f * te_uniform(j & 2 ? u[3] : u[1]);
            if (i + k < a->count)
                te_store(a->w, i + k, a->mean + a->std * radius * (j & 1 ? sinf(angle) : cosf(angle)), a->dtype);
        }
    }
}
TE_KERNEL_IF_USED(te_normal, TE_NORMAL_LANES, 1, te_normal_args, te_normal_body(te_args, te_at))

/* Fill w[rows, cols] with what te_fill_normal gives a larger tensor with rows of `pitch` elements, from its element
 * `first` on: so the parts of a tensor that several ranks hold are those of the whole. */
TE_IF_USED TE_API te_status te_fill_normal_part(void *w, te_dtype dtype, int64_t rows, int64_t cols, int64_t first,
                                                int64_t pitch, float mean, float std, uint64_t seed, uint32_t stream,
                                                te_context *ctx) {
    te_normal_args a;
    const int64_t count = rows * cols;
    TE_REQUIRE(w && ctx, ctx, TE_ERROR_NULL, "te_fill_normal: a pointer is null");
    TE_TRY(te_check_target(ctx, "te_fill_normal"));
    TE_REQUIRE(count >= 0 && count / TE_NORMAL_BLOCK < INT32_MAX, ctx, TE_ERROR_OVERFLOW,
               "te_fill_normal: %lld elements", (long long)count);
    TE_REQUIRE((unsigned)dtype < (unsigned)TE_DTYPE_COUNT, ctx, TE_ERROR_DTYPE, "te_fill_normal: dtype %d", (int)dtype);
    TE_REQUIRE((uintptr_t)w % te_dtype_bytes(dtype) == 0, ctx, TE_ERROR_ALIGNMENT,
               "te_fill_normal: %p is no multiple of an element's %d bytes", w, (int)te_dtype_bytes(dtype));
    TE_REQUIRE(fabsf(mean) <= 3.402823466e38f && fabsf(std) <= 3.402823466e38f, ctx, TE_ERROR_VALUE,
               "te_fill_normal: mean %g, std %g", (double)mean, (double)std);
    TE_REQUIRE(cols >= 0 && pitch >= cols && first >= 0, ctx, TE_ERROR_SHAPE,
               "te_fill_normal: %lld columns, of rows of %lld from element %lld on", (long long)cols, (long long)pitch,
               (long long)first);
    memset(&a, 0, sizeof a);
    a.w = w, a.count = count, a.dtype = dtype, a.mean = mean, a.std = std, a.seed = seed, a.stream = stream;
    a.first = first, a.cols = cols, a.pitch = pitch;
    return count ? te_normal_launch(ctx, te_grid_of(te_ceil_div(count, TE_NORMAL_BLOCK), 1), &a) : TE_OK;
}
/* Fill `count` elements with normal numbers; std 0 fills with the mean. The same seed and stream give the same
 * numbers. */
TE_IF_USED TE_API te_status te_fill_normal(void *w, te_dtype dtype, int64_t count, float mean, float std, uint64_t seed,
                                           uint32_t stream, te_context *ctx) {
    return te_fill_normal_part(w, dtype, 1, count, 0, te_max(count, 0), mean, std, seed, stream, ctx);
}

#endif
