// expect: te: m: (linear, fc2) does not take the width that (gelu, act) produces
// lines: 40
#include "te/fuse/sequential.h"
#include "te/ops/linear.h"
#include "te/ops/activation.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc1, 8, 32), (gelu, act), (linear, fc2, 32, 8))
#else
TE_SEQUENTIAL(m, f32, (linear, fc1, 8, 32), (gelu, act), (linear, fc2, 24, 8))
#endif
