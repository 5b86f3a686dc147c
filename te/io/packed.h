/* packed.h -- tensors of a file that are parts of one parameter: q, k and v, or gate and up, which others keep apart
 * and a list has as one weight. They are views of it, so they load into their places, and are saved from them.
 *
 * Do this:
 *     static const te_packed parts[] = {{"q_proj.weight", "fc1", "weight", 4, 0},     // rows of the weight, in order
 *                                       {"k_proj.weight", "fc1", "weight", 2, 0},
 *                                       {"v_proj.weight", "fc1", "weight", 2, 0},
 *                                       {"o_proj.weight", "proj", "weight", 0, 1}};   // all; transposed in the file
 *     te_packed_list list = te_packed_none();
 *     te_status status = te_packed_add(&list, &block.model, parts, 4, "model.layers.0.self_attn.", &ctx);
 *     if (status == TE_OK) status = te_packed_covers(&list, &block.model, &ctx);      // no parameter was forgotten
 *     if (status == TE_OK) status = te_safetensors_load(&file, list.tensor, list.count, 1, &ctx);
 *     if (status == TE_OK) status = te_safetensors_write("again.safetensors", list.tensor, list.count, 0, 0, &ctx);
 *     te_packed_free(&list);
 *
 * Names and shapes are checked by te_safetensors_load, which converts F32, BF16 and F16.
 *
 * Where the ranks of the tensor group have parts of a parameter the list is that of one rank: `rows` are those of the
 * whole parameter, and each rank loads its slices of the same file. Such a list is not for writing.
 */
#ifndef TE_PACKED_H
#define TE_PACKED_H

#include "../plan/freeze.h" /* te_model, te__is_named */
#include "../plan/bind.h"  /* te_shard_layout_of */
#include "safetensors.h"    /* te_safetensor */

typedef struct te_packed {
    const char *name;       /* of the tensor in the file, behind the prefix */
    const char *op, *field; /* of the parameter that it is a part of */
    int64_t rows;           /* its next rows; of a parameter of one row (a bias) its next columns; 0: all the rest;
                               of all ranks */
    int transposed;         /* the file has this part as [in, out] */
} te_packed;

/* Views with names of their own, for te_safetensors_load and _write. */
typedef struct te_packed_list {
    te_safetensor *tensor;
    int count;
} te_packed_list;

TE_API te_packed_list te_packed_none(void) {
    te_packed_list l;
    l.tensor = 0, l.count = 0;
    return l;
}
TE_API void te__packed_cut(te_packed_list *l, int count) {
    while (l->count > count) free((void *)(uintptr_t)l->tensor[--l->count].name);
}
TE_API void te_packed_free(te_packed_list *l) {
    if (!l) return;
    te__packed_cut(l, 0);
    free(l->tensor), l->tensor = 0;
}

/* The parameter that `part` names; null: there is none. */
TE_API const te_param *te__packed_param(const te_model *m, const te_packed *part) {
    for (int i = 0; i < m->param_count; i++)
        if (te__is_named(&m->param[i], part->op, part->field)) return &m->param[i];
    return 0;
}
/* Rows of the whole parameter or, if it has one, columns. */
TE_API int64_t te__packed_all(const te_param *p, te_context *ctx) {
    const int64_t ranks = te_shard_layout_of(p, te_tensor_group(ctx)).ranks;
    if (p->rows == 1) return p->cols * ranks;
    return p->shard == TE_SHARD_rows ? p->rows : p->rows * ranks;
}
/* What parts[0, n) have taken of the parameter of parts[n]: rows or, if it has one, columns; all: the whole of it. */
TE_API int64_t te__packed_taken(const te_packed *parts, int n, int64_t all) {
    int64_t taken = 0;
    for (int i = 0; i < n; i++)
        if (!strcmp(parts[i].op, parts[n].op) && !strcmp(parts[i].field, parts[n].field))
            taken = parts[i].rows ? taken + te_min(parts[i].rows, all - taken) : all;
    return taken;
}
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
    const int64_t all = te__packed_all(p, ctx), left = all - te__packed_taken(parts, n, all);
    TE_REQUIRE(left > 0 && part->rows >= 0 && part->rows <= left, ctx, TE_ERROR_SHAPE,
               "te_packed_add: %.60s: %lld %s of %s.%s, of which %lld are left", part->name, (long long)part->rows,
               p->rows > 1 ? "rows" : "columns", p->op, p->field, (long long)left);
    return TE_OK;
}
/* All of a parameter has been taken by the parts. */
TE_API te_status te__packed_filled(const te_model *m, const te_packed *parts, int count, int n, te_context *ctx) {
    const te_param *p = te__packed_param(m, &parts[n]);
    const int64_t all = te__packed_all(p, ctx);
    int64_t taken = te__packed_taken(parts, n, all);
    for (int i = n; i < count; i++)
        if (te__packed_param(m, &parts[i]) == p) taken = parts[i].rows ? taken + parts[i].rows : all;
    TE_REQUIRE(taken == all, ctx, TE_ERROR_SHAPE, "te_packed_add: the parts of %s.%s have %lld of its %lld %s", p->op,
               p->field, (long long)taken, (long long)all, p->rows > 1 ? "rows" : "columns");
    return TE_OK;
}
/* A view of the parameter p, called prefix and name: of `rows` x `cols` from element `at` on, for the part that the
 * file has as a tensor of whole[0] x whole[1], or as its transpose. In that they begin at first[0], first[1]. */
