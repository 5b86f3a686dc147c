// expect: te: m: (cross_entropy, l) does not take the layout of its input over the ranks
// The loss expects the logits of its rank only, but this linear computes whole rows of logits on each rank.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (copy_to_group, c), (linear, h, 8, 30, (shard, columns)), (cross_entropy, l, 60, (ranks, 2)))
#else
TE_DECLARE(m, f32, (rmsnorm, n, 8), (linear, h, 8, 30), (cross_entropy, l, 60, (ranks, 2)))
#endif
