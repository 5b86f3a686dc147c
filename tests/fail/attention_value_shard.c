// expect: te: m: (attention, attn) does not take the layout of its input over the ranks
// The columns that a rank has of q, k and v would have different sizes.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (copy_to_group, g), (linear, qkv, 16, 32, (shard, columns), (parts, 3), (first_part, 2)), (attention, attn, 2, 1, 8), (linear, p, 16, 16, (shard, rows)), (all_reduce, s))
#else
TE_DECLARE(m, f32, (copy_to_group, g), (linear, qkv, 16, 32, (shard, columns), (parts, 3), (first_part, 2)), (attention, attn, 2, 1, 8, (value_dim, 8)), (linear, p, 16, 16, (shard, rows)), (all_reduce, s))
#endif
