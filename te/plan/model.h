/* model.h -- the data structures that TE_SEQUENTIAL makes from a list: a plan (a table of ops and three tables of
 * steps: forward, inference, backward), and an instance of it. A plan is constant. Three structures change at run time:
 * te_model and te_param (the parameters of one instance) and te_saved (the memory of one forward).
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

/* Properties of an op, te_op.flags: which values forward must save for its backward, and how the executor, fusion and
 * the collectives treat the op. */
enum {
    /* saved for backward */
    TE_SAVES_INPUT = 1 << 0,  /* the op's input stays in memory until its backward */
    TE_SAVES_OUTPUT = 1 << 1, /* the op's output stays in memory until its backward */
    /* gradients */
    TE_GRAD_UNCHANGED = 1 << 2, /* the gradient of its input equals the gradient of its output (bias, add) */
    TE_SUMS = 1 << 3,           /* backward sums the gradient over rows into the op's first parameter (bias) */
    TE_SUMS_THREE = 1 << 4,     /* backward also computes sums for the op's second and third parameters (dyt); its
                                 * fusion pattern must contain no norm or gated op */
    TE_IS_FROZEN = 1 << 5,      /* its parameters never train (frozen_linear) */
    TE_DRAWS = 1 << 6,          /* draws random numbers (dropout) */
    /* forks, and the ops that use a fork's value */
    TE_IS_FORK = 1 << 7,    /* passes its input on, and keeps it for a later op */
    TE_IS_ADD = 1 << 8,     /* adds a fork's value */
    TE_IS_MUL = 1 << 9,     /* multiplies by a fork's value */
    TE_IS_LOAD = 1 << 10,   /* its output is a fork's value; its input is dropped */
    TE_IS_CROSS = 1 << 11,  /* attends to a fork's value (cross_attention) */
    TE_IS_INPUT = 1 << 12,  /* a fork whose value the caller provides: an extra input of the list */
    TE_OF_MEMORY = 1 << 13, /* an extra input whose rows are TE_ROWS_memory */
    TE_IS_OUTPUT = 1 << 14, /* stores the value for the caller: an extra output of the list */
    /* the ends of a list */
    TE_FROM_TOKENS = 1 << 15, /* must begin a list, which then reads tokens instead of x (embedding) */
    TE_TO_LOSS = 1 << 16,     /* must end a list, whose y is then one f32 loss for each row (cross_entropy) */
    /* attention */
    TE_VARLEN = 1 << 17,            /* takes sequences of different lengths (cu_seqlens) */
    TE_OUTPUTS_MAX_LOGIT = 1 << 18, /* stores its largest logits in the te_batch.edges entry with the op's name */
    TE_ATTENDS_IN_FP8 = 1 << 19,    /* computes both products of its forward in e4m3 */
    TE_IS_CACHED = 1 << 29,         /* in inference it can store keys and values in a te_cache */
    /* an op that the epilogue of the GEMM before it can compute, and as which operation */
    TE_EPILOGUE_OF_BIAS = 1 << 20,  /* adding the op's parameter */
    TE_EPILOGUE_OF_GELU = 1 << 21,  /* GELU */
    TE_EPILOGUE_OF_SCALE = 1 << 22, /* multiplying by a constant; te_op.options is a te_scale_options */
    TE_EPILOGUE_OF_ROPE = 1 << 28,  /* rotary position embedding (te/linear/impl/linear_rope.h) */
    /* ranks of a tensor group */
    TE_PARAMS_REPLICATED = 1 << 23, /* the op's values are sharded by columns, but each rank holds all its parameters */
    TE_TAKES_PRODUCT = 1 << 24,     /* sums over ranks; the GEMM of the linear before it may be deferred to this op */
    TE_PASSES_VALUE = 1 << 25,      /* in forward its output is its input, in the same memory (copy_to_group) */
    TE_PASSES_GRAD = 1 << 26,       /* in backward the gradient passes unchanged, in the same memory (all_reduce) */
    TE_PASSES_THROUGH = TE_PASSES_VALUE | TE_PASSES_GRAD,
    TE_LEADS_POINTWISE = 1 << 27 /* a custom op; the pointwise kernel of its fusion pattern can run without the op */
};

typedef enum te_init {
    TE_INIT_normal,
    TE_INIT_zero,
    TE_INIT_one,
    TE_INIT_tied, /* not initialised: it shares the memory of another parameter (te_tie) */
    TE_INIT_half  /* the constant 0.5 */
} te_init;

/* Which kind of rows a value has. The kind is known at compile time; the number of rows follows from each call's
 * te_batch. */
