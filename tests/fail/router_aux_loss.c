// expect: te: m: (router, r): aux_loss goes with (score, softmax)
#include "te/te.h"
#include "te/moe.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (router, r, 16, 4, (aux_loss, 0.01f)), (combine, r))
#else
TE_SEQUENTIAL(m, f32, (router, r, 16, 4, (score, sigmoid), (aux_loss, 0.01f)), (combine, r))
#endif
