/* model.cu -- the only file with kernels in it. nvcc compiles it for CUDA, `cc -x c` compiles the same text for the host.
 */
/* [list] */
#include "model.h"

TE_DEFINE(scorer, f32, SCORER_OPS)
/* [list] */
