// expect: te: m: (modulate, g): the columns from first on must lie in the row that it reads
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (input, c, 192, (rows, sequences)), (linear, fc, 8, 64), (modulate, g, c, (first, 64)))
#else
TE_SEQUENTIAL(m, f32, (input, c, 128, (rows, sequences)), (linear, fc, 8, 64), (modulate, g, c, (first, 64)))
#endif
