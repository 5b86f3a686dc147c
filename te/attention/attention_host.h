/* attention_host.h -- the kernels of attention_kernels.h in plain C: tiles of 64 queries by 64 keys, converted to float
 * in a block's own scratch, and one small matrix product that keeps 4 rows by 2 vectors of sums in registers.
 *
 * The operand that a block owns is transposed, once; what streams past is read as it lies. So each product runs along
 * contiguous numbers, and softmax along 64 queries (or keys) at a time with no sum across a vector:
 *     forward, by queries: S^T[key][query] = K Q^T, O[query] += P V
 *     dq, by queries:      S^T, dP^T[key][query] = V dO^T, dQ[query] += dS K
 *     dkdv, by keys:       S[query][key] = Q K^T, dP = dO V^T, dV[key] += P^T dO, dK[key] += dS^T Q
 * Floor: the flops in attention_mma_forward.h and attention_mma_backward.h over the processor's rate of multiply-adds.
 */
#ifndef TE_ATTENTION_HOST_H
#define TE_ATTENTION_HOST_H

#include "attention_scores_host.h" /* what mask and options make of scores; te__attn_product */

/* Where a head's rows lie, in elements from the start of qkv, of kv (or qkv), of out (and dout) and of lse (and
 * delta). */
typedef struct te__attn_head {
    int64_t width, q, kv_width, k, v, out_width, out, row;
    const void *kv; /* where keys and values lie, and their gradients */
    void *dkv;
    int seq, keys, head; /* queries and keys of the sequence; which head of all sequences */
    int drawn;           /* the same of all ranks */
} te__attn_head;
TE_FN te__attn_head te__attn_head_of(const te_attention_args *a, int batch, int head, int heads, int kv_heads, int d,
                                     te__attn_form f) {
    const te_sequences s = te__attn_sequences(a);
    const te_sequence own = te_sequence_rows(&s, batch);
    const int64_t first = own.first, kv = head / (heads / kv_heads), dv = te__attn_value_dim(d, f);
    te__attn_head h;
    h.seq = h.keys = own.count, h.head = batch * heads + head;
    h.drawn = te__attn_head_of_all(a->whole, h.head, heads);
    h.width = (int64_t)(heads + kv_heads) * d + kv_heads * dv, h.out_width = (int64_t)heads * dv;
    h.kv_width = h.width, h.k = first * h.width + (heads + kv) * d, h.kv = a->qkv, h.dkv = a->dqkv;
    if (f.cross) {
        h.width = (int64_t)heads * d, h.kv_width = (int64_t)kv_heads * (d + dv), h.keys = a->kv_seq;
        h.k = (int64_t)batch * h.keys * h.kv_width + kv * d, h.kv = a->kv, h.dkv = a->dkv;
    }
    h.q = first * h.width + (int64_t)head * d, h.v = h.k + (int64_t)kv_heads * d + kv * (dv - d);
    h.out = first * h.out_width + head * dv;
    h.row = a->cu_seqlens ? (int64_t)head * s.rows + first : (int64_t)h.head * a->seq;
    return h;
}
TE_FN te__attn_mask te__attn_mask_at(const te__attn_head *h, te__attn_form f) {
    return f.cross ? te__attn_mask_between(h->seq, h->keys, f.left, f.right)
                   : te__attn_mask_of(h->seq, f.left, f.right);
}
/* Grid: (batch * heads, query tiles). */
TE_FN void te__attention_forward_host(const te_attention_args *a, te_block at, float *s, te_dtype t, int heads,
                                      int kv_heads, int d, te__attn_form f) {
    const te__attn_head h = te__attn_head_of(a, at.x / heads, at.x % heads, heads, kv_heads, d, f);
    const te__attn_mask m = te__attn_mask_at(&h, f);
    const int q0 = (te__attn_grows(m) ? at.ny - 1 - at.y : at.y) * TE__ATTN_TILE,
              queries = te__attn_least(TE__ATTN_TILE, h.seq - q0);
    if (queries <= 0) return; /* of a longer sequence */
    const te__attn_span seen = te__attn_keys_of(m, q0, queries);
    const float slope = te__attn_alibi(h.head, heads, f);
    const int dv = te__attn_value_dim(d, f), ld = TE__ATTN_PADDED(d), ldv = TE__ATTN_PADDED(dv);
    const int n = TE__ATTN_PADDED(queries), tile = TE__ATTN_TILE * ld, square = TE__ATTN_TILE * TE__ATTN_TILE;
    float *k = s, *v = k + tile, *o = v + TE__ATTN_TILE * ldv, *qt = o + TE__ATTN_TILE * ldv, *p = qt + tile;
    float *top = p + square, *sum = top + TE__ATTN_TILE, *shrink = sum + TE__ATTN_TILE;
    float *most = shrink + TE__ATTN_TILE; /* for row_top */
    memset(o, 0, (size_t)(TE__ATTN_TILE * ldv) * sizeof(float));
    /* a sink is a score that each row has seen before any key, and has no value */
    const float sink = f.sinks ? te_load(a->sinks, at.x % heads, t) * TE__ATTN_LOG2E : -INFINITY;
    for (int q = 0; q < TE__ATTN_TILE; q++) top[q] = fmaxf(sink, -3.402823466e38f), sum[q] = f.sinks ? 1.0f : 0.0f;
    for (int q = 0; f.top && q < TE__ATTN_TILE; q++) most[q] = -INFINITY;
    te__attn_tile_read_transposed(qt, a->qkv, h.q + q0 * h.width, h.width, queries, d, te__attn_factor(a->scale, f), t);
    for (int k0 = seen.first / TE__ATTN_TILE * TE__ATTN_TILE; k0 < seen.end; k0 += TE__ATTN_TILE) {
        const int keys = te__attn_least(TE__ATTN_TILE, seen.end - k0), cut = te__attn_cuts(seen, k0, keys);
        const int triangle = cut && te__attn_is_triangle(m, q0, k0, keys);
        const enum te__attn_part part = triangle ? TE__ATTN_COLUMNS_FROM_ROW : TE__ATTN_ALL;
        const enum te__attn_part depth = triangle ? TE__ATTN_DEPTH_TO_ROW : TE__ATTN_ALL;
        te__attn_tile_read(k, ld, h.kv, h.k + k0 * h.kv_width, h.kv_width, keys, d, t);
        te__attn_tile_read(v, ldv, h.kv, h.v + k0 * h.kv_width, h.kv_width, keys, dv, t);
        te__attn_product(p, TE__ATTN_TILE, k, ld, 1, qt, TE__ATTN_TILE, keys, n, d, 0, part);
        te__attn_cap(p, keys, n, f);
        for (int i = 0; (f.alibi || f.bias) && i < keys; i++)
            for (int q = 0; q < n; q += TE__ATTN_LANES) {
                te__attn_vector e;
                te__attn_get(&e, p + i * TE__ATTN_TILE + q), te__attn_add_bias(&e, slope, q0 + q + m.shift - k0 - i, f);
                te__attn_add_table(&e, a, at.x % heads, q0 + q, k0 + i, 0, m, t, f);
                te__attn_put(p + i * TE__ATTN_TILE + q, &e);
            }
        if (cut) te__attn_hide_by_key(p, m, q0, k0, keys);
        for (int q = 0; f.top && q < queries; q++)
            for (int i = 0; i < keys; i++) most[q] = fmaxf(most[q], p[i * TE__ATTN_TILE + q]);
        for (int q = 0; q < n; q += TE__ATTN_LANES) {
            te__attn_vector old, now, add, e;
            te__attn_get(&old, top + q), te__attn_get(&add, sum + q), now = old;
            for (int i = 0; i < keys; i++) te__attn_get(&e, p + i * TE__ATTN_TILE + q), te__attn_raise(&now, &e);
            old -= now, te__attn_exp2(&old), add *= old;
            for (int i = 0; i < keys; i++) {
                te__attn_get(&e, p + i * TE__ATTN_TILE + q), e -= now, te__attn_exp2(&e), add += e;
                te__attn_put(p + i * TE__ATTN_TILE + q, &e);
            }
            te__attn_put(shrink + q, &old), te__attn_put(top + q, &now), te__attn_put(sum + q, &add);
        }
        te__attn_drop(p, 1, a, h.drawn, q0, k0, 1, f);
        for (int q = 0; q < queries; q++)
            if (shrink[q] != 1)
                for (int c = 0; c < ldv; c += TE__ATTN_LANES) {
                    te__attn_vector e;
                    te__attn_get(&e, o + q * ldv + c), e *= shrink[q], te__attn_put(o + q * ldv + c, &e);
                }
        te__attn_product(o, ldv, p, 1, TE__ATTN_TILE, v, ldv, queries, ldv, keys, 1, depth);
    }
    for (int q = 0; q < queries; q++) {
        /* it sees no key: 0, and in backward all its probabilities are */
        const int blind = (f.cross || f.bias) && !(sum[q] > 0);
        te__attn_out_write(a, h.out + (q0 + q) * h.out_width, o + q * ldv, dv,
                           blind ? 0.0f : (f.drop && a->rng ? f.factor : 1.0f) / sum[q], t);
        if (a->lse) a->lse[h.row + q0 + q] = blind ? INFINITY : top[q] * TE__ATTN_LN2 + logf(sum[q]);
        if (f.top && a->row_top) a->row_top[h.row + q0 + q] = most[q] * TE__ATTN_LN2;
    }
}

