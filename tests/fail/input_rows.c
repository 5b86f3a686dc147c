// expect: te: m: (input, enc): rows are memory, of an input, or not named
// Those of who reads it need no name.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (input, enc, 8), (linear, l, 8, 8), (add, enc))
#else
TE_DECLARE(m, f32, (input, enc, 8, (rows, sequences)), (linear, l, 8, 8), (add, enc))
#endif
