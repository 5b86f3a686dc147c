/* model.h -- what TE_SEQUENTIAL makes of a list: a table of ops and three tables of steps; and an instance of it.
 * Everything here is a constant but te_model (one instance's parameters) and te_saved (one forward's memory).
 */
#ifndef TE_MODEL_H
#define TE_MODEL_H

#include "../core/context.h" /* te_context, te_status */
#include "../core/tensor.h" /* te_tensor, te_batch */
#include "../fp8/scales.h" /* te_scales */

/* How an op takes part in a kernel.
 *   map     works on each element by itself                            bias, gelu, dropout, add, ...
 *   gated   makes one element from two, one of each half of a row      swiglu, geglu, ...
 *   norm    needs the whole row                                        layernorm, rmsnorm, l2norm
 *   gemm    a matrix product                                           linear
 *   custom  brings its own kernels; it may begin a fusion pattern      attention, embedding, cross_entropy, rope, ...
 */
typedef enum te_class { TE_CLASS_map, TE_CLASS_gated, TE_CLASS_norm, TE_CLASS_gemm, TE_CLASS_custom } te_class;

/* Facts of an op: what backward needs of its forward, and what the executor does around it. */
enum {
    /* saved for backward */
    TE_SAVES_INPUT = 1 << 0,  /* the op's input stays in memory until its backward */
    TE_SAVES_OUTPUT = 1 << 1, /* so does its output */
    /* gradients */
    TE_GRAD_UNCHANGED = 1 << 2, /* the gradient of its input is that of its output (bias, add) */
    TE_SUMS = 1 << 3,           /* backward sums the gradient over rows into the op's first parameter (bias) */
    TE_SUMS_THREE = 1 << 4,     /* and two other sums into the next two (dyt); no norm or gated op in that pattern */
    TE_IS_FROZEN = 1 << 5,      /* its parameters never train (frozen_linear) */
    TE_DRAWS = 1 << 6,          /* draws random numbers (dropout) */
    /* forks, and the ops that use a fork's value */
    TE_IS_FORK = 1 << 7,    /* passes its input on, and keeps it for a later op */
    TE_IS_ADD = 1 << 8,     /* adds a fork's value */
    TE_IS_MUL = 1 << 9,     /* multiplies by a fork's value */
    TE_IS_LOAD = 1 << 10,   /* goes on from a fork's value; what it got before is dropped */
    TE_IS_CROSS = 1 << 11,  /* attends to a fork's value (cross_attention) */
    TE_IS_INPUT = 1 << 12,  /* a fork whose value the caller brings: an extra input of the list */
    TE_OF_MEMORY = 1 << 13, /* an extra input with the rows of TE_ROWS_memory */
    TE_IS_OUTPUT = 1 << 14, /* stores the value for the caller: an extra output of the list */
    /* the ends of a list */
    TE_FROM_TOKENS = 1 << 15, /* must begin a list, which then reads tokens instead of x (embedding) */
    TE_TO_LOSS = 1 << 16,     /* must end a list, whose y is then one f32 a row (cross_entropy) */
    /* attention */
    TE_VARLEN = 1 << 17,            /* takes sequences of different lengths (cu_seqlens) */
    TE_OUTPUTS_MAX_LOGIT = 1 << 18, /* stores its largest logits in the caller's edge of the op's name */
    TE_ATTENDS_IN_FP8 = 1 << 19,    /* computes both products of its forward in e4m3 */
    TE_IS_CACHED = 1 << 29,         /* in inference it may keep keys and values in a te_cache */
    /* what the epilogue of the product before it may do in its place */
    TE_EPILOGUE_OF_BIAS = 1 << 20,  /* add its parameter */
    TE_EPILOGUE_OF_GELU = 1 << 21,
    TE_EPILOGUE_OF_SCALE = 1 << 22, /* multiply by a constant; te_op.options is a te_scale_options */
    TE_EPILOGUE_OF_ROPE = 1 << 28,  /* rotate its columns by their positions (te/linear/impl/linear_rope.h) */
    /* ranks of a tensor group */
    TE_PARAMS_REPLICATED = 1 << 23, /* every rank has its parameters for all columns, although it has its own columns */
    TE_TAKES_PRODUCT = 1 << 24,     /* sums over ranks, and may run the deferred product of the linear before it */
    TE_PASSES_VALUE = 1 << 25,      /* forward leaves the value as it is and where it lies (copy_to_group) */
    TE_PASSES_GRAD = 1 << 26,       /* backward leaves the gradient so (all_reduce) */
    TE_PASSES_THROUGH = TE_PASSES_VALUE | TE_PASSES_GRAD,
    TE_LEADS_POINTWISE = 1 << 27 /* a custom op whose pattern has a pointwise kernel that can run without it */
};

