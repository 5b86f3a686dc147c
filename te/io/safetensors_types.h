/* safetensors_types.h -- the types of safetensors.h: a named tensor, the dtypes of the format, and an open file.
 *
 * A file may have tensors in a dtype that is not in the list below (F8_E8M0, F4, C64 and others), or with more than
 * TE_SAFETENSORS_MAX_RANK dimensions. Such tensors are in the table of an open file, and te_safetensors_read reads
 * their bytes, but the library can neither convert nor write such tensors.
 *
 * Do this:
 *     te_safetensor t = te_safetensor_matrix("fc.weight", TE_bf16, 3072, 768, weight);      // host or target memory
 */
#ifndef TE_SAFETENSOR_H
#define TE_SAFETENSOR_H

#include <stdio.h> /* snprintf */

#include "../core/dtype.h" /* te_dtype */

/* The list of the format's dtypes: X(name, bytes of an element) for each. */
#define TE_SAFETENSORS_DTYPES(X) \
    X(F64, 8) X(I64, 8) X(U64, 8) \
    X(F32, 4) X(I32, 4) X(U32, 4) \
    X(BF16, 2) X(F16, 2) X(I16, 2) X(U16, 2) \
    X(F8_E4M3, 1) X(F8_E5M2, 1) X(I8, 1) X(U8, 1) X(BOOL, 1)

#define TE_SAFETENSORS_ENUM(name, bytes) TE_SAFETENSORS_##name,
typedef enum te_safetensors_dtype {
    TE_SAFETENSORS_DTYPES(TE_SAFETENSORS_ENUM) TE_SAFETENSORS_DTYPE_COUNT,
    TE_SAFETENSORS_OTHER = TE_SAFETENSORS_DTYPE_COUNT /* a dtype that is not in the list; its name is
                                                       * te_safetensor.dtype_text */
} te_safetensors_dtype;
#undef TE_SAFETENSORS_ENUM

#define TE_SAFETENSORS_SUM "te.checksum" /* the metadata key of the checksum; a file with this key is called sealed */

enum {
    TE_SAFETENSORS_DIGITS = 16, /* hexadecimal digits of the checksum in a sealed file */
    TE_SAFETENSORS_MAX_RANK = 8,
    /* alignment in bytes of the tensors' data in files that the library writes; te_weights_use requires an alignment of
     * only TE_ACCESS (16) bytes */
    TE_SAFETENSORS_ALIGN = 64,
    TE_SAFETENSORS_MAX_HEADER = 100000000, /* the largest size of a header in bytes; the reference implementation has
                                            * the same limit */
    /* the size in bytes of the host buffer through which data is read and written */
    TE_SAFETENSORS_STAGING = 4 << 20
};

typedef struct te_safetensor {
    const char *name;
    te_safetensors_dtype dtype;
    const char *dtype_text; /* in the table of an open file, if dtype is TE_SAFETENSORS_OTHER: the name of the dtype */
    /* the number of dimensions, which is 0 for a single number. In the table of an open file, rank may be larger than
     * TE_SAFETENSORS_MAX_RANK; `shape` then has only the first TE_SAFETENSORS_MAX_RANK dimensions */
    int rank;
    int64_t shape[TE_SAFETENSORS_MAX_RANK];
    void *data;      /* the tensor's data in host or target memory; null in the table of an open file */
    uint64_t bytes;  /* the size of the whole tensor in bytes. If the library does not know the dtype or the tensor has
                      * too many dimensions, this is the size according to the offsets in the file's header */
    /* in the table of an open file: the tensor's offset, in bytes, from the start of the tensors' data */
    uint64_t offset;
    int transposed;  /* 1: the tensor in the file is the transpose of `data` (te_safetensor_transposed) */
    int sliced;      /* 1: `data` holds only a part of the file's tensor (te_safetensor_slice) */
    uint64_t *written; /* if `data` is the memory of a model's parameter, the address of te_param.written, through which
                        * te_safetensors_load records that it has written the parameter; else null */
    int64_t first[2], count[2]; /* for a slice. first: the slice's first row and first column in the file's tensor;
                                 * count: how many rows and columns the slice has */
    int64_t step[2]; /* for a slice: from row first[0] on, it has every step[0]-th row; from column first[1] on, every
                      * step[1]-th column */
    /* if the tensor in the file is [matrices, rows, cols], the number of matrices; `shape` and the slice then treat the
     * tensor as one matrix, [matrices * rows, cols]. If the tensor in the file is a matrix, `matrices` is 0 */
    int64_t matrices;
} te_safetensor;

