/* json.h -- the part of JSON that a safetensors header is made of: objects, arrays, strings, whole numbers >= 0.
 * RFC 8259. json_table.h reads all of JSON with it.
 * The reader works in place: a decoded string lies in the text itself, which it never outgrows. It never
 * recurses, allocates nothing and reads no byte behind the text's closing NUL, whatever the text.
 *
 * Do this:
 *     te__json j = {text, n, 0, path, ctx};           // text[n] is 0; text is overwritten
 *     TE_TRY(te__json_expect(&j, '{'));
 *     for (int more = 0; ;) {
 *         TE_TRY(te__json_next(&more, &j, '}'));
 *         if (!more) break;
 *         TE_TRY(te__json_string(&key, &j)); ...
 *     }
 */
#ifndef TE_JSON_H
#define TE_JSON_H

#include "../core/context.h" /* te_fail */

typedef struct te__json {
    char *text;
    size_t n, at;
    const char *path; /* for the messages */
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
/* Go to the next element of an object or array that `close` ends. *more: 0 before the first; whether there is one,
 * after. */
TE_API te_status te__json_next(int *more, te__json *j, char close) {
    if (te__json_peek(j) == close) {
        j->at++, *more = 0;
        return TE_OK;
    }
    if (*more) TE_TRY(te__json_expect(j, ','));
    *more = 1;
    return TE_OK;
}
/* A whole number from 0 to 2^63 - 1. */
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

/* Bytes of the UTF-8 character at s, which ends in NUL; 0 if it is none (cut short, overlong, a surrogate, too
 * large). */
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
/* The four hex digits of \uXXXX. */
TE_API te_status te__json_hex(uint32_t *out, te__json *j) {
    *out = 0;
    for (int i = 0; i < 4; i++, j->at++) {
        const char c = j->text[j->at];
        const char small = (char)(c | 0x20); /* of a letter */
        const int v = c >= '0' && c <= '9' ? c - '0' : small >= 'a' && small <= 'f' ? small - 'a' + 10 : -1;
        if (v < 0) return te__json_fail(j, "\\u needs four hex digits");
        *out = *out << 4 | (uint32_t)v;
    }
    return TE_OK;
}
TE_API te_status te__json_escape(char **to, te__json *j) {
    static const char from[] = "\"\\/bfnrt", become[] = "\"\\/\b\f\n\r\t";
    const char c = j->text[j->at + 1]; /* at worst the closing NUL */
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
/* A string: decoded, ended by NUL, in the text. */
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

/* ---- writing: once with p null to measure, once more to write ------------------------------------------------- */

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

#endif
