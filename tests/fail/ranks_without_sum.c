// expect: te: m: (rmsnorm, n) does not fit what each rank of a group has of its input
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (embedding, e, 62, 8, (ranks, 2)), (all_reduce, r), (rmsnorm, n, 8))
#else
TE_DECLARE(m, f32, (embedding, e, 62, 8, (ranks, 2)), (rmsnorm, n, 8))
#endif
