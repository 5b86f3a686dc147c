// expect: te: m: (cross_entropy, l): its vocabulary is no constant that (ranks, N) divides evenly
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (copy_to_group, c), (linear, h, 8, 15, (shard, columns)), (cross_entropy, l, 60, (ranks, 4)))
#else
TE_DECLARE(m, f32, (copy_to_group, c), (linear, h, 8, 15, (shard, columns)), (cross_entropy, l, 61, (ranks, 4)))
#endif
