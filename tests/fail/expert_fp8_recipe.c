// expect: te: m: (expert_linear, up): the recipe of experts is fp8_block, in a list that names it, or none
// Experts run in FP8 under fp8_block only; under other recipes they run in the dtype of the list, without a recipe of their own.
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_DECLARE(m, (f32, (recipe, fp8_delayed)), (router, r, 32, 4), (expert_linear, up, 32, 128, 4), (combine, r))
#else
TE_DECLARE(m, (f32, (recipe, fp8_delayed)),
           (router, r, 32, 4), (expert_linear, up, 32, 128, 4, (recipe, fp8_delayed)), (combine, r))
#endif
