// expect: te: m: (cross_entropy, ce): label_smoothing must be between 0 and 1
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (cross_entropy, ce, 16, (label_smoothing, 0.1f)))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (cross_entropy, ce, 16, (label_smoothing, 1.5f)))
#endif
