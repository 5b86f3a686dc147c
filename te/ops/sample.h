/* sample.h -- (sample, name, vocabulary), the last op of a list for inference: chooses a token for each row of logits.
 * x: the logits, [rows, vocabulary]. The tokens are stored to te_batch.sampling->token [rows]. y [rows, 1], in f32, is
 * the log-probability of each token under the model: log softmax of the unmodified logits.
 *
 * Do this:
 *     TE_INFERENCE(head, bf16, (rmsnorm, norm, H), (last_token, last), (linear, lm, H, V), (sample, next, V))
 *     te_sampling sampling = {0};
 *     sampling.token = tokens, sampling.temperature = temperature, sampling.seed = seeds, sampling.counter = counters;
 *     batch.sampling = &sampling;
 *
 * The filters of a row apply in this order: the mask of allowed tokens, repetition, frequency and presence penalty,
 * temperature, top-k, top-p, min-p; then a token is drawn. Nothing is sorted or approximated. Each cut (the least
 * likely token that a filter keeps) is found by radix selection on the bits of the logits: by counts for top-k, by
 * probability mass for top-p. Masses are unnormalised probabilities as integers (2^44 for the most likely token), so
 * sums do not depend on the order, and the token is the same on the host and on CUDA, with any number of blocks and in
 * any batch. docs/inference.md describes the parameters, and how exact the results are.
 *
 * Two passes read the logits. The first finds the largest logit and computes a histogram of the logits' 11 leading
 * bits; the second sums exp for y and makes a list of the tokens that top-k may keep. All other work reads this list.
 * Without top-k, or if the list would have more than TE__SAMPLE_LIST tokens, each 11-bit digit of a cut and the draw
 * take a further pass over the logits, which are then in the caches. On CUDA a cluster of 1 to 8 blocks processes a
 * row. Memory traffic: reads the logits once; 128 rows of 131072 in bf16 are 33.6 MB, which takes 7.3 us at 4.6 TB/s.
 */
#ifndef TE_OPS_SAMPLE_H
#define TE_OPS_SAMPLE_H

#include "../core/math.h"          /* te_mul_high */
#include "../core/philox.h"        /* te_philox */
#include "../core/target.h"        /* TE_KERNEL_WITH */
#include "../plan/impl/storage.h"  /* te__output */
#include "cross_entropy.h"         /* te_columns */

/* ---- the op ------------------------------------------------------------------------------------------------------ */

enum {
    TE_SAMPLE_MAX_VOCABULARY = 1 << 20, /* so that sums of masses stay below 2^64 */
    TE_SAMPLE_MAX_TOP = 128             /* maximum of te_sampling.top */
};

#define TE_OP_sample (sample, custom)
#define TE_SHAPES_sample(op) (1)
#define TE_IN_sample(op) (TE_ARG1(op, 0))
#define TE_OUT_sample(op, in) (1)
#define TE_PRODUCES_sample(op) (TE_PRODUCES_f32)
#define TE_FLAGS_sample(op) (TE_TO_LOSS)
#define TE_LAYOUT_FITS_sample(op, in) ((int)(in) == (int)TE_LAYOUT_replicated)
#define TE_CHECK_sample(model, op)                                                                               \
    (static_assert(TE_ARG1(op, 1) <= (int)TE_SAMPLE_MAX_VOCABULARY, "te: " TE_STRING(model) ": " TE_CALLED(op)   \
        ": a vocabulary has at most 2^20 tokens");                                                               \
     static_assert((int)TE_ROWS_IN(model, op) != (int)TE_ROWS_shard, "te: " TE_STRING(model) ": " TE_CALLED(op)  \
        ": each rank needs all rows, not a shard of them");)

/* ---- constants and memory of the kernel -------------------------------------------------------------------------- */

enum {
    TE_SAMPLE_THREADS = TE_CUDA ? 1024 : 1,
    TE__SAMPLE_BINS = 2048,  /* number of bins of a histogram: one for each value of an 11-bit digit */
    TE__SAMPLE_LIST = 2048,  /* capacity of the list, in shared memory, of the tokens that the filters may still keep */
    TE__SAMPLE_CHUNK = 256,  /* vectors of eight tokens in a chunk; a histogram over tokens has a bin for each chunk */
    TE__SAMPLE_STREAM = 0x73616d70, /* number of the Philox stream from which tokens are drawn; no dropout uses it */
    TE__SAMPLE_MASS_BITS = 44       /* the mass of the largest logit is 2^44 */
};
/* A key is a logit mapped to a 32-bit unsigned integer; larger logits have larger keys. Only tokens whose keys lie
 * between the keys of -infinity and of NaN can be drawn. */
#define TE__SAMPLE_KEY_NAN 0xffffffffu
#define TE__SAMPLE_KEY_MINUS_INF 0x007fffffu
#define TE__SAMPLE_ALL_TOKENS 0x7fffffff
#define TE__SAMPLE_LAST_TOKEN 0x1fffffu /* 2^21 - 1; a selection of tokens uses 2^21 - 1 - token: lowest first */

typedef struct te__sample_args {
    float *y;       /* [rows] */
    const void *x;  /* [rows, width] */
    te_sampling of;
    int rows, blocks; /* blocks: the number of thread blocks that work on one row */
} te__sample_args;

/* The bin of a histogram in which the cumulative sum of the bins reaches the target sum (te__sample_wish). */
typedef struct te__sample_found {
    uint64_t rest, inside; /* rest: the target minus the sums of all bins before this one; inside: this bin's sum */
    int bin;
} te__sample_found;

/* The shared memory of a block. The sum of bin b of its histogram is low[b] + 2^32 * high[b]. */
typedef struct te__sample_shared {
    uint32_t low[TE__SAMPLE_BINS], high[TE__SAMPLE_BINS];
    uint64_t list[TE__SAMPLE_LIST]; /* [listed]: entries key << 32 | token, unordered; only in a row's first block */
    uint64_t top[TE_SAMPLE_MAX_TOP]; /* [top_listed]: the model's most likely tokens, as entries key << 32 | token */
    uint64_t published[3];           /* results of this block that the row's other blocks read */
    te__sample_found found;
    uint32_t listed, top_listed; /* entries appended to list and to top; more than the capacity: some were dropped */
    int token;
} te__sample_shared;
typedef struct te__sample_registers { int none; } te__sample_registers;

