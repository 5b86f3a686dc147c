/* generation_device.h -- the device's part of te/generation.h, which generates tokens for several sequences: the memory
 * that a step uses, the kernels that run before and after the models, and the function that enqueues a step, which a
 * graph can capture.
 *
 * Row i of te_sampling and of all arrays belongs to sequence i of the te_generation, which is sequence i of the cache.
 * A batch consists of sequence 0 to the highest sequence that runs; sequences in between that do not run are padding. A
 * step is:
 *     copy       copies the block of inputs from the host
 *     begin      sets the batch's tokens (a prompt's tokens come from the host, a token to decode comes from the last
 *                step) and the batch's slots in the cache. A sequence that has ended gets the slot -1 (padding), even
 *                if the host does not know yet that it has ended
 *     models     te_cache_begin, then the models one after the other; the last one ends with the op sample, which
 *                chooses a token for each sequence
 *     end        finds out which sequences have a new token, and which have ended. For sequences without a new token
 *                (whose prompt is not yet complete, for example), it restores what the op sample has changed: the state
 *                of the random numbers and the count of the token
 *     copy       copies the block of results to the host
 */
#ifndef TE_GENERATION_DEVICE_H
#define TE_GENERATION_DEVICE_H

#include "../../cache/cache.h"        /* te_cache_begin */
#include "../../core/lanes.h"         /* te_lanes_here */
#include "../../plan/impl/executor.h" /* te_plan_infer */
#include "../graph.h"                 /* te_graph */

enum {
    TE_GENERATION_MAX_STOPS = 8,
    TE__GENERATION_THREADS = TE_CUDA ? 256 : 1,
    /* the number of bytes of the history that one block of the kernel te__generation_fork copies */
    TE__GENERATION_FORK = TE_CUDA ? 1 << 14 : 1 << 20
};
/* The bits of te__generation_input.flags, which say for each sequence what the step does with the sequence. */
enum {
    TE__GENERATION_TAKES = 1,   /* the sequence has rows in the batch */
    /* the sequence has one row in the batch; the device has chosen the token of this row in an earlier step */
    TE__GENERATION_DECODES = 2,
    /* the token that this step chooses is the sequence's next token. The bit is not set if a part of the prompt is
     * still to come */
    TE__GENERATION_EMITS = 4,
    TE__GENERATION_NEW = 8      /* this is the first step of the sequence */
};
/* The values of te__generation_result.code, which say for each sequence whether it continues or why it has ended. */
enum {
    TE__GENERATION_NOTHING,
    TE__GENERATION_TOKEN,
    TE__GENERATION_STOPPED,  /* the chosen token is a stop token */
    TE__GENERATION_NO_TOKEN, /* no token can be drawn, because the logits are not finite */
    /* the cache has refused the sequence's rows, because no page was free, or because the sequence has another length
     * in the cache than the host expects */
    TE__GENERATION_REFUSED,
    TE__GENERATION_ENDED     /* the sequence had ended before this step */
};

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* The inputs that the host passes to a step. They lie in one block of memory, which is copied as a whole; for a step
 * that only decodes, only the first decode_bytes of the block are copied. Each array is [sequences], unless its comment
 * says otherwise. */
typedef struct te__generation_input {
    uint64_t *seed;
    float *temperature, *top_p, *min_p, *repetition, *frequency, *presence;
    int32_t *top_k, *flags;
    int32_t *past;       /* how many tokens the sequence has in the cache before the step, as the host expects */
    int32_t *stop;       /* [sequences, TE_GENERATION_MAX_STOPS]: the stop tokens, behind each of which the sequence
                          * ends; -1 in unused entries */
    int32_t *cu_seqlens; /* [sequences + 1] */
    int32_t *tokens;     /* [rows] */
    char *memory;
    size_t decode_bytes, bytes;
} te__generation_input;
/* The results of a step, in one block of memory that is copied to the host. Each array is [sequences] or, for the most
 * likely tokens, [sequences, top]. */
