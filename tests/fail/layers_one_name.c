// expect: te: m: (fork, b0_x1) has the name of an op before it
// Two blocks of a list need two names.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, TE_LLAMA_BLOCK(b0, 64, 96, 4, 2, 16, 10000.0f), TE_LLAMA_BLOCK(b1, 64, 96, 4, 2, 16, 10000.0f))
#else
TE_SEQUENTIAL(m, f32, TE_LLAMA_BLOCK(b0, 64, 96, 4, 2, 16, 10000.0f), TE_LLAMA_BLOCK(b0, 64, 96, 4, 2, 16, 10000.0f))
#endif
