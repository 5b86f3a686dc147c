// expect: te: m: (input, enc): rows are memory, of an input, or not named
// An input has the rows of the op that uses it, unless it says (rows, memory).
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (input, enc, 8), (linear, l, 8, 8), (add, enc))
#else
TE_DECLARE(m, f32, (input, enc, 8, (rows, sequences)), (linear, l, 8, 8), (add, enc))
#endif
