// expect: te: m: (add, x) has no (fork, z)
// In (add, name, fork) the third word names the fork; the second is only the name of the op.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 8), (add, z, x))
#else
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 8), (add, x, z))
#endif