/* All lanes that work on one row, in the `blocks` thread blocks of a cluster. This lane is in block number `rank`. */
typedef struct te__sample_team {
    te__sample_shared *s;
    te_lanes g; /* the lanes of this block */
    int rank, blocks;
} te__sample_team;

/* ---- the lanes of a row ------------------------------------------------------------------------------------------ */

#if TE_CUDA
/* A barrier of all blocks of the row: what each has stored to shared memory is then visible to the other blocks. */
TE_FN void te__sample_sync(const te__sample_team *t) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    if (t->blocks > 1) {
        asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
        return;
    }
#endif
    __syncthreads();
}
/* Return the address of the shared memory of the row's block number `rank`. */
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
TE_FN void te__sample_count(te__sample_shared *s, int bin) { atomicAdd(&s->low[bin], 1u); }
TE_FN uint32_t te__sample_ticket(uint32_t *count) { return atomicAdd(count, 1u); }
TE_FN float te__sample_divide(float a, float b) { return __fdiv_rn(a, b); }
#else
TE_FN void te__sample_sync(const te__sample_team *t) { (void)t; }
TE_FN te__sample_shared *te__sample_peer(const te__sample_team *t, int rank) { return (void)rank, t->s; }
TE_FN void te__sample_add(te__sample_shared *s, int bin, uint64_t amount) {
    const uint32_t low = (uint32_t)amount, old = s->low[bin];
    s->low[bin] = old + low, s->high[bin] += (uint32_t)(amount >> 32) + (old + low < old ? 1u : 0u);
}
TE_FN void te__sample_count(te__sample_shared *s, int bin) { s->low[bin]++; }
TE_FN uint32_t te__sample_ticket(uint32_t *count) { return (*count)++; }
TE_FN float te__sample_divide(float a, float b) { return a / b; }
#endif
enum { TE__SAMPLE_WARP = TE_CUDA ? 32 : 1 };

/* ---- arithmetic that is bitwise identical on both targets -------------------------------------------------------- */

/* Products are added by fmaf only: whether a compiler contracts a * b + c to an FMA would change the last bit. */

