// expect: te: m: (recompute, r) has more arguments than its kind takes
#include "te/fuse/sequential.h"
#include "te/ops/activation.h"
#include "te/ops/linear.h"
#include "te/ops/recompute.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, a, 8, 8), (recompute, r), (gelu, g), (linear, b, 8, 8), (end_recompute, r))
#else
TE_SEQUENTIAL(m, f32, (linear, a, 8, 8), (recompute, r, 2), (gelu, g), (linear, b, 8, 8), (end_recompute, r))
#endif
