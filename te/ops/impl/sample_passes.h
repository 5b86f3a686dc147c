/* sample_passes.h -- the passes over the keys of a row of logits, after mask and penalties, for the op sample
 * (te/ops/sample.h), and the selection of a key or a token by the histograms that the passes compute.
 *
 * Do this:
 *     p.selection = te__sample_key_selection(TE__SAMPLE_MASS, 0, 0, te__sample_wish_of(fraction, 0));
 *     te__sample_select(&p, width, dtype, pass); // p.value: the key at which the sum of the masses reaches the target
 */
#ifndef TE_SAMPLE_PASSES_H
#define TE_SAMPLE_PASSES_H

#include "../../core/math.h" /* te_mul_high */
#include "sample_row.h"      /* te__sample_row, te__sample_team */

/* ---- the passes over keys ---------------------------------------------------------------------------------------- */

/* A digit of a key. A radix selection finds a 32-bit key digit by digit, the highest first; the digits are bits 21 to
 * 31, 10 to 20 and 0 to 9. prefix: the higher digits, which have already been found. */
typedef struct te__sample_digit { int shift, bits; uint32_t prefix; } te__sample_digit;
TE_FN te__sample_digit te__sample_digit_of(int level, uint32_t prefix) {
    te__sample_digit d;
    d.shift = level == 0 ? 21 : level == 1 ? 10 : 0, d.bits = level == 2 ? 10 : 11, d.prefix = prefix;
    return d;
}
/* The target sum of a selection: total * fraction / 2^64 + amount, clamped to [1, total], where `total` is the sum of
 * the histogram. */
typedef struct te__sample_wish { uint64_t fraction, amount; } te__sample_wish;
TE_FN te__sample_wish te__sample_wish_of(uint64_t fraction, uint64_t amount) {
    te__sample_wish w;
    w.fraction = fraction, w.amount = amount;
    return w;
}
TE_FN uint64_t te__sample_target(te__sample_wish w, uint64_t total) {
    const uint64_t target = te_mul_high(w.fraction, total) + w.amount;
    return target < 1 ? 1 : target > total ? total : target;
}
/* A selection adds amounts (te__sample_sum) from the largest key down (or from the lowest token up) and finds the key
 * (or token) at which the sum reaches the target `wish`. A key is found digit by digit (te__sample_digit): the
 * selection finds the digits level to end - 1. prefix: the higher digits, which are given. */
typedef struct te__sample_selection {
    te__sample_sum sum;
    int of_tokens, level, end;
    int counted; /* 1 if the histogram of the first level has already been computed */
    uint32_t prefix;
    te__sample_wish wish;
} te__sample_selection;
TE_FN te__sample_selection te__sample_key_selection(te__sample_sum sum, int level, uint32_t prefix,
                                                    te__sample_wish wish) {
    te__sample_selection s;
    s.sum = sum, s.of_tokens = 0, s.level = level, s.end = 3, s.counted = 0, s.prefix = prefix, s.wish = wish;
    return s;
}
/* Returns a selection that finds a token. The selection has two steps: a histogram over the chunks of vectors finds the
 * token's chunk, and te__sample_walk finds the token in this chunk. */
TE_FN te__sample_selection te__sample_token_selection(te__sample_sum sum, te__sample_wish wish) {
    te__sample_selection s = te__sample_key_selection(sum, 2, 0, wish);
    s.of_tokens = 1;
    return s;
}
/* The kinds of passes. Each pass computes the keys of all tokens of a row, after mask and penalties. */
typedef enum te__sample_kind {
    TE__SAMPLE_LARGEST, /* finds the largest key and the lowest token that has it */
    TE__SAMPLE_FIRST,   /* like LARGEST; also counts, in a histogram of digit 0 of the keys, the tokens that can be
                         * drawn */
    TE__SAMPLE_KEYS,    /* adds the amounts (te__sample_sum) of the tokens to the histogram of a digit of the keys */
    TE__SAMPLE_TOKENS,  /* adds the amounts of the tokens to a histogram that has a bin for each chunk of vectors */
    TE__SAMPLE_GATHER   /* appends, to the token list in shared memory, the tokens that the filters keep and whose keys
                         * are at least `least` */
} te__sample_kind;
/* The parameters and the results of a pass, or of a selection, which consists of several passes. */
typedef struct te__sample_pass {
    te__sample_row row;
    te__sample_team team;
    te__sample_kind kind;
    te__sample_sum sum;      /* KEYS, TOKENS: which amounts are added */
    te__sample_digit digit;  /* KEYS: only tokens whose keys have the higher digits digit.prefix are added */
    uint32_t least;          /* GATHER */
    uint64_t best;           /* LARGEST, FIRST: the result, this lane's largest key and the token that has it
                              * (te__sample_best) */
    te__sample_selection selection; /* the parameters of te__sample_select, whose results are `found` and `value` */
    te__sample_found found;
    uint32_t value; /* the key or the token that was found */
} te__sample_pass;
/* Pointers to te__sample_run_pass and te__sample_select, compiled for an op list's width and dtype. On CUDA these two
 * functions are not inlined. */