typedef enum te_init {
    TE_INIT_normal,
    TE_INIT_zero,
    TE_INIT_one,
    TE_INIT_tied, /* the memory of another parameter: te_tie() */
    TE_INIT_half  /* the constant 0.5 */
} te_init;

/* Which rows a value has, known at compile time; how many these are, each call says. */
typedef enum te_rows {
    TE_ROWS_tokens,    /* one for each token: te_batch.batch * te_batch.seq */
    TE_ROWS_sequences, /* one for each sequence: te_batch.batch */
    TE_ROWS_shard, /* one for each token of this rank's shard: the tensor group's rank r of n has the r-th of n equal
                    * parts of the tokens (sequence parallelism) */
    TE_ROWS_memory /* one for each row that a decoder attends to: te_batch.batch * te_batch.memory_seq */
} te_rows;

/* How a value is laid out over the ranks of the tensor group, known at compile time; te/fuse/impl/list_checks.h checks
 * that the ops of a list fit. */
typedef enum te_rank_layout {
    TE_LAYOUT_any,          /* nothing in the list has said yet */
    TE_LAYOUT_replicated,   /* each rank has all of it (of TE_ROWS_shard its own rows), and all of its gradient */
    TE_LAYOUT_partial_grad, /* each rank has all of it, and a partial sum of its gradient: the backward of the
                             * all_gather or copy_to_group before adds these up */
    TE_LAYOUT_columns,      /* each rank has its own columns */
    TE_LAYOUT_partial_sum   /* each rank has a partial sum of each element */
} te_rank_layout;

/* Which part of a parameter a rank of the tensor group holds. */
typedef enum te_shard {
    TE_SHARD_none,    /* all of it */
    TE_SHARD_columns, /* for its own columns of the op's output: rows of a weight [out, in], columns of a bias, rows of
                       * an embedding */
    TE_SHARD_rows     /* for its own columns of the op's input: columns of a weight [out, in] */
} te_shard;

/* The format in which a product reads its operands; all else in a list has the list's own format. A number is stored
 * times its scale. With one scale a tensor, x and the weight are e4m3 and the gradient dy e5m2 or e4m3 (Micikevicius
 * et al. 2022); with a scale for each tile or block of 128 all three are e4m3 (DeepSeek-V3, 2024); with a scale for
 * each row x and the weight are e4m3, and backward runs in the list's format. */
typedef enum te_recipe {
    TE_RECIPE_none,
    TE_RECIPE_fp8_current, /* the scale follows from the tensor's own amax */
    TE_RECIPE_fp8_delayed, /* from the amaxes of earlier steps: one pass over the tensor instead of two */
    TE_RECIPE_fp8_block,   /* a scale for each 1 x 128 of x and dy, and for each 128 x 128 of the weight */
    TE_RECIPE_fp8_row,     /* a scale for each row of x, and for each row of the weight; forward alone */
    TE_RECIPE_COUNT
} te_recipe;
/* Whether a recipe has a scale for each tile and block, each row, each tensor; and the scaling of x and dy, a
 * te_scaling. Constants of a constant. */
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
    int tied; /* has no memory of its own: te_tie() gives it another parameter's */
} te_param_info;

enum { TE_MAX_PARAMS = 3 /* of one op */, TE_MAX_RECOMPUTE_REGIONS = TE_MAX_OPS / 3 /* two marks and an op */,
       TE_OP_BITS = (TE_MAX_OPS + 31) / 32 };

