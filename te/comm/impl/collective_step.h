/* collective_step.h -- how a collective op runs: by itself, or together with the GEMM of the linear before it.
 * te/linear/impl/linear_comm_overlap.h decides which linears defer their GEMM to the next step. With N ranks:
 *
 *   GEMM + reduce_scatter   In forward, and in backward where the adjoint of an all_gather follows the linear's dgrad.
 *                           The epilogue stores a tile whose rows belong to another rank into a slot in that rank's
 *                           memory (te/gemm/impl/gemm_sm90_epilogue_scatter.h). Each rank then sums its own
 *                           rows over the N ranks, in the epilogue or in a second kernel, te_reduce_scatter_add, which
 *                           reads N partial sums of these rows, one from each rank, and writes the rows once.
 *   GEMM + all_reduce       For patterns of fused_collective_norm.h: the epilogue stores its tiles, and also sends them
 *                           as packets into slots on the other ranks, where the fused kernel receives them. The GEMM
 *                           itself waits for no other rank. While the GEMM reads its weight, it sends its output to
 *                           each other rank: 2 * m * n bytes if the all-reduce is one-shot.
 *
 * GEMM + reduce_scatter and GEMM + all_reduce support 16-bit operands. GEMM + reduce_scatter also supports FP8 operands
 * with tensorwise scales, and then uses fast accumulation (te_gemm.fast). With other operands the GEMM and the group's
 * collective run one after the other. Measurements: docs/notes/comm.md.
 */
#ifndef TE_COMM_COLLECTIVE_STEP_H
#define TE_COMM_COLLECTIVE_STEP_H

#include "../../linear/impl/linear_comm_overlap.h" /* te__defers_product, te__linear_gemm */
#include "../../plan/impl/call_checks.h"        /* te_run, te__output, te__gradient */
#include "symmetric_memory.h"        /* te__peers_check, te_peer_args */

/* ---- GEMM + reduce_scatter --------------------------------------------------------------------------------------- */

#if TE_HAS_COMM_OVERLAP
template <te_dtype T>
TE_FN void te_gemm_reduce_scatter_epilogue(const void *arg, const uint32_t w[4], const uint32_t *prefetched, int row,
                                           int col, te_epilogue_state *lane) {
    te__gemm_scatter_epilogue((const te__gemm_scatter_params *)arg, w, prefetched, row, col, T);
    (void)lane;
}

/* The arguments of te_reduce_scatter_add, which runs after the GEMM if the GEMM's epilogue does not add up the slots.
 * The kernel adds up the slots in this rank's memory: the partial sums of all ranks for the rows of this rank. */
typedef struct te_reduce_scatter_add_args {
    void *y;                   /* [count]: receives the sum over the ranks; count is a multiple of eight */
    const char *slots;         /* [ranks, count]: row r is rank r's partial sum for the rows of this rank */
    uint32_t *flags[TE_MAX_RANKS]; /* [r]: the flags in the memory of rank r */
    int64_t count;
    int rank, ranks;
    te__peer_timeout waits;
} te_reduce_scatter_add_args;

enum { TE_REDUCE_SCATTER_THREADS = 512, TE_REDUCE_SCATTER_BLOCKS_PER_SM = 2 };
/* Signals to all other ranks that this rank's GEMM is complete, and waits until the GEMMs of all other ranks are
 * complete, because only then are all slots filled. */
TE_FN void te__reduce_scatter_barrier(const te_reduce_scatter_add_args *a) {
    uint32_t *const local = a->flags[a->rank];
    const int id = (int)threadIdx.x;
    if (id < a->ranks && id != a->rank) {
        const uint32_t epoch = local[TE_FLAG_EPOCH];
        if (blockIdx.x == 0) te__flag_signal(a->flags[id] + TE_FLAG_SENT + a->rank, epoch);
        te__flag_wait(local + TE_FLAG_SENT + id, epoch, id, &a->waits);
    }
    __syncthreads();
}
/* Adds up the slots in f32, in the order of the ranks, and rounds once at the end. The GEMM's epilogue
 * (te__gemm_scatter_sum) adds in the same way, so the results are bitwise identical. */
