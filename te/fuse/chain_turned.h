/* chain_turned.h -- a chain's result in FP8 for a product with one scale a tensor, in tiles, so that its transpose is
 * stored in the same pass: the gradient that a chain of maps hands on, as it lies and transposed, with its amax and the
 * sums over rows; and what backward makes again of forward, the transpose alone. The bits are those of the kernel for
 * rows and a transpose behind it.
 *
 * A block has a tile of 128 x 128, a lane 8 x 8 of its elements, as in chain_tiles.h. The scale is known: a lane rounds
 * its rows as it makes them. Bytes an element of a bf16 list: a gradient 2 + 1 + 1 and what its ops read, where the
 * kernel for rows and the transpose move 2 + 1 + 1 + 1; a result again 2 + 1. The floor is a copy of as many. One H200
 * under a profiler, between products in FP8, each with its wait for the kernel before: add_dropout_bias with its sums,
 * 8192 x 4096, 45 us and 70 for the transpose behind it, 56 in one pass. At that clock instructions dominate.
 *
 * A norm in front of a product whose input is kept has two kernels, 2 + 1 and 1 + 1 bytes. What did not pay is one of
 * persistent clusters, a block 32 rows of 256 columns: copies of three tiles ahead by TMA, each row's mean and squares
 * sent to all blocks of the cluster, both forms stored from one pass. Over a copy of 2 + 1 + 1 bytes, with an add and a
 * fork 6 + 1 + 1, 32768 x 4096, one H100 and one H200: layernorm 0.83 and 0.62, rmsnorm 0.82 and 0.76, with an add 0.90
 * and 0.77 to 0.86; in us on the H200, and in two kernels: 206 and 194, 169 and 178, 343 and 309 (layernorm), 309 and
 * 300 (rmsnorm); 32768 x 8192 369 and 399, 307 and 351, 704 and 624, 658 and 607. Its 206 us are 330 cycles of a
 * scheduler for each 256 elements; the memory of an H100 takes as long.
 */
#ifndef TE_FUSE_CHAIN_TURNED_H
#define TE_FUSE_CHAIN_TURNED_H

#include "chain_tiles.h" /* te__chain_tiles_row */

/* Eight elements: into x as FP8 and, of a gradient, stored where they lie. rounded, a constant: to the list's format
 * first. */
TE_FN void te__chain_turned_store(const te_chain *c, const te_chain_shape k, te_place at, te_vec8 *x, float v[8],
                                  float scale, const int rounded, uint32_t *most) {
    if (rounded) te_vec8_of_pairs(x, v, k.out), te_vec8_floats(v, x, k.out);
    if (k.backward) *most = te_amax_bits8(*most, v);
    TE_UNROLL for (int j = 0; j < 8; j++) v[j] *= scale;
    te_vec8_of_fp8(x, v, (te_dtype)k.fp8);
    if (k.backward && c->fp8.y) te__fp8_store_row((uint8_t *)c->fp8.y, te_index(at), x->w, 8, 1);
}
/* Piece i, whose rows become FP8 where they are held. Forward's rows behind the last one are computed like others: of
 * them nothing is stored, and no op reads what lies by rows but the row itself. */
TE_FN void te__chain_turned_piece(const te_chain *c, te_stages_fn stages, const te_chain_shape k, te_vec8 *x[2],
                                  te__tile_piece at, const te__piece_norm *n, const int rounded, float sums[16],
                                  uint32_t *most) {
    const float scale = te_load_scale(c->scaled.scale);
    TE_UNROLL for (int j = 0; j < 16; j++) sums[j] = 0;
    if (!at.rows) return;
    TE_UNROLL for (int r = 0; r < 8; r++) {
        te_lane l;
        l.at = te_place_of(k, at.row + r, at.vector, k.norm < 0 ? k.in_halves : 1);
        if (k.backward && r >= at.rows) continue; /* zeros, in FP8 as well */
        te__chain_tiles_row(c, stages, k, &l, &x[0][r], &x[1][r], n, r, sums);
        l.at = te_place_of(k, at.row + r, at.vector, 1); /* behind a gated op a row is half as wide */
        te__chain_turned_store(c, k, l.at, &x[0][r], l.v, scale, rounded, most);
    }
}
/* What of a forward's chain its kernel knows where it makes the result of op `last` again: that op alone runs, and
 * nothing but the transpose is stored. */
