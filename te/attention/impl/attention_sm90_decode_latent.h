/* attention_sm90_decode_latent.h -- the parts of decoding (attention_sm90_decode.h) that differ if the value of a token
 * is the first columns of its key (values_in_keys), as in multi-head latent attention in its absorbed form: keys of 576
 * columns, values of 512, one KV head for 16 to 128 query heads (DeepSeek-AI 2024).
 *
 * A stage has TE__DECODE_LATENT_KEYS keys, which are copied once and read as keys and as values. A warp does not have
 * enough registers for 512 columns of O, so the work is not divided by keys as in attention_sm90_decode.h. A step
 * processes two stages, because its time is that of a chain of dependent operations:
 *
 *     S^T = K Q^T    each of eight warps multiplies 16 keys of each stage by the tile of queries, over a quarter of the
 *                    columns: 16 columns of each 64. It has these columns of Q in registers.
 *     softmax        each warp adds up the four parts of the scores of two rows of the tile (one row, if the tile has
 *                    eight), of which each lane has two keys, and has the maximum and the sum of these rows.
 *     O^T += V^T P^T each warp has an eighth of the columns of O, over all keys.
 *
 * The parts of the scores, P, and the factors by which O is rescaled go through shared memory; there are two barriers
 * of the consumers for each step. As in the other kernels, the tile of queries is operand B of mma.sync.
 *
 * Floor: one read of the keys, 1152 bytes for each token. For 16 heads that is 30 flops for each byte, far below what
 * the tensor cores do in this time. A tile has at most 16 rows, so with more heads than that each tile reads all keys.
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM90_DECODE_LATENT_H
#define TE_ATTENTION_SM90_DECODE_LATENT_H

#include "attention_sm80_tiles.h"         /* te__attn_ldmatrix, te__mma_sync */
#include "attention_sm90_decode_result.h" /* te__decode_result, te__decode_score, te__decode_exchange */
#include "attention_sm90_decode_work.h"   /* te__decode_group, te__decode_stage_new */

enum {
    TE__DECODE_LATENT_KEYS = 32,  /* the number of keys of a stage: one for each lane; a step has two stages */
    TE__DECODE_LATENT_PARTS = 4,  /* into how many parts the columns of a key are divided */
    TE__DECODE_LATENT_P_ROW = 144, /* the bytes of a row of P in shared memory, with padding against bank conflicts */
    /* the largest head sizes of keys and values of these kernels */
    TE__DECODE_LATENT_MAX_DIM = 640,
    TE__DECODE_LATENT_MAX_VALUE = 512
};
/* Returns whether these kernels support keys of d elements with values of dv. */
TE_BOTH constexpr int te__decode_latent_fits(int d, int dv) {
    return d % 64 == 0 && dv % (16 * TE__DECODE_LATENT_WARPS) == 0 && d <= TE__DECODE_LATENT_MAX_DIM &&
           dv <= TE__DECODE_LATENT_MAX_VALUE;
}
/* The floats of the parts of the scores of a tile: [parts, keys of two stages, rows], each row padded by two floats. */
TE_BOTH constexpr int te__decode_latent_score_floats(int rows) {
    return TE__DECODE_LATENT_PARTS * 2 * TE__DECODE_LATENT_KEYS * (rows + 2);
}
/* The bytes of shared memory for the scores, P, and the factor of each row. */
TE_BOTH constexpr int te__decode_latent_bytes(int rows) {
    return te__decode_latent_score_floats(rows) * 4 + rows * TE__DECODE_LATENT_P_ROW + rows * 4;
}

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* Those columns of a tile of queries that this warp multiplies, as B fragments of Q^T, for each of NT groups of 8 rows.
 * Fragment j has 16 of columns 64 j to 64 j + 63. Rows past the end of the tile are zeros. */
