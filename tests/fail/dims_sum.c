// expect: te: m: (linear, fc) has no output width
// A width is one TE_DIM times a constant. A sum of two needs a TE_DIM of its own.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL_DIMS(m, f32, (linear, fc, TE_DIM(0), TE_DIM(2)))
#else
TE_SEQUENTIAL_DIMS(m, f32, (linear, fc, TE_DIM(0), TE_DIM(0) + 2 * TE_DIM(1)))
#endif
