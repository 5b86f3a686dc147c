/* pipeline.h -- pipeline parallelism: the schedule of a pipeline's stages, and messages between the stages.
 *
 * A pipeline has te_comm_config.pipeline stages; rank s of te_pipeline_group(ctx) is stage s. A model is cut into
 * chunks * stages parts: part c * stages + s is chunk c of stage s, so with several chunks micro-batches go through all
 * stages several times. The schedule is 1F1B, interleaved if there are several chunks (Narayanan et al., "Efficient
 * large-scale language model training on GPU clusters using Megatron-LM", SC 2021): a stage begins with some forwards,
 * then alternates between one forward and one backward, and ends with the backwards that remain.
 *
 * Do this on each rank, once and then in every optimizer step:
 *     const te_pipeline p = te_pipeline_of(stages, chunks, micro_batches);
 *     const int count = te_pipeline_schedule(slot, capacity, p, te_pipeline_group(&ctx)->rank);
 *     for (int t = 0; t < count; t++) {
 *         run(slot[t].pass);                                   // a forward, a backward or nothing
 *         messages = the output of the pass, if slot[t].to >= 0; the inputs of slot[t].receive[0] and [1]
 *         TE_TRY(te_group_exchange(te_pipeline_group(&ctx), messages, n, &ctx));
 *     }
 *
 * All stages go through the same slots, and each message is sent and received in the same slot. Therefore two calls
 * that wait for each other are always in the same slot: a send needs no buffer, and no order of the calls can be a
 * deadlock.
 */
#ifndef TE_PIPELINE_H
#define TE_PIPELINE_H

#include "../core/rank_group.h" /* te_group_exchange, TE_PIPELINE_MAX_STAGES */
#include "../core/tensor.h"     /* te_tensor */

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Messages for te_group_exchange: te_transfer_to sends x to rank `to` of a group, te_transfer_from overwrites y by a
 * tensor from rank `from`. x and y must be dense, without a stride between rows. */
TE_API te_transfer te_transfer_to(te_tensor x, int to) {
    te_transfer t;
    t.data = x.data, t.bytes = x.rows * x.cols * (int64_t)te_dtype_bytes(x.dtype), t.peer = to, t.is_received = 0;
    return t;
}
TE_API te_transfer te_transfer_from(te_tensor y, int from) {
    te_transfer t = te_transfer_to(y, from);
    t.is_received = 1;
    return t;
}
/* Sends x to rank `to` of the group, which must call te_receive with a tensor of as many bytes. On the host te_send may
 * wait for the call of te_receive; on CUDA, work that is enqueued later waits for the call of te_receive. Therefore
 * ranks that send to each other (two ranks, or several ranks in a circle) must each use one te_group_exchange, which
 * sends and receives at the same time. Errors: those of te_group_exchange. */
TE_API te_status te_send(const te_group *g, te_tensor x, int to, te_context *ctx) {
    TE_REQUIRE(!te__is_strided(x), ctx, TE_ERROR_SHAPE,
               "te_send: the rows have a stride of %lld, and a message is dense", (long long)x.stride);
    const te_transfer t = te_transfer_to(x, to);
    return te_group_exchange(g, &t, 1, ctx);
}
/* Overwrites y by the tensor that rank `from` of the group sends with te_send. */
TE_API te_status te_receive(const te_group *g, te_tensor y, int from, te_context *ctx) {
    TE_REQUIRE(!te__is_strided(y), ctx, TE_ERROR_SHAPE,
               "te_receive: the rows have a stride of %lld, and a message is dense", (long long)y.stride);
    const te_transfer t = te_transfer_from(y, from);
    return te_group_exchange(g, &t, 1, ctx);
}

/* ---- the order of the passes of a stage -------------------------------------------------------------------------- */

typedef struct te_pipeline {
    int stages, chunks;  /* the model has stages * chunks parts */
    int micro_batches;   /* number of micro-batches of an optimizer step; with several chunks, stages are idle least if
                          * this number is a multiple of `stages` */
} te_pipeline;

