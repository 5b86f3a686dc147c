/* sample_row.h -- one row of logits, as the op sample (te/ops/sample.h) reads it: the thread blocks that work on the
 * row, the keys of its tokens, their masses, the cut that says which tokens the filters keep, and the two passes that
 * all rows need.
 *
 * Do this:
 *     te__sample_row r = te__sample_row_of(&args, &team, row, width, TE_bf16);
 *     for (int v = r.begin; v < r.vectors; v += r.stride) te__sample_keys(key, &token, &r, v);   // eight tokens each
 *
 * A key is a logit mapped to an integer, so that logits are compared as integers. A mass is an unnormalised probability
 * as an integer, so that a sum of masses does not depend on the order, and is the same on the host and on CUDA.
 */
#ifndef TE_SAMPLE_ROW_H
#define TE_SAMPLE_ROW_H

#include "../../core/lanes.h"  /* te_lanes, te_vec8 */
#include "../../core/math.h"   /* te_min */
#include "../../core/tensor.h" /* te_sampling */
#include "../cross_entropy.h"  /* te_columns */

/* ---- constants and memory of the kernel -------------------------------------------------------------------------- */

enum {
    TE_SAMPLE_MAX_VOCABULARY = 1 << 20, /* so that sums of masses stay below 2^64 */
    TE_SAMPLE_MAX_TOP = 128,            /* maximum of te_sampling.top */
    TE_SAMPLE_THREADS = TE_CUDA ? 256 : 1,
    TE__SAMPLE_WARP = TE_CUDA ? 32 : 1,
    TE__SAMPLE_MAX_BLOCKS = 8, /* the largest number of blocks of a row: the largest portable size of a cluster */
    TE__SAMPLE_BINS = 2048,  /* number of bins of a histogram: one for each value of an 11-bit digit */
    TE__SAMPLE_LIST = 2048,  /* capacity of the token list, which is in shared memory and holds the tokens that the
                              * filters may keep */
    /* number of segments into which each lane divides its vectors in the first pass; the lane stores the largest key of
     * each segment */
    TE__SAMPLE_SEGMENTS = TE_CUDA ? TE__SAMPLE_BINS / TE_SAMPLE_THREADS : 1,
    TE__SAMPLE_CHUNK = 256,  /* vectors of eight tokens in a chunk; a histogram over tokens has a bin for each chunk */
    TE__SAMPLE_STREAM = 0x73616d70, /* number of the Philox stream from which tokens are drawn; no dropout uses it */
    TE__SAMPLE_MASS_BITS = 44       /* the mass of the largest logit is 2^44 */
};
/* The number of vectors that a lane loads at a time; on CUDA these are 64 bytes. */
#define TE__SAMPLE_AHEAD(dtype) (!TE_CUDA ? 1 : (dtype) == TE_f32 ? 2 : 4)
enum {
    TE__SAMPLE_MAX_AHEAD = TE_CUDA ? 4 : 1,
    TE__SAMPLE_PREFETCH = 4 /* number of loads by which the prefetches of the first pass run ahead */
};
/* A key is a logit mapped to a 32-bit unsigned integer; larger logits have larger keys. Only tokens whose keys lie
 * between the keys of -infinity and of NaN can be drawn. */
#define TE__SAMPLE_KEY_NAN 0xffffffffu
#define TE__SAMPLE_KEY_MINUS_INF 0x007fffffu
#define TE__SAMPLE_ALL_TOKENS 0x7fffffff
#define TE__SAMPLE_LOG2E 1.4426950408889634f
#define TE__SAMPLE_LOWEST -39.5f /* e^-39.5 is rounded to 0; nearly 2^-57 */

typedef struct te__sample_args {
    float *y;       /* [rows] */
    const void *x;  /* [rows, width] */
    te_sampling of;
    int rows, blocks; /* blocks: the number of thread blocks that work on one row */
} te__sample_args;

/* The bin of a histogram in which the cumulative sum of the bins reaches the target sum (te__sample_wish). */
typedef struct te__sample_found {
    uint64_t target, rest, inside; /* rest: the target minus the sums of all bins before this one; inside: this bin's
                                    * sum */
    int bin;
} te__sample_found;

/* The result of the first pass over the vectors of one block. The blocks of a row exchange these results. */
typedef struct te__sample_part {
    uint64_t best;               /* the largest key and the token that has it (te__sample_best) */
    uint32_t raw;                /* the largest key of the plain logits, without mask and penalties */
    uint32_t bound_k, bound_top; /* lower bounds for the keys of the token list (te__sample_bound): bound_k for top-k or
                                  * top-p, bound_top for te_sampling.top */
} te__sample_part;

/* The shared memory of a block. The sum of bin b of its histogram is low[b] + 2^32 * high[b]. In passes without a
 * histogram, `low` holds the indices of those vectors that have tokens for the token list (te__sample_note), and
 * `high`, as [segment, lane], holds the largest key of each segment of each lane (te__sample_first_pass). */
