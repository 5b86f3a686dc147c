// expect: te: m: (recipe, mxfp8) needs te/microscaling.h; te/te.h leaves its kernels out
#include "te/te.h"
#ifdef TE_FIXED
#include "te/microscaling.h"
#endif
TE_SEQUENTIAL(m, (bf16, (recipe, mxfp8)), (linear, fc, 64, 32))
