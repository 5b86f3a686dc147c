// expect: te: m: (rope, r): factor must be at least 1
#include "te/fuse/sequential.h"
#include "te/ops/rope.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (rope, r, 1, 1, 8, (scaling, linear), (factor, 1)))
#else
TE_SEQUENTIAL(m, f32, (rope, r, 1, 1, 8, (scaling, linear), (factor, 0.5f)))
#endif
