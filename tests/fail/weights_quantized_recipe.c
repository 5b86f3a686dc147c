// expect: te: m: weights in few bits are of a list without a recipe
#include "te/te.h"
#include "te/infer.h"
#ifdef TE_FIXED
TE_INFERENCE(m, (bf16, (recipe, fp8_row)), (linear, fc, 64, 32))
#else
TE_INFERENCE(m, (bf16, (recipe, fp8_row), (weights, quantized)), (linear, fc, 64, 32))
#endif
