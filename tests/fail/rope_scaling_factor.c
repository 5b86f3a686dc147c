// expect: te: m: (rope, r): scaling needs (factor, ..)
#include "te/fuse/sequential.h"
#include "te/ops/rope.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (rope, r, 1, 1, 8, (scaling, linear), (factor, 2)))
#else
TE_SEQUENTIAL(m, f32, (rope, r, 1, 1, 8, (scaling, linear)))
#endif