typedef enum te_pipeline_kind { TE_PIPELINE_idle, TE_PIPELINE_forward, TE_PIPELINE_backward } te_pipeline_kind;
typedef struct te_pipeline_pass {
    te_pipeline_kind kind;
    int chunk, micro_batch; /* chunk: the chunk of the stage, which is part chunk * stages + stage of the model */
} te_pipeline_pass;

TE_API te_pipeline te_pipeline_of(int stages, int chunks, int micro_batches) {
    te_pipeline p;
    p.stages = stages, p.chunks = chunks, p.micro_batches = micro_batches;
    return p;
}
/* Returns whether the sizes are possible: each is positive, there are at most TE_PIPELINE_MAX_STAGES stages, and the
 * number of slots cannot overflow. */
TE_API int te__pipeline_is_valid(te_pipeline p) {
    return p.stages > 0 && p.stages <= TE_PIPELINE_MAX_STAGES && p.chunks > 0 && p.micro_batches > 0 &&
           (int64_t)p.chunks * p.micro_batches < INT32_MAX / 8 / p.stages;
}
/* Returns the number of forwards of a stage. The order of the passes is computed as if the number of micro-batches were
 * rounded up to a multiple of `stages`. te__pipeline_skip leaves out the passes of micro-batches that do not exist; no
 * other pass waits for such a pass. Without rounding up, the last group of te__pipeline_pass_of would be smaller, and
 * four stages with three chunks and five micro-batches would wait for each other forever. */
TE_API int te__pipeline_forwards(te_pipeline p) {
    return p.chunks * p.stages * ((p.micro_batches + p.stages - 1) / p.stages);
}
/* Returns W, the number of forwards that a stage runs before it begins to alternate between forwards and backwards. A
 * stage keeps the activations of at most W + 1 forwards at a time, each of one chunk and one micro-batch. With one
 * chunk, W + 1 is at most the number of stages. */
TE_API int te__pipeline_warmup(te_pipeline p, int stage) {
    const int behind = p.stages - 1 - stage; /* number of later stages */
    const int forwards = p.chunks == 1 ? behind : 2 * behind + (p.chunks - 1) * p.stages;
    return (int)te_min(forwards, te__pipeline_forwards(p) - 1);
}
/* Returns forward or backward number k of each stage. The micro-batches form groups of `stages` micro-batches. The
 * forwards of a group run chunk 0 for all micro-batches of the group, then chunk 1 for all of them, and so on; the next
 * group follows. Backwards have the same order, but with the chunks in reverse. */
TE_API te_pipeline_pass te__pipeline_pass_of(te_pipeline p, te_pipeline_kind kind, int k) {
    te_pipeline_pass pass;
    const int group = k / (p.stages * p.chunks), chunk = k / p.stages % p.chunks;
    pass.kind = kind, pass.micro_batch = group * p.stages + k % p.stages;
    pass.chunk = kind == TE_PIPELINE_forward ? chunk : p.chunks - 1 - chunk;
    return pass;
}
/* Returns the number k of a pass among the passes of its kind: the inverse of te__pipeline_pass_of. */
TE_API int te__pipeline_number(te_pipeline p, te_pipeline_pass of) {
    const int chunk = of.kind == TE_PIPELINE_forward ? of.chunk : p.chunks - 1 - of.chunk;
    return (of.micro_batch / p.stages * p.chunks + chunk) * p.stages + of.micro_batch % p.stages;
}
/* Returns pass number i of a stage. i is 0 to 2 * te__pipeline_forwards - 1. */
TE_API te_pipeline_pass te__pipeline_pass_at(te_pipeline p, int stage, int i) {
    const int warmup = te__pipeline_warmup(p, stage), all = te__pipeline_forwards(p), k = i - warmup;
    if (i < warmup) return te__pipeline_pass_of(p, TE_PIPELINE_forward, i);
    if (k >= 2 * (all - warmup)) return te__pipeline_pass_of(p, TE_PIPELINE_backward, i - all);
    return k % 2 ? te__pipeline_pass_of(p, TE_PIPELINE_backward, k / 2)
                 : te__pipeline_pass_of(p, TE_PIPELINE_forward, warmup + k / 2);
}

