// expect: te: m: (xielu, a): beta must be a finite number of at least 0
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (xielu, a, (beta, 0)))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (xielu, a, (beta, -0.5f)))
#endif
