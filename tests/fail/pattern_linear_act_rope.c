// expect: te: block_qkv_linear_gelu_rope: only a bias may stand between a linear and the rope of its pattern
// A pattern with an activation between a linear and a rope.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, bf16, (linear, qkv, 64, 64), (gelu, g), (rope, r, 2, 1, 16))
#else
#define TE_FORWARD_linear_act_rope TE_FUSED
TE_SEQUENTIAL(block, bf16, (linear, qkv, 64, 64), (gelu, g), (rope, r, 2, 1, 16))
#endif

int main(void) { return block_forward_steps == 0; }
