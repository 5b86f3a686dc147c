// expect: te: m: (list, bf16) takes no option redidual
// An option that no list has.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, (bf16, (residual, f32)), (bias, b, 16))
#else
TE_SEQUENTIAL(m, (bf16, (redidual, f32)), (bias, b, 16))
#endif
