// expect: te: m: (cross_attention, c) takes no option varlen
// Cross-attention has no variable-length sequences.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (input, keys, 2 * 8, (rows, memory)), (cross_attention, c, keys, 2, 1, 8))
#else
TE_DECLARE(m, f32, (input, keys, 2 * 8, (rows, memory)), (cross_attention, c, keys, 2, 1, 8, (varlen, 1)))
#endif
