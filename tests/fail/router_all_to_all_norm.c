// expect: te: m: (rmsnorm, inner) does not take the layout of its input over the ranks
// Only the routed rows of this rank's experts are computed, and the gradient of a norm would be summed over the others.
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_DECLARE(m, (f32, (rows, shard)), (rmsnorm, n, 16), (router, r, 16, 4, (ranks, 2), (dispatch, all_to_all)),
           (expert_linear, up, 16, 16, 2), (combine, r), (rmsnorm, outer, 16))
#else
TE_DECLARE(m, (f32, (rows, shard)), (rmsnorm, n, 16), (router, r, 16, 4, (ranks, 2), (dispatch, all_to_all)),
           (expert_linear, up, 16, 16, 2), (rmsnorm, inner, 16), (combine, r))
#endif
