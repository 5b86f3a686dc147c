// expect: te: block: (linear, fc1) has no output width: (linear, fc1, in, out)
// lines: 40
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, bf16, (layernorm, ln, 64), (linear, fc1, 64, 256), (gelu, act))
#else
TE_SEQUENTIAL(block, bf16, (layernorm, ln, 64), (linear, fc1, 64), (gelu, act))
#endif
