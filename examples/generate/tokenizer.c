/* tokenizer.c -- encoding and decoding with a tokenizer that tokenizer_file.c has read (tokenizer.h).
 *
 * Encoding goes: added tokens are cut out of the text; the rest is normalized and searched for those added tokens that
 * are normalized, too; what is left is split into pieces by the pre-tokenizer, one step after the other, and each
 * piece becomes tokens by WordPiece, the longest token first, or by BPE: all pairs of neighbours with a merge are in a
 * heap by rank, so a piece of n characters takes n log n steps.
 */
#include <limits.h> /* INT_MAX */
#include <stdlib.h> /* realloc */
#include <string.h> /* memcpy */

#include <utf8proc.h> /* utf8proc_decompose_char, utf8proc_category */

#include "tokenizer_impl.h" /* tokenizer */

/* ---- bytes and characters ---------------------------------------------------------------------------------------- */

int tokenizer_append(tokenizer_buffer *b, const char *p, size_t n) {
    if (b->n + n + 1 > b->capacity) {
        const size_t capacity = 2 * (b->n + n) + 64;
        char *grown = (char *)realloc(b->p, capacity);
        if (!grown) return 0;
        b->p = grown, b->capacity = capacity;
    }
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
    return 1;
}

int tokenizer_utf8(const char *p, size_t n, int *state) {
    const unsigned char *s = (const unsigned char *)p;
    const int length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    *state = length > 0;
    if (length < 2) return 1;
    for (int i = 1; i < length; i++) {
        if ((size_t)i == n) {
            *state = -1;
            return i;
        }
        /* The first of them has less range where the character would be overlong, a surrogate or beyond U+10FFFF. */
        const int low = i > 1 ? 0x80 : s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
        const int high = i > 1 ? 0xbf : s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
        if (s[i] < low || s[i] > high) {
            *state = 0;
            return i;
        }
    }
    return length;
}
int tokenizer_utf8_bytes(const char *p) {
    const unsigned char c = (unsigned char)*p;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}
uint32_t tokenizer_get_utf8(const char *p) {
    const unsigned char *s = (const unsigned char *)p;
    if (s[0] < 0x80) return s[0];
    if (s[0] < 0xe0) return (uint32_t)(s[0] & 0x1f) << 6 | (s[1] & 0x3f);
    if (s[0] < 0xf0) return (uint32_t)(s[0] & 0x0f) << 12 | (uint32_t)(s[1] & 0x3f) << 6 | (s[2] & 0x3f);
    return (uint32_t)(s[0] & 7) << 18 | (uint32_t)(s[1] & 0x3f) << 12 | (uint32_t)(s[2] & 0x3f) << 6 | (s[3] & 0x3f);
}
int tokenizer_put_utf8(char to[4], uint32_t c) {
    return (int)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)to);
}
uint32_t tokenizer_byte_character(int byte) {
    if ((byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae) return (uint32_t)byte;
    /* The others follow from U+0100 on, in their order: 0x00 to 0x20, 0x7f to 0xa0, 0xad. */
    return 256u + (uint32_t)(byte <= ' ' ? byte : byte <= 0xa0 ? 33 + byte - 0x7f : 67);
}
static int is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}
/* \w of Rust, as TOKENIZER_WORD. */
static int is_word(uint32_t c) {
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_PC: return 1;
    default: break;
    }
    return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
           (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
}
/* Where the character before p + at begins. */
static size_t previous(const char *p, size_t at) {
    do at--;
    while (at && ((unsigned char)p[at] & 0xc0) == 0x80);
    return at;
}

/* ---- the vocabulary ---------------------------------------------------------------------------------------------- */

