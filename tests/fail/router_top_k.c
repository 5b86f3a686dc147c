// expect: te: m: (router, r): top_k is 1 to 32, and at most the number of experts
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (router, r, 16, 4, (top_k, 4)), (combine, r))
#else
TE_SEQUENTIAL(m, f32, (router, r, 16, 4, (top_k, 5)), (combine, r))
#endif
