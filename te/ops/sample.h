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
 * temperature, top-k, top-p, min-p; then a token is drawn. Nothing is approximated. Each cut (the least likely token
 * that a filter keeps) is found in a list of the likeliest tokens or, if too many tokens are likely, by radix selection
 * on the bits of the logits: by counts for top-k, by probability mass for top-p. Masses are unnormalised probabilities
 * as integers (2^44 for the largest logit), so sums do not depend on the order, and the token is the same on the host
 * and on CUDA, with any number of blocks and in any batch. docs/inference.md describes the parameters and the
 * exactness.
 *
 * A first pass over the logits finds the largest one, and a bound that at least k tokens reach (512 with top-p alone).
 * A second pass sums exp for y, and lists the tokens that reach the bound. The filters and the draw use this list. With
 * top-p alone a third pass checks that the list suffices. If the list does not suffice or would have more than
 * TE__SAMPLE_LIST tokens, each 11-bit digit of a cut takes one more pass, which reads the logits from the caches. A
 * draw without filters takes one more pass, too. On CUDA a cluster of 1 to 8 blocks processes a row. Memory traffic:
 * reads the logits once; 128 rows of 131072 in bf16 are 33.6 MB: 7.3 us at 4.6 TB/s. Measurements: docs/notes/ops.md.
 */
#ifndef TE_OPS_SAMPLE_H
#define TE_OPS_SAMPLE_H

#include "../core/math.h"         /* te_min */
#include "../core/philox.h"       /* te_philox */
#include "../core/target.h"       /* TE_KERNEL_WITH */
#include "../plan/impl/storage.h" /* te__output */
#include "impl/sample_passes.h"   /* te__sample_pass, te__sample_select */

/* ---- the op ------------------------------------------------------------------------------------------------------ */

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

/* ---- the list ---------------------------------------------------------------------------------------------------- */

/* The token list, the list of the likeliest tokens, is so short that a single block, the first of a row, draws the
 * token from it. The other blocks of the row have nothing left to do. */

/* The parameters of the filters and the draw, which work on the token list. target: for top-p, the target that the sum
 * of the masses of the kept tokens has to reach. */
typedef struct te__sample_rest {
    int top_k;   /* 0: no top-k */
    float top_p; /* 1 or more: no top-p */
    te__sample_wish target;
    uint64_t seed, counter; /* of te_sampling */
} te__sample_rest;

/* Returns a random 64-bit integer u. The draw finds the token at which the sum of the masses reaches total * u / 2^64 +
 * 1. */
TE_FN uint64_t te__sample_uniform(const te__sample_rest *f) {
    uint32_t random[4];
    te_philox(random, f->seed, 0, TE__SAMPLE_STREAM, f->counter);
    return (uint64_t)random[0] << 32 | random[1];
}
#if TE_CUDA
/* Sorts the n entries of the token list in descending order, by a counting sort: a histogram of 2048 bins of equal
 * width yields the place of each bin's entries, and each entry is compared with the other entries of its bin. If too
 * many entries have about the same value, the function returns 0 and leaves the token list as it is. */
