// expect: te: m: (sample, next): a vocabulary has at most 2^20 tokens
#include "te/infer.h"

#ifdef TE_FIXED
TE_INFERENCE(m, f32, (sample, next, 1048576))
#else
TE_INFERENCE(m, f32, (sample, next, 1048577))
#endif
