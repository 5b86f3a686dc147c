// expect: te: block: (fork, x) must not end the list
// No op is left that could add the value of the fork.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, bf16, (linear, fc1, 64, 64))
#else
TE_SEQUENTIAL(block, bf16, (linear, fc1, 64, 64), (fork, x))
#endif

int main(void) { return block_forward_steps == 0; }
