// expect: te: m: (router, r) takes no option capacity
// Every token keeps all of its experts.
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (router, r, 16, 4), (combine, r))
#else
TE_SEQUENTIAL(m, f32, (router, r, 16, 4, (capacity, 2)), (combine, r))
#endif
