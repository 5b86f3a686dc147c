/* tokenizer_driver.c -- examples/generate/tokenizer.h for tests/tokenizer.py.
 *
 *     tokenizer_driver FILE                   answers requests from the standard input, see answer()
 *     tokenizer_driver --open FILE...         opens and closes each; prints "ok" or the error
 *     tokenizer_driver --time FILE TEXT       prints seconds to load, to encode and to decode, and the number of tokens
 *     tokenizer_driver --ids FILE TEXT        prints the ids of each line of TEXT, where \n and \\ are escapes
 *     tokenizer_driver --chat FILE FORMAT FIRST END
 *                                             the fixed messages from FIRST to before END as text; FORMAT may be ""
 */
#include <stdio.h>  /* fread */
#include <stdlib.h> /* malloc */
#include <string.h> /* strcmp */
#include <time.h>   /* timespec_get */

#include "../examples/generate/chat.h"      /* chat_text */
#include "../examples/generate/tokenizer.h" /* tokenizer */

static void die(const char *why) {
    fprintf(stderr, "%s\n", why);
    exit(1);
}
static void *memory(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (!p) die("no memory");
    return p;
}
static int get(void *p, size_t bytes) { return fread(p, 1, bytes, stdin) == bytes; }
static void put(const void *p, size_t bytes) {
    if (bytes && fwrite(p, 1, bytes, stdout) != bytes) die("cannot write");
}
static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The text of ids as a stream. bytes: how many each id brought, and at last the end. Returns the sum. */
static size_t decode(const tokenizer *t, const int32_t *ids, int count, int skip_special, char **text, int32_t *bytes) {
    const size_t capacity = tokenizer_decode_capacity(t);
    size_t n = 0, size = 2 * capacity;
    tokenizer_stream stream;
    *text = (char *)memory(size);
    tokenizer_decode_begin(&stream, t, skip_special);
    for (int i = 0; i <= count; i++) {
        if (n + capacity > size && !(*text = (char *)realloc(*text, size *= 2))) die("no memory");
        /* Memory of exactly the promised capacity: a sanitizer sees what is written behind it. */
        char *piece = (char *)memory(capacity);
        const size_t part =
            i < count ? tokenizer_decode_next(&stream, ids[i], piece) : tokenizer_decode_end(&stream, piece);
        memcpy(*text + n, piece, part), n += part;
        free(piece);
        if (bytes) bytes[i] = (int32_t)part;
    }
    return n;
}

/* A request is a letter, a count (int32) and that many bytes or ids. E, e: encode with and without special tokens; the
 * answer is a count and ids. D, d: decode without and with special tokens; the bytes of each id and of the end, and the
 * text. T: the id of a token. S: the tokens that end a text, with a count in front. */
static int answer(const tokenizer *t) {
    char kind;
    int32_t n, reply;
    if (!get(&kind, 1) || !get(&n, sizeof n)) return 0;
    const size_t size = strchr("Dd", kind) ? sizeof(int32_t) : 1;
    char *in = (char *)memory((size_t)n * size + 1), *text;
    if (!get(in, (size_t)n * size)) die("a request is cut short");
    in[(size_t)n * size] = 0;
    if (kind == 'E' || kind == 'e') {
        /* Twice: first the count alone, as of a program that allocates afterwards. */
        reply = tokenizer_encode(t, in, (size_t)n, kind == 'E', NULL, 0);
        int32_t *ids = (int32_t *)memory((size_t)(reply > 0 ? reply : 0) * sizeof *ids);
        const int second = tokenizer_encode(t, in, (size_t)n, kind == 'E', ids, reply);
        if (second != reply) die("another count at the second call");
        put(&reply, sizeof reply);
        if (reply > 0) put(ids, (size_t)reply * sizeof *ids);
        free(ids);
    } else if (kind == 'D' || kind == 'd') {
        int32_t *bytes = (int32_t *)memory(((size_t)n + 1) * sizeof *bytes);
        const size_t sum = decode(t, (const int32_t *)(void *)in, n, kind == 'D', &text, bytes);
        put(bytes, ((size_t)n + 1) * sizeof *bytes), put(text, sum);
        free(bytes), free(text);
    } else if (kind == 'T') {
        reply = tokenizer_token_id(t, in);
        put(&reply, sizeof reply);
    } else {
        int32_t ids[16];
        reply = tokenizer_eos(t, ids, 16);
        put(&reply, sizeof reply), put(ids, (size_t)reply * sizeof *ids);
    }
    free(in);
    return 1;
}

