// expect: te: m: (attention, attn): with fp8 head_dim must be 64, 128 or 256
// Those are the head sizes that the kernel in FP8 has tiles for.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, bf16, (attention, attn, 2, 2, 128, (fp8, 1)))
#else
TE_SEQUENTIAL(m, bf16, (attention, attn, 2, 2, 96, (fp8, 1)))
#endif
