/* gemm_types.h -- a matrix product as data, and what tuning remembers of it (gemm.h). */
#ifndef TE_GEMM_TYPES_H
#define TE_GEMM_TYPES_H

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

/* Kernels of our own (gemm_hopper.h, gemm_few.h) hand what they have done to a function: eight elements of row `row`
 * from column `col` on, as 16 bits each. What it adds to `sum` is summed over the rows. ahead: the same eight of the
 * tensor that the kernel was asked to load ahead; null: none. */
typedef void (*te_epilogue_fn)(const void *arg, const uint32_t w[4], const uint32_t *ahead, int row, int col,
                               float sum[8]);

/* ---- what tuning found, kept in the context ---------------------------------------------------------------------- */

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

#endif
