// expect: te: m: (rope, rot): there is no (scaling, dynamic); there are none, linear, llama3, yarn and given
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, bf16, (linear, qkv, 64, 192), (rope, rot, 2, 2, 32, (scaling, linear), (factor, 2)), (attention, a, 2, 2, 32), (linear, o, 64, 64))
#else
TE_SEQUENTIAL(m, bf16, (linear, qkv, 64, 192), (rope, rot, 2, 2, 32, (scaling, dynamic), (factor, 2)), (attention, a, 2, 2, 32), (linear, o, 64, 64))
#endif
