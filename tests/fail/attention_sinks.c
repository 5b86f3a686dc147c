// expect: te: m: (attention, attn): sinks must be 0 or 1
// sinks is a switch: each head has one sink.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (sinks, 1)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (sinks, 4)))
#endif
