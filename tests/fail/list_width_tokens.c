// expect: te: m: (embedding, e) does not take the width that the option (width, ..) of the list produces
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, bf16, (embedding, e, 100, 16))
#else
TE_SEQUENTIAL(m, (bf16, (width, 16)), (embedding, e, 100, 16))
#endif