TE_FN void te__chain_know_again(te_chain *again, const te_chain *c, const int last) {
    memset(again, 0, sizeof *again);
    again->x = c->x, again->rows = c->rows, again->scaled = c->scaled, again->scaled.from = last;
    again->op[last] = c->op[last], again->op[last].out = 0;
}
/* The tile transposed, from the FP8 that the lanes hold. */
TE_FN void te__chain_turned_put(const te_fp8_out *out, te_tiles_held *held, te_fp8_shared *turned, te_lanes g,
                                int64_t row, int64_t col) {
    TE_UNROLL for (int h = 0; h < TE_TILES_HELD; h++) {
        const int i = g.id + h * g.count;
        uint32_t word[8][2];
        TE_UNROLL for (int r = 0; r < 8; r++) word[r][0] = held->x[h][r].w[0], word[r][1] = held->x[h][r].w[1];
        te__fp8_turn(turned, word, i / TE_TILES_SIDE * 8, i % TE_TILES_SIDE * 8);
    }
    te_block_sync();
    te__fp8_store_tile(out, turned, row, col, g);
}
/* last: the row's last op. */
TE_FN void te_chain_turned_body(const te_chain *chain, te_block b, te_stages_fn stages, const te_chain_shape k,
                                const int last, te_chain_tiles_held *held, te_tiles_shared *s) {
    int group;
    uint32_t most = 0;
    te_chain again;
    const te_chain *c = k.backward ? chain : &again;
    const te_lanes g = te_lanes_here(TE_FP8_THREADS, &group);
    const te_tiles_args a = te__chain_tiles_args(chain, k);
    const int across = (int)te_ceil_div(k.half, TE_FP8_TILE);
    const int64_t row = (int64_t)(b.x / across) * TE_FP8_TILE, col = (int64_t)(b.x % across) * TE_FP8_TILE;
    if (!k.backward) te__chain_know_again(&again, chain, last);
    TE_UNROLL for (int h = 0; h < TE_TILES_HELD; h++) {
        const int i = g.id + h * g.count;
        const te__tile_piece at = te__chain_tiles_piece_at(c, k, row, col, i);
        te_vec8 *x[2] = {held->half[0].x[h], held->half[1].x[h]};
        te__piece_norm n;
        float sums[16];
        te__chain_tiles_load(c, k, x, at);
        te__chain_tiles_load_norm(&n, c, k, at);
        if (!k.backward && c->scaled.rounded) te__chain_turned_piece(c, stages, k, x, at, &n, 1, sums, &most);
        else te__chain_turned_piece(c, stages, k, x, at, &n, 0, sums, &most);
        te__chain_tiles_put_sums(s, k, i, sums);
    }
    if (k.sums >= 0) te__chain_tiles_leave_sums(c, k, s, g, row, col);
    if (a.out.yt) te__chain_turned_put(&a.out, &held->half[0], &s->u.turned, g, row, col);
    if (k.backward) te_chain_leave_amax(c, k, b, g, most);
}

/* Launch what the call needs: the kernel for rows, that for tiles, or both. */
typedef te_status (*te__chain_rows_fn)(te_context *ctx, te_grid grid, const te_chain *c);
TE_API te_status te__chain_launch_tiles(te_context *ctx, te_grid grid, const te_chain *c, const te_chain_shape k,
                                        te__chain_rows_fn rows, te__chain_rows_fn tiles) {
    te_chain behind = *c;
    if (!c->scaled.tiles || (k.norm >= 0 && c->scaled.y)) TE_TRY(rows(ctx, grid, c));
    if (!c->scaled.tiles || !c->rows) return TE_OK;
    if (k.norm >= 0) behind.take.taken = 0;
    return tiles(ctx, te_grid_of(te_ceil_div(c->rows, TE_FP8_TILE) * te_ceil_div(k.half, TE_FP8_TILE), 1), &behind);
}

