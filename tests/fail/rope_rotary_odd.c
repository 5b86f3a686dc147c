// expect: te: m: (rope, rot): rotary_dim must be even and no larger than head_dim
#include "te/fuse/sequential.h"
#include "te/ops/rope.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (rope, rot, 4, 2, 16, (rotary_dim, 8)))
#else
TE_SEQUENTIAL(m, f32, (rope, rot, 4, 2, 16, (rotary_dim, 7)))
#endif
