// expect: te: m: (attention, attn): causal must be 0 or 1
// causal is a switch; the options window_left and window_right set the size of a window.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (causal, 1)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (causal, 2)))
#endif
