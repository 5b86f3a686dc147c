// expect: a linear or a custom op can only begin a pattern
// A pattern with a linear that is not its first op.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, bf16, (layernorm, n, 64), (linear, fc1, 64, 64))
#else
#define TE_FORWARD_norm_linear TE_FUSED
TE_SEQUENTIAL(block, bf16, (layernorm, n, 64), (linear, fc1, 64, 64))
#endif

int main(void) { return block_forward_steps == 0; }