template <int D, int NT>
struct te__decode_latent_q {
    uint32_t held[D / 64][NT][2];
    /* Returns which quarter of each 64 columns this warp multiplies. */
    static __device__ __forceinline__ int part(void) { return (int)threadIdx.x / 64; }
    /* Called by all consumers when the queries are in shared memory, at address `from`. of_tile: the number of rows of
     * the tile. */
    __device__ __forceinline__ void load(uint32_t from, int of_tile) {
        const int lane = (int)threadIdx.x % 32;
        TE_UNROLL for (int j = 0; j < D / 64; j += 2) TE_UNROLL for (int n = 0; n < NT; n++) {
            uint32_t b[4]; /* fragments j and j + 1; the last j may be without a second one */
            const int segment = j + 1 < D / 64 ? j + lane / 16 : j, row = n * 8 + lane % 8;
            te__attn_ldmatrix(b, from + (uint32_t)(row * D * 2 + segment * 128 + part() * 32 + lane / 8 % 2 * 16));
            const bool exists = n * 8 + lane / 4 < of_tile;
            TE_UNROLL for (int e = 0; e < 4; e++)
                if (j + e / 2 < D / 64) held[j + e / 2][n][e % 2] = exists ? b[e] : 0;
        }
    }
};

/* One split of a tile of queries: the part of this thread. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, int M, int NT>
struct te__decode_latent {
    static constexpr int KEYS = TE__DECODE_LATENT_KEYS, WARPS = TE__DECODE_LATENT_WARPS, ROWS = NT * 8;
    static constexpr int SCORE_ROW = ROWS + 2, OF_WARP = ROWS / WARPS;
    const te_attention_args *a;
    const te__decode_group &w;
    const te__decode_latent_q<D, NT> &q;
    const te__decode_exchange &x;
    float *scores, *factors;       /* te__decode_latent_bytes */
    unsigned char *p;
    /* of rows OF_WARP warp + i: the maximum, and the sum over the keys of this lane */
    float max[OF_WARP], sum[OF_WARP];
    float o[M][NT][4];             /* as in te__decode_result */

    __device__ __forceinline__ te__decode_latent(const te_attention_args *a, const te__decode_group &w,
                                                 const te__decode_latent_q<D, NT> &q, const te__decode_exchange &x)
        : a(a), w(w), q(q), x(x), scores((float *)x.o), factors(scores + te__decode_latent_score_floats(ROWS)),
          p((unsigned char *)(factors + ROWS)) {
        TE_UNROLL for (int i = 0; i < OF_WARP; i++) max[i] = -INFINITY, sum[i] = 0;
        TE_UNROLL for (int m = 0; m < M; m++)
            TE_UNROLL for (int n = 0; n < NT; n++) TE_UNROLL for (int e = 0; e < 4; e++) o[m][n][e] = 0;
    }
    /* Writes zeros to the rows from `count` on of a stage. They may hold NaN of earlier data, and P, which is 0 there,
     * times NaN would be NaN. A barrier of the consumers must follow. */
    __device__ __forceinline__ void clear_rows(uint32_t stage, int count) const {
        for (int j = (int)threadIdx.x; j < (KEYS - count) * (D / 8); j += WARPS * 32)
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(stage + (uint32_t)(count * D * 2 + j * 16)),
                         "r"(0)
                         : "memory");
    }
    /* Stores this warp's part of the scores of 16 keys of each of two stages. */
    __device__ __forceinline__ void store_scores(const uint32_t (&stage)[2]) const {
        const int lane = (int)threadIdx.x % 32, tile = (int)threadIdx.x / 32 % 2, g = lane / 4, t = lane % 4;
        uint32_t from[2];
        float s[2][NT][4] = {};
        TE_UNROLL for (int j = 0; j < 2; j++)
            from[j] = te__decode_row_at<D>(stage[j], tile * 16 + lane % 16, q.part() * 2 + lane / 16);
        TE_UNROLL for (int k = 0; k < D / 64; k += 2) { /* the loads of four fragments are in flight together */
            uint32_t keys[2][2][4];
            TE_UNROLL for (int i = 0; i < 2; i++) TE_UNROLL for (int j = 0; j < 2; j++)
                if (k + i < D / 64) te__attn_ldmatrix(keys[i][j], from[j] + (uint32_t)((k + i) * 128));
            TE_UNROLL for (int i = 0; i < 2; i++) TE_UNROLL for (int j = 0; j < 2; j++)
                TE_UNROLL for (int n = 0; n < NT; n++)
                    if (k + i < D / 64)
                        te__mma_sync(s[j][n], keys[i][j], q.held[k + i][n][0], q.held[k + i][n][1], T);
        }
        float *const to = scores + (q.part() * 2 * KEYS + tile * 16 + g) * SCORE_ROW + 2 * t;
        TE_UNROLL for (int j = 0; j < 2; j++) TE_UNROLL for (int n = 0; n < NT; n++)
            TE_UNROLL for (int half = 0; half < 2; half++)
                *(float2 *)(to + (j * KEYS + half * 8) * SCORE_ROW + n * 8) =
                    make_float2(s[j][n][2 * half], s[j][n][2 * half + 1]);
    }
    /* One step of the online softmax: stores P and the factors of this warp's rows. key: the first key of the step. */
    __device__ __forceinline__ void store_p(int key, int stop) {
        const int lane = (int)threadIdx.x % 32, first = (int)threadIdx.x / 32 * OF_WARP;
        const int needs_mask = te__attn_needs_mask(w.seen, key, 2 * KEYS) || key + 2 * KEYS > stop;
        float s[2][OF_WARP] = {}, v[OF_WARP], rescale[OF_WARP];
        TE_UNROLL for (int part = 0; part < TE__DECODE_LATENT_PARTS; part++) TE_UNROLL for (int j = 0; j < 2; j++)
            TE_UNROLL for (int i = 0; i < OF_WARP; i++)
                s[j][i] += scores[((part * 2 + j) * KEYS + lane) * SCORE_ROW + first + i];
        TE_UNROLL for (int i = 0; i < OF_WARP; i++) {
            const te__decode_row<HEADS, KV_HEADS> of(w, first + i);
            TE_UNROLL for (int j = 0; j < 2; j++)
                s[j][i] = te__decode_score<HEADS, KV_HEADS, F>(s[j][i], a, w, of, key + j * KEYS + lane, stop,
                                                               needs_mask);
            v[i] = fmaxf(s[0][i], s[1][i]);
        }
        TE_UNROLL for (int o = 16; o > 0; o /= 2)
            TE_UNROLL for (int i = 0; i < OF_WARP; i++) v[i] = fmaxf(v[i], __shfl_xor_sync(~0u, v[i], o));
        TE_UNROLL for (int i = 0; i < OF_WARP; i++) {
            v[i] = fmaxf(v[i], max[i]);
            const float offset = v[i] == -INFINITY ? 0.0f : v[i];
            rescale[i] = te_exp2(max[i] - offset), max[i] = v[i];
            TE_UNROLL for (int j = 0; j < 2; j++) s[j][i] = te_exp2(s[j][i] - offset);
            sum[i] = sum[i] * rescale[i] + (s[0][i] + s[1][i]);
        }
        TE_UNROLL for (int i = 0; i < OF_WARP; i++) {
            TE_UNROLL for (int j = 0; j < 2; j++)
                *(uint16_t *)(p + (first + i) * TE__DECODE_LATENT_P_ROW + (j * KEYS + lane) * 2) =
                    (uint16_t)te_pair_of_floats(s[j][i], 0, T);
            if (lane == 0) factors[first + i] = rescale[i];
        }
    }
    /* Rescales O by the factors, and computes O^T += V^T P^T for this warp's columns of V. */
    __device__ __forceinline__ void add_pv(const uint32_t (&stage)[2]) {
        const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, t = lane % 4;
        uint32_t of_p[2][NT][4];
        float2 factor[NT];
        int changed = 0;
        TE_UNROLL for (int n = 0; n < NT; n++) {
            TE_UNROLL for (int j = 0; j < 2; j++)
                te__attn_ldmatrix(of_p[j][n],
                                  te__shared_address(p) + (uint32_t)((n * 8 + lane % 8) * TE__DECODE_LATENT_P_ROW +
                                                                     j * KEYS * 2 + lane / 8 * 16));
            factor[n] = *(const float2 *)(factors + n * 8 + 2 * t);
            changed |= factor[n].x != 1.0f || factor[n].y != 1.0f;
        }
        if (__any_sync(~0u, changed))
            TE_UNROLL for (int m = 0; m < M; m++) TE_UNROLL for (int n = 0; n < NT; n++) {
                o[m][n][0] *= factor[n].x, o[m][n][1] *= factor[n].y;
                o[m][n][2] *= factor[n].x, o[m][n][3] *= factor[n].y;
            }
        TE_UNROLL for (int k = 0; k < 2 * KEYS / 16; k++) {
            const int row = k % 2 * 16 + lane / 16 * 8 + lane % 8;
            const uint32_t from = te__decode_row_at<D>(stage[k / 2], row, lane / 8 % 2);
            uint32_t values[M][4];
            TE_UNROLL for (int m = 0; m < M; m++)
                te__attn_ldmatrix_transposed(values[m], te__decode_chunk(from, (warp * M + m) * 2));
            TE_UNROLL for (int m = 0; m < M; m++) TE_UNROLL for (int n = 0; n < NT; n++)
                te__mma_sync(o[m][n], values[m], of_p[k / 2][n][k % 2 * 2], of_p[k / 2][n][k % 2 * 2 + 1], T);
        }
    }
    /* Adds the keys of a step, of which key `key` is the first: `count` stages, one or two; if there is one, stage[1]
     * is the same stage, whose keys are masked the second time. stop: one more than the split's last key. */
    __device__ __forceinline__ void multiply(const uint32_t (&stage)[2], int count, int key, int stop) {
        const int past = w.keys - w.mask.queries;
        for (int j = 0; j < count; j++) {
            const int from = key + j * KEYS, end = stop < from + KEYS ? stop : from + KEYS;
            if (end == from + KEYS && end <= past) continue;
            clear_rows(stage[j], end - from);
            te__decode_stage_new<HEADS, KV_HEADS, D, F>(a, w, end, 0, stage[j], from);
        }
        store_scores(stage);
        te__decode_consumers_sync<WARPS>();
        store_p(key, stop);
        te__decode_consumers_sync<WARPS>();
        add_pv(stage);
    }
    /* Sets *split to the result of the split, of which this warp has M fragments of O^T. */
    __device__ __forceinline__ void finish(te__decode_result<M, NT> &split) const {
        const int lane = (int)threadIdx.x % 32, first = (int)threadIdx.x / 32 * OF_WARP, t = lane % 4;
        TE_UNROLL for (int i = 0; i < OF_WARP; i++) {
            float all = sum[i];
            TE_UNROLL for (int o = 16; o > 0; o /= 2) all += __shfl_xor_sync(~0u, all, o);
            if (lane == 0) x.max[first + i] = max[i], x.sum[first + i] = all;
        }
        te__decode_consumers_sync<WARPS>();
        TE_UNROLL for (int n = 0; n < NT; n++) {
            TE_UNROLL for (int row = 0; row < 2; row++)
                split.max[n][row] = x.max[n * 8 + 2 * t + row], split.sum[n][row] = x.sum[n * 8 + 2 * t + row];
            TE_UNROLL for (int m = 0; m < M; m++)
                TE_UNROLL for (int e = 0; e < 4; e++) split.o[m][n][e] = o[m][n][e];
        }
        te__decode_consumers_sync<WARPS>(); /* before the next split's maxima and sums are stored */
    }
};
#endif

#endif
