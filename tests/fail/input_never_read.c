// expect: te_error_side_of_m_is_never_used
#include "te/fuse/sequential.h"
#include "te/ops/linear.h"
#include "te/ops/residual.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (input, side, 8), (linear, fc, 8, 8), (add, side))
#else
TE_SEQUENTIAL(m, f32, (input, side, 8), (linear, fc, 8, 8))
#endif