TE_FN int te__sample_counting_sort(te__sample_shared *s, int n, const te_lanes *g) {
    enum { EACH = TE__SAMPLE_LIST / TE_SAMPLE_THREADS, BINS_EACH = TE__SAMPLE_BINS / TE_SAMPLE_THREADS, MAX_BIN = 128 };
    uint64_t entry[EACH], largest = 0, inverse = 0, all;
    uint32_t place[EACH], bin[EACH], sum = 0, longest = 0;
    TE_UNROLL for (int i = 0; i < EACH; i++) {
        const int at = g->id + i * TE_SAMPLE_THREADS;
        entry[i] = at < n ? s->list[at] : 0;
        if (at >= n) continue;
        largest = entry[i] > largest ? entry[i] : largest, inverse = ~entry[i] > inverse ? ~entry[i] : inverse;
    }
    TE_UNROLL for (int i = 0; i < BINS_EACH; i++) s->low[g->id + i * TE_SAMPLE_THREADS] = 0;
    largest = te_lanes_max_u64(largest, g), inverse = te_lanes_max_u64(inverse, g);
    const int bits = 64 - __clzll((long long)(largest - ~inverse)), shift = bits > 11 ? bits - 11 : 0;
    TE_UNROLL for (int i = 0; i < EACH; i++) {
        if (g->id + i * TE_SAMPLE_THREADS >= n) continue;
        bin[i] = (uint32_t)((largest - entry[i]) >> shift), place[i] = te__sample_ticket(&s->low[bin[i]]);
    }
    te_block_sync();
    TE_UNROLL for (int i = 0; i < BINS_EACH; i++) {
        const uint32_t count = s->low[g->id * BINS_EACH + i];
        sum += count, longest = count > longest ? count : longest;
    }
    uint32_t start = (uint32_t)te_lanes_scan_u64(&all, sum, g);
    if (te_lanes_max_u64(longest, g) > MAX_BIN) return 0;
    TE_UNROLL for (int i = 0; i < BINS_EACH; i++) {
        s->high[g->id * BINS_EACH + i] = start;
        start += s->low[g->id * BINS_EACH + i];
    }
    te_block_sync();
    TE_UNROLL for (int i = 0; i < EACH; i++)
        if (g->id + i * TE_SAMPLE_THREADS < n) s->list[s->high[bin[i]] + place[i]] = entry[i];
    te_block_sync();
    TE_UNROLL for (int i = 0; i < EACH; i++) {
        if (g->id + i * TE_SAMPLE_THREADS >= n) continue;
        const uint32_t from = s->high[bin[i]], to = from + s->low[bin[i]];
        place[i] = from;
        TE_UNROLL_1 for (uint32_t j = from; j < to; j++) place[i] += s->list[j] > entry[i];
    }
    te_block_sync();
    TE_UNROLL for (int i = 0; i < EACH; i++)
        if (g->id + i * TE_SAMPLE_THREADS < n) s->list[place[i]] = entry[i];
    te_block_sync();
    return 1;
}
#else
TE_FN int te__sample_counting_sort(te__sample_shared *s, int n, const te_lanes *g) {
    return (void)s, (void)n, (void)g, 0;
}
#endif
/* Sorts the first n entries of the token list in descending order; later entries may be overwritten. If a counting sort
 * is not possible, the function uses a bitonic sort (Batcher 1968). In steps that compare entries less than 64 apart,
 * each warp works on 64 entries of its own, so a warp need not wait for other warps. */
TE_FN void te__sample_sort(te__sample_shared *s, int n, const te_lanes *g) {
    uint64_t *a = s->list;
    int size = 2;
    if (te__sample_counting_sort(s, n, g)) return;
    while (size < n) size *= 2;
    TE_UNROLL_1 for (int i = n + g->id; i < size; i += g->count) a[i] = 0;
    te_block_sync();
    TE_UNROLL_1 for (int run = 2; run <= size; run *= 2)
        TE_UNROLL_1 for (int apart = run / 2; apart > 0; apart /= 2) {
            TE_UNROLL_1 for (int pair = g->id; pair < size / 2; pair += g->count) {
                const int i = 2 * pair - (pair & (apart - 1)), descends = !(i & run);
                const uint64_t first = a[i], second = a[i + apart];
                if (descends ? first < second : first > second) a[i] = second, a[i + apart] = first;
            }
            if (apart > 32 || (apart == 1 && run > 32)) te_block_sync();
            else te_warp_sync();
        }
    te_block_sync();
}
/* Returns the mass of an entry of the token list, or 0 if the entry is 0. The key is the high half of the entry or,
 * with by_token 1, the low half. */
TE_FN uint64_t te__sample_entry_mass(const te__sample_row *r, uint64_t entry, int by_token) {
    return entry ? te__sample_mass(r, (uint32_t)(by_token ? entry : entry >> 32)) : 0;
}
/* Returns the first index at which the sum of the masses of the token list's n first entries reaches the target w. */
TE_FN int te__sample_reach(const te__sample_row *r, int n, int by_token, te__sample_wish w, const te__sample_team *t) {
    const int each = te__sample_ceil(n, t->g.count), from = (int)te_min(t->g.id * each, n);
    const int to = (int)te_min(from + each, n);
    uint64_t mine = 0, total;
    TE_UNROLL_1 for (int i = from; i < to; i++) mine += te__sample_entry_mass(r, t->s->list[i], by_token);
    uint64_t before = te_lanes_scan_u64(&total, mine, &t->g);
    const uint64_t target = te__sample_target(w, total);
    if (before < target && target <= before + mine)
        TE_UNROLL_1 for (int i = from; i < to; i++) {
            const uint64_t mass = te__sample_entry_mass(r, t->s->list[i], by_token);
            if (before < target && target <= before + mass) t->s->token = i;
            before += mass;
        }
    te_block_sync();
    return t->s->token;
}
/* Draws a token by sorting the token list, which contains all tokens that the filters keep. Returns the token. */
TE_FN int te__sample_draw_sorted(const te__sample_row *r, te__sample_rest f, const te__sample_team *t) {
    uint64_t *list = t->s->list;
    int n = (int)t->s->listed;
    te__sample_sort(t->s, n, &t->g); /* the likeliest token first */
    n = f.top_k && f.top_k < n ? f.top_k : n;
    if (f.top_p < 1.0f) n = te__sample_reach(r, n, 0, f.target, t) + 1;
    TE_UNROLL_1 for (int i = t->g.id; i < n; i += t->g.count)
        list[i] = list[i] << 32 | (te__sample_entry_mass(r, list[i], 0) < r->min_mass ? 0 : list[i] >> 32);
    te__sample_sort(t->s, n, &t->g); /* the lowest token first */
    const te__sample_wish draw = te__sample_wish_of(te__sample_uniform(&f), 1);
    return te__sample_best_token(list[te__sample_reach(r, n, 1, draw, t)] >> 32);
}
/* Draws a token from a token list that has at most as many entries as the block has lanes. Each lane compares its entry
 * with all other entries, which is faster than sorting such a short list. The masses of the entries are stored in the
 * same array, from index TE_SAMPLE_THREADS on. */
