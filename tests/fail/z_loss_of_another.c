// expect: te: m: (linear, fc) takes no option z_loss
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (cross_entropy, ce, 16, (z_loss, 1e-4f)))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16, (z_loss, 1e-4f)), (cross_entropy, ce, 16))
#endif
