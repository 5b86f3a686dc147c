/* router_kernels.h -- the result of a router (te_routing), and the router's kernels: they choose each token's experts,
 * order the routed rows, and compute the gradients. The op and its steps are in router.h.
 */
#ifndef TE_ROUTER_KERNELS_H
#define TE_ROUTER_KERNELS_H

#include "../../core/math.h"         /* te_exp, te_sigmoid */
#include "../../core/tensor.h"       /* te_load8, te_store8 */
#include "../../plan/impl/storage.h" /* te_run, te_plan */
#include "../elementwise.h"         /* te_formats */

typedef enum te_router_score { TE_SCORE_softmax, TE_SCORE_sigmoid, TE_SCORE_softmax_of_chosen } te_router_score;
enum { TE_ROUTER_MAX_EXPERTS = 1024, TE_ROUTER_MAX_TOP_K = 32, TE_ROUTER_MAX_GROUPS = 32 };
typedef struct te_router_options {
    int experts, top_k, score, renormalise, bias, choice_bias, groups, groups_kept, weighs_input;
    float factor, aux_loss, z_loss;
    double capacity;
} te_router_options;

/* ---- the routing: which rows go where ---------------------------------------------------------------------------- */

/* The result of a router: each token's experts and their weights, and the routed rows (one row for each token and
 * chosen expert, ordered by expert). expert_linear, combine and backward read this struct's arrays. In training the
 * arrays are stored in te_saved, as the router's statistics. In inference the arrays stay in the workspace until the
 * combine has run. */
typedef struct te_routing {
    float *logits;    /* [tokens, experts], including the bias; only for this rank's tokens if the router exchanges rows
                       * between ranks */
    float *weight;    /* [tokens, top_k]: the weights of each token's experts, in the order of the choice */
    int32_t *expert;  /* [tokens, top_k] */
    int32_t *row;     /* [tokens, top_k]: the routed rows of the token */
    int32_t *slot;    /* [tokens * top_k], the inverse of `row`: slot[row[i]] = i, where i is token * top_k + j for the
                       * j-th expert of a token */
    int32_t *offset;  /* [experts + 1]: expert e has the routed rows offset[e] to offset[e + 1] - 1 */
    int first, count; /* this rank has the experts first to first + count - 1, and computes only the rows of these
                       * experts */
    int capacity;     /* only the first `capacity` rows of an expert are computed; all other rows of the expert are
                       * dropped */
    int is_part;      /* 1 if there may be rows that this rank does not compute, because of first and count or because
                       * of the capacity */
    int weighs_input; /* 1 if the weights multiply the inputs of the experts, 0 if they multiply the outputs */
} te_routing;
/* A number of floats per routed row that is enough for all arrays of a te_routing if there are at least TE_ROW_PAD
 * rows. logits: the number of logits that are stored for each token. */
#define TE__ROUTING_FLOATS(experts, logits, top_k) \
    (4 + ((logits) + (top_k) - 1) / (top_k) + ((experts) + TE_ROW_PAD) / TE_ROW_PAD)
/* Returns the largest number of rows that an expert computes: ceil(capacity * tokens * top_k / experts), or all rows if
 * the option capacity is 0. The factor 1 - 1e-7 keeps a rounding error from adding a row: 1.1f * 30 is slightly above
 * 33, and the result is 33. */
TE_API int te__expert_capacity(te_router_options o, int64_t tokens) {
    const double rows = o.capacity * (double)tokens * o.top_k / o.experts;
    return o.capacity > 0 && rows < (double)tokens ? (int)te_max(1, (int64_t)ceil(rows * (1 - 1e-7))) : (int)tokens;
}
TE_API te_routing te__routing_at(void *memory, int64_t tokens, int64_t logits, te_router_options o) {
    const int64_t rows = tokens * o.top_k;
    te_routing t;
    t.logits = (float *)memory, t.weight = t.logits + logits;
    t.expert = (int32_t *)(void *)(t.weight + rows), t.row = t.expert + rows;
    t.slot = t.row + rows, t.offset = t.slot + rows;
    t.first = 0, t.count = o.experts, t.capacity = te__expert_capacity(o, tokens), t.is_part = o.capacity > 0;
    t.weighs_input = o.weighs_input;
    return t;
}
/* Returns whether this rank computes the routed row of a token's j-th expert, that is, whether this rank has the expert
 * and the row is within the expert's capacity. at: token * top_k + j. */
TE_FN int te__is_computed(const te_routing *t, int64_t at) {
    if (!t->is_part) return 1;
    const int e = t->expert[at];
    return (unsigned)(e - t->first) < (unsigned)t->count && t->row[at] - t->offset[e] < t->capacity;
}
/* Returns the factors by which the input and the output of a token's j-th expert are multiplied. at: token * top_k +
 * j. */
