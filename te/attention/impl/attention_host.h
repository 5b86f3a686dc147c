/* attention_host.h -- the kernels of attention_kernels.h in plain C: forward, dq, dkdv, the gradient of a score bias,
 * and forward in FP8. A block (te_block) converts tiles of 64 rows of its operands to float in its scratch memory.
 *
 * A block processes 64 queries, or 64 keys. The block transposes these rows once, and reads the tiles of the other
 * operand in the layout in which the tiles are stored. With these layouts each product reads contiguous memory, and the
 * softmax processes the queries (or keys) in the lanes of vectors, so that it never has to add up the elements of a
 * vector:
 *     forward (block of queries): S^T[key][query] = K Q^T, O[query] += P V.
 *     dq (block of queries):      S^T, dP^T[key][query] = V dO^T, dQ[query] += dS K.
 *     dkdv (block of keys):       S[query][key] = Q K^T, dP = dO V^T, dV[key] += P^T dO, dK[key] += dS^T Q.
 * Lower bound of the run time: the flops stated in attention_sm80_forward.h and attention_sm80_backward.h, divided by
 * the processor's rate of multiply-adds.
 */
#ifndef TE_ATTENTION_HOST_H
#define TE_ATTENTION_HOST_H

#include "attention_fp8.h"        /* te_attention_fp8_operands and the passes that cast to FP8 */
#include "attention_host_tiles.h" /* te__attn_scores, te__attn_accumulate, tiles of scores */

/* ---- the location of a head's rows ------------------------------------------------------------------------------- */

/* The arguments of a call of a host kernel, and the constants with which the kernel was declared. */
typedef struct te__attn_call {
    const te_attention_args *a;
    te_dtype dtype;
    int heads, kv_heads, d, dv; /* d: head_dim; dv: the head size of v */
    /* how many elements of each value are stored in qkv and the cache; 0 if values are parts of keys */
    int stored_dv;
    te__attn_variant f;
} te__attn_call;
TE_FN te__attn_call te__attn_call_of(const te_attention_args *a, te_dtype dtype, int heads, int kv_heads, int d,
                                     te__attn_variant f) {
    te__attn_call c;
    c.a = a, c.dtype = dtype, c.heads = heads, c.kv_heads = kv_heads, c.d = d, c.f = f;
    c.dv = te__attn_value_dim(d, f), c.stored_dv = te__attn_stored_value_dim(d, f);
    return c;
}

/* One head of one sequence, and where its rows are. Offsets are in elements, from the start of each tensor. */
typedef struct te__attn_head {
    /* width: the distance between two rows of the tensors qkv and dqkv; q: the offset, in these tensors, of the head's
     * first query */
    int64_t width, q;
    /* kv_width: the distance between two rows of the tensors kv and dkv (below); k, v: the offsets, in these tensors,
     * of the head's first key and first value */
    int64_t kv_width, k, v;
    /* out_width: the distance between two rows of the tensors of the output and of its gradient; out: the offset, in
     * these tensors, of the head's output for its first query */
    int64_t out_width, out;
    int64_t row;            /* the offset, in lse, delta and row_max_logit, of the number for the head's first query */
    const void *kv;         /* the tensor that holds the keys and values */
    void *dkv;              /* the tensor that receives the gradients of the keys and values */
    /* With a cache: the indices of the pages of the sequence. The members k and v are then offsets within a page. */
    const int32_t *pages;
    int seq, keys;          /* the number of queries and the number of keys of the sequence */
    int head;               /* the index of the head in the call: sequence * heads + (index in the sequence) */
    int global_head;        /* the index of the head over all ranks, which dropout needs */
} te__attn_head;
TE_FN te__attn_head te__attn_head_of(const te__attn_call *c, int batch, int head) {
    const te_attention_args *a = c->a;
    const int heads = c->heads, kv_heads = c->kv_heads, d = c->d;
    const te_sequences s = te__attn_sequences(a);
    const te_sequence rows = te_sequence_rows(&s, batch);
    const int64_t first = rows.first, kv = head / (heads / kv_heads), dv = c->stored_dv;
    te__attn_head h;
    h.seq = h.keys = rows.count, h.head = batch * heads + head;
    h.global_head = te__attn_global_head(a->whole, h.head, heads);
    h.width = (int64_t)(heads + kv_heads) * d + kv_heads * dv, h.out_width = (int64_t)heads * c->dv;
    h.kv_width = h.width, h.k = first * h.width + (heads + kv) * d, h.kv = a->qkv, h.dkv = a->dqkv;
    if (c->f.cross) {
        h.width = (int64_t)heads * d, h.kv_width = (int64_t)kv_heads * (d + dv), h.keys = a->kv_seq;
        h.k = (int64_t)batch * h.keys * h.kv_width + kv * d, h.kv = a->kv, h.dkv = a->dkv;
    }
    h.q = first * h.width + (int64_t)head * d, h.v = h.k + (int64_t)kv_heads * d + kv * (dv - d), h.pages = 0;
    if (c->f.cached) {
        h.keys = a->cache.past[batch] < 0 ? 0 : a->cache.past[batch] + h.seq;
        h.pages = te__cache_pages(&a->cache, batch), h.kv = a->cache.pages;
        h.k = te__cache_head_rows(&a->cache, 0, (int)kv, kv_heads, d, (int)dv, c->f.cache_format);
        h.v = te__cache_head_rows(&a->cache, 1, (int)kv, kv_heads, d, (int)dv, c->f.cache_format);
    }
    h.out = first * h.out_width + head * c->dv;
    h.row = a->cu_seqlens ? (int64_t)head * s.rows + first : (int64_t)h.head * a->seq;
    return h;
}
TE_FN te__attn_mask te__attn_mask_at(const te__attn_head *h, te__attn_variant f) {
    return f.shifted ? te__attn_mask_between(h->seq, h->keys, f.left, f.right)
                   : te__attn_mask_of(h->seq, f.left, f.right);
}
/* Returns the first query of a block. If the last queries see the most keys, the first blocks get the last queries, so
 * that the blocks with the most work start first. */
