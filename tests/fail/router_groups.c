// expect: te: m: (router, r): groups is 1 to 32, and divides the number of experts
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (router, r, 16, 4, (groups, 2), (groups_kept, 1)), (combine, r))
#else
TE_SEQUENTIAL(m, f32, (router, r, 16, 4, (groups, 3), (groups_kept, 1)), (combine, r))
#endif
