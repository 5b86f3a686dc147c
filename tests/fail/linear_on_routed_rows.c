// expect: te: m: (linear, up) stands on routed rows, which an (expert_linear, ..) takes
// The product of a linear is one for all rows.
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, up, 16, 16), (router, r, 16, 4), (combine, r))
#else
TE_SEQUENTIAL(m, f32, (router, r, 16, 4), (linear, up, 16, 16), (combine, r))
#endif
