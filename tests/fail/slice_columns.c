// expect: te: m: (slice, s): the columns from first on must lie in the row
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 64), (slice, s, 48, 16))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 64), (slice, s, 48, 17))
#endif
