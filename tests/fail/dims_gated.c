// expect: te: m: (swiglu, act) has no width
// Whether half of a symbol is a whole number nobody knows before the program runs.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL_DIMS(m, f32, (linear, fc1, TE_DIM(0), 2 * TE_DIM(1)), (swiglu, act), (linear, fc2, TE_DIM(1), TE_DIM(0)))
#else
TE_SEQUENTIAL_DIMS(m, f32, (linear, fc1, TE_DIM(0), TE_DIM(1)), (swiglu, act), (linear, fc2, TE_DIM(1), TE_DIM(0)))
#endif
