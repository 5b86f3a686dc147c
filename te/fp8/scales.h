/* scales.h -- the scales of FP8 tensors, all of a model's in one place in target memory, and the kernel that updates
 * them all.
 *
 * Do this:
 *     const size_t bytes = te_scales_bytes(count, 1024);
 *     TE_TRY(te_allocate(ctx, &memory, bytes));
 *     TE_TRY(te_scales_init(&s, memory, bytes, formats, count, 1024, ctx));
 *     ... whoever stores tensor i reads s.scale[i] and raises s.amax[i]; products read te_scales_inverse(&s, i) ...
 *     TE_TRY(te_scales_update(&s, 0, count, &rule, ctx));        // once a step, behind its last pass
 *
 * Delayed scaling (Micikevicius et al. 2022): the scale comes from the amax of the steps before, so a tensor can be
 * stored as it is made. scale = most / amax / 2^margin, most the largest number of the format, amax the largest of the
 * history or the most recent one. An amax of 0, infinity or NaN keeps the old scale; the last two enter the history as
 * 0, so that one bad step is not remembered for the whole of its length.
 *
 * Current scaling: a length of 1, and an update of that one tensor between the pass that takes its amax and the cast.
 *
 * Several ranks: te_scales_reduce before the update makes s.amax the largest of all ranks, so that all have one scale.
 */
#ifndef TE_SCALES_H
#define TE_SCALES_H

#include "../core/group.h"  /* te_group_all_gather */
#include "../core/target.h" /* TE_KERNEL */

typedef struct te_scales {
    float *amax;    /* [count], raised during a step; an update takes it and leaves 0 */
    float *scale;   /* [count], what values are multiplied by before they are rounded; 1 at first */
    float *inverse; /* [count, TE_SCALES_APART], 1 / scale, what products multiply by */
    float *most;    /* [count], the largest number of the tensor's format */
    float *history; /* [count, length], a ring of each tensor; 0 at first */
    int32_t *at;    /* [count], where in its ring the next amax goes */
    int count, length;
    void *memory; /* all of it in one piece, for a checkpoint */
    size_t bytes;
} te_scales;

typedef enum te_amax_of { TE_AMAX_MAX, TE_AMAX_MOST_RECENT } te_amax_of;

typedef struct te_scale_rule {
    te_amax_of amax;
    int margin;       /* powers of two left free above amax */
    float epsilon;    /* an amax below it counts as it */
    int power_of_two; /* the scale is rounded down to one */
} te_scale_rule;

/* The scale of a tensor's own amax, for an update right behind the pass that takes it. */
TE_API te_scale_rule te_scale_rule_current(void) {
    const te_scale_rule r = {TE_AMAX_MOST_RECENT, 0, 0.0f, 0};
    return r;
}

enum {
    TE_SCALES_MOST_HISTORY = 1024,
    TE_SCALES_MOST_MARGIN = 64,
    TE_SCALES_APART = TE_ACCESS / 4 /* cuBLASLt reads a number that products multiply by from a multiple of 16 bytes */
};

TE_API const float *te_scales_inverse(const te_scales *s, int i) { return s->inverse + (int64_t)i * TE_SCALES_APART; }

