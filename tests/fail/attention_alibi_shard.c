// expect: te: m: (attention, at) does not take the layout of its input over the ranks
// The slope of a head depends on its index among all heads, and a rank holds only some of them.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (linear, a, 8, 24, (shard, columns), (parts, 3)), (attention, at, 2, 2, 4), (linear, b, 8, 8, (shard, rows)))
#else
TE_DECLARE(m, f32, (linear, a, 8, 24, (shard, columns), (parts, 3)), (attention, at, 2, 2, 4, (alibi, 1)), (linear, b, 8, 8, (shard, rows)))
#endif
