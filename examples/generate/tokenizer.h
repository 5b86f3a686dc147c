/* tokenizer.h -- text to token ids and back, from the tokenizer.json of a Hugging Face model or the metadata of a GGUF
 * file: byte-level BPE (GPT-2, Llama 3, Qwen), SentencePiece's BPE with byte fallback (Gemma, Mistral, Llama 2) and
 * WordPiece (BERT). The ids are those of the package `tokenizers` and, of a GGUF file, those of llama.cpp. (For BERT
 * `tokenizers` takes no character that is newer than Unicode 8 for a mark or for punctuation; this code does.)
 *
 * Do this:
 *     char error[256];
 *     tokenizer *t = tokenizer_open("model/tokenizer.json", error);       // null: error says why, and names the file
 *     int n = tokenizer_encode(t, text, strlen(text), 1, ids, capacity);  // n > capacity: that many ids are needed
 *
 *     tokenizer_stream stream;
 *     tokenizer_decode_begin(&stream, t, 1);                              // 1: without special tokens
 *     char *piece = malloc(tokenizer_decode_capacity(t));
 *     for (int i = 0; i < n; i++) fwrite(piece, 1, tokenizer_decode_next(&stream, ids[i], piece), stdout);
 *     fwrite(piece, 1, tokenizer_decode_end(&stream, piece), stdout);
 *     tokenizer_close(t);
 *
 * Build: tokenizer.c and tokenizer_*.c, by a C11 or C++17 compiler, with PCRE2 and utf8proc, also as -static:
 * `pkg-config --cflags --libs libpcre2-8 libutf8proc` (Debian: libpcre2-dev, libutf8proc-dev).
 *
 * A tokenizer does not change once it is open: threads may share it. A part of tokenizer.json that this code does not
 * know is refused by its name, so that no other ids come out. `truncation` and `padding` of the file are ignored.
 */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include <stddef.h> /* size_t */
#include <stdint.h> /* int32_t */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tokenizer tokenizer;

/* Read a tokenizer.json or a GGUF file. Null after an error. The folder's generation_config.json, where there is one,
 * says which tokens end a text (tokenizer_eos); a GGUF file says so itself. */
tokenizer *tokenizer_open(const char *path, char error[256]);
void tokenizer_close(tokenizer *t); /* null is fine */

enum {
    TOKENIZER_NO_MEMORY = -1, /* or a text of more than 2^28 bytes */
    TOKENIZER_NO_TOKEN = -2,  /* a character has no token, and the file's vocabulary lacks its own unk_token */
    TOKENIZER_NO_MATCH = -3   /* a pattern of the file needs too many steps for this text (PCRE2's limit) */
};
/* The ids of a text of `bytes` bytes; with add_special also those that the file's post_processor puts around it (bos,
 * eos). Returns their number, of which the first `capacity` are in ids, or one of the errors above. Special tokens
 * that the text spells out become these tokens. Bytes that are not UTF-8 are read as U+FFFD, one for each maximal part
 * of a character (what Python's errors="replace" does). */
int tokenizer_encode(const tokenizer *t, const char *text, size_t bytes, int add_special, int32_t *ids, int capacity);

/* Decoding as a stream: each call writes the text that is complete, and holds back up to three bytes of a character
 * whose other bytes are in tokens to come. Bytes that become no character are written as U+FFFD: in byte-level BPE one
 * for each maximal part of a character, after byte fallback one for each byte. (`tokenizers` turns a whole run of byte
 * tokens into U+FFFD if one of them is wrong. A stream cannot: it has written those before it.) */
typedef struct tokenizer_stream {
    const tokenizer *t;
    int skip_special;
    int tokens;     /* so far */
    int strip_left; /* characters that may still be stripped from the start of the text */
    int held;       /* bytes in hold */
    char hold[4];
} tokenizer_stream;

size_t tokenizer_decode_capacity(const tokenizer *t); /* bytes that one call below writes at most */
void tokenizer_decode_begin(tokenizer_stream *s, const tokenizer *t, int skip_special);
size_t tokenizer_decode_next(tokenizer_stream *s, int32_t id, char *text); /* returns bytes; an unknown id is skipped */
size_t tokenizer_decode_end(tokenizer_stream *s, char *text);              /* what was held back, as U+FFFD */

/* The id of a token by its spelling in the file ("<|eot_id|>", "\xc4\xa0the"); -1: there is none. */
int32_t tokenizer_token_id(const tokenizer *t, const char *name);
/* The largest id plus one; a model's vocabulary may be padded beyond it. */
int tokenizer_vocabulary(const tokenizer *t);
/* The tokens that end a text: eos_token_id of generation_config.json or, without it, those special tokens of the
 * vocabulary that do so in the families above. Returns their number, of which the first `capacity` are in ids. */
int tokenizer_eos(const tokenizer *t, int32_t *ids, int capacity);
/* The chat template of a GGUF file, a program in Jinja; null if there is none. */
const char *tokenizer_chat_template(const tokenizer *t);

#ifdef __cplusplus
}
#endif
#endif
