// expect: te: m: (add, x) does not take the layout of its input over the ranks
// Behind the combine each rank has a partial sum.
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (fork, x), (linear, in, 16, 16), (copy_to_group, c), (router, r, 16, 4, (ranks, 2)),
           (expert_linear, up, 16, 16, 2), (combine, r), (all_reduce, s), (add, x))
#else
TE_DECLARE(m, f32, (fork, x), (linear, in, 16, 16), (copy_to_group, c), (router, r, 16, 4, (ranks, 2)),
           (expert_linear, up, 16, 16, 2), (combine, r), (add, x))
#endif
