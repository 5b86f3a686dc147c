// expect: te: m: (attention, attn): a window is 0 to 1048576 tokens, or -1 for all
// -1 is the only negative size: it means no window.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (window_left, 0)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (window_left, -2)))
#endif
