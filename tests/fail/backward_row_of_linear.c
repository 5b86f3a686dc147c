// expect: te: block: in backward only a fork may follow a linear in a row
// A backward row of a linear with anything but a fork.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, bf16, (layernorm, n, 64), (linear, fc1, 64, 64))
#else
#define TE_BACKWARD_linear_norm TE_FUSED
TE_SEQUENTIAL(block, bf16, (layernorm, n, 64), (linear, fc1, 64, 64))
#endif

int main(void) { return block_forward_steps == 0; }
