// expect: te: m: (rmsnorm, n): columns and first must be multiples of eight
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (rmsnorm, n, 64, (columns, 16)))
#else
TE_SEQUENTIAL(m, f32, (rmsnorm, n, 64, (columns, 12)))
#endif
