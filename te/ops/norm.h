/* norm.h -- (layernorm, name, width[, eps]), (rmsnorm, name, width[, eps]), (l2norm, name, width[, eps]) and, with a gamma
 * that is stored less 1, (layernorm1p, ...), (rmsnorm1p, ...). eps is 1e-5 unless given. Formulas: fuse/chain.h, where the
 * rows are worked on.
 */
#ifndef TE_OPS_NORM_H
#define TE_OPS_NORM_H

#include "../fuse/chain.h" /* TE_NORM_* */

/* X(kind, parameters): the tests and benches expand this. */
#define TE_NORMS(X) X(layernorm, 2) X(rmsnorm, 1) X(l2norm, 0) X(layernorm1p, 2) X(rmsnorm1p, 1)

#define TE_OP_layernorm (norm, TE_NORM_layernorm, norm)
#define TE_OP_rmsnorm (norm, TE_NORM_rmsnorm, norm)
#define TE_OP_l2norm (norm, TE_NORM_l2norm, norm)
#define TE_OP_layernorm1p (norm, (TE_NORM_layernorm | TE_NORM_zero_centred), norm)
#define TE_OP_rmsnorm1p (norm, (TE_NORM_rmsnorm | TE_NORM_zero_centred), norm)
#define TE_IN_norm(op) TE_ARG1(op, 0)
#define TE_OUT_norm(op, in) in
#define TE_FLAGS_norm(op) TE_SAVES_INPUT
#define TE_TRAITS_norm(model, op, in, out)                                                                             \
    (TE_CODE(op) % 4 == TE_NORM_layernorm ? 2 : 1), -1, {(float)(TE_ARG2(op, 1e-5f)), 0}, 2 - TE_CODE(op) % 4, {          \
        {"weight", 1, out, TE_CODE(op) & TE_NORM_zero_centred ? TE_INIT_zero : TE_INIT_one, 0}, {"bias", 1, out, TE_INIT_zero, 0} }
#define TE_FIELDS_norm(op) TE_JOIN1(TE_FIELDS_OF_, TE_KIND(op))(op)
#define TE_FIELDS_OF_layernorm(op) struct { te_param weight, bias; } TE_NAME(op);
#define TE_FIELDS_OF_layernorm1p(op) struct { te_param weight, bias; } TE_NAME(op);
#define TE_FIELDS_OF_rmsnorm(op) struct { te_param weight; } TE_NAME(op);
#define TE_FIELDS_OF_rmsnorm1p(op) struct { te_param weight; } TE_NAME(op);
#define TE_FIELDS_OF_l2norm(op)
#define TE_DECLARE_norm(model, op)

#endif
