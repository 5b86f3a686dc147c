// expect: te: m: (add, x) combines tensors that are sharded differently over the ranks
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (linear, a, 8, 4, (shard, columns)), (fork, x), (gelu, g), (add, x), (linear, b, 4, 8, (shard, rows)))
#else
TE_DECLARE(m, f32, (linear, a, 8, 8, (shard, columns)), (fork, x), (linear, b, 8, 8, (shard, rows)), (all_reduce, r), (add, x))
#endif
