/* json.h -- JSON (RFC 8259): reads a file, such as a model's config.json, into a flat table. This header also has a
 * parser and a writer of JSON. The parser builds the table; parser and writer also serve for the headers of safetensors
 * files.
 *
 * Do this:
 *     te_json config;
 *     TE_TRY(te_json_open(&config, "config.json", &ctx));                        // checks the whole file
 *     const te_json_value *base = te_json_find(&config, "rope_parameters.rope_theta");   // null: there is none
 *     if (base && base->kind == TE_JSON_number) use(0, (int)base->number);
 *     te_json_close(&config);
 *
 * The name of a value consists of the keys and indices that lead to it through the objects and arrays around it, with
 * dots between them: "layer_types.0". Dots inside a key stay: the key "model.norm.weight" in the object weight_map has
 * the name "weight_map.model.norm.weight". The table has no entries for objects and arrays themselves. NaN, Infinity
 * and -Infinity are numbers, because Python writes them. Files are not trusted: any other text that is not JSON, a key
 * that occurs twice in an object, and nesting beyond TE_JSON_MAX_DEPTH produce TE_ERROR_FORMAT. No function recurses.
 */
#ifndef TE_JSON_H
#define TE_JSON_H

#include <stdlib.h> /* realloc, qsort */

#include "../core/context.h" /* te_fail */
#include "../core/impl/file.h"    /* te__file_open, te__file_read */

/* ---- the parser -------------------------------------------------------------------------------------------------- */

/* The parser works in place: a decoded string is never longer than its source text, so the string overwrites that text.
 * The parser never recurses, allocates nothing, and reads no byte after the closing NUL of the text, whatever the text
 * contains. To parse an object:
 *
 *     te__json j = {text, n, 0, path, ctx};           // text[n] is 0; text is overwritten
 *     TE_TRY(te__json_expect(&j, '{'));
 *     for (int more = 0; ;) {
 *         TE_TRY(te__json_next(&more, &j, '}'));
 *         if (!more) break;
 *         TE_TRY(te__json_string(&key, &j)); ...
 *     }
 */
typedef struct te__json {
    char *text;
    size_t n, at;     /* n: the number of bytes of the text; at: the index of the next byte that the parser reads */
    const char *path; /* for error texts */
    te_context *ctx;
} te__json;

TE_API te_status te__json_fail(const te__json *j, const char *what) {
    return te_fail(j->ctx, TE_ERROR_FORMAT, "%.120s: byte %zu of its JSON: %s", j->path, j->at, what);
}
TE_API char te__json_peek(te__json *j) {
    while (j->text[j->at] == ' ' || j->text[j->at] == '\n' || j->text[j->at] == '\t' || j->text[j->at] == '\r') j->at++;
    return j->text[j->at];
}
TE_API te_status te__json_expect(te__json *j, char c) {
    if (te__json_peek(j) != c || j->at >= j->n)
        return te_fail(j->ctx, TE_ERROR_FORMAT, "%.120s: byte %zu of its JSON: '%c' should stand here", j->path, j->at,
                       c);
    j->at++;
    return TE_OK;
}
/* Go to the next element of an object or array that ends with `close`. *more: input, 0 before the first element, else
 * 1; output, 1 if there is another element, else 0. */
TE_API te_status te__json_next(int *more, te__json *j, char close) {
    if (te__json_peek(j) == close) {
        j->at++, *more = 0;
        return TE_OK;
    }
    if (*more) TE_TRY(te__json_expect(j, ','));
    *more = 1;
    return TE_OK;
}
/* Parse a whole number from 0 to 2^63 - 1 into *out. */
TE_API te_status te__json_number(int64_t *out, te__json *j) {
    uint64_t v = 0;
    const char first = te__json_peek(j);
    const size_t start = j->at;
    if (first < '0' || first > '9') return te__json_fail(j, "a whole number >= 0 should stand here");
    for (; j->text[j->at] >= '0' && j->text[j->at] <= '9'; j->at++) {
        const unsigned digit = (unsigned)(j->text[j->at] - '0');
        if (v > ((uint64_t)INT64_MAX - digit) / 10) return te__json_fail(j, "the number does not fit into 63 bits");
        v = v * 10 + digit;
    }
    if (first == '0' && j->at - start > 1) return te__json_fail(j, "a number begins with 0");
    *out = (int64_t)v;
    return TE_OK;
}