typedef struct te__sample_shared {
    uint32_t low[TE__SAMPLE_BINS], high[TE__SAMPLE_BINS];
    uint64_t list[TE__SAMPLE_LIST]; /* [listed]: the key and the index of each token (te__sample_best); only in a row's
                                     * first block */
    uint32_t lane_key[2][TE_SAMPLE_THREADS]; /* the largest key of each lane: [0] after mask and penalties, [1] of the
                                              * plain logits */
    te__sample_part part[TE__SAMPLE_MAX_BLOCKS]; /* [block] */
    uint64_t mass[TE__SAMPLE_MAX_BLOCKS][TE_SAMPLE_THREADS / TE__SAMPLE_WARP]; /* [block, warp]: sums of masses of plain
                                                                               * logits; only in a row's first block */
    te__sample_found found;
    uint64_t total; /* a sum of masses over the token list */
    uint32_t noted;  /* number of vectors noted in `low`; if more than the size of `low`, some vectors were dropped */
    uint32_t listed; /* number of entries appended to the token list; if more than the list's capacity, some entries
                      * were dropped */
    uint32_t kept;   /* number of tokens of the token list that the filters keep */
    uint32_t overflow; /* 1 if a block of the row has dropped an entry, because the token list was full */
    int token;
} te__sample_shared;
typedef struct te__sample_registers { int none; } te__sample_registers;

/* The lanes that work on one row, in a cluster of `blocks` thread blocks. This lane is in block number `rank`. */
typedef struct te__sample_team {
    te__sample_shared *s;
    te_lanes g; /* the lanes of this block */
    int rank, blocks;
} te__sample_team;

/* ---- the lanes of a row ------------------------------------------------------------------------------------------ */

#if TE_CUDA
/* A barrier of all blocks of the row. After the barrier, each block sees what the other blocks have stored to shared
 * memory. */
TE_FN void te__sample_sync(const te__sample_team *t) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    if (t->blocks > 1) {
        asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
        return;
    }
#endif
    __syncthreads();
}
/* Arrive at a barrier of all blocks of the row. te__sample_wait waits until all blocks have arrived. Only after
 * te__sample_wait is it certain that every block has started, so only then may a block store to the shared memory of
 * other blocks. If the row has a single block, both functions do nothing. */
TE_FN void te__sample_arrive(const te__sample_team *t) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    if (t->blocks > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#else
    (void)t;
#endif
}
TE_FN void te__sample_wait(const te__sample_team *t) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    if (t->blocks > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    (void)t;
#endif
}
/* Returns the address of the shared memory of the row's block number `rank`. */
TE_FN te__sample_shared *te__sample_peer(const te__sample_team *t, int rank) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    if (t->blocks > 1) {
        uint64_t at;
        asm volatile("mapa.u64 %0, %1, %2;" : "=l"(at) : "l"(t->s), "r"(rank));
        return (te__sample_shared *)at;
    }
#endif
    return t->s;
}
TE_FN void te__sample_add(te__sample_shared *s, int bin, uint64_t amount) {
    const uint32_t low = (uint32_t)amount, old = atomicAdd(&s->low[bin], low);
    const uint32_t high = (uint32_t)(amount >> 32) + (old + low < old ? 1u : 0u);
    if (high) atomicAdd(&s->high[bin], high);
}
/* Adds amount[k] to bin[k] of the histogram, for all k. The atomic operations that return a value are in flight
 * together. */
TE_FN void te__sample_add8(te__sample_shared *s, const int bin[8], const uint64_t amount[8]) {
    uint32_t old[8];
    TE_UNROLL for (int k = 0; k < 8; k++) old[k] = amount[k] ? atomicAdd(&s->low[bin[k]], (uint32_t)amount[k]) : 0;
    TE_UNROLL for (int k = 0; k < 8; k++) {
        const uint32_t low = (uint32_t)amount[k];
        const uint32_t high = (uint32_t)(amount[k] >> 32) + (old[k] + low < old[k] ? 1u : 0u);
        if (high) atomicAdd(&s->high[bin[k]], high);
    }
}
TE_FN void te__sample_count(te__sample_shared *s, int bin) { atomicAdd(&s->low[bin], 1u); }
TE_FN uint32_t te__sample_ticket(uint32_t *count) { return atomicAdd(count, 1u); }
TE_FN float te__sample_divide(float a, float b) { return __fdiv_rn(a, b); }
/* Returns the largest number of a vector, or NaN if one of the numbers is NaN. */
TE_FN float te__sample_max(const float x[8]) {
    float max = x[0];
    TE_UNROLL for (int k = 1; k < 8; k++) asm("max.NaN.f32 %0, %0, %1;" : "+f"(max) : "f"(x[k]));
    return max;
}
/* Returns the larger of x and `low`, or `low` if x is NaN. */
TE_FN float te__sample_at_least(float x, float low) { return fmaxf(x, low); }
#else
TE_FN void te__sample_sync(const te__sample_team *t) { (void)t; }
TE_FN void te__sample_arrive(const te__sample_team *t) { (void)t; }
TE_FN void te__sample_wait(const te__sample_team *t) { (void)t; }
TE_FN te__sample_shared *te__sample_peer(const te__sample_team *t, int rank) { return (void)rank, t->s; }
TE_FN void te__sample_add(te__sample_shared *s, int bin, uint64_t amount) {
    const uint32_t low = (uint32_t)amount, old = s->low[bin];
    s->low[bin] = old + low, s->high[bin] += (uint32_t)(amount >> 32) + (old + low < old ? 1u : 0u);
}
TE_FN void te__sample_add8(te__sample_shared *s, const int bin[8], const uint64_t amount[8]) {
    for (int k = 0; k < 8; k++) if (amount[k]) te__sample_add(s, bin[k], amount[k]);
}
TE_FN void te__sample_count(te__sample_shared *s, int bin) { s->low[bin]++; }
TE_FN uint32_t te__sample_ticket(uint32_t *count) { return (*count)++; }
TE_FN float te__sample_divide(float a, float b) { return a / b; }
TE_FN float te__sample_max(const float x[8]) {
    float max = x[0];
    int nans = 0; /* NaNs are counted in a separate loop, so that the loops have no branches */
    for (int k = 0; k < 8; k++) nans += x[k] != x[k];
    for (int k = 1; k < 8; k++) max = x[k] > max ? x[k] : max;
    return nans ? NAN : max;
}
TE_FN float te__sample_at_least(float x, float low) { return x > low ? x : low; }
#endif

