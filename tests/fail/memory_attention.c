// expect: te: m: (attention, a) needs a row for each token
// Self-attention over the memory belongs into the list of the encoder.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (input, enc, 8, (rows, memory)), (fork, x), (load, enc), (linear, kv, 8, 16), (fork, keys), (load, x), (cross_attention, c, keys, 1, 1, 8))
#else
TE_DECLARE(m, f32, (input, enc, 8, (rows, memory)), (fork, x), (load, enc), (linear, qkv, 8, 24), (attention, a, 1, 1, 8), (linear, kv, 8, 16), (fork, keys), (load, x), (cross_attention, c, keys, 1, 1, 8))
#endif
