/* cache_file.h -- saves the keys and values of one sequence of a te_cache to a file, and loads them into a cache for
 * the same lists of ops. The sequence may be a prompt that many texts begin with, or a conversation that is continued
 * later. Results computed after loading are bitwise identical to those without saving and loading (with -DTE_CBLAS only
 * if the number of threads is the same).
 *
 * Do this:
 *     TE_TRY(te_cache_save(&cache, slot, tokens, "prompt.safetensors", &ctx));           // tokens: may be null
 *     ...
 *     TE_TRY(te_cache_load(&cache, slot, tokens, &length, "prompt.safetensors", &ctx));  // replaces sequence `slot`
 *
 * The file is a safetensors file with a checksum. Each attention op of the cache's models is one layer; the layers are
 * numbered from 0. For each layer (here layer 0) the file has
 *     layer.0.keys      [kv_heads, length, head_dim], in the dtype of the list of ops or, with the option cache, in I8
 *                       or F8_E4M3
 *     layer.0.values    [kv_heads, length, value_dim]; missing with the option values_in_keys
 *     layer.0.key_scales, layer.0.value_scales     [kv_heads, length], F32, only for a cache of 8 bits
 *     tokens            [length], I32, if the program passes the sequence's tokens
 * and, in the metadata, each layer's list of ops as a text (te/io/weights.h). The file does not depend on the
 * layout of the cache, i.e. the number of rows of a page and the order of the elements in a row. So a host and a GPU
 * can exchange files. The file does not identify the weights: a file that was saved with other weights loads without an
 * error, but its keys and values are wrong. With several ranks, each rank saves its own heads to a separate file.
 */
#ifndef TE_CACHE_FILE_H
#define TE_CACHE_FILE_H

#include "../cache/cache.h" /* te_cache */
#include "safetensors.h"    /* te_safetensors_open, te_safetensors_verify */
#include "weights.h"        /* te__plan_key, te__plan_text, te__weights_check_plan */

enum { TE__CACHE_FILE_NAME = 32 };

/* What a tensor of the file holds: the keys of layer number `layer` (value 0), or the values of this layer (value 1).
 * If `scales` is 1, the tensor holds the scales of the keys or values instead. */
typedef struct te__cache_file_part { int layer, value, scales; } te__cache_file_part;

/* The state while a cache file is written or read. All arrays lie in host memory. */
typedef struct te__cache_file {
    const te_cache *cache;
    te_safetensor *tensor; /* [4 * layers + 1]: the tensors of the file. For each layer: keys, scales of the keys,
                            * values, scales of the values; only a cache of 8 bits has scales. The last tensor holds
                            * the tokens */
    te__cache_file_part *part; /* [4 * layers]: what each entry of `tensor` except the tokens holds */
    char (*name)[TE__CACHE_FILE_NAME];
    int32_t *page;         /* [pages]: the numbers of the sequence's pages, in the order of the tokens */
    /* the keys or the values of one layer, with their scales, in the order of the cache's pages: [pages, kv_heads,
     * page_rows, dim] */
    char *staging;
    char *rows;            /* used for saving: a copy of one tensor of `staging` in the order of the file, [kv_heads,
                            * length, dim] */
    char *memory;          /* used for loading: the data of all tensors of the file */
    int length, pages, count;
    int parts; /* the number of tensors of the file, not counting the tokens */
} te__cache_file;

/* ---- names and shapes -------------------------------------------------------------------------------------------- */

TE_API const te_attention_options *te__cache_file_options(const te_cache *c, int layer) {
    const te_cache_layer *l = &c->layer[layer];
    return te__cached_options(&l->model->plan->op[l->op]);
}
TE_API void te__cache_file_free(te__cache_file *f) {
    free(f->tensor), free(f->part), free(f->name), free(f->page), free(f->staging), free(f->rows), free(f->memory);
}
/* Append the description of one tensor of the file to f->tensor and f->part. */
TE_API void te__cache_file_append(te__cache_file *f, te__cache_file_part part) {
    static const char *const names[2][2] = {{"keys", "key_scales"}, {"values", "value_scales"}};
    const te_cache_layer *l = &f->cache->layer[part.layer];
    const te_attention_options *o = te__cache_file_options(f->cache, part.layer);
    char *name = f->name[f->count];
    const te_safetensors_dtype of_numbers = l->format == TE_CACHE_FORMAT_int8   ? TE_SAFETENSORS_I8
                                            : l->format == TE_CACHE_FORMAT_e4m3 ? TE_SAFETENSORS_F8_E4M3
                                                               : te__safetensors_dtype_of(l->model->plan->dtype);
    int64_t shape[3];
    shape[0] = o->kv_heads, shape[1] = f->length, shape[2] = part.value ? o->value_dim : o->head_dim;
    snprintf(name, sizeof f->name[0], "layer.%d.%s", part.layer, names[part.value][part.scales]);
    f->part[f->count] = part;
    f->tensor[f->count++] =
        te_safetensor_of(name, part.scales ? TE_SAFETENSORS_F32 : of_numbers, part.scales ? 2 : 3, shape, f->name);
}
/* Describe the tensors of the file, for a sequence of f->length tokens. The data pointer of each tensor is a
 * placeholder, which is not null. */
