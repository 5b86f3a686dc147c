// expect: te: m: (attention, attn): relative_bias needs 2 to 1024 buckets (if not causal, an even number from 4 on) and a max_distance above a half of one side, up to 65536
// If not causal, one half of the 32 buckets is for each side, and max_distance must exceed a half of those 16.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (causal, 0), (relative_bias, 32), (max_distance, 9)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (causal, 0), (relative_bias, 32), (max_distance, 8)))
#endif
