// expect: te: m: (expert_linear, up): its widths must be positive multiples of eight
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (router, r, 16, 4), (expert_linear, up, 16, 24, 4), (combine, r))
#else
TE_SEQUENTIAL(m, f32, (router, r, 16, 4), (expert_linear, up, 16, 20, 4), (combine, r))
#endif
