// expect: te: block: fp16 is no dtype
// lines: 40
// The half-precision format is called f16.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, f16, (linear, fc1, 64, 64))
#else
TE_SEQUENTIAL(block, fp16, (linear, fc1, 64, 64))
#endif

int main(void) { return block_forward_steps == 0; }
