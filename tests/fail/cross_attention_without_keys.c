// expect: te: m: (cross_attention, c) has no (fork, keys)
// The first argument names the fork whose value holds keys and values.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (fork, x), (linear, kv, 16, 16), (fork, keys), (load, x), (cross_attention, c, keys, 2, 1, 8))
#else
TE_DECLARE(m, f32, (fork, x), (linear, kv, 16, 16), (fork, other), (load, x), (cross_attention, c, keys, 2, 1, 8), (linear, l, 16, 16), (add, other))
#endif