/* Return the number of bytes of the UTF-8 character at s; 0 if the character is not valid (cut short, overlong, a
 * surrogate, or too large). s: a string that ends with NUL. */
TE_API int te__utf8_length(const char *s) {
    const unsigned char *p = (const unsigned char *)s;
    const int n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    for (int i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
        (p[0] == 0xf4 && p[1] > 0x8f)) return 0;
    return n;
}
TE_API int te__utf8_valid(const char *s) {
    for (int n; *s; s += n)
        if (!(n = te__utf8_length(s))) return 0;
    return 1;
}
TE_API int te__utf8_put(char *to, uint32_t c) {
    if (c < 0x80) {
        to[0] = (char)c;
        return 1;
    }
    const int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6) to[i] = (char)(0x80 | (c & 0x3f));
    to[0] = (char)((n == 2 ? 0xc0u : n == 3 ? 0xe0u : 0xf0u) | c);
    return n;
}
/* Parse the four hex digits of \uXXXX. */
TE_API te_status te__json_hex(uint32_t *out, te__json *j) {
    *out = 0;
    for (int i = 0; i < 4; i++, j->at++) {
        const char c = j->text[j->at];
        const char lower = (char)(c | 0x20); /* c in lower case, if c is a letter */
        const int v = c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
        if (v < 0) return te__json_fail(j, "\\u needs four hex digits");
        *out = *out << 4 | (uint32_t)v;
    }
    return TE_OK;
}
TE_API te_status te__json_escape(char **to, te__json *j) {
    static const char from[] = "\"\\/bfnrt", become[] = "\"\\/\b\f\n\r\t";
    const char c = j->text[j->at + 1]; /* the character after a backslash; the closing NUL if the backslash is the last
                                        * character of the text */
    const char *simple = c ? strchr(from, c) : 0;
    uint32_t code, low;
    if (simple) {
        *(*to)++ = become[simple - from], j->at += 2;
        return TE_OK;
    }
    if (c != 'u') return te__json_fail(j, "no such escape");
    j->at += 2;
    TE_TRY(te__json_hex(&code, j));
    if (code >= 0xd800 && code < 0xe000) {
        const int low_follows = j->text[j->at] == '\\' && j->text[j->at + 1] == 'u';
        if (code >= 0xdc00 || !low_follows) return te__json_fail(j, "half of a surrogate pair");
        j->at += 2;
        TE_TRY(te__json_hex(&low, j));
        if (low < 0xdc00 || low > 0xdfff) return te__json_fail(j, "half of a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (!code) return te__json_fail(j, "a NUL in a string");
    *to += te__utf8_put(*to, code);
    return TE_OK;
}
/* Parse a string. *out: output, the decoded string with a closing NUL, which overwrites the source text in j->text. */
TE_API te_status te__json_string(const char **out, te__json *j) {
    TE_TRY(te__json_expect(j, '"'));
    char *to = j->text + j->at;
    *out = to;
    while (j->text[j->at] != '"') {
        const char c = j->text[j->at];
        if (c == '\\') {
            TE_TRY(te__json_escape(&to, j));
            continue;
        }
        if ((unsigned char)c < 0x20) return te__json_fail(j, "a control character in a string, or no end to it");
        const int n = te__utf8_length(j->text + j->at);
        if (!n) return te__json_fail(j, "not UTF-8");
        memmove(to, j->text + j->at, (size_t)n), to += n, j->at += (size_t)n;
    }
    *to = 0, j->at++;
    return TE_OK;
}

/* Make sure that an array p of `count` elements, of `size` bytes each, has space for one more element. The capacity is
 * 8 elements at first, and doubles whenever the array is full. Returns the array, which may have moved. If there is no
 * memory, returns null, and the array p stays valid. */
TE_API void *te__grow(void *p, int count, size_t size) {
    if (count && (count < 8 || (count & (count - 1)))) return p;
    return realloc(p, (count ? 2 * (size_t)count : 8) * size);
}

/* ---- the writer -------------------------------------------------------------------------------------------------- */

/* A text that is being written, of n bytes so far. The code that writes a text runs twice. In the first run p is null,
 * and only the bytes of the text are counted in n. In the second run p points to that many bytes of memory, and n
 * begins at 0. */
typedef struct te__text { char *p; size_t n; } te__text;

TE_API void te__text_char(te__text *t, char c) {
    if (t->p) t->p[t->n] = c;
    t->n++;
}
TE_API void te__text_put(te__text *t, const char *s) {
    for (; *s; s++) te__text_char(t, *s);
}
TE_API void te__text_number(te__text *t, uint64_t v) {
    char digits[24];
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)v);
    te__text_put(t, digits);
}
TE_API void te__text_string(te__text *t, const char *s) {
    te__text_char(t, '"');
    for (; *s; s++) {
        char code[8];
        snprintf(code, sizeof code, "\\u%04x", (unsigned)(unsigned char)*s);
        if ((unsigned char)*s < 0x20) {
            te__text_put(t, code);
            continue;
        }
        if (*s == '"' || *s == '\\') te__text_char(t, '\\');
        te__text_char(t, *s);
    }
    te__text_char(t, '"');
}

