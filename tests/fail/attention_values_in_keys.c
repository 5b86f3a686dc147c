// expect: te: m: (attention, attn): values_in_keys is for inference: declare the list with TE_INFERENCE
// No kernel computes the gradient of keys whose columns are values, too.
#include "te/te.h"
#define LIST (attention, attn, 4, 1, 24, (value_dim, 16), (values_in_keys, 1), (scale, 0.25f))
#ifdef TE_FIXED
TE_INFERENCE(m, f32, LIST)
#else
TE_SEQUENTIAL(m, f32, LIST)
#endif
