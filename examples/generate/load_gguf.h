/* load_gguf.h -- the weights of a model in a GGUF file. Part of load_model.h.
 *
 * The file is mapped. Weights of linears and the table of the embedding are used in the format that they have in the
 * file, on the host where they lie, on CUDA repacked in device memory; with -DMODEL_DEQUANTIZE they are converted to
 * MODEL_DTYPE. With -DMODEL_WEIGHTS=q8_0, tensors in floats are cast to q8_0. Norms and biases are always converted.
 */
#ifndef LOAD_GGUF_H
#define LOAD_GGUF_H

#include "linked.h"     /* linked */
#include "load_model.h" /* part, bind_part */

#ifdef MODEL_DEQUANTIZE
#define GGUF_USE TE_GGUF_CONVERTED
#else
#define GGUF_USE TE_GGUF_IN_PLACE
#endif

static te_gguf from;

/* Take all parameters of a list from the tensors of a table, which has END behind its last entry. */
static te_status load_tensors(part *p, const te_packed *table, const char *prefix, te_context *ctx) {
    const te_gguf_source source = {&from, GGUF_USE};
    int count = 0;
    while (table[count].name) count++;
    TE_TRY(bind_part(p, 0, ctx));
    return te_gguf_bind(&weights[p - parts], &p->model, table, count, prefix, &source, ctx);
}

/* ---- what load_model.h calls ------------------------------------------------------------------------------------- */

/* The model was compiled for one file: another one may have the same shapes and still mean another model. */
static te_status open_model(const char *path, te_context *ctx) {
    const linked_file *in = linked(path);
    TE_TRY(in ? te_gguf_open_memory(&from, in->bytes, linked_size(in), ctx) : te_gguf_map(&from, path, ctx));
    TE_REQUIRE(te_gguf_header_checksum(&from) == MODEL_CHECKSUM, ctx, TE_ERROR_VALUE,
               "%.200s: is not the file that this program was compiled for; run configure.py and compile again", path);
    return TE_OK;
}
static te_status load_embedding(te_context *ctx) { return load_tensors(&parts[0], embed_tensors, "", ctx); }
static te_status load_block(part *p, int layer, te_context *ctx) {
    char prefix[MAX_NAME];
    snprintf(prefix, sizeof prefix, layer_prefix, layer);
    return load_tensors(p, block_tensors, prefix, ctx);
}
static te_status load_last(part *p, te_context *ctx) { return load_tensors(p, last_tensors, "", ctx); }
static te_status load_head(part *p, te_context *ctx) {
    /* The factors of Llama 3.1's rope, if the file has them: configure.py has recognised them. */
    te_gguf_tensor *factors = (te_gguf_tensor *)(uintptr_t)te_gguf_find(&from, "rope_freqs.weight");
    if (factors) factors->uses++;
    if (!MODEL_TIED) TE_TRY(load_tensors(p, head_tensors, "", ctx));
    else {
        TE_TRY(bind_part(p, 0, ctx));
        TE_TRY(te_tie(&p->param[0], &parts[0].param[0], ctx));
    }
    return te_gguf_all_used(&from, ctx);
}
static void close_model(te_context *ctx) {
    for (int i = 0; i < PARTS; i++) te_gguf_release(&weights[i], ctx);
    te_gguf_close(&from);
}

#endif
