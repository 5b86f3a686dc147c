// expect: te: m: (attention, attn): a window to the right needs (causal, 0)
// Causal attention sees no key to the right of the query.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (causal, 0), (window_right, 4)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (window_right, 4)))
#endif
