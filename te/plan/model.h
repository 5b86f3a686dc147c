/* model.h -- what TE_SEQUENTIAL makes of a list: a table of ops and three tables of steps; and an instance of it.
 * Everything here is a constant but te_model (one instance's parameters) and te_saved (one forward's memory).
 */
#ifndef TE_MODEL_H
#define TE_MODEL_H

#include "../core/context.h" /* te_context, te_status */
#include "../core/tensor.h" /* te_tensor, te_batch */
#include "../fp8/scales.h" /* te_scales */
#include "impl/fp8_ops.h" /* te_fp8_ops */

/* How an op takes part in a kernel.
 *   map    eight elements at a time, each on its own        bias, gelu, dropout, add, ...
 *   gated  a map from two halves of a row to one            swiglu, ...
 *   norm   needs the whole row                              layernorm, rmsnorm, l2norm
 *   gemm   a matrix product                                 linear
 *   own    brings its own kernels; it may begin a row       attention, embedding, cross_entropy, rope, last_token
 */
typedef enum te_class { TE_CLASS_map, TE_CLASS_gated, TE_CLASS_norm, TE_CLASS_gemm, TE_CLASS_custom } te_class;

/* What backward needs of a forward, and what an op is to the walk. */
enum {
    TE_SAVES_INPUT = 1 << 0,        /* the op's input stays in memory until its backward */
    TE_SAVES_OUTPUT = 1 << 1,       /* so does its output */
    TE_GRAD_UNCHANGED = 1 << 2,     /* backward passes the gradient on unchanged (bias) */
    TE_SUMS = 1 << 3,               /* and sums it over rows into the op's first parameter */
    TE_SUMS_THREE = 1 << 4,         /* and what its function says into the next two; no norm or gated op in that row */
    TE_IS_FROZEN = 1 << 5,          /* its parameters never train (frozen_linear) */
    TE_DRAWS = 1 << 6,              /* draws random numbers */
    TE_IS_FORK = 1 << 7,            /* passes its input on and keeps it for those that read it: */
    TE_IS_ADD = 1 << 8,             /* adds what its fork (or input) kept; backward hands the gradient over, */
    TE_IS_MUL = 1 << 9,             /* multiplies by it, */
    TE_IS_LOAD = 1 << 10,           /* goes on from it, */
    TE_IS_CROSS = 1 << 11,          /* or attends to it */
    TE_IS_INPUT = 1 << 12,          /* an extra input of the list, kept by the caller */
    TE_OF_MEMORY = 1 << 13,         /* and it has the rows of TE_ROWS_memory */
    TE_IS_OUTPUT = 1 << 14,         /* an extra output of the list */
    TE_FROM_TOKENS = 1 << 15,       /* begins a list, which then takes tokens and no x (embedding) */
    TE_TO_LOSS = 1 << 16,           /* ends a list, which then gives one f32 a row (cross_entropy) */
    TE_VARLEN = 1 << 17,            /* attention: its kernels take sequences that differ in length */
    TE_OUTPUTS_MAX_LOGIT = 1 << 18, /* and forward writes its largest logits where the caller's edge of its name says */
    TE_ATTENDS_IN_FP8 = 1 << 19,    /* and forward's products are of e4m3 */
    TE_EPILOGUE_OF_BIAS = 1 << 20,  /* what a matrix product before it may take along at its end: + its parameter, */
    TE_EPILOGUE_OF_GELU = 1 << 21,  /* gelu, */
    TE_EPILOGUE_OF_SCALE = 1 << 22, /* or a factor; te_op.options is a te_scale_options */
    TE_PARAMS_REPLICATED = 1 << 23, /* ranks with their own columns have the same parameters, for all columns */
    TE_TAKES_PRODUCT = 1 << 24,     /* a linear before it may leave it its product, where it adds up over the ranks */
    TE_PASSES_VALUE = 1 << 25,      /* forward's step leaves the value as it is, and where it lies (copy_to_group), */
    TE_PASSES_GRAD = 1 << 26,       /* or backward's the gradient (all_reduce) */
    TE_PASSES_THROUGH = TE_PASSES_VALUE | TE_PASSES_GRAD,
    TE_EPILOGUE_OF_ROPE = 1 << 28, /* or rotary positions of its columns (te/linear/impl/linear_rope.h) */
    TE_LEADS_POINTWISE = 1 << 27   /* of kernels of its own, and begins rows whose chain can run without it */
};