/* ---- the slots of the schedule ----------------------------------------------------------------------------------- */

/* What a stage does in one slot. The stage runs a pass or is idle. Then the stage sends the output of the pass: the
 * output of a forward goes to the next stage, the gradient that a backward has computed to the previous stage. The
 * stage also receives the inputs of its own later passes. */
typedef struct te_pipeline_slot {
    te_pipeline_pass pass;
    int to;                      /* the stage to which the output of the pass is sent; -1 if the output is not sent */
    te_pipeline_pass receive[2]; /* the passes whose inputs the stage receives: [0] a forward, [1] a backward; idle if
                                  * no such input is received */
    int from[2];                 /* the stages that send these inputs; -1 if the pass is idle */
} te_pipeline_slot;

/* `of` is a pass of `stage`. Returns the pass of the same kind and micro-batch on the part of the model that is `parts`
 * parts later. If there is no such part, the result is idle; otherwise *at is the stage that runs the pass. */
TE_API te_pipeline_pass te__pipeline_neighbour(te_pipeline p, int stage, te_pipeline_pass of, int parts, int *at) {
    const int part = of.chunk * p.stages + stage + parts;
    if (part < 0 || part >= p.stages * p.chunks) of.kind = TE_PIPELINE_idle;
    else of.chunk = part / p.stages, *at = part % p.stages;
    return of;
}
/* Return the pass that consumes the output of `of`, and the pass that produces the input of `of`. The forward of the
 * model's last part has no consumer, and the backward of this part has no producer, because that backward begins with
 * the loss. */
TE_API te_pipeline_pass te__pipeline_consumer(te_pipeline p, int stage, te_pipeline_pass of, int *at) {
    return te__pipeline_neighbour(p, stage, of, of.kind == TE_PIPELINE_forward ? 1 : -1, at);
}
TE_API te_pipeline_pass te__pipeline_producer(te_pipeline p, int stage, te_pipeline_pass of, int *at) {
    return te__pipeline_neighbour(p, stage, of, of.kind == TE_PIPELINE_forward ? -1 : 1, at);
}
/* The progress of all stages. next: the number of each stage's next pass. done: how many forwards and how many
 * backwards each stage has finished. */
typedef struct te__pipeline_progress {
    int next[TE_PIPELINE_MAX_STAGES], done[3][TE_PIPELINE_MAX_STAGES]; /* done: [te_pipeline_kind, stage] */
} te__pipeline_progress;

/* Advance next[stage] to a pass whose micro-batch exists, and count the skipped passes as done. */
TE_API void te__pipeline_skip(te__pipeline_progress *at, te_pipeline p, int stage) {
    for (; at->next[stage] < 2 * te__pipeline_forwards(p); at->next[stage]++) {
        const te_pipeline_pass pass = te__pipeline_pass_at(p, stage, at->next[stage]);
        if (pass.micro_batch < p.micro_batches) return;
        at->done[pass.kind][stage]++;
    }
}
/* Returns the pass that a stage runs in this slot: its next pass, or idle if the input of that pass has not been
 * computed yet. */
TE_API te_pipeline_pass te__pipeline_now(const te__pipeline_progress *at, te_pipeline p, int stage) {
    const te_pipeline_pass idle = {TE_PIPELINE_idle, 0, 0};
    if (at->next[stage] == 2 * te__pipeline_forwards(p)) return idle;
    int producer = stage;
    const te_pipeline_pass pass = te__pipeline_pass_at(p, stage, at->next[stage]);
    const te_pipeline_pass input = te__pipeline_producer(p, stage, pass, &producer);
    const int is_there =
        input.kind == TE_PIPELINE_idle || at->done[input.kind][producer] > te__pipeline_number(p, input);
    return is_there ? pass : idle;
}
/* Stage `from` runs `pass`, and then sends its output to another stage. If `stage` sends or receives this message,
 * records the message in *slot, which says what `stage` does at this time. */
