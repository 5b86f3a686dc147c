// expect: te: m: (rmsnorm, n) has more arguments than its kind takes
#include "te/fuse/sequential.h"
#include "te/ops/norm.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (rmsnorm, n, 8, (eps, 1e-6f)))
#else
TE_SEQUENTIAL(m, f32, (rmsnorm, n, 8, 1e-6f))
#endif
