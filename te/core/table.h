/* table.h -- several tensors in one launch: a table of them in target memory, cut into chunks of one block each. */
#ifndef TE_TABLE_H
#define TE_TABLE_H

#include "target.h" /* te_block */

/* Which tensor a chunk lies in: the last t with first[t] <= chunk. first[t] is the number of chunks before tensor t,
 * first[count] that of all. */
TE_BOTH int te_chunk_tensor(const int32_t *first, int count, int32_t chunk) {
    int low = 0, high = count;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (first[middle] <= chunk) low = middle;
        else high = middle;
    }
    return low;
}

/* Some of the tensors of such a table: first[0] chunks lie before them. */
typedef struct te_table {
    const void *tensor;   /* [count] of what the kernel takes for one tensor */
    const int32_t *first; /* [count + 1] */
    int count, chunks;    /* chunks: of these, blocks of the launch */
} te_table;

/* The tensor that a block has a chunk of; the block becomes that of a launch for this tensor alone. */
TE_BOTH int te_table_find(const te_table *t, te_block *b) {
    const int32_t chunk = b->x + t->first[0];
    const int n = te_chunk_tensor(t->first, t->count, chunk);
    b->x = chunk - t->first[n];
    return n;
}

#endif
