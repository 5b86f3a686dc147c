// expect: te: m: (softcap, s) has more arguments than its kind takes
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (softcap, s, 30.0f))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (softcap, s, 30.0f, 16))
#endif
