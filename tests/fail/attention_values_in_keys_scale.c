// expect: te: m: (attention, attn): values_in_keys needs (scale, ..), that of the heads before the absorption
// The default would be that of heads of the latent vector's size.
#include "te/te.h"
#ifdef TE_FIXED
TE_INFERENCE(m, f32, (attention, attn, 4, 1, 24, (value_dim, 16), (values_in_keys, 1), (scale, 0.25f)))
#else
TE_INFERENCE(m, f32, (attention, attn, 4, 1, 24, (value_dim, 16), (values_in_keys, 1)))
#endif