typedef enum te_rows {
    TE_ROWS_tokens,    /* one for each token: te_batch.batch * te_batch.seq */
    TE_ROWS_sequences, /* one for each sequence: te_batch.batch */
    TE_ROWS_shard, /* one for each token of this rank's shard: the tensor group's rank r of n has the r-th of n equal
                    * parts of the tokens (sequence parallelism) */
    TE_ROWS_memory /* one for each row that a decoder attends to: te_batch.batch * te_batch.memory_seq */
} te_rows;

/* How a value is laid out over the ranks of the tensor group. The layout is known at compile time;
 * te/fuse/impl/list_checks.h checks that each op accepts the layout of its input. */
typedef enum te_rank_layout {
    TE_LAYOUT_any,          /* no op so far has determined the layout */
    TE_LAYOUT_replicated,   /* each rank has the whole value and its whole gradient (with TE_ROWS_shard, those of its
                             * own rows) */
    TE_LAYOUT_partial_grad, /* each rank has the whole value, but only a partial sum of its gradient: the backward of
                             * the preceding all_gather or copy_to_group adds up the partial sums */
    TE_LAYOUT_columns,      /* each rank has its own columns */
    TE_LAYOUT_partial_sum   /* each rank has a partial sum of each element */
} te_rank_layout;

/* Which part of a parameter a rank of the tensor group holds. */
typedef enum te_shard {
    TE_SHARD_none,    /* all of it */
    TE_SHARD_columns, /* the part that produces the rank's own columns of the op's output: rows of a weight [out, in],
                       * columns of a bias, rows of an embedding */
    TE_SHARD_rows     /* the part that multiplies the rank's own columns of the op's input: columns of a weight
                       * [out, in] */
} te_shard;

/* The FP8 format in which a GEMM reads its operands; all other values of a list have the list's dtype. An FP8 number is
 * stored multiplied by its scale. With one scale for each tensor, x and the weight are e4m3 and the gradient dy is e5m2
 * or e4m3 (Micikevicius et al. 2022). With a scale for each 1 x 128 tile or 128 x 128 block, all three are e4m3
 * (DeepSeek-V3, 2024). With a scale for each row, x and the weight are e4m3, and backward runs in the list's dtype. */
typedef enum te_recipe {
    TE_RECIPE_none,
    TE_RECIPE_fp8_current, /* one scale a tensor, computed from the tensor's own amax */
    TE_RECIPE_fp8_delayed, /* one scale a tensor, computed from the amaxes of earlier optimizer steps; this takes one
                            * pass over the tensor instead of two */
    TE_RECIPE_fp8_block,   /* a scale for each 1 x 128 tile of x and dy, and for each 128 x 128 block of the weight */
    TE_RECIPE_fp8_row,     /* a scale for each row of x, and for each row of the weight; in forward only */
    TE_RECIPE_COUNT
} te_recipe;
/* Whether a recipe has a scale for each tile and block (TE_IS_BLOCKWISE), for each row or for each tensor; and
 * TE_SCALING_OF: how the recipe scales x and dy, a te_scaling. All are constant expressions if `recipe` is one. */
#define TE_IS_BLOCKWISE(recipe) ((int)(recipe) == (int)TE_RECIPE_fp8_block)
#define TE_IS_ROWWISE(recipe) ((int)(recipe) == (int)TE_RECIPE_fp8_row)
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
    int tied; /* it has no memory of its own: te_tie() makes it share that of another parameter */
} te_param_info;

enum { TE_MAX_PARAMS = 3 /* of one op */, TE_MAX_RECOMPUTE_REGIONS = TE_MAX_OPS / 3 /* two marks and an op */,
       TE_OP_BITS = (TE_MAX_OPS + 31) / 32 };

/* One op of a list: constants. */
typedef struct te_op {
    const char *kind, *name; /* "gelu", "act": for messages */
    te_class op_class;
    int in, out;                  /* widths of a row */
    te_dtype in_dtype, out_dtype; /* number formats of its input and output */
    te_rows in_rows, out_rows;    /* the kinds of rows of its input and output */
    te_dtype edge_dtype;          /* for a fork, an input, and the ops that use them: the format of the fork's value */
    int flags;                    /* TE_SAVES_INPUT, ... */
    te_recipe recipe;             /* of a matrix product */
    int stats;                    /* row statistics that forward saves: f32 numbers for each row (mean, rstd) */
    te_rank_layout layout;        /* of its output over the ranks of the tensor group */
    int parts;                    /* number of parts of its output, each sharded by columns: 3 for q, k, v */
    int first_part;               /* width of the first part divided by the width of each other part */
    int ranks;                    /* of an op with a vocabulary: ranks that the vocabulary is sharded over; 0: none */
    int edge;                     /* the index of the fork or input whose value it uses; -1: none */
    const void *options;          /* a te_<family>_options, whose members are ints and floats */
    int options_bytes, params;
    te_param_info param[TE_MAX_PARAMS + 1]; /* one more than the maximum, because the initialiser ends with a filler */
} te_op;