TE_FN void te__reduce_scatter_add(const te_reduce_scatter_add_args *a, const te_dtype dtype) {
    const int64_t stride = 8 * (int64_t)gridDim.x * TE_REDUCE_SCATTER_THREADS;
    te__reduce_scatter_barrier(a);
    for (int64_t i = 8 * ((int64_t)blockIdx.x * TE_REDUCE_SCATTER_THREADS + threadIdx.x); i < a->count; i += stride) {
        te_packet one[TE_GEMM_SCATTER_PREFETCHED + 1], more;
        float sum[8];
        TE_UNROLL for (int q = 0; q <= TE_GEMM_SCATTER_PREFETCHED; q++)
            if (q < a->ranks) te__load16_coherent(one[q].w, a->slots + (q * a->count + i) * 2);
        TE_UNROLL for (int q = 0; q <= TE_GEMM_SCATTER_PREFETCHED; q++)
            if (q < a->ranks) te_packet_add(sum, &one[q], dtype, q > 0);
        TE_UNROLL_1 for (int q = TE_GEMM_SCATTER_PREFETCHED + 1; q < a->ranks; q++) {
            te__load16_coherent(more.w, a->slots + (q * a->count + i) * 2);
            te_packet_add(sum, &more, dtype, 1);
        }
        te_packet_of_floats(&more, sum, dtype);
        *(uint4 *)((char *)a->y + i * 2) = make_uint4(more.w[0], more.w[1], more.w[2], more.w[3]);
    }
}
template <te_dtype T>
TE_UNUSED static __global__ void __launch_bounds__(TE_REDUCE_SCATTER_THREADS, TE_REDUCE_SCATTER_BLOCKS_PER_SM)
te_reduce_scatter_add(const __grid_constant__ te_reduce_scatter_add_args a) {
    te_kernel_begin();
    te__reduce_scatter_add(&a, T);
}
TE_KERNEL_IF(T != TE_f32, (te_dtype T), te_reduce_scatter_add, (T), te_reduce_scatter_add_args)

/* The kernels of a step that runs a GEMM together with a reduce_scatter. persistent: the GEMM kernel for 16-bit
 * operands; fp8: the GEMM kernel for FP8 operands; add: the kernel that adds up all ranks' partial sums of this rank's
 * rows, which lie in this rank's memory, one slot for each sender. */
typedef struct te_gemm_reduce_scatter_kernels {
    te_sm90_kernel persistent, fp8;
    const void *add;
} te_gemm_reduce_scatter_kernels;
template <te_dtype T, te_dtype A, te_dtype B, int TRANS_B>
TE_SM90_GEMM_KERNEL_SCATTER(te_gemm_reduce_scatter, T, A, B, TRANS_B, te_gemm_reduce_scatter_epilogue<T>, 1)
TE_KERNEL_IF(EXISTS, (te_dtype T, te_dtype A, te_dtype B, int TRANS_B, int EXISTS), te_gemm_reduce_scatter,
             (T, A, B, TRANS_B), te__gemm_scatter_params)
/* Returns the kernels for the op list's dtype T. A: the FP8 format of the GEMM's first operand (x in forward, dy in
 * backward), or T if the model's recipe has no tensorwise FP8 scales. Forward passes the weight as [n, k] (TRANS_B 1),
 * backward as [k, n]; in FP8, backward passes a copy of the weight that is transposed to [n, k]. */
template <te_dtype T, te_dtype A, int FORWARD>
TE_API te_gemm_reduce_scatter_kernels *te__gemm_reduce_scatter_kernels_of(void) {
    constexpr te_dtype B = A == T ? T : TE_e4m3;
    constexpr int half = T != TE_f32, fp8 = half && A != T;
    static te_gemm_reduce_scatter_kernels kernels = {
        {(const void *)te_gemm_reduce_scatter_if<T, T, T, FORWARD, half>(), 0, 0},
        {(const void *)te_gemm_reduce_scatter_if<T, A, B, 1, fp8>(), 0, 0},
        (const void *)te_reduce_scatter_add_if<T>()};
    return &kernels;
}
#define TE_GEMM_REDUCE_SCATTER_KERNELS(model, dtype, forward)                                          \
    te__gemm_reduce_scatter_kernels_of<TE_##dtype, (te_dtype)(!TE_IS_TENSORWISE(model##_recipe)          \
                                                                 ? (int)TE_##dtype                     \
                                                             : (forward) ? (int)TE_e4m3                \
                                                                         : (int)model##_gradients),    \
                                      forward>()

/* Returns whether the slots, into which the ranks store their partial sums, are large enough for the output of the
 * GEMM, and whether there are enough flags for its tiles. */
