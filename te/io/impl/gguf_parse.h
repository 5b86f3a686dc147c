/* gguf_parse.h -- parses the header of a GGUF file into tables, and checks all of it.
 *
 * A file consists of the bytes "GGUF", the version (u32), the numbers of tensors and of metadata values (u64 each), the
 * values (key, kind, value), the tensors (name, number of dimensions, dimensions, type, offset), padding, and the
 * tensors' data. A string is stored as its length (u64) and its bytes, an array as the kind of its elements (u32),
 * their number (u64) and the elements.
 *
 * The file is not trusted. Each count in the file is checked against the number of bytes left in the file before the
 * count is used. Memory is allocated only for entries that have been read, not for a count that the file claims. The
 * tables take at most 16 times the bytes of the header.
 */
#ifndef TE_GGUF_PARSE_H
#define TE_GGUF_PARSE_H

#include "../../core/impl/file.h" /* te__file_open; an #error on big-endian machines */
#include "../gguf_types.h"        /* te_gguf */
#include "../json.h"              /* te__grow */

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* The position of the parser in the header of a file. The file's bytes are memory[bytes], and the next byte to read is
 * memory[at]. */
typedef struct te__gguf_cursor {
    const unsigned char *memory;
    uint64_t bytes, at;
    const char *path;
    te_gguf_text name; /* the key or the tensor name that is being read, for error texts */
    te_context *ctx;
} te__gguf_cursor;

TE_API uint64_t te__gguf_left(const te__gguf_cursor *c) { return c->bytes - c->at; }
TE_API te_status te__gguf_take(const unsigned char **p, te__gguf_cursor *c, uint64_t n) {
    TE_REQUIRE(n <= te__gguf_left(c), c->ctx, TE_ERROR_FORMAT,
               "%.120s: %.*s: needs %llu bytes from byte %llu on, the file has %llu", c->path, te__gguf_shown(c->name),
               c->name.p, (unsigned long long)n, (unsigned long long)c->at, (unsigned long long)c->bytes);
    *p = c->memory + c->at, c->at += n;
    return TE_OK;
}
TE_API te_status te__gguf_u32(uint32_t *v, te__gguf_cursor *c) {
    const unsigned char *p = 0;
    TE_TRY(te__gguf_take(&p, c, 4));
    memcpy(v, p, 4);
    return TE_OK;
}
TE_API te_status te__gguf_u64(uint64_t *v, te__gguf_cursor *c) {
    const unsigned char *p = 0;
    TE_TRY(te__gguf_take(&p, c, 8));
    memcpy(v, p, 8);
    return TE_OK;
}
TE_API te_gguf_text te__gguf_text(const char *p, size_t n) {
    te_gguf_text t;
    t.p = p, t.n = n;
    return t;
}
/* Read a key or a tensor's name into *t and, for error texts, into c->name. what: "a key" or "a tensor's name", for
 * error texts. */
TE_API te_status te__gguf_name(te_gguf_text *t, te__gguf_cursor *c, const char *what) {
    uint64_t n = 0;
    const unsigned char *p = 0;
    c->name = te__gguf_text(what, strlen(what));
    TE_TRY(te__gguf_u64(&n, c));
    TE_REQUIRE(n > 0 && n <= TE_GGUF_MAX_NAME, c->ctx, TE_ERROR_FORMAT,
               "%.120s: %s at byte %llu has %llu bytes; 1 to %d are allowed", c->path, what,
               (unsigned long long)c->at - 8, (unsigned long long)n, (int)TE_GGUF_MAX_NAME);
    TE_TRY(te__gguf_take(&p, c, n));
    TE_REQUIRE(!memchr(p, 0, (size_t)n), c->ctx, TE_ERROR_FORMAT, "%.120s: %s at byte %llu contains a zero", c->path,
               what, (unsigned long long)(c->at - n));
    *t = c->name = te__gguf_text((const char *)p, (size_t)n);
    return TE_OK;
}

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

TE_API te_status te__gguf_kind(te_gguf_kind *kind, te__gguf_cursor *c) {
    uint32_t number = 0;
    TE_TRY(te__gguf_u32(&number, c));
    TE_REQUIRE(number < TE_GGUF_KIND_COUNT, c->ctx, TE_ERROR_FORMAT, "%.120s: %.*s: no value has the kind %u", c->path,
               te__gguf_shown(c->name), c->name.p, (unsigned)number);
    *kind = (te_gguf_kind)number;
    return TE_OK;
}
/* Set *at to the address of the next `count` numbers, which are of the kind `kind`, and move the cursor past these
 * numbers. Numbers of the kind bool must be 0 or 1. */
