// expect: te: m: (last_token, u) needs a row for each token
// Behind the first last_token there is only one row for each sequence.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (bias, b, 16), (last_token, t))
#else
TE_SEQUENTIAL(m, f32, (bias, b, 16), (last_token, t), (last_token, u))
#endif
