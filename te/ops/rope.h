/* rope.h -- (rope, name, heads, kv_heads, head_dim[, rotary_dim[, TE_ROPE_half or TE_ROPE_interleaved[, base]]])
 *
 * Rotary positions (Su et al. 2021) on packed rows [q of all heads, k of all kv_heads, v of all kv_heads]; v and the
 * dimensions from rotary_dim on pass through. The pair (a, b) of index p at position t turns by t * base^(-2p / rotary_dim):
 *     a' = a cos - b sin,  b' = a sin + b cos
 * TE_ROPE_half pairs dimension p with p + rotary_dim / 2 (GPT-NeoX, Llama), TE_ROPE_interleaved 2p with 2p + 1 (GPT-J).
 * Defaults: the whole head, half-split, base 10000. The position of a row is te_batch.position + row % seq.
 */
#ifndef TE_OPS_ROPE_H
#define TE_OPS_ROPE_H

#include "../fuse/chain_run.h" /* te_output, te_gradient */

enum { TE_ROPE_half = 0, TE_ROPE_interleaved = 1 };

#define TE_OP_rope (rope, 0, own)
#define TE_IN_rope(op) ((TE_ARG1(op, 0) + 2 * (TE_ARG2(op, 0))) * (TE_ARG3(op, 0)))
#define TE_OUT_rope(op, in) in
#define TE_FLAGS_rope(op) 0
#define TE_TRAITS_rope(model, op, in, out) 0, -1, {(float)(TE_ARG6(op, 10000.0f)), 0}, TE_NO_PARAMS
#define TE_FIELDS_rope(op)
#define TE_DECLARE_rope(model, op)                                                                                      \
    static_assert((TE_ARG4(op, TE_ARG3(op, 0))) % 2 == 0 && (TE_ARG4(op, TE_ARG3(op, 0))) <= (TE_ARG3(op, 0)),           \
                  "te: " TE_STRING(model) ": (rope, " TE_STRING(TE_NAME(op)) "): rotary_dim must be even and no larger than head_dim");

#define TE_OWN_rope_forward(name, dtype, op, in, out) TE__ROPE(name, dtype, op, in, 1)
#define TE_OWN_rope_backward(name, dtype, op, in, out) TE__ROPE(name, dtype, op, in, -1)
#define TE__ROPE(name, dtype, op, width, direction)                                                                     \
    TE_KERNEL(name, TE_ROPE_THREADS, te_rope_args, TE_SHARED float te_turns[TE_ARG4(op, TE_ARG3(op, 0))];               \
              te_rope_row(te_args, te_at, te_turns, width, (TE_ARG1(op, 0) + TE_ARG2(op, 0)) * (TE_ARG3(op, 0)), TE_ARG3(op, 0), \
                          TE_ARG4(op, TE_ARG3(op, 0)), TE_ARG5(op, TE_ROPE_half), direction, TE_##dtype))               \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__rope_run(r, s, name##_launch); }

typedef struct te_rope_args {
    void *y;       /* [rows, width] */
    const void *x; /* [rows, width] */
    int seq, position;
    float base;
} te_rope_args;
enum { TE_ROPE_THREADS = TE_CUDA ? 256 : 1 };

/* One row. turns[2 p], turns[2 p + 1]: cosine and sine for pair p. turned: width of q and k together. */
TE_FN void te_rope_row(const te_rope_args *a, te_block b, float *turns, int width, int turned, int head_dim, int rotary, int interleaved,
                       int direction, te_dtype dtype) {
    int group;
    const te_lanes g = te_lanes_here(TE_ROPE_THREADS, &group);
    const int position = a->position + b.x % a->seq, pairs = rotary / 2;
    for (int p = g.id; p < pairs; p += g.count) {
        /* in double: the angle of a late position has lost its fraction in float */
        const double angle = position * exp2(-2.0 * p / rotary * log2((double)a->base)), turn = 6.283185307179586;
        const float rest = (float)(angle - turn * floor(angle / turn));
        turns[2 * p] = cosf(rest), turns[2 * p + 1] = (float)direction * sinf(rest);
    }
    te_block_sync();
    const int aligned = width % 8 == 0 && head_dim % 8 == 0 && rotary % (interleaved ? 8 : 16) == 0;
    const int64_t row = (int64_t)b.x * width;
    for (int c = g.id * 8; c < width; c += g.count * 8) {
        const int n = (int)te_min(8, width - c);
        float v[8], w[8];
        te_load8(v, a->x, row + c, n, aligned, dtype);
        if (aligned && !interleaved && c < turned && c % head_dim < rotary)
            te_load8(w, a->x, row + (c % head_dim < pairs ? c + pairs : c - pairs), 8, 1, dtype);
        TE_UNROLL for (int i = 0; i < 8; i++) {
            const int d = (c + i) % head_dim;
            if (c + i >= turned || d >= rotary || i >= n) continue;
            const int first = interleaved ? d % 2 == 0 : d < pairs, p = interleaved ? d / 2 : first ? d : d - pairs;
            const int far = interleaved ? (first ? 1 : -1) : first ? pairs : -pairs;
            const float other = !aligned ? te_load(a->x, row + c + i + far, dtype) : interleaved ? 0.0f : w[i];
            const float mate = aligned && interleaved ? te_load(a->x, row + c + i + far, dtype) : other;
            v[i] = first ? v[i] * turns[2 * p] - mate * turns[2 * p + 1] : mate * turns[2 * p + 1] + v[i] * turns[2 * p];
        }
        te_store8(a->y, row + c, v, n, aligned, dtype);
    }
}

TE_API te_status te__rope_run(te_run *r, const te_step *s, te_status (*launch)(te_context *, te_grid, const te_rope_args *)) {
    const int i = s->op[0];
    te_rope_args a;
    te_value y;
    TE_TRY(r->pass == TE_BACKWARD ? te_gradient(&y, r, s, i) : te_output(&y, r, s, i));
    a.y = y.p, a.x = r->now.p, a.seq = r->batch ? r->batch->seq : 1, a.position = r->batch ? r->batch->position : 0;
    a.base = r->plan->op[i].value[0];
    if (y.p && !r->dry) TE_TRY(launch(r->ctx, te_grid_of(r->rows, 1), &a));
    te_set_now(r, y);
    return TE_OK;
}

#endif
