// expect: te: m: (attention, attn): alibi must be 0 or 1
// alibi is a switch: the slopes follow from the number of heads.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (alibi, 1)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (alibi, 8)))
#endif