typedef struct te__packed_place { int64_t at, rows, cols, whole[2], first[2]; } te__packed_place;
TE_API te_status te__packed_view(te_packed_list *l, const te_param *p, const te_packed *part, te__packed_place v,
                                 const char *prefix, te_context *ctx) {
    const size_t room = strlen(prefix) + strlen(part->name) + 1;
    const int turned = part->transposed;
    te_safetensor *tensor = (te_safetensor *)realloc((void *)l->tensor, (size_t)(l->count + 1) * sizeof *tensor);
    TE_REQUIRE(tensor, ctx, TE_ERROR_MEMORY, "te_packed_add: cannot allocate %d views", l->count + 1);
    l->tensor = tensor;
    char *name = (char *)malloc(room);
    TE_REQUIRE(name, ctx, TE_ERROR_MEMORY, "te_packed_add: cannot allocate %zu bytes", room);
    snprintf(name, room, "%s%s", prefix, part->name);
    void *data = (char *)p->data + (size_t)v.at * te_dtype_bytes(p->dtype);
    te_safetensor t = turned ? te_safetensor_transposed(name, p->dtype, v.whole[0], v.whole[1], data)
                             : te_safetensor_matrix(name, p->dtype, v.whole[0], v.whole[1], data);
    if (v.rows != v.whole[0] || v.cols != v.whole[1])
        t = te_safetensor_slice(t, v.first[turned], turned ? v.cols : v.rows, v.first[!turned],
                                turned ? v.rows : v.cols);
    l->tensor[l->count++] = t;
    return TE_OK;
}
/* Those of parts[n]: of a rank's own columns one, else one of each run that the part has some of. */
TE_API te_status te__packed_views(te_packed_list *l, const te_model *m, const te_packed *parts, int n,
                                  const char *prefix, te_context *ctx) {
    const te_param *p = te__packed_param(m, &parts[n]);
    const te_shard_layout runs = te_shard_layout_of(p, te_tensor_group(ctx));
    const int64_t all = te__packed_all(p, ctx), first = te__packed_taken(parts, n, all);
    const int64_t here = parts[n].rows ? parts[n].rows : all - first;
    te__packed_place v;
    memset(&v, 0, sizeof v);
    if (p->rows > 1 && p->shard == TE_SHARD_rows && runs.ranks > 1) {
        v.at = first * p->cols, v.rows = v.whole[0] = here, v.cols = p->cols, v.whole[1] = p->cols * runs.ranks;
        v.first[1] = runs.rank * p->cols;
        return te__packed_view(l, p, &parts[n], v, prefix, ctx);
    }
    const int64_t each = p->rows > 1 ? p->cols : 1; /* elements of what is counted: a row, or a column */
    for (int64_t i = 0; i < runs.count; i++) {
        const te_shard_run r = te_shard_run_at(&runs, i);
        const int64_t from = te_max(first, r.whole / each), to = te_min(first + here, (r.whole + r.elements) / each);
        if (from >= to) continue;
        v.at = r.at + from * each - r.whole;
        v.rows = p->rows > 1 ? to - from : 1, v.cols = p->rows > 1 ? p->cols : to - from;
        v.whole[0] = p->rows > 1 ? here : 1, v.whole[1] = p->rows > 1 ? p->cols : here;
        v.first[0] = p->rows > 1 ? from - first : 0, v.first[1] = p->rows > 1 ? 0 : from - first;
        TE_TRY(te__packed_view(l, p, &parts[n], v, prefix, ctx));
    }
    return TE_OK;
}
/* Add views of the parameters of m that the parts name, each of them wholly. After an error the list is as it was. */
TE_API te_status te_packed_add(te_packed_list *l, const te_model *m, const te_packed *parts, int count,
                               const char *prefix, te_context *ctx) {
    TE_TRY(te__check_context(ctx, "te_packed_add"));
    TE_REQUIRE(l && m && m->plan && prefix && (parts || !count), ctx, TE_ERROR_NULL,
               "te_packed_add: the list, the instance, the parts or the prefix is null");
    TE_TRY(te__check_bound(m->plan, m, ctx));
    TE_REQUIRE(count >= 0 && count <= 1 << 20 && l->count <= 1 << 20, ctx, TE_ERROR_SHAPE, "te_packed_add: %d parts",
               count);
    for (int i = 0; i < count; i++) TE_TRY(te__packed_check(m, parts, i, ctx));
    for (int i = 0; i < count; i++) TE_TRY(te__packed_filled(m, parts, count, i, ctx));
    const int before = l->count;
    for (int i = 0; i < count; i++) {
        const te_status status = te__packed_views(l, m, parts, i, prefix, ctx);
        if (status != TE_OK) return te__packed_cut(l, before), status;
    }
    return TE_OK;
}
/* Every parameter of m that has memory of its own is in the list, all of it. */
TE_API te_status te_packed_covers(const te_packed_list *l, const te_model *m, te_context *ctx) {
    TE_REQUIRE(l && m && m->plan, ctx, TE_ERROR_NULL, "te_packed_covers: the list or the instance is null");
    for (int i = 0; i < m->param_count; i++) {
        const te_param *p = &m->param[i];
        const uint64_t bytes = (uint64_t)(p->rows * p->cols) * te_dtype_bytes(p->dtype);
        uint64_t has = 0;
        for (int k = 0; k < l->count; k++)
            if ((uintptr_t)l->tensor[k].data - (uintptr_t)p->data < bytes)
                has += te__safetensor_data_bytes(&l->tensor[k]);
        TE_REQUIRE(p->tied || has == bytes, ctx, TE_ERROR_SHAPE, "%s: no tensor of the file is %s.%s, %lld x %lld",
                   m->plan->name, p->op, p->field, (long long)p->rows, (long long)p->cols);
    }
    return TE_OK;
}

#endif
