/* linear.h -- (linear, name, in, out): y[rows, out] = x[rows, in] weight[out, in]^T. A bias is an op of its own.
 * (tied_linear, name, in, out): the same, with a weight that belongs to another parameter (te_tie).
 * How it runs, alone or with the ops behind it: te/fuse/linear_step.h.
 */
#ifndef TE_OPS_LINEAR_H
#define TE_OPS_LINEAR_H

#include "../plan/model.h" /* TE_SAVES_INPUT, TE_INIT_normal */

#define TE_OP_linear (linear, gemm)
#define TE_OP_tied_linear (linear, gemm)
#define TE_SHAPES_linear(op) (2)
#define TE_IN_linear(op) (TE_ARG1(op, 0))
#define TE_OUT_linear(op, in) (TE_ARG2(op, 0))
#define TE_FLAGS_linear(op) (TE_SAVES_INPUT)
#define TE_PARAMS_linear(op, in, out) ((weight, out, in, TE_JOIN1(TE_WEIGHT_OF_, TE_KIND(op))))
#define TE_WEIGHT_OF_linear normal
#define TE_WEIGHT_OF_tied_linear tied

#endif