/* How a gradient is rounded to FP8: to the nearest number, or stochastically, so that the expected value of the result
 * is the gradient itself. */
typedef enum te_rounding { TE_ROUNDING_nearest, TE_ROUNDING_stochastic } te_rounding;

struct te_quantize;
struct te_quantize_blockwise;
struct te_quantize_rowwise;
struct te_quantize_multi_tensor;
struct te_multi_tensor;
struct te_gemm; struct te_model; struct te_run; struct te_step; struct te_value; struct te_fp8_product;

/* The FP8 functions of a list with a recipe, which te/linear/impl/linear_fp8.h makes. The library calls them only
 * through this table, so a program whose lists name no recipe contains no FP8 code. */
typedef struct te_fp8_ops {
    /* The members are in the order of the initialiser in te/linear/impl/linear_fp8.h. These three are casts: quantize
     * and quantize_dy read a tensor in the list's dtype, and quantize_dy rounds as `rounding` says; transpose_fp8 reads
     * FP8 and writes FP8. */
    te_status (*quantize)(const struct te_quantize *q, te_context *ctx);
    te_status (*quantize_dy)(const struct te_quantize *q, te_context *ctx);
    te_status (*transpose_fp8)(const struct te_quantize *q, te_context *ctx);
    /* the product with one scale a tensor */
    te_status (*product)(const struct te_gemm *g, te_context *ctx);
    /* fp8_block: the cast, the GEMM, and whether the GEMM's epilogue can add a bias. All three are null if the list's
     * recipe is another one. */
    te_status (*quantize_blockwise)(const struct te_quantize_blockwise *q, te_context *ctx);
    te_status (*gemm_blockwise)(const struct te_gemm *g, te_context *ctx);
    int (*blockwise_takes_bias)(const struct te_gemm *g, te_context *ctx);
    /* fp8_row: the cast; null if the list's recipe is another one */
    te_status (*quantize_rowwise)(const struct te_quantize_rowwise *q, te_context *ctx);
    /* casts of many weights in one launch: with a scale for each weight, for each block, or for each row. A cast that
     * the list's recipe does not need is null. */
    te_status (*cast_weights)(const struct te_quantize_multi_tensor *t, te_context *ctx);
    te_status (*cast_weights_by_block)(const struct te_multi_tensor *t, te_context *ctx);
    te_status (*cast_weights_by_row)(const struct te_multi_tensor *t, te_context *ctx);
    /* Set the operands of op i's GEMMs: of its GEMM of forward (g), and of its two GEMMs of backward (w computes
     * dweight, x computes dx). `backward` is null in a list for inference only. */
    te_status (*forward)(struct te_gemm *g, struct te_run *r, int i, struct te_value x);
    te_status (*backward)(struct te_gemm *w, struct te_gemm *x, struct te_run *r, int i, struct te_value dy);
    /* Store the transpose of a value in FP8. Call it once the value is complete: a dy that is gathered from all ranks
     * arrives late. */
    te_status (*transpose)(struct te_run *r, struct te_value v, void *transposed);
    /* Cast v to an operand of product f, with the scale of index `index`: y gets the result, yt its transpose. Either
     * may be null. */
    te_status (*cast)(struct te_run *r, struct te_value v, const struct te_fp8_product *f, int index, te_dtype to,
                      void *y, void *yt, float *inverse);
    int fixed_widths;     /* the widths are constants: pointwise kernels can store tiles and whole rows in FP8 */
    int saves_inputs;     /* the list's option (inputs, saved): forward saves inputs that backward could recompute */
    te_dtype gradients;   /* of dy, with one scale a tensor: e5m2 or e4m3 */
    te_rounding rounding; /* of dy */
    te_dtype weights;     /* of the weights of FP8 GEMMs, as the optimizer writes them and the casts to FP8 read them */
} te_fp8_ops;

typedef te_status (*te_step_fn)(struct te_run *run, const struct te_step *step);

