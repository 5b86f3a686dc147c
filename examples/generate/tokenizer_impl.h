/* tokenizer_impl.h -- what tokenizer_file.c reads from tokenizer.json, or from what tokenizer_gguf.c writes in its
 * place, and tokenizer.c works with. Not for users. */
#ifndef TOKENIZER_IMPL_H
#define TOKENIZER_IMPL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h> /* pcre2_code */

#include "tokenizer.h" /* the interface */

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of UTF-8 unless a comment says otherwise; no closing NUL is counted. */
typedef struct tokenizer_text { const char *p; size_t n; } tokenizer_text;

/* Memory that grows. */
typedef struct tokenizer_buffer { char *p; size_t n, capacity; } tokenizer_buffer;

/* An entry of the vocabulary's hash table; p is null in an empty one. */
typedef struct tokenizer_slot { const char *p; uint32_t n, hash; int32_t id; } tokenizer_slot;
/* An entry of the table of merges: two ids, the left one in the upper half; rank is UINT32_MAX in an empty one. */
typedef struct tokenizer_merge { uint64_t pair; uint32_t rank; int32_t id; } tokenizer_merge;

typedef struct tokenizer_added {
    tokenizer_text name;    /* as the file spells it */
    tokenizer_text content; /* what is searched for: normalized if the token is */
    int32_t id;
    int special, single_word, lstrip, rstrip;
} tokenizer_added;
/* Added tokens, sorted by their bytes. Those that begin with byte b are token[first[b]] to token[first[b + 1] - 1]. */
typedef struct tokenizer_added_set { tokenizer_added *token; int count, first[257]; } tokenizer_added_set;

/* A step of a normalizer, a pre-tokenizer or a decoder. */
typedef enum tokenizer_step_kind {
    STEP_REPLACE,       /* each match of the pattern by content */
    STEP_PREPEND,       /* content in front of a text that is not empty */
    STEP_UTF8PROC,      /* to a normal form of Unicode, by utf8proc's options */
    STEP_LOWERCASE,
    STEP_CLEAN,         /* BERT's: CLEAN_ flags in `options` */
    STEP_SPLIT,         /* at the matches of the pattern */
    STEP_SPACE_FIRST,   /* a space in front, unless there is one */
    STEP_BYTES,         /* byte-level: each byte as a printable character, and back */
    STEP_METASPACE,     /* spaces as content (U+2581), one of it in front, and back */
    STEP_BYTE_FALLBACK, /* the tokens <0x00> to <0xFF> are bytes */
    STEP_FUSE,          /* the steps behind it see the whole text */
    STEP_STRIP,         /* up to `start` contents at the start, and `stop` at the end */
    STEP_WORDPIECE      /* a space in front of tokens, but of those that begin with content only the rest */
} tokenizer_step_kind;

/* control characters dropped, and other spaces as U+0020; spaces around ideographs */
enum { CLEAN_TEXT = 1, CLEAN_IDEOGRAPHS = 2 };

/* What happens to the matches that a text is split at. */
#define TOKENIZER_BEHAVIORS(X) X(Removed) X(Isolated) X(MergedWithPrevious) X(MergedWithNext) X(Contiguous)
#define TOKENIZER_BEHAVIOR_ENUM(name) SPLIT_##name,
typedef enum tokenizer_behavior { TOKENIZER_BEHAVIORS(TOKENIZER_BEHAVIOR_ENUM) SPLIT_COUNT } tokenizer_behavior;

typedef enum tokenizer_scheme { PREPEND_always, PREPEND_first, PREPEND_never } tokenizer_scheme;

typedef struct tokenizer_step {
    tokenizer_step_kind kind;
    pcre2_code *regex;      /* the pattern; null: it is `literal` */
    tokenizer_text literal;
    tokenizer_text content;
    tokenizer_behavior behavior;
    tokenizer_scheme scheme; /* of STEP_METASPACE */
    int invert;              /* of STEP_SPLIT: what lies between the matches is the match */
    int options;             /* of STEP_UTF8PROC and STEP_CLEAN; of STEP_WORDPIECE: whether to clean up */
    int start, stop;         /* of STEP_STRIP */
} tokenizer_step;

enum { TOKENIZER_MAX_STEPS = 32 };
typedef struct tokenizer_steps { tokenizer_step step[TOKENIZER_MAX_STEPS]; int count; } tokenizer_steps;

typedef struct tokenizer_ids { int32_t *id; int count; } tokenizer_ids;

typedef struct tokenizer_token {
    tokenizer_text spelling; /* what the decoder reads; p is null where no token has this id */
    tokenizer_text decoded;  /* bytes, not always whole characters */
    int special;
} tokenizer_token;

enum { TOKENIZER_DIRECT = 512 }; /* characters below it, which include all of byte-level BPE, need no hash table */

struct tokenizer {
    struct tokenizer_block *block; /* memory of all strings */

