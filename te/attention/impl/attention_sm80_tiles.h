/* attention_sm80_tiles.h -- the building blocks of attention on CUDA, in four parts: fragments and tiles for the tensor
 * cores (sm_80 and up: mma.sync m16n8k16, ldmatrix, cp.async; layouts: PTX ISA, "Matrix fragments for mma.m16n8k16");
 * the options on a tile of scores; the location of a head's rows; and the store of a tile. The kernels for f32 and for
 * sm_90a also use these parts, except the first one.
 *
 * Do this, in each warp, for M * 16 rows of a tile A [., D] and N * 8 rows of a tile B [., D], both in shared memory:
 *     te__attn_product_nt<T, M, N, D, 0>(s, none, a, b);   // s[M][N][4] += A B^T
 *     te__attn_pack_all<T, M, N>(p, s);
 *     te__attn_product_nn<T, M, N / 2, D>(o, p, v);        // o[M][D / 8][4] += P V for V [N * 8, D]
 *
 * A tile has te__attn_columns<D>() columns: D rounded up to a multiple of 16 (the depth of an mma) or, above 256, to a
 * multiple of 32. The columns from D on are filled with zeros in shared memory, and are not stored to global memory.
 * Above 256, two warps compute the same scores, and each of them computes half of the columns of the output, because a
 * thread has too few registers for the accumulators of all of them (te__attn_slice). The rows of a tile are padded by
 * 16 bytes: then a row is an odd number of 16-byte units, so that the 8 rows that an ldmatrix reads are in different
 * banks. With padding, unlike with a swizzle, every address is a register plus a constant.
 *
 * In lane l, s[m][n][e] of an accumulator is the element in row m * 16 + g + e / 2 * 8, where g = l / 4, and in column
 * n * 8 + 2 * t + e % 2, where t = l % 4. Template parameters: T the dtype, D head_dim, V the head size of v, F the
 * options (attention_options.h).
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM80_TILES_H
#define TE_ATTENTION_SM80_TILES_H

#include "../../core/lanes.h"      /* te_amax_atomic_max */
#include "../../core/math.h"      /* te_exp2 */
#include "../../core/impl/ptx_cuda.h"  /* te__mma_sync, te__shared_address */
#include "../attention_options.h" /* te_attention_args, the options, the mask */

/* The largest number of bytes of shared memory that the tiles of a block may take: 163 KB, which compute capabilities
 * 8.0, 8.7, 9.0 and 10.x allow, but 99 KB in code for 8.6, 8.9 and 12.x. The host does not know which of a kernel's
 * versions a device runs. Therefore the shapes of tiles have the limit as a template parameter, and the member `small`
 * is the shape in code for 99 KB (te__attn_configure chooses it). If a program defines TE_SHARED_BYTES, that number is
 * the limit in all its code. */
#ifdef TE_SHARED_BYTES
enum { TE__ATTN_SHARED_SMALL = TE_SHARED_BYTES, TE__ATTN_SHARED = TE_SHARED_BYTES };
#else
#define TE__ARCH_IS_SMALL(arch) ((arch) == 860 || (arch) == 890 || ((arch) >= 1200 && (arch) < 1300))
enum { TE__ATTN_SHARED_SMALL = 99 * 1024 };
#if defined __CUDA_ARCH__ && TE__ARCH_IS_SMALL(__CUDA_ARCH__)
enum { TE__ATTN_SHARED = TE__ATTN_SHARED_SMALL };
#else
enum { TE__ATTN_SHARED = 163 * 1024 };
#endif
#endif
enum { TE__ATTN_PAD = 8 }; /* the number of unused elements at the end of each row of a tile in shared memory */
#define TE__ATTN_LOG2E 1.4426950408889634f
#define TE__ATTN_LN2 0.6931471805599453f

extern __shared__ __align__(128) unsigned char te__attention_shared[];

/* ---- copies and fragments ----------------------------------------------------------------------------------------
 * The functions te__attn_copy* copy 16 or 4 bytes from global to shared memory, asynchronously (cp.async). If the
 * parameter ok is 0, the functions write zeros instead. */
TE_FN void te__attn_copy16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
TE_FN void te__attn_copy16_or_zero(uint32_t to, const void *from, int ok) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(ok ? 16 : 0) : "memory");
}
TE_FN void te__attn_copy4(uint32_t to, const void *from, int ok) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(ok ? 4 : 0) : "memory");
}
TE_FN void te__attn_wait_copies(void) { asm volatile("cp.async.wait_all;" ::: "memory"); }

