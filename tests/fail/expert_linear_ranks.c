// expect: te: m: (expert_linear, up) has another number of experts than its router, or than a rank of it
// A list names the experts of one rank.
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (linear, in, 16, 16), (copy_to_group, c), (router, r, 16, 4, (ranks, 2)),
           (expert_linear, up, 16, 16, 2), (combine, r), (all_reduce, s))
#else
TE_DECLARE(m, f32, (linear, in, 16, 16), (copy_to_group, c), (router, r, 16, 4, (ranks, 2)),
           (expert_linear, up, 16, 16, 4), (combine, r), (all_reduce, s))
#endif
