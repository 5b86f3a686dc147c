// expect: te: m: (slice, s) does not take the layout of its input over the ranks of a group
// Each rank has its own columns: the first 16 of each rank are not the first columns of the row.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 64), (slice, s, 0, 16))
#else
TE_SEQUENTIAL(m, f32, (copy_to_group, c), (linear, fc, 8, 64, (shard, columns)), (slice, s, 0, 16))
#endif
