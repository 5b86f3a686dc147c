/* tensor.h -- views of matrices that the caller owns, the description of a batch, and sequences of different lengths.
 *
 * Do this:
 *     te_tensor x = te_matrix(buffer, TE_bf16, batch * seq, hidden);
 *     te_tensor k = te_strided((uint16_t *)buffer + hidden, TE_bf16, batch * seq, 64, 3 * hidden); // 64 columns of it
 *
 * In a kernel, with sequences of different lengths:
 *     const te_sequence q = te_sequence_rows(&args->of, i);     // q.count rows, from row q.first on
 *     const int position = te_sequence_position(&args->of, row);
 */
#ifndef TE_TENSOR_H
#define TE_TENSOR_H

#include "base.h"  /* TE_BOTH */
#include "dtype.h" /* te_dtype */

/* A view of a row-major matrix: the element in row r and column c is element number r * stride + c of `data`. */
typedef struct te_tensor {
    void *data;
    te_dtype dtype;
    int64_t rows, cols;
    /* the number of elements from the beginning of a row to the beginning of the next row; 0 stands for `cols`, and
     * other values must be at least cols. x, y, dx and dy of a list may have a stride larger than cols, as columns of a
     * wider matrix do. The elements between the rows are neither read nor written. A call works on dense copies of such
     * tensors: the call copies x and dy before the first step, and y and dx after the last step. Each such tensor
     * therefore costs a copy, and the workspace must be larger by te_plan_strided_bytes (te/plan/impl/executor.h). All
     * other tensors must be dense */
    int64_t stride;
} te_tensor;

TE_API te_tensor te_matrix(void *data, te_dtype dtype, int64_t rows, int64_t cols) {
    te_tensor t;
    t.data = data, t.dtype = dtype, t.rows = rows, t.cols = cols, t.stride = 0;
    return t;
}
/* Return a view of `cols` columns of a matrix that has `stride` columns. `data` is the address of the first of these
 * columns in row 0. */
TE_API te_tensor te_strided(void *data, te_dtype dtype, int64_t rows, int64_t cols, int64_t stride) {
    te_tensor t = te_matrix(data, dtype, rows, cols);
    return t.stride = stride, t;
}
/* Return whether a tensor's rows have gaps between them, i.e. elements that do not belong to the tensor. */
TE_API int te__is_strided(te_tensor t) { return t.data && t.rows > 1 && t.stride && t.stride != t.cols; }
/* Return an absent tensor. Pass this tensor as dx if dx is not needed, and as x if the list begins with an
 * embedding. */
TE_API te_tensor te_none(void) { return te_matrix(0, TE_f32, 0, 0); }

/* The caller's tensors for an extra input or output of a list. In forward, the op `(input, name, width)` reads `value`,
 * and `(output, name)` writes `value`. In backward, `(input, ...)` writes `grad`, and `(output, ...)` reads `grad`. If
 * the `grad` of an input is null, the gradient of this input is not computed. Each of these tensors is [rows, width].
 * The option (dtype, ..) of an `(input, ...)` names the number format of this extra input; without the option, the
 * format is the format of the list's residual stream. An extra output has the number format of the value that `(output,
 * name)` writes. */
typedef struct te_edge {
    const char *name;
    te_tensor value, grad;
} te_edge;

/* The arguments of a call apart from its tensors. Rows are tokens: row b * seq + t is token t of sequence b, unless
 * cu_seqlens is given. A member that is 0 has its default value. */
