// expect: te: m: (hadamard, off) and (square_blocks, off) are of a list under nvfp4
#include "te/te.h"
#include "te/microscaling.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, (bf16, (recipe, nvfp4), (square_blocks, off)), (linear, fc, 64, 64))
#else
TE_SEQUENTIAL(m, (bf16, (recipe, mxfp8), (square_blocks, off)), (linear, fc, 64, 64))
#endif
