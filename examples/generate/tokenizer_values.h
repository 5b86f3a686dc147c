/* tokenizer_values.h -- the values of a tokenizer.json, each checked for its type, and memory and errors while it is
 * read: for tokenizer_file.c and tokenizer_model.c. Functions return 0 after an error, whose text is then in l->error.
 */
#ifndef TOKENIZER_VALUES_H
#define TOKENIZER_VALUES_H

#include <stdarg.h> /* va_list */
#include <stdio.h>  /* vsnprintf */
#include <stdlib.h> /* malloc */
#include <string.h> /* memcpy */

#include "tokenizer_impl.h" /* tokenizer */

enum { MAX_VOCABULARY = 1 << 24, MAX_TOKEN = 1 << 16, BLOCK = 1 << 16 };

/* Strings are in a list of blocks, which are freed together. */
struct tokenizer_block { struct tokenizer_block *next; size_t used, capacity; };

typedef tokenizer_json json;

typedef struct loader {
    tokenizer *t;
    const char *path;
    char *error; /* [256] */
} loader;

/* '?' for what is not UTF-8 in an error's text: a name of the file may have been cut in the middle of a character. */
static inline int only_characters(char *error) {
    for (char *p = error; *p;) {
        int state;
        const int n = tokenizer_utf8(p, strlen(p), &state);
        if (state != 1) memset(p, '?', (size_t)n);
        p += n;
    }
    return 0;
}
static inline int fail(loader *l, const char *format, ...) {
    va_list list;
    const int n = snprintf(l->error, 256, "%.120s: ", l->path);
    va_start(list, format);
    if (n > 0 && n < 256) vsnprintf(l->error + n, (size_t)(256 - n), format, list);
    va_end(list);
    return only_characters(l->error);
}
static inline int no_memory(loader *l) { return fail(l, "cannot allocate"); }

static inline void *allocate(loader *l, size_t count, size_t size) {
    void *p = calloc(count ? count : 1, size);
    if (!p) (void)no_memory(l);
    return p;
}
/* A copy of n bytes that lives as long as the tokenizer; p is null after an error. */
static inline tokenizer_text keep(loader *l, const char *p, size_t n) {
    tokenizer_text text = {NULL, n};
    struct tokenizer_block *b = l->t->block;
    if (!b || b->capacity - b->used < n + 1) {
        const size_t capacity = n + 1 > BLOCK ? n + 1 : (size_t)BLOCK;
        b = (struct tokenizer_block *)malloc(sizeof *b + capacity);
        if (!b) {
            (void)no_memory(l);
            return text;
        }
        b->next = l->t->block, b->used = 0, b->capacity = capacity, l->t->block = b;
    }
    char *to = (char *)(b + 1) + b->used;
    if (n) memcpy(to, p, n);
    to[n] = 0, b->used += n + 1, text.p = to;
    return text;
}

/* ---- values of the file ------------------------------------------------------------------------------------------ */

static inline int is_kind(const json *value, tokenizer_json_kind kind) { return value && value->kind == kind; }
static inline int is_text(const json *value) { return is_kind(value, JSON_string); }

/* Null if there is none, or it is null. */
static inline const json *member(const json *object, const char *key) {
    const size_t n = strlen(key);
    const json *value = is_kind(object, JSON_object) ? object->child : NULL;
    while (value && (value->key.n != n || memcmp(value->key.p, key, n))) value = value->next;
    return is_kind(value, JSON_null) ? NULL : value;
}

/* A string of `object`, which has to be there. */
static inline int get_text(loader *l, const json *object, const char *key, tokenizer_text *out) {
    const json *value = member(object, key);
    if (!is_text(value)) return fail(l, "\"%s\" should be a string", key);
    *out = keep(l, value->text.p, value->text.n);
    return out->p != NULL;
}
static inline int get_bool(loader *l, const json *object, const char *key, int otherwise, int *out) {
    const json *value = member(object, key);
    *out = value ? is_kind(value, JSON_true) : otherwise;
    if (!value || is_kind(value, JSON_true) || is_kind(value, JSON_false)) return 1;
    return fail(l, "\"%s\" should be true or false", key);
}
static inline int get_count(loader *l, const json *object, const char *key, int max, int *out) {
    const json *value = member(object, key);
    if (!is_kind(value, JSON_number) || !(value->number >= 0 && value->number <= max) ||
        value->number != (int)value->number)
        return fail(l, "\"%s\" should be a whole number from 0 to %d", key, max);
    *out = (int)value->number;
    return 1;
}
static inline const char *type_of(const json *object) {
    const json *type = member(object, "type");
    return is_text(type) ? type->text.p : "";
}
static inline int is(const json *object, const char *type) { return !strcmp(type_of(object), type); }
/* The id of a token, a number of the file. */
static inline int get_id(loader *l, const json *value, const char *name, int32_t *id) {
    if (!is_kind(value, JSON_number) || !(value->number >= 0 && value->number < MAX_VOCABULARY) ||
        value->number != (int32_t)value->number)
        return fail(l, "the id of \"%.40s\" should be a whole number from 0 to %d", name, MAX_VOCABULARY - 1);
    *id = (int32_t)value->number;
    return 1;
}

/* Read the vocabulary and the merges, or what WordPiece has instead. */
int tokenizer_load_model(loader *l, const json *root);

#endif