TE_API void te__cache_file_describe(te__cache_file *f, int has_tokens) {
    const te_cache *c = f->cache;
    te__cache_file_part part;
    f->count = 0;
    for (part.layer = 0; part.layer < c->layer_count; part.layer++)
        for (part.value = 0; part.value <= (te__cache_file_options(c, part.layer)->stored_value_dim > 0); part.value++)
            for (part.scales = 0; part.scales <= TE__CACHE_HAS_SCALES(c->layer[part.layer].format); part.scales++)
                te__cache_file_append(f, part);
    f->parts = f->count;
    if (!has_tokens) return;
    int64_t shape[1];
    shape[0] = f->length;
    snprintf(f->name[f->count], sizeof f->name[0], "tokens");
    f->tensor[f->count] = te_safetensor_of(f->name[f->count], TE_SAFETENSORS_I32, 1, shape, f->name);
    f->count++;
}
/* Allocate those arrays of *f whose sizes do not depend on the sequence's length. After an error there is nothing to
 * free. */
TE_API te_status te__cache_file_begin(te__cache_file *f, const te_cache *c, te_context *ctx) {
    const size_t tensors = 4 * (size_t)c->layer_count + 1, width = (size_t)c->t.table_width;
    memset(f, 0, sizeof *f);
    f->cache = c;
    f->tensor = (te_safetensor *)calloc(tensors, sizeof *f->tensor);
    f->part = (te__cache_file_part *)calloc(tensors, sizeof *f->part);
    f->name = (char(*)[TE__CACHE_FILE_NAME])calloc(tensors, sizeof *f->name);
    f->page = (int32_t *)calloc(width, sizeof *f->page);
    if (f->tensor && f->part && f->name && f->page) return TE_OK;
    te__cache_file_free(f);
    return te_fail(ctx, TE_ERROR_MEMORY, "te_cache: cannot allocate what describes a file");
}
/* Return the number of bytes that one row of one head takes in the cache, with its scale: a row of keys if tensor i of
 * the file holds keys or their scales, else a row of values. */
TE_API int64_t te__cache_file_row_bytes(const te__cache_file *f, int i) {
    const te_cache_layer *l = &f->cache->layer[f->part[i].layer];
    const te_attention_options *o = te__cache_file_options(f->cache, f->part[i].layer);
    return te__cache_row_size(f->part[i].value ? o->value_dim : o->head_dim, (int)l->format) *
           (int64_t)te__cache_element_bytes(l->format, l->model->plan->dtype);
}
/* Allocate f->staging and, if with_rows is set, f->rows. Each of the two is large enough for the largest tensor. */
TE_API te_status te__cache_file_reserve(te__cache_file *f, int with_rows, te_context *ctx) {
    const te_cache_tables *t = &f->cache->t;
    size_t rows = 1, staging = 1;
    f->pages = (f->length + t->page_rows - 1) / t->page_rows;
    for (int i = 0; i < f->parts; i++) {
        const int64_t row = te__cache_file_row_bytes(f, i) * f->tensor[i].shape[0];
        rows = (size_t)te_max((int64_t)rows, (int64_t)f->tensor[i].bytes);
        staging = (size_t)te_max((int64_t)staging, (int64_t)f->pages * t->page_rows * row);
    }
    f->staging = (char *)calloc(staging, 1), f->rows = with_rows ? (char *)malloc(rows) : 0;
    TE_REQUIRE(f->staging && (f->rows || !with_rows), ctx, TE_ERROR_MEMORY, "te_cache: cannot allocate %zu bytes",
               staging + (with_rows ? rows : 0));
    return TE_OK;
}