TE_FN void te__attn_ldmatrix(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
TE_FN void te__attn_ldmatrix_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
/* The number of slices into which the columns of an output of head size D are divided: a warp has the accumulators of
 * one slice. */
template <int D> TE_BOTH constexpr int te__attn_slices(void) { return D > 256 ? 2 : 1; }
/* For a head size D, which is a multiple of 8: te__attn_columns is the number of columns of a tile in shared memory;
 * te__attn_slice is the number of columns of a slice; te__attn_row_bytes is the size in bytes of a row of the tile,
 * with padding. */
template <int D> TE_BOTH constexpr int te__attn_columns(void) {
    constexpr int UNIT = 16 * te__attn_slices<D>();
    return (D + UNIT - 1) / UNIT * UNIT;
}
template <int D> TE_BOTH constexpr int te__attn_slice(void) { return te__attn_columns<D>() / te__attn_slices<D>(); }
template <int D> TE_BOTH constexpr uint32_t te__attn_row_bytes(void) {
    return (uint32_t)(te__attn_columns<D>() + TE__ATTN_PAD) * 2;
}
/* ldmatrix.x4 loads a 16 x 16 square of a tile; each lane passes the address of eight elements of a row. Returns the
 * offset of this lane's address from the first element of the square, in bytes. The offset is for operand A of
 * te__attn_product_nt, and for operand B of te__attn_product_nn. */
template <int D> TE_FN uint32_t te__attn_lane_a(int lane) {
    return (uint32_t)(lane & 15) * te__attn_row_bytes<D>() + (uint32_t)(lane >> 4) * 16;
}
/* The same as te__attn_lane_a, but for operand B of te__attn_product_nt: returns the offset, in bytes, of the address
 * that this lane passes to ldmatrix.x4. */
template <int D> TE_FN uint32_t te__attn_lane_b(int lane) {
    return (uint32_t)((lane & 7) + (lane >> 4) * 8) * te__attn_row_bytes<D>() + (uint32_t)((lane >> 3) & 1) * 16;
}
template <int D> constexpr int te__attn_tile_bytes(int rows) { return rows * (int)te__attn_row_bytes<D>(); }
/* The bytes of shared memory that the kernel for the gradient of a relative bias needs in addition to the tiles. A tile
 * has `rows` by `tile` scores. For each diagonal of a tile, the kernel stores a sum and the index of a bucket, and for
 * each bucket a sum. Each of these numbers takes 4 bytes. */
template <class F> constexpr int te__attn_bucket_bytes(int rows, int tile) {
    return F::BIAS == TE_BIAS_relative ? (2 * (rows + tile - 1) + F::BIAS_BUCKETS) * 4 : 0;
}

/* Starts to copy ROWS rows of D elements to a tile in shared memory. WIDTH: the distance between two rows in `from`, in
 * elements. Rows from `valid` on, and columns from D on, are filled with zeros. */
template <int ROWS, int D, int64_t WIDTH, int THREADS>
TE_FN void te__attn_tile_load(uint32_t tile, const uint16_t *from, int valid) {
    /* CHUNKS: the number of 16-byte chunks of a row; STEP: the number of rows that the block copies at a time */
    constexpr int CHUNKS = te__attn_columns<D>() / 8, STEP = THREADS / CHUNKS;
    constexpr uint32_t MOVE = STEP * te__attn_row_bytes<D>();
    constexpr int IS_PADDED = D != te__attn_columns<D>();
    static_assert(CHUNKS <= THREADS, "te: attention: a block copies at least one row at a time");
    const int row = (int)threadIdx.x / CHUNKS, chunk = (int)threadIdx.x % CHUNKS;
    const int in_head = !IS_PADDED || chunk < D / 8; /* 0 if this chunk lies beyond the head's D columns */
    const uint32_t to = tile + (uint32_t)row * te__attn_row_bytes<D>() + (uint32_t)chunk * 16;
    const uint16_t *p = from + row * WIDTH + chunk * 8;
    if (STEP * CHUNKS < THREADS && row >= STEP) return;
    /* All tiles except the last one have ROWS valid rows; for such a tile every address is a register plus a
     * constant. */
    if (!IS_PADDED && valid >= ROWS) {
        TE_UNROLL for (int i = 0; i < (ROWS + STEP - 1) / STEP; i++)
            if (ROWS % STEP == 0 || row + i * STEP < ROWS) te__attn_copy16(to + i * MOVE, p + i * STEP * WIDTH);
    } else {
        TE_UNROLL for (int i = 0; i < (ROWS + STEP - 1) / STEP; i++)
            if (ROWS % STEP == 0 || row + i * STEP < ROWS) {
                const int ok = row + i * STEP < valid && in_head;
                te__attn_copy16_or_zero(to + i * MOVE, ok ? p + i * STEP * WIDTH : from, ok);
            }
    }
}

/* Loads the A fragments of M * 16 rows of a tile to registers. This is for a tile that is an operand in every step of a
 * loop. */
template <int M, int D>
TE_FN void te__attn_load_fragments(uint32_t (&f)[M][te__attn_columns<D>() / 16][4], uint32_t a) {
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int k = 0; k < te__attn_columns<D>() / 16; k++)
            te__attn_ldmatrix(f[m][k], a + (uint32_t)m * 16 * te__attn_row_bytes<D>() + (uint32_t)k * 32);
}

/* Computes s += A B^T, where A and B are tiles of heads of size D in shared memory. a, b: the addresses that this lane
 * passes to ldmatrix. HELD: 1 if the fragments of A were loaded to registers (`held`); then `a` is not used. */
template <te_dtype T, int M, int N, int D, int HELD>
TE_FN void te__attn_product_nt(float (&s)[M][N][4],
                               const uint32_t (&held)[M][HELD ? te__attn_columns<D>() / 16 : 1][4], uint32_t a,
                               uint32_t b) {
    TE_UNROLL for (int k = 0; k < te__attn_columns<D>() / 16; k++) {
        uint32_t fa[M][4], fb[4];
        TE_UNROLL for (int m = 0; m < M; m++) {
            if (HELD) memcpy(fa[m], held[m][HELD ? k : 0], 16);
            else te__attn_ldmatrix(fa[m], a + (uint32_t)m * 16 * te__attn_row_bytes<D>() + (uint32_t)k * 32);
        }
        TE_UNROLL for (int n = 0; n < N; n += 2) {
            te__attn_ldmatrix(fb, b + (uint32_t)n * 8 * te__attn_row_bytes<D>() + (uint32_t)k * 32);
            TE_UNROLL for (int m = 0; m < M; m++) {
                te__mma_sync(s[m][n], fa[m], fb[0], fb[1], T);
                te__mma_sync(s[m][n + 1], fa[m], fb[2], fb[3], T);
            }
        }
    }
}

