// expect: te: m: (linear, b) does not take the layout of its input over the ranks
// In backward each rank has a partial gradient of the linear's input; copy_to_group would sum them.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (linear, a, 8, 8), (copy_to_group, c), (linear, b, 8, 4, (shard, columns)))
#else
TE_DECLARE(m, f32, (linear, a, 8, 8), (linear, b, 8, 4, (shard, columns)))
#endif
