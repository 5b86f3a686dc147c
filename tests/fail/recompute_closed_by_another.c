// expect: te: m: (end_recompute, r) does not close the (recompute, ..) that is open
// The open span is s.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (recompute, r), (linear, fc1, 8, 16), (end_recompute, r), (recompute, s), (gelu, act), (end_recompute, s))
#else
TE_SEQUENTIAL(m, f32, (recompute, r), (linear, fc1, 8, 16), (end_recompute, r), (recompute, s), (gelu, act), (end_recompute, r), (bias, b, 16), (end_recompute, s))
#endif