TE_FN int te__attn_first_query(te__attn_mask m, te_block at) {
    return (te__attn_keys_grow(m) ? at.ny - 1 - at.y : at.y) * TE__ATTN_TILE;
}
TE_FN te__attn_score_bias te__attn_score_bias_of(const te__attn_call *c, int head, te__attn_mask m) {
    te__attn_score_bias b;
    b.a = c->a, b.head = head, b.shift = m.shift, b.dtype = c->dtype;
    return b;
}

/* The functions te__attn_read_* read rows row to row + rows - 1 of q, dO, k or v into a tile of floats. ld: the row
 * length of the tile. The functions whose name ends in _transposed store the transpose, and multiply q and k by
 * te__attn_score_factor; the others only convert to float. */
TE_FN void te__attn_read_q(float *to, int ld, const te__attn_call *c, const te__attn_head *h, int row, int rows) {
    te__attn_tile_read(to, ld, c->a->qkv, h->q + row * h->width, h->width, rows, c->d, c->dtype);
}
TE_FN void te__attn_read_dout(float *to, int ld, const te__attn_call *c, const te__attn_head *h, int row, int rows) {
    te__attn_tile_read(to, ld, c->a->dout, h->out + row * h->out_width, h->out_width, rows, c->dv, c->dtype);
}
/* Reads rows of keys or values from the cache, page by page. at: h->k or h->v, an offset within a page; d: the number
 * of elements of a row. */
