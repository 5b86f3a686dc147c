// expect: te: m: (concat, c): its input does not consist of so many heads
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 64), (concat, c, x, 8, (heads, 4)))
#else
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 64), (concat, c, x, 8, (heads, 5)))
#endif
