// expect: te: m: (attention, attn): with (context, gather) or ring a window or alibi needs (causal, 1)
// Their kernels put the last query at the position of the last key, and see no keys behind it.
#include "te/te.h"
#include "te/context_parallel.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (context, ring), (window_left, 8)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (context, ring), (window_left, 8), (causal, 0)))
#endif
