/* microscaling.h -- the recipes mxfp8 and nvfp4, with which an op list trains as it would on a Blackwell GPU.
 *
 * Do this:
 *     #include "te/te.h"
 *     #include "te/microscaling.h"
 *     TE_SEQUENTIAL(block, (bf16, (recipe, mxfp8)), (layernorm, ln, 768), (linear, fc1, 768, 3072), ...)
 *     ... te_recipes_init, te_recipes_step, as under every recipe ...
 *
 * The GEMMs are emulated on every device: their operands are rounded to the recipe's format, and the GEMM runs in the
 * list's dtype (te/linear/impl/linear_microscaled.h). docs/fp8.md has the formats, and what each operand becomes. The
 * recipes are in a header of their own because most programs do not need their kernels, and would compile more slowly
 * with them. te/fp8/microscaled.h has the casts by themselves, also with elements and scales as cuBLASLt reads them;
 * te/gemm/gemm_microscaled.h has GEMMs for such operands.
 */
#ifndef TE_MICROSCALING_H
#define TE_MICROSCALING_H

#include "gemm/gemm_microscaled.h"          /* TE_GEMM_MICROSCALED */
#include "linear/impl/linear_fp8.h"         /* TE__FP8_OPS_mxfp8, which this header defines anew */
#include "linear/impl/linear_microscaled.h" /* TE__MICROSCALED_OPS_mxfp8 */

#undef TE__FP8_OPS_mxfp8
#undef TE__FP8_OPS_nvfp4
#define TE__FP8_OPS_mxfp8(...) TE__MICROSCALED_OPS_mxfp8(__VA_ARGS__)
#define TE__FP8_OPS_nvfp4(...) TE__MICROSCALED_OPS_nvfp4(__VA_ARGS__)

#endif
