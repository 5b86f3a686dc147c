// expect: te: m: (attention, attn): alibi needs (context, gather) or all_to_all
// The blocks of the ring are not at the distances that the kernels see.
#include "te/te.h"
#include "te/context_parallel.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (context, all_to_all), (alibi, 1)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (context, ring), (alibi, 1)))
#endif
