/* model.h -- the data structures that TE_SEQUENTIAL makes from a list of ops: a plan and instances of it. A plan has a
 * table of the ops and three tables of steps (forward, inference, backward); a step is one or more ops that run as one
 * fused pattern. A plan is constant. Three structures change at run time: te_model and te_param (the parameters of one
 * instance) and te_saved (the values that one forward saves for its backward).
 */
#ifndef TE_MODEL_H
#define TE_MODEL_H

#include "../core/context.h" /* te_context, te_status */
#include "../core/tensor.h" /* te_tensor, te_batch */
#include "../fp8/scales.h" /* te_scales */

/* How an op takes part in a kernel.
 *   map     works on each element by itself                            bias, gelu, dropout, add, ...
 *   gated   combines the two halves of a row, element by element       swiglu, geglu, ...
 *   norm    needs the whole row                                        layernorm, rmsnorm, l2norm
 *   gemm    a matrix product                                           linear
 *   custom  brings its own kernels; it may begin a fusion pattern      attention, embedding, cross_entropy, rope, ...
 */
typedef enum te_class { TE_CLASS_map, TE_CLASS_gated, TE_CLASS_norm, TE_CLASS_gemm, TE_CLASS_custom } te_class;

/* Properties of an op, the bits of te_op.flags. They say which values forward must save for the op's backward, and how
 * the executor, the fusion and the collectives treat the op. */
enum {
    /* saved for backward */
    TE_SAVES_INPUT = 1 << 0,  /* backward reads the op's input, so this input stays in memory until the op's backward */
    TE_SAVES_OUTPUT = 1 << 1, /* backward reads the op's output, so this output stays in memory until the op's
                               * backward */
    /* gradients */
    TE_GRAD_UNCHANGED = 1 << 2, /* the gradient of the op's input equals the gradient of its output (bias, add) */
    TE_SUMS = 1 << 3,           /* the gradients of the op's parameters (one to three) are sums over all rows, like the
                                 * gradient of a bias. A step has at most TE_SUMS_A_STEP such sums, so an op with two or
                                 * three parameters (xielu, dyt) must not be in a fusion pattern with a norm or a gated
                                 * op */
    TE_IS_FROZEN = 1 << 5,      /* the op's parameters are never trained (frozen_linear) */
    TE_DRAWS = 1 << 6,          /* the op draws random numbers (dropout) */
    /* flags of forks, and of the ops that use the value of a fork */
    TE_IS_FORK = 1 << 7,    /* a fork: passes its input on unchanged, and also holds this value for a later op */
    TE_IS_ADD = 1 << 8,     /* adds a fork's value to the op's input */
    TE_IS_MUL = 1 << 9,     /* multiplies the op's input by a fork's value, element by element */
    TE_IS_LOAD = 1 << 10,   /* starts a new branch: ignores its input, and its output is a fork's value */
    TE_IS_CROSS = 1 << 11,  /* cross_attention: its keys and values come from a fork's value */
    TE_IS_INPUT = 1 << 12,  /* a fork whose value the caller provides: an extra input of the list */
    TE_OF_SEQUENCES = 1 << 4, /* an extra input with one row for each sequence (TE_ROWS_sequences) */
    TE_OF_MEMORY = 1 << 13, /* an extra input whose rows are of kind TE_ROWS_memory, e.g. the output of an encoder */
    TE_IS_OUTPUT = 1 << 14, /* an extra output of the list: passes its input on unchanged, and also stores it in the
                             * caller's memory */
    /* the first and the last op of a list */
    TE_FROM_TOKENS = 1 << 15, /* must be the first op of its list; the list then reads tokens instead of x
                               * (embedding) */
    TE_TO_LOSS = 1 << 16,     /* must be the last op of its list; y is then one f32 loss for each row (cross_entropy) */
    /* attention */
    TE_VARLEN = 1 << 17,            /* attention that takes sequences of different lengths in one batch (cu_seqlens) */
    TE_OUTPUTS_MAX_LOGIT = 1 << 18, /* attention that stores the largest score (logit) of each head to memory of the
                                     * caller, which is the entry of te_batch.edges that has the op's name */
    TE_ATTENDS_IN_FP8 = 1 << 19,    /* attention whose forward computes both of its matrix products in e4m3 */
    TE_CACHE_FORMAT_SHIFT = 29,     /* bits 29 and 30 hold the op's te_cache_format (attention_options.h) */
    TE_IS_CACHED = 3 << 29,         /* the mask of bits 29 and 30; if one of these bits is set, the op can store its
                                     * keys and values in a te_cache in inference */
    TE_TAKES_EDGE = -0x7fffffff - 1, /* bit 31: the op reads the entry of te_batch.edges that has the op's name (rope
                                      * reads its frequencies there) */
    /* The epilogue of a GEMM can compute the op that follows the GEMM, if this op has one of these flags: */
    TE_EPILOGUE_OF_BIAS = 1 << 20,  /* the op adds its parameter */
    TE_EPILOGUE_OF_GELU = 1 << 21,  /* the op is GELU */
    TE_EPILOGUE_OF_SCALE = 1 << 22, /* the op multiplies by a constant, which te_op.options holds as a
                                     * te_scale_options */
    TE_EPILOGUE_OF_ROPE = 1 << 28,  /* the op rotates pairs of columns by rotary position embedding
                                     * (te/linear/impl/linear_rope.h) */
    /* ranks of a tensor group */
    TE_PARAMS_REPLICATED = 1 << 23, /* the columns of the op's values are sharded over the ranks, but each rank holds
                                     * all of the op's parameters */
    TE_TAKES_PRODUCT = 1 << 24,     /* a collective that sums over ranks, and that can also run the GEMM of the linear
                                     * before it. This GEMM is then deferred to the collective, so that computing and
                                     * communicating overlap */
    TE_PASSES_VALUE = 1 << 25,      /* in forward the op's output is its unchanged input, in the same memory
                                     * (copy_to_group) */
    TE_PASSES_GRAD = 1 << 26,       /* in backward the op passes the gradient on unchanged, in the same memory
                                     * (all_reduce) */
    TE_PASSES_THROUGH = TE_PASSES_VALUE | TE_PASSES_GRAD,
    /* a custom op whose fusion pattern continues with a pointwise kernel. This pointwise kernel can also run without
     * the custom op, e.g. to recompute an FP8 operand */
    TE_LEADS_POINTWISE = 1 << 27
};

