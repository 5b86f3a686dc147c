// expect: te: m: (embedding, e): the vocabulary must be positive
// TE_SEQUENTIAL takes no TE_DIM, not as a vocabulary either.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL_DIMS(m, f32, (embedding, e, TE_DIM(0), 64))
#else
TE_SEQUENTIAL(m, f32, (embedding, e, TE_DIM(0), 64))
#endif
