// expect: in backward a norm begins its pattern
// A backward pattern with a norm that is not its first op.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, bf16, (layernorm, n, 64), (gelu, act))
#else
#define TE_BACKWARD_act_norm TE_FUSED
TE_SEQUENTIAL(block, bf16, (layernorm, n, 64), (gelu, act))
#endif

int main(void) { return block_forward_steps == 0; }
