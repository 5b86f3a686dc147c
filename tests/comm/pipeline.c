/* pipeline.c -- messages between the stages of a pipeline (te/comm/pipeline.h): the groups of a grid; a whole schedule,
 * whose messages are compared with what each pass should receive; the gradient norm and checkpoints of models that lie on
 * several stages; messages that are refused; stages that fail.
 *
 *     mpirun -n 4 pipeline run 2 3 5     stages, chunks and micro-batches; 4 ranks: two pipelines
 *     mpirun -n 4 pipeline models FILE   a model on each of 4 stages; the checkpoint's path
 *     mpirun -n 2 pipeline bytes         rank 0 sends fewer bytes than rank 1 expects
 *     mpirun -n 3 pipeline leave         rank 1 ends within the schedule; so with `stall`, which stays
 *
 * Exit code 0: all is right; 1: not; 3: another rank has failed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "te/te.h"

enum { COUNT = 40000 }; /* numbers in a message: more than MPI sends without a receiver */

TE_SEQUENTIAL(small, f32, (linear, l, 12, 20), (bias, b, 20))

static te_context ctx;
static te_comm comm;
static int64_t compared, wrong;
static float host[COUNT];

static void refused(te_status is, te_status want, const char *text) {
    compared++;
    if (is == want && strstr(te_last_error(&ctx), text)) return;
    wrong++;
    printf("rank %d: %s: %s, and not \"%s\"\n", comm.world.rank, te_status_string(is), te_last_error(&ctx), text);
}
static void equal(int is, int want, const char *what) {
    compared++;
    if (is != want) wrong++, printf("rank %d: %s is %d, and not %d\n", comm.world.rank, what, is, want);
}
/* The numbers that a pass of a part reads; what the pass in front of it (or, of a backward, behind it) produces. */
static float number_of(te_pipeline_kind kind, int part, int micro_batch, int i) {
    return (float)(1 + part + 100 * micro_batch + 10000 * (kind == TE_PIPELINE_backward) + 20000 * (i % 7));
}
static te_status put(float *to, te_pipeline_kind kind, int part, int micro_batch) {
    for (int i = 0; i < COUNT; i++) host[i] = number_of(kind, part, micro_batch, i);
    TE_TRY(te_copy(&ctx, to, host, sizeof host));
    return te_synchronize(&ctx);
}
static te_status compare(const float *is, te_pipeline_kind kind, int part, int micro_batch) {
    TE_TRY(te_comm_synchronize(&ctx));
    TE_TRY(te_copy(&ctx, host, is, sizeof host));
    TE_TRY(te_synchronize(&ctx));
    for (int i = 0; i < COUNT; i++, compared++)
        if (host[i] != number_of(kind, part, micro_batch, i) && !wrong++)
            printf("rank %d: micro-batch %d of part %d: number %d is %g\n", comm.world.rank, micro_batch, part, i,
                   (double)host[i]);
    return TE_OK;
}
static te_status take(float **p, int64_t tensors) {
    void *memory = 0;
    TE_TRY(te_allocate(&ctx, &memory, (size_t)tensors * sizeof host));
    *p = (float *)memory;
    return te_fill(&ctx, memory, 0xff, (size_t)tensors * sizeof host); /* NaN */
}
static te_tensor tensor_of(float *data) { return te_matrix(data, TE_f32, COUNT, 1); }

