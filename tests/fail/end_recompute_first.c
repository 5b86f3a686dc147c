// expect: te_error_end_recompute_r_of_m_has_no_recompute_before_it
// The list begins with the mark that ends a region.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (recompute, r), (linear, fc1, 8, 16), (gelu, act), (end_recompute, r))
#else
TE_SEQUENTIAL(m, f32, (end_recompute, r), (linear, fc1, 8, 16), (gelu, act), (recompute, r))
#endif
