// expect: te: m: (linear, a): (first_part, ..) goes with (parts, ..)
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (linear, a, 8, 24, (shard, columns)))
#else
TE_DECLARE(m, f32, (linear, a, 8, 24, (shard, columns), (first_part, 2)))
#endif
