// expect: te: block: (bias, fc1_b) does not take the width that (linear, fc1) produces
// A bias whose width is not that of its linear.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, bf16, (linear, fc1, 64, 96), (bias, fc1_b, 96))
#else
TE_SEQUENTIAL(block, bf16, (linear, fc1, 64, 96), (bias, fc1_b, 64))
#endif

int main(void) { return block_forward_steps == 0; }
