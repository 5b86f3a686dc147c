// expect: te: m: (gate, g) does not take the layout of its input over the ranks of a group
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (input, c, 64, (rows, sequences)), (linear, fc, 8, 64), (gate, g, c))
#else
TE_SEQUENTIAL(m, f32, (copy_to_group, e), (input, c, 64, (rows, sequences)), (linear, fc, 8, 64, (shard, columns)), (gate, g, c))
#endif
