// expect: (linear, fc): a GEMM in FP8 needs an input and an output of multiples of 16 columns (mxfp8: 32)
#include "te/te.h"
#include "te/microscaling.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, (bf16, (recipe, mxfp8)), (linear, fc, 64, 64))
#else
TE_SEQUENTIAL(m, (bf16, (recipe, mxfp8)), (linear, fc, 64, 48))
#endif
