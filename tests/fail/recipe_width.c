// expect: (linear, fc): a product in FP8 takes and gives multiples of 16 columns
#include "te/te.h"
#ifdef TE_FIXED
#define WIDTH 32
#else
#define WIDTH 24
#endif
TE_SEQUENTIAL(m, (f32, (recipe, fp8_delayed)), (linear, fc, 16, WIDTH))