typedef enum te_init {
    TE_INIT_normal,
    TE_INIT_zero,
    TE_INIT_one,
    TE_INIT_tied, /* belongs to another: te_tie() */
    TE_INIT_half
} te_init;

/* Which rows a value has, known when a list is compiled; how many they are, a call says. */
typedef enum te_rows {
    TE_ROWS_tokens,    /* one for each token, te_batch.batch * te_batch.seq */
    TE_ROWS_sequences, /* one for each sequence, te_batch.batch */
    TE_ROWS_shard,     /* one for each of this rank's share of the tokens: rank r of n in the tensor group has those
                        * from r / n of them on */
    TE_ROWS_memory     /* those of what decoders attend to, te_batch.batch * te_batch.memory_seq */
} te_rows;

/* What a rank of the tensor group has of a value, known when a list is compiled (te/fuse/impl/list_checks.h checks
 * it). */
typedef enum te_rank_layout {
    TE_LAYOUT_any,          /* nothing in the list has said yet */
    TE_LAYOUT_replicated,   /* all of it (of TE_ROWS_shard its own rows), and all of its gradient */
    TE_LAYOUT_partial_grad, /* all of it, and a part of the sum that its gradient is: an all_gather or copy_to_group
                             * came before, whose backward adds those up */
    TE_LAYOUT_columns,      /* its own columns */
    TE_LAYOUT_partial_sum   /* a part of the sum that each element is */
} te_rank_layout;

/* Which part of a parameter a rank of the tensor group holds. */
typedef enum te_shard {
    TE_SHARD_none,    /* all of it */
    TE_SHARD_columns, /* what makes its own columns of the op's output: rows of a weight [out, in], columns of a bias;
                       * of an embedding its own rows */
    TE_SHARD_rows     /* what its own columns of the op's input need: columns of a weight [out, in] */
} te_shard;

/* In which format a product reads its operands; the rest of a list stays in the list's own. What is stored is the
 * number times its scale. With one scale for a tensor x and the weight are e4m3 and the gradient dy e5m2 or e4m3
 * (Micikevicius et al. 2022); with a scale for each tile or block of 128 all three are e4m3 (DeepSeek-V3, 2024), and
 * with a scale for each row x and the weight are. */
typedef enum te_recipe {
    TE_RECIPE_none,
    TE_RECIPE_fp8_current, /* the scale is of the tensor's own largest magnitude */
    TE_RECIPE_fp8_delayed, /* of the largest magnitudes of the steps before: one pass over the tensor, not two */
    TE_RECIPE_fp8_block,   /* a scale for each 1 x 128 of x and dy, and for each 128 x 128 of the weight */
    TE_RECIPE_fp8_row,     /* a scale for each row of x, and for each row of the weight; forward alone */
    TE_RECIPE_COUNT
} te_recipe;
/* Whether its scales are of tiles and blocks, of rows, of tensors; a constant of one. */
#define TE_SCALING_OF(recipe)                                     \
    (TE_IS_TENSORWISE(recipe)  ? (int)TE_SCALING_TENSOR           \
     : TE_IS_ROWWISE(recipe)   ? (int)TE_SCALING_ROW              \
     : TE_IS_BLOCKWISE(recipe) ? (int)TE_SCALING_TILES            \
                               : (int)TE_SCALING_NONE)
#define TE_IS_BLOCKWISE(recipe) ((int)(recipe) == (int)TE_RECIPE_fp8_block)
#define TE_IS_ROWWISE(recipe) ((int)(recipe) == (int)TE_RECIPE_fp8_row)
#define TE_IS_TENSORWISE(recipe) \
    ((int)(recipe) == (int)TE_RECIPE_fp8_current || (int)(recipe) == (int)TE_RECIPE_fp8_delayed)

/* A parameter as the list declares it. */
typedef struct te_param_info {
    const char *field; /* "weight", "bias" */
    int64_t rows, cols;
    te_init init;
    int tied; /* has no memory of its own: te_tie() it to another */
} te_param_info;

enum { TE_MAX_PARAMS = 3 /* of one op */, TE_MAX_RECOMPUTE_REGIONS = TE_MAX_OPS / 3 /* two marks and an op */,
       TE_OP_BITS = (TE_MAX_OPS + 31) / 32 };

