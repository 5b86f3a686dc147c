/* chat.h -- a conversation as the text that a model was trained on: the chat templates of Llama 3, Qwen, SmolLM 2,
 * Phi-3, Gemma and Mistral.
 *
 * Do this:
 *     const chat_message messages[] = {{"system", "Be brief."}, {"user", "Hello!"}};
 *     chat_format format = chat_format_of(t);                         // or chat_format_named("llama3")
 *     size_t n = chat_text(format, messages, 2, 1, text, capacity);   // n >= capacity: n + 1 bytes are needed
 *     int count = tokenizer_encode(t, text, n, 0, ids, capacity);     // 0: the text has its bos already
 *
 * The model's answer ends with chat_end_token(format) or a token of tokenizer_eos. A message that spells out a special
 * token becomes that token: a program that takes messages from strangers has to look for them first.
 *
 * What depends on the day or on tools is left out: Llama 3.1's "Today Date", definitions and calls of functions.
 */
#ifndef CHAT_H
#define CHAT_H

#include "tokenizer.h" /* tokenizer */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct chat_message { const char *role, *content; } chat_message; /* role: system, user, assistant */

/* X(name, the text's start, the start of the assistant's answer, the token that ends a message of the assistant,
 *   a token that only vocabularies of this format have) */
#define CHAT_FORMATS(X)                                                                                                \
    X(llama3, "<|begin_of_text|>", "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>",                  \
      "<|start_header_id|>")                                                                                           \
    X(qwen3, "", "<|im_start|>assistant\n", "<|im_end|>", "<think>")      /* ChatML */                                 \
    X(qwen2, "", "<|im_start|>assistant\n", "<|im_end|>", "<|im_start|>") /* and a default system message */           \
    X(smollm, "", "<|im_start|>assistant\n", "<|im_end|>", "")           /* the same with another; by its template */ \
    X(phi3, "", "<|assistant|>\n", "<|end|>", "<|user|>")                                                               \
    X(gemma, "<bos>", "<start_of_turn>model\n", "<end_of_turn>", "<start_of_turn>")                                    \
    X(mistral, "<s>", "", "</s>", "[INST]")                               /* from v0.3 on, where [INST] is a token */  \
    X(mistral_v1, "<s>", "", "</s>", "")                                  /* before, where it is text; only by name */
#define CHAT_FORMAT_ENUM(name, bos, answer, end, mark) CHAT_##name,
typedef enum chat_format { CHAT_none, CHAT_FORMATS(CHAT_FORMAT_ENUM) CHAT_COUNT } chat_format;

chat_format chat_format_named(const char *name);   /* CHAT_none: no such name */
chat_format chat_format_of(const tokenizer *t);    /* by the template of a GGUF file that has one, else by the
                                                      vocabulary's special tokens; CHAT_none: none is known */
const char *chat_format_name(chat_format format);
const char *chat_end_token(chat_format format);

/* The text of a conversation, bos included; with add_answer it ends where the assistant's answer begins. Writes up to
 * capacity bytes, the last of them NUL, and returns the bytes of the whole text without NUL. 0: a role is not known,
 * or a system message is not the first. */
size_t chat_text(chat_format format, const chat_message *messages, int count, int add_answer, char *text,
                 size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
