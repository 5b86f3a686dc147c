// expect: te: m: (rounding, stochastic) is of a list under fp8_delayed, fp8_current or nvfp4
#include "te/te.h"
#ifdef TE_FIXED
#define LIST (bf16, (recipe, fp8_current), (rounding, stochastic))
#else
#define LIST (bf16, (recipe, fp8_block), (rounding, stochastic))
#endif
TE_SEQUENTIAL(m, LIST, (linear, fc, 16, 32))
