/* attention_hopper_fp8.h -- attention forward of attention_fp8.h for compute capability 9.0 (sm_90a).
 *
 * The steps are those of attention_hopper_forward.h with products of e4m3, which take half the time. The copy engine
 * and the swizzle see two e4m3 numbers as one of 16 bits.
 *
 * Floor: 4 * batch * heads * seq^2 * head_dim flops of FP8 (half of it if causal) and seq^2 exponentials at 16 a clock
 * and multiprocessor, which at head_dim 128 take as long as the products. Bytes: 1 for each element of q, k and v, 2
 * for each of the output.
 *
 * Measured on an H200 in turns with the kernel in bf16: TFLOP/s, causal work counted once; the time in bf16 over this
 * kernel's; the same with the two passes before it:
 *     batch 2, seq 8192, 16 heads of 128, causal  1059  1.50  1.16      full  1082  1.48  1.29
 *     batch 4, seq 2048, 32 heads of 128, causal   894  1.50  0.76
 *     batch 2, seq 8192, 32 heads of  64, causal   652  1.12  0.94
 *     batch 2, seq 4096, 16 heads of 256, causal  1199  1.68  1.08
 * With S and P in float, which leaves registers for two warpgroups, that was 838, 1.18, 0.96 and 927, 1.27, 1.12 in
 * the same run, 783, 1.31, 0.71, then 667, 1.14, 0.96 and 1165, 1.64, 1.06. It waited for neither the tensor cores (55%
 * busy) nor the exponentials nor for instructions to issue (38%), but each warp for itself. Of three warpgroups, 192
 * queries and 128 keys take 2500 clocks, of which products and exponentials need 1536 each. Two exponentials of f16
 * take as long as two of float. What did not pay: turns between the warpgroups (0.99 to 1.00), P before O is waited for
 * (1.00). What gained 1% each: one of eight words of P by arithmetic, a sum of all sixteen words of a row in f16 rather
 * than of four. The two passes before it, 150 us of the first line's 670, as one kernel that takes heads by groups of 4
 * to 16 MB, cast while they are in the L2: 147 to 194 us, for the L2 had 43% of it.
 */
/* target: cuda */
#ifndef TE_ATTENTION_HOPPER_FP8_H
#define TE_ATTENTION_HOPPER_FP8_H

#include "impl/attention_cuda.h"            /* TE__ATTENTION_SHELL */
#include "attention_hopper_fp8_rows.h" /* te__attn_fp8_step */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* As te__attn_step. */
template <class F, class C>
TE_FN void te__attn_fp8_step(te__attn_rows<C> &r, te__attn_fp8_power &x, te__attn_place<C> &a, te__attn_mask m, int cut,
                             int query, int key, int add, int last) {
    float sum[2];
    te__attn_fp8_products(r, a, 1, 1, add);
    if (cut) te__attn_hide_outside(r, m, query, key);
    TE_UNROLL for (int e = 0; e < 2; e++) sum[e] = te__attn_fp8_exp(r, e, x);
    te__attn_products_wait(r, a, 1);
    if (te__attn_fp8_outgrown(sum, TE_E4M3_MAX)) {
        if (te__attn_fp8_outgrown(sum, TE__ATTN_FP8_LOST)) {
            te__attn_fp8_scores_again(r, a.q, a.k_tiles + a.k.stage * C::K_BYTES);
            if (cut) te__attn_hide_outside(r, m, query, key);
            te__attn_fp8_raise<F>(r, x, a.c, sum);
        } else te__attn_fp8_lift(r, x, sum);
    }
    te__attn_fp8_pack(r);
    te__attn_keys_free(a, last);
    r.sum[0] += sum[0], r.sum[1] += sum[1];
}
/* What products of a head's q and k count in powers of two, and its v. */
struct te__attn_fp8_units { float score, value; };
template <int HEADS, int KV_HEADS>
TE_FN te__attn_fp8_units te__attn_fp8_units_of(const te_attn_hopper_fp8 *p, int head) {
    const int q = head % HEADS, k = HEADS + q / (HEADS / KV_HEADS);
    return {te__attn_fp8_score_unit(p->amax[q], p->amax[k], p->common.scale),
            te__attn_fp8_inverse(p->amax[k + KV_HEADS], TE_E4M3_MAX)};
}

