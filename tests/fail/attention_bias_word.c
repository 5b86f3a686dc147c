// expect: te: m: (attention, attn): bias takes heads or shared
// heads is a table [heads, q, k], shared is one table [q, k] for all heads.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (bias, shared), (bias_queries, 64)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (bias, head), (bias_queries, 64)))
#endif
