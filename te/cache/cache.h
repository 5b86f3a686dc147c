/* cache.h -- the key-value cache of inference. The cache holds the keys and values of all tokens that a model has
 * processed, so that a pass computes only the rows of new tokens. The cache is in memory that the caller provides, and
 * consists of pages; a sequence takes more pages as it grows.
 *
 * Do this, for op lists whose attentions have the option (cache, 1) or, in 8 bits, (cache, int8) or (cache, e4m3):
 *     te_cache_config config = te_cache_defaults();
 *     config.sequences = 8, config.capacity = 4096;
 *     te_model *models[] = {&block[0].model, &block[1].model, ..};
 *     TE_TRY(te_cache_init(&cache, memory, te_cache_bytes(models, count, &config), models, count, &config, &ctx));
 *     batch.cache = &cache;                                  // the batch's rows are tokens that follow the cached ones
 *     TE_TRY(te_cache_begin(&cache, &batch, &ctx));          // once for each batch, before the first model
 *     for (i = 0; i < count; i++) TE_TRY(block_infer(y, x, &block[i], &batch, &ctx));
 *
 * te_cache_begin takes pages for the new tokens of the batch and adds these tokens to the lengths of their sequences.
 * Each attention then stores the keys and values of the new tokens, and attends to all tokens of a sequence, cached and
 * new. Sequence i of the batch is sequence te_batch.slots[i] of the cache, or sequence i if te_batch.slots is null; no
 * sequence may be in a batch twice. The positions of new tokens, for rope and learnt positions, continue those of the
 * tokens in the cache. Sequences whose slot is TE_CACHE_PADDING only fill up the batch: the results of their rows are
 * zeros, and nothing is stored or reported for them.
 *
 * Lengths, page tables and the list of free pages are arrays in device memory, which the host never reads. Therefore
 * one captured graph of te_cache_begin and the models works for all lengths. If a sequence of a batch does not fit (no
 * free page, more than `capacity` tokens, or a slot that does not exist), it stays as it was, the results of its rows
 * are zeros, and te_cache_check reports the error.
 */
#ifndef TE_CACHE_H
#define TE_CACHE_H

#include "../attention/impl/attention_cached.h" /* TE_ATTENTION_CACHED_OF, for lists with (cache, ..) */
#include "../core/lanes.h"                      /* te_lanes, te_block_sync */
#include "../plan/impl/call_checks.h"           /* te__check_sequences */
#include "impl/cache_tables.h"                  /* te_cache, te_cache_tables, te_cache_layer */

enum {
    TE_CACHE_MAX_PAGES = 1 << 24,
    /* In te_batch.slots: marks a sequence whose rows only fill up the batch, for instance to the size of a captured
     * graph. */
    TE_CACHE_PADDING = -1
};

typedef struct te_cache_config {
    int sequences; /* the number of sequences that the cache can hold at the same time */
    int capacity;  /* the largest number of tokens that a sequence can have in the cache */
    /* the number of rows (tokens) in a page: a power of two of at least 16, or 0 to give each sequence a single page of
     * `capacity` rows */
    int page_rows;
    /* the number of pages of the cache, or 0 for as many as all sequences need at their full capacity */
    int pages;
    /* The largest number of new tokens per sequence for which the decoding kernel can run. This kernel divides the keys
     * of a sequence among many blocks. Another kernel processes sequences with more new tokens. Set decode_rows to 1,
     * or to more for speculative decoding. */
    int decode_rows;
} te_cache_config;

