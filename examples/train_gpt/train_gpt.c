/* train_gpt.c -- trains a byte-level GPT on any files or folders, on a CPU or, built by nvcc, on a GPU.
 *
 *     cc   -O3 -march=native -fopenmp -DTE_CBLAS -I. examples/train_gpt/train_gpt.c -o train_gpt -lopenblas -lm
 *     nvcc -O3 -gencode arch=compute_90a,code=sm_90a -I. -x cu examples/train_gpt/train_gpt.c -o train_gpt -lcublasLt
 *     ./train_gpt                          two minutes on the C headers of this machine, then a sample
 *     ./train_gpt --size gpt2 --batch 8 --seq 1024 --steps 1000 ~/texts
 *     ./train_gpt --resume                 continues from where Ctrl-C stopped it, with its options and texts, to the
 *                                          same bits as without a stop (with -DTE_CBLAS: on as many threads)
 *     ./train_gpt --init gpt_out/checkpoint.safetensors --out mine ~/my_texts
 *                                          another run, which starts from the weights of that one
 *     ./train_gpt --recipe fp8_delayed     the GEMMs of the blocks in FP8 (--recipe fp8_block, mxfp8 or nvfp4: built
 *                                          with -DGPT_RECIPE=fp8_block, ..)
 *     ./train_gpt --optimizer muon         orthogonal updates for the blocks' matrices, AdamW for the rest
 *     ./train_gpt --experts 8              a mixture of experts in place of each MLP, of which a token has two
 *     mpirun -n 4 ./train_gpt --dp 4       four replicas, one process each; built with -DTE_COMM and by mpicc, or by
 *                                          nvcc with -lnccl. Open MPI wants --oversubscribe if there are fewer than
 *                                          four cores, and --allow-run-as-root from root
 *     mpirun -n 4 ./train_gpt --tp 2 --sp --dp 2
 *                                          two replicas of two processes each, which shard heads, MLP and vocabulary
 *                                          and, by --sp, tokens; built with -DGPT_RANKS=2, too. With --experts 8
 *                                          each of the two has four of the experts
 *     mpirun -n 4 ./train_gpt --cp 4       four processes that split each sequence; built with -DGPT_CONTEXT=ring, too
 *     mpirun -n 4 ./train_gpt --pp 2 --chunks 2 --dp 2 --accumulate 8
 *                                          pipelines of two stages, each with two of the four parts of the model
 *
 * SIGINT, SIGTERM, SIGHUP and a closed pipe behind stdout stop it after a step; it then writes a checkpoint. A second
 * SIGINT or SIGTERM ends it at once. An optimizer step whose gradients are not finite is skipped, and weights that are
 * not finite never replace a checkpoint.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "te/te.h"
#ifdef GPT_CONTEXT /* -DGPT_CONTEXT=ring, gather or all_to_all: what the processes of --cp exchange */
#include "te/context_parallel.h"
#define CONTEXT , (context, GPT_CONTEXT)
#else
#define CONTEXT
#endif

#ifndef GPT_EXPERTS /* how many experts the lists for --experts have; -DGPT_EXPERTS=0: the program has no such lists */
#define GPT_EXPERTS 8
#endif
#ifndef GPT_TOP_K /* how many of them a token has */
#define GPT_TOP_K 2
#endif
#if GPT_EXPERTS
#include "te/moe.h"
#endif

/* ---------------------------------------------------------------------------------------------------------------- */
/* the model: embedding, block and head, each a list of ops, for every size that --size can choose; the same again,   */
/* sharded, for tensor parallelism and for sequence parallelism                                                       */

#ifndef GPT_DTYPE
#if TE_CUDA
#define GPT_DTYPE bf16
#else
#define GPT_DTYPE f32
#endif
#endif
#ifdef GPT_RECIPE /* -DGPT_RECIPE=fp8_block, mxfp8, .. */
#include "te/microscaling.h" /* mxfp8, nvfp4 */
#define GPT_RECIPES TE_STRING(GPT_RECIPE)
#else
#define GPT_RECIPE fp8_delayed
#define GPT_RECIPES "fp8_current, fp8_delayed"
#endif
#ifndef GPT_GRADIENTS /* format of the gradients of GEMMs in FP8; -DGPT_GRADIENTS=e4m3 */
#define GPT_GRADIENTS e5m2
#endif
#ifndef GPT_WEIGHTS /* format of the weights of GEMMs in FP8; -DGPT_WEIGHTS=f32: no copy of them in GPT_DTYPE */
#define GPT_WEIGHTS GPT_DTYPE
#endif
#define GPT_FP8 (recipe, GPT_RECIPE), (gradients, GPT_GRADIENTS), (weights, GPT_WEIGHTS)
#ifdef GPT_KV_HEADS /* -DGPT_KV_HEADS=2: grouped-query attention, with so many heads of k and v in every size */
#define GPT_KV(HEADS) GPT_KV_HEADS
#else
#define GPT_KV(HEADS) (HEADS)
#endif
#ifdef GPT_DROPOUT /* -DGPT_DROPOUT=0.1f */
#define DROPOUT(name) (dropout, name, GPT_DROPOUT),
#else
#define DROPOUT(name)
#endif

/* The width of q, k and v, on each of N ranks. */
#define GPT_QKV(H, HEADS, N) (((HEADS) + 2 * GPT_KV(HEADS)) * ((H) / (HEADS)) / (N))
#define GPT_EMBED(V, T, H) (embedding, wte, V, H), (positions, wpe, T, H)
/* [block] */
#define GPT_BLOCK(H, HEADS)                                                                                 \
    (fork, x1), (layernorm, ln1, H), (linear, qkv, H, GPT_QKV(H, HEADS, 1)), (bias, qkv_b, GPT_QKV(H, HEADS, 1)), \
    (attention, attn, HEADS, GPT_KV(HEADS), (H) / (HEADS) CONTEXT),                                         \
    (linear, proj, H, H), (bias, proj_b, H), DROPOUT(drop1) (add, x1),                                      \
    (fork, x2), (layernorm, ln2, H), (linear, fc1, H, 4 * (H)), (bias, fc1_b, 4 * (H)), (gelu, act),        \
    (linear, fc2, 4 * (H), H), (bias, fc2_b, H), DROPOUT(drop2) (add, x2)
/* [block] */
#ifndef GPT_AUX_LOSS /* the weight of the loss that balances the experts (Switch Transformer) */
#define GPT_AUX_LOSS 0.01f
#endif
#ifndef GPT_EXPERTS_RECIPE /* fp8_block with -DGPT_RECIPE=fp8_block: experts in FP8, too, but not with -DGPT_RANKS */
#define GPT_EXPERTS_RECIPE none
#endif
/* [experts] */
#define GPT_ROUTED_MLP(H, E)                                                                                \
    (router, route, H, E, (top_k, GPT_TOP_K), (renormalise, 1), (aux_loss, GPT_AUX_LOSS)),                  \
    GPT_EXPERT_MLP(H, E), (combine, route)
#define GPT_EXPERT_MLP(H, E)                                                                                \
    (expert_linear, fc1, H, 4 * (H), E, (recipe, GPT_EXPERTS_RECIPE)), (expert_bias, fc1_b, 4 * (H), E),    \
    (gelu, act), (expert_linear, fc2, 4 * (H), H, E, (recipe, GPT_EXPERTS_RECIPE)),                         \
    (expert_bias, fc2_b, H, E)
#define GPT_BLOCK_EXPERTS(H, HEADS)                                                                         \
    (fork, x1), (layernorm, ln1, H), (linear, qkv, H, GPT_QKV(H, HEADS, 1)), (bias, qkv_b, GPT_QKV(H, HEADS, 1)), \
    (attention, attn, HEADS, GPT_KV(HEADS), (H) / (HEADS) CONTEXT),                                         \
    (linear, proj, H, H), (bias, proj_b, H), DROPOUT(drop1) (add, x1),                                      \
    (fork, x2), (layernorm, ln2, H), GPT_ROUTED_MLP(H, GPT_EXPERTS), DROPOUT(drop2) (add, x2)
/* [experts] */
#define GPT_LOGITS(V, H) (layernorm, lnf, H), (tied_linear, lm, H, V)
#define GPT_HEAD(V, H) GPT_LOGITS(V, H), (cross_entropy, loss, V)

/* X(size, layers, hidden, heads, longest sequence, vocabulary). A token is a byte, so a vocabulary above 256 only makes
 * the shape that of GPT-2. -D'GPT_SIZES(X)=X(mine, ..)' defines other sizes. */
#ifndef GPT_SIZES
#define GPT_SIZES(X)                        \
    X(tiny, 4, 128, 2, 256, 256)            \
    X(small, 6, 384, 6, 512, 256)           \
    X(gpt2, 12, 768, 12, 1024, 50304)
#endif

/* The number of ranks that share a replica is a constant of a list, so a program has lists for one rank and, by
 * -DGPT_RANKS=N, for N ranks. Parameters have the same names in all of them, so any grid of ranks can continue from
 * the checkpoint of any other. A dropout mask depends on the op's place in its list, so with GPT_DROPOUT one rank has
 * other masks than several. */
#ifndef GPT_RANKS
#define GPT_RANKS 1
#endif
#if GPT_RANKS > 1 && !defined(TE_COMM)
#error "train_gpt: -DGPT_RANKS is for several processes, which want -DTE_COMM"
#undef GPT_RANKS
#define GPT_RANKS 1 /* so that the compiler reports only this error */
#endif
#if GPT_RANKS > 1
/* [ranks] */
#define GPT_EMBED_RANKS(V, T, H, LEAVE, N) (embedding, wte, V, H, (ranks, N)), (LEAVE, wte_sum), (positions, wpe, T, H)
#define GPT_BLOCK_RANKS(H, HEADS, ENTER, LEAVE, N) \
    (fork, x1), (layernorm, ln1, H), (ENTER, enter1), GPT_BLOCK_BEHIND_NORM(H, HEADS, ENTER, LEAVE, N)
#define GPT_BLOCK_BEHIND_NORM(H, HEADS, ENTER, LEAVE, N)                                                    \
    (linear, qkv, H, GPT_QKV(H, HEADS, N), (shard, columns), (parts, 3), (first_part, (HEADS) / GPT_KV(HEADS))), \
    (bias, qkv_b, GPT_QKV(H, HEADS, N)),                                                                    \
    (attention, attn, (HEADS) / (N), GPT_KV(HEADS) / (N), (H) / (HEADS) CONTEXT),                           \
    (linear, proj, (H) / (N), H, (shard, rows)), (LEAVE, leave1), (bias, proj_b, H),                        \
    DROPOUT(drop1) (add, x1),                                                                               \
    (fork, x2), (layernorm, ln2, H), (ENTER, enter2), (linear, fc1, H, 4 * (H) / (N), (shard, columns)),    \
    (bias, fc1_b, 4 * (H) / (N)), (gelu, act), (linear, fc2, 4 * (H) / (N), H, (shard, rows)),              \
    (LEAVE, leave2), (bias, fc2_b, H), DROPOUT(drop2) (add, x2)
#define GPT_LOGITS_RANKS(V, H, ENTER, N) \
    (layernorm, lnf, H), (ENTER, enter_head), (tied_linear, lm, H, (V) / (N), (shard, columns))
/* [ranks] */
/* [experts_ranks] */
#define GPT_BLOCK_EXPERTS_RANKS(H, HEADS, ENTER, LEAVE, N)                                                   \
    (fork, x1), (layernorm, ln1, H), (ENTER, enter1),                                                       \
    (linear, qkv, H, GPT_QKV(H, HEADS, N), (shard, columns), (parts, 3), (first_part, (HEADS) / GPT_KV(HEADS))), \
    (bias, qkv_b, GPT_QKV(H, HEADS, N)),                                                                    \
    (attention, attn, (HEADS) / (N), GPT_KV(HEADS) / (N), (H) / (HEADS) CONTEXT),                           \
    (linear, proj, (H) / (N), H, (shard, rows)), (LEAVE, leave1), (bias, proj_b, H),                        \
    DROPOUT(drop1) (add, x1), (fork, x2), (layernorm, ln2, H), (ENTER, enter2),                             \
    (router, route, H, GPT_EXPERTS, (top_k, GPT_TOP_K), (renormalise, 1), (aux_loss, GPT_AUX_LOSS), (ranks, N)), \
    GPT_EXPERT_MLP(H, GPT_EXPERTS / (N)), (combine, route), (LEAVE, leave2), DROPOUT(drop2) (add, x2)
/* [experts_ranks] */
/* The same model, cut into lists behind each block's first norm instead of before it: a list begins with the output of
 * that norm and ends in the next one. So both all_reduces of a block are one step with the add and the norm behind
 * them. The residual is an extra output of each list and an extra input of the next one. These lists have the
 * parameters of those above in the same order, so models of both are bound to the same memory: the models above to
 * initialise, save and update it, these to run. */
/* [norm_last] */
#define GPT_EMBED_NORM_LAST(V, T, H, N) GPT_EMBED_RANKS(V, T, H, all_reduce, N), (output, x), (layernorm, next, H)
#define GPT_BLOCK_NORM_LAST(H, HEADS, N)                                                                    \
    (copy_to_group, enter1), (input, x1, H), GPT_BLOCK_BEHIND_NORM(H, HEADS, copy_to_group, all_reduce, N), \
    (output, x), (layernorm, next, H)
#define GPT_LOGITS_NORM_LAST(V, H, N) (copy_to_group, enter_head), (tied_linear, lm, H, (V) / (N), (shard, columns))
/* [norm_last] */
/* If GPT_RANKS does not divide the heads, those of k and v, or the vocabulary of a size, its lists below are for one
 * rank, and --tp refuses the size. The same holds for the lists with experts and the number of experts. */
