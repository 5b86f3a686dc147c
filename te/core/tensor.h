/* tensor.h -- a view of rows x cols numbers that somebody else owns, and what a call brings along beside it.
 *
 * Do this:
 *     te_tensor x = te_matrix(buffer, TE_bf16, batch * seq, hidden);
 */
#ifndef TE_TENSOR_H
#define TE_TENSOR_H

#include "dtype.h" /* te_dtype */

/* Row-major, contiguous: element (r, c) lies at data[r * cols + c]. */
typedef struct te_tensor {
    void *data;
    te_dtype dtype;
    int64_t rows, cols;
} te_tensor;

TE_API te_tensor te_matrix(void *data, te_dtype dtype, int64_t rows, int64_t cols) {
    te_tensor t;
    t.data = data, t.dtype = dtype, t.rows = rows, t.cols = cols;
    return t;
}
/* No tensor: for a dx that nobody needs, or the x of a list that begins with an embedding. */
TE_API te_tensor te_none(void) { return te_matrix(0, TE_f32, 0, 0); }

/* An extra input or output of a list: the op `(input, name, width)` reads `value`, `(output, name)` writes it.
 * In backward `(input, ...)` writes `grad` (null: not wanted) and `(output, ...)` reads it. All are [rows, width] of
 * the model's dtype. */
typedef struct te_edge {
    const char *name;
    te_tensor value, grad;
} te_edge;

/* What a call brings along beside the tensor. Rows are tokens: row b * seq + t is token t of sequence b, unless
 * cu_seqlens says otherwise. */
typedef struct te_batch {
    int batch, seq;        /* rows = batch * seq */
    const int32_t *tokens; /* [rows], for an embedding; target memory */
    const int32_t *labels; /* [rows], for cross_entropy; a label equal to ignore_index has no loss */
    int ignore_index;      /* 0: -100, so that a zeroed te_batch leaves no label of the vocabulary out */
    float loss_scale;      /* d(total)/d(loss of one row), where backward is given no dy: often 1 / rows */
    int accumulate;        /* backward adds to the gradients (1) or overwrites them (0) */
    int position;          /* position of the first token of each sequence, for rope and learnt positions */
    const int32_t *positions; /* [rows], rope's position of each row, any number; target memory. null: `position` and
                               * the row's place in its sequence. Backward's are the forward's */
    const te_edge *edges;  /* extra inputs and outputs of the list, by name; others' may stand among them */
    int edge_count;
    /* Sequences that differ in length: the rows, still batch * seq, are those of `sequences` sequences, one behind the
     * other. Sequence i has rows cu_seqlens[i] to cu_seqlens[i + 1]; the first number is 0 and the last is the number
     * of rows. `longest` is a bound of their lengths. A sequence may be empty. On CUDA the host never reads the
     * numbers, so they may change from run to run of a captured graph; what they do when they are wrong is in
     * core/sequences.h. 0, 0, null: `batch` sequences of `seq` rows. */
    int sequences, longest;
    const int32_t *cu_seqlens; /* [sequences + 1], target memory */
    int loss_in_backward; /* 1: a forward that saves may leave the loss to its backward, which then writes y: a list
                           * that ends in linear, cross_entropy computes its logits once so (te/linear/impl/linear_cross_entropy.h) */
    const float *loss_count; /* [1], target memory: backward divides loss_scale by it, so many rows have a loss
                              * (te/ops/loss_mean.h); null: by nothing */
    int memory_seq; /* rows that each of the `batch` sequences has in an (input, .., (rows, memory)), for a list that
                     * has one: row b * memory_seq + t is row t of sequence b's memory */
} te_batch;

#endif
