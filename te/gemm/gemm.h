/* gemm.h -- calls of single matrix products (GEMMs), outside of any model, and tuning of all GEMMs.
 *
 * Do this:
 *     te_gemm g = te_gemm_of(rows, out, in);                  // y[rows, out] = x[rows, in] w[out, in]^T
 *     g.a = x, g.b = w, g.trans_b = 1, g.d = y, g.dtype = g.out = TE_bf16;
 *     TE_TRY(te_gemm_run(&g, &ctx));
 * With operands in FP8:
 *     g.a_fp8.scaling = g.b_fp8.scaling = TE_SCALING_TENSORWISE, g.a_fp8.dtype = g.b_fp8.dtype = TE_e4m3, g.fast = 1;
 *     g.a_fp8.inverse = te_scales_inverse(&scales, i), g.b_fp8.inverse = te_scales_inverse(&scales, j);
 *     TE_TRY(te_gemm_fp8_run(&g, &ctx));
 * Tuned, so that a shipped binary starts with the fastest kernels (impl/gemm_tune_file.h has the file's format):
 *     if (te_gemm_load("gemm.txt", &ctx) != TE_OK) ctx.gemm_tune = 1;     // no file for this GPU: time the kernels
 *     TE_TRY(te_context_reserve(&ctx, block_workspace_bytes(&m, rows, &ctx)));
 *     ... one forward and backward ...
 *     ctx.gemm_tune = 0;
 *     TE_TRY(te_gemm_save("gemm.txt", &ctx));
 *     te_gemm_print(stdout, &ctx);
 *
 * All matrices are row-major, and sums are computed in float. te_gemm_run uses cuBLASLt; for each shape, the context
 * caches a plan (the descriptors and the algorithm). A build with TE_NO_CUBLASLT neither includes nor links cuBLASLt;
 * te_gemm_run then uses kernels with mma.sync. On a CPU te_gemm_run uses a CBLAS library (compile with -DTE_CBLAS and
 * link one), or else a blocked loop. te_gemm_fp8_run runs cuBLASLt or a kernel of this library, chosen by a fixed rule
 * or, with ctx.gemm_tune on, by timing both. For a weight gradient in FP8 set g.out to f32 and g.beta to 1. cuBLASLt
 * runs such weight gradients, and all FP8 GEMMs without fast accumulation (g.fast is 0).
 */
#ifndef TE_GEMM_H
#define TE_GEMM_H

#include "gemm_types.h"          /* te_gemm */
#include "impl/gemm_dispatch.h"  /* te_gemm_run, te_gemm_fp8_run */
#include "impl/gemm_tune_file.h" /* te_gemm_load, te_gemm_save, te_gemm_report, te_gemm_print */

/* While ctx.gemm_tune is on, two kinds of calls time candidates. The first call of each GEMM (each combination of
 * sizes, transposes, dtypes, epilogue and beta) times the algorithms that cuBLASLt proposes for this GEMM. The first
 * call of each step of a model's plan (an op, or several fused ops) that begins with a GEMM times the step's strategies
 * (te_gemm_strategy), including the casts and transposes of its operands to FP8. Each timing takes some tenths of a
 * second: it allocates scratch memory, waits for the stream and frees the memory. A call that is being captured into a
 * CUDA graph times nothing: it uses the results that exist by then. So run one forward and backward, or one inference,
 * outside of a capture first. Load a file, or switch tuning on, before te_context_reserve, because a step whose
 * strategy may change needs more workspace.
 *
 * Each candidate sums in float and in a fixed order, so within one run of a program a tuned GEMM is bitwise
 * reproducible. But a second tuning may choose another candidate: for bitwise identical results from run to run, load
 * the same file.
 *
 * On the host the results do not depend on the number of threads, unless a CBLAS library computes the GEMMs
 * (-DTE_CBLAS). The order in which a CBLAS library adds up a sum may depend on the number of threads, so two runs have
 * the same bits only if both use the same number of threads.
 *
 * A program that is compiled with -DTE_NO_TUNE, or that includes te/infer.h, does not contain the timing code: such a
 * program can load a file, but setting ctx.gemm_tune is an error. On the host there is nothing to tune: a tuning file
 * consists only of its header, which is checked as on CUDA. */

#endif
