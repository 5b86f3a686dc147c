// expect: te: block: float is no dtype; a list is f32, bf16 or f16
// lines: 40
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, f32, (layernorm, ln, 64), (linear, fc1, 64, 256))
#else
TE_SEQUENTIAL(block, float, (layernorm, ln, 64), (linear, fc1, 64, 256))
#endif