TE_API int te__gemm_reduce_scatter_fits(const te_gemm *g, const te__overlap_memory *m) {
    const int64_t tiles = g->m / m->ranks / TE_TILE_M * te_ceil_div(g->n, TE_TILE_N);
    return (size_t)(g->m * g->n) * 2 <= m->capacity && tiles * TE_SCATTER_FLAGS_PER_TILE <= TE_SCATTER_MAX_FLAGS;
}
/* Returns 1 if a second kernel adds up the slots, 0 if the GEMM's epilogue does. The second kernel is needed in two
 * cases. If k is short, adding up in the epilogue would take longer than the mainloop of a tile. And if te_buckets
 * reduces gradients during this backward, a GEMM that waits for other ranks could deadlock with these reductions, which
 * occupy multiprocessors at the same time (te/gemm/impl/gemm_comm_overlap.h). */
TE_API int te__reduce_scatter_is_separate(const te_gemm *g, const te_run *r) {
    return r->watch || g->k * (int64_t)te_dtype_bytes(te__gemm_a_dtype(g)) <= r->tensor->memory->two_kernel_bytes;
}
/* Computes y[m / ranks, n], this rank's rows, as the sum of the slots in this rank's memory, one slot for each rank. */
TE_API te_status te__reduce_scatter_add_run(const void *kernel, void *y, const te_gemm *g, const te__overlap_memory *m,
                                            te_context *ctx) {
    te_reduce_scatter_add_args a;
    memset(&a, 0, sizeof a);
    a.y = y, a.slots = te__overlap_workspace(m, m->rank), a.count = g->m / m->ranks * g->n;
    a.rank = m->rank, a.ranks = m->ranks, a.waits = te__peer_timeout_of(m);
    for (int r = 0; r < m->ranks; r++) a.flags[r] = te__rank_flags(m, r);
    const int64_t blocks = te_min(TE_REDUCE_SCATTER_BLOCKS_PER_SM * ctx->processors,
                                  te_ceil_div(a.count, 8 * TE_REDUCE_SCATTER_THREADS));
    const te_launch launch = te__launch_of(kernel, "te_reduce_scatter_add", te__grid_of(blocks, 1),
                                           TE_REDUCE_SCATTER_THREADS, 0, 1);
    return te__cuda_launch(ctx, launch, &a, sizeof a);
}
/* Runs the GEMM, adds up its outputs [m, n] over the ranks, and stores this rank's rows of the sum to y[m / ranks,
 * n]. */
TE_API te_status te__gemm_reduce_scatter_run(te_gemm_reduce_scatter_kernels *kernels, void *y, const te_gemm *of,
                                             const te_run *r) {
    te__overlap_memory *m = r->tensor->memory;
    const int64_t local = m->rank * (of->m / m->ranks * of->n * 2);
    te_sm90_kernel *kernel = te__gemm_is_fp8(of) ? &kernels->fp8 : &kernels->persistent;
    te_gemm g = *of;
    te__gemm_overlap ranks;
    te__gemm_scatter_params a;
    memset(&a, 0, sizeof a);
    memset(&ranks, 0, sizeof ranks);
    ranks.group = r->tensor, ranks.memory = m, g.ranks = &ranks;
    ranks.interleave = te__reduce_scatter_is_separate(of, r);
    a.y = y, a.ranks = m->ranks, a.two_kernels = ranks.interleave, a.slots = te__overlap_workspace(m, m->rank);
    a.flags = te__rank_flags(m, m->rank) + TE_FLAG_TILE;
    a.epoch = te__rank_flags(m, m->rank) + TE_FLAG_EPOCH;
    for (int k = 0; k < m->ranks; k++)
        a.to[k] = te__overlap_workspace(m, k) + local,
        a.peer_flags[k] = te__rank_flags(m, k) + TE_FLAG_TILE + m->rank * TE_SCATTER_MAX_FLAGS;
    TE_TRY(te__handshake_run(m, r->ctx));
    m->scattered++;
    TE_TRY(te__sm90_gemm_run(kernel->kernel, &a, sizeof a, &a.gemm, &g, r->ctx));
    return a.two_kernels ? te__reduce_scatter_add_run(kernels->add, y, of, m, r->ctx) : TE_OK;
}
/* Runs the GEMM that the previous step has deferred. Sets *is_summed to 1 if the GEMM has run together with the
 * reduce_scatter, whose result is then in y. Sets *is_summed to 0 if the GEMM has run alone; the GEMM's output is then
 * the current value of the pass (te_run.current), and the caller must still run the reduce_scatter. */
