// expect: te: m: (attention, attn): with fp8 head_dim must be 64, 128 or 256
// The FP8 kernel has tiles for these head sizes only.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, bf16, (attention, attn, 2, 2, 128, (fp8, 1)))
#else
TE_SEQUENTIAL(m, bf16, (attention, attn, 2, 2, 96, (fp8, 1)))
#endif