/* The algorithm by which the ranks of a context group compute an attention together; the attention's option (context,
 * ..) names it (te/context_parallel.h). */
typedef enum te_cp_form { TE_CP_none, TE_CP_gather, TE_CP_ring, TE_CP_all_to_all } te_cp_form;

typedef enum te_init {
    TE_INIT_normal,
    TE_INIT_zero,
    TE_INIT_one,
    TE_INIT_tied, /* the parameter is not initialised, because it uses the memory of another parameter (te_tie) */
    TE_INIT_half, /* initialised to 0.5 */
    TE_INIT_xielu_p, /* log(e^0.8 - 1), the number whose softplus is 0.8 (xielu's alpha_p, te/ops/activation.h) */
    TE_INIT_xielu_n
} te_init;

/* The kind of rows that a value has. The kind is known at compile time; the number of rows of each kind follows from
 * the te_batch of a call. */
typedef enum te_rows {
    TE_ROWS_tokens,    /* one row for each token: te_batch.batch * te_batch.seq rows */
    TE_ROWS_sequences, /* one row for each sequence: te_batch.sequences rows or, if that is 0, te_batch.batch rows */
    TE_ROWS_shard, /* one row for each token of this rank's shard. The tensor group splits the tokens into n equal parts
                    * for its n ranks, in the order of the ranks (sequence parallelism) */
    TE_ROWS_memory, /* one row for each row that cross_attention attends to, e.g. each row of an encoder's output:
                     * te_batch.batch * te_batch.memory_seq rows */
    TE_ROWS_routed = 1 << 20, /* rows behind a router (TE_ROUTED_ROWS): top_k rows for each token, ordered by expert
                               * (te/ops/router.h) */
    TE_ROWS_of_ranks = 1 << 29, /* flag of routed rows: this rank computes only the rows of its own experts */
    TE_ROWS_exchanged = 1 << 30 /* flag in addition to TE_ROWS_of_ranks: the router has sent each row to the rank that
                                 * holds the row's expert */
} te_rows;
/* TE_ROUTED_ROWS(experts, top_k) is the kind of the rows behind a (router, ..), where a token has one row for each of
 * the top_k experts to which it was sent. The kind contains both numbers, so that lists can be checked at compile time;
 * `experts` must be below 2048, and `top_k` below 256. */
#define TE_ROUTED_ROWS(experts, top_k) ((int)TE_ROWS_routed | ((int)(experts) & 2047) << 8 | ((int)(top_k) & 255))
TE_BOTH int te__rows_are_routed(te_rows rows) { return (int)rows >= (int)TE_ROWS_routed; }
/* TE_ROUTED_ROWS_OF_RANKS(ranks) has the bits to add to TE_ROUTED_ROWS if the experts are divided over `ranks` ranks
 * (fewer than 256). If `ranks` is 0, each rank has all experts, and no bit is added. TE_ROUTED_RANKS(rows) returns the
 * number of ranks that is stored in the kind `rows`. */
#define TE_ROUTED_ROWS_OF_RANKS(ranks) ((ranks) > 0 ? (int)TE_ROWS_of_ranks | ((int)(ranks) & 255) << 21 : 0)
#define TE_ROUTED_RANKS(rows) ((int)(rows) & (int)TE_ROWS_of_ranks ? (int)(rows) >> 21 & 255 : 0)
/* How many rows of this kind belong to one token: top_k if the rows are routed, else 1. */
TE_BOTH int te__rows_per_token(te_rows rows) { return te__rows_are_routed(rows) ? (int)rows & 255 : 1; }

/* How a value is laid out over the ranks of the tensor group. The layout is known at compile time, and
 * te/fuse/impl/list_checks.h checks that each op accepts the layout of its input. */