/* A step of a plan: the ops that one fusion pattern has matched, and the function that runs them. */
typedef struct te_step {
    const char *pattern; /* "linear_bias_gelu" */
    const char *kernels; /* the kernels' common name: "block_fc1_linear_bias_gelu" */
    int count;
    int op[TE_MAX_PATTERN]; /* indices into the op table, in the order of the pass */
    te_step_fn run;
} te_step;

/* A recompute region: the ops first to last, inclusive, of a list, which stand between (recompute, name) and
 * (end_recompute, name). Forward does not save for backward the values of its ops but the last; backward recomputes
 * them by running the region's forward steps again. The two marks are not in the table of ops. */
typedef struct te_recompute_region {
    const char *name;
    int first, last;
} te_recompute_region;

/* Functions that the executor (executor.h) calls before and after each step of a plan that trains, and at the end of
 * the pass: they advance the random state, open and close recompute regions, and add up column sums. */
typedef struct te_training {
    te_status (*before)(struct te_run *run, const struct te_step *step);
    te_status (*after)(struct te_run *run, const struct te_step *step);
    te_status (*end)(struct te_run *run);
} te_training;

/* The plan that TE_SEQUENTIAL makes from a list. It is constant. */
typedef struct te_plan {
    const char *name;
    te_dtype dtype;               /* of the parameters, and of values unless their op says otherwise */
    te_dtype in_dtype, out_dtype; /* of x and y */
    int in, out;                  /* their widths */
    int op_count, forward_count, infer_count, backward_count;
    const te_op *op;
    const te_step *forward, *infer, *backward;
    int region_count;
    const te_recompute_region *region; /* they change no step, so results are bitwise identical without them */
    int takes_dims; /* 1: its widths are symbols (dims.h); te_plan_set_dims makes a plan with numbers, which can run */
    const te_fp8_ops *fp8; /* null: the list names no recipe */
    const te_training *(*training)(
        void); /* null: the list is for inference only, and has no forward or backward steps (inference.h) */
    te_status (*product)(const struct te_gemm *g, te_context *ctx); /* te_gemm_run, for the list's dtype (gemm.h) */
    /* te_convert: converts a value to the format that its consumer reads, where the two formats differ */
    te_status (*convert)(void *y, te_dtype to, const void *x, te_dtype from, int64_t count, te_context *ctx);
} te_plan;

/* The FP8 state of a product under a recipe, which belongs to its weight (te/optim/recipes.h). */
typedef struct te_fp8_product {
    int on;                        /* 0: the product runs in the list's format */
    int current;                   /* 1: each scale is computed from the current tensor's amax; 0: from the amaxes of
                                    * earlier optimizer steps */
    int common;                    /* all ranks of the group have the same scales */
    const te_scales *scales;       /* the scales of the whole instance */
    int x, weight, dy;             /* indices into `scales`: those of this product's operands */
    void *data, *transposed;       /* the weight in FP8, [rows, cols] and [cols, rows]; fp8_row has only the first */
    float *inverse, *transposed_inverse; /* fp8_block, fp8_row: 1 / scale for each block or row of these two */
    te_scale_rule own;             /* how a scale is computed from the current tensor's amax */
    int updated;                   /* the optimizer's kernel finds this weight's amax, or casts it (recipes_adamw.h) */
} te_fp8_product;

/* One parameter of one instance. */
typedef struct te_param {
    const char *op, *field;  /* "fc1", "weight" */
    void *data;              /* [rows, cols] of `dtype`, target memory; null: it is only in FP8 (fp8_weights.h) */
    float *grad;             /* [rows, cols] in f32; null: it has no gradient */
    int64_t rows, cols;
    te_dtype dtype;          /* the model's */
    te_init init;
    int tied;                /* its memory belongs to another parameter */
    int constant;            /* its memory is a mapped file, which is only read (te_weights_use) */
    int shared;              /* backward writes the gradient of a parameter tied to this one first, to the same memory:
                              * always add to it */
    int trains;              /* its instance was bound with gradients */
    int frozen;              /* no gradient is computed for it, and no optimizer changes it (freeze.h) */
    int fixed;               /* frozen for good, because its list says so (frozen_linear) */
    int last;                /* its gradient is a column sum, written at the end of a backward */
    int index;               /* its index among the parameters of its instance */
    te_shard shard;          /* which part of it this rank of the tensor group holds */
    int parts;               /* number of parts of its columns, each sharded: 3 for q, k, v */
    int first_part;          /* width of the first part divided by the width of each other part */
    int sums;                /* each rank of the tensor group has a partial sum of its gradient */
    struct te_param *with;   /* tied: its owner; an owner: the parameter whose backward writes first; null: not tied */
    te_fp8_product fp8;      /* of the weight of a product under a recipe */
} te_param;

