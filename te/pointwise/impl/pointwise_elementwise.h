/* pointwise_elementwise.h -- how elementwise and gated ops run on a lane's eight elements, and the bodies of pointwise
 * kernels without a norm.
 */
#ifndef TE_POINTWISE_ELEMENTWISE_H
#define TE_POINTWISE_ELEMENTWISE_H

#include "pointwise.h" /* te_pointwise, te_lane, te_pointwise_shape */

typedef void (*te_map_forward_fn)(float v[8], const te_stage *s, te_place at, const void *options);
typedef void (*te_map_backward_fn)(float v[8], float sum[8], const te_stage *s, te_place at, const void *options);
typedef void (*te_gated_forward_fn)(float v[8], const float g[8], const te_stage *s, te_place at, const void *options);
typedef void (*te_gated_backward_fn)(float v[8], float g[8], const te_stage *s, te_place at, const void *options);

/* If s->out is not null, store the op's output to s->out, and round the value in registers to the stored format. So the
 * following ops compute from the same numbers that backward reads. */
TE_FN void te_store_saved(te_lane *l, const te_stage *s, te_dtype dtype) {
    if (!s->out) return;
    te_store8_rounded(s->out, te_index(l->at), l->v, l->at.n, l->at.aligned, dtype);
    if (l->at.halves == 2)
        te_store8_rounded(s->out, te_index(te_second_half(l->at)), l->g, l->at.n, l->at.aligned, dtype);
}
TE_FN void te_map_forward(te_lane *l, const te_stage *s, te_map_forward_fn f, const void *options, te_formats formats) {
    l->at.format = formats;
    f(l->v, s, l->at, options);
    if (l->at.halves == 2) f(l->g, s, te_second_half(l->at), options);
    te_store_saved(l, s, formats.out);
}
/* Run the backward function f of an elementwise op. In backward, s->out is the memory for the gradient of a fork's
 * value. The function f stores this gradient for a mul, and for an add whose fork has other uses
 * (formats.stores_fork_grad). For any other add, te_map_backward stores the gradient that passes through the add, which
 * equals the fork's gradient. */
TE_FN void te_map_backward(te_lane *l, const te_stage *s, te_map_backward_fn f, const void *options,
                           te_formats formats) {
    l->at.format = formats;
    f(l->v, l->sum, s, l->at, options);
    if (l->at.halves == 2) f(l->g, l->sum + 8, s, te_second_half(l->at), options);
    if (!formats.stores_fork_grad) te_store_saved(l, s, formats.edge);
}
TE_FN void te_gate_forward(te_lane *l, const te_stage *s, te_gated_forward_fn f, const void *options,
                           te_formats formats) {
    l->at.format = formats;
    f(l->v, l->g, s, l->at, options);
    l->at.halves = 1;
    te_store_saved(l, s, formats.out);
}
TE_FN void te_gate_backward(te_lane *l, const te_stage *s, te_gated_backward_fn f, const void *options,
                            te_formats formats) {
    l->at.format = formats;
    l->at.halves = 2;
    f(l->v, l->g, s, l->at, options);
}

/* A lane sums gradients of parameters over its rows, in four slots: two for the gradient of a parameter such as a bias
 * (first and second half of a row), one for dgamma, and one for dbeta. An op with two or three parameters uses one of
 * the first slots for each parameter. The slots lie in registers, [TE_SUM_SLOTS][chunks][8] floats, where `chunks` is
 * the number of vectors of eight columns that the lane has. */
enum { TE_SUM_GRADIENT, TE_SUM_SECOND_HALF, TE_SUM_GAMMA, TE_SUM_BETA, TE_SUM_SLOTS };

/* The elements on which a lane works: columns 8 * vector to 8 * vector + 7 of the rows row, row + step, row + 2 * step,
 * and so on. sums: the lane's sums over these rows. amax_bits: the bits of the largest |y| that the lane has stored so
 * far. */
