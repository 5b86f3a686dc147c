// expect: te_error_end_recompute_r_of_m_has_no_recompute_before_it
// end_recompute without a recompute before it.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc1, 8, 16), (recompute, r), (gelu, act), (end_recompute, r))
#else
TE_SEQUENTIAL(m, f32, (linear, fc1, 8, 16), (gelu, act), (end_recompute, r))
#endif