uint32_t tokenizer_hash(const char *p, size_t n) { /* FNV-1a, its upper half mixed in */
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)p[i]) * 0x100000001b3u;
    return (uint32_t)(h ^ h >> 32);
}
int32_t tokenizer_find(const tokenizer *t, const char *p, size_t n) {
    const uint32_t hash = tokenizer_hash(p, n);
    for (uint32_t i = hash & t->slot_mask;; i = (i + 1) & t->slot_mask) {
        const tokenizer_slot *s = &t->slot[i];
        if (!s->p) return -1;
        if (s->hash == hash && s->n == n && !memcmp(s->p, p, n)) return s->id;
    }
}
const tokenizer_merge *tokenizer_find_merge(const tokenizer *t, int32_t left, int32_t right) {
    const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (uint32_t i = (uint32_t)(pair * 0x9e3779b97f4a7c15u >> 32) & t->merge_mask;; i = (i + 1) & t->merge_mask) {
        const tokenizer_merge *m = &t->merge[i];
        if (m->rank == UINT32_MAX) return NULL;
        if (m->pair == pair) return m;
    }
}
int32_t tokenizer_token_id(const tokenizer *t, const char *name) {
    const size_t n = strlen(name);
    for (int k = 0; k < 2; k++) {
        const tokenizer_added_set *set = k ? &t->normalized : &t->exact;
        for (int i = 0; i < set->count; i++) {
            const tokenizer_text *added = &set->token[i].name;
            if (added->n == n && !memcmp(added->p, name, n)) return set->token[i].id;
        }
    }
    return tokenizer_find(t, name, n);
}
int tokenizer_vocabulary(const tokenizer *t) { return t->vocabulary; }
int tokenizer_eos(const tokenizer *t, int32_t *ids, int capacity) {
    for (int i = 0; i < t->eos.count && i < capacity; i++) ids[i] = t->eos.id[i];
    return t->eos.count;
}
const char *tokenizer_chat_template(const tokenizer *t) { return t->chat_template.p; }

/* ---- one call of tokenizer_encode -------------------------------------------------------------------------------- */

typedef struct symbol { int32_t id; int next, previous; } symbol; /* of a piece; id -1: merged into the one before it */

enum { MAX_SYMBOLS = 1 << 29 };

typedef struct encoding {
    const tokenizer *t;
    int32_t *ids;
    int capacity, count;
    int error; /* 0, or what tokenizer_encode returns */
    pcre2_match_data *match;
    tokenizer_buffer clean, word, normal[2], step[TOKENIZER_MAX_STEPS];
    symbol *symbols;
    int symbol_count, symbol_capacity;
    uint64_t *heap; /* rank << 32 | index of the left symbol; the least one first */
    int heap_count, heap_capacity;
} encoding;

static int failed(encoding *e, int error) {
    e->error = error;
    return 0;
}
static void put_id(encoding *e, int32_t id) {
    if (e->count < e->capacity) e->ids[e->count] = id;
    if (e->count < INT_MAX) e->count++;
    else e->error = TOKENIZER_NO_MEMORY;
}

/* ---- BPE --------------------------------------------------------------------------------------------------------- */

static int heap_push(encoding *e, uint64_t key) {
    if (e->heap_count == e->heap_capacity) {
        const int capacity = 2 * e->heap_capacity + 64;
        uint64_t *grown = (uint64_t *)realloc(e->heap, (size_t)capacity * sizeof *grown);
        if (!grown) return failed(e, TOKENIZER_NO_MEMORY);
        e->heap = grown, e->heap_capacity = capacity;
    }
    int i = e->heap_count++;
    for (; i && e->heap[(i - 1) / 2] > key; i = (i - 1) / 2) e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = key;
    return 1;
}
static uint64_t heap_pop(encoding *e) {
    const uint64_t top = e->heap[0], key = e->heap[--e->heap_count];
    int i = 0;
    for (int child; (child = 2 * i + 1) < e->heap_count; i = child) {
        if (child + 1 < e->heap_count && e->heap[child + 1] < e->heap[child]) child++;
        if (e->heap[child] >= key) break;
        e->heap[i] = e->heap[child];
    }
    e->heap[i] = key;
    return top;
}
static int push_symbol(encoding *e, int32_t id) {
    if (e->symbol_count == e->symbol_capacity) {
        const int capacity = 2 * e->symbol_capacity + 64;
        symbol *grown = NULL; /* a normalizer may make any text long */
        if (e->symbol_capacity < MAX_SYMBOLS) grown = (symbol *)realloc(e->symbols, (size_t)capacity * sizeof *grown);
        if (!grown) return failed(e, TOKENIZER_NO_MEMORY);
        e->symbols = grown, e->symbol_capacity = capacity;
    }
    symbol *s = &e->symbols[e->symbol_count];
    s->id = id, s->previous = e->symbol_count - 1, s->next = ++e->symbol_count;
    return 1;
}
static int push_pair(encoding *e, int left) {
    const symbol *s = &e->symbols[left];
    const tokenizer_merge *m = tokenizer_find_merge(e->t, s->id, e->symbols[s->next].id);
    return !m || heap_push(e, (uint64_t)m->rank << 32 | (uint32_t)left);
}
/* The tokens of the characters of a piece, before any merge. A character that has none becomes its bytes' tokens, the
 * unknown token or nothing. `tokenizers` writes an unknown token only when the next character is known, so behind the
 * bytes of others; with fuse_unk it is one for a run of them. */
