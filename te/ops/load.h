/* load.h -- (load, x), or (load, name, x): the list goes on from what (fork, x) or (input, x) kept.
 *
 * So branches that begin at one place: attention and MLP beside each other (GPT-J, Wang & Komatsuzaki 2021; PaLM,
 * Chowdhery et al. 2022), a gate with a projection of its own. What the op before the load gives has been kept by a
 * (fork, ..) right before it:
 *
 *     (fork, x), (linear, gate, H, F), (silu, act), (fork, g), (load, x), (linear, up, H, F), (mul, g)
 *
 * Forward moves nothing, and neither does backward where no op behind reads the same fork; else one kernel adds two
 * gradients. The gradient of what stood before is what the readers of the fork before it left.
 */
#ifndef TE_OPS_LOAD_H
#define TE_OPS_LOAD_H

#include "../core/target.h" /* TE_KERNEL */
#include "../plan/impl/call_checks.h"  /* te_fork_value, te_edge_tensor */
#include "residual.h"       /* TE_KEPT_INDEX */

#define TE_OP_load (load, custom)
#define TE_SHAPES_load(op) (1)
#define TE_FLAGS_load(op) (TE_IS_LOAD)
#define TE_LOADS_load , /* its width, rows and format are those of the fork (te/fuse/impl/declare.h) */
#define TE_TAKES_DIMS_load ,
#define TE_EDGE_load(model, op) (TE_KEPT_INDEX(model, add, TE_FORK_OF(op)), TE_KEPT_DTYPE(model, TE_FORK_OF(op)))
#define TE_CHECK_load(model, op) (typedef int TE_KEPT_READ(model, TE_FORK_OF(op));)

typedef struct te_load_args {
    void *y;          /* [count] */
    const void *a, *b; /* [count]; y may be a */
    int64_t count;
} te_load_args;
enum { TE_LOAD_THREADS = TE_CUDA ? 256 : 1 };

#define TE_CUSTOM_load_forward(name, model, dtype, op) \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__load_forward(r, s); }
#define TE_CUSTOM_load_backward(name, model, dtype, op)                                                        \
    TE_KERNEL(name, TE_LOAD_THREADS, te_load_args, te_load_sum(te_args, te_at, (te_dtype)TE_DTYPE_OUT(model, op))) \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__load_backward(r, s, name##_launch); }

/* y = a + b. Bytes: three tensors. */
TE_FN void te_load_sum(const te_load_args *args, te_block at, te_dtype dtype) {
    int group;
    const te_lanes g = te_lanes_here(TE_LOAD_THREADS, &group);
    const int64_t i = 8 * ((int64_t)at.x * TE_LOAD_THREADS + g.id);
    const int n = (int)te_min(8, args->count - i);
    float a[8], b[8];
    if (n <= 0) return;
    te_load8_own(a, args->a, i, n, n == 8, dtype);
    te_load8(b, args->b, i, n, n == 8, dtype);
    TE_UNROLL for (int j = 0; j < 8; j++) a[j] += b[j];
    te_store8(args->y, i, a, n, n == 8, dtype);
}

TE_API te_status te__load_forward(te_run *r, const te_step *s) {
    te_value kept;
    TE_TRY(te_fork_value(&kept, r, &r->plan->op[s->op[0]]));
    te_set_current(r, kept);
    te_release_fork(r, s->op[0]);
    return TE_OK;
}
typedef te_status (*te__load_launch_fn)(te_context *ctx, te_grid grid, const te_load_args *a);
/* to = a + b; a null: b alone, which may have another format. */
TE_API te_status te__load_add(te_run *r, te_value to, const void *a, te_value b, te__load_launch_fn launch) {
    te_load_args args;
    memset(&args, 0, sizeof args);
    args.y = to.data, args.a = a, args.b = b.data, args.count = to.rows * to.cols;
    if (r->dry) return TE_OK;
    if (!a) return r->plan->convert(to.data, to.dtype, b.data, b.dtype, args.count, r->ctx);
    return launch(r->ctx, te_grid_of(te_ceil_div(args.count, 8 * TE_LOAD_THREADS), 1), &args);
}
TE_API te_status te__load_backward(te_run *r, const te_step *s, te__load_launch_fn launch) {
    const int i = s->op[0], first = te_is_last_use(r->plan, i);
    const te_op *op = &r->plan->op[i], *fork = &r->plan->op[op->edge];
    te_value v;
    if (fork->flags & TE_IS_INPUT) { /* its gradient is the caller's */
        TE_TRY(te_fork_value(&v, r, op)); /* what the ops behind have read */
        TE_TRY(te_edge_tensor(&v, r, fork, te_value_of(0, op->edge_dtype, te_rows_in(r, op->out_rows), op->out), 1));
        if (v.data) TE_TRY(te__load_add(r, v, first ? 0 : v.data, r->current, launch));
    } else if (first) te_set_edge(r, op->edge, r->current);
    else {
        TE_TRY(te_acquire(r, &v, op->out_rows, op->out, op->edge_dtype));
        TE_TRY(te__load_add(r, v, r->edge[op->edge].data, r->current, launch));
        te_set_edge(r, op->edge, v);
    }
    te_set_current(r, r->edge[i - 1]); /* of the fork before: all of its gradient */
    te_set_edge(r, i - 1, te_no_value());
    return TE_OK;
}

#endif