/* Grid: (batch * heads, query tiles). dS = P * (dP - delta), dQ = scale * dS K; delta = rowsum(dO * O) on the way. */
TE_FN void te__attention_dq_host(const te_attention_args *a, te_block at, float *s, te_dtype t, int heads, int kv_heads,
                                      int d, te__attn_form f) {
    const te__attn_head h = te__attn_head_of(a, at.x / heads, at.x % heads, heads, kv_heads, d, f);
    const te__attn_mask m = te__attn_mask_at(&h, f);
    const int q0 = (te__attn_grows(m) ? at.ny - 1 - at.y : at.y) * TE__ATTN_TILE,
              queries = te__attn_least(TE__ATTN_TILE, h.seq - q0);
    if (queries <= 0) return; /* of a longer sequence */
    const te__attn_span seen = te__attn_keys_of(m, q0, queries);
    const float slope = te__attn_alibi(h.head, heads, f);
    const int dv = te__attn_value_dim(d, f), ld = TE__ATTN_PADDED(d), ldv = TE__ATTN_PADDED(dv);
    const int n = TE__ATTN_PADDED(queries), tile = TE__ATTN_TILE * ld, square = TE__ATTN_TILE * TE__ATTN_TILE;
    float *k = s, *v = k + tile, *dq = v + TE__ATTN_TILE * ldv, *qt = dq + tile, *dot = qt + tile;
    float *p = dot + TE__ATTN_TILE * ldv;
    float *dp = p + square, *lse = dp + square, *delta = lse + TE__ATTN_TILE;
    memset(dq, 0, (size_t)(TE__ATTN_TILE * ld) * sizeof(float)), memset(lse, 0, 2 * TE__ATTN_TILE * sizeof(float));
    te__attn_tile_read_transposed(qt, a->qkv, h.q + q0 * h.width, h.width, queries, d, te__attn_factor(a->scale, f), t);
    te__attn_tile_read_transposed(dot, a->dout, h.out + q0 * h.out_width, h.out_width, queries, dv, 1, t);
    for (int q = 0; q < queries; q++) {
        const int64_t row = h.out + (q0 + q) * h.out_width;
        for (int c = 0; c < dv; c++) delta[q] += dot[c * TE__ATTN_TILE + q] * te_load(a->out, row + c, t);
        lse[q] = a->lse[h.row + q0 + q] * TE__ATTN_LOG2E, a->delta[h.row + q0 + q] = delta[q];
    }
    for (int k0 = seen.first / TE__ATTN_TILE * TE__ATTN_TILE; k0 < seen.end; k0 += TE__ATTN_TILE) {
        const int keys = te__attn_least(TE__ATTN_TILE, seen.end - k0), cut = te__attn_cuts(seen, k0, keys);
        const int triangle = cut && te__attn_is_triangle(m, q0, k0, keys);
        const enum te__attn_part part = triangle ? TE__ATTN_COLUMNS_FROM_ROW : TE__ATTN_ALL;
        const enum te__attn_part depth = triangle ? TE__ATTN_DEPTH_TO_ROW : TE__ATTN_ALL;
        te__attn_tile_read(k, ld, h.kv, h.k + k0 * h.kv_width, h.kv_width, keys, d, t);
        te__attn_tile_read(v, ldv, h.kv, h.v + k0 * h.kv_width, h.kv_width, keys, dv, t);
        te__attn_product(p, TE__ATTN_TILE, k, ld, 1, qt, TE__ATTN_TILE, keys, n, d, 0, part);
        te__attn_product(dp, TE__ATTN_TILE, v, ldv, 1, dot, TE__ATTN_TILE, keys, n, dv, 0, part);
        te__attn_cap(p, keys, n, f);
        if (cut) te__attn_hide_by_key(p, m, q0, k0, keys);
        te__attn_drop(dp, 1, a, h.drawn, q0, k0, f.factor, f);
        for (int q = 0; q < n; q += TE__ATTN_LANES) {
            te__attn_vector l, mean, e, x, score;
            te__attn_get(&l, lse + q), te__attn_get(&mean, delta + q);
            for (int i = q; i < keys * TE__ATTN_TILE; i += TE__ATTN_TILE) {
                te__attn_get(&e, p + i), te__attn_get(&x, dp + i);
                score = e, te__attn_add_bias(&e, slope, q0 + q + m.shift - k0 - i / TE__ATTN_TILE, f);
                te__attn_add_table(&e, a, at.x % heads, q0 + q, k0 + i / TE__ATTN_TILE, 0, m, t, f);
                e -= l, te__attn_exp2(&e), e *= x - mean, te__attn_uncap(&e, &score, f);
                te__attn_put(p + i, &e);
            }
        }
        te__attn_product(dq, ld, p, 1, TE__ATTN_TILE, k, ld, queries, ld, keys, 1, depth);
    }
    for (int q = 0; q < queries; q++)
        te__attn_row_write(a->dqkv, h.q + (q0 + q) * h.width, dq + q * ld, d, a->scale, t, a->amax);
}