/* Computes o += P B, for one slice of the columns of B. P has M * 16 rows and K * 16 columns, and is in registers, as
 * fragments. B has K * 16 rows of heads of size D, and is in shared memory, where b is the address that this lane
 * passes to ldmatrix for the first columns of the slice. LD: the columns of a row of shared memory, of which B has the
 * first D. */
template <te_dtype T, int M, int K, int D, int LD = D>
TE_FN void te__attn_product_nn(float (&o)[M][te__attn_slice<D>() / 8][4], const uint32_t (&p)[M][K][4], uint32_t b) {
    TE_UNROLL for (int k = 0; k < K; k++)
        TE_UNROLL for (int n = 0; n < te__attn_slice<D>() / 8; n += 2) {
            uint32_t fb[4];
            te__attn_ldmatrix_transposed(fb, b + (uint32_t)k * 16 * te__attn_row_bytes<LD>() + (uint32_t)n * 16);
            TE_UNROLL for (int m = 0; m < M; m++) {
                te__mma_sync(o[m][n], p[m][k], fb[0], fb[1], T);
                te__mma_sync(o[m][n + 1], p[m][k], fb[2], fb[3], T);
            }
        }
}
/* Initialises the accumulators s of a tile with one value for each row: start[m][h] in row 16 * m + g + 8 * h, where
 * g = lane / 4. */
template <int M, int N> TE_FN void te__attn_init_rows(float (&s)[M][N][4], const float (&start)[M][2]) {
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int n = 0; n < N; n++)
            TE_UNROLL for (int e = 0; e < 4; e++) s[m][n][e] = start[m][e / 2];
}

/* Rounds accumulators to the dtype T, and returns them as the A fragments of a following product. No element moves to
 * another lane, because accumulators and A fragments have the same layout (FlashAttention-2, section 3.3). */
template <te_dtype T, int M, int N>
TE_FN void te__attn_pack_all(uint32_t (&p)[M][N / 2][4], const float (&s)[M][N][4]) {
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int k = 0; k < N / 2; k++) {
            p[m][k][0] = te_pair_of_floats(s[m][2 * k][0], s[m][2 * k][1], T);
            p[m][k][1] = te_pair_of_floats(s[m][2 * k][2], s[m][2 * k][3], T);
            p[m][k][2] = te_pair_of_floats(s[m][2 * k + 1][0], s[m][2 * k + 1][1], T);
            p[m][k][3] = te_pair_of_floats(s[m][2 * k + 1][2], s[m][2 * k + 1][3], T);
        }
}

/* ---- options on a tile of scores --------------------------------------------------------------------------------- */

/* Returns the unit of scores. A score of the kernels times this unit is a logit, the argument of softmax. Without
 * softcap, a score is q k^T and the unit is `scale`; with softcap, a score is a tanh and the unit is softcap. */
template <class F> TE_FN float te__attn_score_unit(float scale) { return F::SOFTCAP > 0 ? F::SOFTCAP : scale; }
/* Applies softcap: returns tanh(scale * s / softcap), with an error of 2e-7. The hardware's tanh is not used: its
 * relative error of 2^-11 would change a probability by 1% at a softcap of 50, three times the rounding error of
 * bf16. */
template <class F> TE_FN float te__attn_softcapped(float s, float scale) {
    if constexpr (!(F::SOFTCAP > 0)) return s;
    else return 1.0f - 2.0f * te_reciprocal(1.0f + te_exp2(s * (scale * (2 * TE__ATTN_LOG2E / F::SOFTCAP))));
}
/* Returns the derivative of tanh at the point where tanh has the value t; 0 if the score is masked (t = -inf). Without
 * softcap, returns 1. */
template <class F> TE_FN float te__attn_softcap_grad(float t) {
    return F::SOFTCAP > 0 ? fmaxf(1.0f - t * t, 0.0f) : 1.0f;
}
template <class F, int M, int N> TE_FN void te__attn_apply_softcap(float (&s)[M][N][4], float scale) {
    if constexpr (F::SOFTCAP > 0)
        TE_UNROLL for (int m = 0; m < M; m++)
            TE_UNROLL for (int n = 0; n < N; n++)
                TE_UNROLL for (int e = 0; e < 4; e++) s[m][n][e] = te__attn_softcapped<F>(s[m][n][e], scale);
}

/* The ALiBi bias of a tile of scores, in the unit of scores (te__attn_score_unit). slope: the slope of the head; at:
 * the slope times the distance (query - key) of the tile's element (0, 0). */
struct te__attn_alibi_bias { float slope, at; };
template <int HEADS, class F>
TE_FN te__attn_alibi_bias te__attn_alibi_at(te_attention_shard whole, int head, float scale, int distance) {
    te__attn_alibi_bias b = {0, 0};
    if constexpr (F::ALIBI) {
        b.slope = te__attn_alibi_slope_of(whole, head, HEADS) / te__attn_score_unit<F>(scale);
        b.at = b.slope * (float)distance;
    }
    return b;
}
/* Subtracts the ALiBi bias from score s. b.at is the bias at the tile's element (0, 0); further: how much larger the
 * distance (query - key) of s is than the distance at that element. */
