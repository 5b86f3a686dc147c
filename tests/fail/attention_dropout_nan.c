// expect: te: m: (attention, attn): dropout must be at least 0 and less than 1
// NaN is no probability.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (dropout, 0)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (dropout, 0.0f / 0.0f)))
#endif
