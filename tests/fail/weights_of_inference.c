// expect: te: m: (weights, f32) is of a list that trains; te_fp8_weights_load takes any format
#include "te/te.h"
#ifdef TE_FIXED
#define LIST (bf16, (recipe, fp8_delayed))
#else
#define LIST (bf16, (recipe, fp8_delayed), (weights, f32))
#endif
TE_INFERENCE(m, LIST, (linear, fc, 16, 32))
