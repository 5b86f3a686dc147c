// expect: te: m: (weights, quantized) needs te/infer.h; te/te.h leaves its kernels out
#include "te/te.h"
#ifdef TE_FIXED
#include "te/infer.h"
#endif
TE_INFERENCE(m, (f32, (weights, quantized)), (linear, fc, 64, 32))
