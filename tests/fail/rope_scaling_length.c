// expect: te: m: (rope, r): llama3 and yarn need a positive original_length
#include "te/fuse/sequential.h"
#include "te/ops/rope.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (rope, r, 1, 1, 8, (scaling, llama3), (factor, 8), (original_length, 8192)))
#else
TE_SEQUENTIAL(m, f32, (rope, r, 1, 1, 8, (scaling, llama3), (factor, 8)))
#endif
