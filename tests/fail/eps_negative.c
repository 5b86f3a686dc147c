// expect: te: m: (rmsnorm, n): eps must be a finite number of at least 0
#include "te/fuse/sequential.h"
#include "te/ops/norm.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (rmsnorm, n, 8, (eps, 0)))
#else
TE_SEQUENTIAL(m, f32, (rmsnorm, n, 8, (eps, -1e-5f)))
#endif
