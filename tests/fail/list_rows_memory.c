// expect: te: m: x has the rows of tokens, or (rows, shard)
// Memory is an extra input.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (linear, l, 8, 8))
#else
TE_DECLARE(m, (f32, (rows, memory)), (linear, l, 8, 8))
#endif
