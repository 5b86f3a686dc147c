/* pointwise_kernel.h -- the device function that every pointwise kernel runs. The function decides on which rows a
 * group of lanes works, runs the kernel's body on these rows, and at the end stores the partial sums and the amax.
 */
#ifndef TE_POINTWISE_KERNEL_H
#define TE_POINTWISE_KERNEL_H

#include "pointwise_norm.h" /* te_norm_forward */

/* Add up the sums over rows of all groups of lanes in the thread block, and store each total as the block's partial sum
 * of a parameter's gradient. */
TE_FN void te_pointwise_store_sums(const te_pointwise *c, const te_pointwise_shape k, te_lanes g, int group, int tile,
                                   int block, float *sums) {
    const int size = 8 * k.chunks, code = k.norm_options.code, several = k.sum_params > 1;
    TE_UNROLL for (int slot = 0; slot < TE_SUM_SLOTS; slot++) {
        const int of_norm = slot >= TE_SUM_GAMMA && !several, halves = of_norm ? 1 : k.sum_halves;
        const int has_param = slot == TE_SUM_GAMMA ? te_norm_has_gamma(code) : te_norm_has_beta(code);
        if (of_norm && (k.norm < 0 || !has_param)) continue;
        if (!of_norm && (k.sums < 0 || slot >= (several ? k.sum_params : halves))) continue;
        float *out = c->op[of_norm ? 0 : k.sums].sum[of_norm ? slot - TE_SUM_GAMMA : several ? slot : 0];
        te_groups_sum(sums + slot * size, size, g, k.groups);
        if (group || !out) continue;
        TE_UNROLL for (int i = 0; i < k.chunks; i++) {
            const te_place at = te_place_of(k, block, tile + g.id + i * g.count, halves);
            /* dgamma and dbeta have only the columns that the norm normalises */
            if (of_norm && k.norm_columns) {
                const int64_t part = (int64_t)block * k.norm_columns + at.col - k.norm_first;
                if (at.col < k.half && te_norm_has_columns(k, at.col))
                    te_store8(out, part, sums + slot * size + 8 * i, 8, 1, TE_f32);
                continue;
            }
            const int64_t to = te_index(at) + (slot == TE_SUM_SECOND_HALF && !several ? k.half : 0);
            if (at.col < k.half) te_store8(out, to, sums + slot * size + 8 * i, at.n, at.aligned, TE_f32);
        }
    }
}

/* The type of a function that runs a kernel's ops on the rows of one group of lanes, which *p describes. */
typedef void (*te_pointwise_rows_fn)(const te_pointwise *c, te_stages_fn stages, te_store_fn store,
                                     const te_pointwise_shape k, te_lanes *g, const te_pointwise_part *p);
TE_FN void te_pointwise_rows_quantized(const te_pointwise *c, te_stages_fn stages, te_store_fn store,
                                       const te_pointwise_shape k, te_lanes *g, const te_pointwise_part *p) {
    const int adjacent = te_map_is_adjacent(k);
    if (k.scaled != TE_SCALING_NONE)
        te_quantized_map_body(c, stages, store, k, g, p, adjacent);
    else if (adjacent) te_pointwise_rows_adjacent(c, stages, store, k, g, p);
    else te_pointwise_rows_strided(c, stages, store, k, g, p);
}
TE_FN void te_pointwise_rows_norm(const te_pointwise *c, te_stages_fn stages, te_store_fn store,
                                  const te_pointwise_shape k, te_lanes *g, const te_pointwise_part *p) {
    for (int64_t row = p->first; row < c->rows; row += p->step)
        te_norm_forward(c, stages, store, k, g, te_norm_row_of(row, p->rows, p->amax_bits, 0), te_norm_row_load,
                        te_norm_store);
}
TE_FN void te_pointwise_rows_norm_quantized(const te_pointwise *c, te_stages_fn stages, te_store_fn store,
                                            const te_pointwise_shape k, te_lanes *g, const te_pointwise_part *p) {
    for (int64_t row = p->first; row < c->rows; row += p->step)
        te_norm_forward(c, stages, store, k, g, te_norm_row_of(row, p->rows, p->amax_bits, 0), te_norm_row_load,
                        te_norm_store_quantized);
}
TE_FN void te_pointwise_rows_norm_backward(const te_pointwise *c, te_stages_fn stages, te_store_fn store,
                                       const te_pointwise_shape k, te_lanes *g, const te_pointwise_part *p) {
    te_vec8 *rows = p->rows;
    const te_norm_registers m = {rows + 2 * k.chunks, rows + 3 * k.chunks, rows, rows + k.chunks,
                                 rows + 4 * k.chunks, p->amax_bits, p->sums, p->smem_gamma};
    te_norm_backward_rows(c, stages, store, k, g, p->first, p->step, &m);
}
/* The body of the pointwise kernel `name`. The macro selects the body by constants, so that only the selected body is
 * compiled. Inlining all bodies and discarding the unused ones afterwards took half of the compile time of a pointwise
 * kernel. */
#define TE_POINTWISE_ROWS_OF(name)                                                                          \
    ((int)name##_scaled != (int)TE_SCALING_NONE                                                         \
         ? (name##_norm < 0 ? te_pointwise_rows_quantized : te_pointwise_rows_norm_quantized)                         \
     : name##_norm < 0 ? (TE_CUDA && name##_sums < 0 ? te_pointwise_rows_adjacent : te_pointwise_rows_strided)      \
     : name##_is_backward ? te_pointwise_rows_norm_backward                                                 \
                          : te_pointwise_rows_norm)

/* The device function of every pointwise kernel. The caller sets p.sums, p.rows and p.smem_gamma; te_pointwise_body
 * sets the other members of p. */
TE_FN void te_pointwise_body(const te_pointwise *c, te_block b, te_stages_fn stages, te_store_fn store,
                             te_pointwise_rows_fn rows_of, const te_pointwise_shape k, te_pointwise_part p) {
    int group, one;
    uint32_t amax_bits = 0;
    te_lanes g = te_lanes_here(k.lanes, &group);
    const int summing = k.sums >= 0 || (k.backward && k.norm >= 0), adjacent = te_map_is_adjacent(k);
    const int tiles = te_pointwise_tiles(k), tile = b.x % tiles * k.chunks * k.lanes,
              block = b.x / tiles; /* thread blocks with the same `block` work on the same rows, but on different
                                    * columns */
    const int64_t first = (int64_t)block * k.groups * (adjacent ? te_map_batch(k) : 1) + group;
    const int64_t step = adjacent ? k.groups : (int64_t)(b.nx / tiles) * k.groups;
    if (!k.backward && c->take.taken && b.x == 0 && group == 0 && g.id == 0) te_rng_take_body(&c->take);
    if (summing) TE_UNROLL for (int i = 0; i < TE_SUM_SLOTS * 8 * k.chunks; i++) p.sums[i] = 0;
    p.tile = tile, p.first = first, p.step = step, p.amax_bits = &amax_bits;
    rows_of(c, stages, store, k, &g, &p);
    if (summing) te_pointwise_store_sums(c, k, g, group, tile, block, p.sums);
    te_pointwise_store_amax(c, k, b, te_lanes_here(k.lanes * k.groups, &one), amax_bits);
}

#endif
