// expect: te: m: (attention, attn): bias and relative_bias do not go together
// Attention adds one bias: bias is a table by query and key, relative_bias a table by their distance.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (relative_bias, 32)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (relative_bias, 32), (bias, shared), (bias_queries, 64)))
#endif
