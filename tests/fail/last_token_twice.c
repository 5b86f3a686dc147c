// expect: te: m: (last_token, u) needs a row for each token
// There is one row a sequence left.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (bias, b, 16), (last_token, t))
#else
TE_SEQUENTIAL(m, f32, (bias, b, 16), (last_token, t), (last_token, u))
#endif
