/* attention_sm90_decode_latent.h -- the parts of decoding (attention_sm90_decode.h) that differ with the option
 * values_in_keys: the value of a token is the first columns of its key. Multi-head latent attention in its absorbed
 * form (DeepSeek-AI 2024) has keys of 576 columns, values of 512, and one KV head for 16 to 128 query heads.
 *
 * A stage has TE__DECODE_LATENT_KEYS keys, which are copied once and read as keys and as values. The eight consumer
 * warps divide the columns of O among them, not the keys as in attention_sm90_decode.h, because a warp does not have
 * enough registers for 512 columns of O. A step processes two stages:
 *
 *     S^T = K Q^T     A warp multiplies 16 keys of each stage by the tile of queries, over a quarter of the columns (16
 *                     of each 64). It holds these columns of Q in registers. Each score is the sum of the partial sums
 *                     of four warps.
 *     softmax         A warp has two rows of the tile (one row, if the tile has eight rows), and a lane has two keys.
 *                     The warp adds up the partial sums, and updates the maximum and the sum of its rows.
 *     O^T += V^T P^T  A warp computes an eighth of the columns of O, over all keys of the step.
 *
 * The warps exchange partial sums, P, and the factors by which O is rescaled through shared memory. A step has two
 * barriers of the consumers. As in the other decoding kernels, the tile of queries is operand B of mma.sync.
 *
 * Lower bound of the run time: one read of the keys, 1152 bytes for each token. For 16 heads these are 30 flops for
 * each byte, far below the rate of the tensor cores. A tile has at most 16 rows, so with more heads each tile reads all
 * keys. Measurements: docs/notes/attention_decode.md.
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM90_DECODE_LATENT_H
#define TE_ATTENTION_SM90_DECODE_LATENT_H

#include "attention_sm80_tiles.h"         /* te__attn_ldmatrix, te__mma_sync */
#include "attention_sm90_decode_result.h" /* te__decode_result, te__decode_score, te__decode_exchange */
#include "attention_sm90_decode_work.h"   /* te__decode_group, te__decode_stage_new */

enum {
    TE__DECODE_LATENT_KEYS = 32,  /* the number of keys of a stage, which is also the number of lanes of a warp */
    TE__DECODE_LATENT_PARTS = 4,  /* the number of parts into which the columns of a key are divided among warps */
    TE__DECODE_LATENT_P_ROW = 144, /* the bytes of a row of P in shared memory, padded against bank conflicts */
    /* the largest head sizes of keys and values of these kernels */
    TE__DECODE_LATENT_MAX_DIM = 640,
    TE__DECODE_LATENT_MAX_VALUE = 512
};
/* Returns whether these kernels support keys of d elements and values of dv elements. */
TE_BOTH constexpr int te__decode_latent_fits(int d, int dv) {
    return d % 64 == 0 && dv % (16 * TE__DECODE_LATENT_WARPS) == 0 && d <= TE__DECODE_LATENT_MAX_DIM &&
           dv <= TE__DECODE_LATENT_MAX_VALUE;
}
/* Returns the number of floats of the partial sums of the scores: an array [parts, keys of two stages, rows of the
 * tile], in which the rows are padded by two floats. */
TE_BOTH constexpr int te__decode_latent_score_floats(int rows) {
    return TE__DECODE_LATENT_PARTS * 2 * TE__DECODE_LATENT_KEYS * (rows + 2);
}
/* Returns the number of bytes of shared memory for the partial sums of the scores, for P, and for one factor for each
 * row of the tile. */
TE_BOTH constexpr int te__decode_latent_bytes(int rows) {
    return te__decode_latent_score_floats(rows) * 4 + rows * TE__DECODE_LATENT_P_ROW + rows * 4;
}

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* The part of a tile of queries that this warp multiplies, as B fragments of Q^T. held[j][n] has rows 8 n to 8 n + 7 of
 * the tile, and the quarter number part() of columns 64 j to 64 j + 63. Rows past the end of the tile are zeros. */
template <int D, int NT>
struct te__decode_latent_q {
    uint32_t held[D / 64][NT][2];
    /* Returns which quarter of each 64 columns belongs to this warp. */
    static __device__ __forceinline__ int part(void) { return (int)threadIdx.x / 64; }
    /* Loads the fragments from the queries in shared memory, at address `from`. Called by all consumers. of_tile: the
     * number of rows of the tile. */
    __device__ __forceinline__ void load(uint32_t from, int of_tile) {
        const int lane = (int)threadIdx.x % 32;
        TE_UNROLL for (int j = 0; j < D / 64; j += 2) TE_UNROLL for (int n = 0; n < NT; n++) {
            uint32_t b[4]; /* fragments held[j][n] and, if it exists, held[j + 1][n] */
            const int segment = j + 1 < D / 64 ? j + lane / 16 : j, row = n * 8 + lane % 8;
            te__attn_ldmatrix(b, from + (uint32_t)(row * D * 2 + segment * 128 + part() * 32 + lane / 8 % 2 * 16));
            const bool exists = n * 8 + lane / 4 < of_tile;
            TE_UNROLL for (int e = 0; e < 4; e++)
                if (j + e / 2 < D / 64) held[j + e / 2][n][e % 2] = exists ? b[e] : 0;
        }
    }
};

/* The state of this thread while it computes one split of a tile of queries. */
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
    /* max[i], sum[i]: for row OF_WARP warp + i of the tile, the maximum of the scores, and the sum of the exponentials
     * over the keys of this lane */
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
    /* Writes zeros to the rows of a stage from row `count` on. The rows may hold NaN of earlier data. P is 0 for these
     * keys, but 0 times NaN would be NaN. The caller must call a barrier of the consumers afterwards. */
    __device__ __forceinline__ void clear_rows(uint32_t stage, int count) const {
        for (int j = (int)threadIdx.x; j < (KEYS - count) * (D / 8); j += WARPS * 32)
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(stage + (uint32_t)(count * D * 2 + j * 16)),
                         "r"(0)
                         : "memory");
    }
    /* Computes this warp's partial sums of the scores, for 16 keys of each of two stages, and stores them. */
    __device__ __forceinline__ void store_scores(const uint32_t (&stage)[2]) const {
        const int lane = (int)threadIdx.x % 32, tile = (int)threadIdx.x / 32 % 2, g = lane / 4, t = lane % 4;
        uint32_t from[2];
        float s[2][NT][4] = {};
        TE_UNROLL for (int j = 0; j < 2; j++)
            from[j] = te__decode_row_at<D>(stage[j], tile * 16 + lane % 16, q.part() * 2 + lane / 16);
        /* This order of loads and mma lets the loads of four fragments be in flight at the same time. */
        TE_UNROLL for (int k = 0; k < D / 64; k += 2) {
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
    /* One step of the online softmax, for this warp's rows: stores P, and the factors by which O is rescaled. key: the
     * first key of the step; stop: one more than the split's last key. */
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
    /* Rescales this warp's columns of O by the factors that store_p has stored, and computes O^T += V^T P^T for these
     * columns. */
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
    /* Processes one step: the keys of `count` stages, one or two, of which `key` is the first. If count is 1, stage[1]
     * must be equal to stage[0]; its keys are then processed a second time, but masked, because their numbers are past
     * `stop`. stop: one more than the split's last key. */
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
    /* Sets *split to this warp's part of the result of the split: M fragments of O^T, and the maximum and the sum of
     * each row. */
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
        /* The next split overwrites the maxima and sums, so wait until all warps have read them. */
        te__decode_consumers_sync<WARPS>();
    }
};
#endif

#endif
