// expect: te: m: (combine, again) does not stand on the rows of its router
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (router, r, 16, 4, (top_k, 2)), (combine, r), (router, q, 16, 4), (combine, q))
#else
TE_SEQUENTIAL(m, f32, (router, r, 16, 4, (top_k, 2)), (combine, r), (router, q, 16, 4), (combine, again, r))
#endif
