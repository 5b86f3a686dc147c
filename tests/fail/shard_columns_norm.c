// expect: te: m: (rmsnorm, n) does not take the layout of its input over the ranks
// A norm needs whole rows, and a rank has only some columns of each.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (linear, a, 8, 4, (shard, columns)), (gelu, n), (linear, b, 4, 8, (shard, rows)))
#else
TE_DECLARE(m, f32, (linear, a, 8, 4, (shard, columns)), (rmsnorm, n, 4), (linear, b, 4, 8, (shard, rows)))
#endif