template <class F> TE_FN float te__attn_with_alibi(float s, te__attn_alibi_bias b, int further) {
    return F::ALIBI ? s - fabsf(fmaf(b.slope, (float)further, b.at)) : s;
}
/* Subtracts the ALiBi bias from all of s[M][N][4], a tile of queries by keys. */
template <class F, int M, int N> TE_FN void te__attn_add_alibi(float (&s)[M][N][4], te__attn_alibi_bias b) {
    if constexpr (F::ALIBI)
        TE_UNROLL for (int m = 0; m < M; m++)
            TE_UNROLL for (int n = 0; n < N; n++)
                TE_UNROLL for (int e = 0; e < 4; e++)
                    s[m][n][e] = te__attn_with_alibi<F>(s[m][n][e], b, m * 16 + e / 2 * 8 - n * 8 - e % 2);
}

/* The score bias (attention_options.h) of a tile of scores of one head. Memory traffic of a bias table: for the first
 * sequence, the kernel reads 2 or 4 bytes from global memory for each pair of a query and a key that is not masked; for
 * later sequences, it reads the table from the L2. A relative bias is read from the L1. */
struct te__attn_score_bias {
    /* the address of the head's bias table; for a relative bias: the address of the head's bias for distance 0 */
    const void *at;
    /* The query and the key of the tile's element (0, 0). For a relative bias, `query` is the position of the query
     * among the keys, i.e. te__attn_mask.shift is added, so that query - key is the distance. */
    int query, key;
    float inverse;  /* 1 / te__attn_score_unit, which converts the bias to the unit of scores */
};
template <te_dtype T, class F>
TE_FN te__attn_score_bias te__attn_score_bias_at(const te_attention_args *a, int head, int query, int key, int shift) {
    te__attn_score_bias b = {nullptr, query, key, 0};
    if constexpr (F::BIAS != TE_BIAS_none) b.inverse = 1.0f / te__attn_score_unit<F>(a->scale);
    if constexpr (F::BIAS == TE_BIAS_relative) {
        b.at = a->bias_by_distance + head * (2 * F::BIAS_MAX_DISTANCE + 1) + F::BIAS_MAX_DISTANCE, b.query += shift;
    } else if constexpr (F::BIAS != TE_BIAS_none) {
        const int64_t first = F::BIAS == TE_BIAS_heads ? (int64_t)head * F::BIAS_QUERIES * F::BIAS_KEYS : 0;
        b.at = (const unsigned char *)a->bias + first * (int64_t)te_dtype_bytes(T);
    }
    return b;
}
/* Returns score s plus its score bias. queries, keys: the row and the column of s in the tile. If the pair of query and
 * key lies outside the table, it is past the end of the sequence, and no bias is added. */
template <te_dtype T, class F>
TE_FN float te__attn_with_score_bias(float s, te__attn_score_bias b, int queries, int keys) {
    const int query = b.query + queries, key = b.key + keys;
    if constexpr (F::BIAS == TE_BIAS_none) return s;
    else if constexpr (F::BIAS == TE_BIAS_relative) {
        const int distance = max(-F::BIAS_MAX_DISTANCE, min(key - query, F::BIAS_MAX_DISTANCE));
        return fmaf(((const float *)b.at)[distance], b.inverse, s);
    } else {
        if (query >= F::BIAS_QUERIES || key >= F::BIAS_KEYS) return s;
        return fmaf(te_load(b.at, (int64_t)query * F::BIAS_KEYS + key, T), b.inverse, s);
    }
}
/* Adds the score bias to all of s[M][N][4], a tile of queries by keys. If the rows of the table have an even length,
 * the biases of two keys are loaded at a time. */
template <te_dtype T, class F, int M, int N>
TE_FN void te__attn_add_score_bias(float (&s)[M][N][4], te__attn_score_bias b) {
    constexpr bool TABLE = F::BIAS == TE_BIAS_heads || F::BIAS == TE_BIAS_shared;
    if constexpr (TABLE && T != TE_f32 && F::BIAS_KEYS % 2 == 0)
        TE_UNROLL for (int m = 0; m < M; m++)
            TE_UNROLL for (int n = 0; n < N; n++)
                TE_UNROLL for (int h = 0; h < 2; h++) {
                    /* even, because b.key is even */
                    const int query = b.query + m * 16 + h * 8, key = b.key + n * 8;
                    if (query >= F::BIAS_QUERIES || key >= F::BIAS_KEYS) continue;
                    const int64_t at = (int64_t)query * F::BIAS_KEYS + key;
                    const float2 x = te_floats_of_pair(*(const uint32_t *)((const uint16_t *)b.at + at), T);
                    s[m][n][2 * h] = fmaf(x.x, b.inverse, s[m][n][2 * h]);
                    s[m][n][2 * h + 1] = fmaf(x.y, b.inverse, s[m][n][2 * h + 1]);
                }
    else if constexpr (F::BIAS != TE_BIAS_none)
        TE_UNROLL for (int m = 0; m < M; m++)
            TE_UNROLL for (int n = 0; n < N; n++)
                TE_UNROLL for (int e = 0; e < 4; e++)
                    s[m][n][e] = te__attn_with_score_bias<T, F>(s[m][n][e], b, m * 16 + e / 2 * 8, n * 8 + e % 2);
}

