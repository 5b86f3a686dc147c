/* value.h -- te_value, a value that one step of a plan produces and another step reads; and te_pool, the workspace that
 * holds such values during a call.
 *
 * A te_value describes a matrix completely: its address and format, how it is scaled, whether its transpose is stored
 * as well, and whether work is left to do before the value can be read. Therefore a step needs to know nothing about
 * the step that produced its input. A step passes its result to the next step in te_run.current; te_run.edge holds the
 * values of forks for later steps.
 */
#ifndef TE_VALUE_H
#define TE_VALUE_H

#include "../../fp8/scales.h" /* te_scaling */
#include "../model.h"              /* te_dtype, te_rows */

/* Which work remains to be done before a value can be read. */
typedef enum te_value_state {
    TE_VALUE_ready,
    TE_VALUE_amax_only,       /* only under fp8_current: the producer has computed only the amax of the value, which
                               * determines the scale. Once the scale is known, the producer runs a second time and
                               * stores the value in FP8 */
    TE_VALUE_deferred_gather, /* only this rank's rows are stored; the next step gathers the other ranks' rows while the
                               * GEMM of that step runs */
    TE_VALUE_deferred_product /* the GEMM that computes the value has not run yet; the next step runs this GEMM,
                               * overlapped with the step's own work */
} te_value_state;

/* A matrix [rows, cols] of `dtype`. It lies in the caller's memory, in te_saved, or in a block of the workspace. */
typedef struct te_value {
    void *data;  /* address of the matrix, or null if there is no value or no later step needs the value */
    int64_t rows;
    int cols;
    te_dtype dtype;
    int block;   /* the id of the workspace block that holds the matrix, or -1 if the matrix is not in the workspace */
    te_value_state state;
    te_scaling scaling;   /* how an FP8 value is scaled; TE_SCALING_NONE if the value is in the list's dtype */
    float *inverse_scale; /* 1 / scale of an FP8 value, one number for each row or for each 1 x 128 tile. Null if the
                           * value has a single scale, which is in the te_scales of the GEMM that reads the value */
    const float *amax;    /* the amax of the value, computed by its producer; null if no amax has been computed */
    void *transposed;     /* the transpose in FP8, [cols, rows rounded up to a multiple of 16]; null if it is not
                           * stored */
    float *transposed_inverse_scale; /* only under fp8_block: 1 / scale of each 1 x 128 tile of `transposed` */
    int transposed_block; /* the id of the workspace block that holds the transpose, or -1 if the transpose is not in
                           * the workspace */
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
/* Record in *v that the value `transposed` is the transpose of *v. From now on the workspace block of the transpose
 * belongs to *v. */
TE_API void te__attach_transposed(te_value *v, te_value transposed) {
    v->transposed = transposed.data, v->transposed_inverse_scale = transposed.inverse_scale;
    v->transposed_block = transposed.block;
}

/* ---- the workspace ----------------------------------------------------------------------------------------------- */

enum { TE_MAX_LIVE = 48 }; /* the largest number of workspace blocks that are in use at a time */

typedef struct te_block_info {
    size_t at, bytes;
    int id;
    int roots; /* a reference count: the number of values that lie in this block and outlive the step. A block with
                * count 0 is scratch memory, which is freed when the step ends */
} te_block_info;

/* The workspace, in which blocks are allocated by first fit. The array `block` is sorted by address. A step acquires
 * blocks, but does not release them. When the step ends, all blocks are freed, except those that hold a value which
 * outlives the step (te__set_current, te__set_edge, te_defer_column_sum). */
typedef struct te_pool {
    char *base;  /* start of the workspace. In the dry run `base` is null, and the address of a block is its offset plus
                  * TE_ALIGN, so that no address is null */
    size_t high; /* the largest offset from `base`, in bytes, at which a block of this call has ended. The call needs a
                  * workspace of this size */
    int count, next_id;
    te_block_info block[TE_MAX_LIVE];
} te_pool;

/* Allocate a block of `bytes` bytes, and set *memory to its address. Returns the id of the block, or -1 if TE_MAX_LIVE
 * blocks are already in use. */
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
/* Return the id of the workspace block that begins at the address `memory`, or -1 if no block begins there. */
TE_API int te__pool_block_at(const te_pool *p, const void *memory) {
    const uintptr_t base = p->base ? (uintptr_t)p->base : (uintptr_t)TE_ALIGN;
    for (int i = 0; i < p->count; i++)
        if (base + p->block[i].at == (uintptr_t)memory) return p->block[i].id;
    return -1;
}
/* Add `by`, which is 1 or -1, to the reference count of the block with this id. If id is -1 (no block), do nothing. */
TE_API void te__pool_root(te_pool *p, int id, int by) {
    for (int i = 0; id >= 0 && i < p->count; i++)
        if (p->block[i].id == id) {
            p->block[i].roots += by;
            return;
        }
}
/* Free all blocks whose reference count is 0. The function is called at the end of each step. */
TE_API void te__pool_sweep(te_pool *p) {
    int live = 0;
    for (int i = 0; i < p->count; i++)
        if (p->block[i].roots) p->block[live++] = p->block[i];
    p->count = live;
}

#endif
