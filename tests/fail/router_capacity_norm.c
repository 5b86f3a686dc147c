// expect: te: m: (rmsnorm, inner) does not take the layout of its input over the ranks
// Rows behind the capacity are not computed, and the gradient of a norm would be summed over them.
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (router, r, 16, 4), (rmsnorm, inner, 16), (expert_linear, up, 16, 16, 4), (combine, r))
#else
TE_SEQUENTIAL(m, f32, (router, r, 16, 4, (capacity, 2)), (rmsnorm, inner, 16), (expert_linear, up, 16, 16, 4), (combine, r))
#endif
