/* generation.h -- continuous batching: generates texts for many sequences at once. Sequences can be added, and can end,
 * between any two steps. One step processes the sequences that decode, together with parts of the prompts of other
 * sequences. A token is chosen on the device, where the next step reads it; on CUDA the host gets the token one step
 * later.
 *
 * Do this (models: the instances of one or more lists, in order; the first list begins with an embedding, the last one
 * ends in last_token, .., sample):
 *     te_generation_config config = te_generation_defaults(models, count, &cache);
 *     TE_TRY(te_context_reserve(&ctx, te_generation_workspace_bytes(&config, &ctx)));
 *     te_generation_memory m = {device, te_generation_bytes(&config), host, te_generation_host_bytes(&config)};
 *     TE_TRY(te_generation_init(&g, &config, &m, &ctx));
 *     te_generation_request r = te_generation_request_of(prompt, tokens);
 *     r.temperature = 0.8f, r.seed = 1, r.max_tokens = 200, r.stop = &end_of_text, r.stop_count = 1;
 *     TE_TRY(te_generation_add(&g, &r, &id, &ctx));
 *     while (te_generation_running(&g)) {          // sequences may be added between steps
 *         TE_TRY(te_generation_step(&g, &ctx));
 *         while (te_generation_next(&g, &event)) put(event.id, event.token);
 *     }
 *     te_generation_close(&g);
 *
 * The caller provides all memory. A step allocates nothing, and on CUDA it waits only for the step before it. Steps in
 * which all sequences decode are replayed from captured graphs, for 1, 2, 4, .. sequences. On the host target a step is
 * complete when te_generation_step returns. docs/inference.md says when a sequence has bitwise identical results in
 * every batch.
 */
#ifndef TE_GENERATION_H
#define TE_GENERATION_H

#include "graph/impl/generation_device.h" /* te__generation_run */
#include "ops/sample.h"                   /* TE_SAMPLE_MAX_TOP */

enum {
    TE_GENERATION_MAX_SEQUENCES = 4096,
    TE__GENERATION_GRAPHS = 14 /* the largest number of graphs. There is one for each power of two below
                                * config.sequences, and one for config.sequences itself */
};

/* ---- what the caller passes -------------------------------------------------------------------------------------- */

typedef struct te_generation_config {
    /* [count]: the instances of the op lists, in the order in which they run; the array and the instances must stay
     * where they are */
    te_model *const *models;
    int count;
    /* The key-value cache of `models`. The generation uses the first `sequences` sequences of the cache; the caller may
     * use the other sequences. */
    te_cache *cache;
    int sequences;         /* the largest number of sequences that run at a time */
    /* The largest number of rows in a step, at least `sequences`. A step has one row for each sequence that decodes,
     * and one for each prompt token that it processes. */
    int rows;
    /* How many pages of the cache all sequences together may fill, or 0 for all pages that are free at
     * te_generation_init. */
    int pages;
    /* 1 if requests may have penalties; this takes sequences * vocabulary * 2 bytes of target memory. */
    int penalties;
    int top;       /* how many of the most likely tokens each event reports (te_generation_event.top_token) */
} te_generation_config;

typedef struct te_generation_memory {
    void *device; /* target memory of device_bytes bytes, at least te_generation_bytes */
    size_t device_bytes;
    /* Host memory of host_bytes bytes, at least te_generation_host_bytes. On CUDA, te_generation_init pins this memory
     * if it is not pinned yet. On the host target, `device` is host memory, too. */
    void *host;
    size_t host_bytes;
} te_generation_memory;

/* A request to generate one sequence. docs/inference.md says what the sampling parameters do. */
typedef struct te_generation_request {
    const int32_t *prompt; /* [count], in host memory: the prompt's tokens, of which te_generation_add makes a copy */
    int count;
    /* the largest number of tokens to generate, or 0 for as many as the cache's capacity and config.pages allow */
    int max_tokens;
    float temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
    int top_k;
    uint64_t seed;
    const int32_t *stop; /* [stop_count]: the stop tokens; the sequence ends with the first generated token that is one
                          * of these. te_generation_add copies them */
    int stop_count;      /* at most TE_GENERATION_MAX_STOPS */
    /* If prefix_count is not 0, the first prefix_count tokens of the prompt are already in the cache, as the first
     * tokens of the cache's sequence number `prefix`. `prefix` must be config.sequences or more, and that sequence must
     * stay in the cache until the new sequence has ended. */
    int prefix, prefix_count;
    void *user;               /* a pointer that belongs to the caller; the events of the sequence contain it */
} te_generation_request;

/* The list of reasons for which a sequence ends, X(name, text) for each; `runs` means that the sequence has not
 * ended. */
#define TE_GENERATION_ENDS(X)                                                                  \
    X(runs, "it has not ended")                                                                \
    X(stop, "a stop token")                                                                    \
    X(length, "max_tokens")                                                                    \
    X(no_token, "no token can be drawn: the logits are not finite")                            \
    X(cache, "the cache has refused its tokens: no free page, or its prefix is not that long")
#define TE_GENERATION_END(name, text) TE_GENERATION_END_##name,
typedef enum te_generation_end { TE_GENERATION_ENDS(TE_GENERATION_END) TE_GENERATION_END_COUNT } te_generation_end;
#undef TE_GENERATION_END

/* An event of a sequence: a token was generated, or the sequence has ended, or both. */
typedef struct te_generation_event {
    int64_t id;
    void *user;
    int32_t token; /* the token that was generated, or -1 if the event only says that the sequence has ended */
    float log_prob;
    te_generation_end end;
    const int32_t *top_token;  /* [config.top]: the tokens to which the model gave the highest probabilities, valid
                                * until the next step; null if config.top is 0 */
    const float *top_log_prob; /* [config.top]: the log-probabilities of the tokens in top_token */
} te_generation_event;

/* ---- the generation ---------------------------------------------------------------------------------------------- */

