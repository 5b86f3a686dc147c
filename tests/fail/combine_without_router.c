// expect: has_no_router_before_it
// A combine has the name of its router.
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (router, r, 16, 4), (combine, r))
#else
TE_SEQUENTIAL(m, f32, (router, q, 16, 4), (combine, r))
#endif
