// expect: te: m: (rope, r) needs a row for each token
// Behind last_token there is only one row for each sequence.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (rope, r, 2, 2, 16), (last_token, t))
#else
TE_SEQUENTIAL(m, f32, (last_token, t), (rope, r, 2, 2, 16))
#endif
