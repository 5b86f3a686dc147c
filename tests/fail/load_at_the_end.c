// expect: te_error_y_of_m_is_never_used
// The load drops the value of the fork y, and no op uses it.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 8), (fork, y), (load, x), (gelu, a), (add, y))
#else
TE_SEQUENTIAL(m, f32, (fork, x), (linear, fc, 8, 8), (fork, y), (load, x))
#endif
