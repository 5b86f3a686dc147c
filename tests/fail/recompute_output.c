// expect: te: m: (output, o) must not stand in a (recompute, ..): backward would write it again
// An output is the caller's memory: recomputing it would overwrite it.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (recompute, r), (gelu, act), (linear, fc, 8, 16), (end_recompute, r), (output, o))
#else
TE_SEQUENTIAL(m, f32, (recompute, r), (gelu, act), (output, o), (linear, fc, 8, 16), (end_recompute, r))
#endif