/* Returns the index (te__attn_draw_row) that selects a query's random numbers for dropout. head: the index of the head
 * in this call: sequence * heads + (index of the head in its sequence). */
template <int HEADS> TE_FN uint32_t te__attn_draw_row_of(const te_attention_args *a, int head, int query) {
    return te__attn_draw_row(te__attn_global_head(a->whole, head, HEADS), query, a->seq);
}
/* Calls f(m, n, e, drops) for each element of s[M][N][4], a tile of queries by keys; `drops` is 1 if dropout drops the
 * element. query, key: the query and the key of s[0][0][0]; of `query`, only the value modulo 8 is used, because `row`
 * is the index of the block of 16 queries (te__attn_draw_row_of). */
template <class F, int M, int N, class G>
TE_FN void te__attn_apply_dropout(const te_attention_args *a, uint32_t row, int query, int key, G f) {
    const te_rng rng = *a->rng;
    TE_UNROLL for (int m = 0; m < M; m++) {
        uint32_t word[2][4];
        TE_UNROLL for (int n = 0; n < N; n++) {
            if (n % 4 == 0)
                TE_UNROLL for (int i = 0; i < 2; i++)
                    te__attn_draw(word[i], rng, a->id, row + m, query, key + n * 8 + i);
            /* The index of the random word for keys key + 8 * n to key + 8 * n + 7. One call of Philox yields four
             * words, for 32 keys. A tile of 16 keys uses two of these words; the tile's first key decides which two. */
            const int w = N < 4 ? key / 8 % 4 + n : n % 4;
            TE_UNROLL for (int e = 0; e < 4; e++) {
                const uint32_t *u = word[e % 2];
                f(m, n, e, te__attn_drops(w == 0 ? u[0] : w == 1 ? u[1] : w == 2 ? u[2] : u[3], e / 2, F::DROP));
            }
        }
    }
}

/* Returns the attention sink of a head, in the unit of scores; -inf without sinks. The online softmax begins with this
 * value as the maximum of each row, and with 1 as the sum of each row (without sinks: 0). */
template <te_dtype T, class F> TE_FN float te__attn_sink(const te_attention_args *a, int head) {
    return F::SINKS ? te_load(a->sinks, head, T) / te__attn_score_unit<F>(a->scale) : -INFINITY;
}

/* Sets masked scores to -inf in a tile of queries by keys. query, key: the query and the key of s[0][0][0]. */
template <int M, int N> TE_FN void te__attn_apply_mask(float (&s)[M][N][4], te__attn_mask mask, int query, int key) {
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int n = 0; n < N; n++)
            TE_UNROLL for (int e = 0; e < 4; e++) {
                const int q = query + m * 16 + e / 2 * 8, k = key + n * 8 + e % 2;
                if (!te__attn_sees(mask, q, k)) s[m][n][e] = -INFINITY;
            }
}
/* In a tile of keys by queries, sets to -inf all masked scores and all scores of queries past the end of the sequence.
 * key, query: the key and the query of s[0][0][0]. */
template <int M, int N>
TE_FN void te__attn_apply_mask_transposed(float (&s)[M][N][4], te__attn_mask mask, int key, int query) {
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int n = 0; n < N; n++)
            TE_UNROLL for (int e = 0; e < 4; e++) {
                const int k = key + m * 16 + e / 2 * 8, q = query + n * 8 + e % 2;
                if (q >= mask.queries || !te__attn_seen(mask, k, q)) s[m][n][e] = -INFINITY;
            }
}

/* ---- the location of a head's rows ------------------------------------------------------------------------------- */

/* One head of one sequence, and where its rows are. Offsets are in elements, from the start of each tensor. */
struct te__attn_head {
    int batch, head, kv_head;
    int seq, keys;          /* the number of queries and the number of keys of the sequence */
    /* width: the distance between two rows of the tensors qkv and dqkv; q: the offset, in these tensors, of the head's
     * first query */
    int64_t width, q;
    /* kv_width: the distance between two rows of the tensors of keys and values (te__attn_kv) and of their gradients
     * (te__attn_dkv); k, v: the offsets, in these tensors, of the head's first key and first value */
    int64_t kv_width, k, v;
    /* out_width: the distance between two rows of the tensors of the output and of its gradient; out: the offset, in
     * these tensors, of the head's output for its first query */
    int64_t out_width, out;
    /* Offsets in lse and delta, which have one number for each head and query. row: the offset of the number for the
     * head's first query; rows: the distance from there to the number for the next head's first query. */
    int64_t row, rows;
    /* With a cache: the indices of the pages of the sequence. The members k and v are then offsets within a page. */
    const int32_t *pages;
};
/* The row lengths of the tensors of an attention, in elements. */
template <int HEADS, int KV_HEADS, int D, class F> struct te__attn_widths {
    static constexpr int V = te__attn_value_dim<D, F>(); /* the head size of v */
    static constexpr int64_t OUT = HEADS * V;            /* the row length of out and dout */
    static constexpr int64_t Q = HEADS * D, ROW_KV = KV_HEADS * (D + te__attn_stored_value_dim<D, F>());
    static constexpr int64_t QKV = F::CROSS ? Q : Q + ROW_KV, KV = F::CROSS ? ROW_KV : QKV;
};
/* Returns the first column, within a row of the tensor of te__attn_kv, of a head's keys (value 0) or values (value 1).
 * In self-attention the columns of the queries come first. */