typedef struct te_batch {
    int batch, seq;        /* the number of rows is batch * seq */
    const int32_t *tokens; /* [rows], in target memory: the tokens that an embedding reads */
    const int32_t *labels; /* [rows], in target memory: the label of each row for cross_entropy. A row whose label is
                            * ignore_index has no loss. `tokens` and `labels` of backward must be the same arrays, with
                            * the same contents, as those of forward */
    int ignore_index;      /* the label that marks rows without a loss. 0 stands for -100, so that a te_batch set to
                            * zeros ignores no token of the vocabulary */
    float loss_scale;      /* the derivative of the total loss with respect to the loss of one row, often 1 / rows;
                            * backward uses this number if the caller passes no dy */
    int accumulate;        /* 1: backward adds to the gradients that are in memory; 0: backward overwrites them */
    int position;          /* the position of each sequence's first token, for rope and for learnt position
                            * embeddings */
    int context;           /* 1: the ranks of te_cp_group split each sequence (te/context_parallel.h). A rank's `seq`
                            * rows of a sequence are then two chunks of the sequence (te_cp_position); cu_seqlens and
                            * max_seqlen, if set, count the rows of all these ranks together. 0: a sequence has seq
                            * rows */
    const int32_t *positions; /* [rows], in target memory: the position that rope uses for each row; positions may be in
                               * any order. Null: the position is `position` plus the row's index within its sequence.
                               * Backward must get the same positions as forward */
    const te_edge *edges;  /* the extra inputs and outputs of the list, by name; entries whose names the list does not
                            * have are ignored */
    int edge_count;
    /* Sequences of different lengths (packed, "varlen"). The batch * seq rows hold `sequences` sequences one after the
     * other: sequence i has rows cu_seqlens[i] to cu_seqlens[i + 1] - 1; cu_seqlens[0] is 0, and cu_seqlens[sequences]
     * is the number of rows. A sequence may be empty, and none is longer than max_seqlen. On CUDA the host never reads
     * cu_seqlens, so the lengths may change between replays of a captured graph; te_sequences, below, says how kernels
     * treat wrong values. If these three members are 0, 0 and null, there are `batch` sequences of `seq` rows each. */
    int sequences, max_seqlen;
    const int32_t *cu_seqlens; /* [sequences + 1], target memory */
    int loss_in_backward; /* 1: a forward that saves for backward may leave the loss to backward, which then computes
                           * the loss and writes the loss to y. A list that ends in linear, cross_entropy then computes
                           * the logits only once (te/linear/impl/linear_cross_entropy.h) */
    const float *loss_count; /* [1], in target memory: the number of rows that have a loss. Backward divides loss_scale
                              * by this number (te/ops/cross_entropy.h). Null: loss_scale is not divided */
    const struct te_cache *cache; /* for inference: the key-value cache to which the batch's tokens are appended
                                   * (te/cache/cache.h), prepared by te_cache_begin; null if no cache is used */
    const int32_t *slots; /* [sequences], in target memory: sequence i of the batch extends sequence number slots[i] of
                           * the cache. If slots[i] is -1, the rows of sequence i are padding. If `slots` is null,
                           * sequence i of the batch extends sequence i of the cache */
    int memory_seq; /* the number of rows per sequence of the "memory", the tensor to which cross_attention attends
                     * (e.g. the encoder's output). Row b * memory_seq + t of the memory is row t of sequence b. A list
                     * declares the memory as an extra input by the op (input, .., (rows, memory)) */
    const struct te_sampling *sampling; /* the parameters and results of the op (sample, ..) at the end of a list */
} te_batch;

/* Which chunks of a sequence a rank of a context group has. A sequence of 2 * ranks chunks of the same length is split
 * so that rank r has chunks r and 2 * ranks - 1 - r, because all ranks then have the same work under a causal mask. If
 * `ranks` is 0 or 1, the rank has whole sequences. */
typedef struct te_cp_shard { int rank, ranks; } te_cp_shard;

/* A rank has `seq` rows of a sequence. Return the position, in the whole sequence, of row `row` of these rows. */
TE_BOTH int te_cp_position(te_cp_shard s, int row, int seq) {
    const int chunk = seq / 2;
    if (s.ranks <= 1) return row;
    return row < chunk ? s.rank * chunk + row : (2 * s.ranks - 2 - s.rank) * chunk + row;
}
/* A rank has `seq` rows of a sequence. Return which of these rows is the token at `position` of the whole sequence, or
 * -1 if another rank has this token. */
TE_BOTH int te_cp_row(te_cp_shard s, int position, int seq) {
    const int chunk = seq / 2;
    if (s.ranks <= 1) return position < seq ? position : -1;
    const int of = position / chunk, first = of * chunk;
    return of == s.rank ? position - first : of == 2 * s.ranks - 1 - s.rank ? chunk + position - first : -1;
}

/* The inputs and outputs of the op (sample, ..) at the end of a list, apart from the logits (te/ops/sample.h). Every
 * array lies in target memory and has one entry for each row of logits. The comment at each array says what a null
 * pointer means. The contents of all arrays that the kernel reads may change between replays of a captured graph. */
