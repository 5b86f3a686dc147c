// expect: te: m: (expert_linear, up) ends the list with routed rows; a (combine, ..) must follow
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (router, r, 16, 4), (expert_linear, up, 16, 16, 4), (combine, r))
#else
TE_SEQUENTIAL(m, f32, (router, r, 16, 4), (expert_linear, up, 16, 16, 4))
#endif
