// expect: te: m: (cross_entropy, loss) must not stand in a (recompute, ..): backward would write the loss again
// The loss is the caller's memory: recomputing it would overwrite it.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (recompute, r), (rmsnorm, n, 8), (linear, lm, 8, 32), (end_recompute, r), (cross_entropy, loss, 32))
#else
TE_SEQUENTIAL(m, f32, (recompute, r), (rmsnorm, n, 8), (linear, lm, 8, 32), (cross_entropy, loss, 32), (end_recompute, r))
#endif
