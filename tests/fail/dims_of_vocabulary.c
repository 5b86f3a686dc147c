// expect: te: m: (embedding, e): the vocabulary must be positive
// A symbol in a list of constants, where it is no width.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL_DIMS(m, f32, (embedding, e, TE_DIM(0), 64))
#else
TE_SEQUENTIAL(m, f32, (embedding, e, TE_DIM(0), 64))
#endif
