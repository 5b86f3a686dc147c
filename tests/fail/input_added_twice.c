// expect: te: block: (add, side) has the name of an op before it
// The second add needs a name of its own.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, bf16, (input, side, 64), (add, side), (linear, fc1, 64, 64), (add, second, side))
#else
TE_SEQUENTIAL(block, bf16, (input, side, 64), (add, side), (linear, fc1, 64, 64), (add, side))
#endif

int main(void) { return block_forward_steps == 0; }
