/* value.h -- what flows along the edges of a plan, and the workspace that it lies in during a call.
 *
 * A te_value knows itself: where its matrix lies and in which format, how it is scaled, whether its transpose is stored
 * as well, and whether work is left before it can be read. Steps hand one to the next (te_run.current), keep some for
 * the other end of a fork (te_run.edge), and never ask how the value came to be.
 */
#ifndef TE_VALUE_H
#define TE_VALUE_H

#include "../../fp8/scales.h" /* te_scaling */
#include "../model.h"              /* te_dtype, te_rows */

/* What is left to do before a value can be read. */
typedef enum te_value_state {
    TE_VALUE_ready,
    TE_VALUE_amax_only,       /* fp8_current: its producer found only its amax; once the scale is known it runs again,
                               * and stores FP8 */
    TE_VALUE_deferred_gather, /* this rank's rows are there; the next step gathers the others beside its product */
    TE_VALUE_deferred_product /* a product that has not run: the next step runs it, and overlaps what it does itself */
} te_value_state;

/* A matrix [rows, cols] of dtype. It lies in the caller's memory, in te_saved, or in a block of the workspace. */
typedef struct te_value {
    void *data;  /* null: there is none, or nobody wants it */
    int64_t rows;
    int cols;
    te_dtype dtype;
    int block;   /* of the workspace; -1: it lies elsewhere */
    te_value_state state;
    te_scaling scaling;   /* of FP8; none: it is in the list's format */
    float *inverse_scale; /* 1 / scale for each row, or each 1 x 128; null: one scale, which the product's te_scales
                           * have */
    const float *amax;    /* its largest magnitude, as its producer found it; null: nobody has looked */
    void *transposed;     /* the same matrix as [cols, rows up to a multiple of 16], in FP8; null: not stored */
    float *transposed_inverse_scale;
    int transposed_block;
} te_value;

TE_API te_value te__value_of(void *data, te_dtype dtype, int64_t rows, int cols) {
    te_value v;
    v.data = data, v.rows = rows, v.cols = cols, v.dtype = dtype, v.block = -1;
    v.state = TE_VALUE_ready, v.scaling = TE_SCALING_NONE, v.inverse_scale = 0, v.amax = 0;
    v.transposed = 0, v.transposed_inverse_scale = 0, v.transposed_block = -1;
    return v;
}
TE_API te_value te__no_value(void) { return te__value_of(0, TE_f32, 0, 0); }
TE_API te_value te__value_of_tensor(te_tensor t) { return te__value_of(t.data, t.dtype, t.rows, (int)t.cols); }
/* Attach a transpose: a value of its own up to here, with the block that it lies in. */
TE_API void te__attach_transposed(te_value *v, te_value transposed) {
    v->transposed = transposed.data, v->transposed_inverse_scale = transposed.inverse_scale;
    v->transposed_block = transposed.block;
}

/* ---- the workspace ----------------------------------------------------------------------------------------------- */

enum { TE_MAX_LIVE = 48 }; /* blocks in use at a time */

typedef struct te_block_info {
    size_t at, bytes;
    int id;
    int roots; /* how many values that outlive the step lie in it; 0: scratch, freed when the step ends */
} te_block_info;

/* First fit; blocks are sorted by address. A step acquires blocks and releases none. A block stays as long as a value
 * of the run lies in it (te__set_current, te__set_edge, te_defer_column_sum); all others are freed when the step ends.
 */
typedef struct te_pool {
    char *base;  /* null in the dry run, where addresses are offsets that are never 0 */
    size_t high; /* high-water mark: bytes from the base to the end of the last block that was ever in use */
    int count, next_id;
    te_block_info block[TE_MAX_LIVE];
} te_pool;

/* Returns the block's id; -1: more than TE_MAX_LIVE are in use. */
TE_API int te__pool_take(te_pool *p, void **memory, size_t bytes) {
    size_t at = 0;
    int i = 0;
    if (p->count == TE_MAX_LIVE) return -1;
    bytes = (size_t)te_round_up((int64_t)te_max((int64_t)bytes, 1), TE_ALIGN);
    for (; i < p->count && p->block[i].at - at < bytes; i++) at = p->block[i].at + p->block[i].bytes;
    memmove(&p->block[i + 1], &p->block[i], (size_t)(p->count - i) * sizeof p->block[0]);
    p->count++;
    p->block[i].at = at, p->block[i].bytes = bytes, p->block[i].roots = 0, p->block[i].id = p->next_id++;
    if (at + bytes > p->high) p->high = at + bytes;
    *memory = p->base ? p->base + at : (char *)(uintptr_t)(at + TE_ALIGN);
    return p->block[i].id;
}
/* The block that begins there; -1: none. */
TE_API int te__pool_block_at(const te_pool *p, const void *memory) {
    const uintptr_t base = p->base ? (uintptr_t)p->base : (uintptr_t)TE_ALIGN;
    for (int i = 0; i < p->count; i++)
        if (base + p->block[i].at == (uintptr_t)memory) return p->block[i].id;
    return -1;
}
TE_API void te__pool_root(te_pool *p, int id, int by) {
    for (int i = 0; id >= 0 && i < p->count; i++)
        if (p->block[i].id == id) {
            p->block[i].roots += by;
            return;
        }
}
/* The end of a step. */
TE_API void te__pool_sweep(te_pool *p) {
    int live = 0;
    for (int i = 0; i < p->count; i++)
        if (p->block[i].roots) p->block[live++] = p->block[i];
    p->count = live;
}

#endif
