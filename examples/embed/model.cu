/* model.cu -- the one file with kernels in it. nvcc makes it a CUDA model; `cc -x c` takes the same text and makes it one
 * of the host.
 */
#include "model.h"

TE_DEFINE(scorer, f32, SCORER_OPS)