/* The host's record of one sequence. The numbers in the record count all steps that have been enqueued, even steps that
 * the device has not finished. */
typedef struct te__generation_sequence {
    int64_t id; /* 0: this entry has no sequence */
    te_generation_request of;
    int32_t stop[TE_GENERATION_MAX_STOPS];
    int32_t *prompt; /* a copy of the prompt, in memory for as many tokens as the cache can hold for one sequence */
    int length;      /* how many tokens of the sequence are in the cache */
    int generated;   /* how many tokens of the sequence have been generated */
    int pages;       /* how many pages of the cache are reserved for the sequence */
    int is_new;
} te__generation_sequence;
/* What a step does for one sequence. id: the id of the sequence; emits: 1 if the step generates a token of the
 * sequence; is_last: 1 if this token is the last one that max_tokens allows. */
typedef struct te__generation_row { int64_t id; int emits, is_last; } te__generation_row;
/* The host's part of a step: the inputs that it passes to the device, and the results that it gets back. */
typedef struct te__generation_step {
    te__generation_input in;
    te__generation_result out;
    te__generation_row *row; /* [config.sequences]: what the step does for each sequence; only the first `sequences`
                              * entries are in use */
    uint32_t *prompt;        /* [config.sequences, (vocabulary + 31) / 32]: for each sequence that begins in this step,
                              * a bit mask of the tokens in its prompt */
    void *event;             /* a cudaEvent_t; once it completes, the step is done and its results are in host memory */
    int sequences;           /* how many entries of `row` are in use */
    int is_pending;          /* 1 if the step was enqueued, and its results have not been read yet */
} te__generation_step;

typedef struct te_generation {
    te__generation_device device;
    const struct te_generation *at; /* the address of this struct at te_generation_init; the struct must stay there */
    te_context *ctx;
    te__generation_sequence *sequence; /* [sequences] */
    te__generation_step step[2];
    int current;                       /* the index (0 or 1) of the te__generation_step that the next te_generation_step
                                        * fills with inputs */
    /* 1 if the host reads the results of a step only after it has enqueued the next step (as on CUDA); 0 if it reads
     * them at once (as on the host target). Tests set `lag` to either value. */
    int lag;
    int pages, free_pages, running;
    int64_t next_id;
    te_generation_event *event; /* [sequences]: the events of the last step whose results were read */
    int event_count, event_next;
    te_graph graph[TE__GENERATION_GRAPHS];
    int graph_sequences[TE__GENERATION_GRAPHS], graph_count;
    void *pinned;  /* the host memory that te_generation_init has page-locked for fast copies, or null */
    int is_broken; /* 1 if a step has failed half-way, so that the generation can only be closed */
} te_generation;

/* Return a config with defaults: the generation uses all sequences of the cache, and a step has at most 512 rows or, if
 * there are more than 512 sequences, one row for each sequence. */
TE_API te_generation_config te_generation_defaults(te_model *const *models, int count, te_cache *cache) {
    te_generation_config c;
    memset(&c, 0, sizeof c);
    c.models = models, c.count = count, c.cache = cache, c.sequences = cache ? cache->t.sequences : 0;
    c.rows = (int)te_max(512, c.sequences);
    return c;
}
/* Return a request with defaults: greedy, without filters and penalties, and with as many tokens as the cache's
 * capacity allows. */
