// expect: te: m: (add, enc) has other rows than its fork
// Only an input with the rows of x can be added to it.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (input, enc, 8), (linear, l, 8, 8), (add, enc))
#else
TE_DECLARE(m, f32, (input, enc, 8, (rows, memory)), (linear, l, 8, 8), (add, enc))
#endif
