// expect: te: m: (attention, attn): cache must be 0, 1, int8 or e4m3
// The option cache names the format of a key-value cache; 1 stands for the format of the list.
#include "te/infer.h"
#ifdef TE_FIXED
TE_INFERENCE(m, f32, (attention, attn, 2, 2, 16, (cache, int8)))
#else
TE_INFERENCE(m, f32, (attention, attn, 2, 2, 16, (cache, int4)))
#endif