#define GPT_RANKS_OF(HEADS, V) ((HEADS) % GPT_RANKS || GPT_KV(HEADS) % GPT_RANKS || (V) % GPT_RANKS ? 1 : GPT_RANKS)
#define GPT_EXPERT_RANKS_OF(HEADS, V) (GPT_EXPERTS % GPT_RANKS ? 1 : GPT_RANKS_OF(HEADS, V))
#define GPT_DEFINE_KIND(size, OPTION, ENTER, LEAVE, H, HEADS, T, V, N)                                                \
    TE_SEQUENTIAL(embed_##size, (GPT_DTYPE, OPTION), GPT_EMBED_RANKS(V, T, H, LEAVE, N))                              \
    TE_SEQUENTIAL(block_##size, (GPT_DTYPE, OPTION, GPT_FP8), GPT_BLOCK_RANKS(H, HEADS, ENTER, LEAVE, N)) \
    TE_SEQUENTIAL(head_##size, (GPT_DTYPE, OPTION),                                                                   \
                  GPT_LOGITS_RANKS(V, H, ENTER, N), (cross_entropy, loss, V, (ranks, N)))                             \
    TE_SEQUENTIAL(logits_##size, (GPT_DTYPE, OPTION), GPT_LOGITS_RANKS(V, H, ENTER, N))
#define GPT_DEFINE_NORM_LAST(size, H, HEADS, T, V, N)                                                                 \
    TE_SEQUENTIAL(embed_##size, GPT_DTYPE, GPT_EMBED_NORM_LAST(V, T, H, N))                                           \
    TE_SEQUENTIAL(block_##size, GPT_DTYPE, GPT_BLOCK_NORM_LAST(H, HEADS, N))                                          \
    TE_SEQUENTIAL(head_##size, GPT_DTYPE, GPT_LOGITS_NORM_LAST(V, H, N), (cross_entropy, loss, V, (ranks, N)))        \
    TE_SEQUENTIAL(logits_##size, GPT_DTYPE, GPT_LOGITS_NORM_LAST(V, H, N))
#define GPT_DEFINE_RANKS(size, L, H, HEADS, T, V)                                                                     \
    GPT_DEFINE_KIND(size##_tp, (rows, tokens), copy_to_group, all_reduce, H, HEADS, T, V, GPT_RANKS_OF(HEADS, V))     \
    GPT_DEFINE_KIND(size##_sp, (rows, shard), all_gather, reduce_scatter, H, HEADS, T, V, GPT_RANKS_OF(HEADS, V))     \
    GPT_DEFINE_NORM_LAST(size##_norm_last, H, HEADS, T, V, GPT_RANKS_OF(HEADS, V))
#else
#define GPT_RANKS_OF(HEADS, V) 1
#endif

#define GPT_DEFINE(size, L, H, HEADS, T, V)                               \
    TE_SEQUENTIAL(embed_##size, GPT_DTYPE, GPT_EMBED(V, T, H))            \
    TE_SEQUENTIAL(block_##size, (GPT_DTYPE, GPT_FP8), GPT_BLOCK(H, HEADS)) \
    TE_SEQUENTIAL(head_##size, GPT_DTYPE, GPT_HEAD(V, H))                 \
    TE_SEQUENTIAL(logits_##size, GPT_DTYPE, GPT_LOGITS(V, H))
GPT_SIZES(GPT_DEFINE)

/* With experts only the block is another one. */
#define GPT_DEFINE_EXPERTS(size, L, H, HEADS, T, V) \
    TE_SEQUENTIAL(block_##size##_experts, (GPT_DTYPE, GPT_FP8), GPT_BLOCK_EXPERTS(H, HEADS))
#if GPT_EXPERTS
GPT_SIZES(GPT_DEFINE_EXPERTS)
#endif

typedef struct gpt_lists {
    const te_plan *(*embed)(void), *(*block)(void), *(*head)(void), *(*logits)(void);
} gpt_lists;
/* The kinds of lists of a size: for one rank; tensor parallel; tensor and sequence parallel (--sp); the first three with
 * experts; tensor parallel with lists that end in norms. */
typedef enum gpt_kind {
    GPT_ONE, GPT_TP, GPT_SP, GPT_ONE_EXPERTS, GPT_TP_EXPERTS, GPT_SP_EXPERTS, GPT_TP_NORM_LAST, GPT_KIND_COUNT
} gpt_kind;
#define GPT_LISTS_OF(size, block) {embed_##size##_plan, block##_plan, head_##size##_plan, logits_##size##_plan}
#define GPT_LISTS(size) GPT_LISTS_OF(size, block_##size)
#define GPT_NO_LISTS {0, 0, 0, 0}
#if GPT_EXPERTS
#define GPT_EXPERT_LISTS(size) GPT_LISTS_OF(size, block_##size##_experts)
#define GPT_DEFINE_EXPERTS_KIND(size, OPTION, ENTER, LEAVE, H, HEADS, N) \
    TE_SEQUENTIAL(block_##size##_experts, (GPT_DTYPE, OPTION, GPT_FP8), GPT_BLOCK_EXPERTS_RANKS(H, HEADS, ENTER, LEAVE, N))
#define GPT_DEFINE_EXPERTS_RANKS(size, L, H, HEADS, T, V)                                                               \
    GPT_DEFINE_EXPERTS_KIND(size##_tp, (rows, tokens), copy_to_group, all_reduce, H, HEADS,                             \
                            GPT_EXPERT_RANKS_OF(HEADS, V))                                                              \
    GPT_DEFINE_EXPERTS_KIND(size##_sp, (rows, shard), all_gather, reduce_scatter, H, HEADS,                             \
                            GPT_EXPERT_RANKS_OF(HEADS, V))
#else
#define GPT_EXPERT_LISTS(size) GPT_NO_LISTS
#endif
#if GPT_RANKS > 1
GPT_SIZES(GPT_DEFINE_RANKS)
#if GPT_EXPERTS
GPT_SIZES(GPT_DEFINE_EXPERTS_RANKS)
#endif
#define GPT_KINDS(size)                                                                                            \
    {GPT_LISTS(size), GPT_LISTS(size##_tp), GPT_LISTS(size##_sp), GPT_EXPERT_LISTS(size), GPT_EXPERT_LISTS(size##_tp), \
     GPT_EXPERT_LISTS(size##_sp), GPT_LISTS(size##_norm_last)}
#else
#define GPT_KINDS(size) \
    {GPT_LISTS(size), GPT_NO_LISTS, GPT_NO_LISTS, GPT_EXPERT_LISTS(size), GPT_NO_LISTS, GPT_NO_LISTS, GPT_NO_LISTS}
#endif

typedef struct gpt_size {
    const char *name;
    int layers, hidden, heads, longest, vocabulary, ranks; /* ranks: number of ranks in the tensor-parallel lists */
    gpt_lists lists[GPT_KIND_COUNT];
} gpt_size;
#define GPT_ROW(size, L, H, HEADS, T, V) {#size, L, H, HEADS, T, V, GPT_RANKS_OF(HEADS, V), GPT_KINDS(size)},
static const gpt_size gpt_sizes[] = {GPT_SIZES(GPT_ROW)};

/* ---------------------------------------------------------------------------------------------------------------- */
/* small helpers                                                                                                      */

typedef struct options {
    const char *size, *out, *prompt, *tune, *init, *recipe, *optimizer, *moments, *sums, *address;
    const char **path; /* [paths]: files and folders of the text */
    int paths;
    long steps, batch, seq, accumulate, tp, cp, dp, pp, chunks, log, validate, sample, save;
    long experts, top_k; /* 0, 0: an MLP */
    long plain;          /* how many of the first blocks, and of the last, have no recipe */
    double lr, temperature;
    long zero; /* ZeRO stage: 0 none */
    long seed, sp, resume, force, plan;
} options;

static te_context ctx;
/* This process is number `rank` of `processes`; rank 0 writes and prints. `contexts` (--cp) times `tensor` (--tp)
 * consecutive ranks share each of the `replicas` (--dp): ranks of one replica train on the same batches, different
 * replicas on different ones. With --cp a rank has the part of each sequence that `shard` says. With --pp there are as many ranks
 * for each of the `stages`, the first ones for stage 0. */
static int rank, processes = 1, replica, replicas = 1, tensor = 1, contexts = 1, stage, stages = 1;
static te_cp_shard shard = {0, 1};

static void check(te_status status, const char *what) {
    if (status == TE_OK) return;
    fprintf(stderr, "train_gpt: %s: %s (%s)\n", what, te_last_error(&ctx), te_status_string(status));
    if (status == TE_ERROR_COMM) _exit(1); /* exit() would free memory, and so wait for the rank that has failed */
    exit(1);
}
static void die(const char *what, const char *name) {
    fprintf(stderr, "train_gpt: %s%s%s\n", what, name ? ": " : "", name ? name : "");
    exit(1);
}
static void *target_memory(size_t bytes) {
    void *p = NULL;
    check(te_allocate(&ctx, &p, bytes), "memory");
    return p;
}
/* The same, for the values that forward saves. With --sp these include gathered tensors, which all ranks of the group
 * must be able to write. */
static void *saved_memory(size_t bytes) {
    void *p = NULL;
#ifdef TE_COMM
    if (processes > 1) {
        check(te_comm_allocate(ctx.comm, &p, bytes, &ctx), "memory");
        return p;
    }
#endif
    check(te_allocate(&ctx, &p, bytes), "memory");
    return p;
}
static void *host_memory(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (!p) die("out of memory", NULL);
    return p;
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static volatile sig_atomic_t interrupted;
static void on_interrupt(int number) {
    if (interrupted && number != SIGHUP) signal(number, SIG_DFL), raise(number); /* a step may take hours */
    interrupted = 1;
}
/* Send what was printed. If nobody reads it any more (| head, a closed ssh), the run ends as after a signal. */
static void flush_output(void) {
    if (fflush(stdout)) interrupted = 1;
}
/* Files that are opened must not get the numbers of stdin, stdout and stderr if these are closed. */
static void open_standard_files(void) {
    int fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
    if (fd >= 0) close(fd);
}
/* Two runs in one folder would overwrite each other's files. The lock ends with the process. */
static void lock_folder(const char *folder) {
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        die("another run writes to this folder; --out takes another one", folder);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* ranks                                                                                                              */

#ifdef TE_COMM
static te_comm comm;
/* Largest tensor, in bytes, that ranks sum through each other's memory; each group allocates four times as much. */
enum { MAX_PEER = 64 << 20 };
#endif
/* Create the context and the groups of ranks; with CUDA each rank has its own device. Rank 0 listens at --address or
 * writes a file to --out, by which the other ranks find it. bytes: the largest tensor that ranks sum or, with --sp, that GEMMs gather and scatter
 * while they run. */
static void ranks_of(const options *o, int64_t bytes) {
    const long tp = o->tp, cp = o->cp, dp = o->dp, all = tp * cp * dp * o->pp;
    int size = 1;
    te_comm_rank_from_env(&rank, &size);
    if (all == 1 && rank) { /* else each process would be a separate run, all in one folder */
        fprintf(stderr, "train_gpt: %d processes, each a run of its own; --dp %d, or --tp N, makes them one\n", size,
                size);
        exit(1);
    }
    if (all > 1 && size != all) {
        char split[64] = "";
        if (cp > 1) snprintf(split, sizeof split, " --cp %ld", cp);
        if (o->pp > 1) snprintf(split + strlen(split), sizeof split - strlen(split), " --pp %ld", o->pp);
        fprintf(stderr, "train_gpt: --tp %ld%s --dp %ld wants %ld processes, and here are %d; mpirun -n %ld starts them\n",
                tp, split, dp, all, size, all);
        exit(1);
    }
    tensor = (int)tp, contexts = (int)cp, replicas = (int)dp, stages = (int)o->pp, processes = (int)all;
    if (processes == 1) rank = 0;
    stage = rank / (processes / stages);
    replica = rank / tensor / contexts % replicas, shard.rank = rank / tensor % contexts, shard.ranks = contexts;
    const int device = TE_CUDA && processes > 1 ? te_comm_local_rank_from_env() : 0;
    check(te_context_create(&ctx, device, (uint64_t)o->seed), "context");
    if (processes == 1) return;
    if (rank && !freopen("/dev/null", "w", stdout)) die(strerror(errno), "/dev/null");
#ifdef TE_COMM
    char file[4096 + 32 + TE_COMM_RUN_NAME], run[TE_COMM_RUN_NAME];
    te_comm_config config = te_comm_defaults();
    te_comm_run_name(run); /* different for each run, so that no run finds the file of another one */
    if (!*run) snprintf(run, sizeof run, "%ld", (long)getppid()); /* all ranks on one host have the same parent */
    snprintf(file, sizeof file, "%s/ranks.%s", o->out, run);
    config.file = file, config.address = o->address, config.tensor = tensor, config.context = contexts, config.pipeline = stages;
    if (o->sp) config.overlap_bytes = bytes;
    else if (tensor > 1) config.peer_bytes = te_max(config.peer_bytes, te_min(bytes, MAX_PEER));
    check(te_comm_create(&comm, &config, &ctx), "ranks");
#else
    (void)bytes;
    die("--tp, --cp, --dp and --pp: built without -DTE_COMM", NULL);
#endif
}
/* The sum of a number over the ranks of a group. Waits for the device. */
static double sum_over(const te_group *g, double x) {
    static float *there;
    float sum = (float)x;
    if (g->size == 1) return x;
    if (!there) there = (float *)target_memory(sizeof sum);
    check(te_copy(&ctx, there, &sum, sizeof sum), "ranks");
    check(te_synchronize(&ctx), "ranks");
    check(te_group_all_reduce(g, there, there, 1, TE_f32, &ctx), "ranks");
    check(te_comm_synchronize(&ctx), "ranks"); /* ends after config.timeout if a rank has failed; te_copy would not */
    check(te_copy(&ctx, &sum, there, sizeof sum), "ranks");
    check(te_synchronize(&ctx), "ranks");
    return (double)sum;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* the text: all files, and all files of all folders, on the command line, concatenated                               */

enum { MAX_TEXT = 256 << 20, MAX_FILE = 4 << 20, MAX_NOTES = 5 };
typedef struct place { dev_t device; ino_t number; } place;
typedef struct text {
    unsigned char *bytes;
    size_t size, capacity;
    int files, left_out;
    place *folder; /* the folders that were read */
    int folders;
} text;

/* Report a file that is not read; the first few by name. */
static void leave_out(text *t, const char *path, const char *why) {
    if (t->left_out++ < MAX_NOTES) fprintf(stderr, "train_gpt: left out %s: %s\n", path, why);
}
static void read_file(text *t, const char *path, size_t size) {
    FILE *f = fopen(path, "rb");
    if (!f) {
        leave_out(t, path, strerror(errno));
        return;
    }
    if (t->size + size > t->capacity) {
        t->capacity = 2 * (t->size + size);
        t->bytes = (unsigned char *)realloc(t->bytes, t->capacity);
        if (!t->bytes) die("out of memory", NULL);
    }
    const size_t got = fread(t->bytes + t->size, 1, size, f);
    const int failed = ferror(f);
    fclose(f);
    if (failed) leave_out(t, path, "cannot read it");
    else if (got && memchr(t->bytes + t->size, 0, got)) leave_out(t, path, "has a NUL byte, so it is no text");
    else t->size += got, t->files += got > 0;
}
static int keep_entry(const struct dirent *e) { return e->d_name[0] != '.'; }
/* Whether this folder was not read before. Reading it twice, through a symbolic link, would put the same text into
 * training and validation. */
static int new_folder(text *t, const struct stat *s) {
    for (int i = 0; i < t->folders; i++)
        if (t->folder[i].device == s->st_dev && t->folder[i].number == s->st_ino) return 0;
    t->folder = (place *)realloc(t->folder, (size_t)(t->folders + 1) * sizeof(place));
    if (!t->folder) die("out of memory", NULL);
    t->folder[t->folders].device = s->st_dev, t->folder[t->folders++].number = s->st_ino;
    return 1;
}
static void read_path(text *t, const char *path, const char *ending, int given);
static void read_folder(text *t, const char *path, const char *ending) {
    struct dirent **entry;
    const int n = scandir(path, &entry, keep_entry, alphasort); /* sorted, so that every run has the same text */
    if (n < 0) {
        leave_out(t, path, strerror(errno));
        return;
    }
    for (int i = 0; i < n; i++) {
        char below[4096];
        const int length = snprintf(below, sizeof below, "%s/%s", path, entry[i]->d_name);
        if (length > 0 && length < (int)sizeof below) read_path(t, below, ending, 0);
        else leave_out(t, path, "a path below it is too long");
        free(entry[i]);
    }
    free(entry);
}
/* `given`: the path is from the command line, where a mistake ends the program. */
static void read_path(text *t, const char *path, const char *ending, int given) {
    struct stat s;
    if (stat(path, &s)) {
        if (given) die(strerror(errno), path);
        leave_out(t, path, strerror(errno));
    } else if (S_ISREG(s.st_mode)) {
        const size_t n = strlen(path), k = ending ? strlen(ending) : 0, remaining = MAX_TEXT - t->size;
        if (ending && (n < k || memcmp(path + n - k, ending, k))) return;
        if (!given && s.st_size > MAX_FILE) leave_out(t, path, "larger than 4 MB; name it on the command line");
        else if ((uint64_t)s.st_size <= remaining) read_file(t, path, (size_t)s.st_size);
        else if (!given || !remaining) leave_out(t, path, "there are 256 MB of text already");
        else {
            fprintf(stderr, "train_gpt: of %s only the first %zu bytes are read: at most 256 MB of text are used\n", path,
                    remaining);
            read_file(t, path, remaining);
        }
    } else if (S_ISDIR(s.st_mode)) {
        if (new_folder(t, &s)) read_folder(t, path, ending);
        else leave_out(t, path, "the same folder was read before, by another path");
    } else {
        if (given) die("neither a file nor a folder", path);
        leave_out(t, path, "neither a file nor a folder");
    }
}
static text read_texts(const char *const *path, int paths) {
    text t;
    memset(&t, 0, sizeof t);
    if (!paths) read_path(&t, "/usr/include", ".h", 1);
    for (int i = 0; i < paths; i++) read_path(&t, path[i], NULL, 1);
    if (t.left_out > MAX_NOTES) fprintf(stderr, "train_gpt: left out %d more\n", t.left_out - MAX_NOTES);
    if (!t.size) die("no text found", paths ? path[0] : "/usr/include");
    free(t.folder);
    return t;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* the network: embed, layers of block, head, on one buffer of weights and one of gradients                           */

/* The models first to last, which are one part of the model: chunk c of stage s is part c * stages + s. `kept`: how many
 * micro-batches are between their forward and their backward at the same time; micro-batch m has the buffers m % kept. */
typedef struct gpt_chunk {
    int first, last;
    te_pipeline_buffers kept;
    char *dy; /* [kept.gradients, rows / parts, hidden]: gradients of the output, which arrive from another stage */
} gpt_chunk;
typedef struct gpt {
    const gpt_size *size;
    const gpt_lists *lists, *run_lists; /* run_lists: of the models that run, which may be cut otherwise */
    int batch, seq, models; /* models: embed, one block for each layer, head; seq: the rows of a sequence on this rank */
    int whole;              /* the tokens of a sequence: seq times the processes of --cp */
    int parts;              /* --sp: between the sharded GEMMs this rank has 1/parts of a batch's rows; else 1 */
    int in_fp8, plain; /* plain: how many of the first blocks, and of the last, have no recipe */
    te_recipes recipes;
    te_model *model, logits, **all; /* all: pointers to all models; of those on other stages only the shapes are known */
    te_model **own;                 /* [own_models]: the models that this stage initialises and updates */
    int own_models;
    te_fsdp fsdp;                   /* --zero 2, 3: the blocks of this stage, whose gradients, or these and weights, are sharded */
    te_model **sharded, **resident; /* [sharded_models]: those blocks; [resident_models]: the other models of this stage */
    int sharded_models, resident_models;
    size_t state_bytes, saved_bytes; /* of this rank's weights, gradients and optimizer states; of what forward saves */
    gpt_chunk *chunk;               /* [chunks] */
    te_pipeline_slot *slot;         /* [slots]: the passes of a step and the messages between stages */
    int chunks, slots;
    te_model **run;                 /* the models that run: those of `all`, or others of the same weights */
    void *residual[2], *dresidual[2]; /* if the lists end in norms: the extra outputs of two lists, and their gradients */
    char *weights;
    float *grads;
    te_saved **saved; /* saved[i]: of model i, [kept] */
    void *saved_memory;
    char **x;         /* x[i]: the outputs of model i, [kept, rows / parts, hidden] */
    void *dx[2];
    size_t x_bytes;   /* of one such output, rounded up */
    int64_t rows;     /* of a micro-batch, or of a sample if that is more */
    float *loss;      /* [kept, rows] */
    int32_t *tokens, *labels; /* [kept, rows] */
} gpt;

static te_param *find_param(te_model *m, const char *op) {
    for (int i = 0; i < m->param_count; i++)
        if (!strcmp(m->param[i].op, op)) return &m->param[i];
    die("no such parameter", op);
    return NULL;
}
static void bind(te_model *m, const te_plan *plan, void *weights, float *grads) {
    int count = 0;
    for (int i = 0; i < plan->op_count; i++) count += plan->op[i].params;
    check(te_model_bind(m, plan, (te_param *)host_memory((size_t)count * sizeof(te_param)), count, weights, grads,
                        &ctx), "bind");
}
static void describe(te_model *m, const te_plan *plan) {
    int count = 0;
    for (int i = 0; i < plan->op_count; i++) count += plan->op[i].params;
    check(te_model_describe(m, plan, (te_param *)host_memory((size_t)count * sizeof(te_param)), count, &ctx), "bind");
}
static const te_plan *plan_of(const gpt *g, const gpt_lists *lists, int i) {
    return i == 0 ? lists->embed() : i + 1 < g->models ? lists->block() : lists->head();
}
/* Make the models that run, of the same weights and gradients, and the memory of their extra outputs. */
static void make_runs(gpt *g, size_t residual_bytes) {
    char *w = g->weights;
    float *d = g->grads;
    te_model *const models = (te_model *)host_memory((size_t)g->models * sizeof(te_model));
    g->run = (te_model **)host_memory((size_t)g->models * sizeof(te_model *));
    for (int i = 0; i < g->models; i++) {
        const te_plan *plan = plan_of(g, g->run_lists, i);
        g->run[i] = &models[i];
        bind(g->run[i], plan, w, d);
        w += te_plan_param_bytes(plan), d += te_plan_grad_bytes(plan) / sizeof(float);
    }
    const te_model *last = &g->model[g->models - 1];
    if (w != (char *)last->params + te_plan_param_bytes(last->plan)) die("the lists differ in their parameters", g->size->name);
    for (int i = 0; i < 2; i++) g->residual[i] = target_memory(residual_bytes), g->dresidual[i] = target_memory(residual_bytes);
}
/* Cut the model into stages * chunks parts of as many blocks each, or one more or less, and make the schedule. */
static void make_chunks(gpt *g, int chunks, int micro_batches) {
    const te_pipeline p = te_pipeline_of(stages, chunks, micro_batches);
    const int layers = g->models - 2, parts = stages * chunks;
    g->chunks = chunks, g->slots = te_pipeline_schedule(NULL, 0, p, stage);
    g->chunk = (gpt_chunk *)calloc((size_t)chunks, sizeof *g->chunk);
    g->slot = (te_pipeline_slot *)host_memory((size_t)g->slots * sizeof *g->slot);
    if (!g->chunk) die("out of memory", NULL);
    if (!te_pipeline_schedule(g->slot, g->slots, p, stage)) die("--accumulate x --chunks is too large", NULL);
    for (int c = 0; c < chunks; c++) {
        const int part = c * stages + stage;
        g->chunk[c].first = part ? 1 + layers * part / parts : 0;
        g->chunk[c].last = part + 1 < parts ? layers * (part + 1) / parts : layers + 1;
        g->chunk[c].kept = te_pipeline_buffers_of(g->slot, g->slots, c);
    }
}
/* The chunk of this stage that has model i; null: another stage has it. */
static const gpt_chunk *chunk_of(const gpt *g, int i) {
    for (int c = 0; c < g->chunks; c++)
        if (g->chunk[c].first <= i && i <= g->chunk[c].last) return &g->chunk[c];
    return NULL;
}
static int has_head(const gpt *g) { return g->chunk[g->chunks - 1].last == g->models - 1; }
/* Whether this stage updates model i: it has it or, on the last stage, the head is tied to it. */
static int owns(const gpt *g, int i) { return chunk_of(g, i) || (!i && has_head(g)); }

/* Draw the initial weights of model i. */
static void draw_model(gpt *g, int i, uint64_t seed) {
    const float std = 0.02f / sqrtf(2.0f * (float)(g->models - 2));
    te_model *m = &g->model[i];
    if (m->shards) check(te_fsdp_gather(&g->fsdp, m, &ctx), "initial weights");
    check(te_model_randomize(m, 0.02f, seed, (uint32_t)i * 64, &ctx), "initial weights");
    if (i && i + 1 < g->models) { /* GPT-2: what is added to the residual stream starts smaller in deep models */
        check(te_param_normal(find_param(m, "proj"), std, seed, (uint32_t)i * 64 + 40, &ctx), "initial weights");
        check(te_param_normal(find_param(m, "fc2"), std, seed, (uint32_t)i * 64 + 41, &ctx), "initial weights");
    }
    if (m->shards) check(te_fsdp_keep(&g->fsdp, m, &ctx), "initial weights");
}
/* --zero 2, 3: make the shards of the blocks of this stage, which are described. */
static void make_shards(gpt *g, const options *o) {
    te_fsdp_config config = te_fsdp_defaults();
    if (o->zero < 2) return;
    config.zero = (int)o->zero;
    if (!strcmp(o->sums, "bf16")) config.dtype = TE_bf16;
    const size_t bytes = te_fsdp_bytes(g->sharded, g->sharded_models, &config, &ctx);
    g->state_bytes += bytes;
    check(te_fsdp_init(&g->fsdp, target_memory(bytes), bytes, g->sharded, g->sharded_models, &config, &ctx), "shards");
}
/* Whether model i is one of the blocks that --zero 2 and 3 shard. The embedding is not: the head is tied to it. */
static int is_sharded(const gpt *g, const options *o, int i) { return o->zero >= 2 && i && i + 1 < g->models; }
/* Make the weights and gradients of the models of this stage, and describe the others. */
static void make_models(gpt *g, const options *o) {
    size_t weight_bytes = 0, grad_bytes = 0;
    g->model = (te_model *)host_memory((size_t)g->models * sizeof(te_model));
    g->all = (te_model **)host_memory((size_t)g->models * sizeof(te_model *));
    g->own = (te_model **)host_memory((size_t)g->models * sizeof(te_model *));
    g->sharded = (te_model **)host_memory((size_t)g->models * sizeof(te_model *));
    g->resident = (te_model **)host_memory((size_t)g->models * sizeof(te_model *));
    for (int i = 0; i < g->models; i++) {
        const te_plan *plan = plan_of(g, g->lists, i);
        if (owns(g, i) && !is_sharded(g, o, i)) weight_bytes += te_plan_param_bytes(plan), grad_bytes += te_plan_grad_bytes(plan);
    }
    g->weights = (char *)target_memory(weight_bytes), g->grads = (float *)target_memory(grad_bytes);
    check(te_fill(&ctx, g->weights, 0, weight_bytes), "weights");
    check(te_fill(&ctx, g->grads, 0, grad_bytes), "gradients");
    char *w = g->weights;
    float *d = g->grads;
    for (int i = 0; i < g->models; i++) {
        const te_plan *plan = plan_of(g, g->lists, i);
        g->all[i] = &g->model[i];
        if (owns(g, i)) g->own[g->own_models++] = &g->model[i];
        if (!owns(g, i) || is_sharded(g, o, i)) {
            describe(&g->model[i], plan);
            if (owns(g, i)) g->sharded[g->sharded_models++] = &g->model[i];
            continue;
        }
        g->resident[g->resident_models++] = &g->model[i];
        bind(&g->model[i], plan, w, d);
        if (!chunk_of(g, i)) check(te_model_mark_copy(&g->model[i], &ctx), "copy of the embedding");
        if (i == g->models - 1) bind(&g->logits, g->run_lists->logits(), w, NULL);
        w += te_plan_param_bytes(plan), d += te_plan_grad_bytes(plan) / sizeof(float);
    }
    g->state_bytes = weight_bytes + grad_bytes;
    make_shards(g, o);
    for (int i = 0; i < g->models; i++)
        if (owns(g, i)) draw_model(g, i, (uint64_t)o->seed);
    if (!has_head(g)) return;
    check(te_tie(find_param(&g->logits, "lm"), find_param(&g->model[0], "wte"), &ctx), "tie");
    check(te_tie(find_param(&g->model[g->models - 1], "lm"), find_param(&g->model[0], "wte"), &ctx), "tie");
}
/* Make the memory for the values between the models, and for those that forward saves. trained: the rows of a
 * micro-batch. */
static void make_values(gpt *g, int64_t trained) {
    size_t saved_bytes = 0, workspace = 0;
    int tokens = 1; /* how many micro-batches of tokens and labels are kept */
    g->saved = (te_saved **)calloc((size_t)g->models, sizeof(te_saved *));
    g->x = (char **)calloc((size_t)g->models, sizeof(char *));
    if (!g->saved || !g->x) die("out of memory", NULL);
    for (int c = 0; c < g->chunks; c++) {
        gpt_chunk *chunk = &g->chunk[c];
        const size_t kept = (size_t)chunk->kept.inputs;
        if (!chunk->first || chunk->last == g->models - 1) tokens = (int)te_max(tokens, chunk->kept.inputs);
        if (chunk->kept.gradients) chunk->dy = (char *)target_memory((size_t)chunk->kept.gradients * g->x_bytes);
        for (int i = (int)te_max(0, chunk->first - 1); i <= chunk->last; i++) {
            if (i + 1 < g->models) g->x[i] = (char *)target_memory(kept * g->x_bytes);
            if (i < chunk->first) continue; /* the output of another stage */
            const te_plan *plan = g->run[i]->plan;
            const int in_fp8 = g->in_fp8 && i > g->plain && i < g->models - 1 - g->plain;
            const size_t bytes = in_fp8 ? te_plan_saved_bytes_of_rank(plan, trained, &ctx)
                                        : te_plan_saved_bytes_of_rank_without_recipe(plan, trained, &ctx);
            const size_t need = te_plan_workspace_bytes(plan, g->run[i], g->rows, &ctx);
            workspace = need > workspace ? need : workspace;
            g->saved[i] = (te_saved *)calloc(kept, sizeof(te_saved));
            if (!g->saved[i]) die("out of memory", NULL);
            g->saved[i]->bytes = (size_t)te_round_up((int64_t)bytes, TE_ALIGN);
            saved_bytes += kept * g->saved[i]->bytes;
        }
    }
    g->saved_bytes = saved_bytes;
    char *memory = (char *)saved_memory(saved_bytes);
    g->saved_memory = memory;
    for (int i = 0; i < g->models; i++) {
        const gpt_chunk *chunk = chunk_of(g, i);
        for (int n = 0; chunk && n < chunk->kept.inputs; n++) {
            g->saved[i][n].memory = memory, g->saved[i][n].bytes = g->saved[i]->bytes;
            memory += g->saved[i]->bytes;
        }
    }
    check(te_context_reserve(&ctx, workspace), "workspace");
    for (int i = 0; i < 2; i++) g->dx[i] = target_memory(g->x_bytes);
    g->loss = (float *)target_memory((size_t)(tokens * g->rows) * sizeof(float));
    g->tokens = (int32_t *)target_memory((size_t)(tokens * g->rows) * sizeof(int32_t));
    g->labels = (int32_t *)target_memory((size_t)(tokens * g->rows) * sizeof(int32_t));
}
/* kind: of the lists; norm_last: run the lists that end in norms. */
static void gpt_make(gpt *g, const gpt_size *size, const options *o, gpt_kind kind, int norm_last) {
    const int seq = (int)o->seq;
    const int64_t trained = o->batch * (seq / contexts);
    memset(g, 0, sizeof *g);
    g->lists = &size->lists[kind], g->parts = kind == GPT_SP || kind == GPT_SP_EXPERTS ? tensor : 1;
    g->run_lists = norm_last ? &size->lists[GPT_TP_NORM_LAST] : g->lists;
    g->in_fp8 = strcmp(o->recipe, "none") != 0, g->plain = (int)o->plain;
    g->size = size, g->batch = (int)o->batch, g->whole = seq, g->seq = seq / contexts, g->models = size->layers + 2;
    g->rows = te_max(trained, seq); /* a sample is a whole sequence */
    const size_t width = (size_t)size->hidden * te_dtype_bytes(TE_JOIN1(TE_, GPT_DTYPE));
    g->x_bytes = (size_t)te_round_up(g->rows / g->parts * (int64_t)width, TE_ALIGN);
    make_chunks(g, (int)o->chunks, (int)o->accumulate);
    make_models(g, o);
    g->run = g->all;
    if (norm_last) {
        make_runs(g, (size_t)g->rows * width);
        check(te_tie(find_param(g->run[g->models - 1], "lm"), find_param(g->run[0], "wte"), &ctx), "tie");
    }
    make_values(g, trained);
    if (!g->in_fp8) return;
    te_recipes_config config = te_recipes_defaults();
    config.current = !strcmp(o->recipe, "fp8_current"), config.ranks = processes;
    te_model *const *models = g->all + 1 + g->plain; /* blocks that are not among these run in their own dtype */
    const int count = g->models - 2 - 2 * g->plain;
    const size_t bytes = te_recipes_bytes(models, count, &config);
    check(te_recipes_init(&g->recipes, target_memory(bytes), bytes, models, count, &config, &ctx), "recipe");
}
/* The batch whose tokens and labels are in buffer n. */
static te_batch gpt_batch(const gpt *g, int batch, int seq, int n) {
    te_batch b;
    memset(&b, 0, sizeof b);
    b.batch = batch, b.seq = seq, b.ignore_index = -1;
    b.tokens = g->tokens + n * g->rows, b.labels = g->labels + n * g->rows;
    b.context = contexts > 1;
    return b;
}
static te_tensor hidden_of(const gpt *g, void *data, const te_batch *b) {
    return te_matrix(data, TE_JOIN1(TE_, GPT_DTYPE), (int64_t)b->batch * b->seq / g->parts, g->size->hidden);
}
/* Output n of model i; of model -1, which reads tokens instead: none. */
static te_tensor output_of(const gpt *g, int i, int n, const te_batch *b) {
    return i < 0 ? te_none() : hidden_of(g, g->x[i] + (size_t)n * g->x_bytes, b);
}

/* The batch for list i, with its extra input x1 and output x if the lists end in norms. edge: memory for these. */
static te_batch with_residual(const gpt *g, const te_batch *b, int i, te_edge edge[2]) {
    te_batch of = *b;
    if (!g->residual[0]) return of;
    const int last = i + 2 == g->models; /* the last block's x is not read */
    edge[0].name = "x1", edge[0].value = hidden_of(g, g->residual[(i + 1) & 1], b);
    edge[0].grad = hidden_of(g, g->dresidual[(i + 1) & 1], b);
    edge[1].name = "x", edge[1].value = hidden_of(g, g->residual[i & 1], b);
    edge[1].grad = last ? te_none() : hidden_of(g, g->dresidual[i & 1], b);
    of.edges = edge, of.edge_count = 2;
    return of;
}

/* Run the models of a chunk but the head, on the batch in buffers n. `train`: save the values that backward needs. */
static void forward_blocks(gpt *g, const gpt_chunk *chunk, int n, const te_batch *b, int train) {
    te_edge edge[2];
    for (int i = chunk->first; i <= chunk->last && i + 1 < g->models; i++) {
        const te_batch of = with_residual(g, b, i, edge);
        check(te_plan_forward(output_of(g, i, n, b), train ? &g->saved[i][n] : NULL, output_of(g, i - 1, n, b),
                              g->run[i]->plan, g->run[i], &of, &ctx), "forward");
    }
}
/* The same with the head, if it is in the chunk: the loss of every row goes to g->loss. */
static void forward_chunk(gpt *g, const gpt_chunk *chunk, int n, const te_batch *b, int train) {
    const int head = g->models - 1;
    forward_blocks(g, chunk, n, b, train);
    if (chunk->last != head) return;
    check(te_plan_forward(te_matrix(g->loss + n * g->rows, TE_f32, (int64_t)b->batch * b->seq, 1),
                          train ? &g->saved[head][n] : NULL, output_of(g, head - 1, n, b), g->run[head]->plan,
                          g->run[head], b, &ctx), "forward");
}
/* dy: the gradient of the chunk's output; none if that is the loss. Returns the gradient of its input. */
static te_tensor backward_chunk(gpt *g, const gpt_chunk *chunk, int n, te_tensor dy, const te_batch *b) {
    te_edge edge[2];
    for (int i = chunk->last; i >= chunk->first; i--) {
        const te_tensor dx = i ? hidden_of(g, g->dx[i & 1], b) : te_none();
        const te_batch of = with_residual(g, b, i, edge);
        check(te_plan_backward(dx, dy, &g->saved[i][n], g->run[i]->plan, g->run[i], &of, &ctx), "backward");
        dy = dx;
    }
    return dy;
}
/* Run all parts of the model on the batch in buffer 0, one after the other on the stages that have them, and save
 * nothing. last: the model behind the blocks, which writes y. */
static void infer(gpt *g, te_model *last, te_tensor y, const te_batch *b) {
    const te_group *pipeline = te_pipeline_group(&ctx);
    for (int c = 0; c < g->chunks; c++) {
        const gpt_chunk *chunk = &g->chunk[c];
        const int before = (stage + stages - 1) % stages, behind = (stage + 1) % stages, is_last = chunk->last + 1 == g->models;
        if (chunk->first) check(te_receive(pipeline, output_of(g, chunk->first - 1, 0, b), before, &ctx), "stages");
        forward_blocks(g, chunk, 0, b, 0);
        if (!is_last) check(te_send(pipeline, output_of(g, chunk->last, 0, b), behind, &ctx), "stages");
        else check(te_plan_forward(y, NULL, output_of(g, g->models - 2, 0, b), last->plan, last, b, &ctx), "forward");
    }
}
/* The mean of the losses in buffer n; 0 on a stage that has no head. Waits for the device. */
static double gpt_loss(const gpt *g, const te_batch *b, int n) {
    static float *host;
    const int rows = b->batch * b->seq;
    if (!has_head(g)) return 0;
    if (!host) host = (float *)host_memory((size_t)g->batch * (size_t)g->seq * sizeof(float));
    check(te_comm_synchronize(&ctx), "loss");
    check(te_copy(&ctx, host, g->loss + n * g->rows, (size_t)rows * sizeof(float)), "loss");
    check(te_synchronize(&ctx), "loss");
    double sum = 0;
    for (int i = 0; i < rows; i++) sum += host[i];
    return sum / rows;
}
/* The sum of losses over the replicas; the last stage tells the others. */
static double loss_over_ranks(double sum) { return sum_over(te_pipeline_group(&ctx), sum_over(te_data_group(&ctx), sum)); }

/* ---------------------------------------------------------------------------------------------------------------- */
/* batches: windows of the text, whose places follow from the seed and the batch number alone, so that a resumed run  */
/* sees the same batches                                                                                              */

typedef struct corpus {
    int32_t *tokens;      /* target memory */
    int64_t train, total; /* tokens [0, train) are for training, [train, total) for validation */
    uint64_t fingerprint; /* a checksum of the text */
} corpus;

static uint64_t fingerprint(const text *t) {
    te_checksum sum = te_checksum_begin();
    te_checksum_add(&sum, t->bytes, t->size);
    return te_checksum_end(&sum);
}

static corpus corpus_of(const text *t, int seq, int vocabulary) {
    corpus c;
    for (size_t i = 0; i < t->size; i++)
        if (t->bytes[i] >= vocabulary) {
            fprintf(stderr, "train_gpt: the text has a byte %d, and the vocabulary of this size has %d tokens\n",
                    t->bytes[i], vocabulary);
            exit(1);
        }
    c.total = (int64_t)t->size, c.train = c.total - c.total / 20, c.fingerprint = fingerprint(t);
    if (c.total / 20 <= seq + 1) die("too little text; give more files", NULL);
    int32_t *wide = (int32_t *)host_memory(t->size * sizeof(int32_t));
    for (size_t i = 0; i < t->size; i++) wide[i] = t->bytes[i];
    c.tokens = (int32_t *)target_memory(t->size * sizeof(int32_t));
    check(te_copy(&ctx, c.tokens, wide, t->size * sizeof(int32_t)), "text");
    check(te_synchronize(&ctx), "text");
    free(wide);
    return c;
}
/* Batch `number`, into the buffers n for tokens and labels. */
static void take_batch(const gpt *g, const corpus *c, int validate, uint64_t number, uint64_t seed, int n) {
    const int64_t from = validate ? c->train : 0, places = (validate ? c->total - c->train : c->train) - g->whole - 1;
    const int chunks = contexts > 1 ? 2 : 1, rows = g->seq / chunks; /* with --cp two chunks of the window */
    const size_t bytes = (size_t)rows * sizeof(int32_t);
    for (int i = 0; i < g->batch; i++) {
        uint32_t r[4];
        te_philox(r, seed, number * (uint64_t)g->batch + (uint64_t)i, validate ? 2 : 1, 0);
        const int32_t *window = c->tokens + from + (int64_t)((((uint64_t)r[0] << 32) | r[1]) % (uint64_t)places);
        /* [context] */
        for (int k = 0; k < chunks; k++) {
            const int32_t *chunk = window + te_cp_position(shard, k * rows, g->seq);
            const int64_t at = n * g->rows + i * g->seq + k * rows;
            check(te_copy(&ctx, g->tokens + at, chunk, bytes), "batch");
            check(te_copy(&ctx, g->labels + at, chunk + 1, bytes), "batch");
        }
        /* [context] */
    }
}
static double validation_loss(gpt *g, const corpus *c, int batches, uint64_t seed) {
    const te_batch b = gpt_batch(g, g->batch, g->seq, 0);
    double sum = 0;
    for (int i = 0; i < batches; i++) {
        take_batch(g, c, 1, (uint64_t)(i * replicas + replica), seed, 0);
        infer(g, g->run[g->models - 1], te_matrix(g->loss, TE_f32, (int64_t)b.batch * b.seq, 1), &b);
        sum += gpt_loss(g, &b, 0);
    }
    return loss_over_ranks(sum) / (batches * replicas * contexts);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* a sample: one byte after the other, each drawn from the model's distribution for the text so far                   */

/* Byte number i, drawn from the logits of the first `bytes` tokens, at most 256; at temperature 0 the likeliest byte, the
 * first one of a tie. */
static int pick(const char *logits, int bytes, te_dtype dtype, double temperature, uint64_t seed, uint64_t i) {
    double p[256], max = -INFINITY, sum = 0;
    int best = 0, next = 0;
    for (int k = 0; k < bytes; k++) {
        p[k] = (double)te_load(logits, k, dtype);
        if (!isfinite(p[k])) die("a logit is not finite", NULL);
        if (p[k] > max) max = p[k], best = k;
    }
    if (temperature == 0) return best;
    for (int k = 0; k < bytes; k++) sum += p[k] = exp((p[k] - max) / temperature);
    uint32_t r[4];
    te_philox(r, seed, i, 3, 0);
    double u = te_uniform(r[0]) * sum;
    while (next < bytes - 1 && (u -= p[next]) > 0) next++;
    return next;
}
/* Print a byte of a text: as it is if it is printable, or with other bytes a character of UTF-8; else as \xNN. -1: the
 * text ends. */
static void put_byte(int byte) {
    static int held[4], count, length; /* the first bytes of a character, and how many bytes it has */
    const int second = count == 1 ? held[0] : 0; /* the byte in front, if this one is a character's second */
    const int low = second == 0xc2 || second == 0xe0 ? 0xa0 : second == 0xf0 ? 0x90 : 0x80;
    const int high = second == 0xed ? 0x9f : second == 0xf4 ? 0x8f : 0xbf;
    if (count && byte >= low && byte <= high) {
        held[count++] = byte;
        if (count < length) return;
        for (int i = 0; i < count; i++) putchar(held[i]);
        count = 0;
        return;
    }
    for (int i = 0; i < count; i++) printf("\\x%02x", (unsigned)held[i]);
    count = 0;
    if (byte < 0) return;
    if (byte >= 0xc2 && byte <= 0xf4) held[count++] = byte, length = byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    else if ((byte >= 32 && byte < 127) || byte == '\n' || byte == '\t') putchar(byte);
    else printf("\\x%02x", (unsigned)byte);
}
/* All ranks of a tensor group call this, on each stage of a pipeline. Each computes its columns of the logits; they are
 * gathered, and every rank picks the same byte. With --sp the rows are sharded, so the text is padded until the number of ranks divides its rows.
 * Attention is causal, so the padding does not change the rows before it. */
static void print_sample(gpt *g, const char *prompt, int length, double temperature, uint64_t seed) {
    const int longest = g->whole, columns = g->size->vocabulary / tensor;
    const te_dtype dtype = TE_JOIN1(TE_, GPT_DTYPE);
    const te_group *group = te_tensor_group(&ctx);
    int32_t *window = (int32_t *)calloc((size_t)longest, sizeof(int32_t));
    const size_t part_bytes = (size_t)columns * te_dtype_bytes(dtype), row_bytes = part_bytes * (size_t)tensor;
    char *logits = (char *)target_memory((size_t)longest * part_bytes), *row = (char *)host_memory(row_bytes);
    char *whole = tensor > 1 ? (char *)target_memory(row_bytes) : NULL;
    int n = 0;
    if (!window) die("out of memory", NULL);
    for (const char *c = prompt; *c && n < longest / 2; c++) window[n++] = (unsigned char)*c;
    if (!n) window[n++] = '\n';
    for (int i = 0; i < n; i++)
        if (window[i] >= g->size->vocabulary) die("--prompt has a byte that the vocabulary of this size has not", prompt);
    for (int i = 0; i < n; i++) put_byte(window[i]);
    for (int i = 0; i < length && !(sum_over(te_pipeline_group(&ctx), sum_over(group, interrupted)) > 0); i++) {
        const int rows = (n + g->parts - 1) / g->parts * g->parts;
        te_batch b = gpt_batch(g, 1, rows, 0);
        b.context = 0; /* one process computes the whole sequence */
        check(te_copy(&ctx, g->tokens, window, (size_t)rows * sizeof(int32_t)), "sample");
        infer(g, &g->logits, te_matrix(logits, dtype, rows, columns), &b);
        const char *last = logits + (size_t)(n - 1) * part_bytes;
        int next = 0;
        if (has_head(g)) {
            if (whole) check(te_group_all_gather(group, whole, last, columns, dtype, &ctx), "sample");
            check(te_copy(&ctx, row, whole ? whole : last, row_bytes), "sample");
            check(te_synchronize(&ctx), "sample");
            next = pick(row, (int)te_min(256, g->size->vocabulary), dtype, temperature, seed, (uint64_t)i);
        }
        next = (int)sum_over(te_pipeline_group(&ctx), next); /* the last stage tells the others */
        put_byte(next);
        flush_output();
        if (n == longest) { /* the window is full: keep its later half */
            n = longest / 2;
            memmove(window, window + longest - n, (size_t)n * sizeof(int32_t));
        }
        window[n++] = next;
    }
    put_byte(-1);
    putchar('\n');
    te_release(&ctx, logits), te_release(&ctx, whole);
    free(window), free(row);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* the loss curve, as numbers (TSV) and as a picture (SVG)                                                            */

typedef struct point { long step; double loss, validation; } point; /* validation: NAN where it was not measured */
typedef struct curve {
    point *p;
    int count, capacity;
    FILE *tsv; /* one line is added at every report */
} curve;

static void curve_add(curve *c, long step, double loss, double validation) {
    if (c->count == c->capacity) {
        c->capacity = c->capacity ? 2 * c->capacity : 256;
        c->p = (point *)realloc(c->p, (size_t)c->capacity * sizeof(point));
        if (!c->p) die("out of memory", NULL);
    }
    c->p[c->count].step = step, c->p[c->count].loss = loss, c->p[c->count++].validation = validation;
}
static void curve_read(curve *c, const char *path, long until) {
    FILE *f = fopen(path, "r");
    char line[128];
    while (f && fgets(line, sizeof line, f)) {
        long step;
        double loss, validation = NAN;
        const int numbers = sscanf(line, "%ld\t%lf\t%lf", &step, &loss, &validation);
        if (numbers >= 2 && step <= until) curve_add(c, step, loss, validation);
    }
    if (f) fclose(f);
}
static void curve_line(FILE *f, const point *p) {
    fprintf(f, "%ld\t%.6f\t", p->step, p->loss);
    if (p->validation == p->validation) fprintf(f, "%.6f", p->validation);
    fprintf(f, "\n");
}
static void curve_flush(const curve *c, const char *path) {
    if (fflush(c->tsv) || ferror(c->tsv)) die(strerror(errno), path);
}
enum { MAX_BESIDE = 4096 + 32 };
/* Create a second file beside `path`, which then replaces it: a run that is killed meanwhile loses nothing. The file is
 * new, so that no link or FIFO of that name is written to. Returns null and sets errno if that fails. */
static FILE *open_beside(char beside[MAX_BESIDE], const char *path) {
    snprintf(beside, MAX_BESIDE, "%s.tmp.%ld", path, (long)getpid());
    (void)unlink(beside); /* of a process of the same number that was killed */
    const int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return fd < 0 ? NULL : fdopen(fd, "w");
}
/* Write the curve so far. */
static void curve_open(curve *c, const char *path) {
    char beside[MAX_BESIDE];
    c->tsv = open_beside(beside, path);
    if (!c->tsv) die(strerror(errno), beside);
    fprintf(c->tsv, "step\tloss\tvalidation_loss\n");
    for (int i = 0; i < c->count; i++) curve_line(c->tsv, &c->p[i]);
    curve_flush(c, beside);
    if (rename(beside, path)) die(strerror(errno), path);
}
/* Returns whether the picture is written. */
static int curve_draw(const curve *c, const char *svg) {
    char beside[MAX_BESIDE];
    double low = 1e30, high = 0, last = 1;
    for (int i = 0; i < c->count; i++) {
        const point *p = &c->p[i];
        low = fmin(low, p->loss), high = fmax(high, p->loss), last = (double)p->step;
        if (p->validation == p->validation) low = fmin(low, p->validation);
    }
    FILE *f = open_beside(beside, svg);
    if (!f) return fprintf(stderr, "train_gpt: %s: %s\n", beside, strerror(errno)), 0;
    const double left = 56, top = 24, width = 680, height = 340;
    low = floor(low * 2) / 2, high = ceil(high * 2) / 2;
    if (high <= low) high = low + 0.5;
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 420\" font-family=\"sans-serif\" "
               "font-size=\"12\">\n"
               "<rect width=\"760\" height=\"420\" fill=\"white\"/>\n");
    for (int i = 0; i <= 5; i++) {
        const double y = top + height * i / 5, x = left + width * i / 5;
        fprintf(f, "<path d=\"M%.0f %.1fh%.0f\" stroke=\"#ddd\"/>", left, y, width);
        fprintf(f, "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%.2f</text>\n", left - 6, y + 4,
                high - (high - low) * i / 5);
        fprintf(f, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">%.0f</text>\n", x, top + height + 18,
                last * i / 5);
    }
    for (int which = 0; which < 2; which++) {
        fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%s\" points=\"", which ? "#d62728" : "#1f77b4",
                which ? "2" : "1");
        for (int i = 0; i < c->count; i++) {
            const double v = which ? c->p[i].validation : c->p[i].loss;
            if (v == v) fprintf(f, "%.1f,%.1f ", left + width * (double)c->p[i].step / last,
                                top + height * (high - v) / (high - low));
        }
        fprintf(f, "\"/>\n<text x=\"%.0f\" y=\"40\" fill=\"%s\">%s</text>\n", left + width - 150,
                which ? "#d62728" : "#1f77b4",
                which ? "" : "training loss");
    }
    fprintf(f, "<text x=\"%.0f\" y=\"56\" fill=\"#d62728\">validation loss</text>\n"
               "<text x=\"%.0f\" y=\"408\" text-anchor=\"middle\">step</text>\n</svg>\n",
            left + width - 150, left + width / 2);
    const int failed = ferror(f) != 0;
    if (!(fclose(f) || failed || rename(beside, svg))) return 1;
    fprintf(stderr, "train_gpt: %s: %s\n", svg, strerror(errno));
    (void)unlink(beside);
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------------- */

static const char usage[] =
    "usage: train_gpt [options] [files and folders]      (default: the headers under /usr/include)\n"
    "  --size NAME       tiny, small or gpt2 (the 124M shape)      tiny\n"
    "  --batch N         sequences a micro-batch                   8\n"
    "  --seq N           tokens a sequence                         128\n"
    "  --experts N       experts in place of each MLP: " TE_STRING(GPT_EXPERTS) " (-DGPT_EXPERTS=N); 0: an MLP   0\n"
    "  --top_k N         experts of a token: " TE_STRING(GPT_TOP_K) " (-DGPT_TOP_K=N)\n"
    "  --recipe NAME     FP8 recipe of the blocks' GEMMs: none, " GPT_RECIPES "\n"
    "  --plain N         the first N blocks and the last N have no recipe   0\n"
    "  --accumulate N    micro-batches a step                      1\n"
    "  --dp N            data parallel: replicas                   1\n"
    "  --sums NAME       format for summing replicas' gradients: f32, bf16   f32\n"
    "  --zero N          replicas shard 1: the optimizer's states; 2: also gradients of the blocks; 3: also their weights\n"
    "  --tp N            tensor parallel: processes that shard a replica's heads, MLP and vocabulary\n"
    "                    (-DGPT_RANKS=N)                           1\n"
    "  --sp              sequence parallel: these processes also shard its tokens, between the GEMMs\n"
    "  --cp N            context parallel: processes that split each sequence (-DGPT_CONTEXT=ring)   1\n"
    "  --pp N            pipeline parallel: stages, each with some of the layers, that pass on micro-batches   1\n"
    "  --chunks N        parts of the model that a stage has, for shorter idle times (interleaved 1F1B)   1\n"
    "                    (mpirun -n TP*CP*DP*PP starts all processes)\n"
    "  --address H:PORT  GPUs: where rank 0 listens at the start, if processes do not share --out; needs TE_COMM_SECRET\n"
    "  --steps N         optimizer steps                           1500\n"
    "  --optimizer NAME  adamw, sgd (with momentum) or muon        adamw\n"
    "  --moments NAME    optimizer's moments in: f32, bf16, 8bit   f32\n"
    "  --lr X            peak learning rate                        2e-3 (gpt2: 6e-4); muon 4 times that, sgd 0.1\n"
    "  --log N           print a line every N steps                50\n"
    "  --validate N      validation loss every N steps, 0: never   250\n"
    "  --save N          checkpoint every N steps, 0: at the end   0\n"
    "  --out FOLDER      checkpoint, curve.tsv, curve.svg          gpt_out\n"
    "  --resume          continue from the checkpoint in FOLDER, with its options and texts; only --dp, --tp, --cp, --sp,\n"
    "                    --pp, --chunks, --zero and the options on printing are given again\n"
    "  --init FILE       start from the weights of this checkpoint, with a new optimizer and at step 0\n"
    "  --force           continue even if its checksum is wrong, or it was made with other options or another text\n"
    "  --sample N        bytes of the sample at the end            600\n"
    "  --prompt TEXT     what the sample begins with               \"#ifndef \"\n"
    "  --temperature X   of the sample; 0: always the likeliest    0.8\n"
    "  --seed N          seed of everything random                 1\n"
    "  --tune FILE       results of GEMM autotuning, read from FILE; made and written if there is none (GPU)\n"
    "  --plan            print the plan of a block and stop\n";

/* The optimizer rule (or, below, the dtype of the moments) called `name`; -1: there is none. */
static int rule_of(const char *name) {
    for (int i = 0; i < TE_RULE_COUNT; i++)
        if (!strcmp(name, te_rule_name((te_rule)i))) return i;
    return -1;
}
static int moments_of(const char *name) {
    if (!strcmp(name, "8bit")) return TE_e4m3; /* with a scale for each block of 128 */
    return !strcmp(name, "f32") ? TE_f32 : !strcmp(name, "bf16") ? TE_bf16 : -1;
}

enum { MAX_ACCUMULATE = 1 << 20, MAX_SIDE = 65536, MAX_TOKENS = 1 << 26, MAX_REPLICAS = 65536 };
/* Whether the lists that run end in norms (GPT_BLOCK_NORM_LAST). With --sp, the all_gather behind a block's first norm
 * overlaps with the linear behind it; in FP8 that norm stores the operand of this linear; both want it in the same list.
 * --zero shares out the optimizer's models, so these must be those that run. With --pp stages send one tensor, which is
 * the residual. */
static int ends_in_norms(const options *o) {
    return o->tp > 1 && !o->sp && !o->zero && !o->experts && o->pp == 1 && !strcmp(o->recipe, "none");
}
/* Check the options for several ranks. Whether --tp divides the model's sizes is checked later, when --size is known. */
static void check_ranks(const options *o) {
    if (o->tp > 1 && o->tp != GPT_RANKS) {
        fprintf(stderr, "train_gpt: --tp %ld: this program is for %s%d; compile it with -DGPT_RANKS=%ld\n", o->tp,
                GPT_RANKS > 1 ? "1 or " : "", GPT_RANKS, o->tp);
        exit(1);
    }
#ifndef GPT_CONTEXT
    if (o->cp > 1) die("--cp: built without -DGPT_CONTEXT=ring", NULL);
#endif
    if (o->cp > TE_CP_MAX_RANKS) die("--cp: at most 16 processes", NULL);
    if (o->cp > 1 && o->seq % (2 * o->cp)) die("--cp: a process has two chunks of a sequence; 2 x --cp must divide --seq", NULL);
    if (o->zero < 0 || o->zero > 3) die("--zero must be 0, 1, 2 or 3", NULL);
    if (o->zero == 3 && strcmp(o->recipe, "none"))
        die("--zero 3 shards weights, and GEMMs in FP8 read copies of whole weights; --zero 2 goes with --recipe", o->recipe);
    if (o->zero >= 2 && rule_of(o->optimizer) == TE_RULE_muon)
        die("--optimizer muon takes whole matrices, and with --zero 2 and 3 gradients are sharded; --zero 1 goes with it", NULL);
    if (o->zero >= 2 && TE_JOIN1(TE_, GPT_WEIGHTS) != TE_JOIN1(TE_, GPT_DTYPE))
        die("--zero 2 and 3 want all weights in one format, and this program has some in f32 (-DGPT_WEIGHTS)", NULL);
    if (o->sp && o->tp == 1) die("--sp: the processes of --tp share out a replica's tokens, and here is one", NULL);
    if (o->sp && o->seq / o->cp % o->tp) die("--sp: --tp must divide --seq", NULL);
    if (o->tp > 1 && rule_of(o->optimizer) == TE_RULE_muon)
        die("--optimizer muon takes whole matrices, and with --tp a process has parts; adamw and sgd take parts", NULL);
}
/* Check --plain and --pp, when --size is known. */
static void check_stages(const options *o, const gpt_size *size) {
    if (o->plain >= (size->layers + 1) / 2) die("--plain: no block is left for the recipe, of --size", size->name);
    if (o->chunks > 1 && o->pp == 1) die("--chunks: the stages of --pp have chunks of the model, and here is one", NULL);
    if (o->pp == 1) return;
    if (o->pp > TE_PIPELINE_MAX_STAGES) die("--pp: at most 64 stages", NULL);
    if (o->pp * o->chunks > size->layers) {
        fprintf(stderr, "train_gpt: --pp %ld --chunks %ld: at least a layer for each chunk, and --size %s has %d\n", o->pp,
                o->chunks, size->name, size->layers);
        exit(1);
    }
    if (strcmp(o->recipe, "none")) die("--recipe: with --pp the stages have other GEMMs, so they have no common scales", NULL);
    if (strcmp(o->sums, "f32")) die("--sums: with --pp gradients are summed in f32", NULL);
#ifdef GPT_DROPOUT
    die("--pp: built with -DGPT_DROPOUT, and the stages would draw the same masks", NULL);
#endif
}
static gpt_kind kind_of(const options *o) {
    const int kind = o->tp == 1 ? GPT_ONE : o->sp ? GPT_SP : GPT_TP;
    return (gpt_kind)(o->experts ? kind + GPT_ONE_EXPERTS : kind);
}
/* The numbers of experts are constants of the lists. */
static void check_experts(options *o) {
    const char *const texts[] = {"--experts", "--top_k"}, *const macros[] = {"GPT_EXPERTS", "GPT_TOP_K"};
    const long values[] = {o->experts, o->top_k}, built[] = {GPT_EXPERTS, GPT_TOP_K};
    if (!o->experts && o->resume) o->top_k = 0; /* the checkpoint's; that it has experts is reported later */
    if (!o->experts && o->top_k) die("--top_k goes with --experts", NULL);
    for (int i = 0; i < 2 && o->experts; i++) {
        if (values[i] == built[i] || (i && !values[i])) continue;
        fprintf(stderr, "train_gpt: %s %ld: this program has lists for %ld; compile it with -D%s=%ld\n", texts[i],
                values[i], built[i], macros[i], values[i]);
        exit(1);
    }
    if (o->experts) o->top_k = GPT_TOP_K;
    if (o->experts && o->tp > 1 && o->experts % o->tp) die("--tp must divide --experts", NULL);
}
static void check_options(const options *o) {
    if (o->batch < 1 || o->seq < 2 || o->accumulate < 1 || o->dp < 1 || o->steps < 0 || o->log < 1 || o->validate < 0 ||
        o->save < 0 || o->sample < 0 || o->tp < 1 || o->cp < 1 || o->pp < 1 || o->chunks < 1)
        die("batch, seq, accumulate, tp, cp, dp, pp, chunks and log must be positive, the other counts not negative", NULL);
    if (o->batch > MAX_SIDE || o->seq > MAX_SIDE || o->batch * o->seq > MAX_TOKENS) {
        fprintf(stderr, "train_gpt: --batch %ld --seq %ld: at most %d each, and %d tokens together\n", o->batch, o->seq,
                MAX_SIDE, MAX_TOKENS);
        exit(1);
    }
    if (o->accumulate > MAX_ACCUMULATE) die("--accumulate: at most 1048576 micro-batches a step", NULL);
    if (o->dp > MAX_REPLICAS) die("--dp: at most 65536 replicas", NULL);
    if ((double)o->steps * (double)o->accumulate * (double)(o->batch * o->dp) > 9e18) /* the count of sequences has 64 bits */
        die("steps x accumulate x batch is too large", NULL);
    if (o->sample > INT_MAX) die("--sample is too large", NULL);
    if (o->lr < 0 || o->lr > 1e30) die("--lr must be from 0 to 1e30", NULL);
    if (o->temperature < 0) die("--temperature must not be negative; 0 takes the likeliest byte", NULL);
    const int tensors = TE_JOIN1(TE_RECIPE_, GPT_RECIPE) == TE_RECIPE_fp8_delayed;
    if (strcmp(o->recipe, "none") && strcmp(o->recipe, TE_STRING(GPT_RECIPE)) &&
        (!tensors || strcmp(o->recipe, "fp8_current")))
        die("--recipe must be none, " GPT_RECIPES " (compile with -DGPT_RECIPE=NAME for another), and not", o->recipe);
    if (o->plain && (!strcmp(o->recipe, "none") || TE_JOIN1(TE_, GPT_WEIGHTS) != TE_JOIN1(TE_, GPT_DTYPE)))
        die("--plain: needs a --recipe, and GEMMs' weights in the list's dtype", NULL);
    if (!strcmp(o->recipe, "none") && TE_JOIN1(TE_, GPT_WEIGHTS) != TE_JOIN1(TE_, GPT_DTYPE))
        die("--recipe none: this program has the GEMMs' weights in f32 (-DGPT_WEIGHTS) and can read them only in FP8", NULL);
    if (rule_of(o->optimizer) < 0) die("--optimizer must be adamw, sgd or muon, and not", o->optimizer);
    check_ranks(o);
    if (moments_of(o->moments) < 0) die("--moments must be f32, bf16 or 8bit, and not", o->moments);
    if (rule_of(o->optimizer) == TE_RULE_muon && moments_of(o->moments) == TE_e4m3)
        die("--optimizer muon takes --moments f32 or bf16, and not", o->moments);
    if (o->init && o->resume) die("--init begins a run and --resume continues one; only one of them can be given", NULL);
    if (strcmp(o->sums, "f32") && strcmp(o->sums, "bf16")) die("--sums must be f32 or bf16, and not", o->sums);
    if (strlen(o->out) > 4000) die("--out: the path is too long", NULL);
}
static const char *copy_of(const char *s) {
    char *copy = (char *)host_memory(strlen(s) + 1);
    return strcpy(copy, s);
}
/* Paths are kept in a checkpoint as one text, with a line for each. */
static void take_paths(options *o, const char *lines) {
    char *copy = (char *)host_memory(strlen(lines) + 1);
    strcpy(copy, lines);
    o->path = (const char **)host_memory((strlen(lines) + 1) * sizeof *o->path);
    for (char *line = strtok(copy, "\n"); line; line = strtok(NULL, "\n")) o->path[o->paths++] = line;
}
/* The paths as such a text: absolute, because a run may be continued from another folder. Empty if a path has bytes
 * other than printable ASCII, which a checkpoint cannot keep; then --resume needs the files again. */
static char *paths_text(const options *o) {
    char *all = (char *)host_memory((size_t)o->paths * (PATH_MAX + 1) + 1), *at = all;
    for (int i = 0; i < o->paths; i++) {
        char *whole = realpath(o->path[i], NULL);
        const char *path = whole ? whole : o->path[i];
        for (const char *c = path; *c; c++)
            if (*c < 32 || *c > 126) return free(whole), *all = 0, all;
        at += snprintf(at, PATH_MAX + 2, "%s%s", i ? "\n" : "", path);
        free(whole);
    }
    *at = 0;
    return all;
}
static options parse(int argc, char **argv) {
    options o;
    memset(&o, 0, sizeof o);
    o.size = "tiny", o.out = "gpt_out", o.prompt = "#ifndef ", o.recipe = "none";
    o.optimizer = "adamw", o.moments = o.sums = "f32";
    o.batch = 8, o.seq = 128, o.accumulate = 1, o.tp = o.cp = o.dp = o.pp = o.chunks = 1;
    o.steps = 1500, o.log = 50, o.validate = 250, o.sample = 600, o.seed = 1;
    o.temperature = 0.8, o.lr = NAN; /* not given */
    struct { const char *name; const char **text; long *number; double *real; long *flag; } table[] = {
        {"--size", &o.size, 0, 0, 0},       {"--out", &o.out, 0, 0, 0},           {"--prompt", &o.prompt, 0, 0, 0},
        {"--tune", &o.tune, 0, 0, 0},       {"--init", &o.init, 0, 0, 0},         {"--recipe", &o.recipe, 0, 0, 0},
        {"--optimizer", &o.optimizer, 0, 0, 0}, {"--moments", &o.moments, 0, 0, 0},
        {"--sums", &o.sums, 0, 0, 0}, {"--address", &o.address, 0, 0, 0},
        {"--steps", 0, &o.steps, 0, 0},     {"--batch", 0, &o.batch, 0, 0},       {"--seq", 0, &o.seq, 0, 0},
        {"--accumulate", 0, &o.accumulate, 0, 0}, {"--dp", 0, &o.dp, 0, 0},
        {"--pp", 0, &o.pp, 0, 0}, {"--chunks", 0, &o.chunks, 0, 0},
        {"--tp", 0, &o.tp, 0, 0}, {"--cp", 0, &o.cp, 0, 0}, {"--sp", 0, 0, 0, &o.sp},             {"--zero", 0, &o.zero, 0, 0},
        {"--experts", 0, &o.experts, 0, 0}, {"--top_k", 0, &o.top_k, 0, 0}, {"--plain", 0, &o.plain, 0, 0},
        {"--log", 0, &o.log, 0, 0},     {"--validate", 0, &o.validate, 0, 0},
        {"--sample", 0, &o.sample, 0, 0},   {"--save", 0, &o.save, 0, 0},         {"--seed", 0, &o.seed, 0, 0},
        {"--lr", 0, 0, &o.lr, 0},           {"--temperature", 0, 0, &o.temperature, 0},
        {"--resume", 0, 0, 0, &o.resume},   {"--force", 0, 0, 0, &o.force},       {"--plan", 0, 0, 0, &o.plan}};
    const int rows = (int)(sizeof table / sizeof table[0]);
    int given[sizeof table / sizeof table[0]] = {0}, ended = 0;
    o.path = (const char **)host_memory((size_t)argc * sizeof *o.path);
    for (int i = 1; i < argc; i++) {
        int k = 0;
        char *end = NULL;
        if (ended || argv[i][0] != '-' || !argv[i][1]) { /* options may also follow files; behind "--" there are none */
            o.path[o.paths++] = argv[i];
            continue;
        }
        ended = !strcmp(argv[i], "--");
        if (ended) continue;
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) fputs(usage, stdout), exit(0);
        while (k < rows && strcmp(argv[i], table[k].name)) k++;
        if (k == rows) die("unknown option (see --help)", argv[i]);
        given[k] = 1;
        if (table[k].flag) {
            *table[k].flag = 1;
            continue;
        }
        if (++i == argc) die("a value is missing after", table[k].name);
        if (table[k].text) *table[k].text = argv[i];
        errno = 0;
        if (table[k].number) *table[k].number = strtol(argv[i], &end, 10);
        if (table[k].real) *table[k].real = strtod(argv[i], &end);
        if (end && (*end || end == argv[i])) die("not a number", argv[i]);
        if (errno == ERANGE || (table[k].real && !isfinite(*table[k].real)))
            die("too large a number, or too small", argv[i]);
    }
    if (o.resume) { /* take from the checkpoint what is not given: its metadata have the names of options */
        char path[4096];
        te_safetensors file;
        if (strlen(o.out) > 4000) die("--out: the path is too long", NULL);
        snprintf(path, sizeof path, "%s/checkpoint.safetensors", o.out);
        check(te_safetensors_open(&file, path, &ctx), "--resume");
        for (int k = 0; k < rows; k++) {
            const char *was = given[k] ? NULL : te_safetensors_metadata(&file, table[k].name + 2);
            if (!was) continue;
            if (table[k].text) *table[k].text = copy_of(was);
            if (table[k].number) *table[k].number = strtol(was, NULL, 10);
            if (table[k].real) *table[k].real = strtod(was, NULL);
            if (table[k].number == &o.batch && o.dp > 0) o.batch /= o.dp; /* there it is that of all replicas */
        }
        const char *files = te_safetensors_metadata(&file, "files");
        if (!o.paths && files) take_paths(&o, files);
        te_safetensors_close(&file);
    }
    check_experts(&o);
    check_options(&o);
    return o;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* the checkpoint: weights, optimizer, random state, and the options on which further steps depend. The number of     */
/* steps so far is the optimizer's count of updates, made and skipped.                                                */

enum { SETTINGS = 13, FILES = SETTINGS };
typedef struct state {
    te_named_model *models; /* [g->models], as name; state_free frees both */
    char (*name)[16], value[SETTINGS][64], *files;
    te_safetensors_pair pairs[SETTINGS + 1]; /* the last: FILES, the paths of the text */
    te_checkpoint all;
} state;

static void name_models(state *s, const gpt *g) {
    memset(s, 0, sizeof *s);
    s->models = (te_named_model *)host_memory((size_t)g->models * sizeof *s->models);
    s->name = (char (*)[16])host_memory((size_t)g->models * sizeof *s->name);
    for (int i = 0; i < g->models; i++) {
        if (i == 0) snprintf(s->name[i], sizeof s->name[i], "embed");
        else if (i + 1 == g->models) snprintf(s->name[i], sizeof s->name[i], "head");
        else snprintf(s->name[i], sizeof s->name[i], "h%d", i - 1);
        s->models[i].name = s->name[i], s->models[i].model = g->all[i];
    }
}
static void state_of(state *s, gpt *g, te_adamw *opt, const options *o, const corpus *c) {
    const char *keys[SETTINGS] = {"size", "batch",  "seq",       "accumulate", "steps",   "seed", "lr",
                                  "text", "recipe", "optimizer", "moments",    "experts", "top_k"};
    const long numbers[SETTINGS] = {0, o->batch * replicas, o->seq, o->accumulate, o->steps, o->seed};
    name_models(s, g);
    for (int i = 0; i < SETTINGS; i++) {
        snprintf(s->value[i], sizeof s->value[i], "%ld", numbers[i]);
        s->pairs[i].key = keys[i], s->pairs[i].value = s->value[i];
    }
    snprintf(s->value[0], sizeof s->value[0], "%s", g->size->name);
    for (int digits = 6; digits <= 9; digits++) { /* as few as tell this float from others */
        snprintf(s->value[6], sizeof s->value[6], "%.*g", digits, o->lr);
        if ((float)strtod(s->value[6], NULL) == (float)o->lr) break;
    }
    snprintf(s->value[7], sizeof s->value[7], "%lld bytes, %016llx", (long long)c->total,
             (unsigned long long)c->fingerprint);
    snprintf(s->value[8], sizeof s->value[8], "%s", o->recipe);
    snprintf(s->value[9], sizeof s->value[9], "%s", o->optimizer);
    snprintf(s->value[10], sizeof s->value[10], "%s", o->moments);
    snprintf(s->value[11], sizeof s->value[11], "%ld", o->experts);
    snprintf(s->value[12], sizeof s->value[12], "%ld", o->top_k);
    s->all.recipes = g->in_fp8 ? &g->recipes : NULL;
    s->all.models = s->models, s->all.count = g->models, s->all.optimizer = opt, s->all.random = 1;
    s->files = paths_text(o), s->pairs[FILES].key = "files", s->pairs[FILES].value = s->files;
    s->all.metadata = s->pairs, s->all.metadata_count = SETTINGS + 1, s->all.force = (int)o->force;
}
static void state_free(state *s) { free(s->models), free(s->name), free(s->files); }
/* If weights are not finite this fails, and the last checkpoint stays. */
static void save(const char *path, gpt *g, te_adamw *opt, const options *o, const corpus *c) {
    state s;
    state_of(&s, g, opt, o, c);
    s.all.force = 0;
    check(te_checkpoint_save(path, &s.all, &ctx), "no checkpoint");
    state_free(&s);
}
/* Report the options that differ between the run that wrote the file and this one. Returns their number. */
static int differences(const state *s, const te_safetensors *file, const char *path) {
    int n = 0;
    for (int i = 0; i < SETTINGS; i++) {
        const char *was = te_safetensors_metadata(file, s->pairs[i].key);
        if (!was || !strcmp(was, s->pairs[i].value)) continue;
        fprintf(stderr, "train_gpt: %s: the run had %s %s, this one has %s\n", path, s->pairs[i].key, was,
                s->pairs[i].value);
        n++;
    }
    return n;
}
static long steps_of(te_adamw *opt) {
    te_adamw_state now;
    check(te_adamw_get(&now, opt, &ctx), "optimizer");
    return (long)(now.step + now.skipped);
}
/* Load the checkpoint. Returns the number of steps that were done before it was saved. */
static long resume(const char *path, gpt *g, te_adamw *opt, const options *o, const corpus *c) {
    state s;
    te_safetensors file;
    state_of(&s, g, opt, o, c);
    check(te_safetensors_open(&file, path, &ctx), "--resume");
    if (!o->force) check(te_safetensors_verify(&file, &ctx), "--resume");
    if (!te_safetensors_metadata(&file, TE_SAFETENSORS_SUM))
        fprintf(stderr, "train_gpt: %s: has no checksum, an older version wrote it: damage would not show\n", path);
    if (differences(&s, &file, path) && !o->force) die("--force continues nevertheless; --init begins a new run from these weights", NULL);
    check(te_checkpoint_load(&s.all, &file, &ctx), "--resume");
    if (g->in_fp8 && !g->recipes.begun)
        fprintf(stderr, "train_gpt: %s: %s; the scales and their amax histories begin anew\n", path,
                te_safetensors_find(&file, "recipes.begun") ? "its FP8 scales are of other products"
                                                            : "it has no FP8 scales");
    const char *written = te_safetensors_metadata(&file, "step"); /* only older versions wrote this */
    const long at = steps_of(opt);
    if (written && strtol(written, NULL, 10) != at && !o->force) die("its two counts of steps differ", path);
    te_safetensors_close(&file);
    state_free(&s);
    return at;
}

/* Load the weights of a checkpoint, and nothing else of it. The optimizer does not exist yet. */
static void load_weights(const char *path, gpt *g, const options *o) {
    state s;
    te_safetensors file;
    int own = 0;
    name_models(&s, g);
    for (int i = 0; i < g->models; i++)
        if (owns(g, i)) s.models[own++] = s.models[i];
    check(te_safetensors_open(&file, path, &ctx), "--init");
    const char *size = te_safetensors_metadata(&file, "size");
    if (size && strcmp(size, o->size)) {
        fprintf(stderr, "train_gpt: --init: %s has a model of --size %s, and this one is of size %s\n", path, size, o->size);
        exit(1);
    }
    if (!o->force) check(te_safetensors_verify(&file, &ctx), "--init");
    for (int i = 0; i < own; i++) { /* one after the other: with --zero 3 blocks share memory for their whole weights */
        te_model *m = s.models[i].model;
        if (m->shards) check(te_fsdp_gather(&g->fsdp, m, &ctx), "--init");
        check(te_weights_load(&s.models[i], 1, &file, &ctx), "--init");
        if (m->shards) check(te_fsdp_keep(&g->fsdp, m, &ctx), "--init");
    }
    if (g->in_fp8) check(te_recipes_cast_weights(&g->recipes, &ctx), "recipe");
    te_safetensors_close(&file);
    state_free(&s);
}

/* A model that has diverged is not saved, even if its weights are still finite. */
static void check_loss(double loss, const char *checkpoint) {
    if (!isfinite(loss)) die("the loss is not a number any more; a lower --lr may help. As it was", checkpoint);
}

/* Without --lr each optimizer has its usual learning rate. Muon's updates are scaled to the size of AdamW's (match_rms),
 * so that one learning rate serves both for the blocks' matrices and for the parameters that AdamW updates. */
static te_adamw_config optimizer_of(const options *o) {
    const te_rule rule = (te_rule)rule_of(o->optimizer);
    const double adamws = !strcmp(o->size, "gpt2") ? 6e-4 : 2e-3;
    const double usual = rule == TE_RULE_sgd ? 0.1 : rule == TE_RULE_muon ? 4 * adamws : adamws;
    const float lr = (float)(o->lr == o->lr ? o->lr : usual);
    te_adamw_config c = rule == TE_RULE_sgd ? te_sgd_defaults(lr, 0.9f)
                        : rule == TE_RULE_muon ? te_muon_defaults(lr) : te_adamw_defaults(lr);
    c.schedule = te_schedule_of(TE_SCHEDULE_cosine, lr, te_min(100, o->steps / 10), te_max(o->steps, 1), 0.1f);
    c.moments = (te_dtype)moments_of(o->moments), c.match_rms = 1, c.seed = (uint64_t)o->seed;
    c.shards = o->zero ? (int)(o->dp * o->cp) : 1;
    c.beta2 = 0.95f, c.weight_decay = rule == TE_RULE_sgd ? 0.0f : 0.1f, c.max_norm = 1.0f, c.skip_nonfinite = 1;
    return c;
}

/* A number that stands for a text. */
static double number_of_text(const char *s) {
    double sum = 0;
    while (*s) sum = fmod(sum * 257 + (unsigned char)*s++, 1e12);
    return sum;
}
/* Ranks with other options than each other would drift apart, or wait for each other for ever. */
static void compare_ranks(const options *o, const text *t) {
    te_setting s[] = {
        {"--size", number_of_text(o->size)}, {"--recipe", number_of_text(o->recipe)}, {"--optimizer", number_of_text(o->optimizer)},
        {"--moments", number_of_text(o->moments)}, {"--sums", number_of_text(o->sums)}, {"--steps", (double)o->steps},
        {"--batch", (double)o->batch}, {"--seq", (double)o->seq}, {"--accumulate", (double)o->accumulate},
        {"--tp", (double)o->tp}, {"--cp", (double)o->cp}, {"--dp", (double)o->dp}, {"--pp", (double)o->pp},
        {"--chunks", (double)o->chunks}, {"--log", (double)o->log}, {"--validate", (double)o->validate},
        {"--sample", (double)o->sample}, {"--save", (double)o->save}, {"--lr", o->lr}, {"--temperature", o->temperature},
        {"--seed", (double)o->seed}, {"--sp", (double)o->sp}, {"--zero", (double)o->zero}, {"--experts", (double)o->experts}, {"--resume", (double)o->resume},
        {"--force", (double)o->force}, {"the text", (double)(fingerprint(t) >> 12)}};
    check(te_group_compare(te_world_group(&ctx), s, (int)(sizeof s / sizeof s[0]), &ctx), "ranks");
}

/* What a step needs besides the network. */
typedef struct trainer {
    const options *o;
    const corpus *text;
    te_buckets *buckets; /* gradients, summed over the replicas bucket by bucket while backward runs; null: afterwards */
    te_batch batch;      /* with the scale of the loss */
} trainer;

/* Run a forward or a backward of a chunk. Returns its output, for the next stage. *sum: gets the loss added; null: not
 * wanted. */
static te_tensor run_pass(gpt *g, const trainer *t, te_pipeline_pass pass, long step, double *sum) {
    const gpt_chunk *chunk = &g->chunk[pass.chunk];
    const int m = pass.micro_batch, n = m % chunk->kept.inputs, reads_text = !chunk->first || chunk->last + 1 == g->models;
    te_batch b = gpt_batch(g, t->batch.batch, t->batch.seq, reads_text ? n : 0);
    b.loss_scale = t->batch.loss_scale, b.loss_count = t->batch.loss_count, b.accumulate = m > 0;
    if (pass.kind == TE_PIPELINE_forward) {
        const uint64_t number = (uint64_t)((step * t->o->accumulate + m) * replicas + replica);
        if (reads_text) take_batch(g, t->text, 0, number, (uint64_t)t->o->seed, n);
        forward_chunk(g, chunk, n, &b, 1);
        if (sum && chunk->last + 1 == g->models) *sum += gpt_loss(g, &b, n);
        return chunk->last + 1 < g->models ? output_of(g, chunk->last, n, &b) : te_none();
    }
    if (t->buckets && m + 1 == t->o->accumulate) check(te_buckets_begin(t->buckets, &ctx), "buckets");
    char *dy = chunk->dy ? chunk->dy + (size_t)(m % chunk->kept.gradients) * g->x_bytes : NULL;
    return backward_chunk(g, chunk, n, dy ? hidden_of(g, dy, &b) : te_none(), &b);
}
/* The tensor that the message for a later pass overwrites. */
static te_tensor input_of(const gpt *g, const te_batch *b, te_pipeline_pass pass) {
    const gpt_chunk *chunk = &g->chunk[pass.chunk];
    const int m = pass.micro_batch;
    if (pass.kind == TE_PIPELINE_forward) return output_of(g, chunk->first - 1, m % chunk->kept.inputs, b);
    return hidden_of(g, chunk->dy + (size_t)(m % chunk->kept.gradients) * g->x_bytes, b);
}
/* Run the forwards and backwards of all micro-batches of a step, and sum the gradients over the ranks. */
static void run_step(gpt *g, const trainer *t, const te_adamw *opt, long step, double *sum) {
    /* [slots] */
    for (int i = 0; i < g->slots; i++) {
        const te_pipeline_slot *s = &g->slot[i];
        te_transfer message[3];
        te_tensor y = te_none();
        int messages = 0;
        if (s->pass.kind != TE_PIPELINE_idle) y = run_pass(g, t, s->pass, step, sum);
        if (s->to >= 0) message[messages++] = te_transfer_to(y, s->to);
        for (int k = 0; k < 2; k++)
            if (s->from[k] >= 0)
                message[messages++] = te_transfer_from(input_of(g, &t->batch, s->receive[k]), s->from[k]);
        if (messages) check(te_group_exchange(te_pipeline_group(&ctx), message, messages, &ctx), "stages");
    }
    /* [slots] */
    if (g->sharded_models) check(te_fsdp_finish(&g->fsdp, &ctx), "shards");
    if (t->buckets) {
        check(te_buckets_finish(t->buckets, &ctx), "buckets");
        return;
    }
    check(te_adamw_reduce(opt, &ctx), "gradients");
    if (te_embedding_group(&ctx)->size == 1) return;
    const te_param *wte = find_param(&g->model[0], "wte"); /* on the first and on the last stage */
    check(te_group_all_reduce(te_embedding_group(&ctx), wte->grad, wte->grad, wte->rows * wte->cols, TE_f32, &ctx), "gradients");
}

/* Set an environment variable that is not set. Returns whether it was set here. */
static inline int set_default(const char *name, const char *value) { return !getenv(name) && !setenv(name, value, 1); }

int main(int argc, char **argv) {
    open_standard_files();
    /* Libraries read these variables when they are loaded, so set them and start this program again. */
    int again = 0;
#if defined(_OPENMP) && !TE_CUDA
    /* Idle threads sleep instead of spin: while other programs run, a thread that spins takes the time in which the
     * thread that it waits for could run. */
    again |= set_default("OMP_WAIT_POLICY", "passive");
#endif
#if defined(TE_CBLAS) && defined(__AVX512F__)
    /* OpenBLAS up to 0.3.21 does not know newer processors and runs its AVX2 kernels on them, at half the speed. */
    again |= set_default("OPENBLAS_CORETYPE", "SkylakeX");
#endif
    if (again) execv("/proc/self/exe", argv);
    options o = parse(argc, argv);
    const gpt_size *size = NULL;
    for (size_t i = 0; i < sizeof gpt_sizes / sizeof gpt_sizes[0]; i++)
        if (!strcmp(o.size, gpt_sizes[i].name)) size = &gpt_sizes[i];
    if (!size) die("unknown size (tiny, small, gpt2)", o.size);
    check_stages(&o, size);
    if (o.tp > 1 && size->ranks != o.tp)
        die("--tp must divide the heads, those of k and v, and the vocabulary of --size", o.size);
    if (o.plan) {
        te_plan_print(stdout, size->lists[ends_in_norms(&o) ? GPT_TP_NORM_LAST : kind_of(&o)].block());
        return 0;
    }
    if (o.seq > size->longest) {
        fprintf(stderr, "train_gpt: --seq %ld: --size %s takes at most %d tokens a sequence\n", o.seq, o.size,
                size->longest);
        return 1;
    }
    const te_adamw_config config = optimizer_of(&o);
    o.lr = config.schedule.peak;

    const text t = read_texts(o.path, o.paths);
    if (!o.resume && mkdir(o.out, 0777) && errno != EEXIST) die(strerror(errno), o.out);
    char checkpoint[4096], tsv[4096], svg[4096];
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint.safetensors", o.out);
    snprintf(tsv, sizeof tsv, "%s/curve.tsv", o.out), snprintf(svg, sizeof svg, "%s/curve.svg", o.out);

    const uint64_t seed = (uint64_t)o.seed;
    gpt g;
    const size_t width = (size_t)size->hidden * te_dtype_bytes(TE_JOIN1(TE_, GPT_DTYPE));
    ranks_of(&o, o.batch * (o.seq / o.cp) * (int64_t)width);
    compare_ranks(&o, &t);
    if (!rank) lock_folder(o.out);
    if (!rank) check(te_checkpoint_probe(checkpoint, &ctx), "--out"); /* fail now, not after hours of training */
    if (o.tune && te_gemm_load(o.tune, &ctx) != TE_OK) {
        printf("%s; timing candidates for the GEMMs\n", te_last_error(&ctx));
        ctx.gemm_tune = 1;
    }
    gpt_make(&g, size, &o, kind_of(&o), ends_in_norms(&o));
    if (o.init) load_weights(o.init, &g, &o);
    const corpus c = corpus_of(&t, (int)o.seq, size->vocabulary);
    te_adamw opt;
    const size_t opt_bytes = te_adamw_bytes_of(g.own, g.own_models, &config);
    check(te_adamw_init(&opt, target_memory(opt_bytes), opt_bytes, g.own, g.own_models, &config, &ctx), "optimizer");
    g.state_bytes += opt_bytes;
    te_loss_scaler scaler; /* f16: the gradients of most weights are below what it represents */
    const int scales_loss = TE_JOIN1(TE_, GPT_DTYPE) == TE_f16;
    if (scales_loss) {
        const te_loss_scale_config with = te_loss_scale_defaults();
        check(te_loss_scaler_init(&scaler, target_memory(te_loss_scaler_bytes()), te_loss_scaler_bytes(), &with, &ctx), "loss scale");
        check(te_adamw_use_loss_scaler(&opt, &scaler, &ctx), "loss scale");
    }
    te_recipes_adamw update; /* the optimizer step and the recipe's step in one */
    if (g.in_fp8) {
        const size_t bytes = te_recipes_adamw_bytes(&g.recipes, &opt);
        check(te_recipes_adamw_init(&update, target_memory(bytes), bytes, &g.recipes, &opt, &ctx), "recipe");
    }

    const gpt_lists *one = &size->lists[o.experts ? GPT_ONE_EXPERTS : GPT_ONE]; /* the unsharded lists, to count the parameters */
    const long parameters = (long)(te_plan_param_elements(one->embed()) + te_plan_param_elements(one->head())) +
                            (long)size->layers * (long)te_plan_param_elements(one->block());
    const int is_small = t.size < 1000000;
    printf("text: %d file%s, %.1f %s; validation on the last twentieth\n", t.files, t.files == 1 ? "" : "s",
           (double)t.size / (is_small ? 1e3 : 1e6), is_small ? "kB" : "MB");
    printf("model: %s, %ld parameters, %s on %s; %ld x %ld tokens, %ld micro-batch%s a step", size->name, parameters,
           te_dtype_name(TE_JOIN1(TE_, GPT_DTYPE)), ctx.target->name, o.batch, o.seq, o.accumulate,
           o.accumulate > 1 ? "es" : "");
    if (o.experts) printf(", %ld experts, %ld a token", o.experts, o.top_k);
    if (replicas > 1) printf(", %d replicas", replicas);
    if (contexts > 1) printf(", %d parts of each sequence", contexts);
    if (tensor > 1) printf(", %d processes a replica%s", tensor, o.sp ? ", which share its tokens" : "");
    if (stages > 1) printf(", %d stages with %ld part%s of the model each", stages, o.chunks, o.chunks > 1 ? "s" : "");
    printf("\n");
    printf("memory of a rank: %.1f MB of weights, gradients and optimizer states, %.1f MB that forward saves\n",
           (double)g.state_bytes / 1e6, (double)g.saved_bytes / 1e6);
    te_buckets buckets;
    te_buckets_config buckets_config = te_buckets_defaults();
    if (!strcmp(o.sums, "bf16")) buckets_config.dtype = TE_bf16;
    buckets_config.shards = config.rule == TE_RULE_muon ? 1 : config.shards; /* Muon reads whole gradients */
    memset(&buckets, 0, sizeof buckets);
    if (stages == 1) /* with --zero 2 and 3 only of the models that are not sharded */
        check(te_buckets_init(&buckets, o.zero >= 2 ? g.resident : g.run, o.zero >= 2 ? g.resident_models : g.models,
                              &buckets_config, &ctx), "buckets");

    curve curve_;
    memset(&curve_, 0, sizeof curve_);
    long step = 0;
    if (o.resume) {
        step = resume(checkpoint, &g, &opt, &o, &c);
        curve_read(&curve_, tsv, step);
        printf("resumed at step %ld\n", step);
    }
    if (!rank) curve_open(&curve_, tsv);
    signal(SIGINT, on_interrupt), signal(SIGTERM, on_interrupt), signal(SIGPIPE, SIG_IGN);
    if (signal(SIGHUP, on_interrupt) == SIG_IGN) signal(SIGHUP, SIG_IGN); /* under nohup SIGHUP stays ignored */

    trainer t_ = {&o, &c, stages == 1 ? &buckets : NULL, gpt_batch(&g, g.batch, g.seq, 0)};
    const double tokens_a_step = (double)(o.batch * o.seq * o.accumulate) * (double)replicas;
    t_.batch.loss_scale = 1.0f / (float)tokens_a_step;
    if (scales_loss) t_.batch.loss_count = te_loss_scaler_inverse(&scaler);
    double began = now(), since = began, loss = NAN;
    double training = 0; /* seconds of the steps since the first report, without validation and checkpoints */
    long counted = step, begun_at = step, trained = 0;
    int stops = processes == 1 && interrupted; /* several ranks stop together, at a report */
    while (step < o.steps && !stops) {
        const int report = (step + 1) % o.log == 0 || step + 1 == o.steps || step == 0;
        double sum = 0;
        run_step(&g, &t_, &opt, step, report ? &sum : NULL);
        check(g.in_fp8 ? te_recipes_adamw_step(&update, &ctx) : te_adamw_step(&opt, &ctx), "optimizer");
        step++;
        if (ctx.gemm_tune) {
            ctx.gemm_tune = 0;
            if (!rank) check(te_gemm_save(o.tune, &ctx), o.tune);
        }
        stops = processes == 1 && interrupted;
        if (!report) continue;
        check(te_comm_synchronize(&ctx), "step");
        loss = loss_over_ranks(sum) / (double)(o.accumulate * replicas * contexts);
        const double t1 = now(), rate = (double)(step - counted) * tokens_a_step / (t1 - since);
        if (counted > begun_at) training += t1 - since, trained += step - counted;
        double validation = NAN;
        if (o.validate && (step % o.validate == 0 || step == o.steps)) validation = validation_loss(&g, &c, 8, seed);
        const double left = (t1 - began) / (double)(step - begun_at) * (double)(o.steps - step);
        printf("step %5ld/%ld  loss %.4f", step, o.steps, loss);
        if (validation == validation) printf("  validation %.4f", validation);
        printf("  %.0f tokens/s  %d:%02d left", rate, (int)(left / 60), (int)left % 60);
        te_adamw_state done;
        check(te_adamw_get(&done, &opt, &ctx), "optimizer");
        if (done.skipped) printf("  %lld steps skipped", (long long)done.skipped);
        printf("\n");
        flush_output();
        check_loss(loss, checkpoint);
        curve_add(&curve_, step, loss, validation);
        if (!rank) curve_line(curve_.tsv, &curve_.p[curve_.count - 1]), curve_flush(&curve_, tsv);
        if (o.save && step % o.save == 0) save(checkpoint, &g, &opt, &o, &c);
        since = now(), counted = step;
        stops = sum_over(te_world_group(&ctx), interrupted) > 0;
    }
    check(te_comm_synchronize(&ctx), "training");
    const int drawn = !rank && curve_draw(&curve_, svg);
    if (step > begun_at) { /* the loss of the last step, reported or not */
        const int last = (int)(o.accumulate - 1) % g.chunk[g.chunks - 1].kept.inputs;
        check_loss(sum_over(te_pipeline_group(&ctx), gpt_loss(&g, &t_.batch, last)), checkpoint);
    }
    save(checkpoint, &g, &opt, &o, &c);
    printf("%s after %ld steps; wrote %s, %s%s%s\n", stops ? "stopped" : "done", step, checkpoint, tsv,
           drawn ? " and " : "", drawn ? svg : "");
    if (trained) printf("%.2f ms a step\n", 1e3 * training / (double)trained);
    if (stops && step < o.steps) printf("./train_gpt --resume --out %s continues from here\n", o.out);
    else if (o.sample && !replica && !shard.rank) {
        printf("\n--- sample ---\n");
        print_sample(&g, o.prompt, (int)o.sample, o.temperature, seed);
    }
    te_buckets_destroy(&buckets);
    te_fsdp_destroy(&g.fsdp);
#ifdef TE_COMM
    if (processes > 1) check(te_comm_release(&comm, g.saved_memory, &ctx), "memory");
    te_comm_destroy(&comm); /* does nothing if there is one process */
#endif
    if (stops && step < o.steps) return 130;
    te_context_destroy(&ctx);
    return 0;
}
