// expect: te: m: (router, r): (dispatch, all_to_all) needs (ranks, N), the rows of a rank
// The router itself sends the rows to the other ranks, so no all_gather stands in front of it.
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_DECLARE(m, (f32, (rows, shard)), (fork, x), (router, r, 16, 4, (ranks, 2), (dispatch, all_to_all)),
           (expert_linear, up, 16, 16, 2), (combine, r), (add, x))
#else
TE_DECLARE(m, f32, (linear, in, 16, 16), (router, r, 16, 4, (ranks, 2), (dispatch, all_to_all)),
           (expert_linear, up, 16, 16, 2), (combine, r))
#endif
