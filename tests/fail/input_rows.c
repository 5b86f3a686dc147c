// expect: te: m: (input, enc): rows are memory or sequences, of an input, or not named
// An input has the rows of the op that uses it, unless it says (rows, memory) or (rows, sequences).
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (input, enc, 8), (linear, l, 8, 8), (add, enc))
#else
TE_DECLARE(m, f32, (input, enc, 8, (rows, shard)), (linear, l, 8, 8), (add, enc))
#endif
