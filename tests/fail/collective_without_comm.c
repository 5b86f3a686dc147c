// expect: te: m: (all_reduce, r) is a collective: compile with -DTE_COMM and link NCCL (nvcc) or MPI
// A declaration compiles no collective and needs neither NCCL nor MPI.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, (f32, (width, 8)), (all_reduce, r))
#else
TE_SEQUENTIAL(m, (f32, (width, 8)), (all_reduce, r))
#endif
