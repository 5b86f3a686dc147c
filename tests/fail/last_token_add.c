// expect: te: m: (add, x) has other rows than its fork
// The value of the fork has a row for each token; behind last_token there is a row for each sequence.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, l, 16, 16), (last_token, t), (fork, x), (gelu, a), (add, x))
#else
TE_SEQUENTIAL(m, f32, (linear, l, 16, 16), (fork, x), (last_token, t), (gelu, a), (add, x))
#endif