/* Grid: (batch * kv_heads, key tiles). dV = P^T dO, dK = scale * dS^T Q, over all query heads of the group. */
TE_FN void te__attention_dkdv_host(const te_attention_args *a, te_block at, float *s, te_dtype t, int heads,
                                   int kv_heads, int d, te__attn_form f) {
    const int group = heads / kv_heads, batch = at.x / kv_heads, head0 = at.x % kv_heads * group;
    const te__attn_head h0 = te__attn_head_of(a, batch, head0, heads, kv_heads, d, f);
    const int k0 = at.y * TE__ATTN_TILE, keys = te__attn_least(TE__ATTN_TILE, h0.keys - k0);
    if (keys <= 0) return;
    const te__attn_mask m = te__attn_mask_at(&h0, f);
    const te__attn_span seen = te__attn_queries_of(m, k0, keys);
    const int d_v = te__attn_value_dim(d, f), ld = TE__ATTN_PADDED(d), ldv = TE__ATTN_PADDED(d_v);
    const int n = TE__ATTN_PADDED(keys), tile = TE__ATTN_TILE * ld, value_tile = TE__ATTN_TILE * ldv;
    float *q = s, *dout = q + tile, *dk = dout + value_tile, *dv = dk + tile, *kt = dv + value_tile, *vt = kt + tile,
          *p = vt + value_tile;
    float *dp = p + TE__ATTN_TILE * TE__ATTN_TILE;
    memset(dk, 0, (size_t)(tile + value_tile) * sizeof(float));
    te__attn_tile_read_transposed(kt, h0.kv, h0.k + k0 * h0.kv_width, h0.kv_width, keys, d,
                                  te__attn_factor(a->scale, f), t);
    te__attn_tile_read_transposed(vt, h0.kv, h0.v + k0 * h0.kv_width, h0.kv_width, keys, d_v, 1, t);
    for (int head = head0; head < head0 + group; head++) {
        const te__attn_head h = te__attn_head_of(a, batch, head, heads, kv_heads, d, f);
        const float slope = te__attn_alibi(head, heads, f);
        for (int q0 = seen.first / TE__ATTN_TILE * TE__ATTN_TILE; q0 < seen.end; q0 += TE__ATTN_TILE) {
            const int queries = te__attn_least(TE__ATTN_TILE, seen.end - q0), cut = te__attn_cuts(seen, q0, queries);
            const int triangle = cut && te__attn_is_triangle(m, q0, k0, keys);
            const enum te__attn_part part = triangle ? TE__ATTN_COLUMNS_TO_ROW : TE__ATTN_ALL;
            const enum te__attn_part depth = triangle ? TE__ATTN_DEPTH_FROM_ROW : TE__ATTN_ALL;
            te__attn_tile_read(q, ld, a->qkv, h.q + q0 * h.width, h.width, queries, d, t);
            te__attn_tile_read(dout, ldv, a->dout, h.out + q0 * h.out_width, h.out_width, queries, d_v, t);
            te__attn_product(p, TE__ATTN_TILE, q, ld, 1, kt, TE__ATTN_TILE, queries, n, d, 0, part);
            te__attn_product(dp, TE__ATTN_TILE, dout, ldv, 1, vt, TE__ATTN_TILE, queries, n, d_v, 0, part);
            te__attn_cap(p, queries, n, f);
            if (cut) te__attn_hide_by_query(p, m, q0, k0, queries);
            te__attn_drop(dp, 0, a, h.drawn, q0, k0, f.factor, f);
            for (int i = 0; i < queries; i++) {
                const float lse = a->lse[h.row + q0 + i] * TE__ATTN_LOG2E, delta = a->delta[h.row + q0 + i];
                for (int j = i * TE__ATTN_TILE; j < i * TE__ATTN_TILE + n; j += TE__ATTN_LANES) {
                    te__attn_vector e, x, score;
                    te__attn_get(&e, p + j), te__attn_get(&x, dp + j);
                    score = e, te__attn_add_bias(&e, slope, k0 + j - i * TE__ATTN_TILE - q0 - i - m.shift, f);
                    te__attn_add_table(&e, a, head, q0 + i, k0 + j - i * TE__ATTN_TILE, 1, m, t, f);
                    e -= lse, te__attn_exp2(&e), x = e * (x - delta), te__attn_uncap(&x, &score, f);
                    te__attn_put(p + j, &e), te__attn_put(dp + j, &x);
                }
            }
            te__attn_drop(p, 0, a, h.drawn, q0, k0, 1, f);
            te__attn_product(dv, ldv, p, 1, TE__ATTN_TILE, dout, ldv, keys, ldv, queries, 1, depth);
            te__attn_product(dk, ld, dp, 1, TE__ATTN_TILE, q, ld, keys, ld, queries, 1, depth);
        }
    }
    float *const amax = a->kv ? 0 : a->amax;
    for (int k = 0; k < keys; k++) {
        te__attn_row_write(h0.dkv, h0.k + (k0 + k) * h0.kv_width, dk + k * ld, d, a->scale, t, amax);
        te__attn_row_write(h0.dkv, h0.v + (k0 + k) * h0.kv_width, dv + k * ldv, d_v, f.factor, t, amax);
    }
}