    tokenizer_token *token; /* [vocabulary] */
    int vocabulary;
    tokenizer_slot *slot; /* [slot_mask + 1] */
    uint32_t slot_mask;
    tokenizer_merge *merge; /* [merge_mask + 1] */
    uint32_t merge_mask;
    int32_t direct[TOKENIZER_DIRECT]; /* the token that is this character, or -1 */
    int32_t byte[256];                /* the token <0xHH> */
    int byte_fallback, ignore_merges, fuse_unk;
    tokenizer_text continues; /* of WordPiece, "##": begins tokens that are not the first of a word. p is null in BPE */
    int max_word;             /* of WordPiece: longer words become `unk` */
    int32_t unk; /* -1: none, TOKENIZER_NO_TOKEN: the file names one that the vocabulary lacks */

    tokenizer_added_set exact, normalized; /* searched for before and after the normalizer */
    tokenizer_steps normalizer, pre_tokenizer;
    tokenizer_ids before, behind; /* the post_processor's */

    /* The decoder. Its steps up to STEP_FUSE are in token[].decoded already. */
    tokenizer_text metaspace; /* p is not null: dropped from the first token */
    tokenizer_text strip;     /* after STEP_FUSE */
    int strip_left;           /* how many of it */
    int joined_by_space;      /* a file without a decoder */
    int first_is_spelling;    /* WordPiece: the first token is written as it is spelled */
    int lossy_by_byte;        /* U+FFFD for each wrong byte */
    size_t longest;           /* bytes of the longest decoded token */

    tokenizer_ids eos;
    tokenizer_text chat_template; /* of a GGUF file; p is null if there is none */
};

/* ---- tokenizer.c ---- */

uint32_t tokenizer_hash(const char *p, size_t n);
int32_t tokenizer_find(const tokenizer *t, const char *p, size_t n); /* an id, or -1 */
const tokenizer_merge *tokenizer_find_merge(const tokenizer *t, int32_t left, int32_t right);
/* Apply the normalizer; *out points to `text` or into a or b. 0 or an error. */
int tokenizer_normalize(const tokenizer *t, tokenizer_text text, tokenizer_buffer *a, tokenizer_buffer *b,
                        tokenizer_text *out);
/* Append `text` with all matches of the step's pattern replaced by its content. 0 or an error. */
int tokenizer_replace(const tokenizer_step *step, tokenizer_text text, tokenizer_buffer *to);
/* Append to a buffer, which then has one byte more that is not counted: 0 where there is no memory. */
int tokenizer_append(tokenizer_buffer *b, const char *p, size_t n);
/* Bytes of the character at p, of n > 0 bytes. *state: 1, it is UTF-8; 0, these bytes are a maximal part of a character
 * and the next one is wrong; -1, all n bytes begin a character. */
int tokenizer_utf8(const char *p, size_t n, int *state);
int tokenizer_put_utf8(char to[4], uint32_t c); /* returns bytes */
uint32_t tokenizer_get_utf8(const char *p);     /* of valid UTF-8 */
int tokenizer_utf8_bytes(const char *p);        /* of valid UTF-8, by its first byte */
/* The character that byte-level BPE writes for a byte. */
uint32_t tokenizer_byte_character(int byte);

/* ---- tokenizer_json.c ---- */

typedef enum tokenizer_json_kind {
    JSON_null, JSON_false, JSON_true, JSON_number, JSON_string, JSON_array, JSON_object
} tokenizer_json_kind;
typedef struct tokenizer_json {
    tokenizer_json_kind kind;
    struct tokenizer_json *next;  /* member of the same array or object */
    struct tokenizer_json *child; /* the first member of this one */
    tokenizer_text key;           /* of a member of an object; ends with NUL, as text */
    tokenizer_text text;          /* of a string */
    double number;                /* of a number */
} tokenizer_json;
typedef struct tokenizer_json_document {
    tokenizer_json *root;
    struct tokenizer_json_block *block;
} tokenizer_json_document;

/* Parse a text of n bytes of UTF-8 and a NUL behind them. It is overwritten, and has to live as long as the document.
 * Returns 0 where there is no memory or the text is not JSON from byte *at on. tokenizer_json_free in any case. */
int tokenizer_json_parse(tokenizer_json_document *document, char *text, size_t n, size_t *at);
void tokenizer_json_free(tokenizer_json_document *document);

/* ---- tokenizer_gguf.c ---- */

/* Append the tokenizer of a GGUF file to a buffer, as the text of a tokenizer.json. 0 after an error. */
int tokenizer_gguf_json(const char *path, tokenizer_buffer *to, char error[256]);

/* ---- tokenizer_regex.c ---- */

/* Compile a pattern of Oniguruma's syntax, as `tokenizers` does. Null after an error, which `error` has the text of. */
pcre2_code *tokenizer_regex(tokenizer_text pattern, char error[160]);
/* The inside of a class, \w: Unicode's Alphabetic, marks, decimal digits and connectors. The ranges are symbols that
 * are alphabetic. \w of Rust has U+200C and U+200D, too. */
#define TOKENIZER_WORD               \
    "\\p{L}\\p{M}\\p{Nl}\\p{Nd}\\p{Pc}" \
    "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"

#ifdef __cplusplus
}
#endif
#endif
