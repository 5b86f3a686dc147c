// expect: te: m: (swiglu, g) takes no option limit
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (clamped_swiglu, g, (limit, 7.0f)))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (swiglu, g, (limit, 7.0f)))
#endif
