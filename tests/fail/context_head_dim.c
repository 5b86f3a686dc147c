// expect: te: m: (attention, attn): with context head_dim and value_dim are at most 256
// Attention whose sequences several ranks split is not tested with larger heads.
#include "te/te.h"
#include "te/context_parallel.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 256, (context, ring)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 264, (context, ring)))
#endif
