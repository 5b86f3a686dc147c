/* whole.h -- the whole of a tensor of which ranks have parts, as it lies in a checkpoint, and what of it a rank has.
 *
 * A rank of a tensor group has runs of the whole tensor (te/plan/bind.h). Of an optimizer's states that are shared out
 * over the data group (slices.h) it has a piece of its parameter's elements, and another behind the last slice.
 *
 * Do this:
 *     te__whole w = te__whole_of(param, te_tensor_group(ctx));      // rows and cols of the whole
 *     ... w.piece[w.pieces++] = ... what this rank has ...
 *     TE_TRY(te__whole_copy(&w, part, at, count, 4, 0, ctx));       // elements [at, at + count) that it has, into part
 */
#ifndef TE_WHOLE_H
#define TE_WHOLE_H

#include "../optim/moment_blocks.h" /* te__moments_copy */
#include "../plan/bind.h"          /* te_shard_layout */

typedef struct te__piece {
    void *data;             /* target memory */
    int64_t from, elements; /* of this rank's parameter */
    int saves;              /* this rank, of all that have it, brings it into a file */
    int in_blocks;          /* 1: a moment in 8 bits, 2: v's (moment_blocks.h); in `part` it is bf16. 0: as it lies */
} te__piece;

typedef struct te__whole {
    int64_t rows, cols;
    te_shard_layout runs;
    te__piece piece[2];
    int pieces;
} te__whole;

TE_API te__whole te__whole_of(const te_param *p, const te_group *g) {
    const int is_matrix = p->init == TE_INIT_normal || p->init == TE_INIT_tied; /* however few rows a rank has */
    te__whole w;
    memset(&w, 0, sizeof w);
    w.rows = p->rows, w.cols = p->cols, w.runs = te_shard_layout_of(p, g);
    if (p->shard == TE_SHARD_columns && is_matrix) w.rows *= w.runs.ranks;
    else w.cols *= w.runs.ranks;
    return w;
}
/* Whether this rank of the tensor group is the one that brings what it has of p into a file. */
TE_API int te__whole_saves(const te_param *p, const te_group *g) { return p->shard != TE_SHARD_none || !g->rank; }

/* What there is of elements [at, at + count) in the piece goes to `part`, where element `at` is the first; or comes
 * from there, if `loads`. size: bytes of an element. */
TE_IF_USED TE_API te_status te__piece_copy(const te__whole *w, const te__piece *p, void *part, int64_t at,
                                           int64_t count, size_t size, int loads, te_context *ctx) {
    const int64_t end = p->from + p->elements;
    const int64_t first = te_shard_run_with(&w->runs, te_max(p->from, at / w->runs.ranks));
    for (int64_t i = first; i < w->runs.count; i++) {
        const te_shard_run r = te_shard_run_at(&w->runs, i);
        const int64_t shift = r.whole - r.at; /* from an element here to one of the whole */
        const int64_t from = te_max(te_max(p->from, r.at), at - shift);
        const int64_t to = te_min(te_min(end, r.at + r.elements), at + count - shift);
        if (r.at >= end || r.whole >= at + count) break;
        if (from >= to) continue;
        char *const here = (char *)p->data + (size_t)(from - p->from) * size,
             *const there = (char *)part + (size_t)(from + shift - at) * size;
        if (p->in_blocks)
            TE_TRY(te__moments_copy(p->data, p->elements, p->in_blocks == 2, from - p->from, to - from, there, loads,
                                    ctx));
        else TE_TRY(te_copy(ctx, loads ? here : there, loads ? there : here, (size_t)(to - from) * size));
    }
    return TE_OK;
}
/* Of all pieces that this rank saves, or loads. */
TE_IF_USED TE_API te_status te__whole_copy(const te__whole *w, void *part, int64_t at, int64_t count, size_t size,
                                           int loads, te_context *ctx) {
    for (int i = 0; i < w->pieces; i++)
        if (loads || w->piece[i].saves)
            TE_TRY(te__piece_copy(w, &w->piece[i], part, at, count, size, loads, ctx));
    return TE_OK;
}

#endif
