// expect: te: m: (all_gather, g) needs the rows of a rank
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, (f32, (rows, shard)), (rmsnorm, n, 8), (all_gather, g))
#else
TE_DECLARE(m, f32, (rmsnorm, n, 8), (all_gather, g))
#endif
