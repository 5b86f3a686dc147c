// expect: te: m: (rope, r): beta_fast, beta_slow and truncate need (scaling, yarn)
#include "te/fuse/sequential.h"
#include "te/ops/rope.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (rope, r, 1, 1, 8, (scaling, yarn), (factor, 8), (original_length, 64), (beta_fast, 16)))
#else
TE_SEQUENTIAL(m, f32, (rope, r, 1, 1, 8, (scaling, llama3), (factor, 8), (original_length, 64), (beta_fast, 16)))
#endif
