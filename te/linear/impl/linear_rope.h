/* linear_rope.h -- the patterns linear_rope and linear_bias_rope: one GEMM computes q, k and v, and its epilogue
 * rotates q and k by their positions (te/ops/rope.h) before it stores them.
 *
 * On Hopper, in 16 bits, with constant widths and head sizes that fit a tile, two kernels run. The first, a small one,
 * writes a table of the cosines and sines of all rows, [rows, rotary_dim] in f32. If the GEMM's epilogue computed the
 * cosines and sines itself, it would need double precision and would repeat the work for each head. With 8192 rows and
 * heads of size 128 the table has 4 MB and stays in the L2. The second kernel is the GEMM. The epilogue of the GEMM
 * receives two vectors of eight elements at once, which together contain both elements of each pair to be rotated. With
 * up to eight rows, and if pairs are not interleaved, the skinny kernel runs alone: each of its blocks computes the
 * cosines and sines itself. Under a recipe, whose GEMMs read FP8, only a skinny kernel can have rope in its epilogue.
 *
 * In all other cases linear and rope run as two separate steps: on other targets, in other formats, with head sizes
 * that do not divide 256 or are odd multiples of eight, and for GEMMs with so few rows or columns that a rule
 * expects the two steps to be faster (te/gemm/impl/gemm_dispatch.h).
 *
 * Lower bound of the time: the time of the GEMM. A separate rope kernel would read and write the GEMM's result once
 * more: for 8192 x 12288 that takes 0.1 ms; the GEMM takes 1.2 ms. Measurements: docs/notes/linear.md.
 *
 * The GEMM sums in f32 and rounds to 16 bits, as in a separate step. The epilogue then adds the bias and rotates in
 * f32, and rounds once more. So the result of linear_rope is bitwise identical to that of two separate steps, linear
 * and then rope. The result of linear_bias_rope differs, because separate steps also round after they have added the
 * bias.
 */
#ifndef TE_LINEAR_ROPE_H
#define TE_LINEAR_ROPE_H

#include "../../pointwise/impl/pointwise_macros.h" /* TE_POINTWISE */
#include "../../ops/rope.h" /* te__rope_apply, te_rope_cos_sin */
#include "linear_step.h" /* te__linear_forward, te__overlap_gather */

#define TE__ROPE_MARK_rope ,

/* ---- one kernel -------------------------------------------------------------------------------------------------- */

enum { TE_ROPE_TABLE_ROWS = 4 /* number of rows of the table of cosines and sines that a block computes */ };

/* Write TE_ROPE_TABLE_ROWS rows of the table y, [rows, rotary] in f32: a row holds the cosines of all pairs, then their
 * sines. */
TE_FN void te_rope_table_rows(const te_rope_args *a, te_block b, int rotary, int scaled) {
    int group;
    const int64_t first = (int64_t)b.x * TE_ROPE_TABLE_ROWS;
    te_rope_cos_sin((float *)a->y + first * rotary, a, first, (int)te_min(TE_ROPE_TABLE_ROWS, a->rows - first),
                  te_lanes_here(TE_ROPE_THREADS, &group), te_rope_table_of(rotary / 2, rotary, scaled, 1));
}

/* The kernels of a step that consists of a linear, perhaps a bias, and rope. rope: the kernel of rope alone; table:
 * the kernel that writes the table of cosines and sines; fused: the GEMM with rope in its epilogue. A null member
 * means that there is no such kernel. */
typedef struct te__rope_kernels {
    /* the kernels of the linear and its bias, for calls in which rope runs as a separate step */
    te__linear_kernels linear;
    te_rope_launch_fn rope, table;
    te_product_kernels *fused;
    /* the number of columns of q and k together: the columns below this number are rotated, the columns of v behind
     * them are not */
    int rotated_columns;
} te__rope_kernels;

#if TE_CUDA && !defined(TE_KEEP_CALLS)