/* One op of a list: constants. */
typedef struct te_op {
    const char *kind, *name; /* "gelu", "act": for messages */
    te_class op_class;
    int in, out;                  /* widths of a row */
    te_dtype in_dtype, out_dtype; /* number formats of what goes in and out */
    te_rows in_rows, out_rows;    /* and their rows */
    te_dtype edge_dtype;          /* of a fork, an input, and the ops that use them: the format of the fork's value */
    int flags;                    /* TE_SAVES_INPUT, ... */
    te_recipe recipe;             /* of a matrix product */
    int stats;                    /* f32 numbers a row that backward needs beside: mean and rstd, log-sum-exp */
    te_rank_layout layout;        /* of its output over the ranks of the tensor group */
    int parts;                    /* its output is so many parts side by side, each sharded by columns (q, k, v) */
    int first_part;               /* the first part is so many times as wide as each other part */
    int ranks;                    /* of an op with a vocabulary: it is sharded over so many ranks; 0: it is not */
    int edge;                     /* the index of the fork or input whose value it uses; -1: none */
    const void *options;          /* a te_<family>_options, of ints and floats */
    int options_bytes, params;
    te_param_info param[TE_MAX_PARAMS + 1]; /* the last: none */
} te_op;

/* How a gradient becomes FP8: to the nearest number, or stochastically, so that the expected value is the gradient. */
typedef enum te_rounding { TE_ROUNDING_nearest, TE_ROUNDING_stochastic } te_rounding;

struct te_quantize;
struct te_quantize_blockwise;
struct te_quantize_rowwise;
struct te_quantize_multi_tensor;
struct te_multi_tensor;
struct te_gemm; struct te_model; struct te_run; struct te_step; struct te_value; struct te_fp8_product;

/* The FP8 code of a list under a recipe, which te/linear/impl/linear_fp8.h makes. It is reached through this table
 * alone, so a program whose lists name no recipe has none of it. */