TE_API te_status te__deferred_gemm_reduce_scatter(int *is_summed, te_run *r, te_value y,
                                                  te_gemm_reduce_scatter_kernels *kernels) {
    const te_group *group = r->tensor;
    te__overlap_memory *m = group->memory;
    te_gemm g = r->deferred.product;
    te_sm90_kernel *kernel = te__gemm_is_fp8(&g) ? &kernels->fp8 : &kernels->persistent;
    /* `order` is used only if m->serial is set, which only tests do: the same GEMM kernel then runs without the
     * collective, but computes its tiles in the same order as with the collective, so that the tests can compare the
     * results */
    te__gemm_overlap order;
    g.fast |= te__gemm_is_fp8(&g); /* the kernels of this file always use fast accumulation for FP8 operands */
    const int can_overlap = te__gemm_kernel_overlaps(kernel, &g, group, r->ctx) &&
                            te__gemm_reduce_scatter_fits(&g, m) && (uintptr_t)y.data % TE_ACCESS == 0;
    if (!can_overlap) g = r->deferred.product;
    *is_summed = can_overlap && !m->serial;
    te__finish_deferred(r);
    if (*is_summed && !r->dry) TE_TRY(te__peers_check(group, r->ctx));
    if (*is_summed) return r->dry ? TE_OK : te__gemm_reduce_scatter_run(kernels, y.data, &g, r);
    memset(&order, 0, sizeof order);
    order.group = group, order.memory = m;
    order.interleave = can_overlap && te__reduce_scatter_is_separate(&g, r);
    if (can_overlap) g.ranks = &order;
    return te__linear_gemm(r, &g, TE_ROWS_OF_m, r->deferred.kernels);
}

/* ---- GEMM + all_reduce ------------------------------------------------------------------------------------------- */

typedef struct te_gemm_all_reduce_args {
    /* The arguments of the GEMM kernel that runs: persistent or skinny. small_m is a member only because
     * te__gemm_run_custom takes the address of such a member; te_gemm_all_reduce_kernels has no such kernel. */
    union { te__sm90_gemm_params persistent; te_skinny skinny; te_small_m small_m; };
    void *d;
    int n;
    te_peer_args peers;
} te_gemm_all_reduce_args;

/* Stores eight elements of the GEMM's output to d, and sends the elements as a packet to the rank or ranks that sum
 * this row. The fused kernel that runs after this GEMM (te_fused_collective_body) receives the packets, so the GEMM
 * uses the fused kernel's slots and epoch, and the fused kernel advances the epoch. The GEMM need not wait for other
 * ranks: it sends into that half of each receiver's buffer that the previous collective did not use, and this half is
 * empty as soon as that collective has ended on the sending rank (symmetric_memory.h). */
template <te_dtype T>
TE_FN void te_gemm_all_reduce_epilogue(const void *arg, const uint32_t w[4], const uint32_t *prefetched, int row,
                                       int col, te_epilogue_state *lane) {
    const te_gemm_all_reduce_args *p = (const te_gemm_all_reduce_args *)arg;
    const te_peer_args *a = &p->peers;
    const uint32_t epoch = __ldg(a->state->epoch);
    const int64_t at = ((int64_t)row * p->n + col) * 2;
    const int two_shot = a->algorithm == TE_PEER_two_shot;
    const int owner = row % a->ranks; /* in two-shot: the rank that sums this row, the same as in
                                       * te__fused_row_place_of */
    const int packet = (int)((two_shot ? ((int64_t)(row / a->ranks) * p->n + col) * 2 : at) / TE_PACKET_BYTES);
    te_packet v;
    TE_UNROLL for (int i = 0; i < 4; i++) v.w[i] = w[i];
    te_packet_escape(&v);
    for (int i = 1; i < a->ranks; i++) {
        const int to = te__peer_next(a, i);
        if (two_shot && to != owner) continue;
        te_packet_send(te__peer_slot(a->buffer[to], a, epoch, a->rank, (int)(a->bytes / TE_PACKET_BYTES), packet), &v);
    }
    te_packet_store(p->d, at, &v, TE_PACKET_BYTES, 1);
    (void)prefetched, (void)lane;
}
template <te_dtype T>
TE_SM90_GEMM_KERNEL(te_gemm_all_reduce_persistent, te_gemm_all_reduce_args, T, 1, te_gemm_all_reduce_epilogue<T>, 1)
template <te_dtype T>
TE_SKINNY_KERNEL(te_gemm_all_reduce_skinny, te_gemm_all_reduce_args, TE_OPERANDS_16BIT, T,
                 te_gemm_all_reduce_epilogue<T>, nullptr, 0, 1)
