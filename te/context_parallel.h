/* context_parallel.h -- context parallelism: the ranks of a context group split the sequences of a batch, so that each
 * rank computes only its part of each sequence, and stores activations only for this part. This is needed for sequences
 * that are too long for one rank.
 *
 * Do this, on each of the ranks:
 *     #include "te/te.h"
 *     #include "te/context_parallel.h"
 *     TE_SEQUENTIAL(block, bf16, .., (attention, at, 32, 8, 128, (context, ring)), ..)
 *     config.context = 4;                        // te_comm_config: 4 ranks split each sequence
 *     te_cp_take(tokens, all, 2, 65536, te_cp_group(&ctx), &ctx);   // this rank's part of 2 sequences, on the host
 *     batch.batch = 2, batch.seq = 65536 / 4, batch.context = 1;
 *     ... forward, backward, te_reduce_gradients, te_adamw_step as always
 *
 * Each sequence is cut into 2 * ranks chunks of the same length, of which a rank has two (te_cp_position). The ops rope
 * and positions take the positions of these rows into account; for all ops that process each row by itself nothing
 * changes. The context group is a part of the data group, over which gradients are summed, so nothing changes for the
 * optimizer, te_buckets and ZeRO-1 either. With batch.context = 0, and on one rank, the list runs on whole sequences.
 *
 *     (context, gather)      gathers all keys and values (with a window, only those within the window); takes memory
 *                            for a whole sequence
 *     (context, ring)        receives keys and values in steps while it computes; takes memory for the parts of two
 *                            ranks
 *     (context, all_to_all)  exchanges rows of all heads for whole sequences of some heads; kv_heads is a multiple of
 *                            the number of ranks
 */
#ifndef TE_CONTEXT_PARALLEL_H
#define TE_CONTEXT_PARALLEL_H

#include "ops/context_attention.h" /* the option context of attention, te_cp_take */

#endif
