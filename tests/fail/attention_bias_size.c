// expect: te: m: (attention, attn): bias needs bias_queries (and bias_keys) of 1 or more, and less than 2^31 numbers
// The bias is a table of queries by keys: bias_queries and bias_keys are the length of the longest sequence.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (bias, heads), (bias_queries, 64)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (bias, heads)))
#endif