/* Return the default config: one sequence of up to 2048 tokens, in one page. */
TE_API te_cache_config te_cache_defaults(void) {
    te_cache_config c;
    c.sequences = 1, c.capacity = 2048, c.page_rows = 0, c.pages = 0, c.decode_rows = 1;
    return c;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

TE_API const te_attention_options *te__cached_options(const te_op *op) {
    return op->flags & TE_IS_CACHED ? (const te_attention_options *)op->options : 0;
}
TE_API te_cache_format te__cache_format_of(const te_op *op) {
    return (te_cache_format)((unsigned)(op->flags & TE_IS_CACHED) >> TE_CACHE_FORMAT_SHIFT);
}
/* Return the size of an element of a cache in bytes. dtype: the dtype of the op list. */
TE_API size_t te__cache_element_bytes(te_cache_format format, te_dtype dtype) {
    return TE__CACHE_HAS_SCALES(format) ? 1 : te_dtype_bytes(dtype);
}
/* Return the number of bytes that an attention stores in the cache for each token: its keys and values of all heads,
 * and their scales. dtype: the dtype of the op list. */
TE_API int64_t te__cache_token_bytes(const te_op *op, te_dtype dtype) {
    const te_attention_options *o = te__cached_options(op);
    const int format = (int)te__cache_format_of(op);
    const int of_value = o->stored_value_dim ? te__cache_row_size(o->stored_value_dim, format) : 0;
    return (int64_t)o->kv_heads * (te__cache_row_size(o->head_dim, format) + of_value) *
           (int64_t)te__cache_element_bytes((te_cache_format)format, dtype);
}
/* Returns the config in which page_rows and pages, if they are 0, are replaced by the numbers for which 0 stands
 * (te_cache_config). */
TE_API te_cache_config te__cache_complete(te_cache_config c) {
    if (!c.page_rows) c.page_rows = (int)te_round_up(c.capacity, TE_CACHE_MIN_PAGE);
    const int64_t all = (int64_t)c.sequences * te_ceil_div(c.capacity, c.page_rows);
    if (!c.pages) c.pages = (int)te_min(all, TE_CACHE_MAX_PAGES);
    return c;
}
/* Lays out the memory for the decoding kernel's partial results, from memory + at on. All attentions of the models use
 * the same memory, which has the size that the largest partial results need. Returns the offset of the end of this
 * memory. */
TE_API size_t te__cache_lay_out_decode(te_cache_tables *t, char *memory, size_t at, te_model *const *models, int count,
                                       const te_cache_config *complete) {
    const int64_t rows = complete->decode_rows;
    int64_t floats = 0;
    for (int k = 0; k < count; k++)
        for (int i = 0; i < models[k]->plan->op_count; i++) {
            const te_attention_options *o = te__cached_options(&models[k]->plan->op[i]);
            if (!o || models[k]->plan->dtype == TE_f32) continue;
            const int group = o->heads / o->kv_heads, in_keys = !o->stored_value_dim;
            const int64_t longest = te__cache_max_splits(complete->capacity, in_keys);
            const int64_t tiles = te_min(te__decode_tiles((int)rows, group), te__decode_max_tiles(in_keys));
            const int64_t partial = TE__DECODE_PARTIAL_FLOATS(TE__DECODE_TILE_ROWS(group), o->value_dim);
            if (TE_CUDA)
                floats = te_max(floats, longest * partial *
                                            te_min((int64_t)complete->sequences * o->kv_heads * tiles,
                                                   TE__DECODE_MAX_BLOCKS));
        }
    t->decode_rows = complete->decode_rows;
    if (memory) t->partials = (float *)(void *)(memory + at);
    return at + (size_t)te_round_up(floats * (int64_t)sizeof(float), TE_ALIGN);
}
/* Lays out, from `memory` on, the arrays of the cache followed by its pages, and sets the pointers in *c. Returns the
 * number of bytes. If memory is null, only computes this number. */
TE_API size_t te__cache_lay_out(te_cache *c, char *memory, te_model *const *models, int count,
                                const te_cache_config *complete) {
    const size_t sequences = (size_t)complete->sequences, pages = (size_t)complete->pages;
    const size_t width = (size_t)te_ceil_div(complete->capacity, complete->page_rows);
    const size_t elements[] = {sequences, sequences * width, pages,     pages,        1,
                               1,         2,                 sequences, sequences};
    te_cache_tables *t = &c->t;
    int32_t **const array[] = {&t->length, &t->table, &t->use_count, &t->free_page, &t->free_count,
                               &t->status, &t->copy,  &t->slot,      &t->past};
    size_t at = 0;
    for (size_t i = 0; i < sizeof elements / sizeof elements[0]; i++) {
        if (memory) *array[i] = (int32_t *)(void *)(memory + at);
        at += (size_t)te_round_up((int64_t)(elements[i] * sizeof(int32_t)), TE_ALIGN);
    }
    at = te__cache_lay_out_decode(t, memory, at, models, count, complete);
    c->layer_count = 0, t->page_bytes = 0, t->pages_memory = memory ? memory + at : 0;
    for (int k = 0; k < count; k++)
        for (int i = 0; i < models[k]->plan->op_count; i++) {
            const te_op *op = &models[k]->plan->op[i];
            if (!te__cached_options(op)) continue;
            if (c->layer_count < TE_CACHE_MAX_LAYERS) {
                te_cache_layer *l = &c->layer[c->layer_count];
                l->model = models[k], l->op = i, l->pages = memory ? t->pages_memory + t->page_bytes : 0;
                l->format = te__cache_format_of(op);
            }
            c->layer_count++;
            t->page_bytes += te_round_up(te__cache_token_bytes(op, models[k]->plan->dtype) * complete->page_rows,
                                         TE_ALIGN);
        }
    for (int k = 0; k < c->layer_count && k < TE_CACHE_MAX_LAYERS; k++) {
        te_cache_layer *l = &c->layer[k];
        l->page_elements = t->page_bytes / (int64_t)te__cache_element_bytes(l->format, l->model->plan->dtype);
    }
    return at + (size_t)(t->page_bytes * complete->pages);
}
TE_API te_status te__cache_check(const te_cache_config *c, te_model *const *models, int count, te_context *ctx) {
    TE_REQUIRE(c && models && count > 0, ctx, TE_ERROR_NULL, "te_cache: config or models is null, or count is 0");
    TE_REQUIRE(c->sequences > 0 && c->capacity > 0 && c->capacity <= TE_ATTENTION_MAX_SEQ, ctx, TE_ERROR_VALUE,
               "te_cache: %d sequences of %d tokens; both must be positive, and a sequence has at most %d",
               c->sequences, c->capacity, (int)TE_ATTENTION_MAX_SEQ);
    TE_REQUIRE(!c->page_rows || (c->page_rows >= TE_CACHE_MIN_PAGE && !(c->page_rows & (c->page_rows - 1))), ctx,
               TE_ERROR_VALUE, "te_cache: page_rows %d is neither 0 nor a power of two of at least %d", c->page_rows,
               (int)TE_CACHE_MIN_PAGE);
    TE_REQUIRE(c->decode_rows > 0 && c->decode_rows <= 64, ctx, TE_ERROR_VALUE,
               "te_cache: decode_rows %d; 1 to 64 can be", c->decode_rows);
    TE_REQUIRE(c->pages >= 0 && c->pages <= TE_CACHE_MAX_PAGES, ctx, TE_ERROR_VALUE,
               "te_cache: %d pages; 0 to %d can be", c->pages, (int)TE_CACHE_MAX_PAGES);
    for (int k = 0; k < count; k++)
        TE_REQUIRE(models[k] && models[k]->plan, ctx, TE_ERROR_STATE, "te_cache: model %d has not been bound", k);
    return TE_OK;
}
/* Return the number of bytes of target memory that te_cache_init needs; the memory must be aligned to TE_ALIGN. Returns
 * 0 if the config or a model is not valid. */
TE_API size_t te_cache_bytes(te_model *const *models, int count, const te_cache_config *config) {
    te_cache c;
    if (te__cache_check(config, models, count, 0) != TE_OK) return 0;
    const te_cache_config complete = te__cache_complete(*config);
    return te__cache_lay_out(&c, 0, models, count, &complete);
}

/* ---- kernels that change the tables ------------------------------------------------------------------------------ */

enum { TE_CACHE_THREADS = TE_CUDA ? 256 : 1 };

typedef struct te_cache_args {
    te_cache_tables t;
    te_sequences of;      /* for te_cache_begin: the first row and the number of rows of each sequence of the batch */
    const int32_t *slots; /* for te_cache_begin: te_batch.slots, which may be null */
    /* arguments of te_cache_truncate, te_cache_fork and te_cache_move, which have the same names there */
    int slot, from, length;
} te_cache_args;

/* Exclusive prefix sum over the threads of a block: returns the sum of `value` over all threads with a lower index, and
 * sets *total to the sum over all threads. */
TE_FN int te__cache_scan(int value, int *total) {
#if TE_CUDA
    __shared__ int te_warp_sums[TE_CACHE_THREADS / 32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int sum = value, before = 0;
    TE_UNROLL for (int o = 1; o < 32; o *= 2) {
        const int other = __shfl_up_sync(~0u, sum, o);
        if (lane >= o) sum += other;
    }
    __syncthreads();
    if (lane == 31) te_warp_sums[warp] = sum;
    __syncthreads();
    *total = 0;
    TE_UNROLL for (int w = 0; w < TE_CACHE_THREADS / 32; w++) {
        if (w < warp) before += te_warp_sums[w];
        *total += te_warp_sums[w];
    }
    return before + sum - value;
#else
    *total = value;
    return 0;
#endif
}
TE_FN void te__cache_report(const te_cache_tables *t, int bit) {
#if TE_CUDA
    atomicOr((int *)t->status, bit);
#else
    *t->status |= bit;
#endif
}
TE_FN int te__cache_pages_of(const te_cache_tables *t, int length) {
    return (length + t->page_rows - 1) / t->page_rows;
}
/* The body of the kernel of te_cache_begin. One block processes TE_CACHE_THREADS sequences of the batch at a time, one
 * in each thread. */
TE_FN void te__cache_begin_body(const te_cache_args *a) {
    const te_cache_tables *t = &a->t;
    int group;
    const te_lanes g = te_lanes_here(TE_CACHE_THREADS, &group);
    int free_count = *t->free_count;
    for (int base = 0; base < a->of.count; base += g.count) {
        const int i = base + g.id, here = i < a->of.count, slot = !here ? 0 : a->slots ? a->slots[i] : i;
        const int exists = slot >= 0 && slot < t->sequences, past = here && exists ? t->length[slot] : 0;
        const int length = past + (here ? te_sequence_rows(&a->of, i).count : 0);
        const int fits = here && exists && length <= t->capacity;
        const int has = te__cache_pages_of(t, past), needs = fits ? te__cache_pages_of(t, length) - has : 0;
        int total;
        const int before = te__cache_scan(needs, &total), has_pages = before + needs <= free_count;
        const int taken = fits && has_pages ? needs : 0;
        if (here && !exists && slot != TE_CACHE_PADDING) te__cache_report(t, TE_CACHE_NO_SLOT);
        if (here && exists && !fits) te__cache_report(t, TE_CACHE_TOO_LONG);
        if (fits && !has_pages) te__cache_report(t, TE_CACHE_FULL);
        for (int p = 0; p < taken; p++) {
            const int page = t->free_page[free_count - 1 - before - p];
            t->table[(int64_t)slot * t->table_width + has + p] = page, t->use_count[page] = 1;
        }
        const int accepted = fits && has_pages;
        if (here) t->slot[i] = exists ? slot : 0, t->past[i] = accepted ? past : -1;
        if (accepted) t->length[slot] = length;
        (void)te__cache_scan(taken, &total);
        free_count -= total;
    }
    te_block_sync(); /* all threads have read *t->free_count, which may now be changed */
    if (g.id == 0) *t->free_count = free_count;
}
/* Gives a sequence its own copy of a shared last page; called by one thread of te_cache_truncate and te_cache_fork.
 * Sequence `slot` has `length` tokens; the last tokens do not fill a page, and are in page `from`, which other
 * sequences use, too. The function takes a free page for these tokens; te__cache_copy will copy page `from` to it. If
 * no page is free, the sequence keeps only its full pages, and the error TE_CACHE_FULL is recorded. */
TE_FN void te__cache_own_last_page(const te_cache_tables *t, int slot, int length, int from) {
    const int full = length / t->page_rows, has_page = *t->free_count > 0;
    if (has_page) {
        const int page = t->free_page[--*t->free_count];
        t->table[(int64_t)slot * t->table_width + full] = page, t->use_count[page] = 1;
        t->copy[0] = from, t->copy[1] = page;
    } else te__cache_report(t, TE_CACHE_FULL);
    t->length[slot] = has_page ? length : full * t->page_rows;
}
/* The body of the kernel of te_cache_truncate, with one block. Sequence `slot` keeps its first `length` tokens and
 * their pages. The use counts of its other pages are decremented, and a page whose use count becomes 0 is free again.
 * If the last page that the sequence keeps is shared and not full, the sequence gets a copy of it, because new tokens
 * will be written to it. */
TE_FN void te__cache_truncate_body(const te_cache_args *a) {
    const te_cache_tables *t = &a->t;
    int group;
    const te_lanes g = te_lanes_here(TE_CACHE_THREADS, &group);
    const int has = te__cache_pages_of(t, t->length[a->slot]);
    const int keeps = te__cache_pages_of(t, a->length < t->length[a->slot] ? a->length : t->length[a->slot]);
    int free_count = *t->free_count;
    for (int base = keeps; base < has; base += g.count) {
        const int p = base + g.id, page = p < has ? t->table[(int64_t)a->slot * t->table_width + p] : 0;
        const int is_free = p < has && --t->use_count[page] == 0;
        int total;
        const int before = te__cache_scan(is_free, &total);
        if (is_free) t->free_page[free_count + before] = page;
        free_count += total;
    }
    const int length = t->length[a->slot], keeps_tokens = a->length < length ? a->length : length;
    /* after this barrier all threads have read *t->free_count and the length, which may now be changed */
    te_block_sync();
    if (g.id != 0) return;
    *t->free_count = free_count, t->copy[0] = t->copy[1] = -1, t->length[a->slot] = keeps_tokens;
    const int last = keeps ? t->table[(int64_t)a->slot * t->table_width + keeps - 1] : 0;
    if (keeps_tokens % t->page_rows == 0 || t->use_count[last] == 1) return;
    t->use_count[last]--;
    te__cache_own_last_page(t, a->slot, keeps_tokens, last);
}
/* The body of the kernel of te_cache_fork, with one block. Sequence `slot`, which must be empty, becomes a copy of
 * sequence `from`. Both sequences use the same full pages; if the last page is not full, sequence `slot` gets a copy of
 * the page. */
TE_FN void te__cache_fork_body(const te_cache_args *a) {
    const te_cache_tables *t = &a->t;
    int group;
    const te_lanes g = te_lanes_here(TE_CACHE_THREADS, &group);
    const int length = t->length[a->from], full = length / t->page_rows, rest = length % t->page_rows;
    const int32_t *from = t->table + (int64_t)a->from * t->table_width;
    int32_t *to = t->table + (int64_t)a->slot * t->table_width;
    for (int p = g.id; p < full; p += g.count) to[p] = from[p], t->use_count[from[p]]++;
    if (g.id != 0) return;
    t->copy[0] = t->copy[1] = -1, t->length[a->slot] = length;
    if (rest) te__cache_own_last_page(t, a->slot, length, from[full]);
}
/* The body of the kernel of te_cache_move, with one block. Moves all tokens of sequence `from` to sequence `slot`,
 * which must be empty. Afterwards sequence `from` is empty. */
TE_FN void te__cache_move_body(const te_cache_args *a) {
    const te_cache_tables *t = &a->t;
    int group;
    const te_lanes g = te_lanes_here(TE_CACHE_THREADS, &group);
    const int length = t->length[a->from], pages = te__cache_pages_of(t, length);
    const int32_t *from = t->table + (int64_t)a->from * t->table_width;
    int32_t *to = t->table + (int64_t)a->slot * t->table_width;
    for (int p = g.id; p < pages; p += g.count) to[p] = from[p];
    te_block_sync(); /* all threads have read the length, which may now be changed */
    if (g.id == 0) t->length[a->slot] = length, t->length[a->from] = 0;
}
/* te__cache_begin waits until all earlier kernels have ended, and no later kernel starts before te__cache_begin has
 * ended (NO_OVERLAP). Therefore an attention may read the tables, and the keys and values of earlier batches, before
 * the kernel that precedes the attention has ended (attention_sm90_decode.h). */
TE_KERNEL_IF_USED_NO_OVERLAP(te__cache_begin, TE_CACHE_THREADS, 1, te_cache_args, te__cache_begin_body(te_args))
TE_KERNEL_IF_USED(te__cache_truncate, TE_CACHE_THREADS, 1, te_cache_args, te__cache_truncate_body(te_args))
TE_KERNEL_IF_USED(te__cache_fork, TE_CACHE_THREADS, 1, te_cache_args, te__cache_fork_body(te_args))
TE_KERNEL_IF_USED(te__cache_move, TE_CACHE_THREADS, 1, te_cache_args, te__cache_move_body(te_args))

/* The kernel te__cache_copy copies page te_cache_tables.copy[0] of the cache to page copy[1]. Grid: one block for every
 * TE_CACHE_COPY 4-byte words of a page. */
enum { TE_CACHE_COPY = TE_CUDA ? 4096 : 1 << 20 };
TE_FN void te__cache_copy_body(const te_cache_args *a, te_block b) {
    int group;
    const te_lanes g = te_lanes_here(TE_CACHE_THREADS, &group);
    const te_cache_tables *t = &a->t;
    if (t->copy[1] < 0) return;
    const int64_t count = t->page_bytes / 4, first = (int64_t)b.x * TE_CACHE_COPY;
    const uint32_t *from = (const uint32_t *)(const void *)t->pages_memory + t->copy[0] * count;
    uint32_t *to = (uint32_t *)(void *)t->pages_memory + t->copy[1] * count;
    for (int64_t i = first + g.id; i < te_min(count, first + TE_CACHE_COPY); i += g.count) to[i] = from[i];
}
TE_KERNEL_IF_USED(te__cache_copy, TE_CACHE_THREADS, 1, te_cache_args, te__cache_copy_body(te_args, te_at))

/* Initialises the arrays of a cache: all sequences are empty and all pages are free, with page 0 on top of the stack.
 * Grid: max(pages, sequences) threads, in blocks of TE_CACHE_THREADS. */
TE_FN void te__cache_clear_body(const te_cache_args *a, te_block b) {
    const te_cache_tables *t = &a->t;
    int group;
    const te_lanes g = te_lanes_here(TE_CACHE_THREADS, &group);
    const int i = b.x * TE_CACHE_THREADS + g.id;
    if (i < t->pages) t->free_page[i] = t->pages - 1 - i, t->use_count[i] = 0;
    if (i < t->sequences) t->length[i] = 0, t->slot[i] = 0, t->past[i] = -1;
    if (i == 0) *t->free_count = t->pages, *t->status = 0;
}
TE_KERNEL_IF_USED(te__cache_clear, TE_CACHE_THREADS, 1, te_cache_args, te__cache_clear_body(te_args, te_at))

/* ---- for programs ------------------------------------------------------------------------------------------------ */

TE_API te_status te__cache_check_slot(const te_cache *c, int slot, const char *who, te_context *ctx) {
    TE_TRY(te__cache_check_ready(c, who, ctx));
    TE_REQUIRE(slot >= 0 && slot < c->t.sequences, ctx, TE_ERROR_VALUE, "%s: sequence %d of a cache of %d", who, slot,
               c->t.sequences);
    return TE_OK;
}
TE_API te_cache_args te__cache_args(const te_cache *c) {
    te_cache_args a;
    memset(&a, 0, sizeof a);
    a.t = c->t;
    return a;
}
TE_API te_grid te__cache_copy_grid(const te_cache *c) {
    return te__grid_of(te_ceil_div(c->t.page_bytes / 4, TE_CACHE_COPY), 1);
}
/* Initialise *c as an empty cache for all attentions of these models that are declared with the option cache. memory:
 * target memory of at least te_cache_bytes bytes, aligned to TE_ALIGN. */
TE_IF_USED TE_API te_status te_cache_init(te_cache *c, void *memory, size_t bytes, te_model *const *models,
                                          int count, const te_cache_config *config, te_context *ctx) {
    TE_REQUIRE(c && memory, ctx, TE_ERROR_NULL, "te_cache_init: the cache or its memory is null");
    TE_TRY(te__check_target(ctx, "te_cache_init"));
    TE_TRY(te__cache_check(config, models, count, ctx));
    TE_REQUIRE((uintptr_t)memory % TE_ALIGN == 0, ctx, TE_ERROR_ALIGNMENT, "te_cache_init: memory is not aligned to %d",
               (int)TE_ALIGN);
    memset(c, 0, sizeof *c);
    const te_cache_config complete = te__cache_complete(*config);
    const size_t needs = te__cache_lay_out(c, (char *)memory, models, count, &complete);
    TE_REQUIRE(c->layer_count > 0 && c->layer_count <= TE_CACHE_MAX_LAYERS, ctx, TE_ERROR_VALUE,
               "te_cache_init: the models have %d attentions with (cache, 1); 1 to %d can be", c->layer_count,
               (int)TE_CACHE_MAX_LAYERS);
    TE_REQUIRE(needs <= bytes, ctx, TE_ERROR_MEMORY, "te_cache_init: %zu bytes are needed, there are %zu", needs,
               bytes);
    c->t.sequences = complete.sequences, c->t.capacity = complete.capacity, c->t.pages = complete.pages;
    c->t.page_rows = complete.page_rows, c->t.page_shift = config->page_rows ? 0 : 31;
    while (config->page_rows && 1 << c->t.page_shift < config->page_rows) c->t.page_shift++;
    c->t.table_width = (int)te_ceil_div(complete.capacity, complete.page_rows);
    c->at = c;
    const te_cache_args a = te__cache_args(c);
    const int64_t most = te_max(complete.pages, complete.sequences);
    return te__cache_clear_launch(ctx, te__grid_of(te_ceil_div(most, TE_CACHE_THREADS), 1), &a);
}
/* Prepare a batch whose te_batch.cache is c: take pages for its new tokens, and add these tokens to the lengths of
 * their sequences. Call this once for each batch, before the models run. */
TE_IF_USED TE_API te_status te_cache_begin(te_cache *c, const te_batch *b, te_context *ctx) {
    TE_TRY(te__cache_check_ready(c, "te_cache_begin", ctx));
    TE_REQUIRE(b && b->cache == c, ctx, TE_ERROR_STATE, "te_cache_begin: batch.cache is not this cache");
    TE_REQUIRE(b->batch > 0 && b->seq > 0, ctx, TE_ERROR_SHAPE, "te_cache_begin: batch %d and seq %d must be positive",
               b->batch, b->seq);
    TE_TRY(te__check_sequences(b, "te_cache_begin", ctx));
    te_cache_args a = te__cache_args(c);
    a.of = te__sequences_of_batch(b), a.slots = b->slots;
    TE_REQUIRE(a.of.count <= c->t.sequences, ctx, TE_ERROR_SHAPE, "te_cache_begin: %d sequences, the cache has %d",
               a.of.count, c->t.sequences);
    c->begun_rows = a.of.rows;
    return te__cache_begin_launch(ctx, te__grid_of(1, 1), &a);
}
/* Shorten sequence `slot` to its first `length` tokens, and free the pages of its other tokens. `length` may be 0. A
 * sequence of `length` tokens or fewer stays as it is. If the last page that the sequence keeps is shared and not full,
 * the sequence gets a copy of it. */
TE_IF_USED TE_API te_status te_cache_truncate(const te_cache *c, int slot, int length, te_context *ctx) {
    TE_TRY(te__cache_check_slot(c, slot, "te_cache_truncate", ctx));
    TE_REQUIRE(length >= 0, ctx, TE_ERROR_VALUE, "te_cache_truncate: length %d", length);
    te_cache_args a = te__cache_args(c);
    a.slot = slot, a.length = length;
    TE_TRY(te__cache_truncate_launch(ctx, te__grid_of(1, 1), &a));
    return te__cache_copy_launch(ctx, te__cache_copy_grid(c), &a);
}
/* Removes all tokens of sequence `slot`, and sets *a to the arguments of a kernel that then copies or moves the tokens
 * of sequence `from` to sequence `slot`. If `slot` and `from` are the same sequence, nothing is removed. who: the
 * caller's name, for error texts. */
TE_IF_USED TE_API te_status te__cache_replace(te_cache_args *a, const te_cache *c, int slot, int from, const char *who,
                                              te_context *ctx) {
    TE_TRY(te__cache_check_slot(c, slot, who, ctx));
    TE_TRY(te__cache_check_slot(c, from, who, ctx));
    *a = te__cache_args(c);
    a->slot = slot, a->from = from;
    return slot == from ? TE_OK : te_cache_truncate(c, slot, 0, ctx);
}
/* Make sequence `slot` a copy of sequence `from`; the tokens that `slot` had before are removed. The two sequences
 * share all full pages. Use this for prompts that have a common prefix, or for beam search. */
TE_IF_USED TE_API te_status te_cache_fork(const te_cache *c, int slot, int from, te_context *ctx) {
    te_cache_args a;
    TE_TRY(te__cache_replace(&a, c, slot, from, "te_cache_fork", ctx));
    if (slot == from) return TE_OK;
    TE_TRY(te__cache_fork_launch(ctx, te__grid_of(1, 1), &a));
    return te__cache_copy_launch(ctx, te__cache_copy_grid(c), &a);
}
/* Move all tokens of sequence `from` to sequence `slot`, whose previous tokens are removed; sequence `from` is empty
 * afterwards. No page is copied. */
TE_IF_USED TE_API te_status te_cache_move(const te_cache *c, int slot, int from, te_context *ctx) {
    te_cache_args a;
    TE_TRY(te__cache_replace(&a, c, slot, from, "te_cache_move", ctx));
    if (slot == from) return TE_OK;
    return te__cache_move_launch(ctx, te__grid_of(1, 1), &a);
}
/* Copy the number of tokens of each sequence to lengths[sequences] on the host. Waits for the stream. */
TE_API te_status te_cache_lengths(const te_cache *c, int32_t *lengths, te_context *ctx) {
    TE_TRY(te__cache_check_ready(c, "te_cache_lengths", ctx));
    TE_REQUIRE(lengths, ctx, TE_ERROR_NULL, "te_cache_lengths: lengths is null");
    TE_TRY(te_copy(ctx, lengths, c->t.length, (size_t)c->t.sequences * sizeof *lengths));
    return te_synchronize(ctx);
}
/* Return the error, if any, of the calls of te_cache_begin, te_cache_truncate and te_cache_fork since the last
 * te_cache_check, and clear it: TE_ERROR_VALUE (a slot that does not exist), TE_ERROR_SHAPE (more tokens than the
 * capacity) or TE_ERROR_MEMORY (no free page). Waits for the stream. */
TE_API te_status te_cache_check(const te_cache *c, te_context *ctx) {
    int32_t status = 0, none = 0;
    TE_TRY(te__cache_check_ready(c, "te_cache_check", ctx));
    TE_TRY(te_copy(ctx, &status, c->t.status, sizeof status));
    TE_TRY(te_synchronize(ctx));
    if (!status) return TE_OK;
    TE_TRY(te_copy(ctx, c->t.status, &none, sizeof none));
    TE_TRY(te_synchronize(ctx));
    TE_REQUIRE(!(status & TE_CACHE_NO_SLOT), ctx, TE_ERROR_VALUE, "te_cache: a batch named a sequence outside 0 to %d",
               c->t.sequences - 1);
    TE_REQUIRE(!(status & TE_CACHE_TOO_LONG), ctx, TE_ERROR_SHAPE,
               "te_cache: a sequence would have more than the cache's capacity of %d tokens", c->t.capacity);
    TE_REQUIRE(!status, ctx, TE_ERROR_MEMORY, "te_cache: none of the %d pages is free", c->t.pages);
    return TE_OK;
}

#endif