TE_API te_status te__attention_check_form(te_context *ctx, const te_attention_args *a, te__attn_form f,
                                          const char *name) {
    TE_TRY(te__attention_check_gives(ctx, a, f.gives, name));
    return te__attention_check_bias(ctx, a, f.cross, f.bias, f.first, f.second, name);
}

/* The shell of one of the three bodies, with its scratch. */
#define TE__ATTENTION_SHELL(name, body, dtype, heads, kv_heads, head_dim, form)               \
    TE_KERNEL(name, 1, te_attention_args,                                                     \
              float te_scratch_[TE__ATTENTION_FLOATS(head_dim, form##_value != 0 ? (int)form##_value : (head_dim))] \
                  __attribute__((aligned(64)));                                               \
              te__attention_##body##_host(te_args, te_at, te_scratch_, TE_##dtype, heads, kv_heads, head_dim, form()))

#define TE_ATTENTION_FORWARD_OF(name, dtype, heads, kv_heads, head_dim, options)                                    \
    TE__ATTENTION_ASSERT(heads, kv_heads, head_dim)                                                                 \
    TE__ATTENTION_FORM(name, options)                                                                               \
    TE__ATTENTION_SHELL(name##_tile, forward, dtype, heads, kv_heads, head_dim, name##_form)                        \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                                   \
        TE_TRY(te__attention_check(ctx, a, heads, name##_form().varlen, name##_form().sinks, #name));               \
        TE_TRY(te__attention_check_cross(ctx, a, heads, name##_form().cross, #name));                               \
        TE_TRY(te__attention_check_form(ctx, a, name##_form(), #name));                                             \
        return name##_tile_launch(ctx, te_grid_of((int64_t)a->batch * (heads), te_ceil_div(a->seq, TE__ATTN_TILE)), \
            a);                                                                                                     \
    }

#define TE_ATTENTION_BACKWARD_OF(name, dtype, heads, kv_heads, head_dim, options)                               \
    TE__ATTENTION_ASSERT(heads, kv_heads, head_dim)                                                             \
    TE__ATTENTION_FORM(name, options)                                                                           \
    TE__ATTENTION_SHELL(name##_dq, dq, dtype, heads, kv_heads, head_dim, name##_form)                           \
    TE__ATTENTION_SHELL(name##_dkdv, dkdv, dtype, heads, kv_heads, head_dim, name##_form)                       \
    enum { name##_sum_rows = 0 }; /* te_attention_args.sum must be null */                                      \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                               \
        const int64_t tiles = te_ceil_div(a->seq, TE__ATTN_TILE);                                               \
        const int cross = name##_form().cross;                                                                  \
        TE_TRY(te__attention_check(ctx, a, heads, name##_form().varlen, name##_form().sinks, #name));           \
        TE_TRY(te__attention_check_cross(ctx, a, heads, cross, #name));                                         \
        TE_TRY(te__attention_check_form(ctx, a, name##_form(), #name));                                         \
        TE_TRY(name##_dq_launch(ctx, te_grid_of((int64_t)a->batch * (heads), tiles), a)); /* delta, for dkdv */ \
        if (cross && !a->dkv) return TE_OK;                                                                     \
        return name##_dkdv_launch(ctx, te_grid_of((int64_t)a->batch * (kv_heads),                               \
                                       cross ? te_ceil_div(a->kv_seq, TE__ATTN_TILE) : tiles), a);              \
    }                                                                                                           \
    TE_API size_t name##_scratch_bytes(te_context *ctx, int64_t rows) { return (void)ctx, (void)rows, 0; }

#endif
