// expect: te: m: (attention, attn) does not take the width that (rope, turn) produces
// rope has to know the size of a head of v, too.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (rope, turn, 2, 1, 24, (value_dim, 8)), (attention, attn, 2, 1, 24, (value_dim, 8)))
#else
TE_DECLARE(m, f32, (rope, turn, 2, 1, 24), (attention, attn, 2, 1, 24, (value_dim, 8)))
#endif