/* ---- a file as a table ------------------------------------------------------------------------------------------ */

enum {
    TE_JSON_MAX_DEPTH = 16,
    TE_JSON_MAX_NAME = 256,      /* the largest number of bytes in the name of a value, including the closing NUL */
    TE_JSON_MAX_BYTES = 64 << 20 /* the largest size of a file, in bytes */
};

typedef enum te_json_kind { TE_JSON_null, TE_JSON_bool, TE_JSON_number, TE_JSON_string } te_json_kind;
typedef struct te_json_value {
    const char *name; /* the name of the value: the keys and indices that lead to it, with dots between them */
    te_json_kind kind;
    double number;    /* the value if it is a number; if it is a bool, 0 or 1 */
    const char *text; /* the value, if it is a string; else null */
} te_json_value;
typedef struct te_json {
    te_json_value *value; /* [count], sorted by name */
    int count;
    char *text;           /* the memory in which the strings lie */
    size_t table_bytes;   /* an upper bound of the bytes allocated for `value` and the names */
} te_json;

TE_API void te_json_close(te_json *t) {
    if (!t) return;
    for (int i = 0; i < t->count; i++) free((void *)(uintptr_t)t->value[i].name);
    free(t->value), free(t->text);
    memset(t, 0, sizeof *t);
}
/* Parse a number such as -12, 0.5 or 1e-05. The character that strtod accepts as the decimal point depends on the
 * program's locale. Therefore strtod gets the digits without the point, and an exponent that accounts for the point's
 * position: -12e0, 05e-1 and 1e-5. */
