// expect: te: m: (bias, b) does not take the width that (linear, fc) produces
// Widths that are multiples of TE_DIM are compared as constant widths are.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL_DIMS(m, f32, (linear, fc, TE_DIM(0), 3 * TE_DIM(1)), (bias, b, 3 * TE_DIM(1)))
#else
TE_SEQUENTIAL_DIMS(m, f32, (linear, fc, TE_DIM(0), 3 * TE_DIM(1)), (bias, b, 3 * TE_DIM(0)))
#endif