typedef enum te_rank_layout {
    TE_LAYOUT_any,          /* the layout of x, which every op accepts. The outputs of ops have this layout too, up to
                             * the first op that states a layout */
    TE_LAYOUT_replicated,   /* each rank has the whole value and its whole gradient. If the rows are sharded
                             * (TE_ROWS_shard), each rank has all columns of its own rows */
    TE_LAYOUT_partial_grad, /* each rank has the whole value, but only a partial sum of the value's gradient; the
                             * backward of the preceding all_gather or copy_to_group adds up the partial sums */
    TE_LAYOUT_columns,      /* each rank has its own part of the columns */
    TE_LAYOUT_partial_sum,  /* each rank has a partial sum of each element; the value is the sum of the partial sums of
                             * all ranks */
    TE_LAYOUT_some_rows     /* routed rows of which this rank computes only some. If the router sends rows to the ranks
                             * of their experts, the rank computes the rows of its own experts; if the router has a
                             * capacity, rows beyond this capacity are dropped. The rank has all columns of the rows
                             * that it computes, and the whole gradient of these rows */
} te_rank_layout;

/* Which part of a parameter each rank of the tensor group holds. */
typedef enum te_shard {
    TE_SHARD_none,    /* the whole parameter */
    TE_SHARD_columns, /* the part that produces this rank's columns of the op's output: rows of a weight [out, in],
                       * columns of a bias, rows of an embedding */
    TE_SHARD_rows,    /* the part that is multiplied by this rank's columns of the op's input: columns of a weight [out,
                       * in] */
    TE_EXPERT_SHARD   /* the part of this rank's experts: rows of a weight [experts * out, in], or of a bias [experts,
                       * out] */
} te_shard;

/* How the operands of a GEMM are stored in FP8. All other values of a list have the list's dtype. An FP8 number is
 * stored multiplied by its scale. With one scale per tensor, x and the weight are e4m3, and the gradient dy is e5m2 or
 * e4m3 (Micikevicius et al. 2022). With one scale per 1 x 128 tile of x and dy and per 128 x 128 block of the weight,
 * x, dy and the weight are e4m3 (DeepSeek-V3, 2024). With one scale per row, x and the weight are e4m3, and backward
 * runs in the list's dtype. */
typedef enum te_recipe {
    TE_RECIPE_none,
    TE_RECIPE_fp8_current, /* one scale per tensor, computed from the tensor's own amax */
    TE_RECIPE_fp8_delayed, /* one scale per tensor, computed from the amaxes that this tensor had in earlier optimizer
                            * steps. The scale is known before the tensor is computed, so a cast reads the tensor once;
                            * with fp8_current it reads the tensor twice */
    TE_RECIPE_fp8_block,   /* one scale for each 1 x 128 tile of x and dy, and for each 128 x 128 block of the weight */
    TE_RECIPE_fp8_row,     /* one scale for each row of x, and for each row of the weight; FP8 is used in forward
                            * only */
    TE_RECIPE_mxfp8,       /* e4m3 with a power of two as the scale of each 32 elements (microscaling.h) */
    TE_RECIPE_nvfp4,       /* e2m1 with a scale in e4m3 for each 16 elements (microscaling.h) */
    TE_RECIPE_COUNT
} te_recipe;
/* TE_IS_BLOCKWISE, TE_IS_ROWWISE and TE_IS_TENSORWISE say whether the recipe has one scale per tile or block, per row,
 * or per tensor. TE_SCALING_OF is the te_scaling by which the recipe scales x and dy. If `recipe` is a constant
 * expression, all four macros are constant expressions. */
#define TE_IS_BLOCKWISE(recipe) ((int)(recipe) == (int)TE_RECIPE_fp8_block)
#define TE_IS_ROWWISE(recipe) ((int)(recipe) == (int)TE_RECIPE_fp8_row)
/* Whether the recipe is mxfp8 or nvfp4. GEMMs under these recipes are emulated: they run in the list's dtype, on
 * operands that were rounded to the recipe's format. */
#define TE_IS_MICROSCALED(recipe) ((int)(recipe) == (int)TE_RECIPE_mxfp8 || (int)(recipe) == (int)TE_RECIPE_nvfp4)
/* The widths of a GEMM under the recipe must be multiples of this number. */
#define TE_FP8_COLUMNS(recipe) ((int)(recipe) == (int)TE_RECIPE_mxfp8 ? 32 : 16)
#define TE_IS_TENSORWISE(recipe) \
    ((int)(recipe) == (int)TE_RECIPE_fp8_current || (int)(recipe) == (int)TE_RECIPE_fp8_delayed)
#define TE_SCALING_OF(recipe)                           \
    (TE_IS_TENSORWISE(recipe)  ? (int)TE_SCALING_TENSORWISE \
     : TE_IS_ROWWISE(recipe)   ? (int)TE_SCALING_ROWWISE    \
     : TE_IS_BLOCKWISE(recipe) ? (int)TE_SCALING_BLOCKWISE_1D  \
                               : (int)TE_SCALING_NONE)

/* A parameter as the list declares it. */
typedef struct te_param_info {
    const char *field; /* "weight", "bias" */
    int64_t rows, cols;
    te_init init;
    int tied; /* 1: the parameter has no memory of its own, but uses the memory of another parameter (te_tie) */
} te_param_info;

