/* tokenizer_json.c -- JSON (RFC 8259) as a tree, for files of millions of short strings: a string is decoded where it
 * stands in the text, and values are in blocks that are freed together. Nothing recurses, whatever the text is.
 */
#include <stdlib.h> /* malloc, strtod */
#include <string.h> /* memcpy, strchr */

#include "tokenizer_impl.h" /* tokenizer_json */

enum { MAX_DEPTH = 64, BLOCK_VALUES = 4096 };

struct tokenizer_json_block {
    struct tokenizer_json_block *next;
    int count;
    tokenizer_json value[BLOCK_VALUES];
};

typedef struct parser {
    char *text; /* ends with NUL */
    size_t n, at;
    tokenizer_json_document *document;
} parser;

static tokenizer_json *new_value(parser *p) {
    struct tokenizer_json_block *b = p->document->block;
    if (!b || b->count == BLOCK_VALUES) {
        b = (struct tokenizer_json_block *)malloc(sizeof *b);
        if (!b) return NULL;
        b->next = p->document->block, b->count = 0, p->document->block = b;
    }
    tokenizer_json *v = &b->value[b->count++];
    memset(v, 0, sizeof *v);
    return v;
}
static char peek(parser *p) {
    while (p->text[p->at] == ' ' || p->text[p->at] == '\n' || p->text[p->at] == '\r' || p->text[p->at] == '\t') p->at++;
    return p->text[p->at];
}
static int expect(parser *p, char c) {
    if (peek(p) != c) return 0;
    p->at++;
    return 1;
}
/* The four hexadecimal digits of \uXXXX. */
static int get_hex(parser *p, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        const char c = p->text[p->at], lower = (char)(c | 0x20);
        const int digit = c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
        if (digit < 0) return 0;
        *out = *out << 4 | (uint32_t)digit;
    }
    return 1;
}
/* What stands behind a backslash, to `to`, which never lies behind it. */
static int get_escape(parser *p, char **to) {
    static const char from[] = "\"\\/bfnrt", become[] = "\"\\/\b\f\n\r\t";
    const char c = p->text[p->at];
    const char *simple = c ? strchr(from, c) : NULL;
    uint32_t code, low;
    if (simple) {
        *(*to)++ = become[simple - from], p->at++;
        return 1;
    }
    if (c != 'u') return 0;
    p->at++;
    if (!get_hex(p, &code)) return 0;
    if (code >= 0xd800 && code < 0xe000) { /* a surrogate needs the other half */
        if (code >= 0xdc00 || p->text[p->at] != '\\' || p->text[p->at + 1] != 'u') return 0;
        p->at += 2;
        if (!get_hex(p, &low) || low < 0xdc00 || low > 0xdfff) return 0;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    char bytes[4];
    const int n = tokenizer_put_utf8(bytes, code);
    memcpy(*to, bytes, (size_t)n), *to += n;
    return 1;
}
/* A string, which may have NULs; another one ends it. */
static int get_string(parser *p, tokenizer_text *out) {
    if (!expect(p, '"')) return 0;
    char *to = p->text + p->at;
    out->p = to;
    for (char c; (c = p->text[p->at]) != '"';) {
        if ((unsigned char)c < 0x20) return 0;
        p->at++;
        if (c != '\\') *to++ = c;
        else if (!get_escape(p, &to)) return 0;
    }
    p->at++, out->n = (size_t)(to - out->p), *to = 0;
    return 1;
}
static size_t digits(parser *p) {
    const size_t from = p->at;
    while (p->text[p->at] >= '0' && p->text[p->at] <= '9') p->at++;
    return p->at - from;
}
static int get_number(parser *p, double *out) {
    const size_t from = p->at;
    if (p->text[p->at] == '-') p->at++;
    const size_t integer = p->at;
    if (!digits(p) || (p->text[integer] == '0' && p->at > integer + 1)) return 0;
    if (p->text[p->at] == '.') {
        p->at++;
        if (!digits(p)) return 0;
    }
    if (p->text[p->at] == 'e' || p->text[p->at] == 'E') {
        p->at++;
        if (p->text[p->at] == '+' || p->text[p->at] == '-') p->at++;
        if (!digits(p)) return 0;
    }
    *out = strtod(p->text + from, NULL);
    return 1;
}
static int get_scalar(parser *p, tokenizer_json *v) {
    static const struct { const char *word; size_t n; tokenizer_json_kind kind; } words[] = {
        {"null", 4, JSON_null}, {"false", 5, JSON_false}, {"true", 4, JSON_true}};
    if (p->text[p->at] == '"') {
        v->kind = JSON_string;
        return get_string(p, &v->text);
    }
    for (int i = 0; i < 3; i++)
        if (!strncmp(p->text + p->at, words[i].word, words[i].n)) {
            v->kind = words[i].kind, p->at += words[i].n;
            return 1;
        }
    v->kind = JSON_number;
    return get_number(p, &v->number);
}
static int parse(parser *p) {
    tokenizer_json *around[MAX_DEPTH]; /* the arrays and objects that are open, the innermost last */
    tokenizer_json **tail[MAX_DEPTH];  /* where the next member of each goes */
    int depth = 0;
    do {
        tokenizer_json *v = new_value(p);
        if (!v) return 0;
        if (!depth) p->document->root = v;
        else {
            if (around[depth - 1]->kind == JSON_object && !(get_string(p, &v->key) && expect(p, ':'))) return 0;
            *tail[depth - 1] = v, tail[depth - 1] = &v->next;
        }
        const char c = peek(p);
        int empty = 0;
        if (c == '{' || c == '[') {
            if (depth == MAX_DEPTH) return 0;
            v->kind = c == '{' ? JSON_object : JSON_array;
            around[depth] = v, tail[depth++] = &v->child, p->at++;
            empty = peek(p) == (c == '{' ? '}' : ']');
            if (!empty) continue;
        } else if (!get_scalar(p, v)) return 0;
        for (; depth; depth--) { /* what is complete now */
            if (!empty && expect(p, ',')) break;
            if (!expect(p, around[depth - 1]->kind == JSON_object ? '}' : ']')) return 0;
            empty = 0;
        }
    } while (depth);
    (void)peek(p);
    return p->at == p->n;
}

int tokenizer_json_parse(tokenizer_json_document *document, char *text, size_t n, size_t *at) {
    parser p = {text, n, 0, document};
    document->root = NULL, document->block = NULL;
    const int ok = parse(&p);
    *at = p.at;
    return ok;
}
void tokenizer_json_free(tokenizer_json_document *document) {
    for (struct tokenizer_json_block *b = document->block, *next; b; b = next) next = b->next, free(b);
    document->root = NULL, document->block = NULL;
}