template <int HEADS, int KV_HEADS, int D, class F> TE_FN int te__attn_kv_column(int value, int kv_head) {
    constexpr int V = te__attn_value_dim<D, F>(), BEFORE = F::CROSS ? 0 : HEADS;
    if (F::VALUES_IN_KEYS) return (BEFORE + kv_head) * D;
    if (V == D) return (BEFORE + (value ? KV_HEADS : 0) + kv_head) * D;
    return value ? (BEFORE + KV_HEADS) * D + kv_head * V : (BEFORE + kv_head) * D;
}
/* Returns the tensor that contains the keys and values: kv in cross-attention, else qkv. */
template <class F> TE_FN const void *te__attn_kv(const te_attention_args *a) { return F::CROSS ? a->kv : a->qkv; }
/* Returns the tensor that receives the gradients of keys and values: dkv in cross-attention, else dqkv. */
template <class F> TE_FN void *te__attn_dkv(const te_attention_args *a) { return F::CROSS ? a->dkv : a->dqkv; }
template <int HEADS, int KV_HEADS, int D, class F>
TE_FN te__attn_head te__attn_head_of(const te_attention_args *a, int batch, int head) {
    te__attn_head h;
    const int seq = a->seq;
    int64_t first = (int64_t)batch * seq;
    h.seq = h.rows = seq, h.row = ((int64_t)batch * HEADS + head) * seq;
    if constexpr (F::VARLEN) {
        const te_sequences s = te__attn_sequences(a);
        const te_sequence rows = te_sequence_rows(&s, batch);
        first = rows.first, h.seq = rows.count, h.rows = s.rows, h.row = head * h.rows + first;
    }
    h.batch = batch, h.head = head, h.kv_head = head / (HEADS / KV_HEADS);
    constexpr int V = te__attn_value_dim<D, F>();
    h.width = te__attn_widths<HEADS, KV_HEADS, D, F>::QKV, h.out_width = HEADS * V;
    h.q = first * h.width + head * D;
    h.keys = h.seq, h.kv_width = h.width, h.k = first * h.width + (HEADS + h.kv_head) * D;
    if constexpr (F::CROSS) {
        h.keys = a->kv_seq, h.kv_width = te__attn_widths<HEADS, KV_HEADS, D, F>::KV;
        h.k = (int64_t)batch * h.keys * h.kv_width + h.kv_head * D;
    }
    h.v = h.k + KV_HEADS * D + h.kv_head * (V - D);
    if constexpr (F::CACHED) {
        h.keys = a->cache.past[batch] < 0 ? 0 : a->cache.past[batch] + h.seq;
        h.pages = te__cache_pages(&a->cache, batch);
        h.k = te__cache_head_rows(&a->cache, 0, h.kv_head, KV_HEADS, D, V, F::CACHE_FORMAT);
        h.v = te__cache_head_rows(&a->cache, 1, h.kv_head, KV_HEADS, D, V, F::CACHE_FORMAT);
    }
    if constexpr (F::VALUES_IN_KEYS) h.v = h.k;
    h.out = first * h.out_width + head * V;
    return h;
}
template <class F> TE_FN te__attn_mask te__attn_mask_at(const te__attn_head &h) {
    if constexpr (F::SHIFTED) return te__attn_mask_between(h.seq, h.keys, F::LEFT, F::RIGHT);
    else return te__attn_mask_of(h.seq, F::LEFT, F::RIGHT);
}
/* Loads a tile of ROWS keys or values from a cache of 8 bits, multiplies the numbers by their scales, rounds them to T
 * and stores them in shared memory. at: h.k or h.v; key: the index of the first row. The numbers pass through
 * registers, so cp.async cannot be used; to have several loads in flight all the same, a thread issues the loads of
 * BATCH chunks before it uses the first one. */
template <te_dtype T, int FORMAT, int ROWS, int D, int THREADS>
TE_FN void te__attn_keys_dequantize(uint32_t tile, const te_attention_args *a, const te__attn_head &h, int64_t at,
                                    int key) {
    constexpr int CHUNKS = te__attn_columns<D>() / 8, COUNT = (ROWS * CHUNKS + THREADS - 1) / THREADS;
    constexpr int BATCH = COUNT < 4 ? COUNT : 4;
    for (int first = (int)threadIdx.x; first < ROWS * CHUNKS; first += BATCH * THREADS) {
        uint2 numbers[BATCH];
        float scale[BATCH];
        TE_UNROLL for (int j = 0; j < BATCH; j++) {
            const int i = first + j * THREADS, row = i / CHUNKS, chunk = i % CHUNKS;
            numbers[j] = make_uint2(0, 0), scale[j] = 0;
            if (i >= ROWS * CHUNKS || key + row >= h.keys || chunk >= D / 8) continue;
            const int64_t from = te__cache_row(&a->cache, h.pages, at, key + row, D, FORMAT);
            const int swizzle = te__cache_swizzle(row, D, T, FORMAT) * 16;
            numbers[j] = *(const uint2 *)((const uint8_t *)a->cache.pages + from + (chunk * 8 ^ swizzle));
            scale[j] = *te__cache_scale(&a->cache, from, key + row, D);
        }
        TE_UNROLL for (int j = 0; j < BATCH; j++) {
            const int i = first + j * THREADS, row = i / CHUNKS, chunk = i % CHUNKS;
            const uint32_t packed[2] = {numbers[j].x, numbers[j].y};
            float v[8];
            if (i >= ROWS * CHUNKS) break;
            te__cache_dequantize8(v, packed, scale[j], FORMAT);
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(
                             tile + (uint32_t)row * te__attn_row_bytes<D>() + (uint32_t)chunk * 16),
                         "r"(te_pair_of_floats(v[0], v[1], T)), "r"(te_pair_of_floats(v[2], v[3], T)),
                         "r"(te_pair_of_floats(v[4], v[5], T)), "r"(te_pair_of_floats(v[6], v[7], T))
                         : "memory");
        }
    }
}
/* Starts to copy a tile of ROWS keys (value 0) or values (value 1), from token `key` on, to shared memory: from qkv or
 * kv, or from the pages of a cache. Rows past the last key are filled with zeros. */