enum { TE_MAX_PARAMS = 3,                         /* the largest number of parameters of an op */
       TE_MAX_RECOMPUTE_REGIONS = TE_MAX_OPS / 3, /* the largest number of recompute regions in a list: a region has at
                                                   * least two marks and one op */
       TE_OP_BITS = (TE_MAX_OPS + 31) / 32 };     /* the number of 32-bit words in a bit set that has one bit for each
                                                   * op */

/* One op of a list. All members are constants. */
typedef struct te_op {
    const char *kind, *name; /* the op (gelu, act) has kind "gelu" and name "act" */
    te_class op_class;
    int in, out;                  /* widths, in elements of a row, of the op's input (in) and of its output (out) */
    te_dtype in_dtype, out_dtype; /* number formats of the op's input (in_dtype) and output (out_dtype) */
    te_rows in_rows, out_rows;    /* kinds of rows of the op's input (in_rows) and output (out_rows) */
    te_dtype edge_dtype;          /* the number format of the value of a fork or of an (input, ..); set for these two
                                   * ops, and for the ops that use their value */
    int flags;                    /* the op's properties, a combination of flags such as TE_SAVES_INPUT */
    te_recipe recipe;             /* the FP8 recipe of the op's GEMM */
    te_block_format weights;      /* the format of the op's weight if the weight is stored in few bits,
                                   * TE_BLOCK_quantized if any such format is allowed, TE_BLOCK_none if the weight is
                                   * not stored in few bits */
    int stats;                    /* how many f32 statistics, such as mean and rstd, forward saves for each row */
    te_rank_layout layout;        /* the layout of the op's output over the ranks of the tensor group */
    int parts;                    /* the columns of the op's output consist of this many parts, each of which is split
                                   * over the ranks separately: 3 for a fused q, k, v; 1 if the columns are split as a
                                   * whole */
    int first_part;               /* (width of the first part of the output columns) / (width of each other part):
                                   * heads / kv_heads for a fused q, k, v */
    int copies;                   /* how many consecutive ranks hold the same columns of each part except the first. For
                                   * a fused q, k, v with fewer kv heads than ranks, this is ranks / kv_heads; otherwise
                                   * 1 */
    int ranks;                    /* for an op with a vocabulary: the number of ranks over which the vocabulary is
                                   * sharded, or 0 if the vocabulary is not sharded */
    te_cp_form context;           /* for an attention: how the ranks of a context group compute the attention together;
                                   * TE_CP_none if each rank computes the attention of its own sequences */
    int edge;                     /* the index of the fork or (input, ..) whose value the op uses; for a combine, the
                                   * index of the router whose rows the combine sums; -1 if the op uses none of these */
    int experts;                  /* for a router, and for an op with parameters for each expert: the number of experts;
                                   * 0 for other ops */
    const void *options;          /* the op's constants, a te_<family>_options, whose members are ints and floats */
    int options_bytes, params;
    /* The array has one element more than TE_MAX_PARAMS, because the macros that initialise it append a filler
     * element. */
    te_param_info param[TE_MAX_PARAMS + 1];
} te_op;

/* How a gradient is rounded to FP8: to the nearest number, or stochastically, so that the expected value of the result
 * is the gradient itself. */
typedef enum te_rounding { TE_ROUNDING_nearest, TE_ROUNDING_stochastic } te_rounding;

struct te_quantize;
struct te_quantize_blockwise;
struct te_quantize_rowwise;
struct te_quantize_microscaled;
struct te_quantize_multi_tensor;
struct te_multi_tensor;
struct te_gemm; struct te_model; struct te_run; struct te_step; struct te_value; struct te_fp8_product;

/* The FP8 functions of a list with a recipe, which te/linear/impl/linear_fp8.h defines. The library calls these
 * functions only through this table, so a program whose lists name no recipe contains no FP8 code. */