typedef struct te_rope_product {
    union { te__sm90_gemm_params persistent; te_skinny skinny; };
    /* only for the skinny kernel, which computes its cosines and sines itself: the positions of the rows, and the
     * frequencies of the pairs */
    te_rope_args positions;
    int n;
    const void *bias;   /* [n], or null if there is no bias */
    void *y;            /* [m, n] */
    const float *table; /* table of cosines and sines, [m, rotary] */
    /* number of columns of q and k together, which are rotated */
    int rotated_columns;
} te_rope_product;

/* The compile-time constants of the heads that are rotated. dtype: a 16-bit format; TE_f32 means that the kernel does
 * not exist. */
typedef struct te_rope_heads {
    te_dtype dtype;
    int head_dim, rotary, interleaved;
    int table_is_shared; /* 1 if the table of cosines and sines lies in shared memory, 0 if it lies in global memory */
} te_rope_heads;

TE_FN void te__rope_load8(float v[8], const uint32_t w[4], const te_rope_product *p, int col, const te_dtype dtype) {
    float bias[8];
    te_vec8 e;
    TE_UNROLL for (int i = 0; i < 4; i++) e.w[i] = w[i];
    te_vec8_floats(v, &e, dtype);
    if (!p->bias) return;
    te_load8(bias, p->bias, col, 8, 1, dtype);
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] += bias[i];
}
/* Interleaved rope: v holds columns dim to dim + 7 of a head. Rotates the pairs among them that lie below column
 * h.rotary. */
TE_FN void te__rope_rotate_interleaved(float v[8], const float *table, int dim, const te_rope_heads h) {
    float4 c, s;
    if (dim >= h.rotary) return;
    c = __ldg((const float4 *)(table + dim / 2)), s = __ldg((const float4 *)(table + h.rotary / 2 + dim / 2));
    const float cosine[4] = {c.x, c.y, c.z, c.w}, sine[4] = {s.x, s.y, s.z, s.w};
    te_rotate_interleaved8(v, cosine, sine);
}
/* The epilogue for sixteen elements of row `row`, all of one head: w holds the eight columns from `col` on, and u the
 * eight columns from `other` on. Adds the bias, rotates the pairs and stores the results. table: the row's cosines and
 * sines. */
TE_FN void te__rope_epilogue(const te_rope_product *p, const float *table, const uint32_t w[4], const uint32_t u[4],
                             int row, int col, int other, const te_rope_heads h) {
    const int dim = col % h.head_dim, pairs = h.rotary / 2,
              far = !h.interleaved && col < p->rotated_columns && dim < pairs;
    float v[8], mate[8], cosine[8], sine[8];
    if (far && h.table_is_shared) {
        TE_UNROLL for (int i = 0; i < 8; i++) cosine[i] = table[dim + i], sine[i] = table[pairs + dim + i];
    /* load cosines and sines before the elements to be rotated, so that they have arrived when te_rotate8 needs them */
    } else if (far) {
        te_load8(cosine, table, dim, 8, 1, TE_f32);
        te_load8(sine, table, pairs + dim, 8, 1, TE_f32);
    }
    te__rope_load8(v, w, p, col, h.dtype);
    te__rope_load8(mate, u, p, other, h.dtype);
    if (far) te_rotate8(v, mate, cosine, sine);
    if (h.interleaved && col < p->rotated_columns) {
        te__rope_rotate_interleaved(v, table, dim, h);
        te__rope_rotate_interleaved(mate, table, other % h.head_dim, h);
    }
    te_store8(p->y, (int64_t)row * p->n + col, v, 8, 1, h.dtype);
    te_store8(p->y, (int64_t)row * p->n + other, mate, 8, 1, h.dtype);
}

/* The epilogue as a template. Its only template arguments are the constants of the heads, so all models and passes with
 * the same heads share one kernel. */
