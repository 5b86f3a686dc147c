/* context_parallel.h -- context parallelism: the ranks of a context group split the sequences of a batch, so that each
 * rank computes, and has activations of, only its part of each sequence. Needed for sequences that are too long for one
 * rank.
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
 * Each sequence is cut into 2 * ranks chunks of the same length, of which a rank has two (te_cp_position). rope and
 * positions know the places of these rows. Ops that work on each row need not know them. The context group is a part of
 * the data group, over which gradients are summed, so the optimizer, te_buckets and ZeRO-1 need not know it either.
 * With batch.context = 0, and on one rank, the list runs on whole sequences.
 *
 *     (context, gather)      gathers keys and values, with a window only those within it; takes memory for a whole
 *                            sequence
 *     (context, ring)        receives keys and values in steps while it computes; takes memory for two ranks' part
 *     (context, all_to_all)  exchanges rows of all heads for whole sequences of some heads; kv_heads is a multiple of
 *                            the number of ranks
 */
#ifndef TE_CONTEXT_PARALLEL_H
#define TE_CONTEXT_PARALLEL_H

#include "ops/context_attention.h" /* the option context of attention, te_cp_take */

#endif
