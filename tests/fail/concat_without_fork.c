// expect: te: m: (concat, c) has no (fork, x) or (input, x, ..) before it
// A list uses only forks in front of the op.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 64), (concat, c, x, 8))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 64), (concat, c, x, 8))
#endif
