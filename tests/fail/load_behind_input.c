// expect: te: m: (load, x) drops the value that (input, x) produces
// load drops the current value, which may be an input, too.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (fork, z), (input, x, 8), (fork, y), (load, x), (linear, fc, 8, 8), (add, y), (add, z))
#else
TE_SEQUENTIAL(m, f32, (fork, z), (input, x, 8), (load, x), (linear, fc, 8, 8), (add, z))
#endif
