/* pointwise_quantize_transpose.h -- tile kernels, which store the result of a pointwise kernel in FP8, both
 * untransposed and transposed, in one pass. The GEMM that computes the weight's gradient reads the transpose. The
 * result is bitwise identical to the result of separate passes: one rounds to the dtype of the list of ops, the next
 * quantizes (quantize_blockwise.h) or transposes.
 *
 * A tile kernel stores, depending on the recipe:
 *   fp8_block, training           the result and its transpose, each with a scale for each 128 elements of its rows
 *   recipes with one scale per    in backward, the gradient and its transpose, with a scale that is known before; the
 *   tensor                        gradient's amax; and the sums of the gradient's columns over the rows
 *   recompute in backward         only the transpose, under any recipe, if forward has not saved it
 *
 * A block works on a tile of 128 x 128. Each lane runs the kernel's ops on pieces of 8 x 8 elements of the tile, and
 * holds the pieces in registers. If the pattern has a norm, the row kernel (the ordinary pointwise kernel, in which a
 * group of lanes works on a row) runs first, and stores y and the norm's statistics. The tile kernel then normalises
 * the norm's input a second time, and stores the transpose of the result. If the kernel sums a gradient over rows, each
 * tile stores one partial sum for each of its columns.
 *
 * Lower bound of the time: a copy of as many bytes. Bytes per element in a 16-bit model:
 *   fp8_block                     for gelu 2 (x) + 1 (y) + 1 (the transpose of y) + 1/16 (scales) = 4.06; for gelu's
 *                                 backward 6.06, because dy is also read; for a norm 6.06, because x is read twice
 *   one scale per tensor          2 (dy) + 1 + 1 (the two FP8 layouts), plus the tensors that the ops read
 *   the transpose alone           2 + 1
 * Instructions, not memory, limit the speed of tile kernels. Measurements: docs/notes/pointwise.md.
 */
#ifndef TE_POINTWISE_QUANTIZE_TRANSPOSE_H
#define TE_POINTWISE_QUANTIZE_TRANSPOSE_H

#include "../../fp8/impl/quantize_blockwise.h" /* te__blockwise_store */
#include "pointwise_elementwise.h" /* te_stages_fn, te_lane */
#include "pointwise_norm.h" /* te_norm_of8 */

/* The elements of a tile that a lane holds in registers. half[0]: elements of the first (or only) half of each row;
 * half[1]: elements of the second half, in the backward of a gated op. */
typedef struct te_pointwise_tiles_held { te_blockwise_registers half[2]; } te_pointwise_tiles_held;

/* A piece of 8 x 8 elements: the rows row to row + 7 and the columns 8 * vector to 8 * vector + 7 of a tensor. rows:
 * how many of the eight rows lie inside the tensor. */
typedef struct te__tile_piece { int64_t row; int vector, rows; } te__tile_piece;
/* Return piece number i, 8 x 8 elements, of the tile whose first row is row0 and whose first column is col0. */
TE_FN te__tile_piece te__pointwise_tiles_piece_at(const te_pointwise *c, const te_pointwise_shape k, int64_t row0,
                                                  int64_t col0, int i) {
    te__tile_piece p;
    p.row = row0 + i / TE_BLOCKWISE_LANES_A_SIDE * 8, p.vector = (int)(col0 / 8) + i % TE_BLOCKWISE_LANES_A_SIDE;
    p.rows = te__blockwise_rows(c->rows, k.half, p.row, 8 * p.vector);
    return p;
}
/* A tensor from which a tile is loaded. halves: the number of halves of a row, 1 or (for a gated op) 2. half: which
 * half is loaded, 0 or 1. */
