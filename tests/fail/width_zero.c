// expect: te: block: (linear, fc1) has no output width
// lines: 40
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, bf16, (layernorm, ln, 64), (linear, fc1, 64, 256), (linear, fc2, 256, 64))
#else
TE_SEQUENTIAL(block, bf16, (layernorm, ln, 64), (linear, fc1, 64, 0), (linear, fc2, 0, 64))
#endif