TE_API void te__pipeline_add_message(te_pipeline_slot *slot, te_pipeline p, int stage, te_pipeline_pass pass,
                                     int from) {
    int to = from;
    if (pass.kind == TE_PIPELINE_idle) return;
    const te_pipeline_pass input = te__pipeline_consumer(p, from, pass, &to);
    if (input.kind == TE_PIPELINE_idle || to == from) return;
    if (stage == from) slot->to = to;
    if (stage != to) return;
    slot->receive[pass.kind == TE_PIPELINE_backward] = input, slot->from[pass.kind == TE_PIPELINE_backward] = from;
}
/* Writes the slots of a stage, at most `capacity` of them, to slot[]; capacity may be 0, and slot null. Returns the
 * number of slots, which is the same for each stage: 2 * (chunks * micro_batches + stages - 1) if there is one chunk or
 * `stages` divides micro_batches, else more. Returns 0 if the sizes or the stage are not valid. */
TE_API int te_pipeline_schedule(te_pipeline_slot *slot, int capacity, te_pipeline p, int stage) {
    te__pipeline_progress at;
    te_pipeline_pass now[TE_PIPELINE_MAX_STAGES];
    memset(&at, 0, sizeof at);
    if (!te__pipeline_is_valid(p) || stage < 0 || stage >= p.stages) return 0;
    for (int t = 0;; t++) {
        int running = 0;
        te_pipeline_slot s;
        memset(&s, 0, sizeof s);
        s.to = s.from[0] = s.from[1] = -1;
        for (int i = 0; i < p.stages; i++) {
            te__pipeline_skip(&at, p, i);
            now[i] = te__pipeline_now(&at, p, i);
            running += now[i].kind != TE_PIPELINE_idle;
            te__pipeline_add_message(&s, p, stage, now[i], i);
        }
        if (!running) return t;
        s.pass = now[stage];
        if (t < capacity) slot[t] = s;
        for (int i = 0; i < p.stages; i++)
            if (now[i].kind != TE_PIPELINE_idle) at.next[i]++, at.done[now[i].kind][i]++;
    }
}
/* The number of buffers that a stage needs for a chunk. An input is kept from its arrival (in the model's first part,
 * from the forward) until the backward of the micro-batch; a gradient of an output is kept from its arrival until that
 * backward. Micro-batch m can use input buffer m % inputs and gradient buffer m % gradients. The activations that
 * forward saves need at most `inputs` buffers. */
typedef struct te_pipeline_buffers { int inputs, gradients; } te_pipeline_buffers;

TE_API te_pipeline_buffers te_pipeline_buffers_of(const te_pipeline_slot *slot, int count, int chunk) {
    te_pipeline_buffers most = {0, 0};
    int arrived[2] = {0, 0}, forwards = 0, backwards = 0;
    for (int t = 0; t < count; t++) {
        const te_pipeline_pass pass = slot[t].pass;
        forwards += pass.kind == TE_PIPELINE_forward && pass.chunk == chunk;
        backwards += pass.kind == TE_PIPELINE_backward && pass.chunk == chunk;
        for (int k = 0; k < 2; k++) {
            const te_pipeline_pass r = slot[t].receive[k];
            arrived[k] += r.kind != TE_PIPELINE_idle && r.chunk == chunk;
        }
        most.inputs = (int)te_max(most.inputs, (int)te_max(forwards, arrived[0]) - backwards);
        most.gradients = (int)te_max(most.gradients, arrived[1] - backwards);
    }
    return most;
}

#endif
