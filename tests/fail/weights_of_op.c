// expect: te: m: (linear, fc): (weights, ..) of an op is none or a format of blocks, in a list that has one, too: (bf16, (weights, quantized))
#include "te/te.h"
#include "te/infer.h"
#ifdef TE_FIXED
TE_INFERENCE(m, (f32, (weights, int4_64)), (linear, fc, 64, 32, (weights, q8_0)))
#else
TE_INFERENCE(m, f32, (linear, fc, 64, 32, (weights, q8_0)))
#endif
