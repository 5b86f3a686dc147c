// expect: te: m: (swiglu, act) has no width
// Half of TE_DIM(1) may not be a whole number, which only the run shows. A multiple of 2 can be halved.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL_DIMS(m, f32, (linear, fc1, TE_DIM(0), 2 * TE_DIM(1)), (swiglu, act), (linear, fc2, TE_DIM(1), TE_DIM(0)))
#else
TE_SEQUENTIAL_DIMS(m, f32, (linear, fc1, TE_DIM(0), TE_DIM(1)), (swiglu, act), (linear, fc2, TE_DIM(1), TE_DIM(0)))
#endif
