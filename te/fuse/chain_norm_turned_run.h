/* chain_norm_turned_run.h -- which chains have the kernel of chain_norm_turned.h, where it runs, and its launch. */
#ifndef TE_FUSE_CHAIN_NORM_TURNED_RUN_H
#define TE_FUSE_CHAIN_NORM_TURNED_RUN_H

#include "../plan/run_state.h" /* te_run */
#include "chain_norm_turned.h" /* te_turned_kind, te_chain_norm_turned_body */

#if TE_CUDA
/* A kernel, and for each device one more than how many clusters of it that runs at once; 0: not asked yet. */
typedef struct te_turned_kernel {
    const void *kernel; /* null: there is none */
    te_turned_kind kind;
    int clusters[64];
} te_turned_kernel;

TE_API int te__turned_ask(const te_turned_kernel *n) {
    struct cudaFuncAttributes is;
    cudaLaunchAttribute cluster = {};
    cudaLaunchConfig_t launch = {};
    te_hopper_kernel h = {n->kernel, 0, 0};
    int clusters = 0;
    cluster.id = cudaLaunchAttributeClusterDimension, cluster.val.clusterDim.x = (unsigned)n->kind.cluster;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    launch.gridDim = dim3((unsigned)n->kind.cluster), launch.blockDim = dim3((unsigned)n->kind.threads);
    launch.dynamicSmemBytes = (size_t)n->kind.shared, launch.attrs = &cluster, launch.numAttrs = 1;
    if (te__hopper_compiled(&h, &is) &&
        cudaFuncSetAttribute(n->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, n->kind.shared) == cudaSuccess &&
        cudaFuncSetAttribute(n->kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) == cudaSuccess &&
        cudaOccupancyMaxActiveClusters(&clusters, n->kernel, &launch) == cudaSuccess)
        return clusters;
    (void)cudaGetLastError();
    return 0;
}
/* How many clusters of it the device runs at once; 0: none, so that the kernel for rows does its work. */
TE_API int te__turned_clusters(te_turned_kernel *n, const te_context *ctx) {
    if (!n || !n->kernel || !ctx || ctx->capability != 900) return 0;
    int *const known = &n->clusters[ctx->device & 63];
    int clusters = __atomic_load_n(known, __ATOMIC_ACQUIRE) - 1;
    if (clusters >= 0) return clusters;
    clusters = te__turned_ask(n);
    __atomic_store_n(known, clusters + 1, __ATOMIC_RELEASE);
    return clusters;
}
TE_API te_status te__turned_launch(te_turned_kernel *n, const te_chain *c, te_context *ctx) {
    const int64_t clusters = te_min(te__turned_clusters(n, ctx), te_ceil_div(c->rows, TE_TURNED_ROWS));
    if (!clusters) return TE_OK; /* no rows */
    return te__cuda_launch(ctx, n->kernel, te_grid_of(clusters * n->kind.cluster, 1), n->kind.threads, n->kind.shared,
                           n->kind.cluster, c, sizeof *c, "a norm, as it lies and transposed");
}

/* Of a forward chain with a norm: the kernel exists where the list keeps inputs, the scale of the product behind it is
 * of its tensor and known before, and what TMA brings is x and one tensor at most, both in the list's 16 bits. */
#define TE__NORM_TURNED_forward(name, model, dtype)                                                                  \
    enum {                                                                                                           \
        name##_turned_edges = (int)name##_readers & ((1 << name##_norm) - 1),                                        \
        name##_turned_reads = name##_turned_edges != 0 ? 2 : 1,                                                      \
        name##_turned_exists = te__turned_kind(name##_half, name##_turned_reads).exists &&                           \
                               (int)model##_keeps_inputs && name##_leaves() == TE_LEAVES_fp8 &&                      \
                               (name##_turned_edges & (name##_turned_edges - 1)) == 0 &&                             \
                               (int)name##_in_halves + (int)name##_out_halves == 2 &&                                \
                               (int)TE_##dtype != (int)TE_f32 && (int)name##_in_dtype == (int)TE_##dtype &&          \
                               (int)name##_norm_in == (int)TE_##dtype                                                \
    };                                                                                                               \
    template <int EXISTS>                                                                                            \
    TE_UNUSED static __global__ void __launch_bounds__(te__turned_kind(name##_half, name##_turned_reads).threads,    \
                                                       te__turned_kind(name##_half, name##_turned_reads).resident)   \
        name##_norm_turned(const __grid_constant__ te_chain c) {                                                     \
        extern __shared__ __align__(128) char te_turned_ring_[];                                                     \
        __shared__ te_turned_barriers bars;                                                                          \
        if (EXISTS)                                                                                                  \
            te_chain_norm_turned_body(&c, name##_stages, name##_shape(0),                                            \
                                      te__turned_kind(name##_half, name##_turned_reads), te_turned_ring_, &bars);    \
    }                                                                                                                \
    TE_KERNEL_IF(EXISTS, (int EXISTS), name##_norm_turned, (EXISTS), te_chain)                                       \
    TE_API te_turned_kernel *name##_turned(void) {                                                                   \
        static te_turned_kernel kernel = {(const void *)name##_norm_turned_if<name##_turned_exists>(),               \
                                          te__turned_kind(name##_half, name##_turned_reads), {0}};                   \
        return &kernel;                                                                                              \
    }

#else
#define TE__NORM_TURNED_forward TE__NOT_TURNED
typedef struct te_turned_kernel te_turned_kernel;
TE_API int te__turned_clusters(te_turned_kernel *n, const te_context *ctx) { return (void)n, (void)ctx, 0; }
TE_API te_status te__turned_launch(te_turned_kernel *n, const te_chain *c, te_context *ctx) {
    return (void)n, (void)c, te_fail(ctx, TE_ERROR_STATE, "no kernel for a norm as it lies and transposed");
}
#endif
#define TE__NORM_TURNED_backward TE__NOT_TURNED
#define TE__NOT_TURNED(name, model, dtype) \
    TE_API te_turned_kernel *name##_turned(void) { return 0; }

/* The shape of a chain and how many clusters of that kernel run; of a chain that has none. */
TE_API te_chain_shape te__shape_and_clusters(te_chain_shape k, te_turned_kernel *n, const te_run *r) {
    k.clusters = te__turned_clusters(n, r->ctx);
    return k;
}
#define TE__SHAPE_ALONE(name) \
    TE_API te_chain_shape name##_shape_on(const te_run *r, int half) { return (void)r, name##_shape(half); }

#endif
