// expect: te: block: in backward a pattern that begins with a linear and a fork has no other op
// The GEMM adds its result to the fork's gradient and ends there: no op can follow the fork in a backward pattern.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, bf16, (bias, b, 64), (fork, x), (linear, fc1, 64, 64), (add, x))
#else
#define TE_BACKWARD_linear_fork_bias TE_FUSED
TE_SEQUENTIAL(block, bf16, (bias, b, 64), (fork, x), (linear, fc1, 64, 64), (add, x))
#endif

int main(void) { return block_forward_steps == 0; }
