// expect: te: m: weights in few bits need te/infer.h; te/te.h leaves their kernels out
#include "te/te.h"
#ifdef TE_FIXED
#include "te/infer.h"
#endif
TE_INFERENCE(m, (f32, (weights, quantized)), (linear, fc, 64, 32))
