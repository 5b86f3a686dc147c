// expect: te: m: weights in few bits are of a list for inference, TE_INFERENCE
// They cannot be trained.
#include "te/te.h"
#include "te/infer.h"
#ifdef TE_FIXED
TE_INFERENCE(m, (f32, (weights, quantized)), (linear, fc, 64, 32))
#else
TE_SEQUENTIAL(m, (f32, (weights, quantized)), (linear, fc, 64, 32))
#endif
