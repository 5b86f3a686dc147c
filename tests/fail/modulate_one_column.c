// expect: te: m: (modulate, g) reads a row for each sequence, or, as a gate, one column
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (input, c, 1), (linear, fc, 8, 64), (gate, g, c))
#else
TE_SEQUENTIAL(m, f32, (input, c, 1), (linear, fc, 8, 64), (modulate, g, c))
#endif