TE_FN void te__attn_read_cached(float *to, int ld, const te__attn_call *c, const te__attn_head *h, int64_t at, int d,
                                int row, int rows) {
    const te_attention_cache *cache = &c->a->cache;
    const int format = c->f.cache_format;
    if (TE__CACHE_HAS_SCALES(format)) {
        for (int r = 0; r < rows; r++) {
            const int64_t from = te__cache_row(cache, h->pages, at, row + r, d, format);
            te__attn_row_dequantize(to + r * ld, ld, (const uint8_t *)h->kv + from, d,
                                    *te__cache_scale(cache, from, row + r, d), format);
        }
        memset(to + rows * ld, 0, (size_t)((-rows & 3) * ld) * sizeof(float));
        return;
    }
    for (int n; rows > 0; to += n * ld, row += n, rows -= n) {
        n = te__attn_min(rows, cache->page_rows - row % cache->page_rows);
        te__attn_tile_read(to, ld, h->kv, te__cache_row(cache, h->pages, at, row, d, format), d, n, d, c->dtype);
    }
}
TE_FN void te__attn_read_k(float *to, int ld, const te__attn_call *c, const te__attn_head *h, int row, int rows) {
    if (c->f.cached) te__attn_read_cached(to, ld, c, h, h->k, c->d, row, rows);
    else te__attn_tile_read(to, ld, h->kv, h->k + row * h->kv_width, h->kv_width, rows, c->d, c->dtype);
}
TE_FN void te__attn_read_v(float *to, int ld, const te__attn_call *c, const te__attn_head *h, int row, int rows) {
    if (c->f.cached) te__attn_read_cached(to, ld, c, h, h->v, c->dv, row, rows);
    else te__attn_tile_read(to, ld, h->kv, h->v + row * h->kv_width, h->kv_width, rows, c->dv, c->dtype);
}
TE_FN void te__attn_read_q_transposed(float *to, const te__attn_call *c, const te__attn_head *h, int row, int rows) {
    te__attn_tile_read_transposed(to, c->a->qkv, h->q + row * h->width, h->width, rows, c->d,
                                  te__attn_score_factor(c->a->scale, c->f), c->dtype);
}
TE_FN void te__attn_read_dout_transposed(float *to, const te__attn_call *c, const te__attn_head *h, int row, int rows) {
    te__attn_tile_read_transposed(to, c->a->dout, h->out + row * h->out_width, h->out_width, rows, c->dv, 1, c->dtype);
}
TE_FN void te__attn_read_kv_transposed(float *kt, float *vt, const te__attn_call *c, const te__attn_head *h, int row,
                                       int rows) {
    te__attn_tile_read_transposed(kt, h->kv, h->k + row * h->kv_width, h->kv_width, rows, c->d,
                                  te__attn_score_factor(c->a->scale, c->f), c->dtype);
    te__attn_tile_read_transposed(vt, h->kv, h->v + row * h->kv_width, h->kv_width, rows, c->dv, 1, c->dtype);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* One step of the online softmax for n queries: s[key][query] becomes exp2(s - max); `max` and `sum` of each query are
 * updated; and rescale[query] becomes the factor by which the O of the previous steps must be multiplied. */
TE_FN void te__attn_online_softmax(float *s, int keys, int n, float *max, float *sum, float *rescale) {
    for (int q = 0; q < n; q += TE__ATTN_LANES) {
        te__attn_vector old, now, add, e;
        te__attn_get(&old, max + q), te__attn_get(&add, sum + q), now = old;
        for (int i = 0; i < keys; i++) te__attn_get(&e, s + i * TE__ATTN_TILE + q), te__attn_vector_max(&now, &e);
        old -= now, te__attn_exp2(&old), add *= old;
        for (int i = 0; i < keys; i++) {
            te__attn_get(&e, s + i * TE__ATTN_TILE + q), e -= now, te__attn_exp2(&e), add += e;
            te__attn_put(s + i * TE__ATTN_TILE + q, &e);
        }
        te__attn_put(rescale + q, &old), te__attn_put(max + q, &now), te__attn_put(sum + q, &add);
    }
}
/* Multiplies row q of O by rescale[q], for q = 0 to rows - 1. */
TE_FN void te__attn_rescale_rows(float *o, int ld, int rows, const float *rescale) {
    for (int q = 0; q < rows; q++)
        if (rescale[q] != 1)
            for (int c = 0; c < ld; c += TE__ATTN_LANES) {
                te__attn_vector e;
                te__attn_get(&e, o + q * ld + c), e *= rescale[q], te__attn_put(o + q * ld + c, &e);
            }
}

/* The forward kernel. Grid: (batch * heads, tiles of queries). s: the block's scratch memory. */
TE_FN void te__attention_forward_host(const te__attn_call *c, te_block at, float *s) {
    const te_attention_args *a = c->a;
    const te__attn_variant f = c->f;
    const int head = at.x % c->heads;
    const te__attn_head h = te__attn_head_of(c, at.x / c->heads, head);
    const te__attn_mask m = te__attn_mask_at(&h, f);
    const int q0 = te__attn_first_query(m, at), queries = te__attn_min(TE__ATTN_TILE, h.seq - q0);
    /* nothing to do: this sequence is shorter than the longest one, for which the grid is made */
    if (queries <= 0) return;
    const te__attn_range seen = te__attn_keys_of(m, q0, queries);
    const float slope = te__attn_alibi(c->a->whole, h.head, c->heads, f);
    const te__attn_score_bias bias = te__attn_score_bias_of(c, head, m);
    /* The contents of the scratch memory: tiles of K, V, O, Q^T and P^T, then arrays with one number for each query. */
    const int ld = TE__ATTN_PADDED(c->d), ldv = TE__ATTN_PADDED(c->dv), n = TE__ATTN_PADDED(queries);
    const int tile = TE__ATTN_TILE * ld, square = TE__ATTN_TILE * TE__ATTN_TILE;
    float *k = s, *v = k + tile, *o = v + TE__ATTN_TILE * ldv, *qt = o + TE__ATTN_TILE * ldv, *p = qt + tile;
    float *max = p + square, *sum = max + TE__ATTN_TILE, *rescale = sum + TE__ATTN_TILE;
    /* the largest score of each query, without the attention sink, which `max` includes */
    float *max_logit = rescale + TE__ATTN_TILE;
    memset(o, 0, (size_t)(TE__ATTN_TILE * ldv) * sizeof(float));
    /* The sink acts like a key that comes before the first key, that every query sees, and whose value vector is 0. */
    const float sink = f.sinks ? te_load(a->sinks, head, c->dtype) * TE__ATTN_LOG2E : -INFINITY;
    for (int q = 0; q < TE__ATTN_TILE; q++) max[q] = fmaxf(sink, -3.402823466e38f), sum[q] = f.sinks ? 1.0f : 0.0f;
    for (int q = 0; f.max_logit && q < TE__ATTN_TILE; q++) max_logit[q] = -INFINITY;
    te__attn_read_q_transposed(qt, c, &h, q0, queries);
    for (int k0 = seen.first / TE__ATTN_TILE * TE__ATTN_TILE; k0 < seen.end; k0 += TE__ATTN_TILE) {
        const int keys = te__attn_min(TE__ATTN_TILE, seen.end - k0), masked = te__attn_needs_mask(seen, k0, keys);
        const int triangle = masked && te__attn_is_triangle(m, q0, k0, keys);
        te__attn_read_k(k, ld, c, &h, k0, keys);
        if (!f.values_in_keys) te__attn_read_v(v, ldv, c, &h, k0, keys);
        te__attn_scores(p, k, ld, qt, keys, n, c->d, triangle ? TE__ATTN_COLUMNS_FROM_ROW : TE__ATTN_ALL);
        te__attn_apply_softcap(p, keys, n, f);
        for (int i = 0; (f.alibi || f.bias) && i < keys; i++)
            for (int q = 0; q < n; q += TE__ATTN_LANES) {
                te__attn_vector e;
                te__attn_get(&e, p + i * TE__ATTN_TILE + q);
                te__attn_add_alibi(&e, slope, q0 + q + m.shift - k0 - i, f);
                te__attn_add_score_bias(&e, &bias, q0 + q, k0 + i, 0, f);
                te__attn_put(p + i * TE__ATTN_TILE + q, &e);
            }
        if (masked) te__attn_apply_mask_by_key(p, m, q0, k0, keys);
        for (int q = 0; f.max_logit && q < queries; q++)
            for (int i = 0; i < keys; i++) max_logit[q] = fmaxf(max_logit[q], p[i * TE__ATTN_TILE + q]);
        te__attn_online_softmax(p, keys, n, max, sum, rescale);
        te__attn_apply_dropout(p, 1, a, h.global_head, q0, k0, 1, f);
        te__attn_rescale_rows(o, ldv, queries, rescale);
        te__attn_accumulate_part(o, ldv, p, f.values_in_keys ? k : v, f.values_in_keys ? ld : ldv, queries, keys,
                                 triangle ? TE__ATTN_DEPTH_TO_ROW : TE__ATTN_ALL);
    }
    for (int q = 0; q < queries; q++) {
        /* 1 if the query sees no key. Its output is then 0, and its lse is infinity, so that all its probabilities
         * become 0 in backward. */
        const int empty = (f.shifted || f.bias) && !(sum[q] > 0);
        te__attn_out_write(a, h.out + (q0 + q) * h.out_width, o + q * ldv, c->dv,
                           empty ? 0.0f : (f.drop && a->rng ? f.factor : 1.0f) / sum[q], c->dtype);
        if (a->lse) a->lse[h.row + q0 + q] = empty ? INFINITY : max[q] * TE__ATTN_LN2 + logf(sum[q]);
        if (f.max_logit && a->row_max_logit) a->row_max_logit[h.row + q0 + q] = max_logit[q] * TE__ATTN_LN2;
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The dq kernel of backward: delta = rowsum(dO * O), dS = P * (dP - delta), dQ = scale * dS K. Grid: (batch * heads,
 * tiles of queries). s: the block's scratch memory. */
TE_FN void te__attention_dq_host(const te__attn_call *c, te_block at, float *s) {
    const te_attention_args *a = c->a;
    const te__attn_variant f = c->f;
    const int head = at.x % c->heads;
    const te__attn_head h = te__attn_head_of(c, at.x / c->heads, head);
    const te__attn_mask m = te__attn_mask_at(&h, f);
    const int q0 = te__attn_first_query(m, at), queries = te__attn_min(TE__ATTN_TILE, h.seq - q0);
    /* nothing to do: this sequence is shorter than the longest one, for which the grid is made */
    if (queries <= 0) return;
    const te__attn_range seen = te__attn_keys_of(m, q0, queries);
    const float slope = te__attn_alibi(c->a->whole, h.head, c->heads, f);
    const te__attn_score_bias bias = te__attn_score_bias_of(c, head, m);
    /* The contents of the scratch memory: tiles of K, V, dQ, Q^T, dO^T, P^T (later dS^T) and dP^T, then lse and delta
     * of each query. */
    const int dv = c->dv, ld = TE__ATTN_PADDED(c->d), ldv = TE__ATTN_PADDED(dv), n = TE__ATTN_PADDED(queries);
    const int tile = TE__ATTN_TILE * ld, square = TE__ATTN_TILE * TE__ATTN_TILE;
    float *k = s, *v = k + tile, *dq = v + TE__ATTN_TILE * ldv, *qt = dq + tile, *dot = qt + tile;
    float *p = dot + TE__ATTN_TILE * ldv, *dp = p + square, *lse = dp + square, *delta = lse + TE__ATTN_TILE;
    memset(dq, 0, (size_t)(TE__ATTN_TILE * ld) * sizeof(float)), memset(lse, 0, 2 * TE__ATTN_TILE * sizeof(float));
    te__attn_read_q_transposed(qt, c, &h, q0, queries);
    te__attn_read_dout_transposed(dot, c, &h, q0, queries);
    for (int q = 0; q < queries; q++) {
        const int64_t row = h.out + (q0 + q) * h.out_width;
        for (int i = 0; i < dv; i++) delta[q] += dot[i * TE__ATTN_TILE + q] * te_load(a->out, row + i, c->dtype);
        lse[q] = a->lse[h.row + q0 + q] * TE__ATTN_LOG2E, a->delta[h.row + q0 + q] = delta[q];
    }
    for (int k0 = seen.first / TE__ATTN_TILE * TE__ATTN_TILE; k0 < seen.end; k0 += TE__ATTN_TILE) {
        const int keys = te__attn_min(TE__ATTN_TILE, seen.end - k0), masked = te__attn_needs_mask(seen, k0, keys);
        const int triangle = masked && te__attn_is_triangle(m, q0, k0, keys);
        const enum te__attn_region region = triangle ? TE__ATTN_COLUMNS_FROM_ROW : TE__ATTN_ALL;
        te__attn_read_k(k, ld, c, &h, k0, keys);
        te__attn_read_v(v, ldv, c, &h, k0, keys);
        te__attn_scores(p, k, ld, qt, keys, n, c->d, region);
        te__attn_scores(dp, v, ldv, dot, keys, n, dv, region);
        te__attn_apply_softcap(p, keys, n, f);
        if (masked) te__attn_apply_mask_by_key(p, m, q0, k0, keys);
        te__attn_apply_dropout(dp, 1, a, h.global_head, q0, k0, f.factor, f);
        for (int q = 0; q < n; q += TE__ATTN_LANES) {
            te__attn_vector l, mean, e, x, score;
            te__attn_get(&l, lse + q), te__attn_get(&mean, delta + q);
            for (int i = 0; i < keys; i++) {
                te__attn_get(&e, p + i * TE__ATTN_TILE + q), te__attn_get(&x, dp + i * TE__ATTN_TILE + q);
                score = e, te__attn_add_alibi(&e, slope, q0 + q + m.shift - k0 - i, f);
                te__attn_add_score_bias(&e, &bias, q0 + q, k0 + i, 0, f);
                e -= l, te__attn_exp2(&e), e *= x - mean, te__attn_softcap_backward(&e, &score, f);
                te__attn_put(p + i * TE__ATTN_TILE + q, &e);
            }
        }
        te__attn_accumulate(dq, ld, p, k, queries, keys, triangle ? TE__ATTN_DEPTH_TO_ROW : TE__ATTN_ALL);
    }
    for (int q = 0; q < queries; q++)
        te__attn_row_write(a->dqkv, h.q + (q0 + q) * h.width, dq + q * ld, c->d, a->scale, c->dtype, a->amax);
}

/* The dkdv kernel of backward: dV = P^T dO, dK = scale * dS^T Q, both summed over all query heads that share the KV
 * head. Grid: (batch * kv_heads, tiles of keys). s: the block's scratch memory. */
TE_FN void te__attention_dkdv_host(const te__attn_call *c, te_block at, float *s) {
    const te_attention_args *a = c->a;
    const te__attn_variant f = c->f;
    const int group = c->heads / c->kv_heads, batch = at.x / c->kv_heads, head0 = at.x % c->kv_heads * group;
    const te__attn_head h0 = te__attn_head_of(c, batch, head0);
    const int k0 = at.y * TE__ATTN_TILE, keys = te__attn_min(TE__ATTN_TILE, h0.keys - k0);
    /* nothing to do: this sequence is shorter than the longest one, for which the grid is made */
    if (keys <= 0) return;
    const te__attn_mask m = te__attn_mask_at(&h0, f);
    const te__attn_range seen = te__attn_queries_of(m, k0, keys);
    /* The contents of the scratch memory: tiles of Q, dO, dK, dV, K^T, V^T, P and dP (later dS). */
    const int ld = TE__ATTN_PADDED(c->d), ldv = TE__ATTN_PADDED(c->dv), n = TE__ATTN_PADDED(keys);
    const int tile = TE__ATTN_TILE * ld, value_tile = TE__ATTN_TILE * ldv;
    float *q = s, *dout = q + tile, *dk = dout + value_tile, *dv = dk + tile, *kt = dv + value_tile, *vt = kt + tile;
    float *p = vt + value_tile, *dp = p + TE__ATTN_TILE * TE__ATTN_TILE;
    memset(dk, 0, (size_t)(tile + value_tile) * sizeof(float));
    te__attn_read_kv_transposed(kt, vt, c, &h0, k0, keys);
    for (int head = head0; head < head0 + group; head++) {
        const te__attn_head h = te__attn_head_of(c, batch, head);
        const float slope = te__attn_alibi(c->a->whole, head, c->heads, f);
        const te__attn_score_bias bias = te__attn_score_bias_of(c, head, m);
        for (int q0 = seen.first / TE__ATTN_TILE * TE__ATTN_TILE; q0 < seen.end; q0 += TE__ATTN_TILE) {
            const int queries = te__attn_min(TE__ATTN_TILE, seen.end - q0);
            const int masked = te__attn_needs_mask(seen, q0, queries);
            const int triangle = masked && te__attn_is_triangle(m, q0, k0, keys);
            const enum te__attn_region region = triangle ? TE__ATTN_COLUMNS_TO_ROW : TE__ATTN_ALL;
            const enum te__attn_region depth = triangle ? TE__ATTN_DEPTH_FROM_ROW : TE__ATTN_ALL;
            te__attn_read_q(q, ld, c, &h, q0, queries);
            te__attn_read_dout(dout, ldv, c, &h, q0, queries);
            te__attn_scores(p, q, ld, kt, queries, n, c->d, region);
            te__attn_scores(dp, dout, ldv, vt, queries, n, c->dv, region);
            te__attn_apply_softcap(p, queries, n, f);
            if (masked) te__attn_apply_mask_by_query(p, m, q0, k0, queries);
            te__attn_apply_dropout(dp, 0, a, h.global_head, q0, k0, f.factor, f);
            for (int i = 0; i < queries; i++) {
                const float lse = a->lse[h.row + q0 + i] * TE__ATTN_LOG2E, delta = a->delta[h.row + q0 + i];
                float *p_row = p + i * TE__ATTN_TILE, *dp_row = dp + i * TE__ATTN_TILE;
                for (int j = 0; j < n; j += TE__ATTN_LANES) {
                    te__attn_vector e, x, score;
                    te__attn_get(&e, p_row + j), te__attn_get(&x, dp_row + j);
                    score = e, te__attn_add_alibi(&e, slope, k0 + j - q0 - i - m.shift, f);
                    te__attn_add_score_bias(&e, &bias, q0 + i, k0 + j, 1, f);
                    e -= lse, te__attn_exp2(&e), x = e * (x - delta), te__attn_softcap_backward(&x, &score, f);
                    te__attn_put(p_row + j, &e), te__attn_put(dp_row + j, &x);
                }
            }
            te__attn_apply_dropout(p, 0, a, h.global_head, q0, k0, 1, f);
            te__attn_accumulate(dv, ldv, p, dout, keys, queries, depth);
            te__attn_accumulate(dk, ld, dp, q, keys, queries, depth);
        }
    }
    /* In cross-attention, dk and dv are not part of dqkv, the tensor whose amax is computed. */
    float *const amax = a->kv ? 0 : a->amax;
    for (int k = 0; k < keys; k++) {
        te__attn_row_write(h0.dkv, h0.k + (k0 + k) * h0.kv_width, dk + k * ld, c->d, a->scale, c->dtype, amax);
        te__attn_row_write(h0.dkv, h0.v + (k0 + k) * h0.kv_width, dv + k * ldv, c->dv, f.factor, c->dtype, amax);
    }
}

/* ---- the gradient of a score bias --------------------------------------------------------------------------------
 * If the bias is a table, a block computes the gradient of a tile of 64 queries by 64 keys. If the bias is relative, a
 * block processes 64 queries and all keys, tile by tile. In both cases the block adds up dS over the sequences in
 * order. */

/* Adds dS = P * (dP - delta) of one head of one sequence to sum[query][key], the sums of a tile, which begins at query
 * q0 and key k0. Returns 0 if all pairs of the tile are masked, else 1. s: scratch memory. */
TE_FN int te__attn_dbias_add(float *sum, const te__attn_call *c, int batch, int head, int q0, int k0, float *s) {
    const te_attention_args *a = c->a;
    const te__attn_variant f = c->f;
    const te__attn_head h = te__attn_head_of(c, batch, head);
    const te__attn_mask m = te__attn_mask_at(&h, f);
    const int queries = te__attn_min(TE__ATTN_TILE, h.seq - q0), keys = te__attn_min(TE__ATTN_TILE, h.keys - k0);
    if (queries <= 0 || keys <= 0 || !te__attn_intersects(te__attn_keys_of(m, q0, queries), k0, keys)) return 0;
    /* The contents of the scratch memory: tiles of Q, dO, K^T, V^T, P and dP. */
    const int ld = TE__ATTN_PADDED(c->d), ldv = TE__ATTN_PADDED(c->dv), n = TE__ATTN_PADDED(keys);
    const int tile = TE__ATTN_TILE * ld, value_tile = TE__ATTN_TILE * ldv;
    float *q = s, *dout = q + tile, *kt = dout + value_tile, *vt = kt + tile, *p = vt + value_tile;
    float *dp = p + TE__ATTN_TILE * TE__ATTN_TILE;
    const float slope = te__attn_alibi(c->a->whole, head, c->heads, f);
    const te__attn_score_bias bias = te__attn_score_bias_of(c, head, m);
    te__attn_read_q(q, ld, c, &h, q0, queries);
    te__attn_read_dout(dout, ldv, c, &h, q0, queries);
    te__attn_read_kv_transposed(kt, vt, c, &h, k0, keys);
    te__attn_scores(p, q, ld, kt, queries, n, c->d, TE__ATTN_ALL);
    te__attn_scores(dp, dout, ldv, vt, queries, n, c->dv, TE__ATTN_ALL);
    te__attn_apply_softcap(p, queries, n, f);
    te__attn_apply_mask_by_query(p, m, q0, k0, queries);
    te__attn_apply_dropout(dp, 0, a, h.global_head, q0, k0, f.factor, f);
    for (int i = 0; i < queries; i++) {
        const float lse = a->lse[h.row + q0 + i] * TE__ATTN_LOG2E, delta = a->delta[h.row + q0 + i];
        for (int j = 0; j < n; j += TE__ATTN_LANES) {
            te__attn_vector e, x, total;
            te__attn_get(&e, p + i * TE__ATTN_TILE + j), te__attn_get(&x, dp + i * TE__ATTN_TILE + j);
            te__attn_add_alibi(&e, slope, k0 + j - q0 - i - m.shift, f);
            te__attn_add_score_bias(&e, &bias, q0 + i, k0 + j, 1, f);
            e -= lse, te__attn_exp2(&e), te__attn_get(&total, sum + i * TE__ATTN_TILE + j);
            total += e * (x - delta), te__attn_put(sum + i * TE__ATTN_TILE + j, &total);
        }
    }
    return 1;
}

/* Computes the gradient of a score bias that is a table. Grid: (tiles of keys * tables, tiles of queries). There is one
 * table for each head (TE_BIAS_heads), or one for all heads (TE_BIAS_shared). */
TE_FN void te__attention_dbias_table_host(const te__attn_call *c, te_block at, float *s) {
    const te_attention_args *a = c->a;
    const te__attn_variant f = c->f;
    const int tiles = (int)te_ceil_div(f.bias_keys, TE__ATTN_TILE), table = at.x / tiles;
    const int k0 = at.x % tiles * TE__ATTN_TILE, q0 = at.y * TE__ATTN_TILE;
    float *sum = s, *to = a->dbias + (int64_t)table * f.bias_queries * f.bias_keys;
    s += TE__ATTN_TILE * TE__ATTN_TILE, memset(sum, 0, sizeof(float) * TE__ATTN_TILE * TE__ATTN_TILE);
    for (int head = table; head < (f.bias == TE_BIAS_heads ? table + 1 : c->heads); head++)
        for (int batch = 0; batch < a->batch; batch++) te__attn_dbias_add(sum, c, batch, head, q0, k0, s);
    for (int i = 0; i < TE__ATTN_TILE && q0 + i < f.bias_queries; i++)
        for (int j = 0; j < TE__ATTN_TILE && k0 + j < f.bias_keys; j++) {
            float *p = to + (int64_t)(q0 + i) * f.bias_keys + k0 + j;
            *p = (a->accumulate ? *p : 0.0f) + sum[i * TE__ATTN_TILE + j];
        }
}
/* Computes partial sums of the gradient of a relative score bias: one for each bucket, over the queries of this block,
 * for one head. Grid: (heads, tiles of queries). */
TE_FN void te__attention_dbias_buckets_host(const te__attn_call *c, te_block at, float *s) {
    const te_attention_args *a = c->a;
    const te__attn_variant f = c->f;
    const int q0 = at.y * TE__ATTN_TILE, keys = f.cross ? a->kv_seq : a->seq, shift = f.cross ? keys - a->seq : 0;
    float *sum = s, *to = a->dbias + (int64_t)at.y * f.bias_buckets * c->heads + at.x;
    s += TE__ATTN_TILE * TE__ATTN_TILE;
    for (int i = 0; i < f.bias_buckets; i++) to[i * c->heads] = 0;
    for (int k0 = 0; k0 < keys; k0 += TE__ATTN_TILE) {
        int seen = 0;
        memset(sum, 0, sizeof(float) * TE__ATTN_TILE * TE__ATTN_TILE);
        for (int batch = 0; batch < a->batch; batch++) seen |= te__attn_dbias_add(sum, c, batch, at.x, q0, k0, s);
        /* Add up each diagonal of the tile. On a diagonal, `distance` is constant: the key minus the query, both
         * counted from the start of the tile. */
        for (int distance = 1 - TE__ATTN_TILE; seen && distance < TE__ATTN_TILE; distance++) {
            const int last = te__attn_min(TE__ATTN_TILE, TE__ATTN_TILE - distance);
            float diagonal = 0;
            for (int i = distance < 0 ? -distance : 0; i < last; i++) diagonal += sum[i * TE__ATTN_TILE + i + distance];
            const int bucket = te__attn_bucket(k0 - q0 - shift + distance, f.bias_buckets, f.bias_max_distance,
                                               f.right != 0);
            to[bucket * c->heads] += diagonal;
        }
    }
}
TE_FN void te__attention_dbias_host(const te__attn_call *c, te_block at, float *s) {
    if (c->f.bias == TE_BIAS_relative) te__attention_dbias_buckets_host(c, at, s);
    else te__attention_dbias_table_host(c, at, s);
}

/* ---- forward in FP8 (attention_fp8.h) ---------------------------------------------------------------------------- */

/* Converts a matrix [rows, d] in e4m3 to floats, to[rows][ld]. width: the distance between two rows in `from`, in
 * bytes. `to` is padded with zeros to ld columns and to a multiple of 4 rows. */
TE_FN void te__attn_fp8_tile_read(float *to, int ld, const uint8_t *from, int64_t width, int rows, int d) {
    memset(to, 0, (size_t)(((rows + 3) & ~3) * ld) * sizeof(float));
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < d; c++) to[r * ld + c] = te_float_of_e4m3(from[r * width + c]);
}
/* If a query's largest score in this tile is above max[query], replaces max[query] by that score, rounded up to an
 * integer. */
TE_FN void te__attn_fp8_row_max(float *max, const float *s, int keys, int queries) {
    for (int q = 0; q < queries; q++) {
        float largest = max[q];
        for (int i = 0; i < keys; i++) largest = fmaxf(largest, s[i * TE__ATTN_TILE + q]);
        max[q] = ceilf(largest);
    }
}

/* The forward kernel in FP8. Grid: (batch * heads, tiles of queries). s: the block's scratch memory. */
TE_FN void te__attention_fp8_host(const te__attn_call *c, te_block at, float *s) {
    const te_attention_args *a = c->a;
    const int heads = c->heads, kv_heads = c->kv_heads, d = c->d;
    const te_attention_fp8_operands of = te__attn_fp8_operands_of(a, heads, kv_heads, d);
    const int batch = at.x / heads, head = at.x % heads, kv = head / (heads / kv_heads);
    const te__attn_mask m = te__attn_mask_of(a->seq, c->f.left, c->f.right);
    const int q0 = te__attn_first_query(m, at), queries = te__attn_min(TE__ATTN_TILE, a->seq - q0);
    const te__attn_range seen = te__attn_keys_of(m, q0, queries);
    const int ld = TE__ATTN_PADDED(d), n = TE__ATTN_PADDED(queries), tile = TE__ATTN_TILE * ld;
    const int64_t first = (int64_t)batch * a->seq;
    const uint8_t *from_q = of.q + ((first + q0) * heads + head) * d, *from_k = of.k + (first * kv_heads + kv) * d;
    const uint8_t *from_v = of.v + ((int64_t)batch * kv_heads + kv) * d * of.keys;
    const float unit = te__attn_fp8_score_unit(of.amax[head], of.amax[heads + kv], a->scale);
    float *k = s, *v = k + tile, *o = v + tile, *qt = o + tile, *p = qt + tile;
    float *max = p + TE__ATTN_TILE * TE__ATTN_TILE, *sum = max + TE__ATTN_TILE, *rescale = sum + TE__ATTN_TILE;
    memset(o, 0, (size_t)tile * sizeof(float)), memset(qt, 0, (size_t)tile * sizeof(float));
    for (int q = 0; q < TE__ATTN_TILE; q++) max[q] = -3.402823466e38f, sum[q] = 0;
    for (int q = 0; q < queries; q++)
        for (int i = 0; i < d; i++)
            qt[i * TE__ATTN_TILE + q] = te_float_of_e4m3(from_q[(int64_t)q * heads * d + i]) * unit;
    for (int k0 = seen.first / TE__ATTN_TILE * TE__ATTN_TILE; k0 < seen.end; k0 += TE__ATTN_TILE) {
        const int keys = te__attn_min(TE__ATTN_TILE, seen.end - k0);
        te__attn_fp8_tile_read(k, ld, from_k + (int64_t)k0 * kv_heads * d, kv_heads * d, keys, d);
        memset(v, 0, (size_t)tile * sizeof(float));
        for (int j = 0; j < d; j++)
            for (int i = 0; i < keys; i++)
                v[i * ld + j] = te_float_of_e4m3(from_v[j * of.keys + te__attn_fp8_byte_of_key(k0 + i)]);
        te__attn_scores(p, k, ld, qt, keys, n, d, TE__ATTN_ALL);
        if (te__attn_needs_mask(seen, k0, keys)) te__attn_apply_mask_by_key(p, m, q0, k0, keys);
        memcpy(rescale, max, TE__ATTN_TILE * sizeof(float));
        te__attn_fp8_row_max(max, p, keys, n);
        for (int q = 0; q < n; q += TE__ATTN_LANES) {
            te__attn_vector old, now, add, e;
            te__attn_get(&old, rescale + q), te__attn_get(&now, max + q), te__attn_get(&add, sum + q);
            old -= now, te__attn_exp2(&old), add *= old, te__attn_put(rescale + q, &old);
            for (int i = 0; i < keys; i++) {
                te__attn_get(&e, p + i * TE__ATTN_TILE + q), e -= now, e += (float)TE__ATTN_FP8_P_EXPONENT;
                te__attn_exp2(&e), add += e, te__attn_put(p + i * TE__ATTN_TILE + q, &e);
            }
            te__attn_put(sum + q, &add);
        }
        for (int i = 0; i < keys * TE__ATTN_TILE; i++) p[i] = te_float_of_e4m3(te_e4m3_of_float(p[i]));
        for (int q = 0; q < queries; q++)
            for (int i = 0; rescale[q] != 1 && i < ld; i++) o[q * ld + i] *= rescale[q];
        te__attn_accumulate(o, ld, p, v, queries, keys, TE__ATTN_ALL);
    }
    const float v_unit = te__attn_fp8_inverse(of.amax[heads + kv_heads + kv], TE_E4M3_MAX);
    for (int q = 0; q < queries; q++) {
        te__attn_out_write(a, ((first + q0 + q) * heads + head) * d, o + q * ld, d, v_unit / sum[q], c->dtype);
        if (a->lse)
            a->lse[(int64_t)at.x * a->seq + q0 + q] =
                (max[q] - (float)TE__ATTN_FP8_P_EXPONENT) * TE__ATTN_LN2 + logf(sum[q]);
    }
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

TE_API te_status te__attention_check_variant(te_context *ctx, const te_attention_args *a, int heads,
                                             te__attn_variant f, const char *name) {
    TE_TRY(te__attention_check(ctx, a, heads, f.varlen, f.sinks, name));
    TE_TRY(te__attention_check_cross(ctx, a, heads, f.cross, name));
    TE_TRY(te__attention_check_fp8_output(ctx, a, f.fp8_output, name));
    return te__attention_check_bias(ctx, a, f.cross, f.bias, f.bias_queries, f.bias_keys, name);
}

/* Defines the kernel `name`, which calls te__attention_<body>_host with the scratch memory of a block. */
#define TE__ATTENTION_SHELL(name, body, dtype, heads, kv_heads, head_dim, variant)                                  \
    TE_FN void name##_body(const te_attention_args *a, te_block at, float *scratch) {                               \
        const te__attn_call c = te__attn_call_of(a, TE_##dtype, heads, kv_heads, head_dim, variant());              \
        te__attention_##body##_host(&c, at, scratch);                                                               \
    }                                                                                                               \
    TE_KERNEL_MEMORY(                                                                                               \
        name, te_attention_args,                                                                                    \
        sizeof(float) *                                                                                             \
            TE__ATTENTION_FLOATS(head_dim, variant##_value != 0 ? (int)variant##_value : (head_dim)),               \
        name##_body(te_args, te_at, (float *)te_memory))

#define TE_ATTENTION_FORWARD_OF(name, dtype, heads, kv_heads, head_dim, options)                                    \
    TE__ATTENTION_VARIANT(name, options)                                                                            \
    TE__ATTENTION_ASSERT(heads, kv_heads, head_dim, TE__ATTENTION_MAX_DIM(name##_variant_in_keys))                  \
    TE__ATTENTION_SHELL(name##_tile, forward, dtype, heads, kv_heads, head_dim, name##_variant)                     \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                                   \
        TE_TRY(te__attention_check_variant(ctx, a, heads, name##_variant(), #name));                                \
        return name##_tile_launch(ctx, te__grid_of((int64_t)a->batch * (heads), te_ceil_div(a->seq, TE__ATTN_TILE)), \
            a);                                                                                                     \
    }

/* Defines name##_launch, which runs the dq kernel and then the dkdv kernel; the dq kernel comes first, because it
 * computes delta, which the dkdv kernel reads. */
#define TE_ATTENTION_BACKWARD_OF(name, dtype, heads, kv_heads, head_dim, options)                                   \
    TE__ATTENTION_ASSERT(heads, kv_heads, head_dim, TE_ATTENTION_MAX_HEAD_DIM)                                      \
    TE__ATTENTION_VARIANT(name, options)                                                                            \
    TE__ATTENTION_SHELL(name##_dq, dq, dtype, heads, kv_heads, head_dim, name##_variant)                            \
    TE__ATTENTION_SHELL(name##_dkdv, dkdv, dtype, heads, kv_heads, head_dim, name##_variant)                        \
    enum { name##_sum_rows = 0 }; /* te_attention_args.sum must be null */                                          \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                                   \
        const int64_t tiles = te_ceil_div(a->seq, TE__ATTN_TILE);                                                   \
        const int cross = name##_variant().cross;                                                                   \
        TE_TRY(te__attention_check_variant(ctx, a, heads, name##_variant(), #name));                                \
        TE_TRY(name##_dq_launch(ctx, te__grid_of((int64_t)a->batch * (heads), tiles), a));                           \
        if (cross && !a->dkv) return TE_OK;                                                                         \
        return name##_dkdv_launch(ctx, te__grid_of((int64_t)a->batch * (kv_heads),                                   \
                                       cross ? te_ceil_div(a->kv_seq, TE__ATTN_TILE) : tiles), a);                  \
    }                                                                                                               \
    TE_API size_t name##_scratch_bytes(te_context *ctx, int64_t rows) { return (void)ctx, (void)rows, 0; }

#define TE_ATTENTION_DBIAS(name, dtype, heads, kv_heads, head_dim, options)                                         \
    TE__ATTENTION_VARIANT(name, options)                                                                            \
    TE__ATTENTION_SHELL(name##_tile, dbias, dtype, heads, kv_heads, head_dim, name##_variant)                       \
    TE_API int64_t name##_parts(int64_t seq) { return te_ceil_div(seq, TE__ATTN_TILE); }                            \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                                   \
        const te__attn_variant f = name##_variant();                                                                \
        const int relative = f.bias == TE_BIAS_relative, tables = f.bias == TE_BIAS_shared ? 1 : (heads);           \
        const int64_t tiles = relative ? 1 : te_ceil_div(f.bias_keys, TE__ATTN_TILE);                               \
        return name##_tile_launch(                                                                                  \
            ctx, te__grid_of(tables * tiles, name##_parts(relative ? a->seq : f.bias_queries)), a);                  \
    }

#define TE_ATTENTION_FORWARD_FP8(name, dtype, heads, kv_heads, head_dim, options)                                   \
    TE__ATTENTION_ASSERT(heads, kv_heads, head_dim, TE_ATTENTION_MAX_HEAD_DIM)                                      \
    TE__ATTENTION_FP8_ASSERT(dtype, head_dim)                                                                       \
    TE__ATTENTION_VARIANT(name, options)                                                                            \
    TE__ATTENTION_FP8_PASSES(name, dtype, heads, kv_heads, head_dim)                                                \
    TE__ATTENTION_SHELL(name##_tile, fp8, dtype, heads, kv_heads, head_dim, name##_variant)                         \
    TE_API te_status name##_ready(te_context *ctx) { return (void)ctx, TE_OK; }                                     \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                                   \
        TE_TRY(te__attention_check_fp8(ctx, a, heads, #name));                                                      \
        TE_TRY(te__attention_check_fp8_output(ctx, a, name##_variant().fp8_output, #name));                         \
        TE_TRY(name##_cast(ctx, a));                                                                                \
        return name##_tile_launch(ctx, te__grid_of((int64_t)a->batch * (heads), te_ceil_div(a->seq, TE__ATTN_TILE)), \
            a);                                                                                                     \
    }

#endif
