// expect: te: m: (linear, b) does not take the layout of its input over the ranks
// Nobody would add up the gradients that the ranks have of the product's input.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (linear, a, 8, 8), (copy_to_group, c), (linear, b, 8, 4, (shard, columns)))
#else
TE_DECLARE(m, f32, (linear, a, 8, 8), (linear, b, 8, 4, (shard, columns)))
#endif
