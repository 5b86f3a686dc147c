// expect: te: m: (attention, b0_attention) does not take the width that (bias, b0_qkv_bias) produces
// 64 columns do not divide into 5 heads.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, TE_GPT_BLOCK(b0, 64, 96, 4, 0.1f))
#else
TE_SEQUENTIAL(m, f32, TE_VIT_BLOCK(b0, 64, 96, 5))
#endif
