// expect: te: m: (load, x) has the name of an op before it
// The second load needs a name of its own.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (fork, x), (gelu, a), (fork, y), (load, x), (silu, b), (fork, z), (load, w, x), (linear, fc, 8, 8), (add, y), (add, z))
#else
TE_SEQUENTIAL(m, f32, (fork, x), (gelu, a), (fork, y), (load, x), (silu, b), (fork, z), (load, x), (linear, fc, 8, 8), (add, y), (add, z))
#endif