typedef struct te__tile_source {
    const void *data;
    te_dtype dtype;
    int half, halves;
} te__tile_source;
/* Load the rows first to first + count - 1 of a piece of 8 x 8 elements, without converting their format. */
TE_FN void te__pointwise_tiles_rows(te_vec8 *x, const te__tile_source from, te__tile_piece at,
                                    const te_pointwise_shape k, int first, const int count) {
    const te_dtype dtype = from.dtype;
    const uint32_t size = (uint32_t)te_dtype_bytes(dtype), width = (uint32_t)(k.half * from.halves);
    const uint32_t pitch = width * size;
    const int64_t place = at.row * (int64_t)width + from.half * k.half + 8 * at.vector;
    const char *p = (const char *)te_opaque_pointer((const char *)from.data + place * (int64_t)size);
    TE_UNROLL for (int r = 0; r < count; r++) {
        memset(&x[r], 0, sizeof x[r]);
        if (first + r < at.rows) te_vec8_load(&x[r], p + (uint64_t)(uint32_t)(first + r) * pitch, 0, 8, 1, dtype);
    }
}
/* Load a piece (8 x 8 elements) of the kernel's input to x[0], without converting its format. For a gated op, also load
 * the piece at the same columns of the second half to x[1]. */
TE_FN void te__pointwise_tiles_load(const te_pointwise *c, const te_pointwise_shape k, te_vec8 *x[2],
                                    te__tile_piece at) {
    const void *data = k.norm < 0 ? c->x : c->scaled.norm_x;
    const int halves = k.norm < 0 ? k.in_halves : 1;
    TE_UNROLL for (int h = 0; h < halves; h++) {
        const te__tile_source from = {data, k.norm < 0 ? k.in : k.norm_in, h, halves};
        te__pointwise_tiles_rows(x[h], from, at, k, 0, 8);
    }
    if (halves < 2 && (!TE_CUDA || k.out_halves == 2)) memset(x[1], 0, 8 * sizeof *x[1]);
}
/* What the norm reads in addition to x for a piece of 8 x 8 elements: gamma and beta of the piece's eight columns, and
 * the statistics of its eight rows. Everything is loaded together with x, because a load that follows the stores of the
 * piece's first row would wait for these stores. */
typedef struct te__piece_norm {
    te_vec8 gamma, beta;
    te_row_stats row[8];
} te__piece_norm;
TE_FN void te__pointwise_tiles_load_norm(te__piece_norm *n, const te_pointwise *c, const te_pointwise_shape k,
                                         te__tile_piece p) {
    /* Avoid a warning of gcc about elements of *n that are not loaded below. They are never read. */
    if (!TE_CUDA) memset(n, 0, sizeof *n);
    if (k.norm < 0) return;
    const te_stage *s = &c->op[k.norm];
    const int has_mean = te_norm_has_mean(k.norm_options.code);
    const te_place at = te_place_of(k, p.row, p.vector, 1);
    if (!p.rows) return;
    te_load_gamma(&n->gamma, s, at, k);
    if (te_norm_has_beta(k.norm_options.code)) te_load_norm_param(&n->beta, s->w[1], at, k);
    TE_UNROLL for (int r = 0; r < 8; r++) {
        n->row[r].mean = n->row[r].rstd = 0.0f;
        if (r >= p.rows) continue;
        if (has_mean) n->row[r] = ((const te_row_stats *)(const void *)s->stats)[p.row + r];
        else n->row[r].rstd = s->stats[p.row + r];
    }
}
/* Normalise eight elements, as te_norm_forward does, and run the ops after the norm. */
TE_FN void te__pointwise_tiles_norm(const te_pointwise *c, te_stages_fn stages, const te_pointwise_shape k, te_lane *l,
                                const te_vec8 *x, const te__piece_norm *n, int r) {
    const te_stage *s = &c->op[k.norm];
    float v[8];
    te_vec8_floats(v, x, k.norm_in);
    te_norm_of8(l->v, v, n->row[r], l->at.col, &n->gamma, &n->beta, k);
    te_store_saved(l, s, k.norm_out);
    stages(l, c, k.norm + 1, TE_MAX_PATTERN);
}
/* A piece of 8 x 8 elements in registers. */
typedef struct te__piece {
    te__tile_piece at;
    /* x[0]: the eight rows of the piece; x[1]: for a gated op, the same rows in the second half of the columns */
    te_vec8 *x[2];
    te__piece_norm norm;
    float sums[16]; /* sums over the rows of the piece: sums[0] to sums[7] for the eight columns of x[0], sums[8] to
                     * sums[15] for those of x[1] */
} te__piece;
/* Run the kernel's ops on row r, 0 to 7, of a piece of 8 x 8 elements. l->at has the coordinates of this row. */
TE_FN void te__pointwise_tiles_row(const te_pointwise *c, te_stages_fn stages, const te_pointwise_shape k, te_lane *l,
                                   te__piece *p, int r) {
    if (k.norm >= 0) {
        te__pointwise_tiles_norm(c, stages, k, l, &p->x[0][r], &p->norm, r);
        return;
    }
    te_vec8_floats(l->v, &p->x[0][r], k.in);
    if (k.in_halves == 2) te_vec8_floats(l->g, &p->x[1][r], k.in);
    TE_UNROLL for (int j = 0; k.sums >= 0 && j < 16; j++) l->sum[j] = p->sums[j];
    stages(l, c, k.backward ? 0 : c->scaled.from, TE_MAX_PATTERN);
    TE_UNROLL for (int j = 0; k.sums >= 0 && j < 16; j++) p->sums[j] = l->sum[j];
}
/* How many rows of a piece (8 x 8 elements) are computed together. If an op reads a second tensor in addition to the
 * gradient, the second tensor is loaded for all these rows at once, because otherwise the load for a row would wait for
 * the stores of the previous row. */
