/* target.h -- the two targets: how a context is created, and how a kernel shell is launched.
 *
 * Do this, to make a kernel of a body function:
 *     typedef struct { float *y; const float *x; int64_t n; } my_args;
 *     TE_FN void my_body(const my_args *a, te_block b, int threads) { ... }
 *     TE_KERNEL(my_kernel, 256, my_args, my_body(te_args, te_at, 256))
 *     ... TE_TRY(my_kernel_launch(ctx, te_grid_of(blocks, 1), &args));
 *
 * A shell is a __global__ function on CUDA, and on the host a loop over the blocks of the grid, shared out to threads
 * (OpenMP, where the compiler has it switched on). Inside the call `te_args` points to the arguments and `te_at` is the
 * block.
 */
#ifndef TE_TARGET_H
#define TE_TARGET_H

#include "context.h" /* te_context, te_target, TE_CUDA */
#if TE_CUDA
#include "target_cuda.h" /* TE_KERNEL, te_context_create */
#else
#include "target_host.h" /* the same */
#endif

/* Functions that launch kernels run on the target they were compiled for: a context of the other one is refused. */
TE_API te_status te_check_target(te_context *ctx, const char *who) {
    const char *here = TE_CUDA ? "cuda" : "host";
    TE_TRY(te__check_context(ctx, who));
    TE_REQUIRE(ctx->target->name[0] == here[0], ctx, TE_ERROR_DEVICE,
               "%s: this file was compiled for the %s target, the context is of the %s target", who, here,
               ctx->target->name);
    return TE_OK;
}

/* Advance the random state by one draw and keep the state that was taken. */
typedef struct te_rng_args { te_rng *taken, *state; } te_rng_args;
TE_FN void te_rng_take_body(const te_rng_args *a) {
    *a->taken = *a->state;
    a->state->offset++;
}
TE_KERNEL_IF_USED(te_rng_take, 1, 1, te_rng_args, te_rng_take_body(te_args))

#endif