static int characters(encoding *e, const char *p, size_t n) {
    const tokenizer *t = e->t;
    int unknown = 0;
    e->symbol_count = 0;
    for (size_t at = 0, bytes; at < n; at += bytes) {
        bytes = (size_t)tokenizer_utf8_bytes(p + at);
        const uint32_t c = bytes < 3 ? tokenizer_get_utf8(p + at) : UINT32_MAX;
        const int32_t id = c < TOKENIZER_DIRECT ? t->direct[c] : tokenizer_find(t, p + at, bytes);
        if (id >= 0) {
            if (unknown && !push_symbol(e, t->unk)) return 0;
            unknown = 0;
            if (!push_symbol(e, id)) return 0;
            continue;
        }
        int all = t->byte_fallback;
        for (size_t i = 0; all && i < bytes; i++) all = t->byte[(unsigned char)p[at + i]] >= 0;
        if (all) {
            for (size_t i = 0; i < bytes; i++)
                if (!push_symbol(e, t->byte[(unsigned char)p[at + i]])) return 0;
        } else if (t->unk == TOKENIZER_NO_TOKEN) return failed(e, TOKENIZER_NO_TOKEN);
        else if (t->unk >= 0) {
            if (unknown && !t->fuse_unk && !push_symbol(e, t->unk)) return 0;
            unknown = 1;
        }
    }
    return !unknown || push_symbol(e, t->unk);
}
/* A piece that the pre-tokenizer is through with. */
static int bpe(encoding *e, const char *p, size_t n) {
    const tokenizer *t = e->t;
    if (t->ignore_merges) {
        const int32_t id = tokenizer_find(t, p, n);
        if (id >= 0) {
            put_id(e, id);
            return 1;
        }
    }
    if (!characters(e, p, n)) return 0;
    symbol *const s = e->symbols;
    const int count = e->symbol_count;
    e->heap_count = 0;
    for (int i = 0; i + 1 < count; i++)
        if (!push_pair(e, i)) return 0;
    while (e->heap_count) {
        const uint64_t top = heap_pop(e);
        const int left = (int)(uint32_t)top, right = s[left].next;
        if (s[left].id < 0 || right == count) continue;
        /* The pair may have changed since it came into the heap. */
        const tokenizer_merge *m = tokenizer_find_merge(t, s[left].id, s[right].id);
        if (!m || m->rank != (uint32_t)(top >> 32)) continue;
        s[left].id = m->id, s[left].next = s[right].next, s[right].id = -1;
        if (s[left].next < count) {
            s[s[left].next].previous = left;
            if (!push_pair(e, left)) return 0;
        }
        if (s[left].previous >= 0 && !push_pair(e, s[left].previous)) return 0;
    }
    for (int i = 0; i < count; i = s[i].next) put_id(e, s[i].id);
    return 1;
}

/* ---- WordPiece --------------------------------------------------------------------------------------------------- */

/* A word: always the longest token that the rest of it begins with. Without one the whole word is unknown. */
static int wordpiece(encoding *e, const char *p, size_t n) {
    const tokenizer *t = e->t;
    const int before = e->count;
    int characters = 0;
    for (size_t at = 0; at < n; at += (size_t)tokenizer_utf8_bytes(p + at)) characters++;
    tokenizer_buffer *word = &e->word;
    word->n = 0;
    if (!tokenizer_append(word, t->continues.p, t->continues.n) || !tokenizer_append(word, p, n))
        return failed(e, TOKENIZER_NO_MEMORY);
    for (size_t at = 0; characters <= t->max_word && at < n;) {
        /* The prefix stands right in front of the rest: what is before has its token already. */
        char *rest = word->p + t->continues.n + at, *key = at ? rest - t->continues.n : rest;
        if (at) memcpy(key, t->continues.p, t->continues.n);
        size_t end = n - at;
        int32_t id = -1;
        if (end > t->longest) /* no token has more bytes */
            for (end = t->longest; end && ((unsigned char)rest[end] & 0xc0) == 0x80;) end--;
        while (end && (id = tokenizer_find(t, key, (size_t)(rest - key) + end)) < 0) end = previous(rest, end);
        if (id < 0) break;
        put_id(e, id), at += end;
        if (at == n) return 1;
    }
    e->count = before;
    put_id(e, t->unk);
    return 1;
}

