/* grad_sums.h -- how the gradients of a bucket (buckets.h) are summed over a data group: in f32 or in bf16, all of them
 * or this rank's slice, by copy engines (copied_sums.h) or by the group's transport.
 */
#ifndef TE_COMM_GRAD_SUMS_H
#define TE_COMM_GRAD_SUMS_H

#include "../core/convert.h" /* te_convert */
#include "../plan/bind.h"    /* te_model, te_slice_elements */
#include "copied_sums.h"     /* te__copied_sum */

typedef struct te_grad_sums {
    te_context *ctx;
    te_group data; /* without the memory of collectives that are one kernel, which takes all multiprocessors */
    te_dtype dtype;
    void *room;       /* [elements] of bf16; null: of f32 */
    int64_t elements;
} te_grad_sums;

TE_API void te__grad_sums_close(te_grad_sums *s) {
    if (s->room) te_release(s->ctx, s->room);
    s->room = 0;
}
/* For sums of up to `bytes` of f32 at a time. copies: by copy engines, where the ranks map each other's memory. */
TE_IF_USED TE_API te_status te__grad_sums_open(te_grad_sums *s, int64_t bytes, te_dtype dtype, int copies,
                                               te_context *ctx) {
    s->ctx = ctx, s->room = 0;
    const int64_t elements = te_ceil_div(bytes, (int64_t)sizeof(float)), each = (int64_t)te_dtype_bytes(dtype);
    if (ctx->comm && copies) TE_TRY(te__copied_open(&ctx->comm->data, elements * each, ctx));
    s->data = *te_data_group(ctx), s->data.peers = 0, s->dtype = dtype;
    if (!copies) s->data.memory = 0;
    if (dtype == TE_f32 || s->data.size == 1) return TE_OK;
    s->elements = te_round_up(elements, s->data.size * (int64_t)TE_PARAM_ALIGN);
    return te_allocate(ctx, &s->room, (size_t)(s->elements * each));
}
/* x[count] becomes the sum over the group. hides: there is a backward to hide it. */
TE_IF_USED TE_API te_status te__grad_sum_of(const te_grad_sums *s, void *x, int64_t count, te_dtype dtype, int hides,
                                            te_context *ctx) {
    if (s->data.memory && hides) return te__copied_sum(&s->data, x, count, dtype, ctx);
    return te_group_all_reduce(&s->data, x, x, count, dtype, ctx);
}
TE_IF_USED TE_API te_status te__grad_sum(const te_grad_sums *s, float *x, int64_t count, int hides, te_context *ctx) {
    if (s->dtype == TE_f32) return te__grad_sum_of(s, x, count, TE_f32, hides, ctx);
    for (int64_t at = 0; at < count; at += s->elements) {
        const int64_t n = te_min(s->elements, count - at);
        TE_TRY(te_convert(s->room, s->dtype, x + at, TE_f32, n, ctx));
        TE_TRY(te__grad_sum_of(s, s->room, n, s->dtype, hides, ctx));
        TE_TRY(te_convert(x + at, TE_f32, s->room, s->dtype, n, ctx));
    }
    return TE_OK;
}
/* Of x[ranks][count] this rank's row becomes the sum over the group. */
TE_IF_USED TE_API te_status te__grad_slices_of(const te_grad_sums *s, void *x, int64_t count, te_dtype dtype, int hides,
                                               te_context *ctx) {
    char *const own = (char *)x + (size_t)(s->data.rank * count) * te_dtype_bytes(dtype);
    if (s->data.memory && hides) return te__copied_slices(&s->data, x, count, dtype, ctx);
    return te_group_reduce_scatter(&s->data, own, x, count, dtype, ctx);
}
/* Of a model's gradients this rank gets the sums of its slice (te_slice_elements) and of what is behind the last one,
 * with half of the traffic. Slices know no parameters, so what a frozen one has for a gradient goes along. */
TE_IF_USED TE_API te_status te__grad_slices(const te_grad_sums *s, const te_model *m, int slices, int hides,
                                            te_context *ctx) {
    float *const grads = (float *)(uintptr_t)m->grads;
    const int64_t slice = te_slice_elements(m->elements, slices), rest = slice * slices;
    if (s->dtype == TE_f32) TE_TRY(te__grad_slices_of(s, grads, slice, TE_f32, hides, ctx));
    for (int64_t at = 0; s->dtype != TE_f32 && at < slice; at += s->elements / slices) {
        const int64_t n = te_min(s->elements / slices, slice - at);
        const size_t bytes = (size_t)n * te_dtype_bytes(s->dtype);
        for (int r = 0; r < slices; r++)
            TE_TRY(te_convert((char *)s->room + (size_t)r * bytes, s->dtype, grads + r * slice + at, TE_f32, n, ctx));
        TE_TRY(te__grad_slices_of(s, s->room, n, s->dtype, hides, ctx));
        TE_TRY(te_convert(grads + s->data.rank * slice + at, TE_f32, (char *)s->room + (size_t)s->data.rank * bytes,
                          s->dtype, n, ctx));
    }
    return te__grad_sum(s, grads + rest, m->elements - rest, hides, ctx);
}

#endif
