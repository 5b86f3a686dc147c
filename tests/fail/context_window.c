// expect: te: m: (attention, attn): a window or alibi needs (context, gather)
// The blocks of the ring are not at the positions that the mask of a window needs.
#include "te/te.h"
#include "te/context_parallel.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (context, gather), (window_left, 8)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (context, ring), (window_left, 8)))
#endif
