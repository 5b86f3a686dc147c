/* cache_tables.h -- te_cache, the struct of a key-value cache, and the functions by which ops read it: where the keys
 * and values of an attention are, and how many tokens of each sequence are cached. The functions that initialise and
 * change a cache are in te/cache/cache.h, which te/te.h leaves out.
 */
#ifndef TE_CACHE_TABLES_H
#define TE_CACHE_TABLES_H

#include "../../attention/attention_options.h" /* te_attention_cache, te_cache_format */
#include "../../core/target.h"                 /* te__check_target */
#include "../../plan/model.h"                  /* te_model, te_op */

enum { TE_CACHE_MAX_LAYERS = 256 };

/* A layer: the part of the cache for one attention of one model. Each page of the cache has a section for each layer. A
 * section contains the keys of all heads, [kv_heads, page_rows, head_dim], followed by the values, [kv_heads,
 * page_rows, value_dim], unless the values are parts of the keys (values_in_keys). Keys and values are in the format
 * with which the attention was declared (te_attention_cache). */
typedef struct te_cache_layer {
    const te_model *model;
    int op;
    te_cache_format format;
    /* the distance from the start of one page to the start of the next, in elements of the op list's dtype or, in the
     * formats of 8 bits, in bytes */
    int64_t page_elements;
    char *pages;           /* the address of this layer's section of page 0 */
} te_cache_layer;

/* The sizes of a cache, and pointers to its arrays in target memory, which kernels read and write. */
typedef struct te_cache_tables {
    /* page_shift: the base-2 logarithm of page_rows, or 31 if each sequence has a single page; table_width: the number
     * of entries in each row of `table` */
    int sequences, capacity, page_rows, page_shift, pages, table_width;
    /* [sequences]: the number of tokens that each sequence has in the cache, including the new tokens of the last
     * te_cache_begin */
    int32_t *length;
    /* [sequences, table_width]: the indices of the pages of each sequence, in the order of its tokens */
    int32_t *table;
    int32_t *use_count; /* [pages]: the number of sequences that use each page */
    int32_t *free_page; /* [pages]: a stack of the indices of the pages that no sequence uses */
    int32_t *free_count; /* the number of pages on the stack free_page */
    /* the errors since the last te_cache_check, as a combination of the bits TE_CACHE_FULL, TE_CACHE_TOO_LONG and
     * TE_CACHE_NO_SLOT */
    int32_t *status;
    /* [2]: te_cache_truncate and te_cache_fork copy page copy[0] to page copy[1]; both are -1 if nothing is to be
     * copied */
    int32_t *copy;
    char *pages_memory; /* [pages, page_bytes] */
    int64_t page_bytes;
    int32_t *slot;      /* [sequences]: for each sequence of the current batch, its index in the cache */
    /* [sequences]: for each sequence of the current batch, how many of its tokens were in the cache before the batch,
     * or -1 if its new tokens did not fit or its slot is TE_CACHE_PADDING */
    int32_t *past;
    /* memory in which the decoding kernel stores partial results (te_attention_cache) */
    float *partials;
    int decode_rows;
} te_cache_tables;

/* the errors, as bits of *te_cache_tables.status: no page is free; a sequence has more tokens than the capacity; a slot
 * does not exist */
enum { TE_CACHE_FULL = 1, TE_CACHE_TOO_LONG = 2, TE_CACHE_NO_SLOT = 4 };

typedef struct te_cache {
    te_cache_tables t;
    /* the address that this struct had when it was initialised; calls compare addresses to detect that the struct was
     * moved */
    const struct te_cache *at;
    int begun_rows; /* the number of rows of the batch of the last te_cache_begin, or 0 before the first one */
    int layer_count;
    te_cache_layer layer[TE_CACHE_MAX_LAYERS];
} te_cache;

/* Return the array te_cache_tables.past of the batch's cache: how many tokens of each sequence were in the cache before
 * the batch. Null if the batch has no cache. */
TE_API const int32_t *te__cache_past(const te_batch *b) { return b && b->cache ? b->cache->t.past : 0; }

TE_API te_status te__cache_check_ready(const te_cache *c, const char *who, te_context *ctx) {
    TE_TRY(te__check_target(ctx, who));
    TE_REQUIRE(c && c->at == c, ctx, TE_ERROR_STATE, "%s: the cache has not been initialised, or moved since", who);
    return TE_OK;
}
/* Return the layer of the cache that belongs to op i of model m; null if the cache was initialised without this
 * model. */
TE_API const te_cache_layer *te__cache_layer_of(const te_cache *c, const te_model *m, int i) {
    for (int k = 0; k < c->layer_count; k++)
        if (c->layer[k].model == m && c->layer[k].op == i) return &c->layer[k];
    return 0;
}
TE_API te_attention_cache te__cache_of_layer(const te_cache *c, const te_cache_layer *l) {
    te_attention_cache a;
    a.pages = l->pages, a.table = c->t.table, a.slot = c->t.slot, a.past = c->t.past;
    a.page_elements = l->page_elements, a.page_rows = c->t.page_rows, a.page_shift = c->t.page_shift;
    a.page_count = c->t.pages, a.table_width = c->t.table_width, a.partials = c->t.partials;
    a.decode_rows = c->t.decode_rows, a.decode_stages = a.decode_cluster = 0;
    a.capacity = c->t.capacity, a.zero_rows = a.short_rows = 0;
    return a;
}

#endif
