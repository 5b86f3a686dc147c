/* tokenizer_regex.c -- the patterns of tokenizer.json, which are written for Oniguruma, by PCRE2.
 *
 * Both read almost the same syntax. What has another meaning is rewritten (\s, \S, \w, \W, \h, \p{script}) or refused:
 * \s of PCRE2 has U+180E, for example, and \h is a space there and a hexadecimal digit in Oniguruma.
 */
#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* malloc */
#include <string.h> /* memcpy */

#include "tokenizer_impl.h" /* tokenizer_text */

#define SPACES "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
/* All other characters: a class cannot have a negated part. */
#define NO_SPACES                                                                                        \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}!-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"              \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"

typedef struct translation {
    tokenizer_text from;
    size_t at;
    tokenizer_buffer to;
    char *error;
    int in_class;
} translation;

static int refuse(translation *x, const char *what) {
    snprintf(x->error, 160, "pattern, byte %zu: %s is not supported", x->at, what);
    return 0;
}
static int put(translation *x, const char *s) {
    if (tokenizer_append(&x->to, s, strlen(s))) return 1;
    snprintf(x->error, 160, "cannot allocate");
    return 0;
}
static int copy(translation *x, size_t n) {
    const size_t at = x->at;
    x->at += n;
    if (tokenizer_append(&x->to, x->from.p + at, n)) return 1;
    snprintf(x->error, 160, "cannot allocate");
    return 0;
}
static int peek(const translation *x, size_t ahead) {
    return x->at + ahead < x->from.n ? (unsigned char)x->from.p[x->at + ahead] : 0;
}
static int is_letter(int c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* A set of characters, by the inside of a class. */
static int put_set(translation *x, const char *inside) {
    x->at += 2;
    return x->in_class ? put(x, inside) : put(x, "[") && put(x, inside) && put(x, "]");
}
/* \p{L} stays; \p{Han} becomes \p{sc:Han}, or PCRE2 would also take characters that other scripts share. */
static int property(translation *x) {
    size_t n = 2;
    if (peek(x, n) != '{') return refuse(x, "\\p without {");
    n += peek(x, 3) == '^' ? 2 : 1;
    size_t letters = 0;
    while (is_letter(peek(x, n + letters)) || peek(x, n + letters) == '_') letters++;
    if (!letters || peek(x, n + letters) != '}') return refuse(x, "this \\p{..}");
    if (letters <= 2) return copy(x, n + letters + 1);
    return copy(x, n) && put(x, "sc:") && copy(x, letters + 1);
}
static int escape(translation *x) {
    switch (peek(x, 1)) {
    case 's': return put_set(x, SPACES);
    case 'S': return put_set(x, NO_SPACES);
    case 'w': return put_set(x, TOKENIZER_WORD);
    case 'h': return put_set(x, "0-9a-fA-F");
    case 'W':
        if (x->in_class) return refuse(x, "\\W in a class");
        x->at += 2;
        return put(x, "[^" TOKENIZER_WORD "]");
    case 'p': case 'P': return property(x);
    case 'u': /* \u4e00 */
        for (size_t i = 2; i < 6; i++)
            if (!peek(x, i) || !strchr("0123456789abcdefABCDEF", peek(x, i))) return refuse(x, "this \\u");
        x->at += 2;
        return put(x, "\\x{") && copy(x, 4) && put(x, "}");
    case 'x': { /* with its braces, so that no quantifier is seen in them */
        const char *close = peek(x, 2) == '{' ? (const char *)memchr(x->from.p + x->at, '}', x->from.n - x->at) : NULL;
        return copy(x, close ? (size_t)(close + 1 - (x->from.p + x->at)) : 2);
    }
    case 'd': case 'D': case 'r': case 'n': case 't': case 'f': case 'A': case 'z': return copy(x, 2);
    default:
        if (is_letter(peek(x, 1)) || peek(x, 1) == '0') return refuse(x, "this escape");
        if (!peek(x, 1)) return refuse(x, "a \\ at the end");
        return copy(x, 2);
    }
}
/* (?: (?= (?! (?<= (?<! (?> (?i: and, at the very start, (?i). */
static int group(translation *x) {
    const int c = peek(x, 2), d = peek(x, 3), e = peek(x, 4);
    if (peek(x, 1) != '?') return copy(x, 1);
    if (c == ':' || c == '=' || c == '!' || c == '>') return copy(x, 3);
    if (c == '<' && (d == '=' || d == '!')) return copy(x, 4);
    if (c == 'i' && (d == ':' || (d == ')' && !x->at))) return copy(x, 4);
    if (c == '-' && d == 'i' && e == ':') return copy(x, 5);
    return refuse(x, "this group");
}
static int translate(translation *x) {
    while (x->at < x->from.n) {
        const int c = peek(x, 0), next = peek(x, 1);
        int ok = 1;
        if (!c) ok = refuse(x, "NUL");
        else if (c == '\\') ok = escape(x);
        else if (x->in_class && c == '[') ok = refuse(x, "a class inside a class");
        else if (x->in_class && c == '&' && next == '&') ok = refuse(x, "&&");
        else if (x->in_class && c == ']') x->in_class = 0, ok = copy(x, 1);
        else if (x->in_class) ok = copy(x, 1);
        else if (c == '[') {
            x->in_class = 1, ok = copy(x, next == '^' ? 2 : 1);
            if (ok && peek(x, 0) == ']') ok = refuse(x, "a class that begins with ]");
        } else if (c == '(') ok = group(x);
        else if (c == '}' && next == '+') ok = refuse(x, "}+"); /* possessive in PCRE2, and greedy in Oniguruma */
        else ok = copy(x, 1);
        if (!ok) return 0;
    }
    return 1;
}

pcre2_code *tokenizer_regex(tokenizer_text pattern, char error[160]) {
    translation x;
    memset(&x, 0, sizeof x);
    x.from = pattern, x.error = error;
    pcre2_code *code = NULL;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) snprintf(error, 160, "cannot allocate");
    else if (translate(&x)) {
        int number = 0;
        PCRE2_SIZE at = 0;
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        code = pcre2_compile((PCRE2_SPTR)(x.to.p ? x.to.p : ""), x.to.n,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_DOLLAR_ENDONLY, &number, &at, context);
        if (!code) {
            PCRE2_UCHAR text[96];
            pcre2_get_error_message(number, text, sizeof text);
            snprintf(error, 160, "pattern: %s", (const char *)text);
        } else (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without it matching is slower, and the same */
    }
    pcre2_compile_context_free(context);
    free(x.to.p);
    return code;
}