typedef struct te__generation_result {
    int32_t *token, *code;
    float *log_prob;
    int32_t *top_token; /* [sequences, top] */
    float *top_log_prob;
    char *memory;
    size_t bytes;
} te__generation_result;
/* The arrays of a te_generation (te/generation.h) that stay on the device. Each array is [sequences], unless its
 * comment says otherwise. */
typedef struct te__generation_state {
    uint64_t *counter;
    int32_t *last_token, *ended;
    /* slot: the entries of te_batch.slots in the current step; sampled: the tokens that the op sample has chosen in
     * this step */
    int32_t *slot, *sampled;
    int32_t *tokens;         /* [rows]: the tokens of the current step's batch */
    uint16_t *history;       /* [sequences, vocabulary]: how often each token was generated; null if there are no
                              * penalties */
    /* [sequences, words]: one bit for each token of the vocabulary, in words of 32 bits. The bit is 1 if the prompt
     * contains this token */
    uint32_t *prompt;
    /* Two buffers, used alternately, for the tensors that one model passes to the next. Each buffer has space for
     * `rows` rows of the widest of these tensors. */
    void *x[2];
} te__generation_state;

/* Append an array of `count` elements to a block of memory, and return the address of the array. *at is the block's
 * size so far, which the function increases. If `memory` is null, the function only increases *at. */
TE_API void *te__generation_place(char *memory, size_t *at, int64_t count, size_t size) {
    void *p = memory ? memory + *at : 0;
    *at += (size_t)te_round_up(count * (int64_t)size, TE_ALIGN);
    return p;
}
TE_API void te__generation_place_input(te__generation_input *b, char *memory, int sequences, int rows) {
    float **const floats[] = {&b->temperature, &b->top_p, &b->min_p, &b->repetition, &b->frequency, &b->presence};
    int32_t **const ints[] = {&b->top_k, &b->flags, &b->past};
    size_t at = 0;
    b->memory = memory;
    b->seed = (uint64_t *)te__generation_place(memory, &at, sequences, sizeof *b->seed);
    for (int i = 0; i < 6; i++) *floats[i] = (float *)te__generation_place(memory, &at, sequences, sizeof(float));
    for (int i = 0; i < 3; i++) *ints[i] = (int32_t *)te__generation_place(memory, &at, sequences, sizeof(int32_t));
    b->stop = (int32_t *)te__generation_place(memory, &at, (int64_t)sequences * TE_GENERATION_MAX_STOPS, 4);
    b->decode_bytes = at;
    b->cu_seqlens = (int32_t *)te__generation_place(memory, &at, sequences + 1, sizeof(int32_t));
    b->tokens = (int32_t *)te__generation_place(memory, &at, rows, sizeof(int32_t));
    b->bytes = at;
}
TE_API void te__generation_place_result(te__generation_result *r, char *memory, int sequences, int top) {
    size_t at = 0;
    r->memory = memory;
    r->token = (int32_t *)te__generation_place(memory, &at, sequences, sizeof(int32_t));
    r->code = (int32_t *)te__generation_place(memory, &at, sequences, sizeof(int32_t));
    r->log_prob = (float *)te__generation_place(memory, &at, sequences, sizeof(float));
    r->top_token = (int32_t *)te__generation_place(memory, &at, (int64_t)sequences * top, sizeof(int32_t));
    r->top_log_prob = (float *)te__generation_place(memory, &at, (int64_t)sequences * top, sizeof(float));
    r->bytes = at;
}

/* The part of a te_generation (te/generation.h) that concerns the device: sizes, memory, and arguments of the
 * kernels. */
typedef struct te__generation_device {
    te_model *const *models;
    int count;
    te_cache *cache;
    int sequences, rows, vocabulary, words, penalties, top;
    te__generation_input in;
    te__generation_result out;
    te__generation_state state;
    te_sampling sampling;
} te__generation_device;

