/* tokenizer_file.c -- reads a tokenizer.json, or the tokenizer of a GGUF file (tokenizer_gguf.c): the steps around the
 * model (tokenizer_model.c). What is kept is copied, and the rest freed.
 *
 * A file may come from anybody: each value is checked for its type, and what this code does not know is refused by
 * name. Functions return 0 after an error, whose text is then in l->error.
 */
#include <errno.h>  /* errno */
#include <limits.h> /* INT_MAX */

#include <utf8proc.h> /* UTF8PROC_COMPOSE */

#include "linked.h"           /* open_to_read */
#include "tokenizer_values.h" /* loader */

enum { MAX_FILE = 256 << 20 };

/* A file in memory: its bytes, and their tree. */
typedef struct json_file { char *text; tokenizer_json_document document; int is_gguf; } json_file;

static void close_json(json_file *f) {
    tokenizer_json_free(&f->document);
    free(f->text);
}
static int read_bytes(loader *l, FILE *file, json_file *f, size_t *n) {
    const long size = fseek(file, 0, SEEK_END) ? -1 : ftell(file);
    if (size < 0 || fseek(file, 0, SEEK_SET)) return fail(l, "cannot read it: %s", strerror(errno));
    if (size > MAX_FILE) return fail(l, "has %ld bytes, %d at most are read", size, MAX_FILE);
    f->text = (char *)malloc((size_t)size + 1);
    if (!f->text) return no_memory(l);
    *n = fread(f->text, 1, (size_t)size, file), f->text[*n] = 0;
    return *n == (size_t)size ? 1 : fail(l, "cannot read it");
}
/* Read all of a file and parse it. The document has no root if there is no such file, which is an error unless it may
 * be missing. close_json in any case. */
