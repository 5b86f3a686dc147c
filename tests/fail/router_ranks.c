// expect: te: m: (router, r): ranks is 1 to 255, and divides the number of experts
// Each rank has as many experts as the others.
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (linear, in, 16, 16), (copy_to_group, c), (router, r, 16, 4, (ranks, 2)),
           (expert_linear, up, 16, 16, 2), (combine, r), (all_reduce, s))
#else
TE_DECLARE(m, f32, (linear, in, 16, 16), (copy_to_group, c), (router, r, 16, 4, (ranks, 3)),
           (expert_linear, up, 16, 16, 2), (combine, r), (all_reduce, s))
#endif
