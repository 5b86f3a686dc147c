// expect: te: m: (embedding, e): padding_idx must be a token of the vocabulary
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (embedding, e, 64, 8, (padding_idx, 63)))
#else
TE_SEQUENTIAL(m, f32, (embedding, e, 64, 8, (padding_idx, 64)))
#endif
