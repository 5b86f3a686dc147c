/* tokenizer_gguf.c -- the tokenizer in the metadata of a GGUF file, written as the tokenizer.json that means the same,
 * which tokenizer_file.c reads.
 *
 * Two of llama.cpp's models are supported (tokenizer.ggml.model): "gpt2", byte-level BPE with merges, whose
 * pre-tokenizer has a name (tokenizer.ggml.pre), and "llama", SentencePiece's BPE with a score for each token: of all
 * pairs of neighbours, the one that becomes the token with the highest score is merged first. In the text that is
 * written here, the member "scores" of the model says so, in the place of "merges".
 *
 * Tokens of the types control, user-defined and unknown are cut out of a text first, as added tokens are.
 */
#include <math.h>   /* isfinite */
#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* free */
#include <string.h> /* strlen */

#include "linked.h"         /* linked */
#include "te/io/gguf.h"     /* te_gguf_map */
#include "tokenizer_impl.h" /* tokenizer_buffer */

/* The pre-tokenizers: regular expressions, each of which splits the pieces that the one before it has left. */
#define WORDS "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define WORDS_OF(digits)                                                                                               \
    "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                  \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const struct {
    const char *name, *regex[2];
    int add_bos, ignore_merges; /* add_bos: if the file does not say */
} pre_tokenizers[] = {
    {"gpt-2", {WORDS, NULL}, 0, 0},
    {"smollm", {"\\p{N}", WORDS}, 0, 0},
    {"llama-bpe", {WORDS_OF("\\p{N}{1,3}"), NULL}, 1, 1},
    {"llama3", {WORDS_OF("\\p{N}{1,3}"), NULL}, 1, 1},
    {"llama-v3", {WORDS_OF("\\p{N}{1,3}"), NULL}, 1, 1},
    {"qwen2", {WORDS_OF("\\p{N}"), NULL}, 0, 0},
    {"deepseek-r1-qwen", {WORDS_OF("\\p{N}"), NULL}, 0, 0},
};
enum { TOKEN_unknown = 2, TOKEN_control, TOKEN_user_defined }; /* tokenizer.ggml.token_type */

typedef struct writer {
    te_gguf file;
    te_context ctx; /* only for texts of errors */
    tokenizer_buffer *to;
    te_status status;
} writer;

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void put_bytes(writer *w, const char *p, size_t n) {
    if (w->status == TE_OK && !tokenizer_append(w->to, p, n))
        w->status = te_fail(&w->ctx, TE_ERROR_MEMORY, "no memory");
}
static void put(writer *w, const char *s) { put_bytes(w, s, strlen(s)); }
static void put_number(writer *w, double x) {
    char text[40];
    snprintf(text, sizeof text, "%.17g", x);
    put(w, text);
}
static void put_string(writer *w, te_gguf_text s) {
    char code[8];
    put(w, "\"");
    for (size_t at = 0; at < s.n && w->status == TE_OK;) {
        int state;
        const int n = tokenizer_utf8(s.p + at, s.n - at, &state);
        const unsigned char c = (unsigned char)s.p[at];
        if (state != 1) {
            w->status = te_fail(&w->ctx, TE_ERROR_FORMAT, "%.120s: a string of the tokenizer is not UTF-8: \"%.*s\"",
                                w->file.path, te__gguf_shown(s), s.p);
            return;
        }
        if (c < 0x20 || c == '"' || c == '\\') snprintf(code, sizeof code, "\\u%04x", (unsigned)c), put(w, code);
        else put_bytes(w, s.p + at, (size_t)n);
        at += (size_t)n;
    }
    put(w, "\"");
}
static void put_text(writer *w, const char *s) {
    const te_gguf_text text = {s, strlen(s)};
    put_string(w, text);
}

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

/* Returns 0 and leaves w->status as it is if there is no such key. */
static int has(const writer *w, const char *key) { return te_gguf_key(&w->file, key) != NULL; }
static void get_array(writer *w, te_gguf_value *out, const char *key, te_gguf_kind element) {
    memset(out, 0, sizeof *out);
    if (w->status == TE_OK) w->status = te_gguf_get_array(out, &w->file, key, element, &w->ctx);
}
static int get_bool(writer *w, const char *key, int otherwise) {
    int value = otherwise;
    if (has(w, key) && w->status == TE_OK) w->status = te_gguf_get_bool(&value, &w->file, key, &w->ctx);
    return value;
}
static int is_text(te_gguf_text s, const char *text) { return s.n == strlen(text) && !memcmp(s.p, text, s.n); }

/* ---- the parts of a tokenizer.json ------------------------------------------------------------------------------- */

