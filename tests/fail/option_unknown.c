// expect: te: m: (attention, attn) takes no option windw
// An option that attention does not have.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (causal, 0)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (windw, 4)))
#endif