static int open_json(loader *l, json_file *f, int may_be_missing) {
    size_t n = 0, at = 0;
    char magic[4] = {0, 0, 0, 0};
    memset(f, 0, sizeof *f);
    FILE *file = open_to_read(l->path);
    if (!file) return may_be_missing ? 1 : fail(l, "cannot open it: %s", strerror(errno));
    f->is_gguf = fread(magic, 1, 4, file) == 4 && !memcmp(magic, "GGUF", 4);
    int ok = 0;
    if (f->is_gguf) {
        tokenizer_buffer text = {NULL, 0, 0};
        ok = tokenizer_gguf_json(l->path, &text, l->error), f->text = text.p, n = text.n;
        if (ok) f->text[n] = 0;
        else (void)only_characters(l->error);
    } else ok = read_bytes(l, file, f, &n);
    fclose(file);
    if (!ok) return 0;
    for (int state = 1; at < n;) {
        const int bytes = tokenizer_utf8(f->text + at, n - at, &state);
        if (state != 1) return fail(l, "byte %zu is not UTF-8", at);
        at += (size_t)bytes;
    }
    return tokenizer_json_parse(&f->document, f->text, n, &at) ? 1 : fail(l, "is not JSON from byte %zu on", at);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static tokenizer_step *add_step(loader *l, tokenizer_steps *steps, tokenizer_step_kind kind) {
    if (steps->count == TOKENIZER_MAX_STEPS) {
        (void)fail(l, "more than %d steps", TOKENIZER_MAX_STEPS);
        return NULL;
    }
    tokenizer_step *step = &steps->step[steps->count++];
    memset(step, 0, sizeof *step);
    step->kind = kind;
    return step;
}
static int set_regex(loader *l, tokenizer_step *step, const char *pattern) {
    char error[160];
    const tokenizer_text text = {pattern, strlen(pattern)};
    step->regex = tokenizer_regex(text, error);
    return step->regex ? 1 : fail(l, "\"%.40s\": %s", pattern, error);
}
/* {"String": ".."} or {"Regex": ".."} */
static int get_pattern(loader *l, const json *object, tokenizer_step *step) {
    const json *pattern = member(object, "pattern"), *regex = member(pattern, "Regex");
    if (is_text(regex)) return set_regex(l, step, regex->text.p);
    if (!pattern || !get_text(l, pattern, "String", &step->literal))
        return fail(l, "\"pattern\" should be a Regex or a String");
    return step->literal.n ? 1 : fail(l, "\"pattern\" is an empty string");
}
/* Add the steps of `value`, or of all members of a Sequence. one: adds those of a part that is no Sequence. */
typedef int (*add_part)(loader *l, tokenizer_steps *steps, const json *part);
static int add_parts(loader *l, tokenizer_steps *steps, const json *value, const char *list, add_part one) {
    if (!value) return 1;
    if (!is_kind(value, JSON_object)) return fail(l, "a part of \"%s\" should be an object", list);
    if (!is(value, "Sequence")) return one(l, steps, value);
    const json *parts = member(value, list), *part;
    if (!is_kind(parts, JSON_array)) return fail(l, "a Sequence without \"%s\"", list);
    for (part = parts->child; part; part = part->next) if (!add_parts(l, steps, part, list, one)) return 0;
    return 1;
}

/* BERT's normalizer: accents are stripped if the file says so or, if it says nothing, where it makes letters small. */
static int add_bert_normalizer(loader *l, tokenizer_steps *steps, const json *part) {
    int clean, ideographs, lowercase, strip;
    tokenizer_step *step = add_step(l, steps, STEP_CLEAN);
    if (!step || !get_bool(l, part, "clean_text", 1, &clean) || !get_bool(l, part, "lowercase", 1, &lowercase) ||
        !get_bool(l, part, "handle_chinese_chars", 1, &ideographs) ||
        !get_bool(l, part, "strip_accents", lowercase, &strip)) return 0;
    step->options = (clean ? CLEAN_TEXT : 0) | (ideographs ? CLEAN_IDEOGRAPHS : 0);
    if (strip) {
        if (!(step = add_step(l, steps, STEP_UTF8PROC))) return 0;
        step->options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
        if (!(step = add_step(l, steps, STEP_REPLACE)) || !set_regex(l, step, "\\p{Mn}")) return 0;
        step->content = keep(l, "", 0);
        if (!step->content.p) return 0;
    }
    return !lowercase || add_step(l, steps, STEP_LOWERCASE) != NULL;
}
static int add_normalizer(loader *l, tokenizer_steps *steps, const json *part) {
    static const struct { const char *name; int options; } forms[] = {
        {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
        {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
        {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
        {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
    };
    tokenizer_step *step;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (is(part, forms[i].name)) {
            if (!(step = add_step(l, steps, STEP_UTF8PROC))) return 0;
            step->options = forms[i].options;
            return 1;
        }
    if (is(part, "BertNormalizer")) return add_bert_normalizer(l, steps, part);
    if (is(part, "Lowercase")) return add_step(l, steps, STEP_LOWERCASE) != NULL;
    if (is(part, "Prepend"))
        return (step = add_step(l, steps, STEP_PREPEND)) && get_text(l, part, "prepend", &step->content);
    if (is(part, "Replace"))
        return (step = add_step(l, steps, STEP_REPLACE)) && get_pattern(l, part, step) &&
               get_text(l, part, "content", &step->content);
    return fail(l, "the normalizer \"%.60s\" is not supported", type_of(part));
}

static int add_split(loader *l, tokenizer_steps *steps, const char *pattern, tokenizer_behavior behavior, int invert) {
    tokenizer_step *step = add_step(l, steps, STEP_SPLIT);
    if (!step) return 0;
    step->behavior = behavior, step->invert = invert;
    return set_regex(l, step, pattern);
}
static int get_behavior(loader *l, const json *part, tokenizer_behavior *out) {
#define BEHAVIOR_NAME(name) #name,
    static const char *const names[] = {TOKENIZER_BEHAVIORS(BEHAVIOR_NAME)};
    const json *value = member(part, "behavior");
    for (int i = 0; is_text(value) && i < SPLIT_COUNT; i++)
        if (!strcmp(value->text.p, names[i])) {
            *out = (tokenizer_behavior)i;
            return 1;
        }
    return fail(l, "no such \"behavior\": %.40s", is_text(value) ? value->text.p : "");
}
/* The character of Metaspace, and when one of it is put in front; older files say the latter by add_prefix_space. */
static int get_metaspace(loader *l, const json *part, tokenizer_step *step) {
    static const char *const schemes[] = {"always", "first", "never"};
    const json *value = member(part, "prepend_scheme");
    int prefix = 1, scheme = 0;
    if (!get_text(l, part, "replacement", &step->content)) return 0;
    if (!get_bool(l, part, "add_prefix_space", 1, &prefix)) return 0;
    if (!step->content.n || (size_t)tokenizer_utf8_bytes(step->content.p) != step->content.n)
        return fail(l, "the \"replacement\" of Metaspace should be one character");
    while (value && (!is_text(value) || strcmp(value->text.p, schemes[scheme])))
        if (++scheme == 3) return fail(l, "no such \"prepend_scheme\"");
    step->scheme = prefix ? (tokenizer_scheme)scheme : PREPEND_never;
    const int differ = !prefix && value && scheme != PREPEND_never;
    return differ ? fail(l, "\"add_prefix_space\" and \"prepend_scheme\" differ") : 1;
}
static int add_pre_tokenizer(loader *l, tokenizer_steps *steps, const json *part) {
    tokenizer_step *step;
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    tokenizer_behavior behavior = SPLIT_Removed;
    int flag, other;
    if (is(part, "ByteLevel")) {
        if (!get_bool(l, part, "add_prefix_space", 1, &flag) || !get_bool(l, part, "use_regex", 1, &other)) return 0;
        if (flag && !add_step(l, steps, STEP_SPACE_FIRST)) return 0;
        if (other && !add_split(l, steps, gpt2, SPLIT_Isolated, 0)) return 0;
        return add_step(l, steps, STEP_BYTES) != NULL;
    }
    if (is(part, "Split")) {
        if (!get_behavior(l, part, &behavior) || !get_bool(l, part, "invert", 0, &flag)) return 0;
        if (!(step = add_step(l, steps, STEP_SPLIT))) return 0;
        step->behavior = behavior, step->invert = flag;
        return get_pattern(l, part, step);
    }
    if (is(part, "Metaspace")) {
        if (!(step = add_step(l, steps, STEP_METASPACE)) || !get_metaspace(l, part, step)) return 0;
        if (!get_bool(l, part, "split", 1, &flag)) return 0;
        const tokenizer_text sign = step->content;
        step->literal = keep(l, " ", 1);
        if (!step->literal.p) return 0;
        if (!flag) return 1;
        if (!(step = add_step(l, steps, STEP_SPLIT))) return 0;
        step->behavior = SPLIT_MergedWithNext, step->literal = sign;
        return 1;
    }
    if (is(part, "Digits")) {
        if (!get_bool(l, part, "individual_digits", 0, &flag)) return 0;
        return add_split(l, steps, "\\p{N}", flag ? SPLIT_Isolated : SPLIT_Contiguous, 0);
    }
    if (is(part, "Whitespace")) {
        const char pattern[] = "[" TOKENIZER_WORD "\\x{200c}\\x{200d}]+|[^" TOKENIZER_WORD "\\x{200c}\\x{200d}\\s]+";
        return add_split(l, steps, pattern, SPLIT_Removed, 1);
    }
    if (is(part, "BertPreTokenizer"))
        return add_split(l, steps, "\\s", SPLIT_Removed, 0) &&
               add_split(l, steps, "[\\p{P}!-/:-@\\[-`{-~]", SPLIT_Isolated, 0);
    if (is(part, "WhitespaceSplit")) return add_split(l, steps, "\\s", SPLIT_Removed, 0);
    return fail(l, "the pre_tokenizer \"%.60s\" is not supported", type_of(part));
}

static int add_decoder(loader *l, tokenizer_steps *steps, const json *part) {
    tokenizer_step *step;
    if (is(part, "ByteLevel")) return add_step(l, steps, STEP_BYTES) != NULL;
    if (is(part, "ByteFallback")) return add_step(l, steps, STEP_BYTE_FALLBACK) != NULL;
    if (is(part, "Fuse")) return add_step(l, steps, STEP_FUSE) != NULL;
    if (is(part, "Metaspace")) return (step = add_step(l, steps, STEP_METASPACE)) && get_metaspace(l, part, step);
    if (is(part, "WordPiece")) {
        if (!(step = add_step(l, steps, STEP_WORDPIECE)) || !get_text(l, part, "prefix", &step->content)) return 0;
        return get_bool(l, part, "cleanup", 1, &step->options);
    }
    if (is(part, "Replace")) {
        if (!(step = add_step(l, steps, STEP_REPLACE)) || !get_pattern(l, part, step)) return 0;
        return get_text(l, part, "content", &step->content);
    }
    if (is(part, "Strip")) {
        if (!(step = add_step(l, steps, STEP_STRIP)) || !get_text(l, part, "content", &step->content)) return 0;
        if (!step->content.n || (size_t)tokenizer_utf8_bytes(step->content.p) != step->content.n)
            return fail(l, "the \"content\" of Strip should be one character");
        return get_count(l, part, "start", INT_MAX, &step->start) && get_count(l, part, "stop", INT_MAX, &step->stop);
    }
    return fail(l, "the decoder \"%.60s\" is not supported", type_of(part));
}

/* ---- added tokens ------------------------------------------------------------------------------------------------ */

static int by_content(const void *a, const void *b) {
    const tokenizer_added *x = (const tokenizer_added *)a, *y = (const tokenizer_added *)b;
    const size_t n = x->content.n < y->content.n ? x->content.n : y->content.n;
    const int order = memcmp(x->content.p, y->content.p, n);
    return order ? order : x->content.n != y->content.n ? (x->content.n < y->content.n ? -1 : 1) : x->id - y->id;
}
static void sort_set(tokenizer_added_set *set) {
    int i = 0;
    if (set->count) qsort(set->token, (size_t)set->count, sizeof *set->token, by_content);
    for (int b = 0; b <= 256; b++) {
        while (i < set->count && (unsigned char)set->token[i].content.p[0] < b) i++;
        set->first[b] = i;
    }
}
static int load_added_token(loader *l, const json *item) {
    tokenizer *t = l->t;
    tokenizer_added a;
    tokenizer_text name;
    int normalized, id = 0;
    memset(&a, 0, sizeof a);
    if (!get_text(l, item, "content", &name) || !get_count(l, item, "id", MAX_VOCABULARY - 1, &id) ||
        !get_bool(l, item, "special", 0, &a.special) || !get_bool(l, item, "normalized", !a.special, &normalized) ||
        !get_bool(l, item, "single_word", 0, &a.single_word) || !get_bool(l, item, "lstrip", 0, &a.lstrip) ||
        !get_bool(l, item, "rstrip", 0, &a.rstrip)) return 0;
    if (!name.n) return 1;
    if (name.n > MAX_TOKEN) return fail(l, "\"%.40s..\" has more than %d bytes", name.p, MAX_TOKEN);
    const int32_t known = tokenizer_find(t, name.p, name.n);
    a.id = known >= 0 ? known : id, a.content = name;
    if (normalized) {
        tokenizer_buffer x = {NULL, 0, 0}, y = {NULL, 0, 0};
        const int error = tokenizer_normalize(t, name, &x, &y, &a.content);
        if (!error && a.content.p != name.p) a.content = keep(l, a.content.p, a.content.n);
        free(x.p), free(y.p);
        if (error || !a.content.p) return fail(l, "the added token \"%.40s\" cannot be normalized", name.p);
    }
    a.name = name;
    t->token[a.id].spelling = a.content; /* `tokenizers` decodes it to the text that it is found by */
    t->token[a.id].special = a.special;
    if (!a.content.n) return 1;
    tokenizer_added_set *set = normalized ? &t->normalized : &t->exact;
    set->token[set->count++] = a;
    return 1;
}
static int load_added(loader *l, const json *list) {
    const json *item;
    size_t count = 0;
    if (list && !is_kind(list, JSON_array)) return fail(l, "\"added_tokens\" should be an array");
    for (item = list ? list->child : NULL; item; item = item->next) count++;
    l->t->exact.token = (tokenizer_added *)allocate(l, count, sizeof(tokenizer_added));
    l->t->normalized.token = (tokenizer_added *)allocate(l, count, sizeof(tokenizer_added));
    if (!l->t->exact.token || !l->t->normalized.token) return 0;
    for (item = list ? list->child : NULL; item; item = item->next) if (!load_added_token(l, item)) return 0;
    sort_set(&l->t->exact), sort_set(&l->t->normalized);
    return 1;
}

/* ---- the post-processor and the end of a text -------------------------------------------------------------------- */

static int add_id(loader *l, tokenizer_ids *ids, int32_t id) {
    int32_t *grown = (int32_t *)realloc(ids->id, ((size_t)ids->count + 1) * sizeof *grown);
    if (!grown) return no_memory(l);
    ids->id = grown, grown[ids->count++] = id;
    return 1;
}
/* One template around what is there already: its tokens before the text come first of all. */
static int add_template(loader *l, const json *part) {
    tokenizer *t = l->t;
    tokenizer_ids before = {NULL, 0};
    const json *piece, *single = member(part, "single"), *specials = member(part, "special_tokens"), *id;
    int sequences = 0, ok = is_kind(single, JSON_array) ? 1 : fail(l, "TemplateProcessing without \"single\"");
    for (piece = ok ? single->child : NULL; ok && piece; piece = piece->next) {
        const json *token = member(piece, "SpecialToken"), *name = member(token, "id");
        const json *sequence = member(member(piece, "Sequence"), "id");
        if (is_text(sequence) && !strcmp(sequence->text.p, "A")) {
            sequences++;
            continue;
        }
        const json *ids = is_text(name) ? member(member(specials, name->text.p), "ids") : NULL;
        if (!is_kind(ids, JSON_array)) ok = fail(l, "a template with a token that \"special_tokens\" lacks");
        for (id = ok ? ids->child : NULL; ok && id; id = id->next) {
            int32_t number = 0;
            ok = get_id(l, id, name->text.p, &number) && add_id(l, sequences ? &t->behind : &before, number);
        }
    }
    for (int i = 0; ok && i < t->before.count; i++) ok = add_id(l, &before, t->before.id[i]);
    free(t->before.id);
    t->before = before;
    return ok && sequences != 1 ? fail(l, "a template should have the sequence A once") : ok;
}
/* {"cls": ["[CLS]", 101], "sep": ["[SEP]", 102]}: around the text. */
static int add_bert_processing(loader *l, const json *part) {
    static const char *const names[] = {"cls", "sep"};
    for (int i = 0; i < 2; i++) {
        const json *pair = member(part, names[i]), *name = is_kind(pair, JSON_array) ? pair->child : NULL;
        int32_t id = 0;
        if (!is_text(name)) return fail(l, "\"%s\" should be a token and its id", names[i]);
        if (!get_id(l, name->next, name->text.p, &id)) return 0;
        if (!add_id(l, i ? &l->t->behind : &l->t->before, id)) return 0;
    }
    return 1;
}
static int add_post_processor(loader *l, tokenizer_steps *steps, const json *part) {
    (void)steps;
    if (is(part, "ByteLevel")) return 1; /* changes offsets, not ids */
    if (is(part, "TemplateProcessing")) return add_template(l, part);
    if (is(part, "BertProcessing")) return add_bert_processing(l, part);
    return fail(l, "the post_processor \"%.60s\" is not supported", type_of(part));
}
/* eos_token_id of a GGUF file or of the folder's generation_config.json, a number or an array; without it, names. */
static int load_eos(loader *l, const json *own) {
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>",
                                        "<eos>", "<end_of_turn>", "</s>"};
    const char *slash = strrchr(l->path, '/'), name[] = "generation_config.json";
    const size_t folder = slash ? (size_t)(slash + 1 - l->path) : 0;
    char *path = (char *)allocate(l, folder + sizeof name, 1);
    if (!path) return 0;
    memcpy(path, l->path, folder), memcpy(path + folder, name, sizeof name);
    loader config = {l->t, path, l->error};
    json_file file;
    memset(&file, 0, sizeof file);
    int ok = own || open_json(&config, &file, 1);
    const json *value = own ? own : ok ? member(file.document.root, "eos_token_id") : NULL;
    const json *first = is_kind(value, JSON_array) ? value->child : value;
    for (const json *item = first; ok && item; item = value == first ? NULL : item->next) {
        int32_t id = 0;
        ok = get_id(&config, item, "eos_token_id", &id) && add_id(&config, &l->t->eos, id);
    }
    for (size_t i = 0; ok && !first && i < sizeof names / sizeof *names; i++) {
        const int32_t id = tokenizer_token_id(l->t, names[i]);
        if (id >= 0 && l->t->token[id].special) ok = add_id(l, &l->t->eos, id);
    }
    close_json(&file);
    free(path);
    return ok;
}

/* ---- the decoder ------------------------------------------------------------------------------------------------- */

static int hex(int c) {
    const int lower = c | 0x20; /* if c is a letter */
    return c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}
/* The byte of the token <0xHH>, or -1. */
static int byte_token(tokenizer_text s) {
    if (s.n != 6 || memcmp(s.p, "<0x", 3) || s.p[5] != '>' || hex(s.p[3]) < 0 || hex(s.p[4]) < 0) return -1;
    return 16 * hex(s.p[3]) + hex(s.p[4]);
}
/* The bytes of a token of byte-level BPE. A token with another character is taken as it is. */
static int unspell_bytes(tokenizer_text text, const short byte[TOKENIZER_DIRECT], tokenizer_buffer *to) {
    for (size_t at = 0; at < text.n; at += (size_t)tokenizer_utf8_bytes(text.p + at)) {
        const uint32_t c = tokenizer_get_utf8(text.p + at);
        if (c >= TOKENIZER_DIRECT || byte[c] < 0) {
            to->n = 0;
            return tokenizer_append(to, text.p, text.n);
        }
        const char one = (char)byte[c];
        if (!tokenizer_append(to, &one, 1)) return 0;
    }
    return 1;
}
/* The part of a token that Strip leaves. */
static tokenizer_text strip(tokenizer_text text, const tokenizer_step *step) {
    const tokenizer_text c = step->content;
    for (int i = 0; i < step->start && text.n >= c.n && !memcmp(text.p, c.p, c.n); i++) text.p += c.n, text.n -= c.n;
    for (int i = 0; i < step->stop && text.n >= c.n && !memcmp(text.p + text.n - c.n, c.p, c.n); i++) text.n -= c.n;
    return text;
}
/* A token that is not the first: behind a space, or the rest of it behind the prefix. With `options` the space in front
 * of some tokens is left out (cleanup, by `tokenizers`). */
static int join_word(tokenizer_text text, const tokenizer_step *step, tokenizer_buffer *to) {
    static const char *const close[] = {".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"};
    const tokenizer_text prefix = step->content;
    int is_close = text.n >= prefix.n && !memcmp(text.p, prefix.p, prefix.n);
    if (is_close) text.p += prefix.n, text.n -= prefix.n;
    for (size_t i = 0; step->options && i < sizeof close / sizeof *close; i++)
        if (!strncmp(text.p, close[i], strlen(close[i]))) is_close = 1;
    return (is_close || tokenizer_append(to, " ", 1)) && tokenizer_append(to, text.p, text.n);
}
/* The steps that see each token by itself. A token that none of them changes is not copied. */
static int decode_token(loader *l, const tokenizer_steps *steps, const short byte[TOKENIZER_DIRECT],
                        tokenizer_token *token, tokenizer_buffer buffer[2]) {
    tokenizer_text text = token->spelling;
    for (int i = 0; i < steps->count; i++) {
        const tokenizer_step *step = &steps->step[i];
        tokenizer_buffer *to = &buffer[text.p == buffer[0].p];
        char one = 0;
        int ok = 1;
        to->n = 0;
        if (step->kind == STEP_FUSE) break;
        if (step->kind == STEP_STRIP) {
            text = strip(text, step);
            continue;
        }
        if (step->kind == STEP_BYTE_FALLBACK) {
            const int value = byte_token(text);
            if (value < 0) continue;
            one = (char)value, ok = tokenizer_append(to, &one, 1);
        } else if (step->kind == STEP_BYTES) ok = unspell_bytes(text, byte, to);
        else if (step->kind == STEP_WORDPIECE) ok = join_word(text, step, to);
        else ok = !tokenizer_replace(step, text, to);
        if (!ok) return no_memory(l);
        text.p = to->p, text.n = to->n;
        if (step->kind == STEP_BYTES) break;
    }
    const int inside = text.p >= token->spelling.p && text.p <= token->spelling.p + token->spelling.n;
    token->decoded = inside ? text : keep(l, text.p, text.n);
    if (text.n > l->t->longest) l->t->longest = text.n;
    if (token->spelling.n > l->t->longest) l->t->longest = token->spelling.n;
    return token->decoded.p != NULL;
}
/* Whether a stream can do these steps: each token by itself, then the bytes of all, of which the first may be
 * stripped. */
static int check_decoder(loader *l, const tokenizer_steps *steps) {
    tokenizer_step_kind before = STEP_REPLACE;
    int fused = 0;
    for (int i = 0; i < steps->count; i++) {
        const tokenizer_step *step = &steps->step[i];
        if ((step->kind == STEP_METASPACE || step->kind == STEP_WORDPIECE) && steps->count > 1)
            return fail(l, "a Metaspace or WordPiece among other decoders is not supported");
        if (step->kind == STEP_WORDPIECE) l->t->first_is_spelling = 1;
        if (before == STEP_BYTE_FALLBACK && step->kind != STEP_FUSE)
            return fail(l, "a decoder between ByteFallback and Fuse is not supported");
        if (fused && step->kind != STEP_FUSE) {
            if (step->kind != STEP_STRIP || step->stop || l->t->strip_left)
                return fail(l, "behind Fuse or ByteLevel only one decoder is supported, Strip with \"stop\": 0");
            l->t->strip = step->content, l->t->strip_left = step->start;
        }
        if (step->kind == STEP_FUSE || step->kind == STEP_BYTES) fused = 1;
        if (step->kind == STEP_BYTE_FALLBACK) l->t->lossy_by_byte = 1;
        before = step->kind;
    }
    return 1;
}
static int load_decoder(loader *l, tokenizer_steps *steps, const json *decoder) {
    tokenizer *t = l->t;
    short byte[TOKENIZER_DIRECT]; /* the byte that a character stands for, or -1 */
    tokenizer_buffer buffer[2];
    int ok = add_parts(l, steps, decoder, "decoders", add_decoder) && check_decoder(l, steps);
    memset(buffer, 0, sizeof buffer);
    memset(byte, -1, sizeof byte);
    for (int b = 0; b < 256; b++) byte[tokenizer_byte_character(b)] = (short)b;
    t->joined_by_space = !decoder;
    if (ok && steps->count && steps->step[0].kind == STEP_METASPACE) {
        tokenizer_step *step = &steps->step[0];
        step->literal = step->content, step->content = keep(l, " ", 1); /* the other way round than in encoding */
        if (step->scheme != PREPEND_never) t->metaspace = step->literal;
        ok = step->content.p != NULL;
    }
    for (int i = 0; ok && i < t->vocabulary; i++)
        if (t->token[i].spelling.p) ok = decode_token(l, steps, byte, &t->token[i], buffer);
    free(buffer[0].p), free(buffer[1].p);
    return ok;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static void free_steps(tokenizer_steps *steps) {
    for (int i = 0; i < steps->count; i++) pcre2_code_free(steps->step[i].regex);
}
static int load(loader *l, const json *root, int is_gguf) {
    tokenizer *t = l->t;
    tokenizer_steps decoder, none;
    decoder.count = none.count = 0;
    if (!is_kind(root, JSON_object)) return fail(l, "should be an object");
    const int ok = tokenizer_load_model(l, root) &&
                   add_parts(l, &t->normalizer, member(root, "normalizer"), "normalizers", add_normalizer) &&
                   add_parts(l, &t->pre_tokenizer, member(root, "pre_tokenizer"), "pretokenizers", add_pre_tokenizer) &&
                   load_added(l, member(root, "added_tokens")) &&
                   add_parts(l, &none, member(root, "post_processor"), "processors", add_post_processor) &&
                   load_decoder(l, &decoder, member(root, "decoder")) && load_eos(l, is_gguf ? member(root, "eos_token_id") : 0) &&
                   (!is_gguf || !member(root, "chat_template") || get_text(l, root, "chat_template", &t->chat_template));
    free_steps(&decoder);
    return ok;
}

tokenizer *tokenizer_open(const char *path, char error[256]) {
    tokenizer *t = (tokenizer *)calloc(1, sizeof *t);
    loader l = {t, path, error};
    *error = 0;
    if (!t) {
        (void)no_memory(&l);
        return NULL;
    }
    json_file file;
    const int ok = open_json(&l, &file, 0) && load(&l, file.document.root, file.is_gguf);
    close_json(&file);
    if (ok) return t;
    tokenizer_close(t);
    return NULL;
}
void tokenizer_close(tokenizer *t) {
    if (!t) return;
    for (struct tokenizer_block *b = t->block, *next; b; b = next) next = b->next, free(b);
    free_steps(&t->normalizer), free_steps(&t->pre_tokenizer);
    free(t->token), free(t->slot), free(t->merge), free(t->exact.token), free(t->normalized.token);
    free(t->before.id), free(t->behind.id), free(t->eos.id), free(t);
}
