/* graph_pool.h -- one block of memory that several graphs share. It holds their static inputs and outputs, and the
 * te_saved of their forward passes. Included by graph.h.
 *
 * Do this:
 *     TE_TRY(te_graph_pool_init(&pool, 0, 0, &ctx));             // measure: go through the schedule once,
 *     ... te_graph_capture(&g, &spec, &pool, &ctx), te_graph_pool_acquire, te_graph_pool_release, te_graph_retire ...
 *     TE_TRY(te_allocate(&ctx, &memory, bytes = pool.high));     // destroy those graphs, allocate,
 *     TE_TRY(te_graph_pool_init(&pool, memory, bytes, &ctx));    // and go through it again
 *     saved.bytes = block_saved_bytes(rows);
 *     TE_TRY(te_graph_pool_acquire(&pool, &saved.memory, saved.bytes, "saved of micro-batch 1", &ctx));
 */
#ifndef TE_GRAPH_POOL_H
#define TE_GRAPH_POOL_H

#include "../core/context.h" /* te_context, te_status */

enum { TE_GRAPH_BLOCKS = 1024 }; /* the limit of pieces in use at one time; 16 micro-batches of 8 blocks need about
                                  * 700 */

/* A first-fit allocator. It may not be copied or moved, and must outlive its graphs. */
typedef struct te_graph_pool {
    uintptr_t base;
    size_t bytes, used, high; /* bytes: size; used: in use now; high: the highest end of a piece so far */
    int measures;             /* 1: the pool has no memory and only computes `high` */
    int count, next_id;
    struct { size_t at, bytes; int id; } block[TE_GRAPH_BLOCKS]; /* [count], sorted by address */
} te_graph_pool;

/* memory: target memory of `bytes` bytes, aligned to TE_ALIGN. The caller owns it, and must free it only after the
 * graphs are destroyed. If null, the pool only measures. Errors: TE_ERROR_NULL, TE_ERROR_ALIGNMENT. */
TE_API te_status te_graph_pool_init(te_graph_pool *p, void *memory, size_t bytes, te_context *ctx) {
    TE_REQUIRE(p, ctx, TE_ERROR_NULL, "graph pool: the struct is null");
    TE_REQUIRE((uintptr_t)memory % TE_ALIGN == 0, ctx, TE_ERROR_ALIGNMENT,
               "graph pool: memory must be aligned to %d bytes", (int)TE_ALIGN);
    memset(p, 0, sizeof *p);
    p->measures = !memory, p->base = memory ? (uintptr_t)memory : (uintptr_t)TE_ALIGN,
    p->bytes = memory ? bytes : SIZE_MAX / 4;
    return TE_OK;
}

/* Allocate a piece. who, what: two parts of the error text, which say what the piece is for. */
TE_API te_status te__graph_pool_allocate(te_graph_pool *p, void **memory, int *id, size_t bytes, const char *who,
                                         const char *what, te_context *ctx) {
    const size_t need = bytes > SIZE_MAX / 4 ? bytes : (bytes / TE_ALIGN + (bytes % TE_ALIGN != 0)) * TE_ALIGN;
    size_t at = 0, gap, largest = 0;
    int i = 0;
    for (;; at = p->block[i].at + p->block[i].bytes, i++) {
        gap = (i < p->count ? p->block[i].at : p->bytes) - at;
        if (gap > largest) largest = gap;
        if (gap >= need || i == p->count) break;
    }
    TE_REQUIRE(gap >= need, ctx, TE_ERROR_MEMORY,
               "graph pool: %s%s needs %zu bytes; of %zu bytes %zu are available, at most %zu in one piece", who, what,
               need, p->bytes, p->bytes - p->used, largest);
    TE_REQUIRE(p->count < TE_GRAPH_BLOCKS, ctx, TE_ERROR_MEMORY, "graph pool: %s%s would be piece %d, it holds %d", who,
               what, p->count + 1, (int)TE_GRAPH_BLOCKS);
    memmove(&p->block[i + 1], &p->block[i], (size_t)(p->count - i) * sizeof p->block[0]);
    p->block[i].at = at, p->block[i].bytes = need, p->block[i].id = *id = ++p->next_id, p->count++;
    p->used += need;
    if (at + need > p->high) p->high = at + need;
    *memory = (void *)(p->base + at);
    return TE_OK;
}
TE_API void te__graph_pool_free(te_graph_pool *p, int i) {
    p->used -= p->block[i].bytes, p->count--;
    memmove(&p->block[i], &p->block[i + 1], (size_t)(p->count - i) * sizeof p->block[0]);
}

/* Allocate a piece of the pool, aligned to TE_ALIGN. what: what the piece is for, such as "saved of micro-batch 1";
 * only for the error text. Errors: TE_ERROR_NULL, TE_ERROR_SHAPE for 0 bytes, TE_ERROR_MEMORY where no gap is large
 * enough. */
TE_API te_status te_graph_pool_acquire(te_graph_pool *p, void **memory, size_t bytes, const char *what,
                                       te_context *ctx) {
    int id;
    TE_REQUIRE(p && p->base && memory, ctx, TE_ERROR_NULL,
               "graph pool: not initialised, or there is no place for the address");
    TE_REQUIRE(bytes, ctx, TE_ERROR_SHAPE, "graph pool: 0 bytes are wanted for %s", what ? what : "a piece");
    return te__graph_pool_allocate(p, memory, &id, bytes, "", what ? what : "a piece", ctx);
}
/* Return a piece, given by its address, to the pool. Errors: TE_ERROR_NULL; TE_ERROR_VALUE if no piece begins at this
 * address. */
TE_API te_status te_graph_pool_release(te_graph_pool *p, const void *memory, te_context *ctx) {
    TE_REQUIRE(p, ctx, TE_ERROR_NULL, "graph pool: the pool is null");
    for (int i = 0; i < p->count; i++)
        if (p->base + p->block[i].at == (uintptr_t)memory) return te__graph_pool_free(p, i), TE_OK;
    return te_fail(ctx, TE_ERROR_VALUE, "graph pool: no piece begins at %p", memory);
}

#endif
