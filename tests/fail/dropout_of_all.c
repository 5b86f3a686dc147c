// expect: te: block: (dropout, drop): the probability must be at least 0 and less than 1
// With a probability of 1 nothing would be left to scale up.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, bf16, (linear, fc1, 64, 64), (dropout, drop, 0.1f))
#else
TE_SEQUENTIAL(block, bf16, (linear, fc1, 64, 64), (dropout, drop, 1.0f))
#endif

int main(void) { return block_forward_steps == 0; }