/* ---- between the pages and the file ------------------------------------------------------------------------------ */

/* Copy the keys or values of tensor i, with their scales, from their pages in the cache to f->staging or, if to_cache
 * is set, from f->staging to the pages. Of a page that is not full, only the rows in use are copied. In formats of 8
 * bits, the number of these rows is rounded up to a multiple of TE_CACHE_TILE. */
TE_API te_status te__cache_file_copy(te__cache_file *f, int i, int to_cache, te_context *ctx) {
    const te_cache_tables *t = &f->cache->t;
    const te_cache_layer *l = &f->cache->layer[f->part[i].layer];
    const te_attention_options *o = te__cache_file_options(f->cache, f->part[i].layer);
    const size_t size = te__cache_element_bytes(l->format, l->model->plan->dtype);
    const size_t row = (size_t)te__cache_file_row_bytes(f, i);
    const size_t head = (size_t)t->page_rows * row, part = (size_t)o->kv_heads * head;
    const size_t key = (size_t)te__cache_row_size(o->head_dim, (int)l->format) * size;
    const size_t first = f->part[i].value ? (size_t)t->page_rows * (size_t)o->kv_heads * key : 0;
    const int unit = TE__CACHE_HAS_SCALES(l->format) ? (int)TE_CACHE_TILE : 1;
    for (int p = 0; p < f->pages; p++) {
        char *at = l->pages + (size_t)(f->page[p] * l->page_elements) * size + first;
        char *host = f->staging + (size_t)p * part;
        const int left = f->length - p * t->page_rows, is_full = left >= t->page_rows;
        for (int h = 0; h < (is_full ? 1 : o->kv_heads); h++) {
            char *there = at + (size_t)h * head, *here = host + (size_t)h * head;
            const size_t bytes = is_full ? part : (size_t)te_round_up(left, unit) * row;
            TE_TRY(to_cache ? te_copy(ctx, there, here, bytes) : te_copy(ctx, here, there, bytes));
        }
    }
    return te_synchronize(ctx);
}
/* Copy tensor i from f->staging to `rows` or, if to_cache is set, from `rows` to f->staging. f->staging has the order
 * of the cache's pages: the rows of each page are consecutive, and the 16-byte chunks of a row may be permuted
 * (te__cache_swizzle). `rows` has the order of the file: [kv_heads, length, dim], and the chunks of a row are in
 * ascending order. */