typedef struct te_sampling {
    /* results */
    int32_t *token;        /* [rows], required: the token chosen for each row. The token is -1, and y is NaN, if no
                            * token can be drawn: because no token is allowed, all logits are -infinity, or the logit of
                            * an allowed token is NaN */
    int32_t *top_token;    /* [rows, top]: the `top` tokens to which the model gives the highest probabilities, the
                            * likeliest first. Required if `top` is not 0 */
    float *top_log_prob;   /* [rows, top]: the log-probabilities of the tokens in top_token. If a row has fewer than
                            * `top` finite logits, its remaining entries are -1 in top_token and -infinity in this
                            * array */
    /* state of each row */
    uint16_t *history;     /* [rows, vocabulary]: how often each token was generated before, at most 65535. Null: no
                            * token counts as generated before, and frequency and presence penalties are not
                            * permitted */
    const uint64_t *seed;  /* [rows]: the seed of each row's random numbers (core/philox.h); required if `temperature`
                            * is not null */
    uint64_t *counter;     /* [rows]: how many random numbers have been drawn with the row's seed; the op adds 1 to this
                            * number. Required if `temperature` is not null */
    /* parameters */
    const float *temperature; /* [rows]: the temperature by which the logits are divided. If the pointer is null, or an
                               * entry is below 1e-5, the op chooses greedily: the op takes the most likely token (if
                               * several are equally likely, the one with the lowest number) */
    const int32_t *top_k;     /* [rows]: only the k most likely tokens can be chosen. If the pointer is null, or an
                               * entry is 0 or less, all tokens can be chosen */
    const float *top_p;       /* [rows]: only tokens of the smallest set of most likely tokens whose probabilities add
                               * up to p or more can be chosen. If the pointer is null, or an entry is 1, all tokens can
                               * be chosen */
    const float *min_p;       /* [rows]: only tokens with at least min_p times the probability of the likeliest token
                               * can be chosen. If the pointer is null, or an entry is 0, all tokens can be chosen */
    const float *repetition_penalty; /* [rows]: the penalty for tokens that have occurred (in `history` or in `prompt`):
                                      * a positive logit is divided by the penalty, any other logit is multiplied by the
                                      * penalty. Null: no penalty, i.e. a factor of 1 */
    const float *frequency_penalty;  /* [rows]: a penalty that is subtracted from a token's logit as many times as the
                                      * token occurs in `history`. Null: no penalty */
    const float *presence_penalty;   /* [rows]: a penalty that is subtracted once from the logit of each token that
                                      * occurs in `history`. Null: no penalty */
    const uint32_t *allowed;  /* [rows, (vocabulary + 31) / 32]: bit t % 32 of word t / 32 is 1 if token t may be
                               * chosen. Null: all tokens may be chosen */
    const uint32_t *prompt;   /* [rows, (vocabulary + 31) / 32], with bits as in `allowed`: tokens that count as
                               * occurred for the repetition penalty, in addition to the tokens in `history`. Null: no
                               * additional tokens */
    int update_history;       /* 1: the op counts the chosen token in `history` */
    int top;                  /* the number of columns of top_token and top_log_prob: 0 to 128, and at most the
                               * vocabulary */
} te_sampling;

/* ---- sequences of different lengths, in kernels ------------------------------------------------------------------ */

/* Which rows belong to which sequence: sequence i has rows first[i] to first[i + 1] - 1, where first[0] is taken to be
 * 0. `first` lies in target memory, and the host does not check its values. Therefore kernels clip a sequence if the
 * values of `first` do not ascend, if they exceed `rows`, or if they make the sequence longer than max_seqlen. The
 * results are then meaningless, but all accesses stay in bounds and every kernel ends. Rows after the last sequence may
 * be left unwritten. */
typedef struct te_sequences {
    const int32_t *first; /* [count + 1]: the first row of each sequence, i.e. the cu_seqlens of the batch. Null: each
                           * sequence has max_seqlen rows */
    int count, max_seqlen, rows; /* count: the number of sequences; max_seqlen: the largest length allowed; rows: the
                                  * number of rows of all sequences together */
} te_sequences;
typedef struct te_sequence { int first, count; } te_sequence; /* first row, number of rows */

/* Return the first row of sequence i, clipped to the range from 0 to `rows`. */
TE_BOTH int te_sequence_first(const te_sequences *s, int i) {
    const int row = !i ? 0 : s->first ? s->first[i] : i * s->max_seqlen;
    return row < 0 ? 0 : row > s->rows ? s->rows : row;
}
/* Return the rows of sequence i from row `from` on. If the values of s->first are wrong, sequence i may begin before
 * row `from`; the rows of sequence i before `from` then count as rows of earlier sequences. */
TE_BOTH te_sequence te_sequence_from(const te_sequences *s, int i, int from) {
    const int first = te_sequence_first(s, i), end = te_sequence_first(s, i + 1);
    te_sequence q;
    q.first = first > from ? first : from, q.count = end > q.first ? end - q.first : 0;
    if (q.count > s->max_seqlen) q.count = s->max_seqlen;
    return q;
}
TE_BOTH te_sequence te_sequence_rows(const te_sequences *s, int i) { return te_sequence_from(s, i, 0); }