typedef struct te_fp8_ops {
    /* in the initialiser's order (te/linear/impl/linear_fp8.h). Casts of tensors in the list's dtype; quantize_dy
     * rounds as `rounding` says; transpose_fp8 goes from FP8 to FP8 */
    te_status (*quantize)(const struct te_quantize *q, te_context *ctx);
    te_status (*quantize_dy)(const struct te_quantize *q, te_context *ctx);
    te_status (*transpose_fp8)(const struct te_quantize *q, te_context *ctx);
    /* the product with one scale a tensor */
    te_status (*product)(const struct te_gemm *g, te_context *ctx);
    /* fp8_block: the cast, the product, and whether its epilogue can add a bias; null: the list does not name it */
    te_status (*quantize_blockwise)(const struct te_quantize_blockwise *q, te_context *ctx);
    te_status (*gemm_blockwise)(const struct te_gemm *g, te_context *ctx);
    int (*blockwise_takes_bias)(const struct te_gemm *g, te_context *ctx);
    /* fp8_row: the cast; null: the list does not name it */
    te_status (*quantize_rowwise)(const struct te_quantize_rowwise *q, te_context *ctx);
    /* casts of many weights in one launch, with a scale for each weight, block, row; null as above */
    te_status (*cast_weights)(const struct te_quantize_multi_tensor *t, te_context *ctx);
    te_status (*cast_weights_by_block)(const struct te_multi_tensor *t, te_context *ctx);
    te_status (*cast_weights_by_row)(const struct te_multi_tensor *t, te_context *ctx);
    /* set the operands of op i's product of forward, and of its two products of backward (w: dweight, x: dx);
     * `backward` is null in a list for inference alone */
    te_status (*forward)(struct te_gemm *g, struct te_run *r, int i, struct te_value x);
    te_status (*backward)(struct te_gemm *w, struct te_gemm *x, struct te_run *r, int i, struct te_value dy);
    /* store the transpose of a value in FP8, once the value is there: a gathered dy arrives late */
    te_status (*transpose)(struct te_run *r, struct te_value v, void *transposed);
    /* cast v to an operand of product f with scale `index`: to y as it lies, to yt transposed; either may be null */
    te_status (*cast)(struct te_run *r, struct te_value v, const struct te_fp8_product *f, int index, te_dtype to,
                      void *y, void *yt, float *inverse);
    int fixed_widths;     /* the widths are constants: pointwise kernels can store tiles and whole rows in FP8 */
    int saves_inputs;     /* the list's option (inputs, saved): forward saves inputs that backward could recompute */
    te_dtype gradients;   /* of dy, with one scale a tensor: e5m2 or e4m3 */
    te_rounding rounding; /* of dy */
    te_dtype weights;     /* in which the weights of products under the recipe lie, for the optimizer and the casts */
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

/* Ops [first, last] of a list, between (recompute, name) and (end_recompute, name): what the ops before the last one
 * would save for backward is not saved; backward runs their forward again. The marks are not in the table of ops. */
typedef struct te_recompute_region {
    const char *name;
    int first, last;
} te_recompute_region;

/* What the executor does around the steps of a plan that trains (executor.h): it advances the random state, opens and
 * closes recompute regions, and adds up column sums. */
typedef struct te_training {
    te_status (*before)(struct te_run *run, const struct te_step *step);
    te_status (*after)(struct te_run *run, const struct te_step *step);
    te_status (*end)(struct te_run *run);
} te_training;

/* What TE_SEQUENTIAL makes of a list: constants. */
typedef struct te_plan {
    const char *name;
    te_dtype dtype;               /* of the parameters, and of values unless their op says otherwise */
    te_dtype in_dtype, out_dtype; /* of x and y */
    int in, out;                  /* their widths */
    int op_count, forward_count, infer_count, backward_count;
    const te_op *op;
    const te_step *forward, *infer, *backward;
    int region_count;
    const te_recompute_region *region; /* steps, and so bits, are the same with and without */
    int takes_dims; /* 1: its widths are symbols (dims.h); te_plan_set_dims makes a plan that runs */
    const te_fp8_ops *fp8; /* null: the list names no recipe */
    const te_training *(*training)(
        void); /* null: for inference alone, with no forward or backward steps (inference.h) */
    te_status (*product)(const struct te_gemm *g, te_context *ctx); /* te_gemm_run, for the list's dtype (gemm.h) */
    /* te_convert, for values whose format is not the one that their consumer reads */
    te_status (*convert)(void *y, te_dtype to, const void *x, te_dtype from, int64_t count, te_context *ctx);
} te_plan;

/* The FP8 state of a product under a recipe, which belongs to its weight (te/optim/recipes.h). */
typedef struct te_fp8_product {
    int on;                        /* 0: the product runs in the list's format */
    int current;                   /* each scale follows from the amax of the tensor at hand, not of earlier steps */
    int common;                    /* all ranks of the group have the same scales */
    const te_scales *scales;       /* of the whole instance */
    int x, weight, dy;             /* which of them are this product's */
    void *data, *transposed;       /* the weight in FP8, [rows, cols] and [cols, rows]; fp8_row has only the first */
    float *inverse, *transposed_inverse; /* fp8_block, fp8_row: 1 / the scales of their blocks or rows */
    te_scale_rule own;             /* how a scale follows from the amax of the tensor at hand */
    int updated;                   /* the optimizer's step finds the weight's amax or casts it (recipes_adamw.h) */
} te_fp8_product;

/* One parameter of one instance. */
typedef struct te_param {
    const char *op, *field;  /* "fc1", "weight" */
    void *data;              /* [rows, cols] of `dtype`, target memory; null: there is only its FP8 (fp8_weights.h) */
    float *grad;             /* [rows, cols] in f32; null: it has no gradient */
    int64_t rows, cols;
    te_dtype dtype;          /* the model's */
    te_init init;
    int tied;                /* its memory belongs to another parameter */
    int constant;            /* its memory is a mapped file, which is only read (te_weights_use) */
    int shared;              /* a tied parameter has written the common gradient before this one does: always add */
    int trains;              /* its instance was bound with gradients */
    int frozen;              /* no gradient is computed for it, and no optimizer changes it (freeze.h) */
    int fixed;               /* frozen for good, because its list says so (frozen_linear) */
    int last;                /* its gradient is a column sum, written at the end of a backward */
    int index;               /* which of its instance's parameters */
    te_shard shard;          /* which part of it this rank of the tensor group holds */
    int parts;               /* its columns are so many parts side by side, each sharded (q, k, v) */
    int first_part;          /* the first part is so many times as wide as each other part */
    int sums;                /* each rank of the tensor group has a partial sum of its gradient */
    struct te_param *with;   /* tied: its owner; an owner: the parameter whose backward writes first; null: not tied */
    te_fp8_product fp8;      /* of the weight of a product under a recipe */
} te_param;

/* A listener that backward calls as soon as a gradient is final, that is, not written again before the optimizer step.
 * te/comm/buckets.h reduces such gradients over ranks while the rest of backward runs. */
typedef struct te_watch {
    int armed;  /* 0: backward calls nobody */
    int slices; /* ZeRO-1: a rank gets one of so many shards of the reduced gradients; 1: all of them */
    te_status (*allows)(const struct te_watch *w, const struct te_model *m, te_context *ctx); /* whether m may run */
    te_status (*is_final)(struct te_watch *w, const te_param *p, te_context *ctx);
} te_watch;

/* One instance of a list: the first member of the struct that TE_SEQUENTIAL declares. Its parameters follow in the same
 * struct, in list order, so an instance stays where it was bound: a copy of it is refused. */
typedef struct te_model {
    const te_plan *plan;
    te_param *param;
    int param_count;
    const struct te_model *at; /* where it was bound, if its parameters lie behind it; else null */
    const void *params;        /* the parameter buffer, of `elements` elements and param_bytes bytes */
    const float *grads;        /* the gradient buffer, of grad_elements elements; null: none */
    int64_t elements, grad_elements;
    size_t param_bytes;
    te_watch *watch;           /* null: nobody listens for final gradients */
} te_model;

/* What one forward saves for its backward. Several may be in flight on the same parameters (micro-batches). The caller
 * sets `memory` (target memory of at least <model>_saved_bytes(rows) bytes, aligned to TE_ALIGN) and `bytes`; forward
 * fills in the rest. x and y of the forward must not change before backward has run, where that reads them. */
typedef struct te_saved {
    void *memory;
    size_t bytes;
    const te_plan *plan;
    int batch, seq, position; /* of the forward's te_batch: backward's batch must be the same, */
    int sequences, max_seqlen;   /* with the same sequences in cu_seqlens */
    const int32_t *cu_seqlens;
    int64_t memory_rows;      /* rows of TE_ROWS_memory */
    const void *x;
    void *y;
    size_t used;              /* bytes of `memory` that the forward used */
    int loss_in_backward;     /* backward computes the loss and writes y */
    const void *filled;       /* `memory`, as it was at the forward */
    uint32_t transposed[TE_OP_BITS]; /* te_run.saved_transposed */
} te_saved;

/* Whether the list reads tokens instead of x; whether its y is a loss. */
TE_API int te__from_tokens(const te_plan *p) { return (p->op[0].flags & TE_FROM_TOKENS) != 0; }
TE_API int te__to_loss(const te_plan *p) { return (p->op[p->op_count - 1].flags & TE_TO_LOSS) != 0; }
/* Whether an input of the plan has rows of TE_ROWS_memory. */
TE_API int te__has_memory(const te_plan *p) {
    for (int i = 0; i < p->op_count; i++)
        if (p->op[i].flags & TE_OF_MEMORY) return 1;
    return 0;
}
/* Whether a value of the plan has rows of TE_ROWS_shard. */
TE_API int te__has_sharded_rows(const te_plan *p) {
    for (int i = 0; i < p->op_count; i++)
        if (p->op[i].in_rows == TE_ROWS_shard || p->op[i].out_rows == TE_ROWS_shard) return 1;
    return 0;
}
/* Whether backward computes the gradient of a parameter. One that is tied trains as its owner does. */
TE_API int te_is_trained(const te_param *p) {
    const te_param *owner = p->tied ? p->with : p;
    return p->grad && owner && !owner->frozen;
}
/* Whether op i is the last op that uses its fork's value: in backward it is the first with a gradient for the fork. */
TE_API int te__is_last_use(const te_plan *p, int i) {
    for (int j = i + 1; j < p->op_count; j++)
        if (p->op[j].edge == p->op[i].edge) return 0;
    return 1;
}
/* Whether op i is a product whose output, the logits, is not saved: backward has it in one step with the loss, which
 * computes them again. */
TE_API int te__recomputes_logits(const te_plan *p, int i) {
    const te_step *s = &p->backward[0];
    return s->count > 1 && s->op[1] == i && (p->op[s->op[0]].flags & TE_TO_LOSS) && p->op[i].recipe == TE_RECIPE_none;
}
TE_API te_rows te__out_rows(const te_plan *p) { return p->op[p->op_count - 1].out_rows; }

#endif
