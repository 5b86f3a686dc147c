// expect: te: m: (gelu, a) has a width that is known only at run time, which takes TE_SEQUENTIAL_DIMS
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL_DIMS(m, (bf16, (width, 2 * TE_DIM(0))), (gelu, a))
#else
TE_SEQUENTIAL(m, (bf16, (width, TE_DIM(0))), (gelu, a))
#endif
