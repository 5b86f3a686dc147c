// expect: (linear, fc): an op of fp8_block, fp8_row, mxfp8 or nvfp4 stands in a list that names the same, and an op in a list of mxfp8 or nvfp4 has its recipe or none
#include "te/te.h"
#include "te/microscaling.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, (bf16, (recipe, nvfp4)), (linear, fc, 64, 32))
#else
TE_SEQUENTIAL(m, (bf16, (recipe, nvfp4)), (linear, fc, 64, 32, (recipe, fp8_current)))
#endif
