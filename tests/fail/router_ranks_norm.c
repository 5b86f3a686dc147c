// expect: te: m: (rmsnorm, inner) does not take the layout of its input over the ranks
// The rows of other ranks' experts are not computed, and the gradient of a norm would be summed over them.
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (linear, in, 16, 16), (copy_to_group, c), (router, r, 16, 4, (ranks, 2)),
           (expert_linear, up, 16, 16, 2), (combine, r), (all_reduce, s))
#else
TE_DECLARE(m, f32, (linear, in, 16, 16), (copy_to_group, c), (router, r, 16, 4, (ranks, 2)),
           (expert_linear, up, 16, 16, 2), (rmsnorm, inner, 16), (combine, r), (all_reduce, s))
#endif
