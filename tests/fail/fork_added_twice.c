// expect: te: m: (add, x) has the name of an op before it
#include "te/fuse/sequential.h"
#include "te/ops/linear.h"
#include "te/ops/residual.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 8), (add, x), (add, second, x))
#else
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 8), (add, x), (add, x))
#endif
