/* packed.h -- loads and saves parameters that a file stores as several tensors. Other programs store q, k and v (or
 * gate and up) as separate tensors, while a list of ops has one weight for all three (or both). For each tensor of the
 * file, this header makes a te_safetensor that describes a range of the parameter, called a view. te_safetensors_load
 * reads each tensor into its view, and te_safetensors_write writes the views.
 *
 * Do this:
 *     static const te_packed parts[] = {{"q_proj.weight", "fc1", "weight", 4, 0},     // 4 rows of fc1's weight
 *                                       {"k_proj.weight", "fc1", "weight", 2, 0},
 *                                       {"v_proj.weight", "fc1", "weight", 2, 0},
 *                                       {"o_proj.weight", "proj", "weight", 0, 1}};   // the rest; file: transposed
 *     te_packed_list list = te_packed_none();
 *     te_status status = te_packed_add(&list, &block.model, parts, 4, "model.layers.0.self_attn.", &ctx);
 *     if (status == TE_OK) status = te_packed_covers(&list, &block.model, &ctx);      // no parameter was forgotten
 *     if (status == TE_OK) status = te_safetensors_load(&file, list.tensor, list.count, 1, &ctx);
 *     if (status == TE_OK) status = te_safetensors_write("again.safetensors", list.tensor, list.count, 0, 0, &ctx);
 *     te_packed_free(&list);
 *
 * te_safetensors_load checks names and shapes, and converts F32, BF16 and F16.
 *
 * With tensor parallelism, the row counts in `parts` refer to the whole parameter, but the views in the list describe
 * only this rank's shard of the parameter. So all ranks can load their shards from one file. A list with views of
 * shards cannot be written to a file.
 */
#ifndef TE_PACKED_H
#define TE_PACKED_H

#include "../plan/freeze.h" /* te_model, te__is_named */
#include "../plan/bind.h"  /* te_shard_layout_of */
#include "safetensors.h"    /* te_safetensor */

/* How a tensor of a file stores its part of a parameter: 0 if the layout is that of the parameter, [out, in]; otherwise
 * a sum of these constants.
 *     TRANSPOSED    as [in, out]
 *     EXPERTS       The tensor has all experts: the whole weight of an expert_linear as [experts, out, in] (with
 *                   TRANSPOSED, [experts, in, out]), or the whole bias of an expert_bias as [experts, width].
 *                   te_packed.rows must be 0
 *     INTERLEAVED   Only with EXPERTS. For each expert, the rows of gate and the rows of up alternate in the file, as
 *                   in gpt-oss; in the parameter, all rows of gate precede all rows of up. For a bias, the same holds
 *                   of columns */
typedef enum te_packed_form {
    TE_PACKED_TRANSPOSED = 1,
    TE_PACKED_EXPERTS = 2,
    TE_PACKED_INTERLEAVED = 4
} te_packed_form;

typedef struct te_packed {
    const char *name;       /* the name of the tensor in the file, without the prefix that te_packed_add takes */
    const char *op, *field; /* the name of the parameter's op, and the parameter's name within the op */
    /* how many rows of the parameter the tensor has; 0 means all remaining rows. The rows follow those of the previous
     * entry for the same parameter, and are counted over all ranks together. If the parameter has only one row (a
     * bias), columns are counted instead of rows */
    int64_t rows;
    int form;               /* 0, or a sum of te_packed_form */
} te_packed;

/* An argument of te_packed_add_heads: a tensor of a file and a parameter that have the rows of q, k and v in different
 * orders. In the parameter: q of all heads, then k of all heads, then v of all heads. In the tensor, for each kv head:
 * the heads of q that attend to this kv head (heads / kv_heads of them), then the head of k, then the head of v.
 * GPT-NeoX and BLOOM have this order with kv_heads = heads (query_key_value), Falcon 40B with fewer kv_heads. */
typedef struct te_packed_heads {
    const char *name;       /* the name of the tensor in the file, without the prefix that te_packed_add_heads takes */
    const char *op, *field; /* the name of the parameter's op, and the parameter's name within the op; the parameter is
                             * a weight, or a bias of one row */
    int heads, kv_heads; /* of all ranks together */
} te_packed_heads;

/* An argument of te_packed_add_head_rows: a tensor of a file that has more rows for each head than the parameter. The
 * tensor has `all` rows for each head; the rows first to first + rows - 1 of each head form the parameter. For example,
 * kv_b_proj in the files of DeepSeek-V2 and V3 has for each head the rows of k and then the rows of v. */