TE_FN float te__input_weight(const te_routing *t, int64_t at) { return t->weighs_input ? t->weight[at] : 1.0f; }
TE_FN float te__output_weight(const te_routing *t, int64_t at) { return t->weighs_input ? 1.0f : t->weight[at]; }
/* Returns whether this rank computes routed row `row`. */
TE_FN int te__is_computed_row(const te_routing *t, int64_t row) {
    return !t->is_part || te__is_computed(t, t->slot[row]);
}
/* Returns the index of the router whose routed rows op i reads. The search goes backwards through the list of ops; from
 * a load the search continues at the load's fork. */
TE_API int te__router_of(const te_plan *p, int i) {
    for (i--; i >= 0 && !te__is_router(p, i);) i = p->op[i].flags & TE_IS_LOAD ? p->op[i].edge : i - 1;
    return i;
}
TE_API te_router_options te__router_options_of(const te_plan *p, int router) {
    return *(const te_router_options *)p->op[router].options;
}
TE_API te_routing te__routing_of(const te_run *r, int router) {
    void *memory = r->pass == TE_INFER ? r->edge[router].data : (void *)r->stats[router];
    const te_router_options o = te__router_options_of(r->plan, router);
    const int ranks = r->plan->op[router].ranks;
    te_routing t = te__routing_at(memory, r->tokens, te__rows_in(r, r->plan->op[router].in_rows) * o.experts, o);
    if (ranks > 1) t.is_part = 1, t.count /= ranks, t.first = r->tensor->rank % ranks * t.count;
    return t;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

enum {
    TE_ROUTER_LANES = TE_CUDA ? 32 : 1,
    TE_ROUTER_WARPS = TE_CUDA ? 8 : 1,
    TE_ROUTER_MAX_WARPS = TE_CUDA ? 32 : 1, /* the largest number of warps of a block of te_router_choose */
    TE_ROUTER_THREADS = TE_ROUTER_LANES * TE_ROUTER_WARPS,
    TE_ROUTER_CHUNK = 64, /* number of tokens that a block of te_router_choose processes, one for each bit of a 64-bit
                           * word */
    TE_ROUTER_VALUES = TE_ROUTER_MAX_EXPERTS / TE_ROUTER_LANES, /* the largest number of experts of a lane */
    TE_ROUTER_MAX_SORTED = TE_CUDA ? 16 : 0, /* a lane with at most this many experts sorts them before the choice */
    TE_ROUTER_SPLIT = TE_CUDA ? 8 : 1, /* number of blocks of te_router_gather that copy the rows of one chunk */
    TE_SCAN_WARPS = TE_CUDA ? 32 : 1,
    TE_ROUTER_SUM_TOKENS = 64 /* number of tokens whose gradients a block of te_router_bias_sum adds up */
};
typedef struct te_router_args {
    te_routing at;
    const void *bias, *choice_bias; /* [experts] */
    int32_t *rank;   /* [tokens, top_k]: how many earlier tokens of the same chunk have chosen the same expert */
    int32_t *before; /* [chunks, experts]: how many tokens of each chunk have chosen the expert; after te_router_scan,
                      * how many tokens of all earlier chunks have chosen the expert */
    int32_t *count;  /* [experts]: how many rows each expert has */
    const void *x;   /* input: te_router_gather reads x, [tokens, hidden]; te_router_sum reads the gradient of the
                      * routed rows */
    void *y;         /* output: te_router_gather stores the routed rows, te_router_sum dx, te_router_gradient dlogits */
    const float *more;    /* te_router_sum: the part of dx that comes through the logits, [tokens, hidden]; or null */
    const void *input;    /* te_router_weigh_gradient: the router's input, [tokens, hidden] */
    float *dweight;       /* the gradients of the weights, [tokens, top_k] */
    float *dbias;         /* te_router_bias_sum: the sums of dlogits over the tokens of each block, [blocks, experts] */
    int64_t tokens;     /* number of tokens that the kernel processes */
    int64_t all_tokens; /* the number of tokens of all ranks if the router exchanges rows, else `tokens` */
    int experts, top_k;
    float loss_scale;
} te_router_args;

/* The numbers of warps and of threads of a block of te_router_choose. A warp processes its tokens one after the other,
 * so in decoding the kernel's time grows with the number of tokens of a warp. With 32 warps each warp has two of the 64
 * tokens of a chunk. With more than 256 experts a block has fewer warps, because a thread needs more registers. */
#define TE__CHOOSE_WARPS(experts) ((int)(experts) <= 256 ? (int)TE_ROUTER_MAX_WARPS : (int)TE_ROUTER_WARPS)
#define TE__CHOOSE_THREADS(experts) ((int)TE_ROUTER_LANES * TE__CHOOSE_WARPS(experts))
/* The number of experts of a lane. */
TE_FN int te__router_values(const int experts) { return (experts + TE_ROUTER_LANES - 1) / TE_ROUTER_LANES; }
/* Maps a score to an integer, so that larger scores have larger integers. NaN counts as -infinity. The integer is never
 * 0; a 0 marks an expert that cannot be chosen. */
TE_FN uint32_t te__router_key(float score) {
    const uint32_t bits = te_bits_of_float(score == score ? score + 0.0f : -INFINITY);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
TE_FN float te__router_of_key(uint32_t key) { return te_float_of_bits(key >> 31 ? key & 0x7fffffffu : ~key); }
/* The keys (te__router_key) of those experts of a lane that have not been chosen yet. At the beginning lane i has the
 * experts i, i + the number of lanes, and so on. */
typedef struct te_router_keys {
    uint32_t key[TE_ROUTER_VALUES];
    int expert[TE_ROUTER_VALUES]; /* used only if the keys are sorted; else key[v] belongs to expert v * lanes + lane */
} te_router_keys;
/* Sorts the keys of a lane in descending order; equal keys stay in the order of their experts. */
TE_FN void te__router_sort(te_router_keys *k, const int values, te_lanes g) {
    if (values > TE_ROUTER_MAX_SORTED) return;
    TE_UNROLL for (int v = 0; v < values; v++) k->expert[v] = v * TE_ROUTER_LANES + g.id;
    TE_UNROLL for (int n = 0; n < values; n++) /* odd-even transposition sort, whose indices are constants, so that the
                                                * keys stay in registers */
        TE_UNROLL for (int v = n % 2; v + 1 < values; v += 2) {
            const uint32_t a = k->key[v], b = k->key[v + 1];
            const int of_a = k->expert[v], of_b = k->expert[v + 1];
            k->key[v] = a < b ? b : a, k->key[v + 1] = a < b ? a : b;
            k->expert[v] = a < b ? of_b : of_a, k->expert[v + 1] = a < b ? of_a : of_b;
        }
}
/* Chooses the expert with the largest key of a token (on a tie the expert with the lowest number), and removes this
 * key. The lane that had the key returns the expert, all other lanes return -1. *top becomes the key, in all lanes. */
TE_FN int te__router_take(uint32_t *top, te_router_keys *k, const int values, te_lanes g) {
    const int is_sorted = values <= TE_ROUTER_MAX_SORTED;
    uint32_t best = k->key[0];
    int at = 0;
    TE_UNROLL for (int v = 1; !is_sorted && v < values; v++) if (k->key[v] > best) best = k->key[v], at = v;
    const int expert = is_sorted ? k->expert[0] : at * TE_ROUTER_LANES + g.id;
    *top = te_warp_max_u32(best);
    int is_here = best == *top;
    if (te_warp_count(is_here) > 1) /* several lanes have this score */
        is_here &= te_warp_max_u32(is_here ? ~(uint32_t)expert : 0u) == ~(uint32_t)expert;
    if (is_sorted) {
        TE_UNROLL for (int v = 0; v + 1 < values; v++)
            if (is_here) k->key[v] = k->key[v + 1], k->expert[v] = k->expert[v + 1];
        if (is_here) k->key[values - 1] = 0;
    } else TE_UNROLL for (int v = 0; v < values; v++) if (is_here && v == at) k->key[v] = 0;
    return is_here ? expert : -1;
}
/* Returns the group of experts (option groups) to which the v-th expert of this lane belongs. size: number of experts
 * of a group. If size is a multiple of the number of lanes, the group does not depend on the lane. */
TE_FN int te__router_group(int v, const int size, te_lanes g) {
    return size % TE_ROUTER_LANES ? (v * TE_ROUTER_LANES + g.id) / size : v / (size / TE_ROUTER_LANES);
}
/* Sets the keys of all experts that are not in one of the groups_kept best groups to 0, so that these experts are not
 * chosen. */
TE_FN void te__router_keep_groups(uint32_t *key, const te_router_options o, te_lanes g) {
    const int size = o.experts / o.groups, values = te__router_values(o.experts);
    uint32_t sum[TE_ROUTER_MAX_GROUPS], kept = 0;
    TE_UNROLL for (int i = 0; i < o.groups; i++) {
        uint32_t first = 0, second = 0;
        TE_UNROLL for (int v = 0; v < values; v++) {
            const uint32_t k = te__router_group(v, size, g) == i ? key[v] : 0u;
            second = k > first ? first : k > second ? k : second;
            first = k > first ? k : first;
        }
        const uint32_t top = te_warp_max_u32(first), owner = ~te_warp_max_u32(first == top ? ~(uint32_t)g.id : 0u);
        const uint32_t next = te_warp_max_u32((uint32_t)g.id == owner ? second : first);
        sum[i] = te__router_key(te__router_of_key(top) + (size > 1 ? te__router_of_key(next) : 0.0f));
    }
    TE_UNROLL for (int n = 0; n < o.groups_kept; n++) {
        uint32_t best = 0;
        int at = 0;
        TE_UNROLL for (int i = 0; i < o.groups; i++) if (sum[i] > best) best = sum[i], at = i;
        kept |= 1u << at;
        TE_UNROLL for (int i = 0; i < o.groups; i++) if (i == at) sum[i] = 0;
    }
    TE_UNROLL for (int v = 0; v < values; v++)
        if (!(kept >> te__router_group(v, size, g) % 32 & 1)) key[v] = 0;
}
/* The logits that a token has for this lane's experts, and the statistics of the softmax over the token's logits for
 * all experts. */
typedef struct te_router_row {
    float logit[TE_ROUTER_VALUES];
    float max, sum, nan; /* sum: the sum of exp(logit - max); nan: 1 if one of the logits is NaN, else 0 */
} te_router_row;
/* Loads the logits of a token. sums: 1 if the caller needs max and sum. */
TE_FN void te__router_load(te_router_row *t, const float *logits, const int experts, const int sums, te_lanes *g) {
    const int values = te__router_values(experts);
    t->max = -INFINITY, t->sum = 0, t->nan = 0;
    TE_UNROLL for (int v = 0; v < values; v++) {
        const int e = v * TE_ROUTER_LANES + g->id;
        t->logit[v] = e < experts ? logits[e] : -INFINITY;
        if (t->logit[v] != t->logit[v]) t->nan = 1;
        else t->max = fmaxf(t->max, t->logit[v]);
    }
    t->nan = te_warp_or_u32(t->nan > 0) ? 1.0f : 0.0f;
    if (!sums) return;
    t->max = te__router_of_key(te_warp_max_u32(te__router_key(t->max)));
    TE_UNROLL for (int v = 0; v < values; v++)
        if (v * TE_ROUTER_LANES + g->id < experts) t->sum += te_exp(t->logit[v] - t->max);
    te_lanes_sum(&t->sum, 1, g);
}
/* Returns the score of an expert. For softmax_of_chosen the score is the logit. */
TE_FN float te__router_score(const te_router_row *t, float logit, int score) {
    if (score == TE_SCORE_softmax) return te_exp(logit - t->max) / t->sum;
    return score == TE_SCORE_sigmoid ? te_sigmoid(logit) : logit;
}
/* Replaces w, the scores of a token's chosen experts, by their weights. A lane holds the weights of up to `own`
 * choices: the choices g->id, g->id + the number of lanes, and so on. On entry, elements of w after the last choice are
 * 0, or -infinity for softmax_of_chosen. */
TE_FN void te__router_weigh(float *w, const int own, const te_router_options o, te_router_score score, float nan,
                            te_lanes *g) {
    const int divides = o.renormalise || score == TE_SCORE_softmax_of_chosen;
    float max = -INFINITY, sum = 0;
    if (score == TE_SCORE_softmax_of_chosen) {
        TE_UNROLL for (int i = 0; i < own; i++) max = fmaxf(max, w[i]);
        max = te__router_of_key(te_warp_max_u32(te__router_key(max)));
        TE_UNROLL for (int i = 0; i < own; i++) w[i] = te_exp(w[i] - max);
    }
    TE_UNROLL for (int i = 0; i < own; i++) sum += w[i];
    if (divides) te_lanes_sum(&sum, 1, g);
    const float scale = divides ? o.factor / (sum + 1e-20f) : o.factor;
    TE_UNROLL for (int i = 0; i < own; i++) w[i] = nan > 0 ? NAN : w[i] * scale;
}
/* Chooses the experts of token first + i, which is number i of its chunk, and sets bit i of chosen[e] for each chosen
 * expert e. order: shared memory of this warp, [top_k]. */
TE_FN void te__router_choose_of(const te_router_args *a, int64_t first, int i, uint64_t *chosen, int32_t *order,
                                const te_router_options o, te_dtype dtype, te_lanes g) {
    const int64_t token = first + i;
    float *logits = a->at.logits + token * o.experts;
    const int by_score = o.choice_bias || o.groups > 1, values = te__router_values(o.experts);
    const int own = (o.top_k + TE_ROUTER_LANES - 1) / TE_ROUTER_LANES; /* number of choices of a lane */
    /* a softmax over all logits, divided by its sum over the chosen experts, equals a softmax over the chosen logits */
    const int of_chosen = o.score == TE_SCORE_softmax && o.renormalise && !by_score;
    const te_router_score score = of_chosen ? TE_SCORE_softmax_of_chosen : (te_router_score)o.score;
    te_router_row t;
    te_router_keys keys;
    uint32_t top;
    float w[TE_ROUTER_MAX_TOP_K];
    TE_UNROLL for (int k = 0; k < own; k++) w[k] = score == TE_SCORE_softmax_of_chosen ? -INFINITY : 0.0f;
    for (int e = g.id; o.bias && e < o.experts; e += TE_ROUTER_LANES) logits[e] += te_load(a->bias, e, dtype);
    if (o.bias) te_warp_sync(); /* below, each lane reads the logits of all chosen experts */
    te__router_load(&t, logits, o.experts, score == TE_SCORE_softmax, &g);
    TE_UNROLL for (int v = 0; v < values; v++) {
        const int e = v * TE_ROUTER_LANES + g.id;
        float c = by_score ? te__router_score(&t, t.logit[v], score) : t.logit[v];
        if (o.choice_bias && e < o.experts) c += te_load(a->choice_bias, e, dtype);
        keys.key[v] = e < o.experts ? te__router_key(c) : 0u;
    }
    if (o.groups > 1) te__router_keep_groups(keys.key, o, g);
    te__router_sort(&keys, values, g);
    TE_UNROLL for (int j = 0; j < o.top_k; j++) {
        const int e = te__router_take(&top, &keys, values, g);
        if (e >= 0) order[j] = e;
        if (!by_score && j % TE_ROUTER_LANES == g.id) w[j / TE_ROUTER_LANES] = te__router_of_key(top);
    }
    te_warp_sync();
    TE_UNROLL for (int k = 0; k < own; k++) {
        const int j = k * TE_ROUTER_LANES + g.id;
        if (j < o.top_k) w[k] = te__router_score(&t, by_score ? logits[order[j]] : w[k], score);
    }
    te__router_weigh(w, own, o, score, t.nan, &g);
    TE_UNROLL for (int k = 0; k < own; k++) {
        const int j = k * TE_ROUTER_LANES + g.id;
        if (j >= o.top_k) continue;
        a->at.expert[token * o.top_k + j] = order[j], a->at.weight[token * o.top_k + j] = w[k];
        te_shared_or_u64(&chosen[order[j]], (uint64_t)1 << i);
    }
    te_warp_sync(); /* the next token overwrites `order` */
}
/* Sets start[e] to the routed row of the first token in chunk b.x that has chosen expert e. The first block also stores
 * the offsets of all experts. */
TE_FN void te__router_starts(int32_t *start, const te_router_args *a, te_block b, const int experts,
                             const int threads) {
    int none;
    const te_lanes all = te_lanes_here(threads, &none);
    const int each = (experts + threads - 1) / threads, from = all.id * each;
    const int to = (int)te_min(experts, from + each);
    uint64_t mine = 0, total;
    for (int e = from; e < to; e++) mine += (uint64_t)a->count[e];
    int32_t offset = (int32_t)te_lanes_scan_u64(&total, mine, &all);
    for (int e = from; e < to; e++) {
        start[e] = offset + a->before[(int64_t)b.x * experts + e];
        if (b.x == 0 && b.y == 0) a->at.offset[e] = offset;
        offset += a->count[e];
    }
    if (b.x == 0 && b.y == 0 && all.id == 0) a->at.offset[experts] = (int32_t)total;
    te_block_sync();
}
/* For a chunk of n tokens, counts the tokens that have chosen each expert, and stores in a->rank how many earlier
 * tokens of the chunk have chosen the same expert. chosen: for each expert a word with one bit for each token of the
 * chunk. */
TE_FN void te__router_count(const te_router_args *a, te_block b, const uint64_t *chosen, int n, const int experts,
                            const int top_k, const int threads) {
    TE_SHARED int32_t start[TE_ROUTER_MAX_EXPERTS];
    int none;
    const te_lanes all = te_lanes_here(threads, &none);
    const int64_t first = (int64_t)b.x * TE_ROUTER_CHUNK;
    for (int i = all.id; i < n * top_k; i += all.count) {
        const int64_t at = first * top_k + i;
        const uint64_t earlier = ((uint64_t)1 << i / top_k) - 1;
        a->rank[at] = te_popcount_u64(chosen[a->at.expert[at]] & earlier);
    }
    for (int e = all.id; e < experts; e += all.count) {
        const int count = te_popcount_u64(chosen[e]);
        a->before[(int64_t)b.x * experts + e] = b.nx == 1 ? 0 : count;
        if (b.nx == 1) a->count[e] = count;
    }
    if (b.nx > 1) return;
    te_block_sync(); /* with a single chunk, as in decoding, this kernel also computes the routed rows, so that no other
                      * kernel is needed */
    te__router_starts(start, a, b, experts, threads);
    for (int i = all.id; i < n * top_k; i += all.count) {
        const int row = start[a->at.expert[i]] + a->rank[i];
        a->at.row[i] = row, a->at.slot[row] = i;
    }
}
/* A block chooses the experts of TE_ROUTER_CHUNK tokens, and counts the tokens of each expert. Memory traffic: reads
 * the logits, writes 12 bytes for each routed row. With exchanges 1 the kernel has only this rank's tokens;
 * te_router_count_chosen then counts the tokens of all ranks. */
TE_FN void te_router_choose(const te_router_args *a, te_block b, const te_router_options o, te_dtype dtype,
                            const int exchanges) {
    TE_SHARED uint64_t chosen[TE_ROUTER_MAX_EXPERTS];
    TE_SHARED int32_t order[TE_ROUTER_MAX_WARPS][TE_ROUTER_MAX_TOP_K];
    int group, none;
    const int threads = TE__CHOOSE_THREADS(o.experts);
    const te_lanes g = te_lanes_here(TE_ROUTER_LANES, &group), all = te_lanes_here(threads, &none);
    const int64_t first = (int64_t)b.x * TE_ROUTER_CHUNK;
    const int n = (int)te_min(TE_ROUTER_CHUNK, a->tokens - first);
    for (int e = all.id; e < o.experts; e += all.count) chosen[e] = 0;
    te_block_sync();
    for (int i = group; i < n; i += TE__CHOOSE_WARPS(o.experts))
        te__router_choose_of(a, first, i, chosen, order[group], o, dtype, g);
    te_block_sync();
    if (!exchanges) te__router_count(a, b, chosen, n, o.experts, o.top_k, threads);
}
/* Used if the router exchanges rows, after every rank has received the choices of all ranks: a block counts, among
 * TE_ROUTER_CHUNK tokens, the tokens of each expert. */
TE_FN void te_router_count_chosen_body(const te_router_args *a, te_block b) {
    TE_SHARED uint64_t chosen[TE_ROUTER_MAX_EXPERTS];
    int none;
    const te_lanes all = te_lanes_here(TE_ROUTER_THREADS, &none);
    const int64_t first = (int64_t)b.x * TE_ROUTER_CHUNK;
    const int n = (int)te_min(TE_ROUTER_CHUNK, a->tokens - first);
    for (int e = all.id; e < a->experts; e += all.count) chosen[e] = 0;
    te_block_sync();
    for (int i = all.id; i < n * a->top_k; i += all.count)
        te_shared_or_u64(&chosen[a->at.expert[first * a->top_k + i]], (uint64_t)1 << i / a->top_k);
    te_block_sync();
    te__router_count(a, b, chosen, n, a->experts, a->top_k, TE_ROUTER_THREADS);
}
TE_KERNEL_IF_USED(te_router_count_chosen, TE_ROUTER_THREADS, 1, te_router_args,
                  te_router_count_chosen_body(te_args, te_at))
/* Replaces the counts of each chunk by the sums of the counts of all earlier chunks. Each lane of a warp works on one
 * expert, and each warp of a block works on some of the chunks. Memory traffic: reads the counts twice, writes them
 * once. */
TE_FN void te_router_scan_body(const te_router_args *a, te_block b) {
    TE_SHARED int32_t warp_sum[TE_SCAN_WARPS][TE_ROUTER_LANES];
    int warp;
    const te_lanes g = te_lanes_here(TE_ROUTER_LANES, &warp);
    const int e = b.x * TE_ROUTER_LANES + g.id, chunks = (int)te_ceil_div(a->tokens, TE_ROUTER_CHUNK);
    const int each = (int)te_ceil_div(chunks, TE_SCAN_WARPS), from = warp * each, to = (int)te_min(chunks, from + each);
    int32_t sum = 0, before = 0, total = 0;
    TE_UNROLL_8 for (int c = from; c < to; c++) sum += e < a->experts ? a->before[(int64_t)c * a->experts + e] : 0;
    warp_sum[warp][g.id] = sum;
    te_block_sync();
    for (int w = 0; w < TE_SCAN_WARPS; w++) {
        before += w < warp ? warp_sum[w][g.id] : 0;
        total += warp_sum[w][g.id];
    }
    if (e >= a->experts) return;
    if (warp == 0) a->count[e] = total;
    TE_UNROLL_8 for (int c = from; c < to; c++) {
        int32_t *at = &a->before[(int64_t)c * a->experts + e], count = *at;
        *at = before, before += count;
    }
}
TE_KERNEL_IF_USED(te_router_scan, TE_ROUTER_LANES * TE_SCAN_WARPS, 1, te_router_args,
                  te_router_scan_body(te_args, te_at))
/* Computes the indices of each token's routed rows and, if `copies`, copies the token's row of x to these rows. Memory
 * traffic: reads x, writes the routed rows and 8 bytes for each routed row. */
TE_FN void te_router_gather(const te_router_args *a, te_block b, const te_router_options o, const int width,
                            const te_formats f, const int copies) {
    TE_SHARED int32_t start[TE_ROUTER_MAX_EXPERTS];
    int group, none;
    const te_lanes g = te_lanes_here(TE_ROUTER_LANES, &group), all = te_lanes_here(TE_ROUTER_THREADS, &none);
    const int64_t first = (int64_t)b.x * TE_ROUTER_CHUNK;
    const int n = (int)te_min(TE_ROUTER_CHUNK, a->tokens - first);
    te__router_starts(start, a, b, o.experts, TE_ROUTER_THREADS);
    for (int i = all.id; b.y == 0 && i < n * o.top_k; i += all.count) {
        const int64_t at = first * o.top_k + i;
        const int row = start[a->at.expert[at]] + a->rank[at];
        a->at.row[at] = row, a->at.slot[row] = (int32_t)at;
    }
    for (int i = b.y * TE_ROUTER_WARPS + group; copies && i < n; i += b.ny * TE_ROUTER_WARPS) {
        const int64_t token = first + i;
        int32_t row[TE_ROUTER_MAX_TOP_K];
        TE_UNROLL for (int j = 0; j < o.top_k; j++) {
            const int64_t at = token * o.top_k + j;
            row[j] = start[a->at.expert[at]] + a->rank[at];
        }
        for (int c = g.id * 8; c < width; c += g.count * 8) {
            const int count = (int)te_min(8, width - c), aligned = width % 8 == 0;
            float v[8];
            te_load8(v, a->x, token * width + c, count, aligned, f.in);
            TE_UNROLL for (int j = 0; j < o.top_k; j++) {
                float weighed[8];
                const int64_t at = token * o.top_k + j;
                const int e = a->at.expert[at];
                if ((unsigned)(e - a->at.first) >= (unsigned)a->at.count) continue;
                /* te__is_computed cannot be used, because the first block may not have stored the offsets yet */
                if (o.capacity > 0 && a->before[(int64_t)b.x * o.experts + e] + a->rank[at] >= a->at.capacity) continue;
                const float w = te__input_weight(&a->at, at);
                TE_UNROLL for (int k = 0; k < 8; k++) weighed[k] = w * v[k];
                te_store8(a->y, (int64_t)row[j] * width + c, o.weighs_input ? weighed : v, count, aligned, f.out);
            }
        }
    }
}
/* Replaces d, the gradients of a token's weights, by the gradients of its scores. s: the scores or, for
 * softmax_of_chosen, the logits of the token's experts. */
TE_FN void te__router_score_gradients(float *d, float *s, const te_router_options o) {
    float sum = 0, along = 0, max = -INFINITY;
    if (o.score == TE_SCORE_softmax_of_chosen) {
        TE_UNROLL for (int j = 0; j < o.top_k; j++) max = fmaxf(max, s[j]);
        TE_UNROLL for (int j = 0; j < o.top_k; j++) s[j] = te_exp(s[j] - max);
    }
    TE_UNROLL for (int j = 0; j < o.top_k; j++) d[j] *= o.factor, sum += s[j], along += d[j] * s[j];
    sum += 1e-20f;
    /* w = s / S, where S is the sum of s over the chosen experts. So ds = (dw - D) / S, where D is the sum of dw * w
     * over the chosen experts */
    const int divides = o.renormalise || o.score == TE_SCORE_softmax_of_chosen;
    TE_UNROLL for (int j = 0; j < o.top_k; j++) if (divides) d[j] = (d[j] - along / sum) / sum;
    /* s = exp(logit - max), so dlogit = ds * s */
    TE_UNROLL for (int j = 0; j < o.top_k; j++) if (o.score == TE_SCORE_softmax_of_chosen) d[j] *= s[j];
}
/* Computes dlogits from the gradients of the weights, and adds the gradients of the options aux_loss and z_loss. A warp
 * computes one token. Memory traffic: reads the logits, writes dlogits. */
TE_FN void te_router_gradient(const te_router_args *a, te_block b, const te_router_options o, te_dtype dtype) {
    int group, expert[TE_ROUTER_MAX_TOP_K];
    te_lanes g = te_lanes_here(TE_ROUTER_LANES, &group);
    const int64_t token = (int64_t)b.x * TE_ROUTER_WARPS + group;
    const float *logits = a->at.logits + token * o.experts;
    const int values = te__router_values(o.experts);
    float d[TE_ROUTER_MAX_TOP_K], s[TE_ROUTER_MAX_TOP_K], along = 0, balance = 0;
    te_router_row t;
    if (token >= a->tokens) return;
    te__router_load(&t, logits, o.experts, 1, &g);
    TE_UNROLL for (int j = 0; j < o.top_k; j++) {
        const int64_t at = token * o.top_k + j;
        expert[j] = a->at.expert[at], d[j] = te__is_computed(&a->at, at) ? a->dweight[at] : 0.0f;
        s[j] = te__router_score(&t, logits[expert[j]], o.score);
    }
    te__router_score_gradients(d, s, o);
    TE_UNROLL for (int j = 0; j < o.top_k; j++) {
        if (o.score == TE_SCORE_softmax) along += d[j] * s[j];
        if (o.score == TE_SCORE_sigmoid) d[j] *= s[j] * (1.0f - s[j]); /* s = sigmoid(logit) */
    }
    /* The derivative of the loss aux_loss with respect to p_e, this token's softmax score of expert e, is `share` times
     * the number of rows of expert e. */
    const float scale = a->at.first ? 0.0f : a->loss_scale; /* if there are several ranks, only the first rank adds the
                                                             * gradients of aux_loss and z_loss */
    const float share = o.aux_loss * (float)o.experts * scale / ((float)a->all_tokens * (float)o.top_k);
    const float z = 2.0f * o.z_loss * scale * (t.max + logf(t.sum));
    TE_UNROLL for (int v = 0; v < values; v++) {
        const int e = v * TE_ROUTER_LANES + g.id;
        if (o.aux_loss != 0 && e < o.experts)
            balance += share * (float)(a->at.offset[e + 1] - a->at.offset[e]) * te_exp(t.logit[v] - t.max) / t.sum;
    }
    if (o.aux_loss != 0) te_lanes_sum(&balance, 1, &g);
    TE_UNROLL for (int v = 0; v < values; v++) {
        const int e = v * TE_ROUTER_LANES + g.id;
        const float p = te_exp(t.logit[v] - t.max) / t.sum;
        float own = 0, dlogit = 0;
        if (e >= o.experts) continue;
        TE_UNROLL for (int j = 0; j < o.top_k; j++) if (expert[j] == e) own = d[j];
        dlogit = o.score == TE_SCORE_softmax ? p * (own - along) : own; /* p = softmax(logits) */
        if (o.aux_loss != 0) dlogit += p * (share * (float)(a->at.offset[e + 1] - a->at.offset[e]) - balance);
        if (o.z_loss != 0) dlogit += z * p;
        te_store(a->y, token * o.experts + e, dlogit, dtype);
    }
}
/* With (weigh, input) a routed row is w x. So dw is the sum, over the columns, of the routed row's gradient times x. A
 * warp computes one token. Memory traffic: reads x and the gradient of the routed rows. */
TE_FN void te_router_weigh_gradient(const te_router_args *a, te_block b, const te_router_options o, const int width,
                                    const te_formats f) {
    int group;
    te_lanes g = te_lanes_here(TE_ROUTER_LANES, &group);
    const int64_t token = (int64_t)b.x * TE_ROUTER_WARPS + group;
    float sum[TE_ROUTER_MAX_TOP_K];
    if (token >= a->tokens) return;
    TE_UNROLL for (int j = 0; j < o.top_k; j++) sum[j] = 0;
    for (int c = g.id * 8; c < width; c += g.count * 8) {
        const int n = (int)te_min(8, width - c), aligned = width % 8 == 0;
        float x[8], v[8];
        te_load8(x, a->input, token * width + c, n, aligned, f.in);
        TE_UNROLL for (int j = 0; j < o.top_k; j++) {
            if (!te__is_computed(&a->at, token * o.top_k + j)) continue;
            te_load8(v, a->x, (int64_t)a->at.row[token * o.top_k + j] * width + c, n, aligned, f.out);
            TE_UNROLL for (int i = 0; i < 8; i++) if (i < n) sum[j] += v[i] * x[i];
        }
    }
    TE_UNROLL for (int j = 0; j < o.top_k; j++) {
        te_lanes_sum(&sum[j], 1, &g);
        if (g.id == 0) a->dweight[token * o.top_k + j] = sum[j];
    }
}
/* Computes the gradient of the router's bias, which is added to the logits: the sum of dlogits over the tokens. Memory
 * traffic: reads dlogits. */
TE_FN void te_router_bias_sum(const te_router_args *a, te_block b, const int experts, te_dtype dtype) {
    int none;
    const te_lanes all = te_lanes_here(TE_ROUTER_THREADS, &none);
    const int64_t first = (int64_t)b.x * TE_ROUTER_SUM_TOKENS;
    const int n = (int)te_min(TE_ROUTER_SUM_TOKENS, a->tokens - first);
    for (int e = all.id; e < experts; e += all.count) {
        float sum = 0;
        TE_UNROLL_8 for (int i = 0; i < n; i++) sum += te_load(a->y, (first + i) * experts + e, dtype);
        a->dbias[(int64_t)b.x * experts + e] = sum;
    }
}
/* dx[token] = the sum of the gradients of the token's routed rows, plus `more`, the gradient that comes through the
 * logits. Memory traffic: reads the routed rows and `more`, writes dx. */
TE_FN void te_router_sum(const te_router_args *a, te_block b, const te_router_options o, const int width,
                         const te_formats f) {
    int group;
    const te_lanes g = te_lanes_here(TE_ROUTER_LANES, &group);
    const int64_t token = (int64_t)b.x * TE_ROUTER_WARPS + group;
    if (token >= a->tokens) return;
    for (int c = g.id * 8; c < width; c += g.count * 8) {
        const int n = (int)te_min(8, width - c), aligned = width % 8 == 0;
        float v[8], sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        TE_UNROLL for (int j = 0; j < o.top_k; j++) {
            if (!te__is_computed(&a->at, token * o.top_k + j)) continue;
            te_load8(v, a->x, (int64_t)a->at.row[token * o.top_k + j] * width + c, n, aligned, f.out);
            const float w = te__input_weight(&a->at, token * o.top_k + j);
            TE_UNROLL for (int i = 0; i < 8; i++) sum[i] += o.weighs_input ? w * v[i] : v[i];
        }
        if (a->more) {
            te_load8(v, a->more, token * width + c, n, aligned, TE_f32);
            TE_UNROLL for (int i = 0; i < 8; i++) sum[i] += v[i];
        }
        te_store8(a->y, token * width + c, sum, n, aligned, f.in);
    }
}

#endif
