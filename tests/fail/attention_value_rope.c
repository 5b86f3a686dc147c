// expect: te: m: (attention, attn) does not take the width that (rope, rot) produces
// rope must be told the head size of v, too: it decides how wide the input is.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (rope, rot, 2, 1, 24, (value_dim, 8)), (attention, attn, 2, 1, 24, (value_dim, 8)))
#else
TE_DECLARE(m, f32, (rope, rot, 2, 1, 24), (attention, attn, 2, 1, 24, (value_dim, 8)))
#endif
