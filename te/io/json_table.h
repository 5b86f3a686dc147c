/* json_table.h -- a JSON file (RFC 8259) as a flat table: config.json, or the index of a model in several files.
 *
 * Do this:
 *     te_json config;
 *     TE_TRY(te_json_open(&config, "config.json", &ctx));                        // checks all of it
 *     const te_json_value *base = te_json_find(&config, "rope_parameters.rope_theta");   // null: there is none
 *     if (base && base->kind == TE_JSON_number) use(0, (int)base->number);
 *     te_json_close(&config);
 *
 * A value in objects and arrays is called by their keys and indices with dots between them: "layer_types.0". A key that
 * has a dot itself is taken as it is: "weight_map.model.norm.weight". Objects and arrays themselves are not in the
 * table. A file may come from anybody: what is not JSON, a key that stands twice and nesting beyond
 * TE_JSON_DEPTH are TE_ERROR_FORMAT, and nothing recurses.
 */
#ifndef TE_JSON_TABLE_H
#define TE_JSON_TABLE_H

#include "../core/file.h"      /* te__file_open, te__file_read */
#include "safetensors_parse.h" /* te__room, te__json */

enum { TE_JSON_DEPTH = 16, TE_JSON_PATH = 256 /* bytes of a value's name */, TE_JSON_MOST = 64 << 20 /* of a file */ };

typedef enum te_json_kind { TE_JSON_null, TE_JSON_bool, TE_JSON_number, TE_JSON_string } te_json_kind;
typedef struct te_json_value {
    const char *name; /* the keys in front of it, and its own */
    te_json_kind kind;
    double number;    /* a bool: 0 or 1 */
    const char *text; /* a string; else null */
} te_json_value;
typedef struct te_json {
    te_json_value *value; /* [count], by name */
    int count;
    char *text; /* the strings lie in it */
} te_json;

TE_API void te_json_close(te_json *t) {
    if (!t) return;
    for (int i = 0; i < t->count; i++) free((void *)(uintptr_t)t->value[i].name);
    free(t->value), free(t->text);
    memset(t, 0, sizeof *t);
}
/* -12, 0.5, 1e-05 */
TE_API te_status te__json_real(double *out, te__json *j) {
    char digits[64];
    (void)te__json_peek(j);
    const char *from = j->text + j->at, *p = from + (*from == '-');
    const char *whole = p;
    while (*p >= '0' && *p <= '9') p++;
    if (p == whole || (*whole == '0' && p > whole + 1)) return te__json_fail(j, "a value should stand here");
    if (*p == '.') {
        const char *fraction = ++p;
        while (*p >= '0' && *p <= '9') p++;
        if (p == fraction) return te__json_fail(j, "digits should follow the point of a number");
    }
    if (*p == 'e' || *p == 'E') {
        p += p[1] == '+' || p[1] == '-' ? 2 : 1;
        const char *power = p;
        while (*p >= '0' && *p <= '9') p++;
        if (p == power) return te__json_fail(j, "digits should follow the e of a number");
    }
    if (p - from >= (int)sizeof digits) return te__json_fail(j, "a number of more than 63 characters");
    memcpy(digits, from, (size_t)(p - from)), digits[p - from] = 0;
    *out = strtod(digits, 0), j->at += (size_t)(p - from);
    return TE_OK;
}
TE_API te_status te__json_scalar(te_json_value *v, te__json *j) {
    static const char *const words[] = {"null", "false", "true"};
    const char c = te__json_peek(j);
    if (c == '"') {
        v->kind = TE_JSON_string;
        return te__json_string(&v->text, j);
    }
    for (int i = 0; i < 3; i++)
        if (!strncmp(j->text + j->at, words[i], strlen(words[i]))) {
            v->kind = i ? TE_JSON_bool : TE_JSON_null, v->number = i == 2, j->at += strlen(words[i]);
            return TE_OK;
        }
    v->kind = TE_JSON_number;
    return te__json_real(&v->number, j);
}

/* Where the parser is: the containers around it, and how its values are called. */
typedef struct te__json_place {
    char close[TE_JSON_DEPTH]; /* '}' or ']' */
    int length[TE_JSON_DEPTH]; /* of the name, of each container */
    int index[TE_JSON_DEPTH], more[TE_JSON_DEPTH], depth;
    char name[TE_JSON_PATH];
} te__json_place;

