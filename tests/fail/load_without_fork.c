// expect: te_error_load_x_of_m_has_no_fork_before_it
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (fork, x), (gelu, a), (fork, y), (load, x), (linear, fc, 8, 8), (add, y))
#else
TE_SEQUENTIAL(m, f32, (gelu, a), (fork, y), (load, x), (linear, fc, 8, 8), (add, y))
#endif
