// expect: te: m: (attention, attn): max_logit must be 0 or 1
// max_logit is a switch: it asks for the largest logit to be stored, and is no limit.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (max_logit, 1)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (max_logit, 50)))
#endif
