// expect: TE_ROUNDING_up
#include "te/te.h"
#ifdef TE_FIXED
#define LIST (bf16, (recipe, fp8_current), (rounding, nearest))
#else
#define LIST (bf16, (recipe, fp8_current), (rounding, up))
#endif
TE_SEQUENTIAL(m, LIST, (linear, fc, 16, 32))
