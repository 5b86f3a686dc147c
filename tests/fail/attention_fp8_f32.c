// expect: te: attention: FP8 is for bf16 and f16
// Backward reads q, k and v in the list's own format, and the output is stored in it.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f16, (attention, attn, 2, 2, 64, (fp8, 1)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 64, (fp8, 1)))
#endif
