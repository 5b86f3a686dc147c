/* whole.h -- the whole of a tensor of which ranks have parts, as it lies in a checkpoint, and what of it a rank has.
 *
 * A rank of a tensor group has runs of the whole tensor: of a weight (shard, rows) each row's own columns, of one
 * (shard, columns) a run of whole rows for each of its `parts`. Run i of rank t is run i * ranks + t of the whole. Of
 * an optimizer's states that are shared out over the data group (slices.h) it has a piece of its parameter's elements,
 * and another behind the last slice.
 *
 * Do this:
 *     te__whole w = te__whole_of(param, te_tensor_group(ctx));      // rows and cols of the whole
 *     ... w.piece[w.pieces++] = ... what this rank has ...
 *     TE_TRY(te__whole_copy(&w, part, at, count, 4, 0, ctx));       // elements [at, at + count) that it has, into part
 */
#ifndef TE_WHOLE_H
#define TE_WHOLE_H

#include "../core/group.h"          /* te_group */
#include "../optim/moment_blocks.h" /* te__moments_copy */
#include "../plan/model.h"          /* te_param */

typedef struct te__piece {
    void *data;             /* target memory */
    int64_t from, elements; /* of this rank's parameter */
    int saves;              /* this rank, of all that have it, brings it into a file */
    int in_blocks;          /* 1: a moment in 8 bits, 2: v's (moment_blocks.h); in `part` it is bf16. 0: as it lies */
} te__piece;

typedef struct te__whole {
    int64_t rows, cols;
    int64_t run;     /* elements of a run */
    int rank, ranks; /* whose runs alternate; 0 of 1: this rank's parameter is the whole */
    te__piece piece[2];
    int pieces;
} te__whole;

TE_API te__whole te__whole_of(const te_param *p, const te_group *g) {
    const int is_matrix = p->init == TE_INIT_normal || p->init == TE_INIT_tied; /* however few rows a rank has */
    te__whole w;
    memset(&w, 0, sizeof w);
    w.rows = p->rows, w.cols = p->cols, w.run = p->rows * p->cols, w.ranks = 1;
    if (p->shard == TE_SHARD_none || g->size == 1) return w;
    w.rank = g->rank, w.ranks = g->size;
    if (p->shard == TE_SHARD_rows) w.run = p->cols, w.cols *= g->size;
    else if (is_matrix) w.run /= p->parts, w.rows *= g->size;
    else w.run /= p->parts, w.cols *= g->size;
    return w;
}
/* Whether this rank of the tensor group is the one that brings what it has of p into a file. */
TE_API int te__whole_saves(const te_param *p, const te_group *g) { return p->shard != TE_SHARD_none || !g->rank; }

/* What there is of elements [at, at + count) in the piece goes to `part`, where element `at` is the first; or comes
 * from there, if `loads`. size: bytes of an element. */
TE_API te_status te__piece_copy(const te__whole *w, const te__piece *p, void *part, int64_t at, int64_t count,
                                size_t size, int loads, te_context *ctx) {
    const int64_t turn = w->run * w->ranks, end = p->from + p->elements;
    for (int64_t i = te_max(p->from / w->run, at / turn); i * w->run < end && i * turn < at + count; i++) {
        const int64_t shift = (i * w->ranks + w->rank - i) * w->run; /* from an element here to one of the whole */
        const int64_t from = te_max(te_max(p->from, i * w->run), at - shift);
        const int64_t to = te_min(te_min(end, (i + 1) * w->run), at + count - shift);
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
TE_API te_status te__whole_copy(const te__whole *w, void *part, int64_t at, int64_t count, size_t size, int loads,
                                te_context *ctx) {
    for (int i = 0; i < w->pieces; i++)
        if (loads || w->piece[i].saves)
            TE_TRY(te__piece_copy(w, &w->piece[i], part, at, count, size, loads, ctx));
    return TE_OK;
}

#endif
