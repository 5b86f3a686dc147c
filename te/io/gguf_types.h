/* gguf_types.h -- the types of gguf.h: kinds of metadata values, types of tensors, a value, a tensor, and an open file.
 *
 * The format is described in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. All numbers are little-endian.
 */
#ifndef TE_GGUF_TYPES_H
#define TE_GGUF_TYPES_H

#include "../core/context.h" /* te_context, te_fail */

/* The kinds of metadata values: X(name, bytes of a value) for each. Bytes 0: values of this kind differ in size, and
 * the file stores the size before the value. A file identifies a kind by its index in this list. */
#define TE_GGUF_KINDS(X)                                                                                             \
    X(uint8, 1) X(int8, 1) X(uint16, 2) X(int16, 2) X(uint32, 4) X(int32, 4) X(float32, 4) X(bool, 1) X(string, 0)   \
    X(array, 0) X(uint64, 8) X(int64, 8) X(float64, 8)

#define TE_GGUF_KIND_ENUM(name, bytes) TE_GGUF_##name,
typedef enum te_gguf_kind { TE_GGUF_KINDS(TE_GGUF_KIND_ENUM) TE_GGUF_KIND_COUNT } te_gguf_kind;
#undef TE_GGUF_KIND_ENUM

/* The types of tensors, X(name, number in a file, values of a block, bytes of a block) for each. A row of a tensor is a
 * whole number of blocks. Type numbers that are missing here do not occur in files, or ggml has removed them. */
#define TE_GGUF_TYPES(X)                                                                                             \
    X(F32, 0, 1, 4) X(F16, 1, 1, 2) X(Q4_0, 2, 32, 18) X(Q4_1, 3, 32, 20) X(Q5_0, 6, 32, 22) X(Q5_1, 7, 32, 24)      \
    X(Q8_0, 8, 32, 34) X(Q2_K, 10, 256, 84) X(Q3_K, 11, 256, 110) X(Q4_K, 12, 256, 144)                              \
    X(Q5_K, 13, 256, 176) X(Q6_K, 14, 256, 210) X(Q8_K, 15, 256, 292) X(IQ2_XXS, 16, 256, 66)                        \
    X(IQ2_XS, 17, 256, 74) X(IQ3_XXS, 18, 256, 98) X(IQ1_S, 19, 256, 50) X(IQ4_NL, 20, 32, 18) X(IQ3_S, 21, 256, 110)\
    X(IQ2_S, 22, 256, 82) X(IQ4_XS, 23, 256, 136) X(I8, 24, 1, 1) X(I16, 25, 1, 2) X(I32, 26, 1, 4) X(I64, 27, 1, 8) \
    X(F64, 28, 1, 8) X(IQ1_M, 29, 256, 56) X(BF16, 30, 1, 2) X(TQ1_0, 34, 256, 54) X(TQ2_0, 35, 256, 66)             \
    X(MXFP4, 39, 32, 17) X(NVFP4, 40, 64, 36) X(Q1_0, 41, 128, 18)

#define TE_GGUF_TYPE_ENUM(name, number, values, bytes) TE_GGUF_##name = number,
typedef enum te_gguf_type { TE_GGUF_TYPES(TE_GGUF_TYPE_ENUM) TE_GGUF_TYPE_NONE = 255 } te_gguf_type;
#undef TE_GGUF_TYPE_ENUM

enum {
    TE_GGUF_MAX_RANK = 4,
    TE_GGUF_MAX_NAME = 65535,      /* max number of bytes of a key or of a tensor's name */
    TE_GGUF_MAX_DEPTH = 8,         /* max nesting depth of arrays */
    TE_GGUF_MAX_SPLITS = 9999,     /* max number of files of one model */
    TE_GGUF_MAX_ALIGNMENT = 1 << 20
};

/* A string: the n bytes of the file from address p on, without a closing NUL. Keys and names contain no NUL, but other
 * strings may contain NULs. */
