// expect: (linear, fc): an op of fp8_block or fp8_row stands in a list that names the same
#include "te/te.h"
#ifdef TE_FIXED
#define LIST (f32, (recipe, fp8_block))
#else
#define LIST (f32, (recipe, fp8_delayed))
#endif
TE_SEQUENTIAL(m, LIST, (linear, fc, 16, 32, (recipe, fp8_block)))
