// expect: te: m: (attention, attn): fp8 does not go with value_dim
// In the FP8 kernel v has the head size of q and k.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, bf16, (attention, attn, 2, 2, 128, (fp8, 1)))
#else
TE_SEQUENTIAL(m, bf16, (attention, attn, 2, 2, 128, (fp8, 1), (value_dim, 64)))
#endif
