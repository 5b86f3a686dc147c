// expect: te: block: (fork, x) has the name of an op before it; ops of the family fork need different names
// lines: 40 gcc 480 nvcc 260
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, bf16, (fork, x), (linear, fc1, 64, 64), (add, x), (fork, z), (linear, fc2, 64, 64), (add, z))
#else
TE_SEQUENTIAL(block, bf16, (fork, x), (linear, fc1, 64, 64), (add, x), (fork, x), (linear, fc2, 64, 64), (add, y, x))
#endif
