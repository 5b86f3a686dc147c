// expect: te: m: (linear, a): (copies, ..) goes with (shard, columns) and (parts, ..)
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (linear, a, 8, 24, (shard, columns), (parts, 3), (copies, 2)))
#else
TE_DECLARE(m, f32, (linear, a, 8, 24, (shard, columns), (copies, 2)))
#endif