template <te_dtype T, int DIM, int ROTARY, int NEAR>
TE_FN void te_rope_pair_epilogue(const void *p, const uint32_t w[4], const uint32_t u[4], int row, int col, int other,
                          te_epilogue_state *) {
    const te_rope_heads h = {T, DIM, ROTARY, NEAR, 0};
    const te_rope_product *product = (const te_rope_product *)p;
    te__rope_epilogue(product, product->table + (int64_t)row * ROTARY, w, u, row, col, other, h);
}
/* The skinny kernel's table of cosines and sines, [TE_SKINNY_ROWS, ROTARY] in shared memory. te_rope_skinny_prepare
 * fills it; te_rope_skinny_epilogue reads it. */
template <int ROTARY> TE_FN float *te__rope_skinny_table(void) {
    __shared__ float table[TE_SKINNY_ROWS * ROTARY];
    return table;
}
template <int ROTARY, int SCALED> TE_FN void te_rope_skinny_prepare(const void *p) {
    const te_rope_args *a = &((const te_rope_product *)p)->positions;
    int group;
    te_rope_cos_sin(te__rope_skinny_table<ROTARY>(), a, 0, (int)a->rows, te_lanes_here(TE_SKINNY_THREADS, &group),
                    te_rope_table_of(ROTARY / 2, ROTARY, SCALED, 1));
}
template <te_dtype T, int DIM, int ROTARY>
TE_FN void te_rope_skinny_epilogue(const void *p, const uint32_t w[4], const uint32_t u[4], int row, int col, int other,
                                   te_epilogue_state *) {
    const te_rope_heads h = {T, DIM, ROTARY, 0, 1};
    te__rope_epilogue((const te_rope_product *)p, te__rope_skinny_table<ROTARY>() + row * ROTARY, w, u, row, col, other,
                      h);
}
template <te_dtype T, int DIM, int ROTARY, int SCALED, te_gemm_operands FORM>
static __global__ void __launch_bounds__(TE_SKINNY_THREADS, TE_SKINNY_BLOCKS_PER_SM)
    te_rope_skinny(const __grid_constant__ te_rope_product p) {
    const te_skinny_epilogue epilogue = {nullptr, te_rope_skinny_epilogue<T, DIM, ROTARY>,
                                         te_rope_skinny_prepare<ROTARY, SCALED>, &p, {1, DIM, ROTARY}};
    te_skinny_body(&p.skinny, epilogue, FORM, T);
}
TE_KERNEL_IF(T != TE_f32, (te_dtype T, int DIM, int ROTARY, int SCALED, te_gemm_operands FORM), te_rope_skinny,
             (T, DIM, ROTARY, SCALED, FORM), te_rope_product)
/* near: 1 if rope pairs adjacent columns (interleaved), 0 if it pairs columns that are rotary / 2 apart. CROSSED:
 * whether the two columns of a pair lie 128 columns apart, in different halves of a tile. If so, the kernel swaps the
 * second and the third 64 columns of the tile (swap_middle of te__sm90_gemm_pairing), so that both columns of a pair
 * are in the same half. APART: the distance between the two columns of a pair after this swap, in vectors of eight
 * columns, or 0 if both columns are in one vector. */
#define TE__ROPE_CROSSED(dim, rotary, near) ((dim) == 256 && (rotary) == 256 && !(near))
#define TE__ROPE_APART(dim, rotary, near) ((near) ? 0 : TE__ROPE_CROSSED(dim, rotary, near) ? 8 : (rotary) / 16)
template <te_dtype T, int DIM, int ROTARY, int NEAR>
TE_SM90_GEMM_KERNEL_PAIRS(te_rope_gemm, te_rope_product, T, T == TE_f32 ? 0 : DIM >= 128 ? 16 : DIM / 8,
                         TE__ROPE_APART(DIM, ROTARY, NEAR), TE__ROPE_CROSSED(DIM, ROTARY, NEAR),
                         (te_rope_pair_epilogue<T, DIM, ROTARY, NEAR>), T != TE_f32)
TE_KERNEL_IF(T != TE_f32, (te_dtype T, int DIM, int ROTARY, int NEAR), te_rope_gemm, (T, DIM, ROTARY, NEAR),
             te_rope_product)
/* Returns the kernels with rope in the epilogue, for operands of kind FORM. For FP8 operands only a skinny kernel
 * exists. If pairs are interleaved, no skinny kernel exists. */
