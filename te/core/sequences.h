/* sequences.h -- which rows are of which sequence, where sequences differ in length and lie one behind the other.
 *
 * Sequence i has rows first[i] to first[i + 1]; first[0] is taken to be 0. The numbers lie in target memory, and on
 * CUDA the host never reads them: a captured graph runs with other lengths when they have changed. So kernels take none
 * of them on trust. Where they do not ascend, or leave the rows, or a sequence is longer than `longest`, a sequence is
 * cut to what exists: what is computed then has no meaning, but no other memory is touched and every kernel ends. Rows
 * of no sequence, behind the last number, may be left as they are.
 *
 * Do this, in a kernel:
 *     const te_sequence own = te_sequence_rows(&args->of, i);   // rows own.first to own.first + own.count
 *     const int position = te_sequence_position(&args->of, row);
 */
#ifndef TE_SEQUENCES_H
#define TE_SEQUENCES_H

#include "base.h" /* TE_BOTH */

typedef struct te_sequences {
    const int32_t *first; /* [count + 1]; null: each has `longest` rows */
    int count, longest, rows; /* sequences, rows of one at most, rows of all */
} te_sequences;
typedef struct te_sequence { int first, count; } te_sequence; /* its first row, and how many it has */

TE_BOTH int te_sequence_first(const te_sequences *s, int i) {
    const int row = !i ? 0 : s->first ? s->first[i] : i * s->longest;
    return row < 0 ? 0 : row > s->rows ? s->rows : row;
}
/* Sequence i, where the rows before `from` are of those before it. */
TE_BOTH te_sequence te_sequence_from(const te_sequences *s, int i, int from) {
    const int first = te_sequence_first(s, i), end = te_sequence_first(s, i + 1);
    te_sequence q;
    q.first = first > from ? first : from, q.count = end > q.first ? end - q.first : 0;
    if (q.count > s->longest) q.count = s->longest;
    return q;
}
TE_BOTH te_sequence te_sequence_rows(const te_sequences *s, int i) { return te_sequence_from(s, i, 0); }

/* Tiles of `size` rows, that begin anew with each sequence, have numbers: those of sequence i from its first row / size
 * + i on. There are te_sequence_tiles of them; at most one a sequence is empty. */
TE_BOTH int te_sequence_tiles(const te_sequences *s, int size) { return s->rows / size + s->count; }
/* The sequence that a tile is of, by halving; one that has the tile's rows, or none. size 0: the tile is a row. */
TE_BOTH int te_sequence_of(const te_sequences *s, int tile, int size) {
    int low = 0, high = s->count; /* it is low, or one between them */
    if (!s->first && size == 0) return tile / s->longest;
    while (high - low > 1) {
        const int i = low + (high - low) / 2, first = te_sequence_first(s, i);
        if ((size ? first / size + i : first) <= tile) low = i;
        else high = i;
    }
    return low;
}
/* The place of a row in its sequence. */
TE_BOTH int te_sequence_position(const te_sequences *s, int row) {
    if (!s->first) return row % s->longest;
    return row - te_sequence_first(s, te_sequence_of(s, row, 0));
}

/* Sequences one after the other, by one thread that asks for tiles in ascending order (if not, it begins again). Who
 * walks takes each tile of each sequence once, whatever the numbers are: a sequence that begins before the end of the
 * one ahead of it is taken to begin there. */
typedef struct te_sequence_walk {
    te_sequence at;
    int index, tile; /* of the sequence; the number of its first tile */
    int next;        /* where the next one begins, and the number of its first tile */
    int next_tile;
} te_sequence_walk;

TE_BOTH void te__walk_enter(te_sequence_walk *w, const te_sequences *s, int i, int from, int size) {
    w->index = i, w->at = te_sequence_from(s, i, from), w->tile = w->at.first / size + i;
    w->next = te_sequence_first(s, i + 1);
    if (w->next < w->at.first) w->next = w->at.first;
    w->next_tile = w->next / size + i + 1;
}
TE_BOTH te_sequence_walk te_sequence_walk_of(const te_sequences *s, int size) {
    te_sequence_walk w;
    te__walk_enter(&w, s, 0, 0, size);
    return w;
}
/* On to the sequence that has this tile. */
TE_BOTH void te_sequence_walk_to(te_sequence_walk *w, const te_sequences *s, int tile, int size) {
    if (tile < w->tile) te__walk_enter(w, s, 0, 0, size);
    while (tile >= w->next_tile && w->index + 1 < s->count) te__walk_enter(w, s, w->index + 1, w->next, size);
}

#endif
