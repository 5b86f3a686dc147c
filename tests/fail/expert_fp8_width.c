// expect: te: m: (expert_linear, up): experts in FP8 need an input of a multiple of 16 columns and an output of a multiple of 128
// Under fp8_block no block of 128 x 128 elements of the weight may belong to two experts.
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_DECLARE(m, (f32, (recipe, fp8_block)), (router, r, 32, 4), (expert_linear, up, 32, 128, 4), (combine, r))
#else
TE_DECLARE(m, (f32, (recipe, fp8_block)), (router, r, 32, 4), (expert_linear, up, 32, 64, 4), (combine, r))
#endif