typedef struct te_op {
    const char *kind, *name; /* "gelu", "act": for messages */
    te_class op_class;
    int in, out;                  /* widths of a row */
    te_dtype in_dtype, out_dtype; /* number formats of what goes in and out */
    te_rows in_rows, out_rows;    /* and their rows */
    te_dtype edge_dtype;          /* fork, input, and who reads it: the format of what is kept */
    int flags;                    /* TE_SAVES_INPUT, ... */
    te_recipe recipe;             /* of a matrix product */
    int stats;                    /* f32 numbers a row that backward needs beside: mean and rstd, log-sum-exp */
    te_rank_layout layout;               /* what a rank has of its output */
    int parts;                    /* its output is so many parts side by side, each shared out by columns */
    int first_part;               /* the first of them is so many times as wide as each other */
    int ranks;                    /* so many of the tensor group have a part of its vocabulary each; 0: one */
    int edge;                     /* add, mul, load: the index of the fork or input that it reads; others: -1 */
    const void *options;          /* a te_<family>_options, of ints and floats */
    int options_bytes, params;
    te_param_info param[TE_MAX_PARAMS + 1]; /* the last: none */
} te_op;

struct te_gemm; struct te_model; struct te_run; struct te_step;
typedef te_status (*te_step_fn)(struct te_run *run, const struct te_step *step);

/* A step of a plan: the ops that one row of the fusion list took, and the function that carries them out. */
typedef struct te_step {
    const char *pattern; /* "linear_bias_gelu" */
    const char *kernels; /* the kernels' common name: "block_fc1_linear_bias_gelu" */
    int count;
    int op[TE_MAX_PATTERN]; /* indices into the op table, in the order of the pass */
    te_step_fn run;
} te_step;

/* Ops [first, last] of a list between (recompute, name) and (end_recompute, name): what the ops before the last one
 * keep for backward is not saved, backward computes it again. Marks are not in the table of ops. */
typedef struct te_recompute_region {
    const char *name;
    int first, last;
} te_recompute_region;

/* What a walk does around the steps of a plan that trains (executor.h): it takes the random state, opens spans that run
 * again, and adds up gradients. */
typedef struct te_training {
    te_status (*before)(struct te_run *run, const struct te_step *step);
    te_status (*after)(struct te_run *run, const struct te_step *step);
    te_status (*end)(struct te_run *run);
} te_training;

typedef struct te_plan {
    const char *name;
    te_dtype dtype;               /* of the parameters, and of each value whose op says nothing else */
    te_dtype in_dtype, out_dtype; /* of x and y */
    int in, out;                  /* their widths */
    int op_count, forward_count, infer_count, backward_count;
    const te_op *op;
    const te_step *forward, *infer, *backward;
    int region_count;
    const te_recompute_region *region; /* none: everything is saved, with the same steps and so the same bits */
    int takes_dims; /* 1: widths are symbols (dims.h), and nothing runs by it */
    const te_fp8_ops *fp8; /* null: the list names no recipe */
    const te_training *(*training)(void); /* null: inference alone, with no step forward or backward (inference.h) */
    te_status (*product)(const struct te_gemm *g, te_context *ctx); /* te_gemm_run, for the list's dtype (gemm.h) */
    /* te_convert, for values in other formats than who reads them takes */
    te_status (*convert)(void *y, te_dtype to, const void *x, te_dtype from, int64_t count, te_context *ctx);
} te_plan;

/* What the product of a weight works with under a recipe (te/optim/recipes.h). */
typedef struct te_fp8_product {
    int on;      /* 0: the product runs in the list's format */
    int current, common; /* a scale is of the tensor that it is for, not of steps before; is then that of all ranks */
    const te_scales *scales;
    int x, weight, dy;             /* indices into them */
    void *data, *transposed;       /* the weight in FP8, [rows, cols] and [cols, rows]; of fp8_row the first alone */
    float *inverse, *transposed_inverse; /* fp8_block, fp8_row: 1 / scale of their blocks or rows (fp8_scaling.h) */
    te_scale_rule own;             /* the rule of a scale that comes from what it scales */
    int updated; /* the optimizer's update measures or casts the weight (te/optim/recipes_adamw.h) */
} te_fp8_product;

