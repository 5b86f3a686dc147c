/* value.h -- what flows along the edges of a plan, and the workspace that it lies in during a call. */
#ifndef TE_VALUE_H
#define TE_VALUE_H

#include "../model.h" /* te_dtype, te_rows */

/* A tensor of a walk, [rows, cols] of dtype. It lies in the caller's memory, in te_saved, or in a block of the
 * workspace. */
typedef struct te_value {
    void *p; /* null: there is none, or nobody wants it */
    int64_t rows;
    int cols;
    te_dtype dtype;
    int block; /* of the workspace; -1: it lies elsewhere */
} te_value;

TE_API te_value te_value_of(void *p, te_dtype dtype, int64_t rows, int cols) {
    te_value v;
    v.p = p, v.rows = rows, v.cols = cols, v.dtype = dtype, v.block = -1;
    return v;
}
TE_API te_value te_no_value(void) { return te_value_of(0, TE_f32, 0, 0); }
TE_API te_value te_value_of_tensor(te_tensor t) { return te_value_of(t.data, t.dtype, t.rows, (int)t.cols); }

/* ---- the workspace ----------------------------------------------------------------------------------------------- */

enum { TE_MAX_LIVE = 48 }; /* blocks in use at a time */

typedef struct te_block_info {
    size_t at, bytes;
    int id;
    int roots; /* values of the walk that lie in it; 0: scratch of the step at hand, which goes when the step is over */
} te_block_info;

/* First fit; blocks are sorted by address. A step acquires what it needs and releases nothing: what becomes a value of
 * the walk (te_set_now, te_set_edge, te_defer_column_sum) is kept as long as it is one, all else goes at the end of the
 * step. */
typedef struct te_pool {
    char *base;  /* null while the walk only measures; addresses then are offsets that are not 0 */
    size_t high; /* the most that was ever in use */
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
    int kept = 0;
    for (int i = 0; i < p->count; i++)
        if (p->block[i].roots) p->block[kept++] = p->block[i];
    p->count = kept;
}

#endif
