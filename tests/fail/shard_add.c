// expect: te: m: (add, x) joins what ranks of a group share in different ways
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (linear, a, 8, 4, (shard, columns)), (fork, x), (gelu, g), (add, x), (linear, b, 4, 8, (shard, rows)))
#else
TE_DECLARE(m, f32, (linear, a, 8, 8, (shard, columns)), (fork, x), (linear, b, 8, 8, (shard, rows)), (all_reduce, r), (add, x))
#endif
