// expect: te: block: (linear, fc1) has the name of an op before it
// lines: 40 gcc 200 nvcc 110
// Two ops of one kind and one name.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, bf16, (linear, fc1, 64, 64), (linear, fc2, 64, 64))
#else
TE_SEQUENTIAL(block, bf16, (linear, fc1, 64, 64), (linear, fc1, 64, 64))
#endif

int main(void) { return block_forward_steps == 0; }
