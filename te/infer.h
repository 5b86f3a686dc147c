/* infer.h -- the library for programs that run inference: op lists, generation, sampling, key-value caches, and models
 * in safetensors and GGUF files. The header leaves out optimizers, training checkpoints and groups of ranks, so a
 * program that includes only infer.h compiles faster than with te.h. A program that also trains includes te.h and then
 * infer.h.
 *
 * Do this:
 *     #include "te/infer.h"
 *     TE_INFERENCE(block, bf16, (fork, x1), (layernorm, ln1, 768), (linear, qkv, 768, 2304), ...)
 *
 * Without te.h, GEMMs are not autotuned, because the code of the autotuner would be a fourteenth of the program. To
 * autotune them nevertheless, define TE_TUNE before the include. Without TE_TUNE, a program can still load the choices
 * that another program has measured (te_gemm_load).
 *
 * All kinds of op lists can be used. For a list with a collective, also include te/comm/collective.h. For a list under
 * an FP8 recipe, also include te/optim/recipes.h; the recipe for inference is fp8_row.
 */
#ifndef TE_INFER_H
#define TE_INFER_H

#if !defined TE_TUNE && !defined TE_NO_TUNE && !defined TE_H
#define TE_NO_TUNE 1 /* read by te/core/context.h */
#endif

#include "core/base.h"              /* checks the compiler's options; must precede the first system header */

#include "cache/cache.h"            /* te_cache, (cache, ..) of attention */
#include "core/version.h"           /* TE_VERSION_MAJOR, TE_VERSION_STRING */
#include "fuse/inference.h"         /* TE_INFERENCE, TE_DECLARE_INFERENCE, TE_DEFINE_INFERENCE */
#include "fuse/quantized_weights.h" /* te_use_quantized: weights in few bits */
#include "gemm/gemm.h"         /* te_gemm_load */
#include "generation.h"             /* te_generation: continuous batching */
#include "graph/graph.h"            /* te_graph_capture, te_graph_replay */
#include "io/cache_file.h"          /* te_cache_save, te_cache_load */
#include "io/gguf_weights.h"        /* te_gguf_map, te_gguf_bind: models in GGUF files */
#include "io/quantized_file.h"      /* te_quantized_bind: GPTQ, AWQ and MXFP4 in safetensors files; casts */
#include "io/safetensors.h"         /* te_safetensors_map, te_safetensors_open_memory */
#include "io/weights.h"             /* te_weights_load, te_weights_use */
#include "layers.h"                 /* ready-made lists: TE_LLAMA_BLOCK, ... */
#include "ops/activation.h"         /* gelu, .., silu, sigmoid, tanh, the gated ones, xielu */
#include "ops/attention.h"          /* attention */
#include "ops/cross_attention.h"    /* cross_attention */
#include "ops/cross_entropy.h"      /* cross_entropy, also with a vocabulary that is split over ranks */
#include "ops/dropout.h"            /* dropout, which inference leaves out */
#include "ops/elementwise.h"        /* bias, scale, mul_param, softcap, dyt */
#include "ops/embedding.h"          /* embedding, positions */
#include "ops/head_norm.h"          /* head_norm, head_norm1p */
#include "ops/join.h"               /* slice, concat, gate, modulate */
#include "ops/last_token.h"         /* last_token */
#include "ops/linear.h"             /* linear, tied_linear, frozen_linear */
#include "ops/norm.h"               /* layernorm, rmsnorm, l2norm, layernorm1p, rmsnorm1p */
#include "ops/recompute.h"          /* recompute, end_recompute */
#include "ops/residual.h"           /* fork, add, mul, load, input, output */
#include "ops/rope.h"               /* rope */
#include "ops/sample.h"             /* sample */
#include "optim/init.h"             /* te_model_randomize */

#endif