/* ---- arithmetic that is bitwise identical on both targets -------------------------------------------------------- */

/* Products are added only by explicit fmaf: if the compiler could choose whether to contract a * b + c to an FMA, the
 * last bit could differ between targets. */

/* Returns the key of the logit x. Larger logits have larger keys, and -0 has the same key as 0. */
TE_FN uint32_t te__sample_key(float x) {
    const uint32_t u = te_bits_of_float(x + 0.0f);
    return x != x ? TE__SAMPLE_KEY_NAN : u ^ ((uint32_t)((int32_t)u >> 31) | 0x80000000u);
}
/* Returns whether a row whose largest key is `top` has tokens that can be drawn. */
TE_FN int te__sample_is_usable(uint32_t top) { return top > TE__SAMPLE_KEY_MINUS_INF && top != TE__SAMPLE_KEY_NAN; }
/* Returns `key`, but at least the smallest key that can be drawn. */
TE_FN uint32_t te__sample_drawable(uint32_t key) {
    return key > TE__SAMPLE_KEY_MINUS_INF ? key : TE__SAMPLE_KEY_MINUS_INF + 1;
}
TE_FN float te__sample_logit(uint32_t key) {
    return te_float_of_bits(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}
/* Returns a lower bound for the keys of the tokens that min-p keeps: the logit of such a token is at least the largest
 * logit plus temperature * ln(min_p). top: the key of the most likely token. The 0.01 is a margin that exceeds the
 * rounding errors. */
TE_FN uint32_t te__sample_least_of_min_p(uint32_t top, float min_p, float temperature) {
    const float log_of = (log2f(fminf(min_p, 1.0f)) - 0.01f) / TE__SAMPLE_LOG2E;
    return te__sample_drawable(te__sample_key(te__sample_logit(top) + log_of * temperature));
}
#define TE__SAMPLE_ROUNDS 12582912.0f /* 1.5 * 2^23: adding this number rounds a float to an integer */
/* Returns p such that p * 2^n is 2^(d * scale), with a relative error of 1e-7, if |d * scale| < 2^21. *shifted is a
 * float whose low bits hold the integer n, because adding 1.5 * 2^23 rounds d * scale to n. p is computed by a Taylor
 * series. */
TE_FN float te__sample_exp2(float *shifted, float d, float scale) {
    TE__SUMS_AS_WRITTEN const float sum = fmaf(d, scale, TE__SAMPLE_ROUNDS), minus_n = TE__SAMPLE_ROUNDS - sum;
    const float f = fmaf(d, scale, minus_n);
    *shifted = sum;
    float p = 1.5252734e-5f;
    p = fmaf(p, f, 1.5403530e-4f), p = fmaf(p, f, 1.3333558e-3f), p = fmaf(p, f, 9.6181291e-3f);
    p = fmaf(p, f, 5.5504109e-2f), p = fmaf(p, f, 2.4022651e-1f), p = fmaf(p, f, 6.9314718e-1f);
    return fmaf(p, f, 1.0f);
}
/* A sum of at most 128 exponentials, as two integers modulo 2^32: `high` counts units of 2^-20, `low` counts units of
 * 2^-43. Each term also adds an offset to both integers; te__sample_without_offsets removes these offsets. */
typedef struct te__sample_sums { uint32_t high, low; } te__sample_sums;
#define TE__SAMPLE_HIGH_OFFSET 12.0f             /* 1.5 * 2^3: adding it rounds a float to a multiple of 2^-20 */
#define TE__SAMPLE_LOW_OFFSET 1.430511474609375e-6f /* 1.5 * 2^-20: rounds to a multiple of 2^-43 */
/* Adds 2^(d * scale) to the sum, rounded to a multiple of 2^-43. d * scale must lie in [-57, 0]. Adding one of the two
 * offsets above rounds a float to a multiple of 2^-20 or 2^-43, and the bits of the result, taken as an integer, count
 * these multiples. All other operations are exact. Most of these instructions run on the FMA pipe, which has twice the
 * throughput of the integer pipe. */
TE_FN void te__sample_add_exp2(te__sample_sums *s, float d, float scale) {
    TE__SUMS_AS_WRITTEN float shifted;
    const uint32_t p = te_bits_of_float(te__sample_exp2(&shifted, d, scale));
    const float w = te_float_of_bits(p + (te_bits_of_float(shifted) << 23));
    const float high = w + TE__SAMPLE_HIGH_OFFSET, rest = w - (high - TE__SAMPLE_HIGH_OFFSET);
    s->high += te_bits_of_float(high), s->low += te_bits_of_float(rest + TE__SAMPLE_LOW_OFFSET);
}
/* Remove the offsets of `terms` terms: the sum is then high * 2^-20 + (int32_t)low * 2^-43. */
TE_FN te__sample_sums te__sample_without_offsets(te__sample_sums s, uint32_t terms) {
    s.high -= terms * te_bits_of_float(TE__SAMPLE_HIGH_OFFSET);
    s.low -= terms * te_bits_of_float(TE__SAMPLE_LOW_OFFSET);
    return s;
}
/* Returns a sum without offsets as a mass, an integer number of units of 2^-44. */
TE_FN uint64_t te__sample_mass_of_sums(te__sample_sums s) {
    return ((uint64_t)s.high << 24) + (uint64_t)((int64_t)(int32_t)s.low * 2);
}

/* ---- a row ------------------------------------------------------------------------------------------------------- */

/* te__sample_penalised returns the logit x after the penalties, for a token that was generated `count` times or is in
 * the prompt. The function is not inlined, because few tokens need the function, and a pass would contain the
 * function's code eight times. */
typedef struct te__sample_penalties { float repetition, frequency, presence; } te__sample_penalties;
#if TE_CUDA
TE_IF_USED __device__ __noinline__ float te__sample_penalised(te__sample_penalties p, float x, uint32_t count) {
#else
TE_FN float te__sample_penalised(te__sample_penalties p, float x, uint32_t count) {
#endif
    if (p.repetition > 0) x = x > 0 ? te__sample_divide(x, p.repetition) : fmaf(x, p.repetition, 0.0f);
    return count ? fmaf(-p.frequency, (float)count, x) - p.presence : x;
}

/* One row of logits and its cut, which says which tokens the filters keep: all tokens whose key is above cut_key, and,
 * of the tokens whose key equals cut_key, those up to cut_token. */
typedef struct te__sample_row {
    const te__sample_args *a;
    int64_t at;              /* offset of the row's first element in x */
    int width, first;  /* width: columns; first: the column, -7 to 0, at which the first aligned vector begins */
    int vectors;       /* number of vectors of the row */
    int begin, stride; /* this lane reads the vectors begin, begin + stride, .. below `vectors` */
    int loads;         /* how often each lane loads TE__SAMPLE_AHEAD vectors in a pass over the row */
    te_dtype dtype;
    int row, penalised;
    te__sample_penalties penalties;
    const uint16_t *history;
    const uint32_t *allowed, *prompt;
    float scale;       /* log2(e) / temperature */
    float lowest;      /* negative; a logit below the largest logit plus `lowest` has the mass 0 */
    uint32_t top;      /* the largest key */
    uint32_t cut_key;
    int cut_token;
    uint64_t min_mass; /* min-p: a token whose mass is below min_mass is not drawn */
    uint64_t least_mass; /* top-p: a token whose mass is below least_mass is certainly not kept */
} te__sample_row;

TE_FN int te__sample_ceil(int a, int b) { return (a + b - 1) / b; } /* in 32 bits, because a 64-bit division takes ten
                                                                     * times as long */
TE_FN float te__sample_param(const float *p, int row, float otherwise) { return p ? p[row] : otherwise; }
TE_FN void te__sample_set_temperature(te__sample_row *r, float temperature) {
    r->scale = te__sample_divide(TE__SAMPLE_LOG2E, temperature);
    r->lowest = te__sample_at_least(TE__SAMPLE_LOWEST * temperature, -FLT_MAX);
}
TE_FN te__sample_row te__sample_row_of(const te__sample_args *a, const te__sample_team *t, int row, int width,
                                       te_dtype dtype) {
    const te_sampling *o = &a->of;
    const int64_t words = (int64_t)row * ((width + 31) / 32);
    te__sample_row r;
    r.a = a, r.row = row, r.at = (int64_t)row * width, r.width = width, r.dtype = dtype;
    r.first = te_first_column(r.at, width), r.vectors = (width - r.first + 7) / 8;
    /* A warp reads 32 consecutive vectors. The next 32 are read by a warp of the next block, so that every block has
     * tokens of all parts of the vocabulary. Then the bounds of the blocks (te__sample_bound) are similar, and the
     * token list holds few tokens that the filters do not keep. */
    const int warp = t->g.id / TE__SAMPLE_WARP, lane = t->g.id % TE__SAMPLE_WARP;
    r.begin = (warp * t->blocks + t->rank) * TE__SAMPLE_WARP + lane, r.stride = t->g.count * t->blocks;
    r.loads = te__sample_ceil(r.vectors, r.stride * TE__SAMPLE_AHEAD(dtype));
    r.history = o->history ? o->history + r.at : 0;
    r.allowed = o->allowed ? o->allowed + words : 0, r.prompt = o->prompt ? o->prompt + words : 0;
    r.top = 0, r.min_mass = 0, r.least_mass = 0;
    r.scale = TE__SAMPLE_LOG2E, r.lowest = TE__SAMPLE_LOWEST;
    r.cut_key = TE__SAMPLE_KEY_MINUS_INF, r.cut_token = -1;
    return r;
}
/* Sets the penalties of the row. The penalties are not set in te__sample_row_of, so that the first logits can be loaded
 * before the parameters have arrived. */
TE_FN void te__sample_penalise(te__sample_row *r) {
    const te_sampling *o = &r->a->of;
    r->penalties.repetition = te__sample_param(o->repetition_penalty, r->row, 1.0f);
    r->penalties.frequency = te__sample_param(o->frequency_penalty, r->row, 0.0f);
    r->penalties.presence = te__sample_param(o->presence_penalty, r->row, 0.0f);
    r->penalised = r->penalties.repetition != 1.0f || r->penalties.frequency != 0.0f || r->penalties.presence != 0.0f;
}
/* Returns row r without mask and penalties: the logits as the model computed them. top: the largest key of these
 * logits. */
TE_FN te__sample_row te__sample_raw_row(te__sample_row r, uint32_t top) {
    r.penalised = 0, r.allowed = 0, r.top = top;
    return r;
}

/* Returns bits `from` to from + n - 1 of a mask in the low n bits of the result, n <= 8. The other bits of the result
 * are undefined. */
TE_FN uint32_t te__sample_bits(const uint32_t *mask, int from, int n) {
    const int word = from / 32, shift = from % 32;
    uint32_t bits = mask[word] >> shift;
    if (shift + n > 32) bits |= mask[word + 1] << (32 - shift);
    return bits;
}
/* Returns the format of a vector in registers: on CUDA the format of the logits, on the host f32, because the host
 * converts each vector right after loading. */
TE_FN te_dtype te__sample_format(const te__sample_row *r) { return TE_CUDA ? r->dtype : TE_f32; }
/* Loads vector v. Elements beyond the end of the row become -infinity, even if the whole vector lies beyond the end. */
TE_FN void te__sample_load(te_vec8 *e, const te__sample_row *r, int v) {
    const te_dtype format = te__sample_format(r);
    const uint32_t half = format == TE_bf16 ? 0xff80u : 0xfc00u; /* -infinity in 16 bits */
    const uint32_t none = format == TE_f32 ? 0xff800000u : half << 16 | half;
    const te_columns c = te_columns_at(r->first + 8 * v, r->width);
    if (v >= r->vectors) {
        TE_UNROLL for (int k = 0; k < 8; k++) e->w[k] = none;
        return;
    }
    if (format == r->dtype) te_vec8_load(e, r->a->x, r->at + c.from, c.n, c.whole, format);
    else {
        float x[8];
        te_load8(x, r->a->x, r->at + c.from, c.n, c.whole, r->dtype);
        TE_UNROLL for (int k = 0; k < 8; k++) e->w[k] = te_bits_of_float(x[k]);
    }
    if (c.whole) return;
    TE_UNROLL for (int k = 0; k < 8; k++) {
        if (k < c.n) continue;
        if (format == TE_f32) e->w[k] = none;
        else e->w[k / 2] = k % 2 ? (e->w[k / 2] & 0xffffu) | half << 16 : none;
    }
}
/* The vectors that a lane loads at a time, so that all these loads are in flight together. */
typedef struct te__sample_held { te_vec8 e[TE__SAMPLE_MAX_AHEAD]; } te__sample_held;
TE_FN int te__sample_vector(const te__sample_row *r, int i, int j) {
    return r->begin + (i * TE__SAMPLE_AHEAD(r->dtype) + j) * r->stride;
}
TE_FN void te__sample_fetch(te__sample_held *h, const te__sample_row *r, int i) {
    TE_UNROLL for (int j = 0; j < TE__SAMPLE_AHEAD(r->dtype); j++)
        te__sample_load(&h->e[j], r, te__sample_vector(r, i, j));
}
/* Computes the keys of vector v, which has the elements e, after mask and penalties: key[k] belongs to token *token +
 * k, and cannot be drawn if that token is not allowed or lies beyond the row's end. */
TE_FN void te__sample_keys_of(uint32_t key[8], int *token, const te__sample_row *r, const te_vec8 *e, int v) {
    const te_columns c = te_columns_at(r->first + 8 * v, r->width);
    float x[8];
    te_vec8_floats(x, e, te__sample_format(r));
    *token = c.from;
    if (r->penalised && v < r->vectors) {
        const uint32_t prompt = r->prompt ? te__sample_bits(r->prompt, c.from, c.n) : 0;
        te_vec8 count = {{0, 0, 0, 0, 0, 0, 0, 0}};
        if (r->history) te_vec8_load(&count, r->history, c.from, c.n, c.whole, TE_bf16);
        TE_UNROLL for (int k = 0; k < 8; k++) {
            const uint32_t n = count.w[k / 2] >> 16 * (k % 2) & 0xffffu;
            if (n || (prompt >> k & 1 && k < c.n)) x[k] = te__sample_penalised(r->penalties, x[k], n);
        }
    }
    const uint32_t allowed = r->allowed && v < r->vectors ? te__sample_bits(r->allowed, c.from, c.n) : 0xffu;
    TE_UNROLL for (int k = 0; k < 8; k++) key[k] = allowed >> k & 1 ? te__sample_key(x[k]) : 0;
}
/* Loads vector v, and computes its keys. */
TE_FN void te__sample_keys(uint32_t key[8], int *token, const te__sample_row *r, int v) {
    te_vec8 e;
    te__sample_load(&e, r, v);
    te__sample_keys_of(key, token, r, &e, v);
}
/* Returns key and token as one number, which is larger for a larger key and, if keys are equal, for a lower token. */
TE_FN uint64_t te__sample_best(uint32_t key, int token) { return (uint64_t)key << 32 | (uint32_t)~token; }
TE_FN int te__sample_best_token(uint64_t best) { return (int)~(uint32_t)best; }

/* Returns the mass of a token with this key. The largest key of the row has the mass 2^44, even if its logit is
 * +infinity. */
TE_FN uint64_t te__sample_mass(const te__sample_row *r, uint32_t key) {
    te__sample_sums s = {0, 0};
    const float d = key == r->top ? 0.0f : te__sample_logit(key) - te__sample_logit(r->top);
    te__sample_add_exp2(&s, te__sample_at_least(d, r->lowest), r->scale);
    return te__sample_mass_of_sums(te__sample_without_offsets(s, 1));
}
/* The amounts that a pass adds up over the tokens that the filters keep (te__sample_is_kept). COUNT: 1 for each kept
 * token; TIES: 1 for each kept token whose key is cut_key; MASS: the mass of each kept token; DRAW: the mass of each
 * kept token that can be drawn. */
typedef enum te__sample_sum { TE__SAMPLE_COUNT, TE__SAMPLE_TIES, TE__SAMPLE_MASS, TE__SAMPLE_DRAW } te__sample_sum;
TE_FN int te__sample_is_kept(const te__sample_row *r, uint32_t key, int token) {
    return (key > r->cut_key) | ((key == r->cut_key) & (token <= r->cut_token));
}
/* Computes the amounts of eight tokens, of which the first is `token`. There are no branches on a token, so that the
 * arithmetic of all eight is in flight together. */
TE_FN void te__sample_amounts(uint64_t amount[8], const te__sample_row *r, const uint32_t key[8], int token,
                              te__sample_sum sum) {
    const uint64_t min_mass = sum == TE__SAMPLE_DRAW ? r->min_mass : 0;
    if (sum < TE__SAMPLE_MASS) {
        TE_UNROLL for (int k = 0; k < 8; k++)
            amount[k] = te__sample_is_kept(r, key[k], token + k) & ((sum == TE__SAMPLE_COUNT) | (key[k] == r->cut_key));
        return;
    }
    TE_UNROLL for (int k = 0; k < 8; k++) {
        const uint64_t mass = te__sample_mass(r, key[k]);
        amount[k] = (te__sample_is_kept(r, key[k], token + k) & (mass >= min_mass)) ? mass : 0;
    }
}

/* ---- the passes over plain logits -------------------------------------------------------------------------------- */

/* The kernel's code barely fits the instruction cache, so code that few rows need is not inlined in the loops that all
 * rows run. The first and the second pass read only the plain logits. Everything else, such as keys after mask and
 * penalties and histograms, is computed by separate passes, which share one loop, te__sample_run_pass. */

/* Prefetch the vectors of load number i to the L2, because the loads in flight alone do not hide the latency of
 * DRAM. */
TE_FN void te__sample_prefetch(const te__sample_row *r, int i, const te__sample_team *t) {
    const int line = 16 / (int)te_dtype_bytes(r->dtype); /* vectors in 128 bytes */
    TE_UNROLL for (int j = 0; j < TE__SAMPLE_AHEAD(r->dtype); j++) {
        const int v = te__sample_vector(r, i, j);
        if (t->g.id % line == 0 && v < r->vectors)
            te_prefetch(r->a->x, r->at + te_max(r->first + 8 * v, 0), r->dtype);
    }
}
/* Returns whether the row is long: each lane then makes at least TE__SAMPLE_SEGMENTS loads in a pass, so that each
 * segment of the first pass has at least one load. */
TE_FN int te__sample_is_long(const te__sample_row *r) { return r->loads >= TE__SAMPLE_SEGMENTS; }
/* The result of the first pass for one lane: the largest key of the logits that the lane has read, and the vector in
 * which this key first occurs. */
typedef struct te__sample_largest { uint32_t key; int vector; } te__sample_largest;
/* The first pass: reads all logits once. With is_long 1 the loads are divided into segments, and the largest key of
 * each segment is stored to shared memory. *h: the vectors of load number 0, on entry and on return. */
TE_FN te__sample_largest te__sample_first_pass_of(te__sample_held *h, const te__sample_row *r, int is_long,
                                                  const te__sample_team *t) {
    te__sample_largest largest = {0, 0};
    uint32_t *to = t->s->high + t->g.id, of_segment = 0;
    const int segment = te__sample_ceil(r->loads, (int)TE__SAMPLE_SEGMENTS);
    int left = segment; /* number of loads until the segment ends */
    if (is_long) TE_UNROLL for (int k = 0; k < TE__SAMPLE_SEGMENTS; k++) to[k * TE_SAMPLE_THREADS] = 0;
    TE_UNROLL_1 for (int i = 0; i < r->loads; i++) {
        if (i) te__sample_fetch(h, r, i);
        te__sample_prefetch(r, i + TE__SAMPLE_PREFETCH, t);
        TE_UNROLL for (int j = 0; j < TE__SAMPLE_AHEAD(r->dtype); j++) {
            float x[8];
            te_vec8_floats(x, &h->e[j], te__sample_format(r));
            const uint32_t key = te__sample_key(te__sample_max(x));
            if (is_long) of_segment = key > of_segment ? key : of_segment;
            if (key > largest.key) largest.key = key, largest.vector = te__sample_vector(r, i, j);
        }
        if (!is_long) continue;
        *to = of_segment;
        if (--left == 0) to += TE_SAMPLE_THREADS, of_segment = 0, left = segment;
    }
    if (r->loads > 1) te__sample_fetch(h, r, 0);
    return largest;
}
/* There are two copies of the loop, so that short rows run no code for segments. With the code for segments, a single
 * row of 152064 logits would take 15.5 instead of 15 microseconds. */
TE_FN te__sample_largest te__sample_first_pass(te__sample_held *h, const te__sample_row *r, const te__sample_team *t) {
    return te__sample_is_long(r) ? te__sample_first_pass_of(h, r, 1, t) : te__sample_first_pass_of(h, r, 0, t);
}
/* Returns the first token of vector v whose logit, without mask and penalties, has this key. */
TE_FN int te__sample_token_of(const te__sample_row *r, int v, uint32_t key) {
    te_vec8 e;
    float x[8];
    int first = 8;
    te__sample_load(&e, r, v);
    te_vec8_floats(x, &e, te__sample_format(r));
    TE_UNROLL for (int k = 7; k >= 0; k--) first = te__sample_key(x[k]) == key ? k : first;
    return te_columns_at(r->first + 8 * v, r->width).from + first;
}
/* Tell all blocks of the row that the token list is too short. */
TE_FN void te__sample_overflow(const te__sample_team *t) {
    TE_UNROLL_1 for (int k = 0; k < t->blocks; k++) te__sample_peer(t, k)->overflow = 1;
}
/* Append, to the token list in the row's first block, those tokens of vector v that the filters keep
 * (te__sample_is_kept) and whose keys are at least `least`. If the token list is full, the tokens are dropped, and
 * `overflow` is set in all blocks. */
TE_FN void te__sample_append(const te__sample_row *r, int v, uint32_t least, const te__sample_team *t) {
    te__sample_shared *first = te__sample_peer(t, 0);
    uint32_t key[8], place;
    int token;
    te__sample_keys(key, &token, r, v);
    TE_UNROLL for (int k = 0; k < 8; k++) {
        if (key[k] < least || !te__sample_is_kept(r, key[k], token + k)) continue;
        if (*(const volatile uint32_t *)&t->s->overflow) return;
        place = te__sample_ticket(&first->listed);
        if (place < TE__SAMPLE_LIST) first->list[place] = te__sample_best(key[k], token + k);
        else te__sample_overflow(t);
    }
}
/* Records in `low` that vector v has tokens for the token list. A pass only records such vectors; after the pass
 * te__sample_append_noted appends their tokens, one vector for each lane. Appending within the pass would make a warp
 * wait for each such vector. */
TE_FN void te__sample_note(int v, const te__sample_team *t) {
    const uint32_t place = te__sample_ticket(&t->s->noted);
    if (place < TE__SAMPLE_BINS) t->s->low[place] = (uint32_t)v;
}
TE_FN void te__sample_append_noted(const te__sample_row *r, uint32_t least, const te__sample_team *t) {
    te_block_sync();
    const uint32_t noted = t->s->noted;
    if (noted > TE__SAMPLE_BINS) {
        if (!t->g.id) te__sample_overflow(t);
        return;
    }
    TE_UNROLL_1 for (uint32_t i = (uint32_t)t->g.id; i < noted; i += (uint32_t)t->g.count)
        te__sample_append(r, (int)t->s->low[i], least, t);
}
/* The second pass. Returns this lane's sum of the masses of the plain logits (without mask and penalties), whose
 * largest key is raw_top. Appends the tokens whose plain keys are at least `least` to the token list or, if `least` is
 * 0, no tokens. *h: the vectors of load 0. */
TE_FN uint64_t te__sample_second_pass(te__sample_held *h, const te__sample_row *r, uint32_t raw_top, uint32_t least,
                                      const te__sample_team *t) {
    const te__sample_row plain = te__sample_raw_row(*r, raw_top);
    const float top = te__sample_logit(raw_top), bound = least ? te__sample_logit(least) : NAN;
    uint64_t sum = 0;
    TE_UNROLL_1 for (int i = 0; i < r->loads; i++) {
        te__sample_sums sums = {0, 0};
        if (i) te__sample_fetch(h, r, i);
        TE_UNROLL for (int j = 0; j < TE__SAMPLE_AHEAD(r->dtype); j++) {
            float x[8];
            te_vec8_floats(x, &h->e[j], te__sample_format(r));
            if (te__sample_max(x) >= bound) te__sample_note(te__sample_vector(r, i, j), t);
            /* No branches are needed: differences below -39.5 become -39.5, and e^-39.5 is rounded to 0. NaN, the
             * result of +infinity - +infinity, also becomes -39.5. */
            TE_UNROLL for (int k = 0; k < 8; k++)
                te__sample_add_exp2(&sums, te__sample_at_least(x[k] - top, TE__SAMPLE_LOWEST), TE__SAMPLE_LOG2E);
        }
        sum += te__sample_mass_of_sums(te__sample_without_offsets(sums, 8 * TE__SAMPLE_AHEAD(r->dtype)));
    }
    if (top == INFINITY) TE_UNROLL_1 for (int v = r->begin; v < r->vectors; v += r->stride) {
        const te_columns c = te_columns_at(r->first + 8 * v, r->width);
        TE_UNROLL_1 for (int k = 0; k < c.n; k++)
            if (te_load(r->a->x, r->at + c.from + k, r->dtype) == INFINITY)
                sum += (uint64_t)1 << TE__SAMPLE_MASS_BITS;
    }
    if (least) te__sample_append_noted(&plain, least, t);
    return sum;
}

/* Returns whether row r is plain: the row has no mask and no penalties, the filters keep all tokens that can be drawn,
 * and neither the largest logit nor the temperature is (nearly) infinite. te__sample_plain_chunks computes the sums of
 * plain rows. */
TE_FN int te__sample_is_plain(const te__sample_row *r, te__sample_sum sum) {
    return !r->penalised && !r->allowed && (sum == TE__SAMPLE_MASS || !r->min_mass) &&
           r->cut_key == TE__SAMPLE_KEY_MINUS_INF && te__sample_logit(r->top) < INFINITY && r->lowest > -FLT_MAX;
}
/* For plain rows (te__sample_is_plain): adds each token's mass to a histogram that has a bin for each chunk of vectors,
 * as te__sample_run_pass does for all rows. All lanes of a warp read vectors of the same chunk. */
TE_FN void te__sample_plain_chunks(const te__sample_row *r, const te__sample_team *t) {
    te__sample_held held, *const h = &held;
    const float top = te__sample_logit(r->top);
    const int lane = t->g.id % TE__SAMPLE_WARP;
    TE_UNROLL_1 for (int i = 0; i < r->loads; i++) {
        te__sample_fetch(h, r, i);
        TE_UNROLL for (int j = 0; j < TE__SAMPLE_AHEAD(r->dtype); j++) {
            te__sample_sums sums = {0, 0};
            float x[8];
            te_vec8_floats(x, &h->e[j], te__sample_format(r));
            TE_UNROLL for (int k = 0; k < 8; k++)
                te__sample_add_exp2(&sums, te__sample_at_least(x[k] - top, r->lowest), r->scale);
            sums = te__sample_without_offsets(sums, 8); /* high is at most 2^23 and low at most 2^25 in magnitude, so
                                                         * the sums over the 32 lanes of a warp do not overflow */
            sums.high = te_warp_sum_u32(sums.high), sums.low = te_warp_sum_u32(sums.low);
            if (lane == 0 && sums.high | sums.low)
                te__sample_add(t->s, te__sample_vector(r, i, j) / TE__SAMPLE_CHUNK, te__sample_mass_of_sums(sums));
        }
    }
}

#endif
