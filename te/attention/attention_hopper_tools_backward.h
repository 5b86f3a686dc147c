/* attention_hopper_tools_backward.h -- what attention_hopper_backward.h is made of beside attention_hopper.h's products
 * of a warpgroup: waits for them, boxes of a sequence brought by the copy engine (TMA), f32 added to global memory, and
 * gradients stored from accumulators. The layout of an accumulator is that of A in registers (attention_hopper.h), so a
 * product's result is the next product's A as it is.
 */
/* target: cuda */
#ifndef TE_ATTENTION_HOPPER_TOOLS_BACKWARD_H
#define TE_ATTENTION_HOPPER_TOOLS_BACKWARD_H

#include "../core/tensor.h" /* te_sequence */
#include "attention_hopper.h"  /* te__wgmma_of, te__barrier_wait */
#include "impl/attention_sm80_tiles.h"     /* te__attn_unpack */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* All groups of products are done but the last K. */
template <int K> TE_FN void te__attn_wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(K) : "memory");
}
/* What reads d stays behind this point. Behind a wait the compiler would not know it otherwise. */
template <int N> TE_FN void te__attn_hold_back(float (&d)[N]) {
    TE_UNROLL for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* lse and delta of queries as columns of a product's B: query q has eight numbers of bf16 at 16 q, three terms that add
 * up to -lse / scale, 0, three terms of -delta, 0. A product has sixteen: it meets them twice, the second time with
 * zeros of A. */
TE_FN uint64_t te__attn_back_terms_at(uint32_t address) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(128 >> 4) << 32; /* 8 rows after 128 bytes, not permuted */
}
/* x as three terms and a zero: 24 bits, all that f32 has. */
TE_FN uint2 te__attn_back_terms(float x) {
    const float high = __bfloat162float(__float2bfloat16_rn(x)), rest = x - high;
    const float middle = __bfloat162float(__float2bfloat16_rn(rest));
    return make_uint2(te_pair_of_floats(high, middle, TE_bf16), te_pair_of_floats(rest - middle, 0, TE_bf16));
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* A box of [batch, seq, width]: 64 columns from x on, of the sequence z from token y on; zeros beyond its end. */
TE_FN void te__attn_box_load(uint32_t to, const CUtensorMap *from, int x, int y, int z, uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(from), "r"(x), "r"(y), "r"(z), "r"(bar)
                 : "memory");
}
/* The same of packed rows, [rows, width], from row y of these on. */
TE_FN void te__attn_box_load(uint32_t to, const CUtensorMap *from, int x, int y, const te_sequence &rows,
                             uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(from), "r"(x), "r"(te__ragged_row(y, rows.count)), "r"(rows.first + rows.count),
                 "r"((int)TE__RAGGED_ROWS), "r"(bar)
                 : "memory");
}
/* Four 8 x 8 matrices of 16-bit numbers to shared memory, transposed; each lane gives the address of a row there. */
TE_FN void te__attn_store_transposed(uint32_t to, const uint32_t (&w)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]),
                 "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}
TE_FN float2 te__attn_load2(uint32_t from) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
    return v;
}
TE_FN void te__attn_store4(uint32_t to, const float *v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
}
TE_FN void te__attn_store2(uint32_t to, const float *v) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(v[0]), "f"(v[1]) : "memory");
}
/* What this thread stored to shared memory is seen by products and by the copy engine, once it is told that it is
 * there. */