TE_API te_status te__gguf_numbers(const unsigned char **at, te__gguf_cursor *c, te_gguf_kind kind, uint64_t count) {
    const uint64_t size = (uint64_t)te__gguf_kind_bytes(kind);
    TE_REQUIRE(count <= te__gguf_left(c) / size, c->ctx, TE_ERROR_FORMAT,
               "%.120s: %.*s: an array of %llu, %llu bytes are left", c->path, te__gguf_shown(c->name), c->name.p,
               (unsigned long long)count, (unsigned long long)te__gguf_left(c));
    TE_TRY(te__gguf_take(at, c, count * size));
    for (uint64_t i = 0; kind == TE_GGUF_bool && i < count; i++)
        TE_REQUIRE((*at)[i] <= 1, c->ctx, TE_ERROR_FORMAT, "%.120s: %.*s: a bool is %d", c->path,
                   te__gguf_shown(c->name), c->name.p, (int)(*at)[i]);
    return TE_OK;
}
/* Read a value of the kind v->kind into *v. depth: the number of arrays that enclose the value. */
TE_API te_status te__gguf_read_value(te_gguf_value *v, te__gguf_cursor *c, int depth) {
    te_gguf_value inner;
    if (v->kind == TE_GGUF_string) {
        TE_TRY(te__gguf_u64(&v->count, c));
        return te__gguf_take(&v->at, c, v->count);
    }
    if (v->kind != TE_GGUF_array) return te__gguf_numbers(&v->at, c, v->kind, 1);
    TE_REQUIRE(depth < TE_GGUF_MAX_DEPTH, c->ctx, TE_ERROR_FORMAT, "%.120s: %.*s: arrays in arrays, more than %d deep",
               c->path, te__gguf_shown(c->name), c->name.p, (int)TE_GGUF_MAX_DEPTH);
    TE_TRY(te__gguf_kind(&v->element, c));
    TE_TRY(te__gguf_u64(&v->count, c));
    v->at = c->memory + c->at;
    if (te__gguf_kind_bytes(v->element)) return te__gguf_numbers(&v->at, c, v->element, v->count);
    memset(&inner, 0, sizeof inner);
    inner.kind = v->element;
    for (uint64_t i = 0; i < v->count; i++) TE_TRY(te__gguf_read_value(&inner, c, depth + 1));
    return TE_OK;
}
TE_API int te__gguf_order(te_gguf_text a, te_gguf_text b) {
    const int order = memcmp(a.p, b.p, a.n < b.n ? a.n : b.n);
    return order ? order : a.n < b.n ? -1 : a.n > b.n;
}
TE_API int te__gguf_by_key(const void *a, const void *b) {
    return te__gguf_order(((const te_gguf_value *)a)->key, ((const te_gguf_value *)b)->key);
}
TE_API int te__gguf_by_name(const void *a, const void *b) {
    return te__gguf_order(((const te_gguf_tensor *)a)->name, ((const te_gguf_tensor *)b)->name);
}
/* Read the metadata of a file into the array *values, which then has *count entries, sorted by key. claimed: the number
 * of metadata values that the file states. The caller must free *values even after an error. */
