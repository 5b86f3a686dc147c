// expect: te: m: (linear, kv) ends the list with the rows of memory
// The output y must have a row for each row of x.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (input, enc, 8, (rows, memory)), (fork, x), (load, enc), (linear, kv, 8, 16), (fork, keys), (load, x), (cross_attention, c, keys, 1, 1, 8))
#else
TE_DECLARE(m, f32, (linear, l, 8, 8), (input, enc, 8, (rows, memory)), (fork, x), (load, enc), (linear, kv, 8, 16))
#endif
