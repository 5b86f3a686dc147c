// expect: te: m: (sample, next) does not take the width that (linear, l) produces
#include "te/infer.h"

#ifdef TE_FIXED
TE_INFERENCE(m, f32, (linear, l, 16, 8), (sample, next, 8))
#else
TE_INFERENCE(m, f32, (linear, l, 16, 8), (sample, next, 9))
#endif