TE_API te_status te__gguf_read_values(te_gguf_value **values, int *count, te__gguf_cursor *c, uint64_t claimed) {
    for (uint64_t i = 0; i < claimed; i++) { /* if `claimed` is too large, reading fails at the file's end */
        te_gguf_value *grown = *count < 1 << 28 ? (te_gguf_value *)te__grow(*values, *count, sizeof **values) : 0;
        TE_REQUIRE(grown, c->ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate for %d metadata", c->path, *count + 1);
        *values = grown;
        te_gguf_value *v = &grown[*count];
        memset(v, 0, sizeof *v);
        TE_TRY(te__gguf_name(&v->key, c, "a key"));
        TE_TRY(te__gguf_kind(&v->kind, c));
        TE_TRY(te__gguf_read_value(v, c, 0));
        ++*count;
    }
    if (*count) qsort(*values, (size_t)*count, sizeof **values, te__gguf_by_key);
    for (int i = 1; i < *count; i++)
        TE_REQUIRE(te__gguf_by_key(&(*values)[i - 1], &(*values)[i]), c->ctx, TE_ERROR_FORMAT,
                   "%.120s: two metadata are called \"%.*s\"", c->path, te__gguf_shown((*values)[i].key),
                   (*values)[i].key.p);
    return TE_OK;
}
TE_API const te_gguf_value *te__gguf_find_value(const te_gguf_value *values, int count, const char *key) {
    te_gguf_value v;
    v.key = te__gguf_text(key, strlen(key));
    return count ? (const te_gguf_value *)bsearch(&v, values, (size_t)count, sizeof v, te__gguf_by_key) : 0;
}
/* Store the integer v, of any width, in *out and return 1; return 0 if v is no integer or does not fit int64. */
TE_API int te__gguf_integer(const te_gguf_value *v, int64_t *out) {
    uint64_t bits = 0;
    const int bytes = te__gguf_kind_bytes(v->kind), is_signed = v->kind == TE_GGUF_int8 || v->kind == TE_GGUF_int16 ||
                                                               v->kind == TE_GGUF_int32 || v->kind == TE_GGUF_int64;
    if (!bytes || v->kind == TE_GGUF_bool || v->kind == TE_GGUF_float32 || v->kind == TE_GGUF_float64) return 0;
    memcpy(&bits, v->at, (size_t)bytes);
    if (is_signed && bytes < 8 && (bits >> (8 * bytes - 1))) bits |= ~(uint64_t)0 << (8 * bytes);
    if (!is_signed && bits > (uint64_t)INT64_MAX) return 0;
    memcpy(out, &bits, 8);
    return 1;
}
/* Set *out to the integer with this key, such as "split.count", or to `otherwise` if the file has no such key. */
TE_API te_status te__gguf_own_integer(int64_t *out, const te_gguf_value *values, int count, const char *key,
                                      int64_t otherwise, const te__gguf_cursor *c) {
    const te_gguf_value *v = te__gguf_find_value(values, count, key);
    *out = otherwise;
    TE_REQUIRE(!v || te__gguf_integer(v, out), c->ctx, TE_ERROR_FORMAT, "%.120s: %s is %s, it should be an integer",
               c->path, key, te_gguf_kind_name(v->kind));
    return TE_OK;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Compute t->bytes from the tensor's shape and type. Check that each row consists of whole blocks, and that the size
 * does not overflow. If the type is unknown, t->bytes is 0: te_gguf_find finds the tensor, but te_gguf_bind does not
 * bind a parameter to it. */
TE_API te_status te__gguf_size(te_gguf_tensor *t, const te__gguf_cursor *c) {
    const te_gguf_block block = te_gguf_block_of(t->type);
    const uint64_t cols = t->rank ? (uint64_t)t->shape[t->rank - 1] : 1;
    uint64_t count = 1;
    if (!block.values) return t->bytes = 0, TE_OK;
    for (int i = 0; i < t->rank; i++) {
        TE_REQUIRE(!t->shape[i] || count <= (uint64_t)INT64_MAX / 64 / (uint64_t)t->shape[i], c->ctx, TE_ERROR_FORMAT,
                   "%.120s: tensor %.*s is too large", c->path, te__gguf_shown(t->name), t->name.p);
        count *= (uint64_t)t->shape[i];
    }
    TE_REQUIRE(cols % (uint64_t)block.values == 0, c->ctx, TE_ERROR_FORMAT,
               "%.120s: tensor %.*s has rows of %llu values; a block of %s has %d", c->path, te__gguf_shown(t->name),
               t->name.p, (unsigned long long)cols, block.name, block.values);
    t->bytes = count / (uint64_t)block.values * (uint64_t)block.bytes;
    return TE_OK;
}
/* Read the header's entry for one tensor. */
TE_API te_status te__gguf_read_tensor(te_gguf_tensor *t, uint64_t alignment, te__gguf_cursor *c) {
    uint32_t rank = 0, type = 0;
    uint64_t size = 0;
    TE_TRY(te__gguf_name(&t->name, c, "a tensor's name"));
    TE_TRY(te__gguf_u32(&rank, c));
    TE_REQUIRE(rank <= TE_GGUF_MAX_RANK, c->ctx, TE_ERROR_FORMAT, "%.120s: tensor %.*s has %u dimensions, %d at most",
               c->path, te__gguf_shown(t->name), t->name.p, (unsigned)rank, (int)TE_GGUF_MAX_RANK);
    t->rank = (int)rank;
    for (int i = t->rank - 1; i >= 0; i--) {
        TE_TRY(te__gguf_u64(&size, c));
        TE_REQUIRE(size <= (uint64_t)INT64_MAX, c->ctx, TE_ERROR_FORMAT, "%.120s: tensor %.*s is too large", c->path,
                   te__gguf_shown(t->name), t->name.p);
        t->shape[i] = (int64_t)size;
    }
    TE_TRY(te__gguf_u32(&type, c));
    t->type = type < TE_GGUF_TYPE_NONE ? (te_gguf_type)type : TE_GGUF_TYPE_NONE;
    TE_TRY(te__gguf_u64(&t->offset, c));
    TE_REQUIRE(t->offset % alignment == 0, c->ctx, TE_ERROR_FORMAT,
               "%.120s: tensor %.*s begins at byte %llu of the data, which is no multiple of %llu", c->path,
               te__gguf_shown(t->name), t->name.p, (unsigned long long)t->offset, (unsigned long long)alignment);
    return te__gguf_size(t, c);
}
TE_API int te__gguf_by_place(const void *a, const void *b) {
    const te_gguf_tensor *x = (const te_gguf_tensor *)a, *y = (const te_gguf_tensor *)b;
    if (x->data != y->data) return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}
/* Read the value of the key general.alignment, whose default is 32 bytes. */
TE_API te_status te__gguf_alignment(uint64_t *alignment, const te_gguf_value *values, int count,
                                    const te__gguf_cursor *c) {
    int64_t a = 0;
    TE_TRY(te__gguf_own_integer(&a, values, count, "general.alignment", 32, c));
    TE_REQUIRE(a > 0 && a <= TE_GGUF_MAX_ALIGNMENT && !(a & (a - 1)), c->ctx, TE_ERROR_FORMAT,
               "%.120s: general.alignment is %lld; it should be a power of two, %d at most", c->path, (long long)a,
               (int)TE_GGUF_MAX_ALIGNMENT);
    *alignment = (uint64_t)a;
    return TE_OK;
}
/* Append the tensors of one file to f->tensor. The tensors' data begins at the end of the header, rounded up to
 * `alignment`, and the offsets of tensors count from there. claimed: the number of tensors that the file states. */
TE_API te_status te__gguf_read_tensors(te_gguf *f, te_gguf_file *file, te__gguf_cursor *c, uint64_t claimed,
                                       uint64_t alignment) {
    const int first = f->tensors;
    for (uint64_t i = 0; i < claimed; i++) {
        te_gguf_tensor *t = f->tensors < 1 << 28 ? (te_gguf_tensor *)te__grow(f->tensor, f->tensors, sizeof *t) : 0;
        TE_REQUIRE(t, c->ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate for %d tensors", c->path, f->tensors + 1);
        f->tensor = t, t += f->tensors;
        memset(t, 0, sizeof *t);
        t->file = f->files;
        TE_TRY(te__gguf_read_tensor(t, alignment, c));
        f->tensors++;
    }
    const uint64_t begin = (c->at + alignment - 1) / alignment * alignment;
    const uint64_t data = file->bytes > begin ? file->bytes - begin : 0;
    file->header = c->at;
    for (int i = first; i < f->tensors; i++) {
        te_gguf_tensor *t = &f->tensor[i];
        TE_REQUIRE(t->offset <= data && t->bytes <= data - t->offset, c->ctx, TE_ERROR_FORMAT,
                   "%.120s: tensor %.*s has %llu bytes from byte %llu of the data on; the data has %llu", c->path,
                   te__gguf_shown(t->name), t->name.p, (unsigned long long)t->bytes, (unsigned long long)t->offset,
                   (unsigned long long)data);
        t->data = t->bytes ? file->memory + begin + t->offset : file->memory;
    }
    te_gguf_tensor *t = f->tensor ? f->tensor + first : 0;
    if (f->tensors > first) qsort(t, (size_t)(f->tensors - first), sizeof *t, te__gguf_by_place);
    for (int i = 1; i < f->tensors - first; i++)
        TE_REQUIRE((const char *)t[i - 1].data + t[i - 1].bytes <= (const char *)t[i].data, c->ctx, TE_ERROR_FORMAT,
                   "%.120s: the tensors %.*s and %.*s overlap", c->path, te__gguf_shown(t[i - 1].name), t[i - 1].name.p,
                   te__gguf_shown(t[i].name), t[i].name.p);
    return TE_OK;
}

/* ---- a file ------------------------------------------------------------------------------------------------------ */

/* A file's metadata about a split model. count: the number of the model's files, 1 if the model is not split; number:
 * the index of this file among them; tensors: the number of tensors in all files, -1 if the file does not store this
 * number. */
typedef struct te__gguf_split { int64_t count, number, tensors; } te__gguf_split;

TE_API te_status te__gguf_begin(uint64_t *tensors, uint64_t *values, te__gguf_cursor *c) {
    const unsigned char *magic = 0;
    uint32_t version = 0;
    c->name = te__gguf_text("the header", 10);
    TE_TRY(te__gguf_take(&magic, c, 4));
    TE_REQUIRE(!memcmp(magic, "GGUF", 4), c->ctx, TE_ERROR_FORMAT, "%.120s: is no GGUF file", c->path);
    TE_TRY(te__gguf_u32(&version, c));
    TE_REQUIRE(version & 0xffff, c->ctx, TE_ERROR_FORMAT,
               "%.120s: is a big-endian GGUF file; only little-endian ones are read", c->path);
    TE_REQUIRE(version == 2 || version == 3, c->ctx, TE_ERROR_FORMAT,
               "%.120s: has version %u of the format; 2 and 3 are read%s", c->path, (unsigned)version,
               version == 1 ? ", and 1 has not been written since 2023" : "");
    TE_TRY(te__gguf_u64(tensors, c));
    return te__gguf_u64(values, c);
}
TE_API te_status te__gguf_split_of(te__gguf_split *s, const te_gguf_value *values, int count,
                                   const te__gguf_cursor *c) {
    TE_TRY(te__gguf_own_integer(&s->count, values, count, "split.count", 0, c));
    TE_TRY(te__gguf_own_integer(&s->number, values, count, "split.no", 0, c));
    TE_TRY(te__gguf_own_integer(&s->tensors, values, count, "split.tensors.count", -1, c));
    TE_REQUIRE(s->count >= 0 && s->count <= TE_GGUF_MAX_SPLITS && s->number >= 0 &&
                   s->number < te_max(s->count, (int64_t)1), c->ctx, TE_ERROR_FORMAT,
               "%.120s: split.no is %lld and split.count %lld", c->path, (long long)s->number, (long long)s->count);
    s->count = te_max(s->count, (int64_t)1);
    return TE_OK;
}
/* Return the last 120 bytes of a path, or a few less so that no UTF-8 character is cut. Error texts show the end of a
 * path, because the paths of a split model's files differ only at the end. */
TE_API const char *te__gguf_path_end(const char *path) {
    const size_t n = strlen(path);
    if (n > 120) path += n - 120;
    while (((unsigned char)*path & 0xc0) == 0x80) path++;
    return path;
}
/* Parse file number f->files, whose bytes are in *file, and add its tensors to f->tensor. f->value keeps only the
 * metadata of the first file; the metadata of a later file say only which file of the model it is. */
TE_API te_status te__gguf_parse(te_gguf *f, te_gguf_file *file, te__gguf_split *split, const char *path,
                                te_context *ctx) {
    te__gguf_cursor c;
    te_gguf_value *values = 0;
    uint64_t tensors = 0, claimed = 0, alignment = 0;
    int count = 0;
    c.memory = file->memory, c.bytes = file->bytes, c.at = 0, c.path = te__gguf_path_end(path), c.ctx = ctx;
    te_status status = te__gguf_begin(&tensors, &claimed, &c);
    if (status == TE_OK) status = te__gguf_read_values(&values, &count, &c, claimed);
    if (status == TE_OK) status = te__gguf_split_of(split, values, count, &c);
    if (status == TE_OK) status = te__gguf_alignment(&alignment, values, count, &c);
    if (status == TE_OK) status = te__gguf_read_tensors(f, file, &c, tensors, alignment);
    if (f->files) free(values);
    else f->value = values, f->values = count;
    return status;
}
/* Sort the tensors of all files by name. Check that their names differ, and that there are as many tensors as the
 * metadata say. */
TE_API te_status te__gguf_finish(te_gguf *f, const te__gguf_split *split, te_context *ctx) {
    TE_REQUIRE(split->tensors < 0 || split->tensors == f->tensors, ctx, TE_ERROR_FORMAT,
               "%.120s: split.tensors.count is %lld, the files have %d", f->path, (long long)split->tensors,
               f->tensors);
    if (f->tensors) qsort(f->tensor, (size_t)f->tensors, sizeof *f->tensor, te__gguf_by_name);
    for (int i = 1; i < f->tensors; i++)
        TE_REQUIRE(te__gguf_by_name(&f->tensor[i - 1], &f->tensor[i]), ctx, TE_ERROR_FORMAT,
                   "%.120s: two tensors are called \"%.*s\"", f->path, te__gguf_shown(f->tensor[i].name),
                   f->tensor[i].name.p);
    return TE_OK;
}

#endif
