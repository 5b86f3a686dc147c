// expect: te: m: (expert_linear, up): experts of several ranks do not run in FP8: (recipe, none)
// Experts that are divided among ranks run in the dtype of the list.
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_DECLARE(m, (f32, (recipe, fp8_block)), (linear, in, 32, 32), (copy_to_group, c),
           (router, r, 32, 4, (ranks, 2)), (expert_linear, up, 32, 128, 2, (recipe, none)), (combine, r), (all_reduce, s))
#else
TE_DECLARE(m, (f32, (recipe, fp8_block)), (linear, in, 32, 32), (copy_to_group, c),
           (router, r, 32, 4, (ranks, 2)), (expert_linear, up, 32, 128, 2), (combine, r), (all_reduce, s))
#endif