TE_API size_t te__scales_part(int64_t floats) { return (size_t)te_round_up(floats * 4, TE_ALIGN); }
/* Of target memory. */
TE_API size_t te_scales_bytes(int count, int length) {
    return 4 * te__scales_part(count) + te__scales_part((int64_t)count * TE_SCALES_APART) +
           te__scales_part((int64_t)count * length);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* Scales and their inverses stay normal numbers. */
#define TE__SCALE_LARGE 8.507059173023462e37f /* 2^126 */
#define TE__SCALE_SMALL 1.1754943508222875e-38f

/* The scale for this amax, which is above 0. */
TE_BOTH float te_scale_of_amax(float amax, float most, const te_scale_rule *rule) {
    const float a = amax < rule->epsilon ? rule->epsilon : amax;
    float s = most / a * te_float_of_bits((uint32_t)(127 - rule->margin) << 23);
    s = s > TE__SCALE_LARGE ? TE__SCALE_LARGE : s < TE__SCALE_SMALL ? TE__SCALE_SMALL : s;
    return rule->power_of_two ? te_float_of_bits(te_bits_of_float(s) & 0xff800000u) : s;
}

/* The scale of what has these bits for its own amax: 1 where that is 0, infinite or no number. */
TE_BOTH float te_scale_of_own(uint32_t amax, float most, const te_scale_rule *rule) {
    return amax > 0 && amax < 0x7f800000u ? te_scale_of_amax(te_float_of_bits(amax), most, rule) : 1.0f;
}

/* Leave this scale for who reads the tensor when the scale is another: kept[0] = 1 / scale, kept[1] = scale. */
TE_BOTH void te_scale_keep(float *kept, float scale) { kept[0] = 1.0f / scale, kept[1] = scale; }

typedef struct te_scales_args {
    te_scales s;
    te_scale_rule rule;
    int first, count;
} te_scales_args;
enum { TE_SCALES_LANES = TE_CUDA ? 32 : 1, TE_SCALES_THREADS = TE_CUDA ? 256 : 1,
       TE_SCALES_GROUPS = TE_SCALES_THREADS / TE_SCALES_LANES };

/* A group of lanes has a tensor. Bytes: four for each number of its history. */
TE_FN void te_scales_body(const te_scales_args *a, te_block b) {
    int group;
    te_lanes g = te_lanes_here(TE_SCALES_LANES, &group);
    const int j = b.x * TE_SCALES_GROUPS + group, i = a->first + j, length = a->s.length;
    if (j >= a->count) return;
    const float now = a->s.amax[i], kept = now <= 3.402823466e38f ? now : 0.0f; /* false for a NaN */
    const int at = a->s.at[i];
    float *history = a->s.history + (int64_t)i * length, largest = kept;
    for (int h = g.id; a->rule.amax == TE_AMAX_MAX && h < length; h += g.count)
        if (h != at) largest = history[h] > largest ? history[h] : largest;
    te_lanes_max(&largest, &g);
    if (g.id != 0) return;
    history[at] = kept, a->s.at[i] = at + 1 < length ? at + 1 : 0, a->s.amax[i] = 0.0f;
    if (!(now <= 3.402823466e38f) || !(largest > 0.0f || a->rule.epsilon > 0.0f)) return;
    a->s.scale[i] = te_scale_of_amax(largest, a->s.most[i], &a->rule);
    a->s.inverse[(int64_t)i * TE_SCALES_APART] = 1.0f / a->s.scale[i];
}
TE_KERNEL_IF_USED(te__scales_kernel, TE_SCALES_THREADS, 1, te_scales_args, te_scales_body(te_args, te_at))

typedef struct te_scales_ranks {
    te_scales s;
    const float *all; /* [ranks, count] */
    int first, count, ranks;
} te_scales_ranks;
/* What enters a history as 0 on one rank is an infinity here, and so it is one for all. Bytes: four for each rank and
 * tensor. */
TE_FN void te_scales_largest_body(const te_scales_ranks *a, te_block b) {
    int group;
    te_lanes g = te_lanes_here(TE_SCALES_LANES, &group);
    const int j = b.x * TE_SCALES_GROUPS + group;
    float largest = 0.0f;
    if (j >= a->count) return;
    for (int r = g.id; r < a->ranks; r += g.count) {
        const float v = a->all[(int64_t)r * a->count + j];
        largest = v <= 3.402823466e38f ? (v > largest ? v : largest) : INFINITY;
        if (!(largest <= 3.402823466e38f)) break;
    }
    te_lanes_max(&largest, &g);
    if (g.id == 0) a->s.amax[a->first + j] = largest;
}
TE_KERNEL_IF_USED(te__scales_largest, TE_SCALES_THREADS, 1, te_scales_ranks, te_scales_largest_body(te_args, te_at))
/* The largest of a tensor's history goes back to its amax, and the history is empty. Bytes: as te_scales_body. */
TE_FN void te_scales_recall_body(const te_scales_args *a, te_block b) {
    int group;
    te_lanes g = te_lanes_here(TE_SCALES_LANES, &group);
    const int j = b.x * TE_SCALES_GROUPS + group, i = a->first + j, length = a->s.length;
    if (j >= a->count) return;
    float *history = a->s.history + (int64_t)i * length, largest = 0.0f;
    const float now = a->s.amax[i];
    for (int h = g.id; h < length; h += g.count) {
        largest = history[h] > largest ? history[h] : largest;
        history[h] = 0.0f;
    }
    te_lanes_max(&largest, &g);
    if (g.id == 0) a->s.at[i] = 0, a->s.amax[i] = largest > now ? largest : now;
}
TE_KERNEL_IF_USED(te__scales_recall, TE_SCALES_THREADS, 1, te_scales_args, te_scales_recall_body(te_args, te_at))

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Where the parts lie in memory that holds such a state. */
TE_API te_status te_scales_bind(te_scales *s, void *memory, size_t bytes, int count, int length, te_context *ctx) {
    TE_REQUIRE(s && memory, ctx, TE_ERROR_NULL, "te_scales_bind: a pointer is null");
    TE_REQUIRE(count >= 0 && length >= 1 && length <= TE_SCALES_MOST_HISTORY, ctx, TE_ERROR_SHAPE,
               "te_scales_bind: %d tensors with a history of %d; it must be 1 to %d", count, length,
               (int)TE_SCALES_MOST_HISTORY);
    TE_REQUIRE((uintptr_t)memory % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
               "te_scales_bind: the memory does not start at a multiple of %d bytes", (int)TE_ACCESS);
    TE_REQUIRE(bytes >= te_scales_bytes(count, length), ctx, TE_ERROR_MEMORY, "te_scales_bind: %zu bytes of %zu", bytes,
               te_scales_bytes(count, length));
    const size_t part = te__scales_part(count) / 4;
    s->amax = (float *)memory, s->scale = s->amax + part, s->most = s->scale + part, s->inverse = s->most + 2 * part;
    s->at = (int32_t *)(void *)(s->most + part);
    s->history = s->inverse + te__scales_part((int64_t)count * TE_SCALES_APART) / 4;
    s->count = count, s->length = length, s->memory = memory, s->bytes = te_scales_bytes(count, length);
    return TE_OK;
}
/* The same, and its start: scales of 1, an empty history. formats: [count], host memory, each e4m3 or e5m2. */
TE_API te_status te_scales_init(te_scales *s, void *memory, size_t bytes, const te_dtype *formats, int count,
                                int length, te_context *ctx) {
    TE_TRY(te_check_target(ctx, "te_scales_init"));
    TE_TRY(te_scales_bind(s, memory, bytes, count, length, ctx));
    TE_REQUIRE(formats || !count, ctx, TE_ERROR_NULL, "te_scales_init: the formats are null");
    for (int i = 0; i < count; i++) TE_REQUIRE(te_is_fp8(formats[i]), ctx, TE_ERROR_DTYPE,
        "te_scales_init: tensor %d is %s; it must be e4m3 or e5m2", i, te_dtype_name(formats[i]));
    const size_t part = te__scales_part(count) / 4;
    float *start = (float *)calloc(s->bytes ? s->bytes : 1, 1); /* on the host */
    TE_REQUIRE(start, ctx, TE_ERROR_MEMORY, "te_scales_init: cannot allocate %zu bytes", s->bytes);
    for (int i = 0; i < count; i++) {
        const size_t at = (size_t)i;
        start[part + at] = start[4 * part + at * TE_SCALES_APART] = 1.0f; /* scale, inverse */
        start[2 * part + at] = te_fp8_most(formats[i]);
    }
    te_status status = te_copy(ctx, memory, start, s->bytes);
    if (status == TE_OK) status = te_synchronize(ctx);
    free(start);
    return status;
}
/* The tensors are of these formats now, [count] in host memory: those of others get the scale of the same magnitude.
 * Waits for the stream. Errors: a state whose formats are none, which is left as it is. */
TE_API te_status te_scales_reformat(const te_scales *s, const te_dtype *formats, te_context *ctx) {
    const size_t part = te__scales_part(s->count) / 4, bytes = (size_t)((char *)s->history - (char *)s->memory);
    float *all = (float *)malloc(bytes + 1); /* amax, scale, most, at, inverse */
    TE_REQUIRE(all, ctx, TE_ERROR_MEMORY, "te_scales_reformat: cannot allocate %zu bytes", bytes);
    int known = 1;
    te_status status = te_copy(ctx, all, s->memory, bytes);
    if (status == TE_OK) status = te_synchronize(ctx);
    for (size_t i = 0; status == TE_OK && known && i < (size_t)s->count; i++) {
        const float most = te_fp8_most(formats[i]), old = all[2 * part + i], ratio = most / old; /* a power of two */
        known = old == TE_E4M3_MOST || old == TE_E5M2_MOST;
        all[2 * part + i] = most, all[part + i] *= ratio;
        all[4 * part + i * TE_SCALES_APART] /= ratio;
    }
    if (status == TE_OK && known) status = te_copy(ctx, s->memory, all, bytes);
    if (status == TE_OK) status = te_synchronize(ctx);
    free(all);
    TE_TRY(status);
    TE_REQUIRE(known, ctx, TE_ERROR_FORMAT, "te_scales_reformat: the state is of no FP8 format");
    return TE_OK;
}
TE_API te_status te__scale_rule_check(const te_scale_rule *rule, const char *who, te_context *ctx) {
    TE_REQUIRE(rule->amax == TE_AMAX_MAX || rule->amax == TE_AMAX_MOST_RECENT, ctx, TE_ERROR_VALUE,
               "%s: a rule of amax %d", who, (int)rule->amax);
    TE_REQUIRE(rule->margin >= -TE_SCALES_MOST_MARGIN && rule->margin <= TE_SCALES_MOST_MARGIN, ctx, TE_ERROR_VALUE,
               "%s: a rule with a margin of %d; it must be %d to %d", who, rule->margin, -(int)TE_SCALES_MOST_MARGIN,
               (int)TE_SCALES_MOST_MARGIN);
    TE_REQUIRE(rule->epsilon >= 0.0f && rule->epsilon <= 3.402823466e38f, ctx, TE_ERROR_VALUE,
               "%s: a rule with an epsilon of %g", who, (double)rule->epsilon);
    return TE_OK;
}
/* Tensors [first, first + count): take their amax, roll their history, set their scale. One launch. */
TE_IF_USED TE_API te_status te_scales_update(const te_scales *s, int first, int count, const te_scale_rule *rule,
                                             te_context *ctx) {
    te_scales_args a;
    TE_TRY(te_check_target(ctx, "te_scales_update"));
    TE_REQUIRE(s && rule && s->memory, ctx, TE_ERROR_NULL, "te_scales_update: a pointer is null");
    TE_REQUIRE(first >= 0 && count >= 0 && first <= s->count - count, ctx, TE_ERROR_SHAPE,
               "te_scales_update: %d tensors from %d on, of %d", count, first, s->count);
    TE_TRY(te__scale_rule_check(rule, "te_scales_update", ctx));
    memset(&a, 0, sizeof a);
    a.s = *s, a.rule = *rule, a.first = first, a.count = count;
    return count ? te__scales_kernel_launch(ctx, te_grid_of(te_ceil_div(count, TE_SCALES_GROUPS), 1), &a) : TE_OK;
}

/* Tensors [first, first + count): their amax becomes the largest of all ranks of the group, in one collective. room:
 * [size of the group, count], target memory. */
TE_IF_USED TE_API te_status te_scales_reduce(const te_scales *s, float *room, int first, int count, const te_group *g,
                                             te_context *ctx) {
    te_scales_ranks a;
    TE_TRY(te_check_target(ctx, "te_scales_reduce"));
    TE_REQUIRE(s && s->memory && g && (room || !count), ctx, TE_ERROR_NULL, "te_scales_reduce: a pointer is null");
    TE_REQUIRE(first >= 0 && count >= 0 && first <= s->count - count, ctx, TE_ERROR_SHAPE,
               "te_scales_reduce: %d tensors from %d on, of %d", count, first, s->count);
    if (g->size == 1 || !count) return TE_OK;
    memset(&a, 0, sizeof a);
    a.s = *s, a.all = room, a.first = first, a.count = count, a.ranks = g->size;
    TE_TRY(te_group_all_gather(g, room, s->amax + first, count, TE_f32, ctx));
    return te__scales_largest_launch(ctx, te_grid_of(te_ceil_div(count, TE_SCALES_GROUPS), 1), &a);
}
/* Take what their histories remember into their amax, and empty these. */
TE_IF_USED TE_API te_status te_scales_recall(const te_scales *s, int first, int count, te_context *ctx) {
    te_scales_args a;
    memset(&a, 0, sizeof a);
    a.s = *s, a.first = first, a.count = count;
    return count ? te__scales_recall_launch(ctx, te_grid_of(te_ceil_div(count, TE_SCALES_GROUPS), 1), &a) : TE_OK;
}

#endif
