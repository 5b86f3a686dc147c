// expect: (linear, fc): a GEMM in FP8 needs an input and an output of multiples of 16 columns
#include "te/te.h"
#ifdef TE_FIXED
#define WIDTH 32
#else
#define WIDTH 24
#endif
TE_SEQUENTIAL(m, (f32, (recipe, fp8_delayed)), (linear, fc, 16, WIDTH))
