// expect: te_error_end_recompute_r_of_m_is_there_twice
// end_recompute names the region r, but the open one is s.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (recompute, r), (linear, fc1, 8, 16), (end_recompute, r), (recompute, s), (gelu, act), (end_recompute, s))
#else
TE_SEQUENTIAL(m, f32, (recompute, r), (linear, fc1, 8, 16), (end_recompute, r), (recompute, s), (gelu, act), (end_recompute, r), (bias, b, 16), (end_recompute, s))
#endif