enum { TE_TILES_BATCH = TE_CUDA ? 4 : 1 };
typedef struct te__piece_ahead {
    const te_stage *of; /* the op whose saved tensor has been loaded to `row`, or null if no tensor has been loaded */
    te_vec8 row[TE_TILES_BATCH];
} te__piece_ahead;
TE_FN void te__pointwise_tiles_load_ahead(te__piece_ahead *a, const te_pointwise *c, const te_pointwise_shape k,
                                          te__tile_piece at, int first) {
    const int halves = k.in_halves + k.out_halves;
    const te_stage *s = TE_CUDA && k.backward && k.in != TE_f32 && k.norm < 0 && halves == 2 && k.reads >= 0
                            ? &c->op[k.reads] : 0;
    a->of = s && s->saved ? s : 0;
    if (!a->of) return;
    const te__tile_source from = {s->saved, TE_bf16, 0, 1}; /* also correct for f16, whose elements have as many
                                                             * bytes */
    te__pointwise_tiles_rows(a->row, from, at, k, first, TE_TILES_BATCH);
}
/* Load piece number h (8 x 8 elements) of this lane to the lane's registers. at: the piece's position in the tensor. */
TE_FN void te__pointwise_tiles_load_piece(te__piece *p, const te_pointwise *c, const te_pointwise_shape k,
                                          te__tile_piece at, te_pointwise_tiles_held *held, int h) {
    p->at = at, p->x[0] = held->half[0].x[h], p->x[1] = held->half[1].x[h];
    te__pointwise_tiles_load(c, k, p->x, at);
    te__pointwise_tiles_load_norm(&p->norm, c, k, at);
    TE_UNROLL for (int j = 0; j < 16; j++) p->sums[j] = 0;
}
/* Run the kernel's ops on a piece of 8 x 8 elements. */
TE_FN void te__pointwise_tiles_piece(const te_pointwise *c, te_stages_fn stages, const te_pointwise_shape k,
                                     te__piece *p) {
    te__piece_ahead ahead;
    TE_UNROLL for (int r = 0; r < 8; r++) {
        te_lane l;
        if (r % TE_TILES_BATCH == 0) te__pointwise_tiles_load_ahead(&ahead, c, k, p->at, r);
        l.at = te_place_of(k, p->at.row + r, p->at.vector, k.norm < 0 ? k.in_halves : 1);
        l.at.ahead_of = ahead.of;
        if (ahead.of) l.at.ahead = ahead.row[r % TE_TILES_BATCH];
        if (r >= p->at.rows) continue;
        te__pointwise_tiles_row(c, stages, k, &l, p, r);
        te_vec8_of_pairs(&p->x[0][r], l.v, k.out);
        if (k.out_halves == 2) te_vec8_of_pairs(&p->x[1][r], l.g, k.out);
    }
}
/* Return the address, in shared memory, of the sum of a column over the eight rows of one piece. down: the piece's
 * index, counted from the top of the tile, among the 16 pieces that contain this column; the sums of the 16 pieces are
 * added up later. The sums use the shared memory of the tile's amaxes, which are computed only after the sums have been
 * read. */
