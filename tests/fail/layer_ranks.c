// expect: te: m: (linear, b_qkv)
// 8 heads cannot be divided evenly among 3 ranks.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, TE_LLAMA_BLOCK_TP(b, 48, 96, 9, 3, 8, 10000.0f, 3))
#else
TE_DECLARE(m, f32, TE_LLAMA_BLOCK_TP(b, 48, 96, 8, 4, 8, 10000.0f, 3))
#endif
