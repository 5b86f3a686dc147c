// expect: te: m: (attention, attn): dropout must be at least 0 and less than 1
// With a probability of 1 nothing would be left to scale up.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (dropout, 0.1f)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (dropout, 1)))
#endif