TE_API void te__cache_file_reorder(te__cache_file *f, int i, char *rows, int to_cache) {
    const te_cache_tables *t = &f->cache->t;
    const te_safetensor *s = &f->tensor[i];
    const te_cache_layer *l = &f->cache->layer[f->part[i].layer];
    const te_attention_options *o = te__cache_file_options(f->cache, f->part[i].layer);
    const int scales = f->part[i].scales, dim = f->part[i].value ? o->value_dim : o->head_dim;
    const size_t row = (scales ? 1 : (size_t)dim) * te_safetensors_dtype_bytes(s->dtype);
    const size_t chunk = row % 16 ? row : 16;
    /* Describe f->staging as a cache with a single page, so that te__cache_row can compute offsets in f->staging */
    te_attention_cache staging;
    const int32_t first = 0;
    memset(&staging, 0, sizeof staging);
    staging.pages = f->staging, staging.page_shift = 31;
    const size_t size = te__cache_element_bytes(l->format, l->model->plan->dtype);
    for (int h = 0; h < (int)s->shape[0]; h++)
        for (int r = 0; r < f->length; r++) {
            const int64_t head = ((int64_t)(r / t->page_rows) * s->shape[0] + h) * t->page_rows;
            const int64_t at = te__cache_row(&staging, &first, head * te__cache_row_size(dim, (int)l->format),
                                             r % t->page_rows, dim, (int)l->format);
            char *a = scales ? (char *)te__cache_scale(&staging, at, r, dim) : f->staging + (size_t)at * size;
            char *b = rows + ((size_t)h * (size_t)f->length + (size_t)r) * row;
            const int swizzle = scales ? 0 : te__cache_swizzle(r, dim, l->model->plan->dtype, (int)l->format);
            for (size_t c = 0; c * chunk < row; c++) {
                char *stored = a + (c ^ (size_t)swizzle) * chunk, *plain = b + c * chunk;
                memcpy(to_cache ? stored : plain, to_cache ? plain : stored, chunk);
            }
        }
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

/* A callback for te__safetensors_extra.source: copies n bytes of tensor *s, from byte `at` on, to the address `to`. */
TE_API te_status te__cache_file_source(void *from, void *to, const te_safetensor *s, uint64_t at, size_t n,
                                       te_context *ctx) {
    te__cache_file *f = (te__cache_file *)from;
    const int i = (int)(s - f->tensor);
    if (i >= f->parts) return te_copy(ctx, to, (const char *)s->data + at, n);
    if (!at) {
        TE_TRY(te__cache_file_copy(f, i, 0, ctx));
        te__cache_file_reorder(f, i, f->rows, 0);
    }
    memcpy(to, f->rows + at, n);
    return TE_OK;
}
TE_API te_named_model te__cache_file_model(const te_cache *c, int k, char name[TE__CACHE_FILE_NAME]) {
    te_named_model m;
    snprintf(name, TE__CACHE_FILE_NAME, "layer.%d", k);
    m.name = name, m.model = (te_model *)(uintptr_t)c->layer[k].model;
    return m;
}
/* For each layer, write its metadata key and its list of ops as a text to t, and store the addresses of these two
 * strings in `pairs`. If t->p is null, only count the bytes of the strings. */
TE_API void te__cache_file_lists(te__text *t, te_safetensors_pair *pairs, const te_cache *c, te_context *ctx) {
    const int ranks = te_tensor_group(ctx)->size;
    char name[TE__CACHE_FILE_NAME];
    for (int k = 0; k < c->layer_count; k++) {
        const te_named_model m = te__cache_file_model(c, k, name);
        if (pairs) pairs[k].key = t->p + t->n;
        te__plan_key(t, &m);
        if (pairs) pairs[k].value = t->p + t->n;
        te__plan_text(t, m.model->plan, ranks), te__text_char(t, 0);
    }
}
TE_API te_status te__cache_file_write(te__cache_file *f, const char *path, te_context *ctx) {
    te__safetensors_extra extra = te__safetensors_extra_of(1, 0);
    te__text text = {0, 0};
    const int pairs = f->cache->layer_count;
    te__cache_file_lists(&text, 0, f->cache, ctx);
    char *memory = (char *)malloc((size_t)pairs * sizeof(te_safetensors_pair) + text.n + 1);
    TE_REQUIRE(memory, ctx, TE_ERROR_MEMORY, "te_cache_save: cannot allocate %zu bytes", text.n);
    te_safetensors_pair *pair = (te_safetensors_pair *)(void *)memory;
    text.p = memory + (size_t)pairs * sizeof *pair, text.n = 0;
    te__cache_file_lists(&text, pair, f->cache, ctx);
    extra.source = te__cache_file_source, extra.from = f;
    const te_status status = te__safetensors_write(path, f->tensor, f->count, pair, pairs, extra, ctx);
    free(memory);
    return status;
}
/* Save the keys and values of all tokens of the cache's sequence number `slot`. tokens: the ids of these tokens,
 * [length], in host or target memory, or null. The token ids are saved with the keys and values, so that a program can
 * later find out whether a prompt begins with the saved sequence; null saves no ids. An old file at the path stays
 * unchanged until the new file is complete on the disk. Waits for the stream. */
TE_API te_status te_cache_save(const te_cache *c, int slot, const int32_t *tokens, const char *path, te_context *ctx) {
    te__cache_file f;
    int32_t length = 0;
    TE_TRY(te__cache_check_slot(c, slot, "te_cache_save", ctx));
    TE_REQUIRE(path, ctx, TE_ERROR_NULL, "te_cache_save: the path is null");
    TE_TRY(te_copy(ctx, &length, c->t.length + slot, sizeof length));
    TE_TRY(te_synchronize(ctx));
    TE_TRY(te__cache_file_begin(&f, c, ctx));
    f.length = length;
    te__cache_file_describe(&f, tokens != 0);
    if (tokens) f.tensor[f.count - 1].data = (void *)(uintptr_t)tokens;
    te_status status = te__cache_file_reserve(&f, 1, ctx);
    if (status == TE_OK)
        status = te_copy(ctx, f.page, c->t.table + (int64_t)slot * c->t.table_width, (size_t)f.pages * sizeof *f.page);
    if (status == TE_OK) status = te_synchronize(ctx);
    if (status == TE_OK) status = te__cache_file_write(&f, path, ctx);
    te__cache_file_free(&f);
    return status;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* Read the sequence's length from the file. Check that the file has exactly the tensors that this cache needs, and that
 * its lists of ops are those of the cache's layers. */
TE_API te_status te__cache_file_check(te__cache_file *f, te_safetensors *file, int wants_tokens, te_context *ctx) {
    const te_cache *c = f->cache;
    const te_safetensor *keys = te_safetensors_find(file, "layer.0.keys");
    const int has_tokens = te_safetensors_find(file, "tokens") != 0;
    char name[TE__CACHE_FILE_NAME];
    TE_TRY(te_safetensors_verify(file, ctx));
    TE_REQUIRE(keys && keys->rank == 3, ctx, TE_ERROR_FORMAT,
               "%.120s: is no sequence of a cache: it has no tensor layer.0.keys, [heads, length, head_dim]",
               file->path);
    TE_REQUIRE(keys->shape[1] >= 0 && keys->shape[1] <= c->t.capacity, ctx, TE_ERROR_SHAPE,
               "%.120s: has %lld tokens, a sequence of this cache has %d at most", file->path,
               (long long)keys->shape[1], c->t.capacity);
    TE_REQUIRE(has_tokens || !wants_tokens, ctx, TE_ERROR_FORMAT, "%.120s: was saved without tokens", file->path);
    f->length = (int)keys->shape[1];
    te__cache_file_describe(f, has_tokens);
    TE_TRY(te_safetensors_check(file, f->tensor, f->count, 1, ctx));
    for (int i = 0; i < f->count; i++) {
        const te_safetensor *t = te_safetensors_find(file, f->tensor[i].name);
        TE_REQUIRE(t->dtype == f->tensor[i].dtype, ctx, TE_ERROR_DTYPE, "%.120s: tensor %s is %s, it should be %s",
                   file->path, t->name, te__shape_text_of(t).text, te__shape_text_of(&f->tensor[i]).text);
    }
    for (int k = 0; k < c->layer_count; k++) {
        const te_named_model m = te__cache_file_model(c, k, name);
        TE_TRY(te__weights_check_plan(file, &m, ctx));
    }
    return TE_OK;
}
/* Read all tensors of the file to host memory. Reading may fail, so the caller changes the cache only after this
 * function. */
TE_API te_status te__cache_file_read(te__cache_file *f, const te_safetensors *file, te_context *ctx) {
    size_t bytes = 0;
    for (int i = 0; i < f->count; i++) bytes += (size_t)f->tensor[i].bytes;
    f->memory = (char *)malloc(bytes + 1);
    TE_REQUIRE(f->memory, ctx, TE_ERROR_MEMORY, "te_cache_load: cannot allocate %zu bytes", bytes);
    bytes = 0;
    for (int i = 0; i < f->count; i++) {
        f->tensor[i].data = f->memory + bytes, bytes += (size_t)f->tensor[i].bytes;
        const te_safetensor *t = te_safetensors_find(file, f->tensor[i].name);
        if (t->bytes)
            TE_TRY(te__safetensors_get(file, (char *)f->tensor[i].data, (size_t)t->bytes, file->data_at + t->offset,
                                       ctx));
    }
    return TE_OK;
}
/* Check that the cache has enough pages for the file's sequence, which will replace sequence number `slot`. Available
 * are the free pages and the pages that only sequence `slot` uses. */
TE_API te_status te__cache_file_check_pages(const te__cache_file *f, int slot, te_context *ctx) {
    const te_cache_tables *t = &f->cache->t;
    const size_t uses = (size_t)t->pages;
    int32_t *use = (int32_t *)malloc(uses * sizeof *use), free_count = 0, length = 0;
    TE_REQUIRE(use, ctx, TE_ERROR_MEMORY, "te_cache_load: cannot allocate %zu bytes", uses * sizeof *use);
    te_status status = te_copy(ctx, use, t->use_count, uses * sizeof *use);
    if (status == TE_OK) status = te_copy(ctx, &free_count, t->free_count, sizeof free_count);
    if (status == TE_OK) status = te_copy(ctx, &length, t->length + slot, sizeof length);
    if (status == TE_OK)
        status = te_copy(ctx, f->page, t->table + (int64_t)slot * t->table_width,
                         (size_t)t->table_width * sizeof *f->page);
    const te_status done = te_synchronize(ctx);
    if (status == TE_OK) status = done;
    int available = free_count;
    for (int p = 0; status == TE_OK && p < (length + t->page_rows - 1) / t->page_rows; p++)
        available += use[f->page[p]] == 1;
    free(use);
    if (status != TE_OK) return status;
    TE_REQUIRE(f->pages <= available, ctx, TE_ERROR_MEMORY,
               "te_cache_load: %d tokens need %d pages, of the cache's %d pages %d are free", f->length, f->pages,
               t->pages, available);
    return TE_OK;
}
/* Replace sequence number `slot` of the cache by the file's sequence, which te__cache_file_read has read to host
 * memory. */
TE_IF_USED TE_API te_status te__cache_file_store(te__cache_file *f, int slot, te_context *ctx) {
    const te_cache *c = f->cache;
    const int32_t of_slot = slot;
    te_cache_args a = te__cache_args(c);
    TE_TRY(te_cache_truncate(c, slot, 0, ctx));
    if (!f->length) return te_synchronize(ctx);
    /* Begin a batch that consists only of this sequence; te__cache_begin then allocates the sequence's pages. */
    TE_TRY(te_copy(ctx, c->t.slot, &of_slot, sizeof of_slot));
    a.of.count = 1, a.of.max_seqlen = a.of.rows = f->length, a.slots = c->t.slot;
    TE_TRY(te__cache_begin_launch(ctx, te__grid_of(1, 1), &a));
    TE_TRY(te_copy(ctx, f->page, c->t.table + (int64_t)slot * c->t.table_width, (size_t)f->pages * sizeof *f->page));
    TE_TRY(te_synchronize(ctx));
    for (int i = 0; i < f->parts; i++) {
        te__cache_file_reorder(f, i, (char *)f->tensor[i].data, 1);
        const int has_scales = TE__CACHE_HAS_SCALES(c->layer[f->part[i].layer].format);
        /* 1: f->staging is complete. It is complete after the keys or values or, if the format has scales, after the
         * scales, which follow the keys or values in the file */
        const int is_last = f->part[i].scales == has_scales;
        if (is_last) TE_TRY(te__cache_file_copy(f, i, 1, ctx));
    }
    return TE_OK;
}
/* Replace sequence number `slot` of the cache by the sequence in a file that te_cache_save has written. tokens:
 * output, the file's token ids, [capacity of the cache], in host memory; null if the caller does not want them.
 * length: output, the number of tokens; may be null. te_cache_load must not be called between te_cache_begin and the
 * runs of the models on the batch that te_cache_begin has set up. The whole file is read to host memory and checked
 * before the cache is changed. So after an error the cache is unchanged, except after TE_ERROR_CUDA, if a copy fails:
 * then the sequence may be incomplete. Waits for the stream. Errors: TE_ERROR_FORMAT and TE_ERROR_IO (the file was not
 * written by te_cache_save, or is damaged), TE_ERROR_SHAPE, TE_ERROR_DTYPE and TE_ERROR_VALUE (the file has other
 * lists of ops, or its sequence is longer than the capacity), TE_ERROR_MEMORY (too few free pages), TE_ERROR_CUDA. */
TE_IF_USED TE_API te_status te_cache_load(const te_cache *c, int slot, int32_t *tokens, int *length, const char *path,
                                          te_context *ctx) {
    te__cache_file f;
    te_safetensors file;
    TE_TRY(te__cache_check_slot(c, slot, "te_cache_load", ctx));
    TE_TRY(te__cache_file_begin(&f, c, ctx));
    te_status status = te_safetensors_open(&file, path, ctx);
    if (status == TE_OK) {
        status = te__cache_file_check(&f, &file, tokens != 0, ctx);
        if (status == TE_OK) status = te__cache_file_reserve(&f, 0, ctx);
        if (status == TE_OK) status = te__cache_file_check_pages(&f, slot, ctx);
        if (status == TE_OK) status = te__cache_file_read(&f, &file, ctx);
        te_safetensors_close(&file);
    }
    if (status == TE_OK) status = te__cache_file_store(&f, slot, ctx);
    if (status == TE_OK && tokens && f.length)
        memcpy(tokens, f.tensor[f.count - 1].data, (size_t)f.length * sizeof *tokens);
    if (status == TE_OK && length) *length = f.length;
    te__cache_file_free(&f);
    return status;
}

#endif
