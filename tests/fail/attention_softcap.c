// expect: te: m: (attention, attn): softcap must be a finite number of at least 0
// softcap bounds the size of a score, and is not negative.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (softcap, 30)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (softcap, -1.0f)))
#endif
