// expect: (linear, fc): an op of fp8_block, fp8_row, mxfp8 or nvfp4 stands in a list that names the same
#include "te/te.h"
#ifdef TE_FIXED
#define LIST (f32, (recipe, fp8_block))
#else
#define LIST (f32, (recipe, fp8_delayed))
#endif
TE_SEQUENTIAL(m, LIST, (linear, fc, 16, 32, (recipe, fp8_block)))
