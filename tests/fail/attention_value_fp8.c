// expect: te: m: (attention, attn): fp8 does not go with value_dim
// The kernel in FP8 has one head size.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, bf16, (attention, attn, 2, 2, 128, (fp8, 1)))
#else
TE_SEQUENTIAL(m, bf16, (attention, attn, 2, 2, 128, (fp8, 1), (value_dim, 64)))
#endif
