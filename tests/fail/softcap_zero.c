// expect: te: m: (softcap, s): the cap must be a finite number above 0
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (softcap, s, 30.0f))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (softcap, s, 0.0f))
#endif