typedef struct te_fp8_ops {
    /* These three functions store a tensor in FP8 with one scale for the whole tensor. quantize and quantize_dy cast a
     * tensor from the list's dtype, and quantize_dy rounds in the way that the member `rounding` names; transpose_fp8
     * transposes a tensor that is in FP8 already. (The members of this struct are in the order of the initialiser in
     * te/linear/impl/linear_fp8.h.) */
    te_status (*quantize)(const struct te_quantize *q, te_context *ctx);
    te_status (*quantize_dy)(const struct te_quantize *q, te_context *ctx);
    te_status (*transpose_fp8)(const struct te_quantize *q, te_context *ctx);
    /* runs a GEMM under recipes with one scale per tensor */
    te_status (*product)(const struct te_gemm *g, te_context *ctx);
    /* For fp8_block: functions that cast a tensor, run a GEMM, and return whether the GEMM's epilogue can add a bias.
     * All three are null if the list has another recipe. */
    te_status (*quantize_blockwise)(const struct te_quantize_blockwise *q, te_context *ctx);
    te_status (*gemm_blockwise)(const struct te_gemm *g, te_context *ctx);
    int (*blockwise_takes_bias)(const struct te_gemm *g, te_context *ctx);
    /* For fp8_row: the function that casts a tensor with one scale per row. Null if the list has another recipe. */
    te_status (*quantize_rowwise)(const struct te_quantize_rowwise *q, te_context *ctx);
    /* Functions that cast many weights in one launch: with one scale per weight (cast_weights), per 128 x 128 block, or
     * per row. A function that the list's recipe does not need is null. */
    te_status (*cast_weights)(const struct te_quantize_multi_tensor *t, te_context *ctx);
    te_status (*cast_weights_by_block)(const struct te_multi_tensor *t, te_context *ctx);
    te_status (*cast_weights_by_row)(const struct te_multi_tensor *t, te_context *ctx);
    /* `forward` sets *g to the GEMM that op i runs in forward, with operands in FP8. `backward` sets *w and *x to the
     * two GEMMs that op i runs in backward: *w computes dweight, and *x computes dx. `backward` is null in a list for
     * inference only. */
    te_status (*forward)(struct te_gemm *g, struct te_run *r, int i, struct te_value x);
    te_status (*backward)(struct te_gemm *w, struct te_gemm *x, struct te_run *r, int i, struct te_value dy);
    /* Store the transpose of v, an FP8 value, to `transposed`. All rows of v must already have been computed; if v is a
     * dy that is gathered from all ranks, call this function only after the gather. */
    te_status (*transpose)(struct te_run *r, struct te_value v, void *transposed);
    /* Cast v to the format `to`, as an operand of GEMM f; `index` is the index of the operand's scale in f->scales. The
     * cast value goes to y, its transpose to yt, and 1 / scale to `inverse`; each of these three pointers may be
     * null. */
    te_status (*cast)(struct te_run *r, struct te_value v, const struct te_fp8_product *f, int index, te_dtype to,
                      void *y, void *yt, float *inverse);
    int fixed_widths;     /* 1: all widths of the list are constants. Only then can pointwise kernels store FP8 with one
                           * scale per tile or per row */
    int saves_inputs;     /* 1: the list has the option (inputs, saved), under which forward saves GEMM inputs even
                           * where backward could recompute them */
    te_dtype gradients;   /* the format of dy under recipes with one scale per tensor: e5m2 or e4m3 */
    te_rounding rounding; /* how dy is rounded */
    te_dtype weights;     /* the number format in which the weights of FP8 GEMMs are stored as parameters
                           * (te_param.data): the optimizer writes this format, and casts to FP8 read it */
    /* For mxfp8 and nvfp4: the function that rounds a tensor to the format of the list's recipe. Null if the list has
     * another recipe. */
    te_status (*quantize_microscaled)(const struct te_quantize_microscaled *q, te_context *ctx);
    /* For nvfp4. hadamard: 1 if the operands of the weight gradient are transformed by a Hadamard transform.
     * square_blocks: 1 if a block of the weight is 16 x 16 elements. */
    int hadamard, square_blocks;
} te_fp8_ops;

typedef struct te_quantized_weight te_quantized_weight; /* te/quant/block_formats.h */
/* The functions that a list needs if its weights are stored in few bits, i.e. quantized (te/quant/block_formats.h). The
 * library calls these functions only through this table, so a program whose lists do not name the option (weights, ..)
 * contains none of this code. */
typedef struct te_quantized_ops {
    size_t (*scratch)(const struct te_gemm *g);                     /* bytes of scratch memory that `product` needs */
    te_status (*product)(const struct te_gemm *g, te_context *ctx); /* D = alpha A B^T + beta C; B is quantized */
    /* Embedding lookup: for each i < rows, convert row tokens[i] of w, which has `cols` columns, to `dtype`, and store
     * it to row i of y. */
    te_status (*lookup)(void *y, te_dtype dtype, const int32_t *tokens, int64_t rows, const te_quantized_weight *w,
                        int64_t cols, te_context *ctx);
} te_quantized_ops;

typedef te_status (*te_step_fn)(struct te_run *run, const struct te_step *step);

/* A step of a plan: the ops that one fusion pattern has matched, and the function that runs them. */
typedef struct te_step {
    const char *pattern; /* the kinds of the step's ops, joined by underscores, e.g. "linear_bias_gelu" */
    const char *kernels; /* the prefix that the names of the step's kernels share, e.g. "block_fc1_linear_bias_gelu" */
    int count;
    int op[TE_MAX_PATTERN]; /* the indices of the step's ops in te_plan.op, in the order in which the pass runs them */
    te_step_fn run;
} te_step;

/* A recompute region: the ops with the indices first to last, both included, which stand between (recompute, name) and
 * (end_recompute, name) in the list. Of the values of these ops, forward saves at most those of the last op for
 * backward; backward recomputes the others by running the region's forward steps a second time. The two marks are not
 * in the table of ops. */
typedef struct te_recompute_region {
    const char *name;
    int first, last;
} te_recompute_region;

/* Functions that the executor (executor.h) calls before and after each step of a plan that trains, and at the end of a
 * pass. These functions advance the random state, open and close recompute regions, and add up column sums. */
typedef struct te_training {
    te_status (*before)(struct te_run *run, const struct te_step *step);
    te_status (*after)(struct te_run *run, const struct te_step *step);
    te_status (*end)(struct te_run *run);
} te_training;

