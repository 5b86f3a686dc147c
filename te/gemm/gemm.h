/* gemm.h -- one matrix product: D = alpha * op(A) op(B) + beta * C, with what the back end can do at its end.
 *
 * Do this:
 *     te_gemm g = te_gemm_of(rows, out, in);                  // y[rows, out] = x[rows, in] w[out, in]^T
 *     g.a = x, g.b = w, g.trans_b = 1, g.d = y, g.dtype = TE_bf16, g.out = TE_bf16;
 *     TE_TRY(te_gemm_run(&g, ctx));
 *
 * Row-major throughout. Accumulates in float. On CUDA cuBLASLt, with a plan cached per shape in the context, its first
 * candidate or, if asked for, its fastest (gemm_tune.h); on the host CBLAS (compile with -DTE_CBLAS and link one) or a
 * blocked loop.
 */
#ifndef TE_GEMM_H
#define TE_GEMM_H

#include "../core/context.h" /* te_context */

/* X(name, text): what a product can do at its end. */
#define TE_EPILOGUES(X)                                                                  \
    X(NONE, "none")                                                                      \
    X(BIAS, "bias")           /* + bias[n] */                                            \
    X(GELU_BIAS, "gelu_bias") /* gelu_tanh(. + bias[n]) */                               \
    X(GELU_AUX_BIAS, "gelu_aux_bias") /* the same, and aux[m, n] gets what went into the gelu */
#define TE_EPILOGUE_ENUM(name, text) TE_EPILOGUE_##name,
typedef enum te_epilogue { TE_EPILOGUES(TE_EPILOGUE_ENUM) TE_EPILOGUE_COUNT } te_epilogue;
#undef TE_EPILOGUE_ENUM

TE_API const char *te_epilogue_name(te_epilogue e) {
#define TE_EPILOGUE_TEXT(name, text) text,
    static const char *const names[] = {TE_EPILOGUES(TE_EPILOGUE_TEXT)};
#undef TE_EPILOGUE_TEXT
    return (unsigned)e < (unsigned)TE_EPILOGUE_COUNT ? names[e] : "unknown epilogue";
}

typedef struct te_gemm {
    int64_t m, n, k;      /* D is [m, n] */
    int trans_a, trans_b; /* A is stored [m, k], or [k, m] if trans_a; B [k, n], or [n, k] if trans_b */
    te_dtype dtype, out;  /* of A and B (and bias, aux); of C and D: dtype, or f32 */
    const void *a, *b, *c;
    void *d;
    float alpha, beta; /* C may be D; C is not read if beta is 0 */
    te_epilogue epilogue;
    const void *bias;
    void *aux;
    float *scratch; /* host: te_gemm_scratch() floats; target memory of the workspace */
} te_gemm;

TE_API te_gemm te_gemm_of(int64_t m, int64_t n, int64_t k) {
    te_gemm g;
    memset(&g, 0, sizeof g);
    g.m = m, g.n = n, g.k = k, g.alpha = 1.0f;
    return g;
}

/* Kernels of our own (gemm_hopper.h, gemm_few.h) hand what they have done to a function: eight elements of row `row` from
 * column `col` on, as 16 bits each. What it adds to `sum` is summed over the rows. ahead: the same eight of the tensor that the kernel
 * was asked to load ahead; null: none. */
typedef void (*te_gemm_end_fn)(const void *arg, const uint32_t w[4], const uint32_t *ahead, int row, int col, float sum[8]);

/* ---- what tuning found, kept in the context -------------------------------------------------------------------------- */

enum {
    TE_GEMM_PLANS = 512,  /* distinct products a context can remember; a power of two */
    TE_GEMM_CHOICES = 128 /* distinct steps whose split it can remember */
};

/* A product that was timed. Tensors are contiguous and at multiples of TE_ACCESS, so sizes and transposes say all. */
typedef struct te_gemm_tuned {
    int64_t m, n, k;
    int trans_a, trans_b;
    te_dtype dtype, out;
    te_epilogue epilogue;
    int beta;                  /* whether C is added */
    int candidates;            /* that were timed */
    int64_t first_ns, best_ns; /* medians: of the heuristic's first candidate, and of the one that is used */
    uint64_t algo[8];          /* cublasLtMatmulAlgo_t */
} te_gemm_tuned;

/* How a row that begins with a matrix product is split into the product and the kernel behind it. */
typedef enum te_split {
    TE_SPLIT_BARE, /* the bare product; the kernel does all of the rest */
    TE_SPLIT_BIAS, /* the product takes the bias along */
    TE_SPLIT_WHOLE, /* the product's epilogue does all; no kernel behind it */
    TE_SPLIT_OWN,   /* one kernel of our own (fuse/product.h) */
    TE_SPLIT_COUNT
} te_split;

/* A step whose splits were timed. */
typedef struct te_gemm_choice {
    char row[96];   /* "linear_bias_gelu" */
    int64_t m, n, k;
    te_dtype dtype;
    int training;   /* a forward that saves for backward; 0: inference */
    unsigned kept;  /* bit j: the output of the row's op j lies in memory */
    te_split split; /* the fastest */
    int64_t ns[TE_SPLIT_COUNT]; /* medians; 0: not possible */
} te_gemm_choice;

/* The back end's: the splits that were timed, and how many; null on the host. */
TE_API te_gemm_choice *te__gemm_choices(int **count, te_context *ctx);

#if TE_CUDA
#include "gemm_cuda.h" /* te_gemm_run, te_gemm_supports through cuBLASLt */
#else
#include "gemm_host.h" /* the same through CBLAS or a loop */
#endif

/* ---- the splits that were chosen; none on the host ----------------------------------------------------------------- */

TE_API int te__gemm_same_choice(const te_gemm_choice *a, const te_gemm_choice *b) {
    return a->m == b->m && a->n == b->n && a->k == b->k && a->dtype == b->dtype && a->training == b->training && a->kept == b->kept && !strcmp(a->row, b->row);
}
/* The choice for this step; null if there is none. */
TE_API te_gemm_choice *te__gemm_find_choice(const te_gemm_choice *step, te_context *ctx) {
    int *count = 0;
    te_gemm_choice *all = te__gemm_choices(&count, ctx);
    for (int i = 0; count && i < *count; i++)
        if (te__gemm_same_choice(&all[i], step)) return &all[i];
    return 0;
}
/* Remember it, in the place of an earlier one. Where there is no room the step stays with its default. */
TE_API void te__gemm_keep_choice(const te_gemm_choice *step, te_context *ctx) {
    int *count = 0;
    te_gemm_choice *all = te__gemm_choices(&count, ctx), *found = te__gemm_find_choice(step, ctx);
    if (found) *found = *step;
    else if (count && *count < TE_GEMM_CHOICES) all[(*count)++] = *step;
}

#endif
