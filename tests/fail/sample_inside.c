// expect: te: m: (sample, next) must end the list
#include "te/infer.h"

#ifdef TE_FIXED
TE_INFERENCE(m, f32, (scale, s, 2.0f), (sample, next, 8))
#else
TE_INFERENCE(m, f32, (sample, next, 8), (scale, s, 2.0f))
#endif