TE_API te_status te__json_real(double *out, te__json *j) {
    char digits[64 + 16];
    size_t n = 0;
    int64_t exponent = 0, fraction_digits = 0;
    (void)te__json_peek(j);
    const char *from = j->text + j->at, *p = from;
    const char *const limit = from + 64; /* a number has at most 63 characters */
    if (*p == '-') digits[n++] = *p++;
    const char *integer = p;
    for (; *p >= '0' && *p <= '9' && p < limit; p++) digits[n++] = *p;
    if (p == integer || (*integer == '0' && p > integer + 1)) return te__json_fail(j, "a value should stand here");
    if (*p == '.') {
        for (p++; *p >= '0' && *p <= '9' && p < limit; p++, fraction_digits++) digits[n++] = *p;
        if (!fraction_digits) return te__json_fail(j, "digits should follow the point of a number");
    }
    if (*p == 'e' || *p == 'E') {
        const int is_negative = p[1] == '-';
        p += p[1] == '+' || is_negative ? 2 : 1;
        const char *power = p;
        for (; *p >= '0' && *p <= '9' && p < limit; p++)
            /* Beyond 100000 the exponent is not increased, which avoids overflow of the integer: the number is 0 or
             * infinite anyway */
            if (exponent < 100000) exponent = exponent * 10 + (*p - '0');
        if (p == power) return te__json_fail(j, "digits should follow the e of a number");
        if (is_negative) exponent = -exponent;
    }
    if (p >= limit) return te__json_fail(j, "a number of more than 63 characters");
    snprintf(digits + n, sizeof digits - n, "e%d", (int)(exponent - fraction_digits));
    *out = strtod(digits, 0), j->at += (size_t)(p - from);
    return TE_OK;
}
/* If the next text to parse is `word`, skip it and return 1; otherwise return 0. */
TE_API int te__json_skip_word(te__json *j, const char *word) {
    const size_t n = strlen(word);
    if (strncmp(j->text + j->at, word, n)) return 0;
    j->at += n;
    return 1;
}
TE_API te_status te__json_scalar(te_json_value *v, te__json *j) {
    static const char *const literals[] = {"null", "false", "true"};
    static const char *const names[] = {"NaN", "Infinity", "-Infinity"};
    const double numbers[] = {NAN, INFINITY, -INFINITY};
    const char c = te__json_peek(j);
    if (c == '"') {
        v->kind = TE_JSON_string;
        return te__json_string(&v->text, j);
    }
    for (int i = 0; i < 3; i++)
        if (te__json_skip_word(j, literals[i])) {
            v->kind = i ? TE_JSON_bool : TE_JSON_null, v->number = i == 2;
            return TE_OK;
        }
    v->kind = TE_JSON_number;
    for (int i = 0; i < 3; i++)
        if (te__json_skip_word(j, names[i])) return v->number = numbers[i], TE_OK;
    return te__json_real(&v->number, j);
}

/* Skip one JSON value: a string, number, true, false or null, or a whole object or array. */
TE_API te_status te__json_skip(te__json *j) {
    char close[TE_JSON_MAX_DEPTH];
    int more[TE_JSON_MAX_DEPTH], depth = 0;
    te_json_value skipped;
    const char *key;
    do {
        if (depth) {
            TE_TRY(te__json_next(&more[depth - 1], j, close[depth - 1]));
            if (!more[depth - 1]) {
                depth--;
                continue;
            }
            if (close[depth - 1] == '}') {
                TE_TRY(te__json_string(&key, j));
                TE_TRY(te__json_expect(j, ':'));
            }
        }
        const char c = te__json_peek(j);
        if (c == '{' || c == '[') {
            if (depth == TE_JSON_MAX_DEPTH) return te__json_fail(j, "objects and arrays are nested too deep");
            close[depth] = c == '{' ? '}' : ']', more[depth++] = 0, j->at++;
        } else TE_TRY(te__json_scalar(&skipped, j));
    } while (depth);
    return TE_OK;
}

/* The largest number of bytes that the table of a file with n bytes may take; a larger table is an error. Without this
 * limit, the table could take hundreds of times the file's size, because it stores the full name of each value, and
 * many short values may be in one object with a long name. */
#define TE__JSON_MAX_TABLE(n) (16 * (n) + ((size_t)4 << 20))
enum { TE__JSON_NAME_OVERHEAD = 32 }; /* upper bound of the C library's own bytes per allocation */

/* The position of the parser: the current value's name, and a stack of the objects and arrays that enclose the value,
 * the outermost first. */
