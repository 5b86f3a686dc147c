// expect: te: m: (attention, attn): varlen must be 0 or 1
// varlen is a switch; the batch brings the lengths of the sequences.
#include "te/te.h"
#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (varlen, 1)))
#else
TE_SEQUENTIAL(m, f32, (attention, attn, 2, 2, 16, (varlen, 64)))
#endif
