// expect: te: m: (cross_entropy, ce): z_loss must be a finite number of at least 0
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (cross_entropy, ce, 16, (z_loss, 1e-4f)))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (cross_entropy, ce, 16, (z_loss, -1e-4f)))
#endif