/* ---- patterns ---------------------------------------------------------------------------------------------------- */

/* A search through a text. Begin with from = 0 and last = SIZE_MAX. */
typedef struct search { size_t from, last, start, end; } search;

/* The next match: 1, 0 if there is none, or an error. An empty match right behind another does not count. */
static int next_match(const tokenizer_step *step, tokenizer_text text, pcre2_match_data *match, search *s) {
    if (!step->regex) {
        const size_t n = step->literal.n;
        for (; s->from + n <= text.n; s->from++) {
            const char *p = (const char *)memchr(text.p + s->from, step->literal.p[0], text.n - n - s->from + 1);
            if (!p) return 0;
            s->from = (size_t)(p - text.p);
            if (memcmp(p, step->literal.p, n)) continue;
            s->start = s->from, s->from = s->end = s->start + n;
            return 1;
        }
        return 0;
    }
    while (s->from <= text.n) {
        const PCRE2_SPTR subject = (PCRE2_SPTR)text.p;
        int found = pcre2_match(step->regex, subject, text.n, s->from, PCRE2_NO_UTF_CHECK, match, NULL);
        if (found == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter has memory of the heap */
            found = pcre2_match(step->regex, subject, text.n, s->from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match, NULL);
        if (found == PCRE2_ERROR_NOMATCH) return 0;
        if (found == PCRE2_ERROR_NOMEMORY) return TOKENIZER_NO_MEMORY;
        if (found < 0) return TOKENIZER_NO_MATCH;
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(match);
        s->start = at[0], s->end = at[1];
        if (s->end > s->start || s->end != s->last) {
            s->from = s->last = s->end;
            return 1;
        }
        s->from += s->from < text.n ? (size_t)tokenizer_utf8_bytes(text.p + s->from) : 1;
    }
    return 0;
}

/* ---- the normalizer ---------------------------------------------------------------------------------------------- */

int tokenizer_replace(const tokenizer_step *step, tokenizer_text text, tokenizer_buffer *to) {
    pcre2_match_data *match = step->regex ? pcre2_match_data_create(1, NULL) : NULL;
    search s = {0, SIZE_MAX, 0, 0};
    size_t done = 0;
    int found = step->regex && !match ? TOKENIZER_NO_MEMORY : 0;
    while (!found && (found = next_match(step, text, match, &s)) > 0) {
        const int ok = tokenizer_append(to, text.p + done, s.start - done) &&
                       tokenizer_append(to, step->content.p, step->content.n);
        done = s.end, found = ok ? 0 : TOKENIZER_NO_MEMORY;
    }
    if (!found && !tokenizer_append(to, text.p + done, text.n - done)) found = TOKENIZER_NO_MEMORY;
    pcre2_match_data_free(match);
    return found;
}
static int lowercase(tokenizer_text text, tokenizer_buffer *to) {
    for (size_t at = 0; at < text.n; at += (size_t)tokenizer_utf8_bytes(text.p + at)) {
        const uint32_t c = tokenizer_get_utf8(text.p + at);
        char bytes[4] = {'i', (char)0xcc, (char)0x87, 0}; /* of U+0130, the only one that becomes two characters */
        const int n = c == 0x130 ? 3 : tokenizer_put_utf8(bytes, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
        if (!tokenizer_append(to, bytes, (size_t)n)) return TOKENIZER_NO_MEMORY;
    }
    return 0;
}
static int is_ideograph(uint32_t c) { /* the ranges of `tokenizers` */
    return (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x4e00 && c <= 0x9fff) || (c >= 0xf900 && c <= 0xfaff) ||
           (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
           (c >= 0x2f800 && c <= 0x2fa1f);
}
static int is_control(uint32_t c) {
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return c == 0xfffd || ((category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
                            category == UTF8PROC_CATEGORY_CO) && c != '\t' && c != '\n' && c != '\r');
}
static int clean_characters(int options, tokenizer_text text, tokenizer_buffer *to) {
    for (size_t at = 0, bytes; at < text.n; at += bytes) {
        bytes = (size_t)tokenizer_utf8_bytes(text.p + at);
        const uint32_t c = tokenizer_get_utf8(text.p + at);
        const int is_apart = (options & CLEAN_IDEOGRAPHS) && is_ideograph(c);
        const int is_blank = (options & CLEAN_TEXT) && is_space(c);
        if ((options & CLEAN_TEXT) && is_control(c)) continue;
        if ((is_apart && !tokenizer_append(to, " ", 1)) ||
            !(is_blank ? tokenizer_append(to, " ", 1) : tokenizer_append(to, text.p + at, bytes)) ||
            (is_apart && !tokenizer_append(to, " ", 1))) return TOKENIZER_NO_MEMORY;
    }
    return 0;
}
/* All characters below U+0300 are as NFC has them. */
static int is_plain(tokenizer_text text) {
    for (size_t i = 0; i < text.n; i++)
        if ((unsigned char)text.p[i] >= 0xcc) return 0;
    return 1;
}
static int by_key(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}
/* Put the marks of each run of them into the order of their combining classes. utf8proc_map would do that, too, but by
 * exchanges of neighbours, which takes n^2 steps for a run of n. keys: memory for n. */
static void order_marks(utf8proc_int32_t *c, size_t n, uint64_t *keys) {
    for (size_t start = 0, end; start < n; start = end + 1) {
        for (end = start; end < n; end++) { /* a key is class, index and character */
            const uint64_t combining = (uint64_t)utf8proc_get_property(c[end])->combining_class;
            if (!combining) break;
            keys[end - start] = combining << 56 | (uint64_t)(end - start) << 21 | (uint64_t)c[end];
        }
        if (end - start < 2) continue;
        qsort(keys, end - start, sizeof *keys, by_key);
        for (size_t i = start; i < end; i++) c[i] = (utf8proc_int32_t)(keys[i - start] & 0x1fffff);
    }
}
/* Decompose, order, and with UTF8PROC_COMPOSE compose again. */
static int unicode_form(int options, tokenizer_text text, tokenizer_buffer *to) {
    utf8proc_int32_t *c = NULL;
    uint64_t *keys = NULL;
    size_t count = 0, capacity = 0;
    int ok = 1, boundary = 0;
    for (size_t at = 0; ok && at < text.n; at += (size_t)tokenizer_utf8_bytes(text.p + at)) {
        if (count + 32 > capacity) { /* no character becomes more than 18 */
            capacity = 2 * capacity + text.n + 32;
            utf8proc_int32_t *grown = (utf8proc_int32_t *)realloc(c, capacity * sizeof *c);
            if (grown) c = grown;
            else ok = 0;
        }
        const int form = (options & ~UTF8PROC_COMPOSE) | UTF8PROC_DECOMPOSE;
        if (ok) count += (size_t)utf8proc_decompose_char((utf8proc_int32_t)tokenizer_get_utf8(text.p + at), c + count,
                                                         (utf8proc_ssize_t)(capacity - count), (utf8proc_option_t)form,
                                                         &boundary);
    }
    if (ok && (keys = (uint64_t *)malloc((count + 1) * sizeof *keys)) != NULL) order_marks(c, count, keys);
    else ok = 0;
    if (ok && (options & UTF8PROC_COMPOSE))
        count = (size_t)utf8proc_normalize_utf32(c, (utf8proc_ssize_t)count, (utf8proc_option_t)options);
    for (size_t i = 0; ok && i < count; i++) {
        char bytes[4];
        ok = tokenizer_append(to, bytes, (size_t)tokenizer_put_utf8(bytes, (uint32_t)c[i]));
    }
    free(c), free(keys);
    return ok ? 0 : TOKENIZER_NO_MEMORY;
}
int tokenizer_normalize(const tokenizer *t, tokenizer_text text, tokenizer_buffer *a, tokenizer_buffer *b,
                        tokenizer_text *out) {
    for (int i = 0; i < t->normalizer.count && text.n; i++) {
        const tokenizer_step *step = &t->normalizer.step[i];
        const int is_nfc = step->kind == STEP_UTF8PROC && step->options == (UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        int error = 0;
        if (is_nfc && is_plain(text)) continue;
        tokenizer_buffer *to = text.p == a->p ? b : a;
        to->n = 0;
        if (step->kind == STEP_REPLACE) error = tokenizer_replace(step, text, to);
        else if (step->kind == STEP_UTF8PROC) error = unicode_form(step->options, text, to);
        else if (step->kind == STEP_LOWERCASE) error = lowercase(text, to);
        else if (step->kind == STEP_CLEAN) error = clean_characters(step->options, text, to);
        else if (!tokenizer_append(to, step->content.p, step->content.n) || !tokenizer_append(to, text.p, text.n))
            error = TOKENIZER_NO_MEMORY;
        if (error) return error;
        text.p = to->p, text.n = to->n;
    }
    *out = text;
    return 0;
}

/* ---- the pre-tokenizer ------------------------------------------------------------------------------------------- */

static int pre_tokenize(encoding *e, int k, tokenizer_text text, int first);

/* Hands on the part of a text from start to end. */
static int pass_on(encoding *e, int k, tokenizer_text text, int first, size_t start, size_t end) {
    const tokenizer_text part = {text.p + start, end - start};
    return pre_tokenize(e, k + 1, part, first && !start);
}
/* Split a text at the matches of step k. A segment is a match or what lies between two; one is held back as long as
 * the next may be joined to it. */
static int split(encoding *e, int k, tokenizer_text text, int first) {
    const tokenizer_step *step = &e->t->pre_tokenizer.step[k];
    search s = {0, SIZE_MAX, 0, 0};
    size_t held = 0, done = 0; /* text[held] to text[done - 1] is held back */
    int held_match = 0;        /* the last segment in it is a match */
    int found = 1;
    while (found > 0) {
        found = next_match(step, text, e->match, &s);
        if (found < 0) return failed(e, found);
        for (int match = 0; match <= found; match++) { /* the segment before the match, then the match */
            const size_t start = match ? s.start : done, end = match ? s.end : found ? s.start : text.n;
            if (!match && start == end) continue;
            const int is_match = match != step->invert;
            const int joins = done > held && (step->behavior == SPLIT_MergedWithPrevious ? is_match && !held_match :
                                              step->behavior == SPLIT_MergedWithNext     ? !is_match && held_match :
                                              step->behavior == SPLIT_Contiguous         ? is_match == held_match : 0);
            if (!joins) {
                if (done > held && !(step->behavior == SPLIT_Removed && held_match) &&
                    !pass_on(e, k, text, first, held, done)) return 0;
                held = start;
            }
            done = end, held_match = is_match;
        }
    }
    return done == held || (step->behavior == SPLIT_Removed && held_match) || pass_on(e, k, text, first, held, done);
}
/* Each byte as its character. */
static int spell_bytes(tokenizer_text text, tokenizer_buffer *to) {
    for (size_t i = 0; i < text.n; i++) {
        char bytes[4];
        const uint32_t c = tokenizer_byte_character((unsigned char)text.p[i]);
        bytes[0] = (char)(c < 0x80 ? c : 0xc0 | c >> 6), bytes[1] = (char)(0x80 | (c & 0x3f));
        if (!tokenizer_append(to, bytes, c < 0x80 ? 1 : 2)) return 0;
    }
    return 1;
}
/* Do the steps from k on, and BPE behind them. first: the text begins where the whole text does. */
static int pre_tokenize(encoding *e, int k, tokenizer_text text, int first) {
    if (!text.n) return 1;
    if (k == e->t->pre_tokenizer.count)
        return e->t->continues.p ? wordpiece(e, text.p, text.n) : bpe(e, text.p, text.n);
    const tokenizer_step *step = &e->t->pre_tokenizer.step[k];
    if (step->kind == STEP_SPLIT) return split(e, k, text, first);
    tokenizer_buffer *to = &e->step[k];
    int ok = 1;
    to->n = 0;
    if (step->kind == STEP_BYTES) ok = spell_bytes(text, to);
    else if (step->kind == STEP_SPACE_FIRST)
        ok = (*text.p == ' ' || tokenizer_append(to, " ", 1)) && tokenizer_append(to, text.p, text.n);
    else {
        const tokenizer_text sign = step->content;
        const int there = *text.p == ' ' || (text.n >= sign.n && !memcmp(text.p, sign.p, sign.n));
        if (!there && (step->scheme == PREPEND_always || (step->scheme == PREPEND_first && first)))
            ok = tokenizer_append(to, sign.p, sign.n);
        if (ok && tokenizer_replace(step, text, to)) ok = 0;
    }
    if (!ok) return failed(e, TOKENIZER_NO_MEMORY);
    const tokenizer_text made = {to->p, to->n};
    return pre_tokenize(e, k + 1, made, first);
}

/* ---- added tokens ------------------------------------------------------------------------------------------------ */

/* The longest token of the set at p; null if there is none. */
static const tokenizer_added *added_at(const tokenizer_added_set *set, const char *p, size_t n) {
    int low = set->first[(unsigned char)*p], high = set->first[(unsigned char)*p + 1];
    const tokenizer_added *best = NULL;
    /* token[low] to token[high - 1] begin with the first `depth` bytes at p. */
    for (size_t depth = 1; low < high; depth++) {
        if (set->token[low].content.n == depth) best = &set->token[low++]; /* a prefix sorts in front */
        while (low < high && set->token[low].content.n == depth) low++;    /* the same text again */
        if (depth == n) break;
        const unsigned char c = (unsigned char)p[depth];
        for (int side = 0; side < 2; side++) { /* the range of those whose next byte is c */
            int a = low, b = high;
            while (a < b) {
                const int middle = a + (b - a) / 2;
                const unsigned char m = (unsigned char)set->token[middle].content.p[depth];
                if (side ? m <= c : m < c) a = middle + 1;
                else b = middle;
            }
            if (side) high = a;
            else low = a;
        }
    }
    return best;
}
static int is_single_word(tokenizer_text text, size_t start, size_t end) {
    if (start && is_word(tokenizer_get_utf8(text.p + previous(text.p, start)))) return 0;
    return end == text.n || !is_word(tokenizer_get_utf8(text.p + end));
}
static int encode_rest(encoding *e, tokenizer_text text, int is_normal, int first);

/* Cut the tokens of a set out of a text; encode_rest gets what lies between. */
static int cut(encoding *e, const tokenizer_added_set *set, tokenizer_text text, int is_normal, int first) {
    size_t done = 0;
    for (size_t at = 0; set->count && at < text.n;) {
        const tokenizer_added *token = added_at(set, text.p + at, text.n - at);
        if (!token) {
            at++;
            continue;
        }
        size_t start = at, end = at + token->content.n;
        at = end;
        if (token->single_word && !is_single_word(text, start, end)) continue;
        if (token->lstrip) {
            for (size_t p; start && is_space(tokenizer_get_utf8(text.p + (p = previous(text.p, start))));) start = p;
            if (start < done) start = done;
        }
        if (token->rstrip)
            while (end < text.n && is_space(tokenizer_get_utf8(text.p + end)))
                end += (size_t)tokenizer_utf8_bytes(text.p + end);
        if (done < start) {
            const tokenizer_text part = {text.p + done, start - done};
            if (!encode_rest(e, part, is_normal, first && !done)) return 0;
        }
        put_id(e, token->id);
        done = end;
    }
    const tokenizer_text part = {text.p + done, text.n - done};
    return !part.n || encode_rest(e, part, is_normal, first && !done);
}
static int encode_rest(encoding *e, tokenizer_text text, int is_normal, int first) {
    if (is_normal) return pre_tokenize(e, 0, text, first);
    const int error = tokenizer_normalize(e->t, text, &e->normal[0], &e->normal[1], &text);
    return error ? failed(e, error) : !text.n || cut(e, &e->t->normalized, text, 1, first);
}

/* U+FFFD in the place of what is not UTF-8. The text itself if there is nothing to replace. */
static int clean(encoding *e, tokenizer_text *text) {
    size_t done = 0;
    for (size_t at = 0; at < text->n;) {
        int state;
        const int n = tokenizer_utf8(text->p + at, text->n - at, &state);
        if (state != 1) {
            if (!tokenizer_append(&e->clean, text->p + done, at - done) ||
                !tokenizer_append(&e->clean, "\xef\xbf\xbd", 3)) return failed(e, TOKENIZER_NO_MEMORY);
            done = at + (size_t)n;
        }
        at += (size_t)n;
    }
    if (!e->clean.n) return 1;
    if (!tokenizer_append(&e->clean, text->p + done, text->n - done)) return failed(e, TOKENIZER_NO_MEMORY);
    text->p = e->clean.p, text->n = e->clean.n;
    return 1;
}

int tokenizer_encode(const tokenizer *t, const char *text, size_t bytes, int add_special, int32_t *ids, int capacity) {
    tokenizer_text all = {text, bytes};
    encoding e;
    memset(&e, 0, sizeof e);
    if (bytes > (size_t)1 << 28) return TOKENIZER_NO_MEMORY;
    e.t = t, e.ids = ids, e.capacity = capacity;
    for (int i = 0; add_special && i < t->before.count; i++) put_id(&e, t->before.id[i]);
    e.match = pcre2_match_data_create(1, NULL);
    if (!e.match) e.error = TOKENIZER_NO_MEMORY;
    else if (bytes && clean(&e, &all)) (void)cut(&e, &t->exact, all, 0, 1);
    for (int i = 0; add_special && i < t->behind.count; i++) put_id(&e, t->behind.id[i]);
    pcre2_match_data_free(e.match);
    free(e.clean.p), free(e.word.p), free(e.normal[0].p), free(e.normal[1].p), free(e.symbols), free(e.heap);
    for (int i = 0; i < TOKENIZER_MAX_STEPS; i++) free(e.step[i].p);
    return e.error ? e.error : e.count;
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

/* Every byte may become U+FFFD, three bytes; with those held back and a space between tokens. */
size_t tokenizer_decode_capacity(const tokenizer *t) {
    return 3 * (t->longest + sizeof((tokenizer_stream *)0)->hold) + 1;
}

void tokenizer_decode_begin(tokenizer_stream *s, const tokenizer *t, int skip_special) {
    memset(s, 0, sizeof *s);
    s->t = t, s->skip_special = skip_special, s->strip_left = t->strip_left;
}
/* Write n bytes that are no character. */
static size_t put_wrong(const tokenizer *t, char *text, int n) {
    const int count = t->lossy_by_byte ? n : 1;
    for (int i = 0; i < count; i++) memcpy(text + 3 * i, "\xef\xbf\xbd", 3);
    return 3 * (size_t)count;
}
/* Write the characters that p completes, and hold back the start of one. */
static size_t put_bytes(tokenizer_stream *s, const char *p, size_t n, char *text) {
    size_t done = 0;
    while (n) {
        char *hold = s->hold;
        hold[s->held++] = *p++, n--;
        int state;
        int length = tokenizer_utf8(hold, (size_t)s->held, &state);
        if (state == 0 && length < s->held) { /* the newest byte begins anew */
            done += put_wrong(s->t, text + done, length);
            hold[0] = hold[length], s->held = 1;
            length = tokenizer_utf8(hold, 1, &state);
        }
        if (state < 0) continue;
        if (state == 0) done += put_wrong(s->t, text + done, length);
        else memcpy(text + done, hold, (size_t)length), done += (size_t)length;
        s->held = 0;
    }
    return done;
}
size_t tokenizer_decode_next(tokenizer_stream *s, int32_t id, char *text) {
    const tokenizer *t = s->t;
    if (id < 0 || id >= t->vocabulary || !t->token[id].spelling.p) return 0;
    const tokenizer_token *token = &t->token[id];
    if (token->special && s->skip_special) return 0;
    size_t done = 0;
    const char *p = token->decoded.p;
    size_t n = token->decoded.n;
    if (s->tokens++ == 0 && t->metaspace.p) {
        const tokenizer_text sign = t->metaspace;
        for (p = token->spelling.p, n = token->spelling.n; n;) {
            const size_t bytes = (size_t)tokenizer_utf8_bytes(p);
            if (bytes != sign.n || memcmp(p, sign.p, bytes)) done += put_bytes(s, p, bytes, text + done);
            p += bytes, n -= bytes;
        }
        return done;
    }
    if (t->first_is_spelling && s->tokens == 1) p = token->spelling.p, n = token->spelling.n;
    if (t->joined_by_space && s->tokens > 1) done += put_bytes(s, " ", 1, text);
    for (; s->strip_left && n; s->strip_left--) {
        if (n < t->strip.n || memcmp(p, t->strip.p, t->strip.n)) s->strip_left = 1; /* the text has begun */
        else p += t->strip.n, n -= t->strip.n;
    }
    return done + put_bytes(s, p, n, text + done);
}
size_t tokenizer_decode_end(tokenizer_stream *s, char *text) {
    const int held = s->held;
    s->held = 0;
    return held ? put_wrong(s->t, text, held) : 0;
}
