// expect: te: m: (sample, next) has no gradient: TE_INFERENCE takes it
#include "te/te.h"
#include "te/infer.h"

#ifdef TE_FIXED
TE_INFERENCE(m, f32, (linear, l, 16, 8), (sample, next, 8))
#else
TE_SEQUENTIAL(m, f32, (linear, l, 16, 8), (sample, next, 8))
#endif
