// expect: te: block: (rope, rot): rotary_dim must be even and no larger than head_dim
// A head has only 64 dimensions to rotate.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, bf16, (rope, rot, 4, 4, 64))
#else
TE_SEQUENTIAL(block, bf16, (rope, rot, 4, 4, 64, (rotary_dim, 66)))
#endif

int main(void) { return block_forward_steps == 0; }
