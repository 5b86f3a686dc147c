/* infer.h -- te.h for programs that only infer: without optimizers, checkpoints of training, and groups of ranks. Less
 * to read for the compiler; the program is the same.
 *
 * Do this:
 *     #include "te/infer.h"
 *     TE_INFERENCE(block, bf16, (fork, x1), (layernorm, ln1, 768), (linear, qkv, 768, 2304), ...)
 *
 * Products are not timed by such a program unless it defines TE_TUNE before this: the code for that is a fourteenth of
 * it. It loads what another one has found (te_gemm_load).
 *
 * Lists of all kinds work with it; a list that names a collective includes te/comm/collective.h beside it, one that
 * names a recipe (fp8_row is made for inference) te/optim/recipes.h.
 */
#ifndef TE_INFER_H
#define TE_INFER_H

#if !defined TE_TUNE && !defined TE_NO_TUNE
#define TE_NO_TUNE 1 /* te/core/context.h */
#endif

#include "core/version.h"      /* TE_VERSION_MAJOR, TE_VERSION_STRING */
#include "fuse/inference.h"    /* TE_INFERENCE, TE_DECLARE_INFERENCE, TE_DEFINE_INFERENCE */
#include "gemm/gemm_tune.h"    /* te_gemm_load */
#include "graph/graph.h"       /* te_graph_capture, te_graph_replay */
#include "io/safetensors.h"    /* te_safetensors_map, te_safetensors_open_memory */
#include "io/weights.h"        /* te_weights_load, te_weights_use */
#include "layers.h"            /* ready-made lists: TE_LLAMA_BLOCK, ... */
#include "ops/activation.h"    /* gelu, gelu_erf, qgelu, relu, srelu, silu, and the gated ones */
#include "ops/attention.h"     /* attention */
#include "ops/bias.h"          /* bias */
#include "ops/cross_attention.h" /* cross_attention */
#include "ops/cross_entropy.h" /* cross_entropy */
#include "ops/dropout.h"       /* dropout, which inference leaves out */
#include "ops/dyt.h"           /* dyt */
#include "ops/embedding.h"     /* embedding */
#include "ops/head_norm.h"     /* head_norm, head_norm1p */
#include "ops/last_token.h"    /* last_token */
#include "ops/linear.h"        /* linear, tied_linear, frozen_linear */
#include "ops/load.h"          /* load */
#include "ops/mul_param.h"     /* mul_param */
#include "ops/norm.h"          /* layernorm, rmsnorm, l2norm, layernorm1p, rmsnorm1p */
#include "ops/positions.h"     /* positions */
#include "ops/recompute.h"     /* recompute, end_recompute */
#include "ops/residual.h"      /* fork, add, mul, input, output */
#include "ops/rope.h"          /* rope */
#include "ops/scale.h"         /* scale */
#include "ops/softcap.h"       /* softcap */
#include "optim/init.h"        /* te_model_randomize */

#endif
