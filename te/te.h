/* te.h -- the library: Transformer kernels, header-only, in C11 and CUDA. This include is all that training needs.
 * What only inference needs is in infer.h: key-value caches, generation, sampling, GGUF files, weights in few bits. A
 * program that does both includes te.h and then infer.h. The ops of a mixture of experts are in moe.h.
 *
 * Do this:
 *     #include "te/te.h"
 *     TE_SEQUENTIAL(block, bf16, (fork, x1), (layernorm, ln1, 768), (linear, qkv, 768, 2304), ...)
 *
 * A layer is a list of small ops; the fusion list te/fuse/fusions.h says which sequences of ops become one kernel. A
 * list that is compiled by nvcc runs on CUDA (link cublasLt, or define TE_NO_CUBLASLT). A list that is compiled by a
 * C11 compiler runs on the host; with -DTE_CBLAS and a CBLAS library, GEMMs are fast there, and with -fopenmp, kernels
 * run on several threads.
 */
#ifndef TE_H
#define TE_H

#include "core/base.h"              /* checks the compiler's options; must precede the first system header */

#include "comm/buckets.h"           /* te_buckets: gradients reduced while backward runs */
#include "comm/collective.h"        /* all_gather, reduce_scatter, all_reduce, copy_to_group */
#include "comm/comm.h"              /* te_comm_create */
#include "comm/pipeline.h"          /* te_send, te_receive, te_pipeline_schedule: stages of a pipeline */
#include "comm/reduce_gradients.h"            /* te_reduce_gradients */
#include "core/version.h"           /* TE_VERSION_MAJOR, TE_VERSION_STRING */
#include "fuse/inference.h"         /* TE_INFERENCE */
#include "linear/impl/linear_cross_entropy.h" /* linear_cross_entropy with a vocabulary split over ranks */
#include "fuse/sequential.h"        /* TE_SEQUENTIAL, TE_DECLARE, TE_DEFINE */
#include "gemm/gemm.h"          /* te_gemm_fp8_run */
#include "graph/graph.h"            /* te_graph_capture, te_graph_replay */
#include "io/checkpoint.h"          /* te_checkpoint_save, te_checkpoint_load */
#include "io/fp8_weights.h"         /* te_fp8_weights_load: FP8 weights without a 16-bit copy */
#include "io/json.h"          /* te_json_open, te_json_find */
#include "io/packed.h"              /* te_packed_add: q, k and v of a file as one weight */
#include "io/weights.h"             /* te_weights_load, te_weights_use */
#include "layers.h"                 /* ready-made lists: TE_LLAMA_BLOCK, ... */
#include "ops/activation.h"         /* gelu, .., silu, sigmoid, tanh, the gated ones, xielu */
#include "ops/attention.h"          /* attention */
#include "ops/cross_attention.h"    /* cross_attention */
#include "ops/cross_entropy.h"      /* cross_entropy, also with a vocabulary that is split over ranks */
#include "ops/dropout.h"            /* dropout */
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
#include "optim/adamw.h"            /* te_adamw */
#include "optim/fsdp.h"             /* te_fsdp: weights and gradients sharded over the data group */
#include "optim/loss_scale.h"       /* te_loss_scaler: dynamic loss scaling for f16 */
#include "optim/init.h"             /* te_model_randomize, te_param_normal */
#include "optim/recipes.h"          /* te_recipes: FP8 */
#include "optim/recipes_adamw.h"    /* te_recipes_adamw: recipes and AdamW in one step */

#endif
