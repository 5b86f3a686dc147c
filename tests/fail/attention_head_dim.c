// expect: te: attention: head_dim must be 1 to 512
// The tiles of larger heads do not fit into shared memory.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 512))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 520))
#endif
