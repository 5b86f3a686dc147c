// expect: te: m: (attention, attn) does not take the width that (rope, turn) gives
// rope takes packed rows whose heads all have one size.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (rope, turn, 2, 1, 16), (attention, attn, 2, 1, 16))
#else
TE_DECLARE(m, f32, (rope, turn, 2, 1, 16), (attention, attn, 2, 1, 16, (value_dim, 8)))
#endif