TE_API te_generation_request te_generation_request_of(const int32_t *prompt, int count) {
    te_generation_request r;
    memset(&r, 0, sizeof r);
    r.prompt = prompt, r.count = count, r.top_p = 1, r.repetition_penalty = 1;
    return r;
}
/* Return the text for a reason for which a sequence ends. */
TE_API const char *te_generation_end_text(te_generation_end end) {
#define TE_GENERATION_TEXT(name, text) text,
    static const char *const texts[] = {TE_GENERATION_ENDS(TE_GENERATION_TEXT)};
#undef TE_GENERATION_TEXT
    return (unsigned)end < (unsigned)TE_GENERATION_END_COUNT ? texts[end] : "unknown";
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

TE_API te_status te__generation_check_list(const te_generation_config *c, int i, te_context *ctx) {
    const te_model *m = c->models[i];
    TE_REQUIRE(m && m->plan, ctx, TE_ERROR_STATE, "te_generation: model %d has not been bound", i);
    const te_plan *p = m->plan, *before = i ? c->models[i - 1]->plan : 0;
    const int is_last = i + 1 == c->count;
    TE_REQUIRE(te__from_tokens(p) == !i, ctx, TE_ERROR_VALUE,
               "te_generation: list %d (%s): the first list begins with an embedding, and no other one", i, p->name);
    TE_REQUIRE(!before || (before->out == p->in && before->out_dtype == p->in_dtype), ctx, TE_ERROR_SHAPE,
               "te_generation: list %d (%s) takes rows of %d %s, the one before it has %d %s", i, p->name, p->in,
               te_dtype_name(p->in_dtype), before->out, te_dtype_name(before->out_dtype));
    TE_REQUIRE(te__out_rows(p) == (is_last ? TE_ROWS_sequences : TE_ROWS_tokens), ctx, TE_ERROR_VALUE,
               "te_generation: list %d (%s): last_token stands in the last list, and in no other one", i, p->name);
    TE_REQUIRE(!is_last == !!strcmp(p->op[p->op_count - 1].kind, "sample"), ctx, TE_ERROR_VALUE,
               "te_generation: list %d (%s): sample ends the last list, and no other one", i, p->name);
    for (int k = 0; k < p->op_count; k++) {
        TE_REQUIRE(!(p->op[k].flags & (TE_IS_INPUT | TE_IS_OUTPUT)), ctx, TE_ERROR_VALUE,
                   "te_generation: list %d (%s) has (%s, %s)", i, p->name, p->op[k].kind, p->op[k].name);
        const int is_attention = !strcmp(p->op[k].kind, "attention"), is_cached = (p->op[k].flags & TE_IS_CACHED) != 0;
        TE_REQUIRE(!is_cached || te__cache_layer_of(c->cache, m, k), ctx, TE_ERROR_STATE,
                   "te_generation: list %d (%s): the cache was made without it", i, p->name);
        TE_REQUIRE(is_cached || !is_attention, ctx, TE_ERROR_VALUE, "te_generation: list %d (%s): %s has no (cache, 1)",
                   i, p->name, p->op[k].name);
    }
    return TE_OK;
}
/* Check a config, and set those members of *d that follow from the config, i.e. all but the addresses of memory. */
TE_API te_status te__generation_describe(te__generation_device *d, const te_generation_config *c, te_context *ctx) {
    TE_REQUIRE(c && c->models && c->count > 0 && c->cache, ctx, TE_ERROR_NULL,
               "te_generation: the config, its models or its cache are null");
    TE_REQUIRE(c->cache->at == c->cache, ctx, TE_ERROR_STATE,
               "te_generation: the cache has not been initialised, or moved since");
    const int most = (int)te_min(c->cache->t.sequences, TE_GENERATION_MAX_SEQUENCES);
    TE_REQUIRE(c->sequences > 0 && c->sequences <= most, ctx, TE_ERROR_VALUE,
               "te_generation: %d sequences; 1 to %d can be", c->sequences, most);
    TE_REQUIRE(c->rows >= c->sequences && c->rows <= 1 << 24, ctx, TE_ERROR_VALUE,
               "te_generation: %d rows in a step; at least one for each of the %d sequences", c->rows, c->sequences);
    TE_REQUIRE(c->pages >= 0 && c->pages <= c->cache->t.pages, ctx, TE_ERROR_VALUE,
               "te_generation: %d pages; the cache has %d", c->pages, c->cache->t.pages);
    for (int i = 0; i < c->count; i++) TE_TRY(te__generation_check_list(c, i, ctx));
    const te_plan *first = c->models[0]->plan, *last = c->models[c->count - 1]->plan;
    const te_op *embedding = &first->op[0];
    memset(d, 0, sizeof *d);
    d->models = c->models, d->count = c->count, d->cache = c->cache, d->sequences = c->sequences, d->rows = c->rows;
    d->vocabulary = last->op[last->op_count - 1].in, d->words = (d->vocabulary + 31) / 32;
    d->penalties = c->penalties != 0, d->top = c->top;
    const int64_t known = embedding->param[0].rows * te_max(embedding->ranks, 1);
    TE_REQUIRE(known >= d->vocabulary, ctx, TE_ERROR_SHAPE,
               "te_generation: sample chooses among %d tokens, the embedding has %lld", d->vocabulary,
               (long long)known);
    TE_REQUIRE(c->top >= 0 && c->top <= te_min(TE_SAMPLE_MAX_TOP, d->vocabulary), ctx, TE_ERROR_VALUE,
               "te_generation: top is %d; 0 to %d can be", c->top, (int)te_min(TE_SAMPLE_MAX_TOP, d->vocabulary));
    return TE_OK;
}
/* Set the pointers of *g to the parts of its host memory, which begins at `memory`. Returns how many bytes the parts
 * take; if `memory` is null, the function only counts them. */
TE_API size_t te__generation_place_host(te_generation *g, char *memory) {
    const te__generation_device *d = &g->device;
    const int n = d->sequences, capacity = d->cache->t.capacity;
    size_t at = 0;
    for (int k = 0; k < 2; k++) {
        te__generation_step *s = &g->step[k];
        char *in = (char *)te__generation_place(memory, &at, (int64_t)d->in.bytes, 1);
        char *out = (char *)te__generation_place(memory, &at, (int64_t)d->out.bytes, 1);
        te__generation_place_input(&s->in, in, n, d->rows), te__generation_place_result(&s->out, out, n, d->top);
        s->row = (te__generation_row *)te__generation_place(memory, &at, n, sizeof *s->row);
        const int64_t words = d->penalties ? (int64_t)n * d->words : 0;
        s->prompt = (uint32_t *)te__generation_place(memory, &at, words, sizeof *s->prompt);
    }
    g->event = (te_generation_event *)te__generation_place(memory, &at, n, sizeof *g->event);
    g->sequence = (te__generation_sequence *)te__generation_place(memory, &at, n, sizeof *g->sequence);
    int32_t *prompts = (int32_t *)te__generation_place(memory, &at, (int64_t)n * capacity, sizeof *prompts);
    for (int i = 0; memory && i < n; i++) {
        memset(&g->sequence[i], 0, sizeof g->sequence[i]);
        g->sequence[i].prompt = prompts + (int64_t)i * capacity;
    }
    return at;
}
/* Return how many bytes of target memory, aligned to TE_ALIGN, te_generation_init needs, or 0 if the config is not
 * valid. */
TE_API size_t te_generation_bytes(const te_generation_config *config) {
    te__generation_device d;
    return te__generation_describe(&d, config, 0) == TE_OK ? te__generation_place_device(&d, 0) : 0;
}
/* Return how many bytes of host memory, aligned to TE_ALIGN, te_generation_init needs, or 0 if the config is not
 * valid. */
TE_API size_t te_generation_host_bytes(const te_generation_config *config) {
    te_generation g;
    if (te__generation_describe(&g.device, config, 0) != TE_OK) return 0;
    (void)te__generation_place_device(&g.device, 0);
    return te__generation_place_host(&g, 0);
}
/* Return how many bytes of workspace a step needs (te_context_reserve). If the config is not valid, the function
 * returns 0 and stores an error text in ctx. */
TE_API size_t te_generation_workspace_bytes(const te_generation_config *config, te_context *ctx) {
    te__generation_device d;
    size_t bytes = 0;
    if (te__generation_describe(&d, config, ctx) != TE_OK) return 0;
    for (int i = 0; i < d.count; i++) {
        const size_t of_list = te_plan_workspace_bytes(d.models[i]->plan, d.models[i], d.rows, ctx);
        bytes = of_list > bytes ? of_list : bytes;
    }
    return bytes;
}

/* ---- beginning and end ------------------------------------------------------------------------------------------- */

TE_API te_status te__generation_check(const te_generation *g, const char *who, te_context *ctx) {
    TE_TRY(te__check_target(ctx, who));
    TE_REQUIRE(g && g->at == g, ctx, TE_ERROR_STATE, "%s: the generation has not been initialised, or moved since",
               who);
    TE_REQUIRE(g->ctx == ctx, ctx, TE_ERROR_STATE, "%s: the generation was initialised with another context", who);
    TE_REQUIRE(!g->is_broken, ctx, TE_ERROR_STATE, "%s: a step of this generation has failed; close it", who);
    return TE_OK;
}
/* Free the graphs and events that te_generation_init has made, and unpin the host memory. The device must have finished
 * all steps (te_synchronize); the cache does not change. The call is also permitted for a struct of zeros, and after
 * te_generation_init has failed. */
TE_API void te_generation_close(te_generation *g) {
    if (!g || g->at != g) return;
    for (int k = 0; k < g->graph_count; k++) te_graph_destroy(&g->graph[k]);
#if TE_CUDA
    for (int k = 0; k < 2; k++)
        if (g->step[k].event) (void)cudaEventDestroy((cudaEvent_t)g->step[k].event);
    if (g->pinned) (void)cudaHostUnregister(g->pinned);
#endif
    memset(g, 0, sizeof *g);
}
#if TE_CUDA
/* Create the events of the steps, and pin the host memory, because copies from and to pageable memory would make the
 * host wait. Memory that cannot be pinned is used as it is. */
TE_API te_status te__generation_open_host(te_generation *g, const te_generation_memory *m, te_context *ctx) {
    cudaPointerAttributes of;
    if (cudaPointerGetAttributes(&of, m->host) != cudaSuccess || of.type == cudaMemoryTypeUnregistered)
        if (cudaHostRegister(m->host, m->host_bytes, cudaHostRegisterDefault) == cudaSuccess) g->pinned = m->host;
    (void)cudaGetLastError();
    for (int k = 0; k < 2; k++) {
        cudaEvent_t event = 0;
        TE_TRY(te__cuda_status(ctx, cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "te_generation"));
        g->step[k].event = event;
    }
    return TE_OK;
}
TE_API te_status te__generation_record(const te__generation_step *s, te_context *ctx) {
    return te__cuda_status(ctx, cudaEventRecord((cudaEvent_t)s->event, (cudaStream_t)ctx->stream), "te_generation");
}
TE_API te_status te__generation_wait(const te__generation_step *s, te_context *ctx) {
    return te__cuda_status(ctx, cudaEventSynchronize((cudaEvent_t)s->event), "te_generation");
}
#else
TE_API te_status te__generation_open_host(te_generation *g, const te_generation_memory *m, te_context *ctx) {
    return (void)g, (void)m, (void)ctx, TE_OK;
}
TE_API te_status te__generation_record(const te__generation_step *s, te_context *ctx) {
    return (void)s, (void)ctx, TE_OK;
}
TE_API te_status te__generation_wait(const te__generation_step *s, te_context *ctx) {
    return (void)s, (void)ctx, TE_OK;
}
#endif
/* Capture the graphs of decoding steps: for 1, 2, 4, .. sequences, and for all sequences. On CUDA, a batch of padding
 * runs before each capture, so that the kernels are loaded. */
TE_IF_USED TE_API te_status te__generation_capture(te_generation *g, te_context *ctx) {
    for (int n = 1, k = 0;; n = (int)te_min(2 * n, g->device.sequences), k++) {
        te__generation_graph_args args;
        args.device = &g->device, args.sequences = n;
        const te_graph_spec spec = te_graph_spec_of("decode", te__generation_graph, &args, sizeof args, 0, 0, 0, 0);
        if (TE_CUDA) TE_TRY(te__generation_run(&g->device, te__generation_decode_batch(n), ctx));
        TE_TRY(te_graph_capture(&g->graph[k], &spec, 0, ctx));
        g->graph_sequences[k] = n, g->graph_count = k + 1;
        if (n == g->device.sequences) return TE_OK;
    }
}
TE_IF_USED TE_API te_status te__generation_open(te_generation *g, const te_generation_config *c,
                                                const te_generation_memory *m, te_context *ctx) {
    int32_t free_pages = 0;
    TE_TRY(te__generation_open_host(g, m, ctx));
    memset(m->host, 0, m->host_bytes);
    (void)te__generation_place_host(g, (char *)m->host);
    TE_TRY(te_fill(ctx, m->device, 0, m->device_bytes));
    for (int i = 0; i < c->sequences; i++) TE_TRY(te_cache_truncate(c->cache, i, 0, ctx));
    TE_TRY(te_copy(ctx, &free_pages, c->cache->t.free_count, sizeof free_pages));
    TE_TRY(te_synchronize(ctx));
    g->pages = g->free_pages = c->pages ? c->pages : free_pages;
    TE_TRY(te__generation_capture(g, ctx));
    return te_synchronize(ctx);
}
/* Initialise a generation; no sequence runs at first. The first config->sequences sequences of the cache are emptied.
 * The workspace must be reserved before this call, and must not be replaced while the generation exists. Waits for the
 * stream. */
TE_IF_USED TE_API te_status te_generation_init(te_generation *g, const te_generation_config *config,
                                               const te_generation_memory *memory, te_context *ctx) {
    TE_TRY(te__check_target(ctx, "te_generation_init"));
    TE_REQUIRE(g && memory && memory->device && memory->host, ctx, TE_ERROR_NULL,
               "te_generation_init: the struct or its memory is null");
    memset(g, 0, sizeof *g);
    TE_TRY(te__generation_describe(&g->device, config, ctx));
    const size_t device = te__generation_place_device(&g->device, (char *)memory->device);
    const size_t host = te__generation_place_host(g, 0), workspace = te_generation_workspace_bytes(config, ctx);
    TE_REQUIRE(device <= memory->device_bytes && host <= memory->host_bytes, ctx, TE_ERROR_MEMORY,
               "te_generation_init: %zu bytes of the target and %zu of the host are needed, there are %zu and %zu",
               device, host, memory->device_bytes, memory->host_bytes);
    TE_REQUIRE((uintptr_t)memory->device % TE_ALIGN == 0 && (uintptr_t)memory->host % TE_ALIGN == 0, ctx,
               TE_ERROR_ALIGNMENT, "te_generation_init: memory is not aligned to %d", (int)TE_ALIGN);
    TE_REQUIRE(workspace <= ctx->workspace_bytes, ctx, TE_ERROR_MEMORY,
               "te_generation_init: %zu bytes of workspace are needed, the context has %zu (te_context_reserve)",
               workspace, ctx->workspace_bytes);
    te__generation_set_sampling(&g->device);
    g->at = g, g->ctx = ctx, g->next_id = 1, g->lag = TE_CUDA;
    const te_status status = te__generation_open(g, config, memory, ctx);
    if (status != TE_OK) te_generation_close(g);
    return status;
}

/* ---- sequences come and go --------------------------------------------------------------------------------------- */

/* Return the number of sequences that have not ended. */
TE_API int te_generation_running(const te_generation *g) { return g ? g->running : 0; }

TE_API int te__generation_find(const te_generation *g, int64_t id) {
    for (int i = 0; id > 0 && i < g->device.sequences; i++)
        if (g->sequence[i].id == id) return i;
    return -1;
}
/* Return how many tokens of a sequence's prompt have not been processed by any step yet. */
TE_API int te__generation_prompt_left(const te__generation_sequence *s) {
    return s->id && s->length < s->of.count ? s->of.count - s->length : 0;
}
/* Return whether the next step of the sequence continues from a generated token. */
TE_API int te__generation_decodes(const te__generation_sequence *s) {
    return s->id && s->length >= s->of.count && s->generated < s->of.max_tokens;
}
/* Return the largest number of tokens that a sequence can have in the cache. */
TE_API int te__generation_limit(const te_generation *g) {
    const te_cache_tables *t = &g->device.cache->t;
    return (int)te_min(t->capacity, (int64_t)g->pages * t->page_rows);
}
TE_API int te__generation_has_penalty(const te_generation_request *r) {
    return r->repetition_penalty != 1 || r->frequency_penalty != 0 || r->presence_penalty != 0;
}
TE_API te_status te__generation_check_request(const te_generation *g, const te_generation_request *r, te_context *ctx) {
    const te__generation_device *d = &g->device;
    TE_REQUIRE(r->stop_count >= 0 && r->stop_count <= TE_GENERATION_MAX_STOPS && (r->stop || !r->stop_count), ctx,
               TE_ERROR_VALUE, "te_generation_add: %d stop tokens; 0 to %d can be", r->stop_count,
               (int)TE_GENERATION_MAX_STOPS);
    TE_REQUIRE(d->penalties || !te__generation_has_penalty(r), ctx, TE_ERROR_STATE,
               "te_generation_add: the request has a penalty, the generation was made without config.penalties");
    TE_REQUIRE(r->max_tokens >= 0, ctx, TE_ERROR_VALUE, "te_generation_add: max_tokens is %d", r->max_tokens);
    return TE_OK;
}
TE_API te_status te__generation_check_prompt(const te_generation *g, const te_generation_request *r, te_context *ctx) {
    const te__generation_device *d = &g->device;
    TE_REQUIRE(r->prompt && r->count > 0, ctx, TE_ERROR_NULL, "te_generation_add: the prompt is null, or has no token");
    TE_REQUIRE(r->prefix_count >= 0 && r->prefix_count < r->count, ctx, TE_ERROR_VALUE,
               "te_generation_add: a prefix of %d tokens; the prompt has %d, of which one is not in it at least",
               r->prefix_count, r->count);
    TE_REQUIRE(!r->prefix_count || (r->prefix >= d->sequences && r->prefix < d->cache->t.sequences), ctx,
               TE_ERROR_VALUE, "te_generation_add: the prefix is sequence %d of the cache; %d to %d can be", r->prefix,
               d->sequences, d->cache->t.sequences - 1);
    const te_op *embedding = &d->models[0]->plan->op[0];
    const int64_t known = embedding->param[0].rows * te_max(embedding->ranks, 1);
    for (int i = 0; i < r->count; i++)
        TE_REQUIRE(r->prompt[i] >= 0 && r->prompt[i] < known, ctx, TE_ERROR_VALUE,
                   "te_generation_add: token %d of the prompt is %d, the vocabulary has %lld", i, (int)r->prompt[i],
                   (long long)known);
    return TE_OK;
}
/* Set *slot to the index of a free entry of te_generation.sequence, and reserve pages of the cache for all tokens of
 * the request. length: the largest number of tokens that the sequence will have in the cache. shared: how many of the
 * pages for these tokens are shared with another sequence, so that they need not be reserved. */
TE_API te_status te__generation_take(int *slot, te_generation *g, const te_generation_request *r, int64_t length,
                                     int shared, te_context *ctx) {
    const te_cache_tables *t = &g->device.cache->t;
    TE_REQUIRE(length <= t->capacity, ctx, TE_ERROR_SHAPE,
               "te_generation_add: the sequence would have %lld tokens, the cache's capacity is %d", (long long)length,
               t->capacity);
    const int pages = (int)te_ceil_div(length, t->page_rows) - shared;
    TE_REQUIRE(pages <= g->pages, ctx, TE_ERROR_SHAPE,
               "te_generation_add: the sequence would need %d pages of the cache, there are %d", pages, g->pages);
    int i = 0;
    while (i < g->device.sequences && g->sequence[i].id) i++;
    TE_REQUIRE(i < g->device.sequences, ctx, TE_ERROR_MEMORY,
               "te_generation_add: all %d sequences run; add it again when one has ended", g->device.sequences);
    TE_REQUIRE(pages <= g->free_pages, ctx, TE_ERROR_MEMORY,
               "te_generation_add: the sequence needs %d pages of the cache, %d are free; add it again when another "
               "one has ended", pages, g->free_pages);
    te__generation_sequence *s = &g->sequence[i];
    s->of = *r, s->of.prompt = s->prompt, s->of.stop = s->stop;
    for (int k = 0; k < TE_GENERATION_MAX_STOPS; k++) s->stop[k] = k < r->stop_count ? r->stop[k] : -1;
    s->id = g->next_id++, s->pages = pages, s->length = s->generated = 0, s->is_new = 1;
    g->free_pages -= pages, g->running++;
    return *slot = i, TE_OK;
}
/* Add a request for a sequence. *id is set to the number by which events identify this sequence. Pages are reserved for
 * the prompt and for max_tokens tokens, so a sequence that has begun can also be completed. Errors: TE_ERROR_MEMORY:
 * all sequences are in use or too few pages are free now, so add the request again when another sequence has ended;
 * TE_ERROR_SHAPE: the sequence could never fit; TE_ERROR_VALUE and others: the request is not valid. */
TE_IF_USED TE_API te_status te_generation_add(te_generation *g, const te_generation_request *request, int64_t *id,
                                              te_context *ctx) {
    int slot = 0;
    TE_TRY(te__generation_check(g, "te_generation_add", ctx));
    TE_REQUIRE(request && id, ctx, TE_ERROR_NULL, "te_generation_add: the request, or the place for its id, is null");
    te_generation_request r = *request;
    const te_cache *c = g->device.cache;
    TE_TRY(te__generation_check_request(g, &r, ctx));
    TE_TRY(te__generation_check_prompt(g, &r, ctx));
    if (!r.max_tokens) r.max_tokens = (int)te_max(1, te__generation_limit(g) - r.count + 1);
    /* the largest number of tokens that the sequence has in the cache; the last generated token is not stored in the
     * cache */
    const int64_t length = (int64_t)r.count + r.max_tokens - 1;
    TE_TRY(te__generation_take(&slot, g, &r, length, r.prefix_count / c->t.page_rows, ctx));
    te__generation_sequence *s = &g->sequence[slot];
    memcpy(s->prompt, r.prompt, (size_t)r.count * sizeof *r.prompt);
    s->length = r.prefix_count, *id = s->id;
    if (!r.prefix_count) return TE_OK;
    TE_TRY(te_cache_fork(c, slot, r.prefix, ctx));
    return te_cache_truncate(c, slot, r.prefix_count, ctx);
}
/* End a sequence: release its pages, and free its entry for another sequence. */
TE_IF_USED TE_API te_status te__generation_release(te_generation *g, int slot, te_context *ctx) {
    te__generation_sequence *s = &g->sequence[slot];
    g->free_pages += s->pages, g->running--, s->id = 0;
    return te_cache_truncate(g->device.cache, slot, 0, ctx);
}
/* End the sequence with this id at once; it has no further events. Error: TE_ERROR_VALUE: no sequence with this id
 * runs. */
TE_IF_USED TE_API te_status te_generation_cancel(te_generation *g, int64_t id, te_context *ctx) {
    TE_TRY(te__generation_check(g, "te_generation_cancel", ctx));
    const int slot = te__generation_find(g, id);
    TE_REQUIRE(slot >= 0, ctx, TE_ERROR_VALUE, "te_generation_cancel: no sequence %lld runs", (long long)id);
    int kept = g->event_next;
    for (int k = g->event_next; k < g->event_count; k++)
        if (g->event[k].id != id) g->event[kept++] = g->event[k];
    g->event_count = kept;
    return te__generation_release(g, slot, ctx);
}
/* Begin a new sequence that continues from all tokens of sequence `from`: its prompt and its generated tokens,
 * including the token of the last step (on CUDA the event of this token may still be outstanding). `request` states the
 * new sequence's sampling parameters, max_tokens, stop and user; its prompt is not read. The two sequences share the
 * full pages of the cache, but pages are reserved for all tokens of the new sequence. With the same sampling
 * parameters, seed included, both sequences go on with the same tokens. Errors: those of te_generation_add;
 * TE_ERROR_STATE: sequence `from` has no generated token yet. */
TE_IF_USED TE_API te_status te_generation_fork(te_generation *g, int64_t from, const te_generation_request *request,
                                               int64_t *id, te_context *ctx) {
    int slot = 0;
    TE_TRY(te__generation_check(g, "te_generation_fork", ctx));
    TE_REQUIRE(request && id, ctx, TE_ERROR_NULL, "te_generation_fork: the request, or the place for its id, is null");
    const int parent = te__generation_find(g, from);
    TE_REQUIRE(parent >= 0, ctx, TE_ERROR_VALUE, "te_generation_fork: no sequence %lld runs", (long long)from);
    const te__generation_sequence *p = &g->sequence[parent];
    TE_REQUIRE(!te__generation_prompt_left(p), ctx, TE_ERROR_STATE,
               "te_generation_fork: sequence %lld has no token yet", (long long)from);
    te_generation_request r = *request;
    const te_cache *c = g->device.cache;
    r.count = p->of.count, r.prefix_count = 0;
    TE_TRY(te__generation_check_request(g, &r, ctx));
    if (!r.max_tokens) r.max_tokens = (int)te_max(1, te__generation_limit(g) - p->length);
    TE_TRY(te__generation_take(&slot, g, &r, (int64_t)p->length + r.max_tokens, 0, ctx));
    te__generation_sequence *s = &g->sequence[slot];
    s->length = p->length, s->is_new = 0, *id = s->id;
    TE_TRY(te_cache_fork(c, slot, parent, ctx));
    te__generation_args a = te__generation_args_of(&g->device);
    a.to = slot, a.from = parent;
    return te__generation_fork_launch(
        ctx, te__generation_grid(te_max(1, (int64_t)a.vocabulary * 2), TE__GENERATION_FORK), &a);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* Fill entry i of the inputs of a step. rows: how many rows sequence i has in this step, or 0 if the entry is
 * padding. */
TE_API void te__generation_fill(te_generation *g, te__generation_step *step, int i, int rows) {
    te__generation_sequence *s = &g->sequence[i];
    te__generation_input *in = &step->in;
    te__generation_row *row = &step->row[i];
    const te_generation_request *r = &s->of;
    const int decodes = rows && te__generation_decodes(s), emits = decodes || (rows && s->length + rows == r->count);
    in->flags[i] = !rows ? 0 : TE__GENERATION_TAKES | (decodes ? TE__GENERATION_DECODES : 0) |
                               (emits ? TE__GENERATION_EMITS : 0) | (s->is_new ? TE__GENERATION_NEW : 0);
    in->past[i] = s->length, in->seed[i] = r->seed;
    /* A step chooses a token for every sequence. If this sequence's token is not used, it is chosen in the cheapest way
     * (greedy). */
    in->temperature[i] = emits ? r->temperature : 0, in->top_k[i] = emits ? r->top_k : 0;
    in->top_p[i] = emits ? r->top_p : 1, in->min_p[i] = emits ? r->min_p : 0;
    in->repetition[i] = emits ? r->repetition_penalty : 1;
    in->frequency[i] = emits ? r->frequency_penalty : 0, in->presence[i] = emits ? r->presence_penalty : 0;
    memcpy(in->stop + (size_t)i * TE_GENERATION_MAX_STOPS, s->stop, sizeof s->stop);
    row->id = rows ? s->id : 0, row->emits = emits, row->is_last = emits && s->generated + 1 >= r->max_tokens;
    if (rows) s->length += rows, s->generated += emits;
}
/* Prepare the penalties for the first step of sequence i: set its history to zeros, and its bit mask of prompt tokens
 * to the tokens of its prompt. */
TE_API te_status te__generation_reset(te_generation *g, te__generation_step *step, int i, te_context *ctx) {
    const te__generation_device *d = &g->device;
    te__generation_sequence *s = &g->sequence[i];
    s->is_new = 0;
    if (!d->penalties) return TE_OK;
    const size_t words = (size_t)d->words, v = (size_t)d->vocabulary, mask_bytes = words * sizeof(uint32_t);
    uint32_t *mask = step->prompt + (size_t)i * words;
    memset(mask, 0, mask_bytes);
    for (int k = 0; k < s->of.count; k++)
        if (s->prompt[k] < d->vocabulary) mask[s->prompt[k] / 32] |= 1u << s->prompt[k] % 32;
    TE_TRY(te_copy(ctx, d->state.prompt + (size_t)i * words, mask, mask_bytes));
    return te_fill(ctx, d->state.history + (size_t)i * v, 0, v * sizeof(uint16_t));
}
/* Set count[i] to the number of rows that sequence i has in the next step. A sequence that decodes has one row. The
 * remaining rows are given to prompts, beginning with the oldest sequence. Returns the batch; its `rows` is 0 if there
 * is nothing to do. */
TE_API te__generation_batch te__generation_divide(const te_generation *g, int32_t *count) {
    const int n = g->device.sequences;
    te__generation_batch b = te__generation_decode_batch(0);
    int left = g->device.rows;
    for (int i = 0; i < n; i++) {
        count[i] = te__generation_decodes(&g->sequence[i]);
        left -= count[i];
        if (count[i]) b.sequences = i + 1, b.rows++;
    }
    for (int64_t last = 0; left > 0;) {
        int oldest = -1;
        for (int i = 0; i < n; i++) {
            const te__generation_sequence *s = &g->sequence[i];
            if (te__generation_prompt_left(s) && s->id > last && (oldest < 0 || s->id < g->sequence[oldest].id))
                oldest = i;
        }
        if (oldest < 0) break;
        const int rows = (int)te_min(left, te__generation_prompt_left(&g->sequence[oldest]));
        count[oldest] = rows, left -= rows, last = g->sequence[oldest].id;
        b.rows += rows, b.decodes = 0, b.sequences = (int)te_max(b.sequences, oldest + 1);
        b.max_seqlen = (int)te_max(b.max_seqlen, rows);
    }
    return b;
}
/* Write the tokens and cu_seqlens of a batch with prompts. count[i]: the number of rows of sequence i. A te_batch must
 * have at least as many rows as sequences. If this batch has fewer rows, the missing rows are added, as padding, to the
 * first sequence whose count is 0. */
TE_API void te__generation_pack(const te_generation *g, te__generation_input *in, te__generation_batch *b,
                                const int32_t *count) {
    int missing = (int)te_max(0, b->sequences - b->rows), at = 0;
    b->rows += missing, b->max_seqlen = (int)te_max(b->max_seqlen, missing);
    for (int i = 0; i < b->sequences; i++) {
        const te__generation_sequence *s = &g->sequence[i];
        const int is_prompt = count[i] && te__generation_prompt_left(s), rows = count[i] ? count[i] : missing;
        in->cu_seqlens[i] = at;
        for (int k = 0; k < rows; k++) in->tokens[at + k] = is_prompt ? s->prompt[s->length + k] : 0;
        if (!count[i]) missing = 0;
        at += rows;
    }
    in->cu_seqlens[b->sequences] = at;
}
/* Return the index of the smallest captured graph that has at least this many sequences. */
TE_API int te__generation_graph_of(const te_generation *g, int sequences) {
    int k = 0;
    while (k + 1 < g->graph_count && g->graph_sequences[k] < sequences) k++;
    return k;
}
/* The graph of a step processes all entries up to the highest index of a running sequence. While the running sequences
 * would fit into a smaller graph, the function moves the running sequence with the highest index to the lowest free
 * index. */
TE_IF_USED TE_API te_status te__generation_compact(te_generation *g, te_context *ctx) {
    for (;;) {
        int from = g->device.sequences - 1, to = 0;
        while (from >= 0 && !g->sequence[from].id) from--;
        while (to < from && g->sequence[to].id) to++;
        if (to >= from || te__generation_graph_of(g, from + 1) == te__generation_graph_of(g, g->running)) return TE_OK;
        te__generation_sequence *a = &g->sequence[to], *b = &g->sequence[from];
        int32_t *const free_prompt = a->prompt;
        *a = *b, a->of.stop = a->stop;
        b->prompt = free_prompt, b->id = 0;
        te__generation_args args = te__generation_args_of(&g->device);
        args.to = to, args.from = from;
        TE_TRY(te_cache_move(g->device.cache, to, from, ctx));
        TE_TRY(te__generation_fork_launch(
            ctx, te__generation_grid(te_max(1, (int64_t)args.vocabulary * 2), TE__GENERATION_FORK), &args));
    }
}
/* Enqueue the next step, if any sequence has tokens to process. */
TE_IF_USED TE_API te_status te__generation_enqueue(te_generation *g, te_context *ctx) {
    TE_TRY(te__generation_compact(g, ctx));
    te__generation_device *d = &g->device;
    te__generation_step *s = &g->step[g->current];
    /* how many rows each sequence has in this step. The array is the one for the step's results, which is not in use
     * yet */
    int32_t *count = s->out.token;
    te__generation_batch b = te__generation_divide(g, count);
    const int graph = te__generation_graph_of(g, b.sequences);
    if (!b.rows) return TE_OK;
    if (b.decodes) b = te__generation_decode_batch(g->graph_sequences[graph]);
    else te__generation_pack(g, &s->in, &b, count);
    for (int i = 0; i < b.sequences; i++) {
        te__generation_fill(g, s, i, count[i]);
        if (s->in.flags[i] & TE__GENERATION_NEW) TE_TRY(te__generation_reset(g, s, i, ctx));
    }
    TE_TRY(te_copy(ctx, d->in.memory, s->in.memory, b.decodes ? s->in.decode_bytes : s->in.bytes));
    TE_TRY(b.decodes ? te_graph_replay(&g->graph[graph], 0, 0, ctx) : te__generation_run(d, b, ctx));
    TE_TRY(te_copy(ctx, s->out.memory, d->out.memory, s->out.bytes));
    TE_TRY(te__generation_record(s, ctx));
    s->sequences = b.sequences, s->is_pending = 1;
    return TE_OK;
}
TE_API te_generation_end te__generation_end_of(int code, int is_last) {
    return code == TE__GENERATION_NO_TOKEN                                       ? TE_GENERATION_END_no_token
           : code == TE__GENERATION_REFUSED                                      ? TE_GENERATION_END_cache
           : code == TE__GENERATION_STOPPED || code == TE__GENERATION_ENDED      ? TE_GENERATION_END_stop
           : is_last                                                             ? TE_GENERATION_END_length
                                                                                 : TE_GENERATION_END_runs;
}
/* Wait until a step is done, and make events from its results. If a result ends a sequence, release that sequence. */
TE_IF_USED TE_API te_status te__generation_collect(te_generation *g, te__generation_step *step, te_context *ctx) {
    if (!step->is_pending) return TE_OK;
    TE_TRY(te__generation_wait(step, ctx));
    step->is_pending = 0;
    for (int i = 0; i < step->sequences; i++) {
        const te__generation_row *row = &step->row[i];
        const int code = step->out.code[i], top = g->device.top, slot = te__generation_find(g, row->id);
        if (slot < 0 || code == TE__GENERATION_NOTHING) continue;
        te_generation_event *e = &g->event[g->event_count++];
        e->id = row->id, e->user = g->sequence[slot].of.user;
        e->token = step->out.token[i], e->log_prob = step->out.log_prob[i];
        e->end = te__generation_end_of(code, row->is_last);
        e->top_token = top ? step->out.top_token + (size_t)i * (size_t)top : 0;
        e->top_log_prob = top ? step->out.top_log_prob + (size_t)i * (size_t)top : 0;
        if (e->end != TE_GENERATION_END_runs) TE_TRY(te__generation_release(g, slot, ctx));
    }
    return TE_OK;
}
/* Enqueue the next step, and make events from the results of the previous step (on the host target: from the results of
 * the step just enqueued). te_generation_next returns these events. Errors: TE_ERROR_STATE: events of the previous call
 * have not all been taken; after any other error the generation can only be closed. */
TE_IF_USED TE_API te_status te_generation_step(te_generation *g, te_context *ctx) {
    TE_TRY(te__generation_check(g, "te_generation_step", ctx));
    TE_REQUIRE(g->event_next == g->event_count, ctx, TE_ERROR_STATE,
               "te_generation_step: %d events of the last step have not been taken (te_generation_next)",
               g->event_count - g->event_next);
    te__generation_step *now = &g->step[g->current], *before = &g->step[g->current ^ 1];
    g->event_count = g->event_next = 0, g->is_broken = 1;
    TE_TRY(te__generation_enqueue(g, ctx));
    TE_TRY(te__generation_collect(g, before, ctx));
    if (!g->lag) TE_TRY(te__generation_collect(g, now, ctx));
    g->current ^= 1, g->is_broken = 0;
    return TE_OK;
}
/* Store the next event of the last step in *e, and return 1; return 0 if there is no further event. */
TE_API int te_generation_next(te_generation *g, te_generation_event *e) {
    if (!g || g->event_next >= g->event_count) return 0;
    *e = g->event[g->event_next++];
    return 1;
}

#endif