/* The name of the next value of the innermost container becomes the place's. */
TE_API te_status te__json_next_name(te__json_place *at, te__json *j) {
    const int d = at->depth - 1;
    const char *key = 0;
    char number[16];
    if (at->close[d] == '}') {
        TE_TRY(te__json_string(&key, j));
        TE_TRY(te__json_expect(j, ':'));
    } else {
        snprintf(number, sizeof number, "%d", at->index[d]++);
        key = number;
    }
    const int n = snprintf(at->name + at->length[d], sizeof at->name - (size_t)at->length[d], "%s%s",
                           at->length[d] ? "." : "", key);
    if (n >= (int)sizeof at->name - at->length[d]) return te__json_fail(j, "a name that is too long");
    return TE_OK;
}
TE_API te_status te__json_add(te_json *t, const te__json_place *at, te__json *j) {
    void *more = te__room(t->value, t->count, sizeof *t->value);
    const size_t n = strlen(at->name) + 1;
    TE_REQUIRE(more, j->ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate", j->path);
    t->value = (te_json_value *)more;
    te_json_value *v = &t->value[t->count];
    memset(v, 0, sizeof *v);
    TE_TRY(te__json_scalar(v, j));
    char *name = (char *)malloc(n);
    TE_REQUIRE(name, j->ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate", j->path);
    memcpy(name, at->name, n), v->name = name, t->count++;
    return TE_OK;
}
TE_API int te__by_value_name(const void *a, const void *b) {
    return strcmp(((const te_json_value *)a)->name, ((const te_json_value *)b)->name);
}
/* t->text: n bytes and a NUL. */
TE_API te_status te__json_table(te_json *t, size_t n, const char *path, te_context *ctx) {
    te__json json = {t->text, n, 0, path, ctx}, *j = &json;
    te__json_place at;
    memset(&at, 0, sizeof at);
    do {
        if (at.depth) {
            const int d = at.depth - 1;
            TE_TRY(te__json_next(&at.more[d], j, at.close[d]));
            if (!at.more[d]) {
                at.depth--;
                continue;
            }
            TE_TRY(te__json_next_name(&at, j));
        }
        const char c = te__json_peek(j);
        if (c == '{' || c == '[') {
            if (at.depth == TE_JSON_DEPTH) return te__json_fail(j, "objects and arrays are nested too deep");
            at.close[at.depth] = c == '{' ? '}' : ']', at.length[at.depth] = (int)strlen(at.name);
            at.index[at.depth] = at.more[at.depth] = 0, at.depth++, j->at++;
        } else TE_TRY(te__json_add(t, &at, j));
    } while (at.depth);
    (void)te__json_peek(j);
    if (j->at != n) return te__json_fail(j, "something follows the last value");
    if (t->count) qsort(t->value, (size_t)t->count, sizeof *t->value, te__by_value_name);
    for (int i = 1; i < t->count; i++)
        TE_REQUIRE(strcmp(t->value[i - 1].name, t->value[i].name), ctx, TE_ERROR_FORMAT,
                   "%.120s: \"%.60s\" stands there twice", path, t->value[i].name);
    return TE_OK;
}
TE_API te_status te__json_read(te_json *t, const char *path, te_context *ctx) {
    int fd = 0;
    uint64_t bytes = 0;
    TE_TRY(te__file_open(&fd, &bytes, path, ctx));
    te_status status = TE_OK;
    if (bytes > TE_JSON_MOST)
        status = te_fail(ctx, TE_ERROR_FORMAT, "%.120s: has %llu bytes, %d at most are read", path,
                         (unsigned long long)bytes, (int)TE_JSON_MOST);
    else if (!(t->text = (char *)malloc((size_t)bytes + 1)))
        status = te_fail(ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate", path);
    else status = te__file_read(fd, t->text, (size_t)bytes, 0, path, ctx);
    (void)close(fd);
    if (status != TE_OK) return status;
    t->text[bytes] = 0;
    return te__json_table(t, (size_t)bytes, path, ctx);
}
/* Read a file and check all of it. After an error there is nothing to close. Errors: TE_ERROR_IO, _FORMAT, _MEMORY. */
TE_API te_status te_json_open(te_json *t, const char *path, te_context *ctx) {
    TE_REQUIRE(t && path, ctx, TE_ERROR_NULL, "JSON: the table or the path is null");
    memset(t, 0, sizeof *t);
    const te_status status = te__json_read(t, path, ctx);
    if (status != TE_OK) te_json_close(t);
    return status;
}
/* The value of this name; null if there is none. */
TE_API const te_json_value *te_json_find(const te_json *t, const char *name) {
    te_json_value key;
    key.name = name;
    return t && name && t->count ? (const te_json_value *)bsearch(&key, t->value, (size_t)t->count, sizeof key,
                                                                  te__by_value_name) : 0;
}

#endif
