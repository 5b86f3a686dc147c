// expect: te: m: (linear, a): its columns are not so many parts
// 22 columns of q, k and v, with q twice as wide as k and v: a quarter of them is no whole number of columns.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (linear, a, 8, 24, (shard, columns), (parts, 3), (first_part, 2)))
#else
TE_DECLARE(m, f32, (linear, a, 8, 22, (shard, columns), (parts, 3), (first_part, 2)))
#endif