TE_FN float *te__pointwise_tiles_sum(te_blockwise_shared *s, int half, int down, int col) {
    return (float *)(void *)s->u.amax + (half * TE_BLOCKWISE_LANES_A_SIDE + down) * TE_FP8_TILE + col;
}
static_assert((int)TE_BLOCKWISE_LINE_PITCH >= (int)TE_FP8_TILE,
              "the sums of a tile's columns fit where the largest of its lines are");
TE_FN void te__pointwise_tiles_put_sums(te_blockwise_shared *s, const te_pointwise_shape k, int i,
                                        const float sums[16]) {
    TE_UNROLL for (int j = 0; k.sums >= 0 && j < 8 * k.sum_halves; j++)
        *te__pointwise_tiles_sum(s, j / 8, i / TE_BLOCKWISE_LANES_A_SIDE, i % TE_BLOCKWISE_LANES_A_SIDE * 8 + j % 8) =
            sums[j];
}
/* Store, for each of the tile's columns, the sum over the tile's rows. A kernel that te_defer_column_sum enqueues later
 * adds up these sums over all tiles that have the same columns. */
TE_FN void te__pointwise_tiles_store_sums(const te_pointwise *c, const te_pointwise_shape k, te_blockwise_shared *s,
                                          te_lanes g, int64_t row0, int64_t col0) {
    float *to = c->op[k.sums].sum[0];
    te_block_sync();
    for (int i = g.id; to && i < k.sum_halves * TE_FP8_TILE; i += g.count) {
        const int half = i / TE_FP8_TILE, col = i % TE_FP8_TILE;
        float sum = 0;
        for (int down = 0; down < TE_BLOCKWISE_LANES_A_SIDE; down++)
            sum += *te__pointwise_tiles_sum(s, half, down, col);
        if (col0 + col < k.half) to[(row0 / TE_FP8_TILE * k.sum_halves + half) * k.half + col0 + col] = sum;
    }
    te_block_sync();
}
TE_FN te_blockwise_args te__pointwise_tiles_args(const te_pointwise *c, const te_pointwise_shape k) {
    te_blockwise_args a;
    memset(&a, 0, sizeof a);
    a.q.rows = c->rows, a.q.cols = (int64_t)k.half * k.out_halves, a.q.yt_cols = c->scaled.yt_cols, a.q.to = TE_e4m3;
    a.q.rule = c->scaled.rule;
    if (k.norm < 0) a.q.y = c->scaled.y, a.q.y_inverse = c->scaled.inverse;
    a.q.yt = c->scaled.yt, a.q.yt_inverse = c->scaled.yt_inverse;
    a.out.y = (uint8_t *)a.q.y, a.out.yt = (uint8_t *)a.q.yt;
    a.out.rows = a.q.rows, a.out.cols = a.q.cols, a.out.yt_cols = a.q.yt_cols, a.out.to = TE_e4m3;
    return a;
}
TE_FN void te_pointwise_tiles_body(const te_pointwise *c, te_block b, te_stages_fn stages, const te_pointwise_shape k,
                               te_pointwise_tiles_held *held, te_blockwise_shared *s) {
    int group;
    const te_lanes g = te_lanes_here(TE_FP8_THREADS, &group);
    const te_blockwise_args a = te__pointwise_tiles_args(c, k);
    const int across = (int)te_ceil_div(k.half, TE_FP8_TILE);
    const int64_t row = (int64_t)(b.x / across) * TE_FP8_TILE, col = (int64_t)(b.x % across) * TE_FP8_TILE;
    if (!k.backward && c->take.taken && b.x == 0 && g.id == 0) te_rng_take_body(&c->take);
    TE_UNROLL for (int h = 0; h < TE_BLOCKWISE_PIECES; h++) {
        const int i = g.id + h * g.count;
        const te__tile_piece at = te__pointwise_tiles_piece_at(c, k, row, col, i);
        te__piece p;
        te__pointwise_tiles_load_piece(&p, c, k, at, held, h);
        te__pointwise_tiles_piece(c, stages, k, &p);
        te__pointwise_tiles_put_sums(s, k, i, p.sums);
    }
    if (k.sums >= 0) te__pointwise_tiles_store_sums(c, k, s, g, row, col);
    te__blockwise_store(&a, &held->half[0], s, g, row, col, k.out, TE_e4m3);
    if (k.out_halves == 1) return;
    te_block_sync();
    te__blockwise_store(&a, &held->half[1], s, g, row, k.half + col, k.out, TE_e4m3);
}