/* Run all slots of this stage. fails_at: the slot before which a rank returns; -1: none. */
static te_status run(te_pipeline p, int fails_at) {
    const te_group *g = te_pipeline_group(&ctx);
    const int count = te_pipeline_schedule(0, 0, p, g->rank), parts = p.stages * p.chunks;
    te_pipeline_slot *slot = (te_pipeline_slot *)calloc((size_t)count, sizeof *slot);
    float *in[2][16], *out;
    int kept[2][16];
    if (!slot || p.chunks > 16 || te_pipeline_schedule(slot, count, p, g->rank) != count)
        return te_fail(&ctx, TE_ERROR_VALUE, "no schedule");
    for (int c = 0; c < p.chunks; c++) {
        const te_pipeline_buffers b = te_pipeline_buffers_of(slot, count, c);
        kept[0][c] = b.inputs, kept[1][c] = b.gradients;
        for (int k = 0; k < 2; k++) TE_TRY(take(&in[k][c], te_max(kept[k][c], 1)));
    }
    TE_TRY(take(&out, 1));
    for (int t = 0; t < count && t != fails_at; t++) {
        const te_pipeline_slot *s = &slot[t];
        const te_pipeline_pass x = s->pass;
        const int k = x.kind == TE_PIPELINE_backward, part = x.chunk * p.stages + g->rank;
        const int has_input = p.stages > 1 && (k ? part + 1 < parts : part > 0);
        te_transfer message[3];
        int messages = 0;
        if (x.kind != TE_PIPELINE_idle && has_input)
            TE_TRY(compare(in[k][x.chunk] + (int64_t)(x.micro_batch % kept[k][x.chunk]) * COUNT, x.kind, part, x.micro_batch));
        if (s->to >= 0) {
            TE_TRY(put(out, x.kind, part + (k ? -1 : 1), x.micro_batch));
            message[messages++] = te_transfer_to(tensor_of(out), s->to);
        }
        for (int i = 0; i < 2; i++) {
            const te_pipeline_pass r = s->receive[i];
            if (s->from[i] < 0) continue;
            float *to = in[i][r.chunk] + (int64_t)(r.micro_batch % kept[i][r.chunk]) * COUNT;
            message[messages++] = te_transfer_from(tensor_of(to), s->from[i]);
        }
        TE_TRY(te_group_exchange(g, message, messages, &ctx));
    }
    TE_TRY(te_comm_synchronize(&ctx));
    for (int c = 0; c < p.chunks; c++) te_release(&ctx, in[0][c]), te_release(&ctx, in[1][c]);
    te_release(&ctx, out);
    free(slot);
    return TE_OK;
}
/* The groups of a grid of stages and replicas. */
static te_status groups(void) {
    const te_group *g = te_pipeline_group(&ctx), *e = te_embedding_group(&ctx);
    const int stages = g->size, ranks = comm.world.size / stages, stage = comm.world.rank / ranks;
    const int has_embedding = stages > 1 && (!stage || stage == stages - 1);
    float *x;
    equal(g->rank, stage, "the stage"), equal(te_data_group(&ctx)->size, ranks, "the size of a data group");
    equal(te_data_group(&ctx)->rank, comm.world.rank % ranks, "the rank in the data group");
    equal(e->size, has_embedding ? 2 : 1, "the size of the embedding group");
    equal(e->rank, has_embedding && stage, "the rank in the embedding group");
    TE_TRY(take(&x, 1));
    TE_TRY(put(x, TE_PIPELINE_forward, stage, 0));
    TE_TRY(te_group_all_reduce(e, x, x, 1, TE_f32, &ctx)); /* parts 0 and stages - 1: 1 + stages */
    TE_TRY(te_comm_synchronize(&ctx));
    TE_TRY(te_copy(&ctx, host, x, sizeof *host));
    TE_TRY(te_synchronize(&ctx));
    equal((int)host[0], has_embedding ? 1 + stages : 1 + stage, "the sum of the embedding group");
    if (stages > 1) { /* one message, by te_send and te_receive */
        if (!stage) TE_TRY(put(x, TE_PIPELINE_forward, 7, 3));
        if (!stage) TE_TRY(te_send(g, tensor_of(x), stages - 1, &ctx));
        else if (stage == stages - 1) TE_TRY(te_receive(g, tensor_of(x), 0, &ctx));
        if (!stage || stage == stages - 1) TE_TRY(compare(x, TE_PIPELINE_forward, 7, 3));
    }
    refused(te_send(g, tensor_of(x), stage, &ctx), TE_ERROR_VALUE, "exchange: a message between ranks");
    refused(te_send(g, tensor_of(x), stages, &ctx), TE_ERROR_VALUE, "exchange: a message between ranks");
    refused(te_receive(g, tensor_of(x), -1, &ctx), TE_ERROR_VALUE, "exchange: a message between ranks");
    refused(te_send(0, tensor_of(x), 0, &ctx), TE_ERROR_NULL, "the group is null");
    if (stages > 1) refused(te_send(g, te_none(), !stage, &ctx), TE_ERROR_NULL, "exchange: a pointer is null");
    te_release(&ctx, x);
    return TE_OK;
}
/* Model i of MODELS is on stage i, the others are described; but model 0 is on the last stage, too, as a copy. */
enum { MODELS = 4 };
static small model[MODELS];
/* has[i]: bind model i to memory; is_copy: mark model 0 as a copy */
static te_status bind_models(const int has[MODELS], int is_copy) {
    for (int i = 0; i < MODELS; i++) {
        float *memory = 0;
        if (!has[i]) {
            TE_TRY(te_model_describe(&model[i].model, small_plan(), (te_param *)(&model[i].model + 1), 2, &ctx));
            continue;
        }
        TE_TRY(take(&memory, 1)); /* leaves it to the end of the process */
        TE_TRY(small_bind(&model[i], memory, memory + 16384, &ctx));
        TE_TRY(te_model_randomize(&model[i].model, 1.0f, 5, (uint32_t)i, &ctx));
        if (!i && is_copy) TE_TRY(te_model_mark_copy(&model[i].model, &ctx));
    }
    return TE_OK;
}
static te_checkpoint checkpoint_of(te_named_model named[MODELS]) {
    static const char *const names[MODELS] = {"a", "b", "c", "d"};
    te_checkpoint c;
    memset(&c, 0, sizeof c);
    for (int i = 0; i < MODELS; i++) named[i].name = names[i], named[i].model = &model[i].model;
    c.models = named, c.count = MODELS;
    return c;
}
static te_status models(const char *path) {
    const int stage = comm.pipeline.rank, last = stage == MODELS - 1, elements = (int)te_plan_param_elements(small_plan());
    const int has[MODELS] = {!stage || last, stage == 1, stage == 2, last}, none[MODELS] = {0, 0, 0, 0};
    static float before[2][COUNT / 2], after[COUNT / 2];
    const size_t bytes = (size_t)elements * sizeof(float);
    te_named_model named[MODELS];
    const te_checkpoint c = checkpoint_of(named);
    te_model *own[2] = {&model[last ? 0 : stage].model, &model[MODELS - 1].model};
    te_safetensors file;
    te_grad_norm norm;
    void *memory = 0;
    if (comm.pipeline.size != MODELS) return te_fail(&ctx, TE_ERROR_VALUE, "%d stages are needed", (int)MODELS);
    TE_TRY(bind_models(has, last));
    /* The norm: each gradient of stage s is s + 1; the copy of model 0 has gradients of 100, which do not count. */
    const int count = last ? 2 : 1;
    for (int k = 0; k < count; k++) {
        for (int i = 0; i < elements; i++) host[i] = last && !k ? 100.0f : (float)(stage + 1);
        TE_TRY(te_copy(&ctx, (void *)(uintptr_t)own[k]->grads, host, bytes));
        TE_TRY(te_copy(&ctx, before[k], own[k]->params, bytes));
        TE_TRY(te_synchronize(&ctx));
    }
    TE_TRY(te_allocate(&ctx, &memory, te_grad_norm_bytes(own, count)));
    TE_TRY(te_grad_norm_init(&norm, memory, te_grad_norm_bytes(own, count), own, count, &ctx));
    TE_TRY(te_grad_norm_run(&norm, &ctx));
    TE_TRY(te_comm_synchronize(&ctx));
    TE_TRY(te_copy(&ctx, host, norm.result, sizeof *host));
    TE_TRY(te_synchronize(&ctx));
    equal((int)host[0], (12 * 20 + 20) * (1 + 4 + 9 + 16), "the sum of the squares of all gradients");
    te_release(&ctx, memory);
    /* The checkpoint comes back on all stages, also into the copy. */
    TE_TRY(te_checkpoint_save(path, &c, &ctx));
    for (int k = 0; k < count; k++) TE_TRY(te_fill(&ctx, (void *)(uintptr_t)own[k]->params, 0xff, bytes));
    TE_TRY(te_safetensors_open(&file, path, &ctx));
    TE_TRY(te_checkpoint_load(&c, &file, &ctx));
    te_safetensors_close(&file);
    for (int k = 0; k < count; k++) {
        TE_TRY(te_copy(&ctx, after, own[k]->params, bytes));
        TE_TRY(te_synchronize(&ctx));
        for (int i = 0; i < own[k]->param_count; i++) {
            const te_param *p = &own[k]->param[i];
            const int64_t at = (const float *)p->data - (const float *)own[k]->params;
            equal(memcmp(after + at, before[k] + at, (size_t)(p->rows * p->cols) * sizeof(float)), 0, "what was loaded");
        }
    }
    /* A model that no stage has, and one that two have: errors on all stages. */
    const char *const text = "each model has memory on exactly one stage of the pipeline";
    TE_TRY(bind_models(stage == 2 ? none : has, last));
    refused(te_checkpoint_save(path, &c, &ctx), TE_ERROR_STATE, text);
    TE_TRY(bind_models(has, 0));
    refused(te_checkpoint_save(path, &c, &ctx), TE_ERROR_STATE, text);
    /* A described model cannot run or be updated. */
    te_model *elsewhere[1] = {&model[stage ? 1 + stage % 2 : 1].model};
    te_batch batch;
    memset(&batch, 0, sizeof batch), batch.batch = batch.seq = 1;
    TE_TRY(bind_models(none, 0));
    refused(te_plan_forward(te_matrix(after, TE_f32, 1, 20), 0, te_matrix(before, TE_f32, 1, 12), small_plan(), elsewhere[0],
                            &batch, &ctx), TE_ERROR_STATE, "has no memory");
    refused(te_grad_norm_init(&norm, after, sizeof after, elsewhere, 1, &ctx), TE_ERROR_NULL, "has no memory");
    refused(te_model_mark_copy(elsewhere[0], &ctx), TE_ERROR_STATE, "te_model_mark_copy: the instance is not bound");
    te_recipes_config config = te_recipes_defaults();
    config.ranks = comm.world.size;
    refused(te__recipes_check_config(&config, &ctx), TE_ERROR_VALUE, "the stages of a pipeline have other products");
    return TE_OK;
}
/* Rank 1 expects more than rank 0 sends. NCCL does not notice that. */
static te_status bytes(void) {
    float *x;
    TE_TRY(take(&x, 1));
    const te_tensor half = te_matrix(x, TE_f32, COUNT / 2, 1);
    if (!comm.pipeline.rank) return te_send(&comm.pipeline, half, 1, &ctx);
    return te_receive(&comm.pipeline, tensor_of(x), 0, &ctx);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    const int runs = !strcmp(mode, "run") && argc == 5, has_models = !strcmp(mode, "models") && argc == 3;
    const int leaves = !strcmp(mode, "leave"), stalls = !strcmp(mode, "stall");
    int rank, size;
    if (!runs && !has_models && !leaves && !stalls && strcmp(mode, "bytes")) return fprintf(stderr, "pipeline run STAGES CHUNKS MICRO_BATCHES\n"), 2;
    te_comm_rank_from_env(&rank, &size);
    te_comm_config config = te_comm_defaults();
    config.file = getenv("RANKS_FILE"), config.pipeline = runs ? atoi(argv[2]) : size;
    if (leaves || stalls) config.timeout = 2;
    te_status status = te_context_create(&ctx, TE_CUDA ? te_comm_local_rank_from_env() : 0, 3);
    if (status == TE_OK) status = te_comm_create(&comm, &config, &ctx);
    if (status == TE_OK && runs) {
        status = groups();
        if (status == TE_OK) status = run(te_pipeline_of(config.pipeline, atoi(argv[3]), atoi(argv[4])), -1);
    } else if (status == TE_OK && has_models) {
        status = models(argv[2]);
    } else if (status == TE_OK && (leaves || stalls)) {
        status = run(te_pipeline_of(size, 2, 2 * size), rank == 1 ? 5 : -1);
        if (rank == 1 && stalls) sleep(20);
        if (rank == 1) _exit(0);
    } else if (status == TE_OK) {
        status = bytes();
    }
    if (status != TE_OK)
        printf("rank %d: %s: %s\n", rank, te_status_string(status), te_last_error(&ctx));
    else if (!rank && !wrong)
        printf("pipeline %s: %lld values of %d ranks, %d stages\n", mode, (long long)compared, size, comm.pipeline.size);
    fflush(stdout);
    te_comm_destroy(&comm); /* does not wait for ranks that have failed */
    te_context_destroy(&ctx);
    if (status == TE_ERROR_COMM) _exit(3); /* exit handlers of MPI would wait */
    return status != TE_OK || wrong;
}