/* In the table of an open file, `value` is a null pointer if the file's JSON value is not a string. */
typedef struct te_safetensors_pair { const char *key, *value; } te_safetensors_pair;

/* An open file. */
typedef struct te_safetensors {
    te_safetensor *tensor;         /* [count], sorted by name */
    te_safetensors_pair *metadata; /* [metadata_count], sorted by key */
    int count, metadata_count;
    uint64_t data_at;    /* the offset in bytes, within the file, at which the data of the tensors begins */
    char *header, *path; /* header: the text of the file's header, in which strings have been decoded in place */
    /* the bytes of the file, if it was opened in memory or is mapped; null if the file is read through the descriptor
     * fd */
    const char *memory;
    size_t mapped;       /* how many bytes of the file are mapped into memory; te_safetensors_close unmaps these
                          * bytes */
    int fd, open;        /* open: 1 if fd must be closed */
    int verified;        /* 1: te_safetensors_verify has found a checksum in the file, and the checksum matches */
} te_safetensors;

TE_API size_t te_safetensors_dtype_bytes(te_safetensors_dtype t) {
#define TE_SAFETENSORS_BYTES(name, bytes) bytes,
    static const unsigned char sizes[] = {TE_SAFETENSORS_DTYPES(TE_SAFETENSORS_BYTES)};
#undef TE_SAFETENSORS_BYTES
    return (unsigned)t < (unsigned)TE_SAFETENSORS_DTYPE_COUNT ? sizes[t] : 0;
}
TE_API const char *te_safetensors_dtype_name(te_safetensors_dtype t) {
#define TE_SAFETENSORS_NAME(name, bytes) #name,
    static const char *const names[] = {TE_SAFETENSORS_DTYPES(TE_SAFETENSORS_NAME)};
#undef TE_SAFETENSORS_NAME
    return (unsigned)t < (unsigned)TE_SAFETENSORS_DTYPE_COUNT ? names[t] : "unknown";
}
TE_API te_safetensors_dtype te__safetensors_dtype_of(te_dtype t) {
#define TE_SAFETENSORS_OF(token, bytes, name) TE_SAFETENSORS_##name,
    static const te_safetensors_dtype all[] = {TE_DTYPES(TE_SAFETENSORS_OF)};
#undef TE_SAFETENSORS_OF
    return (unsigned)t < (unsigned)TE_DTYPE_COUNT ? all[t] : TE_SAFETENSORS_DTYPE_COUNT;
}

/* Compute the size of a tensor in bytes. Returns 0 if dtype, rank or shape is not valid, or if the size overflows. */
TE_API int te__safetensor_size(uint64_t *bytes, const te_safetensor *t) {
    const uint64_t limit = (uint64_t)(INT64_MAX < SIZE_MAX ? INT64_MAX : SIZE_MAX);
    *bytes = te_safetensors_dtype_bytes(t->dtype);
    if (!*bytes || t->rank < 0 || t->rank > TE_SAFETENSORS_MAX_RANK) return 0;
    for (int i = 0; i < t->rank; i++) {
        if (t->shape[i] < 0 || (t->shape[i] && *bytes > limit / (uint64_t)t->shape[i])) return 0;
        *bytes *= (uint64_t)t->shape[i];
    }
    return 1;
}
/* Describe a tensor that is to be written or loaded, given its dtype and shape in the file. */
TE_API te_safetensor te_safetensor_of(const char *name, te_safetensors_dtype dtype, int rank, const int64_t *shape,
                                      void *data) {
    te_safetensor t;
    memset(&t, 0, sizeof t);
    t.name = name, t.dtype = dtype, t.rank = shape || !rank ? rank : -1, t.data = data;
    for (int i = 0; i < t.rank && i < TE_SAFETENSORS_MAX_RANK; i++) t.shape[i] = shape[i];
    (void)te__safetensor_size(&t.bytes, &t);
    return t;
}
/* Describe a matrix that is to be written or loaded. The matrix has the shape [rows, cols] in the file; if `rows` is 1,
 * the shape [cols]. */
TE_API te_safetensor te_safetensor_matrix(const char *name, te_dtype dtype, int64_t rows, int64_t cols, void *data) {
    int64_t shape[2];
    shape[0] = rows, shape[1] = cols;
    return te_safetensor_of(name, te__safetensors_dtype_of(dtype), rows == 1 ? 1 : 2, rows == 1 ? shape + 1 : shape,
                            data);
}