TE_FN void te__attn_publish(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/* The copy engine stores, or adds, `bytes` bytes of f32 from shared memory; a thread's copies are done with what they
 * read, or done. */
TE_FN void te__attn_bulk_store(float *to, uint32_t from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
TE_FN void te__attn_bulk_add(float *to, uint32_t from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
/* To the same place in the shared memory of block `cta` of the cluster, whose barrier `bar` counts the bytes. */
TE_FN void te__attn_bulk_copy(uint32_t from, int bytes, uint32_t bar, int cta) {
    asm volatile("{\n.reg .b32 to, at;\n"
                 "mapa.shared::cluster.u32 to, %0, %3;\nmapa.shared::cluster.u32 at, %2, %3;\n"
                 "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%0], %1, [at];\n}"
                 ::"r"(from), "r"(bytes), "r"(bar), "r"(cta)
                 : "memory");
}
TE_FN void te__attn_bulk_read(void) { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
TE_FN void te__attn_bulk_done(void) { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
TE_FN uint32_t te__attn_acquire(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
/* What was done before, by the copy engine too, is seen by whoever acquires the number. */
TE_FN void te__attn_release_add(uint32_t *p) {
    asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
}
/* The four warps of a warpgroup meet. */
TE_FN void te__attn_group_sync(int group) {
    if (group) asm volatile("bar.sync 2, 128;" ::: "memory");
    else asm volatile("bar.sync 1, 128;" ::: "memory");
}

/* Two warpgroups take turns: a group waits until the other has given it the turn. */
TE_FN void te__attn_turn_take(int group) {
    if (group) asm volatile("bar.sync 4, 256;" ::: "memory");
    else asm volatile("bar.sync 3, 256;" ::: "memory");
}
TE_FN void te__attn_turn_give(int group) {
    if (group) asm volatile("bar.arrive 3, 256;" ::: "memory");
    else asm volatile("bar.arrive 4, 256;" ::: "memory");
}

/* ---- a gradient leaves its accumulator --------------------------------------------------------------------------- */

/* v[s] of lane t of a quad becomes v[t] of lane s: then each lane has 16 bytes in a row. */
TE_FN void te__attn_quad_transpose(uint32_t (&v)[4], int t) {
    const uint32_t a = __shfl_xor_sync(~0u, t & 2 ? v[0] : v[2], 2), b = __shfl_xor_sync(~0u, t & 2 ? v[1] : v[3], 2);
    if (t & 2) v[0] = a, v[1] = b;
    else v[2] = a, v[3] = b;
    const uint32_t c = __shfl_xor_sync(~0u, t & 1 ? v[0] : v[1], 1), d = __shfl_xor_sync(~0u, t & 1 ? v[2] : v[3], 1);
    if (t & 1) v[0] = c, v[2] = d;
    else v[1] = c, v[3] = d;
}
/* The sums of up to 64 columns over 32 or 16 rows at a time, of a warpgroup's 64 of which `valid` exist, to rows of
 * `width`. part: [2, 16] floats of shared memory of this warpgroup. */
template <te_dtype T, int SUM_ROWS>
TE_FN void te__attn_group_sum(float *sum, int64_t width, const uint32_t (&u)[8][2], int columns, int valid,
                              float (*part)[16], int group) {
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int warp = (int)threadIdx.x / 32 % 4, row = warp * 16 + g;
    TE_UNROLL for (int x = 0; x < 4; x++) {
        if (16 * x >= columns) continue;
        float2 s[2];
        TE_UNROLL for (int j = 0; j < 2; j++) {
            s[j] = make_float2(0, 0);
            TE_UNROLL for (int h = 0; h < 2; h++) {
                const float2 v = te_floats_of_pair(u[2 * x + j][h], T);
                if (row + 8 * h < valid) s[j].x += v.x, s[j].y += v.y;
            }
            TE_UNROLL for (int l = 4; l < 32; l *= 2)
                s[j].x += __shfl_xor_sync(~0u, s[j].x, l), s[j].y += __shfl_xor_sync(~0u, s[j].y, l);
            if (SUM_ROWS == 32 && warp % 2 && g == 0) *(float2 *)&part[warp / 2][8 * j + 2 * t] = s[j];
            if (SUM_ROWS == 16 && g == 0 && warp * 16 < valid)
                *(float2 *)(sum + warp * width + 16 * x + 8 * j + 2 * t) = s[j];
        }
        if (SUM_ROWS == 16) continue; /* a warp's rows */
        te__attn_group_sync(group);
        if (warp % 2 == 0 && g == 0 && warp * 16 < valid) TE_UNROLL for (int j = 0; j < 2; j++) {
            const float2 v = *(const float2 *)&part[warp / 2][8 * j + 2 * t];
            *(float2 *)(sum + warp / 2 * width + 16 * x + 8 * j + 2 * t) = make_float2(s[j].x + v.x, s[j].y + v.y);
        }
        te__attn_group_sync(group);
    }
}
/* A warpgroup's 64 rows of d, times factor, to `to` (row 0, column 0), of which `valid` exist; and the sums of what was
 * stored to sum, if that is not null. part: as above; amax: as te_attention_args.amax. */
template <te_dtype T, int D, int SUM_ROWS>
TE_FN void te__attn_group_store(uint16_t *to, int64_t width, int valid, const float (&d)[D / 2], float factor,
                                float *sum, float (*part)[16], int group, float *amax) {
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int warp = (int)threadIdx.x / 32 % 4, row = warp * 16 + g;
    TE_UNROLL for (int x = 0; x < D; x += 64) { /* 64 columns at a time, for there are few registers left */
        uint32_t u[8][2];
        TE_UNROLL for (int j = 0; j < 8; j++)
            TE_UNROLL for (int h = 0; h < 2; h++) {
                if (x + 8 * j >= D) continue;
                const float *pair = d + x / 2 + 4 * j + 2 * h;
                u[j][h] = te_pair_of_floats(pair[0] * factor, pair[1] * factor, T);
            }
        if (sum) te__attn_group_sum<T, SUM_ROWS>(sum + x, width, u, D - x, valid, part, group);
        TE_UNROLL for (int j = 0; j < 8; j += 4)
            TE_UNROLL for (int h = 0; h < 2; h++) {
                if (x + 8 * j >= D) continue;
                uint32_t v[4] = {u[j][h], u[j + 1][h], u[j + 2][h], u[j + 3][h]};
                te__attn_quad_transpose(v, t);
                if (row + 8 * h < valid)
                    *(uint4 *)(to + (row + 8 * h) * width + x + 8 * (j + t)) = make_uint4(v[0], v[1], v[2], v[3]);
            }
    }
    if (!amax) return;
    uint32_t most = 0; /* read back, for no register is left while d lives */
    for (int own = row; own <= row + 8 && own < valid; own += 8)
        for (int x = 8 * t; x < D; x += 32) te__attn_track_amax(&most, *(const uint4 *)(to + own * width + x));
    te__attn_raise_amax<T>(amax, most);
}
#endif

/* How the copy engine sees [batch, seq, width], 16 bits each, in boxes of 64 tokens by 64 columns: it stays within a
 * sequence. batch 0: [rows, width], rows of packed sequences. */
TE_API te_status te__attn_map(CUtensorMap *map, te__tensor_map_encode_fn encode, const void *data, int batch, int seq, int width,
                              te_dtype dtype, te_context *ctx) {
    const cuuint64_t size[3] = {(cuuint64_t)width, (cuuint64_t)seq, (cuuint64_t)batch};
    const cuuint64_t pitch[2] = {(cuuint64_t)width * 2, (cuuint64_t)width * 2 * (cuuint64_t)seq};
    const cuuint32_t box[3] = {64, 64, 1};
    if (!batch) return te__tensor_map_ragged(map, encode, data, 2, size, pitch, box, dtype, ctx);
    return te__tensor_map_tiled(map, encode, data, 3, size, pitch, box, dtype, ctx);
}

#endif
