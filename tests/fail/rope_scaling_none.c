// expect: te: m: (rope, r): factor and original_length need (scaling, linear), llama3 or yarn
#include "te/fuse/sequential.h"
#include "te/ops/rope.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (rope, r, 1, 1, 8, (scaling, linear), (factor, 8)))
#else
TE_SEQUENTIAL(m, f32, (rope, r, 1, 1, 8, (factor, 8)))
#endif