typedef struct te__sample_calls { void (*pass)(te__sample_pass *p), (*select)(te__sample_pass *p); } te__sample_calls;

/* Runs a pass over this block's vectors. All lanes of a warp read vectors of the same chunk. In a pass that sums masses
 * by the first digit of the keys, a mass below least_mass is added to bin 0 instead of its own bin. This changes
 * neither the histogram's total nor the key that is selected, whose mass is at least least_mass. Memory traffic: reads
 * the logits and, if used, history and masks. */
TE_FN void te__sample_run_pass(te__sample_pass *p, int width, te_dtype dtype) {
    te__sample_row row = p->row;
    const te__sample_team team = p->team, *const t = &team;
    const te__sample_row *const r = &row;
    const te__sample_kind kind = p->kind;
    const te__sample_digit d = p->digit;
    const int lane = t->g.id % TE__SAMPLE_WARP;
    uint64_t best = 0, left_out = 0;
    row.width = width, row.dtype = dtype;
    if (kind == TE__SAMPLE_GATHER && !t->g.id) t->s->noted = 0;
    if (kind != TE__SAMPLE_LARGEST && kind != TE__SAMPLE_GATHER)
        for (int i = t->g.id; i < TE__SAMPLE_BINS; i += t->g.count) t->s->low[i] = 0, t->s->high[i] = 0;
    te_block_sync();
    if (kind == TE__SAMPLE_TOKENS && p->sum >= TE__SAMPLE_MASS && te__sample_is_plain(r, p->sum)) {
        te__sample_plain_chunks(r, t);
        return;
    }
    te_vec8 e, next;
    te__sample_load(&next, r, r->begin);
    TE_UNROLL_1 for (int v0 = r->begin - lane; v0 < r->vectors; v0 += r->stride) {
        uint32_t key[8];
        int token, bin[8];
        uint64_t amount[8], sum = 0;
        e = next;
        te__sample_load(&next, r, v0 + lane + r->stride);
        te__sample_keys_of(key, &token, r, &e, v0 + lane);
        if (kind == TE__SAMPLE_GATHER) {
            int is_listed = 0;
            TE_UNROLL for (int k = 0; k < 8; k++)
                is_listed |= key[k] >= p->least && te__sample_is_kept(r, key[k], token + k);
            if (is_listed) te__sample_note(v0 + lane, t);
            continue;
        }
        if (kind <= TE__SAMPLE_FIRST) {
            TE_UNROLL for (int k = 0; k < 8; k++) {
                const uint64_t of_token = te__sample_best(key[k], token + k);
                best = of_token > best ? of_token : best;
                if (kind == TE__SAMPLE_FIRST && key[k] > TE__SAMPLE_KEY_MINUS_INF)
                    te__sample_count(t->s, (int)(key[k] >> 21));
            }
            continue;
        }
        te__sample_amounts(amount, r, key, token, p->sum);
        if (kind == TE__SAMPLE_TOKENS) {
            TE_UNROLL for (int k = 0; k < 8; k++) sum += amount[k];
            sum = te_warp_sum_u64(sum);
            if (lane == 0 && sum) te__sample_add(t->s, v0 / TE__SAMPLE_CHUNK, sum);
            continue;
        }
        TE_UNROLL for (int k = 0; k < 8; k++) {
            const uint32_t digits = key[k] >> d.shift;
            amount[k] = digits >> d.bits == d.prefix ? amount[k] : 0;
            bin[k] = (int)(digits & ((1u << d.bits) - 1));
        }
        if (p->sum == TE__SAMPLE_MASS)
            TE_UNROLL for (int k = 0; k < 8; k++)
                if (amount[k] < r->least_mass) left_out += amount[k], amount[k] = 0;
        te__sample_add8(t->s, bin, amount);
    }
    p->best = best;
    if (kind == TE__SAMPLE_GATHER) te__sample_append_noted(r, p->least, t);
    if (kind != TE__SAMPLE_KEYS || d.shift != 21) return;
    left_out = te_warp_sum_u64(left_out);
    if (lane == 0 && left_out) te__sample_add(t->s, 0, left_out);
}
/* Appends to the token list those tokens that the filters keep (te__sample_is_kept) and whose keys are at least
 * `least`. Returns 1 if all these tokens fit into the token list. */
TE_FN int te__sample_gather(te__sample_pass *p, uint32_t least, void (*run)(te__sample_pass *)) {
    p->kind = TE__SAMPLE_GATHER, p->least = least;
    run(p);
    te__sample_sync(&p->team);
    return !p->team.s->overflow;
}

/* ---- selection --------------------------------------------------------------------------------------------------- */