/* ---- a warpgroup that multiplies --------------------------------------------------------------------------------- */

/* As te__attn_forward_multiply. */
template <te_dtype T, class C, int HEADS, int KV_HEADS, class F>
TE_FN void te__attn_fp8_multiply(const te_attn_hopper_fp8 *all, te_attn_barriers *bars, const uint32_t tiles[3]) {
    const te_attn_hopper *p = &all->common;
    const int group = __shfl_sync(~0u, (int)threadIdx.x / 128 - 1, 0);
    const int lane = (int)threadIdx.x % 32, row = group * 64 + (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
    te__attn_rows<C> r;
    te__attn_fp8_power x;
    te__attn_place<C> a = {te__shared_address(bars->k_full), te__shared_address(bars->k_empty),
                           te__shared_address(bars->v_full), te__shared_address(bars->v_empty),
                           tiles[1], tiles[2], 0, 0, {0, 0}, {0, 0}, group, lane, 0};
    te__attn_ring<C::Q_STAGES> q = {0, 0};
    te_attn_work w = {0, TE__ATTN_NO_MORE};
    const te__attn_mask m = te__attn_forward_mask<F>(p, p->seq);
    float value = 0; /* what a number of v counts */
    TE_UNROLL for (int i = 0; i < C::PACKED; i++) r.p[i] = 0;
    if (C::TURNS && group == C::GROUPS - 1) te__attn_turn_pass(a);
    for (int add = 0, behind = 0;;) { /* behind: a tile of keys of the queries before was skipped at their end */
        te__barrier_wait(te__shared_address(&bars->q_full[q.stage]), q.phase);
        const te_attn_work next = bars->work[q.stage];
        const int more = next.head >= 0, have = w.head >= 0;
        const te__attn_range t = te__attn_tiles_of<C>(m, next.query + group * 64, 64);
        const int skip = more ? te__attn_tiles_of<C>(m, next.query, C::ROWS).end - t.end : 0;
        const te__attn_fp8_units units = te__attn_fp8_units_of<HEADS, KV_HEADS>(all, more ? next.head : 0);
        a.q = tiles[0] + q.stage * C::Q_BYTES + group * C::Q_PART, a.c = units.score;
        a.q_empty = te__shared_address(&bars->q_empty[q.stage]);

        /* the first tile of keys, together with the last product of the queries before */
        float top[2], sum[2];
        
        if (skip) te__attn_keys_skip(a);
        te__attn_fp8_products(r, a, more, have, add);
        if (more) te__attn_keys_free(a, t.end - 1 == t.first);
        const int tile = (t.end - 1) * C::KEYS;
        int key = tile + lane % 4 * 2; /* the first key of the tile, of this lane */
        asm volatile("" : "+r"(key));  /* what is compared with it is not kept */
        if (te__attn_needs_mask(t, t.end - 1, 1)) {
            if (te__attn_is_window<F>()) te__attn_hide_outside(r, m, next.query + group * 64, tile);
            else te__attn_apply_mask(r, m, next.query + row, key);
        }
        te__attn_fp8_first<F>(r, x, top, sum, a.c);
        te__attn_products_wait(r, a, have);
        if (behind) te__attn_values_skip(a);
        if (skip) te__attn_values_skip(a);
        if (have) {
            const int64_t first = ((int64_t)(w.head / HEADS) * p->seq * HEADS + w.head % HEADS) * C::D;
            const float *const scale = te__attn_out_scale<F>(p);
            void *const out = te__attn_out_at(p->out, first, scale);
            float *lse = p->lse ? p->lse + (int64_t)w.head * p->seq : 0;
            TE_UNROLL for (int e = 0; e < 2; e++) r.top[e] -= TE__ATTN_FP8_P_EXPONENT;
            te__attn_finish<T>(r, out, scale, HEADS * C::D, lse, w.query + row, p->seq, TE__ATTN_LN2, value,
                               te__attn_amax_output<F>(p));
        }
        if (!more) break;
        TE_UNROLL for (int e = 0; e < 2; e++) r.top[e] = top[e], r.sum[e] = sum[e];
        te__attn_fp8_pack(r);

        w = next, value = units.value, add = 0;
#pragma unroll 1
        for (int j = t.end - 2; j >= t.first; j--, add = 1) {
            const int cut = te__attn_is_window<F>() && te__attn_needs_mask(t, j, 1);
            te__attn_fp8_step<F>(r, x, a, m, cut, w.query + group * 64, j * C::KEYS, add, j == t.first);
        }
        behind = F::LEFT >= 0 && t.first > te__attn_tiles_of<C>(m, w.query, C::ROWS).first;
        if (behind) te__attn_keys_skip(a);
        te__attn_advance(q);
    }
}

/* ---- the warp that loads ----------------------------------------------------------------------------------------- */

/* A tile of V: all of D, keys from `key` on. */
template <class C>
TE_FN void te__attn_fp8_bring_values(te__attn_loader<C::V_STAGES> &l, const CUtensorMap *from, int head, int key,
                                     int batch) {
    const uint32_t bar = l.full + 8 * l.at.stage, to = l.tiles + l.at.stage * C::V_BYTES;
    te__barrier_wait(l.empty + 8 * l.at.stage, l.at.phase ^ 1);
    te__barrier_arrive_expect_tx(bar, C::V_BYTES);
    TE_UNROLL for (int b = 0; b < C::KEYS / 128; b++)
        te__attn_load(to + b * (C::D * 128), from, key / 2 + 64 * b, 0, head, batch, bar);
    te__attn_advance(l.at);
}
/* As te__attn_forward_load. */
template <class C, int HEADS, int KV_HEADS, class F>
TE_FN void te__attn_fp8_load(const te_attn_hopper_fp8 *all, te_attn_barriers *bars, const uint32_t tiles[3]) {
    const te_attn_hopper *p = &all->common;
    te__attn_loader<C::K_STAGES> k = {te__shared_address(bars->k_full), te__shared_address(bars->k_empty), tiles[1],
                                      {0, 0}};
    te__attn_loader<C::V_STAGES> v = {te__shared_address(bars->v_full), te__shared_address(bars->v_empty), tiles[2],
                                      {0, 0}};
    te__attn_ring<C::Q_STAGES> q = {0, 0};
#pragma unroll 1
    for (int tile = (int)blockIdx.x;; tile = te__attn_next(p, tile)) {
        const te_attn_work w = te__attn_work_of<C::ROWS, F>(p, tile);
        const te__attn_range t = te__attn_tiles_of<C>(te__attn_forward_mask<F>(p, p->seq), w.query, C::ROWS);
        const uint32_t bar = te__shared_address(&bars->q_full[q.stage]), to = tiles[0] + q.stage * C::Q_BYTES;
        const int batch = w.head / HEADS, head = w.head % HEADS, kv_head = head / (HEADS / KV_HEADS);
        if (w.head >= 0) te__attn_bring<C::BOXES * 64, C::KEYS>(k, &p->kv, kv_head, (t.end - 1) * C::KEYS, batch);
        te__barrier_wait(te__shared_address(&bars->q_empty[q.stage]), q.phase ^ 1);
        bars->work[q.stage] = w;
        if (w.head < 0) return te__barrier_arrive(bar);
        te__barrier_arrive_expect_tx(bar, C::Q_BYTES);
        TE_UNROLL for (int g = 0; g < C::GROUPS; g++)
            TE_UNROLL for (int b = 0; b < C::BOXES; b++)
                te__attn_load(to + g * C::Q_PART + b * 8192, &p->q, 64 * b, head, w.query + 64 * g, batch, bar);
        te__attn_advance(q);
#pragma unroll 1
        for (int j = t.end - 2; j >= t.first; j--) {
            te__attn_bring<C::BOXES * 64, C::KEYS>(k, &p->kv, kv_head, j * C::KEYS, batch);
            te__attn_fp8_bring_values<C>(v, &all->v, kv_head, (j + 1) * C::KEYS, batch);
        }
        te__attn_fp8_bring_values<C>(v, &all->v, kv_head, t.first * C::KEYS, batch);
    }
}

template <te_dtype T, class C, int HEADS, int KV_HEADS, class F>
TE_FN void te__attn_fp8_body(const te_attn_hopper_fp8 *p, te_attn_barriers *bars) {
    const uint32_t q_tiles = (te__shared_address(te__attention_shared) + 1023) & ~1023u; /* where the swizzle begins */
    const uint32_t k_tiles = q_tiles + C::Q_STAGES * C::Q_BYTES, v_tiles = k_tiles + C::K_STAGES * C::K_BYTES;
    const uint32_t tiles[3] = {q_tiles, k_tiles, v_tiles};
    if (threadIdx.x == 0) te__attn_barriers_begin<C>(bars);
    if (threadIdx.x == 32) te__tma_prefetch_descriptor(&p->common.q), te__tma_prefetch_descriptor(&p->common.kv);
    __syncthreads();
    te_kernel_begin();
    if (threadIdx.x < 128) {
        te__registers_less<C::LOADS>();
        if (threadIdx.x == 0) te__attn_fp8_load<C, HEADS, KV_HEADS, F>(p, bars, tiles);
    } else {
        te__registers_more<C::MULTIPLIES>();
        te__attn_fp8_multiply<T, C, HEADS, KV_HEADS, F>(p, bars, tiles);
    }
}
#else
template <te_dtype T, class C, int HEADS, int KV_HEADS, class F>
TE_FN void te__attn_fp8_body(const te_attn_hopper_fp8 *, te_attn_barriers *) {}
#endif

/* ---- the host's side --------------------------------------------------------------------------------------------- */

/* The transposed v, two keys as one number of 16 bits. */
TE_API te_status te__attn_fp8_values_map(CUtensorMap *map, te__tensor_map_encode_fn encode, const te_attention_fp8_operands *of, int dim,
                                         int kv_heads, int batch, te_context *ctx) {
    const cuuint64_t row = (cuuint64_t)of->keys, head = row * (cuuint64_t)dim;
    const cuuint64_t pitch[3] = {row, head, head * (cuuint64_t)kv_heads};
    const cuuint64_t size[4] = {row / 2, (cuuint64_t)dim, (cuuint64_t)kv_heads, (cuuint64_t)batch};
    const cuuint32_t box[4] = {64, (cuuint32_t)dim, 1, 1};
    return te__tensor_map_tiled(map, encode, of->v, 4, size, pitch, box, TE_bf16, ctx);
}

/* What TE_ATTENTION_FORWARD_FP8 makes a kernel of. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
struct te__attn_hopper_fp8 : te__attn_hopper_fp8_shape<D> {
    typedef te__attn_hopper_fp8_shape<D> C;
    typedef te_attn_hopper_fp8 args;
    static constexpr int BLOCKS = 1;
    static __device__ __forceinline__ void body(const args *p) {
        __shared__ te_attn_barriers bars;
        te__attn_fp8_body<T, C, HEADS, KV_HEADS, F>(p, &bars);
    }
    /* Whether the context's device runs it. */
    static te_status ready(te_context *ctx, te_sm90_kernel *k, const char *name) {
        TE_REQUIRE(te__tensor_map_encoder(ctx) && te__sm90_kernel_ready(k, C::SHARED, ctx->device), ctx, TE_ERROR_DEVICE,
                   "%s: attention in FP8 has a kernel for compute capability 9.0 alone (sm_90a)", name);
        return TE_OK;
    }
    /* Of what name_cast has left in the scratch memory. As te__attn_forward_launch. */
    static te_status launch(te_context *ctx, te_sm90_kernel *k, const te_attention_args *a, const char *name) {
        const te_attention_fp8_operands of = te__attn_fp8_operands_of(a, HEADS, KV_HEADS, D);
        const te__tensor_map_encode_fn encode = te__tensor_map_encoder(ctx);
        const int64_t l2 = 8 << 20, head_bytes = (int64_t)a->seq * D * 2, groups = (int64_t)a->batch * KV_HEADS;
        te_attn_hopper_fp8 all;
        memset(&all, 0, sizeof all);
        te_attn_hopper *p = &all.common;
        TE_TRY(te__attn_heads_map(&p->q, encode, of.q, D / 2, HEADS, HEADS * D / 2, a->seq, a->batch, 64, TE_bf16,
                                  ctx));
        TE_TRY(te__attn_heads_map(&p->kv, encode, of.k, D / 2, KV_HEADS, KV_HEADS * D / 2, a->seq, a->batch, C::KEYS,
                                  TE_bf16, ctx));
        TE_TRY(te__attn_fp8_values_map(&all.v, encode, &of, D, KV_HEADS, a->batch, ctx));
        all.amax = of.amax;
        p->out = a->out, p->out_scale = a->out_scale, p->amax = a->amax, p->lse = a->lse, p->tickets = ctx->tickets;
        p->heads = a->batch * HEADS, p->seq = a->seq, p->scale = a->scale;
        p->rows = (int)te_ceil_div(a->seq, C::ROWS), p->tiles = p->heads * p->rows;
        p->together = F::RIGHT == 0 ? (int)te_max(1, te_min(l2 / head_bytes, groups)) : 1;
        p->together *= HEADS / KV_HEADS;
        p->last = F::RIGHT == 0 ? p->rows / 4 : 0, p->together_last = (int)te_min(16 * (int64_t)p->together, p->heads);
        return te__cuda_launch(ctx, k->kernel, te_grid_of(te_min(ctx->processors, p->tiles), 1), C::THREADS, C::SHARED,
                               1, &all, sizeof all, name);
    }
    /* The casts, then the kernel. */
    static te_status run(te_context *ctx, te_sm90_kernel *k, const te_attention_args *a,
                         te_status (*cast)(te_context *ctx, const te_attention_args *a), const char *name) {
        TE_TRY(te__attention_check_fp8(ctx, a, HEADS, name));
        TE_TRY(te__attention_check_fp8_output(ctx, a, F::FP8_OUTPUT, name));
        TE_TRY(ready(ctx, k, name));
        TE_TRY(cast(ctx, a));
        return launch(ctx, k, a, name);
    }
};

#define TE_ATTENTION_FORWARD_FP8(name, dtype, heads, kv_heads, head_dim, options)                               \
    TE__ATTENTION_CUDA_ASSERT(dtype, heads, kv_heads, head_dim)                                                 \
    TE__ATTENTION_FP8_ASSERT(dtype, head_dim)                                                                   \
    TE__ATTENTION_VARIANT(name, options)                                                                           \
    TE__ATTENTION_FP8_PASSES(name, dtype, heads, kv_heads, head_dim)                                            \
    typedef te__attn_hopper_fp8<TE_##dtype, (heads), (kv_heads), (head_dim), name##_variant> name##_of;            \
    TE__ATTENTION_SHELL(name##_wgmma, name##_of)                                                                \
    TE_UNUSED static te_sm90_kernel name##_kernel = {(const void *)name##_wgmma, 0, 0};                       \
    TE_API te_status name##_ready(te_context *ctx) { return name##_of::ready(ctx, &name##_kernel, #name); }     \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                               \
        return name##_of::run(ctx, &name##_kernel, a, name##_cast, #name);                                      \
    }

#endif
