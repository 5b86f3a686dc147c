// expect: te: m: (router, r, ..) stands in a (recompute, ..) that ends in front of (combine, r)
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (recompute, p), (router, r, 16, 4), (silu, s), (combine, r), (end_recompute, p))
#else
TE_SEQUENTIAL(m, f32, (recompute, p), (router, r, 16, 4), (silu, s), (end_recompute, p), (combine, r))
#endif
