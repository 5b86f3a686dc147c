// expect: te: m: (bias, b) does not take the width that the option (width, ..) of the list produces
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, (bf16, (width, 16)), (gelu, a), (bias, b, 16))
#else
TE_SEQUENTIAL(m, (bf16, (width, 24)), (bias, b, 16))
#endif
