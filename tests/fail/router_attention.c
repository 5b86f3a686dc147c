// expect: te: m: (attention, a) needs a row for each token
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (bias, b, 48), (attention, a, 1, 1, 16))
#else
TE_SEQUENTIAL(m, f32, (router, r, 48, 4), (attention, a, 1, 1, 16), (combine, r))
#endif