/* The kernels of a chain, by its list's widths and recipe (product.h). Those of a chain that no product with scales of
 * its own reads have no code for it. */
#define TE__CHAIN_OF_fixed(name, model, ...) TE__CHAIN_FEEDS_NONE(name) TE__CHAIN_FIXED(name, __VA_ARGS__)
#define TE__CHAIN_OF_dims(name, model, ...) TE__CHAIN_FEEDS_NONE(name) TE__CHAIN_DIMS(name, __VA_ARGS__)
#define TE__CHAIN_OF_fixed_fp8(name, model, dtype, pass, eps, ...) \
    TE__CHAIN_FEEDS(name, model, __VA_ARGS__) TE__CHAIN_FIXED(name, dtype, pass, eps, __VA_ARGS__)
#define TE__CHAIN_OF_dims_fp8(name, model, dtype, pass, eps, ...) \
    TE__CHAIN_FEEDS(name, model, __VA_ARGS__) TE__CHAIN_DIMS(name, dtype, pass, eps, __VA_ARGS__)
#define TE__CHAIN_FEEDS_NONE(name) \
    TE_BOTH int name##_feeds(void) { return 0; }   \
    TE_UNUSED TE_BOTH te_chain_leaves name##_leaves(void) { return TE_LEAVES_y; }
/* The recipe of the op that reads what op i of a list gives, or in backward the gradient of what it got (te_reader_of):
 * of the next one or, as two that hand on do not follow each other, the one behind that. next, second: their facts. */
