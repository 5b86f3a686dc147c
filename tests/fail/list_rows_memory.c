// expect: te: m: x has the rows of tokens, or (rows, shard)
// Only an (input, ..) can have the rows of memory; x cannot.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (linear, l, 8, 8))
#else
TE_DECLARE(m, (f32, (rows, memory)), (linear, l, 8, 8))
#endif
