/* rope.h -- (rope, name, heads, kv_heads, head_dim); options (rotary_dim, head_dim), (interleaved, 0),
 * (base, 10000.0f), (value_dim, head_dim), and for longer contexts (scaling, none) with its numbers (rope_scaling.h)
 *
 * Rotary positions (Su et al. 2021) on packed rows [q of all heads, k of all kv_heads, v of all kv_heads], of q alone
 * if kv_heads is 0; v and the dimensions from rotary_dim on pass through. The pair (a, b) of index p at position t
 * turns by t * base^(-2p / rotary_dim), or by what scaling makes of it:
 *     a' = a cos - b sin,  b' = a sin + b cos
 * Pairs are dimension p with p + rotary_dim / 2 (GPT-NeoX, Llama) or, interleaved, 2p with 2p + 1 (GPT-J).
 * value_dim is the size of a head of v where it is another one (attention.h). Heads that a tile of a product is cut
 * into, those that divide 256, need a multiple of their own size, for v shares the tiles (te/linear/impl/linear_rope.h).
 * The position of a row is te_batch.position + its place in its sequence, or what te_batch.positions says.
 */
#ifndef TE_OPS_ROPE_H
#define TE_OPS_ROPE_H

#include "../core/lanes.h" /* te_lanes_here */
#include "../plan/impl/storage.h"   /* te_output, te_gradient */
#include "rope_scaling.h"  /* te_rope_options, te_rope_scaled */

#define TE_OP_rope (rope, custom)
#define TE_SHAPES_rope(op) (3)
#define TE_IN_rope(op) \
    (((int)(TE_ARG1(op, 0)) + (int)(TE_ARG2(op, 0))) * (int)(TE_ARG3(op, 0)) + \
        (int)(TE_ARG2(op, 0)) * (int)TE__ROPE_VALUE(op))
#define TE_TAKES_rope_value_dim TE_INTEGER
#define TE__ROPE_VALUE(op) (TE_OPTION(op, value_dim, TE_ARG3(op, 0)))
#define TE_TAKES_rope_rotary_dim TE_INTEGER
#define TE_TAKES_rope_interleaved TE_INTEGER
#define TE_TAKES_rope_base TE_NUMBER
#define TE_OPTIONS_rope(op) (te_rope_options, TE__ROTARY(op), TE__INTERLEAVED(op), \
    (float)(TE_OPTION(op, base, 10000.0f)), TE_ROPE_SCALING_OPTIONS(op))
#define TE__INTERLEAVED(op) TE_OPTION(op, interleaved, 0)
#define TE__ROTARY(op) (TE_OPTION(op, rotary_dim, TE_ARG3(op, 0)))
#define TE_CHECK_rope(model, op)                                                                                       \
    (static_assert((TE_ARG1(op, 0)) > 0 && (TE_ARG2(op, 0)) >= 0 && (TE_ARG3(op, 0)) > 0,                              \
                  "te: " TE_STRING(model) ": " TE_CALLED(op)                                                           \
                      ": heads and head_dim must be positive, kv_heads at least 0");                                   \
     static_assert(TE__INTERLEAVED(op) == 0 || TE__INTERLEAVED(op) == 1,                                               \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) ": interleaved must be 0 or 1");                          \
     static_assert(TE__ROTARY(op) >= 0 && TE__ROTARY(op) % 2 == 0 && TE__ROTARY(op) <= (TE_ARG3(op, 0)),               \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) ": rotary_dim must be even and no larger than head_dim"); \
     static_assert(TE__ROPE_VALUE(op) >= 1 && (256 % (TE_ARG3(op, 1)) || TE__ROPE_VALUE(op) % (TE_ARG3(op, 1)) == 0),  \
                  "te: " TE_STRING(model) ": " TE_CALLED(op)                                                           \
                      ": value_dim must be positive and, where head_dim divides 256, a multiple of it");               \
     static_assert((int)TE_ROWS_OUT(model, op) == (int)TE_ROWS_tokens,                                                 \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) " needs a row for each token");                           \
     TE_ASSERT_NUMBER((TE_OPTION(op, base, 10000.0f)) > 0 && (TE_OPTION(op, base, 10000.0f)) < 3e38f,                  \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) ": base must be a finite positive number");               \
     TE_CHECK_ROPE_SCALING(model, op))

