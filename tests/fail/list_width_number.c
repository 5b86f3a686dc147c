// expect: te: m: (list, bf16): the option width takes an integer
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, (bf16, (width, 16)), (gelu, a))
#else
TE_SEQUENTIAL(m, (bf16, (width, 16.0)), (gelu, a))
#endif
