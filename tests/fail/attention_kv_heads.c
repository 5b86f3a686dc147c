// expect: te: m: (attention, attn): kv_heads does not divide heads
#include "te/fuse/sequential.h"
#include "te/ops/attention.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 4, 2, 16))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 4, 3, 16))
#endif