static void time_it(const char *file, const char *path) {
    char error[256];
    const double start = seconds();
    tokenizer *t = tokenizer_open(file, error);
    if (!t) die(error);
    const double opened = seconds();
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) die("no text");
    const long size = ftell(f);
    char *text = (char *)memory((size_t)size), *back;
    rewind(f);
    if (fread(text, 1, (size_t)size, f) != (size_t)size) die("cannot read the text");
    fclose(f);
    const int capacity = (int)size + 16; /* no byte becomes two tokens */
    int32_t *ids = (int32_t *)memory((size_t)capacity * sizeof *ids);
    const double begin = seconds();
    const int n = tokenizer_encode(t, text, (size_t)size, 0, ids, capacity);
    const double encoded = seconds();
    if (n < 0 || n > capacity) die("cannot encode");
    (void)decode(t, ids, n, 0, &back, NULL);
    printf("%.3f %.4f %.4f %d\n", opened - start, encoded - begin, seconds() - encoded, n);
    free(text), free(ids), free(back);
    tokenizer_close(t);
}

static void print_ids(const char *file, const char *path) {
    enum { MAX_LINE = 1 << 20 };
    char error[256], *line = (char *)memory(MAX_LINE);
    int32_t *ids = (int32_t *)memory(MAX_LINE * sizeof *ids);
    tokenizer *t = tokenizer_open(file, error);
    FILE *f = fopen(path, "rb");
    if (!t) die(error);
    if (!f) die("no text");
    for (int c = getc(f); c != EOF; c = getc(f)) {
        size_t n = 0;
        for (; c != EOF && c != '\n' && n < MAX_LINE; c = getc(f)) {
            if (c == '\\') c = getc(f) == 'n' ? '\n' : '\\';
            line[n++] = (char)c;
        }
        const int count = tokenizer_encode(t, line, n, 1, ids, MAX_LINE);
        for (int i = 0; i < count; i++) printf(i ? " %d" : "%d", (int)ids[i]);
        printf("\n");
    }
    fclose(f), free(line), free(ids);
    tokenizer_close(t);
}

static void chat(const char *file, const char *name, int first, int end) {
    static const chat_message messages[] = {{"system", "Be brief."}, {"user", "Hello!\n"}, {"assistant", "Hi."},
                                            {"user", "How are you?"}, {"tool", "-"}, {"system", "-"}};
    char error[256];
    tokenizer *t = tokenizer_open(file, error);
    if (!t) die(error);
    const chat_format format = *name ? chat_format_named(name) : chat_format_of(t);
    if (format == CHAT_none) die("no such format");
    const size_t n = chat_text(format, messages + first, end - first, 1, NULL, 0);
    char *text = (char *)memory(n + 1);
    if (chat_text(format, messages + first, end - first, 1, text, n + 1) != n) die("another length at the second call");
    printf("%s\n%s", chat_format_name(format), n ? text : "refused");
    free(text);
    tokenizer_close(t);
}

int main(int argc, char **argv) {
    char error[256];
    if (argc == 4 && !strcmp(argv[1], "--time")) return time_it(argv[2], argv[3]), 0;
    if (argc == 4 && !strcmp(argv[1], "--ids")) return print_ids(argv[2], argv[3]), 0;
    if (argc == 6 && !strcmp(argv[1], "--chat")) return chat(argv[2], argv[3], atoi(argv[4]), atoi(argv[5])), 0;
    const int opens = argc > 2 && !strcmp(argv[1], "--open");
    for (int i = 2; opens && i < argc; i++) {
        tokenizer *t = tokenizer_open(argv[i], error);
        printf("%s\n", t ? "ok" : error);
        tokenizer_close(t);
    }
    if (opens) return 0;
    if (argc != 2) die("usage: see the source");
    tokenizer *t = tokenizer_open(argv[1], error);
    if (!t) die(error);
    while (answer(t)) {}
    tokenizer_close(t);
    return 0;
}
