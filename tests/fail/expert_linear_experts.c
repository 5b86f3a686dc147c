// expect: te: m: (expert_linear, up) has another number of experts than its router
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (router, r, 16, 4), (expert_linear, up, 16, 16, 4), (combine, r))
#else
TE_SEQUENTIAL(m, f32, (router, r, 16, 4), (expert_linear, up, 16, 16, 8), (combine, r))
#endif
