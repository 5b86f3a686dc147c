// expect: te: m: (attention, attn): max_logit must be 0 or 1
// It is a switch.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (max_logit, 1)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (max_logit, 50)))
#endif
