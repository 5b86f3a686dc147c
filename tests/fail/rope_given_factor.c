// expect: te: m: (rope, r): factor and original_length need (scaling, linear), llama3 or yarn
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (rope, r, 2, 1, 32, (scaling, given), (attention_factor, 1.2f)))
#else
TE_SEQUENTIAL(m, f32, (rope, r, 2, 1, 32, (scaling, given), (factor, 4)))
#endif