typedef struct te__json_position {
    int depth;
    char close[TE_JSON_MAX_DEPTH]; /* the character that closes each object or array around the current value: '}' or
                                    * ']' */
    int length[TE_JSON_MAX_DEPTH]; /* the length in bytes of the name of each object or array around the current
                                    * value */
    int index[TE_JSON_MAX_DEPTH];  /* the index of the next element of each array around the current value; not used for
                                    * objects */
    int more[TE_JSON_MAX_DEPTH];   /* the argument `more` of te__json_next */
    char name[TE_JSON_MAX_NAME];
} te__json_position;

/* Set at->name to the name of the next value in the innermost of the objects and arrays that enclose it. */
TE_API te_status te__json_next_name(te__json_position *at, te__json *j) {
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
TE_API te_status te__json_add(te_json *t, const te__json_position *at, te__json *j) {
    void *grown = te__grow(t->value, t->count, sizeof *t->value);
    const size_t n = strlen(at->name) + 1;
    TE_REQUIRE(grown, j->ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate", j->path);
    t->value = (te_json_value *)grown;
    te_json_value *v = &t->value[t->count];
    memset(v, 0, sizeof *v);
    /* Count 3 entries per value: te__grow doubles the array t->value, and the old and the new array both exist during
     * the copy. */
    t->table_bytes += n + TE__JSON_NAME_OVERHEAD + 3 * sizeof *v;
    if (t->table_bytes > TE__JSON_MAX_TABLE(j->n)) return te__json_fail(j, "too many values, or too long names");
    TE_TRY(te__json_scalar(v, j));
    char *name = (char *)malloc(n);
    TE_REQUIRE(name, j->ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate", j->path);
    memcpy(name, at->name, n), v->name = name, t->count++;
    return TE_OK;
}
TE_API int te__by_value_name(const void *a, const void *b) {
    return strcmp(((const te_json_value *)a)->name, ((const te_json_value *)b)->name);
}
/* Parse t->text into the table. n: the bytes of t->text without its closing NUL. */
TE_API te_status te__json_table(te_json *t, size_t n, const char *path, te_context *ctx) {
    te__json json = {t->text, n, 0, path, ctx}, *j = &json;
    te__json_position at;
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
            if (at.depth == TE_JSON_MAX_DEPTH) return te__json_fail(j, "objects and arrays are nested too deep");
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
    if (bytes > TE_JSON_MAX_BYTES)
        status = te_fail(ctx, TE_ERROR_FORMAT, "%.120s: has %llu bytes, %d at most are read", path,
                         (unsigned long long)bytes, (int)TE_JSON_MAX_BYTES);
    else if (!(t->text = (char *)malloc((size_t)bytes + 1)))
        status = te_fail(ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate", path);
    else status = te__file_read(fd, t->text, (size_t)bytes, 0, path, ctx);
    (void)close(fd);
    if (status != TE_OK) return status;
    t->text[bytes] = 0;
    return te__json_table(t, (size_t)bytes, path, ctx);
}
/* Read a JSON file into the table, and check the whole file. After an error there is nothing to close. Errors:
 * TE_ERROR_IO, TE_ERROR_FORMAT, TE_ERROR_MEMORY. */
TE_API te_status te_json_open(te_json *t, const char *path, te_context *ctx) {
    TE_REQUIRE(t && path, ctx, TE_ERROR_NULL, "JSON: the table or the path is null");
    memset(t, 0, sizeof *t);
    const te_status status = te__json_read(t, path, ctx);
    if (status != TE_OK) te_json_close(t);
    return status;
}
/* Find the value with this name in the table; null if there is none. */
TE_API const te_json_value *te_json_find(const te_json *t, const char *name) {
    te_json_value key;
    key.name = name;
    return t && name && t->count ? (const te_json_value *)bsearch(&key, t->value, (size_t)t->count, sizeof key,
                                                                  te__by_value_name) : 0;
}

#endif