/* ---- one scale a tensor, or the transpose alone ------------------------------------------------------------------ */

/* Round the eight elements v to FP8, and return the FP8 bytes in *x. In backward, also store the elements untransposed.
 * rounded, a compile-time constant: 1 if the elements are first rounded to the dtype of the list of ops. */
TE_FN void te__pointwise_transpose_row(const te_pointwise *c, const te_pointwise_shape k, te_place at, te_vec8 *x,
                                       float v[8], float scale, const int rounded, uint32_t *amax_bits) {
    if (rounded) te_vec8_of_pairs(x, v, k.out), te_vec8_floats(v, x, k.out);
    if (k.backward) *amax_bits = te_amax_bits8(*amax_bits, v);
    TE_UNROLL for (int j = 0; j < 8; j++) v[j] = te_fp8_scaled(v[j], scale);
    te_vec8_of_fp8(x, v, (te_dtype)k.fp8);
    if (k.backward && c->fp8.y) te__fp8_store_row((uint8_t *)c->fp8.y, te_index(at), x->w, 8, 1);
}
/* Run the kernel's ops on a piece, and replace the piece in registers by the result in FP8. In forward, rows beyond the
 * last row of the tensor are computed, too. That is harmless: their results are not stored, and the ops read no memory
 * for these rows, whose input was set to zeros. */
TE_FN void te__pointwise_transpose_piece(const te_pointwise *c, te_stages_fn stages, const te_pointwise_shape k,
                                         te__piece *p, const int rounded, uint32_t *amax_bits) {
    const te__tile_piece at = p->at;
    const float scale = te_load_scale(c->scaled.scale);
    if (!at.rows) return;
    TE_UNROLL for (int r = 0; r < 8; r++) {
        te_lane l;
        l.at = te_place_of(k, at.row + r, at.vector, k.norm < 0 ? k.in_halves : 1);
        /* Skip rows beyond the tensor. Their registers hold zeros, which are also zeros in FP8 */
        if (k.backward && r >= at.rows) continue;
        te__pointwise_tiles_row(c, stages, k, &l, p, r);
        /* the position of the row in the result, where a gated op has halved the number of columns */
        l.at = te_place_of(k, at.row + r, at.vector, 1);
        te__pointwise_transpose_row(c, k, l.at, &p->x[0][r], l.v, scale, rounded, amax_bits);
    }
}
/* Set *recompute to the arguments with which the kernel of forward runs again in backward: only op number `last` runs,
 * and only the transpose of its result is stored. */
TE_FN void te__pointwise_keep_last_op(te_pointwise *recompute, const te_pointwise *c, const int last) {
    memset(recompute, 0, sizeof *recompute);
    recompute->x = c->x, recompute->rows = c->rows, recompute->scaled = c->scaled, recompute->scaled.from = last;
    recompute->op[last] = c->op[last], recompute->op[last].out = 0;
}
/* Store the transpose of a 128 x 128 tile whose first element is at (row, col). held: this lane's elements of the tile,
 * in FP8. */
