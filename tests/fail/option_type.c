// expect: te: m: (rope, r): the option rotary_dim takes an integer
// A float where an integer is needed.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (rope, r, 2, 2, 16, (rotary_dim, 8)))
#else
TE_SEQUENTIAL(m, f32, (rope, r, 2, 2, 16, (rotary_dim, 8.0f)))
#endif
