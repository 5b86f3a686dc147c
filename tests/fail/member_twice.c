// expect: te: block: (bias, fc1) has the name of an op before it; two ops with parameters need different names
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, bf16, (layernorm, ln, 64), (linear, fc1, 64, 64), (bias, fc1_b, 64))
#else
TE_SEQUENTIAL(block, bf16, (layernorm, ln, 64), (linear, fc1, 64, 64), (bias, fc1, 64))
#endif
