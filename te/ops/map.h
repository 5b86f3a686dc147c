/* map.h -- what a map is given: an op that works on eight elements of a row at a time, alone or in a row of the fusion
 * list.
 *
 *     te_<family>_forward(float v[8], const te_stage *s, te_place at, const void *options)
 *     te_<family>_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options)
 *
 * v is x and becomes y; in backward it is dy and becomes dx. Elements from at.n on do not exist: what is computed for
 * them is not stored, and must only not trap. `options` points to the op's te_<family>_options, constants all.
 * CONTRIBUTING.md shows how to add one.
 */
#ifndef TE_OPS_MAP_H
#define TE_OPS_MAP_H

#include "../core/dtype.h"  /* te_load8, te_vec8 */
#include "../core/philox.h" /* te_rng */
#include "../plan/model.h"  /* TE_MAX_PARAMS */

/* Number formats of what an op meets in memory. */
typedef struct te_formats {
    te_dtype in, out; /* its input and output in forward */
    te_dtype edge;    /* what a fork keeps */
    te_dtype weight;  /* its parameters */
    int own;          /* what an op reads of its fork, and a fork of its readers in backward, this kernel has stored */
    int joins;        /* backward: the op stores the gradient of what its fork kept by itself (te_hand_over8) */
} te_formats;

TE_BOTH te_formats te_formats_of(int in, int out, int edge, int weight) {
    te_formats f;
    f.in = (te_dtype)in, f.out = (te_dtype)out, f.edge = (te_dtype)edge, f.weight = (te_dtype)weight;
    f.own = f.joins = 0;
    return f;
}

/* Where eight elements lie. */
typedef struct te_place {
    int64_t row;
    int col, n;        /* column of the first; how many exist (8 but at the end of an odd row) */
    int width, halves; /* a row has width * halves elements: two halves beside a gated op */
    int aligned;
    te_formats format;
    const struct te_stage *ahead_of; /* the op whose tensor of the row's shape has been loaded ahead, null: none */
    te_vec8 ahead, ahead_second;     /* of 16 bits; of a row of two halves what belongs to the second */
} te_place;
/* Index of the first element in a tensor that has the row's shape. */
TE_FN int64_t te_index(te_place at) { return at.row * ((int64_t)at.width * at.halves) + at.col; }

/* What one op of a kernel works with. */
typedef struct te_stage {
    const void *w[TE_MAX_PARAMS]; /* its parameters; null: already applied by the matrix product before. mul in
                                     backward: what its fork kept */
    const void *edge;             /* add, mul: what the fork kept; in backward, and there of a fork, the gradient that
                                     its readers have left. null: nothing */
    const void *saved;            /* backward: its input in forward, [rows, in] */
    void *out;                    /* the value behind it is stored here, null: not */
    float *stats;                 /* [rows, stats] */
    float *sum[TE_MAX_PARAMS];    /* backward: partial sums for its parameters' gradients, [blocks, width] */
    const te_rng *rng;            /* the random state of this forward */
    int64_t first;                /* dropout: the tensor's first element among those of all ranks */
    uint32_t id;                  /* its place in the list: the random stream */
} te_stage;

/* Eight elements of s->saved (of format at.format.in) or s->edge (at.format.edge), which have the row's shape. */
TE_FN void te_read8(float v[8], const void *p, te_dtype dtype, const te_stage *s, te_place at) {
    if (s == at.ahead_of) te_vec8_floats(v, &at.ahead, dtype);
    else if (at.format.own && p == s->edge) te_load8_own(v, p, te_index(at), at.n, at.aligned, dtype);
    else te_load8(v, p, te_index(at), at.n, at.aligned, dtype);
}
TE_FN te_place te_second_half(te_place at) {
    at.col += at.width, at.ahead = at.ahead_second;
    return at;
}

#endif