static void put_vocabulary(writer *w, te_gguf_value tokens) {
    te_gguf_value token;
    te_gguf_text text;
    put(w, "\"vocab\":{");
    for (int id = 0; w->status == TE_OK && te_gguf_next(&token, &tokens); id++) {
        (void)te_gguf_string_of(&token, &text);
        if (id) put(w, ",");
        put_string(w, text), put(w, ":"), put_number(w, id);
    }
    put(w, "}");
}
static void put_merges(writer *w) {
    te_gguf_value merges, merge;
    te_gguf_text text;
    get_array(w, &merges, "tokenizer.ggml.merges", TE_GGUF_string);
    put(w, ",\"merges\":[");
    for (int i = 0; w->status == TE_OK && te_gguf_next(&merge, &merges); i++) {
        (void)te_gguf_string_of(&merge, &text);
        put(w, i ? "," : ""), put_string(w, text);
    }
    put(w, "]");
}
static void put_scores(writer *w, te_gguf_value tokens) {
    te_gguf_value scores, score;
    double x = 0;
    get_array(w, &scores, "tokenizer.ggml.scores", TE_GGUF_float32);
    if (w->status == TE_OK && scores.count != tokens.count)
        w->status = te_fail(&w->ctx, TE_ERROR_FORMAT, "%.120s: %llu scores for %llu tokens", w->file.path,
                            (unsigned long long)scores.count, (unsigned long long)tokens.count);
    put(w, ",\"scores\":[");
    for (int i = 0; w->status == TE_OK && te_gguf_next(&score, &scores); i++) {
        (void)te_gguf_real_of(&score, &x);
        if (!isfinite(x))
            w->status = te_fail(&w->ctx, TE_ERROR_FORMAT, "%.120s: the score of token %d is not finite", w->file.path,
                                i);
        put(w, i ? "," : ""), put_number(w, x);
    }
    put(w, "]");
}
static void put_added(writer *w, te_gguf_value tokens) {
    te_gguf_value types, type, token;
    te_gguf_text text;
    int64_t kind = 0;
    int count = 0;
    put(w, ",\"added_tokens\":[");
    if (has(w, "tokenizer.ggml.token_type")) {
        get_array(w, &types, "tokenizer.ggml.token_type", TE_GGUF_int32);
        if (w->status == TE_OK && types.count != tokens.count)
            w->status = te_fail(&w->ctx, TE_ERROR_FORMAT, "%.120s: %llu types for %llu tokens", w->file.path,
                                (unsigned long long)types.count, (unsigned long long)tokens.count);
        for (int id = 0; w->status == TE_OK && te_gguf_next(&token, &tokens) && te_gguf_next(&type, &types); id++) {
            (void)te_gguf_integer_of(&type, &kind), (void)te_gguf_string_of(&token, &text);
            if (kind < TOKEN_unknown || kind > TOKEN_user_defined) continue;
            put(w, count++ ? ",{\"content\":" : "{\"content\":"), put_string(w, text);
            put(w, ",\"id\":"), put_number(w, id), put(w, ",\"normalized\":false,\"special\":");
            put(w, kind == TOKEN_user_defined ? "false}" : "true}");
        }
    }
    put(w, "]");
}
/* A token whose id a key says, as a piece of a template. Returns whether it is added. */
static int put_special(writer *w, const char *add, int otherwise, const char *name) {
    if (!get_bool(w, add, otherwise)) return 0;
    put(w, "{\"SpecialToken\":{\"id\":"), put_text(w, name), put(w, "}}");
    return 1;
}
static void put_post_processor(writer *w, int add_bos) {
    static const char *const names[] = {"bos", "eos"};
    char key[48];
    put(w, ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[");
    if (put_special(w, "tokenizer.ggml.add_bos_token", add_bos, "bos")) put(w, ",");
    put(w, "{\"Sequence\":{\"id\":\"A\"}}");
    if (get_bool(w, "tokenizer.ggml.add_eos_token", 0)) put(w, ",");
    (void)put_special(w, "tokenizer.ggml.add_eos_token", 0, "eos");
    put(w, "],\"special_tokens\":{");
    for (int i = 0, count = 0; i < 2; i++) {
        int64_t id = 0;
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", names[i]);
        if (w->status != TE_OK || !has(w, key)) continue;
        w->status = te_gguf_get_integer(&id, &w->file, key, &w->ctx);
        put(w, count++ ? "," : ""), put_text(w, names[i]), put(w, ":{\"ids\":["), put_number(w, (double)id);
        put(w, "]}");
    }
    put(w, "}}");
}
/* The tokens that end a text, and the template of a chat. */
static void put_ends(writer *w) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"};
    te_gguf_text text;
    int count = 0;
    put(w, ",\"eos_token_id\":[");
    for (int i = 0; i < 2; i++) {
        int64_t id = 0;
        if (w->status != TE_OK || !has(w, keys[i])) continue;
        w->status = te_gguf_get_integer(&id, &w->file, keys[i], &w->ctx);
        put(w, count++ ? "," : ""), put_number(w, (double)id);
    }
    put(w, "]");
    if (w->status != TE_OK || !has(w, "tokenizer.chat_template")) return;
    w->status = te_gguf_get_string(&text, &w->file, "tokenizer.chat_template", &w->ctx);
    if (w->status == TE_OK) put(w, ",\"chat_template\":"), put_string(w, text);
}

static void put_gpt2(writer *w, te_gguf_value tokens) {
    te_gguf_text pre = {"", 0};
    size_t k = 0, count = sizeof pre_tokenizers / sizeof *pre_tokenizers;
    w->status = te_gguf_get_string(&pre, &w->file, "tokenizer.ggml.pre", &w->ctx);
    while (w->status == TE_OK && k < count && !is_text(pre, pre_tokenizers[k].name)) k++;
    if (w->status == TE_OK && k == count)
        w->status = te_fail(&w->ctx, TE_ERROR_FORMAT, "%.120s: tokenizer.ggml.pre is \"%.*s\", which is not supported",
                            w->file.path, te__gguf_shown(pre), pre.p);
    if (w->status != TE_OK) return;
    put(w, "{\"model\":{\"type\":\"BPE\",\"ignore_merges\":");
    put(w, pre_tokenizers[k].ignore_merges ? "true," : "false,"), put_vocabulary(w, tokens), put_merges(w);
    put(w, "},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (int i = 0; i < 2 && pre_tokenizers[k].regex[i]; i++) {
        put(w, "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"invert\":false,\"pattern\":{\"Regex\":");
        put_text(w, pre_tokenizers[k].regex[i]), put(w, "}},");
    }
    put(w, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}");
    put(w, ",\"decoder\":{\"type\":\"ByteLevel\"}");
    put_added(w, tokens), put_post_processor(w, pre_tokenizers[k].add_bos), put_ends(w);
    put(w, "}");
}
static void put_llama(writer *w, te_gguf_value tokens) {
    static const char sign[] = "\xe2\x96\x81"; /* U+2581, which stands for a space in the tokens */
    const int prefix = get_bool(w, "tokenizer.ggml.add_space_prefix", 1);
    te_gguf_value token;
    te_gguf_text text;
    int64_t unk = 0;
    if (w->status == TE_OK && get_bool(w, "tokenizer.ggml.remove_extra_whitespaces", 0))
        w->status = te_fail(&w->ctx, TE_ERROR_FORMAT,
                            "%.120s: tokenizer.ggml.remove_extra_whitespaces is not supported", w->file.path);
    put(w, "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"fuse_unk\":false,");
    if (has(w, "tokenizer.ggml.unknown_token_id") && w->status == TE_OK) {
        te_gguf_value rest = tokens;
        w->status = te_gguf_get_integer(&unk, &w->file, "tokenizer.ggml.unknown_token_id", &w->ctx);
        for (int64_t i = 0; w->status == TE_OK && te_gguf_next(&token, &rest); i++) {
            if (i != unk) continue;
            (void)te_gguf_string_of(&token, &text);
            put(w, "\"unk_token\":"), put_string(w, text), put(w, ",");
        }
    }
    put_vocabulary(w, tokens), put_scores(w, tokens);
    put(w, "},\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    if (prefix) put(w, "{\"type\":\"Prepend\",\"prepend\":\""), put(w, sign), put(w, "\"},");
    put(w, "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\""), put(w, sign), put(w, "\"}]}");
    put(w, ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"");
    put(w, sign), put(w, "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
    if (prefix) put(w, ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}");
    put(w, "]}"), put_added(w, tokens), put_post_processor(w, 1), put_ends(w);
    put(w, "}");
}

int tokenizer_gguf_json(const char *path, tokenizer_buffer *to, char error[256]) {
    writer w;
    te_gguf_text model = {"", 0};
    te_gguf_value tokens;
    memset(&w, 0, sizeof w);
    w.to = to;
    const linked_file *in = linked(path);
    w.status = in ? te_gguf_open_memory(&w.file, in->bytes, linked_size(in), &w.ctx) : te_gguf_map(&w.file, path, &w.ctx);
    if (w.status == TE_OK) w.status = te_gguf_get_string(&model, &w.file, "tokenizer.ggml.model", &w.ctx);
    get_array(&w, &tokens, "tokenizer.ggml.tokens", TE_GGUF_string);
    if (w.status == TE_OK && is_text(model, "gpt2")) put_gpt2(&w, tokens);
    else if (w.status == TE_OK && is_text(model, "llama")) put_llama(&w, tokens);
    else if (w.status == TE_OK)
        w.status = te_fail(&w.ctx, TE_ERROR_FORMAT,
                           "%.120s: tokenizer.ggml.model is \"%.*s\"; supported are gpt2 and llama", path, te__gguf_shown(model), model.p);
    if (w.status != TE_OK) snprintf(error, 256, "%.255s", w.ctx.error);
    te_gguf_close(&w.file);
    return w.status == TE_OK;
}