TE_FN void te__pointwise_transpose_tile(const te_fp8_out *out, te_blockwise_registers *held, te_fp8_shared *transposed,
                                        te_lanes g, int64_t row, int64_t col) {
    TE_UNROLL for (int h = 0; h < TE_BLOCKWISE_PIECES; h++) {
        const int i = g.id + h * g.count;
        uint32_t word[8][2];
        TE_UNROLL for (int r = 0; r < 8; r++) word[r][0] = held->x[h][r].w[0], word[r][1] = held->x[h][r].w[1];
        te__fp8_transpose_piece(transposed, word, i / TE_BLOCKWISE_LANES_A_SIDE * 8, i % TE_BLOCKWISE_LANES_A_SIDE * 8);
    }
    te_block_sync();
    te__fp8_store_tile(out, transposed, row, col, g);
}
/* The body of the tile kernels that work with one scale per tensor, or that store the transpose alone (see the head of
 * this file). `last` is the index of the kernel's last op. */
TE_FN void te_pointwise_transpose_body(const te_pointwise *args, te_block b, te_stages_fn stages,
                                       const te_pointwise_shape k, const int last, te_pointwise_tiles_held *held,
                                       te_blockwise_shared *s) {
    int group;
    uint32_t amax_bits = 0;
    te_pointwise recompute;
    const te_pointwise *c = k.backward ? args : &recompute;
    const te_lanes g = te_lanes_here(TE_FP8_THREADS, &group);
    const te_blockwise_args a = te__pointwise_tiles_args(args, k);
    const int across = (int)te_ceil_div(k.half, TE_FP8_TILE);
    const int64_t row = (int64_t)(b.x / across) * TE_FP8_TILE, col = (int64_t)(b.x % across) * TE_FP8_TILE;
    if (!k.backward) te__pointwise_keep_last_op(&recompute, args, last);
    TE_UNROLL for (int h = 0; h < TE_BLOCKWISE_PIECES; h++) {
        const int i = g.id + h * g.count;
        const te__tile_piece at = te__pointwise_tiles_piece_at(c, k, row, col, i);
        te__piece p;
        te__pointwise_tiles_load_piece(&p, c, k, at, held, h);
        if (!k.backward && c->scaled.rounded) te__pointwise_transpose_piece(c, stages, k, &p, 1, &amax_bits);
        else te__pointwise_transpose_piece(c, stages, k, &p, 0, &amax_bits);
        te__pointwise_tiles_put_sums(s, k, i, p.sums);
    }
    if (k.sums >= 0) te__pointwise_tiles_store_sums(c, k, s, g, row, col);
    if (a.out.yt) te__pointwise_transpose_tile(&a.out, &held->half[0], &s->u.transposed, g, row, col);
    if (k.backward) te_pointwise_store_amax(c, k, b, g, amax_bits);
}

/* The type of a function that launches one kernel of a step, either its row kernel or its tile kernel. */
typedef te_status (*te__pointwise_rows_fn)(te_context *ctx, te_grid grid, const te_pointwise *c);
/* Launch the kernels of a step: the row kernel (`rows`) or the tile kernel (`tiles`). If a norm's result is stored both
 * untransposed and transposed, launch first the row kernel and then the tile kernel. */
TE_API te_status te__pointwise_launch_tiles(te_context *ctx, te_grid grid, const te_pointwise *c,
                                            const te_pointwise_shape k, te__pointwise_rows_fn rows,
                                            te__pointwise_rows_fn tiles) {
    te_pointwise behind = *c;
    if (!c->scaled.tiles || (k.norm >= 0 && c->scaled.y)) TE_TRY(rows(ctx, grid, c));
    if (!c->scaled.tiles || !c->rows) return TE_OK;
    if (k.norm >= 0) behind.take.taken = 0;
    return tiles(ctx, te__grid_of(te_ceil_div(c->rows, TE_FP8_TILE) * te_ceil_div(k.half, TE_FP8_TILE), 1), &behind);
}

#endif
