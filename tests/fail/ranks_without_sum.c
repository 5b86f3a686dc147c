// expect: te: m: (rmsnorm, n) does not take the layout of its input over the ranks
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (embedding, e, 62, 8, (ranks, 2)), (all_reduce, r), (rmsnorm, n, 8))
#else
TE_DECLARE(m, f32, (embedding, e, 62, 8, (ranks, 2)), (rmsnorm, n, 8))
#endif
