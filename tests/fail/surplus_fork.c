// expect: te: m: (fork, x) has more arguments than its kind takes
#include "te/fuse/sequential.h"
#include "te/ops/linear.h"
#include "te/ops/residual.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 8), (add, x))
#else
TE_SEQUENTIAL(m, f32, (fork, x, 8), (linear, fc, 8, 8), (add, x))
#endif
