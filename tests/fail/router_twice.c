// expect: te: m: (router, q) needs a row for each token
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (router, r, 16, 4), (combine, r), (router, q, 16, 4), (combine, q))
#else
TE_SEQUENTIAL(m, f32, (router, r, 16, 4), (router, q, 16, 4), (combine, q), (combine, r))
#endif