/* The plan that TE_SEQUENTIAL makes from a list. A plan is constant. */
typedef struct te_plan {
    const char *name;
    te_dtype dtype;               /* number format of the parameters, and of every value unless the op that produces the
                                   * value states another format */
    te_dtype in_dtype, out_dtype; /* number formats of x and y */
    int in, out;                  /* widths of x and y */
    int op_count, forward_count, infer_count, backward_count;
    const te_op *op;
    const te_step *forward, *infer, *backward;
    int region_count;
    const te_recompute_region *region; /* the list's recompute regions, in list order (te/ops/recompute.h) */
    int takes_dims; /* 1: the widths are symbols (dims.h), and the plan cannot run; te_plan_set_dims makes a plan with
                     * numbers, which can run */
    const te_fp8_ops *fp8; /* the FP8 functions, or null if the list names no recipe */
    const te_quantized_ops *quantized; /* the functions for quantized weights, or null if the list does not have the
                                        * option (weights, ..) with `quantized` or a block format */
    const te_training *(*training)(
        void); /* returns the functions for training. Null for a list for inference only (inference.h), which has no
                * forward and no backward steps */
    te_status (*product)(const struct te_gemm *g, te_context *ctx); /* runs a GEMM in the list's dtype
                                                                     * (TE_GEMM_RUN_OF) */
    /* converts a value to the number format that its consumer reads, if the two formats differ; this is te_convert
     * (core/tensor_kernels.h) */
    te_status (*convert)(void *y, te_dtype to, const void *x, te_dtype from, int64_t count, te_context *ctx);
} te_plan;

/* The function that te__renew_weights calls, as renew(of, ctx), if weights were written after their last cast to FP8.
 * The function casts these weights to FP8 again. */
typedef struct te_fp8_renewal {
    te_status (*renew)(void *of, te_context *ctx);
    void *of;              /* the argument of `renew`: the te_recipes */
    const te_context *ctx; /* the context with which all weights were last cast */
    uint64_t loaded;       /* the value of ctx->loaded at the last cast of all weights */
} te_fp8_renewal;

/* The FP8 state of a GEMM that has a recipe; the te_param of the GEMM's weight holds it (te/optim/recipes.h). */
typedef struct te_fp8_product {
    int on;                        /* 1: the GEMM runs in FP8 at present; 0: it runs in the list's dtype */
    int current;                   /* 1: each scale is computed from the current tensor's amax (fp8_current). 0: each
                                    * scale is computed from the amaxes of earlier optimizer steps (fp8_delayed) */
    int common;                    /* 1: all ranks of the group have the same FP8 scales */
    const te_scales *scales;       /* the FP8 scales of all GEMMs of the instance */
    int x, weight, dy;             /* the indices, within `scales`, of the scales of this GEMM's three operands */
    void *data, *transposed;       /* the weight in FP8: `data` is [rows, cols], and `transposed` is its transpose
                                    * [cols, rows], which is null under fp8_row */
    float *inverse, *transposed_inverse; /* only under fp8_block and fp8_row: 1 / scale of each block or row of `data`
                                          * (inverse), and of each block of `transposed` (transposed_inverse) */
    te_scale_rule own;             /* how a scale is computed from the current tensor's amax */
    uint64_t written;              /* the weight's write count (te__writes_of) at the time of its last cast to `data` */
    struct te_fp8_renewal *renewal; /* casts the weight again if the weight was written after the last cast; null if the
                                     * weight exists only in FP8 */
    int updated;                   /* 1: the optimizer's update kernel also computes this weight's amax, or casts the
                                    * weight to FP8 (recipes_adamw.h) */
} te_fp8_product;

/* One parameter of one instance. */
typedef struct te_param {
    const char *op, *field;  /* op: the name of the op that the parameter belongs to, e.g. "fc1"; field: the name of the
                              * parameter, e.g. "weight" */
    void *data;              /* the parameter's values, [rows, cols] of `dtype`, in target memory (host or device). Null
                              * if the parameter exists only in FP8 (fp8_weights.h) or is quantized */
    float *grad;             /* the parameter's gradient, [rows, cols] in f32, or null if it has no gradient */
    int64_t rows, cols;
    te_dtype dtype;          /* the number format of `data` (te__plan_param_dtype) */
    te_init init;
    int tied;                /* 1: the parameter uses the memory of another parameter, its owner (te_tie) */
    int constant;            /* 1: the parameter's memory is a mapped file, which is only read (te_weights_use) */
    int shared;              /* 1: another parameter uses the same gradient buffer (te_tie), and backward writes the
                              * gradient of that other parameter first. Backward therefore adds this parameter's
                              * gradient to the buffer instead of overwriting the buffer */
    int trains;              /* 1: the parameter's instance was bound with gradients */
    int frozen;              /* 1: no gradient is computed for the parameter, and no optimizer changes it (freeze.h) */
    int fixed;               /* 1: the parameter is always frozen, because the list declares its op as frozen
                              * (frozen_linear) */
    int last;                /* 1: the gradient is a deferred column sum, so the gradient is written only at the end of
                              * backward (gradients.h) */
    int index;               /* the parameter's index among the parameters of its instance */
    te_shard shard;          /* the part of the parameter that this rank of the tensor group holds */
    int parts;               /* the op's output columns consist of this many parts, each of which is split over the
                              * ranks separately: 3 for a fused q, k, v; 1 if the columns are split as a whole */
    int first_part;          /* (width of the first part of the op's output columns) / (width of each other part):
                              * heads / kv_heads for a fused q, k, v */
    int copies;              /* how many consecutive ranks hold the same elements of each part except the first; the
                              * gradient of these elements is summed over those ranks. 1: no two ranks hold the same
                              * elements */
    int sums;                /* 1: each rank of the tensor group has only a partial sum of the parameter's gradient */
    int is_copy;             /* 1: the parameter is a copy; another stage of the pipeline holds the original
                              * (te_model_mark_copy) */
    int is_sharded;          /* 1: the gradient, or both gradient and values, are sharded over the data group
                              * (te_model_shards) */
    struct te_param *with;   /* for a tied parameter: its owner, i.e. the parameter whose memory it uses. For an owner:
                              * the parameter whose gradient backward writes first, which is either the owner or a
                              * parameter that is tied to it. Null if the parameter is neither tied nor an owner */
    uint64_t written;        /* a write count, which changes whenever the values are written (te__count_write). For a
                              * tied parameter, the write count of its owner is used instead */
    te_fp8_product fp8;      /* the FP8 state of the GEMM whose weight this parameter is, if the GEMM has a recipe */
    te_block_format weights; /* the block format that te_use_quantized accepts for the parameter; the option (weights,
                              * ..) of the op or of the list names this format; TE_BLOCK_quantized: any format;
                              * TE_BLOCK_none: no quantized weights */
    const te_quantized_weight *quantized; /* the values in a quantized format (te_use_quantized), in which case `data`
                                           * is not read. Null if the values are in `data` */
} te_param;