TE_BOTH int te__recipe_behind(int next, int second, int hands) { return (next & hands ? second : next) & ~TE_HANDS; }
#define TE__RECIPE_BEHIND(model, i, step, hands) \
    te__recipe_behind(model##_facts_at((i) + (step)), model##_facts_at((i) + 2 * (step)), hands)
/* Of the recipe of the op behind the chain: whether that reads scales of its own, and what the chain leaves for it. */
TE_BOTH int te__chain_feeds(int recipe) { return TE_IS_TILED(recipe) || TE_IS_BY_ROW(recipe); }
TE_BOTH te_chain_leaves te__chain_leaves(int recipe) {
    if (!TE_IS_BY_TENSOR(recipe)) return TE_LEAVES_y;
    return recipe == (int)TE_RECIPE_fp8_current ? TE_LEAVES_amax : TE_LEAVES_fp8;
}
#define TE__CHAIN_FEEDS(name, model, ...)                                                                    \
    TE_BOTH int name##_next_recipe(void) {                                                                   \
        return TE__RECIPE_BEHIND(model, (int)TE_ID(model, TE_ROW_LAST(__VA_ARGS__)),                         \
                                 name##_is_backward ? -1 : 1,                                                \
                                 name##_is_backward ? (int)TE_HANDS_BACK : (int)TE_HANDS_ON);                \
    }                                                                                                        \
    TE_BOTH int name##_feeds(void) { return te__chain_feeds(name##_next_recipe()); }                         \
    TE_UNUSED TE_BOTH te_chain_leaves name##_leaves(void) { return te__chain_leaves(name##_next_recipe()); }
/* The kernels of a chain of a list that trains, with constant widths. */
#define TE__CHAIN_OF_fixed_tiled(name, model, dtype, pass, eps, ...)                                                 \
    TE__CHAIN_FEEDS(name, model, __VA_ARGS__)                                                                        \
    TE_BOTH int name##_has_tiles(void) { return TE__CHAIN_TURNS(name) && name##_feeds(); }                           \
    TE_BOTH int name##_is_again(void) { return TE__CHAIN_AGAIN(name, model, dtype, TE_ROW_LAST(__VA_ARGS__)); }      \
    TE_BOTH int name##_is_turned(void) {                                                                             \
        return name##_is_backward && TE__CHAIN_TURNS(name) && name##_leaves() == TE_LEAVES_fp8 &&                    \
               !((int)name##_kept >> 16) && (0 TE_ROW(TE__CHANGES, ~, __VA_ARGS__)) > 0;                             \
    }                                                                                                                \
    TE_IF_MARKED(TE_ROW(TE__NORM_MARK, ~, __VA_ARGS__), TE_JOIN1(TE__CHAIN_NORM_, pass), TE__CHAIN_MAP)              \
    (name##_row, name, dtype, pass, eps, TE_CHAIN_LANES, 1)                                                          \
    TE_BOTH te_chain_shape name##_shape(int half) {                                                                  \
        te_chain_shape k = name##_row_shape(half);                                                                   \
        k.turns = name##_has_tiles() || name##_is_turned();                                                          \
        if (name##_has_tiles()) k.scaled = TE_SCALING_TILES;                                                         \
        return k;                                                                                                    \
    }                                                                                                                \
    TE_FN void name##_tiles_body(const te_chain *c, te_block b, te_chain_tiles_held *held, te_tiles_shared *s) {     \
        if (name##_has_tiles()) te_chain_tiles_body(c, b, name##_stages, name##_shape(0), held, s);                  \
        else if (name##_is_again() || name##_is_turned())                                                            \
            te_chain_turned_body(c, b, name##_stages, name##_shape(0), TE_ROW_COUNT(__VA_ARGS__) - 1, held, s);      \
    }                                                                                                                \
    TE_KERNEL_WITH(name##_tiles, TE_FP8_THREADS, TE__CHAIN_TILES_RESIDENT(name), te_chain, te_chain_tiles_held,      \
                   te_tiles_shared, name##_tiles_body)                                                               \
    TE_API te_status name##_launch(te_context *ctx, te_grid grid, const te_chain *c) {                               \
        return te__chain_launch_tiles(ctx, grid, c, name##_shape(0), name##_row_launch, name##_tiles_launch);        \
    }
/* Whether a product with one scale a tensor reads what the last op gives, and backward may make it again
 * (te__gives_again). */
#define TE__CHAIN_AGAIN(name, model, dtype, op)                                                               \
    (!name##_is_backward && !(int)model##_keeps_inputs &&                                                     \
     TE_IS_BY_TENSOR(TE__RECIPE_BEHIND(model, (int)TE_ID(model, op), 1, (int)TE_HANDS_ON)) &&                 \
     (TE_FLAGS(op) & TE_SAVES_INPUT) && !(TE_FLAGS(op) & TE_DRAWS) &&                                         \
     (int)TE_DTYPE_OUT(model, op) == (int)TE_##dtype)
/* Ops that may change the gradient that they hand on. A row is turned where one does, and none reads by rows what
 * forward has kept (name##_kept): the loads of that would wait for one another. */
#define TE__CHANGES(x, i, op) +((TE_FLAGS(op) & TE_KEEPS_GRAD) == 0)
/* Whether there can be a kernel for tiles: they do not reach from one half of a result to the other. There is one where
 * a product reads them. */
#define TE__CHAIN_TURNS(name)                                                                                        \
    (name##_half % 16 == 0 && !name##_sums_three && !(name##_is_backward && name##_norm >= 0) &&                     \
     (name##_out_halves == 1 || (int)name##_half % TE_FP8_TILE == 0))
/* Blocks on a multiprocessor, 32768 x 4096 on an H200: with 2, 3 and 4 gelu takes 212, 181 and 169 us, its backward
 * with dbias 367, 316 and 277; swiglu 209 with 2 and 205 with 3, its backward, where a lane has both halves of a row,
 * 478 with 2 and 505 with 3. */
#define TE__CHAIN_TILES_RESIDENT(name)                                                \
    (name##_out_dtype == (int)TE_f32 || name##_out_halves > 1                      ? 2 \
     : name##_in_halves > 1 || (int)name##_norm >= 0 || (int)name##_draws          ? 3 \
     : (int)name##_is_backward && (int)name##_reads >= 0                           ? 3 \
                                                                                   : 4)

#endif
