// expect: te: block: a comma is missing in (linear, fc1, 64, 256) (bias, b1, 256)
// lines: 40
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, bf16, (layernorm, ln, 64), (linear, fc1, 64, 256), (bias, b1, 256), (gelu, act))
#else
TE_SEQUENTIAL(block, bf16, (layernorm, ln, 64), (linear, fc1, 64, 256) (bias, b1, 256), (gelu, act))
#endif
