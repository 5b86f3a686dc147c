/* packed_fuzz.c -- a libFuzzer entry for files whose tensors are packed into parameters (te/io/packed.h), transposed and not,
 * by one rank and by a rank of a tensor group that takes its shard. The first byte of an input chooses the rank. A refused
 * file changes no weight; an accepted one of the valid size has filled every parameter. tests/fuzz.sh builds and runs it.
 */
#include "te/te.h"
#include "edit.h"

#define LIST(N) (rmsnorm, n, 8), (linear, qkv, 8, 16 / N), (bias, qkv_b, 16 / N), (gelu, g), (linear, o, 16 / N, 8)
TE_SEQUENTIAL(whole, f32, LIST(1))
TE_SEQUENTIAL(half, bf16, LIST(2))

enum { MAX_PARAMS = 6, KINDS = 3 /* one rank; ranks 0 and 1 of two */ };
static const te_packed table[] = {{"norm", "n", "weight", 0, 0}, {"q", "qkv", "weight", 8, 0}, {"k", "qkv", "weight", 4, 1}, {"v", "qkv", "weight", 0, 0},
                                  {"q_b", "qkv_b", "bias", 8, 0}, {"k_b", "qkv_b", "bias", 4, 0}, {"v_b", "qkv_b", "bias", 4, 0}, {"o", "o", "weight", 0, 1}};
enum { TABLE = sizeof table / sizeof *table };

static te_context ctx;
static te_comm comm;
static fuzz_file file;
static struct { te_model m; te_param params[MAX_PARAMS]; te_packed_list list; unsigned char *data, *before; size_t bytes; } loads[KINDS];

static void need(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "packed_fuzz: %s: %s\n", what, te_last_error(&ctx));
    abort();
}
/* Makes the context one of rank `kind` - 1 of two, or of no group. Nothing of a load waits for another rank. */
static void be(int kind) {
    comm.world.size = comm.tensor.size = 2, comm.data.size = 1, comm.tensor.rank = comm.world.rank = kind - 1;
    ctx.comm = kind ? &comm : 0;
}
/* Marks the parameters as shards of those of `whole`, which the options of a list would do that has collectives. */
static void shard(te_param *p, int n) {
    for (int i = 0; i < n; i++) {
        if (!strcmp(p[i].op, "o")) p[i].shard = TE_SHARD_rows;
        if (!strncmp(p[i].op, "qkv", 3)) p[i].shard = TE_SHARD_columns, p[i].parts = 3, p[i].first_part = 2;
    }
}
static void make(void) {
    char path[FUZZ_PATH];
    need(te_context_create(&ctx, 0, 1) == TE_OK, "context");
    for (int i = 0; i < KINDS; i++) {
        const te_plan *plan = i ? half_plan() : whole_plan();
        int n = 0;
        void *p;
        for (int k = 0; k < plan->op_count; k++) n += plan->op[k].params;
        be(i);
        loads[i].bytes = te_plan_param_bytes(plan);
        need(te_allocate(&ctx, &p, loads[i].bytes) == TE_OK && te_fill(&ctx, p, 0, loads[i].bytes) == TE_OK, "memory");
        need(te_model_bind(&loads[i].m, plan, loads[i].params, n, p, 0, &ctx) == TE_OK, "bind");
        if (i) shard(loads[i].params, n);
        need(te_model_randomize(&loads[i].m, 0.1f, 1, 0, &ctx) == TE_OK, "weights");
        loads[i].list = te_packed_none(), loads[i].data = (unsigned char *)p, loads[i].before = (unsigned char *)malloc(loads[i].bytes);
        memcpy(loads[i].before, p, loads[i].bytes);
        need(te_packed_add(&loads[i].list, &loads[i].m, table, TABLE, "model.", &ctx) == TE_OK, "packed");
        need(te_packed_covers(&loads[i].list, &loads[i].m, &ctx) == TE_OK, "covers");
    }
    be(0);
    fuzz_temporary(path, "packed");
    need(te_safetensors_write(path, loads[0].list.tensor, loads[0].list.count, 0, 0, &ctx) == TE_OK, "write");
    fuzz_read(&file, path), (void)remove(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    te_safetensors f;
    if (!file.good_size) make();
    if (n < 1) return 0;
    const int kind = bytes[0] % KINDS;
    fuzz_edit(&file, bytes + 1, n - 1);
    unsigned char *exact = fuzz_exact(&file);
    be(kind);
    if (te_safetensors_open_memory(&f, exact, file.size, &ctx) == TE_OK) {
        const te_status status = te_safetensors_load(&f, loads[kind].list.tensor, loads[kind].list.count, bytes[0] / KINDS & 1, &ctx);
        need(n > EDIT || status == TE_OK, "the valid file");
        if (status != TE_OK) need(!memcmp(loads[kind].data, loads[kind].before, loads[kind].bytes), "a refused file changed a weight");
        memcpy(loads[kind].data, loads[kind].before, loads[kind].bytes);
        te_safetensors_close(&f);
    } else {
        need(n > EDIT, "the valid file");
    }
    be(0), free(exact);
    return 0;
}