template <te_dtype T, int DIM, int ROTARY, int NEAR, int SCALED, te_gemm_operands FORM>
TE_API te_product_kernels *te__rope_kernels_of(void) {
    constexpr te_dtype half = FORM == TE_OPERANDS_16BIT ? T : TE_f32, fp8 = FORM == TE_OPERANDS_16BIT ? TE_f32 : T;
    static te_product_kernels kernels = {
        {(const void *)te_rope_gemm_if<half, DIM, ROTARY, NEAR>(), 0, 0},
        {(const void *)te_rope_skinny_if<NEAR ? TE_f32 : half, DIM, ROTARY, SCALED, TE_OPERANDS_16BIT>(), 0, 0},
        {0, 0, 0},
        {(const void *)te_rope_skinny_if<NEAR ? TE_f32 : fp8, DIM, ROTARY, SCALED, FORM>(), 0, 0},
        FORM, {0, 0, 0}, {0, 0, 0}, 0};
    return &kernels;
}

/* Says whether the epilogue can rotate heads with these constants within a tile: the head size divides the tile's 256
 * columns, and both columns of each pair lie in the same 128 columns, if necessary after the swap of
 * TE__ROPE_CROSSED. */
#define TE__ROPE_FITS(dim, rotary, near)                                                        \
    ((rotary) > 0 && 256 % (dim) == 0 && (dim) % 16 == 0 && (rotary) % ((near) ? 8 : 16) == 0 \
     && ((dim) <= 128 || (near) || (rotary) <= 128 || (rotary) == 256))
/* name##_fits: whether the kernel with rope in the epilogue exists. TE_WIDTH_IN(..) >= 2 * TE__ROTARY(..) is one of the
 * conditions: the table of cosines and sines, [rows, rotary_dim] in f32, must fit into a block of memory of the size
 * [rows, width] in 16 bits (te__linear_rope_fused). */
#define TE__ROPE_SHAPE_fixed(name, model, dtype, rope)                                                               \
    enum {                                                                                                           \
        name##_fits = (int)TE_##dtype != (int)TE_f32                                                                 \
            && (int)TE_DTYPE_IN(model, rope) == (int)TE_##dtype && (int)TE_DTYPE_OUT(model, rope) == (int)TE_##dtype \
            && (int)TE_WIDTH_IN(model, rope) >= 2 * TE__ROTARY(rope)                                                 \
            && TE__ROPE_FIRST(rope) == 0                                                                             \
            && TE__ROPE_FITS(TE_ARG3(rope, 0), TE__ROTARY(rope), TE__INTERLEAVED(rope))                              \
    };
/* Defines the kernels of the linear and its bias without rope. The persistent kernel (gemm_sm90.h) is among them only
 * if no kernel with rope in its epilogue exists. */
#define TE__ROPE_BIAS_fixed(name, dtype)                                                                             \
    TE__PRODUCT_EPILOGUE(name, dtype)                                                                                \
    TE__PRODUCT_KERNELS(name, dtype, name##_is_product && !name##_fits, name##_is_product, 0, 0, 0)
#define TE__ROPE_BIAS_fixed_fp8 TE_PRODUCT_FP8
#define TE__ROPE_PRODUCT_fixed(name, dtype, rope)                                                     \
    TE_KERNEL(name##_table, TE_ROPE_THREADS, te_rope_args,                                            \
              te_rope_table_rows(te_args, te_at, TE__ROTARY(rope), TE__ROPE_FREQUENCIES(rope)))       \
    TE_API te_product_kernels *name##_fused(void) {                                                   \
        return te__rope_kernels_of<name##_fits ? TE_##dtype : TE_f32, TE_ARG3(rope, 0), TE__ROTARY(rope), \
                               TE__INTERLEAVED(rope), TE__ROPE_FREQUENCIES(rope),                     \
                               (te_gemm_operands)name##_skinny_form>();                               \
    }