template <te_dtype T, class F, int ROWS, int D, int64_t WIDTH, int THREADS>
TE_FN void te__attn_keys_load(uint32_t tile, const te_attention_args *a, const te__attn_head &h, int value, int key) {
    const int64_t at = value ? h.v : h.k;
    if constexpr (!F::CACHED) {
        const uint16_t *kv = (const uint16_t *)te__attn_kv<F>(a);
        te__attn_tile_load<ROWS, D, WIDTH, THREADS>(tile, kv + at + key * WIDTH, h.keys - key);
    } else if constexpr (TE__CACHE_HAS_SCALES(F::CACHE_FORMAT)) {
        te__attn_keys_dequantize<T, F::CACHE_FORMAT, ROWS, D, THREADS>(tile, a, h, at, key);
    } else {
        constexpr int CHUNKS = te__attn_columns<D>() / 8;
        for (int i = (int)threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
            const int row = i / CHUNKS, chunk = i % CHUNKS, ok = key + row < h.keys && chunk < D / 8;
            const int64_t from = ok ? te__cache_row(&a->cache, h.pages, at, key + row, D, F::CACHE_FORMAT) : 0;
            const int swizzle = te__cache_swizzle(row, D, T, F::CACHE_FORMAT);
            te__attn_copy16_or_zero(tile + (uint32_t)row * te__attn_row_bytes<D>() + (uint32_t)chunk * 16,
                                    (const uint16_t *)a->cache.pages + from + (ok ? (chunk ^ swizzle) * 8 : 0), ok);
        }
    }
}
/* Called after the loop over tiles, which had `steps` steps. If there was no step, because no query sees a key, the
 * copies of the first tile may still be in flight. The function then waits for them, because the memory of the tile is
 * reused. */
template <class F> TE_FN void te__attn_drain_copies(int steps) {
    if constexpr (F::SHIFTED)
        if (steps <= 0) te__attn_wait_copies(), __syncthreads();
}

/* Returns the number that softmax subtracts from the scores of a row: row_max, the largest score so far, or 0 while the
 * row has seen no key, because -inf - -inf would be NaN. Such rows exist only with a bound on the left, with fewer keys
 * than queries, or with a bias of -inf. */
template <class F> TE_FN float te__attn_softmax_offset(float row_max) {
    return (F::LEFT >= 0 || F::SHIFTED || F::BIAS) && row_max == -INFINITY ? 0.0f : row_max;
}
/* Returns whether the row sees no key at all, which is possible only with the options tested below. sum: the sum of the
 * row's exponentials over all tiles. The output of such a row is 0, and its lse is infinity, so that all its
 * probabilities are 0 in backward. */
template <class F> TE_FN int te__attn_sees_no_key(float sum) {
    return (F::SHIFTED || F::BIAS) && !(sum > 0);
}

/* Returns whether the tile has a pair of a query and a key that is not masked. The tile has `rows` queries from q0 on
 * and `keys` keys from k0 on. */
template <class F> TE_FN int te__attn_tile_seen(te__attn_mask m, int q0, int rows, int k0, int keys) {
    if (q0 >= m.queries || k0 >= m.keys) return 0;
    return !te__attn_has_mask(m) || te__attn_intersects(te__attn_keys_of(m, q0, rows), k0, keys);
}

/* ---- stores, the option fp8_output -------------------------------------------------------------------------------
 * Without fp8_output, out_scale and amax are constants (null), so that the compiler removes the code that uses them. If
 * they were null only at run time, there would be a branch where O or a gradient is stored. All registers are in use at
 * that point, and with such a branch the kernels as a whole were 1 to 4% slower. */

/* Returns p->out_scale if the kernel has the option fp8_output, else null. p: te_attention_args, or another struct with
 * the member out_scale. */
template <class F, class P> TE_FN const float *te__attn_out_scale(const P *p) {
    return F::FP8_OUTPUT ? p->out_scale : nullptr;
}
/* Returns p->amax if the kernel has the option fp8_output, else null. p: te_attention_args, or another struct with the
 * member amax. */
template <class F, class P> TE_FN float *te__attn_amax_output(const P *p) { return F::FP8_OUTPUT ? p->amax : nullptr; }
/* Returns the address that receives the amax of the gradients of keys and values: p->amax if the kernel has the option
 * fp8_output, else null. In cross-attention the address is null, because only dqkv has an amax, and these gradients are
 * not part of dqkv. */
