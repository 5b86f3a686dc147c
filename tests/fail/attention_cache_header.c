// expect: te: m: (attention, a): (cache, ..) needs te/infer.h
#include "te/te.h"
#ifdef TE_FIXED
#include "te/infer.h"
#endif
TE_INFERENCE(m, f32, (attention, a, 2, 1, 16, (cache, 1)))
