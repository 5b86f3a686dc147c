// expect: te: m: (linear, a): its columns are not so many parts
// Of q that is twice as wide as k and v each a quarter has to be whole columns.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (linear, a, 8, 24, (shard, columns), (parts, 3), (first_part, 2)))
#else
TE_DECLARE(m, f32, (linear, a, 8, 22, (shard, columns), (parts, 3), (first_part, 2)))
#endif
