// expect: te: m: (cross_attention, c) reads k and v of kv_heads (head_dim + value_dim), or of 2 kv_heads head_dim
// Its keys and values lie side by side in one tensor, here 8 columns of each.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (input, keys, 2 * 8, (rows, memory)), (cross_attention, c, keys, 2, 1, 8))
#else
TE_DECLARE(m, f32, (input, keys, 8, (rows, memory)), (cross_attention, c, keys, 2, 1, 8))
#endif
