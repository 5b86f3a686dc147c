// expect: te: m: (cross_entropy, l) with (ranks, N) is no row with a linear
#define TE_FORWARD_linear_cross_entropy TE_FUSED
#define TE_BACKWARD_cross_entropy_linear TE_FUSED
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, h, 8, 60), (cross_entropy, l, 60))
#else
TE_SEQUENTIAL(m, f32, (linear, h, 8, 30, (shard, columns)), (cross_entropy, l, 60, (ranks, 2)))
#endif