TE_KERNEL_IF(T != TE_f32, (te_dtype T), te_gemm_all_reduce_persistent, (T), te_gemm_all_reduce_args)
TE_KERNEL_IF(T != TE_f32, (te_dtype T), te_gemm_all_reduce_skinny, (T), te_gemm_all_reduce_args)
template <te_dtype T> TE_API te_product_kernels *te_gemm_all_reduce_kernels(void) {
    static te_product_kernels kernels = {{(const void *)te_gemm_all_reduce_persistent_if<T>(), 0, 0},
                                         {(const void *)te_gemm_all_reduce_skinny_if<T>(), 0, 0},
                                         {0, 0, 0},
                                         {0, 0, 0},
                                         TE_OPERANDS_16BIT};
    return &kernels;
}
#define TE_GEMM_ALL_REDUCE_KERNELS(dtype) te_gemm_all_reduce_kernels<TE_##dtype>()

TE_API te_status te__gemm_all_reduce_run(te_product_kernels *kernels, const te_gemm *g, const te_group *group,
                                         te_dtype dtype, te_context *ctx) {
    te_gemm_all_reduce_args a;
    memset(&a, 0, sizeof a);
    TE_TRY(te__peers_check(group, ctx));
    a.d = g->d, a.n = (int)g->n;
    const int two_shot = g->m * g->n * 2 > group->peers->one_shot_bytes;
    a.peers = te__peer_args_of_rows(group, g->m, g->n * 2, two_shot, dtype);
    group->peers->gemms++;
    return te__gemm_run_custom(kernels, &a, sizeof a, &a.skinny, &a.small_m, &a.persistent, g, ctx);
}
#else
typedef struct te_gemm_reduce_scatter_kernels te_gemm_reduce_scatter_kernels;
#define TE_GEMM_REDUCE_SCATTER_KERNELS(model, dtype, forward) 0
#define TE_GEMM_ALL_REDUCE_KERNELS(dtype) 0
TE_API te_status te__deferred_gemm_reduce_scatter(int *is_summed, te_run *r, te_value y,
                                                  te_gemm_reduce_scatter_kernels *kernels) {
    return (void)r, (void)y, (void)kernels, *is_summed = 0, TE_OK;
}
TE_API te_status te__gemm_all_reduce_run(te_product_kernels *kernels, const te_gemm *g, const te_group *group,
                                         te_dtype dtype, te_context *ctx) {
    return (void)kernels, (void)g, (void)group, (void)dtype, (void)ctx, TE_OK;
}
#endif

/* Runs the GEMM that the previous step has deferred, if there is one. The GEMM's output becomes the current value of
 * the pass (te_run.current). Sets *is_sent to whether the GEMM's epilogue has sent the output as packets. The epilogue
 * sends the output if may_send is set and one of the library's GEMM kernels supports the shapes. */
