// expect: TE_RECIPE_fp9
#include "te/te.h"
#ifdef TE_FIXED
#define NAME fp8_current
#else
#define NAME fp9
#endif
TE_SEQUENTIAL(m, (bf16, (recipe, NAME)), (linear, fc, 16, 32))
