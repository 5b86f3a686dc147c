// expect: te: m: (rope, r): there is no (scaling, longrope); there are none, linear, llama3, yarn and given
#include "te/fuse/sequential.h"
#include "te/ops/rope.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (rope, r, 1, 1, 8, (scaling, linear), (factor, 8)))
#else
TE_SEQUENTIAL(m, f32, (rope, r, 1, 1, 8, (scaling, longrope), (factor, 8)))
#endif