TE_API te_status te__deferred_gemm_all_reduce(int *is_sent, te_run *r, te_product_kernels *kernels, int may_send) {
    const te_gemm g = r->deferred.product;
    te_gemm plain = g;
    *is_sent = 0;
    if (r->current.state != TE_VALUE_deferred_product) return TE_OK;
    te__finish_deferred(r);
    *is_sent = may_send && (uintptr_t)g.d % TE_PACKET_BYTES == 0 && te_gemm_is_custom(kernels, &g, r->ctx);
    if (!*is_sent) return te__linear_gemm(r, &plain, TE_ROWS_OF_m, r->deferred.kernels);
    return r->dry ? TE_OK : te__gemm_all_reduce_run(kernels, &g, r->tensor, r->plan->dtype, r->ctx);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

typedef te_status (*te_collective_fn)(const te_group *g, void *y, const void *x, int64_t count, te_dtype dtype,
                                      te_context *ctx);
/* Returns an error if the context has no communicator. A dry run that only computes sizes (r->batch is null) needs no
 * communicator. */
TE_API te_status te__collective_check(te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    TE_REQUIRE(!r->batch || r->ctx->comm, r->ctx, TE_ERROR_STATE,
               "%s: (%s, %s) needs the ranks of a group; te_comm_create makes them", r->plan->name, op->kind, op->name);
    return TE_OK;
}
/* Prepares an all_gather whose output, in FP8, is the input of op i, a linear. x: this rank's rows, which this function
 * casts to FP8 unless the previous kernel has already stored them in FP8. y: memory for the rows of all ranks. In
 * forward, if backward reads the linear's saved input, y->data becomes the memory for that input. */
TE_API te_status te__all_gather_fp8(te_value *x, te_value *y, te_run *r, int i) {
    const te_fp8_product *f = &r->param[i]->fp8;
    const int backward = r->pass == TE_BACKWARD;
    const te_value rows = *x;
    te_saved_input saved = te__saved_input_of(r, i);
    if (backward) saved.x = 0, saved.inverse = 0;
    y->dtype = backward ? r->plan->fp8->gradients : TE_e4m3;
    if (saved.x) *y = te__value_of(saved.x, y->dtype, y->rows, (int)y->cols);
    if (te_is_fp8(rows.dtype)) return TE_OK;
    TE_TRY(te__acquire(r, x, TE_ROWS_shard, (int)rows.cols, y->dtype));
    return r->plan->fp8->cast(r, rows, f, backward ? f->dy : f->x, y->dtype, x->data, 0, saved.inverse);
}
/* Applies the collective `call` to the current value of the pass (te_run.current). The result is stored in y, which
 * becomes the current value. An all_gather may be deferred instead, to overlap the GEMM of the next step. */
TE_API te_status te__collective_apply(te_run *r, const te_step *s, te_value y, te_collective_fn call) {
    const int gathers = call == te_group_all_gather, fp8_linear = gathers ? te__gather_consumer(r, s) : -1;
    te_value x = r->current;
    if (fp8_linear >= 0 && y.data) TE_TRY(te__all_gather_fp8(&x, &y, r, fp8_linear));
    if (gathers && te__defers_gather(r, s)) {
        if (!r->dry) TE_TRY(te__peers_check(r->tensor, r->ctx));
        te__defer(r, &y, TE_VALUE_deferred_gather, x);
    } else if (y.data && x.data && !r->dry) {
        /* the number of rows of one rank. In an all_gather this is the number of rows of x, because y has the rows of
         * all ranks */
        const int64_t rank_rows = te_min(x.rows, y.rows);
        TE_TRY(call(r->tensor, y.data, x.data, rank_rows * y.cols, y.dtype, r->ctx));
    }
    te__set_current(r, y);
    return TE_OK;
}
/* Runs a collective op other than reduce_scatter. call: the collective; null if the op is the identity in this pass. */
TE_API te_status te__collective_run(te_run *r, const te_step *s, te_collective_fn call) {
    const int i = s->op[0], backward = r->pass == TE_BACKWARD;
    te_value y;
    TE_TRY(te__collective_check(r, i));
    if (!call) return TE_OK;
    TE_TRY(backward ? te__gradient(&y, r, s, i) : te__output(&y, r, s, i));
    return te__collective_apply(r, s, y, call);
}
/* Runs a reduce_scatter op. kernels: the kernels that can run a deferred GEMM together with the reduce_scatter, or null
 * if there are none. */
TE_API te_status te__reduce_scatter_run(te_run *r, const te_step *s, te_gemm_reduce_scatter_kernels *kernels) {
    const int i = s->op[0], backward = r->pass == TE_BACKWARD;
    const te_value x = r->current;
    te_value y;
    int is_summed = 0;
    TE_TRY(te__collective_check(r, i));
    TE_TRY(backward ? te__gradient(&y, r, s, i) : te__output(&y, r, s, i));
    if (r->current.state == TE_VALUE_deferred_product)
        TE_TRY(te__deferred_gemm_reduce_scatter(&is_summed, r, y, kernels));
    if (!is_summed && y.data && x.data && !r->dry)
        TE_TRY(te_group_reduce_scatter(r->tensor, y.data, x.data, te_min(x.rows, y.rows) * y.cols, y.dtype, r->ctx));
    te__set_current(r, y);
    return TE_OK;
}

#endif