/* Runs the GEMM g, whose operands are set, with rope in its epilogue. The table of cosines and sines is stored in a
 * block of the workspace that has the size of the GEMM's result. */
TE_API te_status te__linear_rope_fused(te_run *r, const te_step *first, const te__rope_kernels *kernels, int rope,
                                       te_gemm *g, te_value y) {
    const te_op *linear = &r->plan->op[first->op[0]];
    te_rope_product p;
    te_rope_args a;
    te_value memory, table;
    memset(&p, 0, sizeof p);
    /* Acquire as much memory as the two separate steps do. The number of rows decides whether the fused kernel or the
     * two steps run, and the size of the workspace must not depend on this choice. */
    for (int j = 0; j < first->count; j++)
        TE_TRY(te__acquire(r, &memory, linear->out_rows, linear->out, linear->out_dtype));
    table = y, table.data = memory.data;
    TE_TRY(te__rope_args(&a, r, rope, table));
    p.bias = first->count > 1 ? r->param[first->op[1]]->data : 0;
    p.y = y.data, p.table = (const float *)memory.data, p.rotated_columns = kernels->rotated_columns;
    p.n = (int)g->n, p.positions = a;
    if (!r->dry && !g->ranks && te__gemm_is_skinny(kernels->fused, g, r->ctx))
        TE_TRY(te__skinny_run(te__gemm_skinny_of(kernels->fused, g)->kernel, &p, sizeof p, &p.skinny, g, r->ctx));
    else if (!r->dry) {
        TE_TRY(kernels->table(r->ctx, te__grid_of(te_ceil_div(a.rows, TE_ROPE_TABLE_ROWS), 1), &a));
        TE_TRY(te__sm90_gemm_run(kernels->fused->persistent.kernel, &p, sizeof p, &p.persistent, g, r->ctx));
    }
    te__set_current(r, y);
    return TE_OK;
}
#else
#define TE__ROPE_SHAPE_fixed TE__ROPE_SHAPE_dims
#define TE__ROPE_BIAS_fixed TE_NO_PRODUCT
#define TE__ROPE_BIAS_fixed_fp8 TE_NO_PRODUCT
#define TE__ROPE_PRODUCT_fixed TE__ROPE_PRODUCT_dims
TE_API te_status te__linear_rope_fused(te_run *r, const te_step *first, const te__rope_kernels *kernels, int rope,
                                       te_gemm *g, te_value y) {
    return (void)r, (void)first, (void)kernels, (void)rope, (void)g, (void)y, TE_OK;
}
#endif
#define TE__ROPE_SHAPE_fixed_fp8 TE__ROPE_SHAPE_fixed
#define TE__ROPE_SHAPE_fixed_training TE__ROPE_SHAPE_fixed
#define TE__ROPE_BIAS_fixed_training TE__ROPE_BIAS_fixed_fp8
#define TE__ROPE_PRODUCT_fixed_training TE__ROPE_PRODUCT_fixed_fp8
#define TE__ROPE_SHAPE_dims_fp8 TE__ROPE_SHAPE_dims
#define TE__ROPE_SHAPE_dims(name, model, dtype, rope) enum { name##_fits = 0 };
#define TE__ROPE_BIAS_dims TE_NO_PRODUCT
#define TE__ROPE_BIAS_dims_fp8 TE_NO_PRODUCT
#define TE__ROPE_PRODUCT_fixed_fp8 TE__ROPE_PRODUCT_fixed
#define TE__ROPE_PRODUCT_dims_fp8 TE__ROPE_PRODUCT_dims
#define TE__ROPE_PRODUCT_dims(name, dtype, rope)                                               \
    TE_API te_status name##_table_launch(te_context *ctx, te_grid grid, const te_rope_args *a) \
        { return (void)ctx, (void)grid, (void)a, TE_OK; }                                      \
    TE_API te_product_kernels *name##_fused(void) { return 0; }

/* ---- the step ---------------------------------------------------------------------------------------------------- */

