// expect: te: m: (layernorm, n) has a width that is known only at run time, which takes TE_SEQUENTIAL_DIMS
// TE_SEQUENTIAL takes constant widths only; TE_DIM needs TE_SEQUENTIAL_DIMS.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL_DIMS(m, f32, (layernorm, n, TE_DIM(0)))
#else
TE_SEQUENTIAL(m, f32, (layernorm, n, TE_DIM(0)))
#endif