/* A listener that backward calls as soon as a gradient is final, that is, when the gradient will not be written again
 * before the optimizer step. te/comm/buckets.h uses a listener to reduce final gradients over ranks while the rest of
 * backward runs. */
typedef struct te_watch {
    int armed;  /* 1: backward calls this listener, and the gradients must not be read yet. 0: backward calls this
                 * listener only if te_model.shards is set */
    const char *finish; /* the name of the call after which the gradients may be read, for error texts */
    int slices; /* the number of slices into which the buffer of reduced gradients is cut. With ZeRO-1, each rank gets
                 * one slice; without ZeRO-1, the number is 1, and each rank gets all gradients */
    /* Return an error if backward of m must not run now, because backward would overwrite gradients that are being
     * reduced. */
    te_status (*allows)(const struct te_watch *w, const struct te_model *m, te_context *ctx);
    /* Backward calls this function as soon as backward will not write the gradient of p again. */
    te_status (*is_final)(struct te_watch *w, const te_param *p, te_context *ctx);
} te_watch;

/* The shards of an instance whose gradients, or whose weights and gradients, are sharded over the data group
 * (te/optim/fsdp.h). The memory to which the instance is bound is then filled and used only while a pass runs. An
 * instance with n elements is cut into `ranks` shards of te__slice_elements(n, ranks) elements, one for each rank. If
 * elements remain after the last shard, they belong to no shard, and every rank holds them. */
typedef struct te_model_shards {
    int has_weights;  /* 1: weights and gradients are sharded; 0: only gradients are */
    int is_gathered;  /* 1: the memory to which the instance is bound contains the whole weights at present */
    int rank, ranks;
    int64_t elements; /* the number of elements of a shard */
    void *params;     /* this rank's shard of the weights, followed by the weights that belong to no shard. If only
                       * gradients are sharded, the pointer equals te_model.params, which has all weights */
    float *grads;     /* this rank's shard of the gradients, summed over the ranks, followed by the gradients of the
                       * weights that belong to no shard */
    /* The executor calls this function when all checks of a pass have been made, before it enqueues the first step. The
     * function gathers the weights. accumulates: 1 if backward adds to the gradients, 0 if backward overwrites the
     * gradients */
    te_status (*begin)(struct te_model_shards *s, int is_backward, int accumulates, te_context *ctx);
} te_model_shards;

/* One instance of a list, the first member of the struct that TE_SEQUENTIAL declares. The instance's parameters follow
 * in the same struct, in list order. An instance must not move in memory after it was bound: calls return an error for
 * a copy. */
typedef struct te_model {
    const te_plan *plan;
    te_param *param;
    int param_count;
    const struct te_model *at; /* the address that this te_model had when it was bound. In a copy of the instance, `at`
                                * differs from the copy's own address. Null if the parameters do not follow the te_model
                                * in the same struct */
    const void *params;        /* the buffer of the instance's parameters: `elements` elements, param_bytes bytes */
    const float *grads;        /* the buffer of the instance's gradients: grad_elements elements; null if the instance
                                * has no gradients */
    int64_t elements, grad_elements;
    size_t param_bytes;
    te_watch *watch;           /* the listener for final gradients, or null */
    te_model_shards *shards;   /* the shards of the instance, or null if this rank has all weights and gradients of the
                                * instance */
    int is_elsewhere;          /* 1: another stage of the pipeline holds the parameters, and this instance has no memory
                                * (te_model_describe) */
} te_model;

