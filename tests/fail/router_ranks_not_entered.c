// expect: te: m: (router, r) does not take the layout of its input over the ranks
// Each rank has a part of the gradient of a router's input, which a copy_to_group or an all_gather sums.
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (linear, in, 16, 16), (copy_to_group, c), (router, r, 16, 4, (ranks, 2)),
           (expert_linear, up, 16, 16, 2), (combine, r), (all_reduce, s))
#else
TE_DECLARE(m, f32, (linear, in, 16, 16), (router, r, 16, 4, (ranks, 2)), (expert_linear, up, 16, 16, 2),
           (combine, r), (all_reduce, s))
#endif