/* Describe a matrix that is to be written or loaded. In memory it is data[rows, cols]; the file has its transpose,
 * [cols, rows]. */
TE_API te_safetensor te_safetensor_transposed(const char *name, te_dtype dtype, int64_t rows, int64_t cols,
                                              void *data) {
    int64_t shape[2];
    shape[0] = cols, shape[1] = rows;
    te_safetensor t = te_safetensor_of(name, te__safetensors_dtype_of(dtype), 2, shape, data);
    t.transposed = 1;
    return t;
}

/* Describe a slice of the file's tensor t, for loading. The slice begins at row first_row and column first_col of the
 * tensor, and t.data has memory only for the slice, [rows, cols]. A vector counts as one row. The caller may set
 * te_safetensor.step in the result, to take every step-th row or column. */
TE_API te_safetensor te_safetensor_slice(te_safetensor t, int64_t first_row, int64_t rows, int64_t first_col,
                                         int64_t cols) {
    t.sliced = 1, t.first[0] = first_row, t.count[0] = rows, t.first[1] = first_col, t.count[1] = cols;
    t.step[0] = t.step[1] = 1;
    return t;
}
TE_API int64_t te__safetensor_rows(const te_safetensor *t) { return t->rank == 2 ? t->shape[0] : 1; }
TE_API int64_t te__safetensor_cols(const te_safetensor *t) {
    return t->rank && t->rank <= TE_SAFETENSORS_MAX_RANK ? t->shape[t->rank - 1] : 1;
}
/* Return 0 if t is a slice that does not lie within the file's tensor; else 1. */
TE_API int te__safetensor_has_slice(const te_safetensor *t) {
    const int64_t size[2] = {te__safetensor_rows(t), te__safetensor_cols(t)};
    if (!t->sliced) return 1;
    for (int i = 0; i < 2; i++)
        if (t->first[i] < 0 || t->count[i] < 1 || t->step[i] < 1 || t->first[i] >= size[i] ||
            t->count[i] - 1 > (size[i] - 1 - t->first[i]) / t->step[i])
            return 0;
    return t->rank <= 2;
}
/* Return the number of elements of t's data; if t is a slice, the number of elements of the slice. */
TE_API int64_t te__safetensor_count(const te_safetensor *t) {
    const size_t each = te_safetensors_dtype_bytes(t->dtype);
    return t->sliced ? t->count[0] * t->count[1] : each ? (int64_t)(t->bytes / each) : 0;
}
/* Return the size in bytes of t's data; if t is a slice, that of the slice. */
TE_API uint64_t te__safetensor_data_bytes(const te_safetensor *t) {
    return (uint64_t)te__safetensor_count(t) * te_safetensors_dtype_bytes(t->dtype);
}

/* Transpose the matrix from[rows, cols] to to[cols, rows]. Both matrices lie in host memory. size: bytes of an
 * element. */
TE_API void te__safetensor_transpose(char *to, const char *from, int64_t rows, int64_t cols, size_t size) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            memcpy(to + (size_t)(c * rows + r) * size, from + (size_t)(r * cols + c) * size, size);
}

/* A tensor's dtype and shape as a text for messages, e.g. "BF16 [3072, 768]". 224 bytes suffice for the name of a dtype
 * of 40 bytes and TE_SAFETENSORS_MAX_RANK numbers of 21 characters each. */
typedef struct te__shape_text { char text[224]; } te__shape_text;
TE_API te__shape_text te__shape_text_of(const te_safetensor *t) {
    te__shape_text s;
    const char *dtype = t->dtype_text ? t->dtype_text : te_safetensors_dtype_name(t->dtype);
    size_t n = (size_t)snprintf(s.text, sizeof s.text, "%.40s [", dtype);
    if (t->matrices) n += (size_t)snprintf(s.text + n, sizeof s.text - n, "%lld, ", (long long)t->matrices);
    for (int i = 0; i < t->rank && i < TE_SAFETENSORS_MAX_RANK; i++)
        n += (size_t)snprintf(s.text + n, sizeof s.text - n, "%s%lld", i ? ", " : "",
                              (long long)(t->matrices && !i ? t->shape[0] / t->matrices : t->shape[i]));
    snprintf(s.text + n, sizeof s.text - n, "%s]", t->rank > TE_SAFETENSORS_MAX_RANK ? ", .." : "");
    return s;
}

#endif