/* Return how many tile numbers there are if each sequence is cut into tiles of `size` rows, beginning at the sequence's
 * first row. The tiles of sequence i have consecutive numbers; the first number is f / size + i, where f is the first
 * row of the sequence. Some numbers, at most one for each sequence, belong to no tile. */
TE_BOTH int te_sequence_tiles(const te_sequences *s, int size) { return s->rows / size + s->count; }
/* Find, by binary search, the sequence to which tile number `tile` belongs. If no tile has this number, return the last
 * sequence whose tiles have lower numbers. If `size` is 0, `tile` is the index of a row instead, and the function
 * returns the sequence of this row. */
TE_BOTH int te_sequence_of(const te_sequences *s, int tile, int size) {
    int low = 0, high = s->count; /* the loop keeps the index of the sequence in [low, high) */
    if (!s->first && size == 0) return tile / s->max_seqlen;
    while (high - low > 1) {
        const int i = low + (high - low) / 2, first = te_sequence_first(s, i);
        if ((size ? first / size + i : first) <= tile) low = i;
        else high = i;
    }
    return low;
}
/* Return the index of a row within its sequence. */
TE_BOTH int te_sequence_position(const te_sequences *s, int row) {
    if (!s->first) return row % s->max_seqlen;
    return row - te_sequence_first(s, te_sequence_of(s, row, 0));
}
/* Return the position of a row within its sequence. `c` says which part of the sequences this rank has; `row` is a row
 * of this part. If s->first is not null, s->first counts the rows of all ranks of the context group. */
TE_BOTH int te_cp_sequence_position(const te_sequences *s, te_cp_shard c, int row) {
    if (!s->first) return te_cp_position(c, te_sequence_position(s, row), s->max_seqlen);
    return te_sequence_position(s, c.ranks > 1 ? te_cp_position(c, row, s->rows / c.ranks) : row);
}
TE_BOTH te_sequences te__sequences_of_batch(const te_batch *b) {
    te_sequences s;
    s.first = b->cu_seqlens, s.count = b->sequences ? b->sequences : b->batch, s.rows = b->batch * b->seq;
    s.max_seqlen = b->sequences ? (b->max_seqlen < s.rows ? b->max_seqlen : s.rows) : b->seq;
    return s;
}
/* Return how many tokens of the sequence to which `row` belongs are already in the cache: past[index of this sequence],
 * or 0 if `past` is null. */
TE_BOTH int te_sequence_past(const te_sequences *s, int row, const int32_t *past) {
    const int count = past ? past[te_sequence_of(s, row, 0)] : 0;
    return count > 0 ? count : 0;
}

/* A cursor that finds, for one tile after another, the sequence to which the tile belongs. The cursor is meant for a
 * thread that asks for tiles in ascending order; if the thread asks for a lower tile, the search restarts at sequence
 * 0. Each tile is visited once, even if the values of te_sequences.first are wrong: a sequence that begins before the
 * end of the previous sequence is then taken to begin at this end. */
typedef struct te_sequence_cursor {
    te_sequence at;  /* the current sequence */
    int index, tile; /* index: the index of the current sequence; tile: the number of the first tile of the current
                      * sequence */
    int next;        /* the first row of the next sequence */
    int next_tile;   /* the number of the first tile of the next sequence */
} te_sequence_cursor;

/* Move the cursor to sequence i, leaving out the sequence's rows that lie before row `from`. `size` is the number of
 * rows of a tile. */
TE_BOTH void te__sequence_cursor_enter(te_sequence_cursor *w, const te_sequences *s, int i, int from, int size) {
    w->index = i, w->at = te_sequence_from(s, i, from), w->tile = w->at.first / size + i;
    w->next = te_sequence_first(s, i + 1);
    if (w->next < w->at.first) w->next = w->at.first;
    w->next_tile = w->next / size + i + 1;
}
TE_BOTH te_sequence_cursor te_sequence_cursor_begin(const te_sequences *s, int size) {
    te_sequence_cursor w;
    te__sequence_cursor_enter(&w, s, 0, 0, size);
    return w;
}
/* Move the cursor to the sequence of tile number `tile`. `size` is the number of rows of a tile. */
TE_BOTH void te_sequence_cursor_seek(te_sequence_cursor *w, const te_sequences *s, int tile, int size) {
    if (tile < w->tile) te__sequence_cursor_enter(w, s, 0, 0, size);
    while (tile >= w->next_tile && w->index + 1 < s->count)
        te__sequence_cursor_enter(w, s, w->index + 1, w->next, size);
}

#endif
