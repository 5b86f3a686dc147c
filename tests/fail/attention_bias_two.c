// expect: te: m: (attention, attn): bias and relative_bias do not go together
// One is a table of pairs, the other of distances.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (relative_bias, 32)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (relative_bias, 32), (bias, shared), (bias_queries, 64)))
#endif