/* A listener that backward calls as soon as a gradient is final, that is, not written again before the optimizer step.
 * te/comm/buckets.h reduces such gradients over ranks while the rest of backward runs. */
typedef struct te_watch {
    int armed;  /* 0: backward does not call it */
    int slices; /* ZeRO-1: the reduced gradients are cut into this many shards, and a rank gets one of them; 1: a rank
                 * gets all */
    te_status (*allows)(const struct te_watch *w, const struct te_model *m, te_context *ctx); /* whether m may run */
    te_status (*is_final)(struct te_watch *w, const te_param *p, te_context *ctx);
} te_watch;

/* One instance of a list: the first member of the struct that TE_SEQUENTIAL declares. Its parameters follow in the same
 * struct, in list order. An instance must stay where it was bound: a call refuses a copy of it. */
typedef struct te_model {
    const te_plan *plan;
    te_param *param;
    int param_count;
    const struct te_model *at; /* its address when it was bound, if its parameters follow it in the same struct; else
                                * null */
    const void *params;        /* the parameter buffer, of `elements` elements and param_bytes bytes */
    const float *grads;        /* the gradient buffer, of grad_elements elements; null: none */
    int64_t elements, grad_elements;
    size_t param_bytes;
    te_watch *watch;           /* null: nobody listens for final gradients */
} te_model;

/* The activations that one forward saves for its backward. Several te_saved may be in use with the same parameters at a
 * time (micro-batches). The caller sets `memory` (target memory of at least <model>_saved_bytes(rows) bytes, aligned to
 * TE_ALIGN) and `bytes`; forward fills in the rest. If backward reads x or y of the forward, they must not change
 * before backward has run. */
typedef struct te_saved {
    void *memory;
    size_t bytes;
    const te_plan *plan;
    const te_model *model;    /* the instance of the forward */
    int batch, seq, position; /* copied from the forward's te_batch, together with the four members below: the batch of
                               * backward must have the same */
    int sequences, max_seqlen;
    const int32_t *cu_seqlens, *positions;
    int64_t memory_rows;      /* rows of TE_ROWS_memory */
    const void *x;
    void *y;
    size_t used;              /* bytes of `memory` that the forward used */
    int loss_in_backward;     /* forward did not compute the loss: backward computes it and writes y */
    const void *filled;       /* the value of `memory` at the forward */
    uint32_t transposed[TE_OP_BITS]; /* a copy of te_run.saved_transposed */
} te_saved;

/* Whether the list reads tokens instead of x; whether its y is a loss. */
TE_API int te__from_tokens(const te_plan *p) { return (p->op[0].flags & TE_FROM_TOKENS) != 0; }
TE_API int te__to_loss(const te_plan *p) { return (p->op[p->op_count - 1].flags & TE_TO_LOSS) != 0; }
/* Whether the plan has an extra input whose rows are TE_ROWS_memory. */
TE_API int te__has_memory(const te_plan *p) {
    for (int i = 0; i < p->op_count; i++)
        if (p->op[i].flags & TE_OF_MEMORY) return 1;
    return 0;
}
/* Whether any value of the plan has TE_ROWS_shard. */
TE_API int te__has_sharded_rows(const te_plan *p) {
    for (int i = 0; i < p->op_count; i++)
        if (p->op[i].in_rows == TE_ROWS_shard || p->op[i].out_rows == TE_ROWS_shard) return 1;
    return 0;
}
/* Whether backward computes the gradient of a parameter. A tied parameter is trained if its owner is not frozen. */
TE_API int te_is_trained(const te_param *p) {
    const te_param *owner = p->tied ? p->with : p;
    return p->grad && owner && !owner->frozen;
}
/* Whether op i is the last op that uses its fork's value. In backward it is then the first op that contributes to the
 * gradient of the fork. */
TE_API int te__is_last_use(const te_plan *p, int i) {
    for (int j = i + 1; j < p->op_count; j++)
        if (p->op[j].edge == p->op[i].edge) return 0;
    return 1;
}
/* Whether op i is the GEMM that produces the logits, and forward does not save them: in backward this GEMM and the loss
 * are one step, which recomputes the logits. */
TE_API int te__recomputes_logits(const te_plan *p, int i) {
    const te_step *s = &p->backward[0];
    return s->count > 1 && s->op[1] == i && (p->op[s->op[0]].flags & TE_TO_LOSS) && p->op[i].recipe == TE_RECIPE_none;
}
TE_API te_rows te__out_rows(const te_plan *p) { return p->op[p->op_count - 1].out_rows; }

#endif