typedef struct te_map_slice {
    int64_t row, step;
    int vector;
    float *sums;
    uint32_t *amax_bits;
} te_map_slice;
/* Run the kernel's ops on the first `count` rows of slice s (eight columns of several rows). All `count` rows are
 * loaded before the first row is computed, so that the loads overlap. */
TE_FN void te_map_rows(const te_pointwise *c, te_stages_fn stages, te_store_fn store, const te_pointwise_shape k,
                       const te_map_slice s, const int count) {
    /* the index of slot 1 (the second half of a row) in the lane's sums; slot 0 is the first half */
    const int second = 8 * k.chunks;
    te_lane l[TE_MAP_ROWS];
    TE_UNROLL for (int r = 0; r < count; r++) te_load_lane(&l[r], c->x, k, s.row + r * s.step, s.vector);
    TE_UNROLL for (int r = 0; r < count; r++) {
        TE_UNROLL for (int slot = 0; k.sums >= 0 && slot < (k.sum_params > 2 ? 3 : 2); slot++)
            TE_UNROLL for (int j = 0; j < 8; j++) l[r].sum[8 * slot + j] = s.sums[slot * second + j];
        stages(&l[r], c, 0, TE_MAX_PATTERN);
        TE_UNROLL for (int slot = 0; k.sums >= 0 && slot < (k.sum_params > 2 ? 3 : 2); slot++)
            TE_UNROLL for (int j = 0; j < 8; j++) s.sums[slot * second + j] = l[r].sum[8 * slot + j];
        store(c, &l[r], k, s.amax_bits);
    }
}

/* Return whether each thread block works on only one batch of neighbouring rows. Otherwise each block loops over the
 * tensor with a stride, so that the blocks of the grid share the rows. */
TE_FN int te_map_is_adjacent(const te_pointwise_shape k) { return TE_CUDA && k.norm < 0 && k.sums < 0; }

/* Return slice number i of this lane (eight columns of several rows). g: the lane's group. p: the rows of the group,
 * and the number of its first vector of eight columns. */
TE_FN te_map_slice te__map_slice_of(const te_pointwise_part *p, const te_lanes *g, int i) {
    te_map_slice s;
    s.row = p->first, s.step = p->step, s.vector = p->tile + g->id + i * g->count;
    s.sums = p->sums + 8 * i, s.amax_bits = p->amax_bits;
    return s;
}
/* The body of a kernel without a norm, in which each block works on a range of columns (a tile) of neighbouring rows,
 * te_map_batch(k) rows at a time. */
TE_FN void te_pointwise_rows_adjacent(const te_pointwise *c, te_stages_fn stages, te_store_fn store,
                                      const te_pointwise_shape k, te_lanes *g, const te_pointwise_part *p) {
    const int batch = te_map_batch(k);
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        te_map_slice s = te__map_slice_of(p, g, i);
        if (s.vector * 8 >= k.half) continue;
        if (s.row + (batch - 1) * s.step < c->rows) te_map_rows(c, stages, store, k, s, te_map_batch(k));
        else
            for (int r = 0; r < batch && s.row < c->rows; r++, s.row += s.step)
                te_map_rows(c, stages, store, k, s, 1);
    }
}
/* The body of a kernel without a norm, in which each block works on a range of columns (a tile) of the rows p->first,
 * p->first + p->step, and so on up to the last row. */
TE_FN void te_pointwise_rows_strided(const te_pointwise *c, te_stages_fn stages, te_store_fn store,
                                     const te_pointwise_shape k, te_lanes *g, const te_pointwise_part *p) {
    const int batch = te_map_batch(k);
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        te_map_slice s = te__map_slice_of(p, g, i);
        if (s.vector * 8 >= k.half) continue;
        for (; s.row + (batch - 1) * s.step < c->rows; s.row += batch * s.step)
            te_map_rows(c, stages, store, k, s, te_map_batch(k));
        for (; s.row < c->rows; s.row += s.step) te_map_rows(c, stages, store, k, s, 1);
    }
}

#endif
