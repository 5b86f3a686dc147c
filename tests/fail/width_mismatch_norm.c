// expect: te: m: (layernorm, ln) does not take the width that (linear, fc) produces
#include "te/fuse/sequential.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 32), (layernorm, ln, 32))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 32), (layernorm, ln, 8))
#endif
