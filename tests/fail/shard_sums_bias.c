// expect: te: m: (bias, b_bias) does not take the layout of its input over the ranks
// Each rank would add the bias to its partial sum.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (linear, a, 8, 4, (shard, columns)), (linear, b, 4, 8, (shard, rows)), (all_reduce, r), (bias, b_bias, 8))
#else
TE_DECLARE(m, f32, (linear, a, 8, 4, (shard, columns)), (linear, b, 4, 8, (shard, rows)), (bias, b_bias, 8), (all_reduce, r))
#endif
