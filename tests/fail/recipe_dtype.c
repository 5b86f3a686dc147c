// expect: a list is f32, bf16 or f16; FP8 is a recipe
#include "te/te.h"
#ifdef TE_FIXED
#define LIST (bf16, (recipe, fp8_current))
#else
#define LIST e4m3
#endif
TE_SEQUENTIAL(m, LIST, (linear, fc, 16, 32))