/* Return the size, in bytes, of a row of the widest tensor that one model passes to the next. */
TE_API size_t te__generation_row_bytes(te_model *const *models, int count) {
    int64_t widest = 0;
    for (int i = 0; i + 1 < count; i++) {
        const te_plan *p = models[i]->plan;
        widest = te_max(widest, p->out * (int64_t)te_dtype_bytes(p->out_dtype));
    }
    return (size_t)widest;
}
/* Set the pointers in *d to parts of `memory`, the device's memory. The sizes in *d must be set before. Returns the
 * number of bytes that all these parts take. If `memory` is null, the function only computes this number. */
TE_API size_t te__generation_place_device(te__generation_device *d, char *memory) {
    const int n = d->sequences;
    const int64_t x = d->rows * (int64_t)te__generation_row_bytes(d->models, d->count);
    te__generation_state *s = &d->state;
    size_t at = 0;
    te__generation_place_input(&d->in, 0, n, d->rows), te__generation_place_result(&d->out, 0, n, d->top);
    char *in = (char *)te__generation_place(memory, &at, (int64_t)d->in.bytes, 1);
    char *out = (char *)te__generation_place(memory, &at, (int64_t)d->out.bytes, 1);
    te__generation_place_input(&d->in, in, n, d->rows), te__generation_place_result(&d->out, out, n, d->top);
    s->counter = (uint64_t *)te__generation_place(memory, &at, n, sizeof *s->counter);
    s->last_token = (int32_t *)te__generation_place(memory, &at, n, sizeof(int32_t));
    s->ended = (int32_t *)te__generation_place(memory, &at, n, sizeof(int32_t));
    s->slot = (int32_t *)te__generation_place(memory, &at, n, sizeof(int32_t));
    s->sampled = (int32_t *)te__generation_place(memory, &at, n, sizeof(int32_t));
    s->tokens = (int32_t *)te__generation_place(memory, &at, d->rows, sizeof(int32_t));
    for (int i = 0; i < 2; i++) s->x[i] = te__generation_place(memory, &at, x, 1);
    s->history = 0, s->prompt = 0;
    if (!d->penalties) return at;
    s->history = (uint16_t *)te__generation_place(memory, &at, (int64_t)n * d->vocabulary, sizeof *s->history);
    s->prompt = (uint32_t *)te__generation_place(memory, &at, (int64_t)n * d->words, sizeof *s->prompt);
    return at;
}
/* Set d->sampling, the arguments of the op sample, to arrays in the device's memory. */
TE_API void te__generation_set_sampling(te__generation_device *d) {
    te_sampling *s = &d->sampling;
    memset(s, 0, sizeof *s);
    s->token = d->state.sampled, s->seed = d->in.seed, s->counter = d->state.counter;
    s->temperature = d->in.temperature, s->top_k = d->in.top_k, s->top_p = d->in.top_p, s->min_p = d->in.min_p;
    s->top = d->top;
    if (d->top) s->top_token = d->out.top_token, s->top_log_prob = d->out.top_log_prob;
    if (!d->penalties) return;
    s->history = d->state.history, s->prompt = d->state.prompt, s->update_history = 1;
    s->repetition_penalty = d->in.repetition, s->frequency_penalty = d->in.frequency;
    s->presence_penalty = d->in.presence;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

typedef struct te__generation_args {
    te__generation_input in;
    te__generation_result out;
    te__generation_state state;
    te_sequences of;     /* the sequences of the batch */
    const int32_t *past; /* te_cache_tables.past */
    int decodes;         /* 1: the batch has exactly one row for each sequence */
    int vocabulary, words;
    int to, from;        /* for te__generation_fork: the state of the sequence with index `from` is copied to the
                          * sequence with index `to` */
} te__generation_args;

/* The kernel that runs before the models. It sets the batch's tokens and slots. Grid: a block processes
 * TE__GENERATION_THREADS rows, and as many sequences. */
TE_FN void te__generation_begin_body(const te__generation_args *a, te_block b) {
    const te__generation_state *s = &a->state;
    int group;
    const te_lanes g = te_lanes_here(TE__GENERATION_THREADS, &group);
    const int i = b.x * TE__GENERATION_THREADS + g.id;
    if (i < a->of.count) {
        const int flags = a->in.flags[i];
        if (flags & TE__GENERATION_NEW) s->ended[i] = 0, s->counter[i] = 0;
        s->slot[i] = flags & TE__GENERATION_TAKES && !s->ended[i] ? i : (int)TE_CACHE_PADDING;
    }
    if (i >= a->of.rows) return;
    const int of = a->decodes ? i : te_sequence_of(&a->of, i, 0), flags = a->in.flags[of];
    s->tokens[i] = flags & TE__GENERATION_DECODES ? s->last_token[of] : a->decodes ? 0 : a->in.tokens[i];
}
TE_KERNEL_IF_USED(te__generation_begin, TE__GENERATION_THREADS, 1, te__generation_args,
                  te__generation_begin_body(te_args, te_at))

TE_FN int te__generation_is_stop(const te__generation_args *a, int i, int token) {
    int is = 0;
    for (int k = 0; k < TE_GENERATION_MAX_STOPS; k++) is |= a->in.stop[i * TE_GENERATION_MAX_STOPS + k] == token;
    return is;
}
/* The kernel that runs after the models. It sets the results of the step. Grid: a block processes
 * TE__GENERATION_THREADS sequences. */
TE_FN void te__generation_end_body(const te__generation_args *a, te_block b) {
    const te__generation_state *s = &a->state;
    int group;
    const te_lanes g = te_lanes_here(TE__GENERATION_THREADS, &group);
    const int i = b.x * TE__GENERATION_THREADS + g.id;
    if (i >= a->of.count) return;
    const int flags = a->in.flags[i], token = s->sampled[i], runs = s->slot[i] != TE_CACHE_PADDING;
    const int accepted = runs && a->past[i] == a->in.past[i], emits = accepted && flags & TE__GENERATION_EMITS;
    int code = TE__GENERATION_NOTHING;
    /* The sequence has no new token, but the op sample has advanced the random state of the sequence and counted a
     * token. Undo both changes. */
    if (!emits) {
        s->counter[i]--;
        if (s->history && token >= 0) s->history[(int64_t)i * a->vocabulary + token]--;
    }
    if (runs && !accepted) code = TE__GENERATION_REFUSED;
    else if (!runs && flags & TE__GENERATION_TAKES) code = TE__GENERATION_ENDED;
    else if (emits && token < 0) code = TE__GENERATION_NO_TOKEN;
    else if (emits) {
        code = te__generation_is_stop(a, i, token) ? TE__GENERATION_STOPPED : TE__GENERATION_TOKEN;
        s->last_token[i] = token;
    }
    if (code > TE__GENERATION_TOKEN) s->ended[i] = 1;
    a->out.code[i] = code, a->out.token[i] = emits ? token : -1;
}
TE_KERNEL_IF_USED(te__generation_end, TE__GENERATION_THREADS, 1, te__generation_args,
                  te__generation_end_body(te_args, te_at))

/* The kernel that copies the state of sequence a->from to sequence a->to. Grid: a block copies TE__GENERATION_FORK
 * bytes of the history. */
TE_FN void te__generation_fork_body(const te__generation_args *a, te_block b) {
    const te__generation_state *s = &a->state;
    int group;
    const te_lanes g = te_lanes_here(TE__GENERATION_THREADS, &group);
    if (b.x == 0 && g.id == 0) {
        s->counter[a->to] = s->counter[a->from], s->ended[a->to] = s->ended[a->from];
        s->last_token[a->to] = s->last_token[a->from];
    }
    if (!s->history) return;
    const int64_t v = a->vocabulary, words = a->words, first = (int64_t)b.x * (TE__GENERATION_FORK / 2);
    const int64_t end = te_min(v, first + TE__GENERATION_FORK / 2), last_word = te_min(words, te_ceil_div(end, 32));
    for (int64_t i = first + g.id; i < end; i += g.count) s->history[a->to * v + i] = s->history[a->from * v + i];
    for (int64_t i = first / 32 + g.id; i < last_word; i += g.count)
        s->prompt[a->to * words + i] = s->prompt[a->from * words + i];
}
TE_KERNEL_IF_USED(te__generation_fork, TE__GENERATION_THREADS, 1, te__generation_args,
                  te__generation_fork_body(te_args, te_at))

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* The sizes of a step's batch. */
typedef struct te__generation_batch {
    int sequences, rows, max_seqlen;
    int decodes; /* 1: the batch has exactly one row for each sequence, and needs no cu_seqlens */
} te__generation_batch;

TE_API te__generation_args te__generation_args_of(const te__generation_device *d) {
    te__generation_args a;
    memset(&a, 0, sizeof a);
    a.in = d->in, a.out = d->out, a.state = d->state, a.past = d->cache->t.past;
    a.vocabulary = d->vocabulary, a.words = d->words;
    return a;
}
TE_API te_grid te__generation_grid(int64_t count, int each) { return te__grid_of(te_ceil_div(count, each), 1); }
/* Enqueue, without waiting, everything that a step runs between the copy of its inputs and the copy of its results. */
TE_IF_USED TE_API te_status te__generation_run(const te__generation_device *d, te__generation_batch of,
                                               te_context *ctx) {
    te__generation_args a = te__generation_args_of(d);
    te_batch b;
    memset(&b, 0, sizeof b);
    b.batch = of.decodes ? of.sequences : 1, b.seq = of.decodes ? 1 : of.rows;
    if (!of.decodes) b.sequences = of.sequences, b.max_seqlen = of.max_seqlen, b.cu_seqlens = d->in.cu_seqlens;
    b.tokens = d->state.tokens, b.slots = d->state.slot, b.cache = d->cache, b.sampling = &d->sampling;
    a.of = te__sequences_of_batch(&b), a.decodes = of.decodes;
    TE_TRY(te__generation_begin_launch(
        ctx, te__generation_grid(te_max(of.rows, of.sequences), TE__GENERATION_THREADS), &a));
    TE_TRY(te_cache_begin(d->cache, &b, ctx));
    te_tensor x = te_none();
    for (int i = 0; i < d->count; i++) {
        const te_plan *p = d->models[i]->plan;
        const te_tensor y = i + 1 == d->count ? te_matrix(d->out.log_prob, TE_f32, of.sequences, 1)
                                              : te_matrix(d->state.x[i % 2], p->out_dtype, of.rows, p->out);
        TE_TRY(te_plan_infer(y, x, p, d->models[i], &b, ctx));
        x = y;
    }
    return te__generation_end_launch(ctx, te__generation_grid(of.sequences, TE__GENERATION_THREADS), &a);
}
TE_API te__generation_batch te__generation_decode_batch(int sequences) {
    te__generation_batch b;
    b.sequences = b.rows = sequences, b.max_seqlen = 1, b.decodes = 1;
    return b;
}
/* The argument of te__generation_graph. */
typedef struct te__generation_graph_args {
    const te__generation_device *device;
    int sequences;
} te__generation_graph_args;
/* The function of a graph that runs a step that only decodes (te__generation_run). `arg` points to a
 * te__generation_graph_args. */
TE_IF_USED TE_API te_status te__generation_graph(const te_graph *g, const void *arg, te_context *ctx) {
    const te__generation_graph_args *a = (const te__generation_graph_args *)arg;
    (void)g;
    return te__generation_run(a->device, te__generation_decode_batch(a->sequences), ctx);
}

#endif
