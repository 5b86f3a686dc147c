// expect: te: m: (layernorm, n): (first, ..) goes with (columns, ..)
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (layernorm, n, 64, (first, 16), (columns, 16)))
#else
TE_SEQUENTIAL(m, f32, (layernorm, n, 64, (first, 16)))
#endif
