// expect: te: m: (rope, r) takes no width that is known only at run time
// The number of heads and their size must be constants.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL_DIMS(m, f32, (linear, qkv, TE_DIM(0), 3 * 12 * 64), (rope, r, 12, 12, 64))
#else
TE_SEQUENTIAL_DIMS(m, f32, (linear, qkv, TE_DIM(0), 3 * 12 * TE_DIM(1)), (rope, r, 12, 12, TE_DIM(1)))
#endif
