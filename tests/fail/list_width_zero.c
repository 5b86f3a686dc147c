// expect: te: m: (gelu, a) has no width
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, (bf16, (width, 16)), (gelu, a))
#else
TE_SEQUENTIAL(m, (bf16, (width, 0)), (gelu, a))
#endif
