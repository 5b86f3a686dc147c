/* chat.c -- the formats of chat.h, each as its model's chat_template has it. */
#include <string.h> /* strcmp */

#include "chat.h" /* chat_format */

#define FORMAT_ROW(name, bos, answer, end, mark) {#name, bos, answer, end, mark},
static const struct { const char *name, *bos, *answer, *end, *mark; } formats[] = {
    {"none", "", "", "", ""}, CHAT_FORMATS(FORMAT_ROW)};

chat_format chat_format_named(const char *name) {
    for (int i = 1; i < CHAT_COUNT; i++)
        if (!strcmp(name, formats[i].name)) return (chat_format)i;
    return CHAT_none;
}
/* Whether this text is one token, wherever it stands. */
static int is_token(const tokenizer *t, const char *name) {
    int32_t id = -1;
    return tokenizer_encode(t, name, strlen(name), 0, &id, 1) == 1 && id == tokenizer_token_id(t, name);
}
chat_format chat_format_of(const tokenizer *t) {
    const char *template_text = tokenizer_chat_template(t);
    if (template_text && strstr(template_text, "named SmolLM")) return CHAT_smollm; /* its default system message */
    for (int i = 1; i < CHAT_COUNT; i++) /* of two formats with the same tokens the one with more of them is first */
        if (*formats[i].mark && is_token(t, formats[i].mark) && is_token(t, formats[i].end)) return (chat_format)i;
    return CHAT_none;
}
const char *chat_format_name(chat_format format) { return formats[format].name; }
const char *chat_end_token(chat_format format) { return formats[format].end; }

/* Text with a capacity; n counts what does not fit, too. */
typedef struct output { char *text; size_t n, capacity; } output;

static void put_bytes(output *o, const char *p, size_t n) {
    for (size_t i = 0; i < n; i++, o->n++)
        if (o->n + 1 < o->capacity) o->text[o->n] = p[i];
}
static void put(output *o, const char *s) { put_bytes(o, s, strlen(s)); }
/* Without the white space at both ends, as Jinja's `trim`. */
static void put_trimmed(output *o, const char *s) {
    static const char space[] = " \t\n\r\f\v";
    size_t n;
    s += strspn(s, space), n = strlen(s);
    while (n && strchr(space, s[n - 1])) n--;
    put_bytes(o, s, n);
}

/* A message between the marks of its format. `system`: what its first user message brings with it, or null. */
static void put_message(output *o, chat_format format, const chat_message *m, const char *system) {
    const int is_user = !strcmp(m->role, "user"), is_assistant = !strcmp(m->role, "assistant");
    switch (format) {
    case CHAT_llama3:
        put(o, "<|start_header_id|>"), put(o, m->role), put(o, "<|end_header_id|>\n\n");
        put_trimmed(o, m->content), put(o, "<|eot_id|>");
        break;
    case CHAT_qwen2: case CHAT_qwen3: case CHAT_smollm:
        put(o, "<|im_start|>"), put(o, m->role), put(o, "\n"), put(o, m->content), put(o, "<|im_end|>\n");
        break;
    case CHAT_phi3:
        put(o, "<|"), put(o, m->role), put(o, "|>\n"), put(o, m->content), put(o, "<|end|>\n");
        break;
    case CHAT_gemma:
        put(o, "<start_of_turn>"), put(o, is_assistant ? "model" : m->role), put(o, "\n");
        if (system) put(o, system), put(o, "\n\n");
        put_trimmed(o, m->content), put(o, "<end_of_turn>\n");
        break;
    default: /* Mistral's */
        if (is_user) put(o, format == CHAT_mistral ? "[INST] " : " [INST] ");
        else put(o, " ");
        if (system) put(o, system), put(o, "\n\n");
        put(o, m->content);
        put(o, !is_user ? "</s>" : format == CHAT_mistral ? "[/INST]" : " [/INST]");
    }
}

size_t chat_text(chat_format format, const chat_message *messages, int count, int add_answer, char *text,
                 size_t capacity) {
    static const chat_message qwen = {"system", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."};
    static const chat_message smollm = {"system", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"};
    const chat_message *own = format == CHAT_qwen2 ? &qwen : format == CHAT_smollm ? &smollm : NULL;
    output o = {text, 0, capacity};
    const char *system = NULL; /* of formats that have no such role, until a user message has taken it */
    int last_user = -1;
    if (format <= CHAT_none || format >= CHAT_COUNT) return 0;
    put(&o, formats[format].bos);
    if (own && (!count || strcmp(messages[0].role, "system"))) put_message(&o, format, own, NULL);
    for (int i = 0; i < count; i++)
        if (!strcmp(messages[i].role, "user")) last_user = i;
    for (int i = 0; i < count; i++) {
        const chat_message *m = &messages[i];
        const int is_user = !strcmp(m->role, "user"), is_system = !strcmp(m->role, "system");
        if ((is_system && i) || (!is_user && !is_system && strcmp(m->role, "assistant"))) return 0;
        if (is_system && format >= CHAT_gemma) {
            system = m->content;
            continue;
        }
        /* Mistral's later models see it in front of the last message, the others in front of the first. */
        const int takes = is_user && (format != CHAT_mistral || i == last_user);
        put_message(&o, format, m, takes ? system : NULL);
        if (takes) system = NULL;
    }
    if (add_answer) put(&o, formats[format].answer);
    if (capacity) text[o.n < capacity ? o.n : capacity - 1] = 0;
    return o.n;
}
