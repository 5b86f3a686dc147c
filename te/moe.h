/* moe.h -- the ops of a mixture of experts: router, expert_linear, expert_bias and combine; and head_linear, whose
 * products are computed by the same kernels.
 *
 * Do this:
 *     #include "te/te.h"        // or te/infer.h, for inference only
 *     #include "te/moe.h"
 *     TE_SEQUENTIAL(block, bf16, (fork, x), (rmsnorm, n, 2048), (router, r, 2048, 128, (top_k, 8)),
 *                   (expert_linear, up, 2048, 2 * 768, 128), (swiglu, act), (expert_linear, down, 768, 2048, 128),
 *                   (combine, r), (add, x))
 *
 * layers.h has ready-made lists of such blocks: TE_MIXTRAL_BLOCK, TE_QWEN3_MOE_BLOCK, TE_DEEPSEEK_BLOCK,
 * TE_GPT_OSS_BLOCK and TE_LLAMA4_BLOCK. The ops are in a header of their own because most programs have no experts, and
 * would compile more slowly with them.
 */
#ifndef TE_MOE_H
#define TE_MOE_H

#include "ops/expert_linear.h"  /* expert_linear, expert_bias */
#include "ops/combine.h"        /* combine */
#include "ops/head_linear.h"    /* head_linear */
#include "ops/router.h"         /* router */
#include "ops/router_balance.h" /* te_router_counts, te_router_balance */

#endif
