// expect: te: m: (rope, r): base must be a finite positive number
#include "te/fuse/sequential.h"
#include "te/ops/rope.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (rope, r, 1, 1, 8, (base, 500000)))
#else
TE_SEQUENTIAL(m, f32, (rope, r, 1, 1, 8, (base, -1.0)))
#endif