/* Return the key of the logit x. Larger logits have larger keys, and -0 has the same key as 0. */
TE_FN uint32_t te__sample_key(float x) {
    const uint32_t u = te_bits_of_float(x + 0.0f);
    return x != x ? TE__SAMPLE_KEY_NAN : u ^ ((uint32_t)((int32_t)u >> 31) | 0x80000000u);
}
/* Return whether a row whose largest key is `top` has tokens that can be drawn. */
TE_FN int te__sample_is_usable(uint32_t top) { return top > TE__SAMPLE_KEY_MINUS_INF && top != TE__SAMPLE_KEY_NAN; }
TE_FN float te__sample_logit(uint32_t key) {
    return te_float_of_bits(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}
/* Return 2^44 * 2^(d * scale), rounded down to an integer; d <= 0, scale >= 0. The relative error of the exponential is
 * 1e-7. Adding magic = 1.5 * 2^23 rounds d * scale to an integer n, which the low bits of the float `shifted` hold; a
 * Taylor series computes 2^(d * scale - n). */
TE_FN uint64_t te__sample_mass(float d, float scale) {
    TE__SUMS_AS_WRITTEN const float magic = 12582912.0f, shifted = fmaf(d, scale, magic), n = shifted - magic;
    if (!(n >= -45.0f)) return 0;
    const float f = fmaf(d, scale, -n);
    float p = 1.5252734e-5f;
    p = fmaf(p, f, 1.5403530e-4f), p = fmaf(p, f, 1.3333558e-3f), p = fmaf(p, f, 9.6181291e-3f);
    p = fmaf(p, f, 5.5504109e-2f), p = fmaf(p, f, 2.4022651e-1f), p = fmaf(p, f, 6.9314718e-1f), p = fmaf(p, f, 1.0f);
    const uint32_t bits = te_bits_of_float(p);
    const int exponent = (int)(te_bits_of_float(shifted) - 0x4b400000u) + (int)(bits >> 23) - 127; /* 0 at most */
    return (uint64_t)((bits & 0x7fffffu) | 0x800000u) << 22 >> (1 - exponent);
}
/* The mass of the token with this key, in a row whose largest key is `top`: 2^44 if key == top, even for +infinity. */
TE_FN uint64_t te__sample_mass_of(uint32_t key, uint32_t top, float scale) {
    return te__sample_mass(key == top ? 0.0f : te__sample_logit(key) - te__sample_logit(top), scale);
}

/* ---- a row ------------------------------------------------------------------------------------------------------- */

/* te__sample_penalised returns the logit x after the penalties, for a token that was generated `count` times or is in
 * the prompt. It is not inlined: few tokens need it, and a pass would contain its code eight times. */
typedef struct te__sample_penalties { float repetition, frequency, presence; } te__sample_penalties;
#if TE_CUDA
TE_IF_USED __device__ __noinline__ float te__sample_penalised(te__sample_penalties p, float x, uint32_t count) {
#else
TE_FN float te__sample_penalised(te__sample_penalties p, float x, uint32_t count) {
#endif
    if (p.repetition > 0) x = x > 0 ? te__sample_divide(x, p.repetition) : fmaf(x, p.repetition, 0.0f);
    return count ? fmaf(-p.frequency, (float)count, x) - p.presence : x;
}

/* One row of logits and its cut, which says which tokens the filters keep: all tokens whose key is above cut_key, and
 * of the tokens whose key equals cut_key those up to cut_token. */
typedef struct te__sample_row {
    const te__sample_args *a;
    int64_t at;              /* offset of the row's first element in x */
    int width, first;        /* width: columns; first: the column, -7 to 0, at which the first aligned vector begins */
    int vectors, begin, end; /* vectors: number of vectors of the row; this block reads the vectors [begin, end) */
    te_dtype dtype;
    int row, penalised, listed;
    te__sample_penalties penalties;
    const uint16_t *history;
    const uint32_t *allowed, *prompt;
    float scale;       /* log2(e) / temperature */
    uint32_t top;      /* the largest key */
    uint32_t cut_key;
    int cut_token;
    uint64_t min_mass; /* min-p: a token whose mass is below min_mass is not drawn */
    uint64_t least_mass; /* top-p: it certainly keeps no token whose mass is below least_mass */
} te__sample_row;

TE_FN float te__sample_param(const float *p, int row, float otherwise) { return p ? p[row] : otherwise; }
TE_FN te__sample_row te__sample_row_of(const te__sample_args *a, const te__sample_team *t, int row, int width,
                                       te_dtype dtype) {
    const te_sampling *o = &a->of;
    const int64_t words = (int64_t)row * ((width + 31) / 32);
    te__sample_row r;
    r.a = a, r.row = row, r.at = (int64_t)row * width, r.width = width, r.dtype = dtype;
    r.first = te_first_column(r.at, width), r.vectors = (width - r.first + 7) / 8;
    const int each = (int)te_round_up(te_ceil_div(r.vectors, t->blocks), TE__SAMPLE_WARP);
    r.begin = (int)te_min((int64_t)t->rank * each, r.vectors), r.end = (int)te_min(r.begin + each, r.vectors);
    const float repetition = te__sample_param(o->repetition_penalty, row, 1.0f);
    const float frequency = te__sample_param(o->frequency_penalty, row, 0.0f);
    const float presence = te__sample_param(o->presence_penalty, row, 0.0f);
    r.penalised = repetition != 1.0f || frequency != 0.0f || presence != 0.0f;
    r.penalties.repetition = repetition, r.penalties.frequency = frequency, r.penalties.presence = presence;
    r.history = o->history ? o->history + r.at : 0;
    r.allowed = o->allowed ? o->allowed + words : 0, r.prompt = o->prompt ? o->prompt + words : 0;
    r.scale = 1.4426950408889634f, r.top = 0, r.listed = 0, r.min_mass = 0, r.least_mass = 0;
    r.cut_key = TE__SAMPLE_KEY_MINUS_INF, r.cut_token = -1;
    return r;
}
/* Return row r without mask and penalties: the logits as the model computed them. top: their largest key. */
TE_FN te__sample_row te__sample_raw_row(te__sample_row r, uint32_t top) {
    r.penalised = 0, r.allowed = 0, r.listed = 0, r.top = top;
    return r;
}

/* Return the bits from .. from + n - 1 of a mask as the low n bits of the result, n <= 8; ignore its other bits. */
TE_FN uint32_t te__sample_bits(const uint32_t *mask, int from, int n) {
    const int word = from / 32, shift = from % 32;
    uint32_t bits = mask[word] >> shift;
    if (shift + n > 32) bits |= mask[word + 1] << (32 - shift);
    return bits;
}
/* Compute the keys of vector v after mask and penalties: key[k] belongs to token *token + k, and is 0 if that token is
 * not allowed or lies beyond the row's end. */
TE_FN void te__sample_keys(uint32_t key[8], int *token, const te__sample_row *r, int v) {
    const te_columns c = te_columns_at(r->first + 8 * v, r->width);
    float x[8];
    te_load8(x, r->a->x, r->at + c.from, c.n, c.whole, r->dtype);
    *token = c.from;
    if (r->penalised) {
        const uint32_t prompt = r->prompt ? te__sample_bits(r->prompt, c.from, c.n) : 0;
        te_vec8 count = {{0, 0, 0, 0, 0, 0, 0, 0}};
        if (r->history) te_vec8_load(&count, r->history, c.from, c.n, c.whole, TE_bf16);
        TE_UNROLL for (int k = 0; k < 8; k++) {
            const uint32_t n = count.w[k / 2] >> 16 * (k % 2) & 0xffffu;
            if (n || prompt >> k & 1) x[k] = te__sample_penalised(r->penalties, x[k], n);
        }
    }
    uint32_t allowed = r->allowed ? te__sample_bits(r->allowed, c.from, c.n) : 0xffu;
    allowed &= 0xffu >> (8 - c.n);
    TE_UNROLL for (int k = 0; k < 8; k++) key[k] = allowed >> k & 1 ? te__sample_key(x[k]) : 0;
}
/* Return key and token as one number, which is larger for a larger key and, if keys are equal, for a lower token. */
TE_FN uint64_t te__sample_best(uint32_t key, int token) { return (uint64_t)key << 32 | (uint32_t)~token; }
TE_FN int te__sample_best_token(uint64_t best) { return (int)~(uint32_t)best; }

/* What a pass adds up over the tokens that the cut keeps: their number (COUNT), the number of those whose key is
 * cut_key (TIES), their masses (MASS), or the masses of those that can be drawn (DRAW). */
typedef enum te__sample_sum { TE__SAMPLE_COUNT, TE__SAMPLE_TIES, TE__SAMPLE_MASS, TE__SAMPLE_DRAW } te__sample_sum;
TE_FN uint64_t te__sample_amount(const te__sample_row *r, uint32_t key, int token, te__sample_sum sum) {
    if (key < r->cut_key || (key == r->cut_key && token > r->cut_token)) return 0;
    if (sum == TE__SAMPLE_COUNT) return 1;
    if (sum == TE__SAMPLE_TIES) return key == r->cut_key;
    const uint64_t mass = te__sample_mass_of(key, r->top, r->scale);
    return sum == TE__SAMPLE_DRAW && mass < r->min_mass ? 0 : mass;
}

/* ---- the passes over a row --------------------------------------------------------------------------------------- */

/* Prefetch all of this block's logits to the L2: a pass has too few loads in flight to hide the latency of DRAM. */
TE_FN void te__sample_prefetch(const te__sample_row *r, const te__sample_team *t) {
    const int line = 16 / (int)te_dtype_bytes(r->dtype); /* vectors in 128 bytes */
    for (int v = r->begin + t->g.id * line; v < r->end; v += t->g.count * line)
        te_prefetch(r->a->x, r->at + te_max(r->first + 8 * v, 0), r->dtype);
}
/* Return the maximum of x over all lanes of the row. place: which entry of `published` the blocks exchange it in. */
TE_FN uint64_t te__sample_max_of_all(uint64_t x, int place, const te__sample_team *t) {
    x = te_lanes_max_u64(x, &t->g);
    if (!t->g.id) t->s->published[place] = x;
    te__sample_sync(t);
    for (int k = 0; k < t->blocks; k++) {
        const uint64_t other = te__sample_peer(t, k)->published[place];
        x = other > x ? other : x;
    }
    return x;
}
/* Finds the largest logit and its token, as a te__sample_best: *raw among the unmodified logits, *best among the
 * allowed tokens after penalties. counts 1: also computes the histogram of the first digit of the keys that can be
 * drawn. Memory traffic: reads the logits and, if used, history and masks. */
TE_FN void te__sample_largest(uint64_t *raw, uint64_t *best, const te__sample_row *r, int counts,
                              const te__sample_team *t) {
    const te__sample_row plain = te__sample_raw_row(*r, 0);
    const int differ = r->penalised || r->allowed;
    uint32_t raw_key = 0, best_key = 0;
    int raw_token = 0, best_token = 0;
    TE_UNROLL_1 for (int v = r->begin + t->g.id; v < r->end; v += t->g.count) {
        uint32_t key[8];
        int token;
        te__sample_keys(key, &token, &plain, v);
        TE_UNROLL for (int k = 0; k < 8; k++)
            if (key[k] > raw_key) raw_key = key[k], raw_token = token + k;
        if (differ) {
            te__sample_keys(key, &token, r, v);
            TE_UNROLL for (int k = 0; k < 8; k++)
                if (key[k] > best_key) best_key = key[k], best_token = token + k;
        }
        if (counts)
            TE_UNROLL for (int k = 0; k < 8; k++)
                if (key[k] > TE__SAMPLE_KEY_MINUS_INF) te__sample_count(t->s, (int)(key[k] >> 21));
    }
    *raw = te__sample_max_of_all(te__sample_best(raw_key, raw_token), 0, t);
    *best = differ ? te__sample_max_of_all(te__sample_best(best_key, best_token), 1, t) : *raw;
}
/* Append an entry to a list of at most `size` entries, in the shared memory of the row's first block. If the list is
 * full, the entry is dropped, and *listed then exceeds `size`. */
TE_FN void te__sample_append(uint64_t *list, uint32_t *listed, uint32_t size, uint32_t key, int token) {
    if (*(const volatile uint32_t *)listed > size) return;
    const uint32_t place = te__sample_ticket(listed);
    if (place < size) list[place] = (uint64_t)key << 32 | (uint32_t)token;
}
/* Append to the list all tokens that the cut of r keeps and whose keys are at least `least`. */
TE_FN void te__sample_gather(uint64_t *list, uint32_t *listed, uint32_t size, const te__sample_row *r, uint32_t least,
                             const te__sample_team *t) {
    TE_UNROLL_1 for (int v = r->begin + t->g.id; v < r->end; v += t->g.count) {
        uint32_t key[8];
        int token;
        te__sample_keys(key, &token, r, v);
        TE_UNROLL for (int k = 0; k < 8; k++)
            if (key[k] >= least && te__sample_amount(r, key[k], token + k, TE__SAMPLE_COUNT))
                te__sample_append(list, listed, size, key[k], token + k);
    }
    te__sample_sync(t);
}
/* Returns, in every block, the sum of all masses of the unmodified logits. Also appends the tokens of r whose keys are
 * at least `least` to the list (least 0: none). On return no block accesses another block's shared memory. */
TE_FN uint64_t te__sample_model_mass(const te__sample_row *r, uint32_t raw_top, uint32_t least,
                                     const te__sample_team *t) {
    const te__sample_row plain = te__sample_raw_row(*r, raw_top);
    const int differ = r->penalised || r->allowed;
    te__sample_shared *first = te__sample_peer(t, 0);
    uint64_t sum = 0, total = 0;
    TE_UNROLL_1 for (int v = r->begin + t->g.id; v < r->end; v += t->g.count) {
        uint32_t key[8];
        int token;
        te__sample_keys(key, &token, &plain, v);
        TE_UNROLL for (int k = 0; k < 8; k++)
            if (key[k] > TE__SAMPLE_KEY_MINUS_INF) sum += te__sample_mass_of(key[k], raw_top, plain.scale);
        if (!least) continue;
        if (differ) te__sample_keys(key, &token, r, v);
        TE_UNROLL for (int k = 0; k < 8; k++)
            if (key[k] >= least)
                te__sample_append(first->list, &first->listed, TE__SAMPLE_LIST, key[k], token + k);
    }
    (void)te_lanes_scan_u64(&sum, sum, &t->g);
    if (!t->g.id) t->s->published[2] = sum;
    te__sample_sync(t);
    for (int k = 0; k < t->blocks; k++) total += te__sample_peer(t, k)->published[2];
    te__sample_sync(t);
    return total;
}

/* A radix selection finds a number digit by digit, highest first: a key (32 bits) or TE__SAMPLE_LAST_TOKEN - token (21
 * bits). Its digits are bits 21 to 31, 10 to 20 and 0 to 9. prefix: the digits above this one. */
typedef struct te__sample_digit { int shift, bits; uint32_t prefix; } te__sample_digit;
TE_FN te__sample_digit te__sample_digit_of(int level, uint32_t prefix) {
    te__sample_digit d;
    d.shift = level == 0 ? 21 : level == 1 ? 10 : 0, d.bits = level == 2 ? 10 : 11, d.prefix = prefix;
    return d;
}
/* Adds an entry (key << 32 | token) to the histogram of digit d, if the digits of `value` (its key, or LAST_TOKEN -
 * token) above d equal d.prefix. Returns 0, or the entry's mass if it is not added because it is below least_mass. */
TE_FN uint64_t te__sample_digit_add(const te__sample_row *r, te__sample_digit d, uint32_t value, uint64_t entry,
                                    te__sample_sum sum, const te__sample_team *t) {
    const uint32_t digits = value >> d.shift;
    if (digits >> d.bits != d.prefix) return 0;
    const uint64_t amount = te__sample_amount(r, (uint32_t)(entry >> 32), (int)(uint32_t)entry, sum);
    if (sum == TE__SAMPLE_MASS && amount < r->least_mass) return amount;
    if (amount) te__sample_add(t->s, (int)(digits & ((1u << d.bits) - 1)), amount);
    return 0;
}
/* Computes the histogram of a digit of the keys or of the tokens. If the tokens are those of a row and not of the list,
 * a bin stands for a chunk of vectors; all lanes of a warp read the same chunk. For the first digit of the keys, masses
 * below least_mass go to bin 0, so that the total is right; all other keys are in larger bins, where the cut lies. */
TE_FN void te__sample_histogram(const te__sample_row *r, te__sample_digit d, int of_tokens, te__sample_sum sum,
                                const te__sample_team *t) {
    uint64_t left_out = 0;
    for (int i = t->g.id; i < TE__SAMPLE_BINS; i += t->g.count) t->s->low[i] = 0, t->s->high[i] = 0;
    te_block_sync();
    if (r->listed) {
        const int listed = (int)t->s->listed;
        TE_UNROLL_1 for (int i = t->g.id; i < listed; i += t->g.count) {
            const uint64_t entry = t->s->list[i];
            const uint32_t value = of_tokens ? TE__SAMPLE_LAST_TOKEN - (uint32_t)entry : (uint32_t)(entry >> 32);
            (void)te__sample_digit_add(r, d, value, entry, sum, t);
        }
        return;
    }
    TE_UNROLL_1 for (int v0 = r->begin; v0 < r->end; v0 += t->g.count) {
        const int v = v0 + t->g.id;
        uint64_t amount = 0;
        uint32_t key[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        int token = 0;
        if (v < r->end) te__sample_keys(key, &token, r, v);
        if (of_tokens) {
            TE_UNROLL for (int k = 0; k < 8; k++) amount += te__sample_amount(r, key[k], token + k, sum);
            amount = te_warp_sum_u64(amount);
            if (t->g.id % TE__SAMPLE_WARP == 0 && amount) te__sample_add(t->s, v / TE__SAMPLE_CHUNK, amount);
        } else
            TE_UNROLL for (int k = 0; k < 8; k++)
                left_out += te__sample_digit_add(r, d, key[k], (uint64_t)key[k] << 32 | (uint32_t)(token + k), sum, t);
    }
    if (sum != TE__SAMPLE_MASS || !r->least_mass || d.shift != 21) return;
    left_out = te_warp_sum_u64(left_out);
    if (t->g.id % TE__SAMPLE_WARP == 0 && left_out) te__sample_add(t->s, 0, left_out);
}

/* ---- selection --------------------------------------------------------------------------------------------------- */

/* The target sum of a selection: fraction / 2^64 of the histogram's total, plus amount, clamped to [1, total]. */
typedef struct te__sample_wish { uint64_t fraction, amount; } te__sample_wish;
TE_FN te__sample_wish te__sample_wish_of(uint64_t fraction, uint64_t amount) {
    te__sample_wish w;
    w.fraction = fraction, w.amount = amount;
    return w;
}
/* Return the sum of a bin over the histograms of all blocks of the row. */
TE_FN uint64_t te__sample_bin(int bin, const te__sample_team *t) {
    uint64_t sum = 0;
    for (int k = 0; k < t->blocks; k++) {
        const te__sample_shared *s = te__sample_peer(t, k);
        sum += s->low[bin] + ((uint64_t)s->high[bin] << 32);
    }
    return sum;
}
/* Find the bin in which the cumulative sum of the histogram reaches the target w. descending 1: the sum begins at the
 * last bin. All lanes of all blocks return the same result. If the histogram is empty, bin and inside are 0. */
TE_FN te__sample_found te__sample_find(int descending, te__sample_wish w, const te__sample_team *t) {
    const int each = (TE__SAMPLE_BINS + t->g.count - 1) / t->g.count, last = TE__SAMPLE_BINS - 1;
    const int from = t->g.id * each, to = (int)te_min(from + each, TE__SAMPLE_BINS);
    uint64_t mine = 0, total;
    te__sample_sync(t); /* wait until the histograms of all blocks are complete */
    for (int j = from; j < to; j++) mine += te__sample_bin(descending ? last - j : j, t);
    uint64_t before = te_lanes_scan_u64(&total, mine, &t->g);
    uint64_t wish = te_mul_high(w.fraction, total) + w.amount;
    wish = wish < 1 ? 1 : wish > total ? total : wish;
    if (!total && !t->g.id) t->s->found.bin = 0, t->s->found.rest = t->s->found.inside = 0;
    if (before < wish && wish <= before + mine)
        for (int j = from; j < to; j++) {
            const int bin = descending ? last - j : j;
            const uint64_t inside = te__sample_bin(bin, t);
            if (before < wish && wish <= before + inside)
                t->s->found.bin = bin, t->s->found.rest = wish - before, t->s->found.inside = inside;
            before += inside;
        }
    te__sample_sync(t); /* wait until no block reads the histogram of another block any more */
    return t->s->found;
}
/* A selection adds amounts from the largest key down (or from the lowest token up) and finds the key (or token) at
 * which the sum reaches the target `wish`. It computes digits [level, end) of that number; prefix: the digits above. */
typedef struct te__sample_selection {
    te__sample_sum sum;
    int of_tokens, level, end;
    int counted; /* 1: the histogram of the first level has already been computed */
    uint32_t prefix;
    te__sample_wish wish;
} te__sample_selection;
TE_FN te__sample_selection te__sample_key_selection(te__sample_sum sum, int level, uint32_t prefix,
                                                    te__sample_wish wish) {
    te__sample_selection s;
    s.sum = sum, s.of_tokens = 0, s.level = level, s.end = 3, s.counted = 0, s.prefix = prefix, s.wish = wish;
    return s;
}
TE_FN te__sample_selection te__sample_token_selection(te__sample_sum sum, te__sample_wish wish) {
    te__sample_selection s = te__sample_key_selection(sum, 1, 0, wish); /* no level 0 (bits 21 to 31): tokens have 21 */
    s.of_tokens = 1;
    return s;
}
/* Find the token of chunk f.bin at which the sum over the chunk reaches f.rest. Every block does this redundantly. */
TE_FN int te__sample_walk(const te__sample_row *r, te__sample_sum sum, te__sample_found f, const te__sample_team *t) {
    const int from = f.bin * TE__SAMPLE_CHUNK, to = (int)te_min(from + TE__SAMPLE_CHUNK, r->vectors);
    uint64_t rest = f.rest;
    TE_UNROLL_1 for (int v0 = from; v0 < to; v0 += t->g.count) {
        uint32_t key[8];
        uint64_t amount[8], mine = 0, total;
        int token = 0;
        if (v0 + t->g.id < to) te__sample_keys(key, &token, r, v0 + t->g.id);
        TE_UNROLL for (int k = 0; k < 8; k++) {
            amount[k] = v0 + t->g.id < to ? te__sample_amount(r, key[k], token + k, sum) : 0;
            mine += amount[k];
        }
        uint64_t before = te_lanes_scan_u64(&total, mine, &t->g);
        if (before < rest && rest <= before + mine)
            TE_UNROLL for (int k = 0; k < 8; k++) {
                if (before < rest && rest <= before + amount[k]) t->s->token = token + k;
                before += amount[k];
            }
        if (rest <= total) break;
        rest -= total;
    }
    te_block_sync();
    const int token = t->s->token;
    te_block_sync();
    return token;
}
/* Run the selection s; *value is the key or token that it finds. `inside` of the result is 0 if all amounts are 0. */
TE_FN te__sample_found te__sample_select(uint32_t *value, const te__sample_row *r, te__sample_selection s,
                                         const te__sample_team *t) {
    te__sample_found f = {0, 0, 0};
    const int chunks = s.of_tokens && !r->listed;
    uint32_t digits = s.prefix;
    TE_UNROLL_1 for (int level = s.level; level < s.end; level++) {
        const te__sample_digit d = te__sample_digit_of(level, digits);
        if (!s.counted) te__sample_histogram(r, d, s.of_tokens, s.sum, t);
        f = te__sample_find(!chunks, s.wish, t);
        if (chunks) {
            *value = (uint32_t)te__sample_walk(r, s.sum, f, t);
            return f;
        }
        digits = digits << d.bits | (uint32_t)f.bin, s.wish = te__sample_wish_of(0, f.rest);
    }
    *value = s.of_tokens ? TE__SAMPLE_LAST_TOKEN - digits : digits;
    return f;
}
/* Move the cut of r to the key that a selection has found. If only some of the tokens with this key are to be kept,
 * namely the lowest ones, returns their number; otherwise returns 0. */
TE_FN uint64_t te__sample_cut_at(te__sample_row *r, te__sample_sum sum, uint32_t key, te__sample_found f) {
    if (!f.inside) return 0;
    const uint64_t each = sum == TE__SAMPLE_COUNT ? 1 : te__sample_mass_of(key, r->top, r->scale);
    const uint64_t ties = f.inside / each, wanted = (f.rest + each - 1) / each;
    if (key != r->cut_key) r->cut_token = TE__SAMPLE_ALL_TOKENS;
    r->cut_key = key;
    return wanted < ties ? wanted : 0;
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* Return the log-probability of a token. key: its key; top: the largest key; mass: the sum of all masses of the row. */
TE_FN float te__sample_log_prob(uint32_t key, uint32_t top, uint64_t mass) {
    const float d = key == top ? 0.0f : te__sample_logit(key) - te__sample_logit(top);
    return top == TE__SAMPLE_KEY_NAN || !mass ? NAN : d - logf((float)mass * 5.684341886080802e-14f); /* 2^-44 */
}
/* Store the o->top likeliest tokens of the model, which the cut of r keeps, in order of descending probability. */
TE_FN void te__sample_store_top(const te__sample_row *r, uint64_t mass, const te__sample_team *t) {
    const te_sampling *o = &r->a->of;
    te__sample_shared *first = te__sample_peer(t, 0);
    const int usable = te__sample_is_usable(r->top);
    if (usable) te__sample_gather(first->top, &first->top_listed, TE_SAMPLE_MAX_TOP, r, 0, t);
    const int64_t at = (int64_t)r->row * o->top;
    const int found = usable && !t->rank ? (int)t->s->top_listed : 0;
    TE_UNROLL_1 for (int i = t->g.id; i < o->top && !t->rank; i += t->g.count) {
        int place = i;
        if (i < found) {
            const uint64_t entry = t->s->top[i] ^ 0xffffffffu; /* inverted tokens: lower tokens rank higher */
            place = 0;
            TE_UNROLL_1 for (int j = 0; j < found; j++) place += (t->s->top[j] ^ 0xffffffffu) > entry;
        }
        o->top_token[at + place] = i < found ? (int)(uint32_t)t->s->top[i] : -1;
        o->top_log_prob[at + place] = i < found ? te__sample_log_prob((uint32_t)(t->s->top[i] >> 32), r->top, mass)
                                      : usable ? -INFINITY : NAN;
    }
}
/* Store the results of a row. Only one lane of the row calls this function. */
TE_FN void te__sample_store(const te__sample_row *r, int token, uint32_t raw_top, uint64_t mass) {
    const te_sampling *o = &r->a->of;
    o->token[r->row] = token;
    r->a->y[r->row] =
        token < 0 ? NAN
                  : te__sample_log_prob(te__sample_key(te_load(r->a->x, r->at + token, r->dtype)), raw_top, mass);
    if (o->counter) o->counter[r->row]++;
    if (token >= 0 && o->update_history && o->history[r->at + token] < 65535u) o->history[r->at + token]++;
}

/* The tasks of a row that need a selection, in order. One loop runs them, so that the kernel contains the selection's
 * code once. If a cut keeps only some of the tokens with its key, a selection of a token follows that of the key. */
typedef enum te__sample_task {
    TE__SAMPLE_TASK_k_digit, /* finds the first digit of the cut of top-k, in the histogram of the first pass */
    TE__SAMPLE_TASK_top,     /* finds the most likely tokens of the model, for te_sampling.top */
    TE__SAMPLE_TASK_k,       /* finds the other digits of the cut of top-k */
    TE__SAMPLE_TASK_p_digit, /* finds the first digit of the cut of top-p, if the row has no list */
    TE__SAMPLE_TASK_p,       /* finds the other digits of the cut of top-p; if the row has a list, all digits */
    TE__SAMPLE_TASK_draw     /* draws the token */
} te__sample_task;
/* The parameters of the cuts (top-k, top-p) and of the draw of a row. */
typedef struct te__sample_cuts {
    te__sample_selection k, p; /* the selections that remain to be run for the cuts of top-k and top-p */
    int top_k;                 /* 0: no top-k */
    float top_p;               /* 1 or more: no top-p */
    uint64_t uniform;          /* 64 random bits: the draw's target is uniform / 2^64 of the total mass */
} te__sample_cuts;
TE_FN te__sample_cuts te__sample_cuts_of(const te_sampling *o, int row, int width, int greedy) {
    te__sample_cuts c;
    c.top_k = o->top_k && !greedy ? o->top_k[row] : 0, c.top_p = te__sample_param(o->top_p, row, 1.0f), c.uniform = 0;
    if (c.top_k < 0 || c.top_k >= width) c.top_k = 0;
    const uint64_t fraction = c.top_p > 0 ? (uint64_t)(c.top_p * 4294967296.0f) << 32 : 0;
    c.k = te__sample_key_selection(TE__SAMPLE_COUNT, 0, 0, te__sample_wish_of(0, (uint64_t)c.top_k));
    c.p = te__sample_key_selection(TE__SAMPLE_MASS, 0, 0, te__sample_wish_of(c.top_p < 1.0f ? fraction : 0, 0));
    c.k.end = 1, c.k.counted = 1;
    if (!greedy) {
        uint32_t random[4];
        te_philox(random, o->seed[row], 0, TE__SAMPLE_STREAM, o->counter[row]);
        c.uniform = (uint64_t)random[0] << 32 | random[1];
    }
    return c;
}
/* Returns the task that follows `task`, and sets *s to the selection of that task. */
TE_FN te__sample_task te__sample_next(te__sample_selection *s, te__sample_task task, const te__sample_cuts *c,
                                      const te__sample_row *r) {
    if (task < TE__SAMPLE_TASK_k && c->top_k) return *s = c->k, TE__SAMPLE_TASK_k;
    if (task < TE__SAMPLE_TASK_p_digit && c->top_p < 1.0f) {
        *s = c->p;
        if (r->listed) return TE__SAMPLE_TASK_p;
        s->end = 1;
        return TE__SAMPLE_TASK_p_digit;
    }
    if (task == TE__SAMPLE_TASK_p_digit) return *s = c->p, TE__SAMPLE_TASK_p;
    *s = te__sample_token_selection(TE__SAMPLE_DRAW, te__sample_wish_of(c->uniform, 1));
    return TE__SAMPLE_TASK_draw;
}
/* The body of the kernel: processes the vectors of a row that belong to this block. */
TE_FN void te__sample_body(const te__sample_args *a, te_block b, te__sample_shared *shared, int width,
                           te_dtype dtype) {
    const te_sampling *o = &a->of;
    te__sample_team t;
    int group;
    t.g = te_lanes_here(TE_SAMPLE_THREADS, &group);
    t.s = shared, t.blocks = a->blocks, t.rank = b.x % a->blocks;
    te__sample_row r = te__sample_row_of(a, &t, b.x / a->blocks, width, dtype);
    const float temperature = te__sample_param(o->temperature, r.row, 0.0f);
    const float min_p = te__sample_param(o->min_p, r.row, 0.0f);
    const int greedy = !(temperature >= 1e-5f) || (o->top_k && o->top_k[r.row] == 1);
    te__sample_cuts c = te__sample_cuts_of(o, r.row, width, greedy);
    uint64_t raw, best, mass = 0;

    te__sample_prefetch(&r, &t);
    for (int i = t.g.id; i < TE__SAMPLE_BINS; i += t.g.count) shared->low[i] = 0, shared->high[i] = 0;
    if (!t.g.id) shared->listed = shared->top_listed = 0, shared->token = -1;
    te_block_sync();
    te__sample_largest(&raw, &best, &r, c.top_k, &t);
    const uint32_t raw_top = (uint32_t)(raw >> 32);
    r.top = (uint32_t)(best >> 32);
    const int usable = te__sample_is_usable(r.top), draws = usable && !greedy;
    int token = usable ? te__sample_best_token(best) : -1;
    if (!draws) c.top_k = 0;

    te__sample_row v = r; /* the row with the cuts made so far, as the current task reads it */
    te__sample_task task = TE__SAMPLE_TASK_k_digit;
    te__sample_selection s = c.k;
    TE_UNROLL_1 for (int runs = c.top_k != 0;;) {
        te__sample_found f = {0, 0, 0};
        uint32_t value = 0;
        if (runs) f = te__sample_select(&value, &v, s, &t);
        runs = 1;
        if (task == TE__SAMPLE_TASK_draw) {
            token = f.inside ? (int)value : -1;
            break;
        }
        if (task == TE__SAMPLE_TASK_k_digit) {
            /* fits: 1 if all tokens whose first digit is at least `value`, among them the top k, fit in the list */
            const int fits = c.top_k && (uint64_t)c.top_k - f.rest + f.inside <= TE__SAMPLE_LIST;
            c.k = te__sample_key_selection(TE__SAMPLE_COUNT, 1, value, te__sample_wish_of(0, f.rest));
            mass = te__sample_model_mass(&r, raw_top, fits ? value << 21 : 0, &t);
            r.listed = fits;
            if (o->top) {
                v = te__sample_raw_row(r, raw_top), task = TE__SAMPLE_TASK_top;
                s = te__sample_key_selection(TE__SAMPLE_COUNT, 0, 0, te__sample_wish_of(0, (uint64_t)o->top));
                continue;
            }
        } else if (task == TE__SAMPLE_TASK_p_digit) { /* list the tokens with this first digit or a larger one */
            te__sample_shared *first = te__sample_peer(&t, 0);
            c.p = te__sample_key_selection(TE__SAMPLE_MASS, 1, value, te__sample_wish_of(0, f.rest));
            te__sample_gather(first->list, &first->listed, TE__SAMPLE_LIST, &v, value << 21, &t);
            v.listed = first->listed <= TE__SAMPLE_LIST;
            te__sample_sync(&t);
        } else if (s.of_tokens) {
            v.cut_token = (int)value;
        } else {
            const uint64_t wanted = te__sample_cut_at(&v, s.sum, value, f);
            s = te__sample_token_selection(TE__SAMPLE_TIES, te__sample_wish_of(0, wanted));
            if (wanted) continue;
        }
        if (task == TE__SAMPLE_TASK_top) te__sample_store_top(&v, mass, &t);
        if (!draws) break;
        if (task <= TE__SAMPLE_TASK_top) {
            v = r, v.scale = te__sample_divide(1.4426950408889634f, temperature);
            /* The tokens below least_mass together have less than 1 - p of the total mass: top-p keeps none of them. */
            v.least_mass = te_mul_high(~c.p.wish.fraction, (uint64_t)1 << TE__SAMPLE_MASS_BITS) / (uint64_t)width;
            if (min_p > 0) v.min_mass = (uint64_t)((min_p < 1.0f ? min_p : 1.0f) * 17592186044416.0f); /* 2^44 */
        }
        if (v.listed) { /* from now on only the first block of the row works, because the list is in its memory */
            if (t.rank) return;
            t.blocks = 1;
        }
        task = te__sample_next(&s, task, &c, &v);
    }
    if (draws && t.blocks > 1) te__sample_sync(&t); /* wait until no block reads history, which is written next */
    if (!t.rank && !t.g.id) te__sample_store(&r, token, raw_top, mass);
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

typedef te_status (*te__sample_launch_fn)(te_context *, te_grid, const te__sample_args *);

/* Defines name##_clusters, which launches the kernel with a cluster of args->blocks blocks for each row. */
#if TE_CUDA
#define TE__SAMPLE_LAUNCH(name)                                                                                      \
    TE_API te_status name##_clusters(te_context *ctx, te_grid grid, const te__sample_args *args) {                   \
        return te__cuda_launch(ctx, te__launch_of((const void *)name, #name, grid, TE_SAMPLE_THREADS, 0,             \
                                                  args->blocks), args, sizeof *args);                                \
    }
#else
#define TE__SAMPLE_LAUNCH(name)                                                                                      \
    TE_API te_status name##_clusters(te_context *ctx, te_grid grid, const te__sample_args *args)                     \
        { return name##_launch(ctx, grid, args); }
#endif
#define TE_CUSTOM_sample_forward(name, model, dtype, op)                                                             \
    TE_FN void name##_body(const te__sample_args *a, te_block b, te__sample_registers *r, te__sample_shared *s) {    \
        (void)r;                                                                                                     \
        te__sample_body(a, b, s, TE_WIDTH_IN(model, op), (te_dtype)TE_DTYPE_IN(model, op));                          \
    }                                                                                                                \
    TE_KERNEL_WITH(name, TE_SAMPLE_THREADS, 1, te__sample_args, te__sample_registers, te__sample_shared,             \
                   name##_body)                                                                                      \
    TE__SAMPLE_LAUNCH(name)                                                                                          \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__sample_run(r, s, name##_clusters); }
#define TE_CUSTOM_sample_backward(name, model, dtype, op)                                                            \
    static_assert(0, "te: " TE_STRING(model) ": " TE_CALLED(op) " has no gradient: TE_INFERENCE takes it");          \
    te_status name##_run(te_run *r, const te_step *s);

/* The number of blocks for each row, a power of two: at most 8, the largest portable cluster size, and so small that
 * all blocks run at once and each has enough vectors. The results do not depend on this number. */
TE_API int te__sample_blocks(const te_context *ctx, int64_t rows, int width) {
#if TE_CUDA && defined __CUDA_ARCH_LIST__
    static const int compiled[] = {__CUDA_ARCH_LIST__};
    int runs = 0, blocks = 8;
    for (size_t i = 0; i < sizeof compiled / sizeof compiled[0]; i++)
        if (compiled[i] <= ctx->capability && compiled[i] > runs) runs = compiled[i];
    if (runs < 900) return 1;
    while (blocks > 1 && (rows * blocks > ctx->processors || width < blocks * TE_SAMPLE_THREADS * TE_VECTOR / 2))
        blocks /= 2;
    return blocks;
#else
    return (void)ctx, (void)rows, (void)width, 1;
#endif
}
TE_API te_status te__sample_check(const te_sampling *s, int vocabulary, const char *name, te_context *ctx) {
    TE_REQUIRE(s, ctx, TE_ERROR_NULL, "%s: the batch brings no sampling; its member token is where tokens go", name);
    TE_REQUIRE(s->token, ctx, TE_ERROR_NULL, "%s: sampling.token is null", name);
    TE_REQUIRE(!s->temperature || (s->seed && s->counter), ctx, TE_ERROR_NULL,
               "%s: sampling.temperature is given, so seed and counter must be, too", name);
    TE_REQUIRE(s->history || !s->update_history, ctx, TE_ERROR_NULL,
               "%s: sampling.update_history is set, and history is null", name);
    TE_REQUIRE(s->history || (!s->frequency_penalty && !s->presence_penalty), ctx, TE_ERROR_NULL,
               "%s: sampling has a frequency or presence penalty, and history is null", name);
    TE_REQUIRE(s->history || s->prompt || !s->repetition_penalty, ctx, TE_ERROR_NULL,
               "%s: sampling has a repetition penalty, and history and prompt are null", name);
    TE_REQUIRE(s->top >= 0 && s->top <= te_min(TE_SAMPLE_MAX_TOP, vocabulary), ctx, TE_ERROR_VALUE,
               "%s: sampling.top is %d, %d at most", name, s->top, (int)te_min(TE_SAMPLE_MAX_TOP, vocabulary));
    TE_REQUIRE(!s->top || (s->top_token && s->top_log_prob), ctx, TE_ERROR_NULL,
               "%s: sampling.top is %d, and top_token or top_log_prob is null", name, s->top);
    const uintptr_t words = (uintptr_t)s->token | (uintptr_t)s->top_token | (uintptr_t)s->top_log_prob |
                            (uintptr_t)s->temperature | (uintptr_t)s->top_k | (uintptr_t)s->top_p |
                            (uintptr_t)s->min_p | (uintptr_t)s->repetition_penalty | (uintptr_t)s->frequency_penalty |
                            (uintptr_t)s->presence_penalty | (uintptr_t)s->allowed | (uintptr_t)s->prompt;
    TE_REQUIRE(words % 4 == 0 && ((uintptr_t)s->seed | (uintptr_t)s->counter) % 8 == 0 &&
                   (uintptr_t)s->history % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: sampling: history must be aligned to 16 bytes, seed and counter to 8, all others to 4", name);
    return TE_OK;
}
TE_API te_status te__sample_run(te_run *r, const te_step *s, te__sample_launch_fn launch) {
    const int i = s->op[0];
    te__sample_args a;
    te_value y;
    if (r->batch) TE_TRY(te__sample_check(r->batch->sampling, r->plan->op[i].in, r->plan->name, r->ctx));
    TE_TRY(te__output(&y, r, s, i));
    memset(&a, 0, sizeof a);
    a.y = (float *)y.data, a.x = r->current.data, a.rows = (int)r->current.rows;
    a.blocks = te__sample_blocks(r->ctx, a.rows, r->plan->op[i].in);
    if (!r->dry) {
        a.of = *r->batch->sampling;
        TE_TRY(launch(r->ctx, te__grid_of((int64_t)a.rows * a.blocks, 1), &a));
    }
    te__set_current(r, y);
    return TE_OK;
}

#endif
