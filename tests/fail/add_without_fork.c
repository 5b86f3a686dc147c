// expect: te: m: (add, x) has no (fork, x)
// lines: 40
#include "te/fuse/sequential.h"
#include "te/ops/linear.h"
#include "te/ops/residual.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 8), (add, x))
#else
TE_SEQUENTIAL(m, f32, (fork, z), (linear, fc, 8, 8), (add, x))
#endif
