// expect: te: m: (attention, attn): fp8 does not go with dropout
// The FP8 kernel supports causal masking and a window, and no other option.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, bf16, (attention, attn, 2, 2, 64, (window_left, 20), (fp8, 1)))
#else
TE_SEQUENTIAL(m, bf16, (attention, attn, 2, 2, 64, (dropout, 0.1f), (fp8, 1)))
#endif
