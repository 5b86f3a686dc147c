// expect: te: m: (clamped_swiglu, g): the limit must be above 0
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (clamped_swiglu, g, (limit, 7.0f)))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (clamped_swiglu, g, (limit, 0)))
#endif
