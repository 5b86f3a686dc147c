// expect: te: m: (attention, attn): context needs te/context_parallel.h
// Most programs do not split sequences, so the kernels for it are in a header of their own.
#include "te/te.h"
#ifdef TE_FIXED
#include "te/context_parallel.h"
#endif
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (context, ring)))