TE_FN int te__sample_draw_short(const te__sample_row *r, te__sample_rest f, const te__sample_team *t) {
    te__sample_shared *s = t->s;
    uint64_t *list = s->list, *mass = list + TE_SAMPLE_THREADS, before = 0, total = 0;
    const int n = (int)s->listed, i = t->g.id, kept = f.top_k && f.top_k < n ? f.top_k : n;
    const uint64_t entry = i < n ? list[i] : 0, mine = te__sample_entry_mass(r, entry, 0);
    const te__sample_wish draw = te__sample_wish_of(te__sample_uniform(&f), 1);
    int place = 0; /* number of larger entries; `before` is the sum of the masses of these entries */
    if (i < n) mass[i] = mine;
    if (!i) s->kept = 0;
    te_block_sync();
    if (i < n) TE_UNROLL_8 for (int j = 0; j < n; j++) {
        const int is_larger = list[j] > entry;
        place += is_larger, before += is_larger ? mass[j] : 0;
    }
    if (i < n && place == kept - 1) s->total = before + mine;
    te_block_sync();
    const uint64_t target = te__sample_target(f.target, s->total);
    const int is_kept = i < n && place < kept && (f.top_p >= 1.0f || before < target) && mine >= r->min_mass;
    te_block_sync(); /* all lanes have read the list */
    if (is_kept) {
        const uint32_t at = te__sample_ticket(&s->kept);
        list[at] = entry, mass[at] = mine;
    }
    te_block_sync();
    before = 0;
    const int all = (int)s->kept;
    if (is_kept) {
        TE_UNROLL_8 for (int j = 0; j < all; j++) { /* the low half of an entry is the inverted token, so a lower token
                                                     * has a larger low half */
            const uint64_t m = mass[j];
            total += m, before += (uint32_t)list[j] > (uint32_t)entry ? m : 0;
        }
        const uint64_t drawn = te__sample_target(draw, total);
        if (before < drawn && drawn <= before + mine) s->token = te__sample_best_token(entry);
    }
    te_block_sync();
    return s->token;
}
TE_FN int te__sample_draw_listed(const te__sample_row *r, te__sample_rest f, const te__sample_team *t) {
    return (int)t->s->listed <= t->g.count ? te__sample_draw_short(r, f, t) : te__sample_draw_sorted(r, f, t);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* Returns a bound such that at least `count` lanes of the block, and if possible at most count + count / 8, have
 * key[lane] >= bound. largest: the largest of the keys. Called by the lanes of one warp. */
TE_FN uint32_t te__sample_bound(const uint32_t *key, uint32_t largest, int count, const te_lanes *g) {
    enum { EACH = TE_SAMPLE_THREADS / TE__SAMPLE_WARP };
    const uint32_t enough = (uint32_t)count;
    uint32_t mine[EACH], differ = 0, bound;
    if (!count) return 0;
    TE_UNROLL for (int i = 0; i < EACH; i++) mine[i] = key[g->id + i * TE__SAMPLE_WARP], differ |= mine[i] ^ largest;
    differ = te_warp_or_u32(differ);
    for (int i = 1; i <= 16; i *= 2) differ |= differ >> i; /* sets all bits below the highest bit in which two keys
                                                             * differ */
    bound = largest & ~differ;
    TE_UNROLL_1 for (uint32_t bit = differ & ~(differ >> 1); bit >= 1u << 16; bit >>= 1) {
        uint32_t lanes = 0;
        TE_UNROLL for (int i = 0; i < EACH; i++) lanes += mine[i] >= (bound | bit);
        lanes = te_warp_sum_u32(lanes);
        if (lanes < enough) continue;
        bound |= bit;
        if (lanes <= enough + enough / 8) break;
    }
    return bound;
}
/* Divides `count` among the blocks: returns how many lanes of each block have to reach the block's bound
 * (te__sample_bound). Then at least `count` lanes of the row, and so at least `count` tokens, reach the smallest of
 * these bounds. Returns 0 if the token list would become too long. */
TE_FN int te__sample_bound_lanes(int count, const te__sample_team *t) {
    const int lanes = te__sample_ceil(count, t->blocks);
    return count <= TE__SAMPLE_LIST / 2 && lanes <= t->g.count / 4 * 3 ? lanes : 0;
}
/* Like te__sample_bound_lanes, but for te__sample_segment_bound. Returns 0 if the token list would become too long or
 * the row is short (te__sample_is_long). */
TE_FN int te__sample_bound_segments(int count, const te__sample_row *r, const te__sample_team *t) {
    const int segments = te__sample_ceil(count, t->blocks);
    return count <= TE__SAMPLE_LIST / 2 && segments <= t->g.count * TE__SAMPLE_SEGMENTS / 4 * 3 &&
           te__sample_is_long(r) ? segments : 0;
}
/* Returns a bound such that at least `count` segments of the block's lanes, and if possible at most count + count / 8,
 * have a largest key that is not below the bound. Called by all lanes of the block. Each iteration finds two bits of
 * the bound: `tally` holds, in 16 bits each, how many segments reach the bound if these two bits are 1, 2 or 3. */
TE_FN uint32_t te__sample_segment_bound(int count, const te__sample_team *t) {
    uint32_t mine[TE__SAMPLE_SEGMENTS], bound = 0;
    TE_UNROLL for (int s = 0; s < TE__SAMPLE_SEGMENTS; s++) mine[s] = t->s->high[s * TE_SAMPLE_THREADS + t->g.id];
    TE_UNROLL_1 for (int shift = 30; shift >= 16; shift -= 2) {
        uint64_t tally = 0, all;
        uint32_t digit = 0, segments = 0;
        TE_UNROLL for (int s = 0; s < TE__SAMPLE_SEGMENTS; s++)
            TE_UNROLL for (uint32_t d = 1; d <= 3; d++)
                tally += (uint64_t)(mine[s] >= (bound | d << shift)) << 16 * (d - 1);
        (void)te_lanes_scan_u64(&all, tally, &t->g);
        for (uint32_t d = 1; d <= 3; d++) {
            const uint32_t n = (uint32_t)(all >> 16 * (d - 1)) & 0xffffu;
            if (n >= (uint32_t)count) digit = d, segments = n;
        }
        bound |= digit << shift;
        if (digit && segments <= (uint32_t)(count + count / 8)) break;
    }
    return bound;
}
/* How many lanes or segments of each block have to reach a bound. The bound for top-k and top-p: `lanes` lanes
 * (te__sample_bound) or, if lanes is 0, `segments` segments (te__sample_segment_bound). The bound for te_sampling.top:
 * lanes_top lanes. If the number is 0, no such bound is computed. */
typedef struct te__sample_bounds { int lanes, segments, lanes_top; } te__sample_bounds;
/* After the first pass, exchanges the maxima and the bounds between the blocks of the row. best: this lane's largest
 * key with its token (te__sample_best); plain: this lane's largest key of the logits without mask and penalties.
 * Returns the maxima over the row, and the smallest of the blocks' bounds. If `greedy` is 0, `best` of the result holds
 * only the key and no token. */
TE_FN te__sample_part te__sample_maxima(uint64_t best, uint32_t plain, te__sample_bounds bounds, int greedy,
                                        const te__sample_team *t) {
    te__sample_part p = {0, 0, 0, 0};
    if (greedy) best = te_lanes_max_u64(best, &t->g);
    t->s->lane_key[0][t->g.id] = (uint32_t)(best >> 32), t->s->lane_key[1][t->g.id] = plain;
    te_block_sync();
    if (bounds.segments) p.bound_k = te__sample_segment_bound(bounds.segments, t);
    te__sample_wait(t);
    if (t->g.id < TE__SAMPLE_WARP) {
        uint32_t largest[2] = {0, 0};
        TE_UNROLL for (int i = t->g.id; i < TE_SAMPLE_THREADS; i += TE__SAMPLE_WARP)
            TE_UNROLL for (int k = 0; k < 2; k++) {
                const uint32_t key = t->s->lane_key[k][i];
                largest[k] = key > largest[k] ? key : largest[k];
            }
        TE_UNROLL for (int k = 0; k < 2; k++) largest[k] = te_warp_max_u32(largest[k]);
        p.best = greedy ? best : (uint64_t)largest[0] << 32, p.raw = largest[1];
        if (bounds.lanes) p.bound_k = te__sample_bound(t->s->lane_key[0], largest[0], bounds.lanes, &t->g);
        p.bound_top = te__sample_bound(t->s->lane_key[1], largest[1], bounds.lanes_top, &t->g);
        TE_UNROLL_1 for (int k = t->g.id; k < t->blocks; k += TE__SAMPLE_WARP)
            te__sample_peer(t, k)->part[t->rank] = p;
    }
    te__sample_sync(t);
    p = t->s->part[0];
    TE_UNROLL_8 for (int k = 1; k < t->blocks; k++) {
        const te__sample_part *other = &t->s->part[k];
        p.best = other->best > p.best ? other->best : p.best, p.raw = other->raw > p.raw ? other->raw : p.raw;
        p.bound_k = other->bound_k < p.bound_k ? other->bound_k : p.bound_k;
        p.bound_top = other->bound_top < p.bound_top ? other->bound_top : p.bound_top;
    }
    p.bound_k = te__sample_drawable(p.bound_k), p.bound_top = te__sample_drawable(p.bound_top);
    return p;
}
/* Sends this lane's sum of masses of the second pass to the first block, and waits for all blocks. */
TE_FN void te__sample_send_mass(uint64_t sum, const te__sample_team *t) {
    sum = te_warp_sum_u64(sum);
    if (t->g.id % TE__SAMPLE_WARP == 0)
        te__sample_peer(t, 0)->mass[t->rank][t->g.id / TE__SAMPLE_WARP] = sum;
    te__sample_sync(t);
}
/* Return, in the first block, the sum of the masses that all blocks have sent. */
TE_FN uint64_t te__sample_all_mass(const te__sample_team *t) {
    enum { WARPS = TE_SAMPLE_THREADS / TE__SAMPLE_WARP };
    uint64_t sum = 0;
    TE_UNROLL_1 for (int i = t->g.id % TE__SAMPLE_WARP; i < t->blocks * WARPS; i += TE__SAMPLE_WARP)
        sum += t->s->mass[i / WARPS][i % WARPS];
    return te_warp_sum_u64(sum);
}
/* Returns the log-probability of a token. key: the token's key; top: the row's largest key; mass: the sum of all masses
 * of the row. */
TE_FN float te__sample_log_prob(uint32_t key, uint32_t top, uint64_t mass) {
    const float d = key == top ? 0.0f : te__sample_logit(key) - te__sample_logit(top);
    return top == TE__SAMPLE_KEY_NAN || !mass ? NAN : d - logf((float)mass * 5.684341886080802e-14f); /* 2^-44 */
}
/* Stores the o->top tokens with the largest logits before mask and penalties, the largest first. If the largest of
 * these logits is neither NaN nor -infinity, the token list contains all these tokens, and possibly others. */
TE_FN void te__sample_store_top(const te__sample_row *r, uint32_t raw_top, uint64_t mass, const te__sample_team *t) {
    const te_sampling *o = &r->a->of;
    const int64_t at = (int64_t)r->row * o->top;
    const int usable = te__sample_is_usable(raw_top), found = usable ? (int)t->s->listed : 0;
    if (t->rank) return;
    TE_UNROLL_1 for (int i = t->g.id; i < found; i += t->g.count) {
        const uint64_t entry = t->s->list[i];
        int place = 0;
        TE_UNROLL_4 for (int j = 0; j < found; j++) place += t->s->list[j] > entry;
        if (place >= o->top) continue;
        o->top_token[at + place] = te__sample_best_token(entry);
        o->top_log_prob[at + place] = te__sample_log_prob((uint32_t)(entry >> 32), raw_top, mass);
    }
    TE_UNROLL_1 for (int i = found + t->g.id; i < o->top; i += t->g.count)
        o->top_token[at + i] = -1, o->top_log_prob[at + i] = usable ? -INFINITY : NAN;
}
/* Stores the results of a row. Only one lane of the row calls this function. */
TE_FN void te__sample_store(const te__sample_row *r, int token, uint32_t raw_top, uint64_t mass) {
    const te_sampling *o = &r->a->of;
    o->token[r->row] = token;
    r->a->y[r->row] =
        token < 0 ? NAN
                  : te__sample_log_prob(te__sample_key(te_load(r->a->x, r->at + token, r->dtype)), raw_top, mass);
    if (o->counter) o->counter[r->row]++;
    if (token >= 0 && o->update_history && o->history[r->at + token] < 65535u) o->history[r->at + token]++;
}
/* Move the cut of p->row, the least likely token that the filters keep, to the key that selection s finds. If only some
 * of the tokens with this key are to be kept, a second selection finds the last kept token. */
TE_FN void te__sample_cut(te__sample_pass *p, te__sample_selection s, te__sample_calls calls) {
    TE_UNROLL_1 for (int of_tokens = 0; of_tokens < 2; of_tokens++) {
        p->selection = s;
        calls.select(p);
        if (of_tokens) {
            p->row.cut_token = (int)p->value;
            return;
        }
        const uint64_t wanted = te__sample_cut_at(&p->row, s.sum, p->value, p->found);
        if (!wanted) return;
        s = te__sample_token_selection(TE__SAMPLE_TIES, te__sample_wish_of(0, wanted));
    }
}
/* Empties the token list after all blocks have read it. */
TE_FN void te__sample_clear_list(const te__sample_team *t) {
    te__sample_sync(t);
    if (!t->g.id) t->s->listed = t->s->overflow = 0;
    te__sample_sync(t);
}
/* Finds and stores the o->top tokens with the largest logits before mask and penalties. listed: 1 if the token list
 * already contains these tokens. */
TE_FN void te__sample_find_top(te__sample_pass *p, int listed, uint32_t raw_top, uint64_t mass,
                               te__sample_calls calls) {
    const te__sample_row row = p->row;
    if (!listed && te__sample_is_usable(raw_top)) {
        te__sample_clear_list(&p->team);
        p->row = te__sample_raw_row(row, raw_top);
        te__sample_cut(p, te__sample_key_selection(TE__SAMPLE_COUNT, 0, 0,
                                                   te__sample_wish_of(0, (uint64_t)row.a->of.top)), calls);
        (void)te__sample_gather(p, 0, calls.pass);
        p->row = row;
    }
    te__sample_store_top(&row, raw_top, mass, &p->team);
    te__sample_clear_list(&p->team);
}
/* Returns 1 if the sum of the masses of the token list reaches the target of top-p. The token list then contains all
 * tokens that top-p keeps, and the function replaces f->target, a fraction of the total, by an absolute mass. */
TE_FN int te__sample_list_suffices(te__sample_pass *p, te__sample_rest *f, te__sample_calls calls) {
    const te__sample_team *t = &p->team;
    const int bins = te__sample_ceil(p->row.vectors, TE__SAMPLE_CHUNK);
    uint64_t mine = 0, mass;
    p->kind = TE__SAMPLE_TOKENS, p->sum = TE__SAMPLE_MASS;
    calls.pass(p);
    const uint64_t target = te__sample_find(0, bins, f->target, t).target;
    if (!t->rank) {
        TE_UNROLL_1 for (int i = t->g.id; i < (int)t->s->listed; i += t->g.count)
            mine += te__sample_entry_mass(&p->row, t->s->list[i], 0);
        (void)te_lanes_scan_u64(&mass, mine, &t->g);
        if (!t->g.id && mass < target) te__sample_overflow(t);
    }
    te__sample_sync(t);
    if (!t->s->overflow) f->target = te__sample_wish_of(0, target);
    return !t->s->overflow;
}
/* Moves the cut of p->row to the cut of top-k, which selection k finds. Returns 0 if there is no top-p. With top-p,
 * lists all tokens that top-p may keep, and returns 1 if they fit into the token list. If they do not fit, moves the
 * cut of p->row to the cut of top-p and returns 0. */
TE_FN int te__sample_make_list(te__sample_pass *p, te__sample_rest *f, te__sample_selection k,
                               te__sample_calls calls) {
    if (f->top_k) te__sample_cut(p, k, calls);
    if (f->top_p >= 1.0f) return 0;
    /* list all tokens whose key's first digit is at least that of top-p's cut */
    p->selection = te__sample_key_selection(TE__SAMPLE_MASS, 0, 0, f->target), p->selection.end = 1;
    calls.select(p);
    const te__sample_found found = p->found;
    const uint32_t digit = p->value;
    if (te__sample_gather(p, digit << 21, calls.pass)) return f->target = te__sample_wish_of(0, found.target), 1;
    te__sample_cut(p, te__sample_key_selection(TE__SAMPLE_MASS, 1, digit, te__sample_wish_of(0, found.rest)), calls);
    return 0;
}
/* Returns, in every block, the token that is drawn from p->row by passes over the row. uniform: te__sample_uniform. */
TE_FN int te__sample_draw_unlisted(te__sample_pass *p, uint64_t uniform, te__sample_calls calls) {
    p->selection = te__sample_token_selection(TE__SAMPLE_DRAW, te__sample_wish_of(uniform, 1));
    calls.select(p);
    te__sample_sync(&p->team); /* wait until no block reads history, which is written next */
    return p->found.inside ? (int)p->value : -1;
}
/* The body of the kernel: processes the vectors of a row that belong to this block. */
TE_FN void te__sample_body(const te__sample_args *a, te_block b, te__sample_shared *shared, int width, te_dtype dtype,
                           te__sample_calls calls) {
    const te_sampling *o = &a->of;
    te__sample_pass p;
    te__sample_team t;
    te__sample_held held;
    int group;
    t.g = te_lanes_here(TE_SAMPLE_THREADS, &group);
    t.s = shared, t.blocks = a->blocks, t.rank = b.x % a->blocks;
    te__sample_row r = te__sample_row_of(a, &t, b.x / a->blocks, width, dtype);
    te__sample_fetch(&held, &r, 0);
    TE_UNROLL for (int i = 1; i < TE__SAMPLE_PREFETCH; i++) te__sample_prefetch(&r, i, &t);
    if (!t.g.id) shared->listed = shared->noted = shared->overflow = 0, shared->token = -1;
    te__sample_arrive(&t);

    /* the parameters of the row, whose loads are in flight during the first pass */
    te__sample_penalise(&r);
    const float temperature = te__sample_param(o->temperature, r.row, 0.0f);
    const float min_p = te__sample_param(o->min_p, r.row, 0.0f);
    const int top_k = o->top_k ? o->top_k[r.row] : 0;
    te__sample_rest f = {0, te__sample_param(o->top_p, r.row, 1.0f), {0, 0}, 0, 0};
    if (o->temperature) f.seed = o->seed[r.row], f.counter = o->counter[r.row];
    const te__sample_largest largest = te__sample_first_pass(&held, &r, &t);
    const int greedy = !(temperature >= 1e-5f) || top_k == 1;
    if (!greedy && top_k > 0 && top_k < width) f.top_k = top_k;
    const int draws_nucleus = !greedy && !f.top_k && f.top_p < 1.0f;
    f.target.fraction = f.top_p > 0 && f.top_p < 1.0f ? (uint64_t)(f.top_p * 4294967296.0f) << 32 : 0;
    const int differ = r.penalised || r.allowed;
    const int likely = f.top_k ? f.top_k : draws_nucleus ? TE__SAMPLE_LIST / 4 : 0; /* the least number of tokens that
                                                                                     * the token list should have */
    te__sample_bounds bounds = {0, 0, 0};
    if (likely) bounds.lanes = te__sample_bound_lanes(likely, &t);
    if (likely && !bounds.lanes && !differ) bounds.segments = te__sample_bound_segments(likely, &r, &t);
    if (o->top) bounds.lanes_top = te__sample_bound_lanes(o->top, &t);
    const int bounded = bounds.lanes || bounds.segments, counts = f.top_k && !bounded;
    uint64_t best = (uint64_t)largest.key << 32;
    p.team = t;
    if (differ || counts) {
        p.row = r, p.kind = counts ? TE__SAMPLE_FIRST : TE__SAMPLE_LARGEST;
        calls.pass(&p);
        best = p.best;
    } else if (greedy) best = te__sample_best(largest.key, te__sample_token_of(&r, largest.vector, largest.key));
    const te__sample_part top = te__sample_maxima(best, largest.key, bounds, greedy, &t);
    r.top = (uint32_t)(top.best >> 32);
    const int usable = te__sample_is_usable(r.top), draws = usable && !greedy;
    int token = usable ? te__sample_best_token(top.best) : -1;

    /* The token list will contain all tokens whose key is at least least_k. These include all tokens that the filters
     * keep, except perhaps with top-p alone, where te__sample_list_suffices checks this. If the filters may keep too
     * many tokens, least_k is 0, and no list is made for them. */
    te__sample_selection k = te__sample_key_selection(TE__SAMPLE_COUNT, 0, 0,
                                                      te__sample_wish_of(0, (uint64_t)f.top_k));
    uint32_t least_k = draws && bounded ? top.bound_k : 0;
    if (draws && !likely && min_p > 0 && f.top_p >= 1.0f) /* min-p alone */
        least_k = te__sample_least_of_min_p(r.top, min_p, temperature);
    if (draws && counts) {
        p.row = r, p.selection = k, p.selection.end = 1, p.selection.counted = 1;
        calls.select(&p);
        if ((uint64_t)f.top_k - p.found.rest + p.found.inside <= TE__SAMPLE_LIST) least_k = p.value << 21;
        k = te__sample_key_selection(TE__SAMPLE_COUNT, 1, p.value, te__sample_wish_of(0, p.found.rest));
    }
    const uint32_t least_top = bounds.lanes_top && te__sample_is_usable(top.raw) ? top.bound_top : 0;
    const uint32_t least = o->top ? least_top : differ ? 0 : least_k;

    /* the second pass */
    te__sample_send_mass(te__sample_second_pass(&held, &r, top.raw, least, &t), &t);
    const uint64_t mass = t.rank ? 0 : te__sample_all_mass(&t);
    int listed = least && !shared->overflow;
    if (!listed && least && !o->top) te__sample_clear_list(&t), least_k = 0;
    if (o->top) {
        p.row = r;
        te__sample_find_top(&p, listed, top.raw, mass, calls);
        listed = 0;
    }

    if (draws) {
        te__sample_set_temperature(&r, temperature);
        if (min_p > 0) r.min_mass = (uint64_t)((min_p < 1.0f ? min_p : 1.0f) * 17592186044416.0f); /* 2^44 */
        p.row = r;
        if (!listed && least_k) listed = te__sample_gather(&p, least_k, calls.pass);
        if (listed && draws_nucleus) listed = te__sample_list_suffices(&p, &f, calls);
        if (!listed) {
            if (least_k) te__sample_clear_list(&t);
            /* The tokens below least_mass together have less than 1 - p of the total mass: top-p keeps none of them. */
            p.row.least_mass = te_mul_high(~f.target.fraction, (uint64_t)1 << TE__SAMPLE_MASS_BITS) / (uint64_t)width;
            listed = te__sample_make_list(&p, &f, k, calls);
        }
        if (!listed) token = te__sample_draw_unlisted(&p, te__sample_uniform(&f), calls);
        else if (t.rank) return;
        else token = te__sample_draw_listed(&r, f, &t);
    }
    if (!t.rank && !t.g.id) te__sample_store(&r, token, top.raw, mass);
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
#if TE_CUDA
#define TE__SAMPLE_CALL static __device__ __noinline__
#else
#define TE__SAMPLE_CALL TE_CALLBACK
#endif
#define TE_CUSTOM_sample_forward(name, model, dtype, op)                                                             \
    TE__SAMPLE_CALL void name##_pass(te__sample_pass *p) {                                                           \
        te__sample_run_pass(p, TE_WIDTH_IN(model, op), (te_dtype)TE_DTYPE_IN(model, op));                            \
    }                                                                                                                \
    TE__SAMPLE_CALL void name##_select(te__sample_pass *p) {                                                         \
        te__sample_select(p, TE_WIDTH_IN(model, op), (te_dtype)TE_DTYPE_IN(model, op), name##_pass);                 \
    }                                                                                                                \
    TE_FN void name##_body(const te__sample_args *a, te_block b, te__sample_registers *r, te__sample_shared *s) {    \
        const te__sample_calls calls = {name##_pass, name##_select};                                                 \
        (void)r;                                                                                                     \
        te__sample_body(a, b, s, TE_WIDTH_IN(model, op), (te_dtype)TE_DTYPE_IN(model, op), calls);                   \
    }                                                                                                                \
    TE_KERNEL_WITH(name, TE_SAMPLE_THREADS, 1, te__sample_args, te__sample_registers, te__sample_shared,             \
                   name##_body)                                                                                      \
    TE__SAMPLE_LAUNCH(name)                                                                                          \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__sample_run(r, s, name##_clusters); }
#define TE_CUSTOM_sample_backward(name, model, dtype, op)                                                            \
    static_assert(0, "te: " TE_STRING(model) ": " TE_CALLED(op) " has no gradient: TE_INFERENCE takes it");          \
    te_status name##_run(te_run *r, const te_step *s);

/* Returns the number of blocks for each row, a power of two. The number is at most TE__SAMPLE_MAX_BLOCKS, and so small
 * that all blocks run at once and that each block has enough vectors. The results do not depend on this number. */
TE_API int te__sample_blocks(const te_context *ctx, int64_t rows, int width) {
#if TE_CUDA && defined __CUDA_ARCH_LIST__
    static const int compiled[] = {__CUDA_ARCH_LIST__};
    int runs = 0, blocks = TE__SAMPLE_MAX_BLOCKS;
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
