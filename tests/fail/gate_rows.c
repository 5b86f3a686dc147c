// expect: te: m: (gate, g) reads a row for each sequence, or, as a gate, one column
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (input, c, 64, (rows, sequences)), (linear, fc, 8, 64), (gate, g, c))
#else
TE_SEQUENTIAL(m, f32, (input, c, 64), (linear, fc, 8, 64), (gate, g, c))
#endif
