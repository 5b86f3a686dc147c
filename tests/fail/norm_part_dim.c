// expect: te: m: (rmsnorm, n): the columns from first on must lie in a row of constant width
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL_DIMS(m, f32, (rmsnorm, n, TE_DIM(0)))
#else
TE_SEQUENTIAL_DIMS(m, f32, (rmsnorm, n, TE_DIM(0), (columns, 64)))
#endif