template <class F, class P> TE_FN float *te__attn_dkv_amax_output(const P *p) {
    return F::CROSS ? nullptr : te__attn_amax_output<F>(p);
}

/* Returns the address of element i of the output, which is in e4m3 if `scale` is not null, else in a dtype of 16
 * bits. */
TE_FN void *te__attn_out_at(void *out, int64_t i, const float *scale) {
    return scale ? (void *)((uint8_t *)out + i) : (void *)((uint16_t *)out + i);
}
/* Multiplies eight numbers of dtype T by *scale, and converts them to e4m3. */
template <te_dtype T> TE_FN uint2 te__attn_to_e4m3(uint4 eight, const float *scale) {
    const te_vec8 e = {{eight.x, eight.y, eight.z, eight.w}};
    float v[8];
    te_vec8_floats(v, &e, T);
    TE_UNROLL for (int k = 0; k < 8; k++) v[k] = te_fp8_scaled(v[k], *scale);
    return make_uint2(te__fp8_word(v, 1), te__fp8_word(v + 4, 1));
}
/* Updates *largest with the magnitudes of eight stored numbers. *largest holds the largest magnitudes so far as the
 * bits of two 16-bit numbers: one for elements with an even index and one for those with an odd index. */
TE_FN void te__attn_track_amax(uint32_t *largest, uint4 eight) {
    const uint32_t w[4] = {eight.x, eight.y, eight.z, eight.w};
    TE_UNROLL for (int i = 0; i < 4; i++) *largest = te__max_u16x2(*largest, w[i] & 0x7fff7fffu);
}
/* Raises *amax to the largest magnitude that any lane of the warp has tracked in `largest`, unless *amax is higher
 * already. Called by all lanes of a warp. */
template <te_dtype T> TE_FN void te__attn_raise_amax(float *amax, uint32_t largest) {
    int group;
    if (amax) te_amax_atomic_max(amax, te_amax_bits_of_16x2(largest, T), te_lanes_here(32, &group));
}

/* Where and how a warp stores its M * 16 rows of an output. */
struct te__attn_destination {
    void *to;
    int64_t width;      /* the distance from one row to the next, in elements */
    /* how many of the warp's rows lie in the sequence; only these first `valid` rows are stored */
    int valid;
    float *sum;         /* if not null, receives the sum over the warp's rows for each column */
    /* If scale is null, the numbers are stored in T; otherwise they are multiplied by *scale and stored in e4m3. */
    const float *scale;
    /* If amax is not null, *amax becomes the maximum of itself and the largest magnitude of the stored rows, before the
     * multiplication by *scale. */
    float *amax;
};
/* Multiplies each row of o by its element of `factor` and stores it. o holds one slice of the D columns of each row.
 * The numbers pass through `tile`, shared memory of this warp, so that each lane can write 16 bytes at a time to global
 * memory. slice: the index of the slice; 0 if there is only one. */
template <te_dtype T, int M, int D>
TE_FN void te__attn_rows_store(te__attn_destination d, const float (&o)[M][te__attn_slice<D>() / 8][4],
                               const float (&factor)[M][2], unsigned char *tile, int slice) {
    constexpr int SLICE = te__attn_slice<D>(), SLICES = te__attn_slices<D>(), COLUMNS = SLICES == 1 ? D : SLICE;
    constexpr int ROW = (int)te__attn_row_bytes<SLICE>();
    /* first: the first column of the slice; columns: the number of columns of the slice, which may be less than SLICE
     * in the last slice */
    const int first = SLICES == 1 ? 0 : slice * SLICE, columns = SLICES == 1 || slice == 0 ? COLUMNS : D - SLICE;
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    __syncwarp();
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int n = 0; n < SLICE / 8; n++)
            TE_UNROLL for (int h = 0; h < 2; h++)
                *(uint32_t *)(tile + (m * 16 + g + h * 8) * ROW + (n * 8 + t * 2) * 2) =
                    te_pair_of_floats(o[m][n][2 * h] * factor[m][h], o[m][n][2 * h + 1] * factor[m][h], T);
    __syncwarp();
    for (int col = 2 * lane; d.sum && d.valid > 0 && col < columns; col += 64) {
        float2 s = make_float2(0, 0);
        for (int row = 0; row < M * 16 && row < d.valid; row++) {
            const float2 x = te_floats_of_pair(*(const uint32_t *)(tile + row * ROW + col * 2), T);
            s.x += x.x, s.y += x.y;
        }
        *(float2 *)(d.sum + first + col) = s;
    }
    uint32_t largest = 0;
    for (int c = lane; c < M * 16 * (COLUMNS / 8); c += 32) {
        const int row = c / (COLUMNS / 8), chunk = c % (COLUMNS / 8);
        if (chunk * 8 >= columns) continue;
        const uint4 eight = *(const uint4 *)(tile + row * ROW + chunk * 16);
        void *const at = te__attn_out_at(d.to, row * d.width + first + chunk * 8, d.scale);
        if (row < d.valid && d.scale) *(uint2 *)at = te__attn_to_e4m3<T>(eight, d.scale);
        else if (row < d.valid) *(uint4 *)at = eight;
        if (row < d.valid) te__attn_track_amax(&largest, eight);
    }
    te__attn_raise_amax<T>(d.amax, largest);
}

#endif