#define TE_CUSTOM_rope_forward(name, model, dtype, op) TE__ROPE(name, op, TE_WIDTH_IN(model, op), \
    TE_DTYPE_OUT(model, op), TE_DTYPE_IN(model, op), 1)
#define TE_CUSTOM_rope_backward(name, model, dtype, op) TE__ROPE(name, op, TE_WIDTH_IN(model, op), \
    TE_DTYPE_IN(model, op), TE_DTYPE_OUT(model, op), -1)
#define TE__ROPE(name, op, width, to, from, direction)                                                             \
    TE_KERNEL(name, TE_ROPE_THREADS, te_rope_args, TE_SHARED float te_turns[TE_ROPE_ROWS * (int)TE__ROTARY(op)];   \
              te_rope_rows(te_args, te_at, te_turns, width,                                                        \
                           ((int)(TE_ARG1(op, 0)) + (int)(TE_ARG2(op, 0))) * (int)(TE_ARG3(op, 0)),                \
                           TE_ARG3(op, 0), TE__ROTARY(op), TE__INTERLEAVED(op), !TE__ROPE_IS(op, none), direction, \
                           (te_dtype)(to), (te_dtype)(from)))                                                      \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__rope_run(r, s, name##_launch); }

typedef struct te_rope_args {
    void *y;       /* [rows, width] */
    const void *x; /* [rows, width] */
    int64_t rows;
    te_sequences of;
    int position;
    double log2_base;
    te_rope_scale scale;
    const int32_t *positions; /* [rows], or null */
} te_rope_args;
enum { TE_ROPE_THREADS = TE_CUDA ? 256 : 1, TE_ROPE_ROWS = TE_CUDA ? 2 : 1 };

/* Eight elements that turn with eight others: x <- x cos - mate sin, mate <- mate cos + x sin. */
TE_FN void te_turn8(float x[8], float mate[8], const float *cosine, const float *sine) {
    TE_UNROLL for (int i = 0; i < 8; i++) {
        const float a = x[i], b = mate[i];
        x[i] = a * cosine[i] - b * sine[i], mate[i] = b * cosine[i] + a * sine[i];
    }
}

/* Eight elements that turn among themselves, 2p with 2p + 1. */
TE_FN void te_turn_near8(float v[8], const float cosine[4], const float sine[4]) {
    TE_UNROLL for (int i = 0; i < 8; i += 2) {
        const float even = v[i], odd = v[i + 1], co = cosine[i / 2], si = sine[i / 2];
        v[i] = even * co - odd * si, v[i + 1] = odd * co + even * si;
    }
}

/* turns[row]: the cosines of `pairs` pairs, then their sines. */
TE_FN void te_rope_turns(float *turns, const te_rope_args *a, int64_t first, int rows, te_lanes g, int pairs,
                         int rotary, int scaled, int direction) {
    const float magnitude = scaled ? a->scale.magnitude : 1.0f;
    for (int e = g.id; e < rows * pairs; e += g.count) {
        /* in double: the angle of a late position has lost its fraction in float */
        const int r = e / pairs, p = e % pairs, row = (int)(first + r);
        const int position = a->positions ? a->positions[row] : a->position + te_sequence_position(&a->of, row);
        const double frequency = exp2(-2.0 * p / rotary * a->log2_base);
        const double angle = position * (scaled ? te_rope_scaled(&a->scale, frequency, p) : frequency);
        const float rest = (float)(angle - TE__TURN * floor(angle / TE__TURN));
        turns[2 * r * pairs + p] = magnitude * cosf(rest);
        turns[(2 * r + 1) * pairs + p] = magnitude * (float)direction * sinf(rest);
    }
}

/* TE_ROPE_ROWS rows. turns: by row, the cosines of the pairs, then the sines. turned: width of q and k together. */
TE_FN void te_rope_rows(const te_rope_args *a, te_block b, float *turns, int width, int turned, int head_dim,
                        int rotary, int interleaved, int scaled, int direction, te_dtype to, te_dtype from) {
    int group;
    const te_lanes g = te_lanes_here(TE_ROPE_THREADS, &group);
    const int pairs = rotary / 2, aligned = width % 8 == 0 && head_dim % 8 == 0 && rotary % (interleaved ? 8 : 16) == 0;
    const int64_t first = (int64_t)b.x * TE_ROPE_ROWS;
    const int rows = (int)te_min(TE_ROPE_ROWS, a->rows - first);
    te_rope_turns(turns, a, first, rows, g, pairs, rotary, scaled, direction);
    te_block_sync();
    if (!aligned) {
        for (int r = 0; r < rows; r++)
            for (int c = g.id; c < width; c += g.count) {
                const int64_t at = (first + r) * width + c;
                const int d = c % head_dim, low = interleaved ? d % 2 == 0 : d < pairs,
                          p = interleaved ? d / 2
                              : low       ? d
                                          : d - pairs;
                float v = te_load(a->x, at, from);
                if (c < turned && d < rotary) {
                    const float mate = te_load(a->x, at + (low ? 1 : -1) * (interleaved ? 1 : pairs), from);
                    const float cosine = turns[r * rotary + p], sine = turns[r * rotary + pairs + p];
                    v = low ? v * cosine - mate * sine : v * cosine + mate * sine;
                }
                te_store(a->y, at, v, to);
            }
        return;
    }
    /* A lane takes eight columns, and with half-split pairs the eight that turn with them: `near` units a head. */
    const int far = interleaved ? 0 : pairs, near = (head_dim - far) / 8, heads = turned / head_dim;
    for (int u = g.id; u < heads * near + (width - turned) / 8; u += g.count) {
        const int head = u / near, in_head = u % near * 8,
                  turns_here = head < heads && in_head < (interleaved ? rotary : pairs);
        const int d =
            head < heads && !turns_here && !interleaved ? in_head + pairs : in_head; /* behind the pairs: not turned */
        const int c = head < heads ? head * head_dim + d : turned + (u - heads * near) * 8;
        te_vec8 x[TE_ROPE_ROWS], mate[TE_ROPE_ROWS];
        TE_UNROLL for (int r = 0; r < TE_ROPE_ROWS; r++) {
            if (r >= rows) continue;
            te_vec8_load(&x[r], a->x, (first + r) * width + c, 8, 1, from);
            mate[r] = x[r];
            if (turns_here && far) te_vec8_load(&mate[r], a->x, (first + r) * width + c + far, 8, 1, from);
        }
        TE_UNROLL for (int r = 0; r < TE_ROPE_ROWS; r++) {
            if (r >= rows) continue;
            const float *cosine = turns + r * rotary, *sine = cosine + pairs;
            float v[8], w[8];
            te_vec8_floats(v, &x[r], from);
            if (turns_here && far) {
                te_vec8_floats(w, &mate[r], from);
                te_turn8(v, w, cosine + d, sine + d);
                te_store8(a->y, (first + r) * width + c + far, w, 8, 1, to);
            } else if (turns_here) te_turn_near8(v, cosine + d / 2, sine + d / 2);
            te_store8(a->y, (first + r) * width + c, v, 8, 1, to);
        }
    }
}

/* y from the walk's value, turned as op i says. */
TE_API void te__rope_fill(te_rope_args *a, const te_run *r, int i, te_value y) {
    a->y = y.data, a->x = r->current.data, a->rows = y.rows, a->of = te_sequences_of(r);
    a->position = r->batch ? r->batch->position : 0, a->positions = r->batch ? r->batch->positions : 0;
    const te_rope_options *o = (const te_rope_options *)r->plan->op[i].options;
    a->log2_base = log2((double)o->base), a->scale = te_rope_scale_of(o);
}
typedef te_status (*te_rope_launch_fn)(te_context *ctx, te_grid grid, const te_rope_args *a);
/* y, null: not wanted, becomes the walk's value. */
TE_API te_status te__rope_to(te_run *r, int i, te_value y, te_rope_launch_fn launch) {
    te_rope_args a;
    te__rope_fill(&a, r, i, y);
    if (y.data && !r->dry) TE_TRY(launch(r->ctx, te_grid_of(te_ceil_div(a.rows, TE_ROPE_ROWS), 1), &a));
    te_set_current(r, y);
    return TE_OK;
}
TE_API te_status te__rope_run(te_run *r, const te_step *s, te_rope_launch_fn launch) {
    const int i = s->op[0];
    te_value y;
    TE_TRY(r->pass == TE_BACKWARD ? te_gradient(&y, r, s, i) : te_output(&y, r, s, i));
    return te__rope_to(r, i, y, launch);
}

#endif