TE_IF_USED TE_API te_status te__linear_rope(te_run *r, const te_step *s, const te__rope_kernels *kernels) {
    const int rope = s->op[s->count - 1];
    te_gemm g = te__linear_product(r, s->op[0]);
    te__gemm_overlap ranks;
    te_step first = *s;
    te_value y;
    first.count--;
    TE_TRY(te__output(&y, r, s, rope));
    if (!te__policy(r, s->op[0])->fp8 && te__gemm_is_fused(kernels->fused, &g, r->ctx)) {
        TE_TRY(te__overlap_gather(&g, &ranks, r, kernels->fused, r->current.block < 0));
        TE_TRY(te__linear_operands(&g, r, s->op[0]));
        return te__linear_rope_fused(r, &first, kernels, rope, &g, y);
    }
    if (!te__policy(r, s->op[0])->fp8 || r->recompute || r->describe)
        TE_TRY(te__linear_forward(r, &first, &kernels->linear));
    else {
        TE_TRY(te__linear_begin(&g, &ranks, r, &first, &kernels->linear));
        if (!g.ranks && te__gemm_is_fused(kernels->fused, &g, r->ctx))
            return te__linear_rope_fused(r, &first, kernels, rope, &g, y);
        TE_TRY(te__linear_run(r, &first, &kernels->linear, &g));
    }
    return te__rope_apply(r, rope, y, kernels->rope);
}

/* ---- kernels of a pattern ---------------------------------------------------------------------------------------- */

#define TE__LINEAR_ROPE(name, widths, model, dtype, pass, ...)                                             \
    TE_BY_OP_COUNT(__VA_ARGS__, TE__LONG_ROPE, TE__LONG_ROPE, TE__LONG_ROPE, TE__LONG_ROPE, TE__LONG_ROPE, \
        TE__LONG_ROPE, TE__LINEAR_BIAS_ROPE, TE__LINEAR_ROPE_ALONE, ~)(name, widths, model, dtype, pass, __VA_ARGS__)
#define TE__LONG_ROPE(name, ...) \
    static_assert(0, "te: " #name ": only a bias may stand between a linear and the rope of its pattern");
#define TE__LINEAR_ROPE_ALONE(name, widths, model, dtype, pass, rope)    \
    TE__ROPE_SHAPE_##widths(name, model, dtype, rope)                    \
    TE__ROPE_ROW(name, widths, model, dtype, rope, 0, te_no_shape(), 0)
#define TE__LINEAR_BIAS_ROPE(name, widths, model, dtype, pass, op, rope)                                     \
    static_assert((TE_FLAGS(op) & TE_EPILOGUE_OF_BIAS) != 0,                                                 \
                  "te: " #name ": only a bias may stand between a linear and the rope of its pattern");      \
    TE_POINTWISE(name, widths, model, dtype, pass, op)                                                       \
    TE__ROPE_SHAPE_##widths(name, model, dtype, rope)                                                        \
    TE__ROPE_BIAS_##widths(name, dtype)                                                                      \
    TE__ROPE_ROW(name, widths, model, dtype, rope, name##_launch, name##_shape(te__pointwise_half(r, s, 1)), \
                 name##_kernels())
/* Defines the kernels of a step that ends in rope, and name##_run(), which runs the step. launch, shape, product: the
 * values of the members launch, shape and fused of te__linear_kernels. */
#define TE__ROPE_ROW(name, widths, model, dtype, rope, launch, shape, product)                                     \
    TE_CUSTOM_rope_forward(name##_rope, model, dtype, rope)                                                        \
    TE__ROPE_PRODUCT_##widths(name, dtype, rope)                                                                   \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                     \
        const te__rope_kernels kernels = {{launch, shape, product, TE_UNFUSED_GEMM_OF(name, dtype, forward)},        \
                                          name##_rope_launch, name##_table_launch, name##_fused(),                 \
                                          ((int)(TE_ARG1(rope, 0)) + (int)(TE_ARG2(rope, 0))) *                    \
                                              (int)(TE_ARG3(rope, 0))};                                            \
        return te__linear_rope(r, s, &kernels);                                                                    \
    }

#endif
