// expect: (rope, rot): first must be 0 behind a head_norm
// The kernel of a head_norm and a rope rotates the first columns of each head.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (head_norm, n, 2, 1, 24), (rope, rot, 2, 1, 24, (rotary_dim, 8)))
#else
TE_SEQUENTIAL(m, f32, (head_norm, n, 2, 1, 24), (rope, rot, 2, 1, 24, (first, 16)))
#endif