typedef struct te_packed_head_rows {
    const char *name, *op, *field; /* as in te_packed_heads */
    int heads, all, first, rows;
} te_packed_head_rows;

/* A list of views of parameters, with their names, for te_safetensors_load and te_safetensors_write. */
typedef struct te_packed_list {
    te_safetensor *tensor;
    int count;
} te_packed_list;

TE_API te_packed_list te_packed_none(void) {
    te_packed_list l;
    l.tensor = 0, l.count = 0;
    return l;
}
/* Remove all views from the list except the first `count` views. */
TE_API void te__packed_truncate(te_packed_list *l, int count) {
    while (l->count > count) free((void *)(uintptr_t)l->tensor[--l->count].name);
}
TE_API void te_packed_free(te_packed_list *l) {
    if (!l) return;
    te__packed_truncate(l, 0);
    free(l->tensor), l->tensor = 0;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* In the functions below, a parameter's "units" are its rows; but if the parameter has only one row, its columns.
 * te_packed.rows counts units. */

/* Return the parameter of model m that `part` names, or null if m has no such parameter. */
TE_API const te_param *te__packed_param(const te_model *m, const te_packed *part) {
    for (int i = 0; i < m->param_count; i++)
        if (te__is_named(&m->param[i], part->op, part->field)) return &m->param[i];
    return 0;
}
/* Return whether the units of the parameter p are its rows (else they are its columns). The bias of an expert_bias has
 * a row for each expert, so its units are rows, even if there is only one expert and one row. */
TE_API int te__packed_by_rows(const te_param *p) { return p->rows > 1 || p->shard == TE_EXPERT_SHARD; }
/* Return the number of units of the parameter p on all ranks together (units are rows or, if p has one row,
 * columns). */
TE_API int64_t te__packed_extent(const te_param *p, te_context *ctx) {
    const te_shard_layout runs = te_shard_layout_of(p, te_tensor_group(ctx));
    const int64_t whole = te__shard_whole_elements(&runs);
    if (!te__packed_by_rows(p)) return whole / p->rows;
    return p->shard == TE_SHARD_rows ? p->rows : whole / p->cols;
}
/* Return how many units of a parameter the entries before parts[n] take. The parameter is the one that parts[n] names;
 * units are rows or, if the parameter has one row, columns. extent: the number of all units of the parameter. */
TE_API int64_t te__packed_taken(const te_packed *parts, int n, int64_t extent) {
    int64_t taken = 0;
    for (int i = 0; i < n; i++)
        if (!strcmp(parts[i].op, parts[n].op) && !strcmp(parts[i].field, parts[n].field))
            taken = parts[i].rows ? taken + te_min(parts[i].rows, extent - taken) : extent;
    return taken;
}
/* Return the number of experts whose weights or biases the parameter p has on this rank; 0 if p belongs to no op with
 * experts. */
TE_API int64_t te__packed_experts(const te_model *m, const te_param *p) {
    for (int i = 0; i < m->plan->op_count; i++)
        if (!strcmp(m->plan->op[i].name, p->op)) return te__is_router(m->plan, i) ? 0 : m->plan->op[i].experts;
    return 0;
}
/* Check that parts[n] names a parameter of model m, and that the parts before parts[n] leave enough units of this
 * parameter (units are rows or, if the parameter has one row, columns). */
TE_API te_status te__packed_check(const te_model *m, const te_packed *parts, int n, te_context *ctx) {
    const te_packed *part = &parts[n];
    const char *list = m->plan->name;
    TE_REQUIRE(part->name && part->op && part->field, ctx, TE_ERROR_NULL, "te_packed_add: %s: part %d has no name",
               list, n);
    const te_param *p = te__packed_param(m, part);
    TE_REQUIRE(p, ctx, TE_ERROR_VALUE, "te_packed_add: %.60s: %s has no parameter %.60s.%.60s", part->name, list,
               part->op, part->field);
    TE_REQUIRE(!p->tied && p->data, ctx, TE_ERROR_VALUE, "te_packed_add: %.60s: %s.%s is tied; its owner is loaded",
               part->name, p->op, p->field);
    TE_REQUIRE(part->form >= 0 && part->form < 2 * TE_PACKED_INTERLEAVED &&
                   (part->form & TE_PACKED_EXPERTS || !(part->form & TE_PACKED_INTERLEAVED)),
               ctx, TE_ERROR_VALUE,
               "te_packed_add: %.60s: %d is no sum of te_packed_form, or INTERLEAVED without EXPERTS", part->name,
               part->form);
    if (part->form & TE_PACKED_EXPERTS) {
        const int units = (int)(te__packed_experts(m, p) ? p->rows / te__packed_experts(m, p) : 0);
        TE_REQUIRE(units && !part->rows, ctx, TE_ERROR_VALUE,
                   "te_packed_add: %.60s: %s.%s is no parameter of experts, or the table states a number of rows",
                   part->name, p->op, p->field);
        TE_REQUIRE(units > 1 || !(part->form & TE_PACKED_TRANSPOSED), ctx, TE_ERROR_VALUE,
                   "te_packed_add: %.60s: a bias is not transposed", part->name);
        TE_REQUIRE((units > 1 ? units : p->cols) % 2 == 0 || !(part->form & TE_PACKED_INTERLEAVED), ctx, TE_ERROR_SHAPE,
                   "te_packed_add: %.60s: an odd number of rows of gate and up", part->name);
    }
    const int64_t extent = te__packed_extent(p, ctx), left = extent - te__packed_taken(parts, n, extent);
    TE_REQUIRE(left > 0 && part->rows >= 0 && part->rows <= left, ctx, TE_ERROR_SHAPE,
               "te_packed_add: %.60s: %lld %s of %s.%s, of which %lld are left", part->name, (long long)part->rows,
               te__packed_by_rows(p) ? "rows" : "columns", p->op, p->field, (long long)left);
    return TE_OK;
}
/* Check that parts[0] to parts[count - 1] together cover all units of the parameter that parts[n] names (units are rows
 * or, if the parameter has one row, columns). */
TE_API te_status te__packed_check_complete(const te_model *m, const te_packed *parts, int count, int n,
                                           te_context *ctx) {
    const te_param *p = te__packed_param(m, &parts[n]);
    const int64_t extent = te__packed_extent(p, ctx);
    int64_t taken = te__packed_taken(parts, n, extent);
    for (int i = n; i < count; i++)
        if (te__packed_param(m, &parts[i]) == p) taken = parts[i].rows ? taken + parts[i].rows : extent;
    TE_REQUIRE(taken == extent, ctx, TE_ERROR_SHAPE, "te_packed_add: the parts of %s.%s have %lld of its %lld %s",
               p->op, p->field, (long long)taken, (long long)extent, te__packed_by_rows(p) ? "rows" : "columns");
    return TE_OK;
}

/* ---- views ------------------------------------------------------------------------------------------------------- */

/* A region of a parameter, of `rows` x `cols` elements, and its place in a tensor of the file. `at` is the index of the
 * region's first element in this rank's part of the parameter. The tensor has shape[0] x shape[1] elements, and the
 * region begins in it at row first[0] and column first[1]. If the file stores the transposed tensor, shape and first
 * are still those before the transposition. */
typedef struct te__packed_region { int64_t at, rows, cols, shape[2], first[2]; } te__packed_region;

/* Add to list l a view of the region v of parameter p. The view's name is `prefix` followed by part->name. */
TE_API te_status te__packed_view(te_packed_list *l, const te_param *p, const te_packed *part, te__packed_region v,
                                 const char *prefix, te_context *ctx) {
    const size_t name_bytes = strlen(prefix) + strlen(part->name) + 1;
    const int transposed = (part->form & TE_PACKED_TRANSPOSED) != 0;
    te_safetensor *tensor = (te_safetensor *)realloc((void *)l->tensor, (size_t)(l->count + 1) * sizeof *tensor);
    TE_REQUIRE(tensor, ctx, TE_ERROR_MEMORY, "te_packed_add: cannot allocate %d views", l->count + 1);
    l->tensor = tensor;
    char *name = (char *)malloc(name_bytes);
    TE_REQUIRE(name, ctx, TE_ERROR_MEMORY, "te_packed_add: cannot allocate %zu bytes", name_bytes);
    snprintf(name, name_bytes, "%s%s", prefix, part->name);
    void *data = (char *)p->data + (size_t)v.at * te_dtype_bytes(p->dtype);
    te_safetensor t = transposed ? te_safetensor_transposed(name, p->dtype, v.shape[0], v.shape[1], data)
                                 : te_safetensor_matrix(name, p->dtype, v.shape[0], v.shape[1], data);
    if (v.rows != v.shape[0] || v.cols != v.shape[1])
        t = te_safetensor_slice(t, v.first[transposed], transposed ? v.cols : v.rows, v.first[!transposed],
                                transposed ? v.rows : v.cols);
    t.written = (uint64_t *)(uintptr_t)&p->written;
    l->tensor[l->count++] = t;
    return TE_OK;
}
/* A range of a parameter's units (rows or, if the parameter has one row, columns), and the place of this range in a
 * tensor of the file. */
typedef struct te__packed_range {
    int64_t first, units;         /* first: index of the range's first unit in the parameter; units: how many units the
                                   * range has */
    int64_t file_first, file_all; /* file_first: index of the range's first unit in the tensor of the file; file_all:
                                   * how many units the tensor has */
} te__packed_range;
/* Add the views of a range of parameter p to list l. If each rank has some columns of every row (TE_SHARD_rows), one
 * view is added. Otherwise one view is added for each contiguous run of this rank's shard (te_shard_layout_of) that the
 * range intersects. */
TE_API te_status te__packed_views(te_packed_list *l, const te_param *p, const te_packed *part, te__packed_range range,
                                  const char *prefix, te_context *ctx) {
    const te_shard_layout runs = te_shard_layout_of(p, te_tensor_group(ctx));
    const int64_t first = range.first, units = range.units;
    te__packed_region v;
    memset(&v, 0, sizeof v);
    if (p->rows > 1 && p->shard == TE_SHARD_rows && runs.ranks > 1) {
        v.at = first * p->cols, v.rows = units, v.shape[0] = range.file_all, v.first[0] = range.file_first;
        v.cols = p->cols, v.shape[1] = p->cols * runs.ranks, v.first[1] = runs.rank * p->cols;
        return te__packed_view(l, p, part, v, prefix, ctx);
    }
    const int64_t unit = te__packed_by_rows(p) ? p->cols : 1; /* the number of elements of a unit */
    for (int64_t i = 0; i < runs.count; i++) {
        const te_shard_run r = te_shard_run_at(&runs, i);
        const int64_t from = te_max(first, r.whole / unit), to = te_min(first + units, (r.whole + r.elements) / unit);
        if (from >= to) continue;
        v.at = r.at + from * unit - r.whole;
        if (te__packed_by_rows(p)) {
            v.rows = to - from, v.cols = p->cols, v.shape[0] = range.file_all, v.shape[1] = p->cols;
            v.first[0] = range.file_first + from - first, v.first[1] = 0;
        } else {
            v.rows = 1, v.cols = to - from, v.shape[0] = 1, v.shape[1] = range.file_all;
            v.first[0] = 0, v.first[1] = range.file_first + from - first;
        }
        TE_TRY(te__packed_view(l, p, part, v, prefix, ctx));
    }
    return TE_OK;
}
/* Add the views of a tensor that stores the matrices, or the biases, of all experts. Each expert of this rank gets one
 * view or, if gate and up are interleaved in the file, one view for gate and one view for up. */
TE_API te_status te__packed_expert_views(te_packed_list *l, const te_model *m, const te_param *p, const te_packed *part,
                                         const char *prefix, te_context *ctx) {
    const te_shard_layout runs = te_shard_layout_of(p, te_tensor_group(ctx));
    const int64_t experts = te__packed_experts(m, p), rows = p->rows / experts, cols = p->cols;
    const int64_t first = te_shard_run_at(&runs, 0).whole / (rows * cols), all = experts * runs.ranks;
    const int turns = part->form & TE_PACKED_INTERLEAVED ? 2 : 1, transposed = (part->form & TE_PACKED_TRANSPOSED) != 0;
    const int by = rows == 1; /* 0: gate and up are rows of a weight; 1: they are columns of a bias */
    for (int64_t i = 0; i < experts * turns; i++) {
        const int64_t expert = i / turns, turn = i % turns;
        te__packed_region v;
        memset(&v, 0, sizeof v);
        v.at = i * (rows * cols / turns), v.rows = by ? 1 : rows / turns, v.cols = by ? cols / turns : cols;
        /* The file's tensor counts as one matrix with the experts' matrices one below the other. If the file stores the
         * experts' matrices transposed, shape and first are those before the transposition */
        v.shape[0] = transposed ? rows : all * rows, v.shape[1] = transposed ? all * cols : cols;
        v.first[0] = transposed ? 0 : (first + expert) * rows, v.first[1] = transposed ? (first + expert) * cols : 0;
        v.first[by] += turn;
        TE_TRY(te__packed_view(l, p, part, v, prefix, ctx));
        te_safetensor *t = &l->tensor[l->count - 1];
        if (!t->sliced) *t = te_safetensor_slice(*t, 0, t->shape[0], 0, t->shape[1]);
        t->step[by != transposed] = turns, t->matrices = rows > 1 ? all : 0;
    }
    return TE_OK;
}
/* Add to list l the views of a whole tensor of the file, the one that parts[n] names. */
TE_API te_status te__packed_part_views(te_packed_list *l, const te_model *m, const te_packed *parts, int n,
                                       const char *prefix, te_context *ctx) {
    const te_param *p = te__packed_param(m, &parts[n]);
    if (parts[n].form & TE_PACKED_EXPERTS) return te__packed_expert_views(l, m, p, &parts[n], prefix, ctx);
    const int64_t extent = te__packed_extent(p, ctx), first = te__packed_taken(parts, n, extent);
    const int64_t units = parts[n].rows ? parts[n].rows : extent - first;
    const te__packed_range range = {first, units, 0, units};
    return te__packed_views(l, p, &parts[n], range, prefix, ctx);
}
/* Add the views of a tensor that stores q, k and v head by head (te_packed_heads). Each kv head gets three views: one
 * for the heads of q that attend to it, one for its k, and one for its v. */
TE_API te_status te__packed_heads_views(te_packed_list *l, const te_model *m, const te_packed_heads *of,
                                        const char *prefix, te_context *ctx) {
    const te_packed part = {of->name, of->op, of->field, 0, 0};
    TE_TRY(te__packed_check(m, &part, 0, ctx));
    const te_param *p = te__packed_param(m, &part);
    const int64_t all = te__packed_extent(p, ctx), heads = of->heads, kv = of->kv_heads;
    TE_REQUIRE(heads > 0 && kv > 0 && heads % kv == 0 && all % (heads + 2 * kv) == 0, ctx, TE_ERROR_SHAPE,
               "te_packed_add_heads: %.60s: %s.%s has %lld %s, not those of %d heads of q and %d of k and v", of->name,
               p->op, p->field, (long long)all, te__packed_by_rows(p) ? "rows" : "columns", of->heads, of->kv_heads);
    const int64_t dim = all / (heads + 2 * kv), group = heads / kv * dim;
    for (int64_t h = 0; h < kv; h++) {
        const int64_t at = h * (group + 2 * dim);
        const te__packed_range q = {h * group, group, at, all};
        const te__packed_range k = {(heads + h) * dim, dim, at + group, all};
        const te__packed_range v = {(heads + kv + h) * dim, dim, at + group + dim, all};
        TE_TRY(te__packed_views(l, p, &part, q, prefix, ctx));
        TE_TRY(te__packed_views(l, p, &part, k, prefix, ctx));
        TE_TRY(te__packed_views(l, p, &part, v, prefix, ctx));
    }
    return TE_OK;
}
/* Add the views of a parameter that has, for each head, only some rows of the tensor (te_packed_head_rows). */
TE_API te_status te__packed_head_rows_views(te_packed_list *l, const te_model *m, const te_packed_head_rows *of,
                                            const char *prefix, te_context *ctx) {
    const te_packed part = {of->name, of->op, of->field, 0, 0};
    TE_TRY(te__packed_check(m, &part, 0, ctx));
    const te_param *p = te__packed_param(m, &part);
    const int64_t extent = te__packed_extent(p, ctx);
    TE_REQUIRE(of->heads > 0 && of->rows > 0 && of->first >= 0 && of->first <= of->all - of->rows &&
                   extent == (int64_t)of->heads * of->rows, ctx, TE_ERROR_SHAPE,
               "te_packed_add_head_rows: %.60s: %s.%s has %lld rows, not the %d from %d on of %d rows of %d heads",
               of->name, p->op, p->field, (long long)extent, of->rows, of->first, of->all, of->heads);
    for (int64_t h = 0; h < of->heads; h++) {
        const te__packed_range rows = {h * of->rows, of->rows, h * of->all + of->first, (int64_t)of->heads * of->all};
        TE_TRY(te__packed_views(l, p, &part, rows, prefix, ctx));
    }
    return TE_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Add to list l the views of those parameters of m that `parts` names. The parts must completely cover each of these
 * parameters. After an error the list is unchanged. */
TE_API te_status te_packed_add(te_packed_list *l, const te_model *m, const te_packed *parts, int count,
                               const char *prefix, te_context *ctx) {
    TE_TRY(te__check_context(ctx, "te_packed_add"));
    TE_REQUIRE(l && m && m->plan && prefix && (parts || !count), ctx, TE_ERROR_NULL,
               "te_packed_add: the list, the instance, the parts or the prefix is null");
    TE_TRY(te__check_bound(m->plan, m, ctx));
    TE_REQUIRE(count >= 0 && count <= 1 << 20 && l->count <= 1 << 20, ctx, TE_ERROR_SHAPE, "te_packed_add: %d parts",
               count);
    for (int i = 0; i < count; i++) TE_TRY(te__packed_check(m, parts, i, ctx));
    for (int i = 0; i < count; i++) TE_TRY(te__packed_check_complete(m, parts, count, i, ctx));
    const int before = l->count;
    for (int i = 0; i < count; i++) {
        const te_status status = te__packed_part_views(l, m, parts, i, prefix, ctx);
        if (status != TE_OK) return te__packed_truncate(l, before), status;
    }
    return TE_OK;
}
/* Add to list l the views of parameters whose rows of q, k and v the file stores head by head (te_packed_heads). Each
 * tensor must have a whole parameter. A list with such views can be loaded, but not written to a file. After an error
 * the list is unchanged. */
TE_API te_status te_packed_add_heads(te_packed_list *l, const te_model *m, const te_packed_heads *tensors, int count,
                                     const char *prefix, te_context *ctx) {
    TE_TRY(te__check_context(ctx, "te_packed_add_heads"));
    TE_REQUIRE(l && m && m->plan && prefix && (tensors || !count), ctx, TE_ERROR_NULL,
               "te_packed_add_heads: the list, the instance, the tensors or the prefix is null");
    TE_TRY(te__check_bound(m->plan, m, ctx));
    TE_REQUIRE(count >= 0 && count <= 1 << 20 && l->count <= 1 << 20, ctx, TE_ERROR_SHAPE,
               "te_packed_add_heads: %d tensors", count);
    const int before = l->count;
    for (int i = 0; i < count; i++) {
        const te_status status = te__packed_heads_views(l, m, &tensors[i], prefix, ctx);
        if (status != TE_OK) return te__packed_truncate(l, before), status;
    }
    return TE_OK;
}
/* Add to list l the views of parameters that have, for each head, only some rows of a tensor (te_packed_head_rows). A
 * list with such views can be loaded, but not written to a file. After an error the list is unchanged. */
TE_API te_status te_packed_add_head_rows(te_packed_list *l, const te_model *m, const te_packed_head_rows *tensors,
                                         int count, const char *prefix, te_context *ctx) {
    TE_TRY(te__check_context(ctx, "te_packed_add_head_rows"));
    TE_REQUIRE(l && m && m->plan && prefix && (tensors || !count), ctx, TE_ERROR_NULL,
               "te_packed_add_head_rows: the list, the instance, the tensors or the prefix is null");
    TE_TRY(te__check_bound(m->plan, m, ctx));
    TE_REQUIRE(count >= 0 && count <= 1 << 20 && l->count <= 1 << 20, ctx, TE_ERROR_SHAPE,
               "te_packed_add_head_rows: %d tensors", count);
    const int before = l->count;
    for (int i = 0; i < count; i++) {
        const te_status status = te__packed_head_rows_views(l, m, &tensors[i], prefix, ctx);
        if (status != TE_OK) return te__packed_truncate(l, before), status;
    }
    return TE_OK;
}
/* Check that the list covers every parameter of m completely, except tied ones. */
TE_API te_status te_packed_covers(const te_packed_list *l, const te_model *m, te_context *ctx) {
    TE_REQUIRE(l && m && m->plan, ctx, TE_ERROR_NULL, "te_packed_covers: the list or the instance is null");
    for (int i = 0; i < m->param_count; i++) {
        const te_param *p = &m->param[i];
        const uint64_t bytes = (uint64_t)(p->rows * p->cols) * te_dtype_bytes(p->dtype);
        uint64_t covered = 0;
        for (int k = 0; k < l->count; k++)
            if ((uintptr_t)l->tensor[k].data - (uintptr_t)p->data < bytes)
                covered += te__safetensor_data_bytes(&l->tensor[k]);
        TE_REQUIRE(p->tied || covered == bytes, ctx, TE_ERROR_SHAPE, "%s: no tensor of the file is %s.%s, %lld x %lld",
                   m->plan->name, p->op, p->field, (long long)p->rows, (long long)p->cols);
    }
    return TE_OK;
}

#endif