/* Returns the sum of a bin over the histograms of all blocks of the row. */
TE_FN uint64_t te__sample_bin(int bin, const te__sample_team *t) {
    uint64_t sum = 0;
    TE_UNROLL for (int k = 0; k < TE__SAMPLE_MAX_BLOCKS; k++) { /* all loads are in flight together */
        if (k >= t->blocks) continue;
        const te__sample_shared *s = te__sample_peer(t, k);
        sum += s->low[bin] + ((uint64_t)s->high[bin] << 32);
    }
    return sum;
}
/* Finds the bin, among the first `bins`, in which the cumulative sum of the histogram reaches the target w. With
 * descending 1 the sum begins at the last of these bins. All lanes of all blocks return the same result. If the
 * histogram is empty, bin and inside are 0. */
TE_FN te__sample_found te__sample_find(int descending, int bins, te__sample_wish w, const te__sample_team *t) {
    const int each = te__sample_ceil(bins, t->g.count), last = bins - 1;
    const int from = (int)te_min(t->g.id * each, bins), to = (int)te_min(from + each, bins);
    uint64_t mine = 0, total;
    te__sample_sync(t); /* wait until the histograms of all blocks are complete */
    for (int j = from; j < to; j++) mine += te__sample_bin(descending ? last - j : j, t);
    uint64_t before = te_lanes_scan_u64(&total, mine, &t->g);
    const uint64_t wish = te__sample_target(w, total);
    if (!t->g.id) t->s->found.target = wish;
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
/* Finds the token of chunk f.bin at which the sum over the chunk reaches f.rest. Every block does this redundantly. */
TE_FN int te__sample_walk(const te__sample_row *r, te__sample_sum sum, te__sample_found f, const te__sample_team *t) {
    const int from = f.bin * TE__SAMPLE_CHUNK, to = (int)te_min(from + TE__SAMPLE_CHUNK, r->vectors);
    uint64_t rest = f.rest;
    TE_UNROLL_1 for (int v0 = from; v0 < to; v0 += t->g.count) {
        uint32_t key[8];
        uint64_t amount[8] = {0, 0, 0, 0, 0, 0, 0, 0}, mine = 0, total;
        int token = 0;
        if (v0 + t->g.id < to) {
            te__sample_keys(key, &token, r, v0 + t->g.id);
            te__sample_amounts(amount, r, key, token, sum);
        }
        TE_UNROLL for (int k = 0; k < 8; k++) mine += amount[k];
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
/* Runs p->selection. p->value becomes the key or token that the selection finds; p->found.inside is 0 if all amounts
 * are 0. */
TE_FN void te__sample_select(te__sample_pass *p, int width, te_dtype dtype, void (*pass)(te__sample_pass *)) {
    const te__sample_selection s = p->selection;
    te__sample_row row = p->row;
    te__sample_wish wish = s.wish;
    uint32_t digits = s.prefix;
    row.width = width, row.dtype = dtype;
    const int bins = s.of_tokens ? te__sample_ceil(row.vectors, TE__SAMPLE_CHUNK) : (int)TE__SAMPLE_BINS;
    p->kind = s.of_tokens ? TE__SAMPLE_TOKENS : TE__SAMPLE_KEYS, p->sum = s.sum;
    /* A 16-bit logit, converted to a float, ends in ten zero bits. So without penalties the last ten bits of a key are
     * determined by the logit's sign, and the last digit needs no pass. */
    const int from_16_bits = te_dtype_bytes(dtype) == 2 && !row.penalised;
    const int end = s.end == 3 && !s.of_tokens && from_16_bits ? 2 : s.end;
    TE_UNROLL_1 for (int level = s.level; level < end; level++) {
        p->digit = te__sample_digit_of(level, digits);
        if (!s.counted) pass(p);
        p->found = te__sample_find(!s.of_tokens, bins, wish, &p->team);
        digits = digits << p->digit.bits | (uint32_t)p->found.bin, wish = te__sample_wish_of(0, p->found.rest);
    }
    if (end < s.end) digits = digits << 10 | (digits >> 21 ? 0u : 0x3ffu);
    p->value = s.of_tokens ? (uint32_t)te__sample_walk(&row, s.sum, p->found, &p->team) : digits;
}
/* Move the cut of row r (cut_key, cut_token) to the key that a selection has found. If only some of the tokens with
 * this key are to be kept, returns how many; these are the tokens with the lowest indices. Otherwise returns 0. */
TE_FN uint64_t te__sample_cut_at(te__sample_row *r, te__sample_sum sum, uint32_t key, te__sample_found f) {
    if (!f.inside) return 0;
    const uint64_t each = sum == TE__SAMPLE_COUNT ? 1 : te__sample_mass(r, key);
    const uint64_t ties = f.inside / each, wanted = (f.rest + each - 1) / each;
    if (key != r->cut_key) r->cut_token = TE__SAMPLE_ALL_TOKENS;
    r->cut_key = key;
    return wanted < ties ? wanted : 0;
}

#endif
