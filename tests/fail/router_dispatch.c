// expect: te: m: (router, r): dispatch is all_gather or all_to_all
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (linear, in, 16, 16), (copy_to_group, c), (router, r, 16, 4, (ranks, 2), (dispatch, all_gather)),
           (expert_linear, up, 16, 16, 2), (combine, r), (all_reduce, s))
#else
TE_DECLARE(m, f32, (linear, in, 16, 16), (copy_to_group, c), (router, r, 16, 4, (ranks, 2), (dispatch, allgather)),
           (expert_linear, up, 16, 16, 2), (combine, r), (all_reduce, s))
#endif