typedef struct te_gguf_text { const char *p; size_t n; } te_gguf_text;

/* A metadata value, or an element of an array. te_gguf_integer_of, te_gguf_real_of, te_gguf_bool_of and
 * te_gguf_string_of read the value. */
typedef struct te_gguf_value {
    te_gguf_text key;        /* {null, 0} for an element of an array */
    te_gguf_kind kind;
    te_gguf_kind element;    /* for an array: the kind of its elements */
    uint64_t count;          /* for an array: the number of elements; for a string: the number of bytes */
    const unsigned char *at; /* address, in the file, of the number, the string's bytes or the array's first element */
} te_gguf_value;

typedef struct te_gguf_tensor {
    te_gguf_text name;
    te_gguf_type type;
    int rank;
    int64_t shape[TE_GGUF_MAX_RANK]; /* the last dimension is contiguous: a matrix is [rows, cols]. The file stores
                                      * the dimensions in the opposite order */
    const void *data;                /* address of the tensor's data in the mapped file */
    uint64_t bytes, offset;          /* offset: bytes from the start of the file's tensor data */
    int file;                        /* index of the file that contains the tensor, in te_gguf.file */
    int uses;                        /* number of parameters that te_gguf_bind has bound to the tensor */
} te_gguf_tensor;

/* The bytes of one file. */
typedef struct te_gguf_file {
    const unsigned char *memory;
    uint64_t bytes, header; /* header: the bytes before the padding and the tensors' data */
    int mapped;
} te_gguf_file;

/* An open model, which consists of one file, or of several files into which the model is split. */
typedef struct te_gguf {
    te_gguf_value *value;   /* [values]: the metadata of the first file, sorted by key */
    te_gguf_tensor *tensor; /* [tensors]: the tensors of all files, sorted by name */
    te_gguf_file *file;     /* [files] */
    int values, tensors, files;
    char *path;             /* path of the first file */
} te_gguf;

TE_API int te__gguf_kind_bytes(te_gguf_kind kind) {
#define TE_GGUF_KIND_BYTES(name, bytes) bytes,
    static const unsigned char sizes[] = {TE_GGUF_KINDS(TE_GGUF_KIND_BYTES)};
#undef TE_GGUF_KIND_BYTES
    return (unsigned)kind < (unsigned)TE_GGUF_KIND_COUNT ? sizes[kind] : 0;
}
/* The name of a kind in lower case, such as "uint32". */
TE_API const char *te_gguf_kind_name(te_gguf_kind kind) {
#define TE_GGUF_KIND_NAME(name, bytes) #name,
    static const char *const names[] = {TE_GGUF_KINDS(TE_GGUF_KIND_NAME)};
#undef TE_GGUF_KIND_NAME
    return (unsigned)kind < (unsigned)TE_GGUF_KIND_COUNT ? names[kind] : "unknown";
}
/* A tensor type: its name, and how many values and bytes a block has. If te_gguf_block_of gets a number that is no
 * type, the name is "unknown", and values and bytes are 0. */
typedef struct te_gguf_block { const char *name; int values, bytes; } te_gguf_block;
TE_API te_gguf_block te_gguf_block_of(te_gguf_type type) {
    te_gguf_block b;
    b.name = "unknown", b.values = b.bytes = 0;
    switch ((unsigned)type) {
#define TE_GGUF_TYPE_CASE(token, number, v, n)                                                                       \
    case number: b.name = #token, b.values = v, b.bytes = n; break;
        TE_GGUF_TYPES(TE_GGUF_TYPE_CASE)
#undef TE_GGUF_TYPE_CASE
    default: break;
    }
    return b;
}
/* Return how many bytes of t an error text shows, at most 60: printf("%.*s", te__gguf_shown(t), t.p). */
TE_API int te__gguf_shown(te_gguf_text t) { return t.n < 60 ? (int)t.n : 60; }

#endif
