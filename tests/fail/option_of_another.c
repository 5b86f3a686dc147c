// expect: te: m: (layernorm, n) takes no option base
// An option that only another op has.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (layernorm, n, 16, (eps, 1e-6f)))
#else
TE_SEQUENTIAL(m, f32, (layernorm, n, 16, (base, 1e-6f)))
#endif