/* One parameter of one instance. */
typedef struct te_param {
    const char *op, *field;  /* "fc1", "weight" */
    void *data;              /* [rows, cols] of `dtype`, target memory; null: it is in FP8 alone (fp8_weights.h) */
    float *grad;             /* [rows, cols]; null: no gradients are kept */
    int64_t rows, cols;
    te_dtype dtype;          /* the model's */
    te_init init;
    int tied;                /* its memory belongs to another parameter */
    int constant;            /* its memory is a file's, and only read (te_weights_use) */
    int shared;              /* another that shares its gradient has written it by then: always add */
    int trains;              /* its instance was bound with gradients */
    int frozen;              /* it stays as it is: nobody computes or reads its gradient (freeze.h) */
    int fixed;               /* frozen by its list (frozen_linear): for good */
    int last;                /* its gradient is written when a backward ends, whatever its place in the list */
    int index;               /* which of its instance's parameters */
    te_shard shard;          /* what of it this rank of the tensor group holds */
    int parts;               /* of its columns: so many parts side by side, each shared out */
    int first_part;          /* the first of them is so many times as wide as each other */
    int sums;                /* each rank of the tensor group has a part of the sum that its gradient is */
    struct te_param *with;   /* tied: the owner; an owner: the one whose backward writes the gradient; null: not tied */
    te_fp8_product fp8;      /* the weight of a product under a recipe */
} te_param;

/* Whom the backwards of a model tell that a gradient is final: nothing but the next step writes it any more
 * (te/comm/buckets.h, which sums it over ranks while the rest of backward runs). */
typedef struct te_watch {
    int armed;  /* 0: backwards tell nobody */
    int slices; /* of a model's sums a rank gets one of so many; 1: all */
    te_status (*allows)(const struct te_watch *w, const struct te_model *m, te_context *ctx); /* a backward of m */
    te_status (*is_final)(struct te_watch *w, const te_param *p, te_context *ctx);
} te_watch;

/* One instance: the first member of the struct that TE_SEQUENTIAL declares. `param` points to its parameters, in list
 * order. They lie in the same struct, so an instance stays where it was bound: a copy is refused. */
typedef struct te_model {
    const te_plan *plan;
    te_param *param;
    int param_count;
    const struct te_model *at; /* where it was bound, if its parameters lie behind it; else null */
    const void *params; /* the two buffers, */
    const float *grads;
    int64_t elements, grad_elements; /* of so many elements */
    size_t param_bytes;
    te_watch *watch; /* null: nobody wants to know when gradients are final */
} te_model;

/* What one forward keeps for its backward. Several may be in flight on the same parameters. The caller sets `memory`
 * (target memory, at least <model>_saved_bytes(rows), aligned to TE_ALIGN) and `bytes`; forward fills in the rest. x
 * and y of the forward must stay as they are until backward has run, where it reads them (alias_check.h). */
typedef struct te_saved {
    void *memory;
    size_t bytes;
    const te_plan *plan;
    int batch, seq, position; /* of the forward's te_batch; backward's must be the same */
    int sequences, longest;   /* and these; what cu_seqlens says must be what it was, too */
    const int32_t *cu_seqlens;
    int64_t memory_rows; /* of TE_ROWS_memory */
    const void *x;
    void *y;
    size_t used;        /* of bytes; other dims (dims.h) use others */
    int loss_in_backward; /* backward writes y */
    const void *filled; /* `memory` of then */
    uint32_t transposed[TE_OP_BITS]; /* te_run.saved_transposed */
} te_saved;

/* What the first and the last op of a list make of its ends. */
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
/* Whether no op behind op i reads what that fork kept: in backward it is the first to hand a gradient over. */
TE_API int te_is_last_use(const te_plan *p, int i) {
    for (int j = i + 1; j < p->op_count; j++)
        if (p->op[j].edge == p->op[i].edge) return 0;
    return 1;
}
/* Whether op i is a product whose logits nobody keeps: backward has it in one step with the loss, and makes them. */
TE_API int te_recomputes_logits(const te_plan *p, int i) {
    const te_step *s = &p->backward[0];
    return s->count > 1 && s->op[1] == i && (p->op[s->op[0]].flags & TE_TO_LOSS) && p->op[i].recipe == TE_RECIPE_none;
}
TE_API te_rows te_out_rows(const te_plan *p) { return p->op[p->op_count - 1].out_rows; }

#endif
