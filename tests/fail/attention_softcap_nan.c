// expect: te: m: (attention, attn): softcap must be a finite number of at least 0
// softcap is no NaN.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (softcap, 50.0f)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (softcap, 0.0f / 0.0f)))
#endif