/* The activations that one forward saves for its backward. Several te_saved may be in use at a time with the same
 * parameters (micro-batches). The caller sets `memory` (target memory of at least <model>_saved_bytes(rows) bytes,
 * aligned to TE_ALIGN) and `bytes`; forward fills in the rest. If backward reads the forward's x or y, then that tensor
 * must not change until backward has run. */
typedef struct te_saved {
    void *memory;
    size_t bytes;
    const te_plan *plan;
    const te_model *model;    /* the instance of the forward */
    /* batch, seq, position, context, sequences, max_seqlen, cu_seqlens and positions are copied from the te_batch of
     * forward; the te_batch of backward must have the same values. */
    int batch, seq, position, context;
    int sequences, max_seqlen;
    const int32_t *cu_seqlens, *positions;
    /* Members of forward's te_batch that must also be the same in backward, but only in some lists: tokens, if the list
     * begins with an embedding; labels and ignore_index, if the list ends in a loss */
    const int32_t *tokens, *labels;
    int ignore_index;
    int64_t memory_rows;      /* the number of rows of kind TE_ROWS_memory in the forward call */
    const void *x;
    void *y;
    int64_t x_stride, y_stride; /* te_tensor.stride of the forward's x and y */
    size_t used;              /* bytes of `memory` that the forward used */
    int loss_in_backward;     /* 1: forward did not compute the loss; backward computes it and writes y */
    const void *filled;       /* the value of `memory` when forward ran; backward returns an error if `memory` has
                               * changed since */
    uint32_t transposed[TE_OP_BITS]; /* a copy of te_run.saved_transposed */
} te_saved;

/* Return whether the list's first op reads tokens instead of x. */
TE_API int te__from_tokens(const te_plan *p) { return (p->op[0].flags & TE_FROM_TOKENS) != 0; }
/* Return whether the list's last op computes a loss, so that y is this loss. */
TE_API int te__to_loss(const te_plan *p) { return (p->op[p->op_count - 1].flags & TE_TO_LOSS) != 0; }
/* Return whether the plan has an extra input whose rows are of kind TE_ROWS_memory. */
TE_API int te__has_memory(const te_plan *p) {
    for (int i = 0; i < p->op_count; i++)
        if (p->op[i].flags & TE_OF_MEMORY) return 1;
    return 0;
}
/* Return whether any value of the plan has rows of kind TE_ROWS_shard. */
TE_API int te__has_sharded_rows(const te_plan *p) {
    for (int i = 0; i < p->op_count; i++)
        if (p->op[i].in_rows == TE_ROWS_shard || p->op[i].out_rows == TE_ROWS_shard) return 1;
    return 0;
}
/* Return whether backward computes the gradient of parameter p. A tied parameter is trained if its owner, the parameter
 * whose memory it uses, is not frozen. */
TE_API int te_is_trained(const te_param *p) {
    const te_param *owner = p->tied ? p->with : p;
    return p->grad && owner && !owner->frozen;
}
/* Return whether op i is the last op in the list that uses the value of its fork. If so, op i is the first op that
 * contributes to the fork's gradient, because backward runs the list in reverse. */
TE_API int te__is_last_use(const te_plan *p, int i) {
    for (int j = i + 1; j < p->op_count; j++)
        if (p->op[j].edge == p->op[i].edge) return 0;
    return 1;
}
/* Return whether op i is the GEMM that produces the logits, in a list whose forward does not save the logits. This GEMM
 * and the loss are then one step of backward, which recomputes the logits. */
TE_API int te__recomputes_logits(const te_plan *p, int i) {
    const te_step *s = &p->backward[0];
    return s->count > 1 && s->op[1] == i && (p->op[s->op[0]].flags & TE_TO_LOSS) && p->op[i].recipe == TE_RECIPE_none;
}
/* Return whether op i is a router. The output of a router has routed rows, each of which is a copy of a row of the
 * router's input. */
TE_API int te__is_router(const te_plan *p, int i) {
    return i >= 0 && p->op[i].experts && !te__rows_are_routed(p->op[i].in_rows);
}
/* Return whether op i is a router that sends rows to the ranks that hold the experts. */
TE_API int te__is_exchange(const te_plan *p, int i) {
    return te__is_router(p, i) && p->op[i].in_rows == TE_ROWS_shard;
}
/* Return whether forward need not save the output of op i because backward gathers this output again from the op's
 * saved input. The result is 1 if op i is a router and an expert_linear reads the router's output. */
TE_API int te__is_regathered(const te_plan *p, int i) {
    return te__is_router(p, i) && i + 1 < p->op_count && p->op[i + 1].experts && (p->op[i + 1].flags & TE_SAVES_INPUT);
}
/* Return whether forward need not save the output of op i because backward can compute the gradients of the router's
 * weights without this output. The result is 1 if op i is an expert_linear, and the combine behind op i is in the same
 * backward step. */
TE_API int te__is_combined(const te_plan *p, int i) {
    if (!p->op[i].experts || !(p->op[i].flags & TE_SAVES_INPUT) || te__is_router(p, i)) return 0;
    for (int k = 0; k < p->backward_count; k++)
        if (p->backward[k].op[0] == i + 1) return p->backward[k].count > 1;
    return 0;
}
TE_API te_rows te__out_rows(const te_plan *p) { return p->op[p->op_count - 1].out_rows; }

#endif
