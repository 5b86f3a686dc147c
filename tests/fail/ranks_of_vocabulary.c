// expect: te: m: (embedding, e): its vocabulary is no constant that (ranks, N) divides evenly
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (embedding, e, 62, 8, (ranks, 2)), (all_reduce, r), (rmsnorm, n, 8))
#else
TE_DECLARE(m, f32, (embedding, e, 61, 8, (ranks, 2)), (all_reduce, r), (rmsnorm, n, 8))
#endif
