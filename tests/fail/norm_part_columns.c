// expect: te: m: (rmsnorm, n): the columns from first on must lie in a row of constant width
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (rmsnorm, n, 64, (first, 32), (columns, 32)))
#else
TE_SEQUENTIAL(m, f32, (rmsnorm, n, 64, (first, 32), (columns, 40)))
#endif
