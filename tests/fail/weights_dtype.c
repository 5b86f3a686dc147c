// expect: te: m: (weights, ...) is f32 in a list with a recipe that trains in FP8 (fp8_delayed, fp8_current, fp8_block), or the dtype of the list
#include "te/te.h"
#ifdef TE_FIXED
#define LIST (bf16, (recipe, fp8_block), (weights, bf16))
#else
#define LIST (bf16, (recipe, fp8_block), (weights, f16))
#endif
TE_SEQUENTIAL(m, LIST, (linear, fc, 16, 32))
