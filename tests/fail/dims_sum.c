// expect: te: m: (linear, fc) has no width
// A width is one symbol times a constant: the sum of two takes a symbol of its own.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL_DIMS(m, f32, (linear, fc, TE_DIM(0), TE_DIM(2)))
#else
TE_SEQUENTIAL_DIMS(m, f32, (linear, fc, TE_DIM(0), TE_DIM(0) + 2 * TE_DIM(1)))
#endif
